#include "common/session/link.h"

#include <stdlib.h>
#include <string.h>

#define ZPS_LOG_COMPONENT "link"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/session/mac.h"

enum {
  RECEIVES = ZPS_LINK_CREDITS + 1, /* the last one is for CREDIT frames alone, so that two full ends cannot lock up */
  CREDITS_DUE_MANY = ZPS_LINK_CREDITS / 2, /* worth a frame of their own */
  QUESTIONS = 3,                           /* the first takes as long as it takes the fabric to connect */
};

/* An encoded frame that waits; its sequence number and credits are stamped when it leaves. */
struct waiting {
  struct waiting *next;
  size_t len;
  uint8_t data[];
};

struct zps_link {
  struct zps_net *net;
  struct zps_net_peer *peer;
  uint64_t job;
  uint32_t epoch, self, tag;
  uint32_t tx_seq, rx_seq; /* of the next frame */
  uint32_t peer_tag;       /* the tag that the peer wants its short headers to carry, */
  bool has_peer_tag;       /* when it has said so */
  bool introduced;         /* a long header of this epoch is sent or queued, so short ones may follow */
  bool rx_introduced;      /* a long header has come, */
  uint32_t rx_epoch;       /* of this epoch: that of the short ones after it */
  unsigned tx_credits;     /* receives the peer has free for us */
  unsigned rx_due;         /* receives free again for the peer that it has not been told of */
  bool lost;
  bool must_answer;           /* the peer wants its credits back at once */
  bool may_ask;               /* the peer receives */
  bool is_to_ask;             /* for a sign of life */
  unsigned n_questions;       /* left to ask */
  unsigned ahead;             /* credits that come back before the answer, and with it; 0: no question is out */
  uint64_t asked_ns;          /* when it left */
  struct zps_bulk_peer *bulk; /* told of the answers */
  struct waiting *queue, **queue_tail;
  unsigned n_queue;
  struct zps_mac_key tx_key, rx_key;
  uint32_t message_seq;            /* of its first frame */
  struct zps_wire_message message; /* frames that leave together, at the end of a turn or when no more fit */
};

zps_err_t zps_link_create(struct zps_net *net, struct zps_net_peer *peer, const struct zps_link_ends *ends,
                          struct zps_link **link_p) {
  struct zps_link *link = calloc(1, sizeof *link);
  if (!link) return ZPS_ERR_NOMEM;
  const struct zps_mac_link tx = {ends->job, ends->self, ends->other, ends->server, ends->server_len, ends->since},
                            rx = {ends->job, ends->other, ends->self, ends->server, ends->server_len, ends->since};
  zps_err_t code = zps_mac_key_derive(ends->secret, &tx, &link->tx_key);
  if (code == ZPS_OK) code = zps_mac_key_derive(ends->secret, &rx, &link->rx_key);
  if (code == ZPS_OK) code = zps_net_reserve(net, RECEIVES);
  if (code != ZPS_OK) {
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
  const zps_err_t code = zps_net_reserve(link->net, -(int)RECEIVES);
  if (code != ZPS_OK) zps_log_debug("%u receives stay posted: %s", (unsigned)RECEIVES, zps_err_str(code));
  free(link);
}

/* Behind the `len` bytes there is room for the MAC. `seq` is that of the first frame. */
static zps_err_t send(struct zps_link *link, void *data, size_t len, uint32_t seq) {
  zps_mac_make(&link->tx_key, data, len, seq, (uint8_t *)data + len);
  const zps_err_t code = zps_net_send(link->peer, data, len + ZPS_WIRE_MAC_BYTES);
  if (code == ZPS_ERR_PEER_LOST) link->lost = true;
  return code;
}

/* Hands over the collected frames; ZPS_ERR_AGAIN: all of them are still here. */
static zps_err_t flush(struct zps_link *link) {
  if (link->message.n_frames == 0) return ZPS_OK;
  size_t len;
  void *const bytes = zps_wire_message_bytes(&link->message, &len);
  const zps_err_t code = send(link, bytes, len, link->message_seq);
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
  zps_wire_stamp(frame ? frame : data, link->tx_seq, (uint16_t)credits);
  if (frame && link->message.n_frames == 1) link->message_seq = link->tx_seq;
  if (!frame) code = send(link, data, len, link->tx_seq); /* as large as a message can be */
  if (code != ZPS_OK) return code;
  link->tx_seq++;
  link->tx_credits--;
  link->rx_due -= credits;
  if (credits > 0) link->must_answer = false;
  return ZPS_OK;
}

static zps_err_t enqueue(struct zps_link *link, const void *data, size_t len) {
  if (link->n_queue >= ZPS_LINK_QUEUE_MAX) return ZPS_ERR_AGAIN;
  struct waiting *waiting = malloc(sizeof *waiting + len + ZPS_WIRE_MAC_BYTES);
  if (!waiting) return ZPS_ERR_NOMEM;
  waiting->next = NULL;
  waiting->len = len;
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

zps_err_t zps_link_send(struct zps_link *link, struct zps_frame *frame) {
  uint8_t data[ZPS_WIRE_MESSAGE_MAX];
  size_t len;
  if (link->lost) return ZPS_ERR_PEER_LOST;
  link->n_questions = 0;
  header_fill(link, link->introduced, &frame->header);
  zps_err_t code = zps_wire_encode(frame, data, ZPS_WIRE_FRAME_MAX, &len);
  if (code != ZPS_OK) return code;
  frame->len_bytes = (uint32_t)len;
  code = link->queue || link->tx_credits <= 1 ? ZPS_ERR_AGAIN : transmit(link, data, len, link->rx_due);
  if (code == ZPS_ERR_AGAIN) code = enqueue(link, data, len);
  if (code == ZPS_OK) link->introduced = true;
  return code;
}

static void note_answer(struct zps_link *link, const struct zps_frame_header *header) {
  if (header->type == ZPS_FRAME_CREDIT && header->credits == 0) link->may_ask = link->must_answer = true;
  if (link->ahead == 0) return;
  link->ahead -= header->credits < link->ahead ? header->credits : link->ahead;
  if (link->ahead == 0) zps_bulk_peer_trip(link->bulk, zps_clock_ns() - link->asked_ns);
}

/* A gap is the other end's affair and is told by zps_link_received(); what lies behind has come before. */
bool zps_link_vouches(const struct zps_link *link, const struct zps_frame_header *first, const void *message,
                      size_t len) {
  if (len <= ZPS_WIRE_MAC_BYTES) return false;
  const uint32_t ahead = first->is_short ? (uint8_t)(first->seq - link->rx_seq) : first->seq - link->rx_seq;
  if (ahead > UINT32_MAX / 2) return false;
  len -= ZPS_WIRE_MAC_BYTES;
  return zps_mac_is_right(&link->rx_key, message, len, link->rx_seq + ahead, (const uint8_t *)message + len);
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
  const uint32_t expected = header->is_short ? (uint8_t)link->rx_seq : link->rx_seq;
  const bool stale = epoch != link->epoch;
  if (header->seq == expected) {
    /* Frames of an earlier epoch that are still in the stream count like others, or the stream would end with them. */
    if (link->tx_credits + header->credits > RECEIVES)
      return zps_fail(error, ZPS_ERR_PROTOCOL,
                      "%s frame %u returns %u credits: %u of %u were out, so it may return no more", type, link->rx_seq,
                      header->credits, (unsigned)RECEIVES - link->tx_credits, (unsigned)RECEIVES);
    if (link->rx_due >= RECEIVES)
      return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame %u was sent without credit: %u frames are unreturned", type,
                      link->rx_seq, link->rx_due);
    link->rx_seq++;
    link->rx_due++;
    link->tx_credits += header->credits;
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
  while (!link->lost && link->queue && link->tx_credits > 1) {
    struct waiting *waiting = link->queue;
    if (transmit(link, waiting->data, waiting->len, link->rx_due) != ZPS_OK) break;
    link->queue = waiting->next;
    if (!link->queue) link->queue_tail = &link->queue;
    link->n_queue--;
    free(waiting);
    sent++;
  }
  const bool is_due = link->rx_due >= CREDITS_DUE_MANY || link->must_answer;
  if (!link->lost && is_due && link->tx_credits >= 1 && send_credits(link, link->rx_due)) sent++;
  if (!link->lost) ask(link);
  if (!link->lost && link->is_to_ask && link->tx_credits > 1) link->is_to_ask = !send_credits(link, 0);
  if (!link->lost && flush(link) != ZPS_OK) zps_log_trace("frames stay until the fabric takes more");
  return sent;
}

bool zps_link_is_through(const struct zps_link *link) {
  return link->lost || (!link->queue && link->message.n_frames == 0 && zps_net_unsent(link->peer) == 0);
}

void zps_link_ask(struct zps_link *link) {
  link->is_to_ask = true;
}

bool zps_link_mark(const struct zps_link *link, uint32_t *mark_p) {
  if (link->queue) return false;
  *mark_p = link->tx_seq;
  return true;
}

/* Credits come back in the order in which they were spent. */
bool zps_link_has_taken(const struct zps_link *link, uint32_t mark) {
  const uint32_t taken = link->tx_seq - (RECEIVES - link->tx_credits);
  return taken - mark <= UINT32_MAX / 2;
}

void zps_link_set_epoch(struct zps_link *link, uint32_t epoch) {
  link->epoch = epoch;
  link->introduced = false;
  link->n_questions = 0;
}

void zps_link_measure(struct zps_link *link, struct zps_bulk_peer *bulk, bool begins) {
  link->bulk = bulk;
  link->n_questions = QUESTIONS;
  link->may_ask = begins;
}
