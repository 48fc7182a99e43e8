/* Rounds that fail, on all ranks or on some of them, while no rank is lost: training goes on, and later rounds are
 * right. */
#include <signal.h>

#include "tests/integration/api_test.h"

enum { N_RANKS = 3, LATE, READY, STOPPED, CONTINUES, COMPARED, RESULTS = 16 }; /* words */

/* Schemes that drop rows have the same result on all ranks, if not the sum. */
static void compare_ranks(const struct rank *rank, const struct flight *flight, const struct spec *spec) {
  const unsigned turn = atomic_load(&rank->words[RESULTS + (unsigned)rank->rank]) + 1;
  const unsigned char *bytes = flight->out.values;
  unsigned sum = 2166136261u;
  for (uint64_t i = 0; i < spec->rows * spec->width * sizeof(float); i++) sum = (sum ^ bytes[i]) * 16777619u;
  CHECK(flight->out.nnz > 0 && flight->out.nnz < spec->rows);
  atomic_store(&rank->words[RESULTS + (unsigned)rank->rank], turn);
  atomic_store(&rank->words[RESULTS + (turn % 2 + 1) * N_RANKS + (unsigned)rank->rank], sum);
  atomic_fetch_add(&rank->words[COMPARED], 1);
  rank_await(rank, COMPARED, N_RANKS * turn);
  for (unsigned r = 0; r < N_RANKS; r++)
    CHECK(atomic_load(&rank->words[RESULTS + (turn % 2 + 1) * N_RANKS + r]) == sum);
}

static void end_well(const struct rank *rank, struct flight *flight, const struct spec *spec, uint64_t step) {
  CHECK_OK(zenps_wait(flight->request, -1));
  if (spec->options.scheme && strstr(spec->options.scheme, ":k=")) {
    compare_ranks(rank, flight, spec);
  } else {
    out_check(spec, rank->world, step, &flight->out);
  }
  flight_end(flight, spec);
}

static void go_well(const struct rank *rank, struct flight *flight, const struct spec *spec, uint64_t step) {
  flight_start(flight, spec, rank, step);
  end_well(rank, flight, spec, step);
}

static const char *const served[] = {"balanced", "sparse-ps", "dense-ps"};

static bool goes_between_workers(const struct spec *spec) {
  if (!spec->options.scheme) return between_workers();
  for (unsigned i = 0; i < sizeof served / sizeof *served; i++)
    if (strcmp(spec->options.scheme, served[i]) == 0) return false;
  return true;
}

/* Two ranks wait for the third, which does not come. */
static void one_is_late(const struct rank *rank, struct flight *flight, const struct spec *spec, uint64_t step) {
  if (rank->rank == 1) {
    rank_await(rank, LATE, N_RANKS - 1);
    return;
  }
  flight_start(flight, spec, rank, step);
  const zenps_error_t *error = flight_expect_absent(flight, rank, goes_between_workers(spec), step, SOON_MS);
  CHECK(error->n_missing == 1 && error->missing_ranks[0] == 1);
  flight_end(flight, spec);
  atomic_fetch_add(&rank->words[LATE], 1);
}

/* All ranks are in the midst of the round when one rank stops: that rank may have sent everything, or nothing. None is
 * in an earlier round, whose last frames a rank may still have to send when its own part has ended. */
static void one_stops(const struct rank *rank, struct flight *flight, const struct spec *spec, uint64_t step) {
  atomic_fetch_add(&rank->words[READY], 1);
  if (rank->rank == 1) rank_await(rank, READY, N_RANKS);
  flight_start(flight, spec, rank, step);
  if (rank->rank == 1) {
    atomic_store(&rank->words[STOPPED], (unsigned)getpid());
    raise(SIGSTOP);
    atomic_store(&rank->words[CONTINUES], 1);
  }
  const zenps_status_t status = zenps_wait(flight->request, -1);
  CHECK(status == ZENPS_OK || status == ZENPS_ERR_TIMEOUT || status == ZENPS_ERR_MISSING);
  flight_end(flight, spec);
  if (rank->rank != 0) return;
  rank_await(rank, STOPPED, 1);
  while (!atomic_load(&rank->words[CONTINUES])) kill((pid_t)atomic_load(&rank->words[STOPPED]), SIGCONT);
}

/* One rank takes its part back while the next step is under way already. */
static void one_cancels(const struct rank *rank, struct flight *flight, const struct spec *spec, uint64_t step) {
  struct flight next = {.tensor = flight->tensor};
  flight_start(flight, spec, rank, step);
  if (step % 4 < 2) flight_start(&next, spec, rank, step + 1);
  if ((uint64_t)rank->rank == step / 2 % N_RANKS) {
    for (volatile uint64_t i = 0; i < step * 3000 * (spec->rows / plain_spec.rows); i++) continue;
    CHECK_OK(zenps_cancel(flight->request));
  }
  const zenps_status_t status = zenps_wait(flight->request, -1);
  CHECK(status == ZENPS_OK || status == ZENPS_ERR_CANCELED);
  flight_end(flight, spec);
  if (step % 4 >= 2) flight_start(&next, spec, rank, step + 1);
  end_well(rank, &next, spec, step + 1);
}

static void recovers(struct rank *rank) {
  const struct spec spec = *(const struct spec *)rank->arg;
  struct flight flight;
  rank->round_timeout_ms = 2500;
  rank_open(rank);
  flight.tensor = tensor_open(rank, "t", &spec);
  go_well(rank, &flight, &spec, 1);
  go_well(rank, &flight, &spec, 2);
  one_is_late(rank, &flight, &spec, 3);
  go_well(rank, &flight, &spec, 4);
  go_well(rank, &flight, &spec, 5);
  one_stops(rank, &flight, &spec, 6);
  go_well(rank, &flight, &spec, 7);
  for (uint64_t step = 8; step < 68; step += 2) one_cancels(rank, &flight, &spec, step);
  rank_close(rank);
}

static void test_recovery(void **state) {
  (void)state;
  ranks_run(cluster_shared(), N_RANKS, recovers, &plain_spec, 0);
}

static void recover_with(const char *scheme) {
  struct spec spec = plain_spec;
  ZENPS_TENSOR_OPTIONS_INIT(&spec.options);
  spec.options.scheme = scheme;
  ranks_run(cluster_shared(), N_RANKS, recovers, &spec, 0);
}

/* Of all rows nothing is dropped: sums show. */
static void test_recovery_oktopk_all(void **state) {
  (void)state;
  recover_with("oktopk:density=1");
}

static void test_recovery_oktopk_some(void **state) {
  (void)state;
  recover_with("oktopk:k=300");
}

/* A step that has failed, as soon as nothing of it is under way any more. */
static void start_again(struct flight *flight, const struct spec *spec, const struct rank *rank, uint64_t step) {
  grad_make(spec, rank->rank, step, &flight->in);
  out_make(spec, &flight->in, &flight->out);
  for (;;) {
    const zenps_status_t status = zenps_allreduce(flight->tensor, step, &flight->in, &flight->out, &flight->request);
    if (status == ZENPS_OK) break;
    CHECK(status == ZENPS_ERR_BUSY);
    usleep(1000);
  }
}

/* Over servers a number stays failed: whoever comes with it, for the first time or again, is told how it ended. Under
 * another one all goes well. */
static void keeps_its_number(struct rank *rank) {
  const struct spec spec = *(const struct spec *)rank->arg;
  struct flight flight;
  rank->round_timeout_ms = 2500;
  rank_open(rank);
  flight.tensor = tensor_open(rank, "t", &spec);
  go_well(rank, &flight, &spec, 1);
  one_is_late(rank, &flight, &spec, 2);
  rank_await(rank, LATE, N_RANKS - 1);
  start_again(&flight, &spec, rank, 2);
  const zenps_error_t *error = flight_expect_error(&flight, rank, ZENPS_ERR_MISSING, 2, SOON_MS);
  CHECK(error->n_missing == 1 && error->missing_ranks[0] == 1);
  flight_end(&flight, &spec);
  go_well(rank, &flight, &spec, 3);
  rank_close(rank);
}

static void test_failed_number_over_servers(void **state) {
  (void)state;
  struct spec spec = plain_spec;
  ZENPS_TENSOR_OPTIONS_INIT(&spec.options);
  for (unsigned i = 0; i < sizeof served / sizeof *served; i++) {
    spec.options.scheme = served[i];
    ranks_run(cluster_shared(), N_RANKS, keeps_its_number, &spec, 0);
  }
}

/* A rank that begins when the others have given up is told at once, by no deadline of its own. All may try that step
 * again. */
static void begins_late(struct rank *rank) {
  const struct spec spec = *(const struct spec *)rank->arg;
  struct flight flight;
  if (rank->rank != 1) rank->round_timeout_ms = 2000;
  rank_open(rank);
  flight.tensor = tensor_open(rank, "t", &spec);
  go_well(rank, &flight, &spec, 1);
  if (rank->rank == 1) rank_await(rank, LATE, N_RANKS - 1);
  flight_start(&flight, &spec, rank, 2);
  CHECK_STATUS(zenps_wait(flight.request, SOON_MS), ZENPS_ERR_TIMEOUT);
  flight_end(&flight, &spec);
  atomic_fetch_add(&rank->words[LATE], 1);
  rank_await(rank, LATE, N_RANKS);
  start_again(&flight, &spec, rank, 2);
  end_well(rank, &flight, &spec, 2);
  rank_close(rank);
}

/* Ranks read each other's gradients in place. A rank that gets its gradient back, from a round that went well or
 * failed, spoils it, and the system unmaps a large one. In place, a result replaces the memory that others read. */
static void run_lending(rank_fn fn, uint64_t rows, bool in_place) {
  struct spec spec = plain_spec;
  ZENPS_TENSOR_OPTIONS_INIT(&spec.options);
  spec.options.scheme = "dense-split";
  spec.rows = rows;
  spec.in_place = in_place;
  setenv("ZENPS_SHARED_MEMORY", "no", 1);
  ranks_run(cluster_shared(), N_RANKS, fn, &spec, 0);
  unsetenv("ZENPS_SHARED_MEMORY");
}

static void test_recovery_lent(void **state) {
  (void)state;
  run_lending(recovers, plain_spec.rows, false);
  run_lending(recovers, 40 * plain_spec.rows, false);
}

static void test_recovery_lent_late(void **state) {
  (void)state;
  run_lending(begins_late, 40 * plain_spec.rows, false);
}

static void test_recovery_lent_in_place(void **state) {
  (void)state;
  run_lending(recovers, 40 * plain_spec.rows, true);
}

const struct CMUnitTest api_recovery_tests[] = {
    cmocka_unit_test(test_recovery),
    cmocka_unit_test(test_recovery_oktopk_all),
    cmocka_unit_test(test_recovery_oktopk_some),
    cmocka_unit_test(test_failed_number_over_servers),
    cmocka_unit_test(test_recovery_lent),
    cmocka_unit_test(test_recovery_lent_in_place),
    cmocka_unit_test(test_recovery_lent_late),
};
const size_t n_api_recovery_tests = sizeof api_recovery_tests / sizeof api_recovery_tests[0];
