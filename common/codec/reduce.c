#include "common/codec/reduce.h"

#include <string.h>

#include "common/codec/reduce_internal.h"
#include "common/codec/simd.h"

zps_err_t zps_reduce_scratch_create(struct zps_reduce_scratch **scratch_p) {
  struct zps_reduce_scratch *const scratch = calloc(1, sizeof *scratch);
  if (!scratch) return ZPS_ERR_NOMEM;
  *scratch_p = scratch;
  return ZPS_OK;
}

void zps_reduce_scratch_destroy(struct zps_reduce_scratch *scratch) {
  if (!scratch) return;
  struct zps_buffer *const buffers[] = {&scratch->singles, &scratch->taken, &scratch->slots,   &scratch->ranks,
                                        &scratch->index,   &scratch->ahead, &scratch->cursors, &scratch->widened};
  for (unsigned i = 0; i < sizeof buffers / sizeof buffers[0]; i++) zps_buffer_fini(buffers[i]);
  free(scratch);
}

/* The most rows that the union can have. */
static uint32_t union_bound(const struct zps_slice_view *views, unsigned n_views) {
  uint64_t z = 0;
  for (unsigned i = 0; i < n_views; i++) z += views[i].z;
  return z < views->m ? (uint32_t)z : views->m;
}

uint64_t zps_reduce_bound(const struct zps_slice_view *views, unsigned n_views, enum zps_codec codec) {
  return zps_codec_slice_bytes(codec, views->m, union_bound(views, n_views), views->width, views->dtype,
                               ZPS_VALUES_RAW);
}

/* The first chunk at which a contribution has a row; false when none is left. */
static bool next_chunk(const struct zps_reduction *reduction, uint32_t *base_p) {
  uint32_t rank = UINT32_MAX;
  for (unsigned i = 0; i < reduction->n_views; i++) {
    const uint32_t next = zps_rank_cursor_peek(&reduction->cursors[i]);
    if (next < rank) rank = next;
  }
  *base_p = rank & ~(reduction->chunk_rows - 1);
  return rank != UINT32_MAX;
}

ZPS_MUSTCHECK static zps_err_t prepare(struct zps_reduction *reduction, bool singles) {
  struct zps_reduce_scratch *const scratch = reduction->scratch;
  const uint64_t index_bytes = reduction->codec == ZPS_CODEC_BITMAP
                                   ? zps_codec_index_bytes(ZPS_CODEC_BITMAP, reduction->views->m, 0)
                                   : reduction->rows_max * sizeof(uint32_t);
  zps_err_t code = zps_buffer_need(&scratch->cursors, reduction->n_views, sizeof(struct zps_rank_cursor));
  if (code == ZPS_OK) code = zps_buffer_need(&scratch->index, index_bytes + ZPS_SIMD_SLACK * sizeof(uint32_t), 1);
  if (code != ZPS_OK) return code;
  reduction->cursors = scratch->cursors.data;
  reduction->index = scratch->index.data;
  for (unsigned i = 0; i < reduction->n_views; i++) zps_rank_cursor_init(&reduction->cursors[i], &reduction->views[i]);
  return singles ? zps_reduction_need_singles(reduction) : zps_reduction_need_rows(reduction);
}

zps_err_t zps_reduce(struct zps_reduce_scratch *scratch, const struct zps_slice_view *views, unsigned n_views,
                     enum zps_op op, enum zps_codec codec, void *out, uint32_t *nnz_p, uint64_t *len_bytes_p) {
  const uint32_t m = views->m;
  if (op == ZPS_OP_MEAN && views->dtype == ZPS_DTYPE_U8) return ZPS_ERR_UNSUPPORTED;
  struct zps_reduction reduction = {.scratch = scratch,
                                    .views = views,
                                    .n_views = n_views,
                                    .dtype = views->dtype,
                                    .width = views->width,
                                    .row_bytes = views->width * (uint64_t)zps_dtype_size(views->dtype),
                                    .codec = codec,
                                    .op = op == ZPS_OP_MEAN ? ZPS_OP_SUM : op,
                                    .divisor = op == ZPS_OP_MEAN ? n_views : 1,
                                    .out = out,
                                    .rows_max = union_bound(views, n_views)};
  const bool singles = views->dtype == ZPS_DTYPE_F32 && views->width == 1 && reduction.op == ZPS_OP_SUM;
  const zps_err_t code = prepare(&reduction, singles);
  if (code != ZPS_OK) return code;
  for (uint32_t base; next_chunk(&reduction, &base);) {
    const uint32_t end = m - base > reduction.chunk_rows ? base + reduction.chunk_rows : m;
    (singles ? zps_reduction_sum_singles : zps_reduction_sum_rows)(&reduction, base, end);
  }
  const uint64_t values_bytes = reduction.z * reduction.row_bytes;
  *nnz_p = reduction.z;
  const uint64_t index_bytes = zps_codec_index_bytes(codec, m, reduction.z);
  if (codec == ZPS_CODEC_BITMAP) zps_reduction_clear_index(&reduction, (uint32_t)(index_bytes / sizeof(uint32_t)));
  if (index_bytes) memcpy(reduction.out + values_bytes, reduction.index, index_bytes);
  *len_bytes_p = values_bytes + index_bytes;
  return ZPS_OK;
}
