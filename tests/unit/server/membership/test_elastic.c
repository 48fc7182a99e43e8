/* Elastic jobs: when a generation begins, who is in it, as which rank, and what those hear that are not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "server/membership/elastic.h"
#include "tests/unit/server/membership/members_rig.h"

enum { A = 0, B = 1, W = 2 /* the first of the workers' clients */, TIMEOUT_S = 20, WAIT_S = 4 };

static uint64_t now_ns;
static uint32_t min_world, max_world;

static int setup(void **state) {
  now_ns = ZPS_NS_PER_S;
  min_world = 2;
  max_world = 4;
  return members_setup(state);
}

static uint64_t tick(unsigned seconds) {
  now_ns += seconds * ZPS_NS_PER_S;
  return zps_members_tick(rig.members, now_ns);
}

struct asked {
  uint32_t wish, generation, last_rank, pid; /* 0: one of its own */
  uint64_t last_job, step, secret;
  const struct zps_net_info *fabric;
};

static zps_err_t ask(unsigned client, struct asked asked) {
  const struct zps_next_spec spec = {.join = {.job = "x",
                                              .host = "node",
                                              .world = 1,
                                              .rank = asked.wish,
                                              .pid = asked.pid ? asked.pid : 100 + client,
                                              .timeout_ms = TIMEOUT_S * 1000,
                                              .secret = asked.secret,
                                              .fabric = asked.fabric ? asked.fabric : &members_tcp},
                                     .min_world = min_world,
                                     .max_world = max_world,
                                     .wait_ms = WAIT_S * 1000,
                                     .step = asked.step,
                                     .generation = asked.generation,
                                     .last_rank = asked.last_rank,
                                     .last_job = asked.last_job};
  const zps_err_t err =
      zps_members_next(rig.members, &rig.clients[client], &spec, &rig.clients[client], now_ns, &rig.error);
  tick(0);
  return err;
}

static const struct zps_member_job *newest(void) {
  const struct zps_member_job *job = zps_members_job_first(rig.members);
  while (job && job->next) job = job->next;
  return job;
}

static void open_newest(void) {
  const uint64_t job_id = newest()->job_id;
  members_opened(A, job_id, ZPS_OK);
  members_opened(B, job_id, ZPS_OK);
  assert_int_equal(newest()->state, ZPS_JOB_RUNNING);
  tick(0);
}

/* Generation 1, of `world` ranks, all of whose clients are as their ranks. */
static void runs(uint32_t world) {
  assert_int_equal(members_server(A, "a", 1, &members_tcp), ZPS_OK);
  assert_int_equal(members_server(B, "b", 2, &members_tcp), ZPS_OK);
  for (uint32_t r = 0; r < world; r++) assert_int_equal(ask(W + r, (struct asked){.wish = r}), ZPS_OK);
  if (world < max_world) tick(WAIT_S);
  open_newest();
  assert_int_equal(newest()->world, world);
  for (uint32_t r = 0; r < world; r++) assert_int_equal(rig.clients[W + r].rank, r);
}

static void moves(unsigned client, uint32_t generation, uint64_t step) {
  const uint32_t rank = rig.clients[client].rank;
  const uint64_t job_id = rig.clients[client].job->job_id;
  assert_int_equal(zps_members_move_on(rig.members, &rig.clients[client], job_id, &rig.error), ZPS_OK);
  tick(0);
  assert_int_equal(
      ask(client, (struct asked){.generation = generation, .last_rank = rank, .last_job = job_id, .step = step}),
      ZPS_OK);
}

static void lose(unsigned client) {
  zps_members_client_lost(rig.members, &rig.clients[client], "gone");
  tick(0);
}

static void expect_failed(unsigned client, zps_err_t code, const char *text) {
  const struct members_seen *seen = NULL;
  assert_int_equal(members_count(ZPS_ACT_JOIN_FAILED, client, &seen), 1);
  assert_int_equal(seen->action.code, code);
  if (!strstr(seen->text, text)) fail_msg("'%s' does not say '%s'", seen->text, text);
}

/* ------------------------------------------------------------ the first generation */

static void test_begins_at_once_when_full(void **state) {
  (void)state;
  max_world = 3;
  assert_int_equal(members_server(A, "a", 1, &members_tcp), ZPS_OK);
  assert_int_equal(members_server(B, "b", 2, &members_tcp), ZPS_OK);
  for (uint32_t r = 3; r-- > 0;) {
    assert_null(zps_members_job_first(rig.members));
    assert_int_equal(ask(W + r, (struct asked){.wish = r, .step = 10 + r}), ZPS_OK);
  }
  open_newest();
  for (uint32_t r = 0; r < 3; r++) {
    const struct members_seen *seen = NULL;
    assert_int_equal(members_count(ZPS_ACT_JOIN_DONE, W + r, &seen), 1);
    assert_int_equal(seen->action.rank, r);
  }
  assert_int_equal(newest()->generation.number, 1);
  assert_int_equal(newest()->generation.source, 2);
  assert_int_equal(newest()->generation.step, 12);
}

/* Wishes that two have, or that cannot be, are given what is left. */
static void test_begins_when_enough_have_waited(void **state) {
  (void)state;
  assert_int_equal(members_server(A, "a", 1, &members_tcp), ZPS_OK);
  assert_int_equal(ask(W, (struct asked){.wish = 1}), ZPS_OK);
  assert_true(tick(0) > now_ns + TIMEOUT_S * ZPS_NS_PER_S - ZPS_NS_PER_S);
  tick(WAIT_S + 1);
  assert_null(newest());
  assert_int_equal(ask(W + 1, (struct asked){.wish = 1}), ZPS_OK); /* the second: the first has waited long enough */
  assert_int_equal(newest()->world, 2);
  assert_int_equal(rig.clients[W].rank, 1);
  assert_int_equal(rig.clients[W + 1].rank, 0);
}

static void test_too_few(void **state) {
  (void)state;
  assert_int_equal(ask(W, (struct asked){.wish = 0}), ZPS_OK);
  tick(TIMEOUT_S);
  expect_failed(W, ZPS_ERR_MISSING, "job 'x': after 20 s 1 ranks were there of the 2 that it needs at least");
  assert_null(rig.clients[W].asker);
}

/* ------------------------------------------------------------ the next one */

static void test_goes_on_with_those_left(void **state) {
  (void)state;
  max_world = 3;
  runs(3);
  const struct zps_secret before = newest()->secret;
  lose(W);
  moves(W + 2, 1, 7);
  tick(WAIT_S + 1);
  assert_int_equal(newest()->generation.number, 1); /* rank 1 is in the job that failed, still */
  moves(W + 1, 1, 6);
  open_newest();
  assert_int_equal(newest()->generation.number, 2);
  assert_memory_not_equal(&newest()->secret, &before, sizeof before); /* rank 0 may live: it can sign nothing more */
  assert_int_equal(newest()->world, 2);
  assert_int_equal(rig.clients[W + 1].rank, 0);
  assert_int_equal(rig.clients[W + 2].rank, 1);
  assert_int_equal(newest()->generation.source, 1);
  assert_int_equal(newest()->generation.step, 7);
}

static void test_waits_for_another(void **state) {
  (void)state;
  max_world = 3;
  runs(3);
  lose(W + 1);
  moves(W, 1, 5);
  moves(W + 2, 1, 5);
  tick(WAIT_S - 1);
  assert_null(newest());
  assert_int_equal(ask(W + 3, (struct asked){.wish = 9, .step = 80}), ZPS_OK);
  open_newest();
  assert_int_equal(newest()->world, 3);
  assert_int_equal(rig.clients[W + 3].rank, 1); /* the hole; the others stay who they are, and its state is nothing */
  assert_int_equal(rig.clients[W + 2].rank, 2);
  assert_int_equal(newest()->generation.source, 0);
  assert_int_equal(newest()->generation.step, 5);
}

static void test_grows(void **state) {
  (void)state;
  max_world = 3;
  runs(2);
  assert_int_equal(ask(W + 4, (struct asked){.wish = 0}), ZPS_OK);
  assert_int_equal(ask(W + 5, (struct asked){.wish = 0}), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_JOB_CHANGED, W, NULL), 1);
  assert_int_equal(members_count(ZPS_ACT_JOB_CHANGED, W + 1, NULL), 1);
  moves(W, 1, 3);
  moves(W + 1, 1, 3);
  open_newest();
  assert_int_equal(newest()->world, 3);
  assert_int_equal(rig.clients[W + 4].rank, 2);
  assert_non_null(rig.clients[W + 5].asker); /* there is no room for it, and nobody is told */
  assert_int_equal(members_count(ZPS_ACT_JOB_CHANGED, W, NULL), 1);
  tick(TIMEOUT_S);
  expect_failed(W + 5, ZPS_ERR_MISSING, "goes on with 3 ranks, of at most 3");
  assert_int_equal(newest()->state, ZPS_JOB_RUNNING);
}

/* A server that comes in a lost one's place is in the next generation, which is not begun at once. */
static void test_takes_up_servers(void **state) {
  (void)state;
  enum { C = W + 5 };
  zps_members_set_replays(rig.members, true);
  max_world = 2;
  runs(2);
  assert_int_equal(members_server(C, "c", 3, &members_tcp), ZPS_OK);
  tick(60);
  assert_int_equal(members_count(ZPS_ACT_JOB_CHANGED, W, NULL), 0); /* nothing has gone from the job */
  moves(W, 1, 1);
  moves(W + 1, 1, 1);
  members_opened(C, newest()->job_id, ZPS_OK);
  open_newest();
  tick(60); /* It runs for long. */
  lose(A);
  assert_int_equal(members_count(ZPS_ACT_JOB_CHANGED, W, NULL), 0);
  assert_int_equal(newest()->state, ZPS_JOB_RUNNING);
  assert_int_equal(members_server(A, "a", 9, &members_tcp), ZPS_OK);
  tick(0);
  assert_int_equal(members_count(ZPS_ACT_JOB_CHANGED, W, NULL), 1);
  assert_int_equal(members_count(ZPS_ACT_JOB_CHANGED, W + 1, NULL), 1);
  moves(W, 2, 4);
  moves(W + 1, 2, 4);
  assert_int_equal(newest()->view.n_places, 3);
}

static void on_rebalanced(void *ctx, const struct zps_member_job *job, const struct zps_member_rebalanced *said) {
  assert_int_equal(said->outcome, ZPS_REBALANCE_WAITS);
  assert_int_equal(said->n_servers, job->view.n_places + 1);
  assert_non_null(strstr(said->why, "its next generation, which is placed on all servers"));
  ++*(unsigned *)ctx;
}

/* More servers than it began with, when an administrator wants it. */
static void test_is_rebalanced(void **state) {
  (void)state;
  enum { C = W + 5 };
  unsigned n = 0;
  max_world = 2;
  runs(2);
  assert_int_equal(members_server(C, "c", 3, &members_tcp), ZPS_OK);
  for (unsigned i = 0; i < 2; i++) {
    assert_int_equal(zps_members_rebalance(rig.members, "x", on_rebalanced, &n, &rig.error), ZPS_OK);
    tick(1);
    assert_int_equal(members_count(ZPS_ACT_JOB_CHANGED, W, NULL), 1);
    assert_int_equal(members_count(ZPS_ACT_JOB_CHANGED, W + 1, NULL), 1);
  }
  assert_int_equal(n, 2);
  moves(W, 1, 1);
  moves(W + 1, 1, 1);
  assert_int_equal(newest()->view.n_places, 3);
}

/* One that it had to leave since a rank could not reach it is there all the while. */
static void test_does_not_take_up_one_that_is_cut_off(void **state) {
  (void)state;
  enum { C = W + 5 };
  zps_members_set_replays(rig.members, true);
  max_world = 2;
  runs(2);
  uint32_t position = 0;
  const struct zps_job_suspects suspects = {.job_id = newest()->job_id, .n_servers = 1, .servers = &position};
  assert_int_equal(zps_members_suspect(&rig.clients[W], &suspects, &rig.error), ZPS_OK);
  tick(0);
  tick(1);
  for (unsigned s = A; s <= B; s++)
    zps_members_map_answered(rig.members, &rig.clients[s], newest()->job_id, newest()->view.epoch, ZPS_OK, NULL);
  const struct zps_job_steps none = {.job_id = newest()->job_id, .epoch = newest()->view.epoch};
  for (unsigned r = 0; r < 2; r++)
    assert_int_equal(zps_settled(rig.members, zps_members_mapped(&rig.clients[W + r], &none, &rig.error)), ZPS_OK);
  tick(60);
  assert_int_equal(zps_member_job_servers_lost(newest()), 1);
  assert_int_equal(members_count(ZPS_ACT_JOB_OPEN, A, NULL), 1); /* A generation takes no server in. */
  assert_int_equal(members_count(ZPS_ACT_JOB_CHANGED, W, NULL), 0);
  assert_int_equal(members_server(C, "c", 3, &members_tcp), ZPS_OK);
  tick(0);
  assert_int_equal(members_count(ZPS_ACT_JOB_CHANGED, W, NULL), 1);
}

/* It comes when the others have gone on, and is a new one then. */
static void test_left_behind(void **state) {
  (void)state;
  max_world = 3;
  runs(3);
  moves(W, 1, 3);
  moves(W + 1, 1, 3);
  tick(TIMEOUT_S / 4 * 3 - 1);
  assert_int_equal(newest()->generation.number, 1);
  tick(1);
  assert_int_equal(newest()->generation.number, 2);
  open_newest();
  assert_int_equal(newest()->world, 2);
  moves(W + 2, 1, 3);
  assert_int_equal(members_count(ZPS_ACT_JOB_CHANGED, W, NULL), 1);
  moves(W, 2, 4);
  moves(W + 1, 2, 4);
  open_newest();
  assert_int_equal(newest()->world, 3);
  assert_int_equal(rig.clients[W + 2].rank, 2);
}

/* One that has left to come again is waited for a while only, and one that left for good not at all. */
static void test_who_is_not_waited_for(void **state) {
  (void)state;
  runs(4);
  const uint64_t job_id = newest()->job_id;
  assert_int_equal(zps_members_move_on(rig.members, &rig.clients[W], job_id, &rig.error), ZPS_OK);
  assert_int_equal(zps_members_leave(rig.members, &rig.clients[W + 1], job_id, &rig.error), ZPS_OK);
  moves(W + 2, 1, 3);
  moves(W + 3, 1, 3);
  tick(9);
  assert_null(newest());
  tick(1);
  assert_int_equal(newest()->world, 2);
}

/* It asks over a new connection, and what it said over the old one comes later: it is not waited for once more. */
static void test_leave_that_comes_behind_the_question(void **state) {
  (void)state;
  max_world = 2;
  runs(2);
  const uint64_t job_id = newest()->job_id;
  const struct asked asked = {.generation = 1, .last_job = job_id, .step = 3, .pid = 100 + W};
  assert_int_equal(ask(W + 4, asked), ZPS_OK);
  assert_int_equal(zps_members_move_on(rig.members, &rig.clients[W], job_id, &rig.error), ZPS_OK);
  moves(W + 1, 1, 3);
  assert_int_equal(newest()->generation.number, 2); /* at once */
  open_newest();
  assert_int_equal(newest()->world, 2);
  assert_int_equal(rig.clients[W + 4].rank, 0);
}

/* ------------------------------------------------------------ what goes wrong on the way */

static void test_falls_apart_while_it_opens(void **state) {
  (void)state;
  max_world = 3;
  runs(3);
  const uint64_t last_job = newest()->job_id;
  lose(W);
  moves(W + 1, 1, 3);
  moves(W + 2, 1, 4);
  tick(WAIT_S);
  assert_int_equal(newest()->state, ZPS_JOB_OPENING);
  assert_int_equal(ask(W + 3, (struct asked){.wish = 0}), ZPS_OK); /* waits for the next one */
  lose(W + 1);
  expect_failed(W + 2, ZPS_ERR_PEER_LOST, "was lost");
  assert_null(newest());
  assert_int_equal(ask(W + 2, (struct asked){.generation = 1, .last_rank = 2, .last_job = last_job, .step = 4}),
                   ZPS_OK);
  tick(WAIT_S);
  open_newest();
  assert_int_equal(newest()->world, 2);
  assert_int_equal(rig.clients[W + 2].rank, 0);
  assert_int_equal(newest()->generation.number, 3);
  assert_int_equal(newest()->generation.source, 0);
  assert_int_equal(newest()->generation.step, 4);
}

static void test_asker_is_lost(void **state) {
  (void)state;
  max_world = 3;
  runs(3);
  moves(W, 1, 3);
  moves(W + 1, 1, 3);
  lose(W);
  moves(W + 2, 1, 3);
  tick(WAIT_S);
  assert_int_equal(newest()->world, 2);
  assert_int_equal(rig.clients[W + 1].rank, 0);
}

/* The same process over another connection; before it has a place, and after. */
static void test_asks_again(void **state) {
  (void)state;
  max_world = 2;
  assert_int_equal(members_server(A, "a", 1, &members_tcp), ZPS_OK);
  assert_int_equal(members_server(B, "b", 2, &members_tcp), ZPS_OK);
  assert_int_equal(ask(W, (struct asked){.wish = 0, .secret = 71}), ZPS_OK);
  zps_members_client_away(rig.members, &rig.clients[W], now_ns, "blip");
  assert_int_equal(ask(W + 1, (struct asked){.wish = 0, .secret = 71}), ZPS_OK);
  assert_int_equal(ask(W + 2, (struct asked){.wish = 0, .secret = 71}), ZPS_OK); /* the first is not known to be gone */
  assert_null(newest());
  assert_int_equal(ask(W + 3, (struct asked){.wish = 1, .secret = 72}), ZPS_OK);
  open_newest();
  assert_int_equal(newest()->world, 2);
  assert_int_equal(ask(W + 4, (struct asked){.wish = 0, .secret = 71}), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_JOIN_DONE, W + 4, NULL), 1);
  assert_int_equal(rig.clients[W + 4].rank, 0);
}

/* A job of fixed ranks is in nobody's way, and is not told. */
static void test_job_of_the_same_name(void **state) {
  (void)state;
  members_running_job();
  assert_int_equal(ask(W + 3, (struct asked){.wish = 0}), ZPS_OK);
  assert_int_equal(ask(W + 4, (struct asked){.wish = 1}), ZPS_OK);
  tick(WAIT_S);
  assert_int_equal(newest()->generation.number, 0);
  assert_int_equal(members_count(ZPS_ACT_JOB_CHANGED, W, NULL), 0);
  lose(W);
  lose(W + 1);
  tick(0);
  assert_int_equal(newest()->generation.number, 1);
  assert_int_equal(newest()->world, 2);
}

static void test_refusals(void **state) {
  (void)state;
  assert_int_equal(ask(W, (struct asked){.wish = 0}), ZPS_OK);
  assert_int_equal(ask(W, (struct asked){.wish = 0}), ZPS_ERR_BUSY);
  assert_int_equal(members_join(W, "y", 0, 1, &members_tcp), ZPS_ERR_BUSY);
  assert_int_equal(members_server(W, "s", 1, &members_tcp), ZPS_ERR_BUSY);
  assert_int_equal(ask(W + 1, (struct asked){.fabric = &members_verbs}), ZPS_ERR_REFUSED);
  max_world = 5;
  assert_int_equal(ask(W + 1, (struct asked){.wish = 0}), ZPS_ERR_SHAPE);
  assert_non_null(strstr(rig.error.text, "wants 2 to 5 ranks and a wait of 4 s; others want 2 to 4 and 4 s"));
  max_world = 1;
  assert_int_equal(ask(W + 1, (struct asked){.wish = 0}), ZPS_ERR_INVALID);
  assert_non_null(strstr(rig.error.text, "at least 2 and at most 1"));
  zps_members_drain(rig.members);
  expect_failed(W, ZPS_ERR_REFUSED, "the coordinator is shutting down");
  max_world = 4;
  assert_int_equal(ask(W, (struct asked){.wish = 0}), ZPS_ERR_REFUSED);
}

/* Whoever asks for a place may say any number. It counts once the process is a rank, up to a limit. */
static void test_numbers_that_strangers_say(void **state) {
  static const uint32_t numbers[] = {2, 1000, 1u << 31, UINT32_MAX - 1};
  for (unsigned i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
    const struct asked stranger = {.generation = numbers[i], .last_job = 99};
    assert_int_equal(ask(W + 4, stranger), ZPS_OK);
    lose(W + 4);
    runs(2);
    assert_int_equal(newest()->generation.number, 1);
    assert_int_equal(ask(W + 4, stranger), ZPS_OK);
    lose(W + 4);
    assert_int_equal(ask(W + 5, stranger), ZPS_OK); /* It becomes a rank. */
    moves(W, 1, 5);
    moves(W + 1, 1, 5);
    open_newest();
    assert_int_equal(newest()->world, 3);
    assert_int_equal(newest()->generation.number, 1 + (numbers[i] <= ZPS_GENERATION_SAID_MAX ? numbers[i] : 1));
    members_teardown(state);
    setup(state);
  }
}

/* The coordinator has lost its state, and the ranks of generation 7 ask. The highest numbers would leave none. */
static void test_numbers_go_on_without_the_state(void **state) {
  (void)state;
  max_world = 3;
  assert_int_equal(members_server(A, "a", 1, &members_tcp), ZPS_OK);
  assert_int_equal(members_server(B, "b", 2, &members_tcp), ZPS_OK);
  for (uint32_t r = 0; r < 2; r++)
    assert_int_equal(ask(W + r, (struct asked){.wish = r, .generation = 7, .last_rank = r, .last_job = 99}), ZPS_OK);
  assert_int_equal(ask(W + 2, (struct asked){.wish = 2, .generation = UINT32_MAX - 1, .last_job = 98}), ZPS_OK);
  open_newest();
  assert_int_equal(newest()->world, 3);
  assert_int_equal(newest()->generation.number, 8);
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, members_teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_begins_at_once_when_full),
      CASE(test_begins_when_enough_have_waited),
      CASE(test_too_few),
      CASE(test_goes_on_with_those_left),
      CASE(test_waits_for_another),
      CASE(test_grows),
      CASE(test_takes_up_servers),
      CASE(test_is_rebalanced),
      CASE(test_does_not_take_up_one_that_is_cut_off),
      CASE(test_left_behind),
      CASE(test_who_is_not_waited_for),
      CASE(test_leave_that_comes_behind_the_question),
      CASE(test_falls_apart_while_it_opens),
      CASE(test_asker_is_lost),
      CASE(test_asks_again),
      CASE(test_job_of_the_same_name),
      CASE(test_refusals),
      CASE(test_numbers_that_strangers_say),
      CASE(test_numbers_go_on_without_the_state),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
