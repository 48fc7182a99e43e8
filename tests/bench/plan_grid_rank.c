/*
 * One rank of plan-grid: what each scheme takes for a step of the same gradients, in turns, and then which of them
 * "auto" takes for those. Rank 0 prints a line of JSON for each cell of the grid.
 *
 *     plan-grid-rank VALUES REPEATS STEPS SCHEME,... WIDTHxDENSITYxOVERLAP...
 *
 * VALUES: of the tensor, rows times width; OVERLAP: disjoint, random or identical.
 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "worker/tools/gather.h"

enum { SCHEMES_MAX = 24, REPEATS_MAX = 101, LEAST = 3, TURN = 5, BUDGET_MS = 300 };

static zenps_job_t *job;
static unsigned rank, world;
static uint64_t n_gathers;

static void check(zenps_status_t status, const char *what) {
  if (status == ZENPS_OK) return;
  fprintf(stderr, "plan-grid-rank %u: %s: %s\n", rank, what, zenps_last_error()->text);
  exit(1);
}

struct cell {
  const char *text;
  uint64_t rows;
  uint32_t width;
  double density;
  char overlap[16];
  float *in, *out;
};

/* Row r is in a rank's set when a number drawn for it falls into the rank's interval of 0..1. */
static void fill(struct cell *cell) {
  const bool identical = strcmp(cell->overlap, "identical") == 0, disjoint = strcmp(cell->overlap, "disjoint") == 0;
  const uint64_t seed = identical || disjoint ? 1 : rank + 1;
  const double from = disjoint ? cell->density * rank : 0, until = from + cell->density;
  memset(cell->in, 0, cell->rows * cell->width * sizeof *cell->in);
  for (uint64_t row = 0; row < cell->rows; row++) {
    const double x = (double)(zps_hash_mix64(zps_hash_mix64(seed << 32) + row) >> 11) * 0x1p-53;
    if (x < from || x >= until) continue;
    for (uint32_t i = 0; i < cell->width; i++) cell->in[row * cell->width + i] = (float)(1 + rank + row % 7);
  }
}

static double median(double *values, unsigned n) {
  for (unsigned i = 1; i < n; i++) {
    const double value = values[i];
    unsigned at = i;
    for (; at > 0 && values[at - 1] > value; at--) values[at] = values[at - 1];
    values[at] = value;
  }
  return n & 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* Milliseconds of a step on this rank, all of which begin together; `name_p`: the scheme it ran under. */
static double step(zenps_tensor_t *tensor, uint64_t number, const struct cell *cell, const char **name_p) {
  zenps_grad_t in, out;
  zenps_request_t *request;
  zenps_request_stats_t stats = {.struct_size = sizeof stats};
  ZENPS_GRAD_INIT(&in);
  ZENPS_GRAD_INIT(&out);
  in.layout = out.layout = ZENPS_DENSE;
  in.values = cell->in;
  out.values = cell->out;
  check(zenps_barrier(job), "barrier");
  const uint64_t start_ns = zps_clock_ns();
  check(zenps_allreduce(tensor, number, &in, &out, &request), cell->text);
  check(zenps_wait(request, -1), cell->text);
  const double ms = (double)(zps_clock_ns() - start_ns) / ZPS_NS_PER_MS;
  check(zenps_request_stats(request, &stats), "stats");
  *name_p = stats.scheme;
  zenps_request_free(request);
  return ms;
}

static zenps_tensor_t *open_tensor(const struct cell *cell, const char *scheme) {
  char name[128];
  zenps_tensor_t *tensor;
  zenps_tensor_options_t options;
  ZENPS_TENSOR_OPTIONS_INIT(&options);
  options.scheme = scheme;
  snprintf(name, sizeof name, "%s %.20s", cell->text, scheme);
  check(zenps_tensor_open(job, name, cell->rows, cell->width, ZENPS_F32, &options, &tensor), name);
  return tensor;
}

/* Of each step, what its slowest rank took; the median over the steps. */
static double slowest(double *ms, unsigned n) {
  double *all, most[REPEATS_MAX];
  check(zps_gather(job, "grid", n_gathers++, REPEATS_MAX, ms, &all), "gather");
  for (unsigned i = 0; i < n; i++) {
    most[i] = 0;
    for (unsigned r = 0; r < world; r++) most[i] = fmax(most[i], all[r * REPEATS_MAX + i]);
  }
  free(all);
  return median(most, n);
}

static void run(struct cell *cell, unsigned repeats, unsigned steps, char *const *schemes, unsigned n_schemes) {
  zenps_tensor_t *tensors[SCHEMES_MAX];
  double ms[SCHEMES_MAX][REPEATS_MAX] = {{0}}, tail[REPEATS_MAX] = {0};
  const char *name, *last = "";
  char took[1024] = "";
  unsigned n_tail = 0;
  fill(cell);
  for (unsigned s = 0; s < n_schemes; s++) tensors[s] = open_tensor(cell, schemes[s]);
  /* Slow ones are measured less often: all ranks agree how often by the first step. */
  double first[REPEATS_MAX] = {step(tensors[0], UINT32_MAX, cell, &name)};
  const double fit = BUDGET_MS / slowest(first, 1);
  if (fit < repeats) repeats = fit < LEAST ? LEAST : (unsigned)fit;
  /* In turns of several steps, of which the first, after others, is not counted. */
  for (unsigned i = 0, number = 0; i < repeats; i += TURN) {
    const unsigned n = repeats - i < TURN ? repeats - i : TURN;
    for (unsigned s = 0; s < n_schemes; s++) {
      (void)step(tensors[s], number, cell, &name);
      for (unsigned k = 0; k < n; k++) ms[s][i + k] = step(tensors[s], number + 1 + k, cell, &name);
    }
    number += n + 1;
  }
  zenps_tensor_t *automatic = open_tensor(cell, "auto");
  for (unsigned i = 0; i < steps; i++) {
    const double one = step(automatic, i, cell, &name);
    if (strcmp(name, last) != 0) {
      const size_t len = strlen(took);
      snprintf(took + len, sizeof took - len, "%s\"%u %s\"", i ? "," : "", i, name);
      n_tail = 0;
    }
    if (n_tail < repeats) tail[n_tail++] = one;
    last = name;
  }
  char line[4096];
  int len =
      snprintf(line, sizeof line, "{\"n\":%u,\"rows\":%llu,\"width\":%u,\"density\":%g,\"overlap\":\"%s\",\"ms\":{",
               world, (unsigned long long)cell->rows, cell->width, cell->density, cell->overlap);
  for (unsigned s = 0; s < n_schemes; s++)
    len += snprintf(line + len, sizeof line - (size_t)len, "%s\"%s\":%.4f", s ? "," : "", schemes[s],
                    slowest(ms[s], repeats));
  snprintf(line + len, sizeof line - (size_t)len, "},\"auto\":\"%s\",\"auto_ms\":%.4f,\"took\":[%s],\"cell\":\"%s\"}",
           last, slowest(tail, n_tail), took, cell->text);
  if (rank == 0) {
    puts(line);
    fflush(stdout);
  }
}

int main(int argc, char **argv) {
  char *schemes[SCHEMES_MAX];
  unsigned n_schemes = 0;
  if (argc < 6) {
    fprintf(stderr, "usage: plan-grid-rank VALUES REPEATS STEPS SCHEME,... WIDTHxDENSITYxOVERLAP...\n");
    return 2;
  }
  const uint64_t values = strtoull(argv[1], NULL, 10);
  const unsigned long repeats = strtoul(argv[2], NULL, 10), steps = strtoul(argv[3], NULL, 10);
  for (char *name = strtok(argv[4], ","); name && n_schemes < SCHEMES_MAX; name = strtok(NULL, ","))
    schemes[n_schemes++] = name;
  if (repeats < 1 || repeats >= REPEATS_MAX || steps < 1) {
    fprintf(stderr, "plan-grid-rank: 1 to %d repeats, and at least one step\n", REPEATS_MAX - 1);
    return 2;
  }
  check(zenps_open(NULL, &job), "zenps_open");
  rank = (unsigned)zenps_rank(job);
  world = (unsigned)zenps_world(job);
  struct cell cell = {.in = malloc(values * sizeof(float)), .out = malloc(values * sizeof(float))};
  for (int i = 5; i < argc && cell.in && cell.out; i++) {
    cell.text = argv[i];
    if (sscanf(argv[i], "%ux%lfx%15s", &cell.width, &cell.density, cell.overlap) != 3 || cell.width == 0) {
      fprintf(stderr, "plan-grid-rank: '%s' is no WIDTHxDENSITYxOVERLAP\n", argv[i]);
      return 2;
    }
    cell.rows = values / cell.width;
    run(&cell, (unsigned)repeats, (unsigned)steps, schemes, n_schemes);
  }
  free(cell.in);
  free(cell.out);
  zenps_close(job);
  return 0;
}
