#include "worker/examples/train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/enlarge.h"
#include "common/base/exit.h"
#include "common/codec/values.h"
#include "worker/examples/train_elastic.h"
#include "worker/examples/train_select.h"
#include "worker/tools/gather.h"

const char *const train_values[] = {ZPS_VALUES_NAME_LIST, NULL};

static const char *program_name = "example";

static bool fail(const char *what) {
  fprintf(stderr, "%s: %s: %s\n", program_name, what, zenps_last_error()->text);
  return false;
}

bool train_fail(struct train *train, const char *what) {
  if (train->generation.number == 0 || !zenps_status_recoverable(zenps_last_error()->status)) return fail(what);
  train->goes_on = true;
  snprintf(train->why, sizeof train->why, "%s: %s", what, zenps_last_error()->text);
  return false;
}

double train_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static bool fail_gpu(const struct zps_error *error) {
  fprintf(stderr, "%s: %s\n", program_name, error->text);
  return false;
}

bool train_open(struct train *train, const char *program, const struct train_sync *sync, bool json) {
  zenps_options_t options;
  struct zps_error error;
  program_name = program;
  *train = (struct train){.json = json, .program = program, .status = ZPS_EXIT_FAILED};
  ZENPS_OPTIONS_INIT(&options);
  if (zps_gpu_index(sync->memory, sync->device, &options.device, &error) != ZPS_OK) {
    train->status = ZPS_EXIT_USAGE;
    return fail_gpu(&error);
  }
  const zenps_status_t status = zenps_open(&options, &train->job);
  if (status != ZENPS_OK) {
    train->status = zps_exit_of((zps_err_t)status);
    return fail("cannot join the job");
  }
  if (options.device >= 0 && zps_gpu_open(options.device, &train->gpu, &error) != ZPS_OK) return fail_gpu(&error);
  train_joined(train);
  if (train->generation.number > 1) train->told = UINT64_MAX;
  train->start_s = train_seconds();
  return train_meet(train) || train_next(train, 0);
}

/* Ranks leave together: the pushes of one that has left are gone, and a server that is lost then would cost the others
 * their last step. How the barrier ends changes nothing. */
void train_close(struct train *train, bool is_done) {
  if (is_done) (void)zenps_barrier(train->job);
  zenps_close(train->job);
  zps_gpu_close(train->gpu);
}

bool train_tensor_open(struct train *train, struct train_tensor *tensor, const char *name, uint64_t rows,
                       uint32_t width, const struct train_sync *sync) {
  char scheme[ZPS_SCHEME_TEXT_MAX + 1];
  zenps_tensor_options_t options;
  ZENPS_TENSOR_OPTIONS_INIT(&options);
  options.values = (zenps_values_t)(ZENPS_VALUES_RAW + sync->values);
  options.scheme = scheme;
  const bool lossy = train_select_lossy(sync->scheme), selects = sync->sparsify > 0;
  struct zps_error why;
  if (!train_select_scheme(sync, scheme, &why)) {
    fprintf(stderr, "%s: %s\n", program_name, why.text);
    train->status = ZPS_EXIT_USAGE;
    return false;
  }
  if (sync->warmup > 0 && (lossy || !selects)) {
    fprintf(stderr, "%s: --warmup needs --sparsify and a scheme that loses nothing\n", program_name);
    train->status = ZPS_EXIT_USAGE;
    return false;
  }
  *tensor = (struct train_tensor){.gpu = train->gpu, .scale = 1};
  if (!grad_init(&tensor->grad, rows, width)) {
    fprintf(stderr, "%s: out of memory for %llu rows\n", program_name, (unsigned long long)rows);
    return false;
  }
  if (selects && !train_select_open(&tensor->select, sync, rows, width)) return fail("cannot select values");
  if (zenps_tensor_open(train->job, name, selects ? rows * width : rows, selects ? 1 : width, ZENPS_F32, &options,
                        &tensor->tensor) != ZENPS_OK)
    return train_fail(train, "cannot open a tensor");
  if (sync->xi > 0 && !train_xi_open(&tensor->select.xi, train->job, name, rows, width, tensor->select.k, sync->xi))
    return train_fail(train, "cannot measure xi");
  return true;
}

void train_tensor_close(struct train_tensor *tensor) {
  train_sync_done(tensor);
  train_select_close(&tensor->select);
  zps_gpu_release(tensor->gpu, &tensor->in_there);
  zps_gpu_free(&tensor->sum_here);
  grad_fini(&tensor->grad);
  *tensor = (struct train_tensor){.tensor = NULL};
}

/* Where the sum comes to lie: rows, or a row for each value that was selected. */
static zenps_grad_t *sum_of(struct train_tensor *tensor) {
  return tensor->select.sparsifier ? &tensor->select.values : &tensor->sum;
}

static size_t row_bytes(const struct train_tensor *tensor) {
  return (tensor->select.sparsifier ? 1 : tensor->grad.width) * sizeof(float);
}

bool train_sync_start(struct train *train, struct train_tensor *tensor, uint64_t step, double rate) {
  const double start_s = train_seconds();
  struct zps_error error;
  zenps_grad_t in;
  ZENPS_GRAD_INIT(&in);
  in.layout = ZENPS_ROWS;
  in.nnz = tensor->grad.n;
  in.row_ids = tensor->grad.row_ids;
  in.values = tensor->grad.values;
  zenps_grad_t *out = sum_of(tensor);
  tensor->scale = tensor->select.sparsifier ? 1 : rate;
  if (tensor->select.sparsifier && !train_select_in(&tensor->select, &tensor->grad, (float)rate, &in))
    return fail("cannot select values");
  if (!train_xi_before(&tensor->select.xi, step, zenps_sparsifier_residual(tensor->select.sparsifier), &tensor->grad,
                       rate))
    return train_fail(train, "cannot measure xi");
  if (!tensor->select.sparsifier) train->n_selected += in.nnz;
  ZENPS_GRAD_INIT(out);
  out->layout = ZENPS_ROWS; /* arrays left NULL: the library's */
  if (train->gpu) {
    zps_gpu_mark(train->gpu, out);
    if (zps_gpu_send(train->gpu, &in, in.nnz, row_bytes(tensor), &tensor->in_there, &error) != ZPS_OK)
      return fail_gpu(&error);
  }
  const zenps_grad_t *const given = train->gpu ? &tensor->in_there.grad : &in;
  if (zenps_allreduce(tensor->tensor, step, given, out, &tensor->request) != ZENPS_OK)
    return train_fail(train, "cannot start a sum");
  train->sync_s += train_seconds() - start_s;
  return true;
}

bool train_sync_is_here(const struct train_tensor *tensor) {
  return zenps_test(tensor->request) != ZENPS_IN_PROGRESS;
}

bool train_sync_wait(struct train *train, struct train_tensor *tensor) {
  const double start_s = train_seconds();
  struct zps_error error;
  zenps_grad_t *const out = sum_of(tensor);
  zenps_request_stats_t stats = {.struct_size = sizeof stats};
  if (zenps_wait(tensor->request, -1) != ZENPS_OK) return train_fail(train, "a sum failed");
  if (zenps_request_stats(tensor->request, &stats) != ZENPS_OK) return fail("no statistics");
  if (train->gpu) {
    if (zps_gpu_fetch(train->gpu, out, out->nnz, row_bytes(tensor), &tensor->sum_here, &error) != ZPS_OK)
      return fail_gpu(&error);
    *out = tensor->sum_here.grad;
  }
  if (tensor->select.sparsifier) {
    zenps_sparsifier_stats_t selected = {.struct_size = sizeof selected};
    double xi = 0;
    bool is_measured;
    train->n_kept += tensor->select.values.nnz;
    if (zenps_sparsifier_stats(tensor->select.sparsifier, &selected) != ZENPS_OK ||
        !train_select_out(&tensor->select, tensor->request, tensor->grad.width, &tensor->sum) ||
        !train_xi_after(&tensor->select.xi, &tensor->select.values, &is_measured, &xi))
      return train_fail(train, "cannot take the sum's values");
    train->n_selected += tensor->select.n_sent;
    train->n_wanted += tensor->select.in_scheme ? tensor->select.k : selected.k;
    train->xi += xi;
    train->n_xi += is_measured;
  }
  train->sync_s += train_seconds() - start_s;
  train->bytes_moved += stats.bytes_out + stats.bytes_in;
  /* A dense ring allreduce sends and receives 2 (n - 1) / n times the tensor, each. */
  train->dense_bytes += 4 * (uint64_t)(train->world - 1) * tensor->grad.rows * tensor->grad.width * sizeof(float) /
                        (uint64_t)train->world;
  return true;
}

void train_sync_done(struct train_tensor *tensor) {
  zenps_request_free(tensor->request);
  tensor->request = NULL;
  grad_clear(&tensor->grad);
}

bool train_sum(struct train *train, double *values, uint32_t n) {
  double *all;
  char name[32];
  snprintf(name, sizeof name, "metrics.%u", n);
  if (zps_gather(train->job, name, train->gathers++, n, values, &all) != ZENPS_OK)
    return train_fail(train, "cannot add up metrics");
  for (uint32_t i = 0; i < n; i++) {
    values[i] = 0;
    for (int rank = 0; rank < train->world; rank++) values[i] += all[(uint32_t)rank * n + i];
  }
  free(all);
  return true;
}

bool train_report(struct train *train, unsigned epoch, double loss, const char *metric_name, double metric,
                  const char *unit) {
  const double now_s = train_seconds(), seconds = now_s - train->start_s;
  double sums[] = {(double)train->samples,    (double)train->bytes_moved, (double)train->dense_bytes,
                   (double)train->n_selected, (double)train->n_kept,      (double)train->n_wanted};
  const double sync_s = train->sync_s;
  if (!train_sum(train, sums, 6)) return false;
  const double selected = sums[5] > 0 ? sums[3] / sums[5] : 0, kept = sums[5] > 0 ? sums[4] / sums[5] : 0;
  char xi[48] = "";
  if (train->n_xi > 0)
    snprintf(xi, sizeof xi, train->json ? "\"xi\": %.6g, " : "  xi %.3g", train->xi / (double)train->n_xi);
  if (train->rank == 0 && train->json) {
    printf(
        "{\"epoch\": %u, \"loss\": %.9g, \"%s\": %.9g, \"%s_per_s\": %.1f, \"compute_s\": %.3f, \"sync_s\": %.3f, "
        "\"bytes_moved\": %.0f, \"dense_bytes\": %.0f, \"selected_over_k\": %.6g, \"kept_over_k\": %.6g, %s"
        "\"memory\": \"%s\", \"world\": %d}\n",
        epoch, loss, metric_name, metric, unit, sums[0] / seconds, seconds - sync_s, sync_s, sums[1], sums[2], selected,
        kept, xi, zps_gpu_memory_values[train->gpu != NULL], train->world);
  } else if (train->rank == 0) {
    printf("epoch %2u  loss %.5f  held-out %s %.4f  %.0f %s/s  computing %.2f s, synchronising %.2f s  moved %.1f MB",
           epoch, loss, metric_name, metric, sums[0] / seconds, unit, seconds - sync_s, sync_s, sums[1] / 1e6);
    if (sums[1] > 0 && sums[2] > 0) printf(" instead of %.0f MB dense (%.1fx less)", sums[2] / 1e6, sums[2] / sums[1]);
    if (sums[5] > 0) printf("  selected %.3f k, summed %.3f k", selected, kept);
    puts(xi);
  }
  fflush(stdout);
  train->samples = train->bytes_moved = train->dense_bytes = 0;
  train->xi = 0;
  train->n_xi = 0;
  train->n_selected = train->n_kept = train->n_wanted = 0;
  train->sync_s = 0;
  train->start_s = train_seconds();
  train->told = epoch;
  return true;
}

/* ------------------------------------------------------------ gradients */

bool grad_init(struct grad *grad, uint64_t rows, uint32_t width) {
  *grad = (struct grad){.rows = rows, .width = width, .slot_of_row = malloc(rows * sizeof *grad->slot_of_row)};
  if (!grad->slot_of_row) return false;
  for (uint64_t i = 0; i < rows; i++) grad->slot_of_row[i] = -1;
  return true;
}

void grad_fini(struct grad *grad) {
  free(grad->slot_of_row);
  free(grad->row_ids);
  free(grad->values);
}

float *grad_row(struct grad *grad, uint64_t row) {
  int64_t slot = grad->slot_of_row[row];
  if (slot < 0) {
    if (grad->n == grad->capacity) {
      const uint64_t capacity = grad->capacity ? 2 * grad->capacity : 1024;
      if (!zps_enlarge(&grad->row_ids, capacity, sizeof *grad->row_ids) ||
          !zps_enlarge(&grad->values, capacity * grad->width, sizeof *grad->values))
        return NULL;
      grad->capacity = capacity;
    }
    slot = grad->slot_of_row[row] = (int64_t)grad->n++;
    grad->row_ids[slot] = (int64_t)row;
    memset(grad->values + (uint64_t)slot * grad->width, 0, grad->width * sizeof *grad->values);
  }
  return grad->values + (uint64_t)slot * grad->width;
}

bool grad_add(struct grad *grad, const struct grad *other) {
  for (uint64_t i = 0; i < other->n; i++) {
    const float *values = other->values + i * other->width;
    float *row = grad_row(grad, (uint64_t)other->row_ids[i]);
    if (!row) return false;
    for (uint32_t k = 0; k < grad->width; k++) row[k] += values[k];
  }
  return true;
}

void grad_clear(struct grad *grad) {
  for (uint64_t i = 0; i < grad->n; i++) grad->slot_of_row[grad->row_ids[i]] = -1;
  grad->n = 0;
}
