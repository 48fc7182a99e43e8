/* Zen's Algorithm 1 as the paper has it, with 32-bit indices: the rows that are not zero, hashed to partitions, and
 * their values gathered. */
#include "tests/gpu/bench/bench.cuh"
#include "gpu/cuda/hierarchical.cuh"

namespace {

using namespace zps;

__global__ void __launch_bounds__(THREADS) gather_kernel(const float *values, const u32 *rows, u64 n, float *out) {
  const u64 stride = gridDim.x * static_cast<u64>(THREADS);
  for (u64 i = blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x; i < n; i += stride) out[i] = values[rows[i]];
}

u64 slots_of(const BenchJob &job) {
  return 2 * job.nnz / job.part.n_parts + 1;
}
u64 memory_of(const BenchJob &job) {
  return slots_of(job) + slots_of(job) / 10;
}

class Paper : public BenchRival {
 public:
  explicit Paper(const BenchJob &job)
      : job_(job),
        n_slots_(memory_of(job) * job.part.n_parts),
        bits_((job.part.rows + 31) / 32 * 4),
        rows_(job.nnz * 4),
        out_(job.nnz * 4),
        values_(job.nnz * 4),
        slots_(n_slots_ * 4),
        slot_bits_((n_slots_ + 31) / 32 * 4),
        states_(job.nnz),
        counts_((job.part.n_parts + HASH_COUNTS + 1) * 8),
        starts_((job.part.n_parts + 1) * 8),
        extra_((job.part.n_parts + 1) * 8),
        row_space_(list_space(job.part.rows) * 8),
        slot_space_(list_space(n_slots_) * 8) {
    bench_check(cudaMemset(extra_.as<u64>(), 0, (job.part.n_parts + 1) * 8), "serial slots");
    bench_check(cudaDeviceSynchronize(), "serial slots");
    hashing_ = Hashing<u32>();
    hashing_.part = job.part;
    hashing_.rows = rows_.as<u32>();
    hashing_.n = job.nnz;
    hashing_.k = 3;
    hashing_.r1 = slots_of(job);
    hashing_.r2 = slots_of(job) / 10;
    hashing_.seed = 1;
    hashing_.extra = extra_.as<u64>();
    hashing_.n_slots = n_slots_;
    hashing_.slots = slots_.as<u32>();
    hashing_.states = states_.as<uint8_t>();
    hashing_.counters = counts_.as<u64>();
    hashing_.counts = counts_.as<u64>() + job.part.n_parts;
    hashing_.bits = slot_bits_.as<u32>();
    hashing_.list_space = slot_space_.as<u64>();
    hashing_.out = out_.as<u32>();
    hashing_.starts = starts_.as<u64>();
  }

  void run() override {
    const u64 rows = job_.part.rows;
    Found found = {};
    found.capacity = job_.nnz;
    found.count = counts_.as<u64>() + job_.part.n_parts + HASH_COUNTS;
    mark_rows(job_.stream, job_.grid, ZPS_DTYPE_F32, job_.values, 1, rows, bits_.as<u32>());
    list_numbers(job_.stream, job_.grid, bits_.as<u32>(), rows, rows_.as<u32>(), found, row_space_.as<u64>());
    hash_insert(job_.stream, job_.grid, hashing_);
    hash_collect(job_.stream, job_.grid, hashing_);
    ZPS_LAUNCH(job_.stream, blocks_for(job_.grid, job_.nnz, THREADS), THREADS, gather_kernel, job_.values,
               out_.as<u32>(), job_.nnz, values_.as<float>());
  }

 private:
  BenchJob job_;
  u64 n_slots_;
  BenchMemory bits_, rows_, out_, values_, slots_, slot_bits_, states_, counts_, starts_, extra_, row_space_,
      slot_space_;
  Hashing<u32> hashing_;
};

}  // namespace

BenchRival *bench_paper(const BenchJob &job) {
  return new Paper(job);
}
