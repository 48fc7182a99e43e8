#include "common/plan/measure.h"

#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/rng.h"
#include "common/codec/decode.h"
#include "common/codec/encode.h"
#include "common/codec/reduce.h"

enum {
  VALUES = 64 << 10, /* of the tensor, which lies in the cache */
  LARGE = 1 << 20,   /* of one that does not, for loops that read or write all of it */
  PARTS = 2,
  RANKS = 4, /* contributions that are summed */
  TURNS = 3, /* the best of these counts */
  WIDE = 16, /* values per row of the second shape */
  WAKES = 33 /* the median of these counts */
};

/* Of that machine: TCP over the loopback interface, each way, and to look at a message and answer. */
#define MOVE_BYTE_NS 0.5
#define MESSAGE_NS 8000
/* The bounds of the time to wake up, under any load during the measurement. */
#define WAKE_MIN_NS 2000
#define WAKE_MAX_NS 50000
/* Of pushes and pulls: servers publish partitions while others are still on their way. */
#define OVERLAP 0.6

struct bench {
  float *dense, *copy;
  uint8_t *slices, *sums; /* PARTS equal pieces each */
  struct zps_encoder *encoder;
  struct zps_reduce_scratch *scratch;
};

/* The time that a stage took for one shape, in nanoseconds. */
struct took {
  double rows, encode, reduce, decode, clear;
};

static double now_ns(void) {
  struct timespec used;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return (double)used.tv_sec * 1e9 + (double)used.tv_nsec;
}

static void fill(struct bench *bench, uint32_t width, uint32_t every) {
  struct zps_rng rng = {.state = 1};
  memset(bench->dense, 0, VALUES * sizeof *bench->dense);
  for (uint32_t row = 0; every > 0 && row < VALUES / width; row++) {
    if (zps_rng_below(&rng, every) != 0) continue;
    for (uint32_t i = 0; i < width; i++) bench->dense[row * width + i] = 1.5f;
  }
}

/* Once through all stages. */
static zps_err_t turn(struct bench *bench, const struct zps_partition *part, uint32_t width, struct took *took) {
  const size_t piece = 2 * (size_t)VALUES * sizeof *bench->dense;
  const struct zps_encode_input input = {
      .part = part, .width = width, .dtype = ZPS_DTYPE_F32, .value_codec = ZPS_VALUES_RAW, .values = bench->dense};
  struct zps_slice_view views[RANKS], sums[PARTS];
  struct zps_error error;
  const double begin = now_ns();
  zps_err_t err = zps_encoder_scan(bench->encoder, &input, NULL, &error);
  uint64_t len[PARTS] = {0};
  enum zps_codec codecs[PARTS] = {ZPS_CODEC_COO};
  for (uint32_t p = 0; p < PARTS && err == ZPS_OK; p++) {
    codecs[p] = zps_encoder_choose(bench->encoder, p, (1u << ZPS_CODEC_COUNT) - 1, &len[p]);
    if (len[p] > piece / PARTS) return ZPS_ERR_TRUNCATED;
    zps_encoder_write(bench->encoder, p, codecs[p], bench->slices + p * (piece / PARTS));
  }
  const double encoded = now_ns();
  took->rows = (double)zps_encoder_total_nnz(bench->encoder);
  for (uint32_t p = 0; p < PARTS && err == ZPS_OK; p++) {
    uint32_t nnz = 0;
    uint64_t sum_len = 0;
    const uint32_t m = zps_partition_size(part, p);
    for (unsigned r = 0; r < RANKS && err == ZPS_OK; r++)
      err = zps_slice_view_init(&views[r], codecs[p], m, zps_encoder_nnz(bench->encoder, p), width, ZPS_DTYPE_F32,
                                ZPS_VALUES_RAW, bench->slices + p * (piece / PARTS), len[p], &error);
    uint8_t *const sum = bench->sums + p * (piece / PARTS);
    if (err == ZPS_OK)
      err = zps_reduce(bench->scratch, views, RANKS, ZPS_OP_SUM, ZPS_CODEC_BITMAP, NULL, sum, &nnz, &sum_len);
    if (err == ZPS_OK)
      err = zps_slice_view_init(&sums[p], ZPS_CODEC_BITMAP, m, nnz, width, ZPS_DTYPE_F32, ZPS_VALUES_RAW, sum, sum_len,
                                &error);
  }
  const double reduced = now_ns();
  zps_decode_dense_clear(bench->copy, VALUES * sizeof *bench->copy, 0, 1);
  const double cleared = now_ns();
  for (uint32_t p = 0; p < PARTS && err == ZPS_OK; p++) zps_decode_dense(part, p, &sums[p], bench->copy);
  const double decoded = now_ns();
  took->encode = fmin(took->encode, encoded - begin);
  took->reduce = fmin(took->reduce, reduced - encoded);
  took->clear = fmin(took->clear, cleared - reduced);
  took->decode = fmin(took->decode, decoded - cleared);
  return err;
}

static zps_err_t run(struct bench *bench, uint32_t width, uint32_t every, struct took *took) {
  struct zps_partition part;
  struct zps_error error;
  zps_err_t err = zps_partition_init(&part, VALUES / width, PARTS, 0, 1, &error);
  *took = (struct took){.encode = INFINITY, .reduce = INFINITY, .decode = INFINITY, .clear = INFINITY};
  fill(bench, width, every);
  for (unsigned i = 0; i < TURNS && err == ZPS_OK; i++) err = turn(bench, &part, width, took);
  return err;
}

static double add_ns(struct bench *bench) {
  double best = INFINITY;
  for (unsigned i = 0; i < TURNS; i++) {
    const double begin = now_ns();
    for (uint32_t v = 0; v < VALUES; v++) bench->copy[v] += bench->dense[v];
    __asm__ volatile("" ::"r"(bench->copy) : "memory"); /* it is wanted */
    best = fmin(best, now_ns() - begin);
  }
  return best / VALUES;
}

/* Looking for values where there are none, and zeroing: memory sets the pace. */
static zps_err_t measure_large(struct zps_encoder *encoder, struct zps_plan_calibration *calibration) {
  struct zps_partition part;
  struct zps_error error;
  float *const dense = malloc(LARGE * sizeof *dense);
  if (!dense) return ZPS_ERR_NOMEM;
  const struct zps_encode_input input = {
      .part = &part, .width = 1, .dtype = ZPS_DTYPE_F32, .value_codec = ZPS_VALUES_RAW, .values = dense};
  double scan = INFINITY, clear = INFINITY;
  zps_err_t err = zps_partition_init(&part, LARGE, PARTS, 0, 1, &error);
  memset(dense, 0, LARGE * sizeof *dense);
  for (unsigned i = 0; i < TURNS && err == ZPS_OK; i++) {
    const double begin = now_ns();
    err = zps_encoder_scan(encoder, &input, NULL, &error);
    const double scanned = now_ns();
    zps_decode_dense_clear(dense, LARGE * sizeof *dense, 0, 1);
    scan = fmin(scan, scanned - begin);
    clear = fmin(clear, now_ns() - scanned);
  }
  free(dense);
  if (err != ZPS_OK) return err;
  calibration->scan_value_ns = fmax(scan / LARGE, 0.01);
  calibration->clear_value_ns = fmax(clear / LARGE, 0.01);
  return ZPS_OK;
}

struct echo {
  int there, back; /* eventfds */
};

static void *answer(void *arg) {
  const struct echo *echo = arg;
  uint64_t one;
  for (unsigned i = 0; i < WAKES; i++) {
    if (read(echo->there, &one, sizeof one) != sizeof one || write(echo->back, &one, sizeof one) != sizeof one) break;
  }
  return NULL;
}

static int compare(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Until a thread that slept runs, by the clock: two wake each other up in turns. */
static double wake_ns(void) {
  const struct echo echo = {.there = eventfd(0, EFD_CLOEXEC), .back = eventfd(0, EFD_CLOEXEC)};
  double times[WAKES], median = 0;
  uint64_t one = 1;
  unsigned n = 0;
  pthread_t thread;
  if (echo.there >= 0 && echo.back >= 0 && pthread_create(&thread, NULL, answer, (void *)&echo) == 0) {
    for (; n < WAKES; n++) {
      const uint64_t begin = zps_clock_ns();
      if (write(echo.there, &one, sizeof one) != sizeof one || read(echo.back, &one, sizeof one) != sizeof one) break;
      times[n] = (double)(zps_clock_ns() - begin) / 2;
    }
    pthread_join(thread, NULL);
  }
  if (echo.there >= 0) close(echo.there);
  if (echo.back >= 0) close(echo.back);
  if (n == WAKES) {
    qsort(times, n, sizeof times[0], compare);
    median = times[n / 2];
  }
  return fmin(fmax(median, WAKE_MIN_NS), WAKE_MAX_NS);
}

/* a = r1 (row + value), b = r2 (row + WIDE value); none is free. */
static void solve(double a, double r1, double b, double r2, double *row_ns, double *value_ns) {
  const double narrow = fmax(a / fmax(r1, 1), 0.05), wide = fmax(b / fmax(r2, 1), narrow);
  *value_ns = fmax((wide - narrow) / (WIDE - 1), 0.02);
  *row_ns = fmax(narrow - *value_ns, 0.02);
}

static zps_err_t measure(struct bench *bench, struct zps_plan_calibration *calibration) {
  struct took none, few, wide;
  zps_err_t err = run(bench, 1, 0, &none);
  if (err == ZPS_OK) err = run(bench, 1, 16, &few);
  if (err == ZPS_OK) err = run(bench, WIDE, 4, &wide);
  if (err != ZPS_OK) return err;
  struct zps_plan_calibration *c = calibration;
  solve(few.encode - none.encode, few.rows, wide.encode - none.encode, wide.rows, &c->encode_row_ns,
        &c->encode_value_ns);
  solve(few.reduce - none.reduce, RANKS * few.rows, wide.reduce - none.reduce, RANKS * wide.rows, &c->reduce_row_ns,
        &c->reduce_value_ns);
  solve(few.decode, few.rows, wide.decode, wide.rows, &c->decode_row_ns, &c->decode_value_ns);
  const double before = c->add_value_ns;
  c->add_value_ns = fmax(add_ns(bench), 0.02);
  const double slower = c->add_value_ns / before; /* than the machine of the defaults */
  c->select_value_ns *= slower;
  c->move_byte_ns = MOVE_BYTE_NS * slower;
  c->message_ns = MESSAGE_NS * slower + wake_ns();
  c->overlap = OVERLAP;
  return measure_large(bench->encoder, c);
}

void zps_plan_calibration_measure(struct zps_plan_calibration *calibration) {
  const size_t bytes = VALUES * sizeof(float);
  struct bench bench = {
      .dense = malloc(bytes), .copy = calloc(1, bytes), .slices = malloc(2 * bytes), .sums = malloc(2 * bytes)};
  zps_plan_calibration_default(calibration);
  zps_err_t err = bench.dense && bench.copy && bench.slices && bench.sums ? ZPS_OK : ZPS_ERR_NOMEM;
  if (err == ZPS_OK) err = zps_encoder_create(ZPS_PARTITIONER_STRATIFIED, &bench.encoder);
  if (err == ZPS_OK) err = zps_reduce_scratch_create(&bench.scratch);
  if (err == ZPS_OK) err = measure(&bench, calibration);
  if (err != ZPS_OK) zps_plan_calibration_default(calibration);
  zps_reduce_scratch_destroy(bench.scratch);
  zps_encoder_destroy(bench.encoder);
  free(bench.dense);
  free(bench.copy);
  free(bench.slices);
  free(bench.sums);
}
