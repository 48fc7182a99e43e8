/* Generations of elastic jobs: the facts for the policy (placement.h), and its decisions carried out. */
#include <stdlib.h>

#include "common/base/enlarge.h"
#include "server/membership/elastic.h"
#include "server/membership/placement.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/log.h"

#define SETTLE_NS (5 * ZPS_NS_PER_S) /* in which a generation does not end for the sake of servers */

/* ------------------------------------------------------------ facts */

/* Servers have gone from the job, and others are there now that could be in the next generation. */
static bool has_spare_server(const struct zps_members *members, const struct zps_member_job *job) {
  if (zps_view_count(&job->view, ZPS_PLACE_IN) == job->view.n_places) return false;
  for (unsigned s = 0; s < members->n_servers; s++) {
    const struct zps_member_server *const server = members->servers[s];
    if (zps_members_is_placeable(job, server) && !zps_member_job_cutoff(job, server)) return true;
  }
  return false;
}

static uint64_t asked_ns(const struct zps_member_rank *rank) {
  return rank->deadline_ns - rank->timeout_ms * ZPS_NS_PER_MS;
}

/* The first to ask counts: among the survivors, if there are any. The last quarter of its time is for the opening. */
static void count_askers(const struct zps_member_elastic *elastic, struct zps_seating_facts *facts) {
  const struct zps_member_rank *first = elastic->askers;
  for (const struct zps_member_rank *rank = elastic->askers; rank; rank = rank->next_asker) {
    *(rank->last_seat ? &facts->n_survivors : &facts->n_newcomers) += 1;
    const bool is_alike = (rank->last_seat > 0) == (first->last_seat > 0);
    if (is_alike && asked_ns(rank) < asked_ns(first)) first = rank;
  }
  if (!first) return;
  facts->waited_ns = asked_ns(first) + elastic->wait_ms * ZPS_NS_PER_MS;
  facts->last_call_ns = first->deadline_ns - first->timeout_ms * ZPS_NS_PER_MS / 4;
}

static struct zps_seating_facts collect_facts(const struct zps_members *members,
                                              const struct zps_member_elastic *elastic) {
  const struct zps_member_job *const job = elastic->job;
  const bool is_running = job && job->state == ZPS_JOB_RUNNING && job->generation.number > 0;
  struct zps_seating_facts facts = {.last_world = elastic->last_world,
                                    .min_world = elastic->min_world,
                                    .max_world = elastic->max_world,
                                    .is_opening = elastic->forming != NULL,
                                    .is_running = is_running,
                                    .is_changed = elastic->is_changed,
                                    .is_wanted = job && job->place_now,
                                    .spare_ns = ZPS_NEVER};
  count_askers(elastic, &facts);
  for (uint32_t r = 0; r < elastic->last_world; r++)
    facts.n_awaited += elastic->moves[r] ? elastic->moves[r] != ZPS_NEVER : job && job->ranks[r]->state == ZPS_RANK_IN;
  if (is_running && !facts.is_changed && has_spare_server(members, job)) facts.spare_ns = job->started_ns + SETTLE_NS;
  return facts;
}

/* ------------------------------------------------------------ a generation begins */

/* The rank that an asker would like to be; ZPS_NO_RANK: the next that is free. */
static uint32_t wish(const struct zps_seating_facts *facts, const struct zps_member_rank *rank, uint32_t n) {
  if (facts->n_survivors == 0) return rank->rank;
  return rank->last_seat && n == facts->last_world ? rank->last_seat - 1 : ZPS_NO_RANK;
}

/* Newcomers have a seat only where survivors leave one. */
static void seat_all(struct zps_member_elastic *elastic, const struct zps_seating_facts *facts,
                     struct zps_member_job *job) {
  struct zps_member_rank *rank = elastic->askers;
  const uint32_t n = job->world;
  for (uint32_t i = 0; i < n; i++, rank = rank->next_asker) {
    const uint32_t at = wish(facts, rank, n);
    if (at < n && !job->ranks[at]) job->ranks[at] = rank;
  }
  rank = elastic->askers;
  for (uint32_t i = 0, at = 0; i < n; i++, rank = rank->next_asker) {
    const uint32_t wished = wish(facts, rank, n);
    if (wished < n && job->ranks[wished] == rank) continue;
    while (job->ranks[at]) at++;
    job->ranks[at] = rank;
  }
  elastic->askers = rank;
  for (uint32_t r = 0; r < n; r++) {
    struct zps_member_client *const client = job->ranks[r]->client;
    job->ranks[r]->rank = client->rank = r;
    client->asker = NULL;
    client->job = job;
  }
  job->n_joined = n;
}

/* Anybody may say any number. It counts of ranks alone: the coordinator may have lost its state since their last one.
 */
static void take_number(struct zps_member_elastic *elastic, const struct zps_member_job *job) {
  for (uint32_t r = 0; r < job->world; r++) {
    const uint32_t said = job->ranks[r]->last_generation;
    if (said > elastic->number && said <= ZPS_GENERATION_SAID_MAX) elastic->number = said;
  }
  elastic->number++;
}

/* All take the state of the rank with the most steps. */
static struct zps_generation generation_of(const struct zps_member_elastic *elastic,
                                           const struct zps_seating_facts *facts, const struct zps_member_job *job) {
  struct zps_generation generation = {.number = elastic->number};
  bool is_known = false;
  for (uint32_t r = 0; r < job->world; r++) {
    const struct zps_member_rank *const rank = job->ranks[r];
    if (facts->n_survivors > 0 && !rank->last_seat) continue;
    if (is_known && rank->step <= generation.step) continue;
    generation.source = r;
    generation.step = rank->step;
    is_known = true;
  }
  return generation;
}

/* With room for the seats of the last generation, until the next one runs. */
static zps_err_t make_room(struct zps_member_elastic *elastic, uint32_t world, struct zps_error *error) {
  const uint32_t n = world > elastic->last_world ? world : elastic->last_world;
  if (zps_enlarge(&elastic->moves, n, sizeof *elastic->moves)) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_NOMEM, "no memory for job '%s'", elastic->name);
}

static void refuse_all(struct zps_members *members, const struct zps_member_elastic *elastic, zps_err_t code,
                       const char *text) {
  while (elastic->askers) zps_members_asker_refuse(members, elastic->askers, code, text);
}

static void begin(struct zps_members *members, struct zps_member_elastic *elastic,
                  const struct zps_seating_facts *facts) {
  const uint32_t n_all = facts->n_survivors + facts->n_newcomers;
  const uint32_t n = n_all < facts->max_world ? n_all : facts->max_world;
  const struct zps_join_spec spec = {.job = elastic->name, .world = n};
  struct zps_member_job *job = NULL;
  struct zps_error error;
  zps_err_t err = make_room(elastic, n, &error);
  if (!err) err = zps_members_job_create(members, &spec, members->now_ns, &job, &error);
  if (err) {
    refuse_all(members, elastic, error.code, error.text);
    return;
  }
  job->elastic = elastic;
  job->tenant = elastic->tenant;
  job->origin = elastic->askers->origin;
  seat_all(elastic, facts, job);
  take_number(elastic, job);
  job->generation = generation_of(elastic, facts, job);
  elastic->forming = job;
  zps_members_elastic_note(members, elastic); /* no other one is to have its number, not after a new start either */
  zps_log_about(.job = job->name);
  zps_log_info("job '%s': generation %u has %u ranks, %u of %u from the last one and %u new; from step %llu", job->name,
               job->generation.number, n, facts->n_survivors, elastic->last_world, n - facts->n_survivors,
               (unsigned long long)job->generation.step);
}

/* ------------------------------------------------------------ time */

static void expire_moves(const struct zps_member_elastic *elastic, uint64_t now_ns, uint64_t *deadline_ns) {
  for (uint32_t r = 0; r < elastic->last_world; r++)
    if (elastic->moves[r] && zps_members_is_due(elastic->moves[r], now_ns, deadline_ns)) elastic->moves[r] = 0;
}

static void refuse_late(struct zps_members *members, const struct zps_member_elastic *elastic,
                        const struct zps_seating_facts *facts, uint64_t *deadline_ns) {
  for (struct zps_member_rank *rank = elastic->askers, *next; rank; rank = next) {
    struct zps_error error;
    next = rank->next_asker;
    if (!zps_members_is_due(rank->deadline_ns, members->now_ns, deadline_ns)) continue;
    const double seconds = (double)rank->timeout_ms / 1000;
    if (elastic->forming || (facts->n_awaited > 0 && facts->n_survivors == 0))
      zps_fail(&error, ZPS_ERR_MISSING,
               "job '%s' goes on with %u ranks, of at most %u: there was no place in it for %g s", elastic->name,
               elastic->forming ? elastic->forming->world : elastic->last_world, elastic->max_world, seconds);
    else
      zps_fail(&error, ZPS_ERR_MISSING, "job '%s': after %g s %u ranks were there of the %u that it needs at least",
               elastic->name, seconds, facts->n_survivors + facts->n_newcomers, elastic->min_world);
    zps_log_about(.job = elastic->name);
    zps_log_failure(ZPS_LOG_WARN, &error);
    zps_members_asker_refuse(members, rank, error.code, error.text);
  }
}

/* ------------------------------------------------------------ settled */

/* Once to each rank. One that is away hears it when it is back. */
static void notify(struct zps_members *members, const struct zps_member_job *job) {
  for (uint32_t r = 0; r < job->world; r++) {
    struct zps_member_rank *const rank = job->ranks[r];
    if (rank->state != ZPS_RANK_IN || !rank->client || rank->has_change) continue;
    rank->has_change = true;
    zps_members_act(members, .type = ZPS_ACT_JOB_CHANGED, .client = rank->client, .job = job);
  }
}

static bool is_needed(const struct zps_member_elastic *elastic) {
  return elastic->askers || elastic->forming || elastic->job || zps_members_elastic_moves(elastic);
}

/* True: a generation has begun. */
static bool settle(struct zps_members *members, struct zps_member_elastic *elastic, uint64_t *deadline_ns) {
  const uint64_t now_ns = members->now_ns;
  if (members->draining) refuse_all(members, elastic, ZPS_ERR_REFUSED, "the coordinator is shutting down");
  expire_moves(elastic, now_ns, deadline_ns);
  struct zps_seating_facts facts = collect_facts(members, elastic);
  const bool begins = zps_members_is_due(zps_seating_begins_ns(&facts), now_ns, deadline_ns);
  if (begins) begin(members, elastic, &facts);
  if (begins) facts = collect_facts(members, elastic); /* those that had no seat */
  refuse_late(members, elastic, &facts, deadline_ns);
  if (zps_members_is_due(zps_seating_changes_ns(&facts), now_ns, deadline_ns)) elastic->is_changed = true;
  if (facts.is_running && elastic->is_changed) notify(members, elastic->job);
  if (is_needed(elastic)) return begins;
  if (elastic->is_noted) zps_members_note(members, .type = ZPS_NOTE_SEATS, .elastic = elastic);
  zps_members_elastic_destroy(members, elastic);
  return begins;
}

bool zps_members_elastic_settle(struct zps_members *members, uint64_t *deadline_ns) {
  bool any_begun = false;
  for (struct zps_member_elastic *elastic = members->elastics, *next; elastic; elastic = next) {
    next = elastic->next;
    if (settle(members, elastic, deadline_ns)) any_begun = true;
  }
  return any_begun;
}
