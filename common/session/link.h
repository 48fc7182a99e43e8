/*
 * A link: the credit-controlled, sequenced stream of frames between this process and one peer of one job.
 *
 * The receiver posts ZPS_LINK_CREDITS receives per link before the peer may send, so no frame ever arrives unmatched
 * (which on some providers blocks the whole connection). Every frame costs one credit; credits travel back in the
 * header of frames the other way, or in a CREDIT frame when half of them are due and nothing else is being sent. CREDIT
 * frames themselves are paid from a reserve of one. Frames without credit wait in the link's queue, in order.
 *
 * The first frame of each end has a long header, which says under which tag the other end shall send: from then on
 * headers are short.
 *
 * Each message ends in a MAC under a key of this link and direction (mac.h): what a stranger sends is not of it, and
 * changes nothing here.
 *
 * A CREDIT frame that returns no credits asks for one that does, at once. So a link measures its path before it is
 * used, and finds out whether the peer is there.
 */
#ifndef ZPS_SESSION_LINK_H
#define ZPS_SESSION_LINK_H

#include "common/base/secret.h"
#include "common/net/bulk.h"
#include "proto/wire.h"

#define ZPS_LINK_CREDITS 32u
#define ZPS_LINK_QUEUE_MAX 4096u /* frames waiting for credit before zps_link_send() reports ZPS_ERR_AGAIN */

/* What the fabric has for a link, at most: its receives, and sends under way. */
#define ZPS_LINK_BYTES ((ZPS_LINK_CREDITS + 1 + ZPS_NET_SENDS_MAX) * (uint64_t)ZPS_WIRE_FRAME_MAX)

struct zps_link;

struct zps_link_ends {
  uint64_t job;
  uint32_t epoch;
  uint32_t self, other;            /* rank, or server index | ZPS_WIRE_SRC_SERVER */
  uint32_t tag;                    /* that short headers from the other end will carry */
  const struct zps_secret *secret; /* of the job; borrowed during zps_link_create(), as are: */
  const void *server;              /* the fabric address of the end that is a server; of no bytes between ranks */
  size_t server_len;
  uint32_t since; /* the epoch with which that server took a place in the job; 0: it was there at first, or is none */
};

/* `peer` is borrowed until zps_link_destroy(). Reserves the receives this link needs. */
zps_err_t zps_link_create(struct zps_net *net, struct zps_net_peer *peer, const struct zps_link_ends *ends,
                          struct zps_link **link_p) ZPS_MUSTCHECK;
void zps_link_destroy(struct zps_link *link);
/* Encodes and queues `frame`, to leave with the next zps_link_progress(), or before where many are sent; its header is
 * filled in by the link except for `type`, and its length. */
zps_err_t zps_link_send(struct zps_link *link, struct zps_frame *frame) ZPS_MUSTCHECK;
/* Whether a message is the other end's, and has not come before. `len` counts the MAC, `first` is the header of its
 * first frame, by which this link was found. Nothing may come of one that is not: whoever reaches the fabric can send
 * it. */
bool zps_link_vouches(const struct zps_link *link, const struct zps_frame_header *first, const void *message,
                      size_t len) ZPS_MUSTCHECK;
/* Accounts for a frame that arrived from this peer (found by the header's tag or its job and src): sequence, credits.
 * ZPS_ERR_PROTOCOL for a gap or a credit overrun, ZPS_ERR_STALE for another epoch. */
zps_err_t zps_link_received(struct zps_link *link, const struct zps_frame_header *header,
                            struct zps_error *error) ZPS_MUSTCHECK;
/* Hands over the frames sent since the last call, as one message where they fit into one; sends frames that waited
 * for credit, and a CREDIT frame where one is due. Call at the end of a turn. Returns the number of frames that had
 * waited. */
unsigned zps_link_progress(struct zps_link *link);
/* All frames are out of this process's hands, so that evicting the peer loses none; or it is lost. */
bool zps_link_is_through(const struct zps_link *link);
/* Measures the path to the peer a few times, before anything else is sent, and tells `bulk`, which is borrowed until
 * zps_link_destroy(), of each answer. The end that the peer hears from first, when it can receive, `begins`; the other
 * asks in turn. */
void zps_link_measure(struct zps_link *link, struct zps_bulk_peer *bulk, bool begins);
/* Has the peer send a frame at once, if it lives and can be reached: with the next zps_link_progress() it is asked for
 * its credits. It is not where the link has no credit to ask with: then the peer owes some anyway. */
void zps_link_ask(struct zps_link *link);
/* *mark_p stands for all frames that were sent so far; false: some wait for credit. */
bool zps_link_mark(const struct zps_link *link, uint32_t *mark_p);
/* Whether the peer has taken the frames up to the mark, as far as is known: it says so when it returns their credits
 * (zps_link_ask()). */
bool zps_link_has_taken(const struct zps_link *link, uint32_t mark);
/* The next frame has a long header, which tells the peer. */
void zps_link_set_epoch(struct zps_link *link, uint32_t epoch);

#endif
