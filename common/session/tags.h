/*
 * The numbers that one end gives to its links, for the short headers of the frames that come in over them.
 *
 * A number is not given again before many others have been put back: a frame that comes late, after its link is gone,
 * must not be taken for one of the link that follows.
 */
#ifndef ZPS_SESSION_TAGS_H
#define ZPS_SESSION_TAGS_H

#include <stdint.h>

#include "common/base/err.h"

struct zps_tags {
  struct zps_tag_slot {
    void *owner;   /* NULL: free */
    uint32_t next; /* free: the one that was put back after it */
  } * slots;
  uint64_t cap;
  uint32_t n_slots;
  uint32_t free_first, free_last, n_free;
};

/* All zeros is an empty set. */
void zps_tags_fini(struct zps_tags *tags);
/* A number for `owner`, which is not NULL and is borrowed until the number is put back. */
zps_err_t zps_tags_get(struct zps_tags *tags, void *owner, uint32_t *tag_p) ZPS_MUSTCHECK;
void zps_tags_put(struct zps_tags *tags, uint32_t tag);
/* NULL: no number of these; a peer may have sent it. */
void *zps_tags_find(const struct zps_tags *tags, uint32_t tag);

#endif
