/* Memory that ranks of a host share: the things that a process may do to another's memory, and those that it may not.
 * */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/logs.h"
#include "tests/support/oom.h"
#include "worker/plane/shared/segment.h"

enum { MIB = 1 << 20, PROOF = 4711, WORLD = 5 };

/* A system without memory to give. */
static bool no_space;
int __real_fallocate(int fd, int mode, off_t offset, off_t len);
int __wrap_fallocate(int fd, int mode, off_t offset, off_t len);
int __wrap_fallocate(int fd, int mode, off_t offset, off_t len) {
  if (!no_space || mode != 0) return __real_fallocate(fd, mode, offset, len);
  errno = ENOSPC;
  return -1;
}

static struct zps_segment *make(uint64_t len_bytes) {
  struct zps_segment *segment;
  struct zps_error error = {0};
  if (zps_segment_create(len_bytes, PROOF, WORLD, &segment, &error) != ZPS_OK) fail_msg("%s", error.text);
  return segment;
}

static struct zps_segment_view map(const struct zps_segment *segment) {
  struct zps_segment_view view;
  struct zps_error error = {0};
  uint64_t proof;
  if (zps_segment_map(zps_segment_fd(segment), zps_segment_len(segment), &view, &proof, &error) != ZPS_OK)
    fail_msg("%s", error.text);
  assert_int_equal(proof, PROOF);
  return view;
}

static uint64_t offset_of(const struct zps_segment *segment, const void *data, uint64_t bytes) {
  uint64_t offset = 0;
  assert_true(zps_segment_offset(segment, data, bytes, &offset));
  return offset;
}

/* Bytes that the system has given. */
static uint64_t taken(const struct zps_segment *segment) {
  struct stat status;
  assert_int_equal(fstat(zps_segment_fd(segment), &status), 0);
  return (uint64_t)status.st_blocks * 512;
}

static void test_memory_comes_and_goes(void **state) {
  (void)state;
  struct zps_segment *segment = make(8 * MIB);
  const uint64_t none = taken(segment);
  assert_true(none < MIB);
  char *const a = zps_segment_get(segment, 3 * MIB), *const b = zps_segment_get(segment, 1);
  char *const c = zps_segment_get(segment, 4 * MIB);
  assert_true(a && b && c);
  assert_true((uintptr_t)a % 4096 == 0 && (uintptr_t)b % 4096 == 0);
  assert_null(zps_segment_get(segment, 1)); /* all eight are taken */
  assert_true(taken(segment) >= 8 * MIB);
  memset(a, 1, 3 * MIB);
  memset(b, 2, MIB);
  memset(c, 3, 4 * MIB);
  assert_true(a[3 * MIB - 1] == 1 && b[0] == 2 && c[0] == 3);
  zps_segment_put(segment, a, 3 * MIB);
  assert_true(taken(segment) < 6 * MIB);
  assert_null(zps_segment_get(segment, 3 * MIB + 1));
  char *const again = zps_segment_get(segment, 3 * MIB);
  assert_ptr_equal(again, a);
  assert_int_equal(again[5], 0); /* the old contents are gone */
  zps_segment_put(segment, again, 3 * MIB);
  zps_segment_put(segment, b, 1);
  zps_segment_put(segment, c, 4 * MIB);
  assert_int_equal(taken(segment), none);
  assert_ptr_equal(zps_segment_get(segment, 8 * MIB), a);
  zps_segment_destroy(segment);
  zps_segment_destroy(NULL);
}

static void test_where_it_is(void **state) {
  (void)state;
  struct zps_segment *segment = make(2 * MIB);
  char elsewhere;
  uint64_t offset;
  char *const data = zps_segment_get(segment, 2 * MIB);
  assert_int_equal(offset_of(segment, data + 10, 2 * MIB - 10), MIB + 10);
  assert_int_equal(offset_of(segment, data + 2 * MIB, 0), 3 * MIB);
  assert_false(zps_segment_offset(segment, data + 10, 2 * MIB, &offset));
  assert_false(zps_segment_offset(segment, data + 10, UINT64_MAX, &offset));
  assert_false(zps_segment_offset(segment, data - 1, 1, &offset)); /* the header belongs to no payload */
  assert_false(zps_segment_offset(segment, &elsewhere, 1, &offset));
  const struct zps_segment_view view = map(segment), none = {0};
  assert_ptr_equal(zps_segment_at(&view, MIB, 2 * MIB), view.base + MIB);
  assert_null(zps_segment_at(&view, MIB, 2 * MIB + 1));
  assert_null(zps_segment_at(&view, UINT64_MAX, 2));
  assert_null(zps_segment_at(&view, 2, UINT64_MAX));
  assert_null(zps_segment_at(&none, 0, 0));
  struct zps_segment_view gone = view;
  zps_segment_unmap(&gone);
  zps_segment_unmap(&gone);
  zps_segment_destroy(segment);
}

/* A rank that was stopped while it read is told that the others went on, however it reads: by a view of before or
 * after. */
static void test_ranks_that_are_given_up(void **state) {
  (void)state;
  struct zps_segment *segment = make(MIB);
  struct zps_segment_view before = map(segment);
  for (uint32_t rank = 0; rank <= WORLD; rank++) {
    assert_false(zps_segment_has_given_up(segment, rank));
    assert_false(zps_segment_view_is_past(&before, rank));
  }
  zps_segment_give_up(segment, WORLD - 1);
  zps_segment_give_up(segment, WORLD - 1);
  zps_segment_give_up(segment, WORLD); /* there is none */
  struct zps_segment_view after = map(segment);
  for (uint32_t rank = 0; rank <= WORLD; rank++) {
    assert_int_equal(zps_segment_has_given_up(segment, rank), rank == WORLD - 1);
    assert_int_equal(zps_segment_view_is_past(&before, rank), rank == WORLD - 1);
    assert_int_equal(zps_segment_view_is_past(&after, rank), rank == WORLD - 1);
  }
  zps_segment_destroy(segment); /* the owner ends */
  assert_true(zps_segment_view_is_past(&before, WORLD - 1) && !zps_segment_view_is_past(&before, 0));
  zps_segment_unmap(&before);
  zps_segment_unmap(&after);
  assert_true(zps_segment_view_is_past(&after, 0)); /* of what is not mapped */
}

static void test_worlds_that_are_too_large(void **state) {
  (void)state;
  struct zps_segment *none;
  struct zps_error error = {0};
  assert_int_equal(zps_segment_create(MIB, PROOF, MIB, &none, &error), ZPS_ERR_UNSUPPORTED);
  assert_non_null(strstr(error.text, "1048576 ranks; at most"));
}

/* In a child, whose status says whether all was as it should be. */
static void in_child(void (*body)(void *ctx), void *ctx) {
  const pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    body(ctx);
    _exit(0);
  }
  int status = 0;
  assert_int_equal(waitpid(pid, &status, 0), pid);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail_msg("the child ended with status 0x%x", (unsigned)status);
}

#define CHILD_CHECK(condition)  \
  do {                          \
    if (!(condition)) _exit(1); \
  } while (0)

struct shared {
  struct zps_segment *segment;
  uint64_t offset, len_bytes;
};

static void read_it(void *ctx) {
  const struct shared *shared = ctx;
  struct zps_segment_view view;
  uint64_t proof;
  CHILD_CHECK(zps_segment_map(zps_segment_fd(shared->segment), shared->len_bytes, &view, &proof, NULL) == ZPS_OK);
  CHILD_CHECK(proof == PROOF);
  const char *const data = zps_segment_at(&view, shared->offset, 5);
  CHILD_CHECK(data && memcmp(data, "hello", 5) == 0);
  /* It cannot write. */
  CHILD_CHECK(mprotect((void *)(uintptr_t)view.base, MIB, PROT_READ | PROT_WRITE) != 0);
  CHILD_CHECK(ftruncate(zps_segment_fd(shared->segment), 0) != 0);
}

static void test_another_process_reads_and_cannot_write(void **state) {
  (void)state;
  struct zps_segment *segment = make(MIB);
  char *const data = zps_segment_get(segment, 5);
  memcpy(data, "hello", 5);
  struct shared shared = {segment, offset_of(segment, data, 5), zps_segment_len(segment)};
  in_child(read_it, &shared);
  assert_memory_equal(data, "hello", 5);
  zps_segment_destroy(segment);
}

/* The memory of a process outlives its death for the processes that map it, and nothing is left when none does. */
static void test_a_dead_process_leaves_what_it_wrote(void **state) {
  (void)state;
  struct zps_segment *segment = make(MIB);
  char *const data = zps_segment_get(segment, 5);
  memcpy(data, "hello", 5);
  struct shared shared = {segment, offset_of(segment, data, 5), zps_segment_len(segment)};
  struct zps_segment_view view = map(segment);
  zps_segment_destroy(segment); /* the end of its process: nothing but our mapping refers to the segment */
  assert_memory_equal(zps_segment_at(&view, shared.offset, 5), "hello", 5);
  zps_segment_unmap(&view);
}

static void refuse(int fd, uint64_t len_bytes, const char *why) {
  struct zps_segment_view view = {0};
  struct zps_error error = {0};
  uint64_t proof;
  assert_int_not_equal(zps_segment_map(fd, len_bytes, &view, &proof, &error), ZPS_OK);
  if (!strstr(error.text, why)) fail_msg("'%s' says nothing of '%s'", error.text, why);
  assert_null(view.base);
}

static void test_what_is_no_segment(void **state) {
  (void)state;
  struct zps_segment *segment = make(MIB);
  const uint64_t len_bytes = zps_segment_len(segment);
  refuse(-1, len_bytes, "fstat");
  refuse(zps_segment_fd(segment), len_bytes + MIB, "were announced");
  refuse(zps_segment_fd(segment), len_bytes - MIB, "were announced");
  refuse(zps_segment_fd(segment), 0, "were announced");
  refuse(zps_segment_fd(segment), UINT64_MAX, "were announced");
  const int unsealed = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  assert_int_equal(ftruncate(unsealed, (off_t)len_bytes), 0);
  refuse(unsealed, len_bytes, "not sealed");
  assert_int_equal(fcntl(unsealed, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  refuse(unsealed, len_bytes, "none of ours"); /* zeros */
  close(unsealed);
  const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  refuse(file, len_bytes, "not sealed");
  close(file);
  int pipes[2];
  assert_int_equal(pipe(pipes), 0);
  refuse(pipes[0], len_bytes, "not sealed");
  close(pipes[0]);
  close(pipes[1]);
  zps_segment_destroy(segment);
}

static void limit_files(uint64_t bytes) {
  const struct rlimit limit = {.rlim_cur = bytes, .rlim_max = RLIM_INFINITY};
  CHILD_CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

static void be_limited(void *ctx) {
  (void)ctx;
  struct zps_segment *segment;
  struct zps_error error = {0};
  limit_files(3 * MIB);
  CHILD_CHECK(zps_segment_create(8 * MIB, PROOF, WORLD, &segment, &error) == ZPS_ERR_UNSUPPORTED);
  CHILD_CHECK(strstr(error.text, "ulimit -f") && strstr(error.text, "3145728"));
}

static void be_without_descriptors(void *ctx) {
  (void)ctx;
  struct zps_segment *segment;
  struct zps_error error = {0};
  const struct rlimit limit = {.rlim_cur = 3, .rlim_max = 3};
  CHILD_CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  CHILD_CHECK(zps_segment_create(MIB, PROOF, WORLD, &segment, &error) == ZPS_ERR_UNSUPPORTED);
  CHILD_CHECK(strstr(error.text, "memfd_create"));
}

static void test_no_space(void **state) {
  (void)state;
  struct zps_segment *segment = make(8 * MIB), *none;
  struct zps_error error = {0};
  char *const data = zps_segment_get(segment, 2 * MIB);
  logs_start();
  logs_expect(ZPS_LOG_WARN, "bytes of shared memory: No space left on device");
  no_space = true;
  assert_null(zps_segment_get(segment, MIB));
  assert_int_equal(zps_segment_create(MIB, PROOF, WORLD, &none, &error), ZPS_ERR_UNSUPPORTED);
  assert_string_equal(error.text, "fallocate: No space left on device");
  no_space = false;
  logs_finish();
  assert_ptr_equal(zps_segment_get(segment, MIB), data + 2 * MIB); /* it works again */
  zps_segment_destroy(segment);
  in_child(be_limited, NULL);
  in_child(be_without_descriptors, NULL);
}

static zps_err_t create(void *ctx) {
  return zps_segment_create(MIB, PROOF, WORLD, ctx, NULL);
}

static void destroy(void *ctx) {
  zps_segment_destroy(*(struct zps_segment **)ctx);
}

static void test_oom(void **state) {
  (void)state;
  struct zps_segment *segment;
  oom_sweep(create, destroy, &segment, 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_memory_comes_and_goes),
      cmocka_unit_test(test_where_it_is),
      cmocka_unit_test(test_ranks_that_are_given_up),
      cmocka_unit_test(test_worlds_that_are_too_large),
      cmocka_unit_test(test_another_process_reads_and_cannot_write),
      cmocka_unit_test(test_a_dead_process_leaves_what_it_wrote),
      cmocka_unit_test(test_what_is_no_segment),
      cmocka_unit_test(test_no_space),
      cmocka_unit_test(test_oom),
  };
  return cmocka_run_group_tests_name("segment", tests, NULL, NULL);
}
