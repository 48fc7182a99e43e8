/* The sums are here: from slices to the result, where that is dense. */
#include <inttypes.h>

#include "common/codec/decode.h"
#include "worker/served/served.h"

static void clear_run(struct zps_round_task *task) {
  const struct zps_served_round *round = zps_served_of(task->round);
  const struct zps_round_tensor *tensor = round->base.tensor;
  if (round->base.out_sections)
    zps_decode_sections_clear(round->base.out_sections, zps_row_bytes(tensor->shape.width, tensor->shape.dtype),
                              task->arg, round->n_pieces);
  else
    zps_decode_dense_clear(round->base.out->values, zps_tensor_shape_bytes(&round->base.tensor->shape), task->arg,
                           round->n_pieces);
}

static void clear_done(struct zps_round_task *task) {
  struct zps_served_round *round = zps_served_of(task->round);
  if (--round->n_clears == 0) zps_round_event(&round->base, ZPS_MACHINE_CLEARED, 0, 0, ZPS_OK);
}

void zps_served_clear(struct zps_served_round *round) {
  struct zps_workpool *pool = round->base.plane->pool;
  if (zps_tensor_shape_bytes(&round->base.tensor->shape) <= ZPS_SMALL_DENSE_BYTES) pool = NULL;
  round->n_clears = round->n_pieces = pool ? zps_workpool_threads(pool) : 1;
  for (unsigned i = 0; i < round->n_pieces; i++) zps_round_task_start(&round->clears[i], pool);
}

/* The payload is a peer's: nothing of it is used before it was checked. */
bool zps_served_view(struct zps_round_task *task, uint32_t p) {
  struct zps_served_round *round = zps_served_of(task->round);
  const struct zps_served_part *part = &round->parts[p];
  const struct zps_round_tensor *tensor = round->base.tensor;
  struct zps_error error;
  zps_err_t err = zps_slice_view_init(&round->views[p], part->result.codec, part->m, part->result.nnz, tensor->width,
                                      tensor->dtype, tensor->value_codec, part->sum, part->result.len_bytes, &error);
  const bool was_asked = err != ZPS_OK || !round->base.wants || zps_wants_have(round->base.wants, p, &round->views[p]);
  if (!was_asked) err = zps_fail(&error, ZPS_ERR_PROTOCOL, "it has rows that were not asked for");
  if (err == ZPS_OK) return true;
  struct zps_error named;
  const uint32_t server = round->base.owners[p];
  zps_fail(&named, err, "the sum of partition %" PRIu32 " from server %u (%s) is malformed: %s", p, server,
           round->base.plane->servers[server].name, error.text);
  zps_round_task_fail(task, &named);
  return false;
}

static void dense_run(struct zps_round_task *task) {
  struct zps_served_round *round = zps_served_of(task->round);
  if (!zps_served_view(task, task->arg)) return;
  if (round->base.out_sections)
    zps_decode_sections(&round->base.tensor->part, task->arg, &round->views[task->arg], round->base.out_sections);
  else
    zps_decode_dense_cut(&round->base.tensor->part, task->arg, &round->views[task->arg], round->base.out->values,
                         zps_tensor_shape_bytes(&round->base.tensor->shape));
}

static void dense_done(struct zps_round_task *task) {
  zps_served_part_put_pull_buf(&zps_served_of(task->round)->parts[task->arg]);
  zps_round_event(task->round, ZPS_MACHINE_DECODED, task->arg, 0, ZPS_OK);
}

static uint32_t stripe_parts(const struct zps_served_round *round) {
  return round->base.tensor->part.stripe_parts;
}

static void stripe_run(struct zps_round_task *task) {
  struct zps_served_round *round = zps_served_of(task->round);
  const struct zps_round_tensor *tensor = round->base.tensor;
  const uint32_t first = task->arg * stripe_parts(round);
  for (uint32_t p = first; p < first + stripe_parts(round); p++)
    if (!zps_served_view(task, p)) return;
  const struct zps_sections *const sections = round->base.out_sections;
  const zps_err_t err = sections
                            ? zps_decode_sections_stripe(&tensor->part, task->arg, round->views, sections)
                            : zps_decode_dense_stripe(&tensor->part, task->arg, round->views, round->base.out->values,
                                                      zps_tensor_shape_bytes(&tensor->shape));
  if (err == ZPS_OK) return;
  struct zps_error error;
  zps_fail(&error, ZPS_ERR_NOMEM, "no memory to decode %" PRIu32 " sums together", stripe_parts(round));
  zps_round_task_fail(task, &error);
}

static void stripe_done(struct zps_round_task *task) {
  struct zps_served_round *round = zps_served_of(task->round);
  const uint32_t first = task->arg * stripe_parts(round);
  for (uint32_t p = first; p < first + stripe_parts(round); p++) {
    zps_served_part_put_pull_buf(&round->parts[p]);
    zps_round_event(&round->base, ZPS_MACHINE_DECODED, p, 0, ZPS_OK);
  }
}

void zps_served_decode_stripe(struct zps_served_round *round, uint32_t stripe) {
  struct zps_round_task *task = &round->stripes[stripe];
  if (round->base.out->layout == ZENPS_ROWS) {
    zps_served_order_stripe(round, stripe);
    return;
  }
  task->run = stripe_run;
  task->done = stripe_done;
  zps_round_task_start(task, round->base.plane->pool);
}

void zps_served_decode(struct zps_served_round *round, uint32_t partition) {
  struct zps_workpool *pool = round->base.plane->pool;
  if (partition == ZPS_MACHINE_ALL) {
    zps_served_decode_rows(round);
    return;
  }
  if (round->parts[partition].result.is_inline) pool = NULL;
  struct zps_round_task *task = &round->parts[partition].task;
  task->run = dense_run;
  task->done = dense_done;
  zps_round_task_start(task, pool);
}

void zps_served_decode_init(struct zps_served_round *round) {
  for (uint32_t i = 0; i < zps_partition_stripes(&round->base.tensor->part); i++)
    round->stripes[i] = (struct zps_round_task){.round = &round->base, .arg = i};
  for (unsigned i = 0; i < zps_workpool_threads(round->base.plane->pool); i++) {
    round->clears[i] = (struct zps_round_task){.round = &round->base, .run = clear_run, .done = clear_done, .arg = i};
  }
}
