/* The fair queue, by counting what each flow is served, in cost: never by the clock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/fair.h"
#include "common/base/rng.h"
#include "tests/support/oom.h"

enum { FLOWS = 3, ITEMS = 512 };

static struct {
  struct zps_fair fair;
  struct zps_fair_flow *flows[FLOWS];
  struct zps_fair_item items[ITEMS];
  unsigned n;
} rig;

static int setup(void **state) {
  (void)state;
  memset(&rig, 0, sizeof rig);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  while (zps_fair_take(&rig.fair)) continue;
  for (unsigned i = 0; i < FLOWS; i++) zps_fair_flow_unref(rig.flows[i]);
  return 0;
}

static void weigh(uint32_t a, uint32_t b, uint32_t c) {
  const uint32_t weights[FLOWS] = {a, b, c};
  for (unsigned i = 0; i < FLOWS; i++)
    if (weights[i]) assert_non_null(rig.flows[i] = zps_fair_flow_create(weights[i]));
}

static struct zps_fair_item *add(unsigned flow, uint64_t cost) {
  assert_true(rig.n < ITEMS);
  struct zps_fair_item *const item = &rig.items[rig.n++];
  zps_fair_add(&rig.fair, flow < FLOWS ? rig.flows[flow] : NULL, item, cost);
  return item;
}

/* Which flow is served next: its number. */
static unsigned next(void) {
  const struct zps_fair_item *const item = zps_fair_take(&rig.fair);
  assert_non_null(item);
  unsigned i = 0;
  while (i < FLOWS && rig.flows[i] != item->flow) i++;
  return i;
}

static uint64_t all_of(unsigned flow) {
  return rig.flows[flow]->served.all;
}

static void flows_that_always_have_something_are_served_by_weight(void **state) {
  (void)state;
  weigh(1, 2, 5);
  for (unsigned flow = 0; flow < FLOWS; flow++)
    for (unsigned i = 0; i < 160; i++) add(flow, 10);
  for (unsigned i = 0; i < 200; i++) next();
  assert_int_equal(all_of(0), 250);
  assert_int_equal(all_of(1), 500);
  assert_int_equal(all_of(2), 1250);
  for (unsigned flow = 0; flow < FLOWS; flow++) assert_int_equal(rig.flows[flow]->served.contested, all_of(flow));
}

/* Whatever the sizes: at no time is one ahead of another by more than an item of each. */
static void sizes_do_not_matter(void **state) {
  (void)state;
  struct zps_rng rng = {7};
  weigh(1, 3, 0);
  for (unsigned i = 0; i < ITEMS; i++) add(i % 2, 1 + zps_rng_below(&rng, 1000));
  while (rig.flows[0]->n_queued && rig.flows[1]->n_queued) {
    next();
    const double a = (double)all_of(0), b = (double)all_of(1) / 3;
    assert_true(a - b <= 2000 && b - a <= 2000);
  }
}

/* What a greedy flow has queued holds up one that comes with little by one item of its own, for each. */
static void one_that_asks_for_little_hardly_waits(void **state) {
  (void)state;
  weigh(1, 1, 0);
  for (unsigned i = 0; i < 100; i++) add(0, 1000);
  for (unsigned i = 0; i < 5; i++) next();
  for (unsigned step = 0; step < 20; step++) {
    add(1, 10);
    unsigned before = 0;
    while (next() == 0) before++;
    assert_true(before <= 1);
    next(); /* it is away for a while */
  }
  assert_true(rig.flows[1]->served.waited <= 20 * 1000);
  assert_int_equal(all_of(1), 200);
}

static void idle_flows_save_nothing_up(void **state) {
  (void)state;
  weigh(1, 1, 0);
  for (unsigned i = 0; i < 100; i++) {
    add(0, 10);
    next();
  }
  for (unsigned i = 0; i < 50; i++) {
    add(0, 10);
    add(1, 10);
  }
  for (unsigned i = 0; i < 40; i++) next();
  assert_int_equal(all_of(1), 200);
  assert_int_equal(all_of(0), 1000 + 200);
  assert_int_equal(rig.flows[0]->served.contested, 200);
}

/* One flow, or none: as they came. */
static void alone_it_is_a_line(void **state) {
  (void)state;
  weigh(7, 0, 0);
  for (unsigned flow = 0; flow <= FLOWS; flow += FLOWS) {
    const unsigned begin = rig.n;
    for (unsigned i = 0; i < 50; i++) add(flow, i % 3 * 100);
    assert_int_equal(rig.fair.n, 50);
    for (unsigned i = 0; i < 50; i++) assert_ptr_equal(zps_fair_take(&rig.fair), &rig.items[begin + i]);
    assert_null(zps_fair_take(&rig.fair));
  }
  assert_true(all_of(0) > 4900 && rig.flows[0]->served.contested == 0 && rig.flows[0]->served.waited == 0);
}

static void what_belongs_to_no_flow_comes_last(void **state) {
  (void)state;
  weigh(1, 1, 1);
  add(0, 100);
  add(0, 100);
  add(FLOWS, 0);
  add(1, 100);
  assert_int_equal(next(), 0);
  assert_int_equal(next(), 1);
  assert_int_equal(next(), 0);
  assert_int_equal(next(), FLOWS);
}

static bool is_large(void *ctx, const struct zps_fair_item *item) {
  (void)ctx;
  return item->cost == 100;
}

static void some_are_taken_out(void **state) {
  (void)state;
  weigh(1, 2, 0);
  for (unsigned i = 0; i < 10; i++) add(i % 2, i % 5 == 4 ? 100 : 1);
  add(FLOWS, 100);
  assert_int_equal(zps_fair_remove(&rig.fair, is_large, NULL), 3);
  assert_int_equal(rig.fair.n, 8);
  assert_int_equal(rig.fair.n_owned, 8);
  for (unsigned i = 0; i < 8; i++) assert_true(next() < FLOWS);
  assert_null(zps_fair_take(&rig.fair));
  assert_int_equal(zps_fair_remove(&rig.fair, is_large, NULL), 0);
  add(1, 1); /* at the flow's end after all that */
  assert_int_equal(next(), 1);
}

/* Its last item keeps it. */
static void a_flow_that_is_given_back(void **state) {
  (void)state;
  weigh(1, 1, 0);
  add(0, 5);
  add(1, 5);
  zps_fair_flow_unref(zps_fair_flow_ref(rig.flows[0]));
  zps_fair_flow_unref(rig.flows[0]);
  zps_fair_flow_unref(NULL);
  assert_null(zps_fair_flow_ref(NULL));
  const struct zps_fair_flow *const was = rig.flows[0];
  rig.flows[0] = NULL;
  const struct zps_fair_item *const item = zps_fair_take(&rig.fair);
  assert_true(item == &rig.items[0] && item->flow == was);
  assert_int_equal(next(), 1);
  atomic_store(&oom_granted, 0);
  struct zps_fair_flow *const none = zps_fair_flow_create(1);
  atomic_store(&oom_granted, OOM_UNLIMITED);
  assert_null(none);
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(flows_that_always_have_something_are_served_by_weight),
      CASE(sizes_do_not_matter),
      CASE(one_that_asks_for_little_hardly_waits),
      CASE(idle_flows_save_nothing_up),
      CASE(alone_it_is_a_line),
      CASE(what_belongs_to_no_flow_comes_last),
      CASE(some_are_taken_out),
      CASE(a_flow_that_is_given_back),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
