/* Memory that a process does not get, while it is short of it. Linked by --wrap; the simulation's own code asks the C
 * library. */
#include <errno.h>
#include <stdlib.h>

#include "common/net/slab.h"
#include "tests/sim/sched.h"

bool sim_memory_fails(void) {
  const struct sim_process *const process = sim_process_here();
  return process && process->short_n > 0 && sim_now_ns() < process->short_to_ns && sim_chance(process->short_n);
}

void *__wrap_malloc(size_t size);
void *__wrap_malloc(size_t size) {
  return sim_memory_fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size) {
  return sim_memory_fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *at, size_t size);
void *__wrap_realloc(void *at, size_t size) {
  return sim_memory_fails() ? NULL : __real_realloc(at, size);
}

void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size) {
  return sim_memory_fails() ? NULL : __real_aligned_alloc(alignment, size);
}

int __real_posix_memalign(void **at_p, size_t alignment, size_t size);
int __wrap_posix_memalign(void **at_p, size_t alignment, size_t size);
int __wrap_posix_memalign(void **at_p, size_t alignment, size_t size) {
  return sim_memory_fails() ? ENOMEM : __real_posix_memalign(at_p, alignment, size);
}

zps_err_t __real_zps_slab_get_for(struct zps_slab_arena *arena, size_t len, struct zps_buf *buf_p);
zps_err_t __wrap_zps_slab_get_for(struct zps_slab_arena *arena, size_t len, struct zps_buf *buf_p);
zps_err_t __wrap_zps_slab_get_for(struct zps_slab_arena *arena, size_t len, struct zps_buf *buf_p) {
  return sim_memory_fails() ? ZPS_ERR_NOMEM : __real_zps_slab_get_for(arena, len, buf_p);
}
