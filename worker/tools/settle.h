/* Whether a tensor whose scheme is "auto" stays with one, by what its rounds ran under (zenps_request_stats()). All
 * ranks see the same schemes, so they come to the same end at the same round. */
#ifndef ZPS_TOOLS_SETTLE_H
#define ZPS_TOOLS_SETTLE_H

#include <stdbool.h>
#include <stdint.h>

enum { ZPS_SETTLE_ROUNDS = 28 }; /* under one scheme: auto has none run so often on end while it tries several */

struct zps_settle {
  const char *scheme; /* the last rounds' scheme; NULL: no round yet */
  uint64_t alike;     /* how many of them on end */
  double shortest_ms; /* of these */
};

enum zps_settle_verdict {
  ZPS_SETTLE_NOT,
  ZPS_SETTLE_IF_LONG, /* if rounds are long: ranks must agree about that, by the time of the slowest one */
  ZPS_SETTLED
};

/* A round is over. `scheme` is never freed. */
enum zps_settle_verdict zps_settle_round(struct zps_settle *settle, const char *scheme, double ms);
/* Whether rounds are long. `shortest_ms`: the shortest of them, on the slowest rank. */
bool zps_settle_is_long(double shortest_ms);

#endif
