/*
 * Rounds between ranks that fail: by messages of ranks and their silence, by losses, deadlines, cancels and closing.
 * Each time the error names the process to blame, every rank is told, and the buffers come back when no rank reads
 * them any more.
 */
#include "tests/unit/worker/peer/peer_rig.h"

#include "tests/support/logs.h"

enum { TAG_ALL = 0, TAG_STAGE = 2, TAG_SPLIT = 1, TAG_RANGE = 2, ROWS = 200, LARGE = 20000 };
#define BLAME "rank 1 (host node-1)"

static struct peer_rig rig;

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

static void open_faulty(const struct zps_peer_scheme *scheme, uint32_t world, uint64_t rows, const char *fault) {
  peer_open(
      &rig,
      &(struct peer_config){
          .worker.world = world, .worker.fault = fault, .worker.checksums = true, .scheme = scheme, .rows = rows});
  peer_draw(&rig, 3);
}

static void open_ranks(const struct zps_peer_scheme *scheme, uint32_t world, uint64_t rows) {
  open_faulty(scheme, world, rows, NULL);
}

/* Of three ranks, with rank 2 silent: every message of rank 1 comes to a round that waits. */
static void open_three(void) {
  open_ranks(&zps_peer_agsparse, 3, ROWS);
}

/* The step went wrong for all three; the next one is right. */
static void expect_well(uint64_t step) {
  rig_expect_released(&rig.request);
  assert_int_equal(rig_held(&rig.worker), 0);
  peer_begin(&rig, &rig.request, step, RIG_TIMEOUT_MS);
  for (uint32_t r = 1; r < 3; r++) {
    peer_expect(&rig, r, step, TAG_ALL, 0, ROWS, rig.in);
    peer_say(&rig, r, step, TAG_ALL, PEER_INLINE, 0, ROWS, rig.theirs[r]);
  }
  rig_expect_ok(&rig.request);
  peer_check(&rig);
}

static void all_give_up(uint64_t step, zps_err_t code) {
  for (uint32_t r = 1; r < rig.worker.world; r++) fake_abort(rank(r), PEER_TENSOR, step, code, "so be it");
}

/* ------------------------------------------------------------ what a rank says */

static void give_up(void) {
  fake_abort(rank(1), PEER_TENSOR, 1, ZPS_ERR_CANCELED, "rank 1 canceled it");
}

static void give_up_without_words(void) {
  fake_abort(rank(1), PEER_TENSOR, 1, ZPS_ERR_NOMEM, "");
}

static void say_it_twice(void) {
  for (int i = 0; i < 2; i++) peer_say(&rig, 1, 1, TAG_ALL, PEER_INLINE, 0, ROWS, rig.theirs[1]);
}

static void say_another_thing(void) {
  peer_say(&rig, 1, 1, 7, PEER_INLINE, 0, ROWS, rig.theirs[1]);
}

static const uint8_t bytes[201 * 12];

static void too_many_rows(void) {
  peer_say_slice(&rig, 1, 1,
                 &(struct zps_slice){
                     .codec = ZPS_CODEC_COO, .is_inline = true, .nnz = 201, .len_bytes = sizeof bytes, .data = bytes});
}

static void too_few_bytes(void) {
  peer_say_slice(
      &rig, 1, 1,
      &(struct zps_slice){.codec = ZPS_CODEC_COO, .is_inline = true, .nnz = 2, .len_bytes = 23, .data = bytes});
}

static void values_of_no_kind(void) {
  peer_say_slice(
      &rig, 1, 1,
      &(struct zps_slice){
          .codec = ZPS_CODEC_COO, .values = 100, .is_inline = true, .nnz = 2, .len_bytes = 24, .data = bytes});
}

static const struct {
  float values[4];
  uint32_t rows[2];
} askew = {.values = {1, 2, 3, 4}, .rows = {7, 7}};

static void rows_descend(void) {
  peer_say_slice(&rig, 1, 1,
                 &(struct zps_slice){
                     .codec = ZPS_CODEC_COO, .is_inline = true, .nnz = 2, .len_bytes = sizeof askew, .data = &askew});
}

static void rows_descend_where_read(void) {
  struct zps_slice slice = {.codec = ZPS_CODEC_COO, .nnz = 2};
  fake_expose(rank(1), &askew, sizeof askew, &slice);
  peer_say_slice(&rig, 1, 1, &slice);
}

static void memory_it_has_not(void) {
  peer_say_slice(&rig, 1, 1,
                 &(struct zps_slice){.codec = ZPS_CODEC_COO, .nnz = 2, .len_bytes = 24, .addr = 4096, .key = 12345});
}

static void memory_that_changes(void) {
  fake_changes(rank(1));
  peer_say(&rig, 1, 1, TAG_ALL, PEER_READ, 0, ROWS, rig.theirs[1]);
}

static void memory_it_does_not_share(void) {
  peer_say_slice(
      &rig, 1, 1,
      &(struct zps_slice){.codec = ZPS_CODEC_COO, .nnz = 2, .len_bytes = 24, .addr = 0, .key = ZPS_WIRE_KEY_SHARED});
}

static const struct fault {
  void (*say)(void);
  zps_err_t code;
  const char *text;
} faults[] = {
    {give_up, ZPS_ERR_CANCELED, "rank 1 canceled it"},
    {give_up_without_words, ZPS_ERR_NOMEM, BLAME ": out of memory"},
    {say_it_twice, ZPS_ERR_PROTOCOL, BLAME " announces an impossible message 0: it was announced before"},
    {say_another_thing, ZPS_ERR_PROTOCOL, BLAME " announces an impossible message 7: none under this tag is due"},
    {too_many_rows, ZPS_ERR_PROTOCOL,
     BLAME " announces an impossible message 0: slice of 201 rows in a partition of 200"},
    {too_few_bytes, ZPS_ERR_PROTOCOL,
     BLAME " announces an impossible message 0: slice of 23 bytes: 2 of 200 rows of 2 x f32 as coo take 24"},
    {values_of_no_kind, ZPS_ERR_PROTOCOL, BLAME " announces an impossible message 0: its values cannot be coded so"},
    {rows_descend, ZPS_ERR_PROTOCOL,
     "message 0 of " BLAME " is malformed: coo slice: index 7 at position 1 follows 7: indices must ascend"},
    {rows_descend_where_read, ZPS_ERR_PROTOCOL,
     "message 0 of " BLAME " is malformed: coo slice: index 7 at position 1 follows 7: indices must ascend"},
    {memory_it_has_not, ZPS_ERR_FABRIC, "reading from " BLAME " failed: fabric error"},
    {memory_that_changes, ZPS_ERR_FABRIC, "reading from " BLAME " failed: what came, twice, is not what was announced"},
    {memory_it_does_not_share, ZPS_ERR_PROTOCOL,
     "message 0 of " BLAME " is said to be in memory that it does not share"},
};

static void look_unexpected(void *ctx) {
  *(unsigned *)ctx = rig.worker.rounds.unexpected.n_rounds;
}

static unsigned n_unexpected(void) {
  unsigned n;
  rig_do(&rig.worker, look_unexpected, &n);
  return n;
}

/* While the round waits, and before it has begun. */
static void what_a_rank_says(void **state) {
  (void)state;
  logs_expect(ZPS_LOG_WARN, "bytes brought others than the announced ones");
  for (unsigned i = 0; i < 2 * sizeof faults / sizeof *faults; i++) {
    const struct fault *fault = &faults[i / 2];
    const bool is_early = i % 2;
    open_three();
    if (is_early) {
      fault->say();
      UNTIL(n_unexpected() == 1);
      peer_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
    } else {
      peer_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
      peer_expect(&rig, 1, 1, TAG_ALL, 0, ROWS, rig.in);
      fault->say();
    }
    rig_expect_error(&rig.request, fault->code, fault->text);
    for (uint32_t r = 1; r < 3; r++) fake_expect_abort(rank(r), PEER_TENSOR, 1, fault->code, fault->text);
    all_give_up(1, fault->code);
    expect_well(2);
    peer_close(&rig);
  }
}

/* A rank that gave up and tries again is ahead of this worker: its later messages are for this worker's next attempt,
 * too. */
static void the_next_attempt(void **state) {
  (void)state;
  open_three();
  peer_say_slice(&rig, 1, 1, &(struct zps_slice){.partition = 33, .codec = ZPS_CODEC_COO, .is_inline = true});
  fake_abort(rank(1), PEER_TENSOR, 1, ZPS_ERR_CANCELED, "rank 1 canceled it");
  peer_say(&rig, 1, 1, TAG_ALL, PEER_INLINE, 0, ROWS, rig.theirs[1]);
  fake_abort(rank(1), PEER_TENSOR, 2, ZPS_ERR_CANCELED, "as far as this");
  UNTIL(n_unexpected() == 2);
  peer_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  rig_expect_error(&rig.request, ZPS_ERR_CANCELED, "rank 1 canceled it");
  fake_abort(rank(2), PEER_TENSOR, 1, ZPS_ERR_CANCELED, "so be it");
  rig_expect_released(&rig.request);
  peer_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  peer_say(&rig, 2, 1, TAG_ALL, PEER_INLINE, 0, ROWS, rig.theirs[2]);
  rig_expect_ok(&rig.request);
  peer_check(&rig);
}

/* Frames that no rank sends. */
static void frames_of_servers(void **state) {
  (void)state;
  open_three();
  logs_expect(ZPS_LOG_WARN, "dropped a RESULT frame of " BLAME ": ranks send none to each other");
  peer_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  struct zps_frame frame = {
      .header.type = ZPS_FRAME_RESULT,
      .u.round = {.tensor = PEER_TENSOR, .step = 1, .n_slices = 1, .slices = {{.is_inline = true}}}};
  fake_send(rank(1), &frame);
  for (uint32_t r = 1; r < 3; r++) peer_say(&rig, r, 1, TAG_ALL, PEER_INLINE, 0, ROWS, rig.theirs[r]);
  rig_expect_ok(&rig.request);
  peer_check(&rig);
}

/* DONE of a rank that still owes messages is an answer to an earlier attempt. */
static void done_too_early(void **state) {
  (void)state;
  open_three();
  peer_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  for (uint32_t r = 1; r < 3; r++) {
    fake_done(rank(r), PEER_TENSOR, 1);
    peer_say(&rig, r, 1, TAG_ALL, PEER_INLINE, 0, ROWS, rig.theirs[r]);
  }
  rig_expect_ok(&rig.request);
  peer_check(&rig);
}

/* ------------------------------------------------------------ losses */

static void lost_while_waited_for(void **state) {
  (void)state;
  open_three();
  logs_expect(ZPS_LOG_WARN, BLAME " is lost: no heartbeat");
  peer_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  peer_expect(&rig, 1, 1, TAG_ALL, 0, ROWS, rig.in);
  rig_lose(&rig.worker, &rig.worker.plane.ranks[1], "no heartbeat");
  rig_expect_error(&rig.request, ZPS_ERR_PEER_LOST, BLAME " is lost: no heartbeat");
  assert_int_equal(rig.request.error.n_missing, 1);
  assert_int_equal(rig.request.error.missing_ranks[0], 1);
  assert_int_equal(fake_expect_abort(rank(2), PEER_TENSOR, 1, ZPS_ERR_PEER_LOST, BLAME " is lost: no heartbeat"),
                   1 << 1);
  fake_abort(rank(2), PEER_TENSOR, 1, ZPS_ERR_PEER_LOST, "so be it");
  rig_expect_released(&rig.request);
  peer_begin(&rig, &rig.request, 2, RIG_TIMEOUT_MS);
  rig_expect_error(&rig.request, ZPS_ERR_PEER_LOST, BLAME " is lost: no heartbeat");
}

/* Rank 1 stops while its message is read. The round fails, and goes, though the read does not end: neither does the
 * trainer wait for it, nor a job that is being closed. */
static void stopped_while_it_is_read(void **state) {
  (void)state;
  static const char *const ends[] = {"stall=1", "stall=1,hold=3600s"};
  logs_allow(ZPS_LOG_WARN, BLAME " is lost: no heartbeat");
  for (unsigned i = 0; i < 2; i++) {
    if (i > 0) peer_close(&rig);
    open_faulty(&zps_peer_agsparse, 3, ROWS, ends[i]);
    peer_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
    peer_say(&rig, 1, 1, TAG_ALL, PEER_READ, 0, ROWS, rig.theirs[1]);
    UNTIL(rig_reads(&rig.worker, &rig.request) == 1);
    rig_lose(&rig.worker, &rig.worker.plane.ranks[1], "no heartbeat");
    rig_expect_error(&rig.request, ZPS_ERR_PEER_LOST, BLAME " is lost: no heartbeat");
    fake_expect_abort(rank(2), PEER_TENSOR, 1, ZPS_ERR_PEER_LOST, BLAME " is lost: no heartbeat");
    fake_abort(rank(2), PEER_TENSOR, 1, ZPS_ERR_PEER_LOST, "so be it");
    rig_expect_released(&rig.request);
    assert_int_equal(rig_held(&rig.worker), 0);
    if (i == 0)
      UNTIL(rig_left(&rig.worker) == 0);
    else
      assert_int_equal(rig_left(&rig.worker), 4 << 10);
  }
}

static void lost_when_it_has_said_all(void **state) {
  (void)state;
  open_three();
  logs_expect(ZPS_LOG_WARN, BLAME " is lost: no heartbeat");
  peer_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  peer_say(&rig, 1, 1, TAG_ALL, PEER_READ, 0, ROWS, rig.theirs[1]);
  UNTIL(peer_has(&rig, 1, 1, TAG_ALL) && peer_has(&rig, 2, 1, TAG_ALL));
  /* Its message is read when another rank's word for it has come back. */
  fake_abort(rank(1), PEER_TENSOR, 2, ZPS_ERR_CANCELED, "as far as this");
  UNTIL(n_unexpected() == 1);
  peer_say(&rig, 2, 1, TAG_ALL, PEER_INLINE, 0, ROWS, rig.theirs[2]);
  rig_expect_ok(&rig.request);
  rig_lose(&rig.worker, &rig.worker.plane.ranks[1], "no heartbeat");
  rig_expect_released(&rig.request);
  peer_check(&rig);
}

/* The engine's thread reads it at each look at a link. */
static void set_dead(void *dead_ns) {
  rig.worker.plane.dead_ns = *(const uint64_t *)dead_ns;
}

static void dead_before_it_is_told(void **state) {
  uint64_t dead_ns = 300 * ZPS_NS_PER_MS;
  (void)state;
  open_three();
  logs_expect(ZPS_LOG_WARN, BLAME " is lost: nothing has come for ");
  fake_close(rank(1));
  peer_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  UNTIL(zps_engine_mishaps(rig.worker.plane.engine).reconnects == 1);
  assert_false(atomic_load(&rig.request.over));
  rig_do(&rig.worker, set_dead, &dead_ns);
  UNTIL(atomic_load(&rig.request.over));
  assert_int_equal(rig.request.error.status, ZPS_ERR_PEER_LOST);
  assert_non_null(strstr(rig.request.error.text, BLAME " is lost: nothing has come for "));
  fake_expect_abort(rank(2), PEER_TENSOR, 1, ZPS_ERR_PEER_LOST, BLAME);
}

/* The rank leaves in peace: its messages may be under way for a while; after that, waiting for them is in vain. */
static void left_in_peace(void **state) {
  (void)state;
  open_three();
  peer_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  zps_plane_rank_left(&rig.worker.plane, 1);
  peer_say(&rig, 1, 1, TAG_ALL, PEER_INLINE, 0, ROWS, rig.theirs[1]);
  peer_say(&rig, 2, 1, TAG_ALL, PEER_INLINE, 0, ROWS, rig.theirs[2]);
  rig_expect_ok(&rig.request);
  peer_check(&rig);
  rig_expect_released(&rig.request);
  peer_begin(&rig, &rig.request, 2, RIG_TIMEOUT_MS);
  rig_expect_error(&rig.request, ZPS_ERR_CLOSED, BLAME " left the job");
  fake_expect_abort(rank(2), PEER_TENSOR, 2, ZPS_ERR_CLOSED, BLAME " left the job");
}

/* ------------------------------------------------------------ ranks that take no part */

/* Rounds of ranks 0 and 2 alone: whatever 1 and 3 say of them is dropped, before and after they begin, and nobody asks
 * them for anything. */
static void strangers(void **state) {
  (void)state;
  static const uint32_t pair[] = {0, 2};
  peer_open(&rig, &(struct peer_config){
                      .worker.world = 4, .scheme = &zps_peer_agsparse, .rows = ROWS, .ranks = pair, .n_ranks = 2});
  peer_draw(&rig, 3);
  peer_say(&rig, 3, 1, TAG_ALL, PEER_INLINE, 0, ROWS, rig.theirs[3]);
  fake_abort(rank(3), PEER_TENSOR, 1, ZPS_ERR_CANCELED, "none of its business");
  UNTIL(n_unexpected() == 1);
  peer_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  peer_expect(&rig, 2, 1, TAG_ALL, 0, ROWS, rig.in);
  for (uint32_t r = 1; r < 4; r += 2) {
    peer_say(&rig, r, 1, TAG_ALL, PEER_INLINE, 0, ROWS, rig.theirs[r]);
    fake_done(rank(r), PEER_TENSOR, 1);
    fake_abort(rank(r), PEER_TENSOR, 1, ZPS_ERR_CANCELED, "none of its business");
  }
  logs_expect(ZPS_LOG_WARN, BLAME " is lost: no heartbeat");
  rig_lose(&rig.worker, &rig.worker.plane.ranks[1], "no heartbeat");
  peer_say(&rig, 2, 1, TAG_ALL, PEER_INLINE, 0, ROWS, rig.theirs[2]);
  rig_expect_ok(&rig.request);
  peer_check(&rig);
  rig_expect_released(&rig.request);
  /* The next one fails, and they are not told. */
  peer_begin(&rig, &rig.request, 2, 600);
  rig_expect_error(&rig.request, ZPS_ERR_TIMEOUT,
                   "the deadline of 600 ms passed without the messages of rank 2 (host node-2)");
  fake_expect_abort(rank(2), PEER_TENSOR, 2, ZPS_ERR_TIMEOUT, "");
  fake_abort(rank(2), PEER_TENSOR, 2, ZPS_ERR_TIMEOUT, "so be it");
  rig_expect_released(&rig.request);
  assert_false(peer_has(&rig, 3, 1, TAG_ALL) || peer_has(&rig, 3, 2, TAG_ALL));
  assert_false(fake_has(rank(3), ZPS_FRAME_ABORT, PEER_TENSOR, 2) || fake_has(rank(3), ZPS_FRAME_DONE, PEER_TENSOR, 1));
}

/* ------------------------------------------------------------ deadlines */

static void abort_for(uint32_t r, uint64_t step, uint32_t missing) {
  struct zps_frame frame = {.header.type = ZPS_FRAME_ABORT,
                            .u.abort = {.tensor = PEER_TENSOR,
                                        .step = step,
                                        .code = ZPS_ERR_TIMEOUT,
                                        .n_ranks = 1,
                                        .ranks = {missing},
                                        .text = "too late"}};
  fake_send(rank(r), &frame);
}

/* Ranks tell each other ahead of the deadline the ranks for which they wait. */
static void silent(void **state) {
  (void)state;
  open_three();
  const uint64_t begun_ns = zps_clock_ns();
  peer_begin(&rig, &rig.request, 1, 4000);
  peer_say(&rig, 1, 1, TAG_ALL, PEER_INLINE, 0, ROWS, rig.theirs[1]);
  assert_int_equal(fake_expect_abort(rank(1), PEER_TENSOR, 1, ZPS_ERR_TIMEOUT, ""), 1 << 2);
  abort_for(1, 1, 2);
  rig_expect_error(&rig.request, ZPS_ERR_TIMEOUT,
                   "the deadline of 4000 ms passed without the messages of rank 2 (host node-2)");
  assert_true(zps_clock_ns() - begun_ns >= 4 * ZPS_NS_PER_S);
  assert_int_equal(rig.request.error.n_missing, 1);
  assert_int_equal(rig.request.error.missing_ranks[0], 2);
  fake_abort(rank(2), PEER_TENSOR, 1, ZPS_ERR_TIMEOUT, "so be it");
  expect_well(2);
}

/* Both say something in time, so the ranks for which they wait are to blame. */
static void all_have_spoken(void **state) {
  (void)state;
  open_three();
  peer_begin(&rig, &rig.request, 1, 4000);
  fake_expect_abort(rank(1), PEER_TENSOR, 1, ZPS_ERR_TIMEOUT, "");
  abort_for(1, 1, 2);
  abort_for(2, 1, 1);
  rig_expect_error(&rig.request, ZPS_ERR_TIMEOUT,
                   "the deadline of 4000 ms passed without the messages of rank 1 (host node-1), rank 2 (host node-2)");
  expect_well(2);
}

/* Rank 0 waits for rank 2, we for rank 0: rank 2 is to blame. */
static void accused_by_another(void **state) {
  (void)state;
  peer_open(&rig, &(struct peer_config){
                      .worker = {.world = 3, .rank = 1}, .scheme = &zps_peer_recursive_doubling, .rows = ROWS});
  peer_draw(&rig, 3);
  peer_begin(&rig, &rig.request, 1, 4000);
  peer_expect(&rig, 0, 1, TAG_STAGE, 0, ROWS, rig.in);
  abort_for(0, 1, 2);
  rig_expect_error(&rig.request, ZPS_ERR_TIMEOUT,
                   "the deadline of 4000 ms passed without the messages of rank 2 (host node-2)");
  assert_int_equal(rig.request.error.missing_ranks[0], 2);
}

static void too_late_to_read_the_gradient(void **state) {
  (void)state;
  struct rig_block block;
  open_three();
  rig_block(&block, rig.worker.plane.scan_pool);
  peer_begin(&rig, &rig.request, 1, 200);
  UNTIL(rig_state(&rig.worker, &rig.request) == ZPS_MACHINE_FAILED);
  all_give_up(1, ZPS_ERR_TIMEOUT);
  rig_unblock(&block);
  rig_expect_error(&rig.request, ZPS_ERR_TIMEOUT, "the deadline of 200 ms passed before the gradient was read");
  expect_well(2);
}

/* All messages are here, and every payload of this rank has been read; only the DONE is missing. */
static void no_done(void **state) {
  (void)state;
  static float sum[LARGE * PEER_WIDTH];
  open_ranks(&zps_peer_dense_split, 2, LARGE);
  for (unsigned i = 0; i < LARGE * PEER_WIDTH; i++) sum[i] = rig.in[i] + rig.theirs[1][i];
  peer_begin(&rig, &rig.request, 1, 4000);
  peer_say_all(&rig, 1, 1, TAG_SPLIT, PEER_READ, 0, LARGE / 2, rig.theirs[1]);
  peer_expect(&rig, 1, 1, TAG_RANGE, 0, LARGE / 2, sum);
  peer_say_all(&rig, 1, 1, TAG_RANGE, PEER_READ, LARGE / 2, LARGE, &sum[LARGE / 2 * PEER_WIDTH]);
  fake_expect(rank(1), ZPS_FRAME_DONE, PEER_TENSOR, 1);
  rig_expect_error(&rig.request, ZPS_ERR_TIMEOUT,
                   "the deadline of 4000 ms passed without the messages of rank 1 (host node-1)");
  fake_done(rank(1), PEER_TENSOR, 1);
  rig_expect_released(&rig.request);
  assert_int_equal(rig_held(&rig.worker), 0);
}

/* ------------------------------------------------------------ cancels */

static void canceled_while_waiting(void **state) {
  (void)state;
  open_three();
  peer_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  peer_expect(&rig, 1, 1, TAG_ALL, 0, ROWS, rig.in);
  rig_cancel(&rig.request);
  rig_expect_error(&rig.request, ZPS_ERR_CANCELED, "rank 0 canceled it");
  for (uint32_t r = 1; r < 3; r++) fake_expect_abort(rank(r), PEER_TENSOR, 1, ZPS_ERR_CANCELED, "rank 0 canceled it");
  fake_abort(rank(1), PEER_TENSOR, 1, ZPS_ERR_CANCELED, "so be it");
  assert_false(atomic_load(&rig.request.released)); /* something of rank 2's may be under way */
  fake_done(rank(2), PEER_TENSOR, 1);
  expect_well(2);
}

static void canceled_while_scanning(void **state) {
  (void)state;
  struct rig_block block;
  open_three();
  rig_block(&block, rig.worker.plane.scan_pool);
  peer_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  rig_cancel(&rig.request);
  UNTIL(rig_state(&rig.worker, &rig.request) == ZPS_MACHINE_FAILED);
  assert_false(atomic_load(&rig.request.over));
  rig_unblock(&block);
  rig_expect_error(&rig.request, ZPS_ERR_CANCELED, "rank 0 canceled it");
  all_give_up(1, ZPS_ERR_CANCELED);
  expect_well(2);
}

/* The cancel is too late: for the other ranks the round is done. */
static void canceled_when_done(void **state) {
  (void)state;
  static float sum[LARGE * PEER_WIDTH];
  open_ranks(&zps_peer_dense_split, 2, LARGE);
  for (unsigned i = 0; i < LARGE * PEER_WIDTH; i++) sum[i] = rig.in[i] + rig.theirs[1][i];
  peer_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  peer_say_all(&rig, 1, 1, TAG_SPLIT, PEER_READ, 0, LARGE / 2, rig.theirs[1]);
  peer_say_all(&rig, 1, 1, TAG_RANGE, PEER_READ, LARGE / 2, LARGE, &sum[LARGE / 2 * PEER_WIDTH]);
  fake_expect(rank(1), ZPS_FRAME_DONE, PEER_TENSOR, 1);
  rig_cancel(&rig.request);
  fake_done(rank(1), PEER_TENSOR, 1);
  rig_expect_ok(&rig.request);
  peer_check(&rig);
}

/* ------------------------------------------------------------ memory and the job's end */

static void no_memory_for_it(void **state) {
  (void)state;
  logs_allow(ZPS_LOG_WARN, "limit");
  peer_open(&rig, &(struct peer_config){
                      .worker = {.world = 2, .memory_limit_bytes = 4096}, .scheme = &zps_peer_agsparse, .rows = LARGE});
  peer_draw(&rig, 2);
  peer_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  rig_expect_error(
      &rig.request, ZPS_ERR_NOMEM,
      "no memory for instruction own: of registered memory, 0 bytes are in use of 4096 (ZENPS_MEMORY_LIMIT)");
  fake_expect_abort(rank(1), PEER_TENSOR, 1, ZPS_ERR_NOMEM, "ZENPS_MEMORY_LIMIT");
}

static void job_is_closed(void **state) {
  (void)state;
  open_three();
  peer_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  peer_expect(&rig, 1, 1, TAG_ALL, 0, ROWS, rig.in);
  zps_rounds_close(&rig.worker.rounds);
  rig_expect_error(&rig.request, ZPS_ERR_CLOSED, "rank 0 closed the job");
  for (uint32_t r = 1; r < 3; r++) fake_expect_abort(rank(r), PEER_TENSOR, 1, ZPS_ERR_CLOSED, "rank 0 closed the job");
  rig_expect_released(&rig.request); /* the round waits for no rank */
}

static void fail_run(void *ctx) {
  zps_rounds_fail(
      ctx, &(struct zps_frame_abort){.code = ZPS_ERR_PEER_LOST, .n_ranks = 1, .ranks = {2}, .text = "rank 2 is dead"});
}

static void job_fails(void **state) {
  (void)state;
  open_three();
  peer_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  peer_expect(&rig, 1, 1, TAG_ALL, 0, ROWS, rig.in);
  rig_do(&rig.worker, fail_run, &rig.worker.rounds);
  rig_expect_error(&rig.request, ZPS_ERR_PEER_LOST, "rank 2 is dead");
  rig_expect_released(&rig.request); /* no rank reads for a job that has failed */
  peer_begin(&rig, &rig.request, 2, RIG_TIMEOUT_MS);
  rig_expect_error(&rig.request, ZPS_ERR_PEER_LOST, "rank 2 is dead");
}

#define TROUBLE(test) cmocka_unit_test_setup_teardown(test, begin_test, end_test)

int main(void) {
  const struct CMUnitTest tests[] = {
      TROUBLE(what_a_rank_says),
      TROUBLE(the_next_attempt),
      TROUBLE(frames_of_servers),
      TROUBLE(done_too_early),
      TROUBLE(lost_while_waited_for),
      TROUBLE(stopped_while_it_is_read),
      TROUBLE(lost_when_it_has_said_all),
      TROUBLE(dead_before_it_is_told),
      TROUBLE(left_in_peace),
      TROUBLE(strangers),
      TROUBLE(silent),
      TROUBLE(all_have_spoken),
      TROUBLE(accused_by_another),
      TROUBLE(too_late_to_read_the_gradient),
      TROUBLE(no_done),
      TROUBLE(canceled_while_waiting),
      TROUBLE(canceled_while_scanning),
      TROUBLE(canceled_when_done),
      TROUBLE(no_memory_for_it),
      TROUBLE(job_is_closed),
      TROUBLE(job_fails),
  };
  return cmocka_run_group_tests_name("rounds between ranks that fail", tests, NULL, NULL);
}
