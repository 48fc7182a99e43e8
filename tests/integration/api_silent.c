/* Servers that fall silent while ranks read from them: steps stand still until they are taken for lost, and no longer,
 * though these reads do not end; and what lands when they do end lands where nobody looks. */
#include <signal.h>
#include <time.h>

#include "tests/integration/api_test.h"

enum { N_RANKS = 2, GO_ON_AT = 3, N_STEPS = 6 };
enum { HOLDERS, RELEASED, THROUGH }; /* words */

/* One sum of 1.2 MB, of one server. */
static const struct spec large = {.rows = 100000, .width = 4, .dtype = ZENPS_F32, .density = 0.5};

static void on_log(void *ctx, int level, const char *component, const char *text) {
  struct rank *rank = ctx;
  silence_log(rank, level, component, text);
  if (strstr(text, "reads of servers that were lost hold ")) atomic_fetch_add(&rank->words[HOLDERS], 1);
  if (strstr(text, "no read of a lost server or rank holds memory")) atomic_fetch_add(&rank->words[RELEASED], 1);
}

static void open_with_log(struct rank *rank) {
  zenps_options_t options;
  setenv("ZENPS_LOG_LEVEL", "trace", 1);
  rank_options(rank, &options);
  options.log = on_log;
  options.log_ctx = rank;
  CHECK_OK(zenps_open(&options, &rank->zenps));
}

static zenps_tensor_t *open_tensor(const struct rank *rank) {
  struct spec spec = large;
  ZENPS_TENSOR_OPTIONS_INIT(&spec.options);
  spec.options.scheme = "balanced";
  spec.options.partitions = 1;
  return tensor_open(rank, "t", &spec);
}

static void step_of(const struct rank *rank, zenps_tensor_t *tensor, uint64_t step) {
  struct flight flight = {.tensor = tensor};
  flight_start(&flight, &large, rank, step);
  CHECK_OK(zenps_wait(flight.request, SOON_MS));
  out_check(&large, rank->world, step, &flight.out);
  flight_end(&flight, &large);
}

static void trains(struct rank *rank) {
  const bool comes_back = rank->arg != NULL;
  open_with_log(rank);
  zenps_tensor_t *const tensor = open_tensor(rank);
  for (uint64_t step = 1; step <= N_STEPS; step++) {
    step_of(rank, tensor, step);
    if (step != GO_ON_AT || !comes_back) continue;
    rank_await(rank, HOLDERS, N_RANKS);
    if (rank->rank == 0) silence_end(rank);
    rank_await(rank, RELEASED, N_RANKS);
  }
  rank_await(rank, HOLDERS, N_RANKS);
  rank_close(rank);
  atomic_fetch_add(&rank->words[THROUGH], 1);
  rank_await(rank, THROUGH, N_RANKS);
  if (rank->rank == 0 && !comes_back) silence_end(rank);
}

/* Where the server does not come back, reads hold memory for longer than a rank may run: neither steps nor the close
 * wait for them. */
static void run(const void *comes_back) {
  struct cluster cluster;
  cluster_start_with(&cluster, 3, silence_settings);
  silence_faults(comes_back ? "hold=3s" : "hold=100s");
  ranks_run(&cluster, N_RANKS, trains, comes_back, 0);
  silence_no_faults();
  cluster_stop(&cluster);
}

static void test_silent_server_comes_back(void **state) {
  (void)state;
  run("it does");
}

static void test_silent_server_outlasts_the_job(void **state) {
  (void)state;
  run(NULL);
}

/* ------------------------------------------------------------ one after another */

enum { BEGUN, IS_BACK, FIRST = 0, SECOND = 1 }; /* words; servers */

static void pause_ms(unsigned ms) {
  nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

/* The first is lost, and the ranks cannot be told, since the second falls silent before it has heard of that. So they
 * have not heard of it when the first is back, which is not in the job any more. */
static void silence_two(const struct rank *rank) {
  const pid_t *servers = rank->cluster->servers;
  rank_await(rank, BEGUN, N_RANKS - 1);
  process_stop(servers[FIRST]);
  pause_ms(SILENCE_DEAD_MS * 7 / 10);
  process_stop(servers[SECOND]);
  pause_ms(SILENCE_DEAD_MS * 6 / 10);
  CHECK(kill(servers[FIRST], SIGCONT) == 0);
  pause_ms(SILENCE_DEAD_MS * 3 / 10);
  atomic_store(&rank->words[IS_BACK], 1);
}

/* All but one rank wait for that one's push. */
static void waits(struct rank *rank) {
  rank_open(rank);
  struct flight flight = {.tensor = tensor_open_served(rank, "t", &large)};
  const bool is_late = rank->rank == N_RANKS - 1;
  step_run(flight.tensor, &large, rank, 1);
  if (!is_late) flight_start(&flight, &large, rank, 2);
  atomic_fetch_add(&rank->words[BEGUN], !is_late);
  if (is_late) silence_two(rank);
  rank_await(rank, IS_BACK, 1);
  if (is_late) flight_start(&flight, &large, rank, 2);
  CHECK_OK(zenps_wait(flight.request, SOON_MS));
  out_check(&large, rank->world, 2, &flight.out);
  flight_end(&flight, &large);
  for (uint64_t step = 3; step < 6; step++) step_run(flight.tensor, &large, rank, step);
  if (is_late) CHECK(kill(rank->cluster->servers[SECOND], SIGCONT) == 0);
  rank_close(rank);
}

static void test_silent_servers_one_after_another(void **state) {
  (void)state;
  struct cluster cluster;
  cluster_start_with(&cluster, 3, silence_settings);
  ranks_run(&cluster, N_RANKS, waits, NULL, 0);
  cluster_stop(&cluster);
}

const struct CMUnitTest api_silent_tests[] = {
    cmocka_unit_test(test_silent_servers_one_after_another),
    cmocka_unit_test(test_silent_server_comes_back),
    cmocka_unit_test(test_silent_server_outlasts_the_job),
};
const size_t n_api_silent_tests = sizeof api_silent_tests / sizeof api_silent_tests[0];
