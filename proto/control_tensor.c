#include "proto/control_tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/codec/partition.h"

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
         a->quorum == b->quorum && a->grace_ms == b->grace_ms && a->n_ranks == b->n_ranks &&
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
  char partitioner[96] = "", stale[64] = "";
  if (spec->n_parts) snprintf(parts, sizeof parts, "%u", spec->n_parts);
  if (spec->block_bits != ZPS_BLOCK_BITS_DEFAULT) snprintf(bits, sizeof bits, "%u", spec->block_bits);
  if (spec->n_ranks) snprintf(ranks, sizeof ranks, ", pushed by %u ranks", spec->n_ranks);
  if (spec->staleness) snprintf(stale, sizeof stale, ", staleness %u", spec->staleness);
  if (spec->quorum) snprintf(stale, sizeof stale, ", quorum %u, grace %u ms", spec->quorum, spec->grace_ms);
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

static const char *dtype_word(unsigned dtype) {
  return zps_dtype_name((enum zps_dtype)dtype);
}
static const char *op_word(unsigned op) {
  return zps_op_name((enum zps_op)op);
}
static const char *codec_word(unsigned codec) {
  return zps_codec_policy_name((enum zps_codec_policy)codec);
}
static const char *values_word(unsigned values) {
  return zps_values_name((enum zps_value_codec)values);
}

static zps_err_t check_shape(void *read, struct zps_error *error) {
  const struct zps_tensor_spec *const spec = read;
  if (zps_values_suit(spec->value_codec, spec->dtype)) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_UNSUPPORTED, "values of dtype %s do not travel as %s; use raw",
                  zps_dtype_name(spec->dtype), zps_values_name(spec->value_codec));
}

#define AT(member) ZPS_FIELD_AT(struct zps_tensor_spec, member)
static const struct zps_field shape[] = {
    {"name", ZPS_FIELD_TEXT, AT(name), .min = 1},
    {"rows", ZPS_FIELD_NUMBER, AT(rows), .min = 1, .max = ZPS_PARTITION_ROWS_MAX},
    {"width", ZPS_FIELD_NUMBER, AT(width), .min = 1, .max = ZPS_TENSOR_WIDTH_MAX},
    {"dtype", ZPS_FIELD_WORD, AT(dtype), .word = dtype_word, .min = ZPS_DTYPE_F32, .max = ZPS_DTYPE_F16},
    {"op", ZPS_FIELD_WORD, AT(op), .word = op_word, .min = ZPS_OP_SUM, .max = ZPS_OP_ONE},
    {"partitions", ZPS_FIELD_NUMBER, AT(n_parts), .max = ZPS_PARTITION_PARTS_MAX},
    {"block_bits", ZPS_FIELD_NUMBER, AT(block_bits), .max = ZPS_PARTITION_BLOCK_BITS_MAX, .optional = true,
     .absent = ZPS_BLOCK_BITS_DEFAULT},
    {"partitioner", ZPS_FIELD_WORD, AT(partitioner), .word = zps_partitioner_word, .min = ZPS_PARTITIONER_STRATIFIED,
     .max = ZPS_PARTITIONER_HIERARCHICAL, .optional = true, .absent = ZPS_PARTITIONER_STRATIFIED},
    {"hash_k", ZPS_FIELD_NUMBER, AT(hashing.k), .min = 1, .max = ZPS_HIER_K_MAX, .optional = true},
    {"hash_r1", ZPS_FIELD_NUMBER, AT(hashing.r1), .min = 1, .max = ZPS_HIER_SLOTS_MAX, .optional = true},
    {"hash_r2", ZPS_FIELD_NUMBER, AT(hashing.r2), .min = 1, .max = ZPS_HIER_SLOTS_MAX, .optional = true},
    {"staleness", ZPS_FIELD_NUMBER, AT(staleness), .min = 1, .max = ZPS_STALENESS_MAX, .optional = true},
    {"quorum", ZPS_FIELD_NUMBER, AT(quorum), .min = 1, .max = ZPS_WORLD_MAX, .optional = true},
    {"grace_ms", ZPS_FIELD_NUMBER, AT(grace_ms), .min = 1, .max = ZPS_GRACE_MAX_MS, .optional = true},
    {"codec", ZPS_FIELD_WORD, AT(codec), .word = codec_word, .min = ZPS_CODEC_AUTO, .max = ZPS_CODEC_COO_ONLY,
     .optional = true, .always = true, .absent = ZPS_CODEC_AUTO},
    {"values", ZPS_FIELD_WORD, AT(value_codec), .word = values_word, .min = ZPS_VALUES_RAW, .max = ZPS_VALUES_QSGD8,
     .optional = true, .always = true, .absent = ZPS_VALUES_RAW},
    {"ranks", ZPS_FIELD_NUMBER, ZPS_FIELD_LIST_AT(struct zps_tensor_spec, ranks, n_ranks), .n_min = 1,
     .n_max = ZPS_WORLD_MAX, .max = ZPS_WORLD_MAX - 1, .optional = true},
};
const struct zps_fields zps_control_shape = {ZPS_FIELDS_OF(struct zps_tensor_spec, shape), .check = check_shape};

/* ------------------------------------------------------------ messages */

static zps_err_t complete_register(void *read, struct zps_error *error) {
  struct zps_tensor_spec *const spec = read;
  (void)error;
  if (!spec->scheme.name[0]) strcpy(spec->scheme.name, "balanced");
  return ZPS_OK;
}

static const struct zps_field tensor_register[] = {
    {"job_id", ZPS_FIELD_HEX, AT(job_id)},
    {"group", ZPS_FIELD_TEXT, AT(group), .min = 1, .optional = true},
    {.type = ZPS_FIELD_PART, .part = &zps_control_shape},
    {"keep_zero_rows", ZPS_FIELD_NUMBER, AT(keep_zero_rows), .min = 1, .max = 1, .optional = true},
    {"scheme", ZPS_FIELD_OBJECT, AT(scheme), .part = &zps_control_scheme, .optional = true, .always = true},
};
const struct zps_fields zps_control_register = {
    .name = "tensor.register", ZPS_FIELDS_OF(struct zps_tensor_spec, tensor_register), .check = complete_register};

static const struct zps_field registered[] = {
    {"tensor", ZPS_FIELD_NUMBER, AT(tensor)},
    {"partitions", ZPS_FIELD_NUMBER, AT(n_parts), .min = 1, .max = ZPS_PARTITION_PARTS_MAX},
    {"block_bits", ZPS_FIELD_NUMBER, AT(block_bits), .max = ZPS_PARTITION_BLOCK_BITS_MAX},
    {"owners", ZPS_FIELD_NUMBER, ZPS_FIELD_LIST_AT(struct zps_tensor_spec, owners, n_parts), .per = "partitions",
     .max = ZPS_SERVERS_MAX - 1},
};
const struct zps_fields zps_control_registered = {.name = "tensor.register answer",
                                                  ZPS_FIELDS_OF(struct zps_tensor_spec, registered)};

zps_err_t zps_control_registered_read(const zps_json *result, uint32_t n_servers, struct zps_tensor_spec *spec,
                                      struct zps_error *error) {
  const zps_err_t err = zps_fields_complete(&zps_control_registered, result, spec, error);
  for (uint32_t i = 0; !err && i < spec->n_parts; i++) {
    if (spec->owners[i] < n_servers) continue;
    zps_fail(error, ZPS_ERR_PROTOCOL, "%s: member 'owners[%u]' is %u, want 0 to %u", zps_control_registered.name, i,
             spec->owners[i], n_servers - 1);
    zps_fields_fini(&zps_control_registered, spec);
    return ZPS_ERR_PROTOCOL;
  }
  return err;
}

static zps_err_t check_open(void *read, struct zps_error *error) {
  const struct zps_tensor_spec *const spec = read;
  if (spec->n_parts == 0)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "member 'partitions' is 0, want 1 to %u", ZPS_PARTITION_PARTS_MAX);
  if (spec->block_bits != ZPS_BLOCK_BITS_DEFAULT) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_PROTOCOL, "member 'block_bits' is missing, want 0 to %u",
                  ZPS_PARTITION_BLOCK_BITS_MAX);
}

static const struct zps_field tensor_open[] = {
    {"job_id", ZPS_FIELD_HEX, AT(job_id)},
    {"tensor", ZPS_FIELD_NUMBER, AT(tensor)},
    {.type = ZPS_FIELD_PART, .part = &zps_control_shape},
    {"owners", ZPS_FIELD_NUMBER, ZPS_FIELD_LIST_AT(struct zps_tensor_spec, owners, n_parts), .per = "partitions",
     .max = ZPS_SERVERS_MAX - 1},
};
const struct zps_fields zps_control_tensor_open = {
    .name = "tensor.open", ZPS_FIELDS_OF(struct zps_tensor_spec, tensor_open), .check = check_open};
#undef AT

static const struct zps_field tensor_forget[] = {
    {"job_id", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_job_call, job_id)},
    {"tensor", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_job_call, tensor)},
};
const struct zps_fields zps_control_tensor_forget = {.name = "tensor.forget",
                                                     ZPS_FIELDS_OF(struct zps_job_call, tensor_forget)};

static const struct zps_field tensor_close[] = {
    {"job_id", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_job_call, job_id)},
    {"tensor", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_job_call, tensor)},
    {"timeout_ms", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_job_call, timeout_ms), .max = ZPS_TIMEOUT_MAX_MS},
};
const struct zps_fields zps_control_tensor_close = {.name = "tensor.close",
                                                    ZPS_FIELDS_OF(struct zps_job_call, tensor_close)};

static const struct zps_field tensor_keep[] = {
    {"job_id", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_tensor_keep, job_id)},
    {"tensors", ZPS_FIELD_NUMBER, ZPS_FIELD_LIST_AT(struct zps_tensor_keep, tensors, n), .n_min = 1,
     .n_max = UINT32_MAX, .optional = true},
};
const struct zps_fields zps_control_tensor_keep = {.name = "tensor.keep",
                                                   ZPS_FIELDS_OF(struct zps_tensor_keep, tensor_keep)};
