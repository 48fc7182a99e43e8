/* Generations of elastic jobs: when one begins, who is in it, as which rank, and from whose state it goes on. */
#include <stdlib.h>
#include <string.h>

#include "server/membership/elastic.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/log.h"

#define SETTLE_NS (5 * ZPS_NS_PER_S) /* in which a generation does not end for the sake of servers */

/* Who waits, and who is waited for. */
struct count {
  uint32_t survivors, newcomers, expected;
  const struct zps_member_asker *first; /* survivor, or newcomer where there is none */
};

static struct count count_all(const struct zps_member_elastic *elastic) {
  struct count count = {.first = NULL};
  for (const struct zps_member_asker *asker = elastic->askers; asker; asker = asker->next) {
    if (asker->last_seat && count.survivors++ == 0) count.first = asker;
    if (!asker->last_seat) count.newcomers++;
  }
  if (!count.first) count.first = elastic->askers;
  for (uint32_t r = 0; r < elastic->last_world; r++)
    count.expected += elastic->seats[r].state == ZPS_SEAT_IN || elastic->seats[r].state == ZPS_SEAT_MOVING;
  return count;
}

static bool is_over(uint64_t at_ns, uint64_t now_ns, uint64_t *deadline_ns) {
  if (at_ns <= now_ns) return true;
  if (at_ns < *deadline_ns) *deadline_ns = at_ns;
  return false;
}

/* The last quarter of the first one's time is for the job's opening. */
static uint64_t last_call_ns(const struct zps_member_asker *first) {
  return first->asked_ns + first->rank->timeout_ms * ZPS_NS_PER_MS / 4 * 3;
}

static bool is_due(const struct zps_member_elastic *elastic, const struct count *count, uint64_t now_ns,
                   uint64_t *deadline_ns) {
  const uint32_t n = count->survivors + count->newcomers;
  if (n == 0 || elastic->forming) return false;
  if (count->expected > 0 && count->survivors == 0) return false; /* the job goes on */
  if (count->expected > 0 && !is_over(last_call_ns(count->first), now_ns, deadline_ns)) return false;
  if (n < elastic->min_world) return false;
  if (n >= elastic->max_world || (count->survivors > 0 && n >= elastic->last_world)) return true;
  const uint64_t wait_ns = count->first->asked_ns + elastic->wait_ms * ZPS_NS_PER_MS,
                 last_ns = last_call_ns(count->first);
  return is_over(wait_ns < last_ns ? wait_ns : last_ns, now_ns, deadline_ns);
}

/* Newcomers have a place only where survivors leave one. */
static uint32_t choose(const struct zps_member_elastic *elastic, const struct count *count,
                       struct zps_member_asker **chosen) {
  uint32_t n = 0;
  for (uint32_t r = 0; r < elastic->last_world && count->survivors > 0; r++)
    for (struct zps_member_asker *asker = elastic->askers; asker; asker = asker->next)
      if (asker->last_seat == r + 1 && n < elastic->max_world) chosen[n++] = asker;
  for (struct zps_member_asker *asker = elastic->askers; asker; asker = asker->next)
    if (!asker->last_seat && n < elastic->max_world) chosen[n++] = asker;
  return n;
}

/* Which rank an asker would like to have; NO_RANK: the next that is free. */
static uint32_t wish(const struct zps_member_elastic *elastic, const struct count *count,
                     const struct zps_member_asker *asker, uint32_t n) {
  if (count->survivors == 0) return asker->rank->rank;
  return asker->last_seat && n == elastic->last_world ? asker->last_seat - 1 : ZPS_NO_RANK;
}

static void seat_all(const struct zps_member_elastic *elastic, const struct count *count,
                     struct zps_member_asker **chosen, uint32_t n, struct zps_member_asker **places) {
  for (uint32_t i = 0; i < n; i++) {
    const uint32_t at = wish(elastic, count, chosen[i], n);
    if (at >= n || places[at]) continue;
    places[at] = chosen[i];
    chosen[i] = NULL;
  }
  for (uint32_t i = 0, at = 0; i < n; i++) {
    if (!chosen[i]) continue;
    while (places[at]) at++;
    places[at] = chosen[i];
  }
}

/* Anybody may say any number. It counts of ranks alone: the coordinator may have lost its state since their last one. */
static void take_number(struct zps_member_elastic *elastic, struct zps_member_asker *const *places, uint32_t n) {
  for (uint32_t r = 0; r < n; r++) {
    const uint32_t said = places[r]->last_generation;
    if (said > elastic->number && said <= ZPS_GENERATION_SAID_MAX) elastic->number = said;
  }
}

static struct zps_generation generation_of(struct zps_member_elastic *elastic, const struct count *count,
                                           struct zps_member_asker *const *places, uint32_t n) {
  take_number(elastic, places, n);
  struct zps_generation generation = {.number = ++elastic->number};
  bool is_known = false;
  for (uint32_t r = 0; r < n; r++) {
    if (count->survivors > 0 && !places[r]->last_seat) continue;
    if (is_known && places[r]->step <= generation.step) continue;
    generation.source = r;
    generation.step = places[r]->step;
    is_known = true;
  }
  return generation;
}

static void give_place(struct zps_member_job *job, uint32_t r, struct zps_member_asker *asker) {
  struct zps_member_rank *const rank = asker->rank;
  zps_members_asker_seated(asker);
  rank->rank = r;
  rank->client->job = job;
  rank->client->rank = r;
  job->ranks[r] = rank;
  job->n_joined++;
}

static void begin(struct zps_members *members, struct zps_member_elastic *elastic, const struct count *count,
                  uint64_t now_ns) {
  const uint32_t n_all = count->survivors + count->newcomers;
  struct zps_member_asker **const chosen = calloc(n_all, 2 * sizeof(struct zps_member_asker *)),
                                  **places = chosen + n_all;
  struct zps_member_job *job = NULL;
  struct zps_error error;
  zps_err_t err = chosen ? ZPS_OK : zps_fail(&error, ZPS_ERR_NOMEM, "no memory for job '%s'", elastic->name);
  const uint32_t n = chosen ? choose(elastic, count, chosen) : 0;
  if (!err) {
    seat_all(elastic, count, chosen, n, places);
    free(elastic->next_seats);
    elastic->next_seats = calloc(n, sizeof *elastic->next_seats);
    if (!elastic->next_seats) err = zps_fail(&error, ZPS_ERR_NOMEM, "no memory for job '%s'", elastic->name);
  }
  if (!err)
    err = zps_members_job_create(members, &(struct zps_join_spec){.job = elastic->name, .world = n}, now_ns, &job,
                                 &error);
  if (err) {
    while (elastic->askers) zps_members_asker_refuse(members, elastic->askers, error.code, error.text);
  } else {
    job->elastic = elastic;
    job->tenant = elastic->tenant;
    job->origin = elastic->askers->rank->origin;
    job->generation = generation_of(elastic, count, places, n);
    elastic->forming = job;
    zps_members_elastic_note(members, elastic); /* no other one is to have its number, not after a new start either */
    zps_log_about(.job = job->name);
    zps_log_info("job '%s': generation %u has %u ranks, %u of %u from the last one and %u new; from step %llu",
                 job->name, job->generation.number, n, count->survivors, elastic->last_world, n - count->survivors,
                 (unsigned long long)job->generation.step);
    for (uint32_t r = 0; r < n; r++) give_place(job, r, places[r]);
  }
  free(chosen);
}

/* ------------------------------------------------------------ time */

static void move_late(struct zps_member_elastic *elastic, uint64_t now_ns, uint64_t *deadline_ns) {
  for (uint32_t r = 0; r < elastic->last_world; r++) {
    struct zps_member_seat *const seat = &elastic->seats[r];
    if (seat->state == ZPS_SEAT_MOVING && is_over(seat->until_ns, now_ns, deadline_ns)) seat->state = ZPS_SEAT_GONE;
  }
}

static void refuse_late(struct zps_members *members, const struct zps_member_elastic *elastic,
                        const struct count *count, uint64_t now_ns, uint64_t *deadline_ns) {
  const uint32_t n = count->survivors + count->newcomers;
  for (struct zps_member_asker *asker = elastic->askers, *next; asker; asker = next) {
    struct zps_error error;
    next = asker->next;
    if (!is_over(asker->rank->deadline_ns, now_ns, deadline_ns)) continue;
    const double seconds = (double)asker->rank->timeout_ms / 1000;
    if (elastic->forming || (count->expected > 0 && count->survivors == 0))
      zps_fail(&error, ZPS_ERR_MISSING,
               "job '%s' goes on with %u ranks, of at most %u: there was no place in it for %g s", elastic->name,
               elastic->forming ? elastic->forming->world : elastic->last_world, elastic->max_world, seconds);
    else
      zps_fail(&error, ZPS_ERR_MISSING, "job '%s': after %g s %u ranks were there of the %u that it needs at least",
               elastic->name, seconds, n, elastic->min_world);
    zps_log_about(.job = elastic->name);
    zps_log_failure(ZPS_LOG_WARN, &error);
    zps_members_asker_refuse(members, asker, error.code, error.text);
  }
}

/* Servers have gone from the job, and others are there now that could be in the next generation. */
static bool has_spare_server(const struct zps_members *members, const struct zps_member_job *job) {
  if (zps_view_count(&job->view, ZPS_PLACE_IN) == job->view.n_places) return false;
  for (unsigned s = 0; s < members->n_servers; s++) {
    const struct zps_member_server *const server = members->servers[s];
    if (zps_members_is_placeable(job, server) && !zps_member_job_cutoff(job, server)) return true;
  }
  return false;
}

/* Once to all ranks of the job. */
static void tell_all(struct zps_members *members, struct zps_member_elastic *elastic) {
  const struct zps_member_job *const job = elastic->job;
  elastic->is_changed = true;
  zps_members_act_ranks(members, job, (struct zps_action){.type = ZPS_ACT_JOB_CHANGED});
}

bool zps_members_elastic_change(struct zps_members *members, struct zps_member_job *job) {
  if (!zps_members_elastic_adopt(members, job)) return false;
  if (!job->elastic->is_changed) tell_all(members, job->elastic);
  return true;
}

static void tell_changed(struct zps_members *members, struct zps_member_elastic *elastic, const struct count *count,
                         uint64_t now_ns, uint64_t *deadline_ns) {
  const struct zps_member_job *const job = elastic->job;
  if (!job || job->state != ZPS_JOB_RUNNING || elastic->is_changed) return;
  const bool has_room = count->newcomers > 0 && job->world < elastic->max_world;
  if (!has_room && !(has_spare_server(members, job) && is_over(job->started_ns + SETTLE_NS, now_ns, deadline_ns)))
    return;
  tell_all(members, elastic);
}

bool zps_members_elastic_settle(struct zps_members *members, uint64_t *deadline_ns) {
  const uint64_t now_ns = members->now_ns;
  bool any_begun = false;
  if (members->draining) zps_members_elastic_refuse(members, ZPS_ERR_REFUSED, "the coordinator is shutting down");
  for (struct zps_member_elastic **link = &members->elastics; *link;) {
    struct zps_member_elastic *const elastic = *link;
    move_late(elastic, now_ns, deadline_ns);
    struct count count = count_all(elastic);
    if (is_due(elastic, &count, now_ns, deadline_ns)) {
      begin(members, elastic, &count, now_ns);
      any_begun = true;
      count = count_all(elastic); /* those that had no place */
    }
    refuse_late(members, elastic, &count, now_ns, deadline_ns);
    tell_changed(members, elastic, &count, now_ns, deadline_ns);
    if (elastic->askers || elastic->forming || elastic->job || count.expected > 0) {
      link = &elastic->next;
      continue;
    }
    *link = elastic->next;
    if (elastic->is_noted)
      zps_members_note(members, &(struct zps_member_note){.type = ZPS_NOTE_SEATS, .elastic = elastic});
    zps_members_elastic_destroy(elastic);
  }
  return any_begun;
}
