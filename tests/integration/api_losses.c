/* Servers that are lost while rounds are under way: the job goes on without them, and every sum is right. */
#include <signal.h>

#include "tests/integration/api_test.h"

enum { N_RANKS = 4, N_TENSORS = 2, WINDOW = 3, N_STEPS = 30 };

static const struct spec sparse = {
    .rows = 60000, .width = 4, .dtype = ZENPS_F32, .rows_in = true, .rows_out = true, .density = 0.1};
static const struct spec small = {.rows = 3000, .width = 1, .dtype = ZENPS_F32, .density = 0.05};
/* Of all rows, so that it does not matter which zeros a scheme sends. */
static const struct spec dense = {.rows = 20000, .width = 4, .dtype = ZENPS_F32, .density = 1};
static const struct spec small_dense = {.rows = 3000, .width = 1, .dtype = ZENPS_F32, .density = 1};

/* What happens to a server, when the first rank has begun the step. */
struct loss {
  uint64_t step;
  unsigned server;
  int signal;
};

struct scene {
  const char *scheme; /* NULL: balanced */
  unsigned n_servers;
  struct loss losses[4]; /* those with a signal */
};

static const struct spec *spec_of(const struct rank *rank, unsigned t) {
  const struct scene *scene = rank->arg;
  if (scene->scheme) return t > 0 ? &small_dense : &dense;
  return t > 0 ? &small : &sparse;
}

static zenps_tensor_t *open_by(const struct rank *rank, const char *name, const struct spec *spec) {
  return tensor_open_by(rank, ((const struct scene *)rank->arg)->scheme, name, spec);
}

static void lose_at(const struct rank *rank, uint64_t step) {
  const struct scene *scene = rank->arg;
  for (const struct loss *loss = scene->losses; loss->signal; loss++)
    if (loss->step == step && rank->rank == 0) CHECK(kill(rank->cluster->servers[loss->server], loss->signal) == 0);
}

/* Rows, or what else the scheme sends. */
static void check(const struct rank *rank, const struct spec *spec, uint64_t step, zenps_grad_t *out) {
  if (((const struct scene *)rank->arg)->scheme) out->nnz = spec->rows;
  out_check(spec, rank->world, step, out);
}

static void end_step(struct flight *flights, const struct rank *rank, uint64_t step) {
  for (unsigned t = 0; t < N_TENSORS; t++) {
    CHECK_OK(zenps_wait(flights[t].request, SOON_MS));
    check(rank, spec_of(rank, t), step, &flights[t].out);
    flight_end(&flights[t], spec_of(rank, t));
  }
}

/* Several steps of several tensors under way at any time. */
static void trains(struct rank *rank) {
  struct flight flights[WINDOW][N_TENSORS];
  rank_open(rank);
  for (unsigned t = 0; t < N_TENSORS; t++) {
    zenps_tensor_t *const tensor = open_by(rank, t ? "u" : "t", spec_of(rank, t));
    for (unsigned w = 0; w < WINDOW; w++) flights[w][t].tensor = tensor;
  }
  for (uint64_t step = 1; step < N_STEPS + WINDOW; step++) {
    if (step > WINDOW - 1) end_step(flights[(step + 1) % WINDOW], rank, step - WINDOW + 1);
    if (step > N_STEPS) continue;
    for (unsigned t = 0; t < N_TENSORS; t++) flight_start(&flights[step % WINDOW][t], spec_of(rank, t), rank, step);
    lose_at(rank, step);
  }
  struct flight later = {.tensor = open_by(rank, "later", spec_of(rank, 1))};
  flight_start(&later, spec_of(rank, 1), rank, 1);
  CHECK_OK(zenps_wait(later.request, SOON_MS));
  check(rank, spec_of(rank, 1), 1, &later.out);
  flight_end(&later, spec_of(rank, 1));
  rank_close(rank);
}

static void run(const struct scene *scene) {
  struct cluster cluster;
  cluster_start(&cluster, scene->n_servers);
  ranks_run(&cluster, N_RANKS, trains, scene, 0);
  cluster_stop(&cluster);
}

static void test_lost_server(void **state) {
  (void)state;
  run(&(struct scene){.n_servers = 3, .losses = {{8, 1, SIGKILL}}});
}

static void test_lost_one_after_another(void **state) {
  (void)state;
  run(&(struct scene){.n_servers = 4, .losses = {{6, 2, SIGKILL}, {12, 0, SIGKILL}, {18, 3, SIGKILL}}});
}

static void test_lost_together(void **state) {
  (void)state;
  run(&(struct scene){.n_servers = 4, .losses = {{8, 3, SIGKILL}, {8, 1, SIGKILL}, {9, 0, SIGKILL}}});
}

static void test_lost_at_the_start(void **state) {
  (void)state;
  run(&(struct scene){.n_servers = 3, .losses = {{1, 0, SIGKILL}}});
}

static void test_lost_under_other_schemes(void **state) {
  (void)state;
  run(&(struct scene){.scheme = "sparse-ps", .n_servers = 2, .losses = {{8, 1, SIGKILL}}});
  run(&(struct scene){.scheme = "dense-ps", .n_servers = 2, .losses = {{8, 0, SIGKILL}}});
  run(&(struct scene){.scheme = "omnireduce", .n_servers = 3, .losses = {{8, 1, SIGKILL}, {16, 0, SIGKILL}}});
  run(&(struct scene){.scheme = "auto", .n_servers = 3, .losses = {{8, 2, SIGKILL}}});
}

/* It is lost by its silence, and there again when the job has gone on: the next job has it, and loses the others. */
static void test_lost_server_wakes_up(void **state) {
  (void)state;
  static const struct scene sleeps = {.losses = {{8, 1, SIGSTOP}, {15, 1, SIGCONT}}};
  static const struct scene dies = {.losses = {{8, 0, SIGKILL}, {16, 2, SIGKILL}}};
  struct cluster cluster;
  cluster_start_with(&cluster, 3,
                     (const char *const[]){"ZENPS_CONTROL_DEAD=4s", "ZENPS_CONTROL_HEARTBEAT=500ms", NULL});
  ranks_run(&cluster, N_RANKS, trains, &sleeps, 0);
  ranks_run(&cluster, N_RANKS, trains, &dies, 0);
  cluster_stop(&cluster);
}

/* A round that waits for its third rank when the server dies. */
static void waits(struct rank *rank) {
  struct flight flight;
  flight_open(&flight, &plain_spec, rank);
  if (rank->rank != 2) flight_start(&flight, &plain_spec, rank, 2);
  atomic_fetch_add(&rank->words[0], 1);
  rank_await(rank, 0, 3);
  if (rank->rank == 0) {
    kill(rank->cluster->servers[0], SIGKILL);
    atomic_store(&rank->words[1], 1);
  }
  rank_await(rank, 1, 1);
  if (rank->rank == 2) flight_start(&flight, &plain_spec, rank, 2);
  CHECK_OK(zenps_wait(flight.request, SOON_MS));
  out_check(&plain_spec, rank->world, 2, &flight.out);
  flight_end(&flight, &plain_spec);
  rank_close(rank);
}

static void test_lost_while_one_is_late(void **state) {
  (void)state;
  struct cluster cluster;
  cluster_start(&cluster, 2);
  ranks_run(&cluster, 3, waits, NULL, 0);
  cluster_stop(&cluster);
}

/* ------------------------------------------------------------ sums that servers keep for pulls */

static zenps_status_t pull(zenps_tensor_t *tensor, uint64_t step, zenps_grad_t *out) {
  zenps_request_t *request;
  zenps_status_t status = zenps_pull(tensor, step, NULL, out, &request);
  if (status != ZENPS_OK) return status;
  status = zenps_wait(request, SOON_MS);
  zenps_request_free(request);
  return status;
}

static void push(zenps_tensor_t *tensor, uint64_t step, const zenps_grad_t *in) {
  zenps_request_t *request;
  CHECK_OK(zenps_push(tensor, step, in, &request));
  request_wait_ok(request);
}

/* All have pushed step 1, none has pulled it, when a server dies: its sum is lost with it, and made again. */
static void pulls(struct rank *rank) {
  zenps_grad_t in, out;
  rank_open(rank);
  zenps_tensor_t *const tensor = tensor_open_served(rank, "t", &sparse);
  grad_make(&sparse, rank->rank, 1, &in);
  out_make(&sparse, &in, &out);
  push(tensor, 1, &in);
  CHECK_OK(zenps_barrier(rank->zenps));
  if (rank->rank == 0) {
    process_stop(rank->cluster->servers[0]); /* a process that dies may answer a little longer */
    kill(rank->cluster->servers[0], SIGKILL);
    atomic_store(&rank->words[0], 1);
  }
  rank_await(rank, 0, 1);
  if (rank->arg) step_run(tensor, &sparse, rank, 2); /* the loss is known by then */
  CHECK_STATUS(pull(tensor, 1, &out), ZENPS_ERR_SERVER_LOST);
  CHECK_OK(zenps_barrier(rank->zenps));
  push(tensor, 1, &in);
  CHECK_OK(pull(tensor, 1, &out));
  out_check(&sparse, rank->world, 1, &out);
  out_free(&sparse, &in, &out);
  grad_free(&in);
  step_run(tensor, &sparse, rank, 3);
  rank_close(rank);
}

static void test_lost_with_sums_for_pulls(void **state) {
  (void)state;
  static const bool is_known = true;
  const bool *const args[] = {&is_known, NULL};
  for (unsigned i = 0; i < 2; i++) {
    struct cluster cluster;
    cluster_start(&cluster, 2);
    ranks_run(&cluster, 2, pulls, args[i], 0);
    cluster_stop(&cluster);
  }
}

/* ------------------------------------------------------------ the last server */

/* The job ends, and says so, in whichever step a rank happens to be: rank 0 is a little ahead when it kills. */
static void loses_all(struct rank *rank) {
  rank_open(rank);
  zenps_tensor_t *const tensor = tensor_open_served(rank, "t", &plain_spec);
  zenps_status_t status = ZENPS_OK;
  for (uint64_t step = 1; status == ZENPS_OK && step < 2000; step++) {
    zenps_grad_t in, out;
    zenps_request_t *request = NULL;
    grad_make(&plain_spec, rank->rank, step, &in);
    out_make(&plain_spec, &in, &out);
    status = zenps_allreduce(tensor, step, &in, &out, &request);
    if (status == ZENPS_OK) status = zenps_wait(request, SOON_MS);
    if (status != ZENPS_OK) CHECK_SAYS(zenps_last_error()->text, " was lost");
    zenps_request_free(request);
    out_free(&plain_spec, &in, &out);
    grad_free(&in);
    for (unsigned s = 0; rank->rank == 0 && step == 1 && s < rank->cluster->n_servers; s++)
      kill(rank->cluster->servers[s], SIGKILL);
  }
  CHECK_STATUS(status, ZENPS_ERR_SERVER_LOST);
  rank_close(rank);
}

static void test_lost_all(void **state) {
  (void)state;
  struct cluster cluster;
  cluster_start(&cluster, 2);
  ranks_run(&cluster, 2, loses_all, NULL, 0);
  cluster_stop(&cluster);
}

const struct CMUnitTest api_loss_tests[] = {
    cmocka_unit_test(test_lost_server),
    cmocka_unit_test(test_lost_one_after_another),
    cmocka_unit_test(test_lost_together),
    cmocka_unit_test(test_lost_at_the_start),
    cmocka_unit_test(test_lost_under_other_schemes),
    cmocka_unit_test(test_lost_server_wakes_up),
    cmocka_unit_test(test_lost_while_one_is_late),
    cmocka_unit_test(test_lost_with_sums_for_pulls),
    cmocka_unit_test(test_lost_all),
};
const size_t n_api_loss_tests = sizeof api_loss_tests / sizeof api_loss_tests[0];
