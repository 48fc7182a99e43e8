#include "worker/round/out_parts.h"

#include <inttypes.h>
#include <string.h>

#include "common/base/bisect.h"

/* The first place from `at` on whose row is not below the limit. */
static uint64_t find(const int64_t *row_ids, uint64_t at, uint64_t nnz, uint64_t limit) {
  uint64_t low = at, high = nnz;
  zps_bisect(low, high, middle, (uint64_t)row_ids[middle] < limit);
  return low;
}

/* Counts each part's rows, and finds out whether there is room for them. */
static zps_err_t count(const struct zps_out_parts *split, const int64_t *row_ids, uint64_t nnz,
                       struct zps_error *error) {
  zps_err_t code = ZPS_OK;
  uint64_t at = 0;
  for (uint32_t i = 0; i < split->n; i++) {
    zenps_part_t *const part = &split->parts[i];
    const uint64_t first = find(row_ids, at, nnz, part->row_base);
    at = find(row_ids, first, nnz, part->row_base + part->n_rows);
    part->nnz = at - first;
    if (code != ZPS_OK || part->layout == ZENPS_DENSE || !part->row_ids || part->nnz <= part->capacity) continue;
    code = zps_fail(error, ZPS_ERR_TRUNCATED,
                    "part %" PRIu32 " of the result has %" PRIu64 " rows, but the caller's arrays hold %" PRIu64, i,
                    part->nnz, part->capacity);
  }
  return code;
}

static void put_dense(const zenps_part_t *part, uint64_t row_bytes, const int64_t *row_ids, const char *values) {
  memset(part->values, 0, part->n_rows * row_bytes);
  for (uint64_t i = 0; i < part->nnz; i++, values += row_bytes)
    memcpy((char *)part->values + ((uint64_t)row_ids[i] - part->row_base) * row_bytes, values, row_bytes);
}

zps_err_t zps_out_parts_rows(struct zps_out_parts *split, uint64_t row_bytes, int64_t *row_ids, void *values,
                             uint64_t nnz, struct zps_error *error) {
  const zps_err_t code = count(split, row_ids, nnz, error);
  if (code != ZPS_OK) return code;
  uint64_t at = 0;
  for (uint32_t i = 0; i < split->n; i++) {
    zenps_part_t *const part = &split->parts[i];
    at = find(row_ids, at, nnz, part->row_base);
    int64_t *const ids = row_ids + at;
    char *const from = (char *)values + at * row_bytes;
    at += part->nnz;
    if (part->layout == ZENPS_DENSE) {
      put_dense(part, row_bytes, ids, from);
      split->copied_bytes += part->nnz * row_bytes;
      continue;
    }
    const bool is_view = !part->row_ids;
    if (is_view) {
      part->row_ids = ids;
      part->values = from;
    } else if (part->nnz > 0) {
      memcpy(part->values, from, part->nnz * row_bytes);
      split->copied_bytes += part->nnz * (row_bytes + sizeof *ids);
    }
    for (uint64_t j = 0; j < part->nnz; j++) part->row_ids[j] = ids[j] - (int64_t)part->row_base;
  }
  return ZPS_OK;
}

void zps_out_parts_dense(struct zps_out_parts *split, uint64_t row_bytes, const void *values) {
  for (uint32_t i = 0; i < split->n; i++) {
    const zenps_part_t *const part = &split->parts[i];
    const uint64_t bytes = part->n_rows * row_bytes;
    if (bytes > 0) memcpy(part->values, (const char *)values + part->row_base * row_bytes, bytes);
    split->copied_bytes += bytes;
  }
}
