/* Error feedback and selection by magnitude in the device's kernels, run by the emulation, against worker/sparsify. */
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
#include "worker/select/estimate.h"
#include "worker/select/magnitude.h"
#include "worker/select/order.h"
#include "worker/select/scan.h"
#include "worker/sparsify/bucket.h"

enum { N_MAX = 9000 };

/* The same residual and velocity on the host and on the device. */
struct twins {
  struct zps_feedback host;
  struct zps_device_feedback device;
  struct zps_device_selector *selector;
  size_t len_bytes;
  void *gradient;
};

/* Few different magnitudes, so that many are equal; zeros, NaN and infinities. */
static double draw(struct zps_rng *rng) {
  const double values[] = {0, -0.0, 1, -1, 2, -2, 1e-42, INFINITY, NAN};
  const uint64_t kind = zps_rng_below(rng, 30);
  if (kind < sizeof values / sizeof values[0]) return values[kind];
  return (zps_rng_unit(rng) - 0.5) * 4;
}

static void draw_gradient(struct zps_rng *rng, struct twins *twins) {
  for (uint64_t i = 0; i < twins->host.n; i++) {
    if (twins->host.dtype == ZPS_DTYPE_F32)
      ((float *)twins->gradient)[i] = (float)draw(rng);
    else
      ((double *)twins->gradient)[i] = draw(rng);
  }
}

static struct twins new_twins(enum zps_dtype dtype, uint64_t n, double momentum, double decay) {
  struct twins twins = {.len_bytes = n * zps_dtype_size(dtype)};
  assert_int_equal(zps_feedback_init(&twins.host, dtype, n, momentum, 0, decay), ZPS_OK);
  twins.device = (struct zps_device_feedback){.dtype = dtype, .n = n, .momentum = momentum, .decay = decay};
  twins.device.residual_on_device = gpu_upload(&emu, twins.host.residual, twins.len_bytes);
  twins.device.velocity_on_device = gpu_upload(&emu, twins.host.velocity, twins.len_bytes);
  twins.gradient = malloc(twins.len_bytes);
  assert_non_null(twins.gradient);
  gpu_ok(emu.device->ops->selector_create(emu.device, &twins.selector, &gpu_error));
  return twins;
}

static void free_twins(struct twins *twins) {
  emu.device->ops->selector_destroy(twins->selector);
  gpu_free(&emu, twins->device.residual_on_device);
  gpu_free(&emu, twins->device.velocity_on_device);
  zps_feedback_fini(&twins->host);
  free(twins->gradient);
}

static void assert_same_array(struct twins *twins, const void *host, void *on_device) {
  char *const got = gpu_download(&emu, on_device, twins->len_bytes);
  const enum zps_dtype dtype = twins->host.dtype;
  const size_t size = zps_dtype_size(dtype);
  for (uint64_t i = 0; i < twins->host.n; i++) {
    const bool is_nan = isnan(zps_magnitude_value(dtype, zps_magnitude_at(dtype, host, i)));
    if (is_nan && isnan(zps_magnitude_value(dtype, zps_magnitude_at(dtype, got, i)))) continue;
    assert_memory_equal(got + i * size, (const char *)host + i * size, size);
  }
  free(got);
}

static void add(struct twins *twins, double factor) {
  void *const gradient = gpu_upload(&emu, twins->gradient, twins->len_bytes);
  zps_feedback_add(&twins->host, twins->gradient, factor, 0, twins->host.n);
  gpu_ok(emu.device->ops->selector_add(twins->selector, &twins->device, gradient, factor, emu.stream, &gpu_error));
  gpu_wait(&emu);
  gpu_free(&emu, gradient);
  assert_same_array(twins, twins->host.residual, twins->device.residual_on_device);
}

/* The values that the host picks of its residual. */
static uint64_t pick_on_host(const struct twins *twins, const struct zps_device_cut *cut, struct zps_picks *picks) {
  const enum zps_dtype dtype = twins->host.dtype;
  const uint64_t n = twins->host.n;
  uint64_t magnitude = cut->magnitude ? cut->magnitude : 1, ties = UINT64_MAX;
  if (cut->kind == ZPS_CUT_TOPK && cut->k < n) {
    const struct zps_order order = zps_order_select(dtype, twins->host.residual, n, cut->k);
    magnitude = order.magnitude ? order.magnitude : 1;
    if (order.magnitude) ties = cut->k - order.n_above;
  } else if (cut->kind == ZPS_CUT_SAMPLED && cut->k < cut->n_sample) {
    /* after the addition: the gradient that is still to come is zero */
    void *const zeros = calloc(n, zps_dtype_size(dtype)), *const sample = malloc(cut->n_sample * zps_dtype_size(dtype));
    struct zps_feedback feedback = twins->host;
    feedback.velocity = NULL;
    feedback.decay = 1;
    assert_true(zeros && sample);
    zps_estimate_sample(&feedback, zeros, 1, cut->seed, cut->step, sample, cut->n_sample);
    magnitude = zps_order_select(dtype, sample, cut->n_sample, cut->k).magnitude;
    if (magnitude == 0) magnitude = 1;
    free(zeros);
    free(sample);
  }
  picks->n = 0;
  for (uint64_t begin = 0; cut->kind == ZPS_CUT_BUCKETS && begin < n; begin += cut->bucket) {
    const uint64_t len = n - begin < cut->bucket ? n - begin : cut->bucket;
    zps_bucket_pick(dtype, twins->host.residual, begin, begin + len, (len * cut->k + cut->bucket - 1) / cut->bucket,
                    picks);
  }
  if (cut->kind == ZPS_CUT_BUCKETS) return 0;
  assert_true(zps_scan_pick(dtype, twins->host.residual, 0, n, magnitude, &ties, picks));
  return magnitude;
}

static void compare_picks(struct twins *twins, const struct zps_device_cut *cut, bool is_cleared) {
  const size_t size = zps_dtype_size(twins->host.dtype);
  struct zps_picks picks = {.ids = malloc(N_MAX * sizeof(int64_t)), .values = malloc(N_MAX * size), .capacity = N_MAX};
  assert_true(picks.ids && picks.values);
  const uint64_t magnitude = pick_on_host(twins, cut, &picks);
  void *const ids = gpu_new(&emu, picks.n * sizeof(int64_t)), *const values = gpu_new(&emu, picks.n * size);
  struct zps_device_selected selected;
  gpu_ok(emu.device->ops->selector_pick(twins->selector, &twins->device, cut, ids, values, picks.n, emu.stream,
                                        &gpu_error));
  gpu_wait(&emu);
  gpu_ok(emu.device->ops->selector_finish(twins->selector, &selected, &gpu_error));
  assert_int_equal(selected.n, picks.n);
  assert_int_equal(selected.magnitude, magnitude);
  int64_t *const got_ids = gpu_download(&emu, ids, picks.n * sizeof(int64_t));
  void *const got = gpu_download(&emu, values, picks.n * size);
  assert_memory_equal(got_ids, picks.ids, picks.n * sizeof(int64_t));
  assert_memory_equal(got, picks.values, picks.n * size);
  if (is_cleared) {
    for (uint64_t i = 0; i < picks.n; i++) zps_feedback_clear(&twins->host, (uint64_t)picks.ids[i]);
    gpu_ok(emu.device->ops->selector_clear(twins->selector, &twins->device, ids, picks.n, emu.stream, &gpu_error));
    gpu_wait(&emu);
    assert_same_array(twins, twins->host.residual, twins->device.residual_on_device);
    if (twins->host.velocity) assert_same_array(twins, twins->host.velocity, twins->device.velocity_on_device);
  } else if (picks.n > 0) { /* one place too few */
    gpu_ok(emu.device->ops->selector_pick(twins->selector, &twins->device, cut, ids, values, picks.n - 1, emu.stream,
                                          &gpu_error));
    gpu_wait(&emu);
    assert_int_equal(emu.device->ops->selector_finish(twins->selector, &selected, NULL), ZPS_ERR_TRUNCATED);
    assert_int_equal(selected.n, picks.n);
  }
  free(got_ids);
  free(got);
  gpu_free(&emu, ids);
  gpu_free(&emu, values);
  free(picks.ids);
  free(picks.values);
}

static void selections_are_the_workers(void **state) {
  (void)state;
  static const uint64_t sizes[] = {1, 40, 1024, N_MAX};
  for (unsigned i = 0; i < 16; i++) {
    const uint64_t n = sizes[i % 4];
    const enum zps_dtype dtype = i % 3 == 2 ? ZPS_DTYPE_F64 : ZPS_DTYPE_F32;
    struct zps_rng rng = {.state = i};
    struct twins twins = new_twins(dtype, n, i % 2 ? 0.9 : 0, i % 7 ? 1 : 0.95);
    zps_emu_seed(i);
    for (unsigned step = 0; step < 2; step++) {
      draw_gradient(&rng, &twins);
      add(&twins, i % 5 ? 1 : 0.3);
      const struct zps_device_cut cuts[] = {
          {.kind = ZPS_CUT_THRESHOLD, .magnitude = zps_magnitude_from(dtype, 1)},
          {.kind = ZPS_CUT_SAMPLED, .k = 1 + n / 50, .n_sample = 1 + n / 3, .seed = i, .step = step},
          {.kind = ZPS_CUT_BUCKETS, .k = 1 + i % 9, .bucket = i % 3 ? 64 * (i % 9 + 1) : 1 + i % 9},
          {.kind = ZPS_CUT_TOPK, .k = step ? n : 1 + n / 10},
      };
      for (unsigned c = 0; c < COUNT(cuts); c++) compare_picks(&twins, &cuts[c], c == 3);
    }
    free_twins(&twins);
  }
}

static void what_cannot_be_selected_is_refused(void **state) {
  (void)state;
  struct twins twins = new_twins(ZPS_DTYPE_F32, 10, 0, 1);
  const struct zps_device_cut cut = {.kind = ZPS_CUT_SAMPLED, .k = 1, .n_sample = 11};
  assert_int_equal(emu.device->ops->selector_pick(twins.selector, &twins.device, &cut, NULL, NULL, 0, emu.stream, NULL),
                   ZPS_ERR_INVALID);
  const struct zps_device_cut more = {.kind = ZPS_CUT_BUCKETS, .k = 5, .bucket = 4};
  assert_int_equal(
      emu.device->ops->selector_pick(twins.selector, &twins.device, &more, NULL, NULL, 0, emu.stream, NULL),
      ZPS_ERR_INVALID);
  struct zps_device_feedback bytes = twins.device;
  bytes.dtype = ZPS_DTYPE_U8;
  assert_int_equal(emu.device->ops->selector_add(twins.selector, &bytes, NULL, 1, emu.stream, NULL),
                   ZPS_ERR_UNSUPPORTED);
  free_twins(&twins);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(selections_are_the_workers, gpu_setup, gpu_teardown),
      cmocka_unit_test_setup_teardown(what_cannot_be_selected_is_refused, gpu_setup, gpu_teardown),
  };
  return cmocka_run_group_tests(tests, gpu_group_setup, gpu_group_teardown);
}
#endif
