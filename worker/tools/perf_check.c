#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/codec/values.h"
#include "worker/tools/lossy.h"
#include "worker/tools/perf.h"
#include "worker/tools/perf_digest.h"
#include "worker/tools/perf_levels.h"
#include "worker/tools/perf_round.h"

struct perf_check {
  struct perf *perf;
  void *sum;                /* rows * width, of the type that sums are made in */
  char *rounded;            /* halves: one row of it */
  uint8_t *touched;         /* rows */
  struct perf_round *round; /* NULL: values travel as they are */
  bool rounds_sums;         /* sums are rounded, too */
  void *own;                /* where it is not added as it is: one rank's gradient */
  uint8_t *own_touched;
  struct lossy *lossy;       /* NULL: nothing is dropped */
  uint64_t step;             /* of its reference */
  struct perf_levels levels; /* bits 0: the dense half is exact */
  uint32_t contributors;     /* to the step of the reference */
  bool in_turns;             /* ranks make the references of different steps */
  int *late;                 /* [world]: ranks that are not in the step's sum, n_late of them */
  uint32_t n_late;
};

static bool adds(const struct perf *perf) {
  const zenps_op_t op = (zenps_op_t)(ZENPS_OP_SUM + perf->options.op);
  return op == ZENPS_OP_SUM || op == ZENPS_OP_MEAN || op == ZENPS_OP_MEAN_PRESENT;
}

static zps_err_t open_lossy(struct perf_check *check, struct zps_error *error) {
  const struct perf *perf = check->perf;
  const struct perf_options *options = &perf->options;
  if (!adds(perf))
    return zps_fail(error, ZPS_ERR_INVALID, "--verify knows of lossy schemes the sum and the mean, no max or min");
  const struct zps_scheme_options *const of_scheme = &options->text.options;
  const uint64_t k = (uint64_t)llround(of_scheme->density * (double)perf->rows);
  const struct lossy_config config = {
      .scheme = perf->scheme,
      .n = (uint32_t)zenps_world(perf->job),
      .rows = perf->rows,
      .width = (uint32_t)options->width,
      .k = of_scheme->k ? of_scheme->k
           : k          ? k
                        : 1,
      .period = of_scheme->threshold_period ? of_scheme->threshold_period : ZPS_DEFAULT_threshold_period,
      .without = of_scheme->without,
      .f32 = perf->sum_bytes == 4,
  };
  return lossy_create(&config, &check->lossy);
}

static zps_err_t open_round(struct perf_check *check, struct zps_error *error) {
  const struct perf *perf = check->perf;
  const bool splits = strcmp(perf->scheme, "split-allgather") == 0 || strcmp(perf->scheme, "dsar") == 0;
  enum zps_plan_scheme scheme;
  check->rounds_sums =
      !zps_plan_scheme_parse(perf->scheme, &scheme) || scheme == ZPS_PLAN_AUTO || zps_plan_scheme_served(scheme);
  if (check->rounds_sums) return perf_round_create(perf->tensor, 0, &check->round, error);
  if (!splits && strcmp(perf->scheme, "agsparse") != 0)
    return zps_fail(
        error, ZPS_ERR_UNSUPPORTED,
        "--verify knows rounded values of balanced and sparse-ps, and of split-allgather, dsar and agsparse, "
        "not of %s",
        perf->scheme);
  return perf_round_create(perf->tensor, splits ? (uint32_t)zenps_world(perf->job) : 1, &check->round, error);
}

zps_err_t perf_check_create(struct perf *perf, struct perf_check **check_p, struct zps_error *error) {
  struct perf_check *check = calloc(1, sizeof *check);
  if (!check) return zps_fail(error, ZPS_ERR_NOMEM, "out of memory");
  check->perf = perf;
  const uint32_t bits = perf->options.text.options.bits;
  if (bits && zps_dtype_is_half(perf->dtype)) {
    free(check);
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "--verify knows of bits for f32 and f64, not for %s",
                    zps_dtype_name(perf->dtype));
  }
  check->late = calloc((size_t)zenps_world(perf->job), sizeof *check->late);
  check->rounded = malloc(perf->options.width * perf->value_bytes);
  check->sum = calloc(perf->rows * perf->options.width, perf->sum_bytes);
  check->touched = calloc(perf->rows, 1);
  zps_err_t code = ZPS_OK;
  bool ok = check->sum && check->touched && check->rounded && check->late;
  const bool rounds = perf->options.values != 0;
  check->levels = (struct perf_levels){
      .rows = perf->rows, .width = perf->options.width, .bits = bits, .world = (uint32_t)zenps_world(perf->job)};
  check->in_turns = perf->options.check == 1 && !perf->lossy && !bits; /* these look at steps together */
  if (perf->lossy) code = open_lossy(check, error);
  if (code == ZPS_ERR_NOMEM) ok = false;
  if (rounds || !adds(perf) || perf->lossy || bits) {
    check->own = calloc(perf->rows * perf->options.width, perf->sum_bytes);
    check->own_touched = calloc(perf->rows, 1);
    ok &= check->own && check->own_touched;
    if (ok && code == ZPS_OK && rounds) code = open_round(check, error);
  }
  if (!ok) code = zps_fail(error, ZPS_ERR_NOMEM, "--verify: out of memory for further copies of the tensor");
  if (code != ZPS_OK) {
    perf_check_destroy(check);
    return code;
  }
  *check_p = check;
  return ZPS_OK;
}

void perf_check_destroy(struct perf_check *check) {
  if (!check) return;
  free(check->sum);
  free(check->late);
  free(check->rounded);
  free(check->touched);
  free(check->own);
  free(check->own_touched);
  perf_round_destroy(check->round);
  lossy_destroy(check->lossy);
  free(check);
}

/* sum[row] += the rank's row, whose repetitions are added first, in order, from zero: the order the library promises.
 * False where they add up to nothing: such a row is not sent, unless rows of zeros are kept. */
#define DEFINE_ADD_ROW(name, type)                                                                 \
  static bool name(const struct perf *perf, type *sum, uint64_t row, const uint64_t *keys) {       \
    const uint64_t width = perf->options.width;                                                    \
    bool is_sent = perf->options.keep_zero_rows;                                                   \
    if (perf_row_is_zero(perf, row)) return is_sent;                                               \
    for (uint64_t c = 0; c < width; c++) {                                                         \
      type value = 0;                                                                              \
      for (uint64_t k = 0; k < perf->options.duplicates; k++)                                      \
        value += (type)perf_element(perf, perf_value(keys[k], row * width + c, perf->value_bits)); \
      sum[row * width + c] += value;                                                               \
      is_sent |= value != 0;                                                                       \
    }                                                                                              \
    return is_sent;                                                                                \
  }
DEFINE_ADD_ROW(add_row_f32, float)
DEFINE_ADD_ROW(add_row_f64, double)

/* Adds the rank's rows to `sum`, and marks them. */
static void add_rows(struct perf_check *check, uint64_t step, uint32_t rank, void *sum, uint8_t *touched) {
  const struct perf *perf = check->perf;
  const struct perf_options *options = &perf->options;
  uint64_t keys[256], n;
  for (uint64_t k = 0; k < options->duplicates; k++) keys[k] = perf_value_key(options->seed, step, rank, (uint32_t)k);
  const int64_t *rows = perf_input_touched(perf->input, step, rank, &n);
  check->contributors += options->layout == 0 || n > 0;
  for (uint64_t i = 0; i < n; i++) {
    const uint64_t row = (uint64_t)rows[i];
    touched[row] |= perf->sum_bytes == 4 ? add_row_f32(perf, sum, row, keys) : add_row_f64(perf, sum, row, keys);
  }
}

static double merged(const struct perf_check *check, bool first, double sum, double value) {
  const zenps_op_t op = (zenps_op_t)(ZENPS_OP_SUM + check->perf->options.op);
  const bool further = op == ZENPS_OP_MAX ? value > sum : value < sum;
  return adds(check->perf) ? sum + value : first || further ? value : sum;
}

/* Adds the rank's row, which is not all zero, to the sum's (or takes the greater, or lesser), and clears it. */
static void merge_own_row(struct perf_check *check, uint64_t row) {
  const struct perf *perf = check->perf;
  const uint64_t width = perf->options.width;
  const bool first = !check->touched[row];
  check->touched[row] = 1;
  for (uint64_t c = row * width; c < (row + 1) * width; c++) {
    if (perf->sum_bytes == 4) {
      float *const sum = (float *)check->sum + c;
      *sum = (float)merged(check, first, (double)*sum, (double)((float *)check->own)[c]);
    } else {
      double *const sum = (double *)check->sum + c;
      *sum = merged(check, first, *sum, ((double *)check->own)[c]);
    }
  }
  memset((char *)check->own + row * width * perf->sum_bytes, 0, width * perf->sum_bytes);
  check->own_touched[row] = 0;
}

/* The rank's gradient as the others get it. */
static void add_sent(struct perf_check *check, uint64_t step, uint32_t rank) {
  add_rows(check, step, rank, check->own, check->own_touched);
  if (check->round) perf_round_rows(check->round, step, rank, check->own_touched, check->own);
  for (uint64_t row = 0; row < check->perf->rows; row++)
    if (check->own_touched[row]) merge_own_row(check, row);
}

static void take_mean(struct perf_check *check, uint64_t row) {
  const struct perf *perf = check->perf;
  const uint32_t in_time = (uint32_t)zenps_world(perf->job) - check->n_late;
  const uint32_t n = perf->options.op == 1 ? in_time : check->contributors;
  for (uint64_t c = row * perf->options.width; c < (row + 1) * perf->options.width; c++) {
    if (perf->sum_bytes == 4) {
      ((float *)check->sum)[c] *= 1.0f / (float)n;
    } else {
      ((double *)check->sum)[c] *= 1.0 / n;
    }
  }
}

static bool all_zero(const char *row, size_t bytes) {
  bool zero = true;
  for (size_t i = 0; i < bytes; i++) zero &= row[i] == 0;
  return zero;
}

static void clear_row(struct perf_check *check, uint64_t row) {
  const size_t bytes = check->perf->options.width * check->perf->sum_bytes;
  if (check->touched[row]) memset((char *)check->sum + row * bytes, 0, bytes);
  check->touched[row] = 0;
}

/* The result has all rows that ranks sent, also those whose sum is zero. */
static bool must_have(const struct perf *perf) {
  return perf->balanced || perf->options.keep_zero_rows;
}

/* Compares one row of the result (NULL: the result does not have it) and clears the reference for the next step. */
static bool same_row(struct perf_check *check, uint64_t row, const char *got) {
  const struct perf *perf = check->perf;
  const size_t bytes = perf->options.width * perf->value_bytes;
  char *sum = (char *)check->sum + row * perf->options.width * perf->sum_bytes, *expected = sum;
  bool same = true;
  if (check->touched[row]) {
    if (zps_dtype_is_half(perf->dtype)) {
      expected = check->rounded;
      zps_values_narrow(perf->dtype, sum, perf->options.width, expected);
    }
    same = got ? memcmp(expected, got, bytes) == 0 : !must_have(perf) && all_zero(expected, bytes);
    clear_row(check, row);
  } else if (got) {
    same = all_zero(got, bytes);
  }
  return same;
}

static double load(const struct perf *perf, const void *values, uint64_t i) {
  return perf->sum_bytes == 4 ? (double)((const float *)values)[i] : ((const double *)values)[i];
}

static void load_rank(void *ctx, uint32_t rank, double *values) {
  struct perf_check *check = ctx;
  const uint64_t width = check->perf->options.width;
  add_rows(check, check->step, rank, check->own, check->own_touched);
  for (uint64_t row = 0; row < check->perf->rows; row++) {
    if (!check->own_touched[row]) continue;
    for (uint64_t c = row * width; c < (row + 1) * width; c++) values[c] = load(check->perf, check->own, c);
    memset((char *)check->own + row * width * check->perf->sum_bytes, 0, width * check->perf->sum_bytes);
    check->own_touched[row] = 0;
  }
}

static void sum_kept(struct perf_check *check, uint64_t step) {
  const struct perf *perf = check->perf;
  check->step = step;
  const double *kept = lossy_next(check->lossy, load_rank, check);
  for (uint64_t i = 0; i < perf->rows * perf->options.width; i++) {
    if (kept[i] == 0) continue;
    check->touched[i / perf->options.width] = 1;
    if (perf->sum_bytes == 4)
      ((float *)check->sum)[i] = (float)kept[i];
    else
      ((double *)check->sum)[i] = kept[i];
  }
}

static bool is_late(const struct perf_check *check, uint32_t rank) {
  for (uint32_t i = 0; i < check->n_late; i++)
    if (check->late[i] == (int)rank) return true;
  return false;
}

/* Makes the sum that all ranks should get. */
static void make_reference(struct perf_check *check, uint64_t step) {
  const struct perf *perf = check->perf;
  const uint32_t world = (uint32_t)zenps_world(perf->job);
  check->contributors = 0;
  if (check->lossy) sum_kept(check, step);
  for (uint32_t rank = 0; !check->lossy && rank < world; rank++) {
    if (is_late(check, rank)) continue;
    if (perf->options.values != 0 || !adds(perf))
      add_sent(check, step, rank);
    else
      add_rows(check, step, rank, check->sum, check->touched);
  }
  const bool is_mean = perf->options.op == 1 || perf->options.op == PERF_MEAN_PRESENT;
  for (uint64_t row = 0; is_mean && row < perf->rows; row++)
    if (check->touched[row]) take_mean(check, row);
  if (check->rounds_sums) perf_round_rows(check->round, step, world, check->touched, check->sum);
}

void perf_check_digest(struct perf *perf, const zenps_grad_t *out) {
  const bool dense = out->layout == ZENPS_DENSE;
  const uint64_t n = dense ? perf->rows : out->nnz;
  if (!dense) perf_digest_add(&perf->digest, out->row_ids, n * sizeof *out->row_ids);
  perf_digest_add(&perf->digest, out->values, n * perf->options.width * perf->value_bytes);
}

/* A result whose dense half travelled as levels; clears the reference. */
static zps_err_t check_levels(struct perf_check *check, uint64_t step, const zenps_grad_t *out,
                              struct zps_error *error) {
  const struct perf *perf = check->perf;
  const size_t row_bytes = perf->options.width * perf->value_bytes;
  const bool dense = out->layout == ZENPS_DENSE;
  for (uint64_t i = 0; !dense && i < out->nnz; i++)
    memcpy((char *)check->own + (size_t)out->row_ids[i] * row_bytes, (char *)out->values + i * row_bytes, row_bytes);
  const zps_err_t code = perf_levels_check(&check->levels, step, perf->value_bytes == 4, check->sum,
                                           dense ? out->values : check->own, error);
  memset(check->sum, 0, perf->rows * row_bytes);
  memset(check->own, 0, perf->rows * row_bytes);
  memset(check->touched, 0, perf->rows);
  return code;
}

/* As promised of every list, under every scheme: no row comes twice. */
static zps_err_t check_order(const struct perf *perf, uint64_t step, const zenps_grad_t *out, struct zps_error *error) {
  for (uint64_t i = 0; out->layout == ZENPS_ROWS && i < out->nnz; i++) {
    const int64_t row = out->row_ids[i];
    if (row >= 0 && (uint64_t)row < perf->rows && (i == 0 || row > out->row_ids[i - 1])) continue;
    return zps_fail(error, ZPS_ERR_INTERNAL,
                    "step %llu: the result has row %lld at entry %llu, of %llu rows after row %lld",
                    (unsigned long long)step, (long long)row, (unsigned long long)i, (unsigned long long)perf->rows,
                    i == 0 ? -1LL : (long long)out->row_ids[i - 1]);
  }
  return ZPS_OK;
}

zps_err_t perf_check_step(struct perf_check *check, uint64_t step, const zenps_request_t *request,
                          const zenps_grad_t *out, struct zps_error *error) {
  const struct perf *perf = check->perf;
  const size_t row_bytes = perf->options.width * perf->value_bytes;
  const zps_err_t ordered = check_order(perf, step, out, error);
  if (ordered != ZPS_OK) return ordered;
  if (check->in_turns && step % (uint64_t)zenps_world(perf->job) != (uint64_t)zenps_rank(perf->job)) return ZPS_OK;
  check->n_late = 0;
  if (perf->options.quorum > 0 &&
      zenps_request_late(request, check->late, (uint32_t)zenps_world(perf->job), &check->n_late) != ZENPS_OK)
    return zps_fail(error, ZPS_ERR_INTERNAL, "step %llu: no late ranks: %s", (unsigned long long)step,
                    zenps_last_error()->text);
  make_reference(check, step);
  if (!check->lossy && !perf->gpu && out->contributors >= 0 && (uint32_t)out->contributors != check->contributors)
    return zps_fail(error, ZPS_ERR_INTERNAL, "step %llu: %d ranks are said to have contributed; it was %u",
                    (unsigned long long)step, (int)out->contributors, check->contributors);
  if (check->levels.bits) return check_levels(check, step, out, error);
  uint64_t at = 0, bad = 0, first_bad = 0;
  for (uint64_t row = 0; row < perf->rows; row++) {
    const char *got = NULL;
    if (row < perf->share_first || row >= perf->share_first + perf->share_rows) {
      clear_row(check, row);
      continue;
    }
    if (out->layout == ZENPS_DENSE) {
      got = (const char *)out->values + (row - perf->share_first) * row_bytes;
    } else if (at < out->nnz && (uint64_t)out->row_ids[at] == row) {
      got = (const char *)out->values + at++ * row_bytes;
    }
    if (!same_row(check, row, got) && bad++ == 0) first_bad = row;
  }
  if (out->layout == ZENPS_ROWS && at != out->nnz)
    return zps_fail(error, ZPS_ERR_INTERNAL,
                    "step %llu: row %lld of the result, at entry %llu, is none that was asked for",
                    (unsigned long long)step, (long long)out->row_ids[at], (unsigned long long)at);
  if (bad > 0)
    return zps_fail(error, ZPS_ERR_INTERNAL,
                    "step %llu: %llu rows differ from the reference sum, the first is row %llu",
                    (unsigned long long)step, (unsigned long long)bad, (unsigned long long)first_bad);
  return ZPS_OK;
}
