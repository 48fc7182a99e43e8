#include "common/codec/partitioner.h"

#include <inttypes.h>
#include <string.h>

#include "common/codec/partition_murmur.h"

static const char *const names[] = {[ZPS_PARTITIONER_STRATIFIED] = "stratified",
                                    [ZPS_PARTITIONER_MURMUR] = "murmur",
                                    [ZPS_PARTITIONER_HIERARCHICAL] = "hierarchical"};
enum { N_NAMES = sizeof names / sizeof names[0] };

const char *zps_partitioner_name(enum zps_partitioner partitioner) {
  return (unsigned)partitioner < N_NAMES && names[partitioner] ? names[partitioner] : "?";
}

static zps_err_t check_slots(const char *option, uint64_t slots, uint64_t rows, uint32_t n_parts,
                             struct zps_error *error) {
  if (slots > ZPS_HIER_SLOTS_MAX)
    return zps_fail(error, ZPS_ERR_INVALID, "%s %" PRIu64 ": a partition has 1 to 2^32 slots (0: the default)", option,
                    slots);
  if (n_parts > 0 && slots > 1 && slots > ZPS_HIER_SLOTS_PER_ROW * rows / n_parts)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "%s %" PRIu64 " for each of %u partitions of %" PRIu64
                    " rows in all: at most %u slots a row, %" PRIu64 " for each partition",
                    option, slots, n_parts, rows, ZPS_HIER_SLOTS_PER_ROW, ZPS_HIER_SLOTS_PER_ROW * rows / n_parts);
  return ZPS_OK;
}

static zps_err_t check_hashing(const struct zps_hier_options *hashing, uint64_t rows, uint32_t n_parts,
                               struct zps_error *error) {
  if (hashing->k > ZPS_HIER_K_MAX)
    return zps_fail(error, ZPS_ERR_INVALID, "hash_k %u: Algorithm 1 takes 1 to %u hash functions (0: 3)", hashing->k,
                    ZPS_HIER_K_MAX);
  const zps_err_t code = check_slots("hash_r1", hashing->r1, rows, n_parts, error);
  return code == ZPS_OK ? check_slots("hash_r2", hashing->r2, rows, n_parts, error) : code;
}

zps_err_t zps_partitioner_check(enum zps_partitioner partitioner, const struct zps_hier_options *hashing, uint64_t rows,
                                uint32_t n_parts, uint32_t block_bits, struct zps_error *error) {
  if (partitioner != ZPS_PARTITIONER_HIERARCHICAL && (hashing->k || hashing->r1 || hashing->r2))
    return zps_fail(error, ZPS_ERR_INVALID,
                    "hash_k %u, hash_r1 %" PRIu64 ", hash_r2 %" PRIu64
                    ": these are of Algorithm 1; with partitioner %s they must be 0",
                    hashing->k, hashing->r1, hashing->r2, zps_partitioner_name(partitioner));
  if (!zps_partitioner_hashes(partitioner)) return ZPS_OK;
  if (block_bits > 0)
    return zps_fail(error, ZPS_ERR_INVALID, "block_bits %u: partitioner %s hashes each row by itself; it must be 0",
                    block_bits, zps_partitioner_name(partitioner));
  if (rows > ZPS_MURMUR_ROWS_MAX)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "%" PRIu64 " rows: the table of partitioner %s takes at most 2^29; stratified takes more", rows,
                    zps_partitioner_name(partitioner));
  return partitioner == ZPS_PARTITIONER_HIERARCHICAL ? check_hashing(hashing, rows, n_parts, error) : ZPS_OK;
}
