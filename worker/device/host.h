/*
 * Host staging, for schemes that work in host memory: from a gradient in device memory to one in host memory, and from
 * a result there to device memory.
 *
 * In: the device finds the rows that are not zero and codes them as COO, and these bytes are staged; the dense array
 * itself where it takes no more. Rows of halves, and of tensors that keep rows of zeros, are staged as they are given,
 * repeated or not. Out: where the scheme has listed rows and the caller wants a dense array, rows are staged as COO,
 * and decoded there by the device; other results as they are.
 *
 * Each is for the device's thread of its kind (device.h), submits to the stream of the caller's gradient or result, and
 * waits for it until the deadline. Kept from round to round; all zero at first.
 */
#ifndef ZPS_WORKER_DEVICE_HOST_H
#define ZPS_WORKER_DEVICE_HOST_H

#include "common/codec/buffer.h"
#include "worker/device/stage.h"
#include "worker/round/tensor.h"
#include "zenps/zenps.h"

struct zps_worker_device;

struct zps_host_in {
  struct zps_device_encoder *encoder;
  struct zps_stage_mark mark; /* behind what was submitted last */
  void *slices;               /* on the device */
  size_t slices_cap;
  struct zps_buffer rows, ranks, values;
  bool as_given; /* of a list all entries are brought, also those of zeros */
};
/* *host_p: the gradient in host memory, in the arrays of `in`, as rows or dense. `rows_only`: without values, always as
 * rows. ZPS_ERR_INVALID names the first bad row number. */
zps_err_t zps_host_in_run(struct zps_host_in *in, struct zps_worker_device *device,
                          const struct zps_tensor_shape *shape, const zenps_grad_t *grad, bool rows_only,
                          uint64_t deadline_ns, zenps_grad_t *host_p, struct zps_error *error) ZPS_MUSTCHECK;
/* The first half of it: rows as COO, which stay on the device. */
struct zps_host_coding {
  struct zps_host_in *in;
  struct zps_worker_device *device;
  const struct zps_tensor_shape *shape; /* zps_host_shape() */
  const zenps_grad_t *grad;
  uint64_t deadline_ns;
  struct zps_partition part;             /* zps_host_partition() */
  const struct zps_device_slice *slices; /* found: per partition */
  uint64_t nnz;
  size_t len_bytes; /* of all slices, each from a multiple of 8 on */
};
zps_err_t zps_host_in_scan(struct zps_host_coding *coding, struct zps_error *error) ZPS_MUSTCHECK;
/* Writes the slices, one behind the other, and waits until they are there. */
zps_err_t zps_host_in_write(const struct zps_host_coding *coding, void *slices_on_device,
                            struct zps_error *error) ZPS_MUSTCHECK;
void zps_host_in_fini(struct zps_host_in *in, struct zps_worker_device *device);

struct zps_host_out {
  struct zps_device_decoder *decoder;
  struct zps_stage_mark mark;
  void *slices; /* on the device */
  size_t slices_cap;
  struct zps_buffer ranks, views;
  void *rows, *values; /* a result that is the library's, in device memory, until the round takes it */
};
/* Brings `host`, whose rows ascend, to where `grad` says, or to memory of the library's. There is room. */
zps_err_t zps_host_out_run(struct zps_host_out *out, struct zps_worker_device *device,
                           const struct zps_tensor_shape *shape, const zenps_grad_t *host, const zenps_grad_t *grad,
                           uint64_t deadline_ns, struct zps_error *error) ZPS_MUSTCHECK;
void zps_host_out_fini(struct zps_host_out *out, struct zps_worker_device *device);

/* The shape in which the device moves such rows: of halves, which it does not know, rows of bytes. A row of -0.0 alone
 * is then one that is not zero; the host leaves it out. */
struct zps_tensor_shape zps_host_shape(const struct zps_tensor_shape *shape);
/* One partition of all rows; of 2^32 and more, ranges in any order. */
zps_err_t zps_host_partition(uint64_t rows, struct zps_partition *part, struct zps_error *error) ZPS_MUSTCHECK;

#endif
