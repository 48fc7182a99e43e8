/* Pieces that were lost with a connection, and are read again over the next. */
#include "common/net/bulk_impl.h"

#include "common/base/clock.h"

static struct piece *piece_pop(struct piece **list) {
  struct piece *const piece = *list;
  if (piece) *list = piece->next;
  return piece;
}

static void piece_push(struct piece **list, struct piece *piece) {
  piece->next = *list;
  *list = piece;
}

void zps_bulk_lost_put(struct piece *piece) {
  piece->is_lost = true;
  piece_push(&piece->peer->lost, piece);
}

void zps_bulk_lost_released(struct piece *piece) {
  struct zps_bulk_peer *const peer = piece->peer;
  struct piece **at = &peer->lost;
  while (*at != piece) at = &(*at)->next;
  *at = piece->next;
  piece->is_lost = false;
  piece_push(&peer->again, piece);
  zps_read_queue_add(&peer->bulk->turns, &peer->turn);
}

static void piece_fail(struct piece *piece, zps_err_t code) {
  struct zps_bulk_read *const read = piece->read;
  zps_bulk_read_fail(read, code);
  if (--read->in_flight == 0 && read->issued == read->len) zps_bulk_finish_later(piece->bulk, read);
}

void zps_bulk_lost_fail(struct zps_bulk_peer *peer, zps_err_t code) {
  struct piece *piece;
  while ((piece = piece_pop(&peer->lost)) != NULL) {
    piece->is_lost = false;
    piece->read->quarantined++;
    peer->bulk->n_quarantined++;
    piece_fail(piece, ZPS_ERR_PEER_LOST);
  }
  while ((piece = piece_pop(&peer->again)) != NULL) {
    piece_fail(piece, code);
    zps_bulk_piece_free(piece);
  }
  zps_bulk_end_turns(peer);
}

void zps_bulk_lost_issue(struct zps_bulk *bulk, struct zps_bulk_peer *peer, unsigned rail) {
  struct piece *const piece = piece_pop(&peer->again);
  piece->net.rail = (uint8_t)rail;
  piece->issued_ns = bulk->has_windows ? zps_clock_ns() : 0;
  const zps_err_t code = piece->read->code == ZPS_OK ? zps_net_read(peer->net_peer, &piece->net) : piece->read->code;
  if (code == ZPS_OK) {
    zps_bulk_count_issued(bulk, piece);
  } else {
    piece_fail(piece, code);
    zps_bulk_piece_free(piece);
  }
  zps_bulk_end_turns(peer);
}

bool zps_bulk_peer_waits(const struct zps_bulk_peer *peer) {
  return peer->n_pieces > 0 || peer->lost || zps_bulk_has_more(peer);
}

void zps_bulk_peer_hold(struct zps_bulk_peer *peer) {
  peer->is_held = true;
}

void zps_bulk_peer_go_on(struct zps_bulk_peer *peer) {
  peer->is_held = false;
}
