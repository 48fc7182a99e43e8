/* The trainer's log callback: who gets the lines, and that nobody gets one any more when it was taken back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define ZPS_LOG_COMPONENT "test"
#include <pthread.h>
#include <sched.h>

#include "common/base/log.h"
#include "worker/base/logsink.h"

/* Two connections. */
struct trainer {
  atomic_uint n_lines;
  int level;
  char text[64];
};
static struct trainer first, second;

static void take_line(void *ctx, int level, const char *component, const char *text) {
  struct trainer *trainer = ctx;
  assert_string_equal(component, "test");
  trainer->level = level;
  strncpy(trainer->text, text, sizeof trainer->text - 1);
  trainer->n_lines++;
}

/* The callback has a thread of its own. */
static void await_lines(const struct trainer *trainer, unsigned n) {
  while (trainer->n_lines < n) sched_yield();
  assert_int_equal(trainer->n_lines, n);
}

static int begin(void **state) {
  (void)state;
  memset(&first, 0, sizeof first);
  memset(&second, 0, sizeof second);
  zps_log_set_level(ZPS_LOG_INFO);
  return 0;
}

static int end(void **state) {
  (void)state;
  zps_worker_log_drop(&first);
  zps_worker_log_drop(&second);
  return 0;
}

static void test_the_last_one_gets_the_lines(void **state) {
  (void)state;
  zps_worker_log_take(&first, take_line, &first);
  zps_log_warn("one");
  zps_log_debug("not of this level");
  await_lines(&first, 1);
  assert_int_equal(first.level, 1);
  assert_string_equal(first.text, "one");
  zps_worker_log_take(&second, take_line, &second);
  zps_log_error("two");
  await_lines(&second, 1);
  assert_int_equal(first.n_lines, 1);
  assert_string_equal(second.text, "two");
  assert_int_equal(second.level, 0);
}

static void test_one_takes_back_its_own_alone(void **state) {
  (void)state;
  zps_worker_log_take(&first, take_line, &first);
  zps_worker_log_take(&second, take_line, &second);
  zps_worker_log_drop(&first);
  zps_log_warn("still the second's");
  zps_worker_log_drop(&second); /* Waits for its line. */
  assert_int_equal(second.n_lines, 1);
  zps_log_info("on stderr");
  assert_int_equal(first.n_lines, 0);
  assert_int_equal(second.n_lines, 1);
  zps_worker_log_take(&first, take_line, &first);
  zps_worker_log_take(&first, take_line, &second); /* another callback of the same connection */
  zps_log_warn("again");
  await_lines(&second, 2);
  assert_int_equal(first.n_lines, 0);
}

/* ------------------------------------------------------------ a call under way */

static atomic_bool is_called, is_returning, has_returned;

/* Returns some time after the other thread has asked for its end. */
static void slow(void *ctx, int level, const char *component, const char *text) {
  (void)ctx, (void)level, (void)component, (void)text;
  atomic_store(&is_called, true);
  while (!atomic_load(&is_returning)) sched_yield();
  for (unsigned i = 0; i < 2000; i++) sched_yield();
  atomic_store(&has_returned, true);
}

static void *log_line(void *ctx) {
  (void)ctx;
  zps_log_warn("a line");
  return NULL;
}

static void wait_for_a_call(pthread_t *thread) {
  atomic_store(&is_called, false);
  atomic_store(&is_returning, false);
  atomic_store(&has_returned, false);
  zps_worker_log_take(&first, slow, NULL);
  assert_int_equal(pthread_create(thread, NULL, log_line, NULL), 0);
  while (!atomic_load(&is_called)) sched_yield();
  atomic_store(&is_returning, true);
}

static void test_a_call_under_way_is_waited_for(void **state) {
  (void)state;
  pthread_t thread;
  wait_for_a_call(&thread);
  zps_worker_log_drop(&first);
  assert_true(atomic_load(&has_returned));
  pthread_join(thread, NULL);
  wait_for_a_call(&thread);
  zps_worker_log_take(&first, take_line, &first);
  assert_true(atomic_load(&has_returned));
  pthread_join(thread, NULL);
  assert_int_equal(first.n_lines, 0);
}

/* ------------------------------------------------------------ a callback that blocks */

enum { LINES = 5000 };
static unsigned n_called, n_told;
static atomic_uint n_done;

static void block(void *ctx, int level, const char *component, const char *text) {
  (void)ctx, (void)level;
  atomic_store(&is_called, true);
  while (!atomic_load(&is_returning)) sched_yield();
  if (strcmp(component, "log") == 0) {
    assert_int_equal(sscanf(text, "%u lines of the log were dropped", &n_told), 1);
    return;
  }
  unsigned number;
  assert_int_equal(sscanf(text, "line %u", &number), 1);
  if (n_told == 0)
    assert_int_equal(number, n_called);
  else
    assert_int_equal(number, n_called + n_told);
  n_called++;
  n_done++;
}

/* Nobody who logs waits for it; the lines it has no time for are counted, in their place. */
static void test_one_that_blocks_holds_up_nobody(void **state) {
  (void)state;
  atomic_store(&is_called, false);
  atomic_store(&is_returning, false);
  zps_worker_log_take(&first, block, NULL);
  zps_log_warn("line 0");
  while (!atomic_load(&is_called)) sched_yield();
  for (unsigned i = 1; i < LINES; i++) zps_log_warn("line %u", i);
  atomic_store(&is_returning, true);
  while (atomic_load(&n_done) < 1000) sched_yield();
  zps_log_warn("line %u", LINES);
  zps_worker_log_drop(&first);
  assert_int_equal(n_called + n_told, LINES + 1);
  assert_in_range(n_called, 1000, 2000);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_the_last_one_gets_the_lines, begin, end),
      cmocka_unit_test_setup_teardown(test_one_takes_back_its_own_alone, begin, end),
      cmocka_unit_test_setup_teardown(test_a_call_under_way_is_waited_for, begin, end),
      cmocka_unit_test_setup_teardown(test_one_that_blocks_holds_up_nobody, begin, end),
  };
  return cmocka_run_group_tests_name("logsink", tests, NULL, NULL);
}
