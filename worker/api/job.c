#define ZPS_LOG_COMPONENT "job"
#include "worker/api/job.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/base/container.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "common/base/thread.h"
#include "config.h"
#include "worker/api/registered.h"
#include "worker/api/request.h"
#include "worker/api/view.h"
#include "worker/base/logsink.h"
#include "worker/choice/auto.h"
#include "worker/device/device.h"

#define CLOSE_WAIT_MS 1000u /* for reads that the fabric does not give back, and frames that it does not take */

bool zps_worker_forked(const struct zenps_job *job) {
  return job->pid != getpid();
}

zenps_status_t zps_worker_fail_forked(void) {
  return zps_worker_fail(ZPS_ERR_FORKED,
                         "process %ld is a child of the one that called zenps_open(): its threads are not here; open "
                         "the job after fork() instead",
                         (long)getpid());
}

/* ------------------------------------------------------------ failure */

static void failure_run(struct zps_command *command, void *handler_ctx) {
  (void)handler_ctx;
  struct zenps_job *job = zps_container_of(command, struct zenps_job, failure_command);
  zps_past_log(&job->rounds, zps_clock_ns());
  zps_rounds_fail(&job->rounds, &job->failure);
}

/* Records the first failure of the job and tells the data plane. */
static void on_failed(void *ctx, const struct zps_frame_abort *failure) {
  struct zenps_job *job = ctx;
  pthread_mutex_lock(&job->lock);
  const bool first = !job->failed;
  if (first) {
    job->failure = *failure;
    job->failed = true;
    job->failure_command.run = failure_run;
    zps_engine_post(job->plane.engine, &job->failure_command);
    pthread_cond_broadcast(&job->waiting.due); /* no plan will come for the threads that wait for one */
  }
  pthread_mutex_unlock(&job->lock);
  atomic_store(&job->changed, true);
  if (first) zps_log_warn("job %s failed: %s", job->options.job, failure->text);
}

zenps_status_t zps_worker_job_check(struct zenps_job *job) {
  if (!job->failed) return ZENPS_OK;
  zenps_error_t detail;
  zps_worker_detail(&detail, job->failure.code, "job %s: %s", job->options.job, job->failure.text);
  for (uint32_t i = 0; i < job->failure.n_ranks && i < sizeof detail.missing_ranks / sizeof detail.missing_ranks[0];
       i++) {
    detail.missing_ranks[detail.n_missing++] = job->failure.ranks[i];
  }
  return zps_worker_raise_detail(&detail);
}

static void on_changed(void *ctx) {
  struct zenps_job *job = ctx;
  atomic_store(&job->changed, true);
}

static void on_rank_left(void *ctx, uint32_t rank) {
  struct zenps_job *job = ctx;
  atomic_store(&job->changed, true);
  zps_plane_rank_left(&job->plane, rank);
}

static void on_plan(void *ctx, const struct zps_tensor_plan *plan) {
  zps_worker_plan(ctx, plan);
}

static void on_view(void *ctx, const struct zps_view_image *view) {
  zps_worker_view(ctx, view);
}

static void on_replay(void *ctx, const struct zps_job_steps *steps) {
  zps_worker_replay(ctx, steps);
}

static void on_away(void *ctx) {
  struct zenps_job *job = ctx;
  zps_worker_plans_alone(job);
  pthread_mutex_lock(&job->lock);
  job->first.told = ZPS_OK; /* It may not have arrived. */
  pthread_mutex_unlock(&job->lock);
}

static void on_beat(void *ctx) {
  zps_telemetry_beat(ctx);
}

static uint64_t stuck_ns(void *ctx, const struct zps_silence *silence, uint64_t now_ns) {
  struct zenps_job *job = ctx;
  const struct zps_engine_pulse pulse = zps_engine_pulse(job->plane.engine, now_ns);
  return zps_stuck_look(&job->stuck, silence, pulse.turns, pulse.due, now_ns);
}

/* ------------------------------------------------------------ open */

static void locks_init(struct zenps_job *job) {
  pthread_mutex_init(&job->collective.lock, NULL);
  pthread_mutex_init(&job->open, NULL);
  pthread_mutex_init(&job->device_lock, NULL);
  zps_telemetry_init(&job->telemetry);
  pthread_mutex_init(&job->lock, NULL);
  zps_thread_cond_init(&job->done);
  zps_deferred_thread_init(&job->waiting, &job->lock);
  job->unseen_last_p = &job->unseen;
}

void zps_worker_job_unref(struct zenps_job *job) {
  if (atomic_fetch_sub(&job->refs, 1) > 1) return;
  pthread_cond_destroy(&job->done);
  pthread_mutex_destroy(&job->lock);
  free(job);
}

/* All but what requests need that are still there. */
static void job_free(struct zenps_job *job) {
  for (struct zenps_tensor *tensor = job->tensors, *next; tensor; tensor = next) {
    next = tensor->next;
    zps_worker_tensor_destroy(tensor);
  }
  zps_groups_destroy(job->groups);
  for (unsigned i = 0; i < ZPS_CLOSED_KEPT; i++) free(job->closed[i]);
  zps_worker_memory_fini(job);
  zps_worker_device_close(job->device);
  if (job->event_fd >= 0) close(job->event_fd);
  zps_worker_view_free(job);
  zps_join_fini(&job->join);
  zps_join_peers_fini(&job->peers);
  zps_telemetry_fini(&job->telemetry);
  pthread_cond_destroy(&job->waiting.due);
  pthread_mutex_destroy(&job->device_lock);
  pthread_mutex_destroy(&job->open);
  pthread_mutex_destroy(&job->collective.lock);
  zps_worker_log_drop(job);
  zps_worker_options_fini(&job->options);
  zps_worker_job_unref(job);
}

/* What the environment and the program leave to the profile. */
static void log_profile(const struct zps_worker_options *options) {
  char text[ZPS_PROFILE_TEXT_SIZE];
  if (zps_worker_options_profile(options, text, sizeof text)) zps_log_info("%s", text);
}

static zps_err_t job_open(struct zenps_job *job, const struct zps_last_place *last, struct zps_error *error) {
  const struct zps_membership_handler handler = {.ctx = job,
                                                 .on_failed = on_failed,
                                                 .on_rank_left = on_rank_left,
                                                 .on_changed = on_changed,
                                                 .on_plan = on_plan,
                                                 .on_view = on_view,
                                                 .on_replay = on_replay,
                                                 .on_away = on_away,
                                                 .on_beat = on_beat,
                                                 .stuck_ns = stuck_ns};
  job->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (job->event_fd < 0) return zps_fail_errno(error, ZPS_ERR_IO, errno, "cannot create an eventfd");
  struct zps_worker_device *device;
  zps_err_t err = zps_membership_identify(&job->membership, &job->options, error);
  if (err == ZPS_OK && job->options.device >= 0) err = zps_worker_device_get(job, job->options.device, &device, error);
  if (job->options.device >= 0 && err == ZPS_OK) job->options.gpu_address = device->device->pci_address;
  zps_rounds_init(&job->rounds, &job->plane);
  job->rounds.idle = zps_worker_tensors_age;
  job->rounds.idle_ctx = job;
  job->rounds.tensor_of = zps_worker_served_tensor;
  const struct zps_plane_handler rounds = zps_rounds_handler(&job->rounds);
  if (err == ZPS_OK) err = zps_plane_open(&job->options, &rounds, &job->plane, error);
  if (err != ZPS_OK) {
    zps_membership_close(&job->membership);
    zps_worker_device_stop(job->device);
    return err;
  }
  zps_replay_init(&job->rounds, job->options.replay_memory_bytes, ZPS_REPLAY_GRACE_NS);
  job->rounds.replay.mapped = zps_worker_mapped;
  job->rounds.replay.held = zps_worker_hold;
  job->rounds.replay.ctx = job;
  zps_worker_suspect_init(job);
  if (job->device) zps_worker_device_probe(job->device, job->plane.engine);
  const struct zps_net_info *fabric = zps_net_info(zps_engine_net(job->plane.engine));
  err = zps_membership_open(&job->membership, &job->options, fabric, last, &handler, &job->join, error);
  job->options.rank = job->membership.rank;
  job->options.world = job->membership.world;
  zps_log_info("rank %u of job %s: fabric %s on %s, address %s", (unsigned)job->options.rank, job->options.job,
               fabric->provider, fabric->domain, fabric->address);
  log_profile(&job->options);
  if (err == ZPS_OK && zps_view_image_count_in(&job->join.view) == 0)
    err = zps_fail(error, ZPS_ERR_SERVER_LOST, "job %s has no server left", job->options.job);
  if (err == ZPS_OK)
    err = zps_plane_connect(&job->plane, &job->join, (uint32_t)job->options.rank, (uint32_t)job->options.world, error);
  if (err == ZPS_OK && job->device) zps_membership_memory(&job->membership, zps_worker_device_path(job->device));
  if (err != ZPS_OK) {
    zps_membership_leave(&job->membership, false, error);
    zps_membership_close(&job->membership);
    zps_plane_disconnect(&job->plane);
    zps_worker_device_stop(job->device);
    zps_plane_close(&job->plane);
    zps_rounds_fini(&job->rounds);
    return err;
  }
  zps_worker_view_connected(job);
  zps_telemetry_start(job);
  return ZPS_OK;
}

zps_err_t zps_worker_job_start(struct zps_worker_options *options, const struct zps_last_place *last,
                               struct zenps_job **job_p, struct zps_error *error) {
  zps_log_look_at_stderr();
  struct zenps_job *job = calloc(1, sizeof *job);
  if (!job) {
    zps_worker_options_fini(options);
    return zps_fail(error, ZPS_ERR_NOMEM, "zenps_open: out of memory");
  }
  zps_worker_options_move(&job->options, options);
  atomic_init(&job->refs, 1);
  job->pid = getpid();
  job->event_fd = -1;
  locks_init(job);
  zps_log_set_level((enum zps_log_level)job->options.log_level);
  if (job->options.log) zps_worker_log_take(job, job->options.log, job->options.log_ctx);
  const zps_err_t err = job_open(job, last, error);
  if (err != ZPS_OK) {
    job_free(job);
    return err;
  }
  *job_p = job;
  return ZPS_OK;
}

zenps_status_t zenps_open(const zenps_options_t *options, zenps_job_t **job_p) {
  struct zps_error error = {0};
  struct zps_worker_options loaded;
  if (!job_p) return zps_worker_fail(ZPS_ERR_INVALID, "zenps_open: job is NULL");
  zps_err_t err = zps_worker_options_load(options, &loaded, &error);
  if (err == ZPS_OK) err = zps_worker_job_start(&loaded, &(struct zps_last_place){.generation = 0}, job_p, &error);
  return err == ZPS_OK ? ZENPS_OK : zps_worker_raise(&error);
}

/* ------------------------------------------------------------ close */

static unsigned rounds_left(const struct zenps_job *job) {
  unsigned n = 0;
  for (const struct zenps_tensor *tensor = job->tensors; tensor; tensor = tensor->next) n += tensor->n_active;
  return n;
}

/* Waits until no round is in flight; what a hung fabric holds is given up. Results that other ranks still read from
 * here have until their round's deadline. */
static void drain(struct zenps_job *job) {
  const uint64_t until_ns = zps_clock_ns() + CLOSE_WAIT_MS * ZPS_NS_PER_MS;
  pthread_mutex_lock(&job->lock);
  while (job->n_serving > 0) pthread_cond_wait(&job->done, &job->lock);
  while (rounds_left(job) > 0 && zps_thread_wait(&job->done, &job->lock, until_ns)) continue;
  pthread_mutex_unlock(&job->lock);
}

/* No rank waits for frames of a job that has failed. */
static bool has_failed(struct zenps_job *job) {
  pthread_mutex_lock(&job->lock);
  const bool failed = job->failed;
  pthread_mutex_unlock(&job->lock);
  return failed;
}

static void begin_closing(struct zenps_job *job) {
  pthread_mutex_lock(&job->lock);
  job->closing = true;
  pthread_mutex_unlock(&job->lock);
}

/* No thread is left that could end the rounds that a hung fabric holds. */
static void end_requests(struct zenps_job *job) {
  pthread_mutex_lock(&job->lock);
  for (struct zenps_tensor *tensor = job->tensors; tensor; tensor = tensor->next) zps_worker_tensor_rounds_end(tensor);
  pthread_mutex_unlock(&job->lock);
  pthread_cond_broadcast(&job->done);
}

void zps_worker_job_end(struct zenps_job *job, struct zps_worker_options *options) {
  begin_closing(job);
  zps_deferred_thread_end(&job->waiting);
  zps_rounds_close(&job->rounds);
  drain(job);
  if (!has_failed(job)) zps_plane_drain(&job->plane, CLOSE_WAIT_MS);
  zps_telemetry_end(job);
  pthread_mutex_lock(&job->lock);
  while (job->first.n_flushing > 0) pthread_cond_wait(&job->done, &job->lock);
  const struct zps_error first = job->first.error;
  pthread_mutex_unlock(&job->lock);
  zps_membership_leave(&job->membership, options != NULL, &first);
  zps_replay_end(&job->rounds);
  zps_membership_close(&job->membership);
  zps_plane_disconnect(&job->plane);
  drain(job);
  zps_worker_device_stop(job->device);
  zps_plane_close(&job->plane);
  end_requests(job);
  zps_rounds_fini(&job->rounds);
  if (options) zps_worker_options_move(options, &job->options);
  job_free(job);
}

void zenps_close(zenps_job_t *job) {
  if (job && !zps_worker_forked(job)) zps_worker_job_end(job, NULL);
}

zenps_status_t zenps_job_fail(zenps_job_t *job, const char *text) {
  if (!job || !text || !*text)
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_job_fail: the %s", job ? "text is empty" : "job is NULL");
  if (zps_worker_forked(job)) return zps_worker_fail_forked();
  pthread_mutex_lock(&job->lock);
  zps_first_note(job, ZPS_ERR_TRAINER, text);
  zps_first_flush(job);
  pthread_mutex_unlock(&job->lock);
  return ZENPS_OK;
}

/* ------------------------------------------------------------ the log */

zenps_status_t zenps_set_log(zenps_job_t *job, zenps_log_fn log, void *log_ctx) {
  if (!job) return zps_worker_fail(ZPS_ERR_INVALID, "zenps_set_log: the job is NULL");
  if (zps_worker_forked(job)) return zps_worker_fail_forked();
  if (log)
    zps_worker_log_take(job, log, log_ctx);
  else
    zps_worker_log_drop(job);
  return ZENPS_OK;
}

/* ------------------------------------------------------------ questions */

int zenps_rank(const zenps_job_t *job) {
  return job ? (int)job->options.rank : -1;
}

int zenps_world(const zenps_job_t *job) {
  return job ? (int)job->options.world : 0;
}

int zenps_servers(const zenps_job_t *job) {
  return job ? (int)job->join.view.n_places : 0;
}

const char *zenps_job_name(const zenps_job_t *job) {
  return job ? job->options.job : "";
}

uint64_t zenps_round_timeout_ms(const zenps_job_t *job) {
  return job ? job->options.round_timeout_ms : 0;
}

const char *zenps_provider(const zenps_job_t *job) {
  return job ? zps_net_info(zps_engine_net(job->plane.engine))->provider : "";
}

/* ------------------------------------------------------------ servers out of reach */

/* A round over servers is under way here. */
static bool waits(void *ctx) {
  const struct zenps_job *job = ctx;
  for (const struct zps_round *round = job->rounds.all; round; round = round->all_next)
    if (round->ops->can_give && !zps_round_machine_over(round->machine)) return true;
  return false;
}

static void suspect(void *ctx, uint32_t *servers, uint32_t n, const char *why) {
  struct zenps_job *job = ctx;
  struct zps_job_suspects suspects = {.job_id = job->join.job_id, .n_servers = n, .servers = servers};
  if (job->rounds.fail_code != ZPS_OK) return;
  snprintf(suspects.why, sizeof suspects.why, "%s", why);
  for (size_t i = 0, len = strlen(suspects.why); (i += zps_text_printable(suspects.why + i, len - i)) < len; i++)
    suspects.why[i] = '?';
  if (n > 0)
    zps_log_warn_limited("%u of %u servers cannot be reached, first %s (%s): reporting them to the coordinator",
                         (unsigned)n, (unsigned)job->plane.n_servers, job->plane.servers[servers[0]].name,
                         suspects.why);
  if (zps_membership_suspect(&job->membership, &suspects) != ZPS_OK)
    zps_log_info("the coordinator is out of reach, too: reporting them later");
}

void zps_worker_suspect_init(struct zenps_job *job) {
  job->plane.reach = (struct zps_plane_reach){.ctx = job, .waits = waits, .suspect = suspect};
}
