/* Dense schemes between ranks: BlueConnect's equations 3, 4 and 7, and Rabenseifner's as SparCML has it. */
#include <math.h>

#include "common/plan/model_impl.h"

/* T_r, a ring, and T_c, recursive halving or doubling, of BlueConnect's equation 1: (p-1) or lg(p) latencies, and
 * (p-1)/p of the bytes, in so many messages. */
static void pattern(struct zps_plan_round *round, double p, double bytes, const struct zps_plan_link *link,
                    double steps, double messages) {
  if (p <= 1) return;
  const double moved = (p - 1) / p * bytes + messages * round->in->calibration.frame_bytes;
  zps_plan_steps(round, link, steps, bytes / p);
  /* Those of one step follow each other. */
  round->cost->latency_s += (messages - steps) * round->in->calibration.gap_s;
  zps_plan_compute(round, (messages - steps) * round->in->calibration.message_ns);
  round->cost->messages += messages;
  const bool within = link->bandwidth == round->in->cluster.host.bandwidth && round->hosts <= 1;
  round->cost->wire_s += fmax(moved / link->bandwidth, within ? 0 : zps_plan_move_s(round, 2 * moved));
  round->cost->rank_out += moved;
  round->cost->rank_in += moved;
}

static void ring_pattern(struct zps_plan_round *round, double p, double bytes, const struct zps_plan_link *link) {
  pattern(round, p, bytes, link, p - 1, p - 1);
}

static double best_steps(double p) {
  return exp2(zps_plan_log2(p)) == p ? zps_plan_log2(p) : p - 1;
}

/* T_r/c, recursive where p is a power of two, else a ring: a reduce-scatter, and an all-gather. */
static void best_patterns(struct zps_plan_round *round, double p, double bytes, const struct zps_plan_link *link) {
  const double steps = best_steps(p);
  for (unsigned i = 0; i < 2; i++) pattern(round, p, bytes, link, steps, steps);
}

/* The link that a ring over all ranks is as slow as: min W. */
static struct zps_plan_link slowest(const struct zps_plan_round *round) {
  const struct zps_plan_cluster *cluster = &round->in->cluster;
  if (round->hosts <= 1) return cluster->host;
  struct zps_plan_link link = cluster->net;
  if (round->per_host > 1) link.bandwidth = fmin(link.bandwidth, cluster->host.bandwidth);
  if (cluster->hosts_per_rack && round->hosts > cluster->hosts_per_rack)
    link.bandwidth = fmin(link.bandwidth, cluster->rack.bandwidth);
  return link;
}

/* BlueConnect, equation 3: 2 T_r(P, N, alpha, min W). One rank's stream leaves a host. */
static void ring(struct zps_plan_round *round, double bytes) {
  const struct zps_plan_link link = slowest(round);
  ring_pattern(round, round->n, bytes, &link);
  ring_pattern(round, round->n, bytes, &link);
  zps_plan_add_dense(round, (double)round->in->tensor.rows * (round->n - 1) / round->n);
  if (round->hosts > 1) {
    round->cost->host_out += round->cost->rank_out;
    round->cost->host_in += round->cost->rank_in;
  }
}

/* SparCML's T_ar_rab: 2 log2(P) alpha + 2 (P-1)/P N beta. Neighbours first, so that the greatest messages stay in the
 * host. Where P is no power of two, the ranks beyond one hand everything to a neighbour, and get the sum back. */
static void rabenseifner(struct zps_plan_round *round, double bytes) {
  const double fold = exp2(floor(log2(round->n) + 1e-9));
  const bool extra = fold < round->n;
  struct zps_plan_phase whole = {
      .messages = 1, .out = bytes, .in = bytes, .local = round->per_host > 1 ? 1 : 0, .part = ZPS_PLAN_GETS};
  if (extra) zps_plan_add_phase(round, &whole);
  for (double distance = 1; distance < fold; distance *= 2) {
    const double half = bytes / (2 * distance);
    const struct zps_plan_phase phase = {
        .messages = 1, .out = half, .in = half, .local = distance * (extra ? 2 : 1) < round->per_host ? 1 : 0};
    for (unsigned i = 0; i < 2; i++) zps_plan_add_phase(round, &phase); /* halving, doubling */
    zps_plan_add_dense(round, (double)round->in->tensor.rows / (2 * distance));
  }
  whole.part = ZPS_PLAN_SENDS;
  if (extra) zps_plan_add_phase(round, &whole);
}

/* Reduce to a host's master and broadcast from it: BlueConnect's equation 2, T_c + T_r each. */
static void host_trees(struct zps_plan_round *round, double bytes) {
  const struct zps_plan_link *host = &round->in->cluster.host;
  const double recursive = zps_plan_log2(round->per_host), ring_steps = round->per_host - 1;
  for (unsigned i = 0; i < 2; i++) {
    pattern(round, round->per_host, bytes, host, recursive, recursive);
    pattern(round, round->per_host, bytes, host, ring_steps, ring_steps);
  }
}

/* The star of our program: all send the master what they have, and it sends each the sum, in so many blocks. */
static void host_star(struct zps_plan_round *round, double bytes) {
  const double others = round->per_host - 1;
  struct zps_plan_phase phase = {
      .messages = others, .out = others * bytes, .in = others * bytes, .local = 1, .part = ZPS_PLAN_GETS};
  zps_plan_add_phase(round, &phase);
  phase.messages = others * round->hosts;
  phase.part = ZPS_PLAN_SENDS;
  zps_plan_add_phase(round, &phase);
}

/* BlueConnect, equation 4: in the host, and the masters' allreduce in between, which our program does as a ring. */
static void two_level(struct zps_plan_round *round, double bytes) {
  if (round->in->published)
    host_trees(round, bytes);
  else
    host_star(round, bytes);
  zps_plan_add_dense(round, (double)round->in->tensor.rows * (round->per_host - 1));
  const double before = round->cost->rank_out;
  struct zps_plan_link link = slowest(round);
  if (round->hosts <= 1) return;
  if (round->in->published) {
    best_patterns(round, round->hosts, bytes, &link);
  } else {
    ring_pattern(round, round->hosts, bytes, &link);
    ring_pattern(round, round->hosts, bytes, &link);
  }
  round->cost->host_out += round->cost->rank_out - before;
  round->cost->host_in += round->cost->rank_out - before;
  zps_plan_add_dense(round, (double)round->in->tensor.rows * (round->hosts - 1) / round->hosts);
}

/*
 * BlueConnect, equation 7: stage i reduce-scatters N / (p_0 ... p_(i-1)) among p_i ranks, at the least of w_j / (p_0
 * ... p_(j-1)) for the levels j up to i (as equation 6 has it), and the all-gathers are the same in reverse. Levels:
 * ranks of a host, hosts (of a rack, and racks). Where they do not factor P, all ranks are one level.
 */
static void blueconnect(struct zps_plan_round *round, double bytes) {
  const struct zps_plan_cluster *cluster = &round->in->cluster;
  const double racks = cluster->hosts_per_rack ? round->hosts / cluster->hosts_per_rack : 1;
  const bool racked = racks > 1 && racks == floor(racks);
  const double p[3] = {round->per_host, racked ? cluster->hosts_per_rack : round->hosts, racked ? racks : 1};
  const struct zps_plan_link *const links[3] = {&cluster->host, &cluster->net, &cluster->rack};
  if (p[0] * p[1] * p[2] != round->n) {
    const struct zps_plan_link link = slowest(round);
    best_patterns(round, round->n, bytes, &link);
    round->cost->host_out += round->hosts > 1 ? round->cost->rank_out : 0;
    round->cost->host_in += round->hosts > 1 ? round->cost->rank_in : 0;
    zps_plan_add_dense(round, (double)round->in->tensor.rows * (round->n - 1) / round->n);
    return;
  }
  double below = 1, bandwidth = INFINITY;
  for (unsigned i = 0; i < 3; i++) {
    if (p[i] <= 1) continue;
    bandwidth = fmin(bandwidth, links[i]->bandwidth / below);
    const struct zps_plan_link link = {.bandwidth = bandwidth, .latency_s = links[i]->latency_s};
    const double before = round->cost->rank_out;
    best_patterns(round, p[i], bytes / below, &link);
    if (i > 0) {
      round->cost->host_out += round->per_host * (round->cost->rank_out - before);
      round->cost->host_in += round->per_host * (round->cost->rank_out - before);
    }
    zps_plan_add_dense(round, (double)round->in->tensor.rows / below * (p[i] - 1) / p[i]);
    below *= p[i];
  }
}

/* All send everyone its even range, and everyone its sum to all: 2 (P-1) messages and a ring's bytes. */
static void dense_split(struct zps_plan_round *round, double bytes) {
  const double n = round->n;
  const struct zps_plan_phase phase = {
      .messages = n - 1, .out = (n - 1) / n * bytes, .in = (n - 1) / n * bytes, .local = zps_plan_local(round)};
  zps_plan_add_phase(round, &phase);
  zps_plan_add_dense(round, (double)round->in->tensor.rows);
  zps_plan_add_phase(round, &phase);
}

void zps_plan_dense(struct zps_plan_round *round, enum zps_plan_scheme scheme) {
  static void (*const models[ZPS_PLAN_SCHEMES])(struct zps_plan_round * round, double bytes) = {
      [ZPS_PLAN_RABENSEIFNER] = rabenseifner,
      [ZPS_PLAN_TWO_LEVEL] = two_level,
      [ZPS_PLAN_DENSE_SPLIT] = dense_split,
      [ZPS_PLAN_BLUECONNECT] = blueconnect};
  if (round->n <= 1) return;
  (models[scheme] ? models[scheme] : ring)(round, zps_plan_dense_bytes(round, (double)round->in->tensor.rows));
  zps_plan_lanes(round);
}
