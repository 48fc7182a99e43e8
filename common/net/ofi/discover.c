/* The fabrics that libfabric offers on this host. */
#define ZPS_LOG_COMPONENT "net"
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/base/config.h"
#include "common/base/log.h"
#include "common/base/route.h"
#include "common/base/subnet.h"
#include "common/base/text.h"
#include "common/net/ofi/environment.h"
#include "common/net/ofi/impl.h"
#include "common/net/ofi/memlock.h"
#include "common/net/ofi/select.h"
#include "common/net/ofi/signals.h"

/* ------------------------------------------------------------ why libfabric offers less than the host has */

/* For its endpoint on each processor. Tried with libfabric 1.17 on 2 processors: 32 MiB are enough, 31.9 are not. */
enum { SHM_MIB_A_PROCESSOR = 16 };

static bool ends_with(const char *name, size_t len, const char *end) {
  const size_t end_len = strlen(end);
  return len >= end_len && memcmp(name + len - end_len, end, end_len) == 0;
}

/* Variables of libfabric that do not change what it offers. */
static bool is_harmless(const char *name, size_t len) {
  return strncmp(name, "FI_LOG_", 7) == 0 || ends_with(name, len, "_PORT_LOW_RANGE") ||
         ends_with(name, len, "_PORT_HIGH_RANGE");
}

static void tell_provider(const char *set, const char *provider, char *text, size_t size) {
  zps_text_add(text, size,
               "; FI_PROVIDER=%.60s is set, which hides all other providers of libfabric: unset it, or set it to %.40s",
               set, strcmp(provider, "auto") == 0 ? "net or tcp" : provider);
}

static void tell_shm(char *text, size_t size) {
  struct statvfs about;
  const long processors = sysconf(_SC_NPROCESSORS_ONLN);
  if (processors < 1 || statvfs("/dev/shm", &about) != 0) {
    zps_text_add(text, size, "; there is no /dev/shm to be seen, which shm needs");
    return;
  }
  const uint64_t free_mib = (uint64_t)about.f_bavail * about.f_frsize >> 20,
                 needed_mib = (uint64_t)processors * SHM_MIB_A_PROCESSOR;
  if (free_mib < needed_mib)
    zps_text_add(
        text, size,
        "; /dev/shm has %llu MiB free and shm needs about %llu (%d for each of %ld processors): make it larger "
        "(docker: --shm-size)",
        (unsigned long long)free_mib, (unsigned long long)needed_mib, (int)SHM_MIB_A_PROCESSOR, processors);
}

/* Writes sentences to add to "there is no such fabric", each after a semicolon; "" if there is nothing to say.
 * `provider` is the one that was asked for. */
static void tell_hidden(const char *provider, char *const *environment, char *text, size_t size) {
  bool has_others = false;
  text[0] = '\0';
  if (strcmp(provider, "shm") == 0) tell_shm(text, size);
  for (char *const *at = environment; *at; at++)
    if (strncmp(*at, "FI_PROVIDER=", 12) == 0 && (*at)[12]) tell_provider(*at + 12, provider, text, size);
  for (char *const *at = environment; *at; at++) {
    const size_t len = strcspn(*at, "=");
    if (strncmp(*at, "FI_", 3) != 0 || is_harmless(*at, len) || ends_with(*at, len, "FI_PROVIDER")) continue;
    zps_text_add(text, size, "%s%.80s", has_others ? ", " : "; libfabric is also told by the environment: ", *at);
    has_others = true;
  }
}

enum { QUEUE_MOST = 8192, INFO_TEXT_MAX = 160 };

/* ofi_rxm asks for a completion queue of 256 entries for each peer of the universe. */
#define UNIVERSE_ADVICE \
  ": the card may have no completion queue for FI_UNIVERSE_SIZE peers (256 if unset): set it to the number of peers"

zps_err_t zps_ofi_fail(struct zps_error *error, int rc, const char *call, const struct fi_info *info) {
  char where[160] = "", advice[300] = "";
  if (info) zps_ofi_info_text(info, where, sizeof where);
  const zps_err_t code = rc == -FI_ENOMEM ? ZPS_ERR_NOMEM : ZPS_ERR_FABRIC;
  if (info && rc == -FI_ENOMEM) zps_memlock_advice(info->fabric_attr->prov_name, advice, sizeof advice);
  if (info && rc == -FI_EINVAL && strcmp(call, "fi_enable") == 0 && strstr(info->fabric_attr->prov_name, "verbs;"))
    snprintf(advice, sizeof advice, "%s", UNIVERSE_ADVICE);
  return zps_fail(error, code, "%s%s%s: %s%s", call, where[0] ? " on " : "", where, fi_strerror(-rc), advice);
}

bool zps_ofi_errno_is_loss(int err) {
  switch (err) {
    case FI_ENOTCONN:
    case FI_ECANCELED:
    case FI_ECONNRESET:
    case FI_ECONNREFUSED:
    case FI_ECONNABORTED:
    case FI_EHOSTUNREACH:
    case FI_ENETUNREACH:
    case FI_ETIMEDOUT:
    case FI_ESHUTDOWN:
    case EPIPE:
    case FI_EIO:
    case ESRCH:
      return true;
    default:
      return false;
  }
}

static bool key_add(const struct ofi_asked *asked, uint8_t **key_p, size_t *len_p) {
  if (asked->auth_key_len == 0) return true;
  *key_p = malloc(asked->auth_key_len); /* fi_freeinfo() frees it */
  if (!*key_p) return false;
  memcpy(*key_p, asked->auth_key, asked->auth_key_len);
  *len_p = asked->auth_key_len;
  return true;
}

static struct fi_info *hints_create(const struct ofi_asked *asked) {
  struct fi_info *hints = fi_allocinfo();
  if (!hints) return NULL;
  hints->caps = FI_MSG | FI_TAGGED | FI_RMA;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->tx_attr->msg_order = FI_ORDER_SAS;
  hints->rx_attr->msg_order = FI_ORDER_SAS;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
  if (asked->device_memory) {
    hints->caps |= FI_HMEM;
    hints->domain_attr->mr_mode |= FI_MR_HMEM;
  }
  hints->rx_attr->size = asked->rx_size;
  hints->tx_attr->size = asked->tx_size;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints->domain_attr->av_type = FI_AV_UNSPEC;
  if (key_add(asked, &hints->domain_attr->auth_key, &hints->domain_attr->auth_key_size) &&
      key_add(asked, &hints->ep_attr->auth_key, &hints->ep_attr->auth_key_size))
    return hints;
  fi_freeinfo(hints);
  return NULL;
}

/* Everything usable on this host, newest interface first: a version that the library or the headers do not know yet is
 * refused by either. */
static int info_list(const struct ofi_asked *asked, struct fi_info **list_p) {
  static const uint32_t versions[] = {FI_VERSION(1, 20), FI_VERSION(1, 18), FI_VERSION(1, 15)};
  struct fi_info *hints = hints_create(asked);
  if (!hints) return -FI_ENOMEM;
  int rc = -FI_ENOSYS;
  struct zps_ofi_signals signals;
  zps_ofi_signals_save(&signals); /* providers start here */
  for (size_t i = 0; i < sizeof versions / sizeof versions[0] && rc == -FI_ENOSYS; i++) {
    if (versions[i] <= FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION))
      rc = fi_getinfo(versions[i], NULL, NULL, 0, hints, list_p);
  }
  zps_ofi_signals_restore(&signals);
  fi_freeinfo(hints);
  return rc;
}

/* The addresses of this host; an empty list when they cannot be had, as then only domain names can be matched. */
static struct ofi_iface *iface_list(size_t *n_p) {
  struct ifaddrs *all;
  size_t n = 0;
  *n_p = 0;
  if (getifaddrs(&all) != 0) return NULL;
  for (struct ifaddrs *a = all; a; a = a->ifa_next) n++;
  struct ofi_iface *ifaces = calloc(n > 0 ? n : 1, sizeof *ifaces);
  for (struct ifaddrs *a = all; a && ifaces; a = a->ifa_next) {
    if (!a->ifa_addr || (a->ifa_addr->sa_family != AF_INET && a->ifa_addr->sa_family != AF_INET6)) continue;
    struct ofi_iface *iface = &ifaces[(*n_p)++];
    snprintf(iface->name, sizeof iface->name, "%s", a->ifa_name);
    memcpy(&iface->addr, a->ifa_addr,
           a->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
    const uint8_t *mask;
    const size_t n_bytes = a->ifa_netmask ? zps_subnet_bytes(a->ifa_netmask, &mask) : 0;
    for (size_t i = 0; i < n_bytes; i++) iface->bits += (unsigned)__builtin_popcount(mask[i]);
  }
  freeifaddrs(all);
  return ifaces;
}

static struct ofi_place place_of_process(const char *gpu) {
  struct ofi_place place;
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof cpus, &cpus) != 0) CPU_ZERO(&cpus);
  if (gpu && gpu[0])
    zps_ofi_place_of_pci("", gpu, &place);
  else
    zps_ofi_place_of_cpus("", &cpus, &place);
  return place;
}

/* The same card with more; false: its provider does not offer that. The choice does not depend on it. */
static bool prefer(const struct ofi_host *host, const struct ofi_wish *wish, const struct ofi_asked *asked,
                   struct fi_info **info_p) {
  struct fi_info *list = NULL, *copy = NULL;
  struct ofi_choice choice;
  struct ofi_wish same = *wish;
  const struct ofi_host own = {.ifaces = host->ifaces, .n_ifaces = host->n_ifaces, .root = host->root};
  same.provider = (*info_p)->fabric_attr->prov_name;
  same.interface = (*info_p)->domain_attr->name;
  if (info_list(asked, &list) == 0 && zps_ofi_select(list, &own, &same, &choice, NULL) == ZPS_OK &&
      strcmp(choice.info->domain_attr->name, (*info_p)->domain_attr->name) == 0)
    copy = fi_dupinfo(choice.info);
  if (copy) {
    fi_freeinfo(*info_p);
    *info_p = copy;
  }
  if (list) fi_freeinfo(list);
  return copy;
}

/* A link has 33 receives. Those beyond the queue wait until others complete, and their messages take the slow ways of
 * unexpected ones. A provider refuses a size beyond its most. */
static bool prefer_long_queues(const struct ofi_host *host, const struct ofi_wish *wish, const struct ofi_asked *asked,
                               struct fi_info **info_p) {
  const size_t rx_size = (*info_p)->rx_attr->size, tx_size = (*info_p)->tx_attr->size;
  for (size_t size = QUEUE_MOST; size > rx_size || size > tx_size; size /= 2) {
    struct ofi_asked more = *asked;
    more.rx_size = size > rx_size ? size : 0;
    more.tx_size = size > tx_size ? size : 0;
    if (prefer(host, wish, &more, info_p)) return true;
  }
  return false;
}

static void say_ruled_out(const struct ofi_wish *wish, const struct ofi_choice *choice) {
  char better[160], taken[160];
  if (!choice->ruled_out) return;
  const bool has_interface = wish->interface && wish->interface[0], has_subnet = wish->subnet && wish->subnet[0];
  zps_log_warn("%s%s%s%s%s rules out %s: %s is used. Name the card (zenpsd --list-providers) to use it",
               has_interface ? "interface " : "", has_interface ? wish->interface : "",
               has_interface && has_subnet ? " and " : "", has_subnet ? "subnet " : "", has_subnet ? wish->subnet : "",
               zps_ofi_info_text(choice->ruled_out, better, sizeof better),
               zps_ofi_info_text(choice->info, taken, sizeof taken));
}

/* The fabric that was asked for is not there: what may hide it. */
static zps_err_t add_hidden(const char *provider, const struct ofi_asked *asked, struct zps_error *error) {
  char hidden[400], key[120] = "";
  const zps_err_t code = error ? error->code : ZPS_ERR_FABRIC;
  tell_hidden(provider, environ, hidden, sizeof hidden);
  if (asked->auth_key_len > 0)
    snprintf(key, sizeof key, "; %s hides fabrics that take no key of %zu bytes", zps_config_label("fabric.auth_key"),
             asked->auth_key_len);
  return error ? zps_fail(error, code, "%s%s%s", error->text, hidden, key) : code;
}

/* A provider that does not look at the key would open without it. */
static zps_err_t check_key(const struct fi_info *info, const struct ofi_asked *asked, struct zps_error *error) {
  const struct fi_domain_attr *const domain = info->domain_attr;
  const size_t len = asked->auth_key_len;
  if (len == 0 ||
      (domain->auth_key_size == len && domain->auth_key && memcmp(domain->auth_key, asked->auth_key, len) == 0))
    return ZPS_OK;
  return zps_fail(error, ZPS_ERR_UNSUPPORTED, "provider %s does not take the key of %s (%zu bytes)",
                  info->fabric_attr->prov_name, zps_config_label("fabric.auth_key"), len);
}

/* The owner frees *ifaces_p. */
static struct ofi_host host_of(const struct zps_net_config *config, struct ofi_iface **ifaces_p) {
  struct ofi_host host = {.root = "",
                          .place = place_of_process(config->gpu),
                          .number = config->number,
                          .rails = config->rails,
                          .rail = config->rail};
  host.ifaces = *ifaces_p = iface_list(&host.n_ifaces);
  return host;
}

static bool follows_route(const struct ofi_wish *wish) {
  return (!wish->interface || !wish->interface[0]) && (!wish->subnet || !wish->subnet[0]);
}

zps_err_t zps_ofi_discover(const struct zps_net_config *config, struct ofi_asked *asked, struct zps_net_info *net_info,
                           struct fi_info **info_p, struct zps_error *error) {
  struct ofi_wish wish = {.provider = config->provider, .interface = config->interface, .subnet = config->subnet};
  struct sockaddr_storage source;
  struct fi_info *list = NULL;
  struct ofi_choice choice = {.info = NULL};
  zps_ofi_environment_set(config);
  const zps_err_t may_lock = zps_memlock_check(config->provider, config->memory_limit_bytes, error);
  if (may_lock != ZPS_OK) return may_lock;
  struct ofi_asked least = *asked;
  least.device_memory = false;
  const int rc = info_list(&least, &list);
  if (rc != 0 && rc != -FI_ENODATA) {
    (void)zps_ofi_fail(error, rc, "fi_getinfo", NULL);
    return add_hidden(config->provider, asked, error);
  }
  struct ofi_iface *ifaces;
  const struct ofi_host host = host_of(config, &ifaces);
  if (follows_route(&wish) && zps_route_source(config->toward, &source)) wish.source = &source;
  zps_err_t code = zps_ofi_select(list, &host, &wish, &choice, error);
  if (code == ZPS_ERR_FABRIC) code = add_hidden(config->provider, asked, error);
  if (code == ZPS_OK) code = check_key(choice.info, asked, error);
  /* "auto" is a provider by here. */
  if (code == ZPS_OK) code = zps_memlock_check(choice.info->fabric_attr->prov_name, config->memory_limit_bytes, error);
  if (code == ZPS_OK) {
    struct ofi_place place;
    say_ruled_out(&wish, &choice);
    zps_ofi_place_of_card("", choice.info, &place);
    zps_ofi_place_text(&place, net_info->place, sizeof net_info->place);
    memcpy(net_info->why, choice.why, sizeof net_info->why);
    *info_p = fi_dupinfo(choice.info);
    if (!*info_p) code = zps_fail(error, ZPS_ERR_NOMEM, "out of memory for the fabric's description");
  }
  asked->device_memory =
      code == ZPS_OK && asked->device_memory && prefer(&host, &wish, asked, info_p) && (*info_p)->caps & FI_HMEM;
  asked->long_queues = code == ZPS_OK && asked->long_queues && prefer_long_queues(&host, &wish, asked, info_p);
  free(ifaces);
  if (list) fi_freeinfo(list);
  return code;
}

zps_err_t zps_net_ofi_host(const struct zps_net_config *config, struct sockaddr_in6 *addr_p,
                           struct zps_net_info *net_info, struct zps_error *error) {
  struct zps_net_config same = *config;
  struct ofi_asked nothing = {.device_memory = false};
  struct fi_info *info;
  same.provider = "tcp";
  same.rails = same.rail = 0;
  const zps_err_t code = zps_ofi_discover(&same, &nothing, net_info, &info, error);
  if (code != ZPS_OK) return code;
  memset(addr_p, 0, sizeof *addr_p);
  memcpy(addr_p, info->src_addr, info->src_addrlen < sizeof *addr_p ? info->src_addrlen : sizeof *addr_p);
  addr_p->sin6_port = 0; /* where a sockaddr_in has it, too */
  snprintf(net_info->domain, sizeof net_info->domain, "%s", info->domain_attr->name);
  fi_freeinfo(info);
  return ZPS_OK;
}

/* The cards that a process with `config` takes as its rails, in text. Returns how many. */
static unsigned rails_find(const struct fi_info *list, const struct zps_net_config *config,
                           char (*rails)[INFO_TEXT_MAX]) {
  struct ofi_wish wish = {.provider = config->provider, .interface = config->interface, .subnet = config->subnet};
  struct sockaddr_storage source;
  struct ofi_iface *ifaces;
  struct ofi_host host = host_of(config, &ifaces);
  struct ofi_choice choice;
  unsigned n = 0;
  if (follows_route(&wish) && zps_route_source(config->toward, &source)) wish.source = &source;
  for (; n < config->rails; host.rail = ++n) {
    if (zps_ofi_select(list, &host, &wish, &choice, NULL) != ZPS_OK) break;
    zps_ofi_info_text(choice.info, rails[n], INFO_TEXT_MAX);
  }
  free(ifaces);
  return n;
}

void zps_net_ofi_list(const struct zps_net_config *config, void (*line)(void *ctx, const char *text), void *ctx) {
  char known[INFO_TEXT_MAX], where[64], text[INFO_TEXT_MAX + 96], rails[ZPS_NET_RAILS_MAX][INFO_TEXT_MAX];
  struct fi_info *list = NULL;
  struct ofi_place place;
  const struct ofi_asked nothing = {.device_memory = false};
  zps_ofi_environment_set(config);
  if (info_list(&nothing, &list) != 0) return;
  const unsigned n_rails = config->rails > 1 ? rails_find(list, config, rails) : 0;
  for (const struct fi_info *info = list; info; info = info->next) {
    if (!zps_ofi_info_usable(info) || zps_ofi_info_repeated(list, info)) continue;
    zps_ofi_info_text(info, known, sizeof known);
    zps_ofi_place_of_card("", info, &place);
    zps_ofi_place_text(&place, where, sizeof where);
    int len = snprintf(text, sizeof text, "%s%s%s", known, where[0] ? ", " : "", where);
    for (unsigned k = 0; k < n_rails; k++)
      if (strcmp(rails[k], known) == 0) len += snprintf(text + len, sizeof text - (size_t)len, ", rail %u", k);
    line(ctx, text);
  }
  fi_freeinfo(list);
}
