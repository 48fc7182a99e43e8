/*
 * What Zen's Algorithm 1 takes by its parameters: the sweep of the paper's figure 14, on CPU threads or on a device.
 * Every point draws the indices of a tensor at random, anew for each density. On threads the algorithm is timed from
 * the list of indices to the lists of partitions; on a device from the dense gradient, as a round has it, to slices
 * whose sizes are known, beside the walk in order that it takes the place of.
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
#include "tests/bench/hashing_device.h"

#define PROGRAM "hashing-bench"
enum { SEED = 12345 };

struct options {
  bool json;
  char *densities, *memories, *functions, *device;
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
    OPT(device, .name = "device", .type = ZPS_OPT_STRING, .def = "", .arg = "FILE",
        .help = "a device's library, such as libzenps_cuda.so.0: it hashes in place of threads"),
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
  struct hashing_device *device; /* NULL: threads */
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

static void print_point(const struct bench *bench, double memory, uint32_t k,
                        const struct hashing_device_times *times) {
  const struct options *const options = bench->options;
  const struct zps_hier_stats *const stats = &times->stats;
  printf(
      options->json
          ? "{\"parameters\":%llu,\"density\":%g,\"indices\":%llu,\"partitions\":%llu,\"threads\":%llu,\"memory\":%g,"
            "\"k\":%u,\"ms\":%.3f,\"ns_per_index\":%.3f,\"serial_share\":%.5f,\"serial_share_one_by_one\":%.5f,"
            "\"lost_races\":%llu,\"redone\":%u"
          : "%11llu %8g %10llu %4llu %3llu %6g %2u %9.3f %7.3f %8.5f %8.5f %10llu %2u",
      (unsigned long long)options->parameters, bench->density, (unsigned long long)bench->n,
      (unsigned long long)options->partitions, (unsigned long long)options->threads, memory, k, times->hash_ns / 1e6,
      times->hash_ns / (double)bench->n, (double)stats->serial / (double)bench->n, one_by_one(memory, k),
      (unsigned long long)stats->lost_races, stats->redone);
  if (bench->device) printf(options->json ? ",\"device\":true,\"walk_ms\":%.3f" : " %9.3f", times->walk_ns / 1e6);
  puts(options->json ? "}" : "");
  fflush(stdout);
}

static zps_err_t time_threads(const struct bench *bench, const struct zps_hier_options *options,
                              struct hashing_device_times *times) {
  uint32_t n_parts = (uint32_t)bench->options->partitions;
  struct point point = {
      .bench = bench,
      .config = {
          .n_parts = n_parts, .options = *options, .seed = ~(uint64_t)SEED, .h0 = partition_of, .h0_ctx = &n_parts}};
  times->hash_ns = INFINITY;
  for (uint64_t run = 0; run < bench->options->runs; run++) {
    times->hash_ns = fmin(times->hash_ns, bench_time_ns(bench->options->threads == 1, hash, &point));
    if (point.code != ZPS_OK) return point.code;
  }
  times->stats = point.stats;
  return ZPS_OK;
}

static int measure(const struct bench *bench, double memory, uint32_t k) {
  const uint64_t r1 = (uint64_t)(memory * (double)bench->n / (double)bench->options->partitions);
  const struct zps_hier_options options = {.k = k, .r1 = r1 ? r1 : 1};
  struct hashing_device_times times = {0};
  if (bench->device) {
    if (!hashing_device_run(bench->device, &options, bench->options->runs, &times)) return EXIT_FAILURE;
  } else if (time_threads(bench, &options, &times) != ZPS_OK) {
    fprintf(stderr, PROGRAM ": no memory for %.3g slots for each of %llu indices\n", memory,
            (unsigned long long)bench->n);
    return EXIT_FAILURE;
  }
  print_point(bench, memory, k, &times);
  return EXIT_SUCCESS;
}

static int sweep(const struct options *options, struct zps_workpool *pool, struct hashing_device *device) {
  double densities[BENCH_LIST_MAX], memories[BENCH_LIST_MAX], functions[BENCH_LIST_MAX];
  unsigned n_densities, n_memories, n_functions;
  if (!bench_parse_numbers(PROGRAM, "density", options->densities, 1e-9, 1, densities, &n_densities) ||
      !bench_parse_numbers(PROGRAM, "memory", options->memories, 0.01, 100, memories, &n_memories) ||
      !bench_parse_numbers(PROGRAM, "functions", options->functions, 1, ZPS_HIER_K_MAX, functions, &n_functions))
    return EXIT_FAILURE;
  if (!options->json)
    printf(
        " parameters  density    indices    P   T memory  k        ms  ns/idx   serial one-by-1      races again%s\n",
        device ? "   walk ms" : "");
  int status = EXIT_SUCCESS;
  for (unsigned d = 0; status == EXIT_SUCCESS && d < n_densities; d++) {
    struct bench bench = {.options = options, .pool = pool, .device = device, .density = densities[d]};
    if (!draw(&bench)) status = EXIT_FAILURE;
    if (status == EXIT_SUCCESS && device && bench.n > 0 &&
        !hashing_device_put(device, options->parameters, (uint32_t)options->partitions, SEED, bench.indices, bench.n))
      status = EXIT_FAILURE;
    for (unsigned m = 0; status == EXIT_SUCCESS && bench.n > 0 && m < n_memories; m++)
      for (unsigned k = 0; status == EXIT_SUCCESS && k < n_functions; k++)
        status = measure(&bench, memories[m], (uint32_t)functions[k]);
    free(bench.indices);
    free(bench.out);
    free(bench.starts);
  }
  return status;
}

static int run(void *given) {
  const struct options *const options = given;
  struct zps_workpool *pool = NULL;
  struct hashing_device *device = NULL;
  if (options->threads > 1 && zps_workpool_create((unsigned)options->threads - 1, "bench", &pool) != ZPS_OK) {
    fprintf(stderr, PROGRAM ": cannot start %llu threads\n", (unsigned long long)options->threads - 1);
    return EXIT_FAILURE;
  }
  if (*options->device) device = hashing_device_open(PROGRAM, options->device);
  const int status = *options->device && !device ? EXIT_FAILURE : sweep(options, pool, device);
  hashing_device_close(device);
  zps_workpool_destroy(pool);
  return status;
}

int main(int argc, char **argv) {
  struct options options;
  return bench_main(&table, argc, argv, &options, run);
}
