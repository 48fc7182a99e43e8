/* What must hold: of each action that the module asks for, and of all its jobs after each event. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/server/membership/explore.h"

static struct story *story_of(struct world *world, uint64_t job_id) {
  for (unsigned i = world->n_stories; i-- > 0;) {
    if (world->stories[i].job_id == job_id) return &world->stories[i];
  }
  assert_true(world->n_stories < STORIES_MAX);
  world->stories[world->n_stories] = (struct story){.job_id = job_id};
  return &world->stories[world->n_stories++];
}

void explore_note(void *ctx, const struct zps_member_note *note) {
  struct world *world = ctx;
  if (note->type != ZPS_NOTE_JOB_ENDED) return;
  const struct zps_history_record *const ended = note->ended;
  struct story *story = story_of(world, ended->job_id);
  assert_false(story->ended);
  story->ended = true;
  assert_int_equal(ended->cause.code != ZPS_OK, ended->cause.text[0] != '\0');
  if (story->failed) assert_int_equal(ended->cause.code, story->failed);
  if (!ended->cause.code) assert_true(ended->n_left == ended->world && ended->n_lost == 0);
}

static unsigned fake_of(struct world *world, const struct zps_member_client *client) {
  for (unsigned i = 0; i < N_SERVERS + N_WORKERS; i++) {
    if (&world->fakes[i].client == client) return i;
  }
  fail_msg("action for an unknown client");
  return 0;
}

struct held *explore_held(struct fake *server, uint64_t job_id) {
  for (unsigned i = 0; i < server->n_held; i++) {
    if (server->held[i].job_id == job_id) return &server->held[i];
  }
  return NULL;
}

/* Servers have all answered job.view of the job's epoch. */
static void check_servers_mapped(struct world *world, const struct zps_member_job *job) {
  for (uint32_t i = 0; i < job->view.n_places; i++) {
    const struct zps_member_server *const server = zps_view_listener(&job->view, i);
    if (!server) continue;
    const struct held *at = explore_held(&world->fakes[server->pid], job->job_id); /* maybe away */
    assert_true(at && at->mapped == job->view.epoch);
  }
}

/* Ranks have, too. */
static void check_ranks_mapped(struct world *world, const struct zps_member_job *job) {
  for (uint32_t r = 0; r < job->world; r++)
    if (job->ranks[r]->state == ZPS_RANK_IN) assert_int_equal(world->fakes[job->ranks[r]->pid].mapped, job->view.epoch);
}

static bool is_joining(const struct zps_action *action, const struct fake *server) {
  return zps_member_job_admits(action->job, action->position) &&
         action->job->view.places[action->position].server == server->client.server;
}

void explore_act(void *ctx, const struct zps_action *action) {
  struct world *world = ctx;
  const unsigned who = fake_of(world, action->client);
  struct fake *fake = &world->fakes[who];
  struct held *held = NULL;
  if (action->type <= ZPS_ACT_REPLAY_SERVER) {
    assert_true(who < N_SERVERS && fake->up);
    held = explore_held(fake, action->job->job_id);
    assert_int_equal(held != NULL, action->type != ZPS_ACT_JOB_OPEN);
  } else {
    assert_true(who >= N_SERVERS);
  }
  switch (action->type) {
    case ZPS_ACT_JOB_OPEN:
      assert_true(fake->n_held < HELD_MAX);
      assert_true(zps_view_server(&action->job->view, action->position) == fake->client.server ||
                  is_joining(action, fake));
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
      assert_true((held->answered || is_joining(action, fake)) && world->n_open < OPEN_MAX);
      world->open[world->n_open++] =
          (struct request){.server = who, .job_id = action->job->job_id, .tensor = action->tensor->spec.tensor};
      break;
    case ZPS_ACT_TENSOR_FORGET:
    case ZPS_ACT_TENSORS_KEEP:
      assert_true(held->answered);
      break;
    case ZPS_ACT_MAP_SERVER:
      assert_true(world->replays && held->answered && action->job->view.epoch >= held->asked &&
                  world->n_maps < OPEN_MAX);
      assert_int_equal(action->job->state, ZPS_JOB_RUNNING);
      assert_ptr_equal(zps_view_listener(&action->job->view, action->position), fake->client.server);
      if (action->job->view.places[action->position].since > held->asked) {
        for (unsigned i = 0; i < world->n_open; i++) /* it has all tensors that are open */
          assert_false(world->open[i].server == who && world->open[i].job_id == action->job->job_id);
        world->n_placements++;
      }
      held->asked = action->job->view.epoch;
      world->maps[world->n_maps++] =
          (struct map){.server = who, .job_id = action->job->job_id, .epoch = action->job->view.epoch};
      break;
    case ZPS_ACT_REPLAY_SERVER:
      assert_true(action->job->view.epoch >= held->replayed && held->mapped == action->job->view.epoch);
      check_servers_mapped(world, action->job);
      check_ranks_mapped(world, action->job);
      held->replayed = action->job->view.epoch;
      break;
    case ZPS_ACT_MAP_RANK:
      assert_true(fake->in && !fake->failed && fake->job_id == action->job->job_id);
      assert_true(action->job->view.epoch >= fake->asked);
      check_servers_mapped(world, action->job);
      fake->asked = action->job->view.epoch;
      break;
    case ZPS_ACT_REPLAY_RANK:
      assert_true(fake->in && !fake->failed && fake->job_id == action->job->job_id);
      assert_true(action->job->view.epoch >= fake->replayed);
      check_servers_mapped(world, action->job);
      check_ranks_mapped(world, action->job);
      fake->replayed = action->job->view.epoch;
      break;
    case ZPS_ACT_JOIN_DONE:
      assert_int_equal(action->job->state, ZPS_JOB_RUNNING);
      for (uint32_t i = 0; i < action->job->view.n_first; i++) {
        const struct held *at = explore_held(
            &world->fakes[fake_of(world, zps_view_server(&action->job->view, i)->client)], action->job->job_id);
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
      if (action->rank == explore_workers[who - N_SERVERS].rank)
        fake->in = fake->up = false; /* it is the one that is lost */
      break;
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
    const uint32_t n_servers = zps_view_count(&job->view, ZPS_PLACE_IN);
    if (job->state == ZPS_JOB_OPENING || !world->replays) assert_int_equal(n_servers, job->view.n_first);
    assert_true(n_servers > 0 && zps_member_job_servers_lost(job) <= job->view.n_places - n_servers);
    assert_true(job->view.n_first <= job->view.n_places && (world->places == 0 || job->view.n_places >= world->places));
    const bool was_mapped = n_servers < job->view.n_first || zps_view_has_successors(&job->view);
    if (!was_mapped) assert_int_equal(job->map.state, ZPS_MAP_NONE);
    for (uint32_t r = 0; job->state == ZPS_JOB_RUNNING && was_mapped && r < job->world; r++) {
      if (job->ranks[r]->state != ZPS_RANK_IN || !job->ranks[r]->client) continue;
      const bool is_over = job->map.state == ZPS_MAP_NONE || job->map.state == ZPS_MAP_OVER;
      assert_int_equal(world->fakes[fake_of(world, job->ranks[r]->client)].replayed == job->view.epoch, is_over);
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

void explore_check(struct world *world) {
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
