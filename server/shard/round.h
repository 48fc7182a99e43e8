/*
 * A round in flight: what its ranks have pushed, the sums of its partitions, and its place in the shard. The machine
 * (machine.h) says what to do; here it is done.
 */
#ifndef ZPS_SERVER_SHARD_ROUND_H
#define ZPS_SERVER_SHARD_ROUND_H

#include "common/codec/codec.h"
#include "common/codec/values.h"
#include "common/net/slab.h"
#include "common/session/checks.h"
#include "server/shard/machine.h"
#include "server/shard/memory.h"

struct zps_account;
struct zps_job;
struct zps_reduce_task;
struct zps_shard_pull;
struct zps_shard;
struct zps_shard_sum;
struct zps_tensor;

/* A rank's slice of one partition on its way into the sum. */
struct zps_contribution {
  struct zps_shard *shard;
  struct zps_shard_round *round; /* NULL: no round wants it any more, the fabric still writes to it */
  struct zps_contribution *next;
  uint32_t part, rank;
  uint32_t codec, nnz;
  uint64_t len_bytes;
  void *data;
  bool is_here, is_wide;
  bool is_orphan;              /* no round wants it any more, and it is being read */
  uint8_t size;                /* of `store`: one of a few */
  struct zps_account *account; /* of the job, for `store` and `buf` */
  struct zps_shard_wait wait;
  struct zps_buf buf;
  struct zps_checked_read read;
  uint64_t sum;                 /* checksum, as announced */
  _Alignas(16) uint8_t store[]; /* an inline slice */
};

struct zps_part_run {
  struct zps_shard_wait wait;   /* for `result` */
  struct zps_reduce_task *task; /* while the pool sums */
  struct zps_buf result;        /* until the task has it */
  uint64_t pushed_nnz;          /* in large contributions */
  uint32_t nnz;                 /* of the sum */
};

/* What a rank's frames say of it. */
enum zps_shard_presence { ZPS_SHARD_UNHEARD, ZPS_SHARD_PRESENT, ZPS_SHARD_ABSENT };

struct zps_shard_round {
  struct zps_tensor *tensor;
  struct zps_shard_machine *machine;
  uint64_t charged_bytes;                  /* for this object */
  uint64_t age;                            /* order of opening, over all tensors */
  struct zps_shard_round *next;            /* of the tensor, or of a free list */
  struct zps_shard_round *older, *younger; /* of the shard */
  struct zps_shard_round *next_ready;      /* of those with something to publish */
  bool is_ready;
  struct zps_part_run *parts;
  struct zps_shard_sum **sums;     /* by part; NULL: not made yet, or sent and not kept */
  struct zps_shard_pull *pulls;    /* of its sums */
  struct zps_contribution **slots; /* [part * world + rank] */
  uint32_t *nnz;                   /* [part * world + rank] */
  uint32_t *ready;                 /* parts to publish */
  uint32_t *late_parts;            /* all parts, for a late rank; NULL: the tensor has no quorum */
  uint32_t n_ready;
  uint32_t n_small;                    /* sums that are due and will be small */
  uint32_t n_in_order;                 /* parts from the first on that are summed, as far as memory.c knows */
  uint64_t sums_bytes;                 /* estimate of its large sums, from the pushes so far */
  uint64_t unsummed_bytes;             /* in buffers of contributions */
  bool has_read;                       /* something was read, or is to be: not all contributions came inside frames */
  uint64_t *total_nnz, *first_push_ns; /* by rank */
  uint64_t *until_ns;                  /* by rank: its deadline, the latest that it has told */
  uint64_t overdue_ns;                 /* when ranks were found to owe a word (shard.c); 0: none has been */
  uint8_t *presence;                   /* by rank: enum zps_shard_presence */
  uint32_t n_absent;                   /* ranks */
  uint64_t opened_ns, collected_ns, published_ns, reduce_ns;
};

/* The contribution of `rank` to a part; NULL: not here yet, not there at all, or with its sum. */
static inline struct zps_contribution **zps_shard_round_slot(const struct zps_shard_round *round, uint32_t part,
                                                             uint32_t rank) {
  return &round->slots[(size_t)part * round->machine->world + rank];
}

/* Counts a contribution that is being read, and that no sum needs. */
void zps_contribution_orphan(struct zps_contribution *contribution);
/* Its read has ended. */
void zps_contribution_read(struct zps_contribution *contribution);
zps_err_t zps_shard_round_open(struct zps_tensor *tensor, uint64_t step, uint64_t now_ns,
                               struct zps_shard_round **round_p, struct zps_error *error) ZPS_MUSTCHECK;
/* Those of a tensor that are over. */
void zps_shard_rounds_free(struct zps_tensor *tensor);
struct zps_shard_round *zps_shard_round_find(const struct zps_tensor *tensor, uint64_t step);
/* Runs the round machine and does what it says. False: a late rank was refused; or the round is over and no longer the
 * tensor's. Its memory stays valid until zps_shard_round_bury(). */
bool zps_shard_round_step(struct zps_shard_round *round, const struct zps_shard_machine_event *event);
/* Members of the event: zps_shard_round_tell(round, .type = ZPS_SHARD_DONE, .rank = rank) */
#define zps_shard_round_tell(round, ...) zps_shard_round_step(round, &(struct zps_shard_machine_event){__VA_ARGS__})
bool zps_shard_round_fail(struct zps_shard_round *round, uint32_t rank, zps_err_t code, const char *fmt, ...)
    ZPS_PRINTF(4, 5);
/* Ends the round without a word to anybody, and without a trace: its step may begin anew. Sums that ranks may be
 * reading are held by the job. Not to be called from within a step. */
void zps_shard_round_drop(struct zps_shard_round *round);
/* Hands the objects of rounds that are over back to their tensors. */
void zps_shard_round_bury(struct zps_shard *shard);
/* Counts for the job, where so many bytes come inline. */
uint64_t zps_contribution_bytes(uint64_t len_bytes);
/* With room for so many bytes that come inline. */
struct zps_contribution *zps_contribution_get(struct zps_job *job, uint64_t len_bytes);
void zps_contribution_put(struct zps_contribution *contribution);
void zps_contributions_free(struct zps_shard *shard);

#endif
