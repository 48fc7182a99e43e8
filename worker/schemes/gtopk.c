/*
 * gTopk (Shi et al., as in Ok-Topk section 5): a binomial tree in which each sum of two is cut to its k greatest, then
 * a broadcast down the same tree.
 *
 * At stage i position j with bit i set sends what it has to j - 2^i. Sums are therefore (lower) + (upper) at each node
 * of the tree, and what a node drops is lost to the result, although another rank might have lifted it over the
 * threshold.
 */
#include "worker/schemes/common.h"

enum { TAG_UP = 0, TAG_DOWN = 64 }; /* plus the stage */

static void build(const struct zps_peer_plan *plan, struct zps_program *program) {
  const uint32_t top = zps_program_top(program, zps_program_own(program, 0, plan->rows, ZPS_FORM_SPARSE), plan->k);
  uint32_t kept = zps_peer_contribute(plan, program, top);
  uint32_t stage = 0;
  for (; (1ull << stage) < plan->n; stage++) {
    const uint32_t distance = 1u << stage;
    if (plan->me & distance) {
      const uint32_t parent = zps_peer_rank(plan, plan->me - distance);
      zps_program_send(program, kept, parent, TAG_UP + stage);
      kept = zps_program_recv(program, parent, TAG_DOWN + stage, 0, plan->rows);
      break;
    }
    if (plan->n - plan->me <= distance) continue; /* no rank there */
    const uint32_t other =
        zps_program_recv(program, zps_peer_rank(plan, plan->me + distance), TAG_UP + stage, 0, plan->rows);
    kept = zps_program_top(program, zps_program_sum(program, (const uint32_t[]){kept, other}, 2, ZPS_FORM_SPARSE),
                           plan->k);
  }
  while (stage-- > 0) {
    const uint32_t distance = 1u << stage;
    if (plan->n - plan->me > distance) {
      zps_program_send(program, kept, zps_peer_rank(plan, plan->me + distance), TAG_DOWN + stage);
    }
  }
  zps_program_result(program, kept);
  if (plan->contributed) zps_program_contributed(program, zps_program_common(program, top, kept));
}

const struct zps_peer_scheme zps_peer_gtopk = {
    ZPS_PEER_SCHEME(GTOPK),
    .build = build,
};
