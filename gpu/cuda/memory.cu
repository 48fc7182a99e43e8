#include <cstdlib>

#include "gpu/cuda/device.cuh"

namespace zps {

zps_err_t cuda_fail(zps_error *error, cudaError_t code, const char *what) {
  (void)cudaGetLastError(); /* it is reported here, not to the next caller that asks */
  return zps_fail(error, code == cudaErrorMemoryAllocation ? ZPS_ERR_NOMEM : ZPS_ERR_INTERNAL, "cuda: %s: %s", what,
                  cudaGetErrorString(code));
}

zps_err_t check_launches(zps_error *error, const char *what) {
  const cudaError_t code = cudaGetLastError();
  return code == cudaSuccess ? ZPS_OK : cuda_fail(error, code, what);
}

Current::Current(const Device *device) : before_(0) {
  if (cudaGetDevice(&before_) != cudaSuccess) before_ = device->index;
  if (before_ != device->index)
    (void)cudaSetDevice(device->index);
  else
    before_ = -1;
}

Current::~Current() {
  if (before_ >= 0) (void)cudaSetDevice(before_);
}

u64 value_size(enum zps_dtype dtype) {
  if (dtype == ZPS_DTYPE_F32 || zps_dtype_is_half(dtype)) return sizeof(float);
  return dtype == ZPS_DTYPE_F64 ? sizeof(double) : dtype == ZPS_DTYPE_U8;
}

bool values_suit(u32 value_codec, enum zps_dtype dtype) {
  if (zps_dtype_is_half(dtype) && !level_bits(value_codec))
    return value_codec == (dtype == ZPS_DTYPE_BF16 ? ZPS_VALUES_BF16 : ZPS_VALUES_F16);
  return value_codec == ZPS_VALUES_RAW ||
         (value_codec > ZPS_VALUES_RAW && value_codec <= ZPS_VALUES_QSGD8 && dtype != ZPS_DTYPE_U8);
}

zps_err_t scratch_need(Scratch *scratch, u64 len_bytes, cudaStream_t stream, zps_error *error) {
  if (len_bytes <= scratch->len_bytes) return ZPS_OK;
  len_bytes += len_bytes / 8; /* sizes that creep upwards do not allocate each time */
  if (scratch->memory) (void)cudaFreeAsync(scratch->memory, stream);
  *scratch = Scratch();
  void *memory;
  const cudaError_t code = cudaMallocAsync(&memory, len_bytes, stream);
  if (code != cudaSuccess) return cuda_fail(error, code, "scratch memory");
  scratch->memory = memory;
  scratch->len_bytes = len_bytes;
  return ZPS_OK;
}

void scratch_release(Scratch *scratch) {
  if (scratch->memory) (void)cudaFree(scratch->memory);
  *scratch = Scratch();
}

zps_err_t pinned_new(void **memory_p, u64 len_bytes, zps_error *error) {
  const cudaError_t code = cudaHostAlloc(memory_p, len_bytes, cudaHostAllocDefault);
  return code == cudaSuccess ? ZPS_OK : cuda_fail(error, code, "pinned memory");
}

zps_err_t table_open(Table *table, u64 len_bytes, cudaStream_t stream, zps_error *error) {
  if (!table->copied) {
    const cudaError_t code = cudaEventCreateWithFlags(&table->copied, cudaEventDisableTiming);
    if (code != cudaSuccess) return cuda_fail(error, code, "an event");
  } else {
    const cudaError_t code = cudaEventSynchronize(table->copied);
    if (code != cudaSuccess) return cuda_fail(error, code, "copying a table");
  }
  if (len_bytes > table->len_bytes) {
    (void)cudaFreeHost(table->host);
    table->host = nullptr;
    table->len_bytes = 0;
    const zps_err_t code = pinned_new(&table->host, len_bytes, error);
    if (code != ZPS_OK) return code;
    table->len_bytes = len_bytes;
  }
  return scratch_need(&table->device, len_bytes, stream, error);
}

zps_err_t table_send(Table *table, u64 len_bytes, cudaStream_t stream, zps_error *error) {
  cudaError_t code = cudaMemcpyAsync(table->device.memory, table->host, len_bytes, cudaMemcpyDefault, stream);
  if (code == cudaSuccess) code = cudaEventRecord(table->copied, stream);
  return code == cudaSuccess ? ZPS_OK : cuda_fail(error, code, "copying a table");
}

void table_release(Table *table) {
  if (table->copied) (void)cudaEventDestroy(table->copied);
  (void)cudaFreeHost(table->host);
  scratch_release(&table->device);
  *table = Table();
}

}  // namespace zps
