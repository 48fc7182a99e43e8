#include "common/codec/codec_rice.h"

#include <string.h>

#include "common/codec/simd/rice_block.h"
#include "common/codec/simd/simd.h"

enum { K_MAX = ZPS_RICE_K_MAX, K_BITS = ZPS_RICE_K_BITS, HEADER_BITS_MAX = 1 + K_BITS };

static uint32_t count_of(const struct zps_rice_set *set) {
  return set->holes ? set->m - set->z : set->z;
}

uint64_t zps_rice_bytes_max(uint32_t m, uint32_t z) {
  if (z == 0) return 0;
  /* Each block costs at most what it would with the first block's parameter. */
  const unsigned k = zps_rice_parameter(m, z);
  const uint64_t n_blocks = ((uint64_t)z + ZPS_RICE_BLOCK - 1) / ZPS_RICE_BLOCK;
  return (n_blocks * HEADER_BITS_MAX + (uint64_t)z * (k + 1) + ((m - z) >> k) + 7) / 8;
}

uint64_t zps_rice_bytes_min(uint32_t z) {
  const uint64_t n_blocks = ((uint64_t)z + ZPS_RICE_BLOCK - 1) / ZPS_RICE_BLOCK;
  return (n_blocks + z + 7) / 8;
}

/* ------------------------------------------------------------ encoding */

enum { WINDOW = 2048 };

/* The place at which the next block's gaps begin. */
struct source {
  const struct zps_rice_set *set;
  uint32_t left; /* numbers */
  uint32_t at;   /* indices used */
  uint32_t next; /* the least number that may follow */
  /* holes: those that are listed and not used; below `base` all are */
  uint32_t first_hole, n_holes, base;
  uint32_t holes[ZPS_RICE_BLOCK + WINDOW + ZPS_SIMD_SLACK];
};

static void source_init(struct source *source, const struct zps_rice_set *set) {
  source->set = set;
  source->left = count_of(set);
  source->at = source->next = 0;
  source->first_hole = source->n_holes = source->base = 0;
}

/* Which of the window's numbers are indices, a byte each: there is no branch on how they lie. */
static void map_indices(struct source *source, uint32_t n, unsigned char *map) {
  const uint32_t *const indices = source->set->indices, z = source->set->z, base = source->base;
  uint32_t at = source->at;
  memset(map, 0, WINDOW);
  for (; z - at >= 8 && indices[at + 7] - base < n; at += 8)
    for (unsigned i = 0; i < 8; i++) map[indices[at + i] - base] = 1;
  for (; at < z && indices[at] - base < n; at++) map[indices[at] - base] = 1;
  source->at = at;
}

/* A bit for each of eight bytes that are 0 or 1. */
static uint64_t bits_of_eight(const unsigned char *bytes) {
  uint64_t word;
  memcpy(&word, bytes, sizeof word);
  return word * 0x0102040810204080ull >> 56;
}

/* Lists the window's holes behind those that are left. */
static void list_holes(struct source *source) {
  const uint32_t left = source->n_holes - source->first_hole, rest = source->set->m - source->base;
  const uint32_t n = rest < WINDOW ? rest : WINDOW;
  unsigned char map[WINDOW];
  uint64_t bits[WINDOW / 64];
  map_indices(source, n, map);
  for (uint32_t word = 0; word < WINDOW / 64; word++) {
    uint64_t present = 0;
    for (unsigned i = 0; i < 64; i += 8) present |= bits_of_eight(map + word * 64 + i) << i;
    const uint32_t here = n > word * 64 ? n - word * 64 : 0;
    bits[word] = ~present & (here < 64 ? ((uint64_t)1 << here) - 1 : UINT64_MAX);
  }
  memmove(source->holes, source->holes + source->first_hole, left * sizeof *source->holes);
  source->first_hole = 0;
  source->n_holes = left + zps_simd()->list(bits, WINDOW / 64, source->base, source->holes + left);
  source->base += n;
}

static const uint32_t *next_holes(struct source *source, uint32_t n) {
  while (source->n_holes - source->first_hole < n) list_holes(source);
  source->first_hole += n;
  return source->holes + source->first_hole - n;
}

/* Zeros where no gaps are left. */
static uint32_t next_gaps(struct source *source, uint32_t *gaps) {
  const uint32_t n = source->left < ZPS_RICE_BLOCK ? source->left : ZPS_RICE_BLOCK;
  if (n == 0) return 0;
  source->left -= n;
  const uint32_t *const numbers = source->set->holes ? next_holes(source, n) : source->set->indices + source->at;
  if (!source->set->holes) source->at += n;
  zps_simd()->rice_gaps(numbers, n, source->next, gaps);
  source->next = numbers[n - 1] + 1;
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
  struct source source;
  uint32_t gaps[ZPS_RICE_BLOCK];
  uint64_t n_bits = 0;
  source_init(&source, set);
  unsigned k = source.left ? zps_rice_parameter(set->m, source.left) : 0;
  for (uint32_t n; (n = next_gaps(&source, gaps)) > 0;) n_bits += plan(gaps, n, k, &k);
  return (n_bits + 7) / 8;
}

uint64_t zps_rice_encode(const struct zps_rice_set *set, void *out) {
  /* Beyond K_MAX bits and a one, gaps have as many zeros in a block as its parameter, the best or nearly so, leaves. */
  enum { BLOCK_BYTES_MAX = (HEADER_BITS_MAX + (int)ZPS_RICE_BLOCK * (K_MAX + 3)) / 8 };
  struct source source;
  unsigned char *at = out, coded[BLOCK_BYTES_MAX + ZPS_RICE_PUT_SLACK];
  uint32_t gaps[ZPS_RICE_BLOCK];
  struct zps_rice_writer writer = {.at = coded};
  source_init(&source, set);
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

/* Of what leads to `next`: the blocks that reach indices which are marked. */
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
