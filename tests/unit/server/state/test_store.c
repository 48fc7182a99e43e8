/* The store: each byte of a journal torn or flipped, what is durable and what is not, and the folder on disk. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/logs.h"
#include "tests/unit/server/state/store_conform.h"
#include "tests/unit/server/state/store_memory.h"

enum { RECORDS = 6 };
static const char *const records[RECORDS] = {"{\"what\":\"header\"}", "{}", "1 2 3", "", "{\"name\":\"w\",\"n\":17}",
                                             "{\"the\":\"last\"}"};

static struct store_memory memory, copy;
static struct {
  unsigned n;
  char texts[RECORDS + 4][64];
} taken;

static zps_err_t take(void *ctx, const char *text, size_t len) {
  (void)ctx;
  assert_true(taken.n < RECORDS + 4 && strlen(text) == len && len < 64);
  strcpy(taken.texts[taken.n++], text);
  return ZPS_OK;
}

static zps_err_t open_again(struct zps_store_backend *backend, struct zps_store **store_p, struct zps_error *error) {
  taken.n = 0;
  return zps_store_open(backend, take, NULL, store_p, error);
}

static void same(unsigned from, unsigned n) {
  assert_int_equal(taken.n, n);
  for (unsigned i = from; i < n; i++) assert_string_equal(taken.texts[i], records[i]);
}

static void append_header(void *ctx) {
  zps_store_append(*(struct zps_store **)ctx, records[0]);
}

/* A journal of all records, each committed by itself; ends[i]: behind record i. */
static void make(struct store_memory *to, size_t *ends) {
  struct zps_store *store;
  struct zps_error error;
  store_memory_init(to);
  assert_int_equal(open_again(&to->backend, &store, &error), ZPS_OK);
  assert_int_equal(taken.n, 0);
  assert_int_equal(zps_store_compact(store, append_header, &store, &error), ZPS_OK);
  ends[0] = to->len;
  for (unsigned i = 1; i < RECORDS; i++) {
    zps_store_append(store, records[i]);
    assert_true(zps_store_is_dirty(store));
    assert_int_equal(zps_store_commit(store, &error), ZPS_OK);
    assert_false(zps_store_is_dirty(store));
    ends[i] = to->len;
  }
  assert_int_equal(zps_store_size(store), to->len);
  assert_int_equal(to->n_syncs, RECORDS - 1);
  zps_store_close(store);
}

static void test_what_was_committed_is_there(void **state) {
  (void)state;
  size_t ends[RECORDS];
  struct zps_store *store;
  struct zps_error error;
  make(&memory, ends);
  assert_int_equal(open_again(&memory.backend, &store, &error), ZPS_OK);
  same(0, RECORDS);
  zps_store_close(store);
}

/* The process dies while it writes: the records that are whole are there, and the next ones follow them. */
static void test_torn_at_each_byte(void **state) {
  (void)state;
  size_t ends[RECORDS];
  logs_start();
  logs_expect(ZPS_LOG_WARN, "memory: a torn tail of ");
  make(&copy, ends);
  for (size_t len = ends[0]; len < copy.len; len++) {
    struct zps_store *store;
    struct zps_error error;
    unsigned whole = 0;
    while (whole < RECORDS && ends[whole] <= len) whole++;
    memory = copy;
    memory.len = memory.durable = len;
    assert_int_equal(open_again(&memory.backend, &store, &error), ZPS_OK);
    same(0, whole);
    assert_true(memory.len == ends[whole - 1] && zps_store_size(store) == memory.len);
    zps_store_append(store, "{\"more\":1}");
    assert_int_equal(zps_store_commit(store, &error), ZPS_OK);
    zps_store_close(store);
    assert_int_equal(open_again(&memory.backend, &store, &error), ZPS_OK);
    assert_int_equal(taken.n, whole + 1);
    assert_string_equal(taken.texts[whole], "{\"more\":1}");
    zps_store_close(store);
  }
  logs_finish();
}

/* A damaged record with others behind it: refused, by its byte. The last one alone may be a torn tail. */
static void test_each_byte_flipped(void **state) {
  (void)state;
  size_t ends[RECORDS];
  make(&copy, ends);
  logs_start();
  logs_allow(ZPS_LOG_WARN, "memory: a torn tail of ");
  for (size_t at = 0; at < copy.len; at++) {
    for (unsigned bit = 0; bit < 8; bit++) {
      struct zps_store *store;
      struct zps_error error;
      char where[64];
      unsigned hit = 0;
      while (ends[hit] <= at) hit++;
      memory = copy;
      memory.data[at] = (char)(memory.data[at] ^ (1 << bit));
      const zps_err_t err = open_again(&memory.backend, &store, &error);
      if (hit == RECORDS - 1) {
        assert_int_equal(err, ZPS_OK);
        same(0, RECORDS - 1);
        zps_store_close(store);
        continue;
      }
      assert_int_equal(err, ZPS_ERR_IO);
      snprintf(where, sizeof where, "record at byte %zu (number %u)", hit ? ends[hit - 1] : 0, hit);
      if (!strstr(error.text, where)) fail_msg("%s: %s", where, error.text);
      assert_int_equal(taken.n, 0);
      assert_true(memory.n_replaced == copy.n_replaced && memory.len == copy.len); /* nothing is touched */
    }
  }
  logs_finish();
}

/* A first record that is not whole is no torn tail: it was not written alone. */
static void test_first_record(void **state) {
  (void)state;
  size_t ends[RECORDS];
  struct zps_store *store;
  struct zps_error error;
  make(&memory, ends);
  memory.len = ends[0] - 1;
  assert_int_equal(open_again(&memory.backend, &store, &error), ZPS_ERR_IO);
  assert_non_null(strstr(error.text, "the record at byte 0"));
}

/* What was appended and not committed is not there; what was being committed is there from its beginning on, or not. */
static void test_lost_tails(void **state) {
  (void)state;
  size_t ends[RECORDS];
  struct zps_store *store;
  struct zps_error error;
  logs_start();
  logs_allow(ZPS_LOG_WARN, "memory: a torn tail of ");
  for (size_t kept = 0; kept < 1000; kept++) {
    make(&memory, ends);
    assert_int_equal(open_again(&memory.backend, &store, &error), ZPS_OK);
    for (unsigned i = 0; i < 3; i++) zps_store_append(store, records[i]);
    assert_int_equal(memory.len, ends[RECORDS - 1]); /* one write, when it is committed */
    memory.fails = true;
    assert_int_equal(zps_store_commit(store, &error), ZPS_ERR_IO);
    assert_string_equal(error.text, "the disk is gone");
    memory.fails = false;
    assert_int_equal(zps_store_commit(store, &error), ZPS_ERR_IO); /* nobody knows what is there */
    assert_int_equal(memory.n_syncs, RECORDS);
    zps_store_close(store);
    if (kept > memory.len - memory.durable) break;
    store_memory_die(&memory, kept);
    assert_int_equal(open_again(&memory.backend, &store, &error), ZPS_OK);
    assert_in_range(taken.n, RECORDS, RECORDS + 3);
    for (unsigned i = RECORDS; i < taken.n; i++) assert_string_equal(taken.texts[i], records[i - RECORDS]);
    zps_store_close(store);
  }
  logs_finish();
}

static void append_two(void *ctx) {
  append_header(ctx);
  zps_store_append(*(struct zps_store **)ctx, "{\"all\":true}");
}

static void test_compact(void **state) {
  (void)state;
  size_t ends[RECORDS];
  struct zps_store *store;
  struct zps_error error;
  make(&memory, ends);
  assert_int_equal(open_again(&memory.backend, &store, &error), ZPS_OK);
  assert_int_equal(zps_store_compact(store, append_two, &store, &error), ZPS_OK);
  assert_true(zps_store_size(store) == memory.len && memory.len < ends[RECORDS - 1]);
  zps_store_append(store, records[1]);
  assert_int_equal(zps_store_commit(store, &error), ZPS_OK);
  zps_store_close(store);
  assert_int_equal(open_again(&memory.backend, &store, &error), ZPS_OK);
  assert_int_equal(taken.n, 3);
  assert_string_equal(taken.texts[1], "{\"all\":true}");
  assert_string_equal(taken.texts[2], records[1]);
  zps_store_close(store);
}

/* The form is one of this world: the check of the CRC's own definition. */
static void test_form(void **state) {
  (void)state;
  static const char wanted[] = "86202467680fa63f 5 hello\n";
  struct zps_journal_buffer buffer = {.data = NULL};
  assert_int_equal(zps_journal_add(&buffer, "hello", 5), ZPS_OK);
  assert_int_equal(buffer.len, sizeof wanted - 1);
  assert_memory_equal(buffer.data, wanted, sizeof wanted - 1);
  free(buffer.data);
}

/* ------------------------------------------------------------ files */

static char folder[] = "/tmp/zenps-store.XXXXXX";

static void in_folder(const char *name, char *path, size_t size) {
  snprintf(path, size, "%s/%s", folder, name);
}

static void test_files(void **state) {
  (void)state;
  struct zps_store_backend *backend, *other;
  struct zps_store *store;
  struct zps_error error;
  struct stat st;
  char path[200], nested[100];
  assert_non_null(mkdtemp(folder));
  in_folder("state", nested, sizeof nested);
  assert_int_equal(zps_store_file_open(nested, &backend, &error), ZPS_OK); /* made */
  assert_true(stat(nested, &st) == 0 && (st.st_mode & 0777) == 0700);
  assert_int_equal(open_again(backend, &store, &error), ZPS_OK);
  assert_int_equal(zps_store_compact(store, append_header, &store, &error), ZPS_OK);
  for (unsigned i = 1; i < RECORDS; i++) zps_store_append(store, records[i]);
  assert_int_equal(zps_store_commit(store, &error), ZPS_OK);
  assert_int_equal(zps_store_file_open(nested, &other, &error), ZPS_ERR_BUSY);
  assert_non_null(strstr(error.text, "another process keeps its state there"));
  zps_store_close(store);
  in_folder("state/journal.new", path, sizeof path); /* of one that died while it replaced the journal */
  close(open(path, O_CREAT | O_WRONLY, 0600));
  assert_int_equal(zps_store_file_open(nested, &backend, &error), ZPS_OK);
  assert_true(stat(path, &st) < 0);
  assert_int_equal(open_again(backend, &store, &error), ZPS_OK);
  same(0, RECORDS);
  assert_int_equal(zps_store_compact(store, append_two, &store, &error), ZPS_OK);
  zps_store_close(store);
  assert_int_equal(zps_store_file_open(nested, &backend, &error), ZPS_OK);
  assert_int_equal(open_again(backend, &store, &error), ZPS_OK);
  assert_int_equal(taken.n, 2);
  zps_store_close(store);
  in_folder("state/journal", path, sizeof path);
  assert_int_equal(zps_store_file_open(path, &backend, &error), ZPS_ERR_IO); /* no folder */
  unlink(path);
  rmdir(nested);
  rmdir(folder);
}

/* A disk that was full when the process died, and is: here no file may be written beyond its first byte. */
static void test_torn_on_a_full_disk(void **state) {
  (void)state;
  static const char torn[] = "0123456789abcdef 30 {\"torn\":";
  struct zps_store_backend *backend;
  struct zps_store *store;
  struct zps_error error;
  struct rlimit limit, full;
  char path[200];
  strcpy(folder, "/tmp/zenps-store.XXXXXX");
  assert_non_null(mkdtemp(folder));
  assert_int_equal(zps_store_file_open(folder, &backend, &error), ZPS_OK);
  assert_int_equal(open_again(backend, &store, &error), ZPS_OK);
  assert_int_equal(zps_store_compact(store, append_two, &store, &error), ZPS_OK);
  zps_store_close(store);
  in_folder("journal", path, sizeof path);
  const int fd = open(path, O_WRONLY | O_APPEND);
  assert_int_equal(write(fd, torn, sizeof torn - 1), sizeof torn - 1);
  close(fd);
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
  full = (struct rlimit){.rlim_cur = 1, .rlim_max = limit.rlim_max};
  signal(SIGXFSZ, SIG_IGN);
  logs_start();
  logs_expect(ZPS_LOG_WARN, "/journal: a torn tail of 28 bytes is cut off");
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &full), 0);
  assert_int_equal(zps_store_file_open(folder, &backend, &error), ZPS_OK);
  const zps_err_t err = open_again(backend, &store, &error);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
  assert_int_equal(err, ZPS_OK);
  logs_finish();
  assert_int_equal(taken.n, 2);
  zps_store_append(store, records[1]);
  assert_int_equal(zps_store_commit(store, &error), ZPS_OK);
  zps_store_close(store);
  assert_int_equal(zps_store_file_open(folder, &backend, &error), ZPS_OK);
  assert_int_equal(open_again(backend, &store, &error), ZPS_OK);
  assert_int_equal(taken.n, 3);
  assert_string_equal(taken.texts[2], records[1]);
  zps_store_close(store);
  unlink(path);
  rmdir(folder);
}

/* ------------------------------------------------------------ what both promise */

static struct zps_store_backend *open_memory(void) {
  return &memory.backend;
}

static char conform_folder[] = "/tmp/zenps-store.XXXXXX";

static struct zps_store_backend *open_file(void) {
  struct zps_store_backend *backend;
  struct zps_error error;
  if (zps_store_file_open(conform_folder, &backend, &error)) fail_msg("%s", error.text);
  return backend;
}

static void test_conform(void **state) {
  (void)state;
  char path[200];
  store_memory_init(&memory);
  store_conform(open_memory);
  assert_non_null(mkdtemp(conform_folder));
  store_conform(open_file);
  snprintf(path, sizeof path, "%s/journal", conform_folder);
  unlink(path);
  rmdir(conform_folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_what_was_committed_is_there),
      cmocka_unit_test(test_torn_at_each_byte),
      cmocka_unit_test(test_each_byte_flipped),
      cmocka_unit_test(test_first_record),
      cmocka_unit_test(test_lost_tails),
      cmocka_unit_test(test_compact),
      cmocka_unit_test(test_form),
      cmocka_unit_test(test_files),
      cmocka_unit_test(test_torn_on_a_full_disk),
      cmocka_unit_test(test_conform),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
