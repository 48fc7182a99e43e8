/* Frames against the golden bytes, against their size formulas, and against everything that a peer may get wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/wire.h"
#include "tests/support/hex.h"

#define JOB 0x1122334455667788ull

static struct zps_frame frame, back;
static uint8_t buf[ZPS_WIRE_FRAME_MAX + 1];
static const float one = 1.5f, minus_two = -2.0f;

static struct zps_frame *new_frame(struct zps_frame_header header) {
  memset(&frame, 0, sizeof frame);
  memset(&back, 0xa5, sizeof back); /* decode must set what it says it sets */
  frame.header = header;
  return &frame;
}

static struct zps_frame *new_long(uint8_t type, uint32_t src, uint32_t seq, uint16_t credits, uint32_t tag) {
  return new_frame((struct zps_frame_header){
      .type = type, .job = JOB, .epoch = 3, .src = src, .seq = seq, .credits = credits, .tag = tag});
}

static struct zps_frame *new_short(uint8_t type, uint8_t seq, uint8_t credits, uint32_t tag) {
  return new_frame(
      (struct zps_frame_header){.type = type, .is_short = true, .seq = seq, .credits = credits, .tag = tag});
}

static size_t encode(void) {
  size_t len = 0;
  memset(buf, 0, sizeof buf);
  assert_int_equal(zps_wire_encode(&frame, buf, ZPS_WIRE_FRAME_MAX, &len), ZPS_OK);
  return len;
}

/* From an allocation of exactly this size, so that sanitizers see every byte read too far. */
static zps_err_t decode(const void *bytes, size_t len, struct zps_error *error) {
  void *copy = malloc(len ? len : 1);
  memcpy(copy, bytes, len);
  const zps_err_t code = zps_wire_decode(copy, len, &back, error);
  free(copy);
  return code;
}

static void expect_refused(const void *bytes, size_t len, zps_err_t code, const char *text) {
  struct zps_error error = {.text = ""};
  assert_int_equal(decode(bytes, len, &error), code);
  if (!strstr(error.text, text)) fail_msg("unexpected text: %s", error.text);
}

/* ---- The golden frames ---- */

static void make_push(void) {
  struct zps_frame_round *round = &new_long(ZPS_FRAME_PUSH, 2, 7, 5, 1)->u.round;
  *round = (struct zps_frame_round){.tensor = 1, .step = 9, .total_nnz = 1000, .timeout_ms = 30000, .n_slices = 1};
  round->slices[0] =
      (struct zps_slice){.partition = 4, .nnz = 250, .len_bytes = 2000, .addr = 0x7f0012345678, .key = 0xabcdef};
}

static void make_push_inline(void) {
  static uint8_t row[8];
  memcpy(row, &one, 4);
  row[4] = 3;
  struct zps_frame_round *round = &new_short(ZPS_FRAME_PUSH, 0, 0, 300)->u.round;
  *round =
      (struct zps_frame_round){.tensor = 6, .step = 1ull << 40, .total_nnz = 65, .timeout_ms = 1500, .n_slices = 3};
  round->slices[0] = (struct zps_slice){.is_inline = true, .nnz = 1, .len_bytes = sizeof row, .data = row};
  round->slices[1] = (struct zps_slice){.partition = 5, .n_more = 1, .codec = 2, .is_inline = true};
  round->slices[2] = (struct zps_slice){.partition = 2, .nnz = 64, .len_bytes = 512, .addr = 0x1000, .key = UINT64_MAX};
}

static void make_result(void) {
  static uint8_t row[8];
  memcpy(row, &minus_two, 4);
  row[4] = 1 << 5;
  struct zps_frame_round *round = &new_short(ZPS_FRAME_RESULT, 1, 1, 1)->u.round;
  *round = (struct zps_frame_round){.tensor = 1, .step = 9, .n_slices = 2};
  round->slices[0] =
      (struct zps_slice){.partition = 4, .codec = 1, .nnz = 600, .len_bytes = 2528, .addr = 0x7f0000000000, .key = 1};
  round->slices[1] = (struct zps_slice){
      .partition = 8, .n_more = 3, .codec = 1, .is_inline = true, .nnz = 1, .len_bytes = sizeof row, .data = row};
}

static void make_peer(void) {
  static uint8_t row[8];
  memcpy(row, &one, 4);
  row[4] = 3;
  struct zps_frame_round *round = &new_short(ZPS_FRAME_PEER, 2, 0, 5)->u.round;
  *round = (struct zps_frame_round){.tensor = 1, .step = 9, .n_slices = 2};
  round->slices[0] = (struct zps_slice){
      .partition = 300, .codec = 3, .values = 4, .nnz = 1000, .len_bytes = 1016, .addr = 0x7f0000000000, .key = 1};
  round->slices[1] =
      (struct zps_slice){.partition = 8, .is_inline = true, .nnz = 1, .len_bytes = sizeof row, .data = row};
}

static void make_done(void) {
  new_short(ZPS_FRAME_DONE, 8, 0, 2)->u.done = (struct zps_frame_done){.tensor = 1, .step = 9};
}

static void make_abort(void) {
  struct zps_frame_abort *failed = &new_long(ZPS_FRAME_ABORT, ZPS_WIRE_SRC_SERVER, UINT32_MAX, 32, 70000)->u.abort;
  *failed =
      (struct zps_frame_abort){.tensor = 1, .step = 9, .code = ZPS_ERR_PEER_LOST, .n_ranks = 2, .ranks = {1, 300}};
  strcpy(failed->text, "rank 300 was lost: no heartbeat for 5000 ms \xe2\x80\x94 host a\xc3\xa9");
}

static void make_credit(void) {
  new_long(ZPS_FRAME_CREDIT, 2, 9, 16, 0);
}

static const struct {
  const char *name;
  void (*make)(void);
} golden[] = {
    {"push", make_push},   {"push_inline", make_push_inline}, {"result", make_result}, {"done", make_done},
    {"abort", make_abort}, {"credit", make_credit},           {"peer", make_peer},
};

enum { N_GOLDEN = sizeof golden / sizeof golden[0] };

static bool is_round(uint8_t type) {
  return type <= ZPS_FRAME_RESULT || type == ZPS_FRAME_PEER;
}

static void expect_same_slices(const struct zps_frame_round *a, const struct zps_frame_round *b) {
  for (uint32_t i = 0; i < a->n_slices; i++) {
    const struct zps_slice *x = &a->slices[i], *y = &b->slices[i];
    assert_int_equal(x->partition, y->partition);
    assert_int_equal(x->n_more, y->n_more);
    assert_int_equal(x->values, y->values);
    assert_int_equal(x->codec, y->codec);
    assert_int_equal(x->is_inline, y->is_inline);
    assert_int_equal(x->nnz, y->nnz);
    assert_int_equal(x->len_bytes, y->len_bytes);
    assert_int_equal(x->addr, y->addr);
    assert_int_equal(x->key, y->key);
    if (x->is_inline && x->len_bytes) assert_memory_equal(x->data, y->data, x->len_bytes);
  }
}

static void expect_same(void) {
  assert_int_equal(frame.header.type, back.header.type);
  assert_int_equal(frame.header.is_short, back.header.is_short);
  assert_int_equal(frame.header.tag, back.header.tag);
  assert_true(frame.header.job == back.header.job);
  assert_int_equal(frame.header.epoch, back.header.epoch);
  assert_int_equal(frame.header.src, back.header.src);
  assert_int_equal(frame.header.seq, back.header.seq);
  assert_int_equal(frame.header.credits, back.header.credits);
  if (frame.header.type == ZPS_FRAME_CREDIT) return;
  assert_int_equal(frame.u.done.tensor, back.u.done.tensor);
  assert_true(frame.u.done.step == back.u.done.step);
  if (is_round(frame.header.type)) {
    assert_true(frame.u.round.total_nnz == back.u.round.total_nnz);
    assert_int_equal(frame.u.round.timeout_ms, back.u.round.timeout_ms);
    assert_int_equal(frame.u.round.n_slices, back.u.round.n_slices);
    expect_same_slices(&frame.u.round, &back.u.round);
  } else if (frame.header.type == ZPS_FRAME_ABORT) {
    assert_int_equal(frame.u.abort.code, back.u.abort.code);
    assert_int_equal(frame.u.abort.n_ranks, back.u.abort.n_ranks);
    assert_memory_equal(frame.u.abort.ranks, back.u.abort.ranks, 4 * frame.u.abort.n_ranks);
    assert_string_equal(frame.u.abort.text, back.u.abort.text);
  }
}

static void test_golden_bytes(void **state) {
  (void)state;
  const char *top = getenv("ZPS_TOP_SRCDIR");
  for (int i = 0; i < N_GOLDEN; i++) {
    char path[1024];
    uint8_t want[ZPS_WIRE_FRAME_MAX];
    struct zps_error error;
    snprintf(path, sizeof path, "%s/proto/golden/%s.hex", top ? top : ".", golden[i].name);
    const size_t want_len = zps_test_hex_read(path, want, sizeof want);
    if (want_len == 0) fail_msg("cannot read %s", path);
    golden[i].make();
    const size_t len = encode();
    assert_int_equal(len, want_len);
    assert_memory_equal(buf, want, len);
    assert_int_equal(zps_wire_decode(want, want_len, &back, &error), ZPS_OK);
    expect_same();
  }
}

/* The last slice's payload is what is left of the frame: there, more or less of it is another frame. */
static bool ends_in_payload(size_t len, size_t *payload_p) {
  const struct zps_slice *last = is_round(frame.header.type) ? &frame.u.round.slices[frame.u.round.n_slices - 1] : NULL;
  *payload_p = last && last->is_inline ? len - last->len_bytes : len;
  return last && last->is_inline;
}

static void test_every_truncation_and_extension_is_refused(void **state) {
  (void)state;
  for (int i = 0; i < N_GOLDEN; i++) {
    size_t head;
    golden[i].make();
    const size_t len = encode();
    const bool in_payload = ends_in_payload(len, &head);
    for (size_t cut = 0; cut < head; cut++) assert_int_equal(decode(buf, cut, NULL), ZPS_ERR_PROTOCOL);
    assert_int_equal(decode(buf, len + 1, NULL), in_payload ? ZPS_OK : ZPS_ERR_PROTOCOL);
    for (size_t cut = head; cut < len; cut++) {
      assert_int_equal(decode(buf, cut, NULL), ZPS_OK);
      assert_int_equal(back.u.round.slices[back.u.round.n_slices - 1].len_bytes, cut - head);
    }
    assert_int_equal(decode(buf, len, NULL), ZPS_OK);
    assert_int_equal(back.len_bytes, len);
  }
}

/* ---- Sizes ---- */

static size_t number_bytes(uint64_t value) {
  size_t n = 1;
  while (value >>= 7) n++;
  return n;
}

static void test_sizes_follow_the_formulas(void **state) {
  (void)state;
  static uint8_t data[ZPS_WIRE_INLINE_MAX];
  const unsigned counts[] = {1, 2, 7, ZPS_WIRE_SLICES_MAX};
  for (size_t c = 0; c < 4; c++) {
    make_push();
    frame.u.round.n_slices = counts[c];
    frame.u.round.total_nnz = UINT64_MAX;
    for (unsigned i = 0; i < counts[c]; i++)
      frame.u.round.slices[i] = (struct zps_slice){.partition = UINT32_MAX,
                                                   .codec = 7,
                                                   .nnz = UINT32_MAX,
                                                   .len_bytes = UINT64_MAX,
                                                   .addr = UINT64_MAX,
                                                   .key = UINT64_MAX};
    size_t len = encode();
    assert_int_equal(len, 34 + 1 + 1 + 3 + 10 + 41 * counts[c]);
    assert_int_equal(zps_wire_decode(buf, len, &back, NULL), ZPS_OK);
    expect_same();
    /* The largest inline payload, first in a slice before others, then in the last. */
    const struct zps_slice inlined = {.is_inline = true, .len_bytes = sizeof data, .data = data};
    frame.u.round.slices[0] = inlined;
    len = encode();
    assert_int_equal(len, 34 + 1 + 1 + 3 + 10 + 41 * (counts[c] - 1) + 3 + (counts[c] > 1 ? 2 : 0) + sizeof data);
    assert_int_equal(zps_wire_decode(buf, len, &back, NULL), ZPS_OK);
    expect_same();
  }
  for (unsigned shift = 0; shift < 64; shift++) {
    const uint64_t step = 1ull << shift;
    new_short(ZPS_FRAME_DONE, 255, 255, (uint32_t)step)->u.done = (struct zps_frame_done){.tensor = 0, .step = step};
    const size_t len = encode();
    assert_int_equal(len, 3 + number_bytes((uint32_t)step) + 1 + number_bytes(step));
    assert_int_equal(zps_wire_decode(buf, len, &back, NULL), ZPS_OK);
    expect_same();
  }
  for (unsigned n_ranks = 0; n_ranks <= ZPS_WIRE_RANKS_MAX; n_ranks++) {
    for (unsigned text = 0; text <= ZPS_WIRE_TEXT_MAX; text += 1 + text / 5) {
      make_abort();
      frame.u.abort.n_ranks = n_ranks;
      memset(frame.u.abort.text, 'x', text);
      frame.u.abort.text[text] = '\0';
      const size_t len = encode();
      const size_t ranks_bytes = n_ranks ? 1 + number_bytes(4 * n_ranks) + 4 * n_ranks : 0;
      assert_int_equal(len, 34 + 19 + ranks_bytes + 1 + number_bytes(text) + text);
      assert_int_equal(zps_wire_decode(buf, len, &back, NULL), ZPS_OK);
      expect_same();
    }
  }
  make_credit();
  assert_int_equal(encode(), 34);
}

/* What a round of few rows costs beside its payload, both ways, over a link that has been used before. */
static void test_header_cost_of_a_small_round(void **state) {
  (void)state;
  static uint8_t data[2400];
  struct zps_frame_round *round = &new_short(ZPS_FRAME_PUSH, 200, 1, 3)->u.round;
  *round = (struct zps_frame_round){.tensor = 1, .step = 1000, .total_nnz = 105, .timeout_ms = 59000, .n_slices = 1};
  round->slices[0] =
      (struct zps_slice){.codec = 2, .n_more = 3, .is_inline = true, .nnz = 105, .len_bytes = 600, .data = data};
  assert_int_equal(encode(), 4 + 7 + 4 + 600);
  round = &new_short(ZPS_FRAME_RESULT, 200, 1, 0)->u.round;
  *round = (struct zps_frame_round){.tensor = 1, .step = 1000, .n_slices = 1};
  round->slices[0] =
      (struct zps_slice){.codec = 2, .n_more = 3, .is_inline = true, .nnz = 420, .len_bytes = 2400, .data = data};
  assert_int_equal(encode(), 4 + 3 + 5 + 2400);
}

/* ---- What the encoder refuses: our own bugs ---- */

static void expect_not_encoded(void) {
  size_t len = 77;
  assert_int_equal(zps_wire_encode(&frame, buf, ZPS_WIRE_FRAME_MAX, &len), ZPS_ERR_INVALID);
  assert_int_equal(len, 77);
}

static void test_encode_limits(void **state) {
  (void)state;
  size_t len;
  make_push(), frame.u.round.n_slices = 0, expect_not_encoded();
  make_push(), frame.u.round.n_slices = ZPS_WIRE_SLICES_MAX + 1, expect_not_encoded();
  make_push(), frame.u.round.slices[0].len_bytes = 0, expect_not_encoded();
  make_push(), frame.u.round.total_nnz = 249, expect_not_encoded();
  make_push(), frame.u.round.slices[0].n_more = 1, expect_not_encoded();
  make_push(), frame.u.round.slices[0].codec = ZPS_WIRE_CODECS, expect_not_encoded();
  make_done(), frame.header.credits = 256, expect_not_encoded();
  make_push_inline(), frame.u.round.slices[0].len_bytes = ZPS_WIRE_INLINE_MAX + 1, expect_not_encoded();
  make_push_inline(), frame.u.round.slices[1].len_bytes = ZPS_WIRE_INLINE_MAX - 7, expect_not_encoded();
  make_push_inline(), frame.u.round.slices[0].len_bytes = UINT64_MAX, expect_not_encoded();
  make_result(), frame.u.round.timeout_ms = 1, expect_not_encoded();
  make_result(), frame.u.round.total_nnz = 1, expect_not_encoded();
  make_abort(), frame.u.abort.n_ranks = ZPS_WIRE_RANKS_MAX + 1, expect_not_encoded();
  make_abort(), frame.u.abort.code = ZPS_OK, expect_not_encoded();
  make_abort(), memset(frame.u.abort.text, 'x', sizeof frame.u.abort.text), expect_not_encoded();
  make_credit(), frame.header.type = 0, expect_not_encoded();
  make_credit(), frame.header.type = 7, expect_not_encoded();
  make_peer(), frame.u.round.slices[0].n_more = 1, expect_not_encoded();
  make_peer(), frame.u.round.slices[0].values = ZPS_WIRE_VALUES, expect_not_encoded();
  make_peer(), frame.u.round.timeout_ms = 1, expect_not_encoded();
  make_result(), frame.u.round.slices[0].values = 1, expect_not_encoded();
  for (int i = 0; i < N_GOLDEN; i++) {
    golden[i].make();
    const size_t need = encode();
    for (size_t cap = 0; cap < need; cap++) assert_int_equal(zps_wire_encode(&frame, buf, cap, &len), ZPS_ERR_INVALID);
    assert_int_equal(zps_wire_encode(&frame, buf, need, &len), ZPS_OK);
  }
}

static void test_unprintable_text_is_replaced(void **state) {
  (void)state;
  make_abort();
  strcpy(frame.u.abort.text, "a\nb\x1b[2J \xff caf\xc3\xa9 cut \xc3");
  const size_t len = encode();
  assert_int_equal(zps_wire_decode(buf, len, &back, NULL), ZPS_OK);
  assert_string_equal(back.u.abort.text, "a?b?[2J ? caf\xc3\xa9 cut ?");
}

static void test_stamp(void **state) {
  (void)state;
  make_push();
  const size_t len = encode();
  zps_wire_stamp(buf, 0xdeadbeef, 0x1234);
  assert_int_equal(zps_wire_decode(buf, len, &back, NULL), ZPS_OK);
  frame.header.seq = 0xdeadbeef;
  frame.header.credits = 0x1234;
  expect_same();
  make_done();
  const size_t done_len = encode();
  zps_wire_stamp(buf, 0xdeadbeef, 0x12);
  assert_int_equal(zps_wire_decode(buf, done_len, &back, NULL), ZPS_OK);
  frame.header.seq = 0xef;
  frame.header.credits = 0x12;
  expect_same();
}

/* ---- What the decoder refuses: peers ---- */

/* One byte of a good frame changed. */
static void expect_patch_refused(void (*make)(void), size_t at, uint8_t value, zps_err_t code, const char *text) {
  make();
  const size_t len = encode();
  assert_true(at < len && buf[at] != value);
  buf[at] = value;
  expect_refused(buf, len, code, text);
}

static void test_bad_headers(void **state) {
  (void)state;
  expect_refused("", 0, ZPS_ERR_PROTOCOL, "frame of 0 bytes: shorter than a header");
  expect_patch_refused(make_credit, 0, 'X', ZPS_ERR_PROTOCOL, "want 0x3153505a: not a zenps peer");
  expect_patch_refused(make_credit, 4, 2, ZPS_ERR_VERSION, "has protocol version 2, this side speaks version 1");
  expect_patch_refused(make_credit, 5, 1, ZPS_ERR_VERSION, "has protocol version 257");
  expect_patch_refused(make_credit, 6, 0, ZPS_ERR_PROTOCOL, "unknown type 0, want 1 to 6");
  expect_patch_refused(make_credit, 6, 7, ZPS_ERR_PROTOCOL, "unknown type 7");
  expect_patch_refused(make_credit, 7, 1, ZPS_ERR_PROTOCOL, "CREDIT frame: unknown flags 0x01");
  expect_patch_refused(make_done, 0, 0xa3, ZPS_ERR_VERSION, "has protocol version 2, this side speaks version 1");
  expect_patch_refused(make_done, 0, 0x90, ZPS_ERR_PROTOCOL, "unknown type 0");
  expect_patch_refused(make_done, 0, 0x9f, ZPS_ERR_PROTOCOL, "unknown type 15");
  expect_patch_refused(make_done, 0, 0x13, ZPS_ERR_PROTOCOL, "frame of 6 bytes: shorter than a header");
  expect_refused("\x93\0", 2, ZPS_ERR_PROTOCOL, "shorter than a short header");
}

static void test_a_frame_of_another_type(void **state) {
  (void)state;
  expect_patch_refused(make_done, 0, 0x95, ZPS_ERR_PROTOCOL, "CREDIT frame of 6 bytes: 2 are left over");
  expect_patch_refused(make_done, 0, 0x91, ZPS_ERR_PROTOCOL, "no number where timeout_ms is due");
  expect_patch_refused(make_done, 0, 0x92, ZPS_ERR_PROTOCOL, "ends before its last slice");
  expect_patch_refused(make_done, 0, 0x94, ZPS_ERR_PROTOCOL, "not the fields of ABORT");
  expect_patch_refused(make_abort, 6, ZPS_FRAME_DONE, ZPS_ERR_PROTOCOL, "are left over");
  expect_patch_refused(make_push, 6, ZPS_FRAME_RESULT, ZPS_ERR_PROTOCOL, "must be 0");
}

/* Any bytes as the numbers of a DONE frame. */
static void expect_number_refused(const char *bytes, size_t len, const char *text) {
  make_done();
  encode();
  memcpy(buf + 4, bytes, len);
  expect_refused(buf, 4 + len, ZPS_ERR_PROTOCOL, text);
}

static void test_bad_numbers(void **state) {
  (void)state;
  expect_number_refused("\x80\x00\x01", 3, "offset 4: no number where tensor is due"); /* not the shortest */
  expect_number_refused("\xff\xff\xff\xff\x10\x01", 6, "tensor is 4563402751, at most 4294967295");
  expect_number_refused("\x01\x80\x80", 3, "offset 5: no number where step is due");
  expect_number_refused("\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", 11, "where step is due"); /* 65 bits */
  expect_number_refused("\x01\x81\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00", 12, "where step is due");
  expect_number_refused("\x01\x02\x03", 3, "DONE frame of 7 bytes: 1 are left over");
}

enum { ROUND = 34, SLICE = ROUND + 1 + 1 + 3 + 2, INLINE_SLICE = 5 + 1 + 6 + 2 + 1 };

static void test_bad_rounds(void **state) {
  (void)state;
  expect_patch_refused(make_push, SLICE, 0x68, ZPS_ERR_PROTOCOL, "starts with 0x68, whose top two bits must be 0");
  expect_patch_refused(make_push, SLICE, 0xa8, ZPS_ERR_PROTOCOL, "starts with 0xa8");
  expect_patch_refused(make_push, SLICE, 0x38, ZPS_ERR_PROTOCOL, "want inline");
  expect_patch_refused(make_push, SLICE, 0x08, ZPS_ERR_PROTOCOL, "ends before its last slice");
  expect_patch_refused(make_push_inline, INLINE_SLICE + 4 + 2, 0, ZPS_ERR_PROTOCOL, "want 1 or more");
  expect_patch_refused(make_peer, 4 + 2 + 3, 0, ZPS_ERR_PROTOCOL, "left out when 0");
  expect_patch_refused(make_peer, 4 + 2 + 3, 0x80, ZPS_ERR_PROTOCOL, "a slice's values is 1");
  make_push();
  frame.u.round.total_nnz = UINT64_MAX;
  frame.u.round.slices[0].nnz = 0;
  const size_t len = encode();
  buf[ROUND + 5 + 10 + 2] = 1; /* nnz beside 2^64 - 1 rows elsewhere */
  expect_refused(buf, len, ZPS_ERR_PROTOCOL, "want below 2^64");
  make_push();
  frame.u.round.n_slices = ZPS_WIRE_SLICES_MAX;
  for (uint32_t i = 1; i < ZPS_WIRE_SLICES_MAX; i++) frame.u.round.slices[i] = (struct zps_slice){.is_inline = true};
  const size_t most = encode();
  buf[most - 3] = 0; /* no longer the last */
  memset(buf + most, 0, 16);
  expect_refused(buf, most + 16, ZPS_ERR_PROTOCOL, "more than 48 slices");
}

static void test_bad_payloads(void **state) {
  (void)state;
  const size_t at = INLINE_SLICE + 3; /* len of the first slice */
  expect_patch_refused(make_push_inline, at, 7, ZPS_ERR_PROTOCOL, "leave 1 bytes over of a payload of 8");
  expect_patch_refused(make_push_inline, at, 9, ZPS_ERR_PROTOCOL, "slice 0: 9 inline bytes, but 8 are left of 8");
  make_push_inline();
  const size_t len = encode();
  memmove(buf + at + 2, buf + at + 1, len - at - 1);
  buf[at] = 0x81, buf[at + 1] = 0x20;
  expect_refused(buf, len + 1, ZPS_ERR_PROTOCOL, "an inline slice's len is 4097, at most 4096");
  make_push();
  frame.u.round.slices[0].len_bytes = 1;
  const size_t remote = encode();
  buf[SLICE + 4] = 0;
  expect_refused(buf, remote, ZPS_ERR_PROTOCOL, "empty and remote");
  make_result();
  const size_t result = encode();
  expect_refused(buf, result + ZPS_WIRE_INLINE_MAX - 7, ZPS_ERR_PROTOCOL, "payload of 4097 bytes, at most 4096");
  expect_refused(buf, sizeof buf, ZPS_ERR_PROTOCOL, "frame of 8193 bytes, at most 8192");
}

static void test_bad_aborts(void **state) {
  (void)state;
  enum { BODY = 34, CODE = BODY + 15, TEXT = BODY + 19 + 10 + 2 };
  expect_patch_refused(make_abort, CODE, 0x9c, ZPS_ERR_PROTOCOL, "code -100 is no error");
  expect_patch_refused(make_abort, TEXT + 4, '\n', ZPS_ERR_PROTOCOL, "byte 4 of the text is not printable");
  expect_patch_refused(make_abort, TEXT + 4, 0, ZPS_ERR_PROTOCOL, "byte 4 of the text is not printable");
  expect_patch_refused(make_abort, TEXT + 4, 0xc0, ZPS_ERR_PROTOCOL, "byte 4 of the text is not printable");
  expect_patch_refused(make_abort, BODY + 20, 7, ZPS_ERR_PROTOCOL, "not the fields of ABORT");
  expect_patch_refused(make_abort, BODY + 19, 0x32, ZPS_ERR_PROTOCOL, "unknown, repeated or overlong fields");
}

/* Bodies that protobuf would accept, but that are not what the formulas say. */
static void test_other_encodings_of_the_same_values(void **state) {
  (void)state;
  make_abort();
  frame.u.abort.n_ranks = 0;
  frame.u.abort.text[0] = '\0';
  const size_t len = encode();
  assert_int_equal(buf[len - 1], 0); /* the text's length */
  buf[len - 1] = 0x80;               /* the same length in two bytes */
  buf[len] = 0;
  expect_refused(buf, len + 1, ZPS_ERR_PROTOCOL, "overlong");
}

static void test_type_names(void **state) {
  (void)state;
  assert_string_equal(zps_frame_type_name(ZPS_FRAME_PUSH), "PUSH");
  assert_string_equal(zps_frame_type_name(ZPS_FRAME_CREDIT), "CREDIT");
  assert_string_equal(zps_frame_type_name(0), "?");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_golden_bytes),
      cmocka_unit_test(test_every_truncation_and_extension_is_refused),
      cmocka_unit_test(test_sizes_follow_the_formulas),
      cmocka_unit_test(test_header_cost_of_a_small_round),
      cmocka_unit_test(test_encode_limits),
      cmocka_unit_test(test_unprintable_text_is_replaced),
      cmocka_unit_test(test_stamp),
      cmocka_unit_test(test_bad_headers),
      cmocka_unit_test(test_a_frame_of_another_type),
      cmocka_unit_test(test_bad_numbers),
      cmocka_unit_test(test_bad_rounds),
      cmocka_unit_test(test_bad_payloads),
      cmocka_unit_test(test_bad_aborts),
      cmocka_unit_test(test_other_encodings_of_the_same_values),
      cmocka_unit_test(test_type_names),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
