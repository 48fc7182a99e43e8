/* Finding the rows to send, in one step or stripe by stripe, and when to look at the next stripe. */
#include "common/base/clock.h"
#include "worker/served/served.h"

/* How long the next step waits for sums. They may never come: servers then name as missing the ranks that pushed
 * nothing. */
#define PATIENCE_NS (100 * ZPS_NS_PER_MS)

uint32_t zps_served_scan_parts(const struct zps_served_round *round) {
  return round->base.tensor->part.n_parts / round->n_scans;
}

/* ------------------------------------------------------------ a step */

static void choose(void *ctx, unsigned i) {
  const struct zps_round_task *task = ctx;
  struct zps_served_round *round = zps_served_of(task->round);
  const uint32_t p = task->arg * zps_served_scan_parts(round) + i;
  struct zps_served_part *part = &round->parts[p];
  part->nnz = zps_encoder_nnz(round->encoder, p);
  part->is_wide = zps_encoder_value_codec(round->encoder, p) != round->base.tensor->value_codec;
  part->push_codec =
      zps_encoder_choose(round->encoder, p, zps_round_tensor_push_set(round->base.tensor), &part->push_bytes);
}

static struct zps_encode_input input_of(const struct zps_served_round *round) {
  static const int64_t no_rows[1];
  const struct zps_round_tensor *tensor = round->base.tensor;
  struct zps_encode_input input = {.part = &tensor->part,
                                   .width = tensor->width,
                                   .dtype = tensor->dtype,
                                   .value_codec = tensor->value_codec,
                                   .origin = {.seed = tensor->part.seed,
                                              .step = round->base.step,
                                              .tensor = tensor->id,
                                              .rank = round->base.plane->rank},
                                   .values = round->base.in.values,
                                   .all_rows = tensor->served->all_rows,
                                   .zero_rows = tensor->keeps_zero_rows,
                                   .any_order = zps_round_tensor_push_set(tensor) == ZPS_CODEC_ANY_ORDER,
                                   .hashing = tensor->hashing};
  if (round->base.in_sections) {
    input.sections = round->base.in_sections;
  } else if (round->base.in.layout == ZENPS_ROWS) {
    input.rows = round->base.in.nnz ? round->base.in.row_ids : no_rows;
    input.n_entries = round->base.in.nnz;
  }
  return input;
}

/* The whole gradient in one step. */
static zps_err_t scan_whole(struct zps_served_round *round, struct zps_encode_input *input, struct zps_workpool *pool,
                            struct zps_error *error) {
  zps_err_t err = ZPS_OK;
  if (round->base.tensor->served->blocks)
    err = zps_blocks_input(&round->blocks, input->values, input->rows, input->n_entries, input, error);
  return err == ZPS_OK ? zps_encoder_scan(round->encoder, input, pool, error) : err;
}

static zps_err_t scan_step(struct zps_served_round *round, uint32_t scan, const struct zps_encode_input *input,
                           struct zps_workpool *pool, struct zps_error *error) {
  zps_err_t err = ZPS_OK;
  if (scan == 0) err = zps_encoder_begin(round->encoder, input, pool, error);
  return err == ZPS_OK ? zps_encoder_scan_next(round->encoder, scan, error) : err;
}

static void scan_run(struct zps_round_task *task) {
  struct zps_served_round *round = zps_served_of(task->round);
  struct zps_round_tensor *tensor = round->base.tensor;
  if (task->arg > 0 && round->base.has_work_error) return; /* the round does not need the rest */
  if (task->arg == 0 && !zps_staging_fetch(&round->staging, task)) return;
  struct zps_encode_input input = input_of(round);
  if (zps_device_has_gradient(&round->base)) {
    round->base.stats.partitioned_in = ZENPS_DEVICE;
    zps_device_push_scan(task, &input);
    return;
  }
  const bool alone = round->is_small || zps_workpool_threads(round->base.plane->pool) == 1;
  struct zps_workpool *pool = alone ? NULL : round->base.plane->pool;
  struct zps_error error;
  const zps_err_t err =
      round->n_scans == 1 ? scan_whole(round, &input, pool, &error) : scan_step(round, task->arg, &input, pool, &error);
  if (err != ZPS_OK) {
    zps_round_task_fail(task, &error);
    return;
  }
  if (task->arg + 1 == round->n_scans) {
    const struct zps_hier_stats hashed = zps_encoder_hashed(round->encoder);
    round->base.stats.hash_parallel = hashed.parallel;
    round->base.stats.hash_serial = hashed.serial;
    round->base.stats.hash_lost_races = hashed.lost_races;
    atomic_store_explicit(&tensor->last_bytes,
                          zps_encoder_total_nnz(round->encoder) * zps_round_tensor_row_bytes(tensor),
                          memory_order_relaxed);
  }
  zps_workpool_for(pool, zps_served_scan_parts(round), choose, task);
}

static void scan_done(struct zps_round_task *task) {
  if (zps_device_has_gradient(task->round) && zps_device_push_retries(zps_served_of(task->round))) return;
  zps_round_event(task->round, ZPS_MACHINE_SCANNED, task->arg, 0, ZPS_OK);
}

/* ------------------------------------------------------------ steps that may begin */

void zps_served_scan_init(struct zps_served_round *round) {
  for (uint32_t i = 0; i < zps_partition_stripes(&round->base.tensor->part); i++)
    round->scans[i].find = (struct zps_round_task){.round = &round->base, .run = scan_run, .done = scan_done, .arg = i};
}

uint32_t zps_served_scan_steps(const struct zps_served_round *round) {
  const struct zps_encode_input input = input_of(round);
  const bool takes_steps = round->base.in.memory == ZENPS_HOST && !round->base.tensor->served->blocks;
  return takes_steps ? zps_encoder_scans(&input) : 1;
}

/* The scan pool has one thread, which takes the steps in this order. */
static void scan_more(struct zps_served_round *round) {
  struct zps_plane *plane = round->base.plane;
  for (uint32_t i; i = round->lookahead.n_begun, zps_lookahead_next(&round->lookahead);) {
    struct zps_round_task *task = &round->scans[i].find;
    zps_round_task_start(task, zps_device_push_pool(&round->base, task->has_run ? NULL : plane->scan_pool));
  }
  round->base.wake_at_ns = zps_lookahead_is_left(&round->lookahead) ? zps_clock_ns() + PATIENCE_NS : ZPS_NEVER;
  zps_rounds_due(round->base.rounds, round->base.wake_at_ns);
}

void zps_served_flush(struct zps_round *base) {
  struct zps_served_round *round = zps_served_of(base);
  zps_lookahead_flush(&round->lookahead);
  if (zps_lookahead_is_left(&round->lookahead) && !zps_round_machine_over(round->base.machine)) scan_more(round);
}

void zps_served_summed(struct zps_served_round *round, const struct zps_served_part *part) {
  round->lookahead.summed_bytes += part->nnz * zps_round_tensor_row_bytes(round->base.tensor);
  if (zps_lookahead_is_left(&round->lookahead) && !zps_round_machine_over(round->base.machine)) scan_more(round);
}

/* Nothing is held back where there are several rounds: they take memory in turns, so a round that waits for sums could
 * keep out another one, which other ranks may have to finish before they push for these sums. */
void zps_served_scan(struct zps_served_round *round) {
  const struct zps_plane *plane = round->base.plane;
  const uint64_t all_bytes = atomic_load_explicit(&round->base.tensor->last_bytes, memory_order_relaxed);
  double bytes_per_s = zps_bulk_measure(zps_engine_bulk(plane->engine)).bytes_per_s;
  if (round->base.tensor->quorum > 0) bytes_per_s = 0; /* no sum comes before all is pushed */
  for (struct zps_round *other = round->base.rounds->all; other; other = other->all_next) {
    if (other == &round->base || zps_round_machine_over(other->machine)) continue;
    if (other->ops->wake) other->ops->wake(other);
    bytes_per_s = 0;
  }
  zps_lookahead_init(&round->lookahead, round->n_scans, all_bytes, bytes_per_s);
  scan_more(round);
}
