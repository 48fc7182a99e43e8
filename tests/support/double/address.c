/* Addresses: the TCP provider's, in the bytes of another format. */
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/double/double.h"

enum { FILLING = 0xa5, PORT_AT = 4 };

void double_address_of(const void *inner, uint8_t *addr) {
  const struct sockaddr_in *const in = inner;
  memset(addr, FILLING, double_is.addr_len);
  memcpy(addr, &in->sin_addr, sizeof in->sin_addr);
  memcpy(addr + PORT_AT, &in->sin_port, sizeof in->sin_port);
}

int double_getname(fid_t fid, void *addr, size_t *len_p) {
  struct sockaddr_in in = {0};
  size_t len = sizeof in;
  const bool fits = *len_p >= double_is.addr_len;
  const int rc = fi_getname(&((struct double_ep *)fid)->inner->fid, &in, &len);
  *len_p = double_is.addr_len;
  if (rc != 0) return rc;
  if (!fits) return -FI_ETOOSMALL;
  double_address_of(&in, addr);
  return 0;
}

static int av_insert(struct fid_av *fid, const void *addr, size_t count, fi_addr_t *fi_addr, uint64_t flags,
                     void *context) {
  struct double_av *const av = (struct double_av *)fid;
  size_t n = 0;
  double_enter(av->domain);
  for (; n < count; n++) {
    const uint8_t *const bytes = (const uint8_t *)addr + n * double_is.addr_len;
    struct sockaddr_in in = {.sin_family = AF_INET};
    memcpy(&in.sin_addr, bytes, sizeof in.sin_addr);
    memcpy(&in.sin_port, bytes + PORT_AT, sizeof in.sin_port);
    if (fi_av_insert(av->inner, &in, 1, fi_addr ? fi_addr + n : NULL, flags, context) != 1) break;
  }
  double_leave(av->domain);
  return (int)n;
}

static int av_remove(struct fid_av *fid, fi_addr_t *fi_addr, size_t count, uint64_t flags) {
  struct double_av *const av = (struct double_av *)fid;
  double_enter(av->domain);
  const int rc = fi_av_remove(av->inner, fi_addr, count, flags);
  double_leave(av->domain);
  return rc;
}

static const char *av_straddr(struct fid_av *fid, const void *addr, char *buf, size_t *len_p) {
  const uint8_t *const b = addr;
  (void)fid;
  *len_p = (size_t)snprintf(buf, *len_p, "fi_addr_%s://%02x%02x%02x%02x:%02x%02x", double_is.name, b[0], b[1], b[2],
                            b[3], b[4], b[5]) +
           1;
  return buf;
}

static int av_close(struct fid *fid) {
  struct double_av *const av = (struct double_av *)fid;
  const int rc = fi_close(&av->inner->fid);
  if (rc != 0) return rc;
  av->domain->n_children--;
  free(av);
  return 0;
}

int double_av_open(struct fid_domain *fid, struct fi_av_attr *attr, struct fid_av **av_p, void *context) {
  static struct fi_ops fid_ops = {.size = sizeof fid_ops, .close = av_close};
  static struct fi_ops_av ops = {.size = sizeof ops, .insert = av_insert, .remove = av_remove, .straddr = av_straddr};
  struct double_av *const av = calloc(1, sizeof *av);
  if (!av) return -FI_ENOMEM;
  av->domain = (struct double_domain *)fid;
  const int rc = fi_av_open(av->domain->inner, attr, &av->inner, av);
  if (rc != 0) {
    free(av);
    return rc;
  }
  av->fid = (struct fid_av){.fid = {FI_CLASS_AV, context, &fid_ops}, .ops = &ops};
  av->domain->n_children++;
  *av_p = &av->fid;
  return 0;
}
