#include "worker/device/stage.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"

#define ASK_FIRST_NS 5000u /* between two questions to an event; doubled each time */
#define ASK_MOST_NS 200000u

struct buffer {
  char *pinned;
  struct zps_stage_mark mark; /* behind the last copy */
  /* Reading: what of a source it holds, or will. */
  uint64_t serial; /* 0: nothing */
  size_t from, len_bytes;
  /* For writing. */
  size_t n_used;
  zps_stream_t stream;
};

struct zps_stage {
  struct zps_device *device;
  size_t buffer_bytes;
  struct buffer buffers[2];
  unsigned turn;
};

zps_err_t zps_stage_wait(struct zps_device *device, struct zps_event *event, uint64_t deadline_ns,
                         struct zps_error *error) {
  long pause_ns = ASK_FIRST_NS;
  zps_err_t code;
  while ((code = device->ops->event_query(device, event, error)) == ZPS_ERR_AGAIN) {
    if (zps_clock_ns() >= deadline_ns)
      return zps_fail(error, ZPS_ERR_TIMEOUT,
                      "the device has not got to the round's work: what is ahead of it in the stream takes too long");
    const struct timespec pause = {.tv_nsec = pause_ns};
    nanosleep(&pause, NULL);
    if (pause_ns < (long)ASK_MOST_NS) pause_ns *= 2;
  }
  return code;
}

zps_err_t zps_stage_mark_set(struct zps_device *device, struct zps_stage_mark *mark, zps_stream_t stream,
                             struct zps_error *error) {
  zps_err_t code = mark->event ? ZPS_OK : device->ops->event_create(device, &mark->event, error);
  if (code == ZPS_OK) code = device->ops->event_record(device, mark->event, stream, error);
  mark->is_pending = mark->is_pending || code == ZPS_OK;
  return code;
}

zps_err_t zps_stage_mark_wait(struct zps_device *device, struct zps_stage_mark *mark, uint64_t deadline_ns,
                              struct zps_error *error) {
  const zps_err_t code = mark->is_pending ? zps_stage_wait(device, mark->event, deadline_ns, error) : ZPS_OK;
  if (code == ZPS_OK) mark->is_pending = false;
  return code;
}

zps_err_t zps_stage_finish(struct zps_device *device, struct zps_stage_mark *mark, zps_stream_t stream,
                           uint64_t deadline_ns, struct zps_error *error) {
  const zps_err_t code = zps_stage_mark_set(device, mark, stream, error);
  return code == ZPS_OK ? zps_stage_mark_wait(device, mark, deadline_ns, error) : code;
}

void zps_stage_mark_fini(struct zps_device *device, struct zps_stage_mark *mark) {
  if (mark->is_pending) (void)!device->ops->event_sync(device, mark->event, NULL);
  if (mark->event) device->ops->event_destroy(device, mark->event);
  *mark = (struct zps_stage_mark){.event = NULL};
}

zps_err_t zps_stage_create(struct zps_device *device, size_t buffer_bytes, struct zps_stage **stage_p,
                           struct zps_error *error) {
  struct zps_stage *const stage = calloc(1, sizeof *stage);
  if (!stage) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for staging");
  stage->device = device;
  stage->buffer_bytes = buffer_bytes;
  zps_err_t code = ZPS_OK;
  for (unsigned i = 0; i < 2 && code == ZPS_OK; i++) {
    struct buffer *const buffer = &stage->buffers[i];
    void *pinned;
    code = device->ops->allocate(device, ZPS_MEMORY_PINNED, buffer_bytes, &pinned, error);
    if (code == ZPS_OK) buffer->pinned = pinned;
  }
  if (code != ZPS_OK) {
    zps_stage_destroy(stage);
    return code;
  }
  *stage_p = stage;
  return ZPS_OK;
}

void zps_stage_destroy(struct zps_stage *stage) {
  if (!stage) return;
  for (unsigned i = 0; i < 2; i++) {
    zps_stage_mark_fini(stage->device, &stage->buffers[i].mark);
    stage->device->ops->release(stage->device, ZPS_MEMORY_PINNED, stage->buffers[i].pinned);
  }
  free(stage);
}

static zps_err_t settle(const struct zps_stage *stage, struct buffer *buffer, uint64_t deadline_ns,
                        struct zps_error *error) {
  return zps_stage_mark_wait(stage->device, &buffer->mark, deadline_ns, error);
}

zps_err_t zps_stage_idle(struct zps_stage *stage, uint64_t deadline_ns, struct zps_error *error) {
  zps_err_t code = ZPS_OK;
  for (unsigned i = 0; i < 2 && code == ZPS_OK; i++) code = settle(stage, &stage->buffers[i], deadline_ns, error);
  return code;
}

/* Submits a copy and the mark behind it. */
static zps_err_t submit(const struct zps_stage *stage, struct buffer *buffer, void *to, const void *from,
                        size_t len_bytes, zps_stream_t stream, struct zps_error *error) {
  const zps_err_t code = stage->device->ops->copy(stage->device, to, from, len_bytes, stream, error);
  return code == ZPS_OK ? zps_stage_mark_set(stage->device, &buffer->mark, stream, error) : code;
}

/* ------------------------------------------------------------ from the device */

static bool holds(const struct buffer *buffer, uint64_t serial, size_t at) {
  return buffer->serial == serial && at >= buffer->from && at - buffer->from < buffer->len_bytes;
}

static zps_err_t fetch(const struct zps_stage *stage, struct buffer *buffer, const struct zps_stage_source *source,
                       size_t from, uint64_t deadline_ns, struct zps_error *error) {
  const size_t left = source->len_bytes - from;
  buffer->serial = 0;
  zps_err_t code = settle(stage, buffer, deadline_ns, error);
  if (code != ZPS_OK) return code;
  buffer->from = from;
  buffer->len_bytes = left < stage->buffer_bytes ? left : stage->buffer_bytes;
  code = submit(stage, buffer, buffer->pinned, (const char *)source->at_on_device + from, buffer->len_bytes,
                source->stream, error);
  if (code == ZPS_OK) buffer->serial = source->serial;
  return code;
}

zps_err_t zps_stage_read(struct zps_stage *stage, const struct zps_stage_source *source, size_t offset,
                         size_t len_bytes, void *to, uint64_t deadline_ns, struct zps_error *error) {
  const size_t end = offset + len_bytes;
  for (size_t at = offset; at < end;) {
    zps_err_t code = ZPS_OK;
    unsigned i = holds(&stage->buffers[1], source->serial, at);
    struct buffer *const here = &stage->buffers[i], *const other = &stage->buffers[!i];
    if (!holds(here, source->serial, at)) code = fetch(stage, here, source, at, deadline_ns, error);
    const size_t next = here->from + here->len_bytes;
    if (code == ZPS_OK && next < source->len_bytes && !holds(other, source->serial, next))
      code = fetch(stage, other, source, next, deadline_ns, error);
    if (code == ZPS_OK) code = settle(stage, here, deadline_ns, error);
    if (code != ZPS_OK) {
      here->serial = other->serial = 0;
      return code;
    }
    const size_t n = (end < next ? end : next) - at;
    memcpy((char *)to + (at - offset), here->pinned + (at - here->from), n);
    at += n;
  }
  return ZPS_OK;
}

/* ------------------------------------------------------------ to the device */

zps_err_t zps_stage_write(struct zps_stage *stage, void *to_on_device, const void *from, size_t len_bytes,
                          zps_stream_t stream, uint64_t deadline_ns, struct zps_error *error) {
  for (size_t done = 0; done < len_bytes;) {
    struct buffer *buffer = &stage->buffers[stage->turn];
    if (buffer->n_used == stage->buffer_bytes || (buffer->n_used > 0 && buffer->stream != stream)) {
      stage->turn = !stage->turn;
      buffer = &stage->buffers[stage->turn];
      const zps_err_t code = settle(stage, buffer, deadline_ns, error);
      if (code != ZPS_OK) return code;
      buffer->n_used = 0;
    }
    const size_t room = stage->buffer_bytes - buffer->n_used, left = len_bytes - done, n = left < room ? left : room;
    char *const pinned = buffer->pinned + buffer->n_used;
    memcpy(pinned, (const char *)from + done, n);
    buffer->stream = stream;
    buffer->n_used += n;
    const zps_err_t code = submit(stage, buffer, (char *)to_on_device + done, pinned, n, stream, error);
    if (code != ZPS_OK) return code;
    done += n;
  }
  return ZPS_OK;
}
