/*
 * Schemes in which every rank sends straight to every other one: AGsparse [Zen section 2.3] = sparse allgather
 * [SparCML], its SSAR_Split_allgather and DSAR_Split_allgather [SparCML section 5.3], and Ok-Topk's baselines TopkA,
 * TopkDSA and Gaussiank, which first select and then are one of these [Ok-Topk section 5]. TopkDSA's second half is
 * dynamic: a range of sums becomes dense where that is smaller, or where QSGD bits are asked for.
 *
 * dense-split sends with zero copy: each row goes to one rank, whose sum every rank's result needs. So all of the
 * gradient was read when every rank has its result, and what is sent of it need not be a copy (worker/peer/zerocopy.c).
 *
 * bitmap-split reads a lane's range of the gradient once, which becomes bits and values by one compressing loop (`pack`
 * in common/codec/simd/simd.h): no rows are listed or coded. Sums are added by the bits, and are bits and values again,
 * or all rows where more than 3/4 are in one. At a fifth that is 4% more bytes than the entropy, at half none. Its
 * bytes are the same in every codec policy.
 *
 * Order of sums: positions ascending: the same bits as balanced has.
 */

#include "worker/schemes/gather_ranges.h"

static uint32_t own(const struct zps_peer_plan *plan, struct zps_program *program) {
  return zps_program_own(program, 0, plan->rows, ZPS_FORM_SPARSE);
}

static void build_agsparse(const struct zps_peer_plan *plan, struct zps_program *program) {
  zps_peer_allgather_sum(plan, program, zps_peer_contribute(plan, program, own(plan, program)));
}

static void build_split(const struct zps_peer_plan *plan, struct zps_program *program) {
  const uint32_t mine = zps_peer_split(plan, program, ZPS_STREAM_NONE, ZPS_FORM_SPARSE);
  zps_peer_gather_ranges(plan, program, mine, ZPS_FORM_SPARSE);
}

static void build_dsar(const struct zps_peer_plan *plan, struct zps_program *program) {
  zps_peer_split_dense(plan, program, ZPS_STREAM_NONE);
}

static void build_dense_split(const struct zps_peer_plan *plan, struct zps_program *program) {
  zps_peer_split_lanes(plan, program, ZPS_FORM_ALL);
}

static void build_bitmap_split(const struct zps_peer_plan *plan, struct zps_program *program) {
  zps_peer_split_lanes(plan, program, ZPS_FORM_BITS);
}

static void build_topka(const struct zps_peer_plan *plan, struct zps_program *program) {
  const uint32_t top = zps_program_top(program, own(plan, program), plan->k);
  const uint32_t given = zps_peer_contribute(plan, program, top);
  zps_peer_allgather_sum(plan, program, given);
  if (plan->contributed) zps_program_contributed(program, top);
}

static void build_gaussiank(const struct zps_peer_plan *plan, struct zps_program *program) {
  const bool corrected = !(plan->without & ZPS_WITHOUT_CORRECTION);
  const uint32_t selected = zps_program_normal(program, own(plan, program), plan->k, corrected);
  zps_peer_allgather_sum(plan, program, zps_peer_contribute(plan, program, selected));
  if (plan->contributed) zps_program_contributed(program, selected);
}

static void build_topkdsa(const struct zps_peer_plan *plan, struct zps_program *program) {
  const uint32_t top = zps_program_top(program, own(plan, program), plan->k);
  if (plan->bits)
    zps_peer_split_dense(plan, program, top);
  else
    zps_peer_gather_ranges(plan, program, zps_peer_split(plan, program, top, ZPS_FORM_SPARSE), ZPS_FORM_SPARSE);
  if (plan->contributed) zps_program_contributed(program, top);
}

const struct zps_peer_scheme zps_peer_agsparse = {
    ZPS_PEER_SCHEME(AGSPARSE),
    .build = build_agsparse,
};

const struct zps_peer_scheme zps_peer_split_allgather = {
    ZPS_PEER_SCHEME(SPLIT_ALLGATHER),
    .build = build_split,
};

const struct zps_peer_scheme zps_peer_dsar = {
    ZPS_PEER_SCHEME(DSAR),
    .build = build_dsar,
};

const struct zps_peer_scheme zps_peer_dense_split = {
    ZPS_PEER_SCHEME(DENSE_SPLIT),
    .build = build_dense_split,
};

const struct zps_peer_scheme zps_peer_bitmap_split = {
    ZPS_PEER_SCHEME(BITMAP_SPLIT),
    .build = build_bitmap_split,
};

const struct zps_peer_scheme zps_peer_topka = {
    ZPS_PEER_SCHEME(TOPKA),
    .build = build_topka,
};

const struct zps_peer_scheme zps_peer_topkdsa = {
    ZPS_PEER_SCHEME(TOPKDSA),
    .build = build_topkdsa,
};

const struct zps_peer_scheme zps_peer_gaussiank = {
    ZPS_PEER_SCHEME(GAUSSIANK),
    .build = build_gaussiank,
};
