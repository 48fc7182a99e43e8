#include "worker/tools/job_outcome.h"

#include <stdio.h>
#include <string.h>

#include "common/control/client.h"

enum { ASK_MS = 2000 };

/* A job of another name is the program's as well: the coordinator is the run's own. */
static const zps_json *find_state(const zps_json *rows, const char *state) {
  for (size_t i = 0; i < zps_json_array_len(rows); i++)
    if (strcmp(zps_json_opt_str(zps_json_at(rows, i), "state", ""), state) == 0) return zps_json_at(rows, i);
  return NULL;
}

static void set_running(const zps_json *row, struct zps_fate *fate) {
  const unsigned long long n = zps_json_opt_u64(row, "servers", 0), lost = zps_json_opt_u64(row, "servers_lost", 0);
  const unsigned long long left = zps_json_opt_u64(row, "servers_in", n > lost ? n - lost : 0);
  snprintf(fate->text, sizeof fate->text, "job '%.64s' goes on with %llu server%s", zps_json_opt_str(row, "job", ""),
           left, left == 1 ? "" : "s");
}

static void set_failed(const zps_json *row, struct zps_fate *fate) {
  fate->has_failed = true;
  snprintf(fate->text, sizeof fate->text, "%s", zps_json_opt_str(row, "failure", ""));
}

void zps_fate_read(const zps_json *jobs, struct zps_fate *fate) {
  const zps_json *const rows = zps_json_get(jobs, "jobs"), *const ended = zps_json_get(jobs, "ended");
  const size_t n_ended = zps_json_array_len(ended);
  const zps_json *row;
  *fate = (struct zps_fate){.has_failed = false};
  if ((row = find_state(rows, "running"))) {
    set_running(row, fate);
  } else if ((row = find_state(rows, "closing"))) {
    set_failed(row, fate);
  } else if (zps_json_array_len(rows) == 0 && n_ended > 0 &&
             strcmp(zps_json_opt_str(zps_json_at(ended, n_ended - 1), "code", ""), "ERR_SERVER_LOST") == 0) {
    set_failed(zps_json_at(ended, n_ended - 1), fate);
  } else {
    snprintf(fate->text, sizeof fate->text, "no job is running");
  }
}

static zps_err_t ask(const char *coordinator, struct zps_tls *tls, zps_json **jobs_p, struct zps_error *error) {
  const struct zps_client_handler handler = {.tls = tls};
  struct zps_client *client;
  zps_err_t err = zps_client_open(coordinator, "ctl", ASK_MS, &handler, &client, error);
  if (err) return err;
  err = zps_client_call(client, "jobs", zps_json_set_bool(zps_json_object(), "all", true), ASK_MS, jobs_p, error);
  zps_client_close(client);
  return err;
}

void zps_fate_ask(const char *coordinator, struct zps_tls *tls, struct zps_fate *fate) {
  zps_json *jobs;
  struct zps_error error;
  if (ask(coordinator, tls, &jobs, &error) == ZPS_OK) {
    zps_fate_read(jobs, fate);
    zps_json_unref(jobs);
    return;
  }
  fate->has_failed = false;
  snprintf(fate->text, sizeof fate->text, "the coordinator does not say what becomes of the job (%.400s)", error.text);
}
