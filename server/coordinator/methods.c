/* Calls of clients, as events of the membership module. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/control/tally_json.h"
#include "server/coordinator/coordinator_impl.h"
#include "server/fabric_json.h"

#define ZPS_LOG_COMPONENT "coordinator"
#include "common/base/log.h"

#define TIMEOUT_MAX_MS (7ull * 24 * 3600 * 1000)

static void refuse(struct zps_rpc_request *request, const struct zps_error *error) {
  zps_rpc_reply_error(request, error->code, "%s", error->text);
}

static void answer_table(struct zps_rpc_request *request, zps_json *table) {
  if (table) {
    zps_rpc_reply(request, table);
  } else {
    zps_rpc_reply_error(request, ZPS_ERR_NOMEM, "the coordinator has no memory to answer");
  }
}

static void server_register(struct zps_coordinator_conn *conn, const zps_json *params,
                            struct zps_rpc_request *request) {
  struct zps_coordinator *coordinator = conn->coordinator;
  struct zps_server_spec spec;
  struct zps_net_info fabric;
  uint64_t pid = 0;
  struct zps_error error;
  zps_err_t err = zps_json_get_str(params, "name", &spec.name, &error);
  if (!err) err = zps_json_get_str(params, "host", &spec.host, &error);
  if (!err) err = zps_json_get_u64(params, "pid", 0, UINT32_MAX, &pid, &error);
  if (!err) err = zps_fabric_from_json(params, &fabric, &error);
  spec.pid = (uint32_t)pid;
  spec.fabric = &fabric;
  if (!err) err = zps_members_server_register(coordinator->members, &conn->client, &spec, &error);
  if (err) {
    refuse(request, &error);
    return;
  }
  zps_coordinator_watch(conn);
  zps_json *result = zps_json_set_u64(zps_json_object(), "server", conn->client.server->index);
  result = zps_json_set_u64(result, "epoch", zps_members_epoch(coordinator->members));
  result = zps_json_set_u64(result, "heartbeat_ms", coordinator->config.heartbeat_ms);
  zps_rpc_reply(request, zps_json_set_u64(result, "dead_ms", coordinator->config.dead_ms));
}

static void server_drain(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request) {
  (void)params;
  unsigned jobs;
  struct zps_error error;
  if (zps_members_server_drain(conn->coordinator->members, &conn->client, &jobs, &error)) {
    refuse(request, &error);
  } else {
    zps_rpc_reply(request, zps_json_set_u64(zps_json_object(), "jobs", jobs));
  }
}

static void job_join(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request) {
  struct zps_join_spec spec = {.rack = zps_json_opt_str(params, "rack", "")};
  struct zps_net_info fabric;
  uint64_t world = 0, rank = 0, pid = 0;
  struct zps_error error;
  zps_err_t err = zps_json_get_str(params, "job", &spec.job, &error);
  if (!err) err = zps_json_get_str(params, "host", &spec.host, &error);
  if (!err) err = zps_json_get_u64(params, "world", 1, ZPS_WORLD_MAX, &world, &error);
  if (!err) err = zps_json_get_u64(params, "rank", 0, ZPS_WORLD_MAX - 1, &rank, &error);
  if (!err) err = zps_json_get_u64(params, "pid", 0, UINT32_MAX, &pid, &error);
  if (!err) err = zps_json_get_u64(params, "timeout_ms", 0, TIMEOUT_MAX_MS, &spec.timeout_ms, &error);
  if (!err) err = zps_fabric_from_json(params, &fabric, &error);
  spec.world = (uint32_t)world;
  spec.rank = (uint32_t)rank;
  spec.pid = (uint32_t)pid;
  spec.fabric = &fabric;
  if (!err) err = zps_members_join(conn->coordinator->members, &conn->client, &spec, request, zps_clock_ns(), &error);
  if (err) {
    zps_log_info("%s: join refused: %s", zps_rpc_conn_peer(conn->rpc), error.text);
    refuse(request, &error);
  }
}

static void job_leave(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request) {
  uint64_t job_id = 0;
  struct zps_error error;
  zps_err_t err = zps_json_get_hex(params, "job_id", &job_id, &error);
  if (!err) err = zps_members_leave(conn->coordinator->members, &conn->client, job_id, &error);
  if (err) {
    refuse(request, &error);
  } else {
    zps_rpc_reply(request, NULL);
  }
}

static void job_peers(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request) {
  const struct zps_member_job *job = conn->client.job;
  uint64_t job_id = 0;
  struct zps_error error;
  zps_err_t err = zps_json_get_hex(params, "job_id", &job_id, &error);
  if (!err) err = zps_members_running(job, job_id, &error);
  if (err) {
    refuse(request, &error);
    return;
  }
  zps_json *ranks = zps_json_array();
  for (uint32_t r = 0; r < job->world; r++) {
    const struct zps_member_rank *rank = job->ranks[r];
    zps_json *object = zps_json_set_str(zps_json_object(), "host", rank->host);
    object = zps_json_set_str(object, "rack", rank->rack);
    object = zps_json_set_bytes(object, "address", rank->fabric.addr, rank->fabric.addr_len);
    ranks = zps_json_append(ranks, object);
  }
  answer_table(request, zps_json_set(zps_json_object(), "ranks", ranks));
}

static void job_linked(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request) {
  uint64_t job_id = 0, timeout_ms = 0;
  struct zps_error error;
  zps_err_t err = zps_json_get_hex(params, "job_id", &job_id, &error);
  if (!err) err = zps_json_get_u64(params, "timeout_ms", 0, TIMEOUT_MAX_MS, &timeout_ms, &error);
  if (!err)
    err = zps_members_linked(conn->coordinator->members, &conn->client, job_id, timeout_ms, request, zps_clock_ns(),
                             &error);
  if (err) refuse(request, &error);
}

/* A name that may be left out, but must be a name. */
static zps_err_t get_choice(const zps_json *params, const char *key, const char *def, const char *choices,
                            const char **value_p, struct zps_error *error) {
  *value_p = def;
  if (!zps_json_get(params, key) || zps_json_get_str(params, key, value_p, NULL) == ZPS_OK) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_PROTOCOL, "member '%s' is no string (there are %s; %s when left out)", key, choices,
                  def);
}

static zps_err_t get_codecs(const zps_json *params, struct zps_tensor_spec *spec, struct zps_error *error) {
  const char *codec, *values;
  zps_err_t err = get_choice(params, "codec", "auto", "auto, paper and coo", &codec, error);
  if (!err && !zps_codec_policy_parse(codec, &spec->codec))
    err = zps_fail(error, ZPS_ERR_UNSUPPORTED, "no such codec: '%.40s' (there are auto, paper and coo)", codec);
  if (!err) err = get_choice(params, "values", "raw", ZPS_VALUES_NAMES, &values, error);
  if (!err && !zps_values_parse(values, &spec->value_codec))
    err = zps_fail(error, ZPS_ERR_UNSUPPORTED, "no such codec of values: '%.40s' (there are " ZPS_VALUES_NAMES ")",
                   values);
  if (!err && !zps_values_suit(spec->value_codec, spec->dtype))
    err = zps_fail(error, ZPS_ERR_UNSUPPORTED, "values of dtype %s do not travel as %s; use raw",
                   zps_dtype_name(spec->dtype), values);
  return err;
}

static zps_err_t get_kind(const zps_json *params, struct zps_tensor_spec *spec, struct zps_error *error) {
  const char *dtype, *op;
  zps_err_t err = zps_json_get_str(params, "dtype", &dtype, error);
  if (!err) err = zps_json_get_str(params, "op", &op, error);
  if (!err && !zps_dtype_parse(dtype, &spec->dtype))
    err = zps_fail(error, ZPS_ERR_UNSUPPORTED, "no such dtype: '%.40s' (there are f32, f64 and u8)", dtype);
  if (!err && !zps_op_parse(op, &spec->op))
    err = zps_fail(error, ZPS_ERR_UNSUPPORTED, "no such operation: '%.40s' (there are sum, mean, max and min)", op);
  return err ? err : get_codecs(params, spec, error);
}

/* The ranks that push a tensor, for the caller to free(); all of them where they are left out. */
static zps_err_t get_ranks(const zps_json *params, struct zps_tensor_spec *spec, uint32_t **ranks_p,
                           struct zps_error *error) {
  const zps_json *from;
  if (!zps_json_get(params, "ranks")) return ZPS_OK;
  zps_err_t err = zps_json_get_array(params, "ranks", &from, error);
  if (err) return err;
  const size_t n = zps_json_array_len(from);
  if (n == 0 || n > ZPS_WORLD_MAX)
    return zps_fail(error, ZPS_ERR_INVALID, "%zu ranks that push; 1 to %u can be", n, ZPS_WORLD_MAX);
  *ranks_p = calloc(n, sizeof **ranks_p);
  if (!*ranks_p) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for %zu ranks", n);
  for (size_t i = 0; i < n && !err; i++) {
    uint64_t rank = 0;
    err = zps_json_at_u64(from, i, ZPS_WORLD_MAX - 1, &rank, error);
    (*ranks_p)[i] = (uint32_t)rank;
  }
  spec->ranks = *ranks_p;
  spec->n_ranks = (uint32_t)n;
  return err;
}

static void tensor_register(struct zps_coordinator_conn *conn, const zps_json *params,
                            struct zps_rpc_request *request) {
  struct zps_tensor_spec spec = {.block_bits = UINT32_MAX};
  uint64_t width = 0, n_parts = 0;
  uint32_t *ranks = NULL;
  const char *name = "", *scheme = "balanced";
  struct zps_error error;
  zps_err_t err = zps_json_get_hex(params, "job_id", &spec.job_id, &error);
  if (!err) err = zps_json_get_str(params, "name", &name, &error);
  if (!err) err = zps_json_get_u64(params, "rows", 0, UINT64_MAX, &spec.rows, &error);
  if (!err) err = zps_json_get_u64(params, "width", 0, UINT32_MAX, &width, &error);
  if (!err) err = get_kind(params, &spec, &error);
  if (!err) err = zps_json_get_u64(params, "partitions", 0, UINT32_MAX, &n_parts, &error);
  if (!err) err = get_ranks(params, &spec, &ranks, &error);
  if (!err) err = get_choice(params, "scheme", "balanced", "the worker library's", &scheme, &error);
  if (!err && strlen(scheme) > ZPS_NAME_MAX)
    err = zps_fail(&error, ZPS_ERR_INVALID, "scheme of %zu bytes; %u is the most", strlen(scheme), ZPS_NAME_MAX);
  if (!err && strlen(name) > ZPS_NAME_MAX)
    err = zps_fail(&error, ZPS_ERR_INVALID, "tensor name of %zu bytes; %u is the most", strlen(name), ZPS_NAME_MAX);
  if (!err) {
    /* -1, the default, is no u64. */
    const uint64_t bits = zps_json_opt_u64(params, "block_bits", UINT32_MAX);
    spec.block_bits = bits > UINT32_MAX ? UINT32_MAX : (uint32_t)bits;
    spec.width = (uint32_t)width;
    spec.n_parts = (uint32_t)n_parts;
    strcpy(spec.name, name);
    strcpy(spec.scheme, scheme);
    err = zps_members_tensor_register(conn->coordinator->members, &conn->client, &spec, request, &error);
  }
  if (err) {
    zps_log_info("%s: tensor refused: %s", zps_rpc_conn_peer(conn->rpc), error.text);
    refuse(request, &error);
  }
  free(ranks);
}

#define COST_MAX_NS 1e9
#define CORES_MAX 65536.0

static double get_measure(const zps_json *params, const char *key) {
  const double value = zps_json_opt_real(params, key, 0);
  return isfinite(value) && value > 0 ? value : 0;
}

/* All of them or none: one that is left out would make computing free. */
static void get_costs(const zps_json *params, struct zps_plan_calibration *calibration) {
  const zps_json *costs = zps_json_get(params, "costs");
  if (!zps_json_is_object(costs)) return;
  struct zps_plan_calibration read;
  bool whole = true;
  zps_plan_calibration_default(&read);
#define READ(name)                       \
  read.name = get_measure(costs, #name); \
  whole = whole && read.name < COST_MAX_NS;
  ZPS_PLAN_COSTS(READ)
#undef READ
  whole = whole && read.encode_value_ns > 0 && read.reduce_value_ns > 0 && read.decode_value_ns > 0;
  if (whole) *calibration = read;
}

static zps_err_t get_told(const zps_json *params, struct zps_plan_told *told, struct zps_plan_sketch *sketch,
                          struct zps_error *error) {
  struct zps_plan_report *report = &told->report;
  const char *const scheme = zps_json_opt_str(params, "scheme", "balanced");
  *told = (struct zps_plan_told){.bandwidth = get_measure(params, "bandwidth"),
                                 .latency_s = get_measure(params, "latency_s"),
                                 .cores = (uint32_t)fmin(get_measure(params, "cores"), CORES_MAX),
                                 .lists = zps_json_opt_bool(params, "lists", false)};
  get_costs(params, &told->calibration);
  const char *const text = zps_json_opt_str(params, "sketch", NULL);
  if (text && !zps_plan_sketch_parse(text, sketch))
    return zps_fail(error, ZPS_ERR_PROTOCOL, "a sketch is a limit and ascending hashes below it, 16 digits each");
  sketch->skew = get_measure(params, "skew");
  if (text) told->sketch = sketch;
  if (!zps_plan_scheme_parse(scheme, &report->scheme))
    return zps_fail(error, ZPS_ERR_PROTOCOL, "there is no scheme '%.40s'", scheme);
  report->rounds = zps_json_opt_u64(params, "rounds", 0);
  report->rows = get_measure(params, "rows");
  report->union_rows = get_measure(params, "union_rows");
  report->round_s = get_measure(params, "round_s");
  report->waits = zps_json_opt_bool(params, "waits", false);
  return zps_json_get_hex(params, "step", &report->step, error);
}

/* A notification: its answer, if any, is one too. An error cannot be reported to the rank. */
static void tensor_report(struct zps_coordinator_conn *conn, const zps_json *params) {
  struct zps_plan_told told;
  struct zps_plan_sketch sketch;
  uint64_t job_id = 0, tensor = 0;
  struct zps_error error;
  zps_err_t err = zps_json_get_hex(params, "job_id", &job_id, &error);
  if (!err) err = zps_json_get_u64(params, "tensor", 0, UINT32_MAX, &tensor, &error);
  if (!err) err = get_told(params, &told, &sketch, &error);
  if (!err) err = zps_members_plan(conn->coordinator->members, &conn->client, job_id, (uint32_t)tensor, &told, &error);
  if (err) zps_log_info("%s: tensor.report is left out: %s", zps_rpc_conn_peer(conn->rpc), error.text);
}

static void job_memory(struct zps_coordinator_conn *conn, const zps_json *params) {
  uint64_t job_id = 0;
  struct zps_error error;
  zps_err_t err = zps_json_get_hex(params, "job_id", &job_id, &error);
  if (!err) err = zps_members_memory(&conn->client, job_id, zps_json_opt_str(params, "memory", ""), &error);
  if (err) zps_log_info("%s: job.memory is left out: %s", zps_rpc_conn_peer(conn->rpc), error.text);
}

/* A notification, as the two before. */
static void job_stats(struct zps_coordinator_conn *conn, const zps_json *params) {
  const uint64_t now_ns = zps_clock_ns();
  const zps_json *tensors = NULL;
  uint64_t job_id = 0;
  struct zps_error error;
  zps_err_t err = zps_json_get_hex(params, "job_id", &job_id, &error);
  if (!err) err = zps_json_get_array(params, "tensors", &tensors, &error);
  for (size_t i = 0; !err && i < zps_json_array_len(tensors); i++) {
    const zps_json *row = zps_json_at(tensors, i);
    uint64_t tensor = 0, done = 0;
    struct zps_tally growth;
    err = zps_json_get_u64(row, "tensor", 0, UINT32_MAX, &tensor, &error);
    if (!err) err = zps_json_get_u64(row, "done", 0, UINT64_MAX, &done, &error);
    if (!err) err = zps_tally_read(row, &growth, &error);
    if (!err) err = zps_members_tally(&conn->client, job_id, (uint32_t)tensor, done, &growth, now_ns, &error);
  }
  if (err) zps_log_info("%s: job.stats is left out: %s", zps_rpc_conn_peer(conn->rpc), error.text);
}

static void status(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request) {
  (void)params;
  answer_table(request, zps_coordinator_status(conn->coordinator));
}

static void members(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request) {
  (void)params;
  answer_table(request, zps_coordinator_members(conn->coordinator));
}

static void jobs(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request) {
  answer_table(request, zps_coordinator_jobs_table(conn->coordinator, zps_json_opt_bool(params, "all", false)));
}

static void tensors(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request) {
  (void)params;
  answer_table(request, zps_coordinator_tensors(conn->coordinator));
}

static void stats(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request) {
  (void)params;
  zps_coordinator_stats(conn->coordinator, request);
}

/* Of ranks. */
static const struct {
  const char *name;
  void (*run)(struct zps_coordinator_conn *conn, const zps_json *params);
} notifications[] = {{"tensor.report", tensor_report}, {"job.memory", job_memory}, {"job.stats", job_stats}};

#define ANY_ROLE (ZPS_CONN_SERVER | ZPS_CONN_WORKER | ZPS_CONN_CTL)
static const struct {
  const char *name;
  int roles;
  void (*run)(struct zps_coordinator_conn *conn, const zps_json *params, struct zps_rpc_request *request);
} methods[] = {
    {"server.register", ZPS_CONN_SERVER, server_register},
    {"server.drain", ZPS_CONN_SERVER, server_drain},
    {"job.join", ZPS_CONN_WORKER, job_join},
    {"job.leave", ZPS_CONN_WORKER, job_leave},
    {"job.peers", ZPS_CONN_WORKER, job_peers},
    {"job.linked", ZPS_CONN_WORKER, job_linked},
    {"tensor.register", ZPS_CONN_WORKER, tensor_register},
    {"status", ANY_ROLE, status},
    {"members", ANY_ROLE, members},
    {"jobs", ANY_ROLE, jobs},
    {"tensors", ANY_ROLE, tensors},
    {"stats", ANY_ROLE, stats},
};

void zps_coordinator_message(void *ctx, struct zps_rpc_conn *rpc, const char *method, const zps_json *params,
                             struct zps_rpc_request *request) {
  struct zps_coordinator *coordinator = ctx;
  struct zps_coordinator_conn *conn = zps_rpc_conn_ctx(rpc);
  if (!request) { /* heartbeats: they say only that the client lives */
    if (!conn || conn->role == ZPS_CONN_CTL) return;
    zps_coordinator_watch(conn);
    for (unsigned i = 0; conn->role == ZPS_CONN_WORKER && i < sizeof notifications / sizeof notifications[0]; i++) {
      if (strcmp(notifications[i].name, method) != 0) continue;
      zps_coordinator_enter(coordinator);
      notifications[i].run(conn, params);
      zps_coordinator_leave(coordinator);
    }
    return;
  }
  for (unsigned i = 0; conn && i < sizeof methods / sizeof methods[0]; i++) {
    if (strcmp(methods[i].name, method) != 0) continue;
    if (!(methods[i].roles & (int)conn->role)) {
      zps_rpc_reply_error(request, ZPS_ERR_REFUSED, "'%s' is not for role '%s'", method, zps_rpc_conn_role(rpc));
      return;
    }
    zps_coordinator_enter(coordinator);
    methods[i].run(conn, params, request);
    zps_coordinator_leave(coordinator);
    return;
  }
  zps_rpc_reply_error(request, ZPS_ERR_UNSUPPORTED, "the coordinator has no method '%.100s'", method);
}
