/* The results of rounds, for gradients of every kind. */
#include "tests/integration/api_test.h"
#include "tests/support/sanitized.h"
#include "tests/support/thin.h"

static const struct spec *spec_of(const struct rank *rank) {
  return rank->arg;
}

/* A few steps one by one, then several in flight, finished in another order. */
static void steps(struct rank *rank) {
  enum { FLIGHT = 4 };
  const struct spec *spec = spec_of(rank);
  zenps_grad_t in[FLIGHT], out[FLIGHT];
  zenps_request_t *requests[FLIGHT];
  rank_open(rank);
  zenps_tensor_t *tensor = tensor_open(rank, "t", spec);
  for (uint64_t step = 0; step < 3; step++) step_run(tensor, spec, rank, step);
  for (unsigned i = 0; i < FLIGHT; i++) {
    grad_make(spec, rank->rank, 10 + i, &in[i]);
    out_make(spec, &in[i], &out[i]);
  }
  for (unsigned i = 0; i < FLIGHT; i++) {
    const unsigned at = (i + (unsigned)rank->rank) % FLIGHT; /* ranks start them in different orders */
    CHECK_OK(zenps_allreduce(tensor, 10 + at, &in[at], &out[at], &requests[at]));
  }
  for (unsigned i = FLIGHT; i-- > 0;) {
    CHECK_OK(zenps_wait(requests[i], -1));
    out_check(spec, rank->world, 10 + i, &out[i]);
    zenps_request_free(requests[i]);
    out_free(spec, &in[i], &out[i]);
    grad_free(&in[i]);
  }
  rank_close(rank);
}

static void test_layouts(void **state) {
  (void)state;
  for (unsigned bits = 0; bits < 16; bits++) {
    if (thin_skips_repeated()) continue;
    const struct spec spec = {.rows = 5003,
                              .width = bits & 1 ? 3 : 1,
                              .dtype = bits & 2 ? ZENPS_F64 : ZENPS_F32,
                              .rows_in = bits & 4,
                              .rows_out = bits & 8,
                              .repeats = 3,
                              .density = 0.05,
                              .own_arrays = bits & 1};
    ranks_run(cluster_shared(), 3, steps, &spec, 0);
  }
}

static void test_worlds(void **state) {
  (void)state;
  static const int worlds[] = {1, 2, 5, 8, 16};
  const struct spec spec = {
      .rows = 3000, .width = 2, .dtype = ZENPS_F32, .rows_in = true, .repeats = 2, .density = 0.03};
  for (unsigned i = 0; i < sizeof worlds / sizeof worlds[0]; i++)
    ranks_run(cluster_shared(), worlds[i], steps, &spec, 0);
}

static void test_empty(void **state) {
  (void)state;
  struct spec spec = {.rows = 1000, .width = 4, .dtype = ZENPS_F64, .rows_in = true, .rows_out = true, .density = 0.1};
  spec.empty = 3; /* ranks 0 and 3 of 4 have rows */
  ranks_run(cluster_shared(), 4, steps, &spec, 0);
  spec.rows_in = false;
  spec.density = 0; /* no rank has rows */
  ranks_run(cluster_shared(), 2, steps, &spec, 0);
  spec.rows_out = false;
  ranks_run(cluster_shared(), 2, steps, &spec, 0);
}

static void test_large(void **state) {
  (void)state;
  const struct spec dense = {.rows = 300007, .width = 4, .dtype = ZENPS_F32, .density = 0.5};
  const struct spec rows = {
      .rows = 300007, .width = 4, .dtype = ZENPS_F32, .rows_in = true, .rows_out = true, .density = 0.3};
  ranks_run(cluster_shared(), 2, steps, &dense, 0);
  ranks_run(cluster_shared(), 2, steps, &rows, 0);
}

/* Of several stripes, which are announced while others are looked for. */
static void test_stripes(void **state) {
  (void)state;
  struct spec spec = {.rows = (4 << 20) + 20001, .width = 1, .dtype = ZENPS_F32, .density = 0.02};
  ZENPS_TENSOR_OPTIONS_INIT(&spec.options);
  spec.options.partitions = 36;
  ranks_run(cluster_shared(), 3, steps, &spec, 0);
  spec.rows = (2 << 20) + 20001;
  spec.options.partitions = 18;
  spec.in_place = true;
  ranks_run(cluster_shared(), 2, steps, &spec, 0);
  spec.in_place = false;
  spec.rows_out = true;
  ranks_run(cluster_shared(), 2, steps, &spec, 0);
  spec.dtype = ZENPS_F64;
  spec.rows_in = spec.own_arrays = true;
  ranks_run(cluster_shared(), 2, steps, &spec, 0);
}

/* Every read takes a while, so that scans wait for sums; in some rounds they wait in vain, because a rank comes late,
 * or because ranks begin two rounds in different orders. */
static void slow_steps(struct rank *rank) {
  const struct spec *spec = rank->arg;
  const char *provider = getenv("ZENPS_PROVIDER");
  char faulty[64];
  snprintf(faulty, sizeof faulty, "%s%s", provider && strncmp(provider, "fault+", 6) == 0 ? "" : "fault+",
           provider ? provider : "auto");
  setenv("ZENPS_PROVIDER", faulty, 1);
  setenv("ZENPS_FABRIC_FAULT", "delay=1:10ms", 1);
  rank_open(rank);
  zenps_tensor_t *tensors[] = {tensor_open(rank, "a", spec), tensor_open(rank, "b", spec)};
  for (uint64_t step = 0; step < 3; step++) step_run(tensors[0], spec, rank, step);
  if (rank->rank == 1) usleep(150000);
  step_run(tensors[0], spec, rank, 3);
  zenps_grad_t in[2], out[2];
  zenps_request_t *requests[2];
  for (unsigned i = 0; i < 2; i++) {
    grad_make(spec, rank->rank, 4 + i, &in[i]);
    out_make(spec, &in[i], &out[i]);
  }
  for (unsigned i = 0; i < 2; i++) {
    const unsigned at = (i + (unsigned)rank->rank) % 2;
    CHECK_OK(zenps_allreduce(tensors[at], 4 + at, &in[at], &out[at], &requests[at]));
  }
  for (unsigned i = 0; i < 2; i++) {
    CHECK_OK(zenps_wait(requests[i], -1));
    out_check(spec, rank->world, 4 + i, &out[i]);
    zenps_request_free(requests[i]);
    out_free(spec, &in[i], &out[i]);
    grad_free(&in[i]);
  }
  rank_close(rank);
}

static void test_slow_links(void **state) {
  (void)state;
  struct spec spec = {.rows = (4 << 20) + 20001, .width = 1, .dtype = ZENPS_F32, .density = 0.05};
  ZENPS_TENSOR_OPTIONS_INIT(&spec.options);
  spec.options.partitions = 36;
  ranks_run(cluster_shared(), 2, slow_steps, &spec, 0);
  spec.rows_out = true; /* put in order while others come */
  ranks_run(cluster_shared(), 2, slow_steps, &spec, 0);
}

static void test_in_place(void **state) {
  (void)state;
  const struct spec spec = {.rows = 60000, .width = 3, .dtype = ZENPS_F32, .density = 0.4, .in_place = true};
  ranks_run(cluster_shared(), 3, steps, &spec, 0);
}

static void test_odd_values(void **state) {
  (void)state;
  struct spec spec = {.rows = 2000, .width = 2, .dtype = ZENPS_F32, .density = 0.3, .odd_values = true};
  ranks_run(cluster_shared(), 3, steps, &spec, 0);
  spec.rows_in = spec.rows_out = true;
  spec.repeats = 2;
  ranks_run(cluster_shared(), 3, steps, &spec, 0);
}

/* Halves: floats between ranks, rounded once. */
static void test_halves(void **state) {
  (void)state;
  for (unsigned bits = 0; bits < 16; bits++) {
    if (thin_skips_repeated()) continue;
    struct spec spec = {.rows = bits & 1 ? 5003 : 1200007,
                        .width = bits & 1 ? 3 : 1,
                        .dtype = bits & 2 ? ZENPS_F16 : ZENPS_BF16,
                        .rows_in = bits & 4,
                        .rows_out = bits & 8,
                        .repeats = bits & 8 ? 3 : 1,
                        .density = 0.05,
                        .own_arrays = bits & 1};
    ZENPS_TENSOR_OPTIONS_INIT(&spec.options);
    spec.options.op = bits % 3 == 0 ? ZENPS_OP_MEAN : bits % 3 == 1 ? ZENPS_OP_SUM : ZENPS_OP_MAX;
    ranks_run(cluster_shared(), 3, steps, &spec, 0);
    spec.rows = 2000;
    spec.odd_values = true;
    spec.options.op = ZENPS_OP_SUM;
    ranks_run(cluster_shared(), 2, steps, &spec, 0);
  }
}

static void test_extremes(void **state) {
  (void)state;
  struct spec spec = {.rows = 700, .width = 2, .dtype = ZENPS_F32, .density = 0.5, .few_values = true};
  ZENPS_TENSOR_OPTIONS_INIT(&spec.options);
  for (unsigned i = 0; i < 8; i++) {
    spec.options.op = i % 2 ? ZENPS_OP_MIN : ZENPS_OP_MAX;
    spec.dtype = i % 3 == 0 ? ZENPS_F64 : ZENPS_F32;
    spec.rows_out = i & 2;
    spec.density = i & 4 ? 1 : 0.5; /* of all rows, and of most */
    ranks_run(cluster_shared(), 4, steps, &spec, 0);
  }
}

static void test_algorithm_1(void **state) {
  (void)state;
  struct spec spec = {.rows = 10007, .width = 2, .dtype = ZENPS_F32, .density = 0.1};
  ZENPS_TENSOR_OPTIONS_INIT(&spec.options);
  for (unsigned i = 0; i < 2; i++) {
    spec.rows_in = i;
    spec.options.scheme = "balanced:partitioner=hierarchical";
    for (unsigned codec = ZENPS_CODEC_AUTO; codec <= ZENPS_CODEC_COO; codec++) {
      spec.options.codec = (zenps_codec_t)codec;
      ranks_run(cluster_shared(), 3, steps, &spec, 0);
    }
    setenv("ZENPS_TEST_HOSTS", "2", 1);
    spec.options.scheme = "hierarchical:partitioner=hierarchical"; /* the count is of the rows that hosts push */
    ranks_run(cluster_shared(), 3, steps, &spec, 0);
    unsetenv("ZENPS_TEST_HOSTS");
  }
}

static void test_tensor_options(void **state) {
  (void)state;
  struct spec spec = {.rows = 10007, .width = 2, .dtype = ZENPS_F32, .density = 0.1};
  ZENPS_TENSOR_OPTIONS_INIT(&spec.options);
  for (spec.options.op = ZENPS_OP_MEAN; spec.options.op <= ZENPS_OP_MIN; spec.options.op++)
    ranks_run(cluster_shared(), 3, steps, &spec, 0);
  ZENPS_TENSOR_OPTIONS_INIT(&spec.options);
  spec.options.partitions = 1; /* fewer than servers and ranks */
  spec.options.scheme = "balanced:block_bits=5";
  ranks_run(cluster_shared(), 3, steps, &spec, 0);
  spec.options.partitions = 100; /* more slices than a frame takes */
  spec.options.scheme = "balanced:partitioner=hierarchical";
  ranks_run(cluster_shared(), 3, steps, &spec, 0);
  spec.rows = 1;
  spec.density = 1;
  spec.rows_out = true;
  ranks_run(cluster_shared(), 3, steps, &spec, 0);
}

/* ------------------------------------------------------------ many at once */

static void several_tensors(struct rank *rank) {
  enum { N = 5 };
  zenps_tensor_t *tensors[N], *again;
  zenps_grad_t in[N], out[N];
  zenps_request_t *requests[N];
  struct spec specs[N];
  rank_open(rank);
  for (unsigned t = 0; t < N; t++) {
    const unsigned at = (t + (unsigned)rank->rank) % N;
    char name[16];
    snprintf(name, sizeof name, "tensor %u", at);
    specs[at] = (struct spec){.rows = 1000 * (at + 1),
                              .width = at + 1,
                              .dtype = at % 2 ? ZENPS_F64 : ZENPS_F32,
                              .rows_in = at % 2,
                              .repeats = 2,
                              .density = 0.1};
    tensors[at] = tensor_open(rank, name, &specs[at]);
    CHECK_OK(zenps_tensor_open(rank->zenps, name, specs[at].rows, specs[at].width, specs[at].dtype, NULL, &again));
    CHECK(again == tensors[at]);
  }
  for (uint64_t step = 0; step < 3; step++) {
    for (unsigned t = 0; t < N; t++) {
      grad_make(&specs[t], rank->rank, step, &in[t]);
      out_make(&specs[t], &in[t], &out[t]);
      CHECK_OK(zenps_allreduce(tensors[t], step, &in[t], &out[t], &requests[t]));
    }
    for (unsigned t = 0; t < N; t++) {
      CHECK_OK(zenps_wait(requests[t], -1));
      out_check(&specs[t], rank->world, step, &out[t]);
      zenps_request_free(requests[t]);
      out_free(&specs[t], &in[t], &out[t]);
      grad_free(&in[t]);
    }
  }
  rank_close(rank);
}

static void test_several_tensors(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 4, several_tensors, NULL, 0);
}

static void test_several_jobs(void **state) {
  (void)state;
  const struct spec spec = {.rows = 4000, .width = 2, .dtype = ZENPS_F32, .density = 0.2};
  struct ranks ranks[3];
  for (unsigned j = 0; j < 3; j++) ranks_start(&ranks[j], cluster_shared(), (int)j + 2, steps, &spec);
  for (unsigned j = 0; j < 3; j++) ranks_wait(&ranks[j], 0);
}

static size_t resident_kib(void) {
  char line[128];
  size_t kib = 0;
  FILE *in = fopen("/proc/self/status", "re");
  CHECK(in != NULL);
  while (fgets(line, sizeof line, in)) sscanf(line, "VmRSS: %zu", &kib);
  fclose(in);
  return kib;
}

static void many_rounds(struct rank *rank) {
  const struct spec spec = {
      .rows = 5000, .width = 8, .dtype = ZENPS_F32, .rows_in = true, .rows_out = true, .density = 0.2};
  zenps_grad_t in, out;
  zenps_request_t *request;
  size_t before = 0;
  rank_open(rank);
  zenps_tensor_t *tensor = tensor_open(rank, "t", &spec);
  grad_make(&spec, rank->rank, 0, &in);
  for (uint64_t step = 0; step < 600; step++) {
    if (step == 200) before = resident_kib();
    out_make(&spec, &in, &out);
    CHECK_OK(zenps_allreduce(tensor, step, &in, &out, &request));
    CHECK_OK(zenps_wait(request, -1));
    zenps_request_free(request);
  }
#if !defined SANITIZED_ADDRESS && !defined SANITIZED_THREAD /* those sanitizers keep freed memory */
  CHECK(resident_kib() < before + 1024);
#else
  CHECK(resident_kib() > before / 2);
#endif
  grad_free(&in);
  rank_close(rank);
}

static void test_many_rounds(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 2, many_rounds, NULL, 0);
}

const struct CMUnitTest api_round_tests[] = {
    cmocka_unit_test(test_layouts),         cmocka_unit_test(test_halves),         cmocka_unit_test(test_worlds),
    cmocka_unit_test(test_empty),           cmocka_unit_test(test_large),          cmocka_unit_test(test_stripes),
    cmocka_unit_test(test_slow_links),      cmocka_unit_test(test_in_place),       cmocka_unit_test(test_odd_values),
    cmocka_unit_test(test_extremes),        cmocka_unit_test(test_tensor_options), cmocka_unit_test(test_algorithm_1),
    cmocka_unit_test(test_several_tensors), cmocka_unit_test(test_several_jobs),   cmocka_unit_test(test_many_rounds),
};
const size_t n_api_round_tests = sizeof api_round_tests / sizeof api_round_tests[0];
