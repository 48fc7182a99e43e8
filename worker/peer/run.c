/* Instructions: from due to carried out. */
#include <inttypes.h>
#include <stdlib.h>

#include "common/base/container.h"
#include "common/base/enlarge.h"
#include "worker/peer/peer.h"

/* An output of at most so many bytes is made on the spot: a thread of the pool would take longer to wake up. */
#define ON_THE_SPOT_BYTES 4096u
#define ON_THE_SPOT_INS 64u
/* Rows that were found are only copied and coded: some 50 us, what waking a thread, and being woken by it, takes. */
#define ON_THE_SPOT_OWN_BYTES (160u << 10)

/* Scanning this many bytes of rows takes little more time than threads take to wake each other up. */
#define SCAN_HERE_BYTES (256u << 10)

zps_err_t zps_peer_fit(struct zps_peer_round *round) {
  const struct zps_program *program = &round->program;
  if (program->n_streams > round->cap_streams) {
    if (!zps_enlarge(&round->streams, program->cap_streams, sizeof *round->streams)) return ZPS_ERR_NOMEM;
    round->cap_streams = program->cap_streams;
  }
  for (uint32_t s = round->run.n_known_streams; s < program->n_streams; s++) round->streams[s].room = NULL;
  const uint32_t n = program->cap_instrs, from = round->cap_instrs;
  if (program->n_instrs <= from) return ZPS_OK;
  if (!zps_enlarge(&round->announced, n, sizeof(struct zps_peer_task *)) ||
      !zps_enlarge(&round->send_next, n, sizeof *round->send_next) ||
      !zps_enlarge(&round->results, n, sizeof *round->results))
    return ZPS_ERR_NOMEM;
  round->cap_instrs = n;
  return ZPS_OK;
}

struct zps_compute_in zps_peer_in(const struct zps_peer_round *round, uint32_t stream) {
  const struct zps_stream *range = &round->program.streams[stream];
  return (struct zps_compute_in){.lo = range->lo, .hi = range->hi, .view = round->streams[stream].view};
}

void zps_peer_set_stream(struct zps_peer_round *round, uint32_t instr, const struct zps_slice_view *view,
                         struct zps_peer_mem *mem) {
  struct zps_peer_stream *stream = &round->streams[round->program.instrs[instr].out];
  stream->view = *view;
  stream->delivered = false;
  stream->mem = mem;
  stream->sum = 0;
  stream->first_unsummed = ZPS_PEER_NONE;
  stream->len_bytes =
      zps_values_bytes(view->value_codec, view->dtype, (uint64_t)view->z * view->width) + view->index_bytes;
}

static void drop_unused(struct zps_peer_round *round, uint32_t stream) {
  struct zps_peer_mem *mem = round->streams[stream].mem;
  if (!mem || !zps_run_unused(&round->run, stream)) return;
  round->streams[stream].mem = NULL;
  zps_peer_mem_unref(round, mem);
}

void zps_peer_carried_out(struct zps_peer_round *round, uint32_t i) {
  const struct zps_instr *instr = &round->program.instrs[i];
  const bool last_call = instr->type == ZPS_INSTR_CALL && round->run.n_calls == 1;
  round->n_owns -= instr->type == ZPS_INSTR_OWN;
  zps_run_done(&round->run, i);
  if (instr->type == ZPS_INSTR_JOIN) zps_peer_room_put(round, instr->out);
  for (uint32_t j = 0; j < instr->n_in; j++) drop_unused(round, round->program.ins[instr->first_in + j]);
  if (instr->out != ZPS_STREAM_NONE) drop_unused(round, instr->out);
  for (uint32_t s = 0; last_call && s < round->program.n_streams; s++) drop_unused(round, s);
  zps_peer_results_put_off(round);
}

/* ------------------------------------------------------------ the gradient, for OWNs */

static bool scans_here(const struct zps_peer_round *round) {
  const struct zps_own_input *input = &round->input;
  const uint64_t entry_bytes = sizeof *input->rows + input->width * (uint64_t)zps_dtype_size(input->dtype);
  return input->rows && round->base.in.memory == ZENPS_HOST && input->n_entries <= SCAN_HERE_BYTES / entry_bytes &&
         zps_rounds_is_alone(round->base.rounds, &round->base);
}

static bool cuts_bits(const struct zps_program *program) {
  for (uint32_t i = 0; i < program->n_instrs; i++) {
    if (program->instrs[i].type == ZPS_INSTR_OWN && program->instrs[i].form == ZPS_FORM_BITS) return true;
  }
  return false;
}

zps_err_t zps_peer_scan(struct zps_peer_round *round, struct zps_error *error) {
  struct zps_round *base = &round->base;
  round->held = round->own_ready = false;
  round->all_rows = !zps_own_must_scan(&round->program, &round->input);
  round->counts_rows = round->all_rows && cuts_bits(&round->program);
  if (round->all_rows && !round->counts_rows) base->stats.nnz_in = round->input.n_rows;
  if (!round->all_rows || round->staging.fetches) {
    round->scans_here = scans_here(round);
    zps_round_task_start(&round->scan, round->scans_here ? NULL : zps_device_push_pool(base, base->plane->scan_pool));
    return ZPS_OK;
  }
  const zps_err_t err = zps_own_begin(round->own, &round->input, false, NULL, error);
  if (err == ZPS_OK) round->own_ready = true;
  return err;
}

/* ------------------------------------------------------------ computing */

static zps_err_t compute(struct zps_peer_task *task) {
  struct zps_peer_round *round = task->round;
  struct zps_compute_scratch *scratch = zps_scratch_get(round->base.plane->scratches);
  const zps_err_t err = zps_compute_run(&round->compute, scratch, &task->compute, task->out, &task->what);
  zps_scratch_put(round->base.plane->scratches, scratch);
  return err;
}

void zps_peer_computed(struct zps_peer_task *task) {
  struct zps_peer_round *round = task->round;
  const struct zps_slice_view view = zps_compute_view(&round->compute, &task->compute.out, &task->what, task->out);
  if (round->counts_rows && task->compute.instr.type == ZPS_INSTR_OWN) round->base.stats.nnz_in += view.z;
  zps_peer_set_stream(round, task->instr, &view, task->mem);
  zps_peer_carried_out(round, task->instr);
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
  zps_peer_due(zps_peer_of(work->round));
}

static bool on_the_spot(const struct zps_peer_task *task) {
  uint64_t bytes = zps_compute_bound(&task->round->compute, &task->compute);
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
  struct zps_peer_round *round = task->round;
  if (round->program.instrs[task->instr].type == ZPS_INSTR_RECV) {
    zps_peer_read(task);
    return;
  }
  const enum zps_instr_type type = round->program.instrs[task->instr].type;
  if (type == ZPS_INSTR_SERVE || type == ZPS_INSTR_MERGE) {
    zps_peer_rows_encode(task);
    return;
  }
  if (task->compute.instr.type == ZPS_INSTR_VECTOR)
    task->compute.doubles = round->program.doubles + task->compute.instr.from;
  if (!on_the_spot(task)) {
    task->task.run = compute_run;
    task->task.done = compute_done;
    zps_round_task_start(&task->task, round->base.plane->pool);
    return;
  }
  const zps_err_t err = compute(task);
  if (err == ZPS_OK) {
    zps_peer_computed(task);
    zps_round_touch(&round->base);
  } else {
    zps_round_fail(&round->base, err, "%s: %s", zps_instr_name(task->compute.instr.type), zps_err_str(err));
  }
}

static bool fill_ins(struct zps_peer_task *task) {
  struct zps_peer_round *round = task->round;
  const uint32_t n_in = task->compute.instr.n_in;
  if (n_in > task->cap_ins) {
    if (!zps_enlarge(&task->ins, n_in, sizeof *task->ins)) return false;
    task->cap_ins = n_in;
  }
  const uint32_t *ins = zps_instr_ins(&round->program, &task->compute.instr);
  for (uint32_t j = 0; j < n_in; j++) task->ins[j] = zps_peer_in(round, ins[j]);
  task->compute.ins = task->ins;
  return true;
}

void zps_peer_no_memory(struct zps_peer_round *round, uint32_t instr) {
  const struct zps_plane *plane = round->base.plane;
  zps_round_fail(&round->base, ZPS_ERR_NOMEM,
                 "no memory for instruction %s: of registered memory, %" PRIu64 " bytes are in use of %" PRIu64
                 " (ZENPS_MEMORY_LIMIT)",
                 zps_instr_name(round->program.instrs[instr].type), zps_plane_memory_used(&plane->memory),
                 plane->memory.limit_bytes);
}

/* Whether the inputs lie in one piece of registered memory, or there is but one. */
static bool lie_together(const struct zps_peer_round *round, const struct zps_instr *instr) {
  const uint32_t *ins = zps_instr_ins(&round->program, instr);
  const struct zps_peer_mem *mem = round->streams[ins[0]].mem;
  for (uint32_t i = 1; i < instr->n_in; i++) {
    if (!mem || round->streams[ins[i]].mem != mem) return false;
  }
  return true;
}

static void start_compute(struct zps_peer_round *round, uint32_t i) {
  struct zps_peer_task *task = zps_peer_task_get(round, i);
  if (!task) {
    zps_peer_no_memory(round, i);
    return;
  }
  task->compute = zps_compute_task_of(&round->program, i);
  task->compute.is_final =
      task->compute.instr.type == ZPS_INSTR_SUM && zps_run_is_final(&round->run, task->compute.instr.out);
  struct zps_slice_view view;
  if (!fill_ins(task)) {
    zps_peer_no_memory(round, i);
  } else if (zps_peer_delivers(round, i)) {
    zps_peer_deliver(task);
  } else if (task->compute.instr.type == ZPS_INSTR_SERVE) {
    zps_peer_serve(task);
  } else if (task->compute.instr.type == ZPS_INSTR_OFFER) {
    zps_peer_offer(task);
  } else if (task->compute.instr.type == ZPS_INSTR_REACH) {
    zps_peer_reach(task);
  } else if (task->compute.instr.type == ZPS_INSTR_MERGE) {
    zps_peer_merge(task);
  } else if (zps_peer_is_zerocopy(round, i, &view)) {
    zps_peer_set_stream(round, i, &view, NULL);
    zps_peer_task_put(task);
    zps_peer_carried_out(round, i);
  } else if (zps_compute_alias(&task->compute, &view) && lie_together(round, &task->compute.instr)) {
    struct zps_peer_mem *mem = round->streams[*zps_instr_ins(&round->program, &task->compute.instr)].mem;
    if (mem) mem->refs++;
    zps_peer_set_stream(round, i, &view, mem);
    zps_peer_task_put(task);
    zps_peer_carried_out(round, i);
  } else {
    const zps_err_t err = zps_peer_get_memory(task, zps_compute_bound(&round->compute, &task->compute));
    if (err == ZPS_OK) {
      zps_peer_start_task(task);
    } else if (err != ZPS_ERR_AGAIN) {
      zps_peer_no_memory(round, i);
    }
  }
}

/* ------------------------------------------------------------ the scheme goes on */

static zps_err_t call(struct zps_peer_round *round, uint32_t i) {
  struct zps_program *program = &round->program;
  const struct zps_instr instr = program->instrs[i];
  const struct zps_peer_tensor *scheme = round->base.tensor->peer;
  uint64_t n_doubles = 0;
  for (uint32_t j = 0; j < instr.n_in; j++) n_doubles += round->streams[program->ins[instr.first_in + j]].view.z;
  double *doubles = malloc((n_doubles + 1) * sizeof *doubles);
  const double **vectors = malloc((instr.n_in + 1) * sizeof *vectors);
  uint32_t *lengths = malloc((instr.n_in + 1) * sizeof *lengths);
  zps_err_t err = doubles && vectors && lengths ? ZPS_OK : ZPS_ERR_NOMEM;
  double *at = doubles;
  for (uint32_t j = 0; err == ZPS_OK && j < instr.n_in; j++) {
    const struct zps_slice_view *view = &round->streams[program->ins[instr.first_in + j]].view;
    vectors[j] = at;
    lengths[j] = view->z;
    zps_compute_doubles(view, at);
    at += view->z;
  }
  if (err == ZPS_OK) {
    const uint32_t n_before = program->n_instrs;
    scheme->scheme->extend(&scheme->plan, instr.phase, vectors, lengths, program);
    for (uint32_t j = n_before; j < program->n_instrs; j++) round->n_owns += program->instrs[j].type == ZPS_INSTR_OWN;
    err = program->code;
  }
  if (err == ZPS_OK) err = zps_peer_fit(round);
  if (err == ZPS_OK) err = zps_run_grow(&round->run);
  if (err == ZPS_OK && !round->held && !round->scanned && zps_own_must_scan(program, &round->input))
    err = ZPS_ERR_INTERNAL;
  free(doubles);
  free(vectors);
  free(lengths);
  return err;
}

static void start_call(struct zps_peer_round *round, uint32_t i) {
  const zps_err_t err = call(round, i);
  if (err != ZPS_OK) {
    zps_round_fail(&round->base, err, "scheme %s could not go on: %s", round->base.tensor->peer->scheme->name,
                   zps_err_str(err));
    return;
  }
  zps_peer_carried_out(round, i);
  zps_peer_offer_unexpected(round);
  if (round->held) zps_peer_call_done(round);
}

/* ------------------------------------------------------------ instructions that are due */

static void start(struct zps_peer_round *round, uint32_t i) {
  switch (round->program.instrs[i].type) {
    case ZPS_INSTR_SEND:
      zps_peer_queue_send(round, i);
      break;
    case ZPS_INSTR_RECV:
      zps_peer_receive(round, i);
      break;
    case ZPS_INSTR_CALL:
      start_call(round, i);
      break;
    case ZPS_INSTR_RESULT:
      zps_peer_result(round, i);
      break;
    case ZPS_INSTR_CONTRIBUTED:
      zps_peer_contributed(round, i);
      break;
    default:
      start_compute(round, i);
      break;
  }
}

void zps_peer_due(struct zps_peer_round *round) {
  round->is_due = true;
  zps_round_touch(&round->base);
}

void zps_peer_advance(struct zps_peer_round *round) {
  struct zps_round *base = &round->base;
  round->is_due = false;
  if (!round->own_ready) return;
  while (!zps_round_machine_over(base->machine) && round->own_ready) {
    const uint32_t i = zps_run_take(&round->run);
    if (i == UINT32_MAX) break;
    start(round, i);
  }
  if (zps_round_machine_over(base->machine) || !round->own_ready || round->base.committed || !zps_run_over(&round->run))
    return;
  round->base.committed = true;
  zps_peer_finish(round);
}
