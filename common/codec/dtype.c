#include "common/codec/dtype.h"

#include <string.h>

static const struct {
  const char *name;
  size_t size;
} dtypes[] = {[ZPS_DTYPE_F32] = {"f32", 4},
              [ZPS_DTYPE_F64] = {"f64", 8},
              [ZPS_DTYPE_U8] = {"u8", 1},
              [ZPS_DTYPE_BF16] = {"bf16", 2},
              [ZPS_DTYPE_F16] = {"f16", 2}};
enum { N_DTYPES = sizeof dtypes / sizeof dtypes[0] };

size_t zps_dtype_size(enum zps_dtype dtype) {
  return (unsigned)dtype < N_DTYPES ? dtypes[dtype].size : 0;
}

const char *zps_dtype_name(enum zps_dtype dtype) {
  return zps_dtype_size(dtype) ? dtypes[dtype].name : "?";
}

bool zps_dtype_parse(const char *name, enum zps_dtype *dtype_p) {
  for (unsigned i = 0; i < N_DTYPES; i++) {
    if (!dtypes[i].name || strcmp(dtypes[i].name, name) != 0) continue;
    *dtype_p = (enum zps_dtype)i;
    return true;
  }
  return false;
}
