/*
 * Out-of-memory sweeps: a create function is called with 0, 1, 2, ... allocations granted until it succeeds; each
 * failure must be ZPS_ERR_NOMEM and leave nothing behind (the sanitizers see what is).
 *
 * Include it in one file of a test program that is linked with $(OOM_WRAP): only allocations and mappings of our own
 * code are counted, not the C library's. A name that is not defined here must not be in OOM_WRAP.
 */
#ifndef ZPS_TESTS_OOM_H
#define ZPS_TESTS_OOM_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>

#include "common/base/err.h"

enum { OOM_UNLIMITED = -1 };
static atomic_long oom_granted = OOM_UNLIMITED; /* allocations left before all fail */
static atomic_bool oom_once;                    /* only one allocation fails: there is memory again after it */

/* Whether this thread is doing work outside the test, for which there is memory. */
#ifndef OOM_SPARES
#define OOM_SPARES false
#endif

static inline bool oom_fails(void) {
  if (OOM_SPARES) return false;
  long left = atomic_load(&oom_granted), then;
  do {
    if (left == OOM_UNLIMITED) return false;
    then = left > 0 ? left - 1 : oom_once ? OOM_UNLIMITED : 0;
  } while (!atomic_compare_exchange_weak(&oom_granted, &left, then));
  return left == 0;
}

/* The linker's names: __wrap_X is called for X, __real_X is X. */
void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__real_realloc(void *old, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);
void *__real_mmap(void *at, size_t len, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t len, int protection, int flags, int fd, off_t offset);
void *__real_mremap(void *old, size_t old_len, size_t len, int flags, ...);
void *__wrap_mremap(void *old, size_t old_len, size_t len, int flags, ...);

void *__wrap_malloc(size_t size) {
  return oom_fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size) {
  return oom_fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *old, size_t size) {
  return oom_fails() ? NULL : __real_realloc(old, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size) {
  return oom_fails() ? NULL : __real_aligned_alloc(alignment, size);
}

char *__wrap_strdup(const char *text) {
  return oom_fails() ? NULL : __real_strdup(text);
}

static inline void *oom_not_mapped(void) {
  errno = ENOMEM;
  return MAP_FAILED;
}

void *__wrap_mmap(void *at, size_t len, int protection, int flags, int fd, off_t offset) {
  return oom_fails() ? oom_not_mapped() : __real_mmap(at, len, protection, flags, fd, offset);
}

void *__wrap_mremap(void *old, size_t old_len, size_t len, int flags, ...) { /* no caller passes a new address */
  return oom_fails() ? oom_not_mapped() : __real_mremap(old, old_len, len, flags);
}

/* `create` makes the object and is called until it succeeds; `destroy` then takes it apart. At least `n_min`
 * allocations must have been found, so that a sweep cannot pass by testing nothing. */
static inline void oom_sweep(zps_err_t (*create)(void *ctx), void (*destroy)(void *ctx), void *ctx, long n_min) {
  for (long n = 0;; n++) {
    atomic_store(&oom_granted, n);
    const zps_err_t code = create(ctx);
    const bool all_used = atomic_load(&oom_granted) == 0;
    atomic_store(&oom_granted, OOM_UNLIMITED);
    if (code == ZPS_OK) {
      destroy(ctx);
      assert_true(n >= n_min);
      return;
    }
    assert_true(all_used);
    assert_int_equal(code, ZPS_ERR_NOMEM);
  }
}

#endif
