/* The number of partitions of a tensor, and the owner of each. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "proto/control.h"
#include "server/membership/layout.h"

static uint32_t parts_of(uint64_t rows, uint32_t width, uint32_t n_servers, uint32_t asked) {
  const struct zps_layout layout = zps_layout_of(rows, width, ZPS_DTYPE_F32, 4, n_servers, n_servers, asked);
  assert_true(layout.n_owners >= 1 && layout.n_owners <= n_servers);
  return layout.n_parts;
}

static void test_layout(void **state) {
  (void)state;
  assert_int_equal(parts_of(1 << 18, 1, 4, 0), 16);
  assert_int_equal(parts_of(1 << 20, 1, 4, 0), 64);
  assert_int_equal(parts_of(1 << 12, 128, 4, 0), 16);
  assert_int_equal(parts_of(1 << 15, 16, 4, 0), 32);
  assert_int_equal(parts_of(1 << 24, 1, 4, 0), 64);
  assert_int_equal(parts_of(1024, 1 << 10, 4, 0), 4);
  assert_int_equal(parts_of(1ull << 40, 1, 1, 0), 513);
  assert_int_equal(parts_of(1ull << 40, 1, ZPS_SERVERS_MAX, 0), 4096);
  assert_int_equal(parts_of(47702, 64, 16, 0), 176); /* of 186 that have rows enough */
  assert_int_equal(parts_of(256 * 15, 1 << 10, 16, 0), 16);
  assert_int_equal(parts_of(10, 1, 4, 16), 10);
  assert_int_equal(parts_of(100, 1, 4, 16), 16);
  const struct zps_layout layout = {.n_parts = 18, .n_owners = 4};
  for (uint32_t number = 0; number < 5; number++) {
    uint32_t owners[18], share[4] = {0};
    zps_layout_owners(&layout, number, 4, owners);
    for (unsigned p = 0; p < 18; p++) share[owners[p]]++;
    for (unsigned s = 0; s < 4; s++) assert_in_range(share[s], 4, 5);
    assert_int_equal(owners[0], number % 4);
  }
}

static void assert_layout(uint64_t rows, uint32_t width, enum zps_dtype dtype, uint32_t world, uint32_t n_servers,
                          uint32_t n_owners, uint32_t n_parts) {
  const struct zps_layout layout = zps_layout_of(rows, width, dtype, world, n_servers, n_servers, 0);
  assert_int_equal(layout.n_owners, n_owners);
  assert_int_equal(layout.n_parts, n_parts);
}

/* A few KiB are one server's; whole partitions of them travel inside frames. */
static void test_small(void **state) {
  (void)state;
  assert_layout(1, 1, ZPS_DTYPE_F32, 4, 4, 1, 1);
  assert_layout(1000, 1, ZPS_DTYPE_F32, 4, 4, 1, 1);
  assert_layout(2048, 1, ZPS_DTYPE_F64, 2, 4, 1, 2);
  assert_layout(2048, 1, ZPS_DTYPE_F32, 4, 4, 1, 1);
  assert_layout(2049, 1, ZPS_DTYPE_F32, 4, 4, 2, 2);
  assert_layout(8192, 1, ZPS_DTYPE_F32, 1, 1, 1, 3);
  assert_layout(8192, 1, ZPS_DTYPE_F32, 4, 4, 4, 4);
  assert_layout(1000, 1, ZPS_DTYPE_F32, 64, 64, 8, 8);
  assert_layout(3, 2048, ZPS_DTYPE_F32, 1, 4, 1, 2);
  assert_layout(2, 4096, ZPS_DTYPE_F32, 1, 4, 1, 2); /* no more than rows */
  assert_layout(1000, 1, ZPS_DTYPE_F32, 1000, 1, 1, 1);
}

/* All servers take part, with as many partitions as travel inside frames, up to four each. */
static void test_not_so_small(void **state) {
  (void)state;
  assert_layout(8193, 1, ZPS_DTYPE_F32, 4, 4, 4, 4);
  assert_layout(4 * 3072, 1, ZPS_DTYPE_F32, 4, 4, 4, 4);
  assert_layout(4 * 3072 + 1, 1, ZPS_DTYPE_F32, 4, 4, 4, 8);
  assert_layout(8 * 3072 + 1, 1, ZPS_DTYPE_F32, 4, 4, 4, 12);
  assert_layout(12 * 3072 + 1, 1, ZPS_DTYPE_F32, 4, 4, 4, 16);
  assert_layout(4 * 3072, 1, ZPS_DTYPE_F64, 4, 4, 4, 8);
  assert_layout(1 << 18, 1, ZPS_DTYPE_F32, 4, 4, 4, 16);
}

/* Few rows of many values are no small tensor: all servers take part. */
static void test_wide(void **state) {
  (void)state;
  assert_layout(207, 960, ZPS_DTYPE_F32, 4, 4, 4, 4);
  assert_layout(10, 1 << 20, ZPS_DTYPE_F32, 4, 4, 4, 4);
  assert_layout(255, 64, ZPS_DTYPE_F32, 64, 4, 4, 1); /* of as many rows and values as one partition has at least */
}

/* Small tensors spread over the servers, and a rank that asks for partitions gets them on every server. */
static void test_small_spread(void **state) {
  (void)state;
  struct zps_layout layout = zps_layout_of(5000, 1, ZPS_DTYPE_F32, 1, 4, 4, 0);
  uint32_t owners[8], share[4] = {0};
  assert_int_equal(layout.n_parts, 2);
  for (uint32_t number = 0; number < 8; number++) {
    zps_layout_owners(&layout, number, 4, owners);
    assert_int_equal(owners[0], number % 4);
    assert_int_equal(owners[1], owners[0]);
    share[owners[0]]++;
  }
  for (unsigned s = 0; s < 4; s++) assert_int_equal(share[s], 2);
  layout = zps_layout_of(1500, 1, ZPS_DTYPE_F32, 4, 4, 4, 8);
  assert_int_equal(layout.n_parts, 8);
  zps_layout_owners(&layout, 1, 4, owners);
  for (uint32_t p = 0; p < 8; p++) assert_int_equal(owners[p], (1 + p) % 4);
}

/* Each server has one run of consecutive rows, and all runs are within a seventeenth of each other. */
static void test_even_ranges(void **state) {
  (void)state;
  static const uint64_t sizes[] = {1, 2, 5, 64, 1000, 4096, 65537, 1000003, (1ull << 33) + 1, 1ull << 40};
  static const uint32_t servers[] = {1, 2, 3, 8, 100, ZPS_SERVERS_MAX};
  for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    for (unsigned j = 0; j < sizeof servers / sizeof servers[0]; j++) {
      const uint32_t n_servers = servers[j];
      struct zps_partition part;
      uint32_t n_parts, bits;
      zps_layout_even(sizes[i], 1, n_servers, n_servers, &n_parts, &bits);
      assert_true(n_parts <= n_servers * ZPS_LAYOUT_RANGES_PER_SERVER_MAX || bits == ZPS_PARTITION_BLOCK_BITS_MAX);
      assert_true(n_parts == sizes[i] || n_parts >= n_servers * ZPS_LAYOUT_RANGES_PER_SERVER / 2);
      assert_int_equal(zps_partition_init(&part, sizes[i], n_parts, bits, i, NULL), ZPS_OK);
      assert_int_equal(part.n_groups, 1);
      uint32_t *const owners = calloc(n_parts, sizeof *owners), *const blocks = calloc(n_servers, sizeof *blocks);
      assert_true(owners && blocks);
      zps_layout_even_owners(&part, 7, n_servers, owners);
      uint32_t last = 7 % n_servers, least = n_parts, most = 0;
      for (uint32_t block = 0; block < n_parts; block++) {
        uint32_t local;
        const uint32_t owner = owners[zps_partition_of(&part, (uint64_t)block << bits, &local)];
        assert_int_equal(local, 0);
        if (blocks[owner]++ == 0)
          last = owner;
        else
          assert_int_equal(owner, last); /* it comes only once */
      }
      for (uint32_t s = 0; s < n_servers; s++) {
        if (blocks[s] < least) least = blocks[s];
        if (blocks[s] > most) most = blocks[s];
      }
      assert_true(most - least <= 1);
      free(owners);
      free(blocks);
    }
  }
}

/* Blocks of wide rows are as few as single values would be. */
static void test_even_ranges_of_large_tensors(void **state) {
  (void)state;
  uint32_t n_parts, bits;
  zps_layout_even(1 << 20, 1, 8, 8, &n_parts, &bits);
  assert_int_equal(n_parts, 256);
  zps_layout_even(1 << 24, 1, 8, 8, &n_parts, &bits);
  assert_int_equal(n_parts, 1024);
  zps_layout_even(1 << 16, 256, 8, 8, &n_parts, &bits);
  assert_int_equal(n_parts, 1024);
  zps_layout_even(1 << 30, 1, 4, 4, &n_parts, &bits);
  assert_int_equal(n_parts, 4 * ZPS_LAYOUT_RANGES_PER_SERVER_MAX);
  zps_layout_even(1 << 30, 1, 100, 100, &n_parts, &bits);
  assert_in_range(n_parts, 100 * ZPS_LAYOUT_RANGES_PER_SERVER / 2, 100 * ZPS_LAYOUT_RANGES_PER_SERVER);
}

/* Room for more servers costs no partitions, up to four times as many; and each place has some. */
static void test_free_places(void **state) {
  (void)state;
  for (uint32_t began = 1; began <= 6; began++) {
    for (uint32_t places = began; places <= 8 * began; places++) {
      const struct zps_layout layout = zps_layout_of(1 << 24, 1, ZPS_DTYPE_F32, 4, began, places, 0);
      uint32_t n_parts, bits;
      assert_true(layout.n_parts >= 4 * places && layout.n_parts % places == 0);
      assert_true(layout.n_parts <= (places <= 4 * began ? 16 * began : 4 * places));
      assert_true(layout.n_owners == places);
      zps_layout_even(1 << 14, 1, began, places, &n_parts, &bits);
      assert_true(n_parts <= 32 * began || n_parts <= 16 * places);
      assert_true(n_parts >= 8 * places);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_layout),       cmocka_unit_test(test_small),
      cmocka_unit_test(test_not_so_small), cmocka_unit_test(test_free_places),
      cmocka_unit_test(test_wide),         cmocka_unit_test(test_small_spread),
      cmocka_unit_test(test_even_ranges),  cmocka_unit_test(test_even_ranges_of_large_tensors),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
