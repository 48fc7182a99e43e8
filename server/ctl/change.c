/*
 * Commands that change something: one call, and with --wait questions until it is done. A coordinator that goes away
 * meanwhile is waited for: it still knows what it was told, where it keeps its state.
 */
#include "server/ctl/ctl.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/control/client.h"

enum { ASK_MS = 100 };

struct changing {
  const struct zps_ctl_options *options;
  const struct zps_ctl_change *change;
  struct zps_client *client;
  uint64_t until_ns;
  zps_json *told; /* the answer to the call */
};

static zps_err_t ask(struct changing *changing, zps_json **now_p, struct zps_error *error) {
  zps_err_t err = changing->client ? ZPS_OK : zps_ctl_connect(changing->options, &changing->client, error);
  if (!err)
    err = zps_client_call(changing->client, changing->change->asks, zps_json_object(), changing->options->timeout_ms,
                          now_p, error);
  if (!err || zps_ctl_exit_of(err) != ZPS_EXIT_UNREACHABLE) return err;
  zps_client_close(changing->client);
  changing->client = NULL;
  return err;
}

static enum zps_exit wait_until_done(struct changing *changing, struct zps_error *error) {
  const double seconds = (double)changing->options->wait_ms / 1000;
  for (;;) {
    zps_json *now = NULL;
    zps_err_t err = ask(changing, &now, error);
    const bool is_told = !err, is_over = is_told && changing->change->is_over(changing->told, now, &err, error);
    enum zps_exit exit = zps_ctl_exit_of(err);
    const bool ends = is_over || exit == ZPS_EXIT_REFUSED, is_late = zps_clock_ns() >= changing->until_ns;
    if (!ends && is_late && is_told && changing->change->expired(changing->told, now, seconds, error))
      exit = ZPS_EXIT_FAILED;
    zps_json_unref(now);
    if (ends || is_late) return exit;
    nanosleep(&(struct timespec){.tv_nsec = ASK_MS * (long)ZPS_NS_PER_MS}, NULL);
  }
}

static enum zps_exit call(struct changing *changing, const struct zps_ctl_verb *verb, zps_json *params,
                          struct zps_error *error) {
  const enum zps_exit exit = zps_ctl_exit_of(zps_ctl_connect(changing->options, &changing->client, error));
  if (exit != ZPS_EXIT_OK) {
    zps_json_unref(params);
    return exit;
  }
  return zps_ctl_exit_of(
      zps_client_call(changing->client, verb->method, params, changing->options->timeout_ms, &changing->told, error));
}

static enum zps_exit show(const struct changing *changing, const struct zps_ctl_verb *verb, struct zps_error *error) {
  const struct zps_ctl_sample now = {.result = changing->told};
  const zps_err_t err = zps_ctl_show(stdout, changing->options, verb, &now);
  if (!err) return zps_ctl_flush(stdout, error) ? ZPS_EXIT_FAILED : ZPS_EXIT_OK;
  zps_fail(error, err, "cannot print the answer: %s", zps_err_str(err));
  return ZPS_EXIT_FAILED;
}

enum zps_exit zps_ctl_change(const struct zps_ctl_options *options, const struct zps_ctl_verb *verb, char **args,
                             unsigned n_args, struct zps_error *error) {
  struct changing changing = {
      .options = options, .change = verb->change, .until_ns = zps_clock_ns() + options->wait_ms * ZPS_NS_PER_MS};
  zps_json *params = NULL;
  if (verb->change->params(options, args, n_args, &params, error)) return ZPS_EXIT_USAGE;
  if (options->reason) params = zps_json_set_str(params, "reason", options->reason);
  enum zps_exit exit = call(&changing, verb, params, error);
  if (exit == ZPS_EXIT_OK) exit = show(&changing, verb, error);
  if (exit == ZPS_EXIT_OK && options->wait_ms > 0) exit = wait_until_done(&changing, error);
  zps_json_unref(changing.told);
  zps_client_close(changing.client);
  return exit;
}

/* ------------------------------------------------------------ drain: until the server's process has no jobs */

static zps_err_t drain_params(const struct zps_ctl_options *options, char **args, unsigned n_args, zps_json **params_p,
                              struct zps_error *error) {
  (void)options, (void)n_args, (void)error;
  *params_p = zps_json_set_str(zps_json_object(), "name", args[0]);
  return ZPS_OK;
}

static const zps_json *server_of(const zps_json *told) {
  return zps_json_at(zps_json_get(told, "servers"), 0);
}

/* NULL: the process has ended, or is none of the cluster any more. */
static const zps_json *find_server(const zps_json *told, const zps_json *members) {
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
static bool drain_is_over(const zps_json *told, const zps_json *members, zps_err_t *err_p, struct zps_error *error) {
  const zps_json *const row = find_server(told, members);
  const unsigned long long jobs = zps_json_opt_u64(row, "jobs", 0);
  if (!row || jobs == 0) return true;
  if (strcmp(zps_json_opt_str(row, "state", ""), "in") != 0) return false;
  *err_p =
      zps_fail(error, ZPS_ERR_REFUSED, "server '%.100s' was taken back meanwhile (zenpsctl undrain): it has %llu jobs",
               zps_json_opt_str(row, "name", ""), jobs);
  return true;
}

static zps_err_t drain_expired(const zps_json *told, const zps_json *members, double seconds, struct zps_error *error) {
  return zps_fail(
      error, ZPS_ERR_TIMEOUT,
      "server '%.100s' still has %llu jobs after %g s, and goes on draining: they leave it when they can, or "
      "end; zenpsctl drain says why they stay",
      zps_json_opt_str(server_of(told), "name", ""),
      (unsigned long long)zps_json_opt_u64(find_server(told, members), "jobs", 0), seconds);
}

#define SERVER_WANTED "the name of a server, as zenpsctl members shows it"
const struct zps_ctl_change zps_ctl_drain = {.args = "NAME",
                                             .min_args = 1,
                                             .max_args = 1,
                                             .wants = SERVER_WANTED,
                                             .params = drain_params,
                                             .asks = "members",
                                             .is_over = drain_is_over,
                                             .expired = drain_expired};
const struct zps_ctl_change zps_ctl_undrain = {
    .args = "NAME", .min_args = 1, .max_args = 1, .wants = SERVER_WANTED, .params = drain_params};

/* ------------------------------------------------------------ rebalance: until jobs have their servers */

static zps_err_t rebalance_params(const struct zps_ctl_options *options, char **args, unsigned n_args,
                                  zps_json **params_p, struct zps_error *error) {
  (void)options, (void)error;
  *params_p = zps_json_object();
  if (n_args > 0) *params_p = zps_json_set_str(*params_p, "name", args[0]);
  return ZPS_OK;
}

/* The row of the job in the answer to `jobs`; NULL: it has ended. */
static const zps_json *find_job(const zps_json *row, const zps_json *now) {
  const zps_json *const jobs = zps_json_get(now, "jobs");
  const char *const id = zps_json_opt_str(row, "job_id", "");
  for (size_t i = 0; i < zps_json_array_len(jobs); i++)
    if (strcmp(zps_json_opt_str(zps_json_at(jobs, i), "job_id", ""), id) == 0) return zps_json_at(jobs, i);
  return NULL;
}

static bool has_got_there(const zps_json *row, const zps_json *now) {
  const zps_json *const job = find_job(row, now);
  if (!job || strcmp(zps_json_opt_str(row, "outcome", ""), "stays") == 0) return true;
  if (strcmp(zps_json_opt_str(job, "state", ""), "running") != 0) return true;
  return !zps_json_opt_bool(job, "moving", false) &&
         zps_json_opt_u64(job, "servers_in", 0) >= zps_json_opt_u64(row, "servers", 0);
}

/* The first job that has not got there; NULL: all have. */
static const zps_json *first_job_left(const zps_json *told, const zps_json *now) {
  const zps_json *const rows = zps_json_get(told, "jobs");
  for (size_t i = 0; i < zps_json_array_len(rows); i++)
    if (!has_got_there(zps_json_at(rows, i), now)) return zps_json_at(rows, i);
  return NULL;
}

static bool rebalance_is_over(const zps_json *told, const zps_json *now, zps_err_t *err_p, struct zps_error *error) {
  (void)err_p, (void)error;
  return !first_job_left(told, now);
}

static zps_err_t rebalance_expired(const zps_json *told, const zps_json *now, double seconds, struct zps_error *error) {
  const zps_json *const row = first_job_left(told, now);
  return zps_fail(error, ZPS_ERR_TIMEOUT,
                  "job '%.100s' does not go on with %llu servers yet, after %g s, and is about to: zenpsctl rebalance "
                  "says what it waits for",
                  zps_json_opt_str(row, "job", ""), (unsigned long long)zps_json_opt_u64(row, "servers", 0), seconds);
}

const struct zps_ctl_change zps_ctl_rebalance = {.args = "[JOB]",
                                                 .max_args = 1,
                                                 .params = rebalance_params,
                                                 .asks = "jobs",
                                                 .is_over = rebalance_is_over,
                                                 .expired = rebalance_expired};

/* ------------------------------------------------------------ kick: at once */

static zps_err_t kick_params(const struct zps_ctl_options *options, char **args, unsigned n_args, zps_json **params_p,
                             struct zps_error *error) {
  (void)options, (void)n_args;
  const size_t n_digits = strspn(args[1], "0123456789");
  if (n_digits == 0 || n_digits > 9 || args[1][n_digits])
    return zps_fail(error, ZPS_ERR_INVALID, "kick: '%.80s' is no rank: a number, as zenpsctl members shows it",
                    args[1]);
  *params_p = zps_json_set_str(zps_json_object(), "name", args[0]);
  *params_p = zps_json_set_u64(*params_p, "rank", strtoull(args[1], NULL, 10));
  return ZPS_OK;
}

const struct zps_ctl_change zps_ctl_kick = {.args = "JOB RANK",
                                            .min_args = 2,
                                            .max_args = 2,
                                            .wants =
                                                "the name of a job and the number of a rank, as zenpsctl members "
                                                "shows them",
                                            .params = kick_params};
