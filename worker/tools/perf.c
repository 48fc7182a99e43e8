/*
 * zenps-perf: measures and verifies zenps_allreduce() on random or recorded sparsity patterns. Runs as the ranks of a
 * job, under zenpsrun, torchrun or anything that sets ZENPS_RANK and ZENPS_WORLD_SIZE.
 */
#include "worker/tools/perf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/descriptors.h"
#include "common/base/exit.h"
#include "common/codec/values.h"
#include "common/plan/schemes.h"
#include "worker/tools/perf_arrays.h"
#include "worker/tools/settle.h"

static int fail_zenps(const char *what) {
  fprintf(stderr, "zenps-perf: %s: %s\n", what, zenps_last_error()->text);
  return EXIT_FAILURE;
}

/* Of an operation on the job, which may have failed as its ranks changed. */
static int fail_operation(struct perf *perf, const char *what) {
  perf_generation_is_over(perf, zenps_last_error()->status);
  return fail_zenps(what);
}

double perf_element(const struct perf *perf, double value) {
  float near = (float)value;
  uint16_t half;
  if (perf->dtype == ZPS_DTYPE_F64) return value;
  if (zps_dtype_is_half(perf->dtype)) {
    zps_values_narrow(perf->dtype, &near, 1, &half);
    zps_values_widen(perf->dtype, &half, 1, &near);
  }
  return (double)near;
}

bool perf_row_is_zero(const struct perf *perf, uint64_t row) {
  return perf->options.keep_zero_rows && zps_hash_mix64(row ^ perf->options.seed) % 8 == 0;
}

static void put_value(const struct perf *perf, double value, void *values, uint64_t i) {
  const float near = (float)value;
  if (perf->dtype == ZPS_DTYPE_F64)
    ((double *)values)[i] = value;
  else if (perf->dtype == ZPS_DTYPE_F32)
    ((float *)values)[i] = near;
  else
    zps_values_narrow(perf->dtype, &near, 1, (uint16_t *)values + i);
}

/* The step's gradient: fills the arrays of `in`. */
static void fill_input(struct perf *perf, uint64_t step, zenps_grad_t *in) {
  const struct perf_options *options = &perf->options;
  const uint64_t width = options->width;
  const uint32_t rank = (uint32_t)zenps_rank(perf->job);
  const int64_t *rows = perf->own = perf_input_touched(perf->input, step, rank, &perf->n_own);
  in->nnz = 0;
  if (options->out == PERF_IN_PLACE) memset(in->values, 0, perf->rows * width * perf->value_bytes); /* the last sum */
  for (uint64_t copy = 0; copy < options->duplicates; copy++) {
    const uint64_t key = perf_value_key(options->seed, step, rank, (uint32_t)copy);
    for (uint64_t i = 0; i < perf->n_own; i++) {
      const uint64_t row = (uint64_t)rows[i], at = in->layout == ZENPS_DENSE ? row : in->nnz;
      if (in->layout == ZENPS_ROWS) in->row_ids[in->nnz++] = rows[i];
      for (uint64_t c = 0; c < width; c++) {
        const double value = perf_value(key, row * width + c, perf->value_bits);
        put_value(perf, perf_row_is_zero(perf, row) ? 0 : value, in->values, at * width + c);
      }
    }
  }
}

/* Takes the values that fill_input() put into a dense array out again, before others are drawn. */
static void clear_input(const struct perf *perf, zenps_grad_t *in) {
  const size_t row_bytes = perf->options.width * perf->value_bytes;
  if (in->layout != ZENPS_DENSE || perf->options.out == PERF_IN_PLACE) return;
  if (perf->n_own > perf->rows / 64) {
    memset(in->values, 0, perf->rows * row_bytes);
  } else {
    for (uint64_t i = 0; i < perf->n_own; i++)
      memset((char *)in->values + (size_t)perf->own[i] * row_bytes, 0, row_bytes);
  }
}

static double process_cpu_ms(void) {
  struct timespec used = {0};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return (double)used.tv_sec * 1e3 + (double)used.tv_nsec / 1e6;
}

/* The costs of one sum, on this rank. */
struct sum {
  zenps_request_t *request, *push; /* push: where it is apart */
  uint64_t start_ns;
  double ms, cpu_ms;
  bool is_skipped; /* the rank came so late that servers keep no sum of the step any more */
};

static zenps_status_t start_sum(struct perf *perf, uint64_t step, const zenps_grad_t *in, zenps_grad_t *out,
                                struct sum *sum) {
  const zenps_rows_t share = ZENPS_ROWS_RANGE(perf->share_first, perf->share_rows);
  zenps_status_t status;
  switch (perf->options.collective) {
    case PERF_PUSH_PULL:
      status = zenps_push(perf->tensor, step, in, &sum->push);
      return status == ZENPS_OK ? zenps_pull(perf->tensor, step, NULL, out, &sum->request) : status;
    case PERF_REDUCE_SCATTER:
      return zenps_reduce_scatter(perf->tensor, step, in, &share, out, &sum->request);
    case PERF_ALLGATHER:
      return zenps_allgather(perf->tensor, step, in, out, &sum->request);
    default:
      return zenps_allreduce(perf->tensor, step, in, out, &sum->request);
  }
}

static void free_sum(struct sum *sum) {
  zenps_request_free(sum->push);
  zenps_request_free(sum->request);
}

/* With a quorum no rank waits for another one but in rounds. */
static bool meet(const struct perf *perf) {
  return perf->options.quorum > 0 || zenps_barrier(perf->job) == ZENPS_OK;
}

/* A barrier, so that ranks start together, then the timed sum, then another, so that no rank checks or makes the next
 * gradient while others are still timed. */
static int run_sum(struct perf *perf, uint64_t step, const zenps_grad_t *in, zenps_grad_t *out, struct sum *sum) {
  *sum = (struct sum){.request = NULL};
  if (!meet(perf)) return fail_operation(perf, "barrier");
  const double start_cpu_ms = process_cpu_ms();
  sum->start_ns = zps_clock_ns();
  zenps_status_t status = start_sum(perf, step, in, out, sum);
  if (status == ZENPS_OK && sum->push) status = zenps_wait(sum->push, -1);
  if (status == ZENPS_OK) status = zenps_wait(sum->request, -1);
  sum->ms = (double)(zps_clock_ns() - sum->start_ns) / 1e6;
  sum->cpu_ms = process_cpu_ms() - start_cpu_ms;
  const bool summed = status == ZENPS_OK;
  sum->is_skipped = perf->options.quorum > 0 && status == ZENPS_ERR_STALE;
  if (sum->is_skipped || (summed && meet(perf))) return EXIT_SUCCESS;
  fail_operation(perf, summed ? "barrier" : "sum");
  free_sum(sum);
  return EXIT_FAILURE;
}

static int fail(const struct perf *perf, const struct zps_error *error) {
  fprintf(stderr, "zenps-perf: rank %d: %s\n", zenps_rank(perf->job), error->text);
  return EXIT_FAILURE;
}

/* Makes the step's gradient, where rounds take it from. */
static int draw(struct perf *perf, uint64_t step, struct perf_arrays *arrays) {
  struct zps_error error;
  fill_input(perf, step, &arrays->in);
  return perf_arrays_bring(arrays, &error) == ZPS_OK ? EXIT_SUCCESS : fail(perf, &error);
}

/* Compares a step's result; false where there is none to compare. */
static bool check_step(struct perf *perf, uint64_t step, struct perf_arrays *arrays, const zenps_request_t *request,
                       zenps_grad_t *out, struct perf_check *check) {
  struct zps_error error;
  const zenps_grad_t *result;
  if (perf_arrays_result(arrays, out, &result, &error) != ZPS_OK) {
    (void)fail(perf, &error);
    return false;
  }
  if (perf->options.collective != PERF_REDUCE_SCATTER) perf_check_digest(perf, result); /* each has its own */
  if (perf_check_step(check, step, request, result, &error) != ZPS_OK) {
    (void)fail(perf, &error);
    perf->result.verified = false;
  }
  return true;
}

/* One step, and its check. */
static int run_step(struct perf *perf, uint64_t step, struct perf_arrays *arrays, struct perf_check *check) {
  struct sum sum;
  int failed = draw(perf, step, arrays);
  if (failed) return failed;
  zenps_grad_t out = perf_arrays_out(arrays);
  failed = run_sum(perf, step, perf_arrays_in(arrays), &out, &sum);
  if (failed) return failed;
  clear_input(perf, &arrays->in);
  if (step >= perf->first) {
    const uint64_t index = step - perf->first;
    perf->result.start_s[index] = (double)sum.start_ns / 1e9;
    perf->result.cpu_ms += sum.cpu_ms;
    perf->result.skipped += sum.is_skipped;
    perf->result.late += sum.is_skipped;
    if (!sum.is_skipped && perf_figures_add(perf, sum.request, sum.push, sum.ms, index) != ZENPS_OK)
      failed = fail_zenps("statistics");
  }
  if (check && !sum.is_skipped && !check_step(perf, step, arrays, sum.request, &out, check)) failed = EXIT_FAILURE;
  free_sum(&sum);
  if (!failed && step >= perf->first) perf->done++;
  return failed;
}

static int run_until_settled(struct perf *perf, struct perf_arrays *arrays) {
  struct zps_settle settle = {.scheme = NULL};
  bool settled = strncmp(perf->scheme, "auto", 4) != 0;
  int failed = draw(perf, perf->first, arrays);
  for (uint64_t left = perf->options.settle; !failed && !settled && left > 0; left--) {
    zenps_request_stats_t stats = {.struct_size = sizeof stats};
    zenps_grad_t out = perf_arrays_out(arrays);
    struct sum sum;
    failed = run_sum(perf, perf->first, perf_arrays_in(arrays), &out, &sum);
    if (failed) break;
    perf->first++;
    if (zenps_request_stats(sum.request, &stats) != ZENPS_OK) failed = fail_zenps("statistics");
    free_sum(&sum);
    const enum zps_settle_verdict verdict = zps_settle_round(&settle, stats.scheme, sum.ms);
    settled = verdict == ZPS_SETTLED;
    if (verdict == ZPS_SETTLE_IF_LONG && perf_agree_long(perf, settle.shortest_ms, &settled) != ZENPS_OK)
      failed = fail_operation(perf, "cannot gather what a step took");
    if (!failed && perf->options.out == PERF_IN_PLACE) failed = draw(perf, perf->first, arrays);
  }
  clear_input(perf, &arrays->in);
  return failed;
}

static int run_steps(struct perf *perf, struct perf_check *check) {
  const struct perf_options *options = &perf->options;
  struct perf_arrays arrays;
  struct zps_error error;
  int failed = EXIT_SUCCESS;
  if (perf_arrays_init(&arrays, perf, &error) != ZPS_OK) return fail(perf, &error);
  perf->first = options->warmup;
  for (uint64_t step = 0; !failed && step < perf->first + perf->left; step++) {
    if (perf_generation_is_over(perf, ZENPS_OK)) break;
    if (step == options->warmup && options->settle > 0) {
      failed = run_until_settled(perf, &arrays);
      step = perf->first;
    }
    if (!failed) failed = run_step(perf, step, &arrays, check);
  }
  perf_arrays_fini(&arrays);
  return failed;
}

/* Shares are even, the first ones a row longer. */
static uint64_t share_begin(uint64_t rows, uint64_t rank, uint64_t world) {
  const uint64_t rest = rows % world;
  return rows / world * rank + (rank < rest ? rank : rest);
}

static zps_err_t open_input(struct perf *perf, struct zps_error *error) {
  const struct perf_options *options = &perf->options;
  const struct perf_input_config config = {
      .trace = options->trace,
      .rows = options->rows || options->trace ? options->rows : 1048576,
      .density = options->density,
      .skew = options->skew,
      .overlap = (enum perf_overlap)options->overlap,
      .batch = options->batch,
      .world = (uint32_t)zenps_world(perf->job),
      .empty = (uint32_t)options->empty,
      .seed = options->seed,
  };
  const zps_err_t code = perf_input_create(&config, &perf->input, error);
  if (code != ZPS_OK) return code;
  perf->rows = perf->share_rows = perf_input_rows(perf->input);
  if (options->collective != PERF_REDUCE_SCATTER) return code;
  const uint64_t rank = (uint64_t)zenps_rank(perf->job), world = (uint64_t)zenps_world(perf->job);
  perf->share_first = share_begin(perf->rows, rank, world);
  perf->share_rows = share_begin(perf->rows, rank + 1, world) - perf->share_first;
  return code;
}

/* Notes the properties of the tensor's scheme that say what its results are compared with. */
static void know_scheme(struct perf *perf) {
  zenps_tensor_info_t info = {.struct_size = sizeof info};
  const bool known = zenps_tensor_info(perf->tensor, &info) == ZENPS_OK;
  perf->scheme = known ? info.scheme : "?";
  perf->partitioner = known ? info.partitioner : NULL;
  perf->balanced = strcmp(perf->scheme, "balanced") == 0;
  perf->served = perf->balanced || strcmp(perf->scheme, "sparse-ps") == 0 || strcmp(perf->scheme, "dense-ps") == 0;
  enum zps_plan_scheme scheme;
  const bool one = zps_plan_scheme_parse(perf->scheme, &scheme);
  perf->lossy = one && zps_plan_scheme_lossy(scheme);
  const bool in_rank_order = one && zps_plan_scheme_exact_order(scheme);
  const unsigned few = perf->dtype == ZPS_DTYPE_BF16 ? 8 : perf->dtype == ZPS_DTYPE_F16 ? 11 : 12;
  perf->value_bits = perf->lossy || in_rank_order ? 24 : few;
}

/* In one generation. */
static int run_generation(struct perf *perf) {
  const struct perf_options *options = &perf->options;
  struct zps_error error;
  char name[32];
  zenps_tensor_options_t tensor_options;
  snprintf(name, sizeof name, "perf.%u", perf->number);
  perf_options_tensor(options, &tensor_options);
  perf->dtype = perf_options_dtype(options);
  perf->value_bytes = zps_dtype_size(perf->dtype);
  perf->sum_bytes = zps_dtype_size(zps_dtype_sum(perf->dtype));
  if (open_input(perf, &error) != ZPS_OK) goto err;
  if (zenps_tensor_open(perf->job, name, perf->rows, (uint32_t)options->width, (zenps_dtype_t)perf->dtype,
                        &tensor_options, &perf->tensor) != ZENPS_OK)
    return fail_operation(perf, "cannot open the tensor");
  know_scheme(perf);
  if (perf_figures_init(perf, &error) != ZPS_OK) goto err;
  struct perf_check *check = NULL;
  if (options->verify && perf_check_create(perf, &check, &error) != ZPS_OK) goto err;
  int failed = run_steps(perf, check);
  perf_check_destroy(check);
  if (!failed && !perf->goes_on && perf_report(perf) != ZENPS_OK)
    failed = fail_operation(perf, "cannot gather the results");
  return failed;

err:
  fprintf(stderr, "zenps-perf: %s\n", error.text);
  return EXIT_FAILURE;
}

/* The figures, from the beginning; what was found wrong stays so. */
static void forget_figures(struct perf *perf) {
  const bool verified = perf->result.verified;
  perf_input_destroy(perf->input);
  perf->input = NULL;
  perf_figures_fini(perf);
  perf->result = (struct perf_result){.verified = verified};
  perf->digest = 0;
}

static int run(struct perf *perf) {
  if (perf_generation_find(perf) != ZENPS_OK) return fail_zenps("cannot tell the generation");
  int failed = run_generation(perf);
  while (perf->goes_on) {
    forget_figures(perf);
    if (perf_generation_next(perf) != ZENPS_OK) return fail_zenps("the job does not go on");
    failed = run_generation(perf);
  }
  return failed;
}

/* The whole process's work. */
struct session {
  zenps_job_t *job;
  struct zps_gpu *gpu; /* NULL: arrays are in host memory */
  unsigned n_cases;
  uint64_t n_gathers;
  enum zps_exit status;
};

/* The job can go on unless a round failed; a wrong result does not matter to the next case. */
static bool run_case(void *ctx, const struct perf_options *options) {
  struct session *session = ctx;
  struct perf perf = {.options = *options,
                      .job = session->job,
                      .gpu = session->gpu,
                      .number = session->n_cases++,
                      .n_gathers_p = &session->n_gathers,
                      .result.verified = true};
  const bool went = run(&perf) == EXIT_SUCCESS;
  session->job = perf.job; /* may be that of another generation */
  if (!went || !perf.result.verified) session->status = ZPS_EXIT_FAILED;
  perf_input_destroy(perf.input);
  perf_figures_fini(&perf);
  return went;
}

/* Joins the job, and opens the GPU that gradients are on. */
static enum zps_exit open_session(struct session *session, const struct perf_options *given) {
  zenps_options_t options;
  struct zps_error error;
  ZENPS_OPTIONS_INIT(&options);
  options.threads = (int)given->threads;
  options.device = given->gpu;
  const zenps_status_t status = zenps_open(&options, &session->job);
  if (status != ZENPS_OK) {
    fail_zenps("cannot join the job");
    return zps_exit_of((zps_err_t)status);
  }
  const zps_err_t code = given->gpu < 0 ? ZPS_OK : zps_gpu_open(given->gpu, &session->gpu, &error);
  if (code != ZPS_OK) fprintf(stderr, "zenps-perf: cannot open GPU %d: %s\n", given->gpu, error.text);
  return zps_exit_of(code);
}

int main(int argc, char **argv) {
  struct session session = {.job = NULL};
  struct perf_options given;
  struct zps_error error;
  bool exit_now;
  zps_descriptors_fill();
  if (perf_options_load(argc, argv, &given, &exit_now, &error) != ZPS_OK) {
    fprintf(stderr, "zenps-perf: %s\n", error.text);
    return ZPS_EXIT_USAGE;
  }
  if (exit_now) return ZPS_EXIT_OK;
  session.status = open_session(&session, &given);
  if (session.status != ZPS_EXIT_OK) {
    /* nothing can be run */
  } else if (!given.cases) {
    run_case(&session, &given);
  } else if (perf_cases_run(argc, argv, &given, run_case, &session, &error) != ZPS_OK) {
    fprintf(stderr, "zenps-perf: %s\n", error.text);
    session.status = ZPS_EXIT_FAILED;
  }
  zenps_close(session.job);
  zps_gpu_close(session.gpu);
  perf_options_fini(&given);
  return session.status;
}
