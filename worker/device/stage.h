/*
 * Copies between a device's memory and ours that go through two pinned buffers by turns: while one is being copied by
 * the device, the other is emptied or filled here. For one thread at a time.
 *
 * Work is submitted to the streams given, and waited for with a deadline by asking events: no stream and no device is
 * brought to a stop. A copy that a deadline cuts off goes on by itself; its buffer is not used again before it is done.
 */
#ifndef ZPS_WORKER_DEVICE_STAGE_H
#define ZPS_WORKER_DEVICE_STAGE_H

#include "gpu/device.h"

struct zps_stage;

zps_err_t zps_stage_create(struct zps_device *device, size_t buffer_bytes, struct zps_stage **stage_p,
                           struct zps_error *error) ZPS_MUSTCHECK;
/* Waits for what the device still does with the buffers. NULL is allowed. */
void zps_stage_destroy(struct zps_stage *stage);

/* Memory of the device that is read from its beginning to its end, in pieces. Another `serial` says that it holds
 * something else than before. */
struct zps_stage_source {
  const void *at_on_device;
  size_t len_bytes;
  uint64_t serial; /* not 0 */
  zps_stream_t stream;
};
/* Brings [offset, offset + len_bytes) to `to`; what follows it in the source is on its way when this returns. */
zps_err_t zps_stage_read(struct zps_stage *stage, const struct zps_stage_source *source, size_t offset,
                         size_t len_bytes, void *to, uint64_t deadline_ns, struct zps_error *error) ZPS_MUSTCHECK;
/* Sends `from`, which is the caller's again when this returns; the device has it in the stream's order. */
zps_err_t zps_stage_write(struct zps_stage *stage, void *to_on_device, const void *from, size_t len_bytes,
                          zps_stream_t stream, uint64_t deadline_ns, struct zps_error *error) ZPS_MUSTCHECK;

/* Waits until the device is through with all copies so far: before memory that was read ahead is freed. */
zps_err_t zps_stage_idle(struct zps_stage *stage, uint64_t deadline_ns, struct zps_error *error) ZPS_MUSTCHECK;

/* Waits until the stream got to where the event was recorded: ZPS_ERR_TIMEOUT when it does not until the deadline. */
zps_err_t zps_stage_wait(struct zps_device *device, struct zps_event *event, uint64_t deadline_ns,
                         struct zps_error *error) ZPS_MUSTCHECK;

/* The end of what was submitted to a stream. All zero at first. */
struct zps_stage_mark {
  struct zps_event *event;
  bool is_pending; /* The device may still use the memory of that work. */
};
zps_err_t zps_stage_mark_set(struct zps_device *device, struct zps_stage_mark *mark, zps_stream_t stream,
                             struct zps_error *error) ZPS_MUSTCHECK;
/* As zps_stage_wait(), for the last mark. Without one it returns at once. */
zps_err_t zps_stage_mark_wait(struct zps_device *device, struct zps_stage_mark *mark, uint64_t deadline_ns,
                              struct zps_error *error) ZPS_MUSTCHECK;
/* Sets a mark and waits for it. */
zps_err_t zps_stage_finish(struct zps_device *device, struct zps_stage_mark *mark, zps_stream_t stream,
                           uint64_t deadline_ns, struct zps_error *error) ZPS_MUSTCHECK;
/* Waits without a deadline. */
void zps_stage_mark_fini(struct zps_device *device, struct zps_stage_mark *mark);

#endif
