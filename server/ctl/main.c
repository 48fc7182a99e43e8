/* zenpsctl: asks a coordinator, or tells it to change something, and prints what it says. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "common/base/descriptors.h"
#include "common/control/addresses.h"
#include "server/ctl/ctl.h"

#define ZPS_LOG_COMPONENT "zenpsctl"
#include "common/base/log.h"

static const char *const formats[] = {"table", "json", NULL};
#define OPT(type, member, ...) ZPS_OPT_ROW(struct zps_ctl_options, type, member, __VA_ARGS__)
static const struct zps_opt opts[] = {
    OPT(ZPS_OPT_STRING, endpoint, .name = "endpoint", .short_flag = 'e', .def = "127.0.0.1:7077", .arg = "ADDRESS",
        .env_fallback = "ZENPS_COORDINATOR", .flags = ZPS_OPT_NO_FILE,
        .help = "the coordinator: HOST:PORT or unix:PATH; several, separated by commas: the one that leads"),
    OPT(ZPS_OPT_ENUM, output, .name = "output", .short_flag = 'o', .def = "table", .arg = "FORMAT", .values = formats,
        .flags = ZPS_OPT_FLAG_ONLY, .help = "table or json"),
    OPT(ZPS_OPT_DURATION, watch_ms, .name = "watch", .short_flag = 'w', .def = "0", .arg = "TIME",
        .flags = ZPS_OPT_FLAG_ONLY,
        .help = "repeat the command at this interval (--watch alone: every 2 s) until a signal; wait for a coordinator "
                "that goes away; redraw a terminal"),
    OPT(ZPS_OPT_DURATION, timeout_ms, .name = "timeout", .short_flag = 't', .def = "4s", .arg = "TIME",
        .flags = ZPS_OPT_FLAG_ONLY, .help = "time to connect, and to wait for an answer"),
    OPT(ZPS_OPT_BOOL, all, .name = "all", .short_flag = 'a', .flags = ZPS_OPT_FLAG_ONLY,
        .help = "jobs: also the last 256 ended jobs"),
    OPT(ZPS_OPT_BOOL, internal, .name = "internal", .flags = ZPS_OPT_FLAG_ONLY,
        .help = "tensors, stats: show zenps's own tensors, named @..., too"),
    OPT(ZPS_OPT_DURATION, wait_ms, .name = "wait", .def = "0", .arg = "TIME", .flags = ZPS_OPT_FLAG_ONLY,
        .help =
            "drain: wait until the server has no jobs; rebalance: until jobs have their servers; status 1 after this "
            "time (--wait alone: 5 min)"),
    OPT(ZPS_OPT_STRING, reason, .name = "reason", .arg = "TEXT", .flags = ZPS_OPT_FLAG_ONLY,
        .help = "drain, undrain, rebalance, kick: the reason, for the coordinator's log (audit:); 160 bytes at most"),
    OPT(ZPS_OPT_STRING, listen, .name = "listen", .arg = "ADDR:PORT", .flags = ZPS_OPT_FLAG_ONLY,
        .help =
            "export: the address to serve at (default: 127.0.0.1:7079); other hosts reach it with TLS only; port 0: a "
            "free one, which is printed"),
    OPT(ZPS_OPT_STRING, allow, .name = "allow", .arg = "URI,...", .flags = ZPS_OPT_FLAG_ONLY,
        .help = "export: certificates that may read the metrics, such as zenps://worker/prometheus, beside those of "
                "administrators"),
    OPT(ZPS_OPT_STRING, tls_ca, .name = "tls.ca", .arg = "FILE", .flags = ZPS_OPT_NO_FILE,
        .help = "certificates (PEM) of the cluster's authorities; with --tls-cert and --tls-key, connections use TLS"),
    OPT(ZPS_OPT_STRING, tls_cert, .name = "tls.cert", .arg = "FILE", .flags = ZPS_OPT_NO_FILE,
        .help = "your certificate (PEM): role admin for changes, any role for the rest"),
    OPT(ZPS_OPT_STRING, tls_key, .name = "tls.key", .arg = "FILE", .flags = ZPS_OPT_NO_FILE,
        .help = "its private key (PEM)"),
    OPT(ZPS_OPT_STRING, tls_crl, .name = "tls.crl", .arg = "FILE", .flags = ZPS_OPT_NO_FILE,
        .help = "revocation lists (PEM) of these authorities; coordinators with a revoked certificate are refused"),
    {0},
};

static const struct zps_opt_table table = {
    .program = "zenpsctl",
    .summary = "show a zenps coordinator, its servers and jobs, and move jobs between servers",
    .args = "COMMAND",
    .description =
        "Options may stand before or after the command. plan, state, token and certs come first: their options follow "
        "them.\n"
        "Ctrl-C ends --watch like any command, with status 130 in a shell.",
    .opts = opts,
    .config_size = sizeof(struct zps_ctl_options),
    .min_args = 1,
    .max_args = 3,
    .exits = ZPS_EXITS_CLIENT,
    .command_help = zps_ctl_help,
};

static zps_err_t check(const struct zps_ctl_options *options, const struct zps_ctl_verb *verb,
                       struct zps_error *error) {
  struct zps_addresses addresses;
  struct zps_error why;
  if (zps_addresses_parse(options->endpoint, &addresses, &why))
    return zps_fail(error, ZPS_ERR_INVALID, "%s: %.440s", zps_config_label("endpoint"), why.text);
  if (options->timeout_ms == 0) return zps_fail(error, ZPS_ERR_INVALID, "--timeout must be more than 0");
  if (options->all && !(verb->takes & ZPS_CTL_ALL))
    return zps_fail(error, ZPS_ERR_INVALID, "--all is for jobs, not for %s", verb->name);
  if (options->internal && !(verb->takes & ZPS_CTL_INTERNAL))
    return zps_fail(error, ZPS_ERR_INVALID, "--internal is for tensors and stats, not for %s", verb->name);
  if (options->wait_ms && !(verb->takes & ZPS_CTL_WAIT))
    return zps_fail(error, ZPS_ERR_INVALID, "--wait is for drain and rebalance, not for %s", verb->name);
  if (options->reason && !verb->change)
    return zps_fail(error, ZPS_ERR_INVALID, "--reason is for drain, undrain, rebalance and kick, not for %s",
                    verb->name);
  if (options->watch_ms && (verb->change || verb->serve))
    return zps_fail(error, ZPS_ERR_INVALID, "--watch is for commands that ask, not for %s", verb->name);
  if ((options->listen || options->allow) && !(verb->takes & ZPS_CTL_LISTEN))
    return zps_fail(error, ZPS_ERR_INVALID, "--listen and --allow are for export, not for %s", verb->name);
  if (options->allow && !options->tls_cert)
    return zps_fail(error, ZPS_ERR_INVALID, "--allow names certificates: it takes --tls-ca, --tls-cert and --tls-key");
  if (!verb->method)
    return zps_fail(error, ZPS_ERR_INVALID, "%s comes first: zenpsctl %s [OPTION...]", verb->name, verb->name);
  return ZPS_OK;
}

static zps_err_t check_args(const struct zps_ctl_verb *verb, const struct zps_config_rest *rest,
                            struct zps_error *error) {
  const struct zps_ctl_change *const change = verb->change;
  const unsigned n = (unsigned)rest->argc - 1, most = change ? change->max_args : verb->takes_job;
  if (change && n < change->min_args) return zps_fail(error, ZPS_ERR_INVALID, "%s wants %s", verb->name, change->wants);
  if (n <= most) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_INVALID, "unexpected argument '%.80s': %s takes %s", rest->argv[1 + most], verb->name,
                  change            ? change->args
                  : verb->takes_job ? "[JOB]"
                                    : "none");
}

static enum zps_exit help(const struct zps_config_rest *rest, struct zps_error *error) {
  const zps_err_t err = rest->argc > 1 ? zps_ctl_help(rest->argv[1], error) : ZPS_OK;
  if (rest->argc == 1) {
    static char program[] = "zenpsctl", flag[] = "--help", *argv[] = {program, flag, NULL};
    struct zps_ctl_options none;
    return zps_config_load(&table, 2, argv, NULL, &none, NULL, error) ? ZPS_EXIT_FAILED : ZPS_EXIT_OK;
  }
  return err ? ZPS_EXIT_USAGE : ZPS_EXIT_OK;
}

static zps_err_t open_tls(struct zps_ctl_options *options, struct zps_error *error) {
  const struct zps_tls_files files = {
      .ca = options->tls_ca, .cert = options->tls_cert, .key = options->tls_key, .crl = options->tls_crl};
  struct zps_error why;
  if (!zps_tls_files_any(&files)) return ZPS_OK;
  const zps_err_t err = zps_tls_create(&files, &options->tls, &why);
  return err ? zps_fail(error, err, "%s, %s and %s: %.400s", zps_config_label("tls.ca"), zps_config_label("tls.cert"),
                        zps_config_label("tls.key"), why.text)
             : ZPS_OK;
}

static enum zps_exit run(struct zps_ctl_options *options, const struct zps_config_rest *rest, struct zps_error *error) {
  const struct zps_ctl_verb *verb;
  if (zps_ctl_verb_find(rest->argv[0], &verb, error)) return ZPS_EXIT_USAGE;
  if (strcmp(verb->name, "help") == 0) return help(rest, error);
  const struct zps_ctl_change *const change = verb->change;
  const unsigned n_args = (unsigned)rest->argc - 1;
  if (check_args(verb, rest, error) || check(options, verb, error) || open_tls(options, error)) return ZPS_EXIT_USAGE;
  if (change) return zps_ctl_change(options, verb, rest->argv + 1, n_args, error);
  if (verb->serve) return verb->serve(options, error);
  options->job = n_args > 0 ? rest->argv[1] : NULL;
  return zps_ctl_ask(options, verb, error);
}

/* A command that asks no coordinator, and has options of its own. */
static enum zps_exit run_apart(zps_err_t (*run_it)(int argc, char **argv, FILE *out, struct zps_error *error), int argc,
                               char **argv) {
  struct zps_error error;
  const zps_err_t err = run_it(argc, argv, stdout, &error);
  if (!err) return ZPS_EXIT_OK;
  fprintf(stderr, "zenpsctl %s: %s\n", argv[0], error.text);
  return err == ZPS_ERR_INVALID ? ZPS_EXIT_USAGE : ZPS_EXIT_FAILED;
}

static bool is_apart(const char *name, const struct zps_ctl_verb **verb_p) {
  return zps_ctl_verb_find(name, verb_p, NULL) == ZPS_OK && (*verb_p)->run;
}

int main(int argc, char **argv) {
  static char watch[] = "--watch=2s", wait[] = "--wait=5m";
  struct zps_ctl_options options;
  struct zps_config_rest rest;
  struct zps_error error = {.code = ZPS_OK};
  const struct zps_ctl_verb *apart;
  zps_descriptors_fill();
  signal(SIGPIPE, SIG_IGN);
  zps_descriptors_raise();
  zps_log_set_level(ZPS_LOG_ERROR); /* what goes wrong is said once, at the end */
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--watch") == 0) argv[i] = watch;
    if (strcmp(argv[i], "--wait") == 0) argv[i] = wait;
  }
  if (argc > 1 && is_apart(argv[1], &apart)) return run_apart(apart->run, argc - 1, argv + 1);
  if (zps_config_load(&table, argc, argv, NULL, &options, &rest, &error)) {
    fprintf(stderr, "zenpsctl: %s\n", error.text);
    return ZPS_EXIT_USAGE;
  }
  const enum zps_exit exit = rest.exit_now ? ZPS_EXIT_OK : run(&options, &rest, &error);
  if (exit != ZPS_EXIT_OK && error.code) fprintf(stderr, "zenpsctl: %s\n", error.text);
  zps_tls_unref(options.tls);
  zps_config_fini(&table, &options);
  return exit;
}
