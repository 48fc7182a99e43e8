#include "common/session/receive.h"

#include <stdatomic.h>
#include <stdlib.h>

#define ZPS_LOG_COMPONENT "engine"
#include "common/base/log.h"
#include "common/session/early.h"
#include "common/session/link.h"

static void drop(struct zps_receiver *receiver, const char *what, size_t len, const struct zps_error *error) {
  atomic_fetch_add(&receiver->malformed, 1);
  zps_log_warn_of_strangers("dropped a %s of %zu bytes: %s", what, len, error->text);
}

static struct zps_link *find_link(const struct zps_receiver *receiver, const struct zps_frame_header *header) {
  return receiver->handler->find_link(receiver->handler->ctx, header);
}

static bool first_header(const void *data, size_t len, struct zps_frame_header *header, struct zps_error *error) {
  struct zps_wire_frames frames;
  const void *first;
  size_t n_first;
  zps_wire_frames_begin(&frames, data, len);
  return zps_wire_frames_next(&frames, &first, &n_first, error) == ZPS_OK &&
         zps_wire_header(first, n_first, header, error) == ZPS_OK;
}

static void drop_forged(struct zps_receiver *receiver, const struct zps_frame_header *header, size_t len) {
  atomic_fetch_add(&receiver->forged, 1);
  zps_log_warn_of_strangers("dropped a message of %zu bytes: its MAC is not that of the link that its %s frame names",
                            len, zps_frame_type_name(header->type));
}

/* Hands up the frames of a message that is due. */
static void hand_up(struct zps_receiver *receiver, const struct zps_link *link, const void *data, size_t len) {
  struct zps_wire_frames frames;
  struct zps_frame frame;
  struct zps_error error;
  zps_wire_frames_begin(&frames, data, len);
  for (;;) {
    const void *bytes;
    size_t n_bytes;
    if (zps_wire_frames_next(&frames, &bytes, &n_bytes, &error) != ZPS_OK) {
      drop(receiver, "message", len, &error);
      return;
    }
    if (!bytes) return;
    if (zps_wire_decode(bytes, n_bytes, &frame, &error) != ZPS_OK)
      drop(receiver, "frame", n_bytes, &error);
    else if (find_link(receiver, &frame.header) == link) /* a member speaks for itself alone; or the link is gone now */
      receiver->handler->on_frame(receiver->handler->ctx, &frame);
  }
}

static void resume(struct zps_receiver *receiver, struct zps_link *link, const void *data, size_t len) {
  struct zps_wire_frames frames;
  struct zps_frame frame;
  struct zps_error error;
  const void *bytes;
  size_t n_bytes;
  zps_wire_frames_begin(&frames, data, len);
  if (zps_wire_frames_next(&frames, &bytes, &n_bytes, &error) == ZPS_OK && bytes &&
      zps_wire_decode(bytes, n_bytes, &frame, &error) == ZPS_OK)
    zps_link_resume(link, &frame);
  else
    drop(receiver, "RESUME frame", len, &error);
}

/* What came early is due when what was missing has been handed up. Any frame may end the link. */
static void hand_up_early(struct zps_receiver *receiver, struct zps_link *link, const struct zps_frame_header *header) {
  struct zps_early_message *message;
  while (find_link(receiver, header) == link && (message = zps_link_take_early(link)) != NULL) {
    hand_up(receiver, link, message->bytes, message->len);
    free(message);
  }
}

void zps_receive(struct zps_receiver *receiver, const void *data, size_t len) {
  struct zps_frame_header header;
  struct zps_error error;
  if (!first_header(data, len, &header, &error)) {
    drop(receiver, "message", len, &error);
    return;
  }
  struct zps_link *const link = find_link(receiver, &header);
  if (!link) return;
  switch (zps_link_take(link, &header, data, len)) {
    case ZPS_LINK_FORGED:
      drop_forged(receiver, &header, len);
      break;
    case ZPS_LINK_READY:
      hand_up(receiver, link, data, len);
      hand_up_early(receiver, link, &header);
      break;
    case ZPS_LINK_RESUMES:
      resume(receiver, link, data, len);
      break;
    case ZPS_LINK_EARLY:
    case ZPS_LINK_REPEATED:
      break;
  }
}
