/*
 * Registrations, and the pools of operations with their registered buffers.
 *
 * Where neither local memory must be registered nor pages allocated for it (tcp, net, sockets), a registration is a
 * note in a table, and zps_net_info.registers_free is true: a user's memory may then be registered for a single round.
 * A peer's read that finds it gone, unmapped or no longer registered, costs the connection.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/secret.h"
#include "common/net/ofi/impl.h"

#define ZPS_LOG_COMPONENT "net"
#include "common/base/log.h"

enum { ALIGN = 64, KEY_ATTEMPTS = 8 };

struct ofi_block {
  SLIST_ENTRY(ofi_block) link;
  struct ofi_region *region;
  uint8_t *buffers;
  struct ofi_op ops[];
};

/* Whoever reaches the endpoint and knows a key reads the memory, so that a key tells nothing of any other. */
static zps_err_t key_make(const struct ofi_net *net, uint64_t *key_p) {
  const size_t key_size = net->info->domain_attr->mr_key_size;
  uint64_t key;
  do {
    if (zps_secret_make(&key) != ZPS_OK) return ZPS_ERR_UNSUPPORTED;
    if (key_size > 0 && key_size < sizeof key) key &= (UINT64_C(1) << (8 * key_size)) - 1;
  } while (key == UINT64_MAX); /* frames and libfabric give this key a meaning of its own */
  *key_p = key;
  return ZPS_OK;
}

/* Device memory by the dmabuf it was exported as, or by its address. */
static int register_device(struct ofi_net *net, void *base, size_t len, uint64_t access,
                           const struct zps_net_device *device, uint64_t key, struct ofi_region *region) {
  const struct iovec iov = {.iov_base = base, .iov_len = len};
  struct fi_mr_attr attr = {.mr_iov = &iov,
                            .iov_count = 1,
                            .access = access,
                            .requested_key = key,
                            .context = region,
                            .iface = FI_HMEM_CUDA,
                            .device.cuda = device->index};
  if (device->dmabuf_fd < 0) return fi_mr_regattr(net->domain, &attr, 0, &region->mr);
#ifdef FI_MR_DMABUF
  const struct fi_mr_dmabuf dmabuf = {.fd = device->dmabuf_fd, .offset = device->offset, .len = len, .base_addr = base};
  attr.dmabuf = &dmabuf;
  return fi_mr_regattr(net->domain, &attr, FI_MR_DMABUF, &region->mr);
#else
  return -FI_ENOSYS; /* headers of before libfabric 1.20 */
#endif
}

static zps_err_t region_create(struct ofi_net *net, void *base, size_t len, uint64_t access,
                               const struct zps_net_device *device, struct ofi_region **region_p,
                               struct zps_error *error) {
  if (net->shut) return zps_fail(error, ZPS_ERR_CLOSED, "the endpoint %s is shut", net->base.info.address);
  if (device && !(net->info->caps & FI_HMEM))
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "provider %s does not reach device memory",
                    net->info->fabric_attr->prov_name);
  struct ofi_region *region = calloc(1, sizeof *region);
  if (!region) return zps_fail(error, ZPS_ERR_NOMEM, "out of memory for a registration");
  region->len = len;
  int rc = -FI_ENOKEY;
  for (int i = 0; i < KEY_ATTEMPTS && rc == -FI_ENOKEY; i++) {
    uint64_t key;
    if (key_make(net, &key) != ZPS_OK) {
      free(region);
      return zps_fail(error, ZPS_ERR_UNSUPPORTED, "getrandom() does not work, which memory keys come from");
    }
    rc = device ? register_device(net, base, len, access, device, key, region)
                : fi_mr_reg(net->domain, base, len, access, 0, key, 0, &region->mr, region);
  }
  if (rc != 0) {
    free(region);
    return zps_ofi_fail(error, rc, "fi_mr_reg", net->info);
  }
  if (net->info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
    rc = fi_mr_bind(region->mr, &net->ep->fid, 0);
    if (rc == 0) rc = fi_mr_enable(region->mr);
    if (rc != 0) {
      fi_close(&region->mr->fid);
      free(region);
      return zps_ofi_fail(error, rc, "fi_mr_enable", net->info);
    }
  }
  LIST_INSERT_HEAD(&net->regions, region, link);
  *region_p = region;
  return ZPS_OK;
}

void zps_ofi_region_revoke(struct ofi_region *region) {
  if (!region->mr) return;
  const int rc = fi_close(&region->mr->fid);
  if (rc != 0) zps_log_warn("cannot release a registration of %zu bytes: %s", region->len, fi_strerror(-rc));
  region->mr = NULL;
}

void zps_ofi_region_destroy(struct ofi_region *region) {
  if (!region) return;
  zps_ofi_region_revoke(region);
  LIST_REMOVE(region, link);
  free(region);
}

zps_err_t zps_ofi_mem_register(struct zps_net *net, void *base, size_t len, const struct zps_net_device *device,
                               struct zps_net_mem *mem_p, struct zps_error *error) {
  struct ofi_net *ofi = ofi_net_of(net);
  struct ofi_region *region;
  const zps_err_t code = region_create(ofi, base, len, FI_READ | FI_REMOTE_READ, device, &region, error);
  if (code != ZPS_OK) return code;
  *mem_p = (struct zps_net_mem){
      .base = base,
      .len = len,
      .addr = ofi->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)base : 0,
      .key = fi_mr_key(region->mr),
      .desc[0] = fi_mr_desc(region->mr),
      .handle = region,
  };
  net->counters.mem_registered_bytes += len;
  return ZPS_OK;
}

void zps_ofi_mem_release(struct zps_net *net, struct zps_net_mem *mem) {
  net->counters.mem_registered_bytes -= mem->len;
  zps_ofi_region_destroy(mem->handle);
  memset(mem, 0, sizeof *mem);
}

void zps_ofi_pool_init(struct ofi_pool *pool, enum ofi_op_kind kind, size_t buffer_size) {
  pool->kind = kind;
  pool->buffer_size = (buffer_size + ALIGN - 1) / ALIGN * ALIGN;
  pool->n_ops = 0;
  STAILQ_INIT(&pool->free);
  SLIST_INIT(&pool->blocks);
}

zps_err_t zps_ofi_pool_grow(struct ofi_net *net, struct ofi_pool *pool, size_t count) {
  struct ofi_block *block = calloc(1, sizeof *block + count * sizeof block->ops[0]);
  if (!block) return ZPS_ERR_NOMEM;
  void *desc = NULL;
  if (pool->buffer_size > 0) {
    /* Registered buffers fill pages of their own: a child of fork() may lack these (environment.c). */
    const bool is_local = net->info->domain_attr->mr_mode & FI_MR_LOCAL;
    const size_t align = is_local ? (size_t)sysconf(_SC_PAGESIZE) : ALIGN;
    const size_t bytes = (count * pool->buffer_size + align - 1) / align * align;
    block->buffers = aligned_alloc(align, bytes);
    if (!block->buffers) {
      free(block);
      return ZPS_ERR_NOMEM;
    }
    memset(block->buffers, 0, bytes);
    if (is_local) {
      struct zps_error why;
      const zps_err_t code = region_create(net, block->buffers, bytes, FI_SEND | FI_RECV, NULL, &block->region, &why);
      if (code != ZPS_OK) {
        zps_log_warn_limited("no buffers for %zu messages: %s", count, why.text);
        free(block->buffers);
        free(block);
        return code;
      }
      desc = fi_mr_desc(block->region->mr);
    }
  }
  for (size_t i = 0; i < count; i++) {
    struct ofi_op *op = &block->ops[i];
    op->kind = pool->kind;
    op->desc = desc;
    op->buffer = block->buffers ? block->buffers + i * pool->buffer_size : NULL;
    STAILQ_INSERT_TAIL(&pool->free, op, link);
  }
  SLIST_INSERT_HEAD(&pool->blocks, block, link);
  pool->n_ops += count;
  return ZPS_OK;
}

struct ofi_op *zps_ofi_pool_get(struct ofi_pool *pool) {
  struct ofi_op *op = STAILQ_FIRST(&pool->free);
  if (op) STAILQ_REMOVE_HEAD(&pool->free, link);
  return op;
}

void zps_ofi_pool_put(struct ofi_pool *pool, struct ofi_op *op) {
  op->peer = NULL;
  op->read = NULL;
  STAILQ_INSERT_HEAD(&pool->free, op, link);
}

void zps_ofi_pool_fini(struct ofi_pool *pool) {
  struct ofi_block *block;
  while ((block = SLIST_FIRST(&pool->blocks))) {
    SLIST_REMOVE_HEAD(&pool->blocks, link);
    zps_ofi_region_destroy(block->region);
    free(block->buffers);
    free(block);
  }
}
