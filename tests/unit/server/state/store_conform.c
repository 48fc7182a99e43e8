#include "tests/unit/server/state/store_conform.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 64 };

static struct {
  unsigned n;
  char texts[MOST][40];
} taken, wanted;

static zps_err_t take(void *ctx, const char *text, size_t len) {
  (void)ctx;
  assert_true(taken.n < MOST && strlen(text) == len && len < sizeof taken.texts[0]);
  strcpy(taken.texts[taken.n++], text);
  return ZPS_OK;
}

static struct zps_store *open_store(store_conform_open_fn *open) {
  struct zps_store *store;
  struct zps_error error;
  taken.n = 0;
  if (zps_store_open(open(), take, NULL, &store, &error)) fail_msg("%s", error.text);
  assert_int_equal(taken.n, wanted.n);
  for (unsigned i = 0; i < taken.n; i++) assert_string_equal(taken.texts[i], wanted.texts[i]);
  assert_false(zps_store_is_dirty(store));
  return store;
}

static void append(struct zps_store *store, unsigned n) {
  char text[40];
  snprintf(text, sizeof text, "{\"record\":%u}", n);
  zps_store_append(store, text);
  snprintf(wanted.texts[wanted.n++], sizeof wanted.texts[0], "%s", text);
}

static void commit(struct zps_store *store) {
  struct zps_error error;
  if (zps_store_commit(store, &error)) fail_msg("%s", error.text);
  assert_false(zps_store_is_dirty(store));
}

static void fill(void *ctx) {
  append(ctx, 1000);
  append(ctx, 1001);
}

static void compact(struct zps_store *store) {
  struct zps_error error;
  wanted.n = 0;
  if (zps_store_compact(store, fill, store, &error)) fail_msg("%s", error.text);
}

void store_conform(store_conform_open_fn *open) {
  wanted.n = 0;
  struct zps_store *store = open_store(open); /* nothing is there */
  zps_store_close(store);
  store = open_store(open);
  compact(store); /* a new journal begins */
  const size_t small = zps_store_size(store);
  zps_store_close(store);
  store = open_store(open);
  assert_int_equal(zps_store_size(store), small);
  for (unsigned i = 0; i < 20; i++) { /* one, or several, a commit */
    append(store, i);
    if (i % 3 == 0) commit(store);
  }
  commit(store);
  commit(store); /* of nothing */
  const size_t grown = zps_store_size(store);
  assert_true(grown > small);
  zps_store_append(store, "never committed");
  zps_store_close(store);
  store = open_store(open);
  assert_int_equal(zps_store_size(store), grown);
  compact(store);
  append(store, 7);
  commit(store);
  compact(store);
  assert_int_equal(zps_store_size(store), small);
  append(store, 8);
  commit(store);
  zps_store_close(store);
  zps_store_close(open_store(open));
}
