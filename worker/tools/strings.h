/* A short list of formatted strings, for the arguments and the environment of a process. */
#ifndef ZPS_TOOLS_STRINGS_H
#define ZPS_TOOLS_STRINGS_H

#include <stdbool.h>

#include "common/base/err.h"

enum { ZPS_STRINGS_MAX = 20 };

struct zps_strings {
  char *items[ZPS_STRINGS_MAX + 1]; /* NULL-terminated */
  unsigned n;
  bool failed; /* memory was short for one of them */
};

ZPS_PRINTF(2, 3) void zps_strings_add(struct zps_strings *strings, const char *fmt, ...);
void zps_strings_fini(struct zps_strings *strings);

#endif
