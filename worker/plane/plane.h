/*
 * The data plane of one connection: the engine with a link and a bulk peer per server (and, once a tensor with a scheme
 * between workers is open, per rank), the rounds in flight, and the order in which they get registered memory. Except
 * where said, everything belongs to the engine thread.
 */
#ifndef ZPS_WORKER_PLANE_PLANE_H
#define ZPS_WORKER_PLANE_PLANE_H

#include "common/base/scratch.h"
#include "common/base/workpool.h"
#include "common/session/engine.h"
#include "common/session/link.h"
#include "worker/plane/unexpected.h"
#include "worker/plane/shared/neighbours.h"
#include "worker/base/options.h"
#include "worker/round/round.h"

#define ZPS_PLANE_BUCKETS 256u

struct zps_join;
struct zps_join_peers;

/* Another process of the job: a server, or a rank. */
struct zps_remote {
  struct zps_plane *plane;
  uint32_t index; /* among the servers, or its rank */
  bool is_rank;
  char name[132];              /* of a rank: its host */
  struct zps_neighbour shared; /* a rank of this host: the memory that we share */
  uint64_t left_ns;            /* a rank that left in peace: when; what it has sent may still be under way */
  struct zps_net_peer *peer;
  struct zps_bulk_peer *bulk;
  struct zps_link *link;
  bool lost;     /* nothing goes there any more; the next tick drops the peer */
  char why[256]; /* lost: why */
};

struct zps_plane {
  struct zps_engine *engine;
  struct zps_workpool *pool;      /* encodes and decodes */
  struct zps_workpool *scan_pool; /* one thread, which spreads a scan over `pool` */
  uint64_t memory_limit_bytes;
  uint64_t job_id;
  uint32_t rank, n_servers;
  struct zps_remote *servers;
  struct zps_remote *ranks; /* world of them; NULL until they are linked. Our own has no peer */
  uint32_t world, epoch;
  struct zps_segment *segment; /* of this rank, for others of its host to read; NULL: nobody does */
  struct zps_slab_memory segment_memory;
  struct zps_scratch_pool *scratches; /* with `ranks`: a zps_compute_scratch for each thread that computes */
  struct zps_unexpected unexpected;   /* messages of rounds that have not begun here */

  struct zps_round *table[ZPS_PLANE_BUCKETS]; /* by tensor and step */
  struct zps_round *rounds;                   /* all of them */
  struct zps_round *dirty, **dirty_tail;
  uint64_t next_deadline_ns;
  uint64_t age_ns;                 /* when spare rounds are next looked at */
  uint64_t trim_ns, trim_until_ns; /* until then, how long they are kept */
  bool closed;                     /* no round begins any more */
  zps_err_t fail_code;             /* set: every round fails with it at once */
  struct zps_frame_abort failure;

  /* Those who wait for memory, in order. Sums come first: they end rounds, which frees memory. */
  struct zps_served_part *pulls, **pulls_tail;
  struct zps_round *pushes, **pushes_tail;
  struct zps_round *waiting_rounds; /* rounds between workers that wait; each is tried when memory was freed */
  uint64_t push_held, pull_held;
  bool pump; /* somebody came to wait, or memory was freed */
};

/* Opens the fabric and starts the threads. */
zps_err_t zps_plane_open(const struct zps_worker_options *options, struct zps_plane *plane,
                         struct zps_error *error) ZPS_MUSTCHECK;
/* Connects to the job's servers. Not on the engine thread. */
zps_err_t zps_plane_connect(struct zps_plane *plane, const struct zps_join *join, uint32_t rank,
                            struct zps_error *error) ZPS_MUSTCHECK;
/* In this order, not on the engine thread. Fails what is in flight with ZPS_ERR_CLOSED, and tells the servers. */
void zps_plane_quiesce(struct zps_plane *plane);
/* Waits, at most `wait_ms`, until the other ranks have got what was sent to them: of a last round they may not have
 * read all when this rank has its result. A job that failed waits for nobody. */
void zps_plane_drain(struct zps_plane *plane, unsigned wait_ms);
/* Drops the servers: reads from them end. */
void zps_plane_disconnect(struct zps_plane *plane);
/* Stops the threads and closes the fabric. */
void zps_plane_close(struct zps_plane *plane);

void zps_plane_round_add(struct zps_plane *plane, struct zps_round *round);
void zps_plane_round_remove(struct zps_plane *plane, struct zps_round *round);
/* Links to all other ranks, with their receives; again: nothing to do. Not on the engine thread. */
zps_err_t zps_plane_link(struct zps_plane *plane, const struct zps_join_peers *peers,
                         struct zps_error *error) ZPS_MUSTCHECK;
/* What this rank shares with others of its host, once they are linked; `segment` is the plane's from here on, and may
 * be NULL. Not on the engine thread. */
zps_err_t zps_plane_share(struct zps_plane *plane, struct zps_segment *segment, const struct zps_neighbour *neighbours,
                          struct zps_error *error) ZPS_MUSTCHECK;
/* A rank left in peace. From any thread but the engine's. */
void zps_plane_rank_left(struct zps_plane *plane, uint32_t rank);
void zps_plane_server_lost(struct zps_plane *plane, uint32_t server, const char *why);
/* Every round, in flight and to come, fails. `failure->code` says how. */
void zps_plane_fail(struct zps_plane *plane, const struct zps_frame_abort *failure);
void zps_plane_wait_pull(struct zps_plane *plane, struct zps_served_part *part);
void zps_plane_wait_push(struct zps_plane *plane, struct zps_round *round);
/* For rounds between workers: tries again when memory was freed. */
void zps_plane_wait_memory(struct zps_plane *plane, struct zps_round *round);
void zps_plane_forget_waiting(struct zps_plane *plane, struct zps_round *round);

struct zps_round *zps_plane_round_find(struct zps_plane *plane, uint32_t tensor, uint64_t step);
void zps_plane_rank_lost(struct zps_plane *plane, uint32_t rank, const char *why);

/* For the files of the plane. */
/* Makes peer, bulk peer and link; what is there on failure is dropped with the plane. */
zps_err_t zps_plane_remote_connect(struct zps_plane *plane, struct zps_remote *remote, const void *addr,
                                   size_t addr_len, struct zps_error *error) ZPS_MUSTCHECK;
/* Frames of other ranks: mesh.c. */
void zps_plane_rank_frame(struct zps_plane *plane, struct zps_remote *rank, const struct zps_frame *frame);
struct zps_engine_handler zps_plane_handler(struct zps_plane *plane);
void zps_plane_drop_lost(struct zps_plane *plane);
/* Hands memory to those who wait. */
void zps_plane_pump(struct zps_plane *plane);

#endif
