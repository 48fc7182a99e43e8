/* The device's kernels, run by the emulation, encode as the cpu's encoder does, byte for byte. */
#include <stdio.h>

#ifndef ZPS_HAVE_EMU
int main(void) {
  puts("1..0 # SKIP no C++17 compiler: kernels are not emulated");
  return 0;
}
#else
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/halves.h"
#include "tests/support/thin.h"
#include "tests/support/threadless.h"
#include "tests/unit/gpu/gpu_compare.h"

/* The forms in which values travel, tried in turn. */
static const enum zps_value_codec value_codecs[] = {ZPS_VALUES_RAW,   ZPS_VALUES_BF16,  ZPS_VALUES_F16,
                                                    ZPS_VALUES_QSGD2, ZPS_VALUES_QSGD4, ZPS_VALUES_QSGD8};

static void compare_encoding(struct zps_device_encoder *on_cpu, struct zps_device_encoder *on_emu,
                             const struct ref_gradient *gradient, const struct zps_partition *part, unsigned allowed,
                             enum zps_value_codec value_codec) {
  struct zps_encode_input input = ref_input(gradient, part);
  if (zps_values_suit(value_codec, gradient->dtype)) input.value_codec = zps_values_of(value_codec, gradient->dtype);
  input.origin = (struct zps_values_origin){.seed = 5, .step = 1ull << 40, .tensor = 9, .rank = 3};
  unsigned n_again = 0;
  struct gpu_slices want = gpu_encode(&cpu, on_cpu, &input, allowed, &n_again);
  struct gpu_slices got = gpu_encode(&emu, on_emu, &input, allowed, &n_again);
  assert_same_slices(&got, &want, gradient->width, gradient->dtype);
  gpu_slices_free(&want);
  gpu_slices_free(&got);
}

static void encode_all(bool is_coo, const double *densities, unsigned n_densities) {
  struct zps_device_encoder *on_cpu, *on_emu;
  gpu_ok(cpu.device->ops->encoder_create(cpu.device, &on_cpu, &gpu_error));
  gpu_ok(emu.device->ops->encoder_create(emu.device, &on_emu, &gpu_error));
  static const unsigned sets[] = {ALL, COO, BITMAP};
  for (unsigned s = 0; s < N_SHAPES; s++) {
    for (unsigned d = 0; d < n_densities; d++) {
      if (thin_skips_heavy()) continue;
      struct zps_rng rng = {.state = s * 100 + d};
      const struct zps_partition part = partition_of(&gpu_shapes[s], s + d);
      struct ref_gradient gradient = (is_coo ? ref_coo : ref_dense)(&rng, gpu_shapes[s].rows, gpu_shapes[s].width,
                                                                    gpu_shapes[s].dtype, densities[d]);
      zps_emu_seed(s * 10 + d);
      compare_encoding(on_cpu, on_emu, &gradient, &part, ALL, ZPS_VALUES_RAW);
      if (d == 1) compare_encoding(on_cpu, on_emu, &gradient, &part, sets[1 + s % 2], ZPS_VALUES_RAW);
      if (d > 0) compare_encoding(on_cpu, on_emu, &gradient, &part, ALL, value_codecs[1 + (s + d) % 5]);
      ref_free(&gradient);
    }
  }
  cpu.device->ops->encoder_destroy(on_cpu);
  emu.device->ops->encoder_destroy(on_emu);
}

static void dense_gradients(void **state) {
  (void)state;
  static const double densities[] = {0, 0.03, 0.4, 0.9, 1};
  encode_all(false, densities, COUNT(densities));
}

static void coo_gradients(void **state) {
  (void)state;
  static const double densities[] = {0, 0.1, 0.8, 2};
  encode_all(true, densities, COUNT(densities));
}

static void stripes(void **state) {
  (void)state;
  struct zps_device_encoder *on_cpu, *on_emu;
  gpu_ok(cpu.device->ops->encoder_create(cpu.device, &on_cpu, &gpu_error));
  gpu_ok(emu.device->ops->encoder_create(emu.device, &on_emu, &gpu_error));
  const struct zps_partition part = partition_of(&gpu_stripes, 5);
  assert_int_equal(zps_partition_stripes(&part), 2);
  for (unsigned is_coo = 0; is_coo < 2; is_coo++) {
    struct zps_rng rng = {.state = is_coo};
    struct ref_gradient gradient = (is_coo ? ref_coo : ref_dense)(&rng, gpu_stripes.rows, 1, ZPS_DTYPE_F32, 0.004);
    compare_encoding(on_cpu, on_emu, &gradient, &part, ALL, ZPS_VALUES_RAW);
    ref_free(&gradient);
  }
  cpu.device->ops->encoder_destroy(on_cpu);
  emu.device->ops->encoder_destroy(on_emu);
}

/* Runs of rows, and runs without: rice parameters that change from block to block. */
static void rice_parameters_change(void **state) {
  (void)state;
  enum { ROWS = 60000 };
  struct zps_device_encoder *on_cpu, *on_emu;
  gpu_ok(cpu.device->ops->encoder_create(cpu.device, &on_cpu, &gpu_error));
  gpu_ok(emu.device->ops->encoder_create(emu.device, &on_emu, &gpu_error));
  float *const values = calloc(ROWS, sizeof *values);
  assert_non_null(values);
  for (uint64_t seed = 0; seed < 6; seed++) {
    struct zps_rng rng = {.state = seed};
    double density = 0.5;
    for (unsigned i = 0; i < ROWS; i++) {
      if (zps_rng_below(&rng, 400) == 0) density = pow(zps_rng_unit(&rng), 1 + (double)(seed % 3) * 3);
      values[i] = zps_rng_unit(&rng) < density ? (float)i + 1 : 0;
    }
    const struct shape shape = {ROWS, 1, seed < 3 ? 1 : 3, 0, ZPS_DTYPE_F32};
    const struct zps_partition part = partition_of(&shape, seed);
    const struct zps_encode_input input = {
        .part = &part, .width = 1, .dtype = ZPS_DTYPE_F32, .value_codec = ZPS_VALUES_RAW, .values = values};
    unsigned n_again = 0;
    zps_emu_seed(seed);
    struct gpu_slices want = gpu_encode(&cpu, on_cpu, &input, ALL, &n_again);
    struct gpu_slices got = gpu_encode(&emu, on_emu, &input, ALL, &n_again);
    assert_true(want.slices[0].codec == ZPS_CODEC_RICE || want.slices[0].codec == ZPS_CODEC_HOLES);
    assert_same_slices(&got, &want, 1, ZPS_DTYPE_F32);
    gpu_slices_free(&want);
    gpu_slices_free(&got);
  }
  free(values);
  cpu.device->ops->encoder_destroy(on_cpu);
  emu.device->ops->encoder_destroy(on_emu);
}

/* Sums of halves that are halves travel as such. Others make the slice of their partition wide, and no other one. */
static void sums_of_halves(void **state) {
  (void)state;
  enum { N = 6, N_PARTS = 40 };
  static const enum zps_dtype dtypes[] = {ZPS_DTYPE_BF16, ZPS_DTYPE_F16};
  struct zps_device_encoder *on_cpu, *on_emu;
  gpu_ok(cpu.device->ops->encoder_create(cpu.device, &on_cpu, &gpu_error));
  gpu_ok(emu.device->ops->encoder_create(emu.device, &on_emu, &gpu_error));
  for (unsigned d = 0; d < COUNT(dtypes); d++) {
    const float most = d ? 2048 : 256; /* one more is no half */
    const struct shape shape = {1000, 1, N_PARTS, 0, dtypes[d]};
    const struct zps_partition part = partition_of(&shape, d);
    const int64_t rows[N] = {7, 500, 7, 900, 500, 900};
    uint16_t values[N];
    const float floats[N] = {most, 1, 1, -2, 2, 2};
    uint32_t index;
    for (unsigned i = 0; i < N; i++) values[i] = halves_narrow(dtypes[d], floats[i]);
    const struct zps_encode_input input = {.part = &part,
                                           .width = 1,
                                           .dtype = dtypes[d],
                                           .value_codec = zps_values_own(dtypes[d]),
                                           .values = values,
                                           .rows = rows,
                                           .n_entries = N};
    unsigned n_again = 0;
    struct gpu_slices want = gpu_encode(&cpu, on_cpu, &input, ALL, &n_again);
    struct gpu_slices got = gpu_encode(&emu, on_emu, &input, ALL, &n_again);
    assert_same_slices(&got, &want, 1, dtypes[d]);
    const uint32_t wide = zps_partition_of(&part, 7, &index), narrow = zps_partition_of(&part, 500, &index);
    assert_int_equal(got.slices[wide].value_codec, ZPS_VALUES_RAW);
    assert_true(*(const float *)got.bytes[wide] == most + 1);
    assert_int_equal(got.slices[narrow].value_codec, input.value_codec);
    assert_int_equal(*(const uint16_t *)got.bytes[narrow], halves_narrow(dtypes[d], 3));
    assert_int_equal(got.slices[zps_partition_of(&part, 900, &index)].nnz, 0);
    gpu_slices_free(&want);
    gpu_slices_free(&got);
  }
  cpu.device->ops->encoder_destroy(on_cpu);
  emu.device->ops->encoder_destroy(on_emu);
}

/* All halves that there are, wherever their array begins, come back with their bits; rows of zeros as +0.0. */
static void halves_keep_their_bits(void **state) {
  (void)state;
  enum { N = 1 << 16 };
  static const uint32_t widths[] = {1, 3, 8};
  static const size_t offsets[] = {0, 2, 8, 14};
  struct zps_device_encoder *encoder;
  struct zps_device_decoder *decoder;
  struct zps_error error;
  gpu_ok(emu.device->ops->encoder_create(emu.device, &encoder, &gpu_error));
  gpu_ok(emu.device->ops->decoder_create(emu.device, &decoder, &gpu_error));
  const struct zps_device_ops *const ops = emu.device->ops;
  for (unsigned i = 0; i < 2 * COUNT(widths) * COUNT(offsets); i++) {
    const uint32_t width = widths[i / 2 % COUNT(widths)];
    const size_t offset = offsets[i / 2 / COUNT(widths)];
    const struct shape shape = {N / width - 1, width, 5, 0, i % 2 ? ZPS_DTYPE_F16 : ZPS_DTYPE_BF16};
    const uint64_t n = shape.rows * width;
    const struct zps_partition part = partition_of(&shape, i);
    uint16_t *const halves = malloc(n * sizeof *halves);
    assert_non_null(halves);
    for (uint64_t j = 0; j < n; j++) halves[j] = (uint16_t)(j * 7919 + i);
    char *const room = gpu_new(&emu, offset + n * sizeof *halves), *const dense =
                                                                       gpu_new(&emu, offset + n * sizeof *halves);
    gpu_ok(ops->copy(emu.device, room + offset, halves, n * sizeof *halves, emu.stream, &error));
    gpu_ok(ops->clear(emu.device, dense, offset + n * sizeof *halves, emu.stream, &error));
    const struct zps_encode_input input = {.part = &part,
                                           .width = width,
                                           .dtype = shape.dtype,
                                           .value_codec = zps_values_own(shape.dtype),
                                           .values = room + offset};
    const struct zps_device_slice *table;
    zps_err_t code;
    do {
      gpu_ok(ops->encoder_scan(encoder, &input, ALL, emu.stream, &error));
      gpu_wait(&emu);
      code = ops->encoder_finish(encoder, &table, &error);
    } while (code == ZPS_ERR_AGAIN);
    assert_int_equal(code, ZPS_OK);
    struct gpu_slices slices = gpu_take_slices(&emu, encoder, table, part.n_parts);
    struct zps_device_view *const views = gpu_views(&emu, &slices);
    gpu_ok(ops->decoder_dense(decoder, &part, width, shape.dtype, views, part.n_parts, dense + offset, emu.stream,
                              &error));
    gpu_wait(&emu);
    gpu_ok(ops->decoder_finish(decoder, &error));
    char *const got = gpu_download(&emu, dense, offset + n * sizeof *halves);
    for (uint64_t row = 0; row < shape.rows; row++)
      if (ref_is_zero(shape.dtype, halves + row * width, width))
        memset(halves + row * width, 0, width * sizeof *halves);
    assert_memory_equal(got + offset, halves, n * sizeof *halves);
    free(got);
    free(halves);
    gpu_views_free(&emu, views, part.n_parts);
    gpu_slices_free(&slices);
    gpu_free(&emu, room);
    gpu_free(&emu, dense);
  }
  emu.device->ops->encoder_destroy(encoder);
  emu.device->ops->decoder_destroy(decoder);
}

static void scratch_grows(void **state) {
  (void)state;
  struct zps_device_encoder *encoder;
  gpu_ok(emu.device->ops->encoder_create(emu.device, &encoder, &gpu_error));
  const struct shape shape = {6000, 1, 3, 0, ZPS_DTYPE_F32};
  const struct zps_partition part = partition_of(&shape, 3);
  struct zps_rng rng = {.state = 5};
  struct ref_gradient gradient = ref_dense(&rng, shape.rows, 1, ZPS_DTYPE_F32, 1);
  const struct zps_encode_input input = ref_input(&gradient, &part);
  unsigned n_again = 0;
  struct gpu_slices slices = gpu_encode(&emu, encoder, &input, ALL, &n_again);
  assert_int_equal(n_again, 1);
  gpu_slices_free(&slices);
  slices = gpu_encode(&emu, encoder, &input, ALL, &n_again);
  assert_int_equal(n_again, 1);
  gpu_slices_free(&slices);
  ref_free(&gradient);
  emu.device->ops->encoder_destroy(encoder);
}

static void bad_rows_are_refused(void **state) {
  (void)state;
  const struct shape shape = {100, 1, 3, 0, ZPS_DTYPE_F32};
  const struct zps_partition part = partition_of(&shape, 3);
  static const int64_t bad[] = {100, -1, INT64_MIN, INT64_MAX};
  struct gpu_rig *const rigs[] = {&cpu, &emu};
  for (unsigned i = 0; i < COUNT(bad); i++) {
    for (unsigned r = 0; r < COUNT(rigs); r++) {
      struct gpu_rig *const rig = rigs[r];
      struct zps_device_encoder *encoder;
      gpu_ok(rig->device->ops->encoder_create(rig->device, &encoder, &gpu_error));
      const int64_t rows[5] = {3, 99, bad[i], 0, bad[i]};
      const float values[5] = {1, 2, 3, 4, 5};
      void *const rows_there = gpu_upload(rig, rows, sizeof rows), *const values_there =
                                                                       gpu_upload(rig, values, sizeof values);
      const struct zps_encode_input input = {.part = &part,
                                             .width = 1,
                                             .dtype = ZPS_DTYPE_F32,
                                             .value_codec = ZPS_VALUES_RAW,
                                             .values = values_there,
                                             .rows = rows_there,
                                             .n_entries = 5};
      const struct zps_device_slice *slices;
      struct zps_error error;
      gpu_ok(rig->device->ops->encoder_scan(encoder, &input, ALL, rig->stream, &gpu_error));
      gpu_wait(rig);
      assert_int_equal(rig->device->ops->encoder_finish(encoder, &slices, &error), ZPS_ERR_INVALID);
      assert_non_null(strstr(error.text, "at position 2 of 5: the tensor has rows 0 to 99"));
      gpu_free(rig, rows_there);
      gpu_free(rig, values_there);
      rig->device->ops->encoder_destroy(encoder);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(dense_gradients, gpu_setup, gpu_teardown),
      cmocka_unit_test_setup_teardown(coo_gradients, gpu_setup, gpu_teardown),
      cmocka_unit_test_setup_teardown(stripes, gpu_setup, gpu_teardown),
      cmocka_unit_test_setup_teardown(rice_parameters_change, gpu_setup, gpu_teardown),
      cmocka_unit_test_setup_teardown(sums_of_halves, gpu_setup, gpu_teardown),
      cmocka_unit_test_setup_teardown(halves_keep_their_bits, gpu_setup, gpu_teardown),
      cmocka_unit_test_setup_teardown(scratch_grows, gpu_setup, gpu_teardown),
      cmocka_unit_test_setup_teardown(bad_rows_are_refused, gpu_setup, gpu_teardown),
  };
  return cmocka_run_group_tests(tests, gpu_group_setup, gpu_group_teardown);
}
#endif
