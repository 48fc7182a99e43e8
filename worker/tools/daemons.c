#include "worker/tools/daemons.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "worker/tools/job_outcome.h"
#include "worker/tools/folder.h"
#include "worker/tools/launch.h"
#include "worker/tools/secure.h"
#include "worker/tools/strings.h"

enum { TURNS_MAX = 10 }; /* of a place: what ends that often has a reason to */

struct zps_daemons {
  struct zps_daemons_config config;
  struct zps_launch *launch;
  struct zps_folder folder; /* holds the files below, which go with it */
  struct zps_pass pass;
  char program[PATH_MAX];
  char address[300];       /* of the coordinator, as others reach it */
  bool is_up;              /* the first coordinator listened */
  unsigned *turns;         /* of each place: the servers that it has had */
  unsigned n_coordinators; /* started so far */
  uint64_t seen, seen_c;   /* zps_child.ended of the last server, and coordinator, whose end was seen */
};

/* zenpsd beside this program (installed: ../sbin; build tree: the same folder), else from PATH. */
static void find_zenpsd(struct zps_daemons *daemons) {
  if (daemons->config.zenpsd) {
    snprintf(daemons->program, sizeof daemons->program, "%s", daemons->config.zenpsd);
    return;
  }
  char self[PATH_MAX];
  const ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
  static const char *const beside[] = {"zenpsd", "../sbin/zenpsd", "../../sbin/zenpsd"};
  if (len > 0) {
    self[len] = '\0';
    char *slash = strrchr(self, '/');
    const int dir_len = slash ? (int)(slash - self) : 0;
    /* A libtool build runs from .libs; the daemon's wrapper script is one folder up. */
    const bool in_libs = dir_len >= 6 && strncmp(self + dir_len - 6, "/.libs", 6) == 0;
    for (unsigned i = 0; i < sizeof beside / sizeof beside[0]; i++) {
      snprintf(daemons->program, sizeof daemons->program, "%.*s/%s", in_libs ? dir_len - 6 : dir_len, self, beside[i]);
      if (access(daemons->program, X_OK) == 0) return;
    }
  }
  snprintf(daemons->program, sizeof daemons->program, "zenpsd");
}

/* Takes over `args`. */
static zps_err_t start(struct zps_daemons *daemons, enum zps_child_kind kind, unsigned number, const char *label,
                       struct zps_strings *args, const struct zps_child **child_p, struct zps_error *error) {
  static const char *const env[] = {NULL};
  const zps_err_t err = args->failed
                            ? zps_fail(error, ZPS_ERR_NOMEM, "out of memory starting %s", label)
                            : zps_launch_start(daemons->launch, kind, number, label, args->items, env, child_p, error);
  zps_strings_fini(args);
  return err;
}

static zps_err_t start_coordinator(struct zps_daemons *daemons, const struct zps_child **child_p,
                                   struct zps_error *error) {
  const struct zps_daemons_config *const config = &daemons->config;
  struct zps_strings args = {.n = 0};
  char turn[16] = "", label[40];
  if (++daemons->n_coordinators > 1) snprintf(turn, sizeof turn, "-%u", daemons->n_coordinators);
  snprintf(label, sizeof label, "coordinator%s", turn);
  zps_strings_add(&args, "%s", daemons->program);
  zps_strings_add(&args, "--log-level=%s", config->log_level);
  zps_strings_add(&args, "--roles=coordinator");
  zps_strings_add(&args, "--control-listen=%s", config->listen ? config->listen : daemons->address);
  zps_strings_add(&args, "--control-address-file=%s/address", daemons->folder.path);
  zps_strings_add(&args, "--coordinator-min-servers=%u", config->n_servers);
  zps_strings_add(&args, "--coordinator-server-loss=%s", config->goes_on ? "replay" : "fail");
  if (config->goes_on) zps_strings_add(&args, "--coordinator-state-dir=%s/state", daemons->folder.path);
  if (daemons->pass.key_file) zps_strings_add(&args, "--coordinator-token-key=%s", daemons->pass.key_file);
  return start(daemons, ZPS_CHILD_COORDINATOR, 0, label, &args, child_p, error);
}

static zps_err_t start_server(struct zps_daemons *daemons, unsigned place, const struct zps_child **child_p,
                              struct zps_error *error) {
  const struct zps_daemons_config *const config = &daemons->config;
  struct zps_strings args = {.n = 0};
  char turn[16] = "", label[40];
  if (++daemons->turns[place] > 1) snprintf(turn, sizeof turn, "-%u", daemons->turns[place]);
  snprintf(label, sizeof label, "server %u%s", place, turn);
  zps_strings_add(&args, "%s", daemons->program);
  zps_strings_add(&args, "--log-level=%s", config->log_level);
  zps_strings_add(&args, "--roles=server");
  zps_strings_add(&args, "--control-coordinator=%s", daemons->address);
  zps_strings_add(&args, "--server-name=server%u%s", place, turn);
  zps_strings_add(&args, "--fabric-provider=%s", config->provider);
  zps_strings_add(&args, "--server-index=%u", place);
  if (config->interface) zps_strings_add(&args, "--fabric-interface=%s", config->interface);
  return start(daemons, ZPS_CHILD_SERVER, place, label, &args, child_p, error);
}

/* ------------------------------------------------------------ those that end */

struct ending {
  char text[160]; /* "server 1 (pid 7) was killed by signal 9 (Killed)" */
};

static const char *ending_text(const struct zps_child *child, struct ending *ending) {
  char end[80];
  snprintf(ending->text, sizeof ending->text, "%s (pid %d) %s", child->label, (int)child->pid,
           zps_child_end_text(child, end, sizeof end));
  return ending->text;
}

static zps_err_t fail(const struct zps_child *child, struct zps_error *error) {
  struct ending ending;
  return zps_fail(error, ZPS_ERR_SERVER_LOST, "the %s", ending_text(child, &ending));
}

/* A daemon that is up ends by a signal, or well: another that exits could not start, and nor could the next. */
static bool could_not_start(const struct zps_child *child) {
  return WIFEXITED(child->status) && WEXITSTATUS(child->status) != 0;
}

static void replace(struct zps_daemons *daemons, const struct zps_child *lost, char *done, size_t size) {
  const struct zps_child *child;
  struct zps_error error;
  if (could_not_start(lost)) {
    snprintf(done, size, "no other is started in its place, since it could not start");
  } else if (daemons->turns[lost->number] >= TURNS_MAX) {
    snprintf(done, size, "no other is started in its place, which has had %u servers", daemons->turns[lost->number]);
  } else if (start_server(daemons, lost->number, &child, &error) != ZPS_OK) {
    snprintf(done, size, "no other is started in its place: %.160s", error.text);
  } else {
    snprintf(done, size, "started %s (pid %d) in its place", child->label, (int)child->pid);
  }
}

static zps_err_t lose(struct zps_daemons *daemons, const struct zps_child *lost, struct zps_error *error) {
  struct zps_fate fate;
  struct ending ending;
  char done[240];
  if (could_not_start(lost) && daemons->turns[lost->number] == 1) return fail(lost, error);
  ending_text(lost, &ending);
  zps_fate_ask(daemons->address, daemons->config.tls, &fate);
  if (fate.has_failed && !daemons->config.elastic)
    return zps_fail(error, ZPS_ERR_SERVER_LOST, "the %s; the job has failed: %.330s", ending.text, fate.text);
  replace(daemons, lost, done, sizeof done);
  if (zps_launch_running(daemons->launch, ZPS_CHILD_SERVER) == 0)
    return zps_fail(error, ZPS_ERR_SERVER_LOST, "the %s, the last one; %s", ending.text, done);
  zps_launch_say(daemons->launch, "zenpsrun: %s: %s%s; %s\n", ending.text,
                 fate.has_failed ? "the job has failed: " : "", fate.text, done);
  return ZPS_OK;
}

/* What it knew is in its folder, and rounds go on until there is another one. */
static zps_err_t lose_coordinator(struct zps_daemons *daemons, const struct zps_child *lost, struct zps_error *error) {
  const struct zps_child *child;
  struct ending ending;
  struct zps_error why;
  if (!daemons->config.goes_on || !daemons->is_up || could_not_start(lost) || daemons->n_coordinators >= TURNS_MAX)
    return fail(lost, error);
  ending_text(lost, &ending);
  const zps_err_t err = start_coordinator(daemons, &child, &why);
  if (err) return zps_fail(error, err, "the %s, and no other is started: %.300s", ending.text, why.text);
  zps_launch_say(daemons->launch, "zenpsrun: %s: rounds go on; started %s (pid %d) in its place\n", ending.text,
                 child->label, (int)child->pid);
  return ZPS_OK;
}

zps_err_t zps_daemons_check(struct zps_daemons *daemons, struct zps_error *error) {
  const struct zps_child *child;
  if (!daemons) return ZPS_OK;
  if (!daemons->config.goes_on && (child = zps_launch_first_failure(daemons->launch, ZPS_CHILD_SERVER, 0)))
    return fail(child, error);
  while ((child = zps_launch_first_failure(daemons->launch, ZPS_CHILD_COORDINATOR, daemons->seen_c))) {
    daemons->seen_c = child->ended;
    const zps_err_t err = lose_coordinator(daemons, child, error);
    if (err) return err;
  }
  while (daemons->config.goes_on && (child = zps_launch_next_end(daemons->launch, ZPS_CHILD_SERVER, daemons->seen))) {
    daemons->seen = child->ended;
    const zps_err_t err = lose(daemons, child, error);
    if (err) return err;
  }
  return ZPS_OK;
}

zps_err_t zps_daemons_await(struct zps_daemons *daemons, struct zps_error *error) {
  struct zps_fate fate;
  const uint64_t deadline_ns = zps_clock_ns() + ZPS_NS_PER_S;
  zps_err_t err = zps_daemons_check(daemons, error);
  if (err || !daemons) return err;
  zps_fate_ask(daemons->address, daemons->config.tls, &fate);
  while (fate.has_failed && !err && zps_clock_ns() < deadline_ns) {
    zps_launch_pump(daemons->launch, 10);
    err = zps_daemons_check(daemons, error);
  }
  return err;
}

/* ------------------------------------------------------------ the beginning and the end */

/* Whether the coordinator has written its address, which it does once it listens. */
static bool listens(const struct zps_daemons *daemons) {
  char path[PATH_MAX];
  struct stat st;
  snprintf(path, sizeof path, "%s/address", daemons->folder.path);
  return stat(path, &st) == 0 && st.st_size > 0;
}

/* The coordinator's, of which it has one where a job may outlive it. */
static zps_err_t make_state(struct zps_daemons *daemons, struct zps_error *error) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/state", daemons->folder.path);
  if (!daemons->config.goes_on || mkdir(path, 0700) == 0) return ZPS_OK;
  return zps_fail_errno(error, ZPS_ERR_IO, errno, "cannot create a folder for the coordinator's state (%s)", path);
}

static zps_err_t await_coordinator(struct zps_daemons *daemons, int *asked_to_stop_p, struct zps_error *error) {
  const uint64_t deadline_ns = zps_clock_ns() + daemons->config.start_timeout_ms * ZPS_NS_PER_MS;
  while (!listens(daemons)) {
    if ((*asked_to_stop_p = zps_launch_pump(daemons->launch, 5)) != 0)
      return zps_fail(error, ZPS_ERR_CANCELED, "stopped by signal %d", *asked_to_stop_p);
    const zps_err_t err = zps_daemons_check(daemons, error);
    if (err) return err;
    if (zps_clock_ns() > deadline_ns)
      return zps_fail(error, ZPS_ERR_TIMEOUT, "the coordinator did not come up within %llu ms (program %s)",
                      (unsigned long long)daemons->config.start_timeout_ms, daemons->program);
  }
  return ZPS_OK;
}

zps_err_t zps_daemons_start(struct zps_launch *launch, const struct zps_daemons_config *config,
                            struct zps_daemons **daemons_p, int *asked_to_stop_p, struct zps_error *error) {
  struct zps_daemons *const daemons = calloc(1, sizeof *daemons);
  unsigned *const turns = calloc(config->n_servers, sizeof *turns);
  zps_err_t err;
  if (!daemons || !turns) {
    free(daemons);
    free(turns);
    return zps_fail(error, ZPS_ERR_NOMEM, "out of memory starting %u servers", config->n_servers);
  }
  daemons->config = *config;
  daemons->launch = launch;
  daemons->turns = turns;
  err = zps_folder_make(&daemons->folder, error);
  if (!err) {
    find_zenpsd(daemons);
    if (config->reach)
      snprintf(daemons->address, sizeof daemons->address, "%s", config->reach);
    else
      zps_folder_socket(&daemons->folder, daemons->address, sizeof daemons->address);
    /* Where others are to join at a port that they know, they need a key file to join by. */
    err = config->listen && !config->token_key
              ? ZPS_OK
              : zps_pass_make(daemons->folder.path, config->token_key, &daemons->pass, error);
    if (!err) err = make_state(daemons, error);
    if (!err) err = start_coordinator(daemons, NULL, error);
    if (!err) err = await_coordinator(daemons, asked_to_stop_p, error);
    daemons->is_up = !err;
    for (unsigned i = 0; !err && i < config->n_servers; i++) err = start_server(daemons, i, NULL, error);
  }
  *daemons_p = daemons; /* the folder is in use until those that were started have ended */
  return err;
}

const char *zps_daemons_address(const struct zps_daemons *daemons) {
  return daemons->address;
}

const char *zps_daemons_token_file(const struct zps_daemons *daemons) {
  return daemons->pass.token_file;
}

void zps_daemons_destroy(struct zps_daemons *daemons) {
  if (!daemons) return;
  zps_folder_remove(&daemons->folder);
  free(daemons->turns);
  free(daemons);
}
