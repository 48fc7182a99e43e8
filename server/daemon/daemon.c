#include "server/daemon/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#include "common/base/beside.h"
#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/base/descriptors.h"
#include "common/control/addresses.h"
#include "config.h"
#include "proto/wire.h"
#include "server/coordinator/addresses.h"
#include "server/coordinator/coordinator.h"
#include "server/daemon/agent.h"
#include "server/daemon/limits.h"
#include "server/daemon/outlook.h"
#include "server/daemon/systemd.h"
#include "server/daemon/ready.h"

#define ZPS_LOG_COMPONENT "zenpsd"
#include "common/base/log.h"

#define DRAIN_POLL_MS 50u
#define DESCRIPTORS_KEPT \
  2048ul /* from the control plane's open connections: without a hello, with reserved seats, files, a server */
#define WARN_MS (3600u * 1000u)
#define OUTLOOK_MS (60u * 1000u)
#define RECEIVES 64u /* until links reserve theirs */

/* Times that nobody has to choose. They follow from control.dead, or are long beside everything else. */
#define ORPHAN_GRACE_MS (10u * 60u * 1000u)
#define CALL_TIMEOUT_MIN_MS 10000u
#define LEASE_MIN_S 2u

struct daemon {
  uv_loop_t loop;
  struct zps_options *options;
  int argc;
  char **argv;
  struct zps_tls *tls; /* NULL: none is spoken */
  struct zps_shard *shard;
  struct zps_coordinator *coordinator;
  struct zps_agent *agent;
  struct zps_ready ready;
  uv_signal_t terminate, interrupt, hangup;
  uv_timer_t drain, watchdog, open, look;
  struct zps_outlook outlook;
  uint64_t drain_deadline_ns;
  bool draining, stopping;
  struct zps_error broken; /* code ZPS_OK: it ends as asked */
};

/* ---- The end ---- */

static void stop(struct daemon *daemon) {
  if (daemon->stopping) return;
  daemon->stopping = true;
  zps_ready_end(&daemon->ready);
  zps_agent_close(daemon->agent);
  zps_coordinator_close(daemon->coordinator);
  daemon->agent = NULL;
  daemon->coordinator = NULL;
  uv_handle_t *const handles[] = {(uv_handle_t *)&daemon->terminate, (uv_handle_t *)&daemon->interrupt,
                                  (uv_handle_t *)&daemon->hangup,    (uv_handle_t *)&daemon->drain,
                                  (uv_handle_t *)&daemon->watchdog,  (uv_handle_t *)&daemon->open,
                                  (uv_handle_t *)&daemon->look};
  for (unsigned i = 0; i < sizeof handles / sizeof handles[0]; i++) uv_close(handles[i], NULL);
}

static void on_drain(uv_timer_t *timer) {
  struct daemon *daemon = timer->data;
  const unsigned jobs = daemon->coordinator ? zps_coordinator_jobs(daemon->coordinator) : 0;
  const unsigned jobs_here = daemon->shard ? zps_shard_jobs(daemon->shard) : 0;
  if (jobs + jobs_here > 0) {
    if (zps_clock_ns() < daemon->drain_deadline_ns) return;
    zps_log_warn("drain.timeout has passed: exiting, though %u jobs have not ended",
                 jobs > jobs_here ? jobs : jobs_here);
  } else {
    zps_log_info("drained, exiting");
  }
  stop(daemon);
}

static void on_terminate(uv_signal_t *handle, int number) {
  struct daemon *daemon = handle->data;
  if (daemon->draining) {
    zps_log_warn("signal %d again: exiting at once", number);
    stop(daemon);
    return;
  }
  zps_log_info("signal %d: draining", number);
  zps_notify("STOPPING=1");
  zps_ready_end(&daemon->ready);
  if (!daemon->shard && (daemon->options->coordinator_state_dir || zps_options_is_candidate(daemon->options))) {
    zps_log_info("the coordinator's state is kept: jobs go on, and wait for the next coordinator");
    stop(daemon);
    return;
  }
  daemon->draining = true;
  daemon->drain_deadline_ns = zps_clock_ns() + daemon->options->drain_timeout_ms * ZPS_NS_PER_MS;
  if (daemon->agent) zps_agent_drain(daemon->agent);
  if (daemon->coordinator) zps_coordinator_drain(daemon->coordinator);
  uv_timer_start(&daemon->drain, on_drain, 0, DRAIN_POLL_MS);
}

/* ---- Reload ---- */

static void on_option_changed(void *ctx, const char *name, bool taken) {
  (void)ctx;
  if (taken) {
    zps_log_info("reload: %s has changed", name);
  } else {
    zps_log_warn("reload: %s has changed in the configuration, but needs a restart to take effect", name);
  }
}

static void on_broken(void *ctx, const struct zps_error *error) {
  struct daemon *daemon = ctx;
  daemon->broken = *error;
  stop(daemon);
}

/* Of the control plane, by the descriptors that this process may have. */
static unsigned long max_conns(unsigned long descriptors) {
  if (descriptors == 0 || descriptors > ZPS_COORDINATOR_CONNS_MAX + DESCRIPTORS_KEPT) return ZPS_COORDINATOR_CONNS_MAX;
  return descriptors > 2 * DESCRIPTORS_KEPT ? descriptors - DESCRIPTORS_KEPT : descriptors / 2;
}

/* By itself where only those whom somebody let in are members, so that a key is worth something. On one host, too: a
 * process there can take the place of a connection, and answer reads. */
static bool has_checksums(const struct zps_options *options) {
  if (options->fabric_checksums == ZPS_CHECKSUMS_AUTO) return options->tls_cert || options->token_keys.n > 0;
  return options->fabric_checksums == ZPS_CHECKSUMS_YES;
}

static uint64_t call_timeout_ms(uint64_t dead_ms) {
  return 2 * dead_ms > CALL_TIMEOUT_MIN_MS ? 2 * dead_ms : CALL_TIMEOUT_MIN_MS;
}

static uint64_t lease_s(uint64_t dead_ms) {
  const uint64_t whole_s = (dead_ms + 999) / 1000;
  return whole_s > LEASE_MIN_S ? whole_s : LEASE_MIN_S;
}

static struct zps_coordinator_config coordinator_config(const struct zps_options *options) {
  return (struct zps_coordinator_config){
      .listen = options->control_listen,
      .socket = options->control_socket,
      .socket_mode = options->socket_mode,
      .socket_group = options->socket_group,
      .own_socket = zps_options_is_shared(options),
      .heartbeat_ms = options->control_heartbeat_ms,
      .dead_ms = options->control_dead_ms,
      .resume_grace_ms = options->control_resume_grace_ms,
      .restart_grace_ms = options->coordinator_restart_grace_ms,
      .state_dir = options->coordinator_state_dir,
      .cluster = options->coordinator_cluster,
      .token_keys = &options->token_keys,
      .checked = has_checksums(options),
      .own_addresses = options->coordinator_addresses == ZPS_ADDRESSES_OWN ||
                       (options->coordinator_addresses == ZPS_ADDRESSES_AUTO && options->tls_cert),
      .subnets = options->fabric_subnet,
      .call_timeout_ms = call_timeout_ms(options->control_dead_ms),
      .leave_grace_ms = 6 * options->control_dead_ms,
      .min_servers = (uint32_t)options->coordinator_min_servers,
      .max_tensors = (uint32_t)options->job_max_tensors,
      .max_waiting = (uint32_t)options->job_max_waiting,
      .weights = options->job_weights,
      .max_conns = (unsigned)max_conns(zps_descriptors_raise()),
      .server_loss_replays = options->coordinator_server_loss == ZPS_SERVER_LOSS_REPLAY,
      .server_places = (uint32_t)options->job_server_places};
}

static zps_err_t reload(struct daemon *daemon, struct zps_error *error) {
  struct zps_options fresh;
  struct zps_config_rest rest;
  zps_err_t err = zps_config_load(&zps_options_table, daemon->argc, daemon->argv, NULL, &fresh, &rest, error);
  if (err) return err;
  err = zps_options_complete(&fresh, error);
  if (!err && daemon->tls) err = zps_tls_reload(daemon->tls, error);
  if (!err) err = zps_config_reload(&zps_options_table, daemon->options, &fresh, on_option_changed, daemon);
  if (!err) daemon->options->token_keys = fresh.token_keys;
  if (!err) zps_in_effect_log_file(&fresh, rest.file_read);
  zps_config_fini(&zps_options_table, &fresh);
  if (err) return err;
  zps_log_set_level((enum zps_log_level)daemon->options->log_level);
  zps_journal_set_format((enum zps_log_format)daemon->options->log_format);
  if (daemon->coordinator) {
    const struct zps_coordinator_config config = coordinator_config(daemon->options);
    zps_coordinator_reload(daemon->coordinator, &config);
  }
  return ZPS_OK;
}

static void on_hangup(uv_signal_t *handle, int number) {
  (void)number;
  struct zps_error error = {.code = ZPS_OK};
  zps_notify_reloading();
  if (reload(handle->data, &error)) {
    zps_log_error("reload: %s: the running configuration stays", error.text);
  } else {
    zps_log_info("reloaded");
  }
  zps_notify("READY=1");
}

/* ---- Alive ---- */

static void on_watchdog(uv_timer_t *timer) {
  const struct daemon *daemon = timer->data;
  if (!daemon->shard || zps_shard_answers(daemon->shard)) zps_notify("WATCHDOG=1");
}

/* The agent has registered, the coordinator leads, or they do not any more. */
static void on_role_change(void *ctx, bool is_ready, const char *text) {
  struct daemon *daemon = ctx;
  zps_ready_set(&daemon->ready, is_ready);
  zps_notify_status(text);
}

/* ---- Open to all ---- */

static void on_open_to_all(uv_timer_t *timer) {
  const struct daemon *daemon = timer->data;
  zps_log_warn("listening at %s without TLS (%s): anybody who reaches it may be a server or a rank",
               zps_coordinator_address(daemon->coordinator), zps_config_label("control.insecure"));
}

/* ---- What will stop it unless somebody acts ---- */

static void on_look(uv_timer_t *timer) {
  struct daemon *daemon = timer->data;
  const struct zps_options *const options = daemon->options;
  struct zps_outlook_facts facts = {
      .now_s = time(NULL), .certificate = options->tls_cert, .state_dir = options->coordinator_state_dir};
  struct statvfs disk;
  struct zps_shard_totals totals;
  if (daemon->tls) facts.certificate_ends_s = zps_tls_ends_s(daemon->tls);
  if (facts.state_dir && statvfs(facts.state_dir, &disk) == 0) {
    facts.disk_bytes = (uint64_t)disk.f_blocks * disk.f_frsize;
    facts.disk_free_bytes = (uint64_t)disk.f_bavail * disk.f_frsize;
  }
  if (daemon->shard && zps_shard_stats(daemon->shard, &totals, NULL, NULL, NULL) == ZPS_OK) {
    facts.memory_limit_bytes = totals.memory_limit_bytes;
    facts.memory_bytes = totals.slab.in_use_bytes;
  }
  zps_outlook_look(&daemon->outlook, &facts);
}

/* ---- The beginning ---- */

static zps_err_t init_loop(struct daemon *daemon, struct zps_error *error) {
  const int status = uv_loop_init(&daemon->loop);
  if (status < 0) return zps_fail(error, ZPS_ERR_IO, "cannot create the event loop: %s", uv_strerror(status));
  uv_timer_init(&daemon->loop, &daemon->drain);
  uv_timer_init(&daemon->loop, &daemon->watchdog);
  uv_timer_init(&daemon->loop, &daemon->open);
  uv_timer_init(&daemon->loop, &daemon->look);
  daemon->drain.data = daemon->watchdog.data = daemon->open.data = daemon->look.data = daemon;
  uv_signal_t *const signals[] = {&daemon->terminate, &daemon->interrupt, &daemon->hangup};
  for (unsigned i = 0; i < 3; i++) {
    uv_signal_init(&daemon->loop, signals[i]);
    signals[i]->data = daemon;
  }
  uv_signal_start(&daemon->terminate, on_terminate, SIGTERM);
  uv_signal_start(&daemon->interrupt, on_terminate, SIGINT);
  uv_signal_start(&daemon->hangup, on_hangup, SIGHUP);
  return ZPS_OK;
}

static zps_err_t start_shard(struct daemon *daemon, struct zps_error *error) {
  const struct zps_options *options = daemon->options;
  char toward[256];
  zps_addresses_host(zps_options_is_coordinator(options) ? options->control_listen : options->control_coordinator,
                     toward, sizeof toward);
  const struct zps_shard_config config = {
      .net = {.provider = options->fabric_provider,
              .encrypt = options->fabric_encrypt,
              .bbr = options->fabric_bbr,
              .tls = daemon->tls,
              .toward = toward,
              .number = (unsigned)options->server_index,
              .rails = (unsigned)options->fabric_rails,
              .interface = options->fabric_interface,
              .subnet = options->fabric_subnet,
              .auth_key_file = options->fabric_auth_key,
              .port_low = (uint16_t)options->fabric_port_low,
              .port_high = (uint16_t)options->fabric_port_high,
              .max_msg = ZPS_WIRE_MESSAGE_MAX,
              .n_recv = RECEIVES,
              .keepalive_ms = (unsigned)options->fabric_keepalive_ms,
              .spin_us = (unsigned)options->fabric_spin_us,
              .connect_timeout_ms = ZPS_NET_CONNECT_TIMEOUT_MS,
              .fault = options->fabric_fault},
      .memory_limit_bytes = options->server_memory_limit_bytes,
      .reduce_threads = (unsigned)options->server_reduce_threads,
      .read_budget_bytes = options->server_read_budget_bytes,
      .quota = {.memory_bytes = options->job_max_memory_bytes, .rounds = options->job_max_rounds},
  };
  const zps_err_t err = zps_shard_create(&config, &daemon->shard, error);
  if (err) return err;
  const struct zps_net_info *info = zps_shard_net_info(daemon->shard);
  const bool leaks = zps_address_leaks(info) && !zps_address_is_local(info);
  /* A server of zenpsrun lives for one run, and its user has chosen no address. */
  const bool is_run = options->control_coordinator && strncmp(options->control_coordinator, "unix:", 5) == 0;
  if (leaks && !is_run)
    zps_log_warn(
        "this libfabric is older than 1.18 and leaks memory with each connection to the data port "
        "(%s): " ZPS_LEAK_REMEDY,
        info->address);
  return ZPS_OK;
}

/* Written beside and renamed, so that a process that waits for it never reads half of it. */
static zps_err_t write_address(const char *path, const char *address, struct zps_error *error) {
  char beside[PATH_MAX];
  int fd;
  const zps_err_t err = zps_beside_create(path, zps_config_label("control.address_file"), beside, &fd, error);
  if (err) return err;
  const bool is_written = fchmod(fd, 0644) == 0 && dprintf(fd, "%s\n", address) > 0;
  if (close(fd) == 0 && is_written && rename(beside, path) == 0) return ZPS_OK;
  zps_fail_errno(error, ZPS_ERR_IO, errno, "%s: cannot write %s", zps_config_label("control.address_file"), path);
  unlink(beside);
  return ZPS_ERR_IO;
}

static zps_err_t start_coordinator(struct daemon *daemon, struct zps_error *error) {
  const struct zps_options *options = daemon->options;
  struct zps_coordinator_config config = coordinator_config(options);
  config.tls = daemon->tls;
  config.ctx = daemon;
  config.on_broken = on_broken;
  config.on_leads = on_role_change;
  if (zps_options_is_candidate(options))
    config.etcd = (struct zps_coordinator_etcd){.access = {.members = options->coordinator_etcd,
                                                           .ca = options->coordinator_etcd_ca,
                                                           .cert = options->coordinator_etcd_cert,
                                                           .key = options->coordinator_etcd_key},
                                                .prefix = options->coordinator_etcd_prefix,
                                                .host = options->server_host,
                                                .advertise = options->coordinator_advertise,
                                                .lease_s = lease_s(options->control_dead_ms)};
  const zps_err_t err = zps_coordinator_create(&daemon->loop, &config, &daemon->coordinator, error);
  if (err) return err;
  const char *address = zps_coordinator_address(daemon->coordinator);
  zps_log_info("coordinator: listening at %s%s", address, daemon->tls ? ", with TLS" : "");
  if (zps_options_is_open(options)) uv_timer_start(&daemon->open, on_open_to_all, 0, WARN_MS);
  return options->control_address_file ? write_address(options->control_address_file, address, error) : ZPS_OK;
}

/* An address to listen at may be none to connect to. */
static void own_address(const char *listening, char *buf, size_t size) {
  const char *port = strrchr(listening, ':');
  if (strncmp(listening, "0.0.0.0:", 8) == 0) {
    snprintf(buf, size, "127.0.0.1%s", port);
  } else if (strncmp(listening, "[::]:", 5) == 0) {
    snprintf(buf, size, "[::1]%s", port);
  } else {
    snprintf(buf, size, "%s", listening);
  }
}

static zps_err_t start_agent(struct daemon *daemon, struct zps_error *error) {
  const struct zps_options *options = daemon->options;
  char own[300] = "";
  if (daemon->coordinator) own_address(zps_coordinator_address(daemon->coordinator), own, sizeof own);
  const struct zps_agent_config config = {.coordinator = daemon->coordinator ? own : options->control_coordinator,
                                          .name = options->server_name,
                                          .host = options->server_host,
                                          .tls = daemon->tls,
                                          .shard = daemon->shard,
                                          .orphan_grace_ms = ORPHAN_GRACE_MS,
                                          .ctx = daemon,
                                          .on_change = on_role_change};
  return zps_agent_create(&daemon->loop, &config, &daemon->agent, error);
}

static zps_err_t start(struct daemon *daemon, struct zps_error *error) {
  const struct zps_tls_files files = zps_options_tls(daemon->options);
  zps_err_t err = zps_ready_init(&daemon->ready, daemon->options->control_ready_file, error);
  if (!err && zps_tls_files_any(&files)) err = zps_tls_create(&files, &daemon->tls, error);
  if (!err && daemon->tls) zps_in_effect_log_certificate(daemon->options, zps_tls_ends_s(daemon->tls));
  if (!err && zps_options_is_server(daemon->options)) err = start_shard(daemon, error);
  if (!err && zps_options_is_coordinator(daemon->options)) err = start_coordinator(daemon, error);
  if (!err && zps_options_is_server(daemon->options)) err = start_agent(daemon, error);
  if (err) return err;
  uv_timer_start(&daemon->look, on_look, 0, OUTLOOK_MS);
  const uint64_t watchdog_ms = zps_notify_watchdog_ms();
  if (watchdog_ms) uv_timer_start(&daemon->watchdog, on_watchdog, watchdog_ms / 2, watchdog_ms / 2);
  /* A server is ready when it is registered, also with the coordinator in its own process; one of several coordinators
   * when it leads. */
  if (!zps_options_is_server(daemon->options) && !zps_options_is_candidate(daemon->options))
    zps_ready_set(&daemon->ready, true);
  zps_notify("READY=1");
  return ZPS_OK;
}

zps_err_t zps_daemon_run(struct zps_options *options, int argc, char **argv, bool file_read, struct zps_error *error) {
  struct daemon daemon = {.options = options, .argc = argc, .argv = argv};
  zps_err_t err = init_loop(&daemon, error);
  if (err) return err;
  zps_log_info("zenpsd %s, pid %ld, %lu descriptors (RLIMIT_NOFILE)", PACKAGE_VERSION, (long)getpid(),
               zps_descriptors_raise());
  zps_in_effect_log_file(options, file_read);
  zps_in_effect_log_limits(options, (unsigned)max_conns(zps_descriptors_raise()));
  err = start(&daemon, error);
  if (err) stop(&daemon);
  uv_run(&daemon.loop, UV_RUN_DEFAULT);
  uv_loop_close(&daemon.loop);
  zps_shard_destroy(daemon.shard);
  zps_tls_unref(daemon.tls);
  if (options->control_address_file && !err) unlink(options->control_address_file);
  return daemon.broken.code ? zps_fail(error, daemon.broken.code, "%s", daemon.broken.text) : err;
}
