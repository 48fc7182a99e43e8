#include "worker/peer/peer.h"

#include <stdlib.h>

/* The round is given up here so long before its deadline, so that ranks can tell each other which ranks they wait for.
 */
#define ACCUSE_MAX_NS ZPS_NS_PER_S

/* ------------------------------------------------------------ life */

static void destroy(struct zps_round *base) {
  struct zps_peer_round *round = zps_peer_of(base);
  zps_staging_fini(&round->staging, base->device);
  zps_merge_fini(&round->merge, base->device);
  free(round->offers);
  for (struct zps_peer_task *task = round->tasks, *next; task; task = next) {
    next = task->next;
    free(task->ins);
    free(task);
  }
  for (struct zps_peer_mem *mem = round->mems, *next; mem; mem = next) {
    next = mem->next;
    free(mem);
  }
  for (struct zps_unexpected_message *message = round->unexpected, *next; message; message = next) {
    next = message->next;
    free(message);
  }
  zps_own_destroy(round->own);
  zps_run_fini(&round->run);
  zps_program_fini(&round->program);
  free(round->remotes);
  free(round->streams);
  free(round->announced);
  free(round->send_next);
  free(round->results);
}

static uint32_t n_remotes(const struct zps_round_tensor *tensor) {
  const struct zps_peer_plan *plan = &tensor->peer->plan;
  return zps_peer_rank(plan, plan->n - 1) + 1;
}

static zps_err_t create(struct zps_round *base) {
  struct zps_peer_round *round = zps_peer_of(base);
  const struct zps_round_tensor *tensor = base->tensor;
  const struct zps_round_machine_plan plan = {
      .n_parts = 1, .n_servers = tensor->peer->plan.n, .owners = tensor->owners, .tensor = tensor->name};
  round->remotes = calloc(n_remotes(tensor), sizeof *round->remotes);
  if (!round->remotes || zps_own_create(&round->own) != ZPS_OK ||
      zps_round_machine_create(&zps_peer_machine, &plan, &base->machine) != ZPS_OK)
    return ZPS_ERR_NOMEM;
  return ZPS_OK;
}

/* One literal: what is not named here begins as zero. */
static void setup(struct zps_round *base) {
  struct zps_peer_round *round = zps_peer_of(base);
  const struct zps_round_tensor *tensor = base->tensor;
  const uint64_t quarter_ns = (base->deadline_ns - base->start_ns) / 4;
  zps_staging_setup(&round->staging, base);
  *round = (struct zps_peer_round){.base = *base,
                                   .program = round->program,
                                   .run = round->run,
                                   .own = round->own,
                                   .staging = round->staging,
                                   .merge = round->merge,
                                   .offers = round->offers,
                                   .remotes = round->remotes,
                                   .streams = round->streams,
                                   .announced = round->announced,
                                   .send_next = round->send_next,
                                   .results = round->results,
                                   .cap_streams = round->cap_streams,
                                   .cap_instrs = round->cap_instrs,
                                   .tasks = round->tasks,
                                   .free_tasks = round->free_tasks,
                                   .mems = round->mems,
                                   .free_mems = round->free_mems,
                                   .compute = {.dtype = zps_dtype_sum(tensor->dtype),
                                               .array_dtype = tensor->dtype,
                                               .divisor = tensor->op == ZPS_OP_MEAN ? tensor->peer->plan.n : 1,
                                               .width = tensor->width,
                                               .op = tensor->op,
                                               .keeps_zero_rows = tensor->keeps_zero_rows,
                                               .policy = zps_peer_policy(tensor->peer->scheme, tensor->codec),
                                               .delta = tensor->peer->plan.delta,
                                               .origin = {.seed = tensor->part.seed,
                                                          .tensor = tensor->id,
                                                          .step = base->step,
                                                          .rank = base->plane->rank},
                                               .own = round->own},
                                   .scan = {.round = base, .run = zps_peer_scan_run, .done = zps_peer_scan_done},
                                   .finish = {.round = base, .run = zps_peer_finish_run, .done = zps_peer_finish_done},
                                   .wait = {.take = zps_peer_take_memory, .refused = zps_peer_no_memory_left},
                                   .waiting_tail = &round->waiting,
                                   .unexpected_tail = &round->unexpected};
  for (uint32_t r = 0; r < n_remotes(tensor); r++)
    round->remotes[r] = (struct zps_peer_remote){.first_send = ZPS_PEER_NONE, .last_send = ZPS_PEER_NONE};
  zps_peer_take_input(round);
  zps_round_machine_reset(
      base->machine, &(struct zps_round_machine_start){
                         .step = base->step,
                         .deadline_ns = base->deadline_ns - (quarter_ns < ACCUSE_MAX_NS ? quarter_ns : ACCUSE_MAX_NS)});
}

/* What other ranks were told of is used anew from here on, also by those that did not say that they are through. */
static void give_up_readers(struct zps_peer_round *round) {
  const bool offers = !round->base.committed && zps_peer_offers(round);
  for (uint32_t i = 0; i < zps_peer_n_others(&round->base); i++) {
    const uint32_t r = zps_peer_other(&round->base, i);
    const struct zps_peer_remote *peer = &round->remotes[r];
    if ((peer->reads || offers) && !peer->done && !peer->aborted) zps_plane_give_up(round->base.plane, r);
  }
}

static void release(struct zps_round *base) {
  struct zps_peer_round *round = zps_peer_of(base);
  give_up_readers(round);
  zps_peer_free_all(round);
  if (round->base.device) zps_merge_let_go(&round->merge, round->base.device);
  zps_peer_zerocopy_end(round);
  if (zps_peer_is_past(round)) zps_unexpected_note_past(&base->rounds->unexpected, base->tensor->id, base->step);
}

/* ------------------------------------------------------------ actions */

static void abort_all(struct zps_peer_round *round) {
  for (uint32_t i = 0; i < zps_peer_n_others(&round->base); i++)
    round->remotes[zps_peer_other(&round->base, i)].owes_abort = !round->base.committed;
  zps_peer_stop_reading(round);
  if (round->base.committed) zps_peer_owe_done(round);
  zps_peer_revoke(round);
}

static void complete(struct zps_peer_round *round) {
  struct zps_round *base = &round->base;
  if (base->machine->code != ZPS_ERR_TIMEOUT) zps_peer_explain(base);
  zps_plane_memory_forget(&base->plane->memory, &round->wait);
  if (base->machine->state == ZPS_MACHINE_FAILED) zps_peer_serve_give_up(round);
  zps_peer_pass_turn(round);
}

static void act(struct zps_round *base, const struct zps_round_machine_action *action) {
  struct zps_peer_round *round = zps_peer_of(base);
  switch (action->type) {
    case ZPS_MACHINE_DO_RETIRE:
      zps_peer_owe_done(round);
      break;
    case ZPS_MACHINE_DO_ABORT:
      abort_all(round);
      break;
    default: /* COMPLETE */
      complete(round);
      break;
  }
}

/* A round whose message has no receiver fails: the scheme needs it there. */
static zps_err_t send_to(struct zps_peer_round *round, uint32_t rank, uint64_t now_ns) {
  const struct zps_remote *remote = &round->base.plane->ranks[rank];
  if (remote->lost && round->remotes[rank].first_send != ZPS_PEER_NONE)
    zps_peer_remote_lost(&round->base, remote, remote->why);
  return zps_peer_send_to(round, rank, now_ns, &round->is_due);
}

/* The one place where a round goes on: it carries out the instructions that are due, and does so again when frames were
 * sent, since other instructions may have waited for them. */
static bool send_frames(struct zps_round *base, uint64_t now_ns) {
  struct zps_peer_round *round = zps_peer_of(base);
  bool left;
  do {
    if (round->is_due) zps_peer_advance(round);
    left = false;
    for (uint32_t i = 0; i < zps_peer_n_others(base); i++) {
      if (send_to(round, zps_peer_other(base, i), now_ns) == ZPS_ERR_AGAIN) left = true;
    }
  } while (round->is_due);
  return left;
}

/* ------------------------------------------------------------ end */

static bool deliver(struct zps_round *base) {
  return zps_staging_deliver(&zps_peer_of(base)->staging, base);
}

static void finish(struct zps_round *base, bool ok) {
  zps_staging_finish(&zps_peer_of(base)->staging, base, ok);
  if (!zps_peer_of(base)->stays_exposed) zps_peer_zerocopy_end(zps_peer_of(base));
}

const struct zps_round_ops zps_peer_ops = {.size = sizeof(struct zps_peer_round),
                                           .create = create,
                                           .destroy = destroy,
                                           .setup = setup,
                                           .begin = zps_peer_begin,
                                           .act = act,
                                           .send = send_frames,
                                           .frame = zps_peer_frame,
                                           .remote_lost = zps_peer_remote_lost,
                                           .known = zps_peer_known,
                                           .awaited = zps_peer_waits_for,
                                           .gives_back = zps_peer_gives_back,
                                           .explain = zps_peer_explain,
                                           .deliver = deliver,
                                           .finish = finish,
                                           .quiet = zps_peer_quiet,
                                           .release = release};
