#define ZPS_LOG_COMPONENT "tensor"
#include "worker/automatic.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "worker/job.h"

#define SAMPLE 1024u /* rows of a dense gradient that are looked at */

/* ------------------------------------------------------------ which schemes */

bool zps_automatic_is(const char *scheme) {
  return strcmp(scheme, "auto") == 0 || strncmp(scheme, "auto:", 5) == 0;
}

/* Balanced, and what this library has of those between workers. */
static bool has(enum zps_plan_scheme scheme) {
  return scheme == ZPS_PLAN_BALANCED || zps_peer_scheme_find(zps_plan_scheme_name(scheme)) != NULL;
}

zps_err_t zps_automatic_parse(const char *scheme, const char *tensor, bool balanced_only, unsigned *schemes_p,
                              struct zps_error *error) {
  unsigned schemes = 0;
  if (scheme[4] == ':') {
    struct zps_error why;
    const zps_err_t err = zps_plan_schemes_parse(scheme + 5, strlen(scheme + 5), &schemes, &why);
    if (err != ZPS_OK) return zps_fail(error, err, "tensor %s: %s", tensor, why.text);
  }
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    const enum zps_plan_scheme one = (enum zps_plan_scheme)i;
    if (scheme[4] != ':' && has(one) && zps_plan_scheme_alike(one) && (!balanced_only || one == ZPS_PLAN_BALANCED))
      schemes |= 1u << i;
    if ((schemes >> i & 1) && !has(one))
      return zps_fail(error, ZPS_ERR_UNSUPPORTED, "tensor %s: this library cannot carry out scheme %s", tensor,
                      zps_plan_scheme_name(one));
  }
  *schemes_p = schemes;
  return ZPS_OK;
}

void zps_automatic_text(unsigned schemes, char *text, size_t size) {
  size_t len = (size_t)snprintf(text, size, "auto");
  for (unsigned i = 0, n = 0; i < ZPS_PLAN_SCHEMES && len < size; i++) {
    if (schemes >> i & 1)
      len += (size_t)snprintf(text + len, size - len, "%c%s", n++ ? ',' : ':',
                              zps_plan_scheme_name((enum zps_plan_scheme)i));
  }
}

/* ------------------------------------------------------------ which step */

/* Under the job's lock, which is given up meanwhile: sends the report. */
static zenps_status_t ask(struct zps_automatic *automatic, const struct zps_plan_report *report) {
  struct zenps_job *job = automatic->tensor->job;
  pthread_mutex_unlock(&job->lock);
  const zps_err_t err = zps_membership_report(&job->membership, automatic->tensor->id, report);
  pthread_mutex_lock(&job->lock);
  if (err == ZPS_OK) return ZENPS_OK;
  automatic->follower.asked = 0; /* it was not: the next step asks again */
  return zps_worker_fail(err, "tensor %s, step %" PRIu64 ": the coordinator cannot be asked for the scheme: %s",
                         automatic->tensor->name, report->step, zps_err_str(err));
}

static zenps_status_t wait_for_plan(struct zps_automatic *automatic, uint64_t step, uint64_t deadline_ns) {
  struct zenps_job *job = automatic->tensor->job;
  const struct timespec until = {.tv_sec = (time_t)(deadline_ns / ZPS_NS_PER_S),
                                 .tv_nsec = (long)(deadline_ns % ZPS_NS_PER_S)};
  if (pthread_cond_timedwait(&job->done, &job->lock, &until) != ETIMEDOUT) return ZENPS_OK;
  return zps_worker_fail(
      ZPS_ERR_TIMEOUT, "tensor %s, step %" PRIu64 ": after %g s the coordinator has not said which scheme it runs as%s",
      automatic->tensor->name, step, (double)job->options.round_timeout_ms / 1000,
      job->membership.lost ? ": it was lost" : "");
}

static zenps_status_t pick(struct zps_automatic *automatic, uint64_t step, struct zenps_tensor **picked_p) {
  struct zenps_job *job = automatic->tensor->job;
  const uint64_t deadline_ns = zps_clock_ns() + job->options.round_timeout_ms * ZPS_NS_PER_MS;
  for (;;) {
    enum zps_plan_scheme scheme = ZPS_PLAN_BALANCED;
    struct zps_plan_report report;
    bool due;
    zenps_status_t status = zps_worker_job_check(job);
    if (status != ZENPS_OK) return status;
    const enum zps_plan_verdict verdict = zps_plan_follower_begin(&automatic->follower, step, &scheme, &due, &report);
    /* A question about steps to come may fail: this one is known. */
    if (due) status = ask(automatic, &report);
    if (verdict == ZPS_PLAN_FORGOTTEN)
      return zps_worker_fail(ZPS_ERR_INVALID, "tensor %s: step %" PRIu64 " is too long ago: nobody knows its scheme",
                             automatic->tensor->name, step);
    if (verdict == ZPS_PLAN_BEGIN) {
      *picked_p = automatic->variants[scheme];
      if (*picked_p) return ZENPS_OK;
      return zps_worker_fail(ZPS_ERR_PROTOCOL,
                             "tensor %s, step %" PRIu64 ": the coordinator chose %s, which may not be",
                             automatic->tensor->name, step, zps_plan_scheme_name(scheme));
    }
    if (status == ZENPS_OK && zps_plan_schedule_until(&automatic->follower.schedule) <= step)
      status = wait_for_plan(automatic, step, deadline_ns);
    if (status != ZENPS_OK) return status;
  }
}

/* ------------------------------------------------------------ what gradients look like */

static bool any_value(const struct zenps_tensor *tensor, const void *values, uint64_t row) {
  for (uint64_t i = row * tensor->width; i < (row + 1) * tensor->width; i++) {
    if (tensor->dtype == ZPS_DTYPE_F64 ? ((const double *)values)[i] != 0 : ((const float *)values)[i] != 0)
      return true;
  }
  return false;
}

/* Rows of a gradient, about: dense schemes do not look for them, yet somebody must see when they get few. */
static double sample_rows(const struct zenps_tensor *tensor, uint64_t step, const zenps_grad_t *in) {
  if (in->layout == ZENPS_ROWS) return (double)in->nnz;
  const uint64_t stride = 1 + tensor->part.rows / SAMPLE;
  uint64_t looked = 0, found = 0;
  for (uint64_t row = step % stride; row < tensor->part.rows; row += stride, looked++)
    found += any_value(tensor, in->values, row);
  return looked ? (double)found * (double)tensor->part.rows / (double)looked : 0;
}

zenps_status_t zps_automatic_pick(struct zps_automatic *automatic, uint64_t step, const zenps_grad_t *in,
                                  struct zenps_tensor **picked_p) {
  struct zenps_job *job = automatic->tensor->job;
  pthread_mutex_lock(&job->lock);
  const zenps_status_t status = pick(automatic, step, picked_p);
  pthread_mutex_unlock(&job->lock);
  if (status != ZENPS_OK || !(*picked_p)->scheme || !(*picked_p)->scheme->scheme->dense) return status;
  const double rows = sample_rows(automatic->tensor, step, in);
  pthread_mutex_lock(&job->lock);
  automatic->sampled_rows = rows;
  pthread_mutex_unlock(&job->lock);
  return ZENPS_OK;
}

void zps_automatic_round_done(struct zps_automatic *automatic, const struct zenps_tensor *variant,
                              const zenps_request_stats_t *stats) {
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    const enum zps_plan_scheme scheme = (enum zps_plan_scheme)i;
    if (automatic->variants[i] != variant) continue;
    zps_plan_follower_round(&automatic->follower, scheme,
                            zps_plan_scheme_dense(scheme) ? automatic->sampled_rows : (double)stats->nnz_in,
                            (double)stats->nnz_out, (double)stats->total_ns / ZPS_NS_PER_S);
  }
}

/* ------------------------------------------------------------ what the coordinator says */

static zps_err_t read_run(const zps_json *object, struct zps_plan_run *run, struct zps_error *error) {
  const char *name;
  zps_err_t err = zps_json_get_hex(object, "from", &run->from, error);
  if (err == ZPS_OK) err = zps_json_get_hex(object, "until", &run->until, error);
  if (err == ZPS_OK) err = zps_json_get_str(object, "scheme", &name, error);
  if (err == ZPS_OK && !zps_plan_scheme_parse(name, &run->scheme))
    err = zps_fail(error, ZPS_ERR_PROTOCOL, "there is no scheme '%.40s'", name);
  return err;
}

/* Under the job's lock. */
static void learn(struct zps_automatic *automatic, const struct zps_plan_run *runs, unsigned n, bool whole) {
  struct zps_plan_schedule *schedule = &automatic->follower.schedule;
  /* A run that comes ahead of this tensor's first question leaves a gap; the answer to the question will fill it. */
  const bool early = schedule->n == 0 && !whole && n == 1 && runs[0].from > 0;
  const bool taken =
      whole ? zps_plan_schedule_learn_all(schedule, runs, n) : n == 1 && zps_plan_schedule_learn(schedule, &runs[0]);
  if (!taken && !early) zps_log_warn("tensor %s: the coordinator contradicts itself", automatic->tensor->name);
}

void zps_automatic_plan(struct zenps_job *job, const zps_json *params) {
  const zps_json *array = zps_json_get(params, "runs");
  const bool whole = zps_json_opt_bool(params, "whole", false);
  struct zps_plan_run runs[ZPS_PLAN_RUNS];
  unsigned n = 0;
  uint64_t id = 0;
  struct zps_error error;
  zps_err_t err = zps_json_get_u64(params, "tensor", 0, UINT32_MAX, &id, &error);
  for (size_t i = 0; i < zps_json_array_len(array) && err == ZPS_OK && n < ZPS_PLAN_RUNS; i++)
    err = read_run(zps_json_at(array, i), &runs[n++], &error);
  if (err != ZPS_OK || n == 0) {
    zps_log_warn("the coordinator says of schemes what cannot be: %s", n ? error.text : "nothing");
    return;
  }
  pthread_mutex_lock(&job->lock);
  for (struct zenps_tensor *tensor = job->tensors; tensor; tensor = tensor->next) {
    if (tensor->is_automatic && tensor->id == id) learn(tensor->automatic, runs, n, whole);
  }
  pthread_cond_broadcast(&job->done);
  pthread_mutex_unlock(&job->lock);
}
