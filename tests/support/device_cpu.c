#include "tests/support/device_cpu.h"

#include <stdlib.h>
#include <string.h>

#include "common/codec/hierarchical.h"

struct zps_event {
  char unused;
};

static void close_device(struct zps_device *device) {
  free(zps_device_cpu_of(device));
}

static zps_err_t allocate(struct zps_device *device, enum zps_memory memory, size_t len_bytes, void **memory_p,
                          struct zps_error *error) {
  (void)device;
  (void)memory;
  void *const at = aligned_alloc(64, (len_bytes + 64) & ~(size_t)63);
  if (!at) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for %zu bytes", len_bytes);
  *memory_p = at;
  return ZPS_OK;
}

static void release(struct zps_device *device, enum zps_memory memory, void *at) {
  (void)device;
  (void)memory;
  free(at);
}

static zps_err_t allocate_on(struct zps_device *device, size_t len_bytes, zps_stream_t stream, void **at_p,
                             struct zps_error *error) {
  (void)stream;
  return allocate(device, ZPS_MEMORY_DEVICE, len_bytes, at_p, error);
}

static void release_on(struct zps_device *device, void *at, zps_stream_t stream) {
  (void)stream;
  release(device, ZPS_MEMORY_DEVICE, at);
}

static zps_err_t copy(struct zps_device *device, void *to, const void *from, size_t len_bytes, zps_stream_t stream,
                      struct zps_error *error) {
  (void)device;
  (void)stream;
  (void)error;
  if (len_bytes) memcpy(to, from, len_bytes);
  return ZPS_OK;
}

static zps_err_t clear(struct zps_device *device, void *at, size_t len_bytes, zps_stream_t stream,
                       struct zps_error *error) {
  (void)device;
  (void)stream;
  (void)error;
  if (len_bytes) memset(at, 0, len_bytes);
  return ZPS_OK;
}

static zps_err_t check(struct zps_device *device, const void *at, size_t len_bytes, struct zps_error *error) {
  (void)device;
  (void)at;
  (void)len_bytes;
  (void)error;
  return ZPS_OK;
}

/* ------------------------------------------------------------ order: all work is done when it was submitted */

static zps_err_t stream_create(struct zps_device *device, zps_stream_t *stream_p, struct zps_error *error) {
  (void)device;
  (void)error;
  *stream_p = NULL;
  return ZPS_OK;
}

static void stream_destroy(struct zps_device *device, zps_stream_t stream) {
  (void)device;
  (void)stream;
}

static zps_err_t event_create(struct zps_device *device, struct zps_event **event_p, struct zps_error *error) {
  (void)device;
  struct zps_event *const made = calloc(1, sizeof *made);
  if (!made) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for an event");
  *event_p = made;
  return ZPS_OK;
}

static void event_destroy(struct zps_device *device, struct zps_event *event) {
  (void)device;
  free(event);
}

static zps_err_t event_record(struct zps_device *device, struct zps_event *event, zps_stream_t stream,
                              struct zps_error *error) {
  (void)device;
  (void)event;
  (void)stream;
  (void)error;
  return ZPS_OK;
}

static zps_err_t event_done(struct zps_device *device, struct zps_event *event, struct zps_error *error) {
  (void)device;
  (void)event;
  (void)error;
  return ZPS_OK;
}

static zps_err_t stream_wait(struct zps_device *device, zps_stream_t stream, struct zps_event *event,
                             struct zps_error *error) {
  (void)stream;
  return event_done(device, event, error);
}

static zps_err_t stream_wait_word(struct zps_device *device, zps_stream_t stream, const uint32_t *word, uint32_t value,
                                  struct zps_error *error) {
  (void)device;
  (void)stream;
  (void)word;
  (void)value;
  return zps_fail(error, ZPS_ERR_UNSUPPORTED, "work over host memory is done when it is submitted");
}

static zps_err_t export_memory(struct zps_device *device, void *base, size_t len_bytes,
                               struct zps_device_export *export_p, struct zps_error *error) {
  (void)device;
  (void)base;
  (void)error;
  *export_p = (struct zps_device_export){.dmabuf_fd = -1, .len_bytes = len_bytes};
  return ZPS_OK;
}

/* ------------------------------------------------------------ Algorithm 1 */

static uint32_t partition_of(void *ctx, uint64_t index) {
  uint32_t rank;
  return zps_partition_of(ctx, index, &rank);
}

static zps_err_t hash(struct zps_device *device, const struct zps_device_hashing *hashing,
                      const struct zps_partition *part, const uint64_t *rows, uint64_t n, uint64_t *out,
                      uint64_t *starts, zps_stream_t stream, struct zps_device_hashed *hashed_p,
                      struct zps_error *error) {
  (void)stream;
  struct zps_partition h0 = *part;
  const struct zps_hier_config config = {.n_parts = part->n_parts,
                                         .options = {.k = hashing->k, .r1 = hashing->r1, .r2 = hashing->r2},
                                         .seed = hashing->seed,
                                         .h0 = partition_of,
                                         .h0_ctx = &h0};
  struct zps_hier_stats stats;
  const zps_err_t code = zps_hier_partition(&config, rows, n, zps_device_cpu_of(device)->pool, out, starts, &stats);
  if (code != ZPS_OK) return zps_fail(error, code, "no memory to hash %llu rows", (unsigned long long)n);
  if (hashed_p)
    *hashed_p =
        (struct zps_device_hashed){.parallel = stats.parallel, .serial = stats.serial, .lost_races = stats.lost_races};
  return ZPS_OK;
}

static const struct zps_device_ops ops = {
    .kind = "cpu",
    .close = close_device,
    .allocate = allocate,
    .release = release,
    .allocate_on = allocate_on,
    .release_on = release_on,
    .copy = copy,
    .clear = clear,
    .check = check,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_query = event_done,
    .event_sync = event_done,
    .stream_wait = stream_wait,
    .stream_wait_word = stream_wait_word,
    .export_memory = export_memory,
    .encoder_create = zps_cpu_encoder_create,
    .encoder_destroy = zps_cpu_encoder_destroy,
    .encoder_scan = zps_cpu_encoder_scan,
    .encoder_merge = zps_cpu_encoder_merge,
    .encoder_finish = zps_cpu_encoder_finish,
    .encoder_write = zps_cpu_encoder_write,
    .decoder_create = zps_cpu_decoder_create,
    .decoder_destroy = zps_cpu_decoder_destroy,
    .decoder_dense = zps_cpu_decoder_dense,
    .decoder_rows = zps_cpu_decoder_rows,
    .decoder_finish = zps_cpu_decoder_finish,
    .hash = hash,
    .poly1305 = zps_cpu_poly1305,
};

zps_err_t zps_device_cpu_open(struct zps_workpool *pool, struct zps_device **device_p, struct zps_error *error) {
  struct zps_device_cpu *const made = calloc(1, sizeof *made);
  if (!made) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for a device");
  made->base.ops = &ops;
  made->pool = pool;
  *device_p = &made->base;
  return ZPS_OK;
}
