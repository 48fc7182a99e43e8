#define ZPS_LOG_COMPONENT "segment"
#include "worker/plane/shared/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"

#define GRANULE ((uint64_t)1 << 20)
#define MAGIC UINT64_C(0x3130746773737a70)
#define LEN_MAX ((uint64_t)1 << 46)
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW)

/* At the begin of the first granule, of which no more is used. */
struct header {
  uint64_t magic, len_bytes, proof;
  _Atomic uint8_t given_up[]; /* by rank */
};

#define WORLD_MAX (GRANULE - sizeof(struct header))

struct zps_segment {
  int fd, reading_fd;
  char *base;
  uint64_t len_bytes;
  uint32_t n_granules, world;
  uint8_t *taken; /* per granule */
};

/* ------------------------------------------------------------ life */

/* The segment is a file: one larger than the limit of file sizes would end the process. */
static zps_err_t check_limit(uint64_t len_bytes, struct zps_error *error) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < len_bytes)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED,
                    "the limit of file sizes (ulimit -f) is %" PRIu64 " bytes; %" PRIu64 " are needed",
                    (uint64_t)limit.rlim_cur, len_bytes);
  return ZPS_OK;
}

static zps_err_t failed(const char *call, struct zps_error *error) {
  const zps_err_t code = errno == ENOMEM ? ZPS_ERR_NOMEM : ZPS_ERR_UNSUPPORTED;
  return zps_fail(error, code, "%s: %s", call, strerror(errno));
}

static zps_err_t make_file(struct zps_segment *segment, struct zps_error *error) {
  char path[64];
  segment->fd = memfd_create("zenps", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (segment->fd < 0) return failed("memfd_create", error);
  if (ftruncate(segment->fd, (off_t)segment->len_bytes) != 0) return failed("ftruncate", error);
  if (fcntl(segment->fd, F_ADD_SEALS, SEALS | F_SEAL_SEAL) != 0) return failed("fcntl(F_ADD_SEALS)", error);
  snprintf(path, sizeof path, "/proc/self/fd/%d", segment->fd);
  segment->reading_fd = open(path, O_RDONLY | O_CLOEXEC);
  return segment->reading_fd < 0 ? failed(path, error) : ZPS_OK;
}

static zps_err_t map_file(struct zps_segment *segment, uint64_t proof, struct zps_error *error) {
  if (fallocate(segment->fd, 0, 0, (off_t)(sizeof(struct header) + segment->world)) != 0)
    return failed("fallocate", error);
  void *base = mmap(NULL, segment->len_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, segment->fd, 0);
  if (base == MAP_FAILED) return failed("mmap", error);
  segment->base = base;
  /* A child does not need the segment; where the kernel refuses this, the child has it, and no harm is done. */
  (void)madvise(base, segment->len_bytes, MADV_DONTFORK);
  (void)madvise(base, segment->len_bytes, MADV_DONTDUMP); /* keeps it out of every rank's dump */
  struct header *const header = base;                     /* nobody is given up: the file is all zero */
  header->magic = MAGIC;
  header->len_bytes = segment->len_bytes;
  header->proof = proof;
  return ZPS_OK;
}

zps_err_t zps_segment_create(uint64_t len_bytes, uint64_t proof, uint32_t world, struct zps_segment **segment_p,
                             struct zps_error *error) {
  if (world > WORLD_MAX)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "%" PRIu32 " ranks; at most %zu share memory", world,
                    (size_t)WORLD_MAX);
  if (len_bytes > LEN_MAX) len_bytes = LEN_MAX;
  const uint32_t n_granules = (uint32_t)((len_bytes + GRANULE - 1) / GRANULE) + 1;
  zps_err_t err = check_limit(n_granules * GRANULE, error);
  if (err != ZPS_OK) return err;
  struct zps_segment *segment = calloc(1, sizeof *segment);
  if (!segment) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for a segment");
  segment->fd = segment->reading_fd = -1;
  segment->n_granules = n_granules;
  segment->world = world;
  segment->len_bytes = n_granules * GRANULE;
  segment->taken = calloc(n_granules, sizeof *segment->taken);
  err = segment->taken ? make_file(segment, error) : zps_fail(error, ZPS_ERR_NOMEM, "no memory for a segment");
  if (err == ZPS_OK) err = map_file(segment, proof, error);
  if (err != ZPS_OK) {
    zps_segment_destroy(segment);
    return err;
  }
  segment->taken[0] = 1;
  *segment_p = segment;
  return ZPS_OK;
}

void zps_segment_destroy(struct zps_segment *segment) {
  if (!segment) return;
  if (segment->base) munmap(segment->base, segment->len_bytes);
  if (segment->reading_fd >= 0) close(segment->reading_fd);
  if (segment->fd >= 0) close(segment->fd);
  free(segment->taken);
  free(segment);
}

int zps_segment_fd(const struct zps_segment *segment) {
  return segment->reading_fd;
}

uint64_t zps_segment_len(const struct zps_segment *segment) {
  return segment->len_bytes;
}

/* ------------------------------------------------------------ memory */

/* The first run of `n` free granules; 0: none. */
static uint32_t find_free(const struct zps_segment *segment, uint64_t n) {
  uint64_t run = 0;
  for (uint32_t i = 1; i < segment->n_granules; i++) {
    run = segment->taken[i] ? 0 : run + 1;
    if (run == n) return i - (uint32_t)n + 1;
  }
  return 0;
}

void *zps_segment_get(struct zps_segment *segment, size_t bytes) {
  const uint64_t n = bytes ? (bytes + GRANULE - 1) / GRANULE : 1;
  const uint32_t first = find_free(segment, n);
  if (first == 0) return NULL;
  /* The system hands out the memory here, where it can refuse: a refusal later would be a signal. */
  if (fallocate(segment->fd, 0, (off_t)(first * GRANULE), (off_t)(n * GRANULE)) != 0) {
    zps_log_warn_limited("cannot allocate %" PRIu64 " bytes of shared memory: %s; their data goes over the fabric",
                         n * GRANULE, strerror(errno));
    return NULL;
  }
  memset(segment->taken + first, 1, n);
  return segment->base + first * GRANULE;
}

void zps_segment_put(struct zps_segment *segment, void *data, size_t bytes) {
  const uint64_t n = bytes ? (bytes + GRANULE - 1) / GRANULE : 1;
  const uint64_t offset = (uint64_t)((char *)data - segment->base);
  memset(segment->taken + offset / GRANULE, 0, n);
  if (fallocate(segment->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)(n * GRANULE)) != 0)
    zps_log_warn_limited("cannot free shared memory: %s", strerror(errno));
}

static struct header *header_of(const struct zps_segment *segment) {
  return (struct header *)(void *)segment->base;
}

/* Whoever sees a byte that is written from here on sees that it was given up, too. */
void zps_segment_give_up(struct zps_segment *segment, uint32_t rank) {
  if (rank < segment->world) atomic_store(&header_of(segment)->given_up[rank], 1);
  atomic_thread_fence(memory_order_seq_cst);
}

bool zps_segment_has_given_up(const struct zps_segment *segment, uint32_t rank) {
  return rank < segment->world && atomic_load(&header_of(segment)->given_up[rank]) != 0;
}

bool zps_segment_offset(const struct zps_segment *segment, const void *data, uint64_t bytes, uint64_t *offset_p) {
  const uintptr_t at = (uintptr_t)data, base = (uintptr_t)segment->base;
  if (at < base + GRANULE || at - base > segment->len_bytes || bytes > segment->len_bytes - (at - base)) return false;
  *offset_p = at - base;
  return true;
}

/* ------------------------------------------------------------ others' */

zps_err_t zps_segment_map(int fd, uint64_t len_bytes, struct zps_segment_view *view, uint64_t *proof_p,
                          struct zps_error *error) {
  struct stat status;
  if (fstat(fd, &status) != 0) return failed("fstat", error);
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "it is not sealed, so that it might shrink under who reads it");
  if (len_bytes < GRANULE || len_bytes > LEN_MAX + GRANULE || status.st_size < 0 ||
      (uint64_t)status.st_size != len_bytes)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "it has %lld bytes, %" PRIu64 " were announced", (long long)status.st_size,
                    len_bytes);
  void *base = mmap(NULL, len_bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (base == MAP_FAILED) return failed("mmap", error);
  const struct header *const header = base;
  const uint64_t proof = header->proof;
  if (header->magic != MAGIC || header->len_bytes != len_bytes) {
    munmap(base, len_bytes);
    return zps_fail(error, ZPS_ERR_PROTOCOL, "it is none of ours");
  }
  (void)madvise(base, len_bytes, MADV_DONTFORK);
  (void)madvise(base, len_bytes, MADV_DONTDUMP);
  *view = (struct zps_segment_view){.base = base, .len_bytes = len_bytes};
  *proof_p = proof;
  return ZPS_OK;
}

void zps_segment_unmap(struct zps_segment_view *view) {
  if (view->base) munmap((void *)(uintptr_t)view->base, view->len_bytes);
  *view = (struct zps_segment_view){0};
}

const void *zps_segment_at(const struct zps_segment_view *view, uint64_t offset, uint64_t bytes) {
  if (!view->base || offset > view->len_bytes || bytes > view->len_bytes - offset) return NULL;
  return view->base + offset;
}

bool zps_segment_view_is_past(const struct zps_segment_view *view, uint32_t rank) {
  atomic_thread_fence(memory_order_seq_cst); /* behind the copy */
  return rank >= WORLD_MAX || !view->base ||
         atomic_load(&((struct header *)(uintptr_t)view->base)->given_up[rank]) != 0;
}
