/*
 * Sparse allreduce by host: the ranks of a host merge what they have at its master (its lowest rank), so that rows
 * which several of them hold leave the host once; the masters run Split_allgather among themselves, and each hands the
 * result to its host. Worth it wherever ranks of a host hold the same rows, or share a link.
 *
 * Order of sums: ranks of a host ascending, then hosts in the order of their masters.
 */
#include <stdlib.h>

#include "worker/schemes/parts.h"

enum { TAG_UP = 8, TAG_DOWN }; /* beyond those of parts.c; DOWN and the range */

static void build_member(const struct zps_peer_plan *plan, uint32_t master, uint32_t n_masters,
                         struct zps_program *program) {
  const uint32_t rank = zps_peer_rank(plan, master);
  zps_program_send(program, zps_program_own(program, 0, plan->rows, false), rank, TAG_UP);
  for (uint32_t i = 0; i < n_masters; i++) {
    const struct zps_range range = zps_range_part((struct zps_range){0, plan->rows}, n_masters, i);
    zps_program_result(program, zps_program_recv(program, rank, TAG_DOWN + i, range.lo, range.hi));
  }
}

/* `streams`: scratch of n. */
static void build_master(const struct zps_peer_plan *plan, const uint32_t *masters, uint32_t n_masters, uint32_t *ranks,
                         uint32_t *streams, struct zps_program *program) {
  struct zps_peer_plan among = *plan;
  uint32_t n = 0, held = ZPS_STREAM_NONE;
  among.n = n_masters;
  among.ranks = ranks;
  for (uint32_t i = 0; i < n_masters; i++) {
    ranks[i] = zps_peer_rank(plan, masters[i]);
    if (masters[i] == plan->me) among.me = i;
  }
  for (uint32_t i = plan->me + 1; i < plan->n; i++) {
    if (zps_peer_master(plan, i) != plan->me) continue;
    if (n == 0) streams[n++] = zps_program_own(program, 0, plan->rows, false);
    streams[n++] = zps_program_recv(program, zps_peer_rank(plan, i), TAG_UP, 0, plan->rows);
  }
  if (n > 0) held = zps_program_sum(program, streams, n, false);
  zps_peer_gather_ranges(&among, program, zps_peer_split(&among, program, held, false), streams);
  for (uint32_t i = plan->me + 1; i < plan->n; i++) {
    if (zps_peer_master(plan, i) != plan->me) continue;
    for (uint32_t j = 0; j < n_masters; j++) {
      zps_program_send(program, streams[j], zps_peer_rank(plan, i), TAG_DOWN + j);
    }
  }
}

static void build(const struct zps_peer_plan *plan, void *state, uint64_t round, struct zps_program *program) {
  uint32_t *const masters = calloc(plan->n, 3 * sizeof *masters);
  (void)state;
  (void)round;
  if (!masters) {
    program->code = ZPS_ERR_NOMEM;
    return;
  }
  const uint32_t n_masters = zps_peer_masters(plan, masters), master = zps_peer_master(plan, plan->me);
  if (master == plan->me) {
    build_master(plan, masters, n_masters, masters + plan->n, masters + 2 * plan->n, program);
  } else {
    build_member(plan, master, n_masters, program);
  }
  free(masters);
}

const struct zps_peer_scheme zps_peer_hierarchical = {
    .name = "hierarchical",
    .summary = "ranks of a host merge, one of them speaks for it [BlueConnect's decomposition, for sparse gradients]",
    .build = build,
};
