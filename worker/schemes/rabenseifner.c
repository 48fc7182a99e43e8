/*
 * Rabenseifner's dense allreduce: recursive halving, then recursive doubling. With n no power of two, position
 * p + j first gives its gradient to position j and gets the result from there at the end (p: the power of two below).
 *
 * Order of sums: (j) + (p + j), then lower + upper half at each step.
 */
#include <stdlib.h>

#include "worker/schemes/parts.h"

enum tag { TAG_IN, TAG_LANES };

static void build_lane(const struct zps_peer_plan *plan, struct zps_group *group, struct zps_range range, uint32_t tag,
                       uint32_t *leaves, struct zps_range *ranges, struct zps_program *program) {
  const uint32_t extra = group->me + group->n;
  uint32_t held = ZPS_STREAM_NONE;
  if (extra < plan->n) {
    const uint32_t own = zps_program_own(program, range.lo, range.hi, ZPS_FORM_ALL);
    const uint32_t theirs = zps_program_recv(program, zps_peer_rank(plan, extra), tag + TAG_IN, range.lo, range.hi);
    held = zps_program_sum(program, (const uint32_t[]){own, theirs}, 2, ZPS_FORM_ALL);
  }
  for (uint32_t i = 0; i < group->n; i++) ranges[i] = zps_range_part(range, group->n, i);
  leaves[group->me] = zps_group_reduce_scatter(plan, group, ZPS_GROUP_RECURSIVE, held, range, tag + TAG_LANES, program);
  zps_group_all_gather(plan, group, ZPS_GROUP_RECURSIVE, leaves, ranges, 1, tag + TAG_LANES + group->n, program);
  for (uint32_t i = 0; i < group->n; i++) {
    zps_program_result(program, leaves[i]);
    if (extra < plan->n) {
      zps_program_send(program, leaves[i], zps_peer_rank(plan, extra), tag + TAG_LANES + 2 * group->n + i);
    }
  }
}

/* A position beyond the power of two: in and out, no more. */
static void build_extra(const struct zps_peer_plan *plan, uint32_t n, struct zps_range range, uint32_t tag,
                        struct zps_program *program) {
  const uint32_t partner = zps_peer_rank(plan, plan->me - n);
  zps_program_send(program, zps_program_own(program, range.lo, range.hi, ZPS_FORM_ALL), partner, tag + TAG_IN);
  for (uint32_t i = 0; i < n; i++) {
    const struct zps_range rows = zps_range_part(range, n, i);
    zps_program_result(program, zps_program_recv(program, partner, tag + TAG_LANES + 2 * n + i, rows.lo, rows.hi));
  }
}

static void build(const struct zps_peer_plan *plan, void *state, uint64_t round, struct zps_program *program) {
  const uint32_t n = zps_peer_floor2(plan->n), chunks = zps_peer_lanes(plan);
  uint32_t *const numbers = calloc(n, 2 * sizeof *numbers), *const leaves = numbers ? numbers + n : NULL;
  struct zps_range *const ranges = calloc(n, sizeof *ranges);
  (void)state;
  (void)round;
  if (!numbers || !ranges) program->code = ZPS_ERR_NOMEM;
  for (uint32_t i = 0; numbers && i < n; i++) numbers[i] = i;
  for (uint32_t lane = 0; program->code == ZPS_OK && lane < chunks; lane++) {
    const struct zps_range range = zps_range_part((struct zps_range){0, plan->rows}, chunks, lane);
    const uint32_t tag = lane * (TAG_LANES + 3 * n);
    struct zps_group group = {.places = numbers, .n = n, .me = plan->me, .stride = 1};
    if (plan->me < n) {
      build_lane(plan, &group, range, tag, leaves, ranges, program);
    } else {
      build_extra(plan, n, range, tag, program);
    }
  }
  free(numbers);
  free(ranges);
}

const struct zps_peer_scheme zps_peer_rabenseifner = {
    ZPS_PEER_SCHEME(RABENSEIFNER),
    .build = build,
};
