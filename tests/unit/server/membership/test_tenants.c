/* How many jobs one tenant may have: those that wait, and its share of all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "server/membership/members.h"
#include "tests/support/settled.h"
#include "tests/support/logs.h"

enum { CLIENTS = 16, MAX_JOBS = 8, MAX_WAITING = 2 };

static const struct zps_net_info fabric = {.provider = "tcp", .addr_format = "FI_SOCKADDR_IN"};
static struct zps_members *members;
static struct zps_member_client server, clients[CLIENTS];
static unsigned n_clients;
static struct zps_error error;
static uint64_t last_random;
static uint32_t max_tensors = 4;

static void no_act(void *ctx, const struct zps_action *action) {
  (void)ctx, (void)action;
}

static uint64_t on_random(void *ctx) {
  (void)ctx;
  return ++last_random;
}

static void start(uint32_t max_jobs, uint32_t max_waiting) {
  const struct zps_members_config config = {.min_servers = 1,
                                            .max_jobs = max_jobs,
                                            .max_tensors = max_tensors,
                                            .max_waiting = max_waiting,
                                            .act = no_act,
                                            .random = on_random};
  const struct zps_server_spec spec = {.name = "a", .host = "h", .pid = 1, .fabric = &fabric};
  assert_int_equal(zps_members_create(&config, &members), ZPS_OK);
  server = (struct zps_member_client){.server = NULL};
  assert_int_equal(zps_members_server_register(members, &server, &spec, false, &error), ZPS_OK);
  n_clients = 0;
}

static void end(void) {
  for (unsigned i = 0; i < n_clients; i++) zps_members_client_lost(members, &clients[i], "the end");
  zps_members_client_lost(members, &server, "the end");
  zps_members_destroy(members);
}

static struct zps_member_client *client_of(const char *tenant) {
  struct zps_member_client *const client = &clients[n_clients++];
  assert_true(n_clients <= CLIENTS);
  *client = (struct zps_member_client){.server = NULL};
  if (!tenant) return client;
  client->tenant = zps_origin_named(ZPS_ORIGIN_CERTIFICATE, tenant);
  client->has_share = strncmp(tenant, "address", 7) != 0;
  return client;
}

/* A rank of a job; `tenant` NULL: nobody knows whose. */
static zps_err_t join(const char *tenant, const char *job, uint32_t rank, uint32_t world) {
  const struct zps_join_spec spec = {
      .job = job, .host = "h", .world = world, .rank = rank, .pid = 1, .timeout_ms = 1500, .fabric = &fabric};
  struct zps_member_client *const client = client_of(tenant);
  const zps_err_t err = zps_members_join(members, client, &spec, client, 0, &error);
  if (err) n_clients--;
  return err;
}

static zps_err_t run(const char *tenant, const char *job) {
  const zps_err_t err = join(tenant, job, 0, 1);
  if (!err) zps_members_job_opened(members, &server, clients[n_clients - 1].job->job_id, ZPS_OK, NULL);
  return err;
}

static zps_err_t ask(const char *tenant, const char *job) {
  const struct zps_next_spec spec = {.join = {.job = job, .host = "h", .pid = 1, .timeout_ms = 1500, .fabric = &fabric},
                                     .min_world = 2,
                                     .max_world = 4};
  struct zps_member_client *const client = client_of(tenant);
  const zps_err_t err = zps_members_next(members, client, &spec, client, 0, &error);
  if (err) n_clients--;
  return err;
}

static void test_jobs_that_wait(void **state) {
  (void)state;
  start(2 * MAX_JOBS, MAX_WAITING);
  assert_int_equal(join("evil", "e0", 0, 2), ZPS_OK);
  assert_int_equal(join("evil", "e1", 0, 2), ZPS_OK);
  assert_int_equal(join("evil", "e2", 0, 2), ZPS_ERR_QUOTA);
  assert_string_equal(error.text,
                      "job 'e2': 2 jobs of its certificate, token or address wait for ranks or servers, "
                      "and 2 may (job.max_waiting)");
  assert_int_equal(ask("evil", "elastic"), ZPS_ERR_QUOTA);
  assert_int_equal(join("good", "g0", 0, 2), ZPS_OK); /* others may */
  assert_int_equal(join("good", "g0", 1, 2), ZPS_OK);
  assert_int_equal(join(NULL, "n0", 0, 2), ZPS_OK); /* nothing is known of it, and nothing counted */
  assert_int_equal(join(NULL, "n1", 0, 2), ZPS_OK);
  assert_int_equal(join(NULL, "n2", 0, 2), ZPS_OK);
  assert_int_equal(join("evil", "e1", 1, 2), ZPS_OK); /* the job is complete, and does not wait */
  assert_int_equal(ask("evil", "elastic"), ZPS_OK);
  assert_int_equal(ask("evil", "another"), ZPS_ERR_QUOTA);
  assert_int_equal(join("evil", "e2", 0, 2), ZPS_ERR_QUOTA);
  end();
}

/* One tenant has half of all jobs, also of jobs that run; the next one half of what it leaves. */
static void test_shares_of_all_jobs(void **state) {
  (void)state;
  char name[16];
  start(MAX_JOBS, 0);
  for (unsigned i = 0; i < MAX_JOBS / 2; i++) {
    snprintf(name, sizeof name, "e%u", i);
    assert_int_equal(run("evil", name), ZPS_OK);
  }
  assert_int_equal(run("evil", "e9"), ZPS_ERR_QUOTA);
  assert_string_equal(error.text,
                      "job 'e9': there are 4 jobs of its certificate or token, and there may be 4: half of "
                      "the jobs that others leave of 8");
  assert_int_equal(run("good", "g0"), ZPS_OK);
  assert_int_equal(run("good", "g1"), ZPS_OK);
  assert_int_equal(run("good", "g2"), ZPS_ERR_QUOTA);
  assert_int_equal(run("third", "t0"), ZPS_OK);
  assert_int_equal(run("address 7", "a0"), ZPS_OK); /* whoever shares it: there are no shares of addresses */
  assert_int_equal(run("address 7", "a1"), ZPS_ERR_REFUSED);
  assert_string_equal(error.text, "there are 8 jobs already, the most there can be");
  end();
}

/* Tensors of one rank, each of the most partitions, until the job has the most that a job may have. */
static void test_partitions_of_a_job(void **state) {
  (void)state;
  enum { TENSORS = ZPS_JOB_PARTS_MAX / ZPS_PARTITION_PARTS_MAX };
  struct zps_tensor_spec spec = {.rows = ZPS_PARTITION_ROWS_MAX,
                                 .width = 1,
                                 .dtype = ZPS_DTYPE_F32,
                                 .op = ZPS_OP_SUM,
                                 .codec = ZPS_CODEC_AUTO,
                                 .value_codec = ZPS_VALUES_RAW,
                                 .n_parts = ZPS_PARTITION_PARTS_MAX,
                                 .block_bits = ZPS_BLOCK_BITS_DEFAULT};
  max_tensors = TENSORS + 2;
  start(MAX_JOBS, 0);
  max_tensors = 4;
  assert_int_equal(run("good", "g0"), ZPS_OK);
  struct zps_member_client *const rank = &clients[0];
  spec.job_id = rank->job->job_id;
  for (uint32_t t = 0; t <= TENSORS; t++) {
    snprintf(spec.name, sizeof spec.name, "w%u", t);
    const zps_err_t err = zps_members_tensor_register(members, rank, &spec, rank, &error);
    assert_int_equal(err, t < TENSORS ? ZPS_OK : ZPS_ERR_QUOTA);
    if (!err) zps_members_tensor_opened(members, &server, spec.job_id, t, ZPS_OK, NULL);
  }
  assert_string_equal(error.text,
                      "tensor 'w256' has 65536 partitions: job 'g0' would have 16842752, and a job may have "
                      "16777216: ask for fewer");
  assert_int_equal(zps_settled(members, zps_members_tensor_close(rank, spec.job_id, 0, 1500, rank, 0, &error)), ZPS_OK);
  assert_int_equal(zps_members_tensor_register(members, rank, &spec, rank, &error), ZPS_OK);
  end();
}

static int allow_warnings(void **state) {
  (void)state;
  logs_start();
  logs_allow(ZPS_LOG_WARN, "lost: the end");
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_jobs_that_wait), cmocka_unit_test(test_shares_of_all_jobs),
                                     cmocka_unit_test(test_partitions_of_a_job)};
  return cmocka_run_group_tests(tests, allow_warnings, logs_check);
}
