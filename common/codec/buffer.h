/*
 * Scratch memory that grows and is kept from round to round. A large buffer is mapped by itself: when it is given back
 * it is the system's again, whatever else the process has allocated since.
 */
#ifndef ZPS_CODEC_BUFFER_H
#define ZPS_CODEC_BUFFER_H

#include <stdint.h>
#include <stdlib.h>

#include "common/base/err.h"

struct zps_buffer {
  void *data;
  uint64_t size_bytes;
};

/* Pages of 2 MiB for large memory, where the machine has them on request. It is written in many places at once, each in
 * its own page, and so the processor finds them all. Only speed hangs on it. */
void zps_buffer_advise(void *data, uint64_t size_bytes);
void zps_buffer_fini(struct zps_buffer *buffer);
/* The two functions below call this when the buffer is too small. */
zps_err_t zps_buffer_replace(struct zps_buffer *buffer, uint64_t size_bytes) ZPS_MUSTCHECK;
zps_err_t zps_buffer_grow(struct zps_buffer *buffer, uint64_t size_bytes) ZPS_MUSTCHECK;

/* At least `n` elements of `elem_bytes`. An eighth more than asked is allocated, so that sizes which creep upwards from
 * round to round do not allocate each time. The contents do not survive growing. */
ZPS_MUSTCHECK static inline zps_err_t zps_buffer_need(struct zps_buffer *buffer, uint64_t n, uint64_t elem_bytes) {
  uint64_t size_bytes;
  if (__builtin_mul_overflow(n, elem_bytes, &size_bytes) || size_bytes > SIZE_MAX / 2) return ZPS_ERR_NOMEM;
  if (size_bytes <= buffer->size_bytes && buffer->data) return ZPS_OK;
  return zps_buffer_replace(buffer, size_bytes + size_bytes / 8);
}

/* At least `n` elements, where the present elements stay: for lists with a length that shows while they are made. */
ZPS_MUSTCHECK static inline zps_err_t zps_buffer_extend(struct zps_buffer *buffer, uint64_t n, uint64_t elem_bytes) {
  uint64_t size_bytes;
  if (__builtin_mul_overflow(n, elem_bytes, &size_bytes) || size_bytes > SIZE_MAX / 4) return ZPS_ERR_NOMEM;
  if (size_bytes <= buffer->size_bytes && buffer->data) return ZPS_OK;
  return zps_buffer_grow(buffer, size_bytes + size_bytes / 2);
}

#endif
