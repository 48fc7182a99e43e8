/*
 * Ranks of one host find each other, and map each other's segments (segment.h).
 *
 * They meet at sockets without a place in the file system, named after job, seed and rank; each socket hands over a
 * descriptor of its rank's segment. A rank proves that it has mapped another rank's segment by repeating the proof that
 * it read there: host labels may be anything, and containers of a host may or may not see each other. With a rank that
 * does not come, or cannot map, nothing is shared: the fabric carries its payloads.
 */
#ifndef ZPS_WORKER_PLANE_SHARED_NEIGHBOURS_H
#define ZPS_WORKER_PLANE_SHARED_NEIGHBOURS_H

#include "worker/plane/shared/segment.h"

struct zps_neighbours_config {
  uint64_t job_id, seed;
  uint32_t rank, world;
  const bool *near; /* per rank: whether it says to be on this host; our own is ignored */
  bool has_device;  /* it was opened with one */
};

struct zps_neighbour {
  struct zps_segment_view view; /* its segment */
  bool maps_ours;
  bool has_device; /* it says so */
};

/* Opens this rank's socket, before any other rank is told that it may look for it. */
zps_err_t zps_neighbours_listen(const struct zps_neighbours_config *config, int *fd_p,
                                struct zps_error *error) ZPS_MUSTCHECK;
/* Meets the ranks that are near, all of which listen, and fills in `neighbours` (one per rank) with those that come
 * within `timeout_ms`. Closes `fd`. `segment` may be NULL: there is none of ours. */
void zps_neighbours_meet(const struct zps_neighbours_config *config, int fd, const struct zps_segment *segment,
                         uint64_t proof, uint64_t timeout_ms, struct zps_neighbour *neighbours);

#endif
