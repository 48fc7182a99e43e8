/* Windows over simulated links: a queue that serves pieces one by one at a rate, behind a delay. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/net/window.h"

enum { FLOWS_MAX = 16, PIECES_MAX = 2048, MOST = 8 << 20, PIECE_MOST = 1 << 20 };

struct piece {
  unsigned flow;
  uint64_t len, asked_ns;
};

struct link {
  double bytes_per_ns;
  uint64_t trip_ns, now_ns, queued, queued_most;
  unsigned n_flows, first, n;
  struct zps_window windows[FLOWS_MAX];
  struct zps_window_paths paths[FLOWS_MAX]; /* of the flows' endpoints: one for all, or one each */
  bool one_endpoint;
  uint64_t in_flight[FLOWS_MAX], got[FLOWS_MAX];
  struct piece pieces[PIECES_MAX]; /* a ring, in the order of the queue */
};

static void link_init(struct link *link, double mbit_per_s, uint64_t trip_ns, unsigned n_flows) {
  *link = (struct link){
      .bytes_per_ns = mbit_per_s / 8000, .trip_ns = trip_ns, .now_ns = 1, .n_flows = n_flows, .one_endpoint = true};
  for (unsigned i = 0; i < n_flows; i++) zps_window_init(&link->windows[i]);
}

static void link_fill(struct link *link, unsigned i) {
  while (i < link->n_flows) {
    const uint64_t len = zps_window_piece(&link->windows[i], PIECE_MOST, 1);
    assert_true(len > 0);
    if (link->in_flight[i] + len > link->windows[i].bytes) return;
    assert_in_range(link->n, 0, PIECES_MAX - 1);
    link->pieces[(link->first + link->n++) % PIECES_MAX] =
        (struct piece){.flow = i, .len = len, .asked_ns = link->now_ns};
    link->in_flight[i] += len;
    link->queued += len;
    if (link->queued > link->queued_most) link->queued_most = link->queued;
  }
}

static void link_run(struct link *link, uint64_t for_ns) {
  const uint64_t until_ns = link->now_ns + for_ns;
  for (unsigned i = 0; i < link->n_flows; i++) link_fill(link, i);
  while (link->now_ns < until_ns) {
    const struct piece piece = link->pieces[link->first];
    link->first = (link->first + 1) % PIECES_MAX;
    link->n--;
    const uint64_t begin_ns =
        link->now_ns < piece.asked_ns + link->trip_ns ? piece.asked_ns + link->trip_ns : link->now_ns;
    link->now_ns = begin_ns + (uint64_t)((double)piece.len / link->bytes_per_ns) + 1;
    link->queued -= piece.len;
    link->in_flight[piece.flow] -= piece.len;
    link->got[piece.flow] += piece.len;
    zps_window_landed(&link->windows[piece.flow], &link->paths[link->one_endpoint ? 0 : piece.flow], piece.len,
                      link->now_ns - piece.asked_ns, link->now_ns, link->n_flows, MOST);
    link_fill(link, piece.flow);
  }
}

/* The bytes that flow 0 got for each byte of the last flow, from here on. */
static double share(struct link *link, uint64_t for_ns) {
  const unsigned last = link->n_flows - 1;
  const uint64_t before[2] = {link->got[0], link->got[last]};
  link_run(link, for_ns);
  return (double)(link->got[0] - before[0]) / (double)(link->got[last] - before[1]);
}

static double carried(struct link *link, uint64_t for_ns) {
  uint64_t before = 0, after = 0;
  const uint64_t begin_ns = link->now_ns;
  for (unsigned i = 0; i < link->n_flows; i++) before += link->got[i];
  link_run(link, for_ns);
  for (unsigned i = 0; i < link->n_flows; i++) after += link->got[i];
  return (double)(after - before) / ((double)(link->now_ns - begin_ns) * link->bytes_per_ns);
}

/* Flows that begin as unequal as can be end with equal shares, and their windows fit into the queue of a slow switch.
 */
static void test_shares_become_equal(void **state) {
  (void)state;
  struct link link;
  link_init(&link, 25, 100000, 8);
  for (unsigned i = 0; i < 8; i++) /* a first piece of each, over an idle link */
    zps_window_landed(&link.windows[i], link.paths, 4096, 1500000, link.now_ns, 1, MOST);
  for (unsigned i = 0; i < 4; i++) link.windows[i].bytes = 1 << 20;
  link_run(&link, 20 * ZPS_NS_PER_S);
  link.queued_most = 0;
  assert_true(carried(&link, 5 * ZPS_NS_PER_S) > 0.99);
  const double ratio = share(&link, 5 * ZPS_NS_PER_S);
  assert_true(ratio > 0.8 && ratio < 1.25);
  assert_in_range(link.queued_most, 8 << 10, 320 << 10);
}

/* A flow that never saw the link without a queue goes by the others, but not by the one to its own host. */
static void test_standing_queue_is_no_path(void **state) {
  (void)state;
  struct link link;
  link_init(&link, 25, 100000, 8);
  struct zps_window here;
  zps_window_init(&here);
  zps_window_landed(&here, link.paths, 4096, 20000, link.now_ns, 1, MOST);
  for (unsigned i = 0; i < 7; i++)
    zps_window_landed(&link.windows[i], link.paths, 4096, (i + 1) * 1500000, link.now_ns, 1, MOST);
  zps_window_landed(&link.windows[7], link.paths, 4096, 60 * ZPS_NS_PER_MS, link.now_ns, 1, MOST);
  assert_int_equal(link.paths[0].nearest_ns, 20000);
  assert_int_equal(link.paths[0].second_ns, 1500000);
  link_run(&link, 20 * ZPS_NS_PER_S);
  const double ratio = share(&link, 10 * ZPS_NS_PER_S);
  assert_true(ratio > 0.8 && ratio < 1.25);
}

/* One host's slow way out, which 15 endpoints read over: their own bytes make a queue that is longer than the paths of
 * many networks. An endpoint that came when the queue was there knows from earlier messages that there is no such path.
 * */
static void test_messages_tell_a_queue_from_a_path(void **state) {
  (void)state;
  struct link link;
  struct zps_window others[2];
  link_init(&link, 25, 100000, 15);
  link.one_endpoint = false;
  for (unsigned i = 0; i < 15; i++) /* from processes that were more or less busy, to two hosts each */
    for (unsigned k = 0; k < 2; k++) {
      zps_window_init(&others[k]);
      zps_window_trip(&others[k], &link.paths[i], 200000 + i * 300000 + k);
    }
  link.n_flows = 8;
  link_run(&link, 2 * ZPS_NS_PER_S);
  link.n_flows = 15;
  link_run(&link, 20 * ZPS_NS_PER_S);
  const double ratio = share(&link, 10 * ZPS_NS_PER_S);
  assert_true(ratio > 0.9 && ratio < 1.1);
}

static void test_fast_link_is_filled(void **state) {
  (void)state;
  struct link link;
  link_init(&link, 10000, 50000, 4);
  link_run(&link, ZPS_NS_PER_S / 2);
  assert_true(carried(&link, ZPS_NS_PER_S / 2) > 0.99);
}

/* The delay of the path alone must not look like a queue. */
static void test_long_path_is_filled(void **state) {
  (void)state;
  static const struct {
    double mbit_per_s;
    uint64_t trip_ms;
  } paths[] = {{400, 50}, {1000, 50}, {1000, 100}, {10000, 10}, {1000, 6}};
  for (unsigned i = 0; i < sizeof paths / sizeof paths[0]; i++) {
    const uint64_t trip_ns = paths[i].trip_ms * ZPS_NS_PER_MS;
    struct link link;
    link_init(&link, paths[i].mbit_per_s, trip_ns, 2);
    for (unsigned k = 0; k < 2; k++) zps_window_trip(&link.windows[k], link.paths, trip_ns);
    link_run(&link, 30 * ZPS_NS_PER_S);
    assert_true(carried(&link, 5 * ZPS_NS_PER_S) > 0.9);
  }
}

/* A flow that goes on alone keeps to its share, since others' flows may meet it, until it has been alone for long. */
static void test_share_is_kept_for_a_while(void **state) {
  (void)state;
  struct link link;
  link_init(&link, 25, 100000, 15);
  link_run(&link, 20 * ZPS_NS_PER_S);
  link.n_flows = 1;
  link.queued_most = 0;
  link_run(&link, 5 * ZPS_NS_PER_S);
  const uint64_t share = link.windows[0].bytes;
  link_run(&link, 10 * ZPS_NS_PER_S);
  assert_in_range(share, 8 << 10, 48 << 10);
  assert_in_range(link.windows[0].bytes, share + share / 2, 128 << 10);
}

static void test_idle_flow_does_not_grow(void **state) {
  (void)state;
  struct zps_window window;
  struct zps_window_paths paths = {0};
  zps_window_init(&window);
  const uint64_t bytes = window.bytes;
  uint64_t now_ns = 1;
  for (unsigned i = 0; i < 10000; i++) {
    zps_window_landed(&window, &paths, 16384, 20000, now_ns, 1, MOST);
    zps_window_idle(&window);
    now_ns += ZPS_NS_PER_MS;
  }
  assert_int_equal(window.bytes, bytes);
}

static void test_limits(void **state) {
  (void)state;
  struct zps_window window;
  struct zps_window_paths paths = {0};
  zps_window_init(&window);
  uint64_t now_ns = 1;
  for (unsigned i = 0; i < 10000; i++)
    zps_window_landed(&window, &paths, 1 << 20, 20000, now_ns += ZPS_NS_PER_MS, 1, 1 << 20);
  assert_int_equal(window.bytes, 1 << 20);
  assert_int_equal(zps_window_piece(&window, PIECE_MOST, 1), 256 << 10);
  assert_int_equal(zps_window_piece(&window, 1000, 1), 1000);
  for (unsigned i = 0; i < 10000; i++)
    zps_window_landed(&window, &paths, 1 << 20, ZPS_NS_PER_S, now_ns += ZPS_NS_PER_S, 1000, 1 << 20);
  assert_int_equal(window.bytes, 8 << 10);
  assert_int_equal(zps_window_piece(&window, PIECE_MOST, 1), 8 << 10);
  window.bytes = 40 << 10;
  assert_int_equal(zps_window_piece(&window, PIECE_MOST, 1), 32 << 10);
}

/* As a clock that stands still between two of its ticks says. */
static void test_pieces_that_take_no_time(void **state) {
  (void)state;
  struct zps_window_paths paths = {0};
  struct zps_window window;
  uint64_t now_ns = 1;
  zps_window_init(&window);
  window.bytes = 1 << 20;
  for (unsigned i = 0; i < 100; i++)
    zps_window_landed(&window, &paths, 1 << 20, 0, now_ns += 4 * ZPS_NS_PER_MS, 1, MOST);
  assert_int_equal(window.bytes, MOST);
}

/* Two rails of one near peer are no two paths: the window to a far peer does not shrink. */
static void test_rails_of_a_peer_are_one_path(void **state) {
  (void)state;
  struct zps_window_paths paths = {0};
  struct zps_window near[2], far;
  for (int k = 0; k < 2; k++) zps_window_init(&near[k]);
  near[1].is_further = true;
  zps_window_init(&far);
  zps_window_trip(&far, &paths, 50 * ZPS_NS_PER_MS);
  for (int k = 0; k < 2; k++) zps_window_trip(&near[k], &paths, ZPS_NS_PER_MS / 10);
  assert_int_equal(paths.nearest_ns, ZPS_NS_PER_MS / 10);
  assert_int_equal(paths.second_ns, 50 * ZPS_NS_PER_MS);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_shares_become_equal),
      cmocka_unit_test(test_standing_queue_is_no_path),
      cmocka_unit_test(test_messages_tell_a_queue_from_a_path),
      cmocka_unit_test(test_fast_link_is_filled),
      cmocka_unit_test(test_long_path_is_filled),
      cmocka_unit_test(test_share_is_kept_for_a_while),
      cmocka_unit_test(test_idle_flow_does_not_grow),
      cmocka_unit_test(test_limits),
      cmocka_unit_test(test_rails_of_a_peer_are_one_path),
      cmocka_unit_test(test_pieces_that_take_no_time),
  };
  return cmocka_run_group_tests_name("net window", tests, NULL, NULL);
}
