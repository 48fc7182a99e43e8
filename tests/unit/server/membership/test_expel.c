/* Ranks that an administrator expels: what they, the others and the administrator hear, and that they do not come back.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/server/membership/members_rig.h"

enum { A = 0, B = 1, R0 = 2, R1 = 3, R2 = 4 };

static struct zps_member_kicked kicked;

static zps_err_t kick(const char *job, uint32_t rank) {
  return zps_members_kick(rig.members, job, rank, "its GPU is broken", &kicked, &rig.error);
}

static const struct zps_member_job *the_job(void) {
  return zps_members_job_first(rig.members);
}

static void refused(zps_err_t err, zps_err_t want, const char *text) {
  assert_int_equal(err, want);
  if (!strstr(rig.error.text, text)) fail_msg("'%s' does not say '%s'", rig.error.text, text);
}

static const struct members_seen *heard(enum zps_action_type type, unsigned client) {
  const struct members_seen *seen = NULL;
  assert_int_equal(members_count(type, client, &seen), 1);
  return seen;
}

#define LOST "job 'x': rank 1 (host node, pid 103) was lost: an administrator expelled it: its GPU is broken"

static void test_of_a_running_job(void **state) {
  (void)state;
  const uint64_t job_id = members_running_job();
  assert_int_equal(kick("x", 1), ZPS_OK);
  assert_true(kicked.job_id == job_id && kicked.rank == 1 && kicked.pid == 103);
  assert_string_equal(kicked.job, "x");
  assert_string_equal(kicked.host, "node");
  assert_string_equal(kicked.job_state, "closing");
  for (unsigned client = R0; client <= R1; client++) {
    const struct members_seen *const seen = heard(ZPS_ACT_JOB_FAILED, client);
    assert_true(seen->action.code == ZPS_ERR_PEER_LOST && seen->action.rank == 1);
    assert_string_equal(seen->text, LOST);
  }
  assert_int_equal(heard(ZPS_ACT_RANK_GONE, A)->action.code, ZPS_ERR_PEER_LOST);
  assert_int_equal(the_job()->ranks[1]->state, ZPS_RANK_LOST);
  refused(kick("x", 1), ZPS_ERR_REFUSED, "rank 1 is not in job 'x': it was lost");
  assert_int_equal(kick("x", 0), ZPS_OK); /* one that does not leave a job that has failed */
  assert_string_equal(kicked.job_state, "ended");
  assert_int_equal(members_count(ZPS_ACT_JOB_FAILED, R0, NULL), 1);
}

static void test_of_one_that_gathers(void **state) {
  (void)state;
  assert_int_equal(members_join(R0, "x", 0, 3, &members_tcp), ZPS_OK);
  assert_int_equal(members_join(R1, "x", 1, 3, &members_tcp), ZPS_OK);
  refused(kick("x", 2), ZPS_ERR_REFUSED, "rank 2 is not in job 'x': it has not joined");
  assert_int_equal(kick("x", 1), ZPS_OK);
  assert_string_equal(kicked.job_state, "joining");
  assert_string_equal(heard(ZPS_ACT_JOIN_FAILED, R1)->text, LOST);
  assert_int_equal(members_count(ZPS_ACT_JOB_FAILED, R1, NULL), 0);
  assert_int_equal(members_join(R1, "x", 1, 3, &members_tcp), ZPS_OK); /* another process */
}

static void test_what_there_is_not(void **state) {
  (void)state;
  refused(kick("x", 0), ZPS_ERR_UNKNOWN, "there is no job 'x'");
  const uint64_t job_id = members_running_job();
  refused(kick("x", 2), ZPS_ERR_INVALID, "job 'x' has ranks 0 to 1, and no rank 2");
  assert_int_equal(zps_members_leave(rig.members, &rig.clients[R0], job_id, &rig.error), ZPS_OK);
  refused(kick("x", 0), ZPS_ERR_REFUSED, "it has left");
}

/* Of two runs of a job the one that the rank is in. */
static void test_of_the_run_that_it_is_in(void **state) {
  (void)state;
  const uint64_t job_id = members_running_job();
  zps_members_job_fail(rig.members, job_id, ZPS_ERR_NOMEM, "no room");
  assert_int_equal(members_join(R2, "x", 0, 2, &members_tcp), ZPS_OK);
  assert_int_equal(kick("x", 1), ZPS_OK);
  assert_int_equal(kicked.job_id, job_id);
  assert_int_equal(kick("x", 0), ZPS_OK);
  assert_string_equal(kicked.job_state, "ended");
  assert_true(kicked.job_id != job_id && kicked.pid == 100 + R2);
}

static zps_err_t join_by_secret(unsigned client, uint32_t rank) {
  const struct zps_join_spec spec = {.job = "x",
                                     .host = "node",
                                     .world = 2,
                                     .rank = rank,
                                     .pid = client,
                                     .timeout_ms = 1500,
                                     .fabric = &members_tcp,
                                     .secret = 90 + rank};
  return zps_members_join(rig.members, &rig.clients[client], &spec, &rig.clients[client], 0, &rig.error);
}

static void test_it_does_not_come_back(void **state) {
  (void)state;
  assert_int_equal(members_server(A, "a", 1, &members_tcp), ZPS_OK);
  for (uint32_t r = 0; r < 2; r++) assert_int_equal(join_by_secret(R0 + r, r), ZPS_OK);
  const uint64_t job_id = the_job()->job_id;
  members_opened(A, job_id, ZPS_OK);
  struct zps_resume_spec resume = {.job_id = job_id, .rank = 1, .secret = 91};
  zps_members_client_away(rig.members, &rig.clients[R1], 60 * ZPS_NS_PER_S, "cut");
  assert_int_equal(kick("x", 1), ZPS_OK);
  refused(zps_members_resume(rig.members, &rig.clients[R1], &resume, &rig.error), ZPS_ERR_REFUSED,
          "and is in it no longer: an administrator expelled it: its GPU is broken");
  zps_members_client_lost(rig.members, &rig.clients[R0], "gone");
  assert_int_equal(zps_members_jobs(rig.members), 0); /* its job is gone, and it stays expelled */
  refused(zps_members_resume(rig.members, &rig.clients[R1], &resume, &rig.error), ZPS_ERR_REFUSED, "expelled it");
  resume.secret = 92; /* a process without the right secret gets no reason */
  refused(zps_members_resume(rig.members, &rig.clients[R1], &resume, &rig.error), ZPS_ERR_UNKNOWN, "no job");
  struct zps_next_spec next = {
      .join =
          {.job = "x", .host = "node", .world = 1, .pid = 9, .timeout_ms = 20000, .fabric = &members_tcp, .secret = 7},
      .min_world = 1,
      .max_world = 2,
      .generation = 1,
      .last_rank = 1,
      .last_job = job_id};
  refused(zps_members_next(rig.members, &rig.clients[R1], &next, &rig.clients[R1], 0, &rig.error), ZPS_ERR_REFUSED,
          "expelled it");
  next.last_rank = 0;
  assert_int_equal(zps_members_next(rig.members, &rig.clients[R1], &next, &rig.clients[R1], 0, &rig.error), ZPS_OK);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      MEMBERS_CASE(test_of_a_running_job),      MEMBERS_CASE(test_of_one_that_gathers),
      MEMBERS_CASE(test_what_there_is_not),     MEMBERS_CASE(test_of_the_run_that_it_is_in),
      MEMBERS_CASE(test_it_does_not_come_back),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
