/* The program of a rank: a trainer that has some steps in flight, and looks at every result. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/net/net.h"
#include "tests/sim/cluster.h"
#include "tests/sim/sums.h"
#include "worker/api/job.h"
#include "zenps/zenps.h"

enum { TIMEOUT_MS = 30000 };

struct operation {
  zenps_request_t *request;
  zenps_grad_t in, out;
  float *values, *packed, *result;
  int64_t *row_ids;
};

struct trainer {
  struct sim_rank *self;
  const struct sim_plan *plan;
  zenps_job_t *job;
  zenps_tensor_t *tensors[SIM_TENSORS_MAX];
  struct operation operations[SIM_TENSORS_MAX][SIM_WINDOW_MAX];
  bool failed;
};

static bool any_leaves(uint32_t run) {
  bool any = false;
  for (uint32_t r = 0; r < sim_cluster.plan->world; r++) any |= sim_cluster.ranks[r].n_left > run;
  return any;
}

/* When another rank was killed; or when a server was lost, and a rank that has closed the job already, having all of
 * its sums, cannot push again what others still lack. */
static bool may_fail_with(zenps_status_t status, uint32_t run) {
  const bool is_lost = status == ZENPS_ERR_CLOSED || status == ZENPS_ERR_SERVER_LOST;
  if (is_lost && sim_cluster.server_taken && any_leaves(run)) return true;
  return run == 0 && sim_cluster.rank_killed &&
         (status == ZENPS_ERR_PEER_LOST || status == ZENPS_ERR_MISSING || status == ZENPS_ERR_CLOSED);
}

static void failed(struct trainer *trainer, const char *what, const zenps_error_t *error) {
  trainer->failed = true;
  sim_cluster.n_errors[trainer->self->run]++;
  sim_wake_all(&sim_cluster.steps_seen);
  if (!may_fail_with(error->status, trainer->self->run))
    sim_wrong("rank %u: %s: %s: %s", trainer->self->rank, what, zenps_strerror(error->status), error->text);
}

/* ------------------------------------------------------------ a step of a tensor */

static void operation_init(struct operation *operation, const struct sim_tensor_plan *tensor) {
  const uint64_t n = tensor->rows * tensor->width;
  operation->values = malloc(n * sizeof(float));
  operation->packed = malloc(n * sizeof(float));
  operation->result = malloc(n * sizeof(float));
  operation->row_ids = malloc(tensor->rows * sizeof(int64_t));
}

static void operation_fini(struct operation *operation) {
  free(operation->values);
  free(operation->packed);
  free(operation->result);
  free(operation->row_ids);
}

static void begin(struct trainer *trainer, uint32_t t, uint64_t step) {
  const struct sim_plan *plan = trainer->plan;
  const struct sim_tensor_plan *tensor = &plan->tensors[t];
  struct operation *operation = &trainer->operations[t][step % plan->window];
  const uint64_t nnz =
      sim_gradient(plan, t, step, trainer->self->rank, operation->values, operation->row_ids, operation->packed);
  zenps_grad_init(&operation->in, sizeof operation->in);
  zenps_grad_init(&operation->out, sizeof operation->out);
  operation->in.layout = tensor->in_rows ? ZENPS_ROWS : ZENPS_DENSE;
  operation->in.values = tensor->in_rows ? operation->packed : operation->values;
  operation->in.row_ids = tensor->in_rows ? operation->row_ids : NULL;
  operation->in.nnz = tensor->in_rows ? nnz : 0;
  operation->in.contributes = 1;
  operation->out.layout = tensor->out_rows ? ZENPS_ROWS : ZENPS_DENSE;
  operation->out.values = tensor->out_rows ? NULL : operation->result;
  if (zenps_allreduce(trainer->tensors[t], step, &operation->in, &operation->out, &operation->request) != ZENPS_OK)
    failed(trainer, "allreduce", zenps_last_error());
}

/* A list, as a dense array. False: it is none. */
static bool spread(const struct sim_tensor_plan *tensor, struct operation *operation) {
  const zenps_grad_t *out = &operation->out;
  const uint64_t row_bytes = tensor->width * sizeof(float);
  memset(operation->result, 0, tensor->rows * row_bytes);
  for (uint64_t i = 0; i < out->nnz; i++) {
    const int64_t row = out->row_ids[i];
    if (row < 0 || (uint64_t)row >= tensor->rows || (i > 0 && row <= out->row_ids[i - 1])) return false;
    memcpy(operation->result + (uint64_t)row * tensor->width, (const char *)out->values + i * row_bytes, row_bytes);
  }
  return true;
}

static bool is_right(const struct trainer *trainer, uint32_t t, uint64_t step, struct operation *operation) {
  const struct sim_tensor_plan *tensor = &trainer->plan->tensors[t];
  return (!tensor->out_rows || spread(tensor, operation)) && sim_sum_check(trainer->plan, t, step, operation->result);
}

static void end(struct trainer *trainer, uint32_t t, uint64_t step) {
  struct operation *operation = &trainer->operations[t][step % trainer->plan->window];
  const uint64_t deadline_ns = sim_now_ns() + (TIMEOUT_MS + 5000) * ZPS_NS_PER_MS;
  if (!operation->request) return;
  const zenps_status_t status = zenps_wait(operation->request, -1);
  if (sim_now_ns() > deadline_ns)
    sim_wrong("rank %u: tensor %u, step %llu ended after its deadline", trainer->self->rank, t,
              (unsigned long long)step);
  if (status != ZENPS_OK)
    failed(trainer, "step", zenps_request_error(operation->request));
  else if (!is_right(trainer, t, step, operation))
    sim_wrong("rank %u: tensor %u, step %llu: the sum is not that of the gradients in the order of ranks",
              trainer->self->rank, t, (unsigned long long)step);
  zenps_request_free(operation->request);
  operation->request = NULL;
}

/* ------------------------------------------------------------ the whole */

static void train(struct trainer *trainer) {
  const struct sim_plan *plan = trainer->plan;
  for (uint64_t step = 0; step < plan->n_steps + plan->window - 1; step++) {
    for (uint32_t t = 0; t < plan->n_tensors && step < plan->n_steps && !trainer->failed; t++) begin(trainer, t, step);
    if (step + 1 < plan->window) continue;
    for (uint32_t t = 0; t < plan->n_tensors; t++) end(trainer, t, step + 1 - plan->window);
    sim_cluster.steps_seen += !trainer->failed;
    sim_cluster.steps_of[trainer->self->run] += !trainer->failed;
    sim_wake_all(&sim_cluster.steps_seen);
    if (sim_chance(4) || sim_plan_has_long_steps(plan)) sim_sleep(sim_random(plan->step_ns)); /* forward and backward */
  }
}

/* What others still lack is pushed again by those that are there. */
static void wait_for_others(const struct trainer *trainer) {
  const struct sim_plan *plan = trainer->plan;
  const uint32_t run = trainer->self->run;
  while (!plan->leaves_early && sim_cluster.steps_of[run] < plan->world * plan->n_steps &&
         sim_cluster.n_errors[run] == 0 && !(run == 0 && sim_cluster.rank_killed))
    sim_wait(&sim_cluster.steps_seen, ZPS_NEVER);
}

static bool open_all(struct trainer *trainer) {
  const struct sim_plan *plan = trainer->plan;
  zenps_options_t options;
  zenps_options_init(&options, sizeof options);
  options.coordinator = SIM_COORDINATOR;
  options.job = "run";
  options.rank = (int)trainer->self->rank;
  options.world = (int)plan->world;
  options.provider = plan->provider;
  options.join_timeout_ms = options.round_timeout_ms = TIMEOUT_MS;
  options.threads = (int)plan->threads;
  if (zenps_open(&options, &trainer->job) != ZENPS_OK) {
    failed(trainer, "open", zenps_last_error());
    return false;
  }
  trainer->self->is_in = true;
  trainer->self->job = trainer->job;
  memcpy(&trainer->self->port, zps_net_info(zps_engine_net(trainer->job->plane.engine))->addr + 8,
         sizeof trainer->self->port);
  for (uint32_t t = 0; t < plan->n_tensors; t++) {
    const struct sim_tensor_plan *tensor = &plan->tensors[t];
    zenps_tensor_options_t how;
    zenps_tensor_options_init(&how, sizeof how);
    how.op = tensor->op;
    how.codec = tensor->codec;
    how.partitioner = tensor->partitioner;
    how.scheme = tensor->scheme;
    if (zenps_tensor_open(trainer->job, tensor->name, tensor->rows, tensor->width, ZENPS_F32, &how,
                          &trainer->tensors[t]) != ZENPS_OK) {
      failed(trainer, "tensor_open", zenps_last_error());
      return false;
    }
  }
  return true;
}

static void run_once(struct sim_rank *self) {
  struct trainer *trainer = calloc(1, sizeof *trainer);
  trainer->self = self;
  trainer->plan = sim_cluster.plan;
  for (uint32_t t = 0; t < trainer->plan->n_tensors; t++)
    for (uint32_t w = 0; w < trainer->plan->window; w++)
      operation_init(&trainer->operations[t][w], &trainer->plan->tensors[t]);
  if (open_all(trainer)) train(trainer);
  wait_for_others(trainer);
  self->n_left++;
  zenps_close(trainer->job);
  self->is_in = false;
  for (uint32_t t = 0; t < trainer->plan->n_tensors; t++)
    for (uint32_t w = 0; w < trainer->plan->window; w++) operation_fini(&trainer->operations[t][w]);
  free(trainer);
}

void sim_rank_main(void *ctx) {
  struct sim_rank *self = ctx;
  for (; self->run < sim_cluster.plan->n_runs; self->run++) run_once(self);
  self->has_ended = true;
  sim_wake_all(&sim_cluster.steps_seen);
}
