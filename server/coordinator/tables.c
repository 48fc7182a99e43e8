/* The admin's tables. Each is an object of arrays of flat rows; a table that would outgrow a line is cut, and says so
 * in "left_out". */
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "common/base/bundle.h"
#include "common/base/clock.h"
#include "common/base/version.h"
#include "config.h"
#include "proto/control_stats.h"
#include "server/coordinator/coordinator_impl.h"
#include "server/membership/history.h"

#define FRESH_MS 3000u /* A rank repeats its report of old rounds with each heartbeat. */
#define FRESH_BEATS 3u

static double seconds_since(uint64_t then_ns) {
  return (double)((zps_clock_ns() - then_ns) / ZPS_NS_PER_MS) / 1000;
}

static zps_json *job_row(const char *name, uint64_t job_id) {
  return zps_json_set_hex(zps_json_set_str(zps_json_object(), "job", name), "job_id", job_id);
}

static zps_json *tensor_row(const struct zps_member_job *job, const struct zps_tensor_spec *spec) {
  zps_json *row = zps_json_set_u64(job_row(job->name, job->job_id), "tensor", spec->tensor);
  row = zps_json_set_str(row, "name", spec->name);
  return spec->group[0] ? zps_json_set_str(row, "group", spec->group) : row;
}

static zps_json *set_certificate(zps_json *row, long long ends_s) {
  return ends_s > 0 ? zps_json_set_u64(row, "certificate_ends", (uint64_t)ends_s) : row;
}

/* What the connection of a member tells of it. */
static zps_json *set_conn(zps_json *row, const struct zps_member_client *client) {
  const struct zps_coordinator_conn *conn = (const struct zps_coordinator_conn *)client;
  if (conn && conn->rpc) {
    row = zps_json_set_str(row, "version", zps_rpc_conn_version(conn->rpc));
    row = set_certificate(row, zps_rpc_conn_certificate_ends_s(conn->rpc));
  }
  if (conn && conn->clock.at_ns) {
    row = zps_json_set_real(row, "clock_ms", conn->clock.ms);
    row = zps_json_set_real(row, "clock_error_ms", conn->clock.error_ms);
  }
  const uint64_t now_ns = zps_clock_ns(), heard_ns = conn && conn->rpc ? zps_rpc_conn_heard_ns(conn->rpc) : now_ns;
  return zps_json_set_u64(row, "silent_ms", now_ns > heard_ns ? (now_ns - heard_ns) / ZPS_NS_PER_MS : 0);
}

static zps_json *left_out(zps_json *table, unsigned long n) {
  return n ? zps_json_set_u64(table, "left_out", n) : table;
}

/* What will stop the coordinator unless somebody acts; of its files administrators alone are told. */
static zps_json *set_outlook(zps_json *row, const struct zps_coordinator *coordinator,
                             const struct zps_viewer *viewer) {
  struct statvfs disk;
  if (coordinator->config.tls) row = set_certificate(row, zps_tls_ends_s(coordinator->config.tls));
  if (!coordinator->state_dir || !viewer->sees_all || statvfs(coordinator->state_dir, &disk) < 0) return row;
  row = zps_json_set_str(row, "state_dir", coordinator->state_dir);
  row = zps_json_set_u64(row, "state_size_bytes", (uint64_t)disk.f_blocks * disk.f_frsize);
  return zps_json_set_u64(row, "state_free_bytes", (uint64_t)disk.f_bavail * disk.f_frsize);
}

zps_json *zps_coordinator_status(const struct zps_coordinator *coordinator, const struct zps_viewer *viewer) {
  const struct zps_members *members = coordinator->members;
  unsigned draining = 0;
  uint64_t jobs = 0, ranks = 0, tensors = 0;
  for (unsigned i = 0; i < zps_members_servers(members); i++) draining += zps_members_server(members, i)->draining;
  for (const struct zps_member_job *job = zps_viewer_job_first(viewer, members); job;
       job = zps_viewer_job_next(viewer, job)) {
    jobs++;
    ranks += job->n_joined;
    tensors += job->n_tensors;
  }
  zps_json *row = zps_json_set_str(zps_json_object(), "address", zps_rpc_listener_address(coordinator->listener));
  row = zps_json_set_str(row, "state", coordinator->draining ? "draining" : "running");
  row = zps_json_set_str(row, "version", PACKAGE_VERSION);
  row = zps_json_set_u64(row, "protocol", ZPS_PROTOCOL_VERSION);
  row = zps_json_set_u64(row, "pid", (uint64_t)getpid());
  row = zps_json_set_real(row, "uptime_s", seconds_since(coordinator->started_ns));
  row = zps_json_set_u64(row, "epoch", zps_members_epoch(members));
  row = zps_json_set_u64(row, "servers", zps_members_servers(members));
  row = zps_json_set_u64(row, "servers_draining", draining);
  row = zps_json_set_u64(row, "jobs", jobs);
  row = zps_json_set_u64(row, "ranks", ranks);
  row = zps_json_set_u64(row, "tensors", tensors);
  row = set_outlook(row, coordinator, viewer);
  return zps_json_set(zps_json_object(), "coordinator", zps_json_append(zps_json_array(), row));
}

static zps_json *set_place(zps_json *row, const char *host, uint32_t pid, const struct zps_net_info *fabric) {
  row = zps_json_set_str(row, "host", host);
  row = zps_json_set_u64(row, "pid", pid);
  row = zps_json_set_str(row, "provider", fabric->provider);
  row = zps_json_set_str(row, "keys", fabric->weak_keys ? "weak" : "random");
  row = zps_json_set_u64(row, "rails", zps_bundle_count(fabric->addr, fabric->addr_len));
  return zps_json_set_str(row, "address", fabric->address);
}

static const char *server_state(const struct zps_member_server *server) {
  if (!server->client) return "away";
  if (server->stops) return "stopping";
  return server->draining ? "draining" : "in";
}

static zps_json *server_row(const struct zps_member_server *server) {
  zps_json *row = zps_json_set_u64(zps_json_object(), "server", server->index);
  row = zps_json_set_str(row, "name", server->name);
  row = zps_json_set_str(row, "state", server_state(server));
  row = set_place(row, server->host, server->pid, &server->fabric);
  return zps_json_set_u64(row, "jobs", server->n_jobs);
}

zps_json *zps_coordinator_drained(const struct zps_coordinator *coordinator, const struct zps_member_server *server) {
  zps_json *jobs = zps_json_array();
  for (const struct zps_member_job *job = zps_members_job_first(coordinator->members); job; job = job->next) {
    struct zps_error why = {.text = ""};
    if (!zps_member_job_has(job, server)) continue;
    const bool leaves = !zps_member_job_holds(job, server) || !zps_members_stays(coordinator->members, job, &why);
    zps_json *row = job_row(job->name, job->job_id);
    row = zps_json_set_str(row, "outcome", leaves ? "leaves" : "stays");
    jobs = zps_json_append(jobs, zps_json_set_str(row, "reason", leaves ? "" : why.text));
  }
  zps_json *servers = zps_json_append(zps_json_array(), server_row(server));
  return zps_json_set(zps_json_set(zps_json_object(), "servers", servers), "jobs", jobs);
}

zps_json *zps_coordinator_undrained(const struct zps_member_server *server) {
  return zps_json_set(zps_json_object(), "servers", zps_json_append(zps_json_array(), server_row(server)));
}

static void add_rebalanced(void *ctx, const struct zps_member_job *job, const struct zps_member_rebalanced *said) {
  zps_json **rows_p = ctx;
  zps_json *row = job_row(job->name, job->job_id);
  row = zps_json_set_str(row, "outcome", zps_rebalance_name(said->outcome));
  row = zps_json_set_u64(row, "servers", said->n_servers);
  row = zps_json_set_u64(row, "partitions", said->n_parts);
  *rows_p = zps_json_append(*rows_p, zps_json_set_str(row, "reason", said->why));
}

zps_err_t zps_coordinator_rebalance(struct zps_coordinator *coordinator, const char *job, zps_json **table_p,
                                    struct zps_error *error) {
  zps_json *rows = zps_json_array();
  const zps_err_t err = zps_members_rebalance(coordinator->members, job, add_rebalanced, &rows, error);
  if (err)
    zps_json_unref(rows);
  else
    *table_p = zps_json_set(zps_json_object(), "jobs", rows);
  return err;
}

zps_json *zps_coordinator_kicked(const struct zps_member_kicked *kicked) {
  zps_json *row = job_row(kicked->job, kicked->job_id);
  row = zps_json_set_u64(row, "rank", kicked->rank);
  row = zps_json_set_str(row, "host", kicked->host);
  row = zps_json_set_u64(row, "pid", kicked->pid);
  row = zps_json_set_str(row, "job_state", kicked->job_state);
  return zps_json_set(zps_json_object(), "ranks", zps_json_append(zps_json_array(), row));
}

/* One row per server that had to leave a job and has no place in it again; nothing where there is none. */
static zps_json *set_unreachable(zps_json *table, const struct zps_members *members, const struct zps_viewer *viewer,
                                 struct zps_room *room) {
  zps_json *rows = zps_json_array();
  for (const struct zps_member_job *job = zps_viewer_job_first(viewer, members); job;
       job = zps_viewer_job_next(viewer, job)) {
    for (unsigned i = 0; i < zps_members_servers(members); i++) {
      const struct zps_member_server *const server = zps_members_server(members, i);
      const struct zps_member_cutoff *const cutoff = zps_member_job_cutoff(job, server);
      if (!cutoff || !zps_room_has(room, 1)) continue;
      const uint64_t now_ns = zps_clock_ns(), pause_ns = cutoff->again_ns > now_ns ? cutoff->again_ns - now_ns : 0;
      zps_json *row = job_row(job->name, job->job_id);
      row = zps_json_set_u64(row, "server", server->index);
      row = zps_json_set_str(row, "name", server->name);
      row = zps_json_set_u64(row, "rank", cutoff->rank);
      row = zps_json_set_u64(row, "ranks", cutoff->n_ranks);
      row = zps_json_set_real(row, "out_s", seconds_since(cutoff->out_ns));
      row = zps_json_set_real(row, "again_s", (double)(pause_ns / ZPS_NS_PER_MS) / 1000);
      rows = zps_room_add(room, 1, rows, zps_json_set_str(row, "reason", cutoff->why));
    }
  }
  if (zps_json_array_len(rows) > 0) return zps_json_set(table, "unreachable", rows);
  zps_json_unref(rows);
  return table;
}

zps_json *zps_coordinator_members(const struct zps_coordinator *coordinator, const struct zps_viewer *viewer) {
  const struct zps_members *members = coordinator->members;
  struct zps_room room = {.left_bytes = ZPS_ROOM_BYTES};
  zps_json *servers = zps_json_array(), *ranks = zps_json_array();
  for (unsigned i = 0; i < zps_members_servers(members); i++) {
    const struct zps_member_server *server = zps_members_server(members, i);
    if (zps_viewer_sees_server(viewer, members, server) && zps_room_has(&room, 2))
      servers = zps_room_add(&room, 2, servers, set_conn(server_row(server), server->client));
  }
  zps_json *const table = set_unreachable(zps_json_set(zps_json_object(), "servers", servers), members, viewer, &room);
  for (const struct zps_member_job *job = zps_viewer_job_first(viewer, members); job;
       job = zps_viewer_job_next(viewer, job)) {
    for (uint32_t r = 0; r < job->world; r++) {
      const struct zps_member_rank *rank = job->ranks[r];
      if (!rank || !zps_room_has(&room, 0)) continue;
      zps_json *row = job_row(job->name, job->job_id);
      row = zps_json_set_u64(row, "rank", r);
      const bool is_away = rank->state == ZPS_RANK_IN && !rank->client;
      row = zps_json_set_str(row, "state", is_away ? "away" : zps_rank_state_name(rank->state));
      row = set_place(row, rank->host, rank->pid, &rank->fabric);
      row = zps_json_set_str(row, "memory", rank->memory);
      ranks = zps_room_add(&room, 0, ranks, set_conn(row, rank->client));
    }
  }
  return left_out(zps_json_set(table, "ranks", ranks), room.n_out);
}

/* "2024-06-01T03:00:12Z" */
static zps_json *set_time(zps_json *row, const char *key, uint64_t utc_ms) {
  const time_t at = (time_t)(utc_ms / 1000);
  struct tm parts;
  char text[32] = "";
  if (gmtime_r(&at, &parts)) strftime(text, sizeof text, "%FT%TZ", &parts);
  return zps_json_set_str(row, key, text);
}

static zps_json *ended_row(const struct zps_history_record *record) {
  zps_json *row = job_row(record->name, record->job_id);
  row = zps_json_set_str(row, "state", record->cause.code ? "failed" : "left");
  row = zps_json_set_u64(row, "world", record->world);
  row = zps_json_set_u64(row, "left", record->n_left);
  row = zps_json_set_u64(row, "lost", record->n_lost);
  row = zps_json_set_u64(row, "servers", record->n_servers);
  row = zps_json_set_u64(row, "places", record->n_places);
  row = zps_json_set_u64(row, "servers_lost", record->n_servers_lost);
  row = zps_json_set_str(row, "lost_servers", record->lost_servers);
  row = zps_json_set_u64(row, "tensors", record->n_tensors);
  row = zps_json_set_u64(row, "epoch", record->epoch);
  row = zps_json_set_u64(row, "rounds", record->rounds);
  row = zps_json_set_u64(row, "bytes_out", record->bytes_out);
  row = zps_json_set_u64(row, "bytes_in", record->bytes_in);
  row = zps_json_set_real(row, "ran_s", (double)record->ran_ms / 1000);
  if (record->started_ms) row = set_time(row, "started_at", record->started_ms);
  row = set_time(row, "ended_at", record->ended_ms);
  row = zps_json_set_str(row, "code", record->cause.code ? zps_err_name(record->cause.code) : "");
  return zps_json_set_str(row, "failure", record->cause.text);
}

static zps_json *set_ended(zps_json *table, const struct zps_history *history, const struct zps_viewer *viewer,
                           struct zps_room *room) {
  zps_json *rows = zps_json_array();
  const unsigned n = zps_history_len(history);
  for (unsigned i = 0; i < n; i++) {
    const struct zps_history_record *const record = zps_history_at(history, i);
    if ((viewer->sees_all || zps_origin_is(&record->origin, &viewer->origin)) && zps_room_has(room, 0))
      rows = zps_room_add(room, 0, rows, ended_row(record));
  }
  room->n_out += viewer->sees_all ? (unsigned long)(history->n - n) : 0;
  return zps_json_set(table, "ended", rows);
}

zps_json *zps_coordinator_jobs_table(const struct zps_coordinator *coordinator, const struct zps_viewer *viewer) {
  struct zps_room room = {.left_bytes = ZPS_ROOM_BYTES};
  zps_json *rows = zps_json_array();
  for (const struct zps_member_job *job = zps_viewer_job_first(viewer, coordinator->members); job;
       job = zps_viewer_job_next(viewer, job)) {
    if (!zps_room_has(&room, 1)) continue;
    zps_json *row = job_row(job->name, job->job_id);
    row = zps_json_set_str(row, "state", zps_job_state_name(job->state));
    row = zps_json_set_u64(row, "world", job->world);
    row = zps_json_set_u64(row, "joined", job->n_joined);
    row = zps_json_set_u64(row, "left", job->n_left);
    row = zps_json_set_u64(row, "lost", job->n_lost);
    row = zps_json_set_u64(row, "servers", job->view.n_first);
    row = zps_json_set_u64(row, "places", job->view.n_places);
    row = zps_json_set_u64(row, "servers_in", zps_member_job_servers_in(job));
    row = zps_json_set_u64(row, "servers_lost", zps_member_job_servers_lost(job));
    row = zps_json_set_bool(row, "moving", zps_member_job_moves(job));
    row = zps_json_set_str(row, "lost_servers", job->lost_servers);
    row = zps_json_set_u64(row, "tensors", job->n_tensors);
    row = zps_json_set_u64(row, "epoch", job->view.epoch);
    row = zps_json_set_u64(row, "generation", job->generation.number);
    row = zps_json_set_u64(row, "weight", job->weight);
    row = zps_json_set_u64(row, "rounds", zps_member_job_tally(job).rounds);
    row = zps_json_set_real(row, "age_s", (double)(zps_member_job_age_ns(job, zps_clock_ns()) / ZPS_NS_PER_MS) / 1000);
    if (job->started_ms) row = set_time(row, "started_at", job->started_ms);
    const struct zps_error *const cause = zps_member_job_cause(job);
    const bool has_cause = cause->code && job->state >= ZPS_JOB_RUNNING;
    row = zps_json_set_str(row, "code", has_cause ? zps_err_name(cause->code) : "");
    rows = zps_room_add(&room, 1, rows, zps_json_set_str(row, "failure", has_cause ? cause->text : ""));
  }
  zps_json *table = zps_json_set(zps_json_object(), "jobs", rows);
  if (viewer->wants_ended) table = set_ended(table, zps_members_history(coordinator->members), viewer, &room);
  return left_out(table, room.n_out);
}

static const char *tensor_state(const struct zps_member_tensor *tensor) {
  static const char *const names[] = {
      [ZPS_TENSOR_OPENING] = "opening", [ZPS_TENSOR_OPEN] = "open", [ZPS_TENSOR_FAILED] = "failed"};
  return names[tensor->state];
}

/* The choice of "auto", and the schemes that it does not try. */
static zps_json *set_plan(zps_json *row, const struct zps_member_plan *plan) {
  const unsigned left_out = zps_member_plan_left_out(plan);
  zps_json *names = zps_json_array();
  row = zps_json_set_str(row, "planned", zps_plan_scheme_name(zps_member_plan_scheme(plan)));
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++)
    if (left_out >> i & 1) names = zps_json_append_str(names, zps_plan_scheme_name((enum zps_plan_scheme)i));
  return zps_json_set(row, "too_slow", names);
}

zps_json *zps_coordinator_tensors(const struct zps_coordinator *coordinator, const struct zps_viewer *viewer) {
  struct zps_room room = {.left_bytes = ZPS_ROOM_BYTES};
  zps_json *rows = zps_json_array();
  for (const struct zps_member_job *job = zps_viewer_job_first(viewer, coordinator->members); job;
       job = zps_viewer_job_next(viewer, job)) {
    for (uint32_t i = 0; i < job->n_tensors; i++) {
      const struct zps_tensor_spec *spec = &job->tensors[i]->spec;
      char scheme[ZPS_SCHEME_TEXT_MAX + 1];
      if (!zps_room_has(&room, 0)) continue;
      zps_json *row = tensor_row(job, spec);
      row = zps_json_set_str(row, "state", tensor_state(job->tensors[i]));
      row = zps_json_set_u64(row, "rows", spec->rows);
      row = zps_json_set_u64(row, "width", spec->width);
      row = zps_json_set_str(row, "dtype", zps_dtype_name(spec->dtype));
      row = zps_json_set_str(row, "op", zps_op_name(spec->op));
      row = zps_json_set_u64(row, "partitions", spec->n_parts);
      row = zps_json_set_u64(row, "block_bits", spec->block_bits);
      row = zps_json_set_str(row, "codec", zps_codec_policy_name(spec->codec));
      row = zps_json_set_str(row, "values", zps_values_name(spec->value_codec));
      row = zps_json_set_str(row, "scheme", zps_scheme_spec_text(&spec->scheme, scheme));
      if (job->tensors[i]->plan) row = set_plan(row, job->tensors[i]->plan);
      row = zps_json_set_u64(row, "servers", job->view.n_first);
      rows = zps_room_add(&room, 0, rows, zps_json_set_u64(row, "first_rank", job->tensors[i]->first_rank));
    }
  }
  return left_out(zps_json_set(zps_json_object(), "tensors", rows), room.n_out);
}

/* ------------------------------------------------------------ rows of `stats` from reports of ranks */

static zps_json *set_reported(zps_json *row, uint64_t reported_ns) {
  return reported_ns ? zps_json_set_real(row, "told_s", seconds_since(reported_ns)) : row;
}

static zps_json *tensor_tally(const struct zps_member_job *job, const struct zps_member_tensor *tensor) {
  const struct zps_tensor_spec *spec = &tensor->spec;
  zps_json *row = tensor_row(job, spec);
  row = zps_json_set_u64(row, "rows", spec->rows);
  row = zps_json_set_u64(row, "width", spec->width);
  row = zps_json_set_u64(row, "value_bytes", zps_dtype_size(spec->dtype));
  row = zps_json_set_u64(row, "world", spec->group[0] ? spec->n_ranks : job->world);
  row = zps_json_set_real(row, "age_s", tensor->opened_ns ? seconds_since(tensor->opened_ns) : 0);
  row = zps_control_tally_write(row, &tensor->tally);
  row = zps_json_set_u64(row, "rank_rounds", tensor->tally.rounds);
  row = zps_json_set_u64(row, "rounds", tensor->rounds_done);
  return set_reported(row, tensor->reported_ns);
}

static zps_json *rank_tally(const struct zps_member_job *job, const struct zps_member_rank *rank) {
  zps_json *row = job_row(job->name, job->job_id);
  row = zps_json_set_u64(row, "rank", rank->rank);
  row = zps_json_set_str(row, "host", rank->host);
  row = zps_json_set_str(row, "state", zps_rank_state_name(rank->state));
  row = zps_control_tally_write(row, &rank->tally);
  row = zps_json_set_u64(row, "kept_bytes", rank->kept_bytes);
  row = zps_control_mishaps_write(row, &rank->mishaps);
  row = zps_json_set_u64(row, "busy", rank->load.busy);
  row = zps_json_set_u64(row, "starved", rank->load.starved);
  return set_reported(row, rank->reported_ns);
}

zps_json *zps_coordinator_tensor_tallies(const struct zps_coordinator *coordinator, struct zps_room *room,
                                         unsigned n_later) {
  zps_json *rows = zps_json_array();
  for (const struct zps_member_job *job = zps_members_job_first(coordinator->members); job; job = job->next)
    for (uint32_t i = 0; i < job->n_tensors; i++)
      if (zps_room_has(room, n_later)) rows = zps_room_add(room, n_later, rows, tensor_tally(job, job->tensors[i]));
  return rows;
}

zps_json *zps_coordinator_rank_tallies(const struct zps_coordinator *coordinator, struct zps_room *room,
                                       unsigned n_later) {
  zps_json *rows = zps_json_array();
  for (const struct zps_member_job *job = zps_members_job_first(coordinator->members); job; job = job->next)
    for (uint32_t r = 0; r < job->world; r++)
      if (job->ranks[r] && zps_room_has(room, n_later))
        rows = zps_room_add(room, n_later, rows, rank_tally(job, job->ranks[r]));
  return rows;
}

struct rounds {
  zps_json *rows;
  struct zps_room *room;
  unsigned n_later;
};

static void add_round(void *ctx, const struct zps_member_job *job, const struct zps_member_round *round) {
  struct rounds *const to = ctx;
  const struct zps_tensor_spec *const spec = &round->tensor->spec;
  if (!zps_room_has(to->room, to->n_later)) return;
  zps_json *ranks = zps_json_array();
  for (uint32_t i = 0; i < round->n_ranks && i < ZPS_RANK_AWAITED_MAX; i++)
    ranks = zps_json_append(ranks, zps_json_u64(round->ranks[i]));
  zps_json *row = tensor_row(job, spec);
  row = zps_json_set_u64(row, "step", round->step);
  row = zps_json_set_u64(row, "world", spec->group[0] ? spec->n_ranks : job->world);
  row = zps_json_set_u64(row, "age_ms", round->age_ms);
  row = zps_json_set_u64(row, "left_ms", round->left_ms);
  row = zps_json_set_str(row, "waits_for", round->computes ? "rank" : "message");
  row = zps_json_set_u64(row, "n_ranks", round->n_ranks);
  to->rows = zps_room_add(to->room, to->n_later, to->rows, zps_json_set(row, "ranks", ranks));
}

zps_json *zps_coordinator_peer_rounds(const struct zps_coordinator *coordinator, zps_json *rows, struct zps_room *room,
                                      unsigned n_later) {
  struct rounds to = {.rows = rows, .room = room, .n_later = n_later};
  const uint64_t beats_ms = FRESH_BEATS * coordinator->config.heartbeat_ms;
  const uint64_t fresh_ns = (beats_ms > FRESH_MS ? beats_ms : FRESH_MS) * ZPS_NS_PER_MS;
  for (const struct zps_member_job *job = zps_members_job_first(coordinator->members); job; job = job->next)
    room->n_out += zps_member_job_rounds(job, zps_clock_ns(), fresh_ns, add_round, &to);
  return to.rows;
}
