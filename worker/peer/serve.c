/*
 * OFFER, REACH, MERGE: the sum of this host's ranks, made on a device (merge.c).
 * SERVE: a round over servers within one between ranks. The streams become rows, which a round of the inner tensor
 * pushes; what it pulls becomes the stream that comes out.
 */
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
  const zenps_grad_t *rows = task->compute.instr.type == ZPS_INSTR_MERGE ? &round->merged : &round->serve.out;
  struct zps_plane *plane = round->base.plane;
  struct zps_compute_scratch *scratch = zps_scratch_get(plane->scratches);
  struct zps_error error;
  const zps_err_t err = zps_compute_rows(&round->compute, scratch, &task->compute.out, rows->row_ids, rows->values,
                                         rows->nnz, task->out, &task->what);
  zps_scratch_put(plane->scratches, scratch);
  if (err == ZPS_OK) return;
  zps_fail(&error, err, "the sums cannot be shared with this host's ranks: %s", zps_err_str(err));
  zps_round_task_fail(work, &error);
}

static void encode_done(struct zps_round_task *work) {
  struct zps_peer_task *task = zps_container_of(work, struct zps_peer_task, task);
  struct zps_peer_round *round = task->round;
  if (zps_round_machine_over(work->round->machine)) return;
  if (task->compute.instr.type == ZPS_INSTR_SERVE) zps_peer_serve_free(round);
  zps_peer_computed(task);
  zps_peer_due(round);
}

void zps_peer_rows_encode(struct zps_peer_task *task) {
  task->task.run = encode_run;
  task->task.done = encode_done;
  zps_round_task_start(&task->task, task->round->base.plane->pool);
}

/* Makes the stream of `rows`, once there is memory. */
static void encode(struct zps_peer_task *task, const zenps_grad_t *rows) {
  const struct zps_compute *compute = &task->round->compute;
  const zps_err_t err = zps_peer_get_memory(task, zps_compute_rows_bound(compute, &task->compute.out, rows->nnz));
  if (err == ZPS_OK) {
    zps_peer_rows_encode(task);
  } else if (err != ZPS_ERR_AGAIN) {
    zps_peer_no_memory(task->round, task->instr);
  }
}

/* ------------------------------------------------------------ OFFER and REACH
 *
 * The gradient of a program that begins with an OFFER is left where it is. It is brought to host memory when the scheme
 * goes on with OWNs, because not all could be reached. */

/* Goes on as VECTOR, of numbers that are known now. */
static void as_vector(struct zps_peer_task *task, const double *doubles, uint32_t n) {
  struct zps_peer_round *round = task->round;
  memcpy(round->program.doubles + task->compute.instr.from, doubles, n * sizeof *doubles);
  task->compute.instr.type = ZPS_INSTR_VECTOR;
  const zps_err_t err = zps_peer_get_memory(task, zps_compute_bound(&round->compute, &task->compute));
  if (err == ZPS_OK) {
    zps_peer_start_task(task);
  } else if (err != ZPS_ERR_AGAIN) {
    zps_peer_no_memory(round, task->instr);
  }
}

static bool is_on_device(const struct zps_peer_round *round) {
  return round->base.in.memory == ZENPS_DEVICE && round->base.device;
}

/* On the thread of the device that is given gradients. */
static void start_there(struct zps_peer_task *task, void (*run)(struct zps_round_task *),
                        void (*done)(struct zps_round_task *)) {
  task->task.run = run;
  task->task.done = done;
  zps_round_task_start(&task->task, task->round->base.device->in_pool);
}

static void offer_done(struct zps_round_task *work) {
  struct zps_peer_task *task = zps_container_of(work, struct zps_peer_task, task);
  if (zps_round_machine_over(work->round->machine)) return;
  as_vector(task, task->round->offer, ZPS_OFFER_LEN);
  zps_peer_due(task->round);
}

void zps_peer_offer(struct zps_peer_task *task) {
  struct zps_peer_round *round = task->round;
  memset(round->offer, 0, sizeof round->offer);
  if (is_on_device(round)) {
    start_there(task, zps_peer_offer_run, offer_done);
  } else {
    as_vector(task, round->offer, ZPS_OFFER_LEN);
  }
}

static void reach_done(struct zps_round_task *work) {
  struct zps_peer_task *task = zps_container_of(work, struct zps_peer_task, task);
  if (zps_round_machine_over(work->round->machine)) return;
  as_vector(task, &(double){task->round->reaches}, 1);
  zps_peer_due(task->round);
}

void zps_peer_reach(struct zps_peer_task *task) {
  if (!zps_peer_take_offers(task)) {
    zps_peer_no_memory(task->round, task->instr);
  } else if (is_on_device(task->round)) {
    start_there(task, zps_peer_reach_run, reach_done);
  } else {
    as_vector(task, &(double){0}, 1);
  }
}

void zps_peer_call_done(struct zps_peer_round *round) {
  struct zps_round *base = &round->base;
  struct zps_error error;
  round->held = false;
  if (round->n_owns == 0) {
    base->stats.merged_in = ZENPS_DEVICE;
    base->stats.nnz_in = zps_merge_offer_rows(round->offer);
  } else if (zps_peer_scan(round, &error) != ZPS_OK) {
    zps_round_fail(base, error.code, "%s", error.text);
  }
}

/* ------------------------------------------------------------ MERGE: into it, or on in host memory */

static void merge_done(struct zps_round_task *work) {
  struct zps_peer_task *task = zps_container_of(work, struct zps_peer_task, task);
  struct zps_peer_round *round = task->round;
  if (zps_round_machine_over(work->round->machine)) return;
  if (!round->merged_is_served) {
    encode(task, &round->merged);
  } else { /* SERVE takes it where it is */
    const uint32_t m = (uint32_t)(task->compute.out.hi - task->compute.out.lo);
    const struct zps_slice_view none =
        zps_slice_view_own(ZPS_CODEC_COO, m, 0, round->compute.width, round->compute.dtype, ZPS_VALUES_RAW, NULL, 0);
    zps_peer_set_stream(round, task->instr, &none, NULL);
    zps_peer_carried_out(round, task->instr);
    zps_peer_task_put(task);
  }
  zps_peer_due(round);
}

void zps_peer_merge(struct zps_peer_task *task) {
  struct zps_peer_round *round = task->round;
  const struct zps_program *program = &round->program;
  round->merged_is_served = false;
  for (uint32_t i = task->instr + 1; i < program->n_instrs; i++) {
    if (program->instrs[i].type != ZPS_INSTR_SERVE) continue;
    round->merged_is_served = *zps_instr_ins(program, &program->instrs[i]) == task->compute.instr.out;
  }
  start_there(task, zps_peer_merge_run, merge_done);
}

/* ------------------------------------------------------------ the round within */

/* Adds the costs of the round within to this round's. */
static void add_costs(zenps_request_stats_t *sum, const zenps_request_stats_t *more) {
  sum->bytes_out += more->bytes_out;
  sum->bytes_in += more->bytes_in;
  sum->payload_out += more->payload_out;
  sum->payload_in += more->payload_in;
  sum->shared_out += more->shared_out;
  sum->shared_in += more->shared_in;
  sum->partitioned_in = more->partitioned_in;
  sum->hash_parallel += more->hash_parallel;
  sum->hash_serial += more->hash_serial;
  sum->hash_lost_races += more->hash_lost_races;
}

static void served(struct zps_nested_round *done, const struct zps_round *inner, const zenps_error_t *error) {
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
  encode(serve->task, &serve->out);
}

/* ------------------------------------------------------------ into it */

static zps_err_t begin_inner(struct zps_peer_round *round) {
  struct zps_peer_serve *serve = &round->serve;
  struct zps_round *base = &round->base;
  struct zps_nested_service *service = base->tensor->peer->inner;
  const uint64_t now_ns = zps_clock_ns();
  const uint64_t left_ms = now_ns < base->deadline_ns ? (base->deadline_ns - now_ns) / ZPS_NS_PER_MS : 0;
  if (!service) return ZPS_ERR_INTERNAL;
  ZENPS_GRAD_INIT(&serve->out);
  serve->out.layout = ZENPS_ROWS;
  serve->inner = (struct zps_nested_round){.step = base->step,
                                           .timeout_ms = left_ms + 1,
                                           .seen_to = base->seen_to,
                                           .in = &serve->in,
                                           .out = &serve->out,
                                           .over = served};
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
  if (round->merged_is_served) {
    serve->in = round->merged;
    const zps_err_t err = begin_inner(round);
    if (err != ZPS_OK) fail(round, err);
    return;
  }
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
  struct zps_nested_service *service = base->tensor->peer->inner;
  struct zps_round *inner = zps_rounds_find(base->rounds, service->tensor, base->step);
  if (!inner || !service->is_round(&serve->inner, inner)) {
    service->cancel(&serve->inner);
    return;
  }
  if (base->machine->code == ZPS_ERR_TIMEOUT) { /* it knows itself which servers it waits for */
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
