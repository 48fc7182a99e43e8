/*
 * A process's membership in a job: ties the control side (worker/control) to the data plane (worker/plane), and owns
 * tensors.
 *
 * Locks, outer first: collective (the job's and each group's), open, device_lock, telemetry's, lock. `lock` guards what
 * requests and rounds share with the trainer's threads, and is never held while waiting for a peer.
 */
#ifndef ZPS_WORKER_API_JOB_H
#define ZPS_WORKER_API_JOB_H

#include <pthread.h>
#include <sys/types.h>

#include "common/plan/calibration.h"
#include "worker/api/first.h"
#include "worker/api/telemetry.h"
#include "worker/api/tensor.h"
#include "worker/api/deferred_thread.h"
#include "worker/base/error.h"
#include "worker/base/group.h"
#include "worker/base/options.h"
#include "worker/control/membership.h"
#include "worker/plane/plane.h"
#include "worker/round/rounds.h"

enum { ZPS_CLOSED_KEPT = 64 };

struct zps_view_command;

struct zenps_job {
  atomic_uint refs; /* zenps_open()'s, and one for each request: after zenps_close() they still have pid and `lock` */
  pid_t pid;        /* of the process that opened it: a child has no threads behind it */
  struct zps_worker_options options;
  struct zps_membership membership;
  struct zps_stuck stuck; /* the engine, as the control thread sees it */
  struct zps_plane plane;
  struct zps_rounds rounds;
  struct zps_spares spares; /* engine thread */
  struct zps_join join;     /* Its view: the present one, under `lock`. */
  int event_fd;
  atomic_bool
      fd_asked; /* the trainer has the descriptor, so it is written to; before that, `fd_due` notes that it should be */
  atomic_bool fd_due;

  struct zps_collective collective; /* among all ranks */

  pthread_mutex_t open;                    /* one tensor is opened at a time */
  bool linked;                             /* all ranks are linked to each other */
  struct zps_join_peers peers;             /* from then on */
  struct zps_plan_calibration calibration; /* of this machine, once a tensor's scheme is auto; threads 0: not yet */

  struct zps_telemetry telemetry;

  pthread_mutex_t device_lock;
  struct zps_worker_device *device; /* NULL: none yet */

  pthread_mutex_t lock;
  pthread_cond_t done; /* a request is done, or a round over */
  struct zenps_tensor *tensors;
  bool is_connected;                  /* False: a view of the coordinator's waits. */
  struct zps_view_command *early;     /* The last view that waits. NULL: none has come. */
  struct zps_deferred_thread waiting; /* allreduces under auto that have not begun */
  struct zenps_group *groups;
  /* What is left of tensors that were closed, so that who still uses one is told so: of the last ones. */
  struct zenps_tensor *closed[ZPS_CLOSED_KEPT];
  unsigned n_closed;                             /* ever */
  struct zps_worker_range *ranges;               /* registered memory */
  struct zenps_request *unseen, **unseen_last_p; /* those whose ends the trainer has not seen, the oldest first */
  uint64_t n_begun;                              /* rounds, ever */
  unsigned n_serving;                            /* rounds done here, of which other ranks still read */
  bool closing;                                  /* nothing is canceled any more: all rounds end */
  struct zps_first first;
  bool failed;
  atomic_bool changed; /* it goes no further, or others wait to be let in */
  struct zps_frame_abort failure;
  struct zps_command failure_command;
};

/* Opens a job with these options, which are taken over; `last` as zps_membership_open() has it. */
zps_err_t zps_worker_job_start(struct zps_worker_options *options, const struct zps_last_place *last,
                               struct zenps_job **job_p, struct zps_error *error) ZPS_MUSTCHECK;
/* Closes it; `options`, where it is not NULL, takes its options over, for the next generation. */
void zps_worker_job_end(struct zenps_job *job, struct zps_worker_options *options);

void zps_worker_job_unref(struct zenps_job *job);
bool zps_worker_forked(const struct zenps_job *job);
/* The error every call returns in a child. */
zenps_status_t zps_worker_fail_forked(void);
/* Under the job's lock: fails with the job's failure if it has one. */
zenps_status_t zps_worker_job_check(struct zenps_job *job);

/* The job's device, opened if it is not. `index`: as the caller has it, -1: the one that the job has. From any thread
 * that does not hold the job's lock. */
zps_err_t zps_worker_device_get(struct zenps_job *job, int index, struct zps_worker_device **device_p,
                                struct zps_error *error) ZPS_MUSTCHECK;

/* On the control thread: a `tensor.plan` of the coordinator has come. */
void zps_worker_plan(struct zenps_job *job, const struct zps_tensor_plan *plan);
/* On the control thread: the coordinator is out of reach. */
void zps_worker_plans_alone(struct zenps_job *job);

/* ---- Servers that the data plane cannot reach (proto/PROTOCOL.md, "A server that a rank cannot reach") ---- */

/* Once the plane is open, before it is connected. */
void zps_worker_suspect_init(struct zenps_job *job);

#endif
