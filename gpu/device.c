#include "gpu/device.h"

#include <dlfcn.h>

/* The library stays loaded: CUDA's runtime does not like to be unloaded. */
zps_err_t zps_device_load(const char *name, unsigned index, struct zps_device **device_p, struct zps_error *error) {
  if (!name) name = ZPS_DEVICE_CUDA_LIBRARY;
  void *const library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!library)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED,
                    "no support for GPUs here: %s; build zenps with --with-cuda, or use host memory", dlerror());
  zps_device_cuda_open_t open;
  *(void **)&open = dlsym(library, ZPS_DEVICE_CUDA_OPEN);
  const zps_err_t code =
      open ? open(ZPS_DEVICE_ABI, index, device_p, error)
           : zps_fail(error, ZPS_ERR_UNSUPPORTED, "%s has no %s: it is not zenps's", name, ZPS_DEVICE_CUDA_OPEN);
  dlclose(library);
  return code;
}

void zps_device_close(struct zps_device *device) {
  if (device) device->ops->close(device);
}
