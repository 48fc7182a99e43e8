#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/rng.h"
#include "common/codec/codec_choice.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Codes the set, decodes it, compares; returns the coded bytes. */
static uint64_t round_trip(enum zps_codec codec, uint32_t m, const uint32_t *indices, uint32_t z) {
  const uint64_t len = zps_codec_index_exact(codec, m, indices, z);
  /* values of one byte each come first */
  unsigned char *const payload = malloc(z + len + 1);
  uint32_t *const decoded = malloc((z + 64ull) * sizeof *decoded);
  assert_true(payload && decoded);
  payload[z + len] = 0x5a;
  assert_true(len <= zps_codec_index_bytes(codec, m, z));
  assert_int_equal(zps_codec_index_encode(codec, m, indices, z, payload + z), len);
  assert_int_equal(payload[z + len], 0x5a);
  struct zps_slice_view view;
  struct zps_index_cursor cursor;
  assert_int_equal(zps_slice_view_init(&view, codec, m, z, 1, ZPS_DTYPE_U8, ZPS_VALUES_RAW, payload, z + len, NULL),
                   ZPS_OK);
  zps_index_cursor_init(&cursor, &view);
  assert_int_equal(zps_index_cursor_peek(&cursor), z ? indices[0] : UINT32_MAX);
  assert_int_equal(zps_index_cursor_read(&cursor, m, decoded, z + 64), z);
  if (z) assert_memory_equal(decoded, indices, z * sizeof *indices);
  assert_int_equal(zps_index_cursor_peek(&cursor), UINT32_MAX);
  free(decoded);
  free(payload);
  return len;
}

/* The bits of codec_rice.h, one by one and without blocks of more than one k: the fewest that any choice of parameters
 * takes. */
static uint64_t naive_bits(const uint32_t *numbers, uint32_t n, unsigned k) {
  uint64_t bits = 0;
  uint32_t next = 0;
  for (uint32_t i = 0; i < n; i++) {
    bits += k + 1 + ((numbers[i] - next) >> k);
    next = numbers[i] + 1;
  }
  return bits;
}

static void every_small_set(void **state) {
  (void)state;
  for (uint32_t m = 0; m <= 12; m++) {
    for (uint32_t set = 0; set < 1u << m; set++) {
      uint32_t indices[12], holes[12], z = 0, n_holes = 0;
      for (uint32_t r = 0; r < m; r++) {
        if (set >> r & 1)
          indices[z++] = r;
        else
          holes[n_holes++] = r;
      }
      uint64_t least = UINT64_MAX, chosen_bytes, bytes[ZPS_CODEC_COUNT];
      for (enum zps_codec codec = ZPS_CODEC_COO; codec < ZPS_CODEC_COUNT; codec++) {
        bytes[codec] = round_trip(codec, m, indices, z);
        if (bytes[codec] < least) least = bytes[codec];
      }
      assert_int_equal(bytes[ZPS_CODEC_COO], 4 * z);
      assert_int_equal(bytes[ZPS_CODEC_BITMAP], m ? 4 : 0);
      /* one block with the parameter that is agreed on: a bit, and the code */
      if (z > 0) {
        const unsigned k = zps_rice_parameter(m, z);
        assert_true(bytes[ZPS_CODEC_RICE] <= (1 + naive_bits(indices, z, k) + 7) / 8);
      }
      if (n_holes > 0) {
        const unsigned k = zps_rice_parameter(m, n_holes);
        assert_true(bytes[ZPS_CODEC_HOLES] <= (1 + naive_bits(holes, n_holes, k) + 7) / 8);
      }
      const enum zps_codec codec = zps_codec_choose(zps_codec_push_set(ZPS_CODEC_AUTO), m, indices, z, &chosen_bytes);
      assert_int_equal(bytes[codec], chosen_bytes);
      assert_true(chosen_bytes <= bytes[ZPS_CODEC_COO] && chosen_bytes <= bytes[ZPS_CODEC_BITMAP]);
      assert_true(chosen_bytes <= bytes[z > m / 2 ? ZPS_CODEC_HOLES : ZPS_CODEC_RICE]);
      if (z == 0 || z == m) assert_int_equal(chosen_bytes, 0);
    }
  }
}

static void rice_bytes_are_as_documented(void **state) {
  (void)state;
  /* m 1000, z 3: 2^(k+2) * 3 >= 1997 first for k = 8; gaps 5, 300, 0: bit 0, three times 8 bits, then 1, 01, 1 */
  const uint32_t indices[] = {5, 306, 307};
  const unsigned char right[] = {0x0a, 0x58, 0x00, 0x00 | 0x01 << 1 | 0x02 << 2 | 0x01 << 4};
  unsigned char out[8];
  assert_int_equal(zps_rice_parameter(1000, 3), 8);
  assert_int_equal(zps_codec_index_exact(ZPS_CODEC_RICE, 1000, indices, 3), 4);
  assert_int_equal(zps_codec_index_encode(ZPS_CODEC_RICE, 1000, indices, 3, out), 4);
  assert_memory_equal(out, right, sizeof right);
  /* everything but 2 and 5 of 8: gaps 2, 2; k = 1: bit 0, 0 0, 01 01 */
  const uint32_t most[] = {0, 1, 3, 4, 6, 7};
  assert_int_equal(zps_rice_parameter(8, 2), 1);
  assert_int_equal(zps_codec_index_encode(ZPS_CODEC_HOLES, 8, most, 6, out), 1);
  assert_int_equal(out[0], 0x50);
  /* a block that names its own k: 20 numbers without a gap out of 2^20 */
  uint32_t run[20];
  for (uint32_t i = 0; i < 20; i++) run[i] = i;
  assert_int_equal(zps_codec_index_encode(ZPS_CODEC_RICE, 1u << 20, run, 20, out), 4);
  assert_memory_equal(out, ((const unsigned char[]){0xc1, 0xff, 0xff, 0x03}), 4);
}

static uint32_t *draw(struct zps_rng *rng, uint32_t m, double density, uint32_t *z_p) {
  uint32_t *const indices = malloc((m + 1ull) * sizeof *indices);
  assert_non_null(indices);
  *z_p = 0;
  for (uint32_t r = 0; r < m; r++) {
    if (zps_rng_unit(rng) < density) indices[(*z_p)++] = r;
  }
  return indices;
}

static void random_sets_cost_their_entropy(void **state) {
  (void)state;
  static const double densities[] = {1e-4, 1e-3, 0.01, 0.028, 0.05, 0.1,  0.2,  0.25,
                                     0.3,  0.4,  0.5,  0.6,   0.8,  0.95, 0.999};
  struct zps_rng rng = {.state = 3};
  const uint32_t m = 1u << 20;
  for (unsigned d = 0; d < COUNT(densities); d++) {
    uint32_t z;
    uint32_t *const indices = draw(&rng, m, densities[d], &z);
    uint64_t bytes;
    const enum zps_codec codec = zps_codec_choose(zps_codec_push_set(ZPS_CODEC_AUTO), m, indices, z, &bytes);
    assert_int_equal(round_trip(codec, m, indices, z), bytes);
    const double bound = zps_codec_bound_bytes(m, z, 1, ZPS_DTYPE_F32, ZPS_VALUES_RAW), sum = 4.0 * z + (double)bytes;
    assert_true(sum < 1.006 * bound);
    /* the index alone */
    assert_true((double)bytes < 1.04 * (bound - 4.0 * z) + 4);
    free(indices);
  }
}

/* Dense heads, sparse tails, corners, stripes: never more than the bitmap, than Rice codes of one parameter promise, or
 * than a random set. */
static void skewed_sets_are_cheap(void **state) {
  (void)state;
  struct zps_rng rng = {.state = 4};
  const uint32_t m = 100000;
  uint32_t *const indices = malloc(m * sizeof *indices);
  assert_non_null(indices);
  for (unsigned shape = 0; shape < 6; shape++) {
    uint32_t z = 0;
    for (uint32_t r = 0; r < m; r++) {
      const double where = (double)r / m, u = zps_rng_unit(&rng);
      const double density[] = {where<0.1, where> 0.95, where < 0.1 ? 0.9 : 0.002,
                                0.3 * (1 - where) * (1 - where) * (1 - where), r % 1000 < 50, where < 0.7 ? 1 : 0.1};
      if (u < density[shape]) indices[z++] = r;
    }
    uint64_t bytes;
    const enum zps_codec codec = zps_codec_choose(zps_codec_push_set(ZPS_CODEC_AUTO), m, indices, z, &bytes);
    assert_int_equal(round_trip(codec, m, indices, z), bytes);
    const uint32_t rare = z > m / 2 ? m - z : z;
    const unsigned k = zps_rice_parameter(m, rare);
    assert_true(bytes <= zps_codec_index_bytes(ZPS_CODEC_BITMAP, m, z));
    assert_true(bytes <= (rare * (k + 1ull) + (m >> k) + 6 * (rare / ZPS_RICE_BLOCK + 1)) / 8 + 1);
    assert_true(4.0 * z + (double)bytes < 1.02 * zps_codec_bound_bytes(m, z, 1, ZPS_DTYPE_F32, ZPS_VALUES_RAW));
    for (enum zps_codec other = ZPS_CODEC_COO; other < ZPS_CODEC_COUNT; other++) round_trip(other, m, indices, z);
  }
  free(indices);
}

static void ends_of_the_range(void **state) {
  (void)state;
  const uint32_t m = UINT32_MAX, few[] = {0, 1, 0x7fffffff, 0x80000000, 0xfffffffd, 0xfffffffe};
  for (uint32_t z = 0; z <= COUNT(few); z++) {
    round_trip(ZPS_CODEC_COO, m, few, z);
    round_trip(ZPS_CODEC_RICE, m, few, z);
    round_trip(ZPS_CODEC_RICE, m, few + COUNT(few) - z, z);
  }
  const uint32_t sizes[] = {1, ZPS_RICE_BLOCK - 1, ZPS_RICE_BLOCK, ZPS_RICE_BLOCK + 1, 2 * ZPS_RICE_BLOCK};
  for (unsigned s = 0; s < COUNT(sizes); s++) {
    uint32_t indices[2 * ZPS_RICE_BLOCK];
    for (uint32_t i = 0; i < sizes[s]; i++) indices[i] = i * 16000000u + 7;
    round_trip(ZPS_CODEC_RICE, m, indices, sizes[s]);
    for (uint32_t i = 0; i < sizes[s]; i++) indices[i] = i;
    round_trip(ZPS_CODEC_RICE, m, indices, sizes[s]);
    round_trip(ZPS_CODEC_HOLES, sizes[s], indices, sizes[s]);
  }
}

static void wrong_codes_are_named(void **state) {
  (void)state;
  static const struct {
    unsigned char bytes[5];
    uint32_t len, m, z;
    const char *text;
  } wrongs[] = {
      {{0x0a, 0x58, 0x00, 0x1a},
       4,
       306,
       3,
       "rice slice: the block at position 0 of 3 leads beyond the partition's 306 indices or the 4 bytes"},
      {{0x0a, 0x58, 0x00, 0x0a},
       4,
       1000,
       3,
       "rice slice: the block at position 0 of 3 leads beyond the partition's 1000 indices or the 4 bytes"},
      {{0x0a, 0x58, 0x00, 0x3a},
       4,
       1000,
       3,
       "rice slice: the code ends at bit 29: its 4 bytes must end there, padded with zeros"},
      {{0x0a, 0x58, 0x00, 0x1a, 0x00},
       5,
       1000,
       3,
       "rice slice: the code ends at bit 29: its 5 bytes must end there, padded with zeros"},
  };
  for (unsigned i = 0; i < COUNT(wrongs); i++) {
    unsigned char payload[8] = {0};
    struct zps_slice_view view;
    struct zps_error error = {.code = ZPS_OK};
    memcpy(payload + wrongs[i].z, wrongs[i].bytes, wrongs[i].len);
    assert_int_equal(zps_slice_view_init(&view, ZPS_CODEC_RICE, wrongs[i].m, wrongs[i].z, 1, ZPS_DTYPE_U8,
                                         ZPS_VALUES_RAW, payload, wrongs[i].z + wrongs[i].len, &error),
                     ZPS_ERR_PROTOCOL);
    assert_string_equal(error.text, wrongs[i].text);
  }
  struct zps_error error;
  assert_int_equal(zps_slice_check_sizes(ZPS_CODEC_RICE, 1000, 3, 1, ZPS_DTYPE_U8, ZPS_VALUES_RAW, 3, &error),
                   ZPS_ERR_PROTOCOL);
  assert_string_equal(error.text, "slice of 3 bytes: 3 of 1000 rows of 1 x u8 as rice take 4 to 8");
}

static void policies(void **state) {
  (void)state;
  assert_string_equal(zps_codec_policy_name(ZPS_CODEC_AUTO), "auto");
  assert_string_equal(zps_codec_policy_name(ZPS_CODEC_COO_ONLY), "coo");
  assert_string_equal(zps_codec_policy_name(ZPS_CODEC_PAPER), "paper");
  assert_string_equal(zps_codec_policy_name((enum zps_codec_policy)0), "?");
  const uint32_t all[] = {0, 1, 2, 3};
  uint64_t bytes;
  assert_int_equal(zps_codec_choose(zps_codec_push_set(ZPS_CODEC_PAPER), 4, all, 4, &bytes), ZPS_CODEC_COO);
  assert_int_equal(bytes, 16);
  assert_int_equal(zps_codec_choose(zps_codec_result_set(ZPS_CODEC_PAPER), 4, all, 0, &bytes), ZPS_CODEC_BITMAP);
  assert_int_equal(zps_codec_push_set(ZPS_CODEC_COO_ONLY), 1u << ZPS_CODEC_COO);
  assert_int_equal(zps_codec_result_set(ZPS_CODEC_COO_ONLY), 1u << ZPS_CODEC_COO);
  assert_int_equal(zps_codec_plain(zps_codec_result_set(ZPS_CODEC_COO_ONLY), 1000, 900), ZPS_CODEC_COO);
  assert_int_equal(bytes, 4);
  assert_int_equal(zps_codec_plain(zps_codec_result_set(ZPS_CODEC_PAPER), 4000, 1), ZPS_CODEC_BITMAP);
  assert_int_equal(zps_codec_plain(zps_codec_push_set(ZPS_CODEC_PAPER), 4000, 3999), ZPS_CODEC_COO);
  assert_int_equal(zps_codec_plain(zps_codec_result_set(ZPS_CODEC_AUTO), 4000, 1), ZPS_CODEC_COO);
  assert_int_equal(zps_codec_plain(zps_codec_result_set(ZPS_CODEC_AUTO), 4000, 3999), ZPS_CODEC_BITMAP);
  assert_true(zps_codec_bound_bytes(1000, 0, 3, ZPS_DTYPE_F64, ZPS_VALUES_RAW) == 0);
  assert_true(zps_codec_bound_bytes(1000, 1000, 3, ZPS_DTYPE_F64, ZPS_VALUES_RAW) == 24000);
  assert_true(zps_codec_bound_bytes(1000, 500, 1, ZPS_DTYPE_F32, ZPS_VALUES_RAW) == 2125);
}

static void a_price_makes_rice_codes_dearer(void **state) {
  (void)state;
  static const struct {
    double density;
    unsigned price;
    enum zps_codec codec;
  } cases[] = {
      {0.2, 0, ZPS_CODEC_RICE},      /* 3.7 bits an index */
      {0.2, 1, ZPS_CODEC_RICE},      /* 4.7, a bitmap 5 */
      {0.2, 2, ZPS_CODEC_BITMAP},    /* 5.7 */
      {0.01, 20, ZPS_CODEC_RICE},    /* 28.1, COO 32 */
      {0.01, 25, ZPS_CODEC_COO},     /* 33.1 */
      {0.9, 1, ZPS_CODEC_HOLES},     /* 4.7 + 1 bits for each of 0.1 m holes, a bitmap 1 for each of m */
      {0.9, 5, ZPS_CODEC_HOLES},     /* 9.7 */
      {0.9, 6, ZPS_CODEC_BITMAP},    /* 10.7 */
      {0.0008, 255, ZPS_CODEC_RICE}, /* too few for a price */
  };
  struct zps_rng rng = {.state = 9};
  struct zps_buffer scratch = {0};
  const uint32_t m = 1u << 20;
  for (unsigned i = 0; i < COUNT(cases); i++) {
    uint32_t z;
    uint32_t *const indices = draw(&rng, m, cases[i].density, &z);
    const unsigned allowed = zps_codec_priced(zps_codec_push_set(ZPS_CODEC_AUTO), cases[i].price);
    uint64_t bytes;
    assert_int_equal(zps_codec_choose(allowed, m, indices, z, &bytes), cases[i].codec);
    assert_int_equal(bytes, zps_codec_index_exact(cases[i].codec, m, indices, z));
    char *const payload = malloc(z + zps_codec_index_bytes(ZPS_CODEC_BITMAP, m, z));
    assert_non_null(payload);
    zps_codec_index_encode(ZPS_CODEC_BITMAP, m, indices, z, payload + z);
    struct zps_slice_view view = zps_slice_view_own(ZPS_CODEC_BITMAP, m, z, 1, ZPS_DTYPE_U8, ZPS_VALUES_RAW, payload,
                                                    z + zps_codec_index_bytes(ZPS_CODEC_BITMAP, m, z));
    assert_int_equal(zps_slice_recode(&view, allowed, &scratch), ZPS_OK);
    if (bytes <= zps_codec_index_bytes(ZPS_CODEC_BITMAP, m, z)) assert_int_equal(view.codec, cases[i].codec);
    free(payload);
    free(indices);
  }
  zps_buffer_fini(&scratch);
}

static void fast_links_have_a_price(void **state) {
  (void)state;
  assert_int_equal(zps_codec_price(0, 1), 0);
  assert_int_equal(zps_codec_price(25000000000u, 1), 0);
  assert_int_equal(zps_codec_price(50000000000u, 1), 95);
  assert_int_equal(zps_codec_price(100000000000u, 16), 11);
  assert_int_equal(zps_codec_price(400000000000u, 1), ZPS_CODEC_PRICE_MAX);
  const unsigned coo = zps_codec_push_set(ZPS_CODEC_COO_ONLY), paper = zps_codec_result_set(ZPS_CODEC_PAPER);
  assert_int_equal(zps_codec_priced(coo, 95), coo);
  assert_int_equal(zps_codec_priced(paper, 95), paper);
  assert_int_equal(zps_codec_priced(ZPS_CODEC_ANY_ORDER, 95), ZPS_CODEC_ANY_ORDER);
}

static void slices_are_recoded_in_place(void **state) {
  (void)state;
  static const double densities[] = {0, 0.01, 0.3, 0.5, 0.9, 1};
  static const uint32_t sizes[] = {0, 1, 5, 3000};
  struct zps_rng rng = {.state = 8};
  struct zps_buffer scratch = {0};
  for (unsigned i = 0; i < COUNT(densities) * COUNT(sizes); i++) {
    uint32_t z;
    const uint32_t m = sizes[i % COUNT(sizes)];
    uint32_t *const indices = draw(&rng, m, densities[i / COUNT(sizes)], &z);
    for (enum zps_codec from = ZPS_CODEC_COO; from <= ZPS_CODEC_BITMAP; from++) {
      const uint64_t len = zps_codec_slice_bytes(from, m, z, 1, ZPS_DTYPE_U8, ZPS_VALUES_RAW);
      char *const payload = malloc(len + 1);
      uint32_t *const decoded = malloc((z + 64ull) * sizeof *decoded);
      assert_true(payload && decoded);
      memset(payload, 7, len);
      zps_codec_index_encode(from, m, indices, z, payload + z);
      struct zps_slice_view view, again;
      struct zps_index_cursor cursor;
      uint64_t least;
      assert_int_equal(zps_slice_view_init(&view, from, m, z, 1, ZPS_DTYPE_U8, ZPS_VALUES_RAW, payload, len, NULL),
                       ZPS_OK);
      assert_int_equal(zps_slice_recode(&view, zps_codec_result_set(ZPS_CODEC_AUTO), &scratch), ZPS_OK);
      zps_codec_choose(zps_codec_result_set(ZPS_CODEC_AUTO), m, indices, z, &least);
      assert_int_equal(view.index_bytes, least);
      assert_int_equal(zps_slice_view_init(&again, view.codec, m, z, 1, ZPS_DTYPE_U8, ZPS_VALUES_RAW, payload,
                                           z + view.index_bytes, NULL),
                       ZPS_OK);
      zps_index_cursor_init(&cursor, &again);
      assert_int_equal(zps_index_cursor_read(&cursor, m, decoded, z + 64), z);
      if (z) assert_memory_equal(decoded, indices, z * sizeof *indices);
      free(decoded);
      free(payload);
    }
    free(indices);
  }
  zps_buffer_fini(&scratch);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_small_set),
      cmocka_unit_test(a_price_makes_rice_codes_dearer),
      cmocka_unit_test(fast_links_have_a_price),
      cmocka_unit_test(rice_bytes_are_as_documented),
      cmocka_unit_test(random_sets_cost_their_entropy),
      cmocka_unit_test(skewed_sets_are_cheap),
      cmocka_unit_test(ends_of_the_range),
      cmocka_unit_test(wrong_codes_are_named),
      cmocka_unit_test(policies),
      cmocka_unit_test(slices_are_recoded_in_place),
  };
  return cmocka_run_group_tests_name("codec_choice", tests, NULL, NULL);
}
