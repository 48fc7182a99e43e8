/* A cluster and its jobs in one thread, under a seed: the command line (usage() below). Each seed that fails is a line
 * that begins with FAILED, and says how to repeat it. */
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/log.h"
#include "tests/sim/break.h"
#include "tests/sim/cluster.h"

#define LIMIT_NS (400 * ZPS_NS_PER_S) /* of the simulation's time: all deadlines have passed */
enum {
  BUSY_S = 60,      /* of a processor, for one seed */
  PATIENCE_S = 600, /* of ours, also on a machine that others use */
  JOBS_MAX = 256,
};

static enum sim_kind kind;   /* of seeds that a file gives no other */
static bool verbose, digest; /* digest: a line for each seed, good or not */

static void to_stdout(void *ctx, const struct zps_log_line *line) {
  (void)ctx;
  const struct sim_process *process = sim_process_here();
  sim_logs = true;
  if (verbose)
    printf("%12.6f %-11s %-5s %s: %s\n", (double)sim_now_ns() / 1e9, process ? process->name : "-",
           zps_log_level_name(line->level), line->component, line->text);
}

/* What a rank takes from its environment. */
static void environment(const struct sim_plan *plan) {
  setenv("ZENPS_FABRIC_FAULT", plan->rules, 1);
  setenv("ZENPS_LOCAL_WORLD_SIZE", "64", 1);
  setenv("ZENPS_SHARED_MEMORY", plan->shares ? "yes" : "no", 1);
  setenv("ZENPS_LOG_LEVEL", verbose ? "debug" : "error", 1);
  char bytes[24];
  snprintf(bytes, sizeof bytes, "%llu", (unsigned long long)plan->memory_bytes);
  setenv("ZENPS_MEMORY_LIMIT", bytes, 1);
}

static int run_seed(uint64_t seed, enum sim_kind seed_kind) {
  static struct sim_plan plan;
  if (seed_kind == SIM_KINDS) {
    printf("FAILED: seed %llu is of a kind that there is not\n", (unsigned long long)seed);
    return 1;
  }
  sim_sched_init(seed);
  sim_plan_make(&plan, seed, seed_kind);
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
  for (uint32_t run = 0; run < (plan.n_jobs > 1 ? plan.n_jobs : plan.n_runs); run++) {
    const struct sim_plan *const of = sim_plan_of(&plan, plan.n_jobs > 1 ? run : 0);
    const bool may_lack = plan.max_world > 0 || sim_cluster.n_errors[run] > 0 ||
                          (run == sim_cluster.killed_run && sim_cluster.rank_killed);
    if (!may_lack && sim_cluster.steps_of[run] != of->world * of->n_steps)
      sim_wrong("%u steps of run %u were seen to end, not %u", sim_cluster.steps_of[run], run, of->world * of->n_steps);
  }
  if (verbose || digest)
    printf("seed %llu: %llu switches, %.3f s of its time\n", (unsigned long long)seed,
           (unsigned long long)sim_switches(), (double)sim_now_ns() / 1e9);
  if (sim_cluster.wrong[0])
    printf("FAILED: sim --seed %llu --kind %s: %s\n", (unsigned long long)seed, sim_kind_name(plan.kind),
           sim_cluster.wrong);
  fflush(stdout);
  return sim_cluster.wrong[0] ? 1 : 0;
}

/* ------------------------------------------------------------ many */

struct run {
  pid_t child;
  uint64_t seed;
  enum sim_kind kind;
};

/* A process for each: one that crashes takes no other with it, and all find the same memory. */
static void run_start(struct run *run) {
  run->child = fork();
  if (run->child != 0) return;
  setrlimit(RLIMIT_CPU, &(struct rlimit){BUSY_S, BUSY_S + 1});
  alarm(PATIENCE_S);
  _exit(run_seed(run->seed, run->kind));
}

static bool hangs(int signal) {
  return signal == SIGALRM || signal == SIGXCPU;
}

/* Waits for any of them, which is taken off the list. Whether it failed. */
static bool run_end(struct run *runs, unsigned *n_p) {
  int status = 0;
  unsigned i = 0;
  const pid_t child = wait(&status);
  while (i < *n_p && runs[i].child != child) i++;
  if (i == *n_p) return true;
  const uint64_t seed = runs[i].seed;
  const char *const name = sim_kind_name(runs[i].kind);
  runs[i] = runs[--*n_p];
  if (WIFSIGNALED(status))
    printf("FAILED: sim --seed %llu --kind %s: %s\n", (unsigned long long)seed, name,
           hangs(WTERMSIG(status)) ? "it hangs without waiting" : strsignal(WTERMSIG(status)));
  return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

struct order {
  unsigned long long from, count;
  bool first;             /* the first one that fails is the last */
  unsigned jobs, seconds; /* seconds: after which no other seed begins; 0: never */
  const char *file;       /* in place of `from` and `count` */
};

/* False: there are no more. */
static bool next_run(const struct order *order, FILE *file, uint64_t i, struct run *run) {
  char line[200], name[16];
  unsigned long long seed = order->from + i;
  int n = i < order->count;
  if (file) n = 0;
  while (file && n < 1 && fgets(line, sizeof line, file)) n = sscanf(line, "%llu:%15[a-z]", &seed, name);
  *run = (struct run){.seed = seed, .kind = n == 2 ? sim_kind_find(name) : kind};
  return n >= 1;
}

static int run_many(const struct order *order) {
  struct run runs[JOBS_MAX];
  unsigned n = 0;
  uint64_t n_seeds = 0, n_failed = 0;
  const time_t began = time(NULL);
  FILE *const file = order->file ? fopen(order->file, "r") : NULL;
  if (order->file && !file) {
    fprintf(stderr, "sim: cannot read %s\n", order->file);
    return 2;
  }
  while (!(order->first && n_failed) && (order->seconds == 0 || time(NULL) < began + (time_t)order->seconds) &&
         next_run(order, file, n_seeds, &runs[n])) {
    run_start(&runs[n++]);
    if (n == order->jobs) n_failed += run_end(runs, &n);
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
  fprintf(stderr, "\n       and with --kind NAME, of:");
  for (unsigned i = 0; i < SIM_KINDS; i++) fprintf(stderr, " %s", sim_kind_name((enum sim_kind)i));
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
  if (strcmp(name, "--kind") == 0) return (kind = sim_kind_find(value)) != SIM_KINDS;
  if (strcmp(name, "--break") == 0) return sim_break(value);
  order->file = value;
  return strcmp(name, "--file") == 0;
}

int main(int argc, char **argv) {
  static char buffer[1 << 16];
  struct order order = {.jobs = 1};
  fix_addresses(argv);
  clearenv();          /* it says nothing to a run, and does not move what is allocated */
  json_object_seed(1); /* without a seed jansson asks /dev/urandom in which order members of an object are freed */
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
