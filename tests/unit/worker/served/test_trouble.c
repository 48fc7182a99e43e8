/*
 * Rounds over servers that fail: by messages of servers and their silence, by losses, deadlines, cancels and closing.
 * Each time the error names the process to blame, every server is told, and the buffers come back when all have
 * spoken.
 */
#include "tests/unit/worker/served/served_rig.h"

#include "tests/support/logs.h"

#define BLAME "server 1 (ps-1)"

static struct served_rig rig;

static int begin_test(void **state) {
  (void)state;
  logs_start();
  return 0;
}

static int end_test(void **state) {
  (void)state;
  served_close(&rig);
  logs_finish();
  return 0;
}

static void open_small(void) {
  served_open(&rig,
              &(struct served_config){.worker.n_servers = 2, .worker.checksums = true, .rows = 200, .n_parts = 4});
  served_draw(&rig, 3);
}

/* The push lies in registered memory. */
static void open_large(void) {
  served_open(&rig, &(struct served_config){.worker.n_servers = 2, .rows = 30000, .n_parts = 4});
  served_draw(&rig, 2);
}

/* The last round had so many rows that other threads than the trainer's scan the gradient of the next one. */
static void open_scanned(void) {
  open_large();
  rig.servers[0].answers = rig.servers[1].answers = true;
  served_begin(&rig, &rig.request, 0, RIG_TIMEOUT_MS);
  rig_expect_ok(&rig.request);
  rig_expect_released(&rig.request);
  rig.servers[0].answers = rig.servers[1].answers = false;
}

/* Both servers have all of it. */
static void begin_pushed(uint64_t step, uint64_t timeout_ms) {
  served_begin(&rig, &rig.request, step, timeout_ms);
  for (uint32_t s = 0; s < 2; s++) served_take(&rig, s, step);
}

/* The next step is as good as any. */
static void expect_well(uint64_t step) {
  rig_expect_released(&rig.request);
  assert_int_equal(rig_held(&rig.worker), 0);
  for (uint32_t s = 0; s < 2; s++) rig.servers[s].answers = true;
  served_begin(&rig, &rig.request, step, RIG_TIMEOUT_MS);
  rig_expect_ok(&rig.request);
  served_check(&rig);
}

/* ------------------------------------------------------------ what a server says */

static void give_up(void) {
  fake_abort(&rig.worker.servers[1], 5, 1, ZPS_ERR_MISSING, "job run, tensor t, step 1: rank 3 did not push");
}

static void give_up_in_its_words(void) {
  fake_abort(&rig.worker.servers[1], 5, 1, ZPS_ERR_NOMEM, "no memory here");
}

static void give_up_without_words(void) {
  fake_abort(&rig.worker.servers[1], 5, 1, ZPS_ERR_NOMEM, "");
}

static void another_ones_sum(void) {
  served_say(&rig, 1, 1, &(struct zps_slice){.partition = 2, .codec = ZPS_CODEC_COO, .is_inline = true});
}

static void no_ones_sum(void) {
  served_say(&rig, 1, 1, &(struct zps_slice){.partition = 4, .codec = ZPS_CODEC_COO, .is_inline = true});
}

static void a_sum_twice(void) {
  served_answer_part(&rig, 1, 1, 1);
  served_answer_part(&rig, 1, 1, 1);
}

static void too_many_rows(void) {
  static const uint8_t bytes[51 * 12];
  served_say(&rig, 1, 1,
             &(struct zps_slice){.partition = 3,
                                 .codec = ZPS_CODEC_COO,
                                 .is_inline = true,
                                 .nnz = 51,
                                 .len_bytes = sizeof bytes,
                                 .data = bytes});
}

static void too_few_bytes(void) {
  static const uint8_t bytes[23];
  served_say(&rig, 1, 1,
             &(struct zps_slice){.partition = 3,
                                 .codec = ZPS_CODEC_COO,
                                 .is_inline = true,
                                 .nnz = 2,
                                 .len_bytes = sizeof bytes,
                                 .data = bytes});
}

static void too_many_joined(void) {
  served_say(&rig, 1, 1, &(struct zps_slice){.partition = 1, .n_more = 2, .codec = ZPS_CODEC_COO, .is_inline = true});
}

static void joined_askew(void) {
  static const uint8_t bytes[12];
  served_say(&rig, 1, 1,
             &(struct zps_slice){.partition = 1,
                                 .n_more = 1,
                                 .codec = ZPS_CODEC_COO,
                                 .is_inline = true,
                                 .nnz = 2,
                                 .len_bytes = sizeof bytes,
                                 .data = bytes});
}

/* Two rows, of which the second does not follow the first. */
static void rows_descend(void) {
  static const struct {
    float values[4];
    uint32_t rows[2];
  } bytes = {.values = {1, 2, 3, 4}, .rows = {7, 7}};
  served_say(&rig, 1, 1,
             &(struct zps_slice){.partition = 3,
                                 .codec = ZPS_CODEC_COO,
                                 .is_inline = true,
                                 .nnz = 2,
                                 .len_bytes = sizeof bytes,
                                 .data = &bytes});
  served_answer_part(&rig, 1, 1, 1);
  served_answer(&rig, 0, 1);
}

static void memory_it_has_not(void) {
  served_say(&rig, 1, 1,
             &(struct zps_slice){
                 .partition = 3, .codec = ZPS_CODEC_COO, .nnz = 2, .len_bytes = 24, .addr = 4096, .key = 12345});
}

/* A sum that is another one's by the time that it is read, as for a rank that was taken for lost, and woke up. */
static void memory_that_changes(void) {
  fake_changes(&rig.worker.servers[1]);
  rig.servers[1].reads_only = true;
  served_answer_part(&rig, 1, 1, 1);
  rig.servers[1].reads_only = false;
}

static const struct fault {
  void (*say)(void);
  zps_err_t code;
  const char *text;
} faults[] = {
    {give_up, ZPS_ERR_MISSING, "rank 3 did not push"},
    {give_up_in_its_words, ZPS_ERR_NOMEM, "no memory here"},
    {give_up_without_words, ZPS_ERR_NOMEM, BLAME ": out of memory"},
    {another_ones_sum, ZPS_ERR_PROTOCOL, BLAME " announces the sum of partition 2, which it does not own"},
    {no_ones_sum, ZPS_ERR_PROTOCOL, BLAME " announces the sum of partition 4, which it does not own"},
    {a_sum_twice, ZPS_ERR_PROTOCOL, BLAME ": malformed message from peer"},
    {too_many_rows, ZPS_ERR_PROTOCOL,
     BLAME " announces an impossible sum of partition 3: slice of 51 rows in a partition of 50"},
    {too_few_bytes, ZPS_ERR_PROTOCOL,
     BLAME " announces an impossible sum of partition 3: slice of 23 bytes: 2 of 50 rows of 2 x f32 as coo take 24"},
    {too_many_joined, ZPS_ERR_PROTOCOL,
     BLAME " announces an impossible sum of partition 1: it is joined to more than the server owns"},
    {joined_askew, ZPS_ERR_PROTOCOL,
     BLAME " announces an impossible sum of partition 1: slice of 12 bytes: 2 of 100 rows of 2 x f32 as coo take 24"},
    {rows_descend, ZPS_ERR_PROTOCOL,
     "the sum of partition 3 from " BLAME
     " is malformed: coo slice: index 7 at position 1 follows 7: indices must ascend"},
    {memory_it_has_not, ZPS_ERR_FABRIC, "reading the sum of partition 3 from " BLAME " failed: fabric error"},
    {memory_that_changes, ZPS_ERR_FABRIC,
     "reading the sum of partition 1 from " BLAME " failed: what came, twice, is not what was announced"},
};

static void what_a_server_says(void **state) {
  (void)state;
  logs_expect(ZPS_LOG_WARN, "bytes brought others than the announced ones");
  for (unsigned i = 0; i < sizeof faults / sizeof *faults; i++) {
    const struct fault *fault = &faults[i];
    open_small();
    begin_pushed(1, RIG_TIMEOUT_MS);
    fault->say();
    rig_expect_error(&rig.request, fault->code, fault->text);
    if (fault->say != rows_descend) { /* there all is read, and the servers are through */
      fake_expect_abort(&rig.worker.servers[0], 5, 1, fault->code, fault->text);
    }
    expect_well(2);
    served_close(&rig);
  }
}

/* The request names the ranks that a server misses. */
static void ranks_that_are_missing(void **state) {
  (void)state;
  open_small();
  begin_pushed(1, RIG_TIMEOUT_MS);
  struct zps_frame frame = {
      .header.type = ZPS_FRAME_ABORT,
      .u.abort = {.tensor = 5, .step = 1, .code = ZPS_ERR_MISSING, .n_ranks = 2, .ranks = {3, 9}, .text = "alas"}};
  fake_send(&rig.worker.servers[0], &frame);
  rig_expect_error(&rig.request, ZPS_ERR_MISSING, "alas");
  assert_int_equal(rig.request.error.n_missing, 2);
  assert_int_equal(rig.request.error.missing_ranks[0], 3);
  assert_int_equal(rig.request.error.missing_ranks[1], 9);
  assert_int_equal(fake_expect_abort(&rig.worker.servers[1], 5, 1, ZPS_ERR_MISSING, "alas"), 1 << 3 | 1 << 9);
}

/* A sum before there is a round, and one before the partition was pushed. */
static void sums_too_early(void **state) {
  (void)state;
  struct rig_block block;
  open_large();
  served_say(&rig, 1, 1, &(struct zps_slice){.partition = 1, .codec = ZPS_CODEC_COO, .is_inline = true});
  rig.servers[0].answers = rig.servers[1].answers = true;
  served_begin(&rig, &rig.request, 2, RIG_TIMEOUT_MS); /* frames of one server come in order */
  rig_expect_ok(&rig.request);
  served_check(&rig);
  rig_expect_released(&rig.request);
  rig_block(&block, rig.worker.plane.scan_pool);
  served_begin(&rig, &rig.request, 3, RIG_TIMEOUT_MS);
  UNTIL(rig_state(&rig.worker, &rig.request) == ZPS_MACHINE_ENCODING);
  served_say(&rig, 1, 3, &(struct zps_slice){.partition = 1, .codec = ZPS_CODEC_COO, .is_inline = true});
  UNTIL(rig_state(&rig.worker, &rig.request) == ZPS_MACHINE_FAILED);
  assert_false(atomic_load(&rig.request.over)); /* while a thread reads the gradient */
  rig_unblock(&block);
  rig_expect_error(&rig.request, ZPS_ERR_PROTOCOL, BLAME ": malformed message from peer");
  expect_well(4);
}

/* What does not decode, and what the link of the server did not send, is dropped, and ends nothing. */
static void frames_that_are_none(void **state) {
  (void)state;
  open_small();
  logs_expect(ZPS_LOG_WARN, "dropped a message of 8 bytes");
  logs_expect(ZPS_LOG_WARN, "its MAC is not that of the link that its DONE frame names");
  begin_pushed(1, RIG_TIMEOUT_MS);
  fake_send_bytes(&rig.worker.servers[1], "nonsense", 8);
  UNTIL(zps_engine_mishaps(rig.worker.plane.engine).malformed == 1);
  assert_false(atomic_load(&rig.request.over));
  zps_log_strangers.last_ms = 0; /* the second is over */
  uint8_t bytes[ZPS_WIRE_MESSAGE_MAX];
  size_t len;
  const struct zps_frame frame = {
      .header = {.type = ZPS_FRAME_DONE, .job = RIG_JOB, .epoch = 1, .src = 1 | ZPS_WIRE_SRC_SERVER, .seq = 1000},
      .u.done = {5, 1}};
  assert_int_equal(zps_wire_encode(&frame, bytes, sizeof bytes, &len), ZPS_OK);
  memset(bytes + len, 0, ZPS_WIRE_MAC_BYTES);
  fake_send_bytes(&rig.worker.servers[1], bytes, len + ZPS_WIRE_MAC_BYTES);
  UNTIL(zps_engine_mishaps(rig.worker.plane.engine).forged == 1);
  assert_false(atomic_load(&rig.request.over));
  served_answer(&rig, 1, 1);
  served_answer(&rig, 0, 1);
  rig_expect_ok(&rig.request);
  served_check(&rig);
}

/* Frames that no server sends are dropped, and so are those of strangers. */
static void frames_of_others(void **state) {
  (void)state;
  open_small();
  logs_expect(ZPS_LOG_WARN, "dropped a DONE frame of " BLAME ": servers send none");
  logs_expect(ZPS_LOG_WARN, "no server or rank of ours");
  begin_pushed(1, RIG_TIMEOUT_MS);
  fake_done(&rig.worker.servers[1], 5, 1);
  uint8_t bytes[ZPS_WIRE_FRAME_MAX];
  size_t len;
  struct zps_frame frame = {.header = {.type = ZPS_FRAME_ABORT, .job = RIG_JOB, .epoch = 1},
                            .u.abort = {.tensor = 5, .step = 1, .code = ZPS_ERR_INTERNAL}};
  const uint32_t strangers[] = {2 | ZPS_WIRE_SRC_SERVER, 0, 77};
  for (unsigned i = 0; i < 3; i++) {
    frame.header.src = strangers[i];
    assert_int_equal(zps_wire_encode(&frame, bytes, sizeof bytes, &len), ZPS_OK);
    fake_send_bytes(&rig.worker.servers[1], bytes, len);
  }
  served_answer(&rig, 1, 1);
  served_answer(&rig, 0, 1);
  rig_expect_ok(&rig.request);
  served_check(&rig);
}

/* ------------------------------------------------------------ losses */

static void lost_while_waited_for(void **state) {
  (void)state;
  open_large();
  logs_expect(ZPS_LOG_WARN, BLAME " is lost: no heartbeat");
  begin_pushed(1, RIG_TIMEOUT_MS);
  rig_lose(&rig.worker, &rig.worker.plane.servers[1], "no heartbeat");
  rig_expect_error(&rig.request, ZPS_ERR_SERVER_LOST, BLAME " is lost: no heartbeat");
  fake_expect_abort(&rig.worker.servers[0], 5, 1, ZPS_ERR_SERVER_LOST, BLAME " is lost: no heartbeat");
  fake_abort(&rig.worker.servers[0], 5, 1, ZPS_ERR_SERVER_LOST, "so be it");
  rig_expect_released(&rig.request);
  assert_int_equal(rig_held(&rig.worker), 0);
  served_begin(&rig, &rig.request, 2, RIG_TIMEOUT_MS);
  rig_expect_error(&rig.request, ZPS_ERR_SERVER_LOST, BLAME " is lost: no heartbeat");
}

/* It is through with that server. */
static void lost_when_it_has_answered(void **state) {
  (void)state;
  open_small();
  logs_expect(ZPS_LOG_WARN, BLAME " is lost: no heartbeat");
  rig.servers[1].reads_only = true;
  begin_pushed(1, RIG_TIMEOUT_MS);
  served_answer(&rig, 1, 1);
  fake_expect(&rig.worker.servers[1], ZPS_FRAME_DONE, 5, 1);
  rig_lose(&rig.worker, &rig.worker.plane.servers[1], "no heartbeat");
  served_answer(&rig, 0, 1);
  rig_expect_ok(&rig.request);
  served_check(&rig);
}

/* That its connection has ended says nothing of a server: others, or silence, do. */
static void dead_before_the_push(void **state) {
  (void)state;
  open_small();
  logs_expect(ZPS_LOG_WARN, BLAME " is lost: no heartbeat");
  fake_close(&rig.worker.servers[1]);
  served_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  UNTIL(zps_engine_mishaps(rig.worker.plane.engine).reconnects == 1);
  assert_false(atomic_load(&rig.request.over));
  rig_lose(&rig.worker, &rig.worker.plane.servers[1], "no heartbeat");
  rig_expect_error(&rig.request, ZPS_ERR_SERVER_LOST, BLAME " is lost: no heartbeat");
  fake_expect_abort(&rig.worker.servers[0], 5, 1, ZPS_ERR_SERVER_LOST, BLAME);
}

/* A sum has been announced that cannot be read any more. */
static void dead_before_the_read(void **state) {
  (void)state;
  open_small();
  logs_allow(ZPS_LOG_WARN, BLAME " is lost");
  rig.servers[1].reads_only = true;
  begin_pushed(1, RIG_TIMEOUT_MS);
  served_answer(&rig, 1, 1);
  fake_close(&rig.worker.servers[1]);
  served_answer(&rig, 0, 1);
  UNTIL(atomic_load(&rig.request.over) || zps_engine_mishaps(rig.worker.plane.engine).reconnects > 0);
  rig_lose(&rig.worker, &rig.worker.plane.servers[1], "no heartbeat");
  UNTIL(atomic_load(&rig.request.over)); /* the reads may have been quicker */
  if (rig.request.error.status == ZENPS_OK)
    served_check(&rig);
  else
    assert_non_null(strstr(rig.request.error.text, BLAME));
}

/* ------------------------------------------------------------ deadlines */

static void silent(void **state) {
  (void)state;
  open_large();
  begin_pushed(1, 4000);
  served_answer(&rig, 0, 1);
  rig_expect_error(&rig.request, ZPS_ERR_TIMEOUT, "the deadline of 4000 ms passed without the sums of server 1 (ps-1)");
  fake_expect_abort(&rig.worker.servers[1], 5, 1, ZPS_ERR_TIMEOUT, "without the sums of server 1 (ps-1)");
  assert_false(fake_has(&rig.worker.servers[0], ZPS_FRAME_ABORT, 5, 1)); /* for that one it is over */
  served_answer(&rig, 1, 1);                                             /* too late, but it has read all */
  expect_well(2);
}

static void all_silent(void **state) {
  (void)state;
  open_large();
  begin_pushed(1, 3000);
  rig_expect_error(&rig.request, ZPS_ERR_TIMEOUT,
                   "the deadline of 3000 ms passed without the sums of server 0 (ps-0), server 1 (ps-1)");
  assert_true(rig_held(&rig.worker) > 0);
  for (uint32_t s = 0; s < 2; s++) fake_abort(&rig.worker.servers[s], 5, 1, ZPS_ERR_TIMEOUT, "so be it");
  expect_well(2);
}

/* The servers' own deadline comes before: servers know the missing ranks. */
static void servers_have_less_time(void **state) {
  (void)state;
  open_small();
  for (uint32_t s = 0; s < 2; s++) rig.worker.servers[s].on_frame = NULL;
  served_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  struct fake_frame *frame = fake_take(&rig.worker.servers[1], ZPS_FRAME_PUSH, 5, 1);
  assert_true(frame->frame.u.round.timeout_ms >= 1 && frame->frame.u.round.timeout_ms <= RIG_TIMEOUT_MS - 1000);
  assert_int_equal(frame->frame.u.round.total_nnz, 67);
  free(frame);
}

static void too_late_to_encode(void **state) {
  (void)state;
  struct rig_block block;
  open_scanned();
  rig_block(&block, rig.worker.plane.scan_pool);
  served_begin(&rig, &rig.request, 1, 100);
  UNTIL(rig_state(&rig.worker, &rig.request) == ZPS_MACHINE_FAILED);
  rig_unblock(&block);
  rig_expect_error(&rig.request, ZPS_ERR_TIMEOUT, "the deadline of 100 ms passed before the gradient was encoded");
  expect_well(2);
}

static void too_late_to_decode(void **state) {
  (void)state;
  struct rig_block blocks[2];
  open_large();
  begin_pushed(1, 4000);
  for (unsigned i = 0; i < 2; i++) rig_block(&blocks[i], rig.worker.plane.pool);
  served_answer(&rig, 0, 1);
  served_answer(&rig, 1, 1);
  UNTIL(rig_state(&rig.worker, &rig.request) == ZPS_MACHINE_FAILED);
  for (unsigned i = 0; i < 2; i++) rig_unblock(&blocks[i]);
  rig_expect_error(&rig.request, ZPS_ERR_TIMEOUT,
                   "the deadline of 4000 ms passed without the sums of no server: they are here, but not decoded");
  expect_well(2);
}

/* ------------------------------------------------------------ lingering */

static void lingers_until_all_have_spoken(void **state) {
  (void)state;
  open_large();
  logs_allow(ZPS_LOG_WARN, "is lost: no heartbeat");
  for (unsigned way = 0; way < 3; way++) {
    begin_pushed(1 + way, RIG_TIMEOUT_MS);
    fake_abort(&rig.worker.servers[0], 5, 1 + way, ZPS_ERR_NOMEM, "no memory here");
    rig_expect_error(&rig.request, ZPS_ERR_NOMEM, "no memory here");
    fake_expect_abort(&rig.worker.servers[1], 5, 1 + way, ZPS_ERR_NOMEM, "no memory here");
    assert_true(rig_held(&rig.worker) > 0); /* server 1 may still be reading */
    assert_false(atomic_load(&rig.request.released));
    if (way == 0) fake_abort(&rig.worker.servers[1], 5, 1, ZPS_ERR_NOMEM, "so be it");
    if (way == 1) served_answer(&rig, 1, 2);
    if (way == 2) rig_lose(&rig.worker, &rig.worker.plane.servers[1], "no heartbeat");
    rig_expect_released(&rig.request);
    assert_int_equal(rig_held(&rig.worker), 0);
  }
}

/* Half of a server's sums are not all. */
static void lingers_for_every_partition(void **state) {
  (void)state;
  open_large();
  begin_pushed(1, RIG_TIMEOUT_MS);
  served_answer_part(&rig, 1, 1, 1);
  fake_abort(&rig.worker.servers[0], 5, 1, ZPS_ERR_NOMEM, "no memory here");
  rig_expect_error(&rig.request, ZPS_ERR_NOMEM, "no memory here");
  fake_expect_abort(&rig.worker.servers[1], 5, 1, ZPS_ERR_NOMEM, "no memory here");
  assert_true(rig_held(&rig.worker) > 0);
  served_answer_part(&rig, 1, 1, 3);
  expect_well(2);
}

/* ------------------------------------------------------------ cancels */

static void expect_canceled(void) {
  rig_expect_error(&rig.request, ZPS_ERR_CANCELED, "rank 0 canceled it");
}

static void canceled_at_once(void **state) {
  (void)state;
  open_large();
  served_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  rig_cancel(&rig.request);
  rig_cancel(&rig.request);
  expect_canceled();
  for (uint32_t s = 0; s < 2; s++) fake_expect_abort(&rig.worker.servers[s], 5, 1, ZPS_ERR_CANCELED, "rank 0");
  for (uint32_t s = 0; s < 2; s++) fake_abort(&rig.worker.servers[s], 5, 1, ZPS_ERR_CANCELED, "so be it");
  expect_well(2);
}

static void canceled_while_encoding(void **state) {
  (void)state;
  struct rig_block block;
  open_scanned();
  rig_block(&block, rig.worker.plane.scan_pool);
  served_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  UNTIL(rig_state(&rig.worker, &rig.request) == ZPS_MACHINE_ENCODING);
  rig_cancel(&rig.request);
  UNTIL(rig_state(&rig.worker, &rig.request) == ZPS_MACHINE_FAILED);
  assert_false(atomic_load(&rig.request.over));
  rig_unblock(&block);
  expect_canceled();
  for (uint32_t s = 0; s < 2; s++) {
    fake_expect_abort(&rig.worker.servers[s], 5, 1, ZPS_ERR_CANCELED, "rank 0");
    assert_int_equal(rig.servers[s].n_came, 0); /* nothing was pushed, so no server has to speak */
  }
  expect_well(2);
}

static void canceled_while_waiting(void **state) {
  (void)state;
  open_large();
  begin_pushed(1, RIG_TIMEOUT_MS);
  assert_int_equal(rig_state(&rig.worker, &rig.request), ZPS_MACHINE_WAITING);
  rig_cancel(&rig.request);
  expect_canceled();
  for (uint32_t s = 0; s < 2; s++) fake_abort(&rig.worker.servers[s], 5, 1, ZPS_ERR_CANCELED, "so be it");
  expect_well(2);
}

static void canceled_while_pulling(void **state) {
  (void)state;
  open_large();
  begin_pushed(1, RIG_TIMEOUT_MS);
  served_answer_part(&rig, 0, 1, 2);
  UNTIL(rig_state(&rig.worker, &rig.request) == ZPS_MACHINE_PULLING);
  rig_cancel(&rig.request);
  expect_canceled();
  for (uint32_t s = 0; s < 2; s++) fake_abort(&rig.worker.servers[s], 5, 1, ZPS_ERR_CANCELED, "so be it");
  expect_well(2);
}

static void canceled_while_decoding(void **state) {
  (void)state;
  struct rig_block blocks[2];
  open_large();
  begin_pushed(1, RIG_TIMEOUT_MS);
  for (unsigned i = 0; i < 2; i++) rig_block(&blocks[i], rig.worker.plane.pool);
  served_answer(&rig, 0, 1);
  served_answer(&rig, 1, 1);
  for (uint32_t s = 0; s < 2; s++) fake_expect(&rig.worker.servers[s], ZPS_FRAME_DONE, 5, 1); /* all is read */
  rig_cancel(&rig.request);
  UNTIL(rig_state(&rig.worker, &rig.request) == ZPS_MACHINE_FAILED);
  for (unsigned i = 0; i < 2; i++) rig_unblock(&blocks[i]);
  expect_canceled();
  for (uint32_t s = 0; s < 2; s++) assert_false(fake_has(&rig.worker.servers[s], ZPS_FRAME_ABORT, 5, 1));
  expect_well(2);
}

static void canceled_when_done(void **state) {
  (void)state;
  open_small();
  rig.servers[0].answers = rig.servers[1].answers = true;
  served_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  rig_expect_ok(&rig.request);
  expect_well(2);
}

/* ------------------------------------------------------------ the job ends */

static void job_is_closed(void **state) {
  (void)state;
  static struct rig_request more;
  static float result[SERVED_ROWS_MAX * SERVED_WIDTH];
  memset(&more, 0, sizeof more);
  more.out.values = result;
  open_large();
  begin_pushed(1, RIG_TIMEOUT_MS);
  served_begin(&rig, &more, 2, RIG_TIMEOUT_MS);
  for (uint32_t s = 0; s < 2; s++) served_take(&rig, s, 2);
  zps_rounds_close(&rig.worker.rounds);
  rig_expect_error(&rig.request, ZPS_ERR_CLOSED, "rank 0 closed the job");
  rig_expect_error(&more, ZPS_ERR_CLOSED, "rank 0 closed the job");
  for (uint64_t step = 1; step <= 2; step++) {
    for (uint32_t s = 0; s < 2; s++)
      fake_expect_abort(&rig.worker.servers[s], 5, step, ZPS_ERR_CLOSED, "rank 0 closed the job");
  }
  rig_expect_released(&rig.request); /* the round waits for no server */
  rig_expect_released(&more);
  assert_int_equal(rig_held(&rig.worker), 0);
  served_begin(&rig, &more, 3, RIG_TIMEOUT_MS);
  rig_expect_error(&more, ZPS_ERR_CLOSED, "rank 0 closed the job");
}

static void fail_run(void *ctx) {
  zps_rounds_fail(
      ctx, &(struct zps_frame_abort){.code = ZPS_ERR_PEER_LOST, .n_ranks = 1, .ranks = {2}, .text = "rank 2 is dead"});
}

static void job_fails(void **state) {
  (void)state;
  open_small();
  begin_pushed(1, RIG_TIMEOUT_MS);
  rig_do(&rig.worker, fail_run, &rig.worker.rounds);
  rig_expect_error(&rig.request, ZPS_ERR_PEER_LOST, "rank 2 is dead");
  assert_int_equal(rig.request.error.n_missing, 1);
  assert_int_equal(rig.request.error.missing_ranks[0], 2);
  rig_expect_released(&rig.request);
  served_begin(&rig, &rig.request, 2, RIG_TIMEOUT_MS);
  rig_expect_error(&rig.request, ZPS_ERR_PEER_LOST, "rank 2 is dead");
}

#define TROUBLE(test) cmocka_unit_test_setup_teardown(test, begin_test, end_test)

int main(void) {
  const struct CMUnitTest tests[] = {
      TROUBLE(what_a_server_says),
      TROUBLE(ranks_that_are_missing),
      TROUBLE(sums_too_early),
      TROUBLE(frames_that_are_none),
      TROUBLE(frames_of_others),
      TROUBLE(lost_while_waited_for),
      TROUBLE(lost_when_it_has_answered),
      TROUBLE(dead_before_the_push),
      TROUBLE(dead_before_the_read),
      TROUBLE(silent),
      TROUBLE(all_silent),
      TROUBLE(servers_have_less_time),
      TROUBLE(too_late_to_encode),
      TROUBLE(too_late_to_decode),
      TROUBLE(lingers_until_all_have_spoken),
      TROUBLE(lingers_for_every_partition),
      TROUBLE(canceled_at_once),
      TROUBLE(canceled_while_encoding),
      TROUBLE(canceled_while_waiting),
      TROUBLE(canceled_while_pulling),
      TROUBLE(canceled_while_decoding),
      TROUBLE(canceled_when_done),
      TROUBLE(job_is_closed),
      TROUBLE(job_fails),
  };
  return cmocka_run_group_tests_name("rounds over servers that fail", tests, NULL, NULL);
}
