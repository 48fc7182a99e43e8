/* The coordinator's calls at a server: those that reach the shard, and those that do not. The shard is a fake. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/daemon/agent_jobs.h"
#include "tests/support/logs.h"

enum { WORLD = 200, SHARES = 10000 };

static struct {
  unsigned n_calls;
  struct zps_job_spec job;
  struct zps_member_spec member1;
  struct zps_tensor_spec tensor;
  uint32_t owner2, rank, closed, epoch, n_in, n_left;
  enum zps_place_state last;
  uint64_t job_id;
  zps_err_t code;
  char text[100];
  bool is_stuck;
} fake;

static struct zps_agent_jobs jobs = {.shard = (struct zps_shard *)&fake};

zps_err_t zps_shard_job_open(struct zps_shard *at, const struct zps_job_spec *spec, struct zps_error *error) {
  (void)at, (void)error;
  fake.n_calls++;
  fake.job = *spec;
  if (spec->world > 1) fake.member1 = spec->members[1];
  return ZPS_OK;
}

zps_err_t zps_shard_tensor_open(struct zps_shard *at, const struct zps_tensor_spec *spec, struct zps_error *error) {
  (void)at;
  fake.n_calls++;
  fake.tensor = *spec;
  if (spec->n_parts > 2) fake.owner2 = spec->owners[2];
  return strcmp(spec->name, "full") == 0 ? zps_fail(error, ZPS_ERR_NOMEM, "full up") : ZPS_OK;
}

zps_err_t zps_shard_tensor_close(struct zps_shard *at, uint64_t job_id, uint32_t tensor, struct zps_error *error) {
  (void)at;
  fake.n_calls++;
  fake.job_id = job_id;
  fake.closed = tensor;
  return tensor == 4 ? ZPS_OK : zps_fail(error, ZPS_ERR_UNKNOWN, "no tensor %u", tensor);
}

zps_err_t zps_shard_job_close(struct zps_shard *at, uint64_t job_id, const char *reason) {
  (void)at;
  if (fake.is_stuck) return ZPS_ERR_TIMEOUT;
  fake.n_calls++;
  fake.job_id = job_id;
  snprintf(fake.text, sizeof fake.text, "%s", reason);
  return job_id == 5 ? ZPS_OK : ZPS_ERR_UNKNOWN;
}

zps_err_t zps_shard_job_leave(struct zps_shard *at, uint64_t job_id, const char *reason) {
  fake.n_left++;
  return zps_shard_job_close(at, job_id, reason);
}

zps_err_t zps_shard_job_view(struct zps_shard *at, const struct zps_job_view *message, struct zps_error *error) {
  const struct zps_view_image *const view = &message->view;
  (void)at;
  fake.n_calls++;
  fake.job_id = message->job_id;
  fake.epoch = view->epoch;
  fake.n_in = zps_view_image_count_in(view);
  fake.last = view->places[view->n_places - 1].state;
  return view->epoch == 3 ? zps_fail(error, ZPS_ERR_STALE, "epoch 3 it is") : ZPS_OK;
}

zps_err_t zps_shard_job_replay(struct zps_shard *at, uint64_t job_id, uint32_t epoch, struct zps_error *error) {
  (void)at, (void)error;
  fake.n_calls++;
  fake.job_id = job_id;
  fake.epoch = epoch;
  return ZPS_OK;
}

zps_err_t zps_shard_rank_gone(struct zps_shard *at, uint64_t job_id, uint32_t rank, zps_err_t code, const char *text) {
  (void)at;
  if (fake.is_stuck) return ZPS_ERR_TIMEOUT;
  fake.n_calls++;
  fake.job_id = job_id;
  fake.rank = rank;
  fake.code = code;
  snprintf(fake.text, sizeof fake.text, "%s", text);
  return ZPS_OK;
}

bool zps_shard_answers(struct zps_shard *at) {
  (void)at;
  return !fake.is_stuck;
}

zps_err_t zps_shard_stats(struct zps_shard *at, struct zps_shard_totals *totals_p,
                          void (*visit)(void *ctx, const struct zps_tensor_stats *stats), void *ctx,
                          struct zps_error *error) {
  (void)at;
  if (fake.is_stuck) return zps_fail(error, ZPS_ERR_TIMEOUT, "stuck");
  static uint64_t lags[WORLD];
  for (unsigned r = 0; r < WORLD; r++) lags[r] = r % 3 == 0 ? 1000 + r : 7; /* 67 slow ones */
  struct zps_tensor_stats stats = {
      .job_id = 5, .tensor = 1, .name = "w", .dtype = ZPS_DTYPE_F32, .op = ZPS_OP_SUM, .world = WORLD, .lag_ns = lags};
  visit(ctx, &stats);
  stats.world = 3; /* fewer than are shown at most: all */
  visit(ctx, &stats);
  totals_p->jobs = 9;
  return ZPS_OK;
}

zps_err_t zps_shard_shares(struct zps_shard *at, void (*visit)(void *ctx, const struct zps_job_share *share), void *ctx,
                           struct zps_error *error) {
  (void)at;
  if (fake.is_stuck) return zps_fail(error, ZPS_ERR_TIMEOUT, "stuck");
  struct zps_job_share share = {
      .weight = 4, .pool = {.all = 300, .contested = 200, .waited = 100}, .memory_bytes = 4096};
  for (share.job_id = 1; share.job_id <= SHARES; share.job_id++) visit(ctx, &share);
  return ZPS_OK;
}

zps_err_t zps_shard_rounds(struct zps_shard *at, unsigned max,
                           void (*visit)(void *ctx, const struct zps_round_flight *flight), void *ctx,
                           struct zps_error *error) {
  (void)at;
  if (fake.is_stuck) return zps_fail(error, ZPS_ERR_TIMEOUT, "stuck");
  struct zps_round_flight flight = {.job_id = 5,
                                    .step = 9,
                                    .world = 64,
                                    .name = "w",
                                    .wait = ZPS_FLIGHT_BYTES,
                                    .age_ns = 3 * ZPS_NS_PER_S,
                                    .left_ns = 57 * ZPS_NS_PER_S,
                                    .n_ranks = 20,
                                    .ranks = {[0] = 3, [15] = 40}};
  visit(ctx, &flight);
  flight.left_ns = ZPS_NEVER;
  for (unsigned i = 1; i < max; i++) visit(ctx, &flight);
  return ZPS_OK;
}

static zps_err_t call(const char *method, const char *params, zps_json **result_p, struct zps_error *error) {
  zps_json *value = NULL, *result = NULL;
  if (zps_json_parse(params, strlen(params), &value, error)) fail_msg("%s", error->text);
  const zps_err_t err = zps_agent_carry_out(&jobs, method, value, &result, error);
  zps_json_unref(value);
  if (result_p) {
    *result_p = result;
  } else {
    assert_null(result);
  }
  return err;
}

#define ADDRESS "\"address\": \"00ff10\""
static const char job_open[] =
    "{\"job_id\": \"0x0000000000000005\", \"name\": \"j\", \"world\": 2, \"seed\": \"0xffffffffffffffff\", "
    "\"link_secret\": \"00000000000000000000000000000001\", \"server\": 1, "
    "\"view\": {\"epoch\": 3, \"began\": 3, \"places\": [{}, {}, {}]}, \"members\": [{\"rank\": 0, \"host\": \"a\", "
    "\"pid\": 1, " ADDRESS "}, {\"rank\": 1, \"host\": \"b\", \"pid\": 2, " ADDRESS "}]}";
static const char tensor_open[] =
    "{\"job_id\": \"0x0000000000000005\", \"tensor\": 4, \"name\": \"w\", \"rows\": 1099511627776, \"width\": 3, "
    "\"dtype\": \"f64\", \"op\": \"mean\", \"partitions\": 3, \"block_bits\": 2, \"codec\": \"paper\", \"values\": "
    "\"bf16\", "
    "\"owners\": [0, 1, 2]}";
static const char tensor_forget[] = "{\"job_id\": \"0x0000000000000005\", \"tensor\": 4}";
static const char rank_gone[] =
    "{\"job_id\": \"0x0000000000000005\", \"rank\": 1, \"code\": \"ERR_PEER_LOST\", \"text\": \"gone\"}";

static void test_a_lost_server(void **state) {
  (void)state;
  struct zps_error error;
#define VIEW(epoch)                                                   \
  "{\"job_id\": \"0x0000000000000005\", \"view\": {\"epoch\": " epoch \
  ", \"began\": 3, \"places\": ["                                     \
  "{\"state\": \"free\", \"lost\": true}, {}, {\"state\": \"leaving\"}]}}"
  static const char replay[] = "{\"job_id\": \"0x0000000000000006\", \"epoch\": 5, \"tensors\": []}";
  assert_int_equal(call("job.view", VIEW("4"), NULL, &error), ZPS_OK);
  assert_true(fake.job_id == 5 && fake.epoch == 4 && fake.n_in == 1 && fake.last == ZPS_PLACE_LEAVING);
  assert_int_equal(call("job.view", VIEW("3"), NULL, &error), ZPS_ERR_STALE);
  assert_int_equal(call("job.replay", replay, NULL, &error), ZPS_OK);
  assert_true(fake.job_id == 6 && fake.epoch == 5);
}

static void test_calls_reach_the_shard(void **state) {
  (void)state;
  struct zps_error error;
  assert_int_equal(call("job.open", job_open, NULL, &error), ZPS_OK);
  assert_true(fake.job.job_id == 5 && fake.job.seed == UINT64_MAX && fake.job.view.epoch == 3 && fake.job.server == 1);
  assert_int_equal(fake.job.view.n_places, 3);
  assert_true(fake.job.world == 2 && strcmp(fake.job.name, "j") == 0 && strcmp(fake.member1.host, "b") == 0);
  assert_true(fake.member1.rank == 1 && fake.member1.pid == 2 && fake.member1.addr_len == 3);
  assert_memory_equal(fake.member1.addr, "\x00\xff\x10", 3);
  assert_int_equal(call("tensor.open", tensor_open, NULL, &error), ZPS_OK);
  assert_true(fake.tensor.rows == 1ull << 40 && fake.tensor.width == 3 && fake.tensor.tensor == 4 && fake.owner2 == 2);
  assert_true(fake.tensor.dtype == ZPS_DTYPE_F64 && fake.tensor.op == ZPS_OP_MEAN && fake.tensor.block_bits == 2);
  assert_int_equal(fake.tensor.codec, ZPS_CODEC_PAPER);
  assert_int_equal(fake.tensor.value_codec, ZPS_VALUES_BF16);
  assert_int_equal(call("tensor.forget", tensor_forget, NULL, &error), ZPS_OK);
  assert_true(fake.job_id == 5 && fake.closed == 4);
  assert_int_equal(call("rank.gone", rank_gone, NULL, &error), ZPS_OK);
  assert_true(fake.rank == 1 && fake.code == ZPS_ERR_PEER_LOST && strcmp(fake.text, "gone") == 0);
  assert_int_equal(call("job.close", "{\"job_id\": \"0x0000000000000005\", \"reason\": \"end\"}", NULL, &error),
                   ZPS_OK);
  assert_string_equal(fake.text, "end");
}

static void test_the_shards_errors_come_back(void **state) {
  (void)state;
  struct zps_error error;
  assert_int_equal(call("job.close", "{\"job_id\": \"0x0000000000000006\"}", NULL, &error), ZPS_ERR_UNKNOWN);
  assert_non_null(strstr(error.text, "0x0000000000000006"));
  char full[sizeof tensor_open + 8];
  const char *name = strstr(tensor_open, "\"w\"");
  snprintf(full, sizeof full, "%.*s\"full\"%s", (int)(name - tensor_open), tensor_open, name + 3);
  assert_int_equal(call("tensor.open", full, NULL, &error), ZPS_ERR_NOMEM);
  assert_string_equal(error.text, "full up");
  assert_int_equal(call("no.such", "{}", NULL, &error), ZPS_ERR_UNSUPPORTED);
}

/* Replaces each value in `params`, one after the other, by a value that it cannot have. */
static void spoil(const char *method, const char *params) {
  static const char *const wrong[] = {"null", "-1", "\"\\u0007\"", "[]", "{}", "1e300", "true"};
  char text[2048];
  unsigned n = 0;
  for (const char *at = strstr(params, "\": "); at; at = strstr(at + 3, "\": ")) {
    const char *value = at + 3, *end = value;
    if (*value == '[' || *value == '{') {
      int depth = 0;
      do {
        depth += *end == '[' || *end == '{';
        depth -= *end == ']' || *end == '}';
        end++;
      } while (depth);
    } else if (*value == '"') {
      end = strchr(value + 1, '"') + 1;
    } else {
      end += strspn(end, "0123456789");
    }
    for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
      struct zps_error error = {.code = ZPS_OK};
      if (wrong[i][0] == *value) continue;
      snprintf(text, sizeof text, "%.*s%s%s", (int)(value - params), params, wrong[i], end);
      fake.n_calls = 0;
      const zps_err_t err = call(method, text, NULL, &error);
      /* Free text may be any string; nothing else may pass. */
      if (err == ZPS_OK && wrong[i][0] == '"') continue;
      if (err == ZPS_OK || fake.n_calls) fail_msg("%s took %s", method, text);
      assert_true(error.text[0]);
      n++;
    }
  }
  assert_true(n > 10);
}

static void test_nothing_else_reaches_the_shard(void **state) {
  (void)state;
  struct zps_error error;
  spoil("job.open", job_open);
  spoil("tensor.open", tensor_open);
  spoil("tensor.forget", tensor_forget);
  spoil("rank.gone", rank_gone);
  fake.n_calls = 0;
  assert_int_equal(call("job.open", "{}", NULL, &error), ZPS_ERR_PROTOCOL);
  assert_int_equal(
      call("tensor.open",
           "{\"job_id\": \"0x05\", \"tensor\": 4, \"name\": \"w\", \"rows\": 5, \"width\": 3, \"dtype\": \"f64\", "
           "\"op\": \"sum\", \"partitions\": 3, \"block_bits\": 2, \"codec\": \"auto\", \"values\": \"raw\", "
           "\"owners\": [0, 1]}",
           NULL, &error),
      ZPS_ERR_PROTOCOL);
  assert_int_equal(fake.n_calls, 0);
}

static void test_stats_name_the_slowest_ranks(void **state) {
  (void)state;
  zps_json *result;
  struct zps_error error;
  assert_int_equal(call("stats.get", "{}", &result, &error), ZPS_OK);
  const zps_json *lags = zps_json_get(result, "lags");
  assert_int_equal(zps_json_array_len(zps_json_get(result, "tensors")), 2);
  assert_int_equal(zps_json_array_len(lags), 64 + 3);
  for (unsigned i = 0; i < 64; i++) {
    assert_true(zps_json_opt_u64(zps_json_at(lags, i), "lag_ns", 0) >= 1000 + 9); /* of 67: all but the three fastest */
  }
  assert_int_equal(zps_json_opt_u64(zps_json_get(result, "totals"), "jobs", 0), 9);
  const zps_json *const shares = zps_json_get(result, "shares"), *const share = zps_json_at(shares, 0);
  const size_t n_shares = zps_json_array_len(shares); /* those with room in the answer */
  assert_in_range(n_shares, 1000, SHARES - 1);
  assert_int_equal(zps_json_opt_u64(result, "left_out", 0), WORLD - 64 + SHARES - n_shares);
  assert_string_equal(zps_json_opt_str(share, "job_id", ""), "0x0000000000000001");
  assert_int_equal(zps_json_opt_u64(share, "weight", 0), 4);
  assert_int_equal(zps_json_opt_u64(share, "pool_bytes", 0), 300);
  assert_int_equal(zps_json_opt_u64(share, "pool_contested_bytes", 0), 200);
  assert_int_equal(zps_json_opt_u64(share, "pool_waited_bytes", 0), 100);
  assert_int_equal(zps_json_opt_u64(share, "memory_bytes", 0), 4096);
  const zps_json *const rounds = zps_json_get(result, "rounds"), *const round = zps_json_at(rounds, 0);
  assert_int_equal(zps_json_array_len(rounds), 64);
  assert_string_equal(zps_json_opt_str(round, "waits_for", ""), "bytes");
  assert_int_equal(zps_json_opt_u64(round, "age_ms", 0), 3000);
  assert_int_equal(zps_json_opt_u64(round, "left_ms", 0), 57000);
  assert_null(zps_json_get(zps_json_at(rounds, 1), "left_ms"));
  assert_int_equal(zps_json_opt_u64(round, "n_ranks", 0), 20);
  assert_int_equal(zps_json_array_len(zps_json_get(round, "ranks")), 16);
  zps_json_unref(result);
}

/* What is open is not opened twice; what the coordinator has closed meanwhile is closed. */
static void test_what_is_open_stays(void **state) {
  (void)state;
  struct zps_error error;
  assert_int_equal(call("job.open", job_open, NULL, &error), ZPS_OK);
  assert_int_equal(call("tensor.open", tensor_open, NULL, &error), ZPS_OK);
  fake.n_calls = 0;
  assert_int_equal(call("tensor.open", tensor_open, NULL, &error), ZPS_OK);
  assert_int_equal(call("tensor.keep", "{\"job_id\": \"0x05\", \"tensors\": [1, 4]}", NULL, &error), ZPS_OK);
  assert_int_equal(fake.n_calls, 0);
  assert_int_equal(call("tensor.keep", "{\"job_id\": \"0x05\"}", NULL, &error), ZPS_OK);
  assert_true(fake.n_calls == 1 && fake.job_id == 5 && fake.closed == 4);
  assert_int_equal(call("tensor.keep", "{\"job_id\": \"0x06\"}", NULL, &error), ZPS_ERR_UNKNOWN);
  zps_agent_jobs_fini(&jobs);
}

/* A coordinator that knows a job no more has closed it; one that never knew it says nothing about it. */
static void test_orphans(void **state) {
  (void)state;
  struct zps_error error;
  const uint64_t known = 5;
  logs_start();
  logs_expect(ZPS_LOG_WARN, "this server keeps it for now");
  logs_expect(ZPS_LOG_WARN, "is closed: the coordinator has known nothing of it for 10 minutes");
  logs_expect(ZPS_LOG_WARN, "is closed: the coordinator closed it");
  assert_int_equal(call("job.open", job_open, NULL, &error), ZPS_OK);
  fake.n_calls = 0;
  zps_agent_jobs_registered(&jobs, 77, &known, 1, 1000); /* the answer comes behind the first job */
  zps_agent_jobs_registered(&jobs, 77, &known, 1, 2000);
  zps_agent_jobs_registered(&jobs, 88, NULL, 0, 3000);
  zps_agent_jobs_registered(&jobs, 88, NULL, 0, 3500);
  zps_agent_jobs_tick(&jobs, 1000, 3999);
  assert_true(fake.n_calls == 0 && jobs.n == 1);
  zps_agent_jobs_registered(&jobs, 77, &known, 1, 4000); /* the one that knows it is back */
  zps_agent_jobs_tick(&jobs, 1000, 5000);
  assert_int_equal(fake.n_calls, 0);
  zps_agent_jobs_registered(&jobs, 88, NULL, 0, 6000);
  zps_agent_jobs_tick(&jobs, 1000, 7000);
  assert_true(fake.n_calls == 1 && fake.job_id == 5 && jobs.n == 0);
  assert_non_null(strstr(fake.text, "for 10 minutes"));
  assert_int_equal(call("job.open", job_open, NULL, &error), ZPS_OK);
  zps_agent_jobs_registered(&jobs, 77, &known, 1, 8000);
  fake.n_calls = 0;
  assert_int_equal(fake.n_left, 0);
  zps_agent_jobs_registered(&jobs, 77, NULL, 0, 8001); /* ranks may not have heard of that: they are told nothing */
  assert_true(fake.n_calls == 1 && fake.n_left == 1 && fake.job_id == 5 && jobs.n == 0);
  logs_finish();
}

/* A coordinator that starts again without a state closes no job: not one that was opened behind the registration. */
static void test_a_coordinator_without_memory(void **state) {
  (void)state;
  struct zps_error error;
  const uint64_t known = 5;
  logs_start();
  logs_expect(ZPS_LOG_WARN, "this server keeps it for now");
  logs_expect(ZPS_LOG_WARN, "is closed: the coordinator closed it");
  zps_agent_jobs_registered(&jobs, 77, NULL, 0, 1000);
  assert_int_equal(call("job.open", job_open, NULL, &error), ZPS_OK);
  fake.n_calls = fake.n_left = 0;
  zps_agent_jobs_unregistered(&jobs);
  zps_agent_jobs_registered(&jobs, 88, NULL, 0, 2000);
  assert_true(fake.n_calls == 0 && jobs.n == 1);
  /* It learns of the job after all. What it decides then counts. */
  zps_agent_jobs_registered(&jobs, 88, &known, 1, 3000);
  zps_agent_jobs_registered(&jobs, 88, NULL, 0, 4000);
  assert_true(fake.n_left == 1 && jobs.n == 0);
  logs_finish();
}

/* Reads of a server that is cut off bring what ranks have put there since. */
/* A shard that is stuck misses calls: its jobs are closed when it is not any more, and none is forgotten before. */
static void test_a_stuck_shard(void **state) {
  (void)state;
  static const char job_close[] = "{\"job_id\": \"0x0000000000000005\"}";
  zps_json *result = NULL;
  struct zps_error error;
  logs_start();
  logs_expect(ZPS_LOG_WARN, "is closed: the server's progress thread was stuck");
  assert_int_equal(call("job.open", job_open, NULL, &error), ZPS_OK);
  fake.is_stuck = true;
  assert_int_equal(call("rank.gone", rank_gone, NULL, &error), ZPS_ERR_TIMEOUT);
  assert_true(jobs.is_stuck);
  jobs.is_stuck = false;
  assert_int_equal(call("stats.get", "{}", &result, &error), ZPS_ERR_TIMEOUT);
  assert_true(jobs.is_stuck && !result);
  jobs.is_stuck = false;
  assert_int_equal(call("job.close", job_close, NULL, &error), ZPS_ERR_TIMEOUT);
  assert_true(jobs.is_stuck && jobs.n == 1);
  fake.n_calls = 0;
  assert_false(zps_agent_jobs_restart(&jobs));
  assert_true(jobs.is_stuck && jobs.n == 1 && fake.n_calls == 0);
  fake.is_stuck = false;
  assert_true(zps_agent_jobs_restart(&jobs));
  assert_true(!jobs.is_stuck && jobs.n == 0 && fake.n_calls == 1 && fake.job_id == 5);
  logs_finish();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_calls_reach_the_shard),
      cmocka_unit_test(test_a_lost_server),
      cmocka_unit_test(test_the_shards_errors_come_back),
      cmocka_unit_test(test_nothing_else_reaches_the_shard),
      cmocka_unit_test(test_stats_name_the_slowest_ranks),
      cmocka_unit_test(test_what_is_open_stays),
      cmocka_unit_test(test_orphans),
      cmocka_unit_test(test_a_coordinator_without_memory),
      cmocka_unit_test(test_a_stuck_shard),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
