/* The fault injector and rule checker; fault.h describes it. This file has the endpoint, its peers and
 * messages. */
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/net/fault_impl.h"
#define ZPS_LOG_COMPONENT "fault"
#include "common/base/log.h"

enum { DELAYED_MAX = 1024 };
#define RETRY_NS ZPS_NS_PER_MS

void zps_fault_violation(const char *what) {
  zps_log_error("the rules of the fabric's interface are broken: %s", what);
  abort();
}

void zps_fault_check_thread(const struct fault *fault) {
  if (fault->owned && !fault->closing && !pthread_equal(fault->owner, pthread_self()))
    zps_fault_violation("a call from a thread that does not own the endpoint");
}

void zps_fault_check_callback(const struct fault *fault) {
  if (!fault->in_progress && !fault->closing) zps_fault_violation("the backend called back outside zps_net_progress()");
}

bool zps_fault_chance(struct fault *fault, double probability) {
  return probability > 0 && zps_rng_unit(&fault->rng) < probability;
}

uint64_t zps_fault_delay_ns(struct fault *fault) {
  return zps_fault_chance(fault, fault->rules.delay) ? fault->rules.delay_ns : 0;
}

bool zps_fault_count_posted(struct fault *fault) {
  if (fault->rules.kill > 0 && fault->n_posted++ == fault->rules.kill) {
    zps_log_info("endpoint %s falls silent", fault->net.info.address);
    fault->silent = true;
  }
  return fault->silent;
}

void zps_fault_copy_counters(struct fault *fault) {
  fault->net.counters = *zps_net_counters(fault->inner);
  fault->net.counters.again += fault->own_again;
  fault->net.counters.quarantined = 0;
  for (const struct fault_op *op = fault->ops; op; op = op->next)
    if (op->state == OP_QUARANTINED) fault->net.counters.quarantined++;
}

static zps_err_t push_back(struct fault *fault) {
  fault->own_again++;
  fault->pushed_back = true;
  zps_fault_copy_counters(fault);
  return ZPS_ERR_AGAIN;
}

/* Messages. */

static void on_message(void *ctx, const void *data, size_t len) {
  struct fault *fault = ctx;
  zps_fault_check_callback(fault);
  if (!fault->silent && !fault->closing) fault->net.handler.on_message(fault->net.handler.ctx, data, len);
}

static void on_peer_error(void *ctx, struct zps_net_peer *inner, zps_err_t code, const char *text) {
  struct fault *fault = ctx;
  struct fault_peer *peer = zps_net_peer_ctx(inner);
  zps_fault_check_callback(fault);
  if (!fault->silent && !fault->closing)
    fault->net.handler.on_peer_error(fault->net.handler.ctx, &peer->peer, code, text);
}

struct delayed *zps_fault_delayed_create(const void *data, size_t len, uint64_t due_ns) {
  struct delayed *delayed = malloc(sizeof *delayed + len);
  if (!delayed) return NULL;
  *delayed = (struct delayed){.due_ns = due_ns, .len = len};
  if (len > 0) memcpy(delayed->data, data, len);
  return delayed;
}

static zps_err_t delay_message(struct fault *fault, struct fault_peer *peer, const void *data, size_t len,
                               uint64_t delay) {
  if (peer->n_queue >= DELAYED_MAX) return push_back(fault);
  const uint64_t due_ns = zps_clock_ns() + delay;
  struct delayed *delayed =
      zps_fault_delayed_create(data, len, due_ns > peer->last_due_ns ? due_ns : peer->last_due_ns);
  if (!delayed) return ZPS_ERR_NOMEM;
  peer->last_due_ns = delayed->due_ns;
  *peer->queue_tail = delayed;
  peer->queue_tail = &delayed->next;
  peer->n_queue++;
  return ZPS_OK;
}

zps_err_t zps_fault_forward(struct fault *fault, struct fault_peer *peer, const void *data, size_t len) {
  if (peer->claimed_to_ns > 0) return ZPS_OK;
  const uint64_t delay = fault->shut ? 0 : zps_fault_delay_ns(fault);
  if (delay > 0 || peer->queue) return delay_message(fault, peer, data, len, delay);
  const zps_err_t code = zps_net_send(peer->inner, data, len);
  zps_fault_copy_counters(fault);
  return code;
}

static zps_err_t fault_send(struct zps_net_peer *net_peer, const void *data, size_t len) {
  struct fault_peer *peer = to_peer(net_peer);
  struct fault *fault = to_fault(net_peer->net);
  zps_fault_check_thread(fault);
  if (fault->closing) return ZPS_ERR_CLOSED;
  if (zps_fault_chance(fault, fault->rules.again)) return push_back(fault);
  if (zps_fault_count_posted(fault) || zps_fault_chance(fault, fault->rules.drop)) return ZPS_OK;
  const zps_err_t code = zps_fault_order(fault, peer, data, len);
  if (code == ZPS_OK) zps_fault_cut_by_chance(fault, peer);
  return code;
}

static unsigned fault_unsent(const struct zps_net_peer *net_peer) {
  const struct fault_peer *peer = (const struct fault_peer *)net_peer;
  return peer->n_queue + peer->n_held + zps_net_unsent(peer->inner);
}

static void pop_delayed(struct fault_peer *peer) {
  struct delayed *delayed = peer->queue;
  peer->queue = delayed->next;
  if (!peer->queue) peer->queue_tail = &peer->queue;
  peer->n_queue--;
  free(delayed);
}

void zps_fault_peer_clear(struct fault_peer *peer) {
  while (peer->queue) pop_delayed(peer);
  for (struct delayed *held; (held = peer->held) != NULL;) {
    peer->held = held->next;
    free(held);
  }
  peer->n_held = 0;
}

static unsigned send_delayed(struct fault *fault, uint64_t now_ns) {
  unsigned sent = 0;
  for (struct fault_peer *peer = fault->peers; peer && !fault->silent; peer = peer->next) {
    while (peer->queue && peer->queue->due_ns <= now_ns) {
      const zps_err_t code = zps_net_send(peer->inner, peer->queue->data, peer->queue->len);
      if (code == ZPS_ERR_AGAIN || code == ZPS_ERR_NOMEM) break;
      pop_delayed(peer);
      sent++;
    }
  }
  return sent;
}

/* Peers. */

static zps_err_t fault_peer_add(struct zps_net *net, const void *addr, size_t len, void *ctx,
                                struct zps_net_peer **peer_p, struct zps_error *error) {
  struct fault *fault = to_fault(net);
  zps_fault_check_thread(fault);
  struct fault_peer *peer = calloc(1, sizeof *peer);
  if (!peer) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for a peer");
  const zps_err_t code = zps_net_peer_add(fault->inner, addr, len, peer, &peer->inner, error);
  if (code != ZPS_OK) {
    free(peer);
    return code;
  }
  peer->peer.net = net;
  peer->peer.ctx = ctx;
  peer->queue_tail = &peer->queue;
  peer->stalls = ++fault->n_added == fault->rules.stall;
  peer->next = fault->peers;
  fault->peers = peer;
  *peer_p = &peer->peer;
  return ZPS_OK;
}

static void peer_free(struct fault *fault, struct fault_peer *peer) {
  struct fault_peer **link = &fault->peers;
  while (*link != peer) link = &(*link)->next;
  *link = peer->next;
  zps_fault_peer_clear(peer);
  free(peer);
}

static void fault_peer_evict(struct zps_net_peer *net_peer) {
  struct fault_peer *peer = to_peer(net_peer);
  struct fault *fault = to_fault(net_peer->net);
  zps_fault_check_thread(fault);
  zps_fault_reads_evict(fault, peer);
  zps_net_peer_evict(peer->inner);
  peer_free(fault, peer);
}

/* The endpoint. */

static zps_err_t fault_reserve(struct zps_net *net, int count) {
  zps_fault_check_thread(to_fault(net));
  return zps_net_reserve(to_fault(net)->inner, count);
}

static unsigned fault_progress(struct zps_net *net) {
  struct fault *fault = to_fault(net);
  if (!fault->owned) {
    fault->owner = pthread_self();
    fault->owned = true;
  }
  zps_fault_check_thread(fault);
  if (fault->in_progress) zps_fault_violation("zps_net_progress() is called by a callback");
  fault->in_progress = true;
  unsigned events = fault->pushed_back ? 1 : 0;
  fault->pushed_back = false;
  zps_fault_cut_by_time(fault, zps_clock_ns());
  zps_fault_claims_end(fault, zps_clock_ns());
  events += zps_net_progress(fault->inner);
  const uint64_t now_ns = zps_clock_ns();
  events += zps_fault_held_send(fault, now_ns) + send_delayed(fault, now_ns) + zps_fault_reads_complete(fault, now_ns);
  zps_fault_copy_counters(fault);
  fault->in_progress = false;
  return events;
}

static uint64_t next_due_ns(const struct fault *fault) {
  const uint64_t reads_due_ns = zps_fault_reads_next_due_ns(fault), links_due_ns = zps_fault_links_next_due_ns(fault);
  uint64_t due_ns = reads_due_ns < links_due_ns ? reads_due_ns : links_due_ns;
  for (const struct fault_peer *peer = fault->peers; peer && !fault->silent; peer = peer->next)
    if (peer->queue && peer->queue->due_ns < due_ns) due_ns = peer->queue->due_ns;
  return due_ns;
}

static void fault_wait(struct zps_net *net, uint64_t timeout_ns) {
  struct fault *fault = to_fault(net);
  zps_fault_check_thread(fault);
  const uint64_t due_ns = next_due_ns(fault);
  const uint64_t now_ns = zps_clock_ns();
  if (due_ns != ZPS_NEVER) {
    /* An operation that is due already was pushed back by the wrapped backend. */
    const uint64_t left_ns = due_ns > now_ns ? due_ns - now_ns : due_ns > 0 ? RETRY_NS : 0;
    if (left_ns < timeout_ns) timeout_ns = left_ns;
  }
  if (fault->pushed_back && timeout_ns > RETRY_NS) timeout_ns = RETRY_NS;
  zps_net_wait(fault->inner, timeout_ns);
}

static void fault_attend(struct zps_net *net, bool is_read) {
  zps_net_attend(to_fault(net)->inner, is_read);
}

static void fault_wake(struct zps_net *net) {
  zps_net_wake(to_fault(net)->inner);
}

static void fault_shut(struct zps_net *net) {
  struct fault *fault = to_fault(net);
  zps_fault_check_thread(fault);
  if (fault->in_progress) zps_fault_violation("zps_net_shut() is called by a callback");
  fault->shut = true;
  zps_net_shut(fault->inner);
  for (struct fault_peer *peer = fault->peers; peer; peer = peer->next) zps_fault_peer_clear(peer);
  zps_fault_reads_shut(fault);
  zps_fault_copy_counters(fault);
}

static void fault_close(struct zps_net *net) {
  struct fault *fault = to_fault(net);
  fault->closing = true;
  zps_fault_reads_close(fault);
  zps_net_close(fault->inner);
  while (fault->peers) peer_free(fault, fault->peers);
  zps_fault_reads_fini(fault);
  free(fault);
}

static void fault_peer_renew(struct zps_net_peer *net_peer) {
  zps_fault_check_thread(to_fault(net_peer->net));
  zps_net_peer_renew(to_peer(net_peer)->inner);
}

static void fault_peer_cut(struct zps_net_peer *net_peer) {
  zps_fault_check_thread(to_fault(net_peer->net));
  zps_net_peer_cut(to_peer(net_peer)->inner);
}

static unsigned fault_peer_rails(const struct zps_net_peer *net_peer) {
  return zps_net_peer_rails(((const struct fault_peer *)net_peer)->inner);
}

static unsigned fault_peer_connections(const struct zps_net_peer *net_peer) {
  return zps_net_peer_connections(((const struct fault_peer *)net_peer)->inner);
}

static void fault_offer(struct zps_net_peer *peer, uint64_t addr, uint64_t key, uint64_t len) {
  zps_fault_check_thread(to_fault(peer->net));
  zps_net_offer(to_peer(peer)->inner, addr, key, len);
}

static uint64_t fault_offered(const struct zps_net_peer *peer, uint64_t addr, uint64_t key) {
  return zps_net_offered(((const struct fault_peer *)peer)->inner, addr, key);
}

static void fault_peer_keep(struct zps_net_peer *peer, struct zps_net_keep *keep) {
  zps_net_peer_keep(to_peer(peer)->inner, keep);
}

static const struct zps_net_ops fault_ops = {
    .close = fault_close,
    .shut = fault_shut,
    .reserve = fault_reserve,
    .peer_add = fault_peer_add,
    .peer_evict = fault_peer_evict,
    .peer_renew = fault_peer_renew,
    .peer_cut = fault_peer_cut,
    .peer_rails = fault_peer_rails,
    .peer_connections = fault_peer_connections,
    .mem_register = zps_fault_mem_register,
    .mem_release = zps_fault_mem_release,
    .send = fault_send,
    .unsent = fault_unsent,
    .offer = fault_offer,
    .offered = fault_offered,
    .peer_keep = fault_peer_keep,
    .read = zps_fault_read,
    .progress = fault_progress,
    .wait = fault_wait,
    .attend = fault_attend,
    .wake = fault_wake,
};

zps_err_t zps_net_fault_open(const struct zps_net_config *config, const struct zps_net_handler *handler,
                             zps_net_open_t *open, struct zps_net **net_p, struct zps_error *error) {
  struct zps_fault_rules rules;
  zps_err_t code = zps_fault_parse(config->fault, &rules, error);
  if (code != ZPS_OK) return code;
  struct fault *fault = calloc(1, sizeof *fault);
  if (!fault) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for the fault injector");
  const struct zps_net_handler inner_handler = {.ctx = fault, .on_message = on_message, .on_peer_error = on_peer_error};
  struct zps_net_config inner = *config;
  inner.fault = NULL;
  code = open(&inner, &inner_handler, &fault->inner, error);
  if (code != ZPS_OK) {
    free(fault);
    return code;
  }
  fault->net.ops = &fault_ops;
  fault->net.handler = *handler;
  fault->net.info = *zps_net_info(fault->inner);
  if (rules.gbit) fault->net.info.link_bits = rules.gbit * 1000000000u;
  fault->rules = rules;
  fault->rng.state = rules.seed;
  fault->ops_tail = &fault->ops;
  *net_p = &fault->net;
  return ZPS_OK;
}
