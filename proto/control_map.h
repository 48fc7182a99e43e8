/* Messages that carry a job on when one of its servers is lost, or drains: job.suspect, job.map, job.mapped,
 * job.replay. */
#ifndef ZPS_PROTO_CONTROL_MAP_H
#define ZPS_PROTO_CONTROL_MAP_H

#include "proto/control_job.h"

#define ZPS_MAP_TENSORS_MAX 8192u /* A job has as many. */
/* Of one tensor. A rank has fewer than half as many rounds of a tensor in flight, but ranks may be at different ones.
 */
#define ZPS_MAP_STEPS_MAX 128u
/* Of all tensors. So job.replay fits in a line of 4 MiB. A record of a job of 4096 ranks has at most 2^18 values. */
#define ZPS_MAP_ALL_STEPS_MAX (1u << 17)

/* job.suspect, of a rank: the servers of its job that it cannot reach over the data plane, all of them; none: it can
 * again. The coordinator decides. */
#define ZPS_SUSPECT_WHY_MAX 160u
struct zps_job_suspects {
  uint64_t job_id;
  uint32_t n_servers;
  uint32_t *servers;                 /* positions in the job, ascending; malloc'd by the reader */
  char why[ZPS_SUSPECT_WHY_MAX + 1]; /* of the first of them, for people; printable, and may be empty */
};
ZPS_MESSAGE(suspect, struct zps_job_suspects)
static inline void zps_job_suspects_fini(struct zps_job_suspects *suspects) {
  zps_fields_fini(&zps_control_suspect, suspects);
}

/* A server that is in the place of one that the job was rid of. */
struct zps_joined_server {
  uint32_t position; /* in the job */
  uint32_t since;    /* the epoch that it came with */
  struct zps_join_server server;
};

/* job.map: the job's new epoch, all servers of it that it has to do without, and all that are not those that it began
 * with. Of the coordinator, to a server as a call, then to the ranks as a notification. */
struct zps_job_map {
  uint64_t job_id;
  uint32_t epoch;
  uint32_t n_lost;
  uint32_t *lost; /* positions in the job, ascending; malloc'd by the reader */
  uint32_t n_drained;
  uint32_t *drained; /* of them, those that live, and leave in this epoch; likewise */
  uint32_t n_joined;
  struct zps_joined_server *joined; /* by ascending position; likewise */
};
ZPS_MESSAGE(job_map, struct zps_job_map)
static inline bool zps_job_map_drains(const struct zps_job_map *map, uint32_t position) {
  for (uint32_t i = 0; i < map->n_drained; i++)
    if (map->drained[i] == position) return true;
  return false;
}
static inline void zps_job_map_fini(struct zps_job_map *map) {
  zps_fields_fini(&zps_control_job_map, map);
}
/* ZPS_ERR_NOMEM: *copy is empty. */
zps_err_t zps_job_map_copy(struct zps_job_map *copy, const struct zps_job_map *map) ZPS_MUSTCHECK;

/* job.mapped, of a rank: the steps that it has begun, whose sums servers make, and that it has not finished.
 * job.replay, of the coordinator to all ranks: those of all of them. All zeros, with job_id and epoch, is an empty set.
 */
struct zps_tensor_steps {
  uint32_t tensor;
  uint32_t n_steps, cap_steps;
  uint64_t *steps; /* ascending */
};
struct zps_job_steps {
  uint64_t job_id;
  uint32_t epoch;
  bool is_too_many; /* job.mapped: the rank has more of them than a message may name, so the job cannot go on. */
  uint32_t n_all;   /* Steps of all tensors that zps_job_steps_add() has added. */
  uint32_t n_tensors, cap_tensors;
  struct zps_tensor_steps *tensors; /* by ascending number */
};
/* No more than once, in order. ZPS_ERR_NOMEM. ZPS_ERR_INVALID: too many tensors, steps of one, or steps of all. */
zps_err_t zps_job_steps_add(struct zps_job_steps *set, uint32_t tensor, uint64_t step) ZPS_MUSTCHECK;
void zps_job_steps_fini(struct zps_job_steps *set);
ZPS_MESSAGE(job_steps, struct zps_job_steps)

#endif
