/*
 * What Zen's Algorithm 1 takes on CPU threads, by its parameters: the sweep of the paper's figure 14. Every point draws
 * the indices of a tensor at random, anew for each density, and times the algorithm from the list of indices to the
 * lists of partitions.
 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/config.h"
#include "common/base/rng.h"
#include "common/codec/hierarchical.h"
#include "common/codec/partition_table.h"
#include "tests/bench/bench.h"

#define PROGRAM "hashing-bench"
enum { SEED = 12345 };

struct options {
  bool json;
  char *densities, *memories, *functions;
  uint64_t parameters, partitions, threads, runs;
};

#define OPT(FIELD, ...) \
  { .offset = offsetof(struct options, FIELD), __VA_ARGS__ }
static const struct zps_opt opts[] = {
    OPT(json, .name = "json", .type = ZPS_OPT_BOOL, .def = "no", .help = "one JSON object per line instead of a table"),
    OPT(parameters, .name = "parameters", .type = ZPS_OPT_UINT, .def = "21400000", .arg = "G", .min = 1, .max = 1e10,
        .help = "parameters of the tensor; the paper's has 214 million"),
    OPT(densities, .name = "density", .type = ZPS_OPT_STRING, .def = "0.01,0.05,0.1", .arg = "LIST",
        .help = "part of them that is not zero"),
    OPT(memories, .name = "memory", .type = ZPS_OPT_STRING, .def = "1,2,3,4", .arg = "LIST",
        .help = "slots of parallel memory in all, for each index: the paper's r1 over |G|d"),
    OPT(functions, .name = "functions", .type = ZPS_OPT_STRING, .def = "1,2,3,4", .arg = "LIST",
        .help = "hash functions: the paper's k"),
    OPT(partitions, .name = "partitions", .type = ZPS_OPT_UINT, .def = "16", .arg = "P", .min = 1, .max = 65536,
        .help = "partitions"),
    OPT(threads, .name = "threads", .type = ZPS_OPT_UINT, .def = "1", .arg = "T", .min = 1, .max = 64,
        .help = "threads that share the work"),
    OPT(runs, .name = "runs", .type = ZPS_OPT_UINT, .def = "5", .arg = "R", .min = 1, .max = 1000,
        .help = "runs, of which the fastest counts: in the processor's time with one thread, else in the clock's"),
    {0}};
static const struct zps_opt_table table = {.program = PROGRAM,
                                           .summary = "time Zen's Algorithm 1 by its memory and hash functions",
                                           .opts = opts,
                                           .config_size = sizeof(struct options)};

/* One density's indices, and where they are put. */
struct bench {
  const struct options *options;
  struct zps_workpool *pool;
  double density;
  uint64_t n, *indices, *out, *starts;
};

static uint32_t partition_of(void *ctx, uint64_t index) {
  return zps_partition_hash(SEED, *(const uint32_t *)ctx, index);
}

/* About density * |G| ascending indices. */
static bool draw(struct bench *bench) {
  const uint64_t all = bench->options->parameters;
  const double mean = bench->density * (double)all;
  const uint64_t most = (uint64_t)(mean + 10 * sqrt(mean) + 64);
  struct zps_rng rng = {.state = SEED};
  bench->indices = bench_memory(PROGRAM, most, sizeof *bench->indices);
  bench->out = bench_memory(PROGRAM, most, sizeof *bench->out);
  bench->starts = bench_memory(PROGRAM, bench->options->partitions + 1, sizeof *bench->starts);
  if (!bench->indices || !bench->out || !bench->starts) return false;
  const double scale = bench->density < 1 ? 1 / log1p(-bench->density) : 0;
  bench->n = 0;
  for (double at = 0; bench->n < most; at += 1) {
    at += floor(log1p(-zps_rng_unit(&rng)) * scale);
    if (!(at < (double)all)) break;
    bench->indices[bench->n++] = (uint64_t)at;
  }
  return true;
}

/* The share that goes serial when indices try one after the other and `memory` slots for each are open to them: all of
 * an index's k slots are taken with probability (filled / memory)^k, and otherwise it fills one. */
static double one_by_one(double memory, uint32_t k) {
  enum { STEPS = 10000 };
  double filled = 0;
  for (unsigned i = 0; i < STEPS; i++) filled += (1 - pow(filled / memory, k)) / STEPS;
  return 1 - filled;
}

struct point {
  const struct bench *bench;
  struct zps_hier_config config;
  struct zps_hier_stats stats;
  zps_err_t code;
};

static void hash(void *ctx) {
  struct point *const point = ctx;
  const struct bench *const bench = point->bench;
  point->code = zps_hier_partition(&point->config, bench->indices, bench->n, bench->pool, bench->out, bench->starts,
                                   &point->stats);
}

static int measure(const struct bench *bench, double memory, uint32_t k) {
  uint32_t n_parts = (uint32_t)bench->options->partitions;
  const uint64_t r1 = (uint64_t)(memory * (double)bench->n / n_parts);
  struct point point = {.bench = bench,
                        .config = {.n_parts = n_parts,
                                   .options = {.k = k, .r1 = r1 ? r1 : 1},
                                   .seed = ~(uint64_t)SEED,
                                   .h0 = partition_of,
                                   .h0_ctx = &n_parts}};
  double best_ns = INFINITY;
  for (uint64_t run = 0; run < bench->options->runs; run++) {
    best_ns = fmin(best_ns, bench_time_ns(bench->options->threads == 1, hash, &point));
    if (point.code == ZPS_OK) continue;
    fprintf(stderr, PROGRAM ": no memory for %.3g slots for each of %llu indices\n", memory,
            (unsigned long long)bench->n);
    return EXIT_FAILURE;
  }
  const struct zps_hier_stats *const stats = &point.stats;
  printf(bench->options->json
             ? "{\"parameters\":%llu,\"density\":%g,\"indices\":%llu,\"partitions\":%u,\"threads\":%llu,\"memory\":%g,"
               "\"k\":%u,\"ms\":%.3f,\"ns_per_index\":%.3f,\"serial_share\":%.5f,\"serial_share_one_by_one\":%.5f,"
               "\"lost_races\":%llu,\"redone\":%u}\n"
             : "%11llu %8g %10llu %4u %3llu %6g %2u %9.3f %7.3f %8.5f %8.5f %10llu %2u\n",
         (unsigned long long)bench->options->parameters, bench->density, (unsigned long long)bench->n, n_parts,
         (unsigned long long)bench->options->threads, memory, k, best_ns / 1e6, best_ns / (double)bench->n,
         (double)stats->serial / (double)bench->n, one_by_one(memory, k), (unsigned long long)stats->lost_races,
         stats->redone);
  fflush(stdout);
  return EXIT_SUCCESS;
}

static int run(void *given) {
  const struct options *const options = given;
  double densities[BENCH_LIST_MAX], memories[BENCH_LIST_MAX], functions[BENCH_LIST_MAX];
  unsigned n_densities, n_memories, n_functions;
  struct zps_workpool *pool = NULL;
  if (!bench_parse_numbers(PROGRAM, "density", options->densities, 1e-9, 1, densities, &n_densities) ||
      !bench_parse_numbers(PROGRAM, "memory", options->memories, 0.01, 100, memories, &n_memories) ||
      !bench_parse_numbers(PROGRAM, "functions", options->functions, 1, ZPS_HIER_K_MAX, functions, &n_functions))
    return EXIT_FAILURE;
  if (options->threads > 1 && zps_workpool_create((unsigned)options->threads - 1, "bench", &pool) != ZPS_OK) {
    fprintf(stderr, PROGRAM ": cannot start %llu threads\n", (unsigned long long)options->threads - 1);
    return EXIT_FAILURE;
  }
  if (!options->json)
    puts(" parameters  density    indices    P   T memory  k        ms  ns/idx   serial one-by-1      races again");
  int status = EXIT_SUCCESS;
  for (unsigned d = 0; status == EXIT_SUCCESS && d < n_densities; d++) {
    struct bench bench = {.options = options, .pool = pool, .density = densities[d]};
    if (!draw(&bench)) status = EXIT_FAILURE;
    for (unsigned m = 0; status == EXIT_SUCCESS && bench.n > 0 && m < n_memories; m++)
      for (unsigned k = 0; status == EXIT_SUCCESS && k < n_functions; k++)
        status = measure(&bench, memories[m], (uint32_t)functions[k]);
    free(bench.indices);
    free(bench.out);
    free(bench.starts);
  }
  zps_workpool_destroy(pool);
  return status;
}

int main(int argc, char **argv) {
  struct options options;
  return bench_main(&table, argc, argv, &options, run);
}
