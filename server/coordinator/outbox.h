/*
 * The coordinator's calls to one server, in their order, while its connection has no room for them. A server that is
 * slow to answer is not dead: what it cannot be told now waits here. How many calls of one job may wait is bounded;
 * beyond it the job fails, and the server stays.
 *
 * A call is kept as what it is about, and written when it is sent: a job that waits to be opened costs the same with
 * one rank as with thousands. No network and no clock here, as in members.h.
 */
#ifndef ZPS_SERVER_COORDINATOR_OUTBOX_H
#define ZPS_SERVER_COORDINATOR_OUTBOX_H

#include "server/membership/members.h"

/* Of one job: its tensors, each opened and closed, fit. */
#define ZPS_OUTBOX_JOB_MAX (2 * ZPS_TENSORS_MAX)

struct zps_outbox_call {
  enum zps_action_type type; /* one of those to servers */
  uint64_t job_id;
  uint32_t position; /* JOB_OPEN */
  uint32_t tensor;   /* TENSOR_OPEN, TENSOR_FORGET */
  uint32_t rank;     /* RANK_GONE */
  uint32_t epoch;    /* MAP_SERVER, REPLAY_SERVER */
  zps_err_t code;    /* RANK_GONE */
  const char *text;  /* RANK_GONE, JOB_CLOSE; the outbox keeps a copy of its own */
};

struct zps_outbox_entry;
struct zps_outbox {
  struct zps_outbox_entry *first, **tail;
  unsigned n_waiting;
  unsigned job_max; /* calls of one job that may wait */
  bool is_flushing; /* sending may end older calls, and so lead here again */
  void *ctx;
  /* Sends the call now. ZPS_ERR_AGAIN: there is no room, it stays the first. What else comes is the owner's concern:
   * the call is done with. May call zps_outbox_flush() alone of these functions. */
  zps_err_t (*send)(void *ctx, const struct zps_outbox_call *call);
  /* The call waited, and is not sent any more: no answer will come. May call none of these functions. */
  void (*dropped)(void *ctx, const struct zps_outbox_call *call);
};

void zps_outbox_init(struct zps_outbox *outbox, unsigned job_max, void *ctx,
                     zps_err_t (*send)(void *ctx, const struct zps_outbox_call *call),
                     void (*dropped)(void *ctx, const struct zps_outbox_call *call));
/* What waits is forgotten, as the server is: `dropped` is not called. */
void zps_outbox_clear(struct zps_outbox *outbox);
/* Sends the call, behind those that wait; or it waits. What the server need not hear any more is taken out: all of a
 * job that is to be closed, and the closing itself where the job's opening waits still; likewise a tensor's opening
 * where it is to be forgotten. ZPS_ERR_BUSY: too many calls of the job wait; the error names both numbers. */
zps_err_t zps_outbox_put(struct zps_outbox *outbox, const struct zps_outbox_call *call,
                         struct zps_error *error) ZPS_MUSTCHECK;
/* There may be room again. */
void zps_outbox_flush(struct zps_outbox *outbox);

#endif
