/* Chooses, of the five ways, the one that finds the rows of a gradient with the least work. All of them write the same
 * bytes. Buckets are dealt to by arithmetic alone: rows that are hashed are sorted. */
#include "common/codec/encode_impl.h"

enum {
  CHUNK_BITS_MIN = 17,       /* smaller ones would be too many: each is written to in turn */
  CHUNK_BITS_MAX = 18,       /* 1 MiB of sums */
  WHOLE_BITS = 31,           /* a chunk is a partition */
  BUCKETS_MAX = 4096,        /* their ends stay in the second-level cache */
  ROWS_PER_ENTRY_MAX = 4096, /* a mark of each line of sums is looked at: with fewer entries, sorting is less work */
  FEW_MAX = 1 << 15,         /* sorted with their values, in less memory than there is cache */
  FEW_ROWS_PER_ENTRY = 512,  /* more of them than that have cache lines of sums in common */
};

static uint32_t chunks_per_part(const struct zps_partition *part, unsigned chunk_bits) {
  return (uint32_t)((((part->n_groups << part->block_bits) - 1) >> chunk_bits) + 1);
}

static bool rows_ascend(const struct zps_encode_input *input) {
  for (uint64_t i = 1; i < input->n_entries; i++)
    if (input->rows[i - 1] >= input->rows[i]) return false;
  return true;
}

/* Single floats: rows that ascend are only dealt to their partitions, others to chunks with sums that fit the cache.
 * False where there would be too many buckets. */
static bool fits_buckets(const struct zps_partition *part, struct zps_encode_way *way) {
  const unsigned first = way->ascends ? WHOLE_BITS : CHUNK_BITS_MIN, last = way->ascends ? WHOLE_BITS : CHUNK_BITS_MAX;
  for (unsigned bits = first; bits <= last; bits++) {
    way->chunk_bits = bits;
    way->n_chunks = chunks_per_part(part, bits);
    if ((uint64_t)part->n_parts * way->n_chunks <= BUCKETS_MAX) return true;
  }
  return false;
}

struct zps_encode_way zps_encoder_way(const struct zps_encode_input *input, enum zps_partitioner partitioner) {
  const struct zps_partition *const part = input->part;
  const uint64_t n = input->n_entries;
  if (input->all_rows) return (struct zps_encode_way){.method = ZPS_ENCODE_ALL};
  if (!zps_encode_input_is_list(input)) return (struct zps_encode_way){.method = ZPS_ENCODE_DENSE};
  struct zps_encode_way way = {.method = ZPS_ENCODE_COO};
  if (input->sections || input->dtype != ZPS_DTYPE_F32 || input->width != 1 || input->zero_rows ||
      partitioner == ZPS_PARTITIONER_HIERARCHICAL)
    return way;
  const bool is_one = part->n_parts == 1, are_many = n >= part->rows / ROWS_PER_ENTRY_MAX;
  way.ascends = (is_one || (are_many && chunks_per_part(part, WHOLE_BITS) == 1)) && rows_ascend(input);
  if (is_one && (way.ascends || (n <= FEW_MAX && n < part->rows / FEW_ROWS_PER_ENTRY)))
    way.method = ZPS_ENCODE_FEW;
  else if (are_many && !zps_partition_is_hashed(part) && fits_buckets(part, &way))
    way.method = ZPS_ENCODE_SINGLES;
  return way;
}

/* The cost of a partition's slice: the only pass over the indices between finding and writing them. */

enum zps_codec zps_encoder_choose(const struct zps_encoder *encoder, uint32_t p, unsigned allowed,
                                  uint64_t *slice_bytes_p) {
  const uint32_t m = zps_partition_size(encoder->input.part, p), z = zps_encoder_nnz(encoder, p);
  const uint32_t *const indices = zps_encoder_indices(encoder, p);
  uint64_t index_bytes;
  const enum zps_codec codec = zps_codec_choose(allowed, m, indices, z, &index_bytes);
  const struct zps_encode_input *const input = &encoder->input;
  const uint64_t n_values = (uint64_t)z * input->width;
  *slice_bytes_p =
      zps_values_bytes(zps_encoder_value_codec(encoder, p), zps_dtype_sum(input->dtype), n_values) + index_bytes;
  return codec;
}
