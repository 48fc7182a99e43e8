#include "worker/base/error.h"

#include <stdio.h>
#include <string.h>

static _Thread_local zenps_error_t last;

static void ZPS_PRINTF(3, 0) fill(zenps_error_t *detail, zps_err_t code, const char *fmt, va_list args) {
  memset(detail, 0, sizeof *detail);
  detail->status = (zenps_status_t)code;
  vsnprintf(detail->text, sizeof detail->text, fmt, args);
}

void zps_worker_detail(zenps_error_t *detail, zps_err_t code, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  fill(detail, code, fmt, args);
  va_end(args);
}

zenps_status_t zps_worker_fail(zps_err_t code, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  fill(&last, code, fmt, args);
  va_end(args);
  return last.status;
}

zenps_status_t zps_worker_raise(const struct zps_error *error) {
  zps_worker_detail(&last, error->code, "%s", error->text);
  return last.status;
}

zenps_status_t zps_worker_raise_detail(const zenps_error_t *detail) {
  last = *detail;
  return last.status;
}

const zenps_error_t *zenps_last_error(void) {
  return &last;
}

const char *zenps_strerror(zenps_status_t status) {
  return status == ZENPS_IN_PROGRESS ? "in progress" : zps_err_str((zps_err_t)status);
}
