/* How links measure their path before they are used. */
#include "tests/unit/session/linked.h"

struct measured {
  struct zps_bulk *bulk;
  struct zps_bulk_peer *peer;
};

static void measure(struct linked *linked, int i, bool begins, struct measured *measured) {
  assert_int_equal(zps_bulk_create(linked->ends[i].net, &(struct zps_bulk_config){0}, &measured->bulk), ZPS_OK);
  assert_int_equal(zps_bulk_peer_add(measured->bulk, linked->ends[i].peer, &measured->peer), ZPS_OK);
  zps_link_destroy(linked->links[i]);
  struct zps_link_ends ends = linked_ends(i);
  ends.bulk = measured->peer;
  assert_int_equal(zps_link_create(linked->ends[i].net, linked->ends[i].peer, &ends, &linked->links[i]), ZPS_OK);
  zps_link_measure(linked->links[i], begins);
}

/* Each end asks three times, the second end when it is asked; measuring does not change the frames that follow. */
static void test_ends_measure_their_path(void **state) {
  (void)state;
  struct linked linked;
  struct measured measured[2];
  linked_open(&linked, "loop", NULL);
  measure(&linked, 1, false, &measured[1]);
  assert_int_equal(turn(&linked), 0);
  measure(&linked, 0, true, &measured[0]);
  zps_link_progress(linked.links[0]);
  while (turn(&linked) > 0) continue;
  for (int i = 0; i < 2; i++) {
    assert_int_equal(linked.n_credit[i], 6);
    const double latency_s = zps_bulk_measure(measured[i].bulk).latency_s;
    assert_true(latency_s > 0 && latency_s < 1);
  }
  for (unsigned i = 0; i < 200; i++) {
    assert_int_equal(send_now(&linked, 0, i), (i == 0 ? ZPS_WIRE_LONG_BYTES : ZPS_WIRE_SHORT_BYTES + 1) +
                                                  (i < 128 ? 2 : 3) + ZPS_WIRE_MAC_BYTES);
    while (turn(&linked) > 0) continue;
  }
  assert_int_equal(linked.n_done[1], 200);
  for (int i = 0; i < 2; i++) zps_bulk_destroy(measured[i].bulk);
  linked_close(&linked);
}

/* An end does not ask among other frames, since their way would be part of the answer's; a question that was asked is
 * answered all the same. */
static void test_no_questions_after_the_first_frame(void **state) {
  (void)state;
  struct linked linked;
  struct measured measured[2];
  linked_open(&linked, "loop", NULL);
  for (int i = 0; i < 2; i++) measure(&linked, i, i == 0, &measured[i]);
  zps_link_progress(linked.links[0]);
  for (int i = 0; i < 2; i++)
    for (unsigned k = 0; k < 100; k++) assert_int_equal(send_done(&linked, i, k), ZPS_OK);
  while (turn(&linked) > 0) continue;
  for (int i = 0; i < 2; i++) assert_int_equal(linked.n_done[i], 100);
  assert_true(zps_bulk_measure(measured[0].bulk).latency_s > 0);
  assert_true(zps_bulk_measure(measured[1].bulk).latency_s == 0);
  for (int i = 0; i < 2; i++) zps_bulk_destroy(measured[i].bulk);
  linked_close(&linked);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_ends_measure_their_path),
      cmocka_unit_test(test_no_questions_after_the_first_frame),
  };
  return cmocka_run_group_tests_name("link measure", tests, NULL, NULL);
}
