/*
 * Ok-Topk's O(k) sparse allreduce [Ok-Topk section 3.1, algorithm 1], for any number of ranks. Each part of it in
 * common/plan/ablation.h can be left out.
 *
 *   - agree: with the first message each rank says of which generation what it remembers is. Generations follow
 * failures: a round that fails on a rank begins a new one there. Where they are not the same all go on as in the first
 * round, in the newest one, so that no two ranks ever reduce by different boundaries
 *   - select: own entries from the local threshold on; it is the exact k-th magnitude every tau' rounds, reused
 * between. At most k entries are their own k greatest: all go, so that the caller who selected them with a residual
 * knows what was sent
 *   - partition, every tau rounds: each rank's rows that cut its selection into equal counts, n regions of some buckets
 * each, averaged over the ranks
 *   - split: region j of the selection goes to position j, nearest neighbour first, bucket by bucket: a bucket is
 * summed, in rank order, while the next one travels
 *   - select of the sums, from the global threshold on; every tau' rounds the exact k-th magnitude of all sums
 *   - balance and gather: oktopk_gather.c
 *
 * Between exact thresholds the paper leaves them alone, and counts drift from k as gradients shrink, to half of k on
 * average; here they follow their counts (worker/select/steer.h). A threshold of 0, from a gradient of less than k
 * rows, says nothing about the next one, and is renewed when that has more.
 *
 * Words per rank (2 for each entry): up to 2k(P-1)/P for the split, as many for the gather, and up to that again for
 * balancing: between 2k(P-1)/P and 6k(P-1)/P; and for each other rank 2 words of counts, 2 of generations and 2 for
 * each bucket. Messages: 3(P-1) of agreement, split (for each bucket one) and counts, up to P-1 for balancing, and
 * log2 P. The rounds that renew a threshold send more: they gather every region's k greatest sums.
 */
#include <math.h>
#include <stdlib.h>

#include "worker/schemes/oktopk.h"

enum phase { PHASE_AGREE, PHASE_LOCAL, PHASE_BOUNDS, PHASE_GLOBAL, PHASE_BALANCE };

/* The first message of a rank: the generation, and of how many rows each bucket of the region is that follows at once.
 */
enum said { SAID_GENERATION, SAID_ROWS };
#define NOTHING_FOLLOWS (-1)

static void oktopk_close(void *state) {
  struct zps_oktopk *self = state;
  if (!self) return;
  free(self->bounds);
  free(self->streams);
  free(self->pieces);
  free(self);
}

/* All ranks remember the same: nothing. */
static void restart(const struct zps_peer_plan *plan, struct zps_oktopk *self, uint64_t round) {
  self->restarts = self->useless = false;
  self->first = round;
  self->local = self->global = 0;
  self->steer_local = self->steer_global = (struct zps_steer){0};
  const uint32_t n = plan->n * self->n_buckets;
  for (uint32_t i = 0; i <= n; i++) self->bounds[i] = zps_peer_bound(plan->rows, n, i);
}

static void oktopk_failed(void *state) {
  struct zps_oktopk *self = state;
  self->generation++;
  self->restarts = true;
}

static zps_err_t oktopk_open(const struct zps_peer_plan *plan, void **state_p) {
  struct zps_oktopk *self = calloc(1, sizeof *self);
  if (!self) return ZPS_ERR_NOMEM;
  self->n_buckets = plan->without & ZPS_WITHOUT_BUCKETING || plan->chunks == 0 ? 1 : plan->chunks;
  if (self->n_buckets > ZPS_OKTOPK_BUCKETS_MAX) self->n_buckets = ZPS_OKTOPK_BUCKETS_MAX;
  self->bounds = calloc((uint64_t)plan->n * self->n_buckets + 1, sizeof *self->bounds);
  self->streams = calloc(plan->n + 1ull, sizeof *self->streams);
  self->pieces = calloc(self->n_buckets, sizeof *self->pieces);
  if (!self->bounds || !self->streams || !self->pieces) {
    oktopk_close(self);
    return ZPS_ERR_NOMEM;
  }
  self->restarts = true;
  *state_p = self;
  return ZPS_OK;
}

static bool renews_thresholds(const struct zps_peer_plan *plan, const struct zps_oktopk *self, uint64_t round) {
  const uint32_t period = plan->threshold_period ? plan->threshold_period : ZPS_DEFAULT_threshold_period;
  return (round - self->first) % period == 0 || self->useless;
}

static bool renews_bounds(const struct zps_peer_plan *plan, const struct zps_oktopk *self, uint64_t round) {
  const uint32_t period = plan->boundary_period ? plan->boundary_period : ZPS_DEFAULT_boundary_period;
  return !(plan->without & ZPS_WITHOUT_REPARTITION) && (round - self->first) % period == 0;
}

/* Sends `stream` to all other ranks, and receives theirs into self->streams, by position: rows of [0, rows), or
 * vectors. */
static void exchange(const struct zps_peer_plan *plan, struct zps_oktopk *self, uint32_t stream, uint32_t tag,
                     uint32_t vector_len, struct zps_program *program) {
  for (uint32_t s = 1; s < plan->n; s++)
    zps_program_send(program, stream, zps_peer_rank(plan, zps_oktopk_nth(plan, s)), tag);
  self->streams[plan->me] = stream;
  for (uint32_t s = 1; s < plan->n; s++) {
    const uint32_t from = zps_oktopk_nth(plan, s), peer = zps_peer_rank(plan, from);
    self->streams[from] = vector_len ? zps_program_recv_vector(program, peer, tag, vector_len)
                                     : zps_program_recv(program, peer, tag, zps_oktopk_bound(self, from),
                                                        zps_oktopk_bound(self, from + 1));
  }
}

/* self->mine was selected. Counts of the round: by position, and of what this rank had and selected. */
static void count(const struct zps_peer_plan *plan, struct zps_oktopk *self, struct zps_program *program) {
  exchange(plan, self, zps_program_counts(program, &self->mine, 1), ZPS_OKTOPK_TAG_COUNTS, 1, program);
  self->streams[plan->n] = zps_program_counts(program, (const uint32_t[]){self->own, self->selected}, 2);
  zps_program_call(program, self->streams, plan->n + 1, PHASE_BALANCE);
}

/* Bucket `b` of every region but ours, under `tag` and its number. */
static void send_bucket(const struct zps_peer_plan *plan, const struct zps_oktopk *self, uint32_t b, uint32_t tag,
                        struct zps_program *program) {
  for (uint32_t s = 1; s < plan->n; s++) {
    const uint32_t to = zps_oktopk_nth(plan, s);
    const uint64_t *const bounds = self->bounds + (uint64_t)to * self->n_buckets + b;
    zps_program_send(program, zps_program_cut(program, self->selected, bounds[0], bounds[1]), zps_peer_rank(plan, to),
                     tag + b);
  }
}

/* The sum of bucket `b` of our region. */
static uint32_t sum_bucket(const struct zps_peer_plan *plan, struct zps_oktopk *self, uint32_t b, uint32_t tag,
                           struct zps_program *program) {
  const uint64_t *const bounds = self->bounds + (uint64_t)plan->me * self->n_buckets + b;
  self->streams[plan->me] = zps_program_cut(program, self->selected, bounds[0], bounds[1]);
  for (uint32_t s = 1; s < plan->n; s++) {
    const uint32_t from = zps_oktopk_nth(plan, s);
    self->streams[from] = zps_program_recv(program, zps_peer_rank(plan, from), tag + b, bounds[0], bounds[1]);
  }
  return zps_program_sum(program, self->streams, plan->n, ZPS_FORM_SPARSE);
}

/* Regions are on their way, under `tag`. */
static void reduce(const struct zps_peer_plan *plan, struct zps_oktopk *self, uint32_t tag,
                   struct zps_program *program) {
  for (uint32_t b = 0; b < self->n_buckets; b++) {
    self->pieces[b] = sum_bucket(plan, self, b, tag, program);
    if (!self->renews) self->pieces[b] = zps_program_threshold(program, self->pieces[b], self->global, 0);
  }
  self->mine = self->n_buckets == 1
                   ? self->pieces[0]
                   : zps_program_join(program, self->pieces, self->n_buckets, zps_oktopk_bound(self, plan->me),
                                      zps_oktopk_bound(self, plan->me + 1));
  if (!self->renews) {
    count(plan, self, program);
    return;
  }
  exchange(plan, self, zps_program_top(program, self->mine, plan->k), ZPS_OKTOPK_TAG_GREATEST, 0, program);
  const uint32_t kth = zps_program_kth(program, self->streams, plan->n, plan->k);
  zps_program_call(program, &kth, 1, PHASE_GLOBAL);
}

static void split_and_reduce(const struct zps_peer_plan *plan, struct zps_oktopk *self, struct zps_program *program) {
  for (uint32_t b = 0; b < self->n_buckets; b++) send_bucket(plan, self, b, ZPS_OKTOPK_TAG_SPLIT, program);
  reduce(plan, self, ZPS_OKTOPK_TAG_SPLIT, program);
}

static void partition(const struct zps_peer_plan *plan, struct zps_oktopk *self, struct zps_program *program) {
  const uint32_t n = plan->n * self->n_buckets;
  if (!renews_bounds(plan, self, program->round)) {
    split_and_reduce(plan, self, program);
    return;
  }
  exchange(plan, self, zps_program_splits(program, self->selected, n), ZPS_OKTOPK_TAG_BOUNDS, n - 1, program);
  const uint32_t sum = zps_program_sum(program, self->streams, plan->n, ZPS_FORM_SPARSE);
  zps_program_call(program, &sum, 1, PHASE_BOUNDS);
}

static void say(const struct zps_peer_plan *plan, const struct zps_oktopk *self, uint32_t to,
                struct zps_program *program) {
  const uint64_t *const bounds = self->bounds + (uint64_t)to * self->n_buckets;
  double said[SAID_ROWS + ZPS_OKTOPK_BUCKETS_MAX] = {[SAID_GENERATION] = self->generation};
  for (uint32_t b = 0; b < self->n_buckets; b++)
    said[SAID_ROWS + b] = self->ahead ? (double)(bounds[b + 1] - bounds[b]) : NOTHING_FOLLOWS;
  zps_program_send(program, zps_program_vector(program, said, SAID_ROWS + self->n_buckets), zps_peer_rank(plan, to),
                   ZPS_OKTOPK_TAG_AGREE);
}

/* A rank that renews nothing does not wait for the others' word. */
static void agree(const struct zps_peer_plan *plan, struct zps_oktopk *self, struct zps_program *program) {
  uint32_t n_said = 0;
  for (uint32_t s = 1; s < plan->n; s++) say(plan, self, zps_oktopk_nth(plan, s), program);
  for (uint32_t b = 0; self->ahead && b < self->n_buckets; b++)
    send_bucket(plan, self, b, ZPS_OKTOPK_TAG_AHEAD, program);
  for (uint32_t j = 0; j < plan->n; j++) {
    if (j != plan->me)
      self->streams[n_said++] =
          zps_program_recv_vector(program, zps_peer_rank(plan, j), ZPS_OKTOPK_TAG_AGREE, SAID_ROWS + self->n_buckets);
  }
  zps_program_call(program, self->streams, n_said, PHASE_AGREE);
}

static void select_local(const struct zps_peer_plan *plan, struct zps_oktopk *self, struct zps_program *program) {
  if (self->renews) {
    const uint32_t kth = zps_program_kth(program, &self->own, 1, plan->k);
    zps_program_call(program, &kth, 1, PHASE_LOCAL);
  } else {
    partition(plan, self, program);
  }
}

static void build(const struct zps_peer_plan *plan, struct zps_program *program) {
  struct zps_oktopk *self = program->state;
  const uint32_t own = zps_program_own(program, 0, plan->rows, ZPS_FORM_SPARSE);
  if (self->restarts) restart(plan, self, program->round);
  self->own = self->selected = own;
  self->renews = renews_thresholds(plan, self, program->round);
  self->ahead = !self->renews && !renews_bounds(plan, self, program->round);
  if (!self->renews && plan->n > 1) self->selected = zps_program_threshold(program, own, self->local, plan->k);
  if (plan->n == 1) {
    const uint32_t top = zps_program_top(program, own, plan->k);
    zps_program_result(program, top);
    if (plan->contributed) zps_program_contributed(program, top);
  } else {
    agree(plan, self, program);
  }
}

/* Regions that were cut by other boundaries are taken in, and left. */
static void start_over(const struct zps_peer_plan *plan, struct zps_oktopk *self, const double *const *said,
                       struct zps_program *program) {
  for (uint32_t i = 0; i + 1 < plan->n; i++) {
    for (uint32_t b = 0; b < self->n_buckets; b++) {
      const double rows = said[i][SAID_ROWS + b];
      if (rows >= 0 && rows <= (double)plan->rows)
        zps_program_recv(program, zps_peer_rank(plan, i + (i >= plan->me)), ZPS_OKTOPK_TAG_AHEAD + b, 0,
                         (uint64_t)rows);
    }
    if (said[i][SAID_GENERATION] > self->generation) self->generation = said[i][SAID_GENERATION];
  }
  restart(plan, self, program->round);
  self->selected = self->own;
  self->renews = true;
  select_local(plan, self, program);
}

static void agreed(const struct zps_peer_plan *plan, struct zps_oktopk *self, const double *const *said,
                   struct zps_program *program) {
  bool same = true;
  for (uint32_t i = 0; i + 1 < plan->n; i++) {
    same &= said[i][SAID_GENERATION] == self->generation;
    same &= (said[i][SAID_ROWS] >= 0) == self->ahead;
  }
  if (!same) {
    start_over(plan, self, said, program);
  } else if (self->ahead) {
    reduce(plan, self, ZPS_OKTOPK_TAG_AHEAD, program);
  } else {
    select_local(plan, self, program);
  }
}

/* The averaged boundaries, ascending and inside the tensor whatever the ranks sent. */
static void set_bounds(const struct zps_peer_plan *plan, struct zps_oktopk *self, const double *sum) {
  for (uint32_t i = 1; i < plan->n * self->n_buckets; i++) {
    const double row = floor(sum[i - 1] / plan->n);
    uint64_t bound = row >= (double)plan->rows ? plan->rows : row > 0 ? (uint64_t)row : 0;
    if (bound < self->bounds[i - 1]) bound = self->bounds[i - 1];
    self->bounds[i] = bound;
  }
}

/* For the next round. `total`: rows of the result, which all ranks know alike. */
static void steer(const struct zps_peer_plan *plan, struct zps_oktopk *self, const double *had_and_selected,
                  uint64_t total) {
  const double k = (double)plan->k;
  self->useless = self->global == 0 && total > plan->k;
  if (plan->without & ZPS_WITHOUT_STEERING) return;
  if (had_and_selected[0] > k) self->local = zps_steer(&self->steer_local, self->local, had_and_selected[1] / k);
  self->global = zps_steer(&self->steer_global, self->global, (double)total / k);
}

static void balance_and_gather(const struct zps_peer_plan *plan, struct zps_oktopk *self, const double *const *counts,
                               struct zps_program *program) {
  uint64_t *const first = calloc(plan->n + 1ull, sizeof *first);
  if (!first) {
    program->code = ZPS_ERR_NOMEM;
    return;
  }
  for (uint32_t j = 0; j < plan->n; j++) {
    const double rows = (double)(zps_oktopk_bound(self, j + 1) - zps_oktopk_bound(self, j));
    const uint64_t rows_of_j = counts[j][0] > rows ? (uint64_t)rows : counts[j][0] > 0 ? (uint64_t)counts[j][0] : 0;
    first[j + 1] = first[j] + rows_of_j;
  }
  steer(plan, self, counts[plan->n], first[plan->n]);
  const uint32_t result = zps_oktopk_gather(plan, self, first, program);
  free(first);
  zps_program_result(program, result);
  if (plan->contributed) zps_program_contributed(program, zps_program_common(program, self->selected, result));
}

static void extend(const struct zps_peer_plan *plan, uint32_t phase, const double *const *vectors,
                   const uint32_t *lengths, struct zps_program *program) {
  struct zps_oktopk *self = program->state;
  (void)lengths; /* what arrives was checked against the RECV's length */
  switch ((enum phase)phase) {
    case PHASE_AGREE:
      agreed(plan, self, vectors, program);
      break;
    case PHASE_LOCAL:
      self->local = vectors[0][0];
      self->selected = zps_program_threshold(program, self->selected, self->local, plan->k);
      partition(plan, self, program);
      break;
    case PHASE_BOUNDS:
      set_bounds(plan, self, vectors[0]);
      split_and_reduce(plan, self, program);
      break;
    case PHASE_GLOBAL:
      self->global = vectors[0][0];
      self->mine = zps_program_threshold(program, self->mine, self->global, 0);
      count(plan, self, program);
      break;
    case PHASE_BALANCE:
      balance_and_gather(plan, self, vectors, program);
      break;
  }
}

const struct zps_peer_scheme zps_peer_oktopk = {
    ZPS_PEER_SCHEME(OKTOPK), .open = oktopk_open, .close = oktopk_close,
    .failed = oktopk_failed, .build = build,      .extend = extend,
};
