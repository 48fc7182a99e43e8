/*
 * A control-plane client for programs without a loop of their own (the worker library, zenpsctl): a thread that runs
 * the loop, with calls that block their caller up to a deadline. Thread-safe.
 */
#ifndef ZPS_CONTROL_CLIENT_H
#define ZPS_CONTROL_CLIENT_H

#include "common/control/json.h"
#include "common/control/silence.h"
#include "common/tls/tls.h"

struct zps_client;
struct zps_client_order;

struct zps_client_handler {
  void *ctx;
  struct zps_tls *tls; /* over TCP TLS is spoken, as this process; NULL: none. The client holds it for itself */
  /* Nobody listens at an address of this host, and no other is in the list: zps_client_open() gives up after so long.
   * 0: at its deadline. */
  uint64_t refused_ms;
  /* Once, where zps_client_open() has tried for 2 s: why the last attempt failed. May be NULL. On the client's thread.
   */
  void (*on_waiting)(void *ctx, const char *reason);
  /* On the client's thread. `params` is borrowed during the call. */
  void (*on_notify)(void *ctx, const char *method, const zps_json *params);
  /* The connection was lost, not closed by us, and there will be no other. */
  void (*on_lost)(void *ctx, const char *reason);
  /* Where on_resumed is set, a lost connection is made anew, as often as it takes. Meanwhile calls and notifications
   * wait, each call until its deadline; one that was under way is sent again, with the member "again" true, since it
   * may have been carried out. All on the client's thread. on_away: it was lost. on_resume (may be NULL): the first
   * call over the new one, ahead of all others; NULL: none is needed. on_resumed: its answer, or `error`; `result` is
   * NULL where there was no call. Another code than ZPS_OK gives up: on_lost is called, with error->text. */
  void (*on_away)(void *ctx, const char *reason);
  zps_json *(*on_resume)(void *ctx, const char **method_p);
  zps_err_t (*on_resumed)(void *ctx, const zps_json *result, const struct zps_error *error);
  /* Called ahead of each heartbeat, to send other periodic messages by zps_client_notify(). May be NULL. */
  void (*on_beat)(void *ctx);
  /* A heartbeat of the peer has come. May be NULL. */
  void (*on_heartbeat)(void *ctx, const zps_json *params);
  /* The next heartbeat's parameters, an object; NULL for none. `silence` is the peer's. May be NULL. */
  zps_json *(*beat)(void *ctx, const struct zps_silence *silence, uint64_t now_ns);
};

/* Connects and says hello; until the deadline names that are not resolved, connections that are refused and hellos that
 * the network ends are tried again: servers may come up later than clients. ZPS_ERR_CONNECT where there was none by
 * then, ZPS_ERR_TIMEOUT where nobody answered. `address` may be a list (addresses.h): the one that answers, and leads,
 * is the peer. A connection that is made anew goes through the list again, from that one on. */
zps_err_t zps_client_open(const char *address, const char *role, uint64_t timeout_ms,
                          const struct zps_client_handler *handler, struct zps_client **client_p,
                          struct zps_error *error) ZPS_MUSTCHECK;
/* Notifications already sent still leave, if the peer takes them within a second. Calls of other threads fail with
 * ZPS_ERR_CLOSED, but must have returned before. Must not be called from the client's own thread. NULL is allowed. */
void zps_client_close(struct zps_client *client);
/* Waits for the answer. `params` is consumed; *result_p (may be NULL) is the caller's to unref. Must not be called from
 * the client's own thread. */
zps_err_t zps_client_call(struct zps_client *client, const char *method, zps_json *params, uint64_t timeout_ms,
                          zps_json **result_p, struct zps_error *error) ZPS_MUSTCHECK;
/* A call in two steps, so that several calls are on their way at a time. They leave, and are carried out, in the order
 * of their starts. *call_p is for one zps_client_call_wait(), which frees it. */
zps_err_t zps_client_call_start(struct zps_client *client, const char *method, zps_json *params, uint64_t timeout_ms,
                                struct zps_client_order **call_p, struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_client_call_wait(struct zps_client *client, struct zps_client_order *call, zps_json **result_p,
                               struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_client_notify(struct zps_client *client, const char *method, zps_json *params) ZPS_MUSTCHECK;
/* Waits until the notifications so far have left this process, for `timeout_ms` at most. Returns at once without a
 * connection, or on the client's own thread. */
void zps_client_flush(struct zps_client *client, uint64_t timeout_ms);
/* There was no memory for something that the peer has said, or for what it is to hear: the connection is made anew, and
 * the peer says what counts once more (on_resume). Only where on_resumed is set. Any thread. */
void zps_client_renew(struct zps_client *client);
/* Starts sending "heartbeat" notifications every `interval_ms`, and calls on_lost when the peer was not heard of for
 * `dead_ms`. */
void zps_client_heartbeat(struct zps_client *client, uint64_t interval_ms, uint64_t dead_ms);

#endif
