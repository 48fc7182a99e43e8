/*
 * Opening and closing the endpoint.
 *
 * Closing gives 100 ms to operations under way, then everything goes. ofi_rxm before 2.0 crashes when it is closed with
 * reads pending at a hung peer: such an endpoint is left open, with a warning.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/base/secret.h"
#include "common/net/ofi/impl.h"
#include "common/net/ofi/signals.h"

#define ZPS_LOG_COMPONENT "net"
#include "common/base/log.h"

enum { DRAIN_MS = 100, DRAIN_WAIT_NS = 1000000, SILENT_S = 5, LOOK_COST = 500 };

static const struct zps_net_ops ops;

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
/* The leak checker asks this of every program. Providers leak a little for each endpoint, and an endpoint that must not
 * be closed (see close_would_crash()) keeps its operations. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) {
  return "leak:libfabric.so\nleak:zps_ofi_pool_grow\n";
}
#endif

/* The provider's release as MAJOR * 100 + MINOR in the upper half and the revision in the lower. */
static bool provider_older_than(const struct fi_info *info, unsigned release, unsigned revision) {
  return info->fabric_attr->prov_version < FI_VERSION(release, revision);
}

static bool provider_is(const struct fi_info *info, const char *name) {
  return strcmp(info->fabric_attr->prov_name, name) == 0;
}

/* These wake a sleeper for everything that matters: net, tcp;ofi_rxm and sockets do so in the conformance suite, tcp
 * and verbs;ofi_rxm by their sources alone. The others need to be looked after from time to time. */
static bool wakes_for_everything(const struct fi_info *info) {
  static const char *const known[] = {"net", "tcp", "tcp;ofi_rxm", "verbs;ofi_rxm", "sockets"};
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
    if (provider_is(info, known[i])) return true;
  return false;
}

static bool needs_wait_set(const struct fi_info *info) {
  return provider_is(info, "net") || (provider_is(info, "tcp") && provider_older_than(info, 118, 1));
}

/* A queue with a descriptor to sleep on. */
static int cq_open_with_fd(struct ofi_net *net) {
  struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_FD};
  int rc = 0;
#ifdef OFI_WAIT_SETS
  if (needs_wait_set(net->info)) {
    struct fi_wait_attr wait_attr = {.wait_obj = FI_WAIT_FD};
    rc = fi_wait_open(net->fabric, &wait_attr, &net->wait_set);
    attr.wait_obj = FI_WAIT_SET;
    attr.wait_set = net->wait_set;
  }
#else
  if (needs_wait_set(net->info)) rc = -FI_ENOSYS;
#endif
  if (rc == 0) rc = fi_cq_open(net->domain, &attr, &net->cq, net);
  if (rc == 0) rc = fi_control(net->wait_set ? &net->wait_set->fid : &net->cq->fid, FI_GETWAIT, &net->cq_fd);
  return rc;
}

static void fid_close(struct fid *fid, const char *what) {
  if (!fid) return;
  const int rc = fi_close(fid);
  if (rc != 0) zps_log_warn("the fabric does not release its %s: %s", what, fi_strerror(-rc));
}

static void cq_close(struct ofi_net *net) {
  fid_close(net->cq ? &net->cq->fid : NULL, "completion queue");
  fid_close(net->wait_set ? &net->wait_set->fid : NULL, "wait set");
  net->cq = NULL;
  net->wait_set = NULL;
  net->cq_fd = -1;
}

static int cq_open(struct ofi_net *net) {
  struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_NONE};
  if (cq_open_with_fd(net) == 0) return 0;
  cq_close(net);
  return fi_cq_open(net->domain, &attr, &net->cq, net);
}

/* A copy by CUDA waits for the program's streams, and these may wait for the round: the fabric's thread would stand
 * still. */
static int forbid_cuda(struct ofi_net *net) {
#if OFI_FORBIDS_CUDA
  const bool is_permitted = false;
  if (net->info->caps & FI_HMEM)
    return fi_setopt(&net->ep->fid, FI_OPT_ENDPOINT, FI_OPT_CUDA_API_PERMITTED, &is_permitted, sizeof is_permitted);
#else
  (void)net;
#endif
  return 0;
}

static zps_err_t endpoint_open(struct ofi_net *net, struct zps_error *error) {
  struct fi_info *info = net->info;
  struct fi_av_attr av_attr = {.type = info->domain_attr->av_type};
  const char *call = "fi_fabric";
  int rc = fi_fabric(info->fabric_attr, &net->fabric, net);
  if (rc == 0) rc = fi_domain(net->fabric, info, &net->domain, net), call = "fi_domain";
  if (rc == 0) rc = fi_av_open(net->domain, &av_attr, &net->av, net), call = "fi_av_open";
  if (rc == 0) rc = cq_open(net), call = "fi_cq_open";
  if (rc == 0) rc = fi_endpoint(net->domain, info, &net->ep, net), call = "fi_endpoint";
  if (rc == 0 && (rc = forbid_cuda(net)) != 0)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "provider %s does not forbid itself CUDA calls: %s",
                    info->fabric_attr->prov_name, fi_strerror(-rc));
  if (rc == 0) rc = fi_ep_bind(net->ep, &net->av->fid, 0), call = "fi_ep_bind of the address vector";
  if (rc == 0)
    rc = fi_ep_bind(net->ep, &net->cq->fid, FI_TRANSMIT | FI_RECV), call = "fi_ep_bind of the completion queue";
  if (rc == 0) rc = fi_enable(net->ep), call = "fi_enable";
  net->base.info.addr_len = sizeof net->base.info.addr;
  if (rc == 0) rc = fi_getname(&net->ep->fid, net->base.info.addr, &net->base.info.addr_len), call = "fi_getname";
  return rc == 0 ? ZPS_OK : zps_ofi_fail(error, rc, call, info);
}

static void copy_text(char *to, size_t size, const char *from) {
  strncpy(to, from ? from : "", size - 1);
}

static void info_fill(struct ofi_net *net) {
  struct zps_net_info *info = &net->base.info;
  size_t len = sizeof info->address;
  copy_text(info->provider, sizeof info->provider, net->info->fabric_attr->prov_name);
  copy_text(info->protocol, sizeof info->protocol, fi_tostr(&net->info->ep_attr->protocol, FI_TYPE_PROTOCOL));
  copy_text(info->addr_format, sizeof info->addr_format, fi_tostr(&net->info->addr_format, FI_TYPE_ADDR_FORMAT));
  copy_text(info->domain, sizeof info->domain, net->info->domain_attr->name);
  fi_av_straddr(net->av, info->addr, info->address, &len);
  info->address[sizeof info->address - 1] = '\0';
  info->max_read = net->info->ep_attr->max_msg_size;
  info->ends_reads = !provider_is(net->info, "shm"); /* where a peer copies from this process by itself */
  info->registers_free = !(net->info->domain_attr->mr_mode & (FI_MR_LOCAL | FI_MR_ALLOCATED));
  const struct fi_link_attr *const link = net->info->nic ? net->info->nic->link_attr : NULL;
  if (link && !info->registers_free) info->link_bits = link->speed;
  info->weak_keys = (net->info->domain_attr->mr_mode & FI_MR_PROV_KEY) || net->info->domain_attr->mr_key_size < 8;
}

static void say_what_is_used(const struct ofi_net *net) {
  const struct zps_net_info *const info = &net->base.info;
  zps_log_info("fabric %s (%s) on %s%s%s%s at %s, %s; libfabric %u.%u, %s, queues of %zu receives and %zu sends",
               info->provider, info->protocol, info->domain, info->place[0] ? " (" : "", info->place,
               info->place[0] ? ")" : "", info->address, info->why, FI_MAJOR(fi_version()), FI_MINOR(fi_version()),
               net->cq_fd >= 0 ? "waits on a descriptor" : "waits by polling", net->info->rx_attr->size,
               net->info->tx_attr->size);
}

static void regions_revoke(struct ofi_net *net) {
  struct ofi_region *region;
  LIST_FOREACH(region, &net->regions, link) zps_ofi_region_revoke(region);
}

/* From here on the fabric touches no memory of ours. Registrations that are bound to the endpoint have to go before it.
 */
static void endpoint_close(struct ofi_net *net) {
  const bool regions_first = net->info->domain_attr->mr_mode & FI_MR_ENDPOINT;
  if (regions_first) regions_revoke(net);
  fid_close(net->ep ? &net->ep->fid : NULL, "endpoint");
  net->ep = NULL;
  if (!regions_first) regions_revoke(net);
}

static void domain_close(struct ofi_net *net) {
  cq_close(net);
  fid_close(net->av ? &net->av->fid : NULL, "address vector");
  fid_close(net->domain ? &net->domain->fid : NULL, "domain");
  fid_close(net->fabric ? &net->fabric->fid : NULL, "fabric");
  net->av = NULL;
  net->domain = NULL;
  net->fabric = NULL;
}

/* Discovers the fabric and opens it, without what it then refuses. */
static zps_err_t fabric_open(struct ofi_net *net, const struct zps_net_config *config, struct zps_error *error) {
  struct ofi_asked asked = {.device_memory = OFI_FORBIDS_CUDA && config->device_memory, .long_queues = true};
  zps_err_t code = config->auth_key_file
                       ? zps_private_read_hex(config->auth_key_file, zps_config_label("fabric.auth_key"),
                                              asked.auth_key, sizeof asked.auth_key, &asked.auth_key_len, error)
                       : ZPS_OK;
  if (code != ZPS_OK) return code;
  for (;;) {
    code = zps_ofi_discover(config, &asked, &net->base.info, &net->info, error);
    if (code != ZPS_OK) return code;
    struct zps_error why;
    struct zps_ofi_signals signals;
    zps_ofi_signals_save(&signals);
    code = endpoint_open(net, &why); /* shm takes signals, in order to remove its files */
    zps_ofi_signals_restore(&signals);
    if (code == ZPS_OK) return ZPS_OK;
    endpoint_close(net);
    domain_close(net);
    if (asked.long_queues && code != ZPS_ERR_UNSUPPORTED) {
      zps_log_info("the provider's own queues are used: %s", why.text);
      asked.long_queues = false;
    } else if (asked.device_memory) {
      zps_log_info("device memory is copied through the host: %s", why.text);
      asked.device_memory = false;
    } else {
      return zps_fail(error, code, "%s", why.text);
    }
    fi_freeinfo(net->info);
    net->info = NULL;
  }
}

/* `held`: the fabric still knows the operations, so that their memory must stay. */
static void net_free(struct ofi_net *net, bool held) {
  struct ofi_region *region;
  if (!held) {
    zps_ofi_pool_fini(&net->recvs);
    zps_ofi_pool_fini(&net->sends);
    zps_ofi_pool_fini(&net->reads);
  }
  while ((region = LIST_FIRST(&net->regions))) zps_ofi_region_destroy(region);
  if (net->info) fi_freeinfo(net->info);
  zps_forked_forget(&net->forked);
  if (net->wake_fd >= 0) close(net->wake_fd);
  free(net);
}

zps_err_t zps_net_ofi_open(const struct zps_net_config *config, const struct zps_net_handler *handler,
                           struct zps_net **net_p, struct zps_error *error) {
  struct ofi_net *net = calloc(1, sizeof *net);
  if (!net) return zps_fail(error, ZPS_ERR_NOMEM, "out of memory for a fabric endpoint");
  net->base.ops = &ops;
  net->base.handler = *handler;
  net->base.info.max_msg = config->max_msg;
  net->reads_only = config->rail > 0;
  net->connect_timeout_ns = config->connect_timeout_ms * ZPS_NS_PER_MS;
  net->spin_ns = config->spin_us * 1000ull;
  net->cq_fd = -1;
  net->wake_fd = -1;
  STAILQ_INIT(&net->unposted);
  LIST_INIT(&net->regions);
  SLIST_INIT(&net->addrs);
  LIST_INIT(&net->peers);
  TAILQ_INIT(&net->retry);
  TAILQ_INIT(&net->errors);
  zps_ofi_pool_init(&net->recvs, OFI_OP_RECV, config->max_msg);
  zps_ofi_pool_init(&net->sends, OFI_OP_SEND, config->max_msg);
  zps_ofi_pool_init(&net->reads, OFI_OP_READ, 0);

  net->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  zps_err_t code = net->wake_fd >= 0
                       ? fabric_open(net, config, error)
                       : zps_fail(error, ZPS_ERR_IO, "cannot create an event descriptor: too many are open");
  if (code != ZPS_OK) goto err_net;
  info_fill(net);
  zps_forked_close_local(&net->forked, net->base.info.addr, net->base.info.addr_len);
  net->is_cautious = !wakes_for_everything(net->info);
  net->keep_addrs = strstr(net->info->fabric_attr->prov_name, "ofi_rxm") && provider_older_than(net->info, 200, 0);
  net->last_event_ns = zps_clock_ns();
  net->keepalive_s = (config->keepalive_ms + 999) / 1000;
  net->keepalive_at_ns = net->end_at_ns = ZPS_NEVER;
  code = zps_ofi_reserve(&net->base, (int)config->n_recv);
  if (code != ZPS_OK) {
    zps_fail(error, code, "out of memory for %u receive buffers of %zu bytes", config->n_recv, config->max_msg);
    goto err_endpoint;
  }
  say_what_is_used(net);
  *net_p = &net->base;
  return ZPS_OK;

err_endpoint:
  endpoint_close(net);
  domain_close(net);
err_net:
  net_free(net, false);
  return code;
}

/* ofi_rxm before 2.0 crashes when it is closed with reads pending at a peer that hangs. Such an endpoint is left alone:
 * no thread drives it any more, so that it does not touch the buffers either. */
static bool close_would_crash(const struct ofi_net *net) {
  return net->n_reads > 0 && strstr(net->info->fabric_attr->prov_name, "ofi_rxm") &&
         provider_older_than(net->info, 200, 0);
}

/* Lets sent messages leave, for a short while. */
static void drain(struct ofi_net *net) {
  const uint64_t deadline = zps_clock_ns() + DRAIN_MS * ZPS_NS_PER_MS;
  for (;;) {
    zps_ofi_cq_drain(net);
    net->retry_at_ns = 0;
    zps_ofi_retry(net);
    if ((net->n_sends == 0 && net->n_reads == 0 && TAILQ_EMPTY(&net->retry)) || zps_clock_ns() >= deadline) return;
    zps_ofi_wait(&net->base, DRAIN_WAIT_NS);
  }
}

static void call_back_all(struct ofi_net *net) {
  struct zps_net_read *read;
  struct ofi_peer *peer;
  while ((read = zps_net_read_pop(&net->failed))) {
    const bool lost = read->state == OFI_READ_LOST || read->state == OFI_READ_LOST_IN_FLIGHT;
    zps_ofi_read_finish(read, lost ? ZPS_ERR_PEER_LOST : ZPS_ERR_CLOSED);
  }
  LIST_FOREACH(peer, &net->peers, all_link) {
    while ((read = zps_net_read_pop(&peer->queued))) zps_ofi_read_finish(read, ZPS_ERR_CLOSED);
    while ((read = zps_net_read_pop(&peer->posted))) zps_ofi_read_finish(read, ZPS_ERR_CLOSED);
  }
  zps_ofi_quarantine_end(net);
}

static void endpoint_end(struct ofi_net *net) {
  net->leaks = close_would_crash(net);
  if (net->leaks) {
    zps_log_warn("endpoint %s stays open: %zu reads are pending, and %s would crash at its end", net->base.info.address,
                 net->n_reads, net->base.info.provider);
    regions_revoke(net);
  } else {
    endpoint_close(net);
  }
}

static void ofi_shut(struct zps_net *base) {
  struct ofi_net *net = ofi_net_of(base);
  if (net->shut) return;
  endpoint_end(net);
  net->shut = true;
  net->n_stash = 0;
  net->cq_error = false;
  zps_ofi_peers_shut(net);
}

uint64_t zps_ofi_used_ns(void) {
  struct timespec used = {0};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return (uint64_t)used.tv_sec * ZPS_NS_PER_S + (uint64_t)used.tv_nsec;
}

void zps_ofi_keep_alive(struct ofi_net *net, uint64_t now_ns, bool has_happened) {
  if (now_ns >= net->keepalive_at_ns) {
    const uint64_t began_ns = zps_ofi_used_ns();
    zps_forked_keep_alive(net->keepalive_s, SILENT_S);
    net->keepalive_at_ns = ZPS_NEVER;
    net->keepalive_pause_ns = LOOK_COST * (zps_ofi_used_ns() - began_ns);
  }
  if (!has_happened || net->keepalive_s == 0 || net->keepalive_at_ns != ZPS_NEVER) return;
  net->keepalive_at_ns =
      now_ns + (net->keepalive_pause_ns > ZPS_NS_PER_S ? net->keepalive_pause_ns : (uint64_t)ZPS_NS_PER_S);
}

static void ofi_close(struct zps_net *base) {
  struct ofi_net *net = ofi_net_of(base);
  struct ofi_peer *peer;
  net->closing = true;
  if (!net->shut) {
    drain(net);
    endpoint_end(net);
  }
  call_back_all(net);
  while ((peer = LIST_FIRST(&net->peers))) zps_ofi_peer_free(peer);
  if (!net->leaks) domain_close(net);
  net_free(net, net->leaks);
}

static const struct zps_net_ops ops = {
    .close = ofi_close,
    .shut = ofi_shut,
    .reserve = zps_ofi_reserve,
    .peer_add = zps_ofi_peer_add,
    .peer_evict = zps_ofi_peer_evict,
    .peer_renew = zps_ofi_peer_renew,
    .peer_cut = zps_ofi_peer_cut,
    .mem_register = zps_ofi_mem_register,
    .mem_release = zps_ofi_mem_release,
    .send = zps_ofi_send,
    .unsent = zps_ofi_unsent,
    .read = zps_ofi_read,
    .progress = zps_ofi_progress,
    .wait = zps_ofi_wait,
    .attend = zps_ofi_attend,
    .wake = zps_ofi_wake,
    .rest = zps_ofi_rest,
    .rested = zps_ofi_rested,
};
