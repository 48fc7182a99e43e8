/* token: makes and shows keys and tokens. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "common/base/config.h"
#include "common/base/exit.h"
#include "common/base/secret.h"
#include "common/token/token.h"
#include "server/ctl/ctl.h"

#define TTL_MAX_MS (10ull * 365 * 24 * 3600 * 1000)

struct options {
  uint64_t ttl_ms;
  char *out;
};

#define OPT(type, member, ...) ZPS_OPT_ROW(struct options, type, member, .flags = ZPS_OPT_FLAG_ONLY, __VA_ARGS__)
static const struct zps_opt opts[] = {
    OPT(ZPS_OPT_DURATION, ttl_ms, .name = "ttl", .arg = "TIME", .def = "0s", .max = (int64_t)TTL_MAX_MS,
        .help = "make: how long the token lets ranks in, for example 24h; 0s: as long as its key is in the "
                "coordinator's file. Ranks in a job stay in it"),
    OPT(ZPS_OPT_STRING, out, .name = "out", .arg = "FILE",
        .help = "make: a new file for the token, readable only by its owner (default: print the token)"),
    {0},
};

static const struct zps_opt_table table = {
    .program = "zenpsctl token",
    .summary = "make the key of a coordinator, and tokens that let ranks into jobs",
    .args = "key KEYFILE | make KEYFILE JOB | show FILE",
    .description =
        "'key' writes a new key to KEYFILE, which must not exist. A coordinator with this file as "
        "coordinator.token_key lets in only ranks with a token made from it. A rank's ZENPS_TOKEN_FILE names its "
        "token's file. 'make' makes a token for the job JOB; PREFIX* is for all jobs with this prefix, and * for all "
        "jobs. 'show' prints a token's job and expiry, and does not check its key.\n"
        "No command needs a coordinator, and there is no list of tokens: whoever can read KEYFILE can make tokens. To "
        "change the key, put a new one in the first line of the coordinator's file and reload it (SIGHUP). Make new "
        "tokens, then remove the old line and reload again.",
    .opts = opts,
    .config_size = sizeof(struct options),
    .min_args = 2,
    .max_args = 3,
    .exits = ZPS_EXITS_LOCAL,
};

/* UTC, or "never". */
static const char *time_text(uint64_t at_s, char *buf, size_t size) {
  const time_t at = (time_t)at_s;
  struct tm tm;
  if (at_s == 0 || !gmtime_r(&at, &tm) || strftime(buf, size, "%Y-%m-%dT%H:%M:%SZ", &tm) == 0)
    snprintf(buf, size, "never");
  return buf;
}

static zps_err_t make(const struct options *options, const char *key_file, const char *job, FILE *out,
                      struct zps_error *error) {
  struct zps_token_keys keys;
  char token[ZPS_TOKEN_SIZE + 1], text[40];
  const uint64_t expires_s = options->ttl_ms ? (uint64_t)time(NULL) + (options->ttl_ms + 999) / 1000 : 0;
  zps_err_t err = zps_token_keys_read(key_file, &keys, error);
  if (!err) err = zps_token_make(&keys, job, expires_s, token, error);
  if (err) return err;
  strcat(token, "\n");
  if (!options->out) {
    fputs(token, out);
    return zps_ctl_flush(out, error);
  }
  err = zps_private_create(options->out, "token file", token, error);
  if (err) return err;
  fprintf(out, "%s: a token for job %s, expires: %s\n", options->out, job, time_text(expires_s, text, sizeof text));
  return zps_ctl_flush(out, error);
}

static zps_err_t show(const char *path, FILE *out, struct zps_error *error) {
  char text[ZPS_TOKEN_SIZE + 1], when[40];
  struct zps_token token;
  struct zps_error why;
  zps_err_t err = zps_private_read(path, "token file", text, sizeof text, error);
  if (err) return err;
  text[strcspn(text, "\r\n")] = '\0';
  err = zps_token_parse(text, &token, &why);
  if (err) return zps_fail(error, err, "token file %.300s: %.150s", path, why.text);
  const bool is_over = token.expires_s && token.expires_s <= (uint64_t)time(NULL);
  fprintf(out, "job: %s\nexpires: %s%s\n", token.job, time_text(token.expires_s, when, sizeof when),
          is_over ? " (it has)" : "");
  return zps_ctl_flush(out, error);
}

static zps_err_t key(const char *path, FILE *out, struct zps_error *error) {
  const zps_err_t err = zps_token_key_create(path, error);
  if (err) return err;
  fprintf(out, "%s: a new key, for coordinator.token_key\n", path);
  return zps_ctl_flush(out, error);
}

static zps_err_t run(const void *ctx, const struct zps_config_rest *rest, FILE *out, struct zps_error *error) {
  const struct options *const options = ctx;
  const char *const verb = rest->argv[0];
  const bool makes = strcmp(verb, "make") == 0;
  if (!makes && strcmp(verb, "key") != 0 && strcmp(verb, "show") != 0)
    return zps_fail(error, ZPS_ERR_INVALID, "there is no '%.80s': zenpsctl token %s", verb, table.args);
  if (!makes && (options->ttl_ms || options->out))
    return zps_fail(error, ZPS_ERR_INVALID, "--ttl and --out are for make, not for %s", verb);
  if (rest->argc != (makes ? 3 : 2))
    return zps_fail(error, ZPS_ERR_INVALID, "%s takes %s", verb, makes ? "KEYFILE and JOB" : "one file");
  if (makes) return make(options, rest->argv[1], rest->argv[2], out, error);
  return strcmp(verb, "key") == 0 ? key(rest->argv[1], out, error) : show(rest->argv[1], out, error);
}

zps_err_t zps_ctl_token_run(int argc, char **argv, FILE *out, struct zps_error *error) {
  static const struct zps_ctl_apart apart = {&table, run};
  struct options options;
  return zps_ctl_apart_run(&apart, argc, argv, &options, out, error);
}
