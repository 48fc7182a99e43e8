/* The k greatest magnitudes of a few hundred values: SparCML's selection per bucket. */
#ifndef ZPS_WORKER_SPARSIFY_BUCKET_H
#define ZPS_WORKER_SPARSIFY_BUCKET_H

#include "worker/select/scan.h"

/* Appends the k (over 0) greatest of values begin..end-1, fewer when fewer are not zero. `picks` has room for all of
 * them. */
void zps_bucket_pick(enum zps_dtype dtype, const void *values, uint64_t begin, uint64_t end, uint64_t k,
                     struct zps_picks *picks);

#endif
