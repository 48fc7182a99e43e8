/*
 * How many rows a set has, and the union of several, from a few of its rows: those whose hash is below a limit. Where
 * several sets are looked at, the lowest of their limits holds for all, so gamma_k of any k ranks is known without
 * looking at their rows again; the error is about 1 / sqrt of the rows kept.
 *
 * Hashes are of chunks of consecutive rows, so a dense gradient is looked at in streaks of memory, and only in streaks
 * that may hold kept rows: at most a sixteenth of it.
 */
#ifndef ZPS_PLAN_SKETCH_H
#define ZPS_PLAN_SKETCH_H

#include <stdbool.h>
#include <stdint.h>

#include "common/codec/dtype.h"

enum {
  ZPS_PLAN_SKETCH = 256,                            /* hashes kept */
  ZPS_PLAN_SKETCH_TEXT = (ZPS_PLAN_SKETCH + 1) * 16 /* characters of its text, at most */
};

struct zps_plan_sketch {
  uint64_t limit; /* hashes below are kept, if there are any; UINT64_MAX: all */
  uint32_t n;
  uint64_t hash[ZPS_PLAN_SKETCH]; /* ascending */
  double share;                   /* of all rows, those whose hash is below the limit: not in its text */
};

/* Of a list of row numbers below n_rows (others are left out), repeated or not. */
void zps_plan_sketch_list(struct zps_plan_sketch *sketch, uint64_t n_rows, const int64_t *rows, uint64_t n);
/* Of the rows of a dense gradient (n_rows * width values) that are not all zero. */
void zps_plan_sketch_dense(struct zps_plan_sketch *sketch, uint64_t n_rows, uint32_t width, enum zps_dtype dtype,
                           const void *values);
/* Rows in the set: exact while all are kept. Of one that was parsed it is a guess: chunks are few. */
double zps_plan_sketch_rows(const struct zps_plan_sketch *sketch);
/* gamma_k, 1 <= k <= n, of the ranks that these are the sketches of: the mean over several neighbouring k; 0: they
 * hold too little. */
double zps_plan_sketch_gamma(const struct zps_plan_sketch *const *sketches, uint32_t n, uint32_t k);

/* Hexadecimal; `text` has ZPS_PLAN_SKETCH_TEXT + 1 characters. */
void zps_plan_sketch_print(const struct zps_plan_sketch *sketch, char *text);
/* False: that is no sketch. */
bool zps_plan_sketch_parse(const char *text, struct zps_plan_sketch *sketch);

#endif
