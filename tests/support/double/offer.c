/* What the double offers, and the provider's entry point. */
#include <rdma/providers/fi_prov.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/double/double.h"

static struct fi_info *found;

/* libfabric's TCP provider for reliable datagrams, on the loopback interface. */
static int inner_find(void) {
  struct fi_info *const hints = fi_allocinfo();
  struct fi_info *list = NULL, *info;
  if (!hints) return -FI_ENOMEM;
  hints->caps = FI_MSG | FI_TAGGED | FI_RMA;
  hints->mode = ~UINT64_C(0);
  hints->addr_format = FI_SOCKADDR_IN;
  hints->ep_attr->type = FI_EP_RDM;
  hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->fabric_attr->prov_name = strdup(fi_version() < FI_VERSION(1, 18) ? "net" : "tcp");
  const int rc = fi_getinfo(FI_VERSION(1, 15), NULL, NULL, 0, hints, &list);
  fi_freeinfo(hints);
  for (info = rc == 0 ? list : NULL; info && strcmp(info->domain_attr->name, "lo") != 0; info = info->next) continue;
  if (info) found = fi_dupinfo(info);
  if (list) fi_freeinfo(list);
  return found ? 0 : rc != 0 ? rc : -FI_ENODATA;
}

struct fi_info *double_inner_info(void) {
  struct fi_info *const info = fi_dupinfo(found);
  if (info) info->domain_attr->mr_mode = (int)(double_is.mr_mode & FI_MR_VIRT_ADDR);
  return info;
}

static bool suits(const struct fi_info *hints, const char *card) {
  if (!hints) return false; /* no caller of ours asks without */
  if (hints->caps & (FI_HMEM | FI_ATOMIC | FI_COLLECTIVE)) return false;
  if (!(hints->mode & FI_CONTEXT2)) return false; /* its contexts hold the double's words */
  if (hints->ep_attr && hints->ep_attr->type != FI_EP_RDM && hints->ep_attr->type != FI_EP_UNSPEC) return false;
  if (hints->addr_format != FI_FORMAT_UNSPEC && hints->addr_format != double_is.addr_format) return false;
  if (hints->tx_attr && hints->tx_attr->size > double_is.tx) return false;
  if (hints->rx_attr && hints->rx_attr->size > double_is.rx) return false;
  if (!hints->domain_attr) return false;
  if (double_is.mr_mode & ~(uint64_t)hints->domain_attr->mr_mode) return false;
  return !hints->domain_attr->name || strcmp(hints->domain_attr->name, card) == 0;
}

static struct fi_info *info_make(const char *card) {
  struct fi_info *const info = fi_dupinfo(found);
  if (!info) return NULL;
  free(info->fabric_attr->prov_name);
  info->fabric_attr->prov_name = NULL; /* libfabric fills it in */
  free(info->domain_attr->name);
  info->domain_attr->name = strdup(card);
  free(info->src_addr);
  info->src_addr = malloc(double_is.addr_len);
  if (info->src_addr) double_address_of(found->src_addr, info->src_addr);
  info->src_addrlen = double_is.addr_len;
  info->addr_format = double_is.addr_format;
  info->mode = FI_CONTEXT2;
  info->domain_attr->mr_mode = (int)double_is.mr_mode;
  info->domain_attr->mr_key_size = double_is.key_size;
  info->domain_attr->control_progress = info->domain_attr->data_progress = FI_PROGRESS_MANUAL;
  info->ep_attr->max_msg_size = double_is.max_len;
  info->tx_attr->comp_order = info->rx_attr->comp_order = 0; /* none */
  info->tx_attr->size = double_is.tx;
  info->rx_attr->size = double_is.rx;
  info->tx_attr->iov_limit = info->rx_attr->iov_limit = info->tx_attr->rma_iov_limit = 1;
  return info;
}

static int offer(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints,
                 struct fi_info **list_p) {
  struct fi_info **tail = list_p;
  char card[32];
  (void)version, (void)node, (void)service, (void)flags;
  *list_p = NULL;
  const int rc = found ? 0 : inner_find();
  if (rc != 0) return rc;
  for (unsigned long i = 0; i < double_is.n_cards; i++) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(card, sizeof card, double_is.card, i);
#pragma GCC diagnostic pop
    if (!suits(hints, card)) continue;
    *tail = info_make(card);
    if (!*tail) return -FI_ENOMEM;
    tail = &(*tail)->next;
  }
  return *list_p ? 0 : -FI_ENODATA;
}

static void cleanup(void) {
  if (found) fi_freeinfo(found);
  found = NULL;
}

struct fi_provider *fi_prov_ini(void);

FI_EXT_INI {
  static struct fi_provider provider = {.getinfo = offer, .fabric = double_fabric_open, .cleanup = cleanup};
  if (!double_traits_load()) return NULL;
  provider.version = FI_VERSION(300, 0); /* libfabric takes the newer of two providers of one name */
  provider.fi_version = fi_version();
  provider.name = double_is.name;
  return &provider;
}
