/*
 * Rounds between ranks when memory is short: two ranks in one process over the in-process fabric, which share the
 * allocations granted. Wherever they run out the round ends, with ZPS_ERR_NOMEM or that of the other rank, and the next
 * one is right.
 */
#include "tests/unit/worker/peer/peer_rig.h"

#include "tests/support/logs.h"
#include "tests/support/oom.h"

enum { WORLD = 2, ROWS = 3000, GRANTED_MAX = 3000, WAIT_MS = 20 };

static struct rank {
  struct worker_rig worker;
  struct zps_peer_tensor peer;
  struct zps_round_tensor tensor;
  struct rig_request request;
  zenps_grad_t in;
  float values[ROWS * PEER_WIDTH], sum[ROWS * PEER_WIDTH];
} ranks[WORLD];

static int open_ranks(void **state) {
  (void)state;
  static struct zps_join_peer there[WORLD];
  const struct zps_join_peers peers = {.world = WORLD, .ranks = there};
  logs_start();
  logs_allow(ZPS_LOG_WARN, "memory");
  logs_allow(ZPS_LOG_WARN, "is lost"); /* at the end */
  for (uint32_t r = 0; r < WORLD; r++) {
    rig_open(&ranks[r].worker, &(struct rig_config){.rank = r, .threads = 1, .memory_limit_bytes = 16 << 20});
    const struct zps_net_info *info = rig_info(&ranks[r].worker);
    memcpy(there[r].addr, info->addr, info->addr_len);
    there[r].addr_len = info->addr_len;
    strcpy(there[r].host, "here");
  }
  for (uint32_t r = 0; r < WORLD; r++) rig_link(&ranks[r].worker, &peers);
  return 0;
}

static int close_ranks(void **state) {
  (void)state;
  for (uint32_t r = 0; r < WORLD; r++) rig_close(&ranks[r].worker);
  logs_finish();
  return 0;
}

static void open_tensors(const struct zps_peer_scheme *scheme) {
  static uint32_t next_id;
  next_id++;
  for (uint32_t r = 0; r < WORLD; r++) {
    struct rank *rank = &ranks[r];
    rank->peer = (struct zps_peer_tensor){
        .scheme = scheme, .plan = {.n = WORLD, .me = r, .rows = ROWS, .width = PEER_WIDTH, .k = 400, .chunks = 1}};
    rank->tensor = (struct zps_round_tensor){.job = "run",
                                             .name = "t",
                                             .id = next_id,
                                             .rounds = &rank->worker.rounds,
                                             .shape = {ROWS, PEER_WIDTH, ZPS_DTYPE_F32},
                                             .width = PEER_WIDTH,
                                             .dtype = ZPS_DTYPE_F32,
                                             .op = ZPS_OP_SUM,
                                             .codec = ZPS_CODEC_AUTO,
                                             .value_codec = ZPS_VALUES_RAW,
                                             .scheme = scheme->name,
                                             .ops = &zps_peer_ops,
                                             .peer = &rank->peer,
                                             .works_in_host = true};
    assert_int_equal(zps_row_arrays_pool_create(&rank->tensor.arrays), ZPS_OK);
    assert_int_equal(zps_partition_init(&rank->tensor.part, ROWS, 1, 0, 1, NULL), ZPS_OK);
    if (scheme->open) assert_int_equal(scheme->open(&rank->peer.plan, &rank->peer.state), ZPS_OK);
  }
}

static void drop_rounds(void) {
  for (uint32_t r = 0; r < WORLD; r++) rig_drop(&ranks[r].worker, &ranks[r].request);
}

static void close_tensors(void) {
  drop_rounds();
  for (uint32_t r = 0; r < WORLD; r++) {
    struct rank *rank = &ranks[r];
    if (rank->peer.state) rank->peer.scheme->close(rank->peer.state);
    zps_row_arrays_pool_close(rank->tensor.arrays);
  }
}

static void draw(bool rows_out) {
  for (uint32_t r = 0; r < WORLD; r++) {
    struct rank *rank = &ranks[r];
    for (uint32_t i = 0; i < ROWS * PEER_WIDTH; i++)
      rank->values[i] = (i / PEER_WIDTH) % 3 == r ? (float)(1 + (i * 7919u + r) % 1000) : 0;
    rank->in = (zenps_grad_t){
        .struct_size = sizeof rank->in, .layout = ZENPS_DENSE, .memory = ZENPS_HOST, .values = rank->values};
    rank->request.out = rank->in;
    rank->request.out.layout = rows_out ? ZENPS_ROWS : ZENPS_DENSE;
    rank->request.out.values = rows_out ? NULL : rank->sum;
  }
}

static bool all_over(const bool began[WORLD]) {
  for (uint32_t r = 0; r < WORLD; r++) {
    if (began[r] && !atomic_load(&ranks[r].request.over)) return false;
  }
  return true;
}

/* Both ranks take the step with `granted` allocations; true: it went well on both, and some were left. A rank that
 * cannot begin cancels the other's. Where a rank has to tell the other that it failed, it needs memory again, which
 * this fabric takes for a message: so there is some after a while. */
static bool take_step(uint64_t step, bool rows_out, long granted, bool began[WORLD]) {
  draw(rows_out);
  atomic_store(&oom_granted, granted);
  for (uint32_t r = 0; r < WORLD; r++) {
    struct rank *rank = &ranks[r];
    const zps_err_t err = rig_begin(&rank->worker, &rank->request, &rank->tensor, step, RIG_TIMEOUT_MS, &rank->in);
    assert_true(err == ZPS_OK || err == ZPS_ERR_NOMEM);
    began[r] = err == ZPS_OK;
  }
  for (uint32_t r = 0; r < WORLD; r++) {
    if (began[r] && !began[1 - r]) rig_cancel(&ranks[r].request);
  }
  const uint64_t until_ns = zps_clock_ns() + WAIT_MS * ZPS_NS_PER_MS;
  UNTIL(all_over(began) || (granted != OOM_UNLIMITED && zps_clock_ns() > until_ns));
  const long left = atomic_exchange(&oom_granted, OOM_UNLIMITED);
  UNTIL(all_over(began));
  bool good = granted == OOM_UNLIMITED || left > 0;
  for (uint32_t r = 0; r < WORLD; r++) {
    const zenps_error_t *error = &ranks[r].request.error;
    good &= began[r] && error->status == ZENPS_OK;
    if (!began[r] || error->status == ZENPS_OK) continue;
    if (error->status != ZENPS_ERR_NOMEM && error->status != ZENPS_ERR_CANCELED)
      fail_msg("rank %u: %s", r, error->text);
    assert_non_null(strstr(error->text, "tensor t"));
  }
  return good;
}

/* All ranks must have one result; where nothing is dropped, it is the sum of exact values. */
static void check_sums(bool lossy) {
  for (uint32_t r = 0; r < WORLD; r++) {
    const zenps_grad_t *out = &ranks[r].request.out;
    if (lossy) {
      assert_memory_equal(ranks[r].sum, ranks[0].sum, sizeof ranks[r].sum);
    } else if (out->layout == ZENPS_ROWS) {
      assert_int_equal(out->nnz, ROWS / 3 * 2);
    } else {
      for (uint32_t i = 0; i < ROWS * PEER_WIDTH; i++)
        assert_true(ranks[r].sum[i] == ranks[0].values[i] + ranks[1].values[i]);
    }
  }
}

/* Failed rounds linger until the other rank says that its is over, also one that could not begin: when it does, it
 * hears that the step was given up, or has all that it needs before it hears so. */
static void begin_late(uint64_t step, const bool began[WORLD]) {
  for (uint32_t r = 0; r < WORLD; r++) {
    struct rank *rank = &ranks[r];
    if (began[r] || !began[1 - r]) continue;
    assert_int_equal(rig_begin(&rank->worker, &rank->request, &rank->tensor, step, RIG_TIMEOUT_MS, &rank->in), ZPS_OK);
    UNTIL(atomic_load(&rank->request.over));
    if (rank->request.error.status != ZENPS_OK) assert_non_null(strstr(rank->request.error.text, "tensor t"));
  }
}

static void sweep_of(const struct zps_peer_scheme *scheme, bool rows_out, bool once) {
  bool good = false, began[WORLD];
  long n = 0;
  for (; !good; n++) {
    assert_true(n < GRANTED_MAX);
    open_tensors(scheme);
    oom_once = once;
    good = take_step(0, rows_out, n, began);
    oom_once = false;
    begin_late(0, began);
    drop_rounds();
    assert_true(take_step(1, rows_out, OOM_UNLIMITED, began));
    check_sums(scheme->lossy);
    close_tensors();
  }
  assert_true(n > 20);
}

static void sweep(const struct zps_peer_scheme *scheme, bool rows_out) {
  sweep_of(scheme, rows_out, false);
  sweep_of(scheme, rows_out, true);
}

static void recursive_doubling(void **state) {
  (void)state;
  sweep(&zps_peer_recursive_doubling, false);
  sweep(&zps_peer_recursive_doubling, true);
}

static void ring(void **state) {
  (void)state;
  sweep(&zps_peer_ring, false);
}

static void oktopk(void **state) {
  (void)state;
  sweep(&zps_peer_oktopk, false);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(recursive_doubling), cmocka_unit_test(ring),
                                     cmocka_unit_test(oktopk)};
  return cmocka_run_group_tests_name("rounds between ranks without memory", tests, open_ranks, close_ranks);
}
