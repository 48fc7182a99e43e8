/*
 * The library's arrays of a result that is a list of rows: a request's, until the trainer takes them. They hold on to
 * what they came from, and so outlive their tensor and job.
 */
#ifndef ZPS_WORKER_API_RESULT_H
#define ZPS_WORKER_API_RESULT_H

#include <sys/types.h>

#include "worker/round/row_arrays.h"
#include "zenps/zenps.h"

struct zps_round;
struct zps_worker_device;

/* All zero: there is none. */
struct zps_result {
  bool is_ours; /* it is shown in arrays of the library's, if it has rows; else the caller's, is dense, or taken */
  zenps_memory_t memory;
  int device_index;
  uint64_t nnz;
  int contributors; /* see zenps_grad_t */
  size_t row_bytes;
  struct zps_row_arrays arrays;     /* in host memory */
  struct zps_worker_device *device; /* a reference; NULL: the rows are in host memory */
  void *rows_on_device, *values_on_device;
  pid_t pid; /* of the process that took them */
};

/* Of an operation that is about to start: where its result goes. NULL: it has none. */
void zps_result_init(struct zps_result *result, const zenps_grad_t *out, size_t row_bytes);
/* Under the job's lock: the round's arrays become the result's. */
void zps_result_get(struct zps_result *result, struct zps_round *round);
void zps_result_show(const struct zps_result *result, zenps_grad_t *rows);
/* A result that the operation's out had no room for: to `out`, in the same memory, or shown there where it has no
 * arrays. On failure it is as it was. */
zps_err_t zps_result_fetch(struct zps_result *result, zenps_grad_t *out, uint64_t timeout_ms,
                           struct zps_error *error) ZPS_MUSTCHECK;
/* Gives them back, and leaves none. */
void zps_result_release(struct zps_result *result);

#endif
