/* What is wrong, found in a coordinator's answers. */
#ifndef ZPS_SERVER_CTL_WHY_H
#define ZPS_SERVER_CTL_WHY_H

#include <time.h>

#include "common/control/json.h"

/* Borrowed. */
struct zps_ctl_why_answers {
  const zps_json *status, *members, *jobs; /* of the methods of these names; jobs with `all` */
  const zps_json *before, *now;            /* `stats`, twice */
  double seconds;                          /* in between */
  time_t now_s;
};

/* The findings about one job, or with NULL about all and the cluster: {"state": "ok"|"warning"|"critical", "findings":
 * [{"grade", "evidence", "remedy"}], "left_out"}. The worst comes first; 10 at most. NULL: no memory. */
zps_json *zps_ctl_why(const struct zps_ctl_why_answers *answers, const char *job);

#endif
