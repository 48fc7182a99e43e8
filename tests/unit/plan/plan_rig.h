/* Inputs for tests of the planner: the papers' settings. */
#ifndef ZPS_TESTS_PLAN_PLAN_RIG_H
#define ZPS_TESTS_PLAN_PLAN_RIG_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/plan/model.h"

/* Words by Zipf's law: the i-th most frequent of `words` is drawn with a chance of i^-exponent over the sum of all. */
struct plan_words {
  unsigned words;
  double exponent;
};

static inline double plan_words_sum(const struct plan_words *law) {
  double sum = 0;
  for (unsigned i = 1; i <= law->words; i++) sum += pow(i, -law->exponent);
  return sum;
}

/* The expected number of different words, of the first `most`, among `drawn`. */
static inline double plan_words_seen(const struct plan_words *law, double drawn, double most) {
  const double each = drawn / plan_words_sum(law);
  double seen = 0;
  for (unsigned i = 1; i <= most; i++) seen -= expm1(-each * pow(i, -law->exponent));
  return seen;
}

/* How many words a rank draws, to see that part of all. */
static inline double plan_words_drawn(const struct plan_words *law, double density) {
  double low = 1, high = 1e9;
  for (unsigned i = 0; i < 60; i++) {
    const double middle = sqrt(low * high);
    *(plan_words_seen(law, middle, law->words) < density * law->words ? &low : &high) = middle;
  }
  return low;
}

/*
 * Zen's case study: the embedding of NMT on 25 Gbit/s, one GPU a node, COO everywhere, no latency, no computing. Size
 * and density are its table 1's; densification and skew, of which the paper has drawings alone, are those of words by
 * Zipf's law at that density, in the order of their frequency as vocabularies have them. Nothing is fitted to figure 8.
 * They hardly depend on the number of words, only on the exponent, which is about 1 for natural languages. Rows of 512
 * values, assumed, matter to OmniReduce's blocks alone.
 */
static inline struct zps_plan_input plan_nmt_of(uint32_t n, double exponent) {
  struct zps_plan_input input = {.cluster = {.n = n,
                                             .ranks_per_host = 1,
                                             .net = {.bandwidth = 25e9 / 8, .latency_s = 0},
                                             .host = {.bandwidth = 1e12, .latency_s = 0}},
                                 .tensor = {.rows = 112000000, .width = 1, .value_bytes = 4},
                                 .profile = {.density = 0.0247, .overlap = ZPS_PLAN_MEASURED, .run = 512},
                                 .codec = ZPS_PLAN_CODEC_COO,
                                 .published = true};
  const struct plan_words law = {20000, exponent};
  const double drawn = plan_words_drawn(&law, input.profile.density);
  const double one = plan_words_seen(&law, drawn, law.words);
  for (unsigned k = 1; k <= 128; k *= 2) {
    zps_plan_curve_set(&input.profile.gamma, k, plan_words_seen(&law, k * drawn, law.words) / one);
    zps_plan_curve_set(&input.profile.skew, k, plan_words_seen(&law, drawn, law.words / k) / one * k);
  }
  return input;
}

static inline struct zps_plan_input plan_nmt(uint32_t n) {
  return plan_nmt_of(n, 1);
}

static inline struct zps_plan_cost plan_cost(const struct zps_plan_input *input, enum zps_plan_scheme scheme) {
  struct zps_plan_cost cost;
  struct zps_error error = {.text = ""};
  if (zps_plan_check(input, &error)) fail_msg("%s", error.text);
  zps_plan_predict(input, scheme, &cost);
  return cost;
}

static inline double plan_time(const struct zps_plan_input *input, enum zps_plan_scheme scheme) {
  return plan_cost(input, scheme).time_s;
}

static inline void plan_near(double got, double want, double part, const char *what) {
  if (!(got >= want * (1 - part) && got <= want * (1 + part))) fail_msg("%s: %.9g, not %.9g", what, got, want);
}

#endif
