/*
 * Arrays of gradients and results, for zenps-perf and the rivals' programs alike: large ones in pages of 2 MiB, where
 * the machine has them on request, as numpy and PyTorch (THP_MEM_ALLOC_ENABLE=1) ask for theirs.
 */
#ifndef ZPS_TOOLS_PERF_ARRAY_H
#define ZPS_TOOLS_PERF_ARRAY_H

#include <stdint.h>
#include <stdlib.h>

#include "common/codec/buffer.h"

/* For free(). Not cleared. */
static inline void *perf_array_alloc(uint64_t n, size_t elem_bytes) {
  const size_t page_bytes = 2u << 20;
  size_t bytes;
  if (__builtin_mul_overflow(n, elem_bytes, &bytes) || bytes > SIZE_MAX / 2) return NULL;
  if (bytes < page_bytes) return malloc(bytes ? bytes : 1);
  bytes = (bytes + page_bytes - 1) & ~(page_bytes - 1);
  void *const array = aligned_alloc(page_bytes, bytes);
  if (array) zps_buffer_advise(array, bytes);
  return array;
}

#endif
