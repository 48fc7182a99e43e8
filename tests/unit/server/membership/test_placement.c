/* Servers take the places of those that a running job lost, or that left it: when they are asked, what they hear, when
 * they are in, and what sends them away. test_members_explore.c has the invariants that hold for every order of events.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "tests/unit/server/membership/members_rig.h"

enum { A = 0, B = 1, R0 = 2, R1 = 3, D = 6, C = 7 }; /* clients: servers, ranks, and two more servers */

static uint64_t now_ns;

static const struct zps_member_job *the_job(void) {
  return zps_members_job_first(rig.members);
}

static void server(unsigned client, const char *name) {
  const struct zps_server_spec spec = {
      .name = name, .host = "node", .pid = 1, .fabric = &members_tcp, .secret = 70 + (uint64_t)client};
  assert_int_equal(zps_members_server_register(rig.members, &rig.clients[client], &spec, false, &rig.error), ZPS_OK);
}

static void join(unsigned client, uint32_t rank) {
  const struct zps_join_spec spec = {.job = "x",
                                     .host = "node",
                                     .world = 2,
                                     .rank = rank,
                                     .pid = client,
                                     .timeout_ms = 1500,
                                     .fabric = &members_tcp,
                                     .secret = 90 + rank};
  assert_int_equal(zps_members_join(rig.members, &rig.clients[client], &spec, &rig.clients[client], 0, &rig.error),
                   ZPS_OK);
}

static void opened(unsigned client, uint32_t tensor, zps_err_t code) {
  zps_members_tensor_opened(rig.members, &rig.clients[client], the_job()->job_id, tensor, code, "it has no room");
}

static unsigned told(enum zps_action_type type, unsigned client) {
  return members_count(type, client, NULL);
}

/* Time goes on by `s` seconds. */
static uint64_t pass(unsigned s) {
  now_ns += s * ZPS_NS_PER_S;
  return zps_members_tick(rig.members, now_ns);
}

static void answer(unsigned client) {
  zps_members_map_answered(rig.members, &rig.clients[client], the_job()->job_id, the_job()->view.epoch, ZPS_OK, NULL);
}

static void all_mapped(void) {
  const struct zps_job_steps none = {.job_id = the_job()->job_id, .epoch = the_job()->view.epoch};
  for (unsigned client = R0; client <= R1; client++)
    assert_int_equal(zps_settled(rig.members, zps_members_mapped(&rig.clients[client], &none, &rig.error)), ZPS_OK);
  pass(0);
}

/* A job on servers a and b, or a, b and d, with tensor 0; then all but a are lost, and the job goes on. */
static uint64_t on_servers(unsigned n) {
  const unsigned clients[] = {A, B, D};
  const char *const names[] = {"a", "b", "d"};
  now_ns = ZPS_NS_PER_S;
  zps_members_set_replays(rig.members, true);
  for (unsigned i = 0; i < n; i++) server(clients[i], names[i]);
  for (uint32_t r = 0; r < 2; r++) join(R0 + r, r);
  const uint64_t job_id = the_job()->job_id;
  for (unsigned i = 0; i < n; i++) members_opened(clients[i], job_id, ZPS_OK);
  assert_int_equal(members_tensor(R0, job_id, "w", 100000, 12), ZPS_OK);
  for (unsigned i = 0; i < n; i++) opened(clients[i], 0, ZPS_OK);
  for (unsigned i = 1; i < n; i++) zps_members_client_lost(rig.members, &rig.clients[clients[i]], "gone");
  answer(A);
  pass(0);
  all_mapped();
  assert_int_equal(the_job()->map.state, ZPS_MAP_NONE);
  return job_id;
}

/* The server has answered all that it was asked; the next tick follows. */
static void opens_all(unsigned client) {
  members_opened(client, the_job()->job_id, ZPS_OK);
  opened(client, 0, ZPS_OK);
  pass(0);
}

/* And the job goes on, with it and a. */
static void takes_its_place(unsigned client) {
  opens_all(client);
  answer(A);
  answer(client);
  all_mapped();
}

/* c has come, and is asked, as `times` say it was. */
static void asked(unsigned client, unsigned times) {
  pass(6);
  assert_int_equal(told(ZPS_ACT_JOB_OPEN, client), times);
}

static void test_a_server_takes_the_place(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  uint32_t *lost, n_lost;
  const uint64_t job_id = on_servers(2);
  const uint32_t before = the_job()->view.epoch;
  server(C, "c");
  assert_int_equal(pass(1), 6 * ZPS_NS_PER_S); /* others may come with it */
  assert_int_equal(told(ZPS_ACT_JOB_OPEN, C), 0);
  pass(4);
  assert_int_equal(members_count(ZPS_ACT_JOB_OPEN, C, &seen), 1);
  assert_int_equal(seen->action.position, 1);
  assert_true(zps_member_job_admits(the_job(), 1) && !zps_member_job_admits(the_job(), 0));
  const uint32_t since = the_job()->view.places[1].next_since;
  assert_int_equal(the_job()->view.places[0].since, 0);
  assert_int_equal(told(ZPS_ACT_TENSOR_OPEN, C), 1);
  assert_int_equal(rig.clients[C].server->n_jobs, 1);
  members_opened(C, job_id, ZPS_OK);
  assert_int_equal(the_job()->view.epoch, before); /* it has yet to open the tensor */
  opened(C, 0, ZPS_OK);
  pass(0);
  assert_true(the_job()->view.places[1].since > before && the_job()->view.places[1].since < the_job()->view.epoch &&
              the_job()->view.places[0].since == 0);
  assert_int_equal(the_job()->view.places[1].since, since); /* it learnt of this at once */
  assert_true(zps_member_job_holds(the_job(), rig.clients[C].server));
  assert_int_equal(zps_member_job_servers_lost(the_job()), 0);
  assert_int_equal(told(ZPS_ACT_MAP_SERVER, A), 2);
  assert_int_equal(told(ZPS_ACT_MAP_SERVER, C), 1);
  answer(A);
  assert_int_equal(told(ZPS_ACT_MAP_RANK, R0), 1);
  answer(C);
  assert_int_equal(told(ZPS_ACT_MAP_RANK, R0), 2);
  lost = members_positions(&the_job()->view, ~(1u << ZPS_PLACE_IN), &n_lost);
  free(lost);
  assert_int_equal(n_lost, 0);
  all_mapped();
  assert_int_equal(told(ZPS_ACT_REPLAY_RANK, R1), 2);
  assert_int_equal(told(ZPS_ACT_REPLAY_SERVER, C), 1);
  assert_int_equal(pass(60), ZPS_NEVER);
  /* It is one like any other: a's place is lost to it, and free again. */
  zps_members_client_lost(rig.members, &rig.clients[A], "gone");
  assert_int_equal(the_job()->state, ZPS_JOB_RUNNING);
  assert_int_equal(zps_member_job_servers_lost(the_job()), 1);
}

/* Ranks that have not heard of it may still speak of the server that had the place. */
static void test_it_is_not_the_one_that_was_out_of_reach(void **state) {
  (void)state;
  uint32_t position = 1;
  const uint64_t job_id = on_servers(2);
  const struct zps_job_suspects suspects = {.job_id = job_id, .n_servers = 1, .servers = &position, .why = "cut"};
  server(C, "c");
  asked(C, 1);
  opens_all(C);
  const uint32_t epoch = the_job()->view.epoch;
  answer(A);
  assert_int_equal(zps_members_suspect(&rig.clients[R0], &suspects, &rig.error), ZPS_OK);
  pass(0);
  pass(1);
  assert_true(the_job()->view.epoch == epoch && zps_member_job_holds(the_job(), rig.clients[C].server));
  answer(C);
  all_mapped();
  assert_int_equal(zps_members_suspect(&rig.clients[R0], &suspects, &rig.error), ZPS_OK); /* this is of the new one */
  pass(0);
  pass(1);
  assert_true(the_job()->view.epoch > epoch && !zps_member_job_holds(the_job(), rig.clients[C].server));
}

/* Places are taken together; there may be more servers than places. */
static void test_two_at_once(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  on_servers(2);
  server(C, "c");
  pass(3);
  server(D, "d");
  asked(C, 1);
  assert_int_equal(told(ZPS_ACT_JOB_OPEN, D), 0); /* no place is left */
  opens_all(C);
  zps_members_client_lost(rig.members, &rig.clients[A], "gone");
  answer(C);
  all_mapped();
  asked(D, 1);
  assert_int_equal(members_count(ZPS_ACT_JOB_OPEN, D, &seen), 1);
  assert_int_equal(seen->action.position, 0);
}

enum fate { LOST, AWAY, DRAINS, REFUSES };

/* Of two servers that are to take places, one does not: the other one has its place as soon. */
static void test_the_other_takes_its_place(void **state) {
  const enum fate fate = *(const enum fate *)*state;
  const struct zps_member_server *at = NULL;
  const uint64_t job_id = on_servers(3);
  server(C, "c");
  server(B, "new");
  asked(C, 1);
  assert_int_equal(told(ZPS_ACT_JOB_OPEN, B), 2); /* Once as b. */
  opens_all(C);
  if (fate == LOST) zps_members_client_lost(rig.members, &rig.clients[B], "gone");
  if (fate == AWAY) zps_members_client_away(rig.members, &rig.clients[B], now_ns + 60 * ZPS_NS_PER_S, "cut");
  if (fate == DRAINS) assert_int_equal(zps_members_drain_named(rig.members, "new", &at, &rig.error), ZPS_OK);
  if (fate == REFUSES) members_opened(B, job_id, ZPS_ERR_NOMEM);
  pass(0);
  assert_true(told(ZPS_ACT_JOB_CLOSE, C) == 0 && zps_member_job_holds(the_job(), rig.clients[C].server));
}

/* Its answers mean nothing then, and it is asked again when all of them are here. */
static void check_sent_away(unsigned times) {
  assert_int_equal(told(ZPS_ACT_JOB_CLOSE, C), times);
  assert_false(zps_member_job_admits(the_job(), 1));
  assert_int_equal(rig.clients[C].server->n_jobs, 0);
}

static void test_a_tensor_comes_or_goes_meanwhile(void **state) {
  (void)state;
  const uint64_t job_id = on_servers(2);
  server(C, "c");
  asked(C, 1);
  assert_int_equal(members_tensor(R0, job_id, "u", 1000, 0), ZPS_OK);
  check_sent_away(1);
  assert_int_equal(told(ZPS_ACT_TENSOR_OPEN, C), 1);
  asked(C, 1); /* a job whose tensors are not all open asks no server */
  opened(A, 1, ZPS_OK);
  asked(C, 1); /* a server that owes answers is not asked */
  members_opened(C, job_id, ZPS_OK);
  opened(C, 0, ZPS_OK);
  assert_false(zps_member_job_holds(the_job(), rig.clients[C].server));
  asked(C, 2);
  assert_int_equal(told(ZPS_ACT_TENSOR_OPEN, C), 3);
  for (unsigned client = R0; client <= R1; client++)
    assert_int_equal(zps_settled(rig.members, zps_members_tensor_close(&rig.clients[client], job_id, 1, 1500,
                                                                       &rig.clients[client], now_ns, &rig.error)),
                     ZPS_OK);
  check_sent_away(2);
}

static void test_it_cannot(void **state) {
  (void)state;
  const uint64_t job_id = on_servers(2);
  const uint32_t before = the_job()->view.epoch;
  server(C, "c");
  asked(C, 1);
  members_opened(C, job_id, ZPS_ERR_NOMEM);
  check_sent_away(1);
  opened(C, 0, ZPS_ERR_UNKNOWN);
  assert_true(the_job()->state == ZPS_JOB_RUNNING && the_job()->view.epoch == before);
  assert_int_equal(the_job()->tensors[0]->state, ZPS_TENSOR_OPEN);
  asked(C, 2); /* later it may */
}

static void test_it_goes_or_drains_meanwhile(void **state) {
  (void)state;
  const struct zps_member_server *at = NULL;
  on_servers(2);
  server(C, "c");
  asked(C, 1);
  zps_members_client_lost(rig.members, &rig.clients[C], "gone");
  assert_int_equal(the_job()->state, ZPS_JOB_RUNNING);
  assert_int_equal(told(ZPS_ACT_JOB_CLOSE, C), 0);
  server(C, "c");
  asked(C, 2);
  zps_members_client_away(rig.members, &rig.clients[C], now_ns + 60 * ZPS_NS_PER_S, "cut");
  assert_int_equal(told(ZPS_ACT_JOB_CLOSE, C), 0); /* it hears of it when it registers */
  assert_false(zps_member_job_admits(the_job(), 1));
  server(D, "d");
  asked(D, 1);
  assert_int_equal(zps_members_drain_named(rig.members, "d", &at, &rig.error), ZPS_OK);
  assert_int_equal(told(ZPS_ACT_JOB_CLOSE, D), 1);
  assert_int_equal(rig.clients[D].server->n_jobs, 0);
}

static void test_the_job_changes_meanwhile(void **state) {
  (void)state;
  const uint64_t job_id = on_servers(2);
  server(C, "c");
  asked(C, 1);
  zps_members_client_away(rig.members, &rig.clients[R0], now_ns + 60 * ZPS_NS_PER_S, "cut");
  check_sent_away(1);
  members_opened(C, job_id, ZPS_OK);
  opened(C, 0, ZPS_OK);
  asked(C, 1); /* nothing while a rank is away */
  const struct zps_resume_spec spec = {.job_id = job_id, .rank = 0, .secret = 90};
  assert_int_equal(zps_members_resume(rig.members, &rig.clients[R0], &spec, &rig.error), ZPS_OK);
  asked(C, 2);
  zps_members_client_lost(rig.members, &rig.clients[R1], "gone"); /* the job fails with it */
  assert_int_equal(the_job()->state, ZPS_JOB_CLOSING);
  check_sent_away(2);
}

/* Where rounds cannot be pushed once more, and where jobs do not outlive servers. */
static void test_jobs_that_take_none_in(void **state) {
  (void)state;
  const uint64_t job_id = on_servers(2);
  server(C, "c");
  assert_int_equal(zps_members_hold(&rig.clients[R0], job_id, "its pushes are large", &rig.error), ZPS_OK);
  asked(C, 0);
  assert_int_equal(zps_members_hold(&rig.clients[R0], job_id, "", &rig.error), ZPS_OK);
  asked(C, 1);
  assert_int_equal(zps_members_hold(&rig.clients[R0], job_id, "its pushes are large", &rig.error), ZPS_OK);
  opens_all(C);
  check_sent_away(1);
}

/* One that has left in peace, and is taken back. */
static void test_one_that_had_drained(void **state) {
  (void)state;
  const struct zps_member_server *at = NULL;
  on_servers(2);
  server(C, "c");
  asked(C, 1);
  takes_its_place(C);
  assert_int_equal(zps_members_drain_named(rig.members, "c", &at, &rig.error), ZPS_OK);
  answer(A);
  answer(C);
  all_mapped();
  assert_int_equal(told(ZPS_ACT_JOB_CLOSE, C), 1);
  assert_int_equal(zps_member_job_servers_in(the_job()), 1);
  assert_int_equal(zps_member_job_servers_lost(the_job()), 0);
  const uint32_t before = the_job()->view.epoch;
  asked(C, 1);
  assert_int_equal(zps_members_undrain_named(rig.members, "c", &at, &rig.error), ZPS_OK);
  asked(C, 2);
  assert_true(the_job()->view.places[1].next_since > before); /* it has the keys of links that nobody has had */
  opens_all(C);
  assert_int_equal(zps_member_job_servers_in(the_job()), 2);
  assert_true(the_job()->view.places[1].since > before && the_job()->view.places[1].since < the_job()->view.epoch);
}

/* Rank 0 cannot reach the server at position 1, which leaves the job by that, a second later. */
static void cut_off(unsigned client) {
  uint32_t position = 1;
  const struct zps_job_suspects suspects = {
      .job_id = the_job()->job_id, .n_servers = 1, .servers = &position, .why = "cut"};
  assert_int_equal(zps_members_suspect(&rig.clients[R0], &suspects, &rig.error), ZPS_OK);
  pass(0);
  pass(1);
  answer(A);
  answer(client);
  all_mapped();
  assert_int_equal(zps_members_suspect(&rig.clients[R0], &suspects, &rig.error), ZPS_OK); /* it has not heard yet */
  assert_false(zps_member_job_holds(the_job(), rig.clients[client].server));
  assert_non_null(zps_member_job_cutoff(the_job(), rig.clients[client].server));
}

/* The server, which has left, is asked again after so many seconds, and takes its place. */
static void comes_back(unsigned client, unsigned after_s) {
  const unsigned before = told(ZPS_ACT_JOB_OPEN, client);
  assert_int_equal(pass(0), now_ns + after_s * ZPS_NS_PER_S);
  pass(after_s - 1);
  assert_int_equal(told(ZPS_ACT_JOB_OPEN, client), before);
  pass(1);
  assert_int_equal(told(ZPS_ACT_JOB_OPEN, client), before + 1);
  takes_its_place(client);
  assert_true(zps_member_job_holds(the_job(), rig.clients[client].server));
  assert_null(zps_member_job_cutoff(the_job(), rig.clients[client].server));
}

/* One that had to leave, since a rank could not reach it, is asked again. The pause grows with each time, and is short
 * again after the server has stayed. */
static void test_one_that_was_cut_off(void **state) {
  (void)state;
  on_servers(2);
  server(C, "c");
  asked(C, 1);
  takes_its_place(C);
  const unsigned pauses[] = {5, 10, 20, 40, 80, 160, 300, 300};
  for (unsigned i = 0; i < sizeof pauses / sizeof pauses[0]; i++) {
    rig.n_seen = 0;
    cut_off(C);
    comes_back(C, pauses[i]);
  }
  assert_string_equal(the_job()->lost_servers, "b, c, c, c, c, c, c, c, c");
  pass(300);
  rig.n_seen = 0;
  cut_off(C);
  comes_back(C, 5);
}

/* Another server comes first; what was said of one is said of nobody else. */
static void test_others_before_one_that_was_cut_off(void **state) {
  (void)state;
  on_servers(2);
  server(C, "c");
  asked(C, 1);
  takes_its_place(C);
  cut_off(C);
  server(D, "d");
  asked(D, 1); /* By now c could be asked, too. */
  assert_int_equal(told(ZPS_ACT_JOB_OPEN, C), 1);
  takes_its_place(D);
  pass(1);
  pass(1);
  assert_true(zps_member_job_holds(the_job(), rig.clients[D].server));
  assert_non_null(zps_member_job_cutoff(the_job(), rig.clients[C].server));
  zps_members_client_lost(rig.members, &rig.clients[D], "gone"); /* Its place is free now. */
  answer(A);
  all_mapped();
  asked(C, 2);
}

/* An administrator need not wait for the end of a long pause; a server that drains as well stays out until an
 * administrator says so. */
static void test_cut_off_and_administrators(void **state) {
  (void)state;
  const struct zps_member_server *at = NULL;
  on_servers(2);
  server(C, "c");
  asked(C, 1);
  takes_its_place(C);
  for (unsigned pause = 5; pause < 80; pause *= 2) {
    cut_off(C);
    comes_back(C, pause);
  }
  cut_off(C);
  const unsigned before = told(ZPS_ACT_JOB_OPEN, C);
  asked(C, before);
  assert_int_equal(zps_members_undrain_named(rig.members, "c", &at, &rig.error), ZPS_OK);
  asked(C, before + 1);
  takes_its_place(C);
  cut_off(C);
  assert_int_equal(zps_members_drain_named(rig.members, "c", &at, &rig.error), ZPS_OK);
  for (unsigned i = 0; i < 100; i++) asked(C, before + 1);
  assert_int_equal(zps_members_undrain_named(rig.members, "c", &at, &rig.error), ZPS_OK);
  asked(C, before + 2);
}

/* Nor does that change when the map begins anew meanwhile, since another server is lost. */
static void test_nor_when_another_is_lost(void **state) {
  (void)state;
  uint32_t position = 1;
  const uint64_t job_id = on_servers(2);
  const struct zps_job_suspects suspects = {.job_id = job_id, .n_servers = 1, .servers = &position, .why = "cut"};
  server(C, "c");
  asked(C, 1);
  opens_all(C);
  zps_members_client_lost(rig.members, &rig.clients[A], "gone");
  assert_true(the_job()->view.places[1].since < the_job()->view.epoch);
  assert_int_equal(zps_members_suspect(&rig.clients[R0], &suspects, &rig.error), ZPS_OK); /* of b */
  pass(1);
  pass(1);
  assert_true(the_job()->state == ZPS_JOB_RUNNING && zps_member_job_holds(the_job(), rig.clients[C].server));
  answer(C);
  all_mapped();
  assert_int_equal(zps_members_suspect(&rig.clients[R0], &suspects, &rig.error), ZPS_OK); /* of c, its last server */
  pass(1);
  pass(1);
  assert_int_equal(the_job()->state, ZPS_JOB_CLOSING);
}

#define FATE_CASE(fate)                                                                                        \
  {                                                                                                            \
    "test_the_other_takes_its_place: " #fate, test_the_other_takes_its_place, members_setup, members_teardown, \
        &fates[fate]                                                                                           \
  }

int main(void) {
  static enum fate fates[] = {LOST, AWAY, DRAINS, REFUSES};
  const struct CMUnitTest tests[] = {
      MEMBERS_CASE(test_a_server_takes_the_place),
      MEMBERS_CASE(test_it_is_not_the_one_that_was_out_of_reach),
      MEMBERS_CASE(test_nor_when_another_is_lost),
      MEMBERS_CASE(test_two_at_once),
      FATE_CASE(LOST),
      FATE_CASE(AWAY),
      FATE_CASE(DRAINS),
      FATE_CASE(REFUSES),
      MEMBERS_CASE(test_a_tensor_comes_or_goes_meanwhile),
      MEMBERS_CASE(test_it_cannot),
      MEMBERS_CASE(test_it_goes_or_drains_meanwhile),
      MEMBERS_CASE(test_the_job_changes_meanwhile),
      MEMBERS_CASE(test_jobs_that_take_none_in),
      MEMBERS_CASE(test_one_that_had_drained),
      MEMBERS_CASE(test_one_that_was_cut_off),
      MEMBERS_CASE(test_others_before_one_that_was_cut_off),
      MEMBERS_CASE(test_cut_off_and_administrators),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
