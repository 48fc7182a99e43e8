#include "worker/device/merge.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/enlarge.h"
#include "worker/device/device.h"

enum { OFFER_KIND, OFFER_PARTS, OFFER_NNZ, OFFER_HANDLE = OFFER_NNZ + ZPS_OFFER_PARTS };

/* ------------------------------------------------------------ offers */

uint64_t zps_merge_offer_rows(const double *offer) {
  uint64_t n = 0;
  for (uint32_t p = 0; p < ZPS_OFFER_PARTS; p++) n += (uint64_t)offer[OFFER_NNZ + p];
  return n;
}

static void put_handle(const unsigned char *handle, double *doubles) {
  for (unsigned i = 0; i < ZPS_DEVICE_HANDLE_BYTES / 4; i++) {
    uint32_t word;
    memcpy(&word, handle + 4 * i, sizeof word);
    doubles[i] = word;
  }
}

static bool is_word(double number) {
  return number >= 0 && number <= UINT32_MAX && number == (double)(uint32_t)number;
}

static bool take_handle(const double *doubles, unsigned char *handle) {
  for (unsigned i = 0; i < ZPS_DEVICE_HANDLE_BYTES / 4; i++) {
    if (!is_word(doubles[i])) return false;
    const uint32_t word = (uint32_t)doubles[i];
    memcpy(handle + 4 * i, &word, sizeof word);
  }
  return true;
}

static uint64_t slice_bytes(const struct zps_tensor_shape *shape, uint32_t nnz) {
  return (uint64_t)nnz * (zps_row_bytes(shape->width, shape->dtype) + sizeof(uint32_t));
}

static uint64_t room_for(uint64_t len_bytes) {
  return (len_bytes + 7) & ~7ull;
}

/* Whether the numbers are those of slices of such a tensor. */
static bool is_sound(const struct zps_partition *part, const double *offer) {
  if (offer[OFFER_KIND] != ZPS_OFFER_SLICES || offer[OFFER_PARTS] != part->n_parts) return false;
  for (uint32_t p = 0; p < ZPS_OFFER_PARTS; p++) {
    if (!is_word(offer[OFFER_NNZ + p])) return false;
    if (offer[OFFER_NNZ + p] > (p < part->n_parts ? zps_partition_size(part, p) : 0)) return false;
  }
  return true;
}

static uint64_t offered_bytes(const struct zps_tensor_shape *shape, const double *offer) {
  uint64_t bytes = 0;
  for (uint32_t p = 0; p < ZPS_OFFER_PARTS; p++) bytes += room_for(slice_bytes(shape, (uint32_t)offer[OFFER_NNZ + p]));
  return bytes;
}

/* Room for what is offered; never freed, as others may have it mapped. */
static zps_err_t grow_offered(struct zps_merge *merge, struct zps_worker_device *device, uint64_t len_bytes,
                              struct zps_error *error) {
  if (merge->offered && len_bytes <= merge->offered_cap) return ZPS_OK;
  const uint64_t cap = len_bytes < 2 * merge->offered_cap ? 2 * merge->offered_cap : len_bytes + 8;
  void *at;
  const zps_err_t code = device->device->ops->allocate(device->device, ZPS_MEMORY_DEVICE, (size_t)cap, &at, error);
  if (code != ZPS_OK) return code;
  if (merge->offered) merge->retired[merge->n_retired++] = merge->offered;
  merge->offered = at;
  merge->offered_cap = (size_t)cap;
  return ZPS_OK;
}

zps_err_t zps_merge_offer(struct zps_merge *merge, struct zps_host_in *in, struct zps_worker_device *device,
                          const struct zps_tensor_shape *shape, const zenps_grad_t *grad, uint64_t deadline_ns,
                          double *offer, struct zps_error *error) {
  const struct zps_device_ops *const ops = device->device->ops;
  struct zps_host_coding coding = {
      .in = in, .device = device, .shape = shape, .grad = grad, .deadline_ns = deadline_ns};
  unsigned char handle[ZPS_DEVICE_HANDLE_BYTES];
  struct zps_error why;
  memset(offer, 0, ZPS_OFFER_LEN * sizeof *offer);
  zps_err_t code = zps_host_partition(shape->rows, &coding.part, error);
  if (code == ZPS_OK && coding.part.n_parts > ZPS_OFFER_PARTS) return ZPS_OK;
  /* A round that failed may have left work behind that uses the same memory. */
  if (code == ZPS_OK) code = zps_stage_mark_wait(device->device, &merge->mark, deadline_ns, error);
  if (code == ZPS_OK) code = zps_host_in_scan(&coding, error);
  if (code == ZPS_OK) code = grow_offered(merge, device, coding.len_bytes, error);
  if (code == ZPS_OK) code = zps_host_in_write(&coding, merge->offered, error);
  if (code != ZPS_OK) return code;
  offer[OFFER_PARTS] = coding.part.n_parts;
  for (uint32_t p = 0; p < coding.part.n_parts; p++) offer[OFFER_NNZ + p] = coding.slices[p].nnz;
  if (ops->share_memory(device->device, merge->offered, handle, &why) != ZPS_OK) return ZPS_OK;
  put_handle(handle, offer + OFFER_HANDLE);
  offer[OFFER_KIND] = ZPS_OFFER_SLICES;
  return ZPS_OK;
}

/* ------------------------------------------------------------ those of others */

void zps_merge_let_go(struct zps_merge *merge, struct zps_worker_device *device) {
  if (merge->mark.is_pending) return; /* the device may be reading it: later, then */
  for (uint32_t i = 0; i < merge->n_reached; i++) device->device->ops->detach_memory(device->device, merge->reached[i]);
  merge->n_reached = 0;
}

static zps_err_t attach(struct zps_merge *merge, struct zps_worker_device *device, const struct zps_tensor_shape *shape,
                        const double *offer, struct zps_error *why) {
  unsigned char handle[ZPS_DEVICE_HANDLE_BYTES];
  if (!take_handle(offer + OFFER_HANDLE, handle)) return zps_fail(why, ZPS_ERR_PROTOCOL, "its handle is none");
  const zps_err_t code = device->device->ops->attach_memory(device->device, handle, (size_t)offered_bytes(shape, offer),
                                                            &merge->reached[merge->n_reached], why);
  if (code == ZPS_OK) merge->n_reached++;
  return code;
}

bool zps_merge_reach(struct zps_merge *merge, struct zps_worker_device *device, const struct zps_tensor_shape *shape,
                     const double *offers, uint32_t n, struct zps_error *why) {
  struct zps_partition part;
  zps_err_t code = zps_host_partition(shape->rows, &part, why);
  why->text[0] = '\0';
  zps_merge_let_go(merge, device); /* what a round that failed has left, and could not unmap */
  if (code == ZPS_OK && n > merge->cap_reached) {
    if (!zps_enlarge(&merge->reached, n, sizeof *merge->reached)) return false;
    merge->cap_reached = n;
  }
  for (uint32_t i = 0; code == ZPS_OK && i < n; i++)
    if (!is_sound(&part, offers + (size_t)i * ZPS_OFFER_LEN)) code = ZPS_ERR_UNSUPPORTED;
  for (uint32_t i = 1; code == ZPS_OK && i < n; i++)
    code = attach(merge, device, shape, offers + (size_t)i * ZPS_OFFER_LEN, why);
  if (code != ZPS_OK) zps_merge_let_go(merge, device);
  return code == ZPS_OK;
}

/* ------------------------------------------------------------ the sum */

/* The state of one merge. */
struct merging {
  struct zps_merge *merge;
  struct zps_worker_device *device;
  const struct zps_device_ops *ops;
  const struct zps_tensor_shape *shape;
  struct zps_partition part;
  zps_stream_t stream;
  uint64_t deadline_ns, nnz;
  const struct zps_device_slice *slices;
};

static void take_views(const struct merging *merging, const double *offers, uint32_t n, struct zps_device_view *views) {
  for (uint32_t i = 0; i < n; i++) {
    const double *const offer = offers + (size_t)i * ZPS_OFFER_LEN;
    const char *at = i == 0 ? merging->merge->offered : merging->merge->reached[i - 1];
    for (uint32_t p = 0; p < merging->part.n_parts; p++) {
      const uint32_t nnz = (uint32_t)offer[OFFER_NNZ + p];
      *views++ = (struct zps_device_view){.codec = ZPS_CODEC_COO,
                                          .value_codec = ZPS_VALUES_RAW,
                                          .partition = p,
                                          .nnz = nnz,
                                          .len_bytes = slice_bytes(merging->shape, nnz),
                                          .payload_on_device = at};
      at += room_for(slice_bytes(merging->shape, nnz));
    }
  }
}

static zps_err_t add_up(struct merging *merging, const struct zps_device_view *views, uint32_t n,
                        struct zps_error *error) {
  struct zps_merge *const merge = merging->merge;
  const struct zps_encode_input shape = {.part = &merging->part,
                                         .width = merging->shape->width,
                                         .dtype = merging->shape->dtype,
                                         .value_codec = ZPS_VALUES_RAW};
  zps_err_t code;
  do {
    code = merging->ops->encoder_merge(merge->encoder, &shape, views, n, 1u << ZPS_CODEC_COO, merging->stream, error);
    if (code == ZPS_OK)
      code = zps_stage_finish(merging->device->device, &merge->mark, merging->stream, merging->deadline_ns, error);
    if (code == ZPS_OK) code = merging->ops->encoder_finish(merge->encoder, &merging->slices, error);
  } while (code == ZPS_ERR_AGAIN);
  for (uint32_t p = 0; code == ZPS_OK && p < merging->part.n_parts; p++) merging->nnz += merging->slices[p].nnz;
  return code;
}

/* From the encoder's slices to rows. */
static zps_err_t list_rows(struct merging *merging, struct zps_error *error) {
  struct zps_merge *const merge = merging->merge;
  const size_t row_bytes = (size_t)zps_row_bytes(merging->shape->width, merging->shape->dtype);
  struct zps_device_view views[ZPS_OFFER_PARTS];
  void *outs[ZPS_OFFER_PARTS];
  uint64_t len_bytes = 0;
  unsigned n_views = 0;
  for (uint32_t p = 0; p < merging->part.n_parts; p++) len_bytes += room_for(merging->slices[p].len_bytes);
  zps_err_t code = zps_worker_device_grow_on(merging->device, &merge->slices, &merge->slices_cap, (size_t)len_bytes,
                                             merging->stream, error);
  if (code == ZPS_OK)
    code = zps_worker_device_grow_on(merging->device, &merge->rows, &merge->rows_cap,
                                     (size_t)merging->nnz * sizeof(int64_t), merging->stream, error);
  if (code == ZPS_OK)
    code = zps_worker_device_grow_on(merging->device, &merge->values, &merge->values_cap,
                                     (size_t)merging->nnz * row_bytes, merging->stream, error);
  char *at = merge->slices;
  for (uint32_t p = 0; code == ZPS_OK && p < merging->part.n_parts; p++) {
    const struct zps_device_slice *const slice = &merging->slices[p];
    outs[p] = slice->nnz ? at : NULL;
    if (slice->nnz)
      views[n_views++] = (struct zps_device_view){.codec = slice->codec,
                                                  .value_codec = ZPS_VALUES_RAW,
                                                  .partition = p,
                                                  .nnz = slice->nnz,
                                                  .len_bytes = slice->len_bytes,
                                                  .payload_on_device = at};
    at += room_for(slice->len_bytes);
  }
  if (code == ZPS_OK) code = merging->ops->encoder_write(merge->encoder, outs, merging->stream, error);
  if (code == ZPS_OK)
    code = merging->ops->decoder_rows(merge->decoder, &merging->part, merging->shape->width, merging->shape->dtype,
                                      views, n_views, merge->rows, merge->values, merging->stream, error);
  if (code == ZPS_OK)
    code = zps_stage_finish(merging->device->device, &merge->mark, merging->stream, merging->deadline_ns, error);
  return code == ZPS_OK ? merging->ops->decoder_finish(merge->decoder, error) : code;
}

zps_err_t zps_merge_run(struct zps_merge *merge, struct zps_worker_device *device, const struct zps_tensor_shape *shape,
                        const double *offers, uint32_t n, zps_stream_t stream, uint64_t deadline_ns,
                        zenps_grad_t *merged_p, struct zps_error *error) {
  struct zps_device *const there = device->device;
  struct merging merging = {.merge = merge,
                            .device = device,
                            .ops = there->ops,
                            .shape = shape,
                            .stream = stream,
                            .deadline_ns = deadline_ns};
  zps_err_t code = zps_host_partition(shape->rows, &merging.part, error);
  if (code == ZPS_OK && !merge->encoder) code = there->ops->encoder_create(there, &merge->encoder, error);
  if (code == ZPS_OK && !merge->decoder) code = there->ops->decoder_create(there, &merge->decoder, error);
  if (code == ZPS_OK &&
      zps_buffer_need(&merge->views, n * merging.part.n_parts, sizeof(struct zps_device_view)) != ZPS_OK)
    code = zps_fail(error, ZPS_ERR_NOMEM, "no memory to merge what %" PRIu32 " ranks have", n);
  if (code != ZPS_OK) return code;
  take_views(&merging, offers, n, merge->views.data);
  code = add_up(&merging, merge->views.data, n, error);
  zps_merge_let_go(merge, device);
  if (code == ZPS_OK && merging.nnz > 0) code = list_rows(&merging, error);
  if (code != ZPS_OK) return code;
  ZENPS_GRAD_INIT(merged_p);
  merged_p->memory = ZENPS_DEVICE;
  merged_p->device = device->index;
  merged_p->stream = stream;
  merged_p->layout = ZENPS_ROWS;
  merged_p->nnz = merging.nnz;
  merged_p->row_ids = merge->rows;
  merged_p->values = merge->values;
  return ZPS_OK;
}

zps_err_t zps_merge_fetch(struct zps_merge *merge, struct zps_worker_device *device,
                          const struct zps_tensor_shape *shape, uint64_t deadline_ns, zenps_grad_t *merged,
                          struct zps_error *error) {
  const uint64_t n = merged->nnz, row_bytes = zps_row_bytes(shape->width, shape->dtype);
  struct zps_stage_source source = {.at_on_device = merged->row_ids,
                                    .len_bytes = (size_t)n * sizeof(int64_t),
                                    .serial = ++device->serial,
                                    .stream = merged->stream};
  if (zps_buffer_need(&merge->host_rows, n, sizeof(int64_t)) != ZPS_OK ||
      zps_buffer_need(&merge->host_values, n, row_bytes) != ZPS_OK)
    return zps_fail(error, ZPS_ERR_NOMEM, "no host memory for %" PRIu64 " merged rows", n);
  zps_err_t code = ZPS_OK;
  if (n > 0)
    code = zps_stage_read(device->in_stage, &source, 0, source.len_bytes, merge->host_rows.data, deadline_ns, error);
  source.at_on_device = merged->values;
  source.len_bytes = (size_t)(n * row_bytes);
  source.serial = ++device->serial;
  if (code == ZPS_OK && n > 0)
    code = zps_stage_read(device->in_stage, &source, 0, source.len_bytes, merge->host_values.data, deadline_ns, error);
  merged->memory = ZENPS_HOST;
  merged->row_ids = merge->host_rows.data;
  merged->values = merge->host_values.data;
  return code;
}

void zps_merge_fini(struct zps_merge *merge, struct zps_worker_device *device) {
  if (device) {
    struct zps_device *const there = device->device;
    const struct zps_device_ops *const ops = there->ops;
    zps_stage_mark_fini(there, &merge->mark);
    zps_merge_let_go(merge, device);
    if (merge->encoder) ops->encoder_destroy(merge->encoder);
    if (merge->decoder) ops->decoder_destroy(merge->decoder);
    ops->release(there, ZPS_MEMORY_DEVICE, merge->offered);
    for (unsigned i = 0; i < merge->n_retired; i++) ops->release(there, ZPS_MEMORY_DEVICE, merge->retired[i]);
    ops->release(there, ZPS_MEMORY_DEVICE, merge->slices);
    ops->release(there, ZPS_MEMORY_DEVICE, merge->rows);
    ops->release(there, ZPS_MEMORY_DEVICE, merge->values);
  }
  free(merge->reached);
  zps_buffer_fini(&merge->views);
  zps_buffer_fini(&merge->host_rows);
  zps_buffer_fini(&merge->host_values);
}
