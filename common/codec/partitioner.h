/* How a tensor's rows are dealt to partitions: the choice that ranks and servers share, and what it can be had with. */
#ifndef ZPS_CODEC_PARTITIONER_H
#define ZPS_CODEC_PARTITIONER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

/* Numbers are ABI (zenps.h). */
enum zps_partitioner {
  ZPS_PARTITIONER_STRATIFIED = 1,   /* groups of rows, dealt from a hashed start (partition.h) */
  ZPS_PARTITIONER_MURMUR = 2,       /* each row by its hash, the paper's h0 (partition_murmur.h); walked in order */
  ZPS_PARTITIONER_HIERARCHICAL = 3, /* each row by h0, by Zen's Algorithm 1 (hierarchical.h) */
};

const char *zps_partitioner_name(enum zps_partitioner partitioner);
/* Whether partitions are those of h0 itself. */
static inline bool zps_partitioner_hashes(enum zps_partitioner partitioner) {
  return partitioner == ZPS_PARTITIONER_MURMUR || partitioner == ZPS_PARTITIONER_HIERARCHICAL;
}

/* What Algorithm 1 leaves open to a user. */
struct zps_hier_options {
  uint32_t k;  /* hash functions; 0: 3, the paper's */
  uint64_t r1; /* slots of parallel memory per partition; 0: 2 * n_indices / n_parts, the paper's 2|G|d over all. Any
                  number loses nothing: what finds no slot goes to serial memory */
  uint64_t r2; /* slots of serial memory per partition, at first; 0: r1 / 10 */
};
#define ZPS_HIER_K_MAX 16u
#define ZPS_HIER_SLOTS_MAX (1ull << 32) /* for each partition, which has fewer rows */
#define ZPS_HIER_SLOTS_PER_ROW 8u       /* of all partitions, for each row of the tensor */

/* Whether a tensor can be dealt so, and with these options, without dealing it: the texts name the option that is
 * wrong. n_parts 0: not known yet. */
zps_err_t zps_partitioner_check(enum zps_partitioner partitioner, const struct zps_hier_options *hashing, uint64_t rows,
                                uint32_t n_parts, uint32_t block_bits, struct zps_error *error) ZPS_MUSTCHECK;

#endif
