#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/device_cpu.h"
#include "tests/unit/gpu/gpu_compare.h"

const struct shape gpu_shapes[] = {
    {1, 1, 1, 0, ZPS_DTYPE_F32},     {7, 1, 3, 0, ZPS_DTYPE_F32},    {5000, 1, 1, 0, ZPS_DTYPE_F32},
    {4096, 1, 16, 0, ZPS_DTYPE_F32}, {9001, 1, 7, 0, ZPS_DTYPE_F32}, {9000, 1, 300, 0, ZPS_DTYPE_F32},
    {6000, 1, 4, 3, ZPS_DTYPE_F32},  {3000, 1, 5, 0, ZPS_DTYPE_F64}, {3000, 1, 5, 0, ZPS_DTYPE_U8},
    {1000, 3, 4, 1, ZPS_DTYPE_U8},   {1500, 5, 6, 0, ZPS_DTYPE_F32}, {400, 40, 3, 0, ZPS_DTYPE_F64},
    {300, 64, 9, 2, ZPS_DTYPE_F32},  {10, 2, 40, 0, ZPS_DTYPE_F32},  {9001, 1, 7, 0, ZPS_DTYPE_BF16},
    {5000, 1, 1, 0, ZPS_DTYPE_F16},  {1501, 3, 5, 0, ZPS_DTYPE_F16}, {700, 8, 4, 1, ZPS_DTYPE_BF16},
};

const struct shape gpu_stripes = {(2 << 20) + (1 << 16) + 7, 1, 16, 0, ZPS_DTYPE_F32};

struct gpu_rig cpu, emu;
bool is_emulated;

int gpu_group_setup(void **state) {
  (void)state;
  const char *const library = getenv("ZENPS_DEVICE_LIBRARY");
  struct zps_error error;
  is_emulated = !library || !*library;
  if (zps_device_cpu_open(NULL, &cpu.device, &error) != ZPS_OK) return -1;
  const zps_err_t code = is_emulated ? zps_cuda_device_open(ZPS_DEVICE_ABI, 0, &emu.device, &error)
                                     : zps_device_load(library, 0, &emu.device, &error);
  if (code != ZPS_OK) {
    fprintf(stderr, "%s\n", error.text);
    return -1;
  }
  gpu_rig_open(&cpu);
  gpu_rig_open(&emu);
  return 0;
}

int gpu_group_teardown(void **state) {
  (void)state;
  gpu_rig_close(&cpu);
  gpu_rig_close(&emu);
  return zps_emu_allocations() == 0 ? 0 : -1;
}

int gpu_setup(void **state) {
  (void)state;
  zps_emu_seed(1);
  return 0;
}

int gpu_teardown(void **state) {
  (void)state;
  const char *const error = zps_emu_take_error();
  if (error) fprintf(stderr, "%s\n", error);
  return error ? -1 : 0;
}

struct zps_partition partition_of(const struct shape *shape, uint64_t seed) {
  struct zps_partition part;
  assert_int_equal(zps_partition_init(&part, shape->rows, shape->n_parts, shape->block_bits, seed, NULL), ZPS_OK);
  return part;
}

/* Sums may differ in which of several NaNs they are. */
static bool same_elements(enum zps_dtype dtype, const void *a, const void *b, uint64_t n) {
  const size_t size = zps_dtype_size(dtype);
  for (uint64_t i = 0; i < n; i++) {
    const char *const x = (const char *)a + i * size, *const y = (const char *)b + i * size;
    if (memcmp(x, y, size) == 0) continue;
    if (dtype == ZPS_DTYPE_F32 && isnan(*(const float *)(const void *)x) && isnan(*(const float *)(const void *)y))
      continue;
    if (dtype == ZPS_DTYPE_F64 && isnan(*(const double *)(const void *)x) && isnan(*(const double *)(const void *)y))
      continue;
    return false;
  }
  return true;
}

/* Compares values that travel in 16 bits. */
static bool same_halves(enum zps_value_codec value_codec, const uint16_t *a, const uint16_t *b, uint64_t n) {
  const unsigned infinity = value_codec == ZPS_VALUES_BF16 ? 0x7f80 : 0x7c00;
  for (uint64_t i = 0; i < n; i++) {
    const bool both_nan = (a[i] & 0x7fffu) > infinity && (b[i] & 0x7fffu) > infinity;
    if (a[i] != b[i] && !both_nan) return false;
  }
  return true;
}

void assert_same_slices(const struct gpu_slices *a, const struct gpu_slices *b, uint32_t width, enum zps_dtype dtype) {
  assert_int_equal(a->n_parts, b->n_parts);
  for (uint32_t p = 0; p < a->n_parts; p++) {
    assert_int_equal(a->slices[p].nnz, b->slices[p].nnz);
    assert_int_equal(a->slices[p].codec, b->slices[p].codec);
    assert_int_equal(a->slices[p].value_codec, b->slices[p].value_codec);
    assert_int_equal(a->slices[p].len_bytes, b->slices[p].len_bytes);
    const uint64_t n = (uint64_t)a->slices[p].nnz * width;
    const enum zps_value_codec value_codec = (enum zps_value_codec)a->slices[p].value_codec;
    const enum zps_dtype sum_dtype = zps_dtype_sum(dtype);
    const bool halves = value_codec == ZPS_VALUES_BF16 || value_codec == ZPS_VALUES_F16;
    const uint64_t values_bytes = value_codec == ZPS_VALUES_RAW ? n * zps_dtype_size(sum_dtype) : halves ? 2 * n : 0;
    if (halves) {
      assert_true(same_halves(value_codec, a->bytes[p], b->bytes[p], n));
    } else if (values_bytes) {
      assert_true(same_elements(sum_dtype, a->bytes[p], b->bytes[p], n));
    }
    assert_memory_equal((char *)a->bytes[p] + values_bytes, (char *)b->bytes[p] + values_bytes,
                        a->slices[p].len_bytes - values_bytes);
  }
}

/* Codes a gradient on the host, every partition as the codec that `pick` says. */
struct gpu_slices encode_as(const struct ref_gradient *gradient, const struct zps_partition *part, unsigned pick,
                            enum zps_value_codec value_codec) {
  struct zps_encoder *encoder;
  struct zps_error error;
  struct zps_encode_input input = ref_input(gradient, part);
  input.value_codec = zps_values_of(value_codec, gradient->dtype);
  input.origin = (struct zps_values_origin){.seed = pick, .step = 7, .tensor = 3, .rank = 2};
  assert_int_equal(zps_encoder_create(ZPS_PARTITIONER_STRATIFIED, &encoder), ZPS_OK);
  assert_int_equal(zps_encoder_scan(encoder, &input, NULL, &error), ZPS_OK);
  struct gpu_slices slices = {.n_parts = part->n_parts,
                              .slices = calloc(part->n_parts, sizeof *slices.slices),
                              .bytes = calloc(part->n_parts, sizeof(void *))};
  assert_true(slices.slices && slices.bytes);
  for (uint32_t p = 0; p < part->n_parts; p++) {
    const unsigned codec = (p + pick) % ZPS_CODEC_COUNT;
    struct zps_device_slice *const slice = &slices.slices[p];
    slice->codec = (uint16_t)zps_encoder_choose(encoder, p, 1u << codec, &slice->len_bytes);
    slice->value_codec = (uint16_t)zps_encoder_value_codec(encoder, p);
    slice->nnz = zps_encoder_nnz(encoder, p);
    slices.bytes[p] = calloc(1, slice->len_bytes + 8);
    assert_non_null(slices.bytes[p]);
    zps_encoder_write(encoder, p, (enum zps_codec)codec, slices.bytes[p]);
  }
  zps_encoder_destroy(encoder);
  return slices;
}
