/* What rounds that are kept (worker/round/replay.h) hold on to in device memory: slices that the fabric reads there.
 * All else of theirs is for the next round of the tensor, so that it costs no more than the push itself to keep it, and
 * no device memory where the push was staged. */
#include "worker/device/device.h"
#include "worker/served/served.h"

static bool needs_push(const struct zps_served_round *round) {
  return round->base.in.memory == ZENPS_DEVICE && !round->base.tensor->works_in_host && !round->device_push.encoder;
}

static bool needs_pull(const struct zps_served_round *round) {
  const struct zps_device_pull *const pull = &round->device_pull;
  return round->base.out->memory == ZENPS_DEVICE && !pull->decoder && !pull->chunks && !pull->direct;
}

static void take_push(struct zps_served_round *round, struct zps_served_round *from) {
  const struct zps_device_push ours = round->device_push;
  const struct zps_device_slices theirs = from->device_push.slices;
  if (!from->device_push.encoder) return;
  round->device_push = from->device_push;
  from->device_push = ours;
  if (round->base.device->path == ZPS_PATH_STAGED) return;
  round->device_push.slices = ours.slices;
  from->device_push.slices = theirs;
}

static void take_pull(struct zps_served_round *round, struct zps_served_round *from) {
  const struct zps_device_pull ours = round->device_pull;
  if (!from->device_pull.decoder) return;
  round->device_pull = from->device_pull;
  from->device_pull = ours;
}

/* A round of the tensor that is kept, and whose slices are not wanted at the moment. */
static struct zps_served_round *with_slices(const struct zps_served_round *round) {
  struct zps_round *kept = round->base.rounds->replay.kept;
  while (kept && (kept->tensor != round->base.tensor || kept->is_giving || !zps_served_of(kept)->device_push.slices.at))
    kept = kept->kept_next;
  return kept ? zps_served_of(kept) : NULL;
}

static void note_retry(struct zps_served_round *round) {
  round->device_push.may_retry = with_slices(round) != NULL;
}

bool zps_device_push_retries(struct zps_served_round *round) {
  struct zps_device_push *const push = &round->device_push;
  if (!push->is_short || zps_round_machine_over(round->base.machine)) return false;
  struct zps_served_round *const kept = with_slices(round);
  if (kept) {
    const struct zps_device_slices ours = push->slices;
    push->slices = kept->device_push.slices;
    kept->device_push.slices = ours;
    /* A direct push lies in the slices, which are ours now. */
    if (zps_device_push_is_direct(round)) zps_replay_let_go(&kept->base);
  }
  note_retry(round);
  zps_round_task_start(&round->scans->find, round->base.device->in_pool);
  return true;
}

void zps_device_round_begin(struct zps_served_round *round) {
  const struct zps_round_tensor *const tensor = round->base.tensor;
  for (struct zps_round *kept = round->base.rounds->replay.kept; kept; kept = kept->kept_next) {
    if (kept->tensor != tensor) continue;
    if (needs_push(round)) take_push(round, zps_served_of(kept));
    if (needs_pull(round)) take_pull(round, zps_served_of(kept));
  }
  note_retry(round);
  zps_device_pull_begin(round);
}
