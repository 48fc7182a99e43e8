#include "common/session/link_impl.h"

#include <stdlib.h>
#include <string.h>

#define ZPS_LOG_COMPONENT "link"
#include "common/base/clock.h"
#include "common/base/log.h"

static void keys_fini(struct zps_link *link) {
  zps_mac_key_fini(&link->tx_key);
  zps_mac_key_fini(&link->rx_key);
}

zps_err_t zps_link_create(struct zps_net *net, struct zps_net_peer *peer, const struct zps_link_ends *ends,
                          struct zps_link **link_p) {
  struct zps_link *link = calloc(1, sizeof *link);
  if (!link) return ZPS_ERR_NOMEM;
  const struct zps_mac_link tx = {ends->job, ends->self, ends->other, ends->server, ends->server_len, ends->since},
                            rx = {ends->job, ends->other, ends->self, ends->server, ends->server_len, ends->since};
  zps_err_t code = zps_mac_key_derive(ends->secret, &tx, &link->tx_key);
  if (code == ZPS_OK) code = zps_mac_key_derive(ends->secret, &rx, &link->rx_key);
  if (code == ZPS_OK) code = zps_net_reserve(net, POSTED);
  if (code != ZPS_OK) {
    keys_fini(link);
    free(link);
    return code;
  }
  link->net = net;
  link->peer = peer;
  link->job = ends->job;
  link->epoch = ends->epoch;
  link->self = ends->self;
  link->tag = ends->tag;
  link->tx_credits = RECEIVES;
  link->queue_tail = &link->queue;
  link->is_patient = ends->self > ends->other;
  link->bulk = ends->bulk;
  link->counts = ends->counts;
  link->silence.look_ns = ZPS_NEVER;
  zps_wire_message_clear(&link->message);
  *link_p = link;
  return ZPS_OK;
}

void zps_link_destroy(struct zps_link *link) {
  if (!link) return;
  for (struct waiting *waiting = link->queue, *next; waiting; waiting = next) {
    next = waiting->next;
    free(waiting);
  }
  const zps_err_t code = zps_net_reserve(link->net, -(int)POSTED);
  if (code != ZPS_OK) zps_log_debug("%u receives stay posted: %s", (unsigned)POSTED, zps_err_str(code));
  zps_unacked_fini(&link->unacked);
  zps_early_fini(&link->early);
  keys_fini(link);
  free(link);
}

/* Hands over to the fabric what has not left yet. */
static void pump(struct zps_link *link) {
  const struct zps_unacked_message *message;
  if (link->resume.is_cut || link->resume.is_held) return;
  while ((message = zps_unacked_next(&link->unacked)) != NULL) {
    const zps_err_t code = zps_net_send(link->peer, message->bytes, message->len);
    if (code == ZPS_ERR_PEER_LOST) zps_link_cut(link);
    if (code != ZPS_OK) return;
    zps_unacked_sent(&link->unacked);
  }
}

/* While some wait, frames collect, so that messages are few. */
static bool any_wait(const struct zps_link *link) {
  return link->resume.is_cut || link->resume.is_held || zps_unacked_next(&link->unacked);
}

/* Behind the `len` bytes there is room for the MAC. `seq` is that of the first frame. */
static zps_err_t send(struct zps_link *link, void *data, size_t len, uint64_t seq, unsigned n_frames) {
  if (any_wait(link)) return ZPS_ERR_AGAIN;
  zps_mac_make(&link->tx_key, data, len, seq, (uint8_t *)data + len);
  const zps_err_t code = zps_unacked_add(&link->unacked, seq, n_frames, data, len + ZPS_WIRE_MAC_BYTES);
  if (code != ZPS_OK) return ZPS_ERR_AGAIN;
  pump(link);
  return ZPS_OK;
}

/* Hands over the collected frames; ZPS_ERR_AGAIN: all of them are still here. */
static zps_err_t flush(struct zps_link *link) {
  if (link->message.n_frames == 0) return ZPS_OK;
  size_t len;
  void *const bytes = zps_wire_message_bytes(&link->message, &len);
  const zps_err_t code = send(link, bytes, len, link->message_seq, link->message.n_frames);
  if (code == ZPS_OK) zps_wire_message_clear(&link->message);
  return code;
}

/* `data` has room for a MAC behind its `len` bytes. */
static zps_err_t transmit(struct zps_link *link, void *data, size_t len, unsigned credits) {
  zps_err_t code = ZPS_OK;
  void *frame = zps_wire_message_add(&link->message, data, len);
  if (!frame) {
    code = flush(link);
    if (code != ZPS_OK) return code;
    frame = zps_wire_message_add(&link->message, data, len);
  }
  zps_wire_stamp(frame ? frame : data, (uint32_t)link->tx_seq, (uint16_t)credits);
  if (frame && link->message.n_frames == 1) link->message_seq = link->tx_seq;
  if (!frame) code = send(link, data, len, link->tx_seq, 1); /* a single frame may be as large as a message */
  if (code != ZPS_OK) return code;
  link->tx_seq++;
  link->tx_credits--;
  link->rx_due -= credits;
  if (credits > 0) link->must_answer = false;
  return ZPS_OK;
}

static zps_err_t enqueue(struct zps_link *link, const void *data, size_t len, bool is_offered) {
  if (link->n_queue >= ZPS_LINK_QUEUE_MAX) return ZPS_ERR_AGAIN;
  struct waiting *waiting = malloc(sizeof *waiting + len + ZPS_WIRE_MAC_BYTES);
  if (!waiting) return ZPS_ERR_NOMEM;
  waiting->next = NULL;
  waiting->len = len;
  waiting->is_offered = is_offered;
  memcpy(waiting->data, data, len);
  *link->queue_tail = waiting;
  link->queue_tail = &waiting->next;
  link->n_queue++;
  return ZPS_OK;
}

static void header_fill(const struct zps_link *link, bool introduced, struct zps_frame_header *header) {
  const uint8_t type = header->type;
  if (link->has_peer_tag && introduced)
    *header = (struct zps_frame_header){.type = type, .is_short = true, .tag = link->peer_tag};
  else
    *header = (struct zps_frame_header){
        .type = type, .job = link->job, .epoch = link->epoch, .src = link->self, .tag = link->tag};
}

/* The payloads that the peer is to read from this process's memory. Their bytes may come ahead, so they are offered
 * when the frame leaves, and not while it waits for credit. */
static void offer(const struct zps_link *link, const struct zps_frame *frame) {
  switch (frame->header.type) {
    case ZPS_FRAME_PUSH:
    case ZPS_FRAME_RESULT:
    case ZPS_FRAME_PEER:
    case ZPS_FRAME_GIVE:
    case ZPS_FRAME_FOUND:
      for (uint32_t i = 0; i < frame->u.round.n_slices; i++) {
        const struct zps_slice *const slice = &frame->u.round.slices[i];
        if (!slice->is_inline) zps_net_offer(link->peer, slice->addr, slice->key, slice->len_bytes);
      }
      break;
    default:
      break;
  }
}

static void offer_waiting(const struct zps_link *link, struct waiting *waiting) {
  struct zps_frame frame;
  if (!waiting->is_offered && zps_wire_decode(waiting->data, waiting->len, &frame, NULL) == ZPS_OK) offer(link, &frame);
  waiting->is_offered = true;
}

zps_err_t zps_link_send(struct zps_link *link, struct zps_frame *frame) {
  uint8_t data[ZPS_WIRE_MESSAGE_MAX];
  size_t len;
  link->n_questions = 0;
  header_fill(link, link->introduced, &frame->header);
  zps_err_t code = zps_wire_encode(frame, data, ZPS_WIRE_FRAME_MAX, &len);
  if (code != ZPS_OK) return code;
  if (link->n_queue >= ZPS_LINK_QUEUE_MAX) return ZPS_ERR_AGAIN;
  frame->len_bytes = (uint32_t)len;
  const bool may_leave = !link->queue && link->tx_credits > 1;
  if (may_leave) offer(link, frame);
  code = may_leave ? transmit(link, data, len, link->rx_due) : ZPS_ERR_AGAIN;
  if (code == ZPS_ERR_AGAIN) code = enqueue(link, data, len, may_leave);
  if (code == ZPS_OK) link->introduced = true;
  return code;
}

static void note_answer(struct zps_link *link, const struct zps_frame_header *header) {
  if (header->type == ZPS_FRAME_CREDIT && header->credits == 0) link->may_ask = link->must_answer = true;
  if (link->ahead == 0) return;
  link->ahead -= header->credits < link->ahead ? header->credits : link->ahead;
  if (link->ahead == 0) zps_bulk_peer_trip(link->bulk, zps_clock_ns() - link->asked_ns);
}

/* A RESUME frame is numbered on its own: one that has come before says nothing. */
static enum zps_link_verdict take_resume(struct zps_link *link, const struct zps_frame_header *header,
                                         const void *message, size_t len) {
  const uint8_t *const mac = (const uint8_t *)message + len;
  if (header->is_short || !zps_mac_is_right(&link->rx_key, message, len, header->seq, mac)) return ZPS_LINK_FORGED;
  if (header->seq <= link->resume.n_come) return ZPS_LINK_REPEATED;
  link->resume.n_come = header->seq;
  return ZPS_LINK_RESUMES;
}

static enum zps_link_verdict note_repeated(const struct zps_link *link) {
  if (link->counts) link->counts->repeated++;
  return ZPS_LINK_REPEATED;
}

enum zps_link_verdict zps_link_take(struct zps_link *link, const struct zps_frame_header *first, const void *message,
                                    size_t len) {
  if (len <= ZPS_WIRE_MAC_BYTES) return ZPS_LINK_FORGED;
  len -= ZPS_WIRE_MAC_BYTES;
  if (first->type == ZPS_FRAME_RESUME) return take_resume(link, first, message, len);
  const uint32_t expected = (uint32_t)link->rx_seq;
  const int64_t ahead = first->is_short ? (int8_t)(first->seq - expected) : (int32_t)(first->seq - expected);
  const uint64_t seq = link->rx_seq + (uint64_t)ahead;
  if (ahead < 0 && (uint64_t)-ahead > link->rx_seq) return ZPS_LINK_FORGED;
  if (!zps_mac_is_right(&link->rx_key, message, len, seq, (const uint8_t *)message + len)) return ZPS_LINK_FORGED;
  if (ahead < 0) return note_repeated(link);
  link->silence.is_heard = true;
  if (ahead == 0 || ahead >= RECEIVES) {
    link->n_signs++;
    return ZPS_LINK_READY; /* more than it had credit for: zps_link_received() tells */
  }
  if (!zps_early_put(&link->early, seq, message, len + ZPS_WIRE_MAC_BYTES)) return note_repeated(link);
  link->n_signs++;
  if (link->counts) link->counts->reordered++;
  return ZPS_LINK_EARLY;
}

struct zps_early_message *zps_link_take_early(struct zps_link *link) {
  return zps_early_take(&link->early, link->rx_seq);
}

zps_err_t zps_link_received(struct zps_link *link, const struct zps_frame_header *header, struct zps_error *error) {
  const char *type = zps_frame_type_name(header->type);
  if (!header->is_short && header->job != link->job)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame of job 0x%016llx from 0x%x on a link of job 0x%016llx", type,
                    (unsigned long long)header->job, header->src, (unsigned long long)link->job);
  if (header->is_short && !link->rx_introduced)
    return zps_fail(error, ZPS_ERR_PROTOCOL,
                    "%s frame with a short header is the first of its link: a long one must come before it", type);
  const uint32_t epoch = header->is_short ? link->rx_epoch : header->epoch;
  const uint32_t expected = header->is_short ? (uint8_t)link->rx_seq : (uint32_t)link->rx_seq;
  const bool stale = epoch != link->epoch;
  if (header->seq == expected) {
    /* Frames of an earlier epoch that are still in the stream count like others, or the stream would end with them. */
    if (link->tx_credits + header->credits > RECEIVES)
      return zps_fail(
          error, ZPS_ERR_PROTOCOL, "%s frame %u returns %u credits: %u of %u were out, so it may return no more", type,
          (uint32_t)link->rx_seq, header->credits, (unsigned)RECEIVES - link->tx_credits, (unsigned)RECEIVES);
    if (link->rx_due >= RECEIVES)
      return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame %u was sent without credit: %u frames are unreturned", type,
                      (uint32_t)link->rx_seq, link->rx_due);
    link->rx_seq++;
    link->rx_due++;
    link->tx_credits += header->credits;
    if (header->credits > 0) zps_unacked_confirm(&link->unacked, link->tx_seq - (RECEIVES - link->tx_credits));
    note_answer(link, header);
    if (!header->is_short) {
      link->rx_introduced = link->has_peer_tag = true;
      link->rx_epoch = header->epoch;
      link->peer_tag = header->tag;
    }
  } else if (!stale) {
    return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame has sequence number %u: %u was expected", type, header->seq,
                    expected);
  }
  if (stale)
    return zps_fail(error, ZPS_ERR_STALE, "%s frame %u is of epoch %u: this end lives in epoch %u", type, header->seq,
                    epoch, link->epoch);
  return ZPS_OK;
}

static bool send_credits(struct zps_link *link, unsigned credits) {
  struct zps_frame frame = {.header.type = ZPS_FRAME_CREDIT};
  uint8_t data[ZPS_WIRE_MESSAGE_MAX];
  size_t len;
  header_fill(link, link->tx_seq > 0, &frame.header); /* it overtakes the frames that wait, also one with a long
                                                       * header */
  return zps_wire_encode(&frame, data, ZPS_WIRE_FRAME_MAX, &len) == ZPS_OK &&
         transmit(link, data, len, credits) == ZPS_OK;
}

static void ask(struct zps_link *link) {
  if (link->n_questions == 0 || !link->may_ask || link->ahead > 0 || link->tx_credits <= 1) return;
  if (link->queue) return;
  if (!send_credits(link, 0)) return;
  link->n_questions--;
  link->ahead = RECEIVES - link->tx_credits;
  link->asked_ns = zps_clock_ns();
}

unsigned zps_link_progress(struct zps_link *link) {
  unsigned sent = 0;
  pump(link);
  while (link->queue && link->tx_credits > 1) {
    struct waiting *waiting = link->queue;
    offer_waiting(link, waiting);
    if (transmit(link, waiting->data, waiting->len, link->rx_due) != ZPS_OK) break;
    link->queue = waiting->next;
    if (!link->queue) link->queue_tail = &link->queue;
    link->n_queue--;
    free(waiting);
    sent++;
  }
  const bool is_due = link->rx_due >= CREDITS_DUE_MANY || link->must_answer;
  if (is_due && link->tx_credits >= 1 && send_credits(link, link->rx_due)) sent++;
  ask(link);
  if (link->is_to_ask && link->tx_credits > 1) link->is_to_ask = !send_credits(link, 0);
  if (flush(link) != ZPS_OK) zps_log_trace("frames stay until the fabric takes more");
  zps_link_send_resume(link);
  return sent;
}

bool zps_link_is_through(const struct zps_link *link) {
  return !link->queue && link->message.n_frames == 0 && !any_wait(link) && zps_net_unsent(link->peer) == 0;
}

void zps_link_ask(struct zps_link *link) {
  link->is_to_ask = true;
}

uint64_t zps_link_signs(const struct zps_link *link) {
  return link->n_signs;
}

bool zps_link_mark(const struct zps_link *link, uint32_t *mark_p) {
  if (link->queue) return false;
  *mark_p = (uint32_t)link->tx_seq;
  return true;
}

/* Credits come back in the order in which they were spent. */
bool zps_link_has_taken(const struct zps_link *link, uint32_t mark) {
  const uint32_t taken = (uint32_t)link->tx_seq - (RECEIVES - link->tx_credits);
  return taken - mark <= UINT32_MAX / 2;
}

void zps_link_set_epoch(struct zps_link *link, uint32_t epoch) {
  link->epoch = epoch;
  link->introduced = false;
  link->n_questions = 0;
}

void zps_link_measure(struct zps_link *link, bool begins) {
  link->n_questions = QUESTIONS;
  link->may_ask = begins;
}
