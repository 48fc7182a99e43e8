/*
 * A gradient that other ranks read where the trainer has it, and rounds that fail: the trainer gets it back when no
 * rank reads it any more, or when none can.
 */
#include "tests/unit/worker/peer/peer_rig.h"

#include <sys/mman.h>

#include "tests/support/logs.h"

enum { TAG_SPLIT = 1, LARGE = 20000 };
#define BLAME "rank 1 (host node-1)"
#define MAY_READ BLAME " may still read the gradient of tensor t, step 1, which the trainer gets back"

static struct peer_rig rig;
static struct zps_slice lent; /* the slice that rank 1 was given to read */

static int begin_test(void **state) {
  (void)state;
  logs_start();
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

/* Rank 1 was told to read it. */
static void lend(uint64_t timeout_ms) {
  peer_open(&rig, &(struct peer_config){
                      .worker = {.world = 2, .checksums = true}, .scheme = &zps_peer_dense_split, .rows = LARGE});
  peer_draw(&rig, 3);
  peer_begin(&rig, &rig.request, 1, timeout_ms);
  struct peer_message *const message = peer_take(&rig, 1, 1, TAG_SPLIT);
  lent = message->slice;
  free(message);
}

/* And has been heard of: it has begun. */
static void begin_lent(uint64_t timeout_ms) {
  lend(timeout_ms);
  fake_abort(rank(1), PEER_TENSOR, 1, ZPS_ERR_CANCELED, "rank 1 canceled it");
  UNTIL(rig_state(&rig.worker, &rig.request) == ZPS_MACHINE_FAILED);
  fake_expect_abort(rank(1), PEER_TENSOR, 1, ZPS_ERR_CANCELED, "rank 1 canceled it");
  fake_expect(rank(1), ZPS_FRAME_DONE, PEER_TENSOR, 1); /* we read nothing of it */
}

static zps_err_t read_it(void) {
  static float got[LARGE / 2 * PEER_WIDTH];
  assert_int_equal(lent.len_bytes, sizeof got);
  const zps_err_t code = fake_read(rank(1), &lent, got);
  if (code == ZPS_OK) assert_memory_equal(got, &rig.in[LARGE / 2 * PEER_WIDTH], sizeof got);
  return code;
}

static bool is_over(void) {
  return atomic_load(&rig.request.over);
}

/* Without a turn of rank 1. */
static void wait_until_over(void) {
  struct patience patience = {0};
  while (!is_over()) {
    if (patience_is_over(&patience)) fail_msg("the round is not over");
    fakes_rest();
  }
}

static void look_shut(void *ctx) {
  *(bool *)ctx = rig.worker.plane.shut;
}

static bool is_shut(void) {
  bool shut;
  rig_do(&rig.worker, look_shut, &shut);
  return shut;
}

/* The next round is for nothing: this rank reaches no other. */
static void expect_shut(zps_err_t code, const char *text) {
  assert_true(is_shut());
  assert_int_equal(read_it(), ZPS_ERR_PEER_LOST);
  rig_expect_released(&rig.request);
  peer_begin(&rig, &rig.request, 2, RIG_TIMEOUT_MS);
  rig_expect_error(&rig.request, code, text);
}

/* No rank reads any more, nor can one begin to: there is no such memory. */
static void expect_concealed(void) {
  assert_int_equal(read_it(), ZPS_ERR_FABRIC);
  assert_false(is_shut());
  rig_expect_released(&rig.request);
  assert_int_equal(rig_held(&rig.worker), 0);
}

static void fail_run(void *ctx) {
  zps_rounds_fail(&rig.worker.rounds, ctx);
}

static void fail_job(const struct zps_frame_abort *failure) {
  struct zps_frame_abort copy = *failure;
  rig_do(&rig.worker, fail_run, &copy);
}

static const struct zps_frame_abort is_dead = {
    .code = ZPS_ERR_PEER_LOST, .n_ranks = 1, .ranks = {1}, .text = BLAME " is dead"};

/* ------------------------------------------------------------ the job lives */

static void until_done(void **state) {
  (void)state;
  begin_lent(RIG_TIMEOUT_MS);
  assert_false(is_over());
  assert_int_equal(read_it(), ZPS_OK); /* it still can */
  assert_false(is_over());
  fake_done(rank(1), PEER_TENSOR, 1);
  rig_expect_error(&rig.request, ZPS_ERR_CANCELED, "rank 1 canceled it");
  expect_concealed();
}

/* Also where the round goes well. */
static void until_it_went_well(void **state) {
  (void)state;
  static float sum[LARGE * PEER_WIDTH];
  lend(RIG_TIMEOUT_MS);
  for (unsigned i = 0; i < LARGE * PEER_WIDTH; i++) sum[i] = rig.in[i] + rig.theirs[1][i];
  peer_say_all(&rig, 1, 1, TAG_SPLIT, PEER_READ, 0, LARGE / 2, rig.theirs[1]);
  peer_say_all(&rig, 1, 1, 2, PEER_READ, LARGE / 2, LARGE, &sum[LARGE / 2 * PEER_WIDTH]);
  fake_expect(rank(1), ZPS_FRAME_DONE, PEER_TENSOR, 1);
  assert_int_equal(read_it(), ZPS_OK);
  fake_done(rank(1), PEER_TENSOR, 1);
  rig_expect_ok(&rig.request);
  peer_check(&rig);
  expect_concealed();
}

/* The job goes on, and the rank with it: it may read, and ends. */
static void until_the_deadline(void **state) {
  (void)state;
  const uint64_t begun_ns = zps_clock_ns();
  begin_lent(900);
  rig_expect_error(&rig.request, ZPS_ERR_CANCELED, "rank 1 canceled it");
  assert_true(zps_clock_ns() - begun_ns >= 900 * ZPS_NS_PER_MS);
  assert_false(is_shut());
  assert_int_equal(read_it(), ZPS_OK);
  fake_done(rank(1), PEER_TENSOR, 1);
  rig_expect_released(&rig.request);
  assert_int_equal(read_it(), ZPS_ERR_FABRIC);
}

/* The coordinator has a second to say that the job has failed for it. */
static void until_lost(void **state) {
  (void)state;
  const uint64_t begun_ns = zps_clock_ns();
  logs_expect(ZPS_LOG_WARN, BLAME " is lost: no heartbeat");
  logs_expect(ZPS_LOG_WARN, MAY_READ);
  begin_lent(RIG_TIMEOUT_MS);
  rig_lose(&rig.worker, &rig.worker.plane.ranks[1], "no heartbeat");
  rig_expect_error(&rig.request, ZPS_ERR_CANCELED, "rank 1 canceled it");
  assert_true(zps_clock_ns() - begun_ns >= ZPS_NS_PER_S);
  expect_shut(ZPS_ERR_PEER_LOST, MAY_READ ": this rank's connections are ended");
}

/* A rank that was never heard of has not begun, if it has taken our ABORT: the round waits a second for its first
 * frame, and not until the deadline. */
static void to_nobody(void **state) {
  (void)state;
  const uint64_t begun_ns = zps_clock_ns();
  lend(RIG_TIMEOUT_MS);
  rig_cancel(&rig.request);
  rig_expect_error(&rig.request, ZPS_ERR_CANCELED, "rank 0 canceled it");
  assert_true(zps_clock_ns() - begun_ns >= ZPS_NS_PER_S);
  assert_int_equal(read_it(), ZPS_ERR_FABRIC);
  assert_false(is_shut());
}

/* Nor does it cost the job that the rank is late, and still out at the deadline. */
static void to_one_that_is_late(void **state) {
  (void)state;
  lend(900);
  rig_expect_error(&rig.request, ZPS_ERR_TIMEOUT,
                   "the deadline of 900 ms passed without the messages of rank 1 (host node-1)");
  assert_int_equal(read_it(), ZPS_ERR_FABRIC);
  assert_false(is_shut());
}

/* One that takes nothing may have begun, and read: it has until the deadline, or its job's end. */
static void to_one_that_hangs(void **state) {
  (void)state;
  lend(RIG_TIMEOUT_MS);
  rig_cancel(&rig.request);
  const uint64_t until_ns = zps_clock_ns() + 1200 * ZPS_NS_PER_MS;
  while (zps_clock_ns() < until_ns) fakes_rest();
  assert_false(is_over());
  fail_job(&is_dead);
  wait_until_over();
  rig_expect_error(&rig.request, ZPS_ERR_CANCELED, "rank 0 canceled it");
  expect_shut(ZPS_ERR_PEER_LOST, BLAME " is dead");
}

/* ------------------------------------------------------------ the job fails, or is closed */

/* The rank that is dead says nothing more. */
static void when_its_reader_is_dead(void **state) {
  (void)state;
  lend(RIG_TIMEOUT_MS);
  fail_job(&is_dead);
  wait_until_over();
  rig_expect_error(&rig.request, ZPS_ERR_PEER_LOST, BLAME " is dead");
  expect_shut(ZPS_ERR_PEER_LOST, BLAME " is dead");
}

/* A round that failed before waits for the rank no longer. */
static void when_its_reader_dies_later(void **state) {
  (void)state;
  begin_lent(RIG_TIMEOUT_MS);
  assert_false(is_over());
  fail_job(&is_dead);
  rig_expect_error(&rig.request, ZPS_ERR_CANCELED, "rank 1 canceled it");
  expect_shut(ZPS_ERR_PEER_LOST, BLAME " is dead");
}

/* A rank that lives says that it is through. */
static void when_another_is_dead(void **state) {
  (void)state;
  lend(RIG_TIMEOUT_MS);
  fail_job(&(struct zps_frame_abort){.code = ZPS_ERR_SERVER_LOST, .text = "no server is left"});
  fake_expect_abort(rank(1), PEER_TENSOR, 1, ZPS_ERR_SERVER_LOST, "no server is left");
  assert_int_equal(read_it(), ZPS_OK);
  assert_false(is_over());
  fake_abort(rank(1), PEER_TENSOR, 1, ZPS_ERR_SERVER_LOST, "so be it");
  fake_done(rank(1), PEER_TENSOR, 1);
  rig_expect_error(&rig.request, ZPS_ERR_SERVER_LOST, "no server is left");
  expect_concealed();
}

/* Or has a second to say so. */
static void when_its_reader_hangs(void **state) {
  (void)state;
  const uint64_t begun_ns = zps_clock_ns();
  lend(RIG_TIMEOUT_MS);
  fail_job(&(struct zps_frame_abort){.code = ZPS_ERR_SERVER_LOST, .text = "no server is left"});
  wait_until_over();
  assert_true(zps_clock_ns() - begun_ns >= ZPS_NS_PER_S);
  rig_expect_error(&rig.request, ZPS_ERR_SERVER_LOST, "no server is left");
  expect_shut(ZPS_ERR_SERVER_LOST, "no server is left");
}

static void when_the_job_is_closed(void **state) {
  (void)state;
  lend(RIG_TIMEOUT_MS);
  zps_rounds_close(&rig.worker.rounds);
  fake_expect_abort(rank(1), PEER_TENSOR, 1, ZPS_ERR_CLOSED, "rank 0 closed the job");
  assert_false(is_over());
  fake_done(rank(1), PEER_TENSOR, 1);
  rig_expect_error(&rig.request, ZPS_ERR_CLOSED, "rank 0 closed the job");
  expect_concealed();
}

static void when_the_job_is_closed_and_its_reader_hangs(void **state) {
  (void)state;
  lend(RIG_TIMEOUT_MS);
  zps_rounds_close(&rig.worker.rounds);
  wait_until_over();
  rig_expect_error(&rig.request, ZPS_ERR_CLOSED, "rank 0 closed the job");
  assert_true(is_shut());
  assert_int_equal(read_it(), ZPS_ERR_PEER_LOST);
}

/* ------------------------------------------------------------ over a real fabric */

enum { HUGE_ROWS = 8 << 20, HUGE_BYTES = HUGE_ROWS * PEER_WIDTH * (int)sizeof(float), LENT = 0x11, TAKEN_BACK = 0xee };

static uint8_t *map(size_t len) {
  uint8_t *const at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(at != MAP_FAILED);
  return at;
}

/* dense_split of two ranks, of more than sockets hold. */
static void lend_huge(uint8_t *in, uint8_t *out) {
  peer_open(&rig, &(struct peer_config){
                      .worker = {.world = 2, .provider = "auto"}, .scheme = &zps_peer_dense_split, .rows = 2});
  rig.peer.plan.rows = rig.tensor.shape.rows = HUGE_ROWS;
  assert_int_equal(zps_partition_init(&rig.tensor.part, HUGE_ROWS, 1, 0, 1, NULL), ZPS_OK);
  const zenps_grad_t grad = {.struct_size = sizeof grad, .layout = ZENPS_DENSE, .memory = ZENPS_HOST, .values = in};
  rig.request.out = grad;
  rig.request.out.values = out;
  assert_int_equal(rig_begin(&rig.worker, &rig.request, &rig.tensor, 1, RIG_TIMEOUT_MS, &grad), ZPS_OK);
}

static void read_done(struct zps_net_read *read, zps_err_t code) {
  *(zps_err_t *)read->ctx = code;
}

/* Rank 1 has read some of it when it stops, as a process does that is stopped. The job fails, the trainer gets its
 * memory back, and uses it for other things: of them nothing comes to rank 1 when it goes on. */
static void while_it_is_read(void **state) {
  (void)state;
  uint8_t *const in = map(HUGE_BYTES), *const out = map(HUGE_BYTES), *const got = map(HUGE_BYTES / 2);
  zps_err_t code = ZPS_ERR_AGAIN;
  struct zps_net_mem mem;
  struct zps_error error;
  memset(in, LENT, HUGE_BYTES);
  lend_huge(in, out);
  struct peer_message *const message = peer_take(&rig, 1, 1, TAG_SPLIT);
  assert_int_equal(message->slice.len_bytes, HUGE_BYTES / 2);
  assert_int_equal(zps_net_mem_register(rank(1)->net, got, HUGE_BYTES / 2, &mem, &error), ZPS_OK);
  struct zps_net_read read = {.local = got,
                              .mem = &mem,
                              .len = HUGE_BYTES / 2,
                              .addr = message->slice.addr,
                              .key = message->slice.key,
                              .done = read_done,
                              .ctx = &code};
  free(message);
  assert_int_equal(zps_net_read(rank(1)->peer, &read), ZPS_OK);
  UNTIL(((volatile uint8_t *)got)[0] == LENT);
  assert_int_equal(code, ZPS_ERR_AGAIN);
  fail_job(&is_dead);
  wait_until_over();
  memset(in, TAKEN_BACK, HUGE_BYTES);
  UNTIL(code != ZPS_ERR_AGAIN);
  for (size_t i = 0; i < HUGE_BYTES / 2; i++)
    if (got[i] == TAKEN_BACK) fail_msg("byte %zu is of the memory that the trainer had back", i);
  assert_int_not_equal(code, ZPS_OK);
  munmap(in, HUGE_BYTES);
  rig_expect_error(&rig.request, ZPS_ERR_PEER_LOST, BLAME " is dead");
  rig_expect_released(&rig.request);
  peer_close(&rig);
  munmap(out, HUGE_BYTES);
  munmap(got, HUGE_BYTES / 2);
}

#define LENT_TEST(test) cmocka_unit_test_setup_teardown(test, begin_test, end_test)

int main(void) {
  const struct CMUnitTest tests[] = {
      LENT_TEST(until_done),
      LENT_TEST(until_it_went_well),
      LENT_TEST(until_the_deadline),
      LENT_TEST(until_lost),
      LENT_TEST(to_nobody),
      LENT_TEST(to_one_that_is_late),
      LENT_TEST(to_one_that_hangs),
      LENT_TEST(when_its_reader_is_dead),
      LENT_TEST(when_its_reader_dies_later),
      LENT_TEST(when_another_is_dead),
      LENT_TEST(when_its_reader_hangs),
      LENT_TEST(when_the_job_is_closed),
      LENT_TEST(when_the_job_is_closed_and_its_reader_hangs),
      LENT_TEST(while_it_is_read),
  };
  return cmocka_run_group_tests_name("gradients that were lent to rounds that fail", tests, NULL, NULL);
}
