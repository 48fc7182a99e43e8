/* zenpsd's options: one row each (options.c), from which flags, environment, file keys, --help and the man page come.
 */
#ifndef ZPS_SERVER_DAEMON_OPTIONS_H
#define ZPS_SERVER_DAEMON_OPTIONS_H

#include <sys/types.h>

#include "common/base/config.h"
#include "common/tls/tls.h"
#include "common/token/token.h"

enum zps_server_loss { ZPS_SERVER_LOSS_REPLAY, ZPS_SERVER_LOSS_FAIL };
enum zps_state_store { ZPS_STATE_STORE_FILE, ZPS_STATE_STORE_ETCD };
enum zps_own_addresses { ZPS_ADDRESSES_AUTO, ZPS_ADDRESSES_OWN, ZPS_ADDRESSES_ANY };
enum zps_checksums { ZPS_CHECKSUMS_AUTO, ZPS_CHECKSUMS_YES, ZPS_CHECKSUMS_NO };
enum zps_roles { ZPS_ROLES_BOTH, ZPS_ROLES_SERVER, ZPS_ROLES_COORDINATOR };

struct zps_options {
  char *config;
  bool check;
  bool list_providers;
  int roles;   /* enum zps_roles */
  int profile; /* index into zps_profile_names */

  char *control_listen, *control_coordinator, *control_socket, *control_address_file, *control_ready_file;
  char *control_socket_mode, *control_socket_group;
  char *tls_ca, *tls_cert, *tls_key, *tls_crl;
  bool control_insecure;
  mode_t socket_mode; /* what the two say */
  gid_t socket_group; /* ZPS_RPC_ANY_GROUP: none is asked for */
  uint64_t control_heartbeat_ms, control_dead_ms, control_resume_grace_ms;

  uint64_t coordinator_min_servers, coordinator_restart_grace_ms;
  char *coordinator_state_dir, *coordinator_cluster;
  char *coordinator_token_key;
  int coordinator_addresses;        /* enum zps_own_addresses */
  struct zps_token_keys token_keys; /* what that file holds */
  int coordinator_server_loss;      /* enum zps_server_loss */
  int coordinator_store;            /* enum zps_state_store */
  char *coordinator_etcd, *coordinator_etcd_prefix, *coordinator_etcd_ca, *coordinator_etcd_cert, *coordinator_etcd_key;
  char *coordinator_advertise;

  char *server_name, *server_host;
  uint64_t server_memory_limit_bytes, server_read_budget_bytes, server_reduce_threads;
  uint64_t server_index, fabric_rails;
  uint64_t job_max_memory_bytes, job_max_rounds, job_max_tensors, job_max_waiting;
  char *job_weights;
  uint64_t job_server_places;
  uint64_t drain_timeout_ms;

  char *fabric_provider, *fabric_interface, *fabric_subnet, *fabric_auth_key, *fabric_fault;
  int fabric_checksums; /* enum zps_checksums */
  bool fabric_encrypt, fabric_bbr;
  uint64_t fabric_port_low, fabric_port_high, fabric_spin_us, fabric_keepalive_ms;

  int log_level, log_format; /* enum zps_log_level, enum zps_log_format */
};

extern const struct zps_opt_table zps_options_table;

/* Checks that concern more than one option, and the defaults that depend on the machine (server.name, server.host,
 * server.memory_limit, server.reduce_threads, control.coordinator), which it fills in; socket_mode, socket_group and
 * token_keys. */
zps_err_t zps_options_complete(struct zps_options *options, struct zps_error *error) ZPS_MUSTCHECK;
/* One of several coordinators, over etcd. */
static inline bool zps_options_is_candidate(const struct zps_options *options) {
  return options->roles == ZPS_ROLES_COORDINATOR && options->coordinator_store == ZPS_STATE_STORE_ETCD;
}
/* By which this process is known to its peers, and they to it; none of them set: it speaks without TLS. */
static inline struct zps_tls_files zps_options_tls(const struct zps_options *options) {
  return (struct zps_tls_files){
      .ca = options->tls_ca, .cert = options->tls_cert, .key = options->tls_key, .crl = options->tls_crl};
}
const char *zps_options_roles(const struct zps_options *options); /* in the option's notation */
/* options_tls.c, of zps_options_complete(): server_name is there. ZPS_ERR_INVALID: the files of TLS are not those of
 * such a process, or it needs some. */
zps_err_t zps_options_check_tls(const struct zps_options *options, struct zps_error *error) ZPS_MUSTCHECK;
/* A coordinator that anybody may speak to who reaches its port, from other hosts as well. */
bool zps_options_is_open(const struct zps_options *options);
/* A coordinator at a loopback address without TLS: every user of this host reaches it. */
bool zps_options_is_shared(const struct zps_options *options);
static inline bool zps_options_is_server(const struct zps_options *options) {
  return options->roles != ZPS_ROLES_COORDINATOR;
}
static inline bool zps_options_is_coordinator(const struct zps_options *options) {
  return options->roles != ZPS_ROLES_SERVER;
}

#endif
