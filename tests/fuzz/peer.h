/* The other end of a link, made by hand from what PROTOCOL.md says (headers, sequence, credits, MAC), so that it can
 * also say what no end would: frames with any bytes as their bodies, messages with any bytes at all. What it is sent is
 * checked as a peer would. */
#ifndef ZPS_TESTS_FUZZ_PEER_H
#define ZPS_TESTS_FUZZ_PEER_H

#include "common/net/net.h"
#include "common/session/mac.h"
#include "proto/wire.h"

struct peer {
  struct zps_net *net;
  struct zps_net_peer *to;
  struct zps_mac_key tx_key, rx_key;
  uint64_t job;
  uint32_t self, other, epoch, tag;
  uint32_t tx_seq, rx_seq, n_resumes, resumes_come, answers, rx_due, rx_epoch, credits;
  uint32_t peer_tag; /* short headers to the other end carry it once has_peer_tag */
  bool has_peer_tag; /* the other end has named peer_tag */
  bool introduced;   /* the other end has had a long header of this epoch */
  bool must_answer, is_lost;
  bool broken; /* it has said what an honest end does not: nothing that comes is expected of the other end */
  void (*on_frame)(struct peer *peer, const struct zps_frame *frame);
  void *ctx;
};

struct peer_ends {
  uint64_t job;
  uint32_t epoch, self, other, tag;
  const struct zps_secret *secret;
};

/* Opens its endpoint, of the in-process fabric; then connects it. `server` is the address of the end that is one. */
void peer_open(struct peer *peer);
void peer_connect(struct peer *peer, const struct peer_ends *ends, const struct zps_net_info *to,
                  const struct zps_net_info *server);
void peer_close(struct peer *peer);
void peer_set_epoch(struct peer *peer, uint32_t epoch);
/* False: it has no credit, or there is no such frame, and nothing is sent. The header is filled in, but for the type.
 */
bool peer_send(struct peer *peer, struct zps_frame *frame);
/* A frame of this type with any bytes as its body: `frame` becomes what the other end should make of it; false: it
 * cannot make anything of it, or nothing was sent. */
bool peer_send_body(struct peer *peer, uint8_t type, const uint8_t *body, size_t len, struct zps_frame *frame);
/* A message of a CREDIT frame and another one, whose header is taken as it is. */
void peer_send_pair(struct peer *peer, const struct zps_frame *second);
/* A RESUME frame: what it says need not be true. */
void peer_resume(struct peer *peer, const struct zps_frame_resume *resume);
/* Any bytes, sealed as a message of this end's with this number, or as they are. */
void peer_send_sealed(struct peer *peer, const uint8_t *bytes, size_t len, uint32_t seq);
void peer_send_raw(struct peer *peer, const uint8_t *bytes, size_t len);
/* Takes what has come, answers where an answer is due. Returns the number of events. */
unsigned peer_turn(struct peer *peer);

#endif
