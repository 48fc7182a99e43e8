/*
 * A rank's first error, for the coordinator: it is the cause of the job's end, unless the rank goes on after it.
 *
 * The error stands until a round has ended well that the trainer began after it had seen the error. Rounds that a
 * trainer had in flight beside the failed one prove nothing.
 */
#ifndef ZPS_WORKER_API_FIRST_H
#define ZPS_WORKER_API_FIRST_H

#include "worker/base/error.h"

struct zenps_job;
struct zenps_request;

/* Guarded by the job's lock. */
struct zps_first {
  struct zps_error error; /* ZPS_OK: none stands. */
  bool is_seen;           /* The trainer knows of it. */
  uint64_t seen_at;       /* The number of rounds begun by then. */
  zps_err_t told;         /* As the coordinator knows it. */
  unsigned n_flushing;    /* threads in zps_first_flush() */
};

/* Under the job's lock: the job has failed here. */
void zps_first_note(struct zenps_job *job, zps_err_t code, const char *text);
/* Under the job's lock: the round of a request is over, well or not. */
void zps_first_round(struct zenps_job *job, const struct zenps_request *request, bool ok);
/* Under the job's lock: the trainer is told of an error. */
void zps_first_seen(struct zenps_job *job);
/* Under the job's lock, which it lets go meanwhile: the error leaves this process before the trainer has it, since that
 * may end at once. Takes 200 ms at most. */
void zps_first_flush(struct zenps_job *job);
/* Without the job's lock: a call of the trainer ends with this status, and the text is the thread's last error. Returns
 * the status. */
zenps_status_t zps_first_call(struct zenps_job *job, zenps_status_t status);

#endif
