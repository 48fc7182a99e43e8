#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/config.h"
#include "common/codec/codec_choice.h"
#include "tests/bench/bench.h"
#include "tests/bench/codec_bench.h"

static const char *const stage_names[N_BENCH_STAGES] = {
    [BENCH_ENCODE] = "encode", [BENCH_COO] = "coo",         [BENCH_SORTED] = "sorted", [BENCH_REDUCE] = "reduce",
    [BENCH_ADD] = "add",       [BENCH_SCATTER] = "scatter", [BENCH_ROWS] = "rows",
};

struct options {
  bool json;
  char *widths, *densities, *stages, *codec, *sum_codec;
  uint64_t threads;
  struct bench_options bench;
};

#define OPT_BENCH(FIELD) offsetof(struct options, bench) + offsetof(struct bench_options, FIELD)
static const struct zps_opt opts[] = {{.name = "json",
                                       .type = ZPS_OPT_BOOL,
                                       .offset = offsetof(struct options, json),
                                       .def = "no",
                                       .help = "one JSON object per line instead of a table"},
                                      {.name = "width",
                                       .type = ZPS_OPT_STRING,
                                       .offset = offsetof(struct options, widths),
                                       .def = "1,16,64,512",
                                       .arg = "LIST",
                                       .help = "values of a row"},
                                      {.name = "density",
                                       .type = ZPS_OPT_STRING,
                                       .offset = offsetof(struct options, densities),
                                       .def = "0.0001,0.001,0.01,0.028,0.05,0.2,0.5,0.95",
                                       .arg = "LIST",
                                       .help = "part of the rows that is not zero"},
                                      {.name = "stage",
                                       .type = ZPS_OPT_STRING,
                                       .offset = offsetof(struct options, stages),
                                       .def = "encode,coo,sorted,reduce,add,scatter,rows",
                                       .arg = "LIST",
                                       .help = "what to time"},
                                      {.name = "codec",
                                       .type = ZPS_OPT_STRING,
                                       .offset = offsetof(struct options, codec),
                                       .def = "coo",
                                       .arg = "CODEC",
                                       .help = "index codec of contributions; auto: the smallest"},
                                      {.name = "sum-codec",
                                       .type = ZPS_OPT_STRING,
                                       .offset = offsetof(struct options, sum_codec),
                                       .def = "bitmap",
                                       .arg = "CODEC",
                                       .help = "index codec of sums"},
                                      {.name = "dense-bytes",
                                       .type = ZPS_OPT_BYTES,
                                       .offset = OPT_BENCH(dense_bytes),
                                       .def = "128M",
                                       .arg = "SIZE",
                                       .min = 65536,
                                       .max = 1e12,
                                       .help = "bytes of the dense tensor: more than caches hold"},
                                      {.name = "partitions",
                                       .type = ZPS_OPT_UINT,
                                       .offset = OPT_BENCH(partitions),
                                       .def = "16",
                                       .arg = "P",
                                       .min = 1,
                                       .max = 65536,
                                       .help = "partitions of the tensor"},
                                      {.name = "block-bits",
                                       .type = ZPS_OPT_UINT,
                                       .offset = OPT_BENCH(block_bits),
                                       .def = "0",
                                       .arg = "B",
                                       .min = 0,
                                       .max = 20,
                                       .help = "blocks of 2^B rows stay together"},
                                      {.name = "sums",
                                       .type = ZPS_OPT_UINT,
                                       .offset = OPT_BENCH(sums),
                                       .def = "1",
                                       .arg = "P",
                                       .min = 1,
                                       .max = 4096,
                                       .help = "partitions of the tensor that is summed"},
                                      {.name = "ranks",
                                       .type = ZPS_OPT_UINT,
                                       .offset = OPT_BENCH(ranks),
                                       .def = "8",
                                       .arg = "N",
                                       .min = 1,
                                       .max = 4096,
                                       .help = "contributions to each sum"},
                                      {.name = "threads",
                                       .type = ZPS_OPT_UINT,
                                       .offset = offsetof(struct options, threads),
                                       .def = "1",
                                       .arg = "T",
                                       .min = 1,
                                       .max = 64,
                                       .help = "beside one thread, this many"},
                                      {.name = "runs",
                                       .type = ZPS_OPT_UINT,
                                       .offset = OPT_BENCH(runs),
                                       .def = "5",
                                       .arg = "R",
                                       .min = 1,
                                       .max = 1000,
                                       .help = "runs, of which the best counts"},
                                      {0}};

static const struct zps_opt_table table = {.program = "codec-bench",
                                           .summary = "time the codecs against memcpy()",
                                           .opts = opts,
                                           .config_size = sizeof(struct options)};

static bool parse_codec(const char *option, const char *name, enum zps_codec *codec_p) {
  for (enum zps_codec codec = 0; strcmp(zps_codec_name(codec), "?") != 0; codec++) {
    if (strcmp(zps_codec_name(codec), name) != 0) continue;
    *codec_p = codec;
    return true;
  }
  fprintf(stderr, "codec-bench: --%s %s: must be the name of an index codec, such as coo or bitmap\n", option, name);
  return false;
}

static bool parse_codecs(const char *name, unsigned *codecs_p) {
  enum zps_codec codec;
  *codecs_p = zps_codec_push_set(ZPS_CODEC_AUTO);
  if (strcmp(name, zps_codec_policy_name(ZPS_CODEC_AUTO)) == 0) return true;
  if (!parse_codec("codec", name, &codec)) return false;
  *codecs_p = 1u << codec;
  return true;
}

/* The least bits per index that a coding of index sets of this density can take. */
static double entropy_bits(double density) {
  if (density >= 1) return 0;
  return -log2(density) - (1 - density) / density * log2(1 - density);
}

static double gain(const struct bench_times *times) {
  return times->all_ns > 0 ? times->one_ns / times->all_ns : 0;
}

/* The time with all threads, and its ratio to the time with one thread. */
static void print_gain(const struct options *options, const char *prefix, const struct bench_times *times) {
  if (options->threads == 1) return;
  const double all_ms = times->all_ns / 1e6;
  if (options->json)
    printf(",\"%sall_threads_ms\":%.3f,\"%sgain\":%.3f", prefix, all_ms, prefix, gain(times));
  else
    printf(" %8.2f %5.2f", all_ms, gain(times));
}

/* The gain that the machine allows threads: stages that read or compute cannot gain more. */
static void print_machine(const struct options *options, const struct bench_result *result) {
  print_gain(options, "memcpy_", &result->copy);
  if (options->threads == 1) return;
  printf(options->json ? ",\"read_gain\":%.3f,\"compute_gain\":%.3f" : "  %5.2f  %8.2f", gain(&result->read),
         gain(&result->compute));
}

static void print(const struct options *options, uint32_t width, double density, const struct bench_result *result) {
  if (options->json)
    printf(
        "{\"width\":%u,\"density\":%g,\"dense_bytes\":%llu,\"threads\":%llu,\"codec\":\"%s\",\"bits_per_index\":%.3f,"
        "\"entropy_bits\":%.3f,\"paper_push_bits\":32,\"paper_pull_bits\":%.3f,\"memcpy_ms\":%.3f",
        width, density, (unsigned long long)options->bench.dense_bytes, (unsigned long long)options->threads,
        options->codec, result->bits_per_index, entropy_bits(density), 1 / density, result->copy.one_ns / 1e6);
  else
    printf("%5u  %7g  %5.2f  %5.2f  %8.2f  %9.2f", width, density, result->bits_per_index, entropy_bits(density),
           1 / density, result->copy.one_ns / 1e6);
  print_machine(options, result);
  for (unsigned i = 0; i < N_BENCH_STAGES; i++) {
    const struct bench_figure *const figure = &result->stages[i];
    if (!(options->bench.stages & 1u << i)) continue;
    if (options->json)
      printf(",\"%s\":{\"ms\":%.3f,\"ns_per_value\":%.3f,\"values_per_float_copied\":%.4f", stage_names[i],
             figure->times.one_ns / 1e6, figure->ns_per_value, figure->per_float_copied);
    else
      printf("  %10.2f %6.3f", figure->times.one_ns / 1e6, figure->per_float_copied);
    print_gain(options, "", &figure->times);
    if (options->json) putchar('}');
  }
  puts(options->json ? "}" : "");
  fflush(stdout);
}

static int run(void *given) {
  struct options *const options = given;
  double widths[BENCH_LIST_MAX], densities[BENCH_LIST_MAX];
  unsigned n_widths, n_densities;
  struct zps_workpool *pool = NULL;
  if (!bench_parse_numbers("codec-bench", "width", options->widths, 1, 1 << 20, widths, &n_widths) ||
      !bench_parse_numbers("codec-bench", "density", options->densities, 1e-9, 1, densities, &n_densities) ||
      !bench_parse_names("codec-bench", "stage", options->stages, stage_names, N_BENCH_STAGES,
                         &options->bench.stages) ||
      !parse_codecs(options->codec, &options->bench.codecs) ||
      !parse_codec("sum-codec", options->sum_codec, &options->bench.sum_codec))
    return EXIT_FAILURE;
  if (options->threads > 1 && zps_workpool_create((unsigned)options->threads - 1, "bench", &pool) != ZPS_OK) {
    fprintf(stderr, "codec-bench: cannot start %llu threads\n", (unsigned long long)options->threads - 1);
    return EXIT_FAILURE;
  }
  if (!options->json) {
    const char *const gains = options->threads > 1 ? "  threads  gain" : "";
    const char *const machine = options->threads > 1 ? "   read   compute" : "";
    printf("width  density   bits  bound  zen_pull  memcpy_ms%s%s", gains, machine);
    for (unsigned i = 0; i < N_BENCH_STAGES; i++)
      if (options->bench.stages & 1u << i) printf("  %7s_ms  ratio%s", stage_names[i], gains);
    puts("");
  }
  int status = 0;
  for (unsigned w = 0; status == 0 && w < n_widths; w++) {
    for (unsigned d = 0; status == 0 && d < n_densities; d++) {
      struct bench_result result = {0};
      status = bench_run(&options->bench, pool, (uint32_t)widths[w], densities[d], &result);
      if (status == 0) print(options, (uint32_t)widths[w], densities[d], &result);
    }
  }
  zps_workpool_destroy(pool);
  return status == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char **argv) {
  struct options options;
  return bench_main(&table, argc, argv, &options, run);
}
