/* What may happen in the world, but for connections: answers of servers, calls of ranks, drains, time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/server/membership/explore.h"

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
  int *token = explore_token(world);
  if (zps_members_tensor_register(world->members, &fake->client, &spec, token, NULL)) ++*token;
}

static void answer_late(struct world *world, zps_err_t code) {
  while (world->n_late) {
    const struct late late = world->late[--world->n_late];
    zps_members_job_opened(world->members, &world->fakes[late.server].client, late.job_id, code, code ? "no" : NULL);
  }
}

static void answer_all(struct world *world, zps_err_t code) {
  answer_late(world, code);
  for (unsigned s = 0; s < N_SERVERS; s++) {
    for (unsigned i = 0; i < world->fakes[s].n_held; i++) {
      struct held *held = &world->fakes[s].held[i];
      if (held->answered) continue;
      held->answered = true;
      zps_members_job_opened(world->members, &world->fakes[s].client, held->job_id, code, code ? "no" : NULL);
      i = UINT32_MAX; /* the list may have changed */
    }
  }
  while (world->n_open) {
    const struct request request = world->open[--world->n_open];
    zps_members_tensor_opened(world->members, &world->fakes[request.server].client, request.job_id, request.tensor,
                              code, code ? "no" : NULL);
  }
}

static void answer_maps(struct world *world, zps_err_t code) {
  while (world->n_maps) {
    const struct map map = world->maps[--world->n_maps];
    struct fake *const fake = &world->fakes[map.server];
    struct held *const held = explore_held(fake, map.job_id);
    const struct zps_member_job *const job = zps_members_job(world->members, map.job_id);
    const bool leaves =
        job && zps_view_find(&job->view, fake->client.server, 1u << ZPS_PLACE_LEAVING) < job->view.n_places;
    if (held && (!code || leaves) && map.epoch > held->mapped) held->mapped = map.epoch;
    zps_members_map_answered(world->members, &fake->client, map.job_id, map.epoch, code, code ? "no" : NULL);
  }
}

static void say_mapped(struct world *world, struct fake *fake, uint32_t rank) {
  uint64_t steps[] = {4, 5 + rank};
  struct zps_tensor_steps tensor = {.tensor = fake->tensor, .n_steps = 2, .steps = steps};
  struct zps_job_steps set = {.job_id = fake->job_id, .epoch = fake->asked - 1, .n_tensors = 1, .tensors = &tensor};
  if (fake->asked == 0) return;
  const zps_err_t err =
      zps_settled(world->members, zps_members_mapped(&fake->client, &set, NULL)); /* late: means nothing */
  assert_int_equal(err != ZPS_OK, !fake->in || fake->failed || fake->client.job == NULL);
  set.epoch = fake->asked;
  if (err == ZPS_OK) fake->mapped = fake->asked;
  assert_int_equal(zps_settled(world->members, zps_members_mapped(&fake->client, &set, NULL)), err);
}

static void link(struct world *world, struct fake *fake) {
  int *token = explore_token(world);
  if (zps_members_linked(world->members, &fake->client, fake->job_id, 10, token, world->now_ns, NULL)) ++*token;
}

/* Ranks 0 and 1, or 0 alone: under one name. */
static void open_group(struct world *world, struct fake *fake, uint32_t n_ranks) {
  static const uint32_t ranks[] = {0, 1};
  const struct zps_group_spec spec = {
      .job_id = fake->job_id, .name = "g", .ranks = ranks, .n_ranks = n_ranks, .timeout_ms = 10};
  int *token = explore_token(world);
  if (zps_members_group_open(world->members, &fake->client, &spec, token, world->now_ns, NULL)) ++*token;
}

static void close_group(struct world *world, struct fake *fake) {
  const zps_err_t err = zps_members_group_close(world->members, &fake->client, fake->job_id, "g", NULL);
  assert_true(err == ZPS_OK || err == ZPS_ERR_UNKNOWN || fake->failed);
}

static void close_tensor(struct world *world, struct fake *fake) {
  int *token = explore_token(world);
  if (zps_settled(world->members,
                  zps_members_tensor_close(&fake->client, fake->job_id, fake->tensor, 10, token, world->now_ns, NULL)))
    ++*token;
}

static void toggle_drain(struct world *world, const char *name) {
  const struct zps_member_server *const server = explore_server(world, name), *at = NULL;
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
  for (uint32_t i = 0; i < job->view.n_places; i++) n_joining += zps_member_job_admits(job, i);
  assert_int_equal(said->outcome == ZPS_REBALANCE_MOVES, n_joining > 0);
  assert_true(said->why[0] && (said->outcome == ZPS_REBALANCE_STAYS || job->state == ZPS_JOB_RUNNING));
}

/* Its rank, whoever has it. */
static void kick(struct world *world, const struct fake *fake) {
  struct zps_member_kicked kicked;
  const struct zps_member_job *const job = zps_members_job_first(world->members);
  const uint32_t rank = explore_workers[fake - world->fakes - N_SERVERS].rank;
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

static void leave(struct world *world, struct fake *fake) {
  if (zps_members_leave(world->members, &fake->client, fake->job_id, NULL)) return;
  assert_true(fake->in);
  fake->in = fake->up = false;
}

static void tick(struct world *world) {
  unsigned jobs;
  world->now_ns += 20 * ZPS_NS_PER_MS;
  assert_true(zps_members_tick(world->members, world->now_ns) > world->now_ns);
  if (world->fakes[0].up)
    assert_int_equal(zps_members_server_drain(world->members, &world->fakes[0].client, &jobs, NULL), 0);
}

static void answer(struct world *world, zps_err_t code) {
  answer_all(world, code);
  answer_maps(world, code);
}

void explore_pass_time(struct world *world) {
  world->now_ns += 6 * ZPS_NS_PER_S;
  assert_true(zps_members_tick(world->members, world->now_ns) > world->now_ns);
  explore_check(world);
}

void explore_event(struct world *world, enum explore_event what) {
  struct fake *w0 = &world->fakes[N_SERVERS], *w1 = &world->fakes[N_SERVERS + 1];
  world->now_ns += ZPS_NS_PER_MS;
  switch (what) {
    case EVENT_ANSWER:
      answer(world, ZPS_OK);
      break;
    case EVENT_REFUSE:
      answer(world, ZPS_ERR_NOMEM);
      break;
    case EVENT_REGISTER_0:
      register_tensor(world, w0, 1000);
      break;
    case EVENT_REGISTER_1:
      register_tensor(world, w1, 1000);
      break;
    case EVENT_REGISTER_OTHER:
      register_tensor(world, w1, 999);
      break;
    case EVENT_LEAVE_0:
      leave(world, w0);
      break;
    case EVENT_LEAVE_1:
      leave(world, w1);
      break;
    case EVENT_TICK:
      tick(world);
      break;
    case EVENT_LINK_0:
      link(world, w0);
      break;
    case EVENT_LINK_1:
      link(world, w1);
      break;
    case EVENT_GROUP_0:
      open_group(world, w0, 2);
      break;
    case EVENT_GROUP_1:
      open_group(world, w1, 2);
      break;
    case EVENT_GROUP_ALONE:
      open_group(world, w0, 1);
      break;
    case EVENT_GROUP_CLOSE:
      close_group(world, w0);
      break;
    case EVENT_CLOSE_0:
      close_tensor(world, w0);
      break;
    case EVENT_CLOSE_1:
      close_tensor(world, w1);
      break;
    case EVENT_MAPPED_0:
      say_mapped(world, w0, 0);
      break;
    case EVENT_MAPPED_1:
      say_mapped(world, w1, 1);
      break;
    case EVENT_DRAIN:
      toggle_drain(world, explore_names[1]);
      break;
    case EVENT_SUSPECT_ONE_0:
      suspect(world, w0, 1);
      break;
    case EVENT_SUSPECT_TWO_1:
      suspect(world, w1, 2);
      break;
    case EVENT_SUSPECT_ONE_1:
      suspect(world, w1, 1);
      break;
    case EVENT_REBALANCE:
      assert_int_equal(zps_members_rebalance(world->members, NULL, rebalanced, NULL, NULL), ZPS_OK);
      break;
    case EVENT_KICK:
      kick(world, w1);
      break;
    default:
      explore_toggle(world, what);
  }
  /* A client that was refused is still connected, and may ask again after it has gone. */
  explore_check(world);
}
