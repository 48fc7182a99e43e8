#include "worker/choice/topology.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/schemes/parts.h"

/* Each rank's place (a host, or a rack): the first rank there. */
static void number_places(const struct zps_join_peers *peers, const char *(*name)(const struct zps_join_peer *peer),
                          uint32_t *places) {
  for (uint32_t r = 0; r < peers->world; r++) {
    uint32_t first = 0;
    while (strcmp(name(&peers->ranks[first]), name(&peers->ranks[r])) != 0) first++;
    places[r] = first;
  }
}

static const char *host_of(const struct zps_join_peer *peer) {
  return peer->host;
}

static const char *rack_of(const struct zps_join_peer *peer) {
  return peer->rack;
}

/* How many ranks each place has; 0: not all as many. */
static uint32_t place_size(const uint32_t *places, uint32_t n) {
  uint32_t size = 0;
  for (uint32_t first = 0; first < n; first++) {
    uint32_t here = 0;
    for (uint32_t r = 0; r < n && places[first] == first; r++) here += places[r] == first;
    if (here > 0 && size > 0 && here != size) return 0;
    if (here > 0) size = here;
  }
  return size;
}

static bool spans_racks(const uint32_t *hosts, const uint32_t *racks, uint32_t n) {
  for (uint32_t r = 0; r < n; r++)
    if (racks[r] != racks[hosts[r]]) return true;
  return false;
}

/* Racks of equally many hosts of equally many ranks make levels of their own, in whatever order the ranks are. */
static void level_racks(const struct zps_join_peers *peers, struct zps_peer_tensor *scheme) {
  const uint32_t n = peers->world;
  const uint32_t per_host = place_size(scheme->hosts, n), per_rack = place_size(scheme->racks, n);
  if (scheme->plan.n_levels > 0 || !peers->ranks[0].rack[0] || per_host == 0 || per_rack == 0) return;
  if (per_rack == per_host || per_rack == n || spans_racks(scheme->hosts, scheme->racks, n)) return;
  const uint32_t levels[] = {per_host, per_rack / per_host, n / per_rack};
  for (unsigned i = 0; i < 3; i++) {
    if (levels[i] > 1) scheme->levels[scheme->plan.n_levels++] = levels[i];
  }
  scheme->plan.racks = scheme->racks;
}

void zps_peer_tensor_destroy(struct zps_peer_tensor *scheme) {
  if (!scheme) return;
  if (scheme->scheme->close && scheme->state) scheme->scheme->close(scheme->state);
  free(scheme->hosts);
  free(scheme->near);
  free(scheme->racks);
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
  uint32_t *hosts = calloc(peers->world, sizeof *hosts), *racks = calloc(peers->world, sizeof *racks);
  zps_err_t err = ZPS_ERR_NOMEM;
  if (!scheme || !hosts || !racks) {
    free(scheme);
    free(hosts);
    free(racks);
    return zps_fail(error, err, "no memory for scheme %s", ask->scheme->name);
  }
  number_places(peers, host_of, hosts);
  number_places(peers, rack_of, racks);
  scheme->scheme = ask->scheme;
  scheme->hosts = hosts;
  scheme->racks = racks;
  memcpy(scheme->levels, ask->levels, sizeof scheme->levels);
  memcpy(scheme->algorithms, ask->algorithms, sizeof scheme->algorithms);
  scheme->plan = ask->plan;
  scheme->plan.n = peers->world;
  scheme->plan.me = me;
  scheme->plan.levels = scheme->levels;
  scheme->plan.algorithms = ask->plan.algorithms ? scheme->algorithms : NULL;
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
