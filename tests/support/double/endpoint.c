/* The endpoint: what the caller posts. */
#include <stdlib.h>
#include <string.h>

#include "tests/support/double/double.h"

static unsigned queue_of(enum double_kind kind) {
  return kind == DOUBLE_RECV ? 0 : 1;
}

/* The operation before the TCP provider gets it; NULL: it is refused, and comes again later. */
static struct double_op *op_begin(struct double_ep *ep, enum double_kind kind, void *context, const void *buf,
                                  size_t len, void *desc) {
  const unsigned queue = queue_of(kind);
  double_check_post(ep, kind, context, buf, len, desc);
  if (ep->posted[queue] >= (queue == 0 ? double_is.rx : double_is.tx)) {
    ep->refused[queue]++;
    return NULL;
  }
  if (double_chance(double_is.again)) {
    ep->unlucky++;
    return NULL;
  }
  struct double_op *const op = double_op_get(ep->cq);
  if (!op) return NULL;
  op->kind = kind;
  op->ep = ep;
  op->mr = double_is.mr_mode & FI_MR_LOCAL ? desc : NULL;
  op->context = context;
  op->buf = buf;
  op->len = len;
  op->sum = kind == DOUBLE_SEND ? double_sum(buf, len) : 0;
  if (op->mr) op->mr->n_ops++;
  if (kind != DOUBLE_SEND) double_target_add(ep, buf, len);
  LIST_INSERT_HEAD(&ep->ops, op, link);
  memcpy(context, &op, sizeof op);
  if (++ep->posted[queue] > ep->most[queue]) ep->most[queue] = ep->posted[queue];
  return op;
}

/* What the TCP provider said of it. */
static ssize_t op_settle(struct double_ep *ep, struct double_op *op, ssize_t rc) {
  if (rc != 0) double_op_put(ep->cq, op);
  return rc;
}

static ssize_t ep_recv(struct fid_ep *fid, void *buf, size_t len, void *desc, fi_addr_t from, uint64_t tag,
                       uint64_t ignore, void *context) {
  struct double_ep *const ep = (struct double_ep *)fid;
  ssize_t rc = -FI_EAGAIN;
  double_enter(ep->domain);
  struct double_op *const op = op_begin(ep, DOUBLE_RECV, context, buf, len, desc);
  if (op) rc = op_settle(ep, op, fi_trecv(ep->inner, buf, len, NULL, from, tag, ignore, op));
  double_leave(ep->domain);
  return rc;
}

static ssize_t ep_send(struct fid_ep *fid, const void *buf, size_t len, void *desc, fi_addr_t to, uint64_t tag,
                       void *context) {
  struct double_ep *const ep = (struct double_ep *)fid;
  ssize_t rc = -FI_EAGAIN;
  double_enter(ep->domain);
  struct double_op *const op = op_begin(ep, DOUBLE_SEND, context, buf, len, desc);
  if (op) rc = op_settle(ep, op, fi_tsend(ep->inner, buf, len, NULL, to, tag, op));
  double_leave(ep->domain);
  return rc;
}

static ssize_t ep_read(struct fid_ep *fid, void *buf, size_t len, void *desc, fi_addr_t from, uint64_t addr,
                       uint64_t key, void *context) {
  struct double_ep *const ep = (struct double_ep *)fid;
  ssize_t rc = -FI_EAGAIN;
  double_enter(ep->domain);
  struct double_op *const op = op_begin(ep, DOUBLE_READ, context, buf, len, desc);
  if (op) rc = op_settle(ep, op, fi_read(ep->inner, buf, len, NULL, from, addr, key, op));
  double_leave(ep->domain);
  return rc;
}

/* All that is in flight is the caller's again. */
static void ops_end(struct double_ep *ep) {
  struct double_op *op;
  while ((op = LIST_FIRST(&ep->ops))) {
    double_check_done(op);
    if (op->mr) op->mr->n_ops--;
    memset(op->context, 0, sizeof op);
    LIST_REMOVE(op, link);
    op->ep = NULL; /* the TCP provider's queue may still name it */
  }
}

static int ep_close(struct fid *fid) {
  struct double_ep *const ep = (struct double_ep *)fid;
  struct double_domain *const domain = ep->domain;
  double_enter(domain);
  if (ep->n_mrs > 0)
    double_violation("endpoint-first", "an endpoint is closed before registrations that are bound to it");
  const int rc = fi_close(&ep->inner->fid);
  if (rc == 0) {
    ops_end(ep);
    double_log("%s closes rx_most=%lu tx_most=%lu full=%lu unlucky=%lu overtaken=%lu muted=%lu", domain->card,
               ep->most[0], ep->most[1], ep->refused[0] + ep->refused[1], ep->unlucky, ep->overtaken, ep->muted);
    if (ep->cq) ep->cq->ep = NULL;
    free(ep->targets);
    free(ep);
    domain->n_children--;
  }
  double_leave(domain);
  return rc;
}

static int ep_bind(struct fid *fid, struct fid *to, uint64_t flags) {
  struct double_ep *const ep = (struct double_ep *)fid;
  if (to->fclass == FI_CLASS_AV) return fi_ep_bind(ep->inner, &((struct double_av *)to)->inner->fid, flags);
  if (to->fclass != FI_CLASS_CQ || ep->cq) return -FI_EINVAL;
  ep->cq = (struct double_cq *)to;
  ep->cq->ep = ep;
  return fi_ep_bind(ep->inner, &ep->cq->inner->fid, flags);
}

static int ep_control(struct fid *fid, int command, void *arg) {
  struct double_ep *const ep = (struct double_ep *)fid;
  (void)arg;
  if (command != FI_ENABLE) return -FI_ENOSYS;
  if (!ep->cq) return -FI_ENOCQ;
  ep->is_enabled = true;
  return fi_enable(ep->inner);
}

int double_ep_open(struct fid_domain *fid, struct fi_info *info, struct fid_ep **ep_p, void *context) {
  static struct fi_ops fid_ops = {.size = sizeof fid_ops, .close = ep_close, .bind = ep_bind, .control = ep_control};
  static struct fi_ops_ep ops = {.size = sizeof ops};
  static struct fi_ops_cm cm_ops = {.size = sizeof cm_ops, .getname = double_getname};
  static struct fi_ops_tagged tagged_ops = {.size = sizeof tagged_ops, .recv = ep_recv, .send = ep_send};
  static struct fi_ops_rma rma_ops = {.size = sizeof rma_ops, .read = ep_read};
  struct double_ep *const ep = calloc(1, sizeof *ep);
  struct fi_info *const inner = double_inner_info();
  int rc = -FI_ENOMEM;
  (void)info;
  if (ep && inner) {
    ep->domain = (struct double_domain *)fid;
    rc = fi_endpoint(ep->domain->inner, inner, &ep->inner, ep);
  }
  if (inner) fi_freeinfo(inner);
  if (rc != 0) {
    free(ep);
    return rc;
  }
  ep->fid = (struct fid_ep){
      .fid = {FI_CLASS_EP, context, &fid_ops}, .ops = &ops, .cm = &cm_ops, .tagged = &tagged_ops, .rma = &rma_ops};
  ep->domain->n_children++;
  double_log("%s opens", ep->domain->card);
  *ep_p = &ep->fid;
  return 0;
}
