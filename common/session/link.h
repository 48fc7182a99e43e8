/*
 * A link: the credit-controlled, sequenced stream of frames between this process and one peer of one job. It outlives
 * the connections that carry it.
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
 * Messages are handed up in the order in which they were sent, and once. Those that come early wait (early.h).
 *
 * The fabric may lose a connection, and a stranger may take one over. Then both ends keep what the other has not
 * confirmed (unacked.h). The link connects again, asks by a RESUME frame what the peer has, and sends the rest again.
 * It also asks when it waits for the peer and hears nothing for a while; after longer silence it ends the connection
 * itself. Its owner decides when the peer is lost (zps_link_check()).
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

/* Receives that stay free for RESUME frames and for frames that are sent again, which cost no credit. */
#define ZPS_LINK_SPARE 2u
/* What a link takes at most: its receives and sends at the fabric, what is unconfirmed, and what came early. */
#define ZPS_LINK_BYTES \
  ((3 * (ZPS_LINK_CREDITS + 1) + ZPS_LINK_SPARE + ZPS_NET_SENDS_MAX) * (uint64_t)ZPS_WIRE_FRAME_MAX)

struct zps_link;
struct zps_early_message;

/* Of all links of an engine; other threads read it. */
struct zps_link_counts {
  _Atomic uint64_t reconnects; /* connections that ended, or were taken over, and were made anew */
  _Atomic uint64_t resent;     /* messages */
  _Atomic uint64_t repeated;   /* messages that had come before */
  _Atomic uint64_t reordered;  /* messages that came before others that were sent earlier */
};

struct zps_link_ends {
  uint64_t job;
  uint32_t epoch;
  uint32_t self, other;            /* rank, or server index | ZPS_WIRE_SRC_SERVER */
  uint32_t tag;                    /* the tag that the other end puts into its short headers */
  const struct zps_secret *secret; /* of the job; borrowed during zps_link_create() */
  const void *server;              /* the fabric address of the end that is a server, borrowed during zps_link_create();
                                      of no bytes between ranks */
  size_t server_len;
  uint32_t since; /* the epoch with which that server took a place in the job; 0: it was there at first, or is none */
  struct zps_bulk_peer *bulk;     /* what is read from the peer; NULL: nothing. Borrowed until zps_link_destroy() */
  struct zps_link_counts *counts; /* borrowed until zps_link_destroy(); NULL: nobody counts */
};

/* `peer` is borrowed until zps_link_destroy(). Reserves the receives this link needs. */
zps_err_t zps_link_create(struct zps_net *net, struct zps_net_peer *peer, const struct zps_link_ends *ends,
                          struct zps_link **link_p) ZPS_MUSTCHECK;
void zps_link_destroy(struct zps_link *link);
/* Encodes and queues `frame`, to leave with the next zps_link_progress(), or before where many are sent; its header is
 * filled in by the link except for `type`, and its length. */
zps_err_t zps_link_send(struct zps_link *link, struct zps_frame *frame) ZPS_MUSTCHECK;
enum zps_link_verdict {
  ZPS_LINK_FORGED,   /* it is not the peer's: nothing may come of it */
  ZPS_LINK_READY,    /* its frames are due */
  ZPS_LINK_EARLY,    /* the link keeps a copy until others have come */
  ZPS_LINK_REPEATED, /* it has come before */
  ZPS_LINK_RESUMES,  /* a RESUME frame, for zps_link_resume() */
};
/* What is to become of a message. `len` counts the MAC, `first` is the header of its first frame, by which this link
 * was found. Whoever reaches the fabric can send it. */
enum zps_link_verdict zps_link_take(struct zps_link *link, const struct zps_frame_header *first, const void *message,
                                    size_t len) ZPS_MUSTCHECK;
/* A message that came early and is due now, for the caller to free; NULL: there is none. */
struct zps_early_message *zps_link_take_early(struct zps_link *link) ZPS_MUSTCHECK;
/* The peer says what it expects. zps_link_check() tells of numbers that cannot be. */
void zps_link_resume(struct zps_link *link, const struct zps_frame *frame);
/* The fabric has lost the connection. False: that is no news. */
bool zps_link_cut(struct zps_link *link);
/* Connects again where the connection is lost, and asks the peer for a sign where it has been silent. `waits`: the
 * owner expects something of the peer. Returns when to call again, or ZPS_NEVER. Call before zps_link_progress(), not
 * inside the fabric's callbacks. */
uint64_t zps_link_tick(struct zps_link *link, uint64_t now_ns, bool waits);
/* After zps_link_tick(): whether the owner is to give the peer up. ZPS_ERR_PEER_LOST: it was asked, and has been silent
 * for `dead_ns`, or longer (0: that does not count). ZPS_ERR_PROTOCOL: a frame is missing, and is not sent again; or a
 * RESUME named frames or a question that this end never sent. */
zps_err_t zps_link_check(const struct zps_link *link, uint64_t now_ns, uint64_t dead_ns,
                         struct zps_error *error) ZPS_MUSTCHECK;
/* Accounts for a frame that arrived from this peer (found by the header's tag or its job and src): sequence, credits.
 * ZPS_ERR_PROTOCOL for a gap or a credit overrun, ZPS_ERR_STALE for another epoch. */
zps_err_t zps_link_received(struct zps_link *link, const struct zps_frame_header *header,
                            struct zps_error *error) ZPS_MUSTCHECK;
/* Hands over the frames sent since the last call, as one message where they fit into one; sends frames that waited
 * for credit, and a CREDIT or RESUME frame where one is due. Call at the end of a turn, never between the frames of one
 * message: a RESUME would name a frame inside it. Returns the number of frames that had waited. */
unsigned zps_link_progress(struct zps_link *link);
/* All frames are out of this process's hands, so that evicting the peer loses none. */
bool zps_link_is_through(const struct zps_link *link);
/* The peer has confirmed all frames. Else it is asked, with the next zps_link_progress(). For an end that goes, and can
 * send nothing again: a connection may have ended without its knowledge. */
bool zps_link_settles(struct zps_link *link);
/* Measures the path to the peer a few times, before anything else is sent, and tells `ends.bulk` of each answer. The
 * end that the peer hears from first, when it can receive, `begins`; the other asks in turn. */
void zps_link_measure(struct zps_link *link, bool begins);
/* Has the peer send a frame at once, if it lives and can be reached: with the next zps_link_progress() it is asked for
 * its credits. It is not where the link has no credit to ask with: then the peer owes some anyway. */
void zps_link_ask(struct zps_link *link);
/* Messages so far that only a peer sends that lives: new frames, and answers to questions. It grows also where the
 * frames wait for others. */
uint64_t zps_link_signs(const struct zps_link *link);
/* *mark_p stands for all frames that were sent so far; false: some wait for credit. */
bool zps_link_mark(const struct zps_link *link, uint32_t *mark_p);
/* Whether the peer has taken the frames up to the mark, as far as is known: it says so when it returns their credits
 * (zps_link_ask()). */
bool zps_link_has_taken(const struct zps_link *link, uint32_t mark);
/* The next frame has a long header, which tells the peer. */
void zps_link_set_epoch(struct zps_link *link, uint32_t epoch);

#endif
