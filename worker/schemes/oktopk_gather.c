/*
 * Ok-Topk's "balance and allgatherv" [Ok-Topk section 3.1.2].
 *
 *   - balance: where the largest share exceeds 4 times the mean, entries move so that all hold equal shares
 *   - gather: by doubling, in ceil(log2 n) stages for any n. A power of two: recursive doubling, with the rank on the
 * other side of the stage's bit. Otherwise shares go round, as in Bruck's algorithm: after each stage a rank has twice
 * as many, its own and those that follow it, and the last stage brings the rest. Either way each share comes once
 */
#include "worker/schemes/oktopk.h"

enum { IMBALANCE = 4 };

struct shares {
  const struct zps_peer_plan *plan;
  const struct zps_oktopk *self;
  const uint64_t *first;
  bool balanced; /* a share may hold entries of any region */
  struct zps_program *program;
};

/* Rows that shares [a, b) lie in. */
static struct zps_range span(const struct shares *shares, uint32_t a, uint32_t b) {
  if (shares->balanced) return (struct zps_range){0, shares->plan->rows};
  return (struct zps_range){zps_oktopk_bound(shares->self, a), zps_oktopk_bound(shares->self, b)};
}

static uint32_t join(const struct shares *shares, uint32_t lower, uint32_t upper, struct zps_range rows) {
  return zps_program_join(shares->program, (const uint32_t[]){lower, upper}, 2, rows.lo, rows.hi);
}

/* ------------------------------------------------------------ a power of two */

static uint32_t gather_doubling(const struct shares *shares, uint32_t share) {
  const struct zps_peer_plan *const plan = shares->plan;
  for (uint32_t stage = 0, n = 1; n < plan->n; stage++, n *= 2) {
    const uint32_t other = plan->me ^ n, mine = plan->me & ~(n - 1), theirs = mine ^ n;
    const uint32_t peer = zps_peer_rank(plan, other), tag = ZPS_OKTOPK_TAG_GATHER + stage;
    const struct zps_range rows = span(shares, theirs, theirs + n);
    zps_program_send(shares->program, share, peer, tag);
    const uint32_t came = zps_program_recv(shares->program, peer, tag, rows.lo, rows.hi);
    share = mine < theirs ? join(shares, share, came, span(shares, mine, mine + 2 * n))
                          : join(shares, came, share, span(shares, theirs, theirs + 2 * n));
  }
  return share;
}

/* ------------------------------------------------------------ any number */

/* Consecutive shares, of which the first one follows the last one. */
struct run {
  uint32_t first, n;
  uint32_t upper; /* stream: from the first on, up to the last of all at most */
  uint32_t lower; /* stream: from share 0 on; ZPS_STREAM_NONE: none of them */
};

static uint32_t n_upper(const struct shares *shares, const struct run *run) {
  const uint32_t most = shares->plan->n - run->first;
  return run->n < most ? run->n : most;
}

/* Shares [a, b) of a stream that begins with `a`. */
static uint32_t head(const struct shares *shares, uint32_t stream, uint32_t a, uint32_t b) {
  const struct zps_range rows = span(shares, a, b);
  if (shares->balanced) return zps_program_take(shares->program, stream, 0, shares->first[b] - shares->first[a]);
  return zps_program_cut(shares->program, stream, rows.lo, rows.hi);
}

/* The first n of a run, as one stream. */
static uint32_t pack(const struct shares *shares, const struct run *run, uint32_t n) {
  const uint32_t upper = n_upper(shares, run);
  if (n < upper) return head(shares, run->upper, run->first, run->first + n);
  if (n == upper) return run->upper;
  const uint32_t lower = n == run->n ? run->lower : head(shares, run->lower, 0, n - upper);
  return join(shares, lower, run->upper, (struct zps_range){0, shares->plan->rows});
}

/* The other way: run->first and run->n are set. */
static void receive(const struct shares *shares, struct run *run, uint32_t peer, uint32_t tag) {
  const uint32_t upper = n_upper(shares, run), lower = run->n - upper, n = shares->plan->n;
  struct zps_program *const program = shares->program;
  const struct zps_range all = {0, shares->plan->rows};
  const struct zps_range rows = lower ? all : span(shares, run->first, run->first + upper);
  run->upper = zps_program_recv(program, peer, tag, rows.lo, rows.hi);
  run->lower = ZPS_STREAM_NONE;
  if (lower == 0) return;
  const uint32_t stream = run->upper;
  const uint64_t below = shares->first[lower];
  run->lower = head(shares, stream, 0, lower);
  run->upper = shares->balanced
                   ? zps_program_take(program, stream, below, below + shares->first[n] - shares->first[run->first])
                   : zps_program_cut(program, stream, zps_oktopk_bound(shares->self, run->first), all.hi);
}

static void append(const struct shares *shares, struct run *run, const struct run *more) {
  const uint32_t n = shares->plan->n, begin = run->first + run->n;
  if (begin < n) {
    run->upper = join(shares, run->upper, more->upper, span(shares, run->first, begin + n_upper(shares, more)));
    run->lower = more->lower;
  } else if (begin == n) {
    run->lower = more->upper;
  } else {
    run->lower = join(shares, run->lower, more->upper, span(shares, 0, begin - n + more->n));
  }
  run->n += more->n;
}

static uint32_t gather_round(const struct shares *shares, uint32_t share) {
  const struct zps_peer_plan *const plan = shares->plan;
  struct run held = {.first = plan->me, .n = 1, .upper = share, .lower = ZPS_STREAM_NONE};
  for (uint32_t stage = 0; held.n < plan->n; stage++) {
    const uint32_t left = plan->n - held.n, tag = ZPS_OKTOPK_TAG_GATHER + stage;
    struct run more = {.first = zps_peer_after(plan, held.n), .n = held.n < left ? held.n : left};
    zps_program_send(shares->program, pack(shares, &held, more.n), zps_peer_rank(plan, zps_peer_after(plan, left)),
                     tag);
    receive(shares, &more, zps_peer_rank(plan, more.first), tag);
    append(shares, &held, &more);
  }
  return pack(shares, &held, plan->n);
}

/* ------------------------------------------------------------ balancing */

/* Share j becomes entries total * j / n on. Each rank sends what it has of the others' shares and gets what it lacks of
 * its own. */
static uint32_t balance(const struct zps_peer_plan *plan, struct zps_oktopk *self, const uint64_t *first,
                        struct zps_program *program) {
  const uint32_t me = plan->me;
  const uint64_t total = first[plan->n];
  const uint64_t my_lo = zps_peer_bound(total, plan->n, me), my_hi = zps_peer_bound(total, plan->n, me + 1);
  uint32_t n_parts = 0;
  for (uint32_t s = 1; s < plan->n; s++) {
    const uint32_t to = zps_oktopk_nth(plan, s);
    uint64_t lo = zps_peer_bound(total, plan->n, to), hi = zps_peer_bound(total, plan->n, to + 1);
    if (lo < first[me]) lo = first[me];
    if (hi > first[me + 1]) hi = first[me + 1];
    if (lo >= hi) continue;
    zps_program_send(program, zps_program_take(program, self->mine, lo - first[me], hi - first[me]),
                     zps_peer_rank(plan, to), ZPS_OKTOPK_TAG_BALANCE);
  }
  for (uint32_t s = 0; s < plan->n; s++) { /* into streams, by position; not all have some */
    const uint32_t from = s == 0 ? me : zps_oktopk_nth(plan, s);
    const uint64_t lo = first[from] > my_lo ? first[from] : my_lo;
    const uint64_t hi = first[from + 1] < my_hi ? first[from + 1] : my_hi;
    self->streams[from] = ZPS_STREAM_NONE;
    if (lo >= hi) continue;
    self->streams[from] = from == me ? zps_program_take(program, self->mine, lo - first[me], hi - first[me])
                                     : zps_program_recv(program, zps_peer_rank(plan, from), ZPS_OKTOPK_TAG_BALANCE,
                                                        zps_oktopk_bound(self, from), zps_oktopk_bound(self, from + 1));
  }
  for (uint32_t j = 0; j < plan->n; j++)
    if (self->streams[j] != ZPS_STREAM_NONE) self->streams[n_parts++] = self->streams[j];
  if (n_parts == 0) self->streams[n_parts++] = zps_program_take(program, self->mine, 0, 0);
  return zps_program_join(program, self->streams, n_parts, 0, plan->rows);
}

static bool is_uneven(const struct zps_peer_plan *plan, const uint64_t *first) {
  uint64_t largest = 0;
  for (uint32_t j = 0; j < plan->n; j++)
    if (first[j + 1] - first[j] > largest) largest = first[j + 1] - first[j];
  return largest * plan->n > IMBALANCE * first[plan->n];
}

uint32_t zps_oktopk_gather(const struct zps_peer_plan *plan, struct zps_oktopk *self, uint64_t *first,
                           struct zps_program *program) {
  const bool balanced = !(plan->without & ZPS_WITHOUT_BALANCING) && is_uneven(plan, first);
  const uint32_t share = balanced ? balance(plan, self, first, program) : self->mine;
  const uint64_t total = first[plan->n];
  for (uint32_t j = 0; balanced && j < plan->n; j++) first[j] = zps_peer_bound(total, plan->n, j);
  const struct shares shares = {plan, self, first, balanced, program};
  return (plan->n & (plan->n - 1)) == 0 ? gather_doubling(&shares, share) : gather_round(&shares, share);
}
