#include "worker/schemes/common.h"

#include <stdlib.h>

#include "common/codec/values.h"
#include "worker/schemes/gather_ranges.h"

enum tag { TAG_ALL, TAG_SPLIT, TAG_RANGE }; /* the last two once more for each further lane */

void zps_peer_send_all(const struct zps_peer_plan *plan, struct zps_program *program, uint32_t in, uint32_t tag) {
  for (uint32_t s = 1; s < plan->n; s++) {
    zps_program_send(program, in, zps_peer_rank(plan, zps_peer_after(plan, s)), tag);
  }
}

/* The sum of all positions' rows of [lo, hi), ours being `own`, in the order of positions. Each begins reading at
 * another. */
static uint32_t sum_of_all(const struct zps_peer_plan *plan, struct zps_program *program, uint32_t own, uint32_t tag,
                           uint64_t lo, uint64_t hi, enum zps_form form) {
  uint32_t *const ins = calloc(plan->n, sizeof *ins);
  if (!ins) {
    program->code = ZPS_ERR_NOMEM;
    return ZPS_STREAM_NONE;
  }
  ins[plan->me] = own;
  for (uint32_t s = 1; s < plan->n; s++) {
    const uint32_t from = zps_peer_after(plan, s);
    ins[from] = zps_program_recv(program, zps_peer_rank(plan, from), tag, lo, hi);
  }
  const uint32_t sum = zps_program_sum(program, ins, plan->n, form);
  free(ins);
  return sum;
}

void zps_peer_allgather_sum(const struct zps_peer_plan *plan, struct zps_program *program, uint32_t own) {
  zps_peer_send_all(plan, program, own, TAG_ALL);
  zps_program_result(program, sum_of_all(plan, program, own, TAG_ALL, 0, plan->rows, ZPS_FORM_SPARSE));
}

uint32_t zps_peer_contribute(const struct zps_peer_plan *plan, struct zps_program *program, uint32_t stream) {
  return plan->values ? zps_program_narrow(program, stream, plan->values, ZPS_FORM_SPARSE) : stream;
}

static uint32_t own_range(const struct zps_peer_plan *plan, struct zps_program *program, uint32_t own,
                          struct zps_range range, enum zps_form form) {
  return zps_peer_contribute(plan, program,
                             own == ZPS_STREAM_NONE ? zps_program_own(program, range.lo, range.hi, form)
                                                    : zps_program_cut(program, own, range.lo, range.hi));
}

static uint32_t split(const struct zps_peer_plan *plan, struct zps_program *program, uint32_t own, struct zps_range all,
                      uint32_t tag, enum zps_form form, enum zps_form sum_form) {
  for (uint32_t s = 1; s < plan->n; s++) {
    const uint32_t to = zps_peer_after(plan, s);
    const struct zps_range range = zps_range_part(all, plan->n, to);
    zps_program_send(program, own_range(plan, program, own, range, form), zps_peer_rank(plan, to), tag);
  }
  const struct zps_range range = zps_range_part(all, plan->n, plan->me);
  const uint32_t mine = own_range(plan, program, own, range, form);
  return sum_of_all(plan, program, mine, tag, range.lo, range.hi, sum_form);
}

static struct zps_range whole(const struct zps_peer_plan *plan) {
  return (struct zps_range){0, plan->rows};
}

uint32_t zps_peer_split(const struct zps_peer_plan *plan, struct zps_program *program, uint32_t own,
                        enum zps_form sum_form) {
  return split(plan, program, own, whole(plan), TAG_SPLIT, ZPS_FORM_SPARSE, sum_form);
}

void zps_peer_split_lanes(const struct zps_peer_plan *plan, struct zps_program *program, enum zps_form form) {
  const uint32_t lanes = zps_peer_lanes(plan);
  for (uint32_t i = 0; i < lanes; i++) {
    const struct zps_range lane = zps_range_part(whole(plan), lanes, i);
    const uint32_t mine = split(plan, program, ZPS_STREAM_NONE, lane, TAG_SPLIT + 2 * i, form, form);
    zps_peer_gather_direct(plan, program, mine, lane, TAG_RANGE + 2 * i);
  }
}

void zps_peer_split_dense(const struct zps_peer_plan *plan, struct zps_program *program, uint32_t own) {
  uint32_t mine = zps_peer_split(plan, program, own, ZPS_FORM_ALL);
  if (plan->bits) mine = zps_program_narrow(program, mine, zps_values_of_bits(plan->bits), ZPS_FORM_ALL);
  zps_peer_gather_ranges(plan, program, mine, ZPS_FORM_ALL);
}

/* ------------------------------------------------------------ hosts */

static uint32_t host_of(const struct zps_peer_plan *plan, uint32_t position) {
  if (plan->hosts) return plan->hosts[position];
  return plan->n_levels > 0 && plan->levels[0] > 0 ? position / plan->levels[0] : position;
}

uint32_t zps_peer_master(const struct zps_peer_plan *plan, uint32_t position) {
  uint32_t master = 0;
  while (host_of(plan, master) != host_of(plan, position)) master++;
  return master;
}

uint32_t zps_peer_masters(const struct zps_peer_plan *plan, uint32_t *masters) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < plan->n; i++) {
    if (zps_peer_master(plan, i) == i) masters[n++] = i;
  }
  return n;
}

/* ------------------------------------------------------------ groups */

static uint32_t rank_at(const struct zps_peer_plan *plan, const struct zps_group *group, uint32_t place) {
  return zps_peer_rank(plan, group->places[place * group->stride]);
}

static uint32_t piece(struct zps_program *program, uint32_t held, struct zps_range range) {
  return held == ZPS_STREAM_NONE ? zps_program_own(program, range.lo, range.hi, ZPS_FORM_ALL)
                                 : zps_program_cut(program, held, range.lo, range.hi);
}

/* Place (me - s) mod n, 0 <= s <= n. */
static uint32_t before(const struct zps_group *group, uint32_t s) {
  return (group->me + group->n - s) % group->n;
}

static uint32_t ring_reduce_scatter(const struct zps_peer_plan *plan, const struct zps_group *group, uint32_t held,
                                    struct zps_range range, uint32_t tag, struct zps_program *program) {
  const uint32_t n = group->n;
  const uint32_t next = rank_at(plan, group, (group->me + 1) % n), last = rank_at(plan, group, before(group, 1));
  uint32_t sum = piece(program, held, zps_range_part(range, n, before(group, 1)));
  for (uint32_t s = 1; s < n; s++) {
    const uint32_t block = before(group, s + 1);
    const struct zps_range rows = zps_range_part(range, n, block);
    zps_program_send(program, sum, next, tag + before(group, s));
    const uint32_t theirs = zps_program_recv(program, last, tag + block, rows.lo, rows.hi);
    sum = zps_program_sum(program, (const uint32_t[]){theirs, piece(program, held, rows)}, 2, ZPS_FORM_ALL);
  }
  return sum;
}

static uint32_t recursive_halving(const struct zps_peer_plan *plan, const struct zps_group *group, uint32_t held,
                                  struct zps_range range, uint32_t tag, struct zps_program *program) {
  uint32_t first = 0; /* of the blocks still held, [first, first + 2 * half) */
  for (uint32_t half = group->n / 2; half > 0; half /= 2, tag++) {
    const bool upper = group->me & half;
    const uint32_t partner = rank_at(plan, group, group->me ^ half);
    const uint32_t keep = upper ? first + half : first, give = upper ? first : first + half;
    const struct zps_range kept = {zps_range_part(range, group->n, keep).lo,
                                   zps_range_part(range, group->n, keep + half - 1).hi};
    const struct zps_range given = {zps_range_part(range, group->n, give).lo,
                                    zps_range_part(range, group->n, give + half - 1).hi};
    zps_program_send(program, piece(program, held, given), partner, tag);
    const uint32_t theirs = zps_program_recv(program, partner, tag, kept.lo, kept.hi);
    const uint32_t ours = piece(program, held, kept);
    held = zps_program_sum(program, (const uint32_t[]){upper ? theirs : ours, upper ? ours : theirs}, 2, ZPS_FORM_ALL);
    first = keep;
  }
  return held;
}

uint32_t zps_group_reduce_scatter(const struct zps_peer_plan *plan, const struct zps_group *group,
                                  enum zps_group_algorithm algorithm, uint32_t held, struct zps_range range,
                                  uint32_t tag, struct zps_program *program) {
  if (plan->n == 1 && held == ZPS_STREAM_NONE) { /* a sum of one: +0.0 for -0.0, as everywhere */
    held = zps_program_own(program, range.lo, range.hi, ZPS_FORM_ALL);
    return zps_program_sum(program, &held, 1, ZPS_FORM_ALL);
  }
  if (group->n == 1) return piece(program, held, range);
  return algorithm == ZPS_GROUP_RING ? ring_reduce_scatter(plan, group, held, range, tag, program)
                                     : recursive_halving(plan, group, held, range, tag, program);
}

static uint32_t join_pieces(const struct zps_pieces *pieces, struct zps_program *program) {
  if (pieces->form == ZPS_FORM_ALL || pieces->n == 1 || program->code != ZPS_OK)
    return zps_program_join_all(program, pieces->streams, pieces->n);
  const uint64_t lo = program->streams[pieces->streams[0]].lo;
  return zps_program_join(program, pieces->streams, pieces->n, lo, program->streams[pieces->streams[pieces->n - 1]].hi);
}

static void gather_in_ring(const struct zps_peer_plan *plan, const struct zps_group *group, struct zps_range range,
                           uint32_t mine, struct zps_pieces *pieces, uint32_t tag, struct zps_program *program) {
  const uint32_t n = group->n;
  const uint32_t next = rank_at(plan, group, (group->me + 1) % n), last = rank_at(plan, group, before(group, 1));
  pieces->streams[group->me] = mine;
  for (uint32_t s = 1; s < n; s++) {
    const uint32_t given = before(group, s - 1), got = before(group, s);
    const struct zps_range rows = zps_range_part(range, n, got);
    zps_program_send(program, pieces->streams[given], next, tag + given);
    pieces->streams[got] = zps_program_recv(program, last, tag + got, rows.lo, rows.hi);
  }
  pieces->n = n;
}

uint64_t zps_group_begin(const struct zps_group *group, struct zps_range range, uint32_t place) {
  const uint32_t before = place < group->n_pairs ? place : group->n_pairs;
  return range.lo + zps_peer_bound(range.hi - range.lo, group->n + group->n_pairs, place + before);
}

static void recursive_doubling(const struct zps_peer_plan *plan, const struct zps_group *group, struct zps_range range,
                               uint32_t mine, struct zps_pieces *pieces, uint32_t tag, struct zps_program *program) {
  for (uint32_t step = 1; step < group->n; step *= 2, tag++) {
    const bool upper = group->me & step;
    const uint32_t partner = rank_at(plan, group, group->me ^ step), first = (group->me ^ step) & ~(step - 1);
    if (step > 1) mine = join_pieces(pieces, program);
    zps_program_send(program, mine, partner, tag);
    const uint32_t theirs = zps_program_recv(program, partner, tag, zps_group_begin(group, range, first),
                                             zps_group_begin(group, range, first + step));
    pieces->streams[0] = upper ? theirs : mine;
    pieces->streams[1] = upper ? mine : theirs;
    pieces->n = 2;
  }
}

void zps_group_all_gather(const struct zps_peer_plan *plan, const struct zps_group *group,
                          enum zps_group_algorithm algorithm, struct zps_range range, struct zps_pieces *pieces,
                          uint32_t tag, struct zps_program *program) {
  if (group->n == 1) return;
  const uint32_t mine = join_pieces(pieces, program);
  if (algorithm == ZPS_GROUP_RING)
    gather_in_ring(plan, group, range, mine, pieces, tag, program);
  else
    recursive_doubling(plan, group, range, mine, pieces, tag, program);
}
