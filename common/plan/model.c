#include "common/plan/model.h"

#include <math.h>

#include "common/plan/model_impl.h"

/* Times that somebody wakes up in a round besides those for its messages: what begins it, what encodes, sums and
 * decodes its parts, and who waits for its end. */
#define ROUND_WAKES 6

static double at_least(double x, double low) {
  return x < low ? low : x;
}

/* How many times as long as one core would something takes that all processes of a host do at once: its ranks, or its
 * servers. */
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

/* m * H(z / m) bits: what a random set of z out of m cannot do without. */
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

void zps_plan_phase(struct zps_plan_round *round, const struct zps_plan_phase *phase) {
  if (phase->messages <= 0 || round->n <= 1) return;
  const struct zps_plan_cluster *cluster = &round->in->cluster;
  const double frames = phase->messages * round->in->calibration.frame_bytes;
  const double out = phase->out + frames, in = phase->in + frames, most = fmax(out, in);
  const double mean = phase->mean > 0 ? phase->mean + frames : most, beyond = 1 - phase->local;
  struct zps_plan_cost *cost = round->cost;
  const double host_out = (out + (round->per_host - 1) * fmin(mean, out)) * beyond;
  const double host_in = (in + (round->per_host - 1) * fmin(mean, in)) * beyond;
  cost->rank_out += out;
  cost->rank_in += in;
  cost->host_out += host_out;
  cost->host_in += host_in;
  /* Within a host through shared memory: the cores copy. */
  const double within_s = most * phase->local / cluster->host.bandwidth * at_least(sharing(round), 1);
  const double beyond_s =
      fmax(fmax(host_out, host_in) / cluster->net.bandwidth, zps_plan_move_s(round, (out + in) * beyond));
  cost->wire_s += fmax(within_s, beyond_s);
  zps_plan_wait(round, phase->local >= 1 ? &cluster->host : &cluster->net, phase->messages, most / phase->messages);
}

/* Recursive doubling, whose stage i exchanges blocks of 2^(i-1) ranks: ceil(log2 n) latencies, and (n-1)/n of the whole
 * where blocks are alike (SparCML 5.3.2). The greatest block is in a message of every stage. */
void zps_plan_allgather(struct zps_plan_round *round, double hot, double total) {
  const double n = round->n;
  const double rest = n > 1 ? (total - hot) / (n - 1) : 0;
  double have = 1;
  while (have < n) {
    const double blocks = fmin(have, n - have);
    const struct zps_plan_phase phase = {.messages = 1,
                                         .out = hot + (blocks - 1) * rest,
                                         .in = hot + (blocks - 1) * rest,
                                         .mean = blocks * (total / n),
                                         .local = have < round->per_host ? 1 : 0};
    zps_plan_phase(round, &phase);
    have += blocks;
  }
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

zps_err_t zps_plan_check(const struct zps_plan_input *input, struct zps_error *error) {
  const struct zps_plan_cluster *cluster = &input->cluster;
  const struct zps_plan_tensor *tensor = &input->tensor;
  if (cluster->n < 1 || cluster->ranks_per_host < 1)
    return zps_fail(error, ZPS_ERR_INVALID, "a plan needs at least one rank, and one per host");
  if (tensor->rows < 1 || tensor->width < 1 || !(tensor->value_bytes > 0))
    return zps_fail(error, ZPS_ERR_INVALID, "a plan needs a tensor of at least one row of one value");
  if (!(input->profile.density >= 0) || input->profile.density > 1)
    return zps_fail(error, ZPS_ERR_INVALID, "a density is between 0 and 1, not %g", input->profile.density);
  const struct zps_plan_link *const links[] = {&cluster->net, &cluster->host,
                                               cluster->hosts_per_rack ? &cluster->rack : &cluster->net};
  for (unsigned i = 0; i < sizeof links / sizeof links[0]; i++) {
    if (!(links[i]->bandwidth > 0) || !(links[i]->latency_s >= 0))
      return zps_fail(error, ZPS_ERR_INVALID, "a link's bandwidth is more than 0, and its latency not less than 0");
  }
  return ZPS_OK;
}

void zps_plan_predict(const struct zps_plan_input *input, enum zps_plan_scheme scheme, struct zps_plan_cost *cost) {
  *cost = (struct zps_plan_cost){.time_s = 0};
  struct zps_plan_round round = {.in = input, .cost = cost, .n = input->cluster.n};
  round.per_host = fmin(input->cluster.ranks_per_host, round.n);
  round.hosts = ceil(round.n / round.per_host);
  if (zps_plan_scheme_served(scheme))
    zps_plan_served(&round, scheme);
  else if (zps_plan_scheme_dense(scheme))
    zps_plan_dense(&round, scheme);
  else if (zps_plan_scheme_lossy(scheme))
    zps_plan_topk(&round, scheme);
  else
    zps_plan_sparse(&round, scheme);
  if (round.n > 1) zps_plan_compute(&round, ROUND_WAKES * input->calibration.message_ns);
  cost->time_s = cost->latency_s + cost->wire_s + cost->compute_s;
}

unsigned zps_plan_lossless(void) {
  unsigned allowed = 0;
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++)
    allowed |= zps_plan_scheme_lossy((enum zps_plan_scheme)i) ? 0 : 1u << i;
  return allowed;
}

enum zps_plan_scheme zps_plan_fastest(const struct zps_plan_input *input, unsigned allowed) {
  enum zps_plan_scheme best = ZPS_PLAN_BALANCED;
  double best_s = INFINITY;
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    struct zps_plan_cost cost;
    if (!(allowed >> i & 1)) continue;
    zps_plan_predict(input, (enum zps_plan_scheme)i, &cost);
    if (cost.time_s >= best_s) continue;
    best = (enum zps_plan_scheme)i;
    best_s = cost.time_s;
  }
  return best;
}

uint32_t zps_plan_servers_worth(const struct zps_plan_input *input, enum zps_plan_scheme scheme, uint32_t most,
                                double slack) {
  if (!zps_plan_scheme_served(scheme)) return 0;
  struct zps_plan_input with = *input;
  struct zps_plan_cost cost;
  double best_s = INFINITY;
  for (with.cluster.servers = 1; with.cluster.servers <= most; with.cluster.servers++) {
    zps_plan_predict(&with, scheme, &cost);
    best_s = fmin(best_s, cost.time_s);
  }
  for (with.cluster.servers = 1; with.cluster.servers < most; with.cluster.servers++) {
    zps_plan_predict(&with, scheme, &cost);
    if (cost.time_s <= best_s * slack) break;
  }
  return with.cluster.servers;
}
