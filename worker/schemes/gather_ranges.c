#include "worker/schemes/gather_ranges.h"

#include <stdlib.h>

enum tag { TAG_RANGE = 2, TAG_STAGE = TAG_RANGE, TAG_IN = TAG_RANGE + 32, TAG_OUT /* lower half, upper half */ };

bool zps_peer_gathers_by_doubling(const struct zps_peer_plan *plan) {
  if (plan->bits || plan->allgather == ZPS_ALLGATHER_DIRECT) return false;
  if (plan->allgather == ZPS_ALLGATHER_DOUBLING) return true;
  if (plan->value_bytes == 0) return false;
  const double row_bytes = (double)plan->width * plan->value_bytes;
  double bytes = (double)plan->rows * row_bytes;
  const double kept = (double)plan->n * (double)plan->k * (row_bytes + sizeof(uint32_t));
  if (plan->k > 0 && kept < bytes) bytes = kept;
  return plan->n > 3 && bytes <= ZPS_PLAN_DOUBLING_BYTES;
}

void zps_peer_gather_direct(const struct zps_peer_plan *plan, struct zps_program *program, uint32_t mine,
                            struct zps_range all, uint32_t tag) {
  zps_peer_send_all(plan, program, mine, tag);
  zps_program_result(program, mine);
  for (uint32_t s = 1; s < plan->n; s++) {
    const uint32_t from = zps_peer_after(plan, s);
    const struct zps_range range = zps_range_part(all, plan->n, from);
    zps_program_result(program, zps_program_recv(program, zps_peer_rank(plan, from), tag, range.lo, range.hi));
  }
}

/* All ranks have the result from the same two streams, and so the same rows.
 *
 * `group`: places are the positions that take part in the stages; the first n_pairs of them speak for the next one,
 * too.
 */
static void gather_by_doubling(const struct zps_peer_plan *plan, struct zps_group *group, struct zps_program *program,
                               uint32_t mine, enum zps_form form) {
  const struct zps_range all = {0, plan->rows};
  uint32_t streams[2] = {mine};
  struct zps_pieces pieces = {.streams = streams, .n = 1, .form = form};
  const bool is_pair = plan->me < 2 * group->n_pairs;
  const uint32_t other = zps_peer_rank(plan, is_pair ? plan->me ^ 1 : plan->me);
  if (is_pair && plan->me % 2 != 0) {
    zps_program_send(program, mine, other, TAG_IN);
    const uint64_t half = zps_group_begin(group, all, group->n / 2);
    zps_program_result(program, zps_program_recv(program, other, TAG_OUT, 0, half));
    zps_program_result(program, zps_program_recv(program, other, TAG_OUT + 1, half, plan->rows));
    return;
  }
  if (is_pair) {
    const struct zps_range range = zps_range_part(all, plan->n, plan->me + 1);
    streams[pieces.n++] = zps_program_recv(program, other, TAG_IN, range.lo, range.hi);
  }
  group->me = is_pair ? plan->me / 2 : plan->me - group->n_pairs;
  zps_group_all_gather(plan, group, ZPS_GROUP_RECURSIVE, all, &pieces, TAG_STAGE, program);
  for (uint32_t i = 0; i < pieces.n; i++) {
    zps_program_result(program, streams[i]);
    if (is_pair) zps_program_send(program, streams[i], other, TAG_OUT + i);
  }
}

void zps_peer_gather_ranges(const struct zps_peer_plan *plan, struct zps_program *program, uint32_t mine,
                            enum zps_form form) {
  const struct zps_range all = {0, plan->rows};
  if (!zps_peer_gathers_by_doubling(plan)) {
    zps_peer_gather_direct(plan, program, mine, all, TAG_RANGE);
    return;
  }
  struct zps_group group = {.n = zps_peer_floor2(plan->n), .stride = 1};
  group.n_pairs = plan->n - group.n;
  uint32_t *const places = calloc(group.n, sizeof *places);
  if (!places) {
    program->code = ZPS_ERR_NOMEM;
    return;
  }
  for (uint32_t i = 0; i < group.n; i++) places[i] = i < group.n_pairs ? 2 * i : i + group.n_pairs;
  group.places = places;
  gather_by_doubling(plan, &group, program, mine, form);
  free(places);
}
