/* The world, and its servers and workers: how they come, go, are cut off and come back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/server/membership/explore.h"

const struct explore_worker explore_workers[N_WORKERS] = {{0, 2}, {1, 2}, {0, 2}, {1, 3}};
const char *const explore_names[N_SERVERS] = {"s0", "s1", "s2"};

int *explore_token(struct world *world) {
  assert_true(world->n_tokens < TOKENS_MAX);
  int *const token = &world->tokens[world->n_tokens++];
  *token = 0;
  return token;
}

static void forget_late(struct world *world, unsigned who) {
  for (unsigned i = 0; i < world->n_late;)
    if (world->late[i].server == who)
      world->late[i] = world->late[--world->n_late];
    else
      i++;
}

static void go_down(struct world *world, unsigned who) {
  struct fake *fake = &world->fakes[who];
  for (unsigned i = 0; i < world->n_open;) { /* the connection's pending calls fail with it, before it is gone */
    if (world->open[i].server != who) {
      i++;
      continue;
    }
    const struct request request = world->open[i];
    world->open[i] = world->open[--world->n_open];
    zps_members_tensor_opened(world->members, &fake->client, request.job_id, request.tensor, ZPS_ERR_CLOSED, "closed");
  }
  forget_late(world, who);
  for (unsigned i = 0; i < world->n_maps;) {
    if (world->maps[i].server != who) {
      i++;
      continue;
    }
    const struct map map = world->maps[i];
    world->maps[i] = world->maps[--world->n_maps];
    zps_members_map_answered(world->members, &fake->client, map.job_id, map.epoch, ZPS_ERR_CLOSED, "closed");
  }
  fake->up = false;
  zps_members_client_lost(world->members, &fake->client, "gone");
  assert_true(!fake->client.job && !fake->client.server);
  fake->in = false;
  fake->n_held = 0;
}

/* Calls to a server that is away fail with its connection. */
void explore_go_away(struct world *world, unsigned who) {
  struct fake *fake = &world->fakes[who];
  forget_late(world, who);
  for (unsigned i = 0; i < world->n_open;) {
    if (world->open[i].server == who)
      world->open[i] = world->open[--world->n_open];
    else
      i++;
  }
  for (unsigned i = 0; i < world->n_maps;) {
    if (world->maps[i].server == who)
      world->maps[i] = world->maps[--world->n_maps];
    else
      i++;
  }
  fake->up = false;
  fake->away = true;
  zps_members_client_away(world->members, &fake->client, world->now_ns + 15 * ZPS_NS_PER_MS, "cut");
  assert_true(!fake->client.job && !fake->client.server);
}

const struct zps_member_server *explore_server(const struct world *world, const char *name) {
  for (unsigned i = 0; i < zps_members_servers(world->members); i++)
    if (strcmp(zps_members_server(world->members, i)->name, name) == 0) return zps_members_server(world->members, i);
  return NULL;
}

static void server_back(struct world *world, unsigned who) {
  static const struct zps_net_info fabric = {.provider = "tcp", .addr_format = "FI_SOCKADDR_IN"};
  struct fake *fake = &world->fakes[who];
  uint64_t jobs[HELD_MAX];
  uint32_t n = 0;
  for (unsigned i = 0; i < fake->n_held; i++) jobs[n++] = fake->held[i].job_id;
  const struct zps_server_spec spec = {.name = explore_names[who],
                                       .host = "h",
                                       .pid = who,
                                       .fabric = &fabric,
                                       .secret = 1 + who,
                                       .jobs = jobs,
                                       .n_jobs = n};
  for (unsigned i = 0; i < fake->n_held;) { /* closed meanwhile */
    const struct zps_member_job *job = zps_members_job_first(world->members);
    while (job && job->job_id != fake->held[i].job_id) job = job->next;
    if (job && zps_member_job_has(job, explore_server(world, spec.name)))
      i++;
    else
      fake->held[i] = fake->held[--fake->n_held];
  }
  assert_int_equal(zps_members_server_register(world->members, &fake->client, &spec, true, NULL), ZPS_OK);
}

static void come_back(struct world *world, unsigned who) {
  struct fake *fake = &world->fakes[who];
  fake->away = false;
  fake->up = true;
  if (who < N_SERVERS) {
    server_back(world, who);
    return;
  }
  const struct zps_resume_spec spec = {
      .job_id = fake->job_id, .secret = 1 + who, .rank = explore_workers[who - N_SERVERS].rank};
  const bool was_in = fake->in;
  fake->failed = false; /* it hears of that again */
  if (zps_members_resume(world->members, &fake->client, &spec, NULL) == ZPS_OK) {
    assert_true(was_in);
    return;
  }
  fake->up = fake->in = false;
}

void explore_toggle(struct world *world, unsigned who) {
  static const struct zps_net_info fabric = {.provider = "tcp", .addr_format = "FI_SOCKADDR_IN"};
  struct fake *fake = &world->fakes[who];
  if (fake->away) {
    come_back(world, who);
  } else if (fake->up) {
    go_down(world, who);
  } else if (who < N_SERVERS) {
    const struct zps_server_spec spec = {
        .name = explore_names[who], .host = "h", .pid = who, .fabric = &fabric, .secret = 1 + who};
    fake->up = true;
    assert_int_equal(zps_members_server_register(world->members, &fake->client, &spec, false, NULL), ZPS_OK);
  } else {
    const struct zps_join_spec spec = {.job = "j",
                                       .host = "h",
                                       .world = explore_workers[who - N_SERVERS].world,
                                       .pid = who,
                                       .rank = explore_workers[who - N_SERVERS].rank,
                                       .timeout_ms = 10,
                                       .fabric = &fabric,
                                       .secret = 1 + who};
    int *token = explore_token(world);
    fake->up = true;
    if (zps_members_join(world->members, &fake->client, &spec, token, world->now_ns, NULL)) ++*token;
  }
}

static uint64_t on_random(void *ctx) {
  return zps_rng_u64(&((struct world *)ctx)->rng);
}

void explore_init(struct world *world, uint64_t seed, bool replays) {
  memset(world, 0, offsetof(struct world, tokens));
  world->replays = replays;
  world->places = (uint32_t)(seed / 5 % (N_SERVERS + 2));
  world->rng = (struct zps_rng){seed};
  const struct zps_members_config config = {.min_servers = 1,
                                            .replays = replays,
                                            .places = world->places,
                                            .max_jobs = 8,
                                            .max_tensors = 2,
                                            .leave_grace_ms = 15,
                                            .ctx = world,
                                            .act = explore_act,
                                            .random = on_random,
                                            .note = explore_note};
  assert_int_equal(zps_members_create(&config, &world->members), ZPS_OK);
}

void explore_fini(struct world *world) {
  world->now_ns += 20 * ZPS_NS_PER_MS;
  for (unsigned i = 0; i < N_SERVERS + N_WORKERS; i++)
    if (world->fakes[i].away) come_back(world, i);
  assert_true(zps_members_tick(world->members, world->now_ns) > world->now_ns);
  for (unsigned i = N_SERVERS + N_WORKERS; i-- > 0;) {
    if (world->fakes[i].up) explore_toggle(world, i);
    explore_check(world);
    if (i == N_SERVERS) {
      for (unsigned s = 0; s < N_SERVERS; s++) assert_int_equal(world->fakes[s].n_held, 0);
    }
  }
  assert_int_equal(zps_members_jobs(world->members), 0);
  for (unsigned i = 0; i < world->n_stories; i++) assert_true(world->stories[i].ended || world->stories[i].is_opening);
  assert_int_equal(zps_members_servers(world->members), 0);
  for (unsigned i = 0; i < world->n_tokens; i++) assert_int_equal(world->tokens[i], 1);
  zps_members_destroy(world->members);
}
