/* `why`: jobs that have failed, and what runs out. */
#include <stdio.h>
#include <time.h>

#include "server/ctl/remedy.h"
#include "server/ctl/why_impl.h"

#define DISK_SHARE 0.05 /* Free share of a file system. */
#define DAY_S (24 * 3600)
#define CERTIFICATE_DAYS 30 /* before its end */
#define CERTIFICATE_URGENT_DAYS 7

static double seconds_since(const char *utc, time_t now) {
  struct tm parts = {0};
  return strptime(utc, "%Y-%m-%dT%H:%M:%SZ", &parts) ? difftime(now, timegm(&parts)) : 0;
}

/* A job of this name runs now, or has run later. */
static bool was_repeated(const struct why *why, const char *job, size_t ended) {
  const zps_json *const jobs = zps_json_get(why->answers->jobs, "jobs");
  const zps_json *const rows = zps_json_get(why->answers->jobs, "ended");
  for (size_t i = 0; i < zps_json_array_len(jobs); i++)
    if (strcmp(text(zps_json_at(jobs, i), "job"), job) == 0 &&
        strcmp(text(zps_json_at(jobs, i), "state"), "joining") != 0)
      return true;
  for (size_t i = ended + 1; i < zps_json_array_len(rows); i++)
    if (strcmp(text(zps_json_at(rows, i), "job"), job) == 0 && number(zps_json_at(rows, i), "epoch") > 0) return true;
  return false;
}

/* A run that was repeated is nobody's trouble any more. */
void zps_why_failed(struct why *why) {
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
    zps_why_remedy(zps_why_found(why, why->job ? ZPS_FINDING_CRITICAL : ZPS_FINDING_WARNING, 40 - ago_s / DAY_S,
                                 "job %.60s failed %s: %.30s: %.200s", text(row, "job"), when, text(row, "code"),
                                 text(row, "failure")),
                   "%s", zps_ctl_remedy(text(row, "code")));
  }
}

/* A rank has failed, and the job has not ended: others hang, or have not left yet. */
void zps_why_failing(struct why *why) {
  const zps_json *const rows = zps_json_get(why->answers->jobs, "jobs");
  for (size_t i = 0; i < zps_json_array_len(rows); i++) {
    const zps_json *const row = zps_json_at(rows, i);
    if (!is_about(why, row) || !*text(row, "code")) continue;
    zps_why_remedy(
        zps_why_found(why, ZPS_FINDING_CRITICAL, 45,
                      "job %.60s fails, and %.0f of its %.0f ranks are still there: %.30s: %.200s", text(row, "job"),
                      number(row, "joined"), number(row, "world"), text(row, "code"), text(row, "failure")),
        "%s", zps_ctl_remedy(text(row, "code")));
  }
}

void zps_why_ends(struct why *why) {
  const zps_json *const coordinator = zps_json_at(zps_json_get(why->answers->status, "coordinator"), 0);
  const double size = number(coordinator, "state_size_bytes"), space = number(coordinator, "state_free_bytes");
  if (size > 0 && space < DISK_SHARE * size)
    zps_why_remedy(zps_why_found(why, space < size / 100 ? ZPS_FINDING_CRITICAL : ZPS_FINDING_WARNING, 60,
                                 "the coordinator's state directory %.100s has %.0f MiB free, %.1f%%",
                                 text(coordinator, "state_dir"), space / 1048576, space / size * 100),
                   "free space there: a full disk ends the coordinator, and jobs wait for it");
  const zps_json *const servers = zps_json_get(why->answers->members, "servers");
  for (size_t i = 0; i <= zps_json_array_len(servers); i++) {
    const bool is_coordinator = i == zps_json_array_len(servers);
    const zps_json *const row = is_coordinator ? coordinator : zps_json_at(servers, i);
    const double days = (number(row, "certificate_ends") - (double)why->answers->now_s) / DAY_S;
    if (!zps_json_get(row, "certificate_ends") || days > CERTIFICATE_DAYS) continue;
    zps_why_remedy(
        zps_why_found(why, days <= CERTIFICATE_URGENT_DAYS ? ZPS_FINDING_CRITICAL : ZPS_FINDING_WARNING, 80 - days,
                      "the certificate of %s %.60s ends in %.1f days", is_coordinator ? "the coordinator at" : "server",
                      text(row, is_coordinator ? "address" : "name"), days),
        "make a new one (zenpsctl certs init), put it in place, and reload: systemctl reload zenpsd");
  }
}

void zps_why_versions(struct why *why) {
  const zps_json *const coordinator = zps_json_at(zps_json_get(why->answers->status, "coordinator"), 0);
  const zps_json *const servers = zps_json_get(why->answers->members, "servers");
  for (size_t i = 0; i < zps_json_array_len(servers); i++) {
    const zps_json *const row = zps_json_at(servers, i);
    if (!*text(row, "version") || strcmp(text(row, "version"), text(coordinator, "version")) == 0) continue;
    zps_why_remedy(zps_why_found(why, ZPS_FINDING_WARNING, 5, "server %.60s is version %.30s, the coordinator %.30s",
                                 text(row, "name"), text(row, "version"), text(coordinator, "version")),
                   "restart it with the coordinator's version");
  }
}
