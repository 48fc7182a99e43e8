/* Decoding and adding by the device's kernels, run by the emulation: results, and hostile bytes. */
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

#include "tests/support/threadless.h"
#include "tests/unit/gpu/gpu_compare.h"

static zps_err_t decode_dense(struct gpu_rig *rig, struct zps_device_decoder *decoder, const struct zps_partition *part,
                              uint32_t width, enum zps_dtype dtype, const struct gpu_slices *slices, void **dense_p) {
  const size_t len_bytes = part->rows * width * zps_dtype_size(dtype);
  struct zps_device_view *const views = gpu_views(rig, slices);
  void *const dense = gpu_new(rig, len_bytes);
  gpu_ok(rig->device->ops->clear(rig->device, dense, len_bytes, rig->stream, &gpu_error));
  gpu_ok(rig->device->ops->decoder_dense(decoder, part, width, dtype, views, slices->n_parts, dense, rig->stream,
                                         &gpu_error));
  gpu_wait(rig);
  const zps_err_t code = rig->device->ops->decoder_finish(decoder, NULL);
  *dense_p = gpu_download(rig, dense, len_bytes);
  gpu_free(rig, dense);
  gpu_views_free(rig, views, slices->n_parts);
  return code;
}

static void compare_rows(struct zps_device_decoder *decoder, const struct zps_partition *part,
                         const struct ref_gradient *gradient, const struct gpu_slices *slices) {
  const size_t row_bytes = ref_row_bytes(gradient);
  uint64_t n = 0;
  for (uint32_t p = 0; p < part->n_parts; p++) n += slices->slices[p].nnz;
  struct zps_device_view *const views = gpu_views(&emu, slices);
  void *const rows = gpu_new(&emu, n * sizeof(int64_t)), *const values = gpu_new(&emu, n * row_bytes);
  gpu_ok(emu.device->ops->decoder_rows(decoder, part, gradient->width, gradient->dtype, views, part->n_parts, rows,
                                       values, emu.stream, &gpu_error));
  gpu_wait(&emu);
  gpu_ok(emu.device->ops->decoder_finish(decoder, &gpu_error));
  int64_t *const got_rows = gpu_download(&emu, rows, n * sizeof(int64_t));
  char *const got = gpu_download(&emu, values, n * row_bytes);
  uint64_t i = 0;
  for (uint64_t row = 0; row < part->rows; row++) {
    if (!gradient->present[row]) continue;
    assert_true(i < n);
    assert_int_equal(got_rows[i], row);
    assert_memory_equal(got + i * row_bytes, (char *)gradient->dense + row * row_bytes, row_bytes);
    i++;
  }
  assert_int_equal(i, n);
  free(got_rows);
  free(got);
  gpu_free(&emu, rows);
  gpu_free(&emu, values);
  gpu_views_free(&emu, views, part->n_parts);
}

static void check_decoding(struct zps_device_decoder *decoder, const struct shape *shape, double density, uint64_t seed,
                           bool with_rows) {
  struct zps_rng rng = {.state = seed};
  const struct zps_partition part = partition_of(shape, seed);
  struct ref_gradient gradient = ref_dense(&rng, shape->rows, shape->width, shape->dtype, density);
  const size_t row_bytes = ref_row_bytes(&gradient);
  for (uint64_t row = 0; row < part.rows; row++)
    if (!gradient.present[row]) memset((char *)gradient.dense + row * row_bytes, 0, row_bytes); /* no -0.0 */
  struct gpu_slices slices = encode_as(&gradient, &part, (unsigned)seed, ZPS_VALUES_RAW);
  void *dense;
  zps_emu_seed(seed);
  assert_int_equal(decode_dense(&emu, decoder, &part, gradient.width, gradient.dtype, &slices, &dense), ZPS_OK);
  assert_memory_equal(dense, gradient.dense, part.rows * row_bytes);
  free(dense);
  if (with_rows) compare_rows(decoder, &part, &gradient, &slices);
  gpu_slices_free(&slices);
  ref_free(&gradient);
}

static void results_are_decoded(void **state) {
  (void)state;
  static const double densities[] = {0.02, 0.5, 0.97, 1, 0};
  struct zps_device_decoder *decoder;
  gpu_ok(emu.device->ops->decoder_create(emu.device, &decoder, &gpu_error));
  for (unsigned s = 0; s < N_SHAPES; s++)
    for (unsigned d = 0; d < COUNT(densities); d++)
      check_decoding(decoder, &gpu_shapes[s], densities[d], s * 10 + d, d % 2 == s % 2);
  check_decoding(decoder, &gpu_stripes, 0.004, 5, true);
  emu.device->ops->decoder_destroy(decoder);
}

/* Rice codes that no block of threads has room for at once: of rows, and of holes. */
static void long_slices_are_decoded(void **state) {
  (void)state;
  static const struct shape shape = {250000, 1, 1, 0, ZPS_DTYPE_U8};
  struct zps_device_decoder *decoder;
  gpu_ok(emu.device->ops->decoder_create(emu.device, &decoder, &gpu_error));
  check_decoding(decoder, &shape, 0.3, ZPS_CODEC_RICE, false);
  check_decoding(decoder, &shape, 0.75, ZPS_CODEC_HOLES, false);
  emu.device->ops->decoder_destroy(decoder);
}

/* Narrow values decode to the same values as on the cpu. */
static void narrow_values_are_widened(void **state) {
  (void)state;
  struct zps_device_decoder *on_cpu, *on_emu;
  gpu_ok(cpu.device->ops->decoder_create(cpu.device, &on_cpu, &gpu_error));
  gpu_ok(emu.device->ops->decoder_create(emu.device, &on_emu, &gpu_error));
  for (unsigned s = 0; s < 2 * N_SHAPES; s++) {
    const struct shape *const shape = &gpu_shapes[s % N_SHAPES];
    const enum zps_value_codec value_codec = (enum zps_value_codec)(ZPS_VALUES_BF16 + (s + s / N_SHAPES) % 5);
    if (!zps_values_suit(value_codec, shape->dtype)) continue;
    struct zps_rng rng = {.state = s};
    const struct zps_partition part = partition_of(shape, s);
    struct ref_gradient gradient = ref_dense(&rng, shape->rows, shape->width, shape->dtype, 0.4);
    struct gpu_slices slices = encode_as(&gradient, &part, s, value_codec);
    void *got, *want;
    zps_emu_seed(s);
    assert_int_equal(decode_dense(&emu, on_emu, &part, shape->width, shape->dtype, &slices, &got), ZPS_OK);
    assert_int_equal(decode_dense(&cpu, on_cpu, &part, shape->width, shape->dtype, &slices, &want), ZPS_OK);
    assert_memory_equal(got, want, part.rows * ref_row_bytes(&gradient));
    free(got);
    free(want);
    gpu_slices_free(&slices);
    ref_free(&gradient);
  }
  cpu.device->ops->decoder_destroy(on_cpu);
  emu.device->ops->decoder_destroy(on_emu);
}

/* Bits flipped in index sets and coded values: the emulated device and the cpu's accept the same bytes, and neither
 * leaves the arrays (which end at pages that fault). */
static void hostile_bytes_are_refused(void **state) {
  (void)state;
  const struct shape shape = {2500, 1, 4, 0, ZPS_DTYPE_F32};
  struct zps_device_decoder *on_cpu, *on_emu;
  gpu_ok(cpu.device->ops->decoder_create(cpu.device, &on_cpu, &gpu_error));
  gpu_ok(emu.device->ops->decoder_create(emu.device, &on_emu, &gpu_error));
  struct zps_rng rng = {.state = 11};
  unsigned n_good = 0, n_bad = 0;
  for (unsigned i = 0; i < 150; i++) {
    const struct zps_partition part = partition_of(&shape, i);
    struct ref_gradient gradient = ref_dense(&rng, shape.rows, 1, ZPS_DTYPE_F32, i % 2 ? 0.1 : 0.8);
    const enum zps_value_codec value_codec = i % 3 ? ZPS_VALUES_RAW : (enum zps_value_codec)(ZPS_VALUES_BF16 + i % 5);
    struct gpu_slices slices = encode_as(&gradient, &part, i, value_codec);
    const uint32_t p = (uint32_t)zps_rng_below(&rng, part.n_parts);
    const uint64_t values_bytes = value_codec == ZPS_VALUES_RAW ? slices.slices[p].nnz * sizeof(float) : 0,
                   index_bytes = slices.slices[p].len_bytes - values_bytes;
    unsigned char *const index = (unsigned char *)slices.bytes[p] + values_bytes;
    if (index_bytes > 0) {
      if (i % 5 == 0) {
        for (uint64_t at = zps_rng_below(&rng, index_bytes); at < index_bytes; at++)
          index[at] = (unsigned char)zps_rng_u64(&rng);
      } else {
        index[zps_rng_below(&rng, index_bytes)] ^= (unsigned char)(1u << zps_rng_below(&rng, 8));
      }
    }
    void *got, *want;
    zps_emu_seed(i);
    const zps_err_t code = decode_dense(&emu, on_emu, &part, 1, ZPS_DTYPE_F32, &slices, &got);
    assert_int_equal(code, decode_dense(&cpu, on_cpu, &part, 1, ZPS_DTYPE_F32, &slices, &want));
    if (code == ZPS_OK) assert_memory_equal(got, want, shape.rows * sizeof(float));
    *(code == ZPS_OK ? &n_good : &n_bad) += 1;
    free(got);
    free(want);
    gpu_slices_free(&slices);
    ref_free(&gradient);
  }
  assert_true(n_good > 0 && n_bad > 75);
  cpu.device->ops->decoder_destroy(on_cpu);
  emu.device->ops->decoder_destroy(on_emu);
}

static struct gpu_slices merge(struct gpu_rig *rig, const struct zps_encode_input *input,
                               const struct gpu_slices *of_ranks, unsigned n_ranks, unsigned allowed) {
  const struct zps_partition *const part = input->part;
  struct zps_device_encoder *encoder;
  gpu_ok(rig->device->ops->encoder_create(rig->device, &encoder, &gpu_error));
  struct zps_device_view *const views = calloc((size_t)n_ranks * part->n_parts, sizeof *views);
  assert_non_null(views);
  for (unsigned rank = 0; rank < n_ranks; rank++) {
    struct zps_device_view *const of_rank = gpu_views(rig, &of_ranks[rank]);
    memcpy(views + rank * part->n_parts, of_rank, part->n_parts * sizeof *views);
    free(of_rank);
  }
  gpu_ok(rig->device->ops->encoder_merge(encoder, input, views, n_ranks, allowed, rig->stream, &gpu_error));
  gpu_wait(rig);
  const struct zps_device_slice *slices = NULL;
  gpu_ok(rig->device->ops->encoder_finish(encoder, &slices, &gpu_error));
  const struct gpu_slices taken = gpu_take_slices(rig, encoder, slices, part->n_parts);
  gpu_views_free(rig, views, n_ranks * part->n_parts);
  rig->device->ops->encoder_destroy(encoder);
  return taken;
}

static void ranks_are_merged(void **state) {
  (void)state;
  enum { RANKS_MAX = 5 };
  for (unsigned s = 0; s < N_SHAPES; s++) {
    if (zps_dtype_is_half(gpu_shapes[s].dtype)) continue;
    const unsigned n_ranks = 1 + s % RANKS_MAX;
    struct zps_rng rng = {.state = s};
    const struct zps_partition part = partition_of(&gpu_shapes[s], s);
    struct gpu_slices of_ranks[RANKS_MAX];
    struct zps_encode_input input = {.part = &part,
                                     .width = gpu_shapes[s].width,
                                     .dtype = gpu_shapes[s].dtype,
                                     .value_codec = (enum zps_value_codec)(ZPS_VALUES_RAW + s % 4),
                                     .origin = {.seed = s, .step = 3, .tensor = 1, .rank = 8}};
    if (!zps_values_suit(input.value_codec, input.dtype)) input.value_codec = ZPS_VALUES_RAW;
    for (unsigned rank = 0; rank < n_ranks; rank++) {
      struct ref_gradient gradient =
          ref_dense(&rng, gpu_shapes[s].rows, gpu_shapes[s].width, gpu_shapes[s].dtype, s % 3 ? 0.1 : 0.6);
      of_ranks[rank] = encode_as(&gradient, &part, s + rank, input.value_codec);
      ref_free(&gradient);
    }
    zps_emu_seed(s);
    const unsigned allowed = s % 4 == 3 ? COO : ALL;
    struct gpu_slices want = merge(&cpu, &input, of_ranks, n_ranks, allowed);
    struct gpu_slices got = merge(&emu, &input, of_ranks, n_ranks, allowed);
    assert_same_slices(&got, &want, gpu_shapes[s].width, gpu_shapes[s].dtype);
    gpu_slices_free(&want);
    gpu_slices_free(&got);
    for (unsigned rank = 0; rank < n_ranks; rank++) gpu_slices_free(&of_ranks[rank]);
  }
}

/* Sums of halves are floats, which are not merged on a device; nor do halves travel as raw values. */
static void halves_are_refused(void **state) {
  (void)state;
  const struct shape shape = {100, 1, 1, 0, ZPS_DTYPE_F16};
  const struct zps_partition part = partition_of(&shape, 1);
  const struct zps_device_view view = {.codec = ZPS_CODEC_COO, .value_codec = ZPS_VALUES_RAW};
  struct zps_encode_input input = {.part = &part, .width = 1, .dtype = shape.dtype, .value_codec = ZPS_VALUES_F16};
  struct zps_device_encoder *encoder;
  struct zps_device_decoder *decoder;
  struct zps_error error;
  const struct zps_device_ops *const ops = emu.device->ops;
  gpu_ok(ops->encoder_create(emu.device, &encoder, &gpu_error));
  gpu_ok(ops->decoder_create(emu.device, &decoder, &gpu_error));
  assert_int_equal(ops->encoder_merge(encoder, &input, &view, 1, ALL, emu.stream, &error), ZPS_ERR_UNSUPPORTED);
  assert_non_null(strstr(error.text, "cannot be merged on a device"));
  static const enum zps_value_codec others[] = {ZPS_VALUES_RAW, ZPS_VALUES_BF16};
  for (unsigned i = 0; i < COUNT(others); i++) {
    input.value_codec = others[i];
    assert_int_equal(ops->encoder_scan(encoder, &input, ALL, emu.stream, &error), ZPS_ERR_INVALID);
    assert_non_null(strstr(error.text, "values of dtype 5 do not travel as codec"));
  }
  assert_int_equal(ops->decoder_dense(decoder, &part, 1, shape.dtype, &view, 1, NULL, emu.stream, &error),
                   ZPS_ERR_INVALID);
  ops->encoder_destroy(encoder);
  ops->decoder_destroy(decoder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(results_are_decoded, gpu_setup, gpu_teardown),
      cmocka_unit_test_setup_teardown(long_slices_are_decoded, gpu_setup, gpu_teardown),
      cmocka_unit_test_setup_teardown(narrow_values_are_widened, gpu_setup, gpu_teardown),
      cmocka_unit_test_setup_teardown(hostile_bytes_are_refused, gpu_setup, gpu_teardown),
      cmocka_unit_test_setup_teardown(ranks_are_merged, gpu_setup, gpu_teardown),
      cmocka_unit_test_setup_teardown(halves_are_refused, gpu_setup, gpu_teardown),
  };
  return cmocka_run_group_tests(tests, gpu_group_setup, gpu_group_teardown);
}
#endif
