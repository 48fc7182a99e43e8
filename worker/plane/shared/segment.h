/*
 * Memory that ranks of one host share: each rank's own segment, which it alone writes and the others read.
 *
 * It is an unnamed file in memory (memfd), so that nothing of it outlives the last process that has it mapped, whatever
 * becomes of them, and no size of /dev/shm limits it. Its size is sealed: a process that has mapped it never reads
 * beyond its end. zps_segment_get() takes memory from the kernel, zps_segment_put() gives it back.
 */
#ifndef ZPS_WORKER_PLANE_SHARED_SEGMENT_H
#define ZPS_WORKER_PLANE_SHARED_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

struct zps_segment;

/* Room for at least `len_bytes`, of which nothing is taken yet; `world`: ranks that may read it. Only processes that
 * have mapped the segment can read `proof`. ZPS_ERR_UNSUPPORTED: the system does not let us, ZPS_ERR_NOMEM: it has no
 * memory for it. */
zps_err_t zps_segment_create(uint64_t len_bytes, uint64_t proof, uint32_t world, struct zps_segment **segment_p,
                             struct zps_error *error) ZPS_MUSTCHECK;
void zps_segment_destroy(struct zps_segment *segment); /* NULL is allowed */
/* A read-only descriptor for other processes; the segment keeps it. */
int zps_segment_fd(const struct zps_segment *segment);
/* Its length, which other processes need to map it. */
uint64_t zps_segment_len(const struct zps_segment *segment);
/* Memory, aligned to pages; NULL: there is none left, here or in the system. From one thread at a time. */
void *zps_segment_get(struct zps_segment *segment, size_t bytes);
void zps_segment_put(struct zps_segment *segment, void *data, size_t bytes);
/* Memory that the rank was told of, and has not said that it is through with, is about to be used for something else:
 * what it copies from here on is nothing that it was told of. That holds for good, and of all of the segment. */
void zps_segment_give_up(struct zps_segment *segment, uint32_t rank);
bool zps_segment_has_given_up(const struct zps_segment *segment, uint32_t rank); /* from any thread */
/* Whether `bytes` at `data` are in the segment, and where. */
bool zps_segment_offset(const struct zps_segment *segment, const void *data, uint64_t bytes, uint64_t *offset_p);

/* Another process's segment, mapped. */
struct zps_segment_view {
  const char *base; /* NULL: none */
  uint64_t len_bytes;
};

/* `fd` is borrowed. Whatever file it is of, the view can be read from beginning to end. *proof_p: the proof that its
 * owner wrote. */
zps_err_t zps_segment_map(int fd, uint64_t len_bytes, struct zps_segment_view *view, uint64_t *proof_p,
                          struct zps_error *error) ZPS_MUSTCHECK;
void zps_segment_unmap(struct zps_segment_view *view); /* none is allowed */
/* NULL: not in it. The bytes may change at any time: copy them first, then check the copy, and that the owner had not
 * given us up before it was made. */
const void *zps_segment_at(const struct zps_segment_view *view, uint64_t offset, uint64_t bytes);
/* Whether its owner has given up `rank`, which has made a copy (from any thread). A process that was stopped while it
 * read finds here that the others went on without it. */
bool zps_segment_view_is_past(const struct zps_segment_view *view, uint32_t rank);

#endif
