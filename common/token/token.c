#include "common/token/token.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/base/secret.h"
#include "common/base/text.h"

#define WORD "zps1"
#define MAC_BYTES 32u
#define FILE_MAX 4096u

static void to_hex(const uint8_t *bytes, size_t n, char *text) {
  for (size_t i = 0; i < n; i++) snprintf(text + 2 * i, 3, "%02x", bytes[i]);
}

/* ------------------------------------------------------------ keys */

static zps_err_t read_line(const char *path, unsigned number, const char *line, struct zps_token_keys *keys,
                           struct zps_error *error) {
  if (line[0] == '\0' || line[0] == '#') return ZPS_OK;
  if (keys->n == ZPS_TOKEN_KEYS_MAX)
    return zps_fail(error, ZPS_ERR_INVALID, "key file %.300s: line %u is a key too many: must be %u at most", path,
                    number, ZPS_TOKEN_KEYS_MAX);
  if (strlen(line) != 2 * ZPS_TOKEN_KEY_BYTES || !zps_hex_read(line, keys->key[keys->n], ZPS_TOKEN_KEY_BYTES))
    return zps_fail(error, ZPS_ERR_INVALID,
                    "key file %.300s: line %u is no key: must be %u hexadecimal digits, as 'zenpsctl token key' makes "
                    "them",
                    path, number, 2 * ZPS_TOKEN_KEY_BYTES);
  keys->n++;
  return ZPS_OK;
}

zps_err_t zps_token_keys_read(const char *path, struct zps_token_keys *keys, struct zps_error *error) {
  char text[FILE_MAX];
  keys->n = 0;
  zps_err_t err = zps_private_read(path, "key file", text, sizeof text, error);
  unsigned number = 1;
  for (char *line = text; !err && *line; number++) {
    const size_t len = strcspn(line, "\n");
    const bool is_last = line[len] == '\0';
    line[len] = '\0';
    if (len > 0 && line[len - 1] == '\r') line[len - 1] = '\0';
    err = read_line(path, number, line, keys, error);
    line += is_last ? len : len + 1;
  }
  if (!err && keys->n == 0) err = zps_fail(error, ZPS_ERR_INVALID, "key file %.300s: has no key", path);
  if (err) OPENSSL_cleanse(keys, sizeof *keys);
  OPENSSL_cleanse(text, sizeof text);
  return err;
}

zps_err_t zps_token_key_create(const char *path, struct zps_error *error) {
  uint8_t key[ZPS_TOKEN_KEY_BYTES];
  char text[2 * ZPS_TOKEN_KEY_BYTES + 2];
  if (getrandom(key, sizeof key, 0) != (ssize_t)sizeof key)
    return zps_fail_errno(error, ZPS_ERR_UNSUPPORTED, errno, "getrandom() does not work, which keys come from");
  to_hex(key, sizeof key, text);
  memcpy(text + 2 * sizeof key, "\n", 2);
  const zps_err_t err = zps_private_create(path, "key file", text, error);
  OPENSSL_cleanse(key, sizeof key);
  OPENSSL_cleanse(text, sizeof text);
  return err;
}

/* ------------------------------------------------------------ tokens */

zps_err_t zps_token_parse(const char *text, struct zps_token *token, struct zps_error *error) {
  const char *const after = strncmp(text, WORD ".", sizeof WORD) == 0 ? text + sizeof WORD : "";
  const size_t digits = strspn(after, "0123456789");
  const char *const mac = after + digits + 1;
  const bool has_time = digits > 0 && digits < 19 && after[digits] == '.' && (after[0] != '0' || digits == 1);
  if (!has_time || strspn(mac, "0123456789abcdef") != 2 * MAC_BYTES || mac[2 * MAC_BYTES] != '.' ||
      !zps_hex_read(mac, token->mac, MAC_BYTES) ||
      zps_text_check_name("token: job", mac + 2 * MAC_BYTES + 1, ZPS_TOKEN_JOB_MAX, NULL) != ZPS_OK)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "this is no token: must be " WORD ".EXPIRES.MAC.JOB, as 'zenpsctl token make' prints it");
  token->expires_s = strtoull(after, NULL, 10);
  strcpy(token->job, mac + 2 * MAC_BYTES + 1);
  return ZPS_OK;
}

static bool mac_of(const uint8_t *key, const char *job, uint64_t expires_s, uint8_t mac[MAC_BYTES]) {
  char said[ZPS_TOKEN_SIZE];
  unsigned len = MAC_BYTES;
  const int n = snprintf(said, sizeof said, WORD ".%llu.%s", (unsigned long long)expires_s, job);
  return HMAC(EVP_sha256(), key, (int)ZPS_TOKEN_KEY_BYTES, (const unsigned char *)said, (size_t)n, mac, &len) != NULL;
}

zps_err_t zps_token_make(const struct zps_token_keys *keys, const char *job, uint64_t expires_s,
                         char text[ZPS_TOKEN_SIZE], struct zps_error *error) {
  uint8_t mac[MAC_BYTES];
  char hex[2 * MAC_BYTES + 1];
  const zps_err_t err = zps_text_check_name("token: job", job, ZPS_TOKEN_JOB_MAX, error);
  if (err != ZPS_OK) return err;
  if (keys->n == 0 || !mac_of(keys->key[0], job, expires_s, mac))
    return zps_fail(error, ZPS_ERR_INTERNAL, "HMAC-SHA256 does not work, by which tokens are made");
  to_hex(mac, sizeof mac, hex);
  snprintf(text, ZPS_TOKEN_SIZE, WORD ".%llu.%s.%s", (unsigned long long)expires_s, hex, job);
  return ZPS_OK;
}

static bool is_for(const char *pattern, const char *job) {
  const size_t len = strlen(pattern);
  return pattern[len - 1] == '*' ? strncmp(pattern, job, len - 1) == 0 : strcmp(pattern, job) == 0;
}

/* All keys are tried, whichever has made it. */
static bool is_made_by_one(const struct zps_token_keys *keys, const struct zps_token *token) {
  uint8_t mac[MAC_BYTES];
  bool found = false;
  for (unsigned i = 0; i < keys->n; i++)
    if (mac_of(keys->key[i], token->job, token->expires_s, mac) && CRYPTO_memcmp(mac, token->mac, MAC_BYTES) == 0)
      found = true;
  return found;
}

zps_err_t zps_token_check(const struct zps_token_keys *keys, const char *text, const char *job, uint64_t now_s,
                          struct zps_error *error) {
  struct zps_token token;
  if (keys->n == 0) return ZPS_OK;
  if (!text || !*text)
    return zps_fail(error, ZPS_ERR_REFUSED,
                    "job '%.128s' takes ranks with a token, and this one has none: ZENPS_TOKEN_FILE names a file with "
                    "one, which 'zenpsctl token make' writes",
                    job);
  if (zps_token_parse(text, &token, error)) {
    if (error) error->code = ZPS_ERR_REFUSED;
    return ZPS_ERR_REFUSED;
  }
  if (!is_made_by_one(keys, &token))
    return zps_fail(error, ZPS_ERR_REFUSED,
                    "job '%.128s': no key of the coordinator's has made this token (for '%.129s')", job, token.job);
  if (!is_for(token.job, job))
    return zps_fail(error, ZPS_ERR_REFUSED, "job '%.128s': this token lets into '%.129s' alone", job, token.job);
  if (token.expires_s && token.expires_s <= now_s)
    return zps_fail(error, ZPS_ERR_REFUSED, "job '%.128s': this token has expired %llu s ago", job,
                    (unsigned long long)(now_s - token.expires_s));
  return ZPS_OK;
}
