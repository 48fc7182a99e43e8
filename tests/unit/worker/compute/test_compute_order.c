/* Each instruction that ranks, cuts or joins rows against the slow and obvious way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/worker/compute/compute_rig.h"

static double magnitude(const struct compute_rig *rig, const struct compute_ref *ref, uint32_t i) {
  double greatest = 0;
  for (uint32_t j = 0; j < rig->compute.width; j++) greatest = fmax(greatest, fabs(ref->values[i][j]));
  return greatest;
}

/* Clears all but the rows that stay. */
static void drop(struct compute_ref *ref, uint32_t i) {
  ref->present[i] = false;
  memset(ref->values[i], 0, sizeof ref->values[i]);
}

static int descending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x < y) - (x > y);
}

static void check_order(struct compute_rig *rig, uint64_t lo, uint64_t hi) {
  struct compute_ref *const ref = compute_draw_in(rig, 0, lo, hi);
  const uint32_t m = (uint32_t)(hi - lo), k = compute_draw(rig, m + 2),
                 in = zps_program_recv(&rig->program, 0, 0, lo, hi);
  double sorted[ROWS_MAX] = {0};
  uint32_t z = 0;
  for (uint32_t i = 0; i < m; i++) {
    if (ref->present[i]) sorted[z++] = magnitude(rig, ref, i);
  }
  qsort(sorted, z, sizeof sorted[0], descending);
  const double kth = k > 0 && k <= z ? sorted[k - 1] : 0;

  zps_program_kth(&rig->program, &in, 1, k);
  struct zps_slice_view view = compute_run(rig);
  assert_true(compute_vector_at(&view, 0) == kth);
  zps_program_counts(&rig->program, &in, 1);
  view = compute_run(rig);
  assert_true(compute_vector_at(&view, 0) == z);

  struct compute_ref *const kept = malloc(sizeof *kept);
  *kept = *ref;
  for (uint32_t i = 0; i < m; i++) {
    if (magnitude(rig, kept, i) < kth) drop(kept, i);
  }
  zps_program_threshold(&rig->program, in, kth, 0);
  view = compute_run(rig);
  compute_check_rows(rig, &view, kept);
  zps_program_threshold(&rig->program, in, 2 * kth + 1, z); /* they are no more than that: all */
  view = compute_run(rig);
  compute_check_rows(rig, &view, ref);

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
  view = compute_run(rig);
  if (rig->compute.policy == ZPS_CODEC_AUTO || view.z < view.m) compute_check_rows(rig, &view, kept);
  free(kept);
  free(ref);
}

static void check_pieces(struct compute_rig *rig, uint64_t lo, uint64_t hi) {
  struct compute_ref *const ref = compute_draw_in(rig, 0, lo, hi);
  const uint32_t m = (uint32_t)(hi - lo), in = zps_program_recv(&rig->program, 0, 0, lo, hi);
  const uint32_t a = compute_draw(rig, m + 1), b = a + compute_draw(rig, m - a + 1);
  struct compute_ref *const piece = calloc(1, sizeof *piece);
  piece->lo = lo + a;
  piece->hi = lo + b;
  for (uint32_t i = a; i < b; i++) {
    piece->present[i - a] = ref->present[i];
    memcpy(piece->values[i - a], ref->values[i], sizeof piece->values[0]);
  }
  zps_program_cut(&rig->program, in, lo + a, lo + b);
  struct zps_slice_view view = compute_run(rig);
  compute_check_rows(rig, &view, piece);
  struct zps_compute_task task = zps_compute_task_of(&rig->program, rig->program.n_instrs - 1);
  struct zps_slice_view alias;
  task.ins = rig->ins;
  if (zps_compute_alias(&task, &alias)) {
    if (rig->compute.policy == ZPS_CODEC_AUTO && alias.m < m) compute_check_rows(rig, &alias, piece);
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
  view = compute_run(rig);
  compute_check_rows(rig, &view, piece);

  const uint32_t n = 1 + compute_draw(rig, 8);
  zps_program_splits(&rig->program, in, n);
  view = compute_run(rig);
  for (uint32_t i = 1; i < n; i++)
    assert_true(compute_vector_at(&view, i - 1) ==
                (double)(lo + (z > 0 ? rows[(uint64_t)z * i / n] : (uint64_t)m * i / n)));
  free(piece);
  free(ref);
}

static bool is_zero(const struct compute_ref *ref, uint64_t i) {
  for (unsigned j = 0; j < WIDTH_MAX; j++)
    if (ref->values[i][j] != 0) return false;
  return true;
}

/* Of a piece with all of its rows, rows of zeros are as good as absent, unless all of the output's are there. */
static void drop_zeros(const struct compute_rig *rig, const struct compute_ref *piece, struct compute_ref *all) {
  if (rig->compute.op == ZPS_OP_MAX || rig->compute.op == ZPS_OP_MIN) return;
  for (uint64_t row = piece->lo; row < piece->hi; row++)
    if (!piece->present[row - piece->lo]) return;
  for (uint64_t row = piece->lo; row < piece->hi; row++)
    if (is_zero(piece, row - piece->lo)) drop(all, (uint32_t)(row - all->lo));
}

static void check_join(struct compute_rig *rig, uint64_t lo, uint64_t hi) {
  struct compute_ref *const all = compute_draw_ref(rig, lo, hi);
  struct compute_ref *const piece = malloc(sizeof *piece);
  struct compute_ref *const few = malloc(sizeof *few); /* `all`, less rows that are as good as absent */
  uint32_t streams[3];
  uint64_t at = lo;
  bool adjoin = true;
  memcpy(few, all, sizeof *few);
  for (unsigned i = 0; i < 3; i++) {
    const uint64_t end = i == 2 ? hi : at + compute_draw(rig, (uint32_t)(hi - at) + 1);
    const bool whole = compute_draw(rig, 2) == 0; /* the stream's range may be wider than its rows' */
    *piece = (struct compute_ref){.lo = whole ? lo : at, .hi = whole ? hi : end};
    for (uint64_t row = at; row < end; row++) {
      piece->present[row - piece->lo] = all->present[row - lo];
      memcpy(piece->values[row - piece->lo], all->values[row - lo], sizeof piece->values[0]);
    }
    compute_put_in(rig, i, piece, (enum zps_codec)compute_draw(rig, ZPS_CODEC_COUNT));
    drop_zeros(rig, piece, few);
    adjoin &= piece->lo == at && piece->hi == end && rig->ins[i].view.z == end - at;
    streams[i] = zps_program_recv(&rig->program, 0, i, piece->lo, piece->hi);
    at = end;
  }
  zps_program_join(&rig->program, streams, 3, lo, hi);
  const struct zps_slice_view view = compute_run(rig);
  compute_check_rows(rig, &view, adjoin ? all : few);
  free(piece);
  free(few);
  free(all);
}

/* Rows of one stream that another one has too; and a stream's rows alone, of which none is zero where all are there. */
static void check_common(struct compute_rig *rig, uint64_t lo, uint64_t hi) {
  struct compute_ref *const ref = compute_draw_in(rig, 0, lo, hi), *const other = compute_draw_in(rig, 1, lo, hi);
  int64_t rows[ROWS_MAX];
  uint32_t next = 0;
  const uint32_t n = zps_compute_contributed(&rig->ins[0], rows);
  for (uint32_t i = 0; i < hi - lo; i++) {
    bool zero = rig->ins[0].view.z == rig->ins[0].view.m;
    for (uint32_t j = 0; j < rig->compute.width; j++) zero = zero && ref->values[i][j] == 0;
    if (ref->present[i] && !zero) assert_int_equal(rows[next++], (int64_t)(lo + i));
  }
  assert_int_equal(n, next);
  const uint32_t a = zps_program_recv(&rig->program, 0, 0, lo, hi), b = zps_program_recv(&rig->program, 0, 1, lo, hi);
  zps_program_common(&rig->program, a, b);
  const struct zps_slice_view view = compute_run(rig);
  for (uint32_t i = 0; i < hi - lo; i++)
    if (!other->present[i]) drop(ref, i);
  compute_check_rows(rig, &view, ref);
  free(other);
  free(ref);
}

static void test_common(void **state) {
  (void)state;
  compute_any_stream(check_common);
}

static void test_order(void **state) {
  (void)state;
  compute_any_stream(check_order);
}

static void test_pieces(void **state) {
  (void)state;
  compute_any_stream(check_pieces);
}

static void test_join(void **state) {
  (void)state;
  compute_any_stream(check_join);
}

static void test_join_refuses_what_does_not_ascend(void **state) {
  (void)state;
  struct compute_rig rig;
  compute_rig_init(&rig);
  rig.compute.width = 1;
  rig.compute.dtype = ZPS_DTYPE_F32;
  rig.compute.policy = ZPS_CODEC_AUTO;
  struct compute_ref *const ref = calloc(1, sizeof *ref);
  ref->hi = 10;
  ref->present[3] = true;
  const uint32_t ins[] = {zps_program_recv(&rig.program, 0, 0, 0, 10), zps_program_recv(&rig.program, 0, 1, 0, 10)};
  zps_program_join(&rig.program, ins, 2, 0, 10);
  compute_put_in(&rig, 0, ref, ZPS_CODEC_COO);
  compute_put_in(&rig, 1, ref, ZPS_CODEC_COO);
  struct zps_compute_task task = zps_compute_task_of(&rig.program, 2);
  struct zps_compute_out out;
  double room[64];
  task.ins = rig.ins;
  assert_in_range(zps_compute_bound(&rig.compute, &task), 0, sizeof room);
  assert_int_equal(zps_compute_run(&rig.compute, rig.scratch, &task, room, &out), ZPS_ERR_PROTOCOL);
  free(ref);
  compute_rig_fini(&rig);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_order),
      cmocka_unit_test(test_pieces),
      cmocka_unit_test(test_join),
      cmocka_unit_test(test_common),
      cmocka_unit_test(test_join_refuses_what_does_not_ascend),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
