/* Results that are lists of rows in device memory, in arrays of the library's: as long as they are needed, also after
 * the job. device_end() finds what is not freed. */
#include "tests/integration/device_rig.h"

static const struct device_kind {
  const char *scheme;
  zenps_memory_t in;
} kinds[] = {{"balanced", ZENPS_DEVICE}, {"recursive-doubling", ZENPS_DEVICE}, {"agsparse", ZENPS_HOST}};

static struct spec spec_of(const struct device_kind *kind) {
  struct spec spec = {.rows = 3000, .width = 4, .dtype = ZENPS_F32, .rows_in = true, .rows_out = true, .density = 0.2};
  ZENPS_TENSOR_OPTIONS_INIT(&spec.options);
  spec.options.scheme = kind->scheme;
  return spec;
}

/* ranks_run() of each kind. */
static void run_kinds(rank_fn body) {
  for (unsigned i = 0; i < sizeof kinds / sizeof kinds[0]; i++) ranks_run(cluster_shared(), 2, body, &kinds[i], 0);
}

static void start(struct gpu *gpu, struct device_flight *flight, zenps_tensor_t *tensor, const struct spec *spec,
                  const struct rank *rank, uint64_t step) {
  const struct device_kind *const kind = rank->arg;
  device_flight_make(gpu, flight, spec, rank, step);
  CHECK_OK(zenps_allreduce(tensor, step, kind->in == ZENPS_HOST ? &flight->host : &flight->in, &flight->out,
                           &flight->request));
}

static void outlive(struct rank *rank) {
  const struct spec spec = spec_of(rank->arg);
  struct device_flight kept, taken, freed;
  struct gpu gpu;
  zenps_grad_t rows;
  device_begin(&gpu, rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &spec);
  start(&gpu, &kept, tensor, &spec, rank, 1);
  start(&gpu, &taken, tensor, &spec, rank, 2);
  start(&gpu, &freed, tensor, &spec, rank, 3);
  zenps_request_t *const requests[] = {kept.request, taken.request, freed.request};
  CHECK_OK(zenps_wait_all(requests, 3, SOON_MS));
  CHECK_OK(zenps_request_take(taken.request, &taken.out));
  CHECK(taken.out.memory == ZENPS_DEVICE && taken.out.device == 0);
  ZENPS_GRAD_INIT(&rows);
  CHECK_OK(zenps_request_take(freed.request, &rows));
  CHECK(rows.row_ids == freed.out.row_ids && rows.values == freed.out.values && rows.nnz == freed.out.nnz);
  zenps_rows_free(&rows);
  device_flight_end(&gpu, &freed, &spec);
  device_flight_end(&gpu, &taken, &spec);
  rank_close(rank);
  device_out_check(&gpu, &spec, rank->world, 1, &kept.out);
  device_out_check(&gpu, &spec, rank->world, 2, &taken.out);
  zenps_rows_free(&taken.out);
  device_flight_end(&gpu, &kept, &spec);
  device_end(&gpu, rank);
}

static void test_device_results_outlive_the_job(void **state) {
  (void)state;
  run_kinds(outlive);
}

/* ------------------------------------------------------------ kept */

/* On rank 0 the arrays are too small: the result comes to larger ones, then to the library's. */
static void fetches(struct rank *rank) {
  struct spec spec = spec_of(rank->arg);
  struct device_flight flight;
  struct gpu gpu;
  zenps_grad_t rows;
  device_begin(&gpu, rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &spec);
  spec.own_arrays = true;
  for (uint64_t step = 1; step <= 2; step++) {
    const struct device_kind *const kind = rank->arg;
    device_flight_make(&gpu, &flight, &spec, rank, step);
    if (rank->rank == 0) flight.out.capacity = 5;
    CHECK_OK(zenps_allreduce(tensor, step, kind->in == ZENPS_HOST ? &flight.host : &flight.in, &flight.out,
                             &flight.request));
    CHECK_STATUS(zenps_wait(flight.request, SOON_MS), rank->rank == 0 ? ZENPS_ERR_TRUNCATED : ZENPS_OK);
    rows = flight.out;
    if (rank->rank == 0) {
      const uint64_t needed = zenps_request_error(flight.request)->needed;
      CHECK(needed > 5);
      CHECK_STATUS(zenps_request_fetch(flight.request, &rows), ZENPS_ERR_TRUNCATED);
      rows.memory = ZENPS_HOST;
      rows.capacity = needed;
      CHECK_STATUS(zenps_request_fetch(flight.request, &rows), ZENPS_ERR_UNSUPPORTED);
      rows.memory = ZENPS_DEVICE;
      if (step == 2) rows.row_ids = rows.values = NULL;
      CHECK_OK(zenps_request_fetch(flight.request, &rows));
      CHECK(rows.nnz == needed);
    }
    CHECK_OK(zenps_test(flight.request));
    device_out_check(&gpu, &spec, rank->world, step, &rows);
    if (step == 2) rank_close(rank);
    device_flight_end(&gpu, &flight, &spec);
  }
  device_end(&gpu, rank);
}

static void test_device_results_are_kept(void **state) {
  (void)state;
  run_kinds(fetches);
}

const struct CMUnitTest device_result_tests[] = {
    cmocka_unit_test(test_device_results_outlive_the_job),
    cmocka_unit_test(test_device_results_are_kept),
};
const size_t n_device_result_tests = sizeof device_result_tests / sizeof device_result_tests[0];
