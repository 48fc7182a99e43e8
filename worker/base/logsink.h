/* The trainer's log callback. The log belongs to the process: of several connections that have a callback, the one that
 * gave it last gets the lines, until it takes it back. */
#ifndef ZPS_WORKER_BASE_LOGSINK_H
#define ZPS_WORKER_BASE_LOGSINK_H

#include "worker/base/options.h"

/* `holder` tells connections apart. It gets the lines from here on, in place of whoever had them; no call of an earlier
 * callback is under way when this returns. */
void zps_worker_log_take(const void *holder, zenps_log_fn log, void *ctx);
/* To stderr again, where the holder has them. No call of its callback is under way when this returns, or will be. */
void zps_worker_log_drop(const void *holder);

#endif
