/* The state of a rail to a peer, by a clock of the test's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "common/net/way.h"

#define S ZPS_NS_PER_S

/* The rail is tried again after a second, and a read lands. */
static void lost_once(struct zps_way *way, unsigned n_landed, uint64_t now_ns) {
  zps_way_lost(way, n_landed, now_ns);
  assert_true(way->is_out);
  assert_int_equal(zps_way_look_ns(way), now_ns + S);
  assert_false(zps_way_look(way, n_landed + 1, now_ns + S - 1).tries);
  const struct zps_way_news news = zps_way_look(way, n_landed + 1, now_ns + S);
  assert_true(news.tries && !news.tells && !way->is_out);
  zps_way_landed(way);
  assert_int_equal(zps_way_look_ns(way), ZPS_NEVER);
}

static void one_loss_is_not_told(void **state) {
  (void)state;
  struct zps_way way;
  zps_way_init(&way);
  assert_int_equal(zps_way_look_ns(&way), ZPS_NEVER);
  for (unsigned i = 0; i < 10; i++) lost_once(&way, i, (1000 + 601 * i) * S);
}

/* It is told of with each loss from the third on, though reads land in between. */
static void a_rail_that_comes_and_goes_is_told(void **state) {
  (void)state;
  const uint64_t pauses_s[] = {60, 120, 240, 480, 960, 960};
  struct zps_way way;
  uint64_t now_ns = 5000 * S;
  zps_way_init(&way);
  lost_once(&way, 0, now_ns);
  lost_once(&way, 10, now_ns += 500 * S);
  for (unsigned i = 0; i < 6; i++) {
    zps_way_lost(&way, 20 + i, now_ns += 500 * S);
    assert_int_equal(zps_way_look_ns(&way), now_ns + 5 * S);
    assert_true(zps_way_look(&way, 21 + i, now_ns + 5 * S).tells);
    assert_int_equal(zps_way_look_ns(&way), now_ns += pauses_s[i] * S);
    assert_true(zps_way_look(&way, 21 + i, now_ns).tries);
    zps_way_landed(&way);
    assert_true(way.is_told && !way.is_out);
  }
  /* Until it has been in use for 10 minutes. */
  assert_int_equal(zps_way_look_ns(&way), now_ns += 600 * S);
  (void)zps_way_look(&way, 40, now_ns - 1);
  assert_true(way.is_told);
  (void)zps_way_look(&way, 40, now_ns);
  assert_false(way.is_told);
  lost_once(&way, 41, now_ns);
}

/* A link that is mended is no news for longer than until the next read, however long it was out. */
static void a_rail_that_was_out_is_steady_at_once(void **state) {
  (void)state;
  struct zps_way way;
  uint64_t now_ns = 5000 * S;
  zps_way_init(&way);
  for (unsigned i = 0; i < 5; i++) {
    zps_way_lost(&way, i, now_ns);
    assert_true(zps_way_look(&way, i + 1, now_ns += 2000 * S).tries);
  }
  assert_true(way.is_told);
  zps_way_landed(&way);
  assert_false(way.is_told);
  assert_int_equal(zps_way_look_ns(&way), ZPS_NEVER);
}

/* A read had to fail for the second loss: that read was the next attempt. */
static void a_second_loss_long_afterwards_is_told(void **state) {
  (void)state;
  struct zps_way way;
  zps_way_init(&way);
  zps_way_lost(&way, 20, 2000 * S);
  assert_true(zps_way_look(&way, 20, 2001 * S).tries);
  zps_way_lost(&way, 21, 3000 * S);
  assert_int_equal(zps_way_look_ns(&way), 3005 * S);
  assert_true(zps_way_look(&way, 22, 3005 * S).tells);
}

static void losses_in_a_row_are_told_and_pause(void **state) {
  (void)state;
  const uint64_t pauses_s[] = {60, 120, 240, 480, 960, 960};
  struct zps_way way;
  uint64_t now_ns = 100 * S;
  zps_way_init(&way);
  zps_way_lost(&way, 0, now_ns);
  assert_true(zps_way_look(&way, 0, now_ns += S).tries);
  for (unsigned i = 0; i < 6; i++) {
    zps_way_lost(&way, 7, now_ns += 2 * S);
    assert_int_equal(zps_way_look_ns(&way), now_ns + 5 * S);
    /* Nothing has landed: the peer may be dead. */
    assert_false(zps_way_look(&way, 7, now_ns + 5 * S).tells);
    assert_int_equal(zps_way_look_ns(&way), now_ns + 10 * S);
    assert_true(zps_way_look(&way, 8, now_ns + 10 * S).tells);
    assert_true(way.is_told);
    assert_int_equal(zps_way_look_ns(&way), now_ns += pauses_s[i] * S);
    assert_true(zps_way_look(&way, 8, now_ns).tries);
  }
  zps_way_landed(&way);
  assert_false(way.is_told);
  zps_way_lost(&way, 9, now_ns);
  assert_int_equal(zps_way_look_ns(&way), now_ns + S);
}

static void own_cuts_are_no_losses(void **state) {
  (void)state;
  struct zps_way way;
  zps_way_init(&way);
  for (unsigned i = 0; i < 5; i++) {
    const uint64_t now_ns = (100 + 3 * i) * S;
    zps_way_cut(&way, now_ns);
    zps_way_lost(&way, i, now_ns + S);
    assert_int_equal(zps_way_look_ns(&way), now_ns + 2 * S);
    assert_true(zps_way_look(&way, i + 1, now_ns + 2 * S).tries);
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
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
