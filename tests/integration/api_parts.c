/* Gradients and results in parts: the sums of one array, under all schemes, and what is refused. */
#include "common/base/rng.h"
#include "tests/integration/api_test.h"

enum { PARTS_MAX = 32, STEPS = 3 };

enum form { DENSE, LISTS, MIXED };

struct in_parts {
  zenps_grad_t grad;
  zenps_part_t parts[PARTS_MAX];
};

static bool is_dense(enum form form, uint32_t i) {
  return form == DENSE || (form == MIXED && i % 2 == 0);
}

/* Other parts for each rank and step, of all rows. */
static void cut(const struct spec *spec, uint64_t seed, enum form form, struct in_parts *out) {
  struct zps_rng rng = {.state = seed};
  uint64_t at = 0;
  ZENPS_GRAD_INIT(&out->grad);
  memset(out->parts, 0, sizeof out->parts);
  out->grad.parts = out->parts;
  for (uint32_t i = 0; at < spec->rows; i++) {
    uint64_t n = zps_rng_below(&rng, spec->rows / 8 + 2);
    if (n > spec->rows - at || i + 1 == PARTS_MAX) n = spec->rows - at;
    out->parts[i] = (zenps_part_t){.struct_size = sizeof(zenps_part_t), .row_base = at, .n_rows = n};
    out->parts[i].layout = is_dense(form, i) ? ZENPS_DENSE : ZENPS_ROWS;
    at += n;
    out->grad.n_parts = i + 1;
  }
}

static void add_float(const struct spec *spec, const zenps_part_t *part, uint64_t row, const void *values) {
  float *const to = (float *)part->values + (row - part->row_base) * spec->width;
  for (uint32_t j = 0; j < spec->width; j++) to[j] += ((const float *)values)[j];
}

/* The rows of a part of the list `one`. */
static void take_list(const struct spec *spec, const zenps_grad_t *one, zenps_part_t *part) {
  const size_t each = spec_row_bytes(spec);
  const bool adds = part->layout == ZENPS_DENSE;
  part->values = calloc((adds ? part->n_rows : one->nnz) + 1, each);
  if (!adds) part->row_ids = calloc(one->nnz + 1, sizeof *part->row_ids);
  for (uint64_t i = 0; i < one->nnz; i++) {
    const uint64_t row = (uint64_t)one->row_ids[i];
    const char *const values = (const char *)one->values + i * each;
    if (row - part->row_base >= part->n_rows) continue;
    if (adds) {
      add_float(spec, part, row, values);
      continue;
    }
    part->row_ids[part->nnz] = (int64_t)(row - part->row_base);
    memcpy((char *)part->values + part->nnz++ * each, values, each);
  }
}

/* Parts of the gradient `one`, without those that have nothing. */
static void take(const struct spec *spec, const zenps_grad_t *one, uint64_t seed, enum form form, struct in_parts *in) {
  const size_t each = spec_row_bytes(spec);
  cut(spec, seed, form, in);
  uint32_t n = 0;
  for (uint32_t i = 0; i < in->grad.n_parts; i++) {
    zenps_part_t part = in->parts[i];
    if (one->layout == ZENPS_ROWS) {
      take_list(spec, one, &part);
      if (part.layout == ZENPS_ROWS && part.nnz == 0 && seed % 2) { /* sometimes left out */
        free(part.row_ids);
        free(part.values);
        continue;
      }
    } else {
      part.values = malloc(part.n_rows * each + 1);
      memcpy(part.values, (const char *)one->values + part.row_base * each, part.n_rows * each);
    }
    in->parts[n++] = part;
  }
  in->grad.n_parts = n;
}

static void free_arrays(const struct in_parts *parts, bool owned) {
  for (uint32_t i = 0; i < parts->grad.n_parts; i++) {
    if (!owned && parts->parts[i].layout == ZENPS_ROWS) continue;
    free(parts->parts[i].row_ids);
    free(parts->parts[i].values);
  }
}

static void give_arrays(const struct spec *spec, struct in_parts *out) {
  for (uint32_t i = 0; i < out->grad.n_parts; i++) {
    zenps_part_t *const part = &out->parts[i];
    if (part->layout == ZENPS_ROWS && !spec->own_arrays) continue;
    part->capacity = part->n_rows;
    part->values = malloc(part->n_rows * spec_row_bytes(spec) + 1);
    memset(part->values, 0xa5, part->n_rows * spec_row_bytes(spec) + 1);
    if (part->layout == ZENPS_ROWS) part->row_ids = malloc((part->n_rows + 1) * sizeof *part->row_ids);
  }
}

/* The parts as one dense array. */
static void *join(const struct spec *spec, const struct in_parts *out) {
  const size_t each = spec_row_bytes(spec);
  char *const dense = calloc(spec->rows, each);
  for (uint32_t i = 0; i < out->grad.n_parts; i++) {
    const zenps_part_t *const part = &out->parts[i];
    char *const to = dense + part->row_base * each;
    if (part->layout == ZENPS_DENSE) memcpy(to, part->values, part->n_rows * each);
    for (uint64_t k = 0; part->layout == ZENPS_ROWS && k < part->nnz; k++) {
      CHECK((uint64_t)part->row_ids[k] < part->n_rows && (k == 0 || part->row_ids[k - 1] < part->row_ids[k]));
      memcpy(to + (uint64_t)part->row_ids[k] * each, (const char *)part->values + k * each, each);
    }
  }
  return dense;
}

struct parts_case {
  struct spec spec;
  enum form in, out;
  bool copies;      /* stats tell of copies */
  bool counts_rows; /* the scheme knows which rows some rank had */
};

static void run_step(zenps_tensor_t *tensor, const struct parts_case *the, const struct rank *rank, uint64_t step) {
  const struct spec *const spec = &the->spec;
  zenps_grad_t one, joined;
  zenps_request_t *request;
  zenps_request_stats_t stats = {.struct_size = sizeof stats};
  struct in_parts in, out;
  grad_make(spec, rank->rank, step, &one);
  take(spec, &one, step * 31 + (uint64_t)rank->rank, the->in, &in);
  grad_free(&one);
  if (spec->in_place) {
    out = in;
    out.grad.parts = out.parts;
  } else {
    cut(spec, step * 77 + (uint64_t)rank->rank, the->out, &out);
    give_arrays(spec, &out);
  }
  CHECK_OK(zenps_allreduce(tensor, step, &in.grad, &out.grad, &request));
  CHECK_OK(zenps_wait(request, -1));
  CHECK_OK(zenps_request_stats(request, &stats));
  CHECK((stats.copied_bytes > 0) == the->copies);
  ZENPS_GRAD_INIT(&joined);
  joined.layout = ZENPS_DENSE;
  joined.values = join(spec, &out);
  joined.nnz = the->counts_rows ? out.grad.nnz : spec->rows;
  joined.contributors = out.grad.contributors;
  out_check(spec, rank->world, step, &joined);
  zenps_request_free(request);
  free(joined.values);
  if (!spec->in_place) free_arrays(&out, spec->own_arrays);
  free_arrays(&in, true);
}

static void rank_steps(struct rank *rank) {
  const struct parts_case *const the = rank->arg;
  rank_open(rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &the->spec);
  for (uint64_t step = 1; step <= STEPS; step++) run_step(tensor, the, rank, step);
  rank_close(rank);
}

static struct parts_case case_of(const char *scheme, enum form in, enum form out) {
  struct parts_case the = {
      .spec = {.rows = 5000, .width = 3, .dtype = ZENPS_F32, .density = 0.1}, .in = in, .out = out};
  the.counts_rows = strcmp(scheme, "balanced") == 0 || strcmp(scheme, "sparse-ps") == 0;
  the.spec.rows_in = in != DENSE;
  ZENPS_TENSOR_OPTIONS_INIT(&the.spec.options);
  the.spec.options.scheme = scheme;
  return the;
}

static void test_parts_are_read_where_they_are(void **state) {
  static const char *const schemes[] = {"balanced", "sparse-ps", "dense-ps"};
  (void)state;
  for (unsigned i = 0; i < sizeof schemes / sizeof schemes[0]; i++) {
    struct parts_case the = case_of(schemes[i], DENSE, DENSE);
    ranks_run(cluster_shared(), 3, rank_steps, &the, 0);
    the.spec.in_place = true;
    ranks_run(cluster_shared(), 3, rank_steps, &the, 0);
    the = case_of(schemes[i], LISTS, LISTS);
    the.spec.repeats = 3;
    ranks_run(cluster_shared(), 3, rank_steps, &the, 0);
    the.spec.own_arrays = true;
    the.copies = true;
    ranks_run(cluster_shared(), 3, rank_steps, &the, 0);
    the = case_of(schemes[i], MIXED, MIXED);
    the.copies = true;
    ranks_run(cluster_shared(), 3, rank_steps, &the, 0);
    the = case_of(schemes[i], LISTS, DENSE);
    ranks_run(cluster_shared(), 3, rank_steps, &the, 0);
  }
}

/* Several stripes, so that results are written while gradients are read; rows of one value. */
static void test_parts_of_a_large_tensor(void **state) {
  (void)state;
  for (unsigned in_place = 0; in_place < 2; in_place++) {
    struct parts_case the = case_of("balanced", DENSE, DENSE);
    the.spec.rows = 3u << 20;
    the.spec.width = 1;
    the.spec.density = 0.01;
    the.spec.in_place = in_place;
    ranks_run(cluster_shared(), 2, rank_steps, &the, 0);
  }
}

static void test_parts_are_copied_for_other_schemes(void **state) {
  static const char *const schemes[] = {"omnireduce", "ring", "recursive-doubling", "auto", "agsparse"};
  (void)state;
  for (unsigned i = 0; i < sizeof schemes / sizeof schemes[0]; i++) {
    for (enum form form = DENSE; form <= MIXED; form++) {
      struct parts_case the = case_of(schemes[i], form, form);
      if (strcmp(schemes[i], "ring") == 0 && form != DENSE) the.out = DENSE; /* it knows no rows */
      the.spec.few_values = true;                                            /* any order of sums has the same bits */
      the.copies = true;
      ranks_run(cluster_shared(), 3, rank_steps, &the, 0);
    }
  }
  struct parts_case the = case_of("balanced", LISTS, LISTS);
  the.spec.options.scheme = "balanced:partitioner=hierarchical";
  the.copies = true;
  ranks_run(cluster_shared(), 3, rank_steps, &the, 0);
}

/* ------------------------------------------------------------ refused */

static void expect_refusal(zenps_tensor_t *tensor, const zenps_grad_t *in, zenps_grad_t *out, zenps_status_t status,
                           const char *text) {
  zenps_request_t *request = NULL;
  CHECK_STATUS(zenps_allreduce(tensor, 1, in, out, &request), status);
  CHECK(request == NULL);
  CHECK_SAYS(zenps_last_error()->text, text);
}

static void rank_refusals(struct rank *rank) {
  const struct spec spec = {.rows = 100, .width = 2, .dtype = ZENPS_F32};
  float values[200] = {0};
  int64_t row_ids[4] = {0, 1, 2, 3};
  zenps_part_t good[2] = {{sizeof(zenps_part_t), 0, 40, ZENPS_DENSE, 0, 0, NULL, values},
                          {sizeof(zenps_part_t), 50, 50, ZENPS_ROWS, 4, 4, row_ids, values + 80}};
  zenps_part_t bad[2], out_parts[1] = {{sizeof(zenps_part_t), 0, 100, ZENPS_DENSE, 0, 0, NULL, values}};
  zenps_grad_t in, out;
  zenps_request_t *request;
  rank_open(rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &spec);
  ZENPS_GRAD_INIT(&in);
  ZENPS_GRAD_INIT(&out);
  in.parts = bad;
  in.n_parts = 2;
  out.parts = out_parts;
  out.n_parts = 1;
#define REFUSED(change, text)    \
  memcpy(bad, good, sizeof bad); \
  change;                        \
  expect_refusal(tensor, &in, &out, ZENPS_ERR_INVALID, (text))
  REFUSED(bad[1].row_base = 39, "in->parts[1] begins at row 39, but the one before ends at row 40");
  REFUSED(bad[1].n_rows = 51, "in->parts[1] is 51 rows from row 50 on, but the tensor has 100");
  REFUSED(bad[1].n_rows = UINT64_MAX, "rows from row 50 on, but the tensor has 100");
  REFUSED(bad[0].row_base = 101, "in->parts[0] is 40 rows from row 101 on");
  REFUSED(bad[0].struct_size = 8, "in->parts[0].struct_size is 8; it must be sizeof(zenps_part_t)");
  REFUSED(bad[0].layout = 7, "in->parts[0].layout is 7");
  REFUSED(bad[0].values = NULL, "in->parts[0].values is NULL; dense needs its 40 rows");
  REFUSED(bad[1].row_ids = NULL, "in->parts[1].nnz is 4, but row_ids or values is NULL");
  REFUSED(out_parts[0].values = NULL, "out->parts[0].values is NULL");
  out_parts[0].values = values;
  REFUSED((out_parts[0].layout = ZENPS_ROWS, out_parts[0].row_ids = NULL), "give both arrays, or none");
  out_parts[0].layout = ZENPS_DENSE;
#undef REFUSED
  memcpy(bad, good, sizeof bad);
  CHECK_STATUS(zenps_allgather(tensor, 1, &in, &out, &request), ZENPS_ERR_UNSUPPORTED);
  CHECK_SAYS(zenps_last_error()->text, "in is in parts: zenps_allgather() takes one list");
  const zenps_rows_t some = ZENPS_ROWS_RANGE(0, 10);
  CHECK_STATUS(zenps_reduce_scatter(tensor, 1, &in, &some, &out, &request), ZENPS_ERR_UNSUPPORTED);
  CHECK_SAYS(zenps_last_error()->text, "out is in parts, which take the whole sum");
  in.parts = NULL;
  expect_refusal(tensor, &in, &out, ZENPS_ERR_INVALID, "in->n_parts is 2, but parts is NULL");
  in.parts = bad;

  /* A row that its part does not have fails the step, on all ranks. */
  if (rank->rank == 1) row_ids[2] = 50;
  CHECK_OK(zenps_allreduce(tensor, 1, &in, &out, &request));
  CHECK_STATUS(zenps_wait(request, -1), ZENPS_ERR_INVALID);
  CHECK_SAYS(zenps_request_error(request)->text, "row number 50 at position 2 of 4 of part 1: it has rows 0 to 49");
  zenps_request_free(request);
  CHECK_OK(zenps_barrier(rank->zenps));
  rank_close(rank);
}

static void test_wrong_parts_are_refused(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 2, rank_refusals, NULL, 0);
}

/* A part of the result that is too small: named, with what all of them need. */
static void rank_short(struct rank *rank) {
  const struct spec spec = {.rows = 100, .width = 1, .dtype = ZENPS_F32};
  float values[100], got[100];
  int64_t ids[100];
  for (unsigned i = 0; i < 100; i++) values[i] = 1;
  zenps_part_t in_parts[1] = {{sizeof(zenps_part_t), 0, 100, ZENPS_DENSE, 0, 0, NULL, values}};
  zenps_part_t out_parts[2] = {{sizeof(zenps_part_t), 0, 30, ZENPS_ROWS, 0, 30, ids, got},
                               {sizeof(zenps_part_t), 30, 60, ZENPS_ROWS, 0, 59, ids + 30, got + 30}};
  zenps_grad_t in, out;
  zenps_request_t *request;
  rank_open(rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &spec);
  ZENPS_GRAD_INIT(&in);
  ZENPS_GRAD_INIT(&out);
  in.parts = in_parts;
  in.n_parts = 1;
  out.parts = out_parts;
  out.n_parts = 2;
  CHECK_OK(zenps_allreduce(tensor, 1, &in, &out, &request));
  CHECK_STATUS(zenps_wait(request, -1), ZENPS_ERR_TRUNCATED);
  CHECK(zenps_request_error(request)->needed == 100 && out_parts[0].nnz == 30 && out_parts[1].nnz == 60);
  CHECK_SAYS(zenps_request_error(request)->text, "part 1 of the result has 60 rows, but the caller's arrays hold 59");
  CHECK_STATUS(zenps_request_fetch(request, &out), ZENPS_ERR_UNSUPPORTED);
  CHECK_SAYS(zenps_last_error()->text, "out is in parts; the kept result is one list");
  zenps_grad_t kept;
  ZENPS_GRAD_INIT(&kept);
  kept.layout = ZENPS_ROWS;
  CHECK_OK(zenps_request_fetch(request, &kept));
  CHECK(kept.nnz == 100 && kept.row_ids[30] == 30 && kept.row_ids[99] == 99);
  zenps_request_free(request);
  out_parts[1].capacity = 60;
  CHECK_OK(zenps_allreduce(tensor, 2, &in, &out, &request));
  CHECK_OK(zenps_wait(request, -1));
  CHECK(out.nnz == 100 && out.contributors == rank->world && out_parts[1].nnz == 60 && ids[30] == 0 && ids[89] == 59 &&
        got[89] == (float)rank->world);
  zenps_request_free(request);
  rank_close(rank);
}

static void test_parts_that_are_too_small(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 2, rank_short, NULL, 0);
}

const struct CMUnitTest api_part_tests[] = {
    cmocka_unit_test(test_parts_are_read_where_they_are),      cmocka_unit_test(test_parts_of_a_large_tensor),
    cmocka_unit_test(test_parts_are_copied_for_other_schemes), cmocka_unit_test(test_wrong_parts_are_refused),
    cmocka_unit_test(test_parts_that_are_too_small),
};
const size_t n_api_part_tests = sizeof api_part_tests / sizeof api_part_tests[0];
