/* Sums in a dense array against the slow and obvious way: every codec, type and instruction set, in pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/rng.h"
#include "common/codec/deliver.h"
#include "common/codec/simd/simd.h"
#include "tests/support/oom.h"

enum { VIEWS_MAX = 4, WIDTH_MAX = 40 };

struct shape {
  enum zps_dtype dtype;
  enum zps_value_codec values;
  uint32_t m, width;
  double density;
  unsigned n_views, divisor, n_pieces;
  bool is_large;
};

struct rig {
  struct zps_rng rng;
  double negative_zeros; /* their share */
  struct zps_slice_view views[VIEWS_MAX];
  void *payloads[VIEWS_MAX];
  bool *held;
  void *expected, *dense;
};

static void add(enum zps_dtype dtype, void *sums, uint64_t i, const void *values, uint64_t j) {
  if (dtype == ZPS_DTYPE_F32)
    ((float *)sums)[i] += ((const float *)values)[j];
  else if (dtype == ZPS_DTYPE_F64)
    ((double *)sums)[i] += ((const double *)values)[j];
  else
    ((uint8_t *)sums)[i] = (uint8_t)(((uint8_t *)sums)[i] + ((const uint8_t *)values)[j]);
}

static void draw_value(struct rig *rig, enum zps_dtype dtype, void *values, uint64_t i) {
  const double value = zps_rng_unit(&rig->rng) < rig->negative_zeros ? -0.0 : zps_rng_unit(&rig->rng) - 0.5;
  if (dtype == ZPS_DTYPE_F32)
    ((float *)values)[i] = (float)value;
  else if (dtype == ZPS_DTYPE_F64)
    ((double *)values)[i] = value;
  else
    ((uint8_t *)values)[i] = (uint8_t)zps_rng_below(&rig->rng, 256);
}

/* Contribution `k`, in a codec that suits any set, and its share in the expected sums. */
static void put_view(struct rig *rig, const struct shape *shape, unsigned k) {
  const uint64_t width = shape->width, size = zps_dtype_size(shape->dtype);
  uint32_t *const indices = malloc((shape->m + 1ull) * sizeof *indices), z = 0;
  for (uint32_t r = 0; r < shape->m; r++)
    if (zps_rng_unit(&rig->rng) < shape->density) indices[z++] = r;
  char *const values = malloc((z * width + 1) * size);
  for (uint64_t i = 0; i < z * width; i++) draw_value(rig, shape->dtype, values, i);
  enum zps_codec codec = (enum zps_codec)zps_rng_below(&rig->rng, ZPS_CODEC_COUNT);
  if (codec == ZPS_CODEC_RICE && z > shape->m / 2) codec = ZPS_CODEC_HOLES;
  if (codec == ZPS_CODEC_HOLES && z <= shape->m / 2) codec = ZPS_CODEC_RICE;
  if (z == shape->m) codec = ZPS_CODEC_HOLES;
  const uint64_t values_bytes = zps_values_bytes(shape->values, shape->dtype, z * width);
  const uint64_t bytes = values_bytes + zps_codec_index_exact(codec, shape->m, indices, z);
  char *const payload = rig->payloads[k] = malloc(bytes + 1);
  zps_values_encode(shape->values, shape->dtype, values, z * width, 1, payload);
  zps_codec_index_encode(codec, shape->m, indices, z, payload + values_bytes);
  struct zps_error error;
  assert_int_equal(zps_slice_view_init(&rig->views[k], codec, shape->m, z, shape->width, shape->dtype, shape->values,
                                       payload, bytes, &error),
                   ZPS_OK);
  zps_values_decode(shape->values, shape->dtype, payload, z * width, 0, z * width, values);
  for (uint32_t i = 0; i < z; i++) {
    rig->held[indices[i]] = true;
    for (uint64_t c = 0; c < width; c++)
      add(shape->dtype, rig->expected, indices[i] * width + c, values, i * width + c);
  }
  free(values);
  free(indices);
}

static void divide(const struct shape *shape, void *sums, uint64_t n) {
  for (uint64_t i = 0; i < n && shape->divisor != 1; i++) {
    if (shape->dtype == ZPS_DTYPE_F32)
      ((float *)sums)[i] *= 1.0f / (float)shape->divisor;
    else
      ((double *)sums)[i] *= 1.0 / shape->divisor;
  }
}

static void deliver(struct rig *rig, const struct shape *shape, struct zps_deliver_scratch *scratch) {
  uint64_t n_rows = 0, n_held = 0;
  for (unsigned i = 0; i < shape->n_pieces; i++) {
    const uint64_t first = (uint64_t)shape->m * i / shape->n_pieces,
                   end = (uint64_t)shape->m * (i + 1) / shape->n_pieces;
    const struct zps_deliver piece = {
        .views = rig->views,
        .n_views = shape->n_views,
        .divisor = shape->divisor,
        .dtype = shape->dtype,
        .dense = rig->dense,
        .is_large = shape->is_large,
        .first = (uint32_t)(first / ZPS_DELIVER_ALIGN * ZPS_DELIVER_ALIGN),
        .end = i + 1 == shape->n_pieces ? shape->m : (uint32_t)(end / ZPS_DELIVER_ALIGN * ZPS_DELIVER_ALIGN)};
    uint64_t n;
    assert_int_equal(zps_deliver(scratch, &piece, &n), ZPS_OK);
    n_rows += n;
  }
  for (uint32_t r = 0; r < shape->m; r++) n_held += rig->held[r];
  assert_int_equal(n_rows, n_held);
}

static void check(const struct shape *shape, uint64_t seed, struct zps_deliver_scratch *scratch) {
  const uint64_t n = (uint64_t)shape->m * shape->width, size = zps_dtype_size(shape->dtype), shift = seed % 8;
  struct rig rig = {.rng = {.state = seed}, .negative_zeros = shape->n_views > 1 || shape->density < 1 ? 0.05 : 0};
  rig.held = calloc(shape->m + 1ull, sizeof *rig.held);
  rig.expected = calloc(n + 1, size);
  char *const room = malloc((n + shift + 1) * size);
  memset(room, 0xa5, (n + shift + 1) * size);
  rig.dense = room + shift * size; /* in any place of a cache line; nothing beyond is written */
  for (unsigned k = 0; k < shape->n_views; k++) put_view(&rig, shape, k);
  divide(shape, rig.expected, n);
  deliver(&rig, shape, scratch);
  assert_memory_equal(rig.dense, rig.expected, n * size);
  for (uint64_t i = 0; i < shift * size; i++) assert_int_equal((unsigned char)room[i], 0xa5);
  for (uint64_t i = (n + shift) * size; i < (n + shift + 1) * size; i++) assert_int_equal((unsigned char)room[i], 0xa5);
  for (unsigned k = 0; k < shape->n_views; k++) free(rig.payloads[k]);
  free(rig.held);
  free(rig.expected);
  free(room);
}

static struct shape draw_shape(struct zps_rng *rng, uint64_t round) {
  static const double densities[] = {0, 0.001, 0.02, 0.3, 0.8, 1};
  struct shape shape = {.dtype = (enum zps_dtype)(1 + zps_rng_below(rng, 3)),
                        .values = ZPS_VALUES_RAW,
                        .m = 1 + (uint32_t)zps_rng_below(rng, round % 4 == 0 ? 100000 : 3000),
                        .width = round % 2 ? 1 : 1 + (uint32_t)zps_rng_below(rng, WIDTH_MAX),
                        .density = densities[zps_rng_below(rng, sizeof densities / sizeof densities[0])],
                        .n_views = 1 + (unsigned)zps_rng_below(rng, VIEWS_MAX),
                        .n_pieces = 1 + (unsigned)zps_rng_below(rng, 3),
                        .is_large = zps_rng_below(rng, 2)};
  shape.divisor = shape.dtype == ZPS_DTYPE_U8 ? 1 : 1 + (unsigned)zps_rng_below(rng, 3);
  if (shape.dtype != ZPS_DTYPE_U8 && zps_rng_below(rng, 3) == 0) shape.values = ZPS_VALUES_BF16;
  return shape;
}

static void sums_are_where_they_belong(void **state) {
  (void)state;
  struct zps_deliver_scratch *scratch;
  const struct zps_simd *simd;
  assert_int_equal(zps_deliver_scratch_create(&scratch), ZPS_OK);
  for (unsigned v = 0; (simd = zps_simd_variant(v)) != NULL; v++) {
    struct zps_rng rng = {.state = 7};
    zps_simd_use(simd);
    for (uint64_t round = 0; round < 120; round++) {
      const struct shape shape = draw_shape(&rng, round);
      check(&shape, round + 1, scratch);
    }
  }
  zps_simd_use(NULL);
  zps_deliver_scratch_destroy(scratch);
}

static void large_ones_go_past_the_caches(void **state) {
  (void)state;
  assert_false(zps_deliver_is_large(1 << 20));
  assert_true(zps_deliver_is_large(1 << 26));
}

/* A sum that was rounded to halves is not added to anything: each -0.0 stays. In pieces, with bits and with lists. */
static void rounded_sums_are_put_as_they_are(void **state) {
  (void)state;
  enum { M = 1000, WIDTH = 3 };
  struct zps_rng rng = {.state = 17};
  struct zps_deliver_scratch *scratch;
  assert_int_equal(zps_deliver_scratch_create(&scratch), ZPS_OK);
  for (unsigned i = 0; i < 9; i++) {
    const enum zps_codec codec = i % 3 == 0 ? ZPS_CODEC_COO : i % 3 == 1 ? ZPS_CODEC_BITMAP : ZPS_CODEC_RICE;
    uint16_t values[M * WIDTH], want[M * WIDTH] = {0}, dense[M * WIDTH];
    uint32_t indices[M], index[M], z = 0;
    for (uint32_t row = 0; row < M; row++) {
      if (zps_rng_below(&rng, 10) >= i + 1) continue;
      for (uint32_t j = 0; j < WIDTH; j++)
        values[z * WIDTH + j] = want[row * WIDTH + j] = zps_rng_below(&rng, 4) ? 0x8000 : (uint16_t)zps_rng_u64(&rng);
      indices[z++] = row;
    }
    const struct zps_slice_view view = {.codec = codec,
                                        .dtype = ZPS_DTYPE_F32,
                                        .value_codec = ZPS_VALUES_BF16,
                                        .m = M,
                                        .z = z,
                                        .width = WIDTH,
                                        .values = values,
                                        .index = index,
                                        .index_bytes = zps_codec_index_encode(codec, M, indices, z, index)};
    uint64_t n, n_all = 0;
    for (uint32_t first = 0; first < M; first += 320, n_all += n) {
      const struct zps_deliver piece = {.views = &view,
                                        .n_views = 1,
                                        .divisor = 1,
                                        .dtype = ZPS_DTYPE_BF16,
                                        .dense = dense,
                                        .is_rounded = true,
                                        .first = first,
                                        .end = first + 320 < M ? first + 320 : M};
      assert_int_equal(zps_deliver(scratch, &piece, &n), ZPS_OK);
    }
    assert_int_equal(n_all, z);
    assert_memory_equal(dense, want, sizeof want);
  }
  zps_deliver_scratch_destroy(scratch);
}

static zps_err_t deliver_once(void *ctx) {
  struct zps_deliver_scratch *scratch;
  uint64_t n;
  zps_err_t code = zps_deliver_scratch_create(&scratch);
  if (code != ZPS_OK) return code;
  code = zps_deliver(scratch, ctx, &n);
  zps_deliver_scratch_destroy(scratch);
  return code;
}

static void nothing(void *ctx) {
  (void)ctx;
}

static void memory_that_is_not_there_is_missed(void **state) {
  (void)state;
  const float value = 1;
  const uint32_t index = 3;
  char payload[8];
  memcpy(payload, &value, sizeof value);
  memcpy(payload + sizeof value, &index, sizeof index);
  for (uint32_t width = 1; width <= 2; width++) {
    double dense[8];
    struct zps_slice_view view = {.codec = ZPS_CODEC_COO,
                                  .dtype = ZPS_DTYPE_F32,
                                  .value_codec = ZPS_VALUES_RAW,
                                  .m = 8,
                                  .z = width == 1,
                                  .width = width,
                                  .values = payload,
                                  .index = payload + sizeof value,
                                  .index_bytes = sizeof index};
    struct zps_deliver piece = {
        .views = &view, .n_views = 1, .divisor = 1, .dtype = ZPS_DTYPE_F32, .dense = dense, .end = 8};
    oom_sweep(deliver_once, nothing, &piece, 4);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sums_are_where_they_belong),
      cmocka_unit_test(large_ones_go_past_the_caches),
      cmocka_unit_test(rounded_sums_are_put_as_they_are),
      cmocka_unit_test(memory_that_is_not_there_is_missed),
  };
  return cmocka_run_group_tests_name("deliver", tests, NULL, NULL);
}
