#define ZPS_LOG_COMPONENT "membership"
#include "worker/control/membership.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/codec/partition.h"

/* While the others are awaited, nobody has told us how often to say that we live. */
#define JOINING_HEARTBEAT_MS 1000u
#define LEAVE_TIMEOUT_MS 2000u

/* ------------------------------------------------------------ what the coordinator says unasked */

static void read_failure(const zps_json *params, struct zps_frame_abort *failure) {
  struct zps_error error;
  const zps_json *ranks = zps_json_get(params, "ranks");
  memset(failure, 0, sizeof *failure);
  failure->code = zps_err_from_name(zps_json_opt_str(params, "code", ""));
  if (failure->code == ZPS_OK) failure->code = ZPS_ERR_INTERNAL;
  snprintf(failure->text, sizeof failure->text, "%s", zps_json_opt_str(params, "text", "the job failed"));
  for (size_t i = 0; i < zps_json_array_len(ranks) && failure->n_ranks < ZPS_WIRE_RANKS_MAX; i++) {
    uint64_t rank;
    if (zps_json_at_u64(ranks, i, UINT32_MAX, &rank, &error) != ZPS_OK) break;
    failure->ranks[failure->n_ranks++] = (uint32_t)rank;
  }
}

static void on_notify(void *ctx, const char *method, const zps_json *params) {
  struct zps_membership *membership = ctx;
  if (strcmp(method, "job.failed") == 0) {
    struct zps_frame_abort failure;
    read_failure(params, &failure);
    membership->handler.on_failed(membership->handler.ctx, &failure);
  } else if (strcmp(method, "tensor.plan") == 0) {
    membership->handler.on_plan(membership->handler.ctx, params);
  } else if (strcmp(method, "rank.left") == 0) {
    const uint64_t rank = zps_json_opt_u64(params, "rank", UINT32_MAX);
    zps_log_info("rank %" PRIu64 " left the job", rank);
    membership->handler.on_rank_left(membership->handler.ctx, rank < UINT32_MAX ? (uint32_t)rank : UINT32_MAX);
  }
}

static void on_beat(void *ctx) {
  const struct zps_membership *membership = ctx;
  membership->handler.on_beat(membership->handler.ctx);
}

static void on_lost(void *ctx, const char *reason) {
  struct zps_membership *membership = ctx;
  if (atomic_exchange(&membership->lost, true)) return;
  zps_log_warn("lost the coordinator (%s): rounds go on, but no tensor can be opened any more", reason);
}

/* ------------------------------------------------------------ join */

static zps_json *fabric_object(const struct zps_net_info *fabric) {
  zps_json *object = zps_json_set_str(zps_json_object(), "provider", fabric->provider);
  object = zps_json_set_str(object, "protocol", fabric->protocol);
  object = zps_json_set_str(object, "addr_format", fabric->addr_format);
  object = zps_json_set_str(object, "domain", fabric->domain);
  object = zps_json_set_bytes(object, "address", fabric->addr, fabric->addr_len);
  return zps_json_set_str(object, "printable", fabric->address);
}

static zps_json *join_params(const struct zps_worker_options *options, const struct zps_net_info *fabric,
                             uint64_t timeout_ms) {
  char host[128] = "";
  if (options->host) {
    snprintf(host, sizeof host, "%s", options->host);
  } else if (gethostname(host, sizeof host) != 0) {
    host[0] = '\0';
  }
  host[sizeof host - 1] = '\0';
  zps_json *params = zps_json_set_str(zps_json_object(), "job", options->job);
  params = zps_json_set_u64(params, "world", options->world);
  params = zps_json_set_u64(params, "rank", options->rank);
  params = zps_json_set_str(params, "host", host);
  if (options->rack) params = zps_json_set_str(params, "rack", options->rack);
  params = zps_json_set_u64(params, "pid", (uint64_t)getpid());
  params = zps_json_set(params, "fabric", fabric_object(fabric));
  return zps_json_set_u64(params, "timeout_ms", timeout_ms);
}

static zps_err_t read_server(const zps_json *object, struct zps_join_server *server, struct zps_error *error) {
  const zps_json *fabric;
  zps_err_t err = zps_json_get_object(object, "fabric", &fabric, error);
  if (err == ZPS_OK) {
    err = zps_json_get_bytes(fabric, "address", server->addr, sizeof server->addr, &server->addr_len, error);
  }
  snprintf(server->name, sizeof server->name, "%s", zps_json_opt_str(object, "name", "?"));
  return err;
}

static zps_err_t read_join(const zps_json *result, struct zps_join *join, struct zps_error *error) {
  const zps_json *servers;
  uint64_t epoch = 0;
  zps_err_t err = zps_json_get_hex(result, "job_id", &join->job_id, error);
  if (err == ZPS_OK) err = zps_json_get_hex(result, "seed", &join->seed, error);
  if (err == ZPS_OK) err = zps_json_get_u64(result, "epoch", 0, UINT32_MAX, &epoch, error);
  if (err == ZPS_OK) err = zps_json_get_u64(result, "heartbeat_ms", 1, 3600000, &join->heartbeat_ms, error);
  if (err == ZPS_OK) err = zps_json_get_u64(result, "dead_ms", 1, 3600000, &join->dead_ms, error);
  if (err == ZPS_OK) err = zps_json_get_array(result, "servers", &servers, error);
  if (err != ZPS_OK) return err;
  const size_t n_servers = zps_json_array_len(servers);
  if (n_servers < 1 || n_servers > ZPS_JOIN_SERVERS_MAX) {
    return zps_fail(error, ZPS_ERR_PROTOCOL, "the coordinator names %zu servers; 1 to %u can be", n_servers,
                    ZPS_JOIN_SERVERS_MAX);
  }
  join->servers = calloc(n_servers, sizeof *join->servers);
  if (!join->servers) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for %zu servers", n_servers);
  join->epoch = (uint32_t)epoch;
  join->n_servers = (uint32_t)n_servers;
  for (size_t i = 0; i < n_servers && err == ZPS_OK; i++) {
    err = read_server(zps_json_at(servers, i), &join->servers[i], error);
  }
  return err;
}

static uint64_t left_ms(uint64_t deadline_ns) {
  const uint64_t now_ns = zps_clock_ns();
  return now_ns < deadline_ns ? (deadline_ns - now_ns) / ZPS_NS_PER_MS + 1 : 1;
}

/* The coordinator's deadline is a little before ours: it knows who is missing, we do not. */
static uint64_t with_margin(uint64_t timeout_ms) {
  return timeout_ms - (timeout_ms / 4 < 1000 ? timeout_ms / 4 : 1000);
}

zps_err_t zps_membership_open(struct zps_membership *membership, const struct zps_worker_options *options,
                              const struct zps_net_info *fabric, const struct zps_membership_handler *handler,
                              struct zps_join *join, struct zps_error *error) {
  const uint64_t deadline_ns = zps_clock_ns() + options->join_timeout_ms * ZPS_NS_PER_MS;
  const struct zps_client_handler client_handler = {
      .ctx = membership, .on_notify = on_notify, .on_lost = on_lost, .on_beat = on_beat};
  zps_json *result = NULL;
  membership->handler = *handler;
  zps_err_t err = zps_client_open(options->coordinator, "worker", options->join_timeout_ms, &client_handler,
                                  &membership->client, error);
  if (err != ZPS_OK) return err;
  zps_client_heartbeat(membership->client, JOINING_HEARTBEAT_MS, options->join_timeout_ms);
  const uint64_t timeout_ms = left_ms(deadline_ns);
  err = zps_client_call(membership->client, "job.join", join_params(options, fabric, with_margin(timeout_ms)),
                        timeout_ms, &result, error);
  if (err == ZPS_OK) err = read_join(result, join, error);
  zps_json_unref(result);
  if (err != ZPS_OK) return err;
  membership->job_id = join->job_id;
  zps_client_heartbeat(membership->client, join->heartbeat_ms, join->dead_ms);
  return ZPS_OK;
}

void zps_join_fini(struct zps_join *join) {
  free(join->servers);
  memset(join, 0, sizeof *join);
}

/* ------------------------------------------------------------ tensors */

static zps_err_t read_owners(const zps_json *owners, uint32_t n_servers, struct zps_tensor_answer *answer,
                             struct zps_error *error) {
  if (zps_json_array_len(owners) != answer->partitions) {
    return zps_fail(error, ZPS_ERR_PROTOCOL, "the coordinator names %zu owners of %" PRIu32 " partitions",
                    zps_json_array_len(owners), answer->partitions);
  }
  answer->owners = calloc(answer->partitions, sizeof *answer->owners);
  if (!answer->owners)
    return zps_fail(error, ZPS_ERR_NOMEM, "no memory for %" PRIu32 " partitions", answer->partitions);
  for (uint32_t p = 0; p < answer->partitions; p++) {
    uint64_t owner;
    const zps_err_t err = zps_json_at_u64(owners, p, n_servers - 1, &owner, error);
    if (err != ZPS_OK) {
      free(answer->owners);
      answer->owners = NULL;
      return err;
    }
    answer->owners[p] = (uint32_t)owner;
  }
  return ZPS_OK;
}

static zps_err_t read_answer(const zps_json *result, uint32_t n_servers, struct zps_tensor_answer *answer,
                             struct zps_error *error) {
  const zps_json *owners;
  uint64_t id = 0, partitions = 0, block_bits = 0;
  zps_err_t err = zps_json_get_u64(result, "tensor", 0, UINT32_MAX, &id, error);
  if (err == ZPS_OK) err = zps_json_get_u64(result, "partitions", 1, ZPS_PARTITION_PARTS_MAX, &partitions, error);
  if (err == ZPS_OK) err = zps_json_get_u64(result, "block_bits", 0, ZPS_PARTITION_BLOCK_BITS_MAX, &block_bits, error);
  if (err == ZPS_OK) err = zps_json_get_array(result, "owners", &owners, error);
  if (err != ZPS_OK) return err;
  answer->id = (uint32_t)id;
  answer->partitions = (uint32_t)partitions;
  answer->block_bits = (uint32_t)block_bits;
  return read_owners(owners, n_servers, answer, error);
}

zps_err_t zps_membership_register(struct zps_membership *membership, const struct zps_tensor_ask *ask,
                                  uint32_t n_servers, uint64_t timeout_ms, struct zps_tensor_answer *answer,
                                  struct zps_error *error) {
  if (membership->lost) {
    return zps_fail(error, ZPS_ERR_CONNECT, "tensor %s cannot be opened: the coordinator was lost", ask->name);
  }
  zps_json *params = zps_json_set_hex(zps_json_object(), "job_id", membership->job_id);
  params = zps_json_set_str(params, "name", ask->name);
  params = zps_json_set_u64(params, "rows", ask->rows);
  params = zps_json_set_u64(params, "width", ask->width);
  params = zps_json_set_str(params, "dtype", zps_dtype_name(ask->dtype));
  params = zps_json_set_str(params, "op", zps_op_name(ask->op));
  params = zps_json_set_u64(params, "partitions", ask->partitions);
  params = zps_json_set_str(params, "codec", zps_codec_policy_name(ask->codec));
  params = zps_json_set_str(params, "values", zps_values_name(ask->value_codec));
  params = zps_json_set_str(params, "scheme", ask->scheme);
  if (ask->n_ranks > 0) {
    zps_json *ranks = zps_json_array();
    for (uint32_t i = 0; i < ask->n_ranks; i++) ranks = zps_json_append_u64(ranks, ask->ranks[i]);
    params = zps_json_set(params, "ranks", ranks);
  }
  if (ask->block_bits >= 0) params = zps_json_set_u64(params, "block_bits", (uint64_t)ask->block_bits);
  zps_json *result = NULL;
  zps_err_t err = zps_client_call(membership->client, "tensor.register", params, timeout_ms, &result, error);
  if (err == ZPS_OK) err = read_answer(result, n_servers, answer, error);
  zps_json_unref(result);
  return err;
}

/* ------------------------------------------------------------ links to the other ranks */

static zps_err_t read_peer(const zps_json *object, struct zps_join_peer *peer, struct zps_error *error) {
  snprintf(peer->host, sizeof peer->host, "%s", zps_json_opt_str(object, "host", "?"));
  snprintf(peer->rack, sizeof peer->rack, "%s", zps_json_opt_str(object, "rack", ""));
  return zps_json_get_bytes(object, "address", peer->addr, sizeof peer->addr, &peer->addr_len, error);
}

static zps_err_t read_peers(const zps_json *result, uint32_t world, struct zps_join_peers *peers,
                            struct zps_error *error) {
  const zps_json *ranks;
  zps_err_t err = zps_json_get_array(result, "ranks", &ranks, error);
  if (err != ZPS_OK) return err;
  if (zps_json_array_len(ranks) != world) {
    return zps_fail(error, ZPS_ERR_PROTOCOL, "the coordinator names %zu ranks of a job of %" PRIu32,
                    zps_json_array_len(ranks), world);
  }
  peers->ranks = calloc(world, sizeof *peers->ranks);
  if (!peers->ranks) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for the addresses of %" PRIu32 " ranks", world);
  peers->world = world;
  for (uint32_t r = 0; r < world && err == ZPS_OK; r++) {
    err = read_peer(zps_json_at(ranks, r), &peers->ranks[r], error);
  }
  if (err != ZPS_OK) zps_join_peers_fini(peers);
  return err;
}

zps_err_t zps_membership_peers(struct zps_membership *membership, uint32_t world, uint64_t timeout_ms,
                               struct zps_join_peers *peers, struct zps_error *error) {
  zps_json *result = NULL;
  zps_json *params = zps_json_set_hex(zps_json_object(), "job_id", membership->job_id);
  zps_err_t err = zps_client_call(membership->client, "job.peers", params, timeout_ms, &result, error);
  if (err == ZPS_OK) err = read_peers(result, world, peers, error);
  zps_json_unref(result);
  return err;
}

void zps_join_peers_fini(struct zps_join_peers *peers) {
  free(peers->ranks);
  *peers = (struct zps_join_peers){0};
}

zps_err_t zps_membership_linked(struct zps_membership *membership, uint64_t timeout_ms, struct zps_error *error) {
  zps_json *params = zps_json_set_hex(zps_json_object(), "job_id", membership->job_id);
  params = zps_json_set_u64(params, "timeout_ms", with_margin(timeout_ms));
  return zps_client_call(membership->client, "job.linked", params, timeout_ms, NULL, error);
}

/* ------------------------------------------------------------ schemes */

static zps_json *costs_of(const struct zps_plan_calibration *calibration) {
  zps_json *costs = zps_json_object();
#define WRITE(name) costs = zps_json_set_real(costs, #name, calibration->name);
  ZPS_PLAN_COSTS(WRITE)
#undef WRITE
  return costs;
}

zps_err_t zps_membership_report(struct zps_membership *membership, uint32_t tensor, const struct zps_plan_told *told) {
  const struct zps_plan_report *report = &told->report;
  zps_json *params = zps_json_set_hex(zps_json_object(), "job_id", membership->job_id);
  params = zps_json_set_u64(params, "tensor", tensor);
  params = zps_json_set_hex(params, "step", report->step);
  params = zps_json_set_str(params, "scheme", zps_plan_scheme_name(report->scheme));
  params = zps_json_set_u64(params, "rounds", report->rounds);
  params = zps_json_set_real(params, "rows", report->rows);
  params = zps_json_set_real(params, "union_rows", report->union_rows);
  if (report->waits) params = zps_json_set_bool(params, "waits", true);
  if (report->round_s > 0) params = zps_json_set_real(params, "round_s", report->round_s);
  if (told->bandwidth > 0) params = zps_json_set_real(params, "bandwidth", told->bandwidth);
  if (told->latency_s > 0) params = zps_json_set_real(params, "latency_s", told->latency_s);
  if (told->cores > 0) params = zps_json_set_u64(params, "cores", told->cores);
  if (told->lists) params = zps_json_set_bool(params, "lists", true);
  if (told->calibration.encode_value_ns > 0) params = zps_json_set(params, "costs", costs_of(&told->calibration));
  if (told->sketch) {
    char text[ZPS_PLAN_SKETCH_TEXT + 1];
    zps_plan_sketch_print(told->sketch, text);
    params = zps_json_set_str(params, "sketch", text);
    if (told->sketch->skew > 0) params = zps_json_set_real(params, "skew", told->sketch->skew);
  }
  return params ? zps_client_notify(membership->client, "tensor.report", params) : ZPS_ERR_NOMEM;
}

/* ------------------------------------------------------------ rounds */

zps_err_t zps_membership_stats(struct zps_membership *membership, zps_json *tensors) {
  zps_json *params = zps_json_set_hex(zps_json_object(), "job_id", membership->job_id);
  params = zps_json_set(params, "tensors", tensors);
  return params ? zps_client_notify(membership->client, "job.stats", params) : ZPS_ERR_NOMEM;
}

/* ------------------------------------------------------------ memory */

void zps_membership_memory(struct zps_membership *membership, const char *memory) {
  if (membership->lost) return;
  zps_json *params = zps_json_set_hex(zps_json_object(), "job_id", membership->job_id);
  params = zps_json_set_str(params, "memory", memory);
  if (!params || zps_client_notify(membership->client, "job.memory", params) != ZPS_OK)
    zps_log_info("the coordinator was not told of memory %s", memory);
}

/* ------------------------------------------------------------ leave */

void zps_membership_leave(struct zps_membership *membership) {
  struct zps_error error;
  if (!membership->client || membership->job_id == 0 || membership->lost) return;
  zps_json *params = zps_json_set_hex(zps_json_object(), "job_id", membership->job_id);
  if (zps_client_call(membership->client, "job.leave", params, LEAVE_TIMEOUT_MS, NULL, &error) != ZPS_OK) {
    zps_log_info("the coordinator did not take our leave: %s", error.text);
  }
}

void zps_membership_close(struct zps_membership *membership) {
  zps_client_close(membership->client);
  membership->client = NULL;
}
