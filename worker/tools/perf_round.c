#include "worker/tools/perf_round.h"

#include <stdlib.h>
#include <string.h>

#include "common/codec/partition_murmur.h"
#include "common/codec/values.h"

struct perf_round {
  zenps_tensor_info_t info;
  struct zps_partition part;
  uint32_t n_ranges;         /* 0: partitions */
  struct zps_murmur *murmur; /* where rows are hashed */
  uint64_t row_bytes;
  char *list, *coded; /* of the largest list of values */
};

static uint64_t range_begin(const struct perf_round *round, uint32_t i) {
  return (uint64_t)((unsigned __int128)round->info.rows * i / round->n_ranges);
}

static uint32_t n_lists(const struct perf_round *round) {
  return round->n_ranges ? round->n_ranges : round->info.partitions;
}

static uint64_t list_size(const struct perf_round *round, uint32_t i) {
  return round->n_ranges ? range_begin(round, i + 1) - range_begin(round, i) : zps_partition_size(&round->part, i);
}

static uint64_t list_row(const struct perf_round *round, uint32_t i, uint64_t local) {
  return round->n_ranges ? range_begin(round, i) + local : zps_partition_row(&round->part, i, (uint32_t)local);
}

/* The number that stands for the list in the key of its draws. */
static uint32_t list_number(const struct perf_round *round, uint32_t i) {
  return round->n_ranges ? ~(uint32_t)range_begin(round, i) : i;
}

zps_err_t perf_round_create(const zenps_tensor_t *tensor, uint32_t n_ranges, struct perf_round **round_p,
                            struct zps_error *error) {
  struct perf_round *round = calloc(1, sizeof *round);
  if (!round) return zps_fail(error, ZPS_ERR_NOMEM, "out of memory");
  round->info.struct_size = sizeof round->info;
  round->n_ranges = n_ranges;
  zps_err_t code = ZPS_OK;
  if (zenps_tensor_info(tensor, &round->info) != ZENPS_OK)
    code = zps_fail(error, ZPS_ERR_INTERNAL, "the tensor tells nothing about itself: %s", zenps_last_error()->text);
  const zenps_tensor_info_t *const info = &round->info;
  if (code == ZPS_OK && info->partitioner && strcmp(info->partitioner, "stratified") != 0)
    code = zps_murmur_create(info->rows, info->partitions, info->seed, NULL, &round->murmur, &round->part, error);
  else if (code == ZPS_OK)
    code = zps_partition_init(&round->part, info->rows, info->partitions, info->block_bits, info->seed, error);
  uint64_t most = 1;
  for (uint32_t i = 0; code == ZPS_OK && i < n_lists(round); i++) {
    const uint64_t size = list_size(round, i);
    if (size > most) most = size;
  }
  if (code == ZPS_OK) {
    const enum zps_dtype dtype = zps_dtype_sum((enum zps_dtype)info->dtype);
    round->row_bytes = info->width * zps_dtype_size(dtype);
    round->list = malloc(most * round->row_bytes);
    round->coded = malloc(zps_values_bytes((enum zps_value_codec)info->values, dtype, most * info->width));
    if (!round->list || !round->coded)
      code =
          zps_fail(error, ZPS_ERR_NOMEM, "--verify: out of memory for a list of %llu rows", (unsigned long long)most);
  }
  if (code != ZPS_OK) {
    perf_round_destroy(round);
    return code;
  }
  *round_p = round;
  return ZPS_OK;
}

void perf_round_destroy(struct perf_round *round) {
  if (!round) return;
  zps_murmur_destroy(round->murmur);
  free(round->list);
  free(round->coded);
  free(round);
}

/* Copies marked rows of list `i`, or back. Returns how many there are. */
static uint64_t copy_rows(const struct perf_round *round, uint32_t i, const uint8_t *marked, char *values, bool back) {
  const uint64_t size = list_size(round, i);
  char *at = round->list;
  uint64_t n = 0;
  for (uint64_t local = 0; local < size; local++) {
    const uint64_t row = list_row(round, i, local);
    if (!marked[row]) continue;
    char *const value = values + row * round->row_bytes;
    memcpy(back ? value : at, back ? at : value, round->row_bytes);
    at += round->row_bytes;
    n++;
  }
  return n;
}

void perf_round_rows(struct perf_round *round, uint64_t step, uint32_t rank, const uint8_t *marked, void *values) {
  const zenps_tensor_info_t *const info = &round->info;
  const enum zps_value_codec codec = (enum zps_value_codec)info->values;
  const enum zps_dtype dtype = zps_dtype_sum((enum zps_dtype)info->dtype);
  const struct zps_values_origin origin = {.seed = info->seed, .step = step, .tensor = info->id, .rank = rank};
  for (uint32_t i = 0; i < n_lists(round); i++) {
    const uint64_t n = copy_rows(round, i, marked, values, false) * info->width;
    zps_values_encode(codec, dtype, round->list, n, zps_values_key(&origin, list_number(round, i)), round->coded);
    zps_values_decode(codec, dtype, round->coded, n, 0, n, round->list);
    copy_rows(round, i, marked, values, true);
  }
}
