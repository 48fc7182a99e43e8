/*
 * Servers on JOINING places (placement.c): their answers, and their release. Any change to the job cancels the
 * placement; it is retried later. A server that is gone, drains or refuses does not hold the others up.
 */
#include "server/membership/members_impl.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/log.h"

static bool is_active(const struct zps_view_place *place) {
  return place->state == ZPS_PLACE_JOINING;
}

bool zps_members_placement_is_open(const struct zps_member_job *job) {
  return zps_view_count(&job->view, ZPS_PLACE_JOINING) > 0;
}

bool zps_member_job_admits(const struct zps_member_job *job, uint32_t position) {
  return position < job->view.n_places && is_active(&job->view.places[position]);
}

uint32_t zps_member_job_since(const struct zps_member_job *job, uint32_t position) {
  const struct zps_view_place *const place = &job->view.places[position];
  return is_active(place) ? place->next_since : place->since;
}

/* ------------------------------------------------------------ canceled */

/* Answers to what it was asked may be under way: until they are here it is asked nothing more. */
static void send_away(struct zps_members *members, struct zps_member_job *job, uint32_t position, const char *why) {
  struct zps_view_place *const place = &job->view.places[position];
  place->state = ZPS_PLACE_DISMISSED;
  place->server->n_jobs--;
  zps_members_act(
      members,
      &(struct zps_action){
          .type = ZPS_ACT_JOB_CLOSE, .client = place->server->client, .job = job, .position = position, .text = why});
  /* It is free already where the owner dropped all calls. */
  if (place->server && (place->n_pending == 0 || !place->server->client)) zps_view_vacate(&job->view, position);
}

static void settle(const struct zps_members *members, struct zps_member_job *job) {
  job->placement_ns = members->now_ns + ZPS_PLACEMENT_SETTLE_NS;
}

void zps_members_placement_cancel(struct zps_members *members, struct zps_member_job *job, const char *why) {
  if (!zps_members_placement_is_open(job)) return;
  zps_log_info("job '%s': no servers take the places that are free, for now: %s", job->name, why);
  for (uint32_t i = 0; i < job->view.n_places; i++)
    if (is_active(&job->view.places[i])) send_away(members, job, i, why);
  settle(members, job);
}

/* The others take their places without it. */
static void send_one_away(struct zps_members *members, struct zps_member_job *job, uint32_t position, const char *why) {
  zps_log_info("job '%s': server '%s' takes no place, for now: %s", job->name, job->view.places[position].server->name,
               why);
  send_away(members, job, position, why);
  if (!zps_members_placement_is_open(job)) settle(members, job);
}

static uint32_t find(const struct zps_member_job *job, const struct zps_member_server *server) {
  return zps_view_find(&job->view, server, 1u << ZPS_PLACE_JOINING | 1u << ZPS_PLACE_DISMISSED);
}

void zps_members_placement_gone(struct zps_members *members, struct zps_member_job *job,
                                const struct zps_member_server *server) {
  const uint32_t position = find(job, server);
  if (position == job->view.n_places) return;
  const bool was_active = is_active(&job->view.places[position]);
  if (was_active) job->view.places[position].server->n_jobs--;
  zps_view_vacate(&job->view, position);
  if (!was_active) return;
  zps_log_info("job '%s': server '%s' takes no place, for now: it is gone", job->name, server->name);
  if (!zps_members_placement_is_open(job)) settle(members, job);
}

void zps_members_placement_drains(struct zps_members *members, struct zps_member_job *job) {
  for (uint32_t i = 0; i < job->view.n_places; i++)
    if (is_active(&job->view.places[i]) && job->view.places[i].server->draining)
      send_one_away(members, job, i, "it drains");
}

/* ------------------------------------------------------------ answered */

bool zps_members_placement_answered(struct zps_members *members, struct zps_member_job *job,
                                    const struct zps_member_server *server, zps_err_t code, const char *text) {
  const uint32_t position = find(job, server);
  if (position == job->view.n_places || code == ZPS_ERR_CLOSED) return position < job->view.n_places;
  struct zps_view_place *const place = &job->view.places[position];
  if (place->n_pending > 0) place->n_pending--;
  if (!is_active(place)) {
    if (place->n_pending == 0) zps_view_vacate(&job->view, position);
  } else if (code) {
    zps_log_warn("job '%s': server %u '%s' (host %s) cannot take a place in it: %s", job->name, server->index,
                 server->name, server->host, text);
    send_one_away(members, job, position, "it could not");
  }
  return true;
}

void zps_members_unasked(struct zps_members *members, const struct zps_member_client *server, uint64_t job_id) {
  struct zps_member_job *const job = zps_members_job_find(members, job_id);
  if (!job || !server->server) return;
  const uint32_t position = zps_view_find(&job->view, server->server, 1u << ZPS_PLACE_DISMISSED);
  if (position == job->view.n_places) return;
  struct zps_view_place *const place = &job->view.places[position];
  if (place->n_pending > 0) place->n_pending--;
  if (place->n_pending == 0) zps_view_vacate(&job->view, position);
}
