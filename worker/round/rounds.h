/*
 * The rounds of a job that are in flight here: found by tensor and step, looked at when something happened to them or a
 * deadline has come, failed together. They are the plane's handler: frames and losses reach them through it.
 *
 * Everything belongs to the engine thread, except where said.
 */
#ifndef ZPS_WORKER_ROUND_ROUNDS_H
#define ZPS_WORKER_ROUND_ROUNDS_H

#include "worker/plane/plane.h"
#include "proto/control_change.h"
#include "worker/round/round_ends.h"
#include "worker/round/replay.h"
#include "worker/plane/unexpected.h"

#define ZPS_ROUNDS_BUCKETS 256u

struct zps_decided_past;
struct zps_round;

struct zps_rounds {
  struct zps_plane *plane;
  struct zps_round *table[ZPS_ROUNDS_BUCKETS]; /* by tensor and step */
  struct zps_round *all;
  struct zps_round *dirty, **dirty_tail;
  uint64_t next_deadline_ns;
  struct zps_unexpected unexpected; /* messages of rounds that have not begun here */
  struct zps_replay replay;         /* when servers are lost */
  struct zps_decided_past *decided_past;
  struct zps_job_steps decided; /* by other ranks, too, before servers changed last (decided.h) */
  struct zps_past_rounds past;
  uint32_t n_seeks;    /* begun here: late answers to one are not taken for those to another */
  zps_err_t fail_code; /* set: every round fails with it at once */
  struct zps_frame_abort failure;
  uint64_t failed_ns; /* since when */
  bool must_shut;     /* zps_rounds_shut() was called, with shut_failure */
  struct zps_frame_abort shut_failure;
  /* Work of the owner, now and then: called at `idle_at_ns`, returns when it wants to be called again. */
  uint64_t (*idle)(void *ctx, uint64_t now_ns);
  /* The owner's tensor of this number, whose memory is there as long as the engine runs nothing else; NULL: there is
   * none (any more). */
  struct zps_round_tensor *(*tensor_of)(void *ctx, uint32_t tensor);
  void *idle_ctx;
  uint64_t idle_at_ns;
};

/* `plane` is borrowed, and opened with this handler next. */
void zps_rounds_init(struct zps_rounds *rounds, struct zps_plane *plane);
struct zps_plane_handler zps_rounds_handler(struct zps_rounds *rounds);
/* After the plane is closed. */
void zps_rounds_fini(struct zps_rounds *rounds);

void zps_rounds_add(struct zps_rounds *rounds, struct zps_round *round);
void zps_rounds_remove(struct zps_rounds *rounds, struct zps_round *round);
struct zps_round *zps_rounds_find(struct zps_rounds *rounds, uint32_t tensor, uint64_t step);
/* No round but this one is under way. */
bool zps_rounds_is_alone(const struct zps_rounds *rounds, const struct zps_round *round);
/* Lets the next tick settle the round. */
void zps_round_touch(struct zps_round *round);
/* Or not. */
void zps_rounds_untouch(struct zps_rounds *rounds, struct zps_round *round);
/* Lets the next tick settle those that were touched in the order in which the program began them. */
void zps_rounds_touched_in_order(struct zps_rounds *rounds);
/* The rounds are to be looked at then. */
void zps_rounds_due(struct zps_rounds *rounds, uint64_t at_ns);
/* Every round, in flight and to come, fails. `failure->code` says how. */
void zps_rounds_fail(struct zps_rounds *rounds, const struct zps_frame_abort *failure);
/* The tick ends the fabric of this process (zps_plane_shut()): a rank may still read what the trainer gets back. Where
 * the job has not failed, it fails so. */
void zps_rounds_shut(struct zps_rounds *rounds, const struct zps_frame_abort *failure);
/* Not on the engine thread. Fails what is in flight with ZPS_ERR_CLOSED, and tells the servers. */
void zps_rounds_close(struct zps_rounds *rounds);
/* Tells a rank whose round has failed that ours is over: it need not wait for more of us. */
void zps_rounds_answer_done(const struct zps_remote *rank, const struct zps_frame_abort *abort);

#endif
