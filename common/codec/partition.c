#include "common/codec/partition.h"

/* As many as leave each rows and partitions enough, and partitions fewer than 2^32 rows, where a stripe has a chunk
 * more than another. Blocks of several rows may be ranges of the tensor, and stay so. */
static uint32_t stripe_bits_of(uint64_t rows, uint32_t n_parts, uint32_t block_bits) {
  uint32_t bits = 0;
  if (block_bits > 0 || rows >> 31 >= n_parts) return 0;
  while (2u << bits <= ZPS_PARTITION_STRIPES_MAX && n_parts % (2u << bits) == 0 &&
         n_parts >> (bits + 1) >= ZPS_PARTITION_STRIPE_PARTS_MIN &&
         rows >> (bits + 1) >= 1ull << ZPS_PARTITION_STRIPE_ROWS_MIN)
    bits++;
  return bits;
}

/* Of rows and numbers that have been checked. */
static struct zps_partition partition_of(uint64_t rows, uint32_t n_parts, uint32_t block_bits, uint32_t stripe_bits,
                                         uint64_t seed) {
  enum { ROW_BITS = 40 };
  struct zps_partition part = {.rows = rows,
                               .seed = seed,
                               .n_parts = n_parts,
                               .block_bits = block_bits,
                               .stripe_bits = stripe_bits,
                               .chunk_bits = stripe_bits ? ZPS_PARTITION_CHUNK_BITS : ROW_BITS + 1,
                               .stripe_parts = n_parts >> stripe_bits};
  part.inverse = UINT64_MAX / part.stripe_parts;
  part.stripe_inverse = (1ull << 32) / part.stripe_parts + 1;
  const uint64_t n_blocks = ((zps_partition_stripe_rows(&part, 0, rows) - 1) >> block_bits) + 1;
  part.n_groups = (n_blocks - 1) / part.stripe_parts + 1;
  return part;
}

zps_err_t zps_partition_init(struct zps_partition *part, uint64_t rows, uint32_t n_parts, uint32_t block_bits,
                             uint64_t seed, struct zps_error *error) {
  if (rows == 0 || rows > ZPS_PARTITION_ROWS_MAX)
    return zps_fail(error, ZPS_ERR_INVALID, "%llu rows cannot be partitioned: 1 to 2^40 can", (unsigned long long)rows);
  if (n_parts == 0 || n_parts > ZPS_PARTITION_PARTS_MAX)
    return zps_fail(error, ZPS_ERR_INVALID, "%u partitions: must be 1 to %u", n_parts, ZPS_PARTITION_PARTS_MAX);
  if (block_bits > ZPS_PARTITION_BLOCK_BITS_MAX)
    return zps_fail(error, ZPS_ERR_INVALID, "blocks of 2^%u rows: must be 2^0 to 2^%u", block_bits,
                    ZPS_PARTITION_BLOCK_BITS_MAX);
  const struct zps_partition made =
      partition_of(rows, n_parts, block_bits, stripe_bits_of(rows, n_parts, block_bits), seed);
  if (made.n_groups << block_bits > UINT32_MAX)
    return zps_fail(error, ZPS_ERR_INVALID, "%llu rows in %u partitions: a partition must have fewer than 2^32 rows",
                    (unsigned long long)rows, n_parts);
  *part = made;
  return ZPS_OK;
}

struct zps_partition zps_partition_whole(uint64_t rows, uint32_t n_parts, uint64_t seed) {
  return partition_of(rows, n_parts, 0, 0, seed);
}

struct zps_partition zps_partition_stripe(const struct zps_partition *part, uint32_t stripe) {
  if (part->stripe_bits == 0) return *part;
  return partition_of(zps_partition_stripe_rows(part, stripe, part->rows), part->stripe_parts, part->block_bits, 0,
                      part->seed ^ (uint64_t)stripe << ZPS_PARTITION_STRIPE_SEED_SHIFT);
}
