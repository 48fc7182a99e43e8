/* Reads of device memory, and into it, of which the fault injector changes a byte now and then, in jobs whose reads are
 * checked: the device makes the checksums. One read per step and direction, so that the counts can be compared. */
#include "tests/integration/device_rig.h"

enum { STEPS = 30, TEXT_MAX = 1 << 16 };
#define FLIPS "dmabuf=1,seed=5,flip=0.3"

static const char not_announced[] = "what came, twice, is not what was announced";

/* Reads of the server, or of the rank, that did not bring what was announced, as far as it is told. */
static unsigned count_corrupt(const struct rank *rank, bool of_ranks) {
  static char text[TEXT_MAX];
  static const char member[] = "\"corrupt\": ";
  char command[800];
  snprintf(command, sizeof command, "%s --endpoint %s -o json --internal stats", getenv("ZENPSCTL"),
           rank->cluster->address);
  FILE *const in = popen(command, "r");
  CHECK(in != NULL);
  text[fread(text, 1, sizeof text - 1, in)] = '\0';
  CHECK(pclose(in) == 0);
  const char *const rows = strstr(text, of_ranks ? "\"ranks\": [" : "\"servers\": [");
  CHECK(rows != NULL);
  const char *const at = strstr(rows, member), *const end = strchr(rows, ']');
  return at && end && at < end ? (unsigned)strtoul(at + sizeof member - 1, NULL, 10) : 0;
}

/* Whether its sum is right; else the read was of other bytes twice. */
static bool step_is_good(struct gpu *gpu, zenps_tensor_t *tensor, const struct spec *spec, const struct rank *rank,
                         uint64_t step) {
  struct device_flight flight;
  device_flight_start(gpu, &flight, tensor, spec, rank, step);
  const zenps_status_t status = zenps_wait(flight.request, SOON_MS);
  if (status == ZENPS_OK) {
    device_out_check(gpu, spec, rank->world, step, &flight.out);
  } else {
    CHECK_STATUS(status, ZENPS_ERR_FABRIC);
    CHECK_SAYS(zenps_request_error(flight.request)->text, not_announced);
  }
  device_flight_end(gpu, &flight, spec);
  return status == ZENPS_OK;
}

/* `arg`: it is the rank's reads that change, not the server's. */
static void flipped(struct rank *rank) {
  const bool is_rank = rank->arg != NULL;
  struct spec spec = {.rows = 4000, .width = 8, .dtype = ZENPS_F32, .density = 0.3, .rows_in = true, .rows_out = true};
  struct gpu gpu;
  unsigned n_failed = 0, n_corrupt = 0;
  ZENPS_TENSOR_OPTIONS_INIT(&spec.options);
  spec.options.scheme = "balanced";
  spec.options.partitions = 1;
  device_begin(&gpu, rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &spec);
  for (uint64_t step = 0; step < STEPS; step++) n_failed += !step_is_good(&gpu, tensor, &spec, rank, step);
  const uint64_t until = now_ms() + SOON_MS;
  while (n_corrupt == 0) { /* A read that is right at the second attempt counts. */
    CHECK(now_ms() < until);
    n_corrupt = count_corrupt(rank, is_rank);
  }
  CHECK(n_failed < STEPS / 2);
  CHECK(count_corrupt(rank, !is_rank) == 0);
  device_end(&gpu, rank);
}

/* Ranks whose fabric reaches device memory. */
static void run(const char *const *settings, const char *faults, unsigned n_servers, int world, rank_fn fn,
                const void *arg) {
  struct cluster cluster;
  cluster_start_with(&cluster, n_servers, settings);
  setenv("ZENPS_PROVIDER", "fault+net", 1);
  setenv("ZENPS_FABRIC_FAULT", faults, 1);
  setenv("ZENPS_TELEMETRY", "0.1s", 1);
  setenv("ZENPS_DEVICE", "0", 1);
  ranks_run(&cluster, world, fn, arg, 0);
  unsetenv("ZENPS_DEVICE");
  unsetenv("ZENPS_TELEMETRY");
  unsetenv("ZENPS_FABRIC_FAULT");
  unsetenv("ZENPS_PROVIDER");
  cluster_stop(&cluster);
}

static const char *const checked[] = {"ZENPS_FABRIC_CHECKSUMS=yes", NULL};

/* Servers read slices where the device has encoded them. */
static void test_device_checked_gradients(void **state) {
  static const char *const settings[] = {"ZENPS_FABRIC_CHECKSUMS=yes", "ZENPS_PROVIDER=fault+net",
                                         "ZENPS_FABRIC_FAULT=" FLIPS, NULL};
  (void)state;
  ONLY_EMULATED;
  run(settings, "dmabuf=1", 1, 1, flipped, NULL);
}

/* The fabric writes sums where the device decodes them. */
static void test_device_checked_sums(void **state) {
  (void)state;
  ONLY_EMULATED;
  run(checked, FLIPS, 1, 1, flipped, FLIPS);
}

/* ------------------------------------------------------------ nothing is changed on the way */

/* Slices of all sizes, those of frames among them; many sums that land at once. */
static void unchanged(struct rank *rank) {
  static const uint32_t partitions[] = {0, 40, 7};
  struct device_case is = {.spec = {.rows = 6000, .width = 16, .dtype = ZENPS_F32, .density = 0.001}};
  struct gpu gpu;
  device_begin(&gpu, rank);
  for (unsigned i = 0; i < 3; i++) {
    char name[2][8];
    ZENPS_TENSOR_OPTIONS_INIT(&is.spec.options);
    is.spec.options.scheme = "balanced";
    is.spec.options.partitions = partitions[i];
    is.spec.rows_in = is.spec.rows_out = i == 1;
    is.other_costs = i == 1; /* small sums travel joined with those that are ready at the same time */
    snprintf(name[0], sizeof name[0], "t%u", i);
    snprintf(name[1], sizeof name[1], "twin%u", i);
    zenps_tensor_t *const tensor = tensor_open(rank, name[0], &is.spec), *const twin =
                                                                             tensor_open(rank, name[1], &is.spec);
    for (uint64_t step = 0; step < 4; step++) {
      is.spec.density = step == 3 ? 0.6 : 0.001 * (double)(1 + 60 * step);
      device_step(&gpu, tensor, twin, &is, rank, step);
    }
  }
  CHECK(count_corrupt(rank, true) == 0 && count_corrupt(rank, false) == 0);
  device_end(&gpu, rank);
}

static void test_device_checked(void **state) {
  (void)state;
  ONLY_EMULATED;
  run(checked, "dmabuf=1", 3, 2, unchanged, NULL);
}

/* ------------------------------------------------------------ rounds that fail while sums are hashed */

/* The first rounds of a tensor with one more allocation granted each time, until one is enough; then a stream that does
 * not get to the hashing. Each time what has landed is answered for, and the job goes on and ends. */
static void fails(struct rank *rank) {
  enum { GRANTED_MAX = 200, ROUNDS_ALLOCATE = 26 };
  struct spec spec = {.rows = 40000, .width = 8, .dtype = ZENPS_F32, .density = 0.03}; /* too large for frames */
  struct device_flight flight;
  struct gpu gpu, other;
  uint64_t n_granted = 0;
  ZENPS_TENSOR_OPTIONS_INIT(&spec.options);
  spec.options.scheme = "balanced";
  spec.options.partitions = 5;
  rank->round_timeout_ms = 3000;
  device_begin(&gpu, rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &spec);
  for (zenps_status_t status = ZENPS_ERR_NOMEM; status != ZENPS_OK; n_granted++) {
    CHECK(n_granted < GRANTED_MAX);
    device_flight_make(&gpu, &flight, &spec, rank, n_granted);
    gpu_fail_allocation(n_granted);
    CHECK_OK(zenps_allreduce(tensor, n_granted, &flight.in, &flight.out, &flight.request));
    status = zenps_wait(flight.request, -1);
    gpu_fail_allocation(UINT64_MAX);
    if (status != ZENPS_OK) CHECK_STATUS(status, ZENPS_ERR_NOMEM);
    if (status == ZENPS_OK) device_out_check(&gpu, &spec, rank->world, n_granted, &flight.out);
    device_flight_end(&gpu, &flight, &spec);
  }
  CHECK(n_granted > 6);

  other = gpu;
  gpu_check(gpu.device->ops->stream_create(gpu.device, &other.stream, &gpu_error));
  gpu_hold(&other, true);
  grad_make(&spec, rank->rank, GRANTED_MAX, &flight.host);
  grad_upload(&gpu, &spec, &flight.host, &flight.in);
  out_new(&other, &spec, &flight.in, &flight.out);
  CHECK_OK(zenps_allreduce(tensor, GRANTED_MAX, &flight.in, &flight.out, &flight.request));
  CHECK_STATUS(zenps_wait(flight.request, SOON_MS), ZENPS_ERR_TIMEOUT);
  gpu_hold(&other, false);
  gpu_sync(&other);
  device_flight_end(&gpu, &flight, &spec);
  gpu.device->ops->stream_destroy(gpu.device, other.stream);
  CHECK(step_is_good(&gpu, tensor, &spec, rank, GRANTED_MAX + 1));
  CHECK(gpu_allocations() < ROUNDS_ALLOCATE); /* rounds that failed are used again, and not left with their reads */
  device_end(&gpu, rank);
}

static void test_device_checked_failures(void **state) {
  (void)state;
  ONLY_EMULATED;
  run(checked, "dmabuf=1", 2, 1, fails, NULL);
}

const struct CMUnitTest device_check_tests[] = {
    cmocka_unit_test(test_device_checked_gradients), cmocka_unit_test(test_device_checked_sums),
    cmocka_unit_test(test_device_checked), cmocka_unit_test(test_device_checked_failures)};
const size_t n_device_check_tests = sizeof device_check_tests / sizeof device_check_tests[0];
