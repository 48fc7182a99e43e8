/* An elastic job under events in any order: who asks is answered once, and in time, and is a rank of one generation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/rng.h"
#include "server/membership/members.h"
#include "tests/support/log_fields.h"
#include "tests/support/settled.h"

enum {
  N_SERVERS = 2,
  N_WORKERS = 6,
  N_PENDING = 64,
  MIN_WORLD = 2,
  MAX_WORLD = 4,
  TIMEOUT_S = 20,
  EVENTS = 300,
  N_SEEDS = 10000
};

enum doing { AWAY_FROM_ALL, ASKS, IS_IN };

/* A process; when it is lost another one takes its place. */
struct worker {
  struct zps_member_client client; /* first: actions name it */
  enum doing doing;
  uint64_t secret, job_id, asked_ns, steps;
  uint32_t generation, rank; /* the last ones; generation 0: none */
};

static struct world {
  struct zps_members *members;
  struct zps_rng rng;
  uint64_t now_ns, next_secret;
  struct zps_member_client servers[N_SERVERS];
  struct worker workers[N_WORKERS];
  struct {
    struct zps_member_client *server;
    uint64_t job_id;
  } pending[N_PENDING]; /* job.open that is not answered yet */
  unsigned n_pending, n_answered;
  unsigned n_generations, n_worlds[MAX_WORLD + 1];
} world;

static unsigned below(unsigned n) {
  return (unsigned)(zps_rng_u64(&world.rng) % n);
}

static void joined(struct worker *worker, const struct zps_action *action) {
  const struct zps_member_job *const job = action->job;
  assert_int_equal(worker->doing, ASKS);
  assert_ptr_equal(action->token, worker);
  assert_true(job->state == ZPS_JOB_RUNNING && job->generation.number > worker->generation);
  assert_true(job->world >= MIN_WORLD && job->world <= MAX_WORLD && job->generation.source < job->world);
  assert_ptr_equal(job->ranks[action->rank]->client, &worker->client);
  if (action->rank == 0) {
    world.n_generations++;
    world.n_worlds[job->world]++;
  }
  worker->doing = IS_IN;
  worker->job_id = job->job_id;
  worker->generation = job->generation.number;
  worker->rank = action->rank;
  if (job->generation.step > worker->steps) worker->steps = job->generation.step;
  world.n_answered++;
}

static void on_act(void *ctx, const struct zps_action *action) {
  struct worker *const worker = (struct worker *)action->client;
  (void)ctx;
  switch (action->type) {
    case ZPS_ACT_JOB_OPEN:
      assert_true(world.n_pending < N_PENDING);
      world.pending[world.n_pending].server = action->client;
      world.pending[world.n_pending++].job_id = action->job->job_id;
      break;
    case ZPS_ACT_JOIN_DONE:
      joined(worker, action);
      break;
    case ZPS_ACT_JOIN_FAILED:
      assert_int_equal(worker->doing, ASKS);
      assert_true(action->code != ZPS_OK && action->text && action->text[0]);
      worker->doing = AWAY_FROM_ALL;
      world.n_answered++;
      break;
    case ZPS_ACT_JOB_FAILED:
    case ZPS_ACT_JOB_CHANGED:
    case ZPS_ACT_RANK_LEFT:
      assert_int_equal(worker->doing, IS_IN);
      assert_int_equal(action->job->job_id, worker->job_id);
      break;
    default:
      break;
  }
}

static uint64_t on_random(void *ctx) {
  (void)ctx;
  return zps_rng_u64(&world.rng);
}

static void sink(void *ctx, const struct zps_log_line *line) {
  (void)ctx;
  const char *const fault = log_fields_fault(line);
  if (fault) fail_msg("without its field '%s': %s", fault, line->text);
  assert_true(line->level > ZPS_LOG_ERROR);
}

/* ------------------------------------------------------------ events */

static const struct zps_net_info tcp = {.provider = "tcp", .addr_format = "FI_SOCKADDR_IN"};

static void asks(struct worker *worker) {
  struct zps_error error;
  const struct zps_next_spec spec = {.join = {.job = "x",
                                              .host = "node",
                                              .world = MAX_WORLD,
                                              .rank = below(MAX_WORLD + 1),
                                              .pid = 100,
                                              .timeout_ms = TIMEOUT_S * 1000,
                                              .secret = worker->secret,
                                              .fabric = &tcp},
                                     .min_world = MIN_WORLD,
                                     .max_world = MAX_WORLD,
                                     .wait_ms = 2000,
                                     .step = worker->steps,
                                     .generation = worker->generation,
                                     .last_rank = worker->rank,
                                     .last_job = worker->job_id};
  worker->doing = ASKS;
  worker->asked_ns = world.now_ns;
  assert_int_equal(zps_members_next(world.members, &worker->client, &spec, worker, world.now_ns, &error), ZPS_OK);
}

static void is_born(struct worker *worker) {
  *worker = (struct worker){.secret = ++world.next_secret};
}

static void is_lost(struct worker *worker) {
  zps_members_client_lost(world.members, &worker->client, "gone");
  is_born(worker);
}

/* Its connection ends, and it comes back over another one, or not. */
static void blinks(struct worker *worker) {
  struct zps_error error;
  const enum doing doing = worker->doing;
  zps_members_client_away(world.members, &worker->client, world.now_ns + ZPS_NS_PER_S, "blip");
  if (doing == ASKS) {
    assert_int_equal(worker->doing, AWAY_FROM_ALL);
    if (below(4) > 0) asks(worker);
  } else if (doing == IS_IN) {
    const struct zps_resume_spec spec = {.job_id = worker->job_id, .secret = worker->secret, .rank = worker->rank};
    if (below(4) == 0 || zps_members_resume(world.members, &worker->client, &spec, &error) != ZPS_OK) is_born(worker);
  }
}

static void leaves(struct worker *worker, bool moves) {
  struct zps_error error;
  if (worker->doing != IS_IN) return;
  worker->steps += below(3);
  assert_int_equal(
      (moves ? zps_members_move_on : zps_members_leave)(world.members, &worker->client, worker->job_id, &error),
      ZPS_OK);
  worker->doing = AWAY_FROM_ALL;
  if (!moves) is_born(worker);
}

static void answers(void) {
  if (world.n_pending == 0) return;
  const unsigned at = below(world.n_pending);
  struct zps_member_client *const server = world.pending[at].server;
  const uint64_t job_id = world.pending[at].job_id;
  world.pending[at] = world.pending[--world.n_pending];
  zps_members_job_opened(world.members, server, job_id, below(12) > 0 ? ZPS_OK : ZPS_ERR_NOMEM, "it has no room");
}

static void server_comes_or_goes(unsigned s) {
  struct zps_error error;
  char name[2] = {(char)('a' + s), '\0'};
  if (world.servers[s].server) {
    zps_members_client_lost(world.members, &world.servers[s], "gone");
    unsigned n = 0;
    for (unsigned i = 0; i < world.n_pending; i++)
      if (world.pending[i].server != &world.servers[s]) world.pending[n++] = world.pending[i];
    world.n_pending = n;
    return;
  }
  const struct zps_server_spec spec = {.name = name, .host = "node", .pid = 1 + s, .fabric = &tcp};
  assert_int_equal(zps_members_server_register(world.members, &world.servers[s], &spec, false, &error), ZPS_OK);
}

static void event(void) {
  struct worker *const worker = &world.workers[below(N_WORKERS)];
  switch (below(12)) {
    case 0:
    case 1:
    case 2:
      if (worker->doing == AWAY_FROM_ALL) asks(worker);
      break;
    case 3:
    case 4:
      leaves(worker, true);
      if (below(2) == 0 && worker->doing == AWAY_FROM_ALL) asks(worker);
      break;
    case 5:
      if (below(4) == 0) leaves(worker, false);
      break;
    case 6:
      if (below(3) == 0) is_lost(worker);
      break;
    case 7:
      blinks(worker);
      break;
    case 8:
    case 9:
      answers();
      break;
    case 10:
      if (below(12) == 0) server_comes_or_goes(below(N_SERVERS));
      break;
    default:
      world.now_ns += below(4000) * ZPS_NS_PER_MS;
      break;
  }
  zps_members_tick(world.members, world.now_ns);
}

/* ------------------------------------------------------------ what holds at any time */

static void check(void) {
  unsigned n_whole = 0;
  for (const struct zps_member_job *job = zps_members_job_first(world.members); job; job = job->next) {
    n_whole += job->state == ZPS_JOB_RUNNING && job->n_left == 0;
    for (uint32_t r = 0; r < job->world; r++) {
      const struct zps_member_rank *const rank = job->ranks[r];
      if (!rank || !rank->client) continue;
      assert_true(rank->client->job == job && rank->client->rank == r && !rank->client->asker);
    }
  }
  assert_true(n_whole <= 1);
  for (unsigned w = 0; w < N_WORKERS; w++) {
    const struct worker *const worker = &world.workers[w];
    assert_int_equal(worker->doing == ASKS,
                     worker->client.asker || (worker->client.job && worker->client.job->state < ZPS_JOB_RUNNING));
    if (worker->doing == ASKS) assert_true(world.now_ns < worker->asked_ns + TIMEOUT_S * ZPS_NS_PER_S);
  }
}

static void test_any_order(void **state) {
  (void)state;
  unsigned n_generations = 0, n_worlds[MAX_WORLD + 1] = {0};
  zps_log_set_sink(sink, NULL);
  for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
    const struct zps_members_config config = {
        .min_servers = 1, .max_jobs = 64, .max_tensors = 3, .leave_grace_ms = 4000, .act = on_act, .random = on_random};
    world = (struct world){.rng = {seed}, .now_ns = ZPS_NS_PER_S};
    assert_int_equal(zps_members_create(&config, &world.members), ZPS_OK);
    for (unsigned w = 0; w < N_WORKERS; w++) is_born(&world.workers[w]);
    for (unsigned s = 0; s < N_SERVERS; s++) server_comes_or_goes(s);
    for (unsigned i = 0; i < EVENTS; i++) {
      event();
      check();
    }
    world.now_ns += 2 * TIMEOUT_S * ZPS_NS_PER_S;
    zps_members_tick(world.members, world.now_ns);
    check(); /* nobody asks any more */
    n_generations += world.n_generations;
    for (unsigned n = MIN_WORLD; n <= MAX_WORLD; n++) n_worlds[n] += world.n_worlds[n];
    for (unsigned w = 0; w < N_WORKERS; w++) is_lost(&world.workers[w]);
    for (unsigned s = 0; s < N_SERVERS; s++) zps_members_client_lost(world.members, &world.servers[s], "end");
    zps_members_tick(world.members, world.now_ns + 60 * ZPS_NS_PER_S);
    zps_members_destroy(world.members);
  }
  zps_log_set_sink(NULL, NULL);
  print_message("%u generations, of 2, 3 and 4 ranks: %u, %u, %u\n", n_generations, n_worlds[2], n_worlds[3],
                n_worlds[4]);
  for (unsigned n = MIN_WORLD; n <= MAX_WORLD; n++) assert_true(n_worlds[n] > 100);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_any_order)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
