/* Messages of a change of servers in a running job: job.suspect, job.view, job.mapped, job.replay. */
#ifndef ZPS_PROTO_CONTROL_CHANGE_H
#define ZPS_PROTO_CONTROL_CHANGE_H

#include "proto/control.h"
#include "proto/control_view.h"

#define ZPS_MAP_TENSORS_MAX 8192u /* A job has as many. */
/* Of one tensor. A rank has fewer than half as many rounds of a tensor in flight, but ranks may be at different ones.
 */
#define ZPS_MAP_STEPS_MAX 128u
/* Of all tensors. So job.replay fits in a line of 4 MiB. A record of a job of 4096 ranks has at most 2^18 values. */
#define ZPS_MAP_ALL_STEPS_MAX (1u << 17)
/* The three limits, for errors. */
#define ZPS_MAP_LIMITS_FORMAT \
  "have at most %u tensors, %u steps of each, and %u steps and late ranks of decided steps in all"
#define ZPS_MAP_LIMITS ZPS_MAP_TENSORS_MAX, ZPS_MAP_STEPS_MAX, ZPS_MAP_ALL_STEPS_MAX

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

/* job.view: the job's servers in a new epoch. Of the coordinator, to a server as a call, then to the ranks as a
 * notification. To ranks it names the later servers: they know those that the job began with. */
struct zps_job_view {
  uint64_t job_id;
  struct zps_view_image view;
};
ZPS_MESSAGE(job_view, struct zps_job_view)
static inline void zps_job_view_fini(struct zps_job_view *message) {
  zps_fields_fini(&zps_control_job_view, message);
}

/* job.mapped, of a rank: the steps that it has begun, whose sums servers make, and that it has not finished.
 * job.replay, of the coordinator to all ranks: those of all of them. All zeros, with job_id and epoch, is an empty set.
 */
/* A step of a tensor with a quorum, whose late ranks are decided. */
struct zps_step_late {
  uint64_t step;
  uint32_t n_late;
  uint64_t cap_late;
  uint32_t *late; /* ranks, ascending */
};
struct zps_tensor_steps {
  uint32_t tensor;
  uint32_t n_steps;
  uint64_t cap_steps;
  uint64_t *steps; /* ascending */
  uint32_t n_decided;
  uint64_t cap_decided;
  struct zps_step_late *decided; /* ascending; each is one of `steps` */
};
struct zps_job_steps {
  uint64_t job_id;
  uint32_t epoch;
  bool is_too_many; /* job.mapped: the rank has more of them than a message may name, so the job cannot go on. */
  uint32_t n_all;   /* Steps of all tensors that zps_job_steps_add() has added, and their late ranks. */
  uint32_t n_tensors;
  uint64_t cap_tensors;
  struct zps_tensor_steps *tensors; /* by ascending number */
};
/* No more than once, in order. ZPS_ERR_NOMEM. ZPS_ERR_INVALID: too many tensors, steps of one, or steps of all. */
zps_err_t zps_job_steps_add(struct zps_job_steps *set, uint32_t tensor, uint64_t step) ZPS_MUSTCHECK;
void zps_job_steps_fini(struct zps_job_steps *set);
/* The first function adds a decided step without late ranks, the second adds a late rank to it, in ascending order. The
 * errors of zps_job_steps_add(). */
zps_err_t zps_job_steps_decide(struct zps_job_steps *set, uint32_t tensor, uint64_t step) ZPS_MUSTCHECK;
zps_err_t zps_job_steps_decide_late(struct zps_job_steps *set, uint32_t tensor, uint64_t step,
                                    uint32_t rank) ZPS_MUSTCHECK;
/* NULL: the set knows no decision. Valid until the set changes. */
const struct zps_step_late *zps_job_steps_decided(const struct zps_job_steps *set, uint32_t tensor, uint64_t step);
/* False: there is none of the tensor. */
bool zps_job_steps_oldest_decided(const struct zps_job_steps *set, uint32_t tensor, uint64_t *step_p);
/* Adds all of `from`, or of one tensor. A decision that the set has stays. */
zps_err_t zps_job_steps_merge(struct zps_job_steps *set, const struct zps_job_steps *from) ZPS_MUSTCHECK;
zps_err_t zps_job_steps_merge_tensor(struct zps_job_steps *set, const struct zps_tensor_steps *from) ZPS_MUSTCHECK;
ZPS_MESSAGE(job_steps, struct zps_job_steps)

#endif
