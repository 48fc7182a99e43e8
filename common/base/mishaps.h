/* What an endpoint of the data plane met, and went on. Each process counts its own, and tells them with its statistics
 * (`stats`, `job.stats` of proto/PROTOCOL.md). */
#ifndef ZPS_BASE_MISHAPS_H
#define ZPS_BASE_MISHAPS_H

#include <stdint.h>

/* malformed: frames that did not decode. forged: messages that no process of their job had sent. corrupt: reads that were
 * right at the second attempt only. reconnects: lost connections that were made anew. resent: messages that were sent
 * again. repeated: messages that came again. reordered: messages that came too early. */
#define ZPS_MISHAPS(X) X(malformed) X(forged) X(corrupt) X(reconnects) X(resent) X(repeated) X(reordered)

struct zps_mishaps {
#define MEMBER(name) uint64_t name;
  ZPS_MISHAPS(MEMBER)
#undef MEMBER
};

#endif
