/*
 * One rank's part in one round: drives a round's state machine (machine.h) with what pools, memory and fabric do.
 *
 * This is what rounds of every kind share. A kind embeds it and fills in struct zps_round_ops: over servers
 * (worker/served), or between ranks (worker/peer). The trainer's thread sets a round up; from zps_round_launch() on all
 * of it belongs to the engine thread, except what a running task is working on. Rounds are reused: one that is over
 * goes back to its owner when no task, no read and no other process can touch its buffers any more.
 *
 * life.c: from start to the moment its memory is free; end.c: outcome and texts; task.c: work on other threads;
 * rounds.c: all rounds of a job.
 */
#ifndef ZPS_WORKER_ROUND_ROUND_H
#define ZPS_WORKER_ROUND_ROUND_H

#include <stdatomic.h>
#include <stddef.h>

#include "common/base/text.h"
#include "common/codec/sections.h"
#include "proto/wire.h"
#include "worker/plane/memory.h"
#include "worker/round/arena.h"
#include "worker/round/machine.h"
#include "worker/round/row_arrays.h"
#include "worker/round/out_parts.h"
#include "worker/round/task.h"
#include "worker/round/tensor.h"
#include "worker/round/pull_rows.h"
#include "zenps/zenps.h"

struct zps_plane;
struct zps_remote;
struct zps_round;
struct zps_worker_device;

/* The operations of a kind of rounds. All but create, destroy, setup and prepare on the engine thread. */
struct zps_round_ops {
  size_t size; /* of the kind's struct, which begins with struct zps_round; all zeros when it is created */
  zps_err_t (*create)(struct zps_round *round) ZPS_MUSTCHECK;
  void (*destroy)(struct zps_round *round); /* half-built, too */
  void (*setup)(struct zps_round *round);   /* before a round starts, on the trainer's thread */
  void (*prepare)(struct zps_round *round); /* after setup(), outside the job's lock: work of the trainer's thread;
                                               NULL: none */
  void (*begin)(struct zps_round *round);   /* unless it has failed at once */
  void (*act)(struct zps_round *round, const struct zps_round_machine_action *action);
  bool (*send)(struct zps_round *round, uint64_t now_ns); /* frames; true: some are left for the next tick */
  void (*wake)(struct zps_round *round);                  /* its wake_at_ns has come; NULL: it has none */
  /* A frame of this round; false: it belongs to none that is under way here. */
  bool (*frame)(struct zps_round *round, const struct zps_remote *from, const struct zps_frame *frame);
  void (*remote_lost)(struct zps_round *round, const struct zps_remote *lost, const char *why);
  /* A failed round's request may be told. False: until the deadline, messages of other ranks may still show which rank
   * is to blame. */
  bool (*known)(const struct zps_round *round);
  /* For operators: fills in the ranks that the round waits for, `max` at most, and returns their number. NULL: servers
   * know it. */
  uint32_t (*awaited)(const struct zps_round *round, uint32_t *ranks, uint32_t max);
  /* True when no other process can still read the caller's gradient. Asked after known(), also past the deadline. NULL:
   * no other process reads it. */
  bool (*gives_back)(struct zps_round *round, uint64_t now_ns);
  void (*explain)(struct zps_round *round); /* completes the reason of a failure, where it has no text */
  /* Before the request is told. True: the result is being copied, or the device is waited for; called again after that.
   */
  bool (*deliver)(struct zps_round *round);
  void (*finish)(struct zps_round *round, bool ok); /* the request is told next */
  bool (*quiet)(const struct zps_round *round);     /* no other process can be reading our buffers any more */
  void (*release)(struct zps_round *round);         /* gives up memory; no task, read or peer uses it */
  /* The next five are for rounds over servers, whose owners change (replay.h); NULL: this kind knows no servers. */
  /* True when the round's push can be given again once the round is over. */
  bool (*can_give)(const struct zps_round *round);
  /* The round goes on with its tensor's new owners, which know nothing of it. */
  void (*remap)(struct zps_round *round);
  /* The owners changed after this round finished. is_wanted: other ranks may still push this step. */
  void (*outdate)(struct zps_round *round, bool is_wanted);
  /* True when nothing is under way from or to a former owner. */
  bool (*is_still)(const struct zps_round *round);
  /* The finished round gives its push again. */
  void (*give)(struct zps_round *round);
};

/* The owner has rounds made, and is told of their ends; given at creation. Engine thread, without a lock. */
struct zps_round_owner {
  /* The round is over for its request: `error` (status 0: it went well; then it has tensor and step), `round->stats`,
   * `round->row_arrays`, `round->on_device`, `round->contributed`, which are the owner's from here on. `serving`: other
   * ranks still read its memory. True: wake() follows. */
  bool (*over)(struct zps_round *round, const zenps_error_t *error, bool serving);
  /* The deadline has passed, and it is not over yet: a task may wait for the device. NULL: nobody wants to know. */
  void (*expired)(struct zps_round *round);
  void (*wake)(const struct zps_round_tensor *tensor); /* last, so that a thread that waits finds no lock held */
  void (*released)(struct zps_round *round);           /* no thread or process refers to it: it may start anew */
  void (*kept)(struct zps_round *round); /* the request is told, but what the round pushed is retained: released()
                                            follows. NULL: nothing is retained */
};

/* Work of at most so many bytes stays on the thread where it comes up, which has done it before another thread has
 * woken up. The first bound is for going through memory in order, the second for what is found there. */
#define ZPS_SMALL_DENSE_BYTES (512u << 10)
#define ZPS_SMALL_BYTES (64u << 10)

struct zps_round {
  const struct zps_round_ops *ops;
  struct zps_round_tensor *tensor;
  struct zps_rounds *rounds;
  struct zps_plane *plane;
  const struct zps_round_owner *owner;
  struct zps_round_machine *machine;
  struct zps_arena arena;                     /* small payloads */
  struct zps_round *kept_next, **kept_prev_p; /* replay.h: rounds that are over, and kept */
  bool is_kept, is_giving;
  struct zps_worker_device *device; /* of gradients and results in device memory; NULL: there were none yet */

  /* Of the current round: all of it anew with zps_round_setup(). */
  void *request; /* the owner's */
  uint64_t step, start_ns, deadline_ns, linger_until_ns;
  uint64_t number;        /* of the rounds that the process has begun in this job, ascending */
  uint64_t seen_to;       /* the program had seen the ends of all rounds below this number when it requested this one */
  const uint32_t *owners; /* per partition: its owner, from the tensor when the round began, or was remapped */
  uint32_t map_epoch;     /* the epoch of `owners` */
  bool is_asked_again;    /* other ranks need its push once more, when it is over */
  uint64_t report_at_ns;  /* failed: when it is looked at again whether the request can be told; then at the deadline */
  uint64_t wake_at_ns;    /* when ops->wake() is due; ZPS_NEVER: it is not */
  zenps_grad_t in;
  zenps_grad_t *out;
  bool only_gives, only_takes;             /* a push without a result; a result without a push */
  const struct zps_sections *in_sections;  /* gradient in several arrays; NULL: one array (`in`). Served rounds only */
  const struct zps_sections *out_sections; /* dense result in several arrays, not out->values; NULL: one. Served rounds
                                              only */
  struct zps_out_parts *split;             /* what the result is dealt out to in the end; NULL: nothing */
  struct zps_round_task split_task;        /* deals it out */
  bool is_split;                           /* split_task has begun */
  const struct zps_wants *wants;           /* the rows that come back; NULL: all, as a part of the push */
  zenps_grad_t *into;                      /* where these rows go besides, each to its place; NULL: nowhere */
  bool is_absent;                          /* the rank does not count among the contributors */
  int contributors;                        /* ranks that do; -1: not told (yet) */
  bool is_decided;                         /* with a quorum: `late` is known (decided.h) */
  uint32_t n_late_bytes;
  const uint8_t *late;       /* in `arena`: a bit for each rank; n_late_bytes of them */
  bool seeks;                /* it takes the newest sum of `step` or of the `staleness` steps before it */
  uint32_t staleness;        /* older steps that may serve as well */
  uint64_t sum_step;         /* the step of the sum that it has; else `step` */
  uint32_t *sent, *in_union; /* rows per partition, of rounds over servers; the owner's */
  unsigned n_tasks;          /* on the pools and in `here` */
  struct zps_round_task *here, **here_tail; /* tasks of the engine thread, run when frames were sent */
  unsigned n_reads;                         /* transfers that hold a buffer */
  struct zps_plane_use used;                /* registered memory */
  uint64_t on_device_bytes;                 /* memory of a device where servers read its push */
  bool committed;                           /* for the other ranks it is done, whatever becomes of its result here */
  bool finished;                            /* the request is done */
  bool serving;                             /* the value that over() got */
  bool cancel_sent, cancel_run;             /* cancel_sent: guarded by the job's lock */
  bool has_deferred;                        /* `deferred` came up in the middle of a step */
  struct zps_round_machine_event deferred;
  struct zps_frame_abort reason; /* why it failed: ranks and text, empty where the code says it all */
  atomic_flag work_failed;       /* the first task to fail writes work_error */
  atomic_bool has_work_error;    /* work_error is written */
  struct zps_error work_error;
  struct zps_row_arrays row_arrays; /* result of ZENPS_ROWS, the library's */
  struct {
    void *rows, *values;
  } on_device; /* in device memory */
  struct {
    int64_t *rows; /* malloc()ed; NULL: the round does not tell */
    uint64_t n;
  } contributed;   /* rows of the gradient that the result is made of */
  uint64_t needed; /* rows of a result that the caller's arrays do not hold, and ours do; 0: there is room */
  zenps_request_stats_t stats;
  double bound_bytes; /* of the slices so far */
  uint64_t announced_first_ns, announced_last_ns, result_first_ns, landed_last_ns;

  /* Its places in lists. */
  struct zps_command begin, cancel;
  struct zps_round *hash_next;              /* rounds by tensor and step */
  struct zps_round *all_next, **all_prev_p; /* rounds in flight */
  struct zps_round *dirty_next;             /* to be looked at by the tick */
  struct zps_round *tensor_next,
      **tensor_prev_p;     /* the owner's, under its lock: active or spare rounds of the tensor */
  uint64_t spare_since_ns; /* of a spare round, under the owner's lock */
  bool dirty;
};

struct zps_round_start {
  void *request;
  uint64_t step, timeout_ms;
  uint64_t number, seen_to;                              /* see struct zps_round */
  const zenps_grad_t *in;                                /* copied */
  zenps_grad_t *out;                                     /* borrowed until over() */
  const struct zps_sections *in_sections, *out_sections; /* borrowed until over(), with `split` */
  struct zps_out_parts *split;
  bool only_gives, only_takes;   /* see struct zps_round for these and all below */
  const struct zps_wants *wants; /* borrowed until over(), with `into` */
  zenps_grad_t *into;
  bool seeks;
  uint32_t staleness;
  bool is_canceled; /* before it could begin: it begins, and is canceled at once */
  uint32_t *sent, *in_union;
  struct zps_worker_device *device; /* where `in` or `out` is in device memory */
};

zps_err_t zps_round_create(struct zps_round_tensor *tensor, const struct zps_round_owner *owner,
                           struct zps_round **round_p) ZPS_MUSTCHECK;
void zps_round_destroy(struct zps_round *round); /* NULL is allowed */
/* On the trainer's thread, under the job's lock: arguments are checked, and nothing can fail any more. No other thread
 * can reach the round before its launch; a kind's prepare() runs without the lock. */
void zps_round_setup(struct zps_round *round, const struct zps_round_start *start);
/* Hands the round to the engine thread. */
void zps_round_launch(struct zps_round *round);
/* Under the job's lock, any thread. */
void zps_round_cancel(struct zps_round *round);

/* The rest: engine thread. */
void zps_round_event(struct zps_round *round, enum zps_round_machine_event_type type, uint32_t partition,
                     uint32_t server, zps_err_t code);
/* From within an action, or before the round begins: an event that takes effect when the actions at hand, or the first
 * ones, are carried out. A failure replaces any other. */
void zps_round_defer(struct zps_round *round, enum zps_round_machine_event_type type, uint32_t partition,
                     zps_err_t code);
void zps_round_fail(struct zps_round *round, zps_err_t code, const char *fmt, ...) ZPS_PRINTF(3, 4);
/* The tick's work on a round that was touched: sends frames, tells the request, lets the round go. True: frames are
 * left for the next tick. */
bool zps_round_settle(struct zps_round *round, uint64_t now_ns);
/* Fails at the deadline, ends lingering. Returns when the round is to be looked at next. */
uint64_t zps_round_tick(struct zps_round *round, uint64_t now_ns);

/* end.c */
/* Whether the caller's arrays hold `nnz` rows. If not, the result is made in ours: the round goes well, its request is
 * told ZPS_ERR_TRUNCATED, and the result stays with it. */
bool zps_round_rows_fit(struct zps_round *round, uint64_t nnz);
/* On the pool: arrays for `nnz` rows of the result, the caller's or ours. False: the task has failed. */
bool zps_round_rows_get(struct zps_round_task *task, uint64_t nnz, int64_t **rows_p, void **values_p);
/* There, where they were got for more rows than the result turned out to have, which may fit the caller's after all. */
void zps_round_rows_written(struct zps_round *round, uint64_t nnz);
/* A result that is rows in device memory becomes the round's: *rows_p and *values_p, then NULL. */
void zps_round_give_on_device(struct zps_round *round, void **rows_p, void **values_p);
/* Before the request is told: deals the result out. True: that is under way. */
bool zps_round_deal(struct zps_round *round);
/* Tells the owner: outcome, result, costs. True: its wake() follows. */
bool zps_round_finish(struct zps_round *round, uint64_t now_ns);

#endif
