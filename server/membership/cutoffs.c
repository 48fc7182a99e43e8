/*
 * Servers that had to leave a running job, since ranks of it could not reach them over the data plane. A network is
 * repaired without a word to anybody, so the job asks such a server to take a place again after a pause. The pause
 * doubles each time that the server has to leave. It is short again once the server has stayed for PAUSE_MAX_NS.
 */
#include <stdio.h>
#include <stdlib.h>

#include "server/membership/members_impl.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/log.h"

#define PAUSE_MIN_NS (5 * ZPS_NS_PER_S)
#define PAUSE_MAX_NS (300 * ZPS_NS_PER_S)

static struct zps_member_cutoff *find(const struct zps_member_job *job, const struct zps_member_server *server) {
  struct zps_member_cutoff *cutoff = job->cutoffs;
  while (cutoff && cutoff->server != server->index) cutoff = cutoff->next;
  return cutoff;
}

const struct zps_member_cutoff *zps_member_job_cutoff(const struct zps_member_job *job,
                                                      const struct zps_member_server *server) {
  const struct zps_member_cutoff *const cutoff = find(job, server);
  return cutoff && cutoff->is_out ? cutoff : NULL;
}

static struct zps_member_cutoff *add(struct zps_member_job *job, const struct zps_member_server *server) {
  struct zps_member_cutoff *const cutoff = calloc(1, sizeof *cutoff);
  if (!cutoff) return NULL;
  cutoff->server = server->index;
  cutoff->next = job->cutoffs;
  job->cutoffs = cutoff;
  return cutoff;
}

static uint64_t next_pause(const struct zps_member_cutoff *cutoff, uint64_t now_ns) {
  const bool has_stayed = cutoff->in_ns && now_ns - cutoff->in_ns >= PAUSE_MAX_NS;
  if (cutoff->wait_ns == 0 || has_stayed) return PAUSE_MIN_NS;
  return cutoff->wait_ns < PAUSE_MAX_NS / 2 ? 2 * cutoff->wait_ns : PAUSE_MAX_NS;
}

void zps_members_cutoff_out(const struct zps_members *members, struct zps_member_job *job,
                            const struct zps_member_server *server, uint32_t rank, uint32_t n_ranks) {
  struct zps_member_cutoff *cutoff = find(job, server);
  if (!cutoff) cutoff = add(job, server);
  if (!cutoff) return; /* It is asked again as any other server is. */
  cutoff->wait_ns = next_pause(cutoff, members->now_ns);
  cutoff->is_out = true;
  cutoff->rank = rank;
  cutoff->n_ranks = n_ranks;
  cutoff->out_ns = members->now_ns;
  cutoff->again_ns = members->now_ns + cutoff->wait_ns;
  snprintf(cutoff->why, sizeof cutoff->why, "%s", job->suspicion.why);
  zps_log_about(.job = job->name, .server = server->name);
  zps_log_info("job '%s': server %u '%s' is asked to take a place again in %llu s", job->name, server->index,
               server->name, (unsigned long long)(cutoff->wait_ns / ZPS_NS_PER_S));
}

void zps_members_cutoff_in(const struct zps_members *members, const struct zps_member_job *job,
                           const struct zps_member_server *server) {
  struct zps_member_cutoff *const cutoff = find(job, server);
  if (!cutoff) return;
  cutoff->is_out = false;
  cutoff->in_ns = members->now_ns;
}

void zps_members_cutoff_gone(struct zps_member_job *job, const struct zps_member_server *server) {
  for (struct zps_member_cutoff **link = &job->cutoffs; *link; link = &(*link)->next) {
    struct zps_member_cutoff *const cutoff = *link;
    if (cutoff->server != server->index) continue;
    *link = cutoff->next;
    free(cutoff);
    return;
  }
}

void zps_members_cutoffs_pardon(const struct zps_members *members, const struct zps_member_server *server) {
  for (const struct zps_member_job *job = members->jobs; job; job = job->next) {
    struct zps_member_cutoff *const cutoff = find(job, server);
    if (cutoff) cutoff->wait_ns = cutoff->again_ns = 0;
  }
}

void zps_members_cutoffs_free(struct zps_member_cutoff *cutoffs) {
  while (cutoffs) {
    struct zps_member_cutoff *const cutoff = cutoffs;
    cutoffs = cutoff->next;
    free(cutoff);
  }
}
