#define ZPS_LOG_COMPONENT "shard"
#include "server/shard/tensor.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/account.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/codec/order.h"
#include "common/codec/partition_murmur.h"
#include "common/codec/values.h"
#include "common/codec/owners.h"
#include "server/shard/shard_impl.h"
#include "server/shard/job.h"
#include "server/shard/quota.h"
#include "server/shard/sum.h"

void zps_tensor_free(struct zps_tensor *tensor) {
  if (!tensor) return;
  for (unsigned i = 0; i < ZPS_TOMBSTONES; i++) free(tensor->tombstones[i].abort);
  zps_sums_fini(tensor);
  zps_tensor_unplace(tensor);
  free(tensor->owners);
  free(tensor->all_sizes);
  free(tensor->positions);
  free(tensor->partitions);
  free(tensor->sizes);
  free(tensor->idle);
  zps_account_sub(tensor->job->account, tensor->charged_bytes);
  tensor->job->standing_bytes -= tensor->charged_bytes;
  free(tensor);
}

struct zps_tensor *zps_tensor_find(const struct zps_job *job, uint32_t id) {
  struct zps_tensor *tensor = job->tensors;
  while (tensor && tensor->id != id) tensor = tensor->next;
  return tensor;
}

static zps_err_t check_spec(const struct zps_job *job, const struct zps_tensor_spec *spec, struct zps_error *error) {
  if (zps_tensor_find(job, spec->tensor))
    return zps_fail(error, ZPS_ERR_BUSY, "job %s: tensor %u (%s) is already open here", job->name, spec->tensor,
                    spec->name);
  if (zps_dtype_size(spec->dtype) == 0)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "job %s, tensor %s: %d is no dtype", job->name, spec->name,
                    (int)spec->dtype);
  if (spec->op < ZPS_OP_SUM || spec->op > ZPS_OP_ONE)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "job %s, tensor %s: %d is no operation", job->name, spec->name,
                    (int)spec->op);
  if (zps_codec_result_set(spec->codec) == 0)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "job %s, tensor %s: %d is no choice of codecs", job->name, spec->name,
                    (int)spec->codec);
  if (!zps_values_suit(spec->value_codec, spec->dtype))
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "job %s, tensor %s: values of dtype %s do not travel as %d (%s)",
                    job->name, spec->name, zps_dtype_name(spec->dtype), (int)spec->value_codec,
                    zps_values_name(spec->value_codec));
  if ((spec->op == ZPS_OP_MEAN || spec->op == ZPS_OP_MEAN_PRESENT) && spec->dtype == ZPS_DTYPE_U8)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "job %s, tensor %s: bytes have no mean; use sum", job->name,
                    spec->name);
  if (spec->op == ZPS_OP_ONE && spec->dtype != ZPS_DTYPE_U8)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "job %s, tensor %s: rows of one rank each are bytes, not %s", job->name,
                    spec->name, zps_dtype_name(spec->dtype));
  for (uint32_t p = 0; job->n_servers > 0 && p < spec->n_parts; p++)
    if (spec->owners[p] >= job->n_servers)
      return zps_fail(error, ZPS_ERR_INVALID, "job %s, tensor %s: partition %u is server %u's; the job has %u",
                      job->name, spec->name, p, spec->owners[p], job->n_servers);
  if (spec->width == 0)
    return zps_fail(error, ZPS_ERR_INVALID, "job %s, tensor %s: a width of 0; it must be 1 or more", job->name,
                    spec->name);
  return ZPS_OK;
}

/* The rows of every partition. Hashed ones are counted, by threads that sum. */
static zps_err_t count_rows(const struct zps_tensor *tensor, const struct zps_tensor_spec *spec, uint32_t *sizes,
                            struct zps_error *error) {
  if (zps_partitioner_hashes(spec->partitioner))
    return zps_murmur_sizes(spec->rows, spec->n_parts, tensor->job->seed, tensor->job->shard->pool, sizes, error);
  for (uint32_t p = 0; p < spec->n_parts; p++) sizes[p] = zps_partition_size(&tensor->partition, p);
  return ZPS_OK;
}

static zps_err_t no_memory(const struct zps_tensor *tensor, struct zps_error *error) {
  return zps_fail(error, ZPS_ERR_NOMEM, "job %s, tensor %s: out of memory", tensor->job->name, tensor->name);
}

void zps_tensor_unplace(struct zps_tensor *tensor) {
  struct zps_placing *const placing = &tensor->placing;
  free(placing->positions);
  free(placing->partitions);
  free(placing->sizes);
  free(placing->rows);
  free(placing->part_union);
  *placing = (struct zps_placing){0};
}

static zps_err_t place(struct zps_tensor *tensor, const uint32_t *owners, struct zps_error *error) {
  const uint32_t n_parts = tensor->partition.n_parts;
  struct zps_placing *const placing = &tensor->placing;
  placing->positions = calloc(n_parts, sizeof placing->positions[0]);
  placing->partitions = calloc(n_parts, sizeof placing->partitions[0]);
  placing->sizes = calloc(n_parts, sizeof placing->sizes[0]);
  if (!placing->positions || !placing->partitions || !placing->sizes) return no_memory(tensor, error);
  for (uint32_t p = 0; p < n_parts; p++) {
    placing->positions[p] = UINT32_MAX;
    if (owners[p] != tensor->job->server) continue;
    const uint32_t m = tensor->all_sizes[p];
    if ((uint64_t)m > (1ull << 56) / zps_dtype_size(tensor->dtype) / tensor->width)
      return zps_fail(error, ZPS_ERR_INVALID, "job %s, tensor %s: a partition of %u rows of width %u is too large",
                      tensor->job->name, tensor->name, m, tensor->width);
    placing->positions[p] = placing->n;
    placing->partitions[placing->n] = p;
    placing->sizes[placing->n++] = m;
  }
  if ((uint64_t)placing->n * tensor->job->world > ZPS_SLOTS_MAX)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "job %s, tensor %s: %u partitions on this server for %u ranks; their product may be up to %u",
                    tensor->job->name, tensor->name, placing->n, tensor->job->world, ZPS_SLOTS_MAX);
  return zps_sums_place(tensor) == ZPS_OK ? ZPS_OK : no_memory(tensor, error);
}

/* By an index and values for each row, as they are or wide. */
static bool is_small(const struct zps_tensor *tensor) {
  const enum zps_dtype dtype = zps_tensor_may_be_wide(tensor) ? ZPS_DTYPE_F32 : tensor->dtype;
  const uint64_t row_bytes = sizeof(uint32_t) + zps_row_bytes(tensor->width, dtype);
  for (uint32_t p = 0; p < tensor->partition.n_parts; p++)
    if (tensor->all_sizes[p] * row_bytes > tensor->inline_bytes) return false;
  return true;
}

zps_err_t zps_tensor_place(struct zps_tensor *tensor, const bool *lost, struct zps_error *error) {
  if (!lost) return place(tensor, tensor->owners, error);
  const uint32_t n_parts = tensor->partition.n_parts;
  uint32_t *const owners = calloc(n_parts, sizeof *owners);
  if (!owners) return no_memory(tensor, error);
  zps_owners_reassign(tensor->owners, n_parts, tensor->quorum > 0, tensor->job->n_began, tensor->job->n_servers, lost,
                      owners);
  const zps_err_t code = place(tensor, owners, error);
  free(owners);
  return code;
}

/* Of itself, its partitions' numbers and sizes, and what is counted of each rank. */
static uint64_t bytes_of(const struct zps_tensor *tensor) {
  const uint64_t world = tensor->job->world, parts = tensor->partition.n_parts, here = tensor->parts_here;
  return sizeof *tensor + parts * 3 * sizeof(uint32_t) + here * (2 * sizeof(uint32_t) + sizeof(uint64_t)) +
         world * (here + 3) * sizeof(uint64_t);
}

/* Servers were lost, and more partitions are here: that is no fault of the job's. */
static void charge_anew(struct zps_tensor *tensor) {
  const uint64_t bytes = bytes_of(tensor);
  if (tensor->charged_bytes == 0) return;
  zps_account_add(tensor->job->account, bytes);
  zps_account_sub(tensor->job->account, tensor->charged_bytes);
  tensor->job->standing_bytes += bytes - tensor->charged_bytes;
  tensor->charged_bytes = bytes;
}

static zps_err_t charge(struct zps_tensor *tensor, struct zps_error *error) {
  char what[ZPS_NAME_MAX + 40];
  const uint64_t bytes = bytes_of(tensor);
  snprintf(what, sizeof what, "tensor %s and its statistics", tensor->name);
  const zps_err_t code = zps_quota_take(tensor->job, bytes, what, error);
  if (code != ZPS_OK) return code;
  tensor->charged_bytes = bytes;
  tensor->job->standing_bytes += bytes;
  return code;
}

void zps_tensor_move(struct zps_tensor *tensor) {
  struct zps_placing *const placing = &tensor->placing;
  zps_sums_move(tensor, tensor->partitions, tensor->parts_here);
  free(tensor->positions);
  free(tensor->partitions);
  free(tensor->sizes);
  tensor->parts_here = placing->n;
  tensor->positions = placing->positions;
  tensor->partitions = placing->partitions;
  tensor->sizes = placing->sizes;
  *placing = (struct zps_placing){0};
  for (unsigned i = 0; i < ZPS_TOMBSTONES; i++) {
    free(tensor->tombstones[i].abort);
    tensor->tombstones[i] = (struct zps_tombstone){0};
  }
  tensor->next_tombstone = 0;
  tensor->has_past = false;
  charge_anew(tensor);
}

/* Notes the ranks that have no part in it. */
static zps_err_t set_ranks(struct zps_tensor *tensor, const struct zps_tensor_spec *spec, struct zps_error *error) {
  const uint32_t world = tensor->job->world;
  if (spec->n_ranks == 0) return ZPS_OK;
  tensor->idle = malloc(world);
  if (!tensor->idle)
    return zps_fail(error, ZPS_ERR_NOMEM, "job %s, tensor %s: out of memory", tensor->job->name, spec->name);
  memset(tensor->idle, 1, world);
  for (uint32_t i = 0; i < spec->n_ranks; i++) {
    if (spec->ranks[i] >= world)
      return zps_fail(error, ZPS_ERR_INVALID, "job %s, tensor %s: rank %u has a part in it, of a world of %u",
                      tensor->job->name, spec->name, spec->ranks[i], world);
    tensor->idle[spec->ranks[i]] = 0;
  }
  return ZPS_OK;
}

zps_err_t zps_tensor_open(struct zps_job *job, const struct zps_tensor_spec *spec, struct zps_error *error) {
  struct zps_partition partition;
  zps_err_t code = check_spec(job, spec, error);
  if (code == ZPS_OK)
    code = zps_partition_init(&partition, spec->rows, spec->n_parts, spec->block_bits, job->seed, error);
  if (code == ZPS_OK)
    code = zps_partitioner_check(spec->partitioner, &spec->hashing, spec->rows, spec->n_parts, spec->block_bits, error);
  if (code != ZPS_OK) return code;
  struct zps_tensor *tensor = calloc(1, sizeof *tensor);
  if (!tensor) return zps_fail(error, ZPS_ERR_NOMEM, "job %s, tensor %s: out of memory", job->name, spec->name);
  tensor->job = job;
  tensor->id = spec->tensor;
  tensor->width = spec->width;
  tensor->dtype = zps_dtype_sum(spec->dtype);
  tensor->array_dtype = spec->dtype;
  tensor->op = spec->op;
  tensor->codecs = zps_codec_priced(
      zps_codec_result_set(spec->codec),
      zps_codec_price(zps_net_info(job->shard->net)->link_bits, spec->n_ranks > 0 ? spec->n_ranks : job->world));
  tensor->value_codec = zps_values_of(spec->value_codec, spec->dtype);
  tensor->any_order = zps_order_is_any(spec->partitioner, spec->codec, tensor->value_codec);
  tensor->partition = partition;
  tensor->inline_bytes = zps_wire_inline_bytes(partition.rows * zps_row_bytes(tensor->width, tensor->dtype), job->world,
                                               job->n_servers > 0 ? job->n_servers : 1);
  tensor->staleness = spec->staleness;
  tensor->quorum = spec->quorum;
  tensor->grace_ns = spec->grace_ms * ZPS_NS_PER_MS;
  memcpy(tensor->name, spec->name, sizeof tensor->name);
  tensor->owners = calloc(spec->n_parts, sizeof tensor->owners[0]);
  tensor->all_sizes = calloc(spec->n_parts, sizeof tensor->all_sizes[0]);
  if (!tensor->owners || !tensor->all_sizes || zps_sums_init(tensor) != ZPS_OK) code = no_memory(tensor, error);
  if (code == ZPS_OK) {
    memcpy(tensor->owners, spec->owners, spec->n_parts * sizeof tensor->owners[0]);
    code = count_rows(tensor, spec, tensor->all_sizes, error);
  }
  if (code == ZPS_OK) tensor->is_small = is_small(tensor);
  if (code == ZPS_OK) code = zps_tensor_place(tensor, job->servers_lost, error);
  if (code == ZPS_OK) code = set_ranks(tensor, spec, error);
  if (code == ZPS_OK) {
    zps_tensor_move(tensor);
    code = charge(tensor, error);
  }
  if (code != ZPS_OK) {
    zps_tensor_free(tensor);
    return code;
  }
  tensor->next = job->tensors;
  job->tensors = tensor;
  zps_log_about(.job = job->name, .tensor = tensor->name);
  zps_log_info("job %s, tensor %s: open with %" PRIu64 " x %u %s, %u of %u partitions here", job->name, tensor->name,
               spec->rows, spec->width, zps_dtype_name(spec->dtype), tensor->parts_here, spec->n_parts);
  return ZPS_OK;
}

struct zps_slice_view zps_shard_sum_view(const struct zps_tensor *tensor, uint32_t part,
                                         const struct zps_shard_sum *sum) {
  return zps_slice_view_own(sum->codec, tensor->sizes[part], sum->nnz, tensor->width, tensor->dtype,
                            tensor->value_codec, sum->buf.data, sum->len_bytes);
}

void zps_tensor_bury(struct zps_tensor *tensor, uint64_t step, const struct zps_frame_abort *abort) {
  struct zps_tombstone *tombstone = &tensor->tombstones[tensor->next_tombstone];
  tensor->next_tombstone = (tensor->next_tombstone + 1) % ZPS_TOMBSTONES;
  if (tombstone->is_used && tombstone->is_completed && (!tensor->has_past || tombstone->step > tensor->past_step)) {
    tensor->past_step = tombstone->step;
    tensor->has_past = true;
  }
  free(tombstone->abort);
  *tombstone = (struct zps_tombstone){.step = step, .is_used = true, .is_completed = !abort};
  if (!abort) return;
  tombstone->abort = malloc(sizeof *abort);
  if (tombstone->abort) *tombstone->abort = *abort;
}

const struct zps_tombstone *zps_tensor_tombstone(const struct zps_tensor *tensor, uint64_t step) {
  for (unsigned i = 0; i < ZPS_TOMBSTONES; i++)
    if (tensor->tombstones[i].is_used && tensor->tombstones[i].step == step) return &tensor->tombstones[i];
  return NULL;
}
