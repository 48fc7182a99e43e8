/*
 * COO gradients of single floats: entries are dealt, in order of appearance, to buckets of indices so few that their
 * sums fit the cache, and added up there. That takes the place of a sort: the sums are in the order of indices, without
 * repeats. Entries that ascend are so already, and only dealt to their partitions.
 */
#include <string.h>

#include "common/codec/encode_impl.h"
#include "common/codec/simd/simd.h"

enum {
  BATCH = 512,
  LINE_BYTES = 64,
  BLOCK = 512, /* entries: a page */
  RANGES_PER_THREAD_MAX = 2,
  ENTRIES_PER_LINE = LINE_BYTES / sizeof(struct zps_simd_entry),
};

/* The entries that a range dealt to a bucket: blocks of entries, all but the last one full. Ends, which each entry
 * moves, lie apart and close together. */
struct chain {
  uint64_t first; /* block */
  uint64_t n_blocks;
};

/* Up to BATCH entries of range `i` from `*entry` on; false at the end. */
static bool next_batch(const struct zps_encoder *encoder, unsigned i, uint64_t *entry, uint32_t *n_p) {
  const uint64_t n = encoder->input.n_entries, range_end = (i + 1) * encoder->range_len;
  const uint64_t end = range_end < n ? range_end : n;
  *entry += *n_p;
  if (*entry >= end) return false;
  *n_p = end - *entry < BATCH ? (uint32_t)(end - *entry) : BATCH;
  return true;
}

/* The memory that a range deals to: its own blocks, and a chain of them for each bucket. */
struct deal {
  struct zps_simd_entry *entries; /* all ranges' */
  uint64_t *next;                 /* of each block, the one that follows in its chain */
  struct chain *chains;           /* this range's, of each bucket */
  uint64_t *ends; /* the entry behind a chain's last: a multiple of BLOCK when that block is full, or none */
  uint64_t free_block;
};

static uint64_t n_buckets(const struct zps_encoder *encoder) {
  return (uint64_t)encoder->n_parts * encoder->way.n_chunks;
}

/* Each range begins a block, a page, for each bucket: several short ranges take a thread longer than one. */
static unsigned ranges_per_thread(const struct zps_encoder *encoder) {
  const unsigned n_threads = 1 + (encoder->pool ? zps_workpool_threads(encoder->pool) : 0);
  const uint64_t range_len_min = n_buckets(encoder) * BLOCK;
  return encoder->input.n_entries / n_threads < RANGES_PER_THREAD_MAX * range_len_min ? 1 : RANGES_PER_THREAD_MAX;
}

static struct chain *chains_of(const struct zps_encoder *encoder, unsigned range) {
  return (struct chain *)encoder->buckets.data + range * n_buckets(encoder);
}

static uint64_t *ends_of(const struct zps_encoder *encoder, unsigned range) {
  return (uint64_t *)(void *)chains_of(encoder, encoder->n_ranges) + range * n_buckets(encoder);
}

/* No range fills more blocks: whole ones, and one for each bucket that is not. */
static uint64_t blocks_per_range(const struct zps_encoder *encoder) {
  const uint64_t n = n_buckets(encoder);
  return encoder->range_len / BLOCK + (n < encoder->range_len ? n : encoder->range_len) + 1;
}

static void append_block(struct deal *deal, uint32_t bucket) {
  struct chain *const chain = &deal->chains[bucket];
  const uint64_t block = deal->free_block++;
  if (chain->n_blocks++ == 0)
    chain->first = block;
  else
    deal->next[deal->ends[bucket] / BLOCK - 1] = block;
  deal->ends[bucket] = block * BLOCK;
}

static void deal_range(void *ctx, unsigned i) {
  struct zps_encoder *const encoder = ctx;
  const struct zps_encode_input *const input = &encoder->input;
  const struct zps_simd_chunks chunks = {input->part, encoder->way.n_chunks, encoder->way.chunk_bits};
  uint64_t *const bad = &((uint64_t *)encoder->bad.data)[i], first = i * encoder->range_len;
  struct deal deal = {.entries = encoder->pairs.data,
                      .next = encoder->repeats.data,
                      .chains = chains_of(encoder, i),
                      .ends = ends_of(encoder, i),
                      .free_block = i * blocks_per_range(encoder)};
  struct zps_simd_entry *const dealt = deal.entries, entries[BATCH + ZPS_SIMD_SLACK];
  uint64_t *const ends = deal.ends;
  uint32_t buckets[BATCH + ZPS_SIMD_SLACK];
  *bad = UINT64_MAX;
  for (uint32_t n = 0; next_batch(encoder, i, &first, &n);) {
    const float *const values = (const float *)input->values + first;
    if (!zps_simd()->deal(&chunks, input->rows + first, values, n, buckets, entries)) {
      while ((uint64_t)input->rows[first] < input->part->rows) first++;
      *bad = first;
      return;
    }
    for (uint32_t j = 0; j < n; j++) {
      const uint32_t bucket = buckets[j];
      if (ends[bucket] % BLOCK == 0) append_block(&deal, bucket);
      const uint64_t end = ends[bucket]++;
      __builtin_prefetch(dealt + end + ENTRIES_PER_LINE, 1); /* buckets are too many for the machine to see it come */
      dealt[end] = entries[j];
    }
  }
}

static uint64_t range_entries(const struct zps_encoder *encoder, unsigned range, uint32_t bucket) {
  const uint64_t n_blocks = chains_of(encoder, range)[bucket].n_blocks;
  return n_blocks == 0 ? 0 : (n_blocks - 1) * BLOCK + (ends_of(encoder, range)[bucket] - 1) % BLOCK + 1;
}

static uint64_t bucket_entries(const struct zps_encoder *encoder, uint32_t bucket) {
  uint64_t n = 0;
  for (unsigned range = 0; range < encoder->n_ranges; range++) n += range_entries(encoder, range, bucket);
  return n;
}

/* The place of each partition's rows, with room to spare behind. */
static void place_partitions(struct zps_encoder *encoder) {
  uint64_t *const starts = encoder->starts.data, place = 0;
  for (uint32_t p = 0; p < encoder->n_parts; p++, place += ZPS_SIMD_SLACK) {
    starts[p] = place;
    for (uint32_t chunk = 0; chunk < encoder->way.n_chunks; chunk++)
      place += bucket_entries(encoder, p * encoder->way.n_chunks + chunk);
  }
  starts[encoder->n_parts] = place;
}

/* The block that follows a bucket's last one of `range`: in the next range, else of the next bucket. */
static uint64_t block_behind(const struct zps_encoder *encoder, unsigned range, uint32_t bucket) {
  if (++range == encoder->n_ranges) range = 0, bucket++;
  return bucket < n_buckets(encoder) ? chains_of(encoder, range)[bucket].first : 0;
}

/* One thread's scratch: the sums of a chunk, +0.0 between chunks, and which lines of them something was added to. */
struct sums {
  float *values;
  uint8_t *marks;
  uint32_t mask; /* a chunk's indices, less one */
};

static inline void add_one(const struct sums *sums, const struct zps_simd_entry *entry) {
  const uint32_t at = entry->index & sums->mask;
  sums->values[at] += entry->value;
  sums->marks[at / ZPS_SIMD_MARKED] = 1;
}

/* Fetches `ahead` in time: blocks lie anywhere, and each would begin with waiting. */
static void add(struct sums sums, const struct zps_simd_entry *entries, uint64_t n,
                const struct zps_simd_entry *ahead) {
  for (; n >= ENTRIES_PER_LINE; n -= ENTRIES_PER_LINE, entries += ENTRIES_PER_LINE, ahead += ENTRIES_PER_LINE) {
    __builtin_prefetch(ahead);
    for (unsigned i = 0; i < ENTRIES_PER_LINE; i++) add_one(&sums, &entries[i]);
  }
  for (; n > 0; n--) add_one(&sums, entries++);
}

/* The place of entries that need not be added up. */
struct taken {
  uint32_t *indices;
  float *values;
  uint32_t n;
};

static void take(struct taken *taken, const struct zps_simd_entry *entries, uint64_t n,
                 const struct zps_simd_entry *ahead) {
  uint32_t *const indices = taken->indices, at = taken->n;
  float *const values = taken->values;
  for (uint64_t i = 0; i < n; i++) {
    if (i % ENTRIES_PER_LINE == 0) __builtin_prefetch(ahead + i);
    indices[at] = entries[i].index;
    values[at] = entries[i].value;
    at += entries[i].value != 0;
  }
  taken->n = at;
}

/* Adds a bucket's entries in order of appearance, or takes them as they are. */
static void use_bucket(const struct zps_encoder *encoder, uint32_t bucket, const struct sums *sums,
                       struct taken *taken) {
  const struct zps_simd_entry *const entries = encoder->pairs.data;
  const uint64_t *const next = encoder->repeats.data;
  for (unsigned range = 0; range < encoder->n_ranges; range++) {
    uint64_t block = chains_of(encoder, range)[bucket].first, left = range_entries(encoder, range, bucket), ahead;
    for (uint64_t n; left > 0; left -= n, block = ahead) {
      n = left < BLOCK ? left : BLOCK;
      ahead = left > BLOCK ? next[block] : block_behind(encoder, range, bucket);
      if (taken)
        take(taken, entries + block * BLOCK, n, entries + ahead * BLOCK);
      else
        add(*sums, entries + block * BLOCK, n, entries + ahead * BLOCK);
    }
  }
}

/* Lines with indices from `base` on that the partition has, as many as are looked at together. */
static uint32_t lines_from(const struct zps_encoder *encoder, uint32_t p, uint32_t base, const struct sums *sums) {
  enum { LINES_TOGETHER = 64, INDICES_TOGETHER = LINES_TOGETHER * ZPS_SIMD_MARKED };
  const uint32_t m = zps_partition_size(encoder->input.part, p), left = m > base ? m - base : 0;
  const uint32_t n_indices = left <= sums->mask ? left : sums->mask + 1;
  return (n_indices + INDICES_TOGETHER - 1) / INDICES_TOGETHER * LINES_TOGETHER;
}

static uint32_t *indices_at(struct zps_encoder *encoder, uint32_t p) {
  return (uint32_t *)zps_encoder_lists(encoder)->indices.data + ((const uint64_t *)encoder->starts.data)[p];
}
static float *values_at(struct zps_encoder *encoder, uint32_t p) {
  return (float *)zps_encoder_lists(encoder)->staged.data + ((const uint64_t *)encoder->starts.data)[p];
}

static void sum_partition(struct zps_encoder *encoder, uint32_t p, const struct sums *sums) {
  uint32_t *const indices = indices_at(encoder, p), nnz = 0;
  float *const staged = values_at(encoder, p);
  for (uint32_t chunk = 0; chunk < encoder->way.n_chunks; chunk++) {
    const uint32_t base = chunk << encoder->way.chunk_bits, n_lines = lines_from(encoder, p, base, sums);
    use_bucket(encoder, p * encoder->way.n_chunks + chunk, sums, NULL);
    nnz += zps_simd()->take_marked(sums->values, sums->marks, n_lines, base, indices + nnz, staged + nnz);
  }
  ((uint32_t *)encoder->nnz.data)[p] = nnz;
}

static void take_partition(void *ctx, unsigned p) {
  struct zps_encoder *const encoder = ctx;
  struct taken taken = {.indices = indices_at(encoder, p), .values = values_at(encoder, p)};
  use_bucket(encoder, p, NULL, &taken);
  ((uint32_t *)encoder->nnz.data)[p] = taken.n;
}

static uint64_t slot_bytes(const struct zps_encoder *encoder) {
  const uint64_t chunk_rows = (uint64_t)1 << encoder->way.chunk_bits;
  return chunk_rows * sizeof(float) + chunk_rows / ZPS_SIMD_MARKED;
}

/* Sums partitions that no other thread has taken with the scratch of this slot. */
static void sum_slot(void *ctx, unsigned slot) {
  struct zps_encoder *const encoder = ctx;
  const uint32_t chunk_rows = (uint32_t)1 << encoder->way.chunk_bits;
  const uintptr_t first = ((uintptr_t)encoder->accumulators.data + LINE_BYTES - 1) & ~(uintptr_t)(LINE_BYTES - 1);
  float *const values = (float *)(first + slot * slot_bytes(encoder));
  const struct sums sums = {.values = values, .marks = (uint8_t *)(values + chunk_rows), .mask = chunk_rows - 1};
  for (uint32_t p; (p = atomic_fetch_add(&encoder->next_part, 1)) < encoder->n_parts;) sum_partition(encoder, p, &sums);
}

/* Sums and marks are left as they are found: zero. */
static zps_err_t need_accumulators(struct zps_encoder *encoder) {
  struct zps_buffer *const accumulators = &encoder->accumulators;
  const uint64_t size_bytes = encoder->n_slots * slot_bytes(encoder) + LINE_BYTES;
  if (accumulators->data && size_bytes <= accumulators->size_bytes) return ZPS_OK;
  const zps_err_t code = zps_buffer_need(accumulators, size_bytes, 1);
  if (code == ZPS_OK) memset(accumulators->data, 0, accumulators->size_bytes);
  return code;
}

zps_err_t zps_encoder_scan_singles(struct zps_encoder *encoder, struct zps_error *error) {
  const uint64_t n = encoder->input.n_entries, room = n + (uint64_t)encoder->n_parts * ZPS_SIMD_SLACK;
  zps_err_t code = zps_encoder_cut(encoder, n, sizeof(struct zps_sort_pair), ranges_per_thread(encoder));
  if (code == ZPS_OK) code = zps_buffer_need(&encoder->bad, encoder->n_ranges, sizeof(uint64_t));
  if (code != ZPS_OK) return code;
  const uint64_t n_chains = encoder->n_ranges * n_buckets(encoder);
  const uint64_t chain_bytes = sizeof(struct chain) + sizeof(uint64_t);
  const uint64_t n_blocks = encoder->n_ranges * blocks_per_range(encoder);
  const unsigned n_threads = 1 + (encoder->pool ? zps_workpool_threads(encoder->pool) : 0);
  encoder->n_slots = n_threads < encoder->n_parts ? n_threads : encoder->n_parts;
  struct zps_encode_lists *const lists = zps_encoder_lists(encoder);
  code = zps_buffer_need(&encoder->buckets, n_chains, chain_bytes);
  if (code == ZPS_OK) code = zps_buffer_need(&encoder->pairs, n_blocks, BLOCK * sizeof(struct zps_simd_entry));
  if (code == ZPS_OK) code = zps_buffer_need(&encoder->repeats, n_blocks, sizeof(uint64_t));
  if (code == ZPS_OK) code = zps_buffer_need(&lists->indices, room, sizeof(uint32_t));
  if (code == ZPS_OK) code = zps_buffer_need(&lists->staged, room, sizeof(float));
  if (code == ZPS_OK && !encoder->way.ascends) code = need_accumulators(encoder);
  if (code != ZPS_OK) return code;
  memset(encoder->buckets.data, 0, n_chains * chain_bytes);
  encoder->is_staged = true;
  zps_workpool_for(encoder->pool, encoder->n_ranges, deal_range, encoder);
  code = zps_encoder_check_rows(encoder, error);
  if (code != ZPS_OK) return code;
  place_partitions(encoder);
  if (encoder->way.ascends) {
    zps_workpool_for(encoder->pool, encoder->n_parts, take_partition, encoder);
    return ZPS_OK;
  }
  atomic_store(&encoder->next_part, 0);
  zps_workpool_for(encoder->pool, encoder->n_slots, sum_slot, encoder);
  return ZPS_OK;
}
