/* A running job loses servers and goes on with those that are left: who is told and asked, in which order, and what
 * ends it all the same. test_members_explore.c has the invariants that hold for every order of events. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "tests/unit/server/membership/members_rig.h"

enum { A = 0, B = 1, R0 = 2, R1 = 3, C = 7 }; /* clients: servers, ranks, and a third server */

static const struct zps_member_job *the_job(void) {
  return zps_members_job_first(rig.members);
}

/* Servers a, b and c, at positions 0 to 2. */
static uint64_t running_on_three(void) {
  zps_members_set_replays(rig.members, true);
  assert_int_equal(members_server(A, "a", 1, &members_tcp), ZPS_OK);
  assert_int_equal(members_server(B, "b", 2, &members_tcp), ZPS_OK);
  assert_int_equal(members_server(C, "c", 3, &members_tcp), ZPS_OK);
  for (uint32_t r = 0; r < 2; r++) assert_int_equal(members_join(R0 + r, "x", r, 2, &members_tcp), ZPS_OK);
  const uint64_t job_id = the_job()->job_id;
  members_opened(A, job_id, ZPS_OK);
  members_opened(B, job_id, ZPS_OK);
  members_opened(C, job_id, ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_JOIN_DONE, R1, NULL), 1);
  return job_id;
}

static void lose(unsigned client) {
  zps_members_client_lost(rig.members, &rig.clients[client], "gone");
}

static void answer(unsigned server, uint64_t job_id, uint32_t epoch, zps_err_t code) {
  zps_members_map_answered(rig.members, &rig.clients[server], job_id, epoch, code, "it has no room");
}

static zps_err_t mapped(unsigned client, uint64_t job_id, uint32_t epoch, uint32_t tensor, uint64_t step) {
  struct zps_tensor_steps of = {.tensor = tensor, .n_steps = 1, .steps = &step};
  return zps_settled(
      rig.members,
      zps_members_mapped(&rig.clients[client],
                         &(struct zps_job_steps){.job_id = job_id, .epoch = epoch, .n_tensors = 1, .tensors = &of},
                         &rig.error));
}

static void opened_by(unsigned server, uint64_t job_id, uint32_t tensor) {
  zps_members_tensor_opened(rig.members, &rig.clients[server], job_id, tensor, ZPS_OK, NULL);
}

static void test_servers_then_ranks_then_all(void **state) {
  (void)state;
  uint32_t *lost, n;
  const uint64_t job_id = running_on_three();
  const uint32_t before = the_job()->view.epoch;
  assert_int_equal(members_tensor(R0, job_id, "w", 100000, 12), ZPS_OK);
  opened_by(A, job_id, 0);
  opened_by(B, job_id, 0);
  opened_by(C, job_id, 0);
  lose(B);
  const uint32_t epoch = the_job()->view.epoch;
  assert_true(epoch > before);
  assert_int_equal(the_job()->state, ZPS_JOB_RUNNING);
  lost = members_positions(&the_job()->view, ~(1u << ZPS_PLACE_IN), &n);
  assert_true(n == 1 && lost[0] == 1);
  free(lost);
  assert_int_equal(members_count(ZPS_ACT_MAP_SERVER, A, NULL), 1);
  assert_int_equal(members_count(ZPS_ACT_MAP_SERVER, C, NULL), 1);
  assert_int_equal(members_count(ZPS_ACT_MAP_SERVER, B, NULL), 0);
  answer(A, job_id, before, ZPS_OK); /* of another epoch */
  answer(A, job_id, epoch, ZPS_OK);
  answer(A, job_id, epoch, ZPS_OK); /* twice */
  assert_int_equal(members_count(ZPS_ACT_MAP_RANK, R0, NULL), 0);
  assert_int_equal(mapped(R0, job_id, epoch, 0, 7), ZPS_OK); /* it has not been asked: means nothing */
  answer(C, job_id, epoch, ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_MAP_RANK, R0, NULL), 1);
  assert_int_equal(members_count(ZPS_ACT_MAP_RANK, R1, NULL), 1);
  assert_int_equal(mapped(R0, job_id, epoch, 0, 8), ZPS_OK);
  assert_int_equal(mapped(R0, job_id, epoch, 0, 99), ZPS_OK); /* twice */
  assert_int_equal(mapped(R1, job_id, before, 0, 98), ZPS_OK);
  assert_int_equal(mapped(R1, job_id + 1, epoch, 0, 9), ZPS_ERR_UNKNOWN);
  assert_int_equal(members_count(ZPS_ACT_REPLAY_RANK, R0, NULL), 0);
  assert_int_equal(mapped(R1, job_id, epoch, 0, 7), ZPS_OK);
  for (unsigned client = R0; client <= R1; client++)
    assert_int_equal(members_count(ZPS_ACT_REPLAY_RANK, client, NULL), 1);
  assert_int_equal(members_count(ZPS_ACT_REPLAY_SERVER, A, NULL), 1);
  assert_int_equal(members_count(ZPS_ACT_REPLAY_SERVER, C, NULL), 1);
  const struct zps_job_steps *steps = &the_job()->map.steps;
  assert_true(steps->n_tensors == 1 && steps->tensors[0].n_steps == 2);
  assert_true(steps->tensors[0].steps[0] == 7 && steps->tensors[0].steps[1] == 8);
  assert_int_equal(zps_members_tick(rig.members, 1000), ZPS_NEVER);
  assert_int_equal(the_job()->map.state, ZPS_MAP_NONE);
}

/* The third has no room for all of its name. */
static void test_lost_servers_by_name(void **state) {
  (void)state;
  char name[ZPS_NAME_MAX + 1];
  const unsigned clients[] = {A, B, C};
  zps_members_set_replays(rig.members, true);
  memset(name, 'n', ZPS_NAME_MAX);
  name[ZPS_NAME_MAX] = '\0';
  for (unsigned i = 0; i < 3; i++) {
    name[0] = (char)('a' + i);
    assert_int_equal(members_server(clients[i], i == 1 ? "b" : name, i + 1, &members_tcp), ZPS_OK);
  }
  assert_int_equal(members_join(R0, "x", 0, 1, &members_tcp), ZPS_OK);
  for (unsigned i = 0; i < 3; i++) members_opened(clients[i], the_job()->job_id, ZPS_OK);
  assert_string_equal(the_job()->lost_servers, "");
  lose(B);
  assert_string_equal(the_job()->lost_servers, "b");
  lose(A);
  assert_memory_equal(the_job()->lost_servers, "b, an", 5);
  assert_int_equal(zps_member_job_servers_lost(the_job()), 2);
  lose(C);
  assert_int_equal(strlen(the_job()->lost_servers), ZPS_LOST_SERVERS_SIZE - 1);
  assert_string_equal(the_job()->lost_servers + ZPS_LOST_SERVERS_SIZE - 5, "n...");
  assert_int_equal(zps_member_job_servers_lost(the_job()), 3);
}

/* Whatever the stage, it begins anew, and what belongs to the former epoch means nothing. */
static void test_another_loss_meanwhile(void **state) {
  (void)state;
  const uint64_t job_id = running_on_three();
  lose(B);
  const uint32_t first = the_job()->view.epoch;
  answer(A, job_id, first, ZPS_OK);
  answer(C, job_id, first, ZPS_OK);
  assert_int_equal(mapped(R0, job_id, first, 0, 7), ZPS_OK);
  lose(A);
  const uint32_t second = the_job()->view.epoch;
  assert_true(second > first);
  assert_int_equal(members_count(ZPS_ACT_MAP_SERVER, C, NULL), 2);
  assert_int_equal(mapped(R1, job_id, first, 0, 7), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_REPLAY_RANK, R0, NULL), 0);
  answer(C, job_id, second, ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_MAP_RANK, R0, NULL), 2);
  assert_int_equal(mapped(R1, job_id, second, 0, 7), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_REPLAY_RANK, R1, NULL), 0);
  assert_int_equal(mapped(R0, job_id, second, 0, 7), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_REPLAY_RANK, R1, NULL), 1);
  assert_int_equal(the_job()->map.steps.n_tensors, 0); /* there is no tensor 0 */
  const struct members_seen *seen = NULL;
  lose(C); /* the last one */
  assert_int_equal(members_count(ZPS_ACT_JOB_FAILED, R0, &seen), 1);
  assert_int_equal(seen->action.code, ZPS_ERR_SERVER_LOST);
  assert_string_equal(seen->text, "job 'x': server 2 'c' (host node, pid 3) was lost: gone");
}

static void test_where_losses_are_to_fail_jobs(void **state) {
  (void)state;
  running_on_three();
  zps_members_set_replays(rig.members, false);
  lose(B);
  assert_int_equal(members_count(ZPS_ACT_MAP_SERVER, A, NULL), 0);
  assert_int_equal(members_count(ZPS_ACT_JOB_FAILED, R1, NULL), 1);
}

static void test_a_server_that_cannot_take_over(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  const uint64_t job_id = running_on_three();
  lose(B);
  answer(A, job_id, the_job()->view.epoch, ZPS_ERR_CLOSED); /* its loss would be said next */
  assert_int_equal(the_job()->state, ZPS_JOB_RUNNING);
  answer(C, job_id, the_job()->view.epoch, ZPS_ERR_INVALID);
  assert_int_equal(members_count(ZPS_ACT_JOB_FAILED, R0, &seen), 1);
  assert_int_equal(seen->action.code, ZPS_ERR_SERVER_LOST);
  assert_non_null(strstr(seen->text,
                         "server 1 'b' (host node, pid 2) was lost: gone; server 'c' cannot take over: it "
                         "has no room"));
}

static void test_ranks_that_do_not_answer_are_named(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  const uint64_t job_id = running_on_three();
  lose(B);
  assert_int_equal(zps_members_tick(rig.members, ZPS_NS_PER_S), 30 * ZPS_NS_PER_S);
  answer(A, job_id, the_job()->view.epoch, ZPS_OK);
  answer(C, job_id, the_job()->view.epoch, ZPS_OK);
  assert_int_equal(mapped(R0, job_id, the_job()->view.epoch, 0, 7), ZPS_OK);
  assert_int_equal(zps_members_tick(rig.members, 30 * ZPS_NS_PER_S - 1), 30 * ZPS_NS_PER_S);
  assert_int_equal(members_count(ZPS_ACT_JOB_FAILED, R0, NULL), 0);
  assert_int_equal(zps_members_tick(rig.members, 30 * ZPS_NS_PER_S), 30 * ZPS_NS_PER_S + MEMBERS_LEAVE_GRACE_NS);
  assert_int_equal(members_count(ZPS_ACT_JOB_FAILED, R0, &seen), 1);
  assert_int_equal(seen->action.code, ZPS_ERR_SERVER_LOST);
  assert_non_null(strstr(seen->text,
                         "was lost: gone; after 30 s these ranks have not said which rounds they have in "
                         "flight: 1"));
}

/* The other ranks hear it at once, also of rounds that they have not begun. */
static void test_a_rank_with_too_many_rounds(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  const uint64_t job_id = running_on_three();
  lose(B);
  const uint32_t epoch = the_job()->view.epoch;
  answer(A, job_id, epoch, ZPS_OK);
  answer(C, job_id, epoch, ZPS_OK);
  const struct zps_job_steps steps = {.job_id = job_id, .epoch = epoch, .is_too_many = true};
  assert_int_equal(zps_settled(rig.members, zps_members_mapped(&rig.clients[R1], &steps, &rig.error)),
                   ZPS_ERR_SERVER_LOST);
  assert_int_equal(members_count(ZPS_ACT_JOB_FAILED, R0, &seen), 1);
  assert_int_equal(seen->action.code, ZPS_ERR_SERVER_LOST);
  assert_string_equal(
      seen->text,
      "job 'x': server 1 'b' (host node, pid 2) was lost: gone; the rounds in flight cannot be played "
      "again: with those of rank 1 they are too many: have at most 8192 tensors, 128 steps of each, and 131072 "
      "steps and late ranks of decided steps in all");
}

/* A decision that names a late rank beyond the job's is refused, and the rank may report again. */
static void test_late_ranks_that_the_job_does_not_have(void **state) {
  (void)state;
  const uint64_t job_id = running_on_three();
  lose(B);
  const uint32_t epoch = the_job()->view.epoch;
  answer(A, job_id, epoch, ZPS_OK);
  answer(C, job_id, epoch, ZPS_OK);
  uint64_t step = 7;
  uint32_t late[] = {1, 2};
  struct zps_step_late decided = {.step = step, .n_late = 2, .late = late};
  struct zps_tensor_steps of = {.n_steps = 1, .steps = &step, .n_decided = 1, .decided = &decided};
  const struct zps_job_steps steps = {.job_id = job_id, .epoch = epoch, .n_tensors = 1, .tensors = &of};
  assert_int_equal(zps_settled(rig.members, zps_members_mapped(&rig.clients[R0], &steps, &rig.error)),
                   ZPS_ERR_PROTOCOL);
  assert_string_equal(rig.error.text, "a late rank that it names is none of the job's 2");
  assert_int_equal(mapped(R1, job_id, epoch, 0, 7), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_REPLAY_RANK, R1, NULL), 0);
  decided.n_late = 1;
  assert_int_equal(zps_settled(rig.members, zps_members_mapped(&rig.clients[R0], &steps, &rig.error)), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_REPLAY_RANK, R1, NULL), 1);
}

static void test_servers_that_do_not_answer(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  const uint64_t job_id = running_on_three();
  lose(B);
  assert_int_equal(zps_members_tick(rig.members, 0), 30 * ZPS_NS_PER_S);
  answer(A, job_id, the_job()->view.epoch, ZPS_OK);
  zps_members_tick(rig.members, 30 * ZPS_NS_PER_S);
  assert_int_equal(members_count(ZPS_ACT_JOB_FAILED, R1, &seen), 1);
  assert_non_null(strstr(seen->text, "after 30 s 1 servers have not taken over"));
}

static void test_ranks_that_leave_or_are_lost(void **state) {
  (void)state;
  const uint64_t job_id = running_on_three();
  lose(B);
  answer(A, job_id, the_job()->view.epoch, ZPS_OK);
  answer(C, job_id, the_job()->view.epoch, ZPS_OK);
  assert_int_equal(mapped(R0, job_id, the_job()->view.epoch, 0, 7), ZPS_OK);
  assert_int_equal(zps_members_leave(rig.members, &rig.clients[R1], job_id, &rig.error), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_REPLAY_RANK, R0, NULL), 1);
  assert_int_equal(members_count(ZPS_ACT_REPLAY_RANK, R1, NULL), 0);
  zps_members_tick(rig.members, 1);
  lose(A);
  answer(C, job_id, the_job()->view.epoch, ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_MAP_RANK, R0, NULL), 2);
  lose(R0);
  assert_int_equal(zps_members_jobs(rig.members), 0);
}

/* Tensors that are being opened, and that come later: what servers and ranks are told are owners that all apply the
 * same rule to. */
static void test_tensors(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  const uint64_t job_id = running_on_three();
  assert_int_equal(members_tensor(R0, job_id, "early", 100000, 12), ZPS_OK);
  opened_by(A, job_id, 0);
  opened_by(C, job_id, 0);
  assert_int_equal(members_count(ZPS_ACT_TENSOR_DONE, R0, NULL), 0);
  /* B may live, but without the tensor. Ranks learn of the tensor behind the loss. */
  zps_members_tensor_opened(rig.members, &rig.clients[B], job_id, 0, ZPS_ERR_CLOSED, "closed");
  lose(B);
  assert_int_equal(members_count(ZPS_ACT_TENSOR_DONE, R0, NULL), 0);
  const struct zps_member_tensor *const early = zps_members_tensor_find(the_job(), 0);
  uint32_t n_of[3] = {0};
  for (uint32_t p = 0; p < 12; p++) n_of[early->spec.owners[p]]++;
  assert_true(n_of[0] == 4 && n_of[1] == 4 && n_of[2] == 4); /* unchanged */

  assert_int_equal(members_tensor(R0, job_id, "late", 100000, 12), ZPS_OK); /* while servers take over */
  assert_int_equal(members_count(ZPS_ACT_TENSOR_OPEN, A, &seen), 2);
  assert_int_equal(members_count(ZPS_ACT_TENSOR_OPEN, B, NULL), 1);
  const struct zps_member_tensor *const later = zps_members_tensor_find(the_job(), 1);
  memset(n_of, 0, sizeof n_of);
  for (uint32_t p = 0; p < 12; p++) n_of[later->spec.owners[p]]++;
  assert_true(n_of[0] == 4 && n_of[1] == 4 && n_of[2] == 4); /* so a server that takes b's place has its share of it */
  opened_by(A, job_id, 1);
  lose(C);
  assert_int_equal(members_tensor(R1, job_id, "late", 100000, 12), ZPS_OK);
  assert_true(members_count(ZPS_ACT_TENSOR_DONE, R0, NULL) == 0 && members_count(ZPS_ACT_TENSOR_DONE, R1, NULL) == 0);
  answer(A, job_id, the_job()->view.epoch, ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_MAP_RANK, R0, NULL), 1);
  assert_int_equal(members_count(ZPS_ACT_TENSOR_DONE, R0, NULL), 2);
  assert_int_equal(members_count(ZPS_ACT_TENSOR_DONE, R1, NULL), 1);
}

/* Connections end and are made anew in the middle of it: what was not answered is asked again. */
static void test_those_that_come_back(void **state) {
  (void)state;
  zps_members_set_replays(rig.members, true);
  struct zps_server_spec server = {.name = "a", .host = "node", .pid = 1, .fabric = &members_tcp, .secret = 71};
  assert_int_equal(zps_members_server_register(rig.members, &rig.clients[A], &server, false, &rig.error), ZPS_OK);
  assert_int_equal(members_server(B, "b", 2, &members_tcp), ZPS_OK);
  struct zps_join_spec join = {
      .job = "x", .host = "node", .world = 1, .pid = 5, .timeout_ms = 1500, .fabric = &members_tcp, .secret = 72};
  assert_int_equal(zps_members_join(rig.members, &rig.clients[R0], &join, &rig.clients[R0], 0, &rig.error), ZPS_OK);
  uint64_t job_id = the_job()->job_id;
  members_opened(A, job_id, ZPS_OK);
  members_opened(B, job_id, ZPS_OK);
  zps_members_client_away(rig.members, &rig.clients[A], 90 * ZPS_NS_PER_S, "cut");
  lose(B);
  assert_int_equal(members_count(ZPS_ACT_MAP_SERVER, A, NULL), 0);
  zps_members_tick(rig.members, 1);
  zps_members_tick(rig.members, 40 * ZPS_NS_PER_S); /* it has time until it is lost */
  assert_int_equal(the_job()->state, ZPS_JOB_RUNNING);
  server.jobs = &job_id;
  server.n_jobs = 1;
  assert_int_equal(zps_members_server_register(rig.members, &rig.clients[C], &server, true, &rig.error), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_MAP_SERVER, C, NULL), 1);
  zps_members_client_away(rig.members, &rig.clients[R0], 90 * ZPS_NS_PER_S, "cut");
  answer(C, job_id, the_job()->view.epoch, ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_MAP_RANK, R0, NULL), 0);
  const struct zps_resume_spec resume = {.job_id = job_id, .secret = 72};
  assert_int_equal(zps_members_resume(rig.members, &rig.clients[R1], &resume, &rig.error), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_MAP_RANK, R1, NULL), 1);
  assert_int_equal(mapped(R1, job_id, the_job()->view.epoch, 0, 7), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_REPLAY_RANK, R1, NULL), 1);
  zps_members_tick(rig.members, 41 * ZPS_NS_PER_S);
  /* Whether the last word has arrived is not known. */
  zps_members_client_away(rig.members, &rig.clients[R1], 90 * ZPS_NS_PER_S, "cut");
  assert_int_equal(zps_members_resume(rig.members, &rig.clients[R0], &resume, &rig.error), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_REPLAY_RANK, R0, NULL), 1);
  zps_members_client_away(rig.members, &rig.clients[C], 90 * ZPS_NS_PER_S, "cut");
  assert_int_equal(zps_members_server_register(rig.members, &rig.clients[A], &server, true, &rig.error), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_REPLAY_SERVER, A, NULL), 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      MEMBERS_CASE(test_servers_then_ranks_then_all),
      MEMBERS_CASE(test_lost_servers_by_name),
      MEMBERS_CASE(test_another_loss_meanwhile),
      MEMBERS_CASE(test_where_losses_are_to_fail_jobs),
      MEMBERS_CASE(test_a_server_that_cannot_take_over),
      MEMBERS_CASE(test_ranks_that_do_not_answer_are_named),
      MEMBERS_CASE(test_a_rank_with_too_many_rounds),
      MEMBERS_CASE(test_late_ranks_that_the_job_does_not_have),
      MEMBERS_CASE(test_servers_that_do_not_answer),
      MEMBERS_CASE(test_ranks_that_leave_or_are_lost),
      MEMBERS_CASE(test_tensors),
      MEMBERS_CASE(test_those_that_come_back),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
