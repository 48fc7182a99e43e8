/* Rounds on device memory that fail: what is said, and what is left. */
#include <signal.h>

#include "tests/integration/device_rig.h"

/* A bad row number, and arrays that are too small. */
static void failures(struct rank *rank) {
  const struct spec spec = {.rows = 500,
                            .width = 2,
                            .dtype = ZENPS_F32,
                            .rows_in = true,
                            .rows_out = true,
                            .density = 0.1,
                            .own_arrays = true};
  zenps_grad_t host, in, out;
  zenps_request_t *request;
  struct gpu gpu;
  device_begin(&gpu, rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &spec);
  grad_make(&spec, rank->rank, 0, &host);
  if (rank->rank == 0) host.row_ids[3] = 500;
  grad_upload(&gpu, &spec, &host, &in);
  out_new(&gpu, &spec, &in, &out);
  CHECK_OK(zenps_allreduce(tensor, 0, &in, &out, &request));
  CHECK_STATUS(zenps_wait(request, -1), ZENPS_ERR_INVALID);
  CHECK_SAYS(zenps_request_error(request)->text, rank->rank == 0 ? "position 3" : "rank 0");
  zenps_request_free(request);
  grad_delete(&gpu, &in);
  grad_free(&host);

  grad_make(&spec, rank->rank, 1, &host);
  grad_upload(&gpu, &spec, &host, &in);
  if (rank->rank == 1) out.capacity = 5;
  CHECK_OK(zenps_allreduce(tensor, 1, &in, &out, &request));
  CHECK_STATUS(zenps_wait(request, -1), rank->rank == 1 ? ZENPS_ERR_TRUNCATED : ZENPS_OK);
  if (rank->rank == 1) CHECK(zenps_request_error(request)->needed > 5);
  if (rank->rank == 0) device_out_check(&gpu, &spec, rank->world, 1, &out);
  zenps_request_free(request);
  grad_delete(&gpu, &in);
  grad_delete(&gpu, &out);
  grad_free(&host);
  device_end(&gpu, rank);
}

static void test_device_failures(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 2, failures, NULL, 0);
}

const struct CMUnitTest device_failure_tests[] = {cmocka_unit_test(test_device_failures)};
const size_t n_device_failure_tests = sizeof device_failure_tests / sizeof device_failure_tests[0];
