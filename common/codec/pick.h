/* Some rows of a slice, as a slice. */
#ifndef ZPS_CODEC_PICK_H
#define ZPS_CODEC_PICK_H

#include "common/codec/buffer.h"
#include "common/codec/codec.h"
#include "common/codec/runs.h"

struct zps_picked {
  enum zps_codec codec;
  uint32_t nnz;
  uint64_t len_bytes;
};

/* The most bytes that `n` rows of the slice take, or all of them where it has fewer. */
uint64_t zps_pick_bound(unsigned allowed, const struct zps_slice_view *slice, uint64_t n);
/* Writes those of the slice's rows that are in the runs, which ascend, to `out`, their values as they are, in the
 * smallest code out of `allowed`. Values must be coded one by one: raw, or 16 bits. `indices` is scratch. */
zps_err_t zps_pick(const struct zps_slice_view *slice, const struct zps_index_run *runs, size_t n_runs,
                   unsigned allowed, struct zps_buffer *indices, void *out, struct zps_picked *picked_p) ZPS_MUSTCHECK;

#endif
