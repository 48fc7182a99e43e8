#include "tests/sim/limits.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/account.h"
#include "common/net/slab.h"
#include "common/session/link.h"
#include "proto/wire.h"
#include "server/membership/layout.h"
#include "tests/sim/sched.h"

enum {
  AUTO_TENSORS = 5,
  NESTED_TENSORS = 3,
  HIDDEN_TENSORS = 3,  /* tensors that the library opens for itself */
  TABLES_BYTES = 8192, /* of a tensor, or of a round; and so many of each rank's part of a partition */
  SLOT_BYTES = 64,
  LARGE_ROWS = 6000, /* of a tensor that needs more than others' */
  HELD_BYTES = 512,  /* of a contribution, besides what it brings */
};

/* ------------------------------------------------------------ what a job needs */

static bool is_over_servers(const struct sim_tensor_plan *tensor) {
  return !tensor->between;
}

/* Rounds of different schemes, and those in which ranks agree on them. */
static bool is_auto(const struct sim_tensor_plan *tensor) {
  return strncmp(tensor->scheme, "auto", 4) == 0;
}

/* Steps that follow each other overlap. */
static uint64_t rounds_of(const struct sim_plan *plan) {
  uint64_t n = 0;
  for (uint32_t i = 0; i < plan->n_tensors; i++)
    n += is_over_servers(&plan->tensors[i]) ? (is_auto(&plan->tensors[i]) ? 4 : 2) * plan->window : 0;
  return n;
}

/* With those that a hierarchical one opens, or one for each of several schemes. */
static uint64_t tensors_of(const struct sim_plan *plan) {
  uint64_t n = 0;
  for (uint32_t i = 0; i < plan->n_tensors; i++) {
    const bool nests = strncmp(plan->tensors[i].scheme, "hierarchical", 12) == 0;
    n += is_auto(&plan->tensors[i]) ? AUTO_TENSORS : nests ? NESTED_TENSORS : 1;
  }
  return n;
}

static uint64_t parts_of(const struct sim_tensor_plan *tensor, uint32_t world) {
  uint32_t n_parts, block_bits;
  zps_layout_even(tensor->rows, tensor->width, SIM_SERVERS_MAX, SIM_SERVERS_MAX, &n_parts, &block_bits);
  return strcmp(tensor->scheme, "balanced") == 0
             ? zps_layout_of(tensor->rows, tensor->width, ZPS_DTYPE_F32, world, SIM_SERVERS_MAX, SIM_SERVERS_MAX, 0)
                   .n_parts
             : n_parts;
}

/* At most, of a server that has all partitions: links, tables, and all contributions and sums of all rounds at once. */
static uint64_t memory_of(const struct sim_plan *plan) {
  const uint64_t world = plan->world;
  uint64_t bytes = world * ZPS_LINK_BYTES + (tensors_of(plan) + HIDDEN_TENSORS) * TABLES_BYTES;
  for (uint32_t i = 0; i < plan->n_tensors; i++) {
    const struct sim_tensor_plan *const tensor = &plan->tensors[i];
    if (!is_over_servers(tensor)) continue;
    const uint64_t parts = parts_of(tensor, plan->world);
    const uint64_t whole = tensor->rows * (tensor->width * sizeof(float) + sizeof(uint64_t)), part = 2 * whole / parts;
    const uint64_t tables = TABLES_BYTES + parts * (world + 8) * SLOT_BYTES;
    const uint64_t small = parts * world * (HELD_BYTES + ZPS_WIRE_INLINE_MAX);
    bytes += tables + 2 * plan->window * (tables + small + parts * (world + 1) * zps_slab_bytes(part));
  }
  return bytes;
}

static uint64_t (*const needs[])(const struct sim_plan *plan) = {
    [SIM_LIMIT_MEMORY] = memory_of, [SIM_LIMIT_ROUNDS] = rounds_of, [SIM_LIMIT_TENSORS] = tensors_of};

/* ------------------------------------------------------------ the plan */

static void need_more(struct sim_plan *job, enum sim_limit limit) {
  const uint32_t n_tensors = job->n_tensors;
  if (limit == SIM_LIMIT_MEMORY) {
    job->tensors[0].rows = LARGE_ROWS + sim_random(2 * LARGE_ROWS);
    job->tensors[0].density = 200 + (unsigned)sim_random(57);
    if (job->tensors[0].k > 0) job->tensors[0].k = 1 + sim_random(job->tensors[0].rows);
    return;
  }
  job->window = job->in_step ? 1 : SIM_WINDOW_MAX;
  for (job->n_tensors = SIM_TENSORS_MAX; n_tensors < job->n_tensors && limit == SIM_LIMIT_ROUNDS; job->n_tensors--) {
    if (sim_chance(2)) break;
  }
  for (uint32_t i = n_tensors; i < job->n_tensors; i++) sim_plan_tensor_make(&job->tensors[i], i);
}

void sim_plan_limit(struct sim_plan *plan) {
  const enum sim_limit limit = (enum sim_limit)sim_random(SIM_LIMITS);
  const uint32_t greedy = (uint32_t)sim_random(plan->n_jobs);
  need_more(greedy == 0 ? plan : plan->others[greedy], limit);
  uint64_t least = UINT64_MAX, most = 0;
  for (uint32_t job = 0; job < plan->n_jobs; job++) {
    const uint64_t need = needs[limit](sim_plan_of(plan, job));
    if (need < least) least = need;
    if (need > most) most = need;
  }
  if (plan->n_jobs == 1) least = 1;
  if (least == 0) least = 1; /* 0 is no limit; and who needs none is not limited */
  if (least >= most) return;
  plan->limit = limit;
  plan->most = least + sim_random(limit == SIM_LIMIT_MEMORY ? (most - least) / 4 + 1 : most - least);
}

static uint64_t need_of(const struct sim_plan *plan, uint32_t job) {
  return plan->most > 0 ? needs[plan->limit](sim_plan_of(plan, job)) : 0;
}

bool sim_job_is_limited(const struct sim_plan *plan, uint32_t job) {
  return need_of(plan, plan->n_jobs > 1 ? job : 0) > plan->most;
}

bool sim_job_lacks_tensors(const struct sim_plan *plan, uint32_t job) {
  return plan->most > 0 && plan->limit == SIM_LIMIT_TENSORS &&
         sim_plan_of(plan, plan->n_jobs > 1 ? job : 0)->n_tensors > plan->most;
}

/* ------------------------------------------------------------ what is told */

static unsigned n_numbers(const char *text, uint64_t number, unsigned *n_same_p) {
  unsigned n = 0;
  *n_same_p = 0;
  for (const char *at = text; *at; at++) {
    if (!isdigit((unsigned char)*at) || (at > text && isalnum((unsigned char)at[-1]))) continue;
    n++;
    *n_same_p += strtoull(at, NULL, 10) == number;
  }
  return n;
}

bool sim_quota_is_told(const struct sim_plan *plan, const char *text) {
  static const char *const names[] = {[SIM_LIMIT_MEMORY] = "(job.max_memory)",
                                      [SIM_LIMIT_ROUNDS] = "(job.max_rounds)",
                                      [SIM_LIMIT_TENSORS] = "(job.max_tensors)"};
  unsigned n_same;
  return plan->most > 0 && strstr(text, names[plan->limit]) && n_numbers(text, plan->most, &n_same) >= 2 && n_same > 0;
}

/* ------------------------------------------------------------ accounts */

enum { ACCOUNTS_MAX = 64 };
static struct {
  const struct sim_process *process;
  const struct zps_account *account;
} accounts[ACCOUNTS_MAX];
static uint32_t n_accounts;

zps_err_t __real_zps_slab_arena_open(struct zps_slab *slab, struct zps_account *account,
                                     struct zps_slab_arena **arena_p);
zps_err_t __wrap_zps_slab_arena_open(struct zps_slab *slab, struct zps_account *account,
                                     struct zps_slab_arena **arena_p);
zps_err_t __wrap_zps_slab_arena_open(struct zps_slab *slab, struct zps_account *account,
                                     struct zps_slab_arena **arena_p) {
  if (n_accounts < ACCOUNTS_MAX) {
    accounts[n_accounts].process = sim_process_here();
    accounts[n_accounts++].account = account;
  }
  return __real_zps_slab_arena_open(slab, account, arena_p);
}

/* An account goes with its last bytes. */
void __real_free(void *at);
void __wrap_free(void *at);
void __wrap_free(void *at) {
  for (uint32_t i = 0; at && i < n_accounts; i++)
    if (accounts[i].account == at) accounts[i] = accounts[--n_accounts];
  __real_free(at);
}

uint32_t sim_accounts_left(const struct sim_process *process) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < n_accounts; i++) n += accounts[i].process == process;
  return n;
}

uint64_t sim_limit_most(const struct sim_plan *plan, enum sim_limit limit) {
  return plan->limit == limit ? plan->most : 0;
}
