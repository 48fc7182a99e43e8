/* An encoder, and the layout of its scratch memory. */
#ifndef ZPS_GPU_CUDA_ENCODER_CUH
#define ZPS_GPU_CUDA_ENCODER_CUH

#include "gpu/cuda/device.cuh"
#include "gpu/cuda/hierarchical.cuh"
#include "gpu/cuda/merge.cuh"
#include "gpu/cuda/values.cuh"

namespace zps {

/* The kernels' report to the host; slices follow, in the same pinned memory, and then the serial slots of Algorithm 1
 * that each partition wanted. */
struct Report {
  u64 n_entries; /* the host tells the kernels */
  u64 count;
  u64 hashed[HASH_COUNTS];
  u64 bad_row;
  u32 bad_view;
};

/* The layout of an encoder's scratch memory, beside the plan. */
struct Layout {
  Tickets *tickets; /* TICKETS */
  u64 *list_space;
  u64 *scan_states;
  u64 *n_entries;
  u64 *bad_row;
  u32 *bits; /* by row, or by place of a sorted entry */
  char *staged;
  Found other; /* before, or after, the deal */
  u64 *keys, *other_keys;
  u32 *entries, *other_entries;
  u64 *radix_space;
  /* Of Algorithm 1. */
  Hashing<u32> hashing;
  u32 *numbers; /* of the rows */
  u64 *n_numbers;
  bool is_sorted; /* afterwards */
  bool is_list;
  u64 *run_keys, *other_run_keys; /* of a list, as keys and entries are where no Algorithm 1 follows */
  u32 *run_entries, *other_run_entries;
  /* Of a merge. */
  Reading reading;
  ReadingStates reading_states;
  Merge merge;
};
enum { TICKETS = 2, TICKET_RICE = 0, TICKET_MERGE = 1 };

enum Shape { SHAPE_SINGLES, SHAPE_DENSE, SHAPE_COO, SHAPE_MERGE, SHAPE_HASHED };

}  // namespace zps

struct zps_device_encoder {
  zps::Device *device;
  zps::Scratch scratch;
  zps::Table outs;   /* the places of the slices */
  zps::Table tables; /* of a merge's views */
  zps::Table word_starts;
  zps::Report *report; /* pinned; slices follow */
  zps::u32 slices_max;

  zps::Shape shape;
  zps::Plan plan;
  zps::Source source;
  void *staged;           /* QSGD: values before they are coded */
  zps::u64 capacity;      /* rows that dense gradients have had */
  zps_device_view *views; /* of the last merge, for an error's text */
  /* Of Algorithm 1. */
  zps::u64 r1, r2;
  zps::Table extra;       /* starts of the partitions' serial slots beyond r2 */
  zps::u64 *extra_counts; /* numbers of those slots; NULL: none yet */
  zps::u32 n_extra;       /* partitions that have such slots */
};

namespace zps {

/* Takes the arguments of a scan or merge. */
zps_err_t open_plan(zps_device_encoder *encoder, Shape shape, const zps_encode_input &input, unsigned allowed,
                    zps_error *error);
/* Submits sizes and codecs, and the report. */
zps_err_t plan_slices(zps_device_encoder *encoder, const Layout &layout, cudaStream_t stream, zps_error *error);
/* The rows that a dense gradient of `n` is expected to have at most. */
u64 dense_capacity(const zps_device_encoder *encoder, u64 n);
inline zps_device_slice *slices_of(const zps_device_encoder *encoder) {
  return reinterpret_cast<zps_device_slice *>(encoder->report + 1);
}
inline u64 *serial_wanted(const zps_device_encoder *encoder) {
  return reinterpret_cast<u64 *>(slices_of(encoder) + encoder->plan.part.n_parts);
}
/* Sorts the entries of a list by partition and index into `keys` or `other`, and marks the runs that make a row in
 * layout.bits. */
CooRuns sort_entries(zps_device_encoder *encoder, const Layout &layout, const zps_encode_input &input,
                     const Columns<u64> &keys, const Columns<u64> &other, cudaStream_t stream);
/* After an encoder_hash(): ZPS_ERR_AGAIN where a serial memory was too small, and is larger next time. */
zps_err_t hash_finish(zps_device_encoder *encoder, zps_error *error);

/* Lays out the scratch memory of a gradient of which `n` rows or entries are looked at, and clears the pieces that have
 * to be zero. Of a merge, layout->reading and the number of words are known. */
zps_err_t encoder_lay_out(zps_device_encoder *encoder, Layout *layout, u64 n, u64 capacity, cudaStream_t stream,
                          zps_error *error);

}  // namespace zps

#endif
