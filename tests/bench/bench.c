#include "tests/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/config.h"

bool bench_parse_numbers(const char *program, const char *option, const char *list, double min, double max,
                         double *numbers, unsigned *n_p) {
  char *end;
  *n_p = 0;
  for (const char *at = list;; at = end + 1) {
    const double number = strtod(at, &end);
    if (end == at || (*end != ',' && *end != '\0') || !(number >= min && number <= max) || *n_p == BENCH_LIST_MAX) {
      fprintf(stderr, "%s: --%s %s: must be up to %d numbers from %g to %g with commas between\n", program, option,
              list, BENCH_LIST_MAX, min, max);
      return false;
    }
    numbers[(*n_p)++] = number;
    if (*end == '\0') return true;
  }
}

bool bench_parse_names(const char *program, const char *option, const char *list, const char *const *names,
                       unsigned n_names, unsigned *bits_p) {
  *bits_p = 0;
  for (const char *at = list; *at;) {
    const size_t len = strcspn(at, ",");
    unsigned i = 0;
    while (i < n_names && !(strlen(names[i]) == len && strncmp(at, names[i], len) == 0)) i++;
    if (i == n_names) {
      fprintf(stderr, "%s: --%s %s: must be of", program, option, list);
      for (i = 0; i < n_names; i++) fprintf(stderr, "%s %s", i ? "," : "", names[i]);
      fputs(", with commas between\n", stderr);
      return false;
    }
    *bits_p |= 1u << i;
    at += len + (at[len] == ',');
  }
  return true;
}

void *bench_memory(const char *program, uint64_t n, uint64_t size) {
  enum { LINE_BYTES = 64 };
  void *const memory = aligned_alloc(LINE_BYTES, (n * size + LINE_BYTES) & ~(uint64_t)(LINE_BYTES - 1));
  if (!memory) {
    fprintf(stderr, "%s: no memory for %llu bytes\n", program, (unsigned long long)(n * size));
    return NULL;
  }
  memset(memory, 0, n * size);
  return memory;
}

static uint64_t now_ns(bool one_thread) {
  if (!one_thread) return zps_clock_ns();
  struct timespec used;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
}

double bench_time_ns(bool one_thread, void (*run)(void *ctx), void *ctx) {
  const uint64_t start_ns = now_ns(one_thread);
  run(ctx);
  return (double)(now_ns(one_thread) - start_ns);
}

int bench_main(const struct zps_opt_table *table, int argc, char **argv, void *options, int (*run)(void *options)) {
  struct zps_config_rest rest;
  struct zps_error error;
  if (zps_config_load(table, argc, argv, NULL, options, &rest, &error) != ZPS_OK) {
    fprintf(stderr, "%s: %s\n", table->program, error.text);
    return EXIT_FAILURE;
  }
  const int status = rest.exit_now ? EXIT_SUCCESS : run(options);
  zps_config_fini(table, options);
  return status;
}
