/* rebalance: until the jobs that were to take in servers have them, or have ended. */
#include <string.h>

#include "server/ctl/ctl.h"

static zps_err_t params_of(const struct zps_ctl_options *options, char **args, unsigned n_args, zps_json **params_p,
                           struct zps_error *error) {
  (void)options, (void)error;
  *params_p = zps_json_object();
  if (n_args > 0) *params_p = zps_json_set_str(*params_p, "name", args[0]);
  return ZPS_OK;
}

/* The row of the job in the answer to `jobs`; NULL: it has ended. */
static const zps_json *find(const zps_json *row, const zps_json *now) {
  const zps_json *const jobs = zps_json_get(now, "jobs");
  const char *const id = zps_json_opt_str(row, "job_id", "");
  for (size_t i = 0; i < zps_json_array_len(jobs); i++)
    if (strcmp(zps_json_opt_str(zps_json_at(jobs, i), "job_id", ""), id) == 0) return zps_json_at(jobs, i);
  return NULL;
}

static bool is_done(const zps_json *row, const zps_json *now) {
  const zps_json *const job = find(row, now);
  if (!job || strcmp(zps_json_opt_str(row, "outcome", ""), "stays") == 0) return true;
  if (strcmp(zps_json_opt_str(job, "state", ""), "running") != 0) return true;
  return !zps_json_opt_bool(job, "moving", false) &&
         zps_json_opt_u64(job, "servers_in", 0) >= zps_json_opt_u64(row, "servers", 0);
}

/* The first job that has not got there; NULL: all have. */
static const zps_json *first_left(const zps_json *told, const zps_json *now) {
  const zps_json *const rows = zps_json_get(told, "jobs");
  for (size_t i = 0; i < zps_json_array_len(rows); i++)
    if (!is_done(zps_json_at(rows, i), now)) return zps_json_at(rows, i);
  return NULL;
}

static bool is_over(const zps_json *told, const zps_json *now, zps_err_t *err_p, struct zps_error *error) {
  (void)err_p, (void)error;
  return !first_left(told, now);
}

static zps_err_t expired(const zps_json *told, const zps_json *now, double seconds, struct zps_error *error) {
  const zps_json *const row = first_left(told, now);
  return zps_fail(error, ZPS_ERR_TIMEOUT,
                  "job '%.100s' does not go on with %llu servers yet, after %g s, and is about to: zenpsctl rebalance "
                  "says what it waits for",
                  zps_json_opt_str(row, "job", ""), (unsigned long long)zps_json_opt_u64(row, "servers", 0), seconds);
}

const struct zps_ctl_change zps_ctl_rebalance = {
    .args = "[JOB]", .max_args = 1, .params = params_of, .asks = "jobs", .is_over = is_over, .expired = expired};
