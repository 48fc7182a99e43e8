/* The terms that every prediction is a sum of: bytes, waits and computing. */
#include <math.h>

#include "common/plan/model_impl.h"

/* Of a dense block's pieces, unless an option of the tensor says otherwise. */
#define LANE_BYTES (1u << 20)
#define LANES_MAX 8

static double at_least(double x, double low) {
  return x < low ? low : x;
}

/* The time of work that all processes of a host do at once, over the time of one of them alone on a core: its ranks, or
 * its servers. */
static double sharing(const struct zps_plan_round *round) {
  const struct zps_plan_cluster *cluster = &round->in->cluster;
  const double alone = 1 / at_least(round->in->calibration.threads, 1);
  const double servers = cluster->servers_apart || !cluster->servers ? 1 : ceil(cluster->servers / round->hosts);
  return cluster->cores ? at_least((round->serving ? servers : round->per_host) / cluster->cores, alone) : alone;
}

void zps_plan_compute(struct zps_plan_round *round, double ns) {
  round->cost->compute_s += ns * 1e-9 * sharing(round);
}

double zps_plan_move_s(const struct zps_plan_round *round, double bytes) {
  return bytes * round->in->calibration.move_byte_ns * 1e-9 * sharing(round);
}

/* m * H(z / m) bits: a random set of z out of m cannot do without them. */
static double set_bytes(double m, double z) {
  if (z <= 0 || z >= m) return 0;
  return (z * log2(m / z) + (m - z) * log2(m / (m - z))) / 8;
}

/* SparCML switches a stream to dense where that is smaller (its delta); Zen codes pushes as COO, pulls as the hash
 * bitmap (section 3.3). Ours is the entropy, which our codes reach within a few thousandths. */
double zps_plan_message_bytes(const struct zps_plan_input *input, enum zps_plan_message message, double m, double z) {
  const struct zps_plan_tensor *tensor = &input->tensor;
  const bool served = message != ZPS_PLAN_STREAM && tensor->served_bytes > 0;
  const double row_bytes = tensor->width * (served ? tensor->served_bytes : tensor->value_bytes);
  if (z > m) z = m;
  const double coo = z * (4 + row_bytes);
  switch (input->codec) {
    case ZPS_PLAN_CODEC_COO:
      return coo;
    case ZPS_PLAN_CODEC_PAPER:
      if (message == ZPS_PLAN_PUSH) return coo;
      return message == ZPS_PLAN_PULL ? m / 8 + z * row_bytes : fmin(coo, m * row_bytes);
    case ZPS_PLAN_CODEC_AUTO:
    default:
      return z * row_bytes + set_bytes(m, z);
  }
}

double zps_plan_log2(double n) {
  return n > 1 ? ceil(log2(n) - 1e-9) : 0;
}

double zps_plan_local(const struct zps_plan_round *round) {
  return round->n > 1 ? (round->per_host - 1) / (round->n - 1) : 0;
}

double zps_plan_rows(const struct zps_plan_round *round, double k) {
  return (double)round->in->tensor.rows * zps_plan_union(&round->in->profile, k);
}

double zps_plan_hot_rows(const struct zps_plan_round *round, double k, double parts) {
  const double mean = zps_plan_rows(round, k) / parts;
  return fmin(mean * zps_plan_skew(&round->in->profile, parts), (double)round->in->tensor.rows / parts);
}

double zps_plan_dense_bytes(const struct zps_plan_round *round, double rows) {
  return rows * round->in->tensor.width * round->in->tensor.value_bytes;
}

/* Latencies of one message: announced and read, or at once. */
static double latencies(const struct zps_plan_round *round, double bytes) {
  return bytes >= round->in->calibration.eager_bytes ? at_least(round->in->calibration.announced, 1) : 1;
}

void zps_plan_wait(struct zps_plan_round *round, const struct zps_plan_link *link, double messages, double bytes) {
  if (messages <= 0) return;
  const double gap_s = round->in->calibration.gap_s;
  const double gap = gap_s > 0 ? fmin(gap_s, link->latency_s) : link->latency_s;
  round->cost->latency_s += latencies(round, bytes) * link->latency_s + (messages - 1) * gap;
  zps_plan_compute(round, messages * latencies(round, bytes) * round->in->calibration.message_ns);
}

void zps_plan_steps(struct zps_plan_round *round, const struct zps_plan_link *link, double steps, double bytes) {
  round->cost->latency_s += steps * latencies(round, bytes) * link->latency_s;
  zps_plan_compute(round, steps * latencies(round, bytes) * round->in->calibration.message_ns);
}

void zps_plan_wire(struct zps_plan_round *round, double bytes, double bandwidth) {
  if (bytes > 0) round->cost->wire_s += bytes / bandwidth;
}

void zps_plan_add_phase(struct zps_plan_round *round, const struct zps_plan_phase *phase) {
  if (phase->messages <= 0 || round->n <= 1) return;
  const struct zps_plan_cluster *cluster = &round->in->cluster;
  const double frames = phase->messages * round->in->calibration.frame_bytes;
  const double out = phase->out + frames, in = phase->in + frames, most = fmax(out, in);
  const double mean = phase->mean > 0 ? phase->mean + frames : most, beyond = 1 - phase->local;
  struct zps_plan_cost *cost = round->cost;
  const double host_out = (out + (round->per_host - 1) * fmin(mean, out)) * beyond;
  const double host_in = (in + (round->per_host - 1) * fmin(mean, in)) * beyond;
  cost->rank_out += phase->part == ZPS_PLAN_GETS ? 0 : out;
  cost->rank_in += phase->part == ZPS_PLAN_SENDS ? 0 : in;
  cost->messages += phase->part == ZPS_PLAN_GETS ? 0 : phase->messages;
  cost->host_out += host_out;
  cost->host_in += host_in;
  /* Within a host through shared memory: the cores copy. */
  const double within_s = most * phase->local / cluster->host.bandwidth * at_least(sharing(round), 1);
  const double beyond_s =
      fmax(fmax(host_out, host_in) / cluster->net.bandwidth, zps_plan_move_s(round, (out + in) * beyond));
  cost->wire_s += fmax(within_s, beyond_s);
  zps_plan_wait(round, phase->local >= 1 ? &cluster->host : &cluster->net, phase->messages, most / phase->messages);
}

/* Recursive doubling: stage i exchanges blocks of 2^(i-1) ranks: ceil(log2 n) latencies, and (n-1)/n of the whole where
 * blocks are alike (SparCML 5.3.2). The greatest block is in a message of every stage. */
void zps_plan_doubling(struct zps_plan_round *round, double hot, double total) {
  const double n = round->n;
  const double rest = n > 1 ? (total - hot) / (n - 1) : 0;
  double have = 1;
  while (have < n) {
    const double blocks = fmin(have, n - have);
    zps_plan_phase(round, .messages = 1, .out = hot + (blocks - 1) * rest, .in = hot + (blocks - 1) * rest,
                   .mean = blocks * (total / n), .local = have < round->per_host ? 1 : 0);
    have += blocks;
  }
}

static void straight(struct zps_plan_round *round, double hot, double total) {
  const double n = round->n, share = total * (n - 1) / n;
  zps_plan_phase(round, .messages = n - 1, .out = (n - 1) * hot, .in = share, .mean = share,
                 .local = zps_plan_local(round));
}

void zps_plan_allgather(struct zps_plan_round *round, double hot, double total) {
  if (round->in->published)
    zps_plan_doubling(round, hot, total);
  else
    straight(round, hot, total);
}

/* A pair's first rank takes the other's range into the stages, and hands it the result in two halves. */
static void double_in_pairs(struct zps_plan_round *round, double hot, double total) {
  const double n = round->n, fold = exp2(floor(log2(n) + 1e-9)), near = round->per_host > 1 ? 1 : 0;
  if (fold < n) {
    zps_plan_phase(round, .messages = 1, .out = hot, .in = hot, .local = near, .part = ZPS_PLAN_GETS);
    zps_plan_phase(round, .messages = 2, .out = total, .in = total, .local = near, .part = ZPS_PLAN_SENDS);
  }
  double held = fold < n ? 2 * hot : hot; /* by a pair, which has most to send; a rank alone gets most */
  const double missing = total - held;
  for (double have = 1; have < fold; have *= 2) {
    const double got = missing * have / (fold - 1);
    zps_plan_phase(round, .messages = 1, .out = held, .in = (total - hot) * have / (fold - 1),
                   .local = have < round->per_host ? 1 : 0);
    held += got;
  }
}

void zps_plan_gather_ranges(struct zps_plan_round *round, double hot, double total) {
  const struct zps_plan_tensor *const tensor = &round->in->tensor;
  const double row_bytes = tensor->width * tensor->value_bytes, n = round->n;
  const double all = (double)tensor->rows * row_bytes;
  const double kept = round->in->k ? n * (double)round->in->k * (row_bytes + sizeof(uint32_t)) : all;
  const bool doubles = n > 3 && round->in->bits == 0 && fmin(all, kept) <= ZPS_PLAN_DOUBLING_BYTES;
  if (round->in->published || !doubles)
    zps_plan_allgather(round, hot, total);
  else
    double_in_pairs(round, hot, total);
}

void zps_plan_lanes(struct zps_plan_round *round) {
  const double block = zps_plan_dense_bytes(round, (double)round->in->tensor.rows) / round->n;
  const double more = fmin(fmax(floor(block / LANE_BYTES), 1), LANES_MAX) - 1;
  if (round->in->published) return;
  zps_plan_compute(round, more * round->cost->messages * round->in->calibration.message_ns);
  round->cost->messages *= 1 + more;
}

void zps_plan_encode(struct zps_plan_round *round, double rows) {
  const struct zps_plan_calibration *c = &round->in->calibration;
  const double width = round->in->tensor.width;
  zps_plan_compute(round, (double)round->in->tensor.rows * width * c->scan_value_ns +
                              rows * (c->encode_row_ns + width * c->encode_value_ns));
}

void zps_plan_reduce(struct zps_plan_round *round, double rows) {
  const struct zps_plan_calibration *c = &round->in->calibration;
  zps_plan_compute(round, rows * (c->reduce_row_ns + round->in->tensor.width * c->reduce_value_ns));
}

void zps_plan_decode(struct zps_plan_round *round, double rows) {
  const struct zps_plan_calibration *c = &round->in->calibration;
  const double width = round->in->tensor.width;
  zps_plan_compute(round, (double)round->in->tensor.rows * width * c->clear_value_ns +
                              rows * (c->decode_row_ns + width * c->decode_value_ns));
}

void zps_plan_add_dense(struct zps_plan_round *round, double rows) {
  zps_plan_compute(round, rows * round->in->tensor.width * round->in->calibration.add_value_ns);
}
