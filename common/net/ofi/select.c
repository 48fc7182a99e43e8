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

enum { N_PREFERENCE = sizeof preference / sizeof preference[0], TOKEN_MAX = 64 };

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

static bool on_interface(const struct fi_info *info, const struct ofi_iface *ifaces, size_t n_ifaces,
                         const char *name) {
  if (strcmp(domain_name(info), name) == 0) return true;
  const uint8_t *mine, *theirs;
  const size_t n = info_ip(info, &mine);
  for (size_t i = 0; n > 0 && i < n_ifaces; i++) {
    if (strcmp(ifaces[i].name, name) == 0 && zps_subnet_bytes(&ifaces[i].addr, &theirs) == n &&
        memcmp(mine, theirs, n) == 0)
      return true;
  }
  return false;
}

static bool interface_matches(const struct fi_info *info, const struct ofi_iface *ifaces, size_t n_ifaces,
                              const char *wish) {
  const bool all_but = wish[0] == '^';
  char name[TOKEN_MAX];
  if (all_but) wish++;
  while (zps_text_word(&wish, name, sizeof name)) {
    if (on_interface(info, ifaces, n_ifaces, name)) return !all_but;
  }
  return all_but;
}

/* The interface that has this address; NULL: none. */
static const char *interface_of(const struct ofi_iface *ifaces, size_t n_ifaces, const struct sockaddr_storage *addr) {
  const uint8_t *wanted, *bytes;
  const size_t n = zps_subnet_bytes(addr, &wanted);
  for (size_t i = 0; n > 0 && i < n_ifaces; i++)
    if (zps_subnet_bytes(&ifaces[i].addr, &bytes) == n && memcmp(bytes, wanted, n) == 0) return ifaces[i].name;
  return NULL;
}

/* Lower is better: on the way to the coordinator, then by class, then the very address that the coordinator sees. IPv4
 * comes first on an interface, whatever the coordinator is reached by: all processes of a job need the same family. */
static unsigned cost_of(const struct fi_info *info, const struct ofi_iface *ifaces, size_t n_ifaces,
                        const struct sockaddr_storage *source) {
  const enum address_class class = address_class(info);
  const char *const near = source ? interface_of(ifaces, n_ifaces, source) : NULL;
  const bool is_near = near && class <= ADDRESS_V6 && on_interface(info, ifaces, n_ifaces, near);
  const uint8_t *mine, *wanted;
  const size_t n = info_ip(info, &mine);
  const bool is_source = is_near && n > 0 && zps_subnet_bytes(source, &wanted) == n && memcmp(mine, wanted, n) == 0;
  return (is_near ? 0 : 2 * N_ADDRESS_CLASSES) + 2 * class + (is_source ? 0 : 1);
}

static bool subnet_matches(const struct fi_info *info, const char *wish) {
  const uint8_t *bytes;
  const size_t n = info_ip(info, &bytes);
  return n > 0 && zps_subnets_have(wish, bytes, n);
}

static zps_err_t wish_check(const struct ofi_wish *wish, struct zps_error *error) {
  const zps_err_t code = zps_subnets_check(wish->subnet ? wish->subnet : "", error);
  if (code != ZPS_OK) return code;
  if (strcmp(wish->provider, "net;ofi_rxm") == 0)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED,
                    "the fabric provider \"net;ofi_rxm\" is not supported: \"net\" alone does the same and more");
  return ZPS_OK;
}

static const struct fi_info *best_of_provider(const struct fi_info *list, const struct ofi_iface *ifaces,
                                              size_t n_ifaces, const struct ofi_wish *wish, const char *provider) {
  const struct fi_info *best = NULL;
  unsigned least = UINT_MAX;
  for (const struct fi_info *info = list; info; info = info->next) {
    if (!zps_ofi_info_usable(info) || !provider_is(info, provider)) continue;
    if (wish->interface && wish->interface[0] && !interface_matches(info, ifaces, n_ifaces, wish->interface)) continue;
    if (wish->subnet && wish->subnet[0] && !subnet_matches(info, wish->subnet)) continue;
    const unsigned cost = cost_of(info, ifaces, n_ifaces, wish->source);
    if (cost < least) best = info;
    if (cost < least) least = cost;
  }
  return best;
}

/* Was the same provider, domain and address listed before `info`? libfabric repeats them with other features. */
static bool is_repeated(const struct fi_info *list, const struct fi_info *info) {
  char text[160], earlier[160];
  zps_ofi_info_text(info, text, sizeof text);
  for (; list != info; list = list->next)
    if (strcmp(zps_ofi_info_text(list, earlier, sizeof earlier), text) == 0) return true;
  return false;
}

static bool is_first_of_provider(const struct fi_info *list, const struct fi_info *info) {
  for (; list != info; list = list->next)
    if (zps_ofi_info_usable(list) && strcmp(provider_name(list), provider_name(info)) == 0) return false;
  return true;
}

/* "net (eth0 192.0.2.2, lo 127.0.0.1), shm (shm)"; link-local addresses are left out, and "..." ends a list too long.
 */
static void list_what_is_there(const struct fi_info *list, char *text, size_t size) {
  char line[160];
  size_t used = 0;
  snprintf(text, size, "nothing with reliable datagrams and remote reads");
  for (const struct fi_info *first = list; first; first = first->next) {
    if (!zps_ofi_info_usable(first) || !is_first_of_provider(list, first)) continue;
    const char *provider = provider_name(first), *separator = " (";
    used += (size_t)snprintf(text + used, size - used, "%s%s", used > 0 ? ", " : "", provider);
    for (const struct fi_info *info = first; info; info = info->next) {
      if (strcmp(provider_name(info), provider) != 0 || !zps_ofi_info_usable(info) || is_repeated(list, info)) continue;
      if (address_class(info) == ADDRESS_LINK_LOCAL) continue;
      const char *where = zps_ofi_info_text(info, line, sizeof line) + strlen(provider) + 1;
      if (used + strlen(where) + 80 > size) { /* room for the longest name of a provider, too */
        snprintf(text + used, size - used, ", ...");
        return;
      }
      used += (size_t)snprintf(text + used, size - used, "%s%s", separator, where);
      separator = ", ";
    }
    if (strcmp(separator, ", ") == 0) used += (size_t)snprintf(text + used, size - used, ")");
  }
}

zps_err_t zps_ofi_select(const struct fi_info *list, const struct ofi_iface *ifaces, size_t n_ifaces,
                         const struct ofi_wish *wish, const struct fi_info **info_p, struct zps_error *error) {
  const zps_err_t code = wish_check(wish, error);
  if (code != ZPS_OK) return code;
  const struct fi_info *found = NULL;
  if (strcmp(wish->provider, "auto") == 0) {
    for (int i = 0; i < N_PREFERENCE && !found; i++)
      found = best_of_provider(list, ifaces, n_ifaces, wish, preference[i]);
  } else {
    found = best_of_provider(list, ifaces, n_ifaces, wish, wish->provider);
  }
  if (!found) {
    char there[340] = "";
    list_what_is_there(list, there, sizeof there);
    return zps_fail(error, ZPS_ERR_FABRIC, "no fabric for provider \"%s\"%s%s%s%s; this host has: %s", wish->provider,
                    wish->interface ? ", interface " : "", wish->interface ? wish->interface : "",
                    wish->subnet ? ", subnet " : "", wish->subnet ? wish->subnet : "", there);
  }
  *info_p = found;
  return ZPS_OK;
}
