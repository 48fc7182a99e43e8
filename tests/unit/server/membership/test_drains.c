/* Servers that drain: running jobs leave them as they leave a lost one, but nobody is lost by it; which jobs stay, and
 * what is refused. test_members_explore.c has the invariants that hold for every order of events. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "tests/unit/server/membership/members_rig.h"

enum { A = 0, B = 1, R0 = 2, R1 = 3, FREE = 6, C = 7 }; /* clients: servers, ranks, one more, and a third server */

static const struct zps_member_job *the_job(void) {
  return zps_members_job_first(rig.members);
}

static void server(unsigned client, const char *name, bool resumes, uint64_t *job_id) {
  const struct zps_server_spec spec = {.name = name,
                                       .host = "node",
                                       .pid = 1,
                                       .fabric = &members_tcp,
                                       .secret = 70 + (uint64_t)name[0],
                                       .jobs = job_id,
                                       .n_jobs = job_id ? 1 : 0};
  assert_int_equal(zps_members_server_register(rig.members, &rig.clients[client], &spec, resumes, &rig.error), ZPS_OK);
}

static void join(unsigned client, uint32_t rank, uint32_t world) {
  const struct zps_join_spec spec = {.job = "x",
                                     .host = "node",
                                     .world = world,
                                     .rank = rank,
                                     .pid = client,
                                     .timeout_ms = 1500,
                                     .fabric = &members_tcp,
                                     .secret = 90 + rank};
  assert_int_equal(zps_members_join(rig.members, &rig.clients[client], &spec, &rig.clients[client], 0, &rig.error),
                   ZPS_OK);
}

/* Servers a, b and c, at positions 0 to 2. */
static uint64_t running_on_three(void) {
  zps_members_set_replays(rig.members, true);
  server(A, "a", false, NULL);
  server(B, "b", false, NULL);
  server(C, "c", false, NULL);
  for (uint32_t r = 0; r < 2; r++) join(R0 + r, r, 2);
  const uint64_t job_id = the_job()->job_id;
  members_opened(A, job_id, ZPS_OK);
  members_opened(B, job_id, ZPS_OK);
  members_opened(C, job_id, ZPS_OK);
  return job_id;
}

static unsigned terminate(unsigned client) {
  unsigned jobs = 99;
  assert_int_equal(zps_members_server_drain(rig.members, &rig.clients[client], &jobs, &rig.error), ZPS_OK);
  return jobs;
}

static zps_err_t drain(const char *name) {
  const struct zps_member_server *at = NULL;
  const zps_err_t err = zps_members_drain_named(rig.members, name, &at, &rig.error);
  if (!err) assert_string_equal(at->name, name);
  return err;
}

static zps_err_t undrain(const char *name) {
  const struct zps_member_server *at = NULL;
  const zps_err_t err = zps_members_undrain_named(rig.members, name, &at, &rig.error);
  if (!err) assert_false(at->draining);
  return err;
}

static void lose(unsigned client) {
  zps_members_client_lost(rig.members, &rig.clients[client], "gone");
}

static void away(unsigned client) {
  zps_members_client_away(rig.members, &rig.clients[client], 90 * ZPS_NS_PER_S, "cut");
}

static void answer(unsigned client, zps_err_t code) {
  zps_members_map_answered(rig.members, &rig.clients[client], the_job()->job_id, the_job()->view.epoch, code,
                           "it has none");
}

static void mapped(unsigned client) {
  const struct zps_job_steps none = {.job_id = the_job()->job_id, .epoch = the_job()->view.epoch};
  assert_int_equal(zps_settled(rig.members, zps_members_mapped(&rig.clients[client], &none, &rig.error)), ZPS_OK);
}

static void all_mapped(void) {
  mapped(R0);
  mapped(R1);
  zps_members_tick(rig.members, 1000);
}

static unsigned told(enum zps_action_type type, unsigned client) {
  return members_count(type, client, NULL);
}

static void check_without(uint32_t n, uint32_t n_lost) {
  uint32_t *lost, n_without;
  lost = members_positions(&the_job()->view, ~(1u << ZPS_PLACE_IN), &n_without);
  free(lost);
  assert_int_equal(n_without, n);
  assert_int_equal(zps_member_job_servers_lost(the_job()), n_lost);
}

static void check_stays(const char *because) {
  struct zps_error why = {.text = ""};
  assert_true(zps_members_stays(rig.members, the_job(), &why));
  assert_non_null(strstr(why.text, because));
}

/* ------------------------------------------------------------ a job leaves */

static void test_it_is_told_and_let_go(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  uint32_t *leaving, n;
  const uint64_t job_id = running_on_three();
  const uint32_t before = the_job()->view.epoch;
  assert_int_equal(terminate(B), 1);
  assert_true(the_job()->view.epoch > before);
  leaving = members_positions(&the_job()->view, 1u << ZPS_PLACE_LEAVING, &n);
  assert_true(n == 1 && leaving[0] == 1);
  free(leaving);
  check_without(1, 0);
  assert_true(zps_member_job_has(the_job(), rig.clients[B].server));
  const unsigned servers[] = {A, B, C};
  for (unsigned i = 0; i < 3; i++) {
    assert_int_equal(told(ZPS_ACT_MAP_SERVER, servers[i]), 1);
    assert_int_equal(told(ZPS_ACT_MAP_RANK, R0), 0);
    answer(servers[i], ZPS_OK);
  }
  assert_int_equal(told(ZPS_ACT_MAP_RANK, R0), 1);
  mapped(R0);
  assert_int_equal(told(ZPS_ACT_JOB_CLOSE, B), 0); /* the other rank may be reading from it */
  assert_int_equal(terminate(B), 1);
  mapped(R1);
  assert_int_equal(members_count(ZPS_ACT_JOB_CLOSE, B, &seen), 1);
  assert_string_equal(seen->text, "the server drains: others have its partitions");
  assert_int_equal(told(ZPS_ACT_REPLAY_SERVER, B), 0);
  assert_int_equal(told(ZPS_ACT_REPLAY_SERVER, A), 1);
  assert_int_equal(told(ZPS_ACT_REPLAY_RANK, R1), 1);
  assert_false(zps_member_job_has(the_job(), rig.clients[B].server));
  assert_int_equal(terminate(B), 0);
  assert_int_equal(zps_members_tick(rig.members, 1000), ZPS_NEVER);
  const uint32_t epoch = the_job()->view.epoch;
  lose(B);
  assert_true(the_job()->view.epoch == epoch && the_job()->job_id == job_id && the_job()->state == ZPS_JOB_RUNNING);
  assert_string_equal(the_job()->lost_servers, "");
  check_without(1, 0);
}

/* It has nothing to take over, so nothing hangs on it. */
static void test_it_refuses_or_is_lost_meanwhile(void **state) {
  (void)state;
  running_on_three();
  terminate(B);
  answer(A, ZPS_OK);
  answer(C, ZPS_OK);
  answer(B, ZPS_ERR_INVALID); /* a server of former days, which knows of no such thing */
  assert_int_equal(told(ZPS_ACT_MAP_RANK, R0), 1);
  all_mapped();
  terminate(A);
  answer(C, ZPS_OK);
  const uint32_t epoch = the_job()->view.epoch;
  lose(A);
  assert_int_equal(told(ZPS_ACT_MAP_RANK, R0), 2);
  all_mapped();
  assert_true(the_job()->state == ZPS_JOB_RUNNING && the_job()->view.epoch == epoch);
  assert_int_equal(told(ZPS_ACT_JOB_CLOSE, A), 0);
  check_without(2, 0);
}

static void test_while_the_job_loses_another(void **state) {
  (void)state;
  running_on_three();
  lose(A);
  const uint32_t first = the_job()->view.epoch;
  terminate(B); /* waits for the end of that change */
  assert_int_equal(the_job()->view.epoch, first);
  answer(B, ZPS_OK);
  answer(C, ZPS_OK);
  mapped(R0);
  mapped(R1);
  assert_int_equal(the_job()->view.epoch, first);
  zps_members_tick(rig.members, 1000);
  assert_true(the_job()->view.epoch > first && the_job()->map.state == ZPS_MAP_SERVERS);
  answer(B, ZPS_OK);
  answer(C, ZPS_OK);
  all_mapped();
  assert_int_equal(told(ZPS_ACT_JOB_CLOSE, B), 1);
  assert_string_equal(the_job()->lost_servers, "a");
  check_without(2, 1);
}

static void test_another_is_lost_while_it_leaves(void **state) {
  (void)state;
  running_on_three();
  terminate(B);
  answer(A, ZPS_OK);
  answer(B, ZPS_OK);
  answer(C, ZPS_OK);
  mapped(R0);
  lose(A);
  assert_int_equal(told(ZPS_ACT_MAP_SERVER, B), 2); /* a rank may be reading from it still, so it is there */
  assert_int_equal(told(ZPS_ACT_MAP_SERVER, C), 2);
  answer(C, ZPS_OK);
  assert_int_equal(told(ZPS_ACT_MAP_RANK, R0), 1);
  answer(B, ZPS_OK);
  assert_int_equal(told(ZPS_ACT_MAP_RANK, R0), 2);
  assert_int_equal(told(ZPS_ACT_JOB_CLOSE, B), 0);
  all_mapped();
  assert_int_equal(told(ZPS_ACT_JOB_CLOSE, B), 1);
  check_without(2, 1);
}

/* The last one keeps the job, and it is let go of all when the job ends. */
static void test_one_after_another(void **state) {
  (void)state;
  const uint64_t job_id = running_on_three();
  const unsigned servers[] = {B, C};
  for (unsigned i = 0; i < 2; i++) {
    terminate(servers[i]);
    for (unsigned s = 0; s < 2; s++) answer(servers[s], ZPS_OK);
    answer(A, ZPS_OK);
    all_mapped();
    assert_int_equal(told(ZPS_ACT_JOB_CLOSE, servers[i]), 1);
  }
  assert_int_equal(terminate(A), 1);
  check_stays("it has no other server that does not drain");
  check_without(2, 0);
  assert_int_equal(the_job()->map.state, ZPS_MAP_NONE);
  for (unsigned r = R0; r <= R1; r++)
    assert_int_equal(zps_members_leave(rig.members, &rig.clients[r], job_id, &rig.error), ZPS_OK);
  assert_int_equal(told(ZPS_ACT_JOB_CLOSE, A), 1);
  assert_int_equal(terminate(A), 0);
}

/* Of a job that is being opened they drain, which leaves them when it runs, both at once. */
static void test_two_at_once(void **state) {
  (void)state;
  zps_members_set_replays(rig.members, true);
  server(A, "a", false, NULL);
  server(B, "b", false, NULL);
  server(C, "c", false, NULL);
  for (uint32_t r = 0; r < 2; r++) join(R0 + r, r, 2);
  const uint64_t job_id = the_job()->job_id;
  terminate(A);
  terminate(C);
  zps_members_tick(rig.members, 1);
  const uint32_t before = the_job()->view.epoch;
  members_opened(A, job_id, ZPS_OK);
  members_opened(B, job_id, ZPS_OK);
  members_opened(C, job_id, ZPS_OK);
  assert_int_equal(zps_members_tick(rig.members, 2), 1 + 30 * ZPS_NS_PER_S);
  assert_int_equal(the_job()->view.epoch, before + 1);
  answer(A, ZPS_OK);
  answer(B, ZPS_OK);
  answer(C, ZPS_OK);
  all_mapped();
  assert_true(told(ZPS_ACT_JOB_CLOSE, A) == 1 && told(ZPS_ACT_JOB_CLOSE, C) == 1);
  check_without(2, 0);
}

/* A tensor that is being opened has not to wait for it, and one that comes has no partition there. Ranks that have not
 * heard of it yet would push to it all the same: they are told of a tensor behind that. */
static void test_tensors(void **state) {
  (void)state;
  const uint64_t job_id = running_on_three();
  assert_int_equal(members_tensor(R0, job_id, "early", 100000, 12), ZPS_OK);
  zps_members_tensor_opened(rig.members, &rig.clients[A], job_id, 0, ZPS_OK, NULL);
  zps_members_tensor_opened(rig.members, &rig.clients[C], job_id, 0, ZPS_OK, NULL);
  assert_int_equal(told(ZPS_ACT_TENSOR_DONE, R0), 0);
  terminate(B);
  assert_int_equal(members_tensor(R1, job_id, "early", 100000, 12), ZPS_OK);
  assert_int_equal(members_tensor(R0, job_id, "late", 100000, 12), ZPS_OK);
  assert_true(told(ZPS_ACT_TENSOR_DONE, R0) == 0 && told(ZPS_ACT_TENSOR_DONE, R1) == 0);
  assert_true(told(ZPS_ACT_TENSOR_OPEN, A) == 2 && told(ZPS_ACT_TENSOR_OPEN, B) == 1);
  const struct zps_member_tensor *const late = zps_members_tensor_find(the_job(), 1);
  uint32_t n_of[3] = {0};
  for (uint32_t p = 0; p < 12; p++) n_of[late->spec.owners[p]]++;
  assert_true(n_of[0] == 4 && n_of[1] == 4 &&
              n_of[2] == 4); /* the rule gives b's to the others, while its place is free */
  answer(A, ZPS_OK);
  answer(B, ZPS_OK);
  assert_true(told(ZPS_ACT_MAP_RANK, R0) == 0 && told(ZPS_ACT_TENSOR_DONE, R0) == 0);
  answer(C, ZPS_OK);
  assert_true(told(ZPS_ACT_TENSOR_DONE, R0) == 1 && told(ZPS_ACT_TENSOR_DONE, R1) == 1);
  unsigned map = 0, done = 0;
  while (rig.seen[map].action.type != ZPS_ACT_MAP_RANK || rig.seen[map].action.client != &rig.clients[R1]) map++;
  while (rig.seen[done].action.type != ZPS_ACT_TENSOR_DONE) done++;
  assert_true(map < done);
  zps_members_tensor_opened(rig.members, &rig.clients[A], job_id, 1, ZPS_OK, NULL);
  zps_members_tensor_opened(rig.members, &rig.clients[C], job_id, 1, ZPS_OK, NULL);
  assert_int_equal(told(ZPS_ACT_TENSOR_DONE, R0), 2); /* while ranks say what they have in flight */
}

/* Nobody of the job is disturbed while somebody is away, and it is told again who may have missed it. */
static void test_those_that_are_away(void **state) {
  (void)state;
  uint64_t job_id = running_on_three();
  const uint32_t before = the_job()->view.epoch;
  const struct zps_resume_spec resume = {.job_id = job_id, .rank = 1, .secret = 91};
  away(R1);
  away(A);
  terminate(B);
  assert_int_equal(the_job()->view.epoch, before);
  server(A, "a", true, &job_id);
  zps_members_tick(rig.members, 10);
  assert_int_equal(the_job()->view.epoch, before);
  assert_int_equal(zps_members_resume(rig.members, &rig.clients[R1], &resume, &rig.error), ZPS_OK);
  zps_members_tick(rig.members, 11);
  assert_int_equal(the_job()->view.epoch, before + 1);
  away(B);
  answer(A, ZPS_OK);
  answer(C, ZPS_OK);
  zps_members_tick(rig.members, 40 * ZPS_NS_PER_S); /* it has time until it is lost */
  assert_int_equal(told(ZPS_ACT_MAP_RANK, R0), 0);
  server(B, "b", true, &job_id);
  assert_int_equal(told(ZPS_ACT_MAP_SERVER, B), 2);
  answer(B, ZPS_OK);
  away(B);
  server(B, "b", true, &job_id);
  assert_int_equal(told(ZPS_ACT_MAP_SERVER, B), 2); /* once is enough */
  away(B);
  all_mapped();
  server(B, "b", true, NULL);
  assert_int_equal(rig.clients[B].server->n_jobs, 0);
  check_without(1, 0);
}

/* It is let go of a job that fails as the others are. */
static void test_the_job_fails_while_it_leaves(void **state) {
  (void)state;
  const uint64_t job_id = running_on_three();
  terminate(B);
  lose(R1);
  assert_int_equal(the_job()->state, ZPS_JOB_CLOSING);
  check_stays("it has failed, and waits for its ranks to leave: job 'x': rank 1 ");
  assert_int_equal(told(ZPS_ACT_JOB_CLOSE, B), 0);
  assert_int_equal(zps_members_leave(rig.members, &rig.clients[R0], job_id, &rig.error), ZPS_OK);
  assert_int_equal(told(ZPS_ACT_JOB_CLOSE, B), 1);
  assert_int_equal(terminate(B), 0);
}

/* ------------------------------------------------------------ jobs that stay */

static void check_nothing_moves(void) {
  zps_members_tick(rig.members, 5);
  assert_int_equal(the_job()->map.state, ZPS_MAP_NONE);
  check_without(0, 0);
}

static void test_jobs_that_stay(void **state) {
  (void)state;
  const uint64_t job_id = running_on_three();
  zps_members_set_replays(rig.members, false);
  assert_int_equal(terminate(B), 1);
  check_nothing_moves();
  check_stays("only where coordinator.server_loss is replay");
  zps_members_set_replays(rig.members, true);
  assert_int_equal(zps_members_hold(&rig.clients[R1], job_id + 1, "not of it", &rig.error), ZPS_ERR_UNKNOWN);
  assert_int_equal(zps_members_hold(&rig.clients[R1], job_id, "its pushes are large", &rig.error), ZPS_OK);
  check_nothing_moves();
  check_stays("rank 1: its pushes are large");
  rig.clients[R1].job->ranks[1]->held[0] = '\0';
  rig.tensor.staleness = 2;
  assert_int_equal(members_tensor(R0, job_id, "w", 100000, 12), ZPS_OK);
  check_nothing_moves();
  check_stays("its servers keep sums of tensor 'w' for pulls to come (staleness)");
}

/* ------------------------------------------------------------ by name */

static void test_by_name(void **state) {
  (void)state;
  running_on_three();
  assert_int_equal(drain("d"), ZPS_ERR_UNKNOWN);
  assert_string_equal(rig.error.text, "there is no server 'd': zenpsctl members lists those that there are");
  server(FREE, "node-west-1", false, NULL);
  assert_int_equal(undrain("node-wset-1"), ZPS_ERR_UNKNOWN);
  assert_string_equal(rig.error.text,
                      "there is no server 'node-wset-1': did you mean 'node-west-1'? zenpsctl members lists those that "
                      "there are");
  lose(FREE);
  assert_int_equal(drain("b"), ZPS_OK);
  assert_int_equal(told(ZPS_ACT_MAP_SERVER, B), 1);
  const uint32_t epoch = the_job()->view.epoch;
  assert_int_equal(drain("b"), ZPS_OK); /* already */
  assert_int_equal(the_job()->view.epoch, epoch);
  answer(A, ZPS_OK);
  answer(B, ZPS_OK);
  answer(C, ZPS_OK);
  all_mapped();
  assert_int_equal(rig.clients[B].server->n_jobs, 0);
  assert_int_equal(drain("a"), ZPS_OK);
  assert_int_equal(drain("c"), ZPS_ERR_REFUSED);
  assert_non_null(strstr(rig.error.text, "server 'c' is the last that takes jobs: start another one first"));
  assert_int_equal(drain("a"), ZPS_OK); /* it is so */
  assert_int_equal(undrain("c"), ZPS_OK);
}

/* It has new jobs again, and the one that left does not come back; not where its process is about to end. */
static void test_undrain(void **state) {
  (void)state;
  const uint64_t job_id = running_on_three();
  assert_int_equal(drain("b"), ZPS_OK);
  answer(A, ZPS_OK);
  assert_int_equal(undrain("b"), ZPS_OK); /* it leaves that job all the same */
  answer(B, ZPS_OK);
  answer(C, ZPS_OK);
  all_mapped();
  assert_int_equal(told(ZPS_ACT_JOB_CLOSE, B), 1);
  check_without(1, 0);
  for (unsigned r = R0; r <= R1; r++)
    assert_int_equal(zps_members_leave(rig.members, &rig.clients[r], job_id, &rig.error), ZPS_OK);
  join(R0, 0, 1);
  assert_int_equal(the_job()->view.n_places, 3);
  terminate(B);
  assert_int_equal(undrain("b"), ZPS_ERR_REFUSED);
  assert_non_null(strstr(rig.error.text, "server 'b' (host node, pid 1) is stopping"));
  assert_true(rig.clients[B].server->draining);
}

/* A job that waits for servers gets one that is taken back. */
static void test_undrain_starts_jobs(void **state) {
  (void)state;
  server(A, "a", false, NULL);
  server(B, "b", false, NULL);
  assert_int_equal(drain("b"), ZPS_OK);
  zps_members_set_min_servers(rig.members, 2);
  join(R0, 0, 1);
  assert_int_equal(the_job()->state, ZPS_JOB_JOINING);
  assert_int_equal(undrain("b"), ZPS_OK);
  assert_int_equal(the_job()->state, ZPS_JOB_OPENING);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      MEMBERS_CASE(test_it_is_told_and_let_go),
      MEMBERS_CASE(test_it_refuses_or_is_lost_meanwhile),
      MEMBERS_CASE(test_while_the_job_loses_another),
      MEMBERS_CASE(test_another_is_lost_while_it_leaves),
      MEMBERS_CASE(test_one_after_another),
      MEMBERS_CASE(test_two_at_once),
      MEMBERS_CASE(test_tensors),
      MEMBERS_CASE(test_those_that_are_away),
      MEMBERS_CASE(test_the_job_fails_while_it_leaves),
      MEMBERS_CASE(test_jobs_that_stay),
      MEMBERS_CASE(test_by_name),
      MEMBERS_CASE(test_undrain),
      MEMBERS_CASE(test_undrain_starts_jobs),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
