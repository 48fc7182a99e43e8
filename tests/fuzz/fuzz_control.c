/* Takes arbitrary bytes for a line of the golden files: a message of the control plane and its name. A message that is
 * read must be written, and read and written again as the same text; a refusal must come with a sentence. */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "tests/support/control_again.h"

static char *text_of(zps_json *value) {
  char *const text = value ? zps_json_dump(value) : NULL;
  if (!text) abort();
  return text;
}

static void look(const char *name, const zps_json *body) {
  struct zps_error error = {.text = ""};
  zps_json *once, *twice;
  if (control_again(name, body, &once, &error) != ZPS_OK) {
    if (!error.text[0] || once) abort();
    return;
  }
  char *const first = text_of(once);
  if (control_again(name, once, &twice, &error) != ZPS_OK) abort();
  char *const second = text_of(twice);
  if (strcmp(first, second) != 0) abort();
  free(first);
  free(second);
  zps_json_unref(once);
  zps_json_unref(twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  zps_json *line;
  if (zps_json_parse((const char *)data, size, &line, NULL) != ZPS_OK) return 0;
  look(zps_json_opt_str(line, "message", ""), zps_json_get(line, "body"));
  zps_json_unref(line);
  return 0;
}
