/* What an endpoint of the data plane met, and went on. Each process counts its own, and tells them with its statistics
 * (`stats`, `job.stats` of proto/PROTOCOL.md). */
#ifndef ZPS_BASE_MISHAPS_H
#define ZPS_BASE_MISHAPS_H

#include <stdint.h>

/* Frames that did not decode; messages that no process of their job had sent; reads that did not bring what was
 * announced; connections that were lost or taken over, and made anew; messages that were sent again; those that came again;
 * those that came before others that were sent earlier. */
#define ZPS_MISHAPS(X) X(malformed) X(forged) X(corrupt) X(reconnects) X(resent) X(repeated) X(reordered)

struct zps_mishaps {
#define MEMBER(name) uint64_t name;
  ZPS_MISHAPS(MEMBER)
#undef MEMBER
};

#endif
