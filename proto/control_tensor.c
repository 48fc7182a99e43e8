#include "proto/control_tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/codec/partition.h"

#define CODECS "auto, paper and coo"

/* ------------------------------------------------------------ the description of a tensor */

void zps_tensor_spec_fini(struct zps_tensor_spec *spec) {
  free((void *)spec->owners);
  free((void *)spec->ranks);
  spec->owners = spec->ranks = NULL;
}

static enum zps_partitioner partitioner_of(const struct zps_tensor_spec *spec) {
  return spec->partitioner ? spec->partitioner : ZPS_PARTITIONER_STRATIFIED;
}

bool zps_tensor_spec_same(const struct zps_tensor_spec *a, const struct zps_tensor_spec *b) {
  return a->rows == b->rows && a->width == b->width && a->dtype == b->dtype && a->op == b->op &&
         a->n_parts == b->n_parts && a->block_bits == b->block_bits && a->codec == b->codec &&
         a->value_codec == b->value_codec && zps_scheme_spec_same(&a->scheme, &b->scheme) &&
         partitioner_of(a) == partitioner_of(b) && a->hashing.k == b->hashing.k && a->hashing.r1 == b->hashing.r1 &&
         a->hashing.r2 == b->hashing.r2 && a->keep_zero_rows == b->keep_zero_rows && a->staleness == b->staleness &&
         a->n_ranks == b->n_ranks &&
         (a->n_ranks == 0 || memcmp(a->ranks, b->ranks, a->n_ranks * sizeof *a->ranks) == 0);
}

const char *zps_tensor_owner_name(const char *name) {
  while (name[0] == '@') {
    const char *const slash = strchr(name, '/');
    if (!slash) return name;
    name = slash + 1;
  }
  return name;
}

const char *zps_tensor_spec_text(const struct zps_tensor_spec *spec, char *text) {
  char scheme[ZPS_SCHEME_TEXT_MAX + 1], parts[48] = "default", bits[16] = "default", ranks[40] = "";
  char partitioner[96] = "", stale[24] = "";
  if (spec->n_parts) snprintf(parts, sizeof parts, "%u", spec->n_parts);
  if (spec->block_bits != ZPS_BLOCK_BITS_DEFAULT) snprintf(bits, sizeof bits, "%u", spec->block_bits);
  if (spec->n_ranks) snprintf(ranks, sizeof ranks, ", pushed by %u ranks", spec->n_ranks);
  if (spec->staleness) snprintf(stale, sizeof stale, ", staleness %u", spec->staleness);
  if (zps_partitioner_hashes(spec->partitioner))
    snprintf(partitioner, sizeof partitioner, ", partitioner %s", zps_partitioner_name(spec->partitioner));
  if (spec->hashing.k || spec->hashing.r1 || spec->hashing.r2)
    snprintf(partitioner + strlen(partitioner), sizeof partitioner - strlen(partitioner), " k=%u r1=%llu r2=%llu",
             spec->hashing.k, (unsigned long long)spec->hashing.r1, (unsigned long long)spec->hashing.r2);
  snprintf(text, ZPS_TENSOR_TEXT_MAX + 1,
           "%llu x %u %s %s in %s partitions, block_bits %s%s, codec %s, values %s%s, scheme %s%s%s",
           (unsigned long long)spec->rows, spec->width, zps_dtype_name(spec->dtype), zps_op_name(spec->op), parts, bits,
           partitioner, zps_codec_policy_name(spec->codec), zps_values_name(spec->value_codec),
           spec->keep_zero_rows ? ", keep_zero_rows 1" : "", zps_scheme_spec_text(&spec->scheme, scheme), ranks, stale);
  return text;
}

/* ------------------------------------------------------------ members of tensor.register and tensor.open */

static zps_json *shape_write(zps_json *params, const struct zps_tensor_spec *spec) {
  params = zps_json_set_str(params, "name", spec->name);
  params = zps_json_set_u64(params, "rows", spec->rows);
  params = zps_json_set_u64(params, "width", spec->width);
  params = zps_json_set_str(params, "dtype", zps_dtype_name(spec->dtype));
  params = zps_json_set_str(params, "op", zps_op_name(spec->op));
  params = zps_json_set_u64(params, "partitions", spec->n_parts);
  if (spec->block_bits != ZPS_BLOCK_BITS_DEFAULT) params = zps_json_set_u64(params, "block_bits", spec->block_bits);
  if (zps_partitioner_hashes(spec->partitioner))
    params = zps_json_set_str(params, "partitioner", zps_partitioner_name(spec->partitioner));
  if (spec->hashing.k) params = zps_json_set_u64(params, "hash_k", spec->hashing.k);
  if (spec->hashing.r1) params = zps_json_set_u64(params, "hash_r1", spec->hashing.r1);
  if (spec->hashing.r2) params = zps_json_set_u64(params, "hash_r2", spec->hashing.r2);
  if (spec->staleness) params = zps_json_set_u64(params, "staleness", spec->staleness);
  params = zps_json_set_str(params, "codec", zps_codec_policy_name(spec->codec));
  params = zps_json_set_str(params, "values", zps_values_name(spec->value_codec));
  return spec->n_ranks ? zps_control_set_u32s(params, "ranks", spec->ranks, spec->n_ranks) : params;
}

/* A name that may be left out, but must be a name. */
static zps_err_t get_choice(const zps_json *params, const char *key, const char *def, const char *choices,
                            const char **name_p, struct zps_error *error) {
  *name_p = def;
  if (!zps_json_get(params, key) || zps_json_get_str(params, key, name_p, NULL) == ZPS_OK) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_PROTOCOL, "member '%s' is no string (there are %s; %s when left out)", key, choices,
                  def);
}

static zps_err_t read_kind(const zps_json *params, struct zps_tensor_spec *spec, struct zps_error *error) {
  const char *dtype = NULL, *op = NULL;
  zps_err_t err = zps_json_get_str(params, "dtype", &dtype, error);
  if (!err) err = zps_json_get_str(params, "op", &op, error);
  if (!err && !zps_dtype_parse(dtype, &spec->dtype))
    err = zps_fail(error, ZPS_ERR_UNSUPPORTED, "no such dtype: '%.40s' (there are " ZPS_DTYPE_NAMES ")", dtype);
  if (!err && !zps_op_parse(op, &spec->op))
    err = zps_fail(error, ZPS_ERR_UNSUPPORTED,
                   "no such operation: '%.40s' (there are sum, mean, max, min and mean_present)", op);
  return err;
}

static zps_err_t read_codecs(const zps_json *params, struct zps_tensor_spec *spec, struct zps_error *error) {
  const char *codec, *values = NULL;
  zps_err_t err = get_choice(params, "codec", "auto", CODECS, &codec, error);
  if (!err) err = get_choice(params, "values", "raw", ZPS_VALUES_NAMES, &values, error);
  if (!err && !zps_codec_policy_parse(codec, &spec->codec))
    err = zps_fail(error, ZPS_ERR_UNSUPPORTED, "no such codec: '%.40s' (there are " CODECS ")", codec);
  if (!err && !zps_values_parse(values, &spec->value_codec))
    err = zps_fail(error, ZPS_ERR_UNSUPPORTED, "no such codec of values: '%.40s' (there are " ZPS_VALUES_NAMES ")",
                   values);
  if (!err && !zps_values_suit(spec->value_codec, spec->dtype))
    err = zps_fail(error, ZPS_ERR_UNSUPPORTED, "values of dtype %s do not travel as %s; use raw",
                   zps_dtype_name(spec->dtype), values);
  return err;
}

static zps_err_t read_partitioner(const zps_json *params, struct zps_tensor_spec *spec, struct zps_error *error) {
  const char *name;
  struct zps_hier_options *const hashing = &spec->hashing;
  zps_err_t err = get_choice(params, "partitioner", "stratified", ZPS_PARTITIONER_NAMES, &name, error);
  if (!err && !zps_partitioner_parse(name, &spec->partitioner))
    err = zps_fail(error, ZPS_ERR_UNSUPPORTED, "no such partitioner: '%.40s' (there are " ZPS_PARTITIONER_NAMES ")",
                   name);
  if (!err && zps_json_get(params, "hash_k"))
    err = zps_control_get_u32(params, "hash_k", 1, ZPS_HIER_K_MAX, &hashing->k, error);
  if (!err && zps_json_get(params, "hash_r1"))
    err = zps_json_get_u64(params, "hash_r1", 1, ZPS_HIER_SLOTS_MAX, &hashing->r1, error);
  if (!err && zps_json_get(params, "hash_r2"))
    err = zps_json_get_u64(params, "hash_r2", 1, ZPS_HIER_SLOTS_MAX, &hashing->r2, error);
  return err;
}

static zps_err_t shape_read(const zps_json *params, uint32_t least_parts, struct zps_tensor_spec *spec,
                            struct zps_error *error) {
  *spec = (struct zps_tensor_spec){.block_bits = ZPS_BLOCK_BITS_DEFAULT};
  zps_err_t err = zps_control_job_id_read(params, &spec->job_id, error);
  if (!err) err = zps_control_get_text(params, "name", 1, ZPS_NAME_MAX, spec->name, error);
  if (!err) err = zps_json_get_u64(params, "rows", 1, ZPS_PARTITION_ROWS_MAX, &spec->rows, error);
  if (!err) err = zps_control_get_u32(params, "width", 1, ZPS_TENSOR_WIDTH_MAX, &spec->width, error);
  if (!err) err = read_kind(params, spec, error);
  if (!err)
    err = zps_control_get_u32(params, "partitions", least_parts, ZPS_PARTITION_PARTS_MAX, &spec->n_parts, error);
  if (!err && zps_json_get(params, "block_bits"))
    err = zps_control_get_u32(params, "block_bits", 0, ZPS_PARTITION_BLOCK_BITS_MAX, &spec->block_bits, error);
  if (!err) err = read_partitioner(params, spec, error);
  if (!err && zps_json_get(params, "staleness"))
    err = zps_control_get_u32(params, "staleness", 1, ZPS_STALENESS_MAX, &spec->staleness, error);
  return err ? err : read_codecs(params, spec, error);
}

/* Last, so that there is nothing to free where another member is wrong. */
static zps_err_t ranks_read(const zps_json *params, struct zps_tensor_spec *spec, struct zps_error *error) {
  uint32_t *ranks;
  if (!zps_json_get(params, "ranks")) return ZPS_OK;
  const zps_err_t err =
      zps_control_get_u32s(params, "ranks", ZPS_WORLD_MAX, ZPS_WORLD_MAX, &ranks, &spec->n_ranks, error);
  if (!err) spec->ranks = ranks;
  return err;
}

static zps_err_t owners_read(const zps_json *from, uint32_t n_servers, struct zps_tensor_spec *spec,
                             struct zps_error *error) {
  uint32_t *owners, n;
  const zps_err_t err = zps_control_get_u32s(from, "owners", ZPS_PARTITION_PARTS_MAX, n_servers, &owners, &n, error);
  if (err) return err;
  if (n != spec->n_parts) {
    free(owners);
    return zps_fail(error, ZPS_ERR_PROTOCOL, "member 'owners' has %u elements, want one for each of %u partitions", n,
                    spec->n_parts);
  }
  spec->owners = owners;
  return ZPS_OK;
}

/* ------------------------------------------------------------ messages */

zps_json *zps_control_register_write(const struct zps_tensor_spec *spec) {
  zps_json *params = zps_control_job_id_write(spec->job_id);
  if (spec->group[0]) params = zps_json_set_str(params, "group", spec->group);
  params = shape_write(params, spec);
  if (spec->keep_zero_rows) params = zps_json_set_u64(params, "keep_zero_rows", spec->keep_zero_rows);
  return zps_control_scheme_write(params, &spec->scheme);
}

zps_err_t zps_control_register_read(const zps_json *params, struct zps_tensor_spec *spec, struct zps_error *error) {
  zps_err_t err = shape_read(params, 0, spec, error);
  if (!err && zps_json_get(params, "keep_zero_rows"))
    err = zps_control_get_u32(params, "keep_zero_rows", 1, 1, &spec->keep_zero_rows, error);
  if (!err) err = zps_control_scheme_read(params, &spec->scheme, error);
  if (!err && zps_json_get(params, "group"))
    err = zps_control_get_text(params, "group", 1, ZPS_NAME_MAX, spec->group, error);
  return err ? err : ranks_read(params, spec, error);
}

zps_json *zps_control_registered_write(const struct zps_tensor_spec *spec) {
  zps_json *result = zps_json_set_u64(zps_json_object(), "tensor", spec->tensor);
  result = zps_json_set_u64(result, "partitions", spec->n_parts);
  result = zps_json_set_u64(result, "block_bits", spec->block_bits);
  return zps_control_set_u32s(result, "owners", spec->owners, spec->n_parts);
}

zps_err_t zps_control_registered_read(const zps_json *result, uint32_t n_servers, struct zps_tensor_spec *spec,
                                      struct zps_error *error) {
  zps_err_t err = zps_control_get_u32(result, "tensor", 0, UINT32_MAX, &spec->tensor, error);
  if (!err) err = zps_control_get_u32(result, "partitions", 1, ZPS_PARTITION_PARTS_MAX, &spec->n_parts, error);
  if (!err) err = zps_control_get_u32(result, "block_bits", 0, ZPS_PARTITION_BLOCK_BITS_MAX, &spec->block_bits, error);
  return err ? err : owners_read(result, n_servers, spec, error);
}

zps_json *zps_control_tensor_open_write(const struct zps_tensor_spec *spec) {
  zps_json *params = zps_json_set_u64(zps_control_job_id_write(spec->job_id), "tensor", spec->tensor);
  return zps_control_set_u32s(shape_write(params, spec), "owners", spec->owners, spec->n_parts);
}

zps_err_t zps_control_tensor_open_read(const zps_json *params, struct zps_tensor_spec *spec, struct zps_error *error) {
  zps_err_t err = shape_read(params, 1, spec, error);
  if (!err) err = zps_control_get_u32(params, "tensor", 0, UINT32_MAX, &spec->tensor, error);
  if (!err) err = zps_control_get_u32(params, "block_bits", 0, ZPS_PARTITION_BLOCK_BITS_MAX, &spec->block_bits, error);
  if (!err) err = owners_read(params, ZPS_SERVERS_MAX, spec, error);
  if (!err) err = ranks_read(params, spec, error);
  if (err) zps_tensor_spec_fini(spec);
  return err;
}

zps_json *zps_control_tensor_forget_write(uint64_t job_id, uint32_t tensor) {
  return zps_json_set_u64(zps_control_job_id_write(job_id), "tensor", tensor);
}

zps_err_t zps_control_tensor_forget_read(const zps_json *params, uint64_t *job_id_p, uint32_t *tensor_p,
                                         struct zps_error *error) {
  const zps_err_t err = zps_control_job_id_read(params, job_id_p, error);
  return err ? err : zps_control_get_u32(params, "tensor", 0, UINT32_MAX, tensor_p, error);
}

zps_json *zps_control_tensor_close_write(uint64_t job_id, uint32_t tensor, uint64_t timeout_ms) {
  return zps_json_set_u64(zps_control_tensor_forget_write(job_id, tensor), "timeout_ms", timeout_ms);
}

zps_err_t zps_control_tensor_close_read(const zps_json *params, uint64_t *job_id_p, uint32_t *tensor_p,
                                        uint64_t *timeout_ms_p, struct zps_error *error) {
  const zps_err_t err = zps_control_tensor_forget_read(params, job_id_p, tensor_p, error);
  return err ? err : zps_json_get_u64(params, "timeout_ms", 0, ZPS_TIMEOUT_MAX_MS, timeout_ms_p, error);
}

zps_json *zps_control_tensor_keep_write(uint64_t job_id, const uint32_t *tensors, uint32_t n) {
  zps_json *params = zps_control_job_id_write(job_id);
  return n ? zps_control_set_u32s(params, "tensors", tensors, n) : params;
}

zps_err_t zps_control_tensor_keep_read(const zps_json *params, uint64_t *job_id_p, uint32_t **tensors_p, uint32_t *n_p,
                                       struct zps_error *error) {
  const zps_err_t err = zps_control_job_id_read(params, job_id_p, error);
  *tensors_p = NULL;
  *n_p = 0;
  if (err || !zps_json_get(params, "tensors")) return err;
  return zps_control_get_u32s(params, "tensors", UINT32_MAX, UINT32_MAX, tensors_p, n_p, error);
}
