/*
 * The messages that came over a link before others that its peer sent earlier. Fabrics may complete messages out of
 * order, and a frame that is sent again may come behind later ones. They wait here for their turn.
 *
 * At most so many as there are credits for frames. Pure.
 */
#ifndef ZPS_SESSION_EARLY_H
#define ZPS_SESSION_EARLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ZPS_EARLY_MAX 33u

struct zps_early_message {
  uint64_t seq; /* of its first frame */
  size_t len;
  uint8_t bytes[]; /* with the MAC */
};

/* Zeroed, it is empty. */
struct zps_early {
  struct zps_early_message *messages[ZPS_EARLY_MAX]; /* by sequence number */
  unsigned n;
};

void zps_early_fini(struct zps_early *early);
/* Copies a message whose first frame is `seq`, at most ZPS_EARLY_MAX - 1 behind the one that is expected. False: it is
 * here already, or there is no memory, and its sender will send it again. */
bool zps_early_put(struct zps_early *early, uint64_t seq, const void *bytes, size_t len);
/* Bit i: the message whose first frame is expects + 1 + i is here. */
uint32_t zps_early_bits(const struct zps_early *early, uint64_t expects);
/* The message whose first frame is `seq`, for the caller to free; NULL: it has not come. */
struct zps_early_message *zps_early_take(struct zps_early *early, uint64_t seq);

#endif
