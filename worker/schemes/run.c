#include "worker/schemes/run.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/enlarge.h"
#include "common/base/hash.h"

enum { WAITING, DUE, TAKEN, DONE };
#define NONE UINT32_MAX

void zps_run_fini(struct zps_run *run) {
  free(run->n_missing);
  free(run->state);
  free(run->there);
  free(run->first_reader);
  free(run->next_reader);
  free(run->owner);
  free(run->ready);
  free(run->table);
  *run = (struct zps_run){0};
}

void zps_run_reset(struct zps_run *run, const struct zps_program *program) {
  run->program = program;
  run->n_known = run->n_known_streams = 0;
  run->n_ready = run->n_taken = run->n_done = run->n_calls = 0;
  if (run->table_size > 0) memset(run->table, 0xff, run->table_size * sizeof *run->table);
}

static uint32_t slot_of(const struct zps_run *run, uint32_t peer, uint32_t tag) {
  return (uint32_t)zps_hash_mix64((uint64_t)peer << 32 | tag) & (run->table_size - 1);
}

uint32_t zps_run_find(const struct zps_run *run, uint32_t peer, uint32_t tag) {
  if (run->table_size == 0) return NONE;
  for (uint32_t slot = slot_of(run, peer, tag); run->table[slot] != NONE; slot = (slot + 1) & (run->table_size - 1)) {
    const struct zps_instr *const instr = &run->program->instrs[run->table[slot]];
    if (instr->peer == peer && instr->tag == tag) return run->table[slot];
  }
  return NONE;
}

static void enter(struct zps_run *run, uint32_t i) {
  const struct zps_instr *const instr = &run->program->instrs[i];
  uint32_t slot = slot_of(run, instr->peer, instr->tag);
  while (run->table[slot] != NONE) slot = (slot + 1) & (run->table_size - 1);
  run->table[slot] = i;
}

/* The table is at most half full; what it holds is what is known. */
static bool table_fits(struct zps_run *run) {
  const struct zps_program *const program = run->program;
  uint32_t size = run->table_size ? run->table_size : 16;
  while (size / 2 < program->n_instrs) size *= 2;
  if (size == run->table_size) return true;
  if (!zps_enlarge(&run->table, size, sizeof *run->table)) return false;
  run->table_size = size;
  memset(run->table, 0xff, size * sizeof *run->table);
  for (uint32_t i = 0; i < run->n_known; i++) {
    if (program->instrs[i].type == ZPS_INSTR_RECV) enter(run, i);
  }
  return true;
}

static zps_err_t fit(struct zps_run *run) {
  const struct zps_program *const program = run->program;
  if (program->n_instrs > UINT32_MAX / 4) return ZPS_ERR_NOMEM;
  if (program->n_instrs > run->cap_instrs) {
    const uint32_t n = program->cap_instrs;
    if (!zps_enlarge(&run->n_missing, n, sizeof *run->n_missing) || !zps_enlarge(&run->state, n, sizeof *run->state) ||
        !zps_enlarge(&run->ready, n, sizeof *run->ready))
      return ZPS_ERR_NOMEM;
    run->cap_instrs = n;
  }
  if (program->n_streams > run->cap_streams) {
    const uint32_t n = program->cap_streams;
    if (!zps_enlarge(&run->there, n, sizeof *run->there) ||
        !zps_enlarge(&run->first_reader, n, sizeof *run->first_reader))
      return ZPS_ERR_NOMEM;
    run->cap_streams = n;
  }
  if (program->n_ins > run->cap_ins) {
    const uint32_t n = program->cap_ins;
    if (!zps_enlarge(&run->next_reader, n, sizeof *run->next_reader) ||
        !zps_enlarge(&run->owner, n, sizeof *run->owner))
      return ZPS_ERR_NOMEM;
    run->cap_ins = n;
  }
  return table_fits(run) ? ZPS_OK : ZPS_ERR_NOMEM;
}

static void make_due(struct zps_run *run, uint32_t i) {
  run->state[i] = DUE;
  run->ready[run->n_ready++] = i;
}

zps_err_t zps_run_grow(struct zps_run *run) {
  const struct zps_program *const program = run->program;
  if (program->code != ZPS_OK) return program->code;
  const zps_err_t code = fit(run);
  if (code != ZPS_OK) return code;
  for (; run->n_known_streams < program->n_streams; run->n_known_streams++) {
    run->there[run->n_known_streams] = 0;
    run->first_reader[run->n_known_streams] = NONE;
  }
  for (; run->n_known < program->n_instrs; run->n_known++) {
    const uint32_t i = run->n_known;
    const struct zps_instr *const instr = &program->instrs[i];
    run->state[i] = WAITING;
    run->n_missing[i] = 0;
    if (instr->type == ZPS_INSTR_RECV) {
      if (zps_run_find(run, instr->peer, instr->tag) != NONE) return ZPS_ERR_INTERNAL;
      enter(run, i);
      run->n_missing[i] = 1;
    }
    run->n_calls += instr->type == ZPS_INSTR_CALL;
    for (uint32_t j = instr->first_in; j < instr->first_in + instr->n_in; j++) {
      const uint32_t stream = program->ins[j];
      run->owner[j] = i;
      run->next_reader[j] = run->first_reader[stream];
      run->first_reader[stream] = j;
      run->n_missing[i] += !run->there[stream];
    }
    if (run->n_missing[i] == 0) make_due(run, i);
  }
  return ZPS_OK;
}

bool zps_run_announced(struct zps_run *run, uint32_t instr) {
  assert(instr < run->n_known && run->program->instrs[instr].type == ZPS_INSTR_RECV);
  if (run->n_missing[instr] == 0) return false;
  run->n_missing[instr] = 0;
  make_due(run, instr);
  return true;
}

/* Readers were chained latest first; those that stand first in the program are to be due first. */
static void reverse_readers(struct zps_run *run, uint32_t stream) {
  uint32_t reversed = NONE;
  for (uint32_t j = run->first_reader[stream], next; j != NONE; j = next) {
    next = run->next_reader[j];
    run->next_reader[j] = reversed;
    reversed = j;
  }
  run->first_reader[stream] = reversed;
}

void zps_run_done(struct zps_run *run, uint32_t instr) {
  assert(instr < run->n_known && run->state[instr] == TAKEN);
  const struct zps_instr *const done = &run->program->instrs[instr];
  run->state[instr] = DONE;
  run->n_done++;
  run->n_calls -= done->type == ZPS_INSTR_CALL;
  if (done->out == ZPS_STREAM_NONE) return;
  run->there[done->out] = 1;
  reverse_readers(run, done->out);
  for (uint32_t j = run->first_reader[done->out]; j != NONE; j = run->next_reader[j]) {
    const uint32_t reader = run->owner[j];
    if (--run->n_missing[reader] == 0) make_due(run, reader);
  }
}

uint32_t zps_run_take(struct zps_run *run) {
  if (run->n_taken == run->n_ready) return NONE;
  const uint32_t instr = run->ready[run->n_taken++];
  run->state[instr] = TAKEN;
  return instr;
}

bool zps_run_over(const struct zps_run *run) {
  return run->n_done == run->program->n_instrs;
}

bool zps_run_waits_for(const struct zps_run *run, uint32_t peer) {
  for (uint32_t i = 0; i < run->n_known; i++) {
    const struct zps_instr *const instr = &run->program->instrs[i];
    if (instr->type == ZPS_INSTR_RECV && instr->peer == peer && run->state[i] != DONE) return true;
  }
  return false;
}

bool zps_run_expects(const struct zps_run *run, uint32_t peer) {
  for (uint32_t i = 0; i < run->n_known; i++) {
    const struct zps_instr *const instr = &run->program->instrs[i];
    if (instr->type == ZPS_INSTR_RECV && instr->peer == peer && run->n_missing[i] > 0) return true;
  }
  return false;
}

bool zps_run_is_final(const struct zps_run *run, uint32_t stream) {
  bool is_result = false;
  for (uint32_t j = run->first_reader[stream]; j != NONE; j = run->next_reader[j]) {
    const enum zps_instr_type type = run->program->instrs[run->owner[j]].type;
    if (type != ZPS_INSTR_RESULT && type != ZPS_INSTR_SEND) return false;
    is_result |= type == ZPS_INSTR_RESULT;
  }
  return is_result && run->n_calls == 0;
}

bool zps_run_unused(const struct zps_run *run, uint32_t stream) {
  if (!run->there[stream] || run->n_calls > 0) return false;
  for (uint32_t j = run->first_reader[stream]; j != NONE; j = run->next_reader[j]) {
    if (run->state[run->owner[j]] != DONE) return false;
  }
  return true;
}
