/* What becomes of a message that has come: the link that it is of is found and asked whether it vouches for it, its
 * frames are decoded and handed over. Whatever strangers send ends here. */
#ifndef ZPS_SESSION_RECEIVE_H
#define ZPS_SESSION_RECEIVE_H

#include "common/session/engine.h"

struct zps_receiver {
  const struct zps_engine_handler *handler; /* find_link and on_frame; borrowed */
  _Atomic uint64_t malformed, forged;       /* counts of zps_engine_mishaps() */
};

/* The handler's on_frame may destroy links, also the message's own. */
void zps_receive(struct zps_receiver *receiver, const void *data, size_t len);

#endif
