#include "tests/fuzz/peer.h"

#include <string.h>

#include "tests/fuzz/must.h"
#include "tests/support/fabrics/loop.h"

enum { RECEIVES = 33, CREDITS_DUE_MANY = 16, AT_TYPE = 6 };

static bool is_of_this_epoch(const struct peer *peer) {
  return peer->rx_epoch == peer->epoch;
}

/* As a member of the job: whatever comes is the other end's, in order, and within its credits. */
static void take_frame(struct peer *peer, const void *bytes, size_t len) {
  static struct zps_frame frame;
  struct zps_error error;
  must(zps_wire_decode(bytes, len, &frame, &error) == ZPS_OK);
  const struct zps_frame_header *header = &frame.header;
  if (header->is_short) {
    must(header->tag == peer->tag && header->seq == (uint8_t)peer->rx_seq);
  } else {
    must(header->job == peer->job && header->src == peer->other && header->seq == peer->rx_seq);
    peer->rx_epoch = header->epoch;
    peer->peer_tag = header->tag;
    peer->has_peer_tag = true;
  }
  must(peer->rx_due < RECEIVES && peer->credits + header->credits <= RECEIVES);
  peer->rx_seq++;
  peer->rx_due++;
  peer->credits += header->credits;
  if (header->type == ZPS_FRAME_CREDIT && header->credits == 0) peer->must_answer = true;
  if (is_of_this_epoch(peer) && peer->on_frame) peer->on_frame(peer, &frame);
}

/* It stands outside the sequence: it has a number of its own, and tells what the other end expects. */
static bool take_resume(struct peer *peer, const void *data, size_t len) {
  static struct zps_frame frame;
  if (zps_wire_decode(data, len, &frame, NULL) != ZPS_OK || frame.header.type != ZPS_FRAME_RESUME) return false;
  must(zps_mac_is_right(&peer->rx_key, data, len, frame.header.seq, (const uint8_t *)data + len));
  must(frame.header.seq == ++peer->resumes_come && frame.u.resume.expects <= peer->tx_seq);
  if (frame.u.resume.asks) peer->answers = frame.header.seq;
  return true;
}

static void on_message(void *ctx, const void *data, size_t len) {
  struct peer *peer = ctx;
  struct zps_wire_frames frames;
  const void *frame;
  size_t frame_len;
  if (peer->broken || !peer->to) return;
  must(len > ZPS_WIRE_MAC_BYTES);
  const size_t body = len - ZPS_WIRE_MAC_BYTES;
  if (take_resume(peer, data, body)) return;
  must(zps_mac_is_right(&peer->rx_key, data, body, peer->rx_seq, (const uint8_t *)data + body));
  zps_wire_frames_begin(&frames, data, len);
  do {
    must(zps_wire_frames_next(&frames, &frame, &frame_len, NULL) == ZPS_OK);
    if (frame) take_frame(peer, frame, frame_len);
  } while (frame);
}

static void on_peer_error(void *ctx, struct zps_net_peer *to, zps_err_t code, const char *text) {
  (void)to, (void)code, (void)text;
  ((struct peer *)ctx)->is_lost = true;
}

void peer_open(struct peer *peer) {
  const struct zps_net_config config = {.provider = "loop", .max_msg = ZPS_WIRE_MESSAGE_MAX, .n_recv = RECEIVES};
  const struct zps_net_handler handler = {.ctx = peer, .on_message = on_message, .on_peer_error = on_peer_error};
  *peer = (struct peer){.net = NULL};
  must(zps_net_open(&config, &handler, &peer->net, NULL) == ZPS_OK);
}

void peer_connect(struct peer *peer, const struct peer_ends *ends, const struct zps_net_info *to,
                  const struct zps_net_info *server) {
  const struct zps_mac_link tx = {ends->job, ends->self, ends->other, server->addr, server->addr_len, 0},
                            rx = {ends->job, ends->other, ends->self, server->addr, server->addr_len, 0};
  must(zps_mac_key_derive(ends->secret, &tx, &peer->tx_key) == ZPS_OK);
  must(zps_mac_key_derive(ends->secret, &rx, &peer->rx_key) == ZPS_OK);
  must(zps_net_peer_add(peer->net, to->addr, to->addr_len, peer, &peer->to, NULL) == ZPS_OK);
  peer->job = ends->job;
  peer->epoch = ends->epoch;
  peer->self = ends->self;
  peer->other = ends->other;
  peer->tag = ends->tag;
  peer->credits = RECEIVES;
}

void peer_close(struct peer *peer) {
  zps_net_close(peer->net);
  zps_mac_key_fini(&peer->tx_key);
  zps_mac_key_fini(&peer->rx_key);
  peer->net = NULL;
  peer->to = NULL;
}

void peer_set_epoch(struct peer *peer, uint32_t epoch) {
  peer->epoch = epoch;
  peer->introduced = false;
}

void peer_send_raw(struct peer *peer, const uint8_t *bytes, size_t len) {
  const zps_err_t code = peer->is_lost || !peer->to ? ZPS_ERR_PEER_LOST : zps_net_send(peer->to, bytes, len);
  (void)code; /* whatever does not arrive was not said */
}

void peer_send_sealed(struct peer *peer, const uint8_t *bytes, size_t len, uint32_t seq) {
  uint8_t message[ZPS_WIRE_MESSAGE_MAX];
  if (len > ZPS_WIRE_FRAME_MAX) len = ZPS_WIRE_FRAME_MAX;
  memcpy(message, bytes, len);
  zps_mac_make(&peer->tx_key, message, len, seq, message + len);
  peer_send_raw(peer, message, len + ZPS_WIRE_MAC_BYTES);
}

static struct zps_frame_header header_of(const struct peer *peer, uint8_t type) {
  if (peer->has_peer_tag && peer->introduced)
    return (struct zps_frame_header){.type = type, .is_short = true, .tag = peer->peer_tag};
  return (struct zps_frame_header){
      .type = type, .job = peer->job, .epoch = peer->epoch, .src = peer->self, .tag = peer->tag};
}

static bool may_send(const struct peer *peer, uint8_t type) {
  return peer->to && !peer->is_lost && peer->credits > (type == ZPS_FRAME_CREDIT ? 0 : 1);
}

static void has_left(struct peer *peer, uint8_t type) {
  peer->tx_seq++;
  if (peer->rx_due > 0) peer->must_answer = false;
  peer->rx_due = 0;
  peer->credits--;
  peer->introduced |= type != ZPS_FRAME_CREDIT;
}

/* Stamps and seals it. */
static void leave(struct peer *peer, uint8_t type, uint8_t *bytes, size_t len) {
  zps_wire_stamp(bytes, peer->tx_seq, (uint16_t)peer->rx_due);
  peer_send_sealed(peer, bytes, len, peer->tx_seq);
  has_left(peer, type);
}

bool peer_send(struct peer *peer, struct zps_frame *frame) {
  uint8_t bytes[ZPS_WIRE_FRAME_MAX];
  size_t len;
  const uint8_t type = frame->header.type;
  if (!may_send(peer, type)) return false;
  frame->header = header_of(peer, type);
  if (zps_wire_encode(frame, bytes, sizeof bytes, &len) != ZPS_OK) return false;
  leave(peer, type, bytes, len);
  return true;
}

bool peer_send_body(struct peer *peer, uint8_t type, const uint8_t *body, size_t len, struct zps_frame *frame) {
  uint8_t bytes[ZPS_WIRE_FRAME_MAX];
  size_t head;
  struct zps_frame only_header = {.header = header_of(peer, ZPS_FRAME_CREDIT)};
  if (!may_send(peer, type)) return false;
  must(zps_wire_encode(&only_header, bytes, sizeof bytes, &head) == ZPS_OK);
  if (only_header.header.is_short)
    bytes[0] = (uint8_t)((bytes[0] & 0xf0) | (type & 15));
  else
    bytes[AT_TYPE] = type;
  if (len > sizeof bytes - head) len = sizeof bytes - head;
  memcpy(bytes + head, body, len);
  if (zps_wire_decode(bytes, head + len, frame, NULL) == ZPS_OK) {
    leave(peer, type, bytes, head + len);
    return true;
  }
  peer_send_sealed(peer, bytes, head + len, peer->tx_seq); /* the other end drops it, so it has no number */
  return false;
}

void peer_send_pair(struct peer *peer, const struct zps_frame *second) {
  static struct zps_wire_message message;
  uint8_t bytes[ZPS_WIRE_FRAME_MAX];
  size_t len;
  const struct zps_frame credit = {.header = header_of(peer, ZPS_FRAME_CREDIT)};
  if (!may_send(peer, ZPS_FRAME_CREDIT)) return;
  zps_wire_message_clear(&message);
  must(zps_wire_encode(&credit, bytes, sizeof bytes, &len) == ZPS_OK);
  zps_wire_stamp(bytes, peer->tx_seq, (uint16_t)peer->rx_due);
  must(zps_wire_message_add(&message, bytes, len));
  must(zps_wire_encode(second, bytes, sizeof bytes, &len) == ZPS_OK);
  must(zps_wire_message_add(&message, bytes, len));
  const uint8_t *const all = zps_wire_message_bytes(&message, &len);
  peer_send_sealed(peer, all, len, peer->tx_seq);
  has_left(peer, ZPS_FRAME_CREDIT);
}

static bool send_credit(struct peer *peer) {
  struct zps_frame frame = {.header.type = ZPS_FRAME_CREDIT};
  return peer_send(peer, &frame);
}

void peer_resume(struct peer *peer, const struct zps_frame_resume *resume) {
  uint8_t bytes[ZPS_WIRE_FRAME_MAX];
  size_t len;
  struct zps_frame frame = {.header = {.type = ZPS_FRAME_RESUME,
                                       .job = peer->job,
                                       .epoch = peer->epoch,
                                       .src = peer->self,
                                       .tag = peer->tag,
                                       .seq = ++peer->n_resumes},
                            .u.resume = *resume};
  must(zps_wire_encode(&frame, bytes, sizeof bytes, &len) == ZPS_OK);
  peer_send_sealed(peer, bytes, len, frame.header.seq);
  peer->answers = 0;
}

static void answer(struct peer *peer) {
  const struct zps_frame_resume resume = {.expects = peer->rx_seq, .answers = peer->answers};
  peer_resume(peer, &resume);
}

unsigned peer_turn(struct peer *peer) {
  unsigned events = zps_net_progress(peer->net);
  if (peer->answers > 0 && !peer->broken) answer(peer);
  if ((peer->rx_due >= CREDITS_DUE_MANY || (peer->must_answer && peer->rx_due > 0)) && send_credit(peer)) events++;
  return events;
}
