/*
 * A round between workers: carries out a scheme's program (schemes/program.h) over the links to the other ranks.
 *
 * Instructions that are due (schemes/run.h) become tasks on the pool, frames, or reads; small ones are carried out on
 * the spot. Streams lie in the round's arena up to the inline limit, in slab memory beyond it, where peers can read
 * them. What a peer was told to read stays until the round is released: when all who were told have said DONE.
 *
 * exchange.c: life; exchange_run.c: instructions; exchange_memory.c: streams; exchange_lend.c: those that lie in the
 * gradient itself; exchange_io.c: messages in and out; exchange_read.c: their payloads; exchange_result.c and
 * exchange_deliver.c: what becomes of RESULT; exchange_serve.c: of SERVE; exchange_end.c: failures, and who is to
 * blame.
 */
#ifndef ZPS_WORKER_EXCHANGE_H
#define ZPS_WORKER_EXCHANGE_H

#include "common/base/clock.h"
#include "worker/early.h"
#include "worker/plane.h"
#include "worker/round.h"
#include "worker/schemes/compute.h"
#include "worker/schemes/run.h"

/* A rank that left has sent all it ever will: so long after that, who waits for it waits in vain. */
#define ZPS_RANK_LEFT_GRACE_NS (2 * ZPS_NS_PER_S)

struct zps_exchange;

/* Slab memory that streams lie in; they may share it. */
struct zps_exchange_mem {
  struct zps_buf buf;
  unsigned refs;
  bool promised; /* a peer was told to read it: it stays */
  struct zps_exchange_mem *next_free, *next;
};

struct zps_exchange_stream {
  struct zps_slice_view view;
  bool delivered;               /* straight to the result: there are no bytes */
  struct zps_exchange_mem *mem; /* NULL: in the arena, or in the gradient, which is lent */
  uint64_t len_bytes;           /* of its slice, from view.values on */
};

/* One instruction on its way; reused. */
struct zps_exchange_task {
  struct zps_worker_task task;
  struct zps_exchange *exchange;
  uint32_t instr;
  struct zps_compute_task compute;
  struct zps_compute_in *ins;
  uint32_t cap_ins;
  uint64_t need_bytes;          /* for the output, */
  struct zps_exchange_mem *mem; /* which lies here */
  void *out;
  struct zps_compute_out what;
  uint64_t n_rows;        /* delivered: rows of the result */
  struct zps_slice slice; /* RECV: as announced; inline bytes are in the arena */
  struct zps_slice_view view;
  struct zps_bulk_read read;
  bool reading;
  struct zps_exchange_task *next_free, *next_hungry, *next_waiting, *next;
};

/* The round over servers that a SERVE is, while it is being carried out; a program has one at most. */
struct zps_exchange_serve {
  struct zps_exchange_task *task;
  bool in_flight;
  bool awaits_others; /* until the sums are here */
  zenps_grad_t in, out;
  int64_t *rows; /* what is pushed */
  void *values;
  struct zenps_request *request;
  char silent[ZPS_WIRE_TEXT_MAX + 1]; /* after the deadline: which servers did not answer */
};

struct zps_exchange_peer {
  uint32_t first_send, last_send; /* SENDs that are due, chained by send_next; UINT32_MAX: none */
  bool told;                      /* of something to read: its DONE is awaited */
  bool borrows;                   /* of what lies in the gradient */
  bool remote;                    /* something of it was to be read: it awaits our DONE */
  bool done, aborted;             /* it has said so: no more of it follows for this round */
  bool heard;                     /* something has come of it: it has begun */
  bool owes_done, owes_abort;     /* frames that we owe */
  bool told_done;                 /* or will be */
  uint32_t n_reads;               /* of its memory, under way */
  bool accused, named;            /* a rank says it waits for it; in a failure's text */
};

struct zps_exchange {
  struct zps_worker_round *round;
  struct zps_tensor_scheme *scheme;
  struct zps_program program;
  struct zps_run run;
  struct zps_own *own;
  struct zps_compute compute;
  struct zps_own_input input;
  struct zps_worker_task scan, finish;
  struct zps_exchange_serve serve;
  struct zps_exchange_peer *peers; /* per rank */
  struct zps_net_mem lent;         /* the gradient, for peers to read; no handle: it is not */
  uint64_t hear_until_ns;          /* failed: who has not been heard of then is not at it */

  struct zps_exchange_stream *streams;  /* per stream */
  struct zps_exchange_task **announced; /* per instruction: RECV whose message has come */
  uint32_t *send_next;                  /* per instruction */
  uint32_t *results;                    /* RESULT instructions, in the order due */
  uint32_t cap_streams, cap_instrs, n_results;
  struct zps_exchange_task *tasks, *free_tasks;
  struct zps_exchange_task *waiting;               /* RECVs announced and not asked for, in the program's order; */
  uint64_t reading_bytes;                          /* those that are: what has not come of them */
  struct zps_exchange_task *hungry, **hungry_tail; /* wait for memory */
  struct zps_exchange_mem *mems, *free_mems;
  struct zps_early_message *unknown; /* messages that the program does not know (yet) */

  uint64_t number;    /* of the round, for its scheme */
  uint32_t n_owns;    /* not carried out */
  uint32_t n_put_off; /* of `results`, those at the end that wait until the gradient is read */
  bool launched, scanned, own_ready;
  bool scans_here;  /* on the engine thread */
  bool all_rows;    /* the gradient is cut up as it is: nobody has looked for its rows */
  bool counts_rows; /* rows are found as they are cut out */
  bool finishing; /* all is carried out: for the other ranks this round is done, whatever becomes of its result here */
  bool decoded;   /* the result is there */
  struct zps_worker_round *next_queued; /* stateful schemes: rounds that wait for their turn */
};

/* exchange.c: for the mesh. */
/* Whether frames of this rank belong to this round: it has not ended its part yet. */
bool zps_exchange_takes(const struct zps_worker_round *round, uint32_t rank);
void zps_exchange_message(struct zps_worker_round *round, uint32_t rank, const struct zps_slice *slice);
void zps_exchange_count(struct zps_worker_round *round, uint32_t frame_bytes); /* a frame of messages came */
void zps_exchange_peer_done(struct zps_worker_round *round, uint32_t rank);
void zps_exchange_aborted(struct zps_worker_round *round, uint32_t rank, const struct zps_frame_abort *abort);
void zps_exchange_rank_lost(struct zps_worker_round *round, uint32_t rank);
/* Ranks that left too long ago are lost; when the next one is due. */
uint64_t zps_plane_check_left(struct zps_plane *plane, uint64_t now_ns);

/* exchange_run.c */
/* Room for what the program has become. */
zps_err_t zps_exchange_fit(struct zps_exchange *exchange) ZPS_MUSTCHECK;
/* Carries out what is due. */
void zps_exchange_advance(struct zps_exchange *exchange);
/* The instruction's output, if any, is there. */
void zps_exchange_carried_out(struct zps_exchange *exchange, uint32_t instr);
/* The output of `task` lies at task->out (or, an alias, elsewhere). */
void zps_exchange_set_stream(struct zps_exchange *exchange, uint32_t instr, const struct zps_slice_view *view,
                             struct zps_exchange_mem *mem);
struct zps_compute_in zps_exchange_in(const struct zps_exchange *exchange, uint32_t stream);
/* The task's output is at task->out, as task->what says. */
void zps_exchange_computed(struct zps_exchange_task *task);
/* Fails the round: there is none for this instruction. */
void zps_exchange_no_memory(struct zps_exchange *exchange, uint32_t instr);

/* exchange_memory.c */
struct zps_exchange_task *zps_exchange_task_get(struct zps_exchange *exchange, uint32_t instr);
void zps_exchange_task_put(struct zps_exchange_task *task);
/* Memory for `len` bytes of task's output. ZPS_ERR_AGAIN: the task is in line, and starts when there is some. */
zps_err_t zps_exchange_get_memory(struct zps_exchange_task *task, uint64_t len) ZPS_MUSTCHECK;
void zps_exchange_mem_unref(struct zps_exchange *exchange, struct zps_exchange_mem *mem);
zps_err_t zps_exchange_take_memory(struct zps_worker_round *round) ZPS_MUSTCHECK;
void zps_exchange_start_task(struct zps_exchange_task *task); /* exchange_run.c: its memory is there */
/* At the end of a round: everything is free again. */
void zps_exchange_free_all(struct zps_exchange *exchange);

/* exchange_lend.c */
/* Before the first instruction: registers the gradient, if the scheme lends it and the fabric does so for free. */
void zps_exchange_lend(struct zps_exchange *exchange);
void zps_exchange_lend_end(struct zps_exchange *exchange); /* nobody reads it any more */
/* Whether an OWN's stream lies in the gradient itself: *view_p. */
bool zps_exchange_lends(const struct zps_exchange *exchange, uint32_t instr, struct zps_slice_view *view_p);
/* The result is there. */
void zps_exchange_decoded(struct zps_exchange *exchange);
/* A rank has said DONE: it may be the last that the result waited for. */
void zps_exchange_check_through(struct zps_exchange *exchange);
/* The result waits for the rank's DONE, or will. */
bool zps_exchange_needs_done(const struct zps_exchange *exchange, uint32_t rank);
/* For the other ranks the round was done here, and is not tried again. */
bool zps_exchange_is_past(const struct zps_worker_round *round);
/* DONE goes to ranks of whom nothing is read any more, once to each. */
void zps_exchange_owe_done(struct zps_exchange *exchange);
/* The round has failed: whom its gradient was lent to is to say so first, or till when. */
void zps_exchange_call_in(struct zps_exchange *exchange);
/* Nobody reads the gradient of a round that has failed, but who was not heard of in time. */
bool zps_exchange_is_back(const struct zps_exchange *exchange);

/* exchange_io.c */
void zps_exchange_queue_send(struct zps_exchange *exchange, uint32_t instr);
/* Sends what is due; ZPS_ERR_AGAIN: some is left. *sent_p is set when something went out. */
zps_err_t zps_exchange_send_to(struct zps_exchange *exchange, uint32_t rank, uint64_t now_ns,
                               bool *sent_p) ZPS_MUSTCHECK;
/* Offers kept messages to a program that has grown. */
void zps_exchange_offer_unknown(struct zps_exchange *exchange);

/* exchange_read.c */
void zps_exchange_receive(struct zps_exchange *exchange, uint32_t instr); /* a RECV is due */
void zps_exchange_read(struct zps_exchange_task *task);                   /* its memory is there */
void zps_exchange_stop_reading(struct zps_exchange *exchange);            /* the round has failed */

/* exchange_result.c */
void zps_exchange_result(struct zps_exchange *exchange, uint32_t instr);
/* Whether the stream has all rows, of which some may be zero because nobody sent them. */
bool zps_exchange_fills_up(const struct zps_exchange *exchange, const struct zps_compute_in *in);
/* The gradient has been read, so results that lie in the same memory may be written. */
void zps_exchange_results_put_off(struct zps_exchange *exchange);
void zps_exchange_finish(struct zps_exchange *exchange); /* all is carried out */
void zps_exchange_result_init(struct zps_exchange *exchange);

/* A mean divides by all ranks. */
unsigned zps_exchange_divisor(const struct zps_exchange *exchange);

/* exchange_deliver.c */
/* RESULT into a dense array, of task->compute.ins; or a SUM that goes there and nowhere else. */
bool zps_exchange_delivers(const struct zps_exchange *exchange, uint32_t instr);
void zps_exchange_deliver(struct zps_exchange_task *task);
/* With the gradient in the same array (in place), nothing is written before all of it was read. */
bool zps_exchange_must_not_write(const struct zps_exchange *exchange);

/* exchange_serve.c */
void zps_exchange_serve(struct zps_exchange_task *task);        /* a SERVE is due; its inputs are filled in */
void zps_exchange_serve_encode(struct zps_exchange_task *task); /* the memory for its output is there */
/* The round has failed: so shall the one within. */
void zps_exchange_serve_give_up(struct zps_exchange *exchange);
void zps_exchange_serve_free(struct zps_exchange_serve *serve); /* nothing of it is in flight */
/* Servers may be waiting for this rank. */
bool zps_exchange_serve_awaits(const struct zps_exchange *exchange, uint32_t rank);

/* exchange_end.c */
bool zps_exchange_known(const struct zps_worker_round *round);
void zps_exchange_explain(struct zps_worker_round *round);
bool zps_exchange_quiet(const struct zps_worker_round *round);
/* Fills an ABORT's ranks with those that this one still waits for. */
void zps_exchange_name_awaited(const struct zps_exchange *exchange, struct zps_frame_abort *abort);

#endif
