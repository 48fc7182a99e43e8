/* The in-process fabric, for tests: endpoints of one process find each other by the id in their address, messages are
 * copied into the receiver's inbox, and a read is a memcpy made by the reader's progress under the owner's lock.
 *
 * It is as strict as the strictest provider: a message that finds no receive posted blocks everything behind it that
 * the same sender wants from this endpoint, its reads too, as it would on one TCP stream. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/net/backend.h"
#define ZPS_LOG_COMPONENT "net"
#include "common/base/log.h"

enum {
  INBOX_SLACK = 1024,     /* messages an inbox takes beyond the posted receives */
  MESSAGES_PER_TURN = 64, /* handled by one call of progress, so that reads are not starved */
  READS_PER_TURN = 16,
};
#define STALLED_POLL_NS ZPS_NS_PER_MS /* nobody wakes a reader or sender whose stream gets unblocked */
#define MAX_READ ((size_t)1 << 30)

struct wire_addr {
  char magic[8];
  uint64_t id;
};
static const char addr_magic[8] = "zpsloop";

struct message {
  struct message *next;
  uint64_t src;
  size_t len;
  uint8_t data[];
};

struct region {
  struct region *next;
  uint64_t key;
  const uint8_t *base;
  size_t len;
};

enum read_state { READ_QUEUED, READ_LOST };

struct loop_peer;

struct endpoint {
  struct zps_net net;
  uint64_t id;
  unsigned refs; /* under the registry's lock: the owner and every peer handle that names this endpoint */
  struct endpoint *next_open;

  /* The owner's thread only. */
  struct loop_peer *peers;
  struct zps_net_read *reads, **reads_tail;
  unsigned n_reads;
  bool closing, pushed_back; /* the owner should try to send again */

  /* Under `lock`, which is never held while another endpoint's is taken. */
  pthread_mutex_t lock;
  pthread_cond_t ready;
  struct message *inbox, **inbox_tail;
  size_t n_inbox, n_receives;
  struct region *regions;
  uint64_t unmatched;
  bool woken, closed;
};

struct loop_peer {
  struct zps_net_peer peer;
  struct loop_peer *next;
  struct endpoint *remote; /* NULL: nobody is there */
  bool failed, reported;   /* sends fail; the owner has been told */
};

static struct {
  pthread_mutex_t lock;
  struct endpoint *open;
  uint64_t next_id, next_key;
} registry = {.lock = PTHREAD_MUTEX_INITIALIZER, .next_id = 1, .next_key = 1};

static struct endpoint *to_endpoint(struct zps_net *net) {
  return (struct endpoint *)net;
}
static struct loop_peer *to_peer(struct zps_net_peer *peer) {
  return (struct loop_peer *)peer;
}

static struct endpoint *endpoint_find(uint64_t id) {
  pthread_mutex_lock(&registry.lock);
  struct endpoint *found = registry.open;
  while (found && found->id != id) found = found->next_open;
  if (found) found->refs++;
  pthread_mutex_unlock(&registry.lock);
  return found;
}

static void endpoint_unref(struct endpoint *ep) {
  if (!ep) return;
  pthread_mutex_lock(&registry.lock);
  const bool last = --ep->refs == 0;
  pthread_mutex_unlock(&registry.lock);
  if (!last) return;
  pthread_cond_destroy(&ep->ready);
  pthread_mutex_destroy(&ep->lock);
  free(ep);
}

static zps_err_t loop_reserve(struct zps_net *net, int count) {
  struct endpoint *ep = to_endpoint(net);
  zps_err_t code = ZPS_OK;
  pthread_mutex_lock(&ep->lock);
  if (count < 0 && ep->n_receives < (size_t) - (long)count) {
    code = ZPS_ERR_INVALID;
  } else {
    ep->n_receives += (size_t)(long)count;
  }
  pthread_mutex_unlock(&ep->lock);
  return code;
}

static zps_err_t loop_peer_add(struct zps_net *net, const void *addr, size_t len, void *ctx,
                               struct zps_net_peer **peer_p, struct zps_error *error) {
  struct endpoint *ep = to_endpoint(net);
  struct wire_addr wire;
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
  peer->remote = endpoint_find(wire.id);
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
  endpoint_unref(peer->remote);
  free(peer);
}

static zps_err_t loop_mem_register(struct zps_net *net, void *base, size_t len, struct zps_net_mem *mem_p,
                                   struct zps_error *error) {
  struct endpoint *ep = to_endpoint(net);
  struct region *region = calloc(1, sizeof *region);
  if (!region) return zps_fail(error, ZPS_ERR_NOMEM, "no memory to register %zu bytes", len);
  pthread_mutex_lock(&registry.lock);
  region->key = registry.next_key++;
  pthread_mutex_unlock(&registry.lock);
  region->base = base;
  region->len = len;
  pthread_mutex_lock(&ep->lock);
  region->next = ep->regions;
  ep->regions = region;
  pthread_mutex_unlock(&ep->lock);
  net->counters.mem_registered_bytes += len;
  *mem_p =
      (struct zps_net_mem){.base = base, .len = len, .addr = (uintptr_t)base, .key = region->key, .handle = region};
  return ZPS_OK;
}

static void loop_mem_release(struct zps_net *net, struct zps_net_mem *mem) {
  struct endpoint *ep = to_endpoint(net);
  struct region *region = mem->handle;
  pthread_mutex_lock(&ep->lock);
  struct region **link = &ep->regions;
  while (*link != region) link = &(*link)->next;
  *link = region->next;
  pthread_mutex_unlock(&ep->lock);
  net->counters.mem_registered_bytes -= region->len;
  free(region);
  *mem = (struct zps_net_mem){0};
}

static zps_err_t inbox_put(struct endpoint *remote, struct message *message) {
  zps_err_t code = ZPS_OK;
  pthread_mutex_lock(&remote->lock);
  if (remote->closed) {
    code = ZPS_ERR_PEER_LOST;
  } else if (remote->n_inbox >= remote->n_receives + INBOX_SLACK) {
    code = ZPS_ERR_AGAIN;
  } else {
    if (remote->n_inbox >= remote->n_receives) remote->unmatched++;
    message->next = NULL;
    *remote->inbox_tail = message;
    remote->inbox_tail = &message->next;
    remote->n_inbox++;
    pthread_cond_signal(&remote->ready);
  }
  pthread_mutex_unlock(&remote->lock);
  return code;
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
    struct message *message = malloc(sizeof *message + len);
    if (!message) return ZPS_ERR_NOMEM;
    message->src = ep->id;
    message->len = len;
    if (len > 0) memcpy(message->data, data, len);
    code = inbox_put(peer->remote, message);
    if (code != ZPS_OK) free(message);
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
  read->state = READ_QUEUED;
  reads_append(ep, read);
  return ZPS_OK;
}

/* Called with `remote`'s lock held. */
static bool stream_is_blocked(const struct endpoint *remote, uint64_t src) {
  if (remote->n_inbox <= remote->n_receives) return false;
  const struct message *message = remote->inbox;
  for (size_t i = 0; i < remote->n_receives; i++) message = message->next;
  while (message && message->src != src) message = message->next;
  return message != NULL;
}

static zps_err_t read_copy(const struct endpoint *ep, struct endpoint *remote, const struct zps_net_read *read) {
  if (!remote) return ZPS_ERR_FABRIC;
  zps_err_t code = ZPS_ERR_FABRIC;
  pthread_mutex_lock(&remote->lock);
  if (!remote->closed && stream_is_blocked(remote, ep->id)) {
    code = ZPS_ERR_AGAIN;
  } else if (!remote->closed) {
    const struct region *region = remote->regions;
    while (region && region->key != read->key) region = region->next;
    const uint64_t offset = region ? read->addr - (uintptr_t)region->base : 0;
    if (region && offset <= region->len && read->len <= region->len - offset) {
      memcpy(read->local, region->base + offset, read->len);
      code = ZPS_OK;
    }
  }
  pthread_mutex_unlock(&remote->lock);
  if (code == ZPS_ERR_FABRIC)
    zps_log_debug("a read of %zu bytes at 0x%llx with key %llu failed: the peer is gone or has no such memory",
                  read->len, (unsigned long long)read->addr, (unsigned long long)read->key);
  return code;
}

static void read_finish(struct zps_net_read *read, zps_err_t code) {
  void (*release)(struct zps_net_read *) = read->release;
  read->done(read, code);
  if (code == ZPS_ERR_PEER_LOST && release) release(read);
}

static unsigned progress_reads(struct endpoint *ep) {
  unsigned handled = 0;
  unsigned turns = ep->n_reads;
  for (unsigned ok = 0; turns > 0 && ok < READS_PER_TURN; turns--) {
    struct zps_net_read *read = reads_pop(ep);
    zps_err_t code = ZPS_ERR_PEER_LOST;
    if (read->state == READ_QUEUED) code = read_copy(ep, to_peer(read->peer)->remote, read);
    if (code == ZPS_ERR_AGAIN) {
      reads_append(ep, read);
      continue;
    }
    if (code == ZPS_OK) {
      ok++;
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
  pthread_mutex_lock(&ep->lock);
  ep->net.counters.unmatched = ep->unmatched;
  size_t turns = ep->n_receives < MESSAGES_PER_TURN ? ep->n_receives : MESSAGES_PER_TURN;
  while (turns-- > 0 && ep->inbox) {
    struct message *message = ep->inbox;
    ep->inbox = message->next;
    if (!ep->inbox) ep->inbox_tail = &ep->inbox;
    pthread_mutex_unlock(&ep->lock);
    ep->net.counters.msgs_received++;
    ep->net.counters.msg_bytes_received += message->len;
    ep->net.handler.on_message(ep->net.handler.ctx, message->data, message->len);
    free(message);
    handled++;
    pthread_mutex_lock(&ep->lock);
    ep->n_inbox--;
  }
  pthread_mutex_unlock(&ep->lock);
  return handled;
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
    ep->net.handler.on_peer_error(ep->net.handler.ctx, &peer->peer, ZPS_ERR_CONNECT,
                                  "the peer's in-process endpoint is closed");
    peer = ep->peers; /* the callback may have evicted any of them */
  }
  return handled;
}

static unsigned loop_progress(struct zps_net *net) {
  struct endpoint *ep = to_endpoint(net);
  const unsigned retry = ep->pushed_back ? 1 : 0;
  ep->pushed_back = false;
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
  const struct timespec ts = {.tv_sec = (time_t)(until / ZPS_NS_PER_S), .tv_nsec = (long)(until % ZPS_NS_PER_S)};
  const bool due = errors_due(ep);
  pthread_mutex_lock(&ep->lock);
  while (!due && !ep->woken && !(ep->inbox && ep->n_receives > 0)) {
    if (until == ZPS_NEVER) {
      pthread_cond_wait(&ep->ready, &ep->lock);
    } else if (pthread_cond_timedwait(&ep->ready, &ep->lock, &ts) != 0) {
      break;
    }
  }
  ep->woken = false;
  pthread_mutex_unlock(&ep->lock);
}

static void loop_wake(struct zps_net *net) {
  struct endpoint *ep = to_endpoint(net);
  pthread_mutex_lock(&ep->lock);
  ep->woken = true;
  pthread_cond_signal(&ep->ready);
  pthread_mutex_unlock(&ep->lock);
}

static void registry_remove(struct endpoint *ep) {
  pthread_mutex_lock(&registry.lock);
  struct endpoint **link = &registry.open;
  while (*link != ep) link = &(*link)->next_open;
  *link = ep->next_open;
  pthread_mutex_unlock(&registry.lock);
}

static void loop_close(struct zps_net *net) {
  struct endpoint *ep = to_endpoint(net);
  registry_remove(ep);
  ep->closing = true;
  pthread_mutex_lock(&ep->lock);
  ep->closed = true;
  struct message *inbox = ep->inbox;
  ep->inbox = NULL;
  pthread_mutex_unlock(&ep->lock);
  for (struct message *next; inbox; inbox = next) {
    next = inbox->next;
    free(inbox);
  }
  for (struct zps_net_read *read; (read = reads_pop(ep)) != NULL;)
    read_finish(read, read->state == READ_LOST ? ZPS_ERR_PEER_LOST : ZPS_ERR_CLOSED);
  while (ep->peers) loop_peer_evict(&ep->peers->peer);
  for (struct region *region = ep->regions, *next; region; region = next) {
    next = region->next;
    free(region);
  }
  endpoint_unref(ep);
}

static const struct zps_net_ops loop_ops = {
    .close = loop_close,
    .reserve = loop_reserve,
    .peer_add = loop_peer_add,
    .peer_evict = loop_peer_evict,
    .mem_register = loop_mem_register,
    .mem_release = loop_mem_release,
    .send = loop_send,
    .read = loop_read,
    .progress = loop_progress,
    .wait = loop_wait,
    .wake = loop_wake,
};

static void info_fill(struct zps_net_info *info, uint64_t id) {
  struct wire_addr wire = {.id = id};
  memcpy(wire.magic, addr_magic, sizeof wire.magic);
  memcpy(info->addr, &wire, sizeof wire);
  info->addr_len = sizeof wire;
  info->max_read = MAX_READ;
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
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(&ep->ready, &attr);
  pthread_condattr_destroy(&attr);
  pthread_mutex_init(&ep->lock, NULL);
  ep->net.ops = &loop_ops;
  ep->net.handler = *handler;
  ep->reads_tail = &ep->reads;
  ep->inbox_tail = &ep->inbox;
  ep->n_receives = config->n_recv;
  ep->refs = 1;
  pthread_mutex_lock(&registry.lock);
  ep->id = registry.next_id++;
  pthread_mutex_unlock(&registry.lock);
  info_fill(&ep->net.info, ep->id);
  pthread_mutex_lock(&registry.lock);
  ep->next_open = registry.open;
  registry.open = ep;
  pthread_mutex_unlock(&registry.lock);
  *net_p = &ep->net;
  return ZPS_OK;
}
