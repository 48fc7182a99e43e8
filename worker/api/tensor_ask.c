/* What a caller asks a tensor to be: checked, and compared when it is opened again. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "worker/api/job.h"
#include "worker/api/tensor_impl.h"

/* Values can travel rounded: both ways to servers, or, between ranks, where each gives its own rows once. */
static bool rounds_values(const struct zps_scheme_ask *scheme) {
  const struct zps_served_kind *served = scheme->served;
  if (served) return !served->all_rows && !served->blocks;
  return zps_plan_scheme_flags(scheme->scheme->number) & ZPS_SCHEME_STREAMS;
}

static zps_err_t check_staleness(const struct zps_tensor_ask *asked, struct zps_error *error) {
  const struct zps_served_kind *served = asked->scheme.served;
  char text[ZPS_SCHEME_TEXT_MAX + 1];
  if (asked->spec.staleness > ZPS_STALENESS_MAX)
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: a staleness of %u steps; at most %u", asked->spec.name,
                    asked->spec.staleness, ZPS_STALENESS_MAX);
  if (asked->spec.staleness == 0 || (served && !served->blocks && !asked->scheme.choices)) return ZPS_OK;
  return zps_fail(
      error, ZPS_ERR_UNSUPPORTED,
      "tensor %s: staleness is for sums that servers keep, by balanced, sparse-ps or dense-ps; scheme %s has "
      "none",
      asked->spec.name, zps_scheme_spec_text(&asked->scheme.spec, text));
}

static zps_err_t check_quorum(const struct zenps_job *job, const struct zps_tensor_ask *asked,
                              struct zps_error *error) {
  const struct zps_tensor_spec *const spec = &asked->spec;
  const uint32_t world = asked->group ? asked->group->n_ranks : (uint32_t)job->options.world;
  char text[ZPS_SCHEME_TEXT_MAX + 1];
  if (spec->quorum == 0 && spec->grace_ms > 0)
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: a grace of %u ms without a quorum; set quorum to 1 to %u ranks",
                    spec->name, spec->grace_ms, world);
  if (spec->quorum == 0) return ZPS_OK;
  if (spec->quorum > world)
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: a quorum of %u ranks, and %u push it; want 1 to %u", spec->name,
                    spec->quorum, world, world);
  if (spec->grace_ms > ZPS_GRACE_MAX_MS)
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: a grace of %u ms; want 0 to %u", spec->name, spec->grace_ms,
                    ZPS_GRACE_MAX_MS);
  if (spec->staleness > 0)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "tensor %s: a tensor has a quorum or a staleness, not both",
                    spec->name);
  if (asked->scheme.served && !asked->scheme.choices && strcmp(spec->scheme.name, "balanced") == 0) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_UNSUPPORTED, "tensor %s: a quorum is for scheme balanced, not for %s", spec->name,
                  zps_scheme_spec_text(&asked->scheme.spec, text));
}

zps_err_t zps_tensor_ask_make(struct zenps_job *job, const char *name, uint64_t rows, uint32_t width,
                              enum zps_dtype dtype, const zenps_tensor_options_t *given, struct zps_tensor_ask *out,
                              struct zps_error *error) {
  zenps_tensor_options_t options;
  zenps_tensor_options_init(&options, sizeof options);
  if (given) {
    const zps_err_t err = zps_worker_struct_copy(&options, sizeof options, given, "zenps_tensor_options_t", error);
    if (err != ZPS_OK) return err;
  }
  struct zps_error why;
  pthread_mutex_lock(&job->lock);
  const bool has_group = !options.group || zps_groups_have(job->groups, options.group);
  pthread_mutex_unlock(&job->lock);
  if (!has_group) return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: the group is none that this job has open", name);
  if (rows < 1 || rows > ZPS_PARTITION_ROWS_MAX || width < 1 || width > 1u << 20) {
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: %" PRIu64 " x %" PRIu32 "; rows must be 1 to 2^40, width 1 to 2^20", name, rows, width);
  }
  if (zps_dtype_size(dtype) == 0) {
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: dtype %d is none of " ZPS_DTYPES_TEXT, name, (int)dtype);
  }
  if ((int)options.op < 0 || options.op > ZENPS_OP_MEAN_PRESENT) {
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: op %d is none of ZENPS_OP_SUM, _MEAN, _MAX, _MIN and _MEAN_PRESENT", name,
                    (int)options.op);
  }
  if ((int)options.codec < 0 || options.codec > ZENPS_CODEC_COO) {
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: codec %d is none of ZENPS_CODEC_AUTO, ZENPS_CODEC_PAPER, ZENPS_CODEC_COO", name,
                    (int)options.codec);
  }
  enum zps_value_codec value_codec = ZPS_VALUES_RAW; /* the library's own bytes, whatever the environment says */
  if (dtype != ZPS_DTYPE_U8 || options.values != 0)
    value_codec = (enum zps_value_codec)(options.values ? (int)options.values : job->options.values + 1);
  if (zps_values_are_plain(value_codec, dtype)) value_codec = ZPS_VALUES_RAW; /* one name for what is the same */
  if (zps_dtype_is_half(dtype) && zps_values_level_bits(value_codec) == 0 && value_codec != ZPS_VALUES_RAW &&
      value_codec <= ZPS_VALUES_QSGD8) {
    return zps_fail(
        error, ZPS_ERR_UNSUPPORTED,
        "tensor %s: values of dtype %s do not travel as %s, which would round them twice: they must be raw, "
        "16 bits as they are, or qsgd2, qsgd4 or qsgd8",
        name, zps_dtype_name(dtype), zps_values_name(value_codec));
  }
  if (!zps_values_suit(value_codec, dtype)) {
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: values %d is none of ZENPS_VALUES_RAW to ZENPS_VALUES_QSGD8",
                    name, (int)options.values);
  }
  if (options.partitions > ZPS_PARTITION_PARTS_MAX)
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: %" PRIu32 " partitions; at most %u", name, options.partitions,
                    ZPS_PARTITION_PARTS_MAX);
  if (options.keep_zero_rows != 0 && options.keep_zero_rows != 1)
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: keep_zero_rows is %d; 0 or 1 can be", name,
                    options.keep_zero_rows);
  zps_err_t err =
      zps_scheme_ask_init(&out->scheme, &options, &job->options, name, rows, width, dtype, value_codec, error);
  if (err != ZPS_OK) return err;
  const struct zps_scheme_options *const of_scheme = &out->scheme.options;
  out->spec = (struct zps_tensor_spec){
      .rows = rows,
      .width = width,
      .dtype = dtype,
      .op = options.op ? (enum zps_op)options.op : ZPS_OP_SUM,
      .n_parts = options.partitions,
      .block_bits = of_scheme->block_bits ? of_scheme->block_bits : ZPS_BLOCK_BITS_DEFAULT,
      .codec = (enum zps_codec_policy)(options.codec ? (int)options.codec : job->options.codec + 1),
      .value_codec = value_codec,
      .partitioner = of_scheme->partitioner ? (enum zps_partitioner)of_scheme->partitioner : ZPS_PARTITIONER_STRATIFIED,
      .hashing = {.k = of_scheme->hash_k, .r1 = of_scheme->hash_r1, .r2 = of_scheme->hash_r2},
      .keep_zero_rows = (uint32_t)options.keep_zero_rows,
      .scheme = out->scheme.spec,
      .staleness = options.staleness,
      .quorum = options.quorum,
      .grace_ms = options.grace_ms};
  snprintf(out->spec.name, sizeof out->spec.name, "%s", name);
  err = zps_partitioner_check(out->spec.partitioner, &out->spec.hashing, rows, options.partitions,
                              of_scheme->block_bits, &why);
  if (err != ZPS_OK) return zps_fail(error, err, "tensor %s: %s", name, why.text);
  if (value_codec != ZPS_VALUES_RAW && !rounds_values(&out->scheme)) {
    char text[ZPS_SCHEME_TEXT_MAX + 1];
    return zps_fail(error, ZPS_ERR_UNSUPPORTED,
                    "tensor %s: values travel as %s under balanced, sparse-ps and, between ranks, recursive-doubling, "
                    "split-allgather, dsar, agsparse, gtopk, topka, topkdsa and gaussiank; with scheme %s they must be "
                    "raw",
                    name, zps_values_name(value_codec), zps_scheme_spec_text(&out->scheme.spec, text));
  }
  out->group = options.group;
  if (options.group) snprintf(out->spec.group, sizeof out->spec.group, "%s", options.group->name);
  err = check_staleness(out, error);
  return err == ZPS_OK ? check_quorum(job, out, error) : err;
}

/* A tensor that is opened again with the same options is the same tensor; other options are an error, as they are
 * between ranks. */
zps_err_t zps_tensor_ask_compare(const struct zenps_tensor *tensor, const struct zps_tensor_ask *asked,
                                 struct zps_error *error) {
  char first[ZPS_TENSOR_TEXT_MAX + 1], now[ZPS_TENSOR_TEXT_MAX + 1];
  const bool tells = tensor->core.peer && tensor->core.peer->plan.contributed;
  if (tells != asked->scheme.plan.contributed)
    return zps_fail(error, ZPS_ERR_SHAPE, "tensor %s is open with contributed %d; it cannot be opened with %d",
                    tensor->core.name, tells, asked->scheme.plan.contributed);
  if (zps_tensor_spec_same(&tensor->asked, &asked->spec)) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_SHAPE, "tensor %s is open as %s; it cannot be opened as %s", tensor->core.name,
                  zps_tensor_spec_text(&tensor->asked, first), zps_tensor_spec_text(&asked->spec, now));
}
