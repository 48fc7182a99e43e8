#include "server/coordinator/viewer.h"

#include "common/control/rpc.h"

struct zps_viewer zps_viewer_of(const struct zps_rpc_conn *rpc) {
  const unsigned certified = zps_rpc_conn_certified(rpc);
  return (struct zps_viewer){.sees_all = certified == 0 || certified & ZPS_TLS_ADMIN,
                             .origin = zps_rpc_conn_owner(rpc)};
}

static bool is_own(const struct zps_viewer *viewer, const struct zps_member_server *server) {
  return server && server->client && zps_origin_is(&server->client->origin, &viewer->origin);
}

bool zps_viewer_sees_job(const struct zps_viewer *viewer, const struct zps_member_job *job) {
  if (viewer->sees_all || zps_origin_is(&job->origin, &viewer->origin)) return true;
  for (uint32_t r = 0; r < job->world; r++)
    if (job->ranks[r] && zps_origin_is(&job->ranks[r]->origin, &viewer->origin)) return true;
  for (uint32_t i = 0; i < job->view.n_places; i++)
    if (is_own(viewer, zps_view_server(&job->view, i))) return true;
  return false;
}

bool zps_viewer_sees_server(const struct zps_viewer *viewer, const struct zps_members *members,
                            const struct zps_member_server *server) {
  if (viewer->sees_all || is_own(viewer, server)) return true;
  const struct zps_member_job *job = zps_viewer_job_first(viewer, members);
  while (job && !zps_member_job_has(job, server)) job = zps_viewer_job_next(viewer, job);
  return job;
}

const struct zps_member_job *zps_viewer_job_first(const struct zps_viewer *viewer, const struct zps_members *members) {
  const struct zps_member_job *const first = zps_members_job_first(members);
  return !first || zps_viewer_sees_job(viewer, first) ? first : zps_viewer_job_next(viewer, first);
}

const struct zps_member_job *zps_viewer_job_next(const struct zps_viewer *viewer, const struct zps_member_job *job) {
  do {
    job = job->next;
  } while (job && !zps_viewer_sees_job(viewer, job));
  return job;
}
