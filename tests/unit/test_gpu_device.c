/* The device kernels, run by the emulation, against the cpu implementation of the same vtable: bytes are the same. */
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

#include <cmocka.h>

#include "gpu/device.h"
#include "gpu/emu/control.h"
#include "tests/unit/codec_reference.h"
#include "tests/unit/gpu_rig.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

enum {
  COO = 1u << ZPS_CODEC_COO,
  BITMAP = 1u << ZPS_CODEC_BITMAP,
  RICE = 1u << ZPS_CODEC_RICE,
  HOLES = 1u << ZPS_CODEC_HOLES,
  ALL = COO | BITMAP | RICE | HOLES,
};

static struct gpu_rig cpu, emu;

static int group_setup(void **state) {
  (void)state;
  struct zps_error error;
  if (zps_device_open("cpu", 0, NULL, &cpu.device, &error) != ZPS_OK) return -1;
  if (zps_cuda_device_open(ZPS_DEVICE_ABI, 0, &emu.device, &error) != ZPS_OK) return -1;
  gpu_rig_open(&cpu);
  gpu_rig_open(&emu);
  return 0;
}

static int group_teardown(void **state) {
  (void)state;
  gpu_rig_close(&cpu);
  gpu_rig_close(&emu);
  return zps_emu_allocations() == 0 ? 0 : -1;
}

static int setup(void **state) {
  (void)state;
  zps_emu_seed(1);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  const char *const error = zps_emu_take_error();
  if (error) fprintf(stderr, "%s\n", error);
  return error ? -1 : 0;
}

/* ------------------------------------------------------------ encoding */

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

static void assert_same_slices(const struct gpu_slices *a, const struct gpu_slices *b, uint32_t width,
                               enum zps_dtype dtype) {
  assert_int_equal(a->n_parts, b->n_parts);
  for (uint32_t p = 0; p < a->n_parts; p++) {
    assert_int_equal(a->slices[p].nnz, b->slices[p].nnz);
    assert_int_equal(a->slices[p].codec, b->slices[p].codec);
    assert_int_equal(a->slices[p].len_bytes, b->slices[p].len_bytes);
    const uint64_t n = (uint64_t)a->slices[p].nnz * width, values_bytes = n * zps_dtype_size(dtype);
    assert_true(same_elements(dtype, a->bytes[p], b->bytes[p], n));
    assert_memory_equal((char *)a->bytes[p] + values_bytes, (char *)b->bytes[p] + values_bytes,
                        a->slices[p].len_bytes - values_bytes);
  }
}

struct shape {
  uint64_t rows;
  uint32_t width, n_parts, block_bits;
  enum zps_dtype dtype;
};

static const struct shape shapes[] = {
    {1, 1, 1, 0, ZPS_DTYPE_F32},     {7, 1, 3, 0, ZPS_DTYPE_F32},    {5000, 1, 1, 0, ZPS_DTYPE_F32},
    {4096, 1, 16, 0, ZPS_DTYPE_F32}, {9001, 1, 7, 0, ZPS_DTYPE_F32}, {9000, 1, 300, 0, ZPS_DTYPE_F32},
    {6000, 1, 4, 3, ZPS_DTYPE_F32},  {3000, 1, 5, 0, ZPS_DTYPE_F64}, {3000, 1, 5, 0, ZPS_DTYPE_U8},
    {1000, 3, 4, 1, ZPS_DTYPE_U8},   {1500, 5, 6, 0, ZPS_DTYPE_F32}, {400, 40, 3, 0, ZPS_DTYPE_F64},
    {300, 64, 9, 2, ZPS_DTYPE_F32},  {10, 2, 40, 0, ZPS_DTYPE_F32},
};

static struct zps_partition partition_of(const struct shape *shape, uint64_t seed) {
  struct zps_partition part;
  assert_int_equal(zps_partition_init(&part, shape->rows, shape->n_parts, shape->block_bits, seed, NULL), ZPS_OK);
  return part;
}

static void compare_encoding(struct zps_device_encoder *on_cpu, struct zps_device_encoder *on_emu,
                             const struct ref_gradient *gradient, const struct zps_partition *part, unsigned allowed) {
  const struct zps_encode_input input = ref_input(gradient, part);
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
  for (unsigned s = 0; s < COUNT(shapes); s++) {
    for (unsigned d = 0; d < n_densities; d++) {
      struct zps_rng rng = {.state = s * 100 + d};
      const struct zps_partition part = partition_of(&shapes[s], s + d);
      struct ref_gradient gradient =
          (is_coo ? ref_coo : ref_dense)(&rng, shapes[s].rows, shapes[s].width, shapes[s].dtype, densities[d]);
      zps_emu_seed(s * 10 + d);
      compare_encoding(on_cpu, on_emu, &gradient, &part, ALL);
      if (d == 1) compare_encoding(on_cpu, on_emu, &gradient, &part, sets[1 + s % 2]);
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
    const struct zps_encode_input input = {.part = &part, .width = 1, .dtype = ZPS_DTYPE_F32, .values = values};
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

/* ------------------------------------------------------------ decoding */

/* Codes a gradient on the host, every partition as the codec that `pick` says. */
static struct gpu_slices encode_as(const struct ref_gradient *gradient, const struct zps_partition *part,
                                   unsigned pick) {
  struct zps_encoder *encoder;
  struct zps_error error;
  const struct zps_encode_input input = ref_input(gradient, part);
  assert_int_equal(zps_encoder_create(ZPS_PARTITIONER_ORDERED, &encoder), ZPS_OK);
  assert_int_equal(zps_encoder_scan(encoder, &input, NULL, &error), ZPS_OK);
  struct gpu_slices slices = {.n_parts = part->n_parts,
                              .slices = calloc(part->n_parts, sizeof *slices.slices),
                              .bytes = calloc(part->n_parts, sizeof(void *))};
  assert_true(slices.slices && slices.bytes);
  for (uint32_t p = 0; p < part->n_parts; p++) {
    const unsigned codec = (p + pick) % ZPS_CODEC_COUNT;
    struct zps_device_slice *const slice = &slices.slices[p];
    slice->codec = zps_encoder_choose(encoder, p, 1u << codec, &slice->len_bytes);
    slice->nnz = zps_encoder_nnz(encoder, p);
    slices.bytes[p] = calloc(1, slice->len_bytes + 8);
    assert_non_null(slices.bytes[p]);
    zps_encoder_write(encoder, p, (enum zps_codec)codec, slices.bytes[p]);
  }
  zps_encoder_destroy(encoder);
  return slices;
}

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

static void results_are_decoded(void **state) {
  (void)state;
  static const double densities[] = {0.02, 0.5, 0.97, 1, 0};
  struct zps_device_decoder *decoder;
  gpu_ok(emu.device->ops->decoder_create(emu.device, &decoder, &gpu_error));
  for (unsigned s = 0; s < COUNT(shapes); s++) {
    for (unsigned d = 0; d < COUNT(densities); d++) {
      struct zps_rng rng = {.state = s * 100 + d};
      const struct zps_partition part = partition_of(&shapes[s], s + d);
      struct ref_gradient gradient = ref_dense(&rng, shapes[s].rows, shapes[s].width, shapes[s].dtype, densities[d]);
      const size_t row_bytes = ref_row_bytes(&gradient);
      for (uint64_t row = 0; row < part.rows; row++)
        if (!gradient.present[row]) memset((char *)gradient.dense + row * row_bytes, 0, row_bytes); /* no -0.0 */
      struct gpu_slices slices = encode_as(&gradient, &part, s + d);
      void *dense;
      zps_emu_seed(s * 10 + d);
      assert_int_equal(decode_dense(&emu, decoder, &part, gradient.width, gradient.dtype, &slices, &dense), ZPS_OK);
      assert_memory_equal(dense, gradient.dense, part.rows * row_bytes);
      free(dense);
      if (d % 2 == s % 2) compare_rows(decoder, &part, &gradient, &slices);
      gpu_slices_free(&slices);
      ref_free(&gradient);
    }
  }
  emu.device->ops->decoder_destroy(decoder);
}

/* Bits flipped in index sets: the emulated device and the cpu's agree on what is a set, and nobody leaves the arrays
 * (which end at pages that fault). */
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
    struct gpu_slices slices = encode_as(&gradient, &part, i);
    const uint32_t p = (uint32_t)zps_rng_below(&rng, part.n_parts);
    const uint64_t values_bytes = slices.slices[p].nnz * sizeof(float),
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
  assert_true(n_good > 0 && n_bad > 100);
  cpu.device->ops->decoder_destroy(on_cpu);
  emu.device->ops->decoder_destroy(on_emu);
}

/* ------------------------------------------------------------ merging */

static struct gpu_slices merge(struct gpu_rig *rig, const struct zps_partition *part, const struct shape *shape,
                               const struct gpu_slices *of_ranks, unsigned n_ranks, unsigned allowed) {
  struct zps_device_encoder *encoder;
  gpu_ok(rig->device->ops->encoder_create(rig->device, &encoder, &gpu_error));
  struct zps_device_view *const views = calloc((size_t)n_ranks * part->n_parts, sizeof *views);
  assert_non_null(views);
  for (unsigned rank = 0; rank < n_ranks; rank++) {
    struct zps_device_view *const of_rank = gpu_views(rig, &of_ranks[rank]);
    memcpy(views + rank * part->n_parts, of_rank, part->n_parts * sizeof *views);
    free(of_rank);
  }
  gpu_ok(rig->device->ops->encoder_merge(encoder, part, shape->width, shape->dtype, views, n_ranks, allowed,
                                         rig->stream, &gpu_error));
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
  for (unsigned s = 0; s < COUNT(shapes); s++) {
    const unsigned n_ranks = 1 + s % RANKS_MAX;
    struct zps_rng rng = {.state = s};
    const struct zps_partition part = partition_of(&shapes[s], s);
    struct gpu_slices of_ranks[RANKS_MAX];
    for (unsigned rank = 0; rank < n_ranks; rank++) {
      struct ref_gradient gradient =
          ref_dense(&rng, shapes[s].rows, shapes[s].width, shapes[s].dtype, s % 3 ? 0.1 : 0.6);
      of_ranks[rank] = encode_as(&gradient, &part, s + rank);
      ref_free(&gradient);
    }
    zps_emu_seed(s);
    const unsigned allowed = s % 4 == 3 ? COO : ALL;
    struct gpu_slices want = merge(&cpu, &part, &shapes[s], of_ranks, n_ranks, allowed);
    struct gpu_slices got = merge(&emu, &part, &shapes[s], of_ranks, n_ranks, allowed);
    assert_same_slices(&got, &want, shapes[s].width, shapes[s].dtype);
    gpu_slices_free(&want);
    gpu_slices_free(&got);
    for (unsigned rank = 0; rank < n_ranks; rank++) gpu_slices_free(&of_ranks[rank]);
  }
}

/* ------------------------------------------------------------ Algorithm 1 */

static int compare_u64(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

static struct zps_device_hashed hash(struct gpu_rig *rig, const struct zps_device_hashing *hashing,
                                     const struct zps_partition *part, const uint64_t *rows, uint64_t n) {
  void *const rows_there = gpu_upload(rig, rows, n * sizeof *rows), *const out = gpu_new(rig, n * sizeof *rows);
  void *const starts = gpu_new(rig, (part->n_parts + 1) * sizeof *rows);
  struct zps_device_hashed hashed = {0};
  gpu_ok(
      rig->device->ops->hash(rig->device, hashing, part, rows_there, n, out, starts, rig->stream, &hashed, &gpu_error));
  uint64_t *const got = gpu_download(rig, out, n * sizeof *rows);
  uint64_t *const got_starts = gpu_download(rig, starts, (part->n_parts + 1) * sizeof *rows);
  assert_int_equal(got_starts[0], 0);
  assert_int_equal(got_starts[part->n_parts], n);
  for (uint32_t p = 0; p < part->n_parts; p++) {
    for (uint64_t i = got_starts[p]; i < got_starts[p + 1]; i++) {
      uint32_t rank;
      assert_int_equal(zps_partition_of(part, got[i], &rank), p);
    }
  }
  qsort(got, n, sizeof *got, compare_u64);
  assert_memory_equal(got, rows, n * sizeof *rows);
  free(got);
  free(got_starts);
  gpu_free(rig, rows_there);
  gpu_free(rig, out);
  gpu_free(rig, starts);
  return hashed;
}

static void algorithm_1_loses_nothing(void **state) {
  (void)state;
  static const struct zps_device_hashing memories[] = {{.seed = 1},
                                                       {.k = 1, .seed = 2},
                                                       {.k = 8, .seed = 3},
                                                       {.r1 = 1, .r2 = 1, .seed = 4},
                                                       {.k = 2, .r1 = 5, .r2 = 100}};
  uint64_t lost_races = 0;
  for (unsigned m = 0; m < COUNT(memories); m++) {
    for (unsigned i = 0; i < 4; i++) {
      const struct shape shape = {40000, 1, i == 3 ? 70 : 1 + 5 * i, 0, ZPS_DTYPE_F32};
      const struct zps_partition part = partition_of(&shape, m);
      const uint64_t n = i == 2 ? 3 : 1500;
      uint64_t rows[1500];
      struct zps_rng rng = {.state = m * 10 + i};
      for (uint64_t j = 0; j < n; j++) rows[j] = j * (shape.rows / n) + zps_rng_below(&rng, shape.rows / n);
      zps_emu_seed(m * 10 + i);
      const struct zps_device_hashed hashed = hash(&emu, &memories[m], &part, rows, n);
      assert_int_equal(hashed.parallel + hashed.serial, n);
      lost_races += hashed.lost_races;
      hash(&cpu, &memories[m], &part, rows, n);
    }
  }
  assert_true(lost_races > 100); /* and each of them was caught, since nothing is missing */
}

/* All rows in one partition, and a memory of few slots: every writer races. */
static void algorithm_1_survives_collisions(void **state) {
  (void)state;
  enum { N = 1024 };
  const struct shape shape = {N * 8, 1, 8, 0, ZPS_DTYPE_F32};
  const struct zps_partition part = partition_of(&shape, 9);
  uint64_t rows[N];
  for (uint32_t rank = 0; rank < N; rank++) rows[rank] = zps_partition_row(&part, 5, rank);
  for (uint64_t seed = 0; seed < 8; seed++) {
    const struct zps_device_hashing hashing = {.k = 3, .r1 = 16, .r2 = 2, .seed = seed};
    zps_emu_seed(seed);
    const struct zps_device_hashed hashed = hash(&emu, &hashing, &part, rows, N);
    assert_true(hashed.parallel <= 16);
    assert_true(hashed.lost_races > 0);
  }
}

/* ------------------------------------------------------------ the vtable */

static void work_waits_for_its_turn(void **state) {
  (void)state;
  const uint32_t words[4] = {1, 2, 3, 4};
  uint32_t back[4] = {0};
  void *const there = gpu_new(&emu, sizeof words);
  struct zps_error error;
  gpu_ok(emu.device->ops->copy(emu.device, there, words, sizeof words, emu.stream, &gpu_error));
  gpu_ok(emu.device->ops->copy(emu.device, back, there, sizeof back, emu.stream, &gpu_error));
  gpu_ok(emu.device->ops->event_record(emu.device, emu.event, emu.stream, &gpu_error));
  assert_int_equal(back[3], 0);
  assert_int_equal(emu.device->ops->event_query(emu.device, emu.event, &error), ZPS_ERR_AGAIN);
  gpu_ok(emu.device->ops->event_sync(emu.device, emu.event, &gpu_error));
  assert_int_equal(emu.device->ops->event_query(emu.device, emu.event, &error), ZPS_OK);
  assert_int_equal(back[3], 4);

  /* A second stream that waits for the first. */
  zps_stream_t other;
  struct zps_event *done;
  gpu_ok(emu.device->ops->stream_create(emu.device, &other, &gpu_error));
  gpu_ok(emu.device->ops->event_create(emu.device, &done, &gpu_error));
  gpu_ok(emu.device->ops->clear(emu.device, there, sizeof words, emu.stream, &gpu_error));
  gpu_ok(emu.device->ops->event_record(emu.device, emu.event, emu.stream, &gpu_error));
  gpu_ok(emu.device->ops->stream_wait(emu.device, other, emu.event, &gpu_error));
  gpu_ok(emu.device->ops->copy(emu.device, back, there, sizeof back, other, &gpu_error));
  gpu_ok(emu.device->ops->event_record(emu.device, done, other, &gpu_error));
  gpu_ok(emu.device->ops->event_sync(emu.device, done, &gpu_error));
  assert_int_equal(back[3], 0);
  emu.device->ops->event_destroy(emu.device, done);
  emu.device->ops->stream_destroy(emu.device, other);
  gpu_free(&emu, there);
}

/* Each allocation in turn fails: an error that says so, and nothing is left behind. */
static void missing_memory_is_reported(void **state) {
  (void)state;
  const struct shape shape = {500, 1, 3, 0, ZPS_DTYPE_F32};
  const struct zps_partition part = partition_of(&shape, 3);
  struct zps_rng rng = {.state = 5};
  struct ref_gradient gradient = ref_dense(&rng, shape.rows, 1, ZPS_DTYPE_F32, 0.3);
  struct gpu_slices slices = encode_as(&gradient, &part, ZPS_CODEC_RICE);
  struct zps_device_view *const views = gpu_views(&emu, &slices);
  const uint64_t before = zps_emu_allocations();
  void *const dense = gpu_new(&emu, shape.rows * sizeof(float));
  unsigned n_failed = 0;
  for (unsigned n = 0, is_done = 0; !is_done; n++) {
    struct zps_device_encoder *encoder;
    struct zps_device_decoder *decoder;
    struct zps_error error;
    gpu_ok(emu.device->ops->encoder_create(emu.device, &encoder, &gpu_error));
    gpu_ok(emu.device->ops->decoder_create(emu.device, &decoder, &gpu_error));
    zps_emu_fail_allocation(n);
    zps_err_t code =
        emu.device->ops->encoder_merge(encoder, &part, 1, ZPS_DTYPE_F32, views, 1, ALL, emu.stream, &error);
    if (code == ZPS_OK)
      code = emu.device->ops->decoder_dense(decoder, &part, 1, ZPS_DTYPE_F32, views, part.n_parts, dense, emu.stream,
                                            &error);
    zps_emu_fail_allocation(UINT64_MAX);
    if (code == ZPS_OK) {
      is_done = 1;
    } else {
      assert_int_equal(code, ZPS_ERR_NOMEM);
      n_failed++;
    }
    gpu_wait(&emu);
    emu.device->ops->encoder_destroy(encoder);
    emu.device->ops->decoder_destroy(decoder);
    gpu_wait(&emu);
    assert_int_equal(zps_emu_allocations(), before + 1);
  }
  assert_true(n_failed >= 8);
  gpu_free(&emu, dense);
  gpu_views_free(&emu, views, part.n_parts);
  gpu_slices_free(&slices);
  ref_free(&gradient);
}

static void what_is_not_there_is_refused(void **state) {
  (void)state;
  struct zps_device *device;
  struct zps_error error;
  assert_int_equal(zps_device_open("tpu", 0, NULL, &device, &error), ZPS_ERR_INVALID);
  assert_string_equal(error.text, "'tpu' is no kind of device: must be cpu or cuda");
  assert_int_equal(zps_device_open("cuda", 0, NULL, &device, &error), ZPS_ERR_UNSUPPORTED);
  assert_true(strstr(error.text, "--with-cuda") || strstr(error.text, "no usable GPU"));
  assert_int_equal(zps_cuda_device_open(ZPS_DEVICE_ABI + 1, 0, &device, &error), ZPS_ERR_VERSION);
  assert_int_equal(zps_cuda_device_open(ZPS_DEVICE_ABI, 1, &device, &error), ZPS_ERR_UNSUPPORTED);
  assert_string_equal(error.text, "there is no GPU 1: this host has 1");
  struct zps_device_export export;
  assert_int_equal(emu.device->ops->export_memory(emu.device, NULL, 1, &export, &error), ZPS_ERR_UNSUPPORTED);
  gpu_ok(cpu.device->ops->export_memory(cpu.device, NULL, 1, &export, &gpu_error));
  assert_int_equal(export.dmabuf_fd, -1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(dense_gradients, setup, teardown),
      cmocka_unit_test_setup_teardown(coo_gradients, setup, teardown),
      cmocka_unit_test_setup_teardown(rice_parameters_change, setup, teardown),
      cmocka_unit_test_setup_teardown(scratch_grows, setup, teardown),
      cmocka_unit_test_setup_teardown(bad_rows_are_refused, setup, teardown),
      cmocka_unit_test_setup_teardown(results_are_decoded, setup, teardown),
      cmocka_unit_test_setup_teardown(hostile_bytes_are_refused, setup, teardown),
      cmocka_unit_test_setup_teardown(ranks_are_merged, setup, teardown),
      cmocka_unit_test_setup_teardown(algorithm_1_loses_nothing, setup, teardown),
      cmocka_unit_test_setup_teardown(algorithm_1_survives_collisions, setup, teardown),
      cmocka_unit_test_setup_teardown(work_waits_for_its_turn, setup, teardown),
      cmocka_unit_test_setup_teardown(missing_memory_is_reported, setup, teardown),
      cmocka_unit_test_setup_teardown(what_is_not_there_is_refused, setup, teardown),
  };
  return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
#endif
