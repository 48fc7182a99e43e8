/*
 * SSAR_Recursive_double [SparCML section 5.3.1], which is Zen's hierarchical centralization [Zen section 2.3]: log2 n
 * stages, at each of which two positions exchange all that they have. With n no power of two, position p + j first
 * gives its gradient to position j and gets the result from there at the end (p: the power of two below).
 *
 * Order of sums: (j) + (p + j), then lower + upper half at each stage, the same at both partners.
 */
#include "worker/schemes/common.h"

enum tag { TAG_IN, TAG_OUT, TAG_STAGE };

static void build(const struct zps_peer_plan *plan, struct zps_program *program) {
  const uint32_t n = zps_peer_floor2(plan->n);
  const uint32_t own = zps_program_own(program, 0, plan->rows, ZPS_FORM_SPARSE);
  uint32_t held = zps_peer_contribute(plan, program, own);
  if (plan->me >= n) {
    const uint32_t partner = zps_peer_rank(plan, plan->me - n);
    zps_program_send(program, held, partner, TAG_IN);
    zps_program_result(program, zps_program_recv(program, partner, TAG_OUT, 0, plan->rows));
    return;
  }
  if (plan->n == 1) held = zps_program_sum(program, &held, 1, ZPS_FORM_SPARSE); /* +0.0 for -0.0, as everywhere */
  const bool has_extra = plan->n - n > plan->me;
  if (has_extra) {
    const uint32_t theirs = zps_program_recv(program, zps_peer_rank(plan, plan->me + n), TAG_IN, 0, plan->rows);
    held = zps_program_sum(program, (const uint32_t[]){held, theirs}, 2, ZPS_FORM_SPARSE);
  }
  for (uint32_t stage = 0; (1u << stage) < n; stage++) {
    const uint32_t distance = 1u << stage, partner = zps_peer_rank(plan, plan->me ^ distance);
    const bool upper = plan->me & distance;
    zps_program_send(program, held, partner, TAG_STAGE + stage);
    const uint32_t theirs = zps_program_recv(program, partner, TAG_STAGE + stage, 0, plan->rows);
    held =
        zps_program_sum(program, (const uint32_t[]){upper ? theirs : held, upper ? held : theirs}, 2, ZPS_FORM_SPARSE);
  }
  if (has_extra) zps_program_send(program, held, zps_peer_rank(plan, plan->me + n), TAG_OUT);
  zps_program_result(program, held);
}

const struct zps_peer_scheme zps_peer_recursive_doubling = {
    ZPS_PEER_SCHEME(RECURSIVE_DOUBLING),
    .build = build,
};
