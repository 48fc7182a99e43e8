/* Takes arbitrary bytes apart as a message, and decodes its frames; a frame that decodes must encode to a frame that
 * decodes again. */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

#include "proto/wire.h"

static void look_at(const uint8_t *data, size_t size) {
  static struct zps_frame frame, again;
  struct zps_error error;
  uint8_t out[ZPS_WIRE_FRAME_MAX];
  size_t len = 0;
  if (zps_wire_decode(data, size, &frame, &error) != ZPS_OK) return;
  if (zps_wire_encode(&frame, out, sizeof out, &len) != ZPS_OK || len != size) abort();
  if (zps_wire_decode(out, len, &again, &error) != ZPS_OK) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct zps_wire_frames frames;
  const void *frame;
  size_t len, left = size + 1;
  zps_wire_frames_begin(&frames, data, size);
  while (zps_wire_frames_next(&frames, &frame, &len, NULL) == ZPS_OK && frame) {
    if (len >= left) abort(); /* every frame takes some of it */
    left -= len;
    look_at(frame, len);
  }
  return 0;
}
