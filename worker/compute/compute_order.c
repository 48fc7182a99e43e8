/* Instructions that depend on magnitudes and on counts. */
#include <math.h>
#include <string.h>

#include "worker/compute/compute_impl.h"
#include "worker/select/estimate.h"
#include "worker/select/magnitude.h"
#include "worker/select/order.h"
#include "worker/select/scan.h"

static uint64_t row_magnitude(const struct zps_slice_view *view, const char *values, uint32_t i) {
  uint64_t magnitude = 0;
  for (uint32_t j = 0; j < view->width; j++) {
    const uint64_t one = zps_magnitude_at(view->dtype, values, (uint64_t)i * view->width + j);
    if (one > magnitude) magnitude = one;
  }
  return magnitude;
}

/* Calls for each row of a stream, ascending, in batches. */
struct walk {
  const struct zps_slice_view *view;
  struct zps_index_cursor cursor;
  uint32_t indices[ZPS_COMPUTE_BATCH];
  const char *values;
};

static void walk_init(struct walk *walk, const struct zps_slice_view *view) {
  walk->view = view;
  zps_index_cursor_init(&walk->cursor, view);
}

/* Reads the next rows into `walk`, and returns how many. */
static uint32_t walk_on(struct walk *walk, void *room) {
  const uint32_t n = zps_index_cursor_read(&walk->cursor, walk->view->m, walk->indices, ZPS_COMPUTE_BATCH);
  walk->values = zps_slice_values(walk->view, walk->cursor.next - n, n, room);
  return n;
}

/* The k-th greatest magnitude of all inputs' rows together, 1 <= k <= how many they are. */
static zps_err_t select_kth(struct zps_compute_work *work, uint64_t n_rows, uint64_t k, struct zps_order *order_p) {
  const struct zps_compute_in *const ins = work->task->ins;
  const enum zps_dtype dtype = work->compute->dtype;
  const size_t elem_bytes = zps_dtype_size(dtype);
  if (work->task->instr.n_in == 1 && ins->view.width == 1 && ins->view.value_codec == ZPS_VALUES_RAW) {
    *order_p = zps_order_select(dtype, ins->view.values, n_rows, k);
    return ZPS_OK;
  }
  zps_err_t code = zps_buffer_need(&work->scratch->magnitudes, n_rows, elem_bytes);
  if (code == ZPS_OK)
    code = zps_buffer_need(&work->scratch->room, ZPS_COMPUTE_BATCH, work->compute->width * elem_bytes);
  if (code != ZPS_OK) return code;
  char *to = work->scratch->magnitudes.data;
  for (uint32_t i = 0; i < work->task->instr.n_in; i++) {
    const struct zps_slice_view *const view = &ins[i].view;
    for (uint32_t first = 0, n; first < view->z; first += n) {
      n = view->z - first < ZPS_COMPUTE_BATCH ? view->z - first : ZPS_COMPUTE_BATCH;
      const char *const values = zps_slice_values(view, first, n, work->scratch->room.data);
      for (uint32_t row = 0; row < n; row++, to += elem_bytes) {
        const uint64_t magnitude = row_magnitude(view, values, row);
        memcpy(to, &magnitude, elem_bytes); /* a float's bits, or a double's */
      }
    }
  }
  *order_p = zps_order_select(dtype, work->scratch->magnitudes.data, n_rows, k);
  return ZPS_OK;
}

/* Keeps the rows whose magnitude is greater than `above`, and the first `n_equal` of those that have just that. */
static zps_err_t keep(struct zps_compute_work *work, uint64_t above, uint64_t n_equal, uint64_t n_max) {
  const struct zps_slice_view *const view = &work->task->ins->view;
  zps_err_t code = zps_compute_need_indices(work, n_max);
  if (code == ZPS_OK) code = zps_compute_need_room(work);
  if (code != ZPS_OK) return code;
  struct walk walk;
  walk_init(&walk, view);
  for (uint32_t n; (n = walk_on(&walk, work->scratch->room.data)) > 0;) {
    const char *const rows = zps_compute_take_rows(work, view, walk.cursor.next - n, n, (void *)(uintptr_t)walk.values);
    for (uint32_t i = 0; i < n; i++) {
      const uint64_t magnitude = row_magnitude(view, walk.values, i);
      if (magnitude < above) continue;
      if (magnitude == above) {
        if (n_equal == 0) continue;
        n_equal--;
      }
      memcpy(work->out + work->z * work->row_bytes, rows + i * work->row_bytes, work->row_bytes);
      work->indices[work->z++] = walk.indices[i];
    }
  }
  zps_compute_finish(work);
  return ZPS_OK;
}

zps_err_t zps_compute_top(struct zps_compute_work *work) {
  const uint64_t z = work->task->ins->view.z, k = work->task->instr.k;
  if (k == 0) return keep(work, UINT64_MAX, 0, 0);
  if (k >= z) return keep(work, 0, 0, z);
  struct zps_order order;
  const zps_err_t code = select_kth(work, z, k, &order);
  if (code != ZPS_OK) return code;
  return keep(work, order.magnitude, order.magnitude > 0 ? k - order.n_above : 0, k);
}

/* Moments of a stream's values and the zeros of its other rows. False: they say nothing. */
static bool spread(struct zps_compute_work *work, double *mean_p, double *deviation_p) {
  const struct zps_slice_view *const view = &work->task->ins->view;
  const double n = (double)view->m * view->width;
  struct zps_moments moments = {0};
  for (uint32_t first = 0, rows; first < view->z; first += rows) {
    rows = view->z - first < ZPS_COMPUTE_BATCH ? view->z - first : ZPS_COMPUTE_BATCH;
    zps_scan_moments(view->dtype, zps_slice_values(view, first, rows, work->scratch->room.data),
                     (uint64_t)rows * view->width, &moments);
  }
  *mean_p = moments.sum / n;
  *deviation_p = sqrt(moments.squares / n - *mean_p * *mean_p);
  return isfinite(*mean_p) && isfinite(*deviation_p) && *deviation_p > 0;
}

static uint64_t count_from(struct zps_compute_work *work, uint64_t magnitude) {
  const struct zps_slice_view *const view = &work->task->ins->view;
  uint64_t count = 0;
  for (uint32_t first = 0, rows; first < view->z; first += rows) {
    rows = view->z - first < ZPS_COMPUTE_BATCH ? view->z - first : ZPS_COMPUTE_BATCH;
    const char *const values = zps_slice_values(view, first, rows, work->scratch->room.data);
    for (uint32_t i = 0; i < rows; i++) count += row_magnitude(view, values, i) >= magnitude;
  }
  return count;
}

/* The value of the k-th greatest magnitude; 0: there are fewer. */
static zps_err_t greatest(struct zps_compute_work *work, uint64_t k, double *value_p) {
  const struct zps_slice_view *const view = &work->task->ins->view;
  struct zps_order order = {0};
  const zps_err_t code = k <= view->z ? select_kth(work, view->z, k, &order) : ZPS_OK;
  *value_p = zps_magnitude_value(view->dtype, order.magnitude);
  return code;
}

static zps_err_t correct(struct zps_compute_work *work, double *threshold_p) {
  const uint64_t k = work->task->instr.k;
  double fewest, beyond_most;
  zps_err_t code = greatest(work, zps_estimate_fewest(k), &fewest);
  if (code == ZPS_OK) code = greatest(work, zps_estimate_most(k) + 1, &beyond_most);
  if (code == ZPS_OK) *threshold_p = zps_estimate_correct(*threshold_p, fewest, beyond_most);
  return code;
}

zps_err_t zps_compute_normal(struct zps_compute_work *work) {
  const struct zps_slice_view *const view = &work->task->ins->view;
  const uint64_t k = work->task->instr.k;
  double mean, deviation;
  if (k == 0 || k >= view->z) return zps_compute_top(work);
  const zps_err_t code = zps_compute_need_room(work);
  if (code != ZPS_OK) return code;
  if (!spread(work, &mean, &deviation)) return zps_compute_top(work);
  /* One of a row's `width` values passes with probability k / m when each does with this one. */
  const double one = -expm1(log1p(-(double)k / view->m) / view->width);
  double threshold = zps_estimate_normal(mean, deviation, one);
  uint64_t magnitude = zps_magnitude_from(view->dtype, threshold), count = count_from(work, magnitude);
  if (work->task->instr.corrected && (count < zps_estimate_fewest(k) || count > zps_estimate_most(k))) {
    const zps_err_t err = correct(work, &threshold);
    if (err != ZPS_OK) return err;
    if (threshold == 0) return zps_compute_top(work);
    magnitude = zps_magnitude_from(view->dtype, threshold);
    count = count_from(work, magnitude);
  }
  return keep(work, magnitude, UINT64_MAX, count);
}

zps_err_t zps_compute_threshold(struct zps_compute_work *work) {
  const enum zps_dtype dtype = work->compute->dtype;
  const double value = work->task->instr.value;
  const uint64_t z = work->task->ins->view.z, k = work->task->instr.k;
  if (z <= k) return keep(work, 0, UINT64_MAX, z);
  if (k > 0 && value == 0) return zps_compute_top(work);
  const uint64_t least = isnan(value) ? zps_magnitude_from(dtype, (double)INFINITY) + 1 /* NaNs alone */
                         : value > 0  ? zps_magnitude_from(dtype, value)
                                      : 0;
  return keep(work, least, UINT64_MAX, z);
}

static void put_double(struct zps_compute_work *work, uint32_t i, double value) {
  memcpy(work->out + i * sizeof value, &value, sizeof value);
}

zps_err_t zps_compute_kth(struct zps_compute_work *work) {
  uint64_t n_rows = 0;
  for (uint32_t i = 0; i < work->task->instr.n_in; i++) n_rows += work->task->ins[i].view.z;
  const uint64_t k = work->task->instr.k;
  struct zps_order order = {0};
  if (k > 0 && k <= n_rows) {
    const zps_err_t code = select_kth(work, n_rows, k, &order);
    if (code != ZPS_OK) return code;
  }
  put_double(work, 0, zps_magnitude_value(work->compute->dtype, order.magnitude));
  zps_compute_finish_full(work);
  return ZPS_OK;
}

zps_err_t zps_compute_counts(struct zps_compute_work *work) {
  for (uint32_t i = 0; i < work->task->instr.n_in; i++) put_double(work, i, work->task->ins[i].view.z);
  zps_compute_finish_full(work);
  return ZPS_OK;
}

zps_err_t zps_compute_splits(struct zps_compute_work *work) {
  const struct zps_compute_in *const in = work->task->ins;
  const uint64_t n = work->task->instr.k, z = in->view.z;
  struct zps_index_cursor cursor;
  uint32_t room[ZPS_INDEX_CURSOR_ROOM], n_read = 0;
  zps_index_cursor_init(&cursor, &in->view);
  for (uint32_t i = 1; i < n; i++) {
    if (z == 0) { /* even ones */
      put_double(work, i - 1, (double)(in->lo + (uint64_t)((unsigned __int128)(in->hi - in->lo) * i / n)));
      continue;
    }
    const uint64_t entry = (uint64_t)((unsigned __int128)z * i / n);
    while (cursor.next <= entry) n_read = zps_index_cursor_read(&cursor, in->view.m, room, ZPS_COMPUTE_BATCH);
    put_double(work, i - 1, (double)(in->lo + room[entry - (cursor.next - n_read)]));
  }
  zps_compute_finish_full(work);
  return ZPS_OK;
}

zps_err_t zps_compute_vector(struct zps_compute_work *work) {
  if (work->m > 0) memcpy(work->out, work->task->doubles, work->m * sizeof(double));
  zps_compute_finish_full(work);
  return ZPS_OK;
}
