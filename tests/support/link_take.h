/* A link that a test drives by hand: what becomes of a message that came for it, as common/session/receive.c has it. */
#ifndef ZPS_TESTS_LINK_TAKE_H
#define ZPS_TESTS_LINK_TAKE_H

#include <stdlib.h>

#include "common/session/early.h"
#include "common/session/link.h"

/* Calls `on_due` with each message whose frames are due, and returns what the link says of this one; ZPS_LINK_FORGED
 * also where it is none. */
static inline enum zps_link_verdict link_take(struct zps_link *link, const void *data, size_t len,
                                              void (*on_due)(void *ctx, const void *data, size_t len), void *ctx) {
  struct zps_wire_frames frames;
  const void *first;
  size_t first_len;
  struct zps_frame_header header;
  struct zps_frame frame;
  zps_wire_frames_begin(&frames, data, len);
  if (zps_wire_frames_next(&frames, &first, &first_len, NULL) != ZPS_OK ||
      zps_wire_header(first, first_len, &header, NULL) != ZPS_OK)
    return ZPS_LINK_FORGED;
  const enum zps_link_verdict verdict = zps_link_take(link, &header, data, len);
  if (verdict == ZPS_LINK_RESUMES && zps_wire_decode(first, first_len, &frame, NULL) == ZPS_OK)
    zps_link_resume(link, &frame);
  if (verdict != ZPS_LINK_READY) return verdict;
  on_due(ctx, data, len);
  for (struct zps_early_message *early; (early = zps_link_take_early(link)) != NULL; free(early))
    on_due(ctx, early->bytes, early->len);
  return verdict;
}

#endif
