/* Sparsifiers in device memory, emulated or real, against those in host memory; and one threshold for parts. */
#include <stdio.h>

#ifndef ZPS_HAVE_EMU
int main(void) {
  puts("1..0 # SKIP no C++17 compiler: there is no emulated device");
  return 0;
}
#else
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/thin.h"
#include "tests/unit/worker/sparsify/sparsify_reference.h"

#include "tests/unit/gpu/gpu_rig.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
enum { N = 1500, STEPS = 4 };

static struct gpu_rig rig;

static int setup(void **state) {
  (void)state;
  setenv("ZENPS_DEVICE_LIBRARY", ".libs/libzenps_emu.so", 0);
  gpu_ok(zps_device_load(getenv("ZENPS_DEVICE_LIBRARY"), 0, &rig.device, &gpu_error));
  gpu_rig_open(&rig);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  gpu_rig_close(&rig);
  return 0;
}

static size_t size_of(zenps_dtype_t dtype) {
  return dtype == ZENPS_F32 ? sizeof(float) : sizeof(double);
}

static zenps_sparsifier_options_t options_of(const struct ref_choice *choice) {
  zenps_sparsifier_options_t options;
  ZENPS_SPARSIFIER_OPTIONS_INIT(&options);
  options.kind = choice->kind;
  options.density = choice->density;
  options.residual = choice->residual;
  options.momentum = choice->momentum;
  options.period = choice->period;
  options.sample = choice->sample;
  options.k = choice->k;
  options.bucket = choice->bucket;
  options.decay = choice->decay;
  options.unrefined = choice->unrefined;
  options.capped = choice->capped;
  options.threshold = choice->threshold;
  return options;
}

static zenps_sparsifier_t *new_sparsifier(const struct ref_choice *choice, uint64_t n, zenps_dtype_t dtype,
                                          zenps_memory_t memory) {
  zenps_sparsifier_options_t options = options_of(choice);
  zenps_sparsifier_t *made;
  options.memory = memory;
  if (zenps_sparsifier_create(&options, n, dtype, &made) != ZENPS_OK) fail_msg("%s", zenps_last_error()->text);
  return made;
}

/* Bit for bit, but for which NaN a sum gives. */
static void assert_same_values(zenps_dtype_t dtype, const void *a, const void *b, uint64_t n) {
  for (uint64_t i = 0; i < n; i++) {
    if (isnan(ref_value(dtype, a, i)) && isnan(ref_value(dtype, b, i))) continue;
    assert_memory_equal((const char *)a + i * size_of(dtype), (const char *)b + i * size_of(dtype), size_of(dtype));
  }
}

static void assert_same_arrays(zenps_dtype_t dtype, const void *here, const void *there, uint64_t n) {
  void *const got = gpu_download(&rig, there, n * size_of(dtype));
  assert_same_values(dtype, here, got, n);
  free(got);
}

struct twins {
  zenps_dtype_t dtype;
  zenps_sparsifier_t *here, *there;
  zenps_grad_t selected_here, selected_there;
};

static void select_both(struct twins *twins, const void *gradient) {
  void *const on_device = gpu_upload(&rig, gradient, N * size_of(twins->dtype));
  zenps_grad_t *const here = &twins->selected_here, *const there = &twins->selected_there;
  zenps_sparsifier_stats_t stats_here = {.struct_size = sizeof stats_here}, stats_there = stats_here;
  ZENPS_GRAD_INIT(here);
  ZENPS_GRAD_INIT(there);
  there->stream = rig.stream;
  assert_int_equal(zenps_sparsifier_select(twins->here, gradient, here), ZENPS_OK);
  if (zenps_sparsifier_select(twins->there, on_device, there) != ZENPS_OK) fail_msg("%s", zenps_last_error()->text);
  gpu_free(&rig, on_device);
  assert_int_equal(there->memory, ZENPS_DEVICE);
  assert_int_equal(there->layout, here->layout);
  assert_int_equal(there->nnz, here->nnz);
  assert_int_equal(zenps_sparsifier_stats(twins->here, &stats_here), ZENPS_OK);
  assert_int_equal(zenps_sparsifier_stats(twins->there, &stats_there), ZENPS_OK);
  assert_int_equal(stats_there.selected, stats_here.selected);
  assert_int_equal(stats_there.steps, stats_here.steps);
  if (here->layout == ZENPS_DENSE) {
    assert_same_arrays(twins->dtype, here->values, there->values, N);
    return;
  }
  int64_t *const ids = gpu_download(&rig, there->row_ids, there->nnz * sizeof *ids);
  assert_memory_equal(ids, here->row_ids, here->nnz * sizeof *ids);
  free(ids);
  assert_same_arrays(twins->dtype, here->values, there->values, here->nnz);
}

/* Every other entry that was selected, backwards, and some that were not. */
static void commit_both(struct twins *twins, unsigned step) {
  zenps_grad_t result;
  int64_t *const rows = malloc((N + 2) * sizeof *rows);
  uint64_t n = 0;
  ZENPS_GRAD_INIT(&result);
  rows[n++] = 0;
  for (uint64_t i = twins->selected_here.nnz; i > 1; i -= 2) rows[n++] = twins->selected_here.row_ids[i - 1];
  if (rows[n - 1] != N - 1) rows[n++] = N - 1;
  result.layout = ZENPS_ROWS;
  result.nnz = n;
  result.row_ids = rows;
  assert_int_equal(zenps_sparsifier_commit(twins->here, &result), ZENPS_OK);
  void *const on_device = gpu_upload(&rig, rows, n * sizeof *rows);
  if (step % 2) {
    result.memory = ZENPS_DEVICE;
    result.row_ids = on_device;
  }
  if (zenps_sparsifier_commit(twins->there, &result) != ZENPS_OK) fail_msg("%s", zenps_last_error()->text);
  gpu_wait(&rig);
  gpu_free(&rig, on_device);
  free(rows);
  assert_same_arrays(twins->dtype, zenps_sparsifier_residual(twins->here), zenps_sparsifier_residual(twins->there), N);
  const void *const velocity = zenps_sparsifier_velocity(twins->here);
  if (velocity) assert_same_arrays(twins->dtype, velocity, zenps_sparsifier_velocity(twins->there), N);
}

static const struct ref_choice choices[] = {
    {.kind = ZENPS_SPARSIFY_TOPK, .density = 0.01},
    {.kind = ZENPS_SPARSIFY_TOPK, .density = 1, .residual = ZENPS_RESIDUAL_GLOBAL, .momentum = 0.9},
    {.kind = ZENPS_SPARSIFY_SAMPLED, .density = 0.02, .sample = 700},
    {.kind = ZENPS_SPARSIFY_SAMPLED, .density = 0.02, .sample = 700, .unrefined = 1, .momentum = 0.5},
    {.kind = ZENPS_SPARSIFY_SAMPLED, .density = 0.999},
    {.kind = ZENPS_SPARSIFY_REUSED, .density = 0.01, .period = 4, .residual = ZENPS_RESIDUAL_GLOBAL, .capped = 1},
    {.kind = ZENPS_SPARSIFY_REUSED, .density = 0.05, .period = 4},
    {.kind = ZENPS_SPARSIFY_THRESHOLD, .threshold = 2},
    {.kind = ZENPS_SPARSIFY_THRESHOLD, .density = 0.01, .threshold = 0.5},
    {.kind = ZENPS_SPARSIFY_SCHEME},
    {.kind = ZENPS_SPARSIFY_BUCKETS, .k = 3, .bucket = 200, .decay = 0.95},
    {.kind = ZENPS_SPARSIFY_BUCKETS, .k = 64, .bucket = 4096, .decay = 0.9, .momentum = 0.9},
    {.kind = ZENPS_SPARSIFY_BUCKETS, .k = 1, .bucket = 1, .residual = ZENPS_RESIDUAL_GLOBAL, .capped = 1},
};

static void selections_are_those_in_host_memory(void **state) {
  (void)state;
  for (unsigned c = 0; c < COUNT(choices); c++) {
    for (unsigned shape = 0; shape < REF_N_SHAPES; shape++) {
      if ((c + shape) % THIN_HEAVY_TO_ONE_IN != 0) continue;
      struct twins twins = {.dtype = (c + shape) % 2 ? ZENPS_F64 : ZENPS_F32};
      struct zps_rng rng = {.state = c * 100 + shape};
      twins.here = new_sparsifier(&choices[c], N, twins.dtype, ZENPS_HOST);
      twins.there = new_sparsifier(&choices[c], N, twins.dtype, ZENPS_DEVICE);
      for (unsigned step = 0; step < STEPS; step++) {
        void *const gradient = ref_values(&rng, (enum ref_shape)shape, N, twins.dtype);
        select_both(&twins, gradient);
        if (step == 1) { /* not sent: all stays */
          assert_int_equal(zenps_sparsifier_cancel(twins.here), ZENPS_OK);
          assert_int_equal(zenps_sparsifier_cancel(twins.there), ZENPS_OK);
        } else {
          commit_both(&twins, step);
        }
        free(gradient);
      }
      zenps_sparsifier_destroy(twins.here);
      zenps_sparsifier_destroy(twins.there);
    }
  }
}

static void another_k_has_room(void **state) {
  (void)state;
  struct twins twins = {.dtype = ZENPS_F32};
  struct zps_rng rng = {.state = 1};
  twins.here = new_sparsifier(&choices[0], N, twins.dtype, ZENPS_HOST);
  twins.there = new_sparsifier(&choices[0], N, twins.dtype, ZENPS_DEVICE);
  for (uint64_t k = 1; k <= N; k = k * 3 + 300) {
    assert_int_equal(zenps_sparsifier_set_k(twins.here, k), ZENPS_OK);
    assert_int_equal(zenps_sparsifier_set_k(twins.there, k), ZENPS_OK);
    void *const gradient = ref_values(&rng, REF_NORMAL, N, twins.dtype);
    select_both(&twins, gradient);
    assert_int_equal(twins.selected_there.nnz, k);
    commit_both(&twins, 0);
    free(gradient);
  }
  zenps_sparsifier_destroy(twins.here);
  zenps_sparsifier_destroy(twins.there);
}

/* Parts of a layer, of different sizes and scales: with samples of all values the threshold is exact, and the same
 * values are selected as of the whole; with small samples their number is about right. */
static void parts_take_one_threshold(void **state) {
  (void)state;
  enum { PARTS = 4 };
  static const uint64_t sizes[PARTS] = {1000, 2000, 1500, 500};
  for (unsigned exact = 0; exact < 2; exact++) {
    zenps_sparsifier_t *parts[PARTS];
    void *gradients[PARTS];
    zenps_sample_t samples[PARTS];
    struct zps_rng rng = {.state = 7};
    uint64_t total = 0, selected = 0;
    double threshold;
    for (unsigned p = 0; p < PARTS; p++) {
      const struct ref_choice choice = {.kind = ZENPS_SPARSIFY_THRESHOLD, .sample = exact ? sizes[p] : sizes[p] / 4};
      const bool on_device = p % 2;
      float *const values = ref_values(&rng, REF_NORMAL, sizes[p], ZENPS_F32);
      for (uint64_t i = 0; i < sizes[p]; i++) values[i] *= (float)(1 + p);
      parts[p] = new_sparsifier(&choice, sizes[p], ZENPS_F32, on_device ? ZENPS_DEVICE : ZENPS_HOST);
      gradients[p] = on_device ? gpu_upload(&rig, values, sizes[p] * sizeof *values) : values;
      double *const magnitudes = malloc(sizes[p] * sizeof *magnitudes);
      assert_int_equal(zenps_sparsifier_sample(parts[p], gradients[p], rig.stream, magnitudes, 1, &samples[p].n),
                       ZENPS_ERR_TRUNCATED);
      if (zenps_sparsifier_sample(parts[p], gradients[p], rig.stream, magnitudes, sizes[p], &samples[p].n) != ZENPS_OK)
        fail_msg("%s", zenps_last_error()->text);
      assert_int_equal(samples[p].n, choice.sample);
      samples[p].magnitudes = magnitudes;
      samples[p].of = sizes[p];
      total += sizes[p];
      if (on_device) free(values);
    }
    assert_int_equal(zenps_sparsify_threshold(samples, PARTS, 0.05, &threshold), ZENPS_OK);
    for (unsigned p = 0; p < PARTS; p++) {
      zenps_grad_t out;
      ZENPS_GRAD_INIT(&out);
      out.stream = rig.stream;
      assert_int_equal(zenps_sparsifier_set_threshold(parts[p], threshold), ZENPS_OK);
      assert_int_equal(zenps_sparsifier_select(parts[p], gradients[p], &out), ZENPS_OK);
      selected += out.nnz;
      assert_int_equal(zenps_sparsifier_commit(parts[p], NULL), ZENPS_OK);
      zenps_sparsifier_destroy(parts[p]);
      if (p % 2)
        gpu_free(&rig, gradients[p]);
      else
        free(gradients[p]);
      free((void *)samples[p].magnitudes);
    }
    if (exact)
      assert_int_equal(selected, total / 20);
    else
      assert_in_range(selected, total / 30, total / 14);
  }
}

static void refused(zenps_sparsifier_options_t options, zenps_status_t status, const char *text) {
  zenps_sparsifier_t *made;
  assert_int_equal(zenps_sparsifier_create(&options, N, ZENPS_F32, &made), status);
  if (!strstr(zenps_last_error()->text, text)) fail_msg("\"%s\" does not say \"%s\"", zenps_last_error()->text, text);
}

static void what_cannot_be_is_refused(void **state) {
  (void)state;
  zenps_sparsifier_options_t options = options_of(&choices[0]);
  options.memory = (zenps_memory_t)7;
  refused(options, ZENPS_ERR_INVALID, "memory 7 is none of ZENPS_HOST, ZENPS_DEVICE");
  options.memory = ZENPS_DEVICE;
  options.device = -1;
  refused(options, ZENPS_ERR_INVALID, "device is -1; it must be the number of a GPU");
  options.device = 0;
  options.clip_norm = 1;
  refused(options, ZENPS_ERR_UNSUPPORTED, "clip_norm is 1; gradients in device memory");
  options.clip_norm = 0;
  options.kind = ZENPS_SPARSIFY_GAUSSIAN;
  refused(options, ZENPS_ERR_UNSUPPORTED, "ZENPS_SPARSIFY_GAUSSIAN does not select in device memory");

  zenps_sparsifier_t *const there = new_sparsifier(&choices[5], N, ZENPS_F32, ZENPS_DEVICE);
  float *const values = calloc(N, sizeof *values);
  void *const on_device = gpu_upload(&rig, values, N * sizeof *values);
  zenps_grad_t out;
  double threshold;
  ZENPS_GRAD_INIT(&out);
  assert_int_equal(zenps_sparsifier_select(there, values, &out), ZENPS_ERR_INVALID); /* of the host */
  assert_int_equal(zenps_sparsifier_sample(there, on_device, NULL, &threshold, 1, &(uint64_t){0}), ZENPS_ERR_INVALID);
  assert_int_equal(zenps_sparsifier_select(there, on_device, &out), ZENPS_OK);
  out.layout = ZENPS_DENSE;
  out.values = on_device;
  assert_int_equal(zenps_sparsifier_commit(there, &out), ZENPS_ERR_UNSUPPORTED);
  assert_non_null(strstr(zenps_last_error()->text, "dense in device memory"));
  assert_int_equal(zenps_sparsifier_cancel(there), ZENPS_OK);
  zenps_sparsifier_destroy(there);
  gpu_free(&rig, on_device);
  free(values);

  const zenps_sample_t none = {.n = 0}, more = {.magnitudes = &threshold, .n = 2, .of = 1};
  assert_int_equal(zenps_sparsify_threshold(&none, 1, 0.1, &threshold), ZENPS_ERR_INVALID);
  assert_int_equal(zenps_sparsify_threshold(&more, 1, 0.1, &threshold), ZENPS_ERR_INVALID);
  assert_int_equal(zenps_sparsify_threshold(&none, 1, 0, &threshold), ZENPS_ERR_INVALID);
  assert_non_null(strstr(zenps_last_error()->text, "density is 0; it must be over 0 and at most 1"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(selections_are_those_in_host_memory),
      cmocka_unit_test(another_k_has_room),
      cmocka_unit_test(parts_take_one_threshold),
      cmocka_unit_test(what_cannot_be_is_refused),
  };
  return cmocka_run_group_tests_name("sparsify_device", tests, setup, teardown);
}
#endif
