/* Who leads: one at a time, in any order of what fails. Time passes as the test says, on the same clock for all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "server/state/lead.h"
#include "tests/unit/server/state/fake_etcd.h"

static struct fake_etcd etcd;
static struct zps_lead a, b;
static const uint64_t lease_s = 6;

static int setup(void **state) {
  (void)state;
  const struct zps_lead_config config_a = {.prefix = "/z", .address = "a:1", .lease_s = lease_s},
                               config_b = {.prefix = "/z", .address = "b:2", .lease_s = lease_s};
  fake_etcd_init(&etcd);
  etcd.now_s = 100;
  zps_lead_init(&a, &config_a, &etcd.transport);
  zps_lead_init(&b, &config_b, &etcd.transport);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  fake_etcd_fini(&etcd);
  return 0;
}

static uint64_t now_ns(void) {
  return etcd.now_s * ZPS_NS_PER_S;
}

/* One step; in how many ms the next one is due. */
static uint64_t step(struct zps_lead *lead) {
  const uint64_t next_ns = zps_lead_step(lead, now_ns());
  return next_ns == ZPS_NEVER ? ZPS_NEVER : (next_ns - now_ns()) / ZPS_NS_PER_MS;
}

static void leader_is(const char *address) {
  const struct fake_kv *const kv = fake_etcd_find(&etcd, "/z/leader");
  assert_true(kv && kv->len == strlen(address) && memcmp(kv->value, address, kv->len) == 0);
}

static void test_one_leads(void **state) {
  (void)state;
  assert_int_equal(step(&a), 2000);
  assert_int_equal(a.view.state, ZPS_LEAD_LEADS);
  leader_is("a:1");
  assert_int_equal(a.view.revision, fake_etcd_find(&etcd, "/z/leader")->created);
  assert_true(a.view.until_ns == now_ns() + lease_s * ZPS_NS_PER_S);
  assert_int_equal(step(&b), 250);
  assert_int_equal(b.view.state, ZPS_LEAD_FOLLOWS);
  assert_string_equal(b.view.leader, "a:1");
  for (int i = 0; i < 10; i++) {
    fake_etcd_pass(&etcd, 2);
    assert_int_equal(step(&a), 2000);
    assert_true(a.view.until_ns == now_ns() + lease_s * ZPS_NS_PER_S);
    step(&b);
    assert_string_equal(b.view.leader, "a:1");
  }
  /* It is killed: nobody prolongs its lease. */
  fake_etcd_pass(&etcd, lease_s - 1);
  step(&b);
  assert_int_equal(b.view.state, ZPS_LEAD_FOLLOWS);
  fake_etcd_pass(&etcd, 1);
  step(&b);
  assert_int_equal(b.view.state, ZPS_LEAD_LEADS);
  leader_is("b:2");
  /* It was only stopped, and comes back: its lease is over by its own clock, and by etcd's. */
  assert_true(step(&a) == ZPS_NEVER);
  assert_int_equal(a.view.state, ZPS_LEAD_LOST);
  assert_int_equal(a.view.away.code, ZPS_ERR_STALE);
  assert_non_null(strstr(a.view.away.text, "leads no longer: its lease in etcd was not prolonged in time"));
  assert_true(step(&a) == ZPS_NEVER);
  leader_is("b:2");
}

/* One whose clock has stood still (a host that slept) learns it from etcd. */
static void test_lease_that_etcd_has_ended(void **state) {
  (void)state;
  step(&a);
  const uint64_t then_ns = now_ns();
  fake_etcd_pass(&etcd, lease_s);
  assert_true(zps_lead_step(&a, then_ns) == ZPS_NEVER);
  assert_int_equal(a.view.state, ZPS_LEAD_LOST);
  assert_non_null(strstr(a.view.away.text, "etcd has ended its lease"));
}

static void test_resigns(void **state) {
  (void)state;
  step(&a);
  step(&b);
  zps_lead_resign(&a);
  assert_null(fake_etcd_find(&etcd, "/z/leader"));
  step(&b);
  assert_int_equal(b.view.state, ZPS_LEAD_LEADS);
  zps_lead_resign(&a); /* nothing of the other's */
  leader_is("b:2");
}

/* While etcd does not answer, it leads on until its lease is over. */
static void test_etcd_away(void **state) {
  (void)state;
  etcd.away = true;
  assert_int_equal(step(&a), 200);
  assert_int_equal(a.view.away.code, ZPS_ERR_CONNECT);
  assert_int_equal(a.view.state, ZPS_LEAD_FOLLOWS);
  etcd.away = false;
  step(&a);
  assert_int_equal(a.view.state, ZPS_LEAD_LEADS);
  assert_int_equal(a.view.away.code, ZPS_OK);
  etcd.away = true;
  fake_etcd_pass(&etcd, 2);
  assert_int_equal(step(&a), 200);
  assert_true(a.view.state == ZPS_LEAD_LEADS && a.view.away.code == ZPS_ERR_CONNECT);
  etcd.away = false;
  fake_etcd_pass(&etcd, 3);
  assert_int_equal(step(&a), 2000);
  assert_true(a.view.away.code == ZPS_OK && a.view.until_ns == now_ns() + lease_s * ZPS_NS_PER_S);
  etcd.away = true;
  fake_etcd_pass(&etcd, lease_s - 1);
  assert_int_equal(step(&a), 200);
  fake_etcd_pass(&etcd, 1);
  assert_true(step(&a) == ZPS_NEVER);
  assert_int_equal(a.view.state, ZPS_LEAD_LOST);
  assert_non_null(strstr(a.view.away.text, "etcd at fake: refused"));
}

/* Every call of a campaign in turn is carried out, and its answer lost: nobody leads twice, and somebody does. */
static void test_lost_answers(void **state) {
  (void)state;
  for (unsigned at = 1; at <= 3; at++) {
    setup(NULL);
    etcd.lost_at = at;
    assert_int_equal(step(&a), 200);
    assert_int_equal(a.view.state, ZPS_LEAD_FOLLOWS);
    step(&b);
    step(&a);
    const bool a_leads = a.view.state == ZPS_LEAD_LEADS, b_leads = b.view.state == ZPS_LEAD_LEADS;
    assert_true(a_leads != b_leads);
    leader_is(a_leads ? "a:1" : "b:2");
    assert_int_equal((a_leads ? &a : &b)->view.revision, fake_etcd_find(&etcd, "/z/leader")->created);
    if (at == 3) assert_true(a_leads); /* it was its own key */
    teardown(NULL);
  }
}

/* A lease that was granted, and is over before it could be used. */
static void test_late_campaign(void **state) {
  (void)state;
  etcd.dies_at = 3;
  step(&a);
  fake_etcd_from_now(&etcd);
  a.lease = a.lease ? a.lease : 77;
  fake_etcd_pass(&etcd, lease_s);
  step(&a);
  assert_int_equal(a.view.state, ZPS_LEAD_LEADS);
  assert_int_equal(fake_etcd_find(&etcd, "/z/leader")->lease, a.lease);
  assert_true(a.view.until_ns == now_ns() + lease_s * ZPS_NS_PER_S);
}

/* Whatever fails, and when: two never lead by the same clock. */
static void test_any_order(void **state) {
  (void)state;
  unsigned seed = 7, n_leads = 0, n_handed = 0;
  const struct zps_lead *last = NULL;
  for (unsigned i = 0; i < 20000; i++) {
    seed = seed * 1664525u + 1013904223u;
    struct zps_lead *const lead = seed >> 31 ? &a : &b;
    const unsigned what = seed >> 20 & 31;
    etcd.away = what == 1;
    etcd.lost_at = what == 2 ? etcd.n_posts + 1 + (seed >> 10 & 3) : 0;
    if (what < 8) fake_etcd_pass(&etcd, what & 3);
    if (what == 9) zps_lead_resign(lead);
    step(lead);
    if (lead->view.state == ZPS_LEAD_LOST) zps_lead_init(lead, &lead->config, &etcd.transport); /* it starts again */
    const bool a_leads = a.view.state == ZPS_LEAD_LEADS && now_ns() < a.view.until_ns;
    const bool b_leads = b.view.state == ZPS_LEAD_LEADS && now_ns() < b.view.until_ns;
    assert_false(a_leads && b_leads);
    if (!a_leads && !b_leads) continue;
    n_leads++;
    leader_is(a_leads ? "a:1" : "b:2");
    n_handed += last && last != (a_leads ? &a : &b);
    last = a_leads ? &a : &b;
  }
  assert_true(n_leads > 10000 && n_handed > 100);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_one_leads, setup, teardown),
      cmocka_unit_test_setup_teardown(test_lease_that_etcd_has_ended, setup, teardown),
      cmocka_unit_test_setup_teardown(test_resigns, setup, teardown),
      cmocka_unit_test_setup_teardown(test_etcd_away, setup, teardown),
      cmocka_unit_test_setup_teardown(test_lost_answers, setup, teardown),
      cmocka_unit_test_setup_teardown(test_late_campaign, setup, teardown),
      cmocka_unit_test_setup_teardown(test_any_order, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
