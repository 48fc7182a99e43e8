/* The vtable over CUDA's memory, streams and events. */
#include <cstdlib>
#include <cstring>
#include <new>

#ifndef ZPS_EMU
#include <dlfcn.h>
#endif

#include "gpu/cuda/device.cuh"

struct zps_event {
  cudaEvent_t event;
};

namespace zps {

#ifndef ZPS_EMU
const Kernel *all_kernels = nullptr;
Kernel::Kernel(const void *function_) : function(function_), next(all_kernels) {
  all_kernels = this;
}
#endif

namespace {

/* Blocks of THREADS threads for each multiprocessor: as many as can be resident. */
enum { BLOCKS_PER_MULTIPROCESSOR = 8 };

void close(zps_device *device) {
  delete device_of(device);
}

zps_err_t allocated(zps_device *device, cudaError_t code, const char *what, size_t len_bytes, zps_error *error) {
  if (code == cudaSuccess) return ZPS_OK;
  (void)cudaGetLastError();
  return zps_fail(error, ZPS_ERR_NOMEM, "no %s memory for %zu bytes on GPU %d: %s", what, len_bytes,
                  device_of(device)->index, cudaGetErrorString(code));
}

zps_err_t allocate(zps_device *device, enum zps_memory memory, size_t len_bytes, void **memory_p, zps_error *error) {
  static const char *const names[] = {"host", "pinned", "device"};
  const Current current(device_of(device));
  void *at = nullptr;
  cudaError_t code = cudaErrorMemoryAllocation;
  switch (memory) {
    case ZPS_MEMORY_HOST:
      at = std::malloc(len_bytes ? len_bytes : 1);
      code = at ? cudaSuccess : cudaErrorMemoryAllocation;
      break;
    case ZPS_MEMORY_PINNED:
      code = cudaHostAlloc(&at, len_bytes ? len_bytes : 1, cudaHostAllocDefault);
      break;
    case ZPS_MEMORY_DEVICE:
      code = cudaMalloc(&at, len_bytes ? len_bytes : 1);
      break;
  }
  if (code == cudaSuccess) *memory_p = at;
  return allocated(device, code, names[memory], len_bytes, error);
}

void release(zps_device *device, enum zps_memory memory, void *at) {
  const Current current(device_of(device));
  switch (memory) {
    case ZPS_MEMORY_HOST:
      std::free(at);
      break;
    case ZPS_MEMORY_PINNED:
      (void)cudaFreeHost(at);
      break;
    case ZPS_MEMORY_DEVICE:
      (void)cudaFree(at);
      break;
  }
}

zps_err_t allocate_on(zps_device *device, size_t len_bytes, zps_stream_t stream, void **at_p, zps_error *error) {
  const Current current(device_of(device));
  void *at = nullptr;
  const cudaError_t code = cudaMallocAsync(&at, len_bytes ? len_bytes : 1, static_cast<cudaStream_t>(stream));
  if (code == cudaSuccess) *at_p = at;
  return allocated(device, code, "device", len_bytes, error);
}

void release_on(zps_device *device, void *at, zps_stream_t stream) {
  const Current current(device_of(device));
  if (at) (void)cudaFreeAsync(at, static_cast<cudaStream_t>(stream));
}

zps_err_t told(cudaError_t code, zps_error *error, const char *what) {
  return code == cudaSuccess ? ZPS_OK : cuda_fail(error, code, what);
}

zps_err_t copy(zps_device *device, void *to, const void *from, size_t len_bytes, zps_stream_t stream,
               zps_error *error) {
  const Current current(device_of(device));
  return told(cudaMemcpyAsync(to, from, len_bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream)), error,
              "copying");
}

zps_err_t clear(zps_device *device, void *at, size_t len_bytes, zps_stream_t stream, zps_error *error) {
  const Current current(device_of(device));
  return told(cudaMemsetAsync(at, 0, len_bytes, static_cast<cudaStream_t>(stream)), error, "clearing");
}

bool is_of(const Device *device, const void *at) {
  cudaPointerAttributes attributes;
  if (cudaPointerGetAttributes(&attributes, at) != cudaSuccess) {
    (void)cudaGetLastError();
    return false;
  }
  return (attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged) &&
         attributes.device == device->index;
}

zps_err_t check(zps_device *device, const void *at, size_t len_bytes, zps_error *error) {
  const Current current(device_of(device));
  if (is_of(device_of(device), at) && is_of(device_of(device), static_cast<const char *>(at) + len_bytes - 1))
    return ZPS_OK;
  return zps_fail(error, ZPS_ERR_INVALID, "%zu bytes at %p are not in the memory of GPU %d", len_bytes, at,
                  device_of(device)->index);
}

zps_err_t stream_create(zps_device *device, zps_stream_t *stream_p, zps_error *error) {
  const Current current(device_of(device));
  cudaStream_t stream;
  const cudaError_t code = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (code == cudaSuccess) *stream_p = stream;
  return told(code, error, "a stream");
}

void stream_destroy(zps_device *device, zps_stream_t stream) {
  const Current current(device_of(device));
  if (stream) (void)cudaStreamDestroy(static_cast<cudaStream_t>(stream));
}

zps_err_t event_create(zps_device *device, zps_event **event_p, zps_error *error) {
  const Current current(device_of(device));
  zps_event *const made = new (std::nothrow) zps_event;
  if (!made) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for an event");
  const cudaError_t code = cudaEventCreateWithFlags(&made->event, cudaEventDisableTiming);
  if (code != cudaSuccess) {
    delete made;
    return cuda_fail(error, code, "an event");
  }
  *event_p = made;
  return ZPS_OK;
}

void event_destroy(zps_device *device, zps_event *event) {
  const Current current(device_of(device));
  if (!event) return;
  (void)cudaEventDestroy(event->event);
  delete event;
}

zps_err_t event_record(zps_device *device, zps_event *event, zps_stream_t stream, zps_error *error) {
  const Current current(device_of(device));
  return told(cudaEventRecord(event->event, static_cast<cudaStream_t>(stream)), error, "recording an event");
}

zps_err_t event_query(zps_device *device, zps_event *event, zps_error *error) {
  const Current current(device_of(device));
  const cudaError_t code = cudaEventQuery(event->event);
  return code == cudaErrorNotReady ? ZPS_ERR_AGAIN : told(code, error, "work before an event");
}

zps_err_t event_sync(zps_device *device, zps_event *event, zps_error *error) {
  const Current current(device_of(device));
  return told(cudaEventSynchronize(event->event), error, "work before an event");
}

zps_err_t stream_wait(zps_device *device, zps_stream_t stream, zps_event *event, zps_error *error) {
  const Current current(device_of(device));
  return told(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), event->event, 0), error, "waiting for an event");
}

#ifdef ZPS_EMU
zps_err_t stream_wait_word(zps_device *, zps_stream_t stream, const uint32_t *word, uint32_t value, zps_error *) {
  zps_emu::wait_for_word(static_cast<cudaStream_t>(stream), word, value);
  return ZPS_OK;
}

zps_err_t export_memory(zps_device *, void *base, size_t len_bytes, zps_device_export *export_p, zps_error *error) {
  size_t offset;
  const int fd = zps_emu::export_memory(base, &offset);
  if (fd < 0) return zps_fail(error, ZPS_ERR_INVALID, "%p is no emulated device memory", base);
  *export_p = zps_device_export();
  export_p->dmabuf_fd = fd;
  export_p->offset = offset;
  export_p->len_bytes = len_bytes;
  return ZPS_OK;
}

/* How much of the allocation lies from `at` on. */
bool memory_behind(const void *at, size_t *len_bytes_p) {
  *len_bytes_p = zps_emu::memory_behind(at);
  return *len_bytes_p > 0;
}
#else
/* Of the driver. Pinned memory has one address on both sides. */
zps_err_t stream_wait_word(zps_device *device, zps_stream_t stream, const uint32_t *word, uint32_t value,
                           zps_error *error) {
  typedef int (*wait_value_t)(void *stream, unsigned long long address, uint32_t value, unsigned flags);
  enum { GREATER_OR_EQUAL = 0 }; /* cyclically */
  const Current current(device_of(device));
  void *const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  void *symbol = driver ? dlsym(driver, "cuStreamWaitValue32_v2") : nullptr;
  if (driver && !symbol) symbol = dlsym(driver, "cuStreamWaitValue32");
  zps_err_t result = ZPS_OK;
  if (!symbol) {
    result = zps_fail(error, ZPS_ERR_UNSUPPORTED, "the driver of GPU %d has no streams that wait for memory",
                      device_of(device)->index);
  } else {
    const int code =
        reinterpret_cast<wait_value_t>(symbol)(stream, reinterpret_cast<uintptr_t>(word), value, GREATER_OR_EQUAL);
    if (code != 0)
      result =
          zps_fail(error, ZPS_ERR_UNSUPPORTED, "GPU %d: its driver does not let a stream wait for memory (error %d)",
                   device_of(device)->index, code);
  }
  if (driver) dlclose(driver);
  return result;
}

/* Of the driver, which exports whole pages; found at run time, because only newer drivers have it. */
zps_err_t export_memory(zps_device *device, void *base, size_t len_bytes, zps_device_export *export_p,
                        zps_error *error) {
  typedef int (*get_handle_t)(void *handle, unsigned long long address, size_t len, int type, unsigned long long flags);
  typedef int (*get_range_t)(unsigned long long *base, size_t *len, unsigned long long address);
  enum { DMA_BUF_FD = 1 };
  const Current current(device_of(device));
  void *const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  const get_handle_t get_handle =
      driver ? reinterpret_cast<get_handle_t>(dlsym(driver, "cuMemGetHandleForAddressRange")) : nullptr;
  const get_range_t get_range =
      driver ? reinterpret_cast<get_range_t>(dlsym(driver, "cuMemGetAddressRange_v2")) : nullptr;
  zps_err_t result = ZPS_ERR_UNSUPPORTED;
  if (!get_handle || !get_range) {
    zps_fail(error, result, "the driver of GPU %d exports no memory: 11.7 or newer does", device_of(device)->index);
  } else {
    unsigned long long start = 0;
    size_t len = 0;
    const unsigned long long address = reinterpret_cast<uintptr_t>(base);
    int fd = -1, code = get_range(&start, &len, address);
    if (code == 0 && (address - start > len || len_bytes > len - (address - start)))
      result = zps_fail(error, ZPS_ERR_INVALID, "%zu bytes at %p reach beyond their allocation on GPU %d", len_bytes,
                        base, device_of(device)->index);
    else if (code == 0 && (code = get_handle(&fd, start, len, DMA_BUF_FD, 0)) == 0)
      result = ZPS_OK;
    if (code != 0)
      zps_fail(error, result, "GPU %d: its driver refuses to export memory as a dmabuf (error %d)",
               device_of(device)->index, code);
    if (result == ZPS_OK) {
      *export_p = zps_device_export();
      export_p->dmabuf_fd = fd;
      export_p->offset = address - start;
      export_p->len_bytes = len_bytes;
      export_p->index = device_of(device)->index;
    }
  }
  if (driver) dlclose(driver);
  return result;
}

/* How much of the allocation lies from `at` on, as the driver knows. */
bool memory_behind(const void *at, size_t *len_bytes_p) {
  typedef int (*get_range_t)(unsigned long long *base, size_t *len, unsigned long long address);
  void *const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  const get_range_t get_range =
      driver ? reinterpret_cast<get_range_t>(dlsym(driver, "cuMemGetAddressRange_v2")) : nullptr;
  const unsigned long long address = reinterpret_cast<uintptr_t>(at);
  unsigned long long start = 0;
  size_t len = 0;
  const bool is_known = get_range && get_range(&start, &len, address) == 0;
  if (is_known) *len_bytes_p = len - static_cast<size_t>(address - start);
  if (driver) dlclose(driver);
  return is_known;
}
#endif

static_assert(sizeof(cudaIpcMemHandle_t) == ZPS_DEVICE_HANDLE_BYTES, "handles are passed on as bytes");

zps_err_t cannot_share(zps_device *device, cudaError_t code, const char *what, zps_error *error) {
  (void)cudaGetLastError();
  return zps_fail(error, ZPS_ERR_UNSUPPORTED, "GPU %d: %s: %s", device_of(device)->index, what,
                  cudaGetErrorString(code));
}

zps_err_t share_memory(zps_device *device, void *base, unsigned char *handle, zps_error *error) {
  const Current current(device_of(device));
  cudaIpcMemHandle_t made;
  const cudaError_t code = cudaIpcGetMemHandle(&made, base);
  if (code != cudaSuccess) return cannot_share(device, code, "memory cannot be shared with other processes", error);
  std::memcpy(handle, &made, sizeof made);
  return ZPS_OK;
}

zps_err_t attach_memory(zps_device *device, const unsigned char *handle, size_t len_bytes, void **at_p,
                        zps_error *error) {
  const Current current(device_of(device));
  cudaIpcMemHandle_t given;
  void *at = nullptr;
  std::memcpy(&given, handle, sizeof given);
  const cudaError_t code = cudaIpcOpenMemHandle(&at, given, cudaIpcMemLazyEnablePeerAccess);
  if (code != cudaSuccess) return cannot_share(device, code, "another process's memory is out of reach", error);
  size_t there = 0;
  if (!memory_behind(at, &there) || there < len_bytes) {
    (void)cudaIpcCloseMemHandle(at);
    return zps_fail(error, ZPS_ERR_INVALID, "GPU %d: another process shares %zu bytes: must be %zu or more",
                    device_of(device)->index, there, len_bytes);
  }
  *at_p = at;
  return ZPS_OK;
}

void detach_memory(zps_device *device, void *at) {
  const Current current(device_of(device));
  (void)cudaIpcCloseMemHandle(at);
}

#ifdef ZPS_EMU
cudaError_t load_kernels() {
  return cudaSuccess;
}
#else
/* The driver would load a kernel when it is launched first, and wait until nothing runs on the device: for ever, where
 * a stream waits for the request whose work that kernel is. The first memory of a stream makes a pool, likewise. */
cudaError_t load_kernels() {
  cudaError_t code = cudaSuccess;
  for (const Kernel *kernel = all_kernels; kernel && code == cudaSuccess; kernel = kernel->next) {
    cudaFuncAttributes attributes;
    code = cudaFuncGetAttributes(&attributes, kernel->function);
  }
  void *memory = nullptr;
  cudaStream_t stream = nullptr;
  if (code == cudaSuccess) code = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (code == cudaSuccess) code = cudaMallocAsync(&memory, 1, stream);
  if (code == cudaSuccess) code = cudaFreeAsync(memory, stream);
  if (stream) (void)cudaStreamDestroy(stream);
  return code;
}
#endif

const zps_device_ops ops = {"cuda",
                            close,
                            allocate,
                            release,
                            allocate_on,
                            release_on,
                            copy,
                            clear,
                            check,
                            stream_create,
                            stream_destroy,
                            event_create,
                            event_destroy,
                            event_record,
                            event_query,
                            event_sync,
                            stream_wait,
                            export_memory,
                            encoder_create,
                            encoder_destroy,
                            encoder_scan,
                            encoder_merge,
                            encoder_finish,
                            encoder_write,
                            decoder_create,
                            decoder_destroy,
                            decoder_dense,
                            decoder_rows,
                            decoder_finish,
                            selector_create,
                            selector_destroy,
                            selector_add,
                            selector_sample,
                            selector_pick,
                            selector_finish,
                            selector_clear,
                            hash_rows,
                            encoder_hash,
                            encoder_hashed,
                            share_memory,
                            attach_memory,
                            detach_memory,
                            stream_wait_word,
                            poly1305};

}  // namespace
}  // namespace zps

extern "C" __attribute__((visibility("default"))) zps_err_t zps_cuda_device_open(unsigned abi, unsigned index,
                                                                                 zps_device **device_p,
                                                                                 zps_error *error) {
  if (abi != ZPS_DEVICE_ABI)
    return zps_fail(error, ZPS_ERR_VERSION,
                    "libzenps_cuda.so has device interface %d, zenps %u: install both of one release", ZPS_DEVICE_ABI,
                    abi);
  int n_devices = 0, n_multiprocessors = 0;
  cudaError_t code = cudaGetDeviceCount(&n_devices);
  if (code != cudaSuccess || n_devices == 0) {
    (void)cudaGetLastError();
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "this host has no usable GPU: %s", cudaGetErrorString(code));
  }
  if (index >= static_cast<unsigned>(n_devices))
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "there is no GPU %u: this host has %d", index, n_devices);
  code = cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount, static_cast<int>(index));
  if (code != cudaSuccess) return zps::cuda_fail(error, code, "asking a device for its size");
  {
    zps::Device device = {};
    device.index = static_cast<int>(index);
    const zps::Current current(&device);
    code = zps::load_kernels();
  }
  if (code != cudaSuccess) return zps::cuda_fail(error, code, "loading kernels");
  zps::Device *const made = new (std::nothrow) zps::Device;
  if (!made) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for a device");
  made->base.ops = &zps::ops;
  made->index = static_cast<int>(index);
  if (cudaDeviceGetPCIBusId(made->base.pci_address, sizeof made->base.pci_address, made->index) != cudaSuccess) {
    (void)cudaGetLastError();
    made->base.pci_address[0] = '\0';
  }
  made->grid.blocks_max = static_cast<zps::u32>(n_multiprocessors) * zps::BLOCKS_PER_MULTIPROCESSOR;
  *device_p = &made->base;
  return ZPS_OK;
}
