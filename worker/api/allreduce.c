#include "worker/api/job.h"
#include "worker/api/operation.h"
#include "worker/choice/auto.h"

zenps_status_t zps_worker_allreduce(struct zenps_tensor *tensor, uint64_t step, const zenps_grad_t *in,
                                    zenps_grad_t *out, zenps_request_t **request_p) {
  if (tensor->is_automatic) {
    struct zps_round_tensor *picked;
    const zenps_status_t status = zps_automatic_pick(tensor->automatic, step, in, out, &picked);
    if (status != ZENPS_OK) return status;
    tensor = zps_worker_tensor_of(picked);
  }
  return zps_worker_start(tensor, step, &(struct zps_operation){.in = in, .out = out}, request_p);
}

zenps_status_t zenps_allreduce(zenps_tensor_t *tensor, uint64_t step, const zenps_grad_t *in, zenps_grad_t *out,
                               zenps_request_t **request) {
  struct zps_error error;
  if (!tensor || !in || !out || !request) {
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_allreduce: tensor, in, out or request is NULL");
  }
  if (zps_worker_forked(tensor->job)) return zps_worker_fail_forked();
  if (zps_worker_check_in(tensor, in, &error) != ZPS_OK ||
      zps_worker_check_out(tensor, out, tensor->core.shape.rows, &error) != ZPS_OK ||
      zps_worker_check_pair(tensor, in, out, &error) != ZPS_OK)
    return zps_worker_raise(&error);
  return zps_worker_allreduce(tensor, step, in, out, request);
}
