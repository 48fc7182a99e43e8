/* Takes arbitrary bytes for a token, with one of our key's among them: none that was not made with the key lets in, and
 * what can be parsed has one form. */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "common/token/token.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const struct zps_token_keys keys = {.n = 2, .key = {{1}, {2}}};
  char text[ZPS_TOKEN_SIZE], again[ZPS_TOKEN_SIZE];
  struct zps_token token;
  struct zps_error error = {.text = ""};
  if (size >= sizeof text || memchr(data, 0, size)) return 0;
  memcpy(text, data, size);
  text[size] = '\0';
  const zps_err_t checked = zps_token_check(&keys, text, "train", 1000, &error);
  if (checked != ZPS_OK && (checked != ZPS_ERR_REFUSED || !error.text[0])) abort();
  if (zps_token_parse(text, &token, &error) != ZPS_OK) {
    if (checked == ZPS_OK || !error.text[0]) abort();
    return 0;
  }
  if (zps_token_make(&keys, token.job, token.expires_s, again, NULL) != ZPS_OK || strlen(again) != size) abort();
  if (checked == ZPS_OK && strcmp(again, text) != 0) { /* by the second key, then */
    struct zps_token_keys second = {.n = 1};
    memcpy(second.key[0], keys.key[1], sizeof second.key[0]);
    if (zps_token_make(&second, token.job, token.expires_s, again, NULL) != ZPS_OK || strcmp(again, text) != 0) abort();
  }
  return 0;
}
