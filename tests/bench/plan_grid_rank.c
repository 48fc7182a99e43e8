/*
 * One rank of plan-grid. For each cell of the grid "auto" has steps until it stays with a scheme; then it, every
 * scheme, and once more the scheme that it took ("twin") take turns of a few steps of the same gradients. Rank 0 prints
 * a line of JSON with the milliseconds of each turn.
 *
 *     plan-grid-rank VALUES TURNS STEPS SCHEME,... WIDTHxDENSITYxOVERLAP...
 *
 * VALUES: of the tensor, rows times width; STEPS: that auto has at most; OVERLAP: disjoint, random or identical.
 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "worker/tools/gather.h"
#include "worker/tools/settle.h"

enum {
  SCHEMES_MAX = 16,
  TURNS_MAX = 32,
  TURN = 5,  /* steps that count: the first of a turn, after others, does not */
  TRIED = 2, /* turns after which those far behind are measured no more */
  SAMPLES = SCHEMES_MAX * TURNS_MAX * TURN
};
#define FAR_BEHIND 2.0
/* Long steps differ less from one another. */
#define LONG_MS 20.0

/* Steps of one tensor; a scheme's, auto's or the twin's. */
struct runner {
  const char *label, *scheme;
  zenps_tensor_t *tensor;
  uint64_t number;
  unsigned n_turns;
  bool stays; /* measured to the end, however far behind */
};

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

static struct runner open_runner(const struct cell *cell, const char *label, const char *scheme) {
  struct runner runner = {.label = label, .scheme = scheme};
  char name[128];
  zenps_tensor_options_t options;
  ZENPS_TENSOR_OPTIONS_INIT(&options);
  options.scheme = scheme;
  snprintf(name, sizeof name, "%s %.20s", cell->text, label);
  check(zenps_tensor_open(job, name, cell->rows, cell->width, ZENPS_F32, &options, &runner.tensor), name);
  return runner;
}

/* The time of the slowest rank, for the steps of this rank. */
static void slowest(double *ms, unsigned n, const char *what, uint32_t width) {
  double *all, *own = calloc(width, sizeof *own);
  if (!own) exit(1);
  memcpy(own, ms, n * sizeof *own);
  check(zps_gather(job, what, n_gathers++, width, own, &all), "gather");
  for (unsigned i = 0; i < n; i++) {
    for (unsigned r = 0; r < world; r++) ms[i] = fmax(ms[i], all[r * width + i]);
  }
  free(all);
  free(own);
}

/* The schemes that auto ran, each with its first step. */
struct history {
  const char *last;
  char text[2048];
  size_t len;
  uint64_t since;
};

static void note(struct history *history, uint64_t number, const char *scheme) {
  if (history->last && strcmp(scheme, history->last) == 0) return;
  if (history->len < sizeof history->text)
    history->len += (size_t)snprintf(history->text + history->len, sizeof history->text - history->len, "%s\"%llu %s\"",
                                     history->len ? "," : "", (unsigned long long)number, scheme);
  history->last = scheme;
  history->since = number;
}

static double run_one(struct runner *runner, const struct cell *cell, struct history *history) {
  const char *name;
  const double ms = step(runner->tensor, runner->number, cell, &name);
  if (history) note(history, runner->number, name);
  runner->number++;
  return ms;
}

/* Runs steps until auto stays with a scheme: the time of all steps until then, and the time of one of the last. */
static void settle(struct runner *automatic, const struct cell *cell, unsigned steps, struct history *history,
                   double *tried_ms_p, double *last_ms_p) {
  struct zps_settle state = {.scheme = NULL};
  double all_ms = 0, ends[2] = {0}, last[ZPS_SETTLE_ROUNDS];
  for (bool stays = false; !stays && automatic->number < steps;) {
    const double ms = run_one(automatic, cell, history);
    const enum zps_settle_verdict verdict = zps_settle_round(&state, history->last, ms);
    if (state.alike == 1) ends[0] = all_ms;
    all_ms += ms;
    last[(state.alike - 1) % ZPS_SETTLE_ROUNDS] = ms;
    stays = verdict == ZPS_SETTLED;
    if (verdict == ZPS_SETTLE_IF_LONG) {
      double shortest_ms = state.shortest_ms;
      slowest(&shortest_ms, 1, "shortest", 1);
      stays = zps_settle_is_long(shortest_ms);
    }
  }
  ends[1] = median(last, state.alike < ZPS_SETTLE_ROUNDS ? (unsigned)state.alike : ZPS_SETTLE_ROUNDS);
  slowest(ends, 2, "ends", 2);
  *tried_ms_p = ends[0];
  *last_ms_p = ends[1];
}

static void take_turn(struct runner *runner, unsigned steps, const struct cell *cell, struct history *history,
                      double *ms) {
  (void)run_one(runner, cell, history);
  for (unsigned i = 0; i < steps; i++) ms[i] = run_one(runner, cell, history);
  runner->n_turns++;
}

/* Schemes far behind the best of the first turns are measured no more, and all ranks agree on which these are. */
static void drop(struct runner *runners, unsigned n, unsigned steps, double (*ms)[TURNS_MAX][TURN], bool *is_out) {
  double least = INFINITY, each[SCHEMES_MAX], all[SCHEMES_MAX * TRIED * TURN];
  for (unsigned r = 0; r < n; r++) memcpy(all + r * TRIED * TURN, ms[r], TRIED * TURN * sizeof all[0]);
  slowest(all, n * TRIED * TURN, "first", SCHEMES_MAX * TRIED * TURN);
  for (unsigned r = 0; r < n; r++) {
    double some[TRIED * TURN];
    for (unsigned i = 0; i < TRIED * steps; i++) some[i] = all[(r * TRIED + i / steps) * TURN + i % steps];
    each[r] = median(some, TRIED * steps);
    least = fmin(least, each[r]);
  }
  for (unsigned r = 0; r < n; r++) is_out[r] = !runners[r].stays && each[r] > FAR_BEHIND * least;
}

static void print_turns(const struct runner *runner, unsigned steps, double (*ms)[TURN]) {
  printf("\"%s\":[", runner->label);
  for (unsigned t = 0; t < runner->n_turns; t++) printf("%s%.4f", t ? "," : "", median(ms[t], steps));
  printf("]");
}

static void run(struct cell *cell, unsigned turns, unsigned max_steps, char *const *schemes, unsigned n_schemes) {
  struct runner runners[SCHEMES_MAX];
  static double ms[SCHEMES_MAX][TURNS_MAX][TURN];
  bool is_out[SCHEMES_MAX] = {false};
  struct history history = {.last = NULL};
  double tried_ms, last_ms;
  unsigned n = 0, steps = TURN;
  fill(cell);
  memset(ms, 0, sizeof ms);
  runners[n] = open_runner(cell, "auto", "auto");
  runners[n++].stays = true;
  settle(&runners[0], cell, max_steps, &history, &tried_ms, &last_ms);
  const char *const pick = history.last;
  const uint64_t tried = history.since;
  if (last_ms > LONG_MS) {
    turns = (turns + 1) / 2;
    steps = 3;
  }
  for (unsigned s = 0; s < n_schemes; s++) {
    runners[n] = open_runner(cell, schemes[s], schemes[s]);
    runners[n].stays = strcmp(schemes[s], pick) == 0;
    n++;
  }
  runners[n] = open_runner(cell, "twin", pick);
  runners[n++].stays = true;
  /* Each follows another one in every turn, and the order is reversed in every other. */
  for (unsigned t = 0; t < turns; t++) {
    for (unsigned i = 0; i < n; i++) {
      const unsigned r = t & 1 ? (n - 1 - i + t) % n : (i + t) % n;
      if (!is_out[r]) take_turn(&runners[r], steps, cell, r == 0 ? &history : NULL, ms[r][t]);
    }
    if (t + 1 == TRIED) drop(runners, n, steps, ms, is_out);
  }
  slowest(&ms[0][0][0], SAMPLES, "grid", SAMPLES);
  if (rank != 0) return;
  printf(
      "{\"n\":%u,\"rows\":%llu,\"width\":%u,\"density\":%g,\"overlap\":\"%s\",\"cell\":\"%s\",\"auto\":\"%s\","
      "\"tried\":%llu,\"tried_ms\":%.3f,\"took\":[%s],\"turns\":{",
      world, (unsigned long long)cell->rows, cell->width, cell->density, cell->overlap, cell->text, pick,
      (unsigned long long)tried, tried_ms, history.text);
  for (unsigned r = 0; r < n; r++) {
    if (r) printf(",");
    print_turns(&runners[r], steps, ms[r]);
  }
  printf("}}\n");
  fflush(stdout);
}

int main(int argc, char **argv) {
  char *schemes[SCHEMES_MAX];
  unsigned n_schemes = 0;
  if (argc < 6) {
    fprintf(stderr, "usage: plan-grid-rank VALUES TURNS STEPS SCHEME,... WIDTHxDENSITYxOVERLAP...\n");
    return 2;
  }
  const uint64_t values = strtoull(argv[1], NULL, 10);
  const unsigned long turns = strtoul(argv[2], NULL, 10), steps = strtoul(argv[3], NULL, 10);
  for (char *name = strtok(argv[4], ","); name && n_schemes < SCHEMES_MAX - 2; name = strtok(NULL, ","))
    schemes[n_schemes++] = name;
  if (turns < 2 * TRIED - 1 || turns > TURNS_MAX || steps < 1) {
    fprintf(stderr, "plan-grid-rank: %d to %d turns, and at least one step\n", 2 * TRIED - 1, TURNS_MAX);
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
    run(&cell, (unsigned)turns, (unsigned)steps, schemes, n_schemes);
  }
  free(cell.in);
  free(cell.out);
  zenps_close(job);
  return 0;
}
