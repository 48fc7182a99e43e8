/* Rounds of the balanced scheme, which encodes and decodes on the device: layouts, sizes, streams. */
#include "tests/integration/device_rig.h"

static void test_device_layouts(void **state) {
  (void)state;
  for (unsigned bits = 0; bits < 8; bits++) {
    const struct device_case is = {.spec = {.rows = 3001,
                                            .width = bits & 1 ? 3 : 1,
                                            .dtype = bits & 1 ? ZENPS_F64 : ZENPS_F32,
                                            .rows_in = bits & 2,
                                            .rows_out = bits & 4,
                                            .repeats = 3,
                                            .density = 0.05,
                                            .own_arrays = bits & 1}};
    ranks_run(cluster_shared(), 2 + (int)bits % 3, device_steps, &is, 0);
  }
}

/* Each step has more rows than the one before: memory grows, and is registered anew. */
static void growing(struct rank *rank) {
  struct device_case is = {.spec = {.rows = 5000, .width = 32, .dtype = ZENPS_F32, .density = 0.1}};
  struct gpu gpu;
  device_begin(&gpu, rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &is.spec), *const twin = tensor_open(rank, "twin", &is.spec);
  for (uint64_t step = 0; step < 4; step++, is.spec.density *= 2) device_step(&gpu, tensor, twin, &is, rank, step);
  device_end(&gpu, rank);
}

/* Gradients with payloads that servers read, and not only payloads that travel inside frames. */
static void test_device_bulk(void **state) {
  (void)state;
  const struct device_case rows = {
      .spec = {.rows = 4000, .width = 64, .dtype = ZENPS_F32, .rows_in = true, .rows_out = true, .density = 0.3}};
  const struct device_case dense = {
      .spec = {.rows = 6000, .width = 16, .dtype = ZENPS_F32, .density = 0.3, .in_place = true}};
  ranks_run(cluster_shared(), 2, device_steps, &rows, 0);
  ranks_run(cluster_shared(), 2, device_steps, &dense, 0);
  ranks_run(cluster_shared(), 2, growing, NULL, 0);
}

/* A fabric that reaches device memory itself, as the fault injector makes one of any with the emulated device's
 * dmabufs. */
static void test_device_direct(void **state) {
  (void)state;
  ONLY_EMULATED;
  struct device_case is = {
      .spec = {.rows = 4000, .width = 64, .dtype = ZENPS_F32, .rows_in = true, .rows_out = true, .density = 0.3}};
  setenv("ZENPS_PROVIDER", "fault+net", 1);
  setenv("ZENPS_FABRIC_FAULT", "dmabuf=1", 1);
  setenv("ZENPS_DEVICE", "0", 1);
  ranks_run(cluster_shared(), 2, device_steps, &is, 0);
  ranks_run(cluster_shared(), 2, growing, NULL, 0);
  is.out_on_host = true;
  ranks_run(cluster_shared(), 2, device_steps, &is, 0);
  unsetenv("ZENPS_DEVICE");
  unsetenv("ZENPS_PROVIDER");
  unsetenv("ZENPS_FABRIC_FAULT");
}

/* Halves: dense gradients and lists, small and large, whose repeats make wide slices. */
static void halves(bool is_small) {
  for (unsigned bits = 0; bits < 8; bits++) {
    static const uint32_t widths[] = {1, 3, 8};
    struct device_case is = {.spec = {.rows = is_small ? 3001 : 40001,
                                      .width = widths[bits % 3],
                                      .dtype = bits & 1 ? ZENPS_F16 : ZENPS_BF16,
                                      .rows_in = bits & 2,
                                      .rows_out = bits & 4,
                                      .repeats = bits & 4 ? 1 : 3,
                                      .density = is_small ? 0.05 : 0.4,
                                      .own_arrays = bits & 1},
                             .is_on_device = true};
    ranks_run(cluster_shared(), 2, device_steps, &is, 0);
  }
}

static void test_device_halves(void **state) {
  (void)state;
  halves(true);
  halves(false);
  struct device_case is = {
      .spec = {.rows = 2000, .width = 5, .dtype = ZENPS_BF16, .density = 0.3, .rows_in = true, .repeats = 3},
      .is_on_device = true};
  ZENPS_TENSOR_OPTIONS_INIT(&is.spec.options);
  is.spec.options.scheme = "sparse-ps";
  ranks_run(cluster_shared(), 2, device_steps, &is, 0);
  is.spec.options.scheme = ":partitioner=hierarchical";
  is.spec.options.codec = ZENPS_CODEC_PAPER;
  ranks_run(cluster_shared(), 2, device_steps, &is, 0);
  is.spec.options.op = ZENPS_OP_MEAN;
  is.spec.rows_in = false;
  is.spec.odd_values = true;
  ranks_run(cluster_shared(), 2, device_steps, &is, 0);
}

static void test_device_halves_direct(void **state) {
  (void)state;
  ONLY_EMULATED;
  setenv("ZENPS_PROVIDER", "fault+net", 1);
  setenv("ZENPS_FABRIC_FAULT", "dmabuf=1", 1);
  setenv("ZENPS_DEVICE", "0", 1);
  halves(false);
  unsetenv("ZENPS_DEVICE");
  unsetenv("ZENPS_PROVIDER");
  unsetenv("ZENPS_FABRIC_FAULT");
}

static void test_device_mixed(void **state) {
  (void)state;
  struct device_case is = {.spec = {.rows = 3000, .width = 2, .dtype = ZENPS_F32, .density = 0.05}, .in_on_host = true};
  ranks_run(cluster_shared(), 2, device_steps, &is, 0);
  is.in_on_host = false;
  is.out_on_host = true;
  ranks_run(cluster_shared(), 2, device_steps, &is, 0);
}

static void test_device_empty(void **state) {
  (void)state;
  struct device_case is = {
      .spec = {.rows = 1000, .width = 4, .dtype = ZENPS_F32, .rows_in = true, .rows_out = true, .density = 0.1}};
  is.spec.empty = 2;
  ranks_run(cluster_shared(), 3, device_steps, &is, 0);
  is.spec.rows_in = false;
  is.spec.density = 0;
  ranks_run(cluster_shared(), 2, device_steps, &is, 0);
  is.spec.rows_out = false;
  is.spec.odd_values = true;
  is.spec.density = 0.3;
  ranks_run(cluster_shared(), 2, device_steps, &is, 0);
}

static void test_device_values(void **state) {
  (void)state;
  struct device_case is = {.spec = {.rows = 2000, .width = 4, .dtype = ZENPS_F32, .density = 0.2}};
  ZENPS_TENSOR_OPTIONS_INIT(&is.spec.options);
  is.spec.options.codec = ZENPS_CODEC_PAPER;
  is.spec.options.op = ZENPS_OP_MEAN;
  ranks_run(cluster_shared(), 2, device_steps, &is, 0);
}

/* Rows dealt by their hashes, in order and by Algorithm 1: its order is kept under the paper's codecs. The same bytes
 * travel as from host memory. */
static void test_device_partitioners(void **state) {
  (void)state;
  for (unsigned i = 0; i < 12; i++) { /* from 8 on lists by Algorithm 1 */
    const bool is_hierarchical = i & 1 || i >= 8;
    struct device_case is = {.spec = {.rows = 3001,
                                      .width = i & 2 ? 3 : 1,
                                      .dtype = i & 2 ? ZENPS_F64 : ZENPS_F32,
                                      .rows_in = i >= 8 || (!is_hierarchical && i & 2),
                                      .rows_out = i & 4,
                                      .density = 0.1}};
    ZENPS_TENSOR_OPTIONS_INIT(&is.spec.options);
    is.spec.options.scheme = !is_hierarchical ? ":partitioner=murmur"
                             : i & 2          ? ":partitioner=hierarchical,hash_r1=2" /* serial memory grows */
                                              : ":partitioner=hierarchical";
    is.spec.options.codec = i & 4 ? ZENPS_CODEC_AUTO : ZENPS_CODEC_PAPER;
    is.out_on_host = i == 5;
    ranks_run(cluster_shared(), 2, device_steps, &is, 0);
  }
}

/* Several in flight at once, some of them on another stream. */
static void flights(struct rank *rank) {
  enum { FLIGHT = 4 };
  const struct spec *const spec = rank->arg;
  struct device_flight flights[FLIGHT];
  struct gpu gpu, other;
  device_begin(&gpu, rank);
  other = gpu;
  gpu_check(gpu.device->ops->stream_create(gpu.device, &other.stream, &gpu_error));
  zenps_tensor_t *const tensor = tensor_open(rank, "t", spec);
  for (unsigned i = 0; i < FLIGHT; i++) device_flight_start(i % 2 ? &other : &gpu, &flights[i], tensor, spec, rank, i);
  for (unsigned i = FLIGHT; i-- > 0;) {
    CHECK_OK(zenps_wait(flights[i].request, -1));
    device_out_check(&gpu, spec, rank->world, i, &flights[i].out);
    device_flight_end(&gpu, &flights[i], spec);
  }
  gpu.device->ops->stream_destroy(gpu.device, other.stream);
  device_end(&gpu, rank);
}

static void test_device_flights(void **state) {
  (void)state;
  const struct spec spec = {.rows = 2500, .width = 32, .dtype = ZENPS_F32, .density = 0.2};
  ranks_run(cluster_shared(), 2, flights, &spec, 0);
}

/* Once memory has its size, no call of a round may bring the device to a stop. A step may meet memory that is new,
 * where the round before has not let go of its own yet. This holds for the caller's arrays; the library's are freed
 * with the request. */
static void unstopped(struct rank *rank) {
  const struct spec *const spec = rank->arg;
  struct device_flight flight;
  struct gpu gpu;
  unsigned n_calm = 0, most_calm = 0;
  device_begin(&gpu, rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", spec);
  for (uint64_t step = 0; step < 12; step++) {
    grad_make(spec, rank->rank, 0, &flight.host); /* each step the same gradient */
    grad_upload(&gpu, spec, &flight.host, &flight.in);
    out_new(&gpu, spec, &flight.in, &flight.out);
    const uint64_t before = gpu_stops();
    CHECK_OK(zenps_allreduce(tensor, step, &flight.in, &flight.out, &flight.request));
    CHECK_OK(zenps_wait(flight.request, -1));
    n_calm = gpu_stops() == before ? n_calm + 1 : 0;
    if (n_calm > most_calm) most_calm = n_calm;
    device_out_check(&gpu, spec, rank->world, 0, &flight.out);
    device_flight_end(&gpu, &flight, spec);
  }
  CHECK(most_calm >= 3);
  device_end(&gpu, rank);
}

static void test_device_unstopped(void **state) {
  (void)state;
  ONLY_EMULATED;
  static const char *const schemes[] = {"balanced", "recursive-doubling", "balanced:partitioner=hierarchical"};
  for (unsigned i = 0; i < 6; i++) {
    struct spec spec = {.rows = 3000,
                        .width = 16,
                        .dtype = ZENPS_F32,
                        .density = 0.2,
                        .rows_in = i & 1,
                        .rows_out = i & 1,
                        .own_arrays = true};
    ZENPS_TENSOR_OPTIONS_INIT(&spec.options);
    spec.options.scheme = schemes[i / 2];
    if (i >= 4) spec.options.codec = ZENPS_CODEC_PAPER;
    ranks_run(cluster_shared(), 2, unstopped, &spec, 0);
  }
}

/* A push and a pull apart, of dense arrays or lists in device memory; then each rank's rows as a list there. */
static void apart(struct rank *rank) {
  const struct spec *const spec = rank->arg;
  struct gpu gpu;
  device_begin(&gpu, rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", spec);
  for (uint64_t step = 0; step < 3; step++) {
    struct device_flight flight;
    zenps_request_t *push;
    device_flight_make(&gpu, &flight, spec, rank, step);
    CHECK_OK(zenps_push(tensor, step, &flight.in, &push));
    CHECK_OK(zenps_pull(tensor, step, NULL, &flight.out, &flight.request));
    CHECK_OK(zenps_wait(push, SOON_MS));
    CHECK_OK(zenps_wait(flight.request, SOON_MS));
    device_out_check(&gpu, spec, rank->world, step, &flight.out);
    zenps_request_free(push);
    device_flight_end(&gpu, &flight, spec);
  }
  const zenps_rows_t share =
      ZENPS_ROWS_RANGE((uint64_t)rank->rank * (spec->rows / (uint64_t)rank->world), spec->rows / (uint64_t)rank->world);
  struct device_flight flight;
  zenps_grad_t list, host;
  device_flight_make(&gpu, &flight, spec, rank, 3);
  ZENPS_GRAD_INIT(&list);
  list.layout = ZENPS_ROWS;
  list.memory = ZENPS_DEVICE;
  list.stream = gpu.stream;
  CHECK_OK(zenps_reduce_scatter(tensor, 3, &flight.in, &share, &list, &flight.request));
  CHECK_OK(zenps_wait(flight.request, SOON_MS));
  struct spec as_rows = *spec;
  as_rows.rows_out = true;
  out_download(&gpu, &as_rows, &list, &host);
  CHECK(host.nnz > 0);
  for (uint64_t i = 0; i < host.nnz; i++)
    CHECK((uint64_t)host.row_ids[i] >= share.first && (uint64_t)host.row_ids[i] < share.first + share.count);
  grad_free(&host);
  if (!spec->rows_out) {
    zenps_request_t *request;
    CHECK_STATUS(zenps_reduce_scatter(tensor, 4, &flight.in, &share, &flight.out, &request), ZENPS_ERR_UNSUPPORTED);
    CHECK_SAYS(zenps_last_error()->text, "a dense array of some rows in device memory");
  }
  device_flight_end(&gpu, &flight, spec);
  device_end(&gpu, rank);
}

static void test_device_apart(void **state) {
  (void)state;
  for (unsigned i = 0; i < 3; i++) { /* from 1 on lists, then of halves */
    struct spec spec = {.rows = 3000, .width = 16, .dtype = ZENPS_F32, .rows_in = i, .rows_out = i, .density = 0.2};
    if (i == 2) spec.dtype = ZENPS_BF16, spec.repeats = 3;
    ZENPS_TENSOR_OPTIONS_INIT(&spec.options);
    spec.options.scheme = "balanced";
    ranks_run(cluster_shared(), 2, apart, &spec, 0);
  }
}

const struct CMUnitTest device_round_tests[] = {
    cmocka_unit_test(test_device_layouts),       cmocka_unit_test(test_device_bulk),
    cmocka_unit_test(test_device_direct),        cmocka_unit_test(test_device_halves),
    cmocka_unit_test(test_device_halves_direct), cmocka_unit_test(test_device_mixed),
    cmocka_unit_test(test_device_empty),         cmocka_unit_test(test_device_values),
    cmocka_unit_test(test_device_partitioners),  cmocka_unit_test(test_device_flights),
    cmocka_unit_test(test_device_unstopped),     cmocka_unit_test(test_device_apart)};
const size_t n_device_round_tests = sizeof device_round_tests / sizeof device_round_tests[0];
