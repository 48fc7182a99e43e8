#include "worker/schemes/program.h"

#include <stdlib.h>
#include <string.h>

#include "common/codec/values.h"

static const char *const names[] = {
    [ZPS_INSTR_OWN] = "own",       [ZPS_INSTR_VECTOR] = "vector",
    [ZPS_INSTR_SEND] = "send",     [ZPS_INSTR_RECV] = "recv",
    [ZPS_INSTR_SUM] = "sum",       [ZPS_INSTR_TOP] = "top",
    [ZPS_INSTR_KTH] = "kth",       [ZPS_INSTR_THRESHOLD] = "threshold",
    [ZPS_INSTR_COUNTS] = "counts", [ZPS_INSTR_CUT] = "cut",
    [ZPS_INSTR_TAKE] = "take",     [ZPS_INSTR_SPLITS] = "splits",
    [ZPS_INSTR_JOIN] = "join",     [ZPS_INSTR_NARROW] = "narrow",
    [ZPS_INSTR_NORMAL] = "normal", [ZPS_INSTR_SERVE] = "serve",
    [ZPS_INSTR_COMMON] = "common", [ZPS_INSTR_CONTRIBUTED] = "contributed",
    [ZPS_INSTR_CALL] = "call",     [ZPS_INSTR_RESULT] = "result",
    [ZPS_INSTR_OFFER] = "offer",   [ZPS_INSTR_REACH] = "reach",
    [ZPS_INSTR_MERGE] = "merge",
};

const char *zps_instr_name(enum zps_instr_type type) {
  return (unsigned)type < sizeof names / sizeof names[0] ? names[type] : "?";
}

void zps_program_fini(struct zps_program *program) {
  free(program->instrs);
  free(program->streams);
  free(program->ins);
  free(program->doubles);
  *program = (struct zps_program){0};
}

void zps_program_reset(struct zps_program *program) {
  program->code = ZPS_OK;
  program->holds = false;
  program->n_instrs = program->n_streams = program->n_ins = program->n_doubles = 0;
}

/* Room for `more` elements after the `n` that are there. */
static bool has_room(struct zps_program *program, void **array_p, uint32_t n, uint32_t more, uint32_t *cap,
                     size_t elem_bytes) {
  const uint64_t needed = (uint64_t)n + more;
  if (needed <= *cap) return true;
  uint64_t bigger = needed + needed / 2 + 16;
  if (bigger >= UINT32_MAX) bigger = needed;
  void *const array = bigger < UINT32_MAX ? realloc(*array_p, bigger * elem_bytes) : NULL;
  if (!array) {
    program->code = ZPS_ERR_NOMEM;
    return false;
  }
  *array_p = array;
  *cap = (uint32_t)bigger;
  return true;
}

static bool refuse(struct zps_program *program) {
  if (program->code == ZPS_OK) program->code = ZPS_ERR_INTERNAL;
  return false;
}

static bool is_kind(struct zps_program *program, const uint32_t *ins, uint32_t n_in, enum zps_stream_kind kind) {
  if (program->code != ZPS_OK) return false;
  for (uint32_t i = 0; i < n_in; i++) {
    if (ins[i] >= program->n_streams || program->streams[ins[i]].kind != kind) return refuse(program);
  }
  return true;
}

static bool is_range(struct zps_program *program, uint64_t lo, uint64_t hi) {
  if (program->code != ZPS_OK) return false;
  return (lo <= hi && hi - lo < UINT32_MAX) || refuse(program);
}

/* Appends the instruction; `out` (NULL: none) is the stream that it writes. */
static uint32_t append(struct zps_program *program, struct zps_instr instr, const uint32_t *ins, uint32_t n_in,
                       const struct zps_stream *out) {
  if (!has_room(program, (void **)&program->instrs, program->n_instrs, 1, &program->cap_instrs,
                sizeof *program->instrs) ||
      !has_room(program, (void **)&program->streams, program->n_streams, 1, &program->cap_streams,
                sizeof *program->streams) ||
      !has_room(program, (void **)&program->ins, program->n_ins, n_in, &program->cap_ins, sizeof *program->ins))
    return ZPS_STREAM_NONE;
  instr.first_in = program->n_ins;
  instr.n_in = n_in;
  instr.out = ZPS_STREAM_NONE;
  for (uint32_t i = 0; i < n_in; i++) {
    program->ins[program->n_ins++] = ins[i];
    program->streams[ins[i]].n_readers++;
  }
  if (out) {
    instr.out = program->n_streams++;
    program->streams[instr.out] = *out;
    program->streams[instr.out].writer = program->n_instrs;
    program->streams[instr.out].whole = ZPS_STREAM_NONE;
    program->streams[instr.out].n_readers = 0;
  }
  program->instrs[program->n_instrs++] = instr;
  return instr.out;
}

static uint32_t append_rows(struct zps_program *program, struct zps_instr instr, const uint32_t *ins, uint32_t n_in,
                            uint64_t lo, uint64_t hi) {
  const struct zps_stream out = {.kind = ZPS_STREAM_ROWS, .lo = lo, .hi = hi};
  return append(program, instr, ins, n_in, &out);
}

static uint32_t append_vector(struct zps_program *program, struct zps_instr instr, const uint32_t *ins, uint32_t n_in,
                              uint64_t n) {
  const struct zps_stream out = {.kind = ZPS_STREAM_VECTOR, .hi = n};
  return append(program, instr, ins, n_in, &out);
}

/* One stream of rows in, one of the same range out. */
static uint32_t append_same(struct zps_program *program, struct zps_instr instr, uint32_t in) {
  if (!is_kind(program, &in, 1, ZPS_STREAM_ROWS)) return ZPS_STREAM_NONE;
  return append_rows(program, instr, &in, 1, program->streams[in].lo, program->streams[in].hi);
}

void zps_program_hold(struct zps_program *program, uint32_t stream) {
  program->holds = is_kind(program, &stream, 1, ZPS_STREAM_ROWS);
  program->held = stream;
}

static uint32_t cut_held(struct zps_program *program, uint64_t lo, uint64_t hi, enum zps_form form) {
  const struct zps_stream held = program->streams[program->held];
  const bool all = lo == held.lo && hi == held.hi;
  const uint32_t cut = all ? program->held : zps_program_cut(program, program->held, lo, hi);
  return form == ZPS_FORM_ALL ? zps_program_sum(program, &cut, 1, ZPS_FORM_ALL) : cut;
}

uint32_t zps_program_own(struct zps_program *program, uint64_t lo, uint64_t hi, enum zps_form form) {
  if (!is_range(program, lo, hi)) return ZPS_STREAM_NONE;
  if (program->holds) return cut_held(program, lo, hi, form);
  return append_rows(program, (struct zps_instr){.type = ZPS_INSTR_OWN, .form = form}, NULL, 0, lo, hi);
}

/* A vector of `n` doubles of the program's own: `doubles`, or zeros where that is NULL. */
static uint32_t append_doubles(struct zps_program *program, enum zps_instr_type type, const uint32_t *ins,
                               uint32_t n_in, const double *doubles, uint32_t n) {
  if (!is_kind(program, ins, n_in, ZPS_STREAM_VECTOR) ||
      !has_room(program, (void **)&program->doubles, program->n_doubles, n, &program->cap_doubles,
                sizeof *program->doubles))
    return ZPS_STREAM_NONE;
  const struct zps_instr instr = {.type = type, .from = program->n_doubles};
  if (n > 0 && doubles) memcpy(program->doubles + program->n_doubles, doubles, n * sizeof *doubles);
  if (n > 0 && !doubles) memset(program->doubles + program->n_doubles, 0, n * sizeof *doubles);
  program->n_doubles += n;
  return append_vector(program, instr, ins, n_in, n);
}

uint32_t zps_program_vector(struct zps_program *program, const double *doubles, uint32_t n) {
  return append_doubles(program, ZPS_INSTR_VECTOR, NULL, 0, doubles, n);
}

uint32_t zps_program_offer(struct zps_program *program, uint32_t n) {
  return append_doubles(program, ZPS_INSTR_OFFER, NULL, 0, NULL, n);
}

uint32_t zps_program_reach(struct zps_program *program, const uint32_t *ins, uint32_t n_in) {
  return append_doubles(program, ZPS_INSTR_REACH, ins, n_in, NULL, 1);
}

uint32_t zps_program_merge(struct zps_program *program, const uint32_t *ins, uint32_t n_in, uint64_t lo, uint64_t hi) {
  if (!is_kind(program, ins, n_in, ZPS_STREAM_VECTOR) || !is_range(program, lo, hi)) return ZPS_STREAM_NONE;
  return append_rows(program, (struct zps_instr){.type = ZPS_INSTR_MERGE}, ins, n_in, lo, hi);
}

void zps_program_send(struct zps_program *program, uint32_t in, uint32_t peer, uint32_t tag) {
  if (program->code != ZPS_OK) return;
  if (in >= program->n_streams)
    refuse(program);
  else
    append(program, (struct zps_instr){.type = ZPS_INSTR_SEND, .peer = peer, .tag = tag}, &in, 1, NULL);
}

uint32_t zps_program_recv(struct zps_program *program, uint32_t peer, uint32_t tag, uint64_t lo, uint64_t hi) {
  if (!is_range(program, lo, hi)) return ZPS_STREAM_NONE;
  return append_rows(program, (struct zps_instr){.type = ZPS_INSTR_RECV, .peer = peer, .tag = tag}, NULL, 0, lo, hi);
}

uint32_t zps_program_recv_vector(struct zps_program *program, uint32_t peer, uint32_t tag, uint32_t n) {
  if (program->code != ZPS_OK) return ZPS_STREAM_NONE;
  return append_vector(program, (struct zps_instr){.type = ZPS_INSTR_RECV, .peer = peer, .tag = tag}, NULL, 0, n);
}

uint32_t zps_program_sum(struct zps_program *program, const uint32_t *ins, uint32_t n_in, enum zps_form form) {
  if (program->code != ZPS_OK) return ZPS_STREAM_NONE;
  if (n_in == 0 || ins[0] >= program->n_streams) return refuse(program), ZPS_STREAM_NONE;
  const struct zps_stream first = program->streams[ins[0]];
  if (!is_kind(program, ins, n_in, first.kind)) return ZPS_STREAM_NONE;
  for (uint32_t i = 1; i < n_in; i++) {
    const struct zps_stream *const stream = &program->streams[ins[i]];
    if (stream->lo != first.lo || stream->hi != first.hi) return refuse(program), ZPS_STREAM_NONE;
  }
  return append(program, (struct zps_instr){.type = ZPS_INSTR_SUM, .form = form}, ins, n_in, &first);
}

uint32_t zps_program_top(struct zps_program *program, uint32_t in, uint64_t k) {
  return append_same(program, (struct zps_instr){.type = ZPS_INSTR_TOP, .k = k}, in);
}

uint32_t zps_program_normal(struct zps_program *program, uint32_t in, uint64_t k, bool corrected) {
  return append_same(program, (struct zps_instr){.type = ZPS_INSTR_NORMAL, .k = k, .corrected = corrected}, in);
}

uint32_t zps_program_threshold(struct zps_program *program, uint32_t in, double value, uint64_t k) {
  return append_same(program, (struct zps_instr){.type = ZPS_INSTR_THRESHOLD, .value = value, .k = k}, in);
}

uint32_t zps_program_kth(struct zps_program *program, const uint32_t *ins, uint32_t n_in, uint64_t k) {
  if (!is_kind(program, ins, n_in, ZPS_STREAM_ROWS)) return ZPS_STREAM_NONE;
  return append_vector(program, (struct zps_instr){.type = ZPS_INSTR_KTH, .k = k}, ins, n_in, 1);
}

uint32_t zps_program_counts(struct zps_program *program, const uint32_t *ins, uint32_t n_in) {
  if (!is_kind(program, ins, n_in, ZPS_STREAM_ROWS)) return ZPS_STREAM_NONE;
  return append_vector(program, (struct zps_instr){.type = ZPS_INSTR_COUNTS}, ins, n_in, n_in);
}

uint32_t zps_program_cut(struct zps_program *program, uint32_t in, uint64_t lo, uint64_t hi) {
  if (!is_kind(program, &in, 1, ZPS_STREAM_ROWS) || !is_range(program, lo, hi)) return ZPS_STREAM_NONE;
  const struct zps_stream *const stream = &program->streams[in];
  if (lo < stream->lo || hi > stream->hi) return refuse(program), ZPS_STREAM_NONE;
  return append_rows(program, (struct zps_instr){.type = ZPS_INSTR_CUT}, &in, 1, lo, hi);
}

uint32_t zps_program_common(struct zps_program *program, uint32_t in, uint32_t other) {
  const uint32_t ins[] = {in, other};
  if (!is_kind(program, ins, 2, ZPS_STREAM_ROWS)) return ZPS_STREAM_NONE;
  const struct zps_stream a = program->streams[in], b = program->streams[other];
  if (a.lo != b.lo || a.hi != b.hi) return refuse(program), ZPS_STREAM_NONE;
  return append_rows(program, (struct zps_instr){.type = ZPS_INSTR_COMMON}, ins, 2, a.lo, a.hi);
}

uint32_t zps_program_take(struct zps_program *program, uint32_t in, uint64_t from, uint64_t to) {
  if (program->code == ZPS_OK && from > to) refuse(program);
  return append_same(program, (struct zps_instr){.type = ZPS_INSTR_TAKE, .from = from, .to = to}, in);
}

uint32_t zps_program_splits(struct zps_program *program, uint32_t in, uint32_t n) {
  if (!is_kind(program, &in, 1, ZPS_STREAM_ROWS)) return ZPS_STREAM_NONE;
  if (n == 0) return refuse(program), ZPS_STREAM_NONE;
  return append_vector(program, (struct zps_instr){.type = ZPS_INSTR_SPLITS, .k = n}, &in, 1, n - 1);
}

/* Streams of rows within a range in, one of that range out. */
static uint32_t append_within(struct zps_program *program, enum zps_instr_type type, const uint32_t *ins, uint32_t n_in,
                              uint64_t lo, uint64_t hi) {
  if (!is_kind(program, ins, n_in, ZPS_STREAM_ROWS) || !is_range(program, lo, hi)) return ZPS_STREAM_NONE;
  for (uint32_t i = 0; i < n_in; i++) {
    if (program->streams[ins[i]].lo < lo || program->streams[ins[i]].hi > hi) return refuse(program), ZPS_STREAM_NONE;
  }
  return append_rows(program, (struct zps_instr){.type = type}, ins, n_in, lo, hi);
}

uint32_t zps_program_join(struct zps_program *program, const uint32_t *ins, uint32_t n_in, uint64_t lo, uint64_t hi) {
  return append_within(program, ZPS_INSTR_JOIN, ins, n_in, lo, hi);
}

uint32_t zps_program_join_all(struct zps_program *program, const uint32_t *ins, uint32_t n_in) {
  if (!is_kind(program, ins, n_in, ZPS_STREAM_ROWS)) return ZPS_STREAM_NONE;
  if (n_in == 1) return ins[0];
  for (uint32_t i = 0; i < n_in; i++) {
    const struct zps_stream *const stream = &program->streams[ins[i]];
    const bool adjoins = i == 0 || stream->lo == program->streams[ins[i - 1]].hi;
    if (!adjoins || stream->whole != ZPS_STREAM_NONE) return refuse(program), ZPS_STREAM_NONE;
  }
  if (n_in == 0) return refuse(program), ZPS_STREAM_NONE;
  const uint64_t lo = program->streams[ins[0]].lo, hi = program->streams[ins[n_in - 1]].hi;
  if (!is_range(program, lo, hi)) return ZPS_STREAM_NONE;
  const struct zps_instr instr = {.type = ZPS_INSTR_JOIN, .form = ZPS_FORM_ALL};
  const uint32_t whole = append_rows(program, instr, ins, n_in, lo, hi);
  for (uint32_t i = 0; i < n_in && whole != ZPS_STREAM_NONE; i++) program->streams[ins[i]].whole = whole;
  return whole;
}

uint32_t zps_program_serve(struct zps_program *program, const uint32_t *ins, uint32_t n_in, uint64_t lo, uint64_t hi) {
  return append_within(program, ZPS_INSTR_SERVE, ins, n_in, lo, hi);
}

uint32_t zps_program_narrow(struct zps_program *program, uint32_t in, uint32_t values, enum zps_form form) {
  if (program->code == ZPS_OK && (values <= ZPS_VALUES_RAW || values > ZPS_VALUES_QSGD8)) refuse(program);
  return append_same(program, (struct zps_instr){.type = ZPS_INSTR_NARROW, .values = values, .form = form}, in);
}

void zps_program_call(struct zps_program *program, const uint32_t *ins, uint32_t n_in, uint32_t phase) {
  if (is_kind(program, ins, n_in, ZPS_STREAM_VECTOR))
    append(program, (struct zps_instr){.type = ZPS_INSTR_CALL, .phase = phase}, ins, n_in, NULL);
}

void zps_program_result(struct zps_program *program, uint32_t in) {
  if (is_kind(program, &in, 1, ZPS_STREAM_ROWS))
    append(program, (struct zps_instr){.type = ZPS_INSTR_RESULT}, &in, 1, NULL);
}

void zps_program_contributed(struct zps_program *program, uint32_t in) {
  if (is_kind(program, &in, 1, ZPS_STREAM_ROWS))
    append(program, (struct zps_instr){.type = ZPS_INSTR_CONTRIBUTED}, &in, 1, NULL);
}
