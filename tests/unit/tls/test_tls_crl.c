/* Revocation lists: refused certificates, connections that end at a reload, damaged and missing lists. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/tls/tls_rig.h"

static zps_err_t create(const struct rig *rig, const char *name, const struct rig *lists, struct zps_tls **tls_p,
                        struct zps_error *error) {
  char ca[160], cert[160], key[160], crl[160];
  const struct zps_tls_files files = {.ca = rig_path(rig, "ca", ".pem", ca),
                                      .cert = rig_path(rig, name, ".pem", cert),
                                      .key = rig_path(rig, name, ".key", key),
                                      .crl = rig_path(lists, "crl", ".pem", crl)};
  return zps_tls_create(&files, tls_p, error);
}

static struct zps_tls *with_lists(struct rig *rig, const char *name, unsigned roles, const struct rig *lists) {
  struct zps_tls *tls = NULL;
  rig_cert(rig, name, roles, -RIG_DAY_S, 10 * RIG_DAY_S);
  assert_int_equal(create(rig, name, lists, &tls, NULL), ZPS_OK);
  return tls;
}

static void says(const struct rig_end *end, const char *text) {
  assert_int_equal(end->err, ZPS_ERR_REFUSED);
  if (!strstr(end->error.text, text)) fail_msg("'%s' does not say '%s'", end->error.text, text);
}

static void speak(struct zps_tls *listener, struct zps_tls *client) {
  struct rig_pair pair;
  rig_pair_open(&pair, listener, client);
  rig_pair_run(&pair, 100000);
  assert_int_equal(pair.client.err, ZPS_OK);
  assert_int_equal(pair.listener.err, ZPS_OK);
  rig_pair_close(&pair);
}

static void refused(struct zps_tls *listener, struct zps_tls *client, const char *listener_says,
                    const char *client_says) {
  struct rig_pair pair;
  rig_pair_open(&pair, listener, client);
  rig_pair_run(&pair, 100000);
  says(&pair.listener, listener_says);
  says(&pair.client, client_says);
  rig_pair_close(&pair);
}

/* Of ranks and of administrators; others with the same name, or none at all in the list, go on. */
static void revoked_ones_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *name, *says;
    unsigned role;
  } whose[] = {{"w", "its certificate, of zenps://worker/w, has been revoked (tls.crl)", ZPS_TLS_WORKER},
               {"a", "its certificate, of zenps://admin/a, has been revoked (tls.crl)", ZPS_TLS_ADMIN},
               {"s", "its certificate, of zenps://server/s, has been revoked (tls.crl)", ZPS_TLS_SERVER}};
  struct rig rig;
  rig_open(&rig);
  rig_revoke(&rig, NULL, true);
  struct zps_tls *listener = with_lists(&rig, "c", ZPS_TLS_COORDINATOR, &rig);
  struct zps_tls *other = rig_identity(&rig, "other", ZPS_TLS_WORKER);
  for (unsigned i = 0; i < sizeof whose / sizeof whose[0]; i++) {
    struct zps_tls *client = rig_identity(&rig, whose[i].name, whose[i].role);
    speak(listener, client);
    rig_revoke(&rig, whose[i].name, false);
    rig_revoke(&rig, whose[i].name, false); /* It is in the list once. */
    assert_int_equal(zps_tls_reload(listener, NULL), ZPS_OK);
    refused(listener, client, whose[i].says, "this end's certificate has been revoked");
    speak(listener, other);
    zps_tls_unref(client);
    client = rig_identity(&rig, whose[i].name, whose[i].role); /* A new one of the same name. */
    speak(listener, client);
    zps_tls_unref(client);
  }
  zps_tls_unref(other);
  zps_tls_unref(listener);
  rig_close(&rig);
}

/* A client looks at the coordinator's certificate in the same way. */
static void revoked_coordinators_are_refused(void **state) {
  (void)state;
  struct rig rig;
  struct rig_pair pair;
  rig_open(&rig);
  struct zps_tls *listener = rig_identity(&rig, "c", ZPS_TLS_COORDINATOR);
  rig_revoke(&rig, "c", true);
  struct zps_tls *client = with_lists(&rig, "w", ZPS_TLS_WORKER, &rig);
  rig_pair_open(&pair, listener, client);
  rig_pair_run(&pair, 100000);
  says(&pair.client, "its certificate, of zenps://coordinator/c, has been revoked (tls.crl)");
  rig_pair_close(&pair);
  zps_tls_unref(client);
  zps_tls_unref(listener);
  rig_close(&rig);
}

static void running_ones_end(void **state) {
  (void)state;
  struct rig rig;
  struct rig_pair pair, others;
  rig_open(&rig);
  rig_revoke(&rig, NULL, true);
  struct zps_tls *listener = with_lists(&rig, "c", ZPS_TLS_COORDINATOR, &rig);
  struct zps_tls *client = rig_identity(&rig, "w", ZPS_TLS_WORKER), *other = rig_identity(&rig, "o", ZPS_TLS_WORKER);
  rig_pair_open(&pair, listener, client);
  rig_pair_open(&others, listener, other);
  rig_pair_run(&pair, 100000);
  rig_pair_run(&others, 100000);
  rig_revoke(&rig, "w", false);
  assert_int_equal(zps_tls_reload(listener, NULL), ZPS_OK);
  assert_int_equal(zps_tls_write(pair.client.session, "still\n", 6, NULL), ZPS_OK);
  assert_int_equal(zps_tls_write(others.client.session, "still\n", 6, NULL), ZPS_OK);
  rig_pair_run(&pair, 100000);
  rig_pair_run(&others, 100000);
  says(&pair.listener, "its certificate, of zenps://worker/w, has been revoked (tls.crl)");
  assert_string_equal(pair.listener.said, "");
  assert_string_equal(others.listener.said, "still\n");
  rig_pair_close(&others);
  rig_pair_close(&pair);
  zps_tls_unref(other);
  zps_tls_unref(client);
  zps_tls_unref(listener);
  rig_close(&rig);
}

/* A list that cannot be looked at lets nobody in. */
static void lists_that_are_none(void **state) {
  (void)state;
  struct rig rig, other;
  struct zps_tls *tls = NULL;
  struct zps_error error;
  char path[160];
  rig_open(&rig);
  rig_open(&other);
  rig_revoke(&other, NULL, true);
  struct zps_tls *client = rig_identity(&rig, "w", ZPS_TLS_WORKER);
  struct zps_tls *listener = with_lists(&rig, "c", ZPS_TLS_COORDINATOR, &other);
  refused(listener, client, "was made by an authority whose revocation list is not among those of tls.crl",
          "it cannot look up this end's certificate: its log says why");
  zps_tls_unref(listener);

  rig_revoke(&rig, NULL, true);
  listener = with_lists(&rig, "c", ZPS_TLS_COORDINATOR, &rig);
  speak(listener, client);
  char *const ours = rig_text(&rig, "crl"), *const cert = rig_text(&other, "ca");
  struct zps_certs_list list;
  assert_int_equal(zps_authority_revoke(rig.authority, ours, (const char *const *)&cert, 1, &list, &error),
                   ZPS_ERR_INVALID);
  assert_string_equal(error.text, "was made by another authority");
  assert_int_equal(zps_authority_revoke(other.authority, ours, NULL, 0, &list, &error), ZPS_ERR_INVALID);
  assert_string_equal(error.text, "is no revocation list (PEM) of this authority");
  free(cert);
  free(ours);

  assert_int_equal(create(&rig, "c", &rig, &tls, &error), ZPS_OK);
  zps_tls_unref(tls);
  rig_write(rig_path(&rig, "crl", ".pem", path), "rubbish\n", 0644);
  assert_int_equal(create(&rig, "c", &rig, &tls, &error), ZPS_ERR_INVALID);
  assert_non_null(strstr(error.text, "crl.pem: no list (PEM)"));
  assert_int_equal(zps_tls_reload(listener, &error), ZPS_ERR_INVALID); /* It goes on with the list that it has. */
  speak(listener, client);
  zps_tls_unref(client);
  zps_tls_unref(listener);
  rig_close(&other);
  rig_close(&rig);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(revoked_ones_are_refused),
      cmocka_unit_test(revoked_coordinators_are_refused),
      cmocka_unit_test(running_ones_end),
      cmocka_unit_test(lists_that_are_none),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
