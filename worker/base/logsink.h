/* The trainer's log callback. The log belongs to the process: of several connections that have a callback, the one that
 * opened last gets the lines, until it closes. */
#ifndef ZPS_WORKER_BASE_LOGSINK_H
#define ZPS_WORKER_BASE_LOGSINK_H

#include "worker/base/options.h"

/* `options` is borrowed until zps_worker_log_drop(). */
void zps_worker_log_take(const struct zps_worker_options *options);
void zps_worker_log_drop(const struct zps_worker_options *options);

#endif
