/* Messages: one frame, or several. */
#include <string.h>

#include "proto/wire_impl.h"

enum { SEVERAL = 128 | ZPS_WIRE_VERSION << 4 }; /* the first byte of a short header whose type is 0 */

void zps_wire_message_clear(struct zps_wire_message *message) {
  message->len = 1;
  message->n_frames = 0;
}

void *zps_wire_message_add(struct zps_wire_message *message, const void *frame, size_t len) {
  if (message->len + zps_varint_bytes(len) + len > ZPS_WIRE_FRAME_MAX) return NULL;
  uint8_t *const at = zps_varint_put(message->bytes + message->len, len);
  memcpy(at, frame, len);
  if (message->n_frames++ == 0) message->first = at;
  message->len = (size_t)(at - message->bytes) + len;
  return at;
}

void *zps_wire_message_bytes(struct zps_wire_message *message, size_t *len_p) {
  message->bytes[0] = SEVERAL;
  uint8_t *const start = message->n_frames == 1 ? message->first : message->bytes;
  *len_p = (size_t)(message->bytes + message->len - start);
  return start;
}

void zps_wire_frames_begin(struct zps_wire_frames *frames, const void *message, size_t len) {
  len = len > ZPS_WIRE_MAC_BYTES ? len - ZPS_WIRE_MAC_BYTES : 0;
  frames->start = frames->at = message;
  frames->end = frames->at + len;
  frames->several = len > 1 && frames->at[0] == SEVERAL;
  frames->ended = false;
  if (frames->several) frames->at++;
}

zps_err_t zps_wire_frames_next(struct zps_wire_frames *frames, const void **frame_p, size_t *len_p,
                               struct zps_error *error) {
  uint64_t len = (uint64_t)(frames->end - frames->at);
  *frame_p = NULL;
  if (frames->ended) return ZPS_OK;
  if (frames->several) {
    struct zps_wire_reader reader = {.type = "joined", .start = frames->start, .at = frames->at, .end = frames->end};
    const zps_err_t code = zps_wire_number(&reader, "length", len, &len, error);
    if (code != ZPS_OK) return code;
    const size_t left = (size_t)(reader.end - reader.at);
    if (len == 0 || len > left)
      return zps_fail(error, ZPS_ERR_PROTOCOL, "joined frame, offset %zu: length is %llu, 1 to %zu can be",
                      (size_t)(frames->at - frames->start), (unsigned long long)len, left);
    frames->at = reader.at;
  }
  *frame_p = frames->at;
  *len_p = (size_t)len;
  frames->at += len;
  frames->ended = frames->at == frames->end;
  return ZPS_OK;
}
