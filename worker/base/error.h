/* From zps_err_t and struct zps_error to what the trainer sees: zenps_error_t, per thread and per request. */
#ifndef ZPS_WORKER_BASE_ERROR_H
#define ZPS_WORKER_BASE_ERROR_H

#include "common/base/err.h"
#include "zenps/zenps.h"

/* Each records the calling thread's last error and returns its status, so that `return zps_worker_fail(...)` reads
 * well. */
zenps_status_t zps_worker_fail(zps_err_t code, const char *fmt, ...) ZPS_PRINTF(2, 3);
zenps_status_t zps_worker_raise(const struct zps_error *error);
zenps_status_t zps_worker_raise_detail(const zenps_error_t *detail);

/* Fills `detail` from scratch. */
void zps_worker_detail(zenps_error_t *detail, zps_err_t code, const char *fmt, ...) ZPS_PRINTF(3, 4);

#endif
