/*
 * Results that are rows: in ascending order, all partitions together when all sums are here. Narrow rows of a tensor of
 * several stripes are put in order stripe by stripe, as sums come, so that only copies are left when the last sum is
 * here.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "worker/served/served.h"

/* So few rows are put in order before a thread has woken up. */
static struct zps_workpool *pool_for(const struct zps_served_round *round, uint64_t n_rows) {
  if (round->base.into && n_rows < round->base.wants->count) n_rows = round->base.wants->count;
  const bool is_small = n_rows <= ZPS_SMALL_BYTES / zps_round_tensor_row_bytes(round->base.tensor);
  return is_small ? NULL : round->base.plane->pool;
}

/* Takes the rows that are not zero out of the blocks. */
static zps_err_t rows_of_blocks(struct zps_round_task *task, uint64_t n_blocks) {
  struct zps_served_round *round = zps_served_of(task->round);
  const struct zps_round_tensor *tensor = round->base.tensor;
  const size_t n = n_blocks ? (size_t)n_blocks : 1;
  int64_t *ids = malloc(n * sizeof *ids), *rows;
  void *blocks = malloc(n * tensor->width * zps_dtype_size(tensor->dtype)), *values;
  zps_err_t err = ids && blocks ? zps_decode_rows(&tensor->part, round->views, round->base.plane->pool,
                                                  &round->decode_scratch, ids, blocks)
                                : ZPS_ERR_NOMEM;
  if (err == ZPS_OK) {
    round->base.stats.nnz_out = zps_blocks_rows(&tensor->shape, ids, blocks, n_blocks, NULL, NULL);
    if (zps_round_rows_get(task, round->base.stats.nnz_out, &rows, &values))
      zps_blocks_rows(&tensor->shape, ids, blocks, n_blocks, rows, values);
  }
  free(ids);
  free(blocks);
  return err;
}

static void rows_run(struct zps_round_task *task) {
  struct zps_served_round *round = zps_served_of(task->round);
  if (round->base.out->memory == ZENPS_DEVICE) {
    zps_device_pull_decode(task);
    return;
  }
  const uint32_t n_parts = round->base.tensor->part.n_parts;
  int64_t *rows;
  void *values;
  for (uint32_t p = 0; p < n_parts; p++) {
    if (!zps_served_view(task, p)) return;
  }
  zps_err_t err;
  if (round->base.tensor->served->blocks) {
    err = rows_of_blocks(task, round->base.stats.nnz_out);
  } else {
    if (!zps_round_rows_get(task, round->base.stats.nnz_out, &rows, &values)) return;
    err = zps_decode_rows(&round->base.tensor->part, round->views, round->base.plane->pool, &round->decode_scratch,
                          rows, values);
    if (err == ZPS_OK && round->base.into)
      zps_wants_put(round->base.wants, rows, values, round->base.stats.nnz_out,
                    zps_round_tensor_row_bytes(round->base.tensor), round->base.into->values);
  }
  if (err != ZPS_OK) {
    struct zps_error error;
    zps_fail(&error, ZPS_ERR_NOMEM, "no memory to merge the sums of %" PRIu32 " partitions", n_parts);
    zps_round_task_fail(task, &error);
  }
}

static void rows_done(struct zps_round_task *task) {
  struct zps_served_round *round = zps_served_of(task->round);
  for (uint32_t p = 0; p < round->base.tensor->part.n_parts; p++) zps_served_part_put_pull_buf(&round->parts[p]);
  zps_round_event(&round->base, ZPS_MACHINE_DECODED, ZPS_MACHINE_ALL, 0, ZPS_OK);
}

void zps_served_decode_rows(struct zps_served_round *round) {
  round->whole.run = rows_run;
  round->whole.done = rows_done;
  zps_round_task_start(&round->whole, round->base.out->memory == ZENPS_DEVICE
                                          ? round->base.device->out_pool
                                          : pool_for(round, round->base.stats.nnz_out));
}

/* ------------------------------------------------------------ stripe by stripe */

bool zps_served_orders_stripes(const struct zps_served_round *round) {
  const struct zps_round_tensor *tensor = round->base.tensor;
  return round->base.out->layout == ZENPS_ROWS && round->base.out->memory == ZENPS_HOST && !round->base.into &&
         !tensor->served->blocks && zps_decode_orders_stripes(&tensor->part, zps_round_tensor_row_bytes(tensor));
}

static void join_run(struct zps_round_task *task) {
  struct zps_served_round *round = zps_served_of(task->round);
  int64_t *rows;
  void *values;
  if (zps_round_rows_get(task, round->base.stats.nnz_out, &rows, &values))
    zps_decode_join_stripes(&round->base.tensor->part, &round->ordered, zps_round_tensor_row_bytes(round->base.tensor),
                            round->base.plane->pool, rows, values);
}

static void join_done(struct zps_round_task *task) {
  for (uint32_t p = 0; p < zps_served_of(task->round)->base.tensor->part.n_parts; p++)
    zps_round_event(task->round, ZPS_MACHINE_DECODED, p, 0, ZPS_OK);
}

static void order_run(struct zps_round_task *task) {
  struct zps_served_round *round = zps_served_of(task->round);
  const struct zps_partition *part = &round->base.tensor->part;
  const uint32_t first = task->arg * part->stripe_parts;
  for (uint32_t p = first; p < first + part->stripe_parts; p++)
    if (!zps_served_view(task, p)) return;
  if (zps_decode_order_stripe(part, task->arg, round->views, &round->ordered) == ZPS_OK) return;
  struct zps_error error;
  zps_fail(&error, ZPS_ERR_NOMEM, "no memory to put the rows of %" PRIu32 " sums in order", part->stripe_parts);
  zps_round_task_fail(task, &error);
}

static void order_done(struct zps_round_task *task) {
  struct zps_served_round *round = zps_served_of(task->round);
  const struct zps_partition *part = &round->base.tensor->part;
  const uint32_t first = task->arg * part->stripe_parts;
  for (uint32_t p = first; p < first + part->stripe_parts; p++) zps_served_part_put_pull_buf(&round->parts[p]);
  if (++round->n_ordered < zps_partition_stripes(part) || zps_round_machine_over(round->base.machine)) return;
  round->whole.run = join_run;
  round->whole.done = join_done;
  zps_round_task_start(&round->whole, pool_for(round, round->base.stats.nnz_out));
}

void zps_served_order_stripe(struct zps_served_round *round, uint32_t stripe) {
  const struct zps_partition *part = &round->base.tensor->part;
  const uint32_t n_parts = part->stripe_parts;
  struct zps_round_task *task = &round->stripes[stripe];
  uint64_t n_rows = 0;
  for (uint32_t p = stripe * n_parts; p < (stripe + 1) * n_parts; p++) n_rows += round->parts[p].result.nnz;
  task->run = order_run;
  task->done = order_done;
  zps_round_task_start(task, pool_for(round, n_rows << part->stripe_bits)); /* the others have about as many */
}
