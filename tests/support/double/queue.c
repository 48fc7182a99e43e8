/*
 * Completions. A rendezvous comes late, and any completion at a random time. The caller reads all that are due, in the
 * order of the TCP provider.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/double/double.h"

enum { BATCH = 32, OPS_STEP = 256, PENDING_STEP = 64 };

/* ---- operations ---- */

struct double_block {
  struct double_block *next;
  struct double_op ops[OPS_STEP];
};

struct double_op *double_op_get(struct double_cq *cq) {
  struct double_op *op = LIST_FIRST(&cq->free);
  if (!op) {
    struct double_block *const block = calloc(1, sizeof *block);
    if (!block) return NULL;
    block->next = cq->blocks;
    cq->blocks = block;
    for (size_t i = 0; i < OPS_STEP; i++) LIST_INSERT_HEAD(&cq->free, &block->ops[i], link);
    op = LIST_FIRST(&cq->free);
  }
  LIST_REMOVE(op, link);
  return op;
}

void double_op_put(struct double_cq *cq, struct double_op *op) {
  if (op->ep) {
    LIST_REMOVE(op, link);
    if (op->mr) op->mr->n_ops--;
    if (op->kind != DOUBLE_SEND) double_target_drop(op->ep, op->buf, op->len);
    op->ep->posted[op->kind == DOUBLE_RECV ? 0 : 1]--;
    memset(op->context, 0, sizeof op);
  }
  LIST_INSERT_HEAD(&cq->free, op, link);
}

/* The first word of a context names its operation. Of other contexts it is anything. */
bool double_op_has(const struct double_cq *cq, const void *context) {
  const struct double_op *op;
  memcpy(&op, context, sizeof op);
  for (const struct double_block *block = cq->blocks; block; block = block->next)
    if (op >= block->ops && op < block->ops + OPS_STEP) return op->ep && op->context == context;
  return false;
}

/* ---- from the TCP provider ---- */

static bool is_loss(int err) {
  switch (err) {
    case FI_ECONNRESET:
    case FI_ENOTCONN:
    case FI_ECONNREFUSED:
    case FI_ECONNABORTED:
    case FI_EIO:
    case FI_EHOSTUNREACH:
    case FI_ETIMEDOUT:
    case EPIPE:
      return true;
    default:
      return false;
  }
}

static struct double_pending *pending_add(struct double_cq *cq) {
  if (cq->n == cq->room) {
    cq->room += PENDING_STEP;
    cq->pending = realloc(cq->pending, cq->room * sizeof cq->pending[0]);
    if (!cq->pending) abort();
  }
  return &cq->pending[cq->n++];
}

static void take(struct double_cq *cq, const struct fi_cq_msg_entry *entry, const struct fi_cq_err_entry *error) {
  struct double_op *const op = entry->op_context;
  if (op && !op->ep) { /* its endpoint is closed */
    double_op_put(cq, op);
    return;
  }
  const bool is_lost = error && is_loss(error->err);
  if (is_lost && double_is.silent && op && op->kind != DOUBLE_RECV) {
    op->ep->muted++; /* it stays in flight until the endpoint is closed */
    return;
  }
  struct double_pending *const pending = pending_add(cq);
  *pending = (struct double_pending){.entry = *entry, .op = op, .number = ++cq->number};
  if (error) pending->error = *error;
  if (is_lost) {
    pending->error.err = double_is.lost_errno;
    pending->error.prov_errno = double_is.lost_prov_errno;
  }
  if (error || (double_is.late_us == 0 && double_is.jitter_us == 0)) return;
  const bool is_rendezvous = op && op->kind == DOUBLE_RECV && entry->len > double_is.eager;
  pending->due_ns =
      double_now_ns() + (is_rendezvous ? double_is.late_us * 1000 : 0) + double_below(double_is.jitter_us * 1000);
}

static void pull(struct double_cq *cq) {
  struct fi_cq_msg_entry entries[BATCH];
  for (;;) {
    const ssize_t n = fi_cq_read(cq->inner, entries, BATCH);
    for (ssize_t i = 0; i < n; i++) take(cq, &entries[i], NULL);
    struct fi_cq_err_entry error = {0};
    if (n == -FI_EAVAIL && fi_cq_readerr(cq->inner, &error, 0) > 0) {
      const struct fi_cq_msg_entry entry = {error.op_context, error.flags, error.len};
      take(cq, &entry, &error);
    } else if (n <= 0) {
      return;
    }
  }
}

/* ---- to the caller ---- */

/* False: the endpoint was closed meanwhile, and nobody hears of it. */
static bool deliver(struct double_cq *cq, struct double_pending *pending) {
  struct double_op *const op = pending->op;
  if (!op) return true;
  const bool is_of_endpoint = op->ep != NULL;
  if (is_of_endpoint) {
    double_check_done(op);
    if (pending->number < cq->most) op->ep->overtaken++;
    if (pending->number > cq->most) cq->most = pending->number;
    pending->entry.op_context = pending->error.op_context = op->context;
  }
  double_op_put(cq, op);
  return is_of_endpoint;
}

static ssize_t cq_read_inside(struct double_cq *cq, struct fi_cq_msg_entry *entries, size_t count) {
  size_t n = 0, kept = 0, i = 0;
  if (cq->has_failed) return -FI_EAVAIL;
  pull(cq);
  const uint64_t now_ns = double_is.late_us || double_is.jitter_us ? double_now_ns() : 0;
  for (; i < cq->n && n < count && !cq->has_failed; i++) {
    struct double_pending pending = cq->pending[i];
    if (pending.due_ns > now_ns) {
      cq->pending[kept++] = pending;
      continue;
    }
    if (pending.error.err != 0 && n > 0) break; /* it comes with the next call */
    if (!deliver(cq, &pending)) continue;
    if (pending.error.err != 0) {
      cq->failed = pending;
      cq->has_failed = true;
    } else {
      entries[n++] = pending.entry;
    }
  }
  for (; i < cq->n; i++) cq->pending[kept++] = cq->pending[i];
  cq->n = kept;
  if (cq->has_failed) return -FI_EAVAIL;
  return n > 0 ? (ssize_t)n : -FI_EAGAIN;
}

static ssize_t cq_read(struct fid_cq *fid, void *entries, size_t count) {
  struct double_cq *const cq = (struct double_cq *)fid;
  double_enter(cq->domain);
  const ssize_t n = cq_read_inside(cq, entries, count);
  double_leave(cq->domain);
  return n;
}

static ssize_t cq_readerr(struct fid_cq *fid, struct fi_cq_err_entry *error, uint64_t flags) {
  struct double_cq *const cq = (struct double_cq *)fid;
  (void)flags;
  if (!cq->has_failed) return -FI_EAGAIN;
  *error = cq->failed.error;
  error->err_data = NULL;
  error->err_data_size = 0;
  cq->has_failed = false;
  return 1;
}

static const char *cq_strerror(struct fid_cq *fid, int prov_errno, const void *data, char *buf, size_t len) {
  (void)fid, (void)data, (void)buf, (void)len;
  return prov_errno == double_is.lost_prov_errno ? double_is.lost_text : "of the TCP provider below the double";
}

/* ---- waiting ---- */

static int cq_control(struct fid *fid, int command, void *arg) {
  struct double_cq *const cq = (struct double_cq *)fid;
  if (command != FI_GETWAIT || !double_is.has_fd) return -FI_ENOSYS;
  return fi_control(cq->wait ? (struct fid *)cq->wait : &cq->inner->fid, FI_GETWAIT, arg);
}

static bool may_sleep(struct double_fabric *fabric, struct double_cq *cq) {
  struct fid *inner = &cq->inner->fid;
  pull(cq);
  if (cq->n > 0 || cq->has_failed) return false;
#ifdef DOUBLE_WAIT_SETS
  (void)fabric, (void)inner;
  return fi_wait(cq->wait, 0) == -FI_ETIMEDOUT;
#else
  return fi_trywait(fabric->inner, &inner, 1) == 0;
#endif
}

int double_trywait(struct fid_fabric *fid, struct fid **fids, int count) {
  bool all_may = true;
  if (!double_is.has_fd) double_violation("wait-object", "a queue without a wait object is waited for");
  for (int i = 0; i < count && all_may; i++) {
    struct double_cq *const cq = (struct double_cq *)fids[i];
    double_enter(cq->domain);
    all_may = may_sleep((struct double_fabric *)fid, cq);
    double_leave(cq->domain);
  }
  return all_may ? 0 : -FI_EAGAIN;
}

/* ---- open and close ---- */

static int cq_close(struct fid *fid) {
  struct double_cq *const cq = (struct double_cq *)fid;
  if (cq->ep) double_violation("close-order", "a completion queue is closed before its endpoint");
  const int rc = fi_close(&cq->inner->fid);
  if (rc != 0) return rc;
#ifdef DOUBLE_WAIT_SETS
  if (cq->wait) fi_close(&cq->wait->fid);
#endif
  for (struct double_block *block = cq->blocks, *next; block; block = next) {
    next = block->next;
    free(block);
  }
  cq->domain->n_children--;
  free(cq->pending);
  free(cq);
  return 0;
}

static int inner_open(struct double_cq *cq, const struct fi_cq_attr *attr) {
  struct fi_cq_attr inner = *attr;
  int rc = 0;
#ifdef DOUBLE_WAIT_SETS
  if (attr->wait_obj == FI_WAIT_FD) {
    struct fi_wait_attr wait = {.wait_obj = FI_WAIT_FD};
    rc = fi_wait_open(cq->domain->fabric->inner, &wait, &cq->wait);
    inner.wait_obj = FI_WAIT_SET;
    inner.wait_set = cq->wait;
  }
#endif
  if (rc == 0) rc = fi_cq_open(cq->domain->inner, &inner, &cq->inner, cq);
#ifdef DOUBLE_WAIT_SETS
  if (rc != 0 && cq->wait) fi_close(&cq->wait->fid);
#endif
  return rc;
}

int double_cq_open(struct fid_domain *fid, struct fi_cq_attr *attr, struct fid_cq **cq_p, void *context) {
  static struct fi_ops fid_ops = {.size = sizeof fid_ops, .close = cq_close, .control = cq_control};
  static struct fi_ops_cq ops = {.size = sizeof ops, .read = cq_read, .readerr = cq_readerr, .strerror = cq_strerror};
  if (attr->format != FI_CQ_FORMAT_MSG) return -FI_ENOSYS; /* no other is in use here */
  if (attr->wait_obj != FI_WAIT_NONE && !double_is.has_fd) return -FI_ENOSYS;
  struct double_cq *const cq = calloc(1, sizeof *cq);
  if (!cq) return -FI_ENOMEM;
  cq->domain = (struct double_domain *)fid;
  const int rc = inner_open(cq, attr);
  if (rc != 0) {
    free(cq);
    return rc;
  }
  cq->fid = (struct fid_cq){.fid = {FI_CLASS_CQ, context, &fid_ops}, .ops = &ops};
  cq->domain->n_children++;
  *cq_p = &cq->fid;
  return 0;
}
