/* Messages: to and from the other ranks. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "worker/peer/peer.h"
#include "worker/api/job.h"
#include "worker/api/tensor.h"

#define NONE UINT32_MAX

/* ------------------------------------------------------------ out */

void zps_peer_queue_send(struct zps_peer_round *exchange, uint32_t instr) {
  struct zps_peer_remote *peer = &exchange->peers[exchange->program.instrs[instr].peer];
  exchange->send_next[instr] = NONE;
  if (peer->first_send == NONE) {
    peer->first_send = instr;
  } else {
    exchange->send_next[peer->last_send] = instr;
  }
  peer->last_send = instr;
}

static const struct zps_peer_stream *sent_by(const struct zps_peer_round *exchange, uint32_t instr) {
  return &exchange->streams[exchange->program.ins[exchange->program.instrs[instr].first_in]];
}

static void fill_slice(const struct zps_peer_round *exchange, uint32_t instr, struct zps_slice *slice) {
  const struct zps_peer_stream *stream = sent_by(exchange, instr);
  *slice = (struct zps_slice){.partition = exchange->program.instrs[instr].tag,
                              .codec = (uint8_t)stream->view.codec,
                              .values = (uint8_t)(stream->view.value_codec - ZPS_VALUES_RAW),
                              .is_inline = stream->len_bytes <= ZPS_WIRE_INLINE_MAX,
                              .nnz = stream->view.z,
                              .len_bytes = stream->len_bytes};
  if (slice->is_inline) {
    slice->data = stream->view.values;
    return;
  }
  const struct zps_remote *to = &exchange->round->plane->ranks[exchange->program.instrs[instr].peer];
  const struct zps_segment *segment = exchange->round->plane->segment;
  if (to->shared.maps_ours && zps_segment_offset(segment, stream->view.values, stream->len_bytes, &slice->addr)) {
    slice->key = ZPS_WIRE_KEY_SHARED;
    return;
  }
  const struct zps_net_mem *mem = stream->mem ? stream->mem->buf.mem : &exchange->lent;
  slice->addr = mem->addr + (uint64_t)((const char *)stream->view.values - (const char *)mem->base);
  slice->key = mem->key;
}

/* One frame of as many streams as fit; the first that does not. */
static uint32_t fill_frame(struct zps_peer_round *exchange, uint32_t instr, struct zps_frame *frame) {
  struct zps_frame_round *messages = &frame->u.round;
  uint64_t inline_bytes = 0;
  frame->header = (struct zps_frame_header){.type = ZPS_FRAME_PEER};
  messages->tensor = exchange->round->tensor->id;
  messages->step = exchange->round->step;
  messages->total_nnz = 0;
  messages->timeout_ms = 0;
  messages->n_slices = 0;
  for (; instr != NONE && messages->n_slices < ZPS_WIRE_SLICES_MAX; instr = exchange->send_next[instr]) {
    struct zps_slice *slice = &messages->slices[messages->n_slices];
    fill_slice(exchange, instr, slice);
    if (slice->is_inline && inline_bytes + slice->len_bytes > ZPS_WIRE_INLINE_MAX) break;
    inline_bytes += slice->is_inline ? slice->len_bytes : 0;
    messages->n_slices++;
  }
  return instr;
}

/* They are on their way: counted, and what is to be read is kept for it. */
static void sent(struct zps_peer_round *exchange, struct zps_peer_remote *peer, const struct zps_frame *frame,
                 uint32_t until) {
  struct zps_round *round = exchange->round;
  round->stats.bytes_out += frame->len_bytes;
  for (uint32_t i = 0; i < frame->u.round.n_slices; i++) {
    const struct zps_slice *slice = &frame->u.round.slices[i];
    round->stats.payload_out += slice->len_bytes;
    if (slice->is_inline) continue;
    *(slice->key == ZPS_WIRE_KEY_SHARED ? &round->stats.shared_out : &round->stats.bytes_out) += slice->len_bytes;
  }
  while (peer->first_send != until) {
    const uint32_t instr = peer->first_send;
    const struct zps_peer_stream *stream = sent_by(exchange, instr);
    peer->first_send = exchange->send_next[instr];
    if (stream->len_bytes > ZPS_WIRE_INLINE_MAX) peer->told = true;
    if (stream->len_bytes > ZPS_WIRE_INLINE_MAX) *(stream->mem ? &stream->mem->promised : &peer->borrows) = true;
    zps_peer_carried_out(exchange, instr);
  }
}

/* A frame that ends the round for this rank, whichever way. */
static zps_err_t send_end(struct zps_peer_round *exchange, uint32_t rank) {
  struct zps_round *round = exchange->round;
  struct zps_peer_remote *peer = &exchange->peers[rank];
  const bool aborts = peer->owes_abort;
  struct zps_frame frame;
  if (!aborts) {
    frame.header = (struct zps_frame_header){.type = ZPS_FRAME_DONE};
    frame.u.done = (struct zps_frame_done){.tensor = round->tensor->id, .step = round->step};
  } else {
    frame.header = (struct zps_frame_header){.type = ZPS_FRAME_ABORT};
    frame.u.abort = round->reason;
    frame.u.abort.tensor = round->tensor->id;
    frame.u.abort.step = round->step;
    frame.u.abort.code = round->machine->code;
    if (frame.u.abort.code == ZPS_ERR_TIMEOUT) zps_peer_name_awaited(exchange, &frame.u.abort);
  }
  const zps_err_t err = zps_link_send(round->plane->ranks[rank].link, &frame);
  if (err == ZPS_ERR_AGAIN || err == ZPS_ERR_NOMEM) return ZPS_ERR_AGAIN; /* untold, the rank would wait in vain */
  if (err == ZPS_OK && !aborts) round->stats.bytes_out += frame.len_bytes;
  *(aborts ? &peer->owes_abort : &peer->owes_done) = false;
  return err;
}

zps_err_t zps_peer_send_to(struct zps_peer_round *exchange, uint32_t rank, uint64_t now_ns, bool *sent_p) {
  struct zps_round *round = exchange->round;
  struct zps_peer_remote *peer = &exchange->peers[rank];
  const struct zps_remote *remote = &round->plane->ranks[rank];
  struct zps_frame frame;
  zps_err_t err = ZPS_OK;
  if (remote->lost) peer->owes_done = peer->owes_abort = false;
  if (remote->lost || zps_round_machine_over(round->machine)) peer->first_send = NONE;
  while (peer->first_send != NONE && err == ZPS_OK) {
    const uint32_t until = fill_frame(exchange, peer->first_send, &frame);
    err = zps_link_send(remote->link, &frame);
    if (err != ZPS_OK) break;
    if (round->announced_first_ns == 0) round->announced_first_ns = now_ns;
    round->announced_last_ns = now_ns;
    *sent_p = true;
    sent(exchange, peer, &frame, until);
  }
  while (err == ZPS_OK && (peer->owes_done || peer->owes_abort)) err = send_end(exchange, rank);
  if (err == ZPS_OK || err == ZPS_ERR_AGAIN) return err;
  if (err == ZPS_ERR_PEER_LOST) {
    zps_plane_rank_lost(round->plane, rank, "the fabric cannot reach it");
  } else {
    zps_round_fail(round, err, "cannot send to rank %" PRIu32 " (host %s): %s", rank, remote->name, zps_err_str(err));
  }
  return ZPS_OK;
}

/* ------------------------------------------------------------ in */

static void refuse(struct zps_peer_round *exchange, uint32_t rank, uint32_t tag, const char *why) {
  zps_round_fail(exchange->round, ZPS_ERR_PROTOCOL,
                 "rank %" PRIu32 " (host %s) announces an impossible message %" PRIu32 ": %s", rank,
                 exchange->round->plane->ranks[rank].name, tag, why);
}

/* What can be checked before the bytes are here. */
static bool sizes_fit(struct zps_peer_round *exchange, uint32_t instr, const struct zps_slice *slice) {
  const struct zps_stream *stream = &exchange->program.streams[exchange->program.instrs[instr].out];
  const uint32_t peer = exchange->program.instrs[instr].peer, m = (uint32_t)(stream->hi - stream->lo);
  const enum zps_dtype dtype = zps_compute_dtype(&exchange->compute, stream->kind);
  const enum zps_value_codec values = (enum zps_value_codec)(slice->values + ZPS_VALUES_RAW);
  struct zps_error error;
  if (stream->kind == ZPS_STREAM_VECTOR && (slice->nnz != m || values != ZPS_VALUES_RAW)) {
    refuse(exchange, peer, slice->partition, "a vector has all its numbers, as they are");
  } else if (!zps_values_suit(values, dtype)) {
    refuse(exchange, peer, slice->partition, "its values cannot be coded so");
  } else if (zps_slice_check_sizes(slice->codec, m, slice->nnz, zps_compute_width(&exchange->compute, stream->kind),
                                   dtype, values, slice->len_bytes, &error) != ZPS_OK) {
    refuse(exchange, peer, slice->partition, error.text);
  } else {
    return true;
  }
  return false;
}

/* A message for RECV `instr`. Its inline bytes live as long as the frame, so they are copied. */
static void announce(struct zps_peer_round *exchange, uint32_t instr, const struct zps_slice *slice) {
  struct zps_round *round = exchange->round;
  if (!sizes_fit(exchange, instr, slice)) return;
  if (!zps_run_announced(&exchange->run, instr)) {
    refuse(exchange, exchange->program.instrs[instr].peer, slice->partition, "it was announced before");
    return;
  }
  struct zps_peer_task *task = zps_peer_task_get(exchange, instr);
  if (task && slice->is_inline) task->out = zps_arena_get(&round->arena, (size_t)slice->len_bytes);
  if (!task || (slice->is_inline && !task->out)) {
    zps_round_fail(round, ZPS_ERR_NOMEM, "no memory for a message of %" PRIu64 " bytes", slice->len_bytes);
    return;
  }
  task->slice = *slice;
  if (slice->is_inline && slice->len_bytes > 0) memcpy(task->out, slice->data, (size_t)slice->len_bytes);
  if (slice->is_inline) round->stats.payload_in += slice->len_bytes;
  exchange->announced[instr] = task;
}

static void keep(struct zps_peer_round *exchange, struct zps_unexpected_message *message) {
  struct zps_unexpected_message **at = &exchange->unexpected;
  while (*at) at = &(*at)->next;
  message->next = NULL;
  *at = message;
}

void zps_peer_message(struct zps_round *round, uint32_t rank, const struct zps_slice *slice) {
  struct zps_peer_round *exchange = round->exchange;
  exchange->peers[rank].heard = true;
  if (zps_round_machine_over(round->machine)) return;
  if (round->result_first_ns == 0) round->result_first_ns = zps_clock_ns();
  const uint32_t instr = exchange->launched ? zps_run_find(&exchange->run, rank, slice->partition) : NONE;
  if (instr != NONE) {
    announce(exchange, instr, slice);
    zps_peer_advance(exchange);
  } else if (exchange->launched && exchange->run.n_calls == 0) {
    refuse(exchange, rank, slice->partition, "none under this tag is due");
  } else {
    struct zps_unexpected_message *message = zps_unexpected_copy(rank, slice);
    if (message) {
      keep(exchange, message);
    } else {
      zps_round_fail(round, ZPS_ERR_NOMEM, "no memory for a message that came early");
    }
  }
}

void zps_peer_offer_unexpected(struct zps_peer_round *exchange) {
  struct zps_unexpected_message **at = &exchange->unexpected;
  while (*at && !zps_round_machine_over(exchange->round->machine)) {
    struct zps_unexpected_message *message = *at;
    const uint32_t instr = zps_run_find(&exchange->run, message->src, message->slice.partition);
    if (instr == NONE && exchange->run.n_calls == 0) {
      refuse(exchange, message->src, message->slice.partition, "none under this tag is due");
      return;
    }
    if (instr == NONE) {
      at = &message->next;
      continue;
    }
    *at = message->next;
    announce(exchange, instr, &message->slice);
    free(message);
  }
}
