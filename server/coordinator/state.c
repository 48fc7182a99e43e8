/*
 * The coordinator's state on disk. What membership notes goes into the journal; what the coordinator says in the same
 * turn of its loop is held back until that is durable, by one commit a turn for all of it. So nobody knows what the
 * coordinator might forget.
 */
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/moment.h"
#include "server/coordinator/coordinator_impl.h"
#include "server/coordinator/records.h"
#include "server/state/store.h"

#define ZPS_LOG_COMPONENT "coordinator"
#include "common/base/log.h"

#define COMPACT_BYTES ((size_t)4 << 20)

/* ---- Load ---- */

static void append(struct zps_coordinator *coordinator, zps_json *record) {
  char *const text = record ? zps_json_dump(record) : NULL;
  zps_store_append(coordinator->store, text);
  free(text);
  zps_json_unref(record);
}

static void append_all(void *ctx) {
  struct zps_coordinator *coordinator = ctx;
  append(coordinator, zps_record_header_write(coordinator->cluster, coordinator->incarnation));
  zps_members_note_all(coordinator->members);
}

static void hold(struct zps_coordinator *coordinator, bool held) {
  coordinator->holds = held;
  zps_rpc_listener_hold(coordinator->listener, held);
  zps_rpc_listener_hold(coordinator->socket, held);
  zps_rpc_listener_hold(coordinator->own, held);
}

static zps_err_t begin(struct zps_coordinator *coordinator, const struct zps_replay *replay, uint64_t until_ns,
                       struct zps_error *error) {
  coordinator->compact_at = COMPACT_BYTES;
  if (replay->n == 0) return zps_store_compact(coordinator->store, append_all, coordinator, error);
  coordinator->depth++; /* no answers can come in meanwhile */
  zps_members_restored(coordinator->members, until_ns);
  coordinator->depth--;
  zps_err_t err = zps_store_commit(coordinator->store, error);
  /* A journal has one version: records of this program's do not go behind older ones. */
  if (!err && replay->header.version != ZPS_RECORDS_VERSION)
    err = zps_store_compact(coordinator->store, append_all, coordinator, error);
  if (!err) hold(coordinator, false);
  return err;
}

zps_err_t zps_coordinator_state_load(struct zps_coordinator *coordinator, struct zps_store_backend *backend,
                                     struct zps_error *error) {
  struct zps_replay replay = {
      .members = coordinator->members, .cluster = coordinator->cluster, .now_ns = zps_clock_ns()};
  const zps_err_t err = zps_store_open(backend, zps_replay_take, &replay, &coordinator->store, error);
  if (err && replay.error.code) *error = replay.error;
  if (err) {
    backend->ops->close(backend);
    return err;
  }
  if (replay.n > 0) coordinator->incarnation = replay.header.incarnation;
  zps_log_info("state in %s: %llu records, incarnation 0x%016llx", backend->name, (unsigned long long)replay.n,
               (unsigned long long)coordinator->incarnation);
  return begin(coordinator, &replay, zps_clock_ns() + coordinator->config.restart_grace_ms * ZPS_NS_PER_MS, error);
}

zps_err_t zps_coordinator_state_open(struct zps_coordinator *coordinator, const struct zps_coordinator_config *config,
                                     struct zps_error *error) {
  struct zps_store_backend *backend;
  if (!config->state_dir && !config->etcd.access.members) return ZPS_OK;
  coordinator->cluster = strdup(config->cluster);
  if (!coordinator->cluster) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for the state");
  if (!config->state_dir) return ZPS_OK; /* there is a state when this coordinator leads */
  coordinator->state_dir = strdup(config->state_dir);
  if (!coordinator->state_dir) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for the state");
  const zps_err_t err = zps_store_file_open(config->state_dir, &backend, error);
  return err ? err : zps_coordinator_state_load(coordinator, backend, error);
}

/* ---- Notes, and what waits for them ---- */

void zps_coordinator_break(struct zps_coordinator *coordinator, const struct zps_error *error) {
  coordinator->broken = true;
  hold(coordinator, true);
  coordinator->config.on_broken(coordinator->config.ctx, error);
}

void zps_coordinator_note(void *ctx, const struct zps_member_note *note) {
  struct zps_coordinator *coordinator = ctx;
  if (!coordinator->store || coordinator->closing) return;
  /* Whoever may join could fill the journal with jobs that never run. */
  if (note->type == ZPS_NOTE_JOB_ENDED && note->ended->epoch == 0) return;
  append(coordinator, zps_record_write(note));
  if (!coordinator->holds) hold(coordinator, true);
}

static zps_err_t save(struct zps_coordinator *coordinator, struct zps_error *error) {
  zps_err_t err = zps_store_commit(coordinator->store, error);
  if (err || zps_store_size(coordinator->store) < coordinator->compact_at) return err;
  err = zps_store_compact(coordinator->store, append_all, coordinator, error);
  const size_t twice = 2 * zps_store_size(coordinator->store);
  coordinator->compact_at = twice > COMPACT_BYTES ? twice : COMPACT_BYTES;
  return err;
}

void zps_coordinator_state_save(struct zps_coordinator *coordinator) {
  struct zps_error error;
  if (!coordinator->store || coordinator->broken || !coordinator->holds) return;
  ZPS_MOMENT("noted, not written");
  if (save(coordinator, &error)) {
    zps_coordinator_break(coordinator, &error);
    return;
  }
  ZPS_MOMENT("written, not sent");
  hold(coordinator, false);
}

static void on_prepare(uv_prepare_t *handle) {
  zps_coordinator_check_lease(handle->data);
  zps_coordinator_state_save(handle->data);
}
static void on_check(uv_check_t *handle) {
  zps_coordinator_check_lease(handle->data);
  zps_coordinator_state_save(handle->data);
}

/* Behind the timers of a turn, and behind its messages. */
void zps_coordinator_state_start(struct zps_coordinator *coordinator, uv_loop_t *loop) {
  uv_prepare_init(loop, &coordinator->before);
  uv_check_init(loop, &coordinator->after);
  coordinator->before.data = coordinator->after.data = coordinator;
  if (!coordinator->store && !coordinator->following) return;
  uv_prepare_start(&coordinator->before, on_prepare);
  uv_check_start(&coordinator->after, on_check);
}

void zps_coordinator_state_fini(struct zps_coordinator *coordinator) {
  zps_store_close(coordinator->store);
  free(coordinator->cluster);
  free(coordinator->state_dir);
}
