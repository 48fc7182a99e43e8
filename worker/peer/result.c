/* RESULT: from streams to the trainer's memory. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/codec/rowscan.h"
#include "worker/peer/peer.h"
#include "worker/api/job.h"
#include "worker/choice/topology.h"
#include "worker/api/tensor.h"

unsigned zps_peer_divisor(const struct zps_peer_round *exchange) {
  return exchange->round->tensor->op == ZPS_OP_MEAN ? exchange->scheme->plan.n : 1;
}

bool zps_peer_fills_up(const struct zps_peer_round *exchange, const struct zps_compute_in *in) {
  const enum zps_op op = exchange->compute.op;
  return in->view.z == in->view.m && op != ZPS_OP_MAX && op != ZPS_OP_MIN;
}

static struct zps_compute_in result_in(const struct zps_peer_round *exchange, uint32_t instr) {
  return zps_peer_in(exchange, exchange->program.ins[exchange->program.instrs[instr].first_in]);
}

/* The rows from `lo` on, up to `hi`. */
static void clear(const struct zps_peer_round *exchange, uint64_t lo, uint64_t hi) {
  const size_t bytes = zps_peer_row_bytes(exchange);
  if (lo < hi) memset((char *)exchange->round->out->values + lo * bytes, 0, (hi - lo) * bytes);
}

/* ------------------------------------------------------------ dense: each as it comes */

static void start_dense(struct zps_peer_round *exchange, uint32_t instr) {
  struct zps_peer_task *task = zps_peer_task_get(exchange, instr);
  if (task && task->cap_ins == 0) {
    task->ins = malloc(sizeof *task->ins);
    task->cap_ins = task->ins != NULL;
  }
  if (!task || task->cap_ins == 0) {
    zps_round_fail(exchange->round, ZPS_ERR_NOMEM, "no memory to take a result");
    return;
  }
  task->ins[0] = result_in(exchange, instr);
  task->compute = zps_compute_task_of(&exchange->program, instr);
  task->compute.ins = task->ins;
  zps_peer_deliver(task);
}

void zps_peer_result(struct zps_peer_round *exchange, uint32_t instr) {
  struct zps_round *round = exchange->round;
  const uint32_t stream = exchange->program.ins[exchange->program.instrs[instr].first_in];
  exchange->results[exchange->n_results++] = instr;
  round->stats.nnz_out += exchange->streams[stream].view.z;
  if (exchange->streams[stream].delivered) {
    zps_peer_carried_out(exchange, instr);
  } else if (round->out->layout == ZENPS_ROWS) { /* all together in the end; until then it stays */
    if (exchange->streams[stream].mem) exchange->streams[stream].mem->refs++;
    zps_peer_carried_out(exchange, instr);
  } else if (zps_peer_must_not_write(exchange)) {
    exchange->n_put_off++;
  } else {
    start_dense(exchange, instr);
  }
}

void zps_peer_results_put_off(struct zps_peer_round *exchange) {
  if (exchange->n_put_off == 0 || zps_peer_must_not_write(exchange)) return;
  const uint32_t n = exchange->n_put_off;
  exchange->n_put_off = 0;
  for (uint32_t i = 0; i < n && !zps_round_machine_over(exchange->round->machine); i++)
    start_dense(exchange, exchange->results[exchange->n_results - n + i]);
}

/* ------------------------------------------------------------ the end */

static int by_range(const void *a, const void *b) {
  const struct zps_compute_in *x = a, *y = b;
  return (x->lo > y->lo) - (x->lo < y->lo);
}

/* The results in the order of their rows, for the caller to free(). */
static struct zps_compute_in *sort_results(struct zps_round_task *work) {
  const struct zps_peer_round *exchange = work->round->exchange;
  struct zps_compute_in *ins = malloc((exchange->n_results + 1) * sizeof *ins);
  struct zps_error error;
  if (!ins) {
    zps_fail(&error, ZPS_ERR_NOMEM, "no memory for the result");
    zps_round_task_fail(work, &error);
    return NULL;
  }
  for (uint32_t i = 0; i < exchange->n_results; i++) ins[i] = result_in(exchange, exchange->results[i]);
  qsort(ins, exchange->n_results, sizeof *ins, by_range);
  return ins;
}

/* Rows that no result covers. */
static void clear_gaps(struct zps_round_task *work) {
  const struct zps_peer_round *exchange = work->round->exchange;
  struct zps_compute_in *ins = sort_results(work);
  uint64_t at = 0;
  if (!ins) return;
  for (uint32_t i = 0; i < exchange->n_results; i++) {
    clear(exchange, at, ins[i].lo);
    at = ins[i].hi;
  }
  clear(exchange, at, exchange->scheme->plan.rows);
  free(ins);
}

static uint64_t write_rows(const struct zps_peer_round *exchange, const struct zps_compute_in *ins, int64_t *rows,
                           char *values) {
  uint64_t n = 0;
  for (uint32_t i = 0; i < exchange->n_results; i++) {
    const bool skip_zeros = zps_peer_fills_up(exchange, &ins[i]) && !exchange->round->staging.keeps_zeros;
    n += zps_compute_result_rows(&ins[i], zps_peer_divisor(exchange), skip_zeros, rows + n,
                                 values + n * zps_peer_row_bytes(exchange));
  }
  return n;
}

/* Into arrays of the caller's that may be too small for all of the rows, but not for those that are not zero. */
static void rows_by_copy(struct zps_round_task *work, const struct zps_compute_in *ins, uint64_t most) {
  struct zps_round *round = work->round;
  int64_t *rows = malloc((most + 1) * sizeof *rows), *to_rows;
  char *values = malloc((most + 1) * zps_peer_row_bytes(round->exchange));
  void *to_values;
  struct zps_error error;
  if (rows && values) {
    const uint64_t n = write_rows(round->exchange, ins, rows, values);
    round->stats.nnz_out = n;
    if (zps_served_rows_get(work, n, &to_rows, &to_values)) {
      memcpy(to_rows, rows, n * sizeof *rows);
      memcpy(to_values, values, n * zps_peer_row_bytes(round->exchange));
    }
  } else {
    zps_fail(&error, ZPS_ERR_NOMEM, "no memory for a result of %" PRIu64 " rows", most);
    zps_round_task_fail(work, &error);
  }
  free(rows);
  free(values);
}

static void rows_run(struct zps_round_task *work) {
  struct zps_round *round = work->round;
  const uint64_t most = round->stats.nnz_out;
  struct zps_compute_in *ins = sort_results(work);
  if (!ins) return;
  int64_t *rows;
  void *values;
  if (round->out->row_ids && most > round->out->capacity) {
    rows_by_copy(work, ins, most);
  } else if (zps_served_rows_get(work, most, &rows, &values)) {
    round->stats.nnz_out = write_rows(round->exchange, ins, rows, values);
  }
  free(ins);
}

static void finish_run(struct zps_round_task *work) {
  if (work->round->out->layout == ZENPS_ROWS) {
    rows_run(work);
  } else {
    clear_gaps(work);
  }
}

static void finish_done(struct zps_round_task *work) {
  if (!zps_round_machine_over(work->round->machine)) zps_peer_decoded(work->round->exchange);
}

static bool covers_all(const struct zps_peer_round *exchange) {
  uint64_t covered = 0;
  for (uint32_t i = 0; i < exchange->n_results; i++) {
    const struct zps_compute_in in = result_in(exchange, exchange->results[i]);
    covered += in.hi - in.lo;
  }
  return covered == exchange->scheme->plan.rows;
}

void zps_peer_finish(struct zps_peer_round *exchange) {
  struct zps_round *round = exchange->round;
  if (round->out->layout == ZENPS_DENSE && covers_all(exchange)) {
    zps_peer_decoded(exchange);
  } else {
    zps_round_task_start(&exchange->finish, round->plane->pool);
  }
}

void zps_peer_result_init(struct zps_peer_round *exchange) {
  exchange->finish = (struct zps_round_task){.round = exchange->round, .run = finish_run, .done = finish_done};
}
