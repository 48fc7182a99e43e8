/* An encoder, and the layout of its scratch memory. */
#ifndef ZPS_GPU_CUDA_ENCODER_CUH
#define ZPS_GPU_CUDA_ENCODER_CUH

#include "gpu/cuda/device.cuh"
#include "gpu/cuda/merge.cuh"
#include "gpu/cuda/values.cuh"

namespace zps {

/* The kernels' report to the host; slices follow, in the same pinned memory. */
struct Report {
  u64 n_entries; /* the host tells the kernels */
  u64 count;
  u64 bad_row;
  u32 bad_view;
};

/* The layout of an encoder's scratch memory, beside the plan. */
struct Layout {
  Tickets *tickets; /* TICKETS */
  u64 *tile_states; /* of the kernel that lists rows */
  u64 *scan_states;
  u64 *n_entries;
  u64 *bad_row;
  u32 *bits; /* by row, or by place of a sorted entry */
  char *staged;
  Found other; /* before, or after, the deal */
  u64 *keys, *other_keys;
  u32 *entries, *other_entries;
  RadixScratch radix;
  /* A merge: */
  Reading reading;
  ReadingStates reading_states;
  Merge merge;
};
enum { TICKETS = 4, TICKET_LIST = 0, TICKET_RICE = 1, TICKET_MERGE = 2 };

enum Shape { SHAPE_SINGLES, SHAPE_DENSE, SHAPE_COO, SHAPE_MERGE };

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
};

namespace zps {

/* Lays out the scratch memory of a gradient of which `n` rows or entries are looked at, and clears the pieces that have
 * to be zero. Of a merge, layout->reading and the number of words are known. */
zps_err_t encoder_lay_out(zps_device_encoder *encoder, Layout *layout, u64 n, u64 capacity, cudaStream_t stream,
                          zps_error *error);

}  // namespace zps

#endif
