/* `why`: rounds that wait. */
#include <stdio.h>

#include "server/ctl/why_impl.h"

#define WAITS_MS 2000u  /* Age of a round that waits for somebody. */
#define WAITS_ROUNDS 10 /* Its age in mean rounds of its tensor. */
#define RANKS_TEXT 100u

static const zps_json *rank_row(const struct why *why, const char *job, uint64_t rank) {
  const zps_json *const rows = zps_json_get(why->answers->members, "ranks");
  for (size_t i = 0; i < zps_json_array_len(rows); i++) {
    const zps_json *const row = zps_json_at(rows, i);
    if (strcmp(text(row, "job"), job) == 0 && zps_json_opt_u64(row, "rank", UINT64_MAX) == rank) return row;
  }
  return NULL;
}

/* As the tensor's ranks have reported. */
static double reported_mean_ms(const struct why *why, const zps_json *round) {
  const zps_json *const rows = zps_json_get(why->answers->now, "tensors");
  for (size_t i = 0; i < zps_json_array_len(rows); i++) {
    const zps_json *const row = zps_json_at(rows, i);
    if (strcmp(text(row, "job_id"), text(round, "job_id")) == 0 && number(row, "tensor") == number(round, "tensor") &&
        number(row, "rank_rounds") > 0)
      return number(row, "total_ns") / number(row, "rank_rounds") / 1e6;
  }
  return 0;
}

/* The mean time of a tensor's rounds on a server, since it was opened. */
static double mean_ms(const struct why *why, const zps_json *round) {
  if (!*text(round, "server")) return reported_mean_ms(why, round);
  const zps_json *const rows = zps_json_get(why->answers->now, "shards");
  for (size_t i = 0; i < zps_json_array_len(rows); i++) {
    const zps_json *const row = zps_json_at(rows, i);
    if (strcmp(text(row, "server"), text(round, "server")) != 0 || strcmp(text(row, "job"), text(round, "job")) != 0 ||
        strcmp(text(row, "name"), text(round, "name")) != 0)
      continue;
    const double rounds = number(row, "rounds");
    if (rounds > 0)
      return (number(row, "collect_ns") + number(row, "reduce_ns") + number(row, "publish_ns")) / rounds / 1e6;
  }
  return 0;
}

static bool is_stuck(const struct why *why, const zps_json *round) {
  const double age_ms = number(round, "age_ms");
  return age_ms >= WAITS_MS && age_ms >= WAITS_ROUNDS * mean_ms(why, round);
}

/* "rank 1 (host w1, pid 4711)", or "ranks 1, 3 and 14 more". */
static const char *ranks_text(const struct why *why, const zps_json *round, char buf[RANKS_TEXT]) {
  const zps_json *const ranks = zps_json_get(round, "ranks");
  const size_t n = zps_json_array_len(ranks);
  const uint64_t all = zps_json_opt_u64(round, "n_ranks", 0);
  uint64_t rank = 0;
  if (n == 1 && zps_json_at_u64(ranks, 0, UINT32_MAX, &rank, NULL) == ZPS_OK) {
    const zps_json *const row = rank_row(why, text(round, "job"), rank);
    snprintf(buf, RANKS_TEXT, "rank %llu (host %.60s, pid %.0f)", (unsigned long long)rank, text(row, "host"),
             number(row, "pid"));
    return buf;
  }
  int len = snprintf(buf, RANKS_TEXT, "ranks");
  for (size_t i = 0; i < n && i < 4; i++)
    if (zps_json_at_u64(ranks, i, UINT32_MAX, &rank, NULL) == ZPS_OK)
      len += snprintf(buf + len, RANKS_TEXT - (size_t)len, "%s %llu", i ? "," : "", (unsigned long long)rank);
  if (all > 4) snprintf(buf + len, RANKS_TEXT - (size_t)len, " and %llu more", (unsigned long long)(all - 4));
  return buf;
}

static void say_remedy(const struct why *why, const zps_json *round, struct zps_finding *finding) {
  const char *const waits = text(round, "waits_for"), *const job = text(round, "job");
  uint64_t rank = 0;
  const bool is_one = zps_json_array_len(zps_json_get(round, "ranks")) == 1 &&
                      zps_json_at_u64(zps_json_get(round, "ranks"), 0, UINT32_MAX, &rank, NULL) == ZPS_OK;
  const zps_json *const row = is_one ? rank_row(why, job, rank) : NULL;
  char name[ZPS_QUOTED_MAX];
  const double silent_ms = number(row, "silent_ms"), pid = number(row, "pid");
  if (strcmp(waits, "sum") == 0)
    zps_why_remedy(finding, "look at the server's processor and memory (zenpsctl stats)");
  else if (!is_one)
    zps_why_remedy(finding, "look at these ranks' logs, at their hosts, and at the links between them");
  else if (silent_ms > 2000)
    zps_why_remedy(
        finding,
        "it has been silent for %.1f s: its process is stopped or starved, or its host or link is down. There: "
        "ps -o stat,wchan -p %.0f; kill -CONT %.0f; zenpsctl kick %s %llu ends it",
        silent_ms / 1000, pid, pid, zps_why_quoted(job, name), (unsigned long long)rank);
  else if (strcmp(waits, "push") == 0)
    zps_why_remedy(finding,
                   "its process lives, and does not call: print its stack there (py-spy dump -p %.0f, gdb -p %.0f); "
                   "zenpsctl kick %s %llu ends it",
                   pid, pid, zps_why_quoted(job, name), (unsigned long long)rank);
  else if (!*text(round, "server"))
    zps_why_remedy(finding,
                   "its process lives, and does not call, or does not get on: print its stack there (py-spy dump -p "
                   "%.0f, gdb -p %.0f); if it waits for others there, look at its link (ip -s link); zenpsctl kick %s "
                   "%llu ends it",
                   pid, pid, zps_why_quoted(job, name), (unsigned long long)rank);
  else
    zps_why_remedy(finding,
                   "its process lives, and bytes do not come through: look at the link between its host and %.60s",
                   text(round, "server"));
}

static const char *waits_text(const zps_json *round) {
  const char *const waits = text(round, "waits_for");
  if (strcmp(waits, "push") == 0) return "the push of ";
  if (strcmp(waits, "bytes") == 0) return "bytes of ";
  if (strcmp(waits, "message") == 0) return "messages of ";
  if (strcmp(waits, "rank") == 0) return "the work of ";
  return strcmp(waits, "sum") == 0 ? "the sums of server " : "the sums to be read by ";
}

/* Of each job the oldest round: others wait behind it. */
void zps_why_rounds(struct why *why) {
  const zps_json *const rows = zps_json_get(why->answers->now, "rounds");
  const size_t n = zps_json_array_len(rows);
  for (size_t i = 0; i < n; i++) {
    const zps_json *const round = zps_json_at(rows, i);
    bool is_oldest = true;
    if (!is_about(why, round) || !is_stuck(why, round)) continue;
    for (size_t j = 0; j < n; j++) {
      const zps_json *const other = zps_json_at(rows, j);
      if (j == i || strcmp(text(other, "job"), text(round, "job")) != 0 || !is_stuck(why, other)) continue;
      const double older = number(other, "age_ms") - number(round, "age_ms");
      is_oldest = is_oldest && (older < 0 || (older == 0 && j > i));
    }
    if (!is_oldest) continue;
    char ranks[RANKS_TEXT], left[60] = "";
    const bool is_sum = strcmp(text(round, "waits_for"), "sum") == 0;
    if (zps_json_get(round, "left_ms"))
      snprintf(left, sizeof left, "; its deadline comes in %.1f s", number(round, "left_ms") / 1000);
    struct zps_finding *const finding =
        zps_why_found(why, ZPS_FINDING_CRITICAL, number(round, "age_ms"),
                      "job %.60s: step %.0f of tensor %.60s has waited %.1f s for %s%s%s", text(round, "job"),
                      number(round, "step"), text(round, "name"), number(round, "age_ms") / 1000, waits_text(round),
                      is_sum ? text(round, "server") : ranks_text(why, round, ranks), left);
    say_remedy(why, round, finding);
  }
}
