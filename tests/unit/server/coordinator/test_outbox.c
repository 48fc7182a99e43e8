/* Calls to a server whose connection has no room for them: their order, their bound, and those that become moot. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "server/coordinator/outbox.h"

enum { JOB_MAX = 3 };

static struct zps_outbox outbox;
static unsigned room; /* calls that may still be sent */
static char sent[400];
static zps_err_t failure; /* of every call sent */
static unsigned n_dropped;

static zps_err_t on_send(void *ctx, const struct zps_outbox_call *call) {
  static const char *const names[] = {[ZPS_ACT_JOB_OPEN] = "open",
                                      [ZPS_ACT_JOB_CLOSE] = "close",
                                      [ZPS_ACT_RANK_GONE] = "gone",
                                      [ZPS_ACT_TENSOR_OPEN] = "tensor",
                                      [ZPS_ACT_TENSOR_FORGET] = "forget"};
  assert_ptr_equal(ctx, &room);
  if (room == 0) return ZPS_ERR_AGAIN;
  room--;
  const size_t len = strlen(sent);
  snprintf(sent + len, sizeof sent - len, "%s%u ", names[call->type], (unsigned)call->job_id);
  if (call->type == ZPS_ACT_RANK_GONE) {
    assert_string_equal(call->text, "it is lost");
    assert_true(call->rank == 7 && call->code == ZPS_ERR_PEER_LOST);
  }
  zps_outbox_flush(&outbox); /* sending may end an older call */
  return failure;
}

static void on_dropped(void *ctx, const struct zps_outbox_call *call) {
  assert_true(ctx == &room && call->job_id > 0);
  n_dropped++;
}

static int setup(void **state) {
  (void)state;
  zps_outbox_init(&outbox, JOB_MAX, &room, on_send, on_dropped);
  n_dropped = 0;
  room = 0;
  sent[0] = '\0';
  failure = ZPS_OK;
  return 0;
}

static int teardown(void **state) {
  (void)state;
  zps_outbox_clear(&outbox);
  return outbox.first || outbox.n_waiting;
}

static struct zps_error error;

static zps_err_t put(enum zps_action_type type, uint64_t job_id, uint32_t tensor) {
  char text[] = "it is lost";
  const struct zps_outbox_call call = {
      .type = type, .job_id = job_id, .tensor = tensor, .rank = 7, .code = ZPS_ERR_PEER_LOST, .text = text};
  const zps_err_t err = zps_outbox_put(&outbox, &call, &error);
  memset(text, 'x', sizeof text - 1);
  return err;
}

static void let_out(unsigned n, const char *wanted) {
  room = n;
  sent[0] = '\0';
  zps_outbox_flush(&outbox);
  assert_string_equal(sent, wanted);
}

static void test_order(void **state) {
  (void)state;
  room = 1;
  assert_int_equal(put(ZPS_ACT_JOB_OPEN, 1, 0), ZPS_OK);
  assert_string_equal(sent, "open1 ");
  assert_int_equal(put(ZPS_ACT_TENSOR_OPEN, 1, 0), ZPS_OK);
  assert_int_equal(put(ZPS_ACT_JOB_OPEN, 2, 0), ZPS_OK);
  assert_int_equal(put(ZPS_ACT_RANK_GONE, 1, 0), ZPS_OK);
  let_out(0, "");
  let_out(1, "tensor1 ");
  room = 1;
  assert_int_equal(put(ZPS_ACT_TENSOR_OPEN, 1, 1), ZPS_OK); /* none overtakes those that wait */
  let_out(9, "gone1 tensor1 ");
  assert_int_equal(outbox.n_waiting, 0);
}

static void test_bound(void **state) {
  (void)state;
  for (uint32_t t = 0; t < JOB_MAX; t++) assert_int_equal(put(ZPS_ACT_TENSOR_OPEN, 1, t), ZPS_OK);
  assert_int_equal(put(ZPS_ACT_TENSOR_OPEN, 1, JOB_MAX), ZPS_ERR_BUSY);
  assert_string_equal(error.text, "3 calls of the job wait for it already, and at most 3 may");
  assert_int_equal(put(ZPS_ACT_JOB_OPEN, 2, 0), ZPS_OK); /* another job's business */
  assert_int_equal(put(ZPS_ACT_JOB_CLOSE, 1, 0), ZPS_OK);
  let_out(9, "open2 close1 ");
}

static void test_moot(void **state) {
  (void)state;
  /* The server knows job 1: it need hear only that it is closed. It knows nothing of job 2, nor will it. */
  assert_int_equal(put(ZPS_ACT_TENSOR_OPEN, 1, 0), ZPS_OK);
  assert_int_equal(put(ZPS_ACT_JOB_OPEN, 2, 0), ZPS_OK);
  assert_int_equal(put(ZPS_ACT_RANK_GONE, 1, 0), ZPS_OK);
  assert_int_equal(put(ZPS_ACT_JOB_CLOSE, 2, 0), ZPS_OK);
  assert_int_equal(n_dropped, 1);
  assert_int_equal(put(ZPS_ACT_JOB_CLOSE, 1, 0), ZPS_OK);
  assert_int_equal(n_dropped, 3);
  assert_int_equal(put(ZPS_ACT_JOB_OPEN, 2, 0), ZPS_OK); /* placed anew */
  let_out(9, "close1 open2 ");
  /* Calls about tensors are told apart by their numbers. */
  assert_int_equal((room = 0, put(ZPS_ACT_TENSOR_OPEN, 1, 4)), ZPS_OK);
  assert_int_equal(put(ZPS_ACT_TENSOR_FORGET, 1, 4), ZPS_OK);
  assert_int_equal(put(ZPS_ACT_TENSOR_FORGET, 1, 3), ZPS_OK);
  assert_int_equal(n_dropped, 4);
  let_out(9, "forget1 ");
}

/* The server knows the job. It is to hear the end, though the job was opened and closed again meanwhile. */
static void test_closed_opened_and_closed(void **state) {
  (void)state;
  room = 1;
  assert_int_equal(put(ZPS_ACT_JOB_OPEN, 1, 0), ZPS_OK);
  assert_int_equal(put(ZPS_ACT_JOB_CLOSE, 1, 0), ZPS_OK);
  assert_int_equal(put(ZPS_ACT_JOB_OPEN, 1, 0), ZPS_OK);
  assert_int_equal(put(ZPS_ACT_JOB_CLOSE, 1, 0), ZPS_OK);
  let_out(9, "close1 ");
}

static void test_calls_that_cannot_be_sent(void **state) {
  (void)state;
  assert_int_equal(put(ZPS_ACT_JOB_OPEN, 1, 0), ZPS_OK);
  assert_int_equal(put(ZPS_ACT_JOB_OPEN, 2, 0), ZPS_OK);
  failure = ZPS_ERR_CLOSED;
  let_out(9, "open1 open2 ");
  assert_int_equal(outbox.n_waiting, 0);
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void) {
  const struct CMUnitTest tests[] = {CASE(test_order), CASE(test_bound), CASE(test_moot),
                                     CASE(test_closed_opened_and_closed), CASE(test_calls_that_cannot_be_sent)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
