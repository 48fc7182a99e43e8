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
#ifndef ZPS_WORKER_PEER_PEER_H
#define ZPS_WORKER_PEER_PEER_H

#include "common/base/clock.h"
#include "worker/plane/unexpected.h"
#include "worker/plane/plane.h"
#include "worker/round/round.h"
#include "worker/compute/compute.h"
#include "worker/schemes/run.h"

/* A rank that left has sent all it ever will: so long after that, who waits for it waits in vain. */
#define ZPS_RANK_LEFT_GRACE_NS (2 * ZPS_NS_PER_S)

struct zps_peer_round;

/* Slab memory that streams lie in; they may share it. */
struct zps_peer_mem {
  struct zps_buf buf;
  unsigned refs;
  bool promised; /* a peer was told to read it: it stays */
  struct zps_peer_mem *next_free, *next;
};

struct zps_peer_stream {
  struct zps_slice_view view;
  bool delivered;           /* straight to the result: there are no bytes */
  struct zps_peer_mem *mem; /* NULL: in the arena, or in the gradient, which is lent */
  uint64_t len_bytes;       /* of its slice, from view.values on */
};

/* One instruction on its way; reused. */
struct zps_peer_task {
  struct zps_round_task task;
  struct zps_peer_round *exchange;
  uint32_t instr;
  struct zps_compute_task compute;
  struct zps_compute_in *ins;
  uint32_t cap_ins;
  uint64_t need_bytes;      /* for the output, */
  struct zps_peer_mem *mem; /* which lies here */
  void *out;
  struct zps_compute_out what;
  uint64_t n_rows;        /* delivered: rows of the result */
  struct zps_slice slice; /* RECV: as announced; inline bytes are in the arena */
  struct zps_slice_view view;
  struct zps_bulk_read read;
  bool reading;
  struct zps_peer_task *next_free, *next_hungry, *next_waiting, *next;
};

/* The round over servers that a SERVE is, while it is being carried out; a program has one at most. */
struct zps_peer_serve {
  struct zps_peer_task *task;
  bool in_flight;
  bool awaits_others; /* until the sums are here */
  zenps_grad_t in, out;
  int64_t *rows; /* what is pushed */
  void *values;
  struct zenps_request *request;
  char silent[ZPS_WIRE_TEXT_MAX + 1]; /* after the deadline: which servers did not answer */
};

struct zps_peer_remote {
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

struct zps_peer_round {
  struct zps_round *round;
  struct zps_tensor_scheme *scheme;
  struct zps_program program;
  struct zps_run run;
  struct zps_own *own;
  struct zps_compute compute;
  struct zps_own_input input;
  struct zps_round_task scan, finish;
  struct zps_peer_serve serve;
  struct zps_peer_remote *peers; /* per rank */
  struct zps_net_mem lent;       /* the gradient, for peers to read; no handle: it is not */
  uint64_t hear_until_ns;        /* failed: who has not been heard of then is not at it */

  struct zps_peer_stream *streams;  /* per stream */
  struct zps_peer_task **announced; /* per instruction: RECV whose message has come */
  uint32_t *send_next;              /* per instruction */
  uint32_t *results;                /* RESULT instructions, in the order due */
  uint32_t cap_streams, cap_instrs, n_results;
  struct zps_peer_task *tasks, *free_tasks;
  struct zps_peer_task *waiting; /* RECVs announced and not asked for, in the program's order; */
  uint64_t reading_bytes;        /* those that are: what has not come of them */
  struct zps_peer_task *hungry_tasks, **hungry_tasks_tail; /* wait for memory */
  struct zps_peer_mem *mems, *free_mems;
  struct zps_unexpected_message *unexpected; /* messages that the program does not know (yet) */

  uint64_t number;    /* of the round, for its scheme */
  uint32_t n_owns;    /* not carried out */
  uint32_t n_put_off; /* of `results`, those at the end that wait until the gradient is read */
  bool launched, scanned, own_ready;
  bool scans_here;  /* on the engine thread */
  bool all_rows;    /* the gradient is cut up as it is: nobody has looked for its rows */
  bool counts_rows; /* rows are found as they are cut out */
  bool finishing; /* all is carried out: for the other ranks this round is done, whatever becomes of its result here */
  bool decoded;   /* the result is there */
  struct zps_round *next_queued; /* stateful schemes: rounds that wait for their turn */
};

/* exchange.c: for the mesh. */
/* Whether frames of this rank belong to this round: it has not ended its part yet. */
bool zps_peer_takes(const struct zps_round *round, uint32_t rank);
void zps_peer_message(struct zps_round *round, uint32_t rank, const struct zps_slice *slice);
void zps_peer_count(struct zps_round *round, uint32_t frame_bytes); /* a frame of messages came */
void zps_peer_remote_done(struct zps_round *round, uint32_t rank);
void zps_peer_aborted(struct zps_round *round, uint32_t rank, const struct zps_frame_abort *abort);
void zps_peer_rank_lost(struct zps_round *round, uint32_t rank);
/* Ranks that left too long ago are lost; when the next one is due. */
uint64_t zps_plane_check_left(struct zps_plane *plane, uint64_t now_ns);

static inline uint64_t zps_peer_row_bytes(const struct zps_peer_round *exchange) {
  return zps_row_bytes(exchange->compute.width, exchange->compute.dtype);
}

/* exchange_run.c */
/* Room for what the program has become. */
zps_err_t zps_peer_fit(struct zps_peer_round *exchange) ZPS_MUSTCHECK;
/* Carries out what is due. */
void zps_peer_advance(struct zps_peer_round *exchange);
/* The instruction's output, if any, is there. */
void zps_peer_carried_out(struct zps_peer_round *exchange, uint32_t instr);
/* The output of `task` lies at task->out (or, an alias, elsewhere). */
void zps_peer_set_stream(struct zps_peer_round *exchange, uint32_t instr, const struct zps_slice_view *view,
                         struct zps_peer_mem *mem);
struct zps_compute_in zps_peer_in(const struct zps_peer_round *exchange, uint32_t stream);
/* The task's output is at task->out, as task->what says. */
void zps_peer_computed(struct zps_peer_task *task);
/* Fails the round: there is none for this instruction. */
void zps_peer_no_memory(struct zps_peer_round *exchange, uint32_t instr);

/* exchange_memory.c */
struct zps_peer_task *zps_peer_task_get(struct zps_peer_round *exchange, uint32_t instr);
void zps_peer_task_put(struct zps_peer_task *task);
/* Memory for `len` bytes of task's output. ZPS_ERR_AGAIN: the task is in line, and starts when there is some. */
zps_err_t zps_peer_get_memory(struct zps_peer_task *task, uint64_t len) ZPS_MUSTCHECK;
void zps_peer_mem_unref(struct zps_peer_round *exchange, struct zps_peer_mem *mem);
zps_err_t zps_peer_take_memory(struct zps_round *round) ZPS_MUSTCHECK;
void zps_peer_start_task(struct zps_peer_task *task); /* exchange_run.c: its memory is there */
/* At the end of a round: everything is free again. */
void zps_peer_free_all(struct zps_peer_round *exchange);

/* exchange_lend.c */
/* Before the first instruction: registers the gradient, if the scheme lends it and the fabric does so for free. */
void zps_peer_zerocopy_begin(struct zps_peer_round *exchange);
void zps_peer_zerocopy_end(struct zps_peer_round *exchange); /* nobody reads it any more */
/* Whether an OWN's stream lies in the gradient itself: *view_p. */
bool zps_peer_is_zerocopy(const struct zps_peer_round *exchange, uint32_t instr, struct zps_slice_view *view_p);
/* The result is there. */
void zps_peer_decoded(struct zps_peer_round *exchange);
/* A rank has said DONE: it may be the last that the result waited for. */
void zps_peer_check_through(struct zps_peer_round *exchange);
/* The result waits for the rank's DONE, or will. */
bool zps_peer_needs_done(const struct zps_peer_round *exchange, uint32_t rank);
/* For the other ranks the round was done here, and is not tried again. */
bool zps_peer_is_past(const struct zps_round *round);
/* DONE goes to ranks of whom nothing is read any more, once to each. */
void zps_peer_owe_done(struct zps_peer_round *exchange);
/* The round has failed: whom its gradient was lent to is to say so first, or till when. */
void zps_peer_revoke(struct zps_peer_round *exchange);
/* Nobody reads the gradient of a round that has failed, but who was not heard of in time. */
bool zps_peer_is_revoked(const struct zps_peer_round *exchange);

/* exchange_io.c */
void zps_peer_queue_send(struct zps_peer_round *exchange, uint32_t instr);
/* Sends what is due; ZPS_ERR_AGAIN: some is left. *sent_p is set when something went out. */
zps_err_t zps_peer_send_to(struct zps_peer_round *exchange, uint32_t rank, uint64_t now_ns, bool *sent_p) ZPS_MUSTCHECK;
/* Offers kept messages to a program that has grown. */
void zps_peer_offer_unexpected(struct zps_peer_round *exchange);

/* exchange_read.c */
void zps_peer_receive(struct zps_peer_round *exchange, uint32_t instr); /* a RECV is due */
void zps_peer_read(struct zps_peer_task *task);                         /* its memory is there */
void zps_peer_stop_reading(struct zps_peer_round *exchange);            /* the round has failed */

/* exchange_result.c */
void zps_peer_result(struct zps_peer_round *exchange, uint32_t instr);
/* Whether the stream has all rows, of which some may be zero because nobody sent them. */
bool zps_peer_fills_up(const struct zps_peer_round *exchange, const struct zps_compute_in *in);
/* The gradient has been read, so results that lie in the same memory may be written. */
void zps_peer_results_put_off(struct zps_peer_round *exchange);
void zps_peer_finish(struct zps_peer_round *exchange); /* all is carried out */
void zps_peer_result_init(struct zps_peer_round *exchange);

/* A mean divides by all ranks. */
unsigned zps_peer_divisor(const struct zps_peer_round *exchange);

/* exchange_deliver.c */
/* RESULT into a dense array, of task->compute.ins; or a SUM that goes there and nowhere else. */
bool zps_peer_delivers(const struct zps_peer_round *exchange, uint32_t instr);
void zps_peer_deliver(struct zps_peer_task *task);
/* With the gradient in the same array (in place), nothing is written before all of it was read. */
bool zps_peer_must_not_write(const struct zps_peer_round *exchange);

/* exchange_serve.c */
void zps_peer_serve(struct zps_peer_task *task);        /* a SERVE is due; its inputs are filled in */
void zps_peer_serve_encode(struct zps_peer_task *task); /* the memory for its output is there */
/* The round has failed: so shall the one within. */
void zps_peer_serve_give_up(struct zps_peer_round *exchange);
void zps_peer_serve_free(struct zps_peer_serve *serve); /* nothing of it is in flight */
/* Servers may be waiting for this rank. */
bool zps_peer_serve_awaits(const struct zps_peer_round *exchange, uint32_t rank);

/* exchange_end.c */
bool zps_peer_known(const struct zps_round *round);
void zps_peer_explain(struct zps_round *round);
bool zps_peer_quiet(const struct zps_round *round);
/* Fills an ABORT's ranks with those that this one still waits for. */
void zps_peer_name_awaited(const struct zps_peer_round *exchange, struct zps_frame_abort *abort);

#endif
