/*
 * Rounds between ranks with a round over servers within: the ranks of a host merge what they have at its master, which
 * has the sum of all hosts' made by a service. Here the service is a fake.
 */
#include "tests/unit/worker/peer/peer_rig.h"

#include <stdio.h>

#include "tests/support/logs.h"

enum { TAG_UP = 0, TAG_DOWN = 64, ROWS = 300, INNER_TENSOR = 10 };

/* Ranks 0, which we are, and 1 on a host, rank 2 on another. */
static const uint32_t hosts[] = {0, 0, 1};
static uint32_t masters[] = {0, 2};

static struct peer_rig rig;

static struct {
  struct zps_nested_service service;
  struct zps_nested_round *inner;
  zps_err_t refuses;
  atomic_uint n_begun, n_canceled, n_ended;
  float pushed[ROWS * PEER_WIDTH];
  int64_t rows[ROWS];
  float values[ROWS * PEER_WIDTH];
  struct zps_round round; /* only the members that over() looks at */
} fake_service;

static zps_err_t service_begin(struct zps_nested_service *service, struct zps_nested_round *inner) {
  const zenps_grad_t *in = inner->in;
  assert_ptr_equal(service, &fake_service.service);
  if (fake_service.refuses != ZPS_OK) return fake_service.refuses;
  inner->handle = &fake_service;
  memset(fake_service.pushed, 0, sizeof fake_service.pushed);
  if (in->layout == ZENPS_DENSE) memcpy(fake_service.pushed, in->values, sizeof fake_service.pushed);
  for (uint64_t i = 0; in->layout == ZENPS_ROWS && i < in->nnz; i++)
    memcpy(&fake_service.pushed[in->row_ids[i] * PEER_WIDTH], (const float *)in->values + i * PEER_WIDTH,
           PEER_WIDTH * sizeof(float));
  fake_service.inner = inner;
  atomic_fetch_add(&fake_service.n_begun, 1);
  return ZPS_OK;
}

static bool service_is_round(const struct zps_nested_round *inner, const struct zps_round *round) {
  (void)inner;
  (void)round;
  return false;
}

static void service_cancel(struct zps_nested_round *inner) {
  assert_ptr_equal(inner, fake_service.inner);
  atomic_fetch_add(&fake_service.n_canceled, 1);
}

static void service_end(struct zps_nested_round *inner) {
  if (!inner->handle) return;
  inner->handle = NULL;
  atomic_fetch_add(&fake_service.n_ended, 1);
}

static int begin_test(void **state) {
  (void)state;
  logs_start();
  memset(&fake_service, 0, sizeof fake_service);
  fake_service.service = (struct zps_nested_service){.tensor = INNER_TENSOR,
                                                     .begin = service_begin,
                                                     .is_round = service_is_round,
                                                     .cancel = service_cancel,
                                                     .end = service_end};
  peer_open(&rig,
            &(struct peer_config){.worker.world = 3, .scheme = &zps_peer_hierarchical, .rows = ROWS, .hosts = hosts});
  rig.peer.masters = masters;
  rig.peer.n_masters = 2;
  rig.peer.inner = &fake_service.service;
  peer_draw(&rig, 4);
  return 0;
}

static int end_test(void **state) {
  (void)state;
  peer_close(&rig);
  logs_finish();
  return 0;
}

static struct fake *rank(uint32_t r) {
  return &rig.worker.ranks[r];
}

/* Waits until the service has the push of the host's ranks. */
static void begin_served(uint64_t step, uint64_t timeout_ms) {
  peer_begin(&rig, &rig.request, step, timeout_ms);
  peer_say(&rig, 1, step, TAG_UP, PEER_INLINE, 0, ROWS, rig.theirs[1]);
  if (fake_service.refuses == ZPS_OK) UNTIL(atomic_load(&fake_service.n_begun) == 1);
}

/* With the other host's, in the memory of the service. */
static void over_run(void *ctx) {
  const zenps_error_t *error = ctx;
  zenps_grad_t *out = fake_service.inner->out;
  out->nnz = 0;
  out->row_ids = fake_service.rows;
  out->values = fake_service.values;
  for (int64_t row = 0; error->status == ZENPS_OK && row < ROWS; row++) {
    const float *ours = &fake_service.pushed[row * PEER_WIDTH], *theirs = &rig.theirs[2][row * PEER_WIDTH];
    if (ours[0] == 0 && theirs[0] == 0) continue;
    fake_service.rows[out->nnz] = row;
    for (unsigned w = 0; w < PEER_WIDTH; w++) fake_service.values[out->nnz * PEER_WIDTH + w] = ours[w] + theirs[w];
    out->nnz++;
  }
  fake_service.inner->over(fake_service.inner, &fake_service.round, error);
}

static void tell_over(zenps_status_t status) {
  zenps_error_t error = {.status = status};
  rig_do(&rig.worker, over_run, &error);
}

static void served(void **state) {
  (void)state;
  static float sum[ROWS * PEER_WIDTH];
  fake_service.round.stats.bytes_out = 12345;
  fake_service.round.stats.payload_in = 777;
  for (unsigned i = 0; i < ROWS * PEER_WIDTH; i++) sum[i] = rig.in[i] + rig.theirs[1][i];
  begin_served(1, RIG_TIMEOUT_MS);
  assert_memory_equal(fake_service.pushed, sum, sizeof sum);
  assert_int_equal(fake_service.inner->step, 1);
  assert_true(fake_service.inner->timeout_ms <= RIG_TIMEOUT_MS + 1);
  for (unsigned i = 0; i < ROWS * PEER_WIDTH; i++) sum[i] += rig.theirs[2][i];
  tell_over(ZENPS_OK);
  peer_expect(&rig, 1, 1, TAG_DOWN, 0, ROWS, sum);
  rig_expect_ok(&rig.request);
  peer_check(&rig);
  assert_int_equal(atomic_load(&fake_service.n_ended), 1);
  assert_int_equal(atomic_load(&fake_service.n_canceled), 0);
  assert_true(rig.request.stats.bytes_out > 12345); /* its costs are the round's */
  assert_true(rig.request.stats.payload_in >= 777);
}

static void failed_within(void **state) {
  (void)state;
  snprintf(fake_service.round.reason.text, sizeof fake_service.round.reason.text, "server 3 (ps-3) is lost: alas");
  fake_service.round.reason.n_ranks = 1;
  fake_service.round.reason.ranks[0] = 2;
  begin_served(1, RIG_TIMEOUT_MS);
  tell_over(ZENPS_ERR_SERVER_LOST);
  rig_expect_error(&rig.request, ZPS_ERR_SERVER_LOST, "server 3 (ps-3) is lost: alas");
  assert_int_equal(rig.request.error.n_missing, 1);
  assert_int_equal(rig.request.error.missing_ranks[0], 2);
  for (uint32_t r = 1; r < 3; r++)
    assert_int_equal(fake_expect_abort(rank(r), PEER_TENSOR, 1, ZPS_ERR_SERVER_LOST, "server 3 (ps-3) is lost: alas"),
                     1 << 2);
  for (uint32_t r = 1; r < 3; r++) fake_abort(rank(r), PEER_TENSOR, 1, ZPS_ERR_SERVER_LOST, "so be it");
  rig_expect_released(&rig.request);
  assert_int_equal(atomic_load(&fake_service.n_ended), 1);
}

static void refused(void **state) {
  (void)state;
  fake_service.refuses = ZPS_ERR_NOMEM;
  begin_served(1, RIG_TIMEOUT_MS);
  rig_expect_error(&rig.request, ZPS_ERR_NOMEM, "what this host's ranks have cannot be pushed: out of memory");
  for (uint32_t r = 1; r < 3; r++) fake_abort(rank(r), PEER_TENSOR, 1, ZPS_ERR_NOMEM, "so be it");
  rig_expect_released(&rig.request);
  assert_int_equal(atomic_load(&fake_service.n_ended), 0);
}

static void no_service(void **state) {
  (void)state;
  rig.peer.inner = NULL;
  fake_service.refuses = ZPS_ERR_INTERNAL; /* it is not asked */
  begin_served(1, RIG_TIMEOUT_MS);
  rig_expect_error(&rig.request, ZPS_ERR_INTERNAL, "what this host's ranks have cannot be pushed: internal error");
}

/* The round within is given up, and waited for. */
static void given_up(void **state) {
  (void)state;
  begin_served(1, RIG_TIMEOUT_MS);
  fake_abort(rank(2), PEER_TENSOR, 1, ZPS_ERR_CANCELED, "rank 2 canceled it");
  UNTIL(atomic_load(&fake_service.n_canceled) == 1);
  fake_expect_abort(rank(1), PEER_TENSOR, 1, ZPS_ERR_CANCELED, "rank 2 canceled it");
  assert_false(atomic_load(&rig.request.over));
  tell_over(ZENPS_ERR_CANCELED);
  rig_expect_error(&rig.request, ZPS_ERR_CANCELED, "rank 2 canceled it");
  fake_abort(rank(1), PEER_TENSOR, 1, ZPS_ERR_CANCELED, "so be it");
  rig_expect_released(&rig.request);
  assert_int_equal(atomic_load(&fake_service.n_ended), 1);
}

/* All ranks have spoken, so the servers are the ones that are missing. */
static void servers_are_silent(void **state) {
  (void)state;
  snprintf(fake_service.round.reason.text, sizeof fake_service.round.reason.text,
           "the deadline of 3000 ms passed without the sums of server 0 (ps-0)");
  begin_served(1, 3000);
  UNTIL(atomic_load(&fake_service.n_canceled) == 1);
  tell_over(ZENPS_ERR_TIMEOUT);
  for (uint32_t r = 1; r < 3; r++) fake_abort(rank(r), PEER_TENSOR, 1, ZPS_ERR_TIMEOUT, "so be it");
  rig_expect_error(&rig.request, ZPS_ERR_TIMEOUT, "the deadline of 3000 ms passed without the sums of server 0 (ps-0)");
}

/* Another host's master has said nothing: servers may be waiting for its push. */
static void another_master_is_silent(void **state) {
  (void)state;
  begin_served(1, 3000);
  UNTIL(atomic_load(&fake_service.n_canceled) == 1);
  assert_int_equal(fake_expect_abort(rank(1), PEER_TENSOR, 1, ZPS_ERR_TIMEOUT, ""), 1 << 2);
  tell_over(ZENPS_ERR_TIMEOUT);
  fake_abort(rank(1), PEER_TENSOR, 1, ZPS_ERR_TIMEOUT, "so be it");
  rig_expect_error(&rig.request, ZPS_ERR_TIMEOUT,
                   "the deadline of 3000 ms passed without the messages of rank 2 (host node-2)");
}

#define SERVE(test) cmocka_unit_test_setup_teardown(test, begin_test, end_test)

int main(void) {
  const struct CMUnitTest tests[] = {
      SERVE(served),
      SERVE(failed_within),
      SERVE(refused),
      SERVE(no_service),
      SERVE(given_up),
      SERVE(servers_are_silent),
      SERVE(another_master_is_silent),
  };
  return cmocka_run_group_tests_name("rounds over servers within rounds between ranks", tests, NULL, NULL);
}
