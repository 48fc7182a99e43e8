/*
 * The data plane of one connection: the engine with a link and a bulk peer per server (and, once a tensor with a scheme
 * between ranks is open, per rank), and registered memory. It knows nothing of rounds: frames, losses and ticks go to
 * its handler. Except where said, everything belongs to the engine thread.
 */
#ifndef ZPS_WORKER_PLANE_PLANE_H
#define ZPS_WORKER_PLANE_PLANE_H

#include "common/base/workpool.h"
#include "common/session/checks.h"
#include "common/session/engine.h"
#include "common/session/link.h"
#include "worker/base/options.h"
#include "worker/plane/memory.h"
#include "worker/plane/shared/neighbours.h"
#include "worker/plane/watch.h"

/* A rank that left has sent all it ever will: so long after that, a wait for it is in vain. */
#define ZPS_RANK_LEFT_GRACE_NS (2 * ZPS_NS_PER_S)

struct zps_join;
struct zps_join_peers;
struct zps_place_image;
struct zps_plane;

/* Another process of the job: a server, or a rank. */
struct zps_remote {
  struct zps_plane *plane;
  uint32_t index; /* among the servers, or its rank */
  bool is_rank;
  char name[132];              /* of a rank: its host */
  struct zps_neighbour shared; /* a rank of this host: the memory that we share */
  uint32_t tag;                /* its frames carry this tag */
  uint32_t since;              /* a server: the epoch with which it took the place of another, or 0 */
  uint64_t left_ns;            /* one that left in peace: when; what a rank has sent may still be under way */
  struct zps_net_peer *peer;
  struct zps_bulk_peer *bulk;
  struct zps_link *link;
  bool lost;     /* nothing goes there any more; the next tick drops the peer */
  char why[256]; /* lost: why */
};

/* Callbacks for what happens on the plane. Engine thread. */
struct zps_plane_handler {
  void *ctx;
  /* A frame of a server (RESULT, ABORT) or a rank (PEER, DONE, ABORT); others are dropped, and logged, by the plane. */
  void (*on_frame)(void *ctx, struct zps_remote *from, const struct zps_frame *frame);
  /* From inside the fabric's callbacks, too. `why` is borrowed. */
  void (*on_lost)(void *ctx, struct zps_remote *remote, const char *why);
  void (*on_left)(void *ctx); /* a rank left in peace (zps_remote.left_ns) */
  /* After each batch of events; returns the next deadline, or ZPS_NEVER. */
  uint64_t (*on_tick)(void *ctx, uint64_t now_ns);
  bool (*is_read)(void *ctx); /* whether peers may be reading this process's memory. NULL: none is */
};

/* What is asked of servers that cannot be reached, and told of them. Engine thread. */
struct zps_plane_reach {
  void *ctx;
  bool (*waits)(void *ctx); /* whether something is to come from servers */
  /* These servers, by their numbers, ascending, are out of reach, and all others are not; said again while there are
   * any. `why`: of the first. Both are borrowed. */
  void (*suspect)(void *ctx, uint32_t *servers, uint32_t n, const char *why);
};

struct zps_plane {
  struct zps_engine *engine;
  struct zps_plane_handler handler;
  struct zps_workpool *pool;      /* encodes and decodes */
  struct zps_workpool *scan_pool; /* one thread, which spreads a scan over `pool` */
  struct zps_plane_memory memory;
  uint64_t job_id;
  struct zps_secret secret;  /* of its links */
  struct zps_checks *checks; /* of what is read; NULL: the job goes without */
  uint32_t rank, n_servers;  /* n_servers: places; those that are free have a server that is lost */
  struct zps_remote *servers;
  struct zps_remote *ranks; /* world of them; NULL until they are linked. Our own has no peer */
  uint32_t world;           /* ranks of the job */
  uint32_t epoch;
  struct zps_segment *segment; /* of this rank, for others of its host to read; NULL: no rank does */
  struct zps_slab_memory segment_memory;
  struct zps_scratch_pool *scratches; /* with `ranks`: a zps_compute_scratch for each thread that computes */
  uint32_t next_tag;                  /* of a server that takes another's place; none is given twice */
  uint64_t left_due_ns;               /* when ranks that left are next looked at */
  struct zps_plane_reach reach;       /* suspect NULL: nobody is told */
  uint64_t dead_ns;                   /* silence after which a rank is lost; 0: it does not count */
  struct zps_watch watch;             /* of the servers, once they are connected */
  uint64_t *signs;                    /* of each server, its signs of life by the last look */
  bool closed;                        /* the job is being closed: losses are no news */
  bool shut;                          /* zps_plane_shut() */
};

/* Opens the fabric and starts the threads. */
zps_err_t zps_plane_open(const struct zps_worker_options *options, const struct zps_plane_handler *handler,
                         struct zps_plane *plane, struct zps_error *error) ZPS_MUSTCHECK;
/* Connects to the job's servers, of a job of `world` ranks. Not on the engine thread. */
zps_err_t zps_plane_connect(struct zps_plane *plane, const struct zps_join *join, uint32_t rank, uint32_t world,
                            struct zps_error *error) ZPS_MUSTCHECK;
/* Not on the engine thread. Waits, at most `wait_ms`, until all frames to the other ranks have left this process. Ranks
 * with lossy links must also confirm them. Other ranks may need frames of the last round after this rank has its
 * result. */
void zps_plane_drain(struct zps_plane *plane, unsigned wait_ms);
/* Ends the fabric of this process, for good: nothing is read from its memory any more, nor written there, and all
 * servers and ranks are lost, of which no log and no coordinator is told. Engine thread, not inside the fabric's
 * callbacks. */
void zps_plane_shut(struct zps_plane *plane, const char *why);
/* Drops the servers and ranks: reads from them end. Not on the engine thread. */
void zps_plane_disconnect(struct zps_plane *plane);
/* Stops the threads and closes the fabric. */
void zps_plane_close(struct zps_plane *plane);

/* Links to all other ranks, with their receives; again: nothing to do. Not on the engine thread. */
zps_err_t zps_plane_link(struct zps_plane *plane, const struct zps_join_peers *peers,
                         struct zps_error *error) ZPS_MUSTCHECK;
/* Of a rank with a device: whether another one has one, too, and each knows that they share memory. */
bool zps_plane_shares_device(const struct zps_plane *plane, uint32_t rank);
/* Shared memory that the rank was told of, and has not said that it is through with, is used for something else from
 * here on: what the rank still copies there is no result of its round, and what goes to it later takes the fabric.
 * Nothing where nothing is shared with it. Engine thread. */
void zps_plane_give_up(struct zps_plane *plane, uint32_t rank);
bool zps_plane_has_given_up(const struct zps_plane *plane, uint32_t rank); /* from any thread */
/* Behind a copy of what the rank shares with us: ZPS_ERR_PEER_LOST where it has given us up, so that the copy is worth
 * nothing. From any thread. */
zps_err_t zps_plane_check_copied(const struct zps_plane *plane, uint32_t rank, struct zps_error *error) ZPS_MUSTCHECK;
/* A rank left in peace. From any thread but the engine's. */
void zps_plane_rank_left(struct zps_plane *plane, uint32_t rank);
/* Marks the remote as lost: nothing is sent to it any more. The handler is told, once. */
void zps_plane_lose(struct zps_remote *remote, const char *why);
/* The coordinator has taken the server off the job: whether it can be reached does not matter any more. */
void zps_plane_off(struct zps_remote *server);
/* The remote's name as texts have it: "server 1 (name)", "rank 1 (host name)". */
#define ZPS_REMOTE_FMT "%s %" PRIu32 " (%s%s)"
#define ZPS_REMOTE_ARGS(remote) \
  (remote)->is_rank ? "rank" : "server", (remote)->index, (remote)->is_rank ? "host " : "", (remote)->name

/* A later server has taken the place: connects to it. Rounds no longer count on the server before, and its late frames
 * are dropped. Engine thread, not inside the fabric's callbacks. */
zps_err_t zps_plane_server_replace(struct zps_plane *plane, uint32_t index, const struct zps_place_image *place,
                                   struct zps_error *error) ZPS_MUSTCHECK;

/* For the files of the plane. */
/* Makes peer, bulk peer and link; what is there on failure is dropped with the plane. */
zps_err_t zps_plane_remote_connect(struct zps_plane *plane, struct zps_remote *remote, const void *addr,
                                   size_t addr_len, struct zps_error *error) ZPS_MUSTCHECK;
struct zps_engine_handler zps_plane_engine_handler(struct zps_plane *plane);
void zps_plane_drop_lost(struct zps_plane *plane);
void zps_plane_remote_drop(struct zps_remote *remote); /* if it is lost */
/* reachability.c: once `n_servers` is set; the fabric has lost the remote; when to look next. */
zps_err_t zps_plane_watch_open(struct zps_plane *plane, uint64_t dead_ms) ZPS_MUSTCHECK;
void zps_plane_watch_lost(struct zps_remote *remote);
/* Another server has its place. */
void zps_plane_watch_renew(const struct zps_remote *server);
uint64_t zps_plane_watch_tick(struct zps_plane *plane, uint64_t now_ns);
/* Marks ranks as lost that left too long ago. Returns when the next one is due. */
uint64_t zps_plane_check_left(struct zps_plane *plane, uint64_t now_ns);

#endif
