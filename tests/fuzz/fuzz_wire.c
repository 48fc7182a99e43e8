/* Decodes arbitrary bytes as a frame; what decodes must encode to a frame that decodes again. */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

#include "proto/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static struct zps_frame frame, again;
  struct zps_error error;
  uint8_t out[ZPS_WIRE_FRAME_MAX];
  size_t len = 0;
  if (zps_wire_decode(data, size, &frame, &error) != ZPS_OK) return 0;
  if (zps_wire_encode(&frame, out, sizeof out, &len) != ZPS_OK || len != size) abort();
  if (zps_wire_decode(out, len, &again, &error) != ZPS_OK) abort();
  return 0;
}
