/*
 * Ranks that cannot reach servers of their job over the data plane, though the coordinator can reach both. Reports are
 * collected for 0.5 s, since a process that is cut off loses its links one by one. Then one process is judged cut off:
 * a server that most ranks report (one rank is enough when the server's own connection is gone too, or when the rank
 * reaches most servers); else a rank that reports most other servers; else every reported server. Servers leave this
 * job, and no other. A rank is lost.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/membership/members_impl.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/log.h"

#define GATHER_NS (ZPS_NS_PER_S / 2)

static bool make_room(struct zps_member_job *job) {
  struct zps_member_suspicion *const suspicion = &job->suspicion;
  if (!suspicion->pairs) suspicion->pairs = calloc((size_t)job->world * job->view.n_places, sizeof *suspicion->pairs);
  return suspicion->pairs;
}

static bool *row_of(const struct zps_member_job *job, uint32_t rank) {
  return job->suspicion.pairs + (size_t)rank * job->view.n_places;
}

/* A rank says so, of a server that the job has. */
static bool any_pair(const struct zps_member_job *job) {
  for (uint32_t r = 0; r < job->world; r++)
    for (uint32_t i = 0; job->ranks[r]->state == ZPS_RANK_IN && i < job->view.n_places; i++)
      if (zps_view_server(&job->view, i) && row_of(job, r)[i]) return true;
  return false;
}

/* Else the rank speaks of the server that had the place before. */
static bool knows(const struct zps_member_job *job, uint32_t rank, uint32_t position) {
  return !zps_member_map_is_open(job) || job->ranks[rank]->mapped_epoch >= job->view.places[position].since;
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
  if (suspects->n_servers == 0 && !job->suspicion.pairs) return ZPS_OK;
  if (!make_room(job))
    return zps_fail(error, ZPS_ERR_NOMEM, "job '%s': no memory for what rank %u suspects", job->name, client->rank);
  memset(row_of(job, client->rank), 0, job->view.n_places * sizeof *job->suspicion.pairs);
  for (uint32_t i = 0; i < suspects->n_servers; i++)
    row_of(job, client->rank)[suspects->servers[i]] = knows(job, client->rank, suspects->servers[i]);
  if (suspects->n_servers > 0) snprintf(job->suspicion.why, sizeof job->suspicion.why, "%s", suspects->why);
  job->suspicion.any = any_pair(job);
  if (!job->suspicion.any) job->suspicion.due_ns = 0;
  return ZPS_OK;
}

/* ------------------------------------------------------------ the verdict */

struct tally {
  uint32_t n_ranks, n_servers;        /* in the job, and not taken for cut off */
  uint32_t by_ranks[ZPS_SERVERS_MAX]; /* of each server, how many ranks say so */
  bool is_cut[ZPS_SERVERS_MAX];
};

static bool is_most(uint32_t n, uint32_t of) {
  return n >= 2 && 2 * n > of;
}

static void count(const struct zps_member_job *job, struct tally *tally) {
  *tally = (struct tally){0};
  for (uint32_t r = 0; r < job->world; r++) {
    if (job->ranks[r]->state != ZPS_RANK_IN) continue;
    tally->n_ranks++;
    for (uint32_t i = 0; i < job->view.n_places; i++)
      tally->by_ranks[i] += zps_view_server(&job->view, i) && row_of(job, r)[i];
  }
  for (uint32_t i = 0; i < job->view.n_places; i++) {
    if (!zps_view_server(&job->view, i)) continue;
    const bool is_away = !zps_view_server(&job->view, i)->client;
    tally->is_cut[i] = is_most(tally->by_ranks[i], tally->n_ranks) || (is_away && tally->by_ranks[i] > 0);
    tally->n_servers += !tally->is_cut[i];
  }
}

/* Of the servers that are not cut off from most ranks. */
static uint32_t count_of_rank(const struct zps_member_job *job, const struct tally *tally, uint32_t rank) {
  uint32_t n = 0;
  for (uint32_t i = 0; job->ranks[rank]->state == ZPS_RANK_IN && i < job->view.n_places; i++)
    n += zps_view_server(&job->view, i) && !tally->is_cut[i] && row_of(job, rank)[i];
  return n;
}

/* Ranks speak of one lost server at different times. One that reaches most servers is not cut off itself, so the server
 * that it cannot reach counts against no other rank. */
static void believe(const struct zps_member_job *job, struct tally *tally) {
  const struct tally before = *tally;
  for (uint32_t r = 0; r < job->world; r++) {
    const uint32_t n = count_of_rank(job, &before, r);
    if (n == 0 || is_most(n, before.n_servers)) continue;
    for (uint32_t i = 0; i < job->view.n_places; i++) {
      if (!zps_view_server(&job->view, i) || tally->is_cut[i] || !row_of(job, r)[i]) continue;
      tally->is_cut[i] = true;
      tally->n_servers--;
    }
  }
}

static void lose_rank(struct zps_members *members, struct zps_member_job *job, struct zps_member_rank *rank,
                      uint32_t n_suspected, uint32_t n_servers) {
  char reason[ZPS_SUSPECT_WHY_MAX + 120];
  snprintf(reason, sizeof reason, "it is cut off from %u of %u servers over the data plane: %s", n_suspected, n_servers,
           job->suspicion.why);
  zps_members_rank_expel(members, job, rank, reason);
}

static uint32_t first_rank_of(const struct zps_member_job *job, uint32_t position) {
  uint32_t rank = 0;
  while (job->ranks[rank]->state != ZPS_RANK_IN || !row_of(job, rank)[position]) rank++;
  return rank;
}

static void lose_servers(const struct zps_members *members, struct zps_member_job *job, const struct tally *tally) {
  bool is_first = true; /* It is the cause that is told. */
  for (uint32_t i = 0; i < job->view.n_places; i++) {
    char reason[ZPS_SUSPECT_WHY_MAX + 80];
    if (!zps_view_server(&job->view, i) || tally->by_ranks[i] == 0) continue;
    const uint32_t rank = first_rank_of(job, i);
    snprintf(reason, sizeof reason, "rank %u cannot reach it over the data plane: %s", rank, job->suspicion.why);
    zps_members_cutoff_out(members, job, zps_view_server(&job->view, i), rank, tally->by_ranks[i]);
    zps_members_place_cut_off(job, i, is_first ? reason : NULL);
    is_first = false;
  }
  zps_log_about(.server = job->map.server);
  zps_log_failure(ZPS_LOG_WARN, &job->map.why);
  memset(job->suspicion.pairs, 0, (size_t)job->world * job->view.n_places * sizeof *job->suspicion.pairs);
}

static void decide(struct zps_members *members, struct zps_member_job *job) {
  struct tally tally;
  count(job, &tally);
  believe(job, &tally);
  for (uint32_t r = 0; r < job->world; r++) {
    const uint32_t n = count_of_rank(job, &tally, r);
    if (!is_most(n, tally.n_servers)) continue;
    lose_rank(members, job, job->ranks[r], n, tally.n_servers);
    return;
  }
  lose_servers(members, job, &tally);
}

uint64_t zps_members_suspects_settle(struct zps_members *members, struct zps_member_job *job) {
  const uint64_t now_ns = members->now_ns;
  struct zps_member_suspicion *const suspicion = &job->suspicion;
  if (!suspicion->any || job->state != ZPS_JOB_RUNNING) return ZPS_NEVER;
  if (!any_pair(job)) { /* servers or ranks are gone meanwhile */
    suspicion->any = false;
    suspicion->due_ns = 0;
    return ZPS_NEVER;
  }
  if (suspicion->due_ns == 0) suspicion->due_ns = now_ns + GATHER_NS;
  if (now_ns < suspicion->due_ns) return suspicion->due_ns;
  suspicion->any = false;
  suspicion->due_ns = 0;
  decide(members, job);
  return ZPS_NEVER;
}
