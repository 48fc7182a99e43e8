#define ZPS_LOG_COMPONENT "tensor"
#include "worker/choice/auto.h"

#include <inttypes.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/machine.h"
#include "worker/base/error.h"

enum { KEPT_ROUNDS = 32 };
#define KEPT_NS_MIN (4 * ZPS_NS_PER_S)
#define AGAIN_NS (100 * ZPS_NS_PER_MS) /* from a round of the agreement that has failed here to the next one */

/* ------------------------------------------------------------ schemes that may be chosen */

bool zps_automatic_is(const char *scheme) {
  return strcmp(scheme, "auto") == 0 || strncmp(scheme, "auto:", 5) == 0;
}

const char *zps_automatic_order(const char *scheme) {
  const bool is = strcmp(scheme, "auto:any") == 0 || strcmp(scheme, "auto:ranks") == 0;
  return is ? scheme + 5 : NULL;
}

/* Whether the scheme may be chosen without being named. */
static bool may_be(enum zps_plan_scheme scheme, const struct zps_automatic_limits *limits) {
  if (!(limits->any_order ? zps_plan_scheme_same_rows(scheme) : zps_plan_scheme_alike(scheme))) return false;
  if (limits->balanced_only && scheme != ZPS_PLAN_BALANCED) return false;
  if (limits->served_only && (!zps_plan_scheme_served(scheme) || zps_plan_scheme_flags(scheme) & ZPS_SCHEME_NESTS))
    return false;
  if (limits->no_zeros && !zps_plan_scheme_shows_union(scheme)) return false;
  if (limits->narrow && scheme != ZPS_PLAN_BALANCED && scheme != ZPS_PLAN_SPARSE_PS) return false;
  return !limits->lossy_bits || scheme != ZPS_PLAN_DSAR;
}

zps_err_t zps_automatic_parse(const char *scheme, const char *tensor, const struct zps_automatic_limits *limits,
                              unsigned *schemes_p, struct zps_error *error) {
  unsigned schemes = 0;
  const bool named = scheme[4] == ':' && !zps_automatic_order(scheme);
  if (named) {
    struct zps_error why;
    const zps_err_t err = zps_plan_schemes_parse(scheme + 5, strlen(scheme + 5), &schemes, &why);
    if (err != ZPS_OK) return zps_fail(error, err, "tensor %s: %s", tensor, why.text);
  }
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    const enum zps_plan_scheme one = (enum zps_plan_scheme)i;
    if (!named && may_be(one, limits)) schemes |= 1u << i;
  }
  *schemes_p = schemes;
  return ZPS_OK;
}

void zps_automatic_destroy(struct zps_automatic *automatic) {
  if (!automatic) return;
  zps_host_in_fini(&automatic->staging, *automatic->job.device_p);
  free(automatic);
}

/* ------------------------------------------------------------ reports to the coordinator */

/* Under the job's lock. Fills in what this rank knows, apart from the gradient, when it asks. */
static void fill_told(struct zps_automatic *automatic, const zenps_grad_t *out, struct zps_plan_request *told) {
  const struct zps_automatic_job *job = &automatic->job;
  automatic->lists = automatic->lists || out->layout == ZENPS_ROWS;
  told->lists = automatic->lists;
  told->bandwidth = automatic->bandwidth;
  told->latency_s = automatic->latency_s;
  if (automatic->introduced) return;
  automatic->introduced = true;
  told->cores = zps_machine_cores();
  told->calibration = *job->calibration;
}

static void sketch_host(const struct zps_automatic *automatic, const zenps_grad_t *in, struct zps_plan_sketch *sketch) {
  const struct zps_round_tensor *tensor = automatic->tensor;
  if (in->layout == ZENPS_ROWS)
    zps_plan_sketch_list(sketch, tensor->part.rows, in->row_ids, in->nnz);
  else
    zps_plan_sketch_dense(sketch, tensor->part.rows, tensor->width, tensor->dtype, in->values);
}

/* Of a gradient in device memory: made by the device's thread, once the gradient is there. */
struct sketching {
  struct zps_work work;
  struct zps_automatic *automatic;
  const zenps_grad_t *in;
  struct zps_plan_sketch *sketch;
  uint64_t deadline_ns;
  zps_err_t code;
  struct zps_error *error;
  sem_t done;
};

static void sketch_run(struct zps_work *work) {
  struct sketching *sketching = (struct sketching *)work;
  const struct zps_round_tensor *tensor = sketching->automatic->tensor;
  zenps_grad_t rows;
  sketching->code = zps_host_in_run(&sketching->automatic->staging, *sketching->automatic->job.device_p, &tensor->shape,
                                    sketching->in, true, sketching->deadline_ns, &rows, sketching->error);
  if (sketching->code == ZPS_OK) sketch_host(sketching->automatic, &rows, sketching->sketch);
  sem_post(&sketching->done);
}

static zps_err_t sketch_of(struct zps_automatic *automatic, const zenps_grad_t *in, uint64_t deadline_ns,
                           struct zps_plan_sketch *sketch, struct zps_error *error) {
  struct sketching sketching = {.work.run = sketch_run,
                                .automatic = automatic,
                                .in = in,
                                .sketch = sketch,
                                .deadline_ns = deadline_ns,
                                .error = error};
  if (in->memory == ZENPS_HOST) {
    sketch_host(automatic, in, sketch);
    return ZPS_OK;
  }
  sem_init(&sketching.done, 0, 0);
  zps_workpool_submit((*automatic->job.device_p)->in_pool, &sketching.work);
  while (sem_wait(&sketching.done) != 0) continue; /* a signal's handler ran */
  sem_destroy(&sketching.done);
  return sketching.code;
}

/* ------------------------------------------------------------ the agreement: under the job's lock */

static bool is_alone(const struct zps_automatic *automatic) {
  const struct zps_membership *membership = automatic->job.membership;
  return atomic_load(&membership->away) || atomic_load(&membership->lost);
}

static void wake(struct zps_automatic *automatic) {
  automatic->n_learned++;
  pthread_cond_broadcast(automatic->job.learned);
}

/* The next round may fail otherwise, so no step has to end with this one. */
static bool may_pass(zps_err_t code) {
  return code == ZPS_ERR_NOMEM || code == ZPS_ERR_QUOTA || code == ZPS_ERR_FABRIC || code == ZPS_ERR_SERVER_LOST ||
         code == ZPS_ERR_AGAIN || code == ZPS_ERR_BUSY;
}

/* A round has failed, for `automatic->failure`. */
static void note_failure(struct zps_automatic *automatic) {
  const struct zps_automatic_job *const job = &automatic->job;
  automatic->is_final = !may_pass((zps_err_t)automatic->failure.status);
  if (automatic->is_final) {
    wake(automatic);
    return;
  }
  automatic->again_ns = zps_clock_ns() + AGAIN_NS;
  if (automatic->again_ns < *job->again_ns_p) *job->again_ns_p = automatic->again_ns;
  pthread_cond_broadcast(job->learned);
}

/* Begins the next round, if it is time. */
static void proceed(struct zps_automatic *automatic) {
  if (!zps_plan_agreement_begin(&automatic->agreement)) return;
  automatic->again_ns = ZPS_NEVER;
  const zps_err_t err = automatic->job.agree(automatic->job.ctx, automatic);
  if (err == ZPS_OK) return;
  zps_plan_agreement_unbegun(&automatic->agreement);
  if (err == ZPS_ERR_CLOSED) return; /* nobody waits for a step of what is closed */
  zps_worker_detail(&automatic->failure, err, "tensor %s: the round in which its ranks agree on a scheme: %s",
                    automatic->tensor->name, zps_err_str(err));
  note_failure(automatic);
}

/* A question that is not answered by what was agreed on is asked again. */
static void look_again(struct zps_automatic *automatic) {
  struct zps_plan_follower *const follower = &automatic->follower;
  if (follower->asked > zps_plan_schedule_until(&follower->schedule)) zps_plan_follower_retry(follower);
  wake(automatic);
}

void zps_automatic_agreed(struct zps_automatic *automatic, const unsigned char *round, const zenps_error_t *why) {
  const bool fits = zps_plan_agreement_end(&automatic->agreement, &automatic->follower.schedule, round);
  if (!round) automatic->failure = *why;
  if (!fits)
    zps_worker_detail(&automatic->failure, ZPS_ERR_PROTOCOL,
                      "tensor %s: the first of its ranks, which decides on its schemes, contradicts itself",
                      automatic->tensor->name);
  if (!round || !fits) {
    note_failure(automatic);
    return;
  }
  automatic->failure.status = ZENPS_OK;
  automatic->is_final = false;
  look_again(automatic);
  proceed(automatic);
}

void zps_automatic_propose(struct zps_automatic *automatic, const struct zps_plan_run *runs, unsigned n, bool whole) {
  if (!zps_plan_agreement_decides(&automatic->agreement)) return;
  zps_plan_agreement_propose(&automatic->agreement, runs, n, whole);
  proceed(automatic);
}

uint64_t zps_automatic_retry(struct zps_automatic *automatic, uint64_t now_ns) {
  if (now_ns >= automatic->again_ns) {
    automatic->again_ns = ZPS_NEVER;
    proceed(automatic);
  }
  return automatic->again_ns;
}

void zps_automatic_alone(struct zps_automatic *automatic) {
  automatic->introduced = false; /* the next one may be another */
  zps_plan_agreement_unheard(&automatic->agreement);
  proceed(automatic);
}

void zps_automatic_join(struct zps_automatic *automatic, const struct zps_automatic_turn *turn) {
  if (!turn->due) return;
  zps_plan_agreement_want(&automatic->agreement, turn->report.step, true);
  proceed(automatic);
}

zenps_status_t zps_automatic_ask(struct zps_automatic *automatic, struct zps_automatic_turn *turn,
                                 const zenps_grad_t *in, const zenps_grad_t *out, uint64_t deadline_ns) {
  const struct zps_automatic_job *job = &automatic->job;
  struct zps_error error = {.text = ""};
  struct zps_plan_request told = {.report = turn->report};
  struct zps_plan_sketch sketch;
  turn->due = false;
  const bool alone = is_alone(automatic);
  zps_plan_agreement_want(&automatic->agreement, turn->report.step, alone);
  proceed(automatic);
  if (alone) return ZENPS_OK; /* what the coordinator would be told is old when it is back */
  fill_told(automatic, out, &told);
  pthread_mutex_unlock(job->lock);
  const zps_err_t seen = sketch_of(automatic, in, deadline_ns, &sketch, &error);
  told.sketch = &sketch;
  const zps_err_t err = seen == ZPS_OK ? zps_membership_report(job->membership, automatic->tensor->id, &told) : seen;
  pthread_mutex_lock(job->lock);
  if (seen == ZPS_OK) automatic->sketch = sketch;
  if (err != ZPS_OK) zps_automatic_alone(automatic);
  if (seen == ZPS_OK) return ZENPS_OK;
  return zps_worker_fail(err, "tensor %s, step %" PRIu64 ": looking at the gradient, to choose a scheme: %s",
                         automatic->tensor->name, turn->step, error.text);
}

/* ------------------------------------------------------------ the scheme of a step */

zenps_status_t zps_automatic_look(struct zps_automatic *automatic, uint64_t step, struct zps_automatic_turn *turn,
                                  struct zps_round_tensor **picked_p) {
  const struct zps_automatic_job *job = &automatic->job;
  enum zps_plan_scheme scheme = ZPS_PLAN_BALANCED;
  *picked_p = NULL;
  *turn = (struct zps_automatic_turn){.step = step};
  const zenps_status_t status = job->check(job->ctx);
  if (status != ZENPS_OK) return status;
  if (automatic->is_final && step >= zps_plan_schedule_until(&automatic->follower.schedule)) {
    automatic->is_final = false; /* the next one tries anew */
    return zps_worker_raise_detail(&automatic->failure);
  }
  proceed(automatic);
  const enum zps_plan_verdict verdict =
      zps_plan_follower_begin(&automatic->follower, step, &scheme, &turn->due, &turn->report);
  if (verdict == ZPS_PLAN_FORGOTTEN)
    return zps_worker_fail(ZPS_ERR_INVALID, "tensor %s: step %" PRIu64 " is too long ago: nobody knows its scheme",
                           automatic->tensor->name, step);
  if (verdict == ZPS_PLAN_WAIT) return ZENPS_OK;
  *picked_p = automatic->variants[scheme];
  if (*picked_p) return ZENPS_OK;
  return zps_worker_fail(ZPS_ERR_PROTOCOL, "tensor %s, step %" PRIu64 ": the coordinator chose %s, which may not be",
                         automatic->tensor->name, step, zps_plan_scheme_name(scheme));
}

/* ------------------------------------------------------------ reports of rounds */

/* The wait from the first frame out to the first one back is two latencies and the server's work; the shortest wait has
 * the least of that work. */
static void measure_link(struct zps_automatic *automatic, const zenps_request_stats_t *stats, bool served) {
  const struct zps_automatic_job *job = &automatic->job;
  const struct zps_bulk_measure measure = zps_bulk_measure(zps_engine_bulk(job->plane->engine));
  double latency_s = measure.latency_s;
  if (served && stats->wait_ns > 0) {
    const double half_s = (double)stats->wait_ns / 2 / ZPS_NS_PER_S;
    if (latency_s <= 0 || half_s < latency_s) latency_s = half_s;
  }
  automatic->bandwidth = measure.bytes_per_s;
  if (latency_s > 0 && (automatic->latency_s <= 0 || latency_s < automatic->latency_s))
    automatic->latency_s = latency_s;
}

/* Each scheme that is tried has rounds and buffers of its own sizes. Those that are still in the running take turns
 * within so many rounds; what the others had is not kept until all have been tried. */
static void trim_memory(struct zps_automatic *automatic, const struct zps_round_tensor *variant, uint64_t round_ns) {
  const struct zps_automatic_job *job = &automatic->job;
  const bool changed = automatic->last && automatic->last != variant;
  automatic->last = variant;
  if (!changed) return;
  uint64_t keep_ns = KEPT_ROUNDS * round_ns;
  if (keep_ns < KEPT_NS_MIN) keep_ns = KEPT_NS_MIN;
  if (keep_ns > ZPS_SLAB_IDLE_NS) keep_ns = ZPS_SLAB_IDLE_NS;
  zps_slab_trim(zps_engine_slab(job->plane->engine), keep_ns);
  job->trim(job->ctx, keep_ns);
}

void zps_automatic_round_done(struct zps_automatic *automatic, const struct zps_round_tensor *variant,
                              const zenps_request_stats_t *stats) {
  measure_link(automatic, stats, variant->served != NULL);
  trim_memory(automatic, variant, stats->total_ns);
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    const enum zps_plan_scheme scheme = (enum zps_plan_scheme)i;
    if (automatic->variants[i] != variant) continue;
    zps_plan_follower_round(
        &automatic->follower, scheme,
        zps_plan_scheme_finds_rows(scheme) ? (double)stats->nnz_in : zps_plan_sketch_rows(&automatic->sketch),
        (double)stats->nnz_out, (double)stats->total_ns / ZPS_NS_PER_S);
  }
}
