/*
 * Rounds over servers when memory is short: registered memory, which rounds wait for in line, and memory of any kind,
 * without which a round ends with ZPS_ERR_NOMEM, and the next one is right.
 */
#include "tests/unit/worker/served/served_rig.h"

#include <stdio.h>

#define OOM_SPARES fake_at_work
#include "tests/support/logs.h"
#include "tests/support/oom.h"

enum { MIB = 1 << 20, GRANTED_MAX = 2000, WAIT_MS = 30 };

static struct served_rig rig;
static struct rig_request second, third, fourth;
static float results[3][SERVED_ROWS_MAX * SERVED_WIDTH];

static int begin_test(void **state) {
  (void)state;
  logs_start();
  memset(&second, 0, sizeof second);
  memset(&third, 0, sizeof third);
  memset(&fourth, 0, sizeof fourth);
  second.out.values = results[0];
  third.out.values = results[1];
  fourth.out.values = results[2];
  return 0;
}

static int end_test(void **state) {
  (void)state;
  atomic_store(&oom_granted, OOM_UNLIMITED);
  oom_once = false;
  served_close(&rig);
  logs_finish();
  return 0;
}

/* ------------------------------------------------------------ registered memory */

/* A push of 2 MiB, in four; each sum takes 1 MiB. */
static void open_limited(uint64_t limit_bytes) {
  served_open(&rig, &(struct served_config){.worker.memory_limit_bytes = limit_bytes, .rows = 1 << 18, .n_parts = 4});
  served_draw(&rig, 1);
}

static void expect_refused(struct rig_request *request, uint64_t limit_bytes, uint64_t used_bytes) {
  char text[256];
  snprintf(text, sizeof text,
           "no registered memory for it: the limit is %llu bytes, %llu are in use; raise ZENPS_MEMORY_LIMIT, or the "
           "limit of locked memory",
           (unsigned long long)limit_bytes, (unsigned long long)used_bytes);
  rig_expect_error(request, ZPS_ERR_NOMEM, text);
}

static void none_for_the_push(void **state) {
  (void)state;
  open_limited(MIB);
  served_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  expect_refused(&rig.request, MIB, MIB);
  fake_expect_abort(&rig.worker.servers[0], 5, 1, ZPS_ERR_NOMEM, "no registered memory for it");
}

static void none_for_the_sum(void **state) {
  (void)state;
  open_limited(2 * MIB);
  served_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  served_take(&rig, 0, 1);
  served_answer_part(&rig, 0, 1, 3);
  expect_refused(&rig.request, 2 * MIB, 2 * MIB);
  fake_expect_abort(&rig.worker.servers[0], 5, 1, ZPS_ERR_NOMEM, "no registered memory for it");
  fake_abort(&rig.worker.servers[0], 5, 1, ZPS_ERR_NOMEM, "so be it");
  rig_expect_released(&rig.request);
  assert_int_equal(rig_held(&rig.worker), 0);
}

static void sums_take_turns(void **state) {
  (void)state;
  open_limited(3 * MIB);
  rig.servers[0].answers = true;
  for (uint64_t step = 1; step <= 3; step++) {
    served_begin(&rig, &rig.request, step, RIG_TIMEOUT_MS);
    rig_expect_ok(&rig.request);
    served_check(&rig);
    rig_expect_released(&rig.request);
    assert_int_equal(rig_held(&rig.worker), 0);
  }
}

static void look_waits(void *ctx) {
  bool *waits = ctx;
  *waits = second.round && zps_plane_memory_waits(&zps_served_of(second.round)->wait);
}

static bool second_waits(void) {
  bool waits = false;
  rig_do(&rig.worker, look_waits, &waits);
  return waits;
}

/* Only one of them fits: the second waits without a byte, until the first is over. */
static void two_at_once(void **state) {
  (void)state;
  open_limited(4 * MIB);
  served_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  served_take(&rig, 0, 1);
  served_begin(&rig, &second, 2, RIG_TIMEOUT_MS);
  UNTIL(second_waits());
  assert_int_equal(rig_held(&rig.worker), 2 * MIB);
  served_answer(&rig, 0, 1);
  rig_expect_ok(&rig.request);
  served_check(&rig);
  served_take(&rig, 0, 2);
  assert_false(second_waits());
  served_answer(&rig, 0, 2);
  rig_expect_ok(&second);
  memcpy(rig.out, results[0], sizeof rig.out);
  served_check(&rig);
  assert_int_equal(rig.request.number, 0);
  assert_int_equal(second.number, 1);
}

/* Rounds are served in the order in which they began to wait; a canceled round leaves the line. */
static void first_come_first_served(void **state) {
  (void)state;
  open_limited(4 * MIB);
  served_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  served_take(&rig, 0, 1);
  served_begin(&rig, &second, 2, RIG_TIMEOUT_MS);
  UNTIL(second_waits());
  served_begin(&rig, &third, 3, RIG_TIMEOUT_MS);
  served_begin(&rig, &fourth, 4, RIG_TIMEOUT_MS);
  rig_cancel(&second);
  rig_expect_error(&second, ZPS_ERR_CANCELED, "rank 0 canceled it");
  rig_expect_released(&second); /* it had pushed nothing */
  rig.servers[0].answers = true;
  served_answer(&rig, 0, 1);
  rig.servers[0].n_came = 0;
  rig_expect_ok(&rig.request);
  rig_expect_ok(&third);
  rig_expect_ok(&fourth);
  for (unsigned i = 1; i < 3; i++) {
    memcpy(rig.out, results[i], sizeof rig.out);
    served_check(&rig);
  }
  assert_true(rig.request.number < third.number && rig.request.number < fourth.number);
}

/* ------------------------------------------------------------ memory of any kind */

static zenps_grad_t in;

static void want(bool rows_out) {
  in = (zenps_grad_t){.struct_size = sizeof in, .layout = ZENPS_DENSE, .memory = ZENPS_HOST, .values = rig.in};
  rig.request.out = in;
  rig.request.out.values = rig.out;
  if (!rows_out) return;
  rig.request.out.layout = ZENPS_ROWS;
  rig.request.out.values = NULL;
}

/* True: the step went well, and some of the granted allocations are left. This fabric takes memory for each message,
 * and sends it when there is some: so there is, after a while. */
static bool take_step(uint64_t step, bool rows_out, long granted) {
  want(rows_out);
  atomic_store(&oom_granted, granted);
  const zps_err_t err = rig_begin(&rig.worker, &rig.request, &rig.tensor, step, RIG_TIMEOUT_MS, &in);
  const uint64_t until_ns = zps_clock_ns() + WAIT_MS * ZPS_NS_PER_MS;
  if (err == ZPS_OK) UNTIL(atomic_load(&rig.request.over) || (granted != OOM_UNLIMITED && zps_clock_ns() > until_ns));
  const bool has_waited = err == ZPS_OK && !atomic_load(&rig.request.over); /* its allocations are still to come */
  const long left = atomic_exchange(&oom_granted, OOM_UNLIMITED);
  if (err != ZPS_OK) {
    assert_int_equal(err, ZPS_ERR_NOMEM);
    return false;
  }
  UNTIL(atomic_load(&rig.request.over));
  if (rig.request.error.status != ZENPS_OK) {
    if (rig.request.error.status != ZENPS_ERR_NOMEM) fail_msg("%s", rig.request.error.text);
    assert_non_null(strstr(rig.request.error.text, "job run, tensor t, step "));
  }
  const bool ok = rig.request.error.status == ZENPS_OK;
  if (ok && !rows_out) served_check(&rig);
  return ok && (granted == OOM_UNLIMITED || (left > 0 && !has_waited));
}

/* Each with a round of its own, whose memory does not come from one before. */
static void sweep(bool rows_out, bool once, long n_min) {
  bool good = false;
  long n = 0;
  for (; !good; n++) {
    assert_true(n < GRANTED_MAX);
    oom_once = once;
    good = take_step((uint64_t)n, rows_out, n);
    oom_once = false;
    const uint64_t over_ns = zps_clock_ns();
    rig_drop(&rig.worker, &rig.request);
    assert_true(zps_clock_ns() - over_ns < 8 * ZPS_NS_PER_S); /* the servers have been told, and have answered */
    assert_int_equal(rig_held(&rig.worker), 0);
    zps_row_arrays_pool_drop(rig.tensor.arrays);
    assert_true(take_step((uint64_t)n + GRANTED_MAX, rows_out, OOM_UNLIMITED));
    rig_drop(&rig.worker, &rig.request);
    zps_row_arrays_pool_drop(rig.tensor.arrays);
  }
  assert_true(n > n_min);
}

static void sweep_all(uint64_t rows, unsigned every, long n_min) {
  for (unsigned way = 0; way < 4; way++) {
    served_open(&rig, &(struct served_config){.worker.n_servers = 2, .rows = rows, .n_parts = 4});
    served_draw(&rig, every);
    rig.servers[0].answers = rig.servers[1].answers = true;
    sweep(way & 1, way & 2, n_min);
    served_close(&rig);
  }
}

static void small_rounds(void **state) {
  (void)state;
  logs_allow(ZPS_LOG_WARN, "memory");
  sweep_all(300, 3, 15);
}

static void large_rounds(void **state) {
  (void)state;
  logs_allow(ZPS_LOG_WARN, "memory");
  sweep_all(20000, 2, 20);
}

/* ------------------------------------------------------------ the last word */

enum { LAST_ROWS = 200, CROWD = ZPS_LINK_CREDITS + 8 };

static struct rig_request crowd[CROWD];
static float crowd_results[CROWD][LAST_ROWS * SERVED_WIDTH];

/* The server has step 2, and reads no frame any more: later steps' have taken all of its receives, and what the worker
 * says to it from here on waits in memory that is allocated for it. Step 1 has left its own behind for step 2. */
static void open_crowded(void) {
  logs_allow(ZPS_LOG_WARN, "memory");
  served_open(&rig, &(struct served_config){.rows = LAST_ROWS, .n_parts = 2});
  served_draw(&rig, 3);
  rig.servers[0].reads_only = rig.servers[0].answers = true;
  served_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  rig_expect_ok(&rig.request);
  rig_expect_released(&rig.request);
  rig.servers[0].answers = false;
  served_begin(&rig, &rig.request, 2, RIG_TIMEOUT_MS);
  served_take(&rig, 0, 2);
  fake_abort(&rig.worker.servers[0], 5, 1, ZPS_ERR_CANCELED, "of a step that is over"); /* with all receives it owes */
  memset(crowd, 0, sizeof crowd);
  for (unsigned i = 0; i < CROWD; i++) {
    crowd[i].out.values = crowd_results[i];
    served_begin(&rig, &crowd[i], 3 + i, RIG_TIMEOUT_MS);
    while (rig_state(&rig.worker, &crowd[i]) != ZPS_MACHINE_WAITING) fakes_rest();
  }
}

/* `run` makes the worker say its last word of step 2, for which there is no memory; a little later there is. */
static void refuse(void (*run)(void)) {
  struct patience patience = {0};
  oom_once = true;
  atomic_store(&oom_granted, 0);
  fake_at_work = true;
  run();
  fake_at_work = false;
  while (atomic_load(&oom_granted) != OOM_UNLIMITED && !patience_is_over(&patience)) fakes_rest();
  assert_int_equal(atomic_load(&oom_granted), OOM_UNLIMITED);
}

static void answer(void) {
  served_answer(&rig, 0, 2);
}

static void cancel(void) {
  rig_cancel(&rig.request);
}

static void none_for_done(void **state) {
  (void)state;
  open_crowded();
  refuse(answer);
  rig_expect_ok(&rig.request);
  served_check(&rig);
  fake_expect(&rig.worker.servers[0], ZPS_FRAME_DONE, 5, 2);
}

static void none_for_abort(void **state) {
  (void)state;
  open_crowded();
  refuse(cancel);
  rig_expect_error(&rig.request, ZPS_ERR_CANCELED, "rank 0 canceled it");
  fake_expect_abort(&rig.worker.servers[0], 5, 2, ZPS_ERR_CANCELED, "rank 0 canceled it");
}

/* The parts of a round: made as a whole, or not at all. */
static zps_err_t round_create(void *ctx) {
  return zps_round_create(&rig.tensor, NULL, ctx);
}

static void round_destroy(void *ctx) {
  zps_round_destroy(*(struct zps_round **)ctx);
}

static void rounds_are_made(void **state) {
  (void)state;
  struct zps_round *round;
  served_open(&rig, &(struct served_config){.worker.n_servers = 2, .rows = 300, .n_parts = 4});
  oom_sweep(round_create, round_destroy, &round, 9);
}

#define SHORT(test) cmocka_unit_test_setup_teardown(test, begin_test, end_test)

int main(void) {
  const struct CMUnitTest tests[] = {
      SHORT(none_for_the_push),       SHORT(none_for_the_sum), SHORT(sums_take_turns), SHORT(two_at_once),
      SHORT(first_come_first_served), SHORT(rounds_are_made),  SHORT(small_rounds),    SHORT(large_rounds),
      SHORT(none_for_done),           SHORT(none_for_abort),
  };
  return cmocka_run_group_tests_name("rounds over servers without memory", tests, NULL, NULL);
}
