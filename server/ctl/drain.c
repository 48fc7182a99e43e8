/* drain and undrain: until the server, that process of it, has no jobs. */
#include <string.h>

#include "server/ctl/ctl.h"

static zps_err_t params_of(const struct zps_ctl_options *options, char **args, unsigned n_args, zps_json **params_p,
                           struct zps_error *error) {
  (void)options, (void)n_args, (void)error;
  *params_p = zps_json_set_str(zps_json_object(), "name", args[0]);
  return ZPS_OK;
}

static const zps_json *server_of(const zps_json *told) {
  return zps_json_at(zps_json_get(told, "servers"), 0);
}

/* NULL: the process has ended, or is none of the cluster any more. */
static const zps_json *find(const zps_json *told, const zps_json *members) {
  const zps_json *const servers = zps_json_get(members, "servers"), *const server = server_of(told);
  const char *const name = zps_json_opt_str(server, "name", "");
  const uint64_t pid = zps_json_opt_u64(server, "pid", 0);
  for (size_t i = 0; i < zps_json_array_len(servers); i++) {
    const zps_json *const row = zps_json_at(servers, i);
    if (strcmp(zps_json_opt_str(row, "name", ""), name) == 0 && zps_json_opt_u64(row, "pid", 0) == pid) return row;
  }
  return NULL;
}

/* It has none, or it does not drain any more. */
static bool is_over(const zps_json *told, const zps_json *members, zps_err_t *err_p, struct zps_error *error) {
  const zps_json *const row = find(told, members);
  const unsigned long long jobs = zps_json_opt_u64(row, "jobs", 0);
  if (!row || jobs == 0) return true;
  if (strcmp(zps_json_opt_str(row, "state", ""), "in") != 0) return false;
  *err_p =
      zps_fail(error, ZPS_ERR_REFUSED, "server '%.100s' was taken back meanwhile (zenpsctl undrain): it has %llu jobs",
               zps_json_opt_str(row, "name", ""), jobs);
  return true;
}

static zps_err_t expired(const zps_json *told, const zps_json *members, double seconds, struct zps_error *error) {
  return zps_fail(
      error, ZPS_ERR_TIMEOUT,
      "server '%.100s' still has %llu jobs after %g s, and goes on draining: they leave it when they can, or "
      "end; zenpsctl drain says why they stay",
      zps_json_opt_str(server_of(told), "name", ""),
      (unsigned long long)zps_json_opt_u64(find(told, members), "jobs", 0), seconds);
}

#define WANTS "the name of a server, as zenpsctl members shows it"
const struct zps_ctl_change zps_ctl_drain = {.args = "NAME",
                                             .min_args = 1,
                                             .max_args = 1,
                                             .wants = WANTS,
                                             .params = params_of,
                                             .asks = "members",
                                             .is_over = is_over,
                                             .expired = expired};
const struct zps_ctl_change zps_ctl_undrain = {
    .args = "NAME", .min_args = 1, .max_args = 1, .wants = WANTS, .params = params_of};
