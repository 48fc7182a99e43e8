/* One answer of the coordinator, as a table or as JSON. */
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/version.h"
#include "config.h"
#include "server/ctl/ctl.h"
#include "server/ctl/derive.h"

zps_err_t zps_ctl_print_json(FILE *out, const zps_json *value, bool one_line) {
  char *const text = !value ? NULL : one_line ? zps_json_dump(value) : zps_json_dump_pretty(value);
  if (!text) return ZPS_ERR_NOMEM;
  fprintf(out, "%s\n", text);
  free(text);
  return ZPS_OK;
}

/* Not a table: two lines for people, one object for programs. */
static zps_err_t print_version(FILE *out, const struct zps_ctl_options *options, const zps_json *status) {
  const zps_json *row = zps_json_at(zps_json_get(status, "coordinator"), 0);
  const char *theirs = zps_json_opt_str(row, "version", "?");
  const unsigned long long protocol = zps_json_opt_u64(row, "protocol", 0);
  if (options->output == ZPS_CTL_TABLE) {
    fprintf(out, "zenpsctl     %s, protocol %u\n", PACKAGE_VERSION, ZPS_PROTOCOL_VERSION);
    fprintf(out, "coordinator  %s, protocol %llu\n", theirs, protocol);
    return ZPS_OK;
  }
  zps_json *result = zps_json_set_str(zps_json_object(), "zenpsctl", PACKAGE_VERSION);
  result = zps_json_set_u64(result, "protocol", ZPS_PROTOCOL_VERSION);
  result = zps_json_set_str(result, "coordinator", theirs);
  result = zps_json_set_u64(result, "coordinator_protocol", protocol);
  const zps_err_t err = zps_ctl_print_json(out, result, options->watch_ms > 0);
  zps_json_unref(result);
  return err;
}

/* Leaves out the rows of zenps's own tensors: their names begin with '@'. */
static zps_json *without_internal(const zps_json *result) {
  static const char *const tables[] = {"tensors", "shards", "lags"};
  zps_json *shown = zps_json_set_all(zps_json_object(), result);
  for (unsigned t = 0; t < sizeof tables / sizeof tables[0]; t++) {
    const zps_json *const all = zps_json_get(result, tables[t]);
    zps_json *rows = all ? zps_json_array() : NULL;
    for (size_t i = 0; i < zps_json_array_len(all); i++)
      if (zps_json_opt_str(zps_json_at(all, i), "name", "")[0] != '@')
        rows = zps_json_append(rows, zps_json_ref(zps_json_at(all, i)));
    if (all) shown = zps_json_set(shown, tables[t], rows);
  }
  return shown;
}

static int older_first(const void *a, const void *b) {
  const uint64_t one = zps_json_opt_u64(*(const zps_json *const *)a, "age_ms", 0);
  const uint64_t other = zps_json_opt_u64(*(const zps_json *const *)b, "age_ms", 0);
  return (other > one) - (other < one);
}

/* The rounds in flight of a job, or of all, the oldest first. */
static zps_json *rounds_of(const zps_json *result, const char *job) {
  const zps_json *const all = zps_json_get(result, "rounds");
  const size_t n = zps_json_array_len(all);
  const zps_json **const sorted = malloc((n + 1) * sizeof *sorted);
  if (!sorted) return NULL;
  for (size_t i = 0; i < n; i++) sorted[i] = zps_json_at(all, i);
  qsort(sorted, n, sizeof *sorted, older_first);
  zps_json *rows = zps_json_array();
  for (size_t i = 0; i < n; i++)
    if (!job || strcmp(zps_json_opt_str(sorted[i], "job", ""), job) == 0)
      rows = zps_json_append(rows, zps_json_ref(sorted[i]));
  free(sorted);
  zps_json *shown = zps_json_set(zps_json_object(), "rounds", rows);
  const uint64_t left_out = zps_json_opt_u64(result, "left_out", 0);
  return left_out ? zps_json_set_u64(shown, "left_out", left_out) : shown;
}

zps_json *zps_ctl_take(const struct zps_ctl_verb *verb, zps_json *result, const struct zps_ctl_sample *before,
                       uint64_t at_ns) {
  if (strcmp(verb->name, "stats") != 0) return result;
  zps_json *const derived =
      zps_ctl_derive(result, before->result, (double)(at_ns - before->at_ns) / (double)ZPS_NS_PER_S);
  zps_json_unref(result);
  return derived;
}

/* The part of an answer that is shown: a new value. */
static zps_json *view(const struct zps_ctl_options *options, const struct zps_ctl_verb *verb,
                      const struct zps_ctl_sample *now) {
  zps_json *shown = zps_json_ref(now->result);
  if (strcmp(verb->name, "rounds") == 0) {
    zps_json_unref(shown);
    return rounds_of(now->result, options->job);
  }
  if (!shown || options->internal || !(verb->takes & ZPS_CTL_INTERNAL)) return shown;
  zps_json *visible = without_internal(shown);
  zps_json_unref(shown);
  return visible;
}

zps_err_t zps_ctl_show(FILE *out, const struct zps_ctl_options *options, const struct zps_ctl_verb *verb,
                       const struct zps_ctl_sample *now) {
  if (strcmp(verb->name, "version") == 0) return print_version(out, options, now->result);
  if (verb->gather && options->output == ZPS_CTL_TABLE) {
    zps_ctl_why_print(out, now->result, strcmp(verb->name, "health") == 0);
    return ZPS_OK;
  }
  zps_json *shown = view(options, verb, now);
  if (!shown) return ZPS_ERR_NOMEM;
  const zps_err_t err = options->output == ZPS_CTL_JSON ? zps_ctl_print_json(out, shown, options->watch_ms > 0)
                                                        : zps_ctl_table_print(out, verb->name, shown);
  zps_json_unref(shown);
  return err;
}
