/* Elastic jobs: ranks die, come and are late, and the others go on with sums of who is there. */
#include <signal.h>

#include <zenps/elastic.h>

#include "tests/integration/api_test.h"

enum {
  PROCESSES_MAX = 6,
  STEPS_EACH = 6,
  MAIN = 0 /* of the words: steps of process 0 */,
  PID = 1 /* of the one that has stopped */,
  DYING = 2 /* how many have come to where they die */
};

enum act { NOTHING, DIES, STOPS, LATE, KICKED };

/* What a process does when all have come, or before it comes. */
struct plan {
  int min_world, max_world;
  uint64_t join_wait_ms;
  enum act acts[PROCESSES_MAX];
  unsigned generations;
  int worlds[4]; /* of each generation, but that a process which is slow to come makes one more */
  const char *scheme;
};

static const struct spec dense = {.rows = 3000, .width = 2, .dtype = ZENPS_F32, .density = 0.05, .odd_values = true};
/* Whose sums are exact in any order. */
static const struct spec exact = {.rows = 3000, .width = 2, .dtype = ZENPS_F32, .density = 0.05, .few_values = true};

struct trainer {
  struct rank *rank;
  const struct plan *plan;
  int process; /* its number, which it keeps */
  zenps_generation_t generation;
  bool acted;
  const struct spec *spec;
  zenps_tensor_t *tensor;
  uint64_t step; /* completed */
};

/* The state that all go on with is the source's: here, how far it is. */
static zenps_status_t take_state(struct trainer *trainer) {
  struct rank *const rank = trainer->rank;
  uint64_t step = trainer->step;
  CHECK(trainer->generation.rank == zenps_rank(rank->zenps));
  CHECK(trainer->generation.world == zenps_world(rank->zenps));
  rank->rank = trainer->generation.rank;
  rank->world = trainer->generation.world;
  zenps_tensor_options_t options;
  ZENPS_TENSOR_OPTIONS_INIT(&options);
  options.scheme = trainer->plan->scheme ? trainer->plan->scheme : "balanced";
  zenps_status_t status = zenps_tensor_open(rank->zenps, "t", trainer->spec->rows, trainer->spec->width,
                                            trainer->spec->dtype, &options, &trainer->tensor);
  if (status != ZENPS_OK) return status;
  status = zenps_broadcast(rank->zenps, &step, sizeof step, trainer->generation.source);
  if (status != ZENPS_OK) return status;
  CHECK(step == trainer->generation.step);
  CHECK(trainer->generation.rank != trainer->generation.source || step == trainer->step);
  trainer->step = step;
  return ZENPS_OK;
}

static zenps_status_t try_step(struct trainer *trainer) {
  zenps_grad_t in, out;
  zenps_request_t *request = NULL;
  grad_make(trainer->spec, trainer->rank->rank, trainer->step + 1, &in);
  out_make(trainer->spec, &in, &out);
  zenps_status_t status = zenps_allreduce(trainer->tensor, trainer->step + 1, &in, &out, &request);
  if (status == ZENPS_OK) status = zenps_wait(request, SOON_MS);
  rank_moves(trainer->rank);
  if (status == ZENPS_OK) {
    out_check(trainer->spec, trainer->rank->world, trainer->step + 1, &out);
    trainer->step++;
  }
  zenps_request_free(request);
  out_free(trainer->spec, &in, &out);
  grad_free(&in);
  return status;
}

/* This process, as an administrator does it. */
static void kick(const struct rank *rank) {
  char line[600];
  const char *const ctl = getenv("ZENPSCTL");
  zenps_options_t options;
  rank_options(rank, &options);
  snprintf(line, sizeof line, "%s -e %s kick %s %d --reason drill >/dev/null", ctl ? ctl : "zenpsctl",
           options.coordinator, options.job, rank->rank);
  CHECK(system(line) == 0);
}

/* All that do, at once: one whose step failed by another's death would be in the next generation, and live. */
static void die(const struct trainer *trainer) {
  unsigned n = 0;
  for (unsigned i = 0; i < sizeof trainer->plan->acts / sizeof trainer->plan->acts[0]; i++)
    n += trainer->plan->acts[i] == DIES;
  atomic_fetch_add(&trainer->rank->words[DYING], 1);
  rank_await(trainer->rank, DYING, n);
  kill(getpid(), SIGKILL);
}

static void act(struct trainer *trainer) {
  const enum act act = trainer->plan->acts[trainer->process];
  if (trainer->process == 0) atomic_store(&trainer->rank->words[MAIN], (unsigned)trainer->step);
  const unsigned stopped = atomic_load(&trainer->rank->words[PID]);
  if (trainer->generation.world == trainer->plan->worlds[1] && stopped > 0 && trainer->process == 0)
    kill((pid_t)stopped, SIGCONT);
  if (trainer->acted || trainer->generation.world != trainer->plan->worlds[0] || trainer->step < STEPS_EACH) return;
  trainer->acted = true;
  rank_await(trainer->rank, MAIN, STEPS_EACH); /* process 0 has this step's sum, too; so those that are late come now */
  if (act == DIES) die(trainer);
  if (act == KICKED) kick(trainer->rank);
  if (act != STOPS) return;
  atomic_store(&trainer->rank->words[PID], (unsigned)getpid());
  raise(SIGSTOP);
}

/* Of one generation, until it is over: true: it is the last one, and all its steps are done. */
static bool train(struct trainer *trainer) {
  const struct plan *const plan = trainer->plan;
  zenps_status_t status = take_state(trainer);
  const bool is_last = trainer->generation.world == plan->worlds[plan->generations - 1] &&
                       trainer->generation.number >= plan->generations;
  while (status == ZENPS_OK) {
    if (is_last && trainer->step >= trainer->generation.step + STEPS_EACH) return true;
    if (zenps_job_changed(trainer->rank->zenps)) return false;
    act(trainer);
    status = try_step(trainer);
  }
  CHECK(zenps_status_recoverable(status));
  return false;
}

static void open_elastic(struct rank *rank, const struct plan *plan) {
  zenps_options_t options;
  rank_options(rank, &options);
  options.min_world = plan->min_world;
  options.max_world = plan->max_world;
  options.join_wait_ms = plan->join_wait_ms;
  CHECK_OK(zenps_open(&options, &rank->zenps));
}

static void trains(struct rank *rank) {
  struct trainer trainer = {.rank = rank,
                            .plan = rank->arg,
                            .process = rank->rank,
                            .spec = ((const struct plan *)rank->arg)->scheme ? &exact : &dense,
                            .generation = {.struct_size = sizeof(zenps_generation_t)}};
  const struct plan *const plan = trainer.plan;
  if (plan->acts[trainer.process] == LATE) rank_await(rank, MAIN, STEPS_EACH);
  open_elastic(rank, plan);
  CHECK_OK(zenps_job_generation(rank->zenps, &trainer.generation));
  for (;;) {
    CHECK(trainer.generation.number > 0 && trainer.generation.number < 12);
    if (train(&trainer)) break;
    const zenps_status_t status = zenps_job_next(&rank->zenps, trainer.step, &trainer.generation);
    if (trainer.acted && plan->acts[trainer.process] == KICKED) {
      CHECK(status == ZENPS_ERR_REFUSED && strstr(zenps_last_error()->text, "an administrator expelled it: drill"));
      break;
    }
    CHECK_OK(status);
  }
  zenps_close(rank->zenps); /* others may see that it has left, when they have done all their steps */
}

static void run(int processes, const struct plan *plan, unsigned killed) {
  ranks_run(cluster_shared(), processes, trains, plan, killed);
}

static void test_elastic_goes_on(void **state) {
  (void)state;
  run(3,
      &(struct plan){.min_world = 2,
                     .max_world = 3,
                     .join_wait_ms = 1000,
                     .acts = {NOTHING, DIES},
                     .generations = 2,
                     .worlds = {3, 2}},
      1 << 1);
}

static void test_elastic_without_one_that_was_kicked(void **state) {
  (void)state;
  run(3,
      &(struct plan){.min_world = 2,
                     .max_world = 3,
                     .join_wait_ms = 1000,
                     .acts = {NOTHING, KICKED},
                     .generations = 2,
                     .worlds = {3, 2}},
      0);
}

static void test_elastic_between_workers(void **state) {
  (void)state;
  run(4,
      &(struct plan){.min_world = 2,
                     .max_world = 4,
                     .join_wait_ms = 1000,
                     .acts = {NOTHING, DIES, NOTHING, DIES},
                     .generations = 2,
                     .worlds = {4, 2},
                     .scheme = "recursive-doubling"},
      1 << 1 | 1 << 3);
}

static void test_elastic_grows(void **state) {
  (void)state;
  run(3,
      &(struct plan){.min_world = 1,
                     .max_world = 3,
                     .join_wait_ms = 500,
                     .acts = {NOTHING, NOTHING, LATE},
                     .generations = 2,
                     .worlds = {2, 3}},
      0);
}

/* A process waits already for a place when one is free: nobody waits for more. */
static void test_elastic_replaces(void **state) {
  (void)state;
  const uint64_t before = now_ms();
  run(4,
      &(struct plan){.min_world = 2,
                     .max_world = 3,
                     .join_wait_ms = 250000,
                     .acts = {NOTHING, DIES, NOTHING, LATE},
                     .generations = 2,
                     .worlds = {3, 3}},
      1 << 1);
  assert_true(now_ms() - before < 250000);
}

/* The others have gone on without it when it wakes up: it is let in again, as a new one. */
static void test_elastic_wakes_up(void **state) {
  (void)state;
  struct cluster cluster;
  cluster_start_with(&cluster, 2,
                     (const char *const[]){"ZENPS_CONTROL_DEAD=4s", "ZENPS_CONTROL_HEARTBEAT=500ms", NULL});
  ranks_run(&cluster, 3, trains,
            &(struct plan){.min_world = 1,
                           .max_world = 3,
                           .join_wait_ms = 1000,
                           .acts = {NOTHING, STOPS},
                           .generations = 3,
                           .worlds = {3, 2, 3}},
            0);
  cluster_stop(&cluster);
}

static void is_alone(struct rank *rank) {
  const struct plan *const plan = rank->arg;
  zenps_generation_t generation = {.struct_size = sizeof generation};
  rank->join_timeout_ms = 4000;
  open_elastic(rank, plan);
  if (rank->rank == 1) kill(getpid(), SIGKILL);
  CHECK_STATUS(zenps_barrier(rank->zenps), ZENPS_ERR_PEER_LOST);
  CHECK(zenps_status_recoverable(ZENPS_ERR_PEER_LOST) && !zenps_status_recoverable(ZENPS_ERR_INVALID));
  CHECK_STATUS(zenps_job_next(&rank->zenps, 7, &generation), ZENPS_ERR_MISSING);
  CHECK_SAYS(zenps_last_error()->text, "1 ranks were there of the 2 that it needs at least");
  CHECK(rank->zenps == NULL);
  CHECK_STATUS(zenps_job_next(&rank->zenps, 7, &generation), ZENPS_ERR_INVALID);
}

static void test_elastic_too_few(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 2, is_alone, &(struct plan){.min_world = 2, .max_world = 2, .join_wait_ms = 100}, 1 << 1);
}

static void is_refused(struct rank *rank) {
  zenps_options_t options;
  zenps_generation_t generation = {.struct_size = sizeof generation};
  rank_options(rank, &options);
  options.min_world = 3;
  options.max_world = 2;
  CHECK_STATUS(zenps_open(&options, &rank->zenps), ZENPS_ERR_INVALID);
  CHECK_SAYS(zenps_last_error()->text, "at least 3 and at most 2 ranks");
  options.min_world = -1;
  CHECK_STATUS(zenps_open(&options, &rank->zenps), ZENPS_ERR_INVALID);
  rank_open(rank);
  CHECK_OK(zenps_job_generation(rank->zenps, &generation));
  CHECK(generation.number == 0 && generation.rank == 0 && generation.world == 1);
  CHECK_STATUS(zenps_job_next(&rank->zenps, 0, &generation), ZENPS_ERR_INVALID);
  CHECK_SAYS(zenps_last_error()->text, "is not elastic");
  CHECK(rank->zenps != NULL && !zenps_job_changed(rank->zenps) && !zenps_job_changed(NULL));
  generation.struct_size = 3;
  CHECK_STATUS(zenps_job_generation(rank->zenps, &generation), ZENPS_ERR_INVALID);
  CHECK_STATUS(zenps_job_generation(rank->zenps, NULL), ZENPS_ERR_INVALID);
  rank_close(rank);
}

static void test_elastic_refusals(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 1, is_refused, NULL, 0);
}

const struct CMUnitTest api_elastic_tests[] = {
    cmocka_unit_test(test_elastic_goes_on),  cmocka_unit_test(test_elastic_between_workers),
    cmocka_unit_test(test_elastic_grows),    cmocka_unit_test(test_elastic_replaces),
    cmocka_unit_test(test_elastic_wakes_up), cmocka_unit_test(test_elastic_too_few),
    cmocka_unit_test(test_elastic_refusals), cmocka_unit_test(test_elastic_without_one_that_was_kicked),
};
const size_t n_api_elastic_tests = sizeof api_elastic_tests / sizeof api_elastic_tests[0];
