/* The state of a rail to a peer, by a clock of the test's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "common/net/rail_state.h"

#define S ZPS_NS_PER_S

/* The rail is tried again after a second, and a read lands. */
static void lost_once(struct zps_rail_state *way, unsigned n_landed, uint64_t now_ns) {
  zps_rail_state_lost(way, n_landed, now_ns);
  assert_true(way->is_out);
  assert_int_equal(zps_rail_state_look_ns(way), now_ns + S);
  assert_false(zps_rail_state_look(way, n_landed + 1, now_ns + S - 1).tries);
  const struct zps_rail_state_due news = zps_rail_state_look(way, n_landed + 1, now_ns + S);
  assert_true(news.tries && !news.tells && !way->is_out);
  zps_rail_state_landed(way);
  assert_int_equal(zps_rail_state_look_ns(way), ZPS_NEVER);
}

static void one_loss_is_not_told(void **state) {
  (void)state;
  struct zps_rail_state way;
  zps_rail_state_init(&way);
  assert_int_equal(zps_rail_state_look_ns(&way), ZPS_NEVER);
  for (unsigned i = 0; i < 10; i++) lost_once(&way, i, (1000 + 601 * i) * S);
}

/* It is told of with each loss from the third on, though reads land in between. */
static void a_rail_that_comes_and_goes_is_told(void **state) {
  (void)state;
  const uint64_t pauses_s[] = {60, 120, 240, 480, 960, 960};
  struct zps_rail_state way;
  uint64_t now_ns = 5000 * S;
  zps_rail_state_init(&way);
  lost_once(&way, 0, now_ns);
  lost_once(&way, 10, now_ns += 500 * S);
  for (unsigned i = 0; i < 6; i++) {
    zps_rail_state_lost(&way, 20 + i, now_ns += 500 * S);
    assert_int_equal(zps_rail_state_look_ns(&way), now_ns + 5 * S);
    assert_true(zps_rail_state_look(&way, 21 + i, now_ns + 5 * S).tells);
    assert_int_equal(zps_rail_state_look_ns(&way), now_ns += pauses_s[i] * S);
    assert_true(zps_rail_state_look(&way, 21 + i, now_ns).tries);
    zps_rail_state_landed(&way);
    assert_true(way.is_told && !way.is_out);
  }
  /* Until it has been in use for 10 minutes. */
  assert_int_equal(zps_rail_state_look_ns(&way), now_ns += 600 * S);
  (void)zps_rail_state_look(&way, 40, now_ns - 1);
  assert_true(way.is_told);
  (void)zps_rail_state_look(&way, 40, now_ns);
  assert_false(way.is_told);
  lost_once(&way, 41, now_ns);
}

/* A link that is mended is no news for longer than until the next read, however long it was out. */
static void a_rail_that_was_out_is_steady_at_once(void **state) {
  (void)state;
  struct zps_rail_state way;
  uint64_t now_ns = 5000 * S;
  zps_rail_state_init(&way);
  for (unsigned i = 0; i < 5; i++) {
    zps_rail_state_lost(&way, i, now_ns);
    assert_true(zps_rail_state_look(&way, i + 1, now_ns += 2000 * S).tries);
  }
  assert_true(way.is_told);
  zps_rail_state_landed(&way);
  assert_false(way.is_told);
  assert_int_equal(zps_rail_state_look_ns(&way), ZPS_NEVER);
}

/* A read had to fail for the second loss: that read was the next attempt. */
static void a_second_loss_long_afterwards_is_told(void **state) {
  (void)state;
  struct zps_rail_state way;
  zps_rail_state_init(&way);
  zps_rail_state_lost(&way, 20, 2000 * S);
  assert_true(zps_rail_state_look(&way, 20, 2001 * S).tries);
  zps_rail_state_lost(&way, 21, 3000 * S);
  assert_int_equal(zps_rail_state_look_ns(&way), 3005 * S);
  assert_true(zps_rail_state_look(&way, 22, 3005 * S).tells);
}

static void losses_in_a_row_are_told_and_pause(void **state) {
  (void)state;
  const uint64_t pauses_s[] = {60, 120, 240, 480, 960, 960};
  struct zps_rail_state way;
  uint64_t now_ns = 100 * S;
  zps_rail_state_init(&way);
  zps_rail_state_lost(&way, 0, now_ns);
  assert_true(zps_rail_state_look(&way, 0, now_ns += S).tries);
  for (unsigned i = 0; i < 6; i++) {
    zps_rail_state_lost(&way, 7, now_ns += 2 * S);
    assert_int_equal(zps_rail_state_look_ns(&way), now_ns + 5 * S);
    /* Nothing has landed: the peer may be dead. */
    assert_false(zps_rail_state_look(&way, 7, now_ns + 5 * S).tells);
    assert_int_equal(zps_rail_state_look_ns(&way), now_ns + 10 * S);
    assert_true(zps_rail_state_look(&way, 8, now_ns + 10 * S).tells);
    assert_true(way.is_told);
    assert_int_equal(zps_rail_state_look_ns(&way), now_ns += pauses_s[i] * S);
    assert_true(zps_rail_state_look(&way, 8, now_ns).tries);
  }
  zps_rail_state_landed(&way);
  assert_false(way.is_told);
  zps_rail_state_lost(&way, 9, now_ns);
  assert_int_equal(zps_rail_state_look_ns(&way), now_ns + S);
}

/* With or without reads between them. Two real losses are not told either, so no cut has counted. */
static void own_cuts_are_no_losses(void **state) {
  (void)state;
  struct zps_rail_state way;
  zps_rail_state_init(&way);
  for (unsigned i = 0; i < 10; i++) {
    const uint64_t now_ns = (100 + 3 * i) * S;
    zps_rail_state_cut(&way, now_ns);
    zps_rail_state_lost(&way, i, now_ns + S);
    assert_int_equal(zps_rail_state_look_ns(&way), now_ns + 2 * S);
    assert_true(zps_rail_state_look(&way, i + 1, now_ns + 2 * S).tries);
    if (i % 2 == 0) zps_rail_state_landed(&way);
  }
  lost_once(&way, 20, 200 * S);
  lost_once(&way, 21, 210 * S);
}

/* Three losses with reads in between; the third is told. Returns the time of the next attempt. */
static uint64_t make_unsteady(struct zps_rail_state *way, uint64_t now_ns) {
  zps_rail_state_init(way);
  lost_once(way, 0, now_ns);
  lost_once(way, 10, now_ns + 100 * S);
  zps_rail_state_lost(way, 20, now_ns + 200 * S);
  assert_true(zps_rail_state_look(way, 21, now_ns + 205 * S).tells);
  return now_ns + 260 * S;
}

/* The loss may be handled before the look that finds the rail steady. */
static void a_loss_after_long_use_is_a_first_one(void **state) {
  (void)state;
  struct zps_rail_state way;
  const uint64_t back_ns = make_unsteady(&way, 5000 * S);
  assert_true(zps_rail_state_look(&way, 21, back_ns).tries);
  zps_rail_state_landed(&way);
  lost_once(&way, 22, back_ns + 600 * S);
  assert_false(way.is_told);
}

/* A peer whose first rail reconnects gets new connections on all. They are used at once. */
static void new_connections_do_not_make_a_rail_steady(void **state) {
  (void)state;
  struct zps_rail_state way;
  make_unsteady(&way, 5000 * S);
  uint64_t now_ns = 5230 * S;
  zps_rail_state_renew(&way, now_ns);
  assert_true(way.is_told && !way.is_out);
  assert_int_equal(zps_rail_state_look_ns(&way), now_ns + 600 * S);
  assert_false(zps_rail_state_look(&way, 30, now_ns + 599 * S).tries);
  zps_rail_state_lost(&way, 30, now_ns += 599 * S);
  assert_true(zps_rail_state_look(&way, 31, now_ns + 5 * S).tells);
  assert_int_equal(zps_rail_state_look_ns(&way), now_ns + 120 * S);
  zps_rail_state_renew(&way, now_ns += 10 * S);
  (void)zps_rail_state_look(&way, 32, now_ns + 600 * S);
  assert_false(way.is_told);
}

/* A cut of all rails shows on the first one, whose owner renews the peer; the others' errors come later. */
static void an_own_cut_is_known_after_new_connections(void **state) {
  (void)state;
  struct zps_rail_state way;
  zps_rail_state_init(&way);
  for (unsigned i = 0; i < 4; i++) {
    const uint64_t now_ns = (1000 + 10 * i) * S;
    zps_rail_state_cut(&way, now_ns);
    zps_rail_state_renew(&way, now_ns);
    lost_once(&way, i, now_ns);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_loss_is_not_told),
      cmocka_unit_test(a_rail_that_comes_and_goes_is_told),
      cmocka_unit_test(a_rail_that_was_out_is_steady_at_once),
      cmocka_unit_test(a_second_loss_long_afterwards_is_told),
      cmocka_unit_test(losses_in_a_row_are_told_and_pause),
      cmocka_unit_test(own_cuts_are_no_losses),
      cmocka_unit_test(a_loss_after_long_use_is_a_first_one),
      cmocka_unit_test(new_connections_do_not_make_a_rail_steady),
      cmocka_unit_test(an_own_cut_is_known_after_new_connections),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
