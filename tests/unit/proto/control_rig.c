#include "tests/unit/proto/control_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

unsigned control_golden(const char *name, void (*each)(const char *line, const char *message, const zps_json *body)) {
  const char *top = getenv("ZPS_TOP_SRCDIR");
  char path[1024], line[CONTROL_LINE_MAX];
  unsigned n = 0;
  snprintf(path, sizeof path, "%s/proto/golden/control/%s.jsonl", top ? top : ".", name);
  FILE *file = fopen(path, "r");
  if (!file) fail_msg("cannot open %s", path);
  for (; fgets(line, sizeof line, file); n++) {
    struct zps_error error;
    zps_json *value;
    line[strcspn(line, "\n")] = '\0';
    if (zps_json_parse(line, strlen(line), &value, &error) != ZPS_OK) fail_msg("%s: %s", path, error.text);
    each(line, zps_json_opt_str(value, "message", ""), zps_json_get(value, "body"));
    zps_json_unref(value);
  }
  fclose(file);
  return n;
}
