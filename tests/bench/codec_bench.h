/* codec-bench: codec_bench.c measures one shape, codec_bench_main.c reads options and prints. */
#ifndef ZPS_TESTS_BENCH_CODEC_BENCH_H
#define ZPS_TESTS_BENCH_CODEC_BENCH_H

#include "common/base/rng.h"
#include "common/base/workpool.h"
#include "common/codec/codec.h"

enum bench_stage {
  BENCH_ENCODE,  /* dense gradient -> all slices; values: all of the tensor's */
  BENCH_COO,     /* unsorted repeated rows -> all slices; values: those given */
  BENCH_SORTED,  /* ascending rows -> all slices; values: those given */
  BENCH_REDUCE,  /* all ranks' slices -> the sum's slice; values: those of all ranks */
  BENCH_ADD,     /* all ranks' slices -> accumulators, of single floats by one thread: reduce without its last step */
  BENCH_SCATTER, /* all sums' slices -> dense result; values: all of the tensor's */
  BENCH_ROWS,    /* all sums' slices -> ascending rows; values: those of the sums */
  N_BENCH_STAGES,
};

struct bench_options {
  unsigned stages; /* a bit for each */
  unsigned codecs; /* of contributions, a bit for each: the smallest is taken */
  enum zps_codec sum_codec;
  uint64_t dense_bytes, partitions, block_bits, sums, ranks, runs;
};

struct bench_slice {
  enum zps_codec codec;
  uint32_t m, nnz;
  uint64_t len_bytes;
  void *data;
};

/* The least of several runs, with one thread and, where there are more, with all. */
struct bench_times {
  double one_ns, all_ns;
};

/* With one thread, but for `times`; 0: not measured. */
struct bench_figure {
  struct bench_times times;
  double ns_per_value, per_float_copied;
};

struct bench_result {
  struct bench_times copy, read, compute; /* of the dense tensor, and of registers: machine.h */
  double bits_per_index;                  /* of the contributions that are summed */
  struct bench_figure stages[N_BENCH_STAGES];
};

/* `pool` may be NULL: one thread. 0, or not when it failed (and said why). */
int bench_run(const struct bench_options *options, struct zps_workpool *pool, uint32_t width, double density,
              struct bench_result *result);

#endif
