#include "proto/control_job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/fair.h"

/* ------------------------------------------------------------ job.join */

zps_json *zps_control_join_write(const struct zps_join_spec *spec) {
  zps_json *params = zps_json_set_str(zps_json_object(), "job", spec->job);
  params = zps_json_set_u64(params, "world", spec->world);
  params = zps_json_set_u64(params, "rank", spec->rank);
  params = zps_json_set_str(params, "host", spec->host);
  if (spec->rack && spec->rack[0]) params = zps_json_set_str(params, "rack", spec->rack);
  params = zps_json_set_u64(params, "pid", spec->pid);
  params = zps_control_fabric_write(params, spec->fabric);
  params = zps_control_set_opt_word(params, "secret", spec->secret);
  if (spec->token && spec->token[0]) params = zps_json_set_str(params, "token", spec->token);
  if (spec->places > 0) params = zps_json_set_u64(params, "places", spec->places);
  return zps_json_set_u64(params, "timeout_ms", spec->timeout_ms);
}

zps_err_t zps_control_join_read(const zps_json *params, struct zps_join_spec *spec, struct zps_net_info *fabric,
                                struct zps_error *error) {
  *spec = (struct zps_join_spec){.rack = "", .fabric = fabric};
  zps_err_t err = zps_control_get_name(params, "job", 1, ZPS_NAME_MAX, &spec->job, error);
  if (!err) err = zps_control_get_name(params, "host", 1, ZPS_NAME_MAX, &spec->host, error);
  if (!err && zps_json_get(params, "rack"))
    err = zps_control_get_name(params, "rack", 0, ZPS_NAME_MAX, &spec->rack, error);
  if (!err) err = zps_control_get_u32(params, "world", 1, ZPS_WORLD_MAX, &spec->world, error);
  if (!err) err = zps_control_get_u32(params, "rank", 0, ZPS_WORLD_MAX - 1, &spec->rank, error);
  if (!err) err = zps_control_get_u32(params, "pid", 0, UINT32_MAX, &spec->pid, error);
  if (!err) err = zps_json_get_u64(params, "timeout_ms", 0, ZPS_TIMEOUT_MAX_MS, &spec->timeout_ms, error);
  if (!err) err = zps_control_opt_word(params, "secret", &spec->secret, error);
  if (!err && zps_json_get(params, "places"))
    err = zps_control_get_u32(params, "places", 1, ZPS_SERVERS_MAX, &spec->places, error);
  if (!err && zps_json_get(params, "token"))
    err = zps_control_get_name(params, "token", 1, ZPS_JOIN_TOKEN_MAX, &spec->token, error);
  return err ? err : zps_control_fabric_read(params, fabric, error);
}

static zps_json *places_write(zps_json *object, uint32_t n_servers, uint32_t n_places) {
  return n_places > n_servers ? zps_json_set_u64(object, "places", n_places) : object;
}

zps_err_t zps_control_opt_places(const zps_json *object, uint32_t n_servers, uint32_t *places_p,
                                 struct zps_error *error) {
  *places_p = n_servers;
  return zps_json_get(object, "places")
             ? zps_control_get_u32(object, "places", n_servers, ZPS_SERVERS_MAX, places_p, error)
             : ZPS_OK;
}

zps_err_t zps_control_join_server_read(const zps_json *object, struct zps_join_server *server,
                                       struct zps_error *error) {
  const zps_err_t err = zps_control_get_text(object, "name", 1, ZPS_NAME_MAX, server->name, error);
  return err ? err : zps_json_get_bytes(object, "address", server->addr, sizeof server->addr, &server->addr_len, error);
}

zps_json *zps_control_join_answer_write(const struct zps_join *join) {
  zps_json *servers = zps_json_array();
  for (uint32_t i = 0; i < join->n_servers; i++) {
    zps_json *server = zps_json_set_str(zps_json_object(), "name", join->servers[i].name);
    servers = zps_json_append(servers,
                              zps_json_set_bytes(server, "address", join->servers[i].addr, join->servers[i].addr_len));
  }
  zps_json *result = zps_json_set_u64(zps_control_job_id_write(join->job_id), "epoch", join->epoch);
  result = zps_json_set_hex(result, "seed", join->seed);
  result = zps_control_link_secret_write(result, &join->link_secret);
  if (join->checksums) result = zps_json_set_bool(result, "checksums", true);
  result = zps_control_set_opt_word(result, "incarnation", join->incarnation);
  result = zps_control_heartbeat_write(result, &join->heartbeat);
  return zps_json_set(places_write(result, join->n_servers, join->n_places), "servers", servers);
}

zps_err_t zps_control_join_answer_read(const zps_json *result, struct zps_join *join, struct zps_error *error) {
  const zps_json *servers = NULL;
  *join = (struct zps_join){.n_servers = 0};
  zps_err_t err = zps_control_job_id_read(result, &join->job_id, error);
  if (!err) err = zps_json_get_hex(result, "seed", &join->seed, error);
  if (!err) err = zps_control_link_secret_read(result, &join->link_secret, error);
  join->checksums = zps_json_opt_bool(result, "checksums", false);
  if (!err) err = zps_control_get_u32(result, "epoch", 0, UINT32_MAX, &join->epoch, error);
  if (!err) err = zps_control_heartbeat_read(result, &join->heartbeat, error);
  if (!err) err = zps_control_opt_word(result, "incarnation", &join->incarnation, error);
  if (!err) err = zps_json_get_array(result, "servers", &servers, error);
  if (err) return err;
  const size_t n = zps_json_array_len(servers);
  if (n < 1 || n > ZPS_SERVERS_MAX)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "the coordinator names %zu servers; 1 to %u can be", n, ZPS_SERVERS_MAX);
  join->n_servers = (uint32_t)n;
  err = zps_control_opt_places(result, join->n_servers, &join->n_places, error);
  if (err) return err;
  join->servers = calloc(join->n_places, sizeof *join->servers);
  if (!join->servers) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for %u servers", join->n_places);
  for (size_t i = 0; i < n && !err; i++)
    err = zps_control_join_server_read(zps_json_at(servers, i), &join->servers[i], error);
  if (err) zps_join_fini(join);
  return err;
}

void zps_join_fini(struct zps_join *join) {
  free(join->servers);
  *join = (struct zps_join){.n_servers = 0};
}

/* ------------------------------------------------------------ job.resume */

zps_json *zps_control_resume_write(const struct zps_resume_spec *spec) {
  zps_json *params = zps_json_set_u64(zps_control_job_id_write(spec->job_id), "rank", spec->rank);
  params = zps_json_set_hex(params, "secret", spec->secret);
  return zps_control_set_opt_word(params, "incarnation", spec->incarnation);
}

zps_err_t zps_control_resume_read(const zps_json *params, struct zps_resume_spec *spec, struct zps_error *error) {
  zps_err_t err = zps_control_job_id_read(params, &spec->job_id, error);
  if (!err) err = zps_control_get_u32(params, "rank", 0, ZPS_WORLD_MAX - 1, &spec->rank, error);
  if (!err) err = zps_json_get_hex(params, "secret", &spec->secret, error);
  return err ? err : zps_control_opt_word(params, "incarnation", &spec->incarnation, error);
}

/* ------------------------------------------------------------ where ranks are */

zps_json *zps_control_peers_write(const struct zps_join_peers *peers) {
  zps_json *ranks = zps_json_array();
  for (uint32_t r = 0; r < peers->world; r++) {
    const struct zps_join_peer *rank = &peers->ranks[r];
    zps_json *object = zps_json_set_str(zps_json_object(), "host", rank->host);
    object = zps_json_set_str(object, "rack", rank->rack);
    ranks = zps_json_append(ranks, zps_json_set_bytes(object, "address", rank->addr, rank->addr_len));
  }
  return zps_json_set(zps_json_object(), "ranks", ranks);
}

static zps_err_t read_peer(const zps_json *object, struct zps_join_peer *peer, struct zps_error *error) {
  zps_err_t err = zps_control_get_text(object, "host", 1, ZPS_NAME_MAX, peer->host, error);
  if (!err) err = zps_control_get_text(object, "rack", 0, ZPS_NAME_MAX, peer->rack, error);
  return err ? err : zps_json_get_bytes(object, "address", peer->addr, sizeof peer->addr, &peer->addr_len, error);
}

zps_err_t zps_control_peers_read(const zps_json *result, uint32_t world, struct zps_join_peers *peers,
                                 struct zps_error *error) {
  const zps_json *ranks;
  zps_err_t err = zps_json_get_array(result, "ranks", &ranks, error);
  if (err) return err;
  if (zps_json_array_len(ranks) != world)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "the coordinator names %zu ranks of a job of %u",
                    zps_json_array_len(ranks), world);
  struct zps_join_peers read = {.world = world, .ranks = calloc(world, sizeof *read.ranks)};
  if (!read.ranks) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for the addresses of %u ranks", world);
  for (uint32_t r = 0; r < world && !err; r++) err = read_peer(zps_json_at(ranks, r), &read.ranks[r], error);
  if (err)
    zps_join_peers_fini(&read);
  else
    *peers = read;
  return err;
}

void zps_join_peers_fini(struct zps_join_peers *peers) {
  free(peers->ranks);
  *peers = (struct zps_join_peers){.world = 0};
}

/* ------------------------------------------------------------ a rank's description of itself */

zps_json *zps_control_linked_write(uint64_t job_id, uint64_t timeout_ms) {
  return zps_json_set_u64(zps_control_job_id_write(job_id), "timeout_ms", timeout_ms);
}

zps_err_t zps_control_linked_read(const zps_json *params, uint64_t *job_id_p, uint64_t *timeout_ms_p,
                                  struct zps_error *error) {
  const zps_err_t err = zps_control_job_id_read(params, job_id_p, error);
  return err ? err : zps_json_get_u64(params, "timeout_ms", 0, ZPS_TIMEOUT_MAX_MS, timeout_ms_p, error);
}

zps_json *zps_control_memory_write(uint64_t job_id, const char *memory) {
  return zps_json_set_str(zps_control_job_id_write(job_id), "memory", memory);
}

zps_err_t zps_control_memory_read(const zps_json *params, uint64_t *job_id_p, const char **memory_p,
                                  struct zps_error *error) {
  const zps_err_t err = zps_control_job_id_read(params, job_id_p, error);
  return err ? err : zps_json_get_str(params, "memory", memory_p, error);
}

zps_json *zps_control_held_write(uint64_t job_id, const char *why) {
  return zps_json_set_str(zps_control_job_id_write(job_id), "why", why);
}

zps_err_t zps_control_held_read(const zps_json *params, uint64_t *job_id_p, const char **why_p,
                                struct zps_error *error) {
  const zps_err_t err = zps_control_job_id_read(params, job_id_p, error);
  return err ? err : zps_control_get_name(params, "why", 1, ZPS_HELD_MAX, why_p, error);
}

/* ------------------------------------------------------------ job.open and its end, at a server */

zps_err_t zps_control_opt_weight(const zps_json *object, uint32_t *weight_p, struct zps_error *error) {
  *weight_p = 1;
  return zps_json_get(object, "weight") ? zps_control_get_u32(object, "weight", 1, ZPS_FAIR_WEIGHT_MAX, weight_p, error)
                                        : ZPS_OK;
}

zps_json *zps_control_job_open_write(const struct zps_job_spec *spec) {
  zps_json *members = zps_json_array();
  for (uint32_t r = 0; r < spec->world; r++) {
    const struct zps_member_spec *from = &spec->members[r];
    zps_json *member = zps_json_set_u64(zps_json_object(), "rank", from->rank);
    member = zps_json_set_str(member, "host", from->host);
    member = zps_json_set_u64(member, "pid", from->pid);
    members = zps_json_append(members, zps_json_set_bytes(member, "address", from->addr, from->addr_len));
  }
  zps_json *params = zps_json_set_str(zps_control_job_id_write(spec->job_id), "name", spec->name);
  params = zps_json_set_u64(params, "world", spec->world);
  params = zps_json_set_hex(params, "seed", spec->seed);
  params = zps_control_link_secret_write(params, &spec->secret);
  if (spec->checksums) params = zps_json_set_bool(params, "checksums", true);
  if (spec->weight > 1) params = zps_json_set_u64(params, "weight", spec->weight);
  params = zps_json_set_u64(params, "epoch", spec->epoch);
  if (spec->since) params = zps_json_set_u64(params, "since", spec->since);
  params = zps_json_set_u64(params, "server", spec->server);
  params = places_write(zps_json_set_u64(params, "servers", spec->n_servers), spec->n_servers, spec->n_places);
  return zps_json_set(params, "members", members);
}

static zps_err_t read_member(const zps_json *from, uint32_t rank, struct zps_member_spec *member,
                             struct zps_error *error) {
  zps_err_t err = zps_control_get_u32(from, "rank", rank, rank, &member->rank, error);
  if (!err) err = zps_control_get_text(from, "host", 1, ZPS_NAME_MAX, member->host, error);
  if (!err) err = zps_control_get_u32(from, "pid", 0, UINT32_MAX, &member->pid, error);
  return err ? err : zps_json_get_bytes(from, "address", member->addr, sizeof member->addr, &member->addr_len, error);
}

zps_err_t zps_control_job_open_read(const zps_json *params, struct zps_job_spec *spec, struct zps_error *error) {
  const zps_json *from = NULL;
  *spec = (struct zps_job_spec){.members = NULL};
  zps_err_t err = zps_control_job_id_read(params, &spec->job_id, error);
  if (!err) err = zps_json_get_hex(params, "seed", &spec->seed, error);
  if (!err) err = zps_control_link_secret_read(params, &spec->secret, error);
  spec->checksums = zps_json_opt_bool(params, "checksums", false);
  if (!err) err = zps_control_opt_weight(params, &spec->weight, error);
  if (!err) err = zps_control_get_text(params, "name", 1, ZPS_NAME_MAX, spec->name, error);
  if (!err) err = zps_control_get_u32(params, "world", 1, ZPS_WORLD_MAX, &spec->world, error);
  if (!err) err = zps_control_get_u32(params, "epoch", 0, UINT32_MAX, &spec->epoch, error);
  if (!err && zps_json_get(params, "since"))
    err = zps_control_get_u32(params, "since", 1, UINT32_MAX, &spec->since, error);
  if (!err) err = zps_control_get_u32(params, "servers", 1, ZPS_SERVERS_MAX, &spec->n_servers, error);
  if (!err) err = zps_control_opt_places(params, spec->n_servers, &spec->n_places, error);
  /* One that is there at first has one of the first places. */
  const uint32_t n = spec->since ? spec->n_places : spec->n_servers;
  if (!err) err = zps_control_get_u32(params, "server", 0, n - 1, &spec->server, error);
  if (!err) err = zps_json_get_array(params, "members", &from, error);
  if (err) return err;
  if (zps_json_array_len(from) != spec->world)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "job.open names %zu members, the world is %u", zps_json_array_len(from),
                    spec->world);
  struct zps_member_spec *members = calloc(spec->world, sizeof *members);
  if (!members) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for job '%s'", spec->name);
  for (uint32_t r = 0; r < spec->world && !err; r++) err = read_member(zps_json_at(from, r), r, &members[r], error);
  spec->members = members;
  if (err) zps_job_spec_fini(spec);
  return err;
}

void zps_job_spec_fini(struct zps_job_spec *spec) {
  free((void *)spec->members);
  spec->members = NULL;
}

zps_json *zps_control_job_close_write(uint64_t job_id, const char *reason) {
  return zps_json_set_str(zps_control_job_id_write(job_id), "reason", reason);
}

zps_err_t zps_control_job_close_read(const zps_json *params, uint64_t *job_id_p, const char **reason_p,
                                     struct zps_error *error) {
  *reason_p = zps_json_opt_str(params, "reason", "the coordinator closed the job");
  return zps_control_job_id_read(params, job_id_p, error);
}

zps_json *zps_control_rank_gone_write(const struct zps_rank_gone *gone) {
  zps_json *params = zps_json_set_u64(zps_control_job_id_write(gone->job_id), "rank", gone->rank);
  params = zps_json_set_str(params, "code", zps_err_name(gone->code));
  return zps_json_set_str(params, "text", gone->text);
}

zps_err_t zps_control_rank_gone_read(const zps_json *params, struct zps_rank_gone *gone, struct zps_error *error) {
  const char *code = NULL;
  zps_err_t err = zps_control_job_id_read(params, &gone->job_id, error);
  if (!err) err = zps_control_get_u32(params, "rank", 0, ZPS_WORLD_MAX - 1, &gone->rank, error);
  if (!err) err = zps_json_get_str(params, "code", &code, error);
  if (!err) err = zps_json_get_str(params, "text", &gone->text, error);
  if (!err) gone->code = zps_err_from_name(code);
  return err;
}

/* ------------------------------------------------------------ notifications to a worker */

zps_json *zps_control_job_failed_write(uint64_t job_id, const struct zps_frame_abort *failure) {
  zps_json *params = zps_json_set_str(zps_control_job_id_write(job_id), "code", zps_err_name(failure->code));
  params = zps_json_set_str(params, "text", failure->text);
  return zps_control_set_u32s(params, "ranks", failure->ranks, failure->n_ranks);
}

void zps_control_job_failed_read(const zps_json *params, struct zps_frame_abort *failure) {
  const zps_json *ranks = zps_json_get(params, "ranks");
  *failure = (struct zps_frame_abort){.code = zps_err_from_name(zps_json_opt_str(params, "code", ""))};
  if (failure->code == ZPS_OK) failure->code = ZPS_ERR_INTERNAL;
  snprintf(failure->text, sizeof failure->text, "%s", zps_json_opt_str(params, "text", "the job failed"));
  for (size_t i = 0; i < zps_json_array_len(ranks) && failure->n_ranks < ZPS_WIRE_RANKS_MAX; i++) {
    uint64_t rank;
    if (zps_json_at_u64(ranks, i, UINT32_MAX, &rank, NULL) != ZPS_OK) break;
    failure->ranks[failure->n_ranks++] = (uint32_t)rank;
  }
}

zps_json *zps_control_rank_left_write(uint64_t job_id, uint32_t rank) {
  return zps_json_set_u64(zps_control_job_id_write(job_id), "rank", rank);
}

zps_err_t zps_control_rank_left_read(const zps_json *params, uint32_t *rank_p, struct zps_error *error) {
  return zps_control_get_u32(params, "rank", 0, ZPS_WORLD_MAX - 1, rank_p, error);
}
