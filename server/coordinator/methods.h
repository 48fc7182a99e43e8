/*
 * The calls and notifications of servers, ranks and administrators: a table for each of these. A function turns a
 * message into an event of the membership module, or into a table. methods.c finds the function, checks the caller's
 * rights, and keeps the record.
 *
 * For the coordinator's loop.
 */
#ifndef ZPS_COORDINATOR_METHODS_H
#define ZPS_COORDINATOR_METHODS_H

#include "server/coordinator/coordinator_impl.h"

#define ZPS_METHOD_ANY_ROLE (ZPS_CONN_SERVER | ZPS_CONN_WORKER | ZPS_CONN_CTL)

/* What a client calls, or notifies of. */
struct zps_method_msg {
  struct zps_coordinator_conn *conn;
  struct zps_members *members;
  struct zps_member_client *client;
  const zps_json *params;
  struct zps_rpc_request *request; /* NULL: a notification. */
  struct zps_error *error;
};

/* Returns ZPS_OK where the request is answered, or will be; else the answer is `msg->error`. */
typedef zps_err_t zps_method_fn(const struct zps_method_msg *msg);

/* What a method does for its caller. A caller that wants to be in and is refused is on record, as is what
 * administrators change. REGISTERS and CHANGES concern others as well: zps_coordinator_is_own() says who may. BEATS
 * writes no fact, so that nothing is settled after it: it comes from every member all the time. */
enum zps_method_entry {
  ZPS_METHOD_NO_ENTRY,
  ZPS_METHOD_REGISTERS,
  ZPS_METHOD_RETURNS,
  ZPS_METHOD_CHANGES,
  ZPS_METHOD_BEATS,
};

struct zps_method {
  const char *name; /* NULL behind the last of a table */
  int roles;
  bool notifies; /* it is no call: an error cannot be reported to the client */
  zps_method_fn *run;
  enum zps_method_entry entry;
  zps_table_fn *table; /* It answers with this table; `run` is NULL. */
};

extern const struct zps_method zps_methods_member[]; /* methods_member.c: of servers, and of all members */
extern const struct zps_method zps_methods_rank[];   /* methods_rank.c */
extern const struct zps_method zps_methods_admin[];  /* methods_admin.c */

/* Replies with `result`, which it takes; NULL: there was no memory for it. */
static inline ZPS_MUSTCHECK zps_err_t zps_coordinator_answer(const struct zps_method_msg *msg, zps_json *result) {
  if (!result) return zps_fail(msg->error, ZPS_ERR_NOMEM, "the coordinator has no memory to answer");
  zps_rpc_reply(msg->request, result);
  return ZPS_OK;
}

#endif
