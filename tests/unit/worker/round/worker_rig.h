/*
 * One worker without its API: a data plane over the in-process fabric, its rounds, and an owner that notes its
 * notifications. Its servers and the other ranks are fakes (plane/fake.h).
 */
#ifndef ZPS_TESTS_WORKER_ROUND_WORKER_RIG_H
#define ZPS_TESTS_WORKER_ROUND_WORKER_RIG_H

#include <pthread.h>
#include <stdatomic.h>

#include "tests/unit/worker/plane/fake.h"
#include "worker/control/membership.h"
#include "worker/plane/plane.h"
#include "worker/round/round.h"
#include "worker/round/rounds.h"

enum { RIG_FAKES_MAX = 4, RIG_PARTS_MAX = 64, RIG_JOB = 77 };
#define RIG_TIMEOUT_MS PATIENCE_NEVER_MS /* of rounds that end before it */

/* The request of a round, and its outcome. Zero at first. */
struct rig_request {
  struct zps_round *round; /* kept for the request's next one */
  zenps_grad_t out;
  uint32_t sent[RIG_PARTS_MAX], in_union[RIG_PARTS_MAX];
  /* Set by the engine's thread. */
  atomic_bool over, released, kept; /* kept: in case a server is lost, where the rig's rounds are */
  unsigned n_over, number;          /* number: how many were over before it */
  bool serving;
  zenps_error_t error;
  zenps_request_stats_t stats;
  struct zps_row_arrays arrays;
  struct rig_request *next;
};

struct rig_config {
  uint32_t n_servers, rank, world; /* world 0: no links to ranks */
  bool checksums;                  /* of what is read */
  unsigned threads;                /* 0: 2 */
  uint64_t memory_limit_bytes;     /* 0: 64 MiB */
  const char *provider;            /* of all, on the loopback interface; NULL: the in-process fabric */
  const char *fault;               /* of that, rules of common/net/fault.h for the worker's fabric; NULL: none */
};

struct worker_rig {
  struct zps_plane plane;
  struct zps_rounds rounds;
  struct fake servers[RIG_FAKES_MAX], ranks[RIG_FAKES_MAX]; /* ranks: but for the worker's own */
  uint32_t n_servers, rank, world;
  bool checksums;
  bool keeps;                       /* rounds that went well, as the API does */
  struct zps_worker_device *device; /* of rounds whose gradient or result is in device memory */
  pthread_mutex_t lock;             /* a round is not canceled when it is over */
  unsigned n_over, n_woken;         /* the engine thread's */
  uint64_t n_begun;                 /* rounds */
  uint64_t seen_to;                 /* of those that begin from here on */
  struct rig_request *requests;
};

/* Servers are called "ps-N", hosts of ranks "node-N". */
void rig_open(struct worker_rig *rig, const struct rig_config *config);
/* For ranks that are no fakes: where the plane can be reached, and links to others once all are open. */
const struct zps_net_info *rig_info(const struct worker_rig *rig);
void rig_link(struct worker_rig *rig, const struct zps_join_peers *peers);
/* Rounds that are not over fail; all are released, their requests may go. */
void rig_close(struct worker_rig *rig);

/* Begins a round as the API does. `request->out` is set. ZPS_ERR_NOMEM where the round cannot be made. */
zps_err_t rig_begin(struct worker_rig *rig, struct rig_request *request, struct zps_round_tensor *tensor, uint64_t step,
                    uint64_t timeout_ms, const zenps_grad_t *in) ZPS_MUSTCHECK;
/* Unless it is over. */
void rig_cancel(struct rig_request *request);
/* Waits until the round is over, and well. */
void rig_expect_ok(struct rig_request *request);
/* Waits until it has failed so; `text` is all of it, but for job, tensor and step. */
void rig_expect_error(struct rig_request *request, zps_err_t code, const char *text);
void rig_expect_released(struct rig_request *request);
/* Waits until it is released, and destroys its round. */
void rig_drop(struct worker_rig *rig, struct rig_request *request);
/* Gives back the arrays that the library has made for the result. */
void rig_free_result(struct rig_request *request);

/* Runs on the engine's thread, and returns when it has run. */
void rig_do(struct worker_rig *rig, void (*run)(void *ctx), void *ctx);
uint64_t rig_held(struct worker_rig *rig); /* registered memory that rounds hold */
uint64_t rig_left(struct worker_rig *rig); /* registered memory that reads of lost servers and ranks hold */
unsigned rig_reads(struct worker_rig *rig, const struct rig_request *request); /* under way, of its round */
enum zps_round_machine_state rig_state(struct worker_rig *rig, const struct rig_request *request);
/* The plane loses it, as if the coordinator had said so. */
void rig_lose(struct worker_rig *rig, struct zps_remote *remote, const char *why);

/* Keeps a pool's thread busy until rig_unblock(). */
struct rig_block {
  struct zps_work work;
  atomic_bool is_held, is_running, is_through;
};
void rig_block(struct rig_block *block, struct zps_workpool *pool);
void rig_unblock(struct rig_block *block);

#endif
