/*
 * Reproducible gradients for zenps-perf: which rows a rank touches in a step, and their values, from (seed, step, rank)
 * alone, so that every rank can regenerate every other's input and check the sum.
 */
#ifndef ZPS_TOOLS_PERF_INPUT_H
#define ZPS_TOOLS_PERF_INPUT_H

#include <stdint.h>

#include "common/base/err.h"
#include "common/base/hash.h"

enum perf_overlap {
  PERF_OVERLAP_RANDOM,  /* each rank draws its rows for itself */
  PERF_OVERLAP_SAME,    /* all ranks have the same */
  PERF_OVERLAP_DISJOINT /* no two ranks have one in common: rank r has of the rows r, r + world, ... */
};

struct perf_input_config {
  const char *trace;         /* file of row ids, one sample a line; NULL: random rows */
  uint64_t rows;             /* 0 with a trace: largest id + 1 */
  double density;            /* random rows: share of the rows, each rank and step */
  double skew;               /* random rows: exponent of a power law over row numbers; 0: uniform */
  enum perf_overlap overlap; /* random rows */
  uint64_t batch;            /* trace: samples a rank takes per step */
  uint32_t world;
  uint32_t empty; /* the last so many ranks contribute nothing */
  uint64_t seed;
};

struct perf_input;

zps_err_t perf_input_create(const struct perf_input_config *config, struct perf_input **input_p,
                            struct zps_error *error) ZPS_MUSTCHECK;
void perf_input_destroy(struct perf_input *input);
uint64_t perf_input_rows(const struct perf_input *input);
/* The distinct rows of (step, rank), in no order; valid until the next call. */
const int64_t *perf_input_touched(struct perf_input *input, uint64_t step, uint32_t rank, uint64_t *n_p);

/* Values come from a key per (seed, step, rank, copy), where `copy` numbers a row's repetitions. */
static inline uint64_t perf_value_key(uint64_t seed, uint64_t step, uint32_t rank, uint32_t copy) {
  return zps_hash_mix64(seed + step * 0x9e3779b97f4a7c15ull + ((uint64_t)rank << 40) + ((uint64_t)copy << 56));
}

/* One element, in (-1, 1): an odd multiple of 2^-bits, so never zero, and exact in a float for up to 24 bits. Of fewer
 * bits, sums of few values are exact, too, whatever the order. */
static inline double perf_value(uint64_t key, uint64_t element, unsigned bits) {
  return ((double)(zps_hash_mix64(key ^ element) >> (64 - bits)) + 0.5) * (2.0 / (double)(1ull << bits)) - 1.0;
}

#endif
