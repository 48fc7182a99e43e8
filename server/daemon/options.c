#include "server/daemon/options.h"

#include <grp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/exit.h"
#include "common/base/machine.h"
#include "common/base/secret.h"
#include "common/base/subnet.h"
#include "common/base/text.h"
#include "common/control/address.h"
#include "common/control/addresses.h"
#include "common/control/rpc.h"
#include "common/net/net.h"
#include "server/membership/members.h"
#include "server/membership/weights.h"
#include "server/state/etcd.h"

#define REDUCE_THREADS_DEFAULT_MAX 8u
#define ETCD_PREFIX_MAX 128u
#define BEAT_MS_MAX 3600000 /* the longest that ranks take */

static const char *const roles[] = {"server,coordinator", "server", "coordinator", NULL};
static const char *const levels[] = {"error", "warn", "info", "debug", "trace", NULL};
static const char *const formats[] = {"text", "json", NULL};
static const char *const stores[] = {"file", "etcd", NULL};                /* enum zps_state_store */
static const char *const whose_addresses[] = {"auto", "own", "any", NULL}; /* enum zps_own_addresses */
static const char *const checksums[] = {"auto", "yes", "no", NULL};        /* enum zps_checksums */
static const char *const server_losses[] = {"replay", "fail", NULL};       /* enum zps_server_loss */

#define OPT(type, member, ...) ZPS_OPT_ROW(struct zps_options, type, member, __VA_ARGS__)
static const struct zps_opt opts[] = {
    OPT(ZPS_OPT_STRING, config, .name = "config", .short_flag = 'c', .arg = "FILE", .flags = ZPS_OPT_NO_FILE,
        .help =
            "read options from this file (INI). With - in front of its path, the file may be missing. zenpsd.service "
            "names -/etc/zenps/zenpsd.conf. Without this option zenpsd reads no file"),
    OPT(ZPS_OPT_BOOL, check, .name = "check", .flags = ZPS_OPT_FLAG_ONLY,
        .help = "check the options, from all their sources, and exit"),
    OPT(ZPS_OPT_BOOL, list_providers, .name = "list-providers", .flags = ZPS_OPT_FLAG_ONLY,
        .help = "list the fabric providers, devices and addresses of this host and exit"),
    OPT(ZPS_OPT_ENUM, roles, .name = "roles", .arg = "ROLES", .def = "server,coordinator", .values = roles,
        .help = "work of this process: server (holds shards), coordinator (membership), or both"),
    OPT(ZPS_OPT_ENUM, profile, .name = "profile", .arg = "NAME", .def = "none", .values = zps_profile_names,
        .help = "defaults for one kind of network. internet: links that are slow, lose packets, or lead through NAT. "
                "Options that you set win. --check and the log show what a profile sets"),

    OPT(ZPS_OPT_STRING, control_listen, .name = "control.listen", .arg = "HOST:PORT", .def = "127.0.0.1:7077",
        .help =
            "address of the coordinator: HOST:PORT, or unix:PATH for its user and root alone. Port 0 takes any free "
            "port. At a loopback address without TLS, servers and administrators must be processes of its user"),
    OPT(ZPS_OPT_STRING, control_coordinator, .name = "control.coordinator", .arg = "HOST:PORT,...",
        .help = "where a server finds the coordinator (default: this process, if it has both roles). If a cluster has "
                "several coordinators, name all, with commas in between: the server finds the leader"),
    OPT(ZPS_OPT_STRING, control_socket, .name = "control.socket", .arg = "PATH",
        .help =
            "second address of the coordinator, a Unix socket. Whoever may connect there may administer the cluster "
            "and register servers"),
    OPT(ZPS_OPT_STRING, control_socket_mode, .name = "control.socket_mode", .arg = "MODE", .def = "0600",
        .help = "file mode of control.socket, in octal: 0660 lets owner and group connect. The umask has no effect"),
    OPT(ZPS_OPT_STRING, control_socket_group, .name = "control.socket_group", .arg = "GROUP",
        .help = "group of control.socket, a name or a number (default: the daemon's own)"),
    OPT(ZPS_OPT_STRING, control_address_file, .name = "control.address_file", .arg = "FILE",
        .help = "the coordinator writes its address to this file. Scripts that use port 0 read it"),
    OPT(ZPS_OPT_STRING, control_ready_file, .name = "control.ready_file", .arg = "FILE",
        .help =
            "file for readiness probes: it exists while the coordinator listens, the server is registered, and neither "
            "drains"),
    OPT(ZPS_OPT_DURATION, control_heartbeat_ms, .name = "control.heartbeat", .arg = "TIME", .def = "1s",
        .internet = "5s", .min = 10, .max = BEAT_MS_MAX,
        .help = "time between heartbeats. Servers and ranks get it from the coordinator"),
    OPT(ZPS_OPT_DURATION, control_dead_ms, .name = "control.dead", .arg = "TIME", .def = "5s", .internet = "30s",
        .max = BEAT_MS_MAX,
        .help = "a peer is dead after this time of silence. Raise it on hosts that stall for seconds. Three more times "
                "follow from it. Twice as long, at least 10 s: a server must answer a call. 6 times as long: servers "
                "forget a failed job, even with ranks in it. Once, in whole seconds, at least 2 s: another coordinator "
                "takes over from a silent leader"),
    OPT(ZPS_OPT_DURATION, control_resume_grace_ms, .name = "control.resume_grace", .arg = "TIME", .def = "0s",
        .internet = "30s", .max = BEAT_MS_MAX,
        .help = "time in which a server or rank may connect again after its connection ended. Set it where proxies or "
                "firewalls end connections. 0s: the process counts as dead at once, unless it announced a new "
                "connection"),

    OPT(ZPS_OPT_BOOL, control_insecure, .name = "control.insecure",
        .help =
            "allow an address of a network without TLS. Anybody who reaches it may then be a server or a rank. The log "
            "warns every hour"),
    OPT(ZPS_OPT_STRING, tls_ca, .name = "tls.ca", .arg = "FILE",
        .help = "certificates (PEM) of the cluster's authorities. With tls.cert and tls.key the control plane speaks "
                "TLS, to certified peers only. zenpsctl certs makes the three files. A daemon reads changed files at "
                "the next connection and at each reload"),
    OPT(ZPS_OPT_STRING, tls_cert, .name = "tls.cert", .arg = "FILE",
        .help = "certificate (PEM) of this process: of a coordinator (zenps://coordinator/NAME), of the server "
                "server.name (zenps://server/NAME), or of both"),
    OPT(ZPS_OPT_STRING, tls_key, .name = "tls.key", .arg = "FILE",
        .help = "private key (PEM) of that certificate, in a file of mode 0640 at most"),
    OPT(ZPS_OPT_STRING, tls_crl, .name = "tls.crl", .arg = "FILE",
        .help = "revocation lists (PEM) of all authorities in tls.ca. Peers with a revoked certificate are refused, "
                "and disconnected. zenpsctl certs revoke makes it"),

    OPT(ZPS_OPT_UINT, coordinator_min_servers, .name = "coordinator.min_servers", .arg = "N", .def = "1", .min = 1,
        .max = ZPS_SERVERS_MAX, .flags = ZPS_OPT_RELOADABLE,
        .help = "jobs wait until N servers are registered. Set it to the size of the cluster, so that the first job "
                "uses all servers"),
    OPT(ZPS_OPT_ENUM, coordinator_server_loss, .name = "coordinator.server_loss", .arg = "WHAT", .def = "replay",
        .values = server_losses, .flags = ZPS_OPT_RELOADABLE,
        .help = "what a job does that loses one of its servers. replay: the others take over, and the open rounds "
                "begin again. fail: it fails"),

    OPT(ZPS_OPT_STRING, coordinator_state_dir, .name = "coordinator.state_dir", .arg = "FOLDER",
        .help = "folder of the coordinator's state. With it, jobs go on while the coordinator is down and after it "
                "has started again (default: no state is kept)"),
    OPT(ZPS_OPT_ENUM, coordinator_store, .name = "coordinator.store", .arg = "WHERE", .def = "file", .values = stores,
        .help = "where the state is: file (coordinator.state_dir), or etcd. Over etcd several coordinators take "
                "turns: when the leader dies another one takes over"),
    OPT(ZPS_OPT_STRING, coordinator_etcd, .name = "coordinator.etcd", .arg = "URLS",
        .help = "members of etcd: http://HOST:PORT or https://HOST:PORT, with commas in between"),
    OPT(ZPS_OPT_STRING, coordinator_etcd_prefix, .name = "coordinator.etcd_prefix", .arg = "PREFIX", .def = "/zenps",
        .help = "prefix of the coordinators' keys in etcd: one for each cluster"),
    OPT(ZPS_OPT_STRING, coordinator_etcd_ca, .name = "coordinator.etcd_ca", .arg = "FILE",
        .help = "certificates (PEM) of etcd's authorities (default: the system's)"),
    OPT(ZPS_OPT_STRING, coordinator_etcd_cert, .name = "coordinator.etcd_cert", .arg = "FILE",
        .help = "certificate (PEM) of this client of etcd"),
    OPT(ZPS_OPT_STRING, coordinator_etcd_key, .name = "coordinator.etcd_key", .arg = "FILE",
        .help = "private key (PEM) of that certificate"),
    OPT(ZPS_OPT_STRING, coordinator_advertise, .name = "coordinator.advertise", .arg = "HOST:PORT",
        .help = "address of this coordinator, as its clients write it, if there are several coordinators (default: "
                "control.listen, with the host's name if that is every address)"),
    OPT(ZPS_OPT_STRING, coordinator_token_key, .name = "coordinator.token_key", .arg = "FILE",
        .flags = ZPS_OPT_RELOADABLE,
        .help = "keys of tokens. Each rank must show a token made with one of them (zenpsctl token). Read again at "
                "each reload (default: any rank may join)"),
    OPT(ZPS_OPT_ENUM, coordinator_addresses, .name = "coordinator.addresses", .arg = "WHICH", .def = "auto",
        .values = whose_addresses,
        .help =
            "data addresses that servers and ranks may name. own: the address of their connection, or one in "
            "fabric.subnet. A process on the coordinator's host may name any, and so may all on a fabric without IP "
            "addresses (efa, cxi, gni). any: every address. auto: own with TLS, else any"),
    OPT(ZPS_OPT_STRING, coordinator_cluster, .name = "coordinator.cluster", .arg = "NAME", .def = "zenps",
        .help = "name of the cluster in its state. A coordinator does not take over the state of another cluster"),
    OPT(ZPS_OPT_DURATION, coordinator_restart_grace_ms, .name = "coordinator.restart_grace", .arg = "TIME",
        .def = "30s", .internet = "2m", .max = BEAT_MS_MAX,
        .help = "time in which servers and ranks may come back after a restart with state. Raise it where a new "
                "coordinator is hard to reach at first (Kubernetes)"),

    OPT(ZPS_OPT_STRING, server_name, .name = "server.name", .arg = "NAME",
        .help = "name of this server, unique in its cluster (default: the host's name). With TLS its certificate must "
                "name it, or be a coordinator's as well"),
    OPT(ZPS_OPT_STRING, server_host, .name = "server.host", .arg = "NAME",
        .help = "name of this host in tables and errors (default: the host's name)"),
    OPT(ZPS_OPT_UINT, server_index, .name = "server.index", .arg = "N", .def = "0", .max = 4095,
        .env_fallback = "SLURM_LOCALID",
        .help = "number of this server among those of its host, from 0. Servers of a host take different network "
                "cards by it"),
    OPT(ZPS_OPT_BYTES, server_memory_limit_bytes, .name = "server.memory_limit", .arg = "SIZE",
        .help = "most memory for gradients of all jobs (default: half of the machine's, or of its container's)"),
    OPT(ZPS_OPT_UINT, server_reduce_threads, .name = "server.reduce_threads", .arg = "N", .max = 256,
        .help = "threads that sum gradients (default: one per usable core, at most 8). Lower it beside trainers"),
    OPT(ZPS_OPT_BYTES, server_read_budget_bytes, .name = "server.read_budget", .arg = "SIZE", .def = "64M",
        .min = 1 << 20, .help = "most bytes in flight from ranks. Raise it for links above 100 Gbit/s"),

    OPT(ZPS_OPT_BYTES, job_max_memory_bytes, .name = "job.max_memory", .arg = "SIZE", .def = "0",
        .help = "most memory of a server for one job: links to its ranks, its tensors, its rounds and gradients (0: no "
                "limit). A job at the limit waits until its own rounds end, or fails with ERR_QUOTA. Set it where "
                "tenants share servers"),
    OPT(ZPS_OPT_UINT, job_max_rounds, .name = "job.max_rounds", .arg = "N", .def = "0", .max = 1 << 24,
        .help = "most rounds of a job in flight on a server (0: 64 of each tensor). Allow at least two of each tensor: "
                "consecutive steps overlap"),
    OPT(ZPS_OPT_UINT, job_max_tensors, .name = "job.max_tensors", .arg = "N", .def = "8192", .min = 1,
        .max = ZPS_TENSORS_MAX, .help = "most tensors, and most groups of ranks, of a job"),
    OPT(ZPS_OPT_UINT, job_max_waiting, .name = "job.max_waiting", .arg = "N", .def = "256", .max = ZPS_JOBS_MAX,
        .help = "most waiting jobs of one tenant (0: no limit). A tenant is a certificate with a token's names, or an "
                "address"),

    OPT(ZPS_OPT_UINT, job_server_places, .name = "job.server_places", .arg = "N", .def = "0", .max = ZPS_SERVERS_MAX,
        .flags = ZPS_OPT_RELOADABLE,
        .help = "places for servers in each job, unless its ranks ask for more (ZENPS_SERVER_PLACES). A running job "
                "takes new servers into free places (default: no free places)"),
    OPT(ZPS_OPT_STRING, job_weights, .name = "job.weights", .arg = "LIST", .flags = ZPS_OPT_RELOADABLE,
        .help =
            "weights of new jobs by name: PATTERN:N,PATTERN:N, with N from 1 to 1000. The first fitting pattern (*, ?, "
            "[...]) counts. A job without one has weight 1. Jobs share a server's threads in proportion to their "
            "weights. The coordinator's value counts"),

    OPT(ZPS_OPT_DURATION, drain_timeout_ms, .name = "drain.timeout", .arg = "TIME", .def = "5m",
        .flags = ZPS_OPT_RELOADABLE,
        .help = "time that running jobs have after SIGTERM to leave this server or to end. Keep it below the stop "
                "timeout of systemd or Kubernetes"),

    OPT(ZPS_OPT_STRING, fabric_provider, .name = "fabric.provider", .arg = "NAME", .def = "auto",
        .env_fallback = "ZENPS_PROVIDER",
        .help =
            "fabric provider: net, tcp, tcp;ofi_rxm, shm, sockets, or tls, which encrypts gradients and takes ranks "
            "behind NAT. verbs;ofi_rxm ran over Soft-RoCE alone; efa, cxi and gni never ran on a card"),
    OPT(ZPS_OPT_BOOL, fabric_encrypt, .name = "fabric.encrypt", .internet = "yes",
        .help =
            "encrypt gradients: provider auto then takes tls, and others are refused. It needs tls.ca, tls.cert and "
            "tls.key. Set it, or the provider tls, for servers and ranks alike"),
    OPT(ZPS_OPT_BOOL, fabric_bbr, .name = "fabric.bbr", .internet = "yes",
        .help =
            "TCP's congestion control bbr for gradients, with provider tls, where the kernel has it. Rounds over long "
            "links that lose packets are several times faster. Set it on servers and ranks (ZENPS_FABRIC_BBR)"),
    OPT(ZPS_OPT_STRING, fabric_interface, .name = "fabric.interface", .arg = "NAMES", .env_fallback = "ZENPS_INTERFACE",
        .help = "network interfaces or cards to use (eth0,ib0; rdmap0s6,0000:86:00.0), or to avoid (^docker0,lo). "
                "Processes of a host take the named ones in this order. Without this option and fabric.subnet, the "
                "interface on the route to the coordinator comes first, and processes share out equal cards"),
    OPT(ZPS_OPT_UINT, fabric_rails, .name = "fabric.rails", .arg = "N", .def = "1", .min = 1, .max = ZPS_NET_RAILS_MAX,
        .help = "network cards that gradients come over at once, where peers have as many. Messages go over the "
                "first one alone. Set it on servers and ranks (ZENPS_FABRIC_RAILS)"),
    OPT(ZPS_OPT_STRING, fabric_subnet, .name = "fabric.subnet", .arg = "CIDR", .env_fallback = "ZENPS_SUBNET",
        .help = "use an address inside one of these (10.0.0.0/8,fd00::/8)"),
    OPT(ZPS_OPT_UINT, fabric_port_low, .name = "fabric.port_low", .arg = "PORT", .max = 65535,
        .help = "lowest port for gradients, on providers with ports. Set it for a firewall (default: any)"),
    OPT(ZPS_OPT_UINT, fabric_port_high, .name = "fabric.port_high", .arg = "PORT", .max = 65535,
        .help = "highest port for gradients"),
    OPT(ZPS_OPT_UINT, fabric_spin_us, .name = "fabric.spin_us", .arg = "N", .def = "0", .max = 10000,
        .help = "microseconds of polling before the fabric's thread blocks. If a core is free, 20 saves a wake-up"),
    OPT(ZPS_OPT_DURATION, fabric_keepalive_ms, .name = "fabric.keepalive", .arg = "TIME", .def = "2s",
        .internet = "10s", .max = 3600000,
        .help =
            "time between empty packets on an idle TCP connection for gradients (0: never). They keep firewalls "
            "from forgetting it. They also end a connection without another end, which would keep its peer out. With "
            "several cards (fabric.rails) it is 2s at most"),
    OPT(ZPS_OPT_ENUM, fabric_checksums, .name = "fabric.checksums", .arg = "WHEN", .def = "auto", .values = checksums,
        .help = "for a coordinator: whether gradients and sums carry a keyed checksum. auto: with TLS or tokens. A "
                "reader of changed bytes reads them again, and then fails the round"),
    OPT(ZPS_OPT_STRING, fabric_auth_key, .name = "fabric.auth_key", .arg = "FILE",
        .help = "authorization key of the fabric, in hexadecimal digits, in a file of mode 0640 at most. For cxi and "
                "gni, where no launcher gives the process a key"),
    OPT(ZPS_OPT_STRING, fabric_fault, .name = "fabric.fault", .arg = "RULES",
        .help = "for tests, with provider fault+NAME: faults to inject (seed=1,again=0.1,delay=0.05:3ms)"),

    OPT(ZPS_OPT_ENUM, log_level, .name = "log.level", .arg = "LEVEL", .def = "info", .values = levels,
        .flags = ZPS_OPT_RELOADABLE, .help = "least important lines in the log: error, warn, info, debug or trace"),
    OPT(ZPS_OPT_ENUM, log_format, .name = "log.format", .arg = "FORMAT", .def = "text", .values = formats,
        .flags = ZPS_OPT_RELOADABLE, .help = "text, or one JSON object a line; zenps(7) has its fields"),

    {.type = ZPS_OPT_GONE, .name = "coordinator.call_timeout", .help = "it is twice control.dead, at least 10 s"},
    {.type = ZPS_OPT_GONE, .name = "coordinator.lease", .help = "it is control.dead in whole seconds, at least 2"},
    {.type = ZPS_OPT_GONE, .name = "leave.grace", .help = "it is 6 times control.dead"},
    {.type = ZPS_OPT_GONE, .name = "server.orphan_grace", .help = "it is 10 minutes"},
    {.type = ZPS_OPT_GONE, .name = "fabric.connect_timeout", .help = "it is 10 s"},
    {0},
};

const struct zps_opt_table zps_options_table = {
    .program = "zenpsd",
    .summary = "parameter server for sparse gradients: holds shards of tensors, or coordinates who does",
    .description =
        "Without options, one process is coordinator and server of this host, at 127.0.0.1:7077.\n"
        "At SIGTERM zenpsd takes no more jobs. It hands its jobs to their other servers, or waits for their end "
        "(drain.timeout), and exits with status 0. At a second SIGTERM it exits at once. At SIGHUP it reads the file "
        "again and applies reloadable options.",
    .opts = opts,
    .config_size = sizeof(struct zps_options),
    .exits = ZPS_EXITS_LOCAL,
};

const char *zps_options_roles(const struct zps_options *options) {
  return roles[options->roles];
}

static uint64_t default_memory_limit(void) {
  const uint64_t bytes = zps_machine_memory_bytes();
  return bytes > 0 ? bytes / 2 : 512ull << 20;
}

static zps_err_t complete_names(struct zps_options *options, struct zps_error *error) {
  char host[HOST_NAME_MAX + 1];
  if (gethostname(host, sizeof host) != 0 || !host[0]) strcpy(host, "localhost");
  if (!options->server_host) options->server_host = strdup(host);
  if (!options->server_name) options->server_name = strdup(host);
  if (!options->server_host || !options->server_name) return zps_fail(error, ZPS_ERR_NOMEM, "out of memory");
  if (!zps_members_name_ok(options->server_name) || !zps_members_name_ok(options->server_host))
    return zps_fail(error, ZPS_ERR_INVALID, "%s is '%.100s' and %s '%.100s': both must be 1 to %u printable bytes",
                    zps_config_label("server.name"), options->server_name, zps_config_label("server.host"),
                    options->server_host, ZPS_NAME_MAX);
  return ZPS_OK;
}

static zps_err_t check_address(const char *option, const char *text, struct zps_error *error) {
  struct zps_address address;
  struct zps_error why;
  if (zps_address_parse(text, &address, &why) == ZPS_OK) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_INVALID, "%s: %.450s", zps_config_label(option), why.text);
}

static zps_err_t complete_socket(struct zps_options *options, struct zps_error *error) {
  const char *mode = options->control_socket_mode, *group = options->control_socket_group;
  const size_t len = options->control_socket ? strlen(options->control_socket) : 0,
               most = sizeof((struct sockaddr_un *)0)->sun_path - 1;
  if (len > most)
    return zps_fail(error, ZPS_ERR_INVALID, "%s is a path of %zu bytes: a Unix socket's must have at most %zu",
                    zps_config_label("control.socket"), len, most);
  if (strlen(mode) < 3 || strlen(mode) > 4 || mode[strspn(mode, "01234567")] || strtoul(mode, NULL, 8) > 0777)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "%s is '%.60s': must be an octal file mode from 0000 to 0777, such as 0600 (its owner alone) or "
                    "0660 (its group as well)",
                    zps_config_label("control.socket_mode"), mode);
  options->socket_mode = (mode_t)strtoul(mode, NULL, 8);
  options->socket_group = ZPS_RPC_ANY_GROUP;
  if (!group) return ZPS_OK;
  if (*group && strlen(group) < 10 && !group[strspn(group, "0123456789")]) {
    options->socket_group = (gid_t)strtoul(group, NULL, 10);
    return ZPS_OK;
  }
  const struct group *found = getgrnam(group);
  if (!found)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "%s is '%.60s', and this host has no such group: must be the name of one (getent group) or its "
                    "number",
                    zps_config_label("control.socket_group"), group);
  options->socket_group = found->gr_gid;
  return ZPS_OK;
}

static zps_err_t refuse_etcd_options(const struct zps_options *options, struct zps_error *error) {
  const struct {
    const char *name, *value;
  } of_etcd[] = {{"coordinator.etcd", options->coordinator_etcd},
                 {"coordinator.etcd_ca", options->coordinator_etcd_ca},
                 {"coordinator.etcd_cert", options->coordinator_etcd_cert},
                 {"coordinator.etcd_key", options->coordinator_etcd_key},
                 {"coordinator.advertise", options->coordinator_advertise}};
  for (unsigned i = 0; i < sizeof of_etcd / sizeof of_etcd[0]; i++)
    if (of_etcd[i].value)
      return zps_fail(error, ZPS_ERR_INVALID, "%s (%.100s) is for %s = etcd", zps_config_label(of_etcd[i].name),
                      of_etcd[i].value, zps_config_label("coordinator.store"));
  return ZPS_OK;
}

static zps_err_t complete_store(const struct zps_options *options, struct zps_error *error) {
  struct zps_error why;
  if (options->coordinator_store == ZPS_STATE_STORE_FILE) return refuse_etcd_options(options, error);
  if (options->roles != ZPS_ROLES_COORDINATOR)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "%s = etcd is for roles = coordinator, not for %s = %s: servers are processes of their own then, "
                    "with a list of all coordinators in control.coordinator",
                    zps_config_label("coordinator.store"), zps_config_label("roles"), roles[options->roles]);
  if (options->coordinator_state_dir)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "%s (%.200s) is for coordinator.store = file: with %s = etcd the state is there",
                    zps_config_label("coordinator.state_dir"), options->coordinator_state_dir,
                    zps_config_label("coordinator.store"));
  if (!options->coordinator_etcd)
    return zps_fail(error, ZPS_ERR_INVALID, "%s = etcd needs coordinator.etcd = http://HOST:PORT[,http://HOST:PORT...]",
                    zps_config_label("coordinator.store"));
  if (zps_etcd_http_check(options->coordinator_etcd, &why))
    return zps_fail(error, why.code, "%s: %.450s", zps_config_label("coordinator.etcd"), why.text);
  if (!options->coordinator_etcd_cert != !options->coordinator_etcd_key)
    return zps_fail(error, ZPS_ERR_INVALID, "%s and %s go together: both or none",
                    zps_config_label("coordinator.etcd_cert"), zps_config_label("coordinator.etcd_key"));
  const char *const prefix = options->coordinator_etcd_prefix;
  const size_t len = strlen(prefix);
  if (len == 0 || len > ETCD_PREFIX_MAX || zps_text_printable(prefix, len) != len || prefix[len - 1] == '/')
    return zps_fail(error, ZPS_ERR_INVALID, "%s is '%.200s': must be 1 to %u printable bytes, the last one no slash",
                    zps_config_label("coordinator.etcd_prefix"), prefix, ETCD_PREFIX_MAX);
  return options->coordinator_advertise ? check_address("coordinator.advertise", options->coordinator_advertise, error)
                                        : ZPS_OK;
}

static zps_err_t complete_keys(struct zps_options *options, struct zps_error *error) {
  struct zps_error why;
  if (!options->coordinator_token_key) return ZPS_OK;
  if (!zps_options_is_coordinator(options))
    return zps_fail(error, ZPS_ERR_INVALID, "%s (%.200s) is for a coordinator, not for %s = %s",
                    zps_config_label("coordinator.token_key"), options->coordinator_token_key,
                    zps_config_label("roles"), roles[options->roles]);
  if (zps_token_keys_read(options->coordinator_token_key, &options->token_keys, &why) == ZPS_OK) return ZPS_OK;
  return zps_fail(error, why.code, "%s: %.450s", zps_config_label("coordinator.token_key"), why.text);
}

/* The fabric reads the file again when it opens. */
static zps_err_t check_auth_key(const struct zps_options *options, struct zps_error *error) {
  uint8_t bytes[ZPS_NET_AUTH_KEY_MAX];
  size_t len;
  if (!options->fabric_auth_key) return ZPS_OK;
  return zps_private_read_hex(options->fabric_auth_key, zps_config_label("fabric.auth_key"), bytes, sizeof bytes, &len,
                              error);
}

static zps_err_t check_subnets(const char *list, struct zps_error *error) {
  struct zps_error why;
  const zps_err_t err = list ? zps_subnets_check(list, &why) : ZPS_OK;
  return err ? zps_fail(error, err, "%s: %.450s", zps_config_label("fabric.subnet"), why.text) : ZPS_OK;
}

zps_err_t zps_options_complete(struct zps_options *options, struct zps_error *error) {
  zps_err_t err = ZPS_OK;
  if (zps_options_is_coordinator(options)) {
    err = check_address("control.listen", options->control_listen, error);
    if (err) return err;
    if (options->control_coordinator)
      return zps_fail(error, ZPS_ERR_INVALID,
                      "%s (%.200s) is for roles = server; with %s = %s the coordinator is this process",
                      zps_config_label("control.coordinator"), options->control_coordinator, zps_config_label("roles"),
                      roles[options->roles]);
  } else {
    if (!options->control_coordinator)
      return zps_fail(error, ZPS_ERR_INVALID, "%s = server needs control.coordinator = HOST:PORT",
                      zps_config_label("roles"));
    struct zps_addresses addresses;
    struct zps_error why;
    if (zps_addresses_parse(options->control_coordinator, &addresses, &why))
      return zps_fail(error, ZPS_ERR_INVALID, "%s: %.450s", zps_config_label("control.coordinator"), why.text);
  }
  err = complete_names(options, error);
  if (!err) err = complete_socket(options, error);
  if (!err) err = complete_store(options, error);
  if (!err) err = complete_keys(options, error);
  if (!err) err = zps_options_check_tls(options, error);
  if (!err) err = zps_weights_check(options->job_weights, error);
  if (!err) err = check_subnets(options->fabric_subnet, error);
  if (!err) err = check_auth_key(options, error);
  if (err) return err;
  if (options->control_dead_ms < 2 * options->control_heartbeat_ms)
    return zps_fail(error, ZPS_ERR_INVALID, "%s is %llu ms and %s %llu ms: death takes at least two heartbeats",
                    zps_config_label("control.heartbeat"), (unsigned long long)options->control_heartbeat_ms,
                    zps_config_label("control.dead"), (unsigned long long)options->control_dead_ms);
  if (options->fabric_port_low > options->fabric_port_high && options->fabric_port_high)
    return zps_fail(error, ZPS_ERR_INVALID, "%s (%llu) is above %s (%llu)", zps_config_label("fabric.port_low"),
                    (unsigned long long)options->fabric_port_low, zps_config_label("fabric.port_high"),
                    (unsigned long long)options->fabric_port_high);
  if (!options->fabric_port_low != !options->fabric_port_high)
    return zps_fail(error, ZPS_ERR_INVALID, "%s is %llu, and %s %llu: set both, or none for any port",
                    zps_config_label("fabric.port_low"), (unsigned long long)options->fabric_port_low,
                    zps_config_label("fabric.port_high"), (unsigned long long)options->fabric_port_high);
  if (!options->server_memory_limit_bytes) options->server_memory_limit_bytes = default_memory_limit();
  if (!options->server_reduce_threads) {
    options->server_reduce_threads = zps_machine_cores_each(1);
    if (options->server_reduce_threads > REDUCE_THREADS_DEFAULT_MAX)
      options->server_reduce_threads = REDUCE_THREADS_DEFAULT_MAX;
  }
  return ZPS_OK;
}
