/* The membership module, case by case: the messages about servers, joins and losses, their receivers and their words.
 * tests/unit/server/membership/test_members_explore.c has the invariants that hold for every sequence of events. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "tests/unit/server/membership/members_rig.h"

static void test_rank_taken_names_the_holder(void **state) {
  (void)state;
  assert_int_equal(members_join(2, "x", 0, 2, &members_tcp), ZPS_OK);
  assert_int_equal(members_join(3, "x", 0, 2, &members_tcp), ZPS_ERR_RANK_TAKEN);
  assert_string_equal(rig.error.text,
                      "rank 0 of job 'x' is held by host node, pid 102; host node, pid 103 cannot have it too");
  assert_int_equal(members_join(2, "y", 0, 1, &members_tcp), ZPS_ERR_BUSY);
}

static void test_other_world_is_refused(void **state) {
  (void)state;
  assert_int_equal(members_join(2, "x", 0, 2, &members_tcp), ZPS_OK);
  assert_int_equal(members_join(3, "x", 1, 3, &members_tcp), ZPS_ERR_SHAPE);
  assert_string_equal(rig.error.text,
                      "job 'x' has 2 ranks, says rank 0 (host node, pid 102); rank 1 (host node, pid 103) says 3");
}

static void test_bad_arguments(void **state) {
  (void)state;
  char name[ZPS_NAME_MAX + 2];
  memset(name, 'n', sizeof name);
  name[sizeof name - 1] = '\0';
  assert_int_equal(members_join(2, name, 0, 1, &members_tcp), ZPS_ERR_INVALID);
  assert_int_equal(members_join(2, "", 0, 1, &members_tcp), ZPS_ERR_INVALID);
  assert_int_equal(members_join(2, "a\nb", 0, 1, &members_tcp), ZPS_ERR_INVALID);
  assert_int_equal(members_join(2, "x", 1, 1, &members_tcp), ZPS_ERR_INVALID);
  assert_int_equal(members_join(2, "x", 0, 0, &members_tcp), ZPS_ERR_INVALID);
  assert_int_equal(members_join(2, "x", 0, ZPS_WORLD_MAX + 1, &members_tcp), ZPS_ERR_INVALID);
  assert_int_equal(members_server(0, "", 1, &members_tcp), ZPS_ERR_INVALID);
  assert_int_equal(zps_members_jobs(rig.members), 0);
}

static void test_providers_must_agree(void **state) {
  (void)state;
  assert_int_equal(members_server(0, "a", 1, &members_tcp), ZPS_OK);
  assert_int_equal(members_server(1, "b", 2, &members_verbs), ZPS_ERR_REFUSED);
  assert_int_equal(members_join(2, "x", 0, 1, &members_verbs), ZPS_ERR_REFUSED);
  assert_string_equal(rig.error.text,
                      "rank 0 (host node, pid 102) uses fabric provider verbs;ofi_rxm (FI_SOCKADDR_IN), but a uses tcp "
                      "(FI_SOCKADDR_IN): set the same provider and kind of address on both, by fabric.provider and "
                      "fabric.subnet of a server, or ZENPS_PROVIDER and ZENPS_SUBNET of a rank");
  assert_int_equal(zps_members_jobs(rig.members), 0);
  /* Ranks that came before the first server are told when it comes. */
  zps_members_client_lost(rig.members, &rig.clients[0], "end");
  assert_int_equal(members_join(2, "x", 0, 1, &members_verbs), ZPS_OK);
  assert_int_equal(members_server(0, "a", 1, &members_tcp), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_JOIN_FAILED, 2, NULL), 1);
}

static void test_missing_ranks_are_named(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  assert_int_equal(members_join(2, "x", 3, 9, &members_tcp), ZPS_OK);
  assert_int_equal(members_join(3, "x", 7, 9, &members_tcp), ZPS_OK);
  assert_int_equal(zps_members_tick(rig.members, 0), 1500 * ZPS_NS_PER_MS);
  assert_int_equal(zps_members_tick(rig.members, 1500 * ZPS_NS_PER_MS), ZPS_NEVER);
  assert_int_equal(members_count(ZPS_ACT_JOIN_FAILED, 3, &seen), 1);
  assert_int_equal(seen->action.code, ZPS_ERR_MISSING);
  assert_string_equal(seen->text, "job 'x': after 1.5 s 7 of 9 ranks had not joined: 0-2, 4-6, 8");
  assert_int_equal(zps_members_jobs(rig.members), 0);
}

static void let_act(void *ctx, const struct zps_action *action) {
  (void)ctx, (void)action;
}

static uint64_t count_up(void *ctx) {
  return ++*(uint64_t *)ctx;
}

/* Whether a job of one server and two ranks, one of them on `host`, has checksums. */
static bool has_checksums(bool checked, const char *host, const struct zps_net_info *fabric) {
  uint64_t random = 0;
  struct zps_members *members;
  struct zps_member_client clients[3] = {0};
  const struct zps_members_config config = {.min_servers = 1,
                                            .max_jobs = 1,
                                            .max_tensors = 1,
                                            .checked = checked,
                                            .ctx = &random,
                                            .act = let_act,
                                            .random = count_up};
  const struct zps_server_spec server = {.name = "a", .host = "node", .pid = 1, .fabric = fabric};
  assert_int_equal(zps_members_create(&config, &members), ZPS_OK);
  assert_int_equal(zps_members_server_register(members, &clients[0], &server, false, NULL), ZPS_OK);
  for (uint32_t r = 0; r < 2; r++) {
    const struct zps_join_spec spec = {.job = "x",
                                       .host = r ? host : "node",
                                       .world = 2,
                                       .rank = r,
                                       .pid = 2 + r,
                                       .timeout_ms = 1500,
                                       .fabric = fabric};
    assert_int_equal(zps_members_join(members, &clients[1 + r], &spec, &clients[1 + r], 0, NULL), ZPS_OK);
  }
  const struct zps_member_job *const job = zps_members_job_first(members);
  assert_int_equal(job->state, ZPS_JOB_OPENING);
  const bool has = job->checksums;
  for (unsigned i = 0; i < 3; i++) zps_members_client_lost(members, &clients[i], "end");
  zps_members_destroy(members);
  return has;
}

static void test_which_jobs_have_checksums(void **state) {
  (void)state;
  static const struct zps_net_info encrypted = {.provider = "tls", .addr_format = "FI_SOCKADDR, name and owner"};
  const char *const hosts[] = {"node", "another"};
  for (unsigned i = 0; i < 2; i++) {
    assert_false(has_checksums(false, hosts[i], &members_tcp));
    assert_true(has_checksums(true, hosts[i], &members_tcp));
    assert_true(has_checksums(true, hosts[i], &encrypted));
  }
}

static void test_missing_servers_are_counted(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  unsigned jobs = 1;
  zps_members_set_min_servers(rig.members, 2);
  assert_int_equal(members_server(0, "a", 1, &members_tcp), ZPS_OK);
  assert_int_equal(members_server(1, "b", 2, &members_tcp), ZPS_OK);
  assert_int_equal(zps_members_server_drain(rig.members, &rig.clients[1], &jobs, &rig.error), ZPS_OK);
  assert_int_equal(jobs, 0);
  assert_int_equal(members_join(2, "x", 0, 1, &members_tcp), ZPS_OK);
  zps_members_tick(rig.members, 1500 * ZPS_NS_PER_MS);
  assert_int_equal(members_count(ZPS_ACT_JOIN_FAILED, 2, &seen), 1);
  assert_string_equal(
      seen->text, "job 'x': all 1 ranks joined, but after 1.5 s there were 1 servers of the 2 needed (and 1 draining)");
  rig.now_ns = 1500 * ZPS_NS_PER_MS;
  assert_int_equal(members_join(2, "x", 0, 1, &members_tcp), ZPS_OK);
  zps_members_set_min_servers(rig.members, 1);
  assert_int_equal(members_count(ZPS_ACT_JOB_OPEN, 0, NULL), 1);
  assert_int_equal(members_count(ZPS_ACT_JOB_OPEN, 1, NULL), 0);
  zps_members_tick(rig.members, 3000 * ZPS_NS_PER_MS);
  assert_int_equal(members_count(ZPS_ACT_JOIN_FAILED, 2, &seen), 2);
  assert_string_equal(seen->text, "job 'x': all 1 ranks joined, but after 1.5 s 1 of 1 servers had not opened it");
  assert_int_equal(members_count(ZPS_ACT_JOB_CLOSE, 0, NULL), 1);
}

static void test_server_that_refuses_a_job(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  assert_int_equal(members_server(0, "a", 1, &members_tcp), ZPS_OK);
  assert_int_equal(members_join(2, "x", 0, 1, &members_tcp), ZPS_OK);
  members_opened(0, zps_members_job_first(rig.members)->job_id, ZPS_ERR_NOMEM);
  assert_int_equal(members_count(ZPS_ACT_JOIN_FAILED, 2, &seen), 1);
  assert_int_equal(seen->action.code, ZPS_ERR_NOMEM);
  assert_string_equal(seen->text, "job 'x': server 'a' (host node) did not open it: it has no room");
  assert_int_equal(members_count(ZPS_ACT_JOB_CLOSE, 0, NULL), 1);
}

static zps_err_t linked(unsigned client, uint64_t job_id, uint64_t now_ns) {
  return zps_members_linked(rig.members, &rig.clients[client], job_id, 1500, &rig.clients[client], now_ns, &rig.error);
}

static void test_links_are_answered_when_all_have_made_theirs(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  const uint64_t job_id = members_running_job();
  assert_int_equal(linked(2, job_id + 1, 0), ZPS_ERR_UNKNOWN);
  assert_int_equal(linked(2, job_id, 0), ZPS_OK);
  assert_int_equal(linked(2, job_id, 0), ZPS_ERR_BUSY);
  assert_int_equal(zps_members_tick(rig.members, 1), 1500 * ZPS_NS_PER_MS);
  assert_int_equal(zps_members_tick(rig.members, 1500 * ZPS_NS_PER_MS), ZPS_NEVER);
  assert_int_equal(members_count(ZPS_ACT_GROUP_FAILED, 2, &seen), 1);
  assert_int_equal(seen->action.code, ZPS_ERR_MISSING);
  assert_string_equal(seen->text,
                      "job 'x': after 1.5 s these ranks have not opened a tensor with a rank-to-rank scheme: 1");
  assert_int_equal(linked(3, job_id, 1500 * ZPS_NS_PER_MS), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_GROUP_DONE, 3, NULL), 0);
  assert_int_equal(linked(2, job_id, 0), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_GROUP_DONE, 2, NULL), 1);
  assert_int_equal(members_count(ZPS_ACT_GROUP_DONE, 3, NULL), 1);
  assert_int_equal(linked(2, job_id, 0), ZPS_OK); /* again: answered at once */
  assert_int_equal(members_count(ZPS_ACT_GROUP_DONE, 2, NULL), 2);
}

static void test_links_that_cannot_be_any_more(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  const uint64_t job_id = members_running_job();
  assert_int_equal(linked(2, job_id, 0), ZPS_OK);
  assert_int_equal(zps_members_leave(rig.members, &rig.clients[3], job_id, &rig.error), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_GROUP_FAILED, 2, &seen), 1);
  assert_string_equal(seen->text, "rank 1 (host node, pid 103) has left job 'x'");
  assert_int_equal(linked(2, job_id, 0), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_GROUP_FAILED, 2, &seen), 2);
  assert_string_equal(seen->text, "rank 1 (host node, pid 103) has left job 'x'");
}

static void test_lost_rank_fails_the_job_by_name(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  const uint64_t job_id = members_running_job();
  assert_int_equal(members_tensor(2, job_id, "w", 10, 0), ZPS_OK);
  assert_int_equal(linked(2, job_id, 0), ZPS_OK);
  zps_members_client_lost(rig.members, &rig.clients[3], "connection reset");
  assert_int_equal(members_count(ZPS_ACT_JOB_FAILED, 2, &seen), 1);
  assert_int_equal(seen->action.code, ZPS_ERR_PEER_LOST);
  assert_int_equal(seen->action.rank, 1);
  assert_string_equal(seen->text, "job 'x': rank 1 (host node, pid 103) was lost: connection reset");
  assert_int_equal(members_count(ZPS_ACT_TENSOR_FAILED, 2, NULL), 1);
  assert_int_equal(members_count(ZPS_ACT_GROUP_FAILED, 2, NULL), 1);
  assert_int_equal(members_count(ZPS_ACT_RANK_GONE, 0, NULL), 1);
  assert_int_equal(members_count(ZPS_ACT_JOB_CLOSE, 0, NULL), 0);
  assert_int_equal(members_tensor(2, job_id, "v", 10, 0), ZPS_ERR_PEER_LOST);
  /* The name is free for the next run, though a rank of the failed one is still there. */
  assert_int_equal(members_join(4, "x", 0, 1, &members_tcp), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_JOB_OPEN, 0, &seen), 2);
  assert_int_equal(zps_members_leave(rig.members, &rig.clients[2], job_id, &rig.error), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_JOB_CLOSE, 0, &seen), 1);
  assert_string_equal(seen->text, "job 'x': rank 1 (host node, pid 103) was lost: connection reset");
}

/* A rank that does not leave a job that has failed, in a debugger perhaps, keeps its name, and nothing of the servers.
 */
static void test_failed_job_is_kept_for_a_while_only(void **state) {
  (void)state;
  const uint64_t failed_ns = 7 * ZPS_NS_PER_S, grace_ns = MEMBERS_LEAVE_GRACE_NS;
  const struct members_seen *seen = NULL;
  const uint64_t job_id = members_running_job();
  assert_int_equal(zps_members_tick(rig.members, failed_ns), ZPS_NEVER);
  zps_members_client_lost(rig.members, &rig.clients[3], "gone");
  assert_int_equal(zps_members_tick(rig.members, failed_ns), failed_ns + grace_ns);
  assert_int_equal(zps_members_tick(rig.members, failed_ns + grace_ns - 1), failed_ns + grace_ns);
  assert_int_equal(members_count(ZPS_ACT_JOB_CLOSE, 0, NULL), 0);
  assert_int_equal(zps_members_tick(rig.members, failed_ns + grace_ns), ZPS_NEVER);
  for (unsigned server = 0; server < 2; server++) {
    assert_int_equal(members_count(ZPS_ACT_JOB_CLOSE, server, &seen), 1);
    assert_string_equal(seen->text, "job 'x': rank 1 (host node, pid 103) was lost: gone");
    assert_int_equal(zps_members_server(rig.members, server)->n_jobs, 0);
  }
  /* It comes back, late: it hears why, and leaves; the servers hear nothing any more. */
  rig.n_seen = 0;
  assert_int_equal(members_tensor(2, job_id, "w", 10, 0), ZPS_ERR_PEER_LOST);
  assert_int_equal(zps_members_leave(rig.members, &rig.clients[2], job_id, &rig.error), ZPS_OK);
  assert_int_equal(zps_members_jobs(rig.members), 0);
  assert_int_equal(rig.n_seen, 0);
}

static void test_lost_server_fails_its_jobs_by_name(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  members_running_job();
  zps_members_client_lost(rig.members, &rig.clients[1], "silent for 5 s");
  assert_int_equal(members_count(ZPS_ACT_JOB_FAILED, 2, NULL), 1);
  assert_int_equal(members_count(ZPS_ACT_JOB_FAILED, 3, &seen), 1);
  assert_int_equal(seen->action.code, ZPS_ERR_SERVER_LOST);
  assert_int_equal(seen->action.rank, ZPS_NO_RANK);
  assert_string_equal(seen->text, "job 'x': server 1 'b' (host node, pid 2) was lost: silent for 5 s");
  zps_members_client_lost(rig.members, &rig.clients[2], "end");
  zps_members_client_lost(rig.members, &rig.clients[3], "end");
  assert_int_equal(members_count(ZPS_ACT_JOB_CLOSE, 0, NULL), 1);
  assert_int_equal(members_count(ZPS_ACT_JOB_CLOSE, 1, NULL), 0);
}

static void test_server_lost_while_a_job_opens(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  assert_int_equal(members_server(0, "a", 1, &members_tcp), ZPS_OK);
  assert_int_equal(members_server(1, "b", 2, &members_tcp), ZPS_OK);
  for (uint32_t r = 0; r < 2; r++) assert_int_equal(members_join(2 + r, "x", r, 2, &members_tcp), ZPS_OK);
  const struct zps_member_job *job = zps_members_job_first(rig.members);
  const uint64_t first_id = job->job_id;
  members_opened(1, first_id, ZPS_ERR_CLOSED); /* what was asked of it ends with its connection */
  zps_members_client_lost(rig.members, &rig.clients[1], "gone");
  assert_int_equal(members_count(ZPS_ACT_JOIN_FAILED, 2, NULL) + members_count(ZPS_ACT_JOIN_FAILED, 3, NULL), 0);
  assert_int_equal(members_count(ZPS_ACT_JOB_CLOSE, 0, &seen), 1);
  assert_string_equal(seen->text, "job 'x': server 1 'b' (host node, pid 2) was lost: gone");
  assert_int_equal(members_count(ZPS_ACT_JOB_OPEN, 0, &seen), 2);
  assert_true(job->state == ZPS_JOB_OPENING && job->view.n_places == 1 && job->job_id != first_id);
  members_opened(0, first_id, ZPS_OK); /* late */
  assert_int_equal(job->state, ZPS_JOB_OPENING);
  /* Too few are left: it waits, for one that comes, or until the ranks' time is up. */
  zps_members_client_lost(rig.members, &rig.clients[0], "gone");
  assert_true(job->state == ZPS_JOB_JOINING && job->n_joined == 2);
  assert_int_equal(members_server(0, "c", 3, &members_tcp), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_JOB_OPEN, 0, NULL), 3);
  members_opened(0, job->job_id, ZPS_OK);
  for (uint32_t r = 0; r < 2; r++) assert_int_equal(members_count(ZPS_ACT_JOIN_DONE, 2 + r, NULL), 1);
  assert_int_equal(zps_members_server(rig.members, 0)->n_jobs, 1);
}

static void test_server_lost_while_a_job_opens_until_its_time_is_up(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  assert_int_equal(members_server(0, "a", 1, &members_tcp), ZPS_OK);
  assert_int_equal(members_join(2, "x", 0, 1, &members_tcp), ZPS_OK);
  zps_members_client_lost(rig.members, &rig.clients[0], "gone");
  assert_int_equal(zps_members_tick(rig.members, 1500 * ZPS_NS_PER_MS), ZPS_NEVER);
  assert_int_equal(members_count(ZPS_ACT_JOIN_FAILED, 2, &seen), 1);
  assert_int_equal(seen->action.code, ZPS_ERR_MISSING);
  assert_non_null(strstr(seen->text, "0 servers of the 1 needed"));
}

static void test_job_that_servers_cannot_be_told_of(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  assert_int_equal(members_server(0, "a", 1, &members_tcp), ZPS_OK);
  assert_int_equal(members_join(2, "y", 0, 1, &members_tcp), ZPS_OK);
  zps_members_job_fail(rig.members, zps_members_job_first(rig.members)->job_id, ZPS_ERR_BUSY, "no room");
  assert_int_equal(members_count(ZPS_ACT_JOIN_FAILED, 2, &seen), 1);
  assert_int_equal(seen->action.code, ZPS_ERR_BUSY);
  assert_string_equal(seen->text, "job 'y': no room");
  assert_int_equal(zps_members_jobs(rig.members), 0);
  zps_members_client_lost(rig.members, &rig.clients[0], "end");
  rig.n_seen = 0;
  const uint64_t job_id = members_running_job();
  for (int again = 0; again < 2; again++) zps_members_job_fail(rig.members, job_id, ZPS_ERR_BUSY, "no room");
  zps_members_job_fail(rig.members, job_id + 1, ZPS_ERR_BUSY, "no room");
  for (unsigned client = 2; client < 4; client++) assert_int_equal(members_count(ZPS_ACT_JOB_FAILED, client, &seen), 1);
  assert_true(seen->action.code == ZPS_ERR_BUSY && seen->action.rank == ZPS_NO_RANK);
}

static void test_leaving_in_peace(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  const uint64_t job_id = members_running_job();
  assert_int_equal(zps_members_leave(rig.members, &rig.clients[2], job_id + 1, &rig.error), ZPS_ERR_UNKNOWN);
  assert_int_equal(zps_members_leave(rig.members, &rig.clients[2], job_id, &rig.error), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_RANK_LEFT, 3, &seen), 1);
  assert_int_equal(seen->action.rank, 0);
  assert_int_equal(members_count(ZPS_ACT_RANK_GONE, 1, &seen), 1);
  assert_int_equal(seen->action.code, ZPS_ERR_CLOSED);
  /* A rank that left may begin the next run of the same name before the others have left this one. */
  assert_int_equal(members_join(2, "x", 0, 2, &members_tcp), ZPS_OK);
  assert_int_equal(members_join(4, "x", 1, 2, &members_tcp), ZPS_OK);
  assert_int_equal(zps_members_jobs(rig.members), 2);
  assert_int_equal(members_join(5, "y", 0, 1, &members_tcp), ZPS_ERR_REFUSED); /* max_jobs */
  assert_int_equal(zps_members_leave(rig.members, &rig.clients[3], job_id, &rig.error), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_JOB_FAILED, 3, NULL), 0);
  assert_int_equal(members_count(ZPS_ACT_JOB_CLOSE, 0, &seen), 1);
  assert_string_equal(seen->text, "all ranks have left");
}

static void test_server_names(void **state) {
  (void)state;
  members_running_job();
  assert_int_equal(members_server(4, "a", 99, &members_tcp), ZPS_ERR_BUSY);
  assert_string_equal(rig.error.text,
                      "server name 'a' is held by host node, pid 1: give each server its own server.name");
  /* The same process, on a new connection, before the old one was found dead. */
  assert_int_equal(members_server(4, "a", 1, &members_tcp), ZPS_OK);
  assert_null(rig.clients[0].server);
  assert_int_equal(members_count(ZPS_ACT_JOB_FAILED, 2, NULL), 1);
  assert_int_equal(zps_members_servers(rig.members), 2);
}

static void test_going_down_refuses_joins(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  assert_int_equal(members_join(2, "x", 0, 2, &members_tcp), ZPS_OK);
  zps_members_drain(rig.members);
  assert_int_equal(members_count(ZPS_ACT_JOIN_FAILED, 2, &seen), 1);
  assert_int_equal(seen->action.code, ZPS_ERR_REFUSED);
  assert_int_equal(members_join(3, "x", 0, 2, &members_tcp), ZPS_ERR_REFUSED);
  assert_int_equal(members_server(0, "a", 1, &members_tcp), ZPS_ERR_REFUSED);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      MEMBERS_CASE(test_rank_taken_names_the_holder),
      MEMBERS_CASE(test_other_world_is_refused),
      MEMBERS_CASE(test_bad_arguments),
      MEMBERS_CASE(test_providers_must_agree),
      MEMBERS_CASE(test_missing_ranks_are_named),
      MEMBERS_CASE(test_missing_servers_are_counted),
      MEMBERS_CASE(test_which_jobs_have_checksums),
      MEMBERS_CASE(test_server_that_refuses_a_job),
      MEMBERS_CASE(test_links_are_answered_when_all_have_made_theirs),
      MEMBERS_CASE(test_links_that_cannot_be_any_more),
      MEMBERS_CASE(test_lost_rank_fails_the_job_by_name),
      MEMBERS_CASE(test_failed_job_is_kept_for_a_while_only),
      MEMBERS_CASE(test_lost_server_fails_its_jobs_by_name),
      MEMBERS_CASE(test_server_lost_while_a_job_opens),
      MEMBERS_CASE(test_server_lost_while_a_job_opens_until_its_time_is_up),
      MEMBERS_CASE(test_job_that_servers_cannot_be_told_of),
      MEMBERS_CASE(test_leaving_in_peace),
      MEMBERS_CASE(test_server_names),
      MEMBERS_CASE(test_going_down_refuses_joins),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
