#include "worker/api/registered.h"

#include <stdlib.h>

#include "common/base/enlarge.h"
#include "worker/api/job.h"
#include "worker/device/device.h"

struct zps_worker_range {
  struct zps_worker_range *next;
  const char *at;
  size_t len_bytes;
  zenps_memory_t memory;
  unsigned n_users; /* rounds in flight, once for each array */
};

static bool overlap(const struct zps_worker_range *range, const char *at, size_t len_bytes) {
  return at < range->at + range->len_bytes && range->at < at + len_bytes;
}

zps_err_t zps_worker_memory_use(struct zenps_job *job, struct zps_memory_use *use, zenps_memory_t memory,
                                const void *at, size_t len_bytes, const char *what, struct zps_error *error) {
  for (struct zps_worker_range *range = job->ranges; at && range; range = range->next) {
    if (!overlap(range, at, len_bytes ? len_bytes : 1)) continue;
    const char *const first = at;
    if (first < range->at || len_bytes > range->len_bytes - (size_t)(first - range->at))
      return zps_fail(error, ZPS_ERR_INVALID, "%s: %zu bytes at %p reach out of the %zu registered at %p", what,
                      len_bytes, at, range->len_bytes, (const void *)range->at);
    if (memory != range->memory)
      return zps_fail(error, ZPS_ERR_INVALID, "%s: %p was registered as memory %d, not %d", what, at,
                      (int)range->memory, (int)memory);
    if (!zps_enlarge_for_one(&use->ranges, &use->capacity, use->n, 4, sizeof *use->ranges))
      return zps_fail(error, ZPS_ERR_NOMEM, "%s: no memory to note that it is in use", what);
    use->ranges[use->n++] = range;
    range->n_users++;
    return ZPS_OK;
  }
  return ZPS_OK;
}

void zps_worker_memory_unuse(struct zps_memory_use *use) {
  for (unsigned i = 0; i < use->n; i++) use->ranges[i]->n_users--;
  free(use->ranges);
  *use = (struct zps_memory_use){0};
}

void zps_worker_memory_fini(struct zenps_job *job) {
  for (struct zps_worker_range *range = job->ranges, *next; range; range = next) {
    next = range->next;
    free(range);
  }
  job->ranges = NULL;
}

static zps_err_t check(struct zenps_job *job, zenps_memory_t memory, int device_index, const void *at, size_t len,
                       struct zps_error *error) {
  if (!at || len == 0) return zps_fail(error, ZPS_ERR_INVALID, "%zu bytes at %p: there must be some", len, at);
  if (memory == ZENPS_HOST) return ZPS_OK;
  if (memory != ZENPS_DEVICE)
    return zps_fail(error, ZPS_ERR_INVALID, "memory is %d, none of ZENPS_HOST, ZENPS_DEVICE", (int)memory);
  struct zps_worker_device *device;
  const zps_err_t code = zps_worker_device_get(job, device_index, &device, error);
  return code == ZPS_OK ? device->device->ops->check(device->device, at, len, error) : code;
}

zenps_status_t zenps_mem_register(zenps_job_t *job, zenps_memory_t memory, int device, void *at, size_t len) {
  struct zps_error error;
  if (!job) return zps_worker_fail(ZPS_ERR_INVALID, "zenps_mem_register: job is NULL");
  if (zps_worker_forked(job)) return zps_worker_fail_forked();
  const zps_err_t code = check(job, memory, device, at, len, &error);
  if (code != ZPS_OK) return zps_worker_fail(code, "zenps_mem_register: %s", error.text);
  struct zps_worker_range *const made = calloc(1, sizeof *made);
  if (!made) return zps_worker_fail(ZPS_ERR_NOMEM, "zenps_mem_register: out of memory");
  made->at = at;
  made->len_bytes = len;
  made->memory = memory;
  pthread_mutex_lock(&job->lock);
  const struct zps_worker_range *range = job->ranges;
  while (range && !overlap(range, at, len)) range = range->next;
  if (!range) {
    made->next = job->ranges;
    job->ranges = made;
  }
  pthread_mutex_unlock(&job->lock);
  if (!range) return ZENPS_OK;
  free(made);
  return zps_worker_fail(ZPS_ERR_BUSY, "zenps_mem_register: of %zu bytes at %p some are registered already", len, at);
}

zenps_status_t zenps_mem_deregister(zenps_job_t *job, void *at) {
  if (!job) return zps_worker_fail(ZPS_ERR_INVALID, "zenps_mem_deregister: job is NULL");
  if (zps_worker_forked(job)) return zps_worker_fail_forked();
  pthread_mutex_lock(&job->lock);
  struct zps_worker_range **range_p = &job->ranges;
  while (*range_p && (*range_p)->at != at) range_p = &(*range_p)->next;
  struct zps_worker_range *const range = *range_p;
  const bool is_busy = range && range->n_users > 0;
  if (range && !is_busy) *range_p = range->next;
  pthread_mutex_unlock(&job->lock);
  if (!range) return zps_worker_fail(ZPS_ERR_UNKNOWN, "zenps_mem_deregister: nothing is registered at %p", at);
  if (is_busy)
    return zps_worker_fail(ZPS_ERR_BUSY, "zenps_mem_deregister: an operation in flight uses what is at %p", at);
  free(range);
  return ZENPS_OK;
}
