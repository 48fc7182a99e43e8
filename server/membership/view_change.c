/*
 * The change of a running job's servers: propose, flush, install. All servers acknowledge the next epoch (job.view),
 * then all ranks do and say which steps they have in flight (job.mapped), then these steps go to all (job.replay).
 * Answers are facts; a settle goes on from them. Whatever changes the places meanwhile begins it anew.
 */
#include <stdio.h>
#include <string.h>

#include "common/base/text.h"
#include "server/membership/members_impl.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/log.h"
#include "common/base/moment.h"

enum { TIMEOUT_S = 30 };

void zps_members_view_change_begin(struct zps_members *members, struct zps_member_job *job) {
  struct zps_member_map *const map = &job->map;
  for (uint32_t i = 0; i < job->view.n_places; i++) {
    job->view.places[i].has_mapped = false;
    job->view.places[i].notified = ZPS_NOTIFIED_NOTHING;
  }
  for (uint32_t r = 0; r < job->world; r++) job->ranks[r]->notified = ZPS_NOTIFIED_NOTHING;
  job->view.epoch = ++members->epoch;
  if (!zps_member_map_is_open(job)) map->began_ns = members->now_ns;
  zps_job_steps_fini(&map->steps);
  map->state = ZPS_MAP_SERVERS;
  map->deadline_ns = 0;
  zps_members_note(members, .type = ZPS_NOTE_JOB, .job = job);
}

void zps_members_view_change_end(struct zps_member_job *job) {
  zps_job_steps_fini(&job->map.steps);
  job->map.state = ZPS_MAP_NONE;
}

/* ------------------------------------------------------------ answers */

/* A server that leaves has nothing to take over, so that it may refuse. */
void zps_members_map_answered(struct zps_members *members, struct zps_member_client *client, uint64_t job_id,
                              uint32_t epoch, zps_err_t code, const char *text) {
  struct zps_member_job *const job = zps_members_job_find(members, job_id);
  if (!job || job->state != ZPS_JOB_RUNNING || job->map.state != ZPS_MAP_SERVERS || epoch != job->view.epoch) return;
  const uint32_t i = zps_view_find(&job->view, client->server, 1u << ZPS_PLACE_IN | 1u << ZPS_PLACE_LEAVING);
  if (i == job->view.n_places || code == ZPS_ERR_CLOSED) return; /* Its loss is told next. */
  struct zps_view_place *const place = &job->view.places[i];
  if (code && place->state == ZPS_PLACE_IN && !place->has_mapped) {
    struct zps_error error;
    zps_log_about(.job = job->name, .server = job->map.server);
    zps_fail(&error, ZPS_ERR_SERVER_LOST, "%.250s; server '%.60s' cannot take over: %s", job->map.why.text,
             client->server->name, text);
    zps_log_failure(ZPS_LOG_WARN, &error);
    zps_members_job_break(job, error.code, ZPS_NO_RANK, error.text);
    return;
  }
  place->has_mapped = true;
}

/* A late rank that the job does not have. */
static bool has_strangers(const struct zps_member_job *job, const struct zps_job_steps *steps) {
  for (uint32_t i = 0; i < steps->n_tensors; i++)
    for (uint32_t k = 0; k < steps->tensors[i].n_decided; k++) {
      const struct zps_step_late *const decided = &steps->tensors[i].decided[k];
      if (decided->n_late > 0 && decided->late[decided->n_late - 1] >= job->world) return true;
    }
  return false;
}

static zps_err_t add_steps(struct zps_member_job *job, const struct zps_job_steps *steps) {
  zps_err_t err = ZPS_OK;
  for (uint32_t i = 0; i < steps->n_tensors && !err; i++) {
    const struct zps_tensor_steps *const of = &steps->tensors[i];
    if (!zps_members_tensor_find(job, of->tensor)) continue; /* closed meanwhile */
    err = zps_job_steps_merge_tensor(&job->map.steps, of);
  }
  return err;
}

zps_err_t zps_members_mapped(struct zps_member_client *client, const struct zps_job_steps *steps,
                             struct zps_error *error) {
  struct zps_member_job *const job = client->job;
  zps_err_t err = zps_members_running(job, steps->job_id, error);
  if (err) return err;
  struct zps_member_rank *const rank = job->ranks[client->rank];
  if (job->map.state != ZPS_MAP_RANKS || steps->epoch != job->view.epoch || rank->mapped_epoch == job->view.epoch)
    return ZPS_OK;
  if (has_strangers(job, steps))
    return zps_fail(error, ZPS_ERR_PROTOCOL, "a late rank that it names is none of the job's %u", job->world);
  err = steps->is_too_many ? ZPS_ERR_INVALID : add_steps(job, steps);
  if (err) {
    char why[200];
    if (err == ZPS_ERR_NOMEM)
      snprintf(why, sizeof why, "the coordinator is out of memory");
    else
      snprintf(why, sizeof why, "with those of rank %u they are too many: " ZPS_MAP_LIMITS_FORMAT, rank->rank,
               ZPS_MAP_LIMITS);
    zps_fail(error, ZPS_ERR_SERVER_LOST, "%.250s; the rounds in flight cannot be played again: %s", job->map.why.text,
             why);
    zps_log_about(.job = job->name, .server = job->map.server, ZPS_LOG_RANK(rank->rank));
    zps_log_failure(ZPS_LOG_WARN, error);
    zps_members_job_break(job, error->code, ZPS_NO_RANK, error->text);
    return error->code;
  }
  rank->mapped_epoch = job->view.epoch;
  return ZPS_OK;
}

/* ------------------------------------------------------------ settled */

static void notify_servers(struct zps_members *members, struct zps_member_job *job, enum zps_view_notice notice) {
  for (uint32_t i = 0; i < job->view.n_places; i++) {
    struct zps_view_place *const place = &job->view.places[i];
    const struct zps_member_server *const server =
        notice == ZPS_NOTIFIED_VIEW ? zps_view_listener(&job->view, i) : zps_view_server(&job->view, i);
    if (!server || !server->client || place->notified >= notice || (notice == ZPS_NOTIFIED_VIEW && place->has_mapped))
      continue;
    place->notified = notice;
    zps_members_act(members, .type = notice == ZPS_NOTIFIED_VIEW ? ZPS_ACT_MAP_SERVER : ZPS_ACT_REPLAY_SERVER,
                    .client = server->client, .job = job, .position = i);
  }
}

static bool is_missing(const struct zps_member_job *job, uint32_t r) {
  return job->ranks[r]->state == ZPS_RANK_IN && job->ranks[r]->mapped_epoch != job->view.epoch;
}

static void notify_ranks(struct zps_members *members, struct zps_member_job *job, enum zps_view_notice notice) {
  for (uint32_t r = 0; r < job->world; r++) {
    struct zps_member_rank *const rank = job->ranks[r];
    if (rank->state != ZPS_RANK_IN || !rank->client || rank->notified >= notice) continue;
    if (notice == ZPS_NOTIFIED_VIEW && !is_missing(job, r)) continue;
    rank->notified = notice;
    zps_members_act(members, .type = notice == ZPS_NOTIFIED_VIEW ? ZPS_ACT_MAP_RANK : ZPS_ACT_REPLAY_RANK,
                    .client = rank->client, .job = job, .rank = r);
    if (notice == ZPS_NOTIFIED_VIEW) ZPS_MOMENT("map told to one rank");
  }
}

/* Servers or ranks that have not answered. Where one of them is away, it answers later or is lost. */
static unsigned count_missing(const struct zps_member_job *job, bool *is_away) {
  unsigned n = 0;
  *is_away = false;
  for (uint32_t i = 0; job->map.state == ZPS_MAP_SERVERS && i < job->view.n_places; i++) {
    const struct zps_member_server *const server = zps_view_listener(&job->view, i);
    if (!server || job->view.places[i].has_mapped) continue;
    *is_away = *is_away || !server->client;
    n++;
  }
  for (uint32_t r = 0; job->map.state == ZPS_MAP_RANKS && r < job->world; r++) {
    if (!is_missing(job, r)) continue;
    *is_away = *is_away || !job->ranks[r]->client;
    n++;
  }
  return n;
}

/* Ranks know the new view, so that none reads from servers that leave. */
static void release_leavers(struct zps_members *members, struct zps_member_job *job) {
  for (uint32_t i = 0; i < job->view.n_places; i++)
    if (job->view.places[i].state == ZPS_PLACE_LEAVING)
      zps_members_place_release(members, job, i,
                                job->view.places[i].is_cut_off ? "it has left the job: others have its partitions"
                                                               : "the server drains: others have its partitions");
}

static void install(struct zps_members *members, struct zps_member_job *job) {
  job->map.state = ZPS_MAP_OVER;
  zps_members_note(members, .type = ZPS_NOTE_JOB, .job = job);
  notify_servers(members, job, ZPS_NOTIFIED_REPLAY);
  notify_ranks(members, job, ZPS_NOTIFIED_REPLAY);
  release_leavers(members, job);
  job->map.state = ZPS_MAP_NONE;
  job->placement_ns = members->now_ns + ZPS_PLACEMENT_SETTLE_NS;
  const uint64_t began_ns = job->map.began_ns ? job->map.began_ns : members->now_ns; /* 0: before a restart */
  zps_log_info("job '%s': goes on in epoch %u, after %llu ms", job->name, job->view.epoch,
               (unsigned long long)((members->now_ns - began_ns) / ZPS_NS_PER_MS));
}

static bool was_changed(const struct zps_member_job *job) {
  bool any = zps_view_has_successors(&job->view);
  for (uint32_t i = 0; i < job->view.n_first; i++) any = any || !zps_view_server(&job->view, i);
  return any;
}

void zps_members_view_change_settle(struct zps_members *members, struct zps_member_job *job) {
  struct zps_member_map *const map = &job->map;
  bool is_away;
  if (map->state == ZPS_MAP_NONE && was_changed(job)) { /* A server or rank that is back hears it again. */
    notify_servers(members, job, ZPS_NOTIFIED_REPLAY);
    notify_ranks(members, job, ZPS_NOTIFIED_REPLAY);
  }
  if (map->state == ZPS_MAP_SERVERS) {
    notify_servers(members, job, ZPS_NOTIFIED_VIEW);
    map->n_pending = count_missing(job, &is_away);
    if (map->n_pending == 0) map->state = ZPS_MAP_RANKS;
  }
  if (map->state == ZPS_MAP_RANKS) {
    notify_ranks(members, job, ZPS_NOTIFIED_VIEW);
    if (count_missing(job, &is_away) == 0) install(members, job);
  }
}

/* ------------------------------------------------------------ time */

/* The ranks that have not answered: "2, 5". */
static void list_missing_ranks(const struct zps_member_job *job, char *buf, size_t size) {
  buf[0] = '\0';
  for (uint32_t r = 0; r < job->world && strlen(buf) + 16 < size; r++)
    if (is_missing(job, r)) zps_text_add(buf, size, "%s%u", buf[0] ? ", " : "", r);
}

uint64_t zps_members_view_change_deadline(const struct zps_members *members, struct zps_member_job *job) {
  struct zps_member_map *const map = &job->map;
  bool is_away;
  if (job->state != ZPS_JOB_RUNNING || !zps_member_map_is_open(job)) return ZPS_NEVER;
  count_missing(job, &is_away);
  if (map->deadline_ns == 0 || is_away) map->deadline_ns = members->now_ns + TIMEOUT_S * ZPS_NS_PER_S;
  return map->deadline_ns;
}

void zps_members_view_change_expire(struct zps_members *members, struct zps_member_job *job) {
  char missing[200];
  struct zps_error error;
  const struct zps_member_map *const map = &job->map;
  bool is_away;
  if (zps_members_view_change_deadline(members, job) > members->now_ns) return;
  if (count_missing(job, &is_away) == 0) return; /* The last answer came in time: the settle goes on from it. */
  if (map->state == ZPS_MAP_SERVERS) {
    zps_fail(&error, ZPS_ERR_SERVER_LOST, "%.200s; after %u s %u servers have not taken over", map->why.text,
             (unsigned)TIMEOUT_S, map->n_pending);
  } else {
    list_missing_ranks(job, missing, sizeof missing);
    zps_fail(&error, ZPS_ERR_SERVER_LOST,
             "%.200s; after %u s these ranks have not said which rounds they have in flight: %s", map->why.text,
             (unsigned)TIMEOUT_S, missing);
  }
  zps_log_about(.server = map->server);
  zps_log_failure(ZPS_LOG_WARN, &error);
  zps_members_job_break(job, error.code, ZPS_NO_RANK, error.text);
}
