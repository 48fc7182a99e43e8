/* RESULT: from streams to the trainer's memory. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "worker/peer/peer.h"

bool zps_peer_is_rounded(const struct zps_peer_round *round, const struct zps_slice_view *view) {
  const enum zps_dtype dtype = round->compute.array_dtype;
  return round->base.tensor->peer->plan.n > 1 && zps_dtype_is_half(dtype) && view->value_codec == zps_values_own(dtype);
}

static unsigned divisor_of(const struct zps_peer_round *round, const struct zps_slice_view *view) {
  return zps_peer_is_rounded(round, view) ? 1 : round->compute.divisor;
}

bool zps_peer_fills_up(const struct zps_peer_round *round, const struct zps_compute_in *in) {
  const enum zps_op op = round->compute.op;
  return in->view.z == in->view.m && op != ZPS_OP_MAX && op != ZPS_OP_MIN && !round->compute.keeps_zero_rows;
}

static struct zps_compute_in result_in(const struct zps_peer_round *round, uint32_t instr) {
  return zps_peer_in(round, round->program.ins[round->program.instrs[instr].first_in]);
}

/* The rows from `lo` on, up to `hi`. */
static void clear(const struct zps_peer_round *round, uint64_t lo, uint64_t hi) {
  const size_t bytes = zps_peer_array_row_bytes(round);
  if (lo < hi) memset((char *)round->base.out->values + lo * bytes, 0, (hi - lo) * bytes);
}

/* ------------------------------------------------------------ dense: each as it comes */

static void start_dense(struct zps_peer_round *round, uint32_t instr) {
  struct zps_peer_task *task = zps_peer_task_get(round, instr);
  if (task && task->cap_ins == 0) {
    task->ins = malloc(sizeof *task->ins);
    task->cap_ins = task->ins != NULL;
  }
  if (!task || task->cap_ins == 0) {
    zps_round_fail(&round->base, ZPS_ERR_NOMEM, "no memory to take a result");
    return;
  }
  task->ins[0] = result_in(round, instr);
  task->compute = zps_compute_task_of(&round->program, instr);
  task->compute.ins = task->ins;
  zps_peer_deliver(task);
}

void zps_peer_result(struct zps_peer_round *round, uint32_t instr) {
  struct zps_round *base = &round->base;
  const uint32_t stream = round->program.ins[round->program.instrs[instr].first_in];
  round->results[round->n_results++] = instr;
  base->stats.nnz_out += round->streams[stream].view.z;
  if (round->streams[stream].delivered) {
    zps_peer_carried_out(round, instr);
  } else if (base->out->layout == ZENPS_ROWS) { /* all together in the end; until then it stays */
    if (round->streams[stream].mem) round->streams[stream].mem->refs++;
    zps_peer_carried_out(round, instr);
  } else if (zps_peer_must_not_write(round)) {
    round->n_put_off++;
  } else {
    start_dense(round, instr);
  }
}

void zps_peer_results_put_off(struct zps_peer_round *round) {
  if (round->n_put_off == 0 || zps_peer_must_not_write(round)) return;
  const uint32_t n = round->n_put_off;
  round->n_put_off = 0;
  for (uint32_t i = 0; i < n && !zps_round_machine_over(round->base.machine); i++)
    start_dense(round, round->results[round->n_results - n + i]);
}

/* ------------------------------------------------------------ rows that contributed */

void zps_peer_contributed(struct zps_peer_round *round, uint32_t instr) {
  const uint32_t stream = round->program.ins[round->program.instrs[instr].first_in];
  if (round->streams[stream].mem) round->streams[stream].mem->refs++; /* until the round is released */
  round->tells_contributed = true;
  round->contributed = stream;
  zps_peer_carried_out(round, instr);
}

static void tell_contributed(struct zps_round_task *work) {
  struct zps_round *base = work->round;
  const struct zps_compute_in in = zps_peer_in(zps_peer_of(base), zps_peer_of(base)->contributed);
  struct zps_error error;
  base->contributed.rows = malloc((in.view.z + 1ull) * sizeof *base->contributed.rows);
  if (base->contributed.rows) {
    base->contributed.n = zps_compute_contributed(&in, base->contributed.rows);
    return;
  }
  zps_fail(&error, ZPS_ERR_NOMEM, "no memory for %" PRIu32 " rows that the result is made of", in.view.z);
  zps_round_task_fail(work, &error);
}

/* ------------------------------------------------------------ the end */

static int by_range(const void *a, const void *b) {
  const struct zps_compute_in *x = a, *y = b;
  return (x->lo > y->lo) - (x->lo < y->lo);
}

/* The results in the order of their rows, for the caller to free(). */
static struct zps_compute_in *sort_results(struct zps_round_task *work) {
  const struct zps_peer_round *round = zps_peer_of(work->round);
  struct zps_compute_in *ins = malloc((round->n_results + 1) * sizeof *ins);
  struct zps_error error;
  if (!ins) {
    zps_fail(&error, ZPS_ERR_NOMEM, "no memory for the result");
    zps_round_task_fail(work, &error);
    return NULL;
  }
  for (uint32_t i = 0; i < round->n_results; i++) ins[i] = result_in(round, round->results[i]);
  qsort(ins, round->n_results, sizeof *ins, by_range);
  return ins;
}

/* Rows that no result covers. */
static void clear_gaps(struct zps_round_task *work) {
  const struct zps_peer_round *round = zps_peer_of(work->round);
  struct zps_compute_in *ins = sort_results(work);
  uint64_t at = 0;
  if (!ins) return;
  for (uint32_t i = 0; i < round->n_results; i++) {
    clear(round, at, ins[i].lo);
    at = ins[i].hi;
  }
  clear(round, at, round->base.tensor->peer->plan.rows);
  free(ins);
}

static uint64_t write_rows(const struct zps_peer_round *round, const struct zps_compute_in *ins, int64_t *rows,
                           char *values) {
  uint64_t n = 0;
  for (uint32_t i = 0; i < round->n_results; i++) {
    const bool skip_zeros = zps_peer_fills_up(round, &ins[i]) && !round->staging.keeps_zeros;
    n += zps_compute_result_rows(&ins[i], round->base.tensor->dtype, divisor_of(round, &ins[i].view), skip_zeros,
                                 rows + n, values + n * zps_peer_array_row_bytes(round));
  }
  return n;
}

static void rows_run(struct zps_round_task *work) {
  struct zps_round *base = work->round;
  const uint64_t most = base->stats.nnz_out;
  struct zps_compute_in *ins = sort_results(work);
  if (!ins) return;
  int64_t *rows;
  void *values;
  if (zps_round_rows_get(work, most, &rows, &values))
    zps_round_rows_written(base, write_rows(zps_peer_of(base), ins, rows, values));
  free(ins);
}

void zps_peer_finish_run(struct zps_round_task *work) {
  if (work->round->out->layout == ZENPS_ROWS) {
    rows_run(work);
  } else {
    clear_gaps(work);
  }
  if (zps_peer_of(work->round)->tells_contributed) tell_contributed(work);
}

void zps_peer_finish_done(struct zps_round_task *work) {
  if (!zps_round_machine_over(work->round->machine)) zps_peer_decoded(zps_peer_of(work->round));
}

static bool covers_all(const struct zps_peer_round *round) {
  uint64_t covered = 0;
  for (uint32_t i = 0; i < round->n_results; i++) {
    const struct zps_compute_in in = result_in(round, round->results[i]);
    covered += in.hi - in.lo;
  }
  return covered == round->base.tensor->peer->plan.rows;
}

void zps_peer_finish(struct zps_peer_round *round) {
  struct zps_round *base = &round->base;
  if (base->out->layout == ZENPS_DENSE && covers_all(round) && !round->tells_contributed) {
    zps_peer_decoded(round);
  } else {
    zps_round_task_start(&round->finish, base->plane->pool);
  }
}
