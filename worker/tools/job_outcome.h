/* What has become of the jobs of a run, as its coordinator knows it: asked when a server has ended. */
#ifndef ZPS_TOOLS_JOB_OUTCOME_H
#define ZPS_TOOLS_JOB_OUTCOME_H

#include <stdbool.h>

#include "common/control/json.h"
#include "common/tls/tls.h"

struct zps_fate {
  bool has_failed; /* the job that is under way, or the last one where none is */
  char text[600];  /* "job 'j' goes on with 2 servers"; of one that has failed, why */
};

/* Of the answer to the method jobs, with all. */
void zps_fate_read(const zps_json *jobs, struct zps_fate *fate);
/* Asks, over TLS where `tls` is not NULL. A coordinator that does not answer is what the text says then. */
void zps_fate_ask(const char *coordinator, struct zps_tls *tls, struct zps_fate *fate);

#endif
