/*
 * Where threads are many and processors few, a trip is mostly waiting for a processor: 16 ranks on two cores, unshaped,
 * wait 3 to 4 ms each time they could run, windows shrink to 80 KB and pieces to 20 KB, and the cores have the more to
 * do the smaller these are (a dense round of 4M floats took 490 ms; 223 with pieces of 512 KiB; timed by hand, by no
 * script). So where the progress thread has waited 1.5 ms and more (common/base/waits.h; the engine tells), all flows
 * share 32 MiB, however long the trips are. Below 32 MB/s they never do, since that may be a link. Over links of 100
 * Mbit/s and 1 Gbit/s the same thread waits 0.05 to 0.7 ms.
 */
#include "common/net/bulk_impl.h"

#include <stdlib.h>

#define ZPS_LOG_COMPONENT "bulk"
#include "common/base/clock.h"
#include "common/base/container.h"
#include "common/base/log.h"

enum {
  DEFAULT_PIECE = 1 << 20,
  DEFAULT_BUDGET = 64 << 20,
  DEFAULT_PEER_BUDGET = 8 << 20,
  PIECES_LEAST = 1024,      /* in flight, however small they are: as many at least */
  OFFERED_PIECES_MAX = 64,  /* of a peer: with as many in flight, windows decide also of what it offers */
  SMALL_PIECE = 16 << 10,   /* a piece with a trip that is mostly latency */
  CROWDED_BYTES = 32 << 20, /* in flight over all peers where trips are waits for processors */
  CROWDED_RATE = 32000000,  /* bytes a second that are not, on no link that slow */
};
/* Waits for a processor from which on trips say nothing of queues; and until which they then go on saying nothing. */
#define CROWDED_NS (3 * ZPS_NS_PER_MS / 2)
#define ROOMY_NS (CROWDED_NS / 2)

static bool pieces_grow(struct zps_bulk *bulk) {
  struct piece_block *block = calloc(1, sizeof *block);
  if (!block) return false;
  block->next = bulk->blocks;
  bulk->blocks = block;
  for (unsigned i = 0; i < PIECES_PER_BLOCK; i++) {
    block->pieces[i].bulk = bulk;
    block->pieces[i].next = bulk->free_pieces;
    bulk->free_pieces = &block->pieces[i];
  }
  return true;
}

void zps_bulk_piece_free(struct piece *piece) {
  piece->next = piece->bulk->free_pieces;
  piece->bulk->free_pieces = piece;
}

void zps_bulk_end_turns(struct zps_bulk_peer *peer) {
  if (zps_bulk_has_more(peer)) return;
  for (unsigned k = 0; k < ZPS_NET_RAILS_MAX; k++) zps_window_idle(&peer->lanes[k].window);
  zps_read_queue_remove(&peer->bulk->turns, &peer->turn);
}

static void queue_pop(struct zps_bulk_peer *peer) {
  peer->queue = peer->queue->next;
  if (peer->queue) return;
  peer->queue_tail = &peer->queue;
  zps_bulk_end_turns(peer);
}

static void peer_free(struct zps_bulk_peer *peer) {
  *(peer->prev ? &peer->prev->next : &peer->bulk->peers) = peer->next;
  if (peer->next) peer->next->prev = peer->prev;
  free(peer);
}

static void peer_free_unused(struct zps_bulk_peer *peer) {
  if (peer->n_pieces == 0 && peer->n_checking == 0) peer_free(peer);
}

/* Calls back a transfer of which nothing is in flight any more. Where release() does not follow, it is gone afterwards.
 */
static void read_finish(struct zps_bulk_read *read) {
  const bool lost = read->code == ZPS_ERR_PEER_LOST;
  read->finished = true;
  read->done(read, read->code);
  if (lost && read->quarantined == 0 && read->release) read->release(read);
}

void zps_bulk_finish_later(struct zps_bulk *bulk, struct zps_bulk_read *read) {
  read->next = NULL;
  *bulk->finished_tail = read;
  bulk->finished_tail = &read->next;
}

static unsigned finish_queued(struct zps_bulk *bulk) {
  unsigned n = 0;
  for (struct zps_bulk_read *read; (read = bulk->finished) != NULL; n++) {
    bulk->finished = read->next;
    if (!bulk->finished) bulk->finished_tail = &bulk->finished;
    read_finish(read);
  }
  return n;
}

void zps_bulk_read_fail(struct zps_bulk_read *read, zps_err_t code) {
  if (read->code == ZPS_OK || code == ZPS_ERR_PEER_LOST) read->code = code;
}

struct zps_bulk_measure zps_bulk_measure(const struct zps_bulk *bulk) {
  return (struct zps_bulk_measure){.bytes_per_s = zps_meter_rate(&bulk->meter),
                                   .latency_s = zps_meter_latency_s(&bulk->meter)};
}

uint64_t zps_bulk_peer_landed(const struct zps_bulk_peer *peer) {
  return peer->landed;
}

void zps_bulk_peer_trip(struct zps_bulk_peer *peer, uint64_t trip_ns) {
  struct zps_bulk *bulk = peer->bulk;
  if (!bulk->has_windows) return;
  for (unsigned k = 0; k < ZPS_NET_RAILS_MAX; k++)
    if (zps_net_peer_rails(peer->net_peer) & 1u << k) zps_window_trip(&peer->lanes[k].window, &bulk->paths, trip_ns);
  zps_meter_trip(&bulk->meter, trip_ns);
  zps_log_debug("a message came back after %.3f ms; paths of %.3f and %.3f ms are the shortest", (double)trip_ns / 1e6,
                (double)bulk->paths.nearest_ns / 1e6, (double)bulk->paths.second_ns / 1e6);
}

/* Some of its bytes were not here when it was read. */
static bool is_awaited(const struct piece *piece) {
  return piece->net.here < piece->net.len;
}

/* The piece was asked for, and has landed. */
static void note_trip(struct piece *piece, uint64_t now_ns) {
  struct zps_bulk *const bulk = piece->bulk;
  const uint64_t trip_ns = now_ns - piece->issued_ns;
  zps_window_landed(&piece->peer->lanes[piece->net.rail].window, &bulk->paths, piece->net.len, trip_ns, now_ns,
                    bulk->n_flows, bulk->config.peer_budget_bytes);
  if (piece->net.len <= SMALL_PIECE) zps_meter_trip(&bulk->meter, trip_ns);
}

static void piece_done(struct zps_net_read *net_read, zps_err_t code) {
  struct piece *piece = net_read->ctx;
  struct zps_bulk *bulk = piece->bulk;
  struct zps_bulk_peer *peer = piece->peer;
  struct zps_bulk_read *read = piece->read;
  struct lane *const lane = &peer->lanes[net_read->rail];
  const bool is_last = is_awaited(piece) && bulk->n_awaited == 1;
  if (code == ZPS_OK && bulk->has_windows) {
    const uint64_t now_ns = zps_clock_ns();
    if (!net_read->is_offered) note_trip(piece, now_ns);
    zps_meter_add(&bulk->meter, net_read->len - net_read->here);
    if (is_last) zps_meter_stop(&bulk->meter, now_ns);
  } else if (is_last) {
    zps_meter_forget(&bulk->meter);
  }
  bulk->n_pieces--;
  peer->n_pieces--;
  if (is_awaited(piece)) bulk->n_awaited--;
  if (!net_read->is_offered) {
    bulk->in_flight -= net_read->len;
    lane->in_flight -= net_read->len;
    if (--lane->n_pieces == 0) bulk->n_flows--;
  }
  if (code == ZPS_ERR_PEER_LOST && !peer->removed) { /* its transfer goes on when there is a connection again */
    zps_bulk_lost_put(piece);
    return;
  }
  read->in_flight--;
  if (code == ZPS_OK) {
    read->landed += net_read->len;
    peer->landed += net_read->len;
  } else {
    zps_bulk_read_fail(read, code);
    if (peer->queue == read) { /* the rest of it is not worth reading */
      queue_pop(peer);
      read->issued = read->len;
    }
  }
  if (code == ZPS_ERR_PEER_LOST) {
    read->quarantined++;
    bulk->n_quarantined++;
  } else {
    zps_bulk_piece_free(piece);
  }
  const bool ended = read->in_flight == 0 && read->issued == read->len;
  const bool checks = ended && read->code == ZPS_OK && read->check;
  peer->n_checking += checks;
  if (peer->removed) peer_free_unused(peer);
  if (checks) {
    read->check(read);
  } else if (ended) {
    read_finish(read);
  }
}

static void piece_release(struct zps_net_read *net_read) {
  struct piece *piece = net_read->ctx;
  struct zps_bulk_read *read = piece->read;
  if (piece->is_lost) {
    zps_bulk_lost_released(piece);
    return;
  }
  piece->bulk->n_quarantined--;
  zps_bulk_piece_free(piece);
  read->quarantined--;
  if (read->finished && read->quarantined == 0 && read->release) read->release(read);
}

zps_err_t zps_bulk_create(struct zps_net *net, const struct zps_bulk_config *config, struct zps_bulk **bulk_p) {
  struct zps_bulk *bulk = calloc(1, sizeof *bulk);
  if (!bulk) return ZPS_ERR_NOMEM;
  if (!pieces_grow(bulk)) {
    free(bulk);
    return ZPS_ERR_NOMEM;
  }
  bulk->net = net;
  bulk->config = *config;
  bulk->finished_tail = &bulk->finished;
  bulk->own.weight = 1;
  struct zps_bulk_config *c = &bulk->config;
  bulk->has_windows = c->piece_bytes == 0;
  if (c->piece_bytes == 0) c->piece_bytes = DEFAULT_PIECE;
  if (c->budget_bytes == 0) c->budget_bytes = DEFAULT_BUDGET;
  if (c->peer_budget_bytes == 0) c->peer_budget_bytes = DEFAULT_PEER_BUDGET;
  /* A piece must fit into the budgets, or nothing would ever be issued. */
  if (c->peer_budget_bytes > c->budget_bytes) c->peer_budget_bytes = c->budget_bytes;
  if (c->piece_bytes > c->peer_budget_bytes) c->piece_bytes = c->peer_budget_bytes;
  if (c->piece_bytes > zps_net_info(net)->max_read) c->piece_bytes = zps_net_info(net)->max_read;
  /* Peers with many connections have pieces of this size, and they may use the whole budget. */
  const uint64_t n_pieces = c->budget_bytes / ZPS_WINDOW_PIECE_BYTES;
  bulk->max_pieces = n_pieces > PIECES_LEAST ? n_pieces : PIECES_LEAST;
  *bulk_p = bulk;
  return ZPS_OK;
}

static void fail_queue(struct zps_bulk_peer *peer, zps_err_t code) {
  zps_bulk_lost_fail(peer, code);
  while (peer->queue) {
    struct zps_bulk_read *read = peer->queue;
    queue_pop(peer);
    zps_bulk_read_fail(read, code);
    read->issued = read->len;
    if (read->in_flight == 0) zps_bulk_finish_later(peer->bulk, read); /* otherwise its last piece finishes it */
  }
}

void zps_bulk_destroy(struct zps_bulk *bulk) {
  if (!bulk) return;
  /* Callbacks may queue again a transfer that is failed right away. */
  do {
    for (struct zps_bulk_peer *peer = bulk->peers; peer; peer = peer->next) fail_queue(peer, ZPS_ERR_CLOSED);
  } while (finish_queued(bulk) > 0);
  if (bulk->n_pieces + bulk->n_quarantined > 0) {
    zps_log_warn("the fabric still holds %u reads: their records stay allocated", bulk->n_pieces + bulk->n_quarantined);
    return;
  }
  while (bulk->peers) peer_free(bulk->peers);
  for (struct piece_block *block = bulk->blocks, *next; block; block = next) {
    next = block->next;
    free(block);
  }
  free(bulk);
}

zps_err_t zps_bulk_peer_add(struct zps_bulk *bulk, struct zps_net_peer *net_peer, struct zps_bulk_peer **peer_p) {
  struct zps_bulk_peer *peer = calloc(1, sizeof *peer);
  if (!peer) return ZPS_ERR_NOMEM;
  peer->bulk = bulk;
  peer->net_peer = net_peer;
  peer->queue_tail = &peer->queue;
  peer->turn.flow = &bulk->own;
  for (unsigned k = 0; k < ZPS_NET_RAILS_MAX; k++) {
    zps_window_init(&peer->lanes[k].window);
    peer->lanes[k].window.is_further = k > 0;
  }
  peer->next = bulk->peers;
  if (peer->next) peer->next->prev = peer;
  bulk->peers = peer;
  *peer_p = peer;
  return ZPS_OK;
}

void zps_bulk_peer_join(struct zps_bulk_peer *peer, struct zps_read_flow *flow) {
  zps_read_queue_remove(&peer->bulk->turns, &peer->turn);
  peer->turn.flow = flow;
  if (zps_bulk_has_more(peer)) zps_read_queue_add(&peer->bulk->turns, &peer->turn);
}

void zps_bulk_peer_remove(struct zps_bulk_peer *peer) {
  if (!peer) return;
  fail_queue(peer, ZPS_ERR_PEER_LOST);
  peer->removed = true;
  peer_free_unused(peer);
}

static void enqueue(struct zps_bulk_peer *peer, struct zps_bulk_read *read) {
  read->next = NULL;
  read->issued = read->landed = 0;
  *peer->queue_tail = read;
  peer->queue_tail = &read->next;
  zps_read_queue_add(&peer->bulk->turns, &peer->turn);
}

void zps_bulk_start(struct zps_bulk_peer *peer, struct zps_bulk_read *read) {
  read->peer = peer;
  read->issued = read->landed = 0;
  read->in_flight = read->quarantined = 0;
  read->code = ZPS_OK;
  read->finished = read->is_last_try = false;
  if (read->len == 0) {
    zps_bulk_finish_later(peer->bulk, read);
    return;
  }
  enqueue(peer, read);
}

void zps_bulk_checked(struct zps_bulk_read *read, zps_err_t code) {
  struct zps_bulk_peer *peer = read->peer;
  peer->n_checking--;
  if (code != ZPS_OK && !peer->removed && !read->is_last_try) {
    read->is_last_try = true;
    enqueue(peer, read);
    return;
  }
  if (peer->removed) peer_free_unused(peer);
  zps_bulk_read_fail(read, code);
  read_finish(read);
}

void zps_bulk_give_up(struct zps_bulk_read *read, zps_err_t code) {
  struct zps_bulk_peer *peer = read->peer;
  read->is_last_try = true;
  if (read->issued == read->len) return;
  if (peer->queue == read) {
    queue_pop(peer);
  } else {
    struct zps_bulk_read **at = &peer->queue;
    while (*at != read) at = &(*at)->next;
    *at = read->next;
    if (!*at) peer->queue_tail = at;
  }
  zps_bulk_read_fail(read, code);
  read->issued = read->len;
  if (read->in_flight == 0) zps_bulk_finish_later(peer->bulk, read);
}

/* Where all wait for processors, small windows and pieces only give these more to do. */
static uint64_t window_bytes(const struct zps_bulk *bulk, const struct lane *lane) {
  const uint64_t flows = bulk->paths.most_flows ? bulk->paths.most_flows : 1;
  const uint64_t share = bulk->crowded ? CROWDED_BYTES / flows : 0;
  return share > lane->window.bytes ? share : lane->window.bytes;
}

/* Bytes of the next piece that come without a question. */
static size_t offered_bytes(const struct zps_bulk *bulk, const struct zps_bulk_peer *peer) {
  const struct zps_bulk_read *const read = peer->queue;
  if (peer->again || peer->n_pieces >= OFFERED_PIECES_MAX) return 0;
  uint64_t bytes = zps_net_offered(peer->net_peer, read->addr + read->issued, read->key);
  if (bytes > read->len - read->issued) bytes = read->len - read->issued;
  return (size_t)(bytes < bulk->config.piece_bytes ? bytes : bulk->config.piece_bytes);
}

/* Of the next piece. */
static size_t piece_bytes(const struct zps_bulk *bulk, const struct zps_bulk_peer *peer, const struct lane *lane) {
  if (peer->again) return peer->again->net.len;
  const uint64_t left = peer->queue->len - peer->queue->issued;
  uint64_t most = bulk->config.piece_bytes;
  if (bulk->crowded) {
    const uint64_t window = window_bytes(bulk, lane);
    if (window < most) most = window;
  } else if (bulk->has_windows) {
    most = zps_window_piece(&lane->window, most, zps_net_peer_connections(peer->net_peer));
  }
  return (size_t)(left < most ? left : most);
}

static uint64_t lane_limit(const struct zps_bulk *bulk, const struct lane *lane) {
  const uint64_t most = bulk->config.peer_budget_bytes;
  const uint64_t window = bulk->has_windows ? window_bytes(bulk, lane) : most;
  return window < most ? window : most;
}

/* The rail with most room for the next piece; ZPS_NET_RAILS_MAX: none has any. */
static unsigned rail_of(const struct zps_bulk *bulk, const struct zps_bulk_peer *peer) {
  const unsigned rails = zps_net_peer_rails(peer->net_peer);
  const struct zps_bulk_read *const read = peer->again ? peer->again->read : peer->queue;
  const unsigned n_keys = 1u + (read->more.n < read->mem->more.n ? read->more.n : read->mem->more.n);
  unsigned best = ZPS_NET_RAILS_MAX;
  uint64_t most = 0;
  for (unsigned k = 0; k < n_keys; k++) {
    const struct lane *const lane = &peer->lanes[k];
    const uint64_t limit = lane_limit(bulk, lane), used = lane->in_flight + piece_bytes(bulk, peer, lane);
    if (!(rails & 1u << k) || (lane->in_flight > 0 && used > limit)) continue;
    const uint64_t room = limit > lane->in_flight ? limit - lane->in_flight : 0;
    if (best == ZPS_NET_RAILS_MAX || room > most) {
      best = k;
      most = room;
    }
  }
  return best;
}

void zps_bulk_waited(struct zps_bulk *bulk, uint64_t wait_ns) {
  const uint64_t limit_ns = bulk->crowded ? ROOMY_NS : CROWDED_NS;
  bulk->crowded = bulk->has_windows && wait_ns >= limit_ns && zps_meter_rate(&bulk->meter) >= CROWDED_RATE;
}

/* Bytes that are offered come as if they had been asked for a trip ago. */
static void period_start(const struct piece *piece) {
  struct zps_meter *const meter = &piece->bulk->meter;
  const uint64_t ago_ns = piece->net.is_offered ? meter->least_trip_ns : 0;
  zps_meter_start(meter, piece->issued_ns > ago_ns ? piece->issued_ns - ago_ns : 0);
}

void zps_bulk_count_issued(struct zps_bulk *bulk, struct piece *piece) {
  struct lane *const lane = &piece->peer->lanes[piece->net.rail];
  bulk->n_pieces++;
  piece->peer->n_pieces++;
  if (is_awaited(piece) && bulk->n_awaited++ == 0) period_start(piece);
  if (piece->net.is_offered) return; /* its bytes are under way anyhow */
  bulk->in_flight += piece->net.len;
  lane->in_flight += piece->net.len;
  if (lane->n_pieces++ == 0) bulk->n_flows++;
}

/* Issues the next piece of the peer's first transfer. */
static void issue(struct zps_bulk *bulk, struct zps_bulk_peer *peer, unsigned rail, size_t len) {
  struct zps_bulk_read *read = peer->queue;
  struct piece *piece = bulk->free_pieces;
  bulk->free_pieces = piece->next;
  piece->read = read;
  piece->peer = peer;
  piece->issued_ns = bulk->has_windows ? zps_clock_ns() : 0;
  piece->net = (struct zps_net_read){.local = (uint8_t *)read->local + read->issued,
                                     .mem = read->mem,
                                     .len = len,
                                     .addr = read->addr + read->issued,
                                     .key = read->key,
                                     .more = read->more,
                                     .rail = (uint8_t)rail,
                                     .done = piece_done,
                                     .release = piece_release,
                                     .ctx = piece};
  const zps_err_t code = zps_net_read(peer->net_peer, &piece->net);
  if (code != ZPS_OK) {
    zps_bulk_piece_free(piece);
    queue_pop(peer);
    zps_bulk_read_fail(read, code);
    read->issued = read->len;
    if (read->in_flight == 0) zps_bulk_finish_later(bulk, read);
    return;
  }
  zps_bulk_count_issued(bulk, piece);
  read->in_flight++;
  read->issued += len;
  if (read->issued == read->len) queue_pop(peer);
}

static bool may_issue(void *ctx, const struct zps_read_turn *turn) {
  const struct zps_bulk *const bulk = ctx;
  const struct zps_bulk_peer *const peer = zps_container_of(turn, const struct zps_bulk_peer, turn);
  return !peer->is_held && (offered_bytes(bulk, peer) > 0 || rail_of(bulk, peer) < ZPS_NET_RAILS_MAX);
}

unsigned zps_bulk_progress(struct zps_bulk *bulk) {
  unsigned events = finish_queued(bulk);
  while (bulk->n_pieces < bulk->max_pieces && (bulk->free_pieces || pieces_grow(bulk))) {
    struct zps_read_turn *const turn = zps_read_queue_next(&bulk->turns, may_issue, bulk);
    if (!turn) break;
    struct zps_bulk_peer *const peer = zps_container_of(turn, struct zps_bulk_peer, turn);
    const size_t offered = offered_bytes(bulk, peer);
    const unsigned rail = offered > 0 ? 0 : rail_of(bulk, peer);
    const size_t len = offered > 0 ? offered : piece_bytes(bulk, peer, &peer->lanes[rail]);
    if (offered == 0 && bulk->in_flight + len > bulk->config.budget_bytes) break;
    zps_read_queue_take(&bulk->turns, turn, len);
    if (peer->again)
      zps_bulk_lost_issue(bulk, peer, rail);
    else
      issue(bulk, peer, rail, len);
    events++;
  }
  return events + finish_queued(bulk);
}

uint64_t zps_bulk_in_flight(const struct zps_bulk *bulk) {
  return bulk->in_flight;
}
