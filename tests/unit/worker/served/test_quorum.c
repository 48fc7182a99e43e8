/* Rounds with a quorum, as a rank sees them: it learns which ranks are late, and takes that to another owner when the
 * server is lost. */
#include "worker/round/decided.h"

#include "proto/control_change.h"
#include "tests/unit/worker/served/served_rig.h"

#include "tests/support/logs.h"
#include "tests/support/views.h"

enum { PARTS = 4, EPOCH = 2, OWN = 1, OTHER = 2 };

static struct served_rig rig;
static uint32_t owners_before[PARTS]; /* server 1 owns all, as one server does */

/* The word to the coordinator. */
static struct {
  atomic_uint n;
  uint32_t n_steps, n_decided, late[4]; /* late: of the first decided step */
  uint32_t n_late;
  uint64_t first; /* decided step */
} said;

static void mapped(void *ctx, const struct zps_job_steps *steps) {
  (void)ctx;
  const struct zps_tensor_steps *const of = steps->n_tensors > 0 ? steps->tensors : NULL;
  said.n_steps = of ? of->n_steps : 0;
  said.n_decided = of ? of->n_decided : 0;
  said.n_late = said.n_decided > 0 ? of->decided[0].n_late : 0;
  said.first = said.n_decided > 0 ? of->decided[0].step : 0;
  for (uint32_t i = 0; i < said.n_late && i < 4; i++) said.late[i] = of->decided[0].late[i];
  atomic_fetch_add(&said.n, 1);
}

static struct zps_round_tensor *tensor_of(void *ctx, uint32_t tensor) {
  (void)ctx;
  return tensor == rig.tensor.id ? &rig.tensor : NULL;
}

static void set_replay(void *ctx) {
  (void)ctx;
  zps_replay_init(&rig.worker.rounds, 1 << 20, 0);
  rig.worker.rounds.replay.mapped = mapped;
  rig.worker.rounds.tensor_of = tensor_of;
}

/* As by ZENPS_REPLAY_MEMORY=0. */
static void keep_none(void *ctx) {
  (void)ctx;
  rig.worker.rounds.replay.limit_bytes = 0;
}

static int begin_test(void **state) {
  (void)state;
  logs_start();
  logs_allow(ZPS_LOG_WARN, "server 1 (ps-1) is lost: the coordinator says so");
  served_open(&rig,
              &(struct served_config){.worker.n_servers = 2, .worker.rank = OWN, .rows = 90000, .n_parts = PARTS});
  served_draw(&rig, 2);
  rig.worker.plane.world = rig.tensor.world = 3;
  rig.tensor.quorum = 2;
  for (uint32_t p = 0; p < PARTS; p++) rig.owners[p] = owners_before[p] = 1;
  rig.tensor.owners = owners_before;
  rig.worker.keeps = true;
  memset(&said, 0, sizeof said);
  rig_do(&rig.worker, set_replay, NULL);
  return 0;
}

static int end_test(void **state) {
  (void)state;
  served_close(&rig);
  logs_finish();
  return 0;
}

static void say_closed(uint32_t s, uint64_t step, uint32_t late) {
  struct zps_frame frame = {.header.type = ZPS_FRAME_CLOSED, .u.closed = {.tensor = 5, .step = step}};
  zps_frame_closed_add(&frame.u.closed, late);
  fake_send(rig.at[s], &frame);
}

static void begin_pushed(uint64_t step) {
  served_begin(&rig, &rig.request, step, RIG_TIMEOUT_MS);
  served_take(&rig, 1, step);
}

static void map_run(void *ctx) {
  struct zps_place_image places[2];
  const struct zps_view_image view = view_of(places, EPOCH, 2, "ix");
  (void)ctx;
  zps_replay_view(&rig.worker.rounds, &view);
}

/* Server 1 is lost. */
static void map(void) {
  for (uint32_t p = 0; p < PARTS; p++) rig.owners[p] = 0;
  rig.tensor.owners = rig.owners;
  rig.servers[0].n_came = 0;
  zps_link_set_epoch(rig.worker.servers[0].link, EPOCH);
  rig_do(&rig.worker, map_run, NULL);
  UNTIL(atomic_load(&said.n) == 1);
}

static void steps_run(void *ctx) {
  zps_replay_steps(&rig.worker.rounds, ctx);
}

/* All ranks are told that the step is decided, without rank `late`. */
static void play_again(uint64_t step, uint32_t late) {
  struct zps_job_steps steps = {.job_id = RIG_JOB, .epoch = EPOCH};
  assert_int_equal(zps_job_steps_decide(&steps, 5, step), ZPS_OK);
  assert_int_equal(zps_job_steps_decide_late(&steps, 5, step, late), ZPS_OK);
  rig_do(&rig.worker, steps_run, &steps);
  zps_job_steps_fini(&steps);
}

static void expect_closed(uint64_t step, uint32_t late) {
  struct fake_frame *const frame = fake_take(&rig.worker.servers[0], ZPS_FRAME_CLOSED, 5, step);
  assert_int_equal(frame->frame.u.closed.n_bytes, 1);
  assert_int_equal(frame->frame.u.closed.late[0], 1u << late);
  free(frame);
}

/* A whole step, which closes without rank `late`. */
static void end_step(uint64_t step, uint32_t late) {
  begin_pushed(step);
  say_closed(1, step, late);
  served_answer(&rig, 1, step);
  rig_expect_ok(&rig.request);
  fake_expect(&rig.worker.servers[1], ZPS_FRAME_DONE, 5, step);
  rig_expect_released(&rig.request);
}

static bool comes_before(enum zps_frame_type first, enum zps_frame_type second) {
  const struct fake_frame *frame = rig.worker.servers[0].frames;
  while (frame && frame->frame.header.type != first && frame->frame.header.type != second) frame = frame->next;
  return frame && frame->frame.header.type == first;
}

/* The new owner hears that this rank has a sum of the step, and its push no more; first, how the step was decided. */
static void expect_refused(uint64_t step, uint32_t late) {
  UNTIL(fake_has(&rig.worker.servers[0], ZPS_FRAME_ABORT, 5, step));
  assert_true(comes_before(ZPS_FRAME_CLOSED, ZPS_FRAME_ABORT));
  struct fake_frame *const frame = fake_take(&rig.worker.servers[0], ZPS_FRAME_ABORT, 5, step);
  assert_int_equal(frame->frame.u.abort.code, ZPS_ERR_SERVER_LOST);
  assert_non_null(strstr(frame->frame.u.abort.text, "rank 1 keeps its push of this step no longer"));
  free(frame);
  expect_closed(step, late);
}

/* In time, or late: it gets the sum either way, and knows. */
static void knows_who_is_late(void **state) {
  (void)state;
  rig.worker.keeps = false;
  for (uint64_t step = 1; step <= 3; step++) {
    const uint32_t late = step == 1 ? OWN : OTHER;
    begin_pushed(step);
    if (step < 3) say_closed(1, step, late);
    served_answer(&rig, 1, step);
    rig_expect_ok(&rig.request);
    served_check(&rig);
    assert_int_equal(rig.request.stats.late, step == 1);
    fake_expect(&rig.worker.servers[1], ZPS_FRAME_DONE, 5, step);
    rig_expect_released(&rig.request);
  }
}

/* It has a decision, and not the sum. The new owner hears of the decision ahead of the push. */
static void lost_after_it_was_decided(void **state) {
  (void)state;
  begin_pushed(1);
  say_closed(1, 1, OTHER);
  served_answer_part(&rig, 1, 1, 0);
  UNTIL(rig_reads(&rig.worker, &rig.request) == 0);
  fakes_turn();
  map();
  assert_true(said.n_steps == 1 && said.n_decided == 1);
  assert_true(said.n_late == 1 && said.late[0] == OTHER);
  play_again(1, OTHER);
  served_take(&rig, 0, 1);
  expect_closed(1, OTHER);
  served_answer(&rig, 0, 1);
  rig_expect_ok(&rig.request);
  served_check(&rig);
}

/* Another rank has the decision. It is for a step that this rank begins later, too. */
static void decided_elsewhere(void **state) {
  (void)state;
  begin_pushed(1);
  map();
  assert_true(said.n_steps == 1 && said.n_decided == 0);
  play_again(1, OWN);
  served_take(&rig, 0, 1);
  expect_closed(1, OWN);
  say_closed(0, 1, OWN);
  served_answer(&rig, 0, 1);
  rig_expect_ok(&rig.request);
  assert_int_equal(rig.request.stats.late, 1);
}

static void decided_before_it_began(void **state) {
  (void)state;
  struct rig_request next = {0};
  map();
  assert_int_equal(said.n_steps, 0);
  play_again(7, OWN);
  served_begin(&rig, &next, 7, RIG_TIMEOUT_MS);
  served_take(&rig, 0, 7);
  expect_closed(7, OWN);
  served_answer(&rig, 0, 7);
  rig_expect_ok(&next);
  assert_int_equal(next.stats.late, 1);
  /* What no rank can push again is refused at once, and not awaited. */
  served_begin(&rig, &rig.request, 6, RIG_TIMEOUT_MS);
  rig_expect_error(&rig.request, ZPS_ERR_STALE,
                   "too late: the step was closed without this rank, and its sum is lost with a server");
  served_close(&rig); /* before `next` goes */
}

/* No push is retained. The decisions are, those of the last 16 steps: who lacks the sum of one must not get another. */
static void lost_without_pushes(void **state) {
  (void)state;
  enum { STEPS = ZPS_DECIDED_KEPT + 4 };
  rig_do(&rig.worker, keep_none, NULL);
  for (uint64_t step = 1; step <= STEPS; step++) end_step(step, step == STEPS ? OWN : OTHER);
  map();
  assert_true(said.n_steps == ZPS_DECIDED_KEPT && said.n_decided == ZPS_DECIDED_KEPT);
  assert_int_equal(said.first, STEPS - ZPS_DECIDED_KEPT + 1);
  assert_true(said.n_late == 1 && said.late[0] == OTHER);
  play_again(STEPS - 1, OTHER);
  expect_refused(STEPS - 1, OTHER);
  assert_false(fake_has(&rig.worker.servers[0], ZPS_FRAME_ABORT, 5, STEPS));
}

/* It was late in the step, so nobody waits for its push. The owner knows it from the decision, which comes first. */
static void lost_without_the_push_of_a_late_rank(void **state) {
  (void)state;
  rig_do(&rig.worker, keep_none, NULL);
  end_step(1, OWN);
  map();
  assert_true(said.n_decided == 1 && said.n_late == 1 && said.late[0] == OWN);
  play_again(1, OWN);
  expect_refused(1, OWN);
}

/* Other ranks have steps decided. This one's is older: none of them can push it again. */
static void decided_beyond_a_step_under_way(void **state) {
  (void)state;
  begin_pushed(1);
  map();
  assert_true(said.n_steps == 1 && said.n_decided == 0);
  play_again(7, OTHER);
  rig_expect_error(&rig.request, ZPS_ERR_STALE,
                   "too late: the step was closed without this rank, and its sum is lost with a server");
}

static void servers_that_contradict_themselves(void **state) {
  (void)state;
  static const uint32_t wrong[] = {OWN, 3, 7, 64}; /* the job has ranks 0 to 2 */
  for (uint64_t step = 1; step <= 4; step++) {
    begin_pushed(step);
    if (step == 1) say_closed(1, step, OTHER);
    say_closed(1, step, wrong[step - 1]);
    rig_expect_error(&rig.request, ZPS_ERR_PROTOCOL,
                     "server 1 (ps-1) has other late ranks than were told before, or some "
                     "that the job does not have");
    fake_abort(&rig.worker.servers[1], 5, step, ZPS_ERR_PROTOCOL, "so be it");
    rig_expect_released(&rig.request);
  }
  rig.tensor.quorum = 0;
  begin_pushed(5);
  say_closed(1, 5, OTHER);
  rig_expect_error(&rig.request, ZPS_ERR_PROTOCOL, "server 1 (ps-1) closes a round of a tensor without a quorum");
}

/* Servers name late ranks by their number in the job, also those of a group. */
static void late_in_a_group(void **state) {
  (void)state;
  rig.worker.keeps = false;
  rig.worker.plane.world = 10;
  begin_pushed(1);
  say_closed(1, 1, 9);
  served_answer(&rig, 1, 1);
  rig_expect_ok(&rig.request);
  fake_expect(&rig.worker.servers[1], ZPS_FRAME_DONE, 5, 1);
  rig_expect_released(&rig.request);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, begin_test, end_test)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(knows_who_is_late),
      TEST(lost_after_it_was_decided),
      TEST(decided_elsewhere),
      TEST(decided_before_it_began),
      TEST(lost_without_pushes),
      TEST(lost_without_the_push_of_a_late_rank),
      TEST(decided_beyond_a_step_under_way),
      TEST(servers_that_contradict_themselves),
      TEST(late_in_a_group),
  };
  return cmocka_run_group_tests_name("served quorum", tests, NULL, NULL);
}
