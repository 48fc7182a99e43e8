/*
 * The cost of encoding, summing and decoding on one machine, beside a memcpy() of the dense tensor in the same run:
 * the time that merely touching the data takes. Times are the best of several runs; copy and stage take turns, so that
 * both see the same machine.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/codec/decode.h"
#include "common/codec/encode.h"
#include "common/codec/reduce_impl.h"
#include "tests/bench/bench.h"
#include "tests/bench/codec_bench.h"
#include "tests/bench/machine.h"

enum { FAILED = 1, ALIGN = 63 };

/* One tensor's shape, and everything measured on it. */
struct bench {
  const struct bench_options *options;
  struct zps_workpool *pool;
  struct zps_partition part, sum_part;
  uint32_t width;
  double density;
  uint64_t rows, dense_bytes;
  float *dense, *copy;
  int64_t *coo_rows, *sorted_rows;
  float *coo_values;
  uint64_t n_entries;
  struct zps_encoder *encoder;
  char *encoded; /* all partitions' slices, one behind another */
  uint64_t encoded_bytes;
  struct bench_slice *encoding;          /* [part.n_parts]: the payload that is written, and its place */
  struct bench_slice *pushes;            /* [sum_part.n_parts][ranks] */
  struct zps_slice_view *views;          /* [sum_part.n_parts][ranks], checked */
  struct bench_slice *sums;              /* [sum_part.n_parts] */
  struct zps_reduce_scratch **scratches; /* [sum_part.n_parts] */
  struct zps_reduce_scratch *add_scratch;
  struct zps_index_cursor *cursors; /* [ranks] */
  struct bench_slice *results;      /* [part.n_parts] */
  struct zps_slice_view *result_views;
  int64_t *out_rows;
  struct zps_decode_scratch decode_scratch;
  uint64_t nnz; /* all contributions' */
  bool failed;
};

static void *need(struct bench *bench, uint64_t n, uint64_t size) {
  void *const memory = bench_memory("codec-bench", n, size);
  if (!memory) bench->failed = true;
  return memory;
}

/* Draws about density * m ascending indices below m. */
static uint32_t draw_ranks(struct zps_rng *rng, double density, uint64_t m, uint32_t *ranks) {
  const double scale = density < 1 ? 1 / log1p(-density) : 0;
  uint32_t z = 0;
  for (double at = 0;; at += 1) {
    at += floor(log1p(-zps_rng_unit(rng)) * scale);
    if (!(at < (double)m)) return z;
    ranks[z++] = (uint32_t)at;
  }
}

static void draw_values(struct zps_rng *rng, float *values, uint64_t n) {
  for (uint64_t i = 0; i < n; i++) values[i] = (float)zps_rng_unit(rng) - 0.5f;
}

/* The most indices that draw_ranks() may find, by any chance worth counting. */
static uint64_t draw_bound(double density, uint64_t m) {
  const double mean = density * (double)m, bound = mean + 10 * sqrt(mean) + 64;
  return bound < (double)m ? (uint64_t)bound : m;
}

/* A slice of drawn rows, as a rank would send it. */
static void draw_slice(struct bench *bench, struct zps_rng *rng, const struct zps_partition *part, uint32_t p,
                       double density, struct bench_slice *slice) {
  const uint32_t m = zps_partition_size(part, p);
  uint32_t *const ranks = need(bench, draw_bound(density, m) + 1, sizeof *ranks);
  if (!ranks) return;
  slice->m = m;
  slice->nnz = draw_ranks(rng, density, m, ranks);
  uint64_t index_bytes;
  slice->codec = zps_codec_choose(bench->options->codecs, m, ranks, slice->nnz, &index_bytes);
  slice->len_bytes = (uint64_t)slice->nnz * bench->width * sizeof(float) + index_bytes;
  slice->data = need(bench, slice->len_bytes, 1);
  if (slice->data) {
    const uint64_t n_values = (uint64_t)slice->nnz * bench->width;
    draw_values(rng, slice->data, n_values);
    zps_codec_index_encode(slice->codec, m, ranks, slice->nnz, (float *)slice->data + n_values);
  }
  free(ranks);
}

static void check_slice(struct bench *bench, const struct bench_slice *slice, struct zps_slice_view *view) {
  struct zps_error error;
  if (zps_slice_view_init(view, slice->codec, slice->m, slice->nnz, bench->width, ZPS_DTYPE_F32, ZPS_VALUES_RAW,
                          slice->data, slice->len_bytes, &error) == ZPS_OK)
    return;
  fprintf(stderr, "codec-bench: %s\n", error.text);
  bench->failed = true;
}

static void run_copy(void *ctx) {
  struct bench *const bench = ctx;
  bench_copy(bench->pool, &(struct bench_arrays){bench->dense, bench->copy, bench->dense_bytes});
}

static void run_read(void *ctx) {
  struct bench *const bench = ctx;
  bench_read(bench->pool, &(struct bench_arrays){bench->dense, bench->copy, bench->dense_bytes});
}

static void run_compute(void *ctx) {
  bench_compute(((struct bench *)ctx)->pool);
}

static void choose_part(void *ctx, unsigned p) {
  struct bench *const bench = ctx;
  struct bench_slice *const slice = &bench->encoding[p];
  slice->codec = zps_encoder_choose(bench->encoder, p, bench->options->codecs, &slice->len_bytes);
}

static void write_part(void *ctx, unsigned p) {
  struct bench *const bench = ctx;
  zps_encoder_write(bench->encoder, p, bench->encoding[p].codec, bench->encoding[p].data);
}

/* From a gradient to all slices. */
static void encode(struct bench *bench, const struct zps_encode_input *input) {
  struct zps_error error;
  if (zps_encoder_scan(bench->encoder, input, bench->pool, &error) != ZPS_OK) {
    fprintf(stderr, "codec-bench: %s\n", error.text);
    bench->failed = true;
    return;
  }
  zps_workpool_for(bench->pool, bench->part.n_parts, choose_part, bench);
  uint64_t end = 0;
  for (uint32_t p = 0; p < bench->part.n_parts; p++) end += (bench->encoding[p].len_bytes + ALIGN) & ~(uint64_t)ALIGN;
  if (end > bench->encoded_bytes) { /* the first time */
    free(bench->encoded);
    bench->encoded = need(bench, end, 1);
    if (!bench->encoded) return;
    bench->encoded_bytes = end;
  }
  char *at = bench->encoded;
  for (uint32_t p = 0; p < bench->part.n_parts; p++) {
    bench->encoding[p].data = at;
    at += (bench->encoding[p].len_bytes + ALIGN) & ~(uint64_t)ALIGN;
  }
  zps_workpool_for(bench->pool, bench->part.n_parts, write_part, bench);
}

static void run_encode(void *ctx) {
  struct bench *const bench = ctx;
  encode(bench, &(struct zps_encode_input){.part = &bench->part,
                                           .width = bench->width,
                                           .dtype = ZPS_DTYPE_F32,
                                           .value_codec = ZPS_VALUES_RAW,
                                           .values = bench->dense});
}

static void encode_rows(struct bench *bench, const int64_t *rows) {
  encode(bench, &(struct zps_encode_input){.part = &bench->part,
                                           .width = bench->width,
                                           .dtype = ZPS_DTYPE_F32,
                                           .value_codec = ZPS_VALUES_RAW,
                                           .values = bench->coo_values,
                                           .rows = rows,
                                           .n_entries = bench->n_entries});
}

static void run_coo(void *ctx) {
  struct bench *const bench = ctx;
  encode_rows(bench, bench->coo_rows);
}

static void run_sorted(void *ctx) {
  struct bench *const bench = ctx;
  encode_rows(bench, bench->sorted_rows);
}

struct part_check {
  struct bench *bench;
  const struct bench_slice *slices;
  struct zps_slice_view *views;
};

static void check_push(void *ctx, unsigned i) {
  const struct part_check *const check = ctx;
  check_slice(check->bench, &check->slices[i], &check->views[i]);
}

/* The work of a server when the last contribution to a partition is in: it checks all, then sums. */
static void sum_part(void *ctx, unsigned p) {
  struct bench *const bench = ctx;
  const unsigned n = (unsigned)bench->options->ranks;
  struct zps_slice_view *const views = &bench->views[p * n];
  struct bench_slice *const sum = &bench->sums[p];
  struct part_check check = {bench, &bench->pushes[p * n], views};
  zps_workpool_for(zps_workpool_idle(bench->pool) > 0 ? bench->pool : NULL, n, check_push, &check);
  if (zps_reduce(bench->scratches[p], views, n, ZPS_OP_SUM, sum->codec, bench->pool, sum->data, &sum->nnz,
                 &sum->len_bytes) != ZPS_OK)
    bench->failed = true;
}

static void run_reduce(void *ctx) {
  struct bench *const bench = ctx;
  zps_workpool_for(bench->pool, bench->sum_part.n_parts, sum_part, bench);
}

/* The work of zps_reduce() for a partition in one piece, except that nothing is taken out of the accumulators. */
static void add_part(struct bench *bench, uint32_t p) {
  const unsigned n = (unsigned)bench->options->ranks;
  struct zps_reduction reduction = {
      .scratch = bench->add_scratch, .views = &bench->views[p * n], .cursors = bench->cursors, .n_views = n};
  for (unsigned i = 0; i < n; i++) {
    check_slice(bench, &bench->pushes[p * n + i], &bench->views[p * n + i]);
    zps_index_cursor_init(&bench->cursors[i], &bench->views[p * n + i]);
  }
  if (bench->failed || zps_reduction_need_singles(&reduction) != ZPS_OK) {
    bench->failed = true;
    return;
  }
  const uint32_t m = reduction.views->m;
  for (uint32_t base = 0, n_rows; base < m; base += n_rows) {
    n_rows = m - base < reduction.chunk_rows ? m - base : reduction.chunk_rows;
    zps_reduction_add_singles(&reduction, base, base + n_rows);
  }
}

static void run_add(void *ctx) {
  struct bench *const bench = ctx;
  for (uint32_t p = 0; p < bench->sum_part.n_parts; p++) add_part(bench, p);
}

static void scatter_part(void *ctx, unsigned p) {
  struct bench *const bench = ctx;
  zps_decode_dense(&bench->part, p, &bench->result_views[p], bench->copy);
}

static void clear_piece(void *ctx, unsigned i) {
  struct bench *const bench = ctx;
  zps_decode_dense_clear(bench->copy, bench->dense_bytes, i, bench->part.n_parts);
}

static void run_scatter(void *ctx) {
  struct bench *const bench = ctx;
  zps_workpool_for(bench->pool, bench->part.n_parts, clear_piece, bench);
  zps_workpool_for(bench->pool, bench->part.n_parts, scatter_part, bench);
}

static void run_rows(void *ctx) {
  struct bench *const bench = ctx;
  if (zps_decode_rows(&bench->part, bench->result_views, bench->pool, &bench->decode_scratch, bench->out_rows,
                      bench->copy) != ZPS_OK)
    bench->failed = true;
}

/* Once with one thread, then, where there are more, with all of them; the least times are kept. */
static void take_time(struct bench *bench, struct zps_workpool *pool, void (*run)(void *ctx),
                      struct bench_times *times) {
  for (unsigned i = 0; i < (pool ? 2 : 1); i++) {
    double *const best_ns = i == 0 ? &times->one_ns : &times->all_ns;
    bench->pool = i == 0 ? NULL : pool;
    const double ns = bench_time_ns(!pool, run, bench);
    if (ns < *best_ns) *best_ns = ns;
  }
  bench->pool = pool;
}

/* Every stage but the first knows how many values it handles: those of its input. */
static void measure(struct bench *bench, struct bench_result *result) {
  const uint64_t n_coo = bench->n_entries * bench->width, n_dense = bench->rows * bench->width;
  uint64_t n_result = 0;
  for (uint32_t p = 0; p < bench->part.n_parts; p++) n_result += (uint64_t)bench->results[p].nnz * bench->width;
  const struct {
    enum bench_stage stage;
    void (*run)(void *ctx);
    uint64_t n_values;
  } stages[] = {{BENCH_ENCODE, run_encode, n_dense}, {BENCH_COO, run_coo, n_coo},
                {BENCH_SORTED, run_sorted, n_coo},   {BENCH_REDUCE, run_reduce, bench->nnz * bench->width},
                {BENCH_ADD, run_add, bench->nnz},    {BENCH_SCATTER, run_scatter, n_dense},
                {BENCH_ROWS, run_rows, n_result}};
  enum { N_STAGES = sizeof stages / sizeof stages[0] };
  struct zps_workpool *const pool = bench->pool;
  const struct bench_times never = {INFINITY, INFINITY};
  struct bench_times times[N_STAGES];
  for (unsigned i = 0; i < N_STAGES; i++) times[i] = never;
  result->copy = result->read = result->compute = never;
  for (uint64_t run = 0; run <= bench->options->runs; run++) {
    for (unsigned i = 0; i < N_STAGES && !bench->failed; i++) {
      if (!(bench->options->stages & 1u << stages[i].stage)) continue;
      if (stages[i].stage == BENCH_ADD && (bench->width != 1 || pool)) continue;
      struct bench_times warm_up = never;
      if (pool) take_time(bench, pool, run_compute, &result->compute);
      if (pool) take_time(bench, pool, run_read, run ? &result->read : &warm_up);
      take_time(bench, pool, run_copy, run ? &result->copy : &warm_up);
      take_time(bench, pool, stages[i].run, run ? &times[i] : &warm_up);
    }
  }
  for (unsigned i = 0; i < N_STAGES; i++) {
    struct bench_figure *const figure = &result->stages[stages[i].stage];
    if (!isfinite(times[i].one_ns) || stages[i].n_values == 0) continue;
    figure->times = times[i];
    figure->ns_per_value = times[i].one_ns / (double)stages[i].n_values;
    figure->per_float_copied = result->copy.one_ns / (double)n_dense / figure->ns_per_value;
  }
}

static void draw(struct bench *bench) {
  struct zps_rng rng = {.state = 20240607};
  const unsigned n_ranks = (unsigned)bench->options->ranks;
  bench->dense = need(bench, bench->dense_bytes, 1);
  bench->copy = need(bench, bench->dense_bytes, 1);
  uint32_t *const ranks = need(bench, draw_bound(bench->density, bench->rows) + 1, sizeof *ranks);
  if (bench->failed) return;
  const uint32_t z = draw_ranks(&rng, bench->density, bench->rows, ranks);
  for (uint32_t i = 0; i < z; i++) draw_values(&rng, bench->dense + (uint64_t)ranks[i] * bench->width, bench->width);

  /* A quarter repeat a row that is among the others. */
  bench->n_entries = z;
  bench->coo_rows = need(bench, z + 1ull, sizeof *bench->coo_rows);
  bench->sorted_rows = need(bench, z + 1ull, sizeof *bench->sorted_rows);
  bench->coo_values = need(bench, (uint64_t)z * bench->width + 1, sizeof(float));
  bench->out_rows = need(bench, draw_bound(bench->density, bench->rows) + 64ull * bench->part.n_parts, sizeof(int64_t));
  if (!bench->failed) {
    draw_values(&rng, bench->coo_values, (uint64_t)z * bench->width);
    for (uint32_t i = 0; i < z; i++) bench->sorted_rows[i] = ranks[i];
    for (uint32_t i = 0; i < z; i++)
      bench->coo_rows[i] = ranks[zps_rng_below(&rng, i % 4 == 3 && i > 1000 ? z / 1000 + 1 : z)];
  }
  free(ranks);

  for (uint32_t p = 0; p < bench->sum_part.n_parts && !bench->failed; p++) {
    struct bench_slice *const pushes = &bench->pushes[p * n_ranks];
    for (unsigned i = 0; i < n_ranks && !bench->failed; i++) {
      draw_slice(bench, &rng, &bench->sum_part, p, bench->density, &pushes[i]);
      bench->nnz += pushes[i].nnz;
      if (!bench->failed) check_slice(bench, &pushes[i], &bench->views[p * n_ranks + i]);
    }
    if (bench->failed) return;
    bench->sums[p].codec = bench->options->sum_codec;
    bench->sums[p].data =
        need(bench, zps_reduce_bound(&bench->views[p * n_ranks], n_ranks, bench->options->sum_codec), 1);
    if (zps_reduce_scratch_create(&bench->scratches[p]) != ZPS_OK) bench->failed = true;
  }
  for (uint32_t p = 0; p < bench->part.n_parts && !bench->failed; p++) {
    draw_slice(bench, &rng, &bench->part, p, bench->density, &bench->results[p]);
    if (!bench->failed) check_slice(bench, &bench->results[p], &bench->result_views[p]);
  }
}

int bench_run(const struct bench_options *options, struct zps_workpool *pool, uint32_t width, double density,
              struct bench_result *result) {
  struct bench bench = {.options = options, .pool = pool, .width = width, .density = density};
  const uint32_t n_sums = (uint32_t)options->sums;
  const uint64_t n_pushes = n_sums * options->ranks;
  struct zps_error error;
  bench.rows = options->dense_bytes / (4ull * width);
  bench.dense_bytes = bench.rows * width * 4;
  if (zps_partition_init(&bench.part, bench.rows, (uint32_t)options->partitions, (uint32_t)options->block_bits, 12345,
                         &error) != ZPS_OK ||
      zps_partition_init(&bench.sum_part, bench.rows, n_sums, 0, 12345, &error) != ZPS_OK) {
    fprintf(stderr, "codec-bench: %s\n", error.text);
    return FAILED;
  }
  bench.encoding = need(&bench, bench.part.n_parts, sizeof *bench.encoding);
  bench.pushes = need(&bench, n_pushes, sizeof *bench.pushes);
  bench.views = need(&bench, n_pushes, sizeof *bench.views);
  bench.sums = need(&bench, n_sums, sizeof *bench.sums);
  bench.scratches = need(&bench, n_sums, sizeof *bench.scratches);
  bench.cursors = need(&bench, options->ranks, sizeof *bench.cursors);
  bench.results = need(&bench, bench.part.n_parts, sizeof *bench.results);
  bench.result_views = need(&bench, bench.part.n_parts, sizeof *bench.result_views);
  if (!bench.failed && zps_reduce_scratch_create(&bench.add_scratch) != ZPS_OK) bench.failed = true;
  if (!bench.failed && zps_encoder_create(ZPS_PARTITIONER_STRATIFIED, &bench.encoder) != ZPS_OK) bench.failed = true;
  if (!bench.failed) draw(&bench);
  if (!bench.failed) measure(&bench, result);
  uint64_t index_bytes = 0;
  for (uint64_t i = 0; !bench.failed && i < n_pushes; i++) index_bytes += bench.views[i].index_bytes;
  result->bits_per_index = bench.nnz > 0 ? 8 * (double)index_bytes / (double)bench.nnz : 0;
  for (uint64_t i = 0; bench.pushes && i < n_pushes; i++) free(bench.pushes[i].data);
  for (uint32_t p = 0; bench.sums && p < n_sums; p++) free(bench.sums[p].data);
  for (uint32_t p = 0; bench.scratches && p < n_sums; p++) zps_reduce_scratch_destroy(bench.scratches[p]);
  zps_reduce_scratch_destroy(bench.add_scratch);
  zps_decode_scratch_fini(&bench.decode_scratch);
  for (uint32_t p = 0; bench.results && p < bench.part.n_parts; p++) free(bench.results[p].data);
  zps_encoder_destroy(bench.encoder);
  void *const memory[] = {bench.dense,     bench.copy,     bench.coo_rows,     bench.sorted_rows, bench.coo_values,
                          bench.encoded,   bench.encoding, bench.pushes,       bench.views,       bench.sums,
                          bench.scratches, bench.results,  bench.result_views, bench.out_rows,    bench.cursors};
  for (unsigned i = 0; i < sizeof memory / sizeof memory[0]; i++) free(memory[i]);
  return bench.failed ? FAILED : 0;
}
