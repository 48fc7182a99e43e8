/* certs: an authority and certificates for a cluster, and what a certificate says. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/config.h"
#include "common/base/enlarge.h"
#include "common/base/exit.h"
#include "common/tls/store.h"
#include "server/ctl/ctl.h"

#define DAY_S 86400LL
#define FILE_MAX (256u << 10)

struct options {
  char *coordinators, *servers, *workers, *admins, *runs;
  uint64_t days;
  int output; /* enum zps_ctl_format */
};

static const char *const formats[] = {"table", "json", NULL};

#define OPT(type, member, ...) ZPS_OPT_ROW(struct options, type, member, .flags = ZPS_OPT_FLAG_ONLY, __VA_ARGS__)
static const struct zps_opt opts[] = {
    OPT(ZPS_OPT_STRING, coordinators, .name = "coordinators", .arg = "NAME,...",
        .help = "init: names for certificates of coordinators, which may also be a server in the same process "
                "(default: coordinator, of a new authority)"),
    OPT(ZPS_OPT_STRING, servers, .name = "servers", .arg = "NAME,...",
        .help = "init: names for certificates of servers, equal to server.name (default: host name); HEAD*: one "
                "certificate for all servers with this prefix"),
    OPT(ZPS_OPT_STRING, workers, .name = "workers", .arg = "NAME,...",
        .help = "init: names for certificates of ranks; all ranks of a team may share one (default: worker, of a new "
                "authority)"),
    OPT(ZPS_OPT_STRING, admins, .name = "admins", .arg = "NAME,...",
        .help = "init: names for certificates of administrators: they may drain servers, and do all that ranks may "
                "(default: admin, of a new authority)"),
    OPT(ZPS_OPT_STRING, runs, .name = "runs", .arg = "NAME,...",
        .help = "init: names for certificates of runs, each for all processes that zenpsrun starts on several hosts"),
    OPT(ZPS_OPT_UINT, days, .name = "days", .arg = "N", .def = "365", .min = 1, .max = 3650,
        .help = "init: days until the certificates expire; a new authority is valid for 10 years"),
    OPT(ZPS_OPT_ENUM, output, .name = "output", .short_flag = 'o', .arg = "FORMAT", .def = "table", .values = formats,
        .help = "show: table: lines for people; json: one object with an array"),
    {0},
};

static const struct zps_opt_table table = {
    .program = "zenpsctl certs",
    .summary = "make and revoke the certificates of a cluster's processes, and show what one says",
    .args = "init DIR | revoke DIR [NAME...] | show FILE...",
    .description =
        "'init' makes an authority in DIR (ca.pem and ca.key), unless DIR has one. With it 'init' makes a certificate "
        "and a private key for each name: coordinator-NAME.pem and .key, server-NAME, worker-NAME, admin-NAME, "
        "run-NAME. Names have letters, digits, '-', '.', '_' and '~'. If DIR has an authority, 'init' makes only the "
        "named certificates: --servers=NAME adds a server. 'init' renews a named certificate that exists, and says so. "
        "Processes with the old one keep it until they read the new one, or it expires. Other files are listed and "
        "stay as they are.\n"
        "Each process gets ca.pem and its own two files. zenpsd and zenpsctl take them as tls.ca, tls.cert and "
        "tls.key, ranks as ZENPS_TLS_CA, ZENPS_TLS_CERT and ZENPS_TLS_KEY. ca.key makes certificates. No process needs "
        "it: keep it apart.\n"
        "A certificate fixes the role of its owner. A server registers as NAME of its certificate "
        "(zenps://server/NAME), and under no other name. Several servers, for example the pods of a StatefulSet, can "
        "share a certificate: its NAME ends in '*', and its file has '+' in that place. --servers='zenps-server-*' "
        "makes server-zenps-server-+.pem, and '*' is for any server. A coordinator's certificate is also valid for any "
        "server. In other roles NAME is only for people. Programs beside zenps, such as "
        "Prometheus, know a server by NAME too, if it is a host's name or address (zenpsctl export).\n"
        "'revoke' adds certificates to the authority's revocation list, DIR/crl.pem, and makes the list if there is "
        "none. NAME is worker-w for DIR/worker-w.pem, or the path of a certificate (with '/' or .pem in it), for "
        "example of one that was renewed since. The list is valid as long as the authority. Give it to every process: "
        "tls.crl, ZENPS_TLS_CRL of ranks. A process with the list refuses the owner of a revoked certificate. It ends "
        "connections with such a certificate when it reads the list again. tls.crl must have a list of each authority "
        "in tls.ca, one after the other.\n"
        "'show' prints subject, issuer, role and dates of the first certificate in each file. Its status is 1 if one "
        "has expired.",
    .opts = opts,
    .config_size = sizeof(struct options),
    .min_args = 2,
    .max_args = 64,
    .exits = ZPS_EXITS_LOCAL,
};

/* One role's certificates: `word` begins their files' names. */
struct kind {
  const char *word;
  unsigned roles;
  const char *names; /* with commas in between; NULL: none */
};

typedef zps_err_t each_fn(void *ctx, const struct kind *kind, const char *name, struct zps_error *error);

static zps_err_t for_each(const struct kind *kinds, unsigned n_kinds, each_fn *each, void *ctx,
                          struct zps_error *error) {
  zps_err_t err = ZPS_OK;
  for (unsigned i = 0; i < n_kinds && !err; i++) {
    char *const names = strdup(kinds[i].names ? kinds[i].names : ""), *rest = NULL;
    if (!names) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for the names of certificates");
    for (char *name = strtok_r(names, ", ", &rest); name && !err; name = strtok_r(NULL, ", ", &rest))
      err = each(ctx, &kinds[i], name, error);
    free(names);
  }
  return err;
}

static zps_err_t check_name(void *ctx, const struct kind *kind, const char *name, struct zps_error *error) {
  (void)ctx;
  return zps_certs_check_name(kind->roles, name, error);
}

struct making {
  struct zps_certs_store store;
  long long until_s;
  FILE *out;
  struct made {
    char file[200];
  } * made;
  size_t n_made;
};

/* The end of the certificate in this file of the folder, as text; "" where there is none. */
static const char *end_of(const char *folder, const char *file, char buf[40]) {
  char path[PATH_MAX], *const text = malloc(FILE_MAX);
  struct zps_certs_facts facts;
  struct zps_error error;
  buf[0] = '\0';
  if (text && snprintf(path, sizeof path, "%s/%s.pem", folder, file) < (int)sizeof path &&
      zps_certs_file_read(path, text, FILE_MAX, &error) == ZPS_OK && zps_certs_look(text, &facts, &error) == ZPS_OK)
    snprintf(buf, 40, "%s", facts.until);
  free(text);
  return buf;
}

static zps_err_t make_one(void *ctx, const struct kind *kind, const char *name, struct zps_error *error) {
  struct making *const making = ctx;
  char until[40];
  if (!zps_enlarge(&making->made, making->n_made + 1, sizeof *making->made))
    return zps_fail(error, ZPS_ERR_NOMEM, "no memory for the names of certificates");
  char *const file = making->made[making->n_made].file;
  snprintf(file, sizeof making->made->file, "%s-%.100s", kind->word, name);
  char *const star = strchr(file, '*'); /* names have no '+': this file is no other certificate's */
  if (star) *star = '+';
  end_of(making->store.folder, file, until);
  const zps_err_t err = zps_certs_store_make(&making->store, kind->roles, name, file, making->until_s, error);
  if (err) return err;
  making->n_made++;
  fprintf(making->out, "%s/%s.pem and .key", making->store.folder, file);
  fprintf(making->out, until[0] ? ": renewed, in place of one that is valid until %s\n" : "\n", until);
  return ZPS_OK;
}

static bool was_made(const struct making *making, const char *file) {
  for (size_t i = 0; i < making->n_made; i++)
    if (strcmp(making->made[i].file, file) == 0) return true;
  return false;
}

/* The certificates of the folder that this call has not made. */
static zps_err_t list_others(const struct making *making, struct zps_error *error) {
  struct dirent **entries;
  const int n = scandir(making->store.folder, &entries, NULL, alphasort);
  if (n < 0) return zps_fail_errno(error, ZPS_ERR_IO, errno, "%.300s: cannot be listed", making->store.folder);
  for (int i = 0; i < n; i++) {
    char *const file = entries[i]->d_name, *const suffix = strrchr(file, '.');
    if (suffix && strcmp(suffix, ".pem") == 0 && strcmp(file, "ca.pem") != 0) {
      char until[40];
      *suffix = '\0';
      if (!was_made(making, file) && end_of(making->store.folder, file, until)[0])
        fprintf(making->out, "%s/%s.pem: left alone, valid until %s\n", making->store.folder, file, until);
    }
    free(entries[i]);
  }
  free(entries);
  return ZPS_OK;
}

static zps_err_t init(const struct options *options, const char *folder, FILE *out, struct zps_error *error) {
  struct kind kinds[] = {{"coordinator", ZPS_TLS_COORDINATOR | ZPS_TLS_SERVER, options->coordinators},
                         {"server", ZPS_TLS_SERVER, options->servers},
                         {"worker", ZPS_TLS_WORKER, options->workers},
                         {"admin", ZPS_TLS_ADMIN, options->admins},
                         {"run", ZPS_TLS_COORDINATOR | ZPS_TLS_SERVER | ZPS_TLS_WORKER, options->runs}};
  const unsigned n_kinds = sizeof kinds / sizeof kinds[0];
  struct making making = {.until_s = (long long)time(NULL) + (long long)options->days * DAY_S, .out = out};
  bool is_new;
  zps_err_t err = for_each(kinds, n_kinds, check_name, NULL, error); /* before anything is made */
  if (!err) err = zps_certs_store_open(folder, &making.store, &is_new, error);
  if (err) return err;
  fprintf(out, "%s/ca.pem and .key: %s authority\n", folder, is_new ? "a new" : "the");
  /* A new cluster needs one of each. */
  if (is_new && !kinds[0].names) kinds[0].names = "coordinator";
  if (is_new && !kinds[2].names) kinds[2].names = "worker";
  if (is_new && !kinds[3].names) kinds[3].names = "admin";
  err = for_each(kinds, n_kinds, make_one, &making, error);
  if (!err) err = list_others(&making, error);
  if (!err && making.n_made == 0)
    fprintf(out, "nothing was made: name a certificate to make, for example --servers=NAME\n");
  free(making.made);
  zps_certs_store_close(&making.store);
  return err ? err : zps_ctl_flush(out, error);
}

static zps_err_t revoke_certs(const char *folder, char *const *names, unsigned n, FILE *out, struct zps_error *error) {
  char path[PATH_MAX];
  struct zps_certs_store store;
  struct zps_certs_list list;
  bool is_new;
  if (snprintf(path, sizeof path, "%s/ca.key", folder) >= (int)sizeof path || access(path, F_OK) < 0)
    return zps_fail(error, ZPS_ERR_INVALID, "%.300s has no authority (ca.pem and ca.key), which signs its list",
                    folder);
  zps_err_t err = zps_certs_store_open(folder, &store, &is_new, error);
  if (err) return err;
  err = zps_certs_store_revoke(&store, names, n, &list, error);
  zps_certs_store_close(&store);
  if (err) return err;
  fprintf(out, "%s/crl.pem: %u certificates are revoked, valid until %s\n", folder, list.n, list.until);
  fprintf(out,
          "give it to every process: tls.crl, ZENPS_TLS_CRL of ranks; processes that have it read the new one by "
          "themselves, daemons at once at a reload\n");
  return zps_ctl_flush(out, error);
}

static zps_err_t look(const char *path, struct zps_certs_facts *facts_p, struct zps_error *error) {
  struct zps_error why;
  char *text = malloc(FILE_MAX);
  if (!text) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for %.300s", path);
  zps_err_t err = zps_certs_file_read(path, text, FILE_MAX, error);
  if (!err && zps_certs_look(text, facts_p, &why))
    err = zps_fail(error, ZPS_ERR_INVALID, "%.300s: %.150s", path, why.text);
  free(text);
  return err;
}

static zps_json *row_of(const char *path, const struct zps_certs_facts *facts) {
  zps_json *row = zps_json_set_str(zps_json_object(), "file", path);
  row = zps_json_set_str(row, "subject", facts->subject);
  row = zps_json_set_str(row, "issuer", facts->issuer);
  row = zps_json_set_str(row, "role", facts->roles[0] ? facts->roles : "none");
  row = zps_json_set_str(row, "valid_from", facts->from);
  row = zps_json_set_str(row, "valid_until", facts->until);
  row = zps_json_set_u64(row, "ends", (uint64_t)facts->until_s);
  return zps_json_set_bool(row, "has_expired", facts->has_expired);
}

static void print_facts(FILE *out, const char *path, const struct zps_certs_facts *facts) {
  fprintf(out, "file: %s\nsubject: %s\nissuer: %s\nrole: %s\nvalid from: %s\nvalid until: %s%s\n", path, facts->subject,
          facts->issuer, facts->roles[0] ? facts->roles : "none", facts->from, facts->until,
          facts->has_expired ? " (it has expired)" : "");
}

static zps_err_t show(const struct options *options, char *const *paths, int n, FILE *out, struct zps_error *error) {
  zps_json *rows = zps_json_array();
  const char *expired = NULL;
  zps_err_t err = ZPS_OK;
  for (int i = 0; i < n && !err; i++) {
    struct zps_certs_facts facts;
    err = look(paths[i], &facts, error);
    if (err) break;
    if (facts.has_expired && !expired) expired = paths[i];
    if (options->output == ZPS_CTL_JSON) {
      rows = zps_json_append(rows, row_of(paths[i], &facts));
    } else {
      if (i > 0) fputc('\n', out);
      print_facts(out, paths[i], &facts);
    }
  }
  zps_json *const result = zps_json_set(zps_json_object(), "certificates", rows);
  if (!err && options->output == ZPS_CTL_JSON && zps_ctl_print_json(out, result, false))
    err = zps_fail(error, ZPS_ERR_NOMEM, "no memory for the answer");
  zps_json_unref(result);
  if (!err) err = zps_ctl_flush(out, error);
  return err || !expired ? err : zps_fail(error, ZPS_ERR_REFUSED, "%.300s has expired", expired);
}

static zps_err_t run(const void *options, const struct zps_config_rest *rest, FILE *out, struct zps_error *error) {
  const char *const verb = rest->argv[0];
  if (strcmp(verb, "init") == 0 && rest->argc == 2) return init(options, rest->argv[1], out, error);
  if (strcmp(verb, "init") == 0)
    return zps_fail(error, ZPS_ERR_INVALID, "init takes one folder, and '%.80s' is another word", rest->argv[2]);
  if (strcmp(verb, "revoke") == 0)
    return revoke_certs(rest->argv[1], rest->argv + 2, (unsigned)rest->argc - 2, out, error);
  if (strcmp(verb, "show") != 0)
    return zps_fail(error, ZPS_ERR_INVALID, "there is no '%.80s': zenpsctl certs %s", verb, table.args);
  return show(options, rest->argv + 1, rest->argc - 1, out, error);
}

zps_err_t zps_ctl_certs_run(int argc, char **argv, FILE *out, struct zps_error *error) {
  static const struct zps_ctl_apart apart = {&table, run};
  struct options options;
  return zps_ctl_apart_run(&apart, argc, argv, &options, out, error);
}
