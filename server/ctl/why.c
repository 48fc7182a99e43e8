/*
 * `why`: what is wrong with a cluster, found in the answers of its coordinator. A finding has a grade, its evidence and
 * a remedy. zps_ctl_why() is pure: it takes the answers, and asks nobody.
 */
#include "server/ctl/why.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/text.h"
#include "common/control/client.h"
#include "server/ctl/ctl.h"
#include "server/ctl/remedy.h"

#define GAP_MS 2000u    /* between the two answers that rates are counted from */
#define WAITS_MS 2000u  /* Age of a round that waits for somebody. */
#define WAITS_ROUNDS 10 /* Its age in mean rounds of its tensor. */
#define LATE_SHARE 0.2  /* Share of the time that others wait for a late rank. */
#define SLOW_FACTOR 2.0 /* by which a slow server or a late rank exceeds the median of the others */
#define FULL_SHARE 0.9  /* of a memory limit */
#define DISK_SHARE 0.05 /* Free share of a file system. */
#define DAY_S (24 * 3600)
#define CERTIFICATE_DAYS 30 /* before its end */
#define CERTIFICATE_URGENT_DAYS 7
#define FINDINGS_MAX 64u
#define SHOWN_MAX 10u
#define RANKS_TEXT 100u
#define QUOTED_MAX 515u /* a name of 128 bytes, all of them quotes */

enum grade { WARNING = 1, CRITICAL = 2 };

struct finding {
  enum grade grade;
  double weight; /* of two findings of the same grade the heavier one comes first */
  char evidence[400], remedy[900];
};

struct why {
  const struct zps_ctl_why_answers *answers;
  const char *job; /* NULL: all */
  unsigned n;
  struct finding findings[FINDINGS_MAX];
};

static double number(const zps_json *row, const char *key) {
  return row ? zps_json_opt_real(row, key, 0) : 0;
}

static const char *text(const zps_json *row, const char *key) {
  return row ? zps_json_opt_str(row, key, "") : "";
}

static bool is_about(const struct why *why, const zps_json *row) {
  return !why->job || strcmp(text(row, "job"), why->job) == 0;
}

ZPS_PRINTF(4, 5)
static struct finding *found(struct why *why, enum grade grade, double weight, const char *format, ...) {
  static struct finding none;
  struct finding *const finding = why->n < FINDINGS_MAX ? &why->findings[why->n++] : &none;
  va_list args;
  *finding = (struct finding){.grade = grade, .weight = weight};
  va_start(args, format);
  vsnprintf(finding->evidence, sizeof finding->evidence, format, args);
  va_end(args);
  return finding;
}

ZPS_PRINTF(2, 3)
static void remedy(struct finding *finding, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(finding->remedy, sizeof finding->remedy, format, args);
  va_end(args);
}

/* A name as a word of a shell command that an operator copies: whoever named it may have chosen any bytes. */
static const char *quoted(const char *name, char buf[QUOTED_MAX]) {
  static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  char *to = buf;
  if (*name && name[strspn(name, plain)] == '\0' && *name != '-') return name;
  *to++ = '\'';
  for (; *name && to + 6 < buf + QUOTED_MAX; name++) {
    if (*name == '\'') to = stpcpy(to, "'\\'");
    *to++ = *name;
  }
  strcpy(to, "'");
  return buf;
}

/* ------------------------------------------------------------ rounds that wait */

static const zps_json *rank_row(const struct why *why, const char *job, uint64_t rank) {
  const zps_json *const rows = zps_json_get(why->answers->members, "ranks");
  for (size_t i = 0; i < zps_json_array_len(rows); i++) {
    const zps_json *const row = zps_json_at(rows, i);
    if (strcmp(text(row, "job"), job) == 0 && zps_json_opt_u64(row, "rank", UINT64_MAX) == rank) return row;
  }
  return NULL;
}

/* The mean time of a tensor's rounds on a server, since it was opened. */
static double mean_ms(const struct why *why, const zps_json *round) {
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

static void say_remedy(const struct why *why, const zps_json *round, struct finding *finding) {
  const char *const waits = text(round, "waits_for"), *const job = text(round, "job");
  uint64_t rank = 0;
  const bool is_one = zps_json_array_len(zps_json_get(round, "ranks")) == 1 &&
                      zps_json_at_u64(zps_json_get(round, "ranks"), 0, UINT32_MAX, &rank, NULL) == ZPS_OK;
  const zps_json *const row = is_one ? rank_row(why, job, rank) : NULL;
  char name[QUOTED_MAX];
  const double silent_ms = number(row, "silent_ms"), pid = number(row, "pid");
  if (strcmp(waits, "sum") == 0)
    remedy(finding, "look at the server's processor and memory (zenpsctl stats)");
  else if (!is_one)
    remedy(finding, "look at these ranks' logs, and at their hosts");
  else if (silent_ms > 2000)
    remedy(finding,
           "it has been silent for %.1f s: its process is stopped or starved, or its host or link is down. There: "
           "ps -o stat,wchan -p %.0f; kill -CONT %.0f; zenpsctl kick %s %llu ends it",
           silent_ms / 1000, pid, pid, quoted(job, name), (unsigned long long)rank);
  else if (strcmp(waits, "push") == 0)
    remedy(finding,
           "its process lives, and does not call: print its stack there (py-spy dump -p %.0f, gdb -p %.0f); "
           "zenpsctl kick %s %llu ends it",
           pid, pid, quoted(job, name), (unsigned long long)rank);
  else
    remedy(finding, "its process lives, and bytes do not come through: look at the link between its host and %.60s",
           text(round, "server"));
}

static const char *waits_text(const zps_json *round) {
  const char *const waits = text(round, "waits_for");
  if (strcmp(waits, "push") == 0) return "the push of ";
  if (strcmp(waits, "bytes") == 0) return "bytes of ";
  return strcmp(waits, "sum") == 0 ? "the sums of server " : "the sums to be read by ";
}

/* Of each job the oldest round: others wait behind it. */
static void find_rounds(struct why *why) {
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
    struct finding *const finding = found(
        why, CRITICAL, number(round, "age_ms"), "job %.60s: step %.0f of tensor %.60s has waited %.1f s for %s%s%s",
        text(round, "job"), number(round, "step"), text(round, "name"), number(round, "age_ms") / 1000,
        waits_text(round), is_sum ? text(round, "server") : ranks_text(why, round, ranks), left);
    say_remedy(why, round, finding);
  }
}

/* ------------------------------------------------------------ servers */

static void find_servers(struct why *why) {
  const zps_json *const rows = zps_json_get(why->answers->now, "servers");
  const zps_json *const status = zps_json_at(zps_json_get(why->answers->status, "coordinator"), 0);
  if (status && zps_json_opt_u64(status, "servers", 1) == 0)
    remedy(found(why, CRITICAL, 1e9, "no server is registered"),
           "start one: zenpsd --roles=server --control-coordinator=%.80s", text(status, "address"));
  for (size_t i = 0; i < zps_json_array_len(rows); i++) {
    const zps_json *const row = zps_json_at(rows, i);
    const double used = number(row, "memory_in_use_bytes"), limit = number(row, "memory_limit_bytes");
    if (strcmp(text(row, "answer"), "ok") != 0)
      remedy(found(why, CRITICAL, 1e6, "server %.60s (host %.60s) does not answer: %.150s", text(row, "server"),
                   text(row, "host"), text(row, "answer")),
             "look at its process and its log there: systemctl status zenpsd; journalctl -u zenpsd");
    else if (limit > 0 && used >= FULL_SHARE * limit)
      remedy(found(why, WARNING, used / limit * 100, "server %.60s uses %.0f%% of its memory limit, %.0f of %.0f MiB",
                   text(row, "server"), used / limit * 100, used / 1048576, limit / 1048576),
             "raise server.memory_limit, add a server, or limit jobs (job.max_memory); zenpsctl stats shows each job's "
             "part (shares, MEM)");
    if (number(row, "forged") > 0 || number(row, "corrupt") > 0)
      remedy(found(why, WARNING, 50, "server %.60s passed over %.0f forged messages and %.0f corrupt reads",
                   text(row, "server"), number(row, "forged"), number(row, "corrupt")),
             "let only the cluster's hosts reach its data port; memory or a card may be broken; its log names the "
             "peers");
  }
}

/* A server that ranks cannot reach, and a job that has fewer servers than it began with. */
static void find_barred(struct why *why) {
  const zps_json *const rows = zps_json_get(why->answers->members, "unreachable");
  for (size_t i = 0; i < zps_json_array_len(rows); i++) {
    const zps_json *const row = zps_json_at(rows, i);
    char name[QUOTED_MAX];
    if (!is_about(why, row)) continue;
    remedy(found(why, WARNING, 100, "job %.60s has barred server %.60s for %.0f s: rank %.0f cannot reach it: %.150s",
                 text(row, "job"), text(row, "name"), number(row, "out_s"), number(row, "rank"), text(row, "reason")),
           "mend the link between rank %.0f and %.60s; the job asks it again in %.0f s, zenpsctl undrain %s at once",
           number(row, "rank"), text(row, "name"), number(row, "again_s"), quoted(text(row, "name"), name));
  }
  const zps_json *const jobs = zps_json_get(why->answers->jobs, "jobs");
  for (size_t i = 0; i < zps_json_array_len(jobs); i++) {
    const zps_json *const job = zps_json_at(jobs, i);
    char name[QUOTED_MAX];
    if (!is_about(why, job)) continue;
    if (strcmp(text(job, "state"), "running") == 0 && number(job, "servers_in") < number(job, "servers"))
      remedy(found(why, WARNING, 20, "job %.60s runs on %.0f of %.0f servers; lost: %.100s", text(job, "job"),
                   number(job, "servers_in"), number(job, "servers"), text(job, "lost_servers")),
             "start a server: the job takes it in some 5 s after it has come (zenpsctl rebalance %s says what it waits "
             "for)",
             quoted(text(job, "job"), name));
    if (strcmp(text(job, "state"), "joining") == 0 && number(job, "age_s") > 10)
      remedy(found(why, WARNING, 30, "job %.60s has waited %.0f s to begin: %.0f of %.0f ranks are here",
                   text(job, "job"), number(job, "age_s"), number(job, "joined"), number(job, "world")),
             "start the missing ranks, or as many servers as coordinator.min_servers asks for");
  }
}

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
static void find_slow_servers(struct why *why) {
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
    char name[QUOTED_MAX];
    remedy(
        found(why, WARNING, 10 * others / rates[i],
              "server %.60s (host %.60s) serves sums at %.1f MB/s, the others at %.1f", text(row, "server"),
              text(row, "host"), rates[i] / 1e6, others / 1e6),
        "its link or host is slow: compare ip -s link and the load there; zenpsctl drain %s takes it out of all jobs",
        quoted(text(row, "server"), name));
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

static void say_late(struct why *why, const zps_json *job, const zps_json *rank, double share) {
  const struct lateness lateness = lateness_of(why, text(job, "job"), number(rank, "rank"));
  remedy(
      found(why, WARNING, share * 100,
            "job %.60s: rank %.0f (host %.60s, pid %.0f) is late: it keeps the others waiting %.0f%% of the time, most "
            "at tensor %.60s",
            text(job, "job"), number(rank, "rank"), text(rank, "host"), number(rank, "pid"), share * 100,
            lateness.tensor),
      "compare its data, processor and link with the other ranks' (top, ip -s link on its host)");
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

static void find_late(struct why *why) {
  const zps_json *const jobs = zps_json_get(why->answers->jobs, "jobs");
  for (size_t i = 0; i < zps_json_array_len(jobs); i++)
    if (is_about(why, zps_json_at(jobs, i))) find_late_rank(why, zps_json_at(jobs, i));
}

/* ------------------------------------------------------------ history, and what runs out */

static double seconds_since(const char *utc, time_t now) {
  struct tm parts = {0};
  return strptime(utc, "%Y-%m-%dT%H:%M:%SZ", &parts) ? difftime(now, timegm(&parts)) : 0;
}

/* A job of this name is there now, or has ended later. */
static bool was_repeated(const struct why *why, const char *job, size_t ended) {
  const zps_json *const jobs = zps_json_get(why->answers->jobs, "jobs");
  const zps_json *const rows = zps_json_get(why->answers->jobs, "ended");
  for (size_t i = 0; i < zps_json_array_len(jobs); i++)
    if (strcmp(text(zps_json_at(jobs, i), "job"), job) == 0) return true;
  for (size_t i = ended + 1; i < zps_json_array_len(rows); i++)
    if (strcmp(text(zps_json_at(rows, i), "job"), job) == 0) return true;
  return false;
}

/* A run that was repeated is nobody's trouble any more. */
static void find_failed(struct why *why) {
  const zps_json *const rows = zps_json_get(why->answers->jobs, "ended");
  for (size_t i = 0; i < zps_json_array_len(rows); i++) {
    const zps_json *const row = zps_json_at(rows, i);
    const double ago_s = seconds_since(text(row, "ended_at"), why->answers->now_s);
    char when[60];
    if (!is_about(why, row) || strcmp(text(row, "state"), "failed") != 0 || (!why->job && ago_s > DAY_S)) continue;
    if (was_repeated(why, text(row, "job"), i)) continue;
    if (ago_s > DAY_S)
      snprintf(when, sizeof when, "at %.20s", text(row, "ended_at"));
    else
      snprintf(when, sizeof when, "%.0f min ago", ago_s / 60);
    remedy(found(why, why->job ? CRITICAL : WARNING, 40 - ago_s / DAY_S, "job %.60s failed %s: %.30s: %.200s",
                 text(row, "job"), when, text(row, "code"), text(row, "failure")),
           "%s", zps_ctl_remedy(text(row, "code")));
  }
}

/* A rank has failed, and the job has not ended: others hang, or have not left yet. */
static void find_failing(struct why *why) {
  const zps_json *const rows = zps_json_get(why->answers->jobs, "jobs");
  for (size_t i = 0; i < zps_json_array_len(rows); i++) {
    const zps_json *const row = zps_json_at(rows, i);
    if (!is_about(why, row) || !*text(row, "code")) continue;
    remedy(
        found(why, CRITICAL, 45, "job %.60s fails, and %.0f of its %.0f ranks are still there: %.30s: %.200s",
              text(row, "job"), number(row, "joined"), number(row, "world"), text(row, "code"), text(row, "failure")),
        "%s", zps_ctl_remedy(text(row, "code")));
  }
}

static void find_ends(struct why *why) {
  const zps_json *const coordinator = zps_json_at(zps_json_get(why->answers->status, "coordinator"), 0);
  const double size = number(coordinator, "state_size_bytes"), space = number(coordinator, "state_free_bytes");
  if (size > 0 && space < DISK_SHARE * size)
    remedy(found(why, space < size / 100 ? CRITICAL : WARNING, 60,
                 "the coordinator's state directory %.100s has %.0f MiB free, %.1f%%", text(coordinator, "state_dir"),
                 space / 1048576, space / size * 100),
           "free space there: a full disk ends the coordinator, and jobs wait for it");
  const zps_json *const servers = zps_json_get(why->answers->members, "servers");
  for (size_t i = 0; i <= zps_json_array_len(servers); i++) {
    const bool is_coordinator = i == zps_json_array_len(servers);
    const zps_json *const row = is_coordinator ? coordinator : zps_json_at(servers, i);
    const double days = (number(row, "certificate_ends") - (double)why->answers->now_s) / DAY_S;
    if (!zps_json_get(row, "certificate_ends") || days > CERTIFICATE_DAYS) continue;
    remedy(found(why, days <= CERTIFICATE_URGENT_DAYS ? CRITICAL : WARNING, 80 - days,
                 "the certificate of %s %.60s ends in %.1f days", is_coordinator ? "the coordinator at" : "server",
                 text(row, is_coordinator ? "address" : "name"), days),
           "make a new one (zenpsctl certs init), put it in place, and reload: systemctl reload zenpsd");
  }
}

static void find_versions(struct why *why) {
  const zps_json *const coordinator = zps_json_at(zps_json_get(why->answers->status, "coordinator"), 0);
  const zps_json *const servers = zps_json_get(why->answers->members, "servers");
  for (size_t i = 0; i < zps_json_array_len(servers); i++) {
    const zps_json *const row = zps_json_at(servers, i);
    if (!*text(row, "version") || strcmp(text(row, "version"), text(coordinator, "version")) == 0) continue;
    remedy(found(why, WARNING, 5, "server %.60s is version %.30s, the coordinator %.30s", text(row, "name"),
                 text(row, "version"), text(coordinator, "version")),
           "restart it with the coordinator's version");
  }
}

/* ------------------------------------------------------------ the answer */

static int worse_first(const void *a, const void *b) {
  const struct finding *const one = a, *const other = b;
  if (one->grade != other->grade) return (int)other->grade - (int)one->grade;
  return (other->weight > one->weight) - (other->weight < one->weight);
}

zps_json *zps_ctl_why(const struct zps_ctl_why_answers *answers, const char *job) {
  static const char *const grades[] = {"ok", "warning", "critical"};
  struct why *const why = calloc(1, sizeof *why);
  if (!why) return NULL;
  why->answers = answers;
  why->job = job;
  find_rounds(why);
  find_servers(why);
  find_barred(why);
  find_late(why);
  find_slow_servers(why);
  find_failed(why);
  find_failing(why);
  find_ends(why);
  find_versions(why);
  qsort(why->findings, why->n, sizeof why->findings[0], worse_first);
  zps_json *findings = zps_json_array();
  for (unsigned i = 0; i < why->n && i < SHOWN_MAX; i++) {
    zps_json *row = zps_json_set_str(zps_json_object(), "grade", grades[why->findings[i].grade]);
    row = zps_json_set_str(row, "evidence", why->findings[i].evidence);
    findings = zps_json_append(findings, zps_json_set_str(row, "remedy", why->findings[i].remedy));
  }
  zps_json *result = zps_json_set_str(zps_json_object(), "state", grades[why->n ? why->findings[0].grade : 0]);
  result = zps_json_set(result, "findings", findings);
  if (why->n > SHOWN_MAX) result = zps_json_set_u64(result, "left_out", why->n - SHOWN_MAX);
  free(why);
  return result;
}

static zps_err_t ask(struct zps_client *client, const struct zps_ctl_options *options, const char *method,
                     zps_json *params, zps_json **result_p, struct zps_error *error) {
  return zps_client_call(client, method, params, options->timeout_ms, result_p, error);
}

zps_err_t zps_ctl_why_gather(struct zps_client *client, const struct zps_ctl_options *options, zps_json **result_p,
                             struct zps_error *error) {
  zps_json *before = NULL, *now = NULL, *status = NULL, *members = NULL, *jobs = NULL;
  const uint64_t begun_ns = zps_clock_ns();
  zps_err_t err = ask(client, options, "stats", zps_json_object(), &before, error);
  if (!err) err = ask(client, options, "status", zps_json_object(), &status, error);
  if (!err) nanosleep(&(struct timespec){.tv_sec = GAP_MS / 1000}, NULL);
  const uint64_t again_ns = zps_clock_ns();
  if (!err) err = ask(client, options, "stats", zps_json_object(), &now, error);
  if (!err) err = ask(client, options, "members", zps_json_object(), &members, error);
  if (!err) err = ask(client, options, "jobs", zps_json_set_bool(zps_json_object(), "all", true), &jobs, error);
  if (!err) {
    const struct zps_ctl_why_answers answers = {.status = status,
                                                .members = members,
                                                .jobs = jobs,
                                                .before = before,
                                                .now = now,
                                                .seconds = (double)(again_ns - begun_ns) / (double)ZPS_NS_PER_S,
                                                .now_s = time(NULL)};
    *result_p = zps_ctl_why(&answers, options->job);
    if (!*result_p) err = zps_fail(error, ZPS_ERR_NOMEM, "no memory for the findings");
  }
  zps_json_unref(before);
  zps_json_unref(now);
  zps_json_unref(status);
  zps_json_unref(members);
  zps_json_unref(jobs);
  return err;
}

void zps_ctl_why_print(FILE *out, const zps_json *result, bool is_brief) {
  const zps_json *const findings = zps_json_get(result, "findings");
  const size_t n = zps_json_array_len(findings);
  if (n == 0) fputs("ok: nothing is wrong\n", out);
  for (size_t i = 0; i < n && (i == 0 || !is_brief); i++) {
    const zps_json *const row = zps_json_at(findings, i);
    char line[1500];
    snprintf(line, sizeof line, "%s: %s. %s%s", text(row, "grade"), text(row, "evidence"),
             is_brief ? "" : "Remedy: ", text(row, "remedy"));
    zps_text_sanitize(line, strlen(line));
    fprintf(out, "%s\n", line);
  }
  if (zps_json_get(result, "left_out") && !is_brief) fprintf(out, "(%.0f more findings)\n", number(result, "left_out"));
}

enum zps_exit zps_ctl_why_exit(const zps_json *result) {
  const char *const state = text(result, "state");
  if (strcmp(state, "ok") == 0) return ZPS_EXIT_OK;
  return strcmp(state, "warning") == 0 ? ZPS_EXIT_FAILED : ZPS_EXIT_USAGE;
}
