/* Servers that are told to end, or drained by zenpsctl, while rounds are under way: the job goes on without them, no
 * step fails, every sum is right, and no server is lost. And servers that come, or are taken back, in their places, or
 * in places that were free from the beginning. */
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

#include "tests/integration/api_test.h"

enum { N_RANKS = 4, N_TENSORS = 2, WINDOW = 3, N_MOVES = 4 };
enum { AT, END }; /* the step that rank 0 has begun; the last one there is, 0: not known yet */

static const struct spec sparse = {
    .rows = 60000, .width = 4, .dtype = ZENPS_F32, .rows_in = true, .rows_out = true, .density = 0.1};
static const struct spec small = {.rows = 3000, .width = 1, .dtype = ZENPS_F32, .density = 0.05};
/* Of all rows, so that it does not matter which zeros a scheme sends. */
static const struct spec dense = {.rows = 20000, .width = 4, .dtype = ZENPS_F32, .density = 1};
static const struct spec small_dense = {.rows = 3000, .width = 1, .dtype = ZENPS_F32, .density = 1};

/* What happens to a server, a few steps after the one before. */
struct move {
  enum {
    NOTHING,
    TERMINATED,
    TERMINATED_TOO,
    KILLED,
    DRAINED,
    STARTED,   /* a server that has ended starts again, or a further one starts */
    UNDRAINED, /* taken back; the job takes it in */
    REBALANCED /* started, and taken in as zenpsctl wants it */
  } what;      /* _TOO: without waiting for the end of the one before */
  unsigned server;
};

struct scene {
  const char *scheme; /* NULL: balanced */
  unsigned n_servers;
  unsigned room, asked; /* server places, as the coordinator says, and as ranks do; 0: nothing */
  struct move moves[N_MOVES + 1];
};

static const struct spec *spec_of(const struct rank *rank, unsigned t) {
  const struct scene *scene = rank->arg;
  if (scene->scheme) return t > 0 ? &small_dense : &dense;
  return t > 0 ? &small : &sparse;
}

static zenps_tensor_t *open_by(const struct rank *rank, const char *name, const struct spec *spec) {
  return tensor_open_by(rank, ((const struct scene *)rank->arg)->scheme, name, spec);
}

static void end_flight(struct flight *flight, const struct rank *rank, const struct spec *spec, uint64_t step) {
  CHECK_OK(zenps_wait(flight->request, SOON_MS));
  if (((const struct scene *)rank->arg)->scheme) flight->out.nnz = spec->rows; /* other schemes' lists have all rows */
  out_check(spec, rank->world, step, &flight->out);
  flight_end(flight, spec);
}

/* No rank is further than WINDOW steps ahead of rank 0, which says where the end is. */
static bool goes_on(const struct rank *rank, uint64_t step) {
  const unsigned end = atomic_load(&rank->words[END]);
  return end == 0 || step <= end;
}

static void open_job(struct rank *rank) {
  const struct scene *scene = rank->arg;
  zenps_options_t options;
  rank_options(rank, &options);
  options.server_places = (int)scene->asked;
  CHECK_OK(zenps_open(&options, &rank->zenps));
  const unsigned places = scene->asked ? scene->asked : scene->room;
  CHECK(zenps_servers(rank->zenps) == (int)(places ? places : scene->n_servers));
}

static void trains(struct rank *rank) {
  struct flight flights[WINDOW][N_TENSORS];
  uint64_t step = 1;
  open_job(rank);
  for (unsigned t = 0; t < N_TENSORS; t++) {
    zenps_tensor_t *const tensor = open_by(rank, t ? "u" : "t", spec_of(rank, t));
    for (unsigned w = 0; w < WINDOW; w++) flights[w][t].tensor = tensor;
  }
  for (;; step++) {
    for (unsigned t = 0; step > WINDOW && t < N_TENSORS; t++)
      end_flight(&flights[step % WINDOW][t], rank, spec_of(rank, t), step - WINDOW);
    if (!goes_on(rank, step)) break;
    for (unsigned t = 0; t < N_TENSORS; t++) flight_start(&flights[step % WINDOW][t], spec_of(rank, t), rank, step);
    if (rank->rank == 0) atomic_store(&rank->words[AT], (unsigned)step);
  }
  for (uint64_t left = step + 1 - WINDOW; left < step; left++)
    for (unsigned t = 0; t < N_TENSORS; t++) end_flight(&flights[left % WINDOW][t], rank, spec_of(rank, t), left);
  struct flight later = {.tensor = open_by(rank, "later", spec_of(rank, 1))};
  flight_start(&later, spec_of(rank, 1), rank, 1);
  end_flight(&later, rank, spec_of(rank, 1), 1);
  rank_close(rank);
}

/* ------------------------------------------------------------ in the test's process */

static int ask(const struct cluster *cluster, const char *command, char *text, size_t size) {
  return cluster_ask(cluster->address, command, text, size);
}

/* It is without jobs when zenpsctl ends, and lives. */
static bool drains(const struct cluster *cluster, unsigned server) {
  char command[64], text[4096];
  snprintf(command, sizeof command, "drain s%u --wait=300s", server);
  return ask(cluster, command, text, sizeof text) == 0 && strstr(text, "\"outcome\": \"leaves\"") &&
         waitpid(cluster->servers[server], NULL, WNOHANG) == 0;
}

/* Of the one job. */
static unsigned epoch(const struct cluster *cluster) {
  char jobs[8192];
  unsigned number = 0;
  const char *const at = ask(cluster, "jobs", jobs, sizeof jobs) == 0 ? strstr(jobs, "\"epoch\":") : NULL;
  return at && sscanf(at, "\"epoch\": %u", &number) == 1 ? number : 0;
}

static void start_server(struct cluster *cluster, unsigned i) {
  if (i >= cluster->n_servers) cluster->n_servers = i + 1;
  cluster_start_server(cluster, i);
}

static bool is_taken_in(struct cluster *cluster, const struct move *move) {
  const uint64_t until = now_ms() + SOON_MS;
  const unsigned before = epoch(cluster);
  char command[64], text[4096];
  snprintf(command, sizeof command, "undrain s%u", move->server);
  if (move->what == STARTED) start_server(cluster, move->server);
  if (move->what == UNDRAINED && ask(cluster, command, text, sizeof text) != 0) return false;
  while (epoch(cluster) == before)
    if (now_ms() > until) return false;
  return before > 0;
}

static bool is_rebalanced(struct cluster *cluster, const struct move *move) {
  const uint64_t until = now_ms() + SOON_MS;
  char name[32], text[8192] = "";
  snprintf(name, sizeof name, "\"name\": \"s%u\"", move->server);
  start_server(cluster, move->server);
  while (ask(cluster, "members", text, sizeof text) != 0 || !strstr(text, name))
    if (now_ms() > until) return false;
  if (ask(cluster, "rebalance --wait=300s", text, sizeof text) != 0 || !strstr(text, "\"outcome\": \"moves\""))
    return false;
  return ask(cluster, "rebalance", text, sizeof text) == 0 && strstr(text, "\"outcome\": \"stays\"") &&
         (strstr(text, "servers and has them all") || strstr(text, "places have one") ||
          strstr(text, "places are free, and no server is there to take one"));
}

static bool move(struct cluster *cluster, const struct move *move) {
  const pid_t pid = cluster->servers[move->server];
  if (move->what == STARTED || move->what == UNDRAINED) return is_taken_in(cluster, move);
  if (move->what == REBALANCED) return is_rebalanced(cluster, move);
  if (move->what == DRAINED) return drains(cluster, move->server);
  kill(pid, move->what == KILLED ? SIGKILL : SIGTERM);
  return move[1].what == TERMINATED_TOO || move->what == KILLED || process_ends_well(pid);
}

/* The job has heard of each before the next, and goes on after the last. */
static bool move_all(struct cluster *cluster, const struct ranks *ranks, const struct move *moves) {
  unsigned at = 6;
  for (unsigned i = 0; moves[i].what; i++, at = atomic_load(&ranks->words[AT]) + 6)
    if (!ranks_get_to(ranks, AT, at) || !move(cluster, &moves[i])) return false;
  for (unsigned i = 1; moves[i].what; i++)
    if (moves[i].what == TERMINATED_TOO && !process_ends_well(cluster->servers[moves[i - 1].server])) return false;
  return ranks_get_to(ranks, AT, at);
}

static void run(const struct scene *scene) {
  struct cluster cluster;
  struct ranks ranks;
  char jobs[8192];
  char room[40];
  const char *const settings[] = {scene->room ? room : NULL, NULL};
  unsigned n_killed = 0, n_started = 0, n_lost = 0;
  snprintf(room, sizeof room, "ZENPS_JOB_SERVER_PLACES=%u", scene->room);
  cluster_start_with(&cluster, scene->n_servers, settings);
  ranks_start(&ranks, &cluster, N_RANKS, trains, scene);
  const bool moved = move_all(&cluster, &ranks, scene->moves);
  const int status = ask(&cluster, "jobs", jobs, sizeof jobs);
  atomic_store(&ranks.words[END], atomic_load(&ranks.words[AT]) + 2 * WINDOW);
  ranks_wait(&ranks, 0);
  assert_true(moved);
  assert_int_equal(status, 0);
  for (const struct move *at = scene->moves; at->what; at++) {
    n_killed += at->what == KILLED;
    n_started += at->what == STARTED && at > scene->moves && at[-1].what == KILLED;
  }
  const char *const lost = strstr(jobs, "\"servers_lost\":");
  assert_non_null(lost);
  assert_int_equal(sscanf(lost, "\"servers_lost\": %u", &n_lost), 1);
  assert_int_equal(n_lost, n_killed - n_started);
  cluster_stop(&cluster);
}

static void test_drained_server(void **state) {
  (void)state;
  run(&(struct scene){.n_servers = 3, .moves = {{TERMINATED, 1}}});
}

static void test_drained_one_after_another(void **state) {
  (void)state;
  run(&(struct scene){.n_servers = 4, .moves = {{TERMINATED, 2}, {TERMINATED, 0}, {TERMINATED, 3}}});
}

static void test_drained_together(void **state) {
  (void)state;
  run(&(struct scene){.n_servers = 4, .moves = {{TERMINATED, 3}, {TERMINATED_TOO, 1}}});
}

static void test_drained_and_lost(void **state) {
  (void)state;
  run(&(struct scene){.n_servers = 4, .moves = {{TERMINATED, 1}, {KILLED, 0}, {TERMINATED, 3}}});
}

static void test_drained_by_name(void **state) {
  (void)state;
  run(&(struct scene){.n_servers = 3, .moves = {{DRAINED, 2}, {KILLED, 0}}});
}

/* Of no job any more, so that it is not lost to any. */
static void test_drained_by_name_then_ended(void **state) {
  (void)state;
  run(&(struct scene){.n_servers = 3, .moves = {{DRAINED, 1}, {TERMINATED, 1}, {DRAINED, 0}}});
}

/* It has partitions again, which are lost with it again. */
static void test_started_in_its_place(void **state) {
  (void)state;
  run(&(struct scene){.n_servers = 3, .moves = {{KILLED, 1}, {STARTED, 1}, {KILLED, 1}, {KILLED, 0}}});
}

/* No server is left of those that the job began with. */
static void test_started_one_after_another(void **state) {
  (void)state;
  run(&(struct scene){.n_servers = 2, .moves = {{TERMINATED, 0}, {STARTED, 0}, {TERMINATED, 1}, {STARTED, 1}}});
}

/* The same process, at the same address. */
static void test_undrained(void **state) {
  (void)state;
  run(&(struct scene){.n_servers = 2, .moves = {{DRAINED, 1}, {UNDRAINED, 1}, {KILLED, 0}}});
}

static void test_rebalanced(void **state) {
  (void)state;
  run(&(struct scene){.n_servers = 3, .moves = {{TERMINATED, 1}, {REBALANCED, 1}, {TERMINATED, 0}}});
}

/* In the end the job has none of the servers that it began with. */
static void test_more_than_it_began_with(void **state) {
  (void)state;
  run(&(struct scene){
      .n_servers = 2, .room = 4, .moves = {{STARTED, 2}, {REBALANCED, 3}, {KILLED, 0}, {TERMINATED, 1}}});
  run(&(struct scene){.n_servers = 1, .asked = 3, .moves = {{REBALANCED, 1}, {KILLED, 0}, {STARTED, 0}, {DRAINED, 1}}});
}

static void test_more_under_other_schemes(void **state) {
  (void)state;
  run(&(struct scene){.scheme = "sparse-ps", .n_servers = 2, .room = 3, .moves = {{REBALANCED, 2}, {KILLED, 0}}});
  run(&(struct scene){.scheme = "omnireduce", .n_servers = 1, .asked = 2, .moves = {{REBALANCED, 1}, {KILLED, 0}}});
  run(&(struct scene){.scheme = "auto", .n_servers = 2, .asked = 3, .moves = {{REBALANCED, 2}, {TERMINATED, 1}}});
}

static void test_started_under_other_schemes(void **state) {
  (void)state;
  run(&(struct scene){.scheme = "sparse-ps", .n_servers = 2, .moves = {{KILLED, 1}, {STARTED, 1}, {KILLED, 0}}});
  run(&(struct scene){.scheme = "auto", .n_servers = 2, .moves = {{TERMINATED, 0}, {STARTED, 0}}});
}

/* ------------------------------------------------------------ a job that stays */

/* Each rank has pushed, and none has pulled, when a server drains. */
static void pulls(struct rank *rank) {
  zenps_grad_t in, out;
  zenps_request_t *request;
  rank_open(rank);
  zenps_tensor_t *const tensor = tensor_open_served(rank, "t", &sparse);
  grad_make(&sparse, rank->rank, 1, &in);
  out_make(&sparse, &in, &out);
  CHECK_OK(zenps_push(tensor, 1, &in, &request));
  request_wait_ok(request);
  tensor_open_served(rank, "later", &small); /* so the coordinator has read what it was told before */
  atomic_fetch_add(&rank->words[AT], 1);
  rank_await(rank, END, 1);
  CHECK_OK(zenps_pull(tensor, 1, NULL, &out, &request));
  request_wait_ok(request);
  out_check(&sparse, rank->world, 1, &out);
  out_free(&sparse, &in, &out);
  grad_free(&in);
  step_run(tensor, &sparse, rank, 2);
  rank_close(rank);
}

static void test_drained_with_sums_for_pulls(void **state) {
  (void)state;
  struct cluster cluster;
  struct ranks ranks;
  char stays[4096], waited[4096];
  cluster_start(&cluster, 2);
  ranks_start(&ranks, &cluster, 2, pulls, NULL);
  const bool pushed = ranks_get_to(&ranks, AT, 2);
  const int status = ask(&cluster, "drain s0", stays, sizeof stays);
  atomic_store(&ranks.words[END], 1);
  ranks_wait(&ranks, 0);
  const int at_end = ask(&cluster, "drain s0 --wait=300s", waited, sizeof waited);
  cluster_stop(&cluster);
  assert_true(pushed && status == 0 && at_end == 0);
  assert_non_null(strstr(stays, "\"outcome\": \"stays\""));
  assert_non_null(strstr(stays, "servers keep sums for zenps_pull()"));
}

static void test_drained_under_other_schemes(void **state) {
  (void)state;
  run(&(struct scene){.scheme = "sparse-ps", .n_servers = 2, .moves = {{TERMINATED, 1}}});
  run(&(struct scene){.scheme = "omnireduce", .n_servers = 3, .moves = {{TERMINATED, 1}}});
  run(&(struct scene){.scheme = "auto", .n_servers = 3, .moves = {{TERMINATED, 2}}});
}

const struct CMUnitTest api_drain_tests[] = {
    cmocka_unit_test(test_drained_server),
    cmocka_unit_test(test_drained_one_after_another),
    cmocka_unit_test(test_drained_together),
    cmocka_unit_test(test_drained_and_lost),
    cmocka_unit_test(test_drained_with_sums_for_pulls),
    cmocka_unit_test(test_drained_by_name),
    cmocka_unit_test(test_drained_by_name_then_ended),
    cmocka_unit_test(test_drained_under_other_schemes),
    cmocka_unit_test(test_started_in_its_place),
    cmocka_unit_test(test_started_one_after_another),
    cmocka_unit_test(test_undrained),
    cmocka_unit_test(test_rebalanced),
    cmocka_unit_test(test_started_under_other_schemes),
    cmocka_unit_test(test_more_than_it_began_with),
    cmocka_unit_test(test_more_under_other_schemes),
};
const size_t n_api_drain_tests = sizeof api_drain_tests / sizeof api_drain_tests[0];
