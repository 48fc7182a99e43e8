/* What stands open, and how to close it, as far as the coordinator sees: rows for `zenpsctl security`. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/control/address.h"
#include "server/coordinator/addresses.h"
#include "server/coordinator/coordinator_impl.h"

static zps_json *add(zps_json *rows, const char *part, const char *state, const char *how, const char *close) {
  zps_json *row = zps_json_set_str(zps_json_object(), "part", part);
  row = zps_json_set_str(row, "state", state);
  row = zps_json_set_str(row, "how", how);
  return zps_json_append(rows, zps_json_set_str(row, "close", close));
}

static bool is_near(const struct zps_coordinator *coordinator) {
  struct zps_address address;
  return zps_address_parse(zps_rpc_listener_address(coordinator->listener), &address, NULL) == ZPS_OK &&
         zps_address_is_loopback(&address);
}

/* Servers and administrators come over Unix sockets. */
static bool is_of_user(const struct zps_coordinator *coordinator) {
  return coordinator->own || strncmp(zps_rpc_listener_address(coordinator->listener), "unix:", 5) == 0;
}

static zps_json *add_control(const struct zps_coordinator *coordinator, zps_json *rows) {
  char how[300];
  const char *const address = zps_rpc_listener_address(coordinator->listener);
  if (coordinator->config.tls) {
    snprintf(how, sizeof how, "TLS 1.3 at %.90s, certificates name roles", address);
    return add(rows, "control plane", "guarded", how, "");
  }
  if (strncmp(address, "unix:", 5) == 0) {
    snprintf(how, sizeof how, "%.120s, for user %lu and root alone", address, (unsigned long)geteuid());
    return add(rows, "control plane", "guarded", how, "");
  }
  if (coordinator->own) {
    snprintf(how, sizeof how, "plain at %.60s: every user of this host may read; user %lu and root change, over %.70s",
             address, (unsigned long)geteuid(), zps_rpc_listener_address(coordinator->own));
    return add(rows, "control plane", "host", how, "tls.ca, tls.cert, tls.key (zenpsctl certs init)");
  }
  snprintf(
      how, sizeof how,
      is_near(coordinator) ? "plain at %.90s, for every user of this host" : "plain at %.90s, for whoever reaches it",
      address);
  return add(rows, "control plane", is_near(coordinator) ? "host" : "open", how,
             "tls.ca, tls.cert, tls.key (zenpsctl certs init)");
}

/* Servers that are connected with a certificate for any name, the first of them, and those with one for several. */
struct served {
  unsigned n_any, n_some;
  const char *first; /* of the members; "" */
};

static struct served served_by(const struct zps_coordinator *coordinator) {
  char names[ZPS_TLS_SERVERS_MAX];
  struct served served = {.first = ""};
  for (const struct zps_coordinator_conn *conn = coordinator->conns; conn; conn = conn->next) {
    const struct zps_member_server *const server = conn->client.server;
    if (!server || !conn->rpc) continue;
    const enum zps_tls_serves serves = zps_rpc_conn_serves(conn->rpc, server->name, names);
    if (serves == ZPS_TLS_SERVES_ANY && served.n_any++ == 0) served.first = server->name;
    if (serves == ZPS_TLS_SERVES_SOME) served.n_some++;
  }
  return served;
}

/* Who may be which server. */
static zps_json *add_servers(const struct zps_coordinator *coordinator, zps_json *rows) {
  char how[200];
  if (is_of_user(coordinator)) {
    snprintf(how, sizeof how, "processes of user %lu and root alone", (unsigned long)geteuid());
    return add(rows, "servers", "guarded", how, "");
  }
  if (!coordinator->config.tls)
    return add(rows, "servers", is_near(coordinator) ? "host" : "open", "any process is the server that it says it is",
               "tls.ca, tls.cert, tls.key (zenpsctl certs init)");
  const struct served served = served_by(coordinator);
  if (served.n_any) {
    snprintf(how, sizeof how, "%u have a certificate for any server: %.80s%s", served.n_any, served.first,
             served.n_any > 1 ? ", ..." : "");
    return add(rows, "servers", "open", how, "certificates of their own (zenpsctl certs init DIR --servers=NAME,...)");
  }
  if (!served.n_some) return add(rows, "servers", "guarded", "certificates name them", "");
  snprintf(how, sizeof how, "certificates name them, those of %u by how names begin", served.n_some);
  return add(rows, "servers", "guarded", how, "");
}

static zps_json *add_jobs(const struct zps_coordinator *coordinator, zps_json *rows) {
  char how[60];
  if (coordinator->token_keys.n == 0)
    return add(rows, "jobs", "open", "any rank is let into any job", "coordinator.token_key (zenpsctl token)");
  snprintf(how, sizeof how, "by tokens, of %u key%s", coordinator->token_keys.n,
           coordinator->token_keys.n == 1 ? "" : "s");
  return add(rows, "jobs", "guarded", how, "");
}

static zps_json *add_addresses(const struct zps_coordinator *coordinator, zps_json *rows) {
  char how[200];
  unsigned n = 0, n_far = 0;
  bool any_tls = false;
  const struct zps_member_server *first = NULL;
  if (!coordinator->config.own_addresses)
    return add(rows, "addresses", "open", "servers and ranks name any for gradients", "coordinator.addresses = own");
  for (unsigned i = 0; i < zps_members_servers(coordinator->members); i++) {
    const struct zps_member_server *const server = zps_members_server(coordinator->members, i);
    any_tls |= strcmp(server->fabric.provider, "tls") == 0;
    if (zps_address_tells_host(&server->fabric)) continue;
    if (n++ == 0) first = server;
    n_far += !zps_address_is_local(&server->fabric);
  }
  if (n > 0) {
    snprintf(how, sizeof how, "members name any: addresses of %.20s (%.40s) tell no host, those of %u servers: %.60s%s",
             first->fabric.provider, first->fabric.addr_format, n, first->name, n > 1 ? ", ..." : "");
    return add(rows, "addresses", n_far > 0 ? "open" : "host", how,
               "certificates and tokens for trusted members alone, or a fabric with IP addresses");
  }
  snprintf(how, sizeof how, "their own%s%.120s%s", coordinator->subnets ? ", or in " : "",
           coordinator->subnets ? coordinator->subnets : "",
           any_tls ? "; over tls those of servers alone: they dial no rank" : "");
  return add(rows, "addresses", "guarded", how, "");
}

static zps_json *add_messages(const struct zps_coordinator *coordinator, zps_json *rows) {
  if (coordinator->config.tls || is_near(coordinator))
    return add(rows, "messages", "guarded", "a MAC under a key of each link", "");
  return add(rows, "messages", "open", "a MAC, whose keys cross the control plane as they are",
             "tls.ca, tls.cert, tls.key (zenpsctl certs init)");
}

/* What is read of gradients and sums. */
static zps_json *add_reads(const struct zps_coordinator *coordinator, zps_json *rows) {
  const bool is_secret = coordinator->config.tls || is_near(coordinator);
  if (!coordinator->config.checked)
    return add(rows, "reads", is_near(coordinator) ? "host" : "open", "bytes that change on the way are not noticed",
               "fabric.checksums = yes");
  if (!is_secret)
    return add(rows, "reads", "open", "a checksum, whose key crosses the control plane as it is",
               "tls.ca, tls.cert, tls.key (zenpsctl certs init)");
  return add(rows, "reads", "guarded", "a checksum under a key of the job", "");
}

static zps_json *add_memory(const struct zps_coordinator *coordinator, zps_json *rows) {
  unsigned n = 0;
  char how[160];
  const char *first = "";
  for (unsigned i = 0; i < zps_members_servers(coordinator->members); i++) {
    const struct zps_member_server *server = zps_members_server(coordinator->members, i);
    if (server->fabric.weak_keys && n++ == 0) first = server->name;
  }
  if (n == 0) return add(rows, "memory", "guarded", "random keys of 64 bits", "");
  snprintf(how, sizeof how, "keys that can be guessed, of %u servers: %.80s%s", n, first, n > 1 ? ", ..." : "");
  return add(rows, "memory", "open", how, "a provider with keys of 64 bits, or a fabric for zenps alone");
}

/* Connections of strangers to the data ports. */
static zps_json *add_connections(const struct zps_coordinator *coordinator, zps_json *rows) {
  unsigned n = 0, n_far = 0;
  char how[200];
  const char *first = "";
  for (unsigned i = 0; i < zps_members_servers(coordinator->members); i++) {
    const struct zps_member_server *server = zps_members_server(coordinator->members, i);
    if (!zps_address_leaks(&server->fabric)) continue;
    const bool is_far = !zps_address_is_local(&server->fabric);
    if (n++ == 0 || (is_far && n_far == 0)) first = server->name;
    n_far += is_far;
  }
  if (n == 0) return add(rows, "connections", "guarded", "libfabric frees what those of strangers took", "");
  snprintf(how, sizeof how, "libfabric before 1.18 loses memory by each one of a stranger, at %u servers: %.80s%s", n,
           first, n > 1 ? ", ..." : "");
  return add(rows, "connections", n_far > 0 ? "open" : "host", how, ZPS_LEAK_REMEDY);
}

/* Ranks have the provider of their servers. */
static zps_json *add_gradients(const struct zps_coordinator *coordinator, zps_json *rows) {
  unsigned n_plain = 0;
  const unsigned n = zps_members_servers(coordinator->members);
  char how[200];
  const char *first = "";
  for (unsigned i = 0; i < n; i++) {
    const struct zps_member_server *server = zps_members_server(coordinator->members, i);
    if (strcmp(server->fabric.provider, "tls") != 0 && n_plain++ == 0) first = server->name;
  }
  if (n > 0 && n_plain == 0) return add(rows, "gradients", "guarded", "encrypted, TLS 1.3", "");
  snprintf(how, sizeof how, "not encrypted, whoever reads the fabric reads them%s%.80s%s",
           n_plain < n ? ": those of " : "", n_plain < n ? first : "", n_plain < n && n_plain > 1 ? ", ..." : "");
  return add(rows, "gradients", "open", how,
             "fabric.encrypt = yes, for ranks, too (ZENPS_FABRIC_ENCRYPT), WireGuard, or a fabric that encrypts (EFA)");
}

zps_json *zps_coordinator_security(const struct zps_coordinator *coordinator, const struct zps_viewer *viewer) {
  (void)viewer;
  zps_json *rows = add_control(coordinator, zps_json_array());
  rows = add_servers(coordinator, rows);
  rows = add_jobs(coordinator, rows);
  rows = add_addresses(coordinator, rows);
  rows = add_messages(coordinator, rows);
  rows = add_reads(coordinator, rows);
  rows = add_memory(coordinator, rows);
  rows = add_connections(coordinator, rows);
  rows = add_gradients(coordinator, rows);
  return zps_json_set(zps_json_object(), "parts", rows);
}
