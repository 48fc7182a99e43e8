/*
 * All rounds of a job, with a kind of rounds that is none of the product's: finding rounds by tensor and step, looking
 * at them when something happened or a deadline has come, and failing them together need to know no kind.
 */
#include "tests/unit/worker/round/worker_rig.h"

#include "tests/support/logs.h"

enum { TENSOR = 3, OTHER = 4 };

/* Ends when it is told so; quiet when it is told so. */
struct plain {
  struct zps_round base;
  bool is_quiet, sends_again;
};

static struct worker_rig rig;
static struct zps_round_tensor tensor, other;
static struct rig_request requests[5];
static const zenps_grad_t in = {.struct_size = sizeof in};
static char log_of[256]; /* the calls of the kind, in order; the engine thread's */

static struct plain *plain_of(const struct zps_round *round) {
  return (struct plain *)(uintptr_t)round;
}

static void note(const struct zps_round *round, char what) {
  const size_t n = strlen(log_of);
  if (n + 3 > sizeof log_of) return;
  log_of[n] = what;
  log_of[n + 1] = (char)('0' + round->step % 10);
}

/* ------------------------------------------------------------ its machine */

static const struct zps_round_machine_ops machine_ops;

static zps_err_t machine_create(const struct zps_round_machine_plan *plan, struct zps_round_machine **machine_p) {
  struct zps_round_machine *machine = calloc(1, sizeof *machine);
  if (!machine) return ZPS_ERR_NOMEM;
  const zps_err_t err = zps_round_machine_init(machine, &machine_ops, plan, 4);
  if (err == ZPS_OK)
    *machine_p = machine;
  else
    free(machine);
  return err;
}

static void machine_destroy(struct zps_round_machine *machine) {
  zps_round_machine_fini(machine);
  free(machine);
}

static void machine_reset(struct zps_round_machine *machine) {
  (void)machine;
}

static void machine_step(struct zps_round_machine *machine, const struct zps_round_machine_event *event,
                         uint64_t now_ns) {
  switch (event->type) {
    case ZPS_MACHINE_START:
      zps_round_machine_set_state(machine, ZPS_MACHINE_EXCHANGING, now_ns);
      return;
    case ZPS_MACHINE_DECODED:
      zps_round_machine_set_state(machine, ZPS_MACHINE_DONE, now_ns);
      break;
    case ZPS_MACHINE_FAIL:
    case ZPS_MACHINE_TICK:
      machine->code = event->type == ZPS_MACHINE_FAIL ? event->code : ZPS_ERR_TIMEOUT;
      zps_round_machine_set_state(machine, ZPS_MACHINE_FAILED, now_ns);
      break;
    default:
      return;
  }
  zps_round_machine_act(machine, ZPS_MACHINE_DO_COMPLETE, 0);
}

static bool machine_needs(const struct zps_round_machine *machine, uint32_t server) {
  (void)machine, (void)server;
  return false;
}

static const struct zps_round_machine_ops machine_ops = {.name = "plain",
                                                         .create = machine_create,
                                                         .destroy = machine_destroy,
                                                         .reset = machine_reset,
                                                         .step = machine_step,
                                                         .needs = machine_needs};

/* ------------------------------------------------------------ the kind */

static zps_err_t create(struct zps_round *round) {
  const struct zps_round_machine_plan plan = {.n_parts = 1, .n_servers = 1, .n_stripes = 1, .tensor = "plain"};
  return zps_round_machine_create(&machine_ops, &plan, &round->machine);
}

static void destroy(struct zps_round *round) {
  (void)round;
}

static void setup(struct zps_round *round) {
  plain_of(round)->is_quiet = plain_of(round)->sends_again = false;
  zps_round_machine_reset(round->machine,
                          &(struct zps_round_machine_start){.step = round->step, .deadline_ns = round->deadline_ns});
}

static void begin(struct zps_round *round) {
  note(round, 'b');
}

static void act(struct zps_round *round, const struct zps_round_machine_action *action) {
  assert_int_equal(action->type, ZPS_MACHINE_DO_COMPLETE);
  note(round, 'c');
}

static bool send_frames(struct zps_round *round, uint64_t now_ns) {
  (void)now_ns;
  note(round, 's');
  const bool again = plain_of(round)->sends_again;
  plain_of(round)->sends_again = false;
  return again;
}

static void woken(struct zps_round *round) {
  note(round, 'w');
  round->wake_at_ns = ZPS_NEVER;
}

/* Any frame ends it well; one of a rank is not for it. */
static bool take_frame(struct zps_round *round, const struct zps_remote *from, const struct zps_frame *frame) {
  (void)frame;
  note(round, 'f');
  if (from->is_rank) return false;
  zps_round_event(round, ZPS_MACHINE_DECODED, 0, 0, ZPS_OK);
  return true;
}

static void remote_lost(struct zps_round *round, const struct zps_remote *lost, const char *why) {
  (void)lost, (void)why;
  note(round, 'l');
}

static bool known(const struct zps_round *round) {
  (void)round;
  return true;
}

static void explain(struct zps_round *round) {
  if (round->machine->code != ZPS_OK && !round->reason.text[0])
    strcpy(round->reason.text, zps_err_str(round->machine->code));
}

static bool deliver(struct zps_round *round) {
  (void)round;
  return false;
}

static void finish(struct zps_round *round, bool ok) {
  note(round, ok ? 'k' : 'n');
}

static bool quiet(const struct zps_round *round) {
  return plain_of(round)->is_quiet;
}

static void release(struct zps_round *round) {
  note(round, 'r');
}

static const struct zps_round_ops plain_ops = {.size = sizeof(struct plain),
                                               .create = create,
                                               .destroy = destroy,
                                               .setup = setup,
                                               .begin = begin,
                                               .act = act,
                                               .send = send_frames,
                                               .wake = woken,
                                               .frame = take_frame,
                                               .remote_lost = remote_lost,
                                               .known = known,
                                               .explain = explain,
                                               .deliver = deliver,
                                               .finish = finish,
                                               .quiet = quiet,
                                               .release = release};

/* ------------------------------------------------------------ tests */

static int begin_test(void **state) {
  (void)state;
  logs_start();
  memset(requests, 0, sizeof requests);
  memset(log_of, 0, sizeof log_of);
  rig_open(&rig, &(struct rig_config){.n_servers = 2, .world = 2});
  tensor = (struct zps_round_tensor){.job = "run", .name = "t", .id = TENSOR, .rounds = &rig.rounds, .ops = &plain_ops};
  assert_int_equal(zps_row_arrays_pool_create(&tensor.arrays), ZPS_OK);
  other = tensor;
  other.id = OTHER;
  return 0;
}

static int end_test(void **state) {
  (void)state;
  rig_close(&rig);
  zps_row_arrays_pool_close(tensor.arrays);
  logs_finish();
  return 0;
}

static void start(unsigned i, struct zps_round_tensor *of, uint64_t step, uint64_t timeout_ms) {
  assert_int_equal(rig_begin(&rig, &requests[i], of, step, timeout_ms, &in), ZPS_OK);
}

static void look_log(void *ctx) {
  strcpy(ctx, log_of);
}

static void expect_log(const char *wanted) {
  char now[sizeof log_of];
  rig_do(&rig, look_log, now);
  assert_string_equal(now, wanted);
}

static void forget_log(void *ctx) {
  (void)ctx;
  memset(log_of, 0, sizeof log_of);
}

/* Until the first `n` have been looked at since they began. */
static void settle(unsigned n) {
  char now[sizeof log_of], text[3] = "s?";
  for (unsigned i = 0; i < n; i++) {
    text[1] = (char)('0' + requests[i].round->step);
    UNTIL((rig_do(&rig, look_log, now), strstr(now, text) != NULL));
  }
}

static void touch_backwards(void *ctx) {
  (void)ctx;
  forget_log(NULL);
  for (unsigned i = 3; i-- > 0;) zps_round_touch(requests[i].round);
  for (unsigned i = 0; i < 3; i++) zps_round_touch(requests[i].round); /* they are in line */
}

static void finds(void *ctx) {
  (void)ctx;
  assert_ptr_equal(zps_rounds_find(&rig.rounds, TENSOR, 1), requests[0].round);
  assert_ptr_equal(zps_rounds_find(&rig.rounds, OTHER, 1), requests[1].round);
  assert_ptr_equal(zps_rounds_find(&rig.rounds, TENSOR, 2), requests[2].round);
  assert_null(zps_rounds_find(&rig.rounds, OTHER, 2));
  assert_false(zps_rounds_is_alone(&rig.rounds, requests[0].round));
}

static void look_alone(void *ctx) {
  *(bool *)ctx = zps_rounds_is_alone(&rig.rounds, requests[0].round) && !zps_rounds_find(&rig.rounds, OTHER, 1) &&
                 !zps_rounds_find(&rig.rounds, TENSOR, 2);
}

static void be_quiet(void *ctx) {
  struct rig_request *request = ctx;
  plain_of(request->round)->is_quiet = true;
  zps_round_touch(request->round);
}

static void end_well(void *ctx) {
  struct rig_request *request = ctx;
  plain_of(request->round)->is_quiet = true;
  zps_round_event(request->round, ZPS_MACHINE_DECODED, 0, 0, ZPS_OK);
}

static void found_by_tensor_and_step(void **state) {
  (void)state;
  bool alone;
  start(0, &tensor, 1, RIG_TIMEOUT_MS);
  start(1, &other, 1, RIG_TIMEOUT_MS);
  start(2, &tensor, 2, RIG_TIMEOUT_MS);
  rig_do(&rig, finds, NULL);
  for (unsigned i = 1; i < 3; i++) {
    rig_do(&rig, end_well, &requests[i]);
    rig_expect_ok(&requests[i]);
    rig_expect_released(&requests[i]);
  }
  rig_do(&rig, look_alone, &alone);
  assert_true(alone);
}

/* In the order in which something happened to them, each once. */
static void settled_in_order(void **state) {
  (void)state;
  for (unsigned i = 0; i < 3; i++) start(i, &tensor, i, RIG_TIMEOUT_MS);
  settle(3);
  rig_do(&rig, touch_backwards, NULL);
  char now[sizeof log_of];
  do rig_do(&rig, look_log, now); /* each is an event, with a tick behind it */
  while (strlen(now) < 6);
  assert_string_equal(now, "s2s1s0");
}

static void send_twice(void *ctx) {
  (void)ctx;
  forget_log(NULL);
  plain_of(requests[0].round)->sends_again = true;
  zps_round_touch(requests[0].round);
  zps_round_touch(requests[1].round);
}

/* Frames that wait for credit are tried again by the next tick, not by this one. */
static void frames_that_are_left(void **state) {
  (void)state;
  char now[sizeof log_of];
  start(0, &tensor, 0, RIG_TIMEOUT_MS);
  start(1, &tensor, 1, RIG_TIMEOUT_MS);
  settle(2);
  rig_do(&rig, send_twice, NULL);
  do rig_do(&rig, look_log, now);
  while (strlen(now) < 6);
  assert_string_equal(now, "s0s1s0");
}

static void deadlines(void **state) {
  (void)state;
  const uint64_t begun_ns = zps_clock_ns();
  start(0, &tensor, 0, RIG_TIMEOUT_MS);
  start(1, &tensor, 1, 150);
  start(2, &tensor, 2, 50);
  rig_expect_error(&requests[2], ZPS_ERR_TIMEOUT, "deadline passed");
  rig_expect_error(&requests[1], ZPS_ERR_TIMEOUT, "deadline passed");
  assert_true(zps_clock_ns() - begun_ns >= 150 * ZPS_NS_PER_MS);
  assert_int_equal(requests[2].number, 0);
  assert_int_equal(requests[1].number, 1);
  assert_false(atomic_load(&requests[0].over));
  assert_false(atomic_load(&requests[2].released)); /* not quiet */
  for (unsigned i = 1; i < 3; i++) {
    rig_do(&rig, be_quiet, &requests[i]);
    rig_expect_released(&requests[i]);
  }
}

static void wake_soon(void *ctx) {
  (void)ctx;
  forget_log(NULL);
  requests[0].round->wake_at_ns = zps_clock_ns() + 20 * ZPS_NS_PER_MS;
  zps_rounds_due(&rig.rounds, requests[0].round->wake_at_ns);
}

static void woken_when_it_wants_to_be(void **state) {
  (void)state;
  char now[sizeof log_of] = "";
  start(0, &tensor, 0, RIG_TIMEOUT_MS);
  settle(1);
  rig_do(&rig, wake_soon, NULL);
  UNTIL((rig_do(&rig, look_log, now), strcmp(now, "w0") == 0));
}

static void frames_and_losses(void **state) {
  (void)state;
  logs_expect(ZPS_LOG_WARN, "rank 1 (host node-1) is lost: alas");
  start(0, &tensor, 1, RIG_TIMEOUT_MS);
  start(1, &other, 1, RIG_TIMEOUT_MS);
  fake_abort(&rig.servers[0], OTHER, 2, ZPS_ERR_NOMEM, ""); /* of no round */
  fake_abort(&rig.servers[0], OTHER, 1, ZPS_ERR_NOMEM, "");
  rig_expect_ok(&requests[1]);
  assert_true(requests[1].serving); /* it is not quiet */
  assert_false(atomic_load(&requests[0].over));
  settle(1);
  rig_do(&rig, forget_log, NULL);
  rig_lose(&rig, &rig.plane.ranks[1], "alas");
  rig_lose(&rig, &rig.plane.ranks[1], "again");
  char now[sizeof log_of];
  rig_do(&rig, look_log, now);
  assert_int_equal(strlen(now), 4); /* both are told, once */
  assert_true(now[0] == 'l' && now[2] == 'l');
  rig_do(&rig, be_quiet, &requests[1]);
  rig_expect_released(&requests[1]);
}

static void look_unexpected(void *ctx) {
  *(unsigned *)ctx = rig.rounds.unexpected.n_rounds;
}

/* A frame of a rank that a round does not take is kept for its next attempt; a server's is not. */
static void kept_for_later(void **state) {
  (void)state;
  unsigned n = 0;
  start(0, &tensor, 1, RIG_TIMEOUT_MS);
  struct zps_frame frame = {.header.type = ZPS_FRAME_PEER,
                            .u.round = {.tensor = TENSOR, .step = 1, .n_slices = 1, .slices = {{.is_inline = true}}}};
  fake_send(&rig.ranks[1], &frame);
  UNTIL((rig_do(&rig, look_unexpected, &n), n == 1));
  fake_abort(&rig.ranks[1], OTHER, 8, ZPS_ERR_NOMEM, "");
  UNTIL((rig_do(&rig, look_unexpected, &n), n == 2));
}

static void fail_all(void *ctx) {
  (void)ctx;
  zps_rounds_fail(&rig.rounds, &(struct zps_frame_abort){.code = ZPS_ERR_PEER_LOST, .text = "rank 1 is dead"});
  zps_rounds_fail(&rig.rounds, &(struct zps_frame_abort){.code = ZPS_ERR_INTERNAL, .text = "the first counts"});
}

static void log_past(void *ctx) {
  (void)ctx;
  zps_past_log(&rig.rounds, zps_clock_ns());
}

/* The log has the rounds of a failed job. */
static void told_when_the_job_fails(void **state) {
  (void)state;
  rig_do(&rig, log_past, NULL); /* nothing, and no line says so */
  assert_int_equal(ZPS_PAST_KEPT, 64);
  logs_expect(ZPS_LOG_WARN, "last rounds, the newest first: t step 66 ");
  logs_expect(ZPS_LOG_WARN, "; t step 3 ");
  logs_expect(ZPS_LOG_WARN, "rounds under way: ");
  logs_allow(ZPS_LOG_WARN, "last rounds, the newest first: ");
  for (uint64_t step = 1; step < ZPS_PAST_KEPT + 3; step++) {
    start(0, &tensor, step, RIG_TIMEOUT_MS);
    rig_do(&rig, end_well, &requests[0]);
    rig_expect_ok(&requests[0]);
    rig_expect_released(&requests[0]);
  }
  start(0, &tensor, ZPS_PAST_KEPT + 3, RIG_TIMEOUT_MS);
  rig_do(&rig, log_past, NULL);
}

static void failed_together(void **state) {
  (void)state;
  for (unsigned i = 0; i < 3; i++) start(i, &tensor, i, RIG_TIMEOUT_MS);
  rig_do(&rig, end_well, &requests[1]);
  rig_expect_ok(&requests[1]);
  rig_do(&rig, fail_all, NULL);
  rig_expect_error(&requests[0], ZPS_ERR_PEER_LOST, "rank 1 is dead");
  rig_expect_error(&requests[2], ZPS_ERR_PEER_LOST, "rank 1 is dead");
  rig_expect_ok(&requests[1]);
  rig_do(&rig, forget_log, NULL);
  start(3, &tensor, 3, RIG_TIMEOUT_MS);
  rig_expect_error(&requests[3], ZPS_ERR_PEER_LOST, "rank 1 is dead"); /* at once: it does not begin */
  char now[sizeof log_of];
  rig_do(&rig, look_log, now);
  assert_memory_equal(now, "c3s3n3", 6);
}

static unsigned n_idle;

static uint64_t idle(void *ctx, uint64_t now_ns) {
  ++*(unsigned *)ctx;
  return n_idle < 3 ? now_ns + ZPS_NS_PER_MS : ZPS_NEVER;
}

static void set_idle(void *ctx) {
  (void)ctx;
  rig.rounds.idle = idle;
  rig.rounds.idle_ctx = &n_idle;
  rig.rounds.idle_at_ns = 0;
}

static void look_idle(void *ctx) {
  *(unsigned *)ctx = n_idle;
}

static void now_and_then(void **state) {
  (void)state;
  unsigned n = 0;
  n_idle = 0;
  rig_do(&rig, set_idle, NULL);
  UNTIL((rig_do(&rig, look_idle, &n), n == 3));
  rig_do(&rig, look_idle, &n);
  assert_int_equal(n, 3);
}

/* A round used again is as new. */
static void used_again(void **state) {
  (void)state;
  for (uint64_t step = 1; step < 4; step++) {
    start(0, &tensor, step, RIG_TIMEOUT_MS);
    settle(1);
    rig_do(&rig, end_well, &requests[0]);
    rig_expect_ok(&requests[0]);
    rig_expect_released(&requests[0]);
    assert_false(requests[0].serving);
  }
  expect_log("b1s1c1s1k1r1b2s2c2s2k2r2b3s3c3s3k3r3");
}

#define ROUNDS(test) cmocka_unit_test_setup_teardown(test, begin_test, end_test)

int main(void) {
  const struct CMUnitTest tests[] = {
      ROUNDS(found_by_tensor_and_step),
      ROUNDS(settled_in_order),
      ROUNDS(frames_that_are_left),
      ROUNDS(deadlines),
      ROUNDS(woken_when_it_wants_to_be),
      ROUNDS(frames_and_losses),
      ROUNDS(kept_for_later),
      ROUNDS(told_when_the_job_fails),
      ROUNDS(failed_together),
      ROUNDS(now_and_then),
      ROUNDS(used_again),
  };
  return cmocka_run_group_tests_name("all rounds of a job", tests, NULL, NULL);
}
