#include "tests/sim/operation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/cluster.h"
#include "tests/sim/sched.h"
#include "tests/sim/sums.h"

zenps_status_t sim_tensor_open(zenps_job_t *job, const struct sim_tensor_plan *plan, zenps_tensor_t **tensor_p) {
  zenps_tensor_options_t how;
  char scheme[96], k[32] = "";
  if (plan->k > 0) snprintf(k, sizeof k, ":k=%llu", (unsigned long long)plan->k);
  snprintf(scheme, sizeof scheme, "%s%s%s", plan->scheme ? plan->scheme : "", k,
           plan->hashes ? ":partitioner=murmur" : "");
  zenps_tensor_options_init(&how, sizeof how);
  how.op = plan->op;
  how.codec = plan->codec;
  how.scheme = *scheme ? scheme : NULL;
  how.staleness = plan->staleness;
  how.quorum = plan->quorum;
  how.grace_ms = plan->grace_ms;
  return zenps_tensor_open(job, plan->name, plan->rows, plan->width, ZENPS_F32, &how, tensor_p);
}

void sim_operation_init(struct sim_operation *operation, const struct sim_tensor_plan *tensor) {
  const uint64_t n = operation->n_values = tensor->rows * tensor->width;
  operation->rows = tensor->rows;
  operation->values = malloc(n * sizeof(float));
  operation->packed = malloc(n * sizeof(float));
  operation->result = malloc(n * sizeof(float));
  operation->row_ids = malloc(tensor->rows * sizeof(int64_t));
}

void sim_operation_fini(struct sim_operation *operation) {
  free(operation->values);
  free(operation->packed);
  free(operation->result);
  free(operation->row_ids);
}

/* ------------------------------------------------------------ begin */

static zenps_status_t pull_newest(struct sim_operation *operation, const struct sim_tensor_plan *of,
                                  zenps_tensor_t *tensor) {
  const zenps_rows_t some = ZENPS_ROWS_RANGE(operation->first, operation->count);
  return zenps_pull_newest(tensor, operation->attempt.told, of->staleness, operation->asks_all ? NULL : &some,
                           &operation->out, &operation->pull);
}

static zenps_status_t pull(struct sim_operation *operation, const struct sim_tensor_plan *of, zenps_tensor_t *tensor) {
  const zenps_rows_t some = ZENPS_ROWS_RANGE(operation->first, operation->count);
  operation->is_newest = of->staleness > 0 && sim_chance(2);
  return operation->is_newest ? pull_newest(operation, of, tensor)
                              : zenps_pull(tensor, operation->attempt.told, operation->asks_all ? NULL : &some,
                                           &operation->out, &operation->pull);
}

static zenps_status_t begin_apart(struct sim_operation *operation, const struct sim_tensor_plan *of,
                                  zenps_tensor_t *tensor, uint64_t step) {
  enum { ALLREDUCE, SCATTER, PULL_FIRST, PUSH_FIRST, FORMS };
  const uint64_t form = sim_random(FORMS);
  if (form == ALLREDUCE) return zenps_allreduce(tensor, step, &operation->in, &operation->out, &operation->request);
  const bool is_part = sim_chance(2);
  operation->first = is_part ? sim_random(of->rows) : 0;
  operation->count = is_part ? 1 + sim_random(of->rows - operation->first) : of->rows;
  operation->asks_all = !is_part;
  const zenps_rows_t some = ZENPS_ROWS_RANGE(operation->first, operation->count);
  if (form == SCATTER)
    return zenps_reduce_scatter(tensor, step, &operation->in, &some, &operation->out, &operation->request);
  zenps_status_t status = ZENPS_OK;
  if (form == PULL_FIRST) status = pull(operation, of, tensor);
  if (status == ZENPS_OK) status = zenps_push(tensor, step, &operation->in, &operation->request);
  if (form == PULL_FIRST || status != ZENPS_OK) return status;
  if (sim_chance(2)) sim_sleep(sim_random(ZPS_NS_PER_MS));
  return pull(operation, of, tensor);
}

zenps_status_t sim_operation_begin(struct sim_operation *operation, const struct sim_plan *plan, uint32_t t,
                                   zenps_tensor_t *tensor, struct sim_attempt attempt, uint32_t rank) {
  const struct sim_tensor_plan *const of = &plan->tensors[t];
  const uint64_t step = attempt.told;
  const uint64_t nnz =
      sim_gradient(plan, t, attempt.number, rank, operation->values, operation->row_ids, operation->packed);
  zenps_grad_init(&operation->in, sizeof operation->in);
  zenps_grad_init(&operation->out, sizeof operation->out);
  operation->attempt = attempt;
  operation->in.layout = of->in_rows ? ZENPS_ROWS : ZENPS_DENSE;
  operation->in.values = of->in_rows ? operation->packed : operation->values;
  operation->in.row_ids = of->in_rows ? operation->row_ids : NULL;
  operation->in.nnz = of->in_rows ? nnz : 0;
  operation->in.contributes = 1;
  operation->out.layout = of->out_rows ? ZENPS_ROWS : ZENPS_DENSE;
  operation->out.values = of->out_rows ? NULL : operation->result;
  operation->first = 0;
  operation->count = of->rows;
  operation->is_newest = false;
  const zenps_status_t status =
      t == 0 && plan->is_apart ? begin_apart(operation, of, tensor, step)
                               : zenps_allreduce(tensor, step, &operation->in, &operation->out, &operation->request);
  operation->is_begun = status == ZENPS_OK;
  return status;
}

/* ------------------------------------------------------------ end */

zenps_status_t sim_operation_wait(struct sim_operation *operation, const zenps_error_t **error_p) {
  zenps_request_t *const requests[] = {operation->request, operation->pull};
  zenps_status_t status = ZENPS_OK;
  for (unsigned i = 0; i < 2; i++) {
    const zenps_status_t own = requests[i] ? zenps_wait(requests[i], -1) : ZENPS_OK;
    if (own == ZENPS_OK || status != ZENPS_OK) continue;
    status = own;
    *error_p = zenps_request_error(requests[i]);
  }
  return status;
}

bool sim_operation_is_overtaken(const struct sim_operation *operation, const struct sim_tensor_plan *of,
                                uint64_t newest_pushed) {
  enum { KEPT = 4 }; /* at least */
  const uint64_t kept = of->staleness < KEPT ? KEPT : of->staleness + 1;
  return operation->is_newest && newest_pushed + of->staleness >= operation->attempt.number + kept;
}

zenps_status_t sim_operation_ask_again(struct sim_operation *operation, const struct sim_tensor_plan *of,
                                       zenps_tensor_t *tensor) {
  zenps_request_free(operation->pull);
  operation->pull = NULL;
  return pull_newest(operation, of, tensor);
}

void sim_operation_free(struct sim_operation *operation) {
  zenps_request_free(operation->request);
  zenps_request_free(operation->pull);
  operation->request = operation->pull = NULL;
  operation->is_begun = false;
  memset(operation->values, 0x5a, operation->n_values * sizeof(float));
  memset(operation->packed, 0x5a, operation->n_values * sizeof(float));
  memset(operation->result, 0x5a, operation->n_values * sizeof(float));
  memset(operation->row_ids, 0x5a, operation->rows * sizeof(int64_t));
}

/* ------------------------------------------------------------ the result */

/* A list, as a dense array of the rows that were asked for. False: it is none. */
static bool spread(const struct sim_tensor_plan *tensor, struct sim_operation *operation) {
  const zenps_grad_t *out = &operation->out;
  const uint64_t row_bytes = tensor->width * sizeof(float);
  memset(operation->result, 0, operation->count * row_bytes);
  for (uint64_t i = 0; i < out->nnz; i++) {
    const int64_t row = out->row_ids[i] - (int64_t)operation->first;
    if (row < 0 || (uint64_t)row >= operation->count || (i > 0 && out->row_ids[i] <= out->row_ids[i - 1])) return false;
    memcpy(operation->result + (uint64_t)row * tensor->width, (const char *)out->values + i * row_bytes, row_bytes);
  }
  return true;
}

/* Whose sum it is. False: of none that was asked for. */
static bool step_of(const struct sim_operation *operation, uint32_t staleness, uint64_t *step_p) {
  const uint64_t asked = *step_p = operation->attempt.number;
  zenps_request_stats_t stats = {.struct_size = sizeof stats};
  if (!operation->is_newest) return true;
  if (zenps_request_stats(operation->pull, &stats) != ZENPS_OK) return false;
  *step_p = stats.step;
  return stats.step <= asked && stats.step + staleness >= asked;
}

/* The late ranks, a bit each: the same on all ranks, and no more than the quorum allows. A rank is late where it is
 * told so: then it has its gradient, and the sum has not. */
static bool late_of(const struct sim_operation *operation, const struct sim_plan *plan, uint32_t run, uint32_t t,
                    uint32_t rank, unsigned *late_p) {
  const struct sim_tensor_plan *const tensor = &plan->tensors[t];
  zenps_request_stats_t stats = {.struct_size = sizeof stats};
  int ranks[SIM_RANKS_MAX];
  uint32_t n;
  *late_p = 0;
  if (tensor->quorum == 0) return true;
  if (zenps_request_late(operation->request, ranks, SIM_RANKS_MAX, &n) != ZENPS_OK || n > SIM_RANKS_MAX ||
      zenps_request_stats(operation->request, &stats) != ZENPS_OK)
    return false;
  for (uint32_t i = 0; i < n; i++) *late_p |= 1u << ranks[i];
  return plan->world - n >= tensor->quorum && operation->out.contributors == (int)(plan->world - n) &&
         stats.late == (int)(*late_p >> rank & 1) &&
         sim_late_is_that_of_others(run, t, operation->attempt.number, rank, *late_p);
}

/* Without memory the library may not keep the late ranks, and says so. Then it is unknown which sum is right. */
static bool has_no_late(const struct sim_operation *operation, const struct sim_tensor_plan *tensor) {
  uint32_t n;
  return tensor->quorum > 0 && sim_cluster.was_short &&
         zenps_request_late(operation->request, NULL, 0, &n) == ZENPS_ERR_NOMEM;
}

bool sim_operation_is_right(struct sim_operation *operation, const struct sim_plan *plan, uint32_t run, uint32_t t,
                            uint32_t rank) {
  const struct sim_tensor_plan *const tensor = &plan->tensors[t];
  unsigned late;
  const struct sim_rows rows = {operation->first, operation->count};
  uint64_t step;
  if (has_no_late(operation, tensor)) return true;
  return (!tensor->out_rows || spread(tensor, operation)) && step_of(operation, tensor->staleness, &step) &&
         late_of(operation, plan, run, t, rank, &late) &&
         sim_sum_check(plan, run, t, step, rows, late, operation->result);
}
