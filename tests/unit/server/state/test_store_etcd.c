/* The journal in etcd: fenced, whole after a death at any call, and refused where a key is damaged. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/state/store_etcd.h"
#include "tests/support/logs.h"
#include "tests/unit/server/state/fake_etcd.h"
#include "tests/unit/server/state/store_conform.h"

static struct fake_etcd etcd;

static int setup(void **state) {
  (void)state;
  fake_etcd_init(&etcd);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  fake_etcd_fini(&etcd);
  return 0;
}

/* Somebody else leads from here on. */
static uint64_t lead(const char *address) {
  etcd.revision++;
  fake_etcd_remove(&etcd, "/z/leader");
  fake_etcd_put(&etcd, "/z/leader", address, strlen(address), 5);
  return etcd.revision;
}

static struct zps_store_backend *open_backend(void) {
  const struct zps_store_etcd_config config = {
      .transport = &etcd.transport, .prefix = "/z", .revision = lead("me:1"), .timeout_ms = 60000};
  struct zps_store_backend *backend;
  struct zps_error error;
  if (zps_store_etcd_open(&config, &backend, &error)) fail_msg("%s", error.text);
  return backend;
}

static void test_conforms(void **state) {
  (void)state;
  store_conform(open_backend);
  assert_int_equal(etcd.n, 4); /* leader, generation, and two pieces: nothing is left over */
  assert_int_equal(etcd.n_closed, 5);
}

/* ------------------------------------------------------------ a journal of three commits */

static struct {
  unsigned n;
  char texts[8][20];
} taken;

static zps_err_t take(void *ctx, const char *text, size_t len) {
  (void)ctx;
  assert_true(taken.n < 8);
  snprintf(taken.texts[taken.n++], sizeof taken.texts[0], "%.*s", len < 19 ? (int)len : 19, text);
  return ZPS_OK;
}

static zps_err_t open_store(struct zps_store **store_p, struct zps_error *error) {
  struct zps_store_backend *const backend = open_backend();
  taken.n = 0;
  const zps_err_t err = zps_store_open(backend, take, NULL, store_p, error);
  if (err) backend->ops->close(backend);
  return err;
}

static struct zps_store *open_well(void) {
  struct zps_store *store;
  struct zps_error error;
  if (open_store(&store, &error)) fail_msg("%s", error.text);
  return store;
}

static void fill(void *ctx) {
  zps_store_append(ctx, "head");
}

static void fill_more(void *ctx) {
  zps_store_append(ctx, "head");
  zps_store_append(ctx, "ab");
}

static void make(void) {
  struct zps_error error;
  struct zps_store *const store = open_well();
  assert_int_equal(zps_store_compact(store, fill, store, &error), ZPS_OK);
  zps_store_append(store, "a");
  assert_int_equal(zps_store_commit(store, &error), ZPS_OK);
  zps_store_append(store, "b");
  assert_int_equal(zps_store_commit(store, &error), ZPS_OK);
  zps_store_close(store);
}

static bool is(unsigned n, const char *const *texts) {
  bool same = taken.n == n;
  for (unsigned i = 0; i < n && same; i++) same = strcmp(taken.texts[i], texts[i]) == 0;
  return same;
}

static void test_fenced(void **state) {
  (void)state;
  struct zps_error error;
  make();
  struct zps_store *store = open_well();
  zps_store_append(store, "c");
  lead("other:2");
  const unsigned n = etcd.n;
  assert_int_equal(zps_store_commit(store, &error), ZPS_ERR_STALE);
  assert_string_equal(error.text, "etcd /z/journal: this process leads no longer: the coordinator at other:2 does");
  assert_int_equal(etcd.n, n);
  assert_int_equal(zps_store_commit(store, &error), ZPS_ERR_IO); /* for good */
  zps_store_close(store);
  store = open_well();
  fake_etcd_remove(&etcd, "/z/leader");
  assert_int_equal(zps_store_compact(store, fill, store, &error), ZPS_ERR_STALE);
  assert_string_equal(error.text,
                      "etcd /z/journal: this process leads no longer, nor does another one: its lease is over");
  assert_int_equal(etcd.n, n - 1);
  zps_store_close(store);
  zps_store_close(open_well());
  assert_true(is(3, (const char *const[]){"head", "a", "b"}));
}

/* One that leads no longer deletes nothing either when it starts. */
static void test_fenced_while_it_starts(void **state) {
  (void)state;
  struct zps_error error;
  struct zps_store *store;
  make();
  struct zps_store_backend *const backend = open_backend();
  lead("other:2");
  const unsigned n = etcd.n;
  assert_int_equal(zps_store_open(backend, take, NULL, &store, &error), ZPS_ERR_STALE);
  assert_int_equal(etcd.n, n);
  backend->ops->close(backend);
}

/* The answer to any call is lost, and the call is made again: everything is there once. */
static void test_lost_answers(void **state) {
  (void)state;
  for (unsigned at = 1;; at++) {
    struct zps_error error;
    make();
    fake_etcd_from_now(&etcd);
    etcd.lost_at = at;
    struct zps_store *store = open_well();
    zps_store_append(store, "c");
    assert_int_equal(zps_store_commit(store, &error), ZPS_OK);
    assert_int_equal(zps_store_compact(store, fill_more, store, &error), ZPS_OK);
    zps_store_append(store, "d");
    assert_int_equal(zps_store_commit(store, &error), ZPS_OK);
    zps_store_close(store);
    const unsigned n_pauses = etcd.n_pauses;
    zps_store_close(open_well());
    assert_true(is(3, (const char *const[]){"head", "ab", "d"}));
    teardown(NULL);
    setup(NULL);
    if (n_pauses == 0) break; /* it was made without a loss */
    assert_int_equal(n_pauses, 1);
  }
}

/* The process dies at any call, which is carried out or not: what was committed is there, and nothing else. */
static void test_dies_at_each_call(void **state) {
  (void)state;
  unsigned n_old = 0, n_compacted = 0;
  for (unsigned k = 2; k < 100; k++) {
    struct zps_error error;
    struct zps_store *store = NULL;
    make();
    fake_etcd_from_now(&etcd);
    etcd.dies_at = k / 2;
    etcd.does = k % 2;
    const zps_err_t err = open_store(&store, &error);
    bool committed = false, compacted = false;
    if (!err) {
      zps_store_append(store, "c");
      committed = zps_store_commit(store, &error) == ZPS_OK;
      compacted = committed && zps_store_compact(store, fill_more, store, &error) == ZPS_OK;
      zps_store_close(store);
    }
    const bool finished = compacted && etcd.n_posts < etcd.dies_at;
    fake_etcd_from_now(&etcd);
    zps_store_close(open_well());
    const bool is_old = is(3, (const char *const[]){"head", "a", "b"});
    const bool is_new = is(4, (const char *const[]){"head", "a", "b", "c"});
    const bool is_compact = is(2, (const char *const[]){"head", "ab"});
    assert_true(is_old + is_new + is_compact == 1);
    if (committed) assert_false(is_old);
    if (compacted) assert_true(is_compact);
    n_old += is_old;
    n_compacted += is_compact;
    assert_int_equal(etcd.n, is_old ? 2 + 3 : is_new ? 2 + 4 : 2 + 1); /* nothing is left over */
    teardown(NULL);
    setup(NULL);
    if (finished) break;
  }
  assert_true(n_old > 2 && n_compacted > 2);
}

/* A first journal that was not finished is none. */
static void test_first_journal_torn(void **state) {
  (void)state;
  struct zps_error error;
  struct zps_store *store = open_well();
  fake_etcd_from_now(&etcd);
  etcd.dies_at = 1;
  etcd.does = true;
  assert_int_equal(zps_store_compact(store, fill, store, &error), ZPS_ERR_IO);
  zps_store_close(store);
  assert_non_null(fake_etcd_find(&etcd, "/z/journal/00000001/0000000000000001"));
  fake_etcd_from_now(&etcd);
  zps_store_close(open_well());
  assert_int_equal(taken.n, 0);
  assert_int_equal(etcd.n, 1);
}

/* ------------------------------------------------------------ large records */

enum { LARGE = 1300000 };

/* A record of several pieces: there as a whole, or cut off. */
static void test_large_record(void **state) {
  (void)state;
  char *const text = malloc(LARGE + 1);
  struct zps_error error;
  memset(text, 'x', LARGE);
  text[LARGE] = '\0';
  logs_start();
  logs_expect(ZPS_LOG_WARN, "etcd /z/journal: a torn tail of ");
  for (unsigned at = 1; at <= 4; at++) {
    make();
    struct zps_store *store = open_well();
    fake_etcd_from_now(&etcd);
    etcd.dies_at = at;
    zps_store_append(store, text);
    assert_int_equal(zps_store_commit(store, &error), at < 4 ? ZPS_ERR_IO : ZPS_OK);
    zps_store_close(store);
    fake_etcd_from_now(&etcd);
    zps_store_close(open_well());
    assert_int_equal(taken.n, at < 4 ? 3 : 4);
    zps_store_close(open_well());
    assert_int_equal(taken.n, at < 4 ? 3 : 4);
    teardown(NULL);
    setup(NULL);
  }
  logs_finish();
  free(text);
}

/* ------------------------------------------------------------ damage */

static void refused(const char *why) {
  struct zps_store *store;
  struct zps_error error;
  const unsigned n = etcd.n;
  const zps_err_t err = open_store(&store, &error);
  if (err != ZPS_ERR_IO) fail_msg("%s: code %d", why, (int)err);
  if (!strstr(error.text, why)) fail_msg("%s, wanted %s", error.text, why);
  assert_int_equal(taken.n, 0);
  assert_int_equal(etcd.n, n); /* nothing is touched */
}

#define PIECE(n) "/z/journal/00000001/000000000000000" #n

static void test_each_bit_flipped(void **state) {
  (void)state;
  static const char *const keys[] = {PIECE(1), PIECE(2), PIECE(3)};
  make();
  for (unsigned i = 0; i < 3; i++) {
    struct fake_kv *const kv = fake_etcd_find(&etcd, keys[i]);
    char why[100];
    snprintf(why, sizeof why, "etcd /z/journal: key %s is damaged", keys[i]);
    for (size_t bit = 0; bit < 8 * kv->len; bit++) {
      struct fake_kv *const there = fake_etcd_find(&etcd, keys[i]);
      there->value[bit / 8] = (char)(there->value[bit / 8] ^ 1 << bit % 8);
      refused(why);
      struct fake_kv *const again = fake_etcd_find(&etcd, keys[i]);
      again->value[bit / 8] = (char)(again->value[bit / 8] ^ 1 << bit % 8);
    }
  }
  zps_store_close(open_well());
  assert_int_equal(taken.n, 3);
}

static void test_damaged_keys(void **state) {
  (void)state;
  make();
  fake_etcd_put(&etcd, PIECE(2), "", 0, 0);
  refused("key " PIECE(2) " is damaged");
  fake_etcd_remove(&etcd, PIECE(2));
  refused("key " PIECE(2) " is missing, and later ones are there");
  fake_etcd_remove(&etcd, PIECE(1));
  refused("key " PIECE(1) " is missing, and later ones are there");
  fake_etcd_remove(&etcd, PIECE(3));
  refused("key " PIECE(1) " is missing");
  fake_etcd_put(&etcd, PIECE(0), "x", 1, 0);
  refused("key " PIECE(1) " is missing, and later ones are there");
  static const char *const bad[] = {"", "1", "00000000", "0000000g", "000000001", "ffffffff", "fffffffe"};
  for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    fake_etcd_put(&etcd, "/z/generation", bad[i], strlen(bad[i]), 0);
    refused("key /z/generation is damaged");
  }
  fake_etcd_put(&etcd, "/z/journal/00000002/0000000000000001", "x", 1, 0);
  fake_etcd_remove(&etcd, "/z/generation");
  refused("key /z/generation is missing, and journals are there");
}

/* More pieces than one answer has. */
static void test_many_pieces(void **state) {
  (void)state;
  static char log[8][20];
  struct zps_error error;
  make();
  struct zps_store *store = open_well();
  for (unsigned i = 0; i < 5; i++) {
    snprintf(log[i], sizeof log[i], "r%u", i);
    zps_store_append(store, log[i]);
    assert_int_equal(zps_store_commit(store, &error), ZPS_OK);
  }
  zps_store_close(store);
  zps_store_close(open_well());
  assert_true(is(8, (const char *const[]){"head", "a", "b", "r0", "r1", "r2", "r3", "r4"}));
  store = open_well();
  zps_store_append(store, "");
  for (unsigned i = 0; i < 20; i++) assert_int_equal(zps_store_commit(store, &error), ZPS_OK);
  zps_store_close(store);
}

static void test_away_and_refusals(void **state) {
  (void)state;
  struct zps_error error;
  char prefix[300];
  make();
  struct zps_store *store = open_well();
  zps_store_append(store, "c");
  etcd.refuses = 400;
  assert_int_equal(zps_store_commit(store, &error), ZPS_ERR_IO);
  assert_string_equal(error.text, "etcd: /v3/kv/txn: HTTP status 400: no");
  zps_store_close(store);
  etcd.refuses = 0;
  const struct zps_store_etcd_config config = {.transport = &etcd.transport, .prefix = prefix, .timeout_ms = 0};
  struct zps_store_backend *backend;
  memset(prefix, 'p', sizeof prefix);
  prefix[sizeof prefix - 1] = '\0';
  assert_int_equal(zps_store_etcd_open(&config, &backend, &error), ZPS_ERR_INVALID);
  assert_non_null(strstr(error.text, "has 299 bytes: must have at most 199"));
  strcpy(prefix, "/z");
  assert_int_equal(zps_store_etcd_open(&config, &backend, &error), ZPS_OK);
  etcd.away = true; /* no time to ask again */
  assert_int_equal(backend->ops->replace(backend, "", 0, &error), ZPS_ERR_CONNECT);
  assert_string_equal(error.text, "etcd at fake: refused");
  backend->ops->close(backend);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_conforms, setup, teardown),
      cmocka_unit_test_setup_teardown(test_fenced, setup, teardown),
      cmocka_unit_test_setup_teardown(test_fenced_while_it_starts, setup, teardown),
      cmocka_unit_test_setup_teardown(test_lost_answers, setup, teardown),
      cmocka_unit_test_setup_teardown(test_dies_at_each_call, setup, teardown),
      cmocka_unit_test_setup_teardown(test_first_journal_torn, setup, teardown),
      cmocka_unit_test_setup_teardown(test_large_record, setup, teardown),
      cmocka_unit_test_setup_teardown(test_each_bit_flipped, setup, teardown),
      cmocka_unit_test_setup_teardown(test_damaged_keys, setup, teardown),
      cmocka_unit_test_setup_teardown(test_many_pieces, setup, teardown),
      cmocka_unit_test_setup_teardown(test_away_and_refusals, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
