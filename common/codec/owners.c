#include "common/codec/owners.h"

#include <assert.h>
#include <string.h>

#include "common/base/bisect.h"

struct living {
  uint32_t n, n_fewest; /* servers; those of them that have `fewest` partitions */
  uint32_t fewest;
  uint32_t positions[ZPS_OWNERS_SERVERS_MAX]; /* ascending */
  uint32_t n_owned[ZPS_OWNERS_SERVERS_MAX];   /* of each of them */
};

static void count_fewest(struct living *living) {
  living->fewest = UINT32_MAX;
  for (uint32_t i = 0; i < living->n; i++)
    if (living->n_owned[i] < living->fewest) living->fewest = living->n_owned[i];
  living->n_fewest = 0;
  for (uint32_t i = 0; i < living->n; i++) living->n_fewest += living->n_owned[i] == living->fewest;
}

static void find_living(struct living *living, const uint32_t *owners, uint32_t n_parts, uint32_t n_servers,
                        const bool *lost) {
  uint32_t n_owned[ZPS_OWNERS_SERVERS_MAX];
  memset(n_owned, 0, n_servers * sizeof n_owned[0]);
  for (uint32_t part = 0; part < n_parts; part++) n_owned[owners[part]]++;
  living->n = 0;
  for (uint32_t server = 0; server < n_servers; server++) {
    if (lost[server]) continue;
    living->positions[living->n] = server;
    living->n_owned[living->n++] = n_owned[server];
  }
  assert(living->n > 0);
  count_fewest(living);
}

/* The first of them at this position or above; the first of all where there is none. */
static uint32_t first_from(const struct living *living, uint32_t position) {
  uint32_t at = 0, end = living->n;
  zps_bisect(at, end, middle, living->positions[middle] < position);
  return at < living->n ? at : 0;
}

/* Gives it another partition: one of those with the fewest, from `at` on, around. */
static uint32_t take(struct living *living, uint32_t at) {
  if (living->n_fewest == 0) count_fewest(living);
  while (living->n_owned[at] > living->fewest) at = at + 1 < living->n ? at + 1 : 0;
  living->n_owned[at]++;
  living->n_fewest--;
  return at;
}

static void reassign(const uint32_t *owners, uint32_t n_parts, uint32_t n_began, uint32_t n_servers, const bool *lost,
                     uint32_t *reassigned) {
  struct living living;
  uint32_t next = 0; /* those ahead of it have more than `fewest` already */
  assert(n_servers <= ZPS_OWNERS_SERVERS_MAX && n_began > 0);
  find_living(&living, owners, n_parts, n_servers, lost);
  for (uint32_t part = 0; part < n_parts; part++) {
    const uint32_t owner = owners[part];
    reassigned[part] = owner;
    if (!lost[owner]) continue;
    if (living.n_fewest == 0) next = 0;
    const bool is_first = owner < n_began;
    const uint32_t at = take(&living, is_first ? next : first_from(&living, owner % n_began));
    if (is_first) next = at;
    reassigned[part] = living.positions[at];
  }
}

void zps_owners_reassign(const uint32_t *owners, uint32_t n_parts, bool is_whole, uint32_t n_began, uint32_t n_servers,
                         const bool *lost, uint32_t *reassigned) {
  reassign(owners, is_whole ? 1 : n_parts, n_began, n_servers, lost, reassigned);
  for (uint32_t part = 1; is_whole && part < n_parts; part++) reassigned[part] = reassigned[0];
}
