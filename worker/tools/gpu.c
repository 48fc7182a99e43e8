#include "worker/tools/gpu.h"

#include <stdlib.h>
#include <string.h>

#include "gpu/device.h"

#define INDEX_MAX 1023

struct zps_gpu {
  struct zps_device *device;
  int index;
  zps_stream_t stream;
  struct zps_event *event;
};

const char *const zps_gpu_memory_values[] = {"host", "device", NULL};

zps_err_t zps_gpu_index(int memory, const char *device, int *index_p, struct zps_error *error) {
  const char *const variable = getenv("ZENPS_DEVICE"), *name = "--device";
  *index_p = -1;
  if (memory == 0)
    return device ? zps_fail(error, ZPS_ERR_INVALID, "--device %.40s needs --memory device", device) : ZPS_OK;
  if (!device && variable && *variable && strcmp(variable, "none") != 0) {
    name = "ZENPS_DEVICE";
    device = variable;
  }
  if (!device) device = "0";
  char *end;
  const unsigned long number = strtoul(device, &end, 10);
  if (*end != '\0' || *device < '0' || *device > '9' || number > INDEX_MAX)
    return zps_fail(error, ZPS_ERR_INVALID, "%s is '%.40s'; it must be the number of a GPU, 0 to %d", name, device,
                    INDEX_MAX);
  *index_p = (int)number;
  return ZPS_OK;
}

zps_err_t zps_gpu_open(int index, struct zps_gpu **gpu_p, struct zps_error *error) {
  const char *const library = getenv("ZENPS_DEVICE_LIBRARY");
  struct zps_gpu *const gpu = calloc(1, sizeof *gpu);
  if (!gpu) return zps_fail(error, ZPS_ERR_NOMEM, "out of memory");
  gpu->index = index;
  zps_err_t code = zps_device_load(library && *library ? library : NULL, (unsigned)index, &gpu->device, error);
  if (code == ZPS_OK) code = gpu->device->ops->stream_create(gpu->device, &gpu->stream, error);
  if (code == ZPS_OK) code = gpu->device->ops->event_create(gpu->device, &gpu->event, error);
  if (code != ZPS_OK) {
    zps_gpu_close(gpu);
    return code;
  }
  *gpu_p = gpu;
  return ZPS_OK;
}

void zps_gpu_close(struct zps_gpu *gpu) {
  if (!gpu) return;
  if (gpu->event) gpu->device->ops->event_destroy(gpu->device, gpu->event);
  if (gpu->stream) gpu->device->ops->stream_destroy(gpu->device, gpu->stream);
  zps_device_close(gpu->device);
  free(gpu);
}

void zps_gpu_mark(const struct zps_gpu *gpu, zenps_grad_t *grad) {
  grad->memory = ZENPS_DEVICE;
  grad->device = gpu->index;
  grad->stream = gpu->stream;
}

/* Of an array that is to hold n elements: sizes that creep upwards do not allocate each time. False: there is no such
 * array. */
static bool size_of(uint64_t n, size_t elem_bytes, size_t *bytes_p) {
  return !__builtin_mul_overflow(n + n / 4 + 1, elem_bytes, bytes_p) && *bytes_p <= SIZE_MAX / 2;
}

static zps_err_t too_large(uint64_t n, size_t elem_bytes, struct zps_error *error) {
  return zps_fail(error, ZPS_ERR_NOMEM, "out of memory for %llu entries of %zu bytes", (unsigned long long)n,
                  elem_bytes);
}

static zps_err_t grow(struct zps_gpu *gpu, void **at_p, size_t *has_p, uint64_t n, size_t elem_bytes,
                      struct zps_error *error) {
  const struct zps_device_ops *const ops = gpu->device->ops;
  size_t bytes;
  if (*at_p && *has_p / elem_bytes >= n) return ZPS_OK;
  if (!size_of(n, elem_bytes, &bytes)) return too_large(n, elem_bytes, error);
  ops->release(gpu->device, ZPS_MEMORY_DEVICE, *at_p);
  *at_p = NULL;
  *has_p = 0;
  const zps_err_t code = ops->allocate(gpu->device, ZPS_MEMORY_DEVICE, bytes, at_p, error);
  if (code == ZPS_OK) *has_p = bytes;
  return code;
}

zps_err_t zps_gpu_reserve(struct zps_gpu *gpu, struct zps_gpu_grad *there, uint64_t n, size_t row_bytes,
                          struct zps_error *error) {
  void *ids = there->grad.row_ids;
  zps_gpu_mark(gpu, &there->grad);
  zps_err_t code = ZPS_OK;
  if (there->grad.layout == ZENPS_ROWS) code = grow(gpu, &ids, &there->ids_bytes, n, sizeof(int64_t), error);
  there->grad.row_ids = ids;
  if (code == ZPS_OK) code = grow(gpu, &there->grad.values, &there->values_bytes, n, row_bytes, error);
  return code;
}

static zps_err_t copy(struct zps_gpu *gpu, void *to, const void *from, size_t len_bytes, struct zps_error *error) {
  return len_bytes ? gpu->device->ops->copy(gpu->device, to, from, len_bytes, gpu->stream, error) : ZPS_OK;
}

zps_err_t zps_gpu_send(struct zps_gpu *gpu, const zenps_grad_t *host, uint64_t n, size_t row_bytes,
                       struct zps_gpu_grad *there, struct zps_error *error) {
  there->grad.struct_size = host->struct_size;
  there->grad.layout = host->layout;
  there->grad.nnz = host->nnz;
  zps_err_t code = zps_gpu_reserve(gpu, there, n, row_bytes, error);
  if (code == ZPS_OK && host->layout == ZENPS_ROWS)
    code = copy(gpu, there->grad.row_ids, host->row_ids, n * sizeof(int64_t), error);
  if (code == ZPS_OK) code = copy(gpu, there->grad.values, host->values, n * row_bytes, error);
  return code;
}

static zps_err_t grow_here(void **at_p, size_t *has_p, uint64_t n, size_t elem_bytes, struct zps_error *error) {
  size_t bytes;
  if (*at_p && *has_p / elem_bytes >= n) return ZPS_OK;
  free(*at_p);
  *has_p = 0;
  *at_p = size_of(n, elem_bytes, &bytes) ? malloc(bytes) : NULL;
  if (!*at_p) return too_large(n, elem_bytes, error);
  *has_p = bytes;
  return ZPS_OK;
}

zps_err_t zps_gpu_fetch(struct zps_gpu *gpu, const zenps_grad_t *there, uint64_t n, size_t row_bytes,
                        struct zps_gpu_grad *here, struct zps_error *error) {
  void *ids = here->grad.row_ids, *values = here->grad.values;
  zps_err_t code = ZPS_OK;
  if (there->layout == ZENPS_ROWS) code = grow_here(&ids, &here->ids_bytes, n, sizeof(int64_t), error);
  if (code == ZPS_OK) code = grow_here(&values, &here->values_bytes, n, row_bytes, error);
  here->grad = *there;
  here->grad.memory = ZENPS_HOST;
  here->grad.row_ids = ids;
  here->grad.values = values;
  if (code == ZPS_OK && there->layout == ZENPS_ROWS) code = copy(gpu, ids, there->row_ids, n * sizeof(int64_t), error);
  if (code == ZPS_OK) code = copy(gpu, values, there->values, n * row_bytes, error);
  if (code == ZPS_OK) code = zps_gpu_wait(gpu, error);
  return code;
}

zps_err_t zps_gpu_wait(struct zps_gpu *gpu, struct zps_error *error) {
  const struct zps_device_ops *const ops = gpu->device->ops;
  const zps_err_t code = ops->event_record(gpu->device, gpu->event, gpu->stream, error);
  return code == ZPS_OK ? ops->event_sync(gpu->device, gpu->event, error) : code;
}

void zps_gpu_release(struct zps_gpu *gpu, struct zps_gpu_grad *there) {
  if (!gpu) return;
  gpu->device->ops->release(gpu->device, ZPS_MEMORY_DEVICE, there->grad.row_ids);
  gpu->device->ops->release(gpu->device, ZPS_MEMORY_DEVICE, there->grad.values);
  *there = (struct zps_gpu_grad){.ids_bytes = 0};
}

void zps_gpu_free(struct zps_gpu_grad *here) {
  free(here->grad.row_ids);
  free(here->grad.values);
  *here = (struct zps_gpu_grad){.ids_bytes = 0};
}
