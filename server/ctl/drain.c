/*
 * drain and undrain: one call, and with --wait questions until the server has no jobs. A coordinator that goes away
 * meanwhile is waited for: it still knows which servers drain, where it keeps its state.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/control/client.h"
#include "server/ctl/ctl.h"

enum { ASK_MS = 100 };

struct drain {
  const struct zps_ctl_options *options;
  const char *server; /* its name */
  struct zps_client *client;
  uint64_t until_ns;
  unsigned long long pid, jobs; /* the process that drains; jobs that it had when last asked */
};

static zps_err_t connect_to(struct drain *drain, struct zps_error *error) {
  const struct zps_client_handler handler = {.tls = drain->options->tls};
  return zps_client_open(drain->options->endpoint, "ctl", drain->options->timeout_ms, &handler, &drain->client, error);
}

static zps_err_t ask_members(struct drain *drain, zps_json **members_p, struct zps_error *error) {
  zps_err_t err = drain->client ? ZPS_OK : connect_to(drain, error);
  if (!err)
    err = zps_client_call(drain->client, "members", zps_json_object(), drain->options->timeout_ms, members_p, error);
  if (!err || zps_ctl_exit_of(err) != ZPS_EXIT_UNREACHABLE) return err;
  zps_client_close(drain->client);
  drain->client = NULL;
  return err;
}

/* NULL: the process has ended, or is none of the cluster any more. */
static const zps_json *find(const struct drain *drain, const zps_json *members) {
  const zps_json *const servers = zps_json_get(members, "servers");
  for (size_t i = 0; i < zps_json_array_len(servers); i++) {
    const zps_json *const row = zps_json_at(servers, i);
    if (strcmp(zps_json_opt_str(row, "name", ""), drain->server) == 0 &&
        (!drain->pid || zps_json_opt_u64(row, "pid", 0) == drain->pid))
      return row;
  }
  return NULL;
}

/* Whether there is an answer: that it has none, or that it does not drain any more. */
static bool is_over(struct drain *drain, const zps_json *members, zps_err_t *err_p, struct zps_error *error) {
  const zps_json *const row = find(drain, members);
  drain->jobs = zps_json_opt_u64(row, "jobs", 0);
  if (!row || drain->jobs == 0) return true;
  if (strcmp(zps_json_opt_str(row, "state", ""), "in") != 0) return false;
  *err_p =
      zps_fail(error, ZPS_ERR_REFUSED, "server '%.100s' was taken back meanwhile (zenpsctl undrain): it has %llu jobs",
               drain->server, drain->jobs);
  return true;
}

/* The last word: the time is over. */
static zps_err_t expired(const struct drain *drain, zps_err_t err, struct zps_error *error) {
  if (err) return err;
  return zps_fail(
      error, ZPS_ERR_TIMEOUT,
      "server '%.100s' still has %llu jobs after %g s, and goes on draining: they leave it when they can, or "
      "end; zenpsctl drain says why they stay",
      drain->server, drain->jobs, (double)drain->options->wait_ms / 1000);
}

static zps_err_t wait_until_drained(struct drain *drain, enum zps_exit *exit_p, struct zps_error *error) {
  for (;;) {
    zps_json *members = NULL;
    zps_err_t err = ask_members(drain, &members, error);
    const bool over = !err && is_over(drain, members, &err, error);
    zps_json_unref(members);
    *exit_p = zps_ctl_exit_of(err);
    if (over || *exit_p == ZPS_EXIT_REFUSED) return err;
    if (zps_clock_ns() >= drain->until_ns) {
      if (!err) *exit_p = ZPS_EXIT_FAILED;
      return expired(drain, err, error);
    }
    nanosleep(&(struct timespec){.tv_nsec = ASK_MS * (long)ZPS_NS_PER_MS}, NULL);
  }
}

enum zps_exit zps_ctl_drain(const struct zps_ctl_options *options, const struct zps_ctl_verb *verb, const char *server,
                            struct zps_error *error) {
  struct drain drain = {
      .options = options, .server = server, .until_ns = zps_clock_ns() + options->wait_ms * ZPS_NS_PER_MS};
  struct zps_ctl_sample none = {.result = NULL}, now = {.result = NULL};
  enum zps_exit exit = zps_ctl_exit_of(connect_to(&drain, error));
  if (exit == ZPS_EXIT_OK)
    exit =
        zps_ctl_exit_of(zps_client_call(drain.client, verb->method, zps_json_set_str(zps_json_object(), "name", server),
                                        options->timeout_ms, &now.result, error));
  if (exit == ZPS_EXIT_OK) {
    drain.pid = zps_json_opt_u64(zps_json_at(zps_json_get(now.result, "servers"), 0), "pid", 0);
    const zps_err_t err = zps_ctl_show(stdout, options, verb, &none, &now);
    if (err || fflush(stdout) != 0) {
      zps_fail(error, err ? err : ZPS_ERR_IO, "cannot print the answer: %s", zps_err_str(err ? err : ZPS_ERR_IO));
      exit = ZPS_EXIT_FAILED;
    }
  }
  if (exit == ZPS_EXIT_OK && options->wait_ms > 0 && wait_until_drained(&drain, &exit, error) == ZPS_OK)
    exit = ZPS_EXIT_OK;
  zps_json_unref(now.result);
  zps_client_close(drain.client);
  return exit;
}
