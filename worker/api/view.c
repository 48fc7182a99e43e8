#define ZPS_LOG_COMPONENT "replay"
#include "worker/api/view.h"

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

/* From the first table: so all servers and ranks come to the same owners, whichever views they have seen. */
static zps_err_t add_remapped(struct zenps_tensor *tensor, const struct zps_view_image *view, const bool *without) {
  const struct zps_owner_table *first = tensor->owner_tables;
  if (!first) return ZPS_OK;
  while (first->next) first = first->next;
  uint32_t *const table = add_table(tensor);
  if (!table) return ZPS_ERR_NOMEM;
  zps_owners_reassign(first->owners, tensor->core.part.n_parts, tensor->core.quorum > 0, view->n_first, view->n_places,
                      without, table);
  return ZPS_OK;
}

static void take_newest(struct zenps_tensor *tensor) {
  if (tensor->owner_tables) tensor->core.owners = tensor->owner_tables->owners;
}

zps_err_t zps_worker_owners_remap(struct zenps_tensor *tensor) {
  const struct zps_view_image *const view = &tensor->job->join.view;
  if (zps_view_image_count_in(view) == view->n_places) return ZPS_OK;
  bool *const without = zps_view_image_without(view);
  const zps_err_t err = without ? add_remapped(tensor, view, without) : ZPS_ERR_NOMEM;
  free(without);
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

struct zps_view_command {
  struct zps_command command;
  struct zenps_job *job;
  struct zps_view_image view; /* ours */
};

static void command_free(struct zps_view_command *command) {
  if (command) zps_view_image_fini(&command->view);
  free(command);
}

static void view_run(struct zps_command *command, void *handler_ctx) {
  struct zps_view_command *const view = (struct zps_view_command *)command;
  (void)handler_ctx;
  for (uint32_t s = 0; s < view->view.n_places; s++)
    if (!zps_view_image_is_in(&view->view, s)) zps_plane_off(&view->job->plane.servers[s]);
  zps_replay_view(&view->job->rounds, &view->view);
  command_free(view);
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
  snprintf(failure.text, sizeof failure.text, "%.400s", text);
  pthread_mutex_lock(&job->lock);
  zps_first_note(job, code, text);
  pthread_mutex_unlock(&job->lock);
  job->membership.handler.on_failed(job, &failure);
}

/* ------------------------------------------------------------ from the coordinator */

/* The view has other servers in, so partitions have other owners. */
static bool has_other_owners(const struct zps_view_image *own, const struct zps_view_image *view) {
  for (uint32_t s = 0; s < own->n_places; s++)
    if (zps_view_image_is_in(own, s) != zps_view_image_is_in(view, s)) return true;
  return false;
}

/* All tensors, or none. */
static zps_err_t remap_all(struct zenps_job *job, const struct zps_view_image *view) {
  bool *const without = zps_view_image_without(view);
  zps_err_t err = without ? ZPS_OK : ZPS_ERR_NOMEM;
  for (struct zenps_tensor *tensor = job->tensors; tensor && err == ZPS_OK; tensor = tensor->next)
    err = add_remapped(tensor, view, without);
  for (struct zenps_tensor *tensor = job->tensors; tensor && err == ZPS_OK; tensor = tensor->next) take_newest(tensor);
  free(without);
  return err;
}

/* What the place has been, and is now. Views name later servers alone, so a known name stays. */
static void take_place(uint32_t s, struct zps_place_image *own, const struct zps_place_image *place) {
  const bool was_in = own->state == ZPS_PLACE_IN, is_in = place->state == ZPS_PLACE_IN;
  if (was_in && (!is_in || place->since > own->since))
    zps_log_info("server %" PRIu32 " (%s) %s: the job goes on with the remaining servers", s, own->server.name,
                 place->state == ZPS_PLACE_LEAVING ? "leaves" : "is gone");
  if (is_in && (!was_in || place->since > own->since))
    zps_log_info("server %s takes place %" PRIu32 ", and its partitions", place->server.name, s);
  own->state = place->state;
  own->was_lost = place->was_lost;
  own->since = place->since;
  if (is_in && place->server.addr_len > 0) own->server = place->server;
}

/* Under the job's lock. After an error the job has its own view still. ZPS_ERR_STALE: that is a later one. */
static zps_err_t install(struct zenps_job *job, const struct zps_view_image *view, struct zps_error *error) {
  struct zps_view_image *const own = &job->join.view;
  if (view->n_places != own->n_places || view->n_first != own->n_first)
    return zps_fail(error, ZPS_ERR_PROTOCOL,
                    "the coordinator's view has %" PRIu32 " places, %" PRIu32
                    " of them since the job began, and the "
                    "job has %" PRIu32 " and %" PRIu32,
                    view->n_places, view->n_first, own->n_places, own->n_first);
  if (view->epoch < own->epoch) return zps_fail(error, ZPS_ERR_STALE, "a view of an earlier epoch");
  if (zps_view_image_count_in(view) == 0) return zps_fail(error, ZPS_ERR_SERVER_LOST, "no server is left");
  const zps_err_t err = has_other_owners(own, view) ? remap_all(job, view) : ZPS_OK;
  if (err != ZPS_OK) return zps_fail(error, err, "no memory for the owners of partitions");
  for (uint32_t s = 0; s < own->n_places; s++) take_place(s, &own->places[s], &view->places[s]);
  own->epoch = view->epoch;
  return ZPS_OK;
}

static struct zps_view_command *command_make(struct zenps_job *job, const struct zps_view_image *view) {
  struct zps_view_command *command = calloc(1, sizeof *command);
  if (!command) return NULL;
  command->command.run = view_run;
  command->job = job;
  if (zps_view_image_copy(&command->view, view) == ZPS_OK) return command;
  free(command);
  return NULL;
}

/* Consumes the command; NULL: there was no memory for it. */
static void apply(struct zenps_job *job, struct zps_view_command *command) {
  struct zps_error error;
  zps_err_t err = ZPS_ERR_NOMEM;
  if (command) {
    pthread_mutex_lock(&job->lock);
    err = install(job, &command->view, &error);
    pthread_mutex_unlock(&job->lock);
  }
  if (err == ZPS_OK) {
    zps_engine_post(job->plane.engine, &command->command);
    return;
  }
  command_free(command);
  if (err == ZPS_ERR_NOMEM)
    zps_membership_renew(&job->membership);
  else if (err != ZPS_ERR_STALE)
    fail(job, err, error.text);
}

void zps_worker_view(struct zenps_job *job, const struct zps_view_image *view) {
  struct zps_view_command *const command = command_make(job, view);
  pthread_mutex_lock(&job->lock);
  const bool is_early = command && !job->is_connected;
  if (is_early) {
    command_free(job->early);
    job->early = command;
  }
  pthread_mutex_unlock(&job->lock);
  if (!is_early) apply(job, command);
}

void zps_worker_view_connected(struct zenps_job *job) {
  pthread_mutex_lock(&job->lock);
  struct zps_view_command *const early = job->early;
  job->early = NULL;
  job->is_connected = true;
  pthread_mutex_unlock(&job->lock);
  if (early) apply(job, early);
}

void zps_worker_view_free(struct zenps_job *job) {
  command_free(job->early);
}

void zps_worker_replay(struct zenps_job *job, const struct zps_job_steps *steps) {
  struct steps_command *command = calloc(1, sizeof *command);
  zps_err_t err = command ? ZPS_OK : ZPS_ERR_NOMEM;
  if (command) {
    *command = (struct steps_command){
        .command.run = steps_run, .job = job, .steps = {.job_id = steps->job_id, .epoch = steps->epoch}};
    err = zps_job_steps_merge(&command->steps, steps);
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

void zps_worker_hold(void *ctx, const char *why) {
  struct zenps_job *job = ctx;
  zps_membership_hold(&job->membership, why);
}

struct zps_round_tensor *zps_worker_served_tensor(void *ctx, uint32_t number) {
  struct zenps_job *job = ctx;
  pthread_mutex_lock(&job->lock);
  struct zenps_tensor *tensor = job->tensors;
  while (tensor && tensor->core.id != number) tensor = tensor->next;
  pthread_mutex_unlock(&job->lock);
  return tensor ? &tensor->core : NULL;
}
