/* zenpsctl: asks a coordinator, and prints what it says. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/base/exit.h"
#include "common/base/version.h"
#include "common/control/client.h"
#include "config.h"
#include "server/ctl/derive.h"
#include "server/ctl/plan.h"
#include "server/ctl/table.h"

#define ZPS_LOG_COMPONENT "zenpsctl"
#include "common/base/log.h"

enum format { FORMAT_TABLE, FORMAT_JSON };

struct options {
  char *endpoint;
  int output;
  uint64_t watch_ms, timeout_ms;
};

static const char *const formats[] = {"table", "json", NULL};
#define ZPS_NO_ENV_OR_FILE (ZPS_OPT_NO_FILE | ZPS_OPT_NO_ENV)
static const struct zps_opt opts[] = {
    {.name = "endpoint",
     .short_flag = 'e',
     .type = ZPS_OPT_STRING,
     .offset = offsetof(struct options, endpoint),
     .def = "127.0.0.1:7077",
     .arg = "ADDRESS",
     .env_fallback = "ZENPS_COORDINATOR",
     .flags = ZPS_OPT_NO_FILE,
     .help = "the coordinator: HOST:PORT, or unix:PATH"},
    {.name = "output",
     .short_flag = 'o',
     .type = ZPS_OPT_ENUM,
     .offset = offsetof(struct options, output),
     .def = "table",
     .arg = "FORMAT",
     .values = formats,
     .flags = ZPS_NO_ENV_OR_FILE,
     .help = "table or json"},
    {.name = "watch",
     .short_flag = 'w',
     .type = ZPS_OPT_DURATION,
     .offset = offsetof(struct options, watch_ms),
     .def = "0",
     .arg = "TIME",
     .flags = ZPS_NO_ENV_OR_FILE,
     .help = "ask again and again, so often (--watch alone: every 2 s); stats are of the time in between"},
    {.name = "timeout",
     .short_flag = 't',
     .type = ZPS_OPT_DURATION,
     .offset = offsetof(struct options, timeout_ms),
     .def = "4s",
     .arg = "TIME",
     .flags = ZPS_NO_ENV_OR_FILE,
     .help = "how long to try to connect, and to wait for an answer"},
    {0},
};

static const struct zps_opt_table table = {
    .program = "zenpsctl",
    .summary = "look at a zenps coordinator, its servers and jobs",
    .args = "status|members|jobs|tensors|stats|version|plan [OPTION...]",
    .description =
        "status: the coordinator. members: servers and ranks. jobs, tensors: what runs. stats: per server and tensor: "
        "rounds, "
        "bytes, density, imbalance, time per phase; per rank: how late its gradients come. version: of zenpsctl and "
        "the "
        "coordinator. plan: what each scheme would cost on a cluster, which asks nobody; it comes first and has "
        "options "
        "of its own (zenpsctl plan --help).",
    .opts = opts,
    .config_size = sizeof(struct options),
    .min_args = 1,
    .max_args = 1,
    .exits = ZPS_EXITS_CLIENT,
};

static const char *const nouns[] = {"status", "members", "jobs", "tensors", "stats", "version"};

static bool is_noun(const char *word) {
  for (unsigned i = 0; i < sizeof nouns / sizeof nouns[0]; i++) {
    if (strcmp(nouns[i], word) == 0) return true;
  }
  return false;
}

static zps_err_t print_json(const zps_json *result, bool one_line) {
  char *text = one_line ? zps_json_dump(result) : zps_json_dump_pretty(result);
  if (!text) return ZPS_ERR_NOMEM;
  puts(text);
  free(text);
  return ZPS_OK;
}

static zps_err_t print_time(void) {
  const time_t now = time(NULL);
  char text[40];
  struct tm parts;
  if (!localtime_r(&now, &parts) || !strftime(text, sizeof text, "%F %T", &parts)) return ZPS_ERR_INTERNAL;
  printf("%s\n", text);
  return ZPS_OK;
}

/* Not a table: two lines for people, one object for programs. */
static zps_err_t print_version(const struct options *options, const zps_json *status) {
  const zps_json *row = zps_json_at(zps_json_get(status, "coordinator"), 0);
  const char *theirs = zps_json_opt_str(row, "version", "?");
  const unsigned long long protocol = zps_json_opt_u64(row, "protocol", 0);
  if (options->output == FORMAT_TABLE) {
    printf("zenpsctl     %s, protocol %u\n", PACKAGE_VERSION, ZPS_PROTOCOL_VERSION);
    printf("coordinator  %s, protocol %llu\n", theirs, protocol);
    return ZPS_OK;
  }
  zps_json *result = zps_json_set_str(zps_json_object(), "zenpsctl", PACKAGE_VERSION);
  result = zps_json_set_u64(result, "protocol", ZPS_PROTOCOL_VERSION);
  result = zps_json_set_str(result, "coordinator", theirs);
  result = zps_json_set_u64(result, "coordinator_protocol", protocol);
  const zps_err_t err = result ? print_json(result, false) : ZPS_ERR_NOMEM;
  zps_json_unref(result);
  return err;
}

struct sample {
  zps_json *result;
  uint64_t at_ns;
};

static zps_err_t print_sample(const struct options *options, const char *noun, const struct sample *before,
                              const struct sample *now) {
  if (strcmp(noun, "version") == 0) return print_version(options, now->result);
  zps_json *derived = NULL;
  if (strcmp(noun, "stats") == 0) {
    derived = zps_ctl_derive(now->result, before->result, (double)(now->at_ns - before->at_ns) / (double)ZPS_NS_PER_S);
    if (!derived) return ZPS_ERR_NOMEM;
  }
  const zps_json *shown = derived ? derived : now->result;
  zps_err_t err = ZPS_OK;
  if (options->output == FORMAT_JSON) {
    err = print_json(shown, options->watch_ms > 0);
  } else {
    if (options->watch_ms) err = print_time();
    if (!err) err = zps_ctl_table_print(stdout, noun, shown);
    if (options->watch_ms) putchar('\n');
  }
  zps_json_unref(derived);
  return err;
}

static zps_err_t ask(struct zps_client *client, const struct options *options, const char *noun,
                     struct zps_error *error) {
  const char *method = strcmp(noun, "version") == 0 ? "status" : noun;
  struct sample before = {.result = NULL}, now;
  zps_err_t err;
  for (;;) {
    now.at_ns = zps_clock_ns();
    err = zps_client_call(client, method, zps_json_object(), options->timeout_ms, &now.result, error);
    if (err) break;
    err = print_sample(options, noun, &before, &now);
    zps_json_unref(before.result);
    before = now;
    if (!err && (fflush(stdout) != 0 || ferror(stdout))) err = ZPS_ERR_IO;
    if (err) zps_fail(error, err, "cannot print the answer: %s", zps_err_str(err));
    if (err || !options->watch_ms) break;
    const struct timespec pause = {.tv_sec = (time_t)(options->watch_ms / 1000),
                                   .tv_nsec = (long)(options->watch_ms % 1000 * ZPS_NS_PER_MS)};
    nanosleep(&pause, NULL);
  }
  zps_json_unref(before.result);
  return err;
}

/* What an answer that is an error means: the coordinator refused, unless it was not there to. */
static enum zps_exit exit_of_call(zps_err_t code) {
  const enum zps_exit exit = zps_exit_of(code);
  return exit == ZPS_EXIT_UNREACHABLE ? exit : ZPS_EXIT_REFUSED;
}

static enum zps_exit run(const struct options *options, const char *noun, struct zps_error *error) {
  static const struct zps_client_handler handler = {.ctx = NULL};
  struct zps_client *client;
  if (!is_noun(noun)) {
    zps_fail(error, ZPS_ERR_INVALID,
             "there is no '%s'; there are status, members, jobs, tensors, stats, version, and plan, which comes first",
             noun);
    return ZPS_EXIT_USAGE;
  }
  if (options->timeout_ms == 0) {
    zps_fail(error, ZPS_ERR_INVALID, "--timeout must be more than 0");
    return ZPS_EXIT_USAGE;
  }
  zps_err_t err = zps_client_open(options->endpoint, "ctl", options->timeout_ms, &handler, &client, error);
  if (err) return exit_of_call(err);
  err = ask(client, options, noun, error);
  zps_client_close(client);
  return err ? exit_of_call(err) : ZPS_EXIT_OK;
}

int main(int argc, char **argv) {
  static char watch[] = "--watch=2s";
  struct options options;
  struct zps_config_rest rest;
  struct zps_error error;
  signal(SIGPIPE, SIG_IGN);
  zps_log_set_level(ZPS_LOG_ERROR); /* what goes wrong is said once, at the end */
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--watch") == 0) argv[i] = watch;
  }
  if (argc > 1 && strcmp(argv[1], "plan") == 0) {
    const zps_err_t planned = zps_ctl_plan_run(argc - 1, argv + 1, stdout, &error);
    if (!planned) return ZPS_EXIT_OK;
    fprintf(stderr, "zenpsctl plan: %s\n", error.text);
    return planned == ZPS_ERR_INVALID ? ZPS_EXIT_USAGE : ZPS_EXIT_FAILED;
  }
  if (zps_config_load(&table, argc, argv, NULL, &options, &rest, &error)) {
    fprintf(stderr, "zenpsctl: %s\n", error.text);
    return ZPS_EXIT_USAGE;
  }
  const enum zps_exit exit = rest.exit_now ? ZPS_EXIT_OK : run(&options, rest.argv[0], &error);
  if (exit != ZPS_EXIT_OK) fprintf(stderr, "zenpsctl: %s\n", error.text);
  zps_config_fini(&table, &options);
  return exit;
}
