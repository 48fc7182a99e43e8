/* Encoding: the order of the kernels. */
#include <new>

#include "gpu/cuda/encoder.cuh"

namespace zps {

enum { DENSITY_GUESS = 16, CAPACITY_MIN = 4096 };

zps_err_t encoder_create(zps_device *device, zps_device_encoder **encoder_p, zps_error *error) {
  zps_device_encoder *const made = new (std::nothrow) zps_device_encoder();
  if (!made) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for an encoder");
  made->device = device_of(device);
  *encoder_p = made;
  return ZPS_OK;
}

void encoder_destroy(zps_device_encoder *encoder) {
  if (!encoder) return;
  const Current current(encoder->device);
  scratch_release(&encoder->scratch);
  table_release(&encoder->outs);
  table_release(&encoder->tables);
  table_release(&encoder->word_starts);
  table_release(&encoder->extra);
  (void)cudaFreeHost(encoder->report);
  delete[] encoder->views;
  delete[] encoder->extra_counts;
  delete encoder;
}

namespace {

zps_err_t need_report(zps_device_encoder *encoder, u32 n_parts, zps_error *error) {
  if (encoder->report && n_parts <= encoder->slices_max) return ZPS_OK;
  (void)cudaFreeHost(encoder->report);
  encoder->report = nullptr;
  encoder->slices_max = 0;
  void *memory;
  const zps_err_t code =
      pinned_new(&memory, sizeof(Report) + n_parts * (sizeof(zps_device_slice) + sizeof(u64)), error);
  if (code != ZPS_OK) return code;
  encoder->report = static_cast<Report *>(memory);
  encoder->slices_max = n_parts;
  return ZPS_OK;
}

}  // namespace

CooRuns sort_entries(zps_device_encoder *encoder, const Layout &layout, const zps_encode_input &input,
                     const Columns<u64> &keys, const Columns<u64> &other, cudaStream_t stream) {
  const Grid &grid = encoder->device->grid;
  const zps_partition &part = encoder->plan.part;
  const u64 n = input.n_entries;
  RadixDigits digits = {};
  add_digits(&digits, (part.n_groups << part.block_bits) - 1, 0);
  add_digits(&digits, part.n_parts - 1, 32);
  encoder->report->n_entries = n;
  (void)cudaMemcpyAsync(layout.n_entries, &encoder->report->n_entries, sizeof(u64), cudaMemcpyDefault, stream);
  coo_keys(stream, grid, input.rows, n, part, keys.keys, keys.a, layout.bad_row);
  const bool moved = radix_sort(stream, grid, keys, other, layout.n_entries, n, digits, layout.radix_space);
  const CooRuns runs = {moved ? other.keys : keys.keys, moved ? other.a : keys.a, n};
  coo_mark(stream, grid, input.dtype, input.values, input.width, runs, layout.bits, encoder->plan.wide);
  (void)cudaMemcpyAsync(&encoder->report->bad_row, layout.bad_row, sizeof(u64), cudaMemcpyDefault, stream);
  encoder->source.runs = runs;
  return runs;
}

namespace {

/* Lists rows in order, and deals them to their partitions. */
void scan_dense(zps_device_encoder *encoder, const Layout &layout, const zps_encode_input &input, cudaStream_t stream) {
  const Grid &grid = encoder->device->grid;
  Plan *const plan = &encoder->plan;
  RadixDigits digits = {};
  add_digits(&digits, plan->part.n_parts - 1, 0);
  /* So that the last pass ends in the plan's list. */
  const Found &listed = digits.n % 2 ? layout.other : plan->found, &other = digits.n % 2 ? plan->found : layout.other;
  mark_rows(stream, grid, input.dtype, input.values, input.width, plan->part.rows, layout.bits);
  if (encoder->shape == SHAPE_SINGLES)
    list_singles(stream, grid, input.dtype, layout.bits, input.values, plan->part, listed, layout.list_space);
  else
    list_rows(stream, grid, layout.bits, plan->part, listed, layout.list_space);
  const Columns<uint16_t> from = {listed.parts, listed.indices, listed.payloads};
  const Columns<uint16_t> to = {other.parts, other.indices, other.payloads};
  (void)radix_sort(stream, grid, from, to, listed.count, listed.capacity, digits, layout.radix_space);
}

/* Sorts entries, and lists the runs. */
void scan_coo(zps_device_encoder *encoder, const Layout &layout, const zps_encode_input &input, cudaStream_t stream) {
  const Columns<u64> keys = {layout.keys, layout.entries, nullptr},
                     other = {layout.other_keys, layout.other_entries, nullptr};
  const CooRuns runs = sort_entries(encoder, layout, input, keys, other, stream);
  coo_list(stream, encoder->device->grid, layout.bits, runs, encoder->plan.found, layout.list_space);
}

}  // namespace

zps_err_t plan_slices(zps_device_encoder *encoder, const Layout &layout, cudaStream_t stream, zps_error *error) {
  const Grid &grid = encoder->device->grid;
  const Plan &plan = encoder->plan;
  plan_parts(stream, grid, plan);
  if (plan.allowed & (1u << ZPS_CODEC_RICE | 1u << ZPS_CODEC_HOLES))
    rice_plan(stream, grid, plan, layout.tickets + TICKET_RICE, layout.scan_states);
  plan_choose(stream, grid, plan);
  (void)cudaMemcpyAsync(&encoder->report->count, plan.found.count, sizeof(u64), cudaMemcpyDefault, stream);
  (void)cudaMemcpyAsync(slices_of(encoder), plan.slices, plan.part.n_parts * sizeof *plan.slices, cudaMemcpyDefault,
                        stream);
  return check_launches(error, "encoding");
}

namespace {

zps_err_t check_allowed(unsigned allowed, zps_error *error) {
  if (allowed & (1u << ZPS_CODEC_COO | 1u << ZPS_CODEC_BITMAP | 1u << ZPS_CODEC_COO_ANY)) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_UNSUPPORTED, "codecs %x: a device writes coo or bitmap where these are smaller",
                  allowed);
}

}  // namespace

zps_err_t open_plan(zps_device_encoder *encoder, Shape shape, const zps_encode_input &input, unsigned allowed,
                    zps_error *error) {
  const zps_partition &part = *input.part;
  const u32 value_bytes = static_cast<u32>(value_size(input.dtype));
  if (value_bytes * static_cast<u64>(input.width) == 0)
    return zps_fail(error, ZPS_ERR_INVALID, "rows of %u elements of dtype %d: there must be a dtype and an element",
                    input.width, static_cast<int>(input.dtype));
  if (!values_suit(input.value_codec, input.dtype))
    return zps_fail(error, ZPS_ERR_INVALID, "values of dtype %d do not travel as codec %d",
                    static_cast<int>(input.dtype), static_cast<int>(input.value_codec));
  if (zps_partition_is_hashed(&part) && !part.table.on_device.ranks)
    return zps_fail(error, ZPS_ERR_INVALID, "the table of %llu hashed rows is not on the device",
                    static_cast<u64>(part.rows));
  zps_err_t code = check_allowed(allowed, error);
  if (code == ZPS_OK) code = need_report(encoder, part.n_parts, error);
  if (code != ZPS_OK) return code;
  encoder->shape = shape;
  encoder->plan = Plan();
  encoder->plan.part = zps_partition_on_device(part);
  encoder->plan.allowed = allowed;
  encoder->plan.width = input.width;
  encoder->plan.format = {static_cast<u32>(input.value_codec), value_bytes};
  encoder->plan.origin = input.origin;
  encoder->source = Source();
  encoder->source.dtype = input.dtype;
  encoder->source.width = input.width;
  *encoder->report = Report();
  encoder->report->bad_row = ~0ull;
  return ZPS_OK;
}

u64 dense_capacity(const zps_device_encoder *encoder, u64 n) {
  u64 capacity = encoder->capacity;
  if (capacity < n / DENSITY_GUESS) capacity = n / DENSITY_GUESS;
  if (capacity < CAPACITY_MIN) capacity = CAPACITY_MIN;
  return capacity > n ? n : capacity;
}

zps_err_t encoder_scan(zps_device_encoder *encoder, const zps_encode_input *input, unsigned allowed,
                       zps_stream_t stream_, zps_error *error) {
  const Current current(encoder->device);
  cudaStream_t const stream = static_cast<cudaStream_t>(stream_);
  const zps_partition &part = *input->part;
  const Shape shape = input->rows ? SHAPE_COO : is_single(input->dtype, input->width) ? SHAPE_SINGLES : SHAPE_DENSE;
  zps_err_t code = open_plan(encoder, shape, *input, allowed, error);
  if (code != ZPS_OK) return code;
  encoder->source.values = input->values;
  u64 n = part.rows, capacity = dense_capacity(encoder, n);
  if (shape == SHAPE_COO) {
    if (input->n_entries > UINT32_MAX)
      return zps_fail(error, ZPS_ERR_UNSUPPORTED, "%llu entries: a GPU sorts up to 2^32 - 1",
                      static_cast<u64>(input->n_entries));
    n = capacity = input->n_entries;
    encoder->source.kind = SOURCE_RUNS;
  } else {
    /* An index tells its row by arithmetic; where rows are hashed, the row itself is kept. */
    const SourceKind kind = zps_partition_is_hashed(&part) ? SOURCE_NUMBERS : SOURCE_DENSE;
    encoder->source.kind = shape == SHAPE_SINGLES ? SOURCE_PAYLOADS : kind;
  }
  Layout layout = {};
  code = encoder_lay_out(encoder, &layout, n, capacity, stream, error);
  if (code != ZPS_OK) return code;
  if (shape == SHAPE_COO)
    scan_coo(encoder, layout, *input, stream);
  else
    scan_dense(encoder, layout, *input, stream);
  return plan_slices(encoder, layout, stream, error);
}

zps_err_t encoder_merge(zps_device_encoder *encoder, const zps_encode_input *shape, const zps_device_view *views,
                        unsigned n_ranks, unsigned allowed, zps_stream_t stream_, zps_error *error) {
  const Current current(encoder->device);
  cudaStream_t const stream = static_cast<cudaStream_t>(stream_);
  const zps_partition *const part = shape->part;
  const u32 n_parts = part->n_parts, n_views = n_ranks * n_parts;
  if (zps_dtype_is_half(shape->dtype))
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "values of dtype %d cannot be merged on a device: merge f32, f64 or u8",
                    static_cast<int>(shape->dtype));
  if (n_ranks == 0 || n_ranks > UINT32_MAX / n_parts)
    return zps_fail(error, ZPS_ERR_INVALID, "%u ranks cannot be merged", n_ranks);
  for (u32 v = 0; v < n_views; v++)
    if (views[v].partition != v % n_parts)
      return zps_fail(error, ZPS_ERR_INVALID, "view %u is of partition %u: must be of %u", v, views[v].partition,
                      v % n_parts);
  zps_err_t code = open_plan(encoder, SHAPE_MERGE, *shape, allowed, error);
  Layout layout = {};
  if (code == ZPS_OK)
    code = reading_open(&layout.reading, &encoder->tables, *part, shape->width, shape->dtype, views, n_views, stream,
                        error);
  if (code == ZPS_OK) code = table_open(&encoder->word_starts, (n_parts + 1ull) * sizeof(u64), stream, error);
  if (code != ZPS_OK) return code;
  delete[] encoder->views;
  encoder->views = new (std::nothrow) zps_device_view[n_views];
  if (!encoder->views) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for %u views", n_views);
  for (u32 v = 0; v < n_views; v++) encoder->views[v] = views[v];

  u64 *const word_starts = static_cast<u64 *>(encoder->word_starts.host);
  u64 n_words = 0;
  for (u32 p = 0; p < n_parts; p++) {
    const u32 m = zps_partition_size(part, p);
    word_starts[p] = n_words;
    n_words += m / 32 + (m % 32 != 0);
  }
  word_starts[n_parts] = n_words;
  code = table_send(&encoder->word_starts, (n_parts + 1ull) * sizeof(u64), stream, error);
  if (code != ZPS_OK) return code;
  layout.merge.word_starts = static_cast<const u64 *>(encoder->word_starts.device.memory);
  layout.merge.n_words = n_words;
  const u64 capacity = layout.reading.n_rows < part->rows ? layout.reading.n_rows : part->rows;
  code = encoder_lay_out(encoder, &layout, 0, capacity, stream, error);
  if (code != ZPS_OK) return code;
  const Grid &grid = encoder->device->grid;
  const ReadingStates &states = layout.reading_states;
  read_indices(stream, grid, layout.reading, states.tickets, states.words, states.blocks);
  check_values(stream, grid, layout.reading);
  if (layout.reading.n_rows > 0) {
    merge_union(stream, grid, layout.merge, layout.reading, encoder->plan.found, layout.tickets + TICKET_MERGE,
                layout.scan_states + scan_tiles(rice_blocks_max(capacity, n_parts)), layout.list_space);
    merge_add(stream, grid, layout.merge, layout.reading, n_ranks);
  }
  encoder->source.kind = SOURCE_LIST;
  encoder->source.values = layout.merge.sums;
  (void)cudaMemcpyAsync(&encoder->report->bad_view, layout.reading.bad, sizeof(u32), cudaMemcpyDefault, stream);
  return plan_slices(encoder, layout, stream, error);
}

zps_err_t encoder_finish(zps_device_encoder *encoder, const zps_device_slice **slices_p, zps_error *error) {
  const Report *const report = encoder->report;
  if (report->bad_row != ~0ull)
    return zps_fail(error, ZPS_ERR_INVALID, "the row number at position %llu of %llu: the tensor has rows 0 to %llu",
                    report->bad_row, report->n_entries, static_cast<u64>(encoder->plan.part.rows) - 1);
  if (report->bad_view) return reading_fail(error, encoder->views, report->bad_view);
  if (report->count > encoder->plan.found.capacity) {
    encoder->capacity = report->count + report->count / 4;
    return ZPS_ERR_AGAIN;
  }
  if (encoder->shape == SHAPE_HASHED) {
    const zps_err_t code = hash_finish(encoder, error);
    if (code != ZPS_OK) return code;
  }
  *slices_p = slices_of(encoder);
  return ZPS_OK;
}

namespace {

/* QSGD wants the values in their order. */
void write_levels(const zps_device_encoder *encoder, void *const *outs, cudaStream_t stream) {
  const Grid &grid = encoder->device->grid;
  const Plan &plan = encoder->plan;
  const Source &source = encoder->source;
  const bool is_list = source.kind == SOURCE_LIST;
  const void *staged = is_list ? source.values : plan.found.payloads;
  if (!is_list && (source.kind != SOURCE_PAYLOADS || source.dtype != ZPS_DTYPE_F32)) {
    stage_values(stream, grid, plan, source, encoder->staged);
    staged = encoder->staged;
  }
  quantise_values(stream, grid, plan, source.dtype, staged, outs);
}

}  // namespace

zps_err_t encoder_write(zps_device_encoder *encoder, void *const *outs_on_device, zps_stream_t stream_,
                        zps_error *error) {
  const Current current(encoder->device);
  cudaStream_t const stream = static_cast<cudaStream_t>(stream_);
  const Grid &grid = encoder->device->grid;
  const Plan &plan = encoder->plan;
  const u64 len_bytes = plan.part.n_parts * sizeof(void *);
  zps_err_t code = table_open(&encoder->outs, len_bytes, stream, error);
  if (code != ZPS_OK) return code;
  for (u32 p = 0; p < plan.part.n_parts; p++) static_cast<void **>(encoder->outs.host)[p] = outs_on_device[p];
  code = table_send(&encoder->outs, len_bytes, stream, error);
  if (code != ZPS_OK) return code;
  void *const *const outs = static_cast<void *const *>(encoder->outs.device.memory);
  if (level_bits(plan.format.codec))
    write_levels(encoder, outs, stream);
  else if (plan.found.capacity > 0)
    write_values(stream, grid, plan, encoder->source, outs);
  write_index(stream, grid, plan, outs);
  if (plan.allowed & (1u << ZPS_CODEC_RICE | 1u << ZPS_CODEC_HOLES)) rice_write(stream, grid, plan, outs);
  return check_launches(error, "writing slices");
}

}  // namespace zps
