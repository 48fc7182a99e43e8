/* A network between two linked ends: messages are lost, or come late, twice or in another order. */
#ifndef ZPS_TESTS_SESSION_NETWORK_H
#define ZPS_TESTS_SESSION_NETWORK_H

#include "common/base/rng.h"
#include "tests/unit/session/linked.h"

enum { HELD_MAX = 4096 };

/* A network that loses, delays and doubles messages to an end. */
struct network {
  struct linked linked;
  struct zps_rng rng;
  double loss, late, twice; /* chances of a message */
  bool is_down;             /* all are lost */
  bool loses_frames;        /* all are lost but RESUME frames */
  unsigned is_down_to;      /* a bit for each end: it hears nothing */
  struct held {
    size_t len;
    uint8_t bytes[ZPS_WIRE_MESSAGE_MAX];
  } * held[2][HELD_MAX];
  unsigned n_held[2];
};

static struct network network;

static inline bool chance(double of) {
  return of > 0 && zps_rng_unit(&network.rng) < of;
}

static inline void let_go(int i) {
  struct held *const held = network.held[i][0];
  const unsigned at = (unsigned)zps_rng_below(&network.rng, network.n_held[i]);
  network.held[i][0] = network.held[i][at];
  struct held *const chosen = at == 0 ? held : network.held[i][0];
  network.held[i][at] = held;
  network.held[i][0] = network.held[i][--network.n_held[i]];
  on_message(&network.linked.ends[i], chosen->bytes, chosen->len);
  free(chosen);
}

static inline void hold(int i, const void *data, size_t len) {
  struct held *const held = malloc(sizeof *held);
  assert_non_null(held);
  assert_true(network.n_held[i] < HELD_MAX);
  held->len = len;
  memcpy(held->bytes, data, len);
  network.held[i][network.n_held[i]++] = held;
}

static inline bool is_resume(const void *data, size_t len) {
  struct zps_frame_header header;
  return zps_wire_header(data, len - ZPS_WIRE_MAC_BYTES, &header, NULL) == ZPS_OK && header.type == ZPS_FRAME_RESUME;
}

static inline void on_network(struct end *end, const void *data, size_t len) {
  const int i = end == &network.linked.ends[1];
  if (network.is_down || (network.is_down_to >> i & 1) || chance(network.loss)) return;
  if (network.loses_frames && !is_resume(data, len)) return;
  if (chance(network.twice)) on_message(end, data, len);
  if (chance(network.late))
    hold(i, data, len);
  else
    on_message(end, data, len);
}

static inline struct linked *network_open(uint64_t seed) {
  memset(&network, 0, sizeof network);
  network.rng.state = seed;
  linked_open(&network.linked, "loop", NULL);
  for (int i = 0; i < 2; i++) network.linked.ends[i].on_message = on_network;
  return &network.linked;
}

/* Message 0 of end 0 has arrived. */
static inline struct linked *network_open_begun(void) {
  struct linked *const linked = network_open(1);
  send_now(linked, 0, 0);
  linked_settle(linked);
  return linked;
}

/* End 0 sends `n` messages, from `first` on, and all are lost. */
static inline void network_lose(struct linked *linked, unsigned first, unsigned n) {
  network.is_down = true;
  for (unsigned i = first; i < first + n; i++) send_now(linked, 0, i);
  linked_settle(linked);
  network.is_down = false;
}

/* Message 1 of end 0 is lost, and message 2 waits for it. */
static inline struct linked *network_open_with_gap(void) {
  struct linked *const linked = network_open_begun();
  network_lose(linked, 1, 1);
  send_now(linked, 0, 2);
  linked_settle(linked);
  assert_int_equal(linked->n_done[1], 1);
  return linked;
}

static inline void network_close(void) {
  network.late = 0; /* Nothing lets go of messages that are held in the last turns. */
  for (int i = 0; i < 2; i++)
    while (network.n_held[i] > 0) let_go(i);
  linked_settle(&network.linked);
  linked_close(&network.linked);
}

#endif
