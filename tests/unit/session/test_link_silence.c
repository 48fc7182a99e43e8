/* Links with silent peers, and with peers that do not send lost messages again. */
#include "common/net/bulk_impl.h"
#include "common/session/link_impl.h"
#include "tests/unit/session/network.h"

/* A peer is stopped, goes on for a moment, and is stopped again. It answers each time, but sends nothing. */
static void test_a_peer_that_only_answers_is_cut_ever_more_rarely(void **state) {
  (void)state;
  struct linked *const linked = network_open_begun();
  for (unsigned ms = 0; ms < 60000; ms += 10) {
    linked->now_ns += 10 * ZPS_NS_PER_MS;
    zps_net_progress(linked->ends[0].net);
    zps_link_tick(linked->links[0], linked->now_ns, true);
    zps_link_progress(linked->links[0]);
    if (ms % 2400 < 2100) continue;
    zps_net_progress(linked->ends[1].net);
    zps_link_tick(linked->links[1], linked->now_ns, false);
    zps_link_progress(linked->links[1]);
  }
  assert_true(zps_link_signs(linked->links[0]) > 20);
  assert_in_range(linked->counts[0].reconnects, 1, 3);
  network_close();
}

/* This end ends the connection, and the fabric reports the end. */
static void test_an_ended_connection_counts_once(void **state) {
  (void)state;
  struct linked *const linked = network_open_begun();
  const _Atomic uint64_t *const count = &linked->counts[0].reconnects;
  network.is_down = true;
  send_now(linked, 0, 1);
  linked_pass(linked, 1600 * ZPS_NS_PER_MS);
  assert_int_equal(*count, 1);
  zps_link_cut(linked->links[0]);
  linked_settle(linked);
  assert_int_equal(*count, 1);
  network.is_down = false;
  linked_pass(linked, 2 * ZPS_NS_PER_S);
  assert_int_equal(linked->n_done[1], 2);
  zps_link_cut(linked->links[0]); /* another one */
  linked_settle(linked);
  assert_int_equal(*count, 2);
  network_close();
}

static zps_err_t check(struct linked *linked, uint64_t dead_ns) {
  return zps_link_check(linked->links[1], linked->now_ns, dead_ns, &linked->error[1]);
}

/* End 1 has no fault to find meanwhile. */
static void pass_well(struct linked *linked, uint64_t ns) {
  for (uint64_t passed = 0; passed < ns; passed += 10 * ZPS_NS_PER_MS) {
    linked_pass(linked, 10 * ZPS_NS_PER_MS);
    if (check(linked, 0) != ZPS_OK) fail_msg("%s", linked->error[1].text);
  }
}

/* The peer stops before it can send the message again. That is silence, and breaks no rule. */
static void test_a_silent_peer_owes_nothing(void **state) {
  (void)state;
  struct linked *const linked = network_open_with_gap();
  network.is_down = true;
  pass_well(linked, 5900 * ZPS_NS_PER_MS);
  assert_int_equal(check(linked, 6 * ZPS_NS_PER_S), ZPS_OK);
  pass_well(linked, 1100 * ZPS_NS_PER_MS);
  assert_int_equal(check(linked, 6 * ZPS_NS_PER_S), ZPS_ERR_PEER_LOST);
  assert_non_null(strstr(linked->error[1].text, "nothing has come for 7.0 s"));
  const uint64_t next_ns = zps_link_tick(linked->links[1], linked->now_ns, false);
  assert_true(next_ns > linked->now_ns && next_ns <= linked->now_ns + ZPS_NS_PER_S);
  network.is_down = false; /* It goes on, and has time to send. */
  pass_well(linked, 2 * ZPS_NS_PER_S);
  assert_int_equal(linked->n_done[1], 3);
  network_close();
}

/* The peer answers, and what it sends again never comes. */
static void test_a_gap_does_not_stay(void **state) {
  (void)state;
  struct linked *const linked = network_open_with_gap();
  network.loses_frames = true;
  pass_well(linked, 4800 * ZPS_NS_PER_MS);
  linked_pass(linked, 1200 * ZPS_NS_PER_MS);
  assert_int_equal(check(linked, 0), ZPS_ERR_PROTOCOL);
  assert_non_null(strstr(linked->error[1].text, "frame 1 has not come, and 1 messages behind it have"));
  network.loses_frames = false;
  network_close();
}

/* Both ends read from each other all the time: reads do not bring a missing message. */
static void test_reads_do_not_hide_a_gap(void **state) {
  (void)state;
  struct linked *const linked = network_open_with_gap();
  struct zps_bulk *bulks[2];
  for (int i = 0; i < 2; i++) {
    assert_int_equal(zps_bulk_create(linked->ends[i].net, &(struct zps_bulk_config){0}, &bulks[i]), ZPS_OK);
    assert_int_equal(zps_bulk_peer_add(bulks[i], linked->ends[i].peer, &linked->links[i]->bulk), ZPS_OK);
  }
  for (unsigned i = 0; i < 30; i++) {
    for (int end = 0; end < 2; end++) linked->links[end]->bulk->landed += 1000;
    pass_well(linked, 10 * ZPS_NS_PER_MS);
  }
  assert_int_equal(linked->n_done[1], 3);
  for (int i = 0; i < 2; i++) {
    zps_bulk_peer_remove(linked->links[i]->bulk);
    linked->links[i]->bulk = NULL;
  }
  network_close();
  for (int i = 0; i < 2; i++) zps_bulk_destroy(bulks[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_peer_that_only_answers_is_cut_ever_more_rarely),
      cmocka_unit_test(test_an_ended_connection_counts_once),
      cmocka_unit_test(test_a_silent_peer_owes_nothing),
      cmocka_unit_test(test_a_gap_does_not_stay),
      cmocka_unit_test(test_reads_do_not_hide_a_gap),
  };
  return cmocka_run_group_tests_name("link silence", tests, NULL, NULL);
}
