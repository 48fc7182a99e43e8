/* Checks arguments and hands calls to the backend that was opened (open.c). */
#include "common/base/bundle.h"
#include "common/net/backend.h"

void zps_net_close(struct zps_net *net) {
  if (net) net->ops->close(net);
}

void zps_net_shut(struct zps_net *net) {
  net->ops->shut(net);
}

const struct zps_net_info *zps_net_info(const struct zps_net *net) {
  return &net->info;
}

const struct zps_net_counters *zps_net_counters(const struct zps_net *net) {
  return &net->counters;
}

zps_err_t zps_net_reserve(struct zps_net *net, int count) {
  return net->ops->reserve(net, count);
}

zps_err_t zps_net_peer_add(struct zps_net *net, const void *addr, size_t len, void *ctx, struct zps_net_peer **peer_p,
                           struct zps_error *error) {
  if (!addr || len == 0 || len > ZPS_NET_ADDR_MAX)
    return zps_fail(error, ZPS_ERR_INVALID, "a peer's fabric address has %zu bytes: it must have 1 to %u",
                    addr ? len : 0, ZPS_NET_ADDR_MAX);
  if (!net->ops->peer_rails) addr = zps_bundle_get(addr, len, 0, &len); /* this endpoint has one rail */
  return net->ops->peer_add(net, addr, len, ctx, peer_p, error);
}

unsigned zps_net_peer_rails(const struct zps_net_peer *peer) {
  return peer->net->ops->peer_rails ? peer->net->ops->peer_rails(peer) : 1;
}

unsigned zps_net_peer_connections(const struct zps_net_peer *peer) {
  return peer->net->ops->peer_connections ? peer->net->ops->peer_connections(peer) : 1;
}

void *zps_net_peer_ctx(const struct zps_net_peer *peer) {
  return peer->ctx;
}

void zps_net_peer_evict(struct zps_net_peer *peer) {
  if (peer) peer->net->ops->peer_evict(peer);
}

void zps_net_peer_renew(struct zps_net_peer *peer) {
  peer->net->ops->peer_renew(peer);
}

void zps_net_peer_cut(struct zps_net_peer *peer) {
  if (peer->net->ops->peer_cut) peer->net->ops->peer_cut(peer);
}

zps_err_t zps_net_mem_register(struct zps_net *net, void *base, size_t len, struct zps_net_mem *mem_p,
                               struct zps_error *error) {
  if (!base || len == 0)
    return zps_fail(error, ZPS_ERR_INVALID, "cannot register %zu bytes at %p: there must be memory", len, base);
  return net->ops->mem_register(net, base, len, NULL, mem_p, error);
}

zps_err_t zps_net_mem_register_device(struct zps_net *net, void *base, size_t len, const struct zps_net_device *device,
                                      struct zps_net_mem *mem_p, struct zps_error *error) {
  if (!base || len == 0)
    return zps_fail(error, ZPS_ERR_INVALID, "cannot register %zu bytes at %p of GPU %d: there must be memory", len,
                    base, device->index);
  return net->ops->mem_register(net, base, len, device, mem_p, error);
}

void zps_net_mem_release(struct zps_net *net, struct zps_net_mem *mem) {
  if (mem->handle) net->ops->mem_release(net, mem);
}

zps_err_t zps_net_send(struct zps_net_peer *peer, const void *data, size_t len) {
  if (len > peer->net->info.max_msg || (!data && len > 0)) return ZPS_ERR_INVALID;
  return peer->net->ops->send(peer, data, len);
}

unsigned zps_net_unsent(const struct zps_net_peer *peer) {
  return peer->net->ops->unsent(peer);
}

void zps_net_offer(struct zps_net_peer *peer, uint64_t addr, uint64_t key, uint64_t len) {
  if (peer->net->ops->offer && len > 0) peer->net->ops->offer(peer, addr, key, len);
}

uint64_t zps_net_offered(const struct zps_net_peer *peer, uint64_t addr, uint64_t key) {
  return peer->net->ops->offered ? peer->net->ops->offered(peer, addr, key) : 0;
}

void zps_net_peer_keep(struct zps_net_peer *peer, struct zps_net_keep *keep) {
  if (peer->net->ops->peer_keep) peer->net->ops->peer_keep(peer, keep);
}

zps_err_t zps_net_read(struct zps_net_peer *peer, struct zps_net_read *read) {
  const struct zps_net_mem *mem = read->mem;
  if (!read->done || !mem || !mem->handle || read->len == 0 || read->len > peer->net->info.max_read)
    return ZPS_ERR_INVALID;
  const uintptr_t local = (uintptr_t)read->local, base = (uintptr_t)mem->base;
  if (local < base || local - base > mem->len || read->len > mem->len - (local - base)) return ZPS_ERR_INVALID;
  read->is_offered = false;
  read->here = 0;
  return peer->net->ops->read(peer, read);
}

unsigned zps_net_progress(struct zps_net *net) {
  return net->ops->progress(net);
}

void zps_net_wait(struct zps_net *net, uint64_t timeout_ns) {
  net->ops->wait(net, timeout_ns);
}

void zps_net_attend(struct zps_net *net, bool is_read) {
  if (net->ops->attend) net->ops->attend(net, is_read);
}

void zps_net_wake(struct zps_net *net) {
  net->ops->wake(net);
}
