#include <inttypes.h>

#include "worker/device/device.h"
#include "worker/device/host.h"

/* The arguments and state of one call. */
struct delivery {
  struct zps_host_out *out;
  struct zps_worker_device *device;
  const struct zps_device_ops *ops;
  const struct zps_tensor_shape *shape;
  const zenps_grad_t *host, *grad;
  uint64_t deadline_ns;
};

static zps_err_t prepare(const struct delivery *delivery, struct zps_error *error) {
  struct zps_host_out *const out = delivery->out;
  struct zps_device *const device = delivery->device->device;
  zps_err_t code = out->decoder ? ZPS_OK : delivery->ops->decoder_create(device, &out->decoder, error);
  /* A call that failed may have left work behind that uses the same memory. */
  if (code == ZPS_OK) code = zps_stage_mark_wait(device, &out->mark, delivery->deadline_ns, error);
  if (code != ZPS_OK) return code;
  delivery->ops->release_on(device, out->rows, delivery->grad->stream);
  delivery->ops->release_on(device, out->values, delivery->grad->stream);
  out->rows = out->values = NULL;
  return ZPS_OK;
}

static zps_err_t send(const struct delivery *delivery, void *to_on_device, const void *from, size_t len_bytes,
                      struct zps_error *error) {
  return zps_stage_write(delivery->device->out_stage, to_on_device, from, len_bytes, delivery->grad->stream,
                         delivery->deadline_ns, error);
}

static zps_err_t deliver_rows(const struct delivery *delivery, struct zps_error *error) {
  struct zps_host_out *const out = delivery->out;
  struct zps_device *const device = delivery->device->device;
  const size_t n = (size_t)delivery->host->nnz, rows_bytes = n * sizeof(int64_t);
  const zps_stream_t stream = delivery->grad->stream;
  void *rows = delivery->grad->row_ids, *values = delivery->grad->values;
  zps_err_t code = ZPS_OK;
  if (!rows) {
    code = delivery->ops->allocate_on(device, rows_bytes, stream, &out->rows, error);
    if (code == ZPS_OK)
      code = delivery->ops->allocate_on(device, n * zps_row_bytes(delivery->shape->width, delivery->shape->dtype),
                                        stream, &out->values, error);
    rows = out->rows;
    values = out->values;
  }
  if (code == ZPS_OK) code = send(delivery, rows, delivery->host->row_ids, rows_bytes, error);
  return code == ZPS_OK ? send(delivery, values, delivery->host->values,
                               n * zps_row_bytes(delivery->shape->width, delivery->shape->dtype), error)
                        : code;
}

/* Cuts the rows into slices of COO, one for each partition that has any. */
static zps_err_t lay_out(const struct delivery *delivery, const struct zps_partition *part, unsigned *n_views_p,
                         size_t *len_bytes_p, struct zps_error *error) {
  struct zps_host_out *const out = delivery->out;
  const uint64_t n = delivery->host->nnz;
  if (zps_buffer_need(&out->ranks, n, sizeof(uint32_t)) != ZPS_OK ||
      zps_buffer_need(&out->views, part->n_parts, sizeof(struct zps_device_view)) != ZPS_OK)
    return zps_fail(error, ZPS_ERR_NOMEM, "no memory for the numbers of %" PRIu64 " rows", n);
  struct zps_device_view *const views = out->views.data;
  uint32_t *const ranks = out->ranks.data;
  size_t at = 0;
  unsigned n_views = 0;
  for (uint64_t i = 0; i < n;) {
    struct zps_device_view view = {.codec = ZPS_CODEC_COO, .value_codec = ZPS_VALUES_RAW};
    const int64_t *const rows = delivery->host->row_ids;
    view.partition = zps_partition_of(part, (uint64_t)rows[i], &ranks[i]);
    view.nnz = 1;
    while (i + view.nnz < n &&
           zps_partition_of(part, (uint64_t)rows[i + view.nnz], &ranks[i + view.nnz]) == view.partition)
      view.nnz++;
    view.len_bytes = view.nnz * (zps_row_bytes(delivery->shape->width, delivery->shape->dtype) + sizeof *ranks);
    at += (size_t)((view.len_bytes + 7) & ~7ull);
    i += view.nnz;
    views[n_views++] = view;
  }
  *n_views_p = n_views;
  *len_bytes_p = at;
  return ZPS_OK;
}

static zps_err_t send_slices(const struct delivery *delivery, unsigned n_views, struct zps_error *error) {
  struct zps_device_view *const views = delivery->out->views.data;
  const uint32_t *ranks = delivery->out->ranks.data;
  const char *values = delivery->host->values;
  char *at = delivery->out->slices;
  zps_err_t code = ZPS_OK;
  for (unsigned v = 0; v < n_views && code == ZPS_OK; v++) {
    const size_t values_bytes = views[v].nnz * zps_row_bytes(delivery->shape->width, delivery->shape->dtype);
    views[v].payload_on_device = at;
    code = send(delivery, at, values, values_bytes, error);
    if (code == ZPS_OK) code = send(delivery, at + values_bytes, ranks, views[v].nnz * sizeof *ranks, error);
    at += (views[v].len_bytes + 7) & ~7ull;
    values += values_bytes;
    ranks += views[v].nnz;
  }
  return code;
}

static zps_err_t scatter_rows(const struct delivery *delivery, struct zps_error *error) {
  struct zps_host_out *const out = delivery->out;
  const struct zps_tensor_shape *const shape = delivery->shape;
  struct zps_partition part;
  unsigned n_views = 0;
  size_t len_bytes = 0;
  zps_err_t code = zps_host_partition(shape->rows, &part, error);
  if (code == ZPS_OK) code = lay_out(delivery, &part, &n_views, &len_bytes, error);
  if (code == ZPS_OK)
    code = delivery->ops->clear(delivery->device->device, delivery->grad->values,
                                (size_t)shape->rows * zps_row_bytes(delivery->shape->width, delivery->shape->dtype),
                                delivery->grad->stream, error);
  if (code == ZPS_OK)
    code = zps_worker_device_grow_on(delivery->device, &out->slices, &out->slices_cap, len_bytes,
                                     delivery->grad->stream, error);
  if (code == ZPS_OK) code = send_slices(delivery, n_views, error);
  if (code == ZPS_OK)
    code = delivery->ops->decoder_dense(out->decoder, &part, shape->width, shape->dtype, out->views.data, n_views,
                                        delivery->grad->values, delivery->grad->stream, error);
  return code;
}

zps_err_t zps_host_out_run(struct zps_host_out *out, struct zps_worker_device *device,
                           const struct zps_tensor_shape *shape, const zenps_grad_t *host, const zenps_grad_t *grad,
                           uint64_t deadline_ns, struct zps_error *error) {
  const struct zps_tensor_shape moved = zps_host_shape(shape);
  const struct delivery delivery = {.out = out,
                                    .device = device,
                                    .ops = device->device->ops,
                                    .shape = &moved,
                                    .host = host,
                                    .grad = grad,
                                    .deadline_ns = deadline_ns};
  const bool is_scattered = grad->layout == ZENPS_DENSE && host->layout == ZENPS_ROWS;
  struct zps_error ignored;
  zps_err_t code = prepare(&delivery, error);
  if (code != ZPS_OK) return code;
  if (is_scattered)
    code = scatter_rows(&delivery, error);
  else if (grad->layout == ZENPS_ROWS)
    code = deliver_rows(&delivery, error);
  else
    code = send(&delivery, grad->values, host->values, (size_t)moved.rows * zps_row_bytes(moved.width, moved.dtype),
                error);
  /* After a failure, too: the arrays are the caller's again when this returns. */
  struct zps_error *const why = code == ZPS_OK ? error : &ignored;
  const zps_err_t waited = zps_stage_finish(device->device, &out->mark, grad->stream, deadline_ns, why);
  if (code == ZPS_OK) code = waited;
  if (code != ZPS_OK) return code;
  return is_scattered ? device->device->ops->decoder_finish(out->decoder, error) : ZPS_OK;
}

void zps_host_out_fini(struct zps_host_out *out, struct zps_worker_device *device) {
  if (device) {
    const struct zps_device_ops *const ops = device->device->ops;
    zps_stage_mark_fini(device->device, &out->mark);
    if (out->decoder) ops->decoder_destroy(out->decoder);
    ops->release(device->device, ZPS_MEMORY_DEVICE, out->slices);
    ops->release(device->device, ZPS_MEMORY_DEVICE, out->rows);
    ops->release(device->device, ZPS_MEMORY_DEVICE, out->values);
  }
  zps_buffer_fini(&out->ranks);
  zps_buffer_fini(&out->views);
}
