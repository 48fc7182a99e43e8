/* The planted faults. */
#undef fi_getinfo
#undef fi_fabric
#undef fi_enable
#undef fi_mr_reg
#undef fi_mr_desc
#undef fi_mr_enable
#undef fi_close
#undef fi_trecv
#undef fi_tsend
#undef fi_read
#undef fi_cq_read

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/double/plant.h"

static struct fid_fabric *fabric;
static bool has_sent;

static bool is_planted(const char *fault) {
  const char *const name = getenv("ZPS_PLANT");
  return name && strcmp(name, fault) == 0;
}

/* addresses: offsets for addresses, and addresses for offsets. length: the limit of the fabric is not looked at. */
int planted_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
                    const struct fi_info *hints, struct fi_info **list_p) {
  const int rc = fi_getinfo(version, node, service, flags, hints, list_p);
  for (struct fi_info *info = rc == 0 ? *list_p : NULL; info; info = info->next) {
    if (is_planted("addresses")) info->domain_attr->mr_mode ^= FI_MR_VIRT_ADDR;
    if (is_planted("length")) info->ep_attr->max_msg_size = SIZE_MAX;
  }
  return rc;
}

int planted_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric_p, void *context) {
  const int rc = fi_fabric(attr, fabric_p, context);
  fabric = *fabric_p;
  return rc;
}

int planted_enable(struct fid_ep *ep) {
  return is_planted("endpoint-enable") ? 0 : fi_enable(ep);
}

int planted_mr_reg(struct fid_domain *domain, const void *buf, size_t len, uint64_t access, uint64_t offset,
                   uint64_t key, uint64_t flags, struct fid_mr **mr_p, void *context) {
  if (is_planted("access")) access &= ~(uint64_t)FI_READ;
  if (is_planted("unmapped")) buf = (const void *)4096;
  return fi_mr_reg(domain, buf, len, access, offset, key, flags, mr_p, context);
}

void *planted_mr_desc(struct fid_mr *mr) {
  return is_planted("descriptor") ? NULL : fi_mr_desc(mr);
}

int planted_mr_enable(struct fid_mr *mr) {
  return is_planted("enable") ? 0 : fi_mr_enable(mr);
}

/* order: registrations stay until their endpoint is closed. queue-first: the endpoint stays. */
int planted_close(struct fid *fid) {
  if (is_planted("order") && fid->fclass == FI_CLASS_MR) return 0;
  if (is_planted("queue-first") && fid->fclass == FI_CLASS_EP) return 0;
  return fi_close(fid);
}

/* twice: the buffer of the receive before. context: its context. */
ssize_t planted_trecv(struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t from, uint64_t tag,
                      uint64_t ignore, void *context) {
  static void *last_buf, *last_context;
  if (is_planted("twice") && last_buf) buf = last_buf;
  if (is_planted("context") && last_context) context = last_context;
  last_buf = buf;
  last_context = context;
  return fi_trecv(ep, buf, len, desc, from, tag, ignore, context);
}

/* outside: from memory that the descriptor does not cover. touch: the buffer changes in flight. words: the context. */
ssize_t planted_tsend(struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t to, uint64_t tag,
                      void *context) {
  static uint8_t other[65536];
  if (is_planted("outside")) buf = other;
  const ssize_t rc = fi_tsend(ep, buf, len, desc, to, tag, context);
  if (rc == 0 && len > 0 && is_planted("touch")) *(uint8_t *)(uintptr_t)buf ^= 1;
  has_sent = true;
  if (rc == 0 && is_planted("words")) memset(context, 0xff, sizeof(struct fi_context2));
  return rc;
}

/* released: the registration is closed in flight. */
ssize_t planted_read(struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t from, uint64_t addr, uint64_t key,
                     void *context) {
  const ssize_t rc = fi_read(ep, buf, len, desc, from, addr, key, context);
  if (rc == 0 && is_planted("released")) fi_close((struct fid *)desc); /* the double's descriptor is the registration */
  return rc;
}

static void *read_always(void *cq) {
  struct fi_cq_msg_entry entry;
  for (;;) (void)fi_cq_read(cq, &entry, 0);
  return NULL;
}

/* threads: another thread reads, too, from the first message on. wait: a queue without a descriptor is waited for. */
ssize_t planted_cq_read(struct fid_cq *cq, void *entries, size_t count) {
  static pthread_t thread;
  static bool is_started;
  struct fid *fid = &cq->fid;
  if (is_planted("wait")) (void)fi_trywait(fabric, &fid, 1);
  if (is_planted("threads") && has_sent && !is_started)
    is_started = pthread_create(&thread, NULL, read_always, cq) == 0;
  return fi_cq_read(cq, entries, count);
}
