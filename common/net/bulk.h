/*
 * Receiver-driven bulk transfer: reads announced payloads in pieces, in turns over peers, within a byte budget.
 *
 * A transfer is queued at its peer. Every turn takes one piece from the next peer: by the weights of jobs, then round
 * the peers of a job (read_queue.h). The bytes in flight stay under the budget, and under the limit of each rail to the
 * peer, which follows what the link carries (window.h). A piece comes over the rail with most room: a slow rail carries
 * less. So no slow or huge sender, nor a job of many, starves the others, and control messages wait behind a few pieces
 * at most. Bytes that the peer has offered (zps_net_offered()) come anyhow: their pieces count in no budget.
 */
#ifndef ZPS_NET_BULK_H
#define ZPS_NET_BULK_H

#include "common/net/net.h"
#include "common/net/read_queue.h"

struct zps_bulk;
struct zps_bulk_peer;

struct zps_bulk_config {
  size_t piece_bytes;         /* default: up to 1 MiB, by the peer's window; otherwise this, and no windows */
  uint64_t budget_bytes;      /* in flight over all peers; default 64 MiB */
  uint64_t peer_budget_bytes; /* in flight per peer and rail, at most; default 8 MiB */
};

/* Embedded in the caller's object; must live until `done`, and if `done` reports a lost peer until `release`. Both are
 * called by zps_net_progress() (or close) or zps_bulk_progress() (or destroy), never by the call that starts or
 * removes. A failed transfer is done when none of its pieces is in flight any more, so that its buffer is free again;
 * only a lost peer's pieces may be held by the fabric for longer. */
struct zps_bulk_read {
  void *local;
  const struct zps_net_mem *mem; /* never NULL */
  uint64_t len;
  uint64_t addr, key;
  struct zps_net_keys more;
  void (*done)(struct zps_bulk_read *read, zps_err_t code); /* once; the code of the first piece that failed, but
                                                             * ZPS_ERR_PEER_LOST if any piece was lost by removal of the
                                                             * peer; pieces lost with a connection are read again */
  void (*check)(struct zps_bulk_read *read);   /* NULL: what has come is good. Called when all of it has, from where
                                                * `done` is; zps_bulk_checked() follows, at once or later */
  void (*release)(struct zps_bulk_read *read); /* may be NULL; after done with ZPS_ERR_PEER_LOST and no other: the
                                                * fabric holds no piece any more */
  void *ctx;
  struct zps_bulk_read *next; /* private from here on */
  struct zps_bulk_peer *peer;
  uint64_t issued, landed;
  unsigned in_flight, quarantined;
  zps_err_t code;
  bool finished, is_last_try;
};

zps_err_t zps_bulk_create(struct zps_net *net, const struct zps_bulk_config *config,
                          struct zps_bulk **bulk_p) ZPS_MUSTCHECK;
/* Transfers still queued are done with ZPS_ERR_CLOSED. Where pieces are in flight, zps_net_close() comes first. NULL is
 * allowed. */
void zps_bulk_destroy(struct zps_bulk *bulk);
zps_err_t zps_bulk_peer_add(struct zps_bulk *bulk, struct zps_net_peer *net_peer,
                            struct zps_bulk_peer **peer_p) ZPS_MUSTCHECK;
/* The peer has turns as one of the flow's, which must live until the peer is removed; without this call, as one of
 * those that belong to none, which are a flow of weight 1. */
void zps_bulk_peer_join(struct zps_bulk_peer *peer, struct zps_read_flow *flow);
/* Call right after zps_net_peer_evict(): transfers still queued fail with ZPS_ERR_PEER_LOST. NULL is allowed. */
void zps_bulk_peer_remove(struct zps_bulk_peer *peer);
/* The connection to the peer is lost. What was in flight is read again, and nothing more is asked for, until there is
 * another one: zps_bulk_peer_go_on(). */
void zps_bulk_peer_hold(struct zps_bulk_peer *peer);
void zps_bulk_peer_go_on(struct zps_bulk_peer *peer);
/* Whether something is to come from the peer. */
bool zps_bulk_peer_waits(const struct zps_bulk_peer *peer);
/* How many bytes have been read from the peer so far. */
uint64_t zps_bulk_peer_landed(const struct zps_bulk_peer *peer);
/* A message to the peer was answered after `trip_ns`, which is the length of the path if no reads are under way. */
void zps_bulk_peer_trip(struct zps_bulk_peer *peer, uint64_t trip_ns);
/* Takes the time that the thread which drives this lately waits for a processor each time it could run; 0: not
 * known. */
void zps_bulk_waited(struct zps_bulk *bulk, uint64_t wait_ns);
/* Queues a transfer; never blocks, `done` always follows (for len 0 from the next zps_bulk_progress()). */
void zps_bulk_start(struct zps_bulk_peer *peer, struct zps_bulk_read *read);
/* Stops asking for the rest of a transfer: it is done with `code` when none of its pieces is in flight. A transfer that
 * is all asked for goes on. */
void zps_bulk_give_up(struct zps_bulk_read *read, zps_err_t code);
/* What check() has found: ZPS_OK; or why what has come is bad: it is read once more, and then done with that code. The
 * peer may have been removed meanwhile. */
void zps_bulk_checked(struct zps_bulk_read *read, zps_err_t code);
/* Issues pieces while the budget allows; call after zps_net_progress(). Returns the number of pieces issued and of
 * transfers called back. */
unsigned zps_bulk_progress(struct zps_bulk *bulk);
uint64_t zps_bulk_in_flight(const struct zps_bulk *bulk);

/* The links, as its reads and the trips reported to it have found them. */
struct zps_bulk_measure {
  double bytes_per_s; /* while anything was in flight, lately; 0: too little was read to tell */
  double latency_s;   /* half of the shortest trip of a message or small piece; 0: there was none */
};
struct zps_bulk_measure zps_bulk_measure(const struct zps_bulk *bulk);

#endif
