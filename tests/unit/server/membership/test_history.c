/* The last jobs that have ended: the facts kept of each, their order, and the jobs that are forgotten. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "server/membership/history.h"
#include "server/membership/notes.h"
#include "tests/unit/server/membership/members_rig.h"

static struct zps_history history;

static int setup(void **state) {
  (void)state;
  memset(&history, 0, sizeof history);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  zps_history_fini(&history);
  return 0;
}

static void end_job(uint64_t job_id, zps_err_t code, const char *text) {
  struct zps_member_tensor tensor = {.spec.name = "w", .rounds_done = 3, .tally = {.rounds = 20, .bytes_out = 100}};
  struct zps_member_tensor *tensors[7];
  for (unsigned i = 0; i < 7; i++) tensors[i] = &tensor;
  struct zps_member_server server = {.name = "s"};
  struct zps_view_place places[] = {{.was_lost = true}, {.state = ZPS_PLACE_IN, .server = &server}, {.server = NULL}};
  struct zps_member_job job = {.job_id = job_id,
                               .world = 8,
                               .n_left = 5,
                               .n_lost = 3,
                               .view = {.epoch = 4, .n_places = 3, .n_first = 2, .places = places},
                               .n_tensors = 7,
                               .tensors = tensors,
                               .started_ns = 10 * ZPS_NS_PER_S,
                               .aged_ns = 100 * ZPS_NS_PER_S,
                               .started_ms = 1699999885000};
  struct zps_error cause = {.text = ""};
  strcpy(job.lost_servers, "t");
  snprintf(job.name, sizeof job.name, "job%u", (unsigned)job_id);
  if (code) zps_fail(&cause, code, "%s", text);
  const struct zps_history_record record = zps_history_of(&job, &cause, 25 * ZPS_NS_PER_S, 1700000000000);
  assert_int_equal(zps_history_add(&history, &record), ZPS_OK);
}

static void test_all_of_a_job_is_kept(void **state) {
  (void)state;
  assert_int_equal(zps_history_len(&history), 0);
  end_job(1, ZPS_ERR_PEER_LOST, "rank 2 was lost");
  end_job(2, ZPS_OK, "all ranks have left");
  assert_int_equal(zps_history_len(&history), 2);
  const struct zps_history_record *record = zps_history_at(&history, 0);
  assert_string_equal(record->name, "job1");
  assert_int_equal(record->job_id, 1);
  assert_int_equal(record->world, 8);
  assert_int_equal(record->n_left, 5);
  assert_int_equal(record->n_lost, 3);
  assert_int_equal(record->n_servers, 2);
  assert_int_equal(record->n_places, 3);
  assert_int_equal(record->n_servers_lost, 1);
  assert_string_equal(record->lost_servers, "t");
  assert_int_equal(record->n_tensors, 7);
  assert_int_equal(record->epoch, 4);
  assert_int_equal(record->rounds, 21);
  assert_int_equal(record->bytes_out, 700);
  assert_int_equal(record->ran_ms, 115000); /* under a former coordinator, too */
  assert_int_equal(record->started_ms, 1699999885000);
  assert_int_equal(record->ended_ms, 1700000000000);
  assert_int_equal(record->cause.code, ZPS_ERR_PEER_LOST);
  assert_string_equal(record->cause.text, "rank 2 was lost");
  record = zps_history_at(&history, 1);
  assert_string_equal(record->name, "job2");
  assert_int_equal(record->cause.code, ZPS_OK);
  assert_string_equal(record->cause.text, ""); /* nothing was wrong */
}

static void test_how_a_job_ended_is_told(void **state) {
  struct zps_error error;
  (void)state;
  end_job(1, ZPS_ERR_PEER_LOST, "rank 2 was lost");
  end_job(2, ZPS_OK, "all ranks have left");
  zps_fail(&error, ZPS_ERR_UNKNOWN, "there is no such job");
  assert_int_equal(zps_history_tell(&history, 3, ZPS_ERR_UNKNOWN, &error), ZPS_ERR_UNKNOWN);
  assert_string_equal(error.text, "there is no such job");
  assert_int_equal(zps_history_tell(&history, 1, ZPS_ERR_UNKNOWN, &error), ZPS_ERR_UNKNOWN);
  assert_int_equal(error.code, ZPS_ERR_UNKNOWN);
  assert_string_equal(error.text, "job 'job1' 0x0000000000000001 is over: rank 2 was lost");
  assert_int_equal(zps_history_tell(&history, 2, ZPS_ERR_UNKNOWN, &error), ZPS_ERR_UNKNOWN);
  assert_string_equal(error.text, "job 'job2' 0x0000000000000002 is over: all ranks have left");
}

static void test_the_oldest_is_forgotten(void **state) {
  (void)state;
  for (uint64_t id = 1; id <= ZPS_HISTORY_MAX; id++) end_job(id, ZPS_ERR_SERVER_LOST, "x");
  assert_int_equal(zps_history_len(&history), ZPS_HISTORY_MAX);
  assert_int_equal(zps_history_at(&history, 0)->job_id, 1);
  for (uint64_t id = ZPS_HISTORY_MAX + 1; id <= 3 * ZPS_HISTORY_MAX + 5; id++) {
    end_job(id, id % 2 ? ZPS_ERR_SERVER_LOST : ZPS_OK, "x");
    assert_int_equal(zps_history_len(&history), ZPS_HISTORY_MAX);
    assert_int_equal(history.n, id);
    for (unsigned i = 0; i < ZPS_HISTORY_MAX; i++)
      assert_int_equal(zps_history_at(&history, i)->job_id, id - ZPS_HISTORY_MAX + 1 + i);
    const struct zps_history_record *last = zps_history_at(&history, ZPS_HISTORY_MAX - 1);
    assert_string_equal(last->cause.text, id % 2 ? "x" : ""); /* nothing of the one that was there before */
  }
}

static void end_job_of(uint64_t id, const char *client) {
  struct zps_history_record record = {.job_id = id, .origin = zps_origin_named(ZPS_ORIGIN_TOKEN, client)};
  assert_int_equal(zps_history_add(&history, &record), ZPS_OK);
}

static unsigned jobs_of(const char *client) {
  const struct zps_origin origin = zps_origin_named(ZPS_ORIGIN_TOKEN, client);
  unsigned n = 0;
  for (unsigned i = 0; i < zps_history_len(&history); i++)
    n += zps_origin_is(&zps_history_at(&history, i)->origin, &origin);
  return n;
}

static void test_no_client_pushes_anothers_jobs_out(void **state) {
  (void)state;
  for (uint64_t id = 1; id <= 3; id++) end_job_of(id, "quiet");
  for (uint64_t id = 4; id <= 4 * ZPS_HISTORY_MAX; id++) end_job_of(id, "loud");
  assert_int_equal(jobs_of("quiet"), 3);
  assert_int_equal(jobs_of("loud"), ZPS_HISTORY_MAX - 3);
  assert_int_equal(zps_history_at(&history, 0)->job_id, 1);
  assert_int_equal(zps_history_at(&history, 3)->job_id, 3 * ZPS_HISTORY_MAX + 4); /* The oldest ones went. */
  assert_int_equal(zps_history_at(&history, ZPS_HISTORY_MAX - 1)->job_id, 4 * ZPS_HISTORY_MAX);
  /* The quiet one becomes loud, and they share. */
  for (uint64_t id = 1; id <= 2 * ZPS_HISTORY_MAX; id++) end_job_of(4 * ZPS_HISTORY_MAX + id, "quiet");
  assert_in_range(jobs_of("loud"), ZPS_HISTORY_MAX / 2 - 1, ZPS_HISTORY_MAX / 2 + 1);
}

/* Two tenants behind one certificate, told apart by their tokens. */
static void test_tenants_of_one_origin(void **state) {
  (void)state;
  struct zps_history_record record = {.origin = zps_origin_named(ZPS_ORIGIN_CERTIFICATE, "cluster")};
  for (record.job_id = 1; record.job_id <= 301; record.job_id++) {
    record.tenant = zps_origin_named(ZPS_ORIGIN_TOKEN, record.job_id == 1 ? "quiet" : "loud");
    assert_int_equal(zps_history_add(&history, &record), ZPS_OK);
  }
  assert_int_equal(zps_history_at(&history, 0)->job_id, 1);
  assert_int_equal(zps_history_at(&history, 1)->job_id, 301 - ZPS_HISTORY_MAX + 2);
}

/* How jobs end, in the same words as the messages to ranks. */
static const struct zps_history_record *ended(unsigned index) {
  const struct zps_history *const of = zps_members_history(rig.members);
  return index < zps_history_len(of) ? zps_history_at(of, index) : NULL;
}

static void test_a_job_that_all_ranks_leave_is_closed(void **state) {
  (void)state;
  const uint64_t job_id = members_running_job();
  assert_int_equal(zps_members_leave(rig.members, &rig.clients[2], job_id, &rig.error), ZPS_OK);
  assert_null(ended(0));
  assert_int_equal(zps_members_leave(rig.members, &rig.clients[3], job_id, &rig.error), ZPS_OK);
  assert_non_null(ended(0));
  assert_int_equal(ended(0)->cause.code, ZPS_OK);
  assert_string_equal(ended(0)->cause.text, "");
  assert_null(ended(1));
}

static void test_the_first_cause_is_told(void **state) {
  (void)state;
  members_running_job();
  zps_members_client_lost(rig.members, &rig.clients[3], "it was killed");
  zps_members_client_lost(rig.members, &rig.clients[0], "so was the server"); /* all of its consequences follow */
  assert_null(ended(0));
  zps_members_client_lost(rig.members, &rig.clients[2], "the other gave up");
  assert_non_null(ended(0));
  assert_int_equal(ended(0)->cause.code, ZPS_ERR_PEER_LOST);
  assert_string_equal(ended(0)->cause.text, "job 'x': rank 1 (host node, pid 103) was lost: it was killed");
  assert_null(ended(1));
}

static void test_a_job_that_never_ran_has_a_cause(void **state) {
  (void)state;
  assert_int_equal(members_server(0, "a", 1, &members_tcp), ZPS_OK);
  assert_int_equal(members_join(2, "x", 0, 3, &members_tcp), ZPS_OK);
  assert_int_equal(members_join(3, "x", 1, 3, &members_tcp), ZPS_OK);
  zps_members_client_lost(rig.members, &rig.clients[3], "it was killed");
  zps_members_tick(rig.members, 1500 * ZPS_NS_PER_MS); /* the notification to rank 0 follows from that */
  assert_non_null(ended(0));
  assert_int_equal(ended(0)->cause.code, ZPS_ERR_PEER_LOST);
  assert_string_equal(ended(0)->cause.text, "job 'x': rank 1 (host node, pid 103) was lost: it was killed");
  /* A server that does not open it. */
  rig.now_ns = 1500 * ZPS_NS_PER_MS;
  assert_int_equal(members_join(2, "x", 0, 1, &members_tcp), ZPS_OK);
  members_opened(0, zps_members_job_first(rig.members)->job_id, ZPS_ERR_NOMEM);
  assert_non_null(ended(1));
  assert_int_equal(ended(1)->cause.code, ZPS_ERR_NOMEM);
  assert_string_equal(ended(1)->cause.text, "job 'x': server 'a' (host node) did not open it: it has no room");
  assert_null(ended(2));
}

static void test_what_went_well_again_is_no_cause(void **state) {
  (void)state;
  assert_int_equal(members_server(0, "a", 1, &members_tcp), ZPS_OK);
  assert_int_equal(members_join(2, "x", 0, 2, &members_tcp), ZPS_OK);
  assert_int_equal(members_join(4, "x", 1, 3, &members_tcp), ZPS_ERR_SHAPE);
  assert_int_equal(members_join(3, "y", 0, 3, &members_tcp), ZPS_OK);
  zps_members_client_lost(rig.members, &rig.clients[2], "it was killed");
  assert_non_null(ended(0)); /* it was the only one */
  assert_int_equal(members_join(4, "y", 1, 3, &members_tcp), ZPS_OK);
  zps_members_client_lost(rig.members, &rig.clients[4], "it was killed");
  assert_int_equal(members_join(5, "y", 1, 3, &members_tcp), ZPS_OK);
  assert_int_equal(members_join(6, "y", 2, 3, &members_tcp), ZPS_OK);
  const uint64_t job_id = zps_members_job_first(rig.members)->job_id;
  members_opened(0, job_id, ZPS_OK);
  static const unsigned clients[] = {3, 5, 6};
  for (unsigned i = 0; i < 3; i++)
    assert_int_equal(zps_members_leave(rig.members, &rig.clients[clients[i]], job_id, &rig.error), ZPS_OK);
  assert_non_null(ended(1));
  assert_int_equal(ended(1)->cause.code, ZPS_OK);
  assert_null(ended(2));
}

/* ------------------------------------------------------------ the first error of a rank */

static void tell(unsigned client, uint64_t job_id, zps_err_t code, const char *text) {
  struct zps_error why = {.text = ""};
  if (code) zps_fail(&why, code, "%s", text);
  assert_int_equal(zps_members_rank_failed(rig.members, &rig.clients[client], job_id, &why, &rig.error), ZPS_OK);
}

static void leave(unsigned client, uint64_t job_id) {
  assert_int_equal(zps_members_leave(rig.members, &rig.clients[client], job_id, &rig.error), ZPS_OK);
}

#define MISSING "step 100: the deadline passed without the push of rank 1"

/* Ranks leave with an error: the job has failed, though nobody was lost. */
static void test_the_first_error_of_a_rank_is_the_cause(void **state) {
  (void)state;
  const uint64_t job_id = members_running_job();
  tell(2, job_id, ZPS_ERR_MISSING, MISSING);
  tell(3, job_id, ZPS_ERR_CLOSED, "rank 0 left the job"); /* a consequence */
  assert_int_equal(zps_member_job_cause(zps_members_job_first(rig.members))->code, ZPS_ERR_MISSING);
  leave(2, job_id);
  leave(3, job_id);
  assert_non_null(ended(0));
  assert_int_equal(ended(0)->cause.code, ZPS_ERR_MISSING);
  assert_string_equal(ended(0)->cause.text, MISSING);
  assert_int_equal(ended(0)->n_left, 2);
  assert_null(ended(1));
}

/* A rank hangs, and the others fail by that. Its end, hours later, is no cause. */
static void test_a_loss_behind_the_first_error_is_no_cause(void **state) {
  (void)state;
  const uint64_t job_id = members_running_job();
  tell(2, job_id, ZPS_ERR_MISSING, MISSING);
  leave(2, job_id);
  zps_members_client_lost(rig.members, &rig.clients[3], "it was killed");
  assert_non_null(ended(0));
  assert_int_equal(ended(0)->cause.code, ZPS_ERR_MISSING);
}

/* What a rank has gone on after is no cause, neither of a peaceful end nor of a loss later on. */
static void test_an_error_that_a_rank_got_over_is_no_cause(void **state) {
  (void)state;
  uint64_t job_id = members_running_job();
  tell(2, job_id, ZPS_ERR_MISSING, MISSING);
  tell(3, job_id, ZPS_OK, NULL); /* it has none, which says nothing of the other rank's */
  assert_int_equal(zps_member_job_cause(zps_members_job_first(rig.members))->code, ZPS_ERR_MISSING);
  tell(2, job_id, ZPS_OK, NULL);
  assert_int_equal(zps_member_job_cause(zps_members_job_first(rig.members))->code, ZPS_OK);
  tell(3, job_id, ZPS_ERR_NOMEM, "no memory");
  tell(3, job_id, ZPS_OK, NULL);
  zps_members_client_lost(rig.members, &rig.clients[3], "it was killed");
  leave(2, job_id);
  assert_non_null(ended(0));
  assert_int_equal(ended(0)->cause.code, ZPS_ERR_PEER_LOST);
}

/* Another error of the same rank says that it got over the first one. A job that fails otherwise meanwhile may still
 * hear of that. */
static void test_a_later_error_of_the_same_rank_is_the_cause(void **state) {
  (void)state;
  const uint64_t job_id = members_running_job();
  tell(2, job_id, ZPS_ERR_MISSING, MISSING);
  tell(2, job_id, ZPS_ERR_NOMEM, "no memory");
  tell(3, job_id, ZPS_ERR_CLOSED, "rank 0 left the job");
  assert_int_equal(zps_member_job_cause(zps_members_job_first(rig.members))->code, ZPS_ERR_NOMEM);
  zps_members_client_lost(rig.members, &rig.clients[3], "it was killed");
  tell(2, job_id, ZPS_OK, NULL);
  leave(2, job_id);
  assert_non_null(ended(0));
  assert_int_equal(ended(0)->cause.code, ZPS_ERR_PEER_LOST);
}

static unsigned n_causes;
static zps_err_t last_cause;

static void on_note(void *ctx, const struct zps_member_note *note) {
  (void)ctx;
  if (note->type != ZPS_NOTE_JOB_CAUSE) return;
  n_causes++;
  last_cause = note->job->cause.error.code;
}

/* A rank that fails and goes on, again and again, fills neither the log nor the journal. Its last error is the cause
 * all the same. */
static void test_errors_of_a_rank_are_bounded(void **state) {
  (void)state;
  members_teardown(NULL);
  n_causes = 0;
  assert_int_equal(members_setup_noted(on_note), 0);
  const uint64_t job_id = members_running_job();
  for (unsigned i = 0; i < 100; i++) {
    tell(2, job_id, ZPS_ERR_MISSING, MISSING);
    assert_int_equal(zps_member_job_cause(zps_members_job_first(rig.members))->code, ZPS_ERR_MISSING);
    tell(2, job_id, ZPS_OK, NULL);
    assert_int_equal(zps_member_job_cause(zps_members_job_first(rig.members))->code, ZPS_OK);
  }
  assert_int_equal(n_causes, 2 * 64);
  tell(2, job_id, ZPS_ERR_MISSING, MISSING);
  leave(2, job_id);
  leave(3, job_id);
  assert_int_equal(ended(0)->cause.code, ZPS_ERR_MISSING);
}

/* An error behind the last noted one takes its place: the journal then has none. */
static void test_the_journal_has_no_old_error(void **state) {
  (void)state;
  members_teardown(NULL);
  n_causes = 0;
  assert_int_equal(members_setup_noted(on_note), 0);
  const uint64_t job_id = members_running_job();
  for (unsigned i = 0; i < 100; i++) tell(2, job_id, ZPS_ERR_MISSING, i % 2 ? MISSING : "another push is missing");
  assert_int_equal(n_causes, 64 + 1);
  assert_int_equal(last_cause, ZPS_OK);
  assert_string_equal(zps_member_job_cause(zps_members_job_first(rig.members))->text, MISSING);
}

static void test_a_first_join_that_is_refused_begins_no_job(void **state) {
  (void)state;
  assert_int_equal(members_server(0, "a", 1, &members_tcp), ZPS_OK);
  assert_int_equal(members_join(2, "x", 0, 1, &members_verbs), ZPS_ERR_REFUSED);
  assert_null(ended(0));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_all_of_a_job_is_kept, setup, teardown),
      cmocka_unit_test_setup_teardown(test_how_a_job_ended_is_told, setup, teardown),
      cmocka_unit_test_setup_teardown(test_the_oldest_is_forgotten, setup, teardown),
      cmocka_unit_test_setup_teardown(test_no_client_pushes_anothers_jobs_out, setup, teardown),
      cmocka_unit_test_setup_teardown(test_tenants_of_one_origin, setup, teardown),
      MEMBERS_CASE(test_a_job_that_all_ranks_leave_is_closed),
      MEMBERS_CASE(test_the_first_cause_is_told),
      MEMBERS_CASE(test_a_job_that_never_ran_has_a_cause),
      MEMBERS_CASE(test_what_went_well_again_is_no_cause),
      MEMBERS_CASE(test_the_first_error_of_a_rank_is_the_cause),
      MEMBERS_CASE(test_a_loss_behind_the_first_error_is_no_cause),
      MEMBERS_CASE(test_an_error_that_a_rank_got_over_is_no_cause),
      MEMBERS_CASE(test_a_later_error_of_the_same_rank_is_the_cause),
      MEMBERS_CASE(test_errors_of_a_rank_are_bounded),
      MEMBERS_CASE(test_the_journal_has_no_old_error),
      MEMBERS_CASE(test_a_first_join_that_is_refused_begins_no_job),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
