#define ZPS_LOG_COMPONENT "membership"
#include "worker/control/membership.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/secret.h"

/* While the others are awaited, nobody has told us how often to say that we live. */
#define JOINING_HEARTBEAT_MS 1000u
#define LEAVE_TIMEOUT_MS 2000u
#define LEAVE_AWAY_TIMEOUT_MS 5000u /* a rank that goes without a word is taken for lost, and its job fails */
#define RESUME_TIMEOUT_MS 5000u
#define START_HINT                                                                                            \
  "start zenpsd there, name another coordinator (ZENPS_COORDINATOR), or run under zenpsrun, which starts one" \
  " (torchrun ... --no_python zenpsrun -- python TRAINER)"

/* ------------------------------------------------------------ what the coordinator says unasked */

static zps_err_t on_view(struct zps_membership *membership, const zps_json *params, struct zps_error *error) {
  struct zps_job_view message;
  zps_err_t err = zps_control_job_view_read(params, &message, error);
  if (err != ZPS_OK) return err;
  err = zps_view_image_check_named(&message.view, 1, error);
  if (err == ZPS_OK) membership->handler.on_view(membership->handler.ctx, &message.view);
  zps_job_view_fini(&message);
  return err;
}

static zps_err_t on_replay(struct zps_membership *membership, const zps_json *params, struct zps_error *error) {
  struct zps_job_steps steps;
  const zps_err_t err = zps_control_job_steps_read(params, &steps, error);
  if (err != ZPS_OK) return err;
  membership->handler.on_replay(membership->handler.ctx, &steps);
  zps_job_steps_fini(&steps);
  return ZPS_OK;
}

static void on_notify(void *ctx, const char *method, const zps_json *params) {
  struct zps_membership *membership = ctx;
  struct zps_error error;
  zps_err_t err = ZPS_OK;
  if (strcmp(method, "job.failed") == 0) {
    struct zps_frame_abort failure;
    zps_control_job_failed_read(params, &failure);
    membership->handler.on_failed(membership->handler.ctx, &failure);
  } else if (strcmp(method, "tensor.plan") == 0) {
    struct zps_tensor_plan plan;
    err = zps_control_plan_read(params, &plan, &error);
    if (err == ZPS_OK) membership->handler.on_plan(membership->handler.ctx, &plan);
  } else if (strcmp(method, "job.view") == 0) {
    err = on_view(membership, params, &error);
  } else if (strcmp(method, "job.replay") == 0) {
    err = on_replay(membership, params, &error);
  } else if (strcmp(method, "job.changed") == 0) {
    membership->handler.on_changed(membership->handler.ctx);
  } else if (strcmp(method, "rank.left") == 0) {
    struct zps_job_call left;
    err = zps_control_rank_left_read(params, &left, &error);
    if (err == ZPS_OK) zps_log_info("rank %" PRIu32 " left the job", left.rank);
    if (err == ZPS_OK) membership->handler.on_rank_left(membership->handler.ctx, left.rank);
  }
  if (err == ZPS_ERR_NOMEM)
    zps_membership_renew(membership);
  else if (err != ZPS_OK)
    zps_log_warn("the coordinator sent an invalid %s: %s", method, error.text);
}

static void on_beat(void *ctx) {
  const struct zps_membership *membership = ctx;
  membership->handler.on_beat(membership->handler.ctx);
}

static void on_heartbeat(void *ctx, const zps_json *params) {
  struct zps_membership *membership = ctx;
  zps_beat_hear(&membership->heard, params, zps_clock_ns());
}

static zps_json *beat(void *ctx, const struct zps_silence *silence, uint64_t now_ns) {
  const struct zps_membership *membership = ctx;
  const uint64_t stuck_ns = membership->handler.stuck_ns(membership->handler.ctx, silence, now_ns);
  return zps_beat_next(&membership->heard, stuck_ns / ZPS_NS_PER_MS, zps_clock_ns());
}

static void on_lost(void *ctx, const char *reason) {
  struct zps_membership *membership = ctx;
  if (atomic_exchange(&membership->lost, true)) return;
  zps_log_warn("lost the coordinator (%s): rounds go on, but no tensor can be opened any more", reason);
  if (atomic_load(&membership->joined)) membership->handler.on_away(membership->handler.ctx);
}

/* ------------------------------------------------------------ a connection that is made anew */

static void on_away(void *ctx, const char *reason) {
  struct zps_membership *membership = ctx;
  membership->heard = (struct zps_beat_heard){.sent_us = 0};
  atomic_store(&membership->away, true);
  zps_log_warn("the coordinator is out of reach (%s): rounds go on; connecting again", reason);
  if (atomic_load(&membership->joined)) membership->handler.on_away(membership->handler.ctx);
}

static zps_json *resume_params(const struct zps_membership *membership) {
  return zps_control_resume_write(&(struct zps_resume_spec){.job_id = membership->job_id,
                                                            .secret = membership->secret,
                                                            .rank = membership->rank,
                                                            .incarnation = membership->incarnation});
}

static zps_json *on_resume(void *ctx, const char **method_p) {
  struct zps_membership *membership = ctx;
  if (!atomic_load(&membership->joined)) { /* its join is sent again */
    atomic_fetch_add(&membership->n_bare, 1);
    return NULL;
  }
  *method_p = "job.resume";
  return resume_params(membership);
}

/* The coordinator that let this rank in has none of it any more: the job has failed, or this rank is taken for lost.
 * One that knows nothing of the job, since it has started again without its state, decides nothing about it. */
static void expelled(struct zps_membership *membership, const struct zps_error *error) {
  struct zps_frame_abort failure = {.code = ZPS_ERR_PEER_LOST, .ranks = {membership->rank}, .n_ranks = 1};
  snprintf(failure.text, sizeof failure.text, "%.400s", error->text);
  atomic_store(&membership->over, true);
  membership->handler.on_failed(membership->handler.ctx, &failure);
}

static zps_err_t on_resumed(void *ctx, const zps_json *result, const struct zps_error *error) {
  struct zps_membership *membership = ctx;
  (void)result;
  atomic_store(&membership->away, false);
  if (!error) {
    const char *const memory = atomic_load(&membership->memory);
    const char *const held = atomic_load(&membership->held);
    if (memory) zps_membership_memory(membership, memory);
    if (held) zps_membership_hold(membership, held);
    return ZPS_OK;
  }
  if (error->code != ZPS_ERR_STALE && error->code != ZPS_ERR_UNSUPPORTED) expelled(membership, error);
  return error->code;
}

/* ------------------------------------------------------------ join */

/* The host's name, where the options have none, goes to `host`. */
static struct zps_join_spec join_spec(const struct zps_worker_options *options, const struct zps_net_info *fabric,
                                      uint64_t timeout_ms, char *host, size_t size) {
  if (gethostname(host, size) != 0) host[0] = '\0';
  host[size - 1] = '\0';
  return (struct zps_join_spec){.job = options->job,
                                .host = options->host ? options->host : host,
                                .rack = options->rack,
                                .world = (uint32_t)options->world,
                                .rank = (uint32_t)options->rank,
                                .pid = (uint32_t)getpid(),
                                .places = (uint32_t)options->server_places,
                                .timeout_ms = timeout_ms,
                                .fabric = fabric};
}

/* The token that lets this rank in, if it has one: read at each join, as it may be another by then. */
static zps_err_t read_token(const struct zps_worker_options *options, char token[ZPS_JOIN_TOKEN_MAX + 2],
                            struct zps_error *error) {
  struct zps_error why;
  token[0] = '\0';
  if (!options->token_file) return ZPS_OK;
  const zps_err_t err = zps_private_read(options->token_file, "token file", token, ZPS_JOIN_TOKEN_MAX + 2, &why);
  if (err != ZPS_OK) return zps_fail(error, err, "ZENPS_TOKEN_FILE: %.440s", why.text);
  token[strcspn(token, "\r\n")] = '\0';
  return token[0] ? ZPS_OK
                  : zps_fail(error, ZPS_ERR_INVALID, "ZENPS_TOKEN_FILE: %.300s has no token in its first line",
                             options->token_file);
}

zps_err_t zps_membership_identify(struct zps_membership *membership, struct zps_worker_options *options,
                                  struct zps_error *error) {
  const struct zps_tls_files files = {
      .ca = options->tls_ca, .cert = options->tls_cert, .key = options->tls_key, .crl = options->tls_crl};
  struct zps_error why;
  zps_err_t err = ZPS_OK;
  if (!membership->tls && zps_tls_files_any(&files)) err = zps_tls_create(&files, &membership->tls, &why);
  options->tls = membership->tls;
  if (err == ZPS_OK) return ZPS_OK;
  return zps_fail(error, err, "ZENPS_TLS_CA, ZENPS_TLS_CERT and ZENPS_TLS_KEY: %.420s", why.text);
}

static uint64_t left_ms(uint64_t deadline_ns) {
  const uint64_t now_ns = zps_clock_ns();
  return now_ns < deadline_ns ? (deadline_ns - now_ns) / ZPS_NS_PER_MS + 1 : 1;
}

/* The coordinator's deadline is a little before ours: it knows who is missing, we do not. */
static uint64_t with_margin(uint64_t timeout_ms) {
  return timeout_ms - (timeout_ms / 4 < 1000 ? timeout_ms / 4 : 1000);
}

/* The whole message, for the time that is left. */
static zps_json *join_params(const struct zps_membership *membership, const struct zps_worker_options *options,
                             const struct zps_net_info *fabric, const struct zps_last_place *last, const char *token,
                             uint64_t timeout_ms) {
  char host[ZPS_NAME_MAX];
  struct zps_next_spec spec = {.join = join_spec(options, fabric, with_margin(timeout_ms), host, sizeof host),
                               .min_world = (uint32_t)options->min_world,
                               .max_world = (uint32_t)options->max_world,
                               .wait_ms = options->join_wait_ms,
                               .generation = last->generation,
                               .last_rank = last->rank,
                               .last_job = last->job_id,
                               .step = last->step};
  spec.join.secret = membership->secret;
  spec.join.token = token;
  return options->max_world > 0 ? zps_control_next_write(&spec) : zps_control_join_write(&spec.join);
}

/* A generation that falls apart while it begins, since one of its ranks or servers is lost, is followed by another. */
static bool falls_apart(const struct zps_worker_options *options, zps_err_t err) {
  return options->max_world > 0 && (err == ZPS_ERR_PEER_LOST || err == ZPS_ERR_SERVER_LOST);
}

static zps_err_t join_job(struct zps_membership *membership, const struct zps_worker_options *options,
                          const struct zps_net_info *fabric, const struct zps_last_place *last, uint64_t deadline_ns,
                          struct zps_join *join, struct zps_error *error) {
  const char *const method = options->max_world > 0 ? "job.next" : "job.join";
  char token[ZPS_JOIN_TOKEN_MAX + 2];
  zps_json *result = NULL;
  zps_err_t err = read_token(options, token, error);
  if (err != ZPS_OK) return err;
  do {
    const uint64_t timeout_ms = left_ms(deadline_ns);
    err = zps_client_call(membership->client, method, join_params(membership, options, fabric, last, token, timeout_ms),
                          timeout_ms, &result, error);
  } while (falls_apart(options, err) && zps_clock_ns() < deadline_ns);
  if (err == ZPS_OK) err = zps_control_join_answer_read(result, join, error);
  if (err == ZPS_OK && options->max_world > 0) {
    err = zps_control_generation_read(result, &membership->generation, &membership->rank, &membership->world, error);
    if (err == ZPS_OK && membership->generation.number == 0)
      err = zps_fail(error, ZPS_ERR_PROTOCOL, "the coordinator does not say which rank this is");
    if (err != ZPS_OK) zps_join_fini(join);
  }
  zps_json_unref(result);
  return err;
}

/* A connection may have been made between the coordinator's answer and `joined`. On one that is in the job already this
 * changes nothing. On another the job may be over: then it ends as if that had been heard a moment later. */
static zps_err_t resume_bare(struct zps_membership *membership, const struct zps_worker_options *options,
                             struct zps_error *error) {
  if (atomic_load(&membership->n_bare) == 0) return ZPS_OK;
  const zps_err_t err =
      zps_client_call(membership->client, "job.resume", resume_params(membership), RESUME_TIMEOUT_MS, NULL, error);
  const bool is_told = err == ZPS_ERR_UNKNOWN || err == ZPS_ERR_PEER_LOST || err == ZPS_ERR_REFUSED;
  if (is_told) expelled(membership, error);
  if (err == ZPS_OK || !atomic_load(&membership->over)) return err;
  if (options->max_world > 0) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_PEER_LOST, "job %.60s: rank %" PRIu32 " was let in, and is in it no longer: %.300s",
                  options->job, membership->rank, error->text);
}

static void on_waiting(void *ctx, const char *reason) {
  (void)ctx;
  zps_log_warn("no zenpsd yet, retrying: %.290s; " START_HINT, reason);
}

zps_err_t zps_membership_open(struct zps_membership *membership, const struct zps_worker_options *options,
                              const struct zps_net_info *fabric, const struct zps_last_place *last,
                              const struct zps_membership_handler *handler, struct zps_join *join,
                              struct zps_error *error) {
  const uint64_t deadline_ns = zps_clock_ns() + options->join_timeout_ms * ZPS_NS_PER_MS;
  struct zps_client_handler client_handler = {.ctx = membership,
                                              .on_notify = on_notify,
                                              .on_lost = on_lost,
                                              .on_beat = on_beat,
                                              .on_heartbeat = on_heartbeat,
                                              .beat = beat,
                                              .on_away = on_away,
                                              .on_resume = on_resume,
                                              .on_resumed = on_resumed,
                                              .on_waiting = on_waiting,
                                              .refused_ms = options->refused_timeout_ms,
                                              .tls = membership->tls};
  membership->handler = *handler;
  membership->rank = (uint32_t)options->rank;
  membership->world = (uint32_t)options->world;
  if (zps_secret_make(&membership->secret) != ZPS_OK)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED,
                    "getrandom() does not work, which the secret comes from by which the coordinator knows this rank");
  struct zps_error why;
  zps_err_t err = zps_client_open(options->coordinator, "worker", options->join_timeout_ms, &client_handler,
                                  &membership->client, &why);
  if (err == ZPS_ERR_INVALID) return zps_fail(error, err, "coordinator (ZENPS_COORDINATOR): %.440s", why.text);
  if (err == ZPS_ERR_CONNECT) return zps_fail(error, err, "%.290s; " START_HINT, why.text);
  if (err != ZPS_OK) return zps_fail(error, err, "%s", why.text);
  zps_client_heartbeat(membership->client, JOINING_HEARTBEAT_MS, options->join_timeout_ms);
  err = join_job(membership, options, fabric, last, deadline_ns, join, error);
  if (err != ZPS_OK) return err;
  membership->job_id = join->job_id;
  membership->incarnation = join->incarnation;
  atomic_store(&membership->joined, true);
  err = resume_bare(membership, options, error);
  if (err != ZPS_OK) return err;
  zps_client_heartbeat(membership->client, join->heartbeat.heartbeat_ms, join->heartbeat.dead_ms);
  return ZPS_OK;
}

/* ------------------------------------------------------------ tensors */

zps_err_t zps_membership_register_start(struct zps_membership *membership, struct zps_tensor_spec *spec,
                                        uint64_t timeout_ms, struct zps_client_order **call_p,
                                        struct zps_error *error) {
  if (membership->lost) {
    return zps_fail(error, ZPS_ERR_CONNECT, "tensor %s cannot be opened: the coordinator was lost", spec->name);
  }
  spec->job_id = membership->job_id;
  return zps_client_call_start(membership->client, "tensor.register", zps_control_register_write(spec), timeout_ms,
                               call_p, error);
}

zps_err_t zps_membership_register_wait(struct zps_membership *membership, struct zps_client_order *call,
                                       struct zps_tensor_spec *spec, uint32_t n_servers, struct zps_error *error) {
  zps_json *result = NULL;
  zps_err_t err = zps_client_call_wait(membership->client, call, &result, error);
  if (err == ZPS_OK) err = zps_control_registered_read(result, n_servers, spec, error);
  zps_json_unref(result);
  return err;
}

zps_err_t zps_membership_tensor_close(struct zps_membership *membership, uint32_t tensor, uint64_t timeout_ms,
                                      struct zps_error *error) {
  const struct zps_job_call call = {
      .job_id = membership->job_id, .tensor = tensor, .timeout_ms = with_margin(timeout_ms)};
  return zps_client_call(membership->client, "tensor.close", zps_control_tensor_close_write(&call), timeout_ms, NULL,
                         error);
}

/* ------------------------------------------------------------ links to the other ranks */

zps_err_t zps_membership_peers(struct zps_membership *membership, uint32_t world, uint64_t timeout_ms,
                               struct zps_join_peers *peers, struct zps_error *error) {
  zps_json *result = NULL;
  zps_err_t err = zps_client_call(membership->client, "job.peers", zps_control_job_id_write(membership->job_id),
                                  timeout_ms, &result, error);
  if (err == ZPS_OK) err = zps_control_peers_read(result, world, peers, error);
  zps_json_unref(result);
  return err;
}

zps_err_t zps_membership_linked(struct zps_membership *membership, uint64_t timeout_ms, struct zps_error *error) {
  const struct zps_job_call call = {.job_id = membership->job_id, .timeout_ms = with_margin(timeout_ms)};
  return zps_client_call(membership->client, "job.linked", zps_control_linked_write(&call), timeout_ms, NULL, error);
}

zps_err_t zps_membership_group_open(struct zps_membership *membership, const char *name, const uint32_t *ranks,
                                    uint32_t n_ranks, uint64_t timeout_ms, struct zps_error *error) {
  struct zps_group_spec spec = {
      .job_id = membership->job_id, .ranks = ranks, .n_ranks = n_ranks, .timeout_ms = with_margin(timeout_ms)};
  if (membership->lost)
    return zps_fail(error, ZPS_ERR_CONNECT, "group %s cannot be opened: the coordinator was lost", name);
  snprintf(spec.name, sizeof spec.name, "%s", name);
  return zps_client_call(membership->client, "group.open", zps_control_group_open_write(&spec), timeout_ms, NULL,
                         error);
}

zps_err_t zps_membership_group_close(struct zps_membership *membership, const char *name, uint64_t timeout_ms,
                                     struct zps_error *error) {
  zps_json *const params =
      zps_control_group_close_write(&(struct zps_job_call){.job_id = membership->job_id, .text = name});
  return zps_client_call(membership->client, "group.close", params, timeout_ms, NULL, error);
}

/* ------------------------------------------------------------ leave */

void zps_membership_leave(struct zps_membership *membership, bool moves, const struct zps_error *first) {
  struct zps_error error;
  if (!membership->client || membership->job_id == 0 || membership->lost) return;
  const uint64_t timeout_ms = membership->away ? LEAVE_AWAY_TIMEOUT_MS : LEAVE_TIMEOUT_MS;
  const uint64_t until_ns = zps_clock_ns() + timeout_ms * ZPS_NS_PER_MS;
  const struct timespec pause = {.tv_nsec = 10000000}; /* without memory: for others to give some back */
  const struct zps_leave_spec leave = {.job_id = membership->job_id, .moves = moves, .first = *first};
  zps_err_t err;
  do err = zps_client_call(membership->client, "job.leave", zps_control_leave_write(&leave), timeout_ms, NULL, &error);
  while (err == ZPS_ERR_NOMEM && zps_clock_ns() < until_ns && nanosleep(&pause, NULL) == 0);
  if (err) zps_log_info("the coordinator did not take our leave: %s", error.text);
}

void zps_membership_close(struct zps_membership *membership) {
  zps_client_close(membership->client);
  zps_tls_unref(membership->tls);
  membership->client = NULL;
  membership->tls = NULL;
}
