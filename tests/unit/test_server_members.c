/* The membership module, case by case: who is told what, in which words. tests/unit/test_server_members_explore.c has
 * the invariants that hold for every sequence of events. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "server/coordinator/members.h"

enum { CLIENTS = 8, ACTS_MAX = 128 };

struct seen {
  struct zps_action action;
  char text[512];
  uint32_t owners0, n_parts;
};

static struct {
  struct zps_members *members;
  struct zps_member_client clients[CLIENTS]; /* 0 and 1: servers "a", "b"; the others: workers */
  struct seen seen[ACTS_MAX];
  unsigned n_seen;
  uint64_t random;
  struct zps_error error;
} t;

static void on_act(void *ctx, const struct zps_action *action) {
  (void)ctx;
  assert_true(t.n_seen < ACTS_MAX);
  struct seen *seen = &t.seen[t.n_seen++];
  seen->action = *action;
  snprintf(seen->text, sizeof seen->text, "%s", action->text ? action->text : "");
  if (action->tensor) {
    seen->owners0 = action->tensor->spec.owners[0];
    seen->n_parts = action->tensor->spec.n_parts;
  }
}

static uint64_t on_random(void *ctx) {
  (void)ctx;
  return ++t.random;
}

static int setup(void **state) {
  (void)state;
  memset(&t, 0, sizeof t);
  const struct zps_members_config config = {
      .min_servers = 1, .max_jobs = 2, .max_tensors = 3, .act = on_act, .random = on_random};
  return zps_members_create(&config, &t.members) != ZPS_OK;
}

static int teardown(void **state) {
  (void)state;
  for (unsigned i = 0; i < CLIENTS; i++) zps_members_client_lost(t.members, &t.clients[i], "end");
  zps_members_destroy(t.members);
  return 0;
}

static const struct zps_net_info tcp = {.provider = "tcp", .addr_format = "FI_SOCKADDR_IN"};
static const struct zps_net_info net = {.provider = "net", .addr_format = "FI_SOCKADDR_IN"};
static const struct zps_net_info verbs = {.provider = "verbs;ofi_rxm", .addr_format = "FI_SOCKADDR_IN"};

static zps_err_t server_as(unsigned client, const char *name, uint32_t pid, const struct zps_net_info *fabric) {
  const struct zps_server_spec spec = {.name = name, .host = "node", .pid = pid, .fabric = fabric};
  return zps_members_server_register(t.members, &t.clients[client], &spec, &t.error);
}

static zps_err_t join_as(unsigned client, const char *job, uint32_t rank, uint32_t world,
                         const struct zps_net_info *fabric) {
  const struct zps_join_spec spec = {.job = job,
                                     .host = "node",
                                     .world = world,
                                     .rank = rank,
                                     .pid = 100 + client,
                                     .timeout_ms = 1500,
                                     .fabric = fabric};
  return zps_members_join(t.members, &t.clients[client], &spec, &t.clients[client], 0, &t.error);
}

static void opened(unsigned server, uint64_t job_id, zps_err_t code) {
  zps_members_job_opened(t.members, &t.clients[server], job_id, code, "it has no room", 0);
}

/* How many actions of this type went to this client; the last one is left in *last_p. */
static unsigned count(enum zps_action_type type, unsigned client, const struct seen **last_p) {
  unsigned n = 0;
  for (unsigned i = 0; i < t.n_seen; i++) {
    if (t.seen[i].action.type != type || t.seen[i].action.client != &t.clients[client]) continue;
    n++;
    if (last_p) *last_p = &t.seen[i];
  }
  return n;
}

/* Servers a and b, and job "x" of the two ranks 0 (client 2) and 1 (client 3), running. */
static uint64_t running_job(void) {
  assert_int_equal(server_as(0, "a", 1, &tcp), ZPS_OK);
  assert_int_equal(server_as(1, "b", 2, &net), ZPS_OK);
  assert_int_equal(join_as(2, "x", 0, 2, &net), ZPS_OK);
  assert_int_equal(join_as(3, "x", 1, 2, &tcp), ZPS_OK);
  const uint64_t job_id = zps_members_job_first(t.members)->job_id;
  opened(0, job_id, ZPS_OK);
  assert_int_equal(count(ZPS_ACT_JOIN_DONE, 2, NULL), 0);
  opened(1, job_id, ZPS_OK);
  assert_int_equal(count(ZPS_ACT_JOIN_DONE, 2, NULL), 1);
  assert_int_equal(count(ZPS_ACT_JOIN_DONE, 3, NULL), 1);
  return job_id;
}

static const char *tensor_scheme = "";
static const uint32_t *tensor_ranks;
static uint32_t tensor_n_ranks;
static enum zps_codec_policy tensor_codec = ZPS_CODEC_AUTO;
static enum zps_value_codec tensor_values = ZPS_VALUES_RAW;

static zps_err_t tensor(unsigned client, uint64_t job_id, const char *name, uint64_t rows, uint32_t parts) {
  struct zps_tensor_spec spec = {.job_id = job_id,
                                 .rows = rows,
                                 .width = 8,
                                 .dtype = ZPS_DTYPE_F32,
                                 .op = ZPS_OP_SUM,
                                 .codec = tensor_codec,
                                 .value_codec = tensor_values,
                                 .n_parts = parts,
                                 .ranks = tensor_ranks,
                                 .n_ranks = tensor_n_ranks,
                                 .block_bits = UINT32_MAX};
  snprintf(spec.name, sizeof spec.name, "%s", name);
  snprintf(spec.scheme, sizeof spec.scheme, "%s", tensor_scheme);
  return zps_members_tensor_register(t.members, &t.clients[client], &spec, &t.clients[client], &t.error);
}

static void test_rank_taken_names_the_holder(void **state) {
  (void)state;
  assert_int_equal(join_as(2, "x", 0, 2, &tcp), ZPS_OK);
  assert_int_equal(join_as(3, "x", 0, 2, &tcp), ZPS_ERR_RANK_TAKEN);
  assert_string_equal(t.error.text,
                      "rank 0 of job 'x' is held by host node, pid 102; host node, pid 103 cannot have it too");
  assert_int_equal(join_as(2, "y", 0, 1, &tcp), ZPS_ERR_BUSY);
}

static void test_other_world_is_refused(void **state) {
  (void)state;
  assert_int_equal(join_as(2, "x", 0, 2, &tcp), ZPS_OK);
  assert_int_equal(join_as(3, "x", 1, 3, &tcp), ZPS_ERR_SHAPE);
  assert_string_equal(t.error.text,
                      "job 'x' has 2 ranks, says rank 0 (host node, pid 102); rank 1 (host node, pid 103) says 3");
}

static void test_bad_arguments(void **state) {
  (void)state;
  char name[ZPS_NAME_MAX + 2];
  memset(name, 'n', sizeof name);
  name[sizeof name - 1] = '\0';
  assert_int_equal(join_as(2, name, 0, 1, &tcp), ZPS_ERR_INVALID);
  assert_int_equal(join_as(2, "", 0, 1, &tcp), ZPS_ERR_INVALID);
  assert_int_equal(join_as(2, "a\nb", 0, 1, &tcp), ZPS_ERR_INVALID);
  assert_int_equal(join_as(2, "x", 1, 1, &tcp), ZPS_ERR_INVALID);
  assert_int_equal(join_as(2, "x", 0, 0, &tcp), ZPS_ERR_INVALID);
  assert_int_equal(join_as(2, "x", 0, ZPS_WORLD_MAX + 1, &tcp), ZPS_ERR_INVALID);
  assert_int_equal(server_as(0, "", 1, &tcp), ZPS_ERR_INVALID);
  assert_int_equal(zps_members_jobs(t.members), 0);
}

static void test_providers_must_agree(void **state) {
  (void)state;
  assert_int_equal(server_as(0, "a", 1, &tcp), ZPS_OK);
  assert_int_equal(server_as(1, "b", 2, &verbs), ZPS_ERR_REFUSED);
  assert_int_equal(join_as(2, "x", 0, 1, &verbs), ZPS_ERR_REFUSED);
  assert_string_equal(t.error.text,
                      "rank 0 (host node, pid 102) uses fabric provider verbs;ofi_rxm (FI_SOCKADDR_IN), but a uses tcp "
                      "(FI_SOCKADDR_IN): set the same provider and kind of address on both");
  assert_int_equal(zps_members_jobs(t.members), 0);
  /* Ranks that came before the first server are told when it comes. */
  zps_members_client_lost(t.members, &t.clients[0], "end");
  assert_int_equal(join_as(2, "x", 0, 1, &verbs), ZPS_OK);
  assert_int_equal(server_as(0, "a", 1, &tcp), ZPS_OK);
  assert_int_equal(count(ZPS_ACT_JOIN_FAILED, 2, NULL), 1);
}

static void test_missing_ranks_are_named(void **state) {
  (void)state;
  const struct seen *seen = NULL;
  assert_int_equal(join_as(2, "x", 3, 9, &tcp), ZPS_OK);
  assert_int_equal(join_as(3, "x", 7, 9, &tcp), ZPS_OK);
  assert_int_equal(zps_members_tick(t.members, 0), 1500 * ZPS_NS_PER_MS);
  assert_int_equal(zps_members_tick(t.members, 1500 * ZPS_NS_PER_MS), ZPS_NEVER);
  assert_int_equal(count(ZPS_ACT_JOIN_FAILED, 3, &seen), 1);
  assert_int_equal(seen->action.code, ZPS_ERR_MISSING);
  assert_string_equal(seen->text, "job 'x': after 1.5 s 7 of 9 ranks had not joined: 0-2, 4-6, 8");
  assert_int_equal(zps_members_jobs(t.members), 0);
}

static void test_missing_servers_are_counted(void **state) {
  (void)state;
  const struct seen *seen = NULL;
  unsigned jobs = 1;
  zps_members_set_min_servers(t.members, 2);
  assert_int_equal(server_as(0, "a", 1, &tcp), ZPS_OK);
  assert_int_equal(server_as(1, "b", 2, &tcp), ZPS_OK);
  assert_int_equal(zps_members_server_drain(t.members, &t.clients[1], &jobs, &t.error), ZPS_OK);
  assert_int_equal(jobs, 0);
  assert_int_equal(join_as(2, "x", 0, 1, &tcp), ZPS_OK);
  zps_members_tick(t.members, 1500 * ZPS_NS_PER_MS);
  assert_int_equal(count(ZPS_ACT_JOIN_FAILED, 2, &seen), 1);
  assert_string_equal(
      seen->text, "job 'x': all 1 ranks joined, but after 1.5 s there were 1 servers of the 2 needed (and 1 draining)");
  assert_int_equal(join_as(2, "x", 0, 1, &tcp), ZPS_OK);
  zps_members_set_min_servers(t.members, 1);
  assert_int_equal(count(ZPS_ACT_JOB_OPEN, 0, NULL), 1);
  assert_int_equal(count(ZPS_ACT_JOB_OPEN, 1, NULL), 0);
  zps_members_tick(t.members, 1500 * ZPS_NS_PER_MS);
  assert_int_equal(count(ZPS_ACT_JOIN_FAILED, 2, &seen), 2);
  assert_string_equal(seen->text, "job 'x': all 1 ranks joined, but after 1.5 s 1 of 1 servers had not opened it");
  assert_int_equal(count(ZPS_ACT_JOB_CLOSE, 0, NULL), 1);
}

static void test_server_that_refuses_a_job(void **state) {
  (void)state;
  const struct seen *seen = NULL;
  assert_int_equal(server_as(0, "a", 1, &tcp), ZPS_OK);
  assert_int_equal(join_as(2, "x", 0, 1, &tcp), ZPS_OK);
  opened(0, zps_members_job_first(t.members)->job_id, ZPS_ERR_NOMEM);
  assert_int_equal(count(ZPS_ACT_JOIN_FAILED, 2, &seen), 1);
  assert_int_equal(seen->action.code, ZPS_ERR_NOMEM);
  assert_string_equal(seen->text, "job 'x': server 'a' (host node) did not open it: it has no room");
  assert_int_equal(count(ZPS_ACT_JOB_CLOSE, 0, NULL), 1);
}

static void test_tensor_is_opened_once_and_answered_to_all(void **state) {
  (void)state;
  const struct seen *seen = NULL;
  const uint64_t job_id = running_job();
  assert_int_equal(tensor(2, job_id, "w", 100000, 0), ZPS_OK);
  assert_int_equal(tensor(3, job_id, "w", 100000, 32), ZPS_OK); /* what the default comes to */
  assert_int_equal(count(ZPS_ACT_TENSOR_OPEN, 0, &seen), 1);
  assert_int_equal(count(ZPS_ACT_TENSOR_OPEN, 1, NULL), 1);
  assert_int_equal(seen->n_parts, 32);
  zps_members_tensor_opened(t.members, &t.clients[0], job_id, 0, ZPS_OK, NULL, 0);
  assert_int_equal(count(ZPS_ACT_TENSOR_DONE, 2, NULL), 0);
  zps_members_tensor_opened(t.members, &t.clients[1], job_id, 0, ZPS_OK, NULL, 0);
  assert_int_equal(count(ZPS_ACT_TENSOR_DONE, 2, NULL), 1);
  assert_int_equal(count(ZPS_ACT_TENSOR_DONE, 3, NULL), 1);
  assert_int_equal(tensor(3, job_id, "w", 100000, 0), ZPS_OK); /* again: answered at once */
  assert_int_equal(count(ZPS_ACT_TENSOR_DONE, 3, NULL), 2);
  assert_int_equal(tensor(3, job_id, "w", 99999, 0), ZPS_ERR_SHAPE);
  assert_string_equal(t.error.text,
                      "tensor 'w' is 100000 x 8 f32 sum in 32 partitions, block_bits 0, codec auto, values raw since "
                      "rank 0 (host node) "
                      "registered it, rank 1 (host node) says 99999 x 8 f32 sum in 32 partitions, block_bits 0, codec "
                      "auto, values raw");
  tensor_codec = ZPS_CODEC_PAPER;
  assert_int_equal(tensor(3, job_id, "w", 100000, 0), ZPS_ERR_SHAPE);
  assert_non_null(strstr(t.error.text, "codec auto, values raw since rank 0"));
  assert_non_null(
      strstr(t.error.text, "says 100000 x 8 f32 sum in 32 partitions, block_bits 0, codec paper, values raw"));
  tensor_codec = ZPS_CODEC_AUTO;
  tensor_values = ZPS_VALUES_QSGD4;
  assert_int_equal(tensor(3, job_id, "w", 100000, 0), ZPS_ERR_SHAPE);
  assert_non_null(strstr(t.error.text, "codec auto, values raw since rank 0"));
  assert_non_null(strstr(t.error.text, "codec auto, values qsgd4"));
  tensor_values = ZPS_VALUES_RAW;
  tensor_scheme = "ring chunks=2";
  assert_int_equal(tensor(3, job_id, "w", 100000, 0), ZPS_ERR_SHAPE);
  assert_non_null(strstr(t.error.text, "says 100000 x 8 f32 sum in 32 partitions"));
  assert_non_null(strstr(t.error.text, "values raw, scheme ring chunks=2"));
  tensor_scheme = "a\nb";
  assert_int_equal(tensor(3, job_id, "v", 100000, 0), ZPS_ERR_INVALID);
  tensor_scheme = "";
  assert_int_equal(tensor(3, job_id + 1, "w", 1, 0), ZPS_ERR_UNKNOWN);
  assert_int_equal(tensor(3, job_id, "w2", 0, 0), ZPS_ERR_INVALID);
  assert_int_equal(tensor(3, job_id, "w2", 1, ZPS_PARTITION_PARTS_MAX + 1), ZPS_ERR_INVALID);
}

static void test_tensor_that_a_server_refuses_stays_refused(void **state) {
  (void)state;
  const struct seen *seen = NULL;
  const uint64_t job_id = running_job();
  assert_int_equal(tensor(2, job_id, "w", 10, 0), ZPS_OK);
  zps_members_tensor_opened(t.members, &t.clients[1], job_id, 0, ZPS_ERR_NOMEM, "full", 0);
  assert_int_equal(count(ZPS_ACT_TENSOR_FAILED, 2, &seen), 1);
  assert_string_equal(seen->text, "tensor 'w' of job 'x': server 'b' (host node): full");
  assert_int_equal(tensor(3, job_id, "w", 10, 0), ZPS_ERR_NOMEM);
  assert_int_equal(tensor(3, job_id, "w1", 10, 0), ZPS_OK);
  assert_int_equal(tensor(3, job_id, "w2", 10, 0), ZPS_OK);
  assert_int_equal(tensor(3, job_id, "w3", 10, 0), ZPS_ERR_REFUSED); /* max_tensors */
}

static zps_err_t linked(unsigned client, uint64_t job_id, uint64_t now_ns) {
  return zps_members_linked(t.members, &t.clients[client], job_id, 1500, &t.clients[client], now_ns, &t.error);
}

static void test_links_are_answered_when_all_have_made_theirs(void **state) {
  (void)state;
  const struct seen *seen = NULL;
  const uint64_t job_id = running_job();
  assert_int_equal(linked(2, job_id + 1, 0), ZPS_ERR_UNKNOWN);
  assert_int_equal(linked(2, job_id, 0), ZPS_OK);
  assert_int_equal(linked(2, job_id, 0), ZPS_ERR_BUSY);
  assert_int_equal(zps_members_tick(t.members, 1), 1500 * ZPS_NS_PER_MS);
  assert_int_equal(zps_members_tick(t.members, 1500 * ZPS_NS_PER_MS), ZPS_NEVER);
  assert_int_equal(count(ZPS_ACT_LINKED_FAILED, 2, &seen), 1);
  assert_int_equal(seen->action.code, ZPS_ERR_MISSING);
  assert_string_equal(seen->text,
                      "job 'x': after 1.5 s these ranks have not opened a tensor with a worker-to-worker scheme: 1");
  assert_int_equal(linked(3, job_id, 0), ZPS_OK);
  assert_int_equal(count(ZPS_ACT_LINKED_DONE, 3, NULL), 0);
  assert_int_equal(linked(2, job_id, 0), ZPS_OK);
  assert_int_equal(count(ZPS_ACT_LINKED_DONE, 2, NULL), 1);
  assert_int_equal(count(ZPS_ACT_LINKED_DONE, 3, NULL), 1);
  assert_int_equal(linked(2, job_id, 0), ZPS_OK); /* again: answered at once */
  assert_int_equal(count(ZPS_ACT_LINKED_DONE, 2, NULL), 2);
}

static void test_links_that_cannot_be_any_more(void **state) {
  (void)state;
  const struct seen *seen = NULL;
  const uint64_t job_id = running_job();
  assert_int_equal(linked(2, job_id, 0), ZPS_OK);
  assert_int_equal(zps_members_leave(t.members, &t.clients[3], job_id, &t.error), ZPS_OK);
  assert_int_equal(count(ZPS_ACT_LINKED_FAILED, 2, &seen), 1);
  assert_string_equal(seen->text, "rank 1 (host node, pid 103) left the job");
  assert_int_equal(linked(2, job_id, 0), ZPS_OK);
  assert_int_equal(count(ZPS_ACT_LINKED_FAILED, 2, &seen), 2);
  assert_string_equal(seen->text, "rank 1 (host node, pid 103) has left job 'x'");
}

static void test_lost_rank_fails_the_job_by_name(void **state) {
  (void)state;
  const struct seen *seen = NULL;
  const uint64_t job_id = running_job();
  assert_int_equal(tensor(2, job_id, "w", 10, 0), ZPS_OK);
  assert_int_equal(linked(2, job_id, 0), ZPS_OK);
  zps_members_client_lost(t.members, &t.clients[3], "connection reset");
  assert_int_equal(count(ZPS_ACT_JOB_FAILED, 2, &seen), 1);
  assert_int_equal(seen->action.code, ZPS_ERR_PEER_LOST);
  assert_int_equal(seen->action.rank, 1);
  assert_string_equal(seen->text, "job 'x': rank 1 (host node, pid 103) was lost: connection reset");
  assert_int_equal(count(ZPS_ACT_TENSOR_FAILED, 2, NULL), 1);
  assert_int_equal(count(ZPS_ACT_LINKED_FAILED, 2, NULL), 1);
  assert_int_equal(count(ZPS_ACT_RANK_GONE, 0, NULL), 1);
  assert_int_equal(count(ZPS_ACT_JOB_CLOSE, 0, NULL), 0);
  assert_int_equal(tensor(2, job_id, "v", 10, 0), ZPS_ERR_PEER_LOST);
  /* The name is free for the next run, though a rank of the failed one is still there. */
  assert_int_equal(join_as(4, "x", 0, 1, &tcp), ZPS_OK);
  assert_int_equal(count(ZPS_ACT_JOB_OPEN, 0, &seen), 2);
  assert_int_equal(zps_members_leave(t.members, &t.clients[2], job_id, &t.error), ZPS_OK);
  assert_int_equal(count(ZPS_ACT_JOB_CLOSE, 0, &seen), 1);
  assert_string_equal(seen->text, "job 'x': rank 1 (host node, pid 103) was lost: connection reset");
}

static void test_lost_server_fails_its_jobs_by_name(void **state) {
  (void)state;
  const struct seen *seen = NULL;
  running_job();
  zps_members_client_lost(t.members, &t.clients[1], "silent for 5 s");
  assert_int_equal(count(ZPS_ACT_JOB_FAILED, 2, NULL), 1);
  assert_int_equal(count(ZPS_ACT_JOB_FAILED, 3, &seen), 1);
  assert_int_equal(seen->action.code, ZPS_ERR_SERVER_LOST);
  assert_int_equal(seen->action.rank, ZPS_NO_RANK);
  assert_string_equal(seen->text, "job 'x': server 1 'b' (host node, pid 2) was lost: silent for 5 s");
  zps_members_client_lost(t.members, &t.clients[2], "end");
  zps_members_client_lost(t.members, &t.clients[3], "end");
  assert_int_equal(count(ZPS_ACT_JOB_CLOSE, 0, NULL), 1);
  assert_int_equal(count(ZPS_ACT_JOB_CLOSE, 1, NULL), 0);
}

static void test_leaving_in_peace(void **state) {
  (void)state;
  const struct seen *seen = NULL;
  const uint64_t job_id = running_job();
  assert_int_equal(zps_members_leave(t.members, &t.clients[2], job_id + 1, &t.error), ZPS_ERR_UNKNOWN);
  assert_int_equal(zps_members_leave(t.members, &t.clients[2], job_id, &t.error), ZPS_OK);
  assert_int_equal(count(ZPS_ACT_RANK_LEFT, 3, &seen), 1);
  assert_int_equal(seen->action.rank, 0);
  assert_int_equal(count(ZPS_ACT_RANK_GONE, 1, &seen), 1);
  assert_int_equal(seen->action.code, ZPS_ERR_CLOSED);
  /* Who left may begin the next run of the same name before the others have left this one. */
  assert_int_equal(join_as(2, "x", 0, 2, &tcp), ZPS_OK);
  assert_int_equal(join_as(4, "x", 1, 2, &tcp), ZPS_OK);
  assert_int_equal(zps_members_jobs(t.members), 2);
  assert_int_equal(join_as(5, "y", 0, 1, &tcp), ZPS_ERR_REFUSED); /* max_jobs */
  assert_int_equal(zps_members_leave(t.members, &t.clients[3], job_id, &t.error), ZPS_OK);
  assert_int_equal(count(ZPS_ACT_JOB_FAILED, 3, NULL), 0);
  assert_int_equal(count(ZPS_ACT_JOB_CLOSE, 0, &seen), 1);
  assert_string_equal(seen->text, "all ranks have left");
}

static void test_server_names(void **state) {
  (void)state;
  running_job();
  assert_int_equal(server_as(4, "a", 99, &tcp), ZPS_ERR_BUSY);
  assert_string_equal(t.error.text,
                      "server name 'a' is held by host node, pid 1: give each server its own server.name");
  /* The same process, on a new connection, before the old one was found dead. */
  assert_int_equal(server_as(4, "a", 1, &tcp), ZPS_OK);
  assert_null(t.clients[0].server);
  assert_int_equal(count(ZPS_ACT_JOB_FAILED, 2, NULL), 1);
  assert_int_equal(zps_members_servers(t.members), 2);
}

static void test_going_down_refuses_joins(void **state) {
  (void)state;
  const struct seen *seen = NULL;
  assert_int_equal(join_as(2, "x", 0, 2, &tcp), ZPS_OK);
  zps_members_drain(t.members);
  assert_int_equal(count(ZPS_ACT_JOIN_FAILED, 2, &seen), 1);
  assert_int_equal(seen->action.code, ZPS_ERR_REFUSED);
  assert_int_equal(join_as(3, "x", 0, 2, &tcp), ZPS_ERR_REFUSED);
  assert_int_equal(server_as(0, "a", 1, &tcp), ZPS_ERR_REFUSED);
}

static void test_even_schemes_lay_out_their_rows(void **state) {
  (void)state;
  const struct seen *seen = NULL;
  const uint64_t job_id = running_job();
  tensor_scheme = "dense-ps";
  assert_int_equal(tensor(2, job_id, "w", 100000, 0), ZPS_OK);
  assert_int_equal(tensor(3, job_id, "w", 100000, 0), ZPS_OK);
  assert_int_equal(count(ZPS_ACT_TENSOR_OPEN, 0, &seen), 1);
  assert_int_equal(seen->n_parts, 49); /* of 2^11 rows, for 2 servers */
  assert_int_equal(tensor(3, job_id, "w2", 100000, 8), ZPS_ERR_INVALID);
  assert_string_equal(t.error.text,
                      "tensor 'w2': scheme dense-ps lays rows out itself: it takes no number of "
                      "partitions, no block_bits");
  tensor_scheme = "omnireduce of 25600x100";
  assert_int_equal(tensor(3, job_id, "w3", 100000, 0), ZPS_OK);
  assert_int_equal(count(ZPS_ACT_TENSOR_OPEN, 0, &seen), 2);
  assert_int_equal(seen->n_parts, 49);
  tensor_scheme = "";
  assert_int_equal(tensor(3, job_id, "w", 100000, 0), ZPS_ERR_SHAPE);
  assert_non_null(strstr(t.error.text, "in 49 partitions, block_bits 11, codec auto, values raw, scheme dense-ps"));
}

static void test_ranks_that_push_are_the_same_for_all(void **state) {
  (void)state;
  static const uint32_t ranks[] = {1, 0, 2};
  const struct seen *seen = NULL;
  const uint64_t job_id = running_job();
  tensor_ranks = ranks;
  tensor_n_ranks = 1;
  assert_int_equal(tensor(2, job_id, "w", 1000, 2), ZPS_OK);
  assert_int_equal(tensor(3, job_id, "w", 1000, 2), ZPS_OK);
  assert_int_equal(count(ZPS_ACT_TENSOR_OPEN, 0, &seen), 1);
  tensor_n_ranks = 2;
  assert_int_equal(tensor(3, job_id, "descending", 1000, 2), ZPS_ERR_INVALID);
  tensor_ranks = ranks + 1;
  assert_int_equal(tensor(3, job_id, "beyond", 1000, 2), ZPS_ERR_INVALID);
  assert_string_equal(t.error.text, "tensor 'beyond': the ranks that push it must ascend and be below 2");
  tensor_n_ranks = 1;
  assert_int_equal(tensor(3, job_id, "w", 1000, 2), ZPS_ERR_SHAPE);
  tensor_n_ranks = 0;
  assert_int_equal(tensor(3, job_id, "w", 1000, 2), ZPS_ERR_SHAPE);
  assert_non_null(strstr(t.error.text, "pushed by 1 ranks since rank 0"));
}

static void sink(void *ctx, enum zps_log_level level, const char *component, const char *text) {
  (void)ctx, (void)component, (void)text;
  assert_true(level > ZPS_LOG_ERROR);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
int main(void) {
  zps_log_set_sink(sink, NULL);
  const struct CMUnitTest tests[] = {
      CASE(test_rank_taken_names_the_holder),
      CASE(test_other_world_is_refused),
      CASE(test_bad_arguments),
      CASE(test_providers_must_agree),
      CASE(test_missing_ranks_are_named),
      CASE(test_missing_servers_are_counted),
      CASE(test_server_that_refuses_a_job),
      CASE(test_tensor_is_opened_once_and_answered_to_all),
      CASE(test_tensor_that_a_server_refuses_stays_refused),
      CASE(test_links_are_answered_when_all_have_made_theirs),
      CASE(test_links_that_cannot_be_any_more),
      CASE(test_lost_rank_fails_the_job_by_name),
      CASE(test_lost_server_fails_its_jobs_by_name),
      CASE(test_leaving_in_peace),
      CASE(test_server_names),
      CASE(test_going_down_refuses_joins),
      CASE(test_even_schemes_lay_out_their_rows),
      CASE(test_ranks_that_push_are_the_same_for_all),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
