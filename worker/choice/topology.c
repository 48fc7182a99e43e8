#include "worker/choice/topology.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/base/group.h"
#include "worker/schemes/common.h"

/* Where the rank at a position of the plan is. */
static const struct zps_join_peer *peer_at(const struct zps_join_peers *peers, const struct zps_peer_plan *plan,
                                           uint32_t position) {
  return &peers->ranks[zps_peer_rank(plan, position)];
}

/* Each position's place (a host, or a rack): the first position there. */
static void number_places(const struct zps_join_peers *peers, const struct zps_peer_plan *plan,
                          const char *(*name)(const struct zps_join_peer *peer), uint32_t *places) {
  for (uint32_t i = 0; i < plan->n; i++) {
    uint32_t first = 0;
    while (strcmp(name(peer_at(peers, plan, first)), name(peer_at(peers, plan, i))) != 0) first++;
    places[i] = first;
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

/* Whether position a comes before b when positions are sorted by rack, then host. */
static bool comes_before(const struct zps_peer_tensor *scheme, uint32_t a, uint32_t b) {
  const uint32_t *const racks = scheme->plan.racks, *const hosts = scheme->hosts;
  if (racks && racks[a] != racks[b]) return racks[a] < racks[b];
  return hosts[a] != hosts[b] ? hosts[a] < hosts[b] : a < b;
}

/* Levels that the caller gave, over positions sorted by rack and host: ranks of a level may have any numbers.
 * BlueConnect sorts them itself. The other schemes with levels take levels[0] ranks of that order for a host. */
static void place_levels(struct zps_peer_tensor *scheme) {
  const uint32_t n = scheme->plan.n;
  uint32_t *const sorted = scheme->hosts + n; /* numbers of such hosts */
  if (!spans_racks(scheme->hosts, scheme->racks, n)) scheme->plan.racks = scheme->racks;
  if (scheme->scheme == &zps_peer_blueconnect || scheme->plan.levels[0] == 0) return;
  for (uint32_t r = 0; r < n; r++) {
    uint32_t place = 0;
    for (uint32_t other = 0; other < n; other++) place += comes_before(scheme, other, r);
    sorted[r] = place / scheme->plan.levels[0];
  }
  memcpy(scheme->hosts, sorted, n * sizeof *sorted);
}

/* Racks of equally many hosts of equally many ranks make levels of their own, in whatever order the ranks are. */
static void level_racks(const struct zps_join_peers *peers, struct zps_peer_tensor *scheme) {
  const uint32_t n = scheme->plan.n;
  const uint32_t per_host = place_size(scheme->hosts, n), per_rack = place_size(scheme->racks, n);
  if (!peer_at(peers, &scheme->plan, 0)->rack[0] || per_host == 0 || per_rack == 0) return;
  if (per_rack == per_host || per_rack == n || spans_racks(scheme->hosts, scheme->racks, n)) return;
  const uint32_t levels[] = {per_host, per_rack / per_host, n / per_rack};
  for (unsigned i = 0; i < 3; i++) {
    if (levels[i] > 1) scheme->plan.levels[scheme->plan.n_levels++] = levels[i];
  }
  scheme->plan.racks = scheme->racks;
}

static void free_arrays(struct zps_peer_tensor *scheme) {
  free(scheme->hosts);
  free(scheme->near);
  free(scheme->racks);
  free(scheme->masters);
  free(scheme->ranks);
}

void zps_peer_tensor_destroy(struct zps_peer_tensor *scheme) {
  if (!scheme) return;
  if (scheme->scheme->close && scheme->state) scheme->scheme->close(scheme->state);
  free_arrays(scheme);
  free(scheme);
}

/* Finds the masters, which push for their hosts; where all ranks are on one host there are none. */
static zps_err_t find_masters(struct zps_peer_tensor *scheme) {
  scheme->masters = calloc(scheme->plan.n, sizeof *scheme->masters);
  if (!scheme->masters) return ZPS_ERR_NOMEM;
  scheme->n_masters = zps_peer_masters(&scheme->plan, scheme->masters);
  for (uint32_t i = 0; i < scheme->n_masters; i++)
    scheme->masters[i] = zps_peer_rank(&scheme->plan, scheme->masters[i]);
  return ZPS_OK;
}

/* The ranks that take part: all, or the group's. */
static void set_ranks(const struct zps_join_peers *peers, uint32_t me, const struct zenps_group *group,
                      struct zps_peer_tensor *scheme) {
  struct zps_peer_plan *plan = &scheme->plan;
  plan->n = group ? group->n_ranks : peers->world;
  plan->me = me;
  if (!group) return;
  memcpy(scheme->ranks, group->ranks, plan->n * sizeof *scheme->ranks);
  plan->ranks = scheme->ranks;
  for (plan->me = 0; scheme->ranks[plan->me] != me; plan->me++) continue;
}

zps_err_t zps_peer_tensor_create(const struct zps_scheme_ask *ask, const struct zps_join_peers *peers, uint32_t me,
                                 const struct zenps_group *group, struct zps_peer_tensor **scheme_p,
                                 struct zps_error *error) {
  struct zps_peer_tensor *scheme = calloc(1, sizeof *scheme);
  if (scheme) {
    scheme->hosts = calloc(peers->world, 2 * sizeof *scheme->hosts); /* the second half: room for place_levels() */
    scheme->racks = calloc(peers->world, sizeof *scheme->racks);
    scheme->ranks = calloc(peers->world, sizeof *scheme->ranks);
  }
  if (!scheme || !scheme->hosts || !scheme->racks || !scheme->ranks) {
    if (scheme) free_arrays(scheme);
    free(scheme);
    return zps_fail(error, ZPS_ERR_NOMEM, "no memory for scheme %s", ask->scheme->name);
  }
  scheme->scheme = ask->scheme;
  scheme->plan = ask->plan;
  set_ranks(peers, me, group, scheme);
  scheme->plan.hosts = scheme->hosts;
  number_places(peers, &scheme->plan, host_of, scheme->hosts);
  number_places(peers, &scheme->plan, rack_of, scheme->racks);
  if (scheme->plan.n_levels > 0) {
    place_levels(scheme);
  } else {
    level_racks(peers, scheme);
  }
  snprintf(scheme->name, sizeof scheme->name, "%s", ask->name);
  zps_err_t err = ask->between ? find_masters(scheme) : ZPS_OK;
  if (err == ZPS_OK && scheme->scheme->open) err = scheme->scheme->open(&scheme->plan, &scheme->state);
  if (err != ZPS_OK) {
    zps_peer_tensor_destroy(scheme);
    return zps_fail(error, err, "scheme %s cannot be made ready: %s", ask->scheme->name, zps_err_str(err));
  }
  *scheme_p = scheme;
  return ZPS_OK;
}
