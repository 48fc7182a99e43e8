/* Messages of one frame and of several. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/wire.h"
#include "tests/support/hex.h"

static struct zps_wire_message message;

static void add_done(uint64_t step) {
  const struct zps_frame frame = {.header = {.type = ZPS_FRAME_DONE, .is_short = true, .tag = 5},
                                  .u.done = {.tensor = 3, .step = step}};
  uint8_t bytes[ZPS_WIRE_FRAME_MAX];
  size_t len;
  assert_int_equal(zps_wire_encode(&frame, bytes, sizeof bytes, &len), ZPS_OK);
  void *const at = zps_wire_message_add(&message, bytes, len);
  assert_non_null(at);
  zps_wire_stamp(at, (uint32_t)step, 1);
}

/* The frames of `bytes`, to which a MAC is added, and which are DONEs of successive steps from 7; -1 where it cannot be
 * taken apart. The bytes are a heap block of their own, so that tools see a read beyond their end. */
static int count(const void *bytes, size_t len, struct zps_error *error) {
  uint8_t *const copy = calloc(1, len + ZPS_WIRE_MAC_BYTES);
  struct zps_wire_frames frames;
  int n = 0;
  assert_non_null(copy);
  if (len > 0) memcpy(copy, bytes, len);
  zps_wire_frames_begin(&frames, copy, len + ZPS_WIRE_MAC_BYTES);
  for (;; n++) {
    const void *at;
    size_t frame_len;
    struct zps_frame frame;
    if (zps_wire_frames_next(&frames, &at, &frame_len, error) != ZPS_OK) n = -1;
    if (n < 0 || !at || zps_wire_decode(at, frame_len, &frame, error) != ZPS_OK) break;
    assert_int_equal(frame.header.type, ZPS_FRAME_DONE);
    assert_int_equal(frame.u.done.step, 7 + n);
    assert_int_equal(frame.header.seq, 7 + n);
  }
  free(copy);
  return n;
}

static void test_one_frame_is_the_message(void **state) {
  (void)state;
  size_t len;
  zps_wire_message_clear(&message);
  add_done(7);
  const uint8_t *const bytes = zps_wire_message_bytes(&message, &len);
  static const uint8_t want[] = {0x93, 7, 1, 5, 3, 7};
  assert_int_equal(len, sizeof want);
  assert_memory_equal(bytes, want, len);
  assert_int_equal(count(bytes, len, NULL), 1);
}

static void test_several_frames_have_lengths(void **state) {
  (void)state;
  const char *const top = getenv("ZPS_TOP_SRCDIR");
  char path[1024];
  uint8_t want[64];
  size_t len;
  zps_wire_message_clear(&message);
  add_done(7);
  add_done(8);
  const uint8_t *const bytes = zps_wire_message_bytes(&message, &len);
  snprintf(path, sizeof path, "%s/proto/golden/joined.hex", top ? top : ".");
  assert_int_equal(len, zps_test_hex_read(path, want, sizeof want));
  assert_memory_equal(bytes, want, len);
  assert_int_equal(count(bytes, len, NULL), 2);
}

static void test_what_does_not_fit_is_left_out(void **state) {
  (void)state;
  static const uint8_t large[ZPS_WIRE_FRAME_MAX];
  size_t len;
  zps_wire_message_clear(&message);
  assert_null(zps_wire_message_add(&message, large, ZPS_WIRE_FRAME_MAX - 2));
  assert_non_null(zps_wire_message_add(&message, large, ZPS_WIRE_FRAME_MAX - 3));
  assert_null(zps_wire_message_add(&message, large, 1));
  zps_wire_message_bytes(&message, &len);
  assert_int_equal(len, ZPS_WIRE_FRAME_MAX - 3);
  zps_wire_message_clear(&message);
  add_done(7);
  while (zps_wire_message_add(&message, large, 100)) continue;
  zps_wire_message_bytes(&message, &len);
  assert_in_range(len, ZPS_WIRE_FRAME_MAX - 100, ZPS_WIRE_FRAME_MAX);
}

static void test_what_cannot_be_taken_apart_is_refused(void **state) {
  (void)state;
  struct zps_error error;
  size_t len;
  zps_wire_message_clear(&message);
  for (uint64_t step = 7; step < 10; step++) add_done(step);
  const uint8_t *const bytes = zps_wire_message_bytes(&message, &len);
  assert_int_equal(count(bytes, len, &error), 3);
  for (size_t cut = 2; cut < len; cut++) /* whole frames ahead of a cut are taken */
    assert_int_equal(count(bytes, cut, &error), cut % 7 == 1 ? (int)cut / 7 : -1);
  assert_int_equal(count(bytes, 1, &error), 0); /* a frame of no type */
  assert_int_equal(count(bytes, 0, &error), 0);
  assert_int_equal(count("\x90\x00", 2, &error), -1);
  assert_string_equal(error.text, "joined frame, offset 1: length is 0, 1 to 0 can be");
  assert_int_equal(count("\x90\x07\x93\x07\x01\x05\x03\x07", 8, &error), -1);
  assert_string_equal(error.text, "joined frame, offset 1: length is 7, 1 to 6 can be");
  assert_int_equal(count("\x90\x80", 2, &error), -1);
  assert_int_equal(count("\x90\x02\x90\x00", 4, &error), 0); /* joined frames are not joined again */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_one_frame_is_the_message),
      cmocka_unit_test(test_several_frames_have_lengths),
      cmocka_unit_test(test_what_does_not_fit_is_left_out),
      cmocka_unit_test(test_what_cannot_be_taken_apart_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
