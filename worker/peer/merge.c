/*
 * OFFER, REACH and MERGE: what the ranks of a host have is added up on the device of their master (device/merge.h).
 *
 * This is what the device's thread does; serve.c goes on from there.
 */
#define ZPS_LOG_COMPONENT "merge"
#include <stdlib.h>
#include <string.h>

#include "common/base/container.h"
#include "common/base/enlarge.h"
#include "common/base/log.h"
#include "worker/peer/peer.h"

bool zps_peer_offers(const struct zps_peer_round *round) {
  return round->program.n_instrs > 0 && round->program.instrs[0].type == ZPS_INSTR_OFFER;
}

static struct zps_peer_task *task_of(struct zps_round_task *work) {
  return zps_container_of(work, struct zps_peer_task, task);
}

static void fail(struct zps_round_task *work, const char *step, const struct zps_error *why) {
  struct zps_error error;
  zps_fail(&error, why->code, "%s: %s", step, why->text);
  zps_round_task_fail(work, &error);
}

/* ------------------------------------------------------------ OFFER */

/* The master has not said that it read what it was offered before: it may do so still. */
static bool is_given_up(const struct zps_round *base) {
  for (uint32_t i = 0; i < zps_peer_n_others(base); i++)
    if (zps_plane_has_given_up(base->plane, zps_peer_other(base, i))) return true;
  return false;
}

void zps_peer_offer_run(struct zps_round_task *work) {
  struct zps_peer_round *round = task_of(work)->round;
  struct zps_round *base = &round->base;
  struct zps_error error;
  if (is_given_up(base)) {
    memset(round->offer, 0, sizeof round->offer); /* none */
    return;
  }
  if (zps_merge_offer(&round->merge, &round->staging.in, base->device, &base->tensor->shape, &base->in,
                      base->deadline_ns, round->offer, &error) != ZPS_OK)
    fail(work, "showing the gradient to ranks of this host", &error);
}

/* ------------------------------------------------------------ REACH */

bool zps_peer_take_offers(struct zps_peer_task *task) {
  const uint32_t n = task->compute.instr.n_in;
  if (!zps_enlarge(&task->round->offers, n, ZPS_OFFER_LEN * sizeof(double))) return false;
  for (uint32_t i = 0; i < n; i++)
    zps_compute_doubles(&task->compute.ins[i].view, task->round->offers + (size_t)i * ZPS_OFFER_LEN);
  return true;
}

void zps_peer_reach_run(struct zps_round_task *work) {
  const struct zps_peer_task *task = task_of(work);
  struct zps_peer_round *round = task->round;
  struct zps_error why;
  round->reaches = zps_merge_reach(&round->merge, work->round->device, &work->round->tensor->shape, round->offers,
                                   task->compute.instr.n_in, &why);
  if (!round->reaches && why.text[0])
    zps_log_debug("what ranks of this host have is added up in host memory: %s", why.text);
}

/* ------------------------------------------------------------ MERGE */

void zps_peer_merge_run(struct zps_round_task *work) {
  const struct zps_peer_task *task = task_of(work);
  struct zps_peer_round *round = task->round;
  struct zps_round *base = &round->base;
  const struct zps_tensor_shape *shape = &base->tensor->shape;
  struct zps_error error;
  zps_err_t code = zps_merge_run(&round->merge, base->device, shape, round->offers, task->compute.instr.n_in,
                                 base->in.stream, base->deadline_ns, &round->merged, &error);
  for (uint32_t i = 0; code == ZPS_OK && i < zps_peer_n_others(base); i++)
    code = zps_plane_check_copied(base->plane, zps_peer_other(base, i), &error);
  if (code == ZPS_OK && !round->merged_is_served)
    code = zps_merge_fetch(&round->merge, base->device, shape, base->deadline_ns, &round->merged, &error);
  if (code != ZPS_OK) fail(work, "adding up what ranks of this host have", &error);
}
