/* The life of a job from its first join to its end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/membership/members_impl.h"
#include "server/membership/weights.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/log.h"

static void job_set_state(struct zps_member_job *job, enum zps_job_state state) {
  zps_log_info("job '%s' 0x%016llx: %s > %s, %u of %u ranks", job->name, (unsigned long long)job->job_id,
               zps_job_state_name(job->state), zps_job_state_name(state), job->n_joined, job->world);
  job->state = state;
}

static uint64_t new_job_id(struct zps_members *members) {
  uint64_t job_id;
  do {
    job_id = members->config.random(members->config.ctx);
  } while (job_id == 0 || zps_members_job_find(members, job_id));
  return job_id;
}

static struct zps_secret new_secret(struct zps_members *members) {
  struct zps_secret secret;
  for (size_t at = 0; at < sizeof secret.bytes; at += sizeof(uint64_t)) {
    const uint64_t word = members->config.random(members->config.ctx);
    memcpy(secret.bytes + at, &word, sizeof word);
  }
  return secret;
}

zps_err_t zps_members_job_create(struct zps_members *members, const struct zps_join_spec *spec, uint64_t now_ns,
                                 struct zps_member_job **job_p, struct zps_error *error) {
  if (members->n_jobs >= members->config.max_jobs)
    return zps_fail(error, ZPS_ERR_REFUSED, "there are %u jobs already, the most there can be", members->n_jobs);
  struct zps_member_job *job = calloc(1, sizeof *job);
  struct zps_member_rank **ranks = calloc(spec->world, sizeof *ranks);
  if (!job || !ranks) {
    free(job);
    free(ranks);
    return zps_fail(error, ZPS_ERR_NOMEM, "no memory for job '%s'", spec->job);
  }
  strcpy(job->name, spec->job);
  job->world = spec->world;
  job->ranks = ranks;
  job->started_ns = now_ns;
  job->weight = zps_weight_of(members->weights, job->name);
  job->places = spec->places;
  job->seed = members->config.random(members->config.ctx);
  job->job_id = new_job_id(members);
  job->secret = new_secret(members);
  struct zps_member_job **link = &members->jobs;
  while (*link) link = &(*link)->next;
  *link = job;
  members->n_jobs++;
  *job_p = job;
  return ZPS_OK;
}

void zps_members_job_free(struct zps_member_job *job) {
  zps_members_elastic_job_gone(job);
  for (uint32_t i = 0; i < job->world; i++) free(job->ranks[i]);
  zps_members_map_end(job);
  free(job->suspicion.pairs);
  zps_members_cutoffs_free(job->cutoffs);
  zps_members_groups_free(job);
  zps_members_tensors_free(job);
  free(job->ranks);
  zps_view_fini(&job->view);
  free(job);
}

void zps_members_close_at(struct zps_members *members, struct zps_member_job *job, enum zps_place_state state,
                          const char *reason) {
  for (uint32_t i = 0; i < job->view.n_places; i++) {
    if (job->view.places[i].state != state) continue;
    struct zps_member_server *const server = job->view.places[i].server;
    zps_view_vacate(&job->view, i);
    server->n_jobs--;
    zps_members_act(
        members, &(struct zps_action){
                     .type = ZPS_ACT_JOB_CLOSE, .client = server->client, .job = job, .position = i, .text = reason});
  }
}

/* From here on the job has no servers. */
static void close_at_servers(struct zps_members *members, struct zps_member_job *job, const char *reason) {
  zps_members_placement_cancel(members, job, reason);
  zps_members_close_at(members, job, ZPS_PLACE_IN, reason);
  zps_members_close_at(members, job, ZPS_PLACE_LEAVING, reason);
}

void zps_members_job_close(struct zps_members *members, struct zps_member_job *job, const char *reason) {
  close_at_servers(members, job, reason);
  struct zps_member_job **link = &members->jobs;
  while (*link != job) link = &(*link)->next;
  *link = job->next;
  members->n_jobs--;
  if (job->state >= ZPS_JOB_RUNNING)
    zps_members_note(members, &(struct zps_member_note){.type = ZPS_NOTE_JOB_GONE, .job = job});
  /* Else its first join was refused: there has been no job. */
  if (job->state >= ZPS_JOB_RUNNING || job->error.code)
    zps_members_act(members, &(struct zps_action){.type = ZPS_ACT_JOB_ENDED,
                                                  .job = job,
                                                  .code = job->error.code,
                                                  .text = job->error.code ? job->error.text : reason});
  if (job->state != ZPS_JOB_JOINING)
    zps_log_info("job '%s' 0x%016llx is closed: %s", job->name, (unsigned long long)job->job_id, reason);
  zps_members_job_free(job);
}

/* A running job fails: every client that is still in hears why, once. */
static void job_fail(struct zps_members *members, struct zps_member_job *job, zps_err_t code, uint32_t lost_rank,
                     const char *text) {
  if (job->state != ZPS_JOB_RUNNING) return;
  zps_fail(&job->error, code, "%s", text);
  job_set_state(job, ZPS_JOB_CLOSING);
  zps_members_map_end(job);
  zps_members_placement_cancel(members, job, text);
  zps_members_note(members, &(struct zps_member_note){.type = ZPS_NOTE_JOB_FAILED, .job = job});
  zps_members_tensors_fail(members, job, NULL, code, text);
  zps_members_groups_fail(members, job, code, text);
  for (uint32_t r = 0; r < job->world; r++) {
    if (job->ranks[r]->state != ZPS_RANK_IN) continue;
    zps_members_act(members, &(struct zps_action){.type = ZPS_ACT_JOB_FAILED,
                                                  .client = job->ranks[r]->client,
                                                  .job = job,
                                                  .rank = lost_rank,
                                                  .code = code,
                                                  .text = text});
  }
}

void zps_members_job_break(struct zps_members *members, struct zps_member_job *job, zps_err_t code, uint32_t lost_rank,
                           const char *text) {
  job_fail(members, job, code, lost_rank, text);
}

/* The next generation of an elastic job begins on all servers that there are then, so it needs none. */
static uint32_t places_of(const struct zps_members *members, const struct zps_member_job *job, uint32_t n_servers) {
  const uint32_t n = job->places ? job->places : members->config.places;
  return job->generation.number > 0 || n < n_servers ? n_servers : n;
}

static void job_open(struct zps_members *members, struct zps_member_job *job) {
  uint32_t n = 0;
  for (unsigned i = 0; i < members->n_servers; i++) n += !members->servers[i]->draining;
  if (zps_view_init(&job->view, places_of(members, job, n), n)) {
    zps_members_job_drop_joins(members, job, ZPS_ERR_NOMEM, "the coordinator has no memory to open the job");
    return;
  }
  struct zps_view_place *place = job->view.places;
  for (unsigned i = 0; i < members->n_servers; i++) {
    if (members->servers[i]->draining) continue;
    members->servers[i]->n_jobs++;
    *place++ = (struct zps_view_place){.state = ZPS_PLACE_IN, .server = members->servers[i]};
  }
  job->n_pending = n;
  job->checksums = members->config.checked;
  job->view.epoch = ++members->epoch;
  zps_members_note_counters(members); /* servers hear of this epoch, whatever becomes of the job */
  job_set_state(job, ZPS_JOB_OPENING);
  for (uint32_t i = 0; i < n; i++)
    zps_members_act(
        members,
        &(struct zps_action){
            .type = ZPS_ACT_JOB_OPEN, .client = job->view.places[i].server->client, .job = job, .position = i});
}

void zps_members_job_try_open(struct zps_members *members, struct zps_member_job *job) {
  unsigned n = 0;
  const struct zps_member_server *server = NULL;
  for (unsigned i = 0; i < members->n_servers; i++) {
    if (!members->servers[i]->client) return; /* until it is back, or lost */
    if (members->servers[i]->draining) continue;
    server = members->servers[i];
    n++;
  }
  if (job->state != ZPS_JOB_JOINING || job->n_joined < job->world || n == 0 || n < members->config.min_servers) return;
  /* The ranks agree with each other, and the servers too, since they were let in. */
  struct zps_error error;
  char who[ZPS_NAME_MAX + 64];
  snprintf(who, sizeof who, "job '%s'", job->name);
  if (zps_members_fabric_check(&job->ranks[0]->fabric, who, &server->fabric, server->name, &error)) {
    zps_log_warn("%s", error.text);
    zps_members_job_drop_joins(members, job, error.code, error.text);
    return;
  }
  job_open(members, job);
}

void zps_members_jobs_try_open(struct zps_members *members) {
  for (struct zps_member_job *job = members->jobs, *next; job; job = next) {
    next = job->next;
    zps_members_job_try_open(members, job);
  }
}

/* A placement came to nothing: the ranks wait on, for the servers that are left or for others. Servers may answer still
 * for the job that was; so this is another one. */
void zps_members_job_place_anew(struct zps_members *members, struct zps_member_job *job, const char *why) {
  if (members->draining) {
    zps_members_job_drop_joins(members, job, ZPS_ERR_SERVER_LOST, why);
    return;
  }
  zps_log_warn("%s: placing it anew", why);
  close_at_servers(members, job, why);
  zps_view_fini(&job->view);
  job->n_pending = 0;
  job->job_id = new_job_id(members);
  job->secret = new_secret(members);
  job_set_state(job, ZPS_JOB_JOINING);
  zps_members_job_try_open(members, job);
}

void zps_members_job_opened(struct zps_members *members, struct zps_member_client *client, uint64_t job_id,
                            zps_err_t code, const char *text, uint64_t now_ns) {
  struct zps_member_job *job = zps_members_job_find(members, job_id);
  const struct zps_member_server *server = client->server;
  if (job && server && zps_members_placement_answered(members, job, server, code, text)) return;
  if (!job || job->state != ZPS_JOB_OPENING || !server) return;
  if (code == ZPS_ERR_CLOSED) return;
  if (code) {
    struct zps_error error;
    zps_fail(&error, code, "job '%.60s': server '%.60s' (host %.60s) did not open it: %s", job->name, server->name,
             server->host, text);
    zps_log_warn("%s", error.text);
    zps_members_job_drop_joins(members, job, error.code, error.text);
    return;
  }
  if (--job->n_pending) return;
  job->started_ns = now_ns;
  job->error.code = ZPS_OK;
  job_set_state(job, ZPS_JOB_RUNNING);
  for (uint32_t r = 0; r < job->world; r++) job->ranks[r]->state = ZPS_RANK_IN;
  zps_members_elastic_opened(job);
  zps_members_note(members, &(struct zps_member_note){.type = ZPS_NOTE_JOB, .job = job});
  for (uint32_t r = 0; r < job->world; r++) zps_members_join_answer(members, job, job->ranks[r], ZPS_OK, NULL);
}

void zps_members_job_fail(struct zps_members *members, uint64_t job_id, zps_err_t code, const char *text) {
  struct zps_member_job *job = zps_members_job_find(members, job_id);
  struct zps_error error;
  if (!job || job->state == ZPS_JOB_CLOSING) return;
  zps_fail(&error, code, "job '%.60s': %s", job->name, text);
  zps_log_warn("%s", error.text);
  if (job->state == ZPS_JOB_RUNNING)
    job_fail(members, job, code, ZPS_NO_RANK, error.text);
  else
    zps_members_job_drop_joins(members, job, code, error.text);
}

void zps_members_job_add_lost(struct zps_member_job *job, const char *name) {
  const size_t len = strlen(job->lost_servers), size = sizeof job->lost_servers;
  const int n = snprintf(job->lost_servers + len, size - len, "%s%s", len ? ", " : "", name);
  if (n >= (int)(size - len)) strcpy(job->lost_servers + size - sizeof "...", "...");
}

void zps_members_job_server_lost(struct zps_members *members, struct zps_member_job *job,
                                 const struct zps_member_server *server, const char *reason) {
  zps_members_placement_gone(members, job, server);
  zps_members_cutoff_gone(job, server);
  if (zps_members_map_leaver_gone(members, job, server)) return;
  const uint32_t i = zps_view_find(&job->view, server, 1u << ZPS_PLACE_IN);
  if (i == job->view.n_places) return;
  job->view.places[i].was_lost = true;
  zps_view_vacate(&job->view, i);
  zps_members_job_add_lost(job, server->name);
  struct zps_error error;
  zps_fail(&error, ZPS_ERR_SERVER_LOST, "job '%s': server %u '%s' (host %s, pid %u) was lost: %s", job->name,
           server->index, server->name, server->host, server->pid, reason);
  if (job->state == ZPS_JOB_OPENING)
    zps_members_job_place_anew(members, job, error.text);
  else if (job->state == ZPS_JOB_RUNNING && !zps_members_map_lost(members, job, i, server, reason, &error))
    job_fail(members, job, error.code, ZPS_NO_RANK, error.text);
}

uint64_t zps_members_closing_tick(struct zps_members *members, struct zps_member_job *job, uint64_t now_ns) {
  if (job->state != ZPS_JOB_CLOSING || job->is_forgotten) return ZPS_NEVER;
  if (!job->grace_ns) job->grace_ns = now_ns + members->config.leave_grace_ms * ZPS_NS_PER_MS;
  if (now_ns < job->grace_ns) return job->grace_ns;
  zps_log_warn("job '%s' 0x%016llx: %u ranks have not left it %g s after it failed: its servers forget it", job->name,
               (unsigned long long)job->job_id, job->n_joined, (double)members->config.leave_grace_ms / 1000);
  close_at_servers(members, job, job->error.text);
  job->is_forgotten = true;
  return ZPS_NEVER;
}

/* A rank of a job that has run is gone, in peace or not. */
static void rank_gone(struct zps_members *members, struct zps_member_job *job, struct zps_member_rank *rank,
                      zps_err_t code, const char *text) {
  rank->state = code == ZPS_ERR_CLOSED ? ZPS_RANK_LEFT : ZPS_RANK_LOST;
  *(code == ZPS_ERR_CLOSED ? &job->n_left : &job->n_lost) += 1;
  job->n_joined--;
  zps_members_note(members, &(struct zps_member_note){.type = ZPS_NOTE_RANK, .job = job, .rank = rank->rank});
  if (rank->client) {
    zps_members_tensors_fail(members, job, rank->client, code, text);
    rank->client->job = NULL;
  } else {
    members->n_away--;
  }
  zps_members_groups_drop(members, job, rank->rank, code, text);
  rank->client = NULL;
  zps_members_placement_cancel(members, job, "a rank is in it no longer");
  if (job->n_joined) {
    for (uint32_t i = 0; i < job->view.n_places; i++) {
      if (!zps_view_server(&job->view, i)) continue;
      zps_members_act(members, &(struct zps_action){.type = ZPS_ACT_RANK_GONE,
                                                    .client = zps_view_server(&job->view, i)->client,
                                                    .job = job,
                                                    .position = i,
                                                    .rank = rank->rank,
                                                    .code = code,
                                                    .text = text});
    }
  }
}

void zps_members_rank_lost(struct zps_members *members, struct zps_member_job *job, struct zps_member_rank *rank,
                           const char *reason) {
  struct zps_error error;
  zps_fail(&error, ZPS_ERR_PEER_LOST, "job '%s': rank %u (host %s, pid %u) was lost: %s", job->name, rank->rank,
           rank->host, rank->pid, reason);
  zps_log_warn("%s", error.text);
  if (job->state < ZPS_JOB_RUNNING) zps_members_elastic_dropped(members, job, rank, true);
  if (job->state == ZPS_JOB_JOINING && job->generation.number == 0) {
    zps_members_join_drop(members, job, rank->rank, error.code, error.text);
  } else if (job->state <= ZPS_JOB_OPENING) {
    zps_members_job_drop_joins(members, job, error.code, error.text);
  } else {
    rank_gone(members, job, rank, error.code, error.text);
    zps_members_elastic_left(members, job, rank->rank, false);
    job_fail(members, job, error.code, rank->rank, error.text);
    if (job->n_joined == 0) zps_members_job_close(members, job, job->error.text);
  }
}

static zps_err_t leave(struct zps_members *members, struct zps_member_client *client, uint64_t job_id, bool moves,
                       struct zps_error *error) {
  struct zps_member_job *job = client->job;
  if (!job || job->job_id != job_id || job->state < ZPS_JOB_RUNNING)
    return zps_fail(error, ZPS_ERR_UNKNOWN, "this connection has not joined job 0x%016llx", (unsigned long long)job_id);
  struct zps_member_rank *rank = job->ranks[client->rank];
  char text[ZPS_NAME_MAX * 2 + 64];
  snprintf(text, sizeof text, "rank %u (host %s, pid %u) left the job", rank->rank, rank->host, rank->pid);
  zps_members_elastic_left(members, job, rank->rank, moves); /* Record first: if the journal loses its tail here, the
                                                                rank simply has not left. */
  rank_gone(members, job, rank, ZPS_ERR_CLOSED, text);
  zps_members_groups_left(members, job, rank->rank, text);
  zps_members_closes_try(members, job);
  if (job->n_joined == 0) {
    zps_members_job_close(members, job, job->state == ZPS_JOB_CLOSING ? job->error.text : "all ranks have left");
    return ZPS_OK;
  }
  zps_members_map_left(members, job);
  for (uint32_t r = 0; r < job->world && job->state == ZPS_JOB_RUNNING; r++) {
    if (job->ranks[r]->state != ZPS_RANK_IN) continue;
    zps_members_act(members,
                    &(struct zps_action){
                        .type = ZPS_ACT_RANK_LEFT, .client = job->ranks[r]->client, .job = job, .rank = rank->rank});
  }
  return ZPS_OK;
}

zps_err_t zps_members_leave(struct zps_members *members, struct zps_member_client *client, uint64_t job_id,
                            struct zps_error *error) {
  return leave(members, client, job_id, false, error);
}

zps_err_t zps_members_move_on(struct zps_members *members, struct zps_member_client *client, uint64_t job_id,
                              struct zps_error *error) {
  return leave(members, client, job_id, true, error);
}
