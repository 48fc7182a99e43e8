#include "worker/served/served.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/container.h"
#include "common/base/text.h"
#include "worker/round/decided.h"

/* ------------------------------------------------------------ life */

static void destroy(struct zps_round *base) {
  struct zps_served_round *round = zps_served_of(base);
  zps_device_round_fini(round);
  zps_staging_fini(&round->staging, base->device);
  zps_encoder_destroy(round->encoder);
  zps_blocks_fini(&round->blocks);
  free(round->scans);
  for (uint32_t p = 0; round->parts && p < base->tensor->part.n_parts; p++) free(round->parts[p].fetch);
  free(round->parts);
  free(round->servers);
  free(round->views);
  zps_decode_scratch_fini(&round->decode_scratch);
  zps_decode_stripes_fini(&round->ordered);
  free(round->clears);
  free(round->stripes);
}

static zps_err_t create(struct zps_round *base) {
  struct zps_served_round *round = zps_served_of(base);
  const struct zps_round_tensor *tensor = base->tensor;
  const uint32_t n_stripes = zps_partition_stripes(&tensor->part);
  const struct zps_round_machine_plan plan = {.n_parts = tensor->part.n_parts,
                                              .n_servers = base->plane->n_servers,
                                              .n_stripes = n_stripes,
                                              .owners = tensor->owners,
                                              .tensor = tensor->name};
  zps_blocks_init(&round->blocks, &tensor->shape);
  round->parts = calloc(plan.n_parts, sizeof *round->parts);
  round->servers = calloc(plan.n_servers, sizeof *round->servers);
  round->views = calloc(plan.n_parts, sizeof *round->views);
  round->scans = calloc(n_stripes, sizeof *round->scans);
  round->clears = calloc(zps_workpool_threads(base->plane->pool), sizeof *round->clears);
  round->stripes = calloc(n_stripes, sizeof *round->stripes);
  if (!round->parts || !round->servers || !round->views || !round->scans || !round->clears || !round->stripes ||
      zps_round_machine_create(&zps_served_machine, &plan, &base->machine) != ZPS_OK ||
      zps_encoder_create(tensor->partitioner, &round->encoder) != ZPS_OK)
    return ZPS_ERR_NOMEM;
  for (uint32_t p = 0; p < plan.n_parts; p++) {
    round->parts[p].task.round = base;
    round->parts[p].task.arg = p;
    round->parts[p].m = zps_partition_size(&tensor->part, p);
  }
  zps_served_push_init(round);
  zps_served_pull_init(round);
  zps_served_decode_init(round);
  return ZPS_OK;
}

/* ------------------------------------------------------------ start */

static void refused(struct zps_plane_wait *wait, zps_err_t err, const char *text) {
  zps_round_fail(&zps_container_of(wait, struct zps_served_round, wait)->base, err, "%s", text);
}

static uint32_t inline_bytes(const struct zps_round *base) {
  const struct zps_round_tensor *const tensor = base->tensor;
  return zps_wire_inline_bytes(tensor->part.rows * zps_round_tensor_row_bytes(tensor), tensor->world,
                               base->plane->n_servers);
}

/* One literal: what is not named here begins as zero. */
static void setup(struct zps_round *base) {
  struct zps_served_round *round = zps_served_of(base);
  zps_staging_setup(&round->staging, base);
  *round = (struct zps_served_round){.base = *base,
                                     .encoder = round->encoder,
                                     .blocks = round->blocks,
                                     .parts = round->parts,
                                     .servers = round->servers,
                                     .views = round->views,
                                     .decode_scratch = round->decode_scratch,
                                     .ordered = round->ordered,
                                     .scans = round->scans,
                                     .clears = round->clears,
                                     .stripes = round->stripes,
                                     .device_push = round->device_push,
                                     .device_pull = round->device_pull,
                                     .staging = round->staging,
                                     .whole.round = base,
                                     .wait = {.take = zps_served_take_buffers, .refused = refused},
                                     .n_scans = zps_served_scan_steps(round),
                                     .inline_bytes = inline_bytes(base),
                                     .held_back_tail = &round->held_back};
  round->is_apart = round->n_scans > 1 && zps_served_is_apart(round);
  round->scans->find.has_run = round->scans->small.has_run = false;
  zps_served_servers_init(round);
  base->machine->plan.owners = base->owners;
  zps_served_ask_init(round);
  for (uint32_t p = 0; p < base->tensor->part.n_parts; p++) {
    round->parts[p].told = false;
    round->parts[p].nnz = 0;
    round->parts[p].push_bytes = 0;
  }
  const bool by_stripes = base->out->layout != ZENPS_ROWS || zps_served_orders_stripes(round);
  zps_round_machine_reset(base->machine,
                          &(struct zps_round_machine_start){.step = base->step,
                                                            .deadline_ns = base->deadline_ns,
                                                            .n_scans = round->n_scans,
                                                            .is_apart = round->is_apart,
                                                            .only_gives = base->only_gives,
                                                            .only_takes = base->only_takes,
                                                            .whole = !by_stripes || base->out->memory == ZENPS_DEVICE});
}

static void remote_lost(struct zps_round *base, const struct zps_remote *lost, const char *why) {
  if (lost->is_rank) return;
  if (!zps_round_machine_over(base->machine) && zps_round_machine_needs(base->machine, lost->index)) {
    base->reason.text[0] = '\0';
    zps_text_add(base->reason.text, sizeof base->reason.text, "server %" PRIu32 " (%s) is lost: %s", lost->index,
                 lost->name, why);
  }
  zps_round_event(base, ZPS_MACHINE_SERVER_LOST, 0, lost->index, ZPS_OK);
}

static void begin(struct zps_round *base) {
  struct zps_served_round *round = zps_served_of(base);
  const struct zps_plane *plane = base->plane;
  struct zps_error error;
  zps_device_round_begin(round);
  if (zps_staging_begin(&round->staging, base, &error) != ZPS_OK) {
    zps_round_fail(base, error.code, "%s", error.text);
    return;
  }
  for (uint32_t s = 0; s < plane->n_servers; s++) {
    if (plane->servers[s].lost && base->rounds->replay.has_given_up)
      remote_lost(base, &plane->servers[s], plane->servers[s].why);
  }
  if (zps_round_machine_over(base->machine)) return;
  if (base->only_takes && !base->seeks && zps_replay_has_lost(base)) {
    zps_round_fail(base, ZPS_ERR_SERVER_LOST, "%s", zps_served_sums_lost);
    return;
  }
  zps_decided_check_past(base);
  if (zps_round_machine_over(base->machine)) return;
  if (base->seeks) round->seek = base->rounds->n_seeks++;
  if (base->only_takes)
    zps_round_event(base, ZPS_MACHINE_SCANNED, 0, 0, ZPS_OK);
  else
    zps_served_scan(round);
}

/* ------------------------------------------------------------ actions and frames */

/* Takes all requests of the round for memory out of the lines. */
static void forget_waiting(struct zps_served_round *round) {
  struct zps_plane_memory *memory = &round->base.plane->memory;
  zps_plane_memory_forget(memory, &round->wait);
  for (uint32_t p = 0; p < round->base.tensor->part.n_parts; p++)
    zps_plane_memory_forget(memory, &round->parts[p].wait);
}

static void act(struct zps_round *base, const struct zps_round_machine_action *action) {
  struct zps_served_round *round = zps_served_of(base);
  switch (action->type) {
    case ZPS_MACHINE_DO_WRITE:
      zps_served_write(round, action->arg);
      break;
    case ZPS_MACHINE_DO_ANNOUNCE:
      zps_served_announce(round, action->arg);
      break;
    case ZPS_MACHINE_DO_READ:
      zps_served_read(round, action->arg);
      break;
    case ZPS_MACHINE_DO_FORGET:
      zps_served_unread(round, action->arg);
      break;
    case ZPS_MACHINE_DO_CLEAR:
      zps_served_clear(round);
      break;
    case ZPS_MACHINE_DO_STRIPE:
      zps_served_decode_stripe(round, action->arg);
      break;
    case ZPS_MACHINE_DO_DECODE:
      zps_served_decode(round, action->arg);
      break;
    case ZPS_MACHINE_DO_RETIRE:
      round->servers[action->arg].owes_done = round->servers[action->arg].any_remote;
      break;
    case ZPS_MACHINE_DO_ABORT:
      round->servers[action->arg].owes_abort = true;
      break;
    case ZPS_MACHINE_DO_COMPLETE:
      zps_served_explain(base);
      forget_waiting(round);
      break;
  }
}

/* Each rank begins with another server. */
static bool send_frames(struct zps_round *base, uint64_t now_ns) {
  const uint32_t n_servers = base->plane->n_servers;
  bool left = false;
  if (base->rounds->replay.is_mapping) return true;
  for (uint32_t i = 1; i <= n_servers; i++) {
    const uint32_t s = (uint32_t)(((uint64_t)base->plane->rank + i) % n_servers);
    if (zps_served_send_ready(zps_served_of(base), s, now_ns) == ZPS_ERR_AGAIN) left = true;
  }
  return left;
}

/* A server's text begins with job, tensor and step, as ours does: the reason follows. */
static const char *reason_in(const char *text) {
  const char *step = strncmp(text, "job ", 4) == 0 ? strstr(text, ", step ") : NULL;
  const char *reason = step ? strstr(step, ": ") : NULL;
  return reason ? reason + 2 : text;
}

/* Of a sum that was sought, with its step, which may be another one than ours. */
static const char *reason_with_step(const char *text) {
  const char *const step = strncmp(text, "job ", 4) == 0 ? strstr(text, ", step ") : NULL;
  return step ? step + 2 : text;
}

static void on_abort(struct zps_round *base, uint32_t server, const struct zps_frame_abort *abort) {
  zps_served_of(base)->servers[server].over = true;
  zps_round_touch(base);
  if (zps_round_machine_over(base->machine)) return;
  base->reason = *abort;
  snprintf(base->reason.text, sizeof base->reason.text, "%s",
           base->seeks ? reason_with_step(abort->text) : reason_in(abort->text));
  zps_round_event(base, ZPS_MACHINE_ABORTED, 0, server, abort->code < ZPS_OK ? abort->code : ZPS_ERR_INTERNAL);
}

/* Whether the frame is for a round of this kind: answers to a seek are for that seek alone, not for another one of the
 * same step, nor for the push of the step, which may still be under way; all other frames are for rounds that seek
 * nothing. */
static bool is_for(const struct zps_round *base, const struct zps_frame *frame) {
  const uint8_t type = frame->header.type;
  if (type != ZPS_FRAME_FOUND && type != ZPS_FRAME_MISSED) return !base->seeks;
  const uint32_t seek = type == ZPS_FRAME_FOUND ? frame->u.round.seek : frame->u.abort.seek;
  return base->seeks && seek == zps_served_of(base)->seek;
}

static bool frame(struct zps_round *base, const struct zps_remote *from, const struct zps_frame *frame) {
  const uint8_t type = frame->header.type;
  if (from->is_rank || (type == ZPS_FRAME_RESULT && base->only_gives)) return false;
  if (!is_for(base, frame)) return false;
  if (type == ZPS_FRAME_TAKEN && (base->only_takes || (!base->only_gives && !base->wants))) return false;
  if (type == ZPS_FRAME_CLOSED)
    zps_served_closed(zps_served_of(base), from->index, &frame->u.closed);
  else if (type == ZPS_FRAME_TAKEN)
    zps_served_taken(zps_served_of(base), from->index, frame);
  else if (type == ZPS_FRAME_RESULT ||
           (type == ZPS_FRAME_FOUND && zps_served_found(zps_served_of(base), from->index, &frame->u.round)))
    zps_served_result(zps_served_of(base), from->index, frame);
  else if (type != ZPS_FRAME_FOUND)
    on_abort(base, from->index, &frame->u.abort);
  return true;
}

/* ------------------------------------------------------------ end */

static bool known(const struct zps_round *base) {
  (void)base;
  return true;
}

static bool deliver(struct zps_round *base) {
  struct zps_served_round *round = zps_served_of(base);
  return zps_staging_deliver(&round->staging, base) || zps_device_round_quiesce(round);
}

static void finish(struct zps_round *base, bool ok) {
  struct zps_served_round *round = zps_served_of(base);
  zps_staging_finish(&round->staging, base, ok);
  zps_device_pull_finish(round, ok);
  if (ok && base->into) base->into->nnz = base->stats.nnz_out;
}

static void release(struct zps_round *base) {
  struct zps_served_round *round = zps_served_of(base);
  struct zps_plane_memory *memory = &base->plane->memory;
  for (uint32_t p = 0; p < base->tensor->part.n_parts; p++) {
    zps_plane_memory_put(memory, ZPS_LINE_PUSH, &base->used, &round->parts[p].push_buf);
    round->parts[p].push_buf.mem = NULL; /* the device's */
    zps_served_part_put_pull_buf(&round->parts[p]);
  }
}

const struct zps_round_ops zps_served_ops = {.size = sizeof(struct zps_served_round),
                                             .create = create,
                                             .destroy = destroy,
                                             .setup = setup,
                                             .prepare = zps_served_prepare,
                                             .begin = begin,
                                             .act = act,
                                             .send = send_frames,
                                             .wake = zps_served_flush,
                                             .frame = frame,
                                             .remote_lost = remote_lost,
                                             .known = known,
                                             .explain = zps_served_explain,
                                             .deliver = deliver,
                                             .finish = finish,
                                             .quiet = zps_served_quiet,
                                             .release = release,
                                             .can_give = zps_served_can_give,
                                             .remap = zps_served_remap,
                                             .outdate = zps_served_outdate,
                                             .is_still = zps_served_is_still,
                                             .give = zps_served_give};
