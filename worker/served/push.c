#include "common/base/clock.h"
#include "common/base/container.h"
#include "worker/served/served.h"

/* The servers' deadline is a little before ours: they know which ranks are missing, we do not. */
static uint32_t push_timeout_ms(const struct zps_served_round *round, uint64_t now_ns) {
  if (now_ns >= round->base.deadline_ns) return 1;
  const uint64_t left_ms = (round->base.deadline_ns - now_ns) / ZPS_NS_PER_MS;
  const uint64_t margin_ms = left_ms / 4 < 1000 ? left_ms / 4 : 1000;
  const uint64_t timeout_ms = left_ms - margin_ms;
  return timeout_ms < 1 ? 1 : timeout_ms > UINT32_MAX ? UINT32_MAX : (uint32_t)timeout_ms;
}

enum zps_value_codec zps_served_part_value_codec(const struct zps_served_part *part) {
  return part->is_wide ? ZPS_VALUES_RAW : part->task.round->tensor->value_codec;
}

/* ------------------------------------------------------------ encode */

/* That of memory of a device was made there. */
static void sum_up(struct zps_round_task *task) {
  struct zps_served_part *part = &zps_served_of(task->round)->parts[task->arg];
  part->push_sum = part->push_buf.owner
                       ? zps_checks_sum(task->round->plane->checks, part->push_data, (size_t)part->push_bytes)
                       : zps_device_push_sum(part);
}

static void write_run(struct zps_round_task *task) {
  const struct zps_served_part *part = &zps_served_of(task->round)->parts[task->arg];
  if (zps_device_has_gradient(task->round))
    zps_device_push_write(task);
  else
    zps_encoder_write(zps_served_of(task->round)->encoder, task->arg, part->push_codec, part->push_data);
  sum_up(task);
}

static void write_done(struct zps_round_task *task) {
  zps_round_event(task->round, ZPS_MACHINE_WRITTEN, task->arg, 0, ZPS_OK);
}

/* Partitions that travel inside frames: many and small, so one task for all of them. */
static void small_run(struct zps_round_task *task) {
  struct zps_served_round *round = zps_served_of(task->round);
  if (zps_device_has_gradient(&round->base) && !zps_device_push_small(task)) return;
  const uint32_t n = zps_served_scan_parts(round), first = task->arg * n;
  for (uint32_t p = first; p < first + n; p++) {
    struct zps_served_part *part = &round->parts[p];
    if (zps_served_part_is_inline(part) && part->joined_to == part) zps_served_part_write_joined(part);
  }
}

static void small_done(struct zps_round_task *task) {
  struct zps_served_round *round = zps_served_of(task->round);
  const uint32_t n = zps_served_scan_parts(round), first = task->arg * n;
  for (uint32_t p = first; p < first + n; p++) {
    if (zps_served_part_is_inline(&round->parts[p])) zps_round_event(&round->base, ZPS_MACHINE_WRITTEN, p, 0, ZPS_OK);
  }
}

void zps_served_push_init(struct zps_served_round *round) {
  zps_served_scan_init(round);
  for (uint32_t i = 0; i < zps_partition_stripes(&round->base.tensor->part); i++)
    round->scans[i].small =
        (struct zps_round_task){.round = &round->base, .run = small_run, .done = small_done, .arg = i};
}

static bool are_apart(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes) {
  return (uintptr_t)a + a_bytes <= (uintptr_t)b || (uintptr_t)b + b_bytes <= (uintptr_t)a;
}

/* Most pairs of sections that are compared before the round begins. */
#define PAIRS_MAX (1u << 18)

static bool sections_are_apart(const struct zps_sections *in, const struct zps_sections *out, uint64_t row_bytes) {
  if ((uint64_t)in->n * out->n > PAIRS_MAX) return false;
  for (uint32_t i = 0; i < in->n; i++)
    for (uint32_t j = 0; j < out->n; j++)
      if (!are_apart(in->list[i].values, in->list[i].n_rows * row_bytes, out->list[j].values,
                     out->list[j].n_rows * row_bytes))
        return false;
  return true;
}

bool zps_served_is_apart(const struct zps_served_round *round) {
  const struct zps_round *const base = &round->base;
  const struct zps_tensor_shape *const shape = &base->tensor->shape;
  if (base->out->layout != ZENPS_DENSE || base->out->memory != ZENPS_HOST) return false;
  struct zps_section in = {.n_rows = shape->rows, .values = base->in.values}, out = in;
  out.values = base->out->values;
  const struct zps_sections one_in = {.list = &in, .n = 1}, one_out = {.list = &out, .n = 1};
  return sections_are_apart(base->in_sections ? base->in_sections : &one_in,
                            base->out_sections ? base->out_sections : &one_out,
                            zps_row_bytes(shape->width, shape->dtype));
}

/* Sizes are known: sorts the scan's partitions into those that travel inside frames and those that need registered
 * memory. */
static void sort_parts(struct zps_served_round *round, uint32_t scan) {
  const struct zps_round_tensor *tensor = round->base.tensor;
  const uint32_t n = zps_served_scan_parts(round), first = scan * n;
  round->scans[scan].any_inline = false;
  round->n_sized = first + n;
  zps_served_join(round, first, first + n);
  for (uint32_t p = first; p < first + n; p++) {
    struct zps_served_part *part = &round->parts[p];
    part->push_data = NULL;
    round->base.sent[p] = part->nnz;
    round->base.stats.nnz_in += part->nnz;
    round->base.bound_bytes += zps_codec_bound_bytes(part->m, part->nnz, tensor->width, zps_dtype_sum(tensor->dtype),
                                                     zps_served_part_value_codec(part));
    if (!zps_served_part_is_inline(part)) continue;
    round->scans[scan].any_inline = true;
    if (part->joined_to != part || part->slice_bytes == 0) continue;
    part->push_data = zps_arena_get(&round->base.arena, (size_t)part->slice_bytes);
    if (!part->push_data) {
      zps_round_defer(&round->base, ZPS_MACHINE_FAIL, 0, ZPS_ERR_NOMEM);
      return;
    }
  }
}

/* The partition that gets its buffer as number `i`: scan after scan, and in several scans each rank begins with another
 * partition, and so with another server. */
static uint32_t part_in_order(const struct zps_served_round *round, uint32_t i) {
  const uint32_t n = zps_served_scan_parts(round), in_scan = i % n;
  return round->n_scans == 1 ? i : i - in_scan + (in_scan + (uint32_t)round->base.plane->rank) % n;
}

/* Passes over partitions that need no buffer. */
static bool needs_buffer(struct zps_served_round *round) {
  while (round->next_buffer < round->n_sized &&
         zps_served_part_is_inline(&round->parts[part_in_order(round, round->next_buffer)]))
    round->next_buffer++;
  return round->next_buffer < round->n_sized;
}

bool zps_served_has_buffers(const struct zps_served_round *round) {
  return round->next_buffer == round->base.tensor->part.n_parts;
}

/* A round that has begun to take memory keeps its place in the line until it has all: two that have each some of what
 * there is could wait for each other. */
void zps_served_write(struct zps_served_round *round, uint32_t scan) {
  struct zps_plane *plane = round->base.plane;
  if (!round->is_small) sort_parts(round, scan);
  if (round->base.has_deferred) return;
  struct zps_round_task *small = &round->scans[scan].small;
  if (round->scans[scan].any_inline)
    zps_round_task_start(small, zps_device_push_pool(&round->base, small->has_run ? NULL : plane->pool));
  if (zps_plane_memory_waits(&round->wait) || needs_buffer(round))
    zps_plane_memory_want(&plane->memory, ZPS_LINE_PUSH, &round->wait);
  else if (zps_served_has_buffers(round))
    zps_served_pull_resume(round);
}

/* The tensor's last round tells what to expect of this one. */
static bool is_small(const struct zps_served_round *round) {
  const struct zps_round_tensor *tensor = round->base.tensor;
  if (zps_device_has_gradient(&round->base)) return false;
  if (round->base.in.layout == ZENPS_ROWS)
    return round->base.in.nnz <=
           ZPS_SMALL_BYTES / (zps_round_tensor_row_bytes(tensor) + sizeof *round->base.in.row_ids);
  const uint64_t bytes = zps_tensor_shape_bytes(&tensor->shape);
  return bytes <= ZPS_SMALL_BYTES ||
         (bytes <= ZPS_SMALL_DENSE_BYTES &&
          atomic_load_explicit(&tensor->last_bytes, memory_order_relaxed) <= ZPS_SMALL_BYTES);
}

void zps_served_prepare(struct zps_round *base) {
  struct zps_served_round *round = zps_served_of(base);
  if (base->only_takes) return;
  round->is_small = is_small(round);
  if (!round->is_small) return;
  zps_round_task_run_ahead(&round->scans->find);
  if (round->base.has_work_error) return;
  sort_parts(round, 0);
  if (!round->base.has_deferred && round->scans->any_inline) zps_round_task_run_ahead(&round->scans->small);
}

static void start_write(struct zps_served_part *part) {
  struct zps_served_round *round = zps_served_of(part->task.round);
  part->task.run = write_run;
  part->task.done = write_done;
  zps_round_task_start(&part->task, zps_device_push_pool(&round->base, round->base.plane->pool));
}

zps_err_t zps_served_take_buffers(struct zps_plane_wait *wait) {
  struct zps_served_round *round = zps_container_of(wait, struct zps_served_round, wait);
  struct zps_plane *plane = round->base.plane;
  for (; needs_buffer(round); round->next_buffer++) {
    struct zps_served_part *part = &round->parts[part_in_order(round, round->next_buffer)];
    if (zps_device_push_is_direct(round)) {
      const zps_err_t err = zps_device_push_expose(part, zps_engine_net(plane->engine));
      if (err != ZPS_OK) return err;
      start_write(part);
      continue;
    }
    const zps_err_t err =
        zps_plane_memory_get(&plane->memory, ZPS_LINE_PUSH, &round->base.used, true, part->push_bytes, &part->push_buf);
    if (err != ZPS_OK) return err;
    part->push_data = part->push_buf.data;
    start_write(part);
  }
  if (!zps_served_has_buffers(round)) return ZPS_ERR_AGAIN;
  zps_served_pull_resume(round);
  return ZPS_OK;
}

/* ------------------------------------------------------------ announce */

void zps_served_announce(struct zps_served_round *round, uint32_t partition) {
  struct zps_served_server *server = &round->servers[round->base.owners[partition]];
  struct zps_served_part *part = &round->parts[partition];
  if (round->is_remapped && !zps_served_part_from_joined(part)) return;
  if (part->joined_to != part) return; /* it travels with another one */
  round->base.stats.payload_out += part->slice_bytes;
  part->next_ready = NULL;
  *server->ready_tail = part;
  server->ready_tail = &part->next_ready;
}

static void fill_slice(const struct zps_served_part *part, struct zps_slice *slice) {
  *slice = (struct zps_slice){.partition = part->task.arg,
                              .n_more = part->n_more,
                              .codec = (uint8_t)part->slice_codec,
                              .is_inline = zps_served_part_is_inline(part),
                              .is_wide = part->is_wide,
                              .nnz = part->slice_nnz,
                              .len_bytes = part->slice_bytes};
  if (slice->is_inline) {
    slice->data = part->push_data;
  } else {
    slice->addr = part->push_buf.addr;
    slice->key = part->push_buf.key;
    slice->more = part->push_buf.more;
    slice->sum = part->push_sum;
  }
}

/* One frame of as many slices as fit; returns the first partition that did not. *bulk_bytes_p: what the server reads
 * for it. */
static struct zps_served_part *fill_push(const struct zps_served_round *round, struct zps_served_part *ready,
                                         uint64_t now_ns, struct zps_frame *frame, uint64_t *bulk_bytes_p) {
  struct zps_frame_round *push = &frame->u.round;
  uint64_t inline_bytes = 0;
  *bulk_bytes_p = 0;
  frame->header =
      (struct zps_frame_header){.type = round->base.only_gives || round->base.wants ? ZPS_FRAME_GIVE : ZPS_FRAME_PUSH};
  zps_frame_round_init(push);
  push->tensor = round->base.tensor->id;
  push->step = round->base.step;
  push->is_absent = round->base.is_absent;
  push->total_nnz = round->base.stats.nnz_in;
  push->timeout_ms = push_timeout_ms(round, now_ns);
  for (; ready && push->n_slices < ZPS_WIRE_SLICES_MAX; ready = ready->next_ready) {
    struct zps_slice *const slice = &push->slices[push->n_slices];
    fill_slice(ready, slice);
    if (inline_bytes + zps_slice_room(slice) > ZPS_WIRE_INLINE_MAX) break;
    inline_bytes += zps_slice_room(slice);
    *bulk_bytes_p += slice->is_inline ? 0 : slice->len_bytes;
    push->n_slices++;
  }
  return ready;
}

/* The frame that ends the round for this server: DONE or ABORT. */
static zps_err_t send_end(struct zps_served_round *round, uint32_t server, struct zps_frame *frame) {
  struct zps_served_server *state = &round->servers[server];
  struct zps_plane *plane = round->base.plane;
  if (state->owes_done || round->base.only_takes) { /* a round that only takes ends nothing but its own part */
    frame->header = (struct zps_frame_header){.type = ZPS_FRAME_DONE};
    frame->u.done = (struct zps_frame_done){.tensor = round->base.tensor->id, .step = round->base.step};
  } else {
    frame->header = (struct zps_frame_header){.type = ZPS_FRAME_ABORT};
    frame->u.abort = round->base.reason;
    frame->u.abort.tensor = round->base.tensor->id;
    frame->u.abort.step = round->base.step;
    frame->u.abort.code = round->base.machine->code;
  }
  const zps_err_t err = zps_link_send(plane->servers[server].link, frame);
  if (err == ZPS_ERR_AGAIN || err == ZPS_ERR_NOMEM) return ZPS_ERR_AGAIN; /* untold, the server would wait in vain */
  if (err == ZPS_OK && state->owes_done) round->base.stats.bytes_out += frame->len_bytes;
  state->owes_done = state->owes_abort = false;
  return err;
}

/* An owner that has not closed the round itself must not decide anew. */
static zps_err_t send_closed(struct zps_served_round *round, uint32_t server) {
  const struct zps_round *const base = &round->base;
  struct zps_frame frame = {.header.type = ZPS_FRAME_CLOSED};
  frame.u.closed.tensor = base->tensor->id;
  frame.u.closed.step = base->step;
  frame.u.closed.n_bytes = base->n_late_bytes;
  if (base->n_late_bytes > 0) memcpy(frame.u.closed.late, base->late, base->n_late_bytes);
  const zps_err_t err = zps_link_send(base->plane->servers[server].link, &frame);
  if (err == ZPS_OK) round->servers[server].knows_closed = true;
  return err;
}

zps_err_t zps_served_send_ready(struct zps_served_round *round, uint32_t server, uint64_t now_ns) {
  struct zps_served_server *state = &round->servers[server];
  struct zps_remote *peer = &round->base.plane->servers[server];
  struct zps_frame frame;
  zps_err_t err = ZPS_OK;
  if (peer->lost) state->owes_done = state->owes_abort = false;
  if (round->base.only_takes && !state->announced) state->owes_abort = false; /* it was not asked for anything */
  if (peer->lost || zps_round_machine_over(round->base.machine)) {
    state->ready = NULL;
    state->asks = false;
  }
  if (round->base.is_decided && !state->knows_closed && state->ready) err = send_closed(round, server);
  if (state->asks) err = zps_served_ask(round, server, push_timeout_ms(round, now_ns));
  while (state->ready && err == ZPS_OK) {
    uint64_t bulk_bytes;
    struct zps_served_part *rest = fill_push(round, state->ready, now_ns, &frame, &bulk_bytes);
    err = zps_link_send(peer->link, &frame);
    if (err != ZPS_OK) break;
    state->announced = true;
    state->ready = rest;
    round->base.stats.bytes_out += frame.len_bytes + bulk_bytes;
    if (round->base.announced_first_ns == 0) round->base.announced_first_ns = now_ns;
    round->base.announced_last_ns = now_ns;
  }
  if (!state->ready) state->ready_tail = &state->ready;
  if (err == ZPS_OK && !state->ready && (state->owes_done || state->owes_abort)) err = send_end(round, server, &frame);
  if (err == ZPS_OK || err == ZPS_ERR_AGAIN) return err;
  if (err == ZPS_ERR_PEER_LOST) {
    zps_plane_lose(peer, "the fabric cannot reach it");
  } else {
    zps_round_fail(&round->base, err, "cannot send to server %u (%s): %s", server, peer->name, zps_err_str(err));
  }
  return ZPS_OK;
}
