#include "server/membership/notes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/membership/elastic.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/log.h"

static void note_job(const struct zps_members *members, const struct zps_member_job *job) {
  zps_members_note(members, .type = ZPS_NOTE_JOB, .job = job);
  for (uint32_t i = 0; i < job->n_tensors; i++) {
    const struct zps_member_tensor *tensor = job->tensors[i];
    zps_members_note(members, .type = ZPS_NOTE_TENSOR, .job = job, .tensor = tensor);
  }
  for (const struct zps_member_group *group = job->groups; group; group = group->next)
    if (group->is_met) zps_members_note(members, .type = ZPS_NOTE_GROUP, .job = job, .group = group);
}

/* Counters last: servers that are made again count, too. */
void zps_members_note_all(const struct zps_members *members) {
  for (unsigned i = 0; i < members->n_servers; i++)
    zps_members_note(members, .type = ZPS_NOTE_SERVER, .server = members->servers[i]);
  for (const struct zps_member_job *job = members->jobs; job; job = job->next)
    if (job->state >= ZPS_JOB_RUNNING) note_job(members, job);
  for (const struct zps_member_elastic *elastic = members->elastics; elastic; elastic = elastic->next)
    if (zps_members_elastic_moves(elastic)) zps_members_note(members, .type = ZPS_NOTE_SEATS, .elastic = elastic);
  zps_members_expelled_note_all(members);
  zps_members_history_note_all(members);
  zps_members_note_counters(members);
}

/* ------------------------------------------------------------ servers */

void zps_members_restore_counters(struct zps_members *members, uint32_t next_server, uint32_t epoch) {
  if (next_server > members->next_server) members->next_server = next_server;
  if (epoch > members->epoch) members->epoch = epoch;
}

static struct zps_member_server *server_find(const struct zps_members *members, uint32_t index) {
  for (unsigned i = 0; i < members->n_servers; i++)
    if (members->servers[i]->index == index) return members->servers[i];
  return NULL;
}

zps_err_t zps_members_restore_server(struct zps_members *members, const struct zps_member_server *image) {
  struct zps_member_server *server = server_find(members, image->index);
  if (!server) {
    const zps_err_t err = zps_members_server_add(members, image->index, &server);
    if (err) return err;
    members->epoch++;
  }
  *server = *image;
  server->client = NULL;
  server->n_jobs = 0;
  zps_members_restore_counters(members, image->index + 1, 0);
  return ZPS_OK;
}

zps_err_t zps_members_restore_server_gone(struct zps_members *members, uint32_t index) {
  struct zps_member_server *const server = server_find(members, index);
  if (!server) return ZPS_ERR_PROTOCOL;
  for (struct zps_member_job *job = members->jobs; job; job = job->next) {
    for (uint32_t i = 0; i < job->view.n_places; i++) {
      struct zps_view_place *const place = &job->view.places[i];
      if (place->server != server) continue;
      const bool was_in = place->state == ZPS_PLACE_IN;
      place->was_lost = place->was_lost || was_in;
      if (was_in) zps_members_job_add_lost(job, server->name);
      zps_view_vacate(&job->view, i);
      if (was_in && job->state == ZPS_JOB_RUNNING)
        job->map.state = ZPS_MAP_SERVERS; /* A later note of the job ends that. */
    }
  }
  zps_members_server_remove(members, server);
  free(server);
  members->epoch++;
  return ZPS_OK;
}

/* ------------------------------------------------------------ seats of elastic jobs */

static void forget_seats(struct zps_members *members, const char *name) {
  struct zps_member_elastic *const elastic = zps_members_elastic_find(members, name);
  if (elastic) zps_members_elastic_destroy(members, elastic);
}

/* seats_restored() takes out the ranks that have not left, when all notes are there. */
zps_err_t zps_members_restore_seats(struct zps_members *members, const struct zps_seats_image *image) {
  struct zps_member_job *const job = zps_members_job_find(members, image->last_job);
  forget_seats(members, image->name);
  if (image->n_moving == 0) return ZPS_OK;
  if (job && job->world != image->world) return ZPS_ERR_PROTOCOL;
  for (uint32_t i = 0; i < image->n_moving; i++)
    if (image->moving[i] >= image->world) return ZPS_ERR_PROTOCOL;
  struct zps_member_elastic *const elastic = zps_members_elastic_create(members, image->name);
  if (!elastic) return ZPS_ERR_NOMEM;
  elastic->moves = calloc(image->world, sizeof *elastic->moves);
  if (!elastic->moves) return ZPS_ERR_NOMEM; /* all is freed with the members */
  for (uint32_t i = 0; i < image->n_moving; i++) elastic->moves[image->moving[i]] = ZPS_NEVER;
  elastic->number = image->number;
  elastic->last_job = image->last_job;
  elastic->last_world = image->world;
  elastic->is_noted = true;
  elastic->job = job;
  if (!job) return ZPS_OK;
  job->elastic = elastic;
  elastic->tenant = job->tenant;
  return ZPS_OK;
}

/* A rank that is in the job still has not left it as far as the state says. */
static void seats_restored(const struct zps_member_elastic *elastic, uint64_t until_ns) {
  for (uint32_t r = 0; r < elastic->last_world; r++) {
    const bool is_in = elastic->job && elastic->job->ranks[r]->state == ZPS_RANK_IN;
    if (elastic->moves[r]) elastic->moves[r] = is_in ? 0 : until_ns;
  }
}

/* ------------------------------------------------------------ jobs */

static zps_err_t job_make(struct zps_members *members, const struct zps_job_image *image, uint64_t now_ns,
                          struct zps_member_job **job_p) {
  const struct zps_join_spec spec = {.job = image->name, .world = image->world};
  const zps_err_t err = zps_members_job_create(members, &spec, now_ns, job_p, NULL);
  if (err) return err;
  struct zps_member_job *const job = *job_p;
  job->job_id = image->job_id;
  job->seed = image->seed;
  if (image->secret) job->secret = *image->secret;
  job->origin = image->origin;
  job->tenant = image->tenant;
  job->checksums = image->checksums;
  job->weight = image->weight;
  job->state = ZPS_JOB_RUNNING;
  for (uint32_t r = 0; r < job->world; r++) {
    job->ranks[r] = calloc(1, sizeof *job->ranks[r]);
    if (!job->ranks[r]) return ZPS_ERR_NOMEM; /* all is freed with the members */
    *job->ranks[r] = *image->ranks[r];
    job->ranks[r]->rank = r;
    job->ranks[r]->client = NULL;
    job->ranks[r]->token = NULL;
    if (!job->ranks[r]->memory) job->ranks[r]->memory = "host";
  }
  return ZPS_OK;
}

static void count_ranks(struct zps_member_job *job) {
  job->n_joined = job->n_left = job->n_lost = 0;
  for (uint32_t r = 0; r < job->world; r++) {
    job->n_joined += job->ranks[r]->state <= ZPS_RANK_IN;
    job->n_left += job->ranks[r]->state == ZPS_RANK_LEFT;
    job->n_lost += job->ranks[r]->state == ZPS_RANK_LOST;
  }
}

static struct zps_view_place restored_place(const struct zps_members *members, const struct zps_place_image *image) {
  struct zps_member_server *const server = server_find(members, image->number);
  const bool is_held = server && (image->state == ZPS_PLACE_IN || image->state == ZPS_PLACE_LEAVING);
  return (struct zps_view_place){.state = is_held ? image->state : ZPS_PLACE_FREE,
                                 .server = is_held ? server : NULL,
                                 .since = image->since,
                                 .was_lost = image->was_lost || (!is_held && image->state == ZPS_PLACE_IN)};
}

static zps_err_t take_view(const struct zps_members *members, struct zps_member_job *job,
                           const struct zps_view_image *image) {
  const zps_err_t err = zps_view_init(&job->view, image->n_places, image->n_first);
  if (err) return err;
  job->view.epoch = image->epoch;
  for (uint32_t i = 0; i < image->n_places; i++) job->view.places[i] = restored_place(members, &image->places[i]);
  return ZPS_OK;
}

/* What was lost while the state says no more of it is brought to its end by finish(). */
static void take_map(struct zps_member_job *job, struct zps_job_image *image) {
  zps_members_view_change_end(job);
  job->map.steps = image->replay;
  image->replay = (struct zps_job_steps){0};
  if (image->maps) job->map.state = ZPS_MAP_SERVERS;
}

/* A record of an older release has no start: the job's age is not known then. */
static void take_start(const struct zps_members *members, struct zps_member_job *job, uint64_t started_ms) {
  const uint64_t utc_ms = zps_members_utc_ms(members);
  job->started_ms = started_ms;
  job->aged_ns = started_ms > 0 && utc_ms > started_ms ? (utc_ms - started_ms) * ZPS_NS_PER_MS : 0;
}

zps_err_t zps_members_restore_job(struct zps_members *members, struct zps_job_image *image, uint64_t now_ns) {
  struct zps_member_job *job = zps_members_job_find(members, image->job_id);
  zps_err_t err = ZPS_OK;
  members->now_ns = now_ns; /* What begins ahead of the first tick has its time from then on. */
  if (job && (job->world != image->world || job->view.n_places != image->view.n_places ||
              job->view.n_first != image->view.n_first))
    return ZPS_ERR_PROTOCOL;
  if (!job) {
    if (image->generation.number > 0) forget_seats(members, image->name);
    err = job_make(members, image, now_ns, &job);
  }
  if (!err) err = take_view(members, job, &image->view);
  if (err) return err;
  for (uint32_t r = 0; r < job->world; r++) job->ranks[r]->state = image->ranks[r]->state;
  job->generation = image->generation;
  if (image->lost_servers[0]) strcpy(job->lost_servers, image->lost_servers);
  if (image->next_tensor > job->next_tensor) job->next_tensor = image->next_tensor;
  take_map(job, image);
  take_start(members, job, image->started_ms);
  if (image->cause.error.code && zps_members_restore_cause(members, job->job_id, &image->cause))
    return ZPS_ERR_PROTOCOL;
  if (image->error.code) {
    job->state = ZPS_JOB_CLOSING;
    job->error = image->error;
  }
  count_ranks(job);
  zps_members_restore_counters(members, 0, job->view.epoch);
  return ZPS_OK;
}

zps_err_t zps_members_restore_failed(struct zps_members *members, uint64_t job_id, const struct zps_error *why,
                                     const char *lost_servers) {
  struct zps_member_job *const job = zps_members_job_find(members, job_id);
  if (!job) return ZPS_ERR_PROTOCOL;
  job->state = ZPS_JOB_CLOSING;
  zps_members_view_change_end(job);
  job->error = *why;
  if (lost_servers[0]) snprintf(job->lost_servers, sizeof job->lost_servers, "%s", lost_servers);
  return ZPS_OK;
}

zps_err_t zps_members_restore_job_gone(struct zps_members *members, uint64_t job_id) {
  struct zps_member_job *const job = zps_members_job_find(members, job_id);
  if (!job) return ZPS_ERR_PROTOCOL;
  zps_members_job_remove(members, job);
  zps_members_job_free(job);
  return ZPS_OK;
}

void zps_members_restore_ended(struct zps_members *members, const struct zps_history_record *record) {
  struct zps_member_job *const job = zps_members_job_find(members, record->job_id);
  zps_members_history_keep(members, record);
  if (!job) return;
  zps_members_job_remove(members, job);
  zps_members_job_free(job);
}

zps_err_t zps_members_restore_rank(struct zps_members *members, uint64_t job_id, uint32_t rank,
                                   enum zps_rank_state state) {
  struct zps_member_job *const job = zps_members_job_find(members, job_id);
  if (!job || rank >= job->world) return ZPS_ERR_PROTOCOL;
  job->ranks[rank]->state = state;
  count_ranks(job);
  zps_members_groups_drop(members, job, rank, false, ZPS_ERR_CLOSED, "");
  return ZPS_OK;
}

/* ------------------------------------------------------------ tensors */

static zps_err_t tensor_set(const struct zps_member_job *job, struct zps_member_tensor *tensor,
                            enum zps_tensor_state state, const struct zps_error *why, uint64_t now_ns) {
  if (job->view.n_places == 0) return ZPS_ERR_PROTOCOL;
  tensor->state = state;
  if (state == ZPS_TENSOR_OPEN) tensor->opened_ns = now_ns;
  if (state == ZPS_TENSOR_FAILED) tensor->error = *why;
  return ZPS_OK;
}

zps_err_t zps_members_restore_tensor(struct zps_members *members, const struct zps_tensor_spec *spec,
                                     uint32_t first_rank, enum zps_tensor_state state, const struct zps_error *why,
                                     uint64_t now_ns) {
  struct zps_member_job *const job = zps_members_job_find(members, spec->job_id);
  if (!job || first_rank >= job->world) return ZPS_ERR_PROTOCOL;
  for (uint32_t p = 0; p < spec->n_parts; p++)
    if (spec->owners[p] >= job->view.n_places) return ZPS_ERR_PROTOCOL;
  struct zps_member_tensor *tensor = zps_members_tensor_find(job, spec->tensor);
  const zps_err_t err =
      tensor ? zps_members_tensor_owners(tensor, spec) : zps_members_tensor_append(job, spec, first_rank, &tensor);
  return err ? err : tensor_set(job, tensor, state, why, now_ns);
}

zps_err_t zps_members_restore_tensor_state(struct zps_members *members, uint64_t job_id, uint32_t number,
                                           enum zps_tensor_state state, const struct zps_error *why, uint64_t now_ns) {
  const struct zps_member_job *const job = zps_members_job_find(members, job_id);
  struct zps_member_tensor *const tensor = job ? zps_members_tensor_find(job, number) : NULL;
  return tensor ? tensor_set(job, tensor, state, why, now_ns) : ZPS_ERR_PROTOCOL;
}

zps_err_t zps_members_restore_tensor_gone(struct zps_members *members, uint64_t job_id, uint32_t number) {
  struct zps_member_job *const job = zps_members_job_find(members, job_id);
  struct zps_member_tensor *const tensor = job ? zps_members_tensor_find(job, number) : NULL;
  if (!tensor) return ZPS_ERR_PROTOCOL;
  zps_members_tensor_remove(job, tensor);
  return ZPS_OK;
}

/* ------------------------------------------------------------ groups */

zps_err_t zps_members_restore_group(struct zps_members *members, uint64_t job_id, const char *name, uint32_t first_rank,
                                    const uint32_t *ranks, uint32_t n_ranks, const uint32_t *left, uint32_t n_left) {
  struct zps_member_job *const job = zps_members_job_find(members, job_id);
  struct zps_member_group *group = job ? zps_members_group_find(job, name) : NULL;
  if (!job || first_rank >= job->world || (group && group->n_ranks != n_ranks)) return ZPS_ERR_PROTOCOL;
  const zps_err_t err = group ? ZPS_OK : zps_members_group_meet(job, name, ranks, n_ranks, first_rank, &group);
  for (uint32_t i = 0; !err && i < n_ranks; i++) group->members[i].here = true;
  if (!err) group->n_here = n_ranks;
  for (uint32_t i = 0; !err && i < n_left; i++) {
    uint32_t index;
    if (zps_members_group_has(group, left[i], &index) && group->members[index].here) {
      group->members[index].here = false;
      group->n_here--;
    }
  }
  return err;
}

zps_err_t zps_members_restore_seat(struct zps_members *members, uint64_t job_id, const char *name, uint32_t rank) {
  struct zps_member_job *const job = zps_members_job_find(members, job_id);
  struct zps_member_group *const group = job ? zps_members_group_find(job, name) : NULL;
  uint32_t index;
  if (!group || !zps_members_group_has(group, rank, &index)) return ZPS_ERR_PROTOCOL;
  zps_members_group_leave(members, job, group, index);
  return ZPS_OK;
}

/* ------------------------------------------------------------ the end */

/* Nobody has heard of a replay, so rounds are as they were. */
static void begin_anew(struct zps_members *members, struct zps_member_job *job) {
  struct zps_error *const why = &job->map.why;
  job->map.server[0] = '\0';
  zps_fail(why, ZPS_ERR_SERVER_LOST, "job '%s': a server was lost, and then the coordinator", job->name);
  if (!members->config.replays || zps_view_count(&job->view, ZPS_PLACE_IN) == 0) {
    zps_members_job_break(job, why->code, ZPS_NO_RANK, why->text);
    return;
  }
  zps_members_view_change_begin(members, job);
  zps_log_about(.job = job->name, .code = why->code);
  zps_log_warn("%s: notifying the remaining servers again; epoch %u", why->text, job->view.epoch);
}

/* The last turn may have ended between a death and what follows from it. */
static void finish(struct zps_members *members, struct zps_member_job *job) {
  uint32_t lost = 0;
  while (lost < job->world && job->ranks[lost]->state != ZPS_RANK_LOST) lost++;
  if (lost < job->world)
    zps_members_job_break(job, ZPS_ERR_PEER_LOST, lost, "a rank was lost, and then the coordinator");
  else if (zps_member_map_is_open(job))
    begin_anew(members, job);
}

void zps_members_restored(struct zps_members *members, uint64_t until_ns) {
  unsigned n_ranks = 0;
  for (unsigned i = 0; i < members->n_servers; i++) members->servers[i]->until_ns = until_ns;
  for (struct zps_member_job *job = members->jobs; job; job = job->next) {
    for (uint32_t i = 0; i < job->view.n_places; i++) {
      if (zps_view_listener(&job->view, i)) zps_view_listener(&job->view, i)->n_jobs++;
    }
    for (uint32_t r = 0; r < job->world; r++) {
      if (job->ranks[r]->state != ZPS_RANK_IN) continue;
      job->ranks[r]->until_ns = until_ns;
      n_ranks++;
    }
  }
  for (struct zps_member_elastic *elastic = members->elastics; elastic; elastic = elastic->next)
    seats_restored(elastic, until_ns);
  members->n_away = members->n_servers + n_ranks;
  for (struct zps_member_job *job = members->jobs; job; job = job->next) finish(members, job);
  zps_members_jobs_settle(members);
  zps_log_info("from the state: awaiting %u servers, and %u ranks of %u jobs", members->n_servers, n_ranks,
               members->n_jobs);
}
