/* A call that lacks memory says so, loses nothing that it held, and works as soon as there is memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/codec/decode.h"
#include "common/codec/encode.h"
#include "common/codec/reduce.h"
#include "common/codec/hierarchical.h"
#include "tests/support/oom.h"

enum { ROWS = 300, ENTRIES = 40 };

struct made {
  enum zps_partitioner partitioner;
  struct zps_partition part;
  struct zps_encode_input input;
  float dense[ROWS], values[ENTRIES];
  int64_t rows[ENTRIES];
  struct zps_encoder *encoder;
  struct zps_reduce_scratch *scratch;
};

static int setup(void **state) {
  static struct made made;
  assert_int_equal(zps_partition_init(&made.part, ROWS, 3, 0, 7, NULL), ZPS_OK);
  for (unsigned i = 0; i < ENTRIES; i++) {
    made.rows[i] = 7 * i % 31; /* some repeat */
    made.values[i] = 1;
    made.dense[made.rows[i]] += 1;
  }
  *state = &made;
  return 0;
}

static zps_err_t encode_create(void *ctx) {
  struct made *const made = ctx;
  zps_err_t code = zps_encoder_create(made->partitioner, &made->encoder);
  if (code != ZPS_OK) return code;
  struct zps_error error;
  code = zps_encoder_scan(made->encoder, &made->input, NULL, &error);
  if (code == ZPS_OK) return ZPS_OK;
  assert_int_equal(error.code, code);
  assert_int_equal(zps_encoder_total_nnz(made->encoder), 0);
  assert_int_equal(zps_encoder_nnz(made->encoder, 0), 0);
  zps_encoder_destroy(made->encoder);
  return code;
}

static void encode_destroy(void *ctx) {
  struct made *const made = ctx;
  assert_int_equal(zps_encoder_total_nnz(made->encoder), made->input.all_rows ? ROWS : 31);
  zps_encoder_destroy(made->encoder);
}

/* One encoder all the way: the leftovers of a failed scan must not confuse the next. */
static zps_err_t scan_again(void *ctx) {
  struct made *const made = ctx;
  return zps_encoder_scan(made->encoder, &made->input, NULL, NULL);
}

static void scanned(void *ctx) {
  const struct made *const made = ctx;
  assert_int_equal(zps_encoder_total_nnz(made->encoder), made->input.all_rows ? ROWS : 31);
}

static void encoding(void **state) {
  struct made *const made = *state;
  for (unsigned i = 0; i < 6; i++) {
    const bool all_rows = i >= 4;
    made->partitioner = i % 2 ? ZPS_PARTITIONER_HIERARCHICAL : ZPS_PARTITIONER_STRATIFIED;
    made->input = (struct zps_encode_input){
        .part = &made->part, .width = 1, .dtype = ZPS_DTYPE_F32, .value_codec = ZPS_VALUES_RAW, .values = made->dense};
    made->input.all_rows = all_rows;
    made->input.any_order = i == 3;
    if (i == 2 || i == 3 || i == 5) {
      made->input.rows = made->rows;
      made->input.values = made->values;
      made->input.n_entries = ENTRIES;
    }
    oom_sweep(encode_create, encode_destroy, made, all_rows ? 4 : 5);
    assert_int_equal(zps_encoder_create(made->partitioner, &made->encoder), ZPS_OK);
    oom_sweep(scan_again, scanned, made, all_rows ? 2 : 4);
    zps_encoder_destroy(made->encoder);
  }
}

static const struct {
  float values[2];
  uint32_t indices[2];
} slice = {{1, 2}, {3, 99}};

static void view_slice(struct zps_slice_view *view, const struct made *made) {
  assert_int_equal(zps_slice_view_init(view, ZPS_CODEC_COO, zps_partition_size(&made->part, 0), 2, 1, ZPS_DTYPE_F32,
                                       ZPS_VALUES_RAW, &slice, sizeof slice, NULL),
                   ZPS_OK);
}

static zps_err_t sum(void *ctx) {
  struct made *const made = ctx;
  struct zps_slice_view views[2];
  uint64_t out[8], len;
  uint32_t nnz;
  for (unsigned i = 0; i < 2; i++) view_slice(&views[i], made);
  assert_true(zps_reduce_bound(views, 2, ZPS_CODEC_COO) <= sizeof out);
  const zps_err_t code = zps_reduce(made->scratch, views, 2, ZPS_OP_SUM, ZPS_CODEC_COO, NULL, out, &nnz, &len);
  if (code != ZPS_OK) return code;
  const float sums[2] = {2, 4};
  assert_int_equal(nnz, 2);
  assert_memory_equal(out, sums, sizeof sums);
  return ZPS_OK;
}

static zps_err_t reduce_create(void *ctx) {
  struct made *const made = ctx;
  zps_err_t code = zps_reduce_scratch_create(&made->scratch);
  if (code != ZPS_OK) return code;
  code = sum(made);
  if (code != ZPS_OK) zps_reduce_scratch_destroy(made->scratch);
  return code;
}

static void reduce_destroy(void *ctx) {
  struct made *const made = ctx;
  zps_reduce_scratch_destroy(made->scratch);
}

static void nothing(void *ctx) {
  (void)ctx;
}

static void summing(void **state) {
  struct made *const made = *state;
  oom_sweep(reduce_create, reduce_destroy, made, 3);
  assert_int_equal(zps_reduce_scratch_create(&made->scratch), ZPS_OK);
  oom_sweep(sum, nothing, made, 2);
  zps_reduce_scratch_destroy(made->scratch);
}

/* Three partitions with the same indices. */
static void view_alike(struct zps_slice_view views[3], const struct made *made) {
  view_slice(&views[0], made);
  for (uint32_t p = 1; p < 3; p++) {
    views[p] = views[0];
    views[p].m = zps_partition_size(&made->part, p);
  }
}

/* All rows, together or as the one stripe that there is. */
static zps_err_t list(const struct made *made, bool as_stripe) {
  struct zps_slice_view views[3];
  int64_t rows[6];
  float values[6];
  view_alike(views, made);
  struct zps_decode_stripes stripes = {0};
  const zps_err_t code = as_stripe ? zps_decode_order_stripe(&made->part, 0, views, &stripes)
                                   : zps_decode_rows(&made->part, views, NULL, &stripes.scratch[0], rows, values);
  if (as_stripe && code == ZPS_OK) zps_decode_join_stripes(&made->part, &stripes, sizeof *values, NULL, rows, values);
  zps_decode_stripes_fini(&stripes);
  for (unsigned i = 1; code == ZPS_OK && i < 6; i++) assert_true(rows[i - 1] < rows[i]);
  return code;
}

static zps_err_t decode(void *ctx) {
  return list(ctx, false);
}

static zps_err_t order(void *ctx) {
  return list(ctx, true);
}

static void decoding(void **state) {
  oom_sweep(decode, nothing, *state, 1);
  oom_sweep(order, nothing, *state, 1);
}

static uint32_t by_parity(void *ctx, uint64_t index) {
  (void)ctx;
  return index % 2;
}

static zps_err_t partition(void *ctx) {
  (void)ctx;
  /* one slot and one serial place each: memory is grown on the way */
  const struct zps_hier_config config = {.n_parts = 2, .options.r1 = 1, .options.r2 = 1, .h0 = by_parity};
  const uint64_t indices[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  uint64_t out[8], starts[3];
  const zps_err_t code = zps_hier_partition(&config, indices, 8, NULL, out, starts, NULL);
  if (code == ZPS_OK) assert_int_equal(starts[1], 4);
  return code;
}

static void hashing(void **state) {
  oom_sweep(partition, nothing, *state, 8);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(encoding), cmocka_unit_test(summing), cmocka_unit_test(decoding),
                                     cmocka_unit_test(hashing)};
  return cmocka_run_group_tests_name("codec_oom", tests, setup, NULL);
}
