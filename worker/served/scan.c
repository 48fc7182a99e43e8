/* Finding the rows to send, in one step or stripe by stripe, and when to look at the next stripe. */
#include "common/base/clock.h"
#include "worker/device/device.h"
#include "worker/api/job.h"
#include "worker/plane/plane.h"
#include "worker/round/round.h"
#include "worker/api/tensor.h"

/* How long the next step waits for sums. They may never come: servers then tell who is missing by who pushed nothing.
 */
#define PATIENCE_NS (100 * ZPS_NS_PER_MS)

struct zps_workpool *zps_round_push_pool(const struct zps_round *round, struct zps_workpool *pool) {
  return zps_round_push_on_device(round) ? round->device->in_pool : pool;
}

uint32_t zps_served_scan_parts(const struct zps_round *round) {
  return round->tensor->part.n_parts / round->n_scans;
}

/* ------------------------------------------------------------ a step */

static void choose(void *ctx, unsigned i) {
  const struct zps_round_task *task = ctx;
  struct zps_round *round = task->round;
  const uint32_t p = task->arg * zps_served_scan_parts(round) + i;
  struct zps_served_part *part = &round->parts[p];
  part->nnz = zps_encoder_nnz(round->encoder, p);
  part->push_codec = zps_encoder_choose(round->encoder, p, zps_codec_push_set(round->tensor->codec), &part->push_bytes);
}

static struct zps_encode_input input_of(const struct zps_round *round) {
  static const int64_t no_rows[1];
  const struct zenps_tensor *tensor = round->tensor;
  struct zps_encode_input input = {
      .part = &tensor->part,
      .width = tensor->width,
      .dtype = tensor->dtype,
      .value_codec = tensor->value_codec,
      .origin = {.seed = tensor->part.seed, .step = round->step, .tensor = tensor->id, .rank = round->plane->rank},
      .values = round->in.values,
      .all_rows = tensor->served->all_rows,
      .zero_rows = tensor->keeps_zero_rows};
  if (round->in.layout == ZENPS_ROWS) {
    input.rows = round->in.nnz ? round->in.row_ids : no_rows;
    input.n_entries = round->in.nnz;
  }
  return input;
}

/* All at once. */
static zps_err_t scan_whole(struct zps_round *round, struct zps_encode_input *input, struct zps_workpool *pool,
                            struct zps_error *error) {
  zps_err_t err = ZPS_OK;
  if (round->tensor->served->blocks)
    err = zps_blocks_input(&round->blocks, input->values, input->rows, input->n_entries, input, error);
  return err == ZPS_OK ? zps_encoder_scan(round->encoder, input, pool, error) : err;
}

static zps_err_t scan_step(struct zps_round *round, uint32_t scan, const struct zps_encode_input *input,
                           struct zps_workpool *pool, struct zps_error *error) {
  zps_err_t err = ZPS_OK;
  if (scan == 0) err = zps_encoder_begin(round->encoder, input, pool, error);
  return err == ZPS_OK ? zps_encoder_scan_next(round->encoder, scan, error) : err;
}

static void scan_run(struct zps_round_task *task) {
  struct zps_round *round = task->round;
  struct zenps_tensor *tensor = round->tensor;
  if (task->arg > 0 && round->has_work_error) return; /* nobody asks for the rest */
  if (task->arg == 0 && !zps_staging_fetch(task)) return;
  struct zps_encode_input input = input_of(round);
  if (zps_round_push_on_device(round)) {
    zps_device_push_scan(task, &input);
    return;
  }
  const bool alone = round->is_small || zps_workpool_threads(round->plane->pool) == 1;
  struct zps_workpool *pool = alone ? NULL : round->plane->pool;
  struct zps_error error;
  const zps_err_t err =
      round->n_scans == 1 ? scan_whole(round, &input, pool, &error) : scan_step(round, task->arg, &input, pool, &error);
  if (err != ZPS_OK) {
    zps_round_task_fail(task, &error);
    return;
  }
  if (task->arg + 1 == round->n_scans)
    atomic_store_explicit(&tensor->last_bytes,
                          zps_encoder_total_nnz(round->encoder) * zps_worker_tensor_row_bytes(tensor),
                          memory_order_relaxed);
  zps_workpool_for(pool, zps_served_scan_parts(round), choose, task);
}

static void scan_done(struct zps_round_task *task) {
  zps_round_event(task->round, ZPS_MACHINE_SCANNED, task->arg, 0, ZPS_OK);
}

/* ------------------------------------------------------------ which steps, when */

void zps_served_scan_init(struct zps_round *round) {
  for (uint32_t i = 0; i < zps_partition_stripes(&round->tensor->part); i++)
    round->scans[i].find = (struct zps_round_task){.round = round, .run = scan_run, .done = scan_done, .arg = i};
}

void zps_served_scan_reset(struct zps_round *round) {
  const struct zps_encode_input input = input_of(round);
  const bool takes_steps = round->in.memory == ZENPS_HOST && !round->tensor->served->blocks;
  round->n_scans = takes_steps ? zps_encoder_scans(&input) : 1;
  round->scans->find.has_run = false;
  zps_lookahead_init(&round->lookahead, round->n_scans, 0, 0);
}

/* The pool has one thread, which takes them in this order. */
static void scan_more(struct zps_round *round) {
  struct zps_plane *plane = round->plane;
  for (uint32_t i; i = round->lookahead.n_begun, zps_lookahead_next(&round->lookahead);) {
    struct zps_round_task *task = &round->scans[i].find;
    zps_round_task_start(task, zps_round_push_pool(round, task->has_run ? NULL : plane->scan_pool));
  }
  round->flush_at_ns = zps_lookahead_is_left(&round->lookahead) ? zps_clock_ns() + PATIENCE_NS : ZPS_NEVER;
  if (round->flush_at_ns < plane->next_deadline_ns) plane->next_deadline_ns = round->flush_at_ns;
}

void zps_served_flush(struct zps_round *round) {
  zps_lookahead_flush(&round->lookahead);
  if (zps_lookahead_is_left(&round->lookahead) && !zps_round_machine_over(round->machine)) scan_more(round);
}

void zps_served_summed(struct zps_round *round, const struct zps_served_part *part) {
  round->lookahead.summed_bytes += part->nnz * zps_worker_tensor_row_bytes(round->tensor);
  if (zps_lookahead_is_left(&round->lookahead) && !zps_round_machine_over(round->machine)) scan_more(round);
}

/* Nothing is held back where there are several rounds: they take memory in turns, so one that waits for sums could keep
 * out another, for which those who make the sums may wait. */
void zps_served_scan(struct zps_round *round) {
  const struct zps_plane *plane = round->plane;
  const uint64_t all_bytes = atomic_load_explicit(&round->tensor->last_bytes, memory_order_relaxed);
  double bytes_per_s = zps_bulk_measure(zps_engine_bulk(plane->engine)).bytes_per_s;
  for (struct zps_round *other = plane->rounds; other; other = other->all_next) {
    if (other == round || zps_round_machine_over(other->machine)) continue;
    zps_served_flush(other);
    bytes_per_s = 0;
  }
  zps_lookahead_init(&round->lookahead, round->n_scans, all_bytes, bytes_per_s);
  scan_more(round);
}
