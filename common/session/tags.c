#include "common/session/tags.h"

#include <stdlib.h>

#include "common/base/enlarge.h"

enum { FREE_KEPT = 64 }; /* numbers that rest at least */

void zps_tags_fini(struct zps_tags *tags) {
  free(tags->slots);
  *tags = (struct zps_tags){0};
}

zps_err_t zps_tags_get(struct zps_tags *tags, void *owner, uint32_t *tag_p) {
  uint32_t tag = tags->n_slots;
  if (tags->n_free > FREE_KEPT) {
    tag = tags->free_first;
    tags->free_first = tags->slots[tag].next;
    tags->n_free--;
  } else {
    if (!zps_enlarge_for_one(&tags->slots, &tags->cap, tags->n_slots, 16, sizeof *tags->slots)) return ZPS_ERR_NOMEM;
    tags->n_slots++;
  }
  tags->slots[tag] = (struct zps_tag_slot){.owner = owner};
  *tag_p = tag;
  return ZPS_OK;
}

void zps_tags_put(struct zps_tags *tags, uint32_t tag) {
  tags->slots[tag].owner = NULL;
  *(tags->n_free++ ? &tags->slots[tags->free_last].next : &tags->free_first) = tag;
  tags->free_last = tag;
}

void *zps_tags_find(const struct zps_tags *tags, uint32_t tag) {
  return tag < tags->n_slots ? tags->slots[tag].owner : NULL;
}
