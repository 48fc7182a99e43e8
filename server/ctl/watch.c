/*
 * One question, or the same one again and again.
 *
 * With --watch, a coordinator that goes away is waited for, unless it was never there. Rates are not counted across
 * such a gap, since a coordinator that comes back knows nothing of what was before. A terminal is drawn anew for each
 * answer, and when its size changes; a pipe gets one answer under the other, and gaps are told on stderr.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/control/client.h"
#include "server/ctl/ctl.h"

enum { RETRY_MS_MAX = 1000, TIME_SIZE = 24 };

struct watch {
  const struct zps_ctl_options *options;
  const struct zps_ctl_verb *verb;
  struct zps_client *client;
  struct zps_ctl_sample before;
  bool draws;      /* on a terminal */
  char *body;      /* of the last frame */
  char title[600]; /* above it: the time, and what there is to say */
  char gap[2 * TIME_SIZE + 40];
};

/* "2024-06-01 12:00:00", or the last part of it, in local time. */
static const char *time_text(const char *format, char text[TIME_SIZE]) {
  const time_t now = time(NULL);
  struct tm parts;
  if (!localtime_r(&now, &parts) || !strftime(text, TIME_SIZE, format, &parts)) strcpy(text, "?");
  return text;
}

static void draw(const struct watch *watch) {
  unsigned rows, columns;
  char *frame;
  if (!watch->body || !zps_ctl_screen_size(STDOUT_FILENO, &rows, &columns)) return;
  if (asprintf(&frame, "%s\n%s", watch->title, watch->body) < 0) return; /* the next one may fit in */
  zps_ctl_screen_draw(stdout, frame, rows, columns);
  fflush(stdout);
  free(frame);
}

/* SIGWINCH is blocked but here, so that none gets lost between two waits. */
static void pause_for(const struct watch *watch, uint64_t ms) {
  const uint64_t until_ns = zps_clock_ns() + ms * ZPS_NS_PER_MS;
  sigset_t resized;
  sigemptyset(&resized);
  sigaddset(&resized, SIGWINCH);
  for (uint64_t now_ns = zps_clock_ns(); now_ns < until_ns; now_ns = zps_clock_ns()) {
    const struct timespec left = zps_clock_timespec(until_ns - now_ns);
    if (sigtimedwait(&resized, NULL, &left) == SIGWINCH) draw(watch);
  }
}

static void on_resize(int signal_number) {
  (void)signal_number; /* is there so that the signal is not ignored, which it could be although it is blocked */
}

static void start_drawing(struct watch *watch) {
  static char buffer[1 << 16]; /* a frame goes out in one piece */
  unsigned rows, columns;
  sigset_t resized;
  sigemptyset(&resized);
  sigaddset(&resized, SIGWINCH);
  sigprocmask(SIG_BLOCK, &resized, NULL);
  watch->draws = watch->options->watch_ms && watch->options->output == ZPS_CTL_TABLE &&
                 zps_ctl_screen_size(STDOUT_FILENO, &rows, &columns);
  if (!watch->draws) return;
  signal(SIGWINCH, on_resize);
  setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
}

static zps_err_t show_drawn(struct watch *watch, const struct zps_ctl_sample *now) {
  char *body = NULL, at[TIME_SIZE];
  size_t len;
  FILE *out = open_memstream(&body, &len);
  if (!out) return ZPS_ERR_NOMEM;
  zps_err_t err = zps_ctl_show(out, watch->options, watch->verb, now);
  if (fclose(out) != 0 && !err) err = ZPS_ERR_NOMEM;
  if (err) {
    free(body);
    return err;
  }
  free(watch->body);
  watch->body = body;
  snprintf(watch->title, sizeof watch->title, "%s%s", time_text("%F %T", at), watch->gap);
  draw(watch);
  return ZPS_OK;
}

static zps_err_t show_below(struct watch *watch, const struct zps_ctl_sample *now) {
  const bool titled = watch->options->watch_ms && watch->options->output == ZPS_CTL_TABLE;
  char at[TIME_SIZE];
  if (titled) printf("%s\n", time_text("%F %T", at));
  const zps_err_t err = zps_ctl_show(stdout, watch->options, watch->verb, now);
  if (titled) putchar('\n');
  return err;
}

/* Takes over `now`. */
static zps_err_t show(struct watch *watch, const struct zps_ctl_sample *now, struct zps_error *error) {
  zps_err_t err = watch->draws ? show_drawn(watch, now) : show_below(watch, now);
  zps_json_unref(watch->before.result);
  watch->before = *now;
  if (err) return zps_fail(error, err, "cannot print the answer: %s", zps_err_str(err));
  return zps_ctl_flush(stdout, error);
}

static zps_err_t call(struct watch *watch, struct zps_ctl_sample *sample, struct zps_error *error) {
  zps_json *params = zps_json_object();
  if (watch->options->all) params = zps_json_set_bool(params, "all", true);
  sample->at_ns = zps_clock_ns();
  if (watch->verb->gather) return watch->verb->gather(watch->client, watch->options, &sample->result, error);
  zps_json *result = NULL;
  zps_err_t err =
      zps_client_call(watch->client, watch->verb->method, params, watch->options->timeout_ms, &result, error);
  if (err) return err;
  sample->result = zps_ctl_take(watch->verb, result, &watch->before, sample->at_ns);
  return sample->result ? ZPS_OK : zps_fail(error, ZPS_ERR_NOMEM, "no memory for the answer");
}

zps_err_t zps_ctl_connect(const struct zps_ctl_options *options, struct zps_client **client_p,
                          struct zps_error *error) {
  const struct zps_client_handler handler = {.tls = options->tls};
  return zps_client_open(options->endpoint, "ctl", options->timeout_ms, &handler, client_p, error);
}

static void say_waiting(struct watch *watch, const char *since, const char *reason) {
  if (watch->draws) {
    char at[TIME_SIZE];
    snprintf(watch->title, sizeof watch->title, "%s  no answer since %s, still asking: %s", time_text("%F %T", at),
             since, reason);
    draw(watch);
  } else {
    fprintf(stderr, "zenpsctl: %s: no answer, asking until there is one: %s\n", since, reason);
  }
}

/* Until the coordinator is there again, or refuses. `error` says why it is not, and at last why it refuses. */
static zps_err_t reconnect(struct watch *watch, struct zps_error *error) {
  char since[TIME_SIZE], until[TIME_SIZE];
  const uint64_t retry_ms = watch->options->watch_ms < RETRY_MS_MAX ? watch->options->watch_ms : RETRY_MS_MAX;
  time_text("%T", since);
  say_waiting(watch, since, error->text);
  zps_client_close(watch->client);
  watch->client = NULL;
  zps_json_unref(watch->before.result);
  watch->before.result = NULL;
  zps_err_t err;
  while ((err = zps_ctl_connect(watch->options, &watch->client, error)) != ZPS_OK &&
         zps_exit_of(err) == ZPS_EXIT_UNREACHABLE) {
    if (watch->draws) say_waiting(watch, since, error->text);
    pause_for(watch, retry_ms);
  }
  if (err) return err;
  time_text("%T", until);
  snprintf(watch->gap, sizeof watch->gap, "  (no answer from %s to %s)", since, until);
  if (!watch->draws) fprintf(stderr, "zenpsctl: %s: %s answers again\n", until, watch->options->endpoint);
  return ZPS_OK;
}

enum zps_exit zps_ctl_exit_of(zps_err_t code) {
  if (!code) return ZPS_EXIT_OK;
  return zps_exit_of(code) == ZPS_EXIT_UNREACHABLE ? ZPS_EXIT_UNREACHABLE : ZPS_EXIT_REFUSED;
}

static enum zps_exit ask(struct watch *watch, struct zps_error *error) {
  enum zps_exit exit = zps_ctl_exit_of(zps_ctl_connect(watch->options, &watch->client, error));
  for (bool answered = false; exit == ZPS_EXIT_OK;) {
    struct zps_ctl_sample now;
    exit = zps_ctl_exit_of(call(watch, &now, error));
    if (exit == ZPS_EXIT_UNREACHABLE && answered) {
      exit = zps_ctl_exit_of(reconnect(watch, error));
      continue;
    }
    if (exit != ZPS_EXIT_OK) break;
    if (show(watch, &now, error)) return ZPS_EXIT_FAILED;
    if (watch->verb->gather) exit = zps_ctl_why_exit(now.result);
    answered = watch->options->watch_ms > 0;
    if (!answered) break;
    exit = ZPS_EXIT_OK;
    pause_for(watch, watch->options->watch_ms);
  }
  return exit;
}

enum zps_exit zps_ctl_ask(const struct zps_ctl_options *options, const struct zps_ctl_verb *verb,
                          struct zps_error *error) {
  struct watch watch = {.options = options, .verb = verb};
  start_drawing(&watch);
  const enum zps_exit exit = ask(&watch, error);
  zps_json_unref(watch.before.result);
  zps_client_close(watch.client);
  free(watch.body);
  return exit;
}
