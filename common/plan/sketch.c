#include "common/plan/sketch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"

enum {
  CHUNK_BITS = 6,
  CHUNKS_MAX = 1 << 18,             /* beyond, chunks are larger */
  LEAST = 16,                       /* hashes that a union is judged by */
  WINDOWS = 4,                      /* different k ranks of which the mean is taken */
  KEPT_FIRST = ZPS_PLAN_SKETCH / 2, /* rows that are aimed at, so that most chances fit */
};

/* Of a dense gradient no more than this is looked at. */
#define SHARE_MAX (UINT64_MAX / 16)

static unsigned chunk_bits(uint64_t n_rows) {
  unsigned bits = CHUNK_BITS;
  while (n_rows >> bits > CHUNKS_MAX) bits++;
  return bits;
}

/* The finaliser keeps zero: chunks are moved away from it. */
static uint64_t hash_of(uint64_t row, unsigned bits) {
  const uint64_t chunk = row >> bits, within = row & ((1ull << bits) - 1);
  return (zps_hash_mix64(chunk ^ 0x9e3779b97f4a7c15ull) & ~((1ull << bits) - 1)) | within;
}

static int compare(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/* ------------------------------------------------------------ collecting */

struct collector {
  struct zps_plan_sketch *sketch;
  uint64_t hash[4 * ZPS_PLAN_SKETCH];
  uint64_t n_rows;
  uint32_t n;
};

/* Ascending and each once; where there are more than can be kept, the limit falls. */
static void tidy(struct collector *collector, uint32_t most) {
  uint32_t n = 0;
  qsort(collector->hash, collector->n, sizeof collector->hash[0], compare);
  for (uint32_t i = 0; i < collector->n; i++) {
    if (n == 0 || collector->hash[i] != collector->hash[n - 1]) collector->hash[n++] = collector->hash[i];
  }
  if (n > most) {
    collector->sketch->limit = collector->hash[most];
    n = most;
  }
  collector->n = n;
}

static void add(struct collector *collector, uint64_t hash) {
  if (hash >= collector->sketch->limit) return;
  collector->hash[collector->n++] = hash;
  if (collector->n == 4 * ZPS_PLAN_SKETCH) tidy(collector, 2 * ZPS_PLAN_SKETCH);
}

static void begin(struct collector *collector, struct zps_plan_sketch *sketch, uint64_t n_rows) {
  *sketch = (struct zps_plan_sketch){.limit = UINT64_MAX};
  collector->sketch = sketch;
  collector->n_rows = n_rows;
  collector->n = 0;
}

/* Chunks are few, and their hashes uneven: chunks below a limit are counted, not guessed. */
static double share_below(uint64_t n_rows, uint64_t limit) {
  const unsigned bits = chunk_bits(n_rows);
  uint64_t rows = 0;
  if (limit == UINT64_MAX) return 1;
  for (uint64_t first = 0; first < n_rows; first += 1ull << bits) {
    const uint64_t left = n_rows - first, n = left < 1ull << bits ? left : 1ull << bits;
    const uint64_t hash = hash_of(first, bits);
    if (hash < limit) rows += limit - hash < n ? limit - hash : n;
  }
  return (double)rows / (double)n_rows;
}

static void end(struct collector *collector) {
  struct zps_plan_sketch *sketch = collector->sketch;
  tidy(collector, ZPS_PLAN_SKETCH);
  sketch->n = collector->n;
  memcpy(sketch->hash, collector->hash, sketch->n * sizeof sketch->hash[0]);
  sketch->share = share_below(collector->n_rows, sketch->limit);
}

void zps_plan_sketch_list(struct zps_plan_sketch *sketch, uint64_t n_rows, const int64_t *rows, uint64_t n) {
  struct collector collector;
  const unsigned bits = chunk_bits(n_rows);
  begin(&collector, sketch, n_rows);
  for (uint64_t i = 0; i < n; i++) {
    if (rows[i] >= 0 && (uint64_t)rows[i] < n_rows) add(&collector, hash_of((uint64_t)rows[i], bits));
  }
  end(&collector);
}

static bool is_value(enum zps_dtype dtype, const void *values, uint64_t i) {
  if (zps_dtype_is_half(dtype)) return (((const uint16_t *)values)[i] & 0x7fff) != 0;
  return dtype == ZPS_DTYPE_F64 ? ((const double *)values)[i] != 0 : ((const float *)values)[i] != 0;
}

static bool any_value(uint32_t width, enum zps_dtype dtype, const void *values, uint64_t row) {
  for (uint64_t i = row * width; i < (row + 1) * width; i++) {
    if (is_value(dtype, values, i)) return true;
  }
  return false;
}

/* Hashes that are below the limit and not below `from`. */
static void look(struct collector *collector, uint32_t width, enum zps_dtype dtype, const void *values, uint64_t from) {
  const unsigned bits = chunk_bits(collector->n_rows);
  for (uint64_t first = 0; first < collector->n_rows; first += 1ull << bits) {
    const uint64_t hash = hash_of(first, bits);
    if (hash < from || hash >= collector->sketch->limit) continue;
    const uint64_t left = collector->n_rows - first, n = left < 1ull << bits ? left : 1ull << bits;
    for (uint64_t i = 0; i < n; i++) {
      if (any_value(width, dtype, values, first + i)) add(collector, hash + i);
    }
  }
}

/* Further and further, until enough is found. */
void zps_plan_sketch_dense(struct zps_plan_sketch *sketch, uint64_t n_rows, uint32_t width, enum zps_dtype dtype,
                           const void *values) {
  struct collector collector;
  const bool whole = n_rows <= 4096;
  const uint64_t most = whole ? UINT64_MAX : SHARE_MAX;
  uint64_t from = 0, limit = whole ? UINT64_MAX : SHARE_MAX / 64;
  /* At least about so many rows. */
  while (!whole && limit < SHARE_MAX && (double)limit / 0x1p64 * (double)n_rows < 2 * KEPT_FIRST) limit *= 4;
  begin(&collector, sketch, n_rows);
  for (;;) {
    sketch->limit = limit < most ? limit : most;
    look(&collector, width, dtype, values, from);
    if (collector.n >= KEPT_FIRST || limit >= most) break;
    from = limit;
    limit *= 4;
  }
  end(&collector);
}

/* ------------------------------------------------------------ counting */

double zps_plan_sketch_rows(const struct zps_plan_sketch *sketch) {
  return sketch->share > 0 ? (double)sketch->n / sketch->share : 0;
}

static uint32_t below(const struct zps_plan_sketch *sketch, uint64_t limit) {
  uint32_t n = 0;
  while (n < sketch->n && sketch->hash[n] < limit) n++;
  return n;
}

double zps_plan_sketch_gamma(const struct zps_plan_sketch *const *sketches, uint32_t n, uint32_t k) {
  uint64_t limit = UINT64_MAX;
  for (uint32_t i = 0; i < n; i++) limit = sketches[i]->limit < limit ? sketches[i]->limit : limit;
  uint64_t *const all = k > 0 && k <= n ? malloc((size_t)k * ZPS_PLAN_SKETCH * sizeof *all) : NULL;
  if (!all) return 0;
  const uint32_t windows = k == n ? 1 : n < WINDOWS ? n : WINDOWS;
  double counted = 0, distinct = 0;
  for (uint32_t w = 0; w < windows; w++) {
    uint32_t have = 0;
    for (uint32_t i = 0; i < k; i++) {
      const struct zps_plan_sketch *sketch = sketches[((uint64_t)w * n / windows + i) % n];
      const uint32_t add_n = below(sketch, limit);
      memcpy(all + have, sketch->hash, add_n * sizeof *all);
      have += add_n;
    }
    qsort(all, have, sizeof *all, compare);
    counted += have;
    for (uint32_t i = 0; i < have; i++) distinct += i == 0 || all[i] != all[i - 1];
  }
  free(all);
  return counted >= LEAST * windows ? distinct * k / counted : 0;
}

/* ------------------------------------------------------------ text */

void zps_plan_sketch_print(const struct zps_plan_sketch *sketch, char *text) {
  snprintf(text, 17, "%016llx", (unsigned long long)sketch->limit);
  for (uint32_t i = 0; i < sketch->n; i++)
    snprintf(text + 16 + 16 * i, 17, "%016llx", (unsigned long long)sketch->hash[i]);
}

static bool parse_one(const char *text, uint64_t *value_p) {
  uint64_t value = 0;
  for (unsigned i = 0; i < 16; i++) {
    const char c = text[i];
    const unsigned digit = c >= '0' && c <= '9'   ? (unsigned)(c - '0')
                           : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a' + 10)
                                                  : 16;
    if (digit > 15) return false;
    value = value << 4 | digit;
  }
  *value_p = value;
  return true;
}

bool zps_plan_sketch_parse(const char *text, struct zps_plan_sketch *sketch) {
  const size_t len = strlen(text);
  if (len < 16 || len % 16 != 0 || len > ZPS_PLAN_SKETCH_TEXT || !parse_one(text, &sketch->limit)) return false;
  sketch->n = 0;
  sketch->share = sketch->limit == UINT64_MAX ? 1 : (double)sketch->limit / 0x1p64;
  for (size_t at = 16; at < len; at += 16) {
    uint64_t hash;
    if (!parse_one(text + at, &hash) || hash >= sketch->limit) return false;
    if (sketch->n > 0 && hash <= sketch->hash[sketch->n - 1]) return false;
    sketch->hash[sketch->n++] = hash;
  }
  return true;
}
