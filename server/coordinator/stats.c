/* `stats`: the reports of ranks on their rounds, whatever carries these out; and the answers of all servers, one under
 * the other, with the server's name in front. A server that does not answer in time has a row that says so.
 *
 * A server is asked once at a time, and 20 times a second at most, or once where many ask at once: requests that come
 * meanwhile wait, and share the next answer. None is answered with what was true before it came. */
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "server/coordinator/coordinator_impl.h"

#define GATHER_TIMEOUT_MS 2000u
#define GAP_NS (50 * ZPS_NS_PER_MS)       /* from one answer's beginning to the next one's, at least */
#define GAP_CROWDED_NS (1 * ZPS_NS_PER_S) /* the gap where the last answer went to a crowd */
#define CROWD 32u

struct zps_coordinator_asker {
  struct zps_rpc_request *request;
  struct zps_viewer viewer;
  uint64_t came_ns;
  struct zps_coordinator_asker *next;
};

struct gather {
  struct zps_coordinator *coordinator;
  unsigned n_pending;
  struct gather_call *calls, **end; /* in the order of servers' numbers, whoever answers first */
};

struct gather_call {
  struct gather *gather;
  struct gather_call *next;
  char server[ZPS_NAME_MAX + 1], host[ZPS_NAME_MAX + 1];
  zps_json *result; /* NULL: `error` says why */
  struct zps_error error;
};

struct part { /* of an answer, that a viewer sees */
  const struct zps_members *members;
  const struct zps_viewer *viewer;
  zps_json *answer;
};

static bool sees_row(const struct part *part, const zps_json *row) {
  uint64_t job_id;
  const char *const server = zps_json_opt_str(row, "server", "");
  if (zps_json_get(row, "job_id")) {
    const zps_err_t err = zps_json_get_hex(row, "job_id", &job_id, NULL);
    const struct zps_member_job *const job = err ? NULL : zps_members_job(part->members, job_id);
    return job && zps_viewer_sees_job(part->viewer, job);
  }
  for (unsigned i = 0; i < zps_members_servers(part->members); i++) {
    const struct zps_member_server *const of = zps_members_server(part->members, i);
    if (strcmp(of->name, server) == 0) return zps_viewer_sees_server(part->viewer, part->members, of);
  }
  return false;
}

/* Of a server the totals, which are of all jobs, are left out. */
static void copy_part(void *ctx, const char *key, const zps_json *rows) {
  struct part *const part = ctx;
  const bool is_servers = strcmp(key, "servers") == 0;
  zps_json *seen = zps_json_array();
  for (size_t i = 0; i < zps_json_array_len(rows); i++) {
    const zps_json *const row = zps_json_at(rows, i);
    if (!sees_row(part, row)) continue;
    zps_json *copy = zps_json_object();
    if (is_servers) {
      copy = zps_json_set_str(copy, "server", zps_json_opt_str(row, "server", ""));
      copy = zps_json_set_str(copy, "host", zps_json_opt_str(row, "host", ""));
      copy = zps_json_set_str(copy, "answer", zps_json_opt_str(row, "answer", ""));
    } else {
      copy = zps_json_set_all(copy, row);
    }
    seen = zps_json_append(seen, copy);
  }
  part->answer = zps_json_set(part->answer, key, seen);
}

/* What the asker sees of the answer: a reference, NULL when memory is short. */
static zps_json *part_of(const struct zps_coordinator *coordinator, const struct zps_coordinator_asker *asker,
                         zps_json *answer) {
  static const char *const tables[] = {"servers", "tensors", "ranks", "shards", "lags", "shares", "rounds"};
  if (asker->viewer.sees_all) return zps_json_ref(answer);
  struct part part = {.members = coordinator->members, .viewer = &asker->viewer, .answer = zps_json_object()};
  for (unsigned i = 0; i < sizeof tables / sizeof tables[0]; i++)
    copy_part(&part, tables[i], zps_json_get(answer, tables[i]));
  return part.answer;
}

/* To all that came before the servers were asked; `answer` NULL: memory was short. */
static void answer_askers(struct zps_coordinator *coordinator, zps_json *answer) {
  struct zps_coordinator_stats *const stats = &coordinator->stats;
  stats->n_shared = 0;
  for (struct zps_coordinator_asker **link = &stats->askers; *link;) {
    struct zps_coordinator_asker *asker = *link;
    if (asker->came_ns > stats->begun_ns) {
      link = &asker->next;
      continue;
    }
    *link = asker->next;
    stats->n_shared++;
    zps_json *const part = answer ? part_of(coordinator, asker, answer) : NULL;
    if (part)
      zps_rpc_reply(asker->request, part);
    else
      zps_rpc_reply_error(asker->request, ZPS_ERR_NOMEM, "the coordinator has no memory to answer");
    free(asker);
  }
}

static void begin_later(struct zps_coordinator *coordinator);

/* Adds the job's name and the tensor's group, which servers do not know, and whose world it is. */
static zps_json *set_job(const struct zps_coordinator *coordinator, zps_json *row) {
  uint64_t job_id, tensor;
  if (!row || zps_json_get_hex(row, "job_id", &job_id, NULL)) return row;
  const struct zps_member_job *job = zps_members_job(coordinator->members, job_id);
  if (!job) return row;
  row = zps_json_set_str(row, "job", job->name);
  if (!row || zps_json_get_u64(row, "tensor", 0, UINT32_MAX, &tensor, NULL)) return row;
  const struct zps_member_tensor *const of = zps_members_tensor_find(job, (uint32_t)tensor);
  if (!of || of->state != ZPS_TENSOR_OPEN) return row;
  const struct zps_tensor_spec *spec = &of->spec;
  if (spec->group[0]) row = zps_json_set_u64(zps_json_set_str(row, "group", spec->group), "world", spec->n_ranks);
  return row;
}

/* A tensor whose rounds go past the servers is open on them all the same, and its job is. */
static bool is_idle(const zps_json *row) {
  return !zps_json_get(row, "step") && zps_json_opt_u64(row, "rounds", 0) == 0 &&
         zps_json_opt_u64(row, "aborted", 0) == 0 && zps_json_opt_u64(row, "pool_bytes", 0) == 0 &&
         zps_json_opt_u64(row, "memory_bytes", 0) == 0;
}

/* The rows of all servers' tables of this name, under each other. */
static zps_json *rows_of(const struct gather *gather, const char *table, struct zps_room *room, unsigned n_later) {
  zps_json *rows = zps_json_array();
  for (const struct gather_call *call = gather->calls; call; call = call->next) {
    const zps_json *const from = call->result ? zps_json_get(call->result, table) : NULL;
    for (size_t i = 0; i < zps_json_array_len(from); i++) {
      if (is_idle(zps_json_at(from, i)) || !zps_room_has(room, n_later)) continue;
      zps_json *row = zps_json_set_str(zps_json_object(), "server", call->server);
      row = zps_json_set_all(row, zps_json_at(from, i));
      rows = zps_room_add(room, n_later, rows, set_job(gather->coordinator, row));
    }
  }
  return rows;
}

static zps_json *servers_of(const struct gather *gather, struct zps_room *room, unsigned n_later) {
  zps_json *rows = zps_json_array();
  for (const struct gather_call *call = gather->calls; call; call = call->next) {
    zps_json *row = zps_json_set_str(zps_json_object(), "server", call->server);
    row = zps_json_set_str(row, "host", call->host);
    row = zps_json_set_str(row, "answer", call->result ? "ok" : call->error.text);
    if (call->result) row = zps_json_set_all(row, zps_json_get(call->result, "totals"));
    rows = zps_room_add(room, n_later, rows, row);
    if (call->result) room->n_out += zps_json_opt_u64(call->result, "left_out", 0);
  }
  return rows;
}

/* Tables that an operator needs first come first, and leave the others a part. */
static zps_json *result_of(const struct gather *gather) {
  const struct zps_coordinator *const coordinator = gather->coordinator;
  struct zps_room room = {.left_bytes = ZPS_ROOM_BYTES};
  zps_json *const servers = servers_of(gather, &room, 6);
  zps_json *const rounds = zps_coordinator_peer_rounds(coordinator, rows_of(gather, "rounds", &room, 5), &room, 5);
  zps_json *const tensors = zps_coordinator_tensor_tallies(coordinator, &room, 4);
  zps_json *const ranks = zps_coordinator_rank_tallies(coordinator, &room, 3);
  zps_json *result = zps_json_set(zps_json_object(), "servers", servers);
  result = zps_json_set(result, "tensors", tensors);
  result = zps_json_set(result, "ranks", ranks);
  result = zps_json_set(result, "shards", rows_of(gather, "tensors", &room, 2));
  result = zps_json_set(result, "lags", rows_of(gather, "lags", &room, 1));
  result = zps_json_set(result, "shares", rows_of(gather, "shares", &room, 0));
  result = zps_json_set(result, "rounds", rounds);
  return room.n_out ? zps_json_set_u64(result, "left_out", room.n_out) : result;
}

static void finish(struct gather *gather) {
  struct zps_coordinator *coordinator = gather->coordinator;
  struct zps_coordinator_stats *stats = &coordinator->stats;
  zps_json *const result = result_of(gather);
  for (struct gather_call *call = gather->calls, *next; call; call = next) {
    next = call->next;
    zps_json_unref(call->result);
    free(call);
  }
  free(gather);
  stats->is_asking = false;
  answer_askers(coordinator, result);
  zps_json_unref(result);
  if (stats->askers) begin_later(coordinator);
}

static void on_stats(void *ctx, const zps_json *result, const struct zps_error *error) {
  struct gather_call *call = ctx;
  struct gather *const gather = call->gather;
  if (error)
    call->error = *error;
  else
    call->result = zps_json_ref(result);
  if (--gather->n_pending == 0) finish(gather);
}

/* Asks all servers. */
static void begin(struct zps_coordinator *coordinator) {
  struct zps_coordinator_stats *stats = &coordinator->stats;
  struct gather *gather = calloc(1, sizeof *gather);
  stats->begun_ns = zps_clock_ns();
  if (!gather) {
    answer_askers(coordinator, NULL);
    return;
  }
  stats->is_asking = true;
  *gather = (struct gather){.coordinator = coordinator, .n_pending = 1};
  gather->end = &gather->calls;
  for (unsigned i = 0; i < zps_members_servers(coordinator->members); i++) {
    const struct zps_member_server *server = zps_members_server(coordinator->members, i);
    struct gather_call *call = calloc(1, sizeof *call);
    if (!call) continue;
    call->gather = gather;
    *gather->end = call;
    gather->end = &call->next;
    strcpy(call->server, server->name);
    strcpy(call->host, server->host);
    gather->n_pending++;
    if (!server->client) {
      on_stats(call, NULL, &(struct zps_error){.code = ZPS_ERR_CLOSED, .text = "is away"});
      continue;
    }
    const zps_err_t err = zps_rpc_call(((struct zps_coordinator_conn *)server->client)->rpc, "stats.get",
                                       zps_json_object(), GATHER_TIMEOUT_MS, on_stats, call);
    if (err) on_stats(call, NULL, &(struct zps_error){.code = err, .text = "cannot be asked"});
  }
  if (--gather->n_pending == 0) finish(gather);
}

static void on_timer(uv_timer_t *timer) {
  struct zps_coordinator *coordinator = timer->data;
  if (!coordinator->stats.is_asking && coordinator->stats.askers) begin(coordinator);
}

static uint64_t due_ns(const struct zps_coordinator_stats *stats) {
  return stats->begun_ns + (stats->n_shared > CROWD ? GAP_CROWDED_NS : GAP_NS);
}

static void begin_later(struct zps_coordinator *coordinator) {
  struct zps_coordinator_stats *stats = &coordinator->stats;
  const uint64_t now_ns = zps_clock_ns(), at_ns = due_ns(stats);
  if (coordinator->closing) return;
  uv_update_time(stats->timer.loop);
  uv_timer_start(&stats->timer, on_timer, at_ns > now_ns ? (at_ns - now_ns) / ZPS_NS_PER_MS + 1 : 0, 0);
}

void zps_coordinator_stats(struct zps_coordinator *coordinator, const struct zps_viewer *viewer,
                           struct zps_rpc_request *request) {
  struct zps_coordinator_stats *stats = &coordinator->stats;
  struct zps_coordinator_asker *asker = malloc(sizeof *asker);
  if (!asker) {
    zps_rpc_reply_error(request, ZPS_ERR_NOMEM, "the coordinator has no memory to ask its servers");
    return;
  }
  const bool is_first = !stats->askers;
  *asker = (struct zps_coordinator_asker){
      .request = request, .viewer = *viewer, .came_ns = zps_clock_ns(), .next = stats->askers};
  stats->askers = asker;
  if (stats->is_asking || !is_first) return; /* the next answer follows, or is due */
  if (asker->came_ns >= due_ns(stats))
    begin(coordinator);
  else
    begin_later(coordinator);
}

void zps_coordinator_stats_fini(struct zps_coordinator *coordinator) {
  coordinator->stats.begun_ns = ZPS_NEVER;
  answer_askers(coordinator, NULL); /* nobody hears it: the connections are gone */
}
