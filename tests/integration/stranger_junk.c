#include <string.h>

#include "tests/integration/stranger.h"

enum {
  FRAME_MAX = 16384, /* members send no longer ones */
  TAGS = 4,
  WAYS = 8,
};

static void put_long_header(struct stranger *stranger, uint64_t i, uint8_t *at) {
  const uint32_t src = (uint32_t)(i / WAYS % TAGS) | (i / WAYS / TAGS % 2 ? 0x80000000u : 0);
  memcpy(at, "ZPS1", 4);
  stranger_put(at + 4, 1, 2);
  at[6] = (uint8_t)(1 + i % 12);
  at[7] = 0;
  stranger_put(at + 8, stranger->job, 8);
  stranger_put(at + 16, i % 16, 4);
  stranger_put(at + 20, src, 4);
  stranger_put(at + 24, i / WAYS % 5000, 4);
}

/* All is random but for what makes it look like a message of a member; its length. */
static size_t make_junk(struct stranger *stranger, uint64_t i, uint8_t *at) {
  const size_t len = 1 + zps_rng_below(&stranger->rng, FRAME_MAX);
  const uint8_t seq = (uint8_t)(i / WAYS), tag = (uint8_t)(i / WAYS / 256 % TAGS);
  for (size_t k = 0; k < ZPS_NET_MSG_MAX; k += 8) stranger_put(at + k, zps_rng_u64(&stranger->rng), 8);
  switch (i % WAYS) {
    case 0: /* a CREDIT frame without a MAC */
    case 1: /* a CREDIT frame with a MAC */
      stranger_put(at, 0x95u | (uint32_t)seq << 8 | (uint32_t)tag << 24, 4);
      return i % WAYS == 0 ? 4 : 12;
    case 2: /* frames of all types, with short headers */
      stranger_put(at, 0x90u | (uint32_t)(1 + i / WAYS % 12) | (uint32_t)seq << 8 | (uint32_t)tag << 24, 4);
      return len;
    case 3:
      put_long_header(stranger, i, at);
      return 34 + len % 256;
    case 4: /* part of one */
      put_long_header(stranger, i, at);
      return len % 34;
    case 5: /* several frames */
      stranger_put(at, 0x90u | (uint32_t)(len % 128) << 8 | 0x95u << 16, 3);
      return len;
    case 6: /* longer than a receive */
      return ZPS_NET_MSG_MAX - len % 1024;
    default:
      return len;
  }
}

static bool is_through(struct stranger *stranger) {
  return stranger->is_lost || !stranger->peer || zps_net_unsent(stranger->peer) == 0;
}

int stranger_junk(struct stranger *stranger, unsigned long n) {
  static uint8_t message[ZPS_NET_MSG_MAX];
  size_t len = 0;
  uint64_t patient_until_ns = zps_clock_ns() + STRANGER_PATIENCE_NS;
  while (stranger->n_tried < n) {
    if (!stranger_connect(stranger, &stranger->to, sizeof stranger->to)) return 2;
    if (len == 0) len = make_junk(stranger, stranger->n_tried, message);
    const zps_err_t code = zps_net_send(stranger->peer, message, len);
    if (code == ZPS_OK) {
      if (stranger->n_tried % 16 != 1) len = 0; /* at 1 it comes again */
      stranger->n_tried++;
      patient_until_ns = zps_clock_ns() + STRANGER_PATIENCE_NS;
    } else if (zps_clock_ns() > patient_until_ns) {
      return stranger_give_up("it takes no messages", zps_err_str(code));
    }
    if (code != ZPS_OK || stranger->n_tried % 8 == 0) stranger_turn(stranger);
  }
  while (!is_through(stranger) && zps_clock_ns() < patient_until_ns) stranger_turn(stranger);
  stranger->n_done = (unsigned long)zps_net_counters(stranger->net)->msgs_sent;
  return 0;
}
