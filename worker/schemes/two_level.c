/*
 * The two-level dense allreduce that BlueConnect is compared with: the ranks of a host send all they have to its master
 * (its lowest rank), the masters go round a ring, and each hands the result out.
 *
 * Order of sums: ranks of a host ascending, then the ring's (common.h) over the masters.
 */
#include <stdlib.h>

#include "worker/schemes/common.h"

enum tag { TAG_UP, TAG_RING };

/* The sum of the host's gradients over `range`. */
static uint32_t merge(const struct zps_peer_plan *plan, struct zps_range range, uint32_t tag, uint32_t *ins,
                      struct zps_program *program) {
  uint32_t n = 0;
  ins[n++] = zps_program_own(program, range.lo, range.hi, ZPS_FORM_ALL);
  for (uint32_t i = plan->me + 1; i < plan->n; i++) {
    if (zps_peer_master(plan, i) == plan->me) {
      ins[n++] = zps_program_recv(program, zps_peer_rank(plan, i), tag + TAG_UP, range.lo, range.hi);
    }
  }
  return n == 1 && plan->n > 1 ? ins[0] : zps_program_sum(program, ins, n, ZPS_FORM_ALL);
}

static void build_lane(const struct zps_peer_plan *plan, const uint32_t *masters, uint32_t n_masters,
                       struct zps_range range, uint32_t tag, uint32_t *leaves, struct zps_range *ranges,
                       struct zps_program *program) {
  const uint32_t ring = tag + TAG_RING, gather = ring + n_masters, down = gather + n_masters;
  const uint32_t master = zps_peer_master(plan, plan->me);
  for (uint32_t i = 0; i < n_masters; i++) ranges[i] = zps_range_part(range, n_masters, i);
  if (master != plan->me) {
    const uint32_t rank = zps_peer_rank(plan, master);
    zps_program_send(program, zps_program_own(program, range.lo, range.hi, ZPS_FORM_ALL), rank, tag + TAG_UP);
    for (uint32_t i = 0; i < n_masters; i++) {
      zps_program_result(program, zps_program_recv(program, rank, down + i, ranges[i].lo, ranges[i].hi));
    }
    return;
  }
  struct zps_group group = {.places = masters, .n = n_masters, .stride = 1};
  while (masters[group.me] != plan->me) group.me++;
  const uint32_t held = merge(plan, range, tag, leaves, program); /* `leaves` serves as its scratch */
  struct zps_pieces pieces = {leaves, 1, ZPS_FORM_ALL};
  leaves[0] = zps_group_reduce_scatter(plan, &group, ZPS_GROUP_RING, held, range, ring, program);
  zps_group_all_gather(plan, &group, ZPS_GROUP_RING, range, &pieces, gather, program);
  for (uint32_t i = 0; i < n_masters; i++) {
    zps_program_result(program, leaves[i]);
    for (uint32_t j = plan->me + 1; j < plan->n; j++) {
      if (zps_peer_master(plan, j) == plan->me) zps_program_send(program, leaves[i], zps_peer_rank(plan, j), down + i);
    }
  }
}

static void build(const struct zps_peer_plan *plan, struct zps_program *program) {
  const uint32_t chunks = zps_peer_lanes(plan);
  uint32_t *const masters = calloc(plan->n, 2 * sizeof *masters), *const leaves = masters ? masters + plan->n : NULL;
  struct zps_range *const ranges = calloc(plan->n, sizeof *ranges);
  if (masters && ranges) {
    const uint32_t n_masters = zps_peer_masters(plan, masters);
    for (uint32_t lane = 0; lane < chunks; lane++) {
      const struct zps_range range = zps_range_part((struct zps_range){0, plan->rows}, chunks, lane);
      build_lane(plan, masters, n_masters, range, lane * (TAG_RING + 3 * n_masters), leaves, ranges, program);
    }
  } else {
    program->code = ZPS_ERR_NOMEM;
  }
  free(masters);
  free(ranges);
}

const struct zps_peer_scheme zps_peer_two_level = {
    ZPS_PEER_SCHEME(TWO_LEVEL),
    .build = build,
};
