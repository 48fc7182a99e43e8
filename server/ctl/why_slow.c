/* `why`: servers and ranks that are slower than the others, between two answers. */
#include <stdlib.h>

#include "server/ctl/why_impl.h"

#define LATE_SHARE 0.2    /* Share of the time that others wait for a late rank, or for a slow server. */
#define STARVED_SHARE 0.1 /* Share of the time in which a late rank waits for a processor. */
#define BUSY_SHARE 0.5    /* Share of the time in which it computes. */
#define SLOW_FACTOR 2.0   /* by which a slow server or a late rank exceeds the median of the others */

static int by_value(const void *a, const void *b) {
  const double one = *(const double *)a, other = *(const double *)b;
  return (one > other) - (one < other);
}

/* The median of the values but the one at `without`; n > 1. 0 without memory: then nothing stands out. */
static double median(const double *values, size_t n, size_t without) {
  double *const others = malloc(n * sizeof *others);
  size_t n_others = 0;
  for (size_t i = 0; others && i < n; i++)
    if (i != without) others[n_others++] = values[i];
  if (n_others > 0) qsort(others, n_others, sizeof others[0], by_value);
  const double middle = n_others ? others[n_others / 2] : 0;
  free(others);
  return middle;
}

static const zps_json *before_of(const struct why *why, const char *array, const zps_json *row) {
  const zps_json *const rows = zps_json_get(why->answers->before, array);
  for (size_t i = 0; i < zps_json_array_len(rows); i++) {
    const zps_json *const other = zps_json_at(rows, i);
    if (strcmp(text(row, "server"), text(other, "server")) == 0 &&
        strcmp(text(row, "job_id"), text(other, "job_id")) == 0 && number(row, "tensor") == number(other, "tensor") &&
        number(row, "rank") == number(other, "rank"))
      return other;
  }
  return NULL;
}

static double grown(const struct why *why, const char *array, const zps_json *row, const char *key) {
  const zps_json *const before = before_of(why, array, row);
  const double more = number(row, key) - number(before, key);
  return before && more > 0 ? more : 0;
}

/* By the time that ranks take to read a server's sums: bytes by second against the median of the other servers. */
void zps_why_slow_servers(struct why *why) {
  const zps_json *const servers = zps_json_get(why->answers->now, "servers");
  const zps_json *const shards = zps_json_get(why->answers->now, "shards");
  const size_t n = zps_json_array_len(servers);
  double *const rates = calloc(2 * n + 1, sizeof *rates), *const shares = rates ? rates + n : NULL;
  for (size_t i = 0; rates && i < n; i++) {
    double bytes = 0, ns = 0;
    for (size_t j = 0; j < zps_json_array_len(shards); j++) {
      const zps_json *const row = zps_json_at(shards, j);
      if (strcmp(text(row, "server"), text(zps_json_at(servers, i), "server")) != 0 || !is_about(why, row)) continue;
      bytes += grown(why, "shards", row, "bytes_out");
      ns += grown(why, "shards", row, "publish_ns");
    }
    rates[i] = ns > 0 ? bytes / (ns / 1e9) : 0;
    shares[i] = ns / 1e9 / why->answers->seconds;
  }
  for (size_t i = 0; rates && n > 1 && i < n; i++) {
    const double others = median(rates, n, i);
    if (rates[i] <= 0 || shares[i] < LATE_SHARE || rates[i] * SLOW_FACTOR > others) continue;
    const zps_json *const row = zps_json_at(servers, i);
    char name[ZPS_QUOTED_MAX];
    zps_why_remedy(
        zps_why_found(why, ZPS_FINDING_WARNING, 10 * others / rates[i],
                      "server %.60s (host %.60s) serves sums at %.1f MB/s, the others at %.1f", text(row, "server"),
                      text(row, "host"), rates[i] / 1e6, others / 1e6),
        "its link or host is slow: compare ip -s link and the load there; zenpsctl drain %s takes it out of all jobs",
        zps_why_quoted(text(row, "server"), name));
  }
  free(rates);
}

/* ------------------------------------------------------------ ranks that are late */

struct lateness {
  double late_s; /* others waited for this rank, over all tensors of the job, internal ones too */
  const char *tensor;
  double most_s; /* in this tensor */
};

/* A lag is how long after the first push a rank's push came. A tensor's servers see it at the same time, so the
 * greatest counts. */
static struct lateness lateness_of(const struct why *why, const char *job, double rank) {
  const zps_json *const rows = zps_json_get(why->answers->now, "lags");
  struct lateness lateness = {.tensor = ""};
  for (size_t i = 0; i < zps_json_array_len(rows); i++) {
    const zps_json *const row = zps_json_at(rows, i);
    if (strcmp(text(row, "job"), job) != 0 || number(row, "rank") != rank) continue;
    const double lag_s = grown(why, "lags", row, "lag_ns") / 1e9;
    bool is_greatest = true;
    for (size_t j = 0; j < zps_json_array_len(rows); j++) {
      const zps_json *const other = zps_json_at(rows, j);
      if (j == i || strcmp(text(other, "job"), job) != 0 || number(other, "rank") != rank ||
          number(other, "tensor") != number(row, "tensor"))
        continue;
      const double other_s = grown(why, "lags", other, "lag_ns") / 1e9;
      is_greatest = is_greatest && (other_s < lag_s || (other_s == lag_s && j > i));
    }
    if (!is_greatest) continue;
    lateness.late_s += lag_s;
    if (lag_s > lateness.most_s) {
      lateness.most_s = lag_s;
      lateness.tensor = text(row, "name");
    }
  }
  return lateness;
}

/* As the rank's last report has it: what kept its main thread from being in time. */
static const char *remedy_of(const struct why *why, const zps_json *rank, const char **because_p) {
  const zps_json *const rows = zps_json_get(why->answers->now, "ranks"), *told = NULL;
  for (size_t i = 0; !told && i < zps_json_array_len(rows); i++) {
    const zps_json *const row = zps_json_at(rows, i);
    if (strcmp(text(row, "job"), text(rank, "job")) == 0 && number(row, "rank") == number(rank, "rank")) told = row;
  }
  const double busy = number(told, "busy") / 1000, starved = number(told, "starved") / 1000;
  if (starved >= STARVED_SHARE) {
    *because_p = "; its main thread waits for a processor";
    return "other programs take its processors: see top on its host, and give each rank cores of its own";
  }
  if (busy >= BUSY_SHARE) {
    *because_p = "; its main thread computes";
    return "it computes for longer: compare its batches with the other ranks', and the speed of its host";
  }
  if (busy + starved > 0) {
    *because_p = "; its main thread is idle meanwhile";
    return "it waits for input or for its link: look at its data loader, its GPU, and ip -s link on its host";
  }
  *because_p = "";
  return "compare its data, processor and link with the other ranks' (top, ip -s link on its host)";
}

static void say_late(struct why *why, const zps_json *job, const zps_json *rank, double share) {
  const struct lateness lateness = lateness_of(why, text(job, "job"), number(rank, "rank"));
  const char *because, *const remedy = remedy_of(why, rank, &because);
  zps_why_remedy(
      zps_why_found(
          why, ZPS_FINDING_WARNING, share * 100,
          "job %.60s: rank %.0f (host %.60s, pid %.0f) is late: it keeps the others waiting %.0f%% of the time, most "
          "at tensor %.60s%s",
          text(job, "job"), number(rank, "rank"), text(rank, "host"), number(rank, "pid"), share * 100, lateness.tensor,
          because),
      "%s", remedy);
}

static void find_late_rank(struct why *why, const zps_json *job) {
  const zps_json *const rows = zps_json_get(why->answers->members, "ranks"), *latest = NULL;
  const size_t n_rows = zps_json_array_len(rows);
  double *const late_s = calloc(n_rows + 1, sizeof *late_s);
  size_t n = 0, worst = 0;
  for (size_t i = 0; late_s && i < n_rows; i++) {
    const zps_json *const row = zps_json_at(rows, i);
    if (strcmp(text(row, "job"), text(job, "job")) != 0) continue;
    late_s[n] = lateness_of(why, text(job, "job"), number(row, "rank")).late_s;
    if (!latest || late_s[n] > late_s[worst]) {
      worst = n;
      latest = row;
    }
    n++;
  }
  const double share = n > 1 ? late_s[worst] / why->answers->seconds : 0;
  if (share >= LATE_SHARE && late_s[worst] >= SLOW_FACTOR * median(late_s, n, worst)) say_late(why, job, latest, share);
  free(late_s);
}

void zps_why_late(struct why *why) {
  const zps_json *const jobs = zps_json_get(why->answers->jobs, "jobs");
  for (size_t i = 0; i < zps_json_array_len(jobs); i++)
    if (is_about(why, zps_json_at(jobs, i))) find_late_rank(why, zps_json_at(jobs, i));
}
