#define ZPS_LOG_COMPONENT "sharing"
#include "worker/plane/sharing.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/base/log.h"
#include "worker/base/options.h"
#include "worker/control/membership.h"
#include "worker/plane/plane.h"

/* All ranks of a host listen before one of them connects, so they meet in no time, unless a rank cannot. */
#define MEET_TIMEOUT_MS 2000u

void zps_sharing_begin(struct zps_sharing *sharing, const struct zps_worker_options *options,
                       const struct zps_join *join, const struct zps_join_peers *peers) {
  const uint32_t me = (uint32_t)options->rank;
  struct zps_error error;
  *sharing = (struct zps_sharing){.options = options, .fd = -1};
  bool *near = calloc(peers->world, sizeof *near);
  uint32_t n_near = 0;
  for (uint32_t r = 0; near && r < peers->world; r++) {
    near[r] = r != me && strcmp(peers->ranks[r].host, peers->ranks[me].host) == 0;
    n_near += near[r];
  }
  sharing->config = (struct zps_neighbours_config){.job_id = join->job_id,
                                                   .seed = join->seed,
                                                   .rank = me,
                                                   .world = peers->world,
                                                   .near = near,
                                                   .has_device = options->device >= 0};
  if (n_near == 0 || !options->shared_memory) return;
  if (zps_neighbours_listen(&sharing->config, &sharing->fd, &error) != ZPS_OK)
    zps_log_warn("the %" PRIu32
                 " other ranks of this host cannot connect to share memory (%s): data for them goes over the fabric",
                 n_near, error.text);
}

/* A segment with room for twice the registered memory, since sizes that are powers of two do not fill gaps. NULL: it
 * cannot be made. */
static struct zps_segment *make_segment(const struct zps_worker_options *options, uint32_t world, uint64_t *proof_p) {
  struct zps_segment *segment;
  struct zps_error error;
  if (getrandom(proof_p, sizeof *proof_p, 0) != (ssize_t)sizeof *proof_p) *proof_p = 0;
  *proof_p |= 1; /* 0 is none */
  if (zps_segment_create(2 * options->memory_limit_bytes, *proof_p, world, &segment, &error) == ZPS_OK) return segment;
  zps_log_warn("cannot share memory with the other ranks of this host: %s; data for them goes over the fabric",
               error.text);
  return NULL;
}

struct share_command {
  struct zps_command command;
  struct zps_segment *segment;
  const struct zps_neighbour *neighbours;
};

static void *segment_get(void *ctx, size_t bytes) {
  return zps_segment_get(ctx, bytes);
}

static void segment_put(void *ctx, void *data, size_t bytes) {
  zps_segment_put(ctx, data, bytes);
}

static void share_run(struct zps_command *command, void *handler_ctx) {
  const struct share_command *share = (const struct share_command *)command;
  struct zps_plane *plane = handler_ctx;
  for (uint32_t r = 0; r < plane->world; r++) plane->ranks[r].shared = share->neighbours[r];
  plane->segment = share->segment;
  if (!plane->segment) return;
  plane->segment_memory = (struct zps_slab_memory){.get = segment_get, .put = segment_put, .ctx = plane->segment};
  zps_slab_set_memory(zps_engine_slab(plane->engine), &plane->segment_memory);
}

/* Sets the memory that this rank and others of its host share, once they are linked; `segment` is the plane's from here
 * on, and may be NULL. Not on the engine thread. */
static zps_err_t share(struct zps_plane *plane, struct zps_segment *segment, const struct zps_neighbour *neighbours,
                       struct zps_error *error) {
  struct share_command command = {.command.run = share_run, .segment = segment, .neighbours = neighbours};
  const zps_err_t err = zps_engine_call(plane->engine, &command.command);
  return err == ZPS_OK ? err : zps_fail(error, err, "the progress thread does not answer: %s", zps_err_str(err));
}

zps_err_t zps_sharing_meet(struct zps_sharing *sharing, struct zps_plane *plane, struct zps_error *error) {
  const uint32_t world = sharing->config.world;
  if (sharing->fd < 0) return ZPS_OK;
  struct zps_neighbour *neighbours = calloc(world, sizeof *neighbours);
  if (!neighbours) return zps_fail(error, ZPS_ERR_NOMEM, "no memory to meet the ranks of this host");
  uint64_t proof = 0;
  struct zps_segment *segment = make_segment(sharing->options, world, &proof);
  const int fd = sharing->fd;
  sharing->fd = -1;
  zps_neighbours_meet(&sharing->config, fd, segment, proof, MEET_TIMEOUT_MS, neighbours);
  uint32_t n_mapped = 0;
  for (uint32_t r = 0; r < world; r++) n_mapped += neighbours[r].maps_ours;
  if (n_mapped == 0) { /* no rank reads it */
    zps_segment_destroy(segment);
    segment = NULL;
  }
  const zps_err_t err = share(plane, segment, neighbours, error);
  if (err == ZPS_OK) {
    zps_log_debug("%" PRIu32 " other ranks of this host share memory with us", n_mapped);
  } else {
    for (uint32_t r = 0; r < world; r++) zps_segment_unmap(&neighbours[r].view);
    zps_segment_destroy(segment);
  }
  free(neighbours);
  return err;
}

void zps_sharing_fini(struct zps_sharing *sharing) {
  if (sharing->fd >= 0) close(sharing->fd);
  free((bool *)(uintptr_t)sharing->config.near);
}
