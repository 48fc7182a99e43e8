/*
 * How jobs share the memory of a server, by weight. Half of the limit is kept for the oldest partition of all, which
 * may use the rest as well. Of the other half, one half is divided among the jobs that are open, by weight, and kept
 * for them while they do not use it: of each job's own, half is for its oldest partition, half for all else that it
 * has. What is left is common: the job with the least by weight is served from it first.
 *
 * Pure: what a job has is read here, and nothing is taken.
 */
#ifndef ZPS_SERVER_SHARD_SHARE_H
#define ZPS_SERVER_SHARD_SHARE_H

#include <stdbool.h>
#include <stdint.h>

/* A job; embedded. */
struct zps_sharer {
  struct zps_sharer *next;
  const uint64_t *used_bytes; /* what it has; */
  uint64_t oldest_bytes;      /* and of that its oldest partition, as the owner of this says before it asks */
  uint32_t weight;            /* 1 to ZPS_FAIR_WEIGHT_MAX */
  uint64_t passed;            /* the owner's: the walk along the line in which a request of its was passed */
};

struct zps_share {
  uint64_t limit_bytes;
  struct zps_sharer *first;
  uint64_t weights; /* of all */
  /* To be set before it is asked: */
  uint64_t total_bytes;            /* that are in use, with those of jobs that are not open any more */
  const struct zps_sharer *eldest; /* whose oldest partition is the oldest of all, and not counted; NULL: nobody's */
};

struct zps_share_request {
  const struct zps_sharer *sharer; /* not for the oldest partition of all */
  bool is_oldest;                  /* for its oldest partition */
  uint64_t len_bytes;              /* that will be used */
};

/* `used_bytes` is borrowed until the sharer is removed. */
void zps_share_add(struct zps_share *share, struct zps_sharer *sharer, uint32_t weight, const uint64_t *used_bytes);
/* A sharer that was not added is left alone. */
void zps_share_remove(struct zps_share *share, struct zps_sharer *sharer);
/* Whether it is within the sharer's own, and there. */
bool zps_share_fits_own(const struct zps_share *share, const struct zps_share_request *request);
/* Whether it is there, without what is others' own. */
bool zps_share_fits_common(const struct zps_share *share, const struct zps_share_request *request);
/* Whether it may be there when others give theirs back. */
bool zps_share_may_fit(const struct zps_share *share, const struct zps_share_request *request);
/* Whether `a` has less by weight than `b`. */
bool zps_share_is_before(const struct zps_sharer *a, const struct zps_sharer *b);

#endif
