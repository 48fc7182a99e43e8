/* Error feedback and selection for the vtable. */
#include <new>

#include "gpu/cuda/device.cuh"
#include "gpu/cuda/select.cuh"

struct zps_device_selector {
  zps::Device *device;
  zps::Scratch scratch;
  struct Report {
    zps::u64 count;
    zps::Cut cut;
  } * report; /* pinned */
  zps::u64 capacity;
};

namespace zps {

zps_err_t selector_create(zps_device *device, zps_device_selector **selector_p, zps_error *error) {
  const Current current(device_of(device));
  void *memory;
  const zps_err_t code = pinned_new(&memory, sizeof(zps_device_selector::Report), error);
  if (code != ZPS_OK) return code;
  zps_device_selector *const made = new (std::nothrow) zps_device_selector();
  if (!made) {
    (void)cudaFreeHost(memory);
    return zps_fail(error, ZPS_ERR_NOMEM, "no memory for a selector");
  }
  made->device = device_of(device);
  made->report = static_cast<zps_device_selector::Report *>(memory);
  *selector_p = made;
  return ZPS_OK;
}

void selector_destroy(zps_device_selector *selector) {
  if (!selector) return;
  const Current current(selector->device);
  scratch_release(&selector->scratch);
  (void)cudaFreeHost(selector->report);
  delete selector;
}

namespace {

zps_err_t check_feedback(const zps_device_feedback *feedback, zps_error *error) {
  if (feedback->dtype != ZPS_DTYPE_F32 && feedback->dtype != ZPS_DTYPE_F64)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "values of dtype %d have no magnitudes: must be f32 or f64",
                    static_cast<int>(feedback->dtype));
  if (feedback->n == 0 || feedback->n > INT32_MAX)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "%llu values: a GPU selects of 1 to 2^31 - 1",
                    static_cast<u64>(feedback->n));
  return ZPS_OK;
}

struct Memory {
  u64 *counts;
  Tickets *tickets;
  u64 *states;
  u64 *count;
  Cut *cut;
  Ranking *ranking;
  char *sample;
};

u64 sample_key(const zps_device_cut &cut) {
  return zps_hash_mix64(cut.seed ^ zps_hash_mix64(cut.step + 1));
}

zps_err_t check_sample(const zps_device_feedback &feedback, const zps_device_cut &cut, zps_error *error) {
  if (cut.n_sample != 0 && cut.n_sample <= feedback.n) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_INVALID, "a sample of %llu of %llu values: there must be 1 to all of them",
                  static_cast<u64>(cut.n_sample), static_cast<u64>(feedback.n));
}

void take_memory(Memory *memory, const zps_device_feedback &feedback, const zps_device_cut &cut, Pieces *zeroed,
                 Pieces *pieces) {
  memory->counts = zeroed->take<u64>(select_passes(feedback.dtype) * static_cast<u64>(SELECT_BINS));
  memory->tickets = zeroed->take<Tickets>(1);
  memory->states = zeroed->take<u64>(cut.kind == ZPS_CUT_BUCKETS ? (feedback.n + cut.bucket - 1) / cut.bucket
                                                                 : pick_tiles(feedback.n));
  memory->count = zeroed->take<u64>(1);
  memory->ranking = pieces->take<Ranking>(1);
  memory->cut = pieces->take<Cut>(1);
  memory->sample = pieces->take<char>(cut.kind == ZPS_CUT_SAMPLED ? cut.n_sample * value_size(feedback.dtype) : 0);
}

}  // namespace

zps_err_t selector_add(zps_device_selector *selector, const zps_device_feedback *feedback,
                       const void *gradient_on_device, double factor, zps_stream_t stream, zps_error *error) {
  const Current current(selector->device);
  const zps_err_t code = check_feedback(feedback, error);
  if (code != ZPS_OK) return code;
  feedback_add(static_cast<cudaStream_t>(stream), selector->device->grid, *feedback, gradient_on_device, factor);
  return check_launches(error, "adding to the residual");
}

zps_err_t selector_sample(zps_device_selector *selector, const zps_device_feedback *feedback, const zps_device_cut *cut,
                          const void *gradient_on_device, double factor, void *sample_on_device, zps_stream_t stream,
                          zps_error *error) {
  const Current current(selector->device);
  zps_err_t code = check_feedback(feedback, error);
  if (code == ZPS_OK) code = check_sample(*feedback, *cut, error);
  if (code != ZPS_OK) return code;
  sample_sums(static_cast<cudaStream_t>(stream), selector->device->grid, *feedback, gradient_on_device, factor,
              sample_key(*cut), sample_on_device, cut->n_sample);
  return check_launches(error, "taking a sample");
}

zps_err_t selector_pick(zps_device_selector *selector, const zps_device_feedback *feedback, const zps_device_cut *how,
                        int64_t *ids_on_device, void *values_on_device, uint64_t capacity, zps_stream_t stream_,
                        zps_error *error) {
  const Current current(selector->device);
  cudaStream_t const stream = static_cast<cudaStream_t>(stream_);
  const Grid &grid = selector->device->grid;
  zps_err_t code = check_feedback(feedback, error);
  if (code != ZPS_OK) return code;
  if (how->kind == ZPS_CUT_SAMPLED) code = check_sample(*feedback, *how, error);
  if (code != ZPS_OK) return code;
  if (how->kind == ZPS_CUT_SAMPLED && how->k == 0)
    return zps_fail(error, ZPS_ERR_INVALID, "magnitude 0 of a sample: they are counted from 1");
  if (how->kind == ZPS_CUT_BUCKETS && (how->k == 0 || how->k > how->bucket))
    return zps_fail(error, ZPS_ERR_INVALID, "%llu of each %llu values: there must be 1 to all of them",
                    static_cast<u64>(how->k), static_cast<u64>(how->bucket));
  Memory memory;
  code = scratch_lay_out(&selector->scratch, stream, error, [&](Pieces *zeroed, Pieces *pieces) {
    take_memory(&memory, *feedback, *how, zeroed, pieces);
  });
  if (code != ZPS_OK) return code;
  const void *const residual = feedback->residual_on_device;
  if (how->kind == ZPS_CUT_BUCKETS) {
    selector->report->cut = {0, 0};
    pick_buckets(stream, grid, feedback->dtype, residual, feedback->n, how->bucket, how->k, ids_on_device,
                 values_on_device, capacity, memory.count, memory.tickets, memory.states);
    (void)cudaMemcpyAsync(&selector->report->count, memory.count, sizeof(u64), cudaMemcpyDefault, stream);
    selector->capacity = capacity;
    return check_launches(error, "selecting");
  }
  const u64 n_ranked = how->kind == ZPS_CUT_SAMPLED ? how->n_sample : feedback->n;
  if (how->kind == ZPS_CUT_THRESHOLD || how->k >= n_ranked) {
    /* Known beforehand; the report carries it there and back. */
    selector->report->cut = {how->kind == ZPS_CUT_THRESHOLD && how->magnitude ? how->magnitude : 1, ~0ull};
    (void)cudaMemcpyAsync(memory.cut, &selector->report->cut, sizeof(Cut), cudaMemcpyDefault, stream);
  } else if (how->kind == ZPS_CUT_SAMPLED) {
    sample_values(stream, grid, feedback->dtype, residual, feedback->n, sample_key(*how), memory.sample, how->n_sample);
    find_cut(stream, grid, feedback->dtype, memory.sample, how->n_sample, how->k, false, memory.counts, memory.ranking,
             memory.cut);
  } else {
    find_cut(stream, grid, feedback->dtype, residual, feedback->n, how->k, true, memory.counts, memory.ranking,
             memory.cut);
  }
  pick(stream, grid, feedback->dtype, residual, feedback->n, memory.cut, ids_on_device, values_on_device, capacity,
       memory.count, memory.tickets, memory.states);
  (void)cudaMemcpyAsync(&selector->report->cut, memory.cut, sizeof(Cut), cudaMemcpyDefault, stream);
  (void)cudaMemcpyAsync(&selector->report->count, memory.count, sizeof(u64), cudaMemcpyDefault, stream);
  selector->capacity = capacity;
  return check_launches(error, "selecting");
}

zps_err_t selector_finish(zps_device_selector *selector, zps_device_selected *selected_p, zps_error *error) {
  const zps_device_selector::Report &report = *selector->report;
  *selected_p = {report.count, report.cut.magnitude};
  if (report.count <= selector->capacity) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_TRUNCATED, "%llu entries were selected, there is room for %llu", report.count,
                  selector->capacity);
}

zps_err_t selector_clear(zps_device_selector *selector, const zps_device_feedback *feedback,
                         const int64_t *ids_on_device, uint64_t n, zps_stream_t stream, zps_error *error) {
  const Current current(selector->device);
  const zps_err_t code = check_feedback(feedback, error);
  if (code != ZPS_OK) return code;
  feedback_clear(static_cast<cudaStream_t>(stream), selector->device->grid, *feedback, ids_on_device, n);
  return check_launches(error, "clearing the residual");
}

}  // namespace zps
