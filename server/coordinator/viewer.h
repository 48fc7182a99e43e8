/*
 * What tables show to whom. An administrator sees everything, and so does everybody where there are no certificates. A
 * rank's certificate sees the jobs that it has ranks of, a server's the jobs that it serves; both see the servers of
 * these jobs.
 */
#ifndef ZPS_SERVER_COORDINATOR_VIEWER_H
#define ZPS_SERVER_COORDINATOR_VIEWER_H

#include "server/membership/members.h"

struct zps_rpc_conn;

struct zps_viewer {
  bool sees_all;
  struct zps_origin origin; /* of its certificate */
  bool wants_ended;         /* of jobs: also those that have ended */
};

struct zps_viewer zps_viewer_of(const struct zps_rpc_conn *rpc);
bool zps_viewer_sees_job(const struct zps_viewer *viewer, const struct zps_member_job *job);
bool zps_viewer_sees_server(const struct zps_viewer *viewer, const struct zps_members *members,
                            const struct zps_member_server *server);
/* The first job that it sees, and the next one: NULL behind the last. */
const struct zps_member_job *zps_viewer_job_first(const struct zps_viewer *viewer, const struct zps_members *members);
const struct zps_member_job *zps_viewer_job_next(const struct zps_viewer *viewer, const struct zps_member_job *job);

#endif
