#include "worker/api/tensor.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/plan/measure.h"
#include "worker/api/inner.h"
#include "worker/api/job.h"
#include "worker/choice/auto.h"
#include "worker/choice/topology.h"
#include "worker/peer/peer.h"
#include "worker/schemes/parts.h"
#include "worker/served/served.h"
#include "worker/plane/sharing.h"

/* ------------------------------------------------------------ open */

struct ask {
  struct zps_tensor_spec spec;
  struct zps_scheme_ask scheme;
  enum zps_partitioner partitioner;
};

static zps_err_t make_ask(const struct zenps_job *job, const char *name, uint64_t rows, uint32_t width,
                          enum zps_dtype dtype, const zenps_tensor_options_t *given, struct ask *out,
                          struct zps_error *error) {
  zenps_tensor_options_t options;
  zenps_tensor_options_init(&options, sizeof options);
  if (given) {
    const zps_err_t err = zps_worker_struct_copy(&options, sizeof options, given, "zenps_tensor_options_t", error);
    if (err != ZPS_OK) return err;
  }
  if (rows < 1 || rows > ZPS_PARTITION_ROWS_MAX || width < 1 || width > 1u << 20) {
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: %" PRIu64 " x %" PRIu32 "; rows must be 1 to 2^40, width 1 to 2^20", name, rows, width);
  }
  if (zps_dtype_size(dtype) == 0) {
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: dtype %d is none of ZENPS_F32, ZENPS_F64", name, (int)dtype);
  }
  if ((int)options.op < 0 || options.op > ZENPS_OP_MIN) {
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: op %d is none of ZENPS_OP_SUM, _MEAN, _MAX and _MIN", name,
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
  if (!zps_values_suit(value_codec, dtype)) {
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: values %d is none of ZENPS_VALUES_RAW to ZENPS_VALUES_QSGD8",
                    name, (int)options.values);
  }
  if (options.partitions > ZPS_PARTITION_PARTS_MAX || options.block_bits < -1 ||
      options.block_bits > (int)ZPS_PARTITION_BLOCK_BITS_MAX) {
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: %" PRIu32 " partitions of blocks of 2^%d rows; at most %u and 2^%u", name,
                    options.partitions, options.block_bits, ZPS_PARTITION_PARTS_MAX, ZPS_PARTITION_BLOCK_BITS_MAX);
  }
  out->spec = (struct zps_tensor_spec){
      .rows = rows,
      .width = width,
      .dtype = dtype,
      .op = options.op ? (enum zps_op)options.op : ZPS_OP_SUM,
      .n_parts = options.partitions,
      .block_bits = options.block_bits < 0 ? ZPS_BLOCK_BITS_DEFAULT : (uint32_t)options.block_bits,
      .codec = (enum zps_codec_policy)(options.codec ? (int)options.codec : job->options.codec + 1),
      .value_codec = value_codec};
  snprintf(out->spec.name, sizeof out->spec.name, "%s", name);
  const zps_err_t err = zps_scheme_ask_init(&out->scheme, &options, &job->options, name, rows, width, dtype,
                                            value_codec != ZPS_VALUES_RAW, error);
  if (err != ZPS_OK) return err;
  const struct zps_served_kind *served = out->scheme.served;
  if (value_codec != ZPS_VALUES_RAW && (!served || served->all_rows || served->blocks)) {
    char text[ZPS_SCHEME_TEXT_MAX + 1];
    return zps_fail(
        error, ZPS_ERR_UNSUPPORTED,
        "tensor %s: values travel as %s under balanced and sparse-ps alone; with scheme %s they must be raw", name,
        zps_values_name(value_codec), zps_scheme_spec_text(&out->scheme.spec, text));
  }
  out->spec.scheme = out->scheme.spec;
  out->partitioner = options.hierarchical ? ZPS_PARTITIONER_HIERARCHICAL : ZPS_PARTITIONER_ORDERED;
  return ZPS_OK;
}

/* A tensor that is opened again with the same options is the same tensor; other options are an error, as they are
 * between ranks. */
static zps_err_t compare(const struct zenps_tensor *tensor, const struct ask *asked, struct zps_error *error) {
  const bool was = tensor->core.partitioner == ZPS_PARTITIONER_HIERARCHICAL;
  const bool is = asked->partitioner == ZPS_PARTITIONER_HIERARCHICAL;
  char first[ZPS_TENSOR_TEXT_MAX + 1], now[ZPS_TENSOR_TEXT_MAX + 1];
  if (zps_tensor_spec_same(&tensor->asked, &asked->spec) && was == is) return ZPS_OK;
  return zps_fail(
      error, ZPS_ERR_SHAPE, "tensor %s is open as %s, hierarchical %d; it cannot be opened as %s, hierarchical %d",
      tensor->core.name, zps_tensor_spec_text(&tensor->asked, first), was, zps_tensor_spec_text(&asked->spec, now), is);
}

/* All ranks, to each other, before the first round of a scheme between workers: no rank sends before all can receive.
 */
static zps_err_t link_ranks(struct zenps_job *job, struct zps_error *error) {
  const uint64_t timeout_ms = job->options.round_timeout_ms;
  if (job->linked) return ZPS_OK;
  zps_err_t err = ZPS_OK;
  if (!job->peers.ranks)
    err = zps_membership_peers(&job->membership, (uint32_t)job->options.world, timeout_ms, &job->peers, error);
  if (err == ZPS_OK) err = zps_plane_link(&job->plane, &job->peers, error);
  if (err != ZPS_OK) return err;
  struct zps_sharing sharing;
  zps_sharing_begin(&sharing, &job->options, &job->join, &job->peers);
  err = zps_membership_linked(&job->membership, timeout_ms, error);
  if (err == ZPS_OK) err = zps_sharing_meet(&sharing, &job->plane, error);
  zps_sharing_fini(&sharing);
  job->linked = err == ZPS_OK;
  return err;
}

static zps_err_t tensor_create(struct zenps_job *job, const struct ask *asked, struct zenps_tensor **tensor_p,
                               struct zps_error *error);
static void tensor_add(struct zenps_job *job, struct zenps_tensor *tensor);
static struct zenps_tensor *find(struct zenps_job *job, const char *name);

/* Opens the tensor of the hosts' masters: over servers, pushed by the masters alone. */
static zps_err_t between_hosts_open(struct zenps_job *job, const struct ask *asked, const struct zps_peer_tensor *peer,
                                    struct zenps_tensor **inner_p, struct zps_error *error) {
  char name[128]; /* as a tensor's */
  struct ask inner = *asked;
  if ((size_t)snprintf(name, sizeof name, "@hosts/%s", asked->spec.name) >= sizeof name)
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: its name is too long for scheme %s; %zu bytes at most can be",
                    asked->spec.name, asked->scheme.name, sizeof name - strlen("@hosts/") - 1);
  *inner_p = find(job, name);
  if (*inner_p) return ZPS_OK;
  zps_scheme_ask_between_hosts(&asked->scheme, &inner.scheme);
  snprintf(inner.spec.name, sizeof inner.spec.name, "%s", name);
  inner.spec.scheme = inner.scheme.spec;
  inner.spec.ranks = peer->masters;
  inner.spec.n_ranks = peer->n_masters;
  if (inner.spec.op == ZPS_OP_MEAN) inner.spec.op = ZPS_OP_SUM; /* which is divided once, by the number of ranks */
  const zps_err_t err = tensor_create(job, &inner, inner_p, error);
  if (err != ZPS_OK) return err;
  (*inner_p)->core.keeps_zero_rows = inner.spec.op == ZPS_OP_MAX || inner.spec.op == ZPS_OP_MIN;
  tensor_add(job, *inner_p);
  return err;
}

static zps_err_t inner_create(struct zenps_tensor *tensor, const struct ask *asked, struct zps_error *error) {
  struct zenps_job *job = tensor->job;
  struct zps_peer_tensor *peer = tensor->core.peer;
  const uint32_t me = (uint32_t)job->options.rank;
  struct zenps_tensor *inner;
  if (peer->n_masters < 2 || zps_peer_master(&peer->plan, me) != me) return ZPS_OK;
  zps_err_t err = between_hosts_open(job, asked, peer, &inner, error);
  if (err != ZPS_OK) return err;
  err = zps_inner_create(inner, &tensor->inner);
  if (err != ZPS_OK) return zps_fail(error, err, "no memory for tensor %s", asked->spec.name);
  peer->inner = &tensor->inner->service;
  return ZPS_OK;
}

/* Rounds between ranks, by a scheme of theirs. */
static zps_err_t peer_create(struct zenps_tensor *tensor, const struct ask *asked, struct zps_error *error) {
  struct zenps_job *job = tensor->job;
  struct zps_round_tensor *core = &tensor->core;
  zps_err_t err = link_ranks(job, error);
  if (err == ZPS_OK)
    err = zps_peer_tensor_create(&asked->scheme, &job->peers, (uint32_t)job->options.rank, &core->peer, error);
  if (err != ZPS_OK) return err;
  core->ops = &zps_peer_ops;
  core->scheme = core->peer->scheme->name;
  core->works_in_host = true;
  core->sends_zeros = core->peer->scheme->sends_zeros;
  return asked->scheme.between ? inner_create(tensor, asked, error) : ZPS_OK;
}

static void served_create(struct zenps_tensor *tensor, const struct zps_served_kind *served) {
  struct zps_round_tensor *core = &tensor->core;
  core->served = served;
  core->ops = &zps_served_ops;
  core->scheme = served->name;
  core->works_in_host = served->all_rows || served->blocks;
}

static zps_err_t tensor_create(struct zenps_job *job, const struct ask *asked, struct zenps_tensor **tensor_p,
                               struct zps_error *error) {
  const struct zps_tensor_spec *ask = &asked->spec;
  const struct zps_tensor_shape shape = {ask->rows, ask->width, ask->dtype};
  const struct zps_served_kind *served = asked->scheme.served;
  struct zps_tensor_spec wire = *ask; /* what travels */
  if (served) wire.codec = zps_served_kind_codec(served, ask->codec);
  if (served && served->blocks) {
    wire.rows = zps_blocks_count(&shape);
    wire.width = ZPS_BLOCK_VALUES;
  }
  zps_err_t err =
      zps_membership_register(&job->membership, &wire, job->join.n_servers, job->options.round_timeout_ms, error);
  if (err != ZPS_OK) return err;
  struct zenps_tensor *tensor = calloc(1, sizeof *tensor);
  if (!tensor) {
    free((void *)wire.owners);
    return zps_fail(error, ZPS_ERR_NOMEM, "no memory for tensor %s", ask->name);
  }
  tensor->job = job;
  tensor->core = (struct zps_round_tensor){.job = job->options.job,
                                           .id = wire.tensor,
                                           .rounds = &job->rounds,
                                           .shape = shape,
                                           .width = wire.width,
                                           .dtype = ask->dtype,
                                           .op = ask->op,
                                           .partitioner = asked->partitioner,
                                           .codec = wire.codec,
                                           .value_codec = ask->value_codec,
                                           .owners = wire.owners};
  snprintf(tensor->core.name, sizeof tensor->core.name, "%.127s", ask->name);
  zps_row_arrays_pool_init(&tensor->core.arrays);
  tensor->asked = *ask;
  tensor->asked.ranks = NULL; /* they may not live as long; only tensors of the library's own have some */
  tensor->asked.n_ranks = 0;
  err = zps_partition_init(&tensor->core.part, wire.rows, wire.n_parts, wire.block_bits, job->join.seed, error);
  if (err == ZPS_OK && served) served_create(tensor, served);
  if (err == ZPS_OK && asked->scheme.scheme) err = peer_create(tensor, asked, error);
  if (err != ZPS_OK) {
    zps_worker_tensor_destroy(tensor);
    return err;
  }
  *tensor_p = tensor;
  return ZPS_OK;
}

static void tensor_add(struct zenps_job *job, struct zenps_tensor *tensor) {
  pthread_mutex_lock(&job->lock);
  tensor->next = job->tensors;
  job->tensors = tensor;
  pthread_mutex_unlock(&job->lock);
}

static struct zenps_tensor *find(struct zenps_job *job, const char *name) {
  struct zenps_tensor *tensor = job->tensors;
  while (tensor && strcmp(tensor->core.name, name) != 0) tensor = tensor->next;
  return tensor;
}

/* The tensor that runs tensor's rounds as `scheme`: opened by all ranks, one after another, as any other. */
static zps_err_t variant_open(struct zenps_job *job, const struct zenps_tensor *tensor,
                              const zenps_tensor_options_t *given, enum zps_plan_scheme scheme,
                              struct zenps_tensor **variant_p, struct zps_error *error) {
  char name[sizeof tensor->core.name];
  struct ask ask;
  zenps_tensor_options_t options;
  zenps_tensor_options_init(&options, sizeof options);
  if (given) {
    const zps_err_t err = zps_worker_struct_copy(&options, sizeof options, given, "zenps_tensor_options_t", error);
    if (err != ZPS_OK) return err;
  }
  options.scheme = zps_plan_scheme_name(scheme);
  if (!zps_plan_scheme_lossy(scheme)) {
    options.k = 0;
    options.density = 0;
  }
  if (zps_served_kind_find(options.scheme)) { /* takes none of these */
    options.n_levels = 0;
    options.chunks = 0;
    options.bits = 0;
  }
  if ((size_t)snprintf(name, sizeof name, "@%s/%s", options.scheme, tensor->core.name) >= sizeof name)
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: with scheme auto its name must be %zu bytes shorter",
                    tensor->core.name, strlen(options.scheme) + 2);
  zps_err_t err =
      make_ask(job, name, tensor->core.part.rows, tensor->core.width, tensor->core.dtype, &options, &ask, error);
  if (err != ZPS_OK) return err;
  *variant_p = find(job, name); /* of an opening that failed later on */
  if (*variant_p) return compare(*variant_p, &ask, error);
  err = tensor_create(job, &ask, variant_p, error);
  if (err == ZPS_OK) tensor_add(job, *variant_p);
  return err;
}

/* Once per job; only threads that open tensors look at it, one at a time. */
static void calibrate(struct zenps_job *job) {
  const char *const provider = zenps_provider(job);
  zps_plan_calibration_measure(&job->calibration);
  job->calibration.threads = (double)job->options.threads;
  /* Where the network's hardware reads and writes memory, moving bytes takes no processor. */
  const bool hardware =
      strcmp(provider, "net") != 0 && strcmp(provider, "tcp") != 0 && strcmp(provider, "sockets") != 0;
  if (hardware) job->calibration.move_byte_ns = 0;
}

static zenps_status_t check_job(void *job) {
  return zps_worker_job_check(job);
}

static void trim(void *job, uint64_t keep_ns) {
  zps_worker_tensors_trim(job, keep_ns, zps_clock_ns());
}

static zps_err_t automatic_create(struct zenps_job *job, struct zenps_tensor *tensor, const struct ask *asked,
                                  const zenps_tensor_options_t *given, struct zps_error *error) {
  struct zps_automatic *automatic = calloc(1, sizeof *automatic);
  if (!automatic) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for tensor %s", tensor->core.name);
  automatic->tensor = &tensor->core;
  automatic->job = (struct zps_automatic_job){.lock = &job->lock,
                                              .done = &job->done,
                                              .options = &job->options,
                                              .calibration = &job->calibration,
                                              .membership = &job->membership,
                                              .plane = &job->plane,
                                              .device_p = &job->device,
                                              .ctx = job,
                                              .check = check_job,
                                              .trim = trim};
  if (job->calibration.threads <= 0) calibrate(job);
  zps_err_t err = ZPS_OK;
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES && err == ZPS_OK; i++) {
    if (!(asked->scheme.choices >> i & 1)) continue;
    struct zenps_tensor *variant = tensor;
    if (i != ZPS_PLAN_BALANCED) err = variant_open(job, tensor, given, (enum zps_plan_scheme)i, &variant, error);
    if (err == ZPS_OK) automatic->variants[i] = &variant->core;
  }
  if (err != ZPS_OK) {
    zps_automatic_destroy(automatic);
    return err;
  }
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    if (automatic->variants[i]) zps_worker_tensor_of(automatic->variants[i])->automatic = automatic;
  }
  tensor->automatic = automatic;
  tensor->is_automatic = true;
  return ZPS_OK;
}

zenps_status_t zps_worker_tensor_open(struct zenps_job *job, const char *name, uint64_t rows, uint32_t width,
                                      enum zps_dtype dtype, const zenps_tensor_options_t *options,
                                      struct zenps_tensor **tensor_p) {
  struct ask asked;
  struct zps_error error;
  if (make_ask(job, name, rows, width, dtype, options, &asked, &error) != ZPS_OK) return zps_worker_raise(&error);
  pthread_mutex_lock(&job->open);
  pthread_mutex_lock(&job->lock);
  const zenps_status_t status = zps_worker_job_check(job);
  pthread_mutex_unlock(&job->lock);
  zps_err_t err = ZPS_OK;
  if (status == ZENPS_OK) { /* only this function changes the list, one call at a time */
    struct zenps_tensor *tensor = find(job, name);
    if (tensor) {
      err = compare(tensor, &asked, &error);
    } else {
      err = tensor_create(job, &asked, &tensor, &error);
      if (err == ZPS_OK && asked.scheme.choices) {
        err = automatic_create(job, tensor, &asked, options, &error);
        if (err != ZPS_OK) zps_worker_tensor_destroy(tensor);
      }
      if (err == ZPS_OK) tensor_add(job, tensor);
    }
    if (err == ZPS_OK) *tensor_p = tensor;
  }
  pthread_mutex_unlock(&job->open);
  if (status != ZENPS_OK) return status;
  return err == ZPS_OK ? ZENPS_OK : zps_worker_raise(&error);
}

zenps_status_t zenps_tensor_open(zenps_job_t *job, const char *name, uint64_t rows, uint32_t width, zenps_dtype_t dtype,
                                 const zenps_tensor_options_t *options, zenps_tensor_t **tensor) {
  if (!job || !name || !tensor)
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_tensor_open: job, name or tensor is NULL");
  if (zps_worker_forked(job)) return zps_worker_fail_forked();
  const size_t len = strlen(name);
  if (len == 0 || len > 127 || name[0] == '@') {
    return zps_worker_fail(ZPS_ERR_INVALID,
                           "zenps_tensor_open: \"%.130s\" cannot name a tensor: 1 to 127 bytes, not starting with '@'",
                           name);
  }
  if (dtype != ZENPS_F32 && dtype != ZENPS_F64) {
    return zps_worker_fail(ZPS_ERR_INVALID, "tensor %s: dtype %d is none of ZENPS_F32, ZENPS_F64", name, (int)dtype);
  }
  return zps_worker_tensor_open(job, name, rows, width, (enum zps_dtype)dtype, options, tensor);
}

zenps_status_t zenps_tensor_info(const zenps_tensor_t *tensor, zenps_tensor_info_t *info) {
  if (!tensor || !info || info->struct_size < sizeof(size_t)) {
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_tensor_info: tensor or info is NULL, or its struct_size is not set");
  }
  const size_t size = info->struct_size;
  const zenps_tensor_info_t known = {.struct_size = size,
                                     .rows = tensor->core.shape.rows,
                                     .seed = tensor->core.part.seed,
                                     .id = tensor->core.id,
                                     .width = tensor->core.shape.width,
                                     .partitions = tensor->core.part.n_parts,
                                     .block_bits = tensor->core.part.block_bits,
                                     .dtype = (zenps_dtype_t)tensor->core.dtype,
                                     .op = (zenps_op_t)tensor->core.op,
                                     .codec = (zenps_codec_t)tensor->asked.codec,
                                     .values = (zenps_values_t)tensor->core.value_codec,
                                     .scheme = tensor->automatic   ? "auto"
                                               : tensor->core.peer ? tensor->core.peer->name
                                                                   : tensor->core.served->name};
  memset(info, 0, size);
  memcpy(info, &known, size < sizeof known ? size : sizeof known);
  return ZENPS_OK;
}

uint32_t zenps_tensor_partitions(const zenps_tensor_t *tensor) {
  return tensor ? tensor->core.part.n_parts : 0;
}

int zenps_tensor_owner(const zenps_tensor_t *tensor, uint32_t partition) {
  return tensor && partition < tensor->core.part.n_parts ? (int)tensor->core.owners[partition] : -1;
}

const struct zenps_tensor *zps_worker_tensor_asked(const struct zenps_tensor *tensor) {
  return tensor->automatic ? zps_worker_tensor_of(tensor->automatic->tensor) : tensor;
}

void zps_worker_tensor_destroy(struct zenps_tensor *tensor) {
  if (!tensor) return;
  zps_worker_tensor_rounds_destroy(tensor);
  zps_row_arrays_pool_fini(&tensor->core.arrays);
  zps_peer_tensor_destroy(tensor->core.peer);
  free(tensor->inner);
  if (tensor->is_automatic) zps_automatic_destroy(tensor->automatic);
  free((void *)tensor->core.owners);
  free(tensor);
}
