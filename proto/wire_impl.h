/* Shared by the files of the wire: the parts of a frame. */
#ifndef ZPS_PROTO_WIRE_IMPL_H
#define ZPS_PROTO_WIRE_IMPL_H

#include "common/base/varint.h"
#include "proto/wire.h"

/* The rest of a frame that is being read. */
struct zps_wire_reader {
  const char *type; /* name of the frame's type */
  const uint8_t *start, *at, *end;
};

/* Reads `field`, at most `most`. */
zps_err_t zps_wire_number(struct zps_wire_reader *reader, const char *field, uint64_t most, uint64_t *value_p,
                          struct zps_error *error) ZPS_MUSTCHECK;

/* wire_round.c: bodies and payload of PUSH, RESULT, PEER, GIVE, PULL, SEEK and FOUND. The bytes are SIZE_MAX where the
 * round may not be encoded.
 */
size_t zps_wire_round_bytes(const struct zps_frame_round *round, uint8_t type);
uint8_t *zps_wire_round_put(const struct zps_frame_round *round, uint8_t type, uint8_t *at);
/* Takes everything up to the end. */
zps_err_t zps_wire_round_get(struct zps_wire_reader *reader, uint8_t type, struct zps_frame_round *round,
                             struct zps_error *error) ZPS_MUSTCHECK;

#endif
