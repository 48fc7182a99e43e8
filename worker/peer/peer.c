#include "worker/peer/peer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/api/job.h"
#include "worker/choice/topology.h"
#include "worker/api/tensor.h"

#define NONE UINT32_MAX

/* So long before the round's deadline it is given up here, for ranks to tell each other whom they wait for. */
#define ACCUSE_MAX_NS ZPS_NS_PER_S

/* So many bytes of rows are scanned in little more time than threads take to wake each other up. */
#define SCAN_HERE_BYTES (256u << 10)

static void launch(struct zps_peer_round *exchange);

/* ------------------------------------------------------------ life */

static void destroy(struct zps_round *round) {
  struct zps_peer_round *exchange = round->exchange;
  if (!exchange) return;
  for (struct zps_peer_task *task = exchange->tasks, *next; task; task = next) {
    next = task->next;
    free(task->ins);
    free(task);
  }
  for (struct zps_peer_mem *mem = exchange->mems, *next; mem; mem = next) {
    next = mem->next;
    free(mem);
  }
  for (struct zps_unexpected_message *message = exchange->unexpected, *next; message; message = next) {
    next = message->next;
    free(message);
  }
  zps_own_destroy(exchange->own);
  zps_run_fini(&exchange->run);
  zps_program_fini(&exchange->program);
  free(exchange->peers);
  free(exchange->streams);
  free(exchange->announced);
  free(exchange->send_next);
  free(exchange->results);
  free(exchange);
  round->exchange = NULL;
}

static void take_input(struct zps_peer_round *exchange) {
  static const int64_t no_rows[1];
  const struct zenps_tensor *tensor = exchange->round->tensor;
  const zenps_grad_t *in = &exchange->round->in;
  exchange->input = (struct zps_own_input){
      .n_rows = tensor->part.rows, .width = tensor->width, .dtype = tensor->dtype, .values = in->values};
  if (in->layout != ZENPS_ROWS) return;
  exchange->input.rows = in->nnz ? in->row_ids : no_rows;
  exchange->input.n_entries = in->nnz;
}

/* On the scan's own thread, which spreads it over the pool; or the device's, as it is where the gradient is. */
static void scan_run(struct zps_round_task *task) {
  struct zps_peer_round *exchange = task->round->exchange;
  const bool spreads = zps_workpool_threads(task->round->plane->pool) > 1 && !exchange->scans_here;
  struct zps_workpool *pool = spreads ? task->round->plane->pool : NULL;
  struct zps_error error;
  if (!zps_staging_fetch(task)) return;
  take_input(exchange);
  exchange->scanned = zps_own_must_scan(&exchange->program, &exchange->input);
  if (zps_own_begin(exchange->own, &exchange->input, exchange->scanned, pool, &error) != ZPS_OK)
    zps_round_task_fail(task, &error);
}

static void scan_done(struct zps_round_task *task) {
  struct zps_peer_round *exchange = task->round->exchange;
  if (zps_round_machine_over(task->round->machine)) return;
  exchange->own_ready = true;
  if (!exchange->all_rows) task->round->stats.nnz_in = zps_own_count(exchange->own, 0, exchange->input.n_rows);
  zps_peer_advance(exchange);
}

static zps_err_t create(struct zps_round *round) {
  const struct zenps_tensor *tensor = round->tensor;
  const struct zps_round_machine_plan plan = {
      .n_parts = 1, .n_servers = tensor->scheme->plan.n, .owners = tensor->owners, .tensor = tensor->name};
  struct zps_peer_round *exchange = round->exchange = calloc(1, sizeof *exchange);
  if (!exchange) return ZPS_ERR_NOMEM;
  exchange->round = round;
  exchange->scheme = tensor->scheme;
  exchange->hungry_tasks_tail = &exchange->hungry_tasks;
  exchange->peers = calloc(tensor->scheme->plan.n, sizeof *exchange->peers);
  if (!exchange->peers || zps_own_create(&exchange->own) != ZPS_OK ||
      zps_round_machine_create(&zps_peer_machine, &plan, &round->machine) != ZPS_OK)
    return ZPS_ERR_NOMEM;
  exchange->compute = (struct zps_compute){.dtype = tensor->dtype,
                                           .width = tensor->width,
                                           .op = tensor->op,
                                           .policy = tensor->codec,
                                           .origin = {.seed = tensor->part.seed, .tensor = tensor->id},
                                           .own = exchange->own};
  exchange->scan = (struct zps_round_task){.round = round, .run = scan_run, .done = scan_done};
  zps_peer_result_init(exchange);
  return ZPS_OK;
}

static void reset(struct zps_round *round) {
  struct zps_peer_round *exchange = round->exchange;
  const struct zenps_tensor *tensor = round->tensor;
  const uint64_t accuse_ns = (round->deadline_ns - round->start_ns) / 4;
  for (uint32_t r = 0; r < tensor->scheme->plan.n; r++)
    exchange->peers[r] = (struct zps_peer_remote){.first_send = NONE, .last_send = NONE};
  exchange->launched = exchange->scanned = exchange->all_rows = exchange->own_ready = exchange->finishing = false;
  exchange->decoded = false;
  exchange->n_results = exchange->n_put_off = exchange->n_owns = 0;
  exchange->next_queued = NULL;
  exchange->waiting = NULL;
  exchange->reading_bytes = 0;
  exchange->compute.origin.step = round->step;
  exchange->compute.origin.rank = round->plane->rank;
  take_input(exchange);
  zps_round_machine_reset(
      round->machine, &(struct zps_round_machine_start){
                          .step = round->step,
                          .deadline_ns = round->deadline_ns - (accuse_ns < ACCUSE_MAX_NS ? accuse_ns : ACCUSE_MAX_NS)});
}

static void release(struct zps_round *round) {
  zps_peer_free_all(round->exchange);
  zps_peer_zerocopy_end(round->exchange);
  if (zps_peer_is_past(round)) zps_unexpected_note_past(&round->plane->unexpected, round->tensor->id, round->step);
}

/* ------------------------------------------------------------ begin */

/* Programs of stateful schemes follow one another. */
static bool must_queue(struct zps_peer_round *exchange) {
  struct zps_tensor_scheme *scheme = exchange->scheme;
  if (!scheme->scheme->stateful || !scheme->current) return false;
  struct zps_round **at = &scheme->queued;
  while (*at) at = &(*at)->exchange->next_queued;
  *at = exchange->round;
  return true;
}

static void unqueue(struct zps_peer_round *exchange) {
  struct zps_round **at = &exchange->scheme->queued;
  while (*at && *at != exchange->round) at = &(*at)->exchange->next_queued;
  if (*at) *at = exchange->next_queued;
}

/* The round has ended its part: a stateful scheme's next one may begin. */
static void pass_turn(struct zps_peer_round *exchange) {
  struct zps_tensor_scheme *scheme = exchange->scheme;
  const struct zps_round *round = exchange->round;
  unqueue(exchange);
  if (scheme->current != round) return;
  scheme->current = NULL;
  if (round->machine->state == ZPS_MACHINE_FAILED && !exchange->finishing) scheme->scheme->failed(scheme->state);
  struct zps_round *next = scheme->queued;
  if (!next) return;
  scheme->queued = next->exchange->next_queued;
  launch(next->exchange);
}

static zps_err_t build(struct zps_peer_round *exchange) {
  struct zps_tensor_scheme *scheme = exchange->scheme;
  struct zps_program *program = &exchange->program;
  zps_program_reset(program);
  exchange->number = scheme->n_begun++;
  scheme->scheme->build(&scheme->plan, scheme->state, exchange->number, program);
  zps_run_reset(&exchange->run, program);
  for (uint32_t i = 0; i < program->n_instrs; i++) exchange->n_owns += program->instrs[i].type == ZPS_INSTR_OWN;
  zps_err_t err = program->code;
  if (err == ZPS_OK) err = zps_peer_fit(exchange);
  if (err == ZPS_OK) err = zps_run_grow(&exchange->run);
  return err;
}

/* No other round is under way that the engine thread could keep waiting. */
static bool is_alone(const struct zps_peer_round *exchange) {
  for (const struct zps_round *round = exchange->round->plane->rounds; round; round = round->all_next)
    if (round != exchange->round && !zps_round_machine_over(round->machine)) return false;
  return true;
}

static bool scans_here(const struct zps_peer_round *exchange) {
  const struct zps_own_input *input = &exchange->input;
  const uint64_t entry_bytes = sizeof *input->rows + input->width * (uint64_t)zps_dtype_size(input->dtype);
  return input->rows && exchange->round->in.memory == ZENPS_HOST && input->n_entries <= SCAN_HERE_BYTES / entry_bytes &&
         is_alone(exchange);
}

static bool cuts_bits(const struct zps_program *program) {
  for (uint32_t i = 0; i < program->n_instrs; i++) {
    if (program->instrs[i].type == ZPS_INSTR_OWN && program->instrs[i].form == ZPS_FORM_BITS) return true;
  }
  return false;
}

static void launch(struct zps_peer_round *exchange) {
  struct zps_round *round = exchange->round;
  struct zps_tensor_scheme *scheme = exchange->scheme;
  struct zps_error error;
  if (scheme->scheme->stateful) scheme->current = round;
  zps_err_t err = build(exchange);
  if (err != ZPS_OK) {
    zps_round_fail(round, err, "scheme %s could not be made ready: %s", scheme->scheme->name, zps_err_str(err));
    return;
  }
  exchange->launched = true;
  zps_peer_zerocopy_begin(exchange);
  exchange->all_rows = !zps_own_must_scan(&exchange->program, &exchange->input);
  exchange->counts_rows = exchange->all_rows && cuts_bits(&exchange->program);
  if (exchange->all_rows && !exchange->counts_rows) round->stats.nnz_in = exchange->input.n_rows;
  if (!exchange->all_rows || round->staging.fetches) {
    exchange->scans_here = scans_here(exchange);
    zps_round_task_start(&exchange->scan,
                         exchange->scans_here ? NULL : zps_round_push_pool(round, round->plane->scan_pool));
  } else {
    err = zps_own_begin(exchange->own, &exchange->input, false, NULL, &error);
    if (err != ZPS_OK) {
      zps_round_fail(round, err, "%s", error.text);
      return;
    }
    exchange->own_ready = true;
  }
  zps_peer_offer_unexpected(exchange);
  zps_peer_advance(exchange);
}

/* An attempt at this step that others gave up before it began here fails here, too. */
static bool take_early_aborts(struct zps_round *round, const struct zps_unexpected_round *unexpected) {
  for (const struct zps_unexpected_abort *abort = unexpected->aborts; abort; abort = abort->next)
    zps_peer_aborted(round, abort->src, &abort->abort);
  return unexpected->aborts != NULL;
}

static void take_early(struct zps_round *round) {
  struct zps_plane *plane = round->plane;
  bool dropped;
  struct zps_unexpected_round *unexpected =
      zps_unexpected_take(&plane->unexpected, round->tensor->id, round->step, &dropped);
  const bool aborted = unexpected && take_early_aborts(round, unexpected);
  for (const struct zps_unexpected_message *message = unexpected ? unexpected->messages : NULL; message;
       message = message->next) {
    if (!aborted) {
      zps_peer_count(round, message->frame_bytes);
      zps_peer_message(round, message->src, &message->slice);
    } else if (round->exchange->peers[message->src].aborted) { /* of its next attempt */
      zps_unexpected_add(&plane->unexpected, unexpected->tensor, unexpected->step, message->src, message->frame_bytes,
                         &message->slice);
    }
  }
  if (dropped) {
    zps_round_fail(round, ZPS_ERR_NOMEM, "more came from other ranks than could be kept until it began here");
  }
  zps_unexpected_round_free(unexpected);
}

static void begin(struct zps_round *round) {
  const struct zps_plane *plane = round->plane;
  for (uint32_t r = 0; r < plane->world && !zps_round_machine_over(round->machine); r++) {
    if (plane->ranks[r].lost) zps_peer_rank_lost(round, r);
  }
  if (zps_round_machine_over(round->machine)) return;
  if (!must_queue(round->exchange)) launch(round->exchange);
  take_early(round);
}

/* ------------------------------------------------------------ actions */

static void act(struct zps_round *round, const struct zps_round_machine_action *action) {
  struct zps_peer_round *exchange = round->exchange;
  const struct zps_plane *plane = round->plane;
  switch (action->type) {
    case ZPS_MACHINE_DO_RETIRE:
      zps_peer_owe_done(exchange);
      break;
    case ZPS_MACHINE_DO_ABORT:
      for (uint32_t r = 0; r < plane->world; r++)
        exchange->peers[r].owes_abort = r != plane->rank && !exchange->finishing;
      zps_peer_stop_reading(exchange);
      if (exchange->finishing) zps_peer_owe_done(exchange);
      zps_peer_revoke(exchange);
      break;
    default: /* COMPLETE */
      if (round->machine->code != ZPS_ERR_TIMEOUT) zps_peer_explain(round);
      zps_plane_forget_waiting(round->plane, round);
      if (round->machine->state == ZPS_MACHINE_FAILED) zps_peer_serve_give_up(exchange);
      pass_turn(exchange);
      break;
  }
}

static bool send_frames(struct zps_round *round, uint64_t now_ns) {
  struct zps_peer_round *exchange = round->exchange;
  const struct zps_plane *plane = round->plane;
  bool left, any;
  do { /* what is sent may be the last that something waited for */
    left = any = false;
    for (uint32_t r = 0; r < plane->world; r++) {
      if (r != plane->rank && zps_peer_send_to(exchange, r, now_ns, &any) == ZPS_ERR_AGAIN) left = true;
    }
    if (any) zps_peer_advance(exchange);
  } while (any);
  return left;
}

const struct zps_round_ops zps_peer_ops = {.create = create,
                                           .destroy = destroy,
                                           .reset = reset,
                                           .begin = begin,
                                           .act = act,
                                           .send = send_frames,
                                           .known = zps_peer_known,
                                           .explain = zps_peer_explain,
                                           .quiet = zps_peer_quiet,
                                           .release = release,
                                           .take_memory = zps_peer_take_memory};

/* ------------------------------------------------------------ what other ranks say */

bool zps_peer_takes(const struct zps_round *round, uint32_t rank) {
  const struct zps_peer_remote *peer = &round->exchange->peers[rank];
  return !peer->aborted && !peer->done;
}

void zps_peer_count(struct zps_round *round, uint32_t frame_bytes) {
  round->stats.bytes_in += frame_bytes;
}

/* Before a rank has announced all it sends it cannot be through: what it answers then is of an attempt before. */
void zps_peer_remote_done(struct zps_round *round, uint32_t rank) {
  struct zps_peer_round *exchange = round->exchange;
  exchange->peers[rank].heard = true;
  if (!zps_round_machine_over(round->machine) && (!exchange->launched || zps_run_expects(&exchange->run, rank))) return;
  exchange->peers[rank].done = true;
  zps_round_touch(round);
  zps_peer_check_through(exchange);
}

/* Ranks begin with job, tensor and step, as we do: what follows is the reason. */
void zps_peer_aborted(struct zps_round *round, uint32_t rank, const struct zps_frame_abort *abort) {
  struct zps_peer_round *exchange = round->exchange;
  exchange->peers[rank].aborted = exchange->peers[rank].heard = true;
  zps_round_touch(round);
  for (uint32_t i = 0; abort->code == ZPS_ERR_TIMEOUT && i < abort->n_ranks; i++) {
    if (abort->ranks[i] < round->plane->world) exchange->peers[abort->ranks[i]].accused = true;
  }
  if (zps_round_machine_over(round->machine)) return;
  round->reason = *abort;
  zps_round_event(round, ZPS_MACHINE_ABORTED, 0, rank, abort->code);
}

void zps_peer_rank_lost(struct zps_round *round, uint32_t rank) {
  struct zps_peer_round *exchange = round->exchange;
  const struct zps_remote *lost = &round->plane->ranks[rank];
  zps_round_touch(round);
  if (zps_round_machine_over(round->machine)) return;
  if (exchange->launched && !zps_run_waits_for(&exchange->run, rank) && exchange->peers[rank].first_send == NONE &&
      exchange->run.n_calls == 0 && !zps_peer_needs_done(exchange, rank))
    return;
  round->reason.n_ranks = 1;
  round->reason.ranks[0] = rank;
  if (lost->left_ns) {
    snprintf(round->reason.text, sizeof round->reason.text, "rank %" PRIu32 " (host %s) left the job", rank,
             lost->name);
    zps_round_event(round, ZPS_MACHINE_ABORTED, 0, rank, ZPS_ERR_CLOSED);
    return;
  }
  snprintf(round->reason.text, sizeof round->reason.text, "rank %" PRIu32 " (host %s) is lost: %.200s", rank,
           lost->name, lost->why);
  zps_round_event(round, ZPS_MACHINE_SERVER_LOST, 0, rank, ZPS_OK);
}
