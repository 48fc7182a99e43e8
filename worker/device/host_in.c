#include <inttypes.h>

#include "worker/device/device.h"
#include "worker/device/host.h"

struct zps_tensor_shape zps_host_shape(const struct zps_tensor_shape *shape) {
  const uint32_t size = (uint32_t)zps_dtype_size(shape->dtype);
  if (!zps_dtype_is_half(shape->dtype)) return *shape;
  return (struct zps_tensor_shape){.rows = shape->rows, .width = size * shape->width, .dtype = ZPS_DTYPE_U8};
}

zps_err_t zps_host_partition(uint64_t rows, struct zps_partition *part, struct zps_error *error) {
  enum { RANGE_BITS = 31 };
  return zps_partition_init(part, rows, (uint32_t)((rows - 1) >> RANGE_BITS) + 1, RANGE_BITS, 0, error);
}

static size_t room_for(uint64_t len_bytes) {
  return (size_t)((len_bytes + 7) & ~7ull);
}

static zps_err_t prepare(const struct zps_host_coding *fetch, struct zps_error *error) {
  struct zps_host_in *const in = fetch->in;
  struct zps_device *const device = fetch->device->device;
  const zps_err_t code = in->encoder ? ZPS_OK : device->ops->encoder_create(device, &in->encoder, error);
  /* A call that failed may have left work behind that uses the same memory. */
  return code == ZPS_OK ? zps_stage_mark_wait(device, &in->mark, fetch->deadline_ns, error) : code;
}

static zps_err_t wait_for(const struct zps_host_coding *fetch, struct zps_error *error) {
  return zps_stage_finish(fetch->device->device, &fetch->in->mark, fetch->grad->stream, fetch->deadline_ns, error);
}

zps_err_t zps_host_in_scan(struct zps_host_coding *fetch, struct zps_error *error) {
  static const int64_t no_rows[1];
  const zenps_grad_t *const grad = fetch->grad;
  struct zps_encode_input input = {.part = &fetch->part,
                                   .width = fetch->shape->width,
                                   .dtype = fetch->shape->dtype,
                                   .value_codec = ZPS_VALUES_RAW,
                                   .values = grad->values};
  if (grad->layout == ZENPS_ROWS) {
    input.rows = grad->nnz ? grad->row_ids : no_rows;
    input.n_entries = grad->nnz;
  }
  zps_err_t code = prepare(fetch, error);
  if (code != ZPS_OK) return code;
  do { /* once more where there are more rows than ever before */
    code =
        fetch->device->device->ops->encoder_scan(fetch->in->encoder, &input, 1u << ZPS_CODEC_COO, grad->stream, error);
    if (code == ZPS_OK) code = wait_for(fetch, error);
    if (code == ZPS_OK) code = fetch->device->device->ops->encoder_finish(fetch->in->encoder, &fetch->slices, error);
  } while (code == ZPS_ERR_AGAIN);
  for (uint32_t p = 0; code == ZPS_OK && p < fetch->part.n_parts; p++) {
    fetch->nnz += fetch->slices[p].nnz;
    fetch->len_bytes += room_for(fetch->slices[p].len_bytes);
  }
  return code;
}

static zps_err_t no_memory(const struct zps_host_coding *fetch, struct zps_error *error) {
  return zps_fail(error, ZPS_ERR_NOMEM, "no host memory for a gradient of %" PRIu64 " rows", fetch->nnz);
}

static zps_err_t fetch_dense(const struct zps_host_coding *fetch, zenps_grad_t *host, struct zps_error *error) {
  const uint64_t rows = fetch->shape->rows;
  const struct zps_stage_source source = {
      .at_on_device = fetch->grad->values,
      .len_bytes = (size_t)rows * zps_row_bytes(fetch->shape->width, fetch->shape->dtype),
      .serial = ++fetch->device->serial,
      .stream = fetch->grad->stream};
  if (zps_buffer_need(&fetch->in->values, rows, zps_row_bytes(fetch->shape->width, fetch->shape->dtype)) != ZPS_OK)
    return no_memory(fetch, error);
  host->layout = ZENPS_DENSE;
  host->values = fetch->in->values.data;
  return zps_stage_read(fetch->device->in_stage, &source, 0, source.len_bytes, host->values, fetch->deadline_ns, error);
}

/* Reads a partition's slice; `done` rows are in the arrays already. */
static zps_err_t read_slice(const struct zps_host_coding *fetch, const struct zps_stage_source *source, uint32_t p,
                            size_t at, uint64_t done, bool rows_only, struct zps_error *error) {
  const uint32_t nnz = fetch->slices[p].nnz;
  const size_t values_bytes = nnz * zps_row_bytes(fetch->shape->width, fetch->shape->dtype);
  struct zps_stage *const stage = fetch->device->in_stage;
  uint32_t *const ranks = fetch->in->ranks.data;
  int64_t *const rows = (int64_t *)fetch->in->rows.data + done;
  zps_err_t code = ZPS_OK;
  if (!rows_only)
    code =
        zps_stage_read(stage, source, at, values_bytes,
                       (char *)fetch->in->values.data + done * zps_row_bytes(fetch->shape->width, fetch->shape->dtype),
                       fetch->deadline_ns, error);
  if (code == ZPS_OK)
    code = zps_stage_read(stage, source, at + values_bytes, nnz * sizeof *ranks, ranks, fetch->deadline_ns, error);
  for (uint32_t i = 0; code == ZPS_OK && i < nnz; i++) rows[i] = (int64_t)zps_partition_row(&fetch->part, p, ranks[i]);
  return code;
}

zps_err_t zps_host_in_write(const struct zps_host_coding *fetch, void *slices_on_device, struct zps_error *error) {
  void **const outs = calloc(fetch->part.n_parts, sizeof *outs);
  if (!outs) return no_memory(fetch, error);
  size_t at = 0;
  for (uint32_t p = 0; p < fetch->part.n_parts; p++) {
    if (fetch->slices[p].len_bytes > 0) outs[p] = (char *)slices_on_device + at;
    at += room_for(fetch->slices[p].len_bytes);
  }
  const zps_err_t code =
      fetch->device->device->ops->encoder_write(fetch->in->encoder, outs, fetch->grad->stream, error);
  free(outs);
  return code == ZPS_OK ? wait_for(fetch, error) : code;
}

static zps_err_t fetch_rows(const struct zps_host_coding *fetch, bool rows_only, zenps_grad_t *host,
                            struct zps_error *error) {
  struct zps_host_in *const in = fetch->in;
  host->layout = ZENPS_ROWS;
  host->nnz = fetch->nnz;
  if (fetch->nnz == 0) return ZPS_OK;
  if (zps_buffer_need(&in->rows, fetch->nnz, sizeof(int64_t)) != ZPS_OK ||
      zps_buffer_need(&in->ranks, fetch->nnz, sizeof(uint32_t)) != ZPS_OK ||
      (!rows_only &&
       zps_buffer_need(&in->values, fetch->nnz, zps_row_bytes(fetch->shape->width, fetch->shape->dtype)) != ZPS_OK))
    return no_memory(fetch, error);
  zps_err_t code = zps_worker_device_grow_on(fetch->device, &in->slices, &in->slices_cap, fetch->len_bytes,
                                             fetch->grad->stream, error);
  if (code == ZPS_OK) code = zps_host_in_write(fetch, in->slices, error);
  const struct zps_stage_source source = {.at_on_device = in->slices,
                                          .len_bytes = fetch->len_bytes,
                                          .serial = ++fetch->device->serial,
                                          .stream = fetch->grad->stream};
  size_t at = 0;
  uint64_t done = 0;
  for (uint32_t p = 0; code == ZPS_OK && p < fetch->part.n_parts; p++) {
    code = read_slice(fetch, &source, p, at, done, rows_only, error);
    at += room_for(fetch->slices[p].len_bytes);
    done += fetch->slices[p].nnz;
  }
  host->row_ids = in->rows.data;
  host->values = in->values.data;
  return code;
}

/* COO of halves, or with rows of zeros: entries as they are, for the host to add repeats up. */
static zps_err_t fetch_entries(const struct zps_host_coding *fetch, bool rows_only, zenps_grad_t *host,
                               struct zps_error *error) {
  struct zps_host_in *const in = fetch->in;
  const uint64_t n = fetch->grad->nnz, row_bytes = zps_row_bytes(fetch->shape->width, fetch->shape->dtype);
  struct zps_stage *const stage = fetch->device->in_stage;
  struct zps_stage_source source = {.at_on_device = fetch->grad->row_ids,
                                    .len_bytes = n * sizeof(int64_t),
                                    .serial = ++fetch->device->serial,
                                    .stream = fetch->grad->stream};
  host->layout = ZENPS_ROWS;
  host->nnz = n;
  if (n == 0) return ZPS_OK;
  if (zps_buffer_need(&in->rows, n, sizeof(int64_t)) != ZPS_OK ||
      (!rows_only && zps_buffer_need(&in->values, n, row_bytes) != ZPS_OK))
    return zps_fail(error, ZPS_ERR_NOMEM, "no host memory for a gradient of %" PRIu64 " rows", n);
  zps_err_t code = zps_stage_read(stage, &source, 0, source.len_bytes, in->rows.data, fetch->deadline_ns, error);
  source.at_on_device = fetch->grad->values;
  source.len_bytes = n * row_bytes;
  source.serial = ++fetch->device->serial;
  if (code == ZPS_OK && !rows_only)
    code = zps_stage_read(stage, &source, 0, source.len_bytes, in->values.data, fetch->deadline_ns, error);
  host->row_ids = in->rows.data;
  host->values = in->values.data;
  return code;
}

zps_err_t zps_host_in_run(struct zps_host_in *in, struct zps_worker_device *device,
                          const struct zps_tensor_shape *shape, const zenps_grad_t *grad, bool rows_only,
                          uint64_t deadline_ns, zenps_grad_t *host_p, struct zps_error *error) {
  const struct zps_tensor_shape moved = zps_host_shape(shape);
  struct zps_host_coding fetch = {
      .in = in, .device = device, .shape = &moved, .grad = grad, .deadline_ns = deadline_ns};
  zenps_grad_t host = *grad;
  host.memory = ZENPS_HOST;
  host.row_ids = NULL;
  host.values = NULL;
  zps_err_t code = zps_host_partition(shape->rows, &fetch.part, error);
  if (code == ZPS_OK && grad->layout == ZENPS_ROWS && (in->as_given || zps_dtype_is_half(shape->dtype))) {
    code = fetch_entries(&fetch, rows_only, &host, error);
    if (code == ZPS_OK) *host_p = host;
    return code;
  }
  if (code == ZPS_OK) code = zps_host_in_scan(&fetch, error);
  const bool is_full = grad->layout == ZENPS_DENSE &&
                       fetch.len_bytes >= shape->rows * zps_row_bytes(fetch.shape->width, fetch.shape->dtype);
  if (code == ZPS_OK)
    code = is_full && !rows_only ? fetch_dense(&fetch, &host, error) : fetch_rows(&fetch, rows_only, &host, error);
  if (code == ZPS_OK) *host_p = host;
  return code;
}

void zps_host_in_fini(struct zps_host_in *in, struct zps_worker_device *device) {
  if (device) {
    const struct zps_device_ops *const ops = device->device->ops;
    zps_stage_mark_fini(device->device, &in->mark);
    if (in->encoder) ops->encoder_destroy(in->encoder);
    ops->release(device->device, ZPS_MEMORY_DEVICE, in->slices);
  }
  zps_buffer_fini(&in->rows);
  zps_buffer_fini(&in->ranks);
  zps_buffer_fini(&in->values);
}
