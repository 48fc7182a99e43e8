/* A server is lost while so many rounds are in flight that the word to the coordinator cannot name them all. */
#include "proto/control_change.h"
#include "tests/unit/worker/served/served_rig.h"
#include "worker/round/replay.h"

#include "tests/support/logs.h"
#include "tests/support/views.h"

enum { EPOCH = 2, MANY = ZPS_MAP_STEPS_MAX + 1 };

static struct served_rig rig;
static struct rig_request many[MANY];
static atomic_uint n_said, n_too_many;

static void mapped(void *ctx, const struct zps_job_steps *steps) {
  (void)ctx;
  n_too_many += steps && steps->epoch == EPOCH && steps->n_tensors == 0 && steps->is_too_many;
  n_said++;
}

static void set_replay(void *ctx) {
  (void)ctx;
  zps_replay_init(&rig.worker.rounds, 1 << 20, 0);
  rig.worker.rounds.replay.mapped = mapped;
}

static void map_run(void *ctx) {
  struct zps_place_image places[2];
  const struct zps_view_image view = view_of(places, EPOCH, 2, "ix");
  (void)ctx;
  zps_replay_view(&rig.worker.rounds, &view);
}

static void steps_run(void *ctx) {
  struct zps_job_steps none = {.job_id = RIG_JOB, .epoch = EPOCH};
  (void)ctx;
  zps_replay_steps(&rig.worker.rounds, &none);
}

/* All rounds fail, and the coordinator hears why, so that it fails the job for the other ranks. */
static void too_many_to_be_named(void **state) {
  (void)state;
  logs_start();
  logs_allow(ZPS_LOG_WARN, "server 1 (ps-1) is lost: the coordinator says so");
  served_open(&rig, &(struct served_config){.worker.n_servers = 2, .rows = 64, .n_parts = 2});
  served_draw(&rig, 2);
  rig_do(&rig.worker, set_replay, NULL);
  for (unsigned i = 0; i < MANY; i++) served_begin(&rig, &many[i], 1 + i, RIG_TIMEOUT_MS);
  for (uint32_t s = 0; s < 2; s++) served_take(&rig, s, MANY);
  rig_do(&rig.worker, map_run, NULL);
  UNTIL(n_said > 0);
  assert_int_equal(n_too_many, 1);
  for (unsigned i = 0; i < MANY; i++) {
    UNTIL(atomic_load(&many[i].over));
    assert_int_equal(many[i].error.status, ZPS_ERR_SERVER_LOST);
    assert_non_null(
        strstr(many[i].error.text,
               "has more steps, in flight or decided, than ranks can begin anew: have at most 8192 tensors, "
               "128 steps of each, and 131072 steps and late ranks of decided steps in all"));
  }
  rig.owners[1] = 0;
  rig_do(&rig.worker, steps_run, NULL); /* No other rank has a round, either. */
  assert_int_equal(n_said, 1);
  served_close(&rig);
  logs_finish();
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(too_many_to_be_named)};
  return cmocka_run_group_tests_name("served replay of many rounds", tests, NULL, NULL);
}
