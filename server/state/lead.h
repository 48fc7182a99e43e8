/*
 * The leader among several processes: the one whose key PREFIX/leader is in etcd. A lease keeps the key, and this
 * process prolongs it. A process that has lost the lead never leads again: it ends. While etcd does not answer, the
 * leader goes on for as long as its lease lasts by its own clock. Its writes have a condition of their own
 * (store_etcd.h): a process that was stopped, and whose clock is late, writes nothing.
 *
 * struct zps_lead is one process's part, driven by its caller step by step; zps_lead_start() does so in a thread.
 */
#ifndef ZPS_SERVER_STATE_LEAD_H
#define ZPS_SERVER_STATE_LEAD_H

#include "server/state/etcd.h"

#define ZPS_LEADER_MAX 272u /* an address, with its NUL */

enum zps_lead_state { ZPS_LEAD_FOLLOWS, ZPS_LEAD_LEADS, ZPS_LEAD_LOST };

struct zps_lead_config {
  const char *prefix, *address; /* address: where clients find this process. Borrowed while it is used */
  uint64_t lease_s;
};

/* What is known, after a step. */
struct zps_lead_view {
  enum zps_lead_state state;
  char leader[ZPS_LEADER_MAX]; /* FOLLOWS: who leads; "": nobody, or it is not known */
  uint64_t revision;           /* LEADS: that made the key */
  uint64_t until_ns;           /* LEADS: then the lease is over, unless it is prolonged before */
  struct zps_error away;       /* etcd does not answer; code ZPS_OK: it does. LOST: why */
};

struct zps_lead {
  struct zps_lead_config config;
  struct zps_etcd_transport *transport;
  struct zps_lead_view view;
  uint64_t lease, lease_until_ns; /* of this process; 0: none */
};

void zps_lead_init(struct zps_lead *lead, const struct zps_lead_config *config, struct zps_etcd_transport *transport);
/* Looks, tries to lead, or prolongs the lease. Returns when to call it again, ZPS_NEVER when it is lost. */
uint64_t zps_lead_step(struct zps_lead *lead, uint64_t now_ns);
/* Gives the key back, so that another process leads at once. */
void zps_lead_resign(struct zps_lead *lead);

/* Leads in a thread of its own. `changed` is called on that thread after each step that has changed the view. Strings
 * of the config are copied; the transport is closed in the end, also after a failure. */
struct zps_lead_thread;
zps_err_t zps_lead_start(const struct zps_lead_config *config, struct zps_etcd_transport *transport,
                         void (*changed)(void *ctx), void *ctx, struct zps_lead_thread **thread_p,
                         struct zps_error *error) ZPS_MUSTCHECK;
void zps_lead_look(struct zps_lead_thread *thread, struct zps_lead_view *view_p);
/* Waits for the thread, and resigns if it leads: for some seconds at most. NULL is allowed. */
void zps_lead_stop(struct zps_lead_thread *thread);

#endif
