/* The tables, what there is in them, and what an administrator sets. */
#include "server/membership/members_impl.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/bisect.h"
#include "common/base/enlarge.h"
#include "common/base/text.h"
#include "server/membership/weights.h"

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
      "%s uses fabric provider %s (%s), but %s uses %s (%s): set the same provider and kind of address on both, by "
      "fabric.provider and fabric.subnet of a server, or ZENPS_PROVIDER and ZENPS_SUBNET of a rank",
      who_a, a->provider, a->addr_format, who_b, b->provider, b->addr_format);
}

void zps_members_set_min_servers(struct zps_members *members, uint32_t min_servers) {
  members->config.min_servers = min_servers;
}

void zps_members_drain(struct zps_members *members) {
  members->draining = true;
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
  if (!zps_enlarge_for_one(&members->servers, &members->cap_servers, members->n_servers, 8, sizeof *members->servers))
    return ZPS_ERR_NOMEM;
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

uint64_t zps_members_utc_ms(const struct zps_members *members) {
  return members->config.utc_ms ? members->config.utc_ms(members->config.ctx) : 0;
}

static uint64_t new_job_id(struct zps_members *members) {
  uint64_t job_id;
  do {
    job_id = members->config.random(members->config.ctx);
  } while (job_id == 0 || zps_members_job_find(members, job_id));
  return job_id;
}

static struct zps_secret new_secret(struct zps_members *members) {
  struct zps_secret secret;
  for (size_t at = 0; at < sizeof secret.bytes; at += sizeof(uint64_t)) {
    const uint64_t word = members->config.random(members->config.ctx);
    memcpy(secret.bytes + at, &word, sizeof word);
  }
  return secret;
}

void zps_members_job_identify(struct zps_members *members, struct zps_member_job *job) {
  job->job_id = new_job_id(members);
  job->secret = new_secret(members);
}

zps_err_t zps_members_job_create(struct zps_members *members, const struct zps_join_spec *spec, uint64_t now_ns,
                                 struct zps_member_job **job_p, struct zps_error *error) {
  if (members->n_jobs >= members->config.max_jobs)
    return zps_fail(error, ZPS_ERR_REFUSED, "there are %u jobs already, the most there can be", members->n_jobs);
  struct zps_member_job *job = calloc(1, sizeof *job);
  struct zps_member_rank **ranks = calloc(spec->world, sizeof *ranks);
  if (!job || !ranks) {
    free(job);
    free(ranks);
    return zps_fail(error, ZPS_ERR_NOMEM, "no memory for job '%s'", spec->job);
  }
  strcpy(job->name, spec->job);
  job->world = spec->world;
  job->ranks = ranks;
  job->started_ns = now_ns;
  job->started_ms = zps_members_utc_ms(members);
  job->weight = zps_weight_of(members->weights, job->name);
  job->places = spec->places;
  job->seed = members->config.random(members->config.ctx);
  zps_members_job_identify(members, job);
  struct zps_member_job **link = &members->jobs;
  while (*link) link = &(*link)->next;
  *link = job;
  members->n_jobs++;
  *job_p = job;
  return ZPS_OK;
}

void zps_members_job_remove(struct zps_members *members, const struct zps_member_job *job) {
  struct zps_member_job **link = &members->jobs;
  while (*link != job) link = &(*link)->next;
  *link = job->next;
  members->n_jobs--;
}

/* ------------------------------------------------------------ looked up */

static const char *const job_state_names[] = {[ZPS_JOB_JOINING] = "joining",
                                              [ZPS_JOB_OPENING] = "opening",
                                              [ZPS_JOB_RUNNING] = "running",
                                              [ZPS_JOB_CLOSING] = "closing"};
static const char *const rank_state_names[] = {
    [ZPS_RANK_JOINING] = "joining", [ZPS_RANK_IN] = "in", [ZPS_RANK_LEFT] = "left", [ZPS_RANK_LOST] = "lost"};

const char *zps_job_state_name(enum zps_job_state state) {
  return job_state_names[state];
}
const char *zps_rank_state_name(enum zps_rank_state state) {
  return rank_state_names[state];
}

struct zps_member_job *zps_members_job_find(const struct zps_members *members, uint64_t job_id) {
  struct zps_member_job *job = members->jobs;
  while (job && job->job_id != job_id) job = job->next;
  return job;
}

zps_err_t zps_members_running(const struct zps_member_job *job, uint64_t job_id, struct zps_error *error) {
  if (!job || job->job_id != job_id || job->state < ZPS_JOB_RUNNING)
    return zps_fail(error, ZPS_ERR_UNKNOWN, "this connection has not joined job 0x%016llx", (unsigned long long)job_id);
  return job->state == ZPS_JOB_CLOSING ? zps_fail(error, job->error.code, "%s", job->error.text) : ZPS_OK;
}

uint64_t zps_member_job_age_ns(const struct zps_member_job *job, uint64_t now_ns) {
  return job->aged_ns + (now_ns > job->started_ns ? now_ns - job->started_ns : 0);
}

struct zps_member_tensor *zps_members_tensor_find(const struct zps_member_job *job, uint32_t number) {
  uint32_t low = 0, high = job->n_tensors;
  zps_bisect(low, high, middle, job->tensors[middle]->spec.tensor < number);
  return low < job->n_tensors && job->tensors[low]->spec.tensor == number ? job->tensors[low] : NULL;
}

bool zps_member_job_has(const struct zps_member_job *job, const struct zps_member_server *server) {
  return zps_view_find(&job->view, server, 1u << ZPS_PLACE_IN | 1u << ZPS_PLACE_LEAVING) < job->view.n_places;
}

bool zps_member_job_holds(const struct zps_member_job *job, const struct zps_member_server *server) {
  return zps_view_find(&job->view, server, 1u << ZPS_PLACE_IN) < job->view.n_places;
}

bool zps_member_job_admits(const struct zps_member_job *job, uint32_t position) {
  return position < job->view.n_places && job->view.places[position].state == ZPS_PLACE_JOINING;
}

bool zps_member_map_is_open(const struct zps_member_job *job) {
  return job->map.state == ZPS_MAP_SERVERS || job->map.state == ZPS_MAP_RANKS;
}

bool zps_members_tensor_has(const struct zps_tensor_spec *spec, uint32_t rank) {
  for (uint32_t i = 0; i < spec->n_ranks; i++)
    if (spec->ranks[i] == rank) return true;
  return spec->n_ranks == 0;
}
