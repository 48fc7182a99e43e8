/* What the ranks of a host have is added up on the device of their master. */
#include <signal.h>
#include <unistd.h>

#include "tests/integration/device_rig.h"

enum { WORLD = 4 };

/* Two hosts of two ranks, or one of four, each rank with a device that the others reach: what they have is added up on
 * it, to the bits of host memory; but where a rank has its gradient in host memory, and with the next round again. */
static void merges(struct rank *rank) {
  static const char *const inner[] = {"hierarchical", "hierarchical:ring", "hierarchical:partitioner=hierarchical"};
  struct device_case is = *(const struct device_case *)rank->arg;
  const bool one_host = is.spec.own_arrays;
  struct gpu gpu;
  char name[16], twin_name[16];
  if (!one_host) device_set_host(rank);
  setenv("ZENPS_DEVICE", "0", 1);
  device_begin(&gpu, rank);
  for (unsigned i = 0; i < sizeof inner / sizeof inner[0]; i++) {
    ZENPS_TENSOR_OPTIONS_INIT(&is.spec.options);
    is.spec.options.scheme = inner[i];
    is.spec.options.op = i == 1 ? ZENPS_OP_MEAN : ZENPS_OP_SUM;
    snprintf(name, sizeof name, "t%u", i);
    snprintf(twin_name, sizeof twin_name, "twin%u", i);
    zenps_tensor_t *const tensor = tensor_open(rank, name, &is.spec), *const twin =
                                                                          tensor_open(rank, twin_name, &is.spec);
    for (uint64_t step = 0; step < 4; step++) {
      is.ranks_on_host = step == 1 ? 1u << 1 : step == 2 ? 1u << 2 : 0; /* a member, or a master of two hosts */
      const unsigned near = one_host ? 0xf : 3u << (rank->rank & 2);
      is.merged_in = is.ranks_on_host & near ? ZENPS_HOST : ZENPS_DEVICE;
      device_step(&gpu, tensor, twin, &is, rank, step);
    }
  }
  device_end(&gpu, rank);
}

static void test_device_merges(void **state) {
  (void)state;
  for (unsigned bits = 0; bits < 4; bits++) {
    const struct device_case is = {.spec = {.rows = 1500,
                                            .width = bits & 1 ? 3 : 1,
                                            .dtype = bits & 1 ? ZENPS_F64 : ZENPS_F32,
                                            .rows_in = bits & 1,
                                            .rows_out = bits & 2,
                                            .repeats = 2,
                                            .own_arrays = bits & 1,
                                            .density = bits == 2 ? 0 : 0.1},
                                   .as_host = true,
                                   .other_costs = true,
                                   .tells_merged = true};
    ranks_run(cluster_shared(), WORLD, merges, &is, 0);
  }
}

/* ------------------------------------------------------------ where it goes wrong, with two ranks of one host */

static struct spec hierarchical_spec(void) {
  struct spec spec = {.rows = 3000, .width = 4, .dtype = ZENPS_F32, .density = 0.2};
  ZENPS_TENSOR_OPTIONS_INIT(&spec.options);
  spec.options.scheme = "hierarchical";
  setenv("ZENPS_DEVICE", "0", 1); /* known from the start, to the others, too */
  return spec;
}

/* The device of the master of two ranks is short of memory: rounds fail, or are carried out in host memory, until there
 * is enough. */
static void starved_master(struct rank *rank) {
  enum { STEPS = 50 };
  const struct spec spec = hierarchical_spec();
  struct device_flight flight;
  struct gpu gpu;
  unsigned n_failed = 0, n_elsewhere = 0;
  device_begin(&gpu, rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &spec);
  for (uint64_t step = 0; step <= STEPS; step++) {
    zenps_request_stats_t stats = {.struct_size = sizeof stats};
    device_flight_make(&gpu, &flight, &spec, rank, step);
    gpu_fail_allocation(rank->rank == 0 && step < STEPS ? step : UINT64_MAX);
    CHECK_OK(zenps_allreduce(tensor, step, &flight.in, &flight.out, &flight.request));
    const zenps_status_t status = zenps_wait(flight.request, -1);
    gpu_fail_allocation(UINT64_MAX);
    if (status != ZENPS_OK) CHECK_STATUS(status, ZENPS_ERR_NOMEM);
    n_failed += status != ZENPS_OK;
    if (status == ZENPS_OK) {
      device_out_check(&gpu, &spec, rank->world, step, &flight.out);
      CHECK_OK(zenps_request_stats(flight.request, &stats));
      n_elsewhere += stats.merged_in == ZENPS_HOST;
    }
    device_flight_end(&gpu, &flight, &spec);
    CHECK(step < STEPS || (status == ZENPS_OK && stats.merged_in == ZENPS_DEVICE));
  }
  CHECK(n_failed > 0 && n_failed + n_elsewhere < STEPS);
  device_end(&gpu, rank);
}

static void test_device_starved_master(void **state) {
  (void)state;
  ONLY_EMULATED;
  ranks_run(cluster_shared(), 2, starved_master, NULL, 0);
}

enum { MASTER = 1, GIVEN_UP = 2 }; /* words: its process, as soon as it may be stopped; it was given up */

static void note_given_up(void *ctx, int level, const char *component, const char *text) {
  const struct rank *rank = ctx;
  (void)level;
  (void)component;
  if (strstr(text, "rank 0 (host") && strstr(text, "has not acknowledged its reads"))
    atomic_store(&rank->words[GIVEN_UP], 1);
}

/* The master is stopped as a step begins, until its silence is borne no longer: the other one ends the step without it.
 * It may read what it was offered then at any time, so it is offered nothing any more: steps go well, in host memory.
 */
static void silent_master(struct rank *rank) {
  struct device_case is = {.spec = hierarchical_spec(), .other_costs = true, .tells_merged = true};
  struct device_flight flight;
  struct gpu gpu;
  rank->round_timeout_ms = 1500;
  setenv("ZENPS_LOG_LEVEL", "info", 1);
  device_begin(&gpu, rank);
  CHECK_OK(zenps_set_log(rank->zenps, note_given_up, rank));
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &is.spec), *const twin = tensor_open(rank, "twin", &is.spec);
  is.merged_in = ZENPS_DEVICE;
  device_step(&gpu, tensor, twin, &is, rank, 1);
  CHECK_OK(zenps_barrier(rank->zenps));
  if (rank->rank == 1) {
    rank_await(rank, MASTER, 1); /* stopped inside the barrier, it would miss its deadline */
    const pid_t master = (pid_t)atomic_load(&rank->words[MASTER]);
    process_stop(master);
    device_flight_start(&gpu, &flight, tensor, &is.spec, rank, 2);
    CHECK_STATUS(zenps_wait(flight.request, -1), ZENPS_ERR_TIMEOUT);
    CHECK_SAYS(zenps_request_error(flight.request)->text, "rank 0");
    device_flight_end(&gpu, &flight, &is.spec);
    rank_await(rank, GIVEN_UP, 1);
    CHECK(kill(master, SIGCONT) == 0);
  } else {
    atomic_store(&rank->words[MASTER], (unsigned)getpid());
    rank_await(rank, GIVEN_UP, 1);
  }
  is.merged_in = ZENPS_HOST;
  for (uint64_t step = 3; step < 6; step++) device_step(&gpu, tensor, twin, &is, rank, step);
  device_end(&gpu, rank);
}

static void test_device_silent_master(void **state) {
  (void)state;
  struct cluster cluster;
  cluster_start_with(&cluster, 2, (const char *const[]){"ZENPS_CONTROL_DEAD=300s", NULL});
  ranks_run(&cluster, 2, silent_master, NULL, 0);
  cluster_stop(&cluster);
}

const struct CMUnitTest device_merge_tests[] = {cmocka_unit_test(test_device_merges),
                                                cmocka_unit_test(test_device_starved_master),
                                                cmocka_unit_test(test_device_silent_master)};
const size_t n_device_merge_tests = sizeof device_merge_tests / sizeof device_merge_tests[0];
