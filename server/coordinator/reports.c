/* Rows of `stats` that come from reports of ranks: what their rounds have cost, and which are in flight. */
#include "common/base/clock.h"
#include "proto/control_stats.h"
#include "server/coordinator/coordinator_impl.h"

#define FRESH_MS 3000u /* A rank repeats its report of old rounds with each heartbeat. */
#define FRESH_BEATS 3u

static double seconds_since(uint64_t then_ns) {
  return (double)((zps_clock_ns() - then_ns) / ZPS_NS_PER_MS) / 1000;
}

static zps_json *set_told(zps_json *row, uint64_t reported_ns) {
  return reported_ns ? zps_json_set_real(row, "told_s", seconds_since(reported_ns)) : row;
}

static zps_json *tensor_tally(const struct zps_member_job *job, const struct zps_member_tensor *tensor) {
  const struct zps_tensor_spec *spec = &tensor->spec;
  zps_json *row = zps_json_set_str(zps_json_object(), "job", job->name);
  row = zps_json_set_hex(row, "job_id", job->job_id);
  row = zps_json_set_u64(row, "tensor", spec->tensor);
  row = zps_json_set_str(row, "name", spec->name);
  if (spec->group[0]) row = zps_json_set_str(row, "group", spec->group);
  row = zps_json_set_u64(row, "rows", spec->rows);
  row = zps_json_set_u64(row, "width", spec->width);
  row = zps_json_set_u64(row, "value_bytes", zps_dtype_size(spec->dtype));
  row = zps_json_set_u64(row, "world", spec->group[0] ? spec->n_ranks : job->world);
  row = zps_json_set_real(row, "age_s", tensor->opened_ns ? seconds_since(tensor->opened_ns) : 0);
  row = zps_control_tally_write(row, &tensor->tally);
  row = zps_json_set_u64(row, "rank_rounds", tensor->tally.rounds);
  row = zps_json_set_u64(row, "rounds", tensor->rounds_done);
  return set_told(row, tensor->reported_ns);
}

static zps_json *rank_tally(const struct zps_member_job *job, const struct zps_member_rank *rank) {
  zps_json *row = zps_json_set_str(zps_json_object(), "job", job->name);
  row = zps_json_set_hex(row, "job_id", job->job_id);
  row = zps_json_set_u64(row, "rank", rank->rank);
  row = zps_json_set_str(row, "host", rank->host);
  row = zps_json_set_str(row, "state", zps_rank_state_name(rank->state));
  row = zps_control_tally_write(row, &rank->tally);
  row = zps_json_set_u64(row, "kept_bytes", rank->kept_bytes);
  row = zps_control_mishaps_write(row, &rank->mishaps);
  row = zps_json_set_u64(row, "busy", rank->load.busy);
  row = zps_json_set_u64(row, "starved", rank->load.starved);
  return set_told(row, rank->reported_ns);
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

/* ---- Rounds between ranks ---- */

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
  zps_json *row = zps_json_set_str(zps_json_object(), "job", job->name);
  row = zps_json_set_hex(row, "job_id", job->job_id);
  row = zps_json_set_u64(row, "tensor", spec->tensor);
  row = zps_json_set_str(row, "name", spec->name);
  if (spec->group[0]) row = zps_json_set_str(row, "group", spec->group);
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
