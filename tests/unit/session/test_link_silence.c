/* Links whose peers are silent, or do not send again what is missing. */
#include "tests/unit/session/network.h"

/* A peer is stopped, goes on for a moment, and is stopped again. It answers each time, but sends nothing. */
static void test_a_peer_that_only_answers_is_cut_ever_more_rarely(void **state) {
  (void)state;
  struct linked *const linked = network_open(1);
  send_now(linked, 0, 0);
  linked_settle(linked);
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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_peer_that_only_answers_is_cut_ever_more_rarely),
  };
  return cmocka_run_group_tests_name("link silence", tests, NULL, NULL);
}
