/* What libfabric asks of its caller. A broken rule ends the process: the fabric of a card may do anything then. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/double/double.h"

enum { TARGETS_STEP = 256 };

void double_violation(const char *rule, const char *text) {
  fprintf(stderr, "double %s: rule %s: %s\n", double_is.name, rule, text);
  abort();
}

void double_enter(struct double_domain *domain) {
  if (atomic_exchange(&domain->is_busy, true))
    double_violation("one-thread", "two threads are inside a domain of FI_THREAD_DOMAIN");
}

void double_leave(struct double_domain *domain) {
  atomic_store(&domain->is_busy, false);
}

static void check_descriptor(enum double_kind kind, const char *buf, size_t len, const struct double_mr *mr) {
  static const uint64_t needed[] = {[DOUBLE_RECV] = FI_RECV, [DOUBLE_SEND] = FI_SEND, [DOUBLE_READ] = FI_READ};
  if (!mr) double_violation("descriptor", "the mode has FI_MR_LOCAL, and a buffer comes without a descriptor");
  if (buf < mr->base || buf + len > mr->base + mr->len)
    double_violation("descriptor-range", "a buffer lies outside of its descriptor's memory");
  if (!(mr->access & needed[kind]))
    double_violation("descriptor-access", "a descriptor's memory was registered without the access that this needs");
}

/* The caller's context holds the operation while it is in flight. */
static const struct double_op *op_in(const void *context) {
  const struct double_op *op;
  memcpy(&op, context, sizeof op);
  return op;
}

void double_check_post(const struct double_ep *ep, enum double_kind kind, const void *context, const char *buf,
                       size_t len, const struct double_mr *mr) {
  if (!ep->is_enabled) double_violation("enabled", "an operation comes before fi_enable()");
  if (!context) double_violation("context", "an operation comes without a context");
  if (double_op_has(ep->cq, context)) double_violation("context", "two operations in flight have one context");
  if (len > double_is.max_len) double_violation("length", "an operation is longer than max_msg_size");
  if ((double_is.mr_mode & FI_MR_LOCAL) && len > 0) check_descriptor(kind, buf, len, mr);
}

uint64_t double_sum(const char *bytes, size_t len) {
  uint64_t sum = 1469598103934665603u;
  for (size_t i = 0; i < len; i++) sum = (sum ^ (uint8_t)bytes[i]) * 1099511628211u;
  return sum;
}

void double_check_done(const struct double_op *op) {
  if (op_in(op->context) != op)
    double_violation("context-words", "the fabric's words in a context changed while it had the operation");
  if (op->kind == DOUBLE_SEND && double_sum(op->buf, op->len) != op->sum)
    double_violation("send-buffer", "a send buffer changed while the fabric had it");
}

/* ---- buffers that the fabric writes to ---- */

/* The first target that ends behind `at`. */
static size_t target_find(const struct double_ep *ep, const char *at) {
  size_t low = 0, high = ep->n_targets;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (ep->targets[middle].end > at) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

void double_target_add(struct double_ep *ep, const char *buf, size_t len) {
  const size_t at = target_find(ep, buf);
  if (len == 0) return;
  if (at < ep->n_targets && ep->targets[at].begin < buf + len)
    double_violation("targets", "two operations in flight write to the same memory");
  if (ep->n_targets == ep->targets_room) {
    ep->targets_room += TARGETS_STEP;
    ep->targets = realloc(ep->targets, ep->targets_room * sizeof ep->targets[0]);
    if (!ep->targets) abort();
  }
  memmove(&ep->targets[at + 1], &ep->targets[at], (ep->n_targets - at) * sizeof ep->targets[0]);
  ep->targets[at] = (struct double_target){buf, buf + len};
  ep->n_targets++;
}

void double_target_drop(struct double_ep *ep, const char *buf, size_t len) {
  const size_t at = target_find(ep, buf);
  if (len == 0) return;
  ep->n_targets--;
  memmove(&ep->targets[at], &ep->targets[at + 1], (ep->n_targets - at) * sizeof ep->targets[0]);
}
