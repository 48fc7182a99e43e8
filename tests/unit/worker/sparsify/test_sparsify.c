/* A sparsifier's residual, and its API: its refusals, and its behaviour without memory. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/oom.h"
#include "tests/unit/worker/sparsify/sparsify_reference.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const struct ref_choice choices[] = {
    {.kind = ZENPS_SPARSIFY_TOPK, .density = 0.01},
    {.kind = ZENPS_SPARSIFY_SAMPLED, .density = 0.01},
    {.kind = ZENPS_SPARSIFY_REUSED, .density = 0.01, .residual = ZENPS_RESIDUAL_GLOBAL},
    {.kind = ZENPS_SPARSIFY_GAUSSIAN, .density = 0.01},
    {.kind = ZENPS_SPARSIFY_BUCKETS, .k = 4, .residual = ZENPS_RESIDUAL_GLOBAL},
    {.kind = ZENPS_SPARSIFY_THRESHOLD, .threshold = 12},
};

/* Sums of small integers are exact: the values sent plus the residual equal the gradients, to the bit. */
static void nothing_is_lost(void **state) {
  (void)state;
  enum { N = 9000, STEPS = 50 };
  for (unsigned c = 0; c < COUNT(choices); c++) {
    for (zenps_dtype_t dtype = ZENPS_F32; dtype <= ZENPS_F64; dtype++) {
      struct zps_rng rng = {.state = c};
      zenps_sparsifier_t *const sparsifier = ref_sparsifier(&choices[c], N, dtype);
      double *const in = calloc(N, sizeof *in), *const out = calloc(N, sizeof *out);
      int64_t *const listed = calloc(N, sizeof *listed);
      for (unsigned step = 0; step < STEPS; step++) {
        void *const gradient = ref_values(&rng, REF_INTEGERS, N, dtype);
        zenps_grad_t selection, result;
        ZENPS_GRAD_INIT(&selection);
        ZENPS_GRAD_INIT(&result);
        assert_int_equal(zenps_sparsifier_select(sparsifier, gradient, &selection), ZENPS_OK);
        for (uint64_t i = 0; i < N; i++) in[i] += ref_value(dtype, gradient, i);
        free(gradient);
        if (step % 7 == 6) {
          assert_int_equal(zenps_sparsifier_cancel(sparsifier), ZENPS_OK);
          continue;
        }
        /* The result holds every other entry sent, others that were not, backwards and some twice. */
        result.layout = ZENPS_ROWS;
        result.row_ids = listed;
        for (int64_t i = N - 1; i >= 0; i--)
          if (i % 2 == 0) listed[result.nnz++] = i;
        listed[result.nnz++] = 0;
        assert_int_equal(zenps_sparsifier_commit(sparsifier, &result), ZENPS_OK);
        for (uint64_t j = 0; j < selection.nnz; j++) {
          const int64_t i = selection.row_ids[j];
          if (choices[c].residual == ZENPS_RESIDUAL_SENT || i % 2 == 0) out[i] += ref_value(dtype, selection.values, j);
        }
      }
      for (uint64_t i = 0; i < N; i++)
        assert_true(out[i] + ref_value(dtype, zenps_sparsifier_residual(sparsifier), i) == in[i]);
      free(in);
      free(out);
      free(listed);
      zenps_sparsifier_destroy(sparsifier);
    }
  }
}

static void global_result_dense(void **state) {
  (void)state;
  const struct ref_choice choice = {.k = 3, .residual = ZENPS_RESIDUAL_GLOBAL};
  zenps_sparsifier_t *const sparsifier = ref_sparsifier(&choice, 5, ZENPS_F32);
  const float gradient[5] = {5, -4, 3, 2, 1};
  float sum[5] = {7, 0, -1, 9, -0.0f};
  zenps_grad_t selection, result;
  ZENPS_GRAD_INIT(&selection);
  ZENPS_GRAD_INIT(&result);
  result.layout = ZENPS_DENSE;
  result.values = sum;
  assert_int_equal(zenps_sparsifier_select(sparsifier, gradient, &selection), ZENPS_OK);
  assert_int_equal(zenps_sparsifier_commit(sparsifier, &result), ZENPS_OK);
  assert_memory_equal(zenps_sparsifier_residual(sparsifier), ((const float[5]){0, -4, 0, 2, 1}), sizeof gradient);
  zenps_sparsifier_destroy(sparsifier);
}

/* DGC: u = m u + g, v = v + u; both are cleared where v is sent. */
static void momentum(void **state) {
  (void)state;
  enum { N = 5000, STEPS = 10 };
  for (zenps_dtype_t dtype = ZENPS_F32; dtype <= ZENPS_F64; dtype++) {
    struct zps_rng rng = {.state = 8};
    const struct ref_choice choice = {.kind = ZENPS_SPARSIFY_SAMPLED, .density = 0.05, .momentum = 0.5};
    zenps_sparsifier_t *const sparsifier = ref_sparsifier(&choice, N, dtype);
    static double u[N], v[N];
    memset(u, 0, sizeof u);
    memset(v, 0, sizeof v);
    for (unsigned step = 0; step < STEPS; step++) {
      void *const gradient = ref_values(&rng, REF_INTEGERS, N, dtype); /* exact: ten halvings */
      zenps_grad_t selection;
      ZENPS_GRAD_INIT(&selection);
      for (uint64_t i = 0; i < N; i++) v[i] += u[i] = 0.5 * u[i] + ref_value(dtype, gradient, i);
      assert_int_equal(zenps_sparsifier_select(sparsifier, gradient, &selection), ZENPS_OK);
      for (uint64_t i = 0; i < N; i++) {
        assert_true(ref_value(dtype, zenps_sparsifier_residual(sparsifier), i) == v[i]);
        assert_true(ref_value(dtype, zenps_sparsifier_velocity(sparsifier), i) == u[i]);
      }
      for (uint64_t j = 0; j < selection.nnz; j++) {
        const int64_t i = selection.row_ids[j];
        assert_true(ref_value(dtype, selection.values, j) == v[i]);
        u[i] = v[i] = 0;
      }
      assert_int_equal(zenps_sparsifier_commit(sparsifier, NULL), ZENPS_OK);
      free(gradient);
    }
    zenps_sparsifier_destroy(sparsifier);
  }
}

/* Halves of small integers are exact: residual = decay * residual + gradient (or + velocity, with momentum). */
static void decay(void **state) {
  (void)state;
  enum { N = 5003, STEPS = 10 };
  for (unsigned with_momentum = 0; with_momentum < 2; with_momentum++) {
    for (zenps_dtype_t dtype = ZENPS_F32; dtype <= ZENPS_F64; dtype++) {
      struct zps_rng rng = {.state = 18};
      const struct ref_choice choice = {
          .kind = ZENPS_SPARSIFY_BUCKETS, .k = 2, .bucket = 128, .decay = 0.5, .momentum = with_momentum ? 0.5 : 0};
      zenps_sparsifier_t *const sparsifier = ref_sparsifier(&choice, N, dtype);
      static double u[N], v[N];
      memset(u, 0, sizeof u);
      memset(v, 0, sizeof v);
      for (unsigned step = 0; step < STEPS; step++) {
        void *const gradient = ref_values(&rng, REF_INTEGERS, N, dtype);
        zenps_grad_t selection;
        ZENPS_GRAD_INIT(&selection);
        for (uint64_t i = 0; i < N; i++) {
          u[i] = choice.momentum * u[i] + ref_value(dtype, gradient, i);
          v[i] = 0.5 * v[i] + u[i];
        }
        assert_int_equal(zenps_sparsifier_select(sparsifier, gradient, &selection), ZENPS_OK);
        for (uint64_t i = 0; i < N; i++)
          assert_true(ref_value(dtype, zenps_sparsifier_residual(sparsifier), i) == v[i]);
        for (uint64_t j = 0; j < selection.nnz; j++) u[selection.row_ids[j]] = v[selection.row_ids[j]] = 0;
        assert_int_equal(zenps_sparsifier_commit(sparsifier, NULL), ZENPS_OK);
        free(gradient);
      }
      zenps_sparsifier_destroy(sparsifier);
    }
  }
}

/* One selection of everything from a clipped gradient. */
static void check_clipped(zenps_dtype_t dtype, const double *given, const double *wanted, uint64_t n,
                          double tolerance) {
  const struct ref_choice choice = {.k = n, .clip_norm = 1};
  zenps_sparsifier_t *const sparsifier = ref_sparsifier(&choice, n, dtype);
  double gradient[8];
  for (uint64_t i = 0; i < n; i++) {
    if (dtype == ZENPS_F32)
      ((float *)(void *)gradient)[i] = (float)given[i];
    else
      gradient[i] = given[i];
  }
  zenps_grad_t selection;
  ZENPS_GRAD_INIT(&selection);
  assert_int_equal(zenps_sparsifier_select(sparsifier, gradient, &selection), ZENPS_OK);
  for (uint64_t i = 0; i < n; i++) {
    const double got = ref_value(dtype, zenps_sparsifier_residual(sparsifier), i);
    if (isnan(wanted[i]))
      assert_true(isnan(got));
    else
      assert_true(got == wanted[i] || fabs(got - wanted[i]) < tolerance);
  }
  zenps_sparsifier_destroy(sparsifier);
}

static void clipping(void **state) {
  (void)state;
  for (zenps_dtype_t dtype = ZENPS_F32; dtype <= ZENPS_F64; dtype++) {
    const double tolerance = dtype == ZENPS_F32 ? 1e-7 : 1e-15;
    check_clipped(dtype, (const double[]){3, -4}, (const double[]){0.6, -0.8}, 2, tolerance);
    check_clipped(dtype, (const double[]){0.3, -0.4}, (const double[]){0.3, -0.4}, 2, tolerance);
    check_clipped(dtype, (const double[]){3, -4, INFINITY, NAN}, (const double[]){0.6, -0.8, INFINITY, NAN}, 4,
                  tolerance);
    check_clipped(dtype, (const double[]){NAN, NAN}, (const double[]){NAN, NAN}, 2, tolerance);
    check_clipped(dtype, (const double[]){0, 0}, (const double[]){0, 0}, 2, tolerance);
  }
  check_clipped(ZENPS_F64, (const double[]){3e300, -4e300}, (const double[]){0.6, -0.8}, 2, 1e-15);
}

/* NaN and Inf go out first, and are gone then. */
static void not_finite(void **state) {
  (void)state;
  const struct ref_choice choice = {.k = 2, .momentum = 0.9};
  zenps_sparsifier_t *const sparsifier = ref_sparsifier(&choice, 4, ZENPS_F32);
  const float first[4] = {1, NAN, 3e38f, -INFINITY}, second[4] = {0};
  zenps_grad_t selection;
  ZENPS_GRAD_INIT(&selection);
  assert_int_equal(zenps_sparsifier_select(sparsifier, first, &selection), ZENPS_OK);
  assert_int_equal(selection.nnz, 2);
  assert_int_equal(selection.row_ids[0], 1);
  assert_int_equal(selection.row_ids[1], 3);
  assert_int_equal(zenps_sparsifier_commit(sparsifier, NULL), ZENPS_OK);
  assert_int_equal(zenps_sparsifier_select(sparsifier, second, &selection), ZENPS_OK);
  const float *const residual = zenps_sparsifier_residual(sparsifier), *const velocity =
                                                                           zenps_sparsifier_velocity(sparsifier);
  assert_true(residual[1] == 0 && residual[3] == 0 && velocity[1] == 0 && velocity[3] == 0);
  zenps_sparsifier_destroy(sparsifier);
}

static void assert_refused(zenps_status_t status, zenps_status_t wanted, const char *text) {
  assert_int_equal(status, wanted);
  if (!strstr(zenps_last_error()->text, text)) fail_msg("'%s' lacks '%s'", zenps_last_error()->text, text);
}

static void options_checked(void **state) {
  (void)state;
  zenps_sparsifier_t *made = NULL;
  zenps_sparsifier_options_t options;
#define REFUSED(n, dtype, text, ...)                                                                   \
  do {                                                                                                 \
    ZENPS_SPARSIFIER_OPTIONS_INIT(&options);                                                           \
    options.k = 1;                                                                                     \
    __VA_ARGS__;                                                                                       \
    assert_refused(zenps_sparsifier_create(&options, (n), (dtype), &made), ZENPS_ERR_INVALID, (text)); \
  } while (0)
  REFUSED(0, ZENPS_F32, "1 to 2^40", (void)0);
  REFUSED((1ull << 40) + 1, ZENPS_F32, "1 to 2^40", (void)0);
  REFUSED(10, (zenps_dtype_t)3, "none of ZENPS_F32", (void)0);
  REFUSED(10, ZENPS_F32, "kind 8", options.kind = (zenps_sparsify_t)8);
  REFUSED(10, ZENPS_F32, "takes neither", options.kind = ZENPS_SPARSIFY_SCHEME);
  REFUSED(10, ZENPS_F32, "residual 2", options.residual = (zenps_residual_t)2);
  REFUSED(10, ZENPS_F32, "of 10 values", options.k = 11);
  REFUSED(1000, ZENPS_F32, "of 512 values", options.kind = ZENPS_SPARSIFY_BUCKETS; options.k = 513);
  REFUSED(10, ZENPS_F32, "one of them", options.density = 0.5);
  REFUSED(10, ZENPS_F32, "density", options.k = 0);
  REFUSED(10, ZENPS_F32, "density", options.k = 0; options.density = 1.5);
  REFUSED(10, ZENPS_F32, "density", options.k = 0; options.density = -1);
  REFUSED(10, ZENPS_F32, "density", options.k = 0; options.density = NAN);
  REFUSED(10, ZENPS_F32, "momentum", options.momentum = 1);
  REFUSED(10, ZENPS_F32, "momentum", options.momentum = NAN);
  REFUSED(10, ZENPS_F32, "clip_norm", options.clip_norm = -1);
  REFUSED(10, ZENPS_F32, "decay is 1.5; it must be over 0", options.decay = 1.5);
  REFUSED(10, ZENPS_F32, "decay", options.decay = -0.5);
  REFUSED(10, ZENPS_F32, "decay", options.decay = NAN);
  REFUSED(10, ZENPS_F32, "threshold", options.kind = ZENPS_SPARSIFY_THRESHOLD; options.threshold = NAN);
  REFUSED(10, ZENPS_F32, "only ZENPS_SPARSIFY_THRESHOLD", options.threshold = 1);
  REFUSED(10, ZENPS_F32, "struct_size", options.struct_size = 0);
  assert_refused(zenps_sparsifier_create(NULL, 1, ZENPS_F32, &made), ZENPS_ERR_INVALID, "NULL");
  assert_null(made);
}

static void calls_checked(void **state) {
  (void)state;
  zenps_sparsifier_t *const sparsifier =
      ref_sparsifier(&(struct ref_choice){.k = 1, .residual = ZENPS_RESIDUAL_GLOBAL}, 2, ZENPS_F32);
  const float gradient[2] = {1, 2};
  zenps_grad_t selection, result;
  ZENPS_GRAD_INIT(&selection);
  ZENPS_GRAD_INIT(&result);
  assert_refused(zenps_sparsifier_commit(sparsifier, &result), ZENPS_ERR_INVALID, "no selection");
  assert_refused(zenps_sparsifier_cancel(sparsifier), ZENPS_ERR_INVALID, "no selection");
  assert_refused(zenps_sparsifier_select(sparsifier, NULL, &selection), ZENPS_ERR_INVALID, "NULL");
  selection.struct_size = 0;
  assert_refused(zenps_sparsifier_select(sparsifier, gradient, &selection), ZENPS_ERR_INVALID, "ZENPS_GRAD_INIT");
  ZENPS_GRAD_INIT(&selection);
  assert_int_equal(zenps_sparsifier_select(sparsifier, gradient, &selection), ZENPS_OK);
  assert_refused(zenps_sparsifier_select(sparsifier, gradient, &selection), ZENPS_ERR_BUSY, "neither committed");
  assert_refused(zenps_sparsifier_set_k(sparsifier, 2), ZENPS_ERR_BUSY, "neither committed");
  assert_refused(zenps_sparsifier_commit(sparsifier, NULL), ZENPS_ERR_INVALID, "needs the result");
  result.layout = ZENPS_ROWS;
  result.nnz = 2;
  assert_refused(zenps_sparsifier_commit(sparsifier, &result), ZENPS_ERR_INVALID, "row_ids");
  for (int64_t bad = -1; bad <= 2; bad += 3) {
    result.row_ids = (int64_t[]){1, bad};
    assert_refused(zenps_sparsifier_commit(sparsifier, &result), ZENPS_ERR_INVALID, "none of the 2 rows");
  }
  result.layout = ZENPS_DENSE;
  assert_refused(zenps_sparsifier_commit(sparsifier, &result), ZENPS_ERR_INVALID, "no values");
  assert_memory_equal(zenps_sparsifier_residual(sparsifier), gradient, sizeof gradient);
  assert_int_equal(zenps_sparsifier_cancel(sparsifier), ZENPS_OK);
  assert_refused(zenps_sparsifier_set_k(sparsifier, 0), ZENPS_ERR_INVALID, "1 to 2");
  assert_refused(zenps_sparsifier_set_k(sparsifier, 3), ZENPS_ERR_INVALID, "1 to 2");
  assert_refused(zenps_sparsifier_set_threshold(sparsifier, 1), ZENPS_ERR_INVALID, "ZENPS_SPARSIFY_THRESHOLD");
  assert_null(zenps_sparsifier_velocity(sparsifier));
  zenps_sparsifier_stats_t stats = {0};
  assert_refused(zenps_sparsifier_stats(sparsifier, &stats), ZENPS_ERR_INVALID, "struct_size");
  zenps_sparsifier_destroy(sparsifier);
  zenps_sparsifier_destroy(NULL);
}

/* DGC's warm-up: k changes on the way, and a threshold that the caller sets. */
static void settings(void **state) {
  (void)state;
  enum { N = 20000 };
  struct zps_rng rng = {.state = 4};
  float *const gradient = ref_values(&rng, REF_NORMAL, N, ZENPS_F32);
  zenps_grad_t selection;
  ZENPS_GRAD_INIT(&selection);
  zenps_sparsifier_t *sparsifier = ref_sparsifier(&(struct ref_choice){.k = 10}, N, ZENPS_F32);
  static const uint64_t ks[] = {10, N, N / 2, 1};
  for (unsigned i = 0; i < COUNT(ks); i++) {
    assert_int_equal(zenps_sparsifier_set_k(sparsifier, ks[i]), ZENPS_OK);
    assert_int_equal(zenps_sparsifier_select(sparsifier, gradient, &selection), ZENPS_OK);
    assert_int_equal(selection.nnz, ks[i]);
    assert_int_equal(zenps_sparsifier_commit(sparsifier, NULL), ZENPS_OK);
  }
  zenps_sparsifier_destroy(sparsifier);
  sparsifier = ref_sparsifier(&(struct ref_choice){.kind = ZENPS_SPARSIFY_THRESHOLD, .threshold = 1e9}, N, ZENPS_F32);
  assert_int_equal(zenps_sparsifier_select(sparsifier, gradient, &selection), ZENPS_OK);
  assert_int_equal(selection.nnz, 0);
  assert_int_equal(zenps_sparsifier_commit(sparsifier, NULL), ZENPS_OK);
  assert_int_equal(zenps_sparsifier_set_threshold(sparsifier, 0), ZENPS_OK);
  assert_refused(zenps_sparsifier_set_threshold(sparsifier, -1), ZENPS_ERR_INVALID, "at least 0");
  assert_int_equal(zenps_sparsifier_select(sparsifier, gradient, &selection), ZENPS_OK);
  assert_int_equal(selection.nnz, N);
  zenps_sparsifier_destroy(sparsifier);
  free(gradient);
}

/* Where the scheme selects: the residual goes as it is, and the rows that contributed leave it, with their velocity. */
static void of_a_scheme(void **state) {
  (void)state;
  zenps_sparsifier_t *const sparsifier =
      ref_sparsifier(&(struct ref_choice){.kind = ZENPS_SPARSIFY_SCHEME, .momentum = 0.5}, 4, ZENPS_F64);
  const double gradient[4] = {1, -2, 0, 4}, first[4] = {0, -2, 0, 4}, second[4] = {1, -5, 0, 10};
  zenps_grad_t in, rows;
  ZENPS_GRAD_INIT(&in);
  ZENPS_GRAD_INIT(&rows);
  assert_int_equal(zenps_sparsifier_select(sparsifier, gradient, &in), ZENPS_OK);
  assert_int_equal(in.layout, ZENPS_DENSE);
  assert_ptr_equal(in.values, zenps_sparsifier_residual(sparsifier));
  assert_memory_equal(in.values, gradient, sizeof gradient);
  assert_refused(zenps_sparsifier_commit(sparsifier, NULL), ZENPS_ERR_INVALID, "zenps_request_contributed");
  rows.layout = ZENPS_DENSE;
  rows.values = in.values;
  assert_refused(zenps_sparsifier_commit(sparsifier, &rows), ZENPS_ERR_INVALID, "layout");
  rows.layout = ZENPS_ROWS;
  rows.nnz = 1;
  rows.row_ids = (int64_t[]){4};
  assert_refused(zenps_sparsifier_commit(sparsifier, &rows), ZENPS_ERR_INVALID, "none of the 4 rows");
  rows.row_ids[0] = 0;
  assert_int_equal(zenps_sparsifier_commit(sparsifier, &rows), ZENPS_OK);
  assert_memory_equal(in.values, first, sizeof first);
  assert_int_equal(zenps_sparsifier_select(sparsifier, gradient, &in), ZENPS_OK);
  assert_memory_equal(in.values, second, sizeof second); /* row 0 has no velocity, the others one and a half */
  assert_int_equal(zenps_sparsifier_cancel(sparsifier), ZENPS_OK);
  assert_memory_equal(in.values, second, sizeof second);
  assert_refused(zenps_sparsifier_set_k(sparsifier, 1), ZENPS_ERR_INVALID, "takes none");
  zenps_sparsifier_destroy(sparsifier);
}

/* After creation no call allocates: with nothing granted, everything goes on. */
static void memory_is_flat(void **state) {
  (void)state;
  enum { N = 50000 };
  struct zps_rng rng = {.state = 6};
  for (unsigned c = 0; c < COUNT(choices); c++) {
    zenps_sparsifier_t *const sparsifier = ref_sparsifier(&choices[c], N, ZENPS_F32);
    for (enum ref_shape shape = 0; shape < REF_N_SHAPES; shape++) {
      float *const gradient = ref_values(&rng, shape, N, ZENPS_F32);
      zenps_grad_t selection;
      ZENPS_GRAD_INIT(&selection);
      atomic_store(&oom_granted, 0);
      const zenps_status_t selected = zenps_sparsifier_select(sparsifier, gradient, &selection);
      const zenps_status_t committed = zenps_sparsifier_commit(sparsifier, &selection);
      atomic_store(&oom_granted, OOM_UNLIMITED);
      assert_int_equal(selected, ZENPS_OK);
      assert_int_equal(committed, ZENPS_OK);
      free(gradient);
    }
    zenps_sparsifier_destroy(sparsifier);
  }
}

struct sweep {
  zenps_sparsifier_options_t options;
  zenps_sparsifier_t *made;
};

static zps_err_t sweep_create(void *ctx) {
  struct sweep *const sweep = ctx;
  return (zps_err_t)zenps_sparsifier_create(&sweep->options, 10000, ZENPS_F32, &sweep->made);
}

static void sweep_destroy(void *ctx) {
  zenps_sparsifier_destroy(((struct sweep *)ctx)->made);
}

static zps_err_t sweep_grow(void *ctx) {
  return (zps_err_t)zenps_sparsifier_set_k(((struct sweep *)ctx)->made, 10000);
}

static void sweep_nothing(void *ctx) {
  (void)ctx;
}

static void no_memory(void **state) {
  (void)state;
  struct sweep sweep = {0};
  ZENPS_SPARSIFIER_OPTIONS_INIT(&sweep.options);
  sweep.options.k = 10;
  sweep.options.momentum = 0.9;
  sweep.options.residual = ZENPS_RESIDUAL_GLOBAL;
  oom_sweep(sweep_create, sweep_destroy, &sweep, 7);
  assert_int_equal(sweep_create(&sweep), ZPS_OK);
  oom_sweep(sweep_grow, sweep_nothing, &sweep, 2);
  sweep_destroy(&sweep);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(nothing_is_lost), cmocka_unit_test(global_result_dense),
      cmocka_unit_test(momentum),        cmocka_unit_test(decay),
      cmocka_unit_test(clipping),        cmocka_unit_test(not_finite),
      cmocka_unit_test(options_checked), cmocka_unit_test(calls_checked),
      cmocka_unit_test(settings),        cmocka_unit_test(of_a_scheme),
      cmocka_unit_test(memory_is_flat),  cmocka_unit_test(no_memory),
  };
  return cmocka_run_group_tests_name("sparsify", tests, NULL, NULL);
}
