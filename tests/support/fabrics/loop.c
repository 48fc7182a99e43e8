/* The in-process fabric, for tests: endpoints of one process find each other by the id in their address, messages are
 * copied into the receiver's inbox, and a read is a memcpy made by the reader's progress under the owner's lock.
 *
 * It is as strict as the strictest provider: a message that finds no receive posted blocks everything behind it that
 * the same sender wants from this endpoint, its reads too, as it would on one TCP stream. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "tests/support/fabrics/loop.h"
#include "tests/support/fabrics/loop_port.h"
#define ZPS_LOG_COMPONENT "net"
#include "common/base/log.h"

enum {
  MESSAGES_PER_TURN = 64, /* handled by one call of progress, so that reads are not starved */
  READS_PER_TURN = 16,
};
#define STALLED_POLL_NS ZPS_NS_PER_MS /* a reader or sender whose stream gets unblocked is not woken */
#define MAX_READ ((size_t)1 << 30)

struct wire_addr {
  char magic[8];
  uint64_t id;
};
static const char addr_magic[8] = "zpsloop";

enum read_state { READ_QUEUED, READ_LOST };

struct loop_peer;

struct endpoint {
  struct zps_net net;
  struct zps_loop_port *port;
  struct loop_peer *peers;
  struct zps_net_read *reads, **reads_tail;
  unsigned n_reads;
  bool shut, closing;
  bool pushed_back; /* the owner should try to send again */
};

struct loop_peer {
  struct zps_net_peer peer;
  struct loop_peer *next;
  struct zps_loop_port *remote; /* NULL: there is no such port */
  bool failed, reported;        /* sends fail; the owner has been told */
  bool is_cut;                  /* failed, though the remote port is open */
};

static struct endpoint *to_endpoint(struct zps_net *net) {
  return (struct endpoint *)net;
}
static struct loop_peer *to_peer(struct zps_net_peer *peer) {
  return (struct loop_peer *)peer;
}

static zps_err_t loop_reserve(struct zps_net *net, int count) {
  return zps_loop_port_reserve(to_endpoint(net)->port, count);
}

static zps_err_t loop_peer_add(struct zps_net *net, const void *addr, size_t len, void *ctx,
                               struct zps_net_peer **peer_p, struct zps_error *error) {
  struct endpoint *ep = to_endpoint(net);
  struct wire_addr wire;
  if (ep->shut) return zps_fail(error, ZPS_ERR_CLOSED, "this endpoint of the in-process fabric is shut");
  if (len != sizeof wire || memcmp(addr, addr_magic, sizeof addr_magic) != 0)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "the peer's fabric address (%zu bytes) is not of provider loop: it must be %zu bytes made by an "
                    "endpoint of this process",
                    len, sizeof wire);
  memcpy(&wire, addr, sizeof wire);
  struct loop_peer *peer = calloc(1, sizeof *peer);
  if (!peer) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for a peer of the in-process fabric");
  peer->peer.net = net;
  peer->peer.ctx = ctx;
  peer->remote = zps_loop_port_find(wire.id);
  peer->next = ep->peers;
  ep->peers = peer;
  *peer_p = &peer->peer;
  return ZPS_OK;
}

static void loop_peer_evict(struct zps_net_peer *net_peer) {
  struct loop_peer *peer = to_peer(net_peer);
  struct endpoint *ep = to_endpoint(net_peer->net);
  for (struct zps_net_read *read = ep->reads; read; read = read->next) {
    if (read->peer == net_peer) {
      read->peer = NULL;
      read->state = READ_LOST;
    }
  }
  struct loop_peer **link = &ep->peers;
  while (*link != peer) link = &(*link)->next;
  *link = peer->next;
  zps_loop_port_unref(peer->remote);
  free(peer);
}

static void loop_peer_renew(struct zps_net_peer *net_peer) {
  struct loop_peer *const peer = to_peer(net_peer);
  if (peer->reported && !to_endpoint(net_peer->net)->shut) peer->failed = peer->reported = peer->is_cut = false;
}

static zps_err_t loop_mem_register(struct zps_net *net, void *base, size_t len, const struct zps_net_device *device,
                                   struct zps_net_mem *mem_p, struct zps_error *error) {
  if (device) return zps_fail(error, ZPS_ERR_UNSUPPORTED, "the in-process fabric reaches host memory alone");
  if (to_endpoint(net)->shut) return zps_fail(error, ZPS_ERR_CLOSED, "this endpoint of the in-process fabric is shut");
  uint64_t key;
  struct zps_loop_region *region = zps_loop_port_expose(to_endpoint(net)->port, base, len, &key);
  if (!region) return zps_fail(error, ZPS_ERR_NOMEM, "no memory to register %zu bytes", len);
  net->counters.mem_registered_bytes += len;
  *mem_p = (struct zps_net_mem){.base = base, .len = len, .addr = (uintptr_t)base, .key = key, .handle = region};
  return ZPS_OK;
}

static void loop_mem_release(struct zps_net *net, struct zps_net_mem *mem) {
  zps_loop_port_conceal(to_endpoint(net)->port, mem->handle);
  net->counters.mem_registered_bytes -= mem->len;
  *mem = (struct zps_net_mem){0};
}

/* A message that was taken is with the peer. */
static unsigned loop_unsent(const struct zps_net_peer *net_peer) {
  (void)net_peer;
  return 0;
}

/* To a peer that is gone the first messages vanish, as they would in a socket's buffer; the error follows by progress.
 */
static zps_err_t loop_send(struct zps_net_peer *net_peer, const void *data, size_t len) {
  struct loop_peer *peer = to_peer(net_peer);
  struct endpoint *ep = to_endpoint(net_peer->net);
  if (ep->closing) return ZPS_ERR_CLOSED;
  if (peer->failed) return peer->reported ? ZPS_ERR_PEER_LOST : ZPS_OK;
  zps_err_t code = ZPS_ERR_PEER_LOST;
  if (peer->remote) {
    struct zps_loop_message *message = malloc(sizeof *message + len);
    code = ZPS_ERR_AGAIN;
    if (message) {
      message->src = zps_loop_port_id(ep->port);
      message->len = len;
      if (len > 0) memcpy(message->data, data, len);
      code = zps_loop_port_put(peer->remote, message);
      if (code != ZPS_OK) free(message);
    }
  }
  if (code == ZPS_ERR_AGAIN) {
    ep->net.counters.again++;
    ep->pushed_back = true;
    return code;
  }
  if (code == ZPS_ERR_PEER_LOST) peer->failed = true;
  ep->net.counters.msgs_sent++;
  ep->net.counters.msg_bytes_sent += len;
  return ZPS_OK;
}

static void reads_append(struct endpoint *ep, struct zps_net_read *read) {
  read->next = NULL;
  *ep->reads_tail = read;
  ep->reads_tail = &read->next;
  ep->n_reads++;
}

static struct zps_net_read *reads_pop(struct endpoint *ep) {
  struct zps_net_read *read = ep->reads;
  if (!read) return NULL;
  ep->reads = read->next;
  if (!ep->reads) ep->reads_tail = &ep->reads;
  ep->n_reads--;
  return read;
}

static zps_err_t loop_read(struct zps_net_peer *net_peer, struct zps_net_read *read) {
  struct endpoint *ep = to_endpoint(net_peer->net);
  if (ep->closing) return ZPS_ERR_CLOSED;
  read->peer = net_peer;
  read->state = ep->shut ? READ_LOST : READ_QUEUED;
  reads_append(ep, read);
  return ZPS_OK;
}

/* From a peer that is gone a read fails as over a connection that has ended: by that, the peer is known to be lost. */
static zps_err_t read_copy(const struct endpoint *ep, struct loop_peer *peer, const struct zps_net_read *read) {
  const zps_err_t code =
      peer->remote ? zps_loop_port_read(peer->remote, zps_loop_port_id(ep->port), read) : ZPS_ERR_PEER_LOST;
  if (code == ZPS_ERR_PEER_LOST) peer->failed = true;
  if (code == ZPS_ERR_FABRIC)
    zps_log_debug("a read of %zu bytes at 0x%llx with key %llu failed: the peer has no such memory", read->len,
                  (unsigned long long)read->addr, (unsigned long long)read->key);
  return code;
}

static void read_finish(struct zps_net_read *read, zps_err_t code) {
  void (*release)(struct zps_net_read *) = read->release;
  read->done(read, code);
  if (code == ZPS_ERR_PEER_LOST && release) release(read);
}

static unsigned progress_reads(struct endpoint *ep) {
  unsigned handled = 0, copied = 0, turns = ep->n_reads; /* not those that callbacks start */
  struct zps_net_read *read;
  while (turns-- > 0 && copied < READS_PER_TURN && (read = reads_pop(ep)) != NULL) {
    zps_err_t code = ZPS_ERR_PEER_LOST;
    if (read->state == READ_QUEUED) code = read_copy(ep, to_peer(read->peer), read);
    if (code == ZPS_ERR_AGAIN) {
      reads_append(ep, read);
      continue;
    }
    if (code == ZPS_OK) {
      copied++;
      ep->net.counters.reads++;
      ep->net.counters.read_bytes += read->len;
    }
    read_finish(read, code);
    handled++;
  }
  return handled;
}

/* A receive is posted again when its message has been handled, so a turn handles no more messages than had a receive
 * when it started. */
static unsigned progress_messages(struct endpoint *ep) {
  unsigned handled = 0;
  const size_t n_receives = zps_loop_port_receives(ep->port);
  const size_t turns = n_receives < MESSAGES_PER_TURN ? n_receives : MESSAGES_PER_TURN;
  struct zps_loop_message *message;
  while (handled < turns && (message = zps_loop_port_take(ep->port)) != NULL) {
    ep->net.counters.msgs_received++;
    ep->net.counters.msg_bytes_received += message->len;
    ep->net.handler.on_message(ep->net.handler.ctx, message->data, message->len);
    free(message);
    zps_loop_port_repost(ep->port);
    handled++;
  }
  ep->net.counters.unmatched = zps_loop_port_unmatched(ep->port);
  return handled;
}

/* Both ends lose the messages under way now, and the reads in flight by their next progress. */
static void loop_cut(struct zps_net_peer *net_peer, bool tells_us, bool tells_peer) {
  struct loop_peer *peer = to_peer(net_peer);
  struct endpoint *ep = to_endpoint(net_peer->net);
  if (!peer->remote) return;
  const uint64_t here = zps_loop_port_id(ep->port), there = zps_loop_port_id(peer->remote);
  zps_loop_port_cut(ep->port, there, tells_us);
  zps_loop_port_cut(peer->remote, here, tells_peer);
}

static bool is_of_port(const struct loop_peer *peer, uint64_t id) {
  return peer && peer->remote && zps_loop_port_id(peer->remote) == id;
}

static void progress_cuts(struct endpoint *ep) {
  uint64_t src;
  bool is_told;
  while (zps_loop_port_take_cut(ep->port, &src, &is_told)) {
    for (struct zps_net_read *read = ep->reads; read; read = read->next)
      if (read->peer && is_of_port(to_peer(read->peer), src)) read->state = READ_LOST;
    for (struct loop_peer *peer = ep->peers; peer && is_told; peer = peer->next)
      if (is_of_port(peer, src)) peer->failed = peer->is_cut = true;
  }
}

static unsigned progress_errors(struct endpoint *ep) {
  unsigned handled = 0;
  struct loop_peer *peer = ep->peers;
  while (peer) {
    if (!peer->failed || peer->reported) {
      peer = peer->next;
      continue;
    }
    peer->reported = true;
    handled++;
    ep->net.handler.on_peer_error(ep->net.handler.ctx, &peer->peer, ep->shut ? ZPS_ERR_CLOSED : ZPS_ERR_CONNECT,
                                  ep->shut       ? "this in-process endpoint is shut"
                                  : peer->is_cut ? "the in-process connection was cut"
                                                 : "the peer's in-process endpoint is closed");
    peer = ep->peers; /* the callback may have evicted any of them */
  }
  return handled;
}

static unsigned loop_progress(struct zps_net *net) {
  struct endpoint *ep = to_endpoint(net);
  const unsigned retry = ep->pushed_back ? 1 : 0;
  ep->pushed_back = false;
  progress_cuts(ep);
  return retry + progress_messages(ep) + progress_reads(ep) + progress_errors(ep);
}

static bool errors_due(const struct endpoint *ep) {
  for (const struct loop_peer *peer = ep->peers; peer; peer = peer->next)
    if (peer->failed && !peer->reported) return true;
  return false;
}

static void loop_wait(struct zps_net *net, uint64_t timeout_ns) {
  struct endpoint *ep = to_endpoint(net);
  const uint64_t now = zps_clock_ns();
  uint64_t until = timeout_ns > ZPS_NEVER - now ? ZPS_NEVER : now + timeout_ns;
  /* progress leaves reads behind only where their streams are blocked, or where more are queued than a turn handles. */
  if ((ep->n_reads > 0 || ep->pushed_back) && until > now + STALLED_POLL_NS) until = now + STALLED_POLL_NS;
  zps_loop_port_wait(ep->port, errors_due(ep) ? 0 : until);
}

static void loop_wake(struct zps_net *net) {
  zps_loop_port_wake(to_endpoint(net)->port);
}

/* A peer's read is a copy under the port's lock, which closing it takes. */
static void loop_shut(struct zps_net *net) {
  struct endpoint *ep = to_endpoint(net);
  if (ep->shut) return;
  ep->shut = true;
  zps_loop_port_close(ep->port);
  for (struct zps_net_read *read = ep->reads; read; read = read->next) read->state = READ_LOST;
  for (struct loop_peer *peer = ep->peers; peer; peer = peer->next) peer->failed = true;
}

static void loop_close(struct zps_net *net) {
  struct endpoint *ep = to_endpoint(net);
  ep->closing = true;
  if (!ep->shut) zps_loop_port_close(ep->port);
  for (struct zps_net_read *read; (read = reads_pop(ep)) != NULL;)
    read_finish(read, read->state == READ_LOST ? ZPS_ERR_PEER_LOST : ZPS_ERR_CLOSED);
  while (ep->peers) loop_peer_evict(&ep->peers->peer);
  zps_loop_port_unref(ep->port);
  free(ep);
}

static const struct zps_net_ops loop_ops = {
    .close = loop_close,
    .shut = loop_shut,
    .reserve = loop_reserve,
    .peer_add = loop_peer_add,
    .peer_evict = loop_peer_evict,
    .peer_renew = loop_peer_renew,
    .mem_register = loop_mem_register,
    .mem_release = loop_mem_release,
    .send = loop_send,
    .unsent = loop_unsent,
    .read = loop_read,
    .progress = loop_progress,
    .wait = loop_wait,
    .wake = loop_wake,
    .cut = loop_cut,
};

static void info_fill(struct zps_net_info *info, uint64_t id) {
  struct wire_addr wire = {.id = id};
  memcpy(wire.magic, addr_magic, sizeof wire.magic);
  memcpy(info->addr, &wire, sizeof wire);
  info->addr_len = sizeof wire;
  info->max_read = MAX_READ;
  info->registers_free = info->ends_reads = info->weak_keys = true;
  snprintf(info->provider, sizeof info->provider, "loop");
  snprintf(info->protocol, sizeof info->protocol, "memcpy");
  snprintf(info->addr_format, sizeof info->addr_format, "process-local id");
  snprintf(info->domain, sizeof info->domain, "this process");
  snprintf(info->address, sizeof info->address, "loop:%llu", (unsigned long long)id);
}

zps_err_t zps_net_loop_open(const struct zps_net_config *config, const struct zps_net_handler *handler,
                            struct zps_net **net_p, struct zps_error *error) {
  struct endpoint *ep = calloc(1, sizeof *ep);
  if (!ep) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for an endpoint of the in-process fabric");
  if (zps_loop_port_open(config->n_recv, &ep->port) != ZPS_OK) {
    free(ep);
    return zps_fail(error, ZPS_ERR_NOMEM, "no memory for an endpoint of the in-process fabric");
  }
  ep->net.ops = &loop_ops;
  ep->net.handler = *handler;
  ep->reads_tail = &ep->reads;
  info_fill(&ep->net.info, zps_loop_port_id(ep->port));
  *net_p = &ep->net;
  return ZPS_OK;
}
