#include "tests/unit/codec/codec_reference.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/halves.h"

struct zps_murmur *ref_partition(uint64_t rows, uint32_t n_parts, uint32_t block_bits, uint64_t seed,
                                 struct zps_partition *part) {
  struct zps_murmur *murmur = NULL;
  const zps_err_t code = block_bits == REF_HASHED ? zps_murmur_create(rows, n_parts, seed, NULL, &murmur, part, NULL)
                                                  : zps_partition_init(part, rows, n_parts, block_bits, seed, NULL);
  assert_int_equal(code, ZPS_OK);
  return murmur;
}

size_t ref_row_bytes(const struct ref_gradient *gradient) {
  return gradient->width * zps_dtype_size(gradient->dtype);
}

static double draw(struct zps_rng *rng) {
  switch (zps_rng_below(rng, 40)) {
    case 0:
      return NAN;
    case 1:
      return INFINITY;
    case 2:
      return -INFINITY;
    case 3:
      return -0.0;
    case 4:
      return 1e-42; /* subnormal as a float */
    case 5:
      return 0;
    default:
      return (zps_rng_unit(rng) - 0.5) * pow(10, (double)zps_rng_below(rng, 12) - 6);
  }
}

static void draw_row(struct zps_rng *rng, enum zps_dtype dtype, void *row, uint32_t width) {
  for (uint32_t j = 0; j < width; j++) {
    if (dtype == ZPS_DTYPE_F32)
      ((float *)row)[j] = (float)draw(rng);
    else if (dtype == ZPS_DTYPE_F64)
      ((double *)row)[j] = draw(rng);
    else if (dtype == ZPS_DTYPE_U8)
      ((uint8_t *)row)[j] = (uint8_t)zps_rng_u64(rng);
    else
      ((uint16_t *)row)[j] =
          zps_rng_below(rng, 20) ? halves_narrow(dtype, (float)draw(rng)) : (uint16_t)zps_rng_u64(rng);
  }
}

/* A zero row, of either sign. */
static void draw_zero_row(struct zps_rng *rng, enum zps_dtype dtype, void *row, uint32_t width) {
  memset(row, 0, width * zps_dtype_size(dtype));
  if (dtype == ZPS_DTYPE_U8 || zps_rng_below(rng, 4) != 0) return;
  for (uint32_t j = 0; j < width; j++) {
    if (dtype == ZPS_DTYPE_F32)
      ((float *)row)[j] = -0.0f;
    else if (dtype == ZPS_DTYPE_F64)
      ((double *)row)[j] = -0.0;
    else
      ((uint16_t *)row)[j] = 0x8000;
  }
}

bool ref_is_zero(enum zps_dtype dtype, const void *values, uint64_t n) {
  for (uint64_t i = 0; i < n; i++) {
    if (dtype == ZPS_DTYPE_F32 && ((const float *)values)[i] != 0) return false;
    if (dtype == ZPS_DTYPE_F64 && ((const double *)values)[i] != 0) return false;
    if (dtype == ZPS_DTYPE_U8 && ((const uint8_t *)values)[i] != 0) return false;
    if (zps_dtype_is_half(dtype) && ((const uint16_t *)values)[i] & 0x7fff) return false;
  }
  return true;
}

void ref_add(enum zps_dtype dtype, void *sums, const void *values, uint64_t n) {
  for (uint64_t i = 0; i < n; i++) {
    if (dtype == ZPS_DTYPE_F32)
      ((float *)sums)[i] += ((const float *)values)[i];
    else if (dtype == ZPS_DTYPE_F64)
      ((double *)sums)[i] += ((const double *)values)[i];
    else
      ((uint8_t *)sums)[i] = (uint8_t)(((uint8_t *)sums)[i] + ((const uint8_t *)values)[i]);
  }
}

static struct ref_gradient new_gradient(uint64_t rows, uint32_t width, enum zps_dtype dtype) {
  struct ref_gradient gradient = {.rows = rows, .width = width, .dtype = dtype};
  gradient.dense = calloc(rows, ref_row_bytes(&gradient));
  gradient.present = calloc(rows, sizeof(bool));
  assert_non_null(gradient.dense);
  assert_non_null(gradient.present);
  return gradient;
}

static void find_present(struct ref_gradient *gradient) {
  for (uint64_t row = 0; row < gradient->rows; row++)
    gradient->present[row] =
        !ref_is_zero(gradient->dtype, (const char *)gradient->dense + row * ref_row_bytes(gradient), gradient->width);
}

struct ref_gradient ref_dense(struct zps_rng *rng, uint64_t rows, uint32_t width, enum zps_dtype dtype,
                              double density) {
  struct ref_gradient gradient = new_gradient(rows, width, dtype);
  for (uint64_t row = 0; row < rows; row++) {
    char *const at = (char *)gradient.dense + row * ref_row_bytes(&gradient);
    if (zps_rng_unit(rng) < density)
      draw_row(rng, dtype, at, width);
    else
      draw_zero_row(rng, dtype, at, width);
  }
  find_present(&gradient);
  return gradient;
}

/* Entry `entry` becomes the negative of the last one, so that the two add up to zero. */
static void negate_last(const struct ref_gradient *gradient, uint64_t entry) {
  gradient->row_ids[entry] = gradient->row_ids[entry - 1];
  for (uint32_t j = 0; j < gradient->width; j++) {
    const uint64_t to = entry * gradient->width + j, from = to - gradient->width;
    if (gradient->dtype == ZPS_DTYPE_F32)
      ((float *)gradient->values)[to] = -((float *)gradient->values)[from];
    else if (gradient->dtype == ZPS_DTYPE_F64)
      ((double *)gradient->values)[to] = -((double *)gradient->values)[from];
    else if (zps_dtype_is_half(gradient->dtype))
      ((uint16_t *)gradient->values)[to] = ((uint16_t *)gradient->values)[from] ^ 0x8000;
    else
      ((uint8_t *)gradient->values)[to] = (uint8_t) - ((uint8_t *)gradient->values)[from];
  }
}

struct ref_gradient ref_coo(struct zps_rng *rng, uint64_t rows, uint32_t width, enum zps_dtype dtype, double density) {
  struct ref_gradient gradient = new_gradient(rows, width, dtype);
  const size_t row_bytes = ref_row_bytes(&gradient);
  gradient.n_entries = (uint64_t)(density * (double)rows);
  gradient.row_ids = calloc(gradient.n_entries + 1, sizeof(int64_t));
  gradient.values = calloc(gradient.n_entries + 1, row_bytes);
  assert_non_null(gradient.row_ids);
  assert_non_null(gradient.values);
  const uint64_t hot = rows < 50 ? rows : 50; /* rows that repeat */
  for (uint64_t i = 0; i < gradient.n_entries; i++) {
    char *const at = (char *)gradient.values + i * row_bytes;
    const uint64_t kind = zps_rng_below(rng, 8);
    gradient.row_ids[i] = (int64_t)(kind < 3 ? zps_rng_below(rng, hot) * (rows / hot) : zps_rng_below(rng, rows));
    if (kind == 7 && i > 0) {
      negate_last(&gradient, i);
    } else if (kind == 6) {
      draw_zero_row(rng, dtype, at, width);
    } else {
      draw_row(rng, dtype, at, width);
    }
  }
  for (uint64_t i = 0; i < gradient.n_entries && !zps_dtype_is_half(dtype); i++)
    ref_add(dtype, (char *)gradient.dense + (uint64_t)gradient.row_ids[i] * row_bytes,
            (const char *)gradient.values + i * row_bytes, width);
  find_present(&gradient);
  return gradient;
}

void ref_free(struct ref_gradient *gradient) {
  free(gradient->dense);
  free(gradient->present);
  free(gradient->row_ids);
  free(gradient->values);
}

struct zps_encode_input ref_input(const struct ref_gradient *gradient, const struct zps_partition *part) {
  return (struct zps_encode_input){.part = part,
                                   .width = gradient->width,
                                   .dtype = gradient->dtype,
                                   .value_codec = zps_values_own(gradient->dtype),
                                   .values = gradient->row_ids ? gradient->values : gradient->dense,
                                   .rows = gradient->row_ids,
                                   .n_entries = gradient->n_entries};
}

/* Equal bits, or both NaN (which of two NaNs an addition returns is the processor's affair), or zeros of either sign
 * where the row was sent as it came. */
static bool same_values(enum zps_dtype dtype, const void *a, const void *b, uint32_t width) {
  if (memcmp(a, b, width * zps_dtype_size(dtype)) == 0) return true;
  for (uint32_t j = 0; j < width; j++) {
    double x, y;
    if (dtype == ZPS_DTYPE_F32) {
      float floats[2];
      memcpy(&floats[0], (const char *)a + 4 * j, 4);
      memcpy(&floats[1], (const char *)b + 4 * j, 4);
      x = (double)floats[0];
      y = (double)floats[1];
    } else if (dtype == ZPS_DTYPE_F64) {
      memcpy(&x, (const char *)a + 8 * j, 8);
      memcpy(&y, (const char *)b + 8 * j, 8);
    } else {
      return false;
    }
    if (x != y && !(isnan(x) && isnan(y))) return false;
  }
  return true;
}

void ref_assert_same(const void *a, const void *b, size_t n) {
  if (n > 0 && memcmp(a, b, n) != 0) assert_memory_equal(a, b, n);
}

void ref_assert_slice(const struct zps_partition *part, uint32_t p, const struct zps_slice_view *view,
                      const bool *present, const void *dense) {
  const uint32_t m = zps_partition_size(part, p);
  const size_t row_bytes = view->width * zps_dtype_size(view->dtype);
  struct zps_index_cursor cursor;
  uint32_t next = 0, n = 0;
  assert_int_equal(view->m, m);
  zps_index_cursor_init(&cursor, view);
  bool more = zps_index_cursor_read(&cursor, m, &next, 1) == 1;
  for (uint32_t local = 0; local < m; local++) {
    const uint64_t row = zps_partition_row(part, p, local);
    const bool here = more && next == local;
    if (here != present[row]) assert_int_equal(here, present[row]);
    if (!here) continue;
    assert_true(same_values(view->dtype, (const char *)view->values + n * row_bytes,
                            (const char *)dense + row * row_bytes, view->width));
    n++;
    more = zps_index_cursor_read(&cursor, m, &next, 1) == 1;
  }
  assert_false(more);
  assert_int_equal(n, view->z);
}
