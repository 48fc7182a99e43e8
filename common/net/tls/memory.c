/* Registered memory, a note in a table; and the ends of reads. */
#include <stdlib.h>

#include "common/base/secret.h"
#include "common/net/tls/impl.h"

/* ---- memory that peers may read ---- */

/* Keys are random, so that a peer that knows some guesses no others. */
zps_err_t zps_tlsnet_mem_register(struct zps_net *base, void *bytes, size_t len, const struct zps_net_device *device,
                                  struct zps_net_mem *mem_p, struct zps_error *error) {
  struct tlsnet *const net = tlsnet_of(base);
  if (device) return zps_fail(error, ZPS_ERR_UNSUPPORTED, "the encrypted fabric reaches host memory alone");
  if (net->shut) return zps_fail(error, ZPS_ERR_CLOSED, "the endpoint %s is shut", base->info.address);
  struct tlsnet_region *const region = calloc(1, sizeof *region);
  if (!region) return zps_fail(error, ZPS_ERR_NOMEM, "no memory to register %zu bytes", len);
  const zps_err_t err = zps_secret_make(&region->key);
  if (err) {
    free(region);
    return zps_fail(error, err, "this kernel has no generator of keys");
  }
  region->base = bytes;
  region->len = len;
  LIST_INSERT_HEAD(&net->regions[region->key % TLSNET_BUCKETS], region, link);
  base->counters.mem_registered_bytes += len;
  *mem_p = (struct zps_net_mem){.base = bytes, .len = len, .key = region->key, .handle = region};
  return ZPS_OK;
}

static void region_free(struct tlsnet_region *region) {
  LIST_REMOVE(region, link);
  free(region);
}

void zps_tlsnet_mem_release(struct zps_net *base, struct zps_net_mem *mem) {
  region_free(mem->handle);
  base->counters.mem_registered_bytes -= mem->len;
  *mem = (struct zps_net_mem){0};
}

void zps_tlsnet_regions_free(struct tlsnet *net) {
  for (unsigned i = 0; i < TLSNET_BUCKETS; i++)
    while (!LIST_EMPTY(&net->regions[i])) region_free(LIST_FIRST(&net->regions[i]));
}

const uint8_t *zps_tlsnet_region_bytes(const struct tlsnet *net, uint64_t key, uint64_t at, size_t len) {
  const struct tlsnet_region *region;
  LIST_FOREACH(region, &net->regions[key % TLSNET_BUCKETS], link) {
    if (region->key == key) return at <= region->len && len <= region->len - at ? region->base + at : NULL;
  }
  return NULL;
}

/* ---- reads of ours ---- */

/* Only this fabric writes to its buffer, so that a lost read can be released at once. */
void zps_tlsnet_read_lose(struct tlsnet *net, struct zps_net_read *read) {
  read->peer = NULL;
  read->state = net->closing ? TLSNET_READ_CLOSED : TLSNET_READ_LOST;
  zps_net_read_push(&net->over, read);
}

void zps_tlsnet_read_came(struct tlsnet *net, struct zps_net_read *read) {
  read->state = TLSNET_READ_CAME;
  zps_net_read_push(&net->over, read);
}

void zps_tlsnet_came_lose(struct tlsnet *net, const struct tlsnet_peer *of) {
  for (struct zps_net_read *read = net->over.first; read; read = read->next) {
    if (read->peer != &of->base) continue;
    read->peer = NULL;
    read->state = net->closing ? TLSNET_READ_CLOSED : TLSNET_READ_LOST;
  }
}

void zps_tlsnet_asked_lose(struct tlsnet_conn *conn, const struct tlsnet_peer *of) {
  for (unsigned i = 0; i < conn->asked.n; i++) {
    struct tlsnet_asked *const asked = &conn->asked.ring[(conn->asked.first + i) % TLSNET_READS_MAX];
    if (!asked->read || (of && asked->read->peer != &of->base)) continue;
    zps_tlsnet_read_lose(conn->net, asked->read);
    asked->read = NULL;
  }
  if (of) zps_tlsnet_ahead_lose(conn, of);
}

unsigned zps_tlsnet_read_report(struct tlsnet *net) {
  unsigned n = 0;
  struct zps_net_read *read;
  for (; (read = zps_net_read_pop(&net->over)) != NULL; n++) {
    void (*const release)(struct zps_net_read *) = read->release;
    const bool is_lost = read->state == TLSNET_READ_LOST, came = read->state == TLSNET_READ_CAME;
    if (came) net->base.counters.reads++;
    if (came) net->base.counters.read_bytes += read->len;
    read->done(read, came ? ZPS_OK : is_lost ? ZPS_ERR_PEER_LOST : ZPS_ERR_CLOSED);
    if (is_lost && release) release(read);
  }
  return n;
}
