/* A running job loses a server, or one leaves it that drains, and goes on without it: the servers that are left take
 * over its partitions, then the ranks say which rounds have to be played again. A server that takes the place of one
 * that is gone gets its partitions in the same way. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"
#include "common/codec/owners.h"
#include "server/coordinator/members_impl.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/log.h"
#include "common/base/moment.h"

_Static_assert(ZPS_SERVERS_MAX <= ZPS_OWNERS_SERVERS_MAX, "the rule has room for all servers of a job");

enum { MAP_TIMEOUT_S = 30 };

static void mark_lost(const struct zps_member_job *job, bool *lost) {
  for (uint32_t i = 0; i < job->n_servers; i++) lost[i] = !job->servers[i];
}

static struct zps_member_server *leaver(const struct zps_member_job *job, uint32_t position) {
  return job->leaving ? job->leaving[position] : NULL;
}

/* Those that leave hear of an epoch that is without them, too: so they stop, and say nothing more to ranks. */
static struct zps_member_server *hears(const struct zps_member_job *job, uint32_t position) {
  return job->servers[position] ? job->servers[position] : leaver(job, position);
}

bool zps_member_job_has(const struct zps_member_job *job, const struct zps_member_server *server) {
  for (uint32_t i = 0; server && i < job->n_servers; i++)
    if (hears(job, i) == server) return true;
  return false;
}

bool zps_member_job_holds(const struct zps_member_job *job, const struct zps_member_server *server) {
  for (uint32_t i = 0; server && i < job->n_servers; i++)
    if (job->servers[i] == server) return true;
  return false;
}

bool zps_member_map_is_open(const struct zps_member_job *job) {
  return job->map.state == ZPS_MAP_SERVERS || job->map.state == ZPS_MAP_RANKS;
}

zps_err_t zps_member_job_lost(const struct zps_member_job *job, uint32_t **lost_p, uint32_t *n_p) {
  uint32_t *lost = calloc(job->n_servers, sizeof *lost), n = 0;
  if (!lost) return ZPS_ERR_NOMEM;
  for (uint32_t i = 0; i < job->n_servers; i++)
    if (!job->servers[i]) lost[n++] = i;
  *lost_p = lost;
  *n_p = n;
  return ZPS_OK;
}

zps_err_t zps_member_job_leaving(const struct zps_member_job *job, uint32_t **leaving_p, uint32_t *n_p) {
  uint32_t *leaving = calloc(job->n_servers, sizeof *leaving), n = 0;
  if (!leaving) return ZPS_ERR_NOMEM;
  for (uint32_t i = 0; i < job->n_servers; i++)
    if (leaver(job, i)) leaving[n++] = i;
  *leaving_p = leaving;
  *n_p = n;
  return ZPS_OK;
}

/* Partitions of all tensors that the server had, which is not counted as lost here. Counted ahead of the line that says
 * so, as it takes memory: whether that is logged changes nothing else. */
static unsigned long count_parts(const struct zps_member_job *job, uint32_t position) {
  bool lost[ZPS_SERVERS_MAX];
  unsigned long n = 0;
  mark_lost(job, lost);
  lost[position] = false;
  for (uint32_t i = 0; i < job->n_tensors; i++) {
    const struct zps_tensor_spec *const spec = &job->tensors[i]->spec;
    uint32_t *const owners = calloc(spec->n_parts, sizeof *owners);
    if (!owners) continue; /* it is for a line of the log */
    zps_owners_reassign(spec->owners, spec->n_parts, job->n_began, job->n_servers, lost, owners);
    for (uint32_t p = 0; p < spec->n_parts; p++) n += owners[p] == position;
    free(owners);
  }
  return n;
}

static void tell_server(struct zps_members *members, const struct zps_member_job *job, enum zps_action_type type,
                        uint32_t position) {
  zps_members_act(members, &(struct zps_action){
                               .type = type, .client = hears(job, position)->client, .job = job, .position = position});
}

static void map_servers(struct zps_members *members, const struct zps_member_job *job) {
  for (uint32_t i = 0; i < job->n_servers; i++)
    if (hears(job, i)) tell_server(members, job, ZPS_ACT_MAP_SERVER, i);
}

static void replay_servers(struct zps_members *members, const struct zps_member_job *job) {
  for (uint32_t i = 0; i < job->n_servers; i++)
    if (job->servers[i]) tell_server(members, job, ZPS_ACT_REPLAY_SERVER, i);
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

bool zps_members_map_may(struct zps_member_job *job) {
  if (!job->map.answered) job->map.answered = malloc(job->n_servers * sizeof *job->map.answered);
  return job->map.answered;
}

/* In an epoch of its own, whatever became of the last one. */
static bool begin(struct zps_members *members, struct zps_member_job *job, const struct zps_error *why) {
  struct zps_member_map *const map = &job->map;
  uint32_t n_left = 0, n_hear = 0;
  for (uint32_t i = 0; i < job->n_servers; i++) {
    n_left += job->servers[i] != NULL;
    n_hear += hears(job, i) != NULL;
  }
  if (!members->config.replays || n_left == 0) return false;
  zps_members_refill_end(members, job, why->text);
  if (!zps_members_map_may(job)) return false;
  memset(map->answered, 0, job->n_servers * sizeof *map->answered);
  job->epoch = ++members->epoch;
  if (!zps_member_map_is_open(job)) map->began_ns = 0;
  zps_job_steps_fini(&map->steps);
  map->state = ZPS_MAP_SERVERS;
  map->n_pending = n_hear;
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
               position, server->name, reason, n_parts, job->epoch);
  zps_members_tensors_server_lost(members, job, position);
  return true;
}

static bool may_leave(struct zps_member_job *job) {
  if (!job->leaving) job->leaving = calloc(job->n_servers, sizeof(struct zps_member_server *));
  return job->leaving && zps_members_map_may(job);
}

static void leave(struct zps_member_job *job, uint32_t position) {
  job->leaving[position] = job->servers[position];
  job->servers[position] = NULL;
}

static bool begin_to_leave(struct zps_members *members, struct zps_member_job *job, const struct zps_error *why) {
  if (!begin(members, job, why)) return false;
  for (uint32_t i = 0; i < job->n_servers; i++)
    if (leaver(job, i)) zps_members_tensors_server_lost(members, job, i);
  return true;
}

bool zps_members_map_drained(struct zps_members *members, struct zps_member_job *job) {
  struct zps_error why;
  char names[ZPS_LOST_SERVERS_SIZE] = "";
  if (!may_leave(job)) return false;
  for (uint32_t i = 0; i < job->n_servers; i++) {
    if (!job->servers[i] || !job->servers[i]->draining) continue;
    leave(job, i);
    job->n_drained++;
    zps_text_add(names, sizeof names, "%s%s", names[0] ? ", " : "", job->leaving[i]->name);
    const unsigned long n_parts = count_parts(job, i);
    zps_log_info("job '%s': server %u '%s' drains: its %lu partitions go to the servers left", job->name, i,
                 job->leaving[i]->name, n_parts);
  }
  zps_fail(&why, ZPS_ERR_SERVER_LOST, "job '%.60s': servers left it that drain: %.100s", job->name, names);
  return begin_to_leave(members, job, &why);
}

bool zps_members_map_cut(struct zps_members *members, struct zps_member_job *job, const bool *leaves,
                         const struct zps_error *why) {
  uint32_t n_left = 0;
  for (uint32_t i = 0; i < job->n_servers; i++) n_left += job->servers[i] && !leaves[i];
  if (!members->config.replays || n_left == 0 || !may_leave(job)) return false;
  for (uint32_t i = 0; i < job->n_servers; i++) {
    if (!leaves[i]) continue;
    leave(job, i);
    zps_members_job_add_lost(job, job->leaving[i]->name);
    const unsigned long n_parts = count_parts(job, i);
    zps_log_warn("job '%s': server %u '%s' is to leave it: its %lu partitions go to the servers left", job->name, i,
                 job->leaving[i]->name, n_parts);
  }
  return begin_to_leave(members, job, why);
}

bool zps_members_map_joined(struct zps_members *members, struct zps_member_job *job, const struct zps_error *why) {
  const uint32_t before = job->epoch;
  if (!begin(members, job, why)) return false;
  for (uint32_t i = 0; i < job->n_servers; i++) {
    if (job->since[i] <= before) continue;
    const unsigned long n_parts = count_parts(job, i);
    zps_log_info("job '%s': server '%s' takes place %u, and its %lu partitions", job->name, job->servers[i]->name, i,
                 n_parts);
  }
  return true;
}

/* Nobody has heard of a replay, so rounds are as they were. */
bool zps_members_map_restored(struct zps_members *members, struct zps_member_job *job, const struct zps_error *why) {
  if (!begin(members, job, why)) return false;
  zps_log_warn("%s: the servers that are left are told anew; epoch %u", why->text, job->epoch);
  return true;
}

/* The ranks that have not answered: "2, 5". True: there are some. */
static bool missing_ranks(const struct zps_member_job *job, char *buf, size_t size) {
  size_t len = 0;
  bool any = false;
  buf[0] = '\0';
  for (uint32_t r = 0; r < job->world; r++) {
    const struct zps_member_rank *const rank = job->ranks[r];
    if (rank->state != ZPS_RANK_IN || rank->mapped_epoch == job->epoch) continue;
    if (len + 16 < size) len += (size_t)snprintf(buf + len, size - len, "%s%u", any ? ", " : "", r);
    any = true;
  }
  return any;
}

static void try_end(struct zps_members *members, struct zps_member_job *job) {
  char missing[8];
  if (job->map.state != ZPS_MAP_RANKS || missing_ranks(job, missing, sizeof missing)) return;
  struct zps_member_server **const leavers = job->leaving;
  job->leaving = NULL;
  job->map.state = ZPS_MAP_OVER;
  zps_members_note(members, &(struct zps_member_note){.type = ZPS_NOTE_JOB, .job = job});
  replay_servers(members, job);
  tell_ranks(members, job, ZPS_ACT_REPLAY_RANK);
  zps_members_close_at(members, job, leavers,
                       job->cutoffs ? "it has left the job: others have its partitions"
                                    : "the server drains: others have its partitions");
  free(leavers);
}

static void try_ranks(struct zps_members *members, struct zps_member_job *job) {
  if (job->map.n_pending > 0) return;
  job->map.state = ZPS_MAP_RANKS;
  tell_ranks(members, job, ZPS_ACT_MAP_RANK);
  zps_members_tensors_tell(members, job);
}

void zps_members_map_answered(struct zps_members *members, struct zps_member_client *client, uint64_t job_id,
                              uint32_t epoch, zps_err_t code, const char *text) {
  struct zps_member_job *const job = zps_members_job_find(members, job_id);
  if (!job || job->state != ZPS_JOB_RUNNING || job->map.state != ZPS_MAP_SERVERS || epoch != job->epoch) return;
  uint32_t position = 0;
  while (position < job->n_servers && (!client->server || hears(job, position) != client->server)) position++;
  if (position == job->n_servers || job->map.answered[position]) return; /* lost meanwhile, or asked twice */
  if (code == ZPS_ERR_CLOSED) return;                                    /* its loss is said next */
  if (code && job->servers[position]) {                                  /* one that leaves has nothing to take over */
    struct zps_error error;
    zps_fail(&error, ZPS_ERR_SERVER_LOST, "%.250s; server '%.60s' cannot take over: %s", job->map.why.text,
             client->server->name, text);
    zps_members_job_fail(members, job_id, error.code, error.text);
    return;
  }
  job->map.answered[position] = true;
  job->map.n_pending--;
  try_ranks(members, job);
}

bool zps_members_map_leaver_gone(struct zps_members *members, struct zps_member_job *job,
                                 const struct zps_member_server *server) {
  uint32_t position = 0;
  while (position < job->n_servers && leaver(job, position) != server) position++;
  if (position == job->n_servers) return false;
  job->leaving[position] = NULL;
  if (job->state != ZPS_JOB_RUNNING || job->map.state != ZPS_MAP_SERVERS || job->map.answered[position]) return true;
  job->map.answered[position] = true;
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
  if (job->map.state != ZPS_MAP_RANKS || steps->epoch != job->epoch || rank->mapped_epoch == job->epoch) return ZPS_OK;
  err = add_steps(job, steps);
  if (err) {
    zps_fail(error, ZPS_ERR_SERVER_LOST, "%.250s; the rounds in flight cannot be played again: %s", job->map.why.text,
             err == ZPS_ERR_NOMEM ? "the coordinator is out of memory" : "there are too many");
    zps_members_job_fail(members, job->job_id, error->code, error->text);
    return error->code;
  }
  rank->mapped_epoch = job->epoch;
  try_end(members, job);
  return ZPS_OK;
}

void zps_members_map_left(struct zps_members *members, struct zps_member_job *job) {
  if (job->state == ZPS_JOB_RUNNING) try_end(members, job);
}

static bool is_over(const struct zps_member_job *job) {
  bool any = job->since;
  for (uint32_t i = 0; i < job->n_began; i++) any = any || !job->servers[i];
  return any && !zps_member_map_is_open(job);
}

/* Whether it has heard of the last call is not known, so it is made again. */
void zps_members_map_server_back(struct zps_members *members, const struct zps_member_job *job, uint32_t position) {
  if (job->state != ZPS_JOB_RUNNING) return;
  if (job->map.state == ZPS_MAP_SERVERS && !job->map.answered[position])
    tell_server(members, job, ZPS_ACT_MAP_SERVER, position);
  else if (is_over(job) && job->servers[position])
    tell_server(members, job, ZPS_ACT_REPLAY_SERVER, position);
}

void zps_members_map_rank_back(struct zps_members *members, const struct zps_member_job *job, uint32_t rank) {
  if (job->state != ZPS_JOB_RUNNING) return;
  if (job->map.state == ZPS_MAP_RANKS && job->ranks[rank]->mapped_epoch != job->epoch)
    tell_rank(members, job, ZPS_ACT_MAP_RANK, rank);
  else if (is_over(job))
    tell_rank(members, job, ZPS_ACT_REPLAY_RANK, rank);
}

void zps_members_map_end(struct zps_member_job *job) {
  zps_job_steps_fini(&job->map.steps);
  free(job->map.answered);
  job->map.answered = NULL;
  job->map.state = ZPS_MAP_NONE;
}

/* One that has not answered is away: when its time is up, it is lost. */
static bool waits_for_one_away(const struct zps_member_job *job) {
  for (uint32_t i = 0; job->map.state == ZPS_MAP_SERVERS && i < job->n_servers; i++)
    if (hears(job, i) && !hears(job, i)->client && !job->map.answered[i]) return true;
  for (uint32_t r = 0; job->map.state == ZPS_MAP_RANKS && r < job->world; r++) {
    const struct zps_member_rank *const rank = job->ranks[r];
    if (rank->state == ZPS_RANK_IN && !rank->client && rank->mapped_epoch != job->epoch) return true;
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
    zps_log_info("job '%s': goes on in epoch %u, after %llu ms", job->name, job->epoch,
                 (unsigned long long)((now_ns - map->began_ns) / ZPS_NS_PER_MS));
    map->state = ZPS_MAP_NONE;
    job->refill_ns = now_ns + ZPS_REFILL_SETTLE_NS;
    return ZPS_NEVER;
  }
  if (map->deadline_ns == 0 || waits_for_one_away(job)) map->deadline_ns = now_ns + MAP_TIMEOUT_S * ZPS_NS_PER_S;
  if (now_ns < map->deadline_ns) return map->deadline_ns;
  expire(members, job);
  return ZPS_NEVER;
}
