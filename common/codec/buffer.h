/* Scratch memory that grows and is kept from round to round. */
#ifndef ZPS_CODEC_BUFFER_H
#define ZPS_CODEC_BUFFER_H

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "common/base/err.h"

struct zps_buffer {
  void *data;
  uint64_t size_bytes;
};

static inline void zps_buffer_fini(struct zps_buffer *buffer) {
  free(buffer->data);
  *buffer = (struct zps_buffer){0};
}

/* Large buffers are written in many places at once, each in its own page: with pages of 2 MiB, where the machine has
 * them on request, the processor finds them all. Only speed hangs on it. */
static inline void zps_buffer_advise(void *data, uint64_t size_bytes) {
#ifdef MADV_HUGEPAGE
  enum { LARGE_BYTES = 4 << 20, PAGE_BYTES = 4096 };
  const uintptr_t first = ((uintptr_t)data + PAGE_BYTES - 1) & ~(uintptr_t)(PAGE_BYTES - 1);
  const uintptr_t end = ((uintptr_t)data + size_bytes) & ~(uintptr_t)(PAGE_BYTES - 1);
  if (size_bytes >= LARGE_BYTES) (void)madvise((void *)first, end - first, MADV_HUGEPAGE);
#else
  (void)data, (void)size_bytes;
#endif
}

/* At least `n` elements of `elem_bytes`. An eighth more than asked is allocated, so that sizes which creep upwards from
 * round to round do not allocate each time. The contents do not survive growing. */
ZPS_MUSTCHECK static inline zps_err_t zps_buffer_need(struct zps_buffer *buffer, uint64_t n, uint64_t elem_bytes) {
  uint64_t size_bytes;
  if (__builtin_mul_overflow(n, elem_bytes, &size_bytes) || size_bytes > SIZE_MAX / 2) return ZPS_ERR_NOMEM;
  if (size_bytes <= buffer->size_bytes && buffer->data) return ZPS_OK;
  zps_buffer_fini(buffer);
  size_bytes = (size_bytes + size_bytes / 8 + 64) & ~63ull;
  buffer->data = malloc(size_bytes);
  if (!buffer->data) return ZPS_ERR_NOMEM;
  buffer->size_bytes = size_bytes;
  zps_buffer_advise(buffer->data, size_bytes);
  return ZPS_OK;
}

/* At least `n` elements, where those that are there stay: for lists whose length shows while they are made. */
ZPS_MUSTCHECK static inline zps_err_t zps_buffer_extend(struct zps_buffer *buffer, uint64_t n, uint64_t elem_bytes) {
  uint64_t size_bytes;
  if (__builtin_mul_overflow(n, elem_bytes, &size_bytes) || size_bytes > SIZE_MAX / 4) return ZPS_ERR_NOMEM;
  if (size_bytes <= buffer->size_bytes && buffer->data) return ZPS_OK;
  size_bytes = (size_bytes + size_bytes / 2 + 64) & ~63ull;
  void *const data = realloc(buffer->data, size_bytes);
  if (!data) return ZPS_ERR_NOMEM;
  *buffer = (struct zps_buffer){.data = data, .size_bytes = size_bytes};
  zps_buffer_advise(data, size_bytes);
  return ZPS_OK;
}

#endif
