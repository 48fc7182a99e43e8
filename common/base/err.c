#include "common/base/err.h"

#include <stdio.h>
#include <string.h>

#include "common/base/text.h"

static const struct {
  zps_err_t code;
  bool retryable;
  const char *name, *text;
} codes[] = {
#define X(name, value, retry, text) {ZPS_##name, retry, #name, text},
    ZPS_ERR_MAP(X)
#undef X
};

enum { N_CODES = sizeof codes / sizeof codes[0] };

static int find(zps_err_t code) {
  for (int i = 0; i < N_CODES; i++)
    if (codes[i].code == code) return i;
  return -1;
}

const char *zps_err_str(zps_err_t code) {
  const int i = find(code);
  return i < 0 ? "unknown error" : codes[i].text;
}

const char *zps_err_name(zps_err_t code) {
  const int i = find(code);
  return i < 0 ? "ERR_?" : codes[i].name;
}

zps_err_t zps_err_from_name(const char *name) {
  for (int i = 0; name && i < N_CODES; i++)
    if (strcmp(codes[i].name, name) == 0) return codes[i].code;
  return ZPS_ERR_INTERNAL;
}

bool zps_err_retryable(zps_err_t code) {
  const int i = find(code);
  return i >= 0 && codes[i].retryable;
}

zps_err_t zps_vfail(struct zps_error *error, zps_err_t code, const char *fmt, va_list args) {
  if (error) {
    char text[sizeof error->text]; /* the arguments may point into error->text */
    vsnprintf(text, sizeof text, fmt, args);
    zps_text_sanitize(text, strlen(text)); /* it may quote a peer or a file, and will be logged and shown */
    memcpy(error->text, text, sizeof text);
    error->code = code;
  }
  return code;
}

zps_err_t zps_fail(struct zps_error *error, zps_err_t code, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  zps_vfail(error, code, fmt, args);
  va_end(args);
  return code;
}

zps_err_t zps_fail_errno(struct zps_error *error, zps_err_t code, int err_number, const char *fmt, ...) {
  if (!error) return code;
  char text[sizeof error->text];
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  return zps_fail(error, code, "%.400s: %s", text, strerror(err_number));
}
