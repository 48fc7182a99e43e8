#include "server/state/store_etcd.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX_MAX 200u
/* etcd takes requests of 1.5 MiB, in which a value is as long as it is. */
#define PIECE_BYTES ((size_t)512 << 10)
#define PIECES_A_READ 8u

struct etcd_store {
  struct zps_store_backend backend;
  struct zps_etcd_transport *transport;
  uint64_t revision, timeout_ms;
  uint32_t generation; /* 0: none yet */
  uint64_t number;     /* of the last piece */
  char name[PREFIX_MAX + 32], prefix[PREFIX_MAX], leader[ZPS_ETCD_KEY_MAX], pointer[ZPS_ETCD_KEY_MAX];
};

/* ------------------------------------------------------------ keys */

static void piece_key(const struct etcd_store *store, uint32_t generation, uint64_t number,
                      char key[ZPS_ETCD_KEY_MAX]) {
  snprintf(key, ZPS_ETCD_KEY_MAX, "%s/journal/%08" PRIx32 "/%016" PRIx64, store->prefix, generation, number);
}

/* Behind all keys of journals before `generation`, and ahead of its own. */
static void journal_key(const struct etcd_store *store, uint32_t generation, char key[ZPS_ETCD_KEY_MAX]) {
  snprintf(key, ZPS_ETCD_KEY_MAX, "%s/journal/%08" PRIx32, store->prefix, generation);
}

static void end_key(const struct etcd_store *store, char key[ZPS_ETCD_KEY_MAX]) {
  snprintf(key, ZPS_ETCD_KEY_MAX, "%s/journal0", store->prefix); /* '0' follows '/' */
}

/* ------------------------------------------------------------ writing */

static zps_json *guard(const struct etcd_store *store) {
  return zps_json_append(zps_json_array(), zps_etcd_created_is(store->leader, store->revision));
}

static zps_err_t transact(const struct etcd_store *store, zps_json *compare, zps_json *success, zps_json *failure,
                          struct zps_etcd_outcome *outcome_p, struct zps_etcd_range found[2], struct zps_error *error) {
  zps_json *answer = NULL;
  zps_err_t err = zps_etcd_call_on(store->transport, ZPS_ETCD_TXN, zps_etcd_txn_write(compare, success, failure),
                                   store->timeout_ms, &answer, error);
  if (err) return err;
  err = zps_etcd_txn_read(answer, outcome_p, found, 2, error);
  zps_json_unref(answer);
  return err;
}

static zps_err_t fenced(const struct etcd_store *store, const struct zps_etcd_range *leader, struct zps_error *error) {
  if (leader->n == 0)
    return zps_fail(error, ZPS_ERR_STALE, "%s: this process leads no longer, nor does another one: its lease is over",
                    store->name);
  return zps_fail(error, ZPS_ERR_STALE, "%s: this process leads no longer: the coordinator at %.100s does", store->name,
                  leader->kvs[0].value);
}

/* One operation, or two; carried out twice they do the same. */
static zps_err_t carry_out(const struct etcd_store *store, zps_json *first, zps_json *second, struct zps_error *error) {
  struct zps_etcd_outcome outcome;
  struct zps_etcd_range found[2] = {{.n = 0}};
  zps_json *operations = zps_json_append(zps_json_array(), first);
  if (second) operations = zps_json_append(operations, second);
  zps_err_t err = transact(store, guard(store), operations,
                           zps_json_append(zps_json_array(), zps_etcd_get(store->leader)), &outcome, found, error);
  if (err) return err;
  if (!outcome.succeeded) err = fenced(store, &found[0], error);
  for (unsigned i = 0; i < 2; i++) zps_etcd_range_fini(&found[i]);
  return err;
}

/* A piece that is there already is the one that was to be written: the answer was lost, and it was written again. */
static zps_err_t judge_piece(const struct etcd_store *store, const char *key, const struct zps_journal_buffer *piece,
                             const struct zps_etcd_range found[2], struct zps_error *error) {
  const struct zps_etcd_range *const leader = &found[0], *const there = &found[1];
  if (leader->n == 0 || leader->kvs[0].created != store->revision) return fenced(store, leader, error);
  if (there->n == 1 && there->kvs[0].len == piece->len && memcmp(there->kvs[0].value, piece->data, piece->len) == 0)
    return ZPS_OK;
  return zps_fail(error, ZPS_ERR_IO, "%s: key %s is there already, with something else", store->name, key);
}

static zps_err_t put_piece(const struct etcd_store *store, uint32_t generation, uint64_t number, const char *data,
                           size_t len, struct zps_error *error) {
  struct zps_journal_buffer piece = {.data = NULL};
  struct zps_etcd_outcome outcome;
  struct zps_etcd_range found[2] = {{.n = 0}};
  char key[ZPS_ETCD_KEY_MAX];
  piece_key(store, generation, number, key);
  zps_err_t err = zps_journal_add(&piece, data, len);
  if (err) return zps_fail(error, err, "%s: no memory to write %zu bytes", store->name, len);
  zps_json *failure = zps_json_append(zps_json_array(), zps_etcd_get(store->leader));
  err = transact(store, zps_json_append(guard(store), zps_etcd_created_is(key, 0)),
                 zps_json_append(zps_json_array(), zps_etcd_put(key, piece.data, piece.len, 0)),
                 zps_json_append(failure, zps_etcd_get(key)), &outcome, found, error);
  if (!err && !outcome.succeeded) err = judge_piece(store, key, &piece, found, error);
  for (unsigned i = 0; i < 2; i++) zps_etcd_range_fini(&found[i]);
  free(piece.data);
  return err;
}

/* At least one piece, from the one behind *number_p on. */
static zps_err_t put_pieces(const struct etcd_store *store, uint32_t generation, uint64_t *number_p, const char *data,
                            size_t len, struct zps_error *error) {
  do {
    const size_t n = len < PIECE_BYTES ? len : PIECE_BYTES;
    const zps_err_t err = put_piece(store, generation, *number_p + 1, data, n, error);
    if (err) return err;
    ++*number_p;
    data += n;
    len -= n;
  } while (len > 0);
  return ZPS_OK;
}

static zps_err_t etcd_write(struct zps_store_backend *backend, const char *data, size_t len, struct zps_error *error) {
  struct etcd_store *store = (struct etcd_store *)backend;
  return put_pieces(store, store->generation, &store->number, data, len, error);
}

/* What etcd has answered is durable. */
static zps_err_t etcd_sync(struct zps_store_backend *backend, struct zps_error *error) {
  (void)backend, (void)error;
  return ZPS_OK;
}

/* All journals but this one, which may be none. */
static zps_err_t delete_others(const struct etcd_store *store, uint32_t kept, struct zps_error *error) {
  char first[ZPS_ETCD_KEY_MAX], own[ZPS_ETCD_KEY_MAX], behind[ZPS_ETCD_KEY_MAX], end[ZPS_ETCD_KEY_MAX];
  journal_key(store, 0, first);
  journal_key(store, kept, own);
  journal_key(store, kept + 1, behind);
  end_key(store, end);
  zps_json *const later = zps_etcd_delete(behind, end);
  return kept == 0 ? carry_out(store, later, NULL, error) : carry_out(store, later, zps_etcd_delete(first, own), error);
}

static zps_err_t point_to(const struct etcd_store *store, uint32_t generation, struct zps_error *error) {
  char text[16];
  const int len = snprintf(text, sizeof text, "%08" PRIx32, generation);
  return carry_out(store, zps_etcd_put(store->pointer, text, (size_t)len, 0), NULL, error);
}

static zps_err_t etcd_replace(struct zps_store_backend *backend, const char *data, size_t len,
                              struct zps_error *error) {
  struct etcd_store *store = (struct etcd_store *)backend;
  const uint32_t next = store->generation + 1;
  uint64_t number = 0;
  zps_err_t err = put_pieces(store, next, &number, data, len, error);
  if (!err) err = point_to(store, next, error);
  if (!err) err = delete_others(store, next, error);
  if (err) return err;
  store->generation = next;
  store->number = number;
  return ZPS_OK;
}

/* ------------------------------------------------------------ reading */

static zps_err_t get_range(const struct etcd_store *store, zps_json *body, struct zps_etcd_range *range_p,
                           struct zps_error *error) {
  zps_json *answer = NULL;
  zps_err_t err = zps_etcd_call_on(store->transport, ZPS_ETCD_RANGE, body, store->timeout_ms, &answer, error);
  if (err) return err;
  err = zps_etcd_range_read(answer, range_p, error);
  zps_json_unref(answer);
  return err;
}

static zps_err_t damaged(const struct etcd_store *store, const char *key, const char *what, struct zps_error *error) {
  return zps_fail(error, ZPS_ERR_IO,
                  "%s: key %.200s %s: delete all keys of the prefix to begin anew, without the jobs that they know",
                  store->name, key, what);
}

/* No journal is there without the key that says that it holds, but for a first one that was not finished. */
static zps_err_t check_none(const struct etcd_store *store, struct zps_error *error) {
  struct zps_etcd_range range;
  char from[ZPS_ETCD_KEY_MAX], end[ZPS_ETCD_KEY_MAX];
  journal_key(store, 2, from);
  end_key(store, end);
  zps_err_t err = get_range(store, zps_etcd_range_write(from, end, 1, true), &range, error);
  if (err) return err;
  if (range.n > 0) err = damaged(store, store->pointer, "is missing, and journals are there", error);
  zps_etcd_range_fini(&range);
  return err;
}

static zps_err_t read_pointer(struct etcd_store *store, struct zps_error *error) {
  struct zps_etcd_range range;
  zps_err_t err = get_range(store, zps_etcd_range_write(store->pointer, NULL, 1, false), &range, error);
  if (err) return err;
  store->generation = 0;
  if (range.n == 0) {
    err = check_none(store, error);
  } else {
    const char *const text = range.kvs[0].value;
    const bool is_number = range.kvs[0].len == 8 && strspn(text, "0123456789abcdef") == 8;
    if (is_number) store->generation = (uint32_t)strtoul(text, NULL, 16);
    if (store->generation == 0 || store->generation > UINT32_MAX - 2)
      err = damaged(store, store->pointer, "is damaged: it is no number of 8 hexadecimal digits from 1 on", error);
  }
  zps_etcd_range_fini(&range);
  return err;
}

struct bytes {
  char *data;
  size_t len, cap;
};

/* With room for one byte more than there are. */
static zps_err_t take_piece(void *ctx, const char *text, size_t len) {
  struct bytes *bytes = ctx;
  if (bytes->cap - bytes->len <= len) {
    const size_t cap = 2 * (bytes->len + len) + 1;
    char *const grown = realloc(bytes->data, cap);
    if (!grown) return ZPS_ERR_NOMEM;
    bytes->data = grown;
    bytes->cap = cap;
  }
  memcpy(bytes->data + bytes->len, text, len);
  bytes->len += len;
  return ZPS_OK;
}

/* The next piece: of the number that follows, and whole. */
static zps_err_t read_piece(struct etcd_store *store, struct zps_etcd_kv *kv, struct bytes *bytes,
                            struct zps_error *error) {
  struct zps_journal_scan scan;
  char wanted[ZPS_ETCD_KEY_MAX];
  piece_key(store, store->generation, store->number + 1, wanted);
  if (strcmp(kv->key, wanted) != 0) return damaged(store, wanted, "is missing, and later ones are there", error);
  zps_err_t err = zps_journal_scan(kv->value, kv->len, NULL, NULL, &scan);
  if (!err && (scan.n_records != 1 || scan.whole != kv->len)) return damaged(store, kv->key, "is damaged", error);
  if (!err) err = zps_journal_scan(kv->value, kv->len, take_piece, bytes, &scan);
  if (err) return zps_fail(error, err, "%s: no memory to read key %s", store->name, kv->key);
  store->number++;
  return ZPS_OK;
}

/* Some pieces more; *more_p: others follow. */
static zps_err_t read_pieces(struct etcd_store *store, struct bytes *bytes, bool *more_p, struct zps_error *error) {
  struct zps_etcd_range range;
  char from[ZPS_ETCD_KEY_MAX], end[ZPS_ETCD_KEY_MAX];
  piece_key(store, store->generation, store->number + 1, from);
  if (store->number == 0) journal_key(store, store->generation, from); /* a key ahead of the first one is damage, too */
  journal_key(store, store->generation + 1, end);
  zps_err_t err = get_range(store, zps_etcd_range_write(from, end, PIECES_A_READ, false), &range, error);
  if (err) return err;
  *more_p = range.more;
  for (size_t i = 0; i < range.n && !err; i++) err = read_piece(store, &range.kvs[i], bytes, error);
  zps_etcd_range_fini(&range);
  return err;
}

static zps_err_t etcd_read(struct zps_store_backend *backend, char **data_p, size_t *len_p, struct zps_error *error) {
  struct etcd_store *store = (struct etcd_store *)backend;
  struct bytes bytes = {.cap = 1};
  store->number = 0;
  zps_err_t err = read_pointer(store, error);
  if (err) return err;
  bytes.data = malloc(1);
  if (!bytes.data) err = zps_fail(error, ZPS_ERR_NOMEM, "%s: no memory to read it", store->name);
  for (bool more = store->generation > 0; more && !err;) err = read_pieces(store, &bytes, &more, error);
  if (!err && store->generation > 0 && store->number == 0) {
    char first[ZPS_ETCD_KEY_MAX];
    piece_key(store, store->generation, 1, first);
    err = damaged(store, first, "is missing", error);
  }
  if (!err) err = delete_others(store, store->generation, error);
  if (err) {
    free(bytes.data);
    return err;
  }
  *data_p = bytes.data;
  *len_p = bytes.len;
  return ZPS_OK;
}

/* ------------------------------------------------------------ life */

static void etcd_close(struct zps_store_backend *backend) {
  struct etcd_store *store = (struct etcd_store *)backend;
  store->transport->ops->close(store->transport);
  free(store);
}

static const struct zps_store_ops etcd_ops = {.read = etcd_read,
                                              .write = etcd_write,
                                              .sync = etcd_sync,
                                              .replace = etcd_replace,
                                              .cut = etcd_replace,
                                              .close = etcd_close};

zps_err_t zps_store_etcd_open(const struct zps_store_etcd_config *config, struct zps_store_backend **backend_p,
                              struct zps_error *error) {
  if (strlen(config->prefix) >= PREFIX_MAX)
    return zps_fail(error, ZPS_ERR_INVALID, "the prefix of etcd's keys has %zu bytes: must have at most %u",
                    strlen(config->prefix), PREFIX_MAX - 1);
  struct etcd_store *store = calloc(1, sizeof *store);
  if (!store) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for the state in etcd");
  store->backend = (struct zps_store_backend){.ops = &etcd_ops, .name = store->name};
  store->transport = config->transport;
  store->revision = config->revision;
  store->timeout_ms = config->timeout_ms;
  snprintf(store->prefix, sizeof store->prefix, "%s", config->prefix);
  snprintf(store->name, sizeof store->name, "etcd %s/journal", config->prefix);
  snprintf(store->leader, sizeof store->leader, "%s/leader", config->prefix);
  snprintf(store->pointer, sizeof store->pointer, "%s/generation", config->prefix);
  *backend_p = &store->backend;
  return ZPS_OK;
}
