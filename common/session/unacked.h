/*
 * The messages that one end of a link has sent and the other has not confirmed. Lost ones leave again, byte for byte,
 * so that each keeps its sequence numbers and its MAC.
 *
 * A message is here before it leaves: messages that the fabric does not take now wait here, in order. Pure.
 */
#ifndef ZPS_SESSION_UNACKED_H
#define ZPS_SESSION_UNACKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

#define ZPS_UNACKED_MAX 33u /* one for each credit for a frame */

struct zps_unacked_message {
  uint64_t seq;      /* of its first frame */
  unsigned n_frames; /* at least one */
  bool has_left;     /* it has left, and nobody has reported it lost */
  size_t len, cap;
  uint8_t *bytes; /* with the MAC */
};

/* Zeroed, it is empty. Its buffers are kept for the next messages. */
struct zps_unacked {
  struct zps_unacked_message messages[ZPS_UNACKED_MAX]; /* a ring */
  unsigned first, n;
  unsigned next; /* to leave, counted from the first; n: all have left */
};

void zps_unacked_fini(struct zps_unacked *unacked);
/* Copies a message. There must be room: fewer than ZPS_UNACKED_MAX are here. */
zps_err_t zps_unacked_add(struct zps_unacked *unacked, uint64_t seq, unsigned n_frames, const void *bytes,
                          size_t len) ZPS_MUSTCHECK;
/* The other end has all frames before `seq`: their messages are dropped. */
void zps_unacked_confirm(struct zps_unacked *unacked, uint64_t seq);
/* The next message to leave, borrowed until the next call; NULL: all have left. */
const struct zps_unacked_message *zps_unacked_next(const struct zps_unacked *unacked);
/* That message has left. */
void zps_unacked_sent(struct zps_unacked *unacked);
/* The first frame that is not confirmed; `none` where all are. */
uint64_t zps_unacked_oldest(const struct zps_unacked *unacked, uint64_t none);
/* Whether a message begins with the frame `seq`. */
bool zps_unacked_begins(const struct zps_unacked *unacked, uint64_t seq);
/* The other end has all frames before `expects`, and the messages that begin with expects + 1 + i for the bits i of
 * `early`. Other messages that had left, and begin before `until`, are lost: they leave again. Returns their number. */
unsigned zps_unacked_lose(struct zps_unacked *unacked, uint64_t expects, uint32_t early, uint64_t until);

#endif
