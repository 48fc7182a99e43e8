/*
 * A round between ranks: carries out a scheme's program (schemes/program.h) over the links to the other ranks.
 *
 * Instructions that are due (schemes/run.h) become tasks on the pool, frames, or reads; small ones are carried out on
 * the spot. Streams lie in the round's arena up to the inline limit, in registered memory beyond it, where ranks can
 * read them. An announced stream stays until the release of the round, after the DONE of all its readers.
 *
 * peer.c: the kind's ops and actions; begin.c: from the start to the first instruction; run.c: instructions; memory.c:
 * streams; zerocopy.c, revoke.c: streams that lie in the gradient itself; messages.c: messages out and in; read.c:
 * their payloads; result.c, deliver.c: RESULT; serve.c, nested.h: SERVE; remote.c: frames and losses of other ranks;
 * end.c: failures, and which rank is to blame.
 */
#ifndef ZPS_WORKER_PEER_PEER_H
#define ZPS_WORKER_PEER_PEER_H

#include "common/base/clock.h"
#include "worker/compute/compute.h"
#include "worker/device/merge.h"
#include "worker/device/staging.h"
#include "worker/peer/nested.h"
#include "worker/peer/tensor.h"
#include "worker/plane/plane.h"
#include "worker/plane/unexpected.h"
#include "worker/round/round.h"
#include "worker/round/rounds.h"
#include "worker/schemes/run.h"

#define ZPS_PEER_NONE UINT32_MAX /* no instruction */

extern const struct zps_round_ops zps_peer_ops;
extern const struct zps_round_machine_ops zps_peer_machine;

/* Registered memory that streams lie in; they may share it. */
struct zps_peer_mem {
  struct zps_buf buf;
  unsigned refs;
  bool promised;                  /* a peer was told to read it: it stays */
  unsigned n_left;                /* reads of lost ranks that may still write to it (read.c) */
  struct zps_plane_memory *owner; /* the round is over, and these reads have it; else NULL */
  struct zps_peer_mem *next_free, *next;
};

struct zps_peer_stream {
  struct zps_slice_view view;
  bool delivered;            /* straight to the result: there are no bytes */
  struct zps_peer_mem *mem;  /* NULL: in the arena, or, with zero copy, in the gradient */
  struct zps_peer_mem *room; /* of a JOIN of all rows, until it is carried out: for its inputs to lie in, side by side;
                                NULL: none of them needed it yet */
  uint64_t len_bytes;        /* of its slice, from view.values on */
  uint64_t sum;              /* checksum of that; 0: none has been made */
  uint32_t first_unsummed;   /* SENDs of it that wait for one, chained by send_next; UINT32_MAX: none */
};

/* One instruction on its way; reused. */
struct zps_peer_task {
  struct zps_round_task task;
  struct zps_peer_round *round;
  uint32_t instr;
  struct zps_compute_task compute;
  struct zps_compute_in *ins;
  uint32_t cap_ins;
  uint64_t need_bytes;      /* for the output */
  struct zps_peer_mem *mem; /* holds the output */
  void *out;
  struct zps_compute_out what;
  uint64_t n_rows;        /* delivered: rows of the result */
  struct zps_slice slice; /* RECV: as announced; inline bytes are in the arena */
  struct zps_slice_view view;
  struct zps_checked_read read;
  bool reading;
  struct zps_peer_task *next_free, *next_to_read, *next_waiting, *next;
};

/* The round over servers that a SERVE is, while it is being carried out; a program has one at most. */
struct zps_peer_serve {
  struct zps_nested_round inner;
  struct zps_peer_task *task;
  bool in_flight;
  bool awaits_others; /* until the sums are here */
  zenps_grad_t in, out;
  int64_t *rows; /* pushed */
  void *values;
  char silent[ZPS_WIRE_TEXT_MAX + 1]; /* after the deadline: which servers did not answer */
};

/* The round's view of another rank. */
struct zps_peer_remote {
  uint32_t first_send, last_send; /* SENDs that are due, chained by send_next; UINT32_MAX: none */
  bool reads;                     /* it was told of something to read: its DONE is awaited */
  bool reads_gradient;            /* what it reads lies in the gradient */
  bool is_read;                   /* streams of it are read here: it awaits our DONE */
  bool done, aborted;             /* it has said so: it sends nothing more for this round */
  bool heard;                     /* a frame has come from it: it has begun */
  bool is_marked;                 /* the round has failed: with `mark`, the rank has taken our ABORT */
  uint32_t mark;
  bool owes_done, owes_abort; /* frames that we owe */
  bool is_told_done;          /* it was told DONE, or will be */
  uint32_t n_reads;           /* of its memory, under way */
  uint32_t n_early;           /* messages that had to be kept for the program */
  bool accused, named;        /* accused: another rank says that it waits for it; named: in a failure's text */
};

struct zps_peer_round {
  struct zps_round base;

  /* Kept from round to round. */
  struct zps_program program;
  struct zps_run run;
  struct zps_own *own;
  struct zps_staging staging;
  struct zps_merge merge;
  double *offers;                   /* of the ranks of this host, ours first; for REACH and MERGE */
  struct zps_peer_remote *remotes;  /* by rank in the job, up to the last one that takes part */
  struct zps_peer_stream *streams;  /* per stream */
  struct zps_peer_task **announced; /* per instruction: RECV whose message has come */
  uint32_t *send_next;              /* per instruction */
  uint32_t *results;                /* RESULT instructions, in the order due */
  uint32_t cap_streams, cap_instrs;
  struct zps_peer_task *tasks, *free_tasks;
  struct zps_peer_mem *mems, *free_mems;

  /* Of the current round. */
  struct zps_compute compute;
  struct zps_own_input input;
  struct zps_round_task scan, finish;
  struct zps_peer_serve serve;
  double offer[ZPS_OFFER_LEN]; /* of this rank */
  zenps_grad_t merged;         /* MERGE's sum */
  bool held;                   /* the gradient is where it was given: an offer may be enough */
  bool reaches, merged_is_served;
  bool stays_exposed;         /* the gradient, although the request is over (revoke.c) */
  struct zps_net_mem exposed; /* the gradient, for ranks to read; no handle: it is not registered */
  uint64_t hear_until_ns;     /* failed: a rank that was not heard of until then has not begun the round */
  uint32_t n_results;
  bool tells_contributed; /* the rows of stream */
  uint32_t contributed;
  struct zps_peer_task *to_read; /* RECVs announced and not asked for, in the program's order */
  uint64_t reading_bytes;        /* of RECVs asked for: bytes that have not come */
  struct zps_plane_wait wait;    /* for memory that the tasks in `waiting` need */
  struct zps_peer_task *waiting, **waiting_tail;
  /* Messages that the program does not know (yet), and what they take. */
  struct zps_unexpected_message *unexpected, **unexpected_tail;
  uint64_t unexpected_bytes;
  uint32_t n_owns;    /* not carried out */
  uint32_t n_put_off; /* of `results`, those at the end that wait until the gradient is read */
  bool launched, scanned, own_ready;
  bool is_due;                        /* instructions may be due: the next settling looks for them */
  bool scans_here;                    /* on the engine thread */
  bool all_rows;                      /* the gradient is cut up as it is: no scan has looked for its rows */
  bool counts_rows;                   /* rows are found as they are cut out */
  bool decoded;                       /* the result is there */
  struct zps_peer_round *next_queued; /* stateful schemes: rounds that wait for their turn */
};

static inline struct zps_peer_round *zps_peer_of(const struct zps_round *round) {
  return (struct zps_peer_round *)(uintptr_t)round;
}

static inline uint64_t zps_peer_row_bytes(const struct zps_peer_round *round) {
  return zps_row_bytes(round->compute.width, round->compute.dtype);
}

/* Of the caller's arrays; streams of a tensor of halves have floats where they were added up. */
static inline uint64_t zps_peer_array_row_bytes(const struct zps_peer_round *round) {
  return zps_row_bytes(round->base.tensor->width, round->base.tensor->dtype);
}

/* The other ranks of the round, numbers in the job: the i-th, 0 <= i < zps_peer_n_others(). */
static inline uint32_t zps_peer_n_others(const struct zps_round *base) {
  return base->tensor->peer->plan.n - 1;
}

static inline uint32_t zps_peer_other(const struct zps_round *base, uint32_t i) {
  const struct zps_peer_plan *plan = &base->tensor->peer->plan;
  return zps_peer_rank(plan, i + (i >= plan->me));
}

/* begin.c */
void zps_peer_take_input(struct zps_peer_round *round); /* from the gradient, which may have moved */
void zps_peer_scan_run(struct zps_round_task *task);
void zps_peer_scan_done(struct zps_round_task *task);
void zps_peer_begin(struct zps_round *base);
/* The round has ended its part: a stateful scheme's next one may begin. */
void zps_peer_pass_turn(struct zps_peer_round *round);

/* remote.c */
/* Another rank of the round; frames of ranks that are none are dropped. */
bool zps_peer_takes_part(const struct zps_round *base, uint32_t rank);
bool zps_peer_frame(struct zps_round *base, const struct zps_remote *from, const struct zps_frame *frame);
void zps_peer_remote_lost(struct zps_round *base, const struct zps_remote *lost, const char *why);
void zps_peer_message(struct zps_peer_round *round, uint32_t rank, const struct zps_slice *slice); /* messages.c */
void zps_peer_aborted(struct zps_peer_round *round, uint32_t rank, const struct zps_frame_abort *abort);

/* run.c */
/* Has the gradient brought and scanned, for the program's OWNs. */
zps_err_t zps_peer_scan(struct zps_peer_round *round, struct zps_error *error) ZPS_MUSTCHECK;
/* Makes room for the program, which has grown. */
zps_err_t zps_peer_fit(struct zps_peer_round *round) ZPS_MUSTCHECK;
/* Something has happened that may make instructions due: they are carried out by the next settling. */
void zps_peer_due(struct zps_peer_round *round);
/* Carries out what is due. Called by settling alone. */
void zps_peer_advance(struct zps_peer_round *round);
/* The instruction's output, if any, is there. */
void zps_peer_carried_out(struct zps_peer_round *round, uint32_t instr);
/* The output of `task` lies at task->out (or, an alias, elsewhere). */
void zps_peer_set_stream(struct zps_peer_round *round, uint32_t instr, const struct zps_slice_view *view,
                         struct zps_peer_mem *mem);
struct zps_compute_in zps_peer_in(const struct zps_peer_round *round, uint32_t stream);
/* The task's output is at task->out, as task->what says. */
void zps_peer_computed(struct zps_peer_task *task);
/* Fails the round: there is none for this instruction. */
void zps_peer_no_memory(struct zps_peer_round *round, uint32_t instr);

/* memory.c */
struct zps_peer_task *zps_peer_task_get(struct zps_peer_round *round, uint32_t instr);
void zps_peer_task_put(struct zps_peer_task *task);
/* The task's read was left behind, and is over: the task goes, and with the last one the memory that they had. */
void zps_peer_task_end(struct zps_peer_task *task);
/* Memory for `len` bytes of task's output. ZPS_ERR_AGAIN: the task is in line, and starts when there is some. */
zps_err_t zps_peer_get_memory(struct zps_peer_task *task, uint64_t len) ZPS_MUSTCHECK;
void zps_peer_mem_unref(struct zps_peer_round *round, struct zps_peer_mem *mem);
/* The JOIN that writes `stream` is carried out: no input of it needs room any more. */
void zps_peer_room_put(struct zps_peer_round *round, uint32_t stream);
/* The round's wait: memory for tasks in line. */
zps_err_t zps_peer_take_memory(struct zps_plane_wait *wait) ZPS_MUSTCHECK;
void zps_peer_no_memory_left(struct zps_plane_wait *wait, zps_err_t err, const char *text);
void zps_peer_start_task(struct zps_peer_task *task); /* run.c: its memory is there */
/* At the end of a round: everything is free again. */
void zps_peer_free_all(struct zps_peer_round *round);

/* zerocopy.c */
/* Before the first instruction: registers the gradient, if the scheme allows zero copy and the fabric registers memory
 * for free. */
void zps_peer_zerocopy_begin(struct zps_peer_round *round);
/* No rank reads it any more, or can: the trainer gets it back. */
void zps_peer_zerocopy_end(struct zps_peer_round *round);
/* Whether an OWN's stream lies in the gradient itself: *view_p. */
bool zps_peer_is_zerocopy(const struct zps_peer_round *round, uint32_t instr, struct zps_slice_view *view_p);
/* The result is there. */
void zps_peer_decoded(struct zps_peer_round *round);
/* A rank has said DONE: it may be the last that the result waited for. */
void zps_peer_check_through(struct zps_peer_round *round);
/* The result waits for the rank's DONE, or will. */
bool zps_peer_needs_done(const struct zps_peer_round *round, uint32_t rank);
/* For the other ranks the round was done here, and is not tried again. */
bool zps_peer_is_past(const struct zps_peer_round *round);
/* Queues DONE for each rank from which nothing is read any more, once. */
void zps_peer_owe_done(struct zps_peer_round *round);

/* revoke.c */
/* The round has failed: ranks that read its gradient are to say that they are through. */
void zps_peer_revoke(struct zps_peer_round *round);
/* Our ABORT was sent to the rank: it is asked whether it has taken it. */
void zps_peer_confirm_abort(struct zps_peer_round *round, uint32_t rank);
/* No rank reads the gradient any more, or the deadline has passed in a job that lives. False: the round is looked at
 * again. */
bool zps_peer_gives_back(struct zps_round *base, uint64_t now_ns);

/* messages.c */
void zps_peer_queue_send(struct zps_peer_round *round, uint32_t instr);
/* Sends what is due; ZPS_ERR_AGAIN: some is left. *sent_p is set when something went out. */
zps_err_t zps_peer_send_to(struct zps_peer_round *round, uint32_t rank, uint64_t now_ns, bool *sent_p) ZPS_MUSTCHECK;
/* Offers kept messages to a program that has grown. */
void zps_peer_offer_unexpected(struct zps_peer_round *round);

/* read.c */
void zps_peer_receive(struct zps_peer_round *round, uint32_t instr); /* a RECV is due */
void zps_peer_read(struct zps_peer_task *task);                      /* its memory is there */
void zps_peer_stop_reading(struct zps_peer_round *round);            /* the round has failed */

/* result.c */
void zps_peer_result(struct zps_peer_round *round, uint32_t instr);
/* Whether the stream has all rows, of which some may be zero because no rank sent them. */
bool zps_peer_fills_up(const struct zps_peer_round *round, const struct zps_compute_in *in);
/* CONTRIBUTED: its rows are told in the end. */
void zps_peer_contributed(struct zps_peer_round *round, uint32_t instr);
/* The gradient has been read, so results that lie in the same memory may be written. */
void zps_peer_results_put_off(struct zps_peer_round *round);
void zps_peer_finish(struct zps_peer_round *round);    /* all is carried out */
void zps_peer_finish_run(struct zps_round_task *task); /* the task that does it */
void zps_peer_finish_done(struct zps_round_task *task);

/* Whether a part of the result is a sum that was divided and rounded to halves as soon as it was complete: a result of
 * several ranks has no other halves. */
bool zps_peer_is_rounded(const struct zps_peer_round *round, const struct zps_slice_view *view);

/* deliver.c */
/* RESULT into a dense array, of task->compute.ins; or a SUM that goes there and nowhere else. */
bool zps_peer_delivers(const struct zps_peer_round *round, uint32_t instr);
void zps_peer_deliver(struct zps_peer_task *task);
/* With the gradient in the same array (in place), nothing is written before all of it was read. */
bool zps_peer_must_not_write(const struct zps_peer_round *round);

/* merge.c */
bool zps_peer_offers(const struct zps_peer_round *round); /* the program begins with an OFFER */
/* The task's inputs are offers: round->offers. False: no memory. */
bool zps_peer_take_offers(struct zps_peer_task *task);
void zps_peer_offer_run(struct zps_round_task *work); /* on the device's thread for gradients */
void zps_peer_reach_run(struct zps_round_task *work);
void zps_peer_merge_run(struct zps_round_task *work);

/* serve.c */
void zps_peer_serve(struct zps_peer_task *task); /* a SERVE is due; its inputs are filled in */
void zps_peer_offer(struct zps_peer_task *task); /* an OFFER is due */
void zps_peer_reach(struct zps_peer_task *task); /* a REACH is due */
void zps_peer_merge(struct zps_peer_task *task); /* a MERGE is due */
/* The first CALL is carried out: the scheme goes on by what was offered, or by what is to be brought. */
void zps_peer_call_done(struct zps_peer_round *round);
void zps_peer_rows_encode(struct zps_peer_task *task); /* of SERVE or MERGE: the memory for its output is there */
/* The round has failed: cancels the round over servers within it. */
void zps_peer_serve_give_up(struct zps_peer_round *round);
void zps_peer_serve_free(struct zps_peer_round *round); /* nothing of it is in flight */
/* Servers may be waiting for this rank. */
bool zps_peer_serve_awaits(const struct zps_peer_round *round, uint32_t rank);

/* end.c */
bool zps_peer_known(const struct zps_round *base);
void zps_peer_explain(struct zps_round *base);
bool zps_peer_quiet(const struct zps_round *base);
/* Fills in the ranks that this one still waits for, `max` at most. Returns their number. */
uint32_t zps_peer_awaited(const struct zps_peer_round *round, uint32_t *ranks, uint32_t max);
/* For ops->awaited: 0 while the rank still reads its own gradient. */
uint32_t zps_peer_waits_for(const struct zps_round *base, uint32_t *ranks, uint32_t max);

#endif
