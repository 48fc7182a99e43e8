/* Instructions: from due to carried out. */
#include <inttypes.h>
#include <stdlib.h>

#include "common/base/container.h"
#include "worker/peer/peer.h"
#include "worker/api/job.h"
#include "worker/choice/topology.h"
#include "worker/api/tensor.h"

/* What is so small is done here and now: a thread of the pool would take longer to wake up. */
#define ON_THE_SPOT_BYTES 4096u
#define ON_THE_SPOT_INS 64u
/* Rows that were found are only copied and coded: some 50 us, what waking a thread, and being woken by it, takes. */
#define ON_THE_SPOT_OWN_BYTES (160u << 10)

static bool enlarge(void **array_p, uint32_t n, size_t size) {
  void *grown = realloc(*array_p, (size_t)n * size);
  if (grown) *array_p = grown;
  return grown != NULL;
}

zps_err_t zps_peer_fit(struct zps_peer_round *exchange) {
  const struct zps_program *program = &exchange->program;
  if (program->n_streams > exchange->cap_streams) {
    if (!enlarge((void **)&exchange->streams, program->cap_streams, sizeof *exchange->streams)) return ZPS_ERR_NOMEM;
    exchange->cap_streams = program->cap_streams;
  }
  const uint32_t n = program->cap_instrs, from = exchange->cap_instrs;
  if (program->n_instrs <= from) return ZPS_OK;
  if (!enlarge((void **)&exchange->announced, n, sizeof(struct zps_peer_task *)) ||
      !enlarge((void **)&exchange->send_next, n, sizeof *exchange->send_next) ||
      !enlarge((void **)&exchange->results, n, sizeof *exchange->results))
    return ZPS_ERR_NOMEM;
  exchange->cap_instrs = n;
  return ZPS_OK;
}

struct zps_compute_in zps_peer_in(const struct zps_peer_round *exchange, uint32_t stream) {
  const struct zps_stream *range = &exchange->program.streams[stream];
  return (struct zps_compute_in){.lo = range->lo, .hi = range->hi, .view = exchange->streams[stream].view};
}

void zps_peer_set_stream(struct zps_peer_round *exchange, uint32_t instr, const struct zps_slice_view *view,
                         struct zps_peer_mem *mem) {
  struct zps_peer_stream *stream = &exchange->streams[exchange->program.instrs[instr].out];
  stream->view = *view;
  stream->delivered = false;
  stream->mem = mem;
  stream->len_bytes =
      zps_values_bytes(view->value_codec, view->dtype, (uint64_t)view->z * view->width) + view->index_bytes;
}

static void drop_unused(struct zps_peer_round *exchange, uint32_t stream) {
  struct zps_peer_mem *mem = exchange->streams[stream].mem;
  if (!mem || !zps_run_unused(&exchange->run, stream)) return;
  exchange->streams[stream].mem = NULL;
  zps_peer_mem_unref(exchange, mem);
}

void zps_peer_carried_out(struct zps_peer_round *exchange, uint32_t i) {
  const struct zps_instr *instr = &exchange->program.instrs[i];
  const bool last_call = instr->type == ZPS_INSTR_CALL && exchange->run.n_calls == 1;
  exchange->n_owns -= instr->type == ZPS_INSTR_OWN;
  zps_run_done(&exchange->run, i);
  for (uint32_t j = 0; j < instr->n_in; j++) drop_unused(exchange, exchange->program.ins[instr->first_in + j]);
  if (instr->out != ZPS_STREAM_NONE) drop_unused(exchange, instr->out);
  for (uint32_t s = 0; last_call && s < exchange->program.n_streams; s++) drop_unused(exchange, s);
  zps_peer_results_put_off(exchange);
}

/* ------------------------------------------------------------ computing */

static zps_err_t compute(struct zps_peer_task *task) {
  struct zps_peer_round *exchange = task->exchange;
  struct zps_compute_scratch *scratch = zps_scratch_get(exchange->round->plane->scratches);
  const zps_err_t err = zps_compute_run(&exchange->compute, scratch, &task->compute, task->out, &task->what);
  zps_scratch_put(exchange->round->plane->scratches, scratch);
  return err;
}

void zps_peer_computed(struct zps_peer_task *task) {
  struct zps_peer_round *exchange = task->exchange;
  const struct zps_slice_view view = zps_compute_view(&exchange->compute, &task->compute.out, &task->what, task->out);
  if (exchange->counts_rows && task->compute.instr.type == ZPS_INSTR_OWN) exchange->round->stats.nnz_in += view.z;
  zps_peer_set_stream(exchange, task->instr, &view, task->mem);
  zps_peer_carried_out(exchange, task->instr);
  zps_peer_task_put(task);
}

static void compute_run(struct zps_round_task *work) {
  struct zps_peer_task *task = zps_container_of(work, struct zps_peer_task, task);
  const zps_err_t err = compute(task);
  if (err == ZPS_OK) return;
  struct zps_error error;
  zps_fail(&error, err, "%s: %s", zps_instr_name(task->compute.instr.type), zps_err_str(err));
  zps_round_task_fail(work, &error);
}

static void compute_done(struct zps_round_task *work) {
  struct zps_peer_task *task = zps_container_of(work, struct zps_peer_task, task);
  if (zps_round_machine_over(work->round->machine)) return;
  zps_peer_computed(task);
  zps_peer_advance(work->round->exchange);
}

static bool on_the_spot(const struct zps_peer_task *task) {
  uint64_t bytes = zps_compute_bound(&task->exchange->compute, &task->compute);
  const uint32_t n_in = task->compute.instr.n_in;
  if (task->compute.instr.type == ZPS_INSTR_VECTOR) return true; /* its doubles are the program's, which may grow */
  if (task->compute.instr.type == ZPS_INSTR_OWN) return bytes <= ON_THE_SPOT_OWN_BYTES;
  for (uint32_t i = 0; i < n_in && bytes <= ON_THE_SPOT_BYTES; i++) {
    const struct zps_slice_view *view = &task->compute.ins[i].view;
    bytes += (uint64_t)view->z * view->width * sizeof(double) + view->index_bytes;
  }
  return n_in <= ON_THE_SPOT_INS && bytes <= ON_THE_SPOT_BYTES;
}

void zps_peer_start_task(struct zps_peer_task *task) {
  struct zps_peer_round *exchange = task->exchange;
  if (exchange->program.instrs[task->instr].type == ZPS_INSTR_RECV) {
    zps_peer_read(task);
    return;
  }
  if (exchange->program.instrs[task->instr].type == ZPS_INSTR_SERVE) {
    zps_peer_serve_encode(task);
    return;
  }
  if (task->compute.instr.type == ZPS_INSTR_VECTOR)
    task->compute.doubles = exchange->program.doubles + task->compute.instr.from;
  if (!on_the_spot(task)) {
    task->task.run = compute_run;
    task->task.done = compute_done;
    zps_round_task_start(&task->task, exchange->round->plane->pool);
    return;
  }
  const zps_err_t err = compute(task);
  if (err == ZPS_OK) {
    zps_peer_computed(task);
    zps_round_touch(exchange->round);
  } else {
    zps_round_fail(exchange->round, err, "%s: %s", zps_instr_name(task->compute.instr.type), zps_err_str(err));
  }
}

static bool fill_ins(struct zps_peer_task *task) {
  struct zps_peer_round *exchange = task->exchange;
  const uint32_t n_in = task->compute.instr.n_in;
  if (n_in > task->cap_ins) {
    if (!enlarge((void **)&task->ins, n_in, sizeof *task->ins)) return false;
    task->cap_ins = n_in;
  }
  const uint32_t *ins = zps_instr_ins(&exchange->program, &task->compute.instr);
  for (uint32_t j = 0; j < n_in; j++) task->ins[j] = zps_peer_in(exchange, ins[j]);
  task->compute.ins = task->ins;
  return true;
}

void zps_peer_no_memory(struct zps_peer_round *exchange, uint32_t instr) {
  const struct zps_plane *plane = exchange->round->plane;
  zps_round_fail(exchange->round, ZPS_ERR_NOMEM,
                 "no memory for a %s: of registered memory, %" PRIu64 " bytes are in use of %" PRIu64
                 " (ZENPS_MEMORY_LIMIT)",
                 zps_instr_name(exchange->program.instrs[instr].type), plane->push_held + plane->pull_held,
                 plane->memory_limit_bytes);
}

static void start_compute(struct zps_peer_round *exchange, uint32_t i) {
  struct zps_peer_task *task = zps_peer_task_get(exchange, i);
  if (!task) {
    zps_peer_no_memory(exchange, i);
    return;
  }
  task->compute = zps_compute_task_of(&exchange->program, i);
  struct zps_slice_view view;
  if (!fill_ins(task)) {
    zps_peer_no_memory(exchange, i);
  } else if (zps_peer_delivers(exchange, i)) {
    zps_peer_deliver(task);
  } else if (task->compute.instr.type == ZPS_INSTR_SERVE) {
    zps_peer_serve(task);
  } else if (zps_peer_is_zerocopy(exchange, i, &view)) {
    zps_peer_set_stream(exchange, i, &view, NULL);
    zps_peer_task_put(task);
    zps_peer_carried_out(exchange, i);
  } else if (zps_compute_alias(&task->compute, &view)) {
    struct zps_peer_mem *mem = exchange->streams[*zps_instr_ins(&exchange->program, &task->compute.instr)].mem;
    if (mem) mem->refs++;
    zps_peer_set_stream(exchange, i, &view, mem);
    zps_peer_task_put(task);
    zps_peer_carried_out(exchange, i);
  } else {
    const zps_err_t err = zps_peer_get_memory(task, zps_compute_bound(&exchange->compute, &task->compute));
    if (err == ZPS_OK) {
      zps_peer_start_task(task);
    } else if (err != ZPS_ERR_AGAIN) {
      zps_peer_no_memory(exchange, i);
    }
  }
}

/* ------------------------------------------------------------ the scheme goes on */

static zps_err_t call(struct zps_peer_round *exchange, uint32_t i) {
  struct zps_program *program = &exchange->program;
  const struct zps_instr instr = program->instrs[i];
  const struct zps_tensor_scheme *scheme = exchange->scheme;
  uint64_t n_doubles = 0;
  for (uint32_t j = 0; j < instr.n_in; j++) n_doubles += exchange->streams[program->ins[instr.first_in + j]].view.z;
  double *doubles = malloc((n_doubles + 1) * sizeof *doubles);
  const double **vectors = malloc((instr.n_in + 1) * sizeof *vectors);
  uint32_t *lengths = malloc((instr.n_in + 1) * sizeof *lengths);
  zps_err_t err = doubles && vectors && lengths ? ZPS_OK : ZPS_ERR_NOMEM;
  double *at = doubles;
  for (uint32_t j = 0; err == ZPS_OK && j < instr.n_in; j++) {
    const struct zps_slice_view *view = &exchange->streams[program->ins[instr.first_in + j]].view;
    vectors[j] = at;
    lengths[j] = view->z;
    zps_compute_doubles(view, at);
    at += view->z;
  }
  if (err == ZPS_OK) {
    const uint32_t n_before = program->n_instrs;
    scheme->scheme->extend(&scheme->plan, scheme->state, exchange->number, instr.phase, vectors, lengths, program);
    for (uint32_t j = n_before; j < program->n_instrs; j++)
      exchange->n_owns += program->instrs[j].type == ZPS_INSTR_OWN;
    err = program->code;
  }
  if (err == ZPS_OK) err = zps_peer_fit(exchange);
  if (err == ZPS_OK) err = zps_run_grow(&exchange->run);
  if (err == ZPS_OK && !exchange->scanned && zps_own_must_scan(program, &exchange->input)) err = ZPS_ERR_INTERNAL;
  free(doubles);
  free(vectors);
  free(lengths);
  return err;
}

static void start_call(struct zps_peer_round *exchange, uint32_t i) {
  const zps_err_t err = call(exchange, i);
  if (err != ZPS_OK) {
    zps_round_fail(exchange->round, err, "scheme %s could not go on: %s", exchange->scheme->scheme->name,
                   zps_err_str(err));
    return;
  }
  zps_peer_carried_out(exchange, i);
  zps_peer_offer_unexpected(exchange);
}

/* ------------------------------------------------------------ what is due */

static void start(struct zps_peer_round *exchange, uint32_t i) {
  switch (exchange->program.instrs[i].type) {
    case ZPS_INSTR_SEND:
      zps_peer_queue_send(exchange, i);
      break;
    case ZPS_INSTR_RECV:
      zps_peer_receive(exchange, i);
      break;
    case ZPS_INSTR_CALL:
      start_call(exchange, i);
      break;
    case ZPS_INSTR_RESULT:
      zps_peer_result(exchange, i);
      break;
    default:
      start_compute(exchange, i);
      break;
  }
}

void zps_peer_advance(struct zps_peer_round *exchange) {
  struct zps_round *round = exchange->round;
  if (!exchange->own_ready) return;
  zps_round_touch(round);
  while (!zps_round_machine_over(round->machine)) {
    const uint32_t i = zps_run_take(&exchange->run);
    if (i == UINT32_MAX) break;
    start(exchange, i);
  }
  if (zps_round_machine_over(round->machine) || exchange->finishing || !zps_run_over(&exchange->run)) return;
  exchange->finishing = true;
  zps_peer_finish(exchange);
}
