/* Jobs that an administrator wants placed anew: which take in servers at once, which later, and what is said of those
 * that do not. What follows is test_placement.c's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/server/membership/members_rig.h"

enum { A = 0, B = 1, R0 = 2, R1 = 3, D = 6, C = 7 }; /* clients: servers, ranks, and two more servers */

static struct zps_member_rebalanced said; /* of the last job */
static unsigned n_said;

static void on_said(void *ctx, const struct zps_member_job *job, const struct zps_member_rebalanced *of_job) {
  assert_ptr_equal(ctx, &said);
  assert_non_null(job);
  said = *of_job;
  n_said++;
}

static zps_err_t rebalance(const char *name) {
  n_said = 0;
  const zps_err_t err = zps_members_rebalance(rig.members, name, on_said, &said, &rig.error);
  zps_members_tick(rig.members, 1);
  return err;
}

static const struct zps_member_job *the_job(void) {
  return zps_members_job_first(rig.members);
}

static unsigned told(enum zps_action_type type, unsigned client) {
  return members_count(type, client, NULL);
}

static void opened(unsigned client, uint32_t tensor) {
  zps_members_tensor_opened(rig.members, &rig.clients[client], the_job()->job_id, tensor, ZPS_OK, NULL);
}

static void expect(enum zps_rebalance outcome, uint32_t n_servers, const char *why) {
  assert_int_equal(rebalance("x"), ZPS_OK);
  assert_int_equal(n_said, 1);
  if (said.outcome != outcome || !strstr(said.why, why))
    fail_msg("it %s: %s; not %s: %s", zps_rebalance_name(said.outcome), said.why, zps_rebalance_name(outcome), why);
  assert_int_equal(said.n_servers, n_servers);
}

/* Servers a and b, of which b is lost, all at time 1: nothing is over that anybody waits for. */
static uint64_t on_one_of_two(void) {
  zps_members_set_replays(rig.members, true);
  const uint64_t job_id = members_running_job();
  assert_int_equal(members_tensor(R0, job_id, "w", 100000, 12), ZPS_OK);
  opened(A, 0);
  opened(B, 0);
  zps_members_client_lost(rig.members, &rig.clients[B], "gone");
  return job_id;
}

static void goes_on(uint64_t job_id) {
  const struct zps_job_steps none = {.job_id = job_id, .epoch = the_job()->view.epoch};
  zps_members_map_answered(rig.members, &rig.clients[A], job_id, the_job()->view.epoch, ZPS_OK, NULL);
  for (unsigned client = R0; client <= R1; client++)
    assert_int_equal(zps_settled(rig.members, zps_members_mapped(&rig.clients[client], &none, &rig.error)), ZPS_OK);
  zps_members_tick(rig.members, 1);
  assert_int_equal(the_job()->map.state, ZPS_MAP_NONE);
}

static void test_at_once(void **state) {
  (void)state;
  const uint64_t job_id = on_one_of_two();
  goes_on(job_id);
  expect(ZPS_REBALANCE_STAYS, 1, "1 of its 2 places are free, and no server is there to take one");
  assert_false(the_job()->place_now);
  assert_int_equal(members_server(C, "c", 3, &members_tcp), ZPS_OK);
  zps_members_tick(rig.members, 1);
  assert_int_equal(told(ZPS_ACT_JOB_OPEN, C), 0); /* it has just come */
  expect(ZPS_REBALANCE_MOVES, 2, "servers take free places: c");
  assert_int_equal(said.n_parts, 6); /* b's half of 12 */
  assert_int_equal(told(ZPS_ACT_JOB_OPEN, C), 1);
  assert_true(zps_member_job_moves(the_job()));
  expect(ZPS_REBALANCE_MOVES, 2, "servers take free places: c");
  assert_int_equal(told(ZPS_ACT_JOB_OPEN, C), 1);
  members_opened(C, job_id, ZPS_OK);
  opened(C, 0);
  zps_members_tick(rig.members, 1);
  assert_true(zps_member_job_holds(the_job(), rig.clients[C].server) && zps_member_job_moves(the_job()));
  assert_int_equal(zps_member_job_servers_in(the_job()), 2);
  zps_members_map_answered(rig.members, &rig.clients[C], job_id, the_job()->view.epoch, ZPS_OK, NULL);
  goes_on(job_id);
  assert_false(zps_member_job_moves(the_job()));
  expect(ZPS_REBALANCE_STAYS, 2, "it began with 2 servers and has them all");
}

/* A tensor that came while the place was free is even with it. */
static void test_evens_out(void **state) {
  (void)state;
  const uint64_t job_id = on_one_of_two();
  goes_on(job_id);
  assert_int_equal(members_tensor(R0, job_id, "late", 100000, 12), ZPS_OK);
  opened(A, 1);
  assert_int_equal(members_server(C, "c", 3, &members_tcp), ZPS_OK);
  expect(ZPS_REBALANCE_MOVES, 2, "c");
  assert_int_equal(said.n_parts, 12);
}

/* What it waits for, and then it is not for it to settle. */
static void test_when_it_can(void **state) {
  (void)state;
  const uint64_t job_id = on_one_of_two();
  assert_int_equal(members_server(C, "c", 3, &members_tcp), ZPS_OK);
  expect(ZPS_REBALANCE_WAITS, 2, "about to go on with other servers");
  assert_int_equal(told(ZPS_ACT_JOB_OPEN, C), 0);
  goes_on(job_id);
  zps_members_tick(rig.members, 1);
  assert_int_equal(told(ZPS_ACT_JOB_OPEN, C), 1);
  assert_int_equal(members_tensor(R0, job_id, "u", 1000, 0), ZPS_OK); /* sends it away again */
  members_opened(C, job_id, ZPS_OK);
  opened(C, 0);
  expect(ZPS_REBALANCE_WAITS, 2, "a tensor of it is being opened");
}

static void test_what_stays(void **state) {
  (void)state;
  const struct zps_member_server *at = NULL;
  zps_members_set_replays(rig.members, true);
  assert_int_equal(rebalance(NULL), ZPS_OK);
  assert_int_equal(n_said, 0);
  assert_int_equal(members_join(R0, "x", 0, 2, &members_tcp), ZPS_OK);
  expect(ZPS_REBALANCE_STAYS, 0, "it does not run yet");
  zps_members_client_lost(rig.members, &rig.clients[R0], "gone");
  const uint64_t job_id = members_running_job();
  assert_int_equal(members_server(C, "c", 3, &members_tcp), ZPS_OK);
  assert_int_equal(members_server(D, "d", 4, &members_tcp), ZPS_OK);
  expect(ZPS_REBALANCE_STAYS, 2, "it began with 2 servers and has them all; 2 more have new jobs alone");
  zps_members_client_lost(rig.members, &rig.clients[B], "gone");
  goes_on(job_id);
  assert_int_equal(zps_members_drain_named(rig.members, "c", &at, &rig.error), ZPS_OK);
  assert_int_equal(zps_members_drain_named(rig.members, "d", &at, &rig.error), ZPS_OK);
  expect(ZPS_REBALANCE_STAYS, 1, "no server is there to take one");
  assert_int_equal(zps_members_undrain_named(rig.members, "d", &at, &rig.error), ZPS_OK);
  assert_int_equal(zps_members_hold(&rig.clients[R0], job_id, "its pushes are large", &rig.error), ZPS_OK);
  expect(ZPS_REBALANCE_STAYS, 1, "rank 0: its pushes are large");
  assert_int_equal(zps_members_hold(&rig.clients[R0], job_id, "", &rig.error), ZPS_OK);
  assert_int_equal(zps_members_leave(rig.members, &rig.clients[R0], job_id, &rig.error), ZPS_OK);
  expect(ZPS_REBALANCE_STAYS, 1, "1 of its ranks have left");
  zps_members_job_fail(rig.members, job_id, ZPS_ERR_NOMEM, "no room");
  expect(ZPS_REBALANCE_STAYS, 1, "it has failed");
}

/* A server is there, but a rank could not reach it. */
static void test_says_who_could_not_reach_a_server(void **state) {
  (void)state;
  uint32_t position = 1;
  zps_members_set_replays(rig.members, true);
  const uint64_t job_id = members_running_job();
  const struct zps_job_suspects suspects = {
      .job_id = job_id, .n_servers = 1, .servers = &position, .why = "no frame has come for 5.0 s"};
  assert_int_equal(zps_members_suspect(&rig.clients[R1], &suspects, &rig.error), ZPS_OK);
  zps_members_tick(rig.members, ZPS_NS_PER_S);
  zps_members_tick(rig.members, 2 * ZPS_NS_PER_S);
  zps_members_map_answered(rig.members, &rig.clients[A], job_id, the_job()->view.epoch, ZPS_OK, NULL);
  zps_members_map_answered(rig.members, &rig.clients[B], job_id, the_job()->view.epoch, ZPS_OK, NULL);
  const struct zps_job_steps none = {.job_id = job_id, .epoch = the_job()->view.epoch};
  for (unsigned client = R0; client <= R1; client++)
    assert_int_equal(zps_settled(rig.members, zps_members_mapped(&rig.clients[client], &none, &rig.error)), ZPS_OK);
  zps_members_tick(rig.members, 4 * ZPS_NS_PER_S);
  assert_int_equal(the_job()->map.state, ZPS_MAP_NONE);
  expect(ZPS_REBALANCE_WAITS, 1,
         "1 of its 2 places are free; rank 1 could not reach 'b' 2 s ago: no frame has come for 5.0 s; it is asked "
         "again in 3 s (sooner: zenpsctl undrain b)");
}

static void test_by_name(void **state) {
  (void)state;
  members_running_job();
  assert_int_equal(rebalance(NULL), ZPS_OK);
  assert_int_equal(n_said, 1);
  assert_int_equal(members_join(4, "train7", 0, 2, &members_tcp), ZPS_OK);
  assert_int_equal(rebalance(NULL), ZPS_OK);
  assert_int_equal(n_said, 2);
  assert_int_equal(rebalance("train"), ZPS_ERR_UNKNOWN);
  assert_non_null(strstr(rig.error.text, "there is no job 'train': did you mean 'train7'?"));
  assert_int_equal(n_said, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      MEMBERS_CASE(test_at_once),    MEMBERS_CASE(test_evens_out), MEMBERS_CASE(test_when_it_can),
      MEMBERS_CASE(test_what_stays), MEMBERS_CASE(test_by_name),   MEMBERS_CASE(test_says_who_could_not_reach_a_server),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
