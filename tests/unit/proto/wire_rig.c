#include "tests/unit/proto/wire_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct wire wire;

#define JOB 0x1122334455667788ull

static const float one = 1.5f, minus_two = -2.0f;

static struct zps_frame *new_frame(struct zps_frame_header header) {
  memset(&wire.frame, 0, sizeof wire.frame);
  memset(&wire.back, 0xa5, sizeof wire.back); /* decode must set every field that it promises to set */
  wire.frame.header = header;
  return &wire.frame;
}

static struct zps_frame *new_long(uint8_t type, uint32_t src, uint32_t seq, uint16_t credits, uint32_t tag) {
  return new_frame((struct zps_frame_header){
      .type = type, .job = JOB, .epoch = 3, .src = src, .seq = seq, .credits = credits, .tag = tag});
}

struct zps_frame *wire_new_short(uint8_t type, uint8_t seq, uint8_t credits, uint32_t tag) {
  return new_frame(
      (struct zps_frame_header){.type = type, .is_short = true, .seq = seq, .credits = credits, .tag = tag});
}

size_t wire_encode(void) {
  size_t len = 0;
  memset(wire.buf, 0, sizeof wire.buf);
  assert_int_equal(zps_wire_encode(&wire.frame, wire.buf, ZPS_WIRE_FRAME_MAX, &len), ZPS_OK);
  return len;
}

zps_err_t wire_decode(const void *bytes, size_t len, struct zps_error *error) {
  void *copy = malloc(len ? len : 1);
  memcpy(copy, bytes, len);
  const zps_err_t code = zps_wire_decode(copy, len, &wire.back, error);
  free(copy);
  return code;
}

void wire_make_push(void) {
  struct zps_frame_round *round = &new_long(ZPS_FRAME_PUSH, 2, 7, 5, 1)->u.round;
  *round = (struct zps_frame_round){.tensor = 1, .step = 9, .total_nnz = 1000, .timeout_ms = 30000, .n_slices = 1};
  round->slices[0] = (struct zps_slice){.partition = 4,
                                        .nnz = 250,
                                        .len_bytes = 2000,
                                        .addr = 0x7f0012345678,
                                        .key = 0xabcdef,
                                        .sum = 0xfedcba9876543210};
}

void wire_make_push_any(void) {
  static uint8_t rows[16];
  memcpy(rows, &one, 4);
  memcpy(rows + 4, &one, 4);
  rows[8] = 17;
  rows[12] = 3;
  struct zps_frame_round *round = &wire_new_short(ZPS_FRAME_PUSH, 0, 0, 300)->u.round;
  *round = (struct zps_frame_round){.tensor = 6, .step = 9, .total_nnz = 2, .timeout_ms = 1500, .n_slices = 1};
  round->slices[0] = (struct zps_slice){
      .partition = 3, .codec = 4, .is_inline = true, .nnz = 2, .len_bytes = sizeof rows, .data = rows};
}

void wire_make_push_inline(void) {
  static uint8_t row[8];
  memcpy(row, &one, 4);
  row[4] = 3;
  struct zps_frame_round *round = &wire_new_short(ZPS_FRAME_PUSH, 0, 0, 300)->u.round;
  *round =
      (struct zps_frame_round){.tensor = 6, .step = 1ull << 40, .total_nnz = 65, .timeout_ms = 1500, .n_slices = 3};
  round->slices[0] = (struct zps_slice){.is_inline = true, .nnz = 1, .len_bytes = sizeof row, .data = row};
  round->slices[1] = (struct zps_slice){.partition = 5, .n_more = 1, .codec = 2, .is_inline = true};
  round->slices[2] = (struct zps_slice){.partition = 2, .nnz = 64, .len_bytes = 512, .addr = 0x1000, .key = UINT64_MAX};
}

/* Of halves: one partition of this rank's own sums, which are none. */
void wire_make_push_wide(void) {
  static uint8_t row[8];
  memcpy(row, &one, 4);
  row[4] = 3;
  struct zps_frame_round *round = &wire_new_short(ZPS_FRAME_PUSH, 3, 0, 5)->u.round;
  *round = (struct zps_frame_round){.tensor = 1, .step = 9, .total_nnz = 26, .timeout_ms = 1500, .n_slices = 2};
  round->slices[0] =
      (struct zps_slice){.partition = 4, .is_wide = true, .is_inline = true, .nnz = 1, .len_bytes = 8, .data = row};
  round->slices[1] = (struct zps_slice){.partition = 5, .nnz = 25, .len_bytes = 152, .addr = 0x1000, .key = 2};
}

/* A rank with three network cards. */
void wire_make_push_rails(void) {
  struct zps_frame_round *round = &wire_new_short(ZPS_FRAME_PUSH, 3, 0, 5)->u.round;
  *round = (struct zps_frame_round){.tensor = 1, .step = 9, .total_nnz = 25, .timeout_ms = 1500, .n_slices = 1};
  round->slices[0] = (struct zps_slice){
      .partition = 5, .nnz = 25, .len_bytes = 152, .addr = 0x1000, .key = 2, .more = {.key = {3, 300}, .n = 2}};
}

/* A rank that contributes nothing. */
void wire_make_push_absent(void) {
  struct zps_frame_round *round = &wire_new_short(ZPS_FRAME_PUSH, 3, 0, 5)->u.round;
  *round = (struct zps_frame_round){.tensor = 1, .is_absent = true, .step = 9, .timeout_ms = 1500, .n_slices = 1};
  round->slices[0] = (struct zps_slice){.partition = 4, .n_more = 2, .is_inline = true};
}

/* The sum of a step to which 130 ranks contributed nothing. */
void wire_make_result_absent(void) {
  struct zps_frame_round *round = &wire_new_short(ZPS_FRAME_RESULT, 1, 1, 1)->u.round;
  *round = (struct zps_frame_round){.tensor = 1, .n_absent = 130, .step = 9, .n_slices = 2};
  round->slices[0] = (struct zps_slice){.partition = 4, .is_inline = true};
  round->slices[1] =
      (struct zps_slice){.partition = 5, .codec = 1, .nnz = 600, .len_bytes = 2528, .addr = 0x1000, .key = 1};
}

void wire_make_result(void) {
  static uint8_t row[8];
  memcpy(row, &minus_two, 4);
  row[4] = 1 << 5;
  struct zps_frame_round *round = &wire_new_short(ZPS_FRAME_RESULT, 1, 1, 1)->u.round;
  *round = (struct zps_frame_round){.tensor = 1, .step = 9, .n_slices = 2};
  round->slices[0] =
      (struct zps_slice){.partition = 4, .codec = 1, .nnz = 600, .len_bytes = 2528, .addr = 0x7f0000000000, .key = 1};
  round->slices[1] = (struct zps_slice){
      .partition = 8, .n_more = 3, .codec = 1, .is_inline = true, .nnz = 1, .len_bytes = sizeof row, .data = row};
}

void wire_make_peer(void) {
  static uint8_t row[8];
  memcpy(row, &one, 4);
  row[4] = 3;
  struct zps_frame_round *round = &wire_new_short(ZPS_FRAME_PEER, 2, 0, 5)->u.round;
  *round = (struct zps_frame_round){.tensor = 1, .step = 9, .n_slices = 2};
  round->slices[0] = (struct zps_slice){
      .partition = 300, .codec = 3, .values = 4, .nnz = 1000, .len_bytes = 1016, .addr = 0x7f0000000000, .key = 1};
  round->slices[1] =
      (struct zps_slice){.partition = 8, .is_inline = true, .nnz = 1, .len_bytes = sizeof row, .data = row};
}

void wire_make_done(void) {
  wire_new_short(ZPS_FRAME_DONE, 8, 0, 2)->u.done = (struct zps_frame_done){.tensor = 1, .step = 9};
}

void wire_make_abort(void) {
  struct zps_frame_abort *failed = &new_long(ZPS_FRAME_ABORT, ZPS_WIRE_SRC_SERVER, UINT32_MAX, 32, 70000)->u.abort;
  *failed =
      (struct zps_frame_abort){.tensor = 1, .step = 9, .code = ZPS_ERR_PEER_LOST, .n_ranks = 2, .ranks = {1, 300}};
  strcpy(failed->text, "rank 300 was lost: no heartbeat for 5000 ms \xe2\x80\x94 host a\xc3\xa9");
}

void wire_make_credit(void) {
  new_long(ZPS_FRAME_CREDIT, 2, 9, 16, 0);
}

void wire_make_give(void) {
  static uint8_t row[8];
  memcpy(row, &one, 4);
  row[4] = 3;
  struct zps_frame_round *round = &wire_new_short(ZPS_FRAME_GIVE, 3, 0, 2)->u.round;
  *round = (struct zps_frame_round){.tensor = 1, .step = 9, .total_nnz = 4, .timeout_ms = 30000, .n_slices = 1};
  round->slices[0] =
      (struct zps_slice){.partition = 4, .is_inline = true, .nnz = 1, .len_bytes = sizeof row, .data = row};
}

/* Rows 2 and 5 to 104 of partition 4, all 300 of partition 5, and more of them in a later frame. */
void wire_make_pull(void) {
  static const uint8_t few[] = {4, 5, 98}, all[] = {1, 0xaa, 2};
  struct zps_frame_round *round = &wire_new_short(ZPS_FRAME_PULL, 4, 0, 2)->u.round;
  *round = (struct zps_frame_round){.tensor = 1, .step = 9, .total_nnz = 500, .timeout_ms = 30000, .n_slices = 2};
  round->slices[0] = (struct zps_slice){
      .partition = 4, .codec = ZPS_WIRE_CODEC_RUNS, .is_inline = true, .nnz = 101, .len_bytes = 3, .data = few};
  round->slices[1] = (struct zps_slice){
      .partition = 5, .codec = ZPS_WIRE_CODEC_RUNS, .is_inline = true, .nnz = 300, .len_bytes = 3, .data = all};
}

void wire_make_taken(void) {
  wire_new_short(ZPS_FRAME_TAKEN, 8, 0, 2)->u.done = (struct zps_frame_done){.tensor = 1, .step = 9};
}

/* All 300 rows of partition 5, of the newest sum of steps 6 to 9. */
void wire_make_seek(void) {
  static const uint8_t all[] = {1, 0xaa, 2};
  struct zps_frame_round *round = &wire_new_short(ZPS_FRAME_SEEK, 5, 0, 2)->u.round;
  *round = (struct zps_frame_round){
      .tensor = 1, .step = 9, .total_nnz = 300, .timeout_ms = 30000, .seek = 200, .age_max = 3, .n_slices = 1};
  round->slices[0] = (struct zps_slice){
      .partition = 5, .codec = ZPS_WIRE_CODEC_RUNS, .is_inline = true, .nnz = 300, .len_bytes = 3, .data = all};
}

void wire_make_found(void) {
  static uint8_t row[8];
  memcpy(row, &minus_two, 4);
  row[4] = 1 << 5;
  struct zps_frame_round *round = &wire_new_short(ZPS_FRAME_FOUND, 2, 0, 1)->u.round;
  *round = (struct zps_frame_round){.tensor = 1, .step = 9, .seek = 200, .age = 2, .n_slices = 1};
  round->slices[0] =
      (struct zps_slice){.partition = 5, .codec = 1, .is_inline = true, .nnz = 1, .len_bytes = sizeof row, .data = row};
}

void wire_make_missed(void) {
  struct zps_frame_abort *missed = &wire_new_short(ZPS_FRAME_MISSED, 3, 1, 1)->u.abort;
  *missed = (struct zps_frame_abort){.tensor = 1, .step = 9, .seek = 200, .code = ZPS_ERR_STALE};
  strcpy(missed->text, "its sum is kept no longer");
}

void wire_make_resume(void) {
  new_long(ZPS_FRAME_RESUME, 2, 4, 0, 7)->u.resume =
      (struct zps_frame_resume){.expects = 300, .answers = 5, .asks = true, .early = 1u << 1 | 1u << 7};
}

void wire_make_closed(void) {
  struct zps_frame_closed *closed = &wire_new_short(ZPS_FRAME_CLOSED, 8, 0, 2)->u.closed;
  *closed = (struct zps_frame_closed){.tensor = 1, .step = 9};
  zps_frame_closed_add(closed, 1);
  zps_frame_closed_add(closed, 10);
}

const struct wire_golden wire_golden[WIRE_N_GOLDEN] = {
    {"push", wire_make_push},
    {"push_inline", wire_make_push_inline},
    {"result", wire_make_result},
    {"done", wire_make_done},
    {"abort", wire_make_abort},
    {"credit", wire_make_credit},
    {"peer", wire_make_peer},
    {"push_wide", wire_make_push_wide},
    {"push_absent", wire_make_push_absent},
    {"result_absent", wire_make_result_absent},
    {"give", wire_make_give},
    {"pull", wire_make_pull},
    {"taken", wire_make_taken},
    {"push_any", wire_make_push_any},
    {"push_rails", wire_make_push_rails},
    {"seek", wire_make_seek},
    {"found", wire_make_found},
    {"missed", wire_make_missed},
    {"resume", wire_make_resume},
    {"closed", wire_make_closed},
};

bool wire_is_round(uint8_t type) {
  return type <= ZPS_FRAME_RESULT || (type >= ZPS_FRAME_PEER && type <= ZPS_FRAME_PULL) || type == ZPS_FRAME_SEEK ||
         type == ZPS_FRAME_FOUND;
}

static void expect_same_slices(const struct zps_frame_round *a, const struct zps_frame_round *b) {
  for (uint32_t i = 0; i < a->n_slices; i++) {
    const struct zps_slice *x = &a->slices[i], *y = &b->slices[i];
    assert_int_equal(x->partition, y->partition);
    assert_int_equal(x->n_more, y->n_more);
    assert_int_equal(x->values, y->values);
    assert_int_equal(x->codec, y->codec);
    assert_int_equal(x->is_inline, y->is_inline);
    assert_int_equal(x->is_wide, y->is_wide);
    assert_int_equal(x->nnz, y->nnz);
    assert_int_equal(x->len_bytes, y->len_bytes);
    assert_int_equal(x->addr, y->addr);
    assert_int_equal(x->key, y->key);
    assert_int_equal(x->more.n, y->more.n);
    for (unsigned k = 0; k < x->more.n; k++) assert_int_equal(x->more.key[k], y->more.key[k]);
    assert_int_equal(x->sum, y->sum);
    if (x->is_inline && x->len_bytes) assert_memory_equal(x->data, y->data, x->len_bytes);
  }
}

void wire_expect_same(void) {
  assert_int_equal(wire.frame.header.type, wire.back.header.type);
  assert_int_equal(wire.frame.header.is_short, wire.back.header.is_short);
  assert_int_equal(wire.frame.header.tag, wire.back.header.tag);
  assert_true(wire.frame.header.job == wire.back.header.job);
  assert_int_equal(wire.frame.header.epoch, wire.back.header.epoch);
  assert_int_equal(wire.frame.header.src, wire.back.header.src);
  assert_int_equal(wire.frame.header.seq, wire.back.header.seq);
  assert_int_equal(wire.frame.header.credits, wire.back.header.credits);
  if (wire.frame.header.type == ZPS_FRAME_CREDIT) return;
  if (wire.frame.header.type == ZPS_FRAME_RESUME) {
    assert_int_equal(wire.frame.u.resume.expects, wire.back.u.resume.expects);
    assert_int_equal(wire.frame.u.resume.answers, wire.back.u.resume.answers);
    assert_int_equal(wire.frame.u.resume.asks, wire.back.u.resume.asks);
    assert_int_equal(wire.frame.u.resume.early, wire.back.u.resume.early);
    return;
  }
  assert_int_equal(wire.frame.u.done.tensor, wire.back.u.done.tensor);
  assert_true(wire.frame.u.done.step == wire.back.u.done.step);
  if (wire_is_round(wire.frame.header.type)) {
    assert_true(wire.frame.u.round.total_nnz == wire.back.u.round.total_nnz);
    assert_int_equal(wire.frame.u.round.timeout_ms, wire.back.u.round.timeout_ms);
    assert_int_equal(wire.frame.u.round.is_absent, wire.back.u.round.is_absent);
    assert_int_equal(wire.frame.u.round.n_absent, wire.back.u.round.n_absent);
    assert_int_equal(wire.frame.u.round.seek, wire.back.u.round.seek);
    assert_int_equal(wire.frame.u.round.age, wire.back.u.round.age);
    assert_int_equal(wire.frame.u.round.age_max, wire.back.u.round.age_max);
    assert_int_equal(wire.frame.u.round.n_slices, wire.back.u.round.n_slices);
    expect_same_slices(&wire.frame.u.round, &wire.back.u.round);
  } else if (wire.frame.header.type == ZPS_FRAME_ABORT || wire.frame.header.type == ZPS_FRAME_MISSED) {
    assert_int_equal(wire.frame.u.abort.seek, wire.back.u.abort.seek);
    assert_int_equal(wire.frame.u.abort.code, wire.back.u.abort.code);
    assert_int_equal(wire.frame.u.abort.n_ranks, wire.back.u.abort.n_ranks);
    assert_memory_equal(wire.frame.u.abort.ranks, wire.back.u.abort.ranks, 4 * wire.frame.u.abort.n_ranks);
    assert_string_equal(wire.frame.u.abort.text, wire.back.u.abort.text);
  } else if (wire.frame.header.type == ZPS_FRAME_CLOSED) {
    assert_int_equal(wire.frame.u.closed.n_bytes, wire.back.u.closed.n_bytes);
    assert_memory_equal(wire.frame.u.closed.late, wire.back.u.closed.late, wire.frame.u.closed.n_bytes);
  }
}
