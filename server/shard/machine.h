/*
 * One round of one tensor on one server, as a pure state machine: which contributions are announced and here, which
 * partitions are summed and published, which ranks have read the results, and when to give up and why.
 *
 *     COLLECTING > REDUCING > PUBLISHED > RETIRED     ABORTED from any but RETIRED
 *
 * The states are the round's; partitions go ahead one by one inside it, so a partition may be published while others
 * still collect. No clock, no network, no memory but its own: zps_shard_machine_step() takes an event and says what to
 * do. Partitions are positions among those this server owns; texts and frames use their numbers in the tensor.
 *
 * With a quorum no partition is summed before the round closes. It closes when all ranks have contributed, when the
 * grace is over since `quorum` ranks have, or at the deadline if they have. The other ranks are late: their bytes are
 * dropped, and they get the sum when they come. Ranks may know the set from an earlier epoch (DECIDED); then the round
 * closes when these ranks have contributed.
 */
#ifndef ZPS_SERVER_SHARD_MACHINE_H
#define ZPS_SERVER_SHARD_MACHINE_H

#include "proto/wire.h"

enum zps_shard_machine_state {
  ZPS_SHARD_COLLECTING, /* contributions are missing */
  ZPS_SHARD_REDUCING,   /* all are here, sums are not */
  ZPS_SHARD_PUBLISHED,  /* all sums are published; ranks read them */
  ZPS_SHARD_RETIRED,    /* every rank that is still there has read them, or none has to */
  ZPS_SHARD_ABORTED,
};

enum zps_shard_machine_event_type {
  ZPS_SHARD_ANNOUNCED, /* rank, part, is_here (inline or empty), is_apart, deadline_ns; with a quorum: now_ns */
  ZPS_SHARD_LANDED,    /* rank, part: the bytes that a READ asked for; with a quorum: now_ns */
  ZPS_SHARD_REDUCED,   /* part, is_here (its sum goes to the ranks inline) */
  ZPS_SHARD_DONE,      /* rank */
  ZPS_SHARD_GONE,      /* rank, code, text, blamed */
  ZPS_SHARD_CANCEL,    /* rank, code, text: the rank gives the round up */
  ZPS_SHARD_PULL,      /* rank, deadline_ns, may_repeat: it wants rows of the sums */
  ZPS_SHARD_PULLED,    /* rank: it has them, or wants them no more */
  ZPS_SHARD_FORGET,    /* the sums are kept no longer for pulls to come */
  ZPS_SHARD_FAIL,      /* rank (or ZPS_SHARD_NO_RANK), code, text: it cannot go on here; a late rank: it alone */
  ZPS_SHARD_TICK,      /* now_ns */
  ZPS_SHARD_DECIDED,   /* rank, late: it knows the late ranks of the step, from an earlier epoch */
  ZPS_SHARD_NOTIFIED,  /* rank, which is late: it was told all sums, or, if it only gives, TAKEN */
};

#define ZPS_SHARD_NO_RANK UINT32_MAX

struct zps_shard_machine_event {
  enum zps_shard_machine_event_type type;
  uint32_t rank, part;
  bool is_here;
  bool is_apart;     /* it gives its contribution, and gets no sum unless it pulls */
  bool may_have_sum; /* GONE: it left, and may have a sum of another server */
  bool may_repeat;   /* whatever else it gets, and however often it pulls */
  uint64_t deadline_ns, now_ns;
  zps_err_t code;
  const char *text;
  const uint32_t *blamed; /* CANCEL, GONE, FAIL: the ranks that are the cause; none: this one */
  uint32_t n_blamed;
  const uint8_t *late; /* DECIDED: a bit for each rank, of `world` of them */
};

enum zps_shard_machine_action_type {
  ZPS_SHARD_READ,    /* rank, part: fetch the bytes, then LANDED */
  ZPS_SHARD_REDUCE,  /* part: all contributions are here; sum them, then REDUCED */
  ZPS_SHARD_TAKEN,   /* rank: all that it gave apart is here */
  ZPS_SHARD_DROP,    /* rank: its contribution will not be in the sum; free it */
  ZPS_SHARD_CLOSE,   /* the late ranks are known; free what they gave, and sum all partitions */
  ZPS_SHARD_PUBLISH, /* part: tell the ranks that are still there */
  ZPS_SHARD_REFUSE,  /* rank: `abort` is for it alone */
  ZPS_SHARD_RETIRE,  /* the last action: no rank needs the round any more */
  ZPS_SHARD_ABORT,   /* the last action: send `abort` to the ranks for which zps_shard_machine_wants_abort() */
};

#define ZPS_SHARD_ACTIONS_MAX 2u

struct zps_shard_machine_actions {
  unsigned n;
  struct zps_shard_machine_action {
    enum zps_shard_machine_action_type type;
    uint32_t rank, part;
  } list[ZPS_SHARD_ACTIONS_MAX];
  struct zps_frame_abort abort; /* filled for ABORT and REFUSE only; its `tensor` is the caller's to set */
};

struct zps_shard_machine_config { /* strings and arrays are borrowed until the round is started anew */
  const char *job, *tensor;
  uint64_t step;
  const uint32_t *partitions; /* n_parts numbers */
  const uint8_t *idle;        /* by rank: it has no part in the tensor's rounds; NULL: all have */
  bool is_kept;               /* the sums stay until FORGET, whoever has them */
  bool is_unsure;             /* this epoch has had no job.replay yet */
  uint32_t quorum;            /* ranks that can close the round; 0: all are needed */
  uint64_t grace_ns;          /* how long the others have from then on */
};

struct zps_shard_machine {
  struct zps_shard_machine_config config;
  uint32_t world, n_parts;
  uint32_t n_needed; /* ranks that push */
  enum zps_shard_machine_state state;
  uint64_t deadline_ns; /* the earliest of the ranks that pushed, or ZPS_NEVER; of a closed round: the caller's */
  uint64_t n_here;      /* contributions, of n_needed * n_parts */
  uint32_t n_reduced;   /* partitions */
  uint32_t n_remote;    /* of these, sums that ranks have to read: only then they say DONE */
  uint32_t n_reading;   /* ranks that are still there, get all sums and have not said DONE */
  uint32_t n_awaited;   /* ranks that gave apart and have not pulled */
  uint32_t n_pulls;     /* under way */
  bool is_kept;         /* sums are retained by configuration, and not forgotten yet */
  bool is_closed;       /* with a quorum: it is known who is late */
  bool is_unsure;       /* an earlier epoch may have decided, or a rank have left: no grace counts before job.replay */
  bool is_decided;      /* an earlier epoch has decided who is late; the round closes when the other ranks are here */
  bool has_push;        /* with a quorum: `deadline_ns` is of ranks that pushed, and not of words ahead of pushes */
  uint32_t n_full;      /* with a quorum: ranks whose whole contribution is here */
  uint32_t n_out;       /* with a quorum: ranks that cannot be in the sum any more */
  uint32_t n_late;      /* late ranks that have not been told all sums, and may still come */
  uint64_t close_ns;    /* end of the grace; ZPS_NEVER: the quorum is not here, or the round is closed */
  uint32_t *part_here;  /* contributions per partition */
  uint32_t *rank_here;  /* contributions per rank */
  uint8_t *part_reduced;
  uint8_t *slots; /* [part * world + rank]: enum slot of machine_impl.h */
  uint8_t *ranks; /* flags of machine_impl.h */
};

/* A round object for this many ranks (>= 1) and partitions; used again and again by zps_shard_machine_start(). */
zps_err_t zps_shard_machine_create(uint32_t world, uint32_t n_parts, struct zps_shard_machine **round_p) ZPS_MUSTCHECK;
void zps_shard_machine_destroy(struct zps_shard_machine *machine);
void zps_shard_machine_start(struct zps_shard_machine *machine, const struct zps_shard_machine_config *config);
/* Events that come late (after the end, from a rank that is gone) change nothing and ask for nothing. */
void zps_shard_machine_step(struct zps_shard_machine *machine, const struct zps_shard_machine_event *event,
                            struct zps_shard_machine_actions *actions);

bool zps_shard_machine_over(const struct zps_shard_machine *machine);
/* The rank takes part in this round, is there and has not said DONE, nor been told that its contribution is taken. */
bool zps_shard_machine_wants_abort(const struct zps_shard_machine *machine, uint32_t rank);
/* No frame goes to this rank, and none is taken from it: it is gone, or has no part. */
bool zps_shard_machine_rank_gone(const struct zps_shard_machine *machine, uint32_t rank);
/* All sums are told, and the rank has not said that it has read them. */
bool zps_shard_machine_reads(const struct zps_shard_machine *machine, uint32_t rank);
/* All sums go to the rank. */
bool zps_shard_machine_gets_all(const struct zps_shard_machine *machine, uint32_t rank);
bool zps_shard_machine_has_pulled(const struct zps_shard_machine *machine, uint32_t rank);
/* Sums are kept after they were published: for pulls under way, and to come. */
bool zps_shard_machine_keeps(const struct zps_shard_machine *machine);
/* The round is over but for sums that may still be pulled. */
bool zps_shard_machine_only_keeps(const struct zps_shard_machine *machine);
/* With a quorum: the sum is made, or will be made, without the rank. */
bool zps_shard_machine_is_late(const struct zps_shard_machine *machine, uint32_t rank);
/* A late rank that gets no sum any more: it gave up, or its sum is forgotten. */
bool zps_shard_machine_is_too_late(const struct zps_shard_machine *machine, uint32_t rank);
/* A late rank that has announced all, and was not told anything. */
bool zps_shard_machine_awaits(const struct zps_shard_machine *machine, uint32_t rank);
/* The rank gives its contribution apart. */
bool zps_shard_machine_only_gives(const struct zps_shard_machine *machine, uint32_t rank);
uint32_t zps_shard_machine_count_late(const struct zps_shard_machine *machine);
/* The rank has announced its contribution to the partition. */
bool zps_shard_machine_has(const struct zps_shard_machine *machine, uint32_t rank, uint32_t part);
bool zps_shard_machine_part_reduced(const struct zps_shard_machine *machine, uint32_t part);

#endif
