#include "common/session/link.h"

#include <stdlib.h>
#include <string.h>

#define ZPS_LOG_COMPONENT "link"
#include "common/base/log.h"

enum {
  RECEIVES = ZPS_LINK_CREDITS + 1, /* the last one is for CREDIT frames alone, so that two full ends cannot lock up */
  CREDITS_DUE_MANY = ZPS_LINK_CREDITS / 2 /* worth a frame of their own */
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
  uint32_t epoch, self;
  uint32_t tx_seq, rx_seq; /* of the next frame */
  unsigned tx_credits;     /* receives the peer has free for us */
  unsigned rx_due;         /* receives free again for the peer that it has not been told of */
  bool lost;
  struct waiting *queue, **queue_tail;
  unsigned n_queue;
};

zps_err_t zps_link_create(struct zps_net *net, struct zps_net_peer *peer, uint64_t job, uint32_t epoch, uint32_t self,
                          struct zps_link **link_p) {
  struct zps_link *link = calloc(1, sizeof *link);
  if (!link) return ZPS_ERR_NOMEM;
  const zps_err_t code = zps_net_reserve(net, RECEIVES);
  if (code != ZPS_OK) {
    free(link);
    return code;
  }
  link->net = net;
  link->peer = peer;
  link->job = job;
  link->epoch = epoch;
  link->self = self;
  link->tx_credits = RECEIVES;
  link->queue_tail = &link->queue;
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

static zps_err_t transmit(struct zps_link *link, void *data, size_t len) {
  zps_wire_stamp(data, link->tx_seq, (uint16_t)link->rx_due);
  const zps_err_t code = zps_net_send(link->peer, data, len);
  if (code == ZPS_ERR_PEER_LOST) link->lost = true;
  if (code != ZPS_OK) return code;
  link->tx_seq++;
  link->tx_credits--;
  link->rx_due = 0;
  return ZPS_OK;
}

static zps_err_t enqueue(struct zps_link *link, const void *data, size_t len) {
  if (link->n_queue >= ZPS_LINK_QUEUE_MAX) return ZPS_ERR_AGAIN;
  struct waiting *waiting = malloc(sizeof *waiting + len);
  if (!waiting) return ZPS_ERR_NOMEM;
  waiting->next = NULL;
  waiting->len = len;
  memcpy(waiting->data, data, len);
  *link->queue_tail = waiting;
  link->queue_tail = &waiting->next;
  link->n_queue++;
  return ZPS_OK;
}

static void header_fill(const struct zps_link *link, struct zps_frame_header *header) {
  header->job = link->job;
  header->epoch = link->epoch;
  header->src = link->self;
  header->seq = 0;
  header->credits = 0;
}

zps_err_t zps_link_send(struct zps_link *link, struct zps_frame *frame) {
  uint8_t data[ZPS_WIRE_FRAME_MAX];
  size_t len;
  if (link->lost) return ZPS_ERR_PEER_LOST;
  header_fill(link, &frame->header);
  zps_err_t code = zps_wire_encode(frame, data, sizeof data, &len);
  if (code != ZPS_OK) return code;
  if (link->queue || link->tx_credits <= 1) return enqueue(link, data, len);
  code = transmit(link, data, len);
  return code == ZPS_ERR_AGAIN ? enqueue(link, data, len) : code;
}

zps_err_t zps_link_received(struct zps_link *link, const struct zps_frame_header *header, struct zps_error *error) {
  const char *type = zps_frame_type_name(header->type);
  const bool stale = header->epoch != link->epoch;
  if (header->job != link->job)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame of job 0x%016llx from 0x%x on a link of job 0x%016llx", type,
                    (unsigned long long)header->job, header->src, (unsigned long long)link->job);
  if (header->seq == link->rx_seq) {
    /* Frames of an earlier epoch that are still in the stream count like others, or the stream would end with them. */
    if (link->tx_credits + header->credits > RECEIVES)
      return zps_fail(error, ZPS_ERR_PROTOCOL,
                      "%s frame %u from 0x%x returns %u credits: %u of %u were out, so it may return no more", type,
                      header->seq, header->src, header->credits, (unsigned)RECEIVES - link->tx_credits,
                      (unsigned)RECEIVES);
    if (link->rx_due >= RECEIVES)
      return zps_fail(error, ZPS_ERR_PROTOCOL,
                      "%s frame %u from 0x%x was sent without credit: %u frames are unreturned", type, header->seq,
                      header->src, link->rx_due);
    link->rx_seq++;
    link->rx_due++;
    link->tx_credits += header->credits;
  } else if (!stale) {
    return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame from 0x%x has sequence number %u: %u was expected", type,
                    header->src, header->seq, link->rx_seq);
  }
  if (stale)
    return zps_fail(error, ZPS_ERR_STALE, "%s frame %u from 0x%x is of epoch %u: this end lives in epoch %u", type,
                    header->seq, header->src, header->epoch, link->epoch);
  return ZPS_OK;
}

static bool send_credits(struct zps_link *link) {
  struct zps_frame frame = {.header.type = ZPS_FRAME_CREDIT};
  uint8_t data[ZPS_WIRE_FRAME_MAX];
  size_t len;
  header_fill(link, &frame.header);
  return zps_wire_encode(&frame, data, sizeof data, &len) == ZPS_OK && transmit(link, data, len) == ZPS_OK;
}

unsigned zps_link_progress(struct zps_link *link) {
  unsigned sent = 0;
  while (!link->lost && link->queue && link->tx_credits > 1) {
    struct waiting *waiting = link->queue;
    if (transmit(link, waiting->data, waiting->len) != ZPS_OK) return sent;
    link->queue = waiting->next;
    if (!link->queue) link->queue_tail = &link->queue;
    link->n_queue--;
    free(waiting);
    sent++;
  }
  if (!link->lost && link->rx_due >= CREDITS_DUE_MANY && link->tx_credits >= 1 && send_credits(link)) sent++;
  return sent;
}

void zps_link_set_epoch(struct zps_link *link, uint32_t epoch) {
  link->epoch = epoch;
}
