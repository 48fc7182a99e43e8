/*
 * One look at everything, after every event: it reads the facts that events have written, and does what follows.
 * Nothing follows from an event in another way. So nothing can be forgotten, and no cause has a path of its own.
 */
#include <stdlib.h>

#include "common/base/log.h"
#include "server/membership/elastic.h"

/* Time writes facts as events do. */
static uint64_t expire(struct zps_members *members, struct zps_member_job *job) {
  zps_log_about(.job = job->name);
  uint64_t deadline_ns = zps_members_joins_expire(members, job);
  struct zps_member_rank *cut_off;
  struct zps_error why;
  zps_members_sooner(&deadline_ns, zps_members_reachability_settle(members, job, &cut_off, &why));
  if (cut_off) zps_members_rank_expel(members, job, cut_off, why.text);
  zps_members_view_change_expire(members, job);
  return deadline_ns;
}

/* Tensors first: a server that is to join must know them. A tensor that the places have let go of waits no longer. */
static uint64_t run(struct zps_members *members, struct zps_member_job *job) {
  uint64_t deadline_ns = zps_members_closes_settle(members, job), again_ns = ZPS_NEVER;
  zps_members_sooner(&deadline_ns, zps_members_groups_settle(members, job));
  zps_members_tensors_open(members, job);
  if (!zps_members_places_settle(members, job, &again_ns)) {
    zps_members_job_break(job, job->map.why.code, ZPS_NO_RANK, job->map.why.text);
    return deadline_ns;
  }
  zps_members_view_change_settle(members, job);
  zps_members_tensors_open(members, job);
  zps_members_tensors_notify(members, job);
  zps_members_sooner(&deadline_ns, again_ns);
  return deadline_ns;
}

/* May free the job. */
static uint64_t settle(struct zps_members *members, struct zps_member_job *job) {
  zps_log_about(.job = job->name);
  uint64_t deadline_ns = ZPS_NEVER;
  zps_members_job_begin(members, job);
  if (job->state == ZPS_JOB_RUNNING && !job->error.code && job->n_joined > 0)
    zps_members_sooner(&deadline_ns, run(members, job));
  if (!zps_members_job_end(members, job)) zps_members_sooner(&deadline_ns, zps_members_job_closing(members, job));
  return deadline_ns;
}

uint64_t zps_members_jobs_settle(struct zps_members *members) {
  uint64_t deadline_ns = ZPS_NEVER;
  for (struct zps_member_job *job = members->jobs, *next; job; job = next) {
    next = job->next;
    zps_members_sooner(&deadline_ns, settle(members, job));
  }
  return deadline_ns;
}

/* A generation that begins is a job to settle, too. */
uint64_t zps_members_settle(struct zps_members *members) {
  zps_log_about_else();
  uint64_t deadline_ns;
  do {
    deadline_ns = zps_members_connections_expire(members);
    for (struct zps_member_job *job = members->jobs; job; job = job->next)
      zps_members_sooner(&deadline_ns, expire(members, job));
    zps_members_sooner(&deadline_ns, zps_members_jobs_settle(members));
  } while (zps_members_elastic_settle(members, &deadline_ns));
  for (struct zps_member_job *job = members->jobs; job; job = job->next)
    zps_members_sooner(&deadline_ns, zps_members_view_change_deadline(members, job));
  return deadline_ns;
}

uint64_t zps_members_tick(struct zps_members *members, uint64_t now_ns) {
  members->now_ns = now_ns;
  return zps_members_settle(members);
}

void zps_members_destroy(struct zps_members *members) {
  if (!members) return;
  while (members->jobs) { /* their ranks are away */
    struct zps_member_job *job = members->jobs;
    members->jobs = job->next;
    zps_members_job_free(job);
  }
  while (members->elastics) zps_members_elastic_destroy(members, members->elastics);
  for (unsigned i = 0; i < members->n_servers; i++) free(members->servers[i]);
  free(members->servers);
  free(members->weights);
  zps_history_fini(&members->history);
  free(members);
}
