/*
 * Gradients and results in the memory of a GPU, of programs that make and check theirs in host memory: --memory device
 * of zenps-perf and the trainers. Knows of GPUs the vtable alone (gpu/device.h), and loads the library that libzenps
 * loads: the one that ZENPS_DEVICE_LIBRARY names, else libzenps_cuda.so.
 *
 * Threads: one at a time.
 */
#ifndef ZPS_TOOLS_GPU_H
#define ZPS_TOOLS_GPU_H

#include <zenps/zenps.h>

#include "common/base/err.h"

struct zps_gpu;

/* The values of an option --memory: an index of 0 is host memory, 1 a GPU's. */
extern const char *const zps_gpu_memory_values[];
/* Finds the number of the GPU by the options --memory and --device (NULL: not given, then ZENPS_DEVICE, then 0) for
 * zenps_options_t; -1: none, arrays are in host memory. ZPS_ERR_INVALID: no number, or no GPU's memory is asked for. */
zps_err_t zps_gpu_index(int memory, const char *device, int *index_p, struct zps_error *error) ZPS_MUSTCHECK;

/* ZPS_ERR_UNSUPPORTED, saying what is missing: the library, or the GPU. */
zps_err_t zps_gpu_open(int index, struct zps_gpu **gpu_p, struct zps_error *error) ZPS_MUSTCHECK;
void zps_gpu_close(struct zps_gpu *gpu); /* NULL is allowed */

/* A gradient or a result whose arrays grow as needed. Zeroed: no arrays. Of its grad the layout is the caller's. */
struct zps_gpu_grad {
  zenps_grad_t grad;
  size_t ids_bytes, values_bytes; /* of the arrays */
};

/* Makes room in the GPU's memory for n entries of `row_bytes`, with row numbers where the layout is ZENPS_ROWS; what
 * was there is gone. */
zps_err_t zps_gpu_reserve(struct zps_gpu *gpu, struct zps_gpu_grad *there, uint64_t n, size_t row_bytes,
                          struct zps_error *error) ZPS_MUSTCHECK;
/* Copies n entries of `row_bytes` from host memory to the GPU's, with layout and nnz. The copies are submitted to the
 * stream of there->grad; host's arrays must stay until it got there. */
zps_err_t zps_gpu_send(struct zps_gpu *gpu, const zenps_grad_t *host, uint64_t n, size_t row_bytes,
                       struct zps_gpu_grad *there, struct zps_error *error) ZPS_MUSTCHECK;
/* The other way, with a wait: `here` has then the n entries in host memory. */
zps_err_t zps_gpu_fetch(struct zps_gpu *gpu, const zenps_grad_t *there, uint64_t n, size_t row_bytes,
                        struct zps_gpu_grad *here, struct zps_error *error) ZPS_MUSTCHECK;
/* Waits until the GPU has done what was submitted. */
zps_err_t zps_gpu_wait(struct zps_gpu *gpu, struct zps_error *error) ZPS_MUSTCHECK;
/* Says of a gradient or result without arrays that it is on the GPU. */
void zps_gpu_mark(const struct zps_gpu *gpu, zenps_grad_t *grad);
/* Frees the arrays: of the GPU (gpu NULL: there are none), and of host memory. */
void zps_gpu_release(struct zps_gpu *gpu, struct zps_gpu_grad *there);
void zps_gpu_free(struct zps_gpu_grad *here);

#endif
