/*
 * The places of a running job: the facts for the policy (placement.h), and what it wants made so. Servers on JOINING
 * places get to know the job and its tensors while rounds go on.
 */
#include <stdio.h>

#include "common/base/config.h"
#include "common/base/text.h"
#include "server/membership/members_impl.h"
#include "server/membership/placement.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/log.h"

/* ------------------------------------------------------------ reasons to keep servers: sums, ranks, no other one */

/* Sums that servers keep for pulls would be gone. */
static const struct zps_member_tensor *find_stale(const struct zps_member_job *job) {
  for (uint32_t i = 0; i < job->n_tensors; i++)
    if (job->tensors[i]->spec.staleness > 0) return job->tensors[i];
  return NULL;
}

static const struct zps_member_rank *find_holder(const struct zps_member_job *job) {
  for (uint32_t r = 0; r < job->world; r++)
    if (job->ranks[r] && job->ranks[r]->state == ZPS_RANK_IN && job->ranks[r]->held[0]) return job->ranks[r];
  return NULL;
}

zps_err_t zps_members_hold(struct zps_member_client *client, uint64_t job_id, const char *why,
                           struct zps_error *error) {
  const zps_err_t err = zps_members_running(client->job, job_id, error);
  if (!err) snprintf(client->job->ranks[client->rank]->held, ZPS_HELD_MAX + 1, "%s", why);
  return err;
}

bool zps_members_cannot_move(const struct zps_members *members, const struct zps_member_job *job,
                             struct zps_error *why) {
  const struct zps_member_tensor *const tensor = find_stale(job);
  const struct zps_member_rank *const holder = find_holder(job);
  if (!members->config.replays)
    zps_fail(why, ZPS_ERR_REFUSED, "a job goes on with other servers only where %s is replay",
             zps_config_label("coordinator.server_loss"));
  else if (tensor)
    zps_fail(why, ZPS_ERR_REFUSED, "its servers keep sums of tensor '%.100s' for pulls to come (staleness)",
             tensor->spec.name);
  else if (holder)
    zps_fail(why, ZPS_ERR_REFUSED, "rank %u: %s", holder->rank, holder->held);
  else
    return false;
  return true;
}

static bool has_others(const struct zps_member_job *job) {
  for (uint32_t i = 0; i < job->view.n_places; i++)
    if (zps_view_server(&job->view, i) && !zps_view_server(&job->view, i)->draining) return true;
  return false;
}

bool zps_members_stays(const struct zps_members *members, const struct zps_member_job *job, struct zps_error *why) {
  if (job->state == ZPS_JOB_CLOSING)
    zps_fail(why, job->error.code, "it has failed, and waits for its ranks to leave: %.200s", job->error.text);
  else if (members->config.replays && !has_others(job))
    zps_fail(why, ZPS_ERR_REFUSED, "it has no other server that does not drain");
  else
    return zps_members_cannot_move(members, job, why);
  return true;
}

bool zps_member_job_any_away(const struct zps_member_job *job) {
  for (uint32_t i = 0; i < job->view.n_places; i++)
    if (zps_view_server(&job->view, i) && !zps_view_server(&job->view, i)->client) return true;
  for (uint32_t r = 0; r < job->world; r++)
    if (job->ranks[r]->state == ZPS_RANK_IN && !job->ranks[r]->client) return true;
  return false;
}

/* ------------------------------------------------------------ facts */

bool zps_members_is_placeable(const struct zps_member_job *job, const struct zps_member_server *server) {
  return server->client && !server->draining && zps_view_find(&job->view, server, ~0u) == job->view.n_places;
}

static uint64_t ready_ns(const struct zps_member_server *server, const struct zps_member_cutoff *cutoff) {
  if (cutoff) return cutoff->again_ns;
  return server->came_ns ? server->came_ns + ZPS_PLACEMENT_SETTLE_NS : 0;
}

uint32_t zps_members_count_placeable(const struct zps_members *members, const struct zps_member_job *job) {
  uint32_t n = 0;
  for (unsigned i = 0; i < members->n_servers; i++) {
    const struct zps_member_cutoff *const cutoff = zps_member_job_cutoff(job, members->servers[i]);
    /* The next generation is placed on all servers, whoever could reach them. */
    const bool is_paused = job->generation.number == 0 && cutoff && cutoff->again_ns > members->now_ns;
    n += zps_members_is_placeable(job, members->servers[i]) && !is_paused;
  }
  return n;
}

/* Such a tensor is opened by the present servers. */
static bool any_opening(const struct zps_member_job *job) {
  for (uint32_t i = 0; i < job->n_tensors; i++)
    if (job->tensors[i]->state == ZPS_TENSOR_OPENING) return true;
  return false;
}

static void collect_facts(const struct zps_members *members, const struct zps_member_job *job,
                          struct zps_placement_facts *facts, struct zps_member_server **spares) {
  struct zps_error why;
  facts->now_ns = members->now_ns;
  facts->settled_ns = job->placement_ns;
  facts->outlives = members->config.replays;
  facts->is_movable = !zps_members_cannot_move(members, job, &why);
  facts->is_changing = zps_member_map_is_open(job);
  facts->is_away = zps_member_job_any_away(job);
  facts->is_full = job->generation.number > 0 || job->n_left > 0 || any_opening(job);
  facts->is_urgent = job->place_now;
  facts->n_places = job->view.n_places;
  facts->n_spares = 0;
  const bool any_free = zps_view_count(&job->view, ZPS_PLACE_FREE) > 0;
  for (uint32_t i = 0; i < job->view.n_places; i++) {
    const struct zps_view_place *const place = &job->view.places[i];
    facts->places[i] = (struct zps_place_fact){.state = place->state,
                                               .drains = place->server && place->server->draining,
                                               .is_cut_off = place->is_cut_off,
                                               .is_refused = place->is_refused,
                                               .is_stale = place->version != job->version,
                                               .owes = place->n_pending > 0};
  }
  for (unsigned i = 0; any_free && i < members->n_servers; i++) {
    struct zps_member_server *const server = members->servers[i];
    const struct zps_member_cutoff *const cutoff = zps_member_job_cutoff(job, server);
    if (!zps_members_is_placeable(job, server) || facts->n_spares == ZPS_SERVERS_MAX) continue;
    spares[facts->n_spares] = server;
    facts->spares[facts->n_spares++] =
        (struct zps_spare_fact){.was_cut_off = cutoff != NULL, .ready_ns = ready_ns(server, cutoff)};
  }
}

/* ------------------------------------------------------------ acts */

static void open_tensors(struct zps_members *members, const struct zps_member_job *job, uint32_t position) {
  struct zps_view_place *const place = &job->view.places[position];
  for (uint32_t i = 0; i < job->n_tensors; i++) {
    if (job->tensors[i]->state != ZPS_TENSOR_OPEN) continue;
    place->n_pending++;
    zps_members_act(members, .type = ZPS_ACT_TENSOR_OPEN, .client = place->server->client, .job = job,
                    .tensor = job->tensors[i], .position = position);
  }
}

/* Its links have keys of its own, so it comes with an epoch of its own, and is told that now. The job lives in the next
 * one when all have answered. */
static void ask(struct zps_members *members, struct zps_member_job *job, uint32_t position,
                struct zps_member_server *server) {
  struct zps_view_place *const place = &job->view.places[position];
  place->state = ZPS_PLACE_JOINING;
  place->server = server;
  place->next_since = ++members->epoch;
  place->version = job->version;
  place->n_pending = 1;
  zps_members_note_counters(members); /* The next one must have another, whatever becomes of this one. */
  server->n_jobs++;
  zps_log_about(.job = job->name, .server = server->name);
  zps_log_info("job '%s': server %u '%s' is to take place %u", job->name, server->index, server->name, position);
  zps_members_act(members, .type = ZPS_ACT_JOB_OPEN, .client = server->client, .job = job, .position = position);
  zps_members_notify_gone(members, job, position, server->client);
  open_tensors(members, job, position);
}

/* Some of its answers may be under way: it is asked nothing more until they are here. */
static void dismiss(struct zps_members *members, struct zps_member_job *job, uint32_t position, const char *why) {
  struct zps_view_place *const place = &job->view.places[position];
  zps_log_about(.job = job->name, .server = place->server->name);
  zps_log_info("job '%s': server '%s' takes no place, for now: %s", job->name, place->server->name, why);
  place->state = ZPS_PLACE_DISMISSED;
  place->server->n_jobs--;
  zps_members_act(members, .type = ZPS_ACT_JOB_CLOSE, .client = place->server->client, .job = job, .position = position,
                  .text = why);
  /* The place is free already where the owner dropped all calls. */
  if (place->server && (place->n_pending == 0 || !place->server->client)) zps_view_vacate(&job->view, position);
  if (zps_view_count(&job->view, ZPS_PLACE_JOINING) == 0) job->placement_ns = members->now_ns + ZPS_PLACEMENT_SETTLE_NS;
}

void zps_members_joiners_dismiss(struct zps_members *members, struct zps_member_job *job, const char *why) {
  for (uint32_t i = 0; i < job->view.n_places; i++)
    if (zps_member_job_admits(job, i)) dismiss(members, job, i, why);
}

static void let_in(const struct zps_members *members, struct zps_member_job *job, uint32_t position) {
  zps_view_seize(&job->view, position);
  zps_members_reports_forget(job, position);
  zps_members_cutoff_in(members, job, zps_view_server(&job->view, position));
  zps_log_about(.job = job->name, .server = zps_view_server(&job->view, position)->name);
  zps_log_info("job '%s': server '%s' takes place %u", job->name, zps_view_server(&job->view, position)->name,
               position);
}

static void change(struct zps_members *members, struct zps_member_job *job, const struct zps_place_fact *fact,
                   uint32_t position, enum zps_place_state want) {
  struct zps_view_place *const place = &job->view.places[position];
  if (want == ZPS_PLACE_FREE) zps_view_vacate(&job->view, position);
  if (want == ZPS_PLACE_IN) let_in(members, job, position);
  if (want == ZPS_PLACE_DISMISSED)
    dismiss(members, job, position,
            fact->drains       ? "it drains"
            : fact->is_refused ? "it could not"
                               : "the job has changed");
  if (want != ZPS_PLACE_LEAVING) return;
  zps_log_about(.job = job->name, .server = place->server->name);
  zps_log_info("job '%s': server '%s' leaves place %u", job->name, place->server->name, position);
  place->state = want;
  place->was_lost = place->is_cut_off;
}

/* ------------------------------------------------------------ why the view changes */

/* A loss has said why already. */
static void explain(struct zps_member_job *job, const struct zps_placement_facts *facts,
                    const struct zps_placement *placement) {
  char names[ZPS_LOST_SERVERS_SIZE] = "";
  bool any_loss = false, is_drain = false;
  for (uint32_t i = 0; i < facts->n_places; i++) {
    if (placement->wants[i] == facts->places[i].state || placement->wants[i] == ZPS_PLACE_DISMISSED) continue;
    any_loss = any_loss || facts->places[i].state == ZPS_PLACE_LOST || facts->places[i].is_cut_off;
    is_drain = is_drain || placement->wants[i] == ZPS_PLACE_LEAVING;
    const struct zps_member_server *const server = job->view.places[i].server;
    zps_text_add(names, sizeof names, "%s%s", names[0] ? ", " : "", server ? server->name : "");
  }
  if (!any_loss) job->map.server[0] = '\0';
  if (!any_loss)
    zps_fail(&job->map.why, ZPS_ERR_SERVER_LOST, "job '%.60s': servers %s: %.100s", job->name,
             is_drain ? "left it that drain" : "took free places", names);
}

/* ------------------------------------------------------------ settled */

/* Whether anything has changed, so that the policy has more to say. */
static bool apply(struct zps_members *members, struct zps_member_job *job, const struct zps_placement_facts *facts,
                  const struct zps_placement *placement, struct zps_member_server **spares) {
  bool any = false;
  if (placement->moves) explain(job, facts, placement);
  if (placement->is_answer) job->place_now = false;
  for (uint32_t i = 0; i < facts->n_places; i++) {
    const enum zps_place_state was = facts->places[i].state, want = placement->wants[i];
    if (want == was) continue;
    any = true;
    if (want == ZPS_PLACE_JOINING)
      ask(members, job, i, spares[placement->spares[i]]);
    else
      change(members, job, &facts->places[i], i, want);
  }
  if (placement->moves) zps_members_view_change_begin(members, job);
  return any;
}

bool zps_members_places_settle(struct zps_members *members, struct zps_member_job *job, uint64_t *again_ns) {
  struct zps_placement_facts facts;
  struct zps_placement placement;
  struct zps_member_server *spares[ZPS_SERVERS_MAX];
  do {
    collect_facts(members, job, &facts, spares);
    zps_placement_decide(&facts, &placement);
    if (placement.fails) return false;
  } while (apply(members, job, &facts, &placement, spares));
  *again_ns = placement.again_ns;
  return true;
}
