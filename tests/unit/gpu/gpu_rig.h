/* A device under test, and the way there and back. Includes cmocka.h's users' headers first. */
#ifndef ZPS_TESTS_GPU_GPU_RIG_H
#define ZPS_TESTS_GPU_GPU_RIG_H

#include <stdlib.h>
#include <string.h>

#include "gpu/device.h"

struct gpu_rig {
  struct zps_device *device;
  zps_stream_t stream;
  struct zps_event *event;
};

/* The error of the calls in gpu_ok(). */
static struct zps_error gpu_error;
#define gpu_ok(call)                                                 \
  do {                                                               \
    if ((call) != ZPS_OK) fail_msg("%s: %s", #call, gpu_error.text); \
  } while (0)

static inline void gpu_rig_open(struct gpu_rig *rig) {
  gpu_ok(rig->device->ops->stream_create(rig->device, &rig->stream, &gpu_error));
  gpu_ok(rig->device->ops->event_create(rig->device, &rig->event, &gpu_error));
}

static inline void gpu_rig_close(struct gpu_rig *rig) {
  rig->device->ops->event_destroy(rig->device, rig->event);
  rig->device->ops->stream_destroy(rig->device, rig->stream);
  zps_device_close(rig->device);
}

/* Waits for the submitted work. */
static inline void gpu_wait(struct gpu_rig *rig) {
  gpu_ok(rig->device->ops->event_record(rig->device, rig->event, rig->stream, &gpu_error));
  gpu_ok(rig->device->ops->event_sync(rig->device, rig->event, &gpu_error));
}

static inline void *gpu_new(struct gpu_rig *rig, size_t len_bytes) {
  void *at = NULL;
  gpu_ok(rig->device->ops->allocate(rig->device, ZPS_MEMORY_DEVICE, len_bytes, &at, &gpu_error));
  return at;
}

static inline void gpu_free(struct gpu_rig *rig, void *at) {
  rig->device->ops->release(rig->device, ZPS_MEMORY_DEVICE, at);
}

/* A copy on the device of `len_bytes` (NULL stays NULL); its room ends where they do. */
static inline void *gpu_upload(struct gpu_rig *rig, const void *from, size_t len_bytes) {
  if (!from) return NULL;
  void *const at = gpu_new(rig, len_bytes);
  gpu_ok(rig->device->ops->copy(rig->device, at, from, len_bytes, rig->stream, &gpu_error));
  gpu_wait(rig);
  return at;
}

static inline void *gpu_download(struct gpu_rig *rig, const void *from, size_t len_bytes) {
  void *const to = malloc(len_bytes + 1);
  assert_non_null(to);
  gpu_ok(rig->device->ops->copy(rig->device, to, from, len_bytes, rig->stream, &gpu_error));
  gpu_wait(rig);
  return to;
}

/* Slices in host memory, one for each partition. */
struct gpu_slices {
  uint32_t n_parts;
  struct zps_device_slice *slices;
  void **bytes;
};

static inline void gpu_slices_free(struct gpu_slices *slices) {
  for (uint32_t p = 0; p < slices->n_parts; p++) free(slices->bytes[p]);
  free(slices->bytes);
  free(slices->slices);
}

/* Writes the findings of a scan or a merge, and copies them back. */
static inline struct gpu_slices gpu_take_slices(struct gpu_rig *rig, struct zps_device_encoder *encoder,
                                                const struct zps_device_slice *slices, uint32_t n_parts) {
  struct gpu_slices taken = {
      .n_parts = n_parts, .slices = malloc(n_parts * sizeof *slices), .bytes = calloc(n_parts, sizeof(void *))};
  void **const outs = calloc(n_parts, sizeof *outs);
  assert_true(taken.slices && taken.bytes && outs);
  memcpy(taken.slices, slices, n_parts * sizeof *slices);
  for (uint32_t p = 0; p < n_parts; p++) outs[p] = gpu_new(rig, (slices[p].len_bytes + 7) & ~7ull);
  gpu_ok(rig->device->ops->encoder_write(encoder, outs, rig->stream, &gpu_error));
  gpu_wait(rig);
  for (uint32_t p = 0; p < n_parts; p++) {
    taken.bytes[p] = gpu_download(rig, outs[p], slices[p].len_bytes);
    gpu_free(rig, outs[p]);
  }
  free(outs);
  return taken;
}

/* A device's encoder_scan(), or encoder_hash(). */
typedef zps_err_t gpu_scan_fn(struct zps_device_encoder *encoder, const struct zps_encode_input *input,
                              unsigned allowed, zps_stream_t stream, struct zps_error *error);
/* Encodes a gradient in host memory; counts how often the scan had to be repeated. */
static inline struct gpu_slices gpu_encode_by(struct gpu_rig *rig, struct zps_device_encoder *encoder,
                                              gpu_scan_fn *scan, const struct zps_encode_input *input, unsigned allowed,
                                              unsigned *n_again) {
  const size_t row_bytes = input->width * zps_dtype_size(input->dtype);
  const uint64_t n = input->rows ? input->n_entries : input->part->rows;
  struct zps_encode_input there = *input;
  void *const values = gpu_upload(rig, input->values, n * row_bytes);
  void *const rows = gpu_upload(rig, input->rows, n * sizeof(int64_t));
  there.values = values;
  there.rows = rows;
  const struct zps_device_slice *slices = NULL;
  struct zps_error error = {.text = ""};
  zps_err_t code;
  do {
    code = scan(encoder, &there, allowed, rig->stream, &error);
    if (code != ZPS_OK) fail_msg("scan: %s", error.text);
    gpu_wait(rig);
    code = rig->device->ops->encoder_finish(encoder, &slices, &error);
    *n_again += code == ZPS_ERR_AGAIN;
  } while (code == ZPS_ERR_AGAIN);
  if (code != ZPS_OK) fail_msg("finish: %s", error.text);
  const struct gpu_slices taken = gpu_take_slices(rig, encoder, slices, input->part->n_parts);
  gpu_free(rig, values);
  gpu_free(rig, rows);
  return taken;
}

static inline struct gpu_slices gpu_encode(struct gpu_rig *rig, struct zps_device_encoder *encoder,
                                           const struct zps_encode_input *input, unsigned allowed, unsigned *n_again) {
  return gpu_encode_by(rig, encoder, rig->device->ops->encoder_scan, input, allowed, n_again);
}

/* Views of slices in host memory, brought to the device. */
static inline struct zps_device_view *gpu_views(struct gpu_rig *rig, const struct gpu_slices *slices) {
  struct zps_device_view *const views = calloc(slices->n_parts, sizeof *views);
  assert_non_null(views);
  for (uint32_t p = 0; p < slices->n_parts; p++) {
    const struct zps_device_slice *const slice = &slices->slices[p];
    void *const padded = calloc(1, slice->len_bytes + 8);
    assert_non_null(padded);
    memcpy(padded, slices->bytes[p], slice->len_bytes);
    views[p] = (struct zps_device_view){.codec = slice->codec,
                                        .value_codec = slice->value_codec,
                                        .partition = p,
                                        .nnz = slice->nnz,
                                        .len_bytes = slice->len_bytes,
                                        .payload_on_device = gpu_upload(rig, padded, (slice->len_bytes + 7) & ~7ull)};
    free(padded);
  }
  return views;
}

static inline void gpu_views_free(struct gpu_rig *rig, struct zps_device_view *views, uint32_t n) {
  for (uint32_t v = 0; v < n; v++) gpu_free(rig, (void *)views[v].payload_on_device);
  free(views);
}

#endif
