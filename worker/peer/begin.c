/* A round between ranks from its start to its first instruction: its turn, its program, its gradient, and what other
 * ranks have sent before it began. */
#include <stdlib.h>

#include "worker/peer/peer.h"

static void launch(struct zps_peer_round *round);

/* ------------------------------------------------------------ the gradient */

void zps_peer_take_input(struct zps_peer_round *round) {
  static const int64_t no_rows[1];
  const struct zps_round_tensor *tensor = round->base.tensor;
  const zenps_grad_t *in = &round->base.in;
  round->input = (struct zps_own_input){.n_rows = tensor->part.rows,
                                        .width = tensor->width,
                                        .dtype = tensor->dtype,
                                        .values = in->values,
                                        .zero_rows = tensor->keeps_zero_rows};
  if (in->layout != ZENPS_ROWS) return;
  round->input.rows = in->nnz ? in->row_ids : no_rows;
  round->input.n_entries = in->nnz;
}

/* On the scan's own thread, which spreads it over the pool; or the device's, as it is where the gradient is. */
void zps_peer_scan_run(struct zps_round_task *task) {
  struct zps_peer_round *round = zps_peer_of(task->round);
  const bool spreads = zps_workpool_threads(task->round->plane->pool) > 1 && !round->scans_here;
  struct zps_workpool *pool = spreads ? task->round->plane->pool : NULL;
  struct zps_error error;
  if (!zps_staging_fetch(&round->staging, task)) return;
  zps_peer_take_input(round);
  round->scanned = zps_own_must_scan(&round->program, &round->input);
  if (zps_own_begin(round->own, &round->input, round->scanned, pool, &error) != ZPS_OK)
    zps_round_task_fail(task, &error);
}

void zps_peer_scan_done(struct zps_round_task *task) {
  struct zps_peer_round *round = zps_peer_of(task->round);
  if (zps_round_machine_over(task->round->machine)) return;
  round->own_ready = true;
  if (!round->all_rows) task->round->stats.nnz_in = zps_own_count(round->own, 0, round->input.n_rows);
  zps_peer_due(round);
}

/* ------------------------------------------------------------ in turn */

/* Programs of stateful schemes follow one another. */
static bool must_queue(struct zps_peer_round *round) {
  struct zps_peer_tensor *scheme = round->base.tensor->peer;
  if (!scheme->scheme->stateful || !scheme->current) return false;
  struct zps_peer_round **at = &scheme->queued;
  while (*at) at = &(*at)->next_queued;
  *at = round;
  return true;
}

static void unqueue(struct zps_peer_round *round) {
  struct zps_peer_round **at = &round->base.tensor->peer->queued;
  while (*at && *at != round) at = &(*at)->next_queued;
  if (*at) *at = round->next_queued;
}

void zps_peer_pass_turn(struct zps_peer_round *round) {
  struct zps_peer_tensor *scheme = round->base.tensor->peer;
  unqueue(round);
  if (scheme->current != round) return;
  scheme->current = NULL;
  if (round->base.machine->state == ZPS_MACHINE_FAILED && !round->base.committed) scheme->scheme->failed(scheme->state);
  struct zps_peer_round *next = scheme->queued;
  if (!next) return;
  scheme->queued = next->next_queued;
  launch(next);
}

/* ------------------------------------------------------------ launch */

static zps_err_t build(struct zps_peer_round *round) {
  struct zps_peer_tensor *scheme = round->base.tensor->peer;
  struct zps_program *program = &round->program;
  zps_program_reset(program);
  program->state = scheme->state;
  program->round = scheme->n_begun++;
  scheme->scheme->build(&scheme->plan, program);
  zps_run_reset(&round->run, program);
  for (uint32_t i = 0; i < program->n_instrs; i++) round->n_owns += program->instrs[i].type == ZPS_INSTR_OWN;
  zps_err_t err = program->code;
  if (err == ZPS_OK) err = zps_peer_fit(round);
  if (err == ZPS_OK) err = zps_run_grow(&round->run);
  return err;
}

static void launch(struct zps_peer_round *round) {
  struct zps_round *base = &round->base;
  struct zps_peer_tensor *scheme = round->base.tensor->peer;
  struct zps_error error;
  if (scheme->scheme->stateful) scheme->current = round;
  zps_err_t err = build(round);
  if (err != ZPS_OK) {
    zps_round_fail(base, err, "scheme %s could not be made ready: %s", scheme->scheme->name, zps_err_str(err));
    return;
  }
  round->launched = true;
  zps_peer_zerocopy_begin(round);
  round->held = round->own_ready = zps_peer_offers(round);
  if (!round->held && zps_peer_scan(round, &error) != ZPS_OK) {
    zps_round_fail(base, error.code, "%s", error.text);
    return;
  }
  zps_peer_offer_unexpected(round);
  zps_peer_due(round);
}

/* An attempt at this step that others gave up before it began here fails here, too. */
static bool take_unexpected_aborts(struct zps_round *base, const struct zps_unexpected_round *unexpected) {
  bool aborted = false;
  for (const struct zps_unexpected_abort *abort = unexpected->aborts; abort; abort = abort->next) {
    if (!zps_peer_takes_part(base, abort->src)) continue;
    zps_peer_aborted(zps_peer_of(base), abort->src, &abort->abort);
    aborted = true;
  }
  return aborted;
}

static void take_unexpected(struct zps_round *base) {
  bool dropped;
  struct zps_unexpected_round *unexpected =
      zps_unexpected_take(&base->rounds->unexpected, base->tensor->id, base->step, &dropped);
  const bool aborted = unexpected && take_unexpected_aborts(base, unexpected);
  for (const struct zps_unexpected_message *message = unexpected ? unexpected->messages : NULL; message;
       message = message->next) {
    if (!zps_peer_takes_part(base, message->src)) continue;
    if (!aborted) {
      base->stats.bytes_in += message->frame_bytes;
      zps_peer_message(zps_peer_of(base), message->src, &message->slice);
    } else if (zps_peer_of(base)->remotes[message->src].aborted) { /* of its next attempt */
      zps_unexpected_add(&base->rounds->unexpected, unexpected->tensor, unexpected->step, message->src,
                         message->frame_bytes, &message->slice);
    }
  }
  if (dropped) {
    zps_round_fail(base, ZPS_ERR_NOMEM, "more came from other ranks than could be kept until it began here");
  }
  zps_unexpected_round_free(unexpected);
}

void zps_peer_begin(struct zps_round *base) {
  struct zps_peer_round *round = zps_peer_of(base);
  const struct zps_plane *plane = base->plane;
  struct zps_error error;
  if (zps_staging_begin(&round->staging, base, &error) != ZPS_OK) {
    zps_round_fail(base, error.code, "%s", error.text);
    return;
  }
  for (uint32_t i = 0; i < zps_peer_n_others(base) && !zps_round_machine_over(base->machine); i++) {
    const uint32_t r = zps_peer_other(base, i);
    if (plane->ranks[r].lost) zps_peer_remote_lost(base, &plane->ranks[r], plane->ranks[r].why);
  }
  if (zps_round_machine_over(base->machine)) return;
  if (!must_queue(round)) launch(round);
  take_unexpected(base);
}
