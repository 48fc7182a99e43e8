/*
 * Rounds of schemes that work in host memory, with a gradient or result in device memory. The gradient comes here when
 * it is scanned. The result goes there when the round is done, before the request is told.
 *
 * For the scheme, `in` and `out` of the round are in host memory meanwhile. A failure after the round is done fails the
 * request of this rank alone.
 */
#ifndef ZPS_WORKER_DEVICE_STAGING_H
#define ZPS_WORKER_DEVICE_STAGING_H

#include "worker/device/device.h"
#include "worker/device/host.h"
#include "worker/round/round.h"

/* Kept from round to round; all zero at first. */
struct zps_staging {
  bool fetches;     /* the gradient is in device memory, and is to be brought here */
  bool delivers;    /* the result is to be brought there */
  bool is_started;  /* has been */
  bool keeps_zeros; /* rows stand for a dense result: those of zeros belong to it, where all ranks have them */
  zenps_grad_t host, *result; /* the result that the scheme writes, and the caller's */
  struct zps_buffer dense;    /* values of the former */
  struct zps_host_in in;
  struct zps_host_out out;
  struct zps_round_task task; /* brings the result */
};

/* Where a task runs that reads the gradient: on `pool`, unless that is in device memory. */
static inline bool zps_device_has_gradient(const struct zps_round *round) {
  return round->in.memory == ZENPS_DEVICE;
}
static inline struct zps_workpool *zps_device_push_pool(const struct zps_round *round, struct zps_workpool *pool) {
  return zps_device_has_gradient(round) ? round->device->in_pool : pool;
}

void zps_staging_setup(struct zps_staging *staging, struct zps_round *round);
/* On the engine thread, when the round begins: makes room for the result that the scheme writes. */
zps_err_t zps_staging_begin(struct zps_staging *staging, struct zps_round *round,
                            struct zps_error *error) ZPS_MUSTCHECK;
/* First thing in the task that scans the gradient: brings it to host memory. False: the task has failed. */
bool zps_staging_fetch(struct zps_staging *staging, struct zps_round_task *task);
/* On the engine thread, when the round is done. True: the result is on its way now. */
bool zps_staging_deliver(struct zps_staging *staging, struct zps_round *round);
/* At the end, before the request is told, and before zps_device_pull_finish(), which hands the library's arrays to the
 * request. */
void zps_staging_finish(struct zps_staging *staging, struct zps_round *round, bool ok);
void zps_staging_fini(struct zps_staging *staging, struct zps_worker_device *device);

#endif
