/* Rounds on device memory that fail: their errors, and the state that they leave. Arrays are freed as soon as the call
 * has returned the error, and the emulation frees at once: a thread that used them afterwards would die. */
#include <signal.h>

#include "tests/integration/device_rig.h"

/* What becomes of jobs that lose a server: of the coordinators that are started from then on. */
#define SERVER_LOSS "ZENPS_COORDINATOR_SERVER_LOSS"

static struct spec spec_of(const char *scheme) {
  struct spec spec = {.rows = 3000, .width = 4, .dtype = ZENPS_F32, .density = 0.2};
  ZENPS_TENSOR_OPTIONS_INIT(&spec.options);
  spec.options.scheme = scheme;
  if (strcmp(scheme, "hierarchical") == 0)
    setenv("ZENPS_DEVICE", "0", 1); /* known from the start, to the others, too */
  return spec;
}

/* One scheme that works where the gradient is, one of each kind that does not, and one that merges there: all ranks are
 * of one host. */
static const char *const kinds[] = {"balanced", "dense-ps", "recursive-doubling", "ring", "hierarchical"};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

/* ranks_run() of each kind. */
static void run_kinds(int world, void (*body)(struct rank *), unsigned killed) {
  for (unsigned i = 0; i < KINDS; i++) ranks_run(cluster_shared(), world, body, kinds[i], killed);
}

static bool is_served(const char *scheme) {
  return strcmp(scheme, "balanced") == 0 || strcmp(scheme, "dense-ps") == 0;
}

/* The request fails within the time; its error text names the step and has `part`. */
static const zenps_error_t *expect_error(const struct device_flight *flight, zenps_status_t status, int within_ms,
                                         const char *part) {
  CHECK_STATUS(zenps_wait(flight->request, within_ms), status);
  const zenps_error_t *const error = zenps_request_error(flight->request);
  CHECK_SAYS(error->text, "tensor t, step 2");
  CHECK_SAYS(error->text, part);
  return error;
}

/* From gradient to checked result: balanced sums in rank order, and two ranks' sum is the same in any. Lists of rows
 * are not checked of others, some of which list all rows. */
static void good_step(struct gpu *gpu, zenps_tensor_t *tensor, const struct spec *spec, const struct rank *rank,
                      uint64_t step) {
  struct device_flight flight;
  device_flight_start(gpu, &flight, tensor, spec, rank, step);
  CHECK_OK(zenps_wait(flight.request, -1));
  if ((rank->world <= 2 && !spec->rows_out) || strcmp(spec->options.scheme, "balanced") == 0)
    device_out_check(gpu, spec, rank->world, step, &flight.out);
  device_flight_end(gpu, &flight, spec);
}

/* The rank's job and tensor, after a first step that went well. */
static zenps_tensor_t *begin_well(struct gpu *gpu, struct rank *rank, const struct spec *spec) {
  device_begin(gpu, rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", spec);
  good_step(gpu, tensor, spec, rank, 1);
  return tensor;
}

/* A round that failed is over: both ranks meet, and the next one goes well. */
static void go_on_well(struct gpu *gpu, struct rank *rank, zenps_tensor_t *tensor, const struct spec *spec,
                       struct device_flight *failed) {
  device_flight_end(gpu, failed, spec);
  atomic_fetch_add(&rank->words[0], 1);
  rank_await(rank, 0, 2);
  good_step(gpu, tensor, spec, rank, 3);
}

/* ------------------------------------------------------------ gradients and results that cannot be right */

/* A bad row number, and arrays that are too small. */
static void failures(struct rank *rank) {
  struct spec spec = spec_of(rank->arg);
  struct device_flight flight;
  struct gpu gpu;
  spec.rows_in = spec.rows_out = spec.own_arrays = true;
  device_begin(&gpu, rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &spec);
  grad_make(&spec, rank->rank, 2, &flight.host);
  if (rank->rank == 0) flight.host.row_ids[3] = 3000;
  grad_upload(&gpu, &spec, &flight.host, &flight.in);
  out_new(&gpu, &spec, &flight.in, &flight.out);
  CHECK_OK(zenps_allreduce(tensor, 2, &flight.in, &flight.out, &flight.request));
  expect_error(&flight, ZENPS_ERR_INVALID, -1, rank->rank == 0 || !is_served(rank->arg) ? "position 3" : "rank 0");
  device_flight_end(&gpu, &flight, &spec);

  device_flight_make(&gpu, &flight, &spec, rank, 3);
  if (rank->rank == 1) flight.out.capacity = 5;
  CHECK_OK(zenps_allreduce(tensor, 3, &flight.in, &flight.out, &flight.request));
  CHECK_STATUS(zenps_wait(flight.request, -1), rank->rank == 1 ? ZENPS_ERR_TRUNCATED : ZENPS_OK);
  if (rank->rank == 1) CHECK(zenps_request_error(flight.request)->needed > 5);
  device_flight_end(&gpu, &flight, &spec);
  good_step(&gpu, tensor, &spec, rank, 4);
  device_end(&gpu, rank);
}

static void test_device_failures(void **state) {
  (void)state;
  run_kinds(2, failures, 0);
}

/* ------------------------------------------------------------ processes that die, and ranks that give up */

static void server_dies(struct rank *rank) {
  const struct spec spec = spec_of(rank->arg);
  struct device_flight flight;
  struct gpu gpu;
  zenps_tensor_t *const tensor = begin_well(&gpu, rank, &spec);
  if (rank->rank != 2) {
    device_flight_start(&gpu, &flight, tensor, &spec, rank, 2);
    atomic_fetch_add(&rank->words[0], 1);
    rank_await(rank, 0, 3); /* the first step is over everywhere */
    if (rank->rank == 0) kill(rank->cluster->servers[0], SIGKILL);
    expect_error(&flight, ZENPS_ERR_SERVER_LOST, SOON_MS, "s0");
    device_flight_end(&gpu, &flight, &spec);
    atomic_fetch_add(&rank->words[1], 1);
  } else {
    atomic_fetch_add(&rank->words[0], 1);
    rank_await(rank, 1, 2);
  }
  device_end(&gpu, rank);
}

/* Jobs that a lost server ends. */
static void test_device_killed_server(void **state) {
  (void)state;
  setenv(SERVER_LOSS, "fail", 1);
  for (unsigned i = 0; i < KINDS; i++) {
    struct cluster cluster;
    cluster_start(&cluster, 2);
    ranks_run(&cluster, 3, server_dies, kinds[i], 0);
    cluster_stop(&cluster);
  }
  unsetenv(SERVER_LOSS);
}

/* The step that is under way has the server's sums yet to come; steps after it have other servers' alone. */
static void server_is_lost(struct rank *rank) {
  const struct spec spec = spec_of(rank->arg);
  struct device_flight flight;
  struct gpu gpu;
  zenps_tensor_t *const tensor = begin_well(&gpu, rank, &spec);
  if (rank->rank != 2) device_flight_start(&gpu, &flight, tensor, &spec, rank, 2);
  atomic_fetch_add(&rank->words[0], 1);
  rank_await(rank, 0, 3);
  if (rank->rank == 0) {
    kill(rank->cluster->servers[0], SIGKILL);
    atomic_store(&rank->words[1], 1);
  }
  rank_await(rank, 1, 1);
  if (rank->rank == 2) device_flight_start(&gpu, &flight, tensor, &spec, rank, 2);
  CHECK_OK(zenps_wait(flight.request, SOON_MS));
  if (strcmp(spec.options.scheme, "balanced") == 0) device_out_check(&gpu, &spec, rank->world, 2, &flight.out);
  device_flight_end(&gpu, &flight, &spec);
  for (uint64_t step = 3; step < 6; step++) good_step(&gpu, tensor, &spec, rank, step);
  device_end(&gpu, rank);
}

/* A server stops while its sum is read into device memory: it is missed for as long as it takes to give it up. */
static void server_falls_silent(struct rank *rank) {
  struct spec spec = spec_of("balanced");
  struct gpu gpu;
  spec.rows = 30000;
  spec.options.partitions = 1;
  setenv("ZENPS_LOG_LEVEL", "trace", 1);
  device_begin(&gpu, rank);
  CHECK_OK(zenps_set_log(rank->zenps, silence_log, rank));
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &spec);
  const uint64_t begun = now_ms();
  for (uint64_t step = 1; step < 4; step++) good_step(&gpu, tensor, &spec, rank, step);
  CHECK(now_ms() - begun >= SILENCE_DEAD_MS * 6 / 10);
  CHECK_OK(zenps_set_log(rank->zenps, NULL, NULL));
  device_end(&gpu, rank);
  silence_end(rank);
}

static void test_device_silent_server(void **state) {
  struct cluster cluster;
  (void)state;
  ONLY_EMULATED;
  setenv("ZENPS_DEVICE", "0", 1);
  cluster_start_with(&cluster, 3, silence_settings);
  silence_faults("dmabuf=1");
  ranks_run(&cluster, 1, server_falls_silent, NULL, 0);
  silence_no_faults();
  cluster_stop(&cluster);
  unsetenv("ZENPS_DEVICE");
}

/* Jobs that go on with the others. */
static void test_device_lost_server(void **state) {
  (void)state;
  for (unsigned i = 0; i < KINDS; i++) {
    struct cluster cluster;
    cluster_start(&cluster, 3);
    ranks_run(&cluster, 3, server_is_lost, kinds[i], 0);
    cluster_stop(&cluster);
  }
}

static void rank_dies(struct rank *rank) {
  const struct spec spec = spec_of(rank->arg);
  struct device_flight flight;
  struct gpu gpu;
  zenps_tensor_t *const tensor = begin_well(&gpu, rank, &spec);
  if (rank->rank == 1) {
    rank_await(rank, 0, 2);
    raise(SIGKILL);
  }
  device_flight_start(&gpu, &flight, tensor, &spec, rank, 2);
  atomic_fetch_add(&rank->words[0], 1);
  const zenps_error_t *const error = expect_error(&flight, ZENPS_ERR_PEER_LOST, SOON_MS, "rank 1");
  CHECK(error->n_missing == 1 && error->missing_ranks[0] == 1);
  device_flight_end(&gpu, &flight, &spec);
  device_end(&gpu, rank);
}

static void test_device_killed_rank(void **state) {
  (void)state;
  run_kinds(3, rank_dies, 1u << 1);
}

static void gives_up(struct rank *rank) {
  const struct spec spec = spec_of(rank->arg);
  struct device_flight flight;
  struct gpu gpu;
  device_begin(&gpu, rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &spec);
  device_flight_start(&gpu, &flight, tensor, &spec, rank, 2);
  if (rank->rank == 0)
    CHECK_OK(zenps_cancel(flight.request));
  else
    rank_await(rank, 0, 1);
  expect_error(&flight, ZENPS_ERR_CANCELED, SOON_MS, "rank 0");
  go_on_well(&gpu, rank, tensor, &spec, &flight);
  /* Freed and closed with the operation in flight, at any stage of it. */
  if (rank->rank == 0) {
    device_flight_start(&gpu, &flight, tensor, &spec, rank, 4);
    device_flight_end(&gpu, &flight, &spec);
  }
  device_end(&gpu, rank);
}

static void test_device_gives_up(void **state) {
  (void)state;
  run_kinds(2, gives_up, 0);
}

/* ------------------------------------------------------------ a device that does not get there */

/* The device takes longer to fill rank 1's gradient than the round may take. */
static void stuck_gradient(struct rank *rank) {
  const struct spec spec = spec_of(rank->arg);
  struct device_flight flight;
  struct gpu gpu;
  rank->round_timeout_ms = 1500;
  zenps_tensor_t *const tensor = begin_well(&gpu, rank, &spec);
  device_flight_make(&gpu, &flight, &spec, rank, 2);
  if (rank->rank == 1) gpu_hold(&gpu, true);
  CHECK_OK(zenps_allreduce(tensor, 2, &flight.in, &flight.out, &flight.request));
  if (rank->rank == 1) {
    const zenps_status_t status = zenps_wait(flight.request, SOON_MS);
    CHECK(status == ZENPS_ERR_TIMEOUT || status == ZENPS_ERR_MISSING);
    CHECK_SAYS(zenps_request_error(flight.request)->text, "tensor t, step 2");
    gpu_hold(&gpu, false); /* the work left behind must be through before the arrays go */
    gpu_sync(&gpu);
  } else {
    expect_error(&flight, is_served(rank->arg) ? ZENPS_ERR_MISSING : ZENPS_ERR_TIMEOUT, SOON_MS, "rank 1");
  }
  go_on_well(&gpu, rank, tensor, &spec, &flight);
  device_end(&gpu, rank);
}

static void test_device_stuck_gradient(void **state) {
  (void)state;
  ONLY_EMULATED;
  run_kinds(2, stuck_gradient, 0);
}

/* The stream on which rank 1's result must be ready does not get that far: rank 1's round fails, and no other rank's.
 * */
static void stuck_result(struct rank *rank) {
  const struct spec spec = spec_of(rank->arg);
  struct device_flight flight;
  struct gpu gpu, other;
  rank->round_timeout_ms = 1500;
  zenps_tensor_t *const tensor = begin_well(&gpu, rank, &spec);
  other = gpu;
  gpu_check(gpu.device->ops->stream_create(gpu.device, &other.stream, &gpu_error));
  if (rank->rank == 1) gpu_hold(&other, true);
  grad_make(&spec, rank->rank, 2, &flight.host);
  grad_upload(&gpu, &spec, &flight.host, &flight.in);
  out_new(&other, &spec, &flight.in, &flight.out);
  CHECK_OK(zenps_allreduce(tensor, 2, &flight.in, &flight.out, &flight.request));
  if (rank->rank == 1) {
    expect_error(&flight, ZENPS_ERR_TIMEOUT, SOON_MS, "");
    gpu_hold(&other, false);
    gpu_sync(&other);
  } else {
    CHECK_OK(zenps_wait(flight.request, -1));
  }
  go_on_well(&gpu, rank, tensor, &spec, &flight);
  gpu.device->ops->stream_destroy(gpu.device, other.stream);
  device_end(&gpu, rank);
}

static void test_device_stuck_result(void **state) {
  (void)state;
  ONLY_EMULATED;
  run_kinds(2, stuck_result, 0);
}

/* ------------------------------------------------------------ memory that is not there */

/* The first rounds of a tensor with one more allocation granted each time, until one is enough. */
static void starved(struct rank *rank) {
  enum { STEPS_MAX = 200 };
  struct spec spec = spec_of(rank->arg);
  struct device_flight flight;
  struct gpu gpu;
  uint64_t n_granted = 0;
  device_begin(&gpu, rank);
  spec.rows_out = true; /* in the library's memory */
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &spec);
  gpu_fail_allocation(0);
  CHECK_STATUS(zenps_mem_register(rank->zenps, ZENPS_DEVICE, 0, &gpu, 1), ZENPS_ERR_NOMEM);
  CHECK_SAYS(zenps_last_error()->text, "no pinned memory");
  gpu_fail_allocation(UINT64_MAX);
  for (zenps_status_t status = ZENPS_ERR_NOMEM; status != ZENPS_OK; n_granted++) {
    CHECK(n_granted < STEPS_MAX);
    device_flight_make(&gpu, &flight, &spec, rank, n_granted);
    gpu_fail_allocation(n_granted);
    status = zenps_allreduce(tensor, n_granted, &flight.in, &flight.out, &flight.request);
    const bool has_begun = status == ZENPS_OK;
    if (has_begun) status = zenps_wait(flight.request, -1);
    gpu_fail_allocation(UINT64_MAX);
    if (status != ZENPS_OK) {
      CHECK_STATUS(status, ZENPS_ERR_NOMEM);
      CHECK_SAYS(zenps_last_error()->text, "tensor t");
      CHECK_SAYS(zenps_last_error()->text, "memory");
    }
    if (!has_begun) flight.request = NULL;
    device_flight_end(&gpu, &flight, &spec);
  }
  CHECK(n_granted > 4);
  device_end(&gpu, rank);

  n_granted = 0; /* now the job opens the device itself */
  setenv("ZENPS_DEVICE", "0", 1);
  for (zenps_status_t status = ZENPS_ERR_NOMEM; status != ZENPS_OK; n_granted++) {
    zenps_options_t options;
    rank_options(rank, &options);
    gpu_fail_allocation(n_granted);
    status = zenps_open(&options, &rank->zenps);
    gpu_fail_allocation(UINT64_MAX);
    if (status != ZENPS_OK) CHECK_STATUS(status, ZENPS_ERR_NOMEM);
  }
  CHECK(n_granted > 4);
  rank_close(rank);
}

static void test_device_starved(void **state) {
  (void)state;
  ONLY_EMULATED;
  /* But the last: one rank has nobody to merge with. */
  for (unsigned i = 0; i < KINDS - 1; i++) ranks_run(cluster_shared(), 1, starved, kinds[i], 0);
}

const struct CMUnitTest device_failure_tests[] = {
    cmocka_unit_test(test_device_failures),       cmocka_unit_test(test_device_killed_server),
    cmocka_unit_test(test_device_lost_server),    cmocka_unit_test(test_device_silent_server),
    cmocka_unit_test(test_device_killed_rank),    cmocka_unit_test(test_device_gives_up),
    cmocka_unit_test(test_device_stuck_gradient), cmocka_unit_test(test_device_stuck_result),
    cmocka_unit_test(test_device_starved)};
const size_t n_device_failure_tests = sizeof device_failure_tests / sizeof device_failure_tests[0];
