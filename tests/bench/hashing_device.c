#include "tests/bench/hashing_device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/codec/partition_murmur.h"
#include "gpu/device.h"
#include "tests/bench/bench.h"
#include "worker/device/table.h"

struct hashing_device {
  const char *program;
  struct zps_device *device;
  zps_stream_t stream;
  struct zps_event *event;
  struct zps_murmur *murmur;
  struct zps_partition part;
  void *table, *values; /* on the device */
  struct zps_error error;
};

static bool ok(struct hashing_device *device, zps_err_t code) {
  if (code != ZPS_OK) fprintf(stderr, "%s: the device: %s\n", device->program, device->error.text);
  return code == ZPS_OK;
}

struct hashing_device *hashing_device_open(const char *program, const char *library) {
  struct hashing_device *const made = bench_memory(program, 1, sizeof *made);
  if (!made) return NULL;
  made->program = program;
  zps_err_t code = zps_device_load(library, 0, &made->device, &made->error);
  if (code == ZPS_OK) code = made->device->ops->stream_create(made->device, &made->stream, &made->error);
  if (code == ZPS_OK) code = made->device->ops->event_create(made->device, &made->event, &made->error);
  if (ok(made, code)) return made;
  hashing_device_close(made);
  return NULL;
}

static void drop(struct hashing_device *device) {
  if (device->values) device->device->ops->release(device->device, ZPS_MEMORY_DEVICE, device->values);
  if (device->table) zps_device_table_release(device->device, device->table);
  zps_murmur_destroy(device->murmur);
  device->values = device->table = NULL;
  device->murmur = NULL;
}

void hashing_device_close(struct hashing_device *device) {
  if (!device) return;
  drop(device);
  if (device->event) device->device->ops->event_destroy(device->device, device->event);
  if (device->stream) device->device->ops->stream_destroy(device->device, device->stream);
  zps_device_close(device->device);
  free(device);
}

/* Waits until the stream is through. */
static zps_err_t sync(struct hashing_device *device) {
  const struct zps_device_ops *const ops = device->device->ops;
  const zps_err_t code = ops->event_record(device->device, device->event, device->stream, &device->error);
  return code == ZPS_OK ? ops->event_sync(device->device, device->event, &device->error) : code;
}

bool hashing_device_put(struct hashing_device *device, uint64_t rows, uint32_t n_parts, uint64_t seed,
                        const uint64_t *indices, uint64_t n) {
  const struct zps_device_ops *const ops = device->device->ops;
  struct zps_partition part;
  drop(device);
  float *const values = bench_memory(device->program, rows, sizeof *values);
  if (!values) return false;
  for (uint64_t i = 0; i < n; i++) values[indices[i]] = 1;
  zps_err_t code = zps_murmur_create(rows, n_parts, seed, NULL, &device->murmur, &part, &device->error);
  if (code == ZPS_OK)
    code = zps_device_table_create(device->device, &part, &device->part, &device->table, &device->error);
  if (code == ZPS_OK)
    code = ops->allocate(device->device, ZPS_MEMORY_DEVICE, rows * sizeof *values, &device->values, &device->error);
  if (code == ZPS_OK)
    code = ops->copy(device->device, device->values, values, rows * sizeof *values, device->stream, &device->error);
  if (code == ZPS_OK) code = sync(device);
  free(values);
  return ok(device, code);
}

typedef zps_err_t (*scan_t)(struct zps_device_encoder *encoder, const struct zps_encode_input *input, unsigned allowed,
                            zps_stream_t stream, struct zps_error *error);

/* The least time of `runs`, beside those that end in more memory. */
static zps_err_t time_scans(struct hashing_device *device, struct zps_device_encoder *encoder, scan_t scan,
                            unsigned allowed, const struct zps_encode_input *input, uint64_t runs, double *best_ns,
                            unsigned *n_again) {
  const struct zps_device_slice *slices;
  *n_again = 0;
  *best_ns = INFINITY;
  for (uint64_t run = 0; run < runs;) {
    const uint64_t begin_ns = zps_clock_ns();
    zps_err_t code = scan(encoder, input, allowed, device->stream, &device->error);
    if (code == ZPS_OK) code = sync(device);
    const double took_ns = (double)(zps_clock_ns() - begin_ns);
    if (code == ZPS_OK) code = device->device->ops->encoder_finish(encoder, &slices, &device->error);
    *n_again += code == ZPS_ERR_AGAIN;
    if (code == ZPS_ERR_AGAIN) continue;
    if (code != ZPS_OK) return code;
    *best_ns = fmin(*best_ns, took_ns);
    run++;
  }
  return ZPS_OK;
}

bool hashing_device_run(struct hashing_device *device, const struct zps_hier_options *options, uint64_t runs,
                        struct hashing_device_times *times) {
  const struct zps_device_ops *const ops = device->device->ops;
  const struct zps_encode_input input = {.part = &device->part,
                                         .width = 1,
                                         .dtype = ZPS_DTYPE_F32,
                                         .value_codec = ZPS_VALUES_RAW,
                                         .values = device->values,
                                         .any_order = true,
                                         .hashing = *options};
  struct zps_device_encoder *encoder = NULL;
  struct zps_device_hashed hashed = {0};
  unsigned n_again = 0, n_walked_again;
  zps_err_t code = ops->encoder_create(device->device, &encoder, &device->error);
  if (code == ZPS_OK)
    code = time_scans(device, encoder, ops->encoder_scan, 1u << ZPS_CODEC_COO, &input, runs, &times->walk_ns,
                      &n_walked_again);
  if (code == ZPS_OK)
    code = time_scans(device, encoder, ops->encoder_hash, ZPS_CODEC_ANY_ORDER, &input, runs, &times->hash_ns, &n_again);
  if (code == ZPS_OK) ops->encoder_hashed(encoder, &hashed);
  if (encoder) ops->encoder_destroy(encoder);
  times->stats = (struct zps_hier_stats){
      .parallel = hashed.parallel, .serial = hashed.serial, .lost_races = hashed.lost_races, .redone = n_again};
  return ok(device, code);
}
