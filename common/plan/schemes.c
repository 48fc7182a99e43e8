#include "common/plan/schemes.h"

#include <string.h>

static const char *const names[] = {ZPS_PLAN_SCHEME_NAME_LIST};
_Static_assert(sizeof names / sizeof names[0] == ZPS_PLAN_AUTO + 1, "one name per scheme");

const char *zps_plan_scheme_name(enum zps_plan_scheme scheme) {
  return (unsigned)scheme <= ZPS_PLAN_AUTO ? names[scheme] : "?";
}

bool zps_plan_scheme_parse(const char *name, enum zps_plan_scheme *scheme_p) {
  for (unsigned i = 0; i <= ZPS_PLAN_AUTO; i++) {
    if (strcmp(names[i], name) != 0) continue;
    *scheme_p = (enum zps_plan_scheme)i;
    return true;
  }
  return false;
}

bool zps_plan_scheme_lossy(enum zps_plan_scheme scheme) {
  return scheme >= ZPS_PLAN_OKTOPK && scheme <= ZPS_PLAN_GAUSSIANK;
}

bool zps_plan_scheme_dense(enum zps_plan_scheme scheme) {
  return scheme >= ZPS_PLAN_DENSE_PS && scheme <= ZPS_PLAN_BLUECONNECT;
}

bool zps_plan_scheme_served(enum zps_plan_scheme scheme) {
  switch (scheme) {
    case ZPS_PLAN_BALANCED:
    case ZPS_PLAN_OMNIREDUCE:
    case ZPS_PLAN_SPARSE_PS:
    case ZPS_PLAN_DENSE_PS:
    case ZPS_PLAN_HIERARCHICAL:
      return true;
    default:
      return false;
  }
}
