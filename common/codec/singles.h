/* Single floats of several contributions, added up in accumulators of a chunk of indices at a time: shared by sums and
 * results. */
#ifndef ZPS_CODEC_SINGLES_H
#define ZPS_CODEC_SINGLES_H

#include "common/codec/codec.h"

#define ZPS_SINGLES_CHUNK_MAX 32768u

/* Indices of a chunk: their accumulators and the bytes read beside them stay in the first-level cache, or not far
 * beyond it where little is added. A power of two. */
uint32_t zps_singles_chunk(const struct zps_slice_view *views, unsigned n_views);
/* Decodes the contribution's indices [base, end), of one chunk, and adds their values to `sums`, where the accumulator
 * of index `base` is; these are -0.0 before anything was added, which no sum that started at +0.0 can be. `widened` has
 * room for a chunk's values, and is used where they travel narrow. */
void zps_singles_add(struct zps_index_cursor *cursor, uint32_t base, uint32_t end, float *sums, void *widened);

#endif
