/* Schemes through servers: every rank pushes each server its part, and pulls the sum of every part. */
#include <math.h>

#include "common/plan/model_impl.h"

/* Bytes of one rank's contribution (push) and of the sum (pull): all of them, and the part of the server with most. */
struct volume {
  double push, push_part, pull, pull_part;
};

struct sides {
  double host_out, host_in, server_out, server_in;
};

static double servers_of(const struct zps_plan_round *round) {
  const uint32_t servers = round->in->cluster.servers;
  return servers ? servers : round->hosts;
}

/*
 * Zen, equation 1: each of n nodes that serve as well receives (n-1)/n of the bytes that all push and of those that it
 * pulls, as a node's own part stays where it is. Where servers are fewer than hosts, those that have one carry all;
 * where they are apart, a server receives n contributions, and a host sends all of its ranks'.
 */
static void push(const struct zps_plan_round *round, const struct volume *volume, struct sides *sides) {
  const double servers = servers_of(round);
  if (round->in->cluster.servers_apart) {
    *sides = (struct sides){.host_out = round->per_host * volume->push, .server_in = round->n * volume->push_part};
    return;
  }
  const double per_host = ceil(servers / round->hosts); /* servers on the fullest host */
  const double own = servers >= round->hosts ? volume->push / round->hosts : 0;
  const double others = round->n - round->per_host;
  *sides = (struct sides){.host_out = round->per_host * (round->hosts > 1 ? volume->push - own : 0),
                          .host_in = others * volume->push_part * per_host,
                          .server_in = round->n * volume->push_part};
}

static void pull(const struct zps_plan_round *round, const struct volume *volume, struct sides *sides) {
  const struct volume mirrored = {.push = volume->pull, .push_part = volume->pull_part};
  struct sides in;
  push(round, &mirrored, &in);
  *sides = (struct sides){.host_out = in.host_in, .host_in = in.host_out, .server_out = in.server_in};
}

/* The slowest link's time: hosts' and servers', and that of the process on a host that moves most within it. */
static double seconds(const struct zps_plan_round *round, const struct sides *sides, double total, double part) {
  const struct zps_plan_cluster *cluster = &round->in->cluster;
  double bytes = fmax(sides->host_out, sides->host_in);
  if (cluster->servers_apart) bytes = fmax(bytes, fmax(sides->server_out, sides->server_in));
  const double server = round->per_host * part, local = round->hosts > 1 ? server : fmax(server, total);
  return fmax(bytes / cluster->net.bandwidth, cluster->servers_apart ? 0 : local / cluster->host.bandwidth);
}

/* Ranks and servers of a host share its cores. */
static double moved_s(struct zps_plan_round *round, double rank_bytes, double server_bytes) {
  const double rank_s = zps_plan_move_s(round, rank_bytes);
  round->serving = true;
  const double server_s = zps_plan_move_s(round, server_bytes);
  round->serving = false;
  const struct zps_plan_cluster *cluster = &round->in->cluster;
  return cluster->cores && !cluster->servers_apart ? rank_s + server_s : fmax(rank_s, server_s);
}

static void go(struct zps_plan_round *round, const struct volume *wanted) {
  const struct zps_plan_cluster *cluster = &round->in->cluster;
  const double servers = servers_of(round), frame = round->in->calibration.frame_bytes;
  const struct volume volume = {wanted->push + servers * frame, wanted->push_part + frame,
                                wanted->pull + servers * frame, wanted->pull_part + frame};
  struct sides out, back;
  push(round, &volume, &out);
  pull(round, &volume, &back);
  struct zps_plan_cost *cost = round->cost;
  /* A rank alone on its host keeps its share where a server is there, too. */
  const bool kept = !cluster->servers_apart && servers >= round->hosts;
  cost->rank_out += volume.push - (kept ? volume.push / round->hosts : 0);
  cost->rank_in += volume.pull - (kept ? volume.pull / round->hosts : 0);
  cost->messages += servers;
  cost->host_out += out.host_out + back.host_out;
  cost->host_in += out.host_in + back.host_in;
  cost->server_in += out.server_in;
  cost->server_out += back.server_out;
  const double out_s = fmax(seconds(round, &out, volume.push, volume.push_part),
                            moved_s(round, volume.push, round->n * volume.push_part));
  const double back_s = fmax(seconds(round, &back, volume.pull, volume.pull_part),
                             moved_s(round, volume.pull, round->n * volume.pull_part));
  cost->wire_s += out_s + back_s - round->in->calibration.overlap * fmin(out_s, back_s);
  /* Zen leaves latency out; all messages of a phase are on their way at once. */
  const bool here = !cluster->servers_apart && round->hosts <= 1;
  const struct zps_plan_link *link = here ? &cluster->host : &cluster->net;
  const double messages = round->in->calibration.gap_s > 0 ? servers : 1;
  zps_plan_wait(round, link, messages, volume.push / servers);
  zps_plan_wait(round, link, messages, volume.pull / servers);
  round->serving = true;
  zps_plan_compute(round, 2 * round->n * round->in->calibration.message_ns);
  round->serving = false;
}

/* Zen's Balanced Parallelism over `ranks` contributions of `rows` rows each: equation 1 where pushes and pulls are COO.
 */
static void balanced(struct zps_plan_round *round, double rows, double sum_rows) {
  const struct zps_plan_input *in = round->in;
  const double m = (double)in->tensor.rows, servers = servers_of(round);
  const double uneven = (in->imbalance > 1 ? in->imbalance : 1) / servers;
  const double push_bytes = zps_plan_message_bytes(in, ZPS_PLAN_PUSH, m, rows);
  const double pull_bytes = zps_plan_message_bytes(in, ZPS_PLAN_PULL, m, sum_rows);
  const struct volume volume = {push_bytes, push_bytes * uneven, pull_bytes, pull_bytes * uneven};
  zps_plan_encode(round, rows);
  round->serving = true;
  zps_plan_reduce(round, round->n * rows * uneven);
  round->serving = false;
  go(round, &volume);
  zps_plan_decode(round, sum_rows);
}

/* Even ranges and COO (Zen section 4.1, its Sparse PS): the densest range's server has most to do (definition 5). */
static void sparse_ps(struct zps_plan_round *round) {
  const struct zps_plan_input *in = round->in;
  const double m = (double)in->tensor.rows, servers = servers_of(round), part = m / servers;
  const double rows = zps_plan_rows(round, 1), sum_rows = zps_plan_rows(round, round->n);
  const double hot = zps_plan_hot_rows(round, 1, servers), hot_sum = zps_plan_hot_rows(round, round->n, servers);
  /* Ranges are COO both ways in Zen's comparison: a bitmap is worth it for its own hashed partitions. */
  const enum zps_plan_message back = in->codec == ZPS_PLAN_CODEC_PAPER ? ZPS_PLAN_PUSH : ZPS_PLAN_PULL;
  const struct volume volume = {
      zps_plan_message_bytes(in, ZPS_PLAN_PUSH, m, rows), zps_plan_message_bytes(in, ZPS_PLAN_PUSH, part, hot),
      zps_plan_message_bytes(in, back, m, sum_rows), zps_plan_message_bytes(in, back, part, hot_sum)};
  zps_plan_encode(round, rows);
  round->serving = true;
  zps_plan_reduce(round, round->n * hot);
  round->serving = false;
  go(round, &volume);
  zps_plan_decode(round, sum_rows);
}

/* OmniReduce as Zen has it (sections 2.3 and 2.4): even ranges, whole non-zero blocks and no index but, with our codes,
 * a block's number. */
static void omnireduce(struct zps_plan_round *round) {
  const struct zps_plan_input *in = round->in;
  const double width = in->tensor.width, values = (double)in->tensor.rows * width, servers = servers_of(round);
  const double block = ZPS_PLAN_BLOCK * in->tensor.value_bytes + (in->codec == ZPS_PLAN_CODEC_AUTO ? 4 : 0);
  const double all = values / ZPS_PLAN_BLOCK * block;
  const double rows = (double)in->tensor.rows;
  const double hot = zps_plan_hot_rows(round, 1, servers) * servers / rows;
  const double hot_sum = zps_plan_hot_rows(round, round->n, servers) * servers / rows;
  const double share = zps_plan_blocks(&in->profile, in->tensor.width, in->profile.density);
  const double hot_share = zps_plan_blocks(&in->profile, in->tensor.width, hot);
  const double sum_share = zps_plan_blocks(&in->profile, in->tensor.width, zps_plan_union(&in->profile, round->n));
  const double hot_sum_share = zps_plan_blocks(&in->profile, in->tensor.width, hot_sum);
  const struct volume volume = {all * share, all * hot_share / servers, all * sum_share, all * hot_sum_share / servers};
  zps_plan_encode(round, rows * share);
  round->serving = true;
  zps_plan_add_dense(round, round->n * rows * hot_share / servers);
  round->serving = false;
  go(round, &volume);
  zps_plan_decode(round, rows * sum_share);
}

static void dense_ps(struct zps_plan_round *round) {
  const double rows = (double)round->in->tensor.rows, servers = servers_of(round);
  const double all = zps_plan_dense_bytes(round, rows);
  const struct volume volume = {all, all / servers, all, all / servers};
  round->serving = true;
  zps_plan_add_dense(round, round->n * rows / servers);
  round->serving = false;
  go(round, &volume);
  zps_plan_add_dense(round, rows);
}

/*
 * Ours: the ranks of a host merge into one contribution, its first rank pushes that, and all of them find the sum in
 * shared memory, coded once more. The rest is balanced between hosts, with gamma_R times the rows each; one host alone
 * has no use for servers.
 */
static void hierarchical(struct zps_plan_round *round) {
  const struct zps_plan_input *in = round->in;
  const struct zps_plan_cluster *cluster = &in->cluster;
  const double per_host = round->per_host, m = (double)in->tensor.rows;
  const double sum_rows = zps_plan_rows(round, round->n);
  const double own = zps_plan_message_bytes(in, ZPS_PLAN_STREAM, m, zps_plan_rows(round, 1));
  const double sum = zps_plan_message_bytes(in, ZPS_PLAN_PULL, m, sum_rows);
  struct zps_plan_input between = *in;
  struct zps_plan_round hosts = {
      .in = &between, .cost = round->cost, .n = round->hosts, .per_host = 1, .hosts = round->hosts};
  between.cluster.n = (uint32_t)round->hosts;
  between.cluster.ranks_per_host = 1;
  if (per_host > 1) {
    zps_plan_encode(round, zps_plan_rows(round, 1));
    zps_plan_reduce(round, per_host * zps_plan_rows(round, 1));
    between.calibration.scan_value_ns = 0; /* the merged rows are a list */
    zps_plan_wire(round, (per_host - 1) * own, cluster->host.bandwidth);
    zps_plan_wire(round, sum, cluster->host.bandwidth);
    zps_plan_wait(round, &cluster->host, 1, 0);
    zps_plan_wait(round, &cluster->host, 1, 0);
  }
  if (round->hosts <= 1) {
    zps_plan_decode(round, sum_rows);
    return;
  }
  if (per_host > 1) zps_plan_encode(&hosts, sum_rows);
  balanced(&hosts, zps_plan_rows(round, per_host), sum_rows);
}

void zps_plan_served(struct zps_plan_round *round, enum zps_plan_scheme scheme) {
  static void (*const models[ZPS_PLAN_SCHEMES])(struct zps_plan_round * round) = {
      [ZPS_PLAN_OMNIREDUCE] = omnireduce,
      [ZPS_PLAN_SPARSE_PS] = sparse_ps,
      [ZPS_PLAN_DENSE_PS] = dense_ps,
      [ZPS_PLAN_HIERARCHICAL] = hierarchical};
  if (models[scheme])
    models[scheme](round);
  else
    balanced(round, zps_plan_rows(round, 1), zps_plan_rows(round, round->n));
}
