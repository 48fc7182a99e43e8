/*
 * Rounds over servers after a change of servers (proto/PROTOCOL.md, "A lost server").
 *
 * The coordinator tells all ranks the remaining servers (job.view). Lost partitions have other owners from then on, and
 * the servers have forgotten every round under way. This rank stops sending, waits until no read from a lost server is
 * under way, and reports the steps that it has begun and not finished (job.mapped). When all ranks have reported, each
 * gets all of these steps (job.replay), and pushes them again: the same stored bytes, so that the sums are the same,
 * bit for bit.
 *
 * A rank may have finished a step that others have not. So a finished round's push is retained. It goes when a later
 * round of its tensor is over, if the program had seen the earlier one end before it began the later one. In a program
 * where all ranks do the same, no rank can have pushed for the later one before it had finished the earlier one. (The
 * end of the round alone is not enough: of several steps in flight a later one may begin before the program waits for
 * the earlier one.) Retained pushes go earlier where their memory is needed, or beyond the limit. Then that step alone
 * fails on the ranks in need of it, with ZPS_ERR_SERVER_LOST.
 *
 * Everything belongs to the engine thread.
 */
#ifndef ZPS_WORKER_ROUND_REPLAY_H
#define ZPS_WORKER_ROUND_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

#include <stdatomic.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "worker/round/round_ends.h"

struct zps_job_steps;
struct zps_round;
struct zps_round_tensor;
struct zps_rounds;
struct zps_view_image;

/* How long the fabric's loss of a server waits for the coordinator's word: longer than a coordinator that has started
 * again waits for its servers (coordinator.restart_grace). */
#define ZPS_REPLAY_GRACE_NS (40 * ZPS_NS_PER_S)

struct zps_replay {
  uint32_t epoch;    /* of the last map; 0: none has come */
  bool is_mapping;   /* nothing is sent to servers, and nothing read from them */
  bool is_said;      /* the coordinator was told which steps are not finished */
  bool has_given_up; /* a lost server is still on the map, and rounds that need it fail */
  uint64_t lost_ns;  /* when the fabric lost a server that the coordinator has not taken off the map; 0: none */
  uint64_t grace_ns, limit_bytes;      /* limit_bytes: of kept pushes, of all tensors of the job */
  atomic_uint_least64_t kept_bytes;    /* read by other threads, too */
  struct zps_round *kept, **kept_tail; /* the oldest first */
  /* Tells the coordinator; `steps` is the caller's. NULL: there was no memory for them, and the coordinator is to say
   * the map again. */
  void (*mapped)(void *ctx, const struct zps_job_steps *steps);
  /* Tells the coordinator, once, why a server that drains is to keep the job: rounds would fail without it. NULL: does
   * not. `why` is static. */
  void (*held)(void *ctx, const char *why);
  bool is_held;
  void *ctx;
  struct zps_steps_failed failed; /* not told to servers that are new, or have forgotten */
};

/* Once the plane is open; before that, nothing is kept, and a server that the fabric loses is lost at once. */
void zps_replay_init(struct zps_rounds *rounds, uint64_t limit_bytes, uint64_t grace_ns);

/* Not on the engine thread: the owner is about to let go of the coordinator, which is told nothing from here on. */
void zps_replay_end(struct zps_rounds *rounds);

/* Installs a view of the plane's servers. The tensors have the owners of this view. The same view, or an older one:
 * nothing to do, unless the coordinator has not heard of the steps. */
void zps_replay_view(struct zps_rounds *rounds, const struct zps_view_image *view);
/* All ranks know the view. They push the steps of `answer` again. The caller keeps `answer`, and it may be empty then.
 */
void zps_replay_steps(struct zps_rounds *rounds, struct zps_job_steps *answer);
/* Looks whether the map can be confirmed, and whether a lost server stays without a map too long: its rounds fail then.
 * Returns when it wants to look again, or ZPS_NEVER. */
uint64_t zps_replay_tick(struct zps_rounds *rounds, uint64_t now_ns);

/* A round begins. */
void zps_replay_begin(struct zps_round *round);
/* A round is over, before the caller hears of it. */
void zps_replay_over(struct zps_round *round);
/* Whether servers have had this rank's push of the step, but have lost it with one of them: a pull waits in vain. */
bool zps_replay_has_lost(const struct zps_round *round);
/* A round is over, and nobody refers to it: whether it is kept. Else it is the caller's to release. */
bool zps_replay_keep(struct zps_round *round);
/* Lets go of a kept round that does not give its push, since its memory is needed. */
void zps_replay_let_go(struct zps_round *kept);
/* Lets go of the kept rounds of the tensor, and of what was decided; NULL: of all kept rounds. */
void zps_replay_drop(struct zps_rounds *rounds, const struct zps_round_tensor *tensor);

#endif
