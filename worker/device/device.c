#define ZPS_LOG_COMPONENT "device"
#include "worker/device/device.h"

#include <stdlib.h>
#include <unistd.h>

#include "common/base/log.h"

/* Large enough that a copy's start is nothing beside it, small enough that the first piece is soon there. */
#define STAGE_BYTES (4u << 20)
#define PROBE_BYTES (64u << 10)

zps_err_t zps_worker_device_open(const char *library, int index, struct zps_worker_device **device_p,
                                 struct zps_error *error) {
  struct zps_worker_device *const made = calloc(1, sizeof *made);
  if (!made) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for a device");
  made->index = index;
  atomic_init(&made->refs, 1);
  zps_err_t code = zps_device_load(library, (unsigned)index, &made->device, error);
  zps_words_init(&made->words, made->device);
  if (code == ZPS_OK) code = zps_stage_create(made->device, STAGE_BYTES, &made->in_stage, error);
  if (code == ZPS_OK) code = zps_stage_create(made->device, STAGE_BYTES, &made->out_stage, error);
  if (code == ZPS_OK) {
    code = zps_workpool_create(1, "zenps-gin", &made->in_pool);
    if (code == ZPS_OK) code = zps_workpool_create(1, "zenps-gout", &made->out_pool);
    if (code != ZPS_OK) zps_fail(error, code, "cannot start 2 threads for GPU %d: %s", index, zps_err_str(code));
  }
  if (code != ZPS_OK) {
    zps_worker_device_stop(made);
    zps_worker_device_close(made);
    return code;
  }
  *device_p = made;
  return ZPS_OK;
}

zps_err_t zps_worker_device_register(const struct zps_worker_device *device, struct zps_net *net, void *at,
                                     size_t len_bytes, struct zps_net_mem *mem_p, struct zps_error *error) {
  struct zps_net_device how = {.index = device->index, .dmabuf_fd = -1};
  struct zps_device_export export = {.dmabuf_fd = -1};
  zps_err_t code = ZPS_OK;
  if (device->path == ZPS_PATH_DMABUF)
    code = device->device->ops->export_memory(device->device, at, len_bytes, &export, error);
  if (code != ZPS_OK) return code;
  how.dmabuf_fd = export.dmabuf_fd;
  how.offset = export.offset;
  code = zps_net_mem_register_device(net, at, len_bytes, &how, mem_p, error);
  if (export.dmabuf_fd >= 0) close(export.dmabuf_fd);
  return code;
}

struct probe {
  struct zps_command command;
  struct zps_worker_device *device;
  struct zps_engine *engine;
  void *at;
};

static void probe_run(struct zps_command *command, void *handler_ctx) {
  (void)handler_ctx;
  struct probe *const probe = (struct probe *)command;
  struct zps_worker_device *const device = probe->device;
  struct zps_net *const net = zps_engine_net(probe->engine);
  struct zps_net_mem mem;
  struct zps_error error;
  for (device->path = ZPS_PATH_DMABUF; device->path != ZPS_PATH_STAGED; device->path--) {
    if (zps_worker_device_register(device, net, probe->at, PROBE_BYTES, &mem, &error) == ZPS_OK) {
      zps_net_mem_release(net, &mem);
      break;
    }
    zps_log_info("GPU %d, path %s: %s", device->index, zps_worker_device_path(device), error.text);
  }
}

void zps_worker_device_probe(struct zps_worker_device *device, struct zps_engine *engine) {
  struct probe probe = {.command.run = probe_run, .device = device, .engine = engine};
  const struct zps_device_ops *const ops = device->device->ops;
  if (ops->allocate(device->device, ZPS_MEMORY_DEVICE, PROBE_BYTES, &probe.at, NULL) != ZPS_OK) return;
  if (zps_engine_call(engine, &probe.command) != ZPS_OK) device->path = ZPS_PATH_STAGED;
  ops->release(device->device, ZPS_MEMORY_DEVICE, probe.at);
}

const char *zps_worker_device_path(const struct zps_worker_device *device) {
  static const char *const names[] = {"staged", "hmem", "dmabuf"};
  return names[device->path];
}

void zps_worker_device_stop(struct zps_worker_device *device) {
  if (!device) return;
  zps_workpool_destroy(device->in_pool);
  zps_workpool_destroy(device->out_pool);
  device->in_pool = device->out_pool = NULL;
}

void zps_worker_device_close(struct zps_worker_device *device) {
  if (!device) return;
  zps_stage_destroy(device->in_stage);
  zps_stage_destroy(device->out_stage);
  device->in_stage = device->out_stage = NULL;
  zps_words_fini(&device->words);
  zps_worker_device_unref(device);
}

struct zps_worker_device *zps_worker_device_ref(struct zps_worker_device *device) {
  atomic_fetch_add(&device->refs, 1);
  return device;
}

void zps_worker_device_unref(struct zps_worker_device *device) {
  if (atomic_fetch_sub(&device->refs, 1) > 1) return;
  zps_device_close(device->device);
  free(device);
}

zps_err_t zps_worker_device_grow(struct zps_worker_device *device, enum zps_memory memory, void **at_p, size_t *cap_p,
                                 size_t len_bytes, struct zps_error *error) {
  const struct zps_device_ops *const ops = device->device->ops;
  if (len_bytes <= *cap_p) return ZPS_OK;
  ops->release(device->device, memory, *at_p);
  *at_p = NULL;
  *cap_p = 0;
  len_bytes += len_bytes / 4; /* sizes that creep upwards do not allocate each time */
  const zps_err_t code = ops->allocate(device->device, memory, len_bytes, at_p, error);
  if (code == ZPS_OK) *cap_p = len_bytes;
  return code;
}

zps_err_t zps_worker_device_grow_on(struct zps_worker_device *device, void **at_p, size_t *cap_p, size_t len_bytes,
                                    zps_stream_t stream, struct zps_error *error) {
  const struct zps_device_ops *const ops = device->device->ops;
  if (len_bytes <= *cap_p) return ZPS_OK;
  ops->release_on(device->device, *at_p, stream);
  *at_p = NULL;
  *cap_p = 0;
  len_bytes += len_bytes / 4;
  const zps_err_t code = ops->allocate_on(device->device, len_bytes, stream, at_p, error);
  if (code == ZPS_OK) *cap_p = len_bytes;
  return code;
}
