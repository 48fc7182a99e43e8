/*
 * `zenpsctl export`: metrics of the whole cluster for Prometheus, by HTTP.
 *
 * A scrape asks the coordinator once. Scrapes that come while it is asked share the answer, and each ends within
 * --timeout. The coordinator is asked over one connection, which is made again when it was lost.
 */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/control/client.h"
#include "server/ctl/ctl.h"
#include "server/ctl/export_http.h"
#include "server/ctl/metrics.h"

#define LISTEN "127.0.0.1:7079"
#define LOOK_S 10      /* between two looks at the certificate files */
#define REFUSED_MS 100 /* until a coordinator on this host, whose port nobody listens at, counts as away */

enum { STATUS, MEMBERS, JOBS, STATS, N_METHODS };
static const char *const methods[N_METHODS] = {"status", "members", "jobs", "stats"};

/* What a scrape is answered with. */
struct outcome {
  char *text; /* metrics; NULL: not asked for, or no memory */
  size_t len;
  struct zps_error error; /* why the coordinator did not answer; code ZPS_OK: it did */
};

/* Scrapes at the same time share one question. */
struct question {
  const struct zps_ctl_options *options;
  unsigned n_methods; /* of `methods`, the first ones */
  pthread_mutex_t lock;
  pthread_cond_t answered;
  bool is_under_way;
  uint64_t n_answers;
  struct outcome last;
  struct zps_client *client; /* of the thread that asks; NULL: not connected */
};

struct exporter {
  struct question metrics, readiness;
};

/* ------------------------------------------------------------ the coordinator */

static uint64_t left_ms(uint64_t until_ns) {
  const uint64_t now_ns = zps_clock_ns();
  return now_ns < until_ns ? (until_ns - now_ns) / ZPS_NS_PER_MS + 1 : 1;
}

static zps_err_t connect_to(struct question *question, uint64_t until_ns, struct zps_error *error) {
  const struct zps_client_handler handler = {.tls = question->options->tls, .refused_ms = REFUSED_MS};
  return zps_client_open(question->options->endpoint, "ctl", left_ms(until_ns), &handler, &question->client, error);
}

/* All calls are on their way at a time. The coordinator is there if it answers the first; another answer may be
 * missing. */
static zps_err_t call(struct question *question, uint64_t until_ns, zps_json *results[N_METHODS],
                      struct zps_error *error) {
  struct zps_client_order *orders[N_METHODS] = {NULL};
  zps_err_t err = ZPS_OK;
  for (unsigned i = 0; i < question->n_methods && !err; i++) {
    zps_json *const params = zps_json_object();
    err =
        zps_client_call_start(question->client, methods[i], i == JOBS ? zps_json_set_bool(params, "all", true) : params,
                              left_ms(until_ns), &orders[i], error);
  }
  for (unsigned i = 0; i < question->n_methods; i++) {
    if (!orders[i]) continue;
    struct zps_error own;
    const zps_err_t answer = zps_client_call_wait(question->client, orders[i], &results[i], &own);
    if (!err && answer && i == STATUS) err = zps_fail(error, answer, "%s", own.text);
  }
  return err;
}

static void forget(zps_json *results[N_METHODS]) {
  for (unsigned i = 0; i < N_METHODS; i++) {
    zps_json_unref(results[i]);
    results[i] = NULL;
  }
}

/* An old connection may be of a coordinator that has ended since: then a new one is tried. */
static zps_err_t ask(struct question *question, zps_json *results[N_METHODS], struct zps_error *error) {
  const uint64_t until_ns = zps_clock_ns() + question->options->timeout_ms * ZPS_NS_PER_MS;
  for (;;) {
    const bool is_old = question->client;
    zps_err_t err = is_old ? ZPS_OK : connect_to(question, until_ns, error);
    if (!err) err = call(question, until_ns, results, error);
    if (!err) return ZPS_OK;
    forget(results);
    zps_client_close(question->client);
    question->client = NULL;
    if (!is_old || err == ZPS_ERR_TIMEOUT) return err;
  }
}

static void print(struct outcome *outcome, zps_json *const results[N_METHODS], double seconds) {
  const uint64_t left_out = (results[MEMBERS] ? zps_json_opt_u64(results[MEMBERS], "left_out", 0) : 0) +
                            (results[STATS] ? zps_json_opt_u64(results[STATS], "left_out", 0) : 0);
  zps_json *const scrape = zps_ctl_metrics_scrape(!outcome->error.code, seconds, left_out);
  const struct zps_ctl_metrics_answers answers = {.status = results[STATUS],
                                                  .members = results[MEMBERS],
                                                  .jobs = results[JOBS],
                                                  .stats = results[STATS],
                                                  .scrape = scrape};
  FILE *const out = scrape ? open_memstream(&outcome->text, &outcome->len) : NULL;
  zps_err_t err = out ? zps_ctl_metrics_print(out, &answers) : ZPS_ERR_NOMEM;
  if (out && (ferror(out) || fclose(out) != 0)) err = ZPS_ERR_NOMEM;
  zps_json_unref(scrape);
  if (!err) return;
  free(outcome->text);
  outcome->text = NULL;
}

static struct outcome answer(struct question *question) {
  zps_json *results[N_METHODS] = {NULL};
  struct outcome outcome = {.text = NULL, .error = {.code = ZPS_OK}};
  const uint64_t begun_ns = zps_clock_ns();
  struct zps_error error;
  if (ask(question, results, &error)) outcome.error = error;
  const double seconds = (double)(zps_clock_ns() - begun_ns) / (double)ZPS_NS_PER_S;
  if (question->n_methods == N_METHODS) print(&outcome, results, seconds);
  forget(results);
  return outcome;
}

/* ------------------------------------------------------------ questions */

static void question_init(struct question *question, const struct zps_ctl_options *options, unsigned n_methods) {
  *question = (struct question){.options = options, .n_methods = n_methods};
  pthread_mutex_init(&question->lock, NULL);
  pthread_cond_init(&question->answered, NULL);
}

static void question_fini(struct question *question) {
  zps_client_close(question->client);
  free(question->last.text);
  pthread_cond_destroy(&question->answered);
  pthread_mutex_destroy(&question->lock);
}

/* The outcome of the question that is under way, else of a new one; its text is the caller's to free. */
static struct outcome share(struct question *question) {
  pthread_mutex_lock(&question->lock);
  if (question->is_under_way) {
    const uint64_t n = question->n_answers;
    while (question->n_answers == n) pthread_cond_wait(&question->answered, &question->lock);
  } else {
    question->is_under_way = true;
    pthread_mutex_unlock(&question->lock);
    const struct outcome outcome = answer(question);
    pthread_mutex_lock(&question->lock);
    free(question->last.text);
    question->last = outcome;
    question->is_under_way = false;
    question->n_answers++;
    pthread_cond_broadcast(&question->answered);
  }
  struct outcome copy = question->last;
  if (copy.text) copy.text = strdup(copy.text);
  pthread_mutex_unlock(&question->lock);
  return copy;
}

/* ------------------------------------------------------------ pages */

ZPS_PRINTF(3, 4) static void say(struct zps_ctl_page *page, unsigned status, const char *format, ...) {
  va_list args;
  va_start(args, format);
  const int len = vasprintf(&page->body, format, args);
  va_end(args);
  page->status = status;
  page->len = len < 0 ? 0 : (size_t)len;
  if (len < 0) page->body = NULL;
}

static void page(void *ctx, const char *path, bool is_trusted, struct zps_ctl_page *page_p) {
  struct exporter *const exporter = ctx;
  if (strcmp(path, "/livez") == 0) {
    say(page_p, 200, "ok\n");
  } else if (strcmp(path, "/readyz") == 0) {
    const struct outcome outcome = share(&exporter->readiness);
    if (!outcome.error.code)
      say(page_p, 200, "ok\n");
    else
      say(page_p, 503, "%s\n", is_trusted ? outcome.error.text : "the coordinator does not answer");
  } else if (strcmp(path, "/metrics") == 0 && !is_trusted) {
    say(page_p, 403,
        "your certificate may not read metrics: it must be an administrator's (zenps://admin/NAME), or named by "
        "--allow\n");
  } else if (strcmp(path, "/metrics") == 0) {
    const struct outcome outcome = share(&exporter->metrics);
    *page_p = (struct zps_ctl_page){.status = 200, .body = outcome.text, .len = outcome.len};
  }
}

/* ------------------------------------------------------------ the program */

/* Until SIGINT or SIGTERM. */
static void serve(struct zps_ctl_http *http, const sigset_t *signals) {
  const struct timespec look = {.tv_sec = LOOK_S};
  for (int got = 0; got != SIGINT && got != SIGTERM; got = sigtimedwait(signals, NULL, &look)) {
    struct zps_error error;
    bool changed = false;
    if (zps_ctl_http_reload(http, &changed, &error))
      fprintf(stderr, "zenpsctl: %s: the previous certificate stays in use\n", error.text);
    else if (changed)
      fprintf(stderr, "zenpsctl: the certificate files were read again\n");
  }
}

enum zps_exit zps_ctl_export(const struct zps_ctl_options *options, struct zps_error *error) {
  struct exporter exporter;
  struct zps_ctl_http *http = NULL;
  const struct zps_ctl_http_config config = {
      .listen = options->listen ? options->listen : LISTEN,
      .files = {.ca = options->tls_ca, .cert = options->tls_cert, .key = options->tls_key, .crl = options->tls_crl},
      .allow = options->allow,
      .ctx = &exporter,
      .page = page};
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, NULL); /* Threads inherit it: the signals are for this one. */
  question_init(&exporter.metrics, options, N_METHODS);
  question_init(&exporter.readiness, options, STATUS + 1);
  struct zps_error why;
  zps_err_t err = zps_ctl_http_start(&config, &http, &why);
  if (err) {
    zps_fail(error, err, "--listen: %.480s", why.text);
  } else {
    printf("listening on %s\n", zps_ctl_http_url(http));
    err = zps_ctl_flush(stdout, error);
  }
  if (!err) serve(http, &signals);
  zps_ctl_http_stop(http);
  question_fini(&exporter.metrics);
  question_fini(&exporter.readiness);
  return err == ZPS_ERR_INVALID ? ZPS_EXIT_USAGE : err ? ZPS_EXIT_FAILED : ZPS_EXIT_OK;
}
