#include "tests/bench/machine.h"

#include <string.h>

struct pieces {
  const struct bench_arrays *arrays;
  uint64_t n;
};

unsigned bench_threads(struct zps_workpool *pool) {
  return 1 + (pool ? zps_workpool_threads(pool) : 0);
}

/* Pieces as large as can be: memcpy() takes a better way then. */
static uint64_t piece_first(const struct pieces *pieces, unsigned i) {
  return pieces->arrays->n_bytes * i / pieces->n;
}

static void copy_piece(void *ctx, unsigned i) {
  const struct pieces *const pieces = ctx;
  const uint64_t first = piece_first(pieces, i);
  memcpy((char *)pieces->arrays->to + first, (const char *)pieces->arrays->from + first,
         piece_first(pieces, i + 1) - first);
}

static void read_piece(void *ctx, unsigned i) {
  enum { LINE_BYTES = 64 };
  const struct pieces *const pieces = ctx;
  uint64_t sum = 0;
  for (uint64_t at = piece_first(pieces, i), end = piece_first(pieces, i + 1); at < end; at += LINE_BYTES)
    sum += ((const unsigned char *)pieces->arrays->from)[at];
  __asm__ volatile("" : : "r"(sum));
}

static void compute_piece(void *ctx, unsigned i) {
  enum { STEPS = 1 << 21 };
  const struct pieces *const pieces = ctx;
  uint64_t a = i, b = i, c = i, d = i, e = i, f = i, g = i, h = i;
  for (uint64_t step = 0; step < STEPS / pieces->n; step++) {
    __asm__ volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f), "+r"(g), "+r"(h)); /* not foreseen */
    a += a >> 3, b += b >> 3, c += c >> 3, d += d >> 3, e += e >> 3, f += f >> 3, g += g >> 3, h += h >> 3;
  }
  __asm__ volatile("" : : "r"(a + b + c + d + e + f + g + h));
}

static void run(struct zps_workpool *pool, const struct bench_arrays *arrays, void (*piece)(void *ctx, unsigned i)) {
  struct pieces pieces = {arrays, bench_threads(pool)};
  zps_workpool_for(pool, bench_threads(pool), piece, &pieces);
}

void bench_copy(struct zps_workpool *pool, const struct bench_arrays *arrays) {
  run(pool, arrays, copy_piece);
}

void bench_read(struct zps_workpool *pool, const struct bench_arrays *arrays) {
  run(pool, arrays, read_piece);
}

void bench_compute(struct zps_workpool *pool) {
  run(pool, NULL, compute_piece);
}
