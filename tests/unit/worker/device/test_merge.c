/* What ranks of a host have, added up on the emulated device. The ranks are objects of one process, which CUDA would
 * not let map its own memory. */
#include <stdio.h>

#ifndef ZPS_HAVE_EMU
int main(void) {
  puts("1..0 # SKIP no C++17 compiler: there is no emulated device");
  return 0;
}
#else
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/rng.h"
#include "tests/support/patience.h"
#include "tests/unit/gpu/gpu_rig.h"
#include "worker/device/device.h"
#include "worker/device/merge.h"

#define LIBRARY ".libs/libzenps_emu.so"
enum { RANKS = 3, ROWS = 700, WIDTH = 2 };
static const struct zps_tensor_shape shape = {ROWS, WIDTH, ZPS_DTYPE_F32};

static struct zps_worker_device *device;
static struct gpu_rig rig;

static uint64_t soon(void) {
  return zps_clock_ns() + PATIENCE_NEVER_MS * ZPS_NS_PER_MS;
}

/* Memory of the device. */
static uint64_t allocations(void) {
  void *const library = dlopen(LIBRARY, RTLD_NOW | RTLD_NOLOAD);
  uint64_t (*count)(void) = NULL;
  if (library) *(void **)&count = dlsym(library, "zps_emu_allocations");
  const uint64_t n = count ? count() : 0;
  if (library) dlclose(library);
  return n;
}

static int setup(void **state) {
  (void)state;
  gpu_ok(zps_worker_device_open(LIBRARY, 0, &device, &gpu_error));
  rig.device = device->device;
  gpu_rig_open(&rig);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  rig.device->ops->event_destroy(rig.device, rig.event);
  rig.device->ops->stream_destroy(rig.device, rig.stream);
  zps_worker_device_stop(device);
  zps_worker_device_close(device);
  return 0;
}

/* A rank, its dense gradient in host memory, and what it makes of it. */
struct rank {
  float gradient[ROWS * WIDTH];
  zenps_grad_t grad;
  struct zps_host_in in;
  struct zps_merge merge;
};

static void rank_open(struct rank *rank, double density, uint64_t seed) {
  struct zps_rng rng = {seed};
  *rank = (struct rank){.grad = {0}};
  for (unsigned i = 0; i < ROWS; i++) {
    if (zps_rng_unit(&rng) >= density) continue;
    for (unsigned c = 0; c < WIDTH; c++)
      rank->gradient[i * WIDTH + c] = (float)((zps_rng_unit(&rng) - 0.5) * (double)(1u << zps_rng_below(&rng, 20)));
  }
  ZENPS_GRAD_INIT(&rank->grad);
  rank->grad.memory = ZENPS_DEVICE;
  rank->grad.stream = rig.stream;
  rank->grad.values = gpu_upload(&rig, rank->gradient, sizeof rank->gradient);
}

static void rank_close(struct rank *rank) {
  gpu_free(&rig, rank->grad.values);
  zps_host_in_fini(&rank->in, device);
  zps_merge_fini(&rank->merge, device);
}

static void offer(struct rank *rank, double *to) {
  gpu_ok(zps_merge_offer(&rank->merge, &rank->in, device, &shape, &rank->grad, soon(), to, &gpu_error));
}

/* The sum in the order of ranks, as in host memory: of rows that any of them has. */
static void expect_sum(const struct rank *ranks, unsigned n, const zenps_grad_t *got) {
  uint64_t at = 0;
  for (unsigned row = 0; row < ROWS; row++) {
    float sum[WIDTH] = {0};
    bool any = false;
    for (unsigned r = 0; r < n; r++) {
      const float *const values = ranks[r].gradient + (size_t)row * WIDTH;
      bool has = false;
      for (unsigned c = 0; c < WIDTH; c++) has |= values[c] != 0;
      for (unsigned c = 0; c < WIDTH && has; c++) sum[c] += values[c];
      any |= has;
    }
    if (!any) continue;
    assert_true(at < got->nnz);
    assert_int_equal(got->row_ids[at], row);
    assert_memory_equal((const float *)got->values + at * WIDTH, sum, sizeof sum);
    at++;
  }
  assert_int_equal(at, got->nnz);
}

static void merge_all(struct rank *ranks, unsigned n) {
  double offers[RANKS * ZPS_OFFER_LEN];
  struct zps_error why;
  zenps_grad_t merged;
  uint64_t n_rows = 0;
  for (unsigned r = 0; r < n; r++) offer(&ranks[r], offers + (size_t)r * ZPS_OFFER_LEN);
  for (unsigned r = 0; r < n; r++) n_rows += zps_merge_offer_rows(offers + (size_t)r * ZPS_OFFER_LEN);
  assert_true(zps_merge_reach(&ranks->merge, device, &shape, offers, n, &why));
  gpu_ok(zps_merge_run(&ranks->merge, device, &shape, offers, n, rig.stream, soon(), &merged, &gpu_error));
  assert_int_equal(ranks->merge.n_reached, 0);
  assert_true(merged.nnz <= n_rows);
  gpu_ok(zps_merge_fetch(&ranks->merge, device, &shape, soon(), &merged, &gpu_error));
  expect_sum(ranks, n, &merged);
}

/* Of one rank, and of three; more and fewer rows from round to round, so that memory grows and stays. */
static void sums_are_those_in_host_memory(void **state) {
  (void)state;
  static const double densities[] = {0.05, 0.4, 0.02, 1, 0};
  struct rank *const ranks = calloc(RANKS, sizeof *ranks);
  assert_non_null(ranks);
  const uint64_t before = allocations();
  for (unsigned n = 1; n <= RANKS; n += 2) {
    for (unsigned r = 0; r < n; r++) rank_open(&ranks[r], 0.1, r);
    for (unsigned d = 0; d < sizeof densities / sizeof densities[0]; d++) {
      merge_all(ranks, n);
      for (unsigned r = 0; r < n; r++) {
        struct rank fresh;
        rank_open(&fresh, densities[d], 100 * d + r);
        gpu_free(&rig, ranks[r].grad.values);
        ranks[r].grad = fresh.grad;
        memcpy(ranks[r].gradient, fresh.gradient, sizeof fresh.gradient);
      }
    }
    merge_all(ranks, n);
    assert_true(ranks[0].merge.n_retired > 0);
    for (unsigned r = 0; r < n; r++) rank_close(&ranks[r]);
    gpu_wait(&rig);
  }
  assert_int_equal(allocations(), before);
  free(ranks);
}

/* What others say is looked at before it is used: nothing stays mapped. */
static void what_cannot_be_reached_is_not(void **state) {
  (void)state;
  struct rank *const ranks = calloc(RANKS, sizeof *ranks);
  assert_non_null(ranks);
  double good[RANKS * ZPS_OFFER_LEN], bad[RANKS * ZPS_OFFER_LEN];
  struct zps_error why;
  for (unsigned r = 0; r < RANKS; r++) {
    rank_open(&ranks[r], 0.1, r);
    offer(&ranks[r], good + (size_t)r * ZPS_OFFER_LEN);
  }
  const uint64_t before = allocations();
  static const struct {
    unsigned at;
    double is;
  } faults[] = {{0, 0},   {0, 7}, {1, 0}, {1, 2},     {2, ROWS + 1}, {2, -1},
                {2, 3.5}, {3, 1}, {6, 0}, {7, 1e300}, {8, 0.5},      {10, 0}};
  for (unsigned f = 0; f < sizeof faults / sizeof faults[0]; f++) {
    memcpy(bad, good, sizeof bad);
    bad[2 * ZPS_OFFER_LEN + faults[f].at] = faults[f].is;
    if (zps_merge_reach(&ranks->merge, device, &shape, bad, RANKS, &why)) fail_msg("fault %u is not seen", f);
    assert_int_equal(ranks->merge.n_reached, 0);
    assert_int_equal(allocations(), before);
  }
  /* More rows than there is memory behind the handle. */
  memcpy(bad, good, sizeof bad);
  bad[ZPS_OFFER_LEN + 2] = ROWS;
  assert_false(zps_merge_reach(&ranks->merge, device, &shape, bad, RANKS, &why));
  assert_non_null(strstr(why.text, "another process shares"));
  /* Memory that is gone. */
  rank_close(&ranks[2]);
  gpu_wait(&rig);
  assert_false(zps_merge_reach(&ranks->merge, device, &shape, good, RANKS, &why));
  assert_true(zps_merge_reach(&ranks->merge, device, &shape, good, RANKS - 1, &why));
  assert_int_equal(ranks->merge.n_reached, RANKS - 2);
  zps_merge_let_go(&ranks->merge, device);
  assert_int_equal(ranks->merge.n_reached, 0);
  rank_close(&ranks[0]);
  rank_close(&ranks[1]);
  free(ranks);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sums_are_those_in_host_memory),
      cmocka_unit_test(what_cannot_be_reached_is_not),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
#endif
