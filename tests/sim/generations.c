#include "tests/sim/generations.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/sim/elastic.h"
#include "tests/sim/sums.h"
#include "worker/api/job.h"

enum { GENERATIONS_MAX = 14, STEPS_APART = 73 /* numbers of attempts at steps, from one to the next */ };
#define MARGIN_NS (1500 * ZPS_NS_PER_MS)
#define LEFT_NS (2 * ZPS_NS_PER_S) /* what a rank has sent that has left may be on its way */
#define DEAD_NS (2 * ZPS_NS_PER_S)
#define MOVE_NS (10 * ZPS_NS_PER_S)  /* a rank that is on its way is waited for */
#define RETURN_NS (7 * ZPS_NS_PER_S) /* all ranks are waited for when the coordinator has started again */
#define SERVER_NS (7 * ZPS_NS_PER_S) /* a job is opened on servers of which one does not answer */
#define SLOW_NS (10 * ZPS_NS_PER_S)

static struct {
  struct sim_generation all[GENERATIONS_MAX];
  uint32_t n;
  uint64_t quiet_ns; /* the end of the last fault, so far */
  uint64_t slack_ns; /* by faults */
  bool lags;         /* some process may be left behind, or taken for another one */
  uint32_t n_taken;  /* servers that were taken away */
  bool any_lost_on_way, has_finished, are_few;
} generations;

/* ------------------------------------------------------------ faults */

static bool is_on_way(const struct sim_rank *rank) {
  return !rank->has_ended && !rank->generation && rank->n_left == 0;
}

void sim_elastic_lost(struct sim_rank *rank, const char *why) {
  for (uint32_t r = 0; rank->generation && r < rank->generation->plan.world; r++)
    if (rank->generation->ranks[r] == rank) sim_late_forget(rank->generation->first, STEPS_APART, r);
  if (rank->generation)
    sim_generation_over(rank->generation, why);
  else
    generations.any_lost_on_way = rank->was_lost = true;
}

static uint32_t n_alive(void) {
  uint32_t n = 0;
  for (uint32_t r = 0; r < sim_cluster.n_ranks; r++) n += !sim_cluster.ranks[r].has_ended;
  return n;
}

void sim_elastic_befalls(const struct sim_fault *fault) {
  struct sim_rank *const rank = &sim_cluster.ranks[fault->who];
  uint64_t for_ns = 0, slack_ns = 0;
  generations.n_taken += sim_fault_takes_server(fault->kind);
  switch (fault->kind) {
    case SIM_KILL_RANK:
      if (is_on_way(rank)) slack_ns = MOVE_NS;
      generations.are_few |= n_alive() - 1 < sim_cluster.plan->min_world;
      break;
    case SIM_CUT_RANK:
      slack_ns = DEAD_NS + (is_on_way(rank) ? MOVE_NS : 0);
      if (is_on_way(rank)) sim_elastic_lost(rank, NULL);
      generations.lags = true;
      break;
    case SIM_STOP_RANK:
      for_ns = fault->for_ns;
      slack_ns = DEAD_NS + (is_on_way(rank) ? MOVE_NS : 0);
      generations.lags = true;
      if (fault->for_ns > DEAD_NS / 2) sim_elastic_lost(rank, "a rank was stopped");
      break;
    case SIM_SHORT_COORDINATOR:
    case SIM_RESTART_COORDINATOR:
    case SIM_STOP_COORDINATOR:
      for_ns = fault->for_ns;
      slack_ns = RETURN_NS;
      generations.lags = true;
      break;
    case SIM_SLOW_RANK:
    case SIM_SLOW_SERVER:
      slack_ns = SLOW_NS;
      generations.lags = true;
      break;
    case SIM_KILL_SERVER:
    case SIM_DRAIN_SERVER:
    case SIM_CUT_SERVER:
      slack_ns = SERVER_NS;
      break;
    case SIM_STOP_SERVER:
      for_ns = fault->for_ns;
      slack_ns = SERVER_NS;
      break;
    default:
      break;
  }
  const uint64_t until_ns = sim_now_ns() + for_ns;
  if (generations.quiet_ns < until_ns) generations.quiet_ns = until_ns;
  generations.slack_ns += slack_ns;
}

/* ------------------------------------------------------------ a rank comes into one */

static bool is_alike(const zenps_generation_t *a, const zenps_generation_t *b) {
  return a->number == b->number && a->world == b->world && a->source == b->source && a->step == b->step;
}

static void check_told(const struct sim_rank *rank, const struct sim_generation *generation,
                       const zenps_generation_t *told, const struct sim_place *was) {
  const struct sim_plan *const plan = sim_cluster.plan;
  if (!is_alike(&generation->told, told))
    sim_wrong("process %u was told of a generation %u of %d ranks, from rank %d's step %" PRIu64
              ", others of one %u of %d, from rank %d's step %" PRIu64,
              rank->rank, told->number, told->world, told->source, told->step, generation->told.number,
              generation->told.world, generation->told.source, generation->told.step);
  if (told->number == 0 || told->world < (int)plan->min_world || told->world > (int)plan->max_world || told->rank < 0 ||
      told->rank >= told->world || told->source < 0 || told->source >= told->world)
    sim_wrong("process %u is rank %d of %d in generation %u, whose source is rank %d", rank->rank, told->rank,
              told->world, told->number, told->source);
  else if (generation->ranks[told->rank])
    sim_wrong("processes %u and %u are both rank %d of generation %u", generation->ranks[told->rank]->rank, rank->rank,
              told->rank, told->number);
  if (was->generation && told->number <= was->generation->told.number)
    sim_wrong("process %u was in generation %u, and is in generation %u now", rank->rank, was->generation->told.number,
              told->number);
  if (told->rank == told->source && told->step != was->step)
    sim_wrong("process %u has done %" PRIu64 " steps, and is the source of generation %u, of %" PRIu64, rank->rank,
              was->step, told->number, told->step);
  if (!generations.lags && told->step < was->step)
    sim_wrong("process %u has done %" PRIu64 " steps, and generation %u begins from %" PRIu64, rank->rank, was->step,
              told->number, told->step);
}

/* Ranks that were in the last one keep their places where it was as large, and their order. */
static void check_order(const struct sim_generation *generation, int rank, const struct sim_place *was) {
  if (generations.lags || !was->generation) return;
  if (was->generation->plan.world == generation->plan.world && was->rank != rank)
    sim_wrong("rank %d is rank %d in generation %u, which has as many", was->rank, rank, generation->told.number);
  for (int other = 0; other < generation->told.world; other++) {
    const struct sim_place *const place = &generation->places[other];
    if (generation->ranks[other] && place->generation == was->generation && (place->rank < was->rank) != (other < rank))
      sim_wrong("ranks %d and %d are ranks %d and %d in generation %u", place->rank, was->rank, other, rank,
                generation->told.number);
  }
}

/* All that live have left those before, but for who may be left behind. */
static void check_before(const struct sim_generation *generation) {
  for (uint32_t r = 0; r < sim_cluster.n_ranks; r++) {
    const struct sim_rank *const other = &sim_cluster.ranks[r];
    if (!other->has_ended && other->generation && other->generation != generation && !generations.lags)
      sim_wrong("generation %u has begun, and process %u is in generation %u still", generation->told.number, r,
                other->generation->told.number);
  }
}

/* The longest. */
static uint64_t grace_of(const struct sim_plan *plan) {
  uint64_t most_ms = 0;
  for (uint32_t t = 0; t < plan->n_tensors; t++)
    if (plan->tensors[t].grace_ms > most_ms) most_ms = plan->tensors[t].grace_ms;
  return most_ms * ZPS_NS_PER_MS;
}

static void check_time(const struct sim_rank *rank, const struct sim_place *was) {
  const struct sim_plan *const plan = sim_cluster.plan;
  if (!was->generation) return;
  uint64_t from_ns = was->generation->over_ns;
  if (from_ns < generations.quiet_ns) from_ns = generations.quiet_ns;
  /* One that hears that the job has changed ends the steps in flight first. */
  const uint64_t bound_ns = plan->join_wait_ms * ZPS_NS_PER_MS + plan->window * (plan->step_ns + grace_of(plan)) +
                            LEFT_NS + MARGIN_NS + generations.slack_ns;
  if (sim_now_ns() > from_ns + bound_ns)
    sim_wrong("process %u goes on %.3f s after generation %u was over, not in %.3f s", rank->rank,
              (double)(sim_now_ns() - from_ns) / 1e9, was->generation->told.number, (double)bound_ns / 1e9);
}

static struct sim_generation *find(uint64_t job_id) {
  uint32_t i = 0;
  while (i < generations.n && generations.all[i].job_id != job_id) i++;
  return i < generations.n ? &generations.all[i] : NULL;
}

static struct sim_generation *make(uint64_t job_id, const zenps_generation_t *told) {
  if (generations.n == GENERATIONS_MAX) {
    sim_wrong("there is one generation after the other");
    return NULL;
  }
  struct sim_generation *const generation = &generations.all[generations.n];
  *generation = (struct sim_generation){
      .job_id = job_id, .told = *told, .plan = *sim_cluster.plan, .first = generations.n++ * STEPS_APART};
  generation->plan.world = (uint32_t)told->world;
  for (uint32_t t = 0; t < generation->plan.n_tensors; t++) /* all are needed where they are fewer */
    if (generation->plan.tensors[t].quorum > generation->plan.world)
      generation->plan.tensors[t].quorum = generation->plan.world;
  return generation;
}

struct sim_generation *sim_generation_enter(struct sim_rank *rank, const struct zenps_job *job,
                                            const zenps_generation_t *told, const struct sim_place *was) {
  const uint64_t job_id = job->membership.job_id;
  struct sim_generation *generation = find(job_id);
  if (!generation) generation = make(job_id, told);
  if (!generation) return NULL;
  check_told(rank, generation, told, was);
  if (sim_cluster.wrong[0]) return NULL;
  check_before(generation);
  check_time(rank, was);
  check_order(generation, told->rank, was);
  generation->ranks[told->rank] = rank;
  generation->places[told->rank] = *was;
  generation->n_in++;
  generation->n_servers = (uint32_t)zenps_servers(job);
  rank->generation = generation;
  if (rank->was_lost) sim_generation_over(generation, "a rank was taken for lost on its way");
  rank->was_lost = false;
  if (told->rank != told->source) return generation;
  generation->has_model = true;
  generation->model = was->model;
  return generation;
}

/* ------------------------------------------------------------ the end of one */

void sim_generation_over(struct sim_generation *generation, const char *why) {
  if (generation->over) return;
  generation->over = why;
  generation->over_ns = sim_now_ns();
}

/* A process that was lost on its way may have been in it, without having heard so; it may have begun on those servers
 * alone that are taken away; and a coordinator without memory ends connections. */
static bool may_lack(const struct sim_generation *generation) {
  return generation->over || sim_cluster.coordinator_short || generations.n_taken >= generation->n_servers ||
         (generations.any_lost_on_way && generation->n_in < (uint32_t)generation->told.world);
}

void sim_generation_failed(struct sim_generation *generation, const struct sim_rank *rank, const char *what,
                           zenps_status_t status, const char *text) {
  const bool may = status == ZENPS_ERR_PEER_LOST || status == ZENPS_ERR_CLOSED || status == ZENPS_ERR_MISSING ||
                   (status == ZENPS_ERR_SERVER_LOST && sim_cluster.server_taken) ||
                   (status == ZENPS_ERR_FABRIC && generations.lags); /* servers have closed the job */
  const bool by_memory = sim_cluster.was_short && (status == ZENPS_ERR_NOMEM || status == ZENPS_ERR_SERVER_LOST);
  if (!by_memory && (!may || !zenps_status_recoverable(status) || !may_lack(generation)))
    sim_wrong("process %u, rank of generation %u: %s: %s: %s", rank->rank, generation->told.number, what,
              zenps_strerror(status), text);
  sim_generation_over(generation, what);
}

void sim_generation_changed(struct sim_generation *generation, const struct sim_rank *rank) {
  bool any_waits = generations.any_lost_on_way; /* a lost rank that was on its way has waited */
  for (uint32_t r = 0; r < sim_cluster.n_ranks; r++) any_waits |= is_on_way(&sim_cluster.ranks[r]);
  if (!may_lack(generation) && !any_waits && !sim_cluster.server_taken)
    sim_wrong("process %u was told that generation %u goes no further, for no reason", rank->rank,
              generation->told.number);
  sim_generation_over(generation, "it was told that the job has changed");
}

void sim_generation_refused(const struct sim_rank *rank, const struct sim_place *was, zenps_status_t status,
                            const char *text) {
  const struct sim_generation *const last = generations.n > 0 ? &generations.all[generations.n - 1] : NULL;
  const bool is_full = last && last->plan.world == sim_cluster.plan->max_world;
  const bool may_wait_in_vain = generations.has_finished || generations.are_few ||
                                n_alive() < sim_cluster.plan->min_world ||
                                (is_full && (!was->generation || generations.lags));
  const bool by_memory = sim_cluster.was_short && status == ZENPS_ERR_NOMEM;
  if (!by_memory && (status != ZENPS_ERR_MISSING || !may_wait_in_vain))
    sim_wrong("process %u was not let in: %s: %s", rank->rank, zenps_strerror(status), text);
  generations.are_few |= n_alive() - 1 < sim_cluster.plan->min_world;
}

void sim_generation_finished(void) {
  generations.has_finished = true;
}
