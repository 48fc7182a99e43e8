/* The vtable's encoder and decoder over common/codec. Work is done when it is submitted; errors in a peer's bytes wait
 * for *_finish(), as on a device. */
#include <stdlib.h>
#include <string.h>

#include "common/codec/buffer.h"
#include "common/codec/codec_choice.h"
#include "common/codec/decode.h"
#include "common/codec/reduce.h"
#include "tests/support/device_cpu.h"

struct zps_device_encoder {
  struct zps_device_cpu *device;
  struct zps_encoder *encoder;
  struct zps_partition part;
  struct zps_encode_input shape; /* of a merge */
  struct zps_buffer slices;      /* struct zps_device_slice[n_parts] */
  zps_err_t code;                /* of the last merge, and why */
  struct zps_error error;
  /* A merge's sums; NULL offsets none: the slices are the encoder's. */
  bool is_merge;
  struct zps_reduce_scratch *scratch;
  struct zps_buffer sums, offsets, views, recode;
};

struct zps_device_decoder {
  struct zps_buffer views;
  struct zps_decode_scratch scratch;
  zps_err_t code;
  struct zps_error error;
};

zps_err_t zps_cpu_encoder_create(struct zps_device *device, struct zps_device_encoder **encoder_p,
                                 struct zps_error *error) {
  struct zps_device_encoder *const made = calloc(1, sizeof *made);
  if (made) made->device = zps_device_cpu_of(device);
  if (!made || zps_encoder_create(ZPS_PARTITIONER_STRATIFIED, &made->encoder) != ZPS_OK ||
      zps_reduce_scratch_create(&made->scratch) != ZPS_OK) {
    zps_cpu_encoder_destroy(made);
    return zps_fail(error, ZPS_ERR_NOMEM, "no memory for an encoder");
  }
  *encoder_p = made;
  return ZPS_OK;
}

void zps_cpu_encoder_destroy(struct zps_device_encoder *encoder) {
  if (!encoder) return;
  zps_encoder_destroy(encoder->encoder);
  zps_reduce_scratch_destroy(encoder->scratch);
  struct zps_buffer *const buffers[] = {&encoder->slices, &encoder->sums, &encoder->offsets, &encoder->views,
                                        &encoder->recode};
  for (unsigned i = 0; i < sizeof buffers / sizeof buffers[0]; i++) zps_buffer_fini(buffers[i]);
  free(encoder);
}

zps_err_t zps_cpu_encoder_scan(struct zps_device_encoder *encoder, const struct zps_encode_input *input,
                               unsigned allowed, zps_stream_t stream, struct zps_error *error) {
  (void)stream;
  encoder->part = *input->part;
  encoder->is_merge = false;
  encoder->code = zps_buffer_need(&encoder->slices, input->part->n_parts, sizeof(struct zps_device_slice));
  if (encoder->code != ZPS_OK) return zps_fail(error, encoder->code, "no memory for %u slices", input->part->n_parts);
  encoder->code = zps_encoder_scan(encoder->encoder, input, encoder->device->pool, &encoder->error);
  if (encoder->code != ZPS_OK) return ZPS_OK;
  struct zps_device_slice *const slices = encoder->slices.data;
  for (uint32_t p = 0; p < encoder->part.n_parts; p++) {
    slices[p].nnz = zps_encoder_nnz(encoder->encoder, p);
    slices[p].codec = (uint16_t)zps_encoder_choose(encoder->encoder, p, allowed, &slices[p].len_bytes);
    slices[p].value_codec = (uint16_t)zps_encoder_value_codec(encoder->encoder, p);
  }
  return ZPS_OK;
}

static zps_err_t open_view(const struct zps_partition *part, uint32_t width, enum zps_dtype dtype,
                           const struct zps_device_view *from, struct zps_slice_view *view, struct zps_error *error) {
  return zps_slice_view_init(view, from->codec, zps_partition_size(part, from->partition), from->nnz, width, dtype,
                             (enum zps_value_codec)from->value_codec, from->payload_on_device, from->len_bytes, error);
}

/* The codec that the ranks' sum is made in, before its ranks are known. */
static enum zps_codec plain_codec(const struct zps_slice_view *views, unsigned n_ranks, unsigned allowed) {
  uint64_t n_rows = 0;
  for (unsigned rank = 0; rank < n_ranks; rank++) n_rows += views[rank].z;
  return zps_codec_plain(allowed, views->m, n_rows < views->m ? (uint32_t)n_rows : views->m);
}

/* Adds up a partition at `out`. */
static zps_err_t merge_partition(struct zps_device_encoder *encoder, const struct zps_slice_view *views,
                                 unsigned n_ranks, unsigned allowed, struct zps_device_slice *slice, char *out) {
  const enum zps_codec plain = plain_codec(views, n_ranks, allowed);
  uint64_t len_bytes;
  zps_err_t code = zps_reduce(encoder->scratch, views, n_ranks, ZPS_OP_SUM, plain, NULL, out, &slice->nnz, &len_bytes);
  if (code != ZPS_OK) return code;
  struct zps_slice_view sum;
  code = zps_slice_view_init(&sum, plain, views->m, slice->nnz, views->width, views->dtype, ZPS_VALUES_RAW, out,
                             len_bytes, &encoder->error);
  if (code == ZPS_OK) code = zps_slice_recode(&sum, allowed, &encoder->recode);
  if (code != ZPS_OK) return code;
  slice->codec = (uint16_t)sum.codec;
  slice->value_codec = (uint16_t)encoder->shape.value_codec;
  slice->len_bytes =
      zps_values_bytes(encoder->shape.value_codec, sum.dtype, (uint64_t)sum.z * sum.width) + sum.index_bytes;
  return code;
}

zps_err_t zps_cpu_encoder_merge(struct zps_device_encoder *encoder, const struct zps_encode_input *shape,
                                const struct zps_device_view *from, unsigned n_ranks, unsigned allowed,
                                zps_stream_t stream, struct zps_error *error) {
  (void)stream;
  const struct zps_partition *const part = shape->part;
  const uint32_t n_parts = part->n_parts;
  encoder->part = *part;
  encoder->shape = *shape;
  encoder->is_merge = true;
  zps_err_t code = zps_buffer_need(&encoder->slices, n_parts, sizeof(struct zps_device_slice));
  if (code == ZPS_OK) code = zps_buffer_need(&encoder->offsets, n_parts + 1ull, sizeof(uint64_t));
  if (code == ZPS_OK)
    code = zps_buffer_need(&encoder->views, (uint64_t)n_parts * n_ranks, sizeof(struct zps_slice_view));
  if (code != ZPS_OK) return zps_fail(error, code, "no memory for %u slices", n_parts);
  uint64_t *const offsets = encoder->offsets.data;
  struct zps_slice_view *const views = encoder->views.data; /* by partition, then rank */
  offsets[0] = 0;
  for (uint32_t p = 0; p < n_parts; p++) {
    struct zps_slice_view *const of_part = views + (uint64_t)p * n_ranks;
    for (unsigned rank = 0; rank < n_ranks; rank++) {
      encoder->code =
          open_view(part, shape->width, shape->dtype, &from[rank * n_parts + p], &of_part[rank], &encoder->error);
      if (encoder->code != ZPS_OK) return ZPS_OK;
    }
    const uint64_t bound = zps_reduce_bound(of_part, n_ranks, plain_codec(of_part, n_ranks, allowed));
    offsets[p + 1] = offsets[p] + ((bound + 7) & ~7ull);
  }
  code = zps_buffer_need(&encoder->sums, offsets[n_parts], 1);
  if (code != ZPS_OK)
    return zps_fail(error, code, "no memory for sums of %llu bytes", (unsigned long long)offsets[n_parts]);
  struct zps_device_slice *const slices = encoder->slices.data;
  for (uint32_t p = 0; p < n_parts && code == ZPS_OK; p++)
    code = merge_partition(encoder, views + (uint64_t)p * n_ranks, n_ranks, allowed, &slices[p],
                           (char *)encoder->sums.data + offsets[p]);
  return code == ZPS_OK ? ZPS_OK : zps_fail(error, code, "adding up the ranks of this host: %s", zps_err_str(code));
}

zps_err_t zps_cpu_encoder_finish(struct zps_device_encoder *encoder, const struct zps_device_slice **slices_p,
                                 struct zps_error *error) {
  if (encoder->code != ZPS_OK) return zps_fail(error, encoder->code, "%s", encoder->error.text);
  *slices_p = encoder->slices.data;
  return ZPS_OK;
}

struct writing {
  struct zps_device_encoder *encoder;
  void *const *outs;
};

/* A sum's values are raw until here. */
static void write_sum(const struct zps_device_encoder *encoder, uint32_t p, char *out) {
  const struct zps_device_slice *const slice = (const struct zps_device_slice *)encoder->slices.data + p;
  const struct zps_encode_input *const shape = &encoder->shape;
  const char *const sum = (const char *)encoder->sums.data + ((const uint64_t *)encoder->offsets.data)[p];
  const uint64_t n = (uint64_t)slice->nnz * shape->width, raw_bytes = n * zps_dtype_size(shape->dtype);
  const uint64_t values_bytes = zps_values_bytes(shape->value_codec, shape->dtype, n);
  zps_values_encode(shape->value_codec, shape->dtype, sum, n, zps_values_key(&shape->origin, p), out);
  if (slice->len_bytes > values_bytes) memcpy(out + values_bytes, sum + raw_bytes, slice->len_bytes - values_bytes);
}

static void write_partition(void *ctx, unsigned p) {
  const struct writing *const writing = ctx;
  const struct zps_device_encoder *const encoder = writing->encoder;
  const struct zps_device_slice *const slice = (const struct zps_device_slice *)encoder->slices.data + p;
  if (!writing->outs[p]) return;
  if (encoder->is_merge)
    write_sum(encoder, p, writing->outs[p]);
  else
    zps_encoder_write(encoder->encoder, p, (enum zps_codec)slice->codec, writing->outs[p]);
}

zps_err_t zps_cpu_encoder_write(struct zps_device_encoder *encoder, void *const *outs, zps_stream_t stream,
                                struct zps_error *error) {
  (void)stream;
  (void)error;
  struct writing writing = {.encoder = encoder, .outs = outs};
  zps_workpool_for(encoder->device->pool, encoder->part.n_parts, write_partition, &writing);
  return ZPS_OK;
}

/* ------------------------------------------------------------ decoding */

zps_err_t zps_cpu_decoder_create(struct zps_device *device, struct zps_device_decoder **decoder_p,
                                 struct zps_error *error) {
  (void)device;
  struct zps_device_decoder *const made = calloc(1, sizeof *made);
  if (!made) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for a decoder");
  *decoder_p = made;
  return ZPS_OK;
}

void zps_cpu_decoder_destroy(struct zps_device_decoder *decoder) {
  if (!decoder) return;
  zps_buffer_fini(&decoder->views);
  zps_decode_scratch_fini(&decoder->scratch);
  free(decoder);
}

zps_err_t zps_cpu_decoder_dense(struct zps_device_decoder *decoder, const struct zps_partition *part, uint32_t width,
                                enum zps_dtype dtype, const struct zps_device_view *views, unsigned n_views,
                                void *dense, zps_stream_t stream, struct zps_error *error) {
  (void)stream;
  (void)error;
  decoder->code = ZPS_OK;
  for (unsigned v = 0; v < n_views && decoder->code == ZPS_OK; v++) {
    struct zps_slice_view view;
    decoder->code = open_view(part, width, dtype, &views[v], &view, &decoder->error);
    if (decoder->code == ZPS_OK) zps_decode_dense(part, views[v].partition, &view, dense);
  }
  return ZPS_OK;
}

zps_err_t zps_cpu_decoder_rows(struct zps_device_decoder *decoder, const struct zps_partition *part, uint32_t width,
                               enum zps_dtype dtype, const struct zps_device_view *views, unsigned n_views,
                               int64_t *rows, void *values, zps_stream_t stream, struct zps_error *error) {
  (void)stream;
  zps_err_t code = zps_buffer_need(&decoder->views, part->n_parts, sizeof(struct zps_slice_view));
  if (code != ZPS_OK) return zps_fail(error, code, "no memory for %u views", part->n_parts);
  struct zps_slice_view *const all = decoder->views.data;
  for (uint32_t p = 0; p < part->n_parts; p++)
    all[p] = zps_slice_view_own(ZPS_CODEC_COO, zps_partition_size(part, p), 0, width, dtype, ZPS_VALUES_RAW, NULL, 0);
  decoder->code = ZPS_OK;
  for (unsigned v = 0; v < n_views && decoder->code == ZPS_OK; v++)
    decoder->code = open_view(part, width, dtype, &views[v], &all[views[v].partition], &decoder->error);
  if (decoder->code != ZPS_OK) return ZPS_OK;
  code = zps_decode_rows(part, all, NULL, &decoder->scratch, rows, values);
  return code == ZPS_OK ? ZPS_OK : zps_fail(error, code, "no memory to put a result's rows in order");
}

zps_err_t zps_cpu_decoder_finish(struct zps_device_decoder *decoder, struct zps_error *error) {
  return decoder->code == ZPS_OK ? ZPS_OK : zps_fail(error, decoder->code, "%s", decoder->error.text);
}
