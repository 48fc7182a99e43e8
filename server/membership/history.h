/* The last jobs that have ended, and why. When it is full, the tenant with the most jobs loses its oldest. */
#ifndef ZPS_SERVER_MEMBERSHIP_HISTORY_H
#define ZPS_SERVER_MEMBERSHIP_HISTORY_H

#include "server/membership/member_tables.h"

enum { ZPS_HISTORY_MAX = 256 };

struct zps_history_record {
  char name[ZPS_NAME_MAX + 1];
  uint64_t job_id;
  struct zps_origin origin, tenant; /* Of the client that began it. */
  uint32_t world, n_left, n_lost, n_servers, n_places, n_servers_lost, n_tensors;
  char lost_servers[ZPS_LOST_SERVERS_SIZE]; /* by name */
  uint32_t epoch;                           /* 0: it never had servers */
  uint64_t started_ms, ended_ms;            /* Since 1970, UTC. */
  uint64_t ran_ms;                          /* How long it ran. Of a job that never ran: how long it waited. */
  uint64_t rounds, bytes_out, bytes_in;     /* last report of its ranks */
  struct zps_error cause;                   /* The first one; code ZPS_OK: all ranks left in peace. */
};

struct zps_history {
  struct zps_history_record *records[ZPS_HISTORY_MAX]; /* the oldest first */
  uint64_t n; /* jobs that have ended, also those that are forgotten */
};

/* The record of a job that ends now, with its cause. */
struct zps_history_record zps_history_of(const struct zps_member_job *job, const struct zps_error *cause,
                                         uint64_t now_ns, uint64_t utc_ms);
/* Copied. ZPS_ERR_NOMEM: it is not kept, and nothing else has changed. */
zps_err_t zps_history_add(struct zps_history *history, const struct zps_history_record *record) ZPS_MUSTCHECK;
unsigned zps_history_len(const struct zps_history *history);
/* The oldest that is remembered is number 0. */
const struct zps_history_record *zps_history_at(const struct zps_history *history, unsigned index);
/* Returns `err`. Where it is remembered how the job ended, that is what the error says; else it stays as it is. */
zps_err_t zps_history_tell(const struct zps_history *history, uint64_t job_id, zps_err_t err,
                           struct zps_error *error) ZPS_MUSTCHECK;
void zps_history_fini(struct zps_history *history);

#endif
