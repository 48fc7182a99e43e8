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
static uint8_t buf[ZPS_WIRE_FRAME_MAX];
static const float one = 1.5f, minus_two = -2.0f;

static struct zps_frame *new_frame(uint8_t type, uint32_t src, uint32_t seq, uint16_t credits) {
  memset(&frame, 0, sizeof frame);
  memset(&back, 0xa5, sizeof back); /* decode must set what it says it sets */
  frame.header =
      (struct zps_frame_header){.type = type, .job = JOB, .epoch = 3, .src = src, .seq = seq, .credits = credits};
  return &frame;
}

static size_t encode(void) {
  size_t len = 0;
  memset(buf, 0, sizeof buf);
  assert_int_equal(zps_wire_encode(&frame, buf, sizeof buf, &len), ZPS_OK);
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
  struct zps_frame_round *round = &new_frame(ZPS_FRAME_PUSH, 2, 7, 5)->u.round;
  *round = (struct zps_frame_round){.tensor = 1, .step = 9, .total_nnz = 1000, .timeout_ms = 30000, .n_slices = 1};
  round->slices[0] =
      (struct zps_slice){.partition = 4, .nnz = 250, .len_bytes = 2000, .addr = 0x7f0012345678, .key = 0xabcdef};
}

static void make_push_inline(void) {
  static uint8_t row[8];
  memcpy(row, &one, 4);
  row[4] = 3;
  struct zps_frame_round *round = &new_frame(ZPS_FRAME_PUSH, 0, 0, 0)->u.round;
  *round =
      (struct zps_frame_round){.tensor = 6, .step = 1ull << 40, .total_nnz = 65, .timeout_ms = 1500, .n_slices = 3};
  round->slices[0] = (struct zps_slice){.is_inline = true, .nnz = 1, .len_bytes = sizeof row, .data = row};
  round->slices[1] = (struct zps_slice){.partition = 5, .is_inline = true};
  round->slices[2] = (struct zps_slice){.partition = 2, .nnz = 64, .len_bytes = 512, .addr = 0x1000, .key = UINT64_MAX};
}

static void make_result(void) {
  static uint8_t row[8];
  memcpy(row, &minus_two, 4);
  row[4] = 1 << 5;
  struct zps_frame_round *round = &new_frame(ZPS_FRAME_RESULT, ZPS_WIRE_SRC_SERVER | 1, 1, 1)->u.round;
  *round = (struct zps_frame_round){.tensor = 1, .step = 9, .n_slices = 2};
  round->slices[0] =
      (struct zps_slice){.partition = 4, .codec = 1, .nnz = 600, .len_bytes = 2528, .addr = 0x7f0000000000, .key = 1};
  round->slices[1] =
      (struct zps_slice){.partition = 8, .codec = 1, .is_inline = true, .nnz = 1, .len_bytes = sizeof row, .data = row};
}

static void make_done(void) {
  new_frame(ZPS_FRAME_DONE, 2, 8, 0)->u.done = (struct zps_frame_done){.tensor = 1, .step = 9};
}

static void make_abort(void) {
  struct zps_frame_abort *failed = &new_frame(ZPS_FRAME_ABORT, ZPS_WIRE_SRC_SERVER, UINT32_MAX, 32)->u.abort;
  *failed =
      (struct zps_frame_abort){.tensor = 1, .step = 9, .code = ZPS_ERR_PEER_LOST, .n_ranks = 2, .ranks = {1, 300}};
  strcpy(failed->text, "rank 300 was lost: no heartbeat for 5000 ms \xe2\x80\x94 host a\xc3\xa9");
}

static void make_credit(void) {
  new_frame(ZPS_FRAME_CREDIT, 2, 9, 16);
}

static const struct {
  const char *name;
  void (*make)(void);
} golden[] = {
    {"push", make_push},   {"push_inline", make_push_inline}, {"result", make_result}, {"done", make_done},
    {"abort", make_abort}, {"credit", make_credit},
};

enum { N_GOLDEN = sizeof golden / sizeof golden[0] };

static void expect_same_slices(const struct zps_frame_round *a, const struct zps_frame_round *b) {
  for (uint32_t i = 0; i < a->n_slices; i++) {
    const struct zps_slice *x = &a->slices[i], *y = &b->slices[i];
    assert_int_equal(x->partition, y->partition);
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
  assert_true(frame.header.job == back.header.job);
  assert_int_equal(frame.header.epoch, back.header.epoch);
  assert_int_equal(frame.header.src, back.header.src);
  assert_int_equal(frame.header.seq, back.header.seq);
  assert_int_equal(frame.header.credits, back.header.credits);
  if (frame.header.type == ZPS_FRAME_CREDIT) return;
  assert_int_equal(frame.u.done.tensor, back.u.done.tensor);
  assert_true(frame.u.done.step == back.u.done.step);
  if (frame.header.type <= ZPS_FRAME_RESULT) {
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

static void test_every_truncation_and_extension_is_refused(void **state) {
  (void)state;
  for (int i = 0; i < N_GOLDEN; i++) {
    golden[i].make();
    const size_t len = encode();
    for (size_t cut = 0; cut < len; cut++) assert_int_equal(decode(buf, cut, NULL), ZPS_ERR_PROTOCOL);
    assert_int_equal(decode(buf, len + 1, NULL), ZPS_ERR_PROTOCOL);
    assert_int_equal(decode(buf, len, NULL), ZPS_OK);
  }
}

/* ---- Sizes ---- */

static void test_sizes_follow_the_formulas(void **state) {
  (void)state;
  static uint8_t data[ZPS_WIRE_INLINE_MAX];
  const unsigned counts[] = {1, 2, 7, ZPS_WIRE_SLICES_MAX};
  for (size_t c = 0; c < 4; c++) {
    make_push();
    frame.u.round.n_slices = counts[c];
    frame.u.round.total_nnz = UINT64_MAX;
    for (unsigned i = 0; i < counts[c]; i++)
      frame.u.round.slices[i] = (struct zps_slice){
          .partition = UINT32_MAX, .codec = 255, .nnz = UINT32_MAX, .len_bytes = UINT64_MAX, .addr = i, .key = i};
    assert_int_equal(encode(), zps_wire_round_bytes(counts[c], 0));
    assert_int_equal(zps_wire_round_bytes(counts[c], 0), 36 + 28 + 46 * counts[c]);
    frame.u.round.slices[0] = (struct zps_slice){.is_inline = true, .len_bytes = sizeof data, .data = data};
    const size_t len = encode();
    assert_int_equal(len, zps_wire_round_bytes(counts[c], sizeof data));
    assert_int_equal(zps_wire_decode(buf, len, &back, NULL), ZPS_OK);
    expect_same();
  }
  for (unsigned n_ranks = 0; n_ranks <= ZPS_WIRE_RANKS_MAX; n_ranks++) {
    for (unsigned len = 0; len <= ZPS_WIRE_TEXT_MAX; len += 1 + len / 5) {
      make_abort();
      frame.u.abort.n_ranks = n_ranks;
      memset(frame.u.abort.text, 'x', len);
      frame.u.abort.text[len] = '\0';
      const size_t got = encode();
      assert_int_equal(got, zps_wire_abort_bytes(n_ranks, len));
      assert_int_equal(zps_wire_decode(buf, got, &back, NULL), ZPS_OK);
      expect_same();
    }
  }
  make_done();
  assert_int_equal(encode(), 50);
  make_credit();
  assert_int_equal(encode(), 36);
}

static void test_header_cost_of_a_round(void **state) {
  (void)state;
  /* 1M non-zeros of f32 as COO over 16 partitions, each partition in a frame of its own, both ways, and a DONE each. */
  const double frames = 16 * (2.0 * (double)zps_wire_round_bytes(1, 0) + 50), payload = 2 * 8e6;
  assert_true(frames / payload < 0.001);
}

/* ---- What the encoder refuses: our own bugs ---- */

static void expect_not_encoded(void) {
  size_t len = 77;
  assert_int_equal(zps_wire_encode(&frame, buf, sizeof buf, &len), ZPS_ERR_INVALID);
  assert_int_equal(len, 77);
}

static void test_encode_limits(void **state) {
  (void)state;
  size_t len;
  make_push(), frame.u.round.n_slices = 0, expect_not_encoded();
  make_push(), frame.u.round.n_slices = ZPS_WIRE_SLICES_MAX + 1, expect_not_encoded();
  make_push(), frame.u.round.slices[0].len_bytes = 0, expect_not_encoded();
  make_push(), frame.u.round.total_nnz = 249, expect_not_encoded();
  make_push_inline(), frame.u.round.slices[0].len_bytes = ZPS_WIRE_INLINE_MAX + 1, expect_not_encoded();
  make_push_inline(), frame.u.round.slices[0].len_bytes = UINT64_MAX, expect_not_encoded();
  make_result(), frame.u.round.timeout_ms = 1, expect_not_encoded();
  make_result(), frame.u.round.total_nnz = 1, expect_not_encoded();
  make_abort(), frame.u.abort.n_ranks = ZPS_WIRE_RANKS_MAX + 1, expect_not_encoded();
  make_abort(), frame.u.abort.code = ZPS_OK, expect_not_encoded();
  make_abort(), memset(frame.u.abort.text, 'x', sizeof frame.u.abort.text), expect_not_encoded();
  make_credit(), frame.header.type = 0, expect_not_encoded();
  make_credit(), frame.header.type = 6, expect_not_encoded();
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
  expect_patch_refused(make_done, 0, 'X', ZPS_ERR_PROTOCOL, "want 0x3153505a: not a zenps peer");
  expect_patch_refused(make_done, 4, 2, ZPS_ERR_VERSION, "has protocol version 2, this side speaks version 1");
  expect_patch_refused(make_done, 5, 1, ZPS_ERR_VERSION, "has protocol version 257");
  expect_patch_refused(make_done, 6, 0, ZPS_ERR_PROTOCOL, "unknown type 0, want 1 to 5");
  expect_patch_refused(make_done, 6, 6, ZPS_ERR_PROTOCOL, "unknown type 6");
  expect_patch_refused(make_done, 7, 1, ZPS_ERR_PROTOCOL, "DONE frame: unknown flags 0x01");
  expect_patch_refused(make_done, 30, 13, ZPS_ERR_PROTOCOL, "DONE frame of 50 bytes: its header says 36 + 13 + 0");
  expect_patch_refused(make_done, 32, 1, ZPS_ERR_PROTOCOL, "payload of 1 bytes, at most 0");
  expect_patch_refused(make_push_inline, 33, 0x10, ZPS_ERR_PROTOCOL, "payload of 4104 bytes, at most 4096");
  expect_patch_refused(make_push_inline, 35, 0xff, ZPS_ERR_PROTOCOL, "payload of");
}

static void test_a_frame_of_another_type(void **state) {
  (void)state;
  expect_patch_refused(make_done, 6, ZPS_FRAME_CREDIT, ZPS_ERR_PROTOCOL, "CREDIT frame, body of 14 bytes");
  expect_patch_refused(make_done, 6, ZPS_FRAME_PUSH, ZPS_ERR_PROTOCOL, "PUSH frame, body of 14 bytes");
  expect_patch_refused(make_done, 6, ZPS_FRAME_ABORT, ZPS_ERR_PROTOCOL, "not the fields of ABORT");
  expect_patch_refused(make_abort, 6, ZPS_FRAME_DONE, ZPS_ERR_PROTOCOL, "DONE frame, body of");
  expect_patch_refused(make_push, 6, ZPS_FRAME_RESULT, ZPS_ERR_PROTOCOL, "belong to PUSH");
}

enum { ROUND = 36, SLICE = ROUND + 28 + 2 }; /* where a body and its first slice's fields start */

static void test_bad_rounds(void **state) {
  (void)state;
  expect_patch_refused(make_push, ROUND, 0x15, ZPS_ERR_PROTOCOL, "not a round's fields"); /* step twice, no tensor */
  expect_patch_refused(make_push, ROUND + 28, 0x32, ZPS_ERR_PROTOCOL, "not a round's fields"); /* unknown field 6 */
  expect_patch_refused(make_push, ROUND + 29, 43, ZPS_ERR_PROTOCOL, "not a round's fields");
  expect_patch_refused(make_push, SLICE, 0x45, ZPS_ERR_PROTOCOL, "not a round's fields"); /* no partition */
  expect_patch_refused(make_push, SLICE + 6 + 1, 1, ZPS_ERR_PROTOCOL, "slice 0: codec 256, want below 256");
  expect_patch_refused(make_push, SLICE + 11, 1, ZPS_ERR_PROTOCOL, "slice 0: 2000 inline bytes, but 0 are left of 0");
}

static void test_bad_payloads(void **state) {
  (void)state;
  expect_patch_refused(make_push_inline, SLICE + 18, 7, ZPS_ERR_PROTOCOL, "take 7 bytes of a payload of 8");
  expect_patch_refused(make_push_inline, SLICE + 18, 9, ZPS_ERR_PROTOCOL, "9 inline bytes, but 8 are left of 8");
  expect_patch_refused(make_push_inline, SLICE + 27, 1, ZPS_ERR_PROTOCOL, "inline with an address or key");
  expect_patch_refused(make_push_inline, SLICE + 36, 1, ZPS_ERR_PROTOCOL, "inline with an address or key");
  expect_patch_refused(make_push_inline, SLICE + 46 + 11, 0, ZPS_ERR_PROTOCOL, "slice 1: empty and remote");
  expect_patch_refused(make_push_inline, ROUND + 15, 64, ZPS_ERR_PROTOCOL, "65 rows, more than total_nnz 64");
}

static void test_bad_aborts(void **state) {
  (void)state;
  enum { BODY = 36, CODE = BODY + 15, TEXT = BODY + 19 + 10 + 2 };
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
  buf[30]++;
  expect_refused(buf, len + 1, ZPS_ERR_PROTOCOL, "overlong");

  make_done();
  const size_t done_len = encode();
  memcpy(buf + done_len, buf + 36, 5); /* tensor once more */
  buf[30] += 5;
  expect_refused(buf, done_len + 5, ZPS_ERR_PROTOCOL, "want 14 bytes");
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
      cmocka_unit_test(test_header_cost_of_a_round),
      cmocka_unit_test(test_encode_limits),
      cmocka_unit_test(test_unprintable_text_is_replaced),
      cmocka_unit_test(test_stamp),
      cmocka_unit_test(test_bad_headers),
      cmocka_unit_test(test_a_frame_of_another_type),
      cmocka_unit_test(test_bad_rounds),
      cmocka_unit_test(test_bad_payloads),
      cmocka_unit_test(test_bad_aborts),
      cmocka_unit_test(test_other_encodings_of_the_same_values),
      cmocka_unit_test(test_type_names),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
