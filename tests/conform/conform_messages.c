/* Messages: sizes, order, back-pressure, receives. */
#include <string.h>

#include "tests/conform/conform.h"

enum { WINDOW = 256 };

static const size_t sizes[] = {0, 1, 2, 63, 64, 65, 127, 129, 1000, CONFORM_MAX_MSG - 1, CONFORM_MAX_MSG};
/* Long ones, each with a short one behind it that could overtake it. */
static const size_t large[] = {6000, 10, 8192, 10, ZPS_NET_MSG_MAX - 1, 0, ZPS_NET_MSG_MAX, 1};
enum { N_SIZES = sizeof sizes / sizeof sizes[0], N_LARGE = sizeof large / sizeof large[0] };

/* The messages to a node: size and bytes of message `seq` depend on seq. */
struct series {
  const size_t *sizes;
  size_t n_sizes;
  unsigned next;     /* expected; all before have come */
  bool came[WINDOW]; /* at seq % WINDOW, of those behind `next` */
};

static struct series expected;

static size_t size_of(const struct series *series, unsigned seq) {
  return series->sizes[seq % series->n_sizes];
}

static bool is_message(const struct series *series, unsigned seq, const void *data, size_t len) {
  return len == size_of(series, seq) && conform_check(data, seq, 0, len);
}

/* Order and content at once. Where the fabric reorders, a message is the first that it can be. */
static void check(struct conform_node *node, const void *data, size_t len) {
  struct series *const series = node->ctx;
  const unsigned end = series->next + (conform_target->reorders ? WINDOW : 1);
  unsigned seq = series->next;
  while (seq < end && (series->came[seq % WINDOW] || !is_message(series, seq, data, len))) seq++;
  if (seq == end)
    fail_msg("a message of %zu bytes is damaged, or not in its turn: number %u has %zu", len, series->next,
             size_of(series, series->next));
  for (series->came[seq % WINDOW] = true; series->came[series->next % WINDOW]; series->next++)
    series->came[series->next % WINDOW] = false;
}

static void expect(struct conform_node *node, struct series *series, const size_t *of, size_t n) {
  *series = (struct series){.sizes = of, .n_sizes = n};
  node->ctx = series;
  node->on_message = check;
}

static void send_seq(struct zps_net_peer *peer, const struct series *series, unsigned seq,
                     struct conform_node *const *nodes, size_t n) {
  uint8_t data[ZPS_NET_MSG_MAX];
  conform_fill(data, seq, size_of(series, seq));
  conform_send(peer, data, size_of(series, seq), nodes, n);
}

void conform_message_sizes(void **state) {
  (void)state;
  const struct zps_net_config config = conform_config();
  struct conform_pair pair;
  conform_pair_open(&pair, &config);
  expect(&pair.b, &expected, sizes, N_SIZES);
  uint64_t bytes = 0;
  for (unsigned seq = 0; seq < 2 * N_SIZES; seq++) {
    send_seq(pair.a_to_b, &expected, seq, CONFORM_NODES(&pair.a, &pair.b));
    conform_until(pair.b.n_messages == seq + 1, &pair.a, &pair.b);
    bytes += size_of(&expected, seq);
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
    send_seq(pair->a_to_b, pair->b.ctx, base + i, CONFORM_NODES(&pair->a, &pair->b));
  }
  conform_until(pair->b.n_messages - base == total, &pair->a, &pair->b);
}

void conform_message_stream(void **state) {
  (void)state;
  const struct zps_net_config config = conform_config();
  struct conform_pair pair;
  conform_pair_open(&pair, &config);
  expect(&pair.b, &expected, sizes, N_SIZES);
  stream(&pair, conform_scale(20000), config.n_recv);
  assert_int_equal(pair.a.n_errors + pair.b.n_errors, 0);
  conform_pair_close(&pair);
}

/* Messages as long as they may be, and short ones behind them. */
void conform_message_large(void **state) {
  (void)state;
  struct zps_net_config config = conform_config();
  struct conform_pair pair;
  config.max_msg = ZPS_NET_MSG_MAX;
  conform_pair_open(&pair, &config);
  expect(&pair.b, &expected, large, N_LARGE);
  stream(&pair, conform_scale(1000), config.n_recv);
  conform_pair_close(&pair);
}

void conform_message_both_ways(void **state) {
  (void)state;
  const struct zps_net_config config = conform_config();
  struct conform_pair pair;
  const unsigned n = conform_scale(5000);
  conform_pair_open(&pair, &config);
  struct series back;
  expect(&pair.b, &expected, sizes, N_SIZES);
  expect(&pair.a, &back, sizes, N_SIZES);
  for (unsigned i = 0; i < n; i++) {
    send_seq(pair.a_to_b, &expected, i, CONFORM_NODES(&pair.a, &pair.b));
    send_seq(pair.b_to_a, &back, i, CONFORM_NODES(&pair.a, &pair.b));
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
  expect(&pair.b, &expected, sizes, N_SIZES);
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
  expect(&node, &expected, sizes, N_SIZES);
  for (unsigned seq = 0; seq < 3 * N_SIZES; seq++) send_seq(self, &expected, seq, CONFORM_NODES(&node));
  conform_until(node.n_messages == 3 * N_SIZES, &node);
  conform_node_close(&node);
}
