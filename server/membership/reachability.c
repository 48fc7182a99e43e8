/*
 * Ranks that cannot reach servers of their job over the data plane, though the coordinator can reach both. Reports are
 * collected for 0.5 s, since a process that is cut off loses its links one by one. Then one process is judged cut off:
 * a server that most ranks report (one rank is enough when the server's own connection is gone too, or when the rank
 * reaches most servers); else a rank that reports most other servers; else every reported server. Servers leave this
 * job, and no other. A rank is lost.
 *
 * A network is repaired without a word to anybody, so the job asks such a server to take a place again after a pause.
 * The pause doubles each time that the server has to leave. It is short again once the server has stayed for
 * PAUSE_MAX_NS.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/membership/members_impl.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/log.h"

#define GATHER_NS (ZPS_NS_PER_S / 2)
#define PAUSE_MIN_NS (5 * ZPS_NS_PER_S)
#define PAUSE_MAX_NS (300 * ZPS_NS_PER_S)

/* ------------------------------------------------------------ reports */

static bool misses(const struct zps_member_job *job, uint32_t rank, uint32_t position) {
  return job->ranks[rank]->state == ZPS_RANK_IN && zps_view_server(&job->view, position) &&
         (job->ranks[rank]->misses[position / 64] >> position % 64 & 1);
}

static bool any_missed(const struct zps_member_job *job) {
  for (uint32_t r = 0; r < job->world; r++)
    for (uint32_t i = 0; i < job->view.n_places; i++)
      if (misses(job, r, i)) return true;
  return false;
}

/* Else the rank speaks of the server that had the place before. */
static bool knows(const struct zps_member_job *job, const struct zps_member_rank *rank, uint32_t position) {
  return !zps_member_map_is_open(job) || rank->mapped_epoch >= job->view.places[position].since;
}

zps_err_t zps_members_suspect(struct zps_member_client *client, const struct zps_job_suspects *suspects,
                              struct zps_error *error) {
  struct zps_member_job *const job = client->job;
  const zps_err_t err = zps_members_running(job, suspects->job_id, error);
  if (err) return err;
  for (uint32_t i = 0; i < suspects->n_servers; i++)
    if (suspects->servers[i] >= job->view.n_places)
      return zps_fail(error, ZPS_ERR_INVALID, "job '%s': rank %u suspects server %u; the job has servers 0 to %u",
                      job->name, client->rank, suspects->servers[i], job->view.n_places - 1);
  struct zps_member_rank *const rank = job->ranks[client->rank];
  memset(rank->misses, 0, sizeof rank->misses);
  for (uint32_t i = 0; i < suspects->n_servers; i++) {
    const uint32_t position = suspects->servers[i];
    if (knows(job, rank, position)) rank->misses[position / 64] |= 1ull << position % 64;
  }
  if (suspects->n_servers > 0) snprintf(job->missed_why, sizeof job->missed_why, "%s", suspects->why);
  job->any_missed = any_missed(job);
  if (!job->any_missed) job->missed_due_ns = 0;
  return ZPS_OK;
}

void zps_members_reports_forget(const struct zps_member_job *job, uint32_t position) {
  for (uint32_t r = 0; r < job->world; r++) job->ranks[r]->misses[position / 64] &= ~(1ull << position % 64);
}

/* ------------------------------------------------------------ the verdict */

struct verdict {
  uint32_t n_ranks, n_servers;        /* In the job, and not judged cut off. */
  uint32_t by_ranks[ZPS_SERVERS_MAX]; /* For each server, the ranks that miss it. */
  bool is_cut[ZPS_SERVERS_MAX];
};

static bool is_most(uint32_t n, uint32_t of) {
  return n >= 2 && 2 * n > of;
}

static void count(const struct zps_member_job *job, struct verdict *verdict) {
  *verdict = (struct verdict){0};
  for (uint32_t r = 0; r < job->world; r++) {
    verdict->n_ranks += job->ranks[r]->state == ZPS_RANK_IN;
    for (uint32_t i = 0; i < job->view.n_places; i++) verdict->by_ranks[i] += misses(job, r, i);
  }
  for (uint32_t i = 0; i < job->view.n_places; i++) {
    const struct zps_member_server *const server = zps_view_server(&job->view, i);
    const uint32_t n = verdict->by_ranks[i];
    verdict->is_cut[i] = server && (is_most(n, verdict->n_ranks) || (!server->client && n > 0));
    verdict->n_servers += server && !verdict->is_cut[i];
  }
}

/* Of the servers that are not cut off from most ranks. */
static uint32_t count_missed(const struct zps_member_job *job, const struct verdict *verdict, uint32_t rank) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < job->view.n_places; i++) n += !verdict->is_cut[i] && misses(job, rank, i);
  return n;
}

/* Ranks speak of one lost server at different times. One that reaches most servers is not cut off itself, so the server
 * that it cannot reach counts against no other rank. */
static void believe(const struct zps_member_job *job, struct verdict *verdict) {
  const struct verdict before = *verdict;
  for (uint32_t r = 0; r < job->world; r++) {
    const uint32_t n = count_missed(job, &before, r);
    if (n == 0 || is_most(n, before.n_servers)) continue;
    for (uint32_t i = 0; i < job->view.n_places; i++) {
      if (verdict->is_cut[i] || !misses(job, r, i)) continue;
      verdict->is_cut[i] = true;
      verdict->n_servers--;
    }
  }
}

/* ------------------------------------------------------------ servers that are cut off */

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

/* Without memory the server is asked again as any other one. */
static void keep_out(struct zps_member_job *job, const struct zps_member_server *server, uint32_t rank,
                     uint32_t n_ranks, uint64_t now_ns) {
  struct zps_member_cutoff *cutoff = find(job, server);
  if (!cutoff) cutoff = add(job, server);
  if (!cutoff) return;
  cutoff->wait_ns = next_pause(cutoff, now_ns);
  cutoff->is_out = true;
  cutoff->rank = rank;
  cutoff->n_ranks = n_ranks;
  cutoff->out_ns = now_ns;
  cutoff->again_ns = now_ns + cutoff->wait_ns;
  snprintf(cutoff->why, sizeof cutoff->why, "%s", job->missed_why);
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

/* ------------------------------------------------------------ settled */

static void lose_servers(const struct zps_members *members, struct zps_member_job *job, const struct verdict *verdict) {
  bool is_first = true; /* It is the cause that is told. */
  for (uint32_t i = 0; i < job->view.n_places; i++) {
    char reason[ZPS_SUSPECT_WHY_MAX + 80];
    uint32_t rank = 0;
    if (verdict->by_ranks[i] == 0) continue;
    while (!misses(job, rank, i)) rank++;
    snprintf(reason, sizeof reason, "rank %u cannot reach it over the data plane: %s", rank, job->missed_why);
    keep_out(job, zps_view_server(&job->view, i), rank, verdict->by_ranks[i], members->now_ns);
    zps_members_place_cut_off(job, i, is_first ? reason : NULL);
    zps_members_reports_forget(job, i);
    is_first = false;
  }
  zps_log_about(.server = job->map.server);
  zps_log_failure(ZPS_LOG_WARN, &job->map.why);
}

/* The rank that is cut off; NULL: servers are. */
static struct zps_member_rank *decide(const struct zps_members *members, struct zps_member_job *job,
                                      struct zps_error *why) {
  struct verdict verdict;
  count(job, &verdict);
  believe(job, &verdict);
  for (uint32_t r = 0; r < job->world; r++) {
    const uint32_t n = count_missed(job, &verdict, r);
    if (!is_most(n, verdict.n_servers)) continue;
    zps_fail(why, ZPS_ERR_PEER_LOST, "it is cut off from %u of %u servers over the data plane: %s", n,
             verdict.n_servers, job->missed_why);
    return job->ranks[r];
  }
  lose_servers(members, job, &verdict);
  return NULL;
}

uint64_t zps_members_reachability_settle(const struct zps_members *members, struct zps_member_job *job,
                                         struct zps_member_rank **rank_p, struct zps_error *why) {
  *rank_p = NULL;
  if (!job->any_missed || job->state != ZPS_JOB_RUNNING) return ZPS_NEVER;
  job->any_missed = any_missed(job); /* Servers or ranks may be gone meanwhile. */
  if (job->any_missed && job->missed_due_ns == 0) job->missed_due_ns = members->now_ns + GATHER_NS;
  if (job->any_missed && members->now_ns < job->missed_due_ns) return job->missed_due_ns;
  job->missed_due_ns = 0;
  if (job->any_missed) *rank_p = decide(members, job, why);
  job->any_missed = false;
  return ZPS_NEVER;
}
