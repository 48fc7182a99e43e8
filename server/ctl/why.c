/*
 * `why`: what is wrong with a cluster, found in the answers of its coordinator. A finding has a grade, its evidence and
 * a remedy. zps_ctl_why() is pure: it takes the answers, and asks nobody.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/text.h"
#include "common/control/client.h"
#include "server/ctl/ctl.h"
#include "server/ctl/why_impl.h"

#define GAP_MS 2000u /* between the two answers that rates are counted from */
#define SHOWN_MAX 10u

struct zps_finding *zps_why_found(struct why *why, enum zps_finding_grade grade, double weight, const char *format,
                                  ...) {
  static struct zps_finding none;
  struct zps_finding *const finding = why->n < ZPS_FINDINGS_MAX ? &why->findings[why->n++] : &none;
  va_list args;
  *finding = (struct zps_finding){.grade = grade, .weight = weight};
  va_start(args, format);
  vsnprintf(finding->evidence, sizeof finding->evidence, format, args);
  va_end(args);
  return finding;
}

void zps_why_remedy(struct zps_finding *finding, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(finding->remedy, sizeof finding->remedy, format, args);
  va_end(args);
}

const char *zps_why_quoted(const char *name, char buf[ZPS_QUOTED_MAX]) {
  static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  char *to = buf;
  if (*name && name[strspn(name, plain)] == '\0' && *name != '-') return name;
  *to++ = '\'';
  for (; *name && to + 6 < buf + ZPS_QUOTED_MAX; name++) {
    if (*name == '\'') to = stpcpy(to, "'\\'");
    *to++ = *name;
  }
  strcpy(to, "'");
  return buf;
}

/* ------------------------------------------------------------ the answer */

static int worse_first(const void *a, const void *b) {
  const struct zps_finding *const one = a, *const other = b;
  if (one->grade != other->grade) return (int)other->grade - (int)one->grade;
  return (other->weight > one->weight) - (other->weight < one->weight);
}

zps_json *zps_ctl_why(const struct zps_ctl_why_answers *answers, const char *job) {
  static const char *const grades[] = {"ok", "warning", "critical"};
  struct why *const why = calloc(1, sizeof *why);
  if (!why) return NULL;
  why->answers = answers;
  why->job = job;
  zps_why_rounds(why);
  zps_why_servers(why);
  zps_why_barred(why);
  zps_why_late(why);
  zps_why_slow_servers(why);
  zps_why_failed(why);
  zps_why_failing(why);
  zps_why_ends(why);
  zps_why_versions(why);
  zps_why_clocks(why);
  qsort(why->findings, why->n, sizeof why->findings[0], worse_first);
  zps_json *findings = zps_json_array();
  for (unsigned i = 0; i < why->n && i < SHOWN_MAX; i++) {
    zps_json *row = zps_json_set_str(zps_json_object(), "grade", grades[why->findings[i].grade]);
    row = zps_json_set_str(row, "evidence", why->findings[i].evidence);
    findings = zps_json_append(findings, zps_json_set_str(row, "remedy", why->findings[i].remedy));
  }
  zps_json *result = zps_json_set_str(zps_json_object(), "state", grades[why->n ? why->findings[0].grade : 0]);
  result = zps_json_set(result, "findings", findings);
  if (why->n > SHOWN_MAX) result = zps_json_set_u64(result, "left_out", why->n - SHOWN_MAX);
  free(why);
  return result;
}

static zps_err_t ask(struct zps_client *client, const struct zps_ctl_options *options, const char *method,
                     zps_json *params, zps_json **result_p, struct zps_error *error) {
  return zps_client_call(client, method, params, options->timeout_ms, result_p, error);
}

zps_err_t zps_ctl_why_gather(struct zps_client *client, const struct zps_ctl_options *options, zps_json **result_p,
                             struct zps_error *error) {
  zps_json *before = NULL, *now = NULL, *status = NULL, *members = NULL, *jobs = NULL;
  const uint64_t begun_ns = zps_clock_ns();
  zps_err_t err = ask(client, options, "stats", zps_json_object(), &before, error);
  if (!err) err = ask(client, options, "status", zps_json_object(), &status, error);
  if (!err) nanosleep(&(struct timespec){.tv_sec = GAP_MS / 1000}, NULL);
  const uint64_t again_ns = zps_clock_ns();
  if (!err) err = ask(client, options, "stats", zps_json_object(), &now, error);
  if (!err) err = ask(client, options, "members", zps_json_object(), &members, error);
  if (!err) err = ask(client, options, "jobs", zps_json_set_bool(zps_json_object(), "all", true), &jobs, error);
  if (!err) {
    const struct zps_ctl_why_answers answers = {.status = status,
                                                .members = members,
                                                .jobs = jobs,
                                                .before = before,
                                                .now = now,
                                                .seconds = (double)(again_ns - begun_ns) / (double)ZPS_NS_PER_S,
                                                .now_s = time(NULL)};
    *result_p = zps_ctl_why(&answers, options->job);
    if (!*result_p) err = zps_fail(error, ZPS_ERR_NOMEM, "no memory for the findings");
  }
  zps_json_unref(before);
  zps_json_unref(now);
  zps_json_unref(status);
  zps_json_unref(members);
  zps_json_unref(jobs);
  return err;
}

void zps_ctl_why_print(FILE *out, const zps_json *result, bool is_brief) {
  const zps_json *const findings = zps_json_get(result, "findings");
  const size_t n = zps_json_array_len(findings);
  if (n == 0) fputs("ok: nothing is wrong\n", out);
  for (size_t i = 0; i < n && (i == 0 || !is_brief); i++) {
    const zps_json *const row = zps_json_at(findings, i);
    char line[1500];
    snprintf(line, sizeof line, "%s: %s. %s%s", text(row, "grade"), text(row, "evidence"),
             is_brief ? "" : "Remedy: ", text(row, "remedy"));
    zps_text_sanitize(line, strlen(line));
    fprintf(out, "%s\n", line);
  }
  if (zps_json_get(result, "left_out") && !is_brief) fprintf(out, "(%.0f more findings)\n", number(result, "left_out"));
}

enum zps_exit zps_ctl_why_exit(const zps_json *result) {
  const char *const state = text(result, "state");
  if (strcmp(state, "ok") == 0) return ZPS_EXIT_OK;
  return strcmp(state, "warning") == 0 ? ZPS_EXIT_FAILED : ZPS_EXIT_USAGE;
}
