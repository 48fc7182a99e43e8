#include "worker/tools/strings.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void zps_strings_add(struct zps_strings *strings, const char *fmt, ...) {
  va_list args;
  assert(strings->n < ZPS_STRINGS_MAX);
  va_start(args, fmt);
  if (vasprintf(&strings->items[strings->n], fmt, args) >= 0) {
    strings->n++;
  } else {
    strings->failed = true;
  }
  va_end(args);
  strings->items[strings->n] = NULL;
}

void zps_strings_fini(struct zps_strings *strings) {
  for (unsigned i = 0; i < strings->n; i++) free(strings->items[i]);
  strings->n = 0;
}
