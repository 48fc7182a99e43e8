#include "common/base/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"

static const struct {
  zps_err_t code;
  const char *name, *text;
} codes[] = {
#define X(name, value, text) {ZPS_##name, #name, text},
    ZPS_ERR_MAP(X)
#undef X
};

enum { N_CODES = sizeof codes / sizeof codes[0], ERRNO_TEXT_MAX = 100 };

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

/* Of a text that is too long the middle goes: it mostly begins with a path or a name and ends with the cause. */
static void format(char *buf, size_t size, const char *fmt, va_list args) {
  static const char gap[] = " ... ";
  va_list again;
  va_copy(again, args);
  const int n = vsnprintf(buf, size, fmt, args);
  char *const all = n >= (int)size ? malloc((size_t)n + 1) : NULL;
  if (all) {
    const size_t head = (size - sizeof gap) / 2, tail = size - sizeof gap - head;
    vsnprintf(all, (size_t)n + 1, fmt, again);
    memcpy(buf + head, gap, sizeof gap - 1);
    memcpy(buf + head + sizeof gap - 1, all + (size_t)n - tail, tail + 1);
    free(all);
  }
  va_end(again);
}

zps_err_t zps_vfail(struct zps_error *error, zps_err_t code, const char *fmt, va_list args) {
  if (error) {
    char text[sizeof error->text]; /* the arguments may point into error->text */
    format(text, sizeof text, fmt, args);
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
  char text[sizeof error->text - ERRNO_TEXT_MAX];
  va_list args;
  va_start(args, fmt);
  format(text, sizeof text, fmt, args);
  va_end(args);
  return zps_fail(error, code, "%s: %s", text, strerror(err_number));
}
