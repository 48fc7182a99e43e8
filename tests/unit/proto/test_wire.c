/* Frames against the golden bytes and their size formulas; frames that the encoder refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/hex.h"
#include "tests/unit/proto/wire_rig.h"

static void test_golden_bytes(void **state) {
  (void)state;
  const char *top = getenv("ZPS_TOP_SRCDIR");
  for (int i = 0; i < WIRE_N_GOLDEN; i++) {
    char path[1024];
    uint8_t want[ZPS_WIRE_FRAME_MAX];
    struct zps_error error;
    snprintf(path, sizeof path, "%s/proto/golden/%s.hex", top ? top : ".", wire_golden[i].name);
    const size_t want_len = zps_test_hex_read(path, want, sizeof want);
    if (want_len == 0) fail_msg("cannot read %s", path);
    wire_golden[i].make();
    const size_t len = wire_encode();
    assert_int_equal(len, want_len);
    assert_memory_equal(wire.buf, want, len);
    assert_int_equal(zps_wire_decode(want, want_len, &wire.back, &error), ZPS_OK);
    wire_expect_same();
  }
}

/* A rank that pushes a step again gives the slices that it pushed, wide ones among them. */
static void test_a_wide_slice_is_given(void **state) {
  (void)state;
  wire_make_push_wide();
  wire.frame.header.type = ZPS_FRAME_GIVE;
  const size_t len = wire_encode();
  assert_int_equal(zps_wire_decode(wire.buf, len, &wire.back, NULL), ZPS_OK);
  assert_int_equal(wire.back.header.type, ZPS_FRAME_GIVE);
  assert_true(wire.back.u.round.slices[0].is_wide);
  assert_false(wire.back.u.round.slices[1].is_wide);
}

/* The last slice's payload is the rest of the frame: there, a byte more or less makes another frame. */
static bool ends_in_payload(size_t len, size_t *payload_p) {
  const struct zps_slice *last =
      wire_is_round(wire.frame.header.type) ? &wire.frame.u.round.slices[wire.frame.u.round.n_slices - 1] : NULL;
  *payload_p = last && last->is_inline ? len - last->len_bytes : len;
  return last && last->is_inline;
}

static void test_every_truncation_and_extension_is_refused(void **state) {
  (void)state;
  for (int i = 0; i < WIRE_N_GOLDEN; i++) {
    size_t head;
    wire_golden[i].make();
    const size_t len = wire_encode();
    const bool in_payload = ends_in_payload(len, &head);
    for (size_t cut = 0; cut < head; cut++) assert_int_equal(wire_decode(wire.buf, cut, NULL), ZPS_ERR_PROTOCOL);
    assert_int_equal(wire_decode(wire.buf, len + 1, NULL), in_payload ? ZPS_OK : ZPS_ERR_PROTOCOL);
    for (size_t cut = head; cut < len; cut++) {
      assert_int_equal(wire_decode(wire.buf, cut, NULL), ZPS_OK);
      assert_int_equal(wire.back.u.round.slices[wire.back.u.round.n_slices - 1].len_bytes, cut - head);
    }
    assert_int_equal(wire_decode(wire.buf, len, NULL), ZPS_OK);
    assert_int_equal(wire.back.len_bytes, len);
  }
}

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
    wire_make_push();
    wire.frame.u.round.n_slices = counts[c];
    wire.frame.u.round.total_nnz = UINT64_MAX;
    for (unsigned i = 0; i < counts[c]; i++)
      wire.frame.u.round.slices[i] = (struct zps_slice){.partition = UINT32_MAX,
                                                        .codec = 7,
                                                        .nnz = UINT32_MAX,
                                                        .len_bytes = UINT64_MAX,
                                                        .addr = UINT64_MAX,
                                                        .key = UINT64_MAX,
                                                        .sum = UINT64_MAX};
    size_t len = wire_encode();
    assert_int_equal(len, 34 + 1 + 1 + 3 + 10 + 51 * counts[c]);
    assert_int_equal(zps_wire_decode(wire.buf, len, &wire.back, NULL), ZPS_OK);
    wire_expect_same();
    /* The largest inline payload, first in a slice before others, then in the last. */
    const struct zps_slice inlined = {.is_inline = true, .len_bytes = sizeof data, .data = data};
    wire.frame.u.round.slices[0] = inlined;
    len = wire_encode();
    assert_int_equal(len, 34 + 1 + 1 + 3 + 10 + 51 * (counts[c] - 1) + 3 + (counts[c] > 1 ? 2 : 0) + sizeof data);
    assert_int_equal(zps_wire_decode(wire.buf, len, &wire.back, NULL), ZPS_OK);
    wire_expect_same();
  }
  for (unsigned shift = 0; shift < 64; shift++) {
    const uint64_t step = 1ull << shift;
    wire_new_short(ZPS_FRAME_DONE, 255, 255, (uint32_t)step)->u.done =
        (struct zps_frame_done){.tensor = 0, .step = step};
    const size_t len = wire_encode();
    assert_int_equal(len, 3 + number_bytes((uint32_t)step) + 1 + number_bytes(step));
    assert_int_equal(zps_wire_decode(wire.buf, len, &wire.back, NULL), ZPS_OK);
    wire_expect_same();
  }
  for (unsigned n_ranks = 0; n_ranks <= ZPS_WIRE_RANKS_MAX; n_ranks++) {
    for (unsigned text = 0; text <= ZPS_WIRE_TEXT_MAX; text += 1 + text / 5) {
      wire_make_abort();
      wire.frame.u.abort.n_ranks = n_ranks;
      memset(wire.frame.u.abort.text, 'x', text);
      wire.frame.u.abort.text[text] = '\0';
      const size_t len = wire_encode();
      const size_t ranks_bytes = n_ranks ? 1 + number_bytes(4 * n_ranks) + 4 * n_ranks : 0;
      assert_int_equal(len, 34 + 19 + ranks_bytes + 1 + number_bytes(text) + text);
      assert_int_equal(zps_wire_decode(wire.buf, len, &wire.back, NULL), ZPS_OK);
      wire_expect_same();
    }
  }
  wire_make_credit();
  assert_int_equal(wire_encode(), 34);
}

/* The bytes of a round of few rows beside its payload, both ways, over a link that has been used before. */
static void test_header_cost_of_a_small_round(void **state) {
  (void)state;
  static uint8_t data[2400];
  struct zps_frame_round *round = &wire_new_short(ZPS_FRAME_PUSH, 200, 1, 3)->u.round;
  *round = (struct zps_frame_round){.tensor = 1, .step = 1000, .total_nnz = 105, .timeout_ms = 59000, .n_slices = 1};
  round->slices[0] =
      (struct zps_slice){.codec = 2, .n_more = 3, .is_inline = true, .nnz = 105, .len_bytes = 600, .data = data};
  assert_int_equal(wire_encode(), 4 + 7 + 4 + 600);
  round = &wire_new_short(ZPS_FRAME_RESULT, 200, 1, 0)->u.round;
  *round = (struct zps_frame_round){.tensor = 1, .step = 1000, .n_slices = 1};
  round->slices[0] =
      (struct zps_slice){.codec = 2, .n_more = 3, .is_inline = true, .nnz = 420, .len_bytes = 2400, .data = data};
  assert_int_equal(wire_encode(), 4 + 3 + 5 + 2400);
}

/* A frame that the encoder refuses is a bug of zenps. */
static void expect_not_encoded(void) {
  size_t len = 77;
  assert_int_equal(zps_wire_encode(&wire.frame, wire.buf, ZPS_WIRE_FRAME_MAX, &len), ZPS_ERR_INVALID);
  assert_int_equal(len, 77);
}

/* With keys on further rails, which cost what they are long. There are fewer where a card has refused the memory. */
static void test_keys_of_rails(void **state) {
  (void)state;
  void (*const makes[])(void) = {wire_make_push, wire_make_peer, wire_make_result};
  for (unsigned i = 0; i < 3; i++) {
    makes[i]();
    struct zps_slice *const slice = &wire.frame.u.round.slices[0];
    const size_t without = wire_encode();
    const bool has_values = slice->values > 0;
    for (uint8_t n = 1; n <= 3; n++) {
      const uint64_t keys[] = {5, 1ull << 40, UINT64_MAX - 1};
      const size_t bytes[] = {1, 1 + 6, 1 + 6 + 10};
      slice->more = (struct zps_net_keys){.n = n};
      for (uint8_t k = 0; k < n; k++) slice->more.key[k] = keys[k];
      const size_t len = wire_encode();
      assert_int_equal(len, without + (has_values ? 1 : 2) + bytes[n - 1]);
      assert_int_equal(zps_wire_decode(wire.buf, len, &wire.back, NULL), ZPS_OK);
      wire_expect_same();
    }
    slice->more.n = 4;
    expect_not_encoded();
  }
}

/* The decoder takes no frame that the encoder would not make. */
static void test_keys_take_room_of_payload(void **state) {
  (void)state;
  static const uint8_t payload[ZPS_WIRE_INLINE_MAX];
  wire_make_push_rails();
  struct zps_frame_round *const round = &wire.frame.u.round;
  round->slices[round->n_slices++] =
      (struct zps_slice){.partition = 6, .is_inline = true, .len_bytes = ZPS_WIRE_INLINE_MAX - 2 * 10, .data = payload};
  const size_t len = wire_encode();
  assert_int_equal(wire_decode(wire.buf, len, NULL), ZPS_OK);
  wire.buf[len] = 0;
  assert_int_equal(wire_decode(wire.buf, len + 1, NULL), ZPS_ERR_PROTOCOL);
  round->slices[1].len_bytes++;
  expect_not_encoded();
}

static void test_encode_limits(void **state) {
  (void)state;
  size_t len;
  wire_make_push(), wire.frame.u.round.n_slices = 0, expect_not_encoded();
  wire_make_push(), wire.frame.u.round.n_slices = ZPS_WIRE_SLICES_MAX + 1, expect_not_encoded();
  wire_make_push(), wire.frame.u.round.slices[0].len_bytes = 0, expect_not_encoded();
  wire_make_push(), wire.frame.u.round.total_nnz = 249, expect_not_encoded();
  wire_make_push(), wire.frame.u.round.slices[0].n_more = 1, expect_not_encoded();
  wire_make_push(), wire.frame.u.round.slices[0].codec = ZPS_WIRE_CODECS, expect_not_encoded();
  wire_make_done(), wire.frame.header.credits = 256, expect_not_encoded();
  wire_make_push_inline(), wire.frame.u.round.slices[0].len_bytes = ZPS_WIRE_INLINE_MAX + 1, expect_not_encoded();
  wire_make_push_inline(), wire.frame.u.round.slices[1].len_bytes = ZPS_WIRE_INLINE_MAX - 7, expect_not_encoded();
  wire_make_push_inline(), wire.frame.u.round.slices[0].len_bytes = UINT64_MAX, expect_not_encoded();
  wire_make_result(), wire.frame.u.round.timeout_ms = 1, expect_not_encoded();
  wire_make_result(), wire.frame.u.round.total_nnz = 1, expect_not_encoded();
  wire_make_abort(), wire.frame.u.abort.n_ranks = ZPS_WIRE_RANKS_MAX + 1, expect_not_encoded();
  wire_make_abort(), wire.frame.u.abort.code = ZPS_OK, expect_not_encoded();
  wire_make_abort(), memset(wire.frame.u.abort.text, 'x', sizeof wire.frame.u.abort.text), expect_not_encoded();
  wire_make_credit(), wire.frame.header.type = 0, expect_not_encoded();
  wire_make_credit(), wire.frame.header.type = 7, expect_not_encoded();
  wire_make_peer(), wire.frame.u.round.slices[0].n_more = 1, expect_not_encoded();
  wire_make_peer(), wire.frame.u.round.slices[0].values = ZPS_WIRE_VALUES, expect_not_encoded();
  wire_make_peer(), wire.frame.u.round.timeout_ms = 1, expect_not_encoded();
  wire_make_result(), wire.frame.u.round.slices[0].values = 1, expect_not_encoded();
  wire_make_result(), wire.frame.u.round.slices[0].is_wide = true, expect_not_encoded();
  wire_make_peer(), wire.frame.u.round.slices[0].is_wide = true, expect_not_encoded();
  for (int i = 0; i < WIRE_N_GOLDEN; i++) {
    wire_golden[i].make();
    const size_t need = wire_encode();
    for (size_t cap = 0; cap < need; cap++)
      assert_int_equal(zps_wire_encode(&wire.frame, wire.buf, cap, &len), ZPS_ERR_INVALID);
    assert_int_equal(zps_wire_encode(&wire.frame, wire.buf, need, &len), ZPS_OK);
  }
}

static void test_unprintable_text_is_replaced(void **state) {
  (void)state;
  wire_make_abort();
  strcpy(wire.frame.u.abort.text, "a\nb\x1b[2J \xff caf\xc3\xa9 cut \xc3");
  const size_t len = wire_encode();
  assert_int_equal(zps_wire_decode(wire.buf, len, &wire.back, NULL), ZPS_OK);
  assert_string_equal(wire.back.u.abort.text, "a?b?[2J ? caf\xc3\xa9 cut ?");
}

static void test_stamp(void **state) {
  (void)state;
  wire_make_push();
  const size_t len = wire_encode();
  zps_wire_stamp(wire.buf, 0xdeadbeef, 0x1234);
  assert_int_equal(zps_wire_decode(wire.buf, len, &wire.back, NULL), ZPS_OK);
  wire.frame.header.seq = 0xdeadbeef;
  wire.frame.header.credits = 0x1234;
  wire_expect_same();
  wire_make_done();
  const size_t done_len = wire_encode();
  zps_wire_stamp(wire.buf, 0xdeadbeef, 0x12);
  assert_int_equal(zps_wire_decode(wire.buf, done_len, &wire.back, NULL), ZPS_OK);
  wire.frame.header.seq = 0xef;
  wire.frame.header.credits = 0x12;
  wire_expect_same();
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
      cmocka_unit_test(test_a_wide_slice_is_given),
      cmocka_unit_test(test_every_truncation_and_extension_is_refused),
      cmocka_unit_test(test_sizes_follow_the_formulas),
      cmocka_unit_test(test_keys_of_rails),
      cmocka_unit_test(test_keys_take_room_of_payload),
      cmocka_unit_test(test_header_cost_of_a_small_round),
      cmocka_unit_test(test_encode_limits),
      cmocka_unit_test(test_unprintable_text_is_replaced),
      cmocka_unit_test(test_stamp),
      cmocka_unit_test(test_type_names),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
