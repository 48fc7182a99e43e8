/* A sparsifier saved and loaded goes on as one that was never interrupted, and takes no other bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/worker/sparsify/sparsify_reference.h"
#ifdef ZPS_HAVE_EMU
#include "tests/unit/gpu/gpu_rig.h"
#endif

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
enum { N = 2000, STEPS = 9 };

static const struct ref_choice choices[] = {
    {.kind = ZENPS_SPARSIFY_TOPK, .density = 0.01, .momentum = 0.9},
    {.kind = ZENPS_SPARSIFY_SAMPLED, .density = 0.02, .sample = 700, .unrefined = 1},
    {.kind = ZENPS_SPARSIFY_REUSED, .density = 0.01, .period = 4, .residual = ZENPS_RESIDUAL_GLOBAL},
    {.kind = ZENPS_SPARSIFY_REUSED, .density = 0.05, .period = 5, .momentum = 0.5, .capped = 1},
    {.kind = ZENPS_SPARSIFY_THRESHOLD, .density = 0.1, .threshold = 0.5},
    {.kind = ZENPS_SPARSIFY_SCHEME},
    {.kind = ZENPS_SPARSIFY_GAUSSIAN, .density = 0.01}, /* from here on in host memory alone */
    {.kind = ZENPS_SPARSIFY_BUCKETS, .k = 4, .residual = ZENPS_RESIDUAL_GLOBAL},
    {.kind = ZENPS_SPARSIFY_TOPK, .density = 0.02, .clip_norm = 3},
};
enum { N_ON_DEVICE = 6 };

static size_t size_of(zenps_dtype_t dtype) {
  return dtype == ZENPS_F32 ? sizeof(float) : sizeof(double);
}

/* ------------------------------------------------------------ a sparsifier in either memory */

#ifdef ZPS_HAVE_EMU
static struct gpu_rig rig;

static void open_device(void) {
  setenv("ZENPS_DEVICE_LIBRARY", ".libs/libzenps_emu.so", 0);
  gpu_ok(zps_device_load(getenv("ZENPS_DEVICE_LIBRARY"), 0, &rig.device, &gpu_error));
  gpu_rig_open(&rig);
}
#define has_device true
#else
#define has_device false
#endif

struct side {
  zenps_sparsifier_t *sparsifier;
  zenps_memory_t memory;
  zenps_dtype_t dtype;
};

static struct side side_open(const struct ref_choice *choice, zenps_dtype_t dtype, zenps_memory_t memory) {
  struct side side = {.memory = memory, .dtype = dtype};
  zenps_sparsifier_options_t options;
  ZENPS_SPARSIFIER_OPTIONS_INIT(&options);
  options.kind = choice->kind;
  options.k = choice->k;
  options.density = choice->density;
  options.residual = choice->residual;
  options.momentum = choice->momentum;
  options.period = choice->period;
  options.sample = choice->sample;
  options.unrefined = choice->unrefined;
  options.capped = choice->capped;
  options.threshold = choice->threshold;
  options.clip_norm = choice->clip_norm;
  options.memory = memory;
  if (zenps_sparsifier_create(&options, N, dtype, &side.sparsifier) != ZENPS_OK)
    fail_msg("%s", zenps_last_error()->text);
  return side;
}

/* Copies of what is on the device, or here. */
static void *bring(const struct side *side, const void *from, size_t len) {
#ifdef ZPS_HAVE_EMU
  if (side->memory == ZENPS_DEVICE) return gpu_download(&rig, from, len);
#endif
  (void)side;
  void *const copy = malloc(len + 1);
  if (len) memcpy(copy, from, len);
  return copy;
}

static void select_from(const struct side *side, const void *gradient, zenps_grad_t *out) {
  ZENPS_GRAD_INIT(out);
  zenps_status_t status;
#ifdef ZPS_HAVE_EMU
  if (side->memory == ZENPS_DEVICE) {
    void *const there = gpu_upload(&rig, gradient, N * size_of(side->dtype));
    out->stream = rig.stream;
    status = zenps_sparsifier_select(side->sparsifier, there, out);
    gpu_free(&rig, there);
  } else
#endif
    status = zenps_sparsifier_select(side->sparsifier, gradient, out);
  if (status != ZENPS_OK) fail_msg("%s", zenps_last_error()->text);
}

/* Every third row of the tensor is in the result. */
static void commit(const struct side *side) {
  zenps_grad_t result;
  int64_t rows[N / 3 + 1];
  ZENPS_GRAD_INIT(&result);
  result.layout = ZENPS_ROWS;
  result.row_ids = rows;
  for (int64_t row = 0; row < N; row += 3) rows[result.nnz++] = row;
  assert_int_equal(zenps_sparsifier_commit(side->sparsifier, &result), ZENPS_OK);
}

static void assert_same_bytes(const struct side *a, const struct side *b, const void *from_a, const void *from_b,
                              size_t len) {
  void *const of_a = bring(a, from_a, len), *const of_b = bring(b, from_b, len);
  if (len) assert_memory_equal(of_a, of_b, len);
  free(of_a);
  free(of_b);
}

static void *save(const struct side *side, size_t *len_p) {
  size_t needed = 0;
  assert_int_equal(zenps_sparsifier_save(side->sparsifier, NULL, 0, &needed), ZENPS_ERR_TRUNCATED);
  *len_p = needed;
  char *const bytes = malloc(needed + 1);
  bytes[needed] = 0x5a;
  assert_int_equal(zenps_sparsifier_save(side->sparsifier, bytes, needed - 1, &needed), ZENPS_ERR_TRUNCATED);
  if (zenps_sparsifier_save(side->sparsifier, bytes, needed, &needed) != ZENPS_OK)
    fail_msg("%s", zenps_last_error()->text);
  assert_int_equal(needed, *len_p);
  assert_int_equal(bytes[needed], 0x5a);
  return bytes;
}

/* Saving waits for what commits submitted. */
static void assert_same_state(const struct side *a, const struct side *b) {
  enum { HEADER_BYTES = 144 };
  zenps_sparsifier_stats_t of_a = {.struct_size = sizeof of_a}, of_b = {.struct_size = sizeof of_b};
  size_t len_a, len_b;
  char *const bytes_a = save(a, &len_a), *const bytes_b = save(b, &len_b);
  assert_int_equal(len_a, len_b);
  assert_memory_equal(bytes_a + HEADER_BYTES, bytes_b + HEADER_BYTES, len_a - HEADER_BYTES);
  if (a->memory == b->memory) assert_memory_equal(bytes_a, bytes_b, HEADER_BYTES);
  free(bytes_a);
  free(bytes_b);
  assert_int_equal(zenps_sparsifier_stats(a->sparsifier, &of_a), ZENPS_OK);
  assert_int_equal(zenps_sparsifier_stats(b->sparsifier, &of_b), ZENPS_OK);
  assert_true(of_a.k == of_b.k && of_a.selected == of_b.selected && of_a.steps == of_b.steps);
}

/* ------------------------------------------------------------ going on */

/* Another sparsifier takes over at each step, in the middle of it where `in_between`; from device to host and back. */
static void go_on(const struct ref_choice *choice, zenps_dtype_t dtype, bool in_between, bool on_device) {
  struct side whole = side_open(choice, dtype, ZENPS_HOST);
  struct side part = side_open(choice, dtype, on_device ? ZENPS_DEVICE : ZENPS_HOST);
  struct zps_rng rng = {.state = (uint64_t)choice->kind};
  for (unsigned step = 0; step < STEPS; step++) {
    void *const gradient = ref_values(&rng, REF_NORMAL, N, dtype);
    zenps_grad_t of_whole, of_part;
    size_t len;
    select_from(&whole, gradient, &of_whole);
    select_from(&part, gradient, &of_part);
    free(gradient);
    assert_int_equal(of_whole.nnz, of_part.nnz);
    assert_same_bytes(&whole, &part, of_whole.row_ids, of_part.row_ids, of_whole.nnz * sizeof(int64_t));
    assert_same_bytes(&whole, &part, of_whole.values, of_part.values, of_whole.nnz * size_of(dtype));
    if (!in_between) commit(&part);
    void *const bytes = save(&part, &len);
    zenps_sparsifier_destroy(part.sparsifier);
    part = side_open(choice, dtype, on_device && step % 2 ? ZENPS_DEVICE : ZENPS_HOST);
    if (zenps_sparsifier_load(part.sparsifier, bytes, len) != ZENPS_OK) fail_msg("%s", zenps_last_error()->text);
    free(bytes);
    if (in_between) commit(&part);
    commit(&whole);
    assert_same_state(&whole, &part);
    if (step == 4 && choice->density > 0) { /* warm-up */
      assert_int_equal(zenps_sparsifier_set_k(whole.sparsifier, 300), ZENPS_OK);
      assert_int_equal(zenps_sparsifier_set_k(part.sparsifier, 300), ZENPS_OK);
    }
    if (step == 5 && choice->kind == ZENPS_SPARSIFY_THRESHOLD) {
      assert_int_equal(zenps_sparsifier_set_threshold(whole.sparsifier, 1.5), ZENPS_OK);
      assert_int_equal(zenps_sparsifier_set_threshold(part.sparsifier, 1.5), ZENPS_OK);
    }
  }
  zenps_sparsifier_destroy(whole.sparsifier);
  zenps_sparsifier_destroy(part.sparsifier);
}

static void a_loaded_one_goes_on(void **state) {
  (void)state;
  for (unsigned c = 0; c < COUNT(choices); c++)
    for (unsigned in_between = 0; in_between < 2; in_between++) {
      go_on(&choices[c], ZENPS_F32, in_between, false);
      go_on(&choices[c], ZENPS_F64, in_between, false);
    }
}

static void in_device_memory_too(void **state) {
  (void)state;
  if (!has_device) skip();
#ifdef ZPS_HAVE_EMU
  open_device();
#endif
  for (unsigned c = 0; c < N_ON_DEVICE; c++)
    for (unsigned in_between = 0; in_between < 2; in_between++)
      go_on(&choices[c], c % 2 ? ZENPS_F64 : ZENPS_F32, in_between, true);
#ifdef ZPS_HAVE_EMU
  gpu_rig_close(&rig);
#endif
}

/* ------------------------------------------------------------ refused */

static void expect_refusal(const struct side *side, const void *bytes, size_t len, zenps_status_t status,
                           const char *text) {
  size_t before_len, after_len;
  void *const before = save(side, &before_len);
  assert_int_equal(zenps_sparsifier_load(side->sparsifier, bytes, len), status);
  if (!strstr(zenps_last_error()->text, text)) fail_msg("'%s' is not in: %s", text, zenps_last_error()->text);
  void *const after = save(side, &after_len);
  assert_int_equal(before_len, after_len);
  assert_memory_equal(before, after, before_len);
  free(before);
  free(after);
}

static void other_bytes_change_nothing(void **state) {
  (void)state;
  struct side from = side_open(&choices[0], ZENPS_F32, ZENPS_HOST), to = side_open(&choices[0], ZENPS_F32, ZENPS_HOST);
  struct zps_rng rng = {.state = 3};
  zenps_grad_t selected;
  void *const gradient = ref_values(&rng, REF_NORMAL, N, ZENPS_F32);
  size_t len, needed;
  select_from(&from, gradient, &selected);
  char *const bytes = save(&from, &len);
  for (size_t cut = 0; cut < len; cut += cut < 200 ? 1 : 977)
    assert_int_equal(zenps_sparsifier_load(to.sparsifier, bytes, cut), ZENPS_ERR_INVALID);
  expect_refusal(&to, bytes, 10, ZENPS_ERR_INVALID, "10 bytes are no state of a sparsifier");
  expect_refusal(&to, bytes, len - 1, ZENPS_ERR_INVALID, "are given");
  for (size_t at = 0; at < len; at += at < 200 ? 1 : 331) {
    bytes[at] ^= 1;
    const zenps_status_t status = zenps_sparsifier_load(to.sparsifier, bytes, len);
    assert_true(status == ZENPS_ERR_INVALID || status == ZENPS_ERR_VERSION);
    bytes[at] ^= 1;
  }
  bytes[len - 1] ^= 0x40;
  expect_refusal(&to, bytes, len, ZENPS_ERR_INVALID, "the state's bytes have changed");
  bytes[len - 1] ^= 0x40;
  bytes[8]++;
  expect_refusal(&to, bytes, len, ZENPS_ERR_VERSION, "the state is of format 2, this library reads format 1");
  bytes[8]--;
  bytes[0]++;
  expect_refusal(&to, bytes, len, ZENPS_ERR_INVALID, "they do not begin like one");
  bytes[0]--;
  struct side wide = side_open(&choices[0], ZENPS_F64, ZENPS_HOST);
  expect_refusal(&wide, bytes, len, ZENPS_ERR_SHAPE, "the state is of f32, the sparsifier of f64");
  struct side other = side_open(&choices[2], ZENPS_F32, ZENPS_HOST);
  expect_refusal(&other, bytes, len, ZENPS_ERR_SHAPE, "the state is of kind 1, the sparsifier of kind 3");
  struct ref_choice plain = choices[0];
  plain.momentum = 0;
  struct side still = side_open(&plain, ZENPS_F32, ZENPS_HOST);
  expect_refusal(&still, bytes, len, ZENPS_ERR_SHAPE, "the state is with momentum, the sparsifier without it");
  zenps_sparsifier_t *shorter;
  zenps_sparsifier_options_t options;
  ZENPS_SPARSIFIER_OPTIONS_INIT(&options);
  options.density = 0.01;
  options.momentum = 0.9;
  assert_int_equal(zenps_sparsifier_create(&options, N - 1, ZENPS_F32, &shorter), ZENPS_OK);
  expect_refusal(&(struct side){.sparsifier = shorter}, bytes, len, ZENPS_ERR_SHAPE,
                 "the state is of 2000 values, the sparsifier has 1999");
  assert_int_equal(zenps_sparsifier_load(from.sparsifier, bytes, len), ZENPS_ERR_BUSY);
  assert_int_equal(zenps_sparsifier_load(NULL, bytes, len), ZENPS_ERR_INVALID);
  assert_int_equal(zenps_sparsifier_save(from.sparsifier, bytes, len, NULL), ZENPS_ERR_INVALID);
  assert_int_equal(zenps_sparsifier_save(from.sparsifier, NULL, len, &needed), ZENPS_ERR_INVALID);
  assert_int_equal(zenps_sparsifier_load(to.sparsifier, bytes, len), ZENPS_OK);
  assert_int_equal(zenps_sparsifier_cancel(to.sparsifier), ZENPS_OK);
  zenps_sparsifier_destroy(from.sparsifier);
  zenps_sparsifier_destroy(to.sparsifier);
  zenps_sparsifier_destroy(wide.sparsifier);
  zenps_sparsifier_destroy(other.sparsifier);
  zenps_sparsifier_destroy(still.sparsifier);
  zenps_sparsifier_destroy(shorter);
  free(gradient);
  free(bytes);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_loaded_one_goes_on),
      cmocka_unit_test(in_device_memory_too),
      cmocka_unit_test(other_bytes_change_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
