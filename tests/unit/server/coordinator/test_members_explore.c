/*
 * Every short sequence of events, and many long random ones, against invariants of the membership module: no request is
 * answered twice or never, servers hear a consistent story of every job, each job's end is told once with the first
 * cause of its failure, servers take over before ranks are asked and all ranks answer before rounds are played again,
 * nothing is left over.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/rng.h"
#include "server/coordinator/members.h"
#include "tests/support/thin.h"

enum { N_SERVERS = 3, N_WORKERS = 4, TOKENS_MAX = 512, HELD_MAX = 16, OPEN_MAX = 64, STORIES_MAX = 512 };

/* Workers 0 and 1 are a job of two; 2 wants the rank of 0; 3 says the world is three. */
static const struct { uint32_t rank, world; } workers[N_WORKERS] = {{0, 2}, {1, 2}, {0, 2}, {1, 3}};

struct held { /* a server's view of a job */
  uint64_t job_id;
  bool answered;
  uint32_t asked, mapped, replayed; /* epochs of job.map: told, answered; of job.replay */
};

struct fake {
  struct zps_member_client client;
  bool up;
  struct held held[HELD_MAX]; /* servers: jobs opened here */
  unsigned n_held;
  uint64_t job_id; /* workers: of the last JOIN_DONE */
  uint32_t tensor; /* and of the last TENSOR_DONE */
  bool in, failed;
  bool away;                        /* its connection is gone, and it means to come back */
  uint32_t asked, mapped, replayed; /* as of servers */
};

struct request { /* tensor.open a server has to answer */
  unsigned server;
  uint64_t job_id;
  uint32_t tensor;
};

struct late { /* job.open a server has to answer, of a job that it has forgotten since */
  unsigned server;
  uint64_t job_id;
};

struct map { /* job.map a server has to answer */
  unsigned server;
  uint64_t job_id;
  uint32_t epoch;
};

struct story { /* a job as the coordinator saw it */
  uint64_t job_id;
  bool ended;
  bool is_opening;  /* when it was last seen: where it is placed anew, it goes on under another id */
  zps_err_t failed; /* the first cause that its ranks were told */
};

struct world {
  struct zps_members *members;
  struct fake fakes[N_SERVERS + N_WORKERS];
  int tokens[TOKENS_MAX]; /* times answered */
  unsigned n_tokens;
  struct request open[OPEN_MAX];
  unsigned n_open;
  struct late late[OPEN_MAX];
  unsigned n_late;
  unsigned n_refills; /* servers that took free places */
  struct map maps[OPEN_MAX];
  unsigned n_maps;
  bool replays;
  uint32_t places; /* of jobs, at least */
  struct story stories[STORIES_MAX];
  unsigned n_stories;
  struct zps_rng rng;
  uint64_t now_ns;
};

static struct story *story_of(struct world *world, uint64_t job_id) {
  for (unsigned i = world->n_stories; i-- > 0;) {
    if (world->stories[i].job_id == job_id) return &world->stories[i];
  }
  assert_true(world->n_stories < STORIES_MAX);
  world->stories[world->n_stories] = (struct story){.job_id = job_id};
  return &world->stories[world->n_stories++];
}

static void on_ended(struct world *world, const struct zps_action *action) {
  const struct zps_member_job *job = action->job;
  struct story *story = story_of(world, job->job_id);
  assert_null(action->client);
  assert_false(story->ended);
  story->ended = true;
  assert_int_equal(job->n_joined, 0);
  assert_true(action->text && action->text[0]);
  if (story->failed) assert_int_equal(action->code, story->failed);
  if (!action->code) assert_true(job->state == ZPS_JOB_RUNNING && job->n_left == job->world && job->n_lost == 0);
  if (job->state == ZPS_JOB_CLOSING || job->n_lost) assert_true(action->code != ZPS_OK);
}

static unsigned fake_of(struct world *world, const struct zps_member_client *client) {
  for (unsigned i = 0; i < N_SERVERS + N_WORKERS; i++) {
    if (&world->fakes[i].client == client) return i;
  }
  fail_msg("action for an unknown client");
  return 0;
}

static struct held *held_find(struct fake *server, uint64_t job_id) {
  for (unsigned i = 0; i < server->n_held; i++) {
    if (server->held[i].job_id == job_id) return &server->held[i];
  }
  return NULL;
}

/* One that drains is there until all have answered. */
static const struct zps_member_server *who_is_at(const struct zps_member_job *job, uint32_t position) {
  return job->servers[position] || !job->leaving ? job->servers[position] : job->leaving[position];
}

/* Servers have all answered job.map of the job's epoch. */
static void check_servers_mapped(struct world *world, const struct zps_member_job *job) {
  for (uint32_t i = 0; i < job->n_servers; i++) {
    const struct zps_member_server *const server = who_is_at(job, i);
    if (!server) continue;
    const struct held *at = held_find(&world->fakes[server->pid], job->job_id); /* maybe away */
    assert_true(at && at->mapped == job->epoch);
  }
}

/* Ranks have, too. */
static void check_ranks_mapped(struct world *world, const struct zps_member_job *job) {
  for (uint32_t r = 0; r < job->world; r++)
    if (job->ranks[r]->state == ZPS_RANK_IN) assert_int_equal(world->fakes[job->ranks[r]->pid].mapped, job->epoch);
}

static bool is_joiner(const struct zps_action *action, const struct fake *server) {
  return zps_member_job_admits(action->job, action->position) &&
         action->job->joiners[action->position].server == server->client.server;
}

static void on_act(void *ctx, const struct zps_action *action) {
  struct world *world = ctx;
  if (action->type == ZPS_ACT_JOB_ENDED) {
    on_ended(world, action);
    return;
  }
  const unsigned who = fake_of(world, action->client);
  struct fake *fake = &world->fakes[who];
  struct held *held = NULL;
  if (action->type <= ZPS_ACT_REPLAY_SERVER) {
    assert_true(who < N_SERVERS && fake->up);
    held = held_find(fake, action->job->job_id);
    assert_int_equal(held != NULL, action->type != ZPS_ACT_JOB_OPEN);
  } else {
    assert_true(who >= N_SERVERS);
  }
  switch (action->type) {
    case ZPS_ACT_JOB_OPEN:
      assert_true(fake->n_held < HELD_MAX);
      assert_true(action->job->servers[action->position] == fake->client.server || is_joiner(action, fake));
      fake->held[fake->n_held++] = (struct held){.job_id = action->job->job_id};
      break;
    case ZPS_ACT_JOB_CLOSE:
      assert_true(world->n_late < OPEN_MAX);
      if (!held->answered) world->late[world->n_late++] = (struct late){who, held->job_id};
      *held = fake->held[--fake->n_held];
      break;
    case ZPS_ACT_RANK_GONE:
      assert_true(action->code == ZPS_ERR_CLOSED || action->code == ZPS_ERR_PEER_LOST);
      break;
    case ZPS_ACT_TENSOR_OPEN:
      assert_true((held->answered || is_joiner(action, fake)) && world->n_open < OPEN_MAX);
      world->open[world->n_open++] =
          (struct request){.server = who, .job_id = action->job->job_id, .tensor = action->tensor->spec.tensor};
      break;
    case ZPS_ACT_TENSOR_FORGET:
    case ZPS_ACT_TENSORS_KEEP:
      assert_true(held->answered);
      break;
    case ZPS_ACT_MAP_SERVER:
      assert_true(world->replays && held->answered && action->job->epoch >= held->asked && world->n_maps < OPEN_MAX);
      assert_int_equal(action->job->state, ZPS_JOB_RUNNING);
      assert_ptr_equal(who_is_at(action->job, action->position), fake->client.server);
      if (action->job->since && action->job->since[action->position] > held->asked) {
        for (unsigned i = 0; i < world->n_open; i++) /* it has all tensors that are open */
          assert_false(world->open[i].server == who && world->open[i].job_id == action->job->job_id);
        world->n_refills++;
      }
      held->asked = action->job->epoch;
      world->maps[world->n_maps++] =
          (struct map){.server = who, .job_id = action->job->job_id, .epoch = action->job->epoch};
      break;
    case ZPS_ACT_REPLAY_SERVER:
      assert_true(action->job->epoch >= held->replayed && held->mapped == action->job->epoch);
      check_servers_mapped(world, action->job);
      check_ranks_mapped(world, action->job);
      held->replayed = action->job->epoch;
      break;
    case ZPS_ACT_MAP_RANK:
      assert_true(fake->in && !fake->failed && fake->job_id == action->job->job_id);
      assert_true(action->job->epoch >= fake->asked);
      check_servers_mapped(world, action->job);
      fake->asked = action->job->epoch;
      break;
    case ZPS_ACT_REPLAY_RANK:
      assert_true(fake->in && !fake->failed && fake->job_id == action->job->job_id);
      assert_true(action->job->epoch >= fake->replayed);
      check_servers_mapped(world, action->job);
      check_ranks_mapped(world, action->job);
      fake->replayed = action->job->epoch;
      break;
    case ZPS_ACT_JOIN_DONE:
      assert_int_equal(action->job->state, ZPS_JOB_RUNNING);
      for (uint32_t i = 0; i < action->job->n_began; i++) {
        const struct held *at =
            held_find(&world->fakes[fake_of(world, action->job->servers[i]->client)], action->job->job_id);
        assert_true(at && at->answered);
      }
      assert_true(fake->up && !fake->in);
      fake->in = true;
      fake->failed = false;
      fake->job_id = action->job->job_id;
      fake->asked = fake->mapped = fake->replayed = 0;
      break;
    case ZPS_ACT_TENSOR_DONE:
      assert_true(fake->in && !fake->failed && fake->job_id == action->job->job_id);
      assert_int_equal(action->tensor->state, ZPS_TENSOR_OPEN);
      fake->tensor = action->tensor->spec.tensor;
      break;
    case ZPS_ACT_TENSOR_CLOSED:
      assert_true(fake->in && !fake->failed && fake->job_id == action->job->job_id);
      break;
    case ZPS_ACT_GROUP_DONE:
      assert_true(fake->in && !fake->failed && fake->job_id == action->job->job_id && action->group->is_met);
      break;
    case ZPS_ACT_GROUP_FAILED:
      assert_true(fake->in && action->code);
      break;
    case ZPS_ACT_JOIN_FAILED:
      assert_false(fake->in);
      break;
    case ZPS_ACT_TENSOR_FAILED:
      break;
    case ZPS_ACT_JOB_FAILED:
      assert_true(fake->in && !fake->failed && fake->job_id == action->job->job_id && action->code);
      fake->failed = true;
      if (!story_of(world, action->job->job_id)->failed) story_of(world, action->job->job_id)->failed = action->code;
      if (action->rank == workers[who - N_SERVERS].rank) fake->in = fake->up = false; /* it is the one that is lost */
      break;
    case ZPS_ACT_JOB_ENDED:
    case ZPS_ACT_JOB_CHANGED:
    case ZPS_ACT_RANK_LEFT:
    case ZPS_ACT_TENSOR_PLAN:
      assert_true(fake->in && !fake->failed && fake->job_id == action->job->job_id);
      break;
  }
  if (action->type >= ZPS_ACT_JOIN_DONE && action->type <= ZPS_ACT_GROUP_FAILED) {
    assert_true((action->type == ZPS_ACT_JOIN_FAILED || action->type == ZPS_ACT_TENSOR_FAILED ||
                 action->type == ZPS_ACT_GROUP_FAILED) == (action->code != ZPS_OK));
    if (action->code) assert_non_null(action->text);
    ++*(int *)action->token;
  }
}

static uint64_t on_random(void *ctx) {
  return zps_rng_u64(&((struct world *)ctx)->rng);
}

static void check_job(struct world *world, const struct zps_member_job *job) {
  uint32_t n_in = 0, n_left = 0, n_lost = 0, present = 0;
  for (uint32_t r = 0; r < job->world; r++) {
    const struct zps_member_rank *rank = job->ranks[r];
    if (!rank) continue;
    present++;
    n_in += rank->state == ZPS_RANK_JOINING || rank->state == ZPS_RANK_IN;
    n_left += rank->state == ZPS_RANK_LEFT;
    n_lost += rank->state == ZPS_RANK_LOST;
    const bool is_away = rank->state == ZPS_RANK_IN && !rank->client && rank->until_ns > 0;
    if (!is_away) assert_int_equal(rank->client != NULL, rank->state <= ZPS_RANK_IN);
    if (rank->client) assert_true(rank->client->job == job && rank->client->rank == r);
    assert_int_equal(rank->state == ZPS_RANK_JOINING, job->state <= ZPS_JOB_OPENING);
  }
  assert_true(n_in > 0 && n_in == job->n_joined && n_left == job->n_left && n_lost == job->n_lost);
  if (job->state > ZPS_JOB_JOINING) assert_int_equal(present, job->world);
  if (job->state == ZPS_JOB_OPENING || job->state == ZPS_JOB_RUNNING) {
    assert_int_equal(n_lost, 0);
    uint32_t n_servers = 0;
    for (uint32_t i = 0; i < job->n_servers; i++) n_servers += job->servers[i] != NULL;
    if (job->state == ZPS_JOB_OPENING || !world->replays) assert_int_equal(n_servers, job->n_began);
    assert_true(n_servers > 0 && zps_member_job_servers_lost(job) <= job->n_servers - n_servers);
    assert_true(job->n_began <= job->n_servers && (world->places == 0 || job->n_servers >= world->places));
    const bool was_mapped = n_servers < job->n_began || job->since;
    if (!was_mapped) assert_int_equal(job->map.state, ZPS_MAP_NONE);
    for (uint32_t r = 0; job->state == ZPS_JOB_RUNNING && was_mapped && r < job->world; r++) {
      if (job->ranks[r]->state != ZPS_RANK_IN || !job->ranks[r]->client) continue;
      const bool is_over = job->map.state == ZPS_MAP_NONE || job->map.state == ZPS_MAP_OVER;
      assert_int_equal(world->fakes[fake_of(world, job->ranks[r]->client)].replayed == job->epoch, is_over);
    }
    for (uint32_t i = 0; i < job->n_tensors; i++)
      if (job->tensors[i]->state == ZPS_TENSOR_OPENING) assert_true(job->tensors[i]->n_pending > 0);
  }
  if (job->state == ZPS_JOB_JOINING && present == job->world) {
    bool waits = false; /* for one to come back */
    for (unsigned i = 0; i < zps_members_servers(world->members); i++)
      waits = waits || !zps_members_server(world->members, i)->client;
    for (unsigned i = 0; i < zps_members_servers(world->members); i++)
      assert_true(waits || zps_members_server(world->members, i)->draining);
  }
}

static void check(struct world *world) {
  unsigned joining = 0, n_jobs = 0;
  for (const struct zps_member_job *job = zps_members_job_first(world->members); job; job = job->next, n_jobs++) {
    check_job(world, job);
    struct story *story = story_of(world, job->job_id);
    assert_false(story->ended);
    story->is_opening = job->state == ZPS_JOB_OPENING;
    joining += job->state == ZPS_JOB_JOINING;
  }
  assert_int_equal(n_jobs, zps_members_jobs(world->members));
  assert_true(joining <= 1);
  for (unsigned i = 0; i < zps_members_servers(world->members); i++) {
    const struct zps_member_server *server = zps_members_server(world->members, i);
    if (server->client) assert_int_equal(server->n_jobs, world->fakes[fake_of(world, server->client)].n_held);
  }
}

static void register_tensor(struct world *world, struct fake *fake, uint64_t rows) {
  const struct zps_tensor_spec spec = {.job_id = fake->job_id,
                                       .name = "t",
                                       .rows = rows,
                                       .width = 1,
                                       .dtype = ZPS_DTYPE_F32,
                                       .op = ZPS_OP_SUM,
                                       .codec = ZPS_CODEC_AUTO,
                                       .value_codec = ZPS_VALUES_RAW,
                                       .block_bits = UINT32_MAX};
  int *token = &world->tokens[world->n_tokens++];
  if (zps_members_tensor_register(world->members, &fake->client, &spec, token, NULL)) ++*token;
}

static const char *const names[] = {"s0", "s1", "s2"};

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
    zps_members_tensor_opened(world->members, &fake->client, request.job_id, request.tensor, ZPS_ERR_CLOSED, "closed",
                              world->now_ns);
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
static void go_away(struct world *world, unsigned who) {
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

static const struct zps_member_server *server_named(const struct world *world, const char *name) {
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
  const struct zps_server_spec spec = {
      .name = names[who], .host = "h", .pid = who, .fabric = &fabric, .secret = 1 + who, .jobs = jobs, .n_jobs = n};
  for (unsigned i = 0; i < fake->n_held;) { /* closed meanwhile */
    const struct zps_member_job *job = zps_members_job_first(world->members);
    while (job && job->job_id != fake->held[i].job_id) job = job->next;
    if (job && zps_member_job_has(job, server_named(world, spec.name)))
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
      .job_id = fake->job_id, .secret = 1 + who, .rank = workers[who - N_SERVERS].rank};
  const bool was_in = fake->in;
  fake->failed = false; /* it hears of that again */
  if (zps_members_resume(world->members, &fake->client, &spec, NULL) == ZPS_OK) {
    assert_true(was_in);
    return;
  }
  fake->up = fake->in = false;
}

static void toggle(struct world *world, unsigned who) {
  static const struct zps_net_info fabric = {.provider = "tcp", .addr_format = "FI_SOCKADDR_IN"};
  struct fake *fake = &world->fakes[who];
  if (fake->away) {
    come_back(world, who);
  } else if (fake->up) {
    go_down(world, who);
  } else if (who < N_SERVERS) {
    const struct zps_server_spec spec = {
        .name = names[who], .host = "h", .pid = who, .fabric = &fabric, .secret = 1 + who};
    fake->up = true;
    assert_int_equal(zps_members_server_register(world->members, &fake->client, &spec, false, NULL), ZPS_OK);
  } else {
    const struct zps_join_spec spec = {.job = "j",
                                       .host = "h",
                                       .world = workers[who - N_SERVERS].world,
                                       .pid = who,
                                       .rank = workers[who - N_SERVERS].rank,
                                       .timeout_ms = 10,
                                       .fabric = &fabric,
                                       .secret = 1 + who};
    int *token = &world->tokens[world->n_tokens++];
    fake->up = true;
    if (zps_members_join(world->members, &fake->client, &spec, token, world->now_ns, NULL)) ++*token;
  }
}

static void answer_late(struct world *world, zps_err_t code) {
  while (world->n_late) {
    const struct late late = world->late[--world->n_late];
    zps_members_job_opened(world->members, &world->fakes[late.server].client, late.job_id, code, code ? "no" : NULL,
                           world->now_ns);
  }
}

static void answer_all(struct world *world, zps_err_t code) {
  answer_late(world, code);
  for (unsigned s = 0; s < N_SERVERS; s++) {
    for (unsigned i = 0; i < world->fakes[s].n_held; i++) {
      struct held *held = &world->fakes[s].held[i];
      if (held->answered) continue;
      held->answered = true;
      zps_members_job_opened(world->members, &world->fakes[s].client, held->job_id, code, code ? "no" : NULL,
                             world->now_ns);
      i = UINT32_MAX; /* the list may have changed */
    }
  }
  while (world->n_open) {
    const struct request request = world->open[--world->n_open];
    zps_members_tensor_opened(world->members, &world->fakes[request.server].client, request.job_id, request.tensor,
                              code, code ? "no" : NULL, world->now_ns);
  }
}

static void answer_maps(struct world *world, zps_err_t code) {
  while (world->n_maps) {
    const struct map map = world->maps[--world->n_maps];
    struct fake *const fake = &world->fakes[map.server];
    struct held *const held = held_find(fake, map.job_id);
    const struct zps_member_job *const job = zps_members_job(world->members, map.job_id);
    const bool leaves = job && job->leaving && zps_member_job_has(job, fake->client.server);
    if (held && (!code || leaves) && map.epoch > held->mapped) held->mapped = map.epoch;
    zps_members_map_answered(world->members, &fake->client, map.job_id, map.epoch, code, code ? "no" : NULL);
  }
}

static void say_mapped(struct world *world, struct fake *fake, uint32_t rank) {
  uint64_t steps[] = {4, 5 + rank};
  struct zps_tensor_steps tensor = {.tensor = fake->tensor, .n_steps = 2, .steps = steps};
  struct zps_job_steps set = {.job_id = fake->job_id, .epoch = fake->asked - 1, .n_tensors = 1, .tensors = &tensor};
  if (fake->asked == 0) return;
  const zps_err_t err = zps_members_mapped(world->members, &fake->client, &set, NULL); /* late: means nothing */
  assert_int_equal(err != ZPS_OK, !fake->in || fake->failed || fake->client.job == NULL);
  set.epoch = fake->asked;
  if (err == ZPS_OK) fake->mapped = fake->asked;
  assert_int_equal(zps_members_mapped(world->members, &fake->client, &set, NULL), err);
}

static void link(struct world *world, struct fake *fake) {
  int *token = &world->tokens[world->n_tokens++];
  if (zps_members_linked(world->members, &fake->client, fake->job_id, 10, token, world->now_ns, NULL)) ++*token;
}

/* Ranks 0 and 1, or 0 alone: under one name. */
static void open_group(struct world *world, struct fake *fake, uint32_t n_ranks) {
  static const uint32_t ranks[] = {0, 1};
  const struct zps_group_spec spec = {
      .job_id = fake->job_id, .name = "g", .ranks = ranks, .n_ranks = n_ranks, .timeout_ms = 10};
  int *token = &world->tokens[world->n_tokens++];
  if (zps_members_group_open(world->members, &fake->client, &spec, token, world->now_ns, NULL)) ++*token;
}

static void close_group(struct world *world, struct fake *fake) {
  const zps_err_t err = zps_members_group_close(world->members, &fake->client, fake->job_id, "g", NULL);
  assert_true(err == ZPS_OK || err == ZPS_ERR_UNKNOWN || fake->failed);
}

static void close_tensor(struct world *world, struct fake *fake) {
  int *token = &world->tokens[world->n_tokens++];
  if (zps_members_tensor_close(world->members, &fake->client, fake->job_id, fake->tensor, 10, token, world->now_ns,
                               NULL))
    ++*token;
}

static void toggle_drain(struct world *world, const char *name) {
  const struct zps_member_server *const server = server_named(world, name), *at = NULL;
  if (!server) {
    assert_int_equal(zps_members_drain_named(world->members, name, &at, NULL), ZPS_ERR_UNKNOWN);
  } else if (server->draining) {
    assert_int_equal(zps_members_undrain_named(world->members, name, &at, NULL), ZPS_OK);
    assert_false(at->draining);
  } else if (zps_members_drain_named(world->members, name, &at, NULL) == ZPS_OK) {
    assert_true(at == server && at->draining);
  }
}

/* Where there is one to take a place, it is asked at once. */
static void rebalanced(void *ctx, const struct zps_member_job *job, const struct zps_member_rebalanced *said) {
  (void)ctx;
  unsigned n_joining = 0;
  for (uint32_t i = 0; i < job->n_servers; i++) n_joining += zps_member_job_admits(job, i);
  assert_int_equal(said->outcome == ZPS_REBALANCE_MOVES, n_joining > 0);
  assert_true(said->why[0] && (said->outcome == ZPS_REBALANCE_STAYS || job->state == ZPS_JOB_RUNNING));
}

/* Its rank, whoever has it. */
static void kick(struct world *world, const struct fake *fake) {
  struct zps_member_kicked kicked;
  const struct zps_member_job *const job = zps_members_job_first(world->members);
  const uint32_t rank = workers[fake - world->fakes - N_SERVERS].rank;
  if (!job || zps_members_kick(world->members, job->name, rank, "it is in the way", &kicked, NULL)) return;
  const struct zps_member_job *const left = zps_members_job(world->members, kicked.job_id);
  assert_true(!left || !left->ranks[rank] || left->ranks[rank]->state == ZPS_RANK_LOST);
  assert_true(!left || left->state == ZPS_JOB_CLOSING || left->state == ZPS_JOB_JOINING);
}

/* The rank cannot reach these servers, and it is decided what follows. */
static void suspect(struct world *world, struct fake *fake, uint32_t n) {
  uint32_t servers[] = {0, 1, 2};
  const struct zps_job_suspects suspects = {.job_id = fake->job_id, .n_servers = n, .servers = servers, .why = "cut"};
  const zps_err_t err = zps_members_suspect(&fake->client, &suspects, NULL);
  assert_true(err == ZPS_OK || !fake->in || fake->failed || !fake->client.job || err == ZPS_ERR_INVALID);
  zps_members_tick(world->members, world->now_ns);
  world->now_ns += ZPS_NS_PER_S;
  zps_members_tick(world->members, world->now_ns);
}

enum { N_EVENTS = N_SERVERS + N_WORKERS + 24 };

/* Long enough for servers to take free places; so not one of the short sequences' events. */
static void let_time_pass(struct world *world) {
  world->now_ns += 6 * ZPS_NS_PER_S;
  assert_true(zps_members_tick(world->members, world->now_ns) > world->now_ns);
  check(world);
}

static void event(struct world *world, unsigned what) {
  struct fake *w0 = &world->fakes[N_SERVERS], *w1 = &world->fakes[N_SERVERS + 1];
  unsigned jobs;
  world->now_ns += ZPS_NS_PER_MS;
  switch (what) {
    case N_SERVERS + N_WORKERS:
      answer_all(world, ZPS_OK);
      answer_maps(world, ZPS_OK);
      break;
    case N_SERVERS + N_WORKERS + 1:
      answer_all(world, ZPS_ERR_NOMEM);
      answer_maps(world, ZPS_ERR_NOMEM);
      break;
    case N_SERVERS + N_WORKERS + 2:
      register_tensor(world, w0, 1000);
      break;
    case N_SERVERS + N_WORKERS + 3:
      register_tensor(world, w1, 1000);
      break;
    case N_SERVERS + N_WORKERS + 4:
      register_tensor(world, w1, 999);
      break;
    case N_SERVERS + N_WORKERS + 5:
    case N_SERVERS + N_WORKERS + 6: {
      struct fake *fake = what == N_SERVERS + N_WORKERS + 5 ? w0 : w1;
      if (zps_members_leave(world->members, &fake->client, fake->job_id, NULL) == ZPS_OK) {
        assert_true(fake->in);
        fake->in = fake->up = false;
      }
      break;
    }
    case N_SERVERS + N_WORKERS + 7:
      world->now_ns += 20 * ZPS_NS_PER_MS;
      assert_true(zps_members_tick(world->members, world->now_ns) > world->now_ns);
      if (world->fakes[0].up)
        assert_int_equal(zps_members_server_drain(world->members, &world->fakes[0].client, &jobs, NULL), 0);
      break;
    case N_SERVERS + N_WORKERS + 8:
      link(world, w0);
      break;
    case N_SERVERS + N_WORKERS + 9:
      link(world, w1);
      break;
    case N_SERVERS + N_WORKERS + 10:
      open_group(world, w0, 2);
      break;
    case N_SERVERS + N_WORKERS + 11:
      open_group(world, w1, 2);
      break;
    case N_SERVERS + N_WORKERS + 12:
      open_group(world, w0, 1);
      break;
    case N_SERVERS + N_WORKERS + 13:
      close_group(world, w0);
      break;
    case N_SERVERS + N_WORKERS + 14:
      close_tensor(world, w0);
      break;
    case N_SERVERS + N_WORKERS + 15:
      close_tensor(world, w1);
      break;
    case N_SERVERS + N_WORKERS + 16:
      say_mapped(world, w0, 0);
      break;
    case N_SERVERS + N_WORKERS + 17:
      say_mapped(world, w1, 1);
      break;
    case N_SERVERS + N_WORKERS + 18:
      toggle_drain(world, names[1]);
      break;
    case N_SERVERS + N_WORKERS + 19:
      suspect(world, w0, 1);
      break;
    case N_SERVERS + N_WORKERS + 20:
      suspect(world, w1, 2);
      break;
    case N_SERVERS + N_WORKERS + 21:
      suspect(world, w1, 1);
      break;
    case N_SERVERS + N_WORKERS + 22:
      assert_int_equal(zps_members_rebalance(world->members, NULL, rebalanced, NULL, NULL), ZPS_OK);
      break;
    case N_SERVERS + N_WORKERS + 23:
      kick(world, w1);
      break;
    default:
      toggle(world, what);
  }
  /* A client that was refused is still connected, and may ask again after it has gone. */
  check(world);
}

/* By seeds from 5 on jobs have room for more servers than they begin with, maybe. */
static void world_init(struct world *world, uint64_t seed, bool replays) {
  memset(world, 0, offsetof(struct world, stories)); /* the stories are many, and counted */
  world->n_stories = 0;
  world->now_ns = 0;
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
                                            .act = on_act,
                                            .random = on_random};
  assert_int_equal(zps_members_create(&config, &world->members), ZPS_OK);
}

static void world_fini(struct world *world) {
  world->now_ns += 20 * ZPS_NS_PER_MS;
  for (unsigned i = 0; i < N_SERVERS + N_WORKERS; i++)
    if (world->fakes[i].away) come_back(world, i);
  assert_true(zps_members_tick(world->members, world->now_ns) > world->now_ns);
  for (unsigned i = N_SERVERS + N_WORKERS; i-- > 0;) {
    if (world->fakes[i].up) toggle(world, i);
    check(world);
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

/* Events to choose from: all, or those that are of interest where no server is lost, with two servers. */
enum { N_PLAIN = N_EVENTS - 9 };

static unsigned all_events(unsigned i) {
  return i;
}

static unsigned plain_events(unsigned i) {
  return i < 2 ? i : i + 1;
}

static void every_continuation(const unsigned *first, unsigned n_first, unsigned (*choice)(unsigned), unsigned n,
                               unsigned depth, bool replays) {
  unsigned long total = 1;
  for (unsigned i = 0; i < depth; i++) total *= n;
  static struct world world;
  for (unsigned long sequence = 0; sequence < total; sequence += THIN_STRIDE) {
    world_init(&world, 1, replays);
    for (unsigned i = 0; i < n_first; i++) event(&world, first[i]);
    for (unsigned long rest = sequence, i = 0; i < depth; i++, rest /= n) event(&world, choice((unsigned)(rest % n)));
    world_fini(&world);
  }
}

static void test_every_sequence(void **state) {
  (void)state;
  every_continuation(NULL, 0, plain_events, N_PLAIN, 5, false);
}

enum { ANSWER = N_SERVERS + N_WORKERS, REGISTER = N_SERVERS + N_WORKERS + 2 };
#define RUNNING_ON_TWO 0, 1, N_SERVERS, N_SERVERS + 1, ANSWER
#define RUNNING_ON_THREE 0, 1, 2, N_SERVERS, N_SERVERS + 1, ANSWER
#define EVERY_CONTINUATION(first, choice, n, depth, replays) \
  every_continuation(first, sizeof first / sizeof first[0], choice, n, depth, replays)

/* Once a job of two runs. */
static void test_every_sequence_of_a_running_job(void **state) {
  (void)state;
  static const unsigned on_two[] = {RUNNING_ON_TWO}, on_three[] = {RUNNING_ON_THREE};
  EVERY_CONTINUATION(on_two, plain_events, N_PLAIN, 5, false);
  EVERY_CONTINUATION(on_three, all_events, N_EVENTS, 4, true);
}

/* Once it has lost one: with a tensor that is open, or being opened; before servers have answered, and after. */
static void test_every_sequence_after_a_loss(void **state) {
  (void)state;
  static const unsigned open[] = {RUNNING_ON_THREE, REGISTER, ANSWER, 1};
  static const unsigned opening[] = {RUNNING_ON_THREE, REGISTER, 1};
  static const unsigned asked[] = {RUNNING_ON_THREE, REGISTER, ANSWER, 1, ANSWER};
  EVERY_CONTINUATION(open, all_events, N_EVENTS, 4, true);
  EVERY_CONTINUATION(opening, all_events, N_EVENTS, 4, true);
  EVERY_CONTINUATION(asked, all_events, N_EVENTS, 4, true);
}

static void test_random_sequences(void **state) {
  (void)state;
  static struct world world;
  for (uint64_t seed = 0; seed < 5000; seed += THIN_STRIDE) {
    struct zps_rng rng = {seed};
    world_init(&world, seed, seed % 4 > 0);
    for (unsigned i = 0; i < 200; i++) event(&world, (unsigned)zps_rng_below(&rng, N_EVENTS));
    world_fini(&world);
  }
}

/* Connections end, also of those that have just come back, and not all come back in time. */
static void test_random_sequences_of_connections(void **state) {
  (void)state;
  static struct world world;
  for (uint64_t seed = 0; seed < 5000; seed += THIN_STRIDE) {
    struct zps_rng rng = {seed};
    world_init(&world, seed, seed % 4 > 0);
    for (unsigned i = 0; i < N_SERVERS + 2; i++) event(&world, i);
    event(&world, N_SERVERS + N_WORKERS);
    for (unsigned i = 0; i < 200; i++) {
      const unsigned who = (unsigned)zps_rng_below(&rng, 2 * (N_SERVERS + N_WORKERS));
      if (who < N_SERVERS + N_WORKERS && world.fakes[who].up && (who < N_SERVERS || world.fakes[who].in))
        go_away(&world, who);
      check(&world);
      event(&world, (unsigned)zps_rng_below(&rng, N_EVENTS));
    }
    world_fini(&world);
  }
}

/* Servers go, come and are taken in, and whatever else happens meanwhile. */
static void test_random_sequences_of_places(void **state) {
  (void)state;
  static struct world world;
  unsigned n_refills = 0;
  for (uint64_t seed = 0; seed < 5000; seed += THIN_STRIDE) {
    struct zps_rng rng = {seed};
    world_init(&world, seed, true);
    for (unsigned i = 0; i < 150; i++) {
      const uint64_t what = zps_rng_below(&rng, 32);
      if (world.n_stories == 0 || !world.fakes[N_SERVERS].in || !world.fakes[N_SERVERS + 1].in) {
        for (unsigned w = N_SERVERS; w < N_SERVERS + 2; w++) /* from the beginning, with both ranks */
          if (world.fakes[w].up && !world.fakes[w].in) event(&world, w);
        for (unsigned w = 0; w < N_SERVERS + 2; w++)
          if (!world.fakes[w].up) event(&world, w);
        event(&world, ANSWER);
      } else if (what < 9) {
        let_time_pass(&world);
      } else if (what < 16) {
        event(&world, ANSWER);
      } else if (what < 24) {
        event(&world, N_SERVERS + N_WORKERS + 16);
        event(&world, N_SERVERS + N_WORKERS + 17);
      } else if (what < 31) {
        const unsigned who = (unsigned)zps_rng_below(&rng, N_SERVERS);
        if (what == 24 && world.fakes[who].up)
          go_away(&world, who);
        else
          event(&world, who);
      } else {
        event(&world, (unsigned)zps_rng_below(&rng, N_EVENTS));
      }
    }
    n_refills += world.n_refills;
    world_fini(&world);
  }
  assert_true(n_refills > 500 / THIN_STRIDE);
}

static void sink(void *ctx, enum zps_log_level level, const char *component, const char *text) {
  (void)ctx, (void)component, (void)text;
  assert_true(level > ZPS_LOG_ERROR); /* losing peers is for warnings */
}

int main(void) {
  zps_log_set_sink(sink, NULL);
  zps_log_set_level(ZPS_LOG_ERROR);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_sequence),
      cmocka_unit_test(test_every_sequence_of_a_running_job),
      cmocka_unit_test(test_every_sequence_after_a_loss),
      cmocka_unit_test(test_random_sequences),
      cmocka_unit_test(test_random_sequences_of_connections),
      cmocka_unit_test(test_random_sequences_of_places),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
