/*
 * An administrator wants jobs placed anew over the present servers. places.c and generations.c do this by themselves,
 * after servers and jobs have settled. Here it happens at once. A job has no more places than when it
 * began, since ranks and servers are told how many there are once (job.server_places); the generations of an elastic
 * job begin with as many as there are servers.
 */
#include <stdlib.h>
#include <string.h>

#include "common/base/config.h"
#include "common/base/did_you_mean.h"
#include "common/base/text.h"
#include "common/codec/owners.h"
#include "server/membership/elastic.h"

_Static_assert(ZPS_SERVERS_MAX <= ZPS_OWNERS_SERVERS_MAX, "the rule has room for all servers of a job");

struct census {
  uint32_t n_in, n_free, n_joining; /* places: with a server, without, and without that a server is to take */
  uint32_t n_spare;                 /* servers that could take one, and are not in the job */
};

static struct census count(const struct zps_members *members, const struct zps_member_job *job) {
  const uint32_t n_in = zps_member_job_servers_in(job);
  return (struct census){.n_in = n_in,
                         .n_free = job->view.n_places - n_in,
                         .n_joining = zps_view_count(&job->view, ZPS_PLACE_JOINING),
                         .n_spare = zps_members_count_placeable(members, job)};
}

/* Partitions that have another owner when those that are to take places have them; in all tensors. */
static unsigned long count_moved(const struct zps_member_job *job) {
  bool before[ZPS_SERVERS_MAX], after[ZPS_SERVERS_MAX];
  unsigned long n = 0;
  for (uint32_t i = 0; i < job->view.n_places; i++) {
    before[i] = !zps_view_server(&job->view, i);
    after[i] = before[i] && !zps_member_job_admits(job, i);
  }
  for (uint32_t t = 0; t < job->n_tensors; t++) {
    const struct zps_tensor_spec *const spec = &job->tensors[t]->spec;
    uint32_t *const owners = calloc(spec->n_parts, 2 * sizeof *owners), *const then = owners + spec->n_parts;
    if (!owners) continue; /* it is for a person to read */
    zps_owners_reassign(spec->owners, spec->n_parts, spec->quorum > 0, job->view.n_first, job->view.n_places, before,
                        owners);
    zps_owners_reassign(spec->owners, spec->n_parts, spec->quorum > 0, job->view.n_first, job->view.n_places, after,
                        then);
    for (uint32_t p = 0; p < spec->n_parts; p++) n += owners[p] != then[p];
    free(owners);
  }
  return n;
}

/* ------------------------------------------------------------ what is said */

static void say_moves(const struct zps_member_job *job, struct zps_member_rebalanced *said) {
  char names[ZPS_LOST_SERVERS_SIZE] = "";
  for (uint32_t i = 0; i < job->view.n_places; i++)
    if (zps_member_job_admits(job, i))
      zps_text_add(names, sizeof names, "%s%s", names[0] ? ", " : "", job->view.places[i].server->name);
  said->outcome = ZPS_REBALANCE_MOVES;
  said->n_parts = count_moved(job);
  zps_text_add(said->why, sizeof said->why, "servers take free places: %s", names);
}

static const char *what_holds_it(const struct zps_member_job *job) {
  if (zps_member_map_is_open(job)) return "it is about to go on with other servers than before already";
  if (zps_member_job_any_away(job)) return "a server or a rank of it is away";
  return "a tensor of it is being opened, or a server that was asked before has not answered";
}

static void say_full(const struct zps_member_job *job, const struct census *census,
                     struct zps_member_rebalanced *said) {
  if (job->view.n_first == job->view.n_places)
    zps_text_add(said->why, sizeof said->why, "it began with %u servers and has them all", job->view.n_places);
  else
    zps_text_add(said->why, sizeof said->why, "it began with %u servers, and all of its %u places have one",
                 job->view.n_first, job->view.n_places);
  if (census->n_spare > 0)
    zps_text_add(said->why, sizeof said->why, "; %u more have new jobs alone: its number of places stays as it is (%s)",
                 census->n_spare, zps_config_label("job.server_places"));
}

static unsigned long seconds(uint64_t from_ns, uint64_t to_ns) {
  return (unsigned long)(to_ns > from_ns ? (to_ns - from_ns) / ZPS_NS_PER_S : 0);
}

/* Servers that are there for a free place, but ranks could not reach them: each with the rank and what it saw. */
static bool say_unreachable(const struct zps_members *members, const struct zps_member_job *job,
                            const struct census *census, struct zps_member_rebalanced *said) {
  bool any = false;
  for (unsigned i = 0; i < members->n_servers; i++) {
    const struct zps_member_server *const server = members->servers[i];
    const struct zps_member_cutoff *const cutoff = zps_member_job_cutoff(job, server);
    if (!cutoff || !zps_members_is_placeable(job, server)) continue;
    if (!any)
      zps_text_add(said->why, sizeof said->why, "%u of its %u places are free", census->n_free, job->view.n_places);
    zps_text_add(said->why, sizeof said->why,
                 "; rank %u could not reach '%s' %lu s ago: %s; it is asked again in %lu s (sooner: zenpsctl undrain "
                 "%s)",
                 cutoff->rank, server->name, seconds(cutoff->out_ns, members->now_ns), cutoff->why,
                 seconds(members->now_ns, cutoff->again_ns), server->name);
    any = true;
  }
  return any;
}

/* Whether the job can take in servers at all, now or later; else `said` has why not. */
static bool could(const struct zps_members *members, const struct zps_member_job *job, const struct census *census,
                  struct zps_member_rebalanced *said) {
  struct zps_error why;
  if (job->state < ZPS_JOB_RUNNING)
    zps_text_add(said->why, sizeof said->why, "it does not run yet: it begins on all servers that take jobs");
  else if (job->state == ZPS_JOB_CLOSING)
    zps_text_add(said->why, sizeof said->why, "it has failed, and waits for its ranks to leave");
  else if (job->n_left > 0)
    zps_text_add(said->why, sizeof said->why, "%u of its ranks have left: it is about to end", job->n_left);
  else if (census->n_free == 0 && job->generation.number == 0)
    say_full(job, census, said);
  else if (census->n_spare == 0 && census->n_joining == 0 && say_unreachable(members, job, census, said))
    said->outcome = ZPS_REBALANCE_WAITS;
  else if (census->n_spare == 0 && census->n_joining == 0)
    zps_text_add(said->why, sizeof said->why, "%u of its %u places are free, and no server is there to take one",
                 census->n_free, job->view.n_places);
  else if (job->generation.number == 0 && zps_members_cannot_move(members, job, &why))
    zps_text_add(said->why, sizeof said->why, "%s", why.text);
  else
    return true;
  return false;
}

static void rebalance_elastic(struct zps_members *members, struct zps_member_job *job,
                              struct zps_member_rebalanced *said) {
  const struct zps_member_elastic *const elastic = zps_members_elastic_get(members, job->name);
  if (!elastic || elastic->job != job) {
    zps_text_add(said->why, sizeof said->why,
                 "it is elastic, and its ranks cannot be told: a later generation of it runs, or there is no memory");
    return;
  }
  job->place_now = true;
  said->outcome = ZPS_REBALANCE_WAITS;
  said->n_servers += zps_members_count_placeable(members, job);
  zps_text_add(said->why, sizeof said->why,
               "its ranks are told: they begin its next generation, which is placed on all servers");
}

static void rebalance(struct zps_members *members, struct zps_member_job *job, struct zps_member_rebalanced *said) {
  struct census census = count(members, job);
  *said = (struct zps_member_rebalanced){.outcome = ZPS_REBALANCE_STAYS, .n_servers = census.n_in};
  if (!could(members, job, &census, said)) return;
  if (job->generation.number > 0) {
    rebalance_elastic(members, job, said);
    return;
  }
  uint64_t again_ns;
  job->place_now = true;
  if (!zps_members_places_settle(members, job, &again_ns)) return;
  census = count(members, job);
  if (census.n_joining > 0) {
    say_moves(job, said);
  } else {
    said->outcome = ZPS_REBALANCE_WAITS;
    census.n_joining = census.n_free < census.n_spare ? census.n_free : census.n_spare;
    zps_text_add(said->why, sizeof said->why, "%s: servers take free places when that is over", what_holds_it(job));
  }
  said->n_servers += census.n_joining;
}

zps_err_t zps_members_no_such_job(const struct zps_members *members, const char *name, struct zps_error *error) {
  struct zps_near near;
  char meant[ZPS_NAME_MAX + 32];
  zps_near_begin(&near, name, strlen(name));
  for (const struct zps_member_job *job = members->jobs; job; job = job->next) zps_near_try(&near, job->name);
  return zps_fail(error, ZPS_ERR_UNKNOWN, "there is no job '%.100s': %szenpsctl jobs lists those that there are", name,
                  zps_near_say(&near, "did you mean '", "'? ", meant, sizeof meant));
}

zps_err_t zps_members_rebalance(struct zps_members *members, const char *name, zps_members_rebalanced_fn *each,
                                void *ctx, struct zps_error *error) {
  bool is_known = !name;
  for (struct zps_member_job *job = members->jobs; job && !is_known; job = job->next)
    is_known = strcmp(job->name, name) == 0;
  if (!is_known) return zps_members_no_such_job(members, name, error);
  zps_members_settle(members);
  for (struct zps_member_job *job = members->jobs, *next; job; job = next) {
    struct zps_member_rebalanced said;
    next = job->next;
    if (name && strcmp(job->name, name) != 0) continue;
    rebalance(members, job, &said);
    each(ctx, job, &said);
  }
  return ZPS_OK;
}

bool zps_member_job_moves(const struct zps_member_job *job) {
  return zps_view_count(&job->view, ZPS_PLACE_JOINING) > 0 || job->map.state != ZPS_MAP_NONE;
}

const char *zps_rebalance_name(enum zps_rebalance outcome) {
  static const char *const names[] = {
      [ZPS_REBALANCE_MOVES] = "moves", [ZPS_REBALANCE_WAITS] = "waits", [ZPS_REBALANCE_STAYS] = "stays"};
  return names[outcome];
}
