#include "common/net/slab.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/mman.h>

#define ZPS_LOG_COMPONENT "slab"
#include "common/base/log.h"

enum {
  MIN_SHIFT = 12,                 /* 4 KiB */
  SLAB_SHIFT = 20,                /* 1 MiB: smaller classes share a registration of this size */
  FIRST_SHIFT = 16,               /* 64 KiB: an arena's first registration, and the least size of a slab */
  SLABS_A_LIMIT = 64,             /* a slab is at most this part of the limit */
  N_CLASSES = 64 - MIN_SHIFT - 1, /* up to 2^62 */
  MAX_CHUNKS = 1 << (SLAB_SHIFT - MIN_SHIFT),
  MAP_WORDS = MAX_CHUNKS / 64,
};

#define PAUSE_NS (10 * ZPS_NS_PER_MS) /* between two that are given back */

/* One registration, cut into 1 (large classes) to 256 chunks. */
struct region {
  struct zps_net_mem mem;
  struct zps_slab_arena *arena;
  const struct zps_slab_memory *memory; /* NULL: the process's own */
  struct region *next, *prev;           /* of its class: those with a free chunk come first */
  unsigned class, n_chunks, n_free;
  uint64_t idle_since_ns;
  uint64_t free_map[MAP_WORDS];
};

struct zps_slab_arena {
  struct zps_slab *slab;
  struct zps_account *account;
  struct zps_slab_arena *next, *prev; /* open, or closed with registrations that are in use */
  bool is_closed;
  uint64_t used_bytes;
  unsigned n_regions;
  struct {
    struct region *head, *tail;
    uint8_t shift; /* of the last slab */
  } classes[N_CLASSES];
};

struct zps_slab {
  struct zps_net *net; /* NULL once it is closed */
  const struct zps_slab_memory *memory;
  uint64_t limit_bytes, cache_bytes;
  uint64_t total_bytes; /* registered */
  uint64_t idle_large_bytes;
  uint64_t now_ns, age_ns;         /* when something idle is next looked for; ZPS_NEVER: nothing is */
  uint64_t trim_ns, trim_until_ns; /* until trim_until_ns, idle memory is kept for trim_ns */
  struct zps_slab_stats stats;
  struct zps_slab_arena own; /* of no owner; the last in `arenas` */
  struct zps_slab_arena *arenas, *closed;
};

static size_t chunk_bytes(unsigned class) {
  return (size_t)1 << (MIN_SHIFT + class);
}
static bool is_large(unsigned class) {
  return MIN_SHIFT + class >= SLAB_SHIFT;
}
static size_t region_bytes(const struct region *region) {
  return chunk_bytes(region->class) * region->n_chunks;
}
/* A slab belongs to one size class while in use. If slabs were large against the limit, one class could hold them all
 * and starve the others. */
static unsigned most_shift(const struct zps_slab *slab) {
  unsigned shift = SLAB_SHIFT;
  while (shift > FIRST_SHIFT && (uint64_t)SLABS_A_LIMIT << shift > slab->limit_bytes) shift--;
  return shift;
}
/* Of the arena's next one. */
static size_t next_bytes(const struct zps_slab_arena *arena, unsigned class) {
  const unsigned last = arena->classes[class].head ? arena->classes[class].shift : 0;
  const unsigned most = most_shift(arena->slab);
  unsigned shift = last ? last + 1 : FIRST_SHIFT;
  if (is_large(class)) return chunk_bytes(class);
  if (shift > most || arena == &arena->slab->own) shift = most;
  return (size_t)1 << (shift > MIN_SHIFT + class ? shift : MIN_SHIFT + class);
}
static bool is_idle(const struct region *region) {
  return region->n_free == region->n_chunks;
}
static uint64_t idle_ns(const struct zps_slab *slab) {
  return slab->now_ns < slab->trim_until_ns ? slab->trim_ns : ZPS_SLAB_IDLE_NS;
}

static void unlink_region(struct region *region) {
  struct zps_slab_arena *arena = region->arena;
  *(region->prev ? &region->prev->next : &arena->classes[region->class].head) = region->next;
  *(region->next ? &region->next->prev : &arena->classes[region->class].tail) = region->prev;
}

static void link_first(struct region *region) {
  struct zps_slab_arena *arena = region->arena;
  region->prev = NULL;
  region->next = arena->classes[region->class].head;
  *(region->next ? &region->next->prev : &arena->classes[region->class].tail) = region;
  arena->classes[region->class].head = region;
}

static void link_last(struct region *region) {
  struct zps_slab_arena *arena = region->arena;
  region->next = NULL;
  region->prev = arena->classes[region->class].tail;
  *(region->prev ? &region->prev->next : &arena->classes[region->class].head) = region;
  arena->classes[region->class].tail = region;
}

static void link_arena(struct zps_slab_arena *arena, struct zps_slab_arena **list) {
  arena->prev = NULL;
  arena->next = *list;
  if (arena->next) arena->next->prev = arena;
  *list = arena;
}

static void unlink_arena(struct zps_slab_arena *arena) {
  struct zps_slab *slab = arena->slab;
  *(arena->prev ? &arena->prev->next : arena->is_closed ? &slab->closed : &slab->arenas) = arena->next;
  if (arena->next) arena->next->prev = arena->prev;
}

static void arena_free_unused(struct zps_slab_arena *arena) {
  if (!arena->is_closed || arena->n_regions > 0) return;
  unlink_arena(arena);
  free(arena);
}

/* Mapped, so that memory given back is the system's again. *memory_p: its source. */
static void *base_get(const struct zps_slab *slab, size_t bytes, const struct zps_slab_memory **memory_p) {
  void *base = slab->memory ? slab->memory->get(slab->memory->ctx, bytes) : NULL;
  *memory_p = base ? slab->memory : NULL;
  if (base) return base;
  base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return base != MAP_FAILED ? base : NULL;
}

static void base_put(const struct zps_slab_memory *memory, void *base, size_t bytes) {
  if (memory) {
    memory->put(memory->ctx, base, bytes);
  } else {
    munmap(base, bytes);
  }
}

/* The arena goes with its last one, if it is closed. */
static void region_destroy(struct region *region) {
  struct zps_slab_arena *arena = region->arena;
  struct zps_slab *slab = arena->slab;
  void *base = region->mem.base;
  const size_t bytes = region_bytes(region);
  unlink_region(region);
  slab->total_bytes -= bytes;
  if (is_large(region->class)) slab->idle_large_bytes -= bytes;
  if (slab->net) zps_net_mem_release(slab->net, &region->mem);
  base_put(region->memory, base, bytes);
  free(region);
  arena->n_regions--;
  arena_free_unused(arena);
}

static struct region *first_idle(const struct zps_slab_arena *arena, unsigned class) {
  struct region *region = arena->classes[class].head;
  while (region && region->n_free > 0 && !is_idle(region)) region = region->next;
  return region && region->n_free > 0 ? region : NULL;
}

static void destroy_idle(struct zps_slab *slab, unsigned class, uint64_t until_total) {
  struct zps_slab_arena *const lists[] = {slab->closed, slab->arenas};
  for (unsigned i = 0; i < 2; i++) {
    for (struct zps_slab_arena *arena = lists[i], *next; arena; arena = next) {
      next = arena->next;
      for (struct region *region; slab->total_bytes > until_total && (region = first_idle(arena, class)) != NULL;) {
        const bool is_last = arena->n_regions == 1;
        region_destroy(region);
        if (is_last) break; /* a closed arena is gone */
      }
    }
  }
}

/* Makes room for `bytes` more under the limit by giving up idle regions, largest first. */
static bool make_room(struct zps_slab *slab, uint64_t bytes) {
  const uint64_t until_total = slab->limit_bytes - bytes;
  for (unsigned class = N_CLASSES; class -- > 0 && slab->total_bytes > until_total;)
    destroy_idle(slab, class, until_total);
  return slab->total_bytes <= until_total;
}

static zps_err_t region_create(struct zps_slab_arena *arena, unsigned class) {
  struct zps_slab *slab = arena->slab;
  const size_t bytes = next_bytes(arena, class);
  if (bytes > slab->limit_bytes) {
    zps_log_warn(
        "a buffer of %zu bytes needs %zu bytes registered, more than the limit of %llu: raise "
        "server.memory_limit, or ZENPS_MEMORY_LIMIT of a rank",
        chunk_bytes(class), bytes, (unsigned long long)slab->limit_bytes);
    return ZPS_ERR_NOMEM;
  }
  if (!make_room(slab, bytes)) return ZPS_ERR_AGAIN;
  struct region *region = calloc(1, sizeof *region);
  if (!region) return ZPS_ERR_NOMEM;
  void *base = base_get(slab, bytes, &region->memory);
  if (!base) goto err_free_region;
  struct zps_error error;
  if (zps_net_mem_register(slab->net, base, bytes, &region->mem, &error) != ZPS_OK) {
    zps_log_warn("cannot register %zu bytes: %s", bytes, error.text);
    goto err_free_base;
  }
  region->arena = arena;
  region->class = class;
  region->n_chunks = region->n_free = (unsigned)(bytes / chunk_bytes(class));
  for (unsigned i = 0; i < region->n_chunks; i++) region->free_map[i / 64] |= 1ull << (i % 64);
  slab->total_bytes += bytes;
  if (is_large(class)) slab->idle_large_bytes += bytes;
  if (slab->total_bytes > slab->stats.high_water_bytes) slab->stats.high_water_bytes = slab->total_bytes;
  arena->n_regions++;
  arena->classes[class].shift = (uint8_t)__builtin_ctzll(bytes);
  link_first(region);
  return ZPS_OK;

err_free_base:
  base_put(region->memory, base, bytes);
err_free_region:
  free(region);
  return ZPS_ERR_NOMEM;
}

zps_err_t zps_slab_create(struct zps_net *net, uint64_t limit_bytes, uint64_t cache_bytes, struct zps_slab **slab_p) {
  struct zps_slab *slab = calloc(1, sizeof *slab);
  if (!slab) return ZPS_ERR_NOMEM;
  slab->net = net;
  slab->limit_bytes = limit_bytes;
  slab->cache_bytes = cache_bytes;
  slab->age_ns = ZPS_NEVER;
  slab->own.slab = slab;
  link_arena(&slab->own, &slab->arenas);
  *slab_p = slab;
  return ZPS_OK;
}

void zps_slab_net_closed(struct zps_slab *slab) {
  slab->net = NULL;
}

void zps_slab_set_memory(struct zps_slab *slab, const struct zps_slab_memory *memory) {
  for (unsigned class = 0; class < N_CLASSES; class ++) destroy_idle(slab, class, 0);
  slab->memory = memory;
}

void zps_slab_destroy(struct zps_slab *slab) {
  if (!slab) return;
  if (slab->stats.in_use_bytes > 0)
    zps_log_warn("%llu bytes of registered buffers are still in use and stay allocated: the fabric may hold them",
                 (unsigned long long)slab->stats.in_use_bytes);
  for (unsigned class = 0; class < N_CLASSES; class ++) destroy_idle(slab, class, 0);
  for (struct zps_slab_arena *arena = slab->arenas, *next; arena != &slab->own; arena = next) {
    next = arena->next;
    if (arena->n_regions == 0) free(arena);
  }
  free(slab);
}

zps_err_t zps_slab_arena_open(struct zps_slab *slab, struct zps_account *account, struct zps_slab_arena **arena_p) {
  struct zps_slab_arena *arena = calloc(1, sizeof *arena);
  if (!arena) return ZPS_ERR_NOMEM;
  arena->slab = slab;
  arena->account = account;
  link_arena(arena, &slab->arenas);
  *arena_p = arena;
  return ZPS_OK;
}

void zps_slab_arena_close(struct zps_slab_arena *arena) {
  if (!arena) return;
  struct zps_slab *slab = arena->slab;
  unlink_arena(arena);
  arena->is_closed = true;
  link_arena(arena, &slab->closed);
  slab->age_ns = slab->now_ns;
  arena_free_unused(arena);
}

const uint64_t *zps_slab_arena_used(const struct zps_slab_arena *arena) {
  return &arena->used_bytes;
}

static unsigned chunk_take(struct region *region) {
  for (unsigned word = 0; word < MAP_WORDS; word++) {
    if (region->free_map[word] == 0) continue;
    const unsigned bit = (unsigned)__builtin_ctzll(region->free_map[word]);
    region->free_map[word] &= region->free_map[word] - 1;
    region->n_free--;
    return word * 64 + bit;
  }
  assert(!"a region with free chunks has none");
  return 0;
}

uint64_t zps_slab_bytes(size_t len) {
  uint64_t bytes = 1ull << MIN_SHIFT;
  while (bytes < len && bytes < 1ull << 62) bytes *= 2;
  return bytes;
}

zps_err_t zps_slab_get(struct zps_slab *slab, size_t len, struct zps_buf *buf_p) {
  return zps_slab_get_for(&slab->own, len, buf_p);
}

zps_err_t zps_slab_get_for(struct zps_slab_arena *arena, size_t len, struct zps_buf *buf_p) {
  struct zps_slab *slab = arena->slab;
  unsigned class = 0;
  while (class < N_CLASSES && chunk_bytes(class) < len) class ++;
  if (class == N_CLASSES) return ZPS_ERR_NOMEM;
  if (!slab->net) return ZPS_ERR_CLOSED;
  struct region *region = arena->classes[class].head;
  if (!region || region->n_free == 0) {
    const zps_err_t code = region_create(arena, class);
    if (code != ZPS_OK) return code;
    region = arena->classes[class].head;
  }
  if (is_large(class)) slab->idle_large_bytes -= region_bytes(region);
  const size_t offset = chunk_take(region) * chunk_bytes(class);
  if (region->n_free == 0) {
    unlink_region(region);
    link_last(region);
  }
  slab->stats.in_use_bytes += chunk_bytes(class);
  arena->used_bytes += chunk_bytes(class);
  *buf_p = (struct zps_buf){.data = (uint8_t *)region->mem.base + offset,
                            .cap = chunk_bytes(class),
                            .mem = &region->mem,
                            .addr = region->mem.addr + offset,
                            .key = region->mem.key,
                            .more = region->mem.more,
                            .owner = region,
                            .account = arena->account};
  zps_account_add(arena->account, buf_p->cap);
  return ZPS_OK;
}

void zps_slab_put(struct zps_slab *slab, struct zps_buf *buf) {
  struct region *region = buf->owner;
  if (!region) return;
  assert(region->arena->slab == slab);
  const size_t chunk = (size_t)((uint8_t *)buf->data - (uint8_t *)region->mem.base) / chunk_bytes(region->class);
  assert(!(region->free_map[chunk / 64] & 1ull << (chunk % 64)));
  region->free_map[chunk / 64] |= 1ull << (chunk % 64);
  region->n_free++;
  slab->stats.in_use_bytes -= chunk_bytes(region->class);
  region->arena->used_bytes -= chunk_bytes(region->class);
  zps_account_sub(buf->account, buf->cap);
  *buf = (struct zps_buf){0};
  unlink_region(region);
  link_first(region);
  if (is_idle(region)) {
    region->idle_since_ns = slab->now_ns;
    if (region->arena->is_closed) slab->age_ns = slab->now_ns;
    if (slab->age_ns == ZPS_NEVER) slab->age_ns = slab->now_ns + idle_ns(slab);
  }
  if (!is_large(region->class)) return;
  slab->idle_large_bytes += region_bytes(region);
  if (slab->idle_large_bytes > slab->cache_bytes) region_destroy(region);
}

static struct region *longest_idle(const struct zps_slab *slab) {
  struct region *longest = NULL;
  for (const struct zps_slab_arena *arena = slab->arenas; arena; arena = arena->next)
    for (unsigned class = 0; class < N_CLASSES; class ++)
      for (struct region *region = arena->classes[class].head; region && region->n_free > 0; region = region->next)
        if (is_idle(region) && (!longest || region->idle_since_ns < longest->idle_since_ns)) longest = region;
  return longest;
}

static struct region *idle_of_closed(const struct zps_slab *slab) {
  struct region *region = NULL;
  for (const struct zps_slab_arena *arena = slab->closed; arena && !region; arena = arena->next)
    for (unsigned class = 0; class < N_CLASSES && !region; class ++) region = first_idle(arena, class);
  return region;
}

uint64_t zps_slab_age(struct zps_slab *slab, uint64_t now_ns) {
  slab->now_ns = now_ns;
  if (now_ns < slab->age_ns) return slab->age_ns;
  struct region *region = idle_of_closed(slab);
  if (region) {
    region_destroy(region);
    return slab->age_ns = now_ns;
  }
  region = longest_idle(slab);
  if (!region) {
    slab->age_ns = ZPS_NEVER;
  } else if (now_ns - region->idle_since_ns < idle_ns(slab)) {
    slab->age_ns = region->idle_since_ns + idle_ns(slab);
  } else {
    region_destroy(region);
    slab->age_ns = now_ns + PAUSE_NS;
  }
  return slab->age_ns;
}

void zps_slab_trim(struct zps_slab *slab, uint64_t keep_ns) {
  slab->trim_ns = keep_ns;
  slab->trim_until_ns = slab->now_ns + ZPS_SLAB_IDLE_NS;
  if (slab->age_ns != ZPS_NEVER) slab->age_ns = slab->now_ns;
}

void zps_slab_stats(const struct zps_slab *slab, struct zps_slab_stats *stats_p) {
  *stats_p = slab->stats;
  stats_p->cached_bytes = slab->total_bytes - slab->stats.in_use_bytes;
}
