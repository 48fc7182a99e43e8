/* The cost of a partition's slice: the only pass over the indices between finding and writing them. */
#include "common/codec/encode_impl.h"

enum zps_codec zps_encoder_choose(const struct zps_encoder *encoder, uint32_t p, unsigned allowed,
                                  uint64_t *slice_bytes_p) {
  const uint32_t m = zps_partition_size(encoder->input.part, p), z = zps_encoder_nnz(encoder, p);
  const uint32_t *const indices = zps_encoder_indices(encoder, p);
  uint64_t index_bytes;
  const enum zps_codec codec = zps_codec_choose(allowed, m, indices, z, &index_bytes);
  const struct zps_encode_input *const input = &encoder->input;
  const uint64_t n_values = (uint64_t)z * input->width;
  *slice_bytes_p =
      zps_values_bytes(zps_encoder_value_codec(encoder, p), zps_dtype_sum(input->dtype), n_values) + index_bytes;
  return codec;
}
