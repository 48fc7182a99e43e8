/* Algorithm 1 for the vtable, with memory that grows until it is enough. */
#include <new>

#include "gpu/cuda/device.cuh"
#include "gpu/cuda/hierarchical.cuh"

namespace zps {

namespace {

struct Run {
  Scratch scratch;
  Table extra;
  u64 *serial; /* slots by partition; host */
  u64 *report; /* pinned: counters, then counts */
};

void take_hashing(Hashing<u64> *hashing, Pieces *pieces) {
  hashing->list_space = pieces->take<u64>(list_space(hashing->n_slots));
  hashing->slots = pieces->take<u64>(hashing->n_slots);
  hashing->states = pieces->take<uint8_t>(hashing->n);
  hashing->counters = pieces->take<u64>(hashing->part.n_parts);
  hashing->counts = pieces->take<u64>(HASH_COUNTS);
  hashing->bits = pieces->take<u32>((hashing->n_slots + WARP - 1) / WARP);
}

/* Lays out the slots after run->serial, and the rest of the memory. */
zps_err_t lay_out(Run *run, Hashing<u64> *hashing, cudaStream_t stream, zps_error *error) {
  const u32 n_parts = hashing->part.n_parts;
  zps_err_t code = table_open(&run->extra, (n_parts + 1ull) * sizeof(u64), stream, error);
  if (code != ZPS_OK) return code;
  u64 *const starts = static_cast<u64 *>(run->extra.host);
  starts[0] = 0;
  for (u32 p = 0; p < n_parts; p++) starts[p + 1] = starts[p] + run->serial[p];
  hashing->n_slots = n_parts * hashing->r1 + starts[n_parts];
  code = table_send(&run->extra, (n_parts + 1ull) * sizeof(u64), stream, error);
  if (code != ZPS_OK) return code;
  hashing->extra = static_cast<const u64 *>(run->extra.device.memory);
  return scratch_lay_out(&run->scratch, stream, error,
                         [&](Pieces *, Pieces *pieces) { take_hashing(hashing, pieces); });
}

/* Inserts all rows, and grows each serial memory that overflowed to half as much again as was asked for; *fits_p: none
 * did. */
zps_err_t insert(Run *run, const Grid &grid, const Hashing<u64> &hashing, cudaStream_t stream, bool *fits_p,
                 zps_error *error) {
  const u32 n_parts = hashing.part.n_parts;
  hash_insert(stream, grid, hashing);
  (void)cudaMemcpyAsync(run->report, hashing.counters, n_parts * sizeof(u64), cudaMemcpyDefault, stream);
  (void)cudaMemcpyAsync(run->report + n_parts, hashing.counts, HASH_COUNTS * sizeof(u64), cudaMemcpyDefault, stream);
  const cudaError_t code = cudaStreamSynchronize(stream);
  if (code != cudaSuccess) return cuda_fail(error, code, "hashing");
  *fits_p = true;
  for (u32 p = 0; p < n_parts; p++) {
    const u64 asked = run->report[p], wanted = asked + asked / 2;
    if (asked <= run->serial[p]) continue;
    run->serial[p] = wanted < hashing.n ? wanted : hashing.n;
    *fits_p = false;
  }
  return ZPS_OK;
}

zps_err_t run_hashing(Run *run, const Grid &grid, Hashing<u64> *hashing, u64 r2, cudaStream_t stream,
                      zps_error *error) {
  const u32 n_parts = hashing->part.n_parts;
  void *report;
  const zps_err_t allocated = pinned_new(&report, (n_parts + HASH_COUNTS) * sizeof(u64), error);
  if (allocated != ZPS_OK) return allocated;
  run->report = static_cast<u64 *>(report);
  run->serial = new (std::nothrow) u64[n_parts];
  if (!run->serial) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for the sizes of %u partitions", n_parts);
  for (u32 p = 0; p < n_parts; p++) run->serial[p] = r2;
  for (bool fits = false; !fits;) {
    zps_err_t code = lay_out(run, hashing, stream, error);
    if (code == ZPS_OK) code = insert(run, grid, *hashing, stream, &fits, error);
    if (code != ZPS_OK) return code;
  }
  hash_collect(stream, grid, *hashing);
  const cudaError_t code = cudaStreamSynchronize(stream);
  return code == cudaSuccess ? check_launches(error, "hashing") : cuda_fail(error, code, "hashing");
}

}  // namespace

zps_err_t hash_rows(zps_device *device, const zps_device_hashing *parameters, const zps_partition *part,
                    const uint64_t *rows_on_device, uint64_t n, uint64_t *out_on_device, uint64_t *starts_on_device,
                    zps_stream_t stream, zps_device_hashed *hashed_p, zps_error *error) {
  const Current current(device_of(device));
  Hashing<u64> hashing = {};
  hashing.part = *part;
  hashing.rows = reinterpret_cast<const u64 *>(rows_on_device);
  hashing.n = n;
  hashing.k = parameters->k ? parameters->k : +HASH_K;
  hashing.r1 = parameters->r1 ? parameters->r1 : 2 * n / part->n_parts;
  if (hashing.r1 == 0) hashing.r1 = 1;
  hashing.seed = parameters->seed;
  hashing.out = reinterpret_cast<u64 *>(out_on_device);
  hashing.starts = reinterpret_cast<u64 *>(starts_on_device);
  Run run = {};
  const u64 r2 = parameters->r2 ? parameters->r2 : hashing.r1 / 10;
  const zps_err_t code =
      run_hashing(&run, device_of(device)->grid, &hashing, r2, static_cast<cudaStream_t>(stream), error);
  if (code == ZPS_OK && hashed_p) {
    const u64 *const counts = run.report + part->n_parts;
    *hashed_p = {counts[HASH_PARALLEL], n - counts[HASH_PARALLEL], counts[HASH_LOST]};
  }
  scratch_release(&run.scratch);
  table_release(&run.extra);
  (void)cudaFreeHost(run.report);
  delete[] run.serial;
  return code;
}

}  // namespace zps
