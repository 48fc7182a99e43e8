#define ZPS_LOG_COMPONENT "telemetry"
#include "worker/api/telemetry.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "proto/control_stats.h"
#include "worker/api/job.h"
#include "worker/choice/auto.h"

/* A tensor whose counters have grown. */
struct news {
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
  struct zenps_tensor *const asked = (struct zenps_tensor *)(uintptr_t)zps_worker_tensor_asked(tensor);
  if (asked != tensor) add(&asked->tally, &round, began_ns);
}

/* Under the job's lock. Tensors stay until the job is closed. */
static size_t collect(const struct zenps_job *job, struct news *news, size_t max) {
  const uint64_t now_ns = zps_clock_ns();
  size_t n = 0;
  for (struct zenps_tensor *tensor = job->tensors; tensor && n < max; tensor = tensor->next) {
    const struct zps_tensor_tally *tally = &tensor->tally;
    if (zps_tally_same(&tally->now, &tally->told)) continue;
    news[n] = (struct news){.tensor = tensor, .now = tally->now};
    news[n].now.covered_ms = (now_ns - tally->since_ns) / ZPS_NS_PER_MS;
    news[n].growth = zps_tally_growth(&news[n].now, &tally->told);
    n++;
  }
  return n;
}

static size_t count_tensors(const struct zenps_job *job) {
  size_t n = 0;
  for (const struct zenps_tensor *tensor = job->tensors; tensor; tensor = tensor->next) n++;
  return n;
}

static zps_json *tensors_array(const struct news *news, size_t n) {
  zps_json *tensors = zps_json_array();
  for (size_t i = 0; i < n; i++) {
    tensors = zps_control_news_append(
        tensors, &(struct zps_tensor_news){
                     .tensor = news[i].tensor->core.id, .done = news[i].now.rounds, .growth = news[i].growth});
  }
  return tensors;
}

static struct zps_rank_news rank_news(const struct zenps_job *job) {
  return (struct zps_rank_news){
      .first = job->first.error,
      .load = job->telemetry.load,
      .kept_bytes = atomic_load_explicit(&job->rounds.replay.kept_bytes, memory_order_relaxed),
      .mishaps = zps_engine_mishaps(job->plane.engine)};
}

void zps_telemetry_failed(struct zenps_job *job) {
  if (!atomic_load(&job->telemetry.on)) return;
  const struct zps_rank_news rank = rank_news(job);
  if (zps_membership_stats(&job->membership, &rank, zps_json_array()) == ZPS_OK) job->first.told = rank.first.code;
}

/* With the telemetry's lock. Counters that cannot be sent now are part of the next report. */
static void report(struct zenps_job *job) {
  job->telemetry.told_ns = zps_clock_ns();
  const struct zps_load load = zps_load_measure(&job->telemetry.probe, job->telemetry.told_ns);
  pthread_mutex_lock(&job->lock);
  const size_t max = count_tensors(job);
  pthread_mutex_unlock(&job->lock);
  struct news *news = calloc(max + 1, sizeof *news);
  if (!news) return;
  pthread_mutex_lock(&job->lock);
  const size_t n = collect(job, news, max);
  pthread_mutex_unlock(&job->lock);
  zps_json *const tensors = tensors_array(news, n);
  pthread_mutex_lock(&job->lock); /* Until it is sent: a first error that comes now is told behind it. */
  job->telemetry.load = load;
  const struct zps_rank_news rank = rank_news(job);
  zps_err_t err = ZPS_OK;
  if (n > 0 || rank.first.code != job->first.told)
    err = zps_membership_stats(&job->membership, &rank, tensors);
  else
    zps_json_unref(tensors);
  if (err != ZPS_OK)
    zps_log_debug("cannot report the rounds of %zu tensors to the coordinator: %s", n, zps_err_str(err));
  for (size_t i = 0; i < n && err == ZPS_OK; i++) news[i].tensor->tally.told = news[i].now;
  if (err == ZPS_OK) job->first.told = rank.first.code;
  pthread_mutex_unlock(&job->lock);
  free(news);
}

void zps_telemetry_beat(struct zenps_job *job) {
  if (!job->telemetry.on) return;
  pthread_mutex_lock(&job->lock);
  const bool is_urgent = job->first.error.code != job->first.told;
  pthread_mutex_unlock(&job->lock);
  pthread_mutex_lock(&job->telemetry.lock);
  if (is_urgent || zps_clock_ns() - job->telemetry.told_ns >= job->options.telemetry_ms * ZPS_NS_PER_MS) report(job);
  pthread_mutex_unlock(&job->telemetry.lock);
}

void zps_telemetry_end(struct zenps_job *job) {
  if (!atomic_exchange(&job->telemetry.on, false)) return;
  pthread_mutex_lock(&job->telemetry.lock);
  report(job);
  pthread_mutex_unlock(&job->telemetry.lock);
}
