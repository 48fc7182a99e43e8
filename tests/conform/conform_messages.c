/* Messages: sizes, order, back-pressure, receives. */
#include <string.h>

#include "tests/conform/conform.h"

enum { N_SIZES = 11 };

static size_t size_of(uint64_t seq) {
  static const size_t sizes[N_SIZES] = {0, 1, 2, 63, 64, 65, 127, 129, 1000, CONFORM_MAX_MSG - 1, CONFORM_MAX_MSG};
  return sizes[seq % N_SIZES];
}

/* Message `seq` has size_of(seq) bytes that depend on seq: order and content are checked at once. */
static void check_in_order(struct conform_node *node, const void *data, size_t len) {
  const uint64_t seq = node->n_messages - 1;
  if (len != size_of(seq)) fail_msg("message %u has %zu bytes instead of %zu", (unsigned)seq, len, size_of(seq));
  if (!conform_check(data, seq, 0, len)) fail_msg("message %u (%zu bytes) is damaged", (unsigned)seq, len);
}

static void send_seq(struct zps_net_peer *peer, uint64_t seq, struct conform_node *const *nodes, size_t n) {
  uint8_t data[CONFORM_MAX_MSG];
  conform_fill(data, seq, size_of(seq));
  conform_send(peer, data, size_of(seq), nodes, n);
}

void conform_message_sizes(void **state) {
  (void)state;
  const struct zps_net_config config = conform_config();
  struct conform_pair pair;
  conform_pair_open(&pair, &config);
  pair.b.on_message = check_in_order;
  uint64_t bytes = 0;
  for (unsigned seq = 0; seq < 2 * N_SIZES; seq++) {
    send_seq(pair.a_to_b, seq, CONFORM_NODES(&pair.a, &pair.b));
    conform_until(pair.b.n_messages == seq + 1, &pair.a, &pair.b);
    bytes += size_of(seq);
  }
  assert_int_equal(zps_net_counters(pair.a.net)->msgs_sent, 2 * N_SIZES);
  assert_int_equal(zps_net_counters(pair.a.net)->msg_bytes_sent, bytes);
  assert_int_equal(zps_net_counters(pair.b.net)->msgs_received, 2 * N_SIZES);
  assert_int_equal(zps_net_counters(pair.b.net)->msg_bytes_received, bytes);
  conform_pair_close(&pair);
}

/* Keeps `window` messages on their way, the first of them while the connection is being made. */
static void stream(struct conform_pair *pair, unsigned total, unsigned window) {
  const unsigned base = pair->b.n_messages;
  for (unsigned i = 0; i < total; i++) {
    conform_until(i < pair->b.n_messages - base + window, &pair->a, &pair->b);
    send_seq(pair->a_to_b, base + i, CONFORM_NODES(&pair->a, &pair->b));
  }
  conform_until(pair->b.n_messages - base == total, &pair->a, &pair->b);
}

void conform_message_stream(void **state) {
  (void)state;
  const struct zps_net_config config = conform_config();
  struct conform_pair pair;
  conform_pair_open(&pair, &config);
  pair.b.on_message = check_in_order;
  stream(&pair, conform_scale(20000), config.n_recv);
  assert_int_equal(pair.a.n_errors + pair.b.n_errors, 0);
  conform_pair_close(&pair);
}

void conform_message_both_ways(void **state) {
  (void)state;
  const struct zps_net_config config = conform_config();
  struct conform_pair pair;
  const unsigned n = conform_scale(5000);
  conform_pair_open(&pair, &config);
  pair.a.on_message = pair.b.on_message = check_in_order;
  for (unsigned i = 0; i < n; i++) {
    send_seq(pair.a_to_b, i, CONFORM_NODES(&pair.a, &pair.b));
    send_seq(pair.b_to_a, i, CONFORM_NODES(&pair.a, &pair.b));
    conform_until(i < pair.a.n_messages + config.n_recv && i < pair.b.n_messages + config.n_recv, &pair.a, &pair.b);
  }
  conform_until(pair.a.n_messages == n && pair.b.n_messages == n, &pair.a, &pair.b);
  conform_pair_close(&pair);
}

/* More messages under way than receives at the start need the receives that were reserved. */
void conform_message_reserve(void **state) {
  (void)state;
  struct zps_net_config config = conform_config();
  struct conform_pair pair;
  config.n_recv = 4;
  conform_pair_open(&pair, &config);
  pair.b.on_message = check_in_order;
  stream(&pair, 40, 4);
  assert_int_equal(zps_net_reserve(pair.b.net, 60), ZPS_OK);
  stream(&pair, conform_scale(2000), 64);
  assert_int_equal(zps_net_reserve(pair.b.net, -60), ZPS_OK);
  stream(&pair, 200, 4);
  for (int i = 0; i < 20; i++) {
    assert_int_equal(zps_net_reserve(pair.b.net, 32), ZPS_OK);
    stream(&pair, 36, 36);
    assert_int_equal(zps_net_reserve(pair.b.net, -32), ZPS_OK);
  }
  conform_pair_close(&pair);
}

void conform_message_to_self(void **state) {
  (void)state;
  const struct zps_net_config config = conform_config();
  struct conform_node node;
  conform_node_open(&node, &config);
  struct zps_net_peer *self = conform_peer_add(&node, &node);
  node.on_message = check_in_order;
  for (unsigned seq = 0; seq < 3 * N_SIZES; seq++) send_seq(self, seq, CONFORM_NODES(&node));
  conform_until(node.n_messages == 3 * N_SIZES, &node);
  conform_node_close(&node);
}
