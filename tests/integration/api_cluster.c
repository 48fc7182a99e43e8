#include "tests/integration/api_test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/support/patience.h"
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>

/* Memory that providers leak when they are opened and closed. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void) {
  return "leak:libfabric.so\n";
}
#endif

#define RANK_SECONDS 300u /* the longest in which no rank goes on */
#define WORDS_BYTES ((WORDS + 1) * sizeof(atomic_uint))
#define TIMEOUT_MS 240000u /* of joins and operations which are not to miss one */

enum { TURNS = 3, STATUS_TOO_SHORT = 75 /* the machine was too slow for the rank's deadline */ };

uint64_t now_ms(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

static void pause_ms(unsigned ms) {
  const struct timespec ts = {.tv_nsec = (long)ms * 1000000};
  nanosleep(&ts, NULL);
}

/* ------------------------------------------------------------ daemons */

static pid_t daemon_start(const char *const *args) {
  const char *path = getenv("ZENPSD");
  char log_path[512];
  snprintf(log_path, sizeof log_path, "%s/zenpsd.log", getenv("ZENPS_TEST_DIR") ? getenv("ZENPS_TEST_DIR") : "/tmp");
  const pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid > 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int log = open(log_path, O_WRONLY | O_CREAT | O_APPEND, 0644);
  if (log >= 0) {
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
  }
  execvp(path ? path : "zenpsd", (char *const *)args);
  _exit(127);
}

static void wait_for_address(struct cluster *cluster, const char *file) {
  struct patience patience = {0};
  for (;;) {
    FILE *in = fopen(file, "re");
    if (in) {
      const bool read = fgets(cluster->address, sizeof cluster->address, in) != NULL;
      fclose(in);
      char *end = read ? strchr(cluster->address, '\n') : NULL;
      if (end) *end = '\0';
      if (read && (end || strlen(cluster->address) > 4)) return;
    }
    if (patience_is_over(&patience) || waitpid(cluster->coordinator, NULL, WNOHANG) != 0)
      fail_msg("the coordinator did not start: no %s", file);
    pause_ms(5);
  }
}

static void coordinator_start(struct cluster *cluster, const char *roles, unsigned n_servers) {
  static unsigned count;
  char file[600], min[16];
  memset(cluster, 0, sizeof *cluster);
  snprintf(file, sizeof file, "%s/coordinator.%d.%u", getenv("ZENPS_TEST_DIR") ? getenv("ZENPS_TEST_DIR") : "/tmp",
           (int)getpid(), count++);
  snprintf(min, sizeof min, "%u", n_servers);
  unlink(file);
  cluster->coordinator =
      daemon_start((const char *const[]){"zenpsd", "--roles", roles, "--control-listen", "127.0.0.1:0",
                                         "--control-address-file", file, "--coordinator-min-servers", min, NULL});
  wait_for_address(cluster, file);
}

void cluster_start_server(struct cluster *cluster, unsigned i) {
  char name[16];
  snprintf(name, sizeof name, "s%u", i);
  cluster->servers[i] = daemon_start((const char *const[]){"zenpsd", "--roles", "server", "--control-coordinator",
                                                           cluster->address, "--server-name", name, NULL});
}

enum { SETTINGS_MAX = 8 };

/* *saved: what was there, for settings_restore(). */
static void settings_put(const char *const *settings, char *saved[SETTINGS_MAX]) {
  char name[64];
  for (unsigned i = 0; settings[i]; i++) {
    const char *const value = strchr(settings[i], '=') + 1;
    assert_true(i < SETTINGS_MAX);
    snprintf(name, sizeof name, "%.*s", (int)(value - 1 - settings[i]), settings[i]);
    saved[i] = getenv(name) ? strdup(getenv(name)) : NULL;
    setenv(name, value, 1);
  }
}

static void settings_restore(const char *const *settings, char *saved[SETTINGS_MAX]) {
  char name[64];
  for (unsigned i = 0; settings[i]; i++) {
    snprintf(name, sizeof name, "%.*s", (int)(strchr(settings[i], '=') - settings[i]), settings[i]);
    if (saved[i])
      setenv(name, saved[i], 1);
    else
      unsetenv(name);
    free(saved[i]);
  }
}

void cluster_start_one(struct cluster *cluster, const char *const *settings) {
  char *saved[SETTINGS_MAX];
  settings_put(settings, saved);
  coordinator_start(cluster, "server,coordinator", 1);
  settings_restore(settings, saved);
}

void cluster_start(struct cluster *cluster, unsigned n_servers) {
  coordinator_start(cluster, "coordinator", n_servers);
  cluster->n_servers = n_servers;
  for (unsigned i = 0; i < n_servers; i++) cluster_start_server(cluster, i);
}

void cluster_start_with(struct cluster *cluster, unsigned n_servers, const char *const *settings) {
  char *saved[SETTINGS_MAX];
  settings_put(settings, saved);
  cluster_start(cluster, n_servers);
  settings_restore(settings, saved);
}

void cluster_start_but(struct cluster *cluster, unsigned n_servers, const char *const *settings, unsigned server,
                       const char *const *others) {
  char *saved[SETTINGS_MAX], *saved_others[SETTINGS_MAX];
  settings_put(settings, saved);
  coordinator_start(cluster, "coordinator", n_servers);
  cluster->n_servers = n_servers;
  for (unsigned i = 0; i < n_servers; i++) {
    if (i == server) settings_put(others, saved_others);
    cluster_start_server(cluster, i);
    if (i == server) settings_restore(others, saved_others);
  }
  settings_restore(settings, saved);
}

int cluster_ask(const char *address, const char *command, char *text, size_t size) {
  char line[600];
  const char *const ctl = getenv("ZENPSCTL");
  snprintf(line, sizeof line, "%s --endpoint %s -o json %s", ctl ? ctl : "zenpsctl", address, command);
  FILE *const out = popen(line, "r");
  text[out ? fread(text, 1, size - 1, out) : 0] = '\0';
  const int status = out ? pclose(out) : -1;
  return status >= 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void cluster_stop(struct cluster *cluster) {
  for (unsigned i = 0; i < cluster->n_servers; i++) {
    kill(cluster->servers[i], SIGKILL);
    waitpid(cluster->servers[i], NULL, 0);
  }
  kill(cluster->coordinator, SIGKILL);
  waitpid(cluster->coordinator, NULL, 0);
}

/* Whether every thread of the process is stopped: the thread that takes the signal may have to wait for a processor,
 * while others run on. */
static bool is_stopped(pid_t pid) {
  char path[300], line[512];
  snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
  DIR *threads = opendir(path);
  CHECK(threads != NULL);
  bool stopped = true;
  for (const struct dirent *entry; stopped && (entry = readdir(threads)) != NULL;) {
    if (entry->d_name[0] == '.') continue;
    snprintf(path, sizeof path, "/proc/%d/task/%s/stat", (int)pid, entry->d_name);
    FILE *in = fopen(path, "re");
    const char *name_end = in && fgets(line, sizeof line, in) ? strrchr(line, ')') : NULL;
    if (in) fclose(in);
    stopped = name_end && name_end[1] == ' ' && name_end[2] == 'T';
  }
  closedir(threads);
  return stopped;
}

void process_stop(pid_t pid) {
  CHECK(kill(pid, SIGSTOP) == 0);
  while (!is_stopped(pid)) pause_ms(1);
}

static struct cluster shared;
static bool shared_running;

struct cluster *cluster_shared(void) {
  /* No process is lost by its silence: of a busy machine's, or of one that a test stops for some seconds. */
  if (!shared_running) cluster_start_with(&shared, 3, (const char *const[]){"ZENPS_CONTROL_DEAD=300s", NULL});
  shared_running = true;
  return &shared;
}

void cluster_shared_stop(void) {
  if (shared_running) cluster_stop(&shared);
  shared_running = false;
}

/* ------------------------------------------------------------ ranks */

/* ZENPS_TEST_HOSTS: how many hosts ranks say to be on. All but one have one rank, so that sums by host are in the order
 * of ranks. */
static void set_host(int rank, int world) {
  const char *const hosts = getenv("ZENPS_TEST_HOSTS");
  char host[24];
  if (!hosts) return;
  const int alike = world - atoi(hosts); /* ranks on the first one's host */
  snprintf(host, sizeof host, "host%d", rank > alike ? rank - alike : 0);
  setenv("ZENPS_HOST", host, 1);
}

static void ranks_start_turn(struct ranks *ranks, const struct cluster *cluster, int world, rank_fn fn, const void *arg,
                             unsigned turn) {
  static unsigned count;
  struct rank rank = {.cluster = cluster,
                      .world = world,
                      .arg = arg,
                      .join_timeout_ms = TIMEOUT_MS,
                      .round_timeout_ms = TIMEOUT_MS,
                      .turn = turn};
  snprintf(rank.job, sizeof rank.job, "test-%d-%u", (int)getpid(), count++);
  rank.words = mmap(NULL, WORDS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_true(rank.words != MAP_FAILED);
  ranks->words = rank.words;
  ranks->world = world;
  fflush(NULL);
  for (int r = 0; r < world; r++) {
    ranks->pids[r] = fork();
    assert_true(ranks->pids[r] >= 0);
    if (ranks->pids[r] > 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(RANK_SECONDS);
    rank.rank = r;
    set_host(r, world);
    fn(&rank);
    fflush(NULL);
#ifdef __SANITIZE_ADDRESS__
    if (__lsan_do_recoverable_leak_check()) _exit(1);
#endif
    _exit(0);
  }
}

void ranks_start(struct ranks *ranks, const struct cluster *cluster, int world, rank_fn fn, const void *arg) {
  ranks_start_turn(ranks, cluster, world, fn, arg, 0);
}

/* How many have not ended as they should. */
static unsigned ranks_end(struct ranks *ranks, unsigned killed, bool *too_short) {
  unsigned bad = 0;
  *too_short = false;
  for (int r = 0; r < ranks->world; r++) {
    int status = 0;
    while (waitpid(ranks->pids[r], &status, 0) < 0 && errno == EINTR) continue;
    const bool expected_kill = (killed >> r & 1) && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (expected_kill || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) continue;
    bad++;
    *too_short = *too_short || (WIFEXITED(status) && WEXITSTATUS(status) == STATUS_TOO_SHORT);
    for (int other = r + 1; other < ranks->world; other++) kill(ranks->pids[other], SIGCONT); /* may wait to be told */
    if (WIFSIGNALED(status)) print_error("rank %d was ended by signal %d\n", r, WTERMSIG(status));
  }
  munmap(ranks->words, WORDS_BYTES);
  return bad;
}

void ranks_wait(struct ranks *ranks, unsigned killed) {
  bool too_short;
  assert_int_equal(ranks_end(ranks, killed, &too_short), 0);
}

bool ranks_get_to(const struct ranks *ranks, unsigned word, unsigned value) {
  unsigned moves = 0;
  uint64_t moved_ms = now_ms();
  while (atomic_load(&ranks->words[word]) < value) {
    if (atomic_load(&ranks->words[MOVES]) != moves) moved_ms = now_ms();
    moves = atomic_load(&ranks->words[MOVES]);
    if (now_ms() - moved_ms > RANK_SECONDS * 1000) return false;
    usleep(1000);
  }
  return true;
}

bool process_ends_well(pid_t pid) {
  const uint64_t until = now_ms() + RANK_SECONDS * 1000;
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (now_ms() > until) return false;
    usleep(1000);
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void ranks_run(const struct cluster *cluster, int world, rank_fn fn, const void *arg, unsigned killed) {
  struct ranks ranks;
  unsigned bad = 0;
  bool too_short = true;
  for (unsigned turn = 0; turn < TURNS && too_short; turn++) {
    ranks_start_turn(&ranks, cluster, world, fn, arg, turn);
    bad = ranks_end(&ranks, killed, &too_short);
  }
  assert_int_equal(bad, 0);
}

/* ------------------------------------------------------------ in a rank's process */

void rank_fail(const char *file, int line, const char *what) {
  fprintf(stderr, "# %s:%d (process %d): %s; last error: %s\n", file, line, (int)getpid(), what,
          zenps_last_error()->text);
  _exit(1);
}

/* The shortest deadline that this process gave to the library. */
static uint64_t shortest_ms = TIMEOUT_MS;

/* A short one grows with the turns of ranks_run(). */
static uint64_t deadline_ms(const struct rank *rank, uint64_t ms) {
  if (ms < TIMEOUT_MS) ms <<= 2 * rank->turn;
  if (ms < shortest_ms) shortest_ms = ms;
  return ms;
}

void rank_check_status(const char *file, int line, const char *call, zenps_status_t got, zenps_status_t wanted) {
  char text[512];
  if (got == wanted) return;
  if (wanted == ZENPS_OK && (got == ZENPS_ERR_TIMEOUT || got == ZENPS_ERR_MISSING) && shortest_ms < TIMEOUT_MS) {
    fprintf(stderr, "# %s:%d: %.300s has missed a deadline of %u ms\n", file, line, call, (unsigned)shortest_ms);
    _exit(STATUS_TOO_SHORT);
  }
  snprintf(text, sizeof text, "%.300s is %d (%s), not %d (%s)", call, got, zenps_strerror(got), wanted,
           zenps_strerror(wanted));
  rank_fail(file, line, text);
}

void rank_check_says(const char *file, int line, const char *text, const char *part) {
  char what[1024];
  if (strstr(text, part)) return;
  snprintf(what, sizeof what, "\"%.600s\" does not say \"%.100s\"", text, part);
  rank_fail(file, line, what);
}

void rank_options(const struct rank *rank, zenps_options_t *options) {
  ZENPS_OPTIONS_INIT(options);
  options->coordinator = rank->cluster->address;
  options->job = rank->job;
  options->rank = rank->rank;
  options->world = rank->world;
  options->join_timeout_ms = deadline_ms(rank, rank->join_timeout_ms);
  options->round_timeout_ms = deadline_ms(rank, rank->round_timeout_ms);
  options->threads = 2;
}

void rank_open(struct rank *rank) {
  zenps_options_t options;
  rank_options(rank, &options);
  CHECK_OK(zenps_open(&options, &rank->zenps));
  CHECK(zenps_rank(rank->zenps) == rank->rank);
  CHECK(zenps_world(rank->zenps) == rank->world);
  CHECK(strcmp(zenps_job_name(rank->zenps), rank->job) == 0);
  rank_moves(rank);
}

void rank_close(struct rank *rank) {
  const uint64_t before = now_ms();
  rank_moves(rank);
  zenps_close(rank->zenps);
  CHECK(now_ms() - before < SOON_MS);
  rank->zenps = NULL;
}

void rank_moves(const struct rank *rank) {
  atomic_fetch_add(&rank->words[MOVES], 1);
  alarm(RANK_SECONDS);
}

void rank_await(const struct rank *rank, unsigned word, unsigned value) {
  unsigned moves = atomic_load(&rank->words[MOVES]);
  while (atomic_load(&rank->words[word]) < value) {
    const unsigned now = atomic_load(&rank->words[MOVES]);
    if (now != moves) alarm(RANK_SECONDS);
    moves = now;
    pause_ms(1);
  }
  rank_moves(rank);
}
