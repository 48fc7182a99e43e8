#include "worker/api/job.h"
#include "worker/api/operation.h"
#include "worker/choice/auto.h"

zenps_status_t zps_worker_allreduce(struct zenps_tensor *tensor, uint64_t step, const zenps_grad_t *in,
                                    zenps_grad_t *out, zenps_request_t **request_p) {
  struct zps_operation operation = {.in = in, .out = out};
  if (!tensor->is_automatic) return zps_worker_start(tensor, step, &operation, request_p);
  struct zps_round_tensor *picked;
  struct zps_error error;
  if (zps_grad_parts_create(tensor, in, out, &operation.parts, &error) != ZPS_OK) return zps_worker_raise(&error);
  if (operation.parts) { /* the choice wants to see one array */
    in = operation.parts->in;
    out = operation.parts->out;
  }
  zenps_status_t status = zps_automatic_pick(tensor->automatic, step, in, out, &picked);
  if (status == ZENPS_OK) status = zps_worker_start(zps_worker_tensor_of(picked), step, &operation, request_p);
  if (status != ZENPS_OK) zps_grad_parts_destroy(operation.parts);
  return status;
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
