/* The parts that benchmarks share: lists of options, memory, and the times of stages and of a copy that take turns. */
#ifndef ZPS_TESTS_BENCH_BENCH_H
#define ZPS_TESTS_BENCH_BENCH_H

#include <stdbool.h>
#include <stdint.h>

enum { BENCH_LIST_MAX = 32 };

/* Up to BENCH_LIST_MAX numbers with commas between, each from `min` to `max`; false when they are wrong, after a line
 * on stderr that names `program` first and says why. */
bool bench_parse_numbers(const char *program, const char *option, const char *list, double min, double max,
                         double *numbers, unsigned *n_p);
/* The names in the list, of `n_names` names: a bit for each. */
bool bench_parse_names(const char *program, const char *option, const char *list, const char *const *names,
                       unsigned n_names, unsigned *bits_p);
/* Zeroed memory that begins at a cache line and has been touched, so that page faults are not measured. NULL when there
 * is none, after a line on stderr. */
void *bench_memory(const char *program, uint64_t n, uint64_t size);
/* The time of a stage. With one thread it is the processor's time, which leaves out other processes; with several it is
 * the clock's. */
double bench_time_ns(bool one_thread, void (*run)(void *ctx), void *ctx);

/* A program's main(): loads its options, of the table's size, and runs, or says what is wrong with them. Returns the
 * exit status. */
struct zps_opt_table;
int bench_main(const struct zps_opt_table *table, int argc, char **argv, void *options, int (*run)(void *options));

#endif
