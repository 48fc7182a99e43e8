/*
 * Links over the double of a fabric (tests/support/double). The fabric takes 16 receives, and 8 sends and reads. It
 * refuses posts, and completes in any order, long messages late. -DDOUBLE names it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "tests/support/double/use.h"
#include "tests/support/link_take.h"
#include "tests/support/patience.h"

enum { N_PEERS = 20, HUB = 100, SLICE_LEN = 4000, A_TURN = 5 };

/* One end of a link. */
struct side {
  struct node *node;
  struct zps_net_peer *peer;
  struct zps_link *link;
  unsigned n_sent, n_received;
};

/* An endpoint: the hub, with a side for each spoke, or a spoke. */
struct node {
  struct zps_net *net;
  unsigned index;
  struct side sides[N_PEERS];
  unsigned n_sides;
};

static struct node hub, spokes[N_PEERS];
static struct zps_link_counts counts;

static void on_due(void *ctx, const void *data, size_t len) {
  struct side *const side = ctx;
  struct zps_wire_frames frames;
  const void *bytes;
  size_t n_bytes;
  struct zps_frame frame;
  struct zps_error error = {.text = ""};
  zps_wire_frames_begin(&frames, data, len);
  while (zps_wire_frames_next(&frames, &bytes, &n_bytes, NULL) == ZPS_OK && bytes) {
    assert_int_equal(zps_wire_decode(bytes, n_bytes, &frame, &error), ZPS_OK);
    if (zps_link_received(side->link, &frame.header, &error) != ZPS_OK) fail_msg("%s", error.text);
    if (frame.header.type == ZPS_FRAME_PUSH) assert_int_equal(frame.u.round.step, side->n_received++);
    if (frame.header.type == ZPS_FRAME_DONE) assert_int_equal(frame.u.done.step, side->n_received++);
  }
}

static struct side *side_of(struct node *node, const void *data, size_t len) {
  struct zps_wire_frames frames;
  const void *first;
  size_t first_len;
  struct zps_frame_header header;
  if (node->index != HUB) return &node->sides[0];
  zps_wire_frames_begin(&frames, data, len);
  assert_int_equal(zps_wire_frames_next(&frames, &first, &first_len, NULL), ZPS_OK);
  assert_int_equal(zps_wire_header(first, first_len, &header, NULL), ZPS_OK);
  const unsigned index = header.is_short ? header.tag : header.src;
  assert_in_range(index, 0, node->n_sides - 1);
  return &node->sides[index];
}

static void on_message(void *ctx, const void *data, size_t len) {
  struct side *const side = side_of(ctx, data, len);
  assert_int_not_equal(link_take(side->link, data, len, on_due, side), ZPS_LINK_FORGED);
}

static void on_peer_error(void *ctx, struct zps_net_peer *peer, zps_err_t code, const char *text) {
  (void)ctx, (void)peer, (void)code;
  fail_msg("%s", text);
}

static void node_open(struct node *node, unsigned index) {
  const struct zps_net_config config = {
      .provider = DOUBLE, .max_msg = ZPS_WIRE_MESSAGE_MAX, .n_recv = 4, .connect_timeout_ms = PATIENCE_NEVER_MS};
  const struct zps_net_handler handler = {.ctx = node, .on_message = on_message, .on_peer_error = on_peer_error};
  struct zps_error error = {.text = ""};
  *node = (struct node){.index = index};
  if (zps_net_open(&config, &handler, &node->net, &error) != ZPS_OK) fail_msg("%s", error.text);
}

static void side_open(struct node *node, const struct node *to) {
  static const struct zps_secret secret = {"a job's secret.."};
  const unsigned at = node->n_sides++;
  struct side *const side = &node->sides[at];
  const struct zps_net_info *const info = zps_net_info(to->net);
  const struct zps_link_ends ends = {.job = 9,
                                     .epoch = 4,
                                     .self = node->index,
                                     .other = to->index,
                                     .tag = at,
                                     .secret = &secret,
                                     .server = "a server's address",
                                     .server_len = sizeof "a server's address",
                                     .counts = &counts};
  struct zps_error error = {.text = ""};
  side->node = node;
  if (zps_net_peer_add(node->net, info->addr, info->addr_len, side, &side->peer, &error) != ZPS_OK)
    fail_msg("%s", error.text);
  assert_int_equal(zps_link_create(node->net, side->peer, &ends, &side->link), ZPS_OK);
}

static void cluster_open(unsigned n_peers) {
  counts = (struct zps_link_counts){0};
  node_open(&hub, HUB);
  for (unsigned i = 0; i < n_peers; i++) {
    node_open(&spokes[i], i);
    side_open(&hub, &spokes[i]);
    side_open(&spokes[i], &hub);
  }
}

static void node_close(struct node *node) {
  for (unsigned i = 0; i < node->n_sides; i++) zps_link_destroy(node->sides[i].link);
  zps_net_close(node->net);
}

static void cluster_close(unsigned n_peers) {
  for (unsigned i = 0; i < n_peers; i++) node_close(&spokes[i]);
  node_close(&hub);
}

/* Every third frame is a long one. */
static void send_next(struct side *side) {
  static const uint8_t payload[SLICE_LEN];
  struct zps_frame frame = {.header.type = ZPS_FRAME_DONE, .u.done = {.tensor = 1, .step = side->n_sent}};
  if (side->n_sent % 3 == 0) {
    frame = (struct zps_frame){.header.type = ZPS_FRAME_PUSH, .u.round = {.step = side->n_sent, .n_slices = 1}};
    frame.u.round.slices[0] = (struct zps_slice){.is_inline = true, .len_bytes = sizeof payload, .data = payload};
  }
  const zps_err_t code = zps_link_send(side->link, &frame);
  assert_true(code == ZPS_OK || code == ZPS_ERR_AGAIN);
  side->n_sent += code == ZPS_OK;
}

/* Returns the number of its links that are through with `n_frames` each way. */
static unsigned turn(struct node *node, unsigned n_frames) {
  unsigned n_done = 0;
  zps_net_progress(node->net);
  for (unsigned i = 0; i < node->n_sides; i++) {
    struct side *const side = &node->sides[i];
    struct zps_error error = {.text = ""};
    const uint64_t now_ns = zps_clock_ns();
    for (unsigned k = 0; k < A_TURN && side->n_sent < n_frames; k++) send_next(side);
    zps_link_tick(side->link, now_ns, side->n_received < n_frames);
    if (zps_link_check(side->link, now_ns, 0, &error) != ZPS_OK) fail_msg("%s", error.text);
    zps_link_progress(side->link);
    n_done += side->n_sent == n_frames && side->n_received == n_frames && zps_link_settles(side->link);
  }
  return n_done;
}

/* Each link carries the frames both ways. */
static void exchange(unsigned n_peers, unsigned n_frames) {
  struct patience patience = {0};
  unsigned n_done = 0;
  while (n_done < 2 * n_peers) {
    if (patience_is_over(&patience)) fail_msg("only %u of %u ends are through", n_done, 2 * n_peers);
    n_done = turn(&hub, n_frames);
    for (unsigned i = 0; i < n_peers; i++) n_done += turn(&spokes[i], n_frames);
    zps_net_wait(hub.net, 20000);
  }
}

/* Looks for room come every 2 ms, and other looks every 5 ms at most. */
static bool hub_sleeps(void) {
  enum { N_LOOKS = 20 };
  const uint64_t begun_ns = zps_clock_ns();
  for (unsigned i = 0; i < N_LOOKS; i++) {
    zps_net_wait(hub.net, 50 * ZPS_NS_PER_MS);
    zps_net_progress(hub.net);
  }
  return zps_clock_ns() - begun_ns >= N_LOOKS * 4 * ZPS_NS_PER_MS;
}

/* The links ask for 700 receives. What has no room at the fabric does not keep an idle hub awake. */
static void many_peers(void **state) {
  (void)state;
  bool sleeps = false;
  cluster_open(N_PEERS);
  exchange(N_PEERS, 60);
  for (unsigned i = 0; i < 10 && !sleeps; i++) sleeps = hub_sleeps();
  assert_true(sleeps);
  cluster_close(N_PEERS);
}

/* A slow caller finds most completions due, and in order. */
static void late_completions(void **state) {
  (void)state;
  cluster_open(1);
  for (unsigned n = 500; n <= 50000 && counts.reordered == 0; n += 500) exchange(1, n);
  assert_true(counts.reordered > 0);
  cluster_close(1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(many_peers),
      cmocka_unit_test(late_completions),
  };
  double_use(DOUBLE);
  double_be_unlucky();
  return cmocka_run_group_tests_name("links over " DOUBLE, tests, NULL, NULL);
}
