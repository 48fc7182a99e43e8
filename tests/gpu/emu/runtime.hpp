/*
 * As much of the CUDA runtime as libzenps_cuda.so uses, over host memory.
 *
 * Device memory has a page of its own at either end that no access may touch, and all of it is closed to the host
 * except while the emulation runs a kernel or copy: dereferencing a device pointer is a fault, as on a machine with a
 * GPU. Work on a stream runs when a call waits for the stream or for an event in it, or asks whether it is done.
 */
#ifndef ZPS_GPU_EMU_RUNTIME_HPP
#define ZPS_GPU_EMU_RUNTIME_HPP

#include <cstddef>
#include <functional>

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct uint4 {
  unsigned x, y, z, w;
} __attribute__((aligned(16)));

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidDevice = 101,
  cudaErrorNotReady = 600,
  cudaErrorLaunchFailure = 719,
  cudaErrorNotSupported = 801
};
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
enum cudaMemoryType { cudaMemoryTypeUnregistered = 0, cudaMemoryTypeDevice = 2, cudaMemoryTypeManaged = 3 };
struct cudaPointerAttributes {
  cudaMemoryType type;
  int device;
};
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount = 16 };
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaHostAllocDefault = 0 };
enum { cudaIpcMemLazyEnablePeerAccess = 1 };
struct cudaIpcMemHandle_t {
  char reserved[64];
};
typedef struct zps_emu_stream *cudaStream_t;
typedef struct zps_emu_event *cudaEvent_t;

cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceGetPCIBusId(char *address, int len, int device);
cudaError_t cudaMalloc(void **memory, size_t len);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *at);
cudaError_t cudaFree(void *memory);
cudaError_t cudaMallocAsync(void **memory, size_t len, cudaStream_t stream);
cudaError_t cudaFreeAsync(void *memory, cudaStream_t stream);
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *memory);
cudaError_t cudaIpcOpenMemHandle(void **memory, cudaIpcMemHandle_t handle, unsigned flags);
cudaError_t cudaIpcCloseMemHandle(void *memory);
cudaError_t cudaHostAlloc(void **memory, size_t len, unsigned flags);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t len, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *to, int byte, size_t len, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaGetLastError();
const char *cudaGetErrorString(cudaError_t error);

namespace zps_emu {
/* A file that holds device memory, as a dmabuf of it would, and the memory's offset there: the caller closes it. */
int export_memory(const void *at, size_t *offset);
/* Bytes of device memory from here on; 0: it is none. */
size_t memory_behind(const void *at);
/* The stream's work stops here until the word has come to `value`, or less than 2^31 past it. */
void wait_for_word(cudaStream_t stream, const volatile unsigned *word, unsigned value);
/* Runs on the stream in its turn; its result is the stream's error. cudaErrorNotReady: it is not its turn yet, and runs
 * again when somebody waits or asks. */
void submit(cudaStream_t stream, std::function<cudaError_t()> work);
}  // namespace zps_emu

#endif
