/*
 * Zen's Algorithm 1, hierarchical hashing, on CPU threads: the reference for the device kernels.
 *
 * Every index picks its partition p by h0 (given by the caller: it is the job's), then tries slots h_1..h_k of p's
 * parallel memory of r1 slots: an empty slot is claimed with an atomic write that is read back once no thread can write
 * to it any more (a lost race means: next hash). After k failures the index takes the next place of p's serial memory
 * (r2 places, an atomic counter). Finally the non-empty slots of each partition are collected. The order inside a
 * partition is arbitrary.
 *
 * The questions that the paper leaves open are settled as follows.
 *
 * Empty marker: UINT64_MAX instead of 0, so that index 0 is a row like any other.
 *
 * Serial memory has a size for each partition. One that overflows grows to half as much again as was asked for, and the
 * whole run is repeated: nothing is lost, and an adversarial set that falls to one partition costs memory for that
 * partition only.
 *
 * The share that goes serial: with the paper's r1 = 2|G|d and k = 3 it is 4.2% of the indices, halved by each further
 * function. (Slots filled one after another would leave the mean of (load/2)^3, 3.1%.) r2 = r1/10 holds that with room.
 */
#ifndef ZPS_CODEC_HIERARCHICAL_H
#define ZPS_CODEC_HIERARCHICAL_H

#include <stdint.h>

#include "common/base/err.h"
#include "common/base/workpool.h"
#include "common/codec/partitioner.h"

struct zps_hier_config {
  uint32_t n_parts;
  struct zps_hier_options options;
  uint64_t seed;                             /* of h_1..h_k */
  uint32_t (*h0)(void *ctx, uint64_t index); /* partition of an index, < n_parts; called from many threads */
  void *h0_ctx;
};

struct zps_hier_stats {
  uint64_t parallel;   /* indices that found a slot */
  uint64_t serial;     /* indices that went to serial memory */
  uint64_t lost_races; /* claims that the read-back found lost */
  unsigned redone;     /* passes repeated because a serial memory overflowed */
};

/* Partitions the distinct `indices`. `out` has room for n_indices, `starts` for n_parts + 1: partition p is
 * out[starts[p] .. starts[p+1]). `stats_p` may be NULL. */
zps_err_t zps_hier_partition(const struct zps_hier_config *config, const uint64_t *indices, uint64_t n_indices,
                             struct zps_workpool *pool, uint64_t *out, uint64_t *starts,
                             struct zps_hier_stats *stats_p) ZPS_MUSTCHECK;

#endif
