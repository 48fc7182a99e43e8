#include "server/membership/members_impl.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"

zps_err_t zps_members_create(const struct zps_members_config *config, struct zps_members **members_p) {
  struct zps_members *members = calloc(1, sizeof *members);
  if (!members) return ZPS_ERR_NOMEM;
  members->config = *config;
  members->epoch = 1;
  *members_p = members;
  return ZPS_OK;
}

bool zps_members_name_ok(const char *name) {
  const size_t len = strnlen(name, ZPS_NAME_MAX + 1);
  return len > 0 && len <= ZPS_NAME_MAX && zps_text_printable(name, len) == len;
}

/* libfabric renamed its "net" provider to "tcp" without changing what it speaks. */
static const char *provider_kind(const struct zps_net_info *fabric) {
  return strcmp(fabric->provider, "net") == 0 ? "tcp" : fabric->provider;
}

zps_err_t zps_members_fabric_check(const struct zps_net_info *a, const char *who_a, const struct zps_net_info *b,
                                   const char *who_b, struct zps_error *error) {
  if (strcmp(provider_kind(a), provider_kind(b)) == 0 && strcmp(a->addr_format, b->addr_format) == 0) return ZPS_OK;
  return zps_fail(
      error, ZPS_ERR_REFUSED,
      "%s uses fabric provider %s (%s), but %s uses %s (%s): set the same provider and kind of address on both", who_a,
      a->provider, a->addr_format, who_b, b->provider, b->addr_format);
}

void zps_members_set_replays(struct zps_members *members, bool replays) {
  members->config.replays = replays;
}

void zps_members_set_places(struct zps_members *members, uint32_t places) {
  members->config.places = places;
}

zps_err_t zps_members_set_weights(struct zps_members *members, const char *weights) {
  char *const copy = strdup(weights ? weights : "");
  if (!copy) return ZPS_ERR_NOMEM;
  free(members->weights);
  members->weights = copy;
  return ZPS_OK;
}

unsigned zps_members_servers(const struct zps_members *members) {
  return members->n_servers;
}
const struct zps_member_server *zps_members_server(const struct zps_members *members, unsigned index) {
  return members->servers[index];
}
unsigned zps_members_jobs(const struct zps_members *members) {
  return members->n_jobs;
}
const struct zps_member_job *zps_members_job(const struct zps_members *members, uint64_t job_id) {
  return zps_members_job_find(members, job_id);
}
const struct zps_member_job *zps_members_job_first(const struct zps_members *members) {
  return members->jobs;
}
uint32_t zps_members_epoch(const struct zps_members *members) {
  return members->epoch;
}

zps_err_t zps_members_server_add(struct zps_members *members, uint32_t index, struct zps_member_server **server_p) {
  if (members->n_servers == members->cap_servers) {
    const unsigned cap = members->cap_servers ? 2 * members->cap_servers : 8;
    struct zps_member_server **grown = realloc(members->servers, cap * sizeof *grown);
    if (!grown) return ZPS_ERR_NOMEM;
    members->servers = grown;
    members->cap_servers = cap;
  }
  struct zps_member_server *server = calloc(1, sizeof *server);
  if (!server) return ZPS_ERR_NOMEM;
  server->index = index;
  members->servers[members->n_servers++] = server;
  *server_p = server;
  return ZPS_OK;
}

void zps_members_server_remove(struct zps_members *members, const struct zps_member_server *server) {
  unsigned at = 0;
  while (members->servers[at] != server) at++;
  memmove(members->servers + at, members->servers + at + 1, (members->n_servers - at - 1) * sizeof *members->servers);
  members->n_servers--;
}
