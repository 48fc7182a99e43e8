/* Unexpected messages, those of rounds that have not begun here: they are kept within bounds, and lost ones are
 * reported as missing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/logs.h"
#include "tests/support/oom.h"
#include "worker/plane/unexpected.h"

static struct zps_unexpected kept;

static int begin_test(void **state) {
  (void)state;
  logs_start();
  return 0;
}

static int end_test(void **state) {
  (void)state;
  zps_unexpected_fini(&kept);
  assert_int_equal(kept.n_rounds, 0);
  assert_int_equal(kept.bytes, 0);
  logs_finish();
  return 0;
}

static void say(uint32_t tensor, uint64_t step, uint32_t src, const char *text) {
  const struct zps_slice slice = {.partition = src, .is_inline = true, .len_bytes = strlen(text), .data = text};
  zps_unexpected_add(&kept, tensor, step, src, 100, &slice);
}

static void give_up(uint32_t tensor, uint64_t step, uint32_t src) {
  zps_unexpected_abort(&kept, src, &(struct zps_frame_abort){.tensor = tensor, .step = step, .code = ZPS_ERR_NOMEM});
}

static struct zps_unexpected_round *take(uint32_t tensor, uint64_t step, bool wants_dropped) {
  bool dropped;
  struct zps_unexpected_round *round = zps_unexpected_take(&kept, tensor, step, &dropped);
  assert_int_equal(dropped, wants_dropped);
  return round;
}

static void in_the_order_of_coming(void **state) {
  (void)state;
  say(3, 4, 1, "one");
  say(3, 5, 1, "another step");
  say(3, 4, 2, "two");
  say(2, 4, 1, "another tensor");
  assert_int_equal(kept.n_rounds, 3);
  struct zps_unexpected_round *round = take(3, 4, false);
  assert_non_null(round);
  assert_memory_equal(round->messages->slice.data, "one", 3);
  assert_int_equal(round->messages->src, 1);
  assert_int_equal(round->messages->frame_bytes, 100);
  assert_memory_equal(round->messages->next->slice.data, "two", 3);
  assert_null(round->messages->next->next);
  assert_null(round->aborts);
  zps_unexpected_round_free(round);
  assert_null(take(3, 4, false));
  assert_int_equal(kept.n_rounds, 2);
}

/* Messages of a rank from before it gave up are of no use; its later messages belong to its next attempt. */
static void given_up(void **state) {
  (void)state;
  say(3, 4, 1, "old");
  say(3, 4, 2, "two");
  say(3, 4, 1, "old, too");
  give_up(3, 4, 1);
  give_up(3, 4, 1);
  say(3, 4, 1, "new");
  give_up(3, 4, 3); /* rank 3 said nothing */
  struct zps_unexpected_round *round = take(3, 4, false);
  assert_int_equal(round->messages->src, 2);
  assert_memory_equal(round->messages->next->slice.data, "new", 3);
  assert_null(round->messages->next->next);
  unsigned ranks = 0;
  for (const struct zps_unexpected_abort *abort = round->aborts; abort; abort = abort->next) {
    assert_int_equal(ranks & 1u << abort->src, 0);
    assert_int_equal(abort->abort.code, ZPS_ERR_NOMEM);
    ranks |= 1u << abort->src;
  }
  assert_int_equal(ranks, 1 << 1 | 1 << 3);
  zps_unexpected_round_free(round);
}

/* A message that is to be read costs the same, however large it is. */
static void read_ones_cost_little(void **state) {
  (void)state;
  const struct zps_slice slice = {.len_bytes = 1ull << 40, .addr = 5, .key = 6};
  zps_unexpected_add(&kept, 1, 1, 1, 50, &slice);
  assert_true(kept.bytes < 1000);
  struct zps_unexpected_round *round = take(1, 1, false);
  assert_int_equal(round->messages->slice.key, 6);
  zps_unexpected_round_free(round);
  assert_int_equal(kept.bytes, 0);
}

static void too_many_rounds(void **state) {
  (void)state;
  logs_expect(ZPS_LOG_WARN, "dropped messages for tensor 1 step 0");
  for (uint64_t step = 0; step <= ZPS_UNEXPECTED_ROUNDS_MAX; step++) say(1, step, 1, "x");
  assert_int_equal(kept.n_rounds, ZPS_UNEXPECTED_ROUNDS_MAX);
  assert_null(
      take(1, 0, true)); /* the oldest: this rank may never begin it, but if it does, it is not to wait in vain */
  assert_null(take(1, 0, false)); /* once */
  zps_unexpected_round_free(take(1, 1, false));
  zps_unexpected_round_free(take(1, ZPS_UNEXPECTED_ROUNDS_MAX, false));
}

static void too_many_bytes(void **state) {
  (void)state;
  static char large[4001];
  logs_expect(ZPS_LOG_WARN, "dropped a message of rank 2 for tensor 1 step 8, which has not begun here: no memory");
  memset(large, 'x', sizeof large - 1);
  while (kept.bytes < ZPS_UNEXPECTED_BYTES_MAX) say(1, 7, 1, large);
  say(1, 8, 2, "x");
  assert_true(kept.bytes < ZPS_UNEXPECTED_BYTES_MAX + 8000);
  zps_unexpected_round_free(take(1, 7, false));
  assert_int_equal(kept.bytes, 0);
  say(1, 8, 2, "y"); /* there is room again, but of that round something is missing */
  zps_unexpected_round_free(take(1, 8, true));
  say(1, 8, 2, "z"); /* its next attempt may go well */
  zps_unexpected_round_free(take(1, 8, false));
}

/* More than one has to make room. */
static void far_too_many_rounds(void **state) {
  (void)state;
  logs_allow(ZPS_LOG_WARN, "dropped messages for tensor 1 step");
  const uint64_t n = ZPS_UNEXPECTED_ROUNDS_MAX + ZPS_MISSED_ROUNDS;
  for (uint64_t step = 0; step < n; step++) say(1, step, 1, "x");
  for (uint64_t step = 0; step < n; step++) zps_unexpected_round_free(take(1, step, step < ZPS_MISSED_ROUNDS));
}

/* Without memory even for the round, so many are remembered as missed. */
static void missed(void **state) {
  (void)state;
  logs_allow(ZPS_LOG_WARN, "no memory");
  atomic_store(&oom_granted, 0);
  for (uint64_t step = 0; step <= ZPS_MISSED_ROUNDS; step++) say(1, step, 1, "x");
  atomic_store(&oom_granted, OOM_UNLIMITED);
  assert_null(take(1, 0, false)); /* the oldest is forgotten */
  for (uint64_t step = 1; step <= ZPS_MISSED_ROUNDS; step++) assert_null(take(1, step, true));
  assert_null(take(1, 5, false)); /* once */
}

/* The message is kept or, without memory, reported as missing. */
static void without_memory(void **state) {
  (void)state;
  logs_allow(ZPS_LOG_WARN, "no memory");
  for (long n = 0; n < 5; n++) {
    atomic_store(&oom_granted, n);
    say(3, 4, 1, "early");
    say(3, 4, 2, "early");
    give_up(3, 4, 1);
    atomic_store(&oom_granted, OOM_UNLIMITED);
    struct zps_unexpected_round *round = take(3, 4, n < 4);
    assert_true((round != NULL) == (n > 0));
    assert_null(take(3, 4, false));
    if (round) assert_true((round->aborts != NULL) == (n == 4));
    if (n == 4) assert_int_equal(round->messages->src, 2); /* messages before an abort are of no use */
    zps_unexpected_round_free(round);
  }
}

static void past(void **state) {
  (void)state;
  assert_false(zps_unexpected_is_past(&kept, 0, 0));
  for (uint64_t step = 0; step <= ZPS_PAST_ROUNDS; step++) zps_unexpected_note_past(&kept, 1, step);
  assert_false(zps_unexpected_is_past(&kept, 1, 0)); /* too long ago */
  assert_true(zps_unexpected_is_past(&kept, 1, 1));
  assert_true(zps_unexpected_is_past(&kept, 1, ZPS_PAST_ROUNDS));
  assert_false(zps_unexpected_is_past(&kept, 2, 1));
  assert_false(zps_unexpected_is_past(&kept, 1, ZPS_PAST_ROUNDS + 1));
}

#define KEPT(test) cmocka_unit_test_setup_teardown(test, begin_test, end_test)

int main(void) {
  const struct CMUnitTest tests[] = {
      KEPT(in_the_order_of_coming),
      KEPT(given_up),
      KEPT(read_ones_cost_little),
      KEPT(too_many_rounds),
      KEPT(far_too_many_rounds),
      KEPT(too_many_bytes),
      KEPT(missed),
      KEPT(without_memory),
      KEPT(past),
  };
  return cmocka_run_group_tests_name("messages of rounds that have not begun", tests, NULL, NULL);
}
