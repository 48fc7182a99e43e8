/* Schemes that keep the k greatest: Ok-Topk and those that it is compared with, as in its table 1. There a row in COO
 * is two words; ours code it shorter. */
#include <math.h>

#include "common/plan/model_impl.h"

static double kept(const struct zps_plan_round *round) {
  const double m = (double)round->in->tensor.rows;
  return fmin(round->in->k ? (double)round->in->k : zps_plan_rows(round, 1), m);
}

static double stream(const struct zps_plan_round *round, double rows) {
  return zps_plan_message_bytes(round->in, ZPS_PLAN_STREAM, (double)round->in->tensor.rows, rows);
}

static void select_top(struct zps_plan_round *round, double rows) {
  const double ns = rows * round->in->tensor.width * round->in->calibration.select_value_ns;
  const double threads = round->in->calibration.threads;
  round->cost->compute_s += ns * 1e-9 / (threads > 1 ? threads : 1);
}

/* Doubles that all ranks exchange: log2(P) latencies, or P - 1 messages. */
static void exchange(struct zps_plan_round *round, double doubles) {
  zps_plan_allgather(round, 8 * doubles, 8 * doubles * round->n);
}

/* (P-1) latencies and 2k (P-1)/P words (equation 1): ranges hold equal counts, by agreed boundaries. */
static void split(struct zps_plan_round *round, double bytes) {
  const double share = (round->n - 1) / round->n * bytes;
  zps_plan_phase(round, .messages = round->n - 1, .out = share, .in = share, .local = zps_plan_local(round));
}

/* Equation 3: at most (2P + 2 log P) latencies and 6k (P-1)/P words; 4k here, where the global top-k needs no second
 * move to be balanced (equation 2's 4k are 2k of that and 2k of the allgatherv). In a round of our program that renews
 * no threshold, each rank first says with which others it goes on, and regions follow at once; then it says how many
 * entries it has. */
static void oktopk(struct zps_plan_round *round) {
  const double k = kept(round), n = round->n;
  const struct zps_plan_link *link = round->hosts > 1 ? &round->in->cluster.net : &round->in->cluster.host;
  const bool published = round->in->published;
  if (!published) exchange(round, 2);
  split(round, stream(round, k));
  zps_plan_reduce(round, k);
  select_top(round, k);
  exchange(round, 1);
  if (published && n > 1) zps_plan_wait(round, link, n + 1, 0);
  zps_plan_doubling(round, stream(round, k) / n, stream(round, k));
}

/* A reduction tree with re-selection, then a broadcast tree: 2 log P latencies, 4k log P words. */
static void gtopk(struct zps_plan_round *round) {
  const double k = kept(round), bytes = stream(round, k);
  for (unsigned way = 0; way < 2; way++) {
    for (double distance = 1; distance < round->n; distance *= 2) {
      zps_plan_phase(round, .messages = 1, .out = bytes, .in = bytes, .local = distance < round->per_host ? 1 : 0,
                     .part = way ? ZPS_PLAN_SENDS : ZPS_PLAN_GETS);
      if (way > 0) continue;
      zps_plan_reduce(round, 2 * k);
      select_top(round, 2 * k);
    }
  }
}

/* log P latencies, 2k (P-1) words. */
static void topka(struct zps_plan_round *round) {
  const double k = kept(round);
  zps_plan_allgather(round, stream(round, k), round->n * stream(round, k));
  zps_plan_reduce(round, round->n * k);
}

/* SparCML's dynamic one on top-k's: (P + 2 log P) latencies, from 4k (P-1)/P words where all agree to (2k + n) (P-1)/P
 * where the sums fill up. Ours needs no agreement; with `bits` its second half is dense. */
static void topkdsa(struct zps_plan_round *round) {
  const double k = kept(round), rows = (double)round->in->tensor.rows;
  const double sum = fmin(k * zps_plan_gamma(&round->in->profile, round->n), rows);
  const double dense = zps_plan_dense_bytes(round, rows);
  const double bytes = fmin(stream(round, sum), dense);
  split(round, stream(round, k));
  zps_plan_reduce(round, k);
  if (round->in->published) exchange(round, 1);
  zps_plan_gather_ranges(round, bytes / round->n, bytes);
}

void zps_plan_topk(struct zps_plan_round *round, enum zps_plan_scheme scheme) {
  zps_plan_encode(round, kept(round));
  switch (scheme) {
    case ZPS_PLAN_GTOPK:
      select_top(round, (double)round->in->tensor.rows);
      gtopk(round);
      break;
    case ZPS_PLAN_TOPKA:
      select_top(round, (double)round->in->tensor.rows);
      topka(round);
      break;
    case ZPS_PLAN_TOPKDSA:
      select_top(round, (double)round->in->tensor.rows);
      topkdsa(round);
      break;
    case ZPS_PLAN_GAUSSIANK: /* a threshold from mean and deviation; 2 log P latencies, as counts differ */
      if (round->in->published) exchange(round, 1);
      topka(round);
      break;
    default: /* Ok-Topk reuses its thresholds: one pass, which encoding is */
      oktopk(round);
  }
  zps_plan_decode(round, kept(round));
}
