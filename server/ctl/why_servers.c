/* `why`: servers that do not answer, have no memory left, or cannot be reached. */
#include "server/ctl/why_impl.h"

#define FULL_SHARE 0.9 /* of a memory limit */

void zps_why_servers(struct why *why) {
  const zps_json *const rows = zps_json_get(why->answers->now, "servers");
  const zps_json *const status = zps_json_at(zps_json_get(why->answers->status, "coordinator"), 0);
  if (status && zps_json_opt_u64(status, "servers", 1) == 0)
    zps_why_remedy(zps_why_found(why, ZPS_FINDING_CRITICAL, 1e9, "no server is registered"),
                   "start one: zenpsd --roles=server --control-coordinator=%.80s", text(status, "address"));
  for (size_t i = 0; i < zps_json_array_len(rows); i++) {
    const zps_json *const row = zps_json_at(rows, i);
    const double used = number(row, "memory_in_use_bytes"), limit = number(row, "memory_limit_bytes");
    if (strcmp(text(row, "answer"), "ok") != 0)
      zps_why_remedy(zps_why_found(why, ZPS_FINDING_CRITICAL, 1e6, "server %.60s (host %.60s) does not answer: %.150s",
                                   text(row, "server"), text(row, "host"), text(row, "answer")),
                     "look at its process and its log there: systemctl status zenpsd; journalctl -u zenpsd");
    else if (limit > 0 && used >= FULL_SHARE * limit)
      zps_why_remedy(
          zps_why_found(why, ZPS_FINDING_WARNING, used / limit * 100,
                        "server %.60s uses %.0f%% of its memory limit, %.0f of %.0f MiB", text(row, "server"),
                        used / limit * 100, used / 1048576, limit / 1048576),
          "raise server.memory_limit, add a server, or limit jobs (job.max_memory); zenpsctl stats shows each job's "
          "part (shares, MEM)");
    if (number(row, "forged") > 0 || number(row, "corrupt") > 0)
      zps_why_remedy(
          zps_why_found(why, ZPS_FINDING_WARNING, 50,
                        "server %.60s passed over %.0f forged messages and %.0f corrupt reads", text(row, "server"),
                        number(row, "forged"), number(row, "corrupt")),
          "let only the cluster's hosts reach its data port; memory or a card may be broken; its log names the "
          "peers");
    if (number(row, "rails_out") > 0)
      zps_why_remedy(
          zps_why_found(why, ZPS_FINDING_WARNING, 40,
                        "server %.60s (host %.60s) does not reliably reach %.0f of its peers over each of its "
                        "cards: their gradients come over the others",
                        text(row, "server"), text(row, "host"), number(row, "rails_out")),
          "look at the link that its log names (rail ...): it is broken, or peers end their connections over it, since "
          "one process there stands still; the server tries a lost card again after 1 to 16 minutes");
    if (number(row, "rails_refused") > 0)
      zps_why_remedy(
          zps_why_found(why, ZPS_FINDING_WARNING, 30,
                        "a card of server %.60s (host %.60s) refused %.0f pieces of memory: the server uses "
                        "fewer cards for them",
                        text(row, "server"), text(row, "host"), number(row, "rails_refused")),
          "look for the reason in its log (rail ... refuses); locked memory counts once for each card: raise "
          "LimitMEMLOCK, then restart the server");
  }
}

/* A server in this state, or "". */
static const char *server_in(const struct why *why, const char *state) {
  const zps_json *const rows = zps_json_get(why->answers->members, "servers");
  for (size_t i = 0; i < zps_json_array_len(rows); i++)
    if (strcmp(text(zps_json_at(rows, i), "state"), state) == 0) return text(zps_json_at(rows, i), "name");
  return "";
}

/* draining: by an administrator, who can take it back; stopping: its process is about to end. */
static void say_fewer_servers(struct why *why, const zps_json *job) {
  const char *const drains = server_in(why, "draining"), *const stops = server_in(why, "stopping");
  const char *const lost = text(job, "lost_servers"), *const other = *drains ? drains : stops;
  struct zps_finding *const finding =
      zps_why_found(why, ZPS_FINDING_WARNING, 20, "job %.60s runs on %.0f of %.0f servers%s%.100s%s%.60s",
                    text(job, "job"), number(job, "servers_in"), number(job, "servers"), *lost ? "; lost: " : "", lost,
                    *drains  ? "; draining: "
                    : *stops ? "; stopping: "
                             : "",
                    other);
  char name[ZPS_QUOTED_MAX];
  if (*drains)
    zps_why_remedy(finding, "zenpsctl undrain %s when it may take jobs again, or start another server",
                   zps_why_quoted(drains, name));
  else if (*stops)
    zps_why_remedy(finding,
                   "start %.60s again, or another server: the process ends when its jobs have left it, and cannot be "
                   "taken back; the job takes a new one in some 5 s after it has come",
                   stops);
  else
    zps_why_remedy(
        finding,
        "start a server, or mend the link of a lost one: the job takes it in some 5 s after it has come (zenpsctl "
        "rebalance %s says what it waits for)",
        zps_why_quoted(text(job, "job"), name));
}

/* A server that ranks cannot reach, and a job that has fewer servers than it began with. */
void zps_why_barred(struct why *why) {
  const zps_json *const rows = zps_json_get(why->answers->members, "unreachable");
  for (size_t i = 0; i < zps_json_array_len(rows); i++) {
    const zps_json *const row = zps_json_at(rows, i);
    char name[ZPS_QUOTED_MAX];
    if (!is_about(why, row)) continue;
    zps_why_remedy(
        zps_why_found(why, ZPS_FINDING_WARNING, 100,
                      "job %.60s has barred server %.60s for %.0f s: rank %.0f cannot reach it: %.150s",
                      text(row, "job"), text(row, "name"), number(row, "out_s"), number(row, "rank"),
                      text(row, "reason")),
        "mend the link between rank %.0f and %.60s; the job asks it again in %.0f s, zenpsctl undrain %s at once",
        number(row, "rank"), text(row, "name"), number(row, "again_s"), zps_why_quoted(text(row, "name"), name));
  }
  const zps_json *const jobs = zps_json_get(why->answers->jobs, "jobs");
  for (size_t i = 0; i < zps_json_array_len(jobs); i++) {
    const zps_json *const job = zps_json_at(jobs, i);
    if (!is_about(why, job)) continue;
    if (strcmp(text(job, "state"), "running") == 0 && number(job, "servers_in") < number(job, "servers"))
      say_fewer_servers(why, job);
    if (strcmp(text(job, "state"), "joining") == 0 && number(job, "age_s") > 10)
      zps_why_remedy(zps_why_found(why, ZPS_FINDING_WARNING, 30,
                                   "job %.60s has waited %.0f s to begin: %.0f of %.0f ranks are here",
                                   text(job, "job"), number(job, "age_s"), number(job, "joined"), number(job, "world")),
                     "start the missing ranks, or as many servers as coordinator.min_servers asks for");
  }
}
