/*
 * A description of a tensor's gradients: how many rows a rank has, how their union grows with the ranks, and how
 * unevenly they lie. Rows in union, D_k and gamma_k are Zen's (definition 4), skew its definition 5.
 */
#ifndef ZPS_PLAN_PROFILE_H
#define ZPS_PLAN_PROFILE_H

#include <stdint.h>

#include "common/plan/curve.h"

enum zps_plan_overlap {
  ZPS_PLAN_INDEPENDENT, /* rows of different ranks fall independently: gamma_k = (1 - (1 - d)^k) / d */
  ZPS_PLAN_DISJOINT,    /* no row on two ranks: gamma_k = k */
  ZPS_PLAN_MEASURED,    /* `gamma` */
};

struct zps_plan_profile {
  double density; /* d, of one rank, 0..1 */
  enum zps_plan_overlap overlap;
  struct zps_plan_curve gamma; /* ranks -> gamma_k */
  struct zps_plan_curve skew;  /* even parts -> densest part's density over the mean; empty: even */
  double run;           /* values that are zero or not together, where they are more than width (rows of an embedding
                         * that is seen as single values); 0: width alone */
  double block_density; /* measured share of non-zero blocks of ZPS_PLAN_BLOCK values; 0: from density and run */
};

/* Values of OmniReduce's blocks. */
#define ZPS_PLAN_BLOCK 256.0

/* gamma_k, within its bounds: 1 <= gamma_k <= min(k, 1 / d). */
double zps_plan_gamma(const struct zps_plan_profile *profile, double k);
/* Density of the union of k ranks: gamma_k * d. */
double zps_plan_union(const struct zps_plan_profile *profile, double k);
/* Skew of `parts` even parts, within 1..min(parts, 1 / d). */
double zps_plan_skew(const struct zps_plan_profile *profile, double parts);
/* Share of blocks with a non-zero value, where the density is `density` (the whole tensor's, or one part's). */
double zps_plan_blocks(const struct zps_plan_profile *profile, uint32_t width, double density);

/*
 * Counts that servers get from a round for nothing: rows in all contributions and rows in their sum. Means that follow
 * the latest rounds; a tensor's profile once `rounds` is more than 0.
 */
struct zps_plan_observer {
  uint64_t rounds;
  double density, gamma_n;
  uint32_t n;
  struct zps_plan_curve between; /* gamma_k from sketches, 1 < k < n */
};

/* One round of `n` ranks: `pushed_rows` in all contributions together, `union_rows` in the sum, of `rows`. */
void zps_plan_observe(struct zps_plan_observer *observer, uint32_t n, uint64_t rows, double pushed_rows,
                      double union_rows);
/* gamma_k of k ranks, from their sketches (sketch.h). */
void zps_plan_observe_gamma(struct zps_plan_observer *observer, uint32_t k, double gamma);
/* The profile so far; members that are not observed (skew, run) are kept. */
void zps_plan_observed(const struct zps_plan_observer *observer, struct zps_plan_profile *profile);

#endif
