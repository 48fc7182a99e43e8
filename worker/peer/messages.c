/* Messages: to and from the other ranks. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/container.h"
#include "worker/peer/peer.h"

#define NONE UINT32_MAX

/* ------------------------------------------------------------ out */

static void queue(struct zps_peer_round *round, uint32_t instr) {
  struct zps_peer_remote *peer = &round->remotes[round->program.instrs[instr].peer];
  round->send_next[instr] = NONE;
  if (peer->first_send == NONE) {
    peer->first_send = instr;
  } else {
    round->send_next[peer->last_send] = instr;
  }
  peer->last_send = instr;
}

static struct zps_peer_stream *sent_by(const struct zps_peer_round *round, uint32_t instr) {
  return &round->streams[round->program.ins[round->program.instrs[instr].first_in]];
}

/* The receiver has this rank's segment, and the stream lies there, at *offset_p. */
static bool is_shared(const struct zps_peer_round *round, uint32_t instr, uint64_t *offset_p) {
  const struct zps_peer_stream *stream = sent_by(round, instr);
  const struct zps_plane *plane = round->base.plane;
  const uint32_t reader = round->program.instrs[instr].peer;
  return plane->ranks[reader].shared.maps_ours && !zps_plane_has_given_up(plane, reader) &&
         zps_segment_offset(plane->segment, stream->view.values, stream->len_bytes, offset_p);
}

static void fill_slice(const struct zps_peer_round *round, uint32_t instr, struct zps_slice *slice) {
  const struct zps_peer_stream *stream = sent_by(round, instr);
  *slice = (struct zps_slice){.partition = round->program.instrs[instr].tag,
                              .codec = (uint8_t)stream->view.codec,
                              .values = (uint8_t)(stream->view.value_codec - ZPS_VALUES_RAW),
                              .is_inline = stream->len_bytes <= ZPS_WIRE_READ_BYTES,
                              .nnz = stream->view.z,
                              .len_bytes = stream->len_bytes};
  if (slice->is_inline) {
    slice->data = stream->view.values;
    return;
  }
  if (is_shared(round, instr, &slice->addr)) {
    slice->key = ZPS_WIRE_KEY_SHARED;
    return;
  }
  const struct zps_net_mem *mem = stream->mem ? stream->mem->buf.mem : &round->exposed;
  slice->addr = mem->addr + (uint64_t)((const char *)stream->view.values - (const char *)mem->base);
  slice->key = mem->key;
  slice->more = mem->more;
  slice->sum = stream->sum;
}

/* ------------------------------------------------------------ checksums */

/* Only of what is read over the fabric. */
static bool needs_sum(const struct zps_peer_round *round, uint32_t instr) {
  const struct zps_peer_stream *stream = sent_by(round, instr);
  return round->base.plane->checks && stream->sum == 0 && stream->len_bytes > ZPS_WIRE_READ_BYTES &&
         !is_shared(round, instr, &(uint64_t){0});
}

static void sum_run(struct zps_round_task *work) {
  struct zps_peer_task *task = zps_container_of(work, struct zps_peer_task, task);
  task->slice.sum = zps_checks_sum(work->round->plane->checks, task->view.values, (size_t)task->slice.len_bytes);
}

/* Other messages of the stream have waited for this one's checksum. */
static void summed(struct zps_peer_task *task) {
  struct zps_peer_round *round = task->round;
  struct zps_peer_stream *stream = sent_by(round, task->instr);
  stream->sum = task->slice.sum;
  for (uint32_t instr = stream->first_unsummed, next; instr != NONE; instr = next) {
    next = round->send_next[instr];
    queue(round, instr);
  }
  stream->first_unsummed = NONE;
  zps_peer_task_put(task);
  zps_round_touch(&round->base);
}

static void sum_done(struct zps_round_task *work) {
  if (!zps_round_machine_over(work->round->machine)) summed(zps_container_of(work, struct zps_peer_task, task));
}

static void start_sum(struct zps_peer_round *round, uint32_t instr) {
  struct zps_peer_stream *stream = sent_by(round, instr);
  round->send_next[instr] = stream->first_unsummed;
  stream->first_unsummed = instr;
  if (round->send_next[instr] != NONE) return; /* it is being made */
  struct zps_peer_task *task = zps_peer_task_get(round, instr);
  if (!task) {
    zps_peer_no_memory(round, instr);
    return;
  }
  task->view = stream->view;
  task->slice = (struct zps_slice){.len_bytes = stream->len_bytes};
  task->task.run = sum_run;
  task->task.done = sum_done;
  zps_round_task_start(&task->task, stream->len_bytes > ZPS_CHECKS_HERE_BYTES ? round->base.plane->pool : NULL);
}

void zps_peer_queue_send(struct zps_peer_round *round, uint32_t instr) {
  if (needs_sum(round, instr))
    start_sum(round, instr);
  else
    queue(round, instr);
}

/* ------------------------------------------------------------ frames */

/* One frame of as many streams as fit; the first that does not. */
static uint32_t fill_frame(struct zps_peer_round *round, uint32_t instr, struct zps_frame *frame) {
  struct zps_frame_round *messages = &frame->u.round;
  uint64_t inline_bytes = 0;
  frame->header = (struct zps_frame_header){.type = ZPS_FRAME_PEER};
  zps_frame_round_init(messages);
  messages->tensor = round->base.tensor->id;
  messages->step = round->base.step;
  for (; instr != NONE && messages->n_slices < ZPS_WIRE_SLICES_MAX; instr = round->send_next[instr]) {
    struct zps_slice *slice = &messages->slices[messages->n_slices];
    fill_slice(round, instr, slice);
    if (inline_bytes + zps_slice_room(slice) > ZPS_WIRE_INLINE_MAX) break;
    inline_bytes += zps_slice_room(slice);
    messages->n_slices++;
  }
  return instr;
}

/* Counts the streams of a frame that was sent, and keeps those that are to be read. */
static void sent(struct zps_peer_round *round, struct zps_peer_remote *peer, const struct zps_frame *frame,
                 uint32_t until) {
  struct zps_round *base = &round->base;
  base->stats.bytes_out += frame->len_bytes;
  for (uint32_t i = 0; i < frame->u.round.n_slices; i++) {
    const struct zps_slice *slice = &frame->u.round.slices[i];
    base->stats.payload_out += slice->len_bytes;
    if (slice->is_inline) continue;
    *(slice->key == ZPS_WIRE_KEY_SHARED ? &base->stats.shared_out : &base->stats.bytes_out) += slice->len_bytes;
  }
  while (peer->first_send != until) {
    const uint32_t instr = peer->first_send;
    const struct zps_peer_stream *stream = sent_by(round, instr);
    peer->first_send = round->send_next[instr];
    if (stream->len_bytes > ZPS_WIRE_READ_BYTES) peer->reads = true;
    if (stream->len_bytes > ZPS_WIRE_READ_BYTES) *(stream->mem ? &stream->mem->promised : &peer->reads_gradient) = true;
    zps_peer_carried_out(round, instr);
  }
}

/* The frame that ends the round for this rank: DONE or ABORT. */
static zps_err_t send_end(struct zps_peer_round *round, uint32_t rank) {
  struct zps_round *base = &round->base;
  struct zps_peer_remote *peer = &round->remotes[rank];
  const bool aborts = peer->owes_abort;
  struct zps_frame frame;
  if (!aborts) {
    frame.header = (struct zps_frame_header){.type = ZPS_FRAME_DONE};
    frame.u.done = (struct zps_frame_done){.tensor = base->tensor->id, .step = base->step};
  } else {
    frame.header = (struct zps_frame_header){.type = ZPS_FRAME_ABORT};
    frame.u.abort = base->reason;
    frame.u.abort.tensor = base->tensor->id;
    frame.u.abort.step = base->step;
    frame.u.abort.code = base->machine->code;
    if (frame.u.abort.code == ZPS_ERR_TIMEOUT)
      frame.u.abort.n_ranks = zps_peer_awaited(round, frame.u.abort.ranks, ZPS_WIRE_RANKS_MAX);
  }
  const zps_err_t err = zps_link_send(base->plane->ranks[rank].link, &frame);
  if (err == ZPS_ERR_AGAIN || err == ZPS_ERR_NOMEM)
    return ZPS_ERR_AGAIN; /* a rank that is not told would wait in vain */
  if (err == ZPS_OK && !aborts) base->stats.bytes_out += frame.len_bytes;
  *(aborts ? &peer->owes_abort : &peer->owes_done) = false;
  if (err == ZPS_OK && aborts) zps_peer_confirm_abort(round, rank);
  return err;
}

zps_err_t zps_peer_send_to(struct zps_peer_round *round, uint32_t rank, uint64_t now_ns, bool *sent_p) {
  struct zps_round *base = &round->base;
  struct zps_peer_remote *peer = &round->remotes[rank];
  const struct zps_remote *remote = &base->plane->ranks[rank];
  struct zps_frame frame;
  zps_err_t err = ZPS_OK;
  if (remote->lost) peer->owes_done = peer->owes_abort = false;
  if (remote->lost || zps_round_machine_over(base->machine)) peer->first_send = NONE;
  while (peer->first_send != NONE && err == ZPS_OK) {
    const uint32_t until = fill_frame(round, peer->first_send, &frame);
    err = zps_link_send(remote->link, &frame);
    if (err != ZPS_OK) break;
    if (base->announced_first_ns == 0) base->announced_first_ns = now_ns;
    base->announced_last_ns = now_ns;
    *sent_p = true;
    sent(round, peer, &frame, until);
  }
  while (err == ZPS_OK && (peer->owes_done || peer->owes_abort)) err = send_end(round, rank);
  if (err == ZPS_OK || err == ZPS_ERR_AGAIN) return err;
  if (err == ZPS_ERR_PEER_LOST) {
    zps_plane_lose(&base->plane->ranks[rank], "the fabric cannot reach it");
  } else {
    zps_round_fail(base, err, "cannot send to rank %" PRIu32 " (host %s): %s", rank, remote->name, zps_err_str(err));
  }
  return ZPS_OK;
}

/* ------------------------------------------------------------ in */

static void refuse(struct zps_peer_round *round, uint32_t rank, uint32_t tag, const char *why) {
  zps_round_fail(&round->base, ZPS_ERR_PROTOCOL,
                 "rank %" PRIu32 " (host %s) announces an impossible message %" PRIu32 ": %s", rank,
                 round->base.plane->ranks[rank].name, tag, why);
}

/* Checks all that can be checked before the bytes are here. */
static bool sizes_fit(struct zps_peer_round *round, uint32_t instr, const struct zps_slice *slice) {
  const struct zps_stream *stream = &round->program.streams[round->program.instrs[instr].out];
  const uint32_t peer = round->program.instrs[instr].peer, m = (uint32_t)(stream->hi - stream->lo);
  const enum zps_dtype dtype = zps_compute_dtype(&round->compute, stream->kind);
  const enum zps_value_codec values = (enum zps_value_codec)(slice->values + ZPS_VALUES_RAW);
  struct zps_error error;
  if (stream->kind == ZPS_STREAM_VECTOR && (slice->nnz != m || values != ZPS_VALUES_RAW)) {
    refuse(round, peer, slice->partition, "a vector has all its numbers, as they are");
  } else if (!zps_values_suit(values, dtype)) {
    refuse(round, peer, slice->partition, "its values cannot be coded so");
  } else if (zps_slice_check_sizes(slice->codec, m, slice->nnz, zps_compute_width(&round->compute, stream->kind), dtype,
                                   values, slice->len_bytes, &error) != ZPS_OK) {
    refuse(round, peer, slice->partition, error.text);
  } else {
    return true;
  }
  return false;
}

/* A message for RECV `instr`. Its inline bytes live as long as the frame, so they are copied. */
static void announce(struct zps_peer_round *round, uint32_t instr, const struct zps_slice *slice) {
  struct zps_round *base = &round->base;
  if (!sizes_fit(round, instr, slice)) return;
  if (!zps_run_announced(&round->run, instr)) {
    refuse(round, round->program.instrs[instr].peer, slice->partition, "it was announced before");
    return;
  }
  struct zps_peer_task *task = zps_peer_task_get(round, instr);
  if (task && slice->is_inline) task->out = zps_arena_get(&base->arena, (size_t)slice->len_bytes);
  if (!task || (slice->is_inline && !task->out)) {
    zps_round_fail(base, ZPS_ERR_NOMEM, "no memory for a message of %" PRIu64 " bytes", slice->len_bytes);
    return;
  }
  task->slice = *slice;
  if (slice->is_inline && slice->len_bytes > 0) memcpy(task->out, slice->data, (size_t)slice->len_bytes);
  if (slice->is_inline) base->stats.payload_in += slice->len_bytes;
  round->announced[instr] = task;
}

/* The program may come to know of the message: until then it is kept, but no more of one rank than a scheme has. */
static void keep(struct zps_peer_round *round, uint32_t rank, const struct zps_slice *slice) {
  struct zps_round *base = &round->base;
  const uint64_t max = zps_peer_messages_max(&base->tensor->peer->plan);
  if (++round->remotes[rank].n_early > max) {
    char why[ZPS_WIRE_TEXT_MAX];
    snprintf(why, sizeof why, "%" PRIu64 " of it came before they were due, and a round has no more", max);
    refuse(round, rank, slice->partition, why);
    return;
  }
  struct zps_unexpected_message *message = zps_unexpected_copy(rank, slice);
  if (!message) {
    zps_round_fail(base, ZPS_ERR_NOMEM, "no memory for a message that came early");
    return;
  }
  *round->unexpected_tail = message;
  round->unexpected_tail = &message->next;
  round->unexpected_bytes += zps_unexpected_cost(message);
  if (round->unexpected_bytes <= ZPS_UNEXPECTED_BYTES_MAX) return;
  zps_round_fail(base, ZPS_ERR_NOMEM,
                 "messages that came early take more than %llu bytes, the last one of rank %" PRIu32 " (host %s)",
                 ZPS_UNEXPECTED_BYTES_MAX, rank, base->plane->ranks[rank].name);
}

void zps_peer_message(struct zps_peer_round *round, uint32_t rank, const struct zps_slice *slice) {
  struct zps_round *base = &round->base;
  round->remotes[rank].heard = true;
  if (zps_round_machine_over(base->machine)) return;
  if (base->result_first_ns == 0) base->result_first_ns = zps_clock_ns();
  const uint32_t instr = round->launched ? zps_run_find(&round->run, rank, slice->partition) : NONE;
  if (instr != NONE) {
    announce(round, instr, slice);
    zps_peer_due(round);
  } else if (round->launched && round->run.n_calls == 0) {
    refuse(round, rank, slice->partition, "none under this tag is due");
  } else {
    keep(round, rank, slice);
  }
}

void zps_peer_offer_unexpected(struct zps_peer_round *round) {
  struct zps_unexpected_message **at = &round->unexpected;
  while (*at && !zps_round_machine_over(round->base.machine)) {
    struct zps_unexpected_message *message = *at;
    const uint32_t instr = zps_run_find(&round->run, message->src, message->slice.partition);
    if (instr == NONE && round->run.n_calls == 0) {
      refuse(round, message->src, message->slice.partition, "none under this tag is due");
      return;
    }
    if (instr == NONE) {
      at = &message->next;
      continue;
    }
    *at = message->next;
    if (!*at) round->unexpected_tail = at;
    round->unexpected_bytes -= zps_unexpected_cost(message);
    announce(round, instr, &message->slice);
    free(message);
  }
}
