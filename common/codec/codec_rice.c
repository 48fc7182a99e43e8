#include "common/codec/codec_rice.h"

#include <string.h>

#include "common/codec/rice_block.h"
#include "common/codec/simd.h"

enum { K_MAX = ZPS_RICE_K_MAX, K_BITS = ZPS_RICE_K_BITS, HEADER_BITS_MAX = 1 + K_BITS };

static uint32_t count_of(const struct zps_rice_set *set) {
  return set->holes ? set->m - set->z : set->z;
}

uint64_t zps_rice_bytes_max(uint32_t m, uint32_t z) {
  if (z == 0) return 0;
  /* No block is dearer than with the first one's parameter, written out. */
  const unsigned k = zps_rice_parameter(m, z);
  const uint64_t n_blocks = ((uint64_t)z + ZPS_RICE_BLOCK - 1) / ZPS_RICE_BLOCK;
  return (n_blocks * HEADER_BITS_MAX + (uint64_t)z * (k + 1) + ((m - z) >> k) + 7) / 8;
}

uint64_t zps_rice_bytes_min(uint32_t z) {
  const uint64_t n_blocks = ((uint64_t)z + ZPS_RICE_BLOCK - 1) / ZPS_RICE_BLOCK;
  return (n_blocks + z + 7) / 8;
}

/* ------------------------------------------------------------ encoding */

/* Where the next block's gaps begin. */
struct source {
  const struct zps_rice_set *set;
  uint32_t left; /* numbers */
  uint32_t at;   /* ranks used */
  uint32_t next; /* the least number that may follow */
};

static struct source source_of(const struct zps_rice_set *set) {
  return (struct source){.set = set, .left = count_of(set)};
}

static void holes_gaps(struct source *source, uint32_t *gaps, uint32_t n) {
  const struct zps_rice_set *const set = source->set;
  uint32_t at = source->at, next = source->next;
  memset(gaps, 0, ZPS_RICE_BLOCK * sizeof *gaps);
  for (uint32_t i = 0; i < n; i++) {
    const uint32_t first = at;
    while (at < set->z && set->ranks[at] == next) at++, next++;
    gaps[i] = at - first;
    next++;
  }
  source->at = at;
  source->next = next;
}

/* Zeros where no gaps are left. */
static uint32_t next_gaps(struct source *source, uint32_t *gaps) {
  const uint32_t n = source->left < ZPS_RICE_BLOCK ? source->left : ZPS_RICE_BLOCK;
  source->left -= n;
  if (source->set->holes) {
    holes_gaps(source, gaps, n);
    return n;
  }
  if (n == 0) return 0;
  const uint32_t *const ranks = source->set->ranks + source->at;
  zps_simd()->rice_gaps(ranks, n, source->next, gaps);
  source->at += n;
  source->next = ranks[n - 1] + 1;
  return n;
}

/* Bits of the gaps with parameter k. */
static uint64_t cost(const uint32_t *gaps, uint32_t n, unsigned k) {
  return (uint64_t)n * (k + 1) + zps_simd()->rice_zeros(gaps, k);
}

/* The block's parameter and bits, header included. The cost is convex in k: the first k that no neighbour beats is the
 * best. */
static uint64_t plan(const uint32_t *gaps, uint32_t n, unsigned before, unsigned *k_p) {
  const uint64_t kept = cost(gaps, n, before);
  uint64_t best = kept;
  unsigned k = before;
  for (uint64_t other; k < K_MAX && (other = cost(gaps, n, k + 1)) < best; k++) best = other;
  if (k == before) {
    for (uint64_t other; k > 0 && (other = cost(gaps, n, k - 1)) < best; k--) best = other;
  }
  if (kept <= best + K_BITS) {
    *k_p = before;
    return 1 + kept;
  }
  *k_p = k;
  return HEADER_BITS_MAX + best;
}

uint64_t zps_rice_bytes(const struct zps_rice_set *set) {
  struct source source = source_of(set);
  uint32_t gaps[ZPS_RICE_BLOCK];
  uint64_t n_bits = 0;
  unsigned k = source.left ? zps_rice_parameter(set->m, source.left) : 0;
  for (uint32_t n; (n = next_gaps(&source, gaps)) > 0;) n_bits += plan(gaps, n, k, &k);
  return (n_bits + 7) / 8;
}

uint64_t zps_rice_encode(const struct zps_rice_set *set, void *out) {
  /* Beyond K_MAX bits and a one, gaps have as many zeros in a block as its parameter, the best or nearly so, leaves. */
  enum { BLOCK_BYTES_MAX = (HEADER_BITS_MAX + (int)ZPS_RICE_BLOCK * (K_MAX + 3)) / 8 };
  struct source source = source_of(set);
  unsigned char *at = out, coded[BLOCK_BYTES_MAX + ZPS_RICE_PUT_SLACK];
  uint32_t gaps[ZPS_RICE_BLOCK];
  struct zps_rice_writer writer = {.at = coded};
  unsigned k = source.left ? zps_rice_parameter(set->m, source.left) : 0;
  for (uint32_t n; (n = next_gaps(&source, gaps)) > 0; writer.at = coded) {
    const unsigned before = k;
    plan(gaps, n, before, &k);
    zps_rice_put(&writer, k == before ? 0 : 1 | k << 1, k == before ? 1 : HEADER_BITS_MAX);
    zps_simd()->rice_put(&writer, gaps, n, k);
    memcpy(at, coded, (size_t)(writer.at - coded));
    at += writer.at - coded;
  }
  if (writer.n_bits > 0) *at++ = (unsigned char)writer.bits;
  return (uint64_t)(at - (unsigned char *)out);
}

/* ------------------------------------------------------------ decoding */

void zps_rice_reader_init(struct zps_rice_reader *reader, uint32_t m, uint32_t z, const void *data,
                          uint64_t len_bytes) {
  *reader = (struct zps_rice_reader){
      .data = data, .len_bytes = len_bytes, .m = m, .left = z, .k = z ? zps_rice_parameter(m, z) : 0};
}

/* The next block as its header says it; false when none is left. */
static bool next_block(struct zps_rice_reader *reader, struct zps_rice_block *block) {
  const uint64_t header = zps_rice_window(reader->data, reader->len_bytes, reader->bit);
  if (reader->left == 0) return false;
  if (header & 1) reader->k = header >> 1 & ((1u << K_BITS) - 1);
  *block = (struct zps_rice_block){.data = reader->data,
                                   .len_bytes = reader->len_bytes,
                                   .low = reader->bit + (header & 1 ? HEADER_BITS_MAX : 1),
                                   .next = reader->next,
                                   .n = reader->left < ZPS_RICE_BLOCK ? reader->left : ZPS_RICE_BLOCK,
                                   .m = reader->m,
                                   .k = reader->k};
  return true;
}

uint32_t zps_rice_read(struct zps_rice_reader *reader, uint32_t *numbers) {
  struct zps_rice_block block;
  if (!next_block(reader, &block) || !zps_simd()->rice_list(&block, numbers, &reader->bit, &reader->next)) return 0;
  reader->left -= block.n;
  return block.n;
}

/* Of what leads to `next`: the blocks that reach ranks which are marked. */
static void mark(struct zps_rice_marks *marks, const struct zps_rice_reader *begin, uint64_t next) {
  for (; marks->n < ZPS_RICE_MARKS && (uint64_t)marks->n * marks->step < next; marks->n++) {
    marks->marks[marks->n].bit = begin->bit;
    marks->marks[marks->n].k = begin->k;
    marks->marks[marks->n].next = (uint32_t)begin->next;
    marks->marks[marks->n].left = begin->left;
  }
}

bool zps_rice_skip(struct zps_rice_reader *reader, struct zps_rice_marks *marks) {
  zps_rice_skip_fn *const skip = zps_simd()->rice_skip;
  *marks = (struct zps_rice_marks){.step = reader->m > ZPS_RICE_MARKS ? reader->m / ZPS_RICE_MARKS : 1};
  for (struct zps_rice_block block;; reader->left -= block.n) {
    const struct zps_rice_reader begin = *reader;
    if (!next_block(reader, &block)) break;
    if (!skip(&block, &reader->bit, &reader->next)) return false;
    if ((uint64_t)marks->n * marks->step < reader->next) mark(marks, &begin, reader->next);
  }
  return (reader->bit + 7) / 8 == reader->len_bytes &&
         zps_rice_window(reader->data, reader->len_bytes, reader->bit) == 0;
}

/* Goes on at the last mark that is not beyond the limit, where it is ahead. */
static void leap(struct zps_rice_reader *reader, const struct zps_rice_marks *marks, uint32_t limit) {
  if (marks->n == 0) return;
  const uint32_t at = limit / marks->step, i = at < marks->n ? at : marks->n - 1;
  if (marks->marks[i].left >= reader->left) return;
  reader->bit = marks->marks[i].bit;
  reader->k = marks->marks[i].k;
  reader->next = marks->marks[i].next;
  reader->left = marks->marks[i].left;
}

void zps_rice_skip_below(struct zps_rice_reader *reader, const struct zps_rice_marks *marks, uint32_t limit) {
  zps_rice_skip_fn *const skip = zps_simd()->rice_skip;
  leap(reader, marks, limit);
  struct zps_rice_reader ahead = *reader;
  for (struct zps_rice_block block; next_block(&ahead, &block); *reader = ahead) {
    if (!skip(&block, &ahead.bit, &ahead.next) || ahead.next > limit) break;
    ahead.left -= block.n;
  }
}
