/* Shared by client.c (callers' side) and client_thread.c (the loop's side). */
#ifndef ZPS_CONTROL_CLIENT_INTERNAL_H
#define ZPS_CONTROL_CLIENT_INTERNAL_H

#include <pthread.h>

#include "common/base/rng.h"
#include "common/control/addresses.h"
#include "common/control/client.h"
#include "common/control/rpc.h"
#include "common/control/silence.h"

#define ZPS_CLIENT_RETRY_MS 100u
#define ZPS_CLIENT_RETRY_MAX_MS 1000u
#define ZPS_CLIENT_ATTEMPT_MS 5000u
#define ZPS_CLIENT_WAITING_MS 2000u /* until the user hears that nobody answers */
#define ZPS_CLIENT_QUEUE_MAX 4096u  /* orders that wait for the connection; with so many, callers wait for room */

/* An order of another thread: a message for the loop to send. Nobody waits for a notification. */
struct zps_client_order {
  struct zps_client_order *next;
  char *method;
  zps_json *params; /* the loop's, from when the order was given */
  bool is_call;
  uint64_t timeout_ms, until_ns; /* until_ns: that the caller waits */
  uint64_t begun_ns, shorter_ms; /* shorter_ms: than it was then is the time that `params` give the peer */
  struct zps_client *client;
  bool done, abandoned; /* abandoned: the caller has gone; the loop frees */
  zps_json *result;
  struct zps_error error;
};

enum zps_client_phase {
  ZPS_CLIENT_CONNECTING,
  ZPS_CLIENT_CONNECTED,
  ZPS_CLIENT_AWAY, /* without a connection, until there is another one */
  ZPS_CLIENT_LOST,
  ZPS_CLIENT_STOPPED
};

struct zps_client {
  /* Guarded by `lock`. */
  pthread_mutex_t lock;
  pthread_cond_t changed;
  enum zps_client_phase phase;
  struct zps_error why; /* AWAY, LOST, STOPPED */
  struct zps_client_order *orders, **orders_tail;
  unsigned n_orders;   /* of `orders`, and of those that the thread has taken and not sent */
  bool is_sending;     /* The thread has taken orders, and sends them. */
  bool stop, finished; /* finished: the thread will not touch this any more */
  bool renew;          /* the connection is to end */
  bool abandoned;      /* nobody waits for the thread: it frees the client */
  uint64_t heartbeat_ms, dead_ms;

  /* The thread's own. */
  pthread_t thread;
  uv_loop_t loop;
  uv_async_t wake;
  uv_timer_t retry, heartbeat;
  bool stopping;
  struct zps_rpc_conn *conn;
  uint64_t deadline_ns, beat_ms, beat_dead_ms; /* the latter two: what `heartbeat` and `silence` were set to */
  uint64_t begun_ns;                           /* of zps_client_open() */
  bool waiting_told;                           /* on_waiting was called */
  bool has_answered;                           /* a coordinator did, in the attempts so far, if only to refuse */
  struct zps_silence silence;
  uint64_t retry_ms;        /* AWAY */
  uint64_t refusal_told_ns; /* AWAY: when a refusal is worth another line of the log */
  struct zps_rng jitter;
  bool has_held;                                /* some of `orders` wait for answers to earlier calls */
  struct zps_client_order *again, **again_tail; /* calls that were under way when the connection was lost */
  struct zps_client_handler handler;
  struct zps_addresses addresses;
  char leader[ZPS_ADDRESS_TEXT_MAX]; /* the leader that the last attempt named; empty: none */
  char address[300], role[32];       /* address: all, as they were given */
};

/* The thread's main function; `arg` is the client. */
void *zps_client_run(void *arg);
/* On the thread, or before it runs: ends the loop. */
void zps_client_close_handles(struct zps_client *client);
/* The loop was told to look: orders, heartbeats, the end. */
void zps_client_on_wake(uv_async_t *wake);
/* On the thread: ends the connection, if that was asked for, so that another one is made. While there is none, or this
 * process is still to say who it is, that waits. */
void zps_client_renew_now(struct zps_client *client);
/* On the thread: sends what waits. */
void zps_client_run_orders(struct zps_client *client);
void zps_client_set_phase(struct zps_client *client, enum zps_client_phase phase, zps_err_t code, const char *text);
/* For good. */
void zps_client_lose(struct zps_client *client, zps_err_t code, const char *reason);
/* Connects to the present address, within the part of the time until client->deadline_ns that is due to it. */
void zps_client_try_connect(struct zps_client *client);

/* client_away.c, on the thread. */
static inline bool zps_client_resumes(const struct zps_client *client) {
  return client->handler.on_resumed && !client->stopping;
}
/* The connection is gone. */
void zps_client_go_away(struct zps_client *client, const char *reason);
/* Resumes on a new connection: first the call that on_resume() gives. */
void zps_client_come_back(struct zps_client *client);
/* Tries to connect again after a pause. The pause is random, so that clients do not come all at once. */
void zps_client_retry(struct zps_client *client);
/* A call that was under way: to be sent again. */
void zps_client_order_resend(struct zps_client *client, struct zps_client_order *order);
void zps_client_destroy(struct zps_client *client);
void zps_client_order_free(struct zps_client_order *order);

#endif
