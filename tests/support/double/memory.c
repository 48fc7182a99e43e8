/* Registrations. The keys are this double's own, as short as the fabric's are. */
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "tests/support/double/double.h"

enum { KEY_ATTEMPTS = 8 };

static int inner_make(struct double_mr *mr) {
  int rc = -FI_ENOKEY;
  for (int i = 0; i < KEY_ATTEMPTS && rc == -FI_ENOKEY; i++) {
    uint64_t key = 0;
    if (getrandom(&key, double_is.key_size, 0) < 0) return -FI_EIO;
    rc = fi_mr_reg(mr->domain->inner, mr->base, mr->len, mr->access, 0, key, 0, &mr->inner, mr);
  }
  if (rc == 0) mr->fid.key = fi_mr_key(mr->inner);
  return rc;
}

static int mr_close(struct fid *fid) {
  struct double_mr *const mr = (struct double_mr *)fid;
  struct double_domain *const domain = mr->domain;
  double_enter(domain);
  if (mr->n_ops > 0) double_violation("registration-in-use", "a registration is closed under operations that name it");
  const int rc = mr->inner ? fi_close(&mr->inner->fid) : 0;
  if (rc == 0) {
    if (mr->ep) mr->ep->n_mrs--;
    domain->n_children--;
    free(mr);
  }
  double_leave(domain);
  return rc;
}

static int mr_bind(struct fid *fid, struct fid *to, uint64_t flags) {
  struct double_mr *const mr = (struct double_mr *)fid;
  if (!(double_is.mr_mode & FI_MR_ENDPOINT)) return -FI_ENOSYS;
  if (to->fclass != FI_CLASS_EP || flags != 0 || mr->ep) return -FI_EINVAL;
  mr->ep = (struct double_ep *)to;
  mr->ep->n_mrs++;
  return 0;
}

static int mr_control(struct fid *fid, int command, void *arg) {
  struct double_mr *const mr = (struct double_mr *)fid;
  (void)arg;
  if (command != FI_ENABLE || !mr->ep || mr->inner) return -FI_EINVAL;
  return inner_make(mr);
}

static bool is_mapped(const char *at) {
  const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  unsigned char resident;
  return mincore((void *)((uintptr_t)at / page * page), 1, &resident) == 0;
}

int double_mr_reg(struct fid *fid, const void *buf, size_t len, uint64_t access, uint64_t offset, uint64_t key,
                  uint64_t flags, struct fid_mr **mr_p, void *context) {
  static struct fi_ops fid_ops = {.size = sizeof fid_ops, .close = mr_close, .bind = mr_bind, .control = mr_control};
  (void)key; /* the mode has FI_MR_PROV_KEY */
  if (offset != 0 || flags != 0) return -FI_EINVAL;
  if (!is_mapped(buf) || !is_mapped((const char *)buf + len - 1))
    double_violation("mapped", "memory that is not mapped is registered");
  struct double_mr *const mr = calloc(1, sizeof *mr);
  if (!mr) return -FI_ENOMEM;
  mr->domain = (struct double_domain *)fid;
  mr->base = buf;
  mr->len = len;
  mr->access = access;
  mr->fid = (struct fid_mr){.fid = {FI_CLASS_MR, context, &fid_ops}, .key = FI_KEY_NOTAVAIL};
  if (double_is.mr_mode & FI_MR_LOCAL) mr->fid.mem_desc = mr;
  double_enter(mr->domain);
  const int rc = double_is.mr_mode & FI_MR_ENDPOINT ? 0 : inner_make(mr);
  if (rc == 0) mr->domain->n_children++;
  double_leave(mr->domain);
  if (rc != 0) {
    free(mr);
    return rc;
  }
  *mr_p = &mr->fid;
  return 0;
}
