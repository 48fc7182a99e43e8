/* What the benchmarks share: lists of options, memory, and the times of stages and of a copy that take turns. */
#ifndef ZPS_TESTS_BENCH_BENCH_H
#define ZPS_TESTS_BENCH_BENCH_H

#include <stdbool.h>
#include <stdint.h>

enum { BENCH_LIST_MAX = 32 };

/* Up to BENCH_LIST_MAX numbers with commas between, each from `min` to `max`; false when it said on stderr, where
 * `program` is named first, what is wrong with them. */
bool bench_parse_numbers(const char *program, const char *option, const char *list, double min, double max,
                         double *numbers, unsigned *n_p);
/* Which of `n_names` names are in the list: a bit for each. */
bool bench_parse_names(const char *program, const char *option, const char *list, const char *const *names,
                       unsigned n_names, unsigned *bits_p);
/* Zeroed, from a cache line on, and touched: page faults are not what is measured. NULL when there is none, and it said
 * so. */
void *bench_memory(const char *program, uint64_t n, uint64_t size);
/* How long it takes. With one thread alone: the processor's time, in which others that run on the machine do not
 * count; else what a clock shows. */
double bench_time_ns(bool one_thread, void (*run)(void *ctx), void *ctx);

#endif
