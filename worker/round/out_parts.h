/*
 * A result that the trainer takes in parts (zenps_part_t): dense ones that rounds over servers filled in place, or what
 * a round has made as one array or list, dealt out to them.
 *
 * A list's rows of a part that brings no arrays stay where they are: the part is a view into the list, whose row
 * numbers are then counted from the part's first row. Everything else is copied.
 */
#ifndef ZPS_WORKER_ROUND_OUT_PARTS_H
#define ZPS_WORKER_ROUND_OUT_PARTS_H

#include "common/base/err.h"
#include "zenps/zenps.h"

struct zps_tensor_shape;

/* Parts of a result; they ascend and do not overlap. */
struct zps_out_parts {
  zenps_part_t *parts;
  uint32_t n;
  uint64_t copied_bytes; /* out: of values and row numbers */
};

/* One list: `nnz` rows, ascending. Where a part's arrays are too small, ZPS_ERR_TRUNCATED: the text names the first
 * such part, and each part's nnz is what it would have; nothing was copied, and the list is as it was. */
zps_err_t zps_out_parts_rows(struct zps_out_parts *split, uint64_t row_bytes, int64_t *row_ids, void *values,
                             uint64_t nnz, struct zps_error *error) ZPS_MUSTCHECK;
/* One dense array of all rows; parts are dense. */
void zps_out_parts_dense(struct zps_out_parts *split, uint64_t row_bytes, const void *values);

#endif
