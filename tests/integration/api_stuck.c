/* Processes whose progress thread stands still, while their others run: one thread is stopped, as a debugger does it.
 */
#include <dirent.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include "tests/integration/api_test.h"

static const char *const quick[] = {"ZENPS_CONTROL_DEAD=4s", "ZENPS_CONTROL_HEARTBEAT=500ms", NULL};

/* The thread of a process that has this name; 0: there is none. */
static pid_t thread_find(pid_t pid, const char *wanted) {
  char path[300], name[32] = "";
  snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
  DIR *threads = opendir(path);
  pid_t found = 0;
  assert_non_null(threads);
  for (const struct dirent *entry; found == 0 && (entry = readdir(threads)) != NULL;) {
    snprintf(path, sizeof path, "/proc/%d/task/%s/comm", (int)pid, entry->d_name);
    FILE *in = entry->d_name[0] == '.' ? NULL : fopen(path, "re");
    if (!in) continue;
    if (fgets(name, sizeof name, in) && strncmp(name, wanted, strlen(wanted)) == 0) found = (pid_t)atoi(entry->d_name);
    fclose(in);
  }
  closedir(threads);
  return found;
}

static bool thread_stop(pid_t thread) {
  return ptrace(PTRACE_SEIZE, thread, NULL, NULL) == 0 && ptrace(PTRACE_INTERRUPT, thread, NULL, NULL) == 0 &&
         waitpid(thread, NULL, __WALL) == thread;
}

/* A rank that beats on while its progress thread stands still. */
static void is_stuck(struct rank *rank) {
  struct flight flight;
  flight_open(&flight, &plain_spec, rank);
  atomic_fetch_add(&rank->words[0], 1);
  rank_await(rank, 1, 1); /* rank 1's progress thread has been stopped */
  flight_start(&flight, &plain_spec, rank, 2);
  if (rank->rank == 1)
    for (;;) pause();
  const zenps_error_t *error = flight_expect_error(&flight, rank, ZENPS_ERR_PEER_LOST, 2, SOON_MS);
  CHECK(error->n_missing == 1 && error->missing_ranks[0] == 1);
  CHECK_SAYS(error->text, "progress thread has not run for");
  atomic_fetch_add(&rank->words[2], 1);
  flight_end(&flight, &plain_spec);
  rank_close(rank);
}

static void test_stuck_rank(void **state) {
  (void)state;
  struct cluster cluster;
  struct ranks ranks;
  cluster_start_with(&cluster, 2, quick);
  ranks_start(&ranks, &cluster, 3, is_stuck, NULL);
  const uint64_t begun = now_ms();
  while (atomic_load(&ranks.words[0]) < 3 && now_ms() - begun < SOON_MS) usleep(1000);
  const pid_t thread = thread_find(ranks.pids[1], "zenps-net");
  assert_int_not_equal(thread, 0);
  const bool stopped = thread_stop(thread);
  atomic_store(&ranks.words[1], stopped ? 1 : 0);
  while (stopped && atomic_load(&ranks.words[2]) < 2 && now_ms() - begun < SOON_MS) usleep(1000);
  for (int r = 0; r < ranks.world; r++)
    if (r == 1 || !stopped) kill(ranks.pids[r], SIGKILL);
  if (stopped) waitpid(thread, NULL, __WALL); /* the process cannot be waited for before the thread is */
  ranks_wait(&ranks, stopped ? 1u << 1 : 7u);
  cluster_stop(&cluster);
  if (!stopped) skip(); /* processes may not stop each other's threads here */
}

/* Rank 0's round waits for rank 1's push. */
static void server_is_stuck(struct rank *rank) {
  struct flight flight;
  flight_open(&flight, &plain_spec, rank);
  if (rank->rank == 0) flight_start(&flight, &plain_spec, rank, 2);
  atomic_fetch_add(&rank->words[0], 1);
  if (rank->rank == 0) {
    flight_expect_error(&flight, rank, ZENPS_ERR_SERVER_LOST, 2, SOON_MS);
    flight_end(&flight, &plain_spec);
    atomic_store(&rank->words[1], 1);
  }
  rank_await(rank, 1, 1);
  rank_close(rank);
}

/* A server whose progress thread stands still, and is called, does not stop the coordinator in its process. */
static void test_stuck_server(void **state) {
  (void)state;
  if (between_workers()) skip(); /* no rank waits for a server */
  struct cluster cluster;
  struct ranks ranks;
  char stats[700];
  cluster_start_one(&cluster, quick);
  ranks_start(&ranks, &cluster, 2, server_is_stuck, NULL);
  const uint64_t begun = now_ms();
  while (atomic_load(&ranks.words[0]) < 2 && now_ms() - begun < SOON_MS) usleep(1000);
  const pid_t thread = thread_find(cluster.coordinator, "fabric");
  assert_int_not_equal(thread, 0);
  const bool stopped = thread_stop(thread);
  const char *ctl = getenv("ZENPSCTL");
  snprintf(stats, sizeof stats, "%s --timeout=4s --endpoint %s stats >/dev/null 2>&1", ctl ? ctl : "zenpsctl",
           cluster.address);
  if (stopped && system(stats) != 0) print_message("# as is to be expected, zenpsctl did not get all\n");
  for (int r = 0; r < ranks.world && !stopped; r++) kill(ranks.pids[r], SIGKILL);
  ranks_wait(&ranks, stopped ? 0 : 3u);
  kill(cluster.coordinator, SIGKILL);
  if (stopped) waitpid(thread, NULL, __WALL); /* the process cannot be waited for before the thread is */
  cluster_stop(&cluster);
  if (!stopped) skip(); /* processes may not stop each other's threads here */
}

const struct CMUnitTest api_stuck_tests[] = {
    cmocka_unit_test(test_stuck_rank),
    cmocka_unit_test(test_stuck_server),
};
const size_t n_api_stuck_tests = sizeof api_stuck_tests / sizeof api_stuck_tests[0];
