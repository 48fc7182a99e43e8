/* Faults that an endpoint of the data plane survives. Each process counts its own, and reports them with its statistics
 * (`stats`, `job.stats` of proto/PROTOCOL.md). */
#ifndef ZPS_BASE_MISHAPS_H
#define ZPS_BASE_MISHAPS_H

#include <stdint.h>

/*
 * malformed    frames without a valid form
 * forged       messages from no process of their job
 * corrupt      reads with the right bytes at the second attempt only
 * reconnects   lost connections, made anew
 * resent       messages sent again
 * repeated     messages received again
 * reordered    messages received too early
 */
#define ZPS_MISHAPS(X) X(malformed) X(forged) X(corrupt) X(reconnects) X(resent) X(repeated) X(reordered)

struct zps_mishaps {
#define MEMBER(name) uint64_t name;
  ZPS_MISHAPS(MEMBER)
#undef MEMBER
};

#endif
