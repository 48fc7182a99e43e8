/* The life of a job from its first join to its end. */
#include <stdio.h>
#include <stdlib.h>

#include "server/membership/members_impl.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/log.h"

static void job_set_state(struct zps_member_job *job, enum zps_job_state state) {
  zps_log_about(.job = job->name);
  zps_log_info("job '%s' 0x%016llx: %s > %s, %u of %u ranks", job->name, (unsigned long long)job->job_id,
               zps_job_state_name(job->state), zps_job_state_name(state), job->n_joined, job->world);
  job->state = state;
}

void zps_members_job_free(struct zps_member_job *job) {
  zps_members_elastic_job_gone(job);
  for (uint32_t i = 0; i < job->world; i++) free(job->ranks[i]);
  zps_members_view_change_end(job);
  zps_members_cutoffs_free(job->cutoffs);
  zps_members_groups_free(job);
  zps_members_tensors_free(job);
  free(job->ranks);
  zps_view_fini(&job->view);
  free(job);
}

/* ------------------------------------------------------------ the end */

/* From here on the job has no servers. */
static void close_at_servers(struct zps_members *members, struct zps_member_job *job, const char *reason) {
  zps_members_joiners_dismiss(members, job, reason);
  for (uint32_t i = 0; i < job->view.n_places; i++)
    if (zps_view_listener(&job->view, i)) zps_members_place_release(members, job, i, reason);
}

/* Every client that is still in hears why, once. */
static void fail(struct zps_members *members, struct zps_member_job *job) {
  const zps_err_t code = job->error.code;
  const char *const text = job->error.text;
  job_set_state(job, ZPS_JOB_CLOSING);
  zps_members_view_change_end(job);
  zps_members_joiners_dismiss(members, job, text);
  zps_members_note(members, .type = ZPS_NOTE_JOB_FAILED, .job = job);
  zps_members_tensors_fail(members, job, NULL, code, text);
  zps_members_groups_fail(members, job, code, text);
  zps_members_act_ranks(
      members, job,
      (struct zps_action){.type = ZPS_ACT_JOB_FAILED, .rank = job->lost_rank, .code = code, .text = text});
}

/* No rank is in it. Where its first join was refused, there has been no job. */
static void end(struct zps_members *members, struct zps_member_job *job) {
  const struct zps_error *const cause = zps_member_job_cause(job);
  const bool has_been = job->state >= ZPS_JOB_RUNNING || cause->code;
  zps_log_about(.job = job->name, .code = cause->code);
  const char *const reason = cause->code ? cause->text : has_been ? "all ranks have left" : "nobody joined";
  close_at_servers(members, job, reason);
  zps_members_job_remove(members, job);
  if (has_been) zps_members_job_ended(members, job);
  if (job->state != ZPS_JOB_JOINING && cause->code)
    zps_log_warn("job '%s' 0x%016llx has failed: %s: %s", job->name, (unsigned long long)job->job_id,
                 zps_err_name(cause->code), reason);
  else if (job->state != ZPS_JOB_JOINING)
    zps_log_info("job '%s' 0x%016llx is closed: %s", job->name, (unsigned long long)job->job_id, reason);
  zps_members_job_free(job);
}

bool zps_members_job_end(struct zps_members *members, struct zps_member_job *job) {
  if (job->state == ZPS_JOB_RUNNING && job->error.code) fail(members, job);
  if (job->n_joined > 0) return false;
  end(members, job);
  return true;
}

/* ------------------------------------------------------------ opened */

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
  zps_members_act_servers(members, job, (struct zps_action){.type = ZPS_ACT_JOB_OPEN});
}

static bool is_complete(const struct zps_members *members, const struct zps_member_job *job) {
  unsigned n = 0;
  if (job->n_joined < job->world) return false;
  for (unsigned i = 0; i < members->n_servers; i++) {
    if (!members->servers[i]->client) return false; /* until it is back, or lost */
    n += !members->servers[i]->draining;
  }
  return n > 0 && n >= members->config.min_servers;
}

/* The ranks agree with each other, and the servers too, since they were let in. */
static zps_err_t check_fabric(const struct zps_members *members, const struct zps_member_job *job,
                              struct zps_error *error) {
  char who[ZPS_NAME_MAX + 64];
  const struct zps_member_server *const server = members->servers[0];
  snprintf(who, sizeof who, "job '%s'", job->name);
  return zps_members_fabric_check(&job->ranks[0]->fabric, who, &server->fabric, server->name, error);
}

/* One of its servers is gone, or cannot answer. */
static bool is_stuck(const struct zps_member_job *job) {
  for (uint32_t i = 0; i < job->view.n_places; i++) {
    const struct zps_view_place *const place = &job->view.places[i];
    if (place->state == ZPS_PLACE_LOST || place->is_refused || (place->server && !place->server->client)) return true;
  }
  return false;
}

bool zps_members_job_is_opened(const struct zps_member_job *job) {
  return job->state == ZPS_JOB_OPENING && job->n_pending == 0 && !is_stuck(job);
}

/* The ranks wait on, for the servers that are left or for others. Servers may answer still for the job that was; so
 * this is another one. */
static void place_anew(struct zps_members *members, struct zps_member_job *job) {
  const char *const why = job->map.why.text;
  if (members->draining) {
    zps_members_job_drop_joins(members, job, ZPS_ERR_SERVER_LOST, why);
    return;
  }
  zps_log_about(.job = job->name, .server = job->map.server, .code = job->map.why.code);
  zps_log_warn("%s: placing it anew", why);
  close_at_servers(members, job, why);
  zps_view_fini(&job->view);
  job->n_pending = 0;
  zps_members_job_identify(members, job);
  job_set_state(job, ZPS_JOB_JOINING);
}

static void run(struct zps_members *members, struct zps_member_job *job) {
  job->started_ns = members->now_ns;
  job->started_ms = zps_members_utc_ms(members);
  job->error.code = ZPS_OK;
  job_set_state(job, ZPS_JOB_RUNNING);
  for (uint32_t r = 0; r < job->world; r++) job->ranks[r]->state = ZPS_RANK_IN;
  zps_members_elastic_opened(job);
  zps_members_note(members, .type = ZPS_NOTE_JOB, .job = job);
  for (uint32_t r = 0; r < job->world; r++) zps_members_join_answer(members, job, job->ranks[r], ZPS_OK, NULL);
}

void zps_members_job_begin(struct zps_members *members, struct zps_member_job *job) {
  struct zps_error error;
  if (job->n_joined == 0) return;
  if (job->state == ZPS_JOB_OPENING && is_stuck(job)) place_anew(members, job);
  if (job->n_joined == 0) return;
  if (job->state == ZPS_JOB_OPENING && job->n_pending == 0) run(members, job);
  if (job->state != ZPS_JOB_JOINING) return;
  if (members->draining) {
    zps_members_job_drop_joins(members, job, ZPS_ERR_REFUSED, "the coordinator is shutting down");
  } else if (is_complete(members, job) && check_fabric(members, job, &error)) {
    zps_log_failure(ZPS_LOG_WARN, &error);
    zps_members_job_drop_joins(members, job, error.code, error.text);
  } else if (is_complete(members, job)) {
    job_open(members, job);
  }
}

/* ------------------------------------------------------------ facts */

void zps_members_job_opened(struct zps_members *members, struct zps_member_client *client, uint64_t job_id,
                            zps_err_t code, const char *text) {
  struct zps_member_job *job = zps_members_job_find(members, job_id);
  const struct zps_member_server *server = client->server;
  if (job && server && zps_members_joiner_answered(job, server, code, text)) return;
  if (!job || job->state != ZPS_JOB_OPENING || !server || code == ZPS_ERR_CLOSED) return;
  if (code) {
    struct zps_error error;
    zps_log_about(.job = job->name, .server = server->name);
    zps_fail(&error, code, "job '%.60s': server '%.60s' (host %.60s) did not open it: %s", job->name, server->name,
             server->host, text);
    zps_log_failure(ZPS_LOG_WARN, &error);
    zps_members_job_drop_joins(members, job, error.code, error.text);
    return;
  }
  if (job->n_pending > 0) job->n_pending--;
}

void zps_members_job_fail(struct zps_members *members, uint64_t job_id, zps_err_t code, const char *text) {
  struct zps_member_job *job = zps_members_job_find(members, job_id);
  struct zps_error error;
  if (!job || job->state == ZPS_JOB_CLOSING) return;
  zps_log_about(.job = job->name);
  zps_fail(&error, code, "job '%.60s': %s", job->name, text);
  zps_log_failure(ZPS_LOG_WARN, &error);
  if (job->state == ZPS_JOB_RUNNING)
    zps_members_job_break(job, code, ZPS_NO_RANK, error.text);
  else
    zps_members_job_drop_joins(members, job, code, error.text);
}

uint64_t zps_members_job_closing(struct zps_members *members, struct zps_member_job *job) {
  const uint64_t now_ns = members->now_ns;
  if (job->state != ZPS_JOB_CLOSING || job->is_forgotten) return ZPS_NEVER;
  if (!job->grace_ns) job->grace_ns = now_ns + members->config.leave_grace_ms * ZPS_NS_PER_MS;
  if (now_ns < job->grace_ns) return job->grace_ns;
  zps_log_about(.job = job->name, .code = job->error.code);
  zps_log_warn("job '%s' 0x%016llx: %u ranks have not left %g s after the failure: its servers forget the job",
               job->name, (unsigned long long)job->job_id, job->n_joined,
               (double)members->config.leave_grace_ms / 1000);
  close_at_servers(members, job, job->error.text);
  job->is_forgotten = true;
  return ZPS_NEVER;
}
