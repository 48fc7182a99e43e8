/* The coordinator's calls: parameters checked, then carried out on the shard. */
#include <stdlib.h>
#include <string.h>

#include "common/codec/partition.h"
#include "server/daemon/agent_impl.h"
#include "server/fabric_json.h"

static zps_err_t get_name(const zps_json *object, const char *key, char *buf, struct zps_error *error) {
  const char *text;
  const zps_err_t err = zps_json_get_str(object, key, &text, error);
  if (err) return err;
  if (strlen(text) > ZPS_NAME_MAX)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "member '%s' has %zu bytes; %u is the most", key, strlen(text),
                    ZPS_NAME_MAX);
  strcpy(buf, text);
  return ZPS_OK;
}

static zps_err_t get_u32(const zps_json *object, const char *key, uint32_t min, uint32_t max, uint32_t *value_p,
                         struct zps_error *error) {
  uint64_t value;
  const zps_err_t err = zps_json_get_u64(object, key, min, max, &value, error);
  if (!err) *value_p = (uint32_t)value;
  return err;
}

static zps_err_t get_member(const zps_json *from, uint32_t rank, struct zps_member_spec *member,
                            struct zps_error *error) {
  struct zps_net_info fabric;
  zps_err_t err = get_u32(from, "rank", rank, rank, &member->rank, error);
  if (!err) err = get_name(from, "host", member->host, error);
  if (!err) err = get_u32(from, "pid", 0, UINT32_MAX, &member->pid, error);
  if (!err) err = zps_fabric_from_json(from, &fabric, error);
  if (err) return err;
  memcpy(member->addr, fabric.addr, fabric.addr_len);
  member->addr_len = fabric.addr_len;
  return ZPS_OK;
}

static zps_err_t job_open(struct zps_shard *shard, const zps_json *params, struct zps_error *error) {
  struct zps_job_spec spec = {.job_id = 0};
  const zps_json *from;
  zps_err_t err = zps_json_get_hex(params, "job_id", &spec.job_id, error);
  if (!err) err = zps_json_get_hex(params, "seed", &spec.seed, error);
  if (!err) err = get_name(params, "name", spec.name, error);
  if (!err) err = get_u32(params, "world", 1, ZPS_WORLD_MAX, &spec.world, error);
  if (!err) err = get_u32(params, "epoch", 0, UINT32_MAX, &spec.epoch, error);
  if (!err) err = get_u32(params, "server", 0, ZPS_SERVERS_MAX - 1, &spec.server, error);
  if (!err) err = zps_json_get_array(params, "members", &from, error);
  if (err) return err;
  if (zps_json_array_len(from) != spec.world)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "job.open names %zu members, the world is %u", zps_json_array_len(from),
                    spec.world);
  struct zps_member_spec *members = calloc(spec.world, sizeof *members);
  if (!members) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for job '%s'", spec.name);
  for (uint32_t r = 0; r < spec.world && !err; r++) err = get_member(zps_json_at(from, r), r, &members[r], error);
  spec.members = members;
  if (!err) err = zps_shard_job_open(shard, &spec, error);
  free(members);
  return err;
}

static zps_err_t get_kind(const zps_json *params, struct zps_tensor_spec *spec, struct zps_error *error) {
  const char *dtype, *op, *codec, *values;
  zps_err_t err = zps_json_get_str(params, "dtype", &dtype, error);
  if (!err) err = zps_json_get_str(params, "op", &op, error);
  if (!err && (!zps_dtype_parse(dtype, &spec->dtype) || !zps_op_parse(op, &spec->op)))
    err = zps_fail(error, ZPS_ERR_UNSUPPORTED, "dtype '%.40s' with operation '%.40s' is not known to this server",
                   dtype, op);
  if (!err) err = zps_json_get_str(params, "codec", &codec, error);
  if (!err && !zps_codec_policy_parse(codec, &spec->codec))
    err = zps_fail(error, ZPS_ERR_UNSUPPORTED, "codec '%.40s' is not known to this server", codec);
  if (!err) err = zps_json_get_str(params, "values", &values, error);
  if (!err && !zps_values_parse(values, &spec->value_codec))
    err = zps_fail(error, ZPS_ERR_UNSUPPORTED, "values as '%.40s' are not known to this server", values);
  return err;
}

/* An array of numbers below `end`, for the caller to free(). */
static zps_err_t get_u32s(const zps_json *array, uint32_t end, uint32_t **values_p, struct zps_error *error) {
  const size_t n = zps_json_array_len(array);
  uint32_t *values = calloc(n + 1, sizeof *values);
  if (!values) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for %zu numbers", n);
  zps_err_t err = ZPS_OK;
  for (size_t i = 0; i < n && !err; i++) {
    uint64_t value = 0;
    err = zps_json_at_u64(array, i, end - 1, &value, error);
    values[i] = (uint32_t)value;
  }
  *values_p = values;
  return err;
}

static zps_err_t tensor_open(struct zps_shard *shard, const zps_json *params, struct zps_error *error) {
  struct zps_tensor_spec spec = {.job_id = 0};
  const zps_json *from;
  zps_err_t err = zps_json_get_hex(params, "job_id", &spec.job_id, error);
  if (!err) err = get_u32(params, "tensor", 0, UINT32_MAX, &spec.tensor, error);
  if (!err) err = get_name(params, "name", spec.name, error);
  if (!err) err = zps_json_get_u64(params, "rows", 1, ZPS_PARTITION_ROWS_MAX, &spec.rows, error);
  if (!err) err = get_u32(params, "width", 1, UINT32_MAX, &spec.width, error);
  if (!err) err = get_kind(params, &spec, error);
  if (!err) err = get_u32(params, "partitions", 1, ZPS_PARTITION_PARTS_MAX, &spec.n_parts, error);
  if (!err) err = get_u32(params, "block_bits", 0, ZPS_PARTITION_BLOCK_BITS_MAX, &spec.block_bits, error);
  if (!err) err = zps_json_get_array(params, "owners", &from, error);
  if (err) return err;
  if (zps_json_array_len(from) != spec.n_parts)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "tensor.open names %zu owners of %u partitions", zps_json_array_len(from),
                    spec.n_parts);
  uint32_t *owners = NULL, *ranks = NULL;
  err = get_u32s(from, ZPS_SERVERS_MAX, &owners, error);
  const zps_json *of = zps_json_get(params, "ranks");
  if (!err && of) err = get_u32s(of, ZPS_WORLD_MAX, &ranks, error);
  spec.owners = owners;
  spec.ranks = ranks;
  spec.n_ranks = of ? (uint32_t)zps_json_array_len(of) : 0;
  if (!err) err = zps_shard_tensor_open(shard, &spec, error);
  free(owners);
  free(ranks);
  return err;
}

static zps_err_t job_close(struct zps_shard *shard, const zps_json *params, struct zps_error *error) {
  uint64_t job_id;
  zps_err_t err = zps_json_get_hex(params, "job_id", &job_id, error);
  if (err) return err;
  err = zps_shard_job_close(shard, job_id, zps_json_opt_str(params, "reason", "the coordinator closed the job"));
  return err ? zps_fail(error, err, "no job 0x%016llx here", (unsigned long long)job_id) : ZPS_OK;
}

static zps_err_t rank_gone(struct zps_shard *shard, const zps_json *params, struct zps_error *error) {
  uint64_t job_id = 0;
  uint32_t rank = 0;
  const char *code, *text;
  zps_err_t err = zps_json_get_hex(params, "job_id", &job_id, error);
  if (!err) err = get_u32(params, "rank", 0, ZPS_WORLD_MAX - 1, &rank, error);
  if (!err) err = zps_json_get_str(params, "code", &code, error);
  if (!err) err = zps_json_get_str(params, "text", &text, error);
  if (err) return err;
  err = zps_shard_rank_gone(shard, job_id, rank, zps_err_from_name(code), text);
  return err ? zps_fail(error, err, "no rank %u of job 0x%016llx here", rank, (unsigned long long)job_id) : ZPS_OK;
}

static const struct {
  const char *name;
  zps_err_t (*run)(struct zps_shard *shard, const zps_json *params, struct zps_error *error);
} calls[] = {{"job.open", job_open}, {"tensor.open", tensor_open}, {"job.close", job_close}, {"rank.gone", rank_gone}};

zps_err_t zps_agent_carry_out(struct zps_shard *shard, const char *method, const zps_json *params, zps_json **result_p,
                              struct zps_error *error) {
  for (unsigned i = 0; i < sizeof calls / sizeof calls[0]; i++) {
    if (strcmp(calls[i].name, method) == 0) return calls[i].run(shard, params, error);
  }
  if (strcmp(method, "stats.get") != 0)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "this server has no method '%.100s'", method);
  zps_json *result = zps_agent_stats(shard);
  if (!result) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for the counters");
  *result_p = result;
  return ZPS_OK;
}
