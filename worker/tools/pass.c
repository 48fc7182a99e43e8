#include "worker/tools/pass.h"

#include <stdio.h>
#include <string.h>

#include "common/base/secret.h"
#include "common/token/token.h"

zps_err_t zps_pass_make(const char *dir, const char *key_file, struct zps_pass *pass, struct zps_error *error) {
  struct zps_token_keys keys;
  char token[ZPS_TOKEN_SIZE];
  *pass = (struct zps_pass){.key_file = key_file};
  zps_err_t err = ZPS_OK;
  if (!key_file) {
    snprintf(pass->own_key, sizeof pass->own_key, "%s/key", dir);
    err = zps_token_key_create(pass->own_key, error);
    pass->key_file = pass->own_key;
  }
  if (!err) err = zps_token_keys_read(pass->key_file, &keys, error);
  if (!err) err = zps_token_make(&keys, "*", 0, token, error);
  if (err) return err;
  snprintf(pass->token, sizeof pass->token, "%s/token", dir);
  pass->token_file = pass->token;
  return zps_private_create(pass->token, "token file", token, error);
}
