/*
 * The cost of adding a gradient to the residual and selecting values to send, and of ending the selection, beside a
 * memcpy() of as many values in the same run. Gradients are drawn anew for each step and the residual is kept from one
 * to the next, as in a training; the first steps are not measured.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/config.h"
#include "common/base/rng.h"
#include "tests/bench/bench.h"
#include "zenps/sparsify.h"

#define PROGRAM "sparsify-bench"
enum { N_KINDS = 6, WARM_UP = 30, LINE_VALUES = 16 };

/* In the order of zenps_sparsify_t. A threshold that nothing reaches: the residual is added and looked at. */
static const char *const kind_names[N_KINDS] = {"topk", "sampled", "reused", "gaussian", "buckets", "threshold"};

struct options {
  bool json;
  char *kinds, *densities;
  uint64_t values, runs, period;
  double momentum;
};

#define OPT(FIELD) offsetof(struct options, FIELD)
static const struct zps_opt opts[] = {{.name = "json",
                                       .type = ZPS_OPT_BOOL,
                                       .offset = OPT(json),
                                       .def = "no",
                                       .help = "one JSON object per line instead of a table"},
                                      {.name = "kind",
                                       .type = ZPS_OPT_STRING,
                                       .offset = OPT(kinds),
                                       .def = "topk,sampled,reused,gaussian,buckets,threshold",
                                       .arg = "LIST",
                                       .help = "how to select; threshold: one that nothing reaches"},
                                      {.name = "density",
                                       .type = ZPS_OPT_STRING,
                                       .offset = OPT(densities),
                                       .def = "0.001,0.01,0.05",
                                       .arg = "LIST",
                                       .help = "part of the values to select"},
                                      {.name = "values",
                                       .type = ZPS_OPT_UINT,
                                       .offset = OPT(values),
                                       .def = "33554432",
                                       .arg = "N",
                                       .min = 1024,
                                       .max = 1e12,
                                       .help = "values of the gradient, f32: more than caches hold"},
                                      {.name = "period",
                                       .type = ZPS_OPT_UINT,
                                       .offset = OPT(period),
                                       .def = "32",
                                       .arg = "S",
                                       .min = 1,
                                       .max = 1e6,
                                       .help = "steps that a reused threshold lasts"},
                                      {.name = "momentum",
                                       .type = ZPS_OPT_DOUBLE,
                                       .offset = OPT(momentum),
                                       .def = "0",
                                       .arg = "M",
                                       .min = 0,
                                       .max = 0.999,
                                       .help = "momentum correction; 0: none"},
                                      {.name = "runs",
                                       .type = ZPS_OPT_UINT,
                                       .offset = OPT(runs),
                                       .def = "8",
                                       .arg = "R",
                                       .min = 1,
                                       .max = 1000,
                                       .help = "steps that are measured; the best and the mean are told"},
                                      {0}};

static const struct zps_opt_table table = {.program = PROGRAM,
                                           .summary = "time the selections of sparse gradients against memcpy()",
                                           .opts = opts,
                                           .config_size = sizeof(struct options)};

struct bench {
  const struct options *options;
  uint64_t n;
  float *drawn, *copy;   /* 2 n values, of which a gradient is n consecutive ones; n */
  const float *gradient; /* the step's */
  zenps_sparsifier_t *sparsifier;
  zenps_grad_t selection;
  zenps_status_t status;
};

static void copy(void *ctx) {
  const struct bench *const bench = ctx;
  memcpy(bench->copy, bench->gradient, bench->n * sizeof(float));
}

static void select_some(void *ctx) {
  struct bench *const bench = ctx;
  bench->status = zenps_sparsifier_select(bench->sparsifier, bench->gradient, &bench->selection);
}

static void commit(void *ctx) {
  struct bench *const bench = ctx;
  bench->status = zenps_sparsifier_commit(bench->sparsifier, NULL);
}

struct figures {
  double copy_ns, select_ns, mean_ns, commit_ns;
  zenps_sparsifier_stats_t stats;
};

static bool failed(const struct bench *bench) {
  if (bench->status == ZENPS_OK) return false;
  fprintf(stderr, PROGRAM ": %s\n", zenps_strerror(bench->status));
  return true;
}

static void keep_least(double *least, double ns) {
  if (ns < *least) *least = ns;
}

static bool measure(struct bench *bench, zenps_sparsify_t kind, double density, struct figures *figures) {
  zenps_sparsifier_options_t how;
  ZENPS_SPARSIFIER_OPTIONS_INIT(&how);
  how.kind = kind;
  if (kind == ZENPS_SPARSIFY_THRESHOLD)
    how.threshold = FLT_MAX;
  else
    how.density = density;
  how.period = (uint32_t)bench->options->period;
  how.momentum = bench->options->momentum;
  bench->status = zenps_sparsifier_create(&how, bench->n, ZENPS_F32, &bench->sparsifier);
  if (failed(bench)) return false;
  *figures = (struct figures){.copy_ns = INFINITY, .select_ns = INFINITY, .commit_ns = INFINITY};
  struct zps_rng rng = {.state = 1};
  for (uint64_t step = 0; step < bench->options->runs + WARM_UP && bench->status == ZENPS_OK; step++) {
    bench->gradient = bench->drawn + zps_rng_below(&rng, bench->n / LINE_VALUES) * LINE_VALUES;
    ZENPS_GRAD_INIT(&bench->selection);
    const double copy_ns = bench_time_ns(true, copy, bench), select_ns = bench_time_ns(true, select_some, bench);
    if (bench->status != ZENPS_OK) break;
    const double commit_ns = bench_time_ns(true, commit, bench);
    if (step < WARM_UP) continue;
    keep_least(&figures->copy_ns, copy_ns);
    keep_least(&figures->select_ns, select_ns);
    keep_least(&figures->commit_ns, commit_ns);
    figures->mean_ns += select_ns / (double)bench->options->runs;
  }
  figures->stats.struct_size = sizeof figures->stats;
  if (bench->status == ZENPS_OK) bench->status = zenps_sparsifier_stats(bench->sparsifier, &figures->stats);
  zenps_sparsifier_destroy(bench->sparsifier);
  return !failed(bench);
}

static void print(const struct bench *bench, unsigned kind, double density, const struct figures *figures) {
  const double ratio = figures->copy_ns / (figures->select_ns + figures->commit_ns);
  const unsigned long long selected = figures->stats.selected, refined = figures->stats.refined;
  printf(bench->options->json
             ? "{\"kind\":\"%s\",\"density\":%g,\"values\":%llu,\"memcpy_ms\":%.3f,\"select_ms\":%.3f,"
               "\"select_mean_ms\":%.3f,\"commit_ms\":%.3f,\"values_per_float_copied\":%.4f,\"selected\":%llu,"
               "\"refined\":%llu}\n"
             : "%9s  %7g  %8llu  %9.2f  %9.2f  %7.2f  %9.2f  %5.3f  %8llu  %7llu\n",
         kind_names[kind], density, (unsigned long long)bench->n, figures->copy_ns / 1e6, figures->select_ns / 1e6,
         figures->mean_ns / 1e6, figures->commit_ns / 1e6, ratio, selected, refined);
  fflush(stdout);
}

/* Normal, by Box and Muller. */
static void draw(struct bench *bench) {
  struct zps_rng rng = {.state = 20240607};
  for (uint64_t i = 0; i < bench->n; i++) {
    const double radius = sqrt(-2 * log1p(-zps_rng_unit(&rng))), angle = 6.283185307179586 * zps_rng_unit(&rng);
    bench->drawn[2 * i] = (float)(radius * cos(angle));
    bench->drawn[2 * i + 1] = (float)(radius * sin(angle));
  }
}

static int run(void *given) {
  const struct options *const options = given;
  double densities[BENCH_LIST_MAX];
  unsigned n_densities, kinds;
  struct bench bench = {.options = options, .n = options->values};
  if (!bench_parse_numbers(PROGRAM, "density", options->densities, 1e-9, 1, densities, &n_densities) ||
      !bench_parse_names(PROGRAM, "kind", options->kinds, kind_names, N_KINDS, &kinds))
    return EXIT_FAILURE;
  bench.drawn = bench_memory(PROGRAM, 2 * bench.n, sizeof(float));
  bench.copy = bench_memory(PROGRAM, bench.n, sizeof(float));
  bool ok = bench.drawn && bench.copy;
  if (ok) draw(&bench);
  if (ok && !options->json)
    puts("     kind  density    values  memcpy_ms  select_ms  mean_ms  commit_ms  ratio  selected  refined");
  for (unsigned kind = 0; ok && kind < N_KINDS; kind++) {
    if (!(kinds >> kind & 1)) continue;
    for (unsigned d = 0; ok && d < n_densities; d++) {
      struct figures figures;
      ok = measure(&bench, (zenps_sparsify_t)(kind + 1), densities[d], &figures);
      if (ok) print(&bench, kind, densities[d], &figures);
      if (kind + 1 == ZENPS_SPARSIFY_THRESHOLD) break;
    }
  }
  free(bench.drawn);
  free(bench.copy);
  return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char **argv) {
  struct options options;
  return bench_main(&table, argc, argv, &options, run);
}
