/* The fault injector's memory and reads: held back, kept in quarantine, and checked against their owner's promises. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/net/fault_impl.h"
#define ZPS_LOG_COMPONENT "fault"
#include "common/base/log.h"

enum { POISON_STATE = 0xa5, POISON_BYTE = 0xdb };
static char poison; /* its address fills the private pointers of reads in flight */

/* Maps the whole pages that the memory is in. */
static zps_err_t map_dmabuf(const struct zps_net_device *device, size_t len, struct fault_mem *mem, void **at_p,
                            struct zps_error *error) {
  const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), ahead = device->offset % page;
  mem->view_bytes = (size_t)(ahead + len);
  void *const view = mmap(NULL, mem->view_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, device->dmabuf_fd,
                          (off_t)(device->offset - ahead));
  if (view == MAP_FAILED) return zps_fail_errno(error, ZPS_ERR_UNSUPPORTED, errno, "cannot map a dmabuf");
  mem->view = view;
  *at_p = (char *)view + ahead;
  return ZPS_OK;
}

/* The wrapped backend's address of memory that its owner knows at `at`. */
static void *inner_at(const struct fault_mem *mem, void *at) {
  return (char *)mem->inner.base + ((char *)at - (char *)mem->base);
}

static void unmap(struct fault_mem *mem) {
  if (mem->view) munmap(mem->view, mem->view_bytes);
}

zps_err_t zps_fault_mem_register(struct zps_net *net, void *base, size_t len, const struct zps_net_device *device,
                                 struct zps_net_mem *mem_p, struct zps_error *error) {
  struct fault *fault = to_fault(net);
  zps_fault_check_thread(fault);
  struct fault_mem *mem = calloc(1, sizeof *mem);
  if (!mem) return zps_fail(error, ZPS_ERR_NOMEM, "no memory to register %zu bytes", len);
  mem->base = base;
  zps_err_t code = ZPS_OK;
  if (device && fault->rules.dmabuf && device->dmabuf_fd >= 0) {
    code = map_dmabuf(device, len, mem, &base, error);
    device = NULL;
  }
  if (code == ZPS_OK)
    code = device ? zps_net_mem_register_device(fault->inner, base, len, device, &mem->inner, error)
                  : zps_net_mem_register(fault->inner, base, len, &mem->inner, error);
  if (code != ZPS_OK) {
    unmap(mem);
    free(mem);
    return code;
  }
  mem->next = fault->mems;
  fault->mems = mem;
  *mem_p = mem->inner;
  mem_p->base = mem->base;
  mem_p->handle = mem;
  zps_fault_copy_counters(fault);
  return ZPS_OK;
}

static struct fault_mem **find_mem(struct fault *fault, const struct zps_net_mem *mem) {
  struct fault_mem **link = &fault->mems;
  while (*link && *link != mem->handle) link = &(*link)->next;
  if (!*link) zps_fault_violation("a registration is used that does not exist (any more)");
  if ((*link)->base != mem->base || (*link)->inner.len != mem->len)
    zps_fault_violation("a registration was modified by its owner");
  return link;
}

void zps_fault_mem_release(struct zps_net *net, struct zps_net_mem *mem) {
  struct fault *fault = to_fault(net);
  zps_fault_check_thread(fault);
  struct fault_mem **link = find_mem(fault, mem);
  struct fault_mem *found = *link;
  if (found->reads > 0) zps_fault_violation("memory is released while reads into it are in flight or in quarantine");
  *link = found->next;
  zps_net_mem_release(fault->inner, &found->inner);
  unmap(found);
  free(found);
  *mem = (struct zps_net_mem){0};
  zps_fault_copy_counters(fault);
}

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
  if (memcmp(op->outer, &op->copy, sizeof op->copy) != 0)
    zps_fault_violation("a zps_net_read was modified while in flight");
}

/* Calls back an operation; `op` is gone afterwards unless it went into quarantine. */
static void op_done(struct fault_op *op, zps_err_t code) {
  struct zps_net_read *outer = op->outer;
  check_unchanged(op);
  if (code == ZPS_ERR_PEER_LOST) {
    op->state = OP_QUARANTINED;
    op->due_ns = zps_clock_ns() + (op->fault->shut ? 0 : op->fault->rules.hold_ns);
  } else {
    op_remove(op);
  }
  outer->done(outer, code);
}

static void op_release(struct fault_op *op) {
  struct zps_net_read *outer = op->outer;
  check_unchanged(op);
  memset(inner_at(op->mem, op->copy.local), POISON_BYTE, op->copy.len);
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

static void flip(const struct fault_op *op) {
  struct fault *fault = op->fault;
  if (fault->rules.flip <= 0 || zps_rng_unit(&fault->rng) >= fault->rules.flip) return;
  uint8_t *const bytes = inner_at(op->mem, op->copy.local);
  bytes[zps_rng_below(&fault->rng, op->copy.len)] ^= (uint8_t)(1 + zps_rng_below(&fault->rng, 255));
}

static void inner_done(struct zps_net_read *inner, zps_err_t code) {
  struct fault_op *op = inner->ctx;
  struct fault *fault = op->fault;
  zps_fault_check_callback(fault);
  op->inner_busy = code == ZPS_ERR_PEER_LOST;
  if (op->state == OP_FLYING) {
    if (code == ZPS_OK) flip(op);
    op->state = OP_LANDED;
    op->code = code;
    op->due_ns = zps_clock_ns() + zps_fault_delay_ns(fault);
  }
  if (fault->closing && !op->inner_busy) op_close(op);
}

static void inner_release(struct zps_net_read *inner) {
  struct fault_op *op = inner->ctx;
  zps_fault_check_callback(op->fault);
  op->inner_busy = false;
  if (op->fault->closing) op_close(op);
}

zps_err_t zps_fault_read(struct zps_net_peer *net_peer, struct zps_net_read *read) {
  struct fault_peer *peer = to_peer(net_peer);
  struct fault *fault = to_fault(net_peer->net);
  zps_fault_check_thread(fault);
  if (fault->closing) return ZPS_ERR_CLOSED;
  for (const struct fault_op *op = fault->ops; op; op = op->next)
    if (op->outer == read) zps_fault_violation("a zps_net_read is started again before it was done");
  struct fault_mem *mem = *find_mem(fault, read->mem);
  struct fault_op *op = calloc(1, sizeof *op);
  if (!op) return ZPS_ERR_NOMEM;
  *op = (struct fault_op){.fault = fault, .outer = read, .mem = mem, .peer = peer, .state = OP_FLYING};
  op->inner = (struct zps_net_read){.local = inner_at(mem, read->local),
                                    .mem = &mem->inner,
                                    .len = read->len,
                                    .addr = read->addr,
                                    .key = read->key,
                                    .more = read->more,
                                    .rail = read->rail,
                                    .done = inner_done,
                                    .release = inner_release,
                                    .ctx = op};
  if (!zps_fault_count_posted(fault) && !peer->stalls && peer->claimed_to_ns == 0) {
    const zps_err_t code = zps_net_read(peer->inner, &op->inner);
    if (code != ZPS_OK) {
      free(op);
      return code;
    }
    op->inner_busy = true;
  }
  read->is_offered = op->inner.is_offered;
  read->here = op->inner.here;
  read->next = read->prev = (struct zps_net_read *)&poison;
  read->peer = (struct zps_net_peer *)&poison;
  read->op = &poison;
  read->state = POISON_STATE;
  memcpy(&op->copy, read, sizeof op->copy); /* padding too: it is compared as bytes */
  mem->reads++;
  *fault->ops_tail = op;
  fault->ops_tail = &op->next;
  zps_fault_cut_by_chance(fault, peer);
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

unsigned zps_fault_reads_complete(struct fault *fault, uint64_t now_ns) {
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

uint64_t zps_fault_reads_next_due_ns(const struct fault *fault) {
  uint64_t due_ns = ZPS_NEVER;
  for (const struct fault_op *op = fault->ops; op; op = op->next) {
    if (op->state == OP_LOST) return 0;
    const bool timed = (op->state == OP_LANDED && !fault->silent) || (op->state == OP_QUARANTINED && !op->inner_busy);
    if (timed && op->due_ns < due_ns) due_ns = op->due_ns;
  }
  return due_ns;
}

void zps_fault_reads_evict(struct fault *fault, const struct fault_peer *peer) {
  for (struct fault_op *op = fault->ops; op; op = op->next) {
    if (op->peer != peer) continue;
    op->peer = NULL;
    if (op->state == OP_FLYING || op->state == OP_LANDED) op->state = OP_LOST;
  }
}

void zps_fault_reads_cut(struct fault *fault, const struct fault_peer *peer) {
  for (struct fault_op *op = fault->ops; op; op = op->next)
    if (op->peer == peer && op->state == OP_FLYING && !op->inner_busy) op->state = OP_LOST;
}

void zps_fault_reads_shut(struct fault *fault) {
  for (struct fault_op *op = fault->ops; op; op = op->next) {
    if (op->state == OP_FLYING && !op->inner_busy) op->state = OP_LOST;
    if (op->state == OP_QUARANTINED) op->due_ns = 0;
  }
}

void zps_fault_reads_close(struct fault *fault) {
  for (struct fault_op *op = fault->ops; op;) {
    if (op->inner_busy) {
      op = op->next;
    } else {
      op_close(op);
      op = fault->ops; /* the callbacks may have changed the list */
    }
  }
}

void zps_fault_reads_fini(struct fault *fault) {
  while (fault->ops) {
    zps_log_warn("the fabric still holds a read of %zu bytes after it was closed", fault->ops->copy.len);
    if (fault->ops->state != OP_QUARANTINED) op_done(fault->ops, ZPS_ERR_PEER_LOST);
    op_remove(fault->ops);
  }
  for (struct fault_mem *mem = fault->mems, *next; mem; mem = next) {
    next = mem->next;
    unmap(mem);
    free(mem);
  }
}
