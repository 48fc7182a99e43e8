/* Every fault that a frame of a peer may have, and the text of its refusal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/proto/wire_rig.h"

static void expect_refused(const void *bytes, size_t len, zps_err_t code, const char *text) {
  struct zps_error error = {.text = ""};
  assert_int_equal(wire_decode(bytes, len, &error), code);
  if (!strstr(error.text, text)) fail_msg("unexpected text: %s", error.text);
}

/* One byte of a good frame changed. */
static void expect_patch_refused(void (*make)(void), size_t at, uint8_t value, zps_err_t code, const char *text) {
  make();
  const size_t len = wire_encode();
  assert_true(at < len && wire.buf[at] != value);
  wire.buf[at] = value;
  expect_refused(wire.buf, len, code, text);
}

static void test_bad_headers(void **state) {
  (void)state;
  expect_refused("", 0, ZPS_ERR_PROTOCOL, "frame of 0 bytes: shorter than a header");
  expect_patch_refused(wire_make_credit, 0, 'X', ZPS_ERR_PROTOCOL, "want 0x3153505a: not a zenps peer");
  expect_patch_refused(wire_make_credit, 4, 2, ZPS_ERR_VERSION, "has protocol version 2, this side speaks version 1");
  expect_patch_refused(wire_make_credit, 5, 1, ZPS_ERR_VERSION, "has protocol version 257");
  expect_patch_refused(wire_make_credit, 6, 0, ZPS_ERR_PROTOCOL, "unknown type 0, want 1 to 14");
  expect_patch_refused(wire_make_credit, 6, 15, ZPS_ERR_PROTOCOL, "unknown type 15");
  expect_patch_refused(wire_make_credit, 7, 1, ZPS_ERR_PROTOCOL, "CREDIT frame: unknown flags 0x01");
  expect_patch_refused(wire_make_done, 0, 0xa3, ZPS_ERR_VERSION, "has protocol version 2, this side speaks version 1");
  expect_patch_refused(wire_make_done, 0, 0x90, ZPS_ERR_PROTOCOL, "unknown type 0");
  expect_patch_refused(wire_make_done, 0, 0x9f, ZPS_ERR_PROTOCOL, "unknown type 15");
  expect_patch_refused(wire_make_done, 0, 0x13, ZPS_ERR_PROTOCOL, "frame of 6 bytes: shorter than a header");
  expect_refused("\x93\0", 2, ZPS_ERR_PROTOCOL, "shorter than a short header");
}

static void test_a_frame_of_another_type(void **state) {
  (void)state;
  expect_patch_refused(wire_make_done, 0, 0x95, ZPS_ERR_PROTOCOL, "CREDIT frame of 6 bytes: 2 are left over");
  expect_patch_refused(wire_make_done, 0, 0x91, ZPS_ERR_PROTOCOL, "no number where timeout_ms is due");
  expect_patch_refused(wire_make_done, 0, 0x92, ZPS_ERR_PROTOCOL, "ends before its last slice");
  expect_patch_refused(wire_make_done, 0, 0x94, ZPS_ERR_PROTOCOL, "not the fields of ABORT");
  expect_patch_refused(wire_make_done, 0, 0x9d, ZPS_ERR_PROTOCOL, "RESUME frame with a short header: it must be long");
  expect_patch_refused(wire_make_resume, ZPS_WIRE_LONG_BYTES + 3, 2, ZPS_ERR_PROTOCOL, "asks is 2, at most 1");
  expect_patch_refused(wire_make_resume, ZPS_WIRE_LONG_BYTES + 5, 0, ZPS_ERR_PROTOCOL, "no number where early is due");
  expect_patch_refused(wire_make_abort, 6, ZPS_FRAME_DONE, ZPS_ERR_PROTOCOL, "are left over");
  expect_patch_refused(wire_make_push, 6, ZPS_FRAME_PEER, ZPS_ERR_PROTOCOL, "must be 0");
}

/* Any bytes as the numbers of a DONE frame. */
static void expect_number_refused(const char *bytes, size_t len, const char *text) {
  wire_make_done();
  wire_encode();
  memcpy(wire.buf + 4, bytes, len);
  expect_refused(wire.buf, 4 + len, ZPS_ERR_PROTOCOL, text);
}

static void test_bad_pulls(void **state) {
  (void)state;
  enum { AT_SLICE = 4 + 1 + 1 + 3 + 1 };
  expect_patch_refused(wire_make_pull, AT_SLICE, 0, ZPS_ERR_PROTOCOL, "starts with 0x00, want 0x07, or 0x27");
  expect_patch_refused(wire_make_pull, AT_SLICE, 0x0f, ZPS_ERR_PROTOCOL, "starts with 0x0f");
  expect_patch_refused(wire_make_pull, AT_SLICE, 0x17, ZPS_ERR_PROTOCOL, "starts with 0x17");
  wire_make_pull();
  wire.frame.u.round.slices[0].codec = 0;
  size_t len;
  assert_int_equal(zps_wire_encode(&wire.frame, wire.buf, ZPS_WIRE_FRAME_MAX, &len), ZPS_ERR_INVALID);
}

static void test_bad_ages(void **state) {
  (void)state;
  enum { AT_AGE = 4 + 1 + 1 + 3 + 1 + 2 };
  size_t len;
  expect_patch_refused(wire_make_seek, AT_AGE, 10, ZPS_ERR_PROTOCOL, "age is 10, at most 9"); /* before step 0 */
  expect_patch_refused(wire_make_seek, AT_AGE + 1, 10, ZPS_ERR_PROTOCOL, "steps older is 10, at most 9");
  expect_patch_refused(wire_make_seek, AT_AGE + 2, 0, ZPS_ERR_PROTOCOL, "SEEK frame: a slice starts with 0x00");
  expect_patch_refused(wire_make_found, 4 + 2 + 2, 10, ZPS_ERR_PROTOCOL, "FOUND frame, offset 8: age is 10");
  const struct {
    void (*make)(void);
    uint32_t seek, age, age_max;
  } cases[] = {{wire_make_seek, 1, 3, 2},  {wire_make_seek, 1, 0, 10}, {wire_make_found, 1, 10, 0},
               {wire_make_found, 1, 0, 1}, {wire_make_pull, 0, 1, 1},  {wire_make_push, 0, 0, 1},
               {wire_make_pull, 1, 0, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    cases[i].make();
    wire.frame.u.round.seek = cases[i].seek;
    wire.frame.u.round.age = cases[i].age;
    wire.frame.u.round.age_max = cases[i].age_max;
    assert_int_equal(zps_wire_encode(&wire.frame, wire.buf, ZPS_WIRE_FRAME_MAX, &len), ZPS_ERR_INVALID);
  }
}

static void test_an_abort_is_of_no_seek(void **state) {
  (void)state;
  size_t len;
  wire_make_abort();
  wire.frame.u.abort.seek = 1;
  assert_int_equal(zps_wire_encode(&wire.frame, wire.buf, ZPS_WIRE_FRAME_MAX, &len), ZPS_ERR_INVALID);
}

/* One way to write a set of ranks, and none beyond the largest world. */
static void test_bad_late_ranks(void **state) {
  (void)state;
  size_t len;
  expect_patch_refused(wire_make_closed, 4 + 3 + 1, 0, ZPS_ERR_PROTOCOL, "the last byte of late ranks is 0");
  expect_patch_refused(wire_make_closed, 4 + 2, 3, ZPS_ERR_PROTOCOL, "3 bytes of late ranks, but 2 are left");
  wire_make_closed();
  wire.frame.u.closed.late[1] = 0;
  assert_int_equal(zps_wire_encode(&wire.frame, wire.buf, ZPS_WIRE_FRAME_MAX, &len), ZPS_ERR_INVALID);
  wire_make_closed();
  zps_frame_closed_add(&wire.frame.u.closed, 8 * ZPS_WIRE_LATE_BYTES - 1);
  len = wire_encode();
  wire.buf[4 + 2]++; /* 512, as 0x80 0x04 */
  expect_refused(wire.buf, len, ZPS_ERR_PROTOCOL, "bytes of late ranks is 513, at most 512");
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
  expect_patch_refused(wire_make_push, SLICE, 0x88, ZPS_ERR_PROTOCOL, "starts with 0x88, whose top bit must be 0");
  expect_patch_refused(wire_make_peer, 4 + 2, 0xb8, ZPS_ERR_PROTOCOL, "starts with 0xb8, whose top two bits must be 0");
  expect_patch_refused(wire_make_pull, 4 + 1 + 1 + 3 + 1, 0xa7, ZPS_ERR_PROTOCOL, "whose top two bits must be 0");
  expect_patch_refused(wire_make_result_absent, 4 + 2 + 4, 0xe9, ZPS_ERR_PROTOCOL, "starts with 0xe9, whose bit 6");
  wire_make_result_absent();
  wire.frame.u.round.n_absent = 1;
  const size_t one_absent = wire_encode();
  wire.buf[4 + 2 + 4 + 1] = 0;
  expect_refused(wire.buf, one_absent, ZPS_ERR_PROTOCOL, "absent ranks are said to be 0: left out when 0");
  expect_patch_refused(wire_make_peer, 4 + 2, 0x58, ZPS_ERR_PROTOCOL, "starts with 0x58, whose top two bits must be 0");
  expect_patch_refused(wire_make_push, SLICE, 0x38, ZPS_ERR_PROTOCOL, "a remote slice has values of kind");
  expect_patch_refused(wire_make_push, SLICE, 0x08, ZPS_ERR_PROTOCOL, "ends before its last slice");
  expect_patch_refused(wire_make_push_inline, INLINE_SLICE + 4 + 2, 0, ZPS_ERR_PROTOCOL, "want 1 or more");
  expect_patch_refused(wire_make_peer, 4 + 2 + 3, 0, ZPS_ERR_PROTOCOL, "left out when 0");
  expect_patch_refused(wire_make_peer, 4 + 2 + 3, 0x80, ZPS_ERR_PROTOCOL, "a slice's values is 1");
  wire_make_push();
  wire.frame.u.round.total_nnz = UINT64_MAX;
  wire.frame.u.round.slices[0].nnz = 0;
  const size_t len = wire_encode();
  wire.buf[ROUND + 5 + 10 + 2] = 1; /* nnz beside 2^64 - 1 rows elsewhere */
  expect_refused(wire.buf, len, ZPS_ERR_PROTOCOL, "want below 2^64");
  wire_make_push();
  wire.frame.u.round.n_slices = ZPS_WIRE_SLICES_MAX;
  for (uint32_t i = 1; i < ZPS_WIRE_SLICES_MAX; i++)
    wire.frame.u.round.slices[i] = (struct zps_slice){.is_inline = true};
  const size_t most = wire_encode();
  wire.buf[most - 3] = 0; /* no longer the last */
  memset(wire.buf + most, 0, 16);
  expect_refused(wire.buf, most + 16, ZPS_ERR_PROTOCOL, "more than 48 slices");
}

static void test_bad_payloads(void **state) {
  (void)state;
  const size_t at = INLINE_SLICE + 3; /* len of the first slice */
  expect_patch_refused(wire_make_push_inline, at, 7, ZPS_ERR_PROTOCOL, "leave 1 bytes over of a payload of 8");
  expect_patch_refused(wire_make_push_inline, at, 9, ZPS_ERR_PROTOCOL, "slice 0: 9 inline bytes, but 8 are left of 8");
  wire_make_push_inline();
  const size_t len = wire_encode();
  memmove(wire.buf + at + 2, wire.buf + at + 1, len - at - 1);
  wire.buf[at] = 0x81, wire.buf[at + 1] = 0x60;
  expect_refused(wire.buf, len + 1, ZPS_ERR_PROTOCOL, "an inline slice's len is 12289, at most 12288");
  wire_make_push();
  wire.frame.u.round.slices[0].len_bytes = 1;
  const size_t remote = wire_encode();
  wire.buf[SLICE + 4] = 0;
  expect_refused(wire.buf, remote, ZPS_ERR_PROTOCOL, "empty and remote");
  wire_make_result();
  const size_t result = wire_encode();
  expect_refused(wire.buf, result + ZPS_WIRE_INLINE_MAX - 7, ZPS_ERR_PROTOCOL, "payload of 12289 bytes, at most 12288");
  expect_refused(wire.buf, sizeof wire.buf, ZPS_ERR_PROTOCOL, "frame of 16377 bytes, at most 16376");
}

static void test_bad_aborts(void **state) {
  (void)state;
  enum { BODY = 34, CODE = BODY + 15, TEXT = BODY + 19 + 10 + 2 };
  expect_patch_refused(wire_make_abort, CODE, 0x9c, ZPS_ERR_PROTOCOL, "code -100 is no error");
  expect_patch_refused(wire_make_abort, TEXT + 4, '\n', ZPS_ERR_PROTOCOL, "byte 4 of the text is not printable");
  expect_patch_refused(wire_make_abort, TEXT + 4, 0, ZPS_ERR_PROTOCOL, "byte 4 of the text is not printable");
  expect_patch_refused(wire_make_abort, TEXT + 4, 0xc0, ZPS_ERR_PROTOCOL, "byte 4 of the text is not printable");
  expect_patch_refused(wire_make_abort, BODY + 20, 7, ZPS_ERR_PROTOCOL, "not the fields of ABORT");
  expect_patch_refused(wire_make_abort, BODY + 19, 0x32, ZPS_ERR_PROTOCOL, "unknown, repeated or overlong fields");
}

/* Bodies that protobuf would accept, but that do not follow the formulas. */
static void test_other_encodings_of_the_same_values(void **state) {
  (void)state;
  wire_make_abort();
  wire.frame.u.abort.n_ranks = 0;
  wire.frame.u.abort.text[0] = '\0';
  const size_t len = wire_encode();
  assert_int_equal(wire.buf[len - 1], 0); /* the text's length */
  wire.buf[len - 1] = 0x80;               /* its length in two bytes */
  wire.buf[len] = 0;
  expect_refused(wire.buf, len + 1, ZPS_ERR_PROTOCOL, "overlong");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_bad_headers),
      cmocka_unit_test(test_a_frame_of_another_type),
      cmocka_unit_test(test_bad_pulls),
      cmocka_unit_test(test_bad_ages),
      cmocka_unit_test(test_an_abort_is_of_no_seek),
      cmocka_unit_test(test_bad_late_ranks),
      cmocka_unit_test(test_bad_numbers),
      cmocka_unit_test(test_bad_rounds),
      cmocka_unit_test(test_bad_payloads),
      cmocka_unit_test(test_bad_aborts),
      cmocka_unit_test(test_other_encodings_of_the_same_values),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
