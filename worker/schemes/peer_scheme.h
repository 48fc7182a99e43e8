/*
 * The contract of rank-to-rank schemes: from rank, world and options to a program (program.h). Pure: no network, no
 * clock, the same program from the same arguments, and programs of different ranks that fit together.
 *
 * Order of sums: each scheme says in its file in which order it adds. It depends on ranks and rows alone, never on
 * arrival, so every rank gets the same bits, in every run.
 */
#ifndef ZPS_WORKER_SCHEMES_PEER_SCHEME_H
#define ZPS_WORKER_SCHEMES_PEER_SCHEME_H

#include "common/codec/codec_choice.h"
#include "common/plan/scheme_options.h"
#include "worker/schemes/program.h"

struct zps_peer_scheme;
/* The parameters of a tensor's scheme; the same on all ranks except for `me`. */
struct zps_peer_plan {
  uint32_t n;            /* ranks that take part */
  uint32_t me;           /* this one's position among them, 0..n-1 */
  const uint32_t *ranks; /* n: rank in the job of each, ascending; NULL: the identity */
  uint64_t rows;
  uint32_t width;
  /* Those of the tensor, with `k` where it has a density, and `chunks` of 1 or more. `levels` are over ranks sorted by
   * rack and host. */
  ZPS_SCHEME_OPTIONS_HERE;
  const struct zps_peer_scheme *inner; /* hierarchical: between hosts; NULL: over servers */
  const uint32_t *hosts;               /* n: which host each rank is on, any numbers; NULL: all on their own */
  const uint32_t *racks; /* n: which rack each rank is in, any numbers; NULL: `levels` are over ranks sorted by host */
  uint32_t value_bytes;  /* of the dtype; 0: not known, and ZPS_ALLGATHER_AUTO is direct */
  uint32_t values;       /* number of the value codec that a rank's own rows are rounded to; 0: as they are */
  const bool *near;      /* n: with which ranks of its host this one agrees to offer gradients on its device (both know
                            of each other); NULL: with none */
  uint32_t offer_len;    /* doubles of an offer */
};

struct zps_peer_scheme {
  enum zps_plan_scheme number;
  const char *name; /* the name on every command line */
  /* The flags of common/plan/schemes.h. */
  bool lossy, nests, zerocopy, stateful;
  bool sends_zeros; /* sum and mean alone, no max or min */
  bool coo;
  /* State from round to round, for stateful schemes; NULL otherwise. */
  zps_err_t (*open)(const struct zps_peer_plan *plan, void **state_p);
  void (*close)(void *state);
  /* The last round built has failed here, at whatever point: other ranks may have ended it, or never begun. Ranks call
   * it and the next build at different times, so their programs have to find out which rank remembers which round. */
  void (*failed)(void *state);
  /* The program of a round: the caller has set its `state` and `round`. */
  void (*build)(const struct zps_peer_plan *plan, struct zps_program *program);
  /* After CALL `phase`: appends instructions, knowing `vectors`, those of the CALL's ins, one after another with
   * `lengths`. Called in the order in which the CALLs' streams become ready. */
  void (*extend)(const struct zps_peer_plan *plan, uint32_t phase, const double *const *vectors,
                 const uint32_t *lengths, struct zps_program *program);
};

/* Number, name and flags of a scheme: ZPS_PEER_SCHEME(RING). */
#define ZPS_PEER_SCHEME(of)                                                                                     \
  .number = ZPS_PLAN_##of, .name = zps_plan_scheme_names[ZPS_PLAN_##of],                                        \
  .lossy = ZPS_PLAN_FLAGS_##of & ZPS_SCHEME_LOSSY, .nests = ZPS_PLAN_FLAGS_##of & ZPS_SCHEME_NESTS,             \
  .zerocopy = ZPS_PLAN_FLAGS_##of & ZPS_SCHEME_ZEROCOPY, .stateful = ZPS_PLAN_FLAGS_##of & ZPS_SCHEME_STATEFUL, \
  .coo = ZPS_PLAN_FLAGS_##of & ZPS_SCHEME_COO,                                                                  \
  .sends_zeros = ZPS_PLAN_FLAGS_##of & (ZPS_SCHEME_ALL_VALUES | ZPS_SCHEME_ZEROS)

extern const struct zps_peer_scheme zps_peer_recursive_doubling, zps_peer_split_allgather, zps_peer_dsar,
    zps_peer_dense_split, zps_peer_bitmap_split, zps_peer_agsparse, zps_peer_ring, zps_peer_rabenseifner,
    zps_peer_two_level, zps_peer_blueconnect, zps_peer_oktopk, zps_peer_hierarchical, zps_peer_gtopk, zps_peer_topka,
    zps_peer_topkdsa, zps_peer_gaussiank;

/* By name; NULL for names of no rank-to-rank scheme. */
const struct zps_peer_scheme *zps_peer_scheme_find(const char *name);

/* Position -> rank in the job. */
static inline uint32_t zps_peer_rank(const struct zps_peer_plan *plan, uint32_t position) {
  return plan->ranks ? plan->ranks[position] : position;
}

/* How a scheme's streams are coded where the tensor's policy is this one. */
static inline enum zps_codec_policy zps_peer_policy(const struct zps_peer_scheme *scheme,
                                                    enum zps_codec_policy policy) {
  return scheme->coo && policy == ZPS_CODEC_PAPER ? ZPS_CODEC_COO_ONLY : policy;
}

/* Messages that one rank sends another in a round, at most, under any scheme: in each lane two of each block, one on
 * the way to its sum and one with it; and those with tags of their own, of which Ok-Topk has the most. */
static inline uint64_t zps_peer_messages_max(const struct zps_peer_plan *plan) {
  enum { OTHER_TAGS = 256 };
  return 2ull * plan->n * (plan->chunks ? plan->chunks : 1) + OTHER_TAGS;
}

/* Row where block `i` of `n` even ones begins; i = n: the end. */
static inline uint64_t zps_peer_bound(uint64_t rows, uint32_t n, uint32_t i) {
  return (uint64_t)(((unsigned __int128)rows * i) / n);
}

#endif
