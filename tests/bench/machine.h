/* The machine's own speed with one thread and with several: the measure for a stage's times and gains. */
#ifndef ZPS_TESTS_BENCH_MACHINE_H
#define ZPS_TESTS_BENCH_MACHINE_H

#include <stdint.h>

#include "common/base/workpool.h"

/* Of the same size; borrowed. */
struct bench_arrays {
  const void *from;
  void *to;
  uint64_t n_bytes;
};

/* How many threads share a loop on the pool, which may be NULL. */
unsigned bench_threads(struct zps_workpool *pool);
/* Each thread takes a piece of the arrays. */
void bench_copy(struct zps_workpool *pool, const struct bench_arrays *arrays);
void bench_read(struct zps_workpool *pool, const struct bench_arrays *arrays);
/* As many additions at once as a core has units for, in registers: two milliseconds of them. Two threads gain
 * nothing where their processors are one core's. */
void bench_compute(struct zps_workpool *pool);

#endif
