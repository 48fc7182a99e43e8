/*
 * The gradients of a host's ranks, added up on one rank's device: each offers what it has in memory that others may
 * reach, the master reaches all of them, and merges.
 *
 * An offer is a list of COO slices in memory of this object, coded as for host staging (host.h), and a vector of
 * doubles that tells others where it is. The memory is never given back before the object goes: a rank whose round
 * failed may be reading still. Offers of other ranks are checked for their sizes; what lies there is checked by the
 * device.
 *
 * For the device's thread for gradients; calls submit to the stream of the caller's gradient, and wait for it until the
 * deadline. Kept from round to round; all zero at first.
 */
#ifndef ZPS_WORKER_DEVICE_MERGE_H
#define ZPS_WORKER_DEVICE_MERGE_H

#include "common/codec/buffer.h"
#include "gpu/device.h"
#include "worker/device/host.h"
#include "zenps/zenps.h"

struct zps_worker_device;

/* Tensors of more partitions (host.h) are merged in host memory. */
enum { ZPS_OFFER_PARTS = 4, ZPS_OFFER_LEN = 2 + ZPS_OFFER_PARTS + ZPS_DEVICE_HANDLE_BYTES / 4 };
/* The gradient is not on a device, or not where others reach it. */
enum { ZPS_OFFER_NONE = 0, ZPS_OFFER_SLICES = 1 };

struct zps_merge_ranks;
struct zps_merge {
  struct zps_device_encoder *encoder;
  struct zps_device_decoder *decoder;
  struct zps_stage_mark mark; /* behind what was submitted last */
  void *offered;              /* on the device, and what its predecessors were, which others may have mapped */
  size_t offered_cap;
  void *retired[64]; /* each is at least twice the one before */
  unsigned n_retired;
  void *slices, *rows, *values; /* merged, on the device: coded, and as rows */
  size_t slices_cap, rows_cap, values_cap;
  void **reached; /* of other ranks, while they are mapped */
  uint32_t n_reached, cap_reached;
  struct zps_buffer views, host_rows, host_values;
};

/* Fills an offer of ZPS_OFFER_LEN doubles: of none where the device's memory cannot be shared. */
zps_err_t zps_merge_offer(struct zps_merge *merge, struct zps_host_in *in, struct zps_worker_device *device,
                          const struct zps_tensor_shape *shape, const zenps_grad_t *grad, uint64_t deadline_ns,
                          double *offer, struct zps_error *error) ZPS_MUSTCHECK;
/* The rows in an offer. */
uint64_t zps_merge_offer_rows(const double *offer);

/* Maps what `n` ranks offer, one offer behind the other, the first our own. False, and nothing is mapped: one of them
 * offers nothing, or cannot be reached; *why_p is then what says so, or NULL. */
bool zps_merge_reach(struct zps_merge *merge, struct zps_worker_device *device, const struct zps_tensor_shape *shape,
                     const double *offers, uint32_t n, struct zps_error *why);
/* Adds them up in this order, and unmaps them. *merged_p: rows on the device, in memory of `merge`. */
zps_err_t zps_merge_run(struct zps_merge *merge, struct zps_worker_device *device, const struct zps_tensor_shape *shape,
                        const double *offers, uint32_t n, zps_stream_t stream, uint64_t deadline_ns,
                        zenps_grad_t *merged_p, struct zps_error *error) ZPS_MUSTCHECK;
/* The same rows in host memory. */
zps_err_t zps_merge_fetch(struct zps_merge *merge, struct zps_worker_device *device,
                          const struct zps_tensor_shape *shape, uint64_t deadline_ns, zenps_grad_t *merged,
                          struct zps_error *error) ZPS_MUSTCHECK;
/* Unmaps what is mapped, in a round that has failed. */
void zps_merge_let_go(struct zps_merge *merge, struct zps_worker_device *device);
void zps_merge_fini(struct zps_merge *merge, struct zps_worker_device *device);

#endif
