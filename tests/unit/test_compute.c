/* Each instruction against the slow and obvious way, on random streams in every codec, dtype, width and policy; what
 * comes out is checked as a peer's would be, and fits its bound. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/rng.h"
#include "tests/support/oom.h"
#include "worker/schemes/compute.h"

enum { ROWS_MAX = 1500, WIDTH_MAX = 3, N_ROUNDS = 400, REDZONE = 64 };

/* Rows lo..hi-1; `values` are zero where no row is present. */
struct ref {
  uint64_t lo, hi;
  bool present[ROWS_MAX];
  double values[ROWS_MAX][WIDTH_MAX];
};

struct rig {
  struct zps_rng rng;
  struct zps_compute compute;
  struct zps_compute_scratch *scratch;
  struct zps_program program;
  struct zps_own *own;
  struct zps_compute_in ins[4];
  void *bytes[4]; /* theirs */
  void *out;
};

static uint32_t draw(struct rig *rig, uint32_t below) {
  return (uint32_t)zps_rng_below(&rig->rng, below);
}

static void store(enum zps_dtype dtype, void *values, uint64_t i, double value) {
  if (dtype == ZPS_DTYPE_F32)
    ((float *)values)[i] = (float)value;
  else
    ((double *)values)[i] = value;
}

static double load(enum zps_dtype dtype, const void *values, uint64_t i) {
  return dtype == ZPS_DTYPE_F32 ? (double)((const float *)values)[i] : ((const double *)values)[i];
}

static double draw_value(struct rig *rig) {
  static const double some[] = {0.0, -0.0, 1, -1, 0.5, -0.25, 3};
  if (draw(rig, 4) == 0) return some[draw(rig, sizeof some / sizeof some[0])];
  return (double)(float)(((int)draw(rig, 20001) - 10000) / 7.0);
}

static struct ref *draw_ref(struct rig *rig, uint64_t lo, uint64_t hi) {
  static const uint32_t per_mille[] = {0, 10, 300, 600, 950, 1000};
  struct ref *const ref = calloc(1, sizeof *ref);
  const uint32_t density = per_mille[draw(rig, 6)];
  ref->lo = lo;
  ref->hi = hi;
  for (uint64_t i = 0; i < hi - lo; i++) {
    ref->present[i] = draw(rig, 1000) < density;
    for (uint32_t j = 0; ref->present[i] && j < rig->compute.width; j++) ref->values[i][j] = draw_value(rig);
  }
  return ref;
}

/* Codes a reference stream as input `i`. */
static void put_in(struct rig *rig, unsigned i, const struct ref *ref, enum zps_codec codec) {
  const struct zps_compute *const compute = &rig->compute;
  const uint32_t m = (uint32_t)(ref->hi - ref->lo), width = compute->width;
  uint32_t ranks[ROWS_MAX], z = 0;
  free(rig->bytes[i]);
  rig->bytes[i] = calloc(1, (size_t)m * width * 8 + 8ull * m + 1024);
  for (uint32_t rank = 0; rank < m; rank++) {
    if (!ref->present[rank]) continue;
    for (uint32_t j = 0; j < width; j++)
      store(compute->dtype, rig->bytes[i], (uint64_t)z * width + j, ref->values[rank][j]);
    ranks[z++] = rank;
  }
  const uint64_t values_bytes = (uint64_t)z * width * zps_dtype_size(compute->dtype);
  const uint64_t index_bytes = zps_codec_index_encode(codec, m, ranks, z, (char *)rig->bytes[i] + values_bytes);
  const struct zps_stream stream = {.kind = ZPS_STREAM_ROWS, .lo = ref->lo, .hi = ref->hi};
  const struct zps_compute_out out = {
      .codec = codec, .value_codec = ZPS_VALUES_RAW, .nnz = z, .len_bytes = values_bytes + index_bytes};
  rig->ins[i] = (struct zps_compute_in){ref->lo, ref->hi, zps_compute_view(compute, &stream, &out, rig->bytes[i])};
}

static struct ref *draw_in(struct rig *rig, unsigned i, uint64_t lo, uint64_t hi) {
  struct ref *const ref = draw_ref(rig, lo, hi);
  put_in(rig, i, ref, (enum zps_codec)draw(rig, ZPS_CODEC_COUNT));
  return ref;
}

/* Carries out the program's last instruction on the inputs. */
static struct zps_slice_view run(struct rig *rig) {
  assert_int_equal(rig->program.code, ZPS_OK);
  const struct zps_compute *const compute = &rig->compute;
  struct zps_compute_task task = zps_compute_task_of(&rig->program, rig->program.n_instrs - 1);
  task.ins = rig->ins;
  const uint64_t bound = zps_compute_bound(compute, &task);
  struct zps_compute_out out;
  free(rig->out);
  rig->out = malloc(bound + REDZONE);
  memset(rig->out, 0x5a, bound + REDZONE);
  assert_int_equal(zps_compute_run(compute, rig->scratch, &task, rig->out, &out), ZPS_OK);
  assert_true(out.len_bytes <= bound);
  for (unsigned i = 0; i < REDZONE; i++) assert_int_equal(((unsigned char *)rig->out)[bound + i], 0x5a);
  struct zps_slice_view view;
  struct zps_error error = {0};
  const zps_err_t code = zps_slice_view_init(
      &view, out.codec, (uint32_t)(task.out.hi - task.out.lo), out.nnz, zps_compute_width(compute, task.out.kind),
      zps_compute_dtype(compute, task.out.kind), out.value_codec, rig->out, out.len_bytes, &error);
  if (code != ZPS_OK) fail_msg("%s", error.text);
  const struct zps_slice_view own = zps_compute_view(compute, &task.out, &out, rig->out);
  assert_int_equal(own.z, view.z);
  assert_int_equal(own.index_bytes, view.index_bytes);
  return view;
}

/* The codec that the policy demands. */
static void check_codec(struct rig *rig, const struct zps_slice_view *view) {
  const uint64_t row_bytes = view->width * zps_dtype_size(view->dtype);
  if (rig->compute.policy == ZPS_CODEC_PAPER) {
    assert_true(view->codec == ZPS_CODEC_COO || view->z == view->m);
    if (view->codec == ZPS_CODEC_COO) assert_true(view->z * (row_bytes + 4) <= view->m * row_bytes);
    return;
  }
  uint32_t ranks[ROWS_MAX];
  struct zps_rank_cursor cursor;
  zps_rank_cursor_init(&cursor, view);
  while (zps_rank_cursor_read(&cursor, view->m, ranks + cursor.next, view->z - cursor.next) > 0) continue;
  uint64_t least;
  zps_codec_choose(zps_codec_push_set(ZPS_CODEC_AUTO), view->m, ranks, view->z, &least);
  assert_int_equal(view->index_bytes, least);
}

/* The same rows with the same bits (-0.0 differs from +0.0). In the paper's policy all rows may be there. */
static void check_rows(struct rig *rig, const struct zps_slice_view *view, const struct ref *expected) {
  const uint32_t m = (uint32_t)(expected->hi - expected->lo);
  bool got[ROWS_MAX] = {0};
  struct zps_rank_cursor cursor;
  uint32_t rank;
  assert_int_equal(view->m, m);
  check_codec(rig, view);
  zps_rank_cursor_init(&cursor, view);
  while (zps_rank_cursor_read(&cursor, m, &rank, 1) > 0) {
    double room[WIDTH_MAX];
    const void *const values = zps_slice_values(view, cursor.next - 1, 1, room);
    got[rank] = true;
    for (uint32_t j = 0; j < view->width; j++) {
      const double value = load(view->dtype, values, j);
      double want = 0;
      store(view->dtype, &want, 0, expected->values[rank][j]);
      want = load(view->dtype, &want, 0);
      assert_memory_equal(&value, &want, sizeof value);
    }
  }
  for (uint32_t i = 0; i < m; i++) assert_true(got[i] || !expected->present[i]);
  if (view->z < m)
    for (uint32_t i = 0; i < m; i++) assert_true(!got[i] || expected->present[i]);
}

static double vector_at(const struct zps_slice_view *view, uint32_t i) {
  double doubles[64];
  assert_int_equal(view->z, view->m);
  assert_in_range(view->m, i + 1, 64);
  zps_compute_doubles(view, doubles);
  return doubles[i];
}

static void check_sum(struct rig *rig, uint64_t lo, uint64_t hi) {
  const uint32_t n = 1 + draw(rig, 4);
  const bool dense = draw(rig, 3) == 0;
  struct ref *const expected = calloc(1, sizeof *expected);
  uint32_t streams[4];
  expected->lo = lo;
  expected->hi = hi;
  for (uint32_t i = 0; i < hi - lo; i++) expected->present[i] = dense;
  for (uint32_t k = 0; k < n; k++) {
    struct ref *const ref = draw_in(rig, k, lo, hi);
    streams[k] = zps_program_recv(&rig->program, 0, k, lo, hi);
    for (uint32_t i = 0; i < hi - lo; i++) {
      if (!ref->present[i]) continue;
      expected->present[i] = true;
      for (uint32_t j = 0; j < rig->compute.width; j++) {
        const double sum = expected->values[i][j] + ref->values[i][j];
        expected->values[i][j] = rig->compute.dtype == ZPS_DTYPE_F32 ? (double)(float)sum : sum;
      }
    }
    free(ref);
  }
  zps_program_sum(&rig->program, streams, n, dense);
  const struct zps_slice_view view = run(rig);
  check_rows(rig, &view, expected);
  if (dense) assert_int_equal(view.z, view.m);
  free(expected);
}

static double magnitude(const struct rig *rig, const struct ref *ref, uint32_t i) {
  double greatest = 0;
  for (uint32_t j = 0; j < rig->compute.width; j++) greatest = fmax(greatest, fabs(ref->values[i][j]));
  return greatest;
}

/* Clears all but the rows that stay. */
static void drop(struct ref *ref, uint32_t i) {
  ref->present[i] = false;
  memset(ref->values[i], 0, sizeof ref->values[i]);
}

static int descending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x < y) - (x > y);
}

static void check_order(struct rig *rig, uint64_t lo, uint64_t hi) {
  struct ref *const ref = draw_in(rig, 0, lo, hi);
  const uint32_t m = (uint32_t)(hi - lo), k = draw(rig, m + 2), in = zps_program_recv(&rig->program, 0, 0, lo, hi);
  double sorted[ROWS_MAX] = {0};
  uint32_t z = 0;
  for (uint32_t i = 0; i < m; i++) {
    if (ref->present[i]) sorted[z++] = magnitude(rig, ref, i);
  }
  qsort(sorted, z, sizeof sorted[0], descending);
  const double kth = k > 0 && k <= z ? sorted[k - 1] : 0;

  zps_program_kth(&rig->program, &in, 1, k);
  struct zps_slice_view view = run(rig);
  assert_true(vector_at(&view, 0) == kth);
  zps_program_counts(&rig->program, &in, 1);
  view = run(rig);
  assert_true(vector_at(&view, 0) == z);

  struct ref *const kept = malloc(sizeof *kept);
  *kept = *ref;
  for (uint32_t i = 0; i < m; i++) {
    if (magnitude(rig, kept, i) < kth) drop(kept, i);
  }
  zps_program_threshold(&rig->program, in, kth, 0);
  view = run(rig);
  check_rows(rig, &view, kept);
  zps_program_threshold(&rig->program, in, 2 * kth + 1, z); /* they are no more than that: all */
  view = run(rig);
  check_rows(rig, &view, ref);

  *kept = *ref;
  uint32_t n_equal = k;
  for (uint32_t i = 0; i < z; i++) n_equal -= k > 0 && k <= z && sorted[i] > kth;
  for (uint32_t i = 0; i < m; i++) {
    const double here = magnitude(rig, kept, i);
    if (here > kth && k > 0) continue;
    if (here == kth && here > 0 && n_equal > 0 && k > 0 && k <= z)
      n_equal--;
    else
      drop(kept, i);
  }
  zps_program_top(&rig->program, in, k);
  view = run(rig);
  if (rig->compute.policy == ZPS_CODEC_AUTO || view.z < view.m) check_rows(rig, &view, kept);
  free(kept);
  free(ref);
}

static void check_pieces(struct rig *rig, uint64_t lo, uint64_t hi) {
  struct ref *const ref = draw_in(rig, 0, lo, hi);
  const uint32_t m = (uint32_t)(hi - lo), in = zps_program_recv(&rig->program, 0, 0, lo, hi);
  const uint32_t a = draw(rig, m + 1), b = a + draw(rig, m - a + 1);
  struct ref *const piece = calloc(1, sizeof *piece);
  piece->lo = lo + a;
  piece->hi = lo + b;
  for (uint32_t i = a; i < b; i++) {
    piece->present[i - a] = ref->present[i];
    memcpy(piece->values[i - a], ref->values[i], sizeof piece->values[0]);
  }
  zps_program_cut(&rig->program, in, lo + a, lo + b);
  struct zps_slice_view view = run(rig);
  check_rows(rig, &view, piece);
  struct zps_compute_task task = zps_compute_task_of(&rig->program, rig->program.n_instrs - 1);
  struct zps_slice_view alias;
  task.ins = rig->ins;
  if (zps_compute_alias(&task, &alias)) {
    if (rig->compute.policy == ZPS_CODEC_AUTO && alias.m < m) check_rows(rig, &alias, piece);
    assert_true(alias.values >= rig->ins[0].view.values || alias.z == 0);
  } else {
    assert_true(rig->ins[0].view.z < m && b - a < m);
  }

  *piece = *ref;
  uint32_t z = 0, rows[ROWS_MAX];
  for (uint32_t i = 0; i < m; i++) {
    if (!ref->present[i]) continue;
    if (z < a || z >= b) drop(piece, i);
    rows[z++] = i;
  }
  zps_program_take(&rig->program, in, a, b);
  view = run(rig);
  check_rows(rig, &view, piece);

  const uint32_t n = 1 + draw(rig, 8);
  zps_program_splits(&rig->program, in, n);
  view = run(rig);
  for (uint32_t i = 1; i < n; i++)
    assert_true(vector_at(&view, i - 1) == (double)(lo + (z > 0 ? rows[(uint64_t)z * i / n] : (uint64_t)m * i / n)));
  free(piece);
  free(ref);
}

static void check_join(struct rig *rig, uint64_t lo, uint64_t hi) {
  struct ref *const all = draw_ref(rig, lo, hi);
  struct ref *const piece = malloc(sizeof *piece);
  uint32_t streams[3];
  uint64_t at = lo;
  for (unsigned i = 0; i < 3; i++) {
    const uint64_t end = i == 2 ? hi : at + draw(rig, (uint32_t)(hi - at) + 1);
    const bool whole = draw(rig, 2) == 0; /* the stream's range may be wider than its rows' */
    *piece = (struct ref){.lo = whole ? lo : at, .hi = whole ? hi : end};
    for (uint64_t row = at; row < end; row++) {
      piece->present[row - piece->lo] = all->present[row - lo];
      memcpy(piece->values[row - piece->lo], all->values[row - lo], sizeof piece->values[0]);
    }
    put_in(rig, i, piece, (enum zps_codec)draw(rig, ZPS_CODEC_COUNT));
    streams[i] = zps_program_recv(&rig->program, 0, i, piece->lo, piece->hi);
    at = end;
  }
  zps_program_join(&rig->program, streams, 3, lo, hi);
  const struct zps_slice_view view = run(rig);
  check_rows(rig, &view, all);
  free(piece);
  free(all);
}

static void check_own(struct rig *rig, uint64_t hi) {
  struct ref *const ref = draw_ref(rig, 0, hi);
  const struct zps_compute *const compute = &rig->compute;
  const uint32_t width = compute->width;
  int64_t rows[ROWS_MAX];
  double values[ROWS_MAX * WIDTH_MAX];
  const bool coo = draw(rig, 2) == 0, dense = draw(rig, 2) == 0;
  struct zps_own_input input = {.n_rows = hi, .width = width, .dtype = compute->dtype, .values = values};
  for (uint64_t at = hi; at > 0; at--) { /* COO: descending */
    const uint64_t row = at - 1, to = coo ? input.n_entries : row;
    bool zero = true;
    for (uint32_t j = 0; j < width; j++) zero = zero && ref->values[row][j] == 0;
    if (zero) {
      ref->present[row] = false;
      if (!dense || coo) memset(ref->values[row], 0, sizeof ref->values[row]);
    }
    if (coo && zero) continue;
    rows[input.n_entries++] = (int64_t)row;
    for (uint32_t j = 0; j < width; j++) store(compute->dtype, values, to * width + j, ref->values[row][j]);
  }
  if (coo) input.rows = rows;
  const uint64_t a = draw(rig, (uint32_t)hi + 1), b = a + draw(rig, (uint32_t)(hi - a) + 1);
  struct ref *const piece = calloc(1, sizeof *piece);
  piece->lo = a;
  piece->hi = b;
  for (uint64_t row = a; row < b; row++) {
    piece->present[row - a] = ref->present[row] || dense;
    memcpy(piece->values[row - a], ref->values[row], sizeof piece->values[0]);
  }
  zps_program_own(&rig->program, a, b, dense);
  const bool scan = zps_own_must_scan(&rig->program, &input);
  assert_int_equal(scan, !dense || coo);
  assert_int_equal(zps_own_begin(rig->own, &input, scan, NULL, NULL), ZPS_OK);
  const struct zps_slice_view view = run(rig);
  check_rows(rig, &view, piece);
  if (dense) assert_int_equal(view.z, view.m);
  free(piece);
  free(ref);
}

static void check_narrow(struct rig *rig, uint64_t lo, uint64_t hi) {
  struct ref *const ref = draw_in(rig, 0, lo, hi);
  const uint32_t m = (uint32_t)(hi - lo), width = rig->compute.width, bits = 2u << draw(rig, 3);
  const uint32_t in = zps_program_recv(&rig->program, 0, 0, lo, hi);
  zps_program_narrow(&rig->program, in, bits);
  const struct zps_slice_view view = run(rig);
  assert_int_equal(view.z, m);
  assert_int_equal(zps_values_level_bits(view.value_codec), bits);
  double all[ROWS_MAX * WIDTH_MAX], coded[ROWS_MAX * WIDTH_MAX + 64];
  for (uint32_t i = 0; i < m * width; i++) store(rig->compute.dtype, all, i, ref->values[i / width][i % width]);
  zps_values_encode(view.value_codec, rig->compute.dtype, all, (uint64_t)m * width,
                    zps_values_key(&rig->compute.origin, (uint32_t)lo), coded);
  assert_memory_equal(view.values, coded, zps_values_bytes(view.value_codec, rig->compute.dtype, (uint64_t)m * width));
  free(ref);
}

static void check_result(struct rig *rig, uint64_t lo, uint64_t hi) {
  struct ref *const ref = draw_in(rig, 0, lo, hi);
  const enum zps_dtype dtype = rig->compute.dtype;
  const uint32_t width = rig->compute.width, m = (uint32_t)(hi - lo);
  const unsigned divisor = 1 + draw(rig, 3);
  double dense[ROWS_MAX * WIDTH_MAX] = {0}, values[ROWS_MAX * WIDTH_MAX], factor = 1.0 / divisor, room;
  int64_t rows[ROWS_MAX];
  store(dtype, &room, 0, factor);
  factor = load(dtype, &room, 0);
  zps_compute_result_dense(&rig->ins[0], divisor, (char *)dense - lo * width * zps_dtype_size(dtype));
  const bool skip_zeros = draw(rig, 2) == 0;
  const uint32_t n = zps_compute_result_rows(&rig->ins[0], divisor, skip_zeros, rows, values);
  uint32_t next = 0;
  for (uint32_t i = 0; i < m; i++) {
    bool zero = true;
    for (uint32_t j = 0; j < width; j++) zero = zero && ref->values[i][j] == 0;
    const bool listed = ref->present[i] && !(skip_zeros && zero);
    if (listed) assert_int_equal(rows[next], (int64_t)(lo + i));
    for (uint32_t j = 0; j < width; j++) {
      store(dtype, &room, 0, divisor == 1 ? ref->values[i][j] : ref->values[i][j] * factor);
      const double want = load(dtype, &room, 0);
      assert_true(load(dtype, dense, (uint64_t)i * width + j) == want);
      if (listed) assert_true(load(dtype, values, (uint64_t)next * width + j) == want);
    }
    next += listed;
  }
  assert_int_equal(n, next);
  free(ref);
}

static void rig_init(struct rig *rig) {
  *rig = (struct rig){0};
  rig->rng.state = 5;
  assert_int_equal(zps_compute_scratch_create(&rig->scratch), ZPS_OK);
  assert_int_equal(zps_own_create(&rig->own), ZPS_OK);
  rig->compute = (struct zps_compute){.op = ZPS_OP_SUM, .own = rig->own, .origin = {.seed = 1, .step = 2}};
}

static void rig_fini(struct rig *rig) {
  for (unsigned i = 0; i < 4; i++) free(rig->bytes[i]);
  free(rig->out);
  zps_program_fini(&rig->program);
  zps_own_destroy(rig->own);
  zps_compute_scratch_destroy(rig->scratch);
}

static void any_stream(void (*check)(struct rig *rig, uint64_t lo, uint64_t hi)) {
  struct rig rig;
  rig_init(&rig);
  for (unsigned i = 0; i < N_ROUNDS; i++) {
    zps_program_reset(&rig.program);
    rig.compute.width = 1 + draw(&rig, WIDTH_MAX);
    rig.compute.dtype = draw(&rig, 2) ? ZPS_DTYPE_F32 : ZPS_DTYPE_F64;
    rig.compute.policy = draw(&rig, 2) ? ZPS_CODEC_AUTO : ZPS_CODEC_PAPER;
    const uint64_t lo = draw(&rig, 2) * 12345;
    check(&rig, lo, lo + draw(&rig, draw(&rig, 4) ? ROWS_MAX : 4));
  }
  rig_fini(&rig);
}

static void own_at_zero(struct rig *rig, uint64_t lo, uint64_t hi) {
  check_own(rig, hi - lo + 1);
}

static void test_sum(void **state) {
  (void)state;
  any_stream(check_sum);
}

static void test_order(void **state) {
  (void)state;
  any_stream(check_order);
}

static void test_pieces(void **state) {
  (void)state;
  any_stream(check_pieces);
}

static void test_join(void **state) {
  (void)state;
  any_stream(check_join);
}

static void test_own(void **state) {
  (void)state;
  any_stream(own_at_zero);
}

static void test_narrow(void **state) {
  (void)state;
  any_stream(check_narrow);
}

static void test_result(void **state) {
  (void)state;
  any_stream(check_result);
}

static void test_join_refuses_what_does_not_ascend(void **state) {
  (void)state;
  struct rig rig;
  rig_init(&rig);
  rig.compute.width = 1;
  rig.compute.dtype = ZPS_DTYPE_F32;
  rig.compute.policy = ZPS_CODEC_AUTO;
  struct ref *const ref = calloc(1, sizeof *ref);
  ref->hi = 10;
  ref->present[3] = true;
  const uint32_t ins[] = {zps_program_recv(&rig.program, 0, 0, 0, 10), zps_program_recv(&rig.program, 0, 1, 0, 10)};
  zps_program_join(&rig.program, ins, 2, 0, 10);
  put_in(&rig, 0, ref, ZPS_CODEC_COO);
  put_in(&rig, 1, ref, ZPS_CODEC_COO);
  struct zps_compute_task task = zps_compute_task_of(&rig.program, 2);
  struct zps_compute_out out;
  double room[64];
  task.ins = rig.ins;
  assert_in_range(zps_compute_bound(&rig.compute, &task), 0, sizeof room);
  assert_int_equal(zps_compute_run(&rig.compute, rig.scratch, &task, room, &out), ZPS_ERR_PROTOCOL);
  free(ref);
  rig_fini(&rig);
}

static void test_vectors(void **state) {
  (void)state;
  struct rig rig;
  rig_init(&rig);
  rig.compute.op = ZPS_OP_MEAN;
  const double doubles[] = {1.5, -2, 1e300};
  zps_program_vector(&rig.program, doubles, 3);
  struct zps_slice_view view = run(&rig);
  double copy[3];
  memcpy(copy, doubles, sizeof copy);
  zps_compute_doubles(&view, copy);
  assert_memory_equal(copy, doubles, sizeof copy);
  view.values = copy;
  rig.ins[0] = rig.ins[1] = (struct zps_compute_in){0, 3, view};
  const uint32_t ins[] = {0, 0};
  zps_program_sum(&rig.program, ins, 2, false);
  view = run(&rig);
  for (uint32_t i = 0; i < 3; i++) assert_true(vector_at(&view, i) == 2 * doubles[i]);
  rig_fini(&rig);
}

static zps_err_t make_scratch(void *ctx) {
  return zps_compute_scratch_create(ctx);
}

static void drop_scratch(void *ctx) {
  zps_compute_scratch_destroy(*(struct zps_compute_scratch **)ctx);
}

static zps_err_t make_own(void *ctx) {
  return zps_own_create(ctx);
}

static void drop_own(void *ctx) {
  zps_own_destroy(*(struct zps_own **)ctx);
}

static void test_oom(void **state) {
  (void)state;
  struct zps_compute_scratch *scratch = NULL;
  struct zps_own *own = NULL;
  oom_sweep(make_scratch, drop_scratch, &scratch, 2);
  oom_sweep(make_own, drop_own, &own, 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_sum),     cmocka_unit_test(test_order),
      cmocka_unit_test(test_pieces),  cmocka_unit_test(test_join),
      cmocka_unit_test(test_own),     cmocka_unit_test(test_narrow),
      cmocka_unit_test(test_result),  cmocka_unit_test(test_join_refuses_what_does_not_ascend),
      cmocka_unit_test(test_vectors), cmocka_unit_test(test_oom),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
