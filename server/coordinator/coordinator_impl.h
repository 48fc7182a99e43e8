/* The state that the files which connect membership to the control plane have in common. */
#ifndef ZPS_SERVER_COORDINATOR_COORDINATOR_IMPL_H
#define ZPS_SERVER_COORDINATOR_COORDINATOR_IMPL_H

#include "common/control/room.h"
#include "common/control/rpc.h"
#include "common/control/silence.h"
#include "server/coordinator/clocks.h"
#include "server/coordinator/coordinator.h"
#include "server/membership/members.h"
#include "server/coordinator/outbox.h"
#include "server/coordinator/viewer.h"

enum zps_conn_role { ZPS_CONN_SERVER = 1, ZPS_CONN_WORKER = 2, ZPS_CONN_CTL = 4 };

/* Slots of open connections, in rooms: a room has those of one origin (an address, a certificate) and one sort (a
 * role). A room has a limit, and so have all rooms together. */
struct zps_slots_room;

struct zps_slot { /* in its connection; zero: none was taken */
  struct zps_slots_room *room;
  struct zps_slot *older, *newer;
};

struct zps_slots_room { /* one with slots alone */
  struct zps_slots *slots;
  struct zps_slots_room *next;
  struct zps_origin origin;
  unsigned sort, n;
  struct zps_slot *oldest, *newest;
};

struct zps_slots { /* zero: none are taken */
  struct zps_slots_room *rooms;
  unsigned n;
};

struct zps_coordinator_conn {
  struct zps_member_client client; /* first: actions name it */
  struct zps_coordinator *coordinator;
  struct zps_rpc_conn *rpc; /* NULL once it is gone */
  enum zps_conn_role role;
  struct zps_outbox outbox; /* of a server: calls that wait */
  uint64_t watched_ns;      /* silence counts from here on at the earliest; 0: it does not count yet */
  struct zps_slot slot;
  struct zps_clock_offset clock;
  bool has_asked; /* it has called a method since its hello */
  bool returns;   /* it has said that it ends this connection, to make another one */
  struct zps_coordinator_conn *next, *prev;
};

/* A call to a server that is on its way, and what came of it; or of one that could not be made. */
struct zps_coordinator_call {
  struct zps_coordinator_conn *conn;
  enum zps_action_type type; /* JOB_OPEN, TENSOR_OPEN, MAP_SERVER: the answer; else the job fails */
  uint64_t job_id;
  uint32_t tensor, epoch;
  struct zps_error error;
  struct zps_coordinator_call *next;
};

struct zps_coordinator_asker;
struct zps_coordinator_stats {
  uv_timer_t timer;                     /* until servers may be asked again */
  bool is_asking;                       /* the servers, which have not all answered */
  unsigned n_shared;                    /* requests that the last answer went to */
  uint64_t begun_ns;                    /* when they were last asked */
  struct zps_coordinator_asker *askers; /* requests that wait for an answer */
};

struct zps_coordinator_following;
struct zps_store_backend;

struct zps_coordinator {
  struct zps_coordinator_config config;
  struct zps_members *members;
  struct zps_token_keys token_keys;
  char *subnets;                               /* networks for gradients; NULL: none are known */
  uint64_t incarnation;                        /* of what it knows: 0 is none */
  struct zps_store *store;                     /* state.c; NULL: nothing is kept */
  char *cluster, *state_dir;                   /* NULL: there is none */
  struct zps_coordinator_following *following; /* follow.c; NULL: there is only this coordinator */
  size_t compact_at;                           /* bytes of the journal */
  bool holds, broken; /* what is written is held back, until the state is durable; it never will be */
  uv_prepare_t before;
  uv_check_t after;
  struct zps_coordinator_stats stats;
  struct zps_rpc_listener *listener, *socket, *own; /* own: config.own_socket */
  uv_timer_t heartbeat, deadline;
  struct zps_coordinator_conn *conns;
  unsigned n_conns;
  struct zps_slots slots[2];         /* of these; [1]: the reserved ones (admission.c) */
  unsigned depth;                    /* inside the membership module */
  struct zps_coordinator_call *late; /* answers that came meanwhile, last first */
  uint64_t started_ns;
  struct zps_silence silence; /* of clients */
  unsigned n_handles;         /* not yet closed */
  bool draining, closing;
};

/* events.c */

/* Around every event: the membership module is not entered twice. zps_coordinator_leave() handles answers that came in
 * between and arms the deadline timer. */
void zps_coordinator_enter(struct zps_coordinator *coordinator);
void zps_coordinator_leave(struct zps_coordinator *coordinator);
/* Its silence counts from now on. */
void zps_coordinator_watch(struct zps_coordinator_conn *conn);
/* Its process does not do its part: it is lost, and its connection ends. */
void zps_coordinator_expel(struct zps_coordinator_conn *conn, const char *reason);
/* It was let in, as a server or a rank of a job: its silence counts, and what it tells may be long. */
void zps_coordinator_let_in(struct zps_coordinator_conn *conn);

/* state.c */
zps_err_t zps_coordinator_state_open(struct zps_coordinator *coordinator, const struct zps_coordinator_config *config,
                                     struct zps_error *error) ZPS_MUSTCHECK;
/* The backend is consumed. */
zps_err_t zps_coordinator_state_load(struct zps_coordinator *coordinator, struct zps_store_backend *backend,
                                     struct zps_error *error) ZPS_MUSTCHECK;
/* Nothing leaves any more, and the process is told to end. */
void zps_coordinator_break(struct zps_coordinator *coordinator, const struct zps_error *error);
void zps_coordinator_note(void *ctx, const struct zps_member_note *note);
/* Two handles from here on, `before` and `after`. */
void zps_coordinator_state_start(struct zps_coordinator *coordinator, uv_loop_t *loop);
void zps_coordinator_state_save(struct zps_coordinator *coordinator);
void zps_coordinator_state_fini(struct zps_coordinator *coordinator);

/* follow.c: clients are refused until this coordinator leads; then it loads the state. */
zps_err_t zps_coordinator_follow(struct zps_coordinator *coordinator, uv_loop_t *loop,
                                 const struct zps_coordinator_etcd *etcd, struct zps_error *error) ZPS_MUSTCHECK;
/* Breaks one whose lease is over. */
void zps_coordinator_check_lease(struct zps_coordinator *coordinator);
void zps_coordinator_follow_stop(struct zps_coordinator *coordinator);

/* admission.c */

/* How long a line of a client may be that has not been let in yet. */
size_t zps_coordinator_first_lines(enum zps_conn_role role);
/* Whether one more connection may stay open, perhaps in the place of an idle one, which is closed. ZPS_ERR_AGAIN: not
 * now, and why. */
zps_err_t zps_coordinator_admit(struct zps_coordinator *coordinator, const struct zps_rpc_conn *rpc,
                                enum zps_conn_role role, struct zps_error *error) ZPS_MUSTCHECK;
/* Takes the connection's slot, which its end leaves. False: there is no memory. */
bool zps_coordinator_take_slot(struct zps_coordinator_conn *conn);
/* A slot that was not taken is left alone. */
void zps_slots_leave(struct zps_slot *slot);
/* Whether the client may name this address for gradients; else `error` says why not. */
zps_err_t zps_coordinator_may_name(const struct zps_coordinator_conn *conn, const struct zps_net_info *fabric,
                                   struct zps_error *error) ZPS_MUSTCHECK;
/* identity.c: whether the client's certificate lets it be the server of this name; else `error` says why not. */
zps_err_t zps_coordinator_may_serve(const struct zps_coordinator_conn *conn, const char *name,
                                    struct zps_error *error) ZPS_MUSTCHECK;
/* Whether its client has neither said that it lives, nor waits for anything, nor has asked anything for a long time. */
bool zps_coordinator_is_idle(const struct zps_coordinator_conn *conn, uint64_t now_ns);
/* How long its client may take to come back before it is lost: the connection has ended, with the code that
 * zps_rpc_handler's on_close() tells. 0: it is lost at once. */
uint64_t zps_coordinator_grace_ms(const struct zps_coordinator_conn *conn, zps_err_t code);
/* Says, once a second at most, that this process has no descriptor left for one more connection. */
void zps_coordinator_check_descriptors(void);

/* identity.c: whether the client may change what concerns others, as far as the way that it has come says; else `error`
 * says why not, and `what` is refused. */
zps_err_t zps_coordinator_is_own(const struct zps_coordinator_conn *conn, const char *what,
                                 struct zps_error *error) ZPS_MUSTCHECK;
/* methods.c */
void zps_coordinator_message(void *ctx, struct zps_rpc_conn *rpc, const char *method, const zps_json *params,
                             struct zps_rpc_request *request);
/* calls.c: calls a server now, or when its connection has room. */
void zps_coordinator_call_server(const struct zps_action *action);
/* Sends what waits for this server, as far as there is room. */
void zps_coordinator_flush(struct zps_coordinator_conn *conn);
/* job.view. NULL: memory is short. */
zps_json *zps_coordinator_view_params(const struct zps_member_job *job, enum zps_view_reader reader);
zps_err_t zps_coordinator_send(void *ctx, const struct zps_outbox_call *call); /* of its outbox */
void zps_coordinator_dropped(void *ctx, const struct zps_outbox_call *call);   /* of its outbox */
/* There is no memory for what it is to hear, or has said, and nobody would say again. Over another connection a server
 * says which jobs it has, and hears which of them there are; a rank hears anew what it has not answered. */
void zps_coordinator_connect_anew(struct zps_coordinator_conn *conn, const struct zps_error *why);
/* actions.c */
void zps_coordinator_act(void *ctx, const struct zps_action *action);
/* tables.c: results of the admin's methods, of which a viewer sees its part; NULL when memory is short. */
typedef zps_json *zps_table_fn(const struct zps_coordinator *coordinator, const struct zps_viewer *viewer);
zps_table_fn zps_coordinator_status, zps_coordinator_members, zps_coordinator_jobs_table, zps_coordinator_tensors;
zps_table_fn zps_coordinator_security; /* security.c */
/* What was told to drain, with the jobs that it has, and which of them stay; and what drains no longer. */
zps_json *zps_coordinator_drained(const struct zps_coordinator *coordinator, const struct zps_member_server *server);
zps_json *zps_coordinator_undrained(const struct zps_member_server *server);
/* Places jobs anew, those of this name or, where it is NULL, all; the table says what follows for each. */
zps_err_t zps_coordinator_rebalance(struct zps_coordinator *coordinator, const char *job, zps_json **table_p,
                                    struct zps_error *error) ZPS_MUSTCHECK;
zps_json *zps_coordinator_kicked(const struct zps_member_kicked *kicked);
/* tables.c: rows of `stats` from reports of ranks, as far as there is room. */
zps_json *zps_coordinator_tensor_tallies(const struct zps_coordinator *coordinator, struct zps_room *room,
                                         unsigned n_later);
zps_json *zps_coordinator_rank_tallies(const struct zps_coordinator *coordinator, struct zps_room *room,
                                       unsigned n_later);
/* Adds rounds in flight between ranks to `rows`. */
zps_json *zps_coordinator_peer_rounds(const struct zps_coordinator *coordinator, zps_json *rows, struct zps_room *room,
                                      unsigned n_later);
/* stats.c: asks every server, then answers, with what the viewer sees. */
void zps_coordinator_stats_fini(struct zps_coordinator *coordinator);
void zps_coordinator_stats(struct zps_coordinator *coordinator, const struct zps_viewer *viewer,
                           struct zps_rpc_request *request);

#endif
