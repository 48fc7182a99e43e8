/*
 * One round of one tensor on one server, as a pure state machine: which contributions are announced and here, which
 * partitions are summed and published, who has read the results, and when to give up and why.
 *
 *     COLLECTING > REDUCING > PUBLISHED > RETIRED     ABORTED from any but RETIRED
 *
 * The states are the round's; partitions go ahead one by one inside it, so a partition may be published while others
 * still collect. No clock, no network, no memory but its own: zps_round_step() takes an event and says what to do.
 * Partitions are positions among those this server owns; texts and frames use their numbers in the tensor.
 */
#ifndef ZPS_SERVER_ROUND_H
#define ZPS_SERVER_ROUND_H

#include "proto/wire.h"

enum zps_round_state {
  ZPS_ROUND_COLLECTING, /* contributions are missing */
  ZPS_ROUND_REDUCING,   /* all are here, sums are not */
  ZPS_ROUND_PUBLISHED,  /* all sums are published; ranks read them */
  ZPS_ROUND_RETIRED,    /* every rank that is still there has read them, or none has to */
  ZPS_ROUND_ABORTED,
};

enum zps_round_event_type {
  ZPS_ROUND_ANNOUNCED, /* rank, part, is_here (inline or empty), deadline_ns */
  ZPS_ROUND_LANDED,    /* rank, part: the bytes that a READ asked for */
  ZPS_ROUND_REDUCED,   /* part, is_here (its sum goes to the ranks inline) */
  ZPS_ROUND_DONE,      /* rank */
  ZPS_ROUND_GONE,      /* rank, code, text, whose loss it comes of */
  ZPS_ROUND_CANCEL,    /* rank, code, text: the rank gives the round up */
  ZPS_ROUND_FAIL,      /* rank (or ZPS_ROUND_NO_RANK), code, text: it cannot go on here */
  ZPS_ROUND_TICK,      /* now_ns */
};

#define ZPS_ROUND_NO_RANK UINT32_MAX

struct zps_round_event {
  enum zps_round_event_type type;
  uint32_t rank, part;
  bool is_here;
  uint64_t deadline_ns, now_ns;
  zps_err_t code;
  const char *text;
  const uint32_t *blamed; /* CANCEL, GONE: the ranks for whose sake this one is; none: itself */
  uint32_t n_blamed;
};

enum zps_round_action_type {
  ZPS_ROUND_READ,    /* rank, part: fetch the bytes, then LANDED */
  ZPS_ROUND_REDUCE,  /* part: all contributions are here; sum them, then REDUCED */
  ZPS_ROUND_PUBLISH, /* part: tell the ranks that are still there */
  ZPS_ROUND_RETIRE,  /* the last action: nobody needs the round any more */
  ZPS_ROUND_ABORT,   /* the last action: send `abort` to the ranks for which zps_round_wants_abort() */
};

#define ZPS_ROUND_ACTIONS_MAX 2u

struct zps_round_actions {
  unsigned n;
  struct zps_round_action {
    enum zps_round_action_type type;
    uint32_t rank, part;
  } list[ZPS_ROUND_ACTIONS_MAX];
  struct zps_frame_abort abort; /* filled for ABORT only; its `tensor` is the caller's to set */
};

struct zps_round_config { /* strings and arrays are borrowed until the round is started anew */
  const char *job, *tensor;
  uint64_t step;
  const uint32_t *partitions; /* n_parts numbers */
  const uint8_t *idle;        /* by rank: it has no part in the tensor's rounds; NULL: all have */
};

struct zps_round {
  struct zps_round_config config;
  uint32_t world, n_parts;
  uint32_t n_needed; /* ranks that push */
  enum zps_round_state state;
  uint64_t deadline_ns; /* the earliest of the ranks that pushed, or ZPS_NEVER */
  uint64_t n_here;      /* contributions, of n_needed * n_parts */
  uint32_t n_reduced;   /* partitions */
  uint32_t n_remote;    /* of these, sums that ranks have to read: only then they say DONE */
  uint32_t n_reading;   /* ranks that are still there and have not said DONE */
  uint32_t *part_here;  /* contributions per partition */
  uint8_t *part_reduced;
  uint8_t *slots; /* [part * world + rank]: enum slot of round.c */
  uint8_t *ranks; /* flags of round.c */
};

/* A round object for this many ranks (>= 1) and partitions; used again and again by zps_round_start(). */
zps_err_t zps_round_create(uint32_t world, uint32_t n_parts, struct zps_round **round_p) ZPS_MUSTCHECK;
void zps_round_destroy(struct zps_round *round);
void zps_round_start(struct zps_round *round, const struct zps_round_config *config);
/* Events that come late (after the end, from a rank that is gone) change nothing and ask for nothing. */
void zps_round_step(struct zps_round *round, const struct zps_round_event *event, struct zps_round_actions *actions);

bool zps_round_over(const struct zps_round *round);
/* The rank takes part in this round, is there and has not said DONE. */
bool zps_round_wants_abort(const struct zps_round *round, uint32_t rank);
/* Nothing is said to this rank, and nothing heard of it: it is gone, or has no part. */
bool zps_round_rank_gone(const struct zps_round *round, uint32_t rank);
/* The rank has announced its contribution to the partition. */
bool zps_round_has(const struct zps_round *round, uint32_t rank, uint32_t part);
bool zps_round_part_reduced(const struct zps_round *round, uint32_t part);
const char *zps_round_state_name(enum zps_round_state state);

#endif
