/*
 * Why the oldest partition of all is never locked out. Each job i has f(i) bytes of its oldest partition and v(i) of
 * all else; the oldest partition of all is left out. Half of its own are h(i); all h(i) add up to an eighth of the
 * limit. Take the sum over the jobs of max(f(i), h(i)) + max(v(i), h(i)):
 *
 * - a grant from its own leaves f(i) or v(i) within h(i), and the sum as it is;
 * - a grant in common is made where the sum is within half of the limit after it;
 * - what comes back makes the sum smaller or leaves it.
 *
 * So all f(i) and v(i) together are within half of the limit, and the oldest partition finds the other half, whatever
 * jobs come, wait, or never go on. Three things make the sum larger without a grant, and none what may be granted: a
 * partition that is summed leaves f(i), and its sum comes to v(i), until ranks have read it; when a round ends, the
 * job's next one is its oldest; when a job is opened, there are other h(i). That grants from its own stay within the
 * half even then is checked by itself.
 *
 * Why no job waits for ever: the oldest round ends, since it is served, or by its deadline; then another one is the
 * oldest. And a job whose partitions, with what all ranks push to one and its sum, fit into h(i), does not wait for
 * that: nobody else is granted h(i).
 */
#include "server/shard/share.h"

#include <stddef.h>

void zps_share_add(struct zps_share *share, struct zps_sharer *sharer, uint32_t weight, const uint64_t *used_bytes) {
  *sharer = (struct zps_sharer){.next = share->first, .used_bytes = used_bytes, .weight = weight};
  share->first = sharer;
  share->weights += weight;
}

void zps_share_remove(struct zps_share *share, struct zps_sharer *sharer) {
  struct zps_sharer **link = &share->first;
  while (*link && *link != sharer) link = &(*link)->next;
  if (!*link) return;
  *link = sharer->next;
  share->weights -= sharer->weight;
}

static uint64_t larger(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

/* h(i). Divided first, since the product may be too large. */
static uint64_t half_own(const struct zps_share *share, const struct zps_sharer *sharer) {
  return share->limit_bytes / 8 / share->weights * sharer->weight;
}

/* The oldest partition of all is another's. */
static uint64_t purse_of(const struct zps_share_request *request) {
  const struct zps_sharer *const sharer = request->sharer;
  return request->is_oldest ? sharer->oldest_bytes : *sharer->used_bytes - sharer->oldest_bytes;
}

bool zps_share_fits_own(const struct zps_share *share, const struct zps_share_request *request) {
  const uint64_t eldest_bytes = share->eldest ? share->eldest->oldest_bytes : 0;
  return purse_of(request) + request->len_bytes <= half_own(share, request->sharer) &&
         share->total_bytes - eldest_bytes + request->len_bytes <= share->limit_bytes / 2;
}

/* The sum with what closed jobs have. */
static uint64_t sum(const struct zps_share *share) {
  uint64_t open_bytes = 0, bytes = 0;
  for (const struct zps_sharer *sharer = share->first; sharer; sharer = sharer->next) {
    const uint64_t half = half_own(share, sharer);
    open_bytes += *sharer->used_bytes;
    bytes += larger(*sharer->used_bytes - sharer->oldest_bytes, half);
    bytes += sharer == share->eldest ? half : larger(sharer->oldest_bytes, half);
  }
  return bytes + share->total_bytes - open_bytes;
}

bool zps_share_fits_common(const struct zps_share *share, const struct zps_share_request *request) {
  const uint64_t half = half_own(share, request->sharer), has = purse_of(request);
  return sum(share) - larger(has, half) + larger(has + request->len_bytes, half) <= share->limit_bytes / 2;
}

/* All own together are at most a quarter of the limit. */
bool zps_share_may_fit(const struct zps_share *share, const struct zps_share_request *request) {
  const uint64_t half = half_own(share, request->sharer);
  return larger(purse_of(request) + request->len_bytes, half) - half <= share->limit_bytes / 4;
}

/* Bytes are less than 2^48, weights than 2^10. */
bool zps_share_is_before(const struct zps_sharer *a, const struct zps_sharer *b) {
  return *a->used_bytes * b->weight < *b->used_bytes * a->weight;
}
