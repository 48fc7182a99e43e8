/* The files of an identity: which are refused, what happens when they change; and the authority that makes them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/logs.h"
#include "tests/unit/tls/tls_rig.h"

static void refused(const struct rig *rig, const char *name, zps_err_t err, const char *text) {
  struct zps_tls *tls = NULL;
  struct zps_error error;
  assert_int_equal(rig_try(rig, name, rig, &tls, &error), err);
  assert_null(tls);
  if (!strstr(error.text, text)) fail_msg("'%s' does not say '%s'", error.text, text);
  char path[160];
  if (!strstr(error.text, rig_path(rig, "", "", path))) fail_msg("'%s' does not name the file", error.text);
}

static void files_that_are_refused(void **state) {
  (void)state;
  struct rig rig;
  char path[160], other[160];
  rig_open(&rig);
  rig_cert(&rig, "w", ZPS_TLS_WORKER, -RIG_DAY_S, RIG_DAY_S);
  refused(&rig, "missing", ZPS_ERR_IO, "certificate ");
  chmod(rig_path(&rig, "w", ".key", path), 0644);
  refused(&rig, "w", ZPS_ERR_INVALID, "its mode is 0644, but it holds a secret");
  chmod(path, 0640);
  zps_tls_unref(rig_tls(&rig, "w", &rig));
  rig_cert(&rig, "w2", ZPS_TLS_WORKER, -RIG_DAY_S, RIG_DAY_S);
  assert_int_equal(rename(rig_path(&rig, "w2", ".key", other), path), 0);
  refused(&rig, "w", ZPS_ERR_INVALID, "is none of certificate");
  refused(&rig, "w2", ZPS_ERR_IO, "private key ");
  rig_write(path, "no key\n", 0600);
  refused(&rig, "w", ZPS_ERR_INVALID, "no PEM of a key without a password");
  rig_cert(&rig, "gone", ZPS_TLS_WORKER, -2 * RIG_DAY_S, -RIG_DAY_S);
  refused(&rig, "gone", ZPS_ERR_INVALID, "(zenps://worker/gone): expired at 2");
  refused(&rig, "gone", ZPS_ERR_INVALID, "UTC: this host's clock says 2");
  rig_cert(&rig, "early", ZPS_TLS_WORKER, RIG_DAY_S, 2 * RIG_DAY_S);
  refused(&rig, "early", ZPS_ERR_INVALID, "(zenps://worker/early): is not valid before 2");
  refused(&rig, "ca", ZPS_ERR_INVALID, "has no role");
  rig_close(&rig);
}

static void all_three_are_needed(void **state) {
  (void)state;
  struct zps_tls *tls = NULL;
  struct zps_error error;
  const struct zps_tls_files none = {0},
                             some[] = {{.cert = "c", .key = "k"}, {.ca = "a", .key = "k"}, {.ca = "a", .cert = "c"}};
  const char *const missing[] = {"authority", "certificate", "private key"};
  assert_false(zps_tls_files_any(&none));
  for (unsigned i = 0; i < 3; i++) {
    assert_true(zps_tls_files_any(&some[i]));
    assert_int_equal(zps_tls_create(&some[i], &tls, &error), ZPS_ERR_INVALID);
    char want[60];
    snprintf(want, sizeof want, "the file of the %s is not named", missing[i]);
    if (!strstr(error.text, want)) fail_msg("'%s' does not say '%s'", error.text, want);
  }
}

/* Speaks a word from the client to the listener, over a new session; the name that the listener sees. */
static void speak(struct zps_tls *listener, struct zps_tls *client, const char *name) {
  struct rig_pair pair;
  rig_pair_open(&pair, listener, client);
  rig_pair_run(&pair, 100000);
  assert_int_equal(pair.listener.err, ZPS_OK);
  assert_int_equal(pair.client.err, ZPS_OK);
  assert_string_equal(zps_tls_peer_name(pair.listener.session), name);
  rig_pair_close(&pair);
}

static void move(const struct rig *rig, const char *from, const char *to) {
  char a[160], b[160];
  assert_int_equal(rename(rig_path(rig, from, ".pem", a), rig_path(rig, to, ".pem", b)), 0);
  assert_int_equal(rename(rig_path(rig, from, ".key", a), rig_path(rig, to, ".key", b)), 0);
}

/* Files that change are read when the next session begins; while they are bad, the last ones stay; sessions live on. */
static void files_that_change(void **state) {
  (void)state;
  struct rig rig;
  struct rig_pair pair;
  struct zps_error error;
  char path[160];
  rig_open(&rig);
  struct zps_tls *listener = rig_identity(&rig, "c", ZPS_TLS_COORDINATOR),
                 *client = rig_identity(&rig, "w", ZPS_TLS_WORKER);
  rig_pair_open(&pair, listener, client);
  rig_pair_run(&pair, 100000);
  speak(listener, client, "zenps://worker/w");

  logs_start();
  logs_expect(ZPS_LOG_INFO, "read again, for connections to come");
  rig_cert(&rig, "other", ZPS_TLS_WORKER, -RIG_DAY_S, RIG_DAY_S);
  move(&rig, "other", "w");
  speak(listener, client, "zenps://worker/other");
  logs_finish();

  logs_start();
  logs_expect(ZPS_LOG_WARN, "no certificate (PEM)");
  rig_write(rig_path(&rig, "w", ".pem", path), "rubbish\n", 0644);
  speak(listener, client, "zenps://worker/other");
  logs_finish();
  logs_start(); /* it is not said again until the files change */
  speak(listener, client, "zenps://worker/other");
  logs_finish();
  assert_int_equal(zps_tls_reload(client, &error), ZPS_ERR_INVALID);
  assert_non_null(strstr(error.text, "no certificate (PEM)"));
  speak(listener, client, "zenps://worker/other");

  rig_cert(&rig, "third", ZPS_TLS_WORKER, -RIG_DAY_S, RIG_DAY_S);
  move(&rig, "third", "w");
  assert_int_equal(zps_tls_reload(client, &error), ZPS_OK);
  logs_start();
  speak(listener, client, "zenps://worker/third");
  logs_finish();

  assert_int_equal(zps_tls_write(pair.client.session, "still\n", 6, &error), ZPS_OK);
  rig_pair_run(&pair, 100000);
  assert_string_equal(pair.listener.said, "still\n");
  assert_string_equal(zps_tls_peer_name(pair.listener.session), "zenps://worker/w");
  rig_pair_close(&pair);
  zps_tls_unref(client);
  zps_tls_unref(listener);
  rig_close(&rig);
}

static void an_authority_is_read_again(void **state) {
  (void)state;
  struct rig rig, other;
  struct zps_certs_pair pair, mixed, strange;
  struct zps_authority *again = NULL;
  struct zps_error error;
  rig_open(&rig);
  rig_open(&other);
  assert_int_equal(zps_authority_write(rig.authority, &pair, NULL), ZPS_OK);
  assert_int_equal(zps_authority_write(other.authority, &strange, NULL), ZPS_OK);
  mixed = (struct zps_certs_pair){pair.cert, strange.key};
  assert_int_equal(zps_authority_read(&mixed, &again, &error), ZPS_ERR_INVALID);
  assert_string_equal(error.text, "the private key is another certificate's");
  assert_int_equal(zps_authority_read(&pair, &again, NULL), ZPS_OK);
  zps_authority_destroy(rig.authority);
  rig.authority = again;
  struct zps_tls *listener = rig_identity(&rig, "c", ZPS_TLS_COORDINATOR),
                 *client = rig_identity(&rig, "w", ZPS_TLS_ADMIN);
  speak(listener, client, "zenps://admin/w");
  zps_tls_unref(client);
  zps_tls_unref(listener);

  struct zps_certs_pair leaf;
  const struct zps_certs_span span = {rig_now(), rig_now() + 1000 * RIG_DAY_S};
  assert_int_equal(zps_certs_make(rig.authority, ZPS_TLS_SERVER, "a/b", &span, &leaf, &error), ZPS_ERR_INVALID);
  assert_non_null(strstr(error.text, "'a/b' is no name"));
  assert_int_equal(zps_certs_make(rig.authority, ZPS_TLS_SERVER | ZPS_TLS_COORDINATOR, "a", &span, &leaf, NULL),
                   ZPS_OK);
  struct zps_certs_facts facts, its;
  assert_int_equal(zps_certs_look(leaf.cert, &facts, NULL), ZPS_OK);
  assert_string_equal(facts.roles, "zenps://coordinator/a zenps://server/a");
  assert_false(facts.is_authority || facts.has_expired);
  assert_int_equal(zps_certs_look(pair.cert, &its, NULL), ZPS_OK);
  assert_string_equal(its.roles, "authority");
  assert_true(its.is_authority);
  assert_string_equal(facts.until, its.until); /* no longer than its authority */
  assert_string_equal(facts.issuer, its.subject);
  assert_int_equal(zps_authority_read(&leaf, &again, &error), ZPS_ERR_INVALID);
  assert_string_equal(error.text, "the certificate is not that of an authority");
  assert_int_equal(zps_certs_look("rubbish", &facts, &error), ZPS_ERR_INVALID);
  zps_certs_pair_fini(&leaf);
  zps_certs_pair_fini(&pair);
  zps_certs_pair_fini(&strange);
  rig_close(&other);
  rig_close(&rig);
}

int main(void) {
  zps_log_set_level(ZPS_LOG_INFO);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(files_that_are_refused),
      cmocka_unit_test(all_three_are_needed),
      cmocka_unit_test(files_that_change),
      cmocka_unit_test(an_authority_is_read_again),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
