/* Algorithm 1 in the device's encoder, and partitions of hashed rows in encoder and decoder, against the cpu's. */
#include <stdio.h>

#ifndef ZPS_HAVE_EMU
int main(void) {
  puts("1..0 # SKIP no C++17 compiler: kernels are not emulated");
  return 0;
}
#else
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/codec/order.h"
#include "tests/support/thin.h"
#include "tests/support/threadless.h"
#include "tests/unit/gpu/gpu_compare.h"
#include "worker/device/table.h"

/* Partitions of hashed rows, with their table in host memory and on the device. */
struct hashed {
  struct zps_murmur *murmur;
  struct zps_partition part;
  void *table;
};

static struct hashed hashed_open(const struct shape *shape, uint64_t seed) {
  struct hashed hashed;
  struct zps_partition part;
  gpu_ok(zps_murmur_create(shape->rows, shape->n_parts, seed, NULL, &hashed.murmur, &part, &gpu_error));
  gpu_ok(zps_device_table_create(emu.device, &part, &hashed.part, &hashed.table, &gpu_error));
  return hashed;
}

static void hashed_close(struct hashed *hashed) {
  zps_device_table_release(emu.device, hashed->table);
  zps_murmur_destroy(hashed->murmur);
}

/* Slices in any order become those of COO. */
static void put_in_order(struct gpu_slices *slices, const struct zps_encode_input *input) {
  struct zps_buffer scratch = {0};
  for (uint32_t p = 0; p < slices->n_parts; p++) {
    struct zps_device_slice *const slice = &slices->slices[p];
    assert_int_equal(slice->codec, slice->nnz ? ZPS_CODEC_COO_ANY : slice->codec);
    gpu_ok(zps_slice_order(zps_partition_size(input->part, p), slice->nnz, input->width, zps_dtype_sum(input->dtype),
                           (enum zps_value_codec)slice->value_codec, slices->bytes[p], &scratch, &gpu_error));
    slice->codec = ZPS_CODEC_COO;
  }
  zps_buffer_fini(&scratch);
}

static uint64_t rows_of(const struct gpu_slices *slices) {
  uint64_t n = 0;
  for (uint32_t p = 0; p < slices->n_parts; p++) n += slices->slices[p].nnz;
  return n;
}

static void compare_hashed(struct zps_device_encoder *on_cpu, struct zps_device_encoder *on_emu,
                           const struct ref_gradient *gradient, const struct zps_partition *part,
                           const struct zps_hier_options *hashing, unsigned allowed, enum zps_value_codec value_codec,
                           unsigned *n_again) {
  struct zps_encode_input input = ref_input(gradient, part);
  const bool any = allowed == ZPS_CODEC_ANY_ORDER;
  struct zps_device_hashed hashed;
  unsigned ignored = 0;
  if (zps_values_suit(value_codec, gradient->dtype)) input.value_codec = zps_values_of(value_codec, gradient->dtype);
  input.origin = (struct zps_values_origin){.seed = 5, .step = 9, .tensor = 2, .rank = 3};
  struct gpu_slices want = gpu_encode(&cpu, on_cpu, &input, any ? COO : allowed, &ignored);
  input.any_order = any;
  input.hashing = *hashing;
  struct gpu_slices got = gpu_encode_by(&emu, on_emu, emu.device->ops->encoder_hash, &input, allowed, n_again);
  emu.device->ops->encoder_hashed(on_emu, &hashed);
  assert_int_equal(hashed.parallel + hashed.serial, rows_of(&got));
  if (any) put_in_order(&got, &input);
  assert_same_slices(&got, &want, gradient->width, gradient->dtype);
  gpu_slices_free(&want);
  gpu_slices_free(&got);
}

static const struct shape shapes[] = {
    {1, 1, 1, 0, ZPS_DTYPE_F32},    {7, 1, 3, 0, ZPS_DTYPE_F32},      {5000, 1, 1, 0, ZPS_DTYPE_F32},
    {9001, 1, 7, 0, ZPS_DTYPE_F32}, {3000, 1, 300, 0, ZPS_DTYPE_F32}, {3000, 1, 5, 0, ZPS_DTYPE_F64},
    {1000, 3, 4, 0, ZPS_DTYPE_U8},  {1500, 5, 6, 0, ZPS_DTYPE_F32},   {400, 40, 3, 0, ZPS_DTYPE_F64},
    {10, 2, 40, 0, ZPS_DTYPE_F32},  {3000, 1, 5, 0, ZPS_DTYPE_BF16},  {1501, 3, 4, 0, ZPS_DTYPE_F16}};

/* All shapes, dense and lists with repeats, with the paper's memory and others: in the order of slots, and sorted. */
static void algorithm_1_deals_rows(void **state) {
  (void)state;
  static const struct zps_hier_options memories[] = {{0}, {.k = 1}, {.k = 7, .r1 = 3, .r2 = 1}, {.r1 = 500}, {.r2 = 2}};
  static const double densities[] = {0.03, 0, 0.4, 1};
  struct zps_device_encoder *on_cpu, *on_emu;
  gpu_ok(cpu.device->ops->encoder_create(cpu.device, &on_cpu, &gpu_error));
  gpu_ok(emu.device->ops->encoder_create(emu.device, &on_emu, &gpu_error));
  for (unsigned s = 0; s < COUNT(shapes); s++) {
    struct hashed hashed = hashed_open(&shapes[s], s);
    for (unsigned i = 0; i < 2 * COUNT(densities); i++) {
      if (thin_skips_heavy()) continue;
      const unsigned d = i / 2;
      struct zps_rng rng = {.state = s * 100 + d};
      const struct zps_hier_options *const memory = &memories[(s + d) % COUNT(memories)];
      struct ref_gradient gradient =
          (i % 2 ? ref_coo : ref_dense)(&rng, shapes[s].rows, shapes[s].width, shapes[s].dtype, densities[d]);
      unsigned n_again = 0;
      zps_emu_seed(s * 10 + d);
      compare_hashed(on_cpu, on_emu, &gradient, &hashed.part, memory, ZPS_CODEC_ANY_ORDER, ZPS_VALUES_RAW, &n_again);
      compare_hashed(on_cpu, on_emu, &gradient, &hashed.part, memory, d % 2 ? COO : ALL,
                     (enum zps_value_codec)(ZPS_VALUES_RAW + (s + d) % 6), &n_again);
      ref_free(&gradient);
    }
    hashed_close(&hashed);
  }
  cpu.device->ops->encoder_destroy(on_cpu);
  emu.device->ops->encoder_destroy(on_emu);
}

/* Nothing is lost where a serial memory overflows: the scan is repeated, and later ones are not. */
static void serial_memory_grows(void **state) {
  (void)state;
  static const struct zps_hier_options tight = {.k = 1, .r1 = 2, .r2 = 1};
  const struct shape shape = {4000, 1, 3, 0, ZPS_DTYPE_F32};
  struct zps_device_encoder *on_cpu, *on_emu;
  struct zps_rng rng = {.state = 5};
  struct hashed hashed = hashed_open(&shape, 1);
  gpu_ok(cpu.device->ops->encoder_create(cpu.device, &on_cpu, &gpu_error));
  gpu_ok(emu.device->ops->encoder_create(emu.device, &on_emu, &gpu_error));
  struct ref_gradient gradient = ref_dense(&rng, shape.rows, 1, ZPS_DTYPE_F32, 0.2);
  unsigned n_first = 0, n_later = 0;
  compare_hashed(on_cpu, on_emu, &gradient, &hashed.part, &tight, ZPS_CODEC_ANY_ORDER, ZPS_VALUES_RAW, &n_first);
  assert_true(n_first >= 1);
  for (unsigned i = 0; i < 3; i++) {
    zps_emu_seed(i);
    compare_hashed(on_cpu, on_emu, &gradient, &hashed.part, &tight, ZPS_CODEC_ANY_ORDER, ZPS_VALUES_RAW, &n_later);
  }
  assert_int_equal(n_later, 0);
  ref_free(&gradient);
  hashed_close(&hashed);

  /* Another number of partitions begins anew. */
  const struct shape other = {4000, 1, 5, 0, ZPS_DTYPE_F32};
  hashed = hashed_open(&other, 1);
  gradient = ref_dense(&rng, other.rows, 1, ZPS_DTYPE_F32, 0.2);
  compare_hashed(on_cpu, on_emu, &gradient, &hashed.part, &tight, ALL, ZPS_VALUES_RAW, &n_later);
  assert_true(n_later >= 1);
  ref_free(&gradient);
  hashed_close(&hashed);
  cpu.device->ops->encoder_destroy(on_cpu);
  emu.device->ops->encoder_destroy(on_emu);
}

/* Rows in order, of dense gradients and of lists, and their sums back: dense, and as rows. */
static void hashed_rows_are_coded(void **state) {
  (void)state;
  struct zps_device_encoder *on_cpu, *on_emu;
  struct zps_device_decoder *decoder;
  gpu_ok(cpu.device->ops->encoder_create(cpu.device, &on_cpu, &gpu_error));
  gpu_ok(emu.device->ops->encoder_create(emu.device, &on_emu, &gpu_error));
  gpu_ok(emu.device->ops->decoder_create(emu.device, &decoder, &gpu_error));
  for (unsigned s = 0; s < 2 * COUNT(shapes); s++) {
    if (thin_skips_heavy()) continue;
    const struct shape *const shape = &shapes[s % COUNT(shapes)];
    const bool is_coo = s >= COUNT(shapes);
    if (is_coo && zps_dtype_is_half(shape->dtype)) continue; /* wide slices are not decoded */
    struct hashed hashed = hashed_open(shape, s);
    struct zps_rng rng = {.state = s};
    struct ref_gradient gradient = (is_coo ? ref_coo : ref_dense)(&rng, shape->rows, shape->width, shape->dtype, 0.3);
    struct zps_encode_input input = ref_input(&gradient, &hashed.part);
    unsigned n_again = 0;
    zps_emu_seed(s);
    struct gpu_slices want = gpu_encode(&cpu, on_cpu, &input, ALL, &n_again);
    struct gpu_slices got = gpu_encode(&emu, on_emu, &input, ALL, &n_again);
    assert_same_slices(&got, &want, shape->width, shape->dtype);

    const size_t row_bytes = shape->width * zps_dtype_size(shape->dtype);
    struct zps_device_view *const views = gpu_views(&emu, &got);
    const uint64_t n = rows_of(&got);
    void *const dense = gpu_new(&emu, shape->rows * row_bytes), *const values = gpu_new(&emu, n * row_bytes);
    int64_t *const rows = gpu_new(&emu, n * sizeof *rows);
    const struct zps_device_ops *const ops = emu.device->ops;
    gpu_ok(ops->clear(emu.device, dense, shape->rows * row_bytes, emu.stream, &gpu_error));
    gpu_ok(ops->decoder_dense(decoder, &hashed.part, shape->width, shape->dtype, views, got.n_parts, dense, emu.stream,
                              &gpu_error));
    gpu_wait(&emu);
    gpu_ok(ops->decoder_finish(decoder, &gpu_error));
    gpu_ok(ops->decoder_rows(decoder, &hashed.part, shape->width, shape->dtype, views, got.n_parts, rows, values,
                             emu.stream, &gpu_error));
    gpu_wait(&emu);
    gpu_ok(ops->decoder_finish(decoder, &gpu_error));
    char *const got_dense = gpu_download(&emu, dense, shape->rows * row_bytes);
    char *const got_values = gpu_download(&emu, values, n * row_bytes);
    int64_t *const got_rows = gpu_download(&emu, rows, n * sizeof *rows);
    for (uint64_t i = 0; i < n; i++) {
      if (i > 0) assert_true(got_rows[i] > got_rows[i - 1]);
      assert_memory_equal(got_values + i * row_bytes, got_dense + (uint64_t)got_rows[i] * row_bytes, row_bytes);
      if (!is_coo)
        assert_memory_equal(got_values + i * row_bytes,
                            (const char *)gradient.dense + (uint64_t)got_rows[i] * row_bytes, row_bytes);
    }
    free(got_dense);
    free(got_values);
    free(got_rows);
    gpu_free(&emu, dense);
    gpu_free(&emu, values);
    gpu_free(&emu, rows);
    gpu_views_free(&emu, views, got.n_parts);
    gpu_slices_free(&want);
    gpu_slices_free(&got);
    ref_free(&gradient);
    hashed_close(&hashed);
  }
  cpu.device->ops->encoder_destroy(on_cpu);
  emu.device->ops->encoder_destroy(on_emu);
  emu.device->ops->decoder_destroy(decoder);
}

static void what_cannot_be_hashed_is_refused(void **state) {
  (void)state;
  const struct shape shape = {100, 1, 3, 0, ZPS_DTYPE_F32};
  struct hashed hashed = hashed_open(&shape, 1);
  struct zps_device_encoder *encoder;
  struct zps_device_decoder *decoder;
  struct zps_error error;
  gpu_ok(emu.device->ops->encoder_create(emu.device, &encoder, &gpu_error));
  gpu_ok(emu.device->ops->decoder_create(emu.device, &decoder, &gpu_error));
  const int64_t rows[4] = {4, 100, 0, -1};
  const float ones[4] = {1, 1, 1, 1};
  const struct zps_device_slice *slices;
  void *const rows_there = gpu_upload(&emu, rows, sizeof rows), *const ones_there = gpu_upload(&emu, ones, sizeof ones);
  struct zps_encode_input input = {.part = &hashed.part,
                                   .width = 1,
                                   .dtype = ZPS_DTYPE_F32,
                                   .value_codec = ZPS_VALUES_RAW,
                                   .values = ones_there,
                                   .rows = rows_there,
                                   .n_entries = 4};
  gpu_ok(emu.device->ops->encoder_hash(encoder, &input, ZPS_CODEC_ANY_ORDER, emu.stream, &error));
  gpu_wait(&emu);
  assert_int_equal(emu.device->ops->encoder_finish(encoder, &slices, &error), ZPS_ERR_INVALID);
  assert_non_null(strstr(error.text, "the row number at position 1 of 4"));
  input.n_entries = (uint64_t)UINT32_MAX + 1;
  assert_int_equal(emu.device->ops->encoder_hash(encoder, &input, ALL, emu.stream, &error), ZPS_ERR_UNSUPPORTED);
  assert_non_null(strstr(error.text, "less than 2^32 rows"));
  gpu_free(&emu, rows_there);
  gpu_free(&emu, ones_there);

  struct zps_partition without = hashed.part;
  without.table.on_device.ranks = NULL;
  input.part = &without;
  input.rows = NULL;
  assert_int_equal(emu.device->ops->encoder_scan(encoder, &input, ALL, emu.stream, &error), ZPS_ERR_INVALID);
  assert_non_null(strstr(error.text, "table of 100 hashed rows is not on the device"));
  assert_int_equal(
      emu.device->ops->decoder_dense(decoder, &without, 1, ZPS_DTYPE_F32, NULL, 0, NULL, emu.stream, &error),
      ZPS_ERR_INVALID);
  emu.device->ops->encoder_destroy(encoder);
  emu.device->ops->decoder_destroy(decoder);
  hashed_close(&hashed);
}

/* Each allocation in turn fails: an error that says so, and nothing is left behind. */
static void missing_memory_is_reported(void **state) {
  (void)state;
  if (!is_emulated) skip();
  const struct shape shape = {500, 1, 3, 0, ZPS_DTYPE_F32};
  struct zps_rng rng = {.state = 5};
  struct ref_gradient gradient = ref_dense(&rng, shape.rows, 1, ZPS_DTYPE_F32, 0.3);
  struct zps_murmur *murmur;
  struct zps_partition part;
  gpu_ok(zps_murmur_create(shape.rows, shape.n_parts, 1, NULL, &murmur, &part, &gpu_error));
  struct zps_encode_input input = ref_input(&gradient, &part);
  void *const values = gpu_upload(&emu, input.values, shape.rows * sizeof(float));
  input.values = values;
  const uint64_t before = zps_emu_allocations();
  unsigned n_failed = 0;
  for (unsigned n = 0, is_done = 0; !is_done; n++) {
    struct zps_device_encoder *encoder;
    struct hashed hashed = {.table = NULL};
    struct zps_error error;
    gpu_ok(emu.device->ops->encoder_create(emu.device, &encoder, &gpu_error));
    zps_emu_fail_allocation(n);
    zps_err_t code = zps_device_table_create(emu.device, &part, &hashed.part, &hashed.table, &error);
    input.part = &hashed.part;
    if (code == ZPS_OK) code = emu.device->ops->encoder_hash(encoder, &input, ZPS_CODEC_ANY_ORDER, emu.stream, &error);
    zps_emu_fail_allocation(UINT64_MAX);
    is_done = code == ZPS_OK;
    if (!is_done) assert_int_equal(code, ZPS_ERR_NOMEM);
    n_failed += !is_done;
    gpu_wait(&emu);
    zps_device_table_release(emu.device, hashed.table);
    emu.device->ops->encoder_destroy(encoder);
    gpu_wait(&emu);
    assert_int_equal(zps_emu_allocations(), before);
  }
  assert_true(n_failed >= 4);
  gpu_free(&emu, values);
  zps_murmur_destroy(murmur);
  ref_free(&gradient);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(algorithm_1_deals_rows, gpu_setup, gpu_teardown),
      cmocka_unit_test_setup_teardown(serial_memory_grows, gpu_setup, gpu_teardown),
      cmocka_unit_test_setup_teardown(hashed_rows_are_coded, gpu_setup, gpu_teardown),
      cmocka_unit_test_setup_teardown(what_cannot_be_hashed_is_refused, gpu_setup, gpu_teardown),
      cmocka_unit_test_setup_teardown(missing_memory_is_reported, gpu_setup, gpu_teardown),
  };
  return cmocka_run_group_tests(tests, gpu_group_setup, gpu_group_teardown);
}
#endif
