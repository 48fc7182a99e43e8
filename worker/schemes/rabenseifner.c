/*
 * Rabenseifner's dense allreduce: recursive halving, then recursive doubling. With n no power of two, position
 * p + j first gives its gradient to position j and gets the result from there at the end (p: the power of two below).
 *
 * Order of sums: (j) + (p + j), then lower + upper half at each step.
 */
#include <stdlib.h>

#include "worker/schemes/common.h"

enum tag { TAG_IN, TAG_OUT, TAG_LANES };

/* `group`: places are positions. `streams`: room for two. */
static void build_lane(const struct zps_peer_plan *plan, const struct zps_group *group, struct zps_range range,
                       uint32_t tag, uint32_t *streams, struct zps_program *program) {
  const uint32_t extra = group->me + group->n, in = tag + TAG_LANES, out = in + group->n;
  uint32_t held = ZPS_STREAM_NONE;
  if (extra < plan->n) {
    const uint32_t own = zps_program_own(program, range.lo, range.hi, ZPS_FORM_ALL);
    const uint32_t theirs = zps_program_recv(program, zps_peer_rank(plan, extra), tag + TAG_IN, range.lo, range.hi);
    held = zps_program_sum(program, (const uint32_t[]){own, theirs}, 2, ZPS_FORM_ALL);
  }
  struct zps_pieces pieces = {streams, 1, ZPS_FORM_ALL};
  streams[0] = zps_group_reduce_scatter(plan, group, ZPS_GROUP_RECURSIVE, held, range, in, program);
  zps_group_all_gather(plan, group, ZPS_GROUP_RECURSIVE, range, &pieces, out, program);
  for (uint32_t i = 0; i < pieces.n; i++) zps_program_result(program, streams[i]);
  if (extra >= plan->n) return;
  const uint32_t all = zps_program_join_all(program, streams, pieces.n);
  zps_program_send(program, all, zps_peer_rank(plan, extra), tag + TAG_OUT);
}

/* A position beyond the power of two: in and out, no more. */
static void build_extra(const struct zps_peer_plan *plan, uint32_t n, struct zps_range range, uint32_t tag,
                        struct zps_program *program) {
  const uint32_t partner = zps_peer_rank(plan, plan->me - n);
  zps_program_send(program, zps_program_own(program, range.lo, range.hi, ZPS_FORM_ALL), partner, tag + TAG_IN);
  zps_program_result(program, zps_program_recv(program, partner, tag + TAG_OUT, range.lo, range.hi));
}

static void build(const struct zps_peer_plan *plan, struct zps_program *program) {
  const uint32_t n = zps_peer_floor2(plan->n), chunks = zps_peer_lanes(plan);
  uint32_t *const numbers = calloc(n, sizeof *numbers), streams[2];
  if (!numbers) program->code = ZPS_ERR_NOMEM;
  for (uint32_t i = 0; numbers && i < n; i++) numbers[i] = i;
  const struct zps_group group = {.places = numbers, .n = n, .me = plan->me, .stride = 1};
  for (uint32_t lane = 0; program->code == ZPS_OK && lane < chunks; lane++) {
    const struct zps_range range = zps_range_part((struct zps_range){0, plan->rows}, chunks, lane);
    const uint32_t tag = lane * (TAG_LANES + 2 * n);
    if (plan->me < n) {
      build_lane(plan, &group, range, tag, streams, program);
    } else {
      build_extra(plan, n, range, tag, program);
    }
  }
  free(numbers);
}

const struct zps_peer_scheme zps_peer_rabenseifner = {
    ZPS_PEER_SCHEME(RABENSEIFNER),
    .build = build,
};
