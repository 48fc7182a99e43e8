/*
 * Several endpoints of one backend as one: messages go over the first rail, reads over any of them.
 *
 * So the order of messages, credits and receives is the first rail's alone. Memory is registered on every rail, and has
 * a key on each. If a further rail refuses host memory, the memory has keys of the rails before that one only. The
 * owner of a read chooses its rail (bulk.c). A peer is lost with its first rail. Where another one fails, that rail is
 * out for this peer for a while (rail_state.h).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "common/base/bundle.h"
#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/net/backend.h"
#include "common/net/rail_state.h"

#define ZPS_LOG_COMPONENT "net"
#include "common/base/log.h"

/* Of a rail that others can stand in for. The kernel's sockets do not tell their rail: the second one is for all. */
enum { CONNECT_MS = 2000, KEEPALIVE_MS = 2000 };

struct rails;

struct rail {
  struct rails *rails;
  struct zps_net *net; /* NULL: it is closed */
  struct zps_log_limit refusals;
};

struct rails {
  struct zps_net base;
  struct rail rail[ZPS_NET_RAILS_MAX];
  unsigned n;
  bool closing;
  LIST_HEAD(, rails_peer) peers;
  LIST_HEAD(, rails_mem) mems;
  uint64_t lost, spin_ns;
  uint64_t n_refused;  /* registrations that lack keys */
  unsigned n_out;      /* ways that are told */
  uint64_t look_at_ns; /* when a rail that is out is told of, or tried again; ZPS_NEVER: none is out */
};

struct way {
  struct zps_net_peer *to; /* NULL: the peer has fewer */
  struct zps_rail_state state;
  char why[160];
};

struct rails_peer {
  struct zps_net_peer base;
  LIST_ENTRY(rails_peer) link;
  struct way ways[ZPS_NET_RAILS_MAX];
  uint64_t n_landed; /* reads, over any rail */
};

struct rails_mem {
  LIST_ENTRY(rails_mem) link;
  struct zps_net_mem on[ZPS_NET_RAILS_MAX];
  unsigned n; /* rails that have taken it */
};

static struct rails *to_rails(struct zps_net *net) {
  return (struct rails *)net;
}
static struct rails_peer *to_peer(struct zps_net_peer *peer) {
  return (struct rails_peer *)peer;
}

static void copy_counters(struct rails *rails) {
  struct zps_net_counters *const sum = &rails->base.counters;
  *sum = (struct zps_net_counters){
      .rails_lost = rails->lost, .rails_out = rails->n_out, .rails_refused = rails->n_refused};
  for (unsigned k = 0; k < rails->n; k++) {
    if (!rails->rail[k].net) continue;
    const struct zps_net_counters *const part = zps_net_counters(rails->rail[k].net);
    sum->msgs_sent += part->msgs_sent;
    sum->msgs_received += part->msgs_received;
    sum->msg_bytes_sent += part->msg_bytes_sent;
    sum->msg_bytes_received += part->msg_bytes_received;
    sum->reads += part->reads;
    sum->read_bytes += part->read_bytes;
    if (k == 0) sum->mem_registered_bytes = part->mem_registered_bytes;
    sum->again += part->again;
    sum->quarantined += part->quarantined;
    sum->unmatched += part->unmatched;
  }
}

static void on_message(void *ctx, const void *data, size_t len) {
  const struct rail *const rail = ctx;
  const struct zps_net_handler *const handler = &rail->rails->base.handler;
  if (rail == rail->rails->rail) handler->on_message(handler->ctx, data, len);
}

static void look_by(struct rails *rails, const struct way *way) {
  const uint64_t look_ns = zps_rail_state_look_ns(&way->state);
  if (look_ns < rails->look_at_ns) rails->look_at_ns = look_ns;
}

static void on_peer_error(void *ctx, struct zps_net_peer *inner, zps_err_t code, const char *text) {
  const struct rail *const rail = ctx;
  struct rails *const rails = rail->rails;
  struct rails_peer *const peer = zps_net_peer_ctx(inner);
  const unsigned k = (unsigned)(rail - rails->rail);
  struct way *const way = &peer->ways[k];
  if (k == 0) {
    for (unsigned i = 1; i < rails->n; i++) peer->ways[i].state.tell_at_ns = ZPS_NEVER;
    rails->base.handler.on_peer_error(rails->base.handler.ctx, &peer->base, code, text);
    return;
  }
  zps_rail_state_lost(&way->state, peer->n_landed, zps_clock_ns());
  snprintf(way->why, sizeof way->why, "%s", text);
  look_by(rails, way);
}

/* After a change of the way's state. */
static void count_out(struct rails *rails, const struct way *way, bool was_told) {
  rails->n_out += (unsigned)way->state.is_told - (unsigned)was_told;
}

static void look_after(struct rails *rails, unsigned k, struct rails_peer *peer, uint64_t now_ns) {
  struct way *const way = &peer->ways[k];
  const bool was_told = way->state.is_told;
  const struct zps_rail_state_due due = zps_rail_state_look(&way->state, peer->n_landed, now_ns);
  count_out(rails, way, was_told);
  if (due.tells) {
    rails->lost++;
    zps_log_warn_limited("rail %u (%s) is out, gradients come over the others: %s", k,
                         zps_net_info(rails->rail[k].net)->domain, way->why);
  }
  if (due.tries) zps_net_peer_renew(way->to);
  look_by(rails, way);
}

static void look_after_all(struct rails *rails, uint64_t now_ns) {
  if (now_ns < rails->look_at_ns) return;
  rails->look_at_ns = ZPS_NEVER;
  struct rails_peer *peer;
  LIST_FOREACH(peer, &rails->peers, link)
  for (unsigned k = 1; k < rails->n; k++) look_after(rails, k, peer, now_ns);
}

/* ---- peers ---- */

static zps_err_t rails_peer_add(struct zps_net *net, const void *addr, size_t len, void *ctx,
                                struct zps_net_peer **peer_p, struct zps_error *error) {
  struct rails *const rails = to_rails(net);
  struct rails_peer *const peer = calloc(1, sizeof *peer);
  struct zps_error why;
  if (!peer) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for a peer");
  for (unsigned k = 0; k < ZPS_NET_RAILS_MAX; k++) zps_rail_state_init(&peer->ways[k].state);
  for (unsigned k = 0; k < rails->n; k++) {
    size_t part_len = 0;
    const uint8_t *const part = zps_bundle_get(addr, len, k, &part_len);
    if (!part) break;
    const zps_err_t code = zps_net_peer_add(rails->rail[k].net, part, part_len, peer, &peer->ways[k].to, &why);
    if (code == ZPS_OK) continue;
    peer->ways[k].to = NULL;
    if (k == 0) {
      free(peer);
      return zps_fail(error, code, "%s", why.text);
    }
    rails->lost++;
    rails->n_out++;
    peer->ways[k].state.is_told = true;
    zps_log_warn_limited("rail %u does not reach a peer: %s", k, why.text);
  }
  peer->base.net = net;
  peer->base.ctx = ctx;
  LIST_INSERT_HEAD(&rails->peers, peer, link);
  *peer_p = &peer->base;
  return ZPS_OK;
}

static void rails_peer_evict(struct zps_net_peer *net_peer) {
  struct rails_peer *const peer = to_peer(net_peer);
  struct rails *const rails = to_rails(net_peer->net);
  for (unsigned k = 0; k < rails->n; k++) {
    rails->n_out -= peer->ways[k].state.is_told;
    if (rails->rail[k].net) zps_net_peer_evict(peer->ways[k].to);
  }
  LIST_REMOVE(peer, link);
  free(peer);
}

static void rails_peer_renew(struct zps_net_peer *net_peer) {
  struct rails_peer *const peer = to_peer(net_peer);
  struct rails *const rails = to_rails(net_peer->net);
  for (unsigned k = 0; k < rails->n; k++) {
    struct way *const way = &peer->ways[k];
    const bool was_told = way->state.is_told;
    if (!way->to) continue;
    if (rails->rail[k].net) zps_net_peer_renew(way->to);
    zps_rail_state_renew(&way->state, zps_clock_ns());
    count_out(rails, way, was_told);
    look_by(rails, way);
  }
}

/* A cut may end connections of other peers, too: those that the fabric cannot tell from this one. */
static void note_cut(struct rails *rails, uint64_t now_ns) {
  struct rails_peer *peer;
  LIST_FOREACH(peer, &rails->peers, link)
  for (unsigned k = 1; k < rails->n; k++) zps_rail_state_cut(&peer->ways[k].state, now_ns);
}

static void rails_cut(struct zps_net_peer *net_peer, bool tells_us, bool tells_peer) {
  struct rails_peer *const peer = to_peer(net_peer);
  struct rails *const rails = to_rails(net_peer->net);
  note_cut(rails, zps_clock_ns());
  for (unsigned k = 0; k < rails->n; k++) {
    struct zps_net_peer *const to = peer->ways[k].to;
    if (!to || !rails->rail[k].net) continue;
    if (to->net->ops->cut)
      to->net->ops->cut(to, tells_us, tells_peer);
    else
      zps_net_peer_cut(to);
  }
}

static void rails_peer_cut(struct zps_net_peer *net_peer) {
  rails_cut(net_peer, true, true);
}

static unsigned rails_peer_rails(const struct zps_net_peer *net_peer) {
  const struct rails_peer *const peer = (const struct rails_peer *)net_peer;
  unsigned bits = 1;
  for (unsigned k = 1; k < ZPS_NET_RAILS_MAX; k++)
    if (peer->ways[k].to && !peer->ways[k].state.is_out) bits |= 1u << k;
  return bits;
}

/* ---- memory ---- */

static void mem_free(const struct rails *rails, struct rails_mem *mem) {
  for (unsigned k = 0; k < mem->n; k++)
    if (rails->rail[k].net) zps_net_mem_release(rails->rail[k].net, &mem->on[k]);
  free(mem);
}

static void say_refused(const struct rails *rails, struct rail *rail, size_t len, const char *why) {
  zps_log_write_limited(&rail->refusals, ZPS_LOG_WARN, ZPS_LOG_COMPONENT,
                        "rail %u (%s) refuses %zu bytes of memory: reads from and into them use fewer cards: %s",
                        (unsigned)(rail - rails->rail), zps_net_info(rail->net)->domain, len, why);
}

/* Device memory is taken by all rails or by none: its owner knows other paths (worker/device). */
static zps_err_t rails_mem_register(struct zps_net *net, void *base, size_t len, const struct zps_net_device *device,
                                    struct zps_net_mem *mem_p, struct zps_error *error) {
  struct rails *const rails = to_rails(net);
  struct rails_mem *const mem = calloc(1, sizeof *mem);
  struct zps_error why;
  zps_err_t code = ZPS_OK;
  if (!mem) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for a registration");
  struct zps_net_mem all = {.base = base, .len = len, .handle = mem};
  for (unsigned k = 0; k < rails->n; mem->n = ++k) {
    struct zps_net *const inner = rails->rail[k].net;
    code = device ? zps_net_mem_register_device(inner, base, len, device, &mem->on[k], &why)
                  : zps_net_mem_register(inner, base, len, &mem->on[k], &why);
    if (code != ZPS_OK) break;
    *(k == 0 ? &all.key : &all.more.key[k - 1]) = mem->on[k].key;
    all.desc[k] = mem->on[k].desc[0];
  }
  if (code != ZPS_OK && (mem->n == 0 || device)) {
    mem_free(rails, mem);
    return zps_fail(error, code, "%s", why.text);
  }
  if (code != ZPS_OK) say_refused(rails, &rails->rail[mem->n], len, why.text);
  rails->n_refused += mem->n < rails->n;
  all.more.n = (uint8_t)(mem->n - 1);
  all.addr = mem->on[0].addr; /* on each: the memory's own, or 0 */
  LIST_INSERT_HEAD(&rails->mems, mem, link);
  *mem_p = all;
  copy_counters(rails);
  return ZPS_OK;
}

static void rails_mem_release(struct zps_net *net, struct zps_net_mem *mem) {
  struct rails *const rails = to_rails(net);
  struct rails_mem *const found = mem->handle;
  LIST_REMOVE(found, link);
  rails->n_refused -= found->n < rails->n;
  mem_free(rails, found);
  *mem = (struct zps_net_mem){.base = NULL};
  copy_counters(rails);
}

/* ---- messages and reads ---- */

static zps_err_t rails_send(struct zps_net_peer *peer, const void *data, size_t len) {
  if (to_rails(peer->net)->closing) return ZPS_ERR_CLOSED;
  return zps_net_send(to_peer(peer)->ways[0].to, data, len);
}

static unsigned rails_unsent(const struct zps_net_peer *peer) {
  return zps_net_unsent(((const struct rails_peer *)peer)->ways[0].to);
}

static zps_err_t rails_reserve(struct zps_net *net, int count) {
  return zps_net_reserve(to_rails(net)->rail[0].net, count);
}

/* A read that lands shows that its peer lives: no peer is gone by then. */
static void on_read_done(struct zps_net_read *read, zps_err_t code) {
  struct rails_peer *const peer = code == ZPS_OK ? zps_net_peer_ctx(read->peer) : NULL;
  read->done = read->owner_done;
  if (peer) {
    struct way *const way = &peer->ways[read->rail];
    const bool was_told = way->state.is_told;
    peer->n_landed++;
    zps_rail_state_landed(&way->state);
    count_out(to_rails(peer->base.net), way, was_told);
  }
  read->done(read, code);
}

static zps_err_t rails_read(struct zps_net_peer *net_peer, struct zps_net_read *read) {
  const struct rails *const rails = to_rails(net_peer->net);
  if (rails->closing) return ZPS_ERR_CLOSED;
  if (read->rail > read->more.n || read->rail > read->mem->more.n) return ZPS_ERR_INVALID;
  struct zps_net_peer *const on = to_peer(net_peer)->ways[read->rail].to;
  if (!on) return ZPS_ERR_INVALID;
  read->owner_done = read->done;
  read->done = on_read_done;
  const zps_err_t code = on->net->ops->read(on, read);
  if (code != ZPS_OK) read->done = read->owner_done;
  return code;
}

/* ---- the endpoint ---- */

static unsigned rails_progress(struct zps_net *net) {
  struct rails *const rails = to_rails(net);
  unsigned n_events = 0;
  for (unsigned k = 0; k < rails->n; k++) n_events += zps_net_progress(rails->rail[k].net);
  if (rails->look_at_ns != ZPS_NEVER) look_after_all(rails, zps_clock_ns());
  copy_counters(rails);
  return n_events;
}

static void rails_wait(struct zps_net *net, uint64_t timeout_ns) {
  const struct rails *const rails = to_rails(net);
  const uint64_t began_ns = zps_clock_ns(), left_ns = rails->look_at_ns > began_ns ? rails->look_at_ns - began_ns : 0;
  struct zps_net_rest rest;
  if (timeout_ns > left_ns) timeout_ns = left_ns;
  if (timeout_ns == 0) return;
  if (!rails->rail[0].net->ops->rest) {
    zps_net_wait(rails->rail[0].net, timeout_ns < ZPS_NS_PER_MS ? timeout_ns : (uint64_t)ZPS_NS_PER_MS);
    return;
  }
  uint64_t spent_ns = 0;
  do {
    rest = (struct zps_net_rest){.timeout_ns = timeout_ns - spent_ns};
    for (unsigned k = 0; k < rails->n; k++)
      if (!rails->rail[k].net->ops->rest(rails->rail[k].net, &rest)) return;
    spent_ns = zps_clock_ns() - began_ns;
  } while (spent_ns < rails->spin_ns && spent_ns < timeout_ns);
  const struct timespec timeout = zps_clock_timespec(rest.timeout_ns);
  (void)ppoll(rest.fds, rest.n_fds, &timeout, NULL);
  for (unsigned k = 0; k < rails->n; k++) rails->rail[k].net->ops->rested(rails->rail[k].net);
}

static void rails_attend(struct zps_net *net, bool is_read) {
  const struct rails *const rails = to_rails(net);
  for (unsigned k = 0; k < rails->n; k++) zps_net_attend(rails->rail[k].net, is_read);
}

static void rails_wake(struct zps_net *net) {
  zps_net_wake(to_rails(net)->rail[0].net);
}

static void rails_shut(struct zps_net *net) {
  const struct rails *const rails = to_rails(net);
  for (unsigned k = 0; k < rails->n; k++) zps_net_shut(rails->rail[k].net);
}

/* Callbacks may still evict peers and release memory. */
static void rails_close(struct zps_net *net) {
  struct rails *const rails = to_rails(net);
  rails->closing = true;
  for (unsigned k = rails->n; k-- > 0;) {
    zps_net_close(rails->rail[k].net);
    rails->rail[k].net = NULL;
  }
  for (struct rails_mem *mem; (mem = LIST_FIRST(&rails->mems)) != NULL;) {
    LIST_REMOVE(mem, link);
    free(mem);
  }
  for (struct rails_peer *peer; (peer = LIST_FIRST(&rails->peers)) != NULL;) {
    LIST_REMOVE(peer, link);
    free(peer);
  }
  free(rails);
}

static const struct zps_net_ops ops = {
    .close = rails_close,
    .shut = rails_shut,
    .reserve = rails_reserve,
    .peer_add = rails_peer_add,
    .peer_evict = rails_peer_evict,
    .peer_renew = rails_peer_renew,
    .peer_cut = rails_peer_cut,
    .peer_rails = rails_peer_rails,
    .mem_register = rails_mem_register,
    .mem_release = rails_mem_release,
    .send = rails_send,
    .unsent = rails_unsent,
    .read = rails_read,
    .progress = rails_progress,
    .wait = rails_wait,
    .attend = rails_attend,
    .wake = rails_wake,
    .cut = rails_cut,
};

/* Of the first rail, with the addresses and the rate of all. */
static bool info_fill(struct rails *rails) {
  struct zps_net_info *const info = &rails->base.info;
  *info = *zps_net_info(rails->rail[0].net);
  info->n_rails = rails->n;
  if (rails->n < 2) return true;
  info->addr_len = 0;
  for (unsigned k = 0; k < rails->n; k++) {
    const struct zps_net_info *const part = zps_net_info(rails->rail[k].net);
    if (part->max_read < info->max_read) info->max_read = part->max_read;
    if (k > 0) info->link_bits += part->link_bits;
    if (!zps_bundle_add(info->addr, &info->addr_len, sizeof info->addr, part->addr, part->addr_len)) return false;
  }
  return true;
}

static zps_err_t rail_open(struct rails *rails, const struct zps_net_config *config, zps_net_open_t *open,
                           struct zps_error *error) {
  struct rail *const rail = &rails->rail[rails->n];
  const struct zps_net_handler own = {.ctx = rail, .on_message = on_message, .on_peer_error = on_peer_error};
  struct zps_net_config part = *config;
  part.rail = rails->n;
  part.memory_limit_bytes *= 1 + rails->n; /* each card pins the memory once more */
  if (part.rail > 0) {
    part.n_recv = 0;
    if (part.connect_timeout_ms > CONNECT_MS) part.connect_timeout_ms = CONNECT_MS;
  }
  if (part.keepalive_ms > KEEPALIVE_MS) part.keepalive_ms = KEEPALIVE_MS;
  rail->rails = rails;
  const zps_err_t code = open(&part, &own, &rail->net, error);
  if (code != ZPS_OK) return code;
  rail->net->info.max_msg = config->max_msg;
  rails->n++;
  return ZPS_OK;
}

/* Fewer cards than `config` asks for are enough. */
zps_err_t zps_net_rails_open(const struct zps_net_config *config, const struct zps_net_handler *handler,
                             zps_net_open_t *open, struct zps_net **net_p, struct zps_error *error) {
  struct rails *const rails = calloc(1, sizeof *rails);
  struct zps_error why;
  if (!rails) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for %u rails", config->rails);
  rails->base.ops = &ops;
  rails->base.handler = *handler;
  rails->look_at_ns = ZPS_NEVER;
  rails->spin_ns = config->spin_us * ZPS_NS_PER_US;
  zps_err_t code = rail_open(rails, config, open, error);
  if (code != ZPS_OK) {
    free(rails);
    return code;
  }
  while (code == ZPS_OK && rails->n < config->rails) code = rail_open(rails, config, open, &why);
  if (config->keepalive_ms > KEEPALIVE_MS && rails->n > 1)
    zps_log_info("%s is %.1f s: over TCP with several cards it is %.1f s, so that a lost card shows soon",
                 zps_config_label("fabric.keepalive"), config->keepalive_ms / 1e3, KEEPALIVE_MS / 1e3);
  if (code != ZPS_OK) zps_log_warn("reads come over %u of %u rails: %s", rails->n, config->rails, why.text);
  if (!info_fill(rails)) {
    rails_close(&rails->base);
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "the addresses of %u rails take more than %u bytes: ask for fewer",
                    config->rails, ZPS_NET_ADDR_MAX);
  }
  *net_p = &rails->base;
  return ZPS_OK;
}
