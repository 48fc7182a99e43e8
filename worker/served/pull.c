#include <inttypes.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/container.h"
#include "common/codec/join.h"
#include "worker/device/device.h"
#include "worker/api/job.h"
#include "worker/plane/plane.h"
#include "worker/api/request.h"
#include "worker/round/round.h"
#include "worker/api/tensor.h"

/* ------------------------------------------------------------ results */

void zps_served_part_put_pull_buf(struct zps_served_part *part) {
  struct zps_round *round = part->task.round;
  zps_round_put_buf(round, &part->pull_buf, &round->pull_held, &round->plane->pull_held);
}

static void uploaded(struct zps_round_task *task) {
  zps_served_part_put_pull_buf(&task->round->parts[task->arg]);
  zps_round_event(task->round, ZPS_MACHINE_LANDED, task->arg, 0, ZPS_OK);
}

static void landed(struct zps_served_part *part) {
  struct zps_round *round = part->task.round;
  round->landed_last_ns = zps_clock_ns();
  if (round->out->memory == ZENPS_DEVICE) {
    part->task.run = zps_device_pull_upload;
    part->task.done = uploaded;
    zps_round_task_start(&part->task, round->device->out_pool);
    return;
  }
  zps_round_event(round, ZPS_MACHINE_LANDED, part->task.arg, 0, ZPS_OK);
}

static void refuse(struct zps_round *round, uint32_t server, uint32_t p, const char *why) {
  zps_round_fail(round, ZPS_ERR_PROTOCOL, "server %u (%s) announces an impossible sum of partition %" PRIu32 ": %s",
                 server, round->plane->servers[server].name, p, why);
}

/* While some of our own pushes have no memory yet, sums, which may have to wait for all of these, take none of what
 * pushes could need at most. */
static bool may_read(const struct zps_round *round, uint64_t len_bytes) {
  const struct zps_plane *plane = round->plane;
  if (round->n_scans == 1 || zps_served_has_buffers(round)) return true;
  const uint64_t pushes_bytes = 2 * zps_worker_tensor_dense_bytes(round->tensor);
  return plane->push_held + plane->pull_held + pushes_bytes + len_bytes <= plane->memory_limit_bytes / 2;
}

static void hold_back(struct zps_served_part *part) {
  struct zps_round *round = part->task.round;
  part->next_pull = NULL;
  *round->held_back_tail = part;
  round->held_back_tail = &part->next_pull;
}

void zps_served_pull_held_back(struct zps_round *round) {
  struct zps_served_part *part = round->held_back;
  round->held_back = NULL;
  round->held_back_tail = &round->held_back;
  for (struct zps_served_part *next; part; part = next) {
    next = part->next_pull;
    zps_plane_wait_pull(round->plane, part);
  }
}

/* One partition's sum, of which the sizes are checked. Its inline bytes live as long as the frame, so they are copied.
 */
static void take_part(struct zps_round *round, uint32_t server, const struct zps_slice *slice) {
  const struct zenps_tensor *tensor = round->tensor;
  const uint32_t p = slice->partition;
  struct zps_served_part *part = &round->parts[p];
  part->told = true;
  zps_served_summed(round, part);
  zps_round_event(round, ZPS_MACHINE_RESULT, p, server, ZPS_OK);
  if (zps_round_machine_over(round->machine) || !part->wanted) return;
  part->result = *slice;
  part->result.data = NULL;
  round->request->in_union[p] = slice->nnz;
  round->stats.nnz_out += slice->nnz;
  round->bound_bytes += zps_codec_bound_bytes(part->m, slice->nnz, tensor->width, tensor->dtype, tensor->value_codec);
  if (!slice->is_inline) {
    round->servers[server].any_remote = true;
    if (may_read(round, slice->len_bytes))
      zps_plane_wait_pull(round->plane, part);
    else
      hold_back(part);
    return;
  }
  part->sum = zps_arena_get(&round->arena, (size_t)slice->len_bytes);
  if (!part->sum) {
    zps_round_fail(round, ZPS_ERR_NOMEM, "no memory for a sum of %" PRIu64 " bytes", slice->len_bytes);
    return;
  }
  if (slice->len_bytes > 0) memcpy(part->sum, slice->data, (size_t)slice->len_bytes);
  landed(part);
}

/* The next partition of the same owner; n_parts when there is none. */
static uint32_t next_owned(const struct zenps_tensor *tensor, uint32_t p) {
  const uint32_t server = tensor->owners[p++];
  while (p < tensor->part.n_parts && tensor->owners[p] != server) p++;
  return p;
}

/* Several partitions' sums joined: checked as a whole, then taken one by one. */
static void take_joined(struct zps_round *round, uint32_t server, const struct zps_slice *slice) {
  const struct zenps_tensor *tensor = round->tensor;
  unsigned char coo[ZPS_JOIN_BYTES_MAX];
  struct zps_split split;
  struct zps_error error;
  uint64_t m = 0;
  uint32_t p = slice->partition, n = 0;
  for (; n <= slice->n_more && p < tensor->part.n_parts; n++, p = next_owned(tensor, p)) m += round->parts[p].m;
  if (n <= slice->n_more) {
    refuse(round, server, slice->partition, "it is joined to more than the server owns");
    return;
  }
  if (zps_split_init(&split, slice->codec, m, slice->nnz, tensor->width, tensor->dtype, tensor->value_codec,
                     slice->data, slice->len_bytes, &error) != ZPS_OK) {
    refuse(round, server, slice->partition, error.text);
    return;
  }
  p = slice->partition;
  for (n = 0; n <= slice->n_more && !zps_round_machine_over(round->machine); n++, p = next_owned(tensor, p)) {
    struct zps_slice one = {.partition = p, .codec = ZPS_CODEC_COO, .is_inline = true, .data = coo};
    one.nnz = zps_split_next(&split, round->parts[p].m);
    one.len_bytes = zps_split_write(&split, coo);
    take_part(round, server, &one);
  }
}

static void take_slice(struct zps_round *round, uint32_t server, const struct zps_slice *slice) {
  const struct zenps_tensor *tensor = round->tensor;
  const uint32_t p = slice->partition;
  struct zps_error error;
  if (slice->is_inline) round->stats.payload_in += slice->len_bytes;
  if (slice->n_more > 0)
    take_joined(round, server, slice);
  else if (zps_slice_check_sizes(slice->codec, round->parts[p].m, slice->nnz, tensor->width, tensor->dtype,
                                 tensor->value_codec, slice->len_bytes, &error) == ZPS_OK)
    take_part(round, server, slice);
  else
    refuse(round, server, p, error.text);
}

/* The round is over, but the server has read what we pushed, and may stop lingering. */
static void note_told(struct zps_round *round, const struct zps_slice *slice) {
  const struct zenps_tensor *tensor = round->tensor;
  uint32_t p = slice->partition;
  for (uint32_t n = 0; n <= slice->n_more && p < tensor->part.n_parts; n++, p = next_owned(tensor, p))
    round->parts[p].told = true;
}

void zps_served_result(struct zps_round *round, uint32_t server, const struct zps_frame *frame) {
  const struct zps_frame_round *result = &frame->u.round;
  if (round->result_first_ns == 0) round->result_first_ns = zps_clock_ns();
  round->stats.bytes_in += frame->len_bytes;
  for (uint32_t i = 0; i < result->n_slices; i++) {
    const struct zps_slice *slice = &result->slices[i];
    const uint32_t p = slice->partition;
    if (p >= round->tensor->part.n_parts || round->tensor->owners[p] != server)
      zps_round_fail(round, ZPS_ERR_PROTOCOL,
                     "server %u (%s) announces the sum of partition %" PRIu32 ", which it does not own", server,
                     round->plane->servers[server].name, p);
    else if (zps_round_machine_over(round->machine))
      note_told(round, slice);
    else
      take_slice(round, server, slice);
  }
  zps_round_touch(round);
}

/* ------------------------------------------------------------ reads */

static void read_done(struct zps_bulk_read *read, zps_err_t code) {
  struct zps_served_part *part = zps_container_of(read, struct zps_served_part, read);
  struct zps_round *round = part->task.round;
  const uint32_t server = round->tensor->owners[part->task.arg];
  zps_round_touch(round);
  if (code == ZPS_ERR_PEER_LOST) { /* the buffer comes back with the release */
    zps_plane_server_lost(round->plane, server, "reading a sum from it failed");
    return;
  }
  round->n_reads--;
  if (code == ZPS_OK) {
    round->stats.bytes_in += part->result.len_bytes;
    round->stats.payload_in += part->result.len_bytes;
    if (!zps_round_machine_over(round->machine)) landed(part);
  } else {
    zps_round_fail(round, code, "reading the sum of partition %" PRIu32 " from server %u (%s) failed: %s",
                   part->task.arg, server, round->plane->servers[server].name, zps_err_str(code));
  }
}

static void read_release(struct zps_bulk_read *read) {
  struct zps_served_part *part = zps_container_of(read, struct zps_served_part, read);
  part->task.round->n_reads--;
  zps_round_touch(part->task.round);
}

static void start_read(struct zps_served_part *part, const struct zps_net_mem *mem) {
  struct zps_round *round = part->task.round;
  part->read = (struct zps_bulk_read){.local = part->sum,
                                      .mem = mem,
                                      .len = part->result.len_bytes,
                                      .addr = part->result.addr,
                                      .key = part->result.key,
                                      .done = read_done,
                                      .release = read_release};
  round->n_reads++;
  zps_bulk_start(round->plane->servers[round->tensor->owners[part->task.arg]].bulk, &part->read);
}

zps_err_t zps_served_part_read(struct zps_served_part *part) {
  struct zps_round *round = part->task.round;
  struct zps_plane *plane = round->plane;
  struct zps_remote *server = &plane->servers[round->tensor->owners[part->task.arg]];
  if (server->lost) return ZPS_OK; /* the round fails for it */
  const struct zps_net_mem *mem;
  if (round->device_pull.is_direct) {
    const zps_err_t err = zps_device_pull_room(part, zps_engine_net(plane->engine), &mem);
    if (err == ZPS_OK) start_read(part, mem);
    return err;
  }
  const zps_err_t err = zps_slab_get(zps_engine_slab(plane->engine), (size_t)part->result.len_bytes, &part->pull_buf);
  if (err != ZPS_OK) {
    const bool alone = plane->push_held == round->push_held && plane->pull_held == round->pull_held;
    return err == ZPS_ERR_AGAIN && alone && round->n_reads == 0 && round->n_tasks == 0 ? ZPS_ERR_NOMEM : err;
  }
  round->pull_held += part->pull_buf.cap;
  plane->pull_held += part->pull_buf.cap;
  part->sum = part->pull_buf.data;
  start_read(part, part->pull_buf.mem);
  return ZPS_OK;
}
