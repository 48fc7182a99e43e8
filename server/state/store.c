#include "server/state/store.h"

#include <stdlib.h>
#include <string.h>

#define ZPS_LOG_COMPONENT "state"
#include "common/base/log.h"

struct zps_store {
  struct zps_store_backend *backend;
  struct zps_journal_buffer pending; /* appended, and not committed */
  size_t size;
  bool is_short, broken; /* memory was; the backend has failed */
};

/* ------------------------------------------------------------ open */

static zps_err_t check(const struct zps_store_backend *backend, const struct zps_journal_scan *scan, size_t len,
                       struct zps_error *error) {
  if (!scan->damaged) return ZPS_OK;
  return zps_fail(
      error, ZPS_ERR_IO,
      "%s: the record at byte %zu (number %llu) is damaged, and %llu whole ones follow from byte %zu of %zu "
      "on: move it away to begin anew, without the jobs that it knows",
      backend->name, scan->whole, (unsigned long long)scan->n_records, (unsigned long long)scan->n_after, scan->next,
      len);
}

static zps_err_t load(struct zps_store *store, zps_journal_take_fn *take, void *ctx, struct zps_error *error) {
  struct zps_store_backend *const backend = store->backend;
  struct zps_journal_scan scan;
  char *data;
  size_t len;
  zps_err_t err = backend->ops->read(backend, &data, &len, error);
  if (err) return err;
  err = zps_journal_scan(data, len, NULL, NULL, &scan); /* nothing is taken of a journal that is refused */
  if (!err) err = check(backend, &scan, len, error);
  if (!err) err = zps_journal_scan(data, len, take, ctx, &scan);
  if (!err && scan.whole < len) {
    zps_log_warn("%s: a torn tail of %zu bytes is cut off, at byte %zu: it was being written when the process died",
                 backend->name, len - scan.whole, scan.whole);
    err = backend->ops->cut(backend, data, scan.whole, error);
  }
  store->size = scan.whole;
  free(data);
  return err;
}

zps_err_t zps_store_open(struct zps_store_backend *backend, zps_journal_take_fn *take, void *ctx,
                         struct zps_store **store_p, struct zps_error *error) {
  struct zps_store *const store = calloc(1, sizeof *store);
  if (!store) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for the state");
  store->backend = backend;
  const zps_err_t err = load(store, take, ctx, error);
  if (err) {
    free(store);
    return err;
  }
  *store_p = store;
  return ZPS_OK;
}

void zps_store_close(struct zps_store *store) {
  if (!store) return;
  store->backend->ops->close(store->backend);
  free(store->pending.data);
  free(store);
}

/* ------------------------------------------------------------ append, commit, compact */

void zps_store_append(struct zps_store *store, const char *text) {
  if (!text || zps_journal_add(&store->pending, text, strlen(text))) store->is_short = true;
}

bool zps_store_is_dirty(const struct zps_store *store) {
  return store->pending.len > 0 || store->is_short;
}

size_t zps_store_size(const struct zps_store *store) {
  return store->size;
}

static zps_err_t usable(const struct zps_store *store, struct zps_error *error) {
  if (store->broken) return zps_fail(error, ZPS_ERR_IO, "%s: it has failed before", store->backend->name);
  return store->is_short ? zps_fail(error, ZPS_ERR_NOMEM, "%s: no memory for a record", store->backend->name) : ZPS_OK;
}

zps_err_t zps_store_commit(struct zps_store *store, struct zps_error *error) {
  struct zps_store_backend *const backend = store->backend;
  zps_err_t err = usable(store, error);
  if (!err && store->pending.len == 0) return ZPS_OK;
  if (!err) err = backend->ops->write(backend, store->pending.data, store->pending.len, error);
  if (!err) err = backend->ops->sync(backend, error);
  store->broken = store->broken || err;
  if (err) return err;
  store->size += store->pending.len;
  store->pending.len = 0;
  return ZPS_OK;
}

zps_err_t zps_store_compact(struct zps_store *store, void (*fill)(void *ctx), void *ctx, struct zps_error *error) {
  zps_err_t err = usable(store, error);
  if (err) return err;
  fill(ctx);
  err = usable(store, error);
  if (!err) err = store->backend->ops->replace(store->backend, store->pending.data, store->pending.len, error);
  store->broken = store->broken || err;
  if (err) return err;
  zps_log_debug("%s: %zu bytes say what %zu did", store->backend->name, store->pending.len, store->size);
  store->size = store->pending.len;
  store->pending.len = 0;
  return ZPS_OK;
}
