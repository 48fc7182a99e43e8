/* The library's arrays of a result, as the trainer asks for them. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "worker/api/job.h"
#include "worker/api/request.h"
#include "worker/base/error.h"

zenps_status_t zenps_request_fetch(zenps_request_t *request, zenps_grad_t *out) {
  const zenps_status_t status = zps_worker_request_check(request, out, "zenps_request_fetch");
  struct zps_error error;
  if (status != ZENPS_OK) return status;
  if (request->error.status == ZENPS_OK)
    return zps_worker_fail(ZPS_ERR_INVALID,
                           "zenps_request_fetch: nothing is kept: the result is where the operation's out, or an "
                           "earlier fetch, has it");
  if (request->error.status != ZENPS_ERR_TRUNCATED) return zps_worker_raise_detail(&request->error);
  if (zps_result_fetch(&request->result, out, request->job->options.round_timeout_ms, &error) == ZPS_OK) {
    request->error.status = ZENPS_OK;
    request->error.needed = 0;
    return ZENPS_OK;
  }
  zenps_error_t detail;
  zps_worker_detail(&detail, error.code, "zenps_request_fetch: tensor %s, step %" PRIu64 ": %s", request->error.tensor,
                    request->error.step, error.text);
  memcpy(detail.tensor, request->error.tensor, sizeof detail.tensor);
  detail.step = request->error.step;
  if (error.code == ZPS_ERR_TRUNCATED) detail.needed = request->error.needed;
  return zps_worker_raise_detail(&detail);
}

zenps_status_t zenps_request_take(zenps_request_t *request, zenps_grad_t *rows) {
  const zenps_status_t status = zps_worker_request_check(request, rows, "zenps_request_take");
  if (status != ZENPS_OK) return status;
  if (request->error.status != ZENPS_OK) return zps_worker_raise_detail(&request->error);
  if (!request->result.is_ours)
    return zps_worker_fail(ZPS_ERR_INVALID,
                           "zenps_request_take: the request has no arrays of the library's: its result is in the "
                           "caller's, was taken before, or it has none");
  struct zps_result *const taken = malloc(sizeof *taken);
  if (!taken) return zps_worker_fail(ZPS_ERR_NOMEM, "zenps_request_take: out of memory");
  *taken = request->result;
  taken->pid = getpid();
  request->result = (struct zps_result){0};
  zps_result_show(taken, rows);
  rows->taken = taken;
  return ZENPS_OK;
}

/* A child's copy of a lock may be held by a thread that it does not have. */
void zenps_rows_free(zenps_grad_t *rows) {
  if (!rows || rows->struct_size < sizeof *rows || !rows->taken) return;
  struct zps_result *const taken = rows->taken;
  if (taken->pid != getpid()) return;
  zps_result_release(taken);
  free(taken);
  rows->nnz = rows->capacity = 0;
  rows->row_ids = NULL;
  rows->values = rows->taken = NULL;
}
