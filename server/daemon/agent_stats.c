/* The shard's counters as rows. */
#include "common/base/bisect.h"
#include "common/base/clock.h"
#include "common/control/room.h"
#include "proto/control_stats.h"
#include "server/daemon/agent_jobs.h"

#define LAGS_PER_TENSOR 64u /* the slowest ranks */
#define ROUND_ROWS_MAX 64u  /* the oldest; each takes a look at all ranks on the progress thread */

/* The tables, and their room: together no more than ZPS_ROOM_BYTES. */
enum { TENSORS, LAGS, SHARES, ROUNDS, N_TABLES };
static const struct {
  const char *name;
  size_t bytes;
} tables[] = {[TENSORS] = {"tensors", 2560u << 10},
              [LAGS] = {"lags", 1024u << 10},
              [SHARES] = {"shares", 256u << 10},
              [ROUNDS] = {"rounds", 128u << 10}};

struct table {
  zps_json *rows;
  struct zps_room room;
};

static void add(struct table *table, zps_json *row) {
  table->rows = zps_room_add(&table->room, 0, table->rows, row);
}

static zps_json *tensor_row(const struct zps_tensor_stats *stats) {
  zps_json *row = zps_json_set_hex(zps_json_object(), "job_id", stats->job_id);
  row = zps_json_set_u64(row, "tensor", stats->tensor);
  row = zps_json_set_str(row, "name", stats->name);
  row = zps_json_set_u64(row, "rows", stats->rows);
  row = zps_json_set_u64(row, "width", stats->width);
  row = zps_json_set_str(row, "dtype", zps_dtype_name(stats->dtype));
  row = zps_json_set_str(row, "op", zps_op_name(stats->op));
  row = zps_json_set_u64(row, "world", stats->world);
  row = zps_json_set_u64(row, "partitions", stats->n_parts);
  row = zps_json_set_u64(row, "partitions_here", stats->parts_here);
  row = zps_json_set_real(row, "age_s", (double)stats->age_ns / (double)ZPS_NS_PER_S);
  row = zps_json_set_u64(row, "rounds", stats->rounds);
  row = zps_json_set_u64(row, "aborted", stats->aborted);
  row = zps_json_set_u64(row, "bytes_in", stats->bytes_in);
  row = zps_json_set_u64(row, "bytes_out", stats->bytes_out);
  row = zps_json_set_u64(row, "push_rows", stats->push_rows);
  row = zps_json_set_u64(row, "union_rows", stats->union_rows);
  row = zps_json_set_u64(row, "union_rows_max_part", stats->union_rows_max_part);
  row = zps_json_set_real(row, "imbalance_push", stats->imbalance_push);
  row = zps_json_set_real(row, "step_loads", stats->step_loads);
  row = zps_json_set_u64(row, "collect_ns", stats->collect_ns);
  row = zps_json_set_u64(row, "reduce_ns", stats->reduce_ns);
  return zps_json_set_u64(row, "publish_ns", stats->publish_ns);
}

static zps_json *lag_row(const struct zps_tensor_stats *stats, uint32_t rank) {
  zps_json *row = zps_json_set_hex(zps_json_object(), "job_id", stats->job_id);
  row = zps_json_set_u64(row, "tensor", stats->tensor);
  row = zps_json_set_str(row, "name", stats->name);
  row = zps_json_set_u64(row, "rank", rank);
  row = zps_json_set_u64(row, "rounds", stats->rounds);
  if (stats->late && stats->late[rank] > 0) row = zps_json_set_u64(row, "closed_without", stats->late[rank]);
  return zps_json_set_u64(row, "lag_ns", stats->lag_ns[rank]);
}

static uint32_t slower_than(const struct zps_tensor_stats *stats, uint64_t lag_ns) {
  uint32_t n = 0;
  for (uint32_t r = 0; r < stats->world; r++) n += stats->lag_ns[r] > lag_ns;
  return n;
}

/* The smallest lag that fewer than LAGS_PER_TENSOR ranks exceed, by bisection. */
static uint64_t lag_threshold(const struct zps_tensor_stats *stats) {
  uint64_t low = 0, high = UINT64_MAX;
  zps_bisect(low, high, middle, slower_than(stats, middle) >= LAGS_PER_TENSOR);
  return low;
}

static void add_lags(struct table *table, const struct zps_tensor_stats *stats) {
  const uint64_t threshold = lag_threshold(stats);
  uint32_t room = LAGS_PER_TENSOR - slower_than(stats, threshold); /* for those at the threshold */
  for (uint32_t r = 0; r < stats->world; r++) {
    const bool slow = stats->lag_ns[r] > threshold;
    const bool shown = slow || (stats->lag_ns[r] == threshold && room > 0);
    if (!shown) {
      table->room.n_out++;
      continue;
    }
    if (!slow) room--;
    if (zps_room_has(&table->room, 0)) add(table, lag_row(stats, r));
  }
}

static void visit(void *ctx, const struct zps_tensor_stats *stats) {
  struct table *const at = ctx;
  if (!zps_room_has(&at[TENSORS].room, 0)) return;
  add(&at[TENSORS], tensor_row(stats));
  add_lags(&at[LAGS], stats);
}

static void visit_share(void *ctx, const struct zps_job_share *share) {
  struct table *const table = &((struct table *)ctx)[SHARES];
  if (!zps_room_has(&table->room, 0)) return;
  zps_json *row = zps_json_set_hex(zps_json_object(), "job_id", share->job_id);
  row = zps_json_set_u64(row, "weight", share->weight);
  row = zps_json_set_u64(row, "pool_bytes", share->pool.all);
  row = zps_json_set_u64(row, "pool_contested_bytes", share->pool.contested);
  row = zps_json_set_u64(row, "pool_waited_bytes", share->pool.waited);
  add(table, zps_json_set_u64(row, "memory_bytes", share->memory_bytes));
}

static void visit_round(void *ctx, const struct zps_round_flight *flight) {
  static const char *const waits[] = {
      [ZPS_FLIGHT_PUSH] = "push", [ZPS_FLIGHT_BYTES] = "bytes", [ZPS_FLIGHT_SUM] = "sum", [ZPS_FLIGHT_PULL] = "pull"};
  zps_json *ranks = zps_json_array();
  for (uint32_t i = 0; i < flight->n_ranks && i < ZPS_FLIGHT_RANKS_MAX; i++)
    ranks = zps_json_append(ranks, zps_json_u64(flight->ranks[i]));
  zps_json *row = zps_json_set_hex(zps_json_object(), "job_id", flight->job_id);
  row = zps_json_set_u64(row, "tensor", flight->tensor);
  row = zps_json_set_str(row, "name", flight->name);
  row = zps_json_set_u64(row, "step", flight->step);
  row = zps_json_set_u64(row, "world", flight->world);
  row = zps_json_set_u64(row, "age_ms", flight->age_ns / ZPS_NS_PER_MS);
  if (flight->left_ns != ZPS_NEVER) row = zps_json_set_u64(row, "left_ms", flight->left_ns / ZPS_NS_PER_MS);
  row = zps_json_set_str(row, "waits_for", waits[flight->wait]);
  row = zps_json_set_u64(row, "n_ranks", flight->n_ranks);
  add(&((struct table *)ctx)[ROUNDS], zps_json_set(row, "ranks", ranks));
}

zps_err_t zps_agent_stats(struct zps_shard *shard, zps_json **result_p, struct zps_error *error) {
  struct zps_shard_totals totals = {.jobs = 0};
  struct table at[N_TABLES];
  unsigned long n_out = 0;
  for (unsigned i = 0; i < N_TABLES; i++)
    at[i] = (struct table){.rows = zps_json_array(), .room = {.left_bytes = tables[i].bytes}};
  zps_err_t err = zps_shard_stats(shard, &totals, visit, at, error);
  if (!err) err = zps_shard_shares(shard, visit_share, at, error);
  if (!err) err = zps_shard_rounds(shard, ROUND_ROWS_MAX, visit_round, at, error);
  for (unsigned i = 0; i < N_TABLES && err; i++) zps_json_unref(at[i].rows);
  if (err) return err;
  zps_json *row = zps_json_set_u64(zps_json_object(), "jobs", totals.jobs);
  row = zps_json_set_u64(row, "tensors", totals.tensors);
  row = zps_json_set_u64(row, "rounds_in_flight", totals.rounds_in_flight);
  row = zps_json_set_u64(row, "memory_in_use_bytes", totals.slab.in_use_bytes);
  row = zps_json_set_u64(row, "memory_limit_bytes", totals.memory_limit_bytes);
  row = zps_json_set_u64(row, "memory_cached_bytes", totals.slab.cached_bytes);
  row = zps_json_set_u64(row, "memory_high_water_bytes", totals.slab.high_water_bytes);
  row = zps_json_set_u64(row, "memory_registered_bytes", totals.net.mem_registered_bytes);
  row = zps_json_set_u64(row, "msgs_sent", totals.net.msgs_sent);
  row = zps_json_set_u64(row, "msgs_received", totals.net.msgs_received);
  row = zps_json_set_u64(row, "msg_bytes_sent", totals.net.msg_bytes_sent);
  row = zps_json_set_u64(row, "msg_bytes_received", totals.net.msg_bytes_received);
  row = zps_json_set_u64(row, "reads", totals.net.reads);
  row = zps_json_set_u64(row, "read_bytes", totals.net.read_bytes);
  row = zps_json_set_u64(row, "again", totals.net.again);
  row = zps_json_set_u64(row, "quarantined", totals.net.quarantined);
  row = zps_json_set_u64(row, "rails_lost", totals.net.rails_lost);
  row = zps_json_set_u64(row, "rails_out", totals.net.rails_out);
  row = zps_json_set_u64(row, "rails_refused", totals.net.rails_refused);
  row = zps_control_mishaps_write(row, &totals.mishaps);
  zps_json *result = zps_json_set(zps_json_object(), "totals", row);
  for (unsigned i = 0; i < N_TABLES; i++) {
    result = zps_json_set(result, tables[i].name, at[i].rows);
    n_out += at[i].room.n_out;
  }
  if (n_out) result = zps_json_set_u64(result, "left_out", n_out);
  if (!result) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for the counters");
  *result_p = result;
  return ZPS_OK;
}
