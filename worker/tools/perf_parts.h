/* --parts: a case's gradient and result as even parts, each with arrays of its own where it is a list. */
#ifndef ZPS_TOOLS_PERF_PARTS_H
#define ZPS_TOOLS_PERF_PARTS_H

#include <zenps/zenps.h>

#include "common/base/err.h"

struct perf_parts {
  uint32_t n;
  uint64_t rows;
  size_t row_bytes;
  zenps_part_t *in, *out;
  zenps_grad_t in_grad;
  int64_t *ids; /* of the gradient's lists, one part's after the other's; of a result that is a list, from row 0 on */
  int64_t *joined;
  void *values;
  uint64_t *places; /* [n + 1] */
};

/* `in` as it is filled each time: dense, or a list of at most `entries`. */
zps_err_t perf_parts_init(struct perf_parts *parts, uint32_t n, uint64_t rows, size_t row_bytes, const zenps_grad_t *in,
                          uint64_t entries, struct zps_error *error) ZPS_MUSTCHECK;
void perf_parts_fini(struct perf_parts *parts);
/* Cuts the gradient, which has new entries. */
void perf_parts_cut(struct perf_parts *parts, const zenps_grad_t *in);
/* Cuts `out` into parts: of its dense array, or lists of the library's. */
void perf_parts_out(struct perf_parts *parts, zenps_grad_t *out);
/* Makes one list of a result's. */
zps_err_t perf_parts_join(struct perf_parts *parts, zenps_grad_t *out, struct zps_error *error) ZPS_MUSTCHECK;

#endif
