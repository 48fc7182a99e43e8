/*
 * Ok-Topk's O(k) sparse allreduce [Ok-Topk section 3.1, algorithm 1], for any number of ranks.
 *
 *   - agree: with the first message each rank says of which generation what it remembers is. Generations follow
 * failures: a round that fails on a rank begins a new one there. Where they are not the same all go on as in the first
 * round, in the newest one, so that no two ranks ever reduce by different boundaries
 *   - select: own entries from the local threshold on; it is the exact k-th magnitude every tau' rounds, reused
 * between. At most k entries are their own k greatest: all go, so that the caller who selected them with a residual
 * knows what was sent
 *   - partition, every tau rounds: each rank's rows that cut its selection into n equal counts, averaged over the ranks
 *   - split: region j of the selection goes to position j, nearest neighbour first; sums in rank order
 *   - select of the sums, from the global threshold on; every tau' rounds the exact k-th magnitude of all sums
 *   - balance: where the largest share exceeds 4 times the mean, entries move so that all hold equal shares
 *   - gather: recursive doubling where n is a power of two, otherwise each share straight to everybody
 *
 * Between exact thresholds the paper leaves them alone, and counts drift from k as gradients shrink, to half of k on
 * average; here they follow their counts (worker/select/steer.h). A threshold of 0, from a gradient of less than k
 * rows, says nothing about the next one, and is renewed when that has more.
 *
 * Words per rank (2 for each entry): up to 2k(P-1)/P for the split, as many for the gather, and up to that again for
 * balancing: between 2k(P-1)/P and 6k(P-1)/P; and 6 words of counts and generations for each other rank. The rounds
 * that renew a threshold send more: they gather every region's k greatest sums.
 */
#include <math.h>
#include <stdlib.h>

#include "worker/schemes/peer_scheme.h"
#include "worker/select/steer.h"

enum { PERIOD = 64, THRESHOLD_PERIOD = 32, IMBALANCE = 4 };

enum phase { PHASE_AGREE, PHASE_LOCAL, PHASE_BOUNDS, PHASE_GLOBAL, PHASE_BALANCE };

/* Of messages; DOUBLE and the stage. */
enum tag {
  TAG_AGREE,
  TAG_AHEAD,
  TAG_BOUNDS,
  TAG_SPLIT,
  TAG_GREATEST,
  TAG_COUNTS,
  TAG_BALANCE,
  TAG_GATHER,
  TAG_DOUBLE = 64
};

/* The first message of a rank: the generation, and of how many rows the region that follows at once is. */
enum said { SAID_GENERATION, SAID_ROWS, N_SAID };
#define NOTHING_FOLLOWS (-1)

struct oktopk {
  double generation;    /* agreed, but for failures since; */
  bool restarts;        /* there was one */
  uint64_t first;       /* number of the generation's first round */
  double local, global; /* thresholds */
  struct zps_steer steer_local, steer_global;
  bool useless;                 /* the global one was 0, and selected more than k */
  bool renews;                  /* this round finds exact ones */
  bool ahead;                   /* regions follow at once: this round renews nothing */
  uint64_t *bounds;             /* n + 1 rows: region j is bounds[j] .. bounds[j + 1] - 1 */
  uint32_t own, selected, mine; /* streams of the round */
  uint32_t *streams;            /* scratch, n + 1 */
};

static void oktopk_close(void *state) {
  struct oktopk *self = state;
  if (!self) return;
  free(self->bounds);
  free(self->streams);
  free(self);
}

/* All ranks remember the same: nothing. */
static void restart(const struct zps_peer_plan *plan, struct oktopk *self, uint64_t round) {
  self->restarts = self->useless = false;
  self->first = round;
  self->local = self->global = 0;
  self->steer_local = self->steer_global = (struct zps_steer){0};
  for (uint32_t i = 0; i <= plan->n; i++) self->bounds[i] = zps_peer_bound(plan->rows, plan->n, i);
}

static void oktopk_failed(void *state) {
  struct oktopk *self = state;
  self->generation++;
  self->restarts = true;
}

static zps_err_t oktopk_open(const struct zps_peer_plan *plan, void **state_p) {
  struct oktopk *self = calloc(1, sizeof *self);
  if (!self) return ZPS_ERR_NOMEM;
  self->bounds = calloc(plan->n + 1ull, sizeof *self->bounds);
  self->streams = calloc(plan->n + 1ull, sizeof *self->streams);
  if (!self->bounds || !self->streams) {
    oktopk_close(self);
    return ZPS_ERR_NOMEM;
  }
  self->restarts = true;
  *state_p = self;
  return ZPS_OK;
}

static bool renews(uint64_t round, uint32_t period, uint32_t fallback) {
  return round % (period ? period : fallback) == 0;
}

/* Position of the s-th neighbour: each rank begins with another one. */
static uint32_t after(const struct zps_peer_plan *plan, uint32_t s) {
  return (plan->me + s) % plan->n;
}

/* Sends `stream` to all other ranks, and receives theirs into self->streams, by position: rows of [0, rows), or
 * vectors. */
static void exchange(const struct zps_peer_plan *plan, struct oktopk *self, uint32_t stream, uint32_t tag,
                     uint32_t vector_len, struct zps_program *program) {
  for (uint32_t s = 1; s < plan->n; s++) zps_program_send(program, stream, zps_peer_rank(plan, after(plan, s)), tag);
  for (uint32_t j = 0; j < plan->n; j++) {
    const uint32_t peer = zps_peer_rank(plan, j);
    if (j == plan->me) {
      self->streams[j] = stream;
    } else if (vector_len) {
      self->streams[j] = zps_program_recv_vector(program, peer, tag, vector_len);
    } else {
      self->streams[j] = zps_program_recv(program, peer, tag, self->bounds[j], self->bounds[j + 1]);
    }
  }
}

/* Counts of the round: by position, and of what this rank had and selected. */
static void select_global(const struct zps_peer_plan *plan, struct oktopk *self, struct zps_program *program,
                          uint32_t reduced) {
  self->mine = zps_program_threshold(program, reduced, self->global, 0);
  const uint32_t count = zps_program_counts(program, &self->mine, 1);
  exchange(plan, self, count, TAG_COUNTS, 1, program);
  self->streams[plan->n] = zps_program_counts(program, (const uint32_t[]){self->own, self->selected}, 2);
  zps_program_call(program, self->streams, plan->n + 1, PHASE_BALANCE);
}

static void send_region(const struct zps_peer_plan *plan, const struct oktopk *self, uint32_t to, uint32_t tag,
                        struct zps_program *program) {
  const uint32_t region = zps_program_cut(program, self->selected, self->bounds[to], self->bounds[to + 1]);
  zps_program_send(program, region, zps_peer_rank(plan, to), tag);
}

/* Regions are on their way, under `tag`. */
static void reduce(const struct zps_peer_plan *plan, struct oktopk *self, uint32_t tag, struct zps_program *program) {
  const uint32_t me = plan->me;
  const uint64_t lo = self->bounds[me], hi = self->bounds[me + 1];
  for (uint32_t j = 0; j < plan->n; j++) {
    self->streams[j] = j == me ? zps_program_cut(program, self->selected, lo, hi)
                               : zps_program_recv(program, zps_peer_rank(plan, j), tag, lo, hi);
  }
  const uint32_t reduced = zps_program_sum(program, self->streams, plan->n, ZPS_FORM_SPARSE);
  if (!self->renews) {
    select_global(plan, self, program, reduced);
    return;
  }
  self->mine = reduced; /* until PHASE_GLOBAL */
  exchange(plan, self, zps_program_top(program, reduced, plan->k), TAG_GREATEST, 0, program);
  const uint32_t kth = zps_program_kth(program, self->streams, plan->n, plan->k);
  zps_program_call(program, &kth, 1, PHASE_GLOBAL);
}

static void split_and_reduce(const struct zps_peer_plan *plan, struct oktopk *self, struct zps_program *program) {
  for (uint32_t s = 1; s < plan->n; s++) send_region(plan, self, after(plan, s), TAG_SPLIT, program);
  reduce(plan, self, TAG_SPLIT, program);
}

static void partition(const struct zps_peer_plan *plan, struct oktopk *self, uint64_t round,
                      struct zps_program *program) {
  if (!renews(round - self->first, plan->period, PERIOD)) {
    split_and_reduce(plan, self, program);
    return;
  }
  exchange(plan, self, zps_program_splits(program, self->selected, plan->n), TAG_BOUNDS, plan->n - 1, program);
  const uint32_t sum = zps_program_sum(program, self->streams, plan->n, ZPS_FORM_SPARSE);
  zps_program_call(program, &sum, 1, PHASE_BOUNDS);
}

/* A rank that renews nothing does not wait for the others' word. */
static void agree(const struct zps_peer_plan *plan, struct oktopk *self, struct zps_program *program) {
  uint32_t n_said = 0;
  for (uint32_t s = 1; s < plan->n; s++) {
    const uint32_t to = after(plan, s);
    const double rows = (double)(self->bounds[to + 1] - self->bounds[to]);
    const double said[N_SAID] = {
        [SAID_GENERATION] = self->generation, [SAID_ROWS] = self->ahead ? rows : NOTHING_FOLLOWS};
    zps_program_send(program, zps_program_vector(program, said, N_SAID), zps_peer_rank(plan, to), TAG_AGREE);
    if (self->ahead) send_region(plan, self, to, TAG_AHEAD, program);
  }
  for (uint32_t j = 0; j < plan->n; j++) {
    if (j != plan->me)
      self->streams[n_said++] = zps_program_recv_vector(program, zps_peer_rank(plan, j), TAG_AGREE, N_SAID);
  }
  zps_program_call(program, self->streams, n_said, PHASE_AGREE);
}

static void select_local(const struct zps_peer_plan *plan, struct oktopk *self, uint64_t round,
                         struct zps_program *program) {
  if (self->renews) {
    const uint32_t kth = zps_program_kth(program, &self->own, 1, plan->k);
    zps_program_call(program, &kth, 1, PHASE_LOCAL);
  } else {
    partition(plan, self, round, program);
  }
}

static void build(const struct zps_peer_plan *plan, void *state, uint64_t round, struct zps_program *program) {
  struct oktopk *self = state;
  const uint32_t own = zps_program_own(program, 0, plan->rows, ZPS_FORM_SPARSE);
  if (self->restarts) restart(plan, self, round);
  self->own = self->selected = own;
  self->renews = renews(round - self->first, plan->threshold_period, THRESHOLD_PERIOD) || self->useless;
  self->ahead = !self->renews && !renews(round - self->first, plan->period, PERIOD);
  if (!self->renews && plan->n > 1) self->selected = zps_program_threshold(program, own, self->local, plan->k);
  if (plan->n == 1) {
    zps_program_result(program, zps_program_top(program, own, plan->k));
  } else {
    agree(plan, self, program);
  }
}

/* Regions that were cut by other boundaries are taken in, and left. */
static void start_over(const struct zps_peer_plan *plan, struct oktopk *self, uint64_t round, const double *const *said,
                       struct zps_program *program) {
  for (uint32_t i = 0; i + 1 < plan->n; i++) {
    const double rows = said[i][SAID_ROWS];
    if (rows >= 0 && rows <= (double)plan->rows)
      zps_program_recv(program, zps_peer_rank(plan, i + (i >= plan->me)), TAG_AHEAD, 0, (uint64_t)rows);
    if (said[i][SAID_GENERATION] > self->generation) self->generation = said[i][SAID_GENERATION];
  }
  restart(plan, self, round);
  self->selected = self->own;
  self->renews = true;
  select_local(plan, self, round, program);
}

static void agreed(const struct zps_peer_plan *plan, struct oktopk *self, uint64_t round, const double *const *said,
                   struct zps_program *program) {
  bool same = true;
  for (uint32_t i = 0; i + 1 < plan->n; i++) {
    same &= said[i][SAID_GENERATION] == self->generation;
    same &= (said[i][SAID_ROWS] >= 0) == self->ahead;
  }
  if (!same) {
    start_over(plan, self, round, said, program);
  } else if (self->ahead) {
    reduce(plan, self, TAG_AHEAD, program);
  } else {
    select_local(plan, self, round, program);
  }
}

/* The averaged boundaries, ascending and inside the tensor whatever the ranks sent. */
static void set_bounds(const struct zps_peer_plan *plan, struct oktopk *self, const double *sum) {
  for (uint32_t i = 1; i < plan->n; i++) {
    const double row = floor(sum[i - 1] / plan->n);
    uint64_t bound = row >= (double)plan->rows ? plan->rows : row > 0 ? (uint64_t)row : 0;
    if (bound < self->bounds[i - 1]) bound = self->bounds[i - 1];
    self->bounds[i] = bound;
  }
}

/* Rows that group [first, first + n) of shares spans. After balancing a share may hold entries of any region. */
static void span(const struct zps_peer_plan *plan, const struct oktopk *self, bool balanced, uint32_t first, uint32_t n,
                 uint64_t *lo_p, uint64_t *hi_p) {
  *lo_p = balanced ? 0 : self->bounds[first];
  *hi_p = balanced ? plan->rows : self->bounds[first + n];
}

static void gather_doubling(const struct zps_peer_plan *plan, const struct oktopk *self, bool balanced, uint32_t share,
                            struct zps_program *program) {
  for (uint32_t stage = 0; (1u << stage) < plan->n; stage++) {
    const uint32_t n = 1u << stage;
    const uint32_t other = plan->me ^ n, first = plan->me & ~(n - 1), other_first = first ^ n;
    uint64_t lo, hi;
    zps_program_send(program, share, zps_peer_rank(plan, other), TAG_DOUBLE + stage);
    span(plan, self, balanced, other_first, n, &lo, &hi);
    const uint32_t theirs = zps_program_recv(program, zps_peer_rank(plan, other), TAG_DOUBLE + stage, lo, hi);
    const bool lower = first < other_first;
    span(plan, self, balanced, lower ? first : other_first, 2 * n, &lo, &hi);
    share = zps_program_join(program, (const uint32_t[]){lower ? share : theirs, lower ? theirs : share}, 2, lo, hi);
  }
  zps_program_result(program, share);
}

static void gather_direct(const struct zps_peer_plan *plan, struct oktopk *self, bool balanced, uint32_t share,
                          struct zps_program *program) {
  for (uint32_t s = 1; s < plan->n; s++) {
    zps_program_send(program, share, zps_peer_rank(plan, after(plan, s)), TAG_GATHER);
  }
  for (uint32_t j = 0; j < plan->n; j++) {
    uint64_t lo, hi;
    span(plan, self, balanced, j, 1, &lo, &hi);
    self->streams[j] = j == plan->me ? share : zps_program_recv(program, zps_peer_rank(plan, j), TAG_GATHER, lo, hi);
  }
  zps_program_result(program, zps_program_join(program, self->streams, plan->n, 0, plan->rows));
}

/* Entries are numbered over all regions; share j is numbers total * j / n on. Each rank sends what it has of the
 * others' shares and gets what it lacks of its own. */
static uint32_t balance(const struct zps_peer_plan *plan, struct oktopk *self, const uint64_t *first, uint64_t total,
                        struct zps_program *program) {
  const uint32_t me = plan->me;
  const uint64_t my_lo = zps_peer_bound(total, plan->n, me), my_hi = zps_peer_bound(total, plan->n, me + 1);
  uint32_t n_parts = 0;
  for (uint32_t s = 0; s < plan->n; s++) {
    const uint32_t to = after(plan, s);
    uint64_t lo = zps_peer_bound(total, plan->n, to), hi = zps_peer_bound(total, plan->n, to + 1);
    if (lo < first[me]) lo = first[me];
    if (hi > first[me + 1]) hi = first[me + 1];
    if (to == me || lo >= hi) continue;
    zps_program_send(program, zps_program_take(program, self->mine, lo - first[me], hi - first[me]),
                     zps_peer_rank(plan, to), TAG_BALANCE);
  }
  for (uint32_t j = 0; j < plan->n; j++) {
    const uint64_t lo = first[j] > my_lo ? first[j] : my_lo, hi = first[j + 1] < my_hi ? first[j + 1] : my_hi;
    if (lo >= hi) continue;
    self->streams[n_parts++] =
        j == me ? zps_program_take(program, self->mine, lo - first[me], hi - first[me])
                : zps_program_recv(program, zps_peer_rank(plan, j), TAG_BALANCE, self->bounds[j], self->bounds[j + 1]);
  }
  if (n_parts == 0) self->streams[n_parts++] = zps_program_take(program, self->mine, 0, 0);
  return zps_program_join(program, self->streams, n_parts, 0, plan->rows);
}

/* For the next round. `total`: rows of the result, which all ranks know alike. */
static void steer(const struct zps_peer_plan *plan, struct oktopk *self, const double *had_and_selected,
                  uint64_t total) {
  const double k = (double)plan->k;
  if (had_and_selected[0] > k) self->local = zps_steer(&self->steer_local, self->local, had_and_selected[1] / k);
  self->useless = self->global == 0 && total > plan->k;
  self->global = zps_steer(&self->steer_global, self->global, (double)total / k);
}

static void balance_and_gather(const struct zps_peer_plan *plan, struct oktopk *self, const double *const *counts,
                               struct zps_program *program) {
  uint64_t *const first = calloc(plan->n + 1ull, sizeof *first);
  uint64_t largest = 0;
  if (!first) {
    program->code = ZPS_ERR_NOMEM;
    return;
  }
  for (uint32_t j = 0; j < plan->n; j++) {
    const double rows = (double)(self->bounds[j + 1] - self->bounds[j]);
    const uint64_t count = counts[j][0] > rows ? (uint64_t)rows : counts[j][0] > 0 ? (uint64_t)counts[j][0] : 0;
    first[j + 1] = first[j] + count;
    if (count > largest) largest = count;
  }
  const uint64_t total = first[plan->n];
  const bool balanced = largest * plan->n > IMBALANCE * total;
  const uint32_t share = balanced ? balance(plan, self, first, total, program) : self->mine;
  free(first);
  steer(plan, self, counts[plan->n], total);
  if ((plan->n & (plan->n - 1)) == 0) {
    gather_doubling(plan, self, balanced, share, program);
  } else {
    gather_direct(plan, self, balanced, share, program);
  }
}

static void extend(const struct zps_peer_plan *plan, void *state, uint64_t round, uint32_t phase,
                   const double *const *vectors, const uint32_t *lengths, struct zps_program *program) {
  struct oktopk *self = state;
  (void)lengths; /* what arrives was checked against the RECV's length */
  switch ((enum phase)phase) {
    case PHASE_AGREE:
      agreed(plan, self, round, vectors, program);
      break;
    case PHASE_LOCAL:
      self->local = vectors[0][0];
      self->selected = zps_program_threshold(program, self->selected, self->local, plan->k);
      partition(plan, self, round, program);
      break;
    case PHASE_BOUNDS:
      set_bounds(plan, self, vectors[0]);
      split_and_reduce(plan, self, program);
      break;
    case PHASE_GLOBAL:
      self->global = vectors[0][0];
      select_global(plan, self, program, self->mine);
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
