#include "tests/unit/worker/compute/compute_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_ROUNDS = 400, REDZONE = 64 };

uint32_t compute_draw(struct compute_rig *rig, uint32_t below) {
  return (uint32_t)zps_rng_below(&rig->rng, below);
}

void compute_store(enum zps_dtype dtype, void *values, uint64_t i, double value) {
  if (dtype == ZPS_DTYPE_F32)
    ((float *)values)[i] = (float)value;
  else
    ((double *)values)[i] = value;
}

double compute_load(enum zps_dtype dtype, const void *values, uint64_t i) {
  return dtype == ZPS_DTYPE_F32 ? (double)((const float *)values)[i] : ((const double *)values)[i];
}

static double draw_value(struct compute_rig *rig) {
  static const double some[] = {0.0, -0.0, 1, -1, 0.5, -0.25, 3};
  if (compute_draw(rig, 4) == 0) return some[compute_draw(rig, sizeof some / sizeof some[0])];
  return (double)(float)(((int)compute_draw(rig, 20001) - 10000) / 7.0);
}

struct compute_ref *compute_draw_ref(struct compute_rig *rig, uint64_t lo, uint64_t hi) {
  static const uint32_t per_mille[] = {0, 10, 300, 600, 950, 1000};
  struct compute_ref *const ref = calloc(1, sizeof *ref);
  const uint32_t density = per_mille[compute_draw(rig, 6)];
  ref->lo = lo;
  ref->hi = hi;
  for (uint64_t i = 0; i < hi - lo; i++) {
    ref->present[i] = compute_draw(rig, 1000) < density;
    for (uint32_t j = 0; ref->present[i] && j < rig->compute.width; j++) ref->values[i][j] = draw_value(rig);
  }
  return ref;
}

void compute_put_in(struct compute_rig *rig, unsigned i, const struct compute_ref *ref, enum zps_codec codec) {
  const struct zps_compute *const compute = &rig->compute;
  const uint32_t m = (uint32_t)(ref->hi - ref->lo), width = compute->width;
  uint32_t ranks[ROWS_MAX], z = 0;
  free(rig->bytes[i]);
  rig->bytes[i] = calloc(1, (size_t)m * width * 8 + 8ull * m + 1024);
  for (uint32_t rank = 0; rank < m; rank++) {
    if (!ref->present[rank]) continue;
    for (uint32_t j = 0; j < width; j++)
      compute_store(compute->dtype, rig->bytes[i], (uint64_t)z * width + j, ref->values[rank][j]);
    ranks[z++] = rank;
  }
  const uint64_t values_bytes = (uint64_t)z * width * zps_dtype_size(compute->dtype);
  const uint64_t index_bytes = zps_codec_index_encode(codec, m, ranks, z, (char *)rig->bytes[i] + values_bytes);
  const struct zps_stream stream = {.kind = ZPS_STREAM_ROWS, .lo = ref->lo, .hi = ref->hi};
  const struct zps_compute_out out = {
      .codec = codec, .value_codec = ZPS_VALUES_RAW, .nnz = z, .len_bytes = values_bytes + index_bytes};
  rig->ins[i] = (struct zps_compute_in){ref->lo, ref->hi, zps_compute_view(compute, &stream, &out, rig->bytes[i])};
}

struct compute_ref *compute_draw_in(struct compute_rig *rig, unsigned i, uint64_t lo, uint64_t hi) {
  struct compute_ref *const ref = compute_draw_ref(rig, lo, hi);
  compute_put_in(rig, i, ref, (enum zps_codec)compute_draw(rig, ZPS_CODEC_COUNT));
  return ref;
}

struct zps_slice_view compute_run(struct compute_rig *rig) {
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

/* The codec that the form demands, or the policy. */
static void check_codec(struct compute_rig *rig, const struct zps_slice_view *view) {
  const uint64_t row_bytes = view->width * zps_dtype_size(view->dtype);
  if (rig->program.instrs[rig->program.n_instrs - 1].form == ZPS_FORM_BITS) {
    assert_true(view->codec == ZPS_CODEC_BITMAP || view->index_bytes == 0);
    assert_true(view->codec == ZPS_CODEC_BITMAP || view->z == 0 || view->z == view->m);
    return;
  }
  if (rig->compute.policy != ZPS_CODEC_AUTO) {
    assert_true(view->codec == ZPS_CODEC_COO || view->z == view->m);
    if (rig->compute.policy == ZPS_CODEC_PAPER && view->codec == ZPS_CODEC_COO)
      assert_true(view->z * (row_bytes + 4) <= view->m * row_bytes);
    return;
  }
  uint32_t ranks[ROWS_MAX];
  struct zps_index_cursor cursor;
  zps_index_cursor_init(&cursor, view);
  while (zps_index_cursor_read(&cursor, view->m, ranks + cursor.next, view->z - cursor.next) > 0) continue;
  uint64_t least;
  zps_codec_choose(zps_codec_push_set(ZPS_CODEC_AUTO), view->m, ranks, view->z, &least);
  assert_int_equal(view->index_bytes, least);
}

void compute_check_rows(struct compute_rig *rig, const struct zps_slice_view *view,
                        const struct compute_ref *expected) {
  const uint32_t m = (uint32_t)(expected->hi - expected->lo);
  bool got[ROWS_MAX] = {0};
  struct zps_index_cursor cursor;
  uint32_t rank;
  assert_int_equal(view->m, m);
  check_codec(rig, view);
  zps_index_cursor_init(&cursor, view);
  while (zps_index_cursor_read(&cursor, m, &rank, 1) > 0) {
    double room[WIDTH_MAX];
    const void *const values = zps_slice_values(view, cursor.next - 1, 1, room);
    got[rank] = true;
    for (uint32_t j = 0; j < view->width; j++) {
      const double value = compute_load(view->dtype, values, j);
      double want = 0;
      compute_store(view->dtype, &want, 0, expected->values[rank][j]);
      want = compute_load(view->dtype, &want, 0);
      assert_memory_equal(&value, &want, sizeof value);
    }
  }
  for (uint32_t i = 0; i < m; i++) assert_true(got[i] || !expected->present[i]);
  if (view->z < m)
    for (uint32_t i = 0; i < m; i++) assert_true(!got[i] || expected->present[i]);
}

double compute_vector_at(const struct zps_slice_view *view, uint32_t i) {
  double doubles[64];
  assert_int_equal(view->z, view->m);
  assert_in_range(view->m, i + 1, 64);
  zps_compute_doubles(view, doubles);
  return doubles[i];
}

void compute_rig_init(struct compute_rig *rig) {
  *rig = (struct compute_rig){0};
  rig->rng.state = 5;
  assert_int_equal(zps_compute_scratch_create(&rig->scratch), ZPS_OK);
  assert_int_equal(zps_own_create(&rig->own), ZPS_OK);
  rig->compute = (struct zps_compute){.op = ZPS_OP_SUM, .own = rig->own, .origin = {.seed = 1, .step = 2}};
}

void compute_rig_fini(struct compute_rig *rig) {
  for (unsigned i = 0; i < 4; i++) free(rig->bytes[i]);
  free(rig->out);
  zps_program_fini(&rig->program);
  zps_own_destroy(rig->own);
  zps_compute_scratch_destroy(rig->scratch);
}

void compute_any_stream(void (*check)(struct compute_rig *rig, uint64_t lo, uint64_t hi)) {
  struct compute_rig rig;
  compute_rig_init(&rig);
  for (unsigned i = 0; i < N_ROUNDS; i++) {
    zps_program_reset(&rig.program);
    rig.compute.width = 1 + compute_draw(&rig, WIDTH_MAX);
    rig.compute.dtype = compute_draw(&rig, 2) ? ZPS_DTYPE_F32 : ZPS_DTYPE_F64;
    rig.compute.policy = compute_draw(&rig, 2)   ? ZPS_CODEC_AUTO
                         : compute_draw(&rig, 2) ? ZPS_CODEC_PAPER
                                                 : ZPS_CODEC_COO_ONLY;
    const uint64_t lo = compute_draw(&rig, 2) * 12345;
    check(&rig, lo, lo + compute_draw(&rig, compute_draw(&rig, 4) ? ROWS_MAX : 4));
  }
  compute_rig_fini(&rig);
}
