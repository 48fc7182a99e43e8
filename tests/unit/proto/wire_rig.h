/* One frame of each kind as the golden files have them, and the steps of a test with a frame: it makes the frame in
 * wire.frame, encodes it to wire.buf, decodes it to wire.back. */
#ifndef ZPS_TESTS_PROTO_WIRE_RIG_H
#define ZPS_TESTS_PROTO_WIRE_RIG_H

#include "proto/wire.h"

extern struct wire {
  struct zps_frame frame, back;
  uint8_t buf[ZPS_WIRE_FRAME_MAX + 1];
} wire;

/* Each sets wire.frame, and fills wire.back with bytes that a decoder must overwrite. */
struct zps_frame *wire_new_short(uint8_t type, uint8_t seq, uint8_t credits, uint32_t tag);
void wire_make_push(void);
void wire_make_push_any(void);
void wire_make_push_inline(void);
void wire_make_push_wide(void);
void wire_make_push_rails(void);
void wire_make_push_absent(void);
void wire_make_result_absent(void);
void wire_make_result(void);
void wire_make_peer(void);
void wire_make_done(void);
void wire_make_abort(void);
void wire_make_credit(void);
void wire_make_give(void);
void wire_make_pull(void);
void wire_make_taken(void);
void wire_make_seek(void);
void wire_make_found(void);
void wire_make_missed(void);
void wire_make_resume(void);
void wire_make_closed(void);

/* Those above; `name`.hex in proto/golden. */
enum { WIRE_N_GOLDEN = 20 };
extern const struct wire_golden {
  const char *name;
  void (*make)(void);
} wire_golden[WIRE_N_GOLDEN];

bool wire_is_round(uint8_t type);
/* Returns the bytes that wire.frame takes. */
size_t wire_encode(void);
/* From an allocation of exactly this size, so that sanitizers see every byte read too far. */
zps_err_t wire_decode(const void *bytes, size_t len, struct zps_error *error);
/* wire.back equals wire.frame. */
void wire_expect_same(void);

#endif
