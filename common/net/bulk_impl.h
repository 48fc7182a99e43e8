/* Inside of the bulk engine, for bulk.c and bulk_lost.c (pieces that were lost with a connection). */
#ifndef ZPS_NET_BULK_IMPL_H
#define ZPS_NET_BULK_IMPL_H

#include "common/net/bulk.h"
#include "common/net/meter.h"
#include "common/net/window.h"

enum { PIECES_PER_BLOCK = 64 };

struct piece {
  struct zps_net_read net;
  struct zps_bulk *bulk;
  struct zps_bulk_read *read;
  struct zps_bulk_peer *peer; /* valid until the piece is done */
  uint64_t issued_ns;
  bool is_lost;       /* with a connection, and the fabric still holds it */
  struct piece *next; /* free ones, and those of a peer that are lost or to be read again */
};

struct piece_block {
  struct piece_block *next;
  struct piece pieces[PIECES_PER_BLOCK];
};

/* What comes from a peer over one rail. */
struct lane {
  struct zps_window window;
  uint64_t in_flight;
  unsigned n_pieces;
};

struct zps_bulk_peer {
  struct zps_bulk *bulk;
  struct zps_net_peer *net_peer;
  struct zps_bulk_peer *next, *prev;         /* all peers */
  struct zps_read_turn turn;                 /* while it has something to issue */
  struct zps_bulk_read *queue, **queue_tail; /* transfers with something left to issue */
  struct lane lanes[ZPS_NET_RAILS_MAX];
  uint64_t landed;
  unsigned n_pieces, n_checking;
  struct piece *lost,
      *again;   /* pieces lost with a connection: those that the fabric holds, and those to be read again */
  bool is_held; /* there is no connection */
  bool removed;
};

struct zps_bulk {
  struct zps_net *net;
  struct zps_bulk_config config;
  struct zps_bulk_peer *peers;
  struct zps_read_queue turns;
  struct zps_read_flow own;                        /* of peers that belong to none */
  struct zps_bulk_read *finished, **finished_tail; /* done() is called by the next zps_bulk_progress() */
  struct piece *free_pieces;
  struct piece_block *blocks;
  uint64_t in_flight;
  uint64_t max_pieces;                         /* in flight */
  unsigned n_pieces, n_awaited, n_quarantined; /* n_awaited: pieces with bytes that are under way */
  unsigned n_flows;                            /* lanes with pieces in flight */
  struct zps_window_paths paths;
  bool has_windows;
  bool crowded; /* more threads than processors */
  struct zps_meter meter;
};

static inline bool zps_bulk_has_more(const struct zps_bulk_peer *peer) {
  return peer->queue || peer->again;
}

/* bulk.c */
void zps_bulk_end_turns(struct zps_bulk_peer *peer); /* where nothing is left to issue */
void zps_bulk_piece_free(struct piece *piece);
void zps_bulk_finish_later(struct zps_bulk *bulk, struct zps_bulk_read *read);
/* A loss outranks other failures: it tells the owner to wait for release(). */
void zps_bulk_read_fail(struct zps_bulk_read *read, zps_err_t code);
void zps_bulk_count_issued(struct zps_bulk *bulk, struct piece *piece);

/* bulk_lost.c */
/* A piece was lost with its connection, and the fabric holds it. */
void zps_bulk_lost_put(struct piece *piece);
/* The fabric is through with it: another read of the same bytes does not meet the first one. */
void zps_bulk_lost_released(struct piece *piece);
/* Reads the next one again. */
void zps_bulk_lost_issue(struct zps_bulk *bulk, struct zps_bulk_peer *peer, unsigned rail);
/* The peer is removed: all fail. Of pieces that the fabric still holds release() follows. */
void zps_bulk_lost_fail(struct zps_bulk_peer *peer, zps_err_t code);

#endif
