/* Takes arbitrary bytes for a list of coded values: codec, dtype, how many, and the list. An accepted list must decode,
 * whole and in parts, to the same bits with every instruction set; decoded values must survive coding as raw values do,
 * and bf16 and f16 without another rounding. */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "common/codec/simd/simd.h"
#include "common/codec/values.h"

enum { HEAD_BYTES = 4 };

static void *need(size_t bytes) {
  void *const memory = malloc(bytes ? bytes : 1);
  if (!memory) abort();
  return memory;
}

/* Any values there are. */
static void code(enum zps_value_codec codec, enum zps_dtype dtype, const void *values, uint64_t n) {
  const uint64_t len = zps_values_bytes(codec, dtype, n);
  char *const list = need(len), *const other = need(len), *const decoded = need(n * zps_dtype_size(dtype));
  const struct zps_simd *simd;
  for (unsigned i = 0; (simd = zps_simd_variant(i)) != NULL; i++) {
    zps_simd_use(simd);
    zps_values_encode(codec, dtype, values, n, len, i == 0 ? list : other);
    if (i > 0 && memcmp(list, other, len) != 0) abort();
  }
  zps_simd_use(NULL);
  if (zps_values_check(codec, dtype, list, n, NULL) != ZPS_OK) abort();
  zps_values_decode(codec, dtype, list, n, 0, n, decoded);
  if (codec == ZPS_VALUES_BF16 || codec == ZPS_VALUES_F16) {
    zps_values_encode(codec, dtype, decoded, n, 0, other);
    if (memcmp(list, other, len) != 0) abort();
  }
  free(list);
  free(other);
  free(decoded);
}

static void decode(enum zps_value_codec codec, enum zps_dtype dtype, const void *list, uint64_t n) {
  const uint64_t size = zps_dtype_size(dtype);
  char *const values = need(n * size), *const part = need(n * size);
  const struct zps_simd *simd;
  for (unsigned i = 0; (simd = zps_simd_variant(i)) != NULL; i++) {
    zps_simd_use(simd);
    zps_values_decode(codec, dtype, list, n, 0, n, i == 0 ? values : part);
    if (i > 0 && memcmp(values, part, n * size) != 0) abort();
  }
  zps_simd_use(NULL);
  for (uint64_t first = 0; first < n; first += n / 7 + 1) {
    const uint64_t count = n - first < n / 5 + 1 ? n - first : n / 5 + 1;
    zps_values_decode(codec, dtype, list, n, first, count, part);
    if (memcmp(part, values + first * size, count * size) != 0) abort();
  }
  code(codec, dtype, values, n);
  free(values);
  free(part);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct zps_error error;
  if (size < HEAD_BYTES) return 0;
  const enum zps_value_codec codec = (enum zps_value_codec)(data[0] % 8);
  const enum zps_dtype dtype = data[1] & 1 ? ZPS_DTYPE_F64 : ZPS_DTYPE_F32;
  const uint64_t n = data[2] | (uint64_t)data[3] << 8;
  const size_t len = size - HEAD_BYTES;
  if (!zps_values_suit(codec, dtype)) return 0;
  code(codec, dtype, data + HEAD_BYTES, len / zps_dtype_size(dtype));
  /* from an exact allocation, where a sanitizer sees every byte read too far */
  if (zps_values_bytes(codec, dtype, n) > len) return 0;
  void *const list = need(zps_values_bytes(codec, dtype, n));
  memcpy(list, data + HEAD_BYTES, zps_values_bytes(codec, dtype, n));
  if (zps_values_check(codec, dtype, list, n, &error) == ZPS_OK) decode(codec, dtype, list, n);
  free(list);
  return 0;
}
