/* Staging between a device and host memory: order, faults that must not come, memory that is missing, deadlines. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/rng.h"
#include "worker/device/stage.h"
#ifdef ZPS_HAVE_EMU
#include "tests/gpu/emu/control.h"
#include "tests/support/patience.h"
#include "tests/unit/gpu/gpu_rig.h"

enum { BUFFER = 1000, TOTAL = 12345 };

struct bench {
  struct gpu_rig rig;
  struct zps_stage *stage;
  char *host;
};

static void open_bench(struct bench *bench) {
  struct zps_rng rng = {7};
  gpu_ok(zps_cuda_device_open(ZPS_DEVICE_ABI, 0, &bench->rig.device, &gpu_error));
  gpu_rig_open(&bench->rig);
  gpu_ok(zps_stage_create(bench->rig.device, BUFFER, &bench->stage, &gpu_error));
  bench->host = malloc(TOTAL);
  assert_non_null(bench->host);
  for (unsigned i = 0; i < TOTAL; i++) bench->host[i] = (char)zps_rng_u64(&rng);
}

static void close_bench(struct bench *bench) {
  zps_stage_destroy(bench->stage);
  gpu_rig_close(&bench->rig);
  free(bench->host);
  assert_int_equal(zps_emu_allocations(), 0);
}

static uint64_t soon(void) {
  return zps_clock_ns() + PATIENCE_NEVER_MS * ZPS_NS_PER_MS;
}

static void expect_read(struct bench *bench, const struct zps_stage_source *source, size_t offset, size_t len,
                        const char *wanted) {
  char *const to = malloc(len + 1);
  assert_non_null(to);
  to[len] = 42;
  gpu_ok(zps_stage_read(bench->stage, source, offset, len, to, soon(), &gpu_error));
  assert_memory_equal(to, wanted + offset, len);
  assert_int_equal(to[len], 42);
  free(to);
}

static void test_read(void **state) {
  (void)state;
  struct bench bench;
  open_bench(&bench);
  char *const at = gpu_upload(&bench.rig, bench.host, TOTAL);
  const struct zps_stage_source source = {at, TOTAL, 1, bench.rig.stream};
  static const size_t pieces[] = {1, 999, 1000, 1001, 0, 4321, 7, 2999, 2017};
  size_t offset = 0;
  for (unsigned i = 0; i < sizeof pieces / sizeof pieces[0]; offset += pieces[i++])
    expect_read(&bench, &source, offset, pieces[i], bench.host);
  assert_int_equal(offset, TOTAL);
  expect_read(&bench, &source, 0, TOTAL, bench.host); /* again, and out of order */
  expect_read(&bench, &source, 5000, 10, bench.host);
  expect_read(&bench, &source, 3, 10, bench.host);
  gpu_ok(zps_stage_idle(bench.stage, soon(), &gpu_error));
  gpu_free(&bench.rig, at);
  close_bench(&bench);
}

/* Bytes read ahead belong to another round, or to old contents of the memory. */
static void test_sources_take_turns(void **state) {
  (void)state;
  struct bench bench;
  open_bench(&bench);
  char *const other = malloc(TOTAL);
  assert_non_null(other);
  for (unsigned i = 0; i < TOTAL; i++) other[i] = (char)(bench.host[i] ^ 0x55);
  char *const at = gpu_upload(&bench.rig, bench.host, TOTAL), *const at_other = gpu_upload(&bench.rig, other, TOTAL);
  struct zps_stage_source source = {at, TOTAL, 1, bench.rig.stream};
  const struct zps_stage_source source_other = {at_other, TOTAL, 2, bench.rig.stream};
  for (size_t offset = 0; offset + 700 <= TOTAL; offset += 700) {
    expect_read(&bench, &source, offset, 700, bench.host);
    expect_read(&bench, &source_other, offset, 700, other);
  }
  expect_read(&bench, &source, 0, 100, bench.host);
  gpu_ok(bench.rig.device->ops->copy(bench.rig.device, at, other, TOTAL, bench.rig.stream, &gpu_error));
  source.serial = 3;
  expect_read(&bench, &source, 100, 3000, other);
  gpu_ok(zps_stage_idle(bench.stage, soon(), &gpu_error));
  gpu_free(&bench.rig, at);
  gpu_free(&bench.rig, at_other);
  free(other);
  close_bench(&bench);
}

static void test_write(void **state) {
  (void)state;
  struct bench bench;
  zps_stream_t streams[2];
  open_bench(&bench);
  streams[0] = bench.rig.stream;
  gpu_ok(bench.rig.device->ops->stream_create(bench.rig.device, &streams[1], &gpu_error));
  char *const at = gpu_new(&bench.rig, TOTAL), *const once = malloc(TOTAL);
  assert_non_null(once);
  struct zps_rng rng = {3};
  for (size_t offset = 0, n; offset < TOTAL; offset += n) {
    n = 1 + zps_rng_below(&rng, 2500);
    if (n > TOTAL - offset) n = TOTAL - offset;
    memcpy(once, bench.host + offset, n);
    gpu_ok(zps_stage_write(bench.stage, at + offset, once, n, streams[zps_rng_below(&rng, 2)], soon(), &gpu_error));
    memset(once, 0, n); /* the buffer is the test's again */
  }
  for (unsigned i = 0; i < 2; i++) {
    gpu_ok(bench.rig.device->ops->event_record(bench.rig.device, bench.rig.event, streams[i], &gpu_error));
    gpu_ok(zps_stage_wait(bench.rig.device, bench.rig.event, soon(), &gpu_error));
  }
  char *const back = gpu_download(&bench.rig, at, TOTAL);
  assert_memory_equal(back, bench.host, TOTAL);
  free(back);
  free(once);
  gpu_free(&bench.rig, at);
  bench.rig.device->ops->stream_destroy(bench.rig.device, streams[1]);
  close_bench(&bench);
}

/* The actions, in order: c: a copy is submitted, w: one is waited for. */
static char steps[64];
static unsigned n_steps;
static const struct zps_device_ops *real_ops;

static void note_step(char what) {
  if (n_steps + 1 < sizeof steps && (n_steps == 0 || what == 'c' || steps[n_steps - 1] != what))
    steps[n_steps++] = what;
  steps[n_steps] = '\0';
}

static zps_err_t noted_copy(struct zps_device *device, void *to, const void *from, size_t len_bytes,
                            zps_stream_t stream, struct zps_error *error) {
  note_step('c');
  return real_ops->copy(device, to, from, len_bytes, stream, error);
}

static zps_err_t noted_query(struct zps_device *device, struct zps_event *event, struct zps_error *error) {
  note_step('w');
  return real_ops->event_query(device, event, error);
}

/* While the caller, who hands the bytes to the network, has one buffer, the next one's copy is under way. */
static void test_reads_ahead(void **state) {
  (void)state;
  struct bench bench;
  open_bench(&bench);
  char *const at = gpu_upload(&bench.rig, bench.host, TOTAL);
  const struct zps_stage_source source = {at, 4 * BUFFER, 1, bench.rig.stream};
  real_ops = bench.rig.device->ops;
  struct zps_device_ops noted = *real_ops;
  noted.copy = noted_copy;
  noted.event_query = noted_query;
  bench.rig.device->ops = &noted;
  static const char *const wanted[] = {"ccw", "ccwcw", "ccwcwcw", "ccwcwcww"};
  for (unsigned i = 0; i < 4; i++) {
    expect_read(&bench, &source, i * BUFFER, BUFFER, bench.host);
    assert_int_equal(strncmp(steps, wanted[i], i == 3 ? 7 : strlen(wanted[i])), 0);
    assert_int_equal(n_steps, strlen(wanted[i]) - (i == 3));
  }
  bench.rig.device->ops = real_ops;
  gpu_ok(zps_stage_idle(bench.stage, soon(), &gpu_error));
  gpu_free(&bench.rig, at);
  close_bench(&bench);
}

/* Each allocation of pinned memory fails once: nothing is left behind. */
static void test_missing_memory(void **state) {
  (void)state;
  struct gpu_rig rig;
  struct zps_stage *stage = NULL;
  struct zps_error error;
  gpu_ok(zps_cuda_device_open(ZPS_DEVICE_ABI, 0, &rig.device, &gpu_error));
  unsigned n = 0;
  for (;; n++) {
    zps_emu_fail_allocation(n);
    if (zps_stage_create(rig.device, BUFFER, &stage, &error) == ZPS_OK) break;
    assert_int_equal(error.code, ZPS_ERR_NOMEM);
    assert_null(stage);
    assert_int_equal(zps_emu_allocations(), 0);
  }
  zps_emu_fail_allocation(UINT64_MAX);
  assert_int_equal(n, 2);
  zps_stage_destroy(stage);
  zps_stage_destroy(NULL);
  zps_device_close(rig.device);
}

/* A device that does not finish: the stage only polls the stream's work. */
static zps_err_t never(struct zps_device *device, struct zps_event *event, struct zps_error *error) {
  (void)device;
  (void)event;
  (void)error;
  return ZPS_ERR_AGAIN;
}

static void test_deadline(void **state) {
  (void)state;
  struct bench bench;
  struct zps_error error;
  char to[100];
  open_bench(&bench);
  char *const at = gpu_upload(&bench.rig, bench.host, TOTAL);
  const struct zps_device_ops *const ops = bench.rig.device->ops;
  struct zps_device_ops stuck = *ops;
  stuck.event_query = never;
  const struct zps_stage_source source = {at, TOTAL, 1, bench.rig.stream};
  bench.rig.device->ops = &stuck;
  const uint64_t deadline_ns = zps_clock_ns() + 5 * ZPS_NS_PER_MS;
  assert_int_equal(zps_stage_read(bench.stage, &source, 0, sizeof to, to, deadline_ns, &error), ZPS_ERR_TIMEOUT);
  assert_true(zps_clock_ns() >= deadline_ns);
  assert_non_null(strstr(error.text, "stream"));
  bench.rig.device->ops = ops; /* its buffers are used again only when the device is through with them */
  expect_read(&bench, &source, 0, TOTAL, bench.host);
  gpu_ok(zps_stage_idle(bench.stage, soon(), &gpu_error));
  gpu_free(&bench.rig, at);
  close_bench(&bench);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_read),  cmocka_unit_test(test_reads_ahead),    cmocka_unit_test(test_sources_take_turns),
      cmocka_unit_test(test_write), cmocka_unit_test(test_missing_memory), cmocka_unit_test(test_deadline)};
  return cmocka_run_group_tests_name("stage", tests, NULL, NULL);
}
#else
#include "tests/support/no_emulation.h"
#endif
