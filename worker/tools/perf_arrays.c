#include "worker/tools/perf_arrays.h"

#include <stdlib.h>
#include <string.h>

#include "worker/tools/perf_array.h"

static uint64_t first_row(const struct perf_parts *parts, uint32_t i) {
  return (uint64_t)((unsigned __int128)parts->rows * i / parts->n);
}

static void cut_rows(const struct perf_parts *parts, zenps_part_t *list, zenps_layout_t layout, void *dense) {
  for (uint32_t i = 0; i < parts->n; i++) {
    const uint64_t first = first_row(parts, i);
    list[i] = (zenps_part_t){
        .struct_size = sizeof list[i], .row_base = first, .n_rows = first_row(parts, i + 1) - first, .layout = layout};
    if (layout == ZENPS_DENSE) list[i].values = (char *)dense + first * parts->row_bytes;
  }
}

/* `in` as it is filled each time: dense, or a list of at most `entries`. */
static zps_err_t parts_init(struct perf_parts *parts, uint32_t n, uint64_t rows, size_t row_bytes,
                            const zenps_grad_t *in, uint64_t entries, struct zps_error *error) {
  *parts = (struct perf_parts){.n = n, .rows = rows, .row_bytes = row_bytes, .in_grad = *in};
  const bool is_list = in->layout == ZENPS_ROWS;
  parts->in = calloc(n, sizeof *parts->in);
  parts->out = calloc(n, sizeof *parts->out);
  parts->places = calloc(n + 1ull, sizeof *parts->places);
  if (is_list) parts->ids = perf_array_alloc(entries, sizeof *parts->ids);
  if (is_list) parts->values = perf_array_alloc(entries, row_bytes);
  if (!parts->in || !parts->out || !parts->places || (is_list && (!parts->ids || !parts->values)))
    return zps_fail(error, ZPS_ERR_NOMEM, "out of memory for %u parts of %llu rows", n, (unsigned long long)rows);
  cut_rows(parts, parts->in, in->layout, in->values);
  parts->in_grad.parts = parts->in;
  parts->in_grad.n_parts = n;
  return ZPS_OK;
}

static void parts_fini(struct perf_parts *parts) {
  free(parts->in);
  free(parts->out);
  free(parts->places);
  free(parts->ids);
  free(parts->joined);
  free(parts->values);
}

static uint32_t part_of(const struct perf_parts *parts, uint64_t row) {
  uint32_t i = (uint32_t)((unsigned __int128)row * parts->n / parts->rows);
  while (i + 1 < parts->n && row >= first_row(parts, i + 1)) i++;
  return i;
}

/* Cuts the gradient, which has new entries. */
static void parts_cut(struct perf_parts *parts, const zenps_grad_t *in) {
  uint64_t *const places = parts->places;
  if (in->layout == ZENPS_DENSE) return;
  memset(places, 0, (parts->n + 1ull) * sizeof *places);
  for (uint64_t i = 0; i < in->nnz; i++) places[part_of(parts, (uint64_t)in->row_ids[i]) + 1]++;
  for (uint32_t i = 0; i < parts->n; i++) {
    zenps_part_t *const part = &parts->in[i];
    part->nnz = places[i + 1];
    places[i + 1] += places[i];
    part->row_ids = parts->ids + places[i];
    part->values = (char *)parts->values + places[i] * parts->row_bytes;
  }
  for (uint64_t i = 0; i < in->nnz; i++) {
    const uint32_t to = part_of(parts, (uint64_t)in->row_ids[i]);
    const uint64_t place = places[to]++;
    parts->ids[place] = in->row_ids[i] - (int64_t)parts->in[to].row_base;
    memcpy((char *)parts->values + place * parts->row_bytes, (const char *)in->values + i * parts->row_bytes,
           parts->row_bytes);
  }
}

/* Cuts `out` into parts: of its dense array, or lists of the library's. */
static void parts_out(struct perf_parts *parts, zenps_grad_t *out) {
  cut_rows(parts, parts->out, out->layout, out->values);
  out->parts = parts->out;
  out->n_parts = parts->n;
}

/* The parts' values are views that follow each other: of them one list is left to be made of row numbers. */
/* Makes one list of a result's. */
static zps_err_t parts_join(struct perf_parts *parts, zenps_grad_t *out, struct zps_error *error) {
  uint64_t n = 0;
  out->n_parts = 0;
  if (out->layout == ZENPS_DENSE) return ZPS_OK;
  free(parts->joined);
  parts->joined = perf_array_alloc(out->nnz, sizeof *parts->joined);
  if (!parts->joined)
    return zps_fail(error, ZPS_ERR_NOMEM, "out of memory for a result of %llu rows", (unsigned long long)out->nnz);
  out->row_ids = parts->joined;
  out->values = parts->out[0].values;
  for (uint32_t i = 0; i < parts->n; i++) {
    const zenps_part_t *const part = &parts->out[i];
    const bool follows = (char *)part->values == (char *)out->values + n * parts->row_bytes;
    if (part->nnz > out->nnz - n || !follows)
      return zps_fail(error, ZPS_ERR_INTERNAL, "part %u of the result does not follow the one before", i);
    for (uint64_t k = 0; k < part->nnz; k++) parts->joined[n++] = part->row_ids[k] + (int64_t)part->row_base;
  }
  return n == out->nnz ? ZPS_OK : zps_fail(error, ZPS_ERR_INTERNAL, "parts of the result miss some of its rows");
}

static zps_err_t init_there(struct perf_arrays *arrays, struct zps_error *error) {
  const struct perf *const perf = arrays->perf;
  zenps_grad_t *const out = &arrays->out_there.grad;
  *out = arrays->out;
  out->values = NULL;
  zps_gpu_mark(perf->gpu, out);
  if (perf->options.out != PERF_DENSE) return ZPS_OK;
  return zps_gpu_reserve(perf->gpu, &arrays->out_there, perf->rows, arrays->row_bytes, error);
}

zps_err_t perf_arrays_init(struct perf_arrays *arrays, const struct perf *perf, struct zps_error *error) {
  const struct perf_options *const options = &perf->options;
  zenps_grad_t *const in = &arrays->in, *const out = &arrays->out;
  uint64_t entries = perf->rows;
  *arrays = (struct perf_arrays){.perf = perf, .row_bytes = options->width * perf->value_bytes};
  ZENPS_GRAD_INIT(in);
  ZENPS_GRAD_INIT(out);
  in->layout = options->layout == 0 ? ZENPS_DENSE : ZENPS_ROWS;
  out->layout = options->out == PERF_ROWS ? ZENPS_ROWS : ZENPS_DENSE;
  if (in->layout == ZENPS_ROWS) {
    entries = perf->rows * options->duplicates;
    in->row_ids = perf_array_alloc(entries, sizeof *in->row_ids);
  }
  in->values = perf_array_alloc(entries, arrays->row_bytes);
  if (options->out == PERF_IN_PLACE) out->values = in->values;
  if (options->out == PERF_DENSE && !perf->gpu) out->values = perf_array_alloc(perf->rows, arrays->row_bytes);
  zps_err_t code = ZPS_OK;
  if (!in->values || (in->layout == ZENPS_ROWS && !in->row_ids) ||
      (out->layout == ZENPS_DENSE && !out->values && !perf->gpu))
    code = zps_fail(error, ZPS_ERR_NOMEM, "out of memory for %llu rows of %zu bytes", (unsigned long long)perf->rows,
                    arrays->row_bytes);
  else if (in->layout == ZENPS_DENSE)
    memset(in->values, 0, perf->rows * arrays->row_bytes);
  if (code == ZPS_OK && perf->gpu) code = init_there(arrays, error);
  if (code == ZPS_OK && options->parts > 1)
    code = parts_init(&arrays->parts, (uint32_t)options->parts, perf->rows, arrays->row_bytes, in, entries, error);
  if (code != ZPS_OK) perf_arrays_fini(arrays);
  return code;
}

void perf_arrays_fini(struct perf_arrays *arrays) {
  zps_gpu_release(arrays->perf->gpu, &arrays->in_there);
  zps_gpu_release(arrays->perf->gpu, &arrays->out_there);
  zps_gpu_free(&arrays->result);
  parts_fini(&arrays->parts);
  free(arrays->in.row_ids);
  free(arrays->in.values);
  if (arrays->perf->options.out != PERF_IN_PLACE) free(arrays->out.values);
}

zps_err_t perf_arrays_bring(struct perf_arrays *arrays, struct zps_error *error) {
  const struct perf *const perf = arrays->perf;
  if (arrays->parts.n) parts_cut(&arrays->parts, &arrays->in);
  if (!perf->gpu) return ZPS_OK;
  const uint64_t n = arrays->in.layout == ZENPS_ROWS ? arrays->in.nnz : perf->rows;
  const zps_err_t code = zps_gpu_send(perf->gpu, &arrays->in, n, arrays->row_bytes, &arrays->in_there, error);
  return code == ZPS_OK ? zps_gpu_wait(perf->gpu, error) : code;
}

const zenps_grad_t *perf_arrays_in(const struct perf_arrays *arrays) {
  if (arrays->parts.n) return &arrays->parts.in_grad;
  return arrays->perf->gpu ? &arrays->in_there.grad : &arrays->in;
}

zenps_grad_t perf_arrays_out(struct perf_arrays *arrays) {
  if (!arrays->perf->gpu) {
    zenps_grad_t here = arrays->out;
    if (arrays->parts.n) parts_out(&arrays->parts, &here);
    return here;
  }
  zenps_grad_t out = arrays->out_there.grad;
  if (arrays->perf->options.out == PERF_IN_PLACE) out.values = arrays->in_there.grad.values;
  return out;
}

zps_err_t perf_arrays_result(struct perf_arrays *arrays, zenps_grad_t *out, const zenps_grad_t **result_p,
                             struct zps_error *error) {
  const struct perf *const perf = arrays->perf;
  *result_p = out;
  if (arrays->parts.n) return parts_join(&arrays->parts, out, error);
  if (!perf->gpu) return ZPS_OK;
  const uint64_t n = out->layout == ZENPS_ROWS ? out->nnz : perf->rows;
  *result_p = &arrays->result.grad;
  return zps_gpu_fetch(perf->gpu, out, n, arrays->row_bytes, &arrays->result, error);
}
