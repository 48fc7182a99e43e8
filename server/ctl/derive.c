#include "server/ctl/derive.h"

#include <string.h>

#include "server/ctl/late.h"

static bool same(const zps_json *a, const zps_json *b, const char *key) {
  return strcmp(zps_json_opt_str(a, key, ""), zps_json_opt_str(b, key, "")) == 0;
}

/* The row of the earlier sample about the same thing; NULL when there is none, or when it had counted further: then it
 * is not the same thing any more. */
static const zps_json *earlier(const zps_json *before, const char *array, const zps_json *row) {
  const zps_json *rows = before ? zps_json_get(before, array) : NULL;
  for (size_t i = 0; i < zps_json_array_len(rows); i++) {
    const zps_json *other = zps_json_at(rows, i);
    if (same(row, other, "server") && same(row, other, "job_id") && same(row, other, "name") &&
        number(row, "tensor") == number(other, "tensor") && number(row, "rank") == number(other, "rank"))
      return number(row, "rounds") >= number(other, "rounds") ? other : NULL;
  }
  return NULL;
}

static double ratio(double part, double whole) {
  return whole > 0 ? part / whole : 0;
}

struct window {
  const zps_json *row, *before;
};

static double grown(const struct window *window, const char *key) {
  return number(window->row, key) - number(window->before, key);
}

/* A tensor's heaviest partition over its mean one, over all its servers: each knows only its own. Servers may have
 * counted different rounds, so each counts by its mean round. */
static double imbalance_pull(const zps_json *now, const zps_json *before, const zps_json *row) {
  const zps_json *rows = zps_json_get(now, "shards");
  double heaviest = 0, sum = 0;
  for (size_t i = 0; i < zps_json_array_len(rows); i++) {
    const zps_json *other = zps_json_at(rows, i);
    if (!same(row, other, "job_id") || number(row, "tensor") != number(other, "tensor")) continue;
    const struct window window = {other, earlier(before, "shards", other)};
    const double rounds = grown(&window, "rounds"), here = ratio(grown(&window, "union_rows_max_part"), rounds);
    if (here > heaviest) heaviest = here;
    sum += ratio(grown(&window, "union_rows"), rounds);
  }
  return ratio(heaviest * number(row, "partitions"), sum);
}

static zps_json *copy(const zps_json *row) {
  return zps_json_set_all(zps_json_object(), row);
}

static zps_json *derive_shard(const zps_json *now, const zps_json *before, double seconds, const zps_json *row) {
  const struct window window = {row, earlier(before, "shards", row)};
  const double span = window.before ? seconds : number(row, "age_s"), rounds = grown(&window, "rounds");
  const double parts = number(row, "partitions");
  const double rows_here = number(row, "rows") * ratio(number(row, "partitions_here"), parts > 0 ? parts : 1);
  zps_json *to = zps_json_set_real(copy(row), "rounds_per_s", ratio(rounds, span));
  to = zps_json_set_real(to, "bytes_in_per_s", ratio(grown(&window, "bytes_in"), span));
  to = zps_json_set_real(to, "bytes_out_per_s", ratio(grown(&window, "bytes_out"), span));
  to = zps_json_set_real(to, "density", ratio(grown(&window, "push_rows"), rounds * number(row, "world") * rows_here));
  to = zps_json_set_real(to, "union_density", ratio(grown(&window, "union_rows"), rounds * rows_here));
  to = zps_json_set_real(to, "imbalance_pull", imbalance_pull(now, before, row));
  to = zps_json_set_real(to, "imbalance_step", ratio(grown(&window, "step_loads"), rounds));
  to = zps_json_set_real(to, "collect_ms", ratio(grown(&window, "collect_ns"), rounds) / 1e6);
  to = zps_json_set_real(to, "reduce_ms", ratio(grown(&window, "reduce_ns"), rounds) / 1e6);
  return zps_json_set_real(to, "publish_ms", ratio(grown(&window, "publish_ns"), rounds) / 1e6);
}

static zps_json *derive_lag(const zps_json *before, const zps_json *row) {
  const struct window window = {row, earlier(before, "lags", row)};
  return zps_json_set_real(copy(row), "lag_ms", ratio(grown(&window, "lag_ns"), grown(&window, "rounds")) / 1e6);
}

static zps_json *set_mean_ms(zps_json *to, const char *key, const struct window *window, const char *sum_ns,
                             double rounds) {
  return zps_json_set_real(to, key, ratio(grown(window, sum_ns), rounds) / 1e6);
}

/* How many times the bytes a dense ring would move: each rank sends, and receives, 2 (n - 1) / n of the tensor. */
static double saved(const struct window *window, double rank_rounds) {
  const double world = number(window->row, "world");
  const double dense = number(window->row, "rows") * number(window->row, "width") * number(window->row, "value_bytes");
  const double moved =
      grown(window, "bytes_out") + grown(window, "bytes_in") + grown(window, "shared_out") + grown(window, "shared_in");
  return ratio(rank_rounds * 4 * ratio(world - 1, world) * dense, moved);
}

/* Zen's definition 8 of a tensor, servers being what is to be even: of the servers the one that is sent most, and that
 * serves most, over its share by partitions. Of a scheme between ranks there are none. */
static zps_json *set_imbalances(zps_json *to, const zps_json *now, const zps_json *before, const zps_json *row) {
  const zps_json *rows = zps_json_get(now, "shards");
  double push = 0, pull = 0, union_rows = 0;
  for (size_t i = 0; i < zps_json_array_len(rows); i++) {
    const zps_json *shard = zps_json_at(rows, i);
    if (!same(row, shard, "job_id") || !same(row, shard, "name")) continue;
    const struct window window = {shard, earlier(before, "shards", shard)};
    const double sent = ratio(grown(&window, "step_loads"), grown(&window, "rounds"));
    const double here = ratio(grown(&window, "union_rows"), grown(&window, "rounds"));
    const double over = ratio(here * number(shard, "partitions"), number(shard, "partitions_here"));
    if (sent > push) push = sent;
    if (over > pull) pull = over;
    union_rows += here;
  }
  if (push > 0) to = zps_json_set_real(to, "imbalance_push", push);
  return union_rows > 0 ? zps_json_set_real(to, "imbalance_pull", pull / union_rows) : to;
}

#define REPORT_S 30 /* Reports come every few seconds. A job that has sent none for so long does nothing. */

/* Without a new report since `before`, what followed from the last one holds for a while. NULL: it does not. */
static zps_json *kept(const struct window *window) {
  if (!window->before || grown(window, "covered_ms") > 0 || number(window->row, "told_s") > REPORT_S) return NULL;
  return zps_json_set_all(copy(window->before), window->row);
}

/* Of a tensor over its whole job, as its ranks have reported; and how even it is over its servers. Rates are over the
 * time that the reports cover, by the ranks' own clocks. */
static zps_json *derive_tensor(const zps_json *now, const zps_json *before, const zps_json *row) {
  const struct window window = {row, earlier(before, "tensors", row)};
  zps_json *to = kept(&window);
  if (to) return set_imbalances(to, now, before, row);
  const double rounds = grown(&window, "rank_rounds"), n_rows = number(row, "rows"), world = number(row, "world");
  const double span = grown(&window, "covered_ms") / 1000 / (world > 0 ? world : 1);
  to = zps_json_set_real(copy(row), "rounds_per_s", ratio(rounds, span * world));
  to = zps_json_set_real(to, "bytes_out_per_s", ratio(grown(&window, "bytes_out"), span));
  to = zps_json_set_real(to, "bytes_in_per_s", ratio(grown(&window, "bytes_in"), span));
  to = zps_json_set_real(to, "saved", saved(&window, rounds));
  to = zps_json_set_real(to, "density", ratio(grown(&window, "push_rows"), rounds * n_rows));
  to = zps_json_set_real(to, "union_density", ratio(grown(&window, "union_rows"), rounds * n_rows));
  to = set_mean_ms(to, "round_ms", &window, "total_ns", rounds);
  to = set_mean_ms(to, "encode_ms", &window, "encode_ns", rounds);
  to = set_mean_ms(to, "push_ms", &window, "push_ns", rounds);
  to = set_mean_ms(to, "wait_ms", &window, "wait_ns", rounds);
  to = set_mean_ms(to, "pull_ms", &window, "pull_ns", rounds);
  to = set_mean_ms(to, "decode_ms", &window, "decode_ns", rounds);
  return set_imbalances(to, now, before, row);
}

static zps_json *set_late(zps_json *to, const struct zps_late_ranks *late, const zps_json *row) {
  const struct zps_late_rank *const of =
      zps_late_of(late, zps_json_opt_str(row, "job", ""), zps_json_opt_str(row, "job_id", ""), number(row, "rank"));
  if (of) to = zps_json_set_real(to, "late_percent", of->share * 100);
  return zps_json_set_str(to, "late", !of ? "-" : of->is_late ? "late" : "no");
}

double zps_ctl_link_rate(const zps_json *row, const zps_json *before) {
  struct window window = {row, before};
  if (before && grown(&window, "pull_ns") <= 0) window.before = NULL;
  return ratio(grown(&window, "bytes_in"), grown(&window, "pull_ns") / 1e9);
}

static zps_json *derive_rank(const zps_json *before, const zps_json *row) {
  const struct window window = {row, earlier(before, "ranks", row)};
  zps_json *const to = kept(&window);
  if (to) return to;
  const double rounds = grown(&window, "rounds");
  zps_json *derived = set_mean_ms(copy(row), "round_ms", &window, "total_ns", rounds);
  derived = set_mean_ms(derived, "wait_ms", &window, "wait_ns", rounds);
  derived = set_mean_ms(derived, "pull_ms", &window, "pull_ns", rounds);
  return zps_json_set_real(derived, "link_bytes_per_s", zps_ctl_link_rate(row, window.before));
}

zps_json *zps_ctl_derive(const zps_json *now, const zps_json *before, double seconds) {
  zps_json *tensors = zps_json_array(), *ranks = zps_json_array(), *shards = zps_json_array(), *lags = zps_json_array();
  struct zps_late_ranks late = zps_late_find(now, before, seconds);
  const zps_json *rows = zps_json_get(now, "tensors");
  for (size_t i = 0; i < zps_json_array_len(rows); i++)
    tensors = zps_json_append(tensors, derive_tensor(now, before, zps_json_at(rows, i)));
  rows = zps_json_get(now, "ranks");
  for (size_t i = 0; i < zps_json_array_len(rows); i++)
    ranks = zps_json_append(ranks, set_late(derive_rank(before, zps_json_at(rows, i)), &late, zps_json_at(rows, i)));
  zps_late_fini(&late);
  rows = zps_json_get(now, "shards");
  for (size_t i = 0; i < zps_json_array_len(rows); i++)
    shards = zps_json_append(shards, derive_shard(now, before, seconds, zps_json_at(rows, i)));
  rows = zps_json_get(now, "lags");
  for (size_t i = 0; i < zps_json_array_len(rows); i++)
    lags = zps_json_append(lags, derive_lag(before, zps_json_at(rows, i)));
  zps_json *derived = zps_json_set(zps_json_set(copy(now), "tensors", tensors), "ranks", ranks);
  return zps_json_set(zps_json_set(derived, "shards", shards), "lags", lags);
}
