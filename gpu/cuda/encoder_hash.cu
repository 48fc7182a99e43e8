/* Encoding by Zen's Algorithm 1: the rows that are not zero are hashed to their partitions, and the slots that are
 * taken are the list of rows. Nothing is sorted, but where the codecs want ascending indices; and the entries of a
 * list, whose repeats are added up in order of appearance before their rows are hashed. */
#include <new>

#include "gpu/cuda/encoder.cuh"

namespace zps {

namespace {

/* Serial slots that partitions have needed beyond r2, as starts in a table; none for another number of partitions. */
zps_err_t send_extra(zps_device_encoder *encoder, cudaStream_t stream, u64 *n_extra_p, zps_error *error) {
  const u32 n_parts = encoder->plan.part.n_parts;
  const u64 len_bytes = (n_parts + 1ull) * sizeof(u64);
  if (encoder->n_extra != n_parts) {
    delete[] encoder->extra_counts;
    encoder->extra_counts = nullptr;
    encoder->n_extra = n_parts;
  }
  const zps_err_t code = table_open(&encoder->extra, len_bytes, stream, error);
  if (code != ZPS_OK) return code;
  u64 *const starts = static_cast<u64 *>(encoder->extra.host);
  starts[0] = 0;
  for (u32 p = 0; p < n_parts; p++) starts[p + 1] = starts[p] + (encoder->extra_counts ? encoder->extra_counts[p] : 0);
  *n_extra_p = starts[n_parts];
  return table_send(&encoder->extra, len_bytes, stream, error);
}

/* The list of slots as rows in order: sorted by index, and then by partition. */
void sort_rows(zps_device_encoder *encoder, const Layout &layout, cudaStream_t stream) {
  const Grid &grid = encoder->device->grid;
  const Plan &plan = encoder->plan;
  RadixDigits digits = {};
  add_digits(&digits, plan.part.n_groups - 1, 0);
  add_digits(&digits, plan.part.n_parts - 1, 32);
  hash_keys(stream, grid, layout.hashing, plan.found, layout.keys, layout.entries);
  const Columns<u64> from = {layout.keys, layout.entries, nullptr},
                     to = {layout.other_keys, layout.other_entries, nullptr};
  const bool moved =
      radix_sort(stream, grid, from, to, plan.found.count, plan.found.capacity, digits, layout.radix_space);
  const Columns<u64> &sorted = moved ? to : from;
  hash_take(stream, grid, sorted.keys, sorted.a, plan.found);
}

}  // namespace

zps_err_t encoder_hash(zps_device_encoder *encoder, const zps_encode_input *input, unsigned allowed,
                       zps_stream_t stream_, zps_error *error) {
  const Current current(encoder->device);
  cudaStream_t const stream = static_cast<cudaStream_t>(stream_);
  const Grid &grid = encoder->device->grid;
  const bool is_list = input->rows != nullptr;
  const u64 n = is_list ? input->n_entries : input->part->rows;
  const u32 n_parts = input->part->n_parts;
  if (n > UINT32_MAX || input->part->rows > UINT32_MAX)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED,
                    "%llu of %llu rows: Algorithm 1 partitions less than 2^32 rows of a tensor of less on a GPU", n,
                    static_cast<u64>(input->part->rows));
  zps_err_t code = open_plan(encoder, SHAPE_HASHED, *input, allowed, error);
  if (code != ZPS_OK) return code;
  encoder->source.values = input->values;
  encoder->source.kind = is_list ? SOURCE_RUNS : SOURCE_NUMBERS;
  encoder->r1 = input->hashing.r1;
  encoder->r2 = input->hashing.r2 || !encoder->r1 ? input->hashing.r2 : encoder->r1 / 10;
  u64 n_extra = 0;
  code = send_extra(encoder, stream, &n_extra, error);
  if (code != ZPS_OK) return code;
  const u64 capacity = is_list ? n : dense_capacity(encoder, n);
  const HashSlots most = hash_slots(encoder->r1, encoder->r2, capacity, n_parts);
  Layout layout = {};
  Hashing<u32> *const hashing = &layout.hashing;
  layout.is_list = is_list;
  layout.is_sorted = !(allowed & 1u << ZPS_CODEC_COO_ANY);
  hashing->n_slots = n_parts * (most.r1 + most.r2) + n_extra;
  code = encoder_lay_out(encoder, &layout, n, capacity, stream, error);
  if (code != ZPS_OK) return code;
  Found numbers = {};
  numbers.capacity = capacity;
  numbers.count = layout.n_numbers;
  if (is_list) {
    const CooRuns runs = sort_entries(encoder, layout, *input, {layout.run_keys, layout.run_entries, nullptr},
                                      {layout.other_run_keys, layout.other_run_entries, nullptr}, stream);
    coo_numbers(stream, grid, layout.bits, input->rows, input->part->rows, runs, layout.numbers, numbers,
                layout.list_space);
    hashing->run_keys = runs.keys;
    hashing->n_run_keys = runs.n;
  } else {
    mark_rows(stream, grid, input->dtype, input->values, input->width, n, layout.bits);
    list_numbers(stream, grid, layout.bits, n, layout.numbers, numbers, layout.list_space);
  }
  hashing->part = encoder->plan.part;
  hashing->rows = layout.numbers;
  hashing->n = capacity;
  hashing->count = layout.n_numbers;
  hashing->k = input->hashing.k ? input->hashing.k : +HASH_K;
  hashing->r1 = encoder->r1;
  hashing->r2 = encoder->r2;
  hashing->extra = static_cast<const u64 *>(encoder->extra.device.memory);
  hashing->seed = ~input->part->seed; /* h_1.. independent of h0, as on the cpu */
  hash_insert(stream, grid, *hashing);
  if (layout.is_sorted)
    sort_rows(encoder, layout, stream);
  else
    hash_list(stream, grid, *hashing, encoder->plan.found);
  (void)cudaMemcpyAsync(serial_wanted(encoder), hashing->counters, n_parts * sizeof(u64), cudaMemcpyDefault, stream);
  (void)cudaMemcpyAsync(encoder->report->hashed, hashing->counts, sizeof encoder->report->hashed, cudaMemcpyDefault,
                        stream);
  code = plan_slices(encoder, layout, stream, error);
  /* All that there are, though the list may have lost some. */
  (void)cudaMemcpyAsync(&encoder->report->count, layout.n_numbers, sizeof(u64), cudaMemcpyDefault, stream);
  return code;
}

zps_err_t hash_finish(zps_device_encoder *encoder, zps_error *error) {
  const u32 n_parts = encoder->plan.part.n_parts;
  const u64 n = encoder->report->count, r2 = hash_slots(encoder->r1, encoder->r2, n, n_parts).r2;
  const u64 *const wanted = serial_wanted(encoder);
  bool fits = true;
  for (u32 p = 0; p < n_parts; p++) {
    const u64 extra = encoder->extra_counts ? encoder->extra_counts[p] : 0;
    if (wanted[p] <= r2 + extra) continue;
    if (!encoder->extra_counts) encoder->extra_counts = new (std::nothrow) u64[n_parts]();
    if (!encoder->extra_counts)
      return zps_fail(error, ZPS_ERR_NOMEM, "no memory for the sizes of %u partitions", n_parts);
    const u64 more = wanted[p] + wanted[p] / 2;
    encoder->extra_counts[p] = (more < n ? more : n) - r2;
    fits = false;
  }
  return fits ? ZPS_OK : ZPS_ERR_AGAIN;
}

void encoder_hashed(const zps_device_encoder *encoder, zps_device_hashed *hashed_p) {
  const u64 *const counts = encoder->report->hashed;
  *hashed_p = {counts[HASH_PARALLEL], encoder->report->count - counts[HASH_PARALLEL], counts[HASH_LOST]};
}

}  // namespace zps
