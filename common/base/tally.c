#include "common/base/tally.h"

#include <string.h>

void zps_tally_time(struct zps_tally *tally, uint64_t ns) {
  const uint64_t took_ms = ns / 1000000 + (ns % 1000000 != 0);
#define COUNT(name, ms)  \
  if (took_ms <= (ms)) { \
    tally->name++;       \
    return;              \
  }
  ZPS_TALLY_TIMES(COUNT)
#undef COUNT
}

void zps_tally_add(struct zps_tally *tally, const struct zps_tally *more) {
#define ADD(name, ...) tally->name += more->name;
  ZPS_TALLY_COUNTERS(ADD)
  ZPS_TALLY_TIMES(ADD)
#undef ADD
  if (more->rounds == 0) return;
  tally->step = more->step;
  memcpy(tally->scheme, more->scheme, sizeof tally->scheme);
}

struct zps_tally zps_tally_growth(const struct zps_tally *now, const struct zps_tally *before) {
  struct zps_tally growth = *now;
#define SUBTRACT(name, ...) growth.name -= before->name;
  ZPS_TALLY_COUNTERS(SUBTRACT)
  ZPS_TALLY_TIMES(SUBTRACT)
#undef SUBTRACT
  return growth;
}

bool zps_tally_same(const struct zps_tally *a, const struct zps_tally *b) {
  return a->rounds == b->rounds && a->failed == b->failed; /* no other counter grows without one of them */
}
