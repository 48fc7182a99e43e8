/*
 * A device: memory that gradients live in apart from the host's, and the kernels that code them there. One vtable,
 * through which alone the rest of zenps sees CUDA: libzenps_cuda.so, loaded when a job asks for a GPU, implements it.
 * Gradients in host memory do not pass here; common/codec codes them, and tests have a device over host memory that
 * calls it, as the reference for all others (tests/support/device_cpu.h).
 *
 * Streams: work is submitted to the stream that the caller gives (a cudaStream_t; NULL: the default one), in the order
 * of the calls, and no call waits for it. The report of a *_finish() function is there once the caller knows that the
 * stream got there: by an event, or its own means. Scratch memory is allocated and freed in the order of the stream,
 * too.
 *
 * Pointers named on_device point to memory of the device that the object belongs to; all others point to host memory.
 * Arguments are borrowed during the call, memory on the device and pinned memory until the stream is through with the
 * work.
 *
 * Threads: an object (device, encoder, decoder) is used by one thread at a time, different ones by different threads.
 *
 * Bytes: an encoder writes the bytes of zps_encoder_write(), and sums are those of zps_reduce(), bit for bit.
 */
#ifndef ZPS_GPU_DEVICE_H
#define ZPS_GPU_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/codec/codec.h"
#include "common/codec/encode.h"
#include "common/codec/partition.h"

enum zps_memory {
  ZPS_MEMORY_HOST = 0,
  ZPS_MEMORY_PINNED = 1, /* of the host, and within the device's reach */
  ZPS_MEMORY_DEVICE = 2,
};

typedef void *zps_stream_t;
struct zps_device;
struct zps_event;

/* The description by which a fabric reaches device memory by itself. */
struct zps_device_export {
  int dmabuf_fd;   /* the caller's to close; -1: registered by its address */
  uint64_t offset; /* of the memory in the dmabuf */
  uint64_t len_bytes;
  int index; /* of the device */
};

enum { ZPS_DEVICE_HANDLE_BYTES = 64 }; /* of share_memory() */

/* One partition's slice, as zps_encoder_choose() tells of it. */
struct zps_device_slice {
  uint16_t codec;       /* enum zps_codec */
  uint16_t value_codec; /* the input's; raw where sums of halves are no halves, and travel as floats (encode.h) */
  uint32_t nnz;
  uint64_t len_bytes;
};

/* One slice to be decoded or added: the sizes are checked by zps_slice_check_sizes(), the bytes by the device. */
struct zps_device_view {
  uint32_t codec, value_codec, partition, nnz; /* enum zps_codec, enum zps_value_codec */
  uint64_t len_bytes;
  const void *payload_on_device; /* 8-byte aligned, and readable up to the next multiple of 8 bytes */
};

/* Algorithm 1's parameters and statistics (hierarchical.h). */
struct zps_device_hashing {
  uint32_t k;      /* 0: 3 */
  uint64_t r1, r2; /* slots per partition; 0: 2 * n / n_parts, and r1 / 10 */
  uint64_t seed;   /* of h_1..h_k */
};
struct zps_device_hashed {
  uint64_t parallel, serial, lost_races;
};

/* Error feedback (worker/select/feedback.h) over n values of f32 or f64. */
struct zps_device_feedback {
  enum zps_dtype dtype;
  uint64_t n; /* below 2^31 */
  double momentum, decay;
  void *residual_on_device;
  void *velocity_on_device; /* NULL without momentum */
};

enum zps_cut_kind {
  ZPS_CUT_THRESHOLD = 1, /* all from a magnitude on (worker/select/magnitude.h), at least 1: no zeros */
  ZPS_CUT_TOPK = 2,      /* the k greatest; of equal ones the first */
  ZPS_CUT_SAMPLED = 3,   /* all from the k-th greatest magnitude of a sample on */
  ZPS_CUT_BUCKETS = 4,   /* the k greatest of each `bucket` values; of a shorter last one its share, rounded up */
};
struct zps_device_cut {
  enum zps_cut_kind kind;
  uint64_t magnitude;
  uint64_t k;
  uint64_t bucket;
  uint64_t n_sample, seed, step; /* the sample is that of zps_estimate_sample() */
};
struct zps_device_selected {
  uint64_t n;         /* entries */
  uint64_t magnitude; /* the least that was picked; 0 with ZPS_CUT_BUCKETS, where each bucket has its own */
};

/* Memory whose tag poly1305() makes. */
enum { ZPS_DEVICE_KEY_BYTES = 32, ZPS_DEVICE_TAG_BYTES = 16 };
struct zps_device_tag {
  const void *at_on_device; /* 8-byte aligned, and readable up to the next multiple of 8 bytes */
  uint64_t len_bytes;
  uint64_t first_tile; /* for the device alone */
  unsigned char tag[ZPS_DEVICE_TAG_BYTES];
};

struct zps_device_encoder;
struct zps_device_decoder;
struct zps_device_selector;

struct zps_device_ops {
  const char *kind; /* "cuda" */
  void (*close)(struct zps_device *device);

  /* Memory. `copy` and `clear` are submitted; host memory that is not pinned may be copied at once. */
  zps_err_t (*allocate)(struct zps_device *device, enum zps_memory memory, size_t len_bytes, void **memory_p,
                        struct zps_error *error);
  void (*release)(struct zps_device *device, enum zps_memory memory, void *at); /* NULL is allowed */
  /* Memory of the device that comes and goes in the order of a stream. These alone never make the device wait, as
   * `allocate` and `release` may; but a fabric cannot reach such memory. `release` frees it, too. */
  zps_err_t (*allocate_on)(struct zps_device *device, size_t len_bytes, zps_stream_t stream, void **at_on_device_p,
                           struct zps_error *error);
  void (*release_on)(struct zps_device *device, void *at_on_device, zps_stream_t stream); /* NULL is allowed */
  zps_err_t (*copy)(struct zps_device *device, void *to, const void *from, size_t len_bytes, zps_stream_t stream,
                    struct zps_error *error);
  zps_err_t (*clear)(struct zps_device *device, void *at_on_device, size_t len_bytes, zps_stream_t stream,
                     struct zps_error *error);
  /* ZPS_ERR_INVALID where [at, at + len_bytes) is not memory of this device. len_bytes is at least 1. */
  zps_err_t (*check)(struct zps_device *device, const void *at_on_device, size_t len_bytes, struct zps_error *error);

  /* Order. query: ZPS_ERR_AGAIN while the stream has not got there. sync blocks the calling thread alone. */
  zps_err_t (*stream_create)(struct zps_device *device, zps_stream_t *stream_p, struct zps_error *error);
  void (*stream_destroy)(struct zps_device *device, zps_stream_t stream);
  zps_err_t (*event_create)(struct zps_device *device, struct zps_event **event_p, struct zps_error *error);
  void (*event_destroy)(struct zps_device *device, struct zps_event *event);
  zps_err_t (*event_record)(struct zps_device *device, struct zps_event *event, zps_stream_t stream,
                            struct zps_error *error);
  zps_err_t (*event_query)(struct zps_device *device, struct zps_event *event, struct zps_error *error);
  zps_err_t (*event_sync)(struct zps_device *device, struct zps_event *event, struct zps_error *error);
  zps_err_t (*stream_wait)(struct zps_device *device, zps_stream_t stream, struct zps_event *event,
                           struct zps_error *error);

  /* Registration with the fabric. ZPS_ERR_UNSUPPORTED where neither the driver nor the device can export memory. */
  zps_err_t (*export_memory)(struct zps_device *device, void *base_on_device, size_t len_bytes,
                             struct zps_device_export *export_p, struct zps_error *error);

  /* Encoding, in the order scan or merge, finish, write. `allowed` as in zps_codec_choose(), with COO or BITMAP. */
  zps_err_t (*encoder_create)(struct zps_device *device, struct zps_device_encoder **encoder_p,
                              struct zps_error *error);
  void (*encoder_destroy)(struct zps_device_encoder *encoder);
  /* Finds, partitions and orders the rows of `input` (values and rows on the device), and chooses codecs. A partition
   * of hashed rows, here and below, has its table on the device as well as on the host (partition_table.h). */
  zps_err_t (*encoder_scan)(struct zps_device_encoder *encoder, const struct zps_encode_input *input, unsigned allowed,
                            zps_stream_t stream, struct zps_error *error);
  /* Adds up the contributions of the ranks of a host, in the order of `views`, which holds those of the first rank in
   * order of partitions, then those of the second, and so on. `shape` has everything but values and rows.
   * ZPS_ERR_UNSUPPORTED: halves. */
  zps_err_t (*encoder_merge)(struct zps_device_encoder *encoder, const struct zps_encode_input *shape,
                             const struct zps_device_view *views, unsigned n_ranks, unsigned allowed,
                             zps_stream_t stream, struct zps_error *error);
  /* Once the scan is done: part->n_parts slices. ZPS_ERR_AGAIN: its scratch memory was too small for so many rows, and
   * is larger next time: scan again. ZPS_ERR_INVALID names the first bad row number, ZPS_ERR_PROTOCOL a bad view. */
  zps_err_t (*encoder_finish)(struct zps_device_encoder *encoder, const struct zps_device_slice **slices_p,
                              struct zps_error *error);
  /* Writes partition p's slice to outs_on_device[p] (8-byte aligned, with room up to the next multiple of 8 bytes;
   * NULL: left out). */
  zps_err_t (*encoder_write)(struct zps_device_encoder *encoder, void *const *outs_on_device, zps_stream_t stream,
                             struct zps_error *error);

  /* Decoding: several views of different partitions at once. */
  zps_err_t (*decoder_create)(struct zps_device *device, struct zps_device_decoder **decoder_p,
                              struct zps_error *error);
  void (*decoder_destroy)(struct zps_device_decoder *decoder);
  /* Writes the views' rows into a dense array, which the caller has cleared; leaves other rows as they are. */
  zps_err_t (*decoder_dense)(struct zps_device_decoder *decoder, const struct zps_partition *part, uint32_t width,
                             enum zps_dtype dtype, const struct zps_device_view *views, unsigned n_views,
                             void *dense_on_device, zps_stream_t stream, struct zps_error *error);
  /* Writes the views' rows in ascending order; there is room for all of them. */
  zps_err_t (*decoder_rows)(struct zps_device_decoder *decoder, const struct zps_partition *part, uint32_t width,
                            enum zps_dtype dtype, const struct zps_device_view *views, unsigned n_views,
                            int64_t *rows_on_device, void *values_on_device, zps_stream_t stream,
                            struct zps_error *error);
  /* Once the work is done: ZPS_ERR_PROTOCOL when a view's bytes are no set of its nnz indices; the result is then
   * invalid, but no other memory was touched. */
  zps_err_t (*decoder_finish)(struct zps_device_decoder *decoder, struct zps_error *error);

  /* Selection by magnitude, as worker/sparsify does it in host memory. May be NULL. */
  zps_err_t (*selector_create)(struct zps_device *device, struct zps_device_selector **selector_p,
                               struct zps_error *error);
  void (*selector_destroy)(struct zps_device_selector *selector);
  /* Adds the gradient, times `factor`, to the residual. */
  zps_err_t (*selector_add)(struct zps_device_selector *selector, const struct zps_device_feedback *feedback,
                            const void *gradient_on_device, double factor, zps_stream_t stream,
                            struct zps_error *error);
  /* Writes the sample of cut->n_sample, seed and step, of what the residual is going to be with the gradient, times
   * `factor`. */
  zps_err_t (*selector_sample)(struct zps_device_selector *selector, const struct zps_device_feedback *feedback,
                               const struct zps_device_cut *cut, const void *gradient_on_device, double factor,
                               void *sample_on_device, zps_stream_t stream, struct zps_error *error);
  /* Lists entries of the residual, ascending, up to `capacity`. */
  zps_err_t (*selector_pick)(struct zps_device_selector *selector, const struct zps_device_feedback *feedback,
                             const struct zps_device_cut *cut, int64_t *ids_on_device, void *values_on_device,
                             uint64_t capacity, zps_stream_t stream, struct zps_error *error);
  /* Call once the entries are picked. ZPS_ERR_TRUNCATED: there are selected_p->n entries, more than the capacity. */
  zps_err_t (*selector_finish)(struct zps_device_selector *selector, struct zps_device_selected *selected_p,
                               struct zps_error *error);
  /* Takes n entries out of the residual and the velocity. */
  zps_err_t (*selector_clear)(struct zps_device_selector *selector, const struct zps_device_feedback *feedback,
                              const int64_t *ids_on_device, uint64_t n, zps_stream_t stream, struct zps_error *error);

  /* Zen's Algorithm 1 over n distinct rows of the partition function: partition p's come to lie, in any order, at
   * out[starts[p] .. starts[p + 1]). Repeated with more serial memory until none overflows, and therefore waits for the
   * stream: for comparison; on the data path it is encoder_hash(). `hashed_p` may be NULL. */
  zps_err_t (*hash)(struct zps_device *device, const struct zps_device_hashing *hashing,
                    const struct zps_partition *part, const uint64_t *rows_on_device, uint64_t n,
                    uint64_t *out_on_device, uint64_t *starts_on_device, zps_stream_t stream,
                    struct zps_device_hashed *hashed_p, struct zps_error *error);

  /* As encoder_scan(): Algorithm 1 (input->hashing) deals the rows to their partitions, on the
   * data path: encoder_finish() says ZPS_ERR_AGAIN where a serial memory overflowed, too, which is larger next time.
   * Where `allowed` is ZPS_CODEC_ANY_ORDER, slices have them in the order in which it leaves them, else ascending. Rows
   * that a list repeats are added up before.
   * ZPS_ERR_UNSUPPORTED: 2^32 rows or more. */
  zps_err_t (*encoder_hash)(struct zps_device_encoder *encoder, const struct zps_encode_input *input, unsigned allowed,
                            zps_stream_t stream, struct zps_error *error);
  /* After encoder_finish(). */
  void (*encoder_hashed)(const struct zps_device_encoder *encoder, struct zps_device_hashed *hashed_p);

  /* Memory that `allocate` gave, for other processes of this host: attach_memory() maps it there, where the device
   * reaches this one's memory, until detach_memory(). It must not be freed meanwhile. ZPS_ERR_UNSUPPORTED: it cannot be
   * shared, or not be reached; ZPS_ERR_INVALID: there are less than len_bytes. All may make the device wait. */
  zps_err_t (*share_memory)(struct zps_device *device, void *base_on_device, unsigned char *handle,
                            struct zps_error *error);
  zps_err_t (*attach_memory)(struct zps_device *device, const unsigned char *handle, size_t len_bytes,
                             void **at_on_device_p, struct zps_error *error);
  void (*detach_memory)(struct zps_device *device, void *at_on_device);

  /* What is submitted to the stream after this runs when the word, in pinned memory, has come to `value`, or less than
   * 2^31 past it. ZPS_ERR_UNSUPPORTED where the device cannot. */
  zps_err_t (*stream_wait_word)(struct zps_device *device, zps_stream_t stream, const uint32_t *word, uint32_t value,
                                struct zps_error *error);

  /* Writes the Poly1305 (RFC 8439) of n pieces of memory, under one key of ZPS_DEVICE_KEY_BYTES, beside each. `tags` is
   * pinned memory, and the device's until the stream is through. */
  zps_err_t (*poly1305)(struct zps_device *device, const unsigned char *key, struct zps_device_tag *tags, uint32_t n,
                        zps_stream_t stream, struct zps_error *error);
};

/* An implementation's device begins with this. */
struct zps_device {
  const struct zps_device_ops *ops;
  char pci_address[20]; /* "0000:86:00.0"; "": not known */
};

/* Opens the device with number `index` of a library with the exports of libzenps_cuda.so; NULL: that one. The library
 * stays loaded. ZPS_ERR_UNSUPPORTED: this host has no such library, or no such device. */
zps_err_t zps_device_load(const char *library, unsigned index, struct zps_device **device_p,
                          struct zps_error *error) ZPS_MUSTCHECK;
void zps_device_close(struct zps_device *device); /* NULL is allowed */

/* The function that libzenps_cuda.so exports, under this name; another version is refused. */
#define ZPS_DEVICE_CUDA_LIBRARY "libzenps_cuda.so.0"
#define ZPS_DEVICE_CUDA_OPEN "zps_cuda_device_open"
#define ZPS_DEVICE_ABI 7
typedef zps_err_t (*zps_device_cuda_open_t)(unsigned abi, unsigned index, struct zps_device **device_p,
                                            struct zps_error *error);
zps_err_t zps_cuda_device_open(unsigned abi, unsigned index, struct zps_device **device_p,
                               struct zps_error *error) ZPS_MUSTCHECK;

#endif
