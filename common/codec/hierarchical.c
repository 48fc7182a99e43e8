/*
 * Reading a slot back catches a lost race only when no writer that saw the slot empty can still come. A thread that
 * writes a slot and reads it back at once can be overwritten after its read by another that had seen the slot empty
 * before: both believe that they own it, and an index is lost. So each hash function is a pass with a barrier (on a
 * device: the end of a kernel) between all writes and all reads. tests/unit/gpu/test_emu.c shows the loss with the
 * other two ways, in the emulation.
 *
 * Within a pass threads work as warps do: a thread takes a batch of 32 indices, all of which look at their slots before
 * any writes. Collisions within a batch are therefore certain races, also with one thread, and the tests count that
 * each was caught.
 */
#include "common/codec/hierarchical.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"

enum { BATCH = 32, K_DEFAULT = 3, RANGE_MIN = 4096, RANGES_MAX = 256 };

static const uint64_t empty_slot = UINT64_MAX;

enum index_state { PENDING, WRITTEN, PLACED };

struct hashing {
  const struct zps_hier_config *config;
  const uint64_t *indices;
  uint64_t n_indices;
  struct zps_workpool *pool;
  unsigned n_ranges;

  uint32_t *parts; /* h0 of each index */
  uint8_t *states; /* enum index_state of each index */
  uint64_t r1;
  _Atomic uint64_t *parallel; /* r1 slots per partition */
  uint64_t *serial_sizes;     /* r2 of each partition */
  uint64_t *serial_starts;    /* n_parts + 1: where each begins in `serial` */
  uint64_t *serial;
  _Atomic uint64_t *counters; /* per partition: serial places asked for */
  uint64_t pass_seed;
  _Atomic uint64_t lost_races, n_parallel;

  uint64_t *out, *starts;
};

static uint64_t slot_of(const struct hashing *hashing, uint64_t i) {
  const uint64_t hash = zps_hash_mix64(hashing->indices[i] ^ hashing->pass_seed);
  const uint64_t slot = (uint64_t)(((unsigned __int128)hash * hashing->r1) >> 64);
  return hashing->parts[i] * hashing->r1 + slot;
}

static uint64_t range_start(const struct hashing *hashing, unsigned range) {
  return (uint64_t)((unsigned __int128)hashing->n_indices * range / hashing->n_ranges);
}

static void assign_range(void *ctx, unsigned range) {
  struct hashing *const hashing = ctx;
  const struct zps_hier_config *const config = hashing->config;
  for (uint64_t i = range_start(hashing, range); i < range_start(hashing, range + 1); i++) {
    hashing->parts[i] = config->h0(config->h0_ctx, hashing->indices[i]);
    assert(hashing->parts[i] < config->n_parts);
    assert(hashing->indices[i] != empty_slot);
  }
}

static void write_range(void *ctx, unsigned range) {
  struct hashing *const hashing = ctx;
  const uint64_t end = range_start(hashing, range + 1);
  for (uint64_t i = range_start(hashing, range); i < end;) {
    uint64_t seen_empty[BATCH], slots[BATCH];
    unsigned n = 0;
    for (unsigned lane = 0; lane < BATCH && i < end; lane++, i++) {
      if (hashing->states[i] != PENDING) continue;
      seen_empty[n] = i;
      slots[n] = slot_of(hashing, i);
      n += atomic_load_explicit(&hashing->parallel[slots[n]], memory_order_relaxed) == empty_slot;
    }
    for (unsigned j = 0; j < n; j++) {
      atomic_store_explicit(&hashing->parallel[slots[j]], hashing->indices[seen_empty[j]], memory_order_relaxed);
      hashing->states[seen_empty[j]] = WRITTEN;
    }
  }
}

static void read_back_range(void *ctx, unsigned range) {
  struct hashing *const hashing = ctx;
  uint64_t lost = 0, placed = 0;
  for (uint64_t i = range_start(hashing, range); i < range_start(hashing, range + 1); i++) {
    if (hashing->states[i] != WRITTEN) continue;
    const uint64_t found = atomic_load_explicit(&hashing->parallel[slot_of(hashing, i)], memory_order_relaxed);
    const bool won = found == hashing->indices[i];
    hashing->states[i] = won ? PLACED : PENDING;
    placed += won;
    lost += !won;
  }
  atomic_fetch_add_explicit(&hashing->n_parallel, placed, memory_order_relaxed);
  atomic_fetch_add_explicit(&hashing->lost_races, lost, memory_order_relaxed);
}

/* Counts on when a serial memory is full: how much would have been enough. */
static void serialise_range(void *ctx, unsigned range) {
  struct hashing *const hashing = ctx;
  for (uint64_t i = range_start(hashing, range); i < range_start(hashing, range + 1); i++) {
    if (hashing->states[i] != PENDING) continue;
    const uint32_t p = hashing->parts[i];
    const uint64_t place =
        hashing->serial_starts[p] + atomic_fetch_add_explicit(&hashing->counters[p], 1, memory_order_relaxed);
    if (place < hashing->serial_starts[p + 1]) hashing->serial[place] = hashing->indices[i];
  }
}

/* All of Algorithm 1 up to the collection; true when no serial memory overflowed. */
static bool run_passes(struct hashing *hashing) {
  const struct zps_hier_config *const config = hashing->config;
  const uint32_t n_parts = config->n_parts, k = config->options.k ? config->options.k : K_DEFAULT;
  memset(hashing->states, PENDING, hashing->n_indices);
  for (uint64_t slot = 0; slot < n_parts * hashing->r1; slot++) atomic_init(&hashing->parallel[slot], empty_slot);
  for (uint32_t p = 0; p < n_parts; p++) atomic_init(&hashing->counters[p], 0);
  atomic_init(&hashing->n_parallel, 0);
  for (uint32_t i = 1; i <= k; i++) {
    hashing->pass_seed = zps_hash_mix64(config->seed + i * 0x9e3779b97f4a7c15ull);
    zps_workpool_for(hashing->pool, hashing->n_ranges, write_range, hashing);
    zps_workpool_for(hashing->pool, hashing->n_ranges, read_back_range, hashing);
  }
  zps_workpool_for(hashing->pool, hashing->n_ranges, serialise_range, hashing);
  for (uint32_t p = 0; p < n_parts; p++)
    if (atomic_load(&hashing->counters[p]) > hashing->serial_sizes[p]) return false;
  return true;
}

/* Lays out a serial memory of serial_sizes[p] places for each partition. */
ZPS_MUSTCHECK static zps_err_t allocate_serial(struct hashing *hashing) {
  uint64_t place = 0;
  for (uint32_t p = 0; p < hashing->config->n_parts; p++) {
    hashing->serial_starts[p] = place;
    place += hashing->serial_sizes[p];
  }
  hashing->serial_starts[hashing->config->n_parts] = place;
  free(hashing->serial);
  hashing->serial = calloc(place ? place : 1, sizeof *hashing->serial);
  return hashing->serial ? ZPS_OK : ZPS_ERR_NOMEM;
}

/* Gives partitions that overflowed half as much again as they asked for: the next run may ask for more, because its
 * races go otherwise, but never for more than there are indices. */
static void grow_serial(struct hashing *hashing) {
  for (uint32_t p = 0; p < hashing->config->n_parts; p++) {
    const uint64_t asked = atomic_load(&hashing->counters[p]);
    if (asked <= hashing->serial_sizes[p]) continue;
    const uint64_t wanted = asked + asked / 2;
    hashing->serial_sizes[p] = wanted < hashing->n_indices ? wanted : hashing->n_indices;
  }
}

static void count_partition(void *ctx, unsigned p) {
  struct hashing *const hashing = ctx;
  const _Atomic uint64_t *const slots = hashing->parallel + p * hashing->r1;
  uint64_t n = atomic_load(&hashing->counters[p]);
  for (uint64_t slot = 0; slot < hashing->r1; slot++)
    n += atomic_load_explicit(&slots[slot], memory_order_relaxed) != empty_slot;
  hashing->starts[p + 1] = n;
}

static void collect_partition(void *ctx, unsigned p) {
  struct hashing *const hashing = ctx;
  const _Atomic uint64_t *const slots = hashing->parallel + p * hashing->r1;
  uint64_t *out = hashing->out + hashing->starts[p];
  for (uint64_t slot = 0; slot < hashing->r1; slot++) {
    const uint64_t index = atomic_load_explicit(&slots[slot], memory_order_relaxed);
    if (index != empty_slot) *out++ = index;
  }
  const uint64_t n_serial = atomic_load(&hashing->counters[p]);
  if (n_serial) memcpy(out, hashing->serial + hashing->serial_starts[p], n_serial * sizeof *out);
}

static void collect(struct hashing *hashing) {
  const uint32_t n_parts = hashing->config->n_parts;
  zps_workpool_for(hashing->pool, n_parts, count_partition, hashing);
  hashing->starts[0] = 0;
  for (uint32_t p = 0; p < n_parts; p++) hashing->starts[p + 1] += hashing->starts[p];
  assert(hashing->starts[n_parts] == hashing->n_indices);
  zps_workpool_for(hashing->pool, n_parts, collect_partition, hashing);
}

ZPS_MUSTCHECK static zps_err_t allocate(struct hashing *hashing) {
  const struct zps_hier_config *const config = hashing->config;
  const uint64_t n_parts = config->n_parts, n = hashing->n_indices;
  uint64_t n_slots;
  if (__builtin_mul_overflow(n_parts, hashing->r1, &n_slots) || n_slots > SIZE_MAX / sizeof *hashing->parallel)
    return ZPS_ERR_NOMEM;
  hashing->parts = malloc(n * sizeof *hashing->parts);
  hashing->states = malloc(n);
  hashing->parallel = malloc(n_slots * sizeof *hashing->parallel);
  hashing->counters = malloc(n_parts * sizeof *hashing->counters);
  hashing->serial_sizes = malloc(n_parts * sizeof *hashing->serial_sizes);
  hashing->serial_starts = malloc((n_parts + 1) * sizeof *hashing->serial_starts);
  if (!hashing->parts || !hashing->states || !hashing->parallel || !hashing->counters || !hashing->serial_sizes ||
      !hashing->serial_starts)
    return ZPS_ERR_NOMEM;
  const uint64_t r2 = config->options.r2 ? config->options.r2 : hashing->r1 / 10;
  for (uint32_t p = 0; p < n_parts; p++) hashing->serial_sizes[p] = r2;
  return allocate_serial(hashing);
}

static void release(struct hashing *hashing) {
  free(hashing->parts);
  free(hashing->states);
  free((void *)hashing->parallel);
  free((void *)hashing->counters);
  free(hashing->serial_sizes);
  free(hashing->serial_starts);
  free(hashing->serial);
}

zps_err_t zps_hier_partition(const struct zps_hier_config *config, const uint64_t *indices, uint64_t n_indices,
                             struct zps_workpool *pool, uint64_t *out, uint64_t *starts,
                             struct zps_hier_stats *stats_p) {
  if (n_indices == 0) {
    memset(starts, 0, (config->n_parts + 1ull) * sizeof *starts);
    if (stats_p) *stats_p = (struct zps_hier_stats){0};
    return ZPS_OK;
  }
  struct hashing hashing = {.config = config,
                            .indices = indices,
                            .n_indices = n_indices,
                            .pool = pool,
                            .r1 = config->options.r1 ? config->options.r1 : 2 * n_indices / config->n_parts,
                            .out = out,
                            .starts = starts};
  if (hashing.r1 == 0) hashing.r1 = 1;
  hashing.n_ranges = n_indices / RANGE_MIN < RANGES_MAX ? (unsigned)(n_indices / RANGE_MIN) + 1 : RANGES_MAX;
  unsigned redone = 0;
  zps_err_t code = allocate(&hashing);
  if (code == ZPS_OK) {
    zps_workpool_for(pool, hashing.n_ranges, assign_range, &hashing);
    for (; code == ZPS_OK && !run_passes(&hashing); redone++) {
      grow_serial(&hashing);
      code = allocate_serial(&hashing);
    }
  }
  if (code == ZPS_OK) {
    collect(&hashing);
    if (stats_p) {
      const uint64_t n_parallel = atomic_load(&hashing.n_parallel);
      *stats_p = (struct zps_hier_stats){.parallel = n_parallel,
                                         .serial = n_indices - n_parallel,
                                         .lost_races = atomic_load(&hashing.lost_races),
                                         .redone = redone};
    }
  }
  release(&hashing);
  return code;
}
