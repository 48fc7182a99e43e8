#define ZPS_LOG_COMPONENT "device"
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "worker/device/device.h"
#include "worker/served/served.h"

enum { ALIGNMENT = 16 }; /* of slices in device memory: more than encoders ask for, so that wide stores stay whole */

static size_t room_for(uint64_t len_bytes) {
  return (size_t)((len_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
}

static zps_err_t prepare(struct zps_served_round *round, struct zps_error *error) {
  struct zps_device_push *const push = &round->device_push;
  struct zps_device *const device = round->base.device->device;
  const uint32_t n_parts = round->base.tensor->part.n_parts;
  zps_err_t code = ZPS_OK;
  if (!push->offsets) push->offsets = calloc(n_parts, sizeof *push->offsets);
  if (!push->outs) push->outs = calloc(n_parts, sizeof *push->outs);
  if (!push->offsets || !push->outs) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for %u slices", n_parts);
  if (!push->encoder) code = device->ops->encoder_create(device, &push->encoder, error);
  /* A round that failed may have left work behind that uses the same memory. */
  if (code == ZPS_OK) code = zps_stage_mark_wait(device, &push->mark, round->base.deadline_ns, error);
  if (code != ZPS_OK) return code;
  if (push->slices.retired && push->slices.retired != push->slices.exposed) {
    device->ops->release(device, ZPS_MEMORY_DEVICE, push->slices.retired);
    push->slices.retired = NULL;
  }
  return ZPS_OK;
}

/* Marks the end of what was submitted. */
static zps_err_t record(struct zps_served_round *round, struct zps_error *error) {
  return zps_stage_mark_set(round->base.device->device, &round->device_push.mark, round->base.in.stream, error);
}

static zps_err_t wait_for(struct zps_served_round *round, struct zps_error *error) {
  return zps_stage_finish(round->base.device->device, &round->device_push.mark, round->base.in.stream,
                          round->base.deadline_ns, error);
}

/* Submits the search for rows, and their deal to partitions. */
static zps_err_t find(struct zps_served_round *round, const struct zps_encode_input *input, struct zps_error *error) {
  const struct zps_round_tensor *const tensor = round->base.tensor;
  const struct zps_device_ops *const ops = round->base.device->device->ops;
  struct zps_device_encoder *const encoder = round->device_push.encoder;
  struct zps_encode_input there = *input;
  there.part = zps_round_tensor_device_part(tensor);
  return (tensor->partitioner == ZPS_PARTITIONER_HIERARCHICAL ? ops->encoder_hash : ops->encoder_scan)(
      encoder, &there, zps_round_tensor_push_set(tensor), round->base.in.stream, error);
}

static void note_hashed(struct zps_served_round *round) {
  struct zps_device_hashed hashed;
  if (round->base.tensor->partitioner != ZPS_PARTITIONER_HIERARCHICAL) return;
  round->base.device->device->ops->encoder_hashed(round->device_push.encoder, &hashed);
  round->base.stats.hash_parallel = hashed.parallel;
  round->base.stats.hash_serial = hashed.serial;
  round->base.stats.hash_lost_races = hashed.lost_races;
}

static zps_err_t scan(struct zps_served_round *round, const struct zps_encode_input *input, struct zps_error *error) {
  struct zps_device_push *const push = &round->device_push;
  const struct zps_device_ops *const ops = round->base.device->device->ops;
  const struct zps_device_slice *slices = NULL;
  zps_err_t code;
  do { /* once more where there are more rows than ever before, or Algorithm 1 wanted more memory */
    code = find(round, input, error);
    if (code == ZPS_OK) code = wait_for(round, error);
    if (code == ZPS_OK) code = ops->encoder_finish(push->encoder, &slices, error);
  } while (code == ZPS_ERR_AGAIN);
  if (code == ZPS_OK) note_hashed(round);
  for (uint32_t p = 0; code == ZPS_OK && p < round->base.tensor->part.n_parts; p++) {
    struct zps_served_part *const part = &round->parts[p];
    part->nnz = slices[p].nnz;
    part->is_wide = slices[p].value_codec != round->base.tensor->value_codec;
    part->push_codec = (enum zps_codec)slices[p].codec;
    part->push_bytes = slices[p].len_bytes;
  }
  return code;
}

/* Submits the writing of all slices. */
static zps_err_t encode(struct zps_served_round *round, struct zps_error *error) {
  struct zps_device_push *const push = &round->device_push;
  const struct zps_device_ops *const ops = round->base.device->device->ops;
  const uint32_t n_parts = round->base.tensor->part.n_parts;
  size_t at = 0;
  for (unsigned bulk = 0; bulk < 2; bulk++) {
    for (uint32_t p = 0; p < n_parts; p++) {
      if (zps_served_part_is_inline(&round->parts[p]) == bulk) continue;
      push->offsets[p] = at;
      at += room_for(round->parts[p].push_bytes);
    }
    if (!bulk) push->small_bytes = at;
  }
  push->slices_bytes = at;
  if (at == 0) return ZPS_OK;
  zps_err_t code = ZPS_OK;
  if (at > push->slices.cap) code = zps_stage_idle(round->base.device->in_stage, round->base.deadline_ns, error);
  if (code == ZPS_OK && at > push->slices.cap && push->slices.at && push->slices.at == push->slices.exposed) {
    push->slices.retired = push->slices.at;
    push->slices.at = NULL;
    push->slices.cap = 0;
  }
  if (code == ZPS_OK)
    code = zps_device_push_is_direct(round)
               ? zps_worker_device_grow(round->base.device, ZPS_MEMORY_DEVICE, &push->slices.at, &push->slices.cap, at,
                                        error)
               : zps_worker_device_grow_on(round->base.device, &push->slices.at, &push->slices.cap, at,
                                           round->base.in.stream, error);
  push->is_short = code == ZPS_ERR_NOMEM && push->may_retry;
  if (push->is_short) return ZPS_OK;
  for (uint32_t p = 0; code == ZPS_OK && p < n_parts; p++)
    push->outs[p] = round->parts[p].push_bytes ? (char *)push->slices.at + push->offsets[p] : NULL;
  if (code == ZPS_OK) code = ops->encoder_write(push->encoder, push->outs, round->base.in.stream, error);
  if (code == ZPS_OK) code = zps_device_push_hash(round, error);
  if (code == ZPS_OK) code = record(round, error);
  push->serial = ++round->base.device->serial;
  return code;
}

void zps_device_push_scan(struct zps_round_task *task, const struct zps_encode_input *input) {
  struct zps_served_round *const round = zps_served_of(task->round);
  struct zps_error error;
  round->device_push.is_short = false;
  zps_err_t code = prepare(round, &error);
  if (code == ZPS_OK) code = scan(round, input, &error);
  if (code == ZPS_OK) code = encode(round, &error);
  if (code == ZPS_OK) return;
  struct zps_error ignored; /* what was submitted before it failed may read the gradient */
  if (round->device_push.encoder) (void)!record(round, &ignored);
  zps_round_task_fail(task, &error);
}

bool zps_device_push_small(struct zps_round_task *task) {
  struct zps_served_round *const round = zps_served_of(task->round);
  struct zps_device_push *const push = &round->device_push;
  struct zps_device *const device = round->base.device->device;
  struct zps_error error;
  if (push->small_bytes == 0) return true;
  zps_err_t code = zps_worker_device_grow(round->base.device, ZPS_MEMORY_PINNED, &push->small, &push->small_cap,
                                          push->small_bytes, &error);
  if (code == ZPS_OK)
    code = device->ops->copy(device, push->small, push->slices.at, push->small_bytes, round->base.in.stream, &error);
  if (code == ZPS_OK) code = wait_for(round, &error);
  if (code != ZPS_OK) zps_round_task_fail(task, &error);
  return code == ZPS_OK;
}

struct zps_slice_view zps_device_push_view(const struct zps_served_part *part) {
  const struct zps_served_round *const round = zps_served_of(part->task.round);
  const struct zps_round_tensor *const tensor = round->base.tensor;
  const char *const slice = (const char *)round->device_push.small + round->device_push.offsets[part->task.arg];
  return zps_slice_view_own(part->push_codec, part->m, part->nnz, tensor->width, zps_dtype_sum(tensor->dtype),
                            zps_served_part_value_codec(part), slice, part->push_bytes);
}

void zps_device_push_copy(const struct zps_served_part *part, void *out) {
  const struct zps_device_push *const push = &zps_served_of(part->task.round)->device_push;
  memcpy(out, (const char *)push->small + push->offsets[part->task.arg], (size_t)part->push_bytes);
}

bool zps_device_push_is_direct(const struct zps_served_round *round) {
  return round->base.in.memory == ZENPS_DEVICE && round->base.device->path != ZPS_PATH_STAGED;
}

zps_err_t zps_device_push_expose(struct zps_served_part *part, struct zps_net *net) {
  struct zps_served_round *const round = zps_served_of(part->task.round);
  struct zps_device_push *const push = &round->device_push;
  if (push->slices.exposed != push->slices.at) {
    struct zps_error error;
    if (push->slices.exposed) zps_net_mem_release(net, &push->slices.mem);
    push->slices.exposed = NULL;
    const zps_err_t code = zps_worker_device_register(round->base.device, net, push->slices.at, push->slices.cap,
                                                      &push->slices.mem, &error);
    if (code != ZPS_OK) {
      zps_log_warn("%zu bytes of GPU %d cannot be registered: %s", push->slices.cap, round->base.device->index,
                   error.text);
      return code;
    }
    push->slices.exposed = push->slices.at;
  }
  round->base.on_device_bytes = push->slices.cap;
  part->push_buf = (struct zps_buf){.mem = &push->slices.mem,
                                    .addr = push->slices.mem.addr + push->offsets[part->task.arg],
                                    .key = push->slices.mem.key,
                                    .more = push->slices.mem.more};
  return ZPS_OK;
}

void zps_device_push_write(struct zps_round_task *task) {
  struct zps_served_round *const round = zps_served_of(task->round);
  const struct zps_device_push *const push = &round->device_push;
  const struct zps_served_part *const part = &round->parts[task->arg];
  const struct zps_stage_source source = {.at_on_device = push->slices.at,
                                          .len_bytes = push->slices_bytes,
                                          .serial = push->serial,
                                          .stream = round->base.in.stream};
  struct zps_error error;
  if (zps_device_push_is_direct(round)) { /* it is where it is read: it only has to be written */
    const zps_err_t code =
        zps_stage_wait(round->base.device->device, push->mark.event, round->base.deadline_ns, &error);
    if (code != ZPS_OK) zps_round_task_fail(task, &error);
    return;
  }
  if (zps_stage_read(round->base.device->in_stage, &source, push->offsets[task->arg], (size_t)part->push_bytes,
                     part->push_data, round->base.deadline_ns, &error) != ZPS_OK)
    zps_round_task_fail(task, &error);
}
