#include "worker/device/table.h"

/* The arrays of a table, one after the other in one piece of memory. */
enum { BEFORE, LISTS, STARTS, RANKS, N_ARRAYS };

struct array {
  const void *from;
  size_t len_bytes;
};

static void list_arrays(const struct zps_partition_table *table, struct array arrays[N_ARRAYS]) {
  arrays[BEFORE] = (struct array){table->before, (table->n_blocks + 1ull) * table->n_parts * sizeof *table->before};
  arrays[LISTS] = (struct array){table->lists, table->rows * sizeof *table->lists};
  arrays[STARTS] = (struct array){table->starts, table->n_parts * sizeof *table->starts};
  arrays[RANKS] = (struct array){table->ranks, table->rows};
}

/* Waits until all are there. */
static zps_err_t copy(struct zps_device *device, void *at, const struct array arrays[N_ARRAYS], zps_stream_t stream,
                      struct zps_error *error) {
  const struct zps_device_ops *const ops = device->ops;
  struct zps_event *event;
  zps_err_t code = ops->event_create(device, &event, error);
  if (code != ZPS_OK) return code;
  char *to = at;
  for (unsigned i = 0; code == ZPS_OK && i < N_ARRAYS; to += arrays[i].len_bytes, i++)
    code = ops->copy(device, to, arrays[i].from, arrays[i].len_bytes, stream, error);
  if (code == ZPS_OK) code = ops->event_record(device, event, stream, error);
  if (code == ZPS_OK) code = ops->event_sync(device, event, error);
  ops->event_destroy(device, event);
  return code;
}

static void point_at(struct zps_partition_table *table, const char *at, const struct array arrays[N_ARRAYS]) {
  table->on_device.before = (const void *)at;
  table->on_device.lists = (const void *)(at += arrays[BEFORE].len_bytes);
  table->on_device.starts = (const void *)(at += arrays[LISTS].len_bytes);
  table->on_device.ranks = (const void *)(at + arrays[STARTS].len_bytes);
}

zps_err_t zps_device_table_create(struct zps_device *device, const struct zps_partition *part,
                                  struct zps_partition *device_part_p, void **table_p, struct zps_error *error) {
  const struct zps_device_ops *const ops = device->ops;
  struct array arrays[N_ARRAYS];
  size_t len_bytes = 0;
  zps_stream_t stream;
  void *at = NULL;
  list_arrays(&part->table, arrays);
  for (unsigned i = 0; i < N_ARRAYS; i++) len_bytes += arrays[i].len_bytes;
  zps_err_t code = ops->stream_create(device, &stream, error);
  if (code != ZPS_OK) return code;
  code = ops->allocate_on(device, len_bytes, stream, &at, error);
  if (code == ZPS_OK) code = copy(device, at, arrays, stream, error);
  if (code == ZPS_OK) {
    *device_part_p = *part;
    point_at(&device_part_p->table, at, arrays);
    *table_p = at;
  } else {
    ops->release(device, ZPS_MEMORY_DEVICE, at);
  }
  ops->stream_destroy(device, stream);
  return code;
}

void zps_device_table_release(struct zps_device *device, void *table) {
  if (table) device->ops->release(device, ZPS_MEMORY_DEVICE, table);
}
