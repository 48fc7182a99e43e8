/* Which server a certificate's owner may be: the name in it, those that begin so, or any. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/tls/tls_rig.h"

static struct rig rig;

static int open_rig(void **state) {
  (void)state;
  rig_open(&rig);
  return 0;
}

static int close_rig(void **state) {
  (void)state;
  rig_close(&rig);
  return 0;
}

/* What an identity says of itself, and a coordinator of it. */
static void serves(struct zps_tls *tls, struct zps_tls *coordinator, const char *name, enum zps_tls_serves expected,
                   const char *names) {
  char found[ZPS_TLS_SERVERS_MAX];
  struct rig_pair pair;
  assert_int_equal(zps_tls_serves(tls, name, found), expected);
  assert_string_equal(found, names);
  rig_pair_open(&pair, coordinator, tls);
  assert_int_equal(zps_tls_peer_serves(pair.listener.session, name, found), ZPS_TLS_SERVES_NOT); /* nobody yet */
  assert_string_equal(found, "");
  rig_pair_run(&pair, 100000);
  assert_int_equal(zps_tls_peer_serves(pair.listener.session, name, found), expected);
  assert_string_equal(found, names);
  rig_pair_close(&pair);
}

static void names_of_servers(void **state) {
  (void)state;
  static const struct {
    const char *of, *name;
    enum zps_tls_serves expected;
  } cases[] = {
      {"node1", "node1", ZPS_TLS_SERVES_NAMED}, {"node1", "node", ZPS_TLS_SERVES_NOT},
      {"node1", "node10", ZPS_TLS_SERVES_NOT},  {"node1", "Node1", ZPS_TLS_SERVES_NOT},
      {"node1", "", ZPS_TLS_SERVES_NOT},        {"node1", "node*", ZPS_TLS_SERVES_NOT},
      {"pod-*", "pod-0", ZPS_TLS_SERVES_SOME},  {"pod-*", "pod-", ZPS_TLS_SERVES_SOME},
      {"pod-*", "pod", ZPS_TLS_SERVES_NOT},     {"pod-*", "a-pod-0", ZPS_TLS_SERVES_NOT},
      {"*", "anything", ZPS_TLS_SERVES_ANY},
  };
  struct zps_tls *const coordinator = rig_identity(&rig, "c", ZPS_TLS_COORDINATOR);
  for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct zps_tls *const tls = rig_identity(&rig, cases[i].of, ZPS_TLS_SERVER);
    serves(tls, coordinator, cases[i].name, cases[i].expected, cases[i].of);
    zps_tls_unref(tls);
  }
  zps_tls_unref(coordinator);
}

/* Who can be a coordinator has no need to be another's server; the names of other roles are not those of servers. */
static void other_roles(void **state) {
  (void)state;
  struct zps_tls *const coordinator = rig_identity(&rig, "c", ZPS_TLS_COORDINATOR);
  struct zps_tls *const both = rig_identity(&rig, "both", ZPS_TLS_COORDINATOR | ZPS_TLS_SERVER);
  struct zps_tls *const worker = rig_identity(&rig, "w", ZPS_TLS_WORKER | ZPS_TLS_ADMIN);
  struct zps_tls *const mixed = rig_identity(&rig, "m", ZPS_TLS_WORKER | ZPS_TLS_SERVER);
  char names[ZPS_TLS_SERVERS_MAX];
  serves(both, coordinator, "node7", ZPS_TLS_SERVES_ALL, "both");
  serves(worker, coordinator, "w", ZPS_TLS_SERVES_NOT, "");
  serves(mixed, coordinator, "m", ZPS_TLS_SERVES_NAMED, "m");
  serves(mixed, coordinator, "n", ZPS_TLS_SERVES_NOT, "m");
  assert_int_equal(zps_tls_serves(coordinator, "c", names), ZPS_TLS_SERVES_NOT);
  zps_tls_unref(coordinator);
  zps_tls_unref(both);
  zps_tls_unref(worker);
  zps_tls_unref(mixed);
}

static void names_that_are_made(void **state) {
  (void)state;
  static const char *const bad[] = {"", "*a", "a*b", "a**", "**", "a/*"};
  const struct zps_certs_span span = {rig_now(), rig_now() + RIG_DAY_S};
  struct zps_certs_pair pair;
  struct zps_error error;
  for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    assert_int_equal(zps_certs_make(rig.authority, ZPS_TLS_SERVER, bad[i], &span, &pair, &error), ZPS_ERR_INVALID);
    assert_non_null(strstr(error.text, "and may end in '*', for all servers whose names begin so"));
  }
  static const unsigned others[] = {ZPS_TLS_WORKER, ZPS_TLS_ADMIN, ZPS_TLS_COORDINATOR,
                                    ZPS_TLS_COORDINATOR | ZPS_TLS_SERVER, ZPS_TLS_WORKER | ZPS_TLS_SERVER};
  for (unsigned i = 0; i < sizeof others / sizeof others[0]; i++)
    assert_int_equal(zps_certs_make(rig.authority, others[i], "a*", &span, &pair, &error), ZPS_ERR_INVALID);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(names_of_servers),
      cmocka_unit_test(other_roles),
      cmocka_unit_test(names_that_are_made),
  };
  return cmocka_run_group_tests(tests, open_rig, close_rig);
}
