#define ZPS_LOG_COMPONENT "plane"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/machine.h"
#include "common/control/addresses.h"
#include "worker/control/membership.h"
#include "worker/plane/plane.h"

zps_err_t zps_plane_open(const struct zps_worker_options *options, const struct zps_plane_handler *handler,
                         struct zps_plane *plane, struct zps_error *error) {
  const struct zps_engine_handler engine_handler = zps_plane_engine_handler(plane);
  char toward[256];
  zps_addresses_host(options->coordinator, toward, sizeof toward);
  const struct zps_engine_config config = {
      .name = "zenps-net",
      .net = {.provider = options->provider,
              .interface = options->interface,
              .subnet = options->subnet,
              .toward = toward,
              .gpu = options->gpu_address,
              .number = (unsigned)options->local_rank,
              .rails = (unsigned)options->rails,
              .connections = (unsigned)options->connections,
              .auth_key_file = options->auth_key_file,
              .fault = options->fault,
              .encrypt = options->encrypt,
              .bbr = options->bbr,
              .tls = options->tls,
              .dials = true,
              .device_memory = options->device >= 0,
              .max_msg = ZPS_WIRE_MESSAGE_MAX,
              .n_recv = 8,
              /* A core to spin on, beside the trainer's: never where ranks share cores. */
              .spin_us = zps_machine_cores_each(options->local_world) >= 4 ? 20 : 0,
              .keepalive_ms = (unsigned)options->keepalive_ms,
              .connect_timeout_ms = ZPS_NET_CONNECT_TIMEOUT_MS},
      .memory_limit_bytes = options->memory_limit_bytes,
      .memory_cache_bytes = options->memory_limit_bytes / 4,
  };
  plane->handler = *handler;
  plane->left_due_ns = ZPS_NEVER;
  zps_plane_memory_init(&plane->memory, NULL, options->memory_limit_bytes);
  zps_err_t err = zps_workpool_create((unsigned)options->threads, "zenps-work", &plane->pool);
  if (err == ZPS_OK) err = zps_workpool_create(1, "zenps-scan", &plane->scan_pool);
  if (err != ZPS_OK) {
    zps_fail(error, err, "cannot start %" PRIu64 " threads: %s", options->threads + 1, zps_err_str(err));
  } else {
    err = zps_engine_create(&config, &engine_handler, &plane->engine, error);
  }
  if (err == ZPS_OK)
    plane->memory.slab = zps_engine_slab(plane->engine);
  else
    zps_plane_close(plane);
  return err;
}

struct connect {
  struct zps_command command;
  struct zps_plane *plane;
  const struct zps_join *join;
  uint32_t rank, world;
  zps_err_t code;
  struct zps_error error;
};

zps_err_t zps_plane_remote_connect(struct zps_plane *plane, struct zps_remote *remote, const void *addr,
                                   size_t addr_len, struct zps_error *error) {
  struct zps_net *net = zps_engine_net(plane->engine);
  remote->plane = plane;
  zps_err_t err = zps_net_peer_add(net, addr, addr_len, remote, &remote->peer, error);
  if (err != ZPS_OK) return err;
  err = zps_bulk_peer_add(zps_engine_bulk(plane->engine), remote->peer, &remote->bulk);
  if (err == ZPS_OK)
    err = zps_link_create(
        net, remote->peer,
        &(struct zps_link_ends){.job = plane->job_id,
                                .epoch = plane->epoch,
                                .self = plane->rank,
                                .other = remote->is_rank ? remote->index : remote->index | ZPS_WIRE_SRC_SERVER,
                                .tag = remote->tag,
                                .secret = &plane->secret,
                                .server = addr,
                                .server_len = remote->is_rank ? 0 : addr_len,
                                .since = remote->since,
                                .bulk = remote->bulk,
                                .counts = zps_engine_link_counts(plane->engine)},
        &remote->link);
  if (err != ZPS_OK) return zps_fail(error, err, "%s", zps_err_str(err));
  if (!remote->is_rank) zps_link_measure(remote->link, true); /* servers are there before ranks are */
  return ZPS_OK;
}

/* Nothing goes there, and nobody is suspected of anything, until a server takes the place. */
static void mark_free(struct zps_remote *server) {
  server->lost = true;
  snprintf(server->why, sizeof server->why, "the place is free");
  zps_plane_off(server);
}

static void connect_run(struct zps_command *command, void *handler_ctx) {
  struct connect *connect = (struct connect *)command;
  struct zps_plane *plane = handler_ctx;
  const struct zps_join *join = connect->join;
  plane->job_id = join->job_id;
  plane->secret = join->link_secret;
  plane->epoch = join->view.epoch;
  plane->rank = connect->rank;
  plane->world = connect->world;
  plane->servers = calloc(join->view.n_places, sizeof *plane->servers);
  if (!plane->servers) {
    connect->code = zps_fail(&connect->error, ZPS_ERR_NOMEM, "no memory for %" PRIu32 " servers", join->view.n_places);
    return;
  }
  for (uint32_t s = 0; s < join->view.n_places; s++) {
    plane->servers[s].plane = plane;
    plane->servers[s].index = plane->servers[s].tag = s;
  }
  if (join->checksums) {
    connect->code = zps_checks_create(&join->link_secret, join->job_id, plane->engine, plane->pool, NULL,
                                      &plane->checks, &connect->error);
    if (connect->code != ZPS_OK) return;
  }
  plane->n_servers = join->view.n_places;
  plane->next_tag = join->view.n_places + connect->world;
  if (zps_plane_watch_open(plane, join->heartbeat.dead_ms) != ZPS_OK) {
    connect->code =
        zps_fail(&connect->error, ZPS_ERR_NOMEM, "no memory to watch %" PRIu32 " servers", join->view.n_places);
    return;
  }
  for (uint32_t s = 0; s < join->view.n_places; s++) {
    const struct zps_place_server *to = &join->view.places[s].server;
    struct zps_error why;
    if (!zps_view_image_is_in(&join->view, s)) {
      mark_free(&plane->servers[s]);
      continue;
    }
    plane->servers[s].since = join->view.places[s].since;
    snprintf(plane->servers[s].name, sizeof plane->servers[s].name, "%s", to->name);
    connect->code = zps_plane_remote_connect(plane, &plane->servers[s], to->addr, to->addr_len, &why);
    if (connect->code == ZPS_OK) continue;
    zps_fail(&connect->error, connect->code, "cannot reach server %" PRIu32 " (%s): %s", s, to->name, why.text);
    return;
  }
}

zps_err_t zps_plane_connect(struct zps_plane *plane, const struct zps_join *join, uint32_t rank, uint32_t world,
                            struct zps_error *error) {
  struct connect connect = {.command.run = connect_run, .plane = plane, .join = join, .rank = rank, .world = world};
  const zps_err_t err = zps_engine_call(plane->engine, &connect.command);
  if (err != ZPS_OK) return zps_fail(error, err, "the progress thread does not answer: %s", zps_err_str(err));
  if (connect.code != ZPS_OK && error) *error = connect.error;
  return connect.code;
}

zps_err_t zps_plane_server_replace(struct zps_plane *plane, uint32_t index, const struct zps_place_image *place,
                                   struct zps_error *error) {
  struct zps_error why;
  struct zps_remote *const remote = &plane->servers[index];
  zps_plane_lose(remote, "another server is in its place");
  zps_plane_remote_drop(remote);
  *remote = (struct zps_remote){.index = index, .tag = plane->next_tag++, .since = place->since};
  remote->plane = plane;
  snprintf(remote->name, sizeof remote->name, "%s", place->server.name);
  zps_plane_watch_renew(remote);
  const zps_err_t err = zps_plane_remote_connect(plane, remote, place->server.addr, place->server.addr_len, &why);
  return err ? zps_fail(error, err,
                        "cannot reach server %" PRIu32 " (%s), which takes the place of one that is gone: %s",
                        remote->index, remote->name, why.text)
             : ZPS_OK;
}

static void drop_all(struct zps_plane *plane, const char *why) {
  for (uint32_t s = 0; s < plane->n_servers; s++) zps_plane_lose(&plane->servers[s], why);
  for (uint32_t r = 0; plane->ranks && r < plane->world; r++) zps_plane_lose(&plane->ranks[r], why);
  zps_plane_drop_lost(plane);
}

void zps_plane_shut(struct zps_plane *plane, const char *why) {
  if (plane->shut) return;
  plane->shut = true;
  zps_net_shut(zps_engine_net(plane->engine));
  drop_all(plane, why);
}

static void drop_all_run(struct zps_command *command, void *handler_ctx) {
  (void)command;
  struct zps_plane *plane = handler_ctx;
  plane->closed = true;
  drop_all(plane, "the job is closed");
}

struct drain {
  struct zps_command command;
  bool through;
};

static void drain_run(struct zps_command *command, void *handler_ctx) {
  struct drain *drain = (struct drain *)command;
  const struct zps_plane *plane = handler_ctx;
  drain->through = true;
  for (uint32_t r = 0; plane->ranks && r < plane->world; r++) {
    const struct zps_remote *rank = &plane->ranks[r];
    if (rank->link && !rank->lost && !rank->left_ns && !zps_link_settles(rank->link)) drain->through = false;
  }
}

void zps_plane_drain(struct zps_plane *plane, unsigned wait_ms) {
  const uint64_t until_ns = zps_clock_ns() + wait_ms * ZPS_NS_PER_MS;
  struct drain drain = {.command.run = drain_run};
  while (zps_engine_call(plane->engine, &drain.command) == ZPS_OK && !drain.through && zps_clock_ns() < until_ns)
    nanosleep(&(struct timespec){.tv_nsec = ZPS_NS_PER_MS}, NULL);
}

void zps_plane_disconnect(struct zps_plane *plane) {
  struct zps_command drop = {.run = drop_all_run};
  if (zps_engine_call(plane->engine, &drop) != ZPS_OK) zps_log_warn("closing with peers still connected");
}

void zps_plane_close(struct zps_plane *plane) {
  for (uint32_t r = 0; plane->segment && r < plane->world; r++) zps_segment_give_up(plane->segment, r);
  /* The pools first: a task's end is reported to the engine. A scan uses both. */
  zps_workpool_destroy(plane->scan_pool);
  zps_workpool_destroy(plane->pool);
  zps_engine_destroy(plane->engine);
  zps_checks_unref(plane->checks);
  zps_scratch_pool_destroy(plane->scratches);
  for (uint32_t r = 0; plane->ranks && r < plane->world; r++) zps_segment_unmap(&plane->ranks[r].shared.view);
  zps_segment_destroy(plane->segment);
  free(plane->watch.servers);
  free(plane->signs);
  free(plane->servers);
  free(plane->ranks);
  memset(plane, 0, sizeof *plane);
}
