/* Lists of fabrics as libfabric gives them, made up. Included after cmocka. */
#ifndef ZPS_TESTS_UNIT_NET_OFFERS_H
#define ZPS_TESTS_UNIT_NET_OFFERS_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/net/ofi/select.h"

struct offer {
  const char *provider, *domain, *address; /* address: NULL: of another kind than IP */
};

/* The cards that libfabric tells of, by their domains. */
struct offers_card {
  const char *domain, *name;
  unsigned bus; /* on PCI, 0000:BUS:00.0; 0: not told */
  size_t speed; /* of the link; 0: not told */
};
static const struct offers_card *offers_cards;
static size_t offers_n_cards;

static int offers_nic_close(struct fid *fid) {
  struct fid_nic *const nic = (struct fid_nic *)fid;
  if (nic->device_attr) free(nic->device_attr->name);
  free(nic->device_attr);
  free(nic->bus_attr);
  free(nic->link_attr);
  free(nic);
  return 0;
}

static inline struct fid_nic *offers_nic(const struct offers_card *card) {
  static struct fi_ops ops = {.size = sizeof ops, .close = offers_nic_close};
  struct fid_nic *const nic = calloc(1, sizeof *nic);
  assert_non_null(nic);
  nic->fid = (struct fid){.fclass = FI_CLASS_NIC, .ops = &ops};
  nic->device_attr = calloc(1, sizeof *nic->device_attr);
  assert_non_null(nic->device_attr);
  nic->device_attr->name = strdup(card->name);
  if (card->bus) {
    nic->bus_attr = calloc(1, sizeof *nic->bus_attr);
    assert_non_null(nic->bus_attr);
    nic->bus_attr->bus_type = FI_BUS_PCI;
    nic->bus_attr->attr.pci.bus_id = (uint8_t)card->bus;
  }
  if (card->speed) {
    nic->link_attr = calloc(1, sizeof *nic->link_attr);
    assert_non_null(nic->link_attr);
    nic->link_attr->speed = card->speed;
  }
  return nic;
}

static struct fi_info *offers_info(const struct offer *offer) {
  struct fi_info *info = fi_allocinfo();
  assert_non_null(info);
  info->ep_attr->type = FI_EP_RDM;
  info->fabric_attr->prov_name = strdup(offer->provider);
  info->domain_attr->name = strdup(offer->domain);
  for (size_t i = 0; i < offers_n_cards; i++)
    if (strcmp(offers_cards[i].domain, offer->domain) == 0) info->nic = offers_nic(&offers_cards[i]);
  if (!offer->address) {
    info->addr_format = FI_ADDR_STR;
    return info;
  }
  const bool v6 = strchr(offer->address, ':');
  struct sockaddr_storage *addr = calloc(1, sizeof *addr);
  assert_non_null(addr);
  addr->ss_family = v6 ? AF_INET6 : AF_INET;
  void *bytes =
      v6 ? (void *)&((struct sockaddr_in6 *)addr)->sin6_addr : (void *)&((struct sockaddr_in *)addr)->sin_addr;
  assert_int_equal(inet_pton(addr->ss_family, offer->address, bytes), 1);
  info->addr_format = v6 ? FI_SOCKADDR_IN6 : FI_SOCKADDR_IN;
  info->src_addr = addr;
  info->src_addrlen = v6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
  return info;
}

static struct fi_info *offers_list(const struct offer *offers, size_t n) {
  struct fi_info *list = NULL, **tail = &list;
  for (size_t i = 0; i < n; i++) {
    *tail = offers_info(&offers[i]);
    tail = &(*tail)->next;
  }
  return list;
}

static inline struct ofi_iface offers_iface(const char *name, const char *address, unsigned bits) {
  struct ofi_iface iface = {.bits = bits};
  struct sockaddr_in *const addr = (struct sockaddr_in *)&iface.addr;
  snprintf(iface.name, sizeof iface.name, "%s", name);
  addr->sin_family = AF_INET;
  assert_int_equal(inet_pton(AF_INET, address, &addr->sin_addr), 1);
  return iface;
}

/* Writes "provider domain address" of the choice; an error fails the test. */
static inline struct ofi_choice offers_choose(const struct offer *offers, size_t n, const struct ofi_host *host,
                                              const struct ofi_wish *wish, char text[160]) {
  struct fi_info *const list = offers_list(offers, n);
  struct ofi_choice choice = {.info = NULL};
  struct zps_error error = {0};
  if (zps_ofi_select(list, host, wish, &choice, &error) != ZPS_OK) fail_msg("%s", error.text);
  zps_ofi_info_text(choice.info, text, 160);
  if (choice.ruled_out) {
    const size_t len = strlen(text);
    snprintf(text + len, 160 - len, ", not %s", choice.ruled_out->fabric_attr->prov_name);
  }
  fi_freeinfo(list);
  choice.info = choice.ruled_out = NULL;
  return choice;
}

static inline void offers_refuse(const struct offer *offers, size_t n, const struct ofi_host *host,
                                 const struct ofi_wish *wish, zps_err_t expected, const char *word) {
  struct fi_info *const list = offers_list(offers, n);
  struct ofi_choice choice = {.info = NULL};
  struct zps_error error = {0};
  assert_int_equal(zps_ofi_select(list, host, wish, &choice, &error), expected);
  assert_null(choice.info);
  if (!strstr(error.text, word)) fail_msg("\"%s\" does not mention \"%s\"", error.text, word);
  fi_freeinfo(list);
}

#endif
