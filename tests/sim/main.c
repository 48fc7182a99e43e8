/* A cluster and its jobs in one thread, under a seed: the command line (usage() below). Each seed that fails is a line
 * that begins with FAILED, and says how to repeat it. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/log.h"
#include "tests/sim/break.h"
#include "tests/sim/cluster.h"

#define LIMIT_NS (400 * ZPS_NS_PER_S) /* of the simulation's time: all deadlines have passed */
enum {
  PATIENCE_S = 60, /* of ours, for one seed */
  JOBS_MAX = 256,
};

static bool verbose, digest; /* digest: a line for each seed, good or not */

static void to_stdout(void *ctx, enum zps_log_level level, const char *component, const char *text) {
  (void)ctx;
  const struct sim_process *process = sim_process_here();
  sim_logs = true;
  if (verbose)
    printf("%12.6f %-11s %-5s %s: %s\n", (double)sim_now_ns() / 1e9, process ? process->name : "-",
           zps_log_level_name(level), component, text);
}

/* What a rank takes from its environment. */
static void environment(const struct sim_plan *plan) {
  setenv("ZENPS_FABRIC_FAULT", plan->rules, 1);
  setenv("ZENPS_LOCAL_WORLD_SIZE", "64", 1);
  setenv("ZENPS_LOG_LEVEL", verbose ? "debug" : "error", 1);
  char bytes[24];
  snprintf(bytes, sizeof bytes, "%llu", (unsigned long long)plan->memory_bytes);
  setenv("ZENPS_MEMORY_LIMIT", bytes, 1);
}

static int run_seed(uint64_t seed) {
  static struct sim_plan plan;
  sim_sched_init(seed);
  sim_plan_make(&plan, seed);
  environment(&plan);
  if (verbose) sim_plan_print(&plan);
  zps_log_set_sink(to_stdout, NULL);
  zps_log_set_level(verbose ? ZPS_LOG_DEBUG : ZPS_LOG_ERROR);
  sim_cluster_start(&plan);
  const enum sim_end end = sim_run(LIMIT_NS);
  if (end != SIM_ALL_ENDED) {
    sim_wrong(end == SIM_STUCK ? "all wait, and nothing will wake them" : "it does not end");
    if (verbose) sim_print_fibers();
  }
  for (uint32_t run = 0; run < plan.n_runs; run++) {
    const bool may_lack = sim_cluster.n_errors[run] > 0 || (run == 0 && sim_cluster.rank_killed);
    if (!may_lack && sim_cluster.steps_of[run] != plan.world * plan.n_steps)
      sim_wrong("%u steps of run %u were seen to end, not %u", sim_cluster.steps_of[run], run,
                plan.world * plan.n_steps);
  }
  if (verbose || digest)
    printf("seed %llu: %llu switches, %.3f s of its time\n", (unsigned long long)seed,
           (unsigned long long)sim_switches(), (double)sim_now_ns() / 1e9);
  if (sim_cluster.wrong[0]) printf("FAILED: sim --seed %llu: %s\n", (unsigned long long)seed, sim_cluster.wrong);
  fflush(stdout);
  return sim_cluster.wrong[0] ? 1 : 0;
}

/* ------------------------------------------------------------ many */

struct run {
  pid_t child;
  uint64_t seed;
};

/* A process for each: one that crashes takes no other with it, and all find the same memory. */
static struct run run_start(uint64_t seed) {
  struct run run = {fork(), seed};
  if (run.child != 0) return run;
  alarm(PATIENCE_S);
  _exit(run_seed(seed));
}

/* Waits for any of them, which is taken off the list. Whether it failed. */
static bool run_end(struct run *runs, unsigned *n_p) {
  int status = 0;
  unsigned i = 0;
  const pid_t child = wait(&status);
  while (i < *n_p && runs[i].child != child) i++;
  if (i == *n_p) return true;
  const uint64_t seed = runs[i].seed;
  runs[i] = runs[--*n_p];
  if (WIFSIGNALED(status))
    printf("FAILED: sim --seed %llu: %s\n", (unsigned long long)seed,
           WTERMSIG(status) == SIGALRM ? "it hangs without waiting" : strsignal(WTERMSIG(status)));
  return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

struct order {
  unsigned long long from, count;
  bool first;             /* the first one that fails is the last */
  unsigned jobs, seconds; /* seconds: after which no other seed begins; 0: never */
  const char *file;       /* in place of `from` and `count` */
};

/* False: there are no more. */
static bool next_seed(const struct order *order, FILE *file, uint64_t i, unsigned long long *seed_p) {
  char line[200];
  *seed_p = order->from + i;
  if (!file) return i < order->count;
  while (fgets(line, sizeof line, file))
    if (sscanf(line, "%llu", seed_p) == 1) return true;
  return false;
}

static int run_many(const struct order *order) {
  struct run runs[JOBS_MAX];
  unsigned n = 0;
  uint64_t n_seeds = 0, n_failed = 0;
  unsigned long long seed;
  const time_t began = time(NULL);
  FILE *const file = order->file ? fopen(order->file, "r") : NULL;
  if (order->file && !file) {
    fprintf(stderr, "sim: cannot read %s\n", order->file);
    return 2;
  }
  while (!(order->first && n_failed) && (order->seconds == 0 || time(NULL) < began + (time_t)order->seconds) &&
         next_seed(order, file, n_seeds, &seed)) {
    if (n == order->jobs) n_failed += run_end(runs, &n);
    runs[n++] = run_start(seed);
    n_seeds++;
  }
  while (n > 0) n_failed += run_end(runs, &n);
  if (file) fclose(file);
  printf("%llu seeds, %llu failed, %ld s\n", (unsigned long long)n_seeds, (unsigned long long)n_failed,
         (long)(time(NULL) - began));
  return n_failed > 0;
}

/* Addresses are the same in every run: where code depends on them, a seed still says all. */
static void fix_addresses(char **argv) {
  const int now = personality(0xffffffff);
  if (now == -1 || (now & ADDR_NO_RANDOMIZE) || personality((unsigned long)now | ADDR_NO_RANDOMIZE) == -1) return;
  execv("/proc/self/exe", argv);
}

static int usage(void) {
  fprintf(stderr,
          "usage: sim --seed N [--verbose]\n"
          "       sim --seeds FROM:COUNT [--seconds N] [--jobs N] [--first] [--digest]\n"
          "       sim --file PATH [--jobs N]\n"
          "       each with --break NAME, of:");
  for (unsigned i = 0; sim_break_name(i); i++) fprintf(stderr, " %s", sim_break_name(i));
  fprintf(stderr, "\n");
  return 2;
}

static bool option(const char *name, const char *value, struct order *order) {
  if (strcmp(name, "--seed") == 0) {
    order->count = 1;
    return sscanf(value, "%llu", &order->from) == 1;
  }
  if (strcmp(name, "--seeds") == 0) return sscanf(value, "%llu:%llu", &order->from, &order->count) == 2;
  if (strcmp(name, "--seconds") == 0) return sscanf(value, "%u", &order->seconds) == 1;
  if (strcmp(name, "--jobs") == 0)
    return sscanf(value, "%u", &order->jobs) == 1 && order->jobs >= 1 && order->jobs <= JOBS_MAX;
  if (strcmp(name, "--break") == 0) return sim_break(value);
  order->file = value;
  return strcmp(name, "--file") == 0;
}

int main(int argc, char **argv) {
  static char buffer[1 << 16];
  struct order order = {.jobs = 1};
  fix_addresses(argv);
  setvbuf(stdout, buffer, _IOLBF, sizeof buffer);
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--verbose") == 0)
      verbose = true;
    else if (strcmp(argv[i], "--digest") == 0)
      digest = true;
    else if (strcmp(argv[i], "--first") == 0)
      order.first = true;
    else if (i + 1 == argc || !option(argv[i], argv[i + 1], &order))
      return usage();
    else
      i++;
  }
  return order.count || order.file ? run_many(&order) : usage();
}
