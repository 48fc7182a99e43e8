#include "worker/round/pull_rows.h"

#include <stdlib.h>
#include <string.h>

static zps_err_t no_memory(uint64_t count, struct zps_error *error) {
  return zps_fail(error, ZPS_ERR_NOMEM, "no memory for the %llu rows that are asked for", (unsigned long long)count);
}

/* ---- a range: one run in each partition ---- */

static uint32_t below(const struct zps_partition *part, uint32_t p, uint64_t row) {
  const uint32_t stripe = zps_partition_stripe_of(part, p);
  return zps_partition_indices_below(part, p, zps_partition_stripe_rows(part, stripe, row));
}

static zps_err_t want_range(const struct zps_partition *part, struct zps_wants *wants, struct zps_error *error) {
  wants->runs = malloc(part->n_parts * sizeof *wants->runs);
  if (!wants->runs) return no_memory(wants->count, error);
  for (uint32_t p = 0; p < part->n_parts; p++) {
    struct zps_index_run *run = &wants->runs[p];
    run->first = below(part, p, wants->first);
    run->n = below(part, p, wants->first + wants->count) - run->first;
    wants->parts[p] = (struct zps_wants_part){.runs = run, .n_runs = run->n > 0, .n_rows = run->n};
  }
  return ZPS_OK;
}

/* ---- a list ---- */

static zps_err_t sort_rows(struct zps_wants *wants, const int64_t *rows, struct zps_error *error) {
  const uint64_t n = wants->count;
  bool ascends = true;
  wants->by_row = malloc((n + 1) * sizeof *wants->by_row);
  if (!wants->by_row) return no_memory(n, error);
  for (uint64_t i = 0; i < n; i++) {
    wants->by_row[i] = (struct zps_sort_pair){.key = (uint64_t)rows[i], .value = i};
    ascends &= i == 0 || rows[i - 1] <= rows[i];
  }
  if (ascends) return ZPS_OK;
  struct zps_sort_pair *scratch = malloc(n * sizeof *scratch);
  if (!scratch) return no_memory(n, error);
  zps_sort_pairs(wants->by_row, scratch, n);
  free(scratch);
  return ZPS_OK;
}

static bool is_repeat(const struct zps_wants *wants, uint64_t i) {
  return i > 0 && wants->by_row[i].key == wants->by_row[i - 1].key;
}

/* Local indices of a partition ascend with its rows. */
static zps_err_t want_list(const struct zps_partition *part, struct zps_wants *wants, const int64_t *rows,
                           struct zps_error *error) {
  const uint64_t n = wants->count;
  uint32_t local;
  zps_err_t err = sort_rows(wants, rows, error);
  if (err != ZPS_OK) return err;
  wants->runs = malloc((n + 1) * sizeof *wants->runs);
  if (!wants->runs) return no_memory(n, error);
  for (uint64_t i = 0; i < n; i++)
    if (!is_repeat(wants, i)) wants->parts[zps_partition_of(part, wants->by_row[i].key, &local)].n_rows++;
  struct zps_index_run *at = wants->runs;
  for (uint32_t p = 0; p < part->n_parts; p++) {
    wants->parts[p].runs = at;
    at += wants->parts[p].n_rows;
  }
  for (uint64_t i = 0; i < n; i++) {
    if (is_repeat(wants, i)) continue;
    struct zps_wants_part *of = &wants->parts[zps_partition_of(part, wants->by_row[i].key, &local)];
    struct zps_index_run *runs = wants->runs + (of->runs - wants->runs);
    if (of->n_runs > 0 && runs[of->n_runs - 1].first + runs[of->n_runs - 1].n == local)
      runs[of->n_runs - 1].n++;
    else
      runs[of->n_runs++] = (struct zps_index_run){.first = local, .n = 1};
  }
  return ZPS_OK;
}

zps_err_t zps_wants_create(const struct zps_partition *part, uint64_t first, uint64_t count, const int64_t *rows,
                           struct zps_wants **wants_p, struct zps_error *error) {
  for (uint64_t i = 0; rows && i < count; i++)
    if ((uint64_t)rows[i] >= part->rows)
      return zps_fail(error, ZPS_ERR_INVALID,
                      "row number %lld at position %llu of %llu that are asked for: the tensor has rows 0 to %llu",
                      (long long)rows[i], (unsigned long long)i, (unsigned long long)count,
                      (unsigned long long)part->rows - 1);
  if (!rows && (first > part->rows || count > part->rows - first))
    return zps_fail(error, ZPS_ERR_INVALID, "%llu rows from %llu on are asked for: the tensor has rows 0 to %llu",
                    (unsigned long long)count, (unsigned long long)first, (unsigned long long)part->rows - 1);
  struct zps_wants *wants = calloc(1, sizeof *wants + part->n_parts * sizeof wants->parts[0]);
  if (!wants) return no_memory(count, error);
  wants->first = first;
  wants->count = count;
  const zps_err_t err = rows ? want_list(part, wants, rows, error) : want_range(part, wants, error);
  if (err == ZPS_OK)
    *wants_p = wants;
  else
    zps_wants_destroy(wants);
  return err;
}

void zps_wants_destroy(struct zps_wants *wants) {
  if (!wants) return;
  free(wants->by_row);
  free(wants->runs);
  free(wants);
}

/* ---- sums ---- */

bool zps_wants_have(const struct zps_wants *wants, uint32_t p, const struct zps_slice_view *sum) {
  const struct zps_wants_part *part = &wants->parts[p];
  uint32_t room[ZPS_INDEX_CURSOR_ROOM];
  struct zps_index_cursor cursor;
  uint64_t at = 0;
  if (part->n_rows == sum->m) return true;
  zps_index_cursor_init(&cursor, sum);
  for (uint32_t n; (n = zps_index_cursor_read(&cursor, sum->m, room, ZPS_INDEX_CURSOR_ROOM)) > 0;) {
    while (at < part->n_runs && part->runs[at].first + part->runs[at].n <= room[0]) at++;
    if (!zps_runs_have(part->runs + at, part->n_runs - at, room, n)) return false;
  }
  return true;
}

void zps_wants_put(const struct zps_wants *wants, const int64_t *rows, const void *values, uint64_t n,
                   uint64_t row_bytes, void *out) {
  const char *const from = values;
  char *const to = out;
  if (!wants->by_row) {
    memset(to, 0, wants->count * row_bytes);
    for (uint64_t i = 0; i < n; i++)
      memcpy(to + ((uint64_t)rows[i] - wants->first) * row_bytes, from + i * row_bytes, row_bytes);
    return;
  }
  for (uint64_t k = 0, i = 0; k < wants->count; k++) {
    const struct zps_sort_pair *place = &wants->by_row[k];
    while (i < n && (uint64_t)rows[i] < place->key) i++;
    if (i < n && (uint64_t)rows[i] == place->key)
      memcpy(to + place->value * row_bytes, from + i * row_bytes, row_bytes);
    else
      memset(to + place->value * row_bytes, 0, row_bytes);
  }
}
