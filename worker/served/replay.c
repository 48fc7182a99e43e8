/* Rounds over servers of which one was lost: with other owners, under way or given again (worker/round/replay.h). */
#include <string.h>

#include "common/codec/join.h"
#include "worker/served/served.h"

const char zps_served_sums_lost[] =
    "a server was lost, and with it the sums that servers kept for pulls: push the step again, with the servers that "
    "are "
    "left";

void zps_served_servers_init(struct zps_served_round *round) {
  for (uint32_t s = 0; s < round->base.plane->n_servers; s++)
    round->servers[s] = (struct zps_served_server){.ready_tail = &round->servers[s].ready};
}

/* What servers keep for pulls is lost with one of them. */
bool zps_served_can_give(const struct zps_round *base) {
  return !base->only_gives && !base->only_takes && !base->wants && !base->seeks;
}

bool zps_served_is_still(const struct zps_round *base) {
  const struct zps_served_round *round = zps_served_of(base);
  return base->n_reads == round->n_reads_left && (round->n_uploads == 0 || zps_round_machine_over(base->machine));
}

/* ------------------------------------------------------------ joined slices */

static zps_err_t split_init(const struct zps_served_part *first, struct zps_split *split, struct zps_error *error) {
  const struct zps_round_tensor *tensor = first->task.round->tensor;
  uint64_t m = 0;
  for (const struct zps_served_part *part = first; part; part = part->join_next) m += part->m;
  return zps_split_init(split, first->slice_codec, m, first->slice_nnz, tensor->width, zps_dtype_sum(tensor->dtype),
                        zps_served_part_value_codec(first), first->push_data, first->slice_bytes, error);
}

static void be_apart(struct zps_served_part *part, void *data, uint32_t nnz, uint64_t bytes) {
  part->joined_to = part;
  part->join_next = NULL;
  part->n_more = 0;
  part->push_data = data;
  part->push_bytes = part->slice_bytes = bytes;
  part->slice_nnz = nnz;
  part->slice_codec = ZPS_CODEC_COO;
}

/* The partitions of a joined slice may have different owners now. */
bool zps_served_part_from_joined(struct zps_served_part *of) {
  struct zps_round *base = of->task.round;
  struct zps_served_part *first = of->joined_to;
  struct zps_split split;
  struct zps_error error;
  if (!first || first->n_more == 0) return true;
  if (split_init(first, &split, &error) != ZPS_OK) {
    zps_round_defer(base, ZPS_MACHINE_FAIL, 0, ZPS_ERR_INTERNAL);
    return false;
  }
  for (struct zps_served_part *part = first, *next; part; part = next) {
    unsigned char coo[ZPS_JOIN_BYTES_MAX];
    next = part->join_next;
    const uint32_t nnz = zps_split_next(&split, part->m);
    const uint64_t bytes = zps_split_write(&split, coo);
    void *const data = bytes > 0 ? zps_arena_get(&base->arena, (size_t)bytes) : NULL;
    if (bytes > 0 && !data) {
      zps_round_defer(base, ZPS_MACHINE_FAIL, 0, ZPS_ERR_NOMEM);
      return false;
    }
    if (bytes > 0) memcpy(data, coo, (size_t)bytes);
    be_apart(part, data, nnz, bytes);
  }
  return true;
}

/* ------------------------------------------------------------ other owners */

void zps_served_unread(struct zps_served_round *round, uint32_t partition) {
  struct zps_served_part *part = &round->parts[partition];
  const struct zps_round_tensor *tensor = round->base.tensor;
  zps_plane_memory_forget(&round->base.plane->memory, &part->wait);
  zps_served_part_put_pull_buf(part);
  round->base.stats.nnz_out -= part->result.nnz;
  round->base.bound_bytes -=
      zps_codec_bound_bytes(part->m, part->result.nnz, tensor->width, tensor->dtype, tensor->value_codec);
}

static void use_owners(struct zps_served_round *round) {
  struct zps_round *base = &round->base;
  base->owners = base->tensor->owners;
  base->machine->plan.owners = base->owners;
  round->is_remapped = true;
  zps_served_servers_init(round);
  for (uint32_t p = 0; p < base->tensor->part.n_parts; p++) round->parts[p].told = false;
}

void zps_served_remap(struct zps_round *base) {
  struct zps_served_round *round = zps_served_of(base);
  const bool goes_on = base->is_giving || zps_served_can_give(base);
  const bool has_begun = base->machine->state != ZPS_MACHINE_IDLE;
  use_owners(round);
  round->held_back = NULL;
  round->held_back_tail = &round->held_back;
  for (uint32_t s = 0; base->is_giving && s < base->plane->n_servers; s++) round->servers[s].any_remote = true;
  if (!has_begun) { /* it was prepared with other owners */
    base->machine->ops->reset(base->machine);
    zps_served_ask_init(round);
  } else if (goes_on) {
    zps_round_event(base, ZPS_MACHINE_REMAP, 0, 0, ZPS_OK);
  } else {
    zps_round_fail(base, ZPS_ERR_SERVER_LOST, "%s", zps_served_sums_lost);
    zps_served_servers_init(round); /* they know nothing of it */
  }
}

/* What the round still had to say is of rounds that the servers have dropped: a DONE would be taken for one of the
 * round that begins anew. That it has failed they have forgotten. */
void zps_served_outdate(struct zps_round *base, bool is_wanted) {
  struct zps_served_round *round = zps_served_of(base);
  const bool owes_abort = is_wanted && !base->only_takes && base->machine->state == ZPS_MACHINE_FAILED;
  for (uint32_t s = 0; s < base->plane->n_servers; s++) {
    struct zps_served_server *state = &round->servers[s];
    const bool is_lost = base->plane->servers[s].lost;
    *state = (struct zps_served_server){.ready_tail = &state->ready, .over = true};
    state->owes_abort = owes_abort && !is_lost;
    state->announced = state->owes_abort;
  }
}

/* Of a round that is over, and was kept. */
void zps_served_give(struct zps_round *base) {
  struct zps_served_round *round = zps_served_of(base);
  use_owners(round);
  for (uint32_t s = 0; s < base->plane->n_servers; s++) round->servers[s].any_remote = true;
  base->only_gives = true;
  zps_round_machine_reset(base->machine, &(struct zps_round_machine_start){.step = base->step,
                                                                           .deadline_ns = base->deadline_ns,
                                                                           .n_scans = round->n_scans,
                                                                           .is_apart = round->is_apart,
                                                                           .only_gives = true,
                                                                           .gives_again = true});
}
