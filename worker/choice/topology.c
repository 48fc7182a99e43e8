#include "worker/choice/topology.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/schemes/parts.h"

/* Numbers hosts in the order in which their first ranks come. */
static void number_hosts(const struct zps_join_peers *peers, uint32_t *hosts) {
  uint32_t n = 0;
  for (uint32_t r = 0; r < peers->world; r++) {
    uint32_t first = 0;
    while (strcmp(peers->ranks[first].host, peers->ranks[r].host) != 0) first++;
    hosts[r] = first == r ? n++ : hosts[first];
  }
}

static bool is_near(const struct zps_join_peers *peers, uint32_t a, uint32_t b, bool same_host) {
  const struct zps_join_peer *x = &peers->ranks[a], *y = &peers->ranks[b];
  return strcmp(x->rack, y->rack) == 0 && (!same_host || strcmp(x->host, y->host) == 0);
}

/* How many ranks, from the first of each such group on, are on one host (in one rack); 0: groups differ, or ranks of
 * one do not follow each other. */
static uint32_t group_size(const struct zps_join_peers *peers, bool same_host) {
  uint32_t size = 1;
  while (size < peers->world && is_near(peers, 0, size, same_host)) size++;
  if (peers->world % size != 0) return 0;
  for (uint32_t r = 0; r < peers->world; r++) {
    if (!is_near(peers, r - r % size, r, same_host)) return 0;
    if (r >= size && is_near(peers, r - size, r, same_host)) return 0;
  }
  return size;
}

/* Racks of equally many hosts of equally many ranks make levels of their own. */
static void level_racks(const struct zps_join_peers *peers, struct zps_peer_tensor *scheme) {
  const uint32_t per_host = group_size(peers, true), per_rack = group_size(peers, false);
  if (scheme->plan.n_levels > 0 || !peers->ranks[0].rack[0] || per_host == 0 || per_rack == 0) return;
  if (per_rack == per_host || per_rack == peers->world) return;
  const uint32_t levels[] = {per_host, per_rack / per_host, peers->world / per_rack};
  for (unsigned i = 0; i < 3; i++) {
    if (levels[i] > 1) scheme->levels[scheme->plan.n_levels++] = levels[i];
  }
}

void zps_peer_tensor_destroy(struct zps_peer_tensor *scheme) {
  if (!scheme) return;
  if (scheme->scheme->close && scheme->state) scheme->scheme->close(scheme->state);
  free(scheme->hosts);
  free(scheme->masters);
  free(scheme);
}

/* Finds the masters, which push for their hosts; where all ranks are on one host there are none. */
static zps_err_t find_masters(struct zps_peer_tensor *scheme) {
  scheme->masters = calloc(scheme->plan.n, sizeof *scheme->masters);
  if (!scheme->masters) return ZPS_ERR_NOMEM;
  scheme->n_masters = zps_peer_masters(&scheme->plan, scheme->masters);
  return ZPS_OK;
}

zps_err_t zps_peer_tensor_create(const struct zps_scheme_ask *ask, const struct zps_join_peers *peers, uint32_t me,
                                 struct zps_peer_tensor **scheme_p, struct zps_error *error) {
  struct zps_peer_tensor *scheme = calloc(1, sizeof *scheme);
  uint32_t *hosts = calloc(peers->world, sizeof *hosts);
  zps_err_t err = ZPS_ERR_NOMEM;
  if (!scheme || !hosts) {
    free(scheme);
    free(hosts);
    return zps_fail(error, err, "no memory for scheme %s", ask->scheme->name);
  }
  number_hosts(peers, hosts);
  scheme->scheme = ask->scheme;
  scheme->hosts = hosts;
  memcpy(scheme->levels, ask->levels, sizeof scheme->levels);
  scheme->plan = ask->plan;
  scheme->plan.n = peers->world;
  scheme->plan.me = me;
  scheme->plan.levels = scheme->levels;
  scheme->plan.hosts = hosts;
  level_racks(peers, scheme);
  snprintf(scheme->name, sizeof scheme->name, "%s", ask->name);
  err = ask->between ? find_masters(scheme) : ZPS_OK;
  if (err == ZPS_OK && scheme->scheme->open) err = scheme->scheme->open(&scheme->plan, &scheme->state);
  if (err != ZPS_OK) {
    zps_peer_tensor_destroy(scheme);
    return zps_fail(error, err, "scheme %s cannot be made ready: %s", ask->scheme->name, zps_err_str(err));
  }
  *scheme_p = scheme;
  return ZPS_OK;
}
