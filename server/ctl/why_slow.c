/* `why`: servers and ranks that are slower than the others, between two answers. */
#include <stdio.h>
#include <stdlib.h>

#include "server/ctl/derive.h"
#include "server/ctl/late.h"
#include "server/ctl/why_impl.h"

#define SLOW_SHARE 0.2    /* Share of the time in which ranks read the sums of a slow server. */
#define STARVED_SHARE 0.1 /* Share of the time in which a late rank waits for a processor. */
#define BUSY_SHARE 0.5    /* Share of the time in which it computes. */
#define SLOW_FACTOR 2.0   /* by which the median of the others exceeds a slow server's rate, or a slow link's */

enum { BECAUSE_MAX = 100 };

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
    const double others = zps_ctl_median(rates, n, i);
    if (rates[i] <= 0 || shares[i] < SLOW_SHARE || rates[i] * SLOW_FACTOR > others) continue;
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

/* The row of this rank among the reports; *others_p: the median rate of the other ranks' links. */
static const zps_json *told_by(const struct why *why, const zps_json *rank, double *rate_p, double *others_p) {
  const zps_json *const rows = zps_json_get(why->answers->now, "ranks"), *told = NULL;
  const size_t n_rows = zps_json_array_len(rows);
  double *const rates = calloc(n_rows + 1, sizeof *rates);
  size_t n = 0, which = 0;
  for (size_t i = 0; rates && i < n_rows; i++) {
    const zps_json *const row = zps_json_at(rows, i);
    if (strcmp(text(row, "job"), text(rank, "job")) != 0) continue;
    if (*text(rank, "job_id") && strcmp(text(row, "job_id"), text(rank, "job_id")) != 0) continue;
    if (number(row, "rank") == number(rank, "rank")) told = row, which = n;
    rates[n++] = zps_ctl_link_rate(row, before_of(why, "ranks", row));
  }
  *rate_p = told ? rates[which] : 0;
  *others_p = told && n > 1 ? zps_ctl_median(rates, n, which) : 0;
  free(rates);
  return told;
}

/* Whether the reading of sums takes the rank much of its time, and longer than others for as many bytes. */
static bool is_link_slow(const struct why *why, const zps_json *told, double rate, double others) {
  const zps_json *const before = before_of(why, "ranks", told);
  const double more_ns = number(told, "pull_ns") - number(before, "pull_ns");
  const bool is_new = before && more_ns > 0;
  const double pull_ns = is_new ? more_ns : number(told, "pull_ns");
  const double all_ns = is_new ? number(told, "total_ns") - number(before, "total_ns") : number(told, "total_ns");
  return rate > 0 && rate * SLOW_FACTOR <= others && pull_ns >= SLOW_SHARE * all_ns;
}

/* As the rank's last report has it: what kept it from being in time, and what to do. */
static const char *remedy_of(const struct why *why, const zps_json *rank, char because[BECAUSE_MAX]) {
  double rate, others;
  const zps_json *const told = told_by(why, rank, &rate, &others);
  const double busy = number(told, "busy") / 1000, starved = number(told, "starved") / 1000;
  if (starved >= STARVED_SHARE) {
    strcpy(because, "; its main thread waits for a processor");
    return "other programs take its processors: see top on its host, and give each rank cores of its own";
  }
  if (told && is_link_slow(why, told, rate, others)) {
    snprintf(because, BECAUSE_MAX, "; its link brings %.1f MB/s, the others' %.1f", rate / 1e6, others / 1e6);
    return "its link is slow: compare ip -s link and ethtool on its host with the other ranks'";
  }
  if (busy >= BUSY_SHARE) {
    strcpy(because, "; its main thread computes");
    return "it computes for longer: compare its batches with the other ranks', and the speed of its host";
  }
  if (busy + starved > 0) {
    strcpy(because, "; its main thread is idle meanwhile");
    return "it waits for input or for its link: look at its data loader, its GPU, and ip -s link on its host";
  }
  because[0] = '\0';
  return "compare its data, processor and link with the other ranks' (top, ip -s link on its host)";
}

static void say_late(struct why *why, const struct zps_late_rank *late, const zps_json *rank) {
  char because[BECAUSE_MAX], without[64] = "";
  const char *const remedy = remedy_of(why, rank, because);
  if (late->n_without > 0) snprintf(without, sizeof without, "; %.0f rounds closed without it", late->n_without);
  zps_why_remedy(
      zps_why_found(
          why, ZPS_FINDING_WARNING, late->share * 100,
          "job %.60s: rank %.0f (host %.60s, pid %.0f) is late: it keeps the others waiting %.0f%% of the time, most "
          "at tensor %.60s%s%s",
          late->job, late->rank, text(rank, "host"), number(rank, "pid"), late->share * 100, late->tensor, without,
          because),
      "%s", remedy);
}

void zps_why_late(struct why *why) {
  const zps_json *const members = zps_json_get(why->answers->members, "ranks");
  struct zps_late_ranks late = zps_late_find(why->answers->now, why->answers->before, why->answers->seconds);
  for (size_t i = 0; i < zps_json_array_len(members); i++) {
    const zps_json *const row = zps_json_at(members, i);
    const char *const job_id = text(row, "job_id");
    const struct zps_late_rank *const of =
        zps_late_of(&late, text(row, "job"), *job_id ? job_id : NULL, number(row, "rank"));
    if (of && of->is_late && is_about(why, row)) say_late(why, of, row);
  }
  zps_late_fini(&late);
}
