#include <math.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/codec/reduce.h"
#include "common/codec/simd/simd.h"
#include "tests/unit/codec/codec_reference.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* One contribution: its slice in memory and a checked view of it. */
struct contribution {
  void *bytes;
  struct zps_slice_view view;
};

static struct contribution contribute(const struct ref_gradient *gradient, const struct zps_partition *part,
                                      enum zps_codec codec) {
  struct contribution contribution;
  struct zps_encoder *encoder;
  const struct zps_encode_input input = ref_input(gradient, part);
  assert_int_equal(zps_encoder_create(ZPS_PARTITIONER_STRATIFIED, &encoder), ZPS_OK);
  assert_int_equal(zps_encoder_scan(encoder, &input, NULL, NULL), ZPS_OK);
  const uint32_t m = zps_partition_size(part, 0), z = zps_encoder_nnz(encoder, 0);
  uint64_t len;
  assert_int_equal(zps_encoder_choose(encoder, 0, 1u << codec, &len), codec);
  contribution.bytes = malloc(len + 1);
  assert_non_null(contribution.bytes);
  zps_encoder_write(encoder, 0, codec, contribution.bytes);
  assert_int_equal(zps_slice_view_init(&contribution.view, codec, m, z, gradient->width, gradient->dtype,
                                       ZPS_VALUES_RAW, contribution.bytes, len, NULL),
                   ZPS_OK);
  zps_encoder_destroy(encoder);
  return contribution;
}

static void scale(enum zps_dtype dtype, void *values, uint64_t n, unsigned divisor) {
  for (uint64_t i = 0; i < n; i++) {
    if (dtype == ZPS_DTYPE_F32)
      ((float *)values)[i] *= 1.0f / (float)divisor;
    else
      ((double *)values)[i] *= 1.0 / divisor;
  }
}

/* The same bits, but for which of two NaNs an addition returns: that is the processor's affair. */
static void assert_same_slice(const struct zps_slice_view *a, const void *bytes, uint64_t len) {
  const uint64_t n = (uint64_t)a->z * a->width;
  const size_t size = zps_dtype_size(a->dtype);
  for (uint64_t i = 0; i < n; i++) {
    const char *const x = (const char *)a->values + i * size, *const y = (const char *)bytes + i * size;
    if (memcmp(x, y, size) == 0) continue;
    assert_int_not_equal(a->dtype, ZPS_DTYPE_U8);
    if (a->dtype == ZPS_DTYPE_F32)
      assert_true(isnan(*(const float *)x) && isnan(*(const float *)y));
    else
      assert_true(isnan(*(const double *)x) && isnan(*(const double *)y));
  }
  assert_int_equal(len, n * size + a->index_bytes);
  if (a->index_bytes) assert_memory_equal(a->index, (const char *)bytes + n * size, a->index_bytes);
}

static struct zps_workpool *pool;

/* Sums with a pool whose threads have nothing else to do. */
static zps_err_t reduce_shared(struct zps_reduce_scratch *scratch, const struct zps_slice_view *views, unsigned n,
                               enum zps_op op, enum zps_codec codec, void *out, uint32_t *nnz_p, uint64_t *len_p) {
  while (zps_workpool_idle(pool) < zps_workpool_threads(pool)) sched_yield();
  return zps_reduce(scratch, views, n, op, codec, pool, out, nnz_p, len_p);
}

/* Sums n gradients of one partition, in all codecs by turns, in both output codecs, with all vector instructions and
 * with several threads, and holds them against the sum in rank order. */
static void check(struct zps_reduce_scratch *scratch, uint64_t rows, uint32_t width, enum zps_dtype dtype,
                  const double *density, unsigned n, uint64_t seed) {
  struct zps_rng rng = {.state = seed};
  struct zps_partition part;
  assert_int_equal(zps_partition_init(&part, rows, 1, 0, seed, NULL), ZPS_OK);
  struct zps_slice_view *const views = calloc(n, sizeof *views);
  struct contribution *const contributions = calloc(n, sizeof *contributions);
  bool *const present = calloc(rows, sizeof *present);
  const size_t row_bytes = width * zps_dtype_size(dtype);
  char *const sums = calloc(rows, row_bytes);
  assert_true(views && contributions && present && sums);
  for (unsigned i = 0; i < n; i++) {
    struct ref_gradient gradient = ref_dense(&rng, rows, width, dtype, density[i % 3]);
    contributions[i] = contribute(&gradient, &part, (enum zps_codec)((i + seed) % ZPS_CODEC_COUNT));
    views[i] = contributions[i].view;
    for (uint64_t row = 0; row < rows; row++) {
      if (!gradient.present[row]) continue;
      present[row] = true;
      ref_add(dtype, sums + row * row_bytes, (const char *)gradient.dense + row * row_bytes, width);
    }
    ref_free(&gradient);
  }
  for (enum zps_op op = ZPS_OP_SUM; op <= ZPS_OP_MEAN; op++) {
    for (enum zps_codec codec = ZPS_CODEC_COO; codec <= ZPS_CODEC_BITMAP; codec++) {
      const uint64_t bound = zps_reduce_bound(views, n, codec);
      char *const out = malloc(bound + 1);
      struct zps_slice_view result;
      uint32_t nnz = 7;
      uint64_t len = 7;
      assert_non_null(out);
      out[bound] = 0x5a;
      if (op == ZPS_OP_MEAN && dtype == ZPS_DTYPE_U8) {
        assert_int_equal(zps_reduce(scratch, views, n, op, codec, NULL, out, &nnz, &len), ZPS_ERR_UNSUPPORTED);
        free(out);
        continue;
      }
      assert_int_equal(zps_reduce(scratch, views, n, op, codec, NULL, out, &nnz, &len), ZPS_OK);
      assert_true(len <= bound);
      assert_int_equal(out[bound], 0x5a);
      assert_int_equal(
          zps_slice_view_init(&result, codec, (uint32_t)rows, nnz, width, dtype, ZPS_VALUES_RAW, out, len, NULL),
          ZPS_OK);
      ref_assert_slice(&part, 0, &result, present, sums);
      const struct zps_simd *simd;
      for (unsigned i = 0; (simd = zps_simd_variant(i)) != NULL; i++) {
        char *const same = malloc(bound + 1);
        assert_non_null(same);
        zps_simd_use(simd);
        if (!thin_skips_alone()) {
          assert_int_equal(zps_reduce(scratch, views, n, op, codec, NULL, same, &nnz, &len), ZPS_OK);
          assert_int_equal(nnz, result.z);
          assert_same_slice(&result, same, len);
        }
        memset(same, 0x5b, bound + 1);
        assert_int_equal(reduce_shared(scratch, views, n, op, codec, same, &nnz, &len), ZPS_OK);
        assert_int_equal(nnz, result.z);
        assert_same_slice(&result, same, len);
        assert_int_equal(same[bound], 0x5b);
        free(same);
      }
      zps_simd_use(NULL);
      free(out);
    }
    if (dtype != ZPS_DTYPE_U8) scale(dtype, sums, rows * width, n);
  }
  for (unsigned i = 0; i < n; i++) free(contributions[i].bytes);
  free(contributions);
  free(views);
  free(present);
  free(sums);
}

static int setup(void **state) {
  if (zps_workpool_create(3, "reduce", &pool) != ZPS_OK) return -1;
  return zps_reduce_scratch_create((struct zps_reduce_scratch **)state) == ZPS_OK ? 0 : -1;
}

static int teardown(void **state) {
  zps_reduce_scratch_destroy(*state);
  zps_reduce_scratch_destroy(NULL);
  zps_workpool_destroy(pool);
  return 0;
}

static void sums_equal_the_reference(void **state) {
  static const double densities[][3] = {{0, 0, 0}, {1e-4, 0.01, 0}, {0.01, 0.01, 0.3}, {0.3, 0, 1}, {1, 1, 1}};
  static const uint32_t widths[] = {1, 3, 64};
  for (unsigned d = 0; d < COUNT(densities); d++) {
    for (unsigned w = 0; w < COUNT(widths); w++) {
      for (enum zps_dtype dtype = ZPS_DTYPE_F32; dtype <= ZPS_DTYPE_U8; dtype++) {
        check(*state, 1, widths[w], dtype, densities[d], 2, d + 1);
        for (uint64_t seed = 0; seed < ZPS_CODEC_COUNT; seed++)
          if (!thin_skips()) check(*state, 4001, widths[w], dtype, densities[d], 5, d * ZPS_CODEC_COUNT + seed);
      }
    }
  }
}

/* Several chunks: many narrow rows, and rows so wide that chunks share a word of the bitmap. */
static void chunks_join_without_a_seam(void **state) {
  for (uint64_t seed = 0; seed < ZPS_CODEC_COUNT; seed++) {
    if (!thin_skips()) check(*state, 150001, 1, ZPS_DTYPE_F32, (const double[]){0.05, 0.6, 0.001}, 4, seed);
    if (!thin_skips()) check(*state, 150032, 1, ZPS_DTYPE_F32, (const double[]){0.002, 0.0001, 0.001}, 4, seed);
    if (!thin_skips()) check(*state, 40001, 2, ZPS_DTYPE_F32, (const double[]){0.002, 0.7, 1}, 4, seed);
  }
  check(*state, 70000, 1, ZPS_DTYPE_U8, (const double[]){0.05, 0.6, 0.001}, 4, 2);
  check(*state, 100, 5000, ZPS_DTYPE_F64, (const double[]){0.3, 0.1, 0}, 4, 3);
  check(*state, 70, 40000, ZPS_DTYPE_F32, (const double[]){0.3, 0.1, 1}, 3, 4);
  check(*state, 3000, 64, ZPS_DTYPE_F32, (const double[]){0.3, 0.9, 1}, 8, 1);
}

/* The contribution with values as `value_codec`; the values that this coding leaves take the place of its own. */
static struct contribution narrow(struct contribution *contribution, enum zps_value_codec value_codec) {
  struct zps_slice_view *const view = &contribution->view;
  const uint64_t n = (uint64_t)view->z * view->width;
  const uint64_t values_bytes = zps_values_bytes(value_codec, view->dtype, n);
  struct contribution made = {.bytes = malloc(values_bytes + view->index_bytes + 1)};
  assert_non_null(made.bytes);
  zps_values_encode(value_codec, view->dtype, view->values, n, 5, made.bytes);
  zps_values_decode(value_codec, view->dtype, made.bytes, n, 0, n, contribution->bytes);
  if (view->index_bytes) memcpy((char *)made.bytes + values_bytes, view->index, view->index_bytes);
  assert_int_equal(zps_slice_view_init(&made.view, view->codec, view->m, view->z, view->width, view->dtype, value_codec,
                                       made.bytes, values_bytes + view->index_bytes, NULL),
                   ZPS_OK);
  return made;
}

static void check_narrow(struct zps_reduce_scratch *scratch, uint64_t rows, uint32_t width, enum zps_dtype dtype,
                         enum zps_codec codec, enum zps_value_codec value_codec) {
  enum { N = 3 };
  struct zps_rng rng = {.state = rows + width};
  struct zps_partition part;
  struct contribution wide[N], made[N];
  struct zps_slice_view wide_views[N], views[N];
  uint32_t nnz[2];
  uint64_t len[2];
  assert_int_equal(zps_partition_init(&part, rows, 1, 0, 1, NULL), ZPS_OK);
  for (unsigned i = 0; i < N; i++) {
    struct ref_gradient gradient = ref_dense(&rng, rows, width, dtype, i == 2 ? 1 : 0.2);
    wide[i] = contribute(&gradient, &part, codec);
    made[i] = narrow(&wide[i], value_codec);
    wide_views[i] = wide[i].view;
    views[i] = made[i].view;
    ref_free(&gradient);
  }
  const uint64_t bound = zps_reduce_bound(views, N, ZPS_CODEC_COO);
  assert_int_equal(zps_reduce_bound(wide_views, N, ZPS_CODEC_COO), bound);
  void *const sums[2] = {malloc(bound), malloc(bound)};
  assert_true(sums[0] && sums[1]);
  assert_int_equal(zps_reduce(scratch, wide_views, N, ZPS_OP_SUM, ZPS_CODEC_COO, NULL, sums[0], &nnz[0], &len[0]),
                   ZPS_OK);
  assert_int_equal(zps_reduce(scratch, views, N, ZPS_OP_SUM, ZPS_CODEC_COO, NULL, sums[1], &nnz[1], &len[1]), ZPS_OK);
  assert_int_equal(nnz[0], nnz[1]);
  assert_int_equal(len[0], len[1]);
  assert_memory_equal(sums[0], sums[1], len[0]);
  for (unsigned i = 0; i < N; i++) {
    free(wide[i].bytes);
    free(made[i].bytes);
  }
  free(sums[0]);
  free(sums[1]);
}

static void narrow_values_are_widened(void **state) {
  if (thin_skips_alone()) return;
  for (enum zps_value_codec values = ZPS_VALUES_BF16; values <= ZPS_VALUES_QSGD8; values++) {
    for (enum zps_codec codec = ZPS_CODEC_COO; codec < ZPS_CODEC_COUNT; codec++) {
      check_narrow(*state, 20011, 1, ZPS_DTYPE_F32, codec, values);
      check_narrow(*state, 5003, 1, ZPS_DTYPE_F64, codec, values);
      check_narrow(*state, 3001, 5, ZPS_DTYPE_F32, codec, values);
      check_narrow(*state, 60, 6000, ZPS_DTYPE_F32, codec, values);
    }
  }
}

static void many_indices(void **state) {
  check(*state, 300, 1, ZPS_DTYPE_F32, (const double[]){0.1, 0, 0.01}, 4096, 5);
}

static void an_empty_partition_has_an_empty_sum(void **state) {
  struct zps_slice_view views[2];
  uint64_t out;
  uint32_t nnz;
  uint64_t len;
  for (unsigned i = 0; i < 2; i++)
    assert_int_equal(
        zps_slice_view_init(&views[i], ZPS_CODEC_COO, 0, 0, 3, ZPS_DTYPE_F32, ZPS_VALUES_RAW, NULL, 0, NULL), ZPS_OK);
  for (enum zps_codec codec = ZPS_CODEC_COO; codec <= ZPS_CODEC_BITMAP; codec++) {
    assert_int_equal(zps_reduce_bound(views, 2, codec), 0);
    assert_int_equal(zps_reduce(*state, views, 2, ZPS_OP_SUM, codec, NULL, &out, &nnz, &len), ZPS_OK);
    assert_int_equal(nnz, 0);
    assert_int_equal(len, 0);
  }
}

/* Indices near the end of the largest possible partition, with nothing between them. */
static void sparse_sums_skip_empty_chunks(void **state) {
  const uint32_t m = UINT32_MAX;
  const struct {
    float values[3];
    uint32_t indices[3];
  } slices[2] = {{{1, 2, 3}, {0, 1u << 31, m - 1}}, {{10, 20, 30}, {1, 1u << 31, m - 2}}};
  static const float sums[] = {1, 10, 22, 30, 3};
  static const uint32_t indices[] = {0, 1, 1u << 31, UINT32_MAX - 2, UINT32_MAX - 1};
  struct zps_slice_view views[2];
  struct {
    float values[5];
    uint32_t indices[6];
  } out;
  uint32_t nnz;
  uint64_t len;
  for (unsigned i = 0; i < 2; i++)
    assert_int_equal(
        zps_slice_view_init(&views[i], ZPS_CODEC_COO, m, 3, 1, ZPS_DTYPE_F32, ZPS_VALUES_RAW, &slices[i], 24, NULL),
        ZPS_OK);
  assert_int_equal(zps_reduce_bound(views, 2, ZPS_CODEC_COO), 48);
  void *const result = malloc(48);
  assert_int_equal(zps_reduce(*state, views, 2, ZPS_OP_SUM, ZPS_CODEC_COO, NULL, result, &nnz, &len), ZPS_OK);
  assert_int_equal(nnz, 5);
  assert_int_equal(len, 40);
  memcpy(&out, result, len);
  assert_memory_equal(out.values, sums, sizeof sums);
  assert_memory_equal(out.indices, indices, sizeof indices);
  free(result);
}

/* The sum is over ranks in order: (1e8 + 1) - 1e8 is 0 in float, and stays in the result. */
static void order_is_kept_and_zero_sums_stay(void **state) {
  const struct {
    float value;
    uint32_t index;
  } slices[3] = {{1e8f, 5}, {1, 5}, {-1e8f, 5}};
  struct zps_slice_view views[3];
  struct {
    float value;
    uint32_t index;
  } out[2];
  uint32_t nnz;
  uint64_t len;
  for (unsigned i = 0; i < 3; i++)
    assert_int_equal(
        zps_slice_view_init(&views[i], ZPS_CODEC_COO, 9, 1, 1, ZPS_DTYPE_F32, ZPS_VALUES_RAW, &slices[i], 8, NULL),
        ZPS_OK);
  uint64_t result[4];
  assert_int_equal(zps_reduce(*state, views, 3, ZPS_OP_SUM, ZPS_CODEC_COO, NULL, result, &nnz, &len), ZPS_OK);
  memcpy(out, result, sizeof out);
  assert_int_equal(nnz, 1);
  assert_int_equal(out[0].index, 5);
  assert_true(out[0].value == 0 && !signbit(out[0].value));
}

static double value_at(enum zps_dtype dtype, const void *values, uint64_t i) {
  return dtype == ZPS_DTYPE_F32   ? (double)((const float *)values)[i]
         : dtype == ZPS_DTYPE_F64 ? ((const double *)values)[i]
                                  : (double)((const uint8_t *)values)[i];
}

/* The result over the gradients that hold a row, value by value; it decides what `op` gives for NaNs and for zeros. */
static void check_extremes(struct zps_reduce_scratch *scratch, enum zps_op op, enum zps_dtype dtype, uint32_t width) {
  enum { ROWS = 3000, INDICES = 5 };
  struct zps_rng rng = {.state = width + (uint64_t)op};
  struct zps_partition part;
  struct ref_gradient gradients[INDICES];
  struct contribution contributions[INDICES];
  struct zps_slice_view views[INDICES], result;
  assert_int_equal(zps_partition_init(&part, ROWS, 1, 0, 1, NULL), ZPS_OK);
  for (unsigned i = 0; i < INDICES; i++) {
    gradients[i] = ref_dense(&rng, ROWS, width, dtype, 0.3 * i);
    contributions[i] = contribute(&gradients[i], &part, (enum zps_codec)(i % ZPS_CODEC_COUNT));
    views[i] = contributions[i].view;
  }
  char *const out = malloc(zps_reduce_bound(views, INDICES, ZPS_CODEC_COO));
  uint32_t nnz, at = 0;
  uint64_t len;
  assert_int_equal(zps_reduce(scratch, views, INDICES, op, ZPS_CODEC_COO, NULL, out, &nnz, &len), ZPS_OK);
  assert_int_equal(zps_slice_view_init(&result, ZPS_CODEC_COO, ROWS, nnz, width, dtype, ZPS_VALUES_RAW, out, len, NULL),
                   ZPS_OK);
  for (uint32_t row = 0; row < ROWS; row++) {
    bool present = false;
    for (unsigned i = 0; i < INDICES; i++) present |= gradients[i].present[row];
    if (!present) continue;
    assert_int_equal(((const zps_lent_index *)result.index)[at], row);
    for (uint32_t j = 0; j < width; j++) {
      double expected = op == ZPS_OP_MAX ? -(double)INFINITY : (double)INFINITY;
      for (unsigned i = 0; i < INDICES; i++) {
        if (!gradients[i].present[row]) continue;
        const double value = value_at(dtype, gradients[i].dense, (uint64_t)row * width + j);
        if (isnan(value) || (op == ZPS_OP_MAX ? value > expected : value < expected)) expected = value;
        if (isnan(expected)) break;
      }
      const double got = value_at(dtype, result.values, (uint64_t)at * width + j);
      assert_true(isnan(expected) ? isnan(got) : got == expected && !(got == 0 && signbit(got)));
    }
    at++;
  }
  assert_int_equal(at, nnz);
  free(out);
  for (unsigned i = 0; i < INDICES; i++) {
    free(contributions[i].bytes);
    ref_free(&gradients[i]);
  }
}

static void extremes_of_those_who_hold_a_row(void **state) {
  if (thin_skips_alone()) return;
  for (enum zps_op op = ZPS_OP_MAX; op <= ZPS_OP_MIN; op++) {
    for (enum zps_dtype dtype = ZPS_DTYPE_F32; dtype <= ZPS_DTYPE_U8; dtype++) {
      check_extremes(*state, op, dtype, 1);
      check_extremes(*state, op, dtype, 5);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sums_equal_the_reference),
      cmocka_unit_test(chunks_join_without_a_seam),
      cmocka_unit_test(narrow_values_are_widened),
      cmocka_unit_test(many_indices),
      cmocka_unit_test(an_empty_partition_has_an_empty_sum),
      cmocka_unit_test(sparse_sums_skip_empty_chunks),
      cmocka_unit_test(order_is_kept_and_zero_sums_stay),
      cmocka_unit_test(extremes_of_those_who_hold_a_row),
  };
  return cmocka_run_group_tests_name("reduce", tests, setup, teardown);
}
