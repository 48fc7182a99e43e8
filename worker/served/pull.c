#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/container.h"
#include "common/codec/join.h"
#include "worker/round/decided.h"
#include "worker/served/served.h"

/* ------------------------------------------------------------ results */

void zps_served_part_put_pull_buf(struct zps_served_part *part) {
  struct zps_served_round *round = zps_served_of(part->task.round);
  zps_plane_memory_put(&round->base.plane->memory, ZPS_LINE_PULL, &round->base.used, &part->pull_buf);
}

static void uploaded(struct zps_round_task *task) {
  struct zps_served_round *round = zps_served_of(task->round);
  round->n_uploads--;
  zps_served_part_put_pull_buf(&round->parts[task->arg]);
  zps_round_event(task->round, ZPS_MACHINE_LANDED, task->arg, 0, ZPS_OK);
}

/* Where the result is in device memory, the sum goes there first. */
static bool lands_on_device(struct zps_served_part *part) {
  struct zps_served_round *round = zps_served_of(part->task.round);
  round->base.landed_last_ns = zps_clock_ns();
  if (round->base.out->memory != ZENPS_DEVICE) return false;
  round->n_uploads++;
  part->task.run = zps_device_pull_upload;
  part->task.done = uploaded;
  zps_round_task_start(&part->task, round->base.device->out_pool);
  return true;
}

static void refuse(struct zps_served_round *round, uint32_t server, uint32_t p, const char *why) {
  zps_round_fail(&round->base, ZPS_ERR_PROTOCOL,
                 "server %u (%s) announces an impossible sum of partition %" PRIu32 ": %s", server,
                 round->base.plane->servers[server].name, p, why);
}

/* While some of this round's pushes have no memory yet, sums leave them the most that they could need: the sums may
 * have to wait for these pushes. */
static bool may_read(const struct zps_served_round *round, uint64_t len_bytes) {
  if (round->n_scans == 1 || zps_served_has_buffers(round)) return true;
  return zps_plane_memory_spares(&round->base.plane->memory, 2 * zps_tensor_shape_bytes(&round->base.tensor->shape),
                                 len_bytes);
}

static void want(struct zps_served_part *part) {
  struct zps_plane *plane = part->task.round->plane;
  zps_plane_memory_want(&plane->memory, ZPS_LINE_PULL, &part->wait);
}

static void hold_back(struct zps_served_part *part) {
  struct zps_served_round *round = zps_served_of(part->task.round);
  part->next_held_back = NULL;
  *round->held_back_tail = part;
  round->held_back_tail = &part->next_held_back;
}

void zps_served_pull_resume(struct zps_served_round *round) {
  struct zps_served_part *part = round->held_back;
  round->held_back = NULL;
  round->held_back_tail = &round->held_back;
  for (struct zps_served_part *next; part; part = next) {
    next = part->next_held_back;
    want(part);
  }
}

/* Inline bytes of the sum live as long as the frame, so they are copied. */
void zps_served_read(struct zps_served_round *round, uint32_t partition) {
  const struct zps_round_tensor *tensor = round->base.tensor;
  const struct zps_slice *slice = round->at_hand;
  struct zps_served_part *part = &round->parts[partition];
  part->result = *slice;
  part->result.data = NULL;
  round->base.in_union[partition] = slice->nnz;
  round->base.stats.nnz_out += slice->nnz;
  round->base.bound_bytes +=
      zps_codec_bound_bytes(part->m, slice->nnz, tensor->width, tensor->dtype, tensor->value_codec);
  if (!slice->is_inline) {
    if (may_read(round, slice->len_bytes))
      want(part);
    else
      hold_back(part);
    return;
  }
  part->sum = zps_arena_get(&round->base.arena, (size_t)slice->len_bytes);
  if (!part->sum) {
    zps_round_defer(&round->base, ZPS_MACHINE_FAIL, 0, ZPS_ERR_NOMEM);
    return;
  }
  if (slice->len_bytes > 0) memcpy(part->sum, slice->data, (size_t)slice->len_bytes);
  if (!lands_on_device(part)) zps_round_defer(&round->base, ZPS_MACHINE_LANDED, partition, ZPS_OK);
}

/* One partition's sum, of which the sizes are checked. */
static void take_part(struct zps_served_round *round, uint32_t server, const struct zps_slice *slice) {
  struct zps_served_part *part = &round->parts[slice->partition];
  if (round->base.wants && slice->nnz > round->base.wants->parts[slice->partition].n_rows) {
    refuse(round, server, slice->partition, "it has more rows than were asked for");
    return;
  }
  part->told = true;
  round->servers[server].any_remote |= !slice->is_inline;
  zps_served_summed(round, part);
  round->at_hand = slice;
  zps_round_event(&round->base, ZPS_MACHINE_RESULT, slice->partition, server, ZPS_OK);
  round->at_hand = NULL;
}

/* The next partition of the same owner; n_parts when there is none. */
static uint32_t next_owned(const struct zps_round *base, uint32_t p) {
  const uint32_t server = base->owners[p++];
  while (p < base->tensor->part.n_parts && base->owners[p] != server) p++;
  return p;
}

/* Several partitions' sums joined: checked as a whole, then taken one by one. */
static void take_joined(struct zps_served_round *round, uint32_t server, const struct zps_slice *slice) {
  const struct zps_round_tensor *tensor = round->base.tensor;
  unsigned char coo[ZPS_JOIN_BYTES_MAX];
  struct zps_split split;
  struct zps_error error;
  uint64_t m = 0;
  uint32_t p = slice->partition, n = 0;
  for (; n <= slice->n_more && p < tensor->part.n_parts; n++, p = next_owned(&round->base, p)) m += round->parts[p].m;
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
  for (n = 0; n <= slice->n_more && !zps_round_machine_over(round->base.machine);
       n++, p = next_owned(&round->base, p)) {
    struct zps_slice one = {.partition = p, .codec = ZPS_CODEC_COO, .is_inline = true, .data = coo};
    one.nnz = zps_split_next(&split, round->parts[p].m);
    one.len_bytes = zps_split_write(&split, coo);
    take_part(round, server, &one);
  }
}

static void take_slice(struct zps_served_round *round, uint32_t server, const struct zps_slice *slice) {
  const struct zps_round_tensor *tensor = round->base.tensor;
  const uint32_t p = slice->partition;
  struct zps_error error;
  if (slice->is_inline) round->base.stats.payload_in += slice->len_bytes;
  if (slice->n_more > 0)
    take_joined(round, server, slice);
  else if (zps_slice_check_sizes(slice->codec, round->parts[p].m, slice->nnz, tensor->width, tensor->dtype,
                                 tensor->value_codec, slice->len_bytes, &error) == ZPS_OK)
    take_part(round, server, slice);
  else
    refuse(round, server, p, error.text);
}

/* The round is over, but the server has read what we pushed, and may stop lingering. */
static void note_told(struct zps_served_round *round, const struct zps_slice *slice) {
  const struct zps_round_tensor *tensor = round->base.tensor;
  uint32_t p = slice->partition;
  for (uint32_t n = 0; n <= slice->n_more && p < tensor->part.n_parts; n++, p = next_owned(&round->base, p))
    round->parts[p].told = true;
}

/* All servers say the same. */
static void take_contributors(struct zps_served_round *round, uint32_t server, uint32_t n_absent) {
  struct zps_round *base = &round->base;
  const uint32_t world = base->tensor->world;
  const int contributors = (int)(world - n_absent);
  if (n_absent > world || (base->contributors >= 0 && base->contributors != contributors))
    zps_round_fail(base, ZPS_ERR_PROTOCOL,
                   "server %u (%s) says that %" PRIu32 " of %" PRIu32 " ranks contribute nothing%s", server,
                   base->plane->servers[server].name, n_absent, world,
                   n_absent > world ? "" : ", another server says otherwise");
  else
    base->contributors = contributors;
}

static void note_late(struct zps_served_round *round, uint32_t server, const uint8_t *late, uint32_t n_bytes) {
  struct zps_round *base = &round->base;
  round->servers[server].knows_closed = true;
  const zps_err_t err = zps_decided_note(base, late, n_bytes);
  if (err == ZPS_ERR_PROTOCOL)
    zps_round_fail(base, err,
                   "server %u (%s) has other late ranks than were told before, or some that the job does not have",
                   server, base->plane->servers[server].name);
  else if (err != ZPS_OK)
    zps_round_fail(base, err, "no memory for the late ranks");
}

void zps_served_closed(struct zps_served_round *round, uint32_t server, const struct zps_frame_closed *closed) {
  zps_round_touch(&round->base);
  if (round->base.tensor->quorum > 0)
    note_late(round, server, closed->late, closed->n_bytes);
  else
    zps_round_fail(&round->base, ZPS_ERR_PROTOCOL, "server %u (%s) closes a round of a tensor without a quorum", server,
                   round->base.plane->servers[server].name);
}

void zps_served_result(struct zps_served_round *round, uint32_t server, const struct zps_frame *frame) {
  const struct zps_frame_round *result = &frame->u.round;
  if (round->base.result_first_ns == 0) round->base.result_first_ns = zps_clock_ns();
  round->base.stats.bytes_in += frame->len_bytes;
  if (round->base.tensor->quorum > 0 && !round->base.is_decided) note_late(round, server, NULL, 0);
  take_contributors(round, server, result->n_absent);
  for (uint32_t i = 0; i < result->n_slices; i++) {
    const struct zps_slice *slice = &result->slices[i];
    const uint32_t p = slice->partition;
    if (p >= round->base.tensor->part.n_parts || round->base.owners[p] != server)
      zps_round_fail(&round->base, ZPS_ERR_PROTOCOL,
                     "server %u (%s) announces the sum of partition %" PRIu32 ", which it does not own", server,
                     round->base.plane->servers[server].name, p);
    else if (zps_round_machine_over(round->base.machine))
      note_told(round, slice);
    else
      take_slice(round, server, slice);
  }
  zps_round_touch(&round->base);
}

void zps_served_taken(struct zps_served_round *round, uint32_t server, const struct zps_frame *frame) {
  const struct zps_round_tensor *tensor = round->base.tensor;
  round->base.stats.bytes_in += frame->len_bytes;
  for (uint32_t p = 0; p < tensor->part.n_parts; p++) round->parts[p].told |= round->base.owners[p] == server;
  zps_round_event(&round->base, ZPS_MACHINE_TAKEN, 0, server, ZPS_OK);
}

/* ------------------------------------------------------------ reads */

/* The buffer comes back with the release. Memory of a device is the round's, which goes on, and then waits for it: no
 * other sum of the round comes to lie there. */
static void leave_behind(struct zps_served_round *round, struct zps_served_fetch *fetch) {
  struct zps_served_part *part = fetch->part;
  part->sum = NULL;
  part->fetch = NULL;
  fetch->part = NULL;
  if (round->device_pull.is_direct) {
    fetch->round = round;
    round->n_reads_left++;
    return;
  }
  fetch->buf = part->pull_buf;
  fetch->memory = &round->base.plane->memory;
  zps_plane_memory_leave(fetch->memory, ZPS_LINE_PULL, &round->base.used, &part->pull_buf);
  part->pull_buf = (struct zps_buf){0};
  round->base.n_reads--;
}

static void read_done(struct zps_bulk_read *read, zps_err_t code) {
  struct zps_served_fetch *fetch = zps_container_of(read, struct zps_served_fetch, read.bulk);
  struct zps_served_part *part = fetch->part;
  struct zps_served_round *round = zps_served_of(part->task.round);
  const uint32_t server = round->base.owners[part->task.arg];
  zps_round_touch(&round->base);
  if (code == ZPS_ERR_PEER_LOST) {
    leave_behind(round, fetch);
    zps_plane_lose(&round->base.plane->servers[server], "reading a sum from it failed");
    return;
  }
  round->base.n_reads--;
  if (code == ZPS_OK) {
    round->base.stats.bytes_in += part->result.len_bytes;
    round->base.stats.payload_in += part->result.len_bytes;
    if (!zps_round_machine_over(round->base.machine) && !lands_on_device(part))
      zps_round_event(&round->base, ZPS_MACHINE_LANDED, part->task.arg, 0, ZPS_OK);
  } else {
    zps_round_fail(&round->base, code, "reading the sum of partition %" PRIu32 " from server %u (%s) failed: %s",
                   part->task.arg, server, round->base.plane->servers[server].name, zps_checks_why(&fetch->read, code));
  }
}

static void read_release(struct zps_bulk_read *read) {
  struct zps_served_fetch *fetch = zps_container_of(read, struct zps_served_fetch, read.bulk);
  if (fetch->round) {
    fetch->round->n_reads_left--;
    fetch->round->base.n_reads--;
    zps_round_touch(&fetch->round->base);
  } else {
    zps_plane_memory_return(fetch->memory, &fetch->buf);
  }
  free(fetch);
}

static zps_err_t start_read(struct zps_served_part *part, const struct zps_net_mem *mem) {
  struct zps_served_round *round = zps_served_of(part->task.round);
  if (!part->fetch) part->fetch = malloc(sizeof *part->fetch);
  if (!part->fetch) return ZPS_ERR_NOMEM;
  *part->fetch = (struct zps_served_fetch){.part = part,
                                           .read.bulk = {.local = part->sum,
                                                         .mem = mem,
                                                         .len = part->result.len_bytes,
                                                         .addr = part->result.addr,
                                                         .key = part->result.key,
                                                         .more = part->result.more,
                                                         .done = read_done,
                                                         .release = read_release}};
  round->base.n_reads++;
  struct zps_checks *const checks = round->base.plane->checks;
  struct zps_bulk_peer *const bulk = round->base.plane->servers[round->base.owners[part->task.arg]].bulk;
  if (round->device_pull.is_direct)
    zps_checks_read_by(checks, bulk, &part->fetch->read, part->result.sum, zps_device_pull_hash);
  else
    zps_checks_read(checks, bulk, &part->fetch->read, part->result.sum);
  return ZPS_OK;
}

/* Takes a buffer for the sum and starts to read it. */
static zps_err_t take(struct zps_plane_wait *wait) {
  struct zps_served_part *part = zps_container_of(wait, struct zps_served_part, wait);
  struct zps_served_round *round = zps_served_of(part->task.round);
  struct zps_plane *plane = round->base.plane;
  /* It is announced anew, or the round fails. */
  if (round->base.rounds->replay.is_mapping || plane->servers[round->base.owners[part->task.arg]].lost) return ZPS_OK;
  if (round->device_pull.is_direct) {
    const struct zps_net_mem *mem;
    const zps_err_t err = zps_device_pull_room(part, zps_engine_net(plane->engine), &mem);
    return err == ZPS_OK ? start_read(part, mem) : err;
  }
  const bool is_idle = round->base.n_reads == 0 && round->base.n_tasks == 0;
  const zps_err_t err = zps_plane_memory_get(&plane->memory, ZPS_LINE_PULL, &round->base.used, is_idle,
                                             part->result.len_bytes, &part->pull_buf);
  if (err != ZPS_OK) return err;
  part->sum = part->pull_buf.data;
  return start_read(part, part->pull_buf.mem);
}

static void refused(struct zps_plane_wait *wait, zps_err_t err, const char *text) {
  zps_round_fail(zps_container_of(wait, struct zps_served_part, wait)->task.round, err, "%s", text);
}

void zps_served_pull_init(struct zps_served_round *round) {
  for (uint32_t p = 0; p < round->base.tensor->part.n_parts; p++)
    round->parts[p].wait = (struct zps_plane_wait){.take = take, .refused = refused};
}
