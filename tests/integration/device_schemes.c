/* Every scheme takes device memory, and gives the same result as for host memory. */
#include "tests/integration/device_rig.h"

enum { WORLD = 4 };

static const struct {
  const char *scheme;
  bool as_host; /* sums in another order, rows of zeros, or only the greatest */
  int keep_zero_rows;
} schemes[] = {
    {.scheme = "balanced"},
    {.scheme = "balanced:partitioner=murmur"},
    {.scheme = "hierarchical:balanced,partitioner=murmur", .as_host = true},
    {.scheme = "balanced", .keep_zero_rows = 1},
    {.scheme = "split-allgather", .as_host = true, .keep_zero_rows = 1},
    {.scheme = "sparse-ps"},
    {.scheme = "dense-ps", .as_host = true},
    {.scheme = "omnireduce", .as_host = true},
    {.scheme = "recursive-doubling", .as_host = true},
    {.scheme = "split-allgather", .as_host = true},
    {.scheme = "agsparse", .as_host = true},
    {.scheme = "dsar", .as_host = true},
    {.scheme = "dense-split", .as_host = true},
    {.scheme = "bitmap-split", .as_host = true},
    {.scheme = "ring", .as_host = true},
    {.scheme = "rabenseifner", .as_host = true},
    {.scheme = "two-level", .as_host = true},
    {.scheme = "blueconnect", .as_host = true},
    {.scheme = "hierarchical", .as_host = true},
    {.scheme = "hierarchical:ring", .as_host = true},
    {.scheme = "oktopk:k=40", .as_host = true},
    {.scheme = "gtopk:k=40", .as_host = true},
    {.scheme = "topka:k=40", .as_host = true},
    {.scheme = "topkdsa:k=40", .as_host = true},
    {.scheme = "gaussiank:k=40", .as_host = true},
};

static void all_schemes(struct rank *rank) {
  struct device_case is = *(const struct device_case *)rank->arg;
  struct gpu gpu;
  char name[64], twin_name[80];
  device_set_host(rank);
  device_begin(&gpu, rank);
  for (unsigned i = 0; i < sizeof schemes / sizeof schemes[0]; i++) {
    ZENPS_TENSOR_OPTIONS_INIT(&is.spec.options);
    is.spec.options.scheme = schemes[i].scheme;
    is.spec.options.keep_zero_rows = schemes[i].keep_zero_rows;
    is.spec.few_values = schemes[i].keep_zero_rows; /* some rows of zeros */
    is.as_host = schemes[i].as_host;
    snprintf(name, sizeof name, "%s%s", schemes[i].scheme, schemes[i].keep_zero_rows ? " with zeros" : "");
    snprintf(twin_name, sizeof twin_name, "twin of %s", name);
    zenps_tensor_t *const tensor = tensor_open(rank, name, &is.spec);
    zenps_tensor_t *const twin = tensor_open(rank, twin_name, &is.spec);
    for (uint64_t step = 0; step < 2; step++) device_step(&gpu, tensor, twin, &is, rank, step);
  }
  device_end(&gpu, rank);
}

static void test_device_schemes(void **state) {
  (void)state;
  for (unsigned bits = 0; bits < 4; bits++) {
    const struct device_case is = {.spec = {.rows = 1500,
                                            .width = bits & 1 ? 3 : 1,
                                            .dtype = bits & 1 ? ZENPS_F64 : ZENPS_F32,
                                            .rows_in = bits & 1,
                                            .rows_out = bits & 2,
                                            .repeats = 2,
                                            .own_arrays = bits & 1,
                                            .density = 0.1}};
    ranks_run(cluster_shared(), WORLD, all_schemes, &is, 0);
  }
}

/* Halves: repeats in lists are added as floats, on the device or, where a scheme works there, in host memory. */
static void test_device_schemes_halves(void **state) {
  (void)state;
  for (unsigned bits = 0; bits < 4; bits++) {
    const struct device_case is = {.spec = {.rows = 1100,
                                            .width = bits & 1 ? 3 : 1,
                                            .dtype = bits & 2 ? ZENPS_F16 : ZENPS_BF16,
                                            .rows_in = bits & 1,
                                            .rows_out = bits & 2,
                                            .repeats = 2,
                                            .own_arrays = bits & 1,
                                            .density = 0.1}};
    ranks_run(cluster_shared(), WORLD, all_schemes, &is, 0);
  }
}

/* One side in host memory; and gradients so full that they are brought as they are. */
static void test_device_schemes_mixed(void **state) {
  (void)state;
  struct device_case is = {.spec = {.rows = 700, .width = 4, .dtype = ZENPS_F32, .density = 0.9}, .in_on_host = true};
  ranks_run(cluster_shared(), WORLD, all_schemes, &is, 0);
  is.in_on_host = false;
  is.out_on_host = true;
  ranks_run(cluster_shared(), WORLD, all_schemes, &is, 0);
  is.out_on_host = false;
  is.spec.density = 1;
  is.spec.in_place = true;
  ranks_run(cluster_shared(), WORLD, all_schemes, &is, 0);
  is.spec.in_place = false;
  is.spec.density = 0;
  ranks_run(cluster_shared(), WORLD, all_schemes, &is, 0);
}

/* Values that are not numbers, and zeros with a sign, which none of them keeps; on one rank, too. */
static void odd_values(struct rank *rank) {
  struct device_case is = {.spec = {.rows = 900, .width = 3, .dtype = ZENPS_F32, .density = 0.3, .odd_values = true},
                           .as_host = true};
  static const char *const some[] = {"omnireduce", "dense-ps", "ring", "recursive-doubling", "dsar", "hierarchical"};
  struct gpu gpu;
  char twin_name[80];
  device_begin(&gpu, rank);
  for (unsigned i = 0; i < sizeof some / sizeof some[0]; i++) {
    ZENPS_TENSOR_OPTIONS_INIT(&is.spec.options);
    is.spec.options.scheme = some[i];
    snprintf(twin_name, sizeof twin_name, "twin of %s", some[i]);
    zenps_tensor_t *const tensor = tensor_open(rank, some[i], &is.spec);
    zenps_tensor_t *const twin = tensor_open(rank, twin_name, &is.spec);
    device_step(&gpu, tensor, twin, &is, rank, 0);
  }
  device_end(&gpu, rank);
}

static void test_device_schemes_odd(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 1, odd_values, NULL, 0);
  ranks_run(cluster_shared(), 2, odd_values, NULL, 0);
}

/* The greatest and the least, of schemes that know them. */
static void test_device_schemes_max(void **state) {
  (void)state;
  static const char *const some[] = {"balanced", "sparse-ps", "recursive-doubling", "split-allgather",
                                     "hierarchical:split-allgather"};
  for (unsigned i = 0; i < sizeof some / sizeof some[0]; i++) {
    struct device_case is = {
        .spec = {.rows = 800, .width = 2, .dtype = ZENPS_F32, .density = 0.3, .rows_in = i & 1, .rows_out = i & 2},
        .as_host = true};
    ZENPS_TENSOR_OPTIONS_INIT(&is.spec.options);
    is.spec.options.scheme = some[i];
    is.spec.options.op = i & 1 ? ZENPS_OP_MIN : ZENPS_OP_MAX;
    ranks_run(cluster_shared(), 3, device_steps, &is, 0);
  }
}

/* The coordinator chooses: ranks report the rows that the device found in the gradient. */
static void automatic(struct rank *rank) {
  struct device_case is = *(const struct device_case *)rank->arg;
  struct gpu gpu;
  device_begin(&gpu, rank);
  ZENPS_TENSOR_OPTIONS_INIT(&is.spec.options);
  is.spec.options.scheme = "auto";
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &is.spec), *const twin = tensor_open(rank, "twin", &is.spec);
  for (uint64_t step = 0; step < 30; step++) device_step(&gpu, tensor, twin, &is, rank, step);
  device_end(&gpu, rank);
}

static void test_device_automatic(void **state) {
  (void)state;
  struct device_case is = {.spec = {.rows = 2000, .width = 1, .dtype = ZENPS_F32, .density = 0.1}, .other_costs = true};
  ranks_run(cluster_shared(), 2, automatic, &is, 0);
  is.spec.rows_in = is.spec.rows_out = true;
  ranks_run(cluster_shared(), 2, automatic, &is, 0);
}

/* The gradient is filled after the call, which the coordinator is to be asked for: nothing of it waits in the call. */
static void automatic_late(struct rank *rank) {
  const struct spec spec = {.rows = 2000,
                            .width = 1,
                            .dtype = ZENPS_F32,
                            .density = 0.1,
                            .options = {.struct_size = sizeof(zenps_tensor_options_t), .scheme = "auto"}};
  struct device_flight flight;
  struct gpu gpu;
  device_begin(&gpu, rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &spec);
  for (uint64_t step = 0; step < 8; step++) {
    const bool is_late = rank->rank == (int)step % rank->world;
    device_flight_make(&gpu, &flight, &spec, rank, step);
    if (is_late) gpu_hold(&gpu, true);
    CHECK_OK(zenps_allreduce(tensor, step, &flight.in, &flight.out, &flight.request));
    if (is_late) {
      CHECK(zenps_test(flight.request) == ZENPS_IN_PROGRESS);
      gpu_hold(&gpu, false);
    }
    CHECK_OK(zenps_wait(flight.request, -1));
    device_out_check(&gpu, &spec, rank->world, step, &flight.out);
    device_flight_end(&gpu, &flight, &spec);
  }
  device_end(&gpu, rank);
}

static void test_device_automatic_late(void **state) {
  (void)state;
  if (!gpu_is_emulated()) skip(); /* nothing holds a stream of a real one */
  ranks_run(cluster_shared(), 3, automatic_late, NULL, 0);
}

const struct CMUnitTest device_scheme_tests[] = {
    cmocka_unit_test(test_device_schemes),       cmocka_unit_test(test_device_schemes_halves),
    cmocka_unit_test(test_device_schemes_mixed), cmocka_unit_test(test_device_schemes_odd),
    cmocka_unit_test(test_device_schemes_max),   cmocka_unit_test(test_device_automatic),
    cmocka_unit_test(test_device_automatic_late)};
const size_t n_device_scheme_tests = sizeof device_scheme_tests / sizeof device_scheme_tests[0];
