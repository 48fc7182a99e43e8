/* `why`: jobs that have failed, and what runs out. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "server/ctl/why_impl.h"

#define DISK_SHARE 0.05 /* Free share of a file system. */
#define DAY_S (24 * 3600)
#define CERTIFICATE_DAYS 30 /* before its end */
#define CERTIFICATE_URGENT_DAYS 7

/* What an operator does about an error, by its code. deploy/guide/troubleshooting.md has a paragraph for each. */
static const struct {
  const char *code, *remedy;
} remedies[] = {
    {"ERR_AGAIN", "the sentence names the limit that is reached: raise it, or start fewer at once"},
    {"ERR_INVALID", "correct the argument, option or variable that the sentence names, and start the job again"},
    {"ERR_NOMEM",
     "give the named server or rank more memory: raise server.memory_limit, add servers (zenpsctl rebalance), or use "
     "fewer steps in flight"},
    {"ERR_TIMEOUT",
     "read the logs of the ranks that the sentence names; ZENPS_ROUND_TIMEOUT sets the deadline of rounds"},
    {"ERR_CANCELED", "a program or a signal ended it on purpose; read the log of the rank that the sentence names"},
    {"ERR_CLOSED",
     "read the log of the rank that left first; ranks that call zenps_barrier() before they leave avoid it"},
    {"ERR_CONNECT", "check the address (ZENPS_COORDINATOR), the firewall, and that the process there runs"},
    {"ERR_REFUSED", "mend what the sentence names: a certificate, a token, a role, a kick or a drain"},
    {"ERR_VERSION",
     "run the same release everywhere: zenpsctl members shows the versions of members (VERSION), zenpsctl version the "
     "coordinator's; the sentence names the other one"},
    {"ERR_PROTOCOL",
     "run the same release everywhere; if it is the same, look for broken memory or cards, and report it"},
    {"ERR_SHAPE", "make equal on all ranks what the sentence names: it has both ranks and what each said"},
    {"ERR_UNKNOWN",
     "start the job again; set coordinator.state_dir, so that jobs survive a restart of the coordinator"},
    {"ERR_RANK_TAKEN", "two launches use one job name: set ZENPS_JOB, or end the other one"},
    {"ERR_MISSING",
     "read the logs of the ranks that the sentence names: each of them failed first, or does not call; zenpsctl "
     "members "
     "shows whether its process is there, and py-spy dump or gdb its stack"},
    {"ERR_PEER_LOST",
     "read that rank's log, and dmesg on its host for an end by lack of memory; an elastic job goes on without it"},
    {"ERR_SERVER_LOST",
     "read that server's log (journalctl -u zenpsd) and dmesg on its host; run two servers at least, with "
     "coordinator.server_loss = replay"},
    {"ERR_STALE", "pull sooner after the push, or start the job again if the coordinator has lost its state"},
    {"ERR_TRUNCATED", "give larger arrays (zenps_request_fetch()), or let zenps own the result"},
    {"ERR_UNSUPPORTED", "choose a scheme, type or device that can: the sentence says what is missing"},
    {"ERR_IO", "mend the file, socket or disk that the sentence names"},
    {"ERR_FABRIC",
     "check fabric.provider (ZENPS_PROVIDER) and fabric.interface; zenpsd --list-providers shows the host's"},
    {"ERR_FORKED", "open the job after fork(), or start data loaders by spawn"},
    {"ERR_BUSY", "wait for the operation in flight, or use another step, port or folder"},
    {"ERR_INTERNAL", "report the sentence and that rank's log: it is a fault of zenps"},
    {"ERR_QUOTA",
     "raise the limit that the sentence names (job.max_tensors, job.max_memory, job.max_rounds, "
     "job.max_waiting), or ask for less"},
    {"ERR_TRAINER", "mend the trainer: the sentence is its own error, and that rank's output has its stack"},
};

/* `code`: a name such as "ERR_MISSING". Never NULL: of an unknown code it is where to look. */
static const char *remedy_of(const char *code) {
  for (size_t i = 0; i < sizeof remedies / sizeof remedies[0]; i++)
    if (strcmp(remedies[i].code, code) == 0) return remedies[i].remedy;
  return "read the ranks' logs";
}

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
                   "%s", remedy_of(text(row, "code")));
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
        "%s", remedy_of(text(row, "code")));
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
