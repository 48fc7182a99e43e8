#include "tests/unit/server/shard/shard_sums.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "common/base/hash.h"
#include "common/base/rng.h"

/* Sizes are constants, so that a value is a store, and no call that a sanitizer looks at. */
static void put_value(enum zps_dtype dtype, uint8_t *to, struct zps_rng *rng) {
  const double value = zps_rng_unit(rng) * 2 - 1;
  const float value_f32 = (float)value;
  const uint8_t value_u8 = (uint8_t)zps_rng_u64(rng);
  if (dtype == ZPS_DTYPE_F64)
    memcpy(to, &value, sizeof value);
  else if (dtype == ZPS_DTYPE_F32)
    memcpy(to, &value_f32, sizeof value_f32);
  else
    memcpy(to, &value_u8, sizeof value_u8);
}

/* Of halves: every other rank pushes floats. */
bool shard_is_wide(const struct cluster_tensor *tensor, uint32_t rank) {
  return zps_dtype_is_half(tensor->spec.dtype) && tensor->spec.value_codec == ZPS_VALUES_RAW && rank % 2 == 1;
}

struct shard_contribution shard_contribution(const struct cluster_tensor *tensor, uint64_t step, uint32_t rank,
                                             uint32_t p) {
  const enum zps_dtype dtype = zps_dtype_sum(tensor->spec.dtype);
  const enum zps_value_codec value_codec =
      shard_is_wide(tensor, rank) ? ZPS_VALUES_RAW : zps_values_of(tensor->spec.value_codec, tensor->spec.dtype);
  const size_t size = zps_dtype_size(dtype);
  struct shard_contribution made = {
      .m = zps_partition_size(&tensor->part, p), .dtype = dtype, .value_codec = value_codec};
  struct zps_rng rng = {.state = zps_hash_mix64(step * 1000003 + rank * 1009 + p * 31 + tensor->spec.tensor)};
  made.ranks = malloc((made.m + 1) * sizeof made.ranks[0]);
  for (uint32_t local = 0; local < made.m; local++)
    if (zps_rng_unit(&rng) < tensor->density) made.ranks[made.nnz++] = local;
  const uint64_t n = (uint64_t)made.nnz * tensor->spec.width, values_bytes = zps_values_bytes(value_codec, dtype, n);
  made.len_bytes = values_bytes + zps_codec_index_bytes(ZPS_CODEC_COO, made.m, made.nnz);
  assert_true(made.len_bytes ==
              zps_codec_slice_bytes(ZPS_CODEC_COO, made.m, made.nnz, tensor->spec.width, dtype, value_codec));
  made.values = malloc(n * size + 1);
  made.payload = malloc(made.len_bytes + 1);
  for (uint64_t i = 0; i < n; i++) put_value(dtype, made.values + i * size, &rng);
  zps_values_encode(value_codec, dtype, made.values, n, step, made.payload);
  zps_values_decode(value_codec, dtype, made.payload, n, 0, n, made.values);
  zps_codec_index_encode(ZPS_CODEC_COO, made.m, made.ranks, made.nnz, made.payload + values_bytes);
  return made;
}

void shard_contribution_free(struct shard_contribution *contribution) {
  free(contribution->ranks);
  free(contribution->values);
  free(contribution->payload);
}

static void add_value(enum zps_dtype dtype, uint8_t *sum, const uint8_t *value) {
  if (dtype == ZPS_DTYPE_U8) {
    *sum = (uint8_t)(*sum + *value);
  } else if (dtype == ZPS_DTYPE_F64) {
    double a, b;
    memcpy(&a, sum, sizeof a);
    memcpy(&b, value, sizeof b);
    a += b;
    memcpy(sum, &a, sizeof a);
  } else {
    float a, b;
    memcpy(&a, sum, sizeof a);
    memcpy(&b, value, sizeof b);
    a += b;
    memcpy(sum, &a, sizeof a);
  }
}

static void divide(enum zps_dtype dtype, uint8_t *sum, unsigned n) {
  if (dtype == ZPS_DTYPE_F64) {
    double a;
    memcpy(&a, sum, sizeof a);
    a *= 1.0 / n;
    memcpy(sum, &a, sizeof a);
  } else {
    float a;
    memcpy(&a, sum, sizeof a);
    a *= 1.0f / (float)n;
    memcpy(sum, &a, sizeof a);
  }
}

bool shard_has_part(const struct cluster_tensor *tensor, uint32_t rank) {
  bool has = tensor->spec.n_ranks == 0;
  for (uint32_t i = 0; i < tensor->spec.n_ranks; i++) has |= tensor->ranks[i] == rank;
  return has;
}

/* Fills in the bytes that the result of the partition must have: `nnz` rows as `codec`; after it was joined, as COO. */
void shard_expected(const struct cluster *cluster, const struct cluster_tensor *tensor, uint32_t p,
                    struct cluster_expected *expected) {
  const enum zps_dtype dtype = zps_dtype_sum(tensor->spec.dtype);
  const uint32_t m = zps_partition_size(&tensor->part, p), width = tensor->spec.width;
  const size_t size = zps_dtype_size(dtype), row_bytes = size * width;
  uint8_t *sums = calloc(m + 1, row_bytes), *touched = calloc(m + 1, 1);
  uint32_t *ranks = calloc(m + 1, sizeof ranks[0]), nnz = 0;
  for (uint32_t rank = 0; rank < cluster->world; rank++) {
    if (!shard_has_part(tensor, rank) || (cluster->late >> rank & 1)) continue;
    struct shard_contribution made = shard_contribution(tensor, expected->step, rank, p);
    for (uint32_t i = 0; i < made.nnz; i++) {
      touched[made.ranks[i]] = 1;
      for (uint32_t j = 0; j < width; j++)
        add_value(dtype, sums + made.ranks[i] * row_bytes + j * size, made.values + i * row_bytes + j * size);
    }
    shard_contribution_free(&made);
  }
  for (uint32_t local = 0; local < m; local++)
    if (touched[local]) ranks[nnz++] = local;
  expected->nnz = nnz;
  uint64_t index_bytes;
  const unsigned price = zps_codec_price(zps_shard_net_info(cluster->shard)->link_bits, cluster->world);
  const unsigned codecs =
      expected->joined ? 1u << ZPS_CODEC_COO : zps_codec_priced(zps_codec_result_set(tensor->spec.codec), price);
  expected->codec = zps_codec_choose(codecs, m, ranks, nnz, &index_bytes);
  uint8_t *const list = malloc(nnz * row_bytes + 1);
  for (uint32_t i = 0; i < nnz; i++) {
    memcpy(list + i * row_bytes, sums + ranks[i] * row_bytes, row_bytes);
    for (uint32_t j = 0; tensor->spec.op == ZPS_OP_MEAN && j < width; j++)
      divide(dtype, list + i * row_bytes + j * size, cluster->world);
  }
  const enum zps_value_codec value_codec = zps_values_of(tensor->spec.value_codec, tensor->spec.dtype);
  const uint64_t n = (uint64_t)nnz * width, values_bytes = zps_values_bytes(value_codec, dtype, n);
  const struct zps_values_origin origin = {
      .seed = cluster->seed, .step = expected->step, .tensor = tensor->spec.tensor, .rank = cluster->world};
  expected->len_bytes = values_bytes + index_bytes;
  expected->payload = malloc(expected->len_bytes + 1);
  zps_values_encode(value_codec, dtype, list, n, zps_values_key(&origin, p), expected->payload);
  zps_codec_index_encode(expected->codec, m, ranks, nnz, expected->payload + values_bytes);
  free(list);
  free(sums);
  free(touched);
  free(ranks);
}
