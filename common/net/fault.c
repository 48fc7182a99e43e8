/* The fault injector and rule checker; fault.h says what it does. */
#include "common/net/fault.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/rng.h"
#include "common/net/backend.h"
#define ZPS_LOG_COMPONENT "fault"
#include "common/base/log.h"

enum { DELAYED_MAX = 1024, POISON_STATE = 0xa5, POISON_BYTE = 0xdb };
#define RETRY_NS ZPS_NS_PER_MS
static char poison; /* its address fills the private pointers of reads in flight */

struct delayed {
  struct delayed *next;
  uint64_t due_ns;
  size_t len;
  uint8_t data[];
};

struct fault_peer {
  struct zps_net_peer peer;
  struct zps_net_peer *inner;
  struct fault_peer *next;
  struct delayed *queue, **queue_tail;
  uint64_t last_due_ns;
  unsigned n_queue;
};

struct fault_mem {
  struct fault_mem *next;
  struct zps_net_mem inner;
  unsigned reads;
};

struct fault;

enum op_state {
  OP_FLYING,
  OP_LANDED,      /* done() comes at due_ns */
  OP_LOST,        /* its peer was evicted; done() comes with the next progress */
  OP_QUARANTINED, /* done() was called; release() comes at due_ns, when the wrapped backend has let go as well */
};

struct fault_op {
  struct fault *fault;
  struct fault_op *next;
  struct zps_net_read inner;
  struct zps_net_read *outer;
  struct zps_net_read copy; /* of *outer as it must stay */
  struct fault_mem *mem;
  struct fault_peer *peer; /* NULL once evicted */
  enum op_state state;
  bool inner_busy; /* the wrapped backend holds `inner` */
  uint64_t due_ns;
  zps_err_t code;
};

struct fault {
  struct zps_net net;
  struct zps_net *inner;
  struct zps_fault_rules rules;
  struct zps_rng rng;
  struct fault_peer *peers;
  struct fault_mem *mems;
  struct fault_op *ops, **ops_tail; /* oldest first */
  uint64_t n_posted, own_again;
  bool silent, pushed_back, in_progress, closing, owned;
  pthread_t owner;
};

static struct fault *to_fault(struct zps_net *net) {
  return (struct fault *)net;
}
static struct fault_peer *to_peer(struct zps_net_peer *peer) {
  return (struct fault_peer *)peer;
}

static void violation(const char *what) __attribute__((noreturn));
static void violation(const char *what) {
  zps_log_error("the rules of the fabric's interface are broken: %s", what);
  abort();
}

static void check_thread(const struct fault *fault) {
  if (fault->owned && !fault->closing && !pthread_equal(fault->owner, pthread_self()))
    violation("a call from a thread that does not own the endpoint");
}

static void check_callback(const struct fault *fault) {
  if (!fault->in_progress && !fault->closing) violation("the backend called back outside zps_net_progress()");
}

static bool chance(struct fault *fault, double probability) {
  return probability > 0 && zps_rng_unit(&fault->rng) < probability;
}

static uint64_t delay_ns(struct fault *fault) {
  return chance(fault, fault->rules.delay) ? fault->rules.delay_ns : 0;
}

/* Counts a send or read; true from the one on that the endpoint does not survive. */
static bool count_posted(struct fault *fault) {
  if (fault->rules.kill > 0 && fault->n_posted++ == fault->rules.kill) {
    zps_log_info("endpoint %s falls silent", fault->net.info.address);
    fault->silent = true;
  }
  return fault->silent;
}

static void copy_counters(struct fault *fault) {
  fault->net.counters = *zps_net_counters(fault->inner);
  fault->net.counters.again += fault->own_again;
  fault->net.counters.quarantined = 0;
  for (const struct fault_op *op = fault->ops; op; op = op->next)
    if (op->state == OP_QUARANTINED) fault->net.counters.quarantined++;
}

static zps_err_t push_back(struct fault *fault) {
  fault->own_again++;
  fault->pushed_back = true;
  copy_counters(fault);
  return ZPS_ERR_AGAIN;
}

/* Messages. */

static void on_message(void *ctx, const void *data, size_t len) {
  struct fault *fault = ctx;
  check_callback(fault);
  if (!fault->silent && !fault->closing) fault->net.handler.on_message(fault->net.handler.ctx, data, len);
}

static void on_peer_error(void *ctx, struct zps_net_peer *inner, zps_err_t code, const char *text) {
  struct fault *fault = ctx;
  struct fault_peer *peer = zps_net_peer_ctx(inner);
  check_callback(fault);
  if (!fault->silent && !fault->closing)
    fault->net.handler.on_peer_error(fault->net.handler.ctx, &peer->peer, code, text);
}

static zps_err_t delay_message(struct fault *fault, struct fault_peer *peer, const void *data, size_t len,
                               uint64_t delay) {
  if (peer->n_queue >= DELAYED_MAX) return push_back(fault);
  struct delayed *delayed = malloc(sizeof *delayed + len);
  if (!delayed) return ZPS_ERR_NOMEM;
  const uint64_t due_ns = zps_clock_ns() + delay;
  if (due_ns > peer->last_due_ns) peer->last_due_ns = due_ns;
  *delayed = (struct delayed){.due_ns = peer->last_due_ns, .len = len};
  if (len > 0) memcpy(delayed->data, data, len);
  *peer->queue_tail = delayed;
  peer->queue_tail = &delayed->next;
  peer->n_queue++;
  return ZPS_OK;
}

static zps_err_t fault_send(struct zps_net_peer *net_peer, const void *data, size_t len) {
  struct fault_peer *peer = to_peer(net_peer);
  struct fault *fault = to_fault(net_peer->net);
  check_thread(fault);
  if (fault->closing) return ZPS_ERR_CLOSED;
  if (chance(fault, fault->rules.again)) return push_back(fault);
  if (count_posted(fault) || chance(fault, fault->rules.drop)) return ZPS_OK;
  const uint64_t delay = delay_ns(fault);
  if (delay > 0 || peer->queue) return delay_message(fault, peer, data, len, delay);
  const zps_err_t code = zps_net_send(peer->inner, data, len);
  copy_counters(fault);
  return code;
}

static void pop_delayed(struct fault_peer *peer) {
  struct delayed *delayed = peer->queue;
  peer->queue = delayed->next;
  if (!peer->queue) peer->queue_tail = &peer->queue;
  peer->n_queue--;
  free(delayed);
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

/* Memory. */

static zps_err_t fault_mem_register(struct zps_net *net, void *base, size_t len, struct zps_net_mem *mem_p,
                                    struct zps_error *error) {
  struct fault *fault = to_fault(net);
  check_thread(fault);
  struct fault_mem *mem = calloc(1, sizeof *mem);
  if (!mem) return zps_fail(error, ZPS_ERR_NOMEM, "no memory to register %zu bytes", len);
  const zps_err_t code = zps_net_mem_register(fault->inner, base, len, &mem->inner, error);
  if (code != ZPS_OK) {
    free(mem);
    return code;
  }
  mem->next = fault->mems;
  fault->mems = mem;
  *mem_p = mem->inner;
  mem_p->handle = mem;
  copy_counters(fault);
  return ZPS_OK;
}

static struct fault_mem **find_mem(struct fault *fault, const struct zps_net_mem *mem) {
  struct fault_mem **link = &fault->mems;
  while (*link && *link != mem->handle) link = &(*link)->next;
  if (!*link) violation("a registration is used that does not exist (any more)");
  if ((*link)->inner.base != mem->base || (*link)->inner.len != mem->len)
    violation("a registration was modified by its owner");
  return link;
}

static void fault_mem_release(struct zps_net *net, struct zps_net_mem *mem) {
  struct fault *fault = to_fault(net);
  check_thread(fault);
  struct fault_mem **link = find_mem(fault, mem);
  struct fault_mem *found = *link;
  if (found->reads > 0) violation("memory is released while reads into it are in flight or in quarantine");
  *link = found->next;
  zps_net_mem_release(fault->inner, &found->inner);
  free(found);
  *mem = (struct zps_net_mem){0};
  copy_counters(fault);
}

/* Reads. */

static void op_remove(struct fault_op *op) {
  struct fault *fault = op->fault;
  struct fault_op **link = &fault->ops;
  while (*link != op) link = &(*link)->next;
  *link = op->next;
  if (!*link) fault->ops_tail = link;
  op->mem->reads--;
  free(op);
}

static void check_unchanged(const struct fault_op *op) {
  if (memcmp(op->outer, &op->copy, sizeof op->copy) != 0) violation("a zps_net_read was modified while in flight");
}

/* Calls back an operation; `op` is gone afterwards unless it went into quarantine. */
static void op_done(struct fault_op *op, zps_err_t code) {
  struct zps_net_read *outer = op->outer;
  check_unchanged(op);
  if (code == ZPS_ERR_PEER_LOST) {
    op->state = OP_QUARANTINED;
    op->due_ns = zps_clock_ns() + op->fault->rules.hold_ns;
  } else {
    op_remove(op);
  }
  outer->done(outer, code);
}

static void op_release(struct fault_op *op) {
  struct zps_net_read *outer = op->outer;
  check_unchanged(op);
  memset(op->copy.local, POISON_BYTE, op->copy.len);
  op_remove(op);
  if (outer->release) outer->release(outer);
}

/* For one that the wrapped backend does not hold (any more), while closing. */
static void op_close(struct fault_op *op) {
  if (op->state == OP_FLYING || op->state == OP_LANDED) {
    op_done(op, ZPS_ERR_CLOSED);
    return;
  }
  if (op->state == OP_LOST) op_done(op, ZPS_ERR_PEER_LOST);
  op_release(op);
}

static void inner_done(struct zps_net_read *inner, zps_err_t code) {
  struct fault_op *op = inner->ctx;
  struct fault *fault = op->fault;
  check_callback(fault);
  op->inner_busy = code == ZPS_ERR_PEER_LOST;
  if (op->state == OP_FLYING) {
    op->state = OP_LANDED;
    op->code = code;
    op->due_ns = zps_clock_ns() + delay_ns(fault);
  }
  if (fault->closing && !op->inner_busy) op_close(op);
}

static void inner_release(struct zps_net_read *inner) {
  struct fault_op *op = inner->ctx;
  check_callback(op->fault);
  op->inner_busy = false;
  if (op->fault->closing) op_close(op);
}

static zps_err_t fault_read(struct zps_net_peer *net_peer, struct zps_net_read *read) {
  struct fault_peer *peer = to_peer(net_peer);
  struct fault *fault = to_fault(net_peer->net);
  check_thread(fault);
  if (fault->closing) return ZPS_ERR_CLOSED;
  for (const struct fault_op *op = fault->ops; op; op = op->next)
    if (op->outer == read) violation("a zps_net_read is started again before it was done");
  struct fault_mem *mem = *find_mem(fault, read->mem);
  struct fault_op *op = calloc(1, sizeof *op);
  if (!op) return ZPS_ERR_NOMEM;
  *op = (struct fault_op){.fault = fault, .outer = read, .mem = mem, .peer = peer, .state = OP_FLYING};
  op->inner = (struct zps_net_read){.local = read->local,
                                    .mem = &mem->inner,
                                    .len = read->len,
                                    .addr = read->addr,
                                    .key = read->key,
                                    .done = inner_done,
                                    .release = inner_release,
                                    .ctx = op};
  if (!count_posted(fault)) {
    const zps_err_t code = zps_net_read(peer->inner, &op->inner);
    if (code != ZPS_OK) {
      free(op);
      return code;
    }
    op->inner_busy = true;
  }
  read->next = read->prev = (struct zps_net_read *)&poison;
  read->peer = (struct zps_net_peer *)&poison;
  read->op = &poison;
  read->state = POISON_STATE;
  memcpy(&op->copy, read, sizeof op->copy); /* padding too: it is compared as bytes */
  mem->reads++;
  *fault->ops_tail = op;
  fault->ops_tail = &op->next;
  return ZPS_OK;
}

/* The next operation that has something to call back by `now_ns`. */
static struct fault_op *find_due(const struct fault *fault, uint64_t now_ns) {
  for (struct fault_op *op = fault->ops; op; op = op->next) {
    if (op->state == OP_LOST) return op;
    if (op->state == OP_LANDED && op->due_ns <= now_ns && !fault->silent) return op;
    if (op->state == OP_QUARANTINED && op->due_ns <= now_ns && !op->inner_busy) return op;
  }
  return NULL;
}

static unsigned complete_ops(struct fault *fault, uint64_t now_ns) {
  unsigned handled = 0;
  for (struct fault_op *op; (op = find_due(fault, now_ns)) != NULL; handled++) {
    if (op->state == OP_QUARANTINED) {
      op_release(op);
    } else {
      op_done(op, op->state == OP_LOST ? ZPS_ERR_PEER_LOST : op->code);
    }
  }
  return handled;
}

/* Peers. */

static zps_err_t fault_peer_add(struct zps_net *net, const void *addr, size_t len, void *ctx,
                                struct zps_net_peer **peer_p, struct zps_error *error) {
  struct fault *fault = to_fault(net);
  check_thread(fault);
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
  peer->next = fault->peers;
  fault->peers = peer;
  *peer_p = &peer->peer;
  return ZPS_OK;
}

static void peer_free(struct fault *fault, struct fault_peer *peer) {
  struct fault_peer **link = &fault->peers;
  while (*link != peer) link = &(*link)->next;
  *link = peer->next;
  while (peer->queue) pop_delayed(peer);
  free(peer);
}

static void fault_peer_evict(struct zps_net_peer *net_peer) {
  struct fault_peer *peer = to_peer(net_peer);
  struct fault *fault = to_fault(net_peer->net);
  check_thread(fault);
  for (struct fault_op *op = fault->ops; op; op = op->next) {
    if (op->peer != peer) continue;
    op->peer = NULL;
    if (op->state == OP_FLYING || op->state == OP_LANDED) op->state = OP_LOST;
  }
  zps_net_peer_evict(peer->inner);
  peer_free(fault, peer);
}

/* The endpoint. */

static zps_err_t fault_reserve(struct zps_net *net, int count) {
  check_thread(to_fault(net));
  return zps_net_reserve(to_fault(net)->inner, count);
}

static unsigned fault_progress(struct zps_net *net) {
  struct fault *fault = to_fault(net);
  if (!fault->owned) {
    fault->owner = pthread_self();
    fault->owned = true;
  }
  check_thread(fault);
  if (fault->in_progress) violation("zps_net_progress() is called by a callback");
  fault->in_progress = true;
  unsigned events = fault->pushed_back ? 1 : 0;
  fault->pushed_back = false;
  events += zps_net_progress(fault->inner);
  const uint64_t now_ns = zps_clock_ns();
  events += send_delayed(fault, now_ns) + complete_ops(fault, now_ns);
  copy_counters(fault);
  fault->in_progress = false;
  return events;
}

static uint64_t next_due_ns(const struct fault *fault) {
  uint64_t due_ns = ZPS_NEVER;
  for (const struct fault_op *op = fault->ops; op; op = op->next) {
    if (op->state == OP_LOST) return 0;
    const bool timed = (op->state == OP_LANDED && !fault->silent) || (op->state == OP_QUARANTINED && !op->inner_busy);
    if (timed && op->due_ns < due_ns) due_ns = op->due_ns;
  }
  for (const struct fault_peer *peer = fault->peers; peer && !fault->silent; peer = peer->next)
    if (peer->queue && peer->queue->due_ns < due_ns) due_ns = peer->queue->due_ns;
  return due_ns;
}

static void fault_wait(struct zps_net *net, uint64_t timeout_ns) {
  struct fault *fault = to_fault(net);
  check_thread(fault);
  const uint64_t due_ns = next_due_ns(fault);
  const uint64_t now_ns = zps_clock_ns();
  if (due_ns != ZPS_NEVER) {
    /* What is due already was pushed back by the wrapped backend. */
    const uint64_t left_ns = due_ns > now_ns ? due_ns - now_ns : due_ns > 0 ? RETRY_NS : 0;
    if (left_ns < timeout_ns) timeout_ns = left_ns;
  }
  if (fault->pushed_back && timeout_ns > RETRY_NS) timeout_ns = RETRY_NS;
  zps_net_wait(fault->inner, timeout_ns);
}

static void fault_wake(struct zps_net *net) {
  zps_net_wake(to_fault(net)->inner);
}

static void fault_close(struct zps_net *net) {
  struct fault *fault = to_fault(net);
  fault->closing = true;
  /* First what only the wrapper held back, while callbacks can still use the wrapped backend; its close does the rest.
   */
  for (struct fault_op *op = fault->ops; op;) {
    if (op->inner_busy) {
      op = op->next;
    } else {
      op_close(op);
      op = fault->ops; /* the callbacks may have changed the list */
    }
  }
  zps_net_close(fault->inner);
  while (fault->ops) {
    zps_log_warn("the fabric still holds a read of %zu bytes after it was closed", fault->ops->copy.len);
    if (fault->ops->state != OP_QUARANTINED) op_done(fault->ops, ZPS_ERR_PEER_LOST);
    op_remove(fault->ops);
  }
  while (fault->peers) peer_free(fault, fault->peers);
  for (struct fault_mem *mem = fault->mems, *next; mem; mem = next) {
    next = mem->next;
    free(mem);
  }
  free(fault);
}

static const struct zps_net_ops fault_ops = {
    .close = fault_close,
    .reserve = fault_reserve,
    .peer_add = fault_peer_add,
    .peer_evict = fault_peer_evict,
    .mem_register = fault_mem_register,
    .mem_release = fault_mem_release,
    .send = fault_send,
    .read = fault_read,
    .progress = fault_progress,
    .wait = fault_wait,
    .wake = fault_wake,
};

zps_err_t zps_net_fault_open(const struct zps_net_config *config, const struct zps_net_handler *handler,
                             struct zps_net **net_p, struct zps_error *error) {
  struct zps_fault_rules rules;
  zps_err_t code = zps_fault_parse(config->fault, &rules, error);
  if (code != ZPS_OK) return code;
  struct fault *fault = calloc(1, sizeof *fault);
  if (!fault) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for the fault injector");
  const struct zps_net_handler inner_handler = {.ctx = fault, .on_message = on_message, .on_peer_error = on_peer_error};
  code = zps_net_open(config, &inner_handler, &fault->inner, error);
  if (code != ZPS_OK) {
    free(fault);
    return code;
  }
  fault->net.ops = &fault_ops;
  fault->net.handler = *handler;
  fault->net.info = *zps_net_info(fault->inner);
  fault->rules = rules;
  fault->rng.state = rules.seed;
  fault->ops_tail = &fault->ops;
  *net_p = &fault->net;
  return ZPS_OK;
}
