/* The trainer's log callback. The log belongs to the process: of several connections that have a callback, the one that
 * gave it last gets the lines, until it takes it back. A thread of its own calls it, so that a callback which blocks
 * costs lines, which are counted, and no round. */
#ifndef ZPS_WORKER_BASE_LOGSINK_H
#define ZPS_WORKER_BASE_LOGSINK_H

#include "worker/base/options.h"

/* `holder` tells connections apart. It gets the lines from here on, in place of whoever had them. An earlier callback
 * has had all its lines when this returns. */
void zps_worker_log_take(const void *holder, zenps_log_fn log, void *ctx);
/* To stderr again, where the holder has them. Its callback has had all its lines when this returns. */
void zps_worker_log_drop(const void *holder);

#endif
