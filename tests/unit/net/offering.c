#include "tests/unit/net/offering.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/net/ofi/impl.h"
#include "common/net/ofi/select.h"

struct offering offering;

static struct fi_ops_fabric *fabric_ops, fabric_as;
static struct fi_ops_domain *domain_ops, domain_as;
static struct fi_ops_mr *mr_ops, mr_as;
static struct fi_ops_ep *ep_ops, ep_as;
static struct fi_ops *ep_fid_ops, ep_fid_as;
static bool is_enabled;

static struct fi_info *without_extras(const struct fi_info *info) {
  struct fi_info *const plain = fi_dupinfo(info);
  assert_non_null(plain);
  plain->caps &= ~FI_HMEM;
  plain->domain_attr->mr_mode &= ~FI_MR_HMEM;
  free(plain->domain_attr->auth_key);
  free(plain->ep_attr->auth_key);
  plain->domain_attr->auth_key = plain->ep_attr->auth_key = NULL;
  plain->domain_attr->auth_key_size = plain->ep_attr->auth_key_size = 0;
  plain->rx_attr->size = plain->tx_attr->size = 0;
  return plain;
}

static uint8_t *copy_of(const uint8_t *key, size_t len) {
  uint8_t *const copy = malloc(len);
  assert_non_null(copy);
  return memcpy(copy, key, len);
}

static void offer(const struct fi_info *hints, struct fi_info *info) {
  const size_t len = hints->domain_attr->auth_key_size;
  if (hints->caps & FI_HMEM && offering.has_device_memory) info->caps |= FI_HMEM;
  if (offering.queue) {
    info->rx_attr->size = hints->rx_attr->size ? hints->rx_attr->size : offering.queue;
    info->tx_attr->size = hints->tx_attr->size ? hints->tx_attr->size : offering.queue;
  }
  if (len == 0 || offering.ignores_key) return;
  info->domain_attr->auth_key = copy_of(hints->domain_attr->auth_key, len);
  info->ep_attr->auth_key = copy_of(hints->ep_attr->auth_key, len);
  info->domain_attr->auth_key_size = info->ep_attr->auth_key_size = len;
}

static bool has_queues(const struct fi_info *hints) {
  if (hints->rx_attr->size || hints->tx_attr->size) offering.n_queue_asked++;
  return hints->rx_attr->size <= offering.queue_most && hints->tx_attr->size <= offering.queue_most;
}

static bool takes_key(const struct fi_info *hints) {
  const size_t len = hints->domain_attr->auth_key_size;
  assert_int_equal(hints->ep_attr->auth_key_size, len);
  return len == 0 || offering.ignores_key || len == offering.key_len;
}

static bool is_loopback(const struct fi_info *info) {
  const char *const provider = info->fabric_attr->prov_name;
  return zps_ofi_info_usable(info) && strcmp(info->domain_attr->name, "lo") == 0 &&
         (strcmp(provider, "tcp") == 0 || strcmp(provider, "net") == 0);
}

static void add_card(struct fi_info *list, unsigned number) {
  char name[16];
  while (list && !is_loopback(list)) list = list->next;
  assert_non_null(list);
  struct fi_info *const card = fi_dupinfo(list);
  assert_non_null(card);
  free(card->domain_attr->name);
  snprintf(name, sizeof name, "card%u", number);
  card->domain_attr->name = strdup(name);
  card->next = list->next;
  list->next = card;
}

int __real_fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
                      const struct fi_info *hints, struct fi_info **info);
int __wrap_fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
                      const struct fi_info *hints, struct fi_info **info);
int __wrap_fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
                      const struct fi_info *hints, struct fi_info **info) {
  struct fi_info *const plain = without_extras(hints);
  if (hints->caps & FI_HMEM) offering.n_device_asked++;
  const int rc = !takes_key(hints) || !has_queues(hints)
                     ? -FI_ENODATA
                     : __real_fi_getinfo(version, node, service, flags, plain, info);
  for (struct fi_info *at = rc == 0 ? *info : NULL; at; at = at->next) offer(hints, at);
  for (unsigned i = 0; rc == 0 && i < 2 * offering.n_cards; i++) add_card(*info, i / 2);
  fi_freeinfo(plain);
  return rc;
}

static int ep_control(struct fid *fid, int command, void *arg) {
  if (command == FI_ENABLE) is_enabled = true;
  return ep_fid_ops->control(fid, command, arg);
}

static int ep_setopt(struct fid *fid, int level, int name, const void *value, size_t len) {
#if OFI_FORBIDS_CUDA
  if (level == FI_OPT_ENDPOINT && name == FI_OPT_CUDA_API_PERMITTED) {
    assert_false(is_enabled);
    assert_int_equal(len, sizeof(bool));
    assert_false(*(const bool *)value);
    offering.n_forbidden++;
    return offering.setopt_result;
  }
#endif
  return ep_ops->setopt(fid, level, name, value, len);
}

static int domain_endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context) {
  offering.n_opened++;
  if (offering.queue_opens && info->rx_attr->size > offering.queue_opens) return -FI_ENOMEM;
  struct fi_info *const plain = without_extras(info);
  if (info->caps & FI_HMEM) offering.n_device_opened++;
  is_enabled = false;
  offering.ep_key.len = info->ep_attr->auth_key_size;
  if (info->ep_attr->auth_key) memcpy(offering.ep_key.bytes, info->ep_attr->auth_key, offering.ep_key.len);
  const int rc = domain_ops->endpoint(domain, plain, ep, context);
  fi_freeinfo(plain);
  if (rc != 0) return rc;
  ep_ops = (*ep)->ops;
  ep_as = *ep_ops;
  ep_as.setopt = ep_setopt;
  (*ep)->ops = &ep_as;
  ep_fid_ops = (*ep)->fid.ops;
  ep_fid_as = *ep_fid_ops;
  ep_fid_as.control = ep_control;
  (*ep)->fid.ops = &ep_fid_as;
  return 0;
}

/* Memory of the host stands for the device's. */
static int mr_regattr(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags, struct fid_mr **mr) {
  offering.registered.n++;
  offering.registered.flags = flags;
  offering.registered.device = attr->iface == FI_HMEM_CUDA ? attr->device.cuda : -1;
  offering.registered.dmabuf_fd = -1;
  offering.registered.len = attr->mr_iov[0].iov_len;
  offering.registered.base = attr->mr_iov[0].iov_base;
#ifdef FI_MR_DMABUF
  if (flags & FI_MR_DMABUF) {
    offering.registered.dmabuf_fd = attr->dmabuf->fd;
    offering.registered.offset = attr->dmabuf->offset;
    offering.registered.len = attr->dmabuf->len;
    offering.registered.base = attr->dmabuf->base_addr;
  }
#endif
  return mr_ops->reg(fid, offering.registered.base, offering.registered.len, attr->access, 0, attr->requested_key, 0,
                     mr, attr->context);
}

static int fabric_domain(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain, void *context) {
  struct fi_info *const plain = without_extras(info);
  offering.domain_key.len = info->domain_attr->auth_key_size;
  if (info->domain_attr->auth_key)
    memcpy(offering.domain_key.bytes, info->domain_attr->auth_key, offering.domain_key.len);
  const int rc = fabric_ops->domain(fabric, plain, domain, context);
  fi_freeinfo(plain);
  if (rc != 0) return rc;
  domain_ops = (*domain)->ops;
  domain_as = *domain_ops;
  domain_as.endpoint = domain_endpoint;
  (*domain)->ops = &domain_as;
  mr_ops = (*domain)->mr;
  mr_as = *mr_ops;
  mr_as.regattr = mr_regattr;
  (*domain)->mr = &mr_as;
  return 0;
}

int __real_fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
int __wrap_fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
int __wrap_fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context) {
  const int rc = __real_fi_fabric(attr, fabric, context);
  if (rc != 0) return rc;
  fabric_ops = (*fabric)->ops;
  fabric_as = *fabric_ops;
  fabric_as.domain = fabric_domain;
  (*fabric)->ops = &fabric_as;
  return 0;
}
