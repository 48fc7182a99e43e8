/*
 * One rank's part in one round: drives a scheme's state machine with what pools, memory and fabric do.
 *
 * The trainer's thread sets a round up and starts the scan; from then on all of it belongs to the engine thread, except
 * what a running task is working on. Small rounds do without tasks on the pools, where handing over takes longer than
 * the work: the trainer's thread encodes them before they begin, the engine thread decodes. Rounds are reused: one that
 * is over goes back to its tensor when no task, no read and no server can touch its buffers any more.
 *
 * A round is of one of two kinds, which fill in struct zps_round_ops: over servers (round_balanced.c with round_join.c,
 * round_push.c: encode and announce; round_pull.c and round_decode.c: results), or between workers (exchange.h).
 * round.c has the life that they share, round_end.c outcome and texts.
 */
#ifndef ZPS_WORKER_ROUND_ROUND_H
#define ZPS_WORKER_ROUND_ROUND_H

#include <stdatomic.h>

#include "common/base/workpool.h"
#include "common/codec/codec.h"
#include "common/codec/decode.h"
#include "common/codec/encode.h"
#include "common/net/bulk.h"
#include "common/net/slab.h"
#include "common/session/engine.h"
#include "proto/wire.h"
#include "worker/served/lookahead.h"
#include "worker/round/arena.h"
#include "worker/served/blocks.h"
#include "worker/device/served_device.h"
#include "worker/device/staging.h"
#include "worker/round/row_arrays.h"
#include "worker/round/machine.h"
#include "zenps/zenps.h"

struct zps_plane;
struct zps_peer_round;
struct zps_round;

/* What a kind of rounds does. All but create, destroy and reset on the engine thread. */
struct zps_round_ops {
  zps_err_t (*create)(struct zps_round *round) ZPS_MUSTCHECK;
  void (*destroy)(struct zps_round *round); /* half-built, too */
  void (*reset)(struct zps_round *round);   /* before a round starts, on the trainer's thread */
  void (*prepare)(struct zps_round *round); /* then, outside the job's lock: what it wants to do; or NULL */
  void (*begin)(struct zps_round *round);   /* unless it has failed at once */
  void (*act)(struct zps_round *round, const struct zps_round_machine_action *action);
  bool (*send)(struct zps_round *round, uint64_t now_ns); /* frames; true: some are left for the next tick */
  /* A failed round's request may be told; false: what others say may still show who is to blame, until the deadline. */
  bool (*known)(const struct zps_round *round);
  void (*explain)(struct zps_round *round);     /* completes the reason of a failure, where it has no text */
  bool (*quiet)(const struct zps_round *round); /* nobody can be reading our buffers any more */
  void (*release)(struct zps_round *round);     /* gives up memory; no task, read or peer uses it */
  zps_err_t (*take_memory)(struct zps_round *round) ZPS_MUSTCHECK; /* ZPS_ERR_AGAIN: it must wait */
};
extern const struct zps_round_ops zps_served_ops, zps_peer_ops;

/* What one thread has done before another one has woken up: work of at most so many bytes stays where it comes up. The
 * first bound is for going through memory in order, the second for what is found there. */
#define ZPS_SMALL_DENSE_BYTES (512u << 10)
#define ZPS_SMALL_BYTES (64u << 10)

/* Work on a pool thread, reported back to the engine thread; or, where it is small, of the engine thread itself. */
struct zps_round_task {
  struct zps_work work;
  struct zps_command command;
  struct zps_round *round;
  void (*run)(struct zps_round_task *task);  /* on the pool */
  void (*done)(struct zps_round_task *task); /* on the engine thread; NULL: nothing to do */
  struct zps_round_task *next_here;
  bool has_run; /* on the trainer's thread */
  uint32_t arg;
};

struct zps_served_part {
  struct zps_round_task task; /* write, later decode */
  uint32_t m;                 /* rows of the partition */
  uint32_t nnz;               /* rows pushed */
  uint64_t push_bytes;
  enum zps_codec push_codec;
  void *push_data; /* in `arena` where inline, in `push_buf` otherwise */
  /* Small ones that follow each other at a server are joined: their slice travels with the first one. */
  struct zps_served_part *joined_to, *join_next; /* that first one (itself, when alone); the next one joined to it */
  uint32_t n_more;                               /* joined to this one */
  uint64_t slice_bytes;                          /* of the slice; before it is written, the most it can take */
  uint32_t slice_nnz;
  enum zps_codec slice_codec;
  struct zps_buf push_buf;
  struct zps_served_part *next_ready;
  bool wanted; /* the machine asked for the sum */
  bool told;   /* the owner announced its sum: it has read our contribution */
  struct zps_slice result;
  void *sum; /* like push_data, of `pull_buf` */
  struct zps_buf pull_buf;
  struct zps_served_part *next_pull;
  struct zps_bulk_read read;
};

/* One step of scanning the gradient, and what of its partitions travels inside frames. */
struct zps_served_scan_step {
  struct zps_round_task find, small;
  bool any_inline;
};

struct zps_served_server {
  struct zps_served_part *ready, **ready_tail;    /* written, to be announced */
  bool announced;                                 /* it was told of partitions */
  bool over;                                      /* it gave the round up itself */
  bool any_remote;                                /* some of its sums must be read: it waits for our DONE */
  bool owes_done, owes_abort;                     /* frames to be sent */
  struct zps_served_part *join_first, *join_last; /* while partitions are joined: the slice at hand, */
  uint64_t join_m;                                /* and its rows' domain */
};

struct zps_round {
  struct zenps_tensor *tensor;
  struct zps_plane *plane;
  const struct zps_round_ops *ops;
  struct zps_round_machine *machine;
  struct zps_peer_round *exchange; /* between workers; the members from here to `arena` are for rounds over servers */
  struct zps_encoder *encoder;
  struct zps_blocks blocks; /* of a scheme of blocks */
  struct zps_served_part *parts;
  struct zps_served_server *servers;
  struct zps_slice_view *views; /* of the sums, for decoding rows: */
  struct zps_decode_scratch decode_scratch;
  struct zps_decode_stripes ordered;  /* rows of their sums */
  struct zps_served_scan_step *scans; /* [stripes], the first n_scans used */
  struct zps_round_task whole, *clears, *stripes;
  struct zps_command begin, cancel;
  struct zps_arena arena;

  struct zps_worker_device *device; /* of gradients and results in device memory; NULL: there were none yet */
  struct zps_device_push device_push;
  struct zps_device_pull device_pull;
  struct zps_staging staging;
  struct zps_round_task deliver, quiesce_in, quiesce_out;

  /* Of the current round. */
  zenps_request_t *request;
  uint64_t step, start_ns, deadline_ns, linger_until_ns;
  uint64_t spare_since_ns; /* while it is a spare one */
  uint64_t report_at_ns; /* failed: when it is looked at again whether the request can be told; then at the deadline */
  zenps_grad_t in;
  zenps_grad_t *out;
  unsigned n_tasks;                         /* on the pools, and here: */
  struct zps_round_task *here, **here_tail; /* tasks of the engine thread, run when frames were sent */
  unsigned n_reads;                         /* transfers that hold a buffer */
  unsigned n_pieces, n_clears;              /* tasks that clear the result; those that are left */
  uint32_t n_scans;                         /* steps of scanning */
  struct zps_lookahead lookahead;           /* which of these have begun */
  uint64_t flush_at_ns;                     /* when the others begin in any case; ZPS_NEVER: there are none */
  uint32_t n_sized;                         /* partitions whose size is known */
  uint32_t n_ordered;                       /* stripes whose rows are in order */
  uint32_t next_buffer;                     /* place, in the order of pushes, of who gets its push buffer next */
  struct zps_served_part *held_back, **held_back_tail; /* sums that are read when all pushes have buffers */
  uint64_t push_held, pull_held;                       /* bytes of slab buffers */
  bool is_small;                 /* scanned by the trainer's thread, which also encoded what is pushed inline */
  bool is_apart;                 /* gradient and result have no memory in common */
  bool is_quiesced;              /* it has failed, and the device is through with it, or not in time */
  bool finished;                 /* the request is done */
  bool serving;                  /* counted in the job's n_serving */
  bool cancel_sent, cancel_run;  /* cancel_sent: guarded by the job's lock */
  zps_err_t deferred;            /* an action failed: the round does when the actions are done */
  struct zps_frame_abort reason; /* why it failed: ranks and text, empty where the code says it all */
  atomic_flag work_failed;       /* the first task to fail writes work_error */
  atomic_bool has_work_error;    /* work_error is written */
  struct zps_error work_error;
  struct zps_row_arrays row_arrays; /* result of ZPS_ROWS, the library's */
  uint64_t needed;                  /* ZPS_ERR_TRUNCATED */
  zenps_request_stats_t stats;
  double bound_bytes; /* of the slices so far */
  uint64_t announced_first_ns, announced_last_ns, result_first_ns, landed_last_ns;

  struct zps_round *hash_next;                    /* engine thread: rounds by tensor and step */
  struct zps_round *all_next, **all_prev_p;       /* engine thread */
  struct zps_round *dirty_next;                   /* engine thread: to be looked at by the tick */
  struct zps_round *memory_next;                  /* engine thread: waits for push buffers */
  struct zps_round *tensor_next, **tensor_prev_p; /* job's lock: active or free rounds of the tensor */
  bool dirty, waits_memory;
};

zps_err_t zps_round_create(struct zenps_tensor *tensor, struct zps_round **round_p) ZPS_MUSTCHECK;
void zps_round_destroy(struct zps_round *round);
/* On the trainer's thread: arguments are checked, nothing can fail any more. The round is set up under the job's lock,
 * which nobody else can reach then; if it has something to prepare, that is done without the lock. */
void zps_round_setup(struct zps_round *round, zenps_request_t *request, uint64_t step, const zenps_grad_t *in,
                     zenps_grad_t *out, uint64_t timeout_ms);
/* Hands the round to the engine thread. */
void zps_round_launch(struct zps_round *round);
/* Under the job's lock, any thread. */
void zps_round_cancel(struct zps_round *round);

/* The rest: engine thread. */
void zps_round_event(struct zps_round *round, enum zps_round_machine_event_type type, uint32_t partition,
                     uint32_t server, zps_err_t code);
void zps_round_fail(struct zps_round *round, zps_err_t code, const char *fmt, ...) ZPS_PRINTF(3, 4);
/* What the tick does with a round that something happened to: sends frames, tells the request, lets the round go. True:
 * frames are left for the next tick. */
bool zps_round_settle(struct zps_round *round, uint64_t now_ns);
/* Fails at the deadline, ends lingering. The next time this round wants to be looked at. */
uint64_t zps_round_tick(struct zps_round *round, uint64_t now_ns);
void zps_round_touch(struct zps_round *round); /* let the next tick settle it */
/* On the pool; NULL: on the engine thread, by the next settling. */
void zps_round_task_start(struct zps_round_task *task, struct zps_workpool *pool);
/* On the trainer's thread, before the round begins: what starting it will find done. */
void zps_round_task_run_ahead(struct zps_round_task *task);
/* Where it runs: the round fails with this when the task is back. */
void zps_round_task_fail(struct zps_round_task *task, const struct zps_error *error);

/* round_join.c */
/* Sorts the inline ones of partitions [first, end) into slices, whose bytes and rows are bounds until they are written.
 */
void zps_served_join(struct zps_round *round, uint32_t first, uint32_t end);
/* On the pool: writes the slice that begins with `part`, or the partitions one by one where that takes fewer bytes. */
void zps_served_part_write_joined(struct zps_served_part *part);

/* Slab memory of this round, on the engine thread. */
void zps_round_put_buf(struct zps_round *round, struct zps_buf *buf, uint64_t *round_held, uint64_t *plane_held);

/* round_scan.c */
static inline bool zps_round_push_on_device(const struct zps_round *round) {
  return round->in.memory == ZENPS_DEVICE;
}
/* Where a task runs that reads the gradient: on `pool`, unless that is in device memory. */
struct zps_workpool *zps_round_push_pool(const struct zps_round *round, struct zps_workpool *pool);
void zps_served_scan_init(struct zps_round *round);
void zps_served_scan_reset(struct zps_round *round);
uint32_t zps_served_scan_parts(const struct zps_round *round); /* partitions of one step */
void zps_served_scan(struct zps_round *round);
/* Begins all steps that are left, whatever links can carry. */
void zps_served_flush(struct zps_round *round);
/* The owner has announced the partition's sum. */
void zps_served_summed(struct zps_round *round, const struct zps_served_part *part);

/* round_push.c */
void zps_served_push_init(struct zps_round *round);
void zps_served_push_reset(struct zps_round *round);
/* On the trainer's thread: encodes a small gradient. */
void zps_served_prepare(struct zps_round *round);
void zps_served_write(struct zps_round *round, uint32_t scan);
void zps_served_announce(struct zps_round *round, uint32_t partition);
/* Takes push buffers in order and has them written. ZPS_ERR_AGAIN: must wait for memory, or for the next scan. */
zps_err_t zps_served_take_buffers(struct zps_round *round) ZPS_MUSTCHECK;
bool zps_served_has_buffers(const struct zps_round *round); /* all that it will need for pushes */
/* Sends PUSH frames to a server. ZPS_ERR_AGAIN: some are left. */
zps_err_t zps_served_send_ready(struct zps_round *round, uint32_t server, uint64_t now_ns) ZPS_MUSTCHECK;

/* round_pull.c */
void zps_served_result(struct zps_round *round, uint32_t server, const struct zps_frame *frame);
/* Takes a buffer for the sum and starts to read it. ZPS_ERR_AGAIN: must wait for memory. */
zps_err_t zps_served_part_read(struct zps_served_part *part) ZPS_MUSTCHECK;
void zps_served_part_put_pull_buf(struct zps_served_part *part); /* gives back the sum's memory */
/* Of the sums that were held back for pushes. */
void zps_served_pull_held_back(struct zps_round *round);

/* round_decode.c */
void zps_served_decode_init(struct zps_round *round);
/* On the pool: opens the partition's sum, which is a peer's, to round->views. False: the task has failed. */
bool zps_served_view(struct zps_round_task *task, uint32_t p);
void zps_served_clear(struct zps_round *round);
void zps_served_decode_stripe(struct zps_round *round, uint32_t stripe);
void zps_served_decode(struct zps_round *round, uint32_t partition); /* or ZPS_MACHINE_ALL */

/* round_rows.c */
/* Whether the caller's arrays hold `nnz` rows. */
zps_err_t zps_round_rows_fit(struct zps_round *round, uint64_t nnz, struct zps_error *error) ZPS_MUSTCHECK;
/* On the pool: arrays for `nnz` rows of the result, the caller's or ours. False: the task has failed. */
bool zps_served_rows_get(struct zps_round_task *task, uint64_t nnz, int64_t **rows_p, void **values_p);
void zps_served_decode_rows(struct zps_round *round);
/* Whether rows are put in order stripe by stripe: then the scheme decodes stripes, and when the last one is in order
 * all are decoded. */
bool zps_served_orders_stripes(const struct zps_round *round);
void zps_served_order_stripe(struct zps_round *round, uint32_t stripe);

/* round_end.c */
/* Completes the reason of a failure by what the machine knows. */
void zps_served_explain(struct zps_round *round);
/* Fills the request: outcome, result, costs. True: somebody may wait for it, and is to be woken. */
bool zps_round_finish(struct zps_round *round, uint64_t now_ns);

#endif
