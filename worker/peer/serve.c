/*
 * SERVE: a round over servers within one between ranks. The streams become rows, which a round of the inner tensor
 * pushes; what it pulls becomes the stream that comes out.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/container.h"
#include "worker/peer/peer.h"

void zps_peer_serve_free(struct zps_peer_round *round) {
  struct zps_peer_serve *serve = &round->serve;
  free(serve->rows);
  free(serve->values);
  if (round->base.tensor->peer->inner) round->base.tensor->peer->inner->end(&serve->inner);
  *serve = (struct zps_peer_serve){0};
}

static void fail(struct zps_peer_round *round, zps_err_t code) {
  zps_round_fail(&round->base, code, "what this host's ranks have cannot be pushed: %s", zps_err_str(code));
}

/* ------------------------------------------------------------ out of it */

static void encode_run(struct zps_round_task *work) {
  struct zps_peer_task *task = zps_container_of(work, struct zps_peer_task, task);
  const struct zps_peer_round *round = task->round;
  const zenps_grad_t *out = &round->serve.out;
  struct zps_plane *plane = round->base.plane;
  struct zps_compute_scratch *scratch = zps_scratch_get(plane->scratches);
  struct zps_error error;
  const zps_err_t err = zps_compute_rows(&round->compute, scratch, &task->compute.out, out->row_ids, out->values,
                                         out->nnz, task->out, &task->what);
  zps_scratch_put(plane->scratches, scratch);
  if (err == ZPS_OK) return;
  zps_fail(&error, err, "the sums cannot be shared with this host's ranks: %s", zps_err_str(err));
  zps_round_task_fail(work, &error);
}

static void encode_done(struct zps_round_task *work) {
  struct zps_peer_task *task = zps_container_of(work, struct zps_peer_task, task);
  struct zps_peer_round *round = task->round;
  if (zps_round_machine_over(work->round->machine)) return;
  zps_peer_serve_free(round);
  zps_peer_computed(task);
  zps_peer_due(round);
}

void zps_peer_serve_encode(struct zps_peer_task *task) {
  task->task.run = encode_run;
  task->task.done = encode_done;
  zps_round_task_start(&task->task, task->round->base.plane->pool);
}

/* Adds the costs of the round within to this round's. */
static void add_costs(zenps_request_stats_t *sum, const zenps_request_stats_t *more) {
  sum->bytes_out += more->bytes_out;
  sum->bytes_in += more->bytes_in;
  sum->payload_out += more->payload_out;
  sum->payload_in += more->payload_in;
  sum->shared_out += more->shared_out;
  sum->shared_in += more->shared_in;
}

static void served(struct zps_inner_round *done, const struct zps_round *inner, const zenps_error_t *error) {
  struct zps_peer_round *round = zps_container_of(done, struct zps_peer_round, serve.inner);
  struct zps_round *base = &round->base;
  struct zps_peer_serve *serve = &round->serve;
  base->n_tasks--;
  zps_round_touch(base);
  serve->in_flight = false;
  add_costs(&base->stats, &inner->stats);
  if (base->machine->state == ZPS_MACHINE_FAILED && base->machine->code == ZPS_ERR_TIMEOUT)
    snprintf(serve->silent, sizeof serve->silent, "%s", inner->reason.text);
  if (zps_round_machine_over(base->machine)) return;
  if (error->status != ZENPS_OK) {
    char text[sizeof base->reason.text];
    snprintf(text, sizeof text, "%s", inner->reason.text);
    base->reason.n_ranks = inner->reason.n_ranks;
    memcpy(base->reason.ranks, inner->reason.ranks, sizeof base->reason.ranks);
    zps_round_fail(base, (zps_err_t)error->status, "%s", text);
    return;
  }
  serve->awaits_others = false;
  const uint64_t bound = zps_compute_rows_bound(&round->compute, &serve->task->compute.out, serve->out.nnz);
  const zps_err_t err = zps_peer_get_memory(serve->task, bound);
  if (err == ZPS_OK) {
    zps_peer_serve_encode(serve->task);
  } else if (err != ZPS_ERR_AGAIN) {
    zps_peer_no_memory(round, serve->task->instr);
  }
}

/* ------------------------------------------------------------ into it */

static zps_err_t begin_inner(struct zps_peer_round *round) {
  struct zps_peer_serve *serve = &round->serve;
  struct zps_round *base = &round->base;
  struct zps_inner_service *service = base->tensor->peer->inner;
  const uint64_t now_ns = zps_clock_ns();
  const uint64_t left_ms = now_ns < base->deadline_ns ? (base->deadline_ns - now_ns) / ZPS_NS_PER_MS : 0;
  if (!service) return ZPS_ERR_INTERNAL;
  ZENPS_GRAD_INIT(&serve->out);
  serve->out.layout = ZENPS_ROWS;
  serve->inner = (struct zps_inner_round){
      .step = base->step, .timeout_ms = left_ms + 1, .in = &serve->in, .out = &serve->out, .over = served};
  serve->in_flight = serve->awaits_others = true;
  base->n_tasks++; /* the round is not over before the one within it is */
  const zps_err_t err = service->begin(service, &serve->inner);
  if (err == ZPS_OK) return err;
  serve->in_flight = serve->awaits_others = false;
  base->n_tasks--;
  return err;
}

/* Rows of zeros, which sums of all rows have where no rank had any, are not pushed. */
static void gather_run(struct zps_round_task *work) {
  struct zps_peer_task *task = zps_container_of(work, struct zps_peer_task, task);
  struct zps_peer_round *round = task->round;
  struct zps_peer_serve *serve = &round->serve;
  uint64_t n = 0;
  for (uint32_t i = 0; i < task->compute.instr.n_in; i++) {
    const struct zps_compute_in *in = &task->compute.ins[i];
    n += zps_compute_result_rows(in, round->compute.dtype, 1, zps_peer_fills_up(round, in), serve->rows + n,
                                 (char *)serve->values + n * zps_peer_row_bytes(round));
  }
  serve->in.nnz = n;
}

static void gather_done(struct zps_round_task *work) {
  struct zps_peer_round *round = zps_peer_of(work->round);
  if (zps_round_machine_over(work->round->machine)) return;
  const zps_err_t err = begin_inner(round);
  if (err != ZPS_OK) fail(round, err);
}

/* All rows in one stream: a dense gradient. */
static bool as_it_is(const struct zps_peer_task *task) {
  const struct zps_compute_in *in = task->compute.ins;
  return task->compute.instr.n_in == 1 && zps_peer_fills_up(task->round, in) &&
         in->view.value_codec == ZPS_VALUES_RAW && in->lo == task->compute.out.lo && in->hi == task->compute.out.hi;
}

void zps_peer_serve(struct zps_peer_task *task) {
  struct zps_peer_round *round = task->round;
  struct zps_peer_serve *serve = &round->serve;
  uint64_t most = 0;
  serve->task = task;
  ZENPS_GRAD_INIT(&serve->in);
  if (as_it_is(task)) {
    serve->in.layout = ZENPS_DENSE;
    serve->in.values = (void *)task->compute.ins->view.values;
    const zps_err_t err = begin_inner(round);
    if (err != ZPS_OK) fail(round, err);
    return;
  }
  for (uint32_t i = 0; i < task->compute.instr.n_in; i++) most += task->compute.ins[i].view.z;
  serve->rows = malloc((most + 1) * sizeof *serve->rows);
  serve->values = malloc((most + 1) * zps_peer_row_bytes(round));
  if (!serve->rows || !serve->values) {
    fail(round, ZPS_ERR_NOMEM);
    return;
  }
  serve->in.layout = ZENPS_ROWS;
  serve->in.row_ids = serve->rows;
  serve->in.values = serve->values;
  task->task.run = gather_run;
  task->task.done = gather_done;
  zps_round_task_start(&task->task, round->base.plane->pool);
}

/* ------------------------------------------------------------ trouble */

/* The servers are told why, and which ranks are missing. */
void zps_peer_serve_give_up(struct zps_peer_round *round) {
  const struct zps_round *base = &round->base;
  struct zps_peer_serve *serve = &round->serve;
  if (!serve->in_flight) return;
  struct zps_inner_service *service = base->tensor->peer->inner;
  struct zps_round *inner = zps_rounds_find(base->rounds, service->tensor, base->step);
  if (!inner || !service->is_round(&serve->inner, inner)) {
    service->cancel(&serve->inner);
    return;
  }
  if (base->machine->code == ZPS_ERR_TIMEOUT) { /* which servers it waits for, it knows itself */
    zps_round_event(inner, ZPS_MACHINE_FAIL, 0, 0, ZPS_ERR_TIMEOUT);
    return;
  }
  inner->reason.n_ranks = base->reason.n_ranks;
  memcpy(inner->reason.ranks, base->reason.ranks, sizeof inner->reason.ranks);
  zps_round_fail(inner, base->machine->code, "%s",
                 base->reason.text[0] ? base->reason.text : zps_err_str(base->machine->code));
}

bool zps_peer_serve_awaits(const struct zps_peer_round *round, uint32_t rank) {
  const struct zps_peer_tensor *scheme = round->base.tensor->peer;
  if (!round->serve.awaits_others) return false;
  for (uint32_t i = 0; i < scheme->n_masters; i++) {
    if (scheme->masters[i] == rank) return true;
  }
  return false;
}
