/* RESULT into a dense array: each as it comes. A SUM whose only reader is a RESULT is not coded on the way. */
#include <stdatomic.h>
#include <stdlib.h>

#include "common/base/container.h"
#include "worker/peer/peer.h"

/* One more thread is woken for each PIECE_BYTES of the array. With several threads there are more pieces than threads,
 * so that none waits long for a thread that gets no processor. */
#define PIECE_BYTES (8u << 20)
#define PIECES_PER_THREAD 4u

struct delivery {
  const struct zps_peer_task *task;
  uint64_t lo, hi, dense_bytes;
  unsigned n_pieces;
  _Atomic uint64_t n_rows;
  _Atomic int code; /* the first failure */
};

/* Where piece `i` begins: where a sum may be taken up. */
static uint64_t piece_begin(const struct delivery *delivery, unsigned i) {
  const uint64_t n = (delivery->hi - delivery->lo) * i / delivery->n_pieces;
  return i == delivery->n_pieces ? delivery->hi : delivery->lo + n / ZPS_DELIVER_ALIGN * ZPS_DELIVER_ALIGN;
}

static void deliver_piece(void *ctx, unsigned i) {
  struct delivery *delivery = ctx;
  const struct zps_peer_task *task = delivery->task;
  const struct zps_round *base = &task->round->base;
  struct zps_compute_scratch *scratch = zps_scratch_get(base->plane->scratches);
  uint64_t n_rows = 0;
  const bool is_rounded =
      task->compute.instr.type == ZPS_INSTR_RESULT && zps_peer_is_rounded(task->round, &task->compute.ins->view);
  const struct zps_compute_result result = {.dtype = base->tensor->dtype,
                                            .dense = base->out->values,
                                            .dense_bytes = delivery->dense_bytes,
                                            .lo = piece_begin(delivery, i),
                                            .hi = piece_begin(delivery, i + 1),
                                            .divisor = is_rounded ? 1 : task->round->compute.divisor,
                                            .is_rounded = is_rounded};
  const zps_err_t err =
      zps_compute_result_dense(scratch, task->compute.ins, task->compute.instr.n_in, &result, &n_rows);
  zps_scratch_put(base->plane->scratches, scratch);
  int none = ZPS_OK;
  if (err != ZPS_OK) atomic_compare_exchange_strong(&delivery->code, &none, (int)err);
  atomic_fetch_add(&delivery->n_rows, n_rows);
}

static void deliver_run(struct zps_round_task *work) {
  struct zps_peer_task *task = zps_container_of(work, struct zps_peer_task, task);
  const struct zps_peer_round *round = task->round;
  struct zps_workpool *pool = work->round->plane->pool;
  struct delivery delivery = {.task = task,
                              .lo = task->compute.ins->lo,
                              .hi = task->compute.ins->hi,
                              .dense_bytes = round->base.tensor->peer->plan.rows * zps_peer_array_row_bytes(round)};
  const uint64_t most = 1 + (delivery.hi - delivery.lo) * zps_peer_row_bytes(round) / PIECE_BYTES;
  const unsigned n_threads = 1 + zps_workpool_idle(pool);
  const uint64_t n_pieces = n_threads > 1 ? (uint64_t)PIECES_PER_THREAD * n_threads : 1;
  delivery.n_pieces = (unsigned)(most < n_pieces ? most : n_pieces);
  if (delivery.n_pieces == 1)
    deliver_piece(&delivery, 0);
  else
    zps_workpool_for(pool, delivery.n_pieces, deliver_piece, &delivery);
  task->n_rows = delivery.n_rows;
  if (delivery.code == ZPS_OK) return;
  struct zps_error error;
  zps_fail(&error, (zps_err_t)delivery.code, "no memory to take a result");
  zps_round_task_fail(work, &error);
}

static void deliver_done(struct zps_round_task *work) {
  struct zps_peer_task *task = zps_container_of(work, struct zps_peer_task, task);
  if (zps_round_machine_over(work->round->machine)) return;
  if (task->compute.instr.type == ZPS_INSTR_SUM) {
    const struct zps_stream *range = &task->compute.out;
    const struct zps_slice_view view = {.codec = ZPS_CODEC_COO,
                                        .dtype = task->round->compute.dtype,
                                        .value_codec = ZPS_VALUES_RAW,
                                        .m = (uint32_t)(range->hi - range->lo),
                                        .z = (uint32_t)task->n_rows,
                                        .width = task->round->compute.width};
    zps_peer_set_stream(task->round, task->instr, &view, NULL);
    task->round->streams[task->compute.instr.out].delivered = true;
  }
  zps_peer_carried_out(task->round, task->instr);
  zps_peer_task_put(task);
  zps_peer_due(zps_peer_of(work->round));
}

void zps_peer_deliver(struct zps_peer_task *task) {
  task->task.run = deliver_run;
  task->task.done = deliver_done;
  zps_round_task_start(&task->task, task->round->base.plane->pool);
}

/* With the gradient in the same array (in place), nothing is written before all of it was read. */
bool zps_peer_must_not_write(const struct zps_peer_round *round) {
  const struct zps_round *base = &round->base;
  return base->out->values == base->in.values && (round->n_owns > 0 || round->run.n_calls > 0);
}

bool zps_peer_delivers(const struct zps_peer_round *round, uint32_t instr) {
  const struct zps_program *program = &round->program;
  const struct zps_instr *sum = &program->instrs[instr];
  const enum zps_op op = round->compute.op;
  if (sum->type != ZPS_INSTR_SUM || round->base.out->layout != ZENPS_DENSE || round->run.n_calls > 0 ||
      (op != ZPS_OP_SUM && op != ZPS_OP_MEAN) || zps_peer_must_not_write(round))
    return false;
  const struct zps_stream *out = &program->streams[sum->out];
  if (out->kind != ZPS_STREAM_ROWS || out->n_readers != 1) return false;
  return program->instrs[zps_run_reader(&round->run, sum->out)].type == ZPS_INSTR_RESULT;
}
