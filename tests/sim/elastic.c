/* The program of a rank of an elastic job: when a generation goes no further, it asks for the next one, and goes on
 * from where the rank is that has come furthest. */
#include "tests/sim/elastic.h"

#include <stdlib.h>
#include <string.h>

#include "tests/sim/generations.h"
#include "tests/sim/operation.h"
#include "worker/api/job.h"

enum { TIMEOUT_MS = 30000, LATENESS_MS = 5000 };

/* What all ranks have alike. */
struct model {
  uint64_t step, sum; /* steps done; what they were */
};

struct trainer {
  struct sim_rank *self;
  const struct sim_plan *plan;
  zenps_job_t *job;
  struct sim_generation *generation;
  zenps_generation_t told;
  struct model model;
  uint64_t begun; /* steps, of this generation */
  zenps_tensor_t *tensors[SIM_TENSORS_MAX];
  struct sim_operation operations[SIM_TENSORS_MAX][SIM_WINDOW_MAX];
};

static struct sim_operation *operation_of(struct trainer *trainer, uint32_t t, uint64_t step) {
  return &trainer->operations[t][step % trainer->plan->window];
}

static void failed(const struct trainer *trainer, const char *what, zenps_status_t status, const char *text) {
  sim_generation_failed(trainer->generation, trainer->self, what, status, text);
}

/* ------------------------------------------------------------ a step */

static bool begin(struct trainer *trainer, uint64_t step) {
  const struct sim_generation *const at = trainer->generation;
  const struct sim_attempt attempt = {.step = step, .number = at->first + step, .told = step};
  bool is_well = true;
  trainer->begun = step + 1;
  for (uint32_t t = 0; t < trainer->plan->n_tensors && is_well; t++) {
    is_well = sim_operation_begin(operation_of(trainer, t, step), &at->plan, t, trainer->tensors[t], attempt,
                                  (uint32_t)trainer->told.rank) == ZENPS_OK;
    if (!is_well) failed(trainer, "begin", zenps_last_error()->status, zenps_last_error()->text);
  }
  return is_well;
}

static bool wait(struct trainer *trainer, uint32_t t, uint64_t step) {
  struct sim_operation *const operation = operation_of(trainer, t, step);
  const uint64_t deadline_ns = sim_now_ns() + (TIMEOUT_MS + LATENESS_MS) * ZPS_NS_PER_MS;
  const zenps_error_t *error = NULL;
  const zenps_status_t status = sim_operation_wait(operation, &error);
  if (sim_now_ns() > deadline_ns)
    sim_wrong("process %u: tensor %u, step %llu ended after its deadline", trainer->self->rank, t,
              (unsigned long long)step);
  if (status != ZENPS_OK)
    failed(trainer, "step", status, error->text);
  else if (operation->is_begun &&
           !sim_operation_is_right(operation, &trainer->generation->plan, 0, t, (uint32_t)trainer->told.rank))
    sim_wrong("process %u: tensor %u, step %llu of generation %u: the sum is not that of its ranks' gradients",
              trainer->self->rank, t, (unsigned long long)step, trainer->told.number);
  return status == ZENPS_OK && operation->is_begun;
}

/* Whether all of it went well: then it is done. */
static bool end(struct trainer *trainer, uint64_t step) {
  bool is_well = true;
  for (uint32_t t = 0; t < trainer->plan->n_tensors; t++) {
    is_well &= wait(trainer, t, step);
    sim_operation_free(operation_of(trainer, t, step));
  }
  return is_well;
}

static void step_done(struct trainer *trainer) {
  struct model *const model = &trainer->model;
  model->sum = (model->sum ^ (trainer->generation->first + model->step + 1)) * 1099511628211u;
  model->step++;
  sim_cluster.steps_seen++;
  sim_wake_all(&sim_cluster.steps_seen);
  if (sim_chance(4) || sim_plan_has_long_steps(trainer->plan))
    sim_sleep(sim_random(trainer->plan->step_ns)); /* forward and backward */
}

/* Until all steps are done, or the generation goes no further. What has begun is ended, or, by dice, left to the job's
 * end. */
static bool train(struct trainer *trainer) {
  const struct sim_plan *const plan = trainer->plan;
  struct model *const model = &trainer->model;
  bool is_well = true;
  trainer->begun = model->step;
  while (is_well && model->step < plan->n_steps) {
    const bool changed = zenps_job_changed(trainer->job);
    if (changed) sim_generation_changed(trainer->generation, trainer->self);
    while (is_well && !changed && trainer->begun < plan->n_steps && trainer->begun < model->step + plan->window)
      is_well = begin(trainer, trainer->begun);
    if (trainer->begun == model->step || (changed && sim_chance(4))) break;
    is_well &= end(trainer, model->step);
    if (is_well) step_done(trainer);
  }
  return model->step == plan->n_steps;
}

/* Those that were in flight when the job ended. */
static void free_all(struct trainer *trainer) {
  for (uint32_t t = 0; t < trainer->plan->n_tensors; t++)
    for (uint32_t w = 0; w < trainer->plan->window; w++) sim_operation_free(&trainer->operations[t][w]);
}

/* ------------------------------------------------------------ a generation */

static zenps_status_t open_tensors(struct trainer *trainer) {
  zenps_status_t status = ZENPS_OK;
  for (uint32_t t = 0; t < trainer->plan->n_tensors && status == ZENPS_OK; t++)
    status = sim_tensor_open(trainer->job, &trainer->generation->plan.tensors[t], &trainer->tensors[t]);
  return status;
}

/* What all go on with. A rank whose own is not replaced entirely keeps it. */
static bool take_model(struct trainer *trainer) {
  const struct sim_generation *const at = trainer->generation;
  struct model model = trainer->model;
  zenps_status_t status = open_tensors(trainer);
  if (status == ZENPS_OK) status = zenps_broadcast(trainer->job, &model, sizeof model, trainer->told.source);
  if (status != ZENPS_OK) {
    failed(trainer, "model", status, zenps_last_error()->text);
    return false;
  }
  if (model.step != trainer->told.step || !at->has_model || model.sum != at->model)
    sim_wrong("process %u has another model than the source of generation %u", trainer->self->rank,
              trainer->told.number);
  trainer->model = model;
  return true;
}

/* Nobody leaves while others may need it. */
static bool finish(struct trainer *trainer) {
  sim_generation_finished();
  if (trainer->plan->leaves_early || zenps_barrier(trainer->job) == ZENPS_OK) return true;
  failed(trainer, "barrier", zenps_last_error()->status, zenps_last_error()->text);
  return false;
}

static zenps_status_t open_job(struct trainer *trainer) {
  zenps_options_t options;
  zenps_options_init(&options, sizeof options);
  options.coordinator = SIM_COORDINATOR;
  options.job = "run";
  options.rank = (int)trainer->self->rank;
  options.world = (int)trainer->plan->world;
  options.min_world = (int)trainer->plan->min_world;
  options.max_world = (int)trainer->plan->max_world;
  options.join_wait_ms = trainer->plan->join_wait_ms;
  options.provider = trainer->plan->provider;
  options.join_timeout_ms = options.round_timeout_ms = TIMEOUT_MS;
  options.threads = (int)trainer->plan->threads;
  const zenps_status_t status = zenps_open(&options, &trainer->job);
  return status == ZENPS_OK ? zenps_job_generation(trainer->job, &trainer->told) : status;
}

/* False: the job does not go on, for this process. */
static bool join(struct trainer *trainer) {
  struct sim_rank *const self = trainer->self;
  const struct sim_place was = {.generation = trainer->generation,
                                .rank = trainer->told.rank,
                                .step = trainer->model.step,
                                .model = trainer->model.sum};
  if (trainer->generation) sim_generation_over(trainer->generation, "a rank has left it");
  self->is_in = false;
  self->generation = NULL;
  trainer->told.struct_size = sizeof trainer->told;
  const zenps_status_t status =
      trainer->generation ? zenps_job_next(&trainer->job, trainer->model.step, &trainer->told) : open_job(trainer);
  free_all(trainer);
  self->job = trainer->job;
  if (status != ZENPS_OK) {
    sim_generation_refused(self, &was, status, zenps_last_error()->text);
    return false;
  }
  trainer->generation = sim_generation_enter(self, trainer->job, &trainer->told, &was);
  self->is_in = trainer->generation;
  return self->is_in;
}

static void leave(struct trainer *trainer) {
  if (trainer->generation) sim_generation_over(trainer->generation, "a rank has left it");
  trainer->self->generation = NULL;
  trainer->self->n_left = 1;
  zenps_close(trainer->job);
  free_all(trainer);
}

void sim_elastic_main(void *ctx) {
  struct sim_rank *const self = ctx;
  struct trainer *const trainer = calloc(1, sizeof *trainer);
  trainer->self = self;
  trainer->plan = sim_cluster.plan;
  for (uint32_t t = 0; t < trainer->plan->n_tensors; t++)
    for (uint32_t w = 0; w < trainer->plan->window; w++)
      sim_operation_init(&trainer->operations[t][w], &trainer->plan->tensors[t]);
  while (join(trainer))
    if (take_model(trainer) && train(trainer) && finish(trainer)) break;
  leave(trainer);
  for (uint32_t t = 0; t < trainer->plan->n_tensors; t++)
    for (uint32_t w = 0; w < trainer->plan->window; w++) sim_operation_fini(&trainer->operations[t][w]);
  free(trainer);
  self->has_ended = true;
  sim_wake_all(&sim_cluster.steps_seen);
}
