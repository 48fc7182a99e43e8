/* A job's device and host staging, when memory of either kind is short; and tensors of over 2^32 rows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef ZPS_EMU_LIBRARY
#include <dlfcn.h>

#include "common/base/clock.h"
#include "tests/support/oom.h"
#include "tests/support/patience.h"
#include "worker/device/device.h"
#include "worker/device/host.h"

static struct zps_error failure;

static void ok(zps_err_t code) {
  if (code != ZPS_OK) fail_msg("%s", failure.text);
}

/* Of tests/gpu/emu/control.h, in the library that is loaded. */
static void *emulation(const char *name) {
  void *const library = dlopen(ZPS_EMU_LIBRARY, RTLD_NOW);
  assert_non_null(library);
  void *const symbol = dlsym(library, name);
  assert_non_null(symbol);
  dlclose(library);
  return symbol;
}

static void fail_allocation(uint64_t n) {
  ((void (*)(uint64_t))(uintptr_t)emulation("zps_emu_fail_allocation"))(n);
}

static uint64_t allocations(void) {
  return ((uint64_t(*)(void))(uintptr_t)emulation("zps_emu_allocations"))();
}

static uint64_t soon(void) {
  return zps_clock_ns() + PATIENCE_NEVER_MS * ZPS_NS_PER_MS;
}

/* ------------------------------------------------------------ the device */

static zps_err_t device_create(void *ctx) {
  static char library[] = ZPS_EMU_LIBRARY;
  return zps_worker_device_open(library, 0, ctx, &failure);
}

static void device_destroy(void *ctx) {
  struct zps_worker_device **const device = ctx;
  zps_worker_device_stop(*device);
  zps_worker_device_close(*device);
}

static void test_device(void **state) {
  (void)state;
  struct zps_worker_device *device = NULL;
  (void)emulation("zps_emu_hold"); /* loaded, as it stays */
  oom_sweep(device_create, device_destroy, &device, 4);
  uint64_t n = 0;
  for (;; n++) {
    fail_allocation(n);
    const zps_err_t code = device_create(&device);
    fail_allocation(UINT64_MAX);
    if (code == ZPS_OK) break;
    assert_int_equal(code, ZPS_ERR_NOMEM);
    assert_non_null(strstr(failure.text, "pinned memory"));
    assert_int_equal(allocations(), 0);
  }
  assert_int_equal(n, 4); /* two threads with two buffers each */
  device_destroy(&device);
  assert_int_equal(allocations(), 0);
}

/* ------------------------------------------------------------ there and back */

enum { ROWS = 700, WIDTH = 3 };
static const struct zps_tensor_shape small_shape = {ROWS, WIDTH, ZPS_DTYPE_F32};

/* A gradient on the device, and room for it as a dense result. */
struct scene {
  struct zps_worker_device *device;
  float values[ROWS * WIDTH];
  zenps_grad_t in, out;
  struct zps_host_in there;
  struct zps_host_out back;
};

static void *device_new(const struct scene *scene, size_t len_bytes) {
  void *at = NULL;
  ok(scene->device->device->ops->allocate(scene->device->device, ZPS_MEMORY_DEVICE, len_bytes, &at, &failure));
  return at;
}

static void sync(const struct scene *scene) {
  const struct zps_device_ops *const ops = scene->device->device->ops;
  struct zps_event *event = NULL;
  ok(ops->event_create(scene->device->device, &event, &failure));
  ok(ops->event_record(scene->device->device, event, NULL, &failure));
  ok(ops->event_sync(scene->device->device, event, &failure));
  ops->event_destroy(scene->device->device, event);
}

static void *upload(const struct scene *scene, const void *from, size_t len_bytes) {
  void *const at = device_new(scene, len_bytes);
  ok(scene->device->device->ops->copy(scene->device->device, at, from, len_bytes, NULL, &failure));
  sync(scene);
  return at;
}

static void scene_open(struct scene *scene) {
  memset(scene, 0, sizeof *scene);
  ok(device_create(&scene->device));
  for (unsigned row = 0; row < ROWS; row += 1 + row % 5) scene->values[row * WIDTH + row % WIDTH] = (float)row - 99.5f;
  scene->in = (zenps_grad_t){.struct_size = sizeof scene->in, .layout = ZENPS_DENSE, .memory = ZENPS_DEVICE};
  scene->out = scene->in;
  scene->in.values = upload(scene, scene->values, sizeof scene->values);
  scene->out.values = device_new(scene, sizeof scene->values);
}

static void scene_close(struct scene *scene) {
  const struct zps_device_ops *const ops = scene->device->device->ops;
  sync(scene);
  ops->release(scene->device->device, ZPS_MEMORY_DEVICE, scene->in.values);
  ops->release(scene->device->device, ZPS_MEMORY_DEVICE, scene->out.values);
  device_destroy(&scene->device);
  assert_int_equal(allocations(), 0);
}

/* From the gradient to rows in host memory, and from there to a dense result. */
static zps_err_t round_trip(struct scene *scene) {
  zenps_grad_t host;
  zps_err_t code =
      zps_host_in_run(&scene->there, scene->device, &small_shape, &scene->in, false, soon(), &host, &failure);
  if (code != ZPS_OK) return code;
  assert_int_equal(host.layout, ZENPS_ROWS);
  assert_int_equal(host.memory, ZENPS_HOST);
  return zps_host_out_run(&scene->back, scene->device, &small_shape, &host, &scene->out, soon(), &failure);
}

static void forget(struct scene *scene) {
  zps_host_in_fini(&scene->there, scene->device);
  zps_host_out_fini(&scene->back, scene->device);
  memset(&scene->there, 0, sizeof scene->there);
  memset(&scene->back, 0, sizeof scene->back);
}

static void expect_result(const struct scene *scene) {
  float *const got = malloc(sizeof scene->values);
  assert_non_null(got);
  ok(scene->device->device->ops->copy(scene->device->device, got, scene->out.values, sizeof scene->values, NULL,
                                      &failure));
  sync(scene);
  assert_memory_equal(got, scene->values, sizeof scene->values);
  free(got);
}

static zps_err_t trip_create(void *ctx) {
  const zps_err_t code = round_trip(ctx);
  if (code != ZPS_OK) forget(ctx);
  return code;
}

static void trip_destroy(void *ctx) {
  expect_result(ctx);
  forget(ctx);
}

static void test_host_memory(void **state) {
  (void)state;
  static struct scene scene;
  scene_open(&scene);
  oom_sweep(trip_create, trip_destroy, &scene, 5);
  scene_close(&scene);
}

/* The same objects go on where they failed. */
static void test_device_memory(void **state) {
  (void)state;
  static struct scene scene;
  scene_open(&scene);
  uint64_t n = 0;
  zps_err_t code;
  do {
    fail_allocation(n++);
    code = round_trip(&scene);
    fail_allocation(UINT64_MAX);
    assert_true(code == ZPS_OK || code == ZPS_ERR_NOMEM);
  } while (code != ZPS_OK);
  expect_result(&scene);
  assert_true(n > 3);
  ok(round_trip(&scene));
  expect_result(&scene);
  forget(&scene);
  scene_close(&scene);
}

/* Full gradients come as they are; without values, as rows all the same. */
static void test_full(void **state) {
  (void)state;
  static struct scene scene;
  zenps_grad_t host;
  scene_open(&scene);
  for (unsigned i = 0; i < ROWS * WIDTH; i++) scene.values[i] = 1.0f + (float)i;
  ok(scene.device->device->ops->copy(scene.device->device, scene.in.values, scene.values, sizeof scene.values, NULL,
                                     &failure));
  ok(zps_host_in_run(&scene.there, scene.device, &small_shape, &scene.in, false, soon(), &host, &failure));
  assert_int_equal(host.layout, ZENPS_DENSE);
  assert_memory_equal(host.values, scene.values, sizeof scene.values);
  ok(zps_host_in_run(&scene.there, scene.device, &small_shape, &scene.in, true, soon(), &host, &failure));
  assert_int_equal(host.layout, ZENPS_ROWS);
  assert_int_equal(host.nnz, ROWS);
  for (unsigned i = 0; i < ROWS; i++) assert_int_equal(host.row_ids[i], i);
  forget(&scene);
  scene_close(&scene);
}

/* Row numbers of over 32 bits, unsorted and repeated. */
static void test_many_rows(void **state) {
  (void)state;
  static const int64_t rows[] = {(1ll << 33) - 1, 5, (1ll << 32) + 7, (1ll << 33) - 1, 1ll << 31};
  static const float values[] = {1, 2, 3, 10, 4};
  const struct zps_tensor_shape shape = {1ull << 33, 1, ZPS_DTYPE_F32};
  static struct scene scene;
  zenps_grad_t grad = {.struct_size = sizeof grad, .layout = ZENPS_ROWS, .memory = ZENPS_DEVICE, .nnz = 5}, host;
  scene_open(&scene);
  grad.row_ids = upload(&scene, rows, sizeof rows);
  grad.values = upload(&scene, values, sizeof values);
  ok(zps_host_in_run(&scene.there, scene.device, &shape, &grad, false, soon(), &host, &failure));
  assert_int_equal(host.nnz, 4);
  unsigned found = 0;
  for (unsigned i = 0; i < 4; i++) {
    for (unsigned j = 0; j < 5; j++) {
      if (host.row_ids[i] != rows[j]) continue;
      assert_true(((const float *)host.values)[i] == (j == 0 || j == 3 ? 11.0f : values[j]));
      found |= 1u << j;
    }
  }
  assert_int_equal(found, 0x1f);
  scene.device->device->ops->release(scene.device->device, ZPS_MEMORY_DEVICE, grad.row_ids);
  scene.device->device->ops->release(scene.device->device, ZPS_MEMORY_DEVICE, grad.values);
  forget(&scene);
  scene_close(&scene);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_device), cmocka_unit_test(test_host_memory),
                                     cmocka_unit_test(test_device_memory), cmocka_unit_test(test_full),
                                     cmocka_unit_test(test_many_rows)};
  return cmocka_run_group_tests_name("worker's device", tests, NULL, NULL);
}
#else
#include "tests/support/no_emulation.h"
#endif
