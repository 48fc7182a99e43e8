/*
 * This rank's gradient, found once per round, to be cut into the ranges that a program's OWN instructions name.
 *
 * Dense gradients: rows that are all zero are left out of sparse cuts. COO rows may come unsorted and repeated: repeats
 * are added in order of appearance. As in common/codec/encode.h, which does it.
 */
#ifndef ZPS_WORKER_COMPUTE_GRADIENT_H
#define ZPS_WORKER_COMPUTE_GRADIENT_H

#include "common/base/workpool.h"
#include "common/codec/codec.h"
#include "worker/schemes/program.h"

struct zps_own_input {
  uint64_t n_rows; /* of the tensor, < 2^32 */
  uint32_t width;
  enum zps_dtype dtype;
  const void *values;  /* dense: n_rows * width; COO: n_entries * width */
  const int64_t *rows; /* COO: n_entries row numbers; NULL: dense */
  uint64_t n_entries;  /* COO */
  bool zero_rows;      /* COO: rows that are given and zero are found, too */
};

struct zps_own;
zps_err_t zps_own_create(struct zps_own **own_p) ZPS_MUSTCHECK;
void zps_own_destroy(struct zps_own *own); /* NULL is allowed */

/* Whether this program's cuts need the scan: all do but those of all rows, or with bits, out of a dense gradient. */
bool zps_own_must_scan(const struct zps_program *program, const struct zps_own_input *input);
/* Before the first OWN of a round; what `input` points to is borrowed until the last. `scan`: finds the rows, which
 * takes a pass over the gradient; spread over `pool` (may be NULL), of which the caller must not be a thread. From here
 * on any number of threads may cut. ZPS_ERR_INVALID names the first bad row number. */
zps_err_t zps_own_begin(struct zps_own *own, const struct zps_own_input *input, bool scan, struct zps_workpool *pool,
                        struct zps_error *error) ZPS_MUSTCHECK;

bool zps_own_is_scanned(const struct zps_own *own);
/* The coding of the values below, which are of type zps_dtype_sum(dtype): that of the dtype itself; raw, for all of a
 * gradient of halves, where sums of repeated rows are no halves. */
enum zps_value_codec zps_own_value_codec(const struct zps_own *own);
/* Rows found in [lo, hi); their numbers less lo; and their values, in the same order. */
uint32_t zps_own_count(const struct zps_own *own, uint64_t lo, uint64_t hi);
void zps_own_indices(const struct zps_own *own, uint64_t lo, uint64_t hi, uint32_t *indices);
void zps_own_values(const struct zps_own *own, uint64_t lo, uint64_t hi, void *values);
/* All rows of [lo, hi), those that were not found as zeros. */
void zps_own_all(const struct zps_own *own, uint64_t lo, uint64_t hi, void *values);
/* Where there was no scan: sets bit i of `bits`, with room up to a multiple of 64, where row lo + i is
 * not zero, writes the values of these rows (`values` has room for all), and returns how many. */
uint32_t zps_own_bits(const struct zps_own *own, uint64_t lo, uint64_t hi, uint64_t *bits, void *values);

#endif
