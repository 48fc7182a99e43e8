/* The control side of a connection: joins, registers tensors, and hears of deaths. */
#ifndef ZPS_WORKER_CONTROL_MEMBERSHIP_H
#define ZPS_WORKER_CONTROL_MEMBERSHIP_H

#include <stdatomic.h>

#include "common/control/client.h"
#include "proto/control_change.h"
#include "proto/control_job.h"
#include "proto/control_next.h"
#include "proto/control_plan.h"
#include "proto/control_stats.h"
#include "proto/control_tensor.h"
#include "worker/base/options.h"

struct zps_membership_handler {
  void *ctx;
  void (*on_rank_left)(void *ctx, uint32_t rank); /* on the control thread, as is on_failed */
  void (*on_failed)(void *ctx, const struct zps_frame_abort *failure);
  void (*on_changed)(void *ctx); /* processes wait that are to be ranks of the job */
  void (*on_plan)(void *ctx, const struct zps_tensor_plan *plan);
  /* The job has another view, which its servers have installed. */
  void (*on_view)(void *ctx, const struct zps_view_image *view);
  /* Steps to be pushed again (proto/control_change.h). */
  void (*on_replay)(void *ctx, const struct zps_job_steps *steps);
  /* The connection is lost, for a while or for good: what was told on it may not have arrived. */
  void (*on_away)(void *ctx);
  void (*on_beat)(void *ctx); /* ahead of each heartbeat, as soon as there is a connection */
  /* For how long the progress thread has been stuck, to be told with a heartbeat. On the control thread. */
  uint64_t (*stuck_ns)(void *ctx, const struct zps_silence *silence, uint64_t now_ns);
};

/* Of an elastic job: where the process was in the last generation, and how far it is. */
struct zps_last_place {
  uint32_t generation, rank; /* generation 0: it was in none */
  uint64_t job_id;
  uint64_t step;
};

struct zps_membership {
  struct zps_client *client;
  struct zps_tls *tls; /* this rank's certificate; NULL: none */
  struct zps_membership_handler handler;
  uint64_t job_id;
  struct zps_beat_heard heard; /* on the control thread */
  atomic_bool lost;            /* the coordinator knows nothing of the job any more, or has none of it for this rank */
  atomic_bool away;            /* it is out of reach, for now */
  atomic_bool over; /* it has said that it has none of the job any more for this rank, and the handler knows */
  /* What a new connection begins with. */
  uint64_t secret, incarnation;
  uint32_t rank, world; /* where the job is elastic: the coordinator's numbers */
  struct zps_generation generation;
  _Atomic(const char *) memory; /* what the coordinator was told; NULL: nothing */
  _Atomic(const char *) held;   /* what the coordinator was told; NULL: nothing */
  atomic_bool joined;           /* the three above and job_id are there */
  atomic_uint n_bare;           /* connections made before `joined` */
};

/* Reads this rank's certificate, if options name one, and lends it to them. Again: lends the same. */
zps_err_t zps_membership_identify(struct zps_membership *membership, struct zps_worker_options *options,
                                  struct zps_error *error) ZPS_MUSTCHECK;
/* Connects and joins as whom zps_membership_identify() found, within the join timeout; an elastic job's next
 * generation, where options say that it is one: then `last` is of the last one. A connection that is lost is made anew,
 * and goes on where it was; what is asked of the coordinator meanwhile waits until then, or until its own deadline.
 * ZPS_ERR_PEER_LOST: this rank was let in, and lost with its connection, and the error says why; a generation of an
 * elastic job is open then, and has failed (on_failed), so that the next one can be asked for. On failure, and in the
 * end, zps_membership_close(). */
zps_err_t zps_membership_open(struct zps_membership *membership, const struct zps_worker_options *options,
                              const struct zps_net_info *fabric, const struct zps_last_place *last,
                              const struct zps_membership_handler *handler, struct zps_join *join,
                              struct zps_error *error) ZPS_MUSTCHECK;
/* Registers a tensor as the spec asks for it; the answer, which is waited for apart, completes the spec, whose owners
 * are malloc'd. Each start wants its wait. */
struct zps_client_order;
zps_err_t zps_membership_register_start(struct zps_membership *membership, struct zps_tensor_spec *spec,
                                        uint64_t timeout_ms, struct zps_client_order **call_p,
                                        struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_membership_register_wait(struct zps_membership *membership, struct zps_client_order *call,
                                       struct zps_tensor_spec *spec, uint32_t n_servers,
                                       struct zps_error *error) ZPS_MUSTCHECK;
/* Where the `world` ranks are. */
zps_err_t zps_membership_peers(struct zps_membership *membership, uint32_t world, uint64_t timeout_ms,
                               struct zps_join_peers *peers, struct zps_error *error) ZPS_MUSTCHECK;
/* Says which servers this rank cannot reach, and that it can reach all others; `suspects` is the caller's. */
zps_err_t zps_membership_suspect(struct zps_membership *membership,
                                 const struct zps_job_suspects *suspects) ZPS_MUSTCHECK;
/* Says that this rank has made its links to the others, and returns when all have. */
zps_err_t zps_membership_linked(struct zps_membership *membership, uint64_t timeout_ms,
                                struct zps_error *error) ZPS_MUSTCHECK;
/* Says that this rank is in a group of these ranks, which ascend, and returns when all of them have said so. */
zps_err_t zps_membership_group_open(struct zps_membership *membership, const char *name, const uint32_t *ranks,
                                    uint32_t n_ranks, uint64_t timeout_ms, struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_membership_group_close(struct zps_membership *membership, const char *name, uint64_t timeout_ms,
                                     struct zps_error *error) ZPS_MUSTCHECK;
/* Returns when all ranks have called it, and the tensor is gone on servers and coordinator. */
zps_err_t zps_membership_tensor_close(struct zps_membership *membership, uint32_t tensor, uint64_t timeout_ms,
                                      struct zps_error *error) ZPS_MUSTCHECK;
/* Asks for the scheme of a step, and tells of the rounds before it (tensor.report). */
zps_err_t zps_membership_report(struct zps_membership *membership, uint32_t tensor,
                                const struct zps_plan_request *told) ZPS_MUSTCHECK;
/* Tells of rounds (job.stats): `tensors`, an array of rows, is consumed. The job is this one, whatever `report` says.
 */
zps_err_t zps_membership_stats(struct zps_membership *membership, const struct zps_rank_report *report,
                               zps_json *tensors) ZPS_MUSTCHECK;
/* Says which steps of each tensor this rank has begun and not finished (job.mapped). From any thread. */
zps_err_t zps_membership_mapped(struct zps_membership *membership, const struct zps_job_steps *steps) ZPS_MUSTCHECK;
/* Says how the fabric gets at this rank's gradients (job.memory). */
void zps_membership_memory(struct zps_membership *membership, const char *memory);
/* Says why servers are to keep the job, though they drain (job.held); `why` is static. From any thread. */
void zps_membership_hold(struct zps_membership *membership, const char *why);
/* Waits until what the coordinator was told has left this process, for `timeout_ms` at most. Not on the control thread.
 */
void zps_membership_flush(struct zps_membership *membership, uint64_t timeout_ms);
/* There was no memory for what the coordinator has said, or is to hear: it says it again, over another connection. Any
 * thread. */
void zps_membership_renew(struct zps_membership *membership);
/* Says goodbye; `moves`: until the next generation. `first`: the rank's first error, or ZPS_OK. */
void zps_membership_leave(struct zps_membership *membership, bool moves, const struct zps_error *first);
void zps_membership_close(struct zps_membership *membership);

#endif
