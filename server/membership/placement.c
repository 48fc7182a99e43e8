/*
 * Placement: servers take the free places of a running job, of servers that it lost or that left, or of places without
 * a server so far. A server that joins gets to know the job and its tensors while rounds go on. When all that join have
 * answered, a view change installs them, as one does after a loss (maps.c). Any other change to the job cancels the
 * placement (joining.c).
 */
#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"
#include "server/membership/members_impl.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/log.h"

/* ------------------------------------------------------------ asked */

bool zps_members_is_placeable(const struct zps_member_job *job, const struct zps_member_server *server) {
  return server->client && !server->draining && zps_view_find(&job->view, server, ~0u) == job->view.n_places;
}

/* Goes through the servers that could take a place. */
struct search {
  unsigned at;
  uint64_t ready_ns; /* The first of the servers found is asked then, and the others with it. */
  uint64_t again_ns; /* Servers that ranks could not reach are asked then. */
};

static struct search begin_search(void) {
  return (struct search){.ready_ns = ZPS_NEVER, .again_ns = ZPS_NEVER};
}

/* The next one in the order in which they came. Those that ranks could not reach are last, when their pause is over. */
static struct zps_member_server *next_server(const struct zps_members *members, const struct zps_member_job *job,
                                             struct search *search) {
  while (search->at < 2 * members->n_servers) {
    const bool among_last = search->at >= members->n_servers;
    struct zps_member_server *const server = members->servers[search->at++ % members->n_servers];
    const struct zps_member_cutoff *const cutoff = zps_member_job_cutoff(job, server);
    if (!zps_members_is_placeable(job, server) || (cutoff != NULL) != among_last) continue;
    if (cutoff && cutoff->again_ns > members->now_ns) {
      if (cutoff->again_ns < search->again_ns) search->again_ns = cutoff->again_ns;
      continue;
    }
    const uint64_t ready_ns = server->came_ns ? server->came_ns + ZPS_PLACEMENT_SETTLE_NS : 0;
    if (ready_ns < search->ready_ns) search->ready_ns = ready_ns;
    return server;
  }
  return NULL;
}

static void open_tensors(struct zps_members *members, const struct zps_member_job *job, uint32_t position) {
  struct zps_view_place *const place = &job->view.places[position];
  for (uint32_t i = 0; i < job->n_tensors; i++) {
    if (job->tensors[i]->state != ZPS_TENSOR_OPEN) continue;
    place->n_pending++;
    zps_members_act(members, &(struct zps_action){.type = ZPS_ACT_TENSOR_OPEN,
                                                  .client = place->server->client,
                                                  .job = job,
                                                  .tensor = job->tensors[i],
                                                  .position = position});
  }
}

/* Its links have keys of its own, so it comes with an epoch of its own, which it is told now: the job lives in the next
 * one when all have answered. */
static void ask(struct zps_members *members, struct zps_member_job *job, uint32_t position,
                struct zps_member_server *server) {
  struct zps_view_place *const place = &job->view.places[position];
  place->state = ZPS_PLACE_JOINING;
  place->server = server;
  place->next_since = ++members->epoch;
  place->n_pending = 1;
  zps_members_note_counters(members); /* the next one must have another, whatever becomes of this one */
  server->n_jobs++;
  zps_log_info("job '%s': server %u '%s' is to take place %u", job->name, server->index, server->name, position);
  zps_members_act(members, &(struct zps_action){
                               .type = ZPS_ACT_JOB_OPEN, .client = server->client, .job = job, .position = position});
  zps_members_tell_gone(members, job, position, server->client);
  open_tensors(members, job, position);
}

/* A tensor that is being opened is asked of the servers that there are. */
static bool any_opening(const struct zps_member_job *job) {
  for (uint32_t i = 0; i < job->n_tensors; i++)
    if (job->tensors[i]->state == ZPS_TENSOR_OPENING) return true;
  return false;
}

static bool may_begin(const struct zps_members *members, const struct zps_member_job *job) {
  struct zps_error why;
  if (job->state != ZPS_JOB_RUNNING || job->map.state != ZPS_MAP_NONE || job->n_left > 0) return false;
  if (job->generation.number > 0) return false; /* the next one has all servers */
  return zps_view_count(&job->view, ZPS_PLACE_FREE) > 0 && !any_opening(job) && !zps_member_job_any_away(job) &&
         !zps_members_cannot_move(members, job, &why);
}

uint32_t zps_members_count_placeable(const struct zps_members *members, const struct zps_member_job *job) {
  struct search search = begin_search();
  uint32_t n = 0;
  if (job->generation.number == 0) {
    while (next_server(members, job, &search)) n++;
  } else { /* The next generation is placed on all servers, whoever could reach them. */
    for (unsigned i = 0; i < members->n_servers; i++) n += zps_members_is_placeable(job, members->servers[i]);
  }
  return n;
}

static uint64_t try_begin(struct zps_members *members, struct zps_member_job *job, uint64_t now_ns) {
  struct search search = begin_search();
  uint32_t n = 0;
  if (!may_begin(members, job)) return ZPS_NEVER;
  while (next_server(members, job, &search)) n++;
  if (n == 0) {
    job->place_now = false;
    return search.again_ns;
  }
  const uint64_t ready_ns = search.ready_ns > job->placement_ns ? search.ready_ns : job->placement_ns;
  if (now_ns < ready_ns && !job->place_now) return ready_ns;
  job->place_now = false;
  search = begin_search();
  for (uint32_t i = 0; i < job->view.n_places; i++) {
    if (job->view.places[i].state != ZPS_PLACE_FREE) continue;
    struct zps_member_server *const server = next_server(members, job, &search);
    if (!server) break;
    ask(members, job, i, server);
  }
  return ZPS_NEVER;
}

void zps_members_placement_begin(struct zps_members *members, struct zps_member_job *job) {
  if (!zps_members_placement_is_open(job)) try_begin(members, job, members->now_ns);
}

/* ------------------------------------------------------------ all have answered */

/* What ranks have said of the server before. */
static void forget_suspicions(const struct zps_member_job *job, uint32_t position) {
  for (uint32_t r = 0; job->suspicion.pairs && r < job->world; r++)
    job->suspicion.pairs[(size_t)r * job->view.n_places + position] = false;
}

static void take_places(struct zps_members *members, struct zps_member_job *job) {
  struct zps_error why;
  char names[ZPS_LOST_SERVERS_SIZE] = "";
  for (uint32_t i = 0; i < job->view.n_places; i++) {
    if (!zps_member_job_admits(job, i)) continue;
    zps_view_seize(&job->view, i);
    forget_suspicions(job, i);
    zps_members_cutoff_in(members, job, zps_view_server(&job->view, i));
    zps_text_add(names, sizeof names, "%s%s", names[0] ? ", " : "", zps_view_server(&job->view, i)->name);
  }
  zps_fail(&why, ZPS_ERR_SERVER_LOST, "job '%.60s': servers took free places: %.100s", job->name, names);
  if (!zps_members_map_joined(members, job, &why)) zps_members_job_fail(members, job->job_id, why.code, why.text);
}

static void try_end(struct zps_members *members, struct zps_member_job *job) {
  struct zps_error why;
  for (uint32_t i = 0; i < job->view.n_places; i++)
    if (zps_member_job_admits(job, i) && job->view.places[i].n_pending > 0) return;
  if (zps_members_cannot_move(members, job, &why))
    zps_members_placement_cancel(members, job, why.text);
  else
    take_places(members, job);
}

uint64_t zps_members_placement_tick(struct zps_members *members, struct zps_member_job *job, uint64_t now_ns) {
  if (!zps_members_placement_is_open(job)) return try_begin(members, job, now_ns);
  try_end(members, job);
  return zps_members_map_tick(members, job, now_ns);
}
