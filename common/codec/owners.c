#include "common/codec/owners.h"

#include <assert.h>
#include <string.h>

void zps_owners_reassign(const uint32_t *owners, uint32_t n_parts, uint32_t n_servers, const bool *lost,
                         uint32_t *reassigned) {
  uint32_t n_owned[ZPS_OWNERS_SERVERS_MAX], fewest = UINT32_MAX, next = 0;
  assert(n_servers <= ZPS_OWNERS_SERVERS_MAX);
  memset(n_owned, 0, n_servers * sizeof n_owned[0]);
  for (uint32_t part = 0; part < n_parts; part++) n_owned[owners[part]]++;
  for (uint32_t server = 0; server < n_servers; server++)
    if (!lost[server] && n_owned[server] < fewest) fewest = n_owned[server];
  assert(fewest < UINT32_MAX);
  for (uint32_t part = 0; part < n_parts; part++) {
    reassigned[part] = owners[part];
    if (!lost[owners[part]]) continue;
    /* Those ahead of `next` have more than `fewest` already. */
    while (lost[next] || n_owned[next] > fewest) {
      if (++next < n_servers) continue;
      next = 0;
      fewest++;
    }
    n_owned[next]++;
    reassigned[part] = next;
  }
}
