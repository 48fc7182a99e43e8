/*
 * Rows that a rank asks for: runs of successive local indices of a partition, and their code.
 *
 * A run is one number or two: twice the gap between the run before (its end) and this one, plus 1 where the run has
 * several indices, followed then by their number less 2. Numbers are varints. So one row among others takes a byte or
 * two, and a range of rows, of which each partition has one run, a few bytes.
 */
#ifndef ZPS_CODEC_RUNS_H
#define ZPS_CODEC_RUNS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/codec/buffer.h"
#include "common/codec/codec.h"

struct zps_index_run {
  uint32_t first, n; /* n >= 1 */
};

#define ZPS_RUN_BYTES_MAX 10u

/* Writes a run that follows index `end` (0, or the end of the run before); returns the byte behind it. */
uint8_t *zps_index_run_put(uint8_t *at, uint32_t end, struct zps_index_run run);
/* Reads one, of a peer's: all its indices are below m. ZPS_ERR_PROTOCOL with a text for anything else. */
zps_err_t zps_index_run_get(const uint8_t **at_p, const uint8_t *bytes_end, uint32_t end, uint32_t m,
                            struct zps_index_run *run_p, struct zps_error *error) ZPS_MUSTCHECK;

/* Whether all of `n` ascending indices are in the runs. */
bool zps_runs_have(const struct zps_index_run *runs, size_t n_runs, const uint32_t *indices, uint32_t n);

/* ---- Those rows of a slice, as a slice ---- */

struct zps_picked {
  enum zps_codec codec;
  uint32_t nnz;
  uint64_t len_bytes;
};

/* The most bytes that `n` rows of the slice take, or all of them where it has fewer. */
uint64_t zps_pick_bound(unsigned allowed, const struct zps_slice_view *slice, uint64_t n);
/* Writes the slice's rows in the runs to `out`, in the smallest code out of `allowed`. Runs ascend. Values stay as they
 * are, and must be coded one by one: raw, or 16 bits. `indices` is scratch. */
zps_err_t zps_pick(const struct zps_slice_view *slice, const struct zps_index_run *runs, size_t n_runs,
                   unsigned allowed, struct zps_buffer *indices, void *out, struct zps_picked *picked_p) ZPS_MUSTCHECK;

#endif
