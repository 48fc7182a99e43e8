/* The data plane is lost between processes that live and that the coordinator reaches: a job goes on without the server
 * that is cut off, and a rank that is cut off is lost. An endpoint that falls silent stands for a network that drops
 * what comes from it and goes to it: no other process's fabric notices anything. */
#include "tests/integration/api_test.h"

enum { N_RANKS = 4, N_SERVERS = 3, WINDOW = 3, N_STEPS = 40, DEAD_MS = 8000 };
enum { N_TENSORS = N_SERVERS }; /* small ones lie on one server each, one after the other: all servers have one */

static const char *const quick[] = {"ZENPS_CONTROL_DEAD=8s", "ZENPS_CONTROL_HEARTBEAT=500ms", NULL};

/* Sums of either are in the frames that announce them. */
static const struct spec small = {.rows = 3000, .width = 1, .dtype = ZENPS_F32, .density = 0.05};
static const struct spec list = {
    .rows = 2000, .width = 2, .dtype = ZENPS_F32, .rows_in = true, .rows_out = true, .density = 0.02};

static const struct spec *spec_of(unsigned t) {
  return t > 0 ? &small : &list;
}

static void end_step(struct flight *flights, const struct rank *rank, uint64_t step) {
  for (unsigned t = 0; t < N_TENSORS; t++) {
    CHECK_OK(zenps_wait(flights[t].request, SOON_MS));
    out_check(spec_of(t), rank->world, step, &flights[t].out);
    flight_end(&flights[t], spec_of(t));
  }
}

/* An administrator sees which server it is, and who could not reach it. */
static void check_members(const struct rank *rank) {
  const uint64_t until = now_ms() + SOON_MS;
  char text[16384] = "";
  const char *row = NULL;
  zenps_options_t options;
  rank_options(rank, &options);
  while (!row) { /* It may have a place at this moment, until it is missed again. */
    CHECK(now_ms() < until);
    if (cluster_ask(options.coordinator, "members", text, sizeof text) == 0) row = strstr(text, "\"unreachable\":");
  }
  CHECK_SAYS(row, "\"name\": \"s1\"");
  CHECK_SAYS(row, "\"rank\": ");
  CHECK_SAYS(row, "\"out_s\": ");
  CHECK_SAYS(row, "\"again_s\": ");
  CHECK_SAYS(row, "no frame has come");
}

static void trains(struct rank *rank) {
  struct flight flights[WINDOW][N_TENSORS];
  uint64_t slowest_ms = 0;
  rank_open(rank);
  for (unsigned t = 0; t < N_TENSORS; t++) {
    static const char *const names[N_TENSORS] = {"t", "u", "v"};
    zenps_tensor_t *const tensor = tensor_open_by(rank, NULL, names[t], spec_of(t));
    for (unsigned w = 0; w < WINDOW; w++) flights[w][t].tensor = tensor;
  }
  for (uint64_t step = 1; step < N_STEPS + WINDOW; step++) {
    const uint64_t before_ms = now_ms();
    if (step > WINDOW - 1) end_step(flights[(step + 1) % WINDOW], rank, step - WINDOW + 1);
    if (now_ms() - before_ms > slowest_ms) slowest_ms = now_ms() - before_ms;
    if (step > N_STEPS) continue;
    for (unsigned t = 0; t < N_TENSORS; t++) flight_start(&flights[step % WINDOW][t], spec_of(t), rank, step);
  }
  CHECK(slowest_ms > DEAD_MS / 2); /* the server was missed */
  if (rank->rank == 0) check_members(rank);
  struct flight later = {.tensor = tensor_open_by(rank, NULL, "later", &small)};
  flight_start(&later, &small, rank, 1);
  CHECK_OK(zenps_wait(later.request, SOON_MS));
  out_check(&small, rank->world, 1, &later.out);
  flight_end(&later, &small);
  rank_close(rank);
}

/* The server is there for another job, which does without it in its turn. */
static void test_cut_server(void **state) {
  (void)state;
  struct cluster cluster;
  cluster_start_but(&cluster, N_SERVERS, quick, 1,
                    (const char *const[]){"ZENPS_PROVIDER=fault+auto", "ZENPS_FABRIC_FAULT=kill=90", NULL});
  for (unsigned i = 0; i < 2; i++) ranks_run(&cluster, N_RANKS, trains, NULL, 0);
  cluster_stop(&cluster);
}

/* Every rank hears at once why its round fails. */
static void fails(struct rank *rank) {
  const zenps_status_t wanted = *(const zenps_status_t *)rank->arg;
  const bool is_cut = wanted == ZENPS_ERR_PEER_LOST && rank->rank == 2;
  zenps_status_t status = ZENPS_OK;
  if (is_cut) {
    setenv("ZENPS_PROVIDER", "fault+auto", 1);
    setenv("ZENPS_FABRIC_FAULT", "kill=90", 1);
  }
  rank_open(rank);
  zenps_tensor_t *const tensor = tensor_open_by(rank, NULL, "t", &small);
  for (uint64_t step = 1; step < 500 && status == ZENPS_OK; step++) {
    struct flight flight = {.tensor = tensor};
    const uint64_t before_ms = now_ms();
    flight_start(&flight, &small, rank, step);
    status = zenps_wait(flight.request, SOON_MS);
    CHECK(now_ms() - before_ms < SOON_MS);
    if (status == ZENPS_OK) out_check(&small, rank->world, step, &flight.out);
    flight_end(&flight, &small);
  }
  CHECK_STATUS(status, wanted);
  CHECK_SAYS(zenps_last_error()->text, "over the data plane");
  if (wanted == ZENPS_ERR_PEER_LOST) {
    CHECK_SAYS(zenps_last_error()->text, "rank 2");
    CHECK(zenps_last_error()->n_missing == 1 && zenps_last_error()->missing_ranks[0] == 2);
  }
  rank_close(rank);
}

static void test_cut_rank(void **state) {
  (void)state;
  static const zenps_status_t wanted = ZENPS_ERR_PEER_LOST;
  struct cluster cluster;
  cluster_start_with(&cluster, N_SERVERS, quick);
  ranks_run(&cluster, N_RANKS, fails, &wanted, 0);
  cluster_stop(&cluster);
}

static void test_cut_only_server(void **state) {
  (void)state;
  static const zenps_status_t wanted = ZENPS_ERR_SERVER_LOST;
  struct cluster cluster;
  cluster_start_but(&cluster, 1, quick, 0,
                    (const char *const[]){"ZENPS_PROVIDER=fault+auto", "ZENPS_FABRIC_FAULT=kill=90", NULL});
  ranks_run(&cluster, 2, fails, &wanted, 0);
  cluster_stop(&cluster);
}

const struct CMUnitTest api_cut_tests[] = {
    cmocka_unit_test(test_cut_server),
    cmocka_unit_test(test_cut_rank),
    cmocka_unit_test(test_cut_only_server),
};
const size_t n_api_cut_tests = sizeof api_cut_tests / sizeof api_cut_tests[0];
