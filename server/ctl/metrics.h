/* What a coordinator's answers say, as metrics in Prometheus' text format (version 0.0.4). */
#ifndef ZPS_SERVER_CTL_METRICS_H
#define ZPS_SERVER_CTL_METRICS_H

#include <stdio.h>

#include "common/control/json.h"

/* Borrowed. All but `scrape` are NULL while the coordinator does not answer. */
struct zps_ctl_metrics_answers {
  const zps_json *status, *members, *jobs, *stats; /* of the methods of these names; jobs with `all` */
  const zps_json *scrape;                          /* of zps_ctl_metrics_scrape() */
};

/* What the exporter itself knows of a scrape: an answer like the others. NULL: no memory. */
zps_json *zps_ctl_metrics_scrape(bool is_up, double seconds, uint64_t rows_left_out);
/* Prints every metric that the answers have a value of. ZPS_ERR_NOMEM. The stream's own errors are the caller's to look
 * for. */
zps_err_t zps_ctl_metrics_print(FILE *out, const struct zps_ctl_metrics_answers *answers) ZPS_MUSTCHECK;
/* Calls `each` for every metric there is, in the order of the table. `type` and `labels` are words as in the guide. */
void zps_ctl_metrics_each(void (*each)(void *ctx, const char *name, const char *type, const char *help), void *ctx);

#endif
