/* Tensors whose scheme is chosen while they are used: the results are the same for any choice. */
#include "tests/integration/api_test.h"

enum { FLIGHT = 4, STEPS = 64 };

/* Steps as of a run that goes on where another one ended, some in flight at once; after half of them the gradients are
 * another kind, so that another scheme may be taken. */
static void check_counts(const zenps_tensor_t *tensor, const zenps_request_t *request) {
  const uint32_t n = zenps_tensor_partitions(tensor);
  zenps_request_stats_t stats = {.struct_size = sizeof stats};
  uint32_t *const counts = calloc(n + 1, sizeof *counts);
  uint64_t sum = 0;
  CHECK(counts != NULL);
  counts[n] = 77; /* more than a step may fill, under any scheme */
  CHECK_OK(zenps_request_partition_nnz(request, counts, NULL));
  CHECK_OK(zenps_request_stats(request, &stats));
  for (uint32_t p = 0; p < n; p++) sum += counts[p];
  CHECK(counts[n] == 77);
  CHECK(sum == (strcmp(stats.scheme, "balanced") == 0 ? stats.nnz_in : 0));
  free(counts);
}

static void steps(struct rank *rank) {
  const struct spec *specs = rank->arg;
  zenps_grad_t in[FLIGHT], out[FLIGHT];
  zenps_request_t *requests[FLIGHT];
  rank_open(rank);
  zenps_tensor_t *tensor = tensor_open(rank, "t", &specs[0]);
  zenps_tensor_info_t info = {.struct_size = sizeof info};
  CHECK_OK(zenps_tensor_info(tensor, &info));
  CHECK(strcmp(info.scheme, "auto") == 0);
  CHECK(tensor_open(rank, "t", &specs[0]) == tensor);
  for (uint64_t step = 100000; step < 100000 + 2 * STEPS; step += FLIGHT) {
    const struct spec *spec = &specs[step >= 100000 + STEPS];
    for (unsigned i = 0; i < FLIGHT; i++) {
      grad_make(spec, rank->rank, step + i, &in[i]);
      out_make(spec, &in[i], &out[i]);
    }
    for (unsigned i = 0; i < FLIGHT; i++) {
      const unsigned at = (i + (unsigned)rank->rank) % FLIGHT; /* ranks start them in different orders */
      CHECK_OK(zenps_allreduce(tensor, step + at, &in[at], &out[at], &requests[at]));
    }
    for (unsigned i = 0; i < FLIGHT; i++) {
      CHECK_OK(zenps_wait(requests[i], -1));
      check_counts(tensor, requests[i]);
      out_check(spec, rank->world, step + i, &out[i]);
      zenps_request_free(requests[i]);
      out_free(spec, &in[i], &out[i]);
      grad_free(&in[i]);
    }
  }
  CHECK_OK(zenps_barrier(rank->zenps)); /* a rank that leaves takes its undelivered messages with it */
  rank_close(rank);
}

/* Under any order another scheme may round otherwise: values whose sums are exact in every order. */
static void test_automatic_any_order(void **state) {
  (void)state;
  struct spec specs[2] = {{.rows = 20011, .width = 2, .dtype = ZENPS_F32, .density = 0.003, .few_values = true},
                          {.rows = 20011, .width = 2, .dtype = ZENPS_F32, .density = 0.9, .few_values = true}};
  ZENPS_TENSOR_OPTIONS_INIT(&specs[0].options);
  specs[0].options.scheme = "auto:any";
  specs[1].options = specs[0].options;
  ranks_run(cluster_shared(), 4, steps, specs, 0);
  specs[0].options.scheme = "auto:recursive-doubling,hierarchical"; /* each of them, and no other */
  specs[1].options = specs[0].options;
  ranks_run(cluster_shared(), 4, steps, specs, 0);
}

static void test_automatic(void **state) {
  (void)state;
  struct spec specs[2] = {{.rows = 20011, .width = 2, .dtype = ZENPS_F32, .density = 0.003},
                          {.rows = 20011, .width = 2, .dtype = ZENPS_F32, .density = 0.9}};
  ZENPS_TENSOR_OPTIONS_INIT(&specs[0].options);
  specs[0].options.scheme = "auto";
  specs[1].options = specs[0].options;
  ranks_run(cluster_shared(), 3, steps, specs, 0);
  const struct spec first = specs[0];
  specs[0] = specs[1];
  specs[1] = first;
  ranks_run(cluster_shared(), 4, steps, specs, 0);
  for (unsigned i = 0; i < 2; i++) specs[i].rows_in = specs[i].rows_out = true;
  ranks_run(cluster_shared(), 3, steps, specs, 0);
}

static void refusals(struct rank *rank) {
  struct spec spec = {.rows = 100, .width = 1, .dtype = ZENPS_F32};
  zenps_tensor_t *tensor;
  ZENPS_TENSOR_OPTIONS_INIT(&spec.options);
  rank_open(rank);
  spec.options.scheme = "auto:balanced,fast";
  CHECK_STATUS(zenps_tensor_open(rank->zenps, "t", 100, 1, ZENPS_F32, &spec.options, &tensor), ZENPS_ERR_INVALID);
  CHECK_SAYS(zenps_last_error()->text, "no scheme 'fast'");
  spec.options.scheme = "automatic";
  CHECK_STATUS(zenps_tensor_open(rank->zenps, "t", 100, 1, ZENPS_F32, &spec.options, &tensor), ZENPS_ERR_UNSUPPORTED);
  spec.options.scheme = "auto:agsparse";
  CHECK_OK(zenps_tensor_open(rank->zenps, "t", 100, 1, ZENPS_F32, &spec.options, &tensor));
  spec.options.scheme = "auto";
  CHECK_STATUS(zenps_tensor_open(rank->zenps, "t", 100, 1, ZENPS_F32, &spec.options, &tensor), ZENPS_ERR_SHAPE);
  CHECK_SAYS(zenps_last_error()->text, "auto:agsparse");
  spec.options.partitioner = ZENPS_PARTITIONER_HIERARCHICAL; /* which agsparse would leave out */
  spec.options.scheme = "auto:balanced,agsparse";
  CHECK_STATUS(zenps_tensor_open(rank->zenps, "u", 100, 1, ZENPS_F32, &spec.options, &tensor), ZENPS_ERR_UNSUPPORTED);
  CHECK_SAYS(zenps_last_error()->text, "rows are dealt to partitions for balanced alone");
  CHECK_SAYS(zenps_last_error()->text, "auto:balanced,agsparse");
  spec.options.partitioner = 0;
  spec.options.scheme = "auto:any";
  spec.options.order = ZENPS_ORDER_RANKS;
  CHECK_STATUS(zenps_tensor_open(rank->zenps, "v", 100, 1, ZENPS_F32, &spec.options, &tensor), ZENPS_ERR_INVALID);
  CHECK_SAYS(zenps_last_error()->text, "contradict each other");
  spec.options.order = 0;
  spec.options.partitioner = ZENPS_PARTITIONER_HIERARCHICAL;
  spec.options.scheme = "auto:balanced";
  CHECK_OK(zenps_tensor_open(rank->zenps, "u", 100, 1, ZENPS_F32, &spec.options, &tensor));
  rank_close(rank);
}

static void test_automatic_refusals(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 2, refusals, NULL, 0);
}

const struct CMUnitTest api_automatic_tests[] = {cmocka_unit_test(test_automatic),
                                                 cmocka_unit_test(test_automatic_any_order),
                                                 cmocka_unit_test(test_automatic_refusals)};
const size_t n_api_automatic_tests = sizeof api_automatic_tests / sizeof api_automatic_tests[0];
