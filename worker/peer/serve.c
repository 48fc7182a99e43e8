/*
 * SERVE: a round over servers within one between workers. The streams become rows, which a round of the inner tensor
 * pushes; what it pulls becomes the stream that comes out.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/container.h"
#include "worker/peer/peer.h"
#include "worker/api/job.h"
#include "worker/api/request.h"
#include "worker/choice/topology.h"
#include "worker/api/tensor.h"

static size_t row_bytes(const struct zps_peer_round *exchange) {
  return exchange->compute.width * zps_dtype_size(exchange->compute.dtype);
}

void zps_peer_serve_free(struct zps_peer_serve *serve) {
  free(serve->rows);
  free(serve->values);
  zps_worker_request_destroy(serve->request);
  *serve = (struct zps_peer_serve){0};
}

static void fail(struct zps_peer_round *exchange, zps_err_t code) {
  zps_round_fail(exchange->round, code, "what this host's ranks have cannot be pushed: %s", zps_err_str(code));
}

/* ------------------------------------------------------------ out of it */

static void encode_run(struct zps_round_task *work) {
  struct zps_peer_task *task = zps_container_of(work, struct zps_peer_task, task);
  const struct zps_peer_round *exchange = task->exchange;
  const zenps_grad_t *out = &exchange->serve.out;
  struct zps_plane *plane = exchange->round->plane;
  struct zps_compute_scratch *scratch = zps_scratch_get(plane->scratches);
  struct zps_error error;
  const zps_err_t err = zps_compute_rows(&exchange->compute, scratch, &task->compute.out, out->row_ids, out->values,
                                         out->nnz, task->out, &task->what);
  zps_scratch_put(plane->scratches, scratch);
  if (err == ZPS_OK) return;
  zps_fail(&error, err, "the sums cannot be shared with this host's ranks: %s", zps_err_str(err));
  zps_round_task_fail(work, &error);
}

static void encode_done(struct zps_round_task *work) {
  struct zps_peer_task *task = zps_container_of(work, struct zps_peer_task, task);
  struct zps_peer_round *exchange = task->exchange;
  if (zps_round_machine_over(work->round->machine)) return;
  zps_peer_serve_free(&exchange->serve);
  zps_peer_computed(task);
  zps_peer_advance(exchange);
}

void zps_peer_serve_encode(struct zps_peer_task *task) {
  task->task.run = encode_run;
  task->task.done = encode_done;
  zps_round_task_start(&task->task, task->exchange->round->plane->pool);
}

/* The costs of a round within are the round's. */
static void add_costs(zenps_request_stats_t *sum, const zenps_request_stats_t *more) {
  sum->bytes_out += more->bytes_out;
  sum->bytes_in += more->bytes_in;
  sum->payload_out += more->payload_out;
  sum->payload_in += more->payload_in;
  sum->shared_out += more->shared_out;
  sum->shared_in += more->shared_in;
}

/* The inner round is over; it lives on until this returns. */
static void served(struct zenps_request *request, const struct zps_round *inner) {
  struct zps_peer_round *exchange = request->then_ctx;
  struct zps_round *round = exchange->round;
  struct zps_peer_serve *serve = &exchange->serve;
  round->n_tasks--;
  zps_round_touch(round);
  serve->in_flight = false;
  add_costs(&round->stats, &request->stats);
  if (round->machine->state == ZPS_MACHINE_FAILED && round->machine->code == ZPS_ERR_TIMEOUT)
    snprintf(serve->silent, sizeof serve->silent, "%s", inner->reason.text);
  if (zps_round_machine_over(round->machine)) return;
  if (request->error.status != ZENPS_OK) {
    char text[sizeof round->reason.text];
    snprintf(text, sizeof text, "%s", inner->reason.text);
    round->reason.n_ranks = inner->reason.n_ranks;
    memcpy(round->reason.ranks, inner->reason.ranks, sizeof round->reason.ranks);
    zps_round_fail(round, (zps_err_t)request->error.status, "%s", text);
    return;
  }
  serve->awaits_others = false;
  const uint64_t bound = zps_compute_rows_bound(&exchange->compute, &serve->task->compute.out, serve->out.nnz);
  const zps_err_t err = zps_peer_get_memory(serve->task, bound);
  if (err == ZPS_OK) {
    zps_peer_serve_encode(serve->task);
  } else if (err != ZPS_ERR_AGAIN) {
    zps_peer_no_memory(exchange, serve->task->instr);
  }
}

/* ------------------------------------------------------------ into it */

/* On the engine thread, where the round within lives too. */
static zps_err_t begin_inner(struct zps_peer_round *exchange) {
  struct zps_peer_serve *serve = &exchange->serve;
  struct zps_round *round = exchange->round, *inner;
  struct zenps_tensor *tensor = exchange->scheme->served;
  const uint64_t now_ns = zps_clock_ns();
  const uint64_t left_ms = now_ns < round->deadline_ns ? (round->deadline_ns - now_ns) / ZPS_NS_PER_MS : 0;
  zps_err_t err = tensor ? zps_worker_request_create(tensor, &serve->request) : ZPS_ERR_INTERNAL;
  if (err != ZPS_OK) return err;
  serve->request->then = served;
  serve->request->then_ctx = exchange;
  ZENPS_GRAD_INIT(&serve->out);
  serve->out.layout = ZENPS_ROWS;
  pthread_mutex_lock(&tensor->job->lock);
  err = zps_worker_tensor_round_get(tensor, round->step, &inner);
  if (err == ZPS_OK) {
    serve->request->round = inner;
    zps_round_setup(inner, serve->request, round->step, &serve->in, &serve->out, left_ms + 1);
  }
  pthread_mutex_unlock(&tensor->job->lock);
  if (err != ZPS_OK) return err;
  serve->in_flight = serve->awaits_others = true;
  round->n_tasks++; /* the round is not over before the one within it is */
  if (inner->ops->prepare) inner->ops->prepare(inner);
  zps_round_launch(inner);
  return err;
}

/* Rows of zeros, which sums of all rows have where no rank had any, are not pushed. */
static void gather_run(struct zps_round_task *work) {
  struct zps_peer_task *task = zps_container_of(work, struct zps_peer_task, task);
  struct zps_peer_round *exchange = task->exchange;
  struct zps_peer_serve *serve = &exchange->serve;
  uint64_t n = 0;
  for (uint32_t i = 0; i < task->compute.instr.n_in; i++) {
    const struct zps_compute_in *in = &task->compute.ins[i];
    n += zps_compute_result_rows(in, 1, zps_peer_fills_up(exchange, in), serve->rows + n,
                                 (char *)serve->values + n * row_bytes(exchange));
  }
  serve->in.nnz = n;
}

static void gather_done(struct zps_round_task *work) {
  struct zps_peer_round *exchange = work->round->exchange;
  if (zps_round_machine_over(work->round->machine)) return;
  const zps_err_t err = begin_inner(exchange);
  if (err != ZPS_OK) fail(exchange, err);
}

/* All rows in one stream: a dense gradient. */
static bool as_it_is(const struct zps_peer_task *task) {
  const struct zps_compute_in *in = task->compute.ins;
  return task->compute.instr.n_in == 1 && zps_peer_fills_up(task->exchange, in) &&
         in->view.value_codec == ZPS_VALUES_RAW && in->lo == task->compute.out.lo && in->hi == task->compute.out.hi;
}

void zps_peer_serve(struct zps_peer_task *task) {
  struct zps_peer_round *exchange = task->exchange;
  struct zps_peer_serve *serve = &exchange->serve;
  uint64_t most = 0;
  serve->task = task;
  ZENPS_GRAD_INIT(&serve->in);
  if (as_it_is(task)) {
    serve->in.layout = ZENPS_DENSE;
    serve->in.values = (void *)task->compute.ins->view.values;
    const zps_err_t err = begin_inner(exchange);
    if (err != ZPS_OK) fail(exchange, err);
    return;
  }
  for (uint32_t i = 0; i < task->compute.instr.n_in; i++) most += task->compute.ins[i].view.z;
  serve->rows = malloc((most + 1) * sizeof *serve->rows);
  serve->values = malloc((most + 1) * row_bytes(exchange));
  if (!serve->rows || !serve->values) {
    fail(exchange, ZPS_ERR_NOMEM);
    return;
  }
  serve->in.layout = ZENPS_ROWS;
  serve->in.row_ids = serve->rows;
  serve->in.values = serve->values;
  task->task.run = gather_run;
  task->task.done = gather_done;
  zps_round_task_start(&task->task, exchange->round->plane->pool);
}

/* ------------------------------------------------------------ trouble */

/* The servers are told why, and whom it misses. */
void zps_peer_serve_give_up(struct zps_peer_round *exchange) {
  const struct zps_round *round = exchange->round;
  struct zps_peer_serve *serve = &exchange->serve;
  if (!serve->in_flight) return;
  struct zenps_tensor *tensor = exchange->scheme->served;
  struct zps_round *inner = zps_plane_round_find(round->plane, tensor->id, round->step);
  const bool begun = inner && inner == serve->request->round;
  if (begun && round->machine->code == ZPS_ERR_TIMEOUT) { /* whom it waits for, it knows itself */
    zps_round_event(inner, ZPS_MACHINE_FAIL, 0, 0, ZPS_ERR_TIMEOUT);
    return;
  }
  if (begun) {
    inner->reason.n_ranks = round->reason.n_ranks;
    memcpy(inner->reason.ranks, round->reason.ranks, sizeof inner->reason.ranks);
    zps_round_fail(inner, round->machine->code, "%s",
                   round->reason.text[0] ? round->reason.text : zps_err_str(round->machine->code));
    return;
  }
  pthread_mutex_lock(&tensor->job->lock); /* it has not begun yet */
  if (serve->request->round) zps_round_cancel(serve->request->round);
  pthread_mutex_unlock(&tensor->job->lock);
}

bool zps_peer_serve_awaits(const struct zps_peer_round *exchange, uint32_t rank) {
  const struct zps_tensor_scheme *scheme = exchange->scheme;
  if (!exchange->serve.awaits_others) return false;
  for (uint32_t i = 0; i < scheme->n_masters; i++) {
    if (scheme->masters[i] == rank) return true;
  }
  return false;
}
