/* A running job loses a server, or one leaves it that drains, and goes on without it: the servers that are left take
 * over its partitions, then the ranks say which rounds have to be played again. A server that takes the place of one
 * that is gone gets its partitions in the same way. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"
#include "common/codec/owners.h"
#include "server/membership/members_impl.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/log.h"
#include "common/base/moment.h"

_Static_assert(ZPS_SERVERS_MAX <= ZPS_OWNERS_SERVERS_MAX, "the rule has room for all servers of a job");

enum { MAP_TIMEOUT_S = 30 };

bool zps_member_job_has(const struct zps_member_job *job, const struct zps_member_server *server) {
  return zps_view_find(&job->view, server, 1u << ZPS_PLACE_IN | 1u << ZPS_PLACE_LEAVING) < job->view.n_places;
}

bool zps_member_job_holds(const struct zps_member_job *job, const struct zps_member_server *server) {
  return zps_view_find(&job->view, server, 1u << ZPS_PLACE_IN) < job->view.n_places;
}

bool zps_member_map_is_open(const struct zps_member_job *job) {
  return job->map.state == ZPS_MAP_SERVERS || job->map.state == ZPS_MAP_RANKS;
}

/* Partitions of all tensors that the server had, which is not counted as lost here. Counted ahead of the line that says
 * so, as it takes memory: whether that is logged changes nothing else. */
static unsigned long count_parts(const struct zps_member_job *job, uint32_t position) {
  bool lost[ZPS_SERVERS_MAX];
  unsigned long n = 0;
  zps_view_mark_empty(&job->view, lost);
  lost[position] = false;
  for (uint32_t i = 0; i < job->n_tensors; i++) {
    const struct zps_tensor_spec *const spec = &job->tensors[i]->spec;
    uint32_t *const owners = calloc(spec->n_parts, sizeof *owners);
    if (!owners) continue; /* it is for a line of the log */
    zps_owners_reassign(spec->owners, spec->n_parts, job->view.n_first, job->view.n_places, lost, owners);
    for (uint32_t p = 0; p < spec->n_parts; p++) n += owners[p] == position;
    free(owners);
  }
  return n;
}

static void tell_server(struct zps_members *members, const struct zps_member_job *job, enum zps_action_type type,
                        uint32_t position) {
  zps_members_act(
      members,
      &(struct zps_action){
          .type = type, .client = zps_view_listener(&job->view, position)->client, .job = job, .position = position});
}

static void map_servers(struct zps_members *members, const struct zps_member_job *job) {
  for (uint32_t i = 0; i < job->view.n_places; i++)
    if (zps_view_listener(&job->view, i)) tell_server(members, job, ZPS_ACT_MAP_SERVER, i);
}

static void replay_servers(struct zps_members *members, const struct zps_member_job *job) {
  for (uint32_t i = 0; i < job->view.n_places; i++)
    if (zps_view_server(&job->view, i)) tell_server(members, job, ZPS_ACT_REPLAY_SERVER, i);
}

static void tell_rank(struct zps_members *members, const struct zps_member_job *job, enum zps_action_type type,
                      uint32_t rank) {
  zps_members_act(members,
                  &(struct zps_action){.type = type, .client = job->ranks[rank]->client, .job = job, .rank = rank});
}

static void tell_ranks(struct zps_members *members, const struct zps_member_job *job, enum zps_action_type type) {
  for (uint32_t r = 0; r < job->world; r++) {
    if (job->ranks[r]->state != ZPS_RANK_IN) continue;
    tell_rank(members, job, type, r);
    if (type == ZPS_ACT_MAP_RANK) ZPS_MOMENT("map told to one rank");
  }
}

/* In an epoch of its own, whatever became of the last one. */
static bool begin(struct zps_members *members, struct zps_member_job *job, const struct zps_error *why) {
  struct zps_member_map *const map = &job->map;
  const uint32_t n_in = zps_view_count(&job->view, ZPS_PLACE_IN);
  if (!members->config.replays || n_in == 0) return false;
  zps_members_placement_cancel(members, job, why->text);
  for (uint32_t i = 0; i < job->view.n_places; i++) job->view.places[i].has_mapped = false;
  job->view.epoch = ++members->epoch;
  if (!zps_member_map_is_open(job)) map->began_ns = 0;
  zps_job_steps_fini(&map->steps);
  map->state = ZPS_MAP_SERVERS;
  map->n_pending = n_in + zps_view_count(&job->view, ZPS_PLACE_LEAVING);
  map->deadline_ns = 0;
  map->why = *why;
  zps_members_note(members, &(struct zps_member_note){.type = ZPS_NOTE_JOB, .job = job});
  map_servers(members, job);
  return true;
}

bool zps_members_map_lost(struct zps_members *members, struct zps_member_job *job, uint32_t position,
                          const struct zps_member_server *server, const char *reason, const struct zps_error *why) {
  if (!begin(members, job, why)) return false;
  const unsigned long n_parts = count_parts(job, position);
  zps_log_warn("job '%s': server %u '%s' is lost (%s): its %lu partitions go to the servers left; epoch %u", job->name,
               position, server->name, reason, n_parts, job->view.epoch);
  zps_members_tensors_server_lost(members, job, position);
  return true;
}

/* The places become LEAVING first, so that begin() counts them. */
static void leave(struct zps_member_job *job, uint32_t position, bool is_lost) {
  job->view.places[position].state = ZPS_PLACE_LEAVING;
  job->view.places[position].was_lost = is_lost;
}

static bool begin_to_leave(struct zps_members *members, struct zps_member_job *job, const struct zps_error *why) {
  if (!begin(members, job, why)) return false;
  for (uint32_t i = 0; i < job->view.n_places; i++)
    if (job->view.places[i].state == ZPS_PLACE_LEAVING) zps_members_tensors_server_lost(members, job, i);
  return true;
}

bool zps_members_map_drained(struct zps_members *members, struct zps_member_job *job) {
  struct zps_error why;
  char names[ZPS_LOST_SERVERS_SIZE] = "";
  for (uint32_t i = 0; i < job->view.n_places; i++) {
    const struct zps_member_server *const server = zps_view_server(&job->view, i);
    if (!server || !server->draining) continue;
    leave(job, i, false);
    zps_text_add(names, sizeof names, "%s%s", names[0] ? ", " : "", server->name);
    const unsigned long n_parts = count_parts(job, i);
    zps_log_info("job '%s': server %u '%s' drains: its %lu partitions go to the servers left", job->name, i,
                 server->name, n_parts);
  }
  zps_fail(&why, ZPS_ERR_SERVER_LOST, "job '%.60s': servers left it that drain: %.100s", job->name, names);
  return begin_to_leave(members, job, &why);
}

bool zps_members_map_cut(struct zps_members *members, struct zps_member_job *job, const bool *leaves,
                         const struct zps_error *why) {
  uint32_t n_left = 0;
  for (uint32_t i = 0; i < job->view.n_places; i++) n_left += zps_view_server(&job->view, i) && !leaves[i];
  if (!members->config.replays || n_left == 0) return false;
  for (uint32_t i = 0; i < job->view.n_places; i++) {
    if (!leaves[i]) continue;
    leave(job, i, true);
    const struct zps_member_server *const server = job->view.places[i].server;
    zps_members_job_add_lost(job, server->name);
    const unsigned long n_parts = count_parts(job, i);
    zps_log_warn("job '%s': server %u '%s' is to leave it: its %lu partitions go to the servers left", job->name, i,
                 server->name, n_parts);
  }
  return begin_to_leave(members, job, why);
}

bool zps_members_map_joined(struct zps_members *members, struct zps_member_job *job, const struct zps_error *why) {
  const uint32_t before = job->view.epoch;
  if (!begin(members, job, why)) return false;
  for (uint32_t i = 0; i < job->view.n_places; i++) {
    if (job->view.places[i].since <= before) continue;
    const unsigned long n_parts = count_parts(job, i);
    zps_log_info("job '%s': server '%s' takes place %u, and its %lu partitions", job->name,
                 zps_view_server(&job->view, i)->name, i, n_parts);
  }
  return true;
}

/* Nobody has heard of a replay, so rounds are as they were. */
bool zps_members_map_restored(struct zps_members *members, struct zps_member_job *job, const struct zps_error *why) {
  if (!begin(members, job, why)) return false;
  zps_log_warn("%s: the servers that are left are told anew; epoch %u", why->text, job->view.epoch);
  return true;
}

/* The ranks that have not answered: "2, 5". True: there are some. */
static bool missing_ranks(const struct zps_member_job *job, char *buf, size_t size) {
  size_t len = 0;
  bool any = false;
  buf[0] = '\0';
  for (uint32_t r = 0; r < job->world; r++) {
    const struct zps_member_rank *const rank = job->ranks[r];
    if (rank->state != ZPS_RANK_IN || rank->mapped_epoch == job->view.epoch) continue;
    if (len + 16 < size) len += (size_t)snprintf(buf + len, size - len, "%s%u", any ? ", " : "", r);
    any = true;
  }
  return any;
}

static void try_end(struct zps_members *members, struct zps_member_job *job) {
  char missing[8];
  if (job->map.state != ZPS_MAP_RANKS || missing_ranks(job, missing, sizeof missing)) return;
  job->map.state = ZPS_MAP_OVER;
  zps_members_note(members, &(struct zps_member_note){.type = ZPS_NOTE_JOB, .job = job});
  replay_servers(members, job);
  tell_ranks(members, job, ZPS_ACT_REPLAY_RANK);
  zps_members_close_at(members, job, ZPS_PLACE_LEAVING,
                       job->cutoffs ? "it has left the job: others have its partitions"
                                    : "the server drains: others have its partitions");
}

static void try_ranks(struct zps_members *members, struct zps_member_job *job) {
  if (job->map.n_pending > 0) return;
  job->map.state = ZPS_MAP_RANKS;
  tell_ranks(members, job, ZPS_ACT_MAP_RANK);
  zps_members_tensors_tell(members, job);
}

static struct zps_view_place *listener(struct zps_member_job *job, const struct zps_member_server *server) {
  const uint32_t i = zps_view_find(&job->view, server, 1u << ZPS_PLACE_IN | 1u << ZPS_PLACE_LEAVING);
  return i < job->view.n_places ? &job->view.places[i] : NULL;
}

void zps_members_map_answered(struct zps_members *members, struct zps_member_client *client, uint64_t job_id,
                              uint32_t epoch, zps_err_t code, const char *text) {
  struct zps_member_job *const job = zps_members_job_find(members, job_id);
  if (!job || job->state != ZPS_JOB_RUNNING || job->map.state != ZPS_MAP_SERVERS || epoch != job->view.epoch) return;
  struct zps_view_place *const place = client->server ? listener(job, client->server) : NULL;
  if (!place || place->has_mapped) return;    /* lost meanwhile, or asked twice */
  if (code == ZPS_ERR_CLOSED) return;         /* its loss is said next */
  if (code && place->state == ZPS_PLACE_IN) { /* one that leaves has nothing to take over */
    struct zps_error error;
    zps_fail(&error, ZPS_ERR_SERVER_LOST, "%.250s; server '%.60s' cannot take over: %s", job->map.why.text,
             client->server->name, text);
    zps_members_job_fail(members, job_id, error.code, error.text);
    return;
  }
  place->has_mapped = true;
  job->map.n_pending--;
  try_ranks(members, job);
}

bool zps_members_map_leaver_gone(struct zps_members *members, struct zps_member_job *job,
                                 const struct zps_member_server *server) {
  const uint32_t position = zps_view_find(&job->view, server, 1u << ZPS_PLACE_LEAVING);
  if (position == job->view.n_places) return false;
  const bool has_mapped = job->view.places[position].has_mapped;
  zps_view_vacate(&job->view, position);
  if (job->state != ZPS_JOB_RUNNING || job->map.state != ZPS_MAP_SERVERS || has_mapped) return true;
  job->map.n_pending--;
  try_ranks(members, job);
  return true;
}

static zps_err_t add_steps(struct zps_member_job *job, const struct zps_job_steps *steps) {
  zps_err_t err = ZPS_OK;
  for (uint32_t i = 0; i < steps->n_tensors && !err; i++) {
    const struct zps_tensor_steps *const of = &steps->tensors[i];
    if (!zps_members_tensor_find(job, of->tensor)) continue; /* closed meanwhile */
    for (uint32_t k = 0; k < of->n_steps && !err; k++)
      err = zps_job_steps_add(&job->map.steps, of->tensor, of->steps[k]);
  }
  return err;
}

zps_err_t zps_members_mapped(struct zps_members *members, struct zps_member_client *client,
                             const struct zps_job_steps *steps, struct zps_error *error) {
  struct zps_member_job *const job = client->job;
  zps_err_t err = zps_members_running(job, steps->job_id, error);
  if (err) return err;
  struct zps_member_rank *const rank = job->ranks[client->rank];
  if (job->map.state != ZPS_MAP_RANKS || steps->epoch != job->view.epoch || rank->mapped_epoch == job->view.epoch)
    return ZPS_OK;
  err = add_steps(job, steps);
  if (err) {
    zps_fail(error, ZPS_ERR_SERVER_LOST, "%.250s; the rounds in flight cannot be played again: %s", job->map.why.text,
             err == ZPS_ERR_NOMEM ? "the coordinator is out of memory" : "there are too many");
    zps_members_job_fail(members, job->job_id, error->code, error->text);
    return error->code;
  }
  rank->mapped_epoch = job->view.epoch;
  try_end(members, job);
  return ZPS_OK;
}

void zps_members_map_left(struct zps_members *members, struct zps_member_job *job) {
  if (job->state == ZPS_JOB_RUNNING) try_end(members, job);
}

static bool is_over(const struct zps_member_job *job) {
  bool any = zps_view_has_successors(&job->view);
  for (uint32_t i = 0; i < job->view.n_first; i++) any = any || !zps_view_server(&job->view, i);
  return any && !zps_member_map_is_open(job);
}

/* Whether it has heard of the last call is not known, so it is made again. */
void zps_members_map_server_back(struct zps_members *members, const struct zps_member_job *job, uint32_t position) {
  if (job->state != ZPS_JOB_RUNNING) return;
  if (job->map.state == ZPS_MAP_SERVERS && !job->view.places[position].has_mapped)
    tell_server(members, job, ZPS_ACT_MAP_SERVER, position);
  else if (is_over(job) && zps_view_server(&job->view, position))
    tell_server(members, job, ZPS_ACT_REPLAY_SERVER, position);
}

void zps_members_map_rank_back(struct zps_members *members, const struct zps_member_job *job, uint32_t rank) {
  if (job->state != ZPS_JOB_RUNNING) return;
  if (job->map.state == ZPS_MAP_RANKS && job->ranks[rank]->mapped_epoch != job->view.epoch)
    tell_rank(members, job, ZPS_ACT_MAP_RANK, rank);
  else if (is_over(job))
    tell_rank(members, job, ZPS_ACT_REPLAY_RANK, rank);
}

void zps_members_map_end(struct zps_member_job *job) {
  zps_job_steps_fini(&job->map.steps);
  job->map.state = ZPS_MAP_NONE;
}

/* One that has not answered is away: when its time is up, it is lost. */
static bool waits_for_one_away(const struct zps_member_job *job) {
  for (uint32_t i = 0; job->map.state == ZPS_MAP_SERVERS && i < job->view.n_places; i++)
    if (zps_view_listener(&job->view, i) && !zps_view_listener(&job->view, i)->client &&
        !job->view.places[i].has_mapped)
      return true;
  for (uint32_t r = 0; job->map.state == ZPS_MAP_RANKS && r < job->world; r++) {
    const struct zps_member_rank *const rank = job->ranks[r];
    if (rank->state == ZPS_RANK_IN && !rank->client && rank->mapped_epoch != job->view.epoch) return true;
  }
  return false;
}

static void expire(struct zps_members *members, struct zps_member_job *job) {
  char missing[200];
  struct zps_error error;
  if (job->map.state == ZPS_MAP_SERVERS)
    zps_fail(&error, ZPS_ERR_SERVER_LOST, "%.200s; after %u s %u servers have not taken over", job->map.why.text,
             (unsigned)MAP_TIMEOUT_S, job->map.n_pending);
  else if (missing_ranks(job, missing, sizeof missing))
    zps_fail(&error, ZPS_ERR_SERVER_LOST,
             "%.200s; after %u s these ranks have not said which rounds they have in flight: %s", job->map.why.text,
             (unsigned)MAP_TIMEOUT_S, missing);
  else
    return;
  zps_members_job_fail(members, job->job_id, error.code, error.text);
}

uint64_t zps_members_map_tick(struct zps_members *members, struct zps_member_job *job, uint64_t now_ns) {
  struct zps_member_map *const map = &job->map;
  if (job->state != ZPS_JOB_RUNNING || map->state == ZPS_MAP_NONE) return ZPS_NEVER;
  if (map->began_ns == 0) map->began_ns = now_ns;
  if (map->state == ZPS_MAP_OVER) {
    zps_log_info("job '%s': goes on in epoch %u, after %llu ms", job->name, job->view.epoch,
                 (unsigned long long)((now_ns - map->began_ns) / ZPS_NS_PER_MS));
    map->state = ZPS_MAP_NONE;
    job->placement_ns = now_ns + ZPS_PLACEMENT_SETTLE_NS;
    return ZPS_NEVER;
  }
  if (map->deadline_ns == 0 || waits_for_one_away(job)) map->deadline_ns = now_ns + MAP_TIMEOUT_S * ZPS_NS_PER_S;
  if (now_ns < map->deadline_ns) return map->deadline_ns;
  expire(members, job);
  return ZPS_NEVER;
}
