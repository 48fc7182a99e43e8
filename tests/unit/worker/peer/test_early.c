/*
 * Messages that come before the program of a round that has begun knows of them: they are kept, within bounds. What a
 * scheme may have on the way is within them; with more the round fails, and says whose they were.
 */
#include "tests/unit/worker/peer/peer_rig.h"

#include <stdio.h>

#include "tests/support/logs.h"
#include "worker/schemes/common.h"

enum { ROWS = 200, WORLD = 3, TAG_ANSWER = 3, TAG_UNKNOWN = 1000, PER_TURN = 256, OWN = 0 /* a stream */ };

static struct peer_rig rig;

static int begin_test(void **state) {
  (void)state;
  logs_start();
  return 0;
}

static int end_test(void **state) {
  (void)state;
  peer_close(&rig);
  logs_finish();
  return 0;
}

/* A scheme that goes on, with agsparse, when rank 1 has said a number. */
static void build(const struct zps_peer_plan *plan, struct zps_program *program) {
  assert_int_equal(zps_program_own(program, 0, plan->rows, ZPS_FORM_SPARSE), OWN);
  zps_program_call(program, &(uint32_t){zps_program_recv_vector(program, 1, TAG_ANSWER, 1)}, 1, 0);
}

static void extend(const struct zps_peer_plan *plan, uint32_t phase, const double *const *vectors,
                   const uint32_t *lengths, struct zps_program *program) {
  (void)phase;
  (void)vectors;
  (void)lengths;
  zps_peer_allgather_sum(plan, program, OWN);
}

static const struct zps_peer_scheme asks = {.name = "asks", .build = build, .extend = extend};

/* The round waits for the number. */
static void begin_asking(uint32_t chunks) {
  peer_open(&rig, &(struct peer_config){.worker.world = WORLD, .scheme = &asks, .rows = ROWS});
  rig.peer.plan.chunks = chunks;
  peer_draw(&rig, 3);
  peer_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  UNTIL(rig_state(&rig.worker, &rig.request) == ZPS_MACHINE_EXCHANGING);
}

static void look_bytes(void *ctx) {
  *(uint64_t *)ctx = zps_peer_of(rig.request.round)->unexpected_bytes;
}

static uint64_t kept_bytes(void) {
  uint64_t bytes;
  rig_do(&rig.worker, look_bytes, &bytes);
  return bytes;
}

/* Under tags that follow each other; all have come. */
static void say(uint32_t r, uint64_t n, uint64_t len_bytes) {
  static uint8_t bytes[ZPS_WIRE_INLINE_MAX];
  const uint64_t before = kept_bytes(), each = sizeof(struct zps_unexpected_message) + len_bytes;
  for (uint64_t i = 0; i < n; i++) {
    struct zps_slice slice = {.partition = (uint32_t)(TAG_UNKNOWN + i),
                              .codec = ZPS_CODEC_COO,
                              .is_inline = true,
                              .len_bytes = len_bytes,
                              .data = bytes};
    peer_say_slice(&rig, r, 1, &slice);
    if ((i + 1) % PER_TURN == 0 || i + 1 == n)
      UNTIL(kept_bytes() == before + (i + 1) * each || atomic_load(&rig.request.over));
  }
}

static void expect_told(zps_err_t code, const char *text) {
  rig_expect_error(&rig.request, code, text);
  for (uint32_t r = 1; r < WORLD; r++) fake_expect_abort(&rig.worker.ranks[r], PEER_TENSOR, 1, code, text);
}

/* Kept, and in their places when the program has come to them. */
static void in_time(void **state) {
  (void)state;
  static const double number = 1;
  begin_asking(1);
  for (uint32_t r = 1; r < WORLD; r++) peer_say(&rig, r, 1, 0, PEER_INLINE, 0, ROWS, rig.theirs[r]);
  UNTIL(kept_bytes() > 2 * sizeof(struct zps_unexpected_message));
  peer_say_slice(&rig, 1, 1,
                 &(struct zps_slice){.partition = TAG_ANSWER,
                                     .codec = ZPS_CODEC_HOLES,
                                     .is_inline = true,
                                     .nnz = 1,
                                     .len_bytes = sizeof number,
                                     .data = &number});
  rig_expect_ok(&rig.request);
  peer_check(&rig);
  assert_int_equal(kept_bytes(), 0);
}

static void more_messages_than_a_scheme_has(void **state) {
  (void)state;
  const uint64_t max = 2 * WORLD + 256;
  char text[ZPS_WIRE_TEXT_MAX];
  begin_asking(1);
  for (uint32_t r = 1; r < WORLD; r++) say(r, max, 0);
  assert_false(atomic_load(&rig.request.over));
  say(2, 1, 0);
  snprintf(text, sizeof text,
           "rank 2 (host node-2) announces an impossible message %d: %u of it came before they were due, and a round "
           "has no more",
           TAG_UNKNOWN, (unsigned)max);
  expect_told(ZPS_ERR_PROTOCOL, text);
}

static void more_bytes_than_are_kept(void **state) {
  (void)state;
  const uint64_t each = sizeof(struct zps_unexpected_message) + ZPS_WIRE_INLINE_MAX;
  char text[ZPS_WIRE_TEXT_MAX];
  begin_asking(1 << 12); /* with so many chunks that the number of messages is no bound */
  say(1, ZPS_UNEXPECTED_BYTES_MAX / each, ZPS_WIRE_INLINE_MAX);
  assert_false(atomic_load(&rig.request.over));
  say(2, 1, ZPS_WIRE_INLINE_MAX);
  snprintf(text, sizeof text,
           "messages that came early take more than %llu bytes, the last one of rank 2 (host node-2)",
           ZPS_UNEXPECTED_BYTES_MAX);
  expect_told(ZPS_ERR_NOMEM, text);
}

#define EARLY(test) cmocka_unit_test_setup_teardown(test, begin_test, end_test)

int main(void) {
  const struct CMUnitTest tests[] = {
      EARLY(in_time),
      EARLY(more_messages_than_a_scheme_has),
      EARLY(more_bytes_than_are_kept),
  };
  return cmocka_run_group_tests_name("messages that come early", tests, NULL, NULL);
}
