#include "tests/chaos/sums.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/rng.h"

enum { WORLD_MAX = 16, WIDTH_MAX = 16 };

/* The row of a strip that a rank has, and its values. */
struct entry {
  uint64_t row;
  float values[WIDTH_MAX];
};

static struct entry entry_of(const struct sums_spec *spec, const struct sums_of *of, int rank, uint64_t strip) {
  const uint64_t first = strip * spec->rows / spec->n_strips, end = (strip + 1) * spec->rows / spec->n_strips;
  struct zps_rng rng = {zps_hash_mix64(of->seed ^ zps_hash_mix64(of->step << 16 ^ of->tensor << 8 ^ (uint64_t)rank)) +
                        strip};
  struct entry entry = {.row = first + zps_rng_below(&rng, end - first)};
  /* Of sizes so far apart that the order of a sum shows. */
  for (uint32_t i = 0; i < spec->width; i++)
    entry.values[i] = (float)((zps_rng_unit(&rng) - 0.5) * (double)(1u << zps_rng_below(&rng, 20)));
  return entry;
}

void sums_gradient(const struct sums_spec *spec, const struct sums_of *of, int rank, zenps_grad_t *grad) {
  float *const values = grad->values;
  if (spec->is_dense) memset(values, 0, spec->rows * spec->width * sizeof *values);
  for (uint64_t strip = 0; strip < spec->n_strips; strip++) {
    const struct entry entry = entry_of(spec, of, rank, strip);
    /* Lists of odd ranks descend. */
    const uint64_t at = spec->is_dense ? entry.row : rank % 2 ? spec->n_strips - 1 - strip : strip;
    memcpy(values + at * spec->width, entry.values, spec->width * sizeof *values);
    if (!spec->is_dense) grad->row_ids[at] = (int64_t)entry.row;
  }
  grad->layout = spec->is_dense ? ZENPS_DENSE : ZENPS_ROWS;
  grad->nnz = spec->is_dense ? 0 : spec->n_strips;
}

/* The rows that the sum has in the strip, ascending; returns how many. */
static int sum_strip(const struct sums_spec *spec, const struct sums_of *of, uint64_t strip, struct entry *sums) {
  int n = 0;
  for (int rank = 0; rank < of->world; rank++) {
    const struct entry entry = entry_of(spec, of, rank, strip);
    int at = 0;
    while (at < n && sums[at].row < entry.row) at++;
    if (at == n || sums[at].row != entry.row) {
      memmove(&sums[at + 1], &sums[at], (size_t)(n - at) * sizeof *sums);
      sums[at] = (struct entry){.row = entry.row};
      n++;
    }
    for (uint32_t i = 0; i < spec->width; i++) sums[at].values[i] += entry.values[i];
  }
  return n;
}

static void add(uint64_t *digest_p, uint64_t word) {
  *digest_p = zps_hash_mix64(*digest_p * 0x9e3779b97f4a7c15ull ^ word);
}

static void add_row(const struct sums_spec *spec, uint64_t *digest_p, uint64_t row, const float *values) {
  add(digest_p, row);
  for (uint32_t i = 0; i < spec->width; i++) {
    uint32_t bits;
    memcpy(&bits, &values[i], sizeof bits);
    add(digest_p, bits);
  }
}

static bool same_row(const struct sums_spec *spec, const float *got, const float *wanted, uint64_t row, char *what,
                     size_t what_size) {
  for (uint32_t i = 0; i < spec->width; i++) {
    if (memcmp(&got[i], &wanted[i], sizeof *got) == 0) continue;
    snprintf(what, what_size, "row %" PRIu64 ", column %" PRIu32 " is %a and must be %a", row, i, (double)got[i],
             (double)wanted[i]);
    return false;
  }
  return true;
}

static bool same_list(const struct sums_spec *spec, const struct entry *wanted, const zenps_grad_t *result, uint64_t at,
                      char *what, size_t what_size) {
  if (at >= result->nnz || result->row_ids[at] != (int64_t)wanted->row) {
    snprintf(what, what_size, "entry %" PRIu64 " of %" PRIu64 " must be row %" PRIu64, at, result->nnz, wanted->row);
    return false;
  }
  return same_row(spec, (const float *)result->values + at * spec->width, wanted->values, wanted->row, what, what_size);
}

/* Rows [*row_p, end) are zeros. */
static bool are_zeros(const struct sums_spec *spec, const float *values, uint64_t *row_p, uint64_t end,
                      uint64_t *digest_p, char *what, size_t what_size) {
  static const float zeros[WIDTH_MAX];
  for (; *row_p < end; ++*row_p) {
    add_row(spec, digest_p, *row_p, values + *row_p * spec->width);
    if (!same_row(spec, values + *row_p * spec->width, zeros, *row_p, what, what_size)) return false;
  }
  return true;
}

bool sums_check(const struct sums_spec *spec, const struct sums_of *of, const zenps_grad_t *result, uint64_t *digest_p,
                char *what, size_t what_size) {
  const float *const values = result->values;
  struct entry sums[WORLD_MAX];
  uint64_t at = 0; /* the next row, or entry, of the result */
  *digest_p = of->step;
  for (uint64_t strip = 0; strip < spec->n_strips; strip++) {
    const int n = sum_strip(spec, of, strip, sums);
    for (int i = 0; i < n; i++, at++) {
      if (spec->is_dense && !are_zeros(spec, values, &at, sums[i].row, digest_p, what, what_size)) return false;
      if (spec->is_dense ? !same_row(spec, values + at * spec->width, sums[i].values, at, what, what_size)
                         : !same_list(spec, &sums[i], result, at, what, what_size))
        return false;
      add_row(spec, digest_p, sums[i].row, values + at * spec->width);
    }
  }
  if (spec->is_dense) return are_zeros(spec, values, &at, spec->rows, digest_p, what, what_size);
  if (at == result->nnz) return true;
  snprintf(what, what_size, "it has %" PRIu64 " rows and must have %" PRIu64, result->nnz, at);
  return false;
}
