/* Programs: their contents and refusals; and runs of them: each instruction is given out once, when its inputs are
 * there, in any order of events. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/hash.h"
#include "tests/support/oom.h"
#include "worker/schemes/run.h"

enum { ROWS = 100 };

static void test_builds_streams(void **state) {
  (void)state;
  struct zps_program program = {0};
  const double doubles[] = {1, 2, 3};
  const uint32_t own = zps_program_own(&program, 10, 50, ZPS_FORM_ALL);
  const uint32_t got = zps_program_recv(&program, 3, 7, 10, 50);
  const uint32_t ins[] = {own, got};
  const uint32_t sum = zps_program_sum(&program, ins, 2, ZPS_FORM_SPARSE);
  const uint32_t cut = zps_program_cut(&program, sum, 20, 20);
  const uint32_t vector = zps_program_vector(&program, doubles, 3);
  const uint32_t splits = zps_program_splits(&program, sum, 4);
  zps_program_send(&program, sum, 3, 8);
  zps_program_call(&program, &splits, 1, 2);
  zps_program_result(&program, sum);
  assert_int_equal(program.code, ZPS_OK);
  assert_int_equal(program.n_instrs, 9);
  const struct zps_stream *const streams = program.streams;
  assert_int_equal(streams[sum].lo, 10);
  assert_int_equal(streams[sum].hi, 50);
  assert_int_equal(streams[sum].writer, 2);
  assert_int_equal(streams[sum].n_readers, 4);
  assert_int_equal(streams[cut].lo, 20);
  assert_int_equal(streams[cut].hi, 20);
  assert_int_equal(streams[vector].kind, ZPS_STREAM_VECTOR);
  assert_int_equal(streams[vector].hi, 3);
  assert_int_equal(streams[splits].hi, 3);
  assert_memory_equal(program.doubles + program.instrs[streams[vector].writer].from, doubles, sizeof doubles);
  const struct zps_instr *const instr = &program.instrs[2];
  assert_int_equal(instr->type, ZPS_INSTR_SUM);
  assert_int_equal(instr->n_in, 2);
  assert_memory_equal(zps_instr_ins(&program, instr), ins, sizeof ins);
  assert_int_equal(program.instrs[0].form, ZPS_FORM_ALL);
  assert_int_equal(instr->form, ZPS_FORM_SPARSE);
  zps_program_reset(&program);
  assert_int_equal(program.n_instrs, 0);
  assert_int_equal(zps_program_own(&program, 0, ROWS, ZPS_FORM_SPARSE), 0);
  assert_int_equal(program.streams[0].n_readers, 0);
  zps_program_fini(&program);
}

static void refused(struct zps_program *program) {
  assert_int_equal(program->code, ZPS_ERR_INTERNAL);
  const uint32_t n = program->n_instrs;
  assert_int_equal(zps_program_own(program, 0, 1, ZPS_FORM_SPARSE), ZPS_STREAM_NONE);
  assert_int_equal(program->n_instrs, n);
  zps_program_reset(program);
  assert_int_equal(zps_program_own(program, 0, ROWS, ZPS_FORM_SPARSE), 0);
  assert_int_equal(zps_program_own(program, 0, ROWS / 2, ZPS_FORM_SPARSE), 1);
  assert_int_equal(zps_program_recv_vector(program, 1, 1, 2), 2);
}

static void test_refuses_what_cannot_be(void **state) {
  (void)state;
  struct zps_program program = {.code = ZPS_ERR_INTERNAL};
  refused(&program);
  const uint32_t differ[] = {0, 1}, mixed[] = {2, 0};
  zps_program_own(&program, 2, 1, ZPS_FORM_SPARSE);
  refused(&program);
  zps_program_own(&program, 0, 1ull << 32, ZPS_FORM_SPARSE);
  refused(&program);
  zps_program_send(&program, 3, 0, 0);
  refused(&program);
  zps_program_sum(&program, differ, 0, ZPS_FORM_SPARSE);
  refused(&program);
  zps_program_sum(&program, differ, 2, ZPS_FORM_SPARSE);
  refused(&program);
  zps_program_sum(&program, mixed, 2, ZPS_FORM_SPARSE);
  refused(&program);
  zps_program_cut(&program, 1, 0, ROWS);
  refused(&program);
  zps_program_join(&program, differ, 2, 0, ROWS / 2);
  refused(&program);
  zps_program_join_all(&program, differ, 2); /* they do not adjoin */
  refused(&program);
  zps_program_take(&program, 0, 2, 1);
  refused(&program);
  zps_program_top(&program, 2, 1);
  refused(&program);
  zps_program_narrow(&program, 0, 1, ZPS_FORM_ALL); /* raw */
  refused(&program);
  zps_program_narrow(&program, 0, 7, ZPS_FORM_SPARSE);
  refused(&program);
  zps_program_call(&program, differ, 1, 0);
  refused(&program);
  zps_program_splits(&program, 0, 0);
  refused(&program);
  zps_program_result(&program, ZPS_STREAM_NONE);
  refused(&program);
  zps_program_fini(&program);
}

static void test_names(void **state) {
  (void)state;
  for (unsigned type = 0; type <= ZPS_INSTR_RESULT; type++) {
    assert_string_not_equal(zps_instr_name((enum zps_instr_type)type), "?");
    for (unsigned other = 0; other < type; other++)
      assert_string_not_equal(zps_instr_name((enum zps_instr_type)type), zps_instr_name((enum zps_instr_type)other));
  }
  assert_string_equal(zps_instr_name((enum zps_instr_type)99), "?");
}

static uint64_t draw(uint64_t *seed, uint64_t below) {
  *seed = zps_hash_mix64(*seed + 0x9e3779b97f4a7c15u);
  return *seed % below;
}

/* Some instructions on streams that are there or not yet; RECVs of messages `tag` on. */
static void add_some(struct zps_program *program, uint64_t *seed, uint32_t *tag) {
  for (uint64_t n = 1 + draw(seed, 12); n > 0; n--) {
    const uint32_t ins[] = {(uint32_t)draw(seed, program->n_streams), (uint32_t)draw(seed, program->n_streams)};
    const bool mixed = program->streams[ins[0]].kind != program->streams[ins[1]].kind;
    switch (draw(seed, 5)) {
      case 0:
        zps_program_recv(program, (uint32_t)draw(seed, 3), (*tag)++, 0, ROWS);
        break;
      case 1:
        zps_program_send(program, ins[0], 0, 0);
        break;
      default:
        zps_program_sum(program, ins, mixed ? 1 : 1 + (uint32_t)draw(seed, 2), ZPS_FORM_SPARSE);
    }
  }
}

/* Carries out a random program in a random order, growing it from each CALL. */
static void run_any_order(struct zps_program *program, struct zps_run *run, uint64_t seed) {
  enum { MAX = 400 };
  uint32_t due[MAX], n_due = 0, tag = 0, n_calls = 0;
  bool taken[MAX] = {0}, done[MAX] = {0}, told[MAX] = {0};
  zps_program_reset(program);
  zps_program_own(program, 0, ROWS, ZPS_FORM_SPARSE);
  add_some(program, &seed, &tag);
  const uint32_t vector = zps_program_recv_vector(program, 4, 0, 1);
  zps_program_call(program, &vector, 1, 0);
  add_some(program, &seed, &tag);
  zps_run_reset(run, program);
  assert_int_equal(zps_run_grow(run), ZPS_OK);
  assert_true(zps_run_waits_for(run, 4));
  while (!zps_run_over(run)) {
    for (uint32_t i; (i = zps_run_take(run)) != UINT32_MAX;) {
      const struct zps_instr *const instr = &program->instrs[i];
      assert_false(taken[i]);
      taken[i] = true;
      for (uint32_t j = 0; j < instr->n_in; j++)
        assert_true(done[program->streams[zps_instr_ins(program, instr)[j]].writer]);
      assert_true(instr->type != ZPS_INSTR_RECV || told[i]);
      due[n_due++] = i;
    }
    const uint32_t told_next = (uint32_t)draw(&seed, program->n_instrs);
    if (program->instrs[told_next].type == ZPS_INSTR_RECV) {
      const struct zps_instr *const recv = &program->instrs[told_next];
      assert_int_equal(zps_run_find(run, recv->peer, recv->tag), told_next);
      assert_int_equal(zps_run_announced(run, told_next), !told[told_next]);
      told[told_next] = true;
    }
    if (n_due == 0) continue;
    const uint64_t which = draw(&seed, n_due);
    const uint32_t i = due[which];
    due[which] = due[--n_due];
    if (program->instrs[i].type == ZPS_INSTR_CALL) {
      add_some(program, &seed, &tag);
      if (++n_calls < 4) zps_program_call(program, &vector, 1, n_calls);
      assert_int_equal(zps_run_grow(run), ZPS_OK);
      assert_in_range(program->n_instrs, 0, MAX);
    }
    done[i] = true;
    zps_run_done(run, i);
    for (uint32_t s = 0; s < program->n_streams; s++) {
      bool unused = done[program->streams[s].writer] && n_calls == 4;
      for (uint32_t j = 0; j < program->n_instrs; j++) {
        const struct zps_instr *const instr = &program->instrs[j];
        for (uint32_t in = 0; in < instr->n_in; in++)
          unused = unused && (zps_instr_ins(program, instr)[in] != s || done[j]);
      }
      assert_int_equal(zps_run_unused(run, s), unused);
    }
  }
  for (uint32_t i = 0; i < program->n_instrs; i++) assert_true(done[i]);
  assert_int_equal(zps_run_take(run), UINT32_MAX);
  for (uint32_t peer = 0; peer < 5; peer++) assert_false(zps_run_waits_for(run, peer));
}

static void test_runs_in_any_order(void **state) {
  (void)state;
  struct zps_program program = {0};
  struct zps_run run = {0};
  for (uint64_t seed = 0; seed < 300; seed++) run_any_order(&program, &run, seed);
  zps_run_fini(&run);
  zps_program_fini(&program);
}

static void test_order_of_the_program_among_equals(void **state) {
  (void)state;
  struct zps_program program = {0};
  struct zps_run run = {0};
  const uint32_t own = zps_program_own(&program, 0, ROWS, ZPS_FORM_SPARSE);
  for (uint32_t i = 0; i < 5; i++) zps_program_send(&program, own, i, 0);
  zps_run_reset(&run, &program);
  assert_int_equal(zps_run_grow(&run), ZPS_OK);
  assert_int_equal(zps_run_take(&run), 0);
  assert_int_equal(zps_run_take(&run), UINT32_MAX);
  zps_run_done(&run, 0);
  for (uint32_t i = 1; i <= 5; i++) assert_int_equal(zps_run_take(&run), i);
  zps_run_fini(&run);
  zps_program_fini(&program);
}

/* Each stream is part of one whole at most, which may be part of another. */
static void test_parts_of_a_whole(void **state) {
  (void)state;
  struct zps_program program = {0};
  const uint32_t a = zps_program_own(&program, 0, 10, ZPS_FORM_ALL);
  const uint32_t b = zps_program_recv(&program, 1, 1, 10, 25), c = zps_program_recv(&program, 1, 2, 25, 30);
  assert_int_equal(zps_program_join_all(&program, &a, 1), a); /* nothing to do */
  const uint32_t ab = zps_program_join_all(&program, (const uint32_t[]){a, b}, 2);
  const uint32_t abc = zps_program_join_all(&program, (const uint32_t[]){ab, c}, 2);
  assert_int_equal(program.code, ZPS_OK);
  assert_int_equal(program.streams[ab].lo, 0);
  assert_int_equal(program.streams[abc].hi, 30);
  assert_int_equal(program.streams[a].whole, ab);
  assert_int_equal(program.streams[b].whole, ab);
  assert_int_equal(program.streams[ab].whole, abc);
  assert_int_equal(program.streams[c].whole, abc);
  assert_int_equal(program.streams[abc].whole, ZPS_STREAM_NONE);
  zps_program_join_all(&program, (const uint32_t[]){b, c}, 2);
  assert_int_equal(program.code, ZPS_ERR_INTERNAL);
  zps_program_fini(&program);
}

static void test_one_receiver_per_message(void **state) {
  (void)state;
  struct zps_program program = {0};
  struct zps_run run = {0};
  zps_program_recv(&program, 1, 5, 0, ROWS);
  zps_program_recv(&program, 1, 5, 0, ROWS);
  zps_run_reset(&run, &program);
  assert_int_equal(zps_run_grow(&run), ZPS_ERR_INTERNAL);
  zps_program_reset(&program);
  zps_program_recv(&program, 1, 5, 0, ROWS);
  zps_program_recv(&program, 2, 5, 0, ROWS);
  zps_run_reset(&run, &program);
  assert_int_equal(zps_run_grow(&run), ZPS_OK);
  assert_int_equal(zps_run_find(&run, 2, 5), 1);
  assert_int_equal(zps_run_find(&run, 3, 5), UINT32_MAX);
  zps_run_fini(&run);
  zps_program_fini(&program);
}

struct both {
  struct zps_program program;
  struct zps_run run;
};

static void both_destroy(void *ctx) {
  struct both *const both = ctx;
  zps_run_fini(&both->run);
  zps_program_fini(&both->program);
}

static zps_err_t both_create(void *ctx) {
  struct both *const both = ctx;
  *both = (struct both){0};
  const double doubles[] = {1, 2};
  uint32_t own = zps_program_own(&both->program, 0, ROWS, ZPS_FORM_SPARSE);
  zps_program_vector(&both->program, doubles, 2);
  for (unsigned i = 0; i < 30; i++) own = zps_program_sum(&both->program, &own, 1, ZPS_FORM_SPARSE);
  zps_run_reset(&both->run, &both->program);
  const zps_err_t code = zps_run_grow(&both->run);
  if (code != ZPS_OK) both_destroy(both);
  return code;
}

static void test_oom(void **state) {
  (void)state;
  struct both both;
  oom_sweep(both_create, both_destroy, &both, 8);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_builds_streams),
      cmocka_unit_test(test_refuses_what_cannot_be),
      cmocka_unit_test(test_names),
      cmocka_unit_test(test_runs_in_any_order),
      cmocka_unit_test(test_order_of_the_program_among_equals),
      cmocka_unit_test(test_one_receiver_per_message),
      cmocka_unit_test(test_parts_of_a_whole),
      cmocka_unit_test(test_oom),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
