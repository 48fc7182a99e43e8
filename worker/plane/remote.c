/* The data plane between ranks: links to all other ranks, what this rank shares with those of its host, and ranks that
 * leave. */
#define ZPS_LOG_COMPONENT "plane"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "worker/compute/compute.h"
#include "worker/control/membership.h"
#include "worker/plane/plane.h"

/* ------------------------------------------------------------ links */

struct link_command {
  struct zps_command command;
  const struct zps_join_peers *peers;
  zps_err_t code;
  struct zps_error error;
};

static void forget_ranks(struct zps_plane *plane) {
  free(plane->ranks);
  plane->ranks = NULL;
  zps_scratch_pool_destroy(plane->scratches);
  plane->scratches = NULL;
}

static void drop_ranks(struct zps_plane *plane) {
  for (uint32_t r = 0; r < plane->world; r++) plane->ranks[r].lost = true;
  zps_plane_drop_lost(plane);
  forget_ranks(plane);
}

static zps_err_t scratch_create(void **scratch_p) {
  struct zps_compute_scratch *scratch;
  const zps_err_t err = zps_compute_scratch_create(&scratch);
  if (err == ZPS_OK) *scratch_p = scratch;
  return err;
}

static void scratch_destroy(void *scratch) {
  zps_compute_scratch_destroy(scratch);
}

/* A scratch for each thread of the pool, and one for the engine thread. */
static zps_err_t make_scratches(struct zps_plane *plane) {
  return zps_scratch_pool_create(zps_workpool_threads(plane->pool) + 1, scratch_create, scratch_destroy,
                                 &plane->scratches);
}

static void link_run(struct zps_command *command, void *handler_ctx) {
  struct link_command *link = (struct link_command *)command;
  const struct zps_join_peers *peers = link->peers;
  struct zps_plane *plane = handler_ctx;
  if (plane->ranks) return;
  plane->ranks = calloc(peers->world, sizeof *plane->ranks);
  if (!plane->ranks || make_scratches(plane) != ZPS_OK) {
    forget_ranks(plane);
    link->code = zps_fail(&link->error, ZPS_ERR_NOMEM, "no memory for links to %" PRIu32 " ranks", peers->world);
    return;
  }
  plane->world = peers->world;
  for (uint32_t r = 0; r < peers->world; r++) {
    struct zps_remote *rank = &plane->ranks[r];
    const struct zps_join_peer *to = &peers->ranks[r];
    struct zps_error why;
    rank->plane = plane;
    rank->index = r;
    rank->tag = plane->n_servers + r;
    rank->is_rank = true;
    snprintf(rank->name, sizeof rank->name, "%s", to->host);
    if (r == plane->rank) continue;
    link->code = zps_plane_remote_connect(plane, rank, to->addr, to->addr_len, &why);
    if (link->code == ZPS_OK) continue;
    zps_fail(&link->error, link->code, "cannot reach rank %" PRIu32 " (host %s): %s", r, rank->name, why.text);
    drop_ranks(plane);
    return;
  }
}

zps_err_t zps_plane_link(struct zps_plane *plane, const struct zps_join_peers *peers, struct zps_error *error) {
  struct link_command link = {.command.run = link_run, .peers = peers};
  const zps_err_t err = zps_engine_call(plane->engine, &link.command);
  if (err != ZPS_OK) return zps_fail(error, err, "the progress thread does not answer: %s", zps_err_str(err));
  if (link.code != ZPS_OK && error) *error = link.error;
  return link.code;
}

bool zps_plane_shares_device(const struct zps_plane *plane, uint32_t rank) {
  const struct zps_neighbour *const neighbour = &plane->ranks[rank].shared;
  return neighbour->view.base && neighbour->maps_ours && neighbour->has_device;
}

void zps_plane_give_up(struct zps_plane *plane, uint32_t rank) {
  const struct zps_remote *const remote = &plane->ranks[rank];
  if (!plane->segment || !remote->shared.maps_ours || zps_segment_has_given_up(plane->segment, rank)) return;
  zps_segment_give_up(plane->segment, rank);
  zps_log_info(
      "rank %" PRIu32
      " (host %s) has not acknowledged its reads: their memory is used again, and no memory is shared with it any more",
      rank, remote->name);
}

bool zps_plane_has_given_up(const struct zps_plane *plane, uint32_t rank) {
  return plane->segment && zps_segment_has_given_up(plane->segment, rank);
}

zps_err_t zps_plane_check_copied(const struct zps_plane *plane, uint32_t rank, struct zps_error *error) {
  const struct zps_remote *const remote = &plane->ranks[rank];
  if (!remote->shared.view.base || !zps_segment_view_is_past(&remote->shared.view, plane->rank)) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_PEER_LOST,
                  "rank %" PRIu32
                  " (host %s) has gone on before this rank had read its memory: the job has failed there, "
                  "or this rank was not heard of for too long",
                  rank, remote->name);
}

/* ------------------------------------------------------------ ranks that go */

struct left_command {
  struct zps_command command;
  uint32_t rank;
};

static void left_run(struct zps_command *command, void *handler_ctx) {
  struct left_command *left = (struct left_command *)command;
  struct zps_plane *plane = handler_ctx;
  if (plane->ranks && left->rank < plane->world && left->rank != plane->rank) {
    plane->ranks[left->rank].left_ns = zps_clock_ns();
    plane->left_due_ns = 0;
    plane->handler.on_left(plane->handler.ctx); /* rounds that wait for it are looked at */
  }
  free(left);
}

void zps_plane_rank_left(struct zps_plane *plane, uint32_t rank) {
  struct left_command *left = malloc(sizeof *left);
  if (!left) return; /* rounds that wait for it end at their deadlines */
  *left = (struct left_command){.command.run = left_run, .rank = rank};
  zps_engine_post(plane->engine, &left->command);
}

uint64_t zps_plane_check_left(struct zps_plane *plane, uint64_t now_ns) {
  uint64_t next_ns = ZPS_NEVER;
  for (uint32_t r = 0; plane->ranks && r < plane->world; r++) {
    struct zps_remote *rank = &plane->ranks[r];
    if (!rank->left_ns || rank->lost) continue;
    const uint64_t at_ns = rank->left_ns + ZPS_RANK_LEFT_GRACE_NS;
    if (now_ns >= at_ns) {
      zps_plane_lose(rank, "it left the job");
    } else if (at_ns < next_ns) {
      next_ns = at_ns;
    }
  }
  return next_ns;
}
