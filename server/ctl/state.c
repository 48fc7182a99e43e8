#include "server/ctl/ctl.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/base/exit.h"
#include "common/control/json.h"
#include "server/coordinator/records.h"
#include "server/state/journal.h"

#define KINDS_MAX 32u

struct options {
  bool json;
};

static const struct zps_opt opts[] = {
    ZPS_OPT_ROW(struct options, ZPS_OPT_BOOL, json, .name = "json", .flags = ZPS_OPT_FLAG_ONLY, .help = "print JSON"),
    {0},
};

static const struct zps_opt_table table = {
    .program = "zenpsctl state",
    .summary = "show what a coordinator's journal holds, and whether it is whole",
    .args = "check FOLDER",
    .description =
        "FOLDER is the folder in coordinator.state_dir; nothing in it is changed. Status 0: a coordinator can start "
        "from the journal. It is whole, or has a torn tail: an incomplete record that no server or rank knows, and "
        "that the next start cuts off. While a coordinator runs, the record it is writing looks like a torn tail. "
        "Status 1: there is no journal, a record is damaged, or a record does not fit those before it, for example a "
        "duplicate. No command repairs a journal: servers and ranks know what its records say, and without one of them "
        "sums could be wrong. To start without the old jobs, move the folder away.",
    .opts = opts,
    .config_size = sizeof(struct options),
    .min_args = 2,
    .max_args = 2,
    .exits = ZPS_EXITS_LOCAL,
};

/* ------------------------------------------------------------ records by kind */

struct kinds {
  struct zps_replay replay;
  unsigned n;
  struct {
    char name[32];
    uint64_t count;
  } of[KINDS_MAX];
};

static zps_err_t count(void *ctx, const char *text, size_t len) {
  struct kinds *kinds = ctx;
  const char *what = "";
  zps_json *record = NULL;
  if (zps_json_parse(text, len, &record, NULL) || zps_json_get_str(record, "what", &what, NULL)) what = "?";
  unsigned i = 0;
  while (i < kinds->n && strcmp(kinds->of[i].name, what) != 0) i++;
  if (i == kinds->n && i < KINDS_MAX) snprintf(kinds->of[kinds->n++].name, sizeof kinds->of[0].name, "%s", what);
  if (i < KINDS_MAX) kinds->of[i].count++;
  zps_json_unref(record);
  /* Records behind one that does not fit are counted, and not replayed. */
  return kinds->replay.error.code || zps_replay_take(&kinds->replay, text, len) == ZPS_OK ||
                 kinds->replay.error.code != ZPS_ERR_NOMEM
             ? ZPS_OK
             : ZPS_ERR_NOMEM;
}

/* ------------------------------------------------------------ a membership that nobody is in */

static void on_act(void *ctx, const struct zps_action *action) {
  (void)ctx, (void)action;
}

static void on_note(void *ctx, const struct zps_member_note *note) {
  (void)ctx, (void)note;
}

static uint64_t on_random(void *ctx) {
  return ++*(uint64_t *)ctx;
}

static zps_err_t replay_begin(struct zps_replay *replay, uint64_t *random, struct zps_error *error) {
  const struct zps_members_config config = {.min_servers = 1,
                                            .replays = true,
                                            .max_jobs = ZPS_JOBS_MAX,
                                            .max_tensors = ZPS_TENSORS_MAX,
                                            .ctx = random,
                                            .act = on_act,
                                            .random = on_random,
                                            .note = on_note};
  *replay = (struct zps_replay){.now_ns = zps_clock_ns()};
  const zps_err_t err = zps_members_create(&config, &replay->members);
  return err ? zps_fail(error, err, "no memory to look through a journal") : ZPS_OK;
}

/* ------------------------------------------------------------ the file */

static zps_err_t read_journal(const char *path, char **data_p, size_t *len_p, struct zps_error *error) {
  FILE *const in = fopen(path, "rbe");
  size_t cap = 1 << 16, len = 0;
  char *data = malloc(cap);
  if (!in || !data) {
    const zps_err_t err = zps_fail_errno(error, ZPS_ERR_IO, errno, "%.400s: cannot open it", path);
    if (in) fclose(in);
    free(data);
    return err;
  }
  for (size_t n; (n = fread(data + len, 1, cap - len - 1, in)) > 0;) {
    len += n;
    if (cap - len > 1) continue;
    char *const grown = realloc(data, 2 * cap);
    if (!grown) break;
    data = grown;
    cap *= 2;
  }
  const bool is_whole = feof(in) && !ferror(in);
  fclose(in);
  if (!is_whole) {
    free(data);
    return zps_fail(error, ZPS_ERR_IO, "%.400s: cannot read it", path);
  }
  *data_p = data;
  *len_p = len;
  return ZPS_OK;
}

/* ------------------------------------------------------------ what is told */

static const char *name_of(const struct zps_journal_scan *scan, const struct kinds *kinds, size_t len) {
  return scan->damaged ? "damaged" : kinds->replay.error.code ? "unfit" : scan->whole < len ? "torn" : "whole";
}

static zps_json *report(const char *path, size_t len, const struct zps_journal_scan *scan, const struct kinds *kinds) {
  zps_json *by_kind = zps_json_object();
  for (unsigned i = 0; i < kinds->n; i++) by_kind = zps_json_set_u64(by_kind, kinds->of[i].name, kinds->of[i].count);
  zps_json *row = zps_json_set_str(zps_json_object(), "journal", path);
  row = zps_json_set_str(row, "state", name_of(scan, kinds, len));
  row = zps_json_set_u64(row, "bytes", len);
  row = zps_json_set_u64(row, "whole_bytes", scan->whole);
  row = zps_json_set_u64(row, "records", scan->n_records);
  row = zps_json_set_u64(row, "records_behind", scan->damaged ? scan->n_after : 0);
  return zps_json_set(row, "kinds", by_kind);
}

static void print(FILE *out, const char *path, size_t len, const struct zps_journal_scan *scan,
                  const struct kinds *kinds) {
  fprintf(out, "%s: %s, %zu bytes, %llu records", path, name_of(scan, kinds, len), len,
          (unsigned long long)scan->n_records);
  for (unsigned i = 0; i < kinds->n; i++)
    fprintf(out, "%s%llu %s", i ? ", " : ": ", (unsigned long long)kinds->of[i].count, kinds->of[i].name);
  fprintf(out, "\n");
  if (!scan->damaged && scan->whole < len)
    fprintf(out, "a torn tail of %zu bytes, from byte %zu on, is cut off at the next start\n", len - scan->whole,
            scan->whole);
}

static zps_err_t tell(const struct options *options, FILE *out, const char *path, size_t len,
                      const struct zps_journal_scan *scan, const struct kinds *kinds, struct zps_error *error) {
  if (options->json) {
    zps_json *const row = report(path, len, scan, kinds);
    const zps_err_t err = zps_ctl_print_json(out, row, false);
    zps_json_unref(row);
    if (err) return zps_fail(error, err, "no memory for the report");
  } else {
    print(out, path, len, scan, kinds);
  }
  return zps_ctl_flush(out, error);
}

static zps_err_t check(const struct options *options, const char *folder, FILE *out, struct zps_error *error) {
  char path[4096], *data = NULL;
  size_t len = 0;
  struct kinds kinds = {.n = 0};
  uint64_t random = 0;
  struct zps_journal_scan scan;
  if (snprintf(path, sizeof path, "%s/journal", folder) >= (int)sizeof path)
    return zps_fail(error, ZPS_ERR_INVALID, "the path of the folder has %zu bytes: must have at most %zu",
                    strlen(folder), sizeof path - sizeof "/journal");
  zps_err_t err = read_journal(path, &data, &len, error);
  if (!err) err = replay_begin(&kinds.replay, &random, error);
  if (err) {
    free(data);
    return err;
  }
  err = zps_journal_scan(data, len, count, &kinds, &scan);
  if (err) err = zps_fail(error, err, "%.400s: no memory to look through it", path);
  if (!err) err = tell(options, out, path, len, &scan, &kinds, error);
  if (!err && scan.damaged)
    err = zps_fail(error, ZPS_ERR_IO,
                   "the record at byte %zu (number %llu) is damaged, and %llu whole ones follow from byte %zu on: no "
                   "coordinator starts from this journal",
                   scan.whole, (unsigned long long)scan.n_records, (unsigned long long)scan.n_after, scan.next);
  else if (!err && kinds.replay.error.code)
    err = zps_fail(error, kinds.replay.error.code, "%.440s: no coordinator starts from this journal",
                   kinds.replay.error.text);
  zps_members_destroy(kinds.replay.members);
  free(data);
  return err;
}

static zps_err_t run(const void *options, const struct zps_config_rest *rest, FILE *out, struct zps_error *error) {
  if (strcmp(rest->argv[0], "check") == 0) return check(options, rest->argv[1], out, error);
  return zps_fail(error, ZPS_ERR_INVALID, "there is no '%.80s': zenpsctl state check FOLDER", rest->argv[0]);
}

zps_err_t zps_ctl_state_run(int argc, char **argv, FILE *out, struct zps_error *error) {
  static const struct zps_ctl_apart apart = {&table, run};
  struct options options;
  return zps_ctl_apart_run(&apart, argc, argv, &options, out, error);
}
