#include "common/codec/partition_murmur.h"

#include <stdlib.h>
#include <string.h>

#include "common/codec/buffer.h"

enum {
  BLOCK_BITS_MIN = 8,  /* ranks fit a byte whatever the hash does */
  BLOCK_BITS_MAX = 16, /* of so many partitions counts take more than a byte a row */
  PARTS_IN_BLOCK = 2,  /* log2: larger blocks have four rows a partition, so counts take a byte a row */
  RANGE_ROWS_MIN = 1 << 16,
  RANGES_MAX = 64,
};

struct zps_murmur {
  struct zps_buffer ranks, before, lists, starts;
};

/* Ranges of whole blocks, taken by any threads. */
struct hashing {
  uint64_t rows, seed, range_rows;
  uint32_t n_parts, block_bits;
  unsigned n_ranges;
  uint32_t *counts; /* [n_ranges + 1][n_parts]: of a range's rows; then of the rows before it */
  uint8_t *ranks;
  uint32_t *before, *lists, *starts;
};

static uint64_t range_end(const struct hashing *hashing, unsigned range) {
  const uint64_t end = (range + 1) * hashing->range_rows;
  return end < hashing->rows ? end : hashing->rows;
}

static void count_range(void *ctx, unsigned range) {
  const struct hashing *const hashing = ctx;
  uint32_t *const counts = hashing->counts + (uint64_t)range * hashing->n_parts;
  for (uint64_t row = range * hashing->range_rows; row < range_end(hashing, range); row++)
    counts[zps_partition_hash(hashing->seed, hashing->n_parts, row)]++;
}

/* Counts the ranges' rows, then those before each range: the last of the n_ranges + 1 has all. */
static zps_err_t count(struct hashing *hashing, uint64_t rows, uint32_t n_parts, uint64_t seed,
                       struct zps_workpool *pool) {
  const unsigned n_threads = 1 + (pool ? zps_workpool_threads(pool) : 0);
  uint32_t block_bits = BLOCK_BITS_MIN;
  while (block_bits < BLOCK_BITS_MAX && n_parts > 1u << (block_bits - PARTS_IN_BLOCK)) block_bits++;
  uint64_t range_rows = rows / (n_threads < RANGES_MAX ? n_threads : RANGES_MAX) + 1;
  if (range_rows < RANGE_ROWS_MIN) range_rows = RANGE_ROWS_MIN;
  const uint64_t block_rows = 1ull << block_bits;
  range_rows = (range_rows + block_rows - 1) & ~(block_rows - 1);
  *hashing = (struct hashing){.rows = rows,
                              .seed = seed,
                              .range_rows = range_rows,
                              .n_parts = n_parts,
                              .block_bits = block_bits,
                              .n_ranges = (unsigned)((rows - 1) / range_rows) + 1};
  hashing->counts = calloc((hashing->n_ranges + 1ull) * n_parts, sizeof *hashing->counts);
  if (!hashing->counts) return ZPS_ERR_NOMEM;
  zps_workpool_for(pool, hashing->n_ranges, count_range, hashing);
  for (uint32_t p = 0; p < n_parts; p++) {
    uint32_t n = 0;
    for (unsigned range = 0; range <= hashing->n_ranges; range++) {
      uint32_t *const at = &hashing->counts[(uint64_t)range * n_parts + p];
      const uint32_t here = *at;
      *at = n;
      n += here;
    }
  }
  return ZPS_OK;
}

static const uint32_t *totals_of(const struct hashing *hashing) {
  return hashing->counts + (uint64_t)hashing->n_ranges * hashing->n_parts;
}

zps_err_t zps_murmur_sizes(uint64_t rows, uint32_t n_parts, uint64_t seed, struct zps_workpool *pool, uint32_t *sizes,
                           struct zps_error *error) {
  struct hashing hashing;
  if (count(&hashing, rows, n_parts, seed, pool) != ZPS_OK)
    return zps_fail(error, ZPS_ERR_NOMEM, "no memory to count the rows of %u partitions", n_parts);
  memcpy(sizes, totals_of(&hashing), n_parts * sizeof *sizes);
  free(hashing.counts);
  return ZPS_OK;
}

/* Counts on, from the rows before the range. */
static void fill_range(void *ctx, unsigned range) {
  const struct hashing *const hashing = ctx;
  const uint64_t n_parts = hashing->n_parts, block_rows = 1ull << hashing->block_bits;
  uint32_t *const counts = hashing->counts + range * n_parts;
  for (uint64_t row = range * hashing->range_rows, end = range_end(hashing, range); row < end;) {
    uint32_t *const before = hashing->before + (row >> hashing->block_bits) * n_parts;
    const uint64_t block_end = end - row < block_rows ? end : row + block_rows;
    memcpy(before, counts, n_parts * sizeof *before);
    for (; row < block_end; row++) {
      const uint32_t p = zps_partition_hash(hashing->seed, hashing->n_parts, row);
      hashing->lists[hashing->starts[p] + counts[p]] = (uint32_t)row;
      hashing->ranks[row] = (uint8_t)(counts[p]++ - before[p]);
    }
  }
}

/* Blocks of more than 256 rows have about four for each partition: that one of them gets 257 does not happen, but a
 * rank that did not fit its byte must not pass for another. */
static bool ranks_fit(const struct hashing *hashing, uint32_t n_blocks) {
  if (hashing->block_bits == BLOCK_BITS_MIN) return true;
  for (uint64_t i = 0; i < (uint64_t)n_blocks * hashing->n_parts; i++)
    if (hashing->before[i + hashing->n_parts] - hashing->before[i] > UINT8_MAX + 1) return false;
  return true;
}

static zps_err_t make(struct zps_murmur *murmur, struct hashing *hashing, struct zps_workpool *pool,
                      struct zps_partition *part) {
  const uint32_t n_parts = hashing->n_parts, n_blocks = (uint32_t)((hashing->rows - 1) >> hashing->block_bits) + 1;
  if (zps_buffer_replace(&murmur->ranks, hashing->rows) != ZPS_OK ||
      zps_buffer_replace(&murmur->before, (n_blocks + 1ull) * n_parts * sizeof *hashing->before) != ZPS_OK ||
      zps_buffer_replace(&murmur->lists, hashing->rows * sizeof *hashing->lists) != ZPS_OK ||
      zps_buffer_replace(&murmur->starts, n_parts * sizeof *hashing->starts) != ZPS_OK)
    return ZPS_ERR_NOMEM;
  hashing->ranks = murmur->ranks.data;
  hashing->before = murmur->before.data;
  hashing->lists = murmur->lists.data;
  hashing->starts = murmur->starts.data;
  const uint32_t *const totals = totals_of(hashing);
  for (uint32_t p = 0, at = 0; p < n_parts; at += totals[p++]) hashing->starts[p] = at;
  memcpy(hashing->before + (uint64_t)n_blocks * n_parts, totals, n_parts * sizeof *totals);
  zps_workpool_for(pool, hashing->n_ranges, fill_range, hashing);
  if (!ranks_fit(hashing, n_blocks)) return ZPS_ERR_INTERNAL;
  part->n_groups = 1;
  for (uint32_t p = 0; p < n_parts; p++)
    if (totals[p] > part->n_groups) part->n_groups = totals[p];
  part->table = (struct zps_partition_table){.ranks = hashing->ranks,
                                             .before = hashing->before,
                                             .lists = hashing->lists,
                                             .starts = hashing->starts,
                                             .rows = hashing->rows,
                                             .seed = hashing->seed,
                                             .n_parts = n_parts,
                                             .n_blocks = n_blocks,
                                             .block_bits = hashing->block_bits};
  return ZPS_OK;
}

zps_err_t zps_murmur_create(uint64_t rows, uint32_t n_parts, uint64_t seed, struct zps_workpool *pool,
                            struct zps_murmur **murmur_p, struct zps_partition *part, struct zps_error *error) {
  struct zps_partition made;
  zps_err_t code = zps_partition_init(&made, rows, n_parts, 0, seed, error);
  if (code == ZPS_OK && rows > ZPS_MURMUR_ROWS_MAX)
    code = zps_fail(error, ZPS_ERR_INVALID, "%llu rows: a table of hashed ones has at most 2^29",
                    (unsigned long long)rows);
  if (code != ZPS_OK) return code;
  made = zps_partition_whole(rows, n_parts, seed);
  struct zps_murmur *const murmur = calloc(1, sizeof *murmur);
  struct hashing hashing;
  if (!murmur || count(&hashing, rows, n_parts, seed, pool) != ZPS_OK) {
    free(murmur);
    return zps_fail(error, ZPS_ERR_NOMEM, "no memory to count the rows of %u partitions", n_parts);
  }
  code = make(murmur, &hashing, pool, &made);
  free(hashing.counts);
  if (code != ZPS_OK) {
    zps_murmur_destroy(murmur);
    return zps_fail(error, code,
                    code == ZPS_ERR_NOMEM ? "no memory for the table of %llu hashed rows"
                                          : "more than 256 of a block's %llu rows have one hash",
                    (unsigned long long)rows);
  }
  *murmur_p = murmur;
  *part = made;
  return ZPS_OK;
}

void zps_murmur_destroy(struct zps_murmur *murmur) {
  if (!murmur) return;
  zps_buffer_fini(&murmur->ranks);
  zps_buffer_fini(&murmur->before);
  zps_buffer_fini(&murmur->lists);
  zps_buffer_fini(&murmur->starts);
  free(murmur);
}

void zps_murmur_locate(const struct zps_partition *part, uint64_t first, const uint32_t *positions, uint32_t n,
                       uint16_t *parts, uint32_t *locals) {
  const struct zps_partition_table table = part->table;
  for (uint32_t i = 0; i < n; i++)
    parts[i] = (uint16_t)zps_partition_table_of(&table, first + positions[i], &locals[i]);
}

void zps_murmur_rows_of(const struct zps_partition *part, uint32_t p, const uint32_t *indices, uint32_t n,
                        uint64_t *rows) {
  const struct zps_partition_table table = part->table;
  for (uint32_t i = 0; i < n; i++) rows[i] = zps_partition_table_row(&table, p, indices[i]);
}
