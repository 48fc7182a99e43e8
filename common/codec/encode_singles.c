/*
 * COO gradients of single floats: entries are dealt, in order of appearance, to buckets of ranks whose sums fit the
 * cache, and added up there. That takes the place of a sort: what is left is in the order of ranks, without repeats.
 */
#include <string.h>

#include "common/codec/encode_internal.h"
#include "common/codec/rowscan.h"
#include "common/codec/simd.h"

enum {
  BATCH = 512,
  LINE_FLOATS = 16,
  CHUNK_BITS_MIN = 17,      /* smaller ones would be too many: each is written to in turn */
  CHUNK_BITS_MAX = 18,      /* 1 MiB of sums */
  BUCKETS_MAX = 4096,       /* their ends stay in the second-level cache */
  ROWS_PER_ENTRY_MAX = 512, /* a bit of each sum is looked at: with fewer entries, sorting these is less work */
  ROWS_PER_ENTRY_FEW = 16,
  BLOCK = 512, /* entries: a page */
};

struct single {
  uint32_t rank;
  float value;
};

/* What a range dealt to a bucket: blocks of entries, all but the last one full. Ends, which each entry moves, lie apart
 * and close together. */
struct chain {
  uint64_t first; /* block */
  uint64_t n_blocks;
};

static uint32_t chunks_per_part(const struct zps_partition *part, unsigned chunk_bits) {
  return (uint32_t)((((part->n_groups << part->block_bits) - 1) >> chunk_bits) + 1);
}

bool zps_encoder_is_singles(struct zps_encoder *encoder) {
  const struct zps_encode_input *const input = &encoder->input;
  if (input->dtype != ZPS_DTYPE_F32 || input->width != 1 || encoder->partitioner != ZPS_PARTITIONER_ORDERED ||
      input->n_entries < input->part->rows / ROWS_PER_ENTRY_MAX)
    return false;
  for (unsigned bits = CHUNK_BITS_MIN; bits <= CHUNK_BITS_MAX; bits++) {
    const uint64_t n = (uint64_t)encoder->n_parts * chunks_per_part(input->part, bits);
    if (n > BUCKETS_MAX) continue;
    encoder->chunk_bits = bits;
    encoder->n_chunks = chunks_per_part(input->part, bits);
    return true;
  }
  return false;
}

/* Up to BATCH entries of range `i` from `*entry` on; false at the end. */
static bool next_batch(const struct zps_encoder *encoder, unsigned i, uint64_t *entry, uint32_t *n_p) {
  const uint64_t n = encoder->input.n_entries, range_end = (i + 1) * encoder->range_len;
  const uint64_t end = range_end < n ? range_end : n;
  *entry += *n_p;
  if (*entry >= end) return false;
  *n_p = end - *entry < BATCH ? (uint32_t)(end - *entry) : BATCH;
  return true;
}

/* Where a range deals to: its own blocks, and a chain of them for each bucket. */
struct deal {
  struct single *singles; /* all ranges' */
  uint64_t *next;         /* of each block, the one that follows in its chain */
  struct chain *chains;   /* this range's, of each bucket */
  uint64_t *ends;         /* the entry behind a chain's last: a multiple of BLOCK when that block is full, or none */
  uint64_t free_block;
};

static uint64_t n_buckets(const struct zps_encoder *encoder) {
  return (uint64_t)encoder->n_parts * encoder->n_chunks;
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
  uint64_t *const bad = &((uint64_t *)encoder->bad.data)[i], entry = i * encoder->range_len;
  struct deal deal = {.singles = encoder->pairs.data,
                      .next = encoder->repeats.data,
                      .chains = chains_of(encoder, i),
                      .ends = ends_of(encoder, i),
                      .free_block = i * blocks_per_range(encoder)};
  uint64_t *const ends = deal.ends;
  const uint32_t n_chunks = encoder->n_chunks;
  const unsigned chunk_bits = encoder->chunk_bits;
  uint16_t parts[BATCH + ZPS_SIMD_SLACK];
  uint32_t ranks[BATCH + ZPS_SIMD_SLACK];
  *bad = UINT64_MAX;
  for (uint32_t n = 0; next_batch(encoder, i, &entry, &n);) {
    const float *const values = (const float *)input->values + entry;
    if (!zps_simd()->locate_rows(input->part, input->rows + entry, n, parts, ranks)) {
      while ((uint64_t)input->rows[entry] < input->part->rows) entry++;
      *bad = entry;
      return;
    }
    for (uint32_t j = 0; j < BATCH; j += LINE_FLOATS) __builtin_prefetch(values + BATCH + j);
    for (uint32_t j = 0; j < n; j++) {
      const uint32_t bucket = parts[j] * n_chunks + (ranks[j] >> chunk_bits);
      if (ends[bucket] % BLOCK == 0) append_block(&deal, bucket);
      struct single *const single = &deal.singles[ends[bucket]++];
      __builtin_prefetch(single + 8, 1); /* the next line: buckets are too many for the machine to see it come */
      *single = (struct single){ranks[j], values[j]};
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

/* Where each partition's rows go, with room to spare behind. */
static void place_partitions(struct zps_encoder *encoder) {
  uint64_t *const starts = encoder->starts.data, place = 0;
  for (uint32_t p = 0; p < encoder->n_parts; p++, place += ZPS_SIMD_SLACK) {
    starts[p] = place;
    for (uint32_t chunk = 0; chunk < encoder->n_chunks; chunk++)
      place += bucket_entries(encoder, p * encoder->n_chunks + chunk);
  }
  starts[encoder->n_parts] = place;
}

/* One thread's scratch: the sums of a chunk, and which of them count. */
struct sums {
  float *values;
  uint64_t *bits; /* zero between chunks */
  uint32_t mask;  /* a chunk's ranks, less one */
  unsigned chunk_bits;
};

typedef void add_fn(const struct sums *sums, const struct single *single, uint64_t n);

/* Adds a bucket's entries in order of appearance. */
static void add_bucket(const struct zps_encoder *encoder, uint32_t bucket, const struct sums *sums, add_fn *add) {
  const struct single *const singles = encoder->pairs.data;
  const uint64_t *const next = encoder->repeats.data;
  for (unsigned range = 0; range < encoder->n_ranges; range++) {
    uint64_t block = chains_of(encoder, range)[bucket].first, left = range_entries(encoder, range, bucket);
    for (; left > BLOCK; left -= BLOCK, block = next[block]) add(sums, singles + block * BLOCK, BLOCK);
    add(sums, singles + block * BLOCK, left);
  }
}

static void add_to_cleared(const struct sums *sums, const struct single *single, uint64_t n) {
  for (uint64_t i = 0; i < n; i++) sums->values[single[i].rank & sums->mask] += single[i].value;
}

/* What is in a sum before its bit is set does not count. No branch: whether a rank repeats cannot be foreseen. */
static void add_to_marked(const struct sums *sums, const struct single *single, uint64_t n) {
  for (uint64_t i = 0; i < n; i++) {
    const uint32_t at = single[i].rank & sums->mask;
    uint64_t *const word = &sums->bits[at / 64];
    uint32_t old_bits;
    float old;
    memcpy(&old_bits, &sums->values[at], sizeof old_bits);
    old_bits &= -(uint32_t)(*word >> at % 64 & 1);
    memcpy(&old, &old_bits, sizeof old);
    sums->values[at] = old + single[i].value;
    *word |= (uint64_t)1 << at % 64;
  }
}

/* Lists the positions of the bits and clears them: mostly none, one or two in a word. */
static uint32_t list_marked(uint64_t *bits, uint32_t n_words, uint32_t *positions) {
  uint32_t n = 0;
  for (uint32_t w = 0; w < n_words; w++) {
    uint64_t word = bits[w];
    bits[w] = 0;
    for (unsigned i = 0; i < 2; i++) {
      positions[n] = w * 64 + (uint32_t)__builtin_ctzll(word | (uint64_t)1 << 63);
      n += word != 0;
      word &= word - 1;
    }
    for (; word != 0; word &= word - 1) positions[n++] = w * 64 + (uint32_t)__builtin_ctzll(word);
  }
  return n;
}

/* The chunk's rows that are not zero, of few entries: the time taken is in proportion to these. */
static uint32_t sum_few(const struct zps_encoder *encoder, uint32_t bucket, const struct sums *sums, uint32_t *ranks,
                        float *staged) {
  add_bucket(encoder, bucket, sums, add_to_marked);
  const uint32_t n_listed = list_marked(sums->bits, sums->mask / 64 + 1, ranks);
  uint32_t n = 0;
  for (uint32_t i = 0; i < n_listed; i++) {
    const uint32_t at = ranks[i];
    const float value = sums->values[at];
    ranks[n] = at;
    staged[n] = value;
    n += value != 0 || value != value;
  }
  return n;
}

/* Of many: all sums are looked at. */
static uint32_t sum_many(const struct zps_encoder *encoder, uint32_t bucket, const struct sums *sums, uint32_t *ranks,
                         float *staged) {
  memset(sums->values, 0, (sums->mask + 1ull) * sizeof *sums->values);
  add_bucket(encoder, bucket, sums, add_to_cleared);
  return zps_simd()->compact(sums->values, sums->mask + 1, zps_rowscan_mask(ZPS_DTYPE_F32), ranks, (uint32_t *)staged);
}

static void sum_partition(struct zps_encoder *encoder, uint32_t p, const struct sums *sums) {
  const uint64_t start = ((const uint64_t *)encoder->starts.data)[p];
  uint32_t *const ranks = (uint32_t *)encoder->ranks.data + start, nnz = 0;
  float *const staged = (float *)encoder->staged.data + start;
  for (uint32_t chunk = 0; chunk < encoder->n_chunks; chunk++) {
    const uint32_t bucket = p * encoder->n_chunks + chunk, base = chunk << encoder->chunk_bits;
    const uint64_t n_entries = bucket_entries(encoder, bucket);
    if (n_entries == 0) continue;
    const uint32_t n = (n_entries < (sums->mask + 1ull) / ROWS_PER_ENTRY_FEW ? sum_few : sum_many)(
        encoder, bucket, sums, ranks + nnz, staged + nnz);
    for (uint32_t i = 0; i < n; i++) ranks[nnz + i] += base;
    nnz += n;
  }
  ((uint32_t *)encoder->nnz.data)[p] = nnz;
}

/* Sums partitions that no other thread has taken with the scratch of this slot. */
static void sum_slot(void *ctx, unsigned slot) {
  struct zps_encoder *const encoder = ctx;
  const uint64_t chunk_rows = (uint64_t)1 << encoder->chunk_bits;
  const struct sums sums = {.values = (float *)encoder->sums.data + slot * chunk_rows,
                            .bits = (uint64_t *)(void *)((float *)encoder->sums.data + encoder->n_slots * chunk_rows) +
                                    slot * chunk_rows / 64,
                            .mask = (uint32_t)(chunk_rows - 1),
                            .chunk_bits = encoder->chunk_bits};
  memset(sums.bits, 0, chunk_rows / 8);
  for (uint32_t p; (p = atomic_fetch_add(&encoder->next_part, 1)) < encoder->n_parts;) sum_partition(encoder, p, &sums);
}

zps_err_t zps_encoder_scan_singles(struct zps_encoder *encoder, struct zps_error *error) {
  const uint64_t n = encoder->input.n_entries, room = n + (uint64_t)encoder->n_parts * ZPS_SIMD_SLACK;
  const uint64_t n_chains = encoder->n_ranges * n_buckets(encoder);
  const uint64_t chain_bytes = sizeof(struct chain) + sizeof(uint64_t);
  const uint64_t n_blocks = encoder->n_ranges * blocks_per_range(encoder);
  const unsigned n_threads = 1 + (encoder->pool ? zps_workpool_threads(encoder->pool) : 0);
  encoder->n_slots = n_threads < encoder->n_parts ? n_threads : encoder->n_parts;
  const uint64_t slot_bytes = (sizeof(float) << encoder->chunk_bits) + ((1ull << encoder->chunk_bits) / 8);
  zps_err_t code = zps_buffer_need(&encoder->buckets, n_chains, chain_bytes);
  if (code == ZPS_OK) code = zps_buffer_need(&encoder->pairs, n_blocks, BLOCK * sizeof(struct single));
  if (code == ZPS_OK) code = zps_buffer_need(&encoder->repeats, n_blocks, sizeof(uint64_t));
  if (code == ZPS_OK) code = zps_buffer_need(&encoder->ranks, room, sizeof(uint32_t));
  if (code == ZPS_OK) code = zps_buffer_need(&encoder->staged, room, sizeof(float));
  if (code == ZPS_OK) code = zps_buffer_need(&encoder->sums, encoder->n_slots, slot_bytes);
  if (code != ZPS_OK) return code;
  memset(encoder->buckets.data, 0, n_chains * chain_bytes);
  encoder->is_staged = true;
  zps_workpool_for(encoder->pool, encoder->n_ranges, deal_range, encoder);
  code = zps_encoder_check_rows(encoder, error);
  if (code != ZPS_OK) return code;
  place_partitions(encoder);
  atomic_store(&encoder->next_part, 0);
  zps_workpool_for(encoder->pool, encoder->n_slots, sum_slot, encoder);
  return ZPS_OK;
}
