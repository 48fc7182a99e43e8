/* The vtable of devices: order, memory that runs out, refusals; Algorithm 1. */
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

#include "tests/unit/gpu/gpu_compare.h"

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
      uint32_t index;
      assert_int_equal(zps_partition_of(part, got[i], &index), p);
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
  assert_true(!is_emulated || lost_races > 100); /* nothing is missing, so each of them was caught */
}

/* All rows in one partition, and a memory of few slots: every writer races. */
static void algorithm_1_survives_collisions(void **state) {
  (void)state;
  enum { N = 1024 };
  const struct shape shape = {N * 8, 1, 8, 0, ZPS_DTYPE_F32};
  const struct zps_partition part = partition_of(&shape, 9);
  uint64_t rows[N];
  for (uint32_t index = 0; index < N; index++) rows[index] = zps_partition_row(&part, 5, index);
  for (uint64_t seed = 0; seed < 8; seed++) {
    const struct zps_device_hashing hashing = {.k = 3, .r1 = 16, .r2 = 2, .seed = seed};
    zps_emu_seed(seed);
    const struct zps_device_hashed hashed = hash(&emu, &hashing, &part, rows, N);
    assert_true(hashed.parallel <= 16);
    assert_true(!is_emulated || hashed.lost_races > 0);
  }
}

static void work_waits_for_its_turn(void **state) {
  (void)state;
  const uint32_t words[4] = {1, 2, 3, 4};
  uint32_t back[4] = {0};
  void *const there = gpu_new(&emu, sizeof words);
  struct zps_error error;
  gpu_ok(emu.device->ops->copy(emu.device, there, words, sizeof words, emu.stream, &gpu_error));
  gpu_ok(emu.device->ops->copy(emu.device, back, there, sizeof back, emu.stream, &gpu_error));
  gpu_ok(emu.device->ops->event_record(emu.device, emu.event, emu.stream, &gpu_error));
  if (is_emulated) { /* it does nothing before it is asked */
    assert_int_equal(back[3], 0);
    assert_int_equal(emu.device->ops->event_query(emu.device, emu.event, &error), ZPS_ERR_AGAIN);
  }
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

/* Two streams: one waits for a word, the other for an event of the first. Values are counted round. */
static void streams_wait_for_words(void **state) {
  (void)state;
  static const struct {
    uint32_t value, set; /* it passes at `value`, or past it; each is less than 2^31 past the one before */
  } waits[] = {{1, 1}, {0x80000000u, 0x80000000u}, {0xffffffffu, 1}, {3, 3}};
  const struct zps_device_ops *const ops = emu.device->ops;
  /* Pinned: a copy between a device and other memory may wait for the stream, whose word is yet to come. */
  struct {
    uint32_t word, sent, back;
  } * pinned;
  void *memory, *const there = gpu_new(&emu, sizeof pinned->back);
  zps_stream_t other;
  struct zps_event *event;
  struct zps_error error;
  gpu_ok(ops->allocate(emu.device, ZPS_MEMORY_PINNED, sizeof *pinned, &memory, &gpu_error));
  gpu_ok(ops->stream_create(emu.device, &other, &gpu_error));
  gpu_ok(ops->event_create(emu.device, &event, &gpu_error));
  pinned = memory;
  pinned->word = pinned->back = 0;
  for (unsigned i = 0; i < COUNT(waits); i++) {
    pinned->sent = 100 + i;
    gpu_ok(ops->stream_wait_word(emu.device, emu.stream, &pinned->word, waits[i].value, &gpu_error));
    gpu_ok(ops->copy(emu.device, there, &pinned->sent, sizeof pinned->sent, emu.stream, &gpu_error));
    gpu_ok(ops->event_record(emu.device, emu.event, emu.stream, &gpu_error));
    gpu_ok(ops->stream_wait(emu.device, other, emu.event, &gpu_error));
    gpu_ok(ops->copy(emu.device, &pinned->back, there, sizeof pinned->back, other, &gpu_error));
    gpu_ok(ops->event_record(emu.device, event, other, &gpu_error));
    for (unsigned n = 0; n < 3; n++) assert_int_equal(ops->event_query(emu.device, event, &error), ZPS_ERR_AGAIN);
    assert_int_not_equal(pinned->back, 100 + i);
    __atomic_store_n(&pinned->word, waits[i].set, __ATOMIC_RELEASE);
    gpu_ok(ops->event_sync(emu.device, event, &gpu_error));
    assert_int_equal(pinned->back, 100 + i);
  }
  ops->event_destroy(emu.device, event);
  ops->stream_destroy(emu.device, other);
  ops->release(emu.device, ZPS_MEMORY_PINNED, memory);
  gpu_free(&emu, there);
}

/* Each allocation in turn fails: an error that says so, and nothing is left behind. */
static void missing_memory_is_reported(void **state) {
  (void)state;
  if (!is_emulated) skip();
  const struct shape shape = {500, 1, 3, 0, ZPS_DTYPE_F32};
  const struct zps_partition part = partition_of(&shape, 3);
  struct zps_rng rng = {.state = 5};
  struct ref_gradient gradient = ref_dense(&rng, shape.rows, 1, ZPS_DTYPE_F32, 0.3);
  const struct zps_encode_input input = ref_input(&gradient, &part);
  struct gpu_slices slices = encode_as(&gradient, &part, ZPS_CODEC_RICE, ZPS_VALUES_RAW);
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
    zps_err_t code = emu.device->ops->encoder_merge(encoder, &input, views, 1, ALL, emu.stream, &error);
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
  if (!is_emulated) skip();
  struct zps_device *device;
  struct zps_error error;
  assert_int_equal(zps_device_load(NULL, 0, &device, &error), ZPS_ERR_UNSUPPORTED);
  assert_true(strstr(error.text, "--with-cuda") || strstr(error.text, "no usable GPU"));
  assert_int_equal(zps_cuda_device_open(ZPS_DEVICE_ABI + 1, 0, &device, &error), ZPS_ERR_VERSION);
  assert_int_equal(zps_cuda_device_open(ZPS_DEVICE_ABI, 1, &device, &error), ZPS_ERR_UNSUPPORTED);
  assert_string_equal(error.text, "there is no GPU 1: this host has 1");
  struct zps_device_export export;
  assert_int_equal(emu.device->ops->export_memory(emu.device, NULL, 1, &export, &error), ZPS_ERR_INVALID);
  gpu_ok(cpu.device->ops->export_memory(cpu.device, NULL, 1, &export, &gpu_error));
  assert_int_equal(export.dmabuf_fd, -1);
}

static void the_device_tells_its_address(void **state) {
  (void)state;
  unsigned domain, bus, device, function;
  assert_int_equal(sscanf(emu.device->pci_address, "%x:%x:%x.%x", &domain, &bus, &device, &function), 4);
  if (is_emulated) assert_string_equal(emu.device->pci_address, "00FE:00:00.0");
  assert_string_equal(cpu.device->pci_address, "");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(algorithm_1_loses_nothing, gpu_setup, gpu_teardown),
      cmocka_unit_test_setup_teardown(algorithm_1_survives_collisions, gpu_setup, gpu_teardown),
      cmocka_unit_test_setup_teardown(work_waits_for_its_turn, gpu_setup, gpu_teardown),
      cmocka_unit_test_setup_teardown(streams_wait_for_words, gpu_setup, gpu_teardown),
      cmocka_unit_test_setup_teardown(missing_memory_is_reported, gpu_setup, gpu_teardown),
      cmocka_unit_test_setup_teardown(what_is_not_there_is_refused, gpu_setup, gpu_teardown),
      cmocka_unit_test_setup_teardown(the_device_tells_its_address, gpu_setup, gpu_teardown),
  };
  return cmocka_run_group_tests(tests, gpu_group_setup, gpu_group_teardown);
}
#endif
