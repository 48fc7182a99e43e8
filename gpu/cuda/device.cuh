/* The device behind the vtable, and the parts that its objects share: errors, scratch memory, tables for the
 * kernels. */
#ifndef ZPS_GPU_CUDA_DEVICE_CUH
#define ZPS_GPU_CUDA_DEVICE_CUH

#include "gpu/cuda/kernels.cuh"

namespace zps {

struct Device {
  zps_device base; /* first */
  int index;
  Grid grid;
};

inline Device *device_of(zps_device *device) {
  return reinterpret_cast<Device *>(device);
}

/* CUDA returned `code` during the operation named by `what`. */
zps_err_t cuda_fail(zps_error *error, cudaError_t code, const char *what);
/* The error of the launches before, if any. */
zps_err_t check_launches(zps_error *error, const char *what);

/* Makes the device the calling thread's for a while. */
class Current {
 public:
  explicit Current(const Device *device);
  ~Current();
  Current(const Current &) = delete;
  Current &operator=(const Current &) = delete;

 private:
  int before_;
};

/* Hands out pieces of one allocation. With no memory it only adds up how much is needed. */
class Pieces {
 public:
  explicit Pieces(void *memory) : memory_(static_cast<char *>(memory)), used_(0) {}
  template <typename T>
  T *take(u64 n) {
    T *const at = memory_ ? reinterpret_cast<T *>(memory_ + used_) : nullptr;
    used_ += (n * sizeof(T) + 255) & ~255ull;
    return at;
  }
  u64 used() const { return used_; }

 private:
  char *memory_;
  u64 used_;
};

/* Memory that grows and is kept: on the device, in the order of the stream. */
struct Scratch {
  void *memory = nullptr;
  u64 len_bytes = 0;
};
zps_err_t scratch_need(Scratch *scratch, u64 len_bytes, cudaStream_t stream, zps_error *error);
void scratch_release(Scratch *scratch);

/* Lays out scratch memory as take(zeroed, pieces) asks for it, which is called twice: to add up, and to keep. The
 * pieces taken of `zeroed` are cleared. */
template <typename Take>
zps_err_t scratch_lay_out(Scratch *scratch, cudaStream_t stream, zps_error *error, const Take &take) {
  u64 zeroed_bytes = 0;
  for (unsigned pass = 0; pass < 2; pass++) {
    char *const memory = pass ? static_cast<char *>(scratch->memory) : nullptr;
    Pieces zeroed(memory), pieces(pass ? memory + zeroed_bytes : nullptr);
    take(&zeroed, &pieces);
    zeroed_bytes = zeroed.used();
    if (pass) break;
    const zps_err_t code = scratch_need(scratch, zeroed_bytes + pieces.used(), stream, error);
    if (code != ZPS_OK) return code;
  }
  (void)cudaMemsetAsync(scratch->memory, 0, zeroed_bytes, stream);
  return ZPS_OK;
}

/* Pinned memory for the device's reports; freed by cudaFreeHost(). */
zps_err_t pinned_new(void **memory_p, u64 len_bytes, zps_error *error);

/* A table that the host fills and kernels read: pinned memory, with its copy on the device. */
struct Table {
  void *host = nullptr;
  Scratch device;
  u64 len_bytes = 0;
  cudaEvent_t copied = nullptr;
};
/* Room for `len_bytes`; waits until the last copy, if it is still to come, was made. */
zps_err_t table_open(Table *table, u64 len_bytes, cudaStream_t stream, zps_error *error);
/* Copies the entries that were filled in. */
zps_err_t table_send(Table *table, u64 len_bytes, cudaStream_t stream, zps_error *error);
void table_release(Table *table);

/* Bytes of a raw value on the wire, which is a float for halves; 0 for a number that is no dtype. */
u64 value_size(enum zps_dtype dtype);
bool values_suit(u32 value_codec, enum zps_dtype dtype);

/* The host's description of several views, in tables for the kernels. */
zps_err_t reading_open(Reading *reading, Table *table, const zps_partition &part, u32 width, enum zps_dtype dtype,
                       const zps_device_view *views, u32 n_views, cudaStream_t stream, zps_error *error);
/* Scratch for reading_open()'s reading, and for read_indices(). */
struct ReadingStates {
  Tickets *tickets;
  u64 *words, *blocks;
};
void reading_take(Reading *reading, ReadingStates *states, Pieces *zeroed, Pieces *pieces);
zps_err_t reading_fail(zps_error *error, const zps_device_view *views, u32 bad);

zps_err_t encoder_create(zps_device *device, zps_device_encoder **encoder_p, zps_error *error);
void encoder_destroy(zps_device_encoder *encoder);
zps_err_t encoder_scan(zps_device_encoder *encoder, const zps_encode_input *input, unsigned allowed,
                       zps_stream_t stream, zps_error *error);
zps_err_t encoder_hash(zps_device_encoder *encoder, const zps_encode_input *input, unsigned allowed,
                       zps_stream_t stream, zps_error *error);
void encoder_hashed(const zps_device_encoder *encoder, zps_device_hashed *hashed_p);
zps_err_t encoder_merge(zps_device_encoder *encoder, const zps_encode_input *shape, const zps_device_view *views,
                        unsigned n_ranks, unsigned allowed, zps_stream_t stream, zps_error *error);
zps_err_t encoder_finish(zps_device_encoder *encoder, const zps_device_slice **slices_p, zps_error *error);
zps_err_t encoder_write(zps_device_encoder *encoder, void *const *outs_on_device, zps_stream_t stream,
                        zps_error *error);
zps_err_t decoder_create(zps_device *device, zps_device_decoder **decoder_p, zps_error *error);
void decoder_destroy(zps_device_decoder *decoder);
zps_err_t decoder_dense(zps_device_decoder *decoder, const zps_partition *part, uint32_t width, enum zps_dtype dtype,
                        const zps_device_view *views, unsigned n_views, void *dense_on_device, zps_stream_t stream,
                        zps_error *error);
zps_err_t decoder_rows(zps_device_decoder *decoder, const zps_partition *part, uint32_t width, enum zps_dtype dtype,
                       const zps_device_view *views, unsigned n_views, int64_t *rows_on_device, void *values_on_device,
                       zps_stream_t stream, zps_error *error);
zps_err_t decoder_finish(zps_device_decoder *decoder, zps_error *error);
zps_err_t poly1305(zps_device *device, const unsigned char *key, zps_device_tag *tags, uint32_t n, zps_stream_t stream,
                   zps_error *error);
zps_err_t selector_create(zps_device *device, zps_device_selector **selector_p, zps_error *error);
void selector_destroy(zps_device_selector *selector);
zps_err_t selector_add(zps_device_selector *selector, const zps_device_feedback *feedback,
                       const void *gradient_on_device, double factor, zps_stream_t stream, zps_error *error);
zps_err_t selector_sample(zps_device_selector *selector, const zps_device_feedback *feedback, const zps_device_cut *cut,
                          const void *gradient_on_device, double factor, void *sample_on_device, zps_stream_t stream,
                          zps_error *error);
zps_err_t selector_pick(zps_device_selector *selector, const zps_device_feedback *feedback, const zps_device_cut *how,
                        int64_t *ids_on_device, void *values_on_device, uint64_t capacity, zps_stream_t stream,
                        zps_error *error);
zps_err_t selector_finish(zps_device_selector *selector, zps_device_selected *selected_p, zps_error *error);
zps_err_t selector_clear(zps_device_selector *selector, const zps_device_feedback *feedback,
                         const int64_t *ids_on_device, uint64_t n, zps_stream_t stream, zps_error *error);
zps_err_t hash_rows(zps_device *device, const zps_device_hashing *hashing, const zps_partition *part,
                    const uint64_t *rows_on_device, uint64_t n, uint64_t *out_on_device, uint64_t *starts_on_device,
                    zps_stream_t stream, zps_device_hashed *hashed_p, zps_error *error);

}  // namespace zps

#endif
