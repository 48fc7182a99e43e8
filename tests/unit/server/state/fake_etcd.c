#include "tests/unit/server/state/fake_etcd.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ------------------------------------------------------------ what is there */

void fake_etcd_remove(struct fake_etcd *etcd, const char *key) {
  for (unsigned i = 0; i < etcd->n; i++) {
    if (strcmp(etcd->kvs[i].key, key) != 0) continue;
    free(etcd->kvs[i].value);
    memmove(&etcd->kvs[i], &etcd->kvs[i + 1], (etcd->n - i - 1) * sizeof etcd->kvs[0]);
    etcd->n--;
    return;
  }
}

struct fake_kv *fake_etcd_find(struct fake_etcd *etcd, const char *key) {
  for (unsigned i = 0; i < etcd->n; i++)
    if (strcmp(etcd->kvs[i].key, key) == 0) return &etcd->kvs[i];
  return NULL;
}

void fake_etcd_put(struct fake_etcd *etcd, const char *key, const char *value, size_t len, uint64_t lease) {
  struct fake_kv *kv = fake_etcd_find(etcd, key);
  if (!kv) {
    unsigned at = 0;
    assert_true(etcd->n < FAKE_KEYS);
    while (at < etcd->n && strcmp(etcd->kvs[at].key, key) < 0) at++;
    kv = &etcd->kvs[at];
    memmove(kv + 1, kv, (etcd->n - at) * sizeof *kv);
    etcd->n++;
    *kv = (struct fake_kv){.created = etcd->revision};
    snprintf(kv->key, sizeof kv->key, "%s", key);
  }
  free(kv->value);
  kv->value = malloc(len + 1);
  assert_non_null(kv->value);
  memcpy(kv->value, value, len);
  kv->len = len;
  kv->lease = lease;
}

static void end_lease(struct fake_etcd *etcd, struct fake_lease *lease) {
  for (unsigned i = etcd->n; i-- > 0;)
    if (etcd->kvs[i].lease == lease->id) fake_etcd_remove(etcd, etcd->kvs[i].key);
  lease->id = 0;
}

static struct fake_lease *find_lease(struct fake_etcd *etcd, uint64_t id) {
  for (unsigned i = 0; i < FAKE_LEASES; i++)
    if (etcd->leases[i].id == id) return &etcd->leases[i];
  return NULL;
}

void fake_etcd_pass(struct fake_etcd *etcd, uint64_t s) {
  etcd->now_s += s;
  for (unsigned i = 0; i < FAKE_LEASES; i++)
    if (etcd->leases[i].id && etcd->leases[i].until_s <= etcd->now_s) end_lease(etcd, &etcd->leases[i]);
}

/* ------------------------------------------------------------ calls */

static char *text_of(const zps_json *object, const char *name, size_t *len_p) {
  char *const text = zps_etcd_unbase64(zps_json_opt_str(object, name, ""), len_p);
  assert_non_null(text);
  return text;
}

static uint64_t number_of(const zps_json *object, const char *name) {
  return strtoull(zps_json_opt_str(object, name, "0"), NULL, 10);
}

static zps_json *set_number(zps_json *object, const char *name, uint64_t value) {
  char text[24];
  if (value == 0) return object; /* etcd leaves zeros out */
  snprintf(text, sizeof text, "%" PRIu64, value);
  return zps_json_set_str(object, name, text);
}

static zps_json *answer_of(const struct fake_etcd *etcd) {
  return zps_json_set(zps_json_object(), "header", set_number(zps_json_object(), "revision", etcd->revision));
}

static zps_json *set_data(zps_json *object, const char *name, const char *data, size_t len) {
  char *const text = zps_etcd_base64(data, len);
  object = zps_json_set_str(object, name, text);
  free(text);
  return object;
}

static bool is_in(const char *key, const char *from, const char *end) {
  return *end ? strcmp(key, from) >= 0 && strcmp(key, end) < 0 : strcmp(key, from) == 0;
}

static zps_json *range(struct fake_etcd *etcd, const zps_json *body) {
  size_t len;
  char *const from = text_of(body, "key", &len), *const end = text_of(body, "range_end", &len);
  const uint64_t limit = number_of(body, "limit");
  zps_json *kvs = zps_json_array(), *answer = answer_of(etcd);
  bool more = false;
  for (unsigned i = 0; i < etcd->n; i++) {
    const struct fake_kv *const kv = &etcd->kvs[i];
    if (!is_in(kv->key, from, end)) continue;
    more = limit && zps_json_array_len(kvs) == limit;
    if (more) break;
    zps_json *row = set_data(zps_json_object(), "key", kv->key, strlen(kv->key));
    if (!zps_json_opt_bool(body, "keys_only", false)) row = set_data(row, "value", kv->value, kv->len);
    kvs = zps_json_append(kvs, set_number(set_number(row, "create_revision", kv->created), "lease", kv->lease));
  }
  free(from);
  free(end);
  if (more) answer = zps_json_set_bool(answer, "more", true);
  if (zps_json_array_len(kvs) > 0) return zps_json_set(answer, "kvs", kvs);
  zps_json_unref(kvs);
  return answer;
}

static bool holds(struct fake_etcd *etcd, const zps_json *compare) {
  size_t len;
  char *const key = text_of(compare, "key", &len);
  const struct fake_kv *const kv = fake_etcd_find(etcd, key);
  free(key);
  assert_string_equal(zps_json_opt_str(compare, "target", ""), "CREATE");
  return (kv ? kv->created : 0) == number_of(compare, "create_revision");
}

static void delete_range(struct fake_etcd *etcd, const zps_json *body) {
  size_t len;
  char *const from = text_of(body, "key", &len), *const end = text_of(body, "range_end", &len);
  if (*end) assert_true(strcmp(from, end) < 0);
  for (unsigned i = etcd->n; i-- > 0;)
    if (is_in(etcd->kvs[i].key, from, end)) fake_etcd_remove(etcd, etcd->kvs[i].key);
  free(from);
  free(end);
}

static zps_json *operate(struct fake_etcd *etcd, const zps_json *operation) {
  const zps_json *body;
  if ((body = zps_json_get(operation, "request_put"))) {
    size_t key_len, len;
    char *const key = text_of(body, "key", &key_len), *const value = text_of(body, "value", &len);
    assert_true(key_len + len < (1u << 20) + (1u << 19)); /* etcd takes no longer requests */
    fake_etcd_put(etcd, key, value, len, number_of(body, "lease"));
    free(key);
    free(value);
    return zps_json_set(zps_json_object(), "response_put", answer_of(etcd));
  }
  if ((body = zps_json_get(operation, "request_range")))
    return zps_json_set(zps_json_object(), "response_range", range(etcd, body));
  body = zps_json_get(operation, "request_delete_range");
  assert_non_null(body);
  delete_range(etcd, body);
  return zps_json_set(zps_json_object(), "response_delete_range", answer_of(etcd));
}

static zps_json *transact(struct fake_etcd *etcd, const zps_json *body) {
  const zps_json *const compare = zps_json_get(body, "compare");
  bool succeeds = true;
  for (size_t i = 0; i < zps_json_array_len(compare); i++) succeeds = holds(etcd, zps_json_at(compare, i)) && succeeds;
  const zps_json *const operations = zps_json_get(body, succeeds ? "success" : "failure");
  zps_json *responses = zps_json_array();
  if (succeeds) etcd->revision++;
  for (size_t i = 0; i < zps_json_array_len(operations); i++)
    responses = zps_json_append(responses, operate(etcd, zps_json_at(operations, i)));
  zps_json *answer = zps_json_set(answer_of(etcd), "responses", responses);
  return succeeds ? zps_json_set_bool(answer, "succeeded", true) : answer;
}

static zps_json *grant(struct fake_etcd *etcd, const zps_json *body) {
  struct fake_lease *const lease = find_lease(etcd, 0);
  assert_non_null(lease);
  const uint64_t ttl_s = number_of(body, "TTL");
  *lease = (struct fake_lease){.id = ++etcd->last_lease, .ttl_s = ttl_s, .until_s = etcd->now_s + ttl_s};
  return set_number(set_number(answer_of(etcd), "ID", lease->id), "TTL", ttl_s);
}

static zps_json *keep_alive(struct fake_etcd *etcd, const zps_json *body) {
  struct fake_lease *const lease = find_lease(etcd, number_of(body, "ID"));
  if (lease) lease->until_s = etcd->now_s + lease->ttl_s;
  return zps_json_set(zps_json_object(), "result", set_number(answer_of(etcd), "TTL", lease ? lease->ttl_s : 0));
}

static zps_json *revoke(struct fake_etcd *etcd, const zps_json *body) {
  struct fake_lease *const lease = find_lease(etcd, number_of(body, "ID"));
  if (lease) end_lease(etcd, lease);
  return answer_of(etcd);
}

static zps_json *carry_out(struct fake_etcd *etcd, const char *path, const zps_json *body) {
  if (strcmp(path, "/v3/kv/range") == 0) return range(etcd, body);
  if (strcmp(path, "/v3/kv/txn") == 0) return transact(etcd, body);
  if (strcmp(path, "/v3/lease/grant") == 0) return grant(etcd, body);
  if (strcmp(path, "/v3/lease/keepalive") == 0) return keep_alive(etcd, body);
  assert_string_equal(path, "/v3/lease/revoke");
  return revoke(etcd, body);
}

static zps_err_t post(struct zps_etcd_transport *transport, const char *path, const char *body, uint64_t timeout_ms,
                      struct zps_etcd_answer *answer_p, struct zps_error *error) {
  struct fake_etcd *etcd = (struct fake_etcd *)transport;
  zps_json *parsed;
  (void)timeout_ms;
  const unsigned number = ++etcd->n_posts;
  snprintf(etcd->path, sizeof etcd->path, "%s", path);
  if (etcd->away) return zps_fail(error, ZPS_ERR_CONNECT, "etcd at fake: refused");
  const bool is_dead = etcd->dies_at && number >= etcd->dies_at;
  if (is_dead && !(etcd->does && number == etcd->dies_at)) return zps_fail(error, ZPS_ERR_IO, "the process is dead");
  if (etcd->refuses) {
    static const char text[] = "{\"message\":\"no\",\"code\":3}";
    *answer_p = (struct zps_etcd_answer){.status = etcd->refuses, .body = strdup(text), .len = sizeof text - 1};
    return ZPS_OK;
  }
  if (zps_json_parse(body, strlen(body), &parsed, error)) fail_msg("%s", error->text);
  zps_json *const answer = carry_out(etcd, path, parsed);
  zps_json_unref(parsed);
  answer_p->status = 200;
  answer_p->body = zps_json_dump(answer);
  answer_p->len = strlen(answer_p->body);
  zps_json_unref(answer);
  if (!is_dead && number != etcd->lost_at) return ZPS_OK;
  free(answer_p->body);
  answer_p->body = NULL;
  return is_dead ? zps_fail(error, ZPS_ERR_IO, "the process is dead")
                 : zps_fail(error, ZPS_ERR_CONNECT, "etcd at fake: reset");
}

static void pause_no_time(struct zps_etcd_transport *transport, unsigned ms) {
  (void)ms;
  ((struct fake_etcd *)transport)->n_pauses++;
}

static void interrupt(struct zps_etcd_transport *transport, bool is_on) {
  (void)transport, (void)is_on;
}

static void close_nothing(struct zps_etcd_transport *transport) {
  ((struct fake_etcd *)transport)->n_closed++;
}

void fake_etcd_init(struct fake_etcd *etcd) {
  static const struct zps_etcd_transport_ops ops = {
      .post = post, .pause = pause_no_time, .interrupt = interrupt, .close = close_nothing};
  *etcd = (struct fake_etcd){.transport = {&ops}, .revision = 1, .last_lease = 76};
}

void fake_etcd_fini(struct fake_etcd *etcd) {
  while (etcd->n > 0) fake_etcd_remove(etcd, etcd->kvs[0].key);
}

void fake_etcd_from_now(struct fake_etcd *etcd) {
  etcd->n_posts = etcd->n_pauses = etcd->dies_at = etcd->lost_at = 0;
}
