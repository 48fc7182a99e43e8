/* Host memory behind the vtable of devices (gpu/device.h), over common/codec: the reference that devices are compared
 * with. Streams are not looked at: the work is done when a call returns. It has no selection, and no encoder_hash(),
 * whose slices are those of encoder_scan(), or the same in another order. */
#ifndef ZPS_TESTS_SUPPORT_DEVICE_CPU_H
#define ZPS_TESTS_SUPPORT_DEVICE_CPU_H

#include "common/base/workpool.h"
#include "gpu/device.h"

/* `pool` is borrowed until the device is closed, and may be NULL. */
zps_err_t zps_device_cpu_open(struct zps_workpool *pool, struct zps_device **device_p,
                              struct zps_error *error) ZPS_MUSTCHECK;

struct zps_device_cpu {
  struct zps_device base; /* first */
  struct zps_workpool *pool;
};

static inline struct zps_device_cpu *zps_device_cpu_of(struct zps_device *device) {
  return (struct zps_device_cpu *)device;
}

/* The vtable's coders (coder_cpu.c). */
zps_err_t zps_cpu_encoder_create(struct zps_device *device, struct zps_device_encoder **encoder_p,
                                 struct zps_error *error);
void zps_cpu_encoder_destroy(struct zps_device_encoder *encoder);
zps_err_t zps_cpu_encoder_scan(struct zps_device_encoder *encoder, const struct zps_encode_input *input,
                               unsigned allowed, zps_stream_t stream, struct zps_error *error);
zps_err_t zps_cpu_encoder_merge(struct zps_device_encoder *encoder, const struct zps_encode_input *shape,
                                const struct zps_device_view *views, unsigned n_ranks, unsigned allowed,
                                zps_stream_t stream, struct zps_error *error);
zps_err_t zps_cpu_encoder_finish(struct zps_device_encoder *encoder, const struct zps_device_slice **slices_p,
                                 struct zps_error *error);
zps_err_t zps_cpu_encoder_write(struct zps_device_encoder *encoder, void *const *outs, zps_stream_t stream,
                                struct zps_error *error);
zps_err_t zps_cpu_decoder_create(struct zps_device *device, struct zps_device_decoder **decoder_p,
                                 struct zps_error *error);
void zps_cpu_decoder_destroy(struct zps_device_decoder *decoder);
zps_err_t zps_cpu_decoder_dense(struct zps_device_decoder *decoder, const struct zps_partition *part, uint32_t width,
                                enum zps_dtype dtype, const struct zps_device_view *views, unsigned n_views,
                                void *dense, zps_stream_t stream, struct zps_error *error);
zps_err_t zps_cpu_decoder_rows(struct zps_device_decoder *decoder, const struct zps_partition *part, uint32_t width,
                               enum zps_dtype dtype, const struct zps_device_view *views, unsigned n_views,
                               int64_t *rows, void *values, zps_stream_t stream, struct zps_error *error);
zps_err_t zps_cpu_decoder_finish(struct zps_device_decoder *decoder, struct zps_error *error);
/* Its checksums (tag_cpu.c). */
zps_err_t zps_cpu_poly1305(struct zps_device *device, const unsigned char *key, struct zps_device_tag *tags, uint32_t n,
                           zps_stream_t stream, struct zps_error *error);

#endif
