/*
 * Commands that change something: one call, and with --wait questions until it is done. A coordinator that goes away
 * meanwhile is waited for: it still knows what it was told, where it keeps its state.
 */
#include <stdlib.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/control/client.h"
#include "server/ctl/ctl.h"

enum { ASK_MS = 100 };

struct changing {
  const struct zps_ctl_options *options;
  const struct zps_ctl_change *change;
  struct zps_client *client;
  uint64_t until_ns;
  zps_json *told; /* the answer to the call */
};

static zps_err_t connect_to(struct changing *changing, struct zps_error *error) {
  const struct zps_client_handler handler = {.tls = changing->options->tls};
  return zps_client_open(changing->options->endpoint, "ctl", changing->options->timeout_ms, &handler, &changing->client,
                         error);
}

static zps_err_t ask(struct changing *changing, zps_json **now_p, struct zps_error *error) {
  zps_err_t err = changing->client ? ZPS_OK : connect_to(changing, error);
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
  const enum zps_exit exit = zps_ctl_exit_of(connect_to(changing, error));
  if (exit != ZPS_EXIT_OK) {
    zps_json_unref(params);
    return exit;
  }
  return zps_ctl_exit_of(
      zps_client_call(changing->client, verb->method, params, changing->options->timeout_ms, &changing->told, error));
}

static enum zps_exit show(const struct changing *changing, const struct zps_ctl_verb *verb, struct zps_error *error) {
  const struct zps_ctl_sample none = {.result = NULL}, now = {.result = changing->told};
  const zps_err_t err = zps_ctl_show(stdout, changing->options, verb, &none, &now);
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
  enum zps_exit exit = call(&changing, verb, params, error);
  if (exit == ZPS_EXIT_OK) exit = show(&changing, verb, error);
  if (exit == ZPS_EXIT_OK && options->wait_ms > 0) exit = wait_until_done(&changing, error);
  zps_json_unref(changing.told);
  zps_client_close(changing.client);
  return exit;
}
