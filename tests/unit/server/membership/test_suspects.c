/* Ranks that cannot reach servers of their job, which the coordinator can: who is taken for cut off, and what follows.
 * test_members_explore.c has the invariants that hold for every order of events. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "tests/unit/server/membership/members_rig.h"

enum { A = 0, B = 1, R0 = 2, R1 = 3, R2 = 4, C = 7 }; /* clients: servers, ranks, and a third server */

static uint64_t now_ns;

static const struct zps_member_job *the_job(void) {
  return zps_members_job_first(rig.members);
}

static void server(unsigned client, const char *name) {
  const struct zps_server_spec spec = {
      .name = name, .host = "node", .pid = 1, .fabric = &members_tcp, .secret = 70 + (uint64_t)name[0]};
  assert_int_equal(zps_members_server_register(rig.members, &rig.clients[client], &spec, false, &rig.error), ZPS_OK);
}

static void join(uint32_t rank, uint32_t world) {
  const struct zps_join_spec spec = {.job = "x",
                                     .host = "node",
                                     .world = world,
                                     .rank = rank,
                                     .pid = 7,
                                     .timeout_ms = 1500,
                                     .fabric = &members_tcp,
                                     .secret = 90 + rank};
  struct zps_member_client *const client = &rig.clients[R0 + rank];
  assert_int_equal(zps_members_join(rig.members, client, &spec, client, 0, &rig.error), ZPS_OK);
}

static uint64_t running(uint32_t world, unsigned n_servers) {
  const unsigned servers[] = {A, B, C};
  const char *const names[] = {"a", "b", "c"};
  now_ns = ZPS_NS_PER_S;
  zps_members_set_replays(rig.members, true);
  for (unsigned i = 0; i < n_servers; i++) server(servers[i], names[i]);
  for (uint32_t r = 0; r < world; r++) join(r, world);
  const uint64_t job_id = the_job()->job_id;
  for (unsigned i = 0; i < n_servers; i++) members_opened(servers[i], job_id, ZPS_OK);
  assert_int_equal(the_job()->state, ZPS_JOB_RUNNING);
  return job_id;
}

/* Of two ranks and servers a, b and c, at positions 0 to 2. */
static uint64_t running_on_three(void) {
  return running(2, 3);
}

static zps_err_t say(unsigned client, uint64_t job_id, uint32_t n, uint32_t first, uint32_t second, uint32_t third) {
  uint32_t servers[] = {first, second, third};
  const struct zps_job_suspects suspects = {
      .job_id = job_id, .n_servers = n, .servers = servers, .why = "connection reset"};
  const zps_err_t err = zps_members_suspect(&rig.clients[client], &suspects, &rig.error);
  zps_members_tick(rig.members, now_ns);
  return err;
}

static void suspect(unsigned client, uint32_t position) {
  assert_int_equal(say(client, the_job()->job_id, 1, position, 0, 0), ZPS_OK);
}

/* What has been said is gathered for half a second. */
static void decide(void) {
  now_ns += ZPS_NS_PER_S / 2 - 1;
  zps_members_tick(rig.members, now_ns);
  assert_true(!the_job() || the_job()->map.state != ZPS_MAP_OVER);
  now_ns++;
  zps_members_tick(rig.members, now_ns);
}

static void lose(unsigned client) {
  zps_members_client_lost(rig.members, &rig.clients[client], "gone");
}

static void answer(unsigned client) {
  zps_members_map_answered(rig.members, &rig.clients[client], the_job()->job_id, the_job()->view.epoch, ZPS_OK, NULL);
}

static void mapped(unsigned client) {
  const struct zps_job_steps none = {.job_id = the_job()->job_id, .epoch = the_job()->view.epoch};
  assert_int_equal(zps_settled(rig.members, zps_members_mapped(&rig.clients[client], &none, &rig.error)), ZPS_OK);
}

static unsigned told(enum zps_action_type type, unsigned client) {
  return members_count(type, client, NULL);
}

static void all_go_on(void) {
  answer(A);
  answer(B);
  answer(C);
  mapped(R0);
  mapped(R1);
  zps_members_tick(rig.members, now_ns);
  assert_int_equal(the_job()->map.state, ZPS_MAP_NONE);
}

static void check_lost(uint32_t n, const char *names) {
  assert_int_equal(the_job()->state, ZPS_JOB_RUNNING);
  assert_int_equal(zps_member_job_servers_lost(the_job()), n);
  assert_string_equal(the_job()->lost_servers, names);
}

/* ------------------------------------------------------------ a server */

static void test_it_leaves_this_job_alone(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  uint32_t *leaving, n;
  running_on_three();
  const uint32_t before = the_job()->view.epoch;
  suspect(R1, 1);
  assert_int_equal(the_job()->view.epoch, before);
  now_ns += ZPS_NS_PER_S / 2 - 1;
  assert_int_equal(zps_members_tick(rig.members, now_ns), now_ns + 1);
  assert_int_equal(the_job()->view.epoch, before);
  now_ns++;
  zps_members_tick(rig.members, now_ns);
  assert_int_equal(the_job()->view.epoch, before + 1);
  leaving = members_positions(&the_job()->view, 1u << ZPS_PLACE_LEAVING, &n);
  assert_true(n == 1 && leaving[0] == 1); /* it hears that it leaves, as one that drains */
  free(leaving);
  const struct zps_member_cutoff *const cutoff = zps_member_job_cutoff(the_job(), rig.clients[B].server);
  assert_true(cutoff && cutoff->rank == 1 && cutoff->n_ranks == 1 && cutoff->out_ns == now_ns);
  assert_string_equal(cutoff->why, "connection reset");
  assert_null(zps_member_job_cutoff(the_job(), rig.clients[A].server));
  answer(A);
  answer(C);
  assert_int_equal(told(ZPS_ACT_MAP_RANK, R0), 0);
  answer(B);
  assert_int_equal(told(ZPS_ACT_MAP_RANK, R0), 1);
  mapped(R0);
  assert_int_equal(told(ZPS_ACT_JOB_CLOSE, B), 0); /* the other rank may be reading from it */
  mapped(R1);
  assert_int_equal(members_count(ZPS_ACT_JOB_CLOSE, B, &seen), 1);
  assert_string_equal(seen->text, "it has left the job: others have its partitions");
  assert_int_equal(told(ZPS_ACT_REPLAY_SERVER, B), 0);
  assert_true(told(ZPS_ACT_REPLAY_SERVER, A) == 1 && told(ZPS_ACT_REPLAY_RANK, R1) == 1);
  check_lost(1, "b");
  /* Others have it, and new ones. */
  assert_int_equal(zps_members_servers(rig.members), 3);
  assert_false(rig.clients[B].server->draining);
  zps_members_tick(rig.members, now_ns);
  assert_int_equal(zps_members_tick(rig.members, now_ns), now_ns + 5 * ZPS_NS_PER_S); /* It is asked again. */
  const uint32_t epoch = the_job()->view.epoch;
  lose(B);
  assert_int_equal(the_job()->view.epoch, epoch);
  check_lost(1, "b");
}

static void test_said_twice_or_late(void **state) {
  (void)state;
  const uint64_t job_id = running_on_three();
  const uint32_t before = the_job()->view.epoch;
  suspect(R0, 1);
  suspect(R0, 1);
  suspect(R1, 1);
  decide();
  assert_int_equal(the_job()->view.epoch, before + 1);
  suspect(R0, 1); /* it has not heard yet */
  decide();
  all_go_on();
  suspect(R1, 1);
  decide();
  assert_int_equal(the_job()->view.epoch, before + 1);
  check_lost(1, "b");
  lose(A);
  const uint32_t after = the_job()->view.epoch;
  assert_int_equal(say(R1, job_id, 1, 0, 0, 0), ZPS_OK); /* it is gone already */
  decide();
  assert_int_equal(the_job()->view.epoch, after);
}

static void test_taken_back(void **state) {
  (void)state;
  const uint64_t job_id = running_on_three();
  const uint32_t before = the_job()->view.epoch;
  assert_int_equal(say(R0, job_id, 0, 0, 0, 0), ZPS_OK);
  suspect(R0, 1);
  now_ns += ZPS_NS_PER_S / 4;
  assert_int_equal(say(R0, job_id, 0, 0, 0, 0), ZPS_OK);
  decide();
  assert_int_equal(the_job()->view.epoch, before);
  assert_int_equal(zps_members_tick(rig.members, now_ns), ZPS_NEVER);
  suspect(R0, 1); /* the moment begins anew */
  now_ns += ZPS_NS_PER_S / 4;
  zps_members_tick(rig.members, now_ns);
  assert_int_equal(the_job()->view.epoch, before);
}

static void test_one_that_has_left_accuses_nobody(void **state) {
  (void)state;
  const uint64_t job_id = running_on_three();
  const uint32_t before = the_job()->view.epoch;
  suspect(R0, 1);
  assert_int_equal(zps_members_leave(rig.members, &rig.clients[R0], job_id, &rig.error), ZPS_OK);
  decide();
  assert_int_equal(the_job()->view.epoch, before);
  assert_int_equal(say(R0, job_id, 1, 1, 0, 0), ZPS_ERR_UNKNOWN);
  assert_int_equal(say(R1, job_id + 1, 1, 1, 0, 0), ZPS_ERR_UNKNOWN);
  assert_int_equal(say(R1, job_id, 1, 3, 0, 0), ZPS_ERR_INVALID);
  assert_string_equal(rig.error.text, "job 'x': rank 1 suspects server 3; the job has servers 0 to 2");
  decide();
  assert_int_equal(the_job()->view.epoch, before);
}

static void test_while_another_is_being_lost(void **state) {
  (void)state;
  running_on_three();
  lose(A);
  const uint32_t before = the_job()->view.epoch;
  suspect(R0, 1);
  answer(B);
  answer(C);
  mapped(R0);
  assert_int_equal(the_job()->view.epoch, before);
  decide();
  assert_int_equal(the_job()->view.epoch, before + 1);
  answer(C);
  mapped(R1); /* of the epoch that is over: nothing */
  assert_int_equal(told(ZPS_ACT_MAP_RANK, R1), 1);
  answer(B);
  assert_int_equal(told(ZPS_ACT_MAP_RANK, R1), 2);
  mapped(R0);
  mapped(R1);
  zps_members_tick(rig.members, now_ns);
  check_lost(2, "a, b");
  assert_int_equal(told(ZPS_ACT_JOB_CLOSE, B), 1);
}

static void test_it_is_lost_while_it_leaves(void **state) {
  (void)state;
  running_on_three();
  suspect(R0, 1);
  decide();
  answer(A);
  answer(C);
  const uint32_t epoch = the_job()->view.epoch;
  lose(B);
  assert_int_equal(the_job()->view.epoch, epoch);
  assert_int_equal(told(ZPS_ACT_MAP_RANK, R0), 1);
  mapped(R0);
  mapped(R1);
  zps_members_tick(rig.members, now_ns);
  check_lost(1, "b");
  assert_int_equal(told(ZPS_ACT_JOB_CLOSE, B), 0);
}

/* A tensor that is being opened has not to wait for it; ranks are told behind that it leaves. */
static void test_tensors(void **state) {
  (void)state;
  const uint64_t job_id = running_on_three();
  assert_int_equal(members_tensor(R0, job_id, "early", 100000, 12), ZPS_OK);
  zps_members_tensor_opened(rig.members, &rig.clients[A], job_id, 0, ZPS_OK, NULL);
  zps_members_tensor_opened(rig.members, &rig.clients[C], job_id, 0, ZPS_OK, NULL);
  suspect(R0, 1);
  decide();
  assert_int_equal(told(ZPS_ACT_TENSOR_DONE, R0), 0);
  assert_int_equal(members_tensor(R0, job_id, "late", 100000, 12), ZPS_OK);
  const struct zps_member_tensor *const late = zps_members_tensor_find(the_job(), 1);
  uint32_t n_of[3] = {0};
  for (uint32_t p = 0; p < 12; p++) n_of[late->spec.owners[p]]++;
  assert_true(n_of[0] == 4 && n_of[1] == 4 && n_of[2] == 4); /* the rule gives b's to the others */
  answer(A);
  answer(B);
  answer(C);
  assert_true(told(ZPS_ACT_MAP_RANK, R0) == 1 && told(ZPS_ACT_TENSOR_DONE, R0) == 1);
}

/* Two servers are cut off one after the other. Not all ranks have noticed yet, and one has noticed both. */
static void test_one_rank_notices_first(void **state) {
  (void)state;
  const uint64_t job_id = running(4, 3);
  suspect(R1, 1);
  assert_int_equal(say(R0, job_id, 2, 1, 2, 0), ZPS_OK);
  decide();
  assert_int_equal(told(ZPS_ACT_JOB_FAILED, R0), 0);
  check_lost(2, "b, c");
}

/* ------------------------------------------------------------ the end of a job */

static void check_failed(zps_err_t code, const char *text) {
  const struct members_seen *seen = NULL;
  assert_int_equal(the_job()->state, ZPS_JOB_CLOSING);
  assert_int_equal(the_job()->error.code, code);
  assert_string_equal(the_job()->error.text, text);
  for (unsigned r = R0; r <= R1; r++) {
    assert_int_equal(members_count(ZPS_ACT_JOB_FAILED, r, &seen), 1);
    assert_int_equal(seen->action.code, code);
    assert_string_equal(seen->text, text);
  }
}

static void test_the_last_one(void **state) {
  (void)state;
  running(2, 1);
  suspect(R1, 0);
  decide();
  check_failed(ZPS_ERR_SERVER_LOST,
               "job 'x': server 0 'a' (host node, pid 1) was lost: rank 1 cannot reach it over the data plane: "
               "connection reset");
  assert_int_equal(told(ZPS_ACT_JOB_CLOSE, A), 0); /* ranks are in it still */
  lose(R0);
  lose(R1);
  assert_int_equal(told(ZPS_ACT_JOB_CLOSE, A), 1);
  assert_int_equal(rig.clients[A].server->n_jobs, 0);
}

static void test_where_losses_fail_jobs(void **state) {
  (void)state;
  running_on_three();
  zps_members_set_replays(rig.members, false);
  suspect(R0, 2);
  decide();
  check_failed(ZPS_ERR_SERVER_LOST,
               "job 'x': server 2 'c' (host node, pid 1) was lost: rank 0 cannot reach it over the data plane: "
               "connection reset");
  assert_int_equal(say(R0, the_job()->job_id, 1, 1, 0, 0), ZPS_ERR_SERVER_LOST); /* it is over */
}

/* ------------------------------------------------------------ a rank */

static void test_a_rank_is_cut_off(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  const uint64_t job_id = running_on_three();
  suspect(R1, 0); /* its links break one by one */
  now_ns += ZPS_NS_PER_S / 4;
  assert_int_equal(say(R1, job_id, 2, 0, 2, 0), ZPS_OK);
  decide();
  check_failed(ZPS_ERR_PEER_LOST,
               "job 'x': rank 1 (host node, pid 7) was lost: it is cut off from 2 of 3 servers over the data plane: "
               "connection reset");
  members_count(ZPS_ACT_JOB_FAILED, R0, &seen);
  assert_int_equal(seen->action.rank, 1);
  assert_int_equal(the_job()->ranks[1]->state, ZPS_RANK_LOST);
  assert_null(rig.clients[R1].job);
  assert_int_equal(told(ZPS_ACT_RANK_GONE, A), 1);
  assert_int_equal(told(ZPS_ACT_MAP_SERVER, A), 0);
  assert_int_equal(zps_member_job_servers_lost(the_job()), 0);
}

/* Both of two. */
static void test_a_rank_alone(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  const uint64_t job_id = running(1, 2);
  assert_int_equal(say(R0, job_id, 2, 0, 1, 0), ZPS_OK);
  decide();
  assert_null(the_job());
  assert_int_equal(members_count(ZPS_ACT_JOB_FAILED, R0, &seen), 1);
  assert_true(seen->action.code == ZPS_ERR_PEER_LOST && seen->action.rank == 0);
  assert_true(told(ZPS_ACT_JOB_CLOSE, A) == 1 && told(ZPS_ACT_JOB_CLOSE, B) == 1);
}

/* It is away, and hears of it when it comes back. */
static void test_a_rank_that_is_away(void **state) {
  (void)state;
  const uint64_t job_id = running_on_three();
  const struct zps_resume_spec resume = {.job_id = job_id, .rank = 1, .secret = 91};
  assert_int_equal(say(R1, job_id, 3, 0, 1, 2), ZPS_OK);
  zps_members_client_away(rig.members, &rig.clients[R1], 90 * ZPS_NS_PER_S, "cut");
  decide();
  assert_int_equal(the_job()->state, ZPS_JOB_CLOSING);
  assert_int_equal(told(ZPS_ACT_JOB_FAILED, R1), 0);
  assert_int_equal(zps_members_resume(rig.members, &rig.clients[R1], &resume, &rig.error), ZPS_ERR_PEER_LOST);
}

/* Servers of which most ranks say so are cut off, however many they are; and so they count for nobody. */
static void test_most_ranks_agree(void **state) {
  (void)state;
  const uint64_t job_id = running(3, 3);
  for (unsigned r = R0; r <= R1; r++) assert_int_equal(say(r, job_id, 2, 0, 1, 0), ZPS_OK);
  decide();
  assert_int_equal(the_job()->map.state, ZPS_MAP_SERVERS);
  answer(A);
  answer(B);
  answer(C);
  for (unsigned r = R0; r <= R2; r++) mapped(r);
  zps_members_tick(rig.members, now_ns);
  check_lost(2, "a, b");
  assert_true(told(ZPS_ACT_JOB_CLOSE, A) == 1 && told(ZPS_ACT_JOB_CLOSE, B) == 1);
}

/* Two links of six, of different ranks and servers. */
static void test_one_each(void **state) {
  (void)state;
  running_on_three();
  suspect(R0, 0);
  suspect(R1, 1);
  decide();
  all_go_on();
  check_lost(2, "a, b");
}

/* Two of three servers die, and one rank notices before others do: it is not the rank that is cut off. */
static void test_servers_that_are_away(void **state) {
  (void)state;
  const uint64_t job_id = running_on_three();
  zps_members_client_away(rig.members, &rig.clients[A], 5 * ZPS_NS_PER_S, "reset");
  zps_members_client_away(rig.members, &rig.clients[C], 5 * ZPS_NS_PER_S, "reset");
  assert_int_equal(say(R1, job_id, 2, 0, 2, 0), ZPS_OK);
  decide();
  assert_int_equal(the_job()->state, ZPS_JOB_RUNNING);
  assert_int_equal(the_job()->ranks[1]->state, ZPS_RANK_IN);
  zps_members_tick(rig.members, 5 * ZPS_NS_PER_S); /* they do not come back */
  answer(B);
  mapped(R0);
  mapped(R1);
  zps_members_tick(rig.members, 5 * ZPS_NS_PER_S);
  check_lost(2, "a, c");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      MEMBERS_CASE(test_it_leaves_this_job_alone),
      MEMBERS_CASE(test_said_twice_or_late),
      MEMBERS_CASE(test_taken_back),
      MEMBERS_CASE(test_one_that_has_left_accuses_nobody),
      MEMBERS_CASE(test_while_another_is_being_lost),
      MEMBERS_CASE(test_it_is_lost_while_it_leaves),
      MEMBERS_CASE(test_tensors),
      MEMBERS_CASE(test_one_rank_notices_first),
      MEMBERS_CASE(test_the_last_one),
      MEMBERS_CASE(test_where_losses_fail_jobs),
      MEMBERS_CASE(test_a_rank_is_cut_off),
      MEMBERS_CASE(test_a_rank_alone),
      MEMBERS_CASE(test_a_rank_that_is_away),
      MEMBERS_CASE(test_most_ranks_agree),
      MEMBERS_CASE(test_servers_that_are_away),
      MEMBERS_CASE(test_one_each),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
