/*
 * The rows of a sum that a rank asks for: a range or a list, as runs of local indices by partition. Made once by the
 * trainer's thread, then read by any.
 */
#ifndef ZPS_WORKER_ROUND_PULL_ROWS_H
#define ZPS_WORKER_ROUND_PULL_ROWS_H

#include "common/codec/codec.h"
#include "common/codec/partition.h"
#include "common/codec/runs.h"
#include "common/codec/sort.h"

struct zps_wants_part {
  const struct zps_index_run *runs; /* ascending */
  uint64_t n_runs;
  uint32_t n_rows; /* in them */
};

struct zps_wants {
  uint64_t first, count;        /* rows [first, first + count); of a list, how many rows it names */
  struct zps_sort_pair *by_row; /* a list's rows (keys), ascending, with their places; NULL: a range */
  struct zps_index_run *runs;   /* of all partitions */
  struct zps_wants_part parts[];
};

/* Row numbers of a list (`rows`, any order, repeated or none; NULL: a range) must be those of the tensor.
 * ZPS_ERR_INVALID names the first that is not. */
zps_err_t zps_wants_create(const struct zps_partition *part, uint64_t first, uint64_t count, const int64_t *rows,
                           struct zps_wants **wants_p, struct zps_error *error) ZPS_MUSTCHECK;
void zps_wants_destroy(struct zps_wants *wants); /* NULL is allowed */
/* Whether all rows of a sum of partition `p` were asked for. */
bool zps_wants_have(const struct zps_wants *wants, uint32_t p, const struct zps_slice_view *sum);
/* Puts `n` rows, ascending and all of them asked for, to the places that the caller named, and zeros to those that are
 * not among them. `out` has a row for each place. */
void zps_wants_put(const struct zps_wants *wants, const int64_t *rows, const void *values, uint64_t n,
                   uint64_t row_bytes, void *out);

#endif
