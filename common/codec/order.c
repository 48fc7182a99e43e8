#include "common/codec/order.h"

#include <string.h>

#include "common/codec/bits.h"
#include "common/codec/codec_impl.h"

/* The coded set may lie anywhere in memory. */
typedef uint32_t any_u32 __attribute__((aligned(1), may_alias));

/* The set of all indices, and the number of them before each word. */
struct set {
  uint64_t *words;
  uint32_t *before;
  uint32_t n_words;
};

bool zps_order_is_any(enum zps_partitioner partitioner, enum zps_codec_policy policy,
                      enum zps_value_codec value_codec) {
  return partitioner == ZPS_PARTITIONER_HIERARCHICAL && policy == ZPS_CODEC_PAPER &&
         zps_values_level_bits(value_codec) == 0;
}

static zps_err_t mark(const struct set *set, uint32_t m, const any_u32 *indices, uint32_t z, struct zps_error *error) {
  memset(set->words, 0, set->n_words * sizeof *set->words);
  for (uint32_t i = 0; i < z; i++) {
    const uint32_t index = indices[i];
    if (index >= m)
      return zps_fail(error, ZPS_ERR_PROTOCOL,
                      "coo-any slice: index %u at position %u: the partition has indices 0 to %u", index, i, m - 1);
    uint64_t *const word = &set->words[index / 64], bit = 1ull << index % 64;
    if (*word & bit)
      return zps_fail(error, ZPS_ERR_PROTOCOL, "coo-any slice: index %u at position %u is there twice", index, i);
    *word |= bit;
  }
  return ZPS_OK;
}

static uint32_t place_of(const struct set *set, uint32_t index) {
  const uint32_t at = index / 64;
  return set->before[at] + zps_bits_count(set->words[at] & ((1ull << index % 64) - 1));
}

static inline __attribute__((always_inline)) void swap(char *a, char *b, uint64_t n_bytes) {
  char room[64];
  for (uint64_t at = 0, n; at < n_bytes; at += n) {
    n = n_bytes - at < sizeof room ? n_bytes - at : sizeof room;
    memcpy(room, a + at, n);
    memcpy(a + at, b + at, n);
    memcpy(b + at, room, n);
  }
}

/* Follows each cycle of rows that take each other's places. */
static inline __attribute__((always_inline)) void move(any_u32 *places, uint32_t z, char *values, uint64_t row_bytes) {
  for (uint32_t i = 0; i < z; i++) {
    for (uint32_t to; (to = places[i]) != i; places[to] = to) {
      swap(values + i * row_bytes, values + to * row_bytes, row_bytes);
      places[i] = places[to];
    }
  }
}

static void list(const struct set *set, any_u32 *indices) {
  for (uint32_t w = 0; w < set->n_words; w++)
    for (uint64_t word = set->words[w]; word != 0; word &= word - 1)
      *indices++ = w * 64 + (unsigned)__builtin_ctzll(word);
}

zps_err_t zps_slice_order(uint32_t m, uint32_t nnz, uint32_t width, enum zps_dtype dtype,
                          enum zps_value_codec value_codec, void *payload, struct zps_buffer *scratch,
                          struct zps_error *error) {
  const uint64_t row_bytes = zps_values_row_bytes(value_codec, dtype, width);
  const uint32_t n_words = m / 64 + 1;
  if (nnz == 0) return ZPS_OK;
  if (zps_buffer_need(scratch, n_words, sizeof(uint64_t) + sizeof(uint32_t)) != ZPS_OK)
    return zps_fail(error, ZPS_ERR_NOMEM, "no memory to put a slice of %u rows in order", nnz);
  const struct set set = {scratch->data, (uint32_t *)(void *)((uint64_t *)scratch->data + n_words), n_words};
  any_u32 *const indices =
      (any_u32 *)(void *)((char *)payload + zps_values_bytes(value_codec, dtype, (uint64_t)nnz * width));
  const zps_err_t code = mark(&set, m, indices, nnz, error);
  if (code != ZPS_OK) return code;
  for (uint32_t w = 0, n = 0; w < n_words; w++) {
    set.before[w] = n;
    n += zps_bits_count(set.words[w]);
  }
  for (uint32_t i = 0; i < nnz; i++) indices[i] = place_of(&set, indices[i]);
  if (row_bytes == 4)
    move(indices, nnz, payload, 4);
  else if (row_bytes == 8)
    move(indices, nnz, payload, 8);
  else
    move(indices, nnz, payload, row_bytes);
  list(&set, indices);
  return ZPS_OK;
}
