/*
 * Whom an administrator has expelled is known to the coordinator that starts again from what was durable: a store in
 * memory, whose process dies. The last ones are known, in the order in which they were expelled, also when the journal
 * was replaced by a shorter one; an older journal says of nobody that he was.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/log.h"
#include "server/coordinator/records.h"
#include "tests/support/settled.h"
#include "tests/unit/server/state/store_memory.h"

enum { EXPELLED = 70 };

static struct store_memory disk;
static struct zps_store *store;
static struct zps_members *members;
static struct zps_error error;
static uint64_t last_random;

static void on_note(void *ctx, const struct zps_member_note *note) {
  (void)ctx;
  zps_json *const record = zps_record_write(note);
  char *const text = zps_json_dump(record);
  if (store) zps_store_append(store, text);
  free(text);
  zps_json_unref(record);
}

static void no_act(void *ctx, const struct zps_action *action) {
  (void)ctx, (void)action;
}

static uint64_t on_random(void *ctx) {
  (void)ctx;
  return ++last_random;
}

static zps_err_t take(void *ctx, const char *text, size_t len) {
  zps_json *record = NULL;
  (void)ctx;
  zps_err_t err = zps_json_parse(text, len, &record, &error);
  if (!err) err = zps_record_read(members, record, 0, &error);
  zps_json_unref(record);
  return err;
}

static void start(void) {
  const struct zps_members_config config = {
      .min_servers = 1, .max_jobs = 8, .max_tensors = 4, .act = no_act, .random = on_random, .note = on_note};
  assert_int_equal(zps_members_create(&config, &members), ZPS_OK);
  assert_int_equal(zps_store_open(&disk.backend, take, NULL, &store, &error), ZPS_OK);
  zps_members_restored(members, 1000);
}

/* What was not committed is lost with it. */
static void die(void) {
  zps_store_close(store);
  store = NULL;
  zps_members_destroy(members);
  store_memory_die(&disk, 0);
}

static void commit(void) {
  assert_int_equal(zps_store_commit(store, &error), ZPS_OK);
}

static void fill(void *ctx) {
  (void)ctx;
  zps_members_note_all(members);
}

static const struct zps_net_info fabric = {.provider = "tcp", .addr_format = "FI_SOCKADDR_IN"};
static struct zps_member_client server, ranks[2];

static void server_comes(void) {
  const struct zps_server_spec spec = {.name = "a", .host = "h", .pid = 1, .fabric = &fabric};
  server = (struct zps_member_client){.server = NULL};
  assert_int_equal(zps_members_server_register(members, &server, &spec, false, &error), ZPS_OK);
}

/* A job of two ranks, whose secrets are 90 and 91; returns its number. */
static uint64_t job_runs(void) {
  for (uint32_t r = 0; r < 2; r++) {
    const struct zps_join_spec spec = {.job = "x",
                                       .host = "h",
                                       .world = 2,
                                       .rank = r,
                                       .pid = r,
                                       .timeout_ms = 1500,
                                       .fabric = &fabric,
                                       .secret = 90 + r};
    ranks[r] = (struct zps_member_client){.server = NULL};
    assert_int_equal(zps_members_join(members, &ranks[r], &spec, &ranks[r], 0, &error), ZPS_OK);
  }
  const uint64_t job_id = ranks[0].job->job_id;
  zps_members_job_opened(members, &server, job_id, ZPS_OK, NULL);
  return job_id;
}

static void kick(uint32_t rank, const char *reason) {
  struct zps_member_kicked kicked;
  if (zps_members_kick(members, "x", rank, reason, &kicked, &error)) fail_msg("%s", error.text);
}

static zps_err_t back(uint64_t job_id, uint32_t rank, uint64_t secret) {
  const struct zps_resume_spec spec = {.job_id = job_id, .rank = rank, .secret = secret};
  struct zps_member_client client = {.server = NULL};
  return zps_members_resume(members, &client, &spec, &error);
}

static void is_refused(uint64_t job_id, uint32_t rank, const char *reason) {
  assert_int_equal(back(job_id, rank, 90 + rank), ZPS_ERR_REFUSED);
  if (!strstr(error.text, reason)) fail_msg("'%s' does not say '%s'", error.text, reason);
}

static void test_it_is_known_after_a_new_start(void **state) {
  (void)state;
  start();
  server_comes();
  const uint64_t job_id = job_runs();
  kick(1, "its GPU is \"broken\"");
  commit();
  die();
  start();
  is_refused(job_id, 1, "is in it no longer: an administrator expelled it: its GPU is \"broken\"");
  assert_int_equal(back(job_id, 1, 92), ZPS_ERR_REFUSED); /* a process without the right secret gets no reason */
  assert_null(strstr(error.text, "expelled"));
  assert_int_equal(back(job_id, 0, 90), ZPS_OK);
  const struct zps_next_spec next = {
      .join = {.job = "x", .host = "h", .world = 1, .pid = 9, .timeout_ms = 20000, .fabric = &fabric, .secret = 7},
      .min_world = 1,
      .max_world = 2,
      .generation = 1,
      .last_rank = 1,
      .last_job = job_id};
  struct zps_member_client client = {.server = NULL};
  assert_int_equal(zps_members_next(members, &client, &next, &client, 0, &error), ZPS_ERR_REFUSED);
  assert_non_null(strstr(error.text, "expelled it"));
  commit();
  die();
  start(); /* its job is gone */
  is_refused(job_id, 1, "expelled it");
  die();
}

/* Before the turn's end nobody was told. */
static void test_what_was_not_durable(void **state) {
  (void)state;
  start();
  server_comes();
  const uint64_t job_id = job_runs();
  commit();
  kick(1, "too late");
  die();
  start();
  assert_int_equal(back(job_id, 1, 91), ZPS_OK);
  die();
}

static void test_the_last_ones_are(void **state) {
  uint64_t jobs[EXPELLED];
  (void)state;
  start();
  server_comes();
  for (unsigned i = 0; i < EXPELLED; i++) {
    char reason[16];
    snprintf(reason, sizeof reason, "number %u.", i);
    jobs[i] = job_runs();
    kick(i % 2, reason);
    kick(1 - i % 2, "it is alone");
  }
  commit();
  for (unsigned round = 0; round < 3; round++) { /* from the records, and from records written anew */
    die();
    start();
    for (unsigned i = 0; i < EXPELLED; i++) {
      char reason[16];
      snprintf(reason, sizeof reason, "number %u.", i);
      if (2 * i >= 2 * EXPELLED - ZPS_EXPELLED_MAX)
        is_refused(jobs[i], i % 2, reason);
      else
        assert_int_equal(back(jobs[i], i % 2, 90 + i % 2), ZPS_ERR_UNKNOWN);
    }
    commit();
    assert_int_equal(zps_store_compact(store, fill, NULL, &error), ZPS_OK);
  }
  const uint64_t job_id = (server_comes(), job_runs());
  kick(0, "one more"); /* the oldest that is known is forgotten, not another */
  const unsigned oldest = EXPELLED - ZPS_EXPELLED_MAX / 2;
  assert_int_equal(back(jobs[oldest], oldest % 2, 90 + oldest % 2), ZPS_ERR_UNKNOWN);
  is_refused(jobs[oldest], 1 - oldest % 2, "it is alone");
  is_refused(job_id, 0, "one more");
  die();
}

static void test_an_older_journal(void **state) {
  static const char counters[] = "{\"what\":\"counters\",\"next_server\":3,\"epoch\":5}";
  (void)state;
  start();
  zps_store_append(store, counters);
  commit();
  die();
  start();
  assert_int_equal(back(1, 0, 90), ZPS_ERR_UNKNOWN);
  die();
}

#define OF(rest) "{\"what\":\"expelled\",\"job_id\":\"0x1\"," rest "}"
static void test_nonsense(void **state) {
  static const char *const wrong[] = {"{\"what\":\"expelled\",\"rank\":1,\"why\":\"x\"}",
                                      OF("\"rank\":4096,\"why\":\"x\""),
                                      OF("\"rank\":-1,\"why\":\"x\""),
                                      OF("\"rank\":1"),
                                      OF("\"rank\":1,\"why\":\"\""),
                                      OF("\"rank\":1,\"why\":\"a\\u0007\""),
                                      OF("\"rank\":1,\"why\":\"x\",\"secret\":5")};
  (void)state;
  start();
  for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    error.text[0] = '\0';
    if (take(NULL, wrong[i], strlen(wrong[i])) != ZPS_ERR_PROTOCOL) fail_msg("%s: %s", wrong[i], error.text);
    assert_true(error.text[0]);
  }
  char record[400], why[300] = "";
  memset(why, 'x', sizeof why - 1);
  snprintf(record, sizeof record, OF("\"rank\":1,\"why\":\"%s\""), why);
  assert_int_equal(take(NULL, record, strlen(record)), ZPS_ERR_PROTOCOL);
  die();
}

static int setup(void **state) {
  (void)state;
  store_memory_init(&disk);
  last_random = 0;
  return 0;
}

static void sink(void *ctx, const struct zps_log_line *line) {
  (void)ctx;
  assert_true(line->level > ZPS_LOG_ERROR); /* losing peers is for warnings */
}

int main(void) {
  zps_log_set_sink(sink, NULL);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(test_it_is_known_after_a_new_start, setup),
      cmocka_unit_test_setup(test_what_was_not_durable, setup),
      cmocka_unit_test_setup(test_the_last_ones_are, setup),
      cmocka_unit_test_setup(test_an_older_journal, setup),
      cmocka_unit_test_setup(test_nonsense, setup),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
