/* What must come out of rounds, whatever goes in. */
#include <poll.h>

#include "tests/integration/api_test.h"
#include "tests/support/sanitized.h"

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
  spec.density = 0; /* nobody has */
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
}

/* Every read takes a while, so that scans wait for sums; in some rounds in vain, because a rank comes late, or because
 * ranks begin two rounds in different orders. */
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

static void test_tensor_options(void **state) {
  (void)state;
  struct spec spec = {.rows = 10007, .width = 2, .dtype = ZENPS_F32, .density = 0.1};
  ZENPS_TENSOR_OPTIONS_INIT(&spec.options);
  for (spec.options.op = ZENPS_OP_MEAN; spec.options.op <= ZENPS_OP_MIN; spec.options.op++)
    ranks_run(cluster_shared(), 3, steps, &spec, 0);
  ZENPS_TENSOR_OPTIONS_INIT(&spec.options);
  spec.options.partitions = 1; /* fewer than servers and ranks */
  spec.options.block_bits = 5;
  ranks_run(cluster_shared(), 3, steps, &spec, 0);
  spec.options.partitions = 100; /* more slices than a frame takes */
  spec.options.hierarchical = 1;
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
#if !defined SANITIZED_ADDRESS && !defined SANITIZED_THREAD /* which keep what was freed */
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

/* ------------------------------------------------------------ collectives */

static void barriers(struct rank *rank) {
  rank_open(rank);
  for (unsigned i = 0; i < 20; i++) {
    atomic_fetch_add(&rank->words[0], 1);
    CHECK_OK(zenps_barrier(rank->zenps));
    CHECK(atomic_load(&rank->words[0]) >= (i + 1) * (unsigned)rank->world);
  }
  rank_close(rank);
}

static void test_barrier(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 1, barriers, NULL, 0);
  ranks_run(cluster_shared(), 4, barriers, NULL, 0);
}

static void broadcasts(struct rank *rank) {
  static const size_t lengths[] = {0, 1, 63, 64, 65, 4u << 20, (9u << 20) + 17};
  rank_open(rank);
  for (unsigned i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
    const size_t len = lengths[i];
    const int root = (int)i % rank->world;
    unsigned char *data = malloc(len + 1);
    CHECK(data != NULL);
    for (size_t k = 0; k < len; k++) {
      const unsigned char wanted = (unsigned char)(k % 251 < 200 ? 0 : k * 7 + i); /* with whole rows of zeros */
      data[k] = rank->rank == root ? wanted : 0xee;
    }
    data[len] = 0x5a;
    CHECK_OK(zenps_broadcast(rank->zenps, data, len, root));
    for (size_t k = 0; k < len; k++) CHECK(data[k] == (unsigned char)(k % 251 < 200 ? 0 : k * 7 + i));
    CHECK(data[len] == 0x5a);
    free(data);
  }
  rank_close(rank);
}

static void test_broadcast(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 3, broadcasts, NULL, 0);
}

/* ------------------------------------------------------------ requests */

static void waiting(struct rank *rank) {
  const struct spec spec = {.rows = 1000, .width = 1, .dtype = ZENPS_F32, .density = 0.5};
  zenps_grad_t in, out;
  zenps_request_t *request;
  zenps_request_stats_t stats = {.struct_size = sizeof stats};
  rank_open(rank);
  zenps_tensor_t *tensor = tensor_open(rank, "t", &spec);
  grad_make(&spec, rank->rank, 1, &in);
  out_make(&spec, &in, &out);
  if (rank->rank == 1) rank_await(rank, 0, 1);
  CHECK_OK(zenps_allreduce(tensor, 1, &in, &out, &request));
  if (rank->rank == 0) {
    zenps_request_t *second;
    struct pollfd poll_fd = {.fd = zenps_get_fd(rank->zenps), .events = POLLIN};
    CHECK_STATUS(zenps_test(request), ZENPS_IN_PROGRESS);
    CHECK_STATUS(zenps_wait(request, 0), ZENPS_IN_PROGRESS);
    CHECK_STATUS(zenps_wait(request, 30), ZENPS_IN_PROGRESS);
    CHECK_STATUS(zenps_request_stats(request, &stats), ZENPS_ERR_BUSY);
    CHECK_STATUS(zenps_allreduce(tensor, 1, &in, &out, &second), ZENPS_ERR_BUSY);
    CHECK(poll(&poll_fd, 1, 0) == 0);
    atomic_store(&rank->words[0], 1);
    CHECK(poll(&poll_fd, 1, 20000) == 1);
    uint64_t count;
    CHECK(read(poll_fd.fd, &count, sizeof count) == sizeof count && count == 1);
    CHECK_OK(zenps_test(request));
  }
  CHECK_OK(zenps_wait(request, 20000));
  CHECK_OK(zenps_cancel(request)); /* too late: nothing happens */
  CHECK_OK(zenps_test(request));
  out_check(&spec, 2, 1, &out);
  zenps_request_free(request);
  zenps_request_free(NULL);
  out_free(&spec, &in, &out);
  grad_free(&in);
  rank_close(rank);
}

static void test_waiting(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 2, waiting, NULL, 0);
}

/* Sizes are what the formulas say: COO out, hash bitmaps in; or near the entropy. */
static void costs(struct rank *rank) {
  enum { ROWS = 64000, PARTS = 8 };
  struct spec spec = {.rows = ROWS, .width = 1, .dtype = ZENPS_F32, .density = 0.1};
  zenps_grad_t in, out;
  zenps_request_t *request;
  zenps_request_stats_t stats = {.struct_size = sizeof stats};
  uint32_t sent[PARTS], in_union[PARTS];
  uint64_t n_sent = 0, n_union = 0, nnz = 0;
  ZENPS_TENSOR_OPTIONS_INIT(&spec.options);
  spec.options.partitions = PARTS;
  spec.options.codec = *(const zenps_codec_t *)rank->arg;
  rank_open(rank);
  zenps_tensor_t *tensor = tensor_open(rank, "t", &spec);
  CHECK(zenps_tensor_partitions(tensor) == PARTS);
  CHECK(zenps_tensor_owner(tensor, PARTS) == -1);
  grad_make(&spec, rank->rank, 1, &in);
  out_make(&spec, &in, &out);
  for (unsigned i = 0; i < ROWS; i++) nnz += ((const float *)in.values)[i] != 0;
  CHECK_OK(zenps_allreduce(tensor, 1, &in, &out, &request));
  CHECK_OK(zenps_wait(request, -1));
  CHECK_OK(zenps_request_stats(request, &stats));
  CHECK_OK(zenps_request_partition_nnz(request, sent, in_union));
  for (unsigned p = 0; p < PARTS; p++) {
    const int owner = zenps_tensor_owner(tensor, p);
    CHECK(owner >= 0 && owner < zenps_servers(rank->zenps));
    n_sent += sent[p];
    n_union += in_union[p];
    CHECK(sent[p] * PARTS < 1.2 * (double)nnz);
  }
  CHECK(stats.partitions == PARTS);
  CHECK(stats.nnz_in == nnz && n_sent == nnz);
  CHECK(stats.nnz_out == n_union && out.nnz == n_union);
  const double payload = (double)(stats.payload_out + stats.payload_in), bound = (double)stats.bound_bytes;
  CHECK(stats.bound_bytes > 4 * (nnz + n_union));
  if (spec.options.codec == ZENPS_CODEC_PAPER) {
    CHECK(stats.payload_out == 8 * nnz);
    CHECK(stats.payload_in == 4 * n_union + ROWS / 8);
  } else {
    CHECK(payload > 0.99 * bound && payload < 1.01 * bound);
  }
  CHECK(stats.bytes_out > stats.payload_out && stats.bytes_out < stats.payload_out + 2048);
  CHECK(stats.bytes_in > stats.payload_in && stats.bytes_in < stats.payload_in + 2048);
  CHECK(stats.total_ns > 0 && stats.encode_ns > 0 && stats.encode_ns < stats.total_ns);
  zenps_request_free(request);
  out_free(&spec, &in, &out);
  grad_free(&in);
  rank_close(rank);
}

static void test_costs(void **state) {
  (void)state;
  if (between_workers()) skip(); /* there are no partitions to count */
  static const zenps_codec_t codecs[] = {ZENPS_CODEC_PAPER, ZENPS_CODEC_AUTO};
  for (unsigned i = 0; i < 2; i++) ranks_run(cluster_shared(), 2, costs, &codecs[i], 0);
}

const struct CMUnitTest api_round_tests[] = {
    cmocka_unit_test(test_layouts),        cmocka_unit_test(test_worlds),          cmocka_unit_test(test_empty),
    cmocka_unit_test(test_large),          cmocka_unit_test(test_stripes),         cmocka_unit_test(test_slow_links),
    cmocka_unit_test(test_in_place),       cmocka_unit_test(test_odd_values),      cmocka_unit_test(test_extremes),
    cmocka_unit_test(test_tensor_options), cmocka_unit_test(test_several_tensors), cmocka_unit_test(test_several_jobs),
    cmocka_unit_test(test_many_rounds),    cmocka_unit_test(test_barrier),         cmocka_unit_test(test_broadcast),
    cmocka_unit_test(test_waiting),        cmocka_unit_test(test_costs),
};
const size_t n_api_round_tests = sizeof api_round_tests / sizeof api_round_tests[0];
