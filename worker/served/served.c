/* Rounds over servers: the balanced scheme's actions, and what of a round is theirs. */
#include <stdlib.h>

#include "worker/api/job.h"
#include "worker/plane/plane.h"
#include "worker/round/round.h"
#include "worker/api/tensor.h"

static void destroy(struct zps_round *round) {
  zps_encoder_destroy(round->encoder);
  zps_blocks_fini(&round->blocks);
  free(round->scans);
  free(round->parts);
  free(round->servers);
  free(round->views);
  zps_decode_scratch_fini(&round->decode_scratch);
  zps_decode_stripes_fini(&round->ordered);
  free(round->clears);
  free(round->stripes);
}

static zps_err_t create(struct zps_round *round) {
  const struct zenps_tensor *tensor = round->tensor;
  const struct zps_plane *plane = round->plane;
  const uint32_t n_stripes = zps_partition_stripes(&tensor->part);
  const struct zps_round_machine_plan plan = {.n_parts = tensor->part.n_parts,
                                              .n_servers = plane->n_servers,
                                              .n_stripes = n_stripes,
                                              .owners = tensor->owners,
                                              .tensor = tensor->name};
  zps_blocks_init(&round->blocks, &tensor->shape);
  round->parts = calloc(plan.n_parts, sizeof *round->parts);
  round->servers = calloc(plan.n_servers, sizeof *round->servers);
  round->views = calloc(plan.n_parts, sizeof *round->views);
  round->scans = calloc(n_stripes, sizeof *round->scans);
  round->clears = calloc(zps_workpool_threads(plane->pool), sizeof *round->clears);
  round->stripes = calloc(n_stripes, sizeof *round->stripes);
  if (!round->parts || !round->servers || !round->views || !round->scans || !round->clears || !round->stripes ||
      zps_round_machine_create(&zps_served_machine, &plan, &round->machine) != ZPS_OK ||
      zps_encoder_create(tensor->partitioner, &round->encoder) != ZPS_OK)
    return ZPS_ERR_NOMEM;
  for (uint32_t p = 0; p < plan.n_parts; p++) {
    round->parts[p].task.round = round;
    round->parts[p].task.arg = p;
    round->parts[p].m = zps_partition_size(&tensor->part, p);
  }
  round->whole.round = round;
  zps_served_push_init(round);
  zps_served_decode_init(round);
  return ZPS_OK;
}

static void reset(struct zps_round *round) {
  zps_device_round_reset(round);
  for (uint32_t s = 0; s < round->plane->n_servers; s++) {
    round->servers[s] = (struct zps_served_server){.ready_tail = &round->servers[s].ready};
  }
  for (uint32_t p = 0; p < round->tensor->part.n_parts; p++) {
    round->parts[p].wanted = round->parts[p].told = false;
    round->parts[p].nnz = 0;
    round->parts[p].push_bytes = 0;
  }
  round->n_ordered = 0;
  zps_served_push_reset(round);
  zps_round_machine_reset(round->machine,
                          &(struct zps_round_machine_start){
                              .step = round->step,
                              .deadline_ns = round->deadline_ns,
                              .n_scans = round->n_scans,
                              .is_apart = round->is_apart,
                              .whole = (round->out->layout == ZENPS_ROWS && !zps_served_orders_stripes(round)) ||
                                       round->out->memory == ZENPS_DEVICE});
}

static void begin(struct zps_round *round) {
  const struct zps_plane *plane = round->plane;
  for (uint32_t s = 0; s < plane->n_servers; s++) {
    if (plane->servers[s].lost) zps_round_event(round, ZPS_MACHINE_SERVER_LOST, 0, s, ZPS_OK);
  }
  if (!zps_round_machine_over(round->machine)) zps_served_scan(round);
}

static void act(struct zps_round *round, const struct zps_round_machine_action *action) {
  switch (action->type) {
    case ZPS_MACHINE_DO_WRITE:
      zps_served_write(round, action->arg);
      break;
    case ZPS_MACHINE_DO_ANNOUNCE:
      zps_served_announce(round, action->arg);
      break;
    case ZPS_MACHINE_DO_READ:
      round->parts[action->arg].wanted = true;
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
      zps_served_explain(round);
      zps_plane_forget_waiting(round->plane, round);
      break;
  }
}

/* Each rank begins with another server. */
static bool send_frames(struct zps_round *round, uint64_t now_ns) {
  const uint32_t n_servers = round->plane->n_servers;
  bool left = false;
  for (uint32_t i = 1; i <= n_servers; i++) {
    const uint32_t s = (uint32_t)(((uint64_t)round->plane->rank + i) % n_servers);
    if (zps_served_send_ready(round, s, now_ns) == ZPS_ERR_AGAIN) left = true;
  }
  return left;
}

static bool known(const struct zps_round *round) {
  (void)round;
  return true;
}

/* A sum is only announced when the contributions were read; a failed round's may still be. */
static bool quiet(const struct zps_round *round) {
  const struct zps_plane *plane = round->plane;
  if (round->machine->state == ZPS_MACHINE_DONE) return true;
  for (uint32_t p = 0; p < round->tensor->part.n_parts; p++) {
    const struct zps_served_part *part = &round->parts[p];
    const uint32_t server = round->tensor->owners[p];
    const struct zps_served_server *state = &round->servers[server];
    if (part->push_buf.mem && !part->told && state->announced && !state->over && !plane->servers[server].lost) {
      return false;
    }
  }
  return true;
}

static void release(struct zps_round *round) {
  struct zps_plane *plane = round->plane;
  for (uint32_t p = 0; p < round->tensor->part.n_parts; p++) {
    zps_round_put_buf(round, &round->parts[p].push_buf, &round->push_held, &plane->push_held);
    round->parts[p].push_buf.mem = NULL; /* the device's */
    zps_round_put_buf(round, &round->parts[p].pull_buf, &round->pull_held, &plane->pull_held);
  }
}

const struct zps_round_ops zps_served_ops = {.create = create,
                                             .destroy = destroy,
                                             .reset = reset,
                                             .prepare = zps_served_prepare,
                                             .begin = begin,
                                             .act = act,
                                             .send = send_frames,
                                             .known = known,
                                             .explain = zps_served_explain,
                                             .quiet = quiet,
                                             .release = release,
                                             .take_memory = zps_served_take_buffers};
