#include "server/state/etcd_wire.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/evp.h>

#include "common/base/text.h"

/* ------------------------------------------------------------ base64 */

char *zps_etcd_base64(const char *data, size_t len) {
  char *const text = len < INT_MAX / 2 ? malloc((len + 2) / 3 * 4 + 1) : NULL;
  if (text) EVP_EncodeBlock((unsigned char *)text, (const unsigned char *)data, (int)len);
  return text;
}

/* EVP_DecodeBlock() skips blanks, takes padding anywhere, and ignores left-over bits: the result must encode to the
 * same text again. */
char *zps_etcd_unbase64(const char *text, size_t *len_p) {
  const size_t size = strlen(text);
  const size_t padding = size < 2 ? 0 : (text[size - 1] == '=') + (text[size - 1] == '=' && text[size - 2] == '=');
  char *const data = size < INT_MAX ? malloc(size / 4 * 3 + 1) : NULL, *again = NULL;
  const bool is_decoded =
      data && size % 4 == 0 && EVP_DecodeBlock((unsigned char *)data, (const unsigned char *)text, (int)size) >= 0;
  const size_t len = is_decoded ? size / 4 * 3 - padding : 0;
  if (is_decoded) again = zps_etcd_base64(data, len);
  const bool is_short = !data || (is_decoded && !again);
  const bool is_same = again && strcmp(again, text) == 0;
  free(again);
  if (!is_same) {
    free(data);
    *len_p = is_short ? 0 : SIZE_MAX;
    return NULL;
  }
  data[len] = '\0';
  *len_p = len;
  return data;
}

/* ------------------------------------------------------------ requests */

static zps_json *set_data(zps_json *object, const char *name, const char *data, size_t len) {
  char *const text = zps_etcd_base64(data, len);
  if (text) {
    object = zps_json_set_str(object, name, text);
  } else {
    zps_json_unref(object);
    object = NULL;
  }
  free(text);
  return object;
}

static zps_json *set_number(zps_json *object, const char *name, uint64_t value) {
  char text[24];
  snprintf(text, sizeof text, "%" PRIu64, value);
  return zps_json_set_str(object, name, text);
}

/* {"key": ...}, which can be extended; `end` NULL: that key alone, else all keys from `key` on below `end`. */
static zps_json *key_of(const char *key, const char *end) {
  zps_json *object = set_data(zps_json_object(), "key", key, strlen(key));
  return end ? set_data(object, "range_end", end, strlen(end)) : object;
}

zps_json *zps_etcd_range_write(const char *key, const char *end, uint64_t limit, bool keys_only) {
  zps_json *range = set_number(key_of(key, end), "limit", limit);
  return keys_only ? zps_json_set_bool(range, "keys_only", true) : range;
}

zps_json *zps_etcd_created_is(const char *key, uint64_t revision) {
  zps_json *compare = zps_json_set_str(key_of(key, NULL), "target", "CREATE");
  return set_number(zps_json_set_str(compare, "result", "EQUAL"), "create_revision", revision);
}

zps_json *zps_etcd_put(const char *key, const char *value, size_t len, uint64_t lease) {
  zps_json *put = set_data(key_of(key, NULL), "value", value, len);
  if (lease) put = set_number(put, "lease", lease);
  return zps_json_set(zps_json_object(), "request_put", put);
}

zps_json *zps_etcd_get(const char *key) {
  return zps_json_set(zps_json_object(), "request_range", key_of(key, NULL));
}

zps_json *zps_etcd_delete(const char *key, const char *end) {
  return zps_json_set(zps_json_object(), "request_delete_range", key_of(key, end));
}

zps_json *zps_etcd_txn_write(zps_json *compare, zps_json *success, zps_json *failure) {
  zps_json *txn = zps_json_set(zps_json_object(), "compare", compare);
  return zps_json_set(zps_json_set(txn, "success", success), "failure", failure);
}

zps_json *zps_etcd_grant_write(uint64_t ttl_s) {
  return set_number(zps_json_object(), "TTL", ttl_s);
}

zps_json *zps_etcd_lease_write(uint64_t lease) {
  return set_number(zps_json_object(), "ID", lease);
}

/* ------------------------------------------------------------ answers */

/* A decimal number in a string; a member that is not there is 0. */
static zps_err_t get_number(const zps_json *object, const char *name, uint64_t *value_p, struct zps_error *error) {
  const char *text;
  char *end;
  *value_p = 0;
  if (!zps_json_get(object, name)) return ZPS_OK;
  const zps_err_t err = zps_json_get_str(object, name, &text, error);
  if (err) return err;
  const bool is_digits = *text && text[strspn(text, "0123456789")] == '\0' && strlen(text) < 20;
  if (!is_digits) return zps_fail(error, ZPS_ERR_PROTOCOL, "member '%s' is '%.40s', want a number", name, text);
  *value_p = strtoull(text, &end, 10);
  return ZPS_OK;
}

static zps_err_t get_data(const zps_json *object, const char *name, char **data_p, size_t *len_p,
                          struct zps_error *error) {
  const char *text = "";
  zps_err_t err = zps_json_get(object, name) ? zps_json_get_str(object, name, &text, error) : ZPS_OK;
  if (err) return err;
  *data_p = zps_etcd_unbase64(text, len_p);
  if (*data_p) return ZPS_OK;
  return *len_p ? zps_fail(error, ZPS_ERR_PROTOCOL, "member '%s' is no base64", name)
                : zps_fail(error, ZPS_ERR_NOMEM, "no memory for member '%s'", name);
}

void zps_etcd_range_fini(struct zps_etcd_range *range) {
  for (size_t i = 0; i < range->n; i++) {
    free(range->kvs[i].key);
    free(range->kvs[i].value);
  }
  free(range->kvs);
  *range = (struct zps_etcd_range){.n = 0};
}

static zps_err_t read_kv(const zps_json *from, struct zps_etcd_kv *kv, struct zps_error *error) {
  size_t key_len;
  zps_err_t err = get_data(from, "key", &kv->key, &key_len, error);
  if (!err) err = get_data(from, "value", &kv->value, &kv->len, error);
  if (!err) err = get_number(from, "create_revision", &kv->created, error);
  return err ? err : get_number(from, "lease", &kv->lease, error);
}

zps_err_t zps_etcd_range_read(const zps_json *answer, struct zps_etcd_range *range_p, struct zps_error *error) {
  const zps_json *kvs = NULL;
  zps_err_t err = ZPS_OK;
  if (!zps_json_is_object(zps_json_get(answer, "header")))
    return zps_fail(error, ZPS_ERR_PROTOCOL, "an answer without a header: is it etcd's?");
  if (zps_json_get(answer, "kvs")) err = zps_json_get_array(answer, "kvs", &kvs, error);
  if (err) return err;
  const size_t n = zps_json_array_len(kvs);
  struct zps_etcd_range range = {.more = zps_json_opt_bool(answer, "more", false)};
  range.kvs = calloc(n + 1, sizeof *range.kvs);
  if (!range.kvs) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for %zu keys", n);
  for (size_t i = 0; i < n && !err; i++) {
    range.n++;
    err = read_kv(zps_json_at(kvs, i), &range.kvs[i], error);
  }
  if (err) {
    zps_etcd_range_fini(&range);
    return err;
  }
  *range_p = range;
  return ZPS_OK;
}

zps_err_t zps_etcd_txn_read(const zps_json *answer, struct zps_etcd_outcome *outcome_p, struct zps_etcd_range *found,
                            unsigned n_max, struct zps_error *error) {
  const zps_json *const header = zps_json_get(answer, "header"), *const responses = zps_json_get(answer, "responses");
  struct zps_etcd_outcome outcome = {.succeeded = zps_json_opt_bool(answer, "succeeded", false)};
  zps_err_t err = get_number(header, "revision", &outcome.revision, error);
  if (!err && outcome.revision == 0)
    err = zps_fail(error, ZPS_ERR_PROTOCOL, "an answer without a revision: is it etcd's?");
  unsigned n = 0;
  for (size_t i = 0; i < zps_json_array_len(responses) && !err; i++) {
    const zps_json *const range = zps_json_get(zps_json_at(responses, i), "response_range");
    if (!range || n == n_max) continue;
    err = zps_etcd_range_read(range, &found[n], error);
    if (!err) n++;
  }
  for (unsigned i = 0; i < n && err; i++) zps_etcd_range_fini(&found[i]);
  if (err) return err;
  for (unsigned i = n; i < n_max; i++) found[i] = (struct zps_etcd_range){.n = 0};
  *outcome_p = outcome;
  return ZPS_OK;
}

zps_err_t zps_etcd_grant_read(const zps_json *answer, uint64_t *lease_p, struct zps_error *error) {
  uint64_t lease;
  const zps_err_t err = get_number(answer, "ID", &lease, error);
  if (err) return err;
  if (lease == 0) return zps_fail(error, ZPS_ERR_PROTOCOL, "an answer without a lease's ID: is it etcd's?");
  *lease_p = lease;
  return ZPS_OK;
}

zps_err_t zps_etcd_keepalive_read(const zps_json *answer, uint64_t *ttl_s_p, struct zps_error *error) {
  const zps_json *const result = zps_json_get(answer, "result");
  if (!zps_json_is_object(result))
    return zps_fail(error, ZPS_ERR_PROTOCOL, "an answer without a result: is it etcd's?");
  return get_number(result, "TTL", ttl_s_p, error);
}

/* gRPC's numbers of what may pass: a deadline that etcd itself has missed, no leader at the moment. */
enum { GRPC_DEADLINE = 4, GRPC_UNAVAILABLE = 14 };

zps_err_t zps_etcd_refusal_read(unsigned status, const char *body, size_t len, struct zps_error *error) {
  zps_json *answer = NULL;
  struct zps_error why;
  char text[200] = "no reason given";
  uint64_t code = 0;
  if (zps_json_parse(body, len, &answer, &why) == ZPS_OK) {
    snprintf(text, sizeof text, "%s", zps_json_opt_str(answer, "message", zps_json_opt_str(answer, "error", text)));
    code = zps_json_opt_u64(answer, "code", 0);
    zps_text_sanitize(text, strlen(text));
  }
  zps_json_unref(answer);
  const bool may_pass = code == GRPC_DEADLINE || code == GRPC_UNAVAILABLE || (code == 0 && status >= 500);
  return zps_fail(error, may_pass ? ZPS_ERR_CONNECT : ZPS_ERR_IO, "HTTP status %u: %s", status, text);
}
