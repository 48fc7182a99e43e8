/*
 * BlueConnect: dense allreduce over a grid [BlueConnect section 3]; and the ring, which is the grid of one level.
 *
 * The ranks are numbered in mixed radix, innermost (fastest) digit first. Level i's groups are the ranks that differ in
 * digit i alone: reduce-scatters go from the innermost level outwards, each on what the one before left, then
 * all-gathers back. So per rank level i moves 2 (p_i - 1) / p_i of the tensor over the product of the levels inside it
 * (equation 6). A level goes round a ring in p_i - 1 messages each way, or halves and doubles recursively in log2 p_i
 * (equation 1): as the plan says, else recursively where p_i is a power of two.
 *
 * The levels are the plan's, over positions sorted by rack and host. Without levels: the greatest number that every
 * host's number of ranks is a multiple of, and the rest. Levels of another number of ranks than take part count as
 * none.
 *
 * The tensor is cut into `chunks` lanes, each a program of its own: while one adds, another sends.
 *
 * Order of sums: that of common.h at each level: of ranks and blocks alone.
 */
#include <stdlib.h>
#include <string.h>

#include "worker/schemes/common.h"

enum { LEVELS_MAX = ZPS_SCHEME_LEVELS_MAX };

struct grid {
  uint32_t n_levels, levels[LEVELS_MAX];
  uint32_t algorithms[LEVELS_MAX]; /* enum zps_level_algorithm */
  uint32_t *places;                /* number in mixed radix -> position */
  uint32_t me;                     /* our number */
};

/* All ranks in one level; they are as near to each other as it gets. */
static void flatten(const struct zps_peer_plan *plan, struct grid *grid) {
  grid->n_levels = 1;
  grid->levels[0] = plan->n;
  grid->algorithms[0] = ZPS_LEVEL_AUTO;
}

static uint32_t greatest_common_divisor(uint32_t a, uint32_t b) {
  while (b > 0) {
    const uint32_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

/* Sorts positions by their key, in the order in which keys first come, and keeps their order otherwise. `room`: for n
 * more. Returns the most that each key's number of positions is a multiple of. */
static uint32_t group_by(const uint32_t *keys, uint32_t n, uint32_t *places, uint32_t *room) {
  uint32_t n_grouped = 0, each = 0;
  for (uint32_t first = 0; first < n; first++) {
    bool seen = false;
    for (uint32_t i = 0; i < n_grouped && !seen; i++) seen = keys[room[i]] == keys[places[first]];
    if (seen) continue;
    const uint32_t begin = n_grouped;
    for (uint32_t i = first; i < n; i++) {
      if (keys[places[i]] == keys[places[first]]) room[n_grouped++] = places[i];
    }
    each = greatest_common_divisor(n_grouped - begin, each);
  }
  memcpy(places, room, n * sizeof *places);
  return each;
}

static bool make_grid(const struct zps_peer_plan *plan, struct grid *grid) {
  grid->places = calloc(plan->n, 2 * sizeof *grid->places);
  if (!grid->places) return false;
  uint32_t *const room = grid->places + plan->n;
  for (uint32_t i = 0; i < plan->n; i++) grid->places[i] = i;
  const uint32_t each = plan->hosts ? group_by(plan->hosts, plan->n, grid->places, room) : 0;
  if (plan->racks) group_by(plan->racks, plan->n, grid->places, room);
  uint64_t product = 1;
  grid->n_levels = 0;
  for (uint32_t i = 0; i < plan->n_levels && i < LEVELS_MAX; i++) {
    grid->algorithms[i] = plan->algorithms[i];
    grid->levels[grid->n_levels++] = plan->levels[i];
    product *= plan->levels[i];
  }
  if (plan->n_levels == 0 && each > 1 && each < plan->n) {
    grid->n_levels = 2;
    grid->algorithms[0] = grid->algorithms[1] = ZPS_LEVEL_AUTO;
    grid->levels[0] = each;
    grid->levels[1] = plan->n / each;
  } else if (plan->n_levels == 0 || product != plan->n) {
    flatten(plan, grid);
  }
  for (grid->me = 0; grid->places[grid->me] != plan->me; grid->me++) continue;
  return true;
}

static struct zps_group group_of(const struct grid *grid, uint32_t level, uint32_t stride) {
  const uint32_t digit = grid->me / stride % grid->levels[level];
  return (struct zps_group){
      .places = grid->places + grid->me - digit * stride, .n = grid->levels[level], .me = digit, .stride = stride};
}

static enum zps_group_algorithm algorithm_of(const struct grid *grid, uint32_t level) {
  const uint32_t p = grid->levels[level];
  const bool ring = grid->algorithms[level] == ZPS_LEVEL_RING;
  return ring || (p & (p - 1)) ? ZPS_GROUP_RING : ZPS_GROUP_RECURSIVE;
}

/* `streams`: room for pieces of a range. */
static void build_lane(const struct zps_peer_plan *plan, const struct grid *grid, struct zps_range range, uint32_t tag,
                       uint32_t *streams, struct zps_program *program) {
  struct zps_range ranges[LEVELS_MAX]; /* of each level's reduce-scatter */
  uint32_t held = ZPS_STREAM_NONE, stride = 1;
  for (uint32_t i = 0; i < grid->n_levels; stride *= grid->levels[i++]) {
    const struct zps_group group = group_of(grid, i, stride);
    ranges[i] = range;
    held = zps_group_reduce_scatter(plan, &group, algorithm_of(grid, i), held, range, tag, program);
    range = zps_range_part(range, group.n, group.me);
    tag += group.n;
  }
  struct zps_pieces pieces = {streams, 1, ZPS_FORM_ALL};
  streams[0] = held;
  for (uint32_t i = grid->n_levels; i-- > 0;) {
    stride /= grid->levels[i];
    const struct zps_group group = group_of(grid, i, stride);
    zps_group_all_gather(plan, &group, algorithm_of(grid, i), ranges[i], &pieces, tag, program);
    tag += group.n;
  }
  for (uint32_t i = 0; i < pieces.n; i++) zps_program_result(program, streams[i]);
}

static void build_grid(const struct zps_peer_plan *plan, struct grid *grid, struct zps_program *program) {
  const uint32_t chunks = zps_peer_lanes(plan);
  uint32_t *const streams = calloc(plan->n + 1, sizeof *streams);
  uint32_t tags = 0; /* of a lane: each level's, in and out */
  for (uint32_t i = 0; i < grid->n_levels; i++) tags += 2 * grid->levels[i];
  if (!streams) program->code = ZPS_ERR_NOMEM;
  for (uint32_t lane = 0; streams && lane < chunks; lane++) {
    const struct zps_range range = zps_range_part((struct zps_range){0, plan->rows}, chunks, lane);
    build_lane(plan, grid, range, lane * tags, streams, program);
  }
  free(streams);
}

static void build_blueconnect(const struct zps_peer_plan *plan, struct zps_program *program) {
  struct grid grid;
  if (make_grid(plan, &grid)) {
    build_grid(plan, &grid, program);
  } else {
    program->code = ZPS_ERR_NOMEM;
  }
  free(grid.places);
}

static void build_ring(const struct zps_peer_plan *plan, struct zps_program *program) {
  struct zps_peer_plan one = *plan;
  one.n_levels = 1;
  one.levels[0] = plan->n;
  one.algorithms[0] = ZPS_LEVEL_RING;
  one.hosts = one.racks = NULL;
  build_blueconnect(&one, program);
}

const struct zps_peer_scheme zps_peer_blueconnect = {
    ZPS_PEER_SCHEME(BLUECONNECT),
    .build = build_blueconnect,
};

const struct zps_peer_scheme zps_peer_ring = {
    ZPS_PEER_SCHEME(RING),
    .build = build_ring,
};
