/* Gradients and results in sections: the bytes of one array, whatever the sections. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/codec/decode.h"
#include "tests/support/thin.h"
#include "tests/unit/codec/codec_reference.h"
#include "tests/unit/codec/encoders.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
enum { SECTIONS_MAX = 12, GUARD = 0xee };

/* A gradient in sections, and the same as one array. */
struct twins {
  uint64_t rows;
  uint32_t width;
  enum zps_dtype dtype;
  struct zps_sections sections;
  struct zps_section list[SECTIONS_MAX];
  bool are_dense;
  char *dense;      /* where all are dense */
  int64_t *row_ids; /* where not all are dense */
  char *values;
  uint64_t n_entries;
};

static uint64_t row_bytes(const struct twins *twins) {
  return zps_row_bytes(twins->width, twins->dtype);
}

static void draw(struct zps_rng *rng, const struct twins *twins, char *row) {
  const bool is_zero = zps_rng_below(rng, 4) == 0;
  for (uint32_t j = 0; j < twins->width; j++) {
    const double value = is_zero ? (zps_rng_below(rng, 2) ? -0.0 : 0.0) : zps_rng_unit(rng) - 0.5;
    if (twins->dtype == ZPS_DTYPE_F64) {
      memcpy(row + j * 8ull, &value, 8);
    } else {
      const float narrow = (float)value;
      memcpy(row + j * 4ull, &narrow, 4);
    }
  }
}

/* Sections of all sizes, none of the tensor's rows among them, with gaps and without. */
static void cut(struct zps_rng *rng, struct twins *twins) {
  uint64_t at = zps_rng_below(rng, 3) ? 0 : zps_rng_below(rng, twins->rows / 4 + 1);
  uint32_t n = 0;
  for (; n < SECTIONS_MAX && at < twins->rows; n++) {
    uint64_t size = zps_rng_below(rng, twins->rows / 4 + 2);
    if (size > twins->rows - at) size = twins->rows - at;
    twins->list[n] = (struct zps_section){.first_row = at, .n_rows = size};
    at += size;
    if (zps_rng_below(rng, 2)) at += zps_rng_below(rng, twins->rows / 16 + 2);
  }
  twins->sections = (struct zps_sections){.list = twins->list, .n = n};
}

static void add_entry(struct twins *twins, uint64_t row, const char *values) {
  const uint64_t bytes = row_bytes(twins);
  twins->row_ids[twins->n_entries] = (int64_t)row;
  memcpy(twins->values + twins->n_entries++ * bytes, values, bytes);
}

/* One list has the entries, and of dense sections all rows: zeros are left out. */
static void fill_section(struct zps_rng *rng, struct twins *twins, struct zps_section *section, bool is_dense,
                         uint32_t repeats) {
  const uint64_t bytes = row_bytes(twins), n = is_dense ? section->n_rows : section->n_rows * repeats / 2;
  int64_t *const rows = is_dense ? NULL : malloc((n + 1) * sizeof *rows);
  section->values = malloc(n * bytes + 1);
  section->rows = rows;
  section->n_entries = n;
  for (uint64_t i = 0; i < n; i++) {
    char *const at = (char *)section->values + i * bytes;
    const uint64_t row = is_dense ? i : zps_rng_below(rng, section->n_rows);
    if (!is_dense) rows[i] = (int64_t)row;
    draw(rng, twins, at);
    add_entry(twins, section->first_row + row, at);
    memcpy(twins->dense + (section->first_row + row) * bytes, at, bytes);
  }
}

enum kind { DENSE, LISTS, MIXED };

static struct twins *twins_create(struct zps_rng *rng, uint64_t rows, uint32_t width, enum zps_dtype dtype,
                                  enum kind kind) {
  enum { REPEATS = 3 };
  struct twins *const twins = calloc(1, sizeof *twins);
  twins->rows = rows;
  twins->width = width;
  twins->dtype = dtype;
  twins->dense = calloc(rows, row_bytes(twins));
  twins->row_ids = malloc((rows * REPEATS + 1) * sizeof *twins->row_ids);
  twins->values = malloc((rows * REPEATS + 1) * row_bytes(twins));
  cut(rng, twins);
  for (uint32_t i = 0; i < twins->sections.n; i++)
    fill_section(rng, twins, &twins->list[i], kind == DENSE || (kind == MIXED && i % 2 == 0), REPEATS);
  zps_sections_count(&twins->sections);
  twins->are_dense = twins->sections.are_dense;
  assert_true(kind == MIXED || twins->are_dense == (kind == DENSE));
  return twins;
}

static void twins_destroy(struct twins *twins) {
  for (uint32_t i = 0; i < twins->sections.n; i++) {
    free(twins->list[i].values);
    free((void *)(uintptr_t)twins->list[i].rows);
  }
  free(twins->dense);
  free(twins->row_ids);
  free(twins->values);
  free(twins);
}

static struct zps_encode_input input_of(const struct twins *twins, const struct zps_partition *part,
                                        enum zps_value_codec value_codec, bool in_sections) {
  struct zps_encode_input input = {
      .part = part, .width = twins->width, .dtype = twins->dtype, .value_codec = value_codec};
  if (in_sections) {
    input.sections = &twins->sections;
  } else if (twins->are_dense) {
    input.values = twins->dense;
  } else {
    input.values = twins->values;
    input.rows = twins->row_ids;
    input.n_entries = twins->n_entries;
  }
  return input;
}

/* The slices of both are the same bytes; those of the sections stay in `slices`, for free(). */
static void compare(struct encoders *encoders, const struct twins *twins, const struct zps_partition *part,
                    enum zps_value_codec value_codec, bool all_rows, struct zps_workpool *pool, char **slices,
                    struct zps_slice_view *views) {
  struct zps_encoder *one;
  struct zps_error error;
  assert_int_equal(zps_encoder_create(ZPS_PARTITIONER_STRATIFIED, &one), ZPS_OK);
  struct zps_encode_input input = input_of(twins, part, value_codec, false);
  struct zps_encode_input sections = input_of(twins, part, value_codec, true);
  input.all_rows = sections.all_rows = all_rows;
  assert_int_equal(zps_encoder_scans(&input), zps_encoder_scans(&sections));
  assert_int_equal(zps_encoder_scan(one, &input, NULL, &error), ZPS_OK);
  assert_int_equal(zps_encoder_scan(encoders->ordered, &sections, pool, &error), ZPS_OK);
  assert_int_equal(zps_encoder_total_nnz(one), zps_encoder_total_nnz(encoders->ordered));
  for (uint32_t p = 0; p < part->n_parts; p++) {
    uint64_t len, same_len;
    const enum zps_codec codec = zps_encoder_choose(one, p, zps_codec_push_set(ZPS_CODEC_AUTO), &len);
    assert_int_equal(zps_encoder_choose(encoders->ordered, p, zps_codec_push_set(ZPS_CODEC_AUTO), &same_len), codec);
    assert_int_equal(len, same_len);
    char *const want = malloc(len + 8);
    slices[p] = malloc(len + 8);
    zps_encoder_write(one, p, codec, want);
    zps_encoder_write(encoders->ordered, p, codec, slices[p]);
    if (len) assert_memory_equal(want, slices[p], len);
    free(want);
    assert_int_equal(zps_slice_view_init(&views[p], codec, zps_partition_size(part, p), zps_encoder_nnz(one, p),
                                         twins->width, twins->dtype, value_codec, slices[p], len, &error),
                     ZPS_OK);
  }
  zps_encoder_destroy(one);
}

/* Results in sections: those of one array, and not a byte beside them. */
static void check_results(const struct twins *twins, const struct zps_partition *part,
                          const struct zps_slice_view *views) {
  const uint64_t bytes = row_bytes(twins);
  struct zps_section list[SECTIONS_MAX];
  struct zps_sections sections = {.list = list, .n = twins->sections.n};
  char *const dense = malloc(twins->rows * bytes);
  zps_decode_dense_clear(dense, twins->rows * bytes, 0, 1);
  for (uint32_t p = 0; p < part->n_parts; p++) zps_decode_dense(part, p, &views[p], dense);
  for (uint32_t i = 0; i < sections.n; i++) {
    list[i] = (struct zps_section){.first_row = twins->list[i].first_row, .n_rows = twins->list[i].n_rows};
    list[i].values = malloc(list[i].n_rows * bytes + 1);
  }
  zps_sections_count(&sections);
  for (unsigned by_stripe = 0; by_stripe < 2; by_stripe++) {
    for (uint32_t i = 0; i < sections.n; i++) memset(list[i].values, GUARD, list[i].n_rows * bytes + 1);
    for (unsigned piece = 0; piece < 3 && !by_stripe; piece++) zps_decode_sections_clear(&sections, bytes, piece, 3);
    for (uint32_t p = 0; p < part->n_parts && !by_stripe; p++) zps_decode_sections(part, p, &views[p], &sections);
    for (uint32_t stripe = 0; stripe < zps_partition_stripes(part) && by_stripe; stripe++)
      assert_int_equal(zps_decode_sections_stripe(part, stripe, views, &sections), ZPS_OK);
    for (uint32_t i = 0; i < sections.n; i++) {
      const uint64_t len = list[i].n_rows * bytes;
      if (len) assert_memory_equal(list[i].values, dense + list[i].first_row * bytes, len);
      assert_int_equal(((unsigned char *)list[i].values)[len], GUARD);
    }
  }
  for (uint32_t i = 0; i < sections.n; i++) free(list[i].values);
  free(dense);
}

static void check(struct encoders *encoders, struct zps_rng *rng, uint64_t rows, uint32_t width, enum zps_dtype dtype,
                  uint32_t n_parts, bool is_hashed) {
  static const enum zps_value_codec codecs[] = {ZPS_VALUES_RAW, ZPS_VALUES_BF16};
  for (enum kind kind = DENSE; kind <= MIXED; kind++) {
    struct twins *const twins = twins_create(rng, rows, width, dtype, kind);
    struct zps_partition part;
    struct zps_murmur *const murmur = ref_partition(rows, n_parts, is_hashed ? REF_HASHED : 0, 7, &part);
    char **const slices = calloc(part.n_parts, sizeof *slices);
    struct zps_slice_view *const views = calloc(part.n_parts, sizeof *views);
    for (unsigned i = 0; i < 2 * COUNT(codecs); i++) {
      if (i % 2 == 0 && thin_skips_alone()) continue;
      for (unsigned all_rows = 0; all_rows < 2; all_rows++) {
        if (thin_skips()) continue;
        compare(encoders, twins, &part, codecs[i / 2], all_rows, i % 2 ? encoders->pool : NULL, slices, views);
        check_results(twins, &part, views);
        for (uint32_t p = 0; p < part.n_parts; p++) free(slices[p]);
      }
    }
    free(slices);
    free(views);
    zps_murmur_destroy(murmur);
    twins_destroy(twins);
  }
}

static void test_sections_are_one_array(void **state) {
  static const uint64_t rows[] = {1, 2, 100, 5000};
  static const uint32_t widths[] = {1, 3, 16};
  struct zps_rng rng = {.state = 5};
  for (unsigned i = 0; i < COUNT(rows); i++)
    for (unsigned j = 0; j < COUNT(widths); j++)
      for (unsigned is_hashed = 0; is_hashed < 2; is_hashed++) {
        check(*state, &rng, rows[i], widths[j], ZPS_DTYPE_F32, 1, is_hashed);
        check(*state, &rng, rows[i], widths[j], ZPS_DTYPE_F64, 16, is_hashed);
      }
}

/* Sections that end within blocks, chunks and stripes. */
static void test_sections_of_several_stripes(void **state) {
  struct zps_rng rng = {.state = 6};
  check(*state, &rng, 3u << ZPS_PARTITION_STRIPE_ROWS_MIN, 1, ZPS_DTYPE_F32, 32, false);
}

static void test_bad_rows_name_their_section(void **state) {
  struct encoders *const encoders = *state;
  float values[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  const int64_t rows[] = {0, 3, 4}, negative[] = {-1};
  struct zps_section list[] = {
      {.first_row = 0, .n_rows = 8, .values = values},
      {.first_row = 10, .n_rows = 4, .values = values, .rows = rows, .n_entries = 3},
      {.first_row = 90, .n_rows = 10, .values = values, .rows = negative, .n_entries = 1},
  };
  struct zps_sections sections = {.list = list, .n = 3};
  struct zps_partition part;
  struct zps_error error;
  zps_sections_count(&sections);
  assert_int_equal(sections.n_entries, 12);
  assert_int_equal(zps_partition_init(&part, 100, 4, 0, 1, &error), ZPS_OK);
  struct zps_encode_input input = {
      .part = &part, .width = 1, .dtype = ZPS_DTYPE_F32, .value_codec = ZPS_VALUES_RAW, .sections = &sections};
  for (unsigned all_rows = 0; all_rows < 2; all_rows++) {
    input.all_rows = all_rows;
    assert_int_equal(zps_encoder_scan(encoders->ordered, &input, NULL, &error), ZPS_ERR_INVALID);
    assert_string_equal(error.text, "row number 4 at position 2 of 3 of part 1: it has rows 0 to 3");
  }
  list[1].n_rows = 5;
  assert_int_equal(zps_encoder_scan(encoders->ordered, &input, NULL, &error), ZPS_ERR_INVALID);
  assert_string_equal(error.text, "row number -1 at position 0 of 1 of part 2: it has rows 0 to 9");
  assert_int_equal(zps_encoder_scan(encoders->hierarchical, &input, NULL, &error), ZPS_ERR_UNSUPPORTED);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_sections_are_one_array),
      cmocka_unit_test(test_sections_of_several_stripes),
      cmocka_unit_test(test_bad_rows_name_their_section),
  };
  return cmocka_run_group_tests(tests, encoders_setup, encoders_teardown);
}
