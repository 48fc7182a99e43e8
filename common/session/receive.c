#include "common/session/receive.h"

#include <stdatomic.h>

#define ZPS_LOG_COMPONENT "engine"
#include "common/base/log.h"
#include "common/session/link.h"

static void drop(struct zps_receiver *receiver, const char *what, size_t len, const struct zps_error *error) {
  atomic_fetch_add(&receiver->malformed, 1);
  zps_log_warn_of_strangers("dropped a %s of %zu bytes: %s", what, len, error->text);
}

static struct zps_link *find_link(const struct zps_receiver *receiver, const struct zps_frame_header *header) {
  return receiver->handler->find_link(receiver->handler->ctx, header);
}

/* The link that the message is of; NULL: none, and nothing may come of it. */
static struct zps_link *vouched(struct zps_receiver *receiver, struct zps_wire_frames frames, const void *data,
                                size_t len) {
  const void *first;
  size_t n_first;
  struct zps_frame_header header;
  struct zps_error error;
  if (zps_wire_frames_next(&frames, &first, &n_first, &error) != ZPS_OK ||
      zps_wire_header(first, n_first, &header, &error) != ZPS_OK) {
    drop(receiver, "message", len, &error);
    return NULL;
  }
  struct zps_link *const link = find_link(receiver, &header);
  if (!link || zps_link_vouches(link, &header, data, len)) return link;
  atomic_fetch_add(&receiver->forged, 1);
  zps_log_warn_of_strangers("dropped a message of %zu bytes: its MAC is not that of the link that its %s frame names",
                            len, zps_frame_type_name(header.type));
  return NULL;
}

void zps_receive(struct zps_receiver *receiver, const void *data, size_t len) {
  struct zps_wire_frames frames;
  struct zps_frame frame;
  struct zps_error error;
  zps_wire_frames_begin(&frames, data, len);
  const struct zps_link *const link = vouched(receiver, frames, data, len);
  while (link) {
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
