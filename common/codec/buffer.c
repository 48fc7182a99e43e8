#include "common/codec/buffer.h"

#include <string.h>
#include <sys/mman.h>

enum { LARGE_BYTES = 256 << 10, HUGE_BYTES = 4 << 20, PAGE_BYTES = 4096 };

/* The thread sanitizer does not see memory move: where another thread's was before, it would take it for the same. */
#ifdef __SANITIZE_THREAD__
enum { MOVES = 0 };
#else
enum { MOVES = 1 };
#endif

void zps_buffer_advise(void *data, uint64_t size_bytes) {
#ifdef MADV_HUGEPAGE
  const uintptr_t first = ((uintptr_t)data + PAGE_BYTES - 1) & ~(uintptr_t)(PAGE_BYTES - 1);
  const uintptr_t end = ((uintptr_t)data + size_bytes) & ~(uintptr_t)(PAGE_BYTES - 1);
  if (size_bytes >= HUGE_BYTES) (void)madvise((void *)first, end - first, MADV_HUGEPAGE);
#else
  (void)data, (void)size_bytes;
#endif
}

static bool is_large(uint64_t size_bytes) {
  return size_bytes >= LARGE_BYTES;
}

static void *get(uint64_t size_bytes) {
  if (!is_large(size_bytes)) return malloc(size_bytes);
  void *const data = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return data != MAP_FAILED ? data : NULL;
}

void zps_buffer_fini(struct zps_buffer *buffer) {
  if (is_large(buffer->size_bytes)) {
    munmap(buffer->data, buffer->size_bytes);
  } else {
    free(buffer->data);
  }
  *buffer = (struct zps_buffer){0};
}

/* Whole pages are mapped: all of the memory is advised then, and can be moved as one. */
static uint64_t rounded(uint64_t size_bytes) {
  const uint64_t unit = is_large(size_bytes) ? PAGE_BYTES : 64;
  return (size_bytes + unit) & ~(unit - 1);
}

zps_err_t zps_buffer_replace(struct zps_buffer *buffer, uint64_t size_bytes) {
  zps_buffer_fini(buffer);
  size_bytes = rounded(size_bytes);
  buffer->data = get(size_bytes);
  if (!buffer->data) return ZPS_ERR_NOMEM;
  buffer->size_bytes = size_bytes;
  zps_buffer_advise(buffer->data, size_bytes);
  return ZPS_OK;
}

/* NULL: as it was. */
static void *regrow(const struct zps_buffer *buffer, uint64_t size_bytes) {
  if (!is_large(size_bytes)) return realloc(buffer->data, size_bytes);
  if (is_large(buffer->size_bytes) && MOVES) {
    void *const moved = mremap(buffer->data, buffer->size_bytes, size_bytes, MREMAP_MAYMOVE);
    return moved != MAP_FAILED ? moved : NULL;
  }
  void *const data = get(size_bytes);
  if (!data || !buffer->data) return data;
  struct zps_buffer old = *buffer;
  memcpy(data, old.data, old.size_bytes);
  zps_buffer_fini(&old);
  return data;
}

zps_err_t zps_buffer_grow(struct zps_buffer *buffer, uint64_t size_bytes) {
  size_bytes = rounded(size_bytes);
  void *const data = regrow(buffer, size_bytes);
  if (!data) return ZPS_ERR_NOMEM;
  *buffer = (struct zps_buffer){.data = data, .size_bytes = size_bytes};
  zps_buffer_advise(data, size_bytes);
  return ZPS_OK;
}
