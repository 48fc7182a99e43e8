/* Operations without a gradient; and the reports of a request while its round is under way, and after it. */
#include <poll.h>

#include "tests/integration/api_test.h"

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

/* What each of three ranks calls: zenps_broadcast() of `len` bytes from `root`, or zenps_barrier() where root is -1. */
struct calls {
  struct {
    size_t len;
    int root;
  } by_rank[3];
  const char *says[3]; /* parts of the error's text */
};

static zenps_status_t call(const struct rank *rank, zenps_group_t *group, void *data, size_t len, int root) {
  if (root < 0) return group ? zenps_group_barrier(group) : zenps_barrier(rank->zenps);
  return group ? zenps_group_broadcast(group, data, len, root) : zenps_broadcast(rank->zenps, data, len, root);
}

/* All ranks fail, long before the deadline, and no buffer is written; the next call goes well. */
static void unequal_calls(struct rank *rank, zenps_group_t *group) {
  static const size_t large = (5u << 20) + 3;
  static const struct calls calls[] = {
      {{{40, 0}, {44, 0}, {40, 0}}, {"rank 0", "of 40 bytes", "rank 1"}},
      {{{40, 2}, {40, 2}, {0, 2}}, {"rank 0", "rank 2", "of 0 bytes"}},
      {{{large, 1}, {large, 1}, {large + 64, 1}}, {"of 5242883 bytes", "rank 2", "of 5242947 bytes"}},
      {{{64, 0}, {large, 0}, {large, 0}}, {"of 64 bytes", "rank 1", "of 5242883 bytes"}},
      {{{8, 0}, {8, 0}, {8, 1}}, {"from rank 0", "rank 2", "from rank 1"}},
      {{{0, -1}, {0, -1}, {8, 0}}, {"rank 0", "barrier", "broadcast() of 8 bytes"}},
      {{{8, 1}, {0, -1}, {8, 1}}, {"broadcast() of 8 bytes", "rank 1", "barrier"}},
  };
  unsigned char *data = malloc(large + 64);
  CHECK(data != NULL);
  for (unsigned i = 0; i < sizeof calls / sizeof calls[0]; i++) {
    const uint64_t before = now_ms();
    const size_t len = calls[i].by_rank[rank->rank].len;
    memset(data, 0x11 * (rank->rank + 1), large + 64);
    CHECK_STATUS(call(rank, group, data, len, calls[i].by_rank[rank->rank].root), ZENPS_ERR_SHAPE);
    CHECK(now_ms() - before < SOON_MS);
    for (unsigned k = 0; k < 3; k++) CHECK_SAYS(zenps_last_error()->text, calls[i].says[k]);
    for (size_t k = 0; k < large + 64; k++) CHECK(data[k] == 0x11 * (rank->rank + 1));
    CHECK_OK(call(rank, group, data, large, 1));
    for (size_t k = 0; k < large; k++) CHECK(data[k] == 0x22);
  }
  CHECK_OK(call(rank, group, NULL, 0, -1));
  free(data);
}

static void unequal(struct rank *rank) {
  zenps_group_t *group;
  rank_open(rank);
  unequal_calls(rank, NULL);
  CHECK_OK(zenps_group_open(rank->zenps, "same", (const int[]){0, 1, 2}, 3, &group));
  unequal_calls(rank, group);
  rank_close(rank);
}

static void test_unequal_collectives(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 3, unequal, NULL, 0);
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
    CHECK(poll(&poll_fd, 1, SOON_MS) == 1);
    uint64_t count;
    CHECK(read(poll_fd.fd, &count, sizeof count) == sizeof count && count == 1);
    CHECK_OK(zenps_test(request));
  }
  CHECK_OK(zenps_wait(request, SOON_MS));
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

/* Sizes follow the formulas: COO out, hash bitmaps in; or they are near the entropy. */
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

const struct CMUnitTest api_request_tests[] = {
    cmocka_unit_test(test_barrier), cmocka_unit_test(test_broadcast), cmocka_unit_test(test_unequal_collectives),
    cmocka_unit_test(test_waiting), cmocka_unit_test(test_costs),
};
const size_t n_api_request_tests = sizeof api_request_tests / sizeof api_request_tests[0];
