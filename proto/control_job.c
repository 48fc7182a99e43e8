#include "proto/control_job.h"

#include <stdio.h>

#include "common/base/fair.h"

/* ------------------------------------------------------------ job.join */

static const struct zps_field job_join[] = {
    {"job", ZPS_FIELD_NAME, ZPS_FIELD_AT(struct zps_join_spec, job), .min = 1, .max = ZPS_NAME_MAX},
    {"world", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_join_spec, world), .min = 1, .max = ZPS_WORLD_MAX},
    {"rank", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_join_spec, rank), .max = ZPS_WORLD_MAX - 1},
    {"host", ZPS_FIELD_NAME, ZPS_FIELD_AT(struct zps_join_spec, host), .min = 1, .max = ZPS_NAME_MAX},
    {"rack", ZPS_FIELD_NAME, ZPS_FIELD_AT(struct zps_join_spec, rack), .max = ZPS_NAME_MAX, .optional = true,
     .text = ""},
    {"pid", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_join_spec, pid)},
    {"fabric", ZPS_FIELD_OBJECT, ZPS_FIELD_AT(struct zps_join_spec, fabric), .by_pointer = true,
     .part = &zps_control_fabric},
    {"secret", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_join_spec, secret), .optional = true},
    {"token", ZPS_FIELD_NAME, ZPS_FIELD_AT(struct zps_join_spec, token), .min = 1, .max = ZPS_JOIN_TOKEN_MAX,
     .optional = true},
    {"places", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_join_spec, places), .min = 1, .max = ZPS_SERVERS_MAX,
     .optional = true},
    {"timeout_ms", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_join_spec, timeout_ms), .max = ZPS_TIMEOUT_MAX_MS},
};
const struct zps_fields zps_control_join = {.name = "job.join", ZPS_FIELDS_OF(struct zps_join_spec, job_join)};

zps_err_t zps_control_join_read(const zps_json *params, struct zps_join_spec *spec, struct zps_net_info *fabric,
                                struct zps_error *error) {
  *fabric = (struct zps_net_info){.addr_len = 0};
  *spec = (struct zps_join_spec){.fabric = fabric};
  return zps_fields_complete(&zps_control_join, params, spec, error);
}

/* ------------------------------------------------------------ its answer */

static zps_err_t check_answer(void *read, struct zps_error *error) {
  const struct zps_join *const join = read;
  return zps_view_image_check_named(&join->view, 0, error);
}

static const struct zps_field answer[] = {
    {"job_id", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_join, job_id)},
    {"seed", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_join, seed)},
    {"link_secret", ZPS_FIELD_SECRET, ZPS_FIELD_AT(struct zps_join, link_secret)},
    {"checksums", ZPS_FIELD_FLAG, ZPS_FIELD_AT(struct zps_join, checksums), .optional = true},
    {"incarnation", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_join, incarnation), .optional = true},
    {.type = ZPS_FIELD_PART, ZPS_FIELD_AT(struct zps_join, heartbeat), .part = &zps_control_heartbeat},
    {"view", ZPS_FIELD_OBJECT, ZPS_FIELD_AT(struct zps_join, view), .part = &zps_control_view},
};
const struct zps_fields zps_control_join_answer = {
    .name = "job.join answer", ZPS_FIELDS_OF(struct zps_join, answer), .check = check_answer};

/* ------------------------------------------------------------ a rank that is in the job */

static const struct zps_field resume[] = {
    {"job_id", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_resume_spec, job_id)},
    {"rank", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_resume_spec, rank), .max = ZPS_WORLD_MAX - 1},
    {"secret", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_resume_spec, secret)},
    {"incarnation", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_resume_spec, incarnation), .optional = true},
};
const struct zps_fields zps_control_resume = {.name = "job.resume", ZPS_FIELDS_OF(struct zps_resume_spec, resume)};

static const struct zps_field peer[] = {
    {"host", ZPS_FIELD_TEXT, ZPS_FIELD_AT(struct zps_join_peer, host), .min = 1},
    {"rack", ZPS_FIELD_TEXT, ZPS_FIELD_AT(struct zps_join_peer, rack)},
    {"address", ZPS_FIELD_BYTES, ZPS_FIELD_BYTES_AT(struct zps_join_peer, addr, addr_len)},
};
static const struct zps_fields peer_fields = {ZPS_FIELDS_OF(struct zps_join_peer, peer)};
static const struct zps_field peers[] = {
    {"ranks", ZPS_FIELD_OBJECT, ZPS_FIELD_LIST_AT(struct zps_join_peers, ranks, world), .per = "ranks",
     .part = &peer_fields},
};
const struct zps_fields zps_control_peers = {.name = "job.peers answer", ZPS_FIELDS_OF(struct zps_join_peers, peers)};

zps_err_t zps_control_peers_read(const zps_json *result, uint32_t world, struct zps_join_peers *to,
                                 struct zps_error *error) {
  *to = (struct zps_join_peers){.world = world};
  return zps_fields_complete(&zps_control_peers, result, to, error);
}

static const struct zps_field linked[] = {
    {"job_id", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_job_call, job_id)},
    {"timeout_ms", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_job_call, timeout_ms), .max = ZPS_TIMEOUT_MAX_MS},
};
const struct zps_fields zps_control_linked = {.name = "job.linked", ZPS_FIELDS_OF(struct zps_job_call, linked)};

static const struct zps_field memory[] = {
    {"job_id", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_job_call, job_id)},
    {"memory", ZPS_FIELD_STRING, ZPS_FIELD_AT(struct zps_job_call, text)},
};
const struct zps_fields zps_control_memory = {.name = "job.memory", ZPS_FIELDS_OF(struct zps_job_call, memory)};

static const struct zps_field held[] = {
    {"job_id", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_job_call, job_id)},
    {"why", ZPS_FIELD_NAME, ZPS_FIELD_AT(struct zps_job_call, text), .min = 1, .max = ZPS_HELD_MAX},
};
const struct zps_fields zps_control_held = {.name = "job.held", ZPS_FIELDS_OF(struct zps_job_call, held)};

/* ------------------------------------------------------------ job.open and its end, at a server */

static const struct zps_field member[] = {
    {"rank", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_member_spec, rank), .max = ZPS_WORLD_MAX - 1},
    {"host", ZPS_FIELD_TEXT, ZPS_FIELD_AT(struct zps_member_spec, host), .min = 1},
    {"pid", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_member_spec, pid)},
    {"address", ZPS_FIELD_BYTES, ZPS_FIELD_BYTES_AT(struct zps_member_spec, addr, addr_len)},
};
static const struct zps_fields member_fields = {ZPS_FIELDS_OF(struct zps_member_spec, member)};

static zps_err_t check_open(void *read, struct zps_error *error) {
  const struct zps_job_spec *const spec = read;
  if (spec->server >= spec->view.n_places)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "member 'server' is %u, want 0 to %u", spec->server,
                    spec->view.n_places - 1);
  const enum zps_place_state state = spec->view.places[spec->server].state;
  if (state != ZPS_PLACE_IN && state != ZPS_PLACE_JOINING)
    return zps_fail(error, ZPS_ERR_PROTOCOL,
                    "member 'view.places[%u].state' is '%s', want in or joining, as it is this server's", spec->server,
                    state == ZPS_PLACE_FREE ? "free" : "leaving");
  for (uint32_t r = 0; r < spec->world; r++)
    if (spec->members[r].rank != r)
      return zps_fail(error, ZPS_ERR_PROTOCOL, "member 'members[%u].rank' is %u, want %u", r, spec->members[r].rank, r);
  return ZPS_OK;
}

static const struct zps_field job_open[] = {
    {"job_id", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_job_spec, job_id)},
    {"name", ZPS_FIELD_TEXT, ZPS_FIELD_AT(struct zps_job_spec, name), .min = 1},
    {"world", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_job_spec, world), .min = 1, .max = ZPS_WORLD_MAX},
    {"seed", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_job_spec, seed)},
    {"link_secret", ZPS_FIELD_SECRET, ZPS_FIELD_AT(struct zps_job_spec, secret)},
    {"checksums", ZPS_FIELD_FLAG, ZPS_FIELD_AT(struct zps_job_spec, checksums), .optional = true},
    {"weight", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_job_spec, weight), .min = 1, .max = ZPS_FAIR_WEIGHT_MAX,
     .optional = true, .absent = 1},
    {"server", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_job_spec, server), .max = ZPS_SERVERS_MAX - 1},
    {"view", ZPS_FIELD_OBJECT, ZPS_FIELD_AT(struct zps_job_spec, view), .part = &zps_control_view},
    {"members", ZPS_FIELD_OBJECT, ZPS_FIELD_LIST_AT(struct zps_job_spec, members, world), .per = "ranks",
     .part = &member_fields},
};
const struct zps_fields zps_control_job_open = {
    .name = "job.open", ZPS_FIELDS_OF(struct zps_job_spec, job_open), .check = check_open};

static const struct zps_field job_close[] = {
    {"job_id", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_job_call, job_id)},
    {"reason", ZPS_FIELD_STRING, ZPS_FIELD_AT(struct zps_job_call, text), .optional = true, .always = true,
     .text = "the coordinator closed the job"},
};
const struct zps_fields zps_control_job_close = {.name = "job.close", ZPS_FIELDS_OF(struct zps_job_call, job_close)};

static const struct zps_field rank_gone[] = {
    {"job_id", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_rank_gone, job_id)},
    {"rank", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_rank_gone, rank), .max = ZPS_WORLD_MAX - 1},
    {"code", ZPS_FIELD_CODE, ZPS_FIELD_AT(struct zps_rank_gone, code)},
    {"text", ZPS_FIELD_STRING, ZPS_FIELD_AT(struct zps_rank_gone, text)},
};
const struct zps_fields zps_control_rank_gone = {.name = "rank.gone", ZPS_FIELDS_OF(struct zps_rank_gone, rank_gone)};

/* ------------------------------------------------------------ notifications to a worker */

struct failed {
  uint64_t job_id;
  struct zps_frame_abort failure;
};
static const struct zps_field job_failed[] = {
    {"job_id", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct failed, job_id)},
    {"code", ZPS_FIELD_CODE, ZPS_FIELD_AT(struct failed, failure.code), .optional = true, .always = true},
    {"text", ZPS_FIELD_TEXT, ZPS_FIELD_AT(struct failed, failure.text), .optional = true, .always = true,
     .text = "the job failed"},
    {"ranks", ZPS_FIELD_NUMBER, ZPS_FIELD_ROW_AT(struct failed, failure.ranks, failure.n_ranks), .optional = true,
     .always = true},
};
const struct zps_fields zps_control_job_failed = {.name = "job.failed", ZPS_FIELDS_OF(struct failed, job_failed)};

zps_json *zps_control_job_failed_write(uint64_t job_id, const struct zps_frame_abort *failure) {
  return zps_fields_write(&zps_control_job_failed, &(struct failed){.job_id = job_id, .failure = *failure});
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

static const struct zps_field rank_left[] = {
    {"job_id", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_job_call, job_id)},
    {"rank", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_job_call, rank), .max = ZPS_WORLD_MAX - 1},
};
const struct zps_fields zps_control_rank_left = {.name = "rank.left", ZPS_FIELDS_OF(struct zps_job_call, rank_left)};

static const struct zps_field group_open[] = {
    {"job_id", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_group_spec, job_id)},
    {"group", ZPS_FIELD_TEXT, ZPS_FIELD_AT(struct zps_group_spec, name), .min = 1},
    {"timeout_ms", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_group_spec, timeout_ms), .max = ZPS_TIMEOUT_MAX_MS},
    {"ranks", ZPS_FIELD_NUMBER, ZPS_FIELD_LIST_AT(struct zps_group_spec, ranks, n_ranks), .n_min = 1,
     .n_max = ZPS_WORLD_MAX, .max = ZPS_WORLD_MAX - 1},
};
const struct zps_fields zps_control_group_open = {.name = "group.open",
                                                  ZPS_FIELDS_OF(struct zps_group_spec, group_open)};

static const struct zps_field group_close[] = {
    {"job_id", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_job_call, job_id)},
    {"group", ZPS_FIELD_NAME, ZPS_FIELD_AT(struct zps_job_call, text), .min = 1, .max = ZPS_NAME_MAX},
};
const struct zps_fields zps_control_group_close = {.name = "group.close",
                                                   ZPS_FIELDS_OF(struct zps_job_call, group_close)};
