/*
 * OmniReduce's view of a tensor: its values one after the other, cut into blocks of 256, of which those travel that are
 * not all zero. For the rest of the library such a block is a row; here is the way from a trainer's gradient to these
 * rows, and back. The last block is filled up with zeros.
 *
 * Pool threads; one round at a time. Memory is kept from round to round.
 */
#ifndef ZPS_WORKER_SERVED_BLOCKS_H
#define ZPS_WORKER_SERVED_BLOCKS_H

#include "common/codec/buffer.h"
#include "common/codec/encode.h"
#include "worker/round/tensor.h"

#define ZPS_BLOCK_VALUES 256u

struct zps_blocks {
  struct zps_tensor_shape shape;
  uint32_t *slots;          /* per block: its place in `ids` and `values`, plus 1; all 0 between rounds */
  struct zps_buffer ids;    /* int64_t: blocks that rows lie in, as they appear */
  struct zps_buffer values; /* of these blocks; dense: of the last block */
};

/* How many blocks a tensor has. */
uint64_t zps_blocks_count(const struct zps_tensor_shape *shape);

void zps_blocks_init(struct zps_blocks *blocks, const struct zps_tensor_shape *shape);
void zps_blocks_fini(struct zps_blocks *blocks);
/* Makes `input`, of a tensor of zps_blocks_count() rows of 256 values, from a dense array (`rows` NULL) or `n` rows,
 * unsorted and repeated as they may be: their values are added in order of appearance, halves as floats, which they are
 * sent as where a sum is no half. The array is borrowed until the
 * last zps_encoder_write(). ZPS_ERR_INVALID names the first bad row number. */
zps_err_t zps_blocks_input(struct zps_blocks *blocks, const void *values, const int64_t *rows, uint64_t n,
                           struct zps_encode_input *input, struct zps_error *error) ZPS_MUSTCHECK;

/* Rows that are not all zero of `n` blocks with ascending numbers `ids`: returns how many, and writes them where `rows`
 * is not NULL. */
uint64_t zps_blocks_rows(const struct zps_tensor_shape *shape, const int64_t *ids, const void *blocks, uint64_t n,
                         int64_t *rows, void *values);

#endif
