/* Messages about the generations of an elastic job: job.next and its answer, job.leave. */
#ifndef ZPS_PROTO_CONTROL_NEXT_H
#define ZPS_PROTO_CONTROL_NEXT_H

#include "proto/control_job.h"

/* job.next, of a worker: a job.join whose rank and world are wishes. */
struct zps_next_spec {
  struct zps_join_spec join;
  uint32_t min_world, max_world;
  uint64_t wait_ms; /* for more than are there */
  uint64_t step;    /* last step that the process has completed */
  /* Of the last generation that it was in; 0: none. */
  uint32_t generation, last_rank;
  uint64_t last_job; /* its id: generations are numbered anew when all ranks have gone */
};
extern const struct zps_fields zps_control_next;
zps_json *zps_control_next_write(const struct zps_next_spec *spec);
zps_err_t zps_control_next_read(const zps_json *params, struct zps_next_spec *spec, struct zps_net_info *fabric,
                                struct zps_error *error) ZPS_MUSTCHECK;

/* What the answer of job.next adds to that of job.join. */
struct zps_generation {
  uint32_t number; /* from 1 on; 0: the job is not elastic */
  uint32_t source; /* the rank whose state the others take */
  uint64_t step;   /* steps that this state has completed */
};
struct zps_next_answer {
  struct zps_generation generation;
  uint32_t rank, world; /* of the process, in it */
};
extern const struct zps_fields zps_control_next_answer;
/* Adds all of it; nothing where the number is 0. */
zps_json *zps_control_generation_write(zps_json *object, const struct zps_generation *generation, uint32_t rank,
                                       uint32_t world);
/* Where the object has none, the number is 0, and rank and world are left as they are. */
zps_err_t zps_control_generation_read(const zps_json *object, struct zps_generation *generation, uint32_t *rank_p,
                                      uint32_t *world_p, struct zps_error *error) ZPS_MUSTCHECK;

/* job.leave, of a worker. */
struct zps_leave_spec {
  uint64_t job_id;
  bool moves; /* The rank is about to ask for the next generation. */
  struct zps_error first; /* The rank's first error, as in job.stats. */
};
ZPS_MESSAGE(leave, struct zps_leave_spec)

#endif
