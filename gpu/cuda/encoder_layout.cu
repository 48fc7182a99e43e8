/* Encoding: scratch memory laid out for a gradient. */
#include "gpu/cuda/encoder.cuh"

namespace zps {

namespace {

Found take_found(Pieces *pieces, u64 capacity, bool with_payloads) {
  Found found = {};
  found.parts = pieces->take<uint16_t>(capacity);
  found.indices = pieces->take<u32>(capacity);
  found.payloads = with_payloads ? pieces->take<u32>(capacity) : nullptr;
  found.capacity = capacity;
  return found;
}

void take_plan(Plan *plan, u64 capacity, Pieces *pieces) {
  const u32 n_parts = plan->part.n_parts;
  const bool is_rice = (plan->allowed & (1u << ZPS_CODEC_RICE | 1u << ZPS_CODEC_HOLES)) != 0;
  const u64 n_blocks = is_rice ? rice_blocks_max(capacity, n_parts) : 0;
  const u64 n_chunks = is_rice ? rice_chunks_max(capacity, n_parts) : 0;
  plan->starts = pieces->take<u64>(n_parts + 1ull);
  plan->hole_starts = pieces->take<u64>(n_parts + 1ull);
  plan->block_starts = pieces->take<u64>(n_parts + 1ull);
  plan->chunk_starts = pieces->take<u64>(n_parts + 1ull);
  plan->bucket_starts = pieces->take<u64>(n_parts + 1ull);
  plan->holes = pieces->take<u32>(capacity);
  plan->functions = pieces->take<u32>(n_blocks);
  plan->costs = pieces->take<uint16_t>(n_blocks * WARP);
  plan->parameters = pieces->take<uint8_t>(n_blocks);
  plan->bits = pieces->take<u32>(n_blocks);
  plan->bit_starts = pieces->take<u64>(n_blocks + 1);
  plan->tables = pieces->take<uint8_t>(n_chunks * WARP);
  plan->chunk_parameters = pieces->take<uint8_t>(n_chunks);
  plan->slices = pieces->take<zps_device_slice>(n_parts);
}

void take_hashing(Layout *layout, u32 n_parts, u64 capacity, Pieces *zeroed, Pieces *pieces) {
  Hashing<u32> *const hashing = &layout->hashing;
  layout->n_numbers = zeroed->take<u64>(1);
  hashing->list_space = pieces->take<u64>(list_space(hashing->n_slots));
  layout->numbers = pieces->take<u32>(capacity);
  hashing->slots = pieces->take<u32>(hashing->n_slots);
  hashing->states = pieces->take<uint8_t>(capacity);
  hashing->counters = pieces->take<u64>(n_parts);
  hashing->counts = pieces->take<u64>(HASH_COUNTS);
  hashing->bits = pieces->take<u32>((hashing->n_slots + WARP - 1) / WARP);
}

/* All of a gradient's scratch memory: first the pieces that have to be zero, then the rest. `n` rows or entries are
 * looked at. */
void take_layout(const zps_device_encoder *encoder, Plan *plan, Layout *layout, u64 n, u64 capacity, Pieces *zeroed,
                 Pieces *pieces) {
  const u32 n_parts = plan->part.n_parts;
  const Shape shape = encoder->shape;
  u64 *const count = zeroed->take<u64>(1);
  layout->n_entries = zeroed->take<u64>(1);
  layout->bad_row = zeroed->take<u64>(1);
  layout->tickets = zeroed->take<Tickets>(TICKETS);
  const u64 of_merge = shape == SHAPE_MERGE ? scan_tiles(layout->merge.n_words) : 0;
  layout->scan_states = zeroed->take<u64>(scan_tiles(rice_blocks_max(capacity, n_parts)) + of_merge);
  if (shape == SHAPE_MERGE) {
    reading_take(&layout->reading, &layout->reading_states, zeroed, pieces);
    layout->merge.bits = zeroed->take<u32>(layout->merge.n_words);
    layout->merge.sums = zeroed->take<char>(capacity * plan->width * plan->format.size);
    layout->list_space = pieces->take<u64>(list_space(layout->merge.n_words * 32));
    layout->merge.counts = pieces->take<u32>(layout->merge.n_words);
    layout->merge.word_counts = pieces->take<u64>(layout->merge.n_words + 1);
  } else {
    layout->list_space = pieces->take<u64>(list_space(n));
    layout->bits = pieces->take<u32>((n + WARP - 1) / WARP);
  }
  const bool has_numbers = shape == SHAPE_HASHED || (shape == SHAPE_DENSE && encoder->source.kind == SOURCE_NUMBERS);
  plan->found = take_found(pieces, capacity, shape == SHAPE_SINGLES || shape == SHAPE_COO || has_numbers);
  plan->found.count = count;
  take_plan(plan, capacity, pieces);
  if (shape == SHAPE_SINGLES || shape == SHAPE_DENSE) {
    layout->other = take_found(pieces, capacity, shape == SHAPE_SINGLES || has_numbers);
    layout->other.count = count;
  }
  if (shape == SHAPE_HASHED) take_hashing(layout, n_parts, capacity, zeroed, pieces);
  const u64 sorted = shape == SHAPE_COO ? n : capacity;
  if (shape == SHAPE_COO || layout->is_sorted) {
    layout->keys = pieces->take<u64>(sorted);
    layout->other_keys = pieces->take<u64>(sorted);
    layout->entries = pieces->take<u32>(sorted);
    layout->other_entries = pieces->take<u32>(sorted);
  }
  if (shape == SHAPE_HASHED && layout->is_list) {
    layout->run_keys = pieces->take<u64>(n);
    layout->other_run_keys = pieces->take<u64>(n);
    layout->run_entries = pieces->take<u32>(n);
    layout->other_run_entries = pieces->take<u32>(n);
  }
  const bool has_halves = zps_dtype_is_half(encoder->source.dtype);
  if (has_halves && !level_bits(plan->format.codec)) plan->wide = zeroed->take<u32>(n_parts);
  if (level_bits(plan->format.codec) && shape != SHAPE_MERGE && (shape != SHAPE_SINGLES || has_halves))
    layout->staged = pieces->take<char>(capacity * plan->width * plan->format.size);
  if (shape == SHAPE_MERGE) return;
  layout->radix_space = pieces->take<u64>(radix_space(sorted));
}

}  // namespace

zps_err_t encoder_lay_out(zps_device_encoder *encoder, Layout *layout, u64 n, u64 capacity, cudaStream_t stream,
                          zps_error *error) {
  const zps_err_t code = scratch_lay_out(&encoder->scratch, stream, error, [&](Pieces *zeroed, Pieces *pieces) {
    take_layout(encoder, &encoder->plan, layout, n, capacity, zeroed, pieces);
  });
  encoder->staged = layout->staged;
  return code;
}

}  // namespace zps
