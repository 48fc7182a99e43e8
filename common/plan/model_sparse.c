/* Exact sparse schemes between ranks: SparCML's (section 5.3) and AGsparse. */
#include <math.h>

#include "common/codec/codec_choice.h"
#include "common/plan/model_impl.h"

static double stream(const struct zps_plan_round *round, double m, double z) {
  return zps_plan_message_bytes(round->in, ZPS_PLAN_STREAM, m, z);
}

/*
 * Zen's equation 2, SparCML's SSAR_Recursive_double: stage i exchanges the rows that 2^(i-1) ranks have together,
 * log2(P) latencies. Where P is no power of two, the ranks beyond one first hand theirs to a neighbour, and get the sum
 * in the end; a block then stands for up to twice as many ranks.
 */
static void recursive_doubling(struct zps_plan_round *round) {
  const double m = (double)round->in->tensor.rows;
  const double fold = exp2(floor(log2(round->n) + 1e-9)), extra = round->n - fold;
  const double first = zps_plan_rows(round, 1), last = zps_plan_rows(round, round->n);
  const double near = round->per_host > 1 ? 1 : 0;
  zps_plan_encode(round, first);
  if (extra > 0) {
    const double bytes = stream(round, m, first);
    zps_plan_phase(round, .messages = 1, .out = bytes, .in = bytes, .local = near, .part = ZPS_PLAN_GETS);
    zps_plan_reduce(round, 2 * first);
  }
  for (double distance = 1; distance < fold; distance *= 2) {
    const double ranks = distance + fmin(extra, distance), rows = zps_plan_rows(round, ranks);
    const double bytes = stream(round, m, rows);
    zps_plan_phase(round, .messages = 1, .out = bytes, .in = bytes, .local = ranks < round->per_host ? 1 : 0);
    /* The first of them has most, and gets what the others' half has, of fewer ranks. */
    const double others = distance + fmin(fmax(extra - distance, 0), distance);
    round->cost->rank_in -= bytes - stream(round, m, zps_plan_rows(round, others));
    zps_plan_reduce(round, 2 * rows);
  }
  if (extra > 0) {
    const double bytes = stream(round, m, last);
    zps_plan_phase(round, .messages = 1, .out = bytes, .in = bytes, .local = near, .part = ZPS_PLAN_SENDS);
    round->cost->rank_in = fmax(round->cost->rank_in, bytes); /* all that a rank beyond gets */
  }
  zps_plan_decode(round, last);
}

/* SparCML's split: each rank sends every other the rows of its even range, (P-1) latencies and at most k items; a rank
 * that has the densest range receives most. */
static void split(struct zps_plan_round *round) {
  const double n = round->n, m = (double)round->in->tensor.rows;
  const double rows = zps_plan_rows(round, 1), hot = zps_plan_hot_rows(round, 1, n);
  const double total = stream(round, m, rows);
  zps_plan_encode(round, rows);
  zps_plan_phase(round, .messages = n - 1, .out = (n - 1) / n * total, .in = (n - 1) * stream(round, m / n, hot),
                 .mean = (n - 1) / n * total, .local = zps_plan_local(round));
  zps_plan_reduce(round, n * hot);
}

/* SSAR_Split_allgather: between 2 (P-1)/P k and P k items. */
static void split_allgather(struct zps_plan_round *round) {
  const double n = round->n, m = (double)round->in->tensor.rows;
  const double rows = zps_plan_rows(round, n), hot = zps_plan_hot_rows(round, n, n);
  split(round);
  zps_plan_gather_ranges(round, stream(round, m / n, hot), fmax(stream(round, m, rows), stream(round, m / n, hot)));
  zps_plan_decode(round, rows);
}

/* DSAR_Split_allgather: the split, and the sums dense: at most k beta_s + (P-1)/P N beta_d. Levels of `bits` bits come
 * with a scale per 1024 values (section 6). */
static void dsar(struct zps_plan_round *round) {
  const double n = round->n, rows = (double)round->in->tensor.rows, bits = round->in->bits;
  const double values = rows * round->in->tensor.width;
  const double total = bits > 0 ? values * (bits / 8 + 4.0 / 1024) : zps_plan_dense_bytes(round, rows);
  split(round);
  zps_plan_gather_ranges(round, total / n, total);
  zps_plan_add_dense(round, rows);
}

/* Ours: the split and the gathering with a bit for each row, or all rows where most are in the sum. */
static double bitmap_bytes(const struct zps_plan_round *round, double m, double z) {
  const struct zps_plan_tensor *const tensor = &round->in->tensor;
  return m / 8 + z * tensor->width * tensor->value_bytes;
}

static double bitmap_sum_bytes(const struct zps_plan_round *round, double m, double z) {
  return z > ZPS_CODEC_MOST * m ? zps_plan_dense_bytes(round, m) : bitmap_bytes(round, m, z);
}

static void bitmap_split(struct zps_plan_round *round) {
  const double n = round->n, m = (double)round->in->tensor.rows, others = (n - 1) / n;
  const double own = bitmap_bytes(round, m, zps_plan_rows(round, 1));
  const double sum = bitmap_sum_bytes(round, m, zps_plan_rows(round, n));
  zps_plan_compute(round, m * round->in->tensor.width * round->in->calibration.scan_value_ns);
  zps_plan_phase(round, .messages = n - 1, .out = others * own,
                 .in = (n - 1) * bitmap_bytes(round, m / n, zps_plan_hot_rows(round, 1, n)), .mean = others * own,
                 .local = zps_plan_local(round));
  zps_plan_add_dense(round, m);
  zps_plan_phase(round, .messages = n - 1,
                 .out = (n - 1) * bitmap_sum_bytes(round, m / n, zps_plan_hot_rows(round, n, n)), .in = others * sum,
                 .mean = others * sum, .local = zps_plan_local(round));
  if (sum < zps_plan_dense_bytes(round, m)) zps_plan_add_dense(round, m);
  zps_plan_lanes(round);
}

/* One-shot: everyone gets everything, (n-1) 2 M d, and adds it up. */
static void agsparse(struct zps_plan_round *round) {
  const double own = zps_plan_rows(round, 1);
  const double bytes = stream(round, (double)round->in->tensor.rows, own);
  zps_plan_encode(round, own);
  zps_plan_allgather(round, bytes, round->n * bytes);
  zps_plan_reduce(round, round->n * own);
  zps_plan_decode(round, zps_plan_rows(round, round->n));
}

void zps_plan_sparse(struct zps_plan_round *round, enum zps_plan_scheme scheme) {
  static void (*const models[ZPS_PLAN_AUTO + 1])(struct zps_plan_round * round) = {
      [ZPS_PLAN_SPLIT_ALLGATHER] = split_allgather,
      [ZPS_PLAN_DSAR] = dsar,
      [ZPS_PLAN_AGSPARSE] = agsparse,
      [ZPS_PLAN_BITMAP_SPLIT] = bitmap_split};
  (models[scheme] ? models[scheme] : recursive_doubling)(round);
}
