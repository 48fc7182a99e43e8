#include "worker/tools/perf_parts.h"

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

zps_err_t perf_parts_init(struct perf_parts *parts, uint32_t n, uint64_t rows, size_t row_bytes, const zenps_grad_t *in,
                          uint64_t entries, struct zps_error *error) {
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

void perf_parts_fini(struct perf_parts *parts) {
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

void perf_parts_cut(struct perf_parts *parts, const zenps_grad_t *in) {
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

void perf_parts_out(struct perf_parts *parts, zenps_grad_t *out) {
  cut_rows(parts, parts->out, out->layout, out->values);
  out->parts = parts->out;
  out->n_parts = parts->n;
}

/* The parts' values are views that follow each other: of them one list is left to be made of row numbers. */
zps_err_t perf_parts_join(struct perf_parts *parts, zenps_grad_t *out, struct zps_error *error) {
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
