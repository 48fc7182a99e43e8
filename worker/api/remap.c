#define ZPS_LOG_COMPONENT "replay"
#include "worker/api/remap.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/codec/owners.h"
#include "worker/api/job.h"
#include "worker/api/tensor.h"

/* ------------------------------------------------------------ tables */

static uint32_t *add_table(struct zenps_tensor *tensor) {
  const size_t bytes = tensor->core.part.n_parts * sizeof(uint32_t);
  struct zps_owner_table *table = malloc(sizeof *table + bytes);
  if (!table) return NULL;
  table->next = tensor->owner_tables;
  tensor->owner_tables = table;
  return table->owners;
}

bool zps_worker_owners_set(struct zenps_tensor *tensor, const uint32_t *owners) {
  uint32_t *const table = add_table(tensor);
  if (!table) return false;
  memcpy(table, owners, tensor->core.part.n_parts * sizeof *table);
  tensor->core.owners = table;
  return true;
}

/* From the first table: so all servers and ranks come to the same owners, whichever losses they heard of together. */
static zps_err_t add_remapped(struct zenps_tensor *tensor) {
  const struct zenps_job *job = tensor->job;
  const struct zps_owner_table *first = tensor->owner_tables;
  if (!job->lost || !first) return ZPS_OK;
  while (first->next) first = first->next;
  uint32_t *const table = add_table(tensor);
  if (!table) return ZPS_ERR_NOMEM;
  zps_owners_reassign(first->owners, tensor->core.part.n_parts, job->join.n_servers, job->join.n_places, job->lost,
                      table);
  return ZPS_OK;
}

static void take_newest(struct zenps_tensor *tensor) {
  if (tensor->owner_tables) tensor->core.owners = tensor->owner_tables->owners;
}

zps_err_t zps_worker_owners_remap(struct zenps_tensor *tensor) {
  const zps_err_t err = add_remapped(tensor);
  if (err == ZPS_OK) take_newest(tensor);
  return err;
}

void zps_worker_owners_free(struct zenps_tensor *tensor) {
  for (struct zps_owner_table *table; (table = tensor->owner_tables) != NULL;) {
    tensor->owner_tables = table->next;
    free(table);
  }
}

/* ------------------------------------------------------------ to the engine */

struct zps_map_command {
  struct zps_command command;
  struct zenps_job *job;
  struct zps_job_map map; /* ours */
};

static void command_free(struct zps_map_command *command) {
  if (command) zps_job_map_fini(&command->map);
  free(command);
}

static void map_run(struct zps_command *command, void *handler_ctx) {
  struct zps_map_command *map = (struct zps_map_command *)command;
  (void)handler_ctx;
  for (uint32_t i = 0; i < map->map.n_lost; i++)
    if (map->map.lost[i] < map->job->plane.n_servers) zps_plane_off(&map->job->plane.servers[map->map.lost[i]]);
  zps_replay_map(&map->job->rounds, &map->map);
  command_free(map);
}

struct steps_command {
  struct zps_command command;
  struct zenps_job *job;
  struct zps_job_steps steps;
};

static void steps_run(struct zps_command *command, void *handler_ctx) {
  struct steps_command *steps = (struct steps_command *)command;
  (void)handler_ctx;
  zps_replay_steps(&steps->job->rounds, &steps->steps);
  zps_job_steps_fini(&steps->steps);
  free(steps);
}

static void fail(struct zenps_job *job, zps_err_t code, const char *text) {
  struct zps_frame_abort failure = {.code = code};
  snprintf(failure.text, sizeof failure.text, "%s", text);
  pthread_mutex_lock(&job->lock);
  zps_first_note(job, code, text);
  pthread_mutex_unlock(&job->lock);
  job->membership.handler.on_failed(job, &failure);
}

/* ------------------------------------------------------------ from the coordinator */

/* Under the job's lock. All tensors, or none. */
static zps_err_t remap_all(struct zenps_job *job, const struct zps_job_map *map) {
  if (!job->lost) job->lost = calloc(job->join.n_places, sizeof *job->lost);
  if (!job->lost) return ZPS_ERR_NOMEM;
  uint32_t n_lost = 0;
  memset(job->lost, 0, job->join.n_places * sizeof *job->lost); /* a place may be taken again */
  for (uint32_t i = 0; i < map->n_lost; i++)
    if (map->lost[i] < job->join.n_places) job->lost[map->lost[i]] = true;
  for (uint32_t s = 0; s < job->join.n_places; s++) n_lost += job->lost[s];
  if (n_lost == job->join.n_places) return ZPS_ERR_SERVER_LOST;
  zps_err_t err = ZPS_OK;
  for (struct zenps_tensor *tensor = job->tensors; tensor && err == ZPS_OK; tensor = tensor->next)
    err = add_remapped(tensor);
  for (struct zenps_tensor *tensor = job->tensors; tensor && err == ZPS_OK; tensor = tensor->next) take_newest(tensor);
  return err;
}

static struct zps_map_command *command_make(struct zenps_job *job, const struct zps_job_map *map) {
  struct zps_map_command *command = calloc(1, sizeof *command);
  if (!command) return NULL;
  command->command.run = map_run;
  command->job = job;
  if (zps_job_map_copy(&command->map, map) == ZPS_OK) return command;
  free(command);
  return NULL;
}

static bool is_same_server(const struct zps_join_server *a, const struct zps_join_server *b) {
  return strcmp(a->name, b->name) == 0 && a->addr_len == b->addr_len && memcmp(a->addr, b->addr, a->addr_len) == 0;
}

/* Under the job's lock. */
static void take_joined(struct zenps_job *job, const struct zps_job_map *map) {
  for (uint32_t i = 0; i < map->n_joined; i++) {
    const struct zps_joined_server *const joined = &map->joined[i];
    if (joined->position >= job->join.n_places) continue;
    if (is_same_server(&job->join.servers[joined->position], &joined->server)) continue; /* of an earlier map */
    zps_log_info("server %s takes place %" PRIu32 ", and its partitions", joined->server.name, joined->position);
    job->join.servers[joined->position] = joined->server;
  }
}

/* Consumes the command; NULL: there was no memory for it. */
static void apply(struct zenps_job *job, struct zps_map_command *command) {
  zps_err_t err = ZPS_ERR_NOMEM;
  if (command) {
    pthread_mutex_lock(&job->lock);
    err = remap_all(job, &command->map);
    if (err == ZPS_OK) take_joined(job, &command->map);
    pthread_mutex_unlock(&job->lock);
  }
  if (err != ZPS_OK) {
    command_free(command);
    if (err == ZPS_ERR_NOMEM)
      zps_membership_renew(&job->membership);
    else
      fail(job, err, "no server is left");
    return;
  }
  for (uint32_t i = 0; i < command->map.n_lost; i++) {
    const uint32_t s = command->map.lost[i];
    if (s < job->join.n_places && job->join.servers[s].name[0])
      zps_log_info("server %" PRIu32 " (%s) %s: the job goes on with the remaining servers", s,
                   job->join.servers[s].name, zps_job_map_drains(&command->map, s) ? "leaves" : "is gone");
  }
  zps_engine_post(job->plane.engine, &command->command);
}

void zps_worker_map(struct zenps_job *job, const struct zps_job_map *map) {
  struct zps_map_command *const command = command_make(job, map);
  pthread_mutex_lock(&job->lock);
  const bool is_early = command && !job->is_connected;
  if (is_early) {
    command_free(job->early);
    job->early = command;
  }
  pthread_mutex_unlock(&job->lock);
  if (!is_early) apply(job, command);
}

zps_err_t zps_worker_map_init(struct zenps_job *job, struct zps_error *error) {
  const struct zps_join *const join = &job->join;
  uint32_t n_free = 0;
  for (uint32_t s = 0; s < join->n_places; s++) n_free += zps_join_is_free(join, s);
  if (n_free == 0) return ZPS_OK;
  if (n_free == join->n_places)
    return zps_fail(error, ZPS_ERR_SERVER_LOST, "job %s has no server left", job->options.job);
  job->lost = calloc(join->n_places, sizeof *job->lost);
  if (!job->lost) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for %" PRIu32 " servers", join->n_places);
  for (uint32_t s = 0; s < join->n_places; s++) job->lost[s] = zps_join_is_free(join, s);
  return ZPS_OK;
}

void zps_worker_map_connected(struct zenps_job *job) {
  pthread_mutex_lock(&job->lock);
  struct zps_map_command *const early = job->early;
  job->early = NULL;
  job->is_connected = true;
  pthread_mutex_unlock(&job->lock);
  if (early) apply(job, early);
}

void zps_worker_map_free(struct zenps_job *job) {
  command_free(job->early);
  free(job->lost);
}

void zps_worker_replay(struct zenps_job *job, const struct zps_job_steps *steps) {
  struct steps_command *command = calloc(1, sizeof *command);
  zps_err_t err = command ? ZPS_OK : ZPS_ERR_NOMEM;
  if (command) {
    *command = (struct steps_command){
        .command.run = steps_run, .job = job, .steps = {.job_id = steps->job_id, .epoch = steps->epoch}};
    for (uint32_t i = 0; i < steps->n_tensors; i++)
      for (uint32_t k = 0; k < steps->tensors[i].n_steps && err == ZPS_OK; k++)
        err = zps_job_steps_add(&command->steps, steps->tensors[i].tensor, steps->tensors[i].steps[k]);
  }
  if (err == ZPS_OK) {
    zps_engine_post(job->plane.engine, &command->command);
    return;
  }
  if (command) zps_job_steps_fini(&command->steps);
  free(command);
  zps_membership_renew(&job->membership);
}

void zps_worker_mapped(void *ctx, const struct zps_job_steps *steps) {
  struct zenps_job *job = ctx;
  const zps_err_t err = steps ? zps_membership_mapped(&job->membership, steps) : ZPS_ERR_NOMEM;
  if (err == ZPS_ERR_NOMEM)
    zps_membership_renew(&job->membership);
  else if (err != ZPS_OK)
    zps_log_warn("cannot report unfinished steps to the coordinator: %s", zps_err_str(err));
}

void zps_worker_held(void *ctx, const char *why) {
  struct zenps_job *job = ctx;
  zps_membership_held(&job->membership, why);
}

struct zps_round_tensor *zps_worker_served_tensor(void *ctx, uint32_t number) {
  struct zenps_job *job = ctx;
  pthread_mutex_lock(&job->lock);
  struct zenps_tensor *tensor = job->tensors;
  while (tensor && tensor->core.id != number) tensor = tensor->next;
  pthread_mutex_unlock(&job->lock);
  return tensor ? &tensor->core : NULL;
}
