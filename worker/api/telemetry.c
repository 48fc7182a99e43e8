#define ZPS_LOG_COMPONENT "telemetry"
#include "worker/api/telemetry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/container.h"
#include "common/base/log.h"
#include "proto/control_stats.h"
#include "worker/api/job.h"
#include "worker/choice/auto.h"

#define OLD_NS (1 * ZPS_NS_PER_S) /* Age from which on a round between ranks is reported. */

/* A tensor whose counters have grown. */
struct row {
  struct zenps_tensor *tensor;
  struct zps_tally now, growth;
};

void zps_telemetry_init(struct zps_telemetry *telemetry) {
  pthread_mutex_init(&telemetry->lock, NULL);
}

void zps_telemetry_fini(struct zps_telemetry *telemetry) {
  pthread_mutex_destroy(&telemetry->lock);
}

/* Ranks open a job together: each begins its time at another point, so that the coordinator hears them one by one. */
void zps_telemetry_start(struct zenps_job *job) {
  const uint64_t interval_ns = job->options.telemetry_ms * ZPS_NS_PER_MS;
  pthread_mutex_lock(&job->telemetry.lock);
  job->telemetry.told_ns = zps_clock_ns() - interval_ns / job->options.world * job->options.rank;
  pthread_mutex_unlock(&job->telemetry.lock);
  job->telemetry.on = job->options.telemetry_ms > 0;
}

static void add(struct zps_tensor_tally *tally, const struct zps_tally *round, uint64_t began_ns) {
  if (!tally->since_ns) tally->since_ns = began_ns;
  zps_tally_add(&tally->now, round);
}

void zps_telemetry_round(struct zenps_tensor *tensor, uint64_t step, const zenps_request_stats_t *stats, bool ok) {
  struct zps_tally round = {.failed = 1};
  if (ok) {
    round = (struct zps_tally){.rounds = 1,
                               .bytes_out = stats->bytes_out,
                               .bytes_in = stats->bytes_in,
                               .shared_out = stats->shared_out,
                               .shared_in = stats->shared_in,
                               .bound_bytes = stats->bound_bytes,
                               .push_rows = stats->nnz_in,
                               .union_rows = stats->nnz_out,
                               .total_ns = stats->total_ns,
                               .encode_ns = stats->encode_ns,
                               .push_ns = stats->push_ns,
                               .wait_ns = stats->wait_ns,
                               .pull_ns = stats->pull_ns,
                               .decode_ns = stats->decode_ns,
                               .step = step};
    zps_tally_time(&round, stats->total_ns);
    snprintf(round.scheme, sizeof round.scheme, "%s", stats->scheme);
  }
  const uint64_t began_ns = zps_clock_ns() - round.total_ns;
  add(&tensor->tally, &round, began_ns);
  struct zenps_tensor *const asked = (struct zenps_tensor *)(uintptr_t)zps_worker_tensor_root(tensor);
  if (asked != tensor) add(&asked->tally, &round, began_ns);
}

/* Under the job's lock. Tensors stay until the job is closed. */
static size_t collect(const struct zenps_job *job, struct row *rows, size_t max) {
  const uint64_t now_ns = zps_clock_ns();
  size_t n = 0;
  for (struct zenps_tensor *tensor = job->tensors; tensor && n < max; tensor = tensor->next) {
    const struct zps_tensor_tally *tally = &tensor->tally;
    if (zps_tally_same(&tally->now, &tally->told)) continue;
    rows[n] = (struct row){.tensor = tensor, .now = tally->now};
    rows[n].now.covered_ms = (now_ns - tally->since_ns) / ZPS_NS_PER_MS;
    rows[n].growth = zps_tally_growth(&rows[n].now, &tally->told);
    n++;
  }
  return n;
}

static size_t count_tensors(const struct zenps_job *job) {
  size_t n = 0;
  for (const struct zenps_tensor *tensor = job->tensors; tensor; tensor = tensor->next) n++;
  return n;
}

static zps_json *tensors_array(const struct row *rows, size_t n) {
  zps_json *tensors = zps_json_array();
  for (size_t i = 0; i < n; i++) {
    tensors = zps_control_growth_append(
        tensors, &(struct zps_tensor_growth){
                     .tensor = rows[i].tensor->core.id, .done = rows[i].now.rounds, .growth = rows[i].growth});
  }
  return tensors;
}

static struct zps_rank_report rank_report(const struct zenps_job *job) {
  struct zps_rank_report report = {
      .first = job->first.error,
      .load = job->telemetry.load,
      .kept_bytes = atomic_load_explicit(&job->rounds.replay.kept_bytes, memory_order_relaxed),
      .mishaps = zps_engine_mishaps(job->plane.engine),
      .n_rounds = job->telemetry.n_rounds};
  memcpy(report.rounds, job->telemetry.rounds, sizeof report.rounds);
  return report;
}

/* Under the job's lock. */
static zps_err_t tell(struct zenps_job *job, zps_json *tensors) {
  const struct zps_rank_report rank = rank_report(job);
  const zps_err_t err = zps_membership_stats(&job->membership, &rank, tensors);
  if (err != ZPS_OK) return err;
  job->first.told = rank.first.code;
  job->telemetry.has_told_rounds = rank.n_rounds > 0;
  return ZPS_OK;
}

static void tell_rank(struct zenps_job *job) {
  if (!atomic_load(&job->telemetry.on)) return;
  const zps_err_t err = tell(job, zps_json_array());
  if (err != ZPS_OK) zps_log_debug("cannot report to the coordinator: %s", zps_err_str(err));
}

void zps_telemetry_failed(struct zenps_job *job) {
  tell_rank(job);
}

/* ------------------------------------------------------------ rounds in flight */

/* Engine thread: the oldest rounds between ranks. */
static uint32_t find_old(const struct zps_rounds *rounds, uint64_t now_ns,
                         const struct zps_round *old[ZPS_RANK_ROUNDS_MAX]) {
  uint32_t n = 0;
  for (const struct zps_round *round = rounds->all; round; round = round->all_next) {
    const bool is_old = round->start_ns + OLD_NS <= now_ns;
    if (!is_old || !round->ops->awaited || zps_round_machine_over(round->machine)) continue;
    uint32_t at = n;
    for (; at > 0 && old[at - 1]->start_ns > round->start_ns; at--)
      if (at < ZPS_RANK_ROUNDS_MAX) old[at] = old[at - 1];
    if (at < ZPS_RANK_ROUNDS_MAX) old[at] = round;
    if (n < ZPS_RANK_ROUNDS_MAX) n++;
  }
  return n;
}

static struct zps_rank_round rank_round(const struct zps_round *round, uint64_t now_ns) {
  struct zps_rank_round told = {
      .tensor = round->tensor->id, .step = round->step, .age_ms = (now_ns - round->start_ns) / ZPS_NS_PER_MS};
  if (round->deadline_ns > now_ns) told.left_ms = (round->deadline_ns - now_ns) / ZPS_NS_PER_MS;
  told.n_ranks = round->ops->awaited(round, told.ranks, ZPS_RANK_AWAITED_MAX);
  return told;
}

/* On the engine thread. Without old rounds the coordinator is told once. */
static void look(struct zps_command *command, void *handler_ctx) {
  struct zps_telemetry *const telemetry = zps_container_of(command, struct zps_telemetry, look);
  struct zenps_job *const job = zps_container_of(telemetry, struct zenps_job, telemetry);
  const struct zps_round *old[ZPS_RANK_ROUNDS_MAX];
  const uint64_t now_ns = zps_clock_ns();
  (void)handler_ctx;
  const uint32_t n = find_old(&job->rounds, now_ns, old);
  pthread_mutex_lock(&job->lock);
  telemetry->is_looking = false;
  telemetry->n_rounds = n;
  for (uint32_t i = 0; i < n; i++) telemetry->rounds[i] = rank_round(old[i], now_ns);
  if (n > 0 || telemetry->has_told_rounds) tell_rank(job);
  pthread_mutex_unlock(&job->lock);
}

/* Under the job's lock. */
static bool has_rounds(const struct zenps_job *job) {
  for (const struct zenps_tensor *tensor = job->tensors; tensor; tensor = tensor->next)
    if (tensor->n_active > 0) return true;
  return job->telemetry.has_told_rounds;
}

static void look_at_rounds(struct zenps_job *job) {
  pthread_mutex_lock(&job->lock);
  const bool is_due = !job->telemetry.is_looking && has_rounds(job);
  job->telemetry.is_looking |= is_due;
  job->telemetry.look.run = look;
  pthread_mutex_unlock(&job->lock);
  if (is_due) zps_engine_post(job->plane.engine, &job->telemetry.look);
}

/* ------------------------------------------------------------ reports */

/* With the telemetry's lock. Counters that cannot be sent now are part of the next report. */
static void report(struct zenps_job *job) {
  job->telemetry.told_ns = zps_clock_ns();
  const struct zps_load load = zps_load_measure(&job->telemetry.probe, job->telemetry.told_ns);
  pthread_mutex_lock(&job->lock);
  const size_t max = count_tensors(job);
  pthread_mutex_unlock(&job->lock);
  struct row *rows = calloc(max + 1, sizeof *rows);
  if (!rows) return;
  pthread_mutex_lock(&job->lock);
  const size_t n = collect(job, rows, max);
  pthread_mutex_unlock(&job->lock);
  zps_json *const tensors = tensors_array(rows, n);
  pthread_mutex_lock(&job->lock); /* Until it is sent: a first error that comes now is told behind it. */
  job->telemetry.load = load;
  zps_err_t err = ZPS_OK;
  if (n > 0 || job->first.error.code != job->first.told)
    err = tell(job, tensors);
  else
    zps_json_unref(tensors);
  if (err != ZPS_OK)
    zps_log_debug("cannot report the rounds of %zu tensors to the coordinator: %s", n, zps_err_str(err));
  for (size_t i = 0; i < n && err == ZPS_OK; i++) rows[i].tensor->tally.told = rows[i].now;
  pthread_mutex_unlock(&job->lock);
  free(rows);
}

void zps_telemetry_beat(struct zenps_job *job) {
  if (!job->telemetry.on) return;
  pthread_mutex_lock(&job->lock);
  const bool is_urgent = job->first.error.code != job->first.told;
  pthread_mutex_unlock(&job->lock);
  pthread_mutex_lock(&job->telemetry.lock);
  if (is_urgent || zps_clock_ns() - job->telemetry.told_ns >= job->options.telemetry_ms * ZPS_NS_PER_MS) report(job);
  pthread_mutex_unlock(&job->telemetry.lock);
  look_at_rounds(job);
}

void zps_telemetry_end(struct zenps_job *job) {
  if (!atomic_exchange(&job->telemetry.on, false)) return;
  pthread_mutex_lock(&job->telemetry.lock);
  report(job);
  pthread_mutex_unlock(&job->telemetry.lock);
}
