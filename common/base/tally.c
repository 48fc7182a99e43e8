#include "common/base/tally.h"

#include <string.h>

void zps_tally_add(struct zps_tally *tally, const struct zps_tally *more) {
#define ADD(name) tally->name += more->name;
  ZPS_TALLY_COUNTERS(ADD)
#undef ADD
  if (more->rounds == 0) return;
  tally->step = more->step;
  memcpy(tally->scheme, more->scheme, sizeof tally->scheme);
}

struct zps_tally zps_tally_growth(const struct zps_tally *now, const struct zps_tally *before) {
  struct zps_tally growth = *now;
#define SUBTRACT(name) growth.name -= before->name;
  ZPS_TALLY_COUNTERS(SUBTRACT)
#undef SUBTRACT
  return growth;
}

bool zps_tally_same(const struct zps_tally *a, const struct zps_tally *b) {
  return a->rounds == b->rounds && a->failed == b->failed; /* no other counter grows without one of them */
}
