/* Answers to an administrator fit in a line, whatever there is to tell: rows without room are counted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/coordinator/coordinator_impl.h"
#include "tests/unit/server/membership/members_rig.h"

enum { TENSORS = 8192, WORLD = 8192 };

static const struct zps_viewer all = {.sees_all = true};
static struct zps_coordinator coordinator;
static zps_json *replied;

void __wrap_zps_rpc_reply(struct zps_rpc_request *request, zps_json *result);
void __wrap_zps_rpc_reply(struct zps_rpc_request *request, zps_json *result) {
  (void)request;
  replied = result;
}

/* A job with as many tensors as a job may have, and as many ranks as two, all with long names that JSON has to escape.
 * They are one and the same, which the tables do not see. */
struct crowd {
  struct zps_member_job *job;
  struct zps_member_tensor **tensors;
  struct zps_member_rank **ranks;
  uint32_t n_tensors, world;
};

static void name(char *text) {
  memset(text, '"', ZPS_NAME_MAX);
  text[ZPS_NAME_MAX] = '\0';
}

/* The clients of the rig have no connections, which the tables would ask. */
static void set_connected(const struct crowd *crowd, bool is_connected) {
  for (unsigned s = 0; s < 2; s++) {
    struct zps_member_server *const server = (struct zps_member_server *)(uintptr_t)zps_members_server(rig.members, s);
    server->client = is_connected ? &rig.clients[s] : NULL;
  }
  crowd->ranks[0]->client = is_connected ? &rig.clients[2] : NULL;
}

static struct crowd crowd_make(void) {
  const uint64_t job_id = members_running_job();
  assert_int_equal(members_tensor(2, job_id, "w", 100000, 0), ZPS_OK);
  for (unsigned s = 0; s < 2; s++) zps_members_tensor_opened(rig.members, &rig.clients[s], job_id, 0, ZPS_OK, NULL);
  struct zps_member_job *const job = (struct zps_member_job *)(uintptr_t)zps_members_job_first(rig.members);
  const struct crowd crowd = {job, job->tensors, job->ranks, job->n_tensors, job->world};
  name(job->tensors[0]->spec.name);
  name(job->ranks[0]->host);
  name(job->name);
  set_connected(&crowd, false);
  job->tensors = calloc(TENSORS, sizeof *job->tensors);
  job->ranks = calloc(WORLD, sizeof *job->ranks);
  for (uint32_t i = 0; i < TENSORS; i++) job->tensors[i] = crowd.tensors[0];
  for (uint32_t r = 0; r < WORLD; r++) job->ranks[r] = crowd.ranks[0];
  job->n_tensors = TENSORS;
  job->world = WORLD;
  coordinator.members = rig.members;
  return crowd;
}

static void crowd_end(struct crowd *crowd) {
  set_connected(crowd, true);
  free(crowd->job->tensors);
  free(crowd->job->ranks);
  crowd->job->tensors = crowd->tensors;
  crowd->job->ranks = crowd->ranks;
  crowd->job->n_tensors = crowd->n_tensors;
  crowd->job->world = crowd->world;
}

/* Consumes the answer, in which this table has some of so many rows, and others less. */
static void fits(zps_json *answer, const char *table, size_t n) {
  char *const line = zps_json_dump(answer);
  assert_non_null(line);
  assert_in_range(strlen(line), ZPS_RPC_LINE_MAX / 8, ZPS_RPC_LINE_MAX - 1024);
  assert_int_equal(zps_json_check_bounds(line, strlen(line), NULL), ZPS_OK);
  const size_t n_rows = zps_json_array_len(zps_json_get(answer, table));
  assert_in_range(n_rows, 100, n - 1);
  assert_in_range(zps_json_opt_u64(answer, "left_out", 0), n - n_rows, n + TENSORS);
  free(line);
  zps_json_unref(answer);
}

static void test_tables_of_a_crowd(void **state) {
  (void)state;
  struct crowd crowd = crowd_make();
  fits(zps_coordinator_tensors(&coordinator, &all), "tensors", TENSORS);
  fits(zps_coordinator_members(&coordinator, &all), "ranks", WORLD);
  zps_coordinator_stats(&coordinator, &all, NULL);
  fits(zps_json_ref(replied), "tensors", TENSORS);
  fits(replied, "ranks", WORLD);
  crowd_end(&crowd);
}

/* A draining server can be taken back. A stopping one cannot: its process is about to end. */
static void test_states_of_servers(void **state) {
  (void)state;
  const struct zps_member_server *server;
  unsigned jobs;
  members_running_job();
  coordinator.members = rig.members;
  assert_int_equal(zps_members_drain_named(rig.members, "a", &server, &rig.error), ZPS_OK);
  assert_int_equal(zps_members_server_drain(rig.members, &rig.clients[1], &jobs, &rig.error), ZPS_OK);
  const char *const states[] = {"draining", "stopping"};
  for (unsigned s = 0; s < 2; s++) {
    zps_json *const answer = zps_coordinator_undrained(zps_members_server(rig.members, s));
    assert_string_equal(zps_json_opt_str(zps_json_at(zps_json_get(answer, "servers"), 0), "state", ""), states[s]);
    zps_json_unref(answer);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {MEMBERS_CASE(test_tables_of_a_crowd), MEMBERS_CASE(test_states_of_servers)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
