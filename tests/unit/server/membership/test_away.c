/* Servers and ranks whose connection has ended, and that come back, or do not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "tests/unit/server/membership/members_rig.h"

enum { SECRET = 1000 }; /* of client i: SECRET + i */

static zps_err_t server_with(unsigned client, const char *name, uint64_t secret, uint64_t *jobs, uint32_t n_jobs) {
  const struct zps_server_spec spec = {
      .name = name, .host = "node", .pid = 1, .fabric = &members_tcp, .secret = secret, .jobs = jobs, .n_jobs = n_jobs};
  return zps_members_server_register(rig.members, &rig.clients[client], &spec, jobs != NULL, &rig.error);
}

static zps_err_t join_with(unsigned client, uint32_t rank, uint64_t secret) {
  const struct zps_join_spec spec = {.job = "x",
                                     .host = "node",
                                     .world = 2,
                                     .rank = rank,
                                     .pid = 7,
                                     .timeout_ms = 1500,
                                     .fabric = &members_tcp,
                                     .secret = secret};
  return zps_members_join(rig.members, &rig.clients[client], &spec, &rig.clients[client], 0, &rig.error);
}

static zps_err_t resume(unsigned client, uint64_t job_id, uint32_t rank, uint64_t secret) {
  const struct zps_resume_spec spec = {.job_id = job_id, .rank = rank, .secret = secret};
  return zps_members_resume(rig.members, &rig.clients[client], &spec, &rig.error);
}

/* Servers a and b, and job "x" of the ranks 0 (client 2) and 1 (client 3). */
static uint64_t running(void) {
  assert_int_equal(server_with(0, "a", SECRET, NULL, 0), ZPS_OK);
  assert_int_equal(server_with(1, "b", SECRET + 1, NULL, 0), ZPS_OK);
  assert_int_equal(join_with(2, 0, SECRET + 2), ZPS_OK);
  assert_int_equal(join_with(3, 1, SECRET + 3), ZPS_OK);
  const uint64_t job_id = zps_members_job_first(rig.members)->job_id;
  members_opened(0, job_id, ZPS_OK);
  members_opened(1, job_id, ZPS_OK);
  assert_int_equal(zps_members_job_first(rig.members)->state, ZPS_JOB_RUNNING);
  return job_id;
}

static void away(unsigned client, uint64_t until_ns) {
  zps_members_client_away(rig.members, &rig.clients[client], until_ns, "the cable was pulled");
  assert_true(!rig.clients[client].server && !rig.clients[client].job);
}

static void test_server_comes_back(void **state) {
  (void)state;
  uint64_t job_id = running();
  assert_int_equal(members_tensor(2, job_id, "w", 1000, 0), ZPS_OK);
  zps_members_tensor_opened(rig.members, &rig.clients[1], job_id, 0, ZPS_OK, NULL);
  away(0, 500);
  assert_int_equal(zps_members_tick(rig.members, 499), 500);
  assert_int_equal(members_count(ZPS_ACT_JOB_FAILED, 2, NULL), 0);
  /* Over another connection: it is asked again for what it has not answered, and the other server is not. */
  assert_int_equal(server_with(4, "a", SECRET, &job_id, 1), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_TENSORS_KEEP, 4, NULL), 1);
  assert_int_equal(members_count(ZPS_ACT_TENSOR_OPEN, 4, NULL), 1);
  assert_int_equal(members_count(ZPS_ACT_TENSOR_OPEN, 1, NULL), 1);
  zps_members_tensor_opened(rig.members, &rig.clients[1], job_id, 0, ZPS_OK, NULL); /* twice is once */
  assert_int_equal(members_count(ZPS_ACT_TENSOR_DONE, 2, NULL), 0);
  zps_members_tensor_opened(rig.members, &rig.clients[4], job_id, 0, ZPS_OK, NULL);
  assert_int_equal(members_count(ZPS_ACT_TENSOR_DONE, 2, NULL), 1);
  assert_int_equal(zps_members_tick(rig.members, 10000), ZPS_NEVER);
  assert_int_equal(zps_members_servers(rig.members), 2);
}

static void test_server_does_not_come_back(void **state) {
  (void)state;
  running();
  away(0, 500);
  zps_members_tick(rig.members, 500);
  const struct members_seen *seen = NULL;
  assert_int_equal(members_count(ZPS_ACT_JOB_FAILED, 2, &seen), 1);
  assert_int_equal(seen->action.code, ZPS_ERR_SERVER_LOST);
  assert_non_null(strstr(seen->text, "it did not come back in time"));
  assert_int_equal(zps_members_servers(rig.members), 1);
}

/* What it comes back without has failed; a name is another process's once its holder is away, and not before. */
static void test_server_comes_back_otherwise(void **state) {
  (void)state;
  uint64_t none = 0;
  running();
  assert_int_equal(server_with(4, "a", SECRET + 9, NULL, 0), ZPS_ERR_BUSY); /* two containers do this */
  away(0, 500);
  assert_int_equal(server_with(4, "a", SECRET, &none, 0), ZPS_OK);
  const struct members_seen *seen = NULL;
  assert_int_equal(members_count(ZPS_ACT_JOB_FAILED, 2, &seen), 1);
  assert_non_null(strstr(seen->text, "it has come back without the job"));
  away(1, 500);
  assert_int_equal(server_with(5, "b", SECRET + 9, NULL, 0), ZPS_OK);
  assert_int_equal(zps_members_servers(rig.members), 2);
}

/* A coordinator that is about to end takes back the servers that it has, and no others. */
static void test_server_comes_back_to_a_drain(void **state) {
  (void)state;
  uint64_t job_id = running();
  away(1, 500);
  zps_members_drain(rig.members);
  assert_int_equal(server_with(4, "b", SECRET + 1, &job_id, 1), ZPS_OK);
  assert_int_equal(zps_member_job_servers_in(zps_members_job_first(rig.members)), 2);
  assert_int_equal(server_with(5, "c", SECRET + 5, NULL, 0), ZPS_ERR_REFUSED);
  assert_string_equal(rig.error.text, "the coordinator is shutting down");
  away(4, 500);
  assert_int_equal(server_with(5, "b", SECRET + 9, NULL, 0), ZPS_ERR_REFUSED); /* Its name is another process's. */
  assert_int_equal(zps_members_servers(rig.members), 2);
}

/* A process with another fabric asks for the name of a server that is away: the server stays. */
static void test_name_of_one_that_is_away(void **state) {
  (void)state;
  running();
  away(1, 500);
  const struct zps_server_spec spec = {
      .name = "b", .host = "node", .pid = 9, .fabric = &members_verbs, .secret = SECRET + 9};
  assert_int_equal(zps_members_server_register(rig.members, &rig.clients[4], &spec, false, &rig.error),
                   ZPS_ERR_REFUSED);
  assert_non_null(strstr(rig.error.text, "b uses fabric provider verbs;ofi_rxm"));
  assert_int_equal(zps_members_servers(rig.members), 2);
  assert_int_equal(zps_member_job_servers_in(zps_members_job_first(rig.members)), 2);
}

static void test_rank_comes_back(void **state) {
  (void)state;
  const uint64_t job_id = running();
  away(2, 500);
  assert_int_equal(zps_members_leave(rig.members, &rig.clients[3], job_id, &rig.error), ZPS_OK);
  assert_int_equal(resume(5, job_id, 0, SECRET), ZPS_ERR_REFUSED);
  assert_int_equal(resume(5, job_id, 1, SECRET + 3), ZPS_ERR_UNKNOWN);
  assert_int_equal(resume(5, job_id + 1000, 0, SECRET + 2), ZPS_ERR_UNKNOWN);
  assert_int_equal(resume(5, job_id, 0, SECRET + 2), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_RANK_LEFT, 5, NULL), 1); /* while it was away */
  assert_int_equal(resume(5, job_id, 0, SECRET + 2), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_RANK_LEFT, 5, NULL), 1);
  assert_int_equal(zps_members_tick(rig.members, 10000), ZPS_NEVER);
  assert_int_equal(zps_members_leave(rig.members, &rig.clients[5], job_id, &rig.error), ZPS_OK);
  assert_int_equal(zps_members_jobs(rig.members), 0);
}

/* A new connection takes the place of the old one, which has not ended yet. */
static void test_rank_takes_its_own_place(void **state) {
  (void)state;
  const uint64_t job_id = running();
  assert_int_equal(zps_members_linked(rig.members, &rig.clients[2], job_id, 1000, &rig.clients[2], 0, &rig.error),
                   ZPS_OK);
  assert_int_equal(resume(5, job_id, 0, SECRET + 2), ZPS_OK);
  assert_null(rig.clients[2].job);
  assert_int_equal(members_count(ZPS_ACT_GROUP_FAILED, 2, NULL), 1);
  assert_int_equal(zps_members_linked(rig.members, &rig.clients[5], job_id, 1000, &rig.clients[5], 0, &rig.error),
                   ZPS_OK);
  assert_int_equal(zps_members_linked(rig.members, &rig.clients[3], job_id, 1000, &rig.clients[3], 0, &rig.error),
                   ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_GROUP_DONE, 5, NULL), 1);
  zps_members_client_lost(rig.members, &rig.clients[2], "the old one ends");
  assert_int_equal(members_count(ZPS_ACT_JOB_FAILED, 3, NULL), 0);
}

static void test_rank_does_not_come_back(void **state) {
  (void)state;
  const uint64_t job_id = running();
  away(2, 500);
  zps_members_tick(rig.members, 500);
  const struct members_seen *seen = NULL;
  assert_int_equal(members_count(ZPS_ACT_JOB_FAILED, 3, &seen), 1);
  assert_int_equal(seen->action.code, ZPS_ERR_PEER_LOST);
  assert_int_equal(members_count(ZPS_ACT_RANK_GONE, 0, NULL), 1);
  assert_int_equal(resume(5, job_id, 0, SECRET + 2), ZPS_ERR_PEER_LOST);
}

/* The job fails while a rank is away: it hears of that when it is back. */
static void test_rank_hears_of_a_failure(void **state) {
  (void)state;
  const uint64_t job_id = running();
  away(2, 500);
  zps_members_client_lost(rig.members, &rig.clients[3], "killed");
  assert_int_equal(resume(5, job_id, 0, SECRET + 2), ZPS_OK);
  const struct members_seen *seen = NULL;
  assert_int_equal(members_count(ZPS_ACT_JOB_FAILED, 5, &seen), 1);
  assert_true(seen->action.code == ZPS_ERR_PEER_LOST && seen->action.rank == 1);
}

/* Without a secret nobody is known again. */
static void test_nobody_without_a_secret(void **state) {
  (void)state;
  members_running_job();
  zps_members_client_away(rig.members, &rig.clients[2], 500, "gone");
  assert_int_equal(members_count(ZPS_ACT_JOB_FAILED, 3, NULL), 1);
}

/* A join whose answer was lost is answered over the next connection, before the job runs and after. */
static void test_join_again(void **state) {
  (void)state;
  assert_int_equal(server_with(0, "a", SECRET, NULL, 0), ZPS_OK);
  assert_int_equal(join_with(2, 0, SECRET + 2), ZPS_OK);
  assert_int_equal(join_with(4, 0, SECRET + 9), ZPS_ERR_RANK_TAKEN);
  assert_int_equal(join_with(4, 0, SECRET + 2), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_JOIN_FAILED, 2, NULL), 1);
  assert_int_equal(join_with(3, 1, SECRET + 3), ZPS_OK);
  members_opened(0, zps_members_job_first(rig.members)->job_id, ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_JOIN_DONE, 4, NULL), 1);
  assert_int_equal(join_with(5, 0, SECRET + 2), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_JOIN_DONE, 5, NULL), 1);
  assert_int_equal(zps_members_job_first(rig.members)->n_joined, 2);
}

/* New jobs wait while a server may come back, and no longer. */
static void test_jobs_wait_for_servers(void **state) {
  (void)state;
  assert_int_equal(server_with(0, "a", SECRET, NULL, 0), ZPS_OK);
  assert_int_equal(server_with(1, "b", SECRET + 1, NULL, 0), ZPS_OK);
  away(0, 500);
  assert_int_equal(join_with(2, 0, SECRET + 2), ZPS_OK);
  assert_int_equal(join_with(3, 1, SECRET + 3), ZPS_OK);
  assert_int_equal(zps_members_job_first(rig.members)->state, ZPS_JOB_JOINING);
  zps_members_tick(rig.members, 500);
  assert_int_equal(zps_members_job_first(rig.members)->state, ZPS_JOB_OPENING);
  assert_int_equal(zps_members_job_first(rig.members)->view.n_places, 1);
}

/* Job "x" of two ranks opens: server a has answered, server b has not. */
static const struct zps_member_job *opened_by_one(void) {
  for (unsigned i = 0; i < 2; i++) assert_int_equal(server_with(i, i ? "b" : "a", SECRET + i, NULL, 0), ZPS_OK);
  for (uint32_t r = 0; r < 2; r++) assert_int_equal(join_with(2 + r, r, SECRET + 2 + r), ZPS_OK);
  const struct zps_member_job *const job = zps_members_job_first(rig.members);
  members_opened(0, job->job_id, ZPS_OK);
  return job;
}

/* Servers that return open the job. If they do not return, the other servers open it. */
static void test_server_is_away_while_a_job_opens(void **state) {
  (void)state;
  const struct zps_member_job *const job = opened_by_one();
  uint64_t first_id = job->job_id;
  away(1, 500);
  const struct members_seen *seen = NULL;
  assert_int_equal(members_count(ZPS_ACT_JOB_CLOSE, 0, &seen), 1);
  assert_string_equal(seen->text, "job 'x': server 1 'b' (host node, pid 1) lost its connection: the cable was pulled");
  assert_true(job->state == ZPS_JOB_JOINING && job->n_joined == 2 && job->view.n_places == 0);
  assert_int_equal(server_with(4, "b", SECRET + 1, &first_id, 1), ZPS_OK);
  assert_true(job->state == ZPS_JOB_OPENING && job->view.n_places == 2 && job->job_id != first_id);
  assert_int_equal(members_count(ZPS_ACT_JOB_OPEN, 4, NULL), 1);
  away(4, 700);
  assert_int_equal(zps_members_tick(rig.members, 699), 700);
  zps_members_tick(rig.members, 700);
  assert_true(job->state == ZPS_JOB_OPENING && job->view.n_places == 1);
  members_opened(0, job->job_id, ZPS_OK);
  for (unsigned r = 0; r < 2; r++) {
    assert_int_equal(members_count(ZPS_ACT_JOIN_DONE, 2 + r, NULL), 1);
    assert_int_equal(members_count(ZPS_ACT_JOIN_FAILED, 2 + r, NULL), 0);
  }
  assert_int_equal(zps_members_server(rig.members, 0)->n_jobs, 1);
}

/* Its new connection comes before the old one has ended. Its answer is lost with the old one, so it is asked again. */
static void test_server_is_back_before_it_is_away(void **state) {
  (void)state;
  const struct zps_member_job *const job = opened_by_one();
  uint64_t first_id = job->job_id;
  assert_int_equal(server_with(4, "b", SECRET + 1, &first_id, 1), ZPS_OK);
  assert_true(job->state == ZPS_JOB_OPENING && job->view.n_places == 2 && job->job_id != first_id);
  assert_int_equal(members_count(ZPS_ACT_JOB_OPEN, 4, NULL), 1);
  members_opened(0, job->job_id, ZPS_OK);
  members_opened(4, job->job_id, ZPS_OK);
  assert_int_equal(job->state, ZPS_JOB_RUNNING);
}

/* A server that drains says so when it comes, and when it comes back: it gets no job that waits for servers. */
static void test_server_that_drains(void **state) {
  (void)state;
  struct zps_server_spec spec = {
      .name = "a", .host = "node", .pid = 1, .fabric = &members_tcp, .secret = SECRET, .draining = true};
  for (uint32_t r = 0; r < 2; r++) assert_int_equal(join_with(2 + r, r, SECRET + 2 + r), ZPS_OK);
  assert_int_equal(zps_members_server_register(rig.members, &rig.clients[0], &spec, false, &rig.error), ZPS_OK);
  spec.name = "b";
  spec.secret = SECRET + 1;
  assert_int_equal(zps_members_server_register(rig.members, &rig.clients[1], &spec, false, &rig.error), ZPS_OK);
  away(1, 500);
  assert_int_equal(zps_members_server_register(rig.members, &rig.clients[1], &spec, true, &rig.error), ZPS_OK);
  assert_int_equal(zps_members_job_first(rig.members)->state, ZPS_JOB_JOINING);
  spec = (struct zps_server_spec){.name = "c", .host = "node", .pid = 1, .fabric = &members_tcp, .secret = SECRET + 4};
  assert_int_equal(zps_members_server_register(rig.members, &rig.clients[4], &spec, false, &rig.error), ZPS_OK);
  assert_int_equal(zps_members_job_first(rig.members)->view.n_places, 1);
  members_opened(4, zps_members_job_first(rig.members)->job_id, ZPS_OK);
  away(4, 500); /* it began to drain meanwhile */
  spec.draining = true;
  uint64_t job_id = zps_members_job_first(rig.members)->job_id;
  spec.jobs = &job_id;
  spec.n_jobs = 1;
  assert_int_equal(zps_members_server_register(rig.members, &rig.clients[4], &spec, true, &rig.error), ZPS_OK);
  assert_true(rig.clients[4].server->draining && rig.clients[4].server->n_jobs == 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      MEMBERS_CASE(test_server_comes_back),
      MEMBERS_CASE(test_server_does_not_come_back),
      MEMBERS_CASE(test_server_comes_back_otherwise),
      MEMBERS_CASE(test_server_comes_back_to_a_drain),
      MEMBERS_CASE(test_name_of_one_that_is_away),
      MEMBERS_CASE(test_rank_comes_back),
      MEMBERS_CASE(test_rank_takes_its_own_place),
      MEMBERS_CASE(test_rank_does_not_come_back),
      MEMBERS_CASE(test_rank_hears_of_a_failure),
      MEMBERS_CASE(test_nobody_without_a_secret),
      MEMBERS_CASE(test_join_again),
      MEMBERS_CASE(test_jobs_wait_for_servers),
      MEMBERS_CASE(test_server_is_away_while_a_job_opens),
      MEMBERS_CASE(test_server_is_back_before_it_is_away),
      MEMBERS_CASE(test_server_that_drains),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
