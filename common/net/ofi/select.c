#include "common/net/ofi/select.h"

#include <arpa/inet.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/subnet.h"
#include "common/base/text.h"

/* "auto" takes the first of these that is there: RDMA hardware, then TCP, then the slow ones. "shm" reaches no other
 * host and is used by name alone. The TCP provider with reliable datagrams was called "net" before libfabric 1.18. */
static const char *const preference[] = {"cxi", "efa",         "gni",     "verbs;ofi_rxm", "tcp",
                                         "net", "tcp;ofi_rxm", "sockets", "udp;ofi_rxd"};

enum {
  N_PREFERENCE = sizeof preference / sizeof preference[0],
  N_CARDS = 4,    /* the first ones drive cards, whatever the kernel's routes say */
  CARDS_MAX = 64, /* of a host, to choose from */
  TOKEN_MAX = 64
};

/* Better ones first. */
enum address_class { ADDRESS_V4, ADDRESS_V6, ADDRESS_LOOPBACK, ADDRESS_LINK_LOCAL, N_ADDRESS_CLASSES };

static const char *provider_name(const struct fi_info *info) {
  return info->fabric_attr && info->fabric_attr->prov_name ? info->fabric_attr->prov_name : "";
}

static const char *domain_name(const struct fi_info *info) {
  return info->domain_attr && info->domain_attr->name ? info->domain_attr->name : "";
}

bool zps_ofi_info_usable(const struct fi_info *info) {
  return info->ep_attr && info->ep_attr->type == FI_EP_RDM && strcmp(provider_name(info), "net;ofi_rxm") != 0;
}

static bool provider_is(const struct fi_info *info, const char *name) {
  const char *actual = provider_name(info);
  if (strcmp(actual, name) == 0) return true;
  return (strcmp(actual, "net") == 0 && strcmp(name, "tcp") == 0) ||
         (strcmp(actual, "tcp") == 0 && strcmp(name, "net") == 0);
}

static size_t info_ip(const struct fi_info *info, const uint8_t **bytes_p) {
  if (!info->src_addr) return 0;
  if (info->addr_format != FI_SOCKADDR && info->addr_format != FI_SOCKADDR_IN && info->addr_format != FI_SOCKADDR_IN6)
    return 0;
  return zps_subnet_bytes(info->src_addr, bytes_p);
}

static enum address_class address_class(const struct fi_info *info) {
  const uint8_t *b;
  switch (info_ip(info, &b)) {
    case 4:
      return b[0] == 127 ? ADDRESS_LOOPBACK : b[0] == 169 && b[1] == 254 ? ADDRESS_LINK_LOCAL : ADDRESS_V4;
    case 16:
      if (IN6_IS_ADDR_LOOPBACK((const struct in6_addr *)b)) return ADDRESS_LOOPBACK;
      return b[0] == 0xfe && (b[1] & 0xc0) == 0x80 ? ADDRESS_LINK_LOCAL : ADDRESS_V6;
    default:
      return ADDRESS_V4;
  }
}

const char *zps_ofi_info_text(const struct fi_info *info, char *text, size_t size) {
  const uint8_t *bytes;
  char address[INET6_ADDRSTRLEN] = "";
  const size_t n = info_ip(info, &bytes);
  if (n > 0) inet_ntop(n == 4 ? AF_INET : AF_INET6, bytes, address, sizeof address);
  snprintf(text, size, "%s %s%s%s", provider_name(info), domain_name(info), address[0] ? " " : "", address);
  return text;
}

/* A host may offer thousands, so texts are not made for this. */
bool zps_ofi_info_repeated(const struct fi_info *list, const struct fi_info *info) {
  const uint8_t *bytes, *others;
  const size_t n = info_ip(info, &bytes);
  for (; list != info; list = list->next)
    if (info_ip(list, &others) == n && (n == 0 || memcmp(bytes, others, n) == 0) &&
        strcmp(domain_name(list), domain_name(info)) == 0 && strcmp(provider_name(list), provider_name(info)) == 0 &&
        zps_ofi_info_usable(list))
      return true;
  return false;
}

/* An interface of the kernel's and a card without addresses of that kind are one device. */
static bool is_one_device(const struct ofi_host *host, const struct fi_info *info, const char *interface) {
  struct ofi_place card, other;
  zps_ofi_place_of_card(host->root, info, &card);
  zps_ofi_place_of_interface(host->root, interface, &other);
  return card.pci[0] && strcmp(card.pci, other.pci) == 0;
}

static bool has_pci_address(const struct ofi_host *host, const struct fi_info *info, const char *address) {
  struct ofi_place card, wanted;
  zps_ofi_place_of_pci(host->root, address, &wanted);
  if (!wanted.pci[0]) return false;
  zps_ofi_place_of_card(host->root, info, &card);
  return strcmp(card.pci, wanted.pci) == 0;
}

/* `name`: of the card, of the interface that has its address or is the same device, or its PCI address. */
static bool on_interface(const struct fi_info *info, const struct ofi_host *host, const char *name) {
  const char *const device = info->nic && info->nic->device_attr ? info->nic->device_attr->name : NULL;
  if (strcmp(domain_name(info), name) == 0 || (device && strcmp(device, name) == 0)) return true;
  const uint8_t *mine, *theirs;
  const size_t n = info_ip(info, &mine);
  for (size_t i = 0; n > 0 && i < host->n_ifaces; i++) {
    if (strcmp(host->ifaces[i].name, name) == 0 && zps_subnet_bytes(&host->ifaces[i].addr, &theirs) == n &&
        memcmp(mine, theirs, n) == 0)
      return true;
  }
  return (n == 0 && is_one_device(host, info, name)) || has_pci_address(host, info, name);
}

/* The place in the list of the first name that the card has; SIZE_MAX: it has none of them. */
static size_t place_in_list(const struct fi_info *info, const struct ofi_host *host, const char *list) {
  char name[TOKEN_MAX];
  for (size_t i = 0; zps_text_word(&list, name, sizeof name); i++)
    if (on_interface(info, host, name)) return i;
  return SIZE_MAX;
}

static bool interface_matches(const struct fi_info *info, const struct ofi_host *host, const char *wish) {
  const bool all_but = wish[0] == '^';
  return (place_in_list(info, host, wish + all_but) == SIZE_MAX) == all_but;
}

/* The interface that has this address; NULL: none. */
static const struct ofi_iface *interface_of(const struct ofi_host *host, const uint8_t *wanted, size_t n) {
  const uint8_t *bytes;
  for (size_t i = 0; n > 0 && i < host->n_ifaces; i++)
    if (zps_subnet_bytes(&host->ifaces[i].addr, &bytes) == n && memcmp(bytes, wanted, n) == 0) return &host->ifaces[i];
  return NULL;
}

static bool is_near(const struct fi_info *info, const struct ofi_host *host, const struct sockaddr_storage *source) {
  const uint8_t *wanted;
  const size_t n = source ? zps_subnet_bytes(source, &wanted) : 0;
  const struct ofi_iface *const near = n > 0 ? interface_of(host, wanted, n) : NULL;
  return near && address_class(info) <= ADDRESS_V6 && on_interface(info, host, near->name);
}

/* Lower is better: on the way to the coordinator, then by class, then the very address that the coordinator sees. IPv4
 * comes first on an interface, whatever the coordinator is reached by: all processes of a job need the same family. */
static unsigned cost_of(const struct fi_info *info, const struct ofi_host *host,
                        const struct sockaddr_storage *source) {
  const bool near = is_near(info, host, source);
  const uint8_t *mine, *wanted;
  const size_t n = info_ip(info, &mine);
  const bool is_source = near && n > 0 && zps_subnet_bytes(source, &wanted) == n && memcmp(mine, wanted, n) == 0;
  return (near ? 0 : 2 * N_ADDRESS_CLASSES) + 2 * address_class(info) + (is_source ? 0 : 1);
}

/* A card without addresses of that kind is in the networks of the interface that is the same device. */
static bool subnet_matches(const struct fi_info *info, const struct ofi_host *host, const char *wish) {
  const uint8_t *bytes;
  size_t n = info_ip(info, &bytes);
  if (n > 0) return zps_subnets_have(wish, bytes, n);
  for (size_t i = 0; i < host->n_ifaces; i++) {
    n = zps_subnet_bytes(&host->ifaces[i].addr, &bytes);
    if (zps_subnets_have(wish, bytes, n) && is_one_device(host, info, host->ifaces[i].name)) return true;
  }
  return false;
}

static zps_err_t wish_check(const struct ofi_wish *wish, struct zps_error *error) {
  const zps_err_t code = zps_subnets_check(wish->subnet ? wish->subnet : "", error);
  if (code != ZPS_OK) return code;
  if (strcmp(wish->provider, "net;ofi_rxm") == 0)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED,
                    "the fabric provider \"net;ofi_rxm\" is not supported: \"net\" alone does the same and more");
  return ZPS_OK;
}

static bool has_names(const struct ofi_wish *wish) {
  return wish->interface && wish->interface[0] && wish->interface[0] != '^';
}

static bool options_allow(const struct fi_info *info, const struct ofi_host *host, const struct ofi_wish *wish) {
  if (wish->interface && wish->interface[0] && !interface_matches(info, host, wish->interface)) return false;
  return !wish->subnet || !wish->subnet[0] || subnet_matches(info, host, wish->subnet);
}

static const struct fi_info *best_of_provider(const struct fi_info *list, const struct ofi_host *host,
                                              const struct ofi_wish *wish, const char *provider) {
  const struct fi_info *best = NULL;
  unsigned least = UINT_MAX;
  for (const struct fi_info *info = list; info; info = info->next) {
    if (!zps_ofi_info_usable(info) || !provider_is(info, provider) || !options_allow(info, host, wish)) continue;
    const unsigned cost = cost_of(info, host, wish->source);
    if (cost < least) best = info;
    if (cost < least) least = cost;
  }
  return best;
}

/* ---- one of several cards ---- */

static bool is_card(const struct fi_info *info) {
  for (int i = 0; i < N_CARDS; i++)
    if (strcmp(provider_name(info), preference[i]) == 0) return true;
  return false;
}

static bool has_equal_speed(const struct fi_info *a, const struct fi_info *b) {
  const struct fi_link_attr *const x = a->nic ? a->nic->link_attr : NULL, *const y = b->nic ? b->nic->link_attr : NULL;
  return !x || !y || x->speed == y->speed;
}

static bool is_in_network_of(const struct fi_info *info, const struct fi_info *first, const struct ofi_host *host) {
  const uint8_t *mine, *theirs;
  char text[INET6_ADDRSTRLEN], network[INET6_ADDRSTRLEN + 8];
  const size_t n = info_ip(first, &theirs);
  if (n == 0) return true;
  const struct ofi_iface *const iface = interface_of(host, theirs, n);
  if (!iface || info_ip(info, &mine) != n) return false;
  inet_ntop(n == 4 ? AF_INET : AF_INET6, theirs, text, sizeof text);
  snprintf(network, sizeof network, "%s/%u", text, iface->bits);
  return zps_subnets_have(network, mine, n);
}

/* Another card, with addresses of one kind. */
static bool is_other(const struct fi_info *info, const struct fi_info *first, const struct ofi_host *host,
                     const struct ofi_wish *wish) {
  if (!zps_ofi_info_usable(info) || strcmp(provider_name(info), provider_name(first)) != 0) return false;
  if (info->addr_format != first->addr_format || address_class(info) != address_class(first)) return false;
  return strcmp(domain_name(info), domain_name(first)) != 0 && options_allow(info, host, wish);
}

/* May this process as well have `info` where all would have `first`? Peers must reach either: so addresses are of one
 * kind, and in one network unless the user names the cards. The kernel chooses the link of a socket by its routes: of
 * such fabrics only named ones are dealt. */
static bool is_like(const struct fi_info *info, const struct fi_info *first, const struct ofi_host *host,
                    const struct ofi_wish *wish) {
  if (info == first) return true;
  if (!is_other(info, first, host, wish)) return false;
  return has_names(wish) || (is_card(info) && has_equal_speed(info, first) && is_in_network_of(info, first, host));
}

/* There are fewer cards like `first` than rails. Names the first card that names alone would add. */
static zps_err_t rail_refuse(const struct fi_info *list, const struct fi_info *first, const struct ofi_host *host,
                             const struct ofi_wish *wish, struct zps_error *error) {
  const struct fi_info *other = list;
  while (other && (!is_other(other, first, host, wish) || is_like(other, first, host, wish))) other = other->next;
  return zps_fail(error, ZPS_ERR_FABRIC, "no card number %u like %s: fabric.rails asks for %u%s%s%s", host->rail + 1,
                  domain_name(first), host->rails, other ? "; " : "", other ? domain_name(other) : "",
                  other ? " is another, and taken where fabric.interface names both" : "");
}

struct cards {
  const struct fi_info *infos[CARDS_MAX];
  unsigned order[CARDS_MAX]; /* distances; of named cards, places in the list */
  size_t n;
};

/* Where names are given, in their order. */
static void cards_add(struct cards *cards, const struct fi_info *info, const struct ofi_host *host,
                      const struct ofi_wish *wish) {
  struct ofi_place place;
  for (size_t i = 0; i < cards->n; i++)
    if (strcmp(domain_name(cards->infos[i]), domain_name(info)) == 0) return;
  if (cards->n == CARDS_MAX) return;
  zps_ofi_place_of_card(host->root, info, &place);
  const unsigned order =
      has_names(wish) ? (unsigned)place_in_list(info, host, wish->interface) : zps_ofi_distance(&host->place, &place);
  size_t i = cards->n++;
  for (; has_names(wish) && i > 0 && cards->order[i - 1] > order; i--) {
    cards->infos[i] = cards->infos[i - 1];
    cards->order[i] = cards->order[i - 1];
  }
  cards->infos[i] = info;
  cards->order[i] = order;
}

static void say_nearest(const struct ofi_host *host, size_t n_nearest, size_t n, char *text, size_t size) {
  char node[24];
  snprintf(node, sizeof node, "NUMA node %d", host->place.node);
  const char *const place = host->place.pci[0] ? host->place.pci : node;
  if (n_nearest == n)
    snprintf(text, size, "one of %zu like it, as process %u of this host", n, host->number);
  else
    snprintf(text, size, "one of %zu near %s%s, of %zu, as process %u of this host", n_nearest,
             host->place.pci[0] ? "GPU " : "", place, n, host->number);
}

/* The card of this process, or of its rail, among those that are like `first`. */
static zps_err_t take_card(const struct fi_info *list, const struct fi_info *first, const struct ofi_host *host,
                           const struct ofi_wish *wish, struct ofi_choice *choice_p, struct zps_error *error) {
  struct cards cards = {.n = 0};
  const unsigned rails = host->rails > 1 ? host->rails : 1;
  size_t n_nearest = 0;
  for (const struct fi_info *info = list; info; info = info->next)
    if (is_like(info, first, host, wish)) cards_add(&cards, info, host, wish);
  if (host->rail >= cards.n) return rail_refuse(list, first, host, wish, error);
  const size_t i = has_names(wish) ? (host->number * (size_t)rails + host->rail) % cards.n
                                   : zps_ofi_deal(cards.order, cards.n, host->number, rails, host->rail, &n_nearest);
  choice_p->info = cards.n > 1 ? cards.infos[i] : first;
  if (cards.n == 1)
    snprintf(choice_p->why, sizeof choice_p->why, "%s",
             has_names(wish)                      ? "as named"
             : is_near(first, host, wish->source) ? "on the way to the coordinator"
                                                  : "the first of its kind");
  else if (has_names(wish))
    snprintf(choice_p->why, sizeof choice_p->why, "number %zu of %zu named, as process %u of this host", i, cards.n,
             host->number);
  else
    say_nearest(host, n_nearest, cards.n, choice_p->why, sizeof choice_p->why);
  return ZPS_OK;
}

/* ---- errors ---- */

static bool is_first_of_provider(const struct fi_info *list, const struct fi_info *info) {
  for (; list != info; list = list->next)
    if (zps_ofi_info_usable(list) && strcmp(provider_name(list), provider_name(info)) == 0) return false;
  return true;
}

/* The place of its provider in the preference. */
static int rank_of(const struct fi_info *info) {
  int i = 0;
  while (i < N_PREFERENCE && strcmp(provider_name(info), preference[i]) != 0) i++;
  return i;
}

/* "net (eth0 192.0.2.2, lo 127.0.0.1)" at text[used]; returns where it ends. Link-local addresses are left out. */
static size_t list_provider(const struct fi_info *list, const struct fi_info *first, char *text, size_t used,
                            size_t size) {
  char line[160];
  const char *const provider = provider_name(first), *separator = " (";
  used += (size_t)snprintf(text + used, size - used, "%s%s", used > 0 ? ", " : "", provider);
  for (const struct fi_info *info = first; info; info = info->next) {
    if (strcmp(provider_name(info), provider) != 0 || !zps_ofi_info_usable(info) || zps_ofi_info_repeated(list, info))
      continue;
    if (address_class(info) == ADDRESS_LINK_LOCAL) continue;
    const char *where = zps_ofi_info_text(info, line, sizeof line) + strlen(provider) + 1;
    if (used + strlen(where) + 80 > size) { /* room for the longest name of a provider, too */
      snprintf(text + used, size - used, ", ...");
      return size;
    }
    used += (size_t)snprintf(text + used, size - used, "%s%s", separator, where);
    separator = ", ";
  }
  return used + (strcmp(separator, ", ") == 0 ? (size_t)snprintf(text + used, size - used, ")") : 0);
}

/* The fabrics of the provider, if there are some, or else of all; the best ones first, and "..." ends a list too long.
 */
static void list_what_is_there(const struct fi_info *list, const char *provider, char *text, size_t size) {
  size_t used = 0;
  bool is_there = false;
  for (const struct fi_info *info = list; info; info = info->next)
    is_there = is_there || (zps_ofi_info_usable(info) && provider_is(info, provider));
  snprintf(text, size, "nothing with reliable datagrams and remote reads");
  for (int rank = 0; rank <= N_PREFERENCE; rank++) {
    for (const struct fi_info *first = list; first && used < size; first = first->next) {
      if (rank_of(first) != rank || !zps_ofi_info_usable(first) || !is_first_of_provider(list, first)) continue;
      if (!is_there || provider_is(first, provider)) used = list_provider(list, first, text, used, size);
    }
  }
}

/* The first of the preference that the options allow, and the first of those before it that they rule out. */
static const struct fi_info *best_of_all(const struct fi_info *list, const struct ofi_host *host,
                                         const struct ofi_wish *wish, const struct fi_info **ruled_out_p) {
  const struct ofi_wish any = {.source = wish->source};
  const struct fi_info *found = NULL;
  for (int i = 0; i < N_PREFERENCE && !found; i++) {
    found = best_of_provider(list, host, wish, preference[i]);
    if (!found && !*ruled_out_p && i < N_CARDS) *ruled_out_p = best_of_provider(list, host, &any, preference[i]);
  }
  return found;
}

zps_err_t zps_ofi_select(const struct fi_info *list, const struct ofi_host *host, const struct ofi_wish *wish,
                         struct ofi_choice *choice_p, struct zps_error *error) {
  const zps_err_t code = wish_check(wish, error);
  if (code != ZPS_OK) return code;
  struct ofi_choice choice = {.info = NULL};
  const struct fi_info *const first = strcmp(wish->provider, "auto") == 0
                                          ? best_of_all(list, host, wish, &choice.ruled_out)
                                          : best_of_provider(list, host, wish, wish->provider);
  if (!first) {
    char there[340] = "";
    list_what_is_there(list, wish->provider, there, sizeof there);
    return zps_fail(error, ZPS_ERR_FABRIC, "no fabric for provider \"%s\"%s%s%s%s; this host has: %s", wish->provider,
                    wish->interface ? ", interface " : "", wish->interface ? wish->interface : "",
                    wish->subnet ? ", subnet " : "", wish->subnet ? wish->subnet : "", there);
  }
  const zps_err_t taken = take_card(list, first, host, wish, &choice, error);
  if (taken == ZPS_OK) *choice_p = choice;
  return taken;
}
