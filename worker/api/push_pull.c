/* Push and pull apart, and both at once for some rows: operations on one step of a tensor over servers. */
#include <inttypes.h>

#include "common/codec/values.h"
#include "common/plan/schemes.h"
#include "worker/api/job.h"
#include "worker/api/operation.h"

static zps_err_t check_scheme(const struct zenps_tensor *tensor, const char *call, struct zps_error *error) {
  const struct zps_round_tensor *core = &tensor->core;
  const zps_err_t err = zps_worker_tensor_check(tensor, error);
  if (err != ZPS_OK) return err;
  if (core->quorum > 0)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED,
                    "tensor %s: %s on a tensor with a quorum, which takes zenps_allreduce()", core->name, call);
  if (!tensor->is_automatic && core->served && !core->served->blocks) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_UNSUPPORTED,
                  "tensor %s: %s wants servers that own rows, which scheme %s does not have: open it with balanced, "
                  "sparse-ps or dense-ps",
                  core->name, call, tensor->is_automatic ? "auto" : core->scheme);
}

/* NULL rows: all of them. */
static zps_err_t make_wants(const struct zenps_tensor *tensor, const char *call, const zenps_rows_t *rows,
                            struct zps_wants **wants_p, struct zps_error *error) {
  const struct zps_round_tensor *core = &tensor->core;
  const zenps_rows_t all = {.struct_size = sizeof all, .count = core->shape.rows};
  if (!rows) rows = &all;
  if (rows->struct_size < sizeof *rows)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: rows->struct_size is %zu; initialise it with ZENPS_ROWS_RANGE() or ZENPS_ROWS_LIST()",
                    core->name, rows->struct_size);
  if (rows->row_ids && rows->first != 0)
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: rows->first is %" PRIu64 ", but row_ids is a list", core->name,
                    rows->first);
  const bool all_of_it = !rows->row_ids && rows->first == 0 && rows->count == core->shape.rows;
  if (zps_values_level_bits(core->value_codec) && !all_of_it)
    return zps_fail(
        error, ZPS_ERR_UNSUPPORTED,
        "tensor %s: %s of some rows: values that travel as %s share scales, and cannot be taken apart; open "
        "it with raw, bf16 or f16, or ask for all rows",
        core->name, call, zps_values_name(core->value_codec));
  struct zps_error why;
  const zps_err_t err = zps_wants_create(&core->part, rows->first, rows->count, rows->row_ids, wants_p, &why);
  return err == ZPS_OK ? err : zps_fail(error, err, "tensor %s: %s", core->name, why.text);
}

/* A dense result of some rows is made on the host. */
static zps_err_t check_result(struct zenps_tensor *tensor, const zenps_grad_t *out, const struct zps_wants *wants,
                              struct zps_error *error) {
  const zps_err_t err = zps_worker_check_out(tensor, out, wants->count, error);
  if (err == ZPS_OK && out->n_parts > 0 && (wants->by_row || wants->count < tensor->core.shape.rows))
    return zps_fail(error, ZPS_ERR_UNSUPPORTED,
                    "tensor %s: out is in parts, which take the whole sum, but %" PRIu64 " rows are asked for",
                    tensor->core.name, wants->count);
  if (err != ZPS_OK || out->memory == ZENPS_HOST || out->layout == ZENPS_ROWS) return err;
  if (!wants->by_row && wants->count == tensor->core.shape.rows) return err;
  return zps_fail(error, ZPS_ERR_UNSUPPORTED,
                  "tensor %s: out is a dense array of some rows in device memory: give it in host memory, or take "
                  "ZENPS_ROWS",
                  tensor->core.name);
}

static zenps_status_t start(struct zenps_tensor *tensor, uint64_t step, struct zps_operation *operation,
                            zenps_request_t **request) {
  const zenps_status_t status = zps_worker_start(tensor, step, operation, request);
  if (status != ZENPS_OK) zps_wants_destroy(operation->wants);
  return status;
}

zenps_status_t zenps_push(zenps_tensor_t *tensor, uint64_t step, const zenps_grad_t *in, zenps_request_t **request) {
  struct zps_operation operation = {.in = in};
  struct zps_error error;
  if (!tensor || !in || !request) return zps_worker_fail(ZPS_ERR_INVALID, "zenps_push: tensor, in or request is NULL");
  if (zps_worker_forked(tensor->job)) return zps_worker_fail_forked();
  if (check_scheme(tensor, "zenps_push()", &error) != ZPS_OK || zps_worker_check_in(tensor, in, &error) != ZPS_OK)
    return zps_first_call(tensor->job, zps_worker_raise(&error));
  return start(tensor, step, &operation, request);
}

/* Of a tensor whose sums are kept: the newest of some steps, which a rank may have as often as it asks. */
static zps_err_t check_staleness(const struct zenps_tensor *tensor, uint32_t staleness, struct zps_error *error) {
  const uint32_t most = tensor->asked.staleness;
  if (staleness <= most) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_INVALID,
                  "tensor %s: a sum up to %" PRIu32
                  " steps older is asked for, but the tensor was opened with a "
                  "staleness of %" PRIu32,
                  tensor->core.name, staleness, most);
}

static zenps_status_t pull(struct zenps_tensor *tensor, const char *call, uint64_t step, const zenps_rows_t *rows,
                           struct zps_operation *operation, zenps_request_t **request) {
  struct zps_error error;
  zps_err_t err = check_scheme(tensor, call, &error);
  if (err == ZPS_OK) err = check_staleness(tensor, operation->staleness, &error);
  if (err == ZPS_OK) err = make_wants(tensor, call, rows, &operation->wants, &error);
  if (err == ZPS_OK) err = check_result(tensor, operation->out, operation->wants, &error);
  if (err == ZPS_OK) return start(tensor, step, operation, request);
  zps_wants_destroy(operation->wants);
  return zps_first_call(tensor->job, zps_worker_raise(&error));
}

zenps_status_t zenps_pull(zenps_tensor_t *tensor, uint64_t step, const zenps_rows_t *rows, zenps_grad_t *out,
                          zenps_request_t **request) {
  if (!tensor || !out || !request)
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_pull: tensor, out or request is NULL");
  if (zps_worker_forked(tensor->job)) return zps_worker_fail_forked();
  return pull(tensor, "zenps_pull()", step, rows, &(struct zps_operation){.out = out}, request);
}

zenps_status_t zenps_pull_newest(zenps_tensor_t *tensor, uint64_t step, uint32_t staleness, const zenps_rows_t *rows,
                                 zenps_grad_t *out, zenps_request_t **request) {
  if (!tensor || !out || !request)
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_pull_newest: tensor, out or request is NULL");
  if (zps_worker_forked(tensor->job)) return zps_worker_fail_forked();
  struct zps_operation operation = {.out = out, .seeks = tensor->asked.staleness > 0, .staleness = staleness};
  return pull(tensor, "zenps_pull_newest()", step, rows, &operation, request);
}

zenps_status_t zenps_reduce_scatter(zenps_tensor_t *tensor, uint64_t step, const zenps_grad_t *in,
                                    const zenps_rows_t *rows, zenps_grad_t *out, zenps_request_t **request) {
  struct zps_operation operation = {.in = in, .out = out};
  struct zps_error error;
  if (!tensor || !in || !rows || !out || !request)
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_reduce_scatter: tensor, in, rows, out or request is NULL");
  if (zps_worker_forked(tensor->job)) return zps_worker_fail_forked();
  zps_err_t err = check_scheme(tensor, "zenps_reduce_scatter()", &error);
  if (err == ZPS_OK) err = zps_worker_check_in(tensor, in, &error);
  if (err == ZPS_OK) err = make_wants(tensor, "zenps_reduce_scatter()", rows, &operation.wants, &error);
  if (err == ZPS_OK) err = check_result(tensor, out, operation.wants, &error);
  if (err == ZPS_OK) err = zps_worker_check_pair(tensor, in, out, &error);
  if (err == ZPS_OK) return start(tensor, step, &operation, request);
  zps_wants_destroy(operation.wants);
  return zps_first_call(tensor->job, zps_worker_raise(&error));
}
