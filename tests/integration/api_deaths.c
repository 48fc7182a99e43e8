/* Processes that die, hang, fork, or are not there at all. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "tests/integration/api_test.h"

static void dies(struct rank *rank) {
  struct flight flight;
  flight_open(&flight, &plain_spec, rank);
  if (rank->rank == 1) {
    rank_await(rank, 0, 2);
    raise(SIGKILL);
  }
  flight_start(&flight, &plain_spec, rank, 2);
  atomic_fetch_add(&rank->words[0], 1);
  const zenps_error_t *error = flight_expect_error(&flight, rank, ZENPS_ERR_PEER_LOST, 2, SOON_MS);
  CHECK(error->n_missing == 1 && error->missing_ranks[0] == 1);
  CHECK_SAYS(error->text, "rank 1");
  zenps_request_t *request; /* every later call fails, too, once the coordinator has reported the loss */
  zenps_status_t status = ZENPS_OK;
  for (uint64_t step = 3; status == ZENPS_OK && step < 200; step++) {
    status = zenps_allreduce(flight.tensor, step, &flight.in, &flight.out, &request);
    if (status == ZENPS_OK) {
      status = zenps_wait(request, SOON_MS);
      CHECK_STATUS(status, ZENPS_ERR_PEER_LOST);
      zenps_request_free(request);
    }
  }
  CHECK_STATUS(status, ZENPS_ERR_PEER_LOST);
  CHECK(zenps_last_error()->n_missing == 1 && zenps_last_error()->missing_ranks[0] == 1);
  flight_end(&flight, &plain_spec);
  rank_close(rank);
}

static void test_killed_rank(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 3, dies, NULL, 1u << 1);
}

/* A rank that is stopped in the middle of it all. */
static void hangs(struct rank *rank) {
  struct flight flight;
  rank->round_timeout_ms = 2000; /* before any process is declared dead */
  flight_open(&flight, &plain_spec, rank);
  if (rank->rank == 1) {
    atomic_store(&rank->words[1], (unsigned)getpid());
    rank_await(rank, 0, 2);
    raise(SIGSTOP);
  } else {
    rank_await(rank, 1, 1);
    const uint64_t before = now_ms();
    flight_start(&flight, &plain_spec, rank, 2);
    atomic_fetch_add(&rank->words[0], 1);
    const zenps_error_t *error = flight_expect_absent(&flight, rank, between_workers(), 2, SOON_MS);
    CHECK(now_ms() - before < SOON_MS);
    CHECK(error->n_missing == 1 && error->missing_ranks[0] == 1);
    CHECK_SAYS(error->text, "rank 1");
    flight_end(&flight, &plain_spec);
    atomic_fetch_add(&rank->words[2], 1);
    rank_await(rank, 2, 2);
    if (rank->rank == 0) kill((pid_t)atomic_load(&rank->words[1]), SIGCONT);
  }
  rank_close(rank);
}

static void test_hung_rank(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 3, hangs, NULL, 0);
}

static void forks(struct rank *rank) {
  struct flight flight;
  zenps_tensor_t *other;
  rank_open(rank);
  flight.tensor = tensor_open(rank, "t", &plain_spec);
  flight_start(&flight, &plain_spec, rank, 1);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    alarm(300);
    CHECK_STATUS(zenps_test(flight.request), ZENPS_ERR_FORKED);
    CHECK_STATUS(zenps_wait(flight.request, -1), ZENPS_ERR_FORKED);
    CHECK_STATUS(zenps_cancel(flight.request), ZENPS_ERR_FORKED);
    CHECK_STATUS(zenps_barrier(rank->zenps), ZENPS_ERR_FORKED);
    CHECK_STATUS(zenps_tensor_open(rank->zenps, "u", 1, 1, ZENPS_F32, NULL, &other), ZENPS_ERR_FORKED);
    CHECK_STATUS(zenps_allreduce(flight.tensor, 2, &flight.in, &flight.out, &flight.request), ZENPS_ERR_FORKED);
    CHECK_SAYS(zenps_last_error()->text, "fork");
    zenps_request_free(flight.request);
    zenps_close(rank->zenps);
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK_OK(zenps_wait(flight.request, -1));
  out_check(&plain_spec, rank->world, 1, &flight.out);
  flight_end(&flight, &plain_spec);
  step_run(flight.tensor, &plain_spec, rank, 2);
  rank_close(rank);
}

static void test_fork(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 2, forks, NULL, 0);
}

/* TCP connections that this process has. */
static unsigned connections_here(void) {
  unsigned n = 0;
  for (int fd = 0; fd < 1024; fd++) {
    struct sockaddr_storage name;
    socklen_t len = sizeof name;
    n += getpeername(fd, (struct sockaddr *)&name, &len) == 0 &&
         (name.ss_family == AF_INET || name.ss_family == AF_INET6);
  }
  return n;
}

/* A rank is killed that has forked, as loaders of data do. Its child lives on, with none of the rank's connections. */
static void dies_with_child(struct rank *rank) {
  struct flight flight;
  flight_open(&flight, &plain_spec, rank);
  if (rank->rank == 1) {
    CHECK(connections_here() > 0);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      alarm(600);
      atomic_store(&rank->words[2], connections_here());
      atomic_store(&rank->words[1], (unsigned)getpid());
      for (;;) pause();
    }
    rank_await(rank, 0, 2);
    rank_await(rank, 1, 1);
    raise(SIGKILL);
  }
  rank_await(rank, 1, 1);
  flight_start(&flight, &plain_spec, rank, 2);
  atomic_fetch_add(&rank->words[0], 1);
  const zenps_error_t *error = flight_expect_error(&flight, rank, ZENPS_ERR_PEER_LOST, 2, SOON_MS);
  CHECK(error->n_missing == 1 && error->missing_ranks[0] == 1);
  CHECK(atomic_load(&rank->words[2]) == 0);
  atomic_fetch_add(&rank->words[3], 1);
  rank_await(rank, 3, 2);
  if (rank->rank == 0) CHECK(kill((pid_t)atomic_load(&rank->words[1]), SIGKILL) == 0); /* it was there until now */
  flight_end(&flight, &plain_spec);
  rank_close(rank);
}

static void test_killed_rank_with_child(void **state) {
  (void)state;
  struct cluster cluster;
  /* silence tells nothing */
  cluster_start_with(&cluster, 2, (const char *const[]){"ZENPS_CONTROL_DEAD=300s", NULL});
  ranks_run(&cluster, 3, dies_with_child, NULL, 1u << 1);
  cluster_stop(&cluster);
}

/* Everybody is stopped for longer than silence is allowed, as where a host is suspended, and goes on. */
static void sleeps(struct rank *rank) {
  struct flight flight;
  flight_open(&flight, &plain_spec, rank);
  atomic_fetch_add(&rank->words[0], 1);
  rank_await(rank, 1, 1); /* the sleep is over */
  const uint64_t until = now_ms() + 5500;
  uint64_t step = 2;
  do { /* longer than silence is allowed, and as often on all ranks */
    step_run(flight.tensor, &plain_spec, rank, step);
    if (rank->rank == 0) atomic_store(&rank->words[2], now_ms() < until ? (unsigned)step + 1 : 1);
    CHECK_OK(zenps_barrier(rank->zenps));
    step++;
  } while (atomic_load(&rank->words[2]) == (unsigned)step);
  CHECK_OK(zenps_tensor_close(tensor_open(rank, "new", &plain_spec))); /* asks the coordinator */
  rank_close(rank);
}

static void test_all_sleep(void **state) {
  (void)state;
  struct cluster cluster;
  struct ranks ranks;
  cluster_start_with(&cluster, 2,
                     (const char *const[]){"ZENPS_CONTROL_DEAD=4s", "ZENPS_CONTROL_HEARTBEAT=500ms", NULL});
  ranks_start(&ranks, &cluster, 2, sleeps, NULL);
  const uint64_t begun = now_ms();
  while (atomic_load(&ranks.words[0]) < 2 && now_ms() - begun < SOON_MS) usleep(1000);
  const pid_t all[] = {cluster.coordinator, cluster.servers[0], cluster.servers[1], ranks.pids[0], ranks.pids[1]};
  enum { N = sizeof all / sizeof all[0] };
  for (unsigned i = 0; i < N; i++) assert_int_equal(kill(all[i], SIGSTOP), 0);
  sleep(6);
  atomic_store(&ranks.words[1], 1);
  for (unsigned i = 0; i < N; i++) assert_int_equal(kill(all[i], SIGCONT), 0);
  ranks_wait(&ranks, 0);
  cluster_stop(&cluster);
}

/* A round that is under way waits for its third rank when the server dies. A rank that begins a round afterwards hears
 * of the death from the call itself, when the library already knows, or from the request. */
static void server_dies(struct rank *rank) {
  struct flight flight;
  flight_open(&flight, &plain_spec, rank);
  if (rank->rank != 2) {
    flight_start(&flight, &plain_spec, rank, 2);
    atomic_fetch_add(&rank->words[0], 1);
    rank_await(rank, 0, 3);
    if (rank->rank == 0) kill(rank->cluster->servers[0], SIGKILL);
    const zenps_error_t *error = flight_expect_error(&flight, rank, ZENPS_ERR_SERVER_LOST, 2, SOON_MS);
    CHECK_SAYS(error->text, "s0");
    flight_end(&flight, &plain_spec);
    atomic_fetch_add(&rank->words[1], 1);
  } else {
    zenps_grad_t in, out;
    zenps_request_t *request = NULL;
    atomic_fetch_add(&rank->words[0], 1);
    rank_await(rank, 1, 2);
    grad_make(&plain_spec, rank->rank, 2, &in);
    out_make(&plain_spec, &in, &out);
    zenps_status_t status = zenps_allreduce(flight.tensor, 2, &in, &out, &request);
    if (status == ZENPS_OK) status = zenps_wait(request, SOON_MS);
    CHECK_STATUS(status, ZENPS_ERR_SERVER_LOST);
    CHECK_SAYS(zenps_last_error()->text, "s0");
    zenps_request_free(request);
    out_free(&plain_spec, &in, &out);
    grad_free(&in);
  }
  rank_close(rank);
}

static void test_killed_server(void **state) {
  (void)state;
  struct cluster cluster;
  cluster_start_with(&cluster, 2, (const char *const[]){"ZENPS_COORDINATOR_SERVER_LOSS=fail", NULL});
  ranks_run(&cluster, 3, server_dies, NULL, 0);
  cluster_stop(&cluster);
}

static void server_hangs(struct rank *rank) {
  struct flight flight;
  rank->round_timeout_ms = 5000; /* before any process is declared dead */
  flight_open(&flight, &plain_spec, rank);
  atomic_fetch_add(&rank->words[0], 1);
  rank_await(rank, 0, 2);
  if (rank->rank == 0) {
    process_stop(rank->cluster->servers[1]);
    atomic_store(&rank->words[1], 1);
  }
  rank_await(rank, 1, 1);
  const uint64_t before = now_ms();
  flight_start(&flight, &plain_spec, rank, 2);
  const zenps_error_t *error = flight_expect_error(&flight, rank, ZENPS_ERR_TIMEOUT, 2, SOON_MS);
  CHECK(now_ms() - before < SOON_MS);
  CHECK_SAYS(error->text, "s1");
  flight_end(&flight, &plain_spec);
  rank_close(rank);
}

static void test_hung_server(void **state) {
  (void)state;
  if (between_workers() && !getenv("ZENPS_TEST_HOSTS")) skip(); /* no rank waits for a server */
  struct cluster cluster;
  /* Death is far off, so that rounds may take long enough for ranks that a busy machine starts seconds apart: a server
   * that waited for the later one until its own deadline would name that rank. */
  cluster_start_with(&cluster, 2, (const char *const[]){"ZENPS_CONTROL_DEAD=300s", NULL});
  ranks_run(&cluster, 2, server_hangs, NULL, 0);
  cluster_stop(&cluster);
}

static void quiet(void *ctx, int level, const char *component, const char *text) {
  struct rank *rank = ctx;
  (void)level;
  (void)component;
  if (strstr(text, "coordinator")) atomic_store(&rank->words[10 + rank->rank], 1);
}

static void coordinator_dies(struct rank *rank) {
  zenps_options_t options;
  zenps_tensor_t *other;
  rank->round_timeout_ms = 4000; /* so long a call waits for the coordinator to come back */
  rank_options(rank, &options);
  options.log = quiet;
  options.log_ctx = rank;
  CHECK_OK(zenps_open(&options, &rank->zenps));
  zenps_tensor_t *tensor = tensor_open(rank, "t", &plain_spec);
  step_run(tensor, &plain_spec, rank, 1);
  atomic_fetch_add(&rank->words[0], 1);
  rank_await(rank, 0, 2);
  if (rank->rank == 0) kill(rank->cluster->coordinator, SIGKILL);
  rank_await(rank, 10 + (unsigned)rank->rank, 1); /* the warning */
  step_run(tensor, &plain_spec, rank, 2);
  CHECK_STATUS(zenps_tensor_open(rank->zenps, "u", 10, 1, ZENPS_F32, NULL, &other), ZENPS_ERR_CONNECT);
  rank_close(rank);
}

static void test_killed_coordinator(void **state) {
  (void)state;
  struct cluster cluster;
  cluster_start(&cluster, 2);
  ranks_run(&cluster, 2, coordinator_dies, NULL, 0);
  cluster_stop(&cluster);
}

/* ------------------------------------------------------------ the coordinator at open */

/* A socket with any port of 127.0.0.1, which nobody else gets meanwhile. Connections are refused until it listens. */
static int bind_any(char *address, size_t size) {
  struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof name;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_true(fd >= 0);
  assert_int_equal(bind(fd, (struct sockaddr *)&name, sizeof name), 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *)&name, &len), 0);
  snprintf(address, size, "127.0.0.1:%u", ntohs(name.sin_port));
  return fd;
}

static void opens(struct rank *rank) {
  const zenps_status_t *wanted = rank->arg;
  zenps_options_t options;
  zenps_job_t *job;
  if (*wanted == ZENPS_ERR_CONNECT) rank->join_timeout_ms = 1500; /* nobody answers */
  rank_options(rank, &options);
  const uint64_t before = now_ms();
  CHECK_STATUS(zenps_open(&options, &job), *wanted);
  CHECK(now_ms() - before < SOON_MS);
  CHECK_SAYS(zenps_last_error()->text, *wanted == ZENPS_ERR_VERSION ? "protocol 99" : rank->cluster->address);
}

static void test_other_version(void **state) {
  (void)state;
  static const zenps_status_t wanted = ZENPS_ERR_VERSION;
  struct cluster cluster = {0};
  struct ranks ranks;
  char line[4096];
  const int fd = bind_any(cluster.address, sizeof cluster.address);
  assert_int_equal(listen(fd, 4), 0);
  ranks_start(&ranks, &cluster, 1, opens, &wanted);
  const int conn = accept(fd, NULL, NULL);
  assert_true(conn >= 0);
  const ssize_t len = read(conn, line, sizeof line - 1);
  assert_true(len > 0);
  line[len] = '\0';
  const char *id = strstr(line, "\"id\":");
  assert_non_null(id);
  char answer[512];
  const int n = snprintf(answer, sizeof answer,
                         "{\"jsonrpc\":\"2.0\",\"id\":%ld,\"error\":{\"code\":-9,\"message\":\"this coordinator speaks "
                         "protocol 99, the worker protocol 1\",\"data\":{\"name\":\"ERR_VERSION\"}}}\n",
                         strtol(id + 5, NULL, 10));
  assert_int_equal(write(conn, answer, (size_t)n), n);
  ranks_wait(&ranks, 0);
  close(conn);
  close(fd);
}

static void test_nobody_there(void **state) {
  (void)state;
  static const zenps_status_t wanted = ZENPS_ERR_CONNECT;
  struct cluster cluster = {0};
  const int fd = bind_any(cluster.address, sizeof cluster.address);
  ranks_run(&cluster, 1, opens, &wanted, 0);
  close(fd);
}

const struct CMUnitTest api_death_tests[] = {
    cmocka_unit_test(test_killed_rank),   cmocka_unit_test(test_hung_rank),
    cmocka_unit_test(test_fork),          cmocka_unit_test(test_killed_rank_with_child),
    cmocka_unit_test(test_all_sleep),     cmocka_unit_test(test_killed_server),
    cmocka_unit_test(test_hung_server),   cmocka_unit_test(test_killed_coordinator),
    cmocka_unit_test(test_other_version), cmocka_unit_test(test_nobody_there),
};
const size_t n_api_death_tests = sizeof api_death_tests / sizeof api_death_tests[0];
