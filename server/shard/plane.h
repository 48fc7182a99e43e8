/*
 * What the files of the data plane share. Private to them: shard.c, job.c, collect.c, live.c, memory.c, reduce.c,
 * publish.c, stats.c. Everything here belongs to the engine thread, except where it says pool.
 */
#ifndef ZPS_SERVER_SHARD_PLANE_H
#define ZPS_SERVER_SHARD_PLANE_H

#include "common/base/scratch.h"
#include "common/base/workpool.h"
#include "common/codec/partition.h"
#include "common/codec/reduce.h"
#include "common/session/link.h"
#include "common/session/tags.h"
#include "server/shard/machine.h"
#include "server/shard/shard.h"

#define ZPS_SHARD_ROUNDS_MAX 64u /* rounds in flight per tensor */
#define ZPS_TOMBSTONES 128u      /* ended rounds remembered per tensor */
#define ZPS_SLOTS_MAX (1u << 22) /* ranks times partitions of a tensor on one server */

struct zps_job;
struct zps_tensor;
struct zps_shard_round;

/* ---- memory.c: registered buffers, oldest round first ---- */

/* A request for a registered buffer; embedded. */
struct zps_memory_wait {
  struct zps_memory_wait *prev, *next;
  struct zps_shard_round *round;
  uint32_t part;
  bool is_queued;
  uint64_t len_bytes;
  bool is_push; /* what a rank pushed: no more of that than the links need, unless it is of the oldest partition */
  struct zps_buf *buf_p; /* where the buffer goes */
  void (*granted)(struct zps_memory_wait *wait);
};

/* Calls granted() at once or from a later zps_memory_serve(); aborts the round when the limit is too small for it. */
void zps_memory_want(struct zps_shard *shard, struct zps_memory_wait *wait);
void zps_memory_cancel(struct zps_shard *shard, struct zps_memory_wait *wait);
void zps_memory_serve(struct zps_shard *shard);

/* ---- live.c: a round and the objects it works on ---- */

/* A rank's slice of one partition on its way into the sum. */
struct zps_contribution {
  struct zps_shard *shard;
  struct zps_shard_round *round; /* NULL: nobody wants it any more, the fabric still writes to it */
  struct zps_contribution *next;
  uint32_t part, rank;
  uint32_t codec, nnz;
  uint64_t len_bytes;
  const void *data;
  bool is_here, has_store;
  struct zps_memory_wait wait;
  struct zps_buf buf;
  struct zps_bulk_read read;
  _Alignas(16) uint8_t store[]; /* ZPS_WIRE_INLINE_MAX bytes when has_store: inline slices */
};

struct zps_reduce_task;

struct zps_part_run {
  struct zps_memory_wait wait;  /* for `result` */
  struct zps_reduce_task *task; /* while the pool sums */
  struct zps_buf result;
  enum zps_codec codec;
  uint32_t nnz;
  uint64_t len_bytes;
};

struct zps_shard_round {
  struct zps_tensor *tensor;
  struct zps_shard_machine *machine;
  uint64_t age;                            /* order of opening, over all tensors */
  struct zps_shard_round *next;            /* of the tensor, or of a free list */
  struct zps_shard_round *older, *younger; /* of the shard */
  struct zps_shard_round *next_ready;      /* of those with something to publish */
  bool is_ready;
  struct zps_part_run *parts;
  struct zps_contribution **slots; /* [part * world + rank] */
  uint32_t *nnz;                   /* [part * world + rank] */
  uint32_t *ready;                 /* parts to publish */
  uint32_t n_ready;
  uint32_t n_small;                    /* sums that are due and will be small */
  uint32_t n_in_order;                 /* parts from the first on that are summed, as far as memory.c knows */
  uint64_t unsummed_bytes;             /* in buffers of contributions */
  uint64_t *total_nnz, *first_push_ns; /* by rank */
  uint64_t opened_ns, collected_ns, published_ns, reduce_ns;
};

zps_err_t zps_shard_round_open(struct zps_tensor *tensor, uint64_t step, uint64_t now_ns,
                               struct zps_shard_round **round_p) ZPS_MUSTCHECK;
void zps_shard_round_free(struct zps_shard_round *round);
struct zps_shard_round *zps_shard_round_find(const struct zps_tensor *tensor, uint64_t step);
/* Runs the round machine and does what it says. False: the round is over and `live` is no longer the tensor's; its
 * memory stays valid until zps_shard_round_bury(). */
bool zps_shard_round_step(struct zps_shard_round *round, const struct zps_shard_machine_event *event);
bool zps_shard_round_fail(struct zps_shard_round *round, uint32_t rank, zps_err_t code, const char *fmt, ...)
    ZPS_PRINTF(4, 5);
/* Hands the objects of rounds that are over back to their tensors. */
void zps_shard_round_bury(struct zps_shard *shard);
struct zps_contribution *zps_contribution_get(struct zps_shard *shard, bool has_store);
void zps_contribution_put(struct zps_contribution *contribution);
void zps_contributions_free(struct zps_shard *shard);

/* ---- reduce.c ---- */

void zps_reduce_start(struct zps_shard_round *round, uint32_t part);
/* Makes the sums that are too small for the pool. */
void zps_reduce_run_small(struct zps_shard *shard);
/* The live round does not wait for the sum any more. */
void zps_reduce_forget(struct zps_reduce_task *task);
void zps_reduce_tasks_free(struct zps_tensor *tensor);
zps_err_t zps_reduce_init(struct zps_shard *shard) ZPS_MUSTCHECK;
void zps_reduce_fini(struct zps_shard *shard);

/* ---- publish.c ---- */

void zps_publish_part(struct zps_shard_round *round, uint32_t part);
/* Sends what is ready, but keeps small sums for a moment while more of them are being made: together they cost less. */
void zps_publish_flush(struct zps_shard *shard);
/* Sends it without waiting for others, and forgets that there was something. */
void zps_publish_all(struct zps_shard_round *round);
void zps_publish_forget(struct zps_shard_round *round);

/* ---- job.c ---- */

struct zps_member {
  struct zps_net_peer *peer;
  struct zps_link *link; /* NULL: gone */
  struct zps_bulk_peer *bulk;
  struct zps_job *job;
  uint32_t rank;
  uint32_t tag; /* of its short headers */
  bool has_tag;
  bool is_failing; /* cannot be talked to; becomes gone with the next tick */
  zps_err_t gone_code;
  char *gone_text;
};

struct zps_job {
  struct zps_shard *shard;
  struct zps_job *next;
  uint64_t id, seed;
  uint32_t epoch, server, world;
  uint32_t n_gone;
  char name[ZPS_NAME_MAX + 1];
  struct zps_tensor *tensors;
  uint32_t lost; /* the rank that the job failed for, as the coordinator says; ZPS_SHARD_NO_RANK: none */
  char *lost_text;
  bool is_closed;
  uint64_t linger_until_ns; /* closed: its links live on until what was sent last has arrived */
  struct zps_member members[];
};

/* A round that is over: a push that comes late is told what happened. */
struct zps_tombstone {
  uint64_t step;
  bool is_used, is_completed;
  struct zps_frame_abort *abort; /* what to say; NULL where there was no memory to keep it */
};

/* What zps_tensor_stats is made of. */
struct zps_tensor_sums {
  uint64_t rounds, aborted, bytes_in, bytes_out, push_rows, union_rows, collect_ns, reduce_ns, publish_ns;
  uint64_t *rows;               /* [part * world + rank] */
  uint64_t *part_union;         /* by part */
  uint64_t *total_nnz, *lag_ns; /* by rank */
};

struct zps_tensor {
  struct zps_job *job;
  struct zps_tensor *next;
  uint32_t id, width;
  char name[ZPS_NAME_MAX + 1];
  enum zps_dtype dtype;
  enum zps_op op;
  unsigned codecs; /* that results may travel in: a set */
  enum zps_value_codec value_codec;
  struct zps_partition partition;
  uint32_t parts_here;
  uint32_t *positions;  /* by partition number: position among those here, or UINT32_MAX */
  uint32_t *partitions; /* by position: partition number */
  uint32_t *sizes;      /* by position: m */
  uint8_t *idle;        /* by rank: it has no part in its rounds; NULL: all have */
  struct zps_shard_round *rounds, *free_rounds;
  uint32_t n_rounds;
  struct zps_reduce_task *free_tasks;
  struct zps_tombstone tombstones[ZPS_TOMBSTONES];
  uint32_t next_tombstone;
  struct zps_tensor_sums sums;
};

zps_err_t zps_job_open(struct zps_shard *shard, const struct zps_job_spec *spec, struct zps_error *error) ZPS_MUSTCHECK;
/* Tells the ranks of rounds in flight and takes the job off the shard; its links linger. */
void zps_job_close(struct zps_job *job, uint64_t now_ns, const char *reason);
void zps_job_free(struct zps_job *job);
struct zps_job *zps_job_find(struct zps_job *jobs, uint64_t id);
/* A rank is dead or has left: rounds that need it fail, and nothing more is said to it. */
void zps_member_gone(struct zps_member *member, zps_err_t code, const char *text);
/* What rounds are told of one that is gone. Ranks leave a job that has failed: what they leave open failed for the rank
 * that was lost. */
struct zps_shard_machine_event zps_member_gone_event(const struct zps_member *member);
/* The first that is said to be lost. */
void zps_job_lost(struct zps_job *job, uint32_t rank, const char *text);
/* The rank cannot be talked to; takes effect with the next tick, because it may be found out in the middle of anything.
 */
void zps_member_fail(struct zps_member *member, zps_err_t code, const char *text);
void zps_member_send(struct zps_member *member, struct zps_frame *frame);
zps_err_t zps_tensor_open(struct zps_job *job, const struct zps_tensor_spec *spec,
                          struct zps_error *error) ZPS_MUSTCHECK;
struct zps_tensor *zps_tensor_find(const struct zps_job *job, uint32_t id);
/* `abort` NULL: the step was completed. */
void zps_tensor_bury(struct zps_tensor *tensor, uint64_t step, const struct zps_frame_abort *abort);
const struct zps_tombstone *zps_tensor_tombstone(const struct zps_tensor *tensor, uint64_t step);

/* ---- collect.c: frames from ranks ---- */

void zps_collect_frame(struct zps_shard *shard, const struct zps_frame *frame);

/* ---- stats.c ---- */

zps_err_t zps_sums_init(struct zps_tensor *tensor) ZPS_MUSTCHECK;
void zps_sums_fini(struct zps_tensor *tensor);
/* The round's results are all published. */
void zps_sums_add(struct zps_tensor *tensor, const struct zps_shard_round *round);
void zps_sums_visit(const struct zps_tensor *tensor, void (*visit)(void *ctx, const struct zps_tensor_stats *stats),
                    void *ctx);

/* ---- shard.c ---- */

struct zps_shard {
  struct zps_engine *engine;
  struct zps_net *net;
  struct zps_slab *slab;
  struct zps_bulk *bulk;
  struct zps_workpool *pool;
  uint64_t memory_limit_bytes;
  struct zps_job *jobs, *lingering;
  struct zps_tags tags;                      /* of members, also of lingering jobs */
  struct zps_shard_round *oldest, *youngest; /* rounds in flight by age */
  uint64_t next_age;
  unsigned rounds_in_flight;
  struct zps_shard_round *buried, *ready;
  struct zps_memory_wait *wait_first, *wait_last; /* by age of the round, then by partition */
  struct zps_contribution *free_plain, *free_store;
  unsigned n_orphans;                          /* contributions nobody wants that are being read */
  unsigned n_reducing;                         /* sums under way */
  struct zps_reduce_task *small, **small_tail; /* those that are left to this thread */
  bool any_failing;
  uint64_t next_deadline_ns;          /* not later than the earliest deadline of a round */
  struct zps_scratch_pool *scratches; /* any thread's: one for each thread of the pool, and one for the engine's */
};

/* Publishes what is ready, hands out memory: after anything that may have changed either. */
void zps_shard_settle(struct zps_shard *shard);

#endif
