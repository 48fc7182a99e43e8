#include "server/ctl/certs.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/config.h"
#include "common/base/exit.h"
#include "common/tls/store.h"
#include "server/ctl/ctl.h"

#define DAY_S 86400LL
#define FILE_MAX (256u << 10)

struct options {
  char *coordinators, *servers, *workers, *admins, *runs;
  uint64_t days;
};

#define OPT(type_, field, ...) \
  { .type = (type_), .offset = offsetof(struct options, field), .flags = ZPS_OPT_NO_FILE | ZPS_OPT_NO_ENV, __VA_ARGS__ }
static const struct zps_opt opts[] = {
    OPT(ZPS_OPT_STRING, coordinators, .name = "coordinators", .arg = "NAME,...", .def = "coordinator",
        .help = "init: whose certificates let them be a coordinator, and a server in the same process"),
    OPT(ZPS_OPT_STRING, servers, .name = "servers", .arg = "NAME,...",
        .help = "init: those of servers, by server.name, of which the host's name is the default; HEAD* is one for all "
                "servers whose names begin so"),
    OPT(ZPS_OPT_STRING, workers, .name = "workers", .arg = "NAME,...", .def = "worker",
        .help = "init: those of ranks; all ranks of a team, say, may have one"),
    OPT(ZPS_OPT_STRING, admins, .name = "admins", .arg = "NAME,...", .def = "admin",
        .help = "init: those of who may drain servers, and may all that ranks may"),
    OPT(ZPS_OPT_STRING, runs, .name = "runs", .arg = "NAME,...",
        .help = "init: those of all processes of a run that zenpsrun starts on several hosts"),
    OPT(ZPS_OPT_UINT, days, .name = "days", .arg = "N", .def = "365", .min = 1, .max = 3650,
        .help = "init: how long the certificates are valid; a new authority is for 10 years"),
    {0},
};

static const struct zps_opt_table table = {
    .program = "zenpsctl certs",
    .summary = "make the certificates by which the processes of a cluster know each other, and show what one says",
    .args = "init DIR | show FILE...",
    .description =
        "'init' makes an authority in DIR (ca.pem and ca.key), unless there is one, and by it a certificate and a "
        "private key for each name: coordinator-NAME.pem and .key, server-NAME, worker-NAME, admin-NAME, run-NAME. "
        "Names are made of letters, digits, '-', '.', '_' and '~'. Certificates that are there are made anew, for as "
        "many days "
        "as asked for, so that 'init' also renews them; who has read the old ones goes on until they expire.\n"
        "Each process gets ca.pem and the two files of its own: tls.ca, tls.cert and tls.key of zenpsd and zenpsctl, "
        "ZENPS_TLS_CA, ZENPS_TLS_CERT and ZENPS_TLS_KEY of ranks. ca.key makes certificates, and belongs to none of "
        "them: keep it apart.\n"
        "A certificate says what its owner may be. A server registers as NAME of its certificate (zenps://server/NAME) "
        "and as no other; one that several share, as the pods of a StatefulSet do, has a NAME that ends in '*', and a "
        "file with '+' in its place: --servers='zenps-server-*' makes server-zenps-server-+.pem, and '*' one for any "
        "server. Who may be a coordinator may be any server, too. Other NAMEs are for people.\n"
        "'show' prints subject, issuer, role and dates of the first certificate in each file.",
    .opts = opts,
    .config_size = sizeof(struct options),
    .min_args = 2,
    .max_args = 64,
    .exits = ZPS_EXITS_LOCAL,
};

/* One after another of `names`, which have commas in between. */
static zps_err_t make_each(const struct zps_certs_store *store, const char *word, unsigned roles, char *names,
                           long long until_s, FILE *out, struct zps_error *error) {
  char *rest = NULL;
  zps_err_t err = ZPS_OK;
  for (char *name = names ? strtok_r(names, ", ", &rest) : NULL; name && !err; name = strtok_r(NULL, ", ", &rest)) {
    char file[200];
    snprintf(file, sizeof file, "%s-%.100s", word, name);
    char *const star = strchr(file, '*'); /* names have no '+': this file is no other certificate's */
    if (star) *star = '+';
    err = zps_certs_store_make(store, roles, name, file, until_s, error);
    if (!err) fprintf(out, "%s/%s.pem and .key\n", store->folder, file);
  }
  return err;
}

static zps_err_t init(struct options *options, const char *folder, FILE *out, struct zps_error *error) {
  struct zps_certs_store store;
  bool is_new;
  zps_err_t err = zps_certs_store_open(folder, &store, &is_new, error);
  if (err) return err;
  const long long until_s = (long long)time(NULL) + (long long)options->days * DAY_S;
  fprintf(out, "%s/ca.pem and .key: %s authority\n", folder, is_new ? "a new" : "the");
  err = make_each(&store, "coordinator", ZPS_TLS_COORDINATOR | ZPS_TLS_SERVER, options->coordinators, until_s, out,
                  error);
  if (!err) err = make_each(&store, "server", ZPS_TLS_SERVER, options->servers, until_s, out, error);
  if (!err) err = make_each(&store, "worker", ZPS_TLS_WORKER, options->workers, until_s, out, error);
  if (!err) err = make_each(&store, "admin", ZPS_TLS_ADMIN, options->admins, until_s, out, error);
  const unsigned run = ZPS_TLS_COORDINATOR | ZPS_TLS_SERVER | ZPS_TLS_WORKER;
  if (!err) err = make_each(&store, "run", run, options->runs, until_s, out, error);
  zps_certs_store_close(&store);
  return err ? err : zps_ctl_flush(out, error);
}

static zps_err_t show(const char *path, FILE *out, struct zps_error *error) {
  struct zps_certs_facts facts;
  struct zps_error why;
  char *text = malloc(FILE_MAX);
  if (!text) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for %.300s", path);
  zps_err_t err = zps_certs_file_read(path, text, FILE_MAX, error);
  if (!err && zps_certs_look(text, &facts, &why))
    err = zps_fail(error, ZPS_ERR_INVALID, "%.300s: %.150s", path, why.text);
  free(text);
  if (err) return err;
  fprintf(out, "file: %s\nsubject: %s\nissuer: %s\nrole: %s\nvalid from: %s\nvalid until: %s%s\n", path, facts.subject,
          facts.issuer, facts.roles[0] ? facts.roles : "none", facts.from, facts.until,
          facts.has_expired ? " (it has expired)" : "");
  return zps_ctl_flush(out, error);
}

static zps_err_t run(struct options *options, const struct zps_config_rest *rest, FILE *out, struct zps_error *error) {
  const char *const verb = rest->argv[0];
  zps_err_t err = ZPS_OK;
  if (strcmp(verb, "init") == 0 && rest->argc == 2) return init(options, rest->argv[1], out, error);
  if (strcmp(verb, "init") == 0)
    return zps_fail(error, ZPS_ERR_INVALID, "init takes one folder, and '%.80s' is another word", rest->argv[2]);
  if (strcmp(verb, "show") != 0)
    return zps_fail(error, ZPS_ERR_INVALID, "there is no '%.80s': zenpsctl certs %s", verb, table.args);
  for (int i = 1; i < rest->argc && !err; i++) {
    if (i > 1) fputc('\n', out);
    err = show(rest->argv[i], out, error);
  }
  return err;
}

zps_err_t zps_ctl_certs_run(int argc, char **argv, FILE *out, struct zps_error *error) {
  struct options options;
  struct zps_config_rest rest;
  zps_err_t err = zps_config_load(&table, argc, argv, NULL, &options, &rest, error);
  if (err) return err;
  if (!rest.exit_now) err = run(&options, &rest, out, error);
  zps_config_fini(&table, &options);
  return err;
}
