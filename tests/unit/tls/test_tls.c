/* Sessions over memory: who speaks to whom, and the words when an end does not take the other one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/tls/tls_rig.h"

static void says(const struct rig_end *end, zps_err_t err, const char *text) {
  assert_int_equal(end->err, err);
  if (!strstr(end->error.text, text)) fail_msg("'%s' does not say '%s'", end->error.text, text);
}

static void say(struct rig_end *end, const char *text) {
  assert_int_equal(zps_tls_write(end->session, text, strlen(text), &end->error), ZPS_OK);
}

/* What is said ahead of the end of the handshake waits, and arrives whole, also a byte at a time. */
static void two_ends_speak(void **state) {
  (void)state;
  struct rig rig;
  struct rig_pair pair;
  rig_open(&rig);
  struct zps_tls *listener = rig_identity(&rig, "c", ZPS_TLS_COORDINATOR | ZPS_TLS_SERVER);
  struct zps_tls *client = rig_identity(&rig, "w-1", ZPS_TLS_WORKER);
  const size_t chunks[] = {1, 7, 100000};
  for (unsigned i = 0; i < 3; i++) {
    rig_pair_open(&pair, listener, client);
    say(&pair.client, "hel");
    say(&pair.client, "lo\n");
    assert_int_equal(zps_tls_peer_roles(pair.listener.session), 0);
    rig_pair_run(&pair, chunks[i]);
    assert_int_equal(pair.client.err, ZPS_OK);
    assert_int_equal(pair.listener.err, ZPS_OK);
    assert_string_equal(pair.listener.said, "hello\n");
    assert_int_equal(zps_tls_peer_roles(pair.listener.session), ZPS_TLS_WORKER);
    assert_string_equal(zps_tls_peer_name(pair.listener.session), "zenps://worker/w-1");
    assert_int_equal(zps_tls_peer_roles(pair.client.session), ZPS_TLS_COORDINATOR | ZPS_TLS_SERVER);
    say(&pair.listener, "welcome\n");
    rig_pair_run(&pair, chunks[i]);
    assert_string_equal(pair.client.said, "welcome\n");
    zps_tls_end(pair.listener.session);
    rig_pair_run(&pair, chunks[i]);
    assert_int_equal(pair.client.err, ZPS_OK);
    rig_pair_close(&pair);
  }
  zps_tls_unref(client);
  zps_tls_unref(listener);
  rig_close(&rig);
}

/* The words of both ends, when `client` comes to `listener`. */
static void refused(struct zps_tls *listener, struct zps_tls *client, const char *listener_says,
                    const char *client_says) {
  struct rig_pair pair;
  rig_pair_open(&pair, listener, client);
  say(&pair.client, "hello\n");
  rig_pair_run(&pair, 100000);
  says(&pair.listener, ZPS_ERR_REFUSED, listener_says);
  says(&pair.client, ZPS_ERR_REFUSED, client_says);
  assert_string_equal(pair.listener.said, "");
  assert_string_equal(pair.client.said, "");
  assert_int_equal(zps_tls_peer_roles(pair.listener.session), 0);
  rig_pair_close(&pair);
}

static void authorities_are_told_apart(void **state) {
  (void)state;
  struct rig ours, other;
  rig_open(&ours);
  rig_open(&other);
  struct zps_tls *listener = rig_identity(&ours, "c", ZPS_TLS_COORDINATOR);
  rig_cert(&other, "w", ZPS_TLS_WORKER, -RIG_DAY_S, RIG_DAY_S);
  struct zps_tls *stranger = rig_tls(&other, "w", &ours); /* it takes the coordinator's */
  refused(listener, stranger, "its certificate, of zenps://worker/w, was made by an authority that is unknown here",
          "this end's certificate was made by an authority that is unknown there");
  struct zps_tls *misled = rig_tls(&other, "w", &other);
  refused(listener, misled, "this end's certificate was made by an authority that is unknown there",
          "its certificate, of zenps://coordinator/c, was made by an authority that is unknown here");
  zps_tls_unref(misled);
  zps_tls_unref(stranger);
  zps_tls_unref(listener);
  rig_close(&other);
  rig_close(&ours);
}

/* Dates are looked at by the time that an identity was told. */
static void dates_count(void **state) {
  (void)state;
  struct rig rig;
  rig_open(&rig);
  rig_cert(&rig, "old", ZPS_TLS_WORKER, -3 * RIG_DAY_S, 5 * RIG_DAY_S);
  struct zps_tls *listener = rig_identity(&rig, "c", ZPS_TLS_COORDINATOR), *client = rig_tls(&rig, "old", &rig);
  zps_tls_set_time(listener, rig_now() + 6 * RIG_DAY_S);
  refused(listener, client, "its certificate, of zenps://worker/old, expired at 2",
          "this end's certificate has expired");
  zps_tls_set_time(listener, rig_now() - 4 * RIG_DAY_S);
  refused(listener, client, "its certificate, of zenps://worker/old, is not valid before 2",
          "this end's certificate is bad, or not valid yet");
  zps_tls_set_time(listener, rig_now());
  zps_tls_set_time(client, rig_now() + 11 * RIG_DAY_S);
  refused(listener, client, "this end's certificate has expired",
          "its certificate, of zenps://coordinator/c, expired at 2");
  zps_tls_unref(client);
  zps_tls_unref(listener);
  rig_close(&rig);
}

static void roles_count(void **state) {
  (void)state;
  struct rig rig;
  rig_open(&rig);
  struct zps_tls *listener = rig_identity(&rig, "c", ZPS_TLS_COORDINATOR),
                 *server = rig_identity(&rig, "s", ZPS_TLS_SERVER);
  struct zps_tls *worker = rig_identity(&rig, "w", ZPS_TLS_WORKER);
  refused(server, worker, "this end's certificate is of a role that is not spoken to there",
          "its certificate is that of zenps://server/s, but here a coordinator is spoken to");
  refused(listener, listener,
          "its certificate is that of zenps://coordinator/c, but here a server, worker or admin is spoken to",
          "this end's certificate is of a role that is not spoken to there");
  zps_tls_unref(worker);
  zps_tls_unref(server);
  zps_tls_unref(listener);
  rig_close(&rig);
}

static void hear_text(struct rig_end *end, const char *text) {
  end->err = zps_tls_take(end->session, text, strlen(text), &end->error);
}

static void plain_peers_are_named(void **state) {
  (void)state;
  struct rig rig;
  struct rig_pair pair;
  rig_open(&rig);
  struct zps_tls *listener = rig_identity(&rig, "c", ZPS_TLS_COORDINATOR),
                 *client = rig_identity(&rig, "w", ZPS_TLS_WORKER);
  rig_pair_open(&pair, listener, client);
  hear_text(&pair.listener, "{\"jsonrpc\":\"2.0\"}\n");
  says(&pair.listener, ZPS_ERR_PROTOCOL, "speaks without TLS where TLS is spoken");
  assert_true(zps_tls_peer_is_plain(pair.listener.session));
  hear_text(&pair.client, "{\"jsonrpc\":\"2.0\"}\n");
  says(&pair.client, ZPS_ERR_PROTOCOL, "speaks without TLS, which is wanted here");
  rig_pair_close(&pair);

  rig_pair_open(&pair, listener, client);
  char *greeting = NULL;
  size_t len;
  assert_int_equal(zps_tls_send(pair.client.session, &greeting, &len), ZPS_OK);
  assert_true(zps_tls_is_greeting(greeting, len));
  assert_false(zps_tls_is_greeting("{", 1));
  assert_false(zps_tls_is_greeting(greeting, 2));
  assert_false(zps_tls_is_greeting("\x16\x05\x01", 3));
  free(greeting);
  static const char nonsense[] =
      "\x16\x03\x01\x00\x08"
      "nonsense";
  pair.listener.err = zps_tls_take(pair.listener.session, nonsense, sizeof nonsense - 1, &pair.listener.error);
  says(&pair.listener, ZPS_ERR_PROTOCOL, "speaks no TLS 1.3 that can be gone on with");
  assert_false(zps_tls_peer_is_plain(pair.listener.session));
  rig_pair_close(&pair);
  zps_tls_unref(client);
  zps_tls_unref(listener);
  rig_close(&rig);
}

/* A byte that changes on its way ends the session: nothing else is heard. */
static void bytes_cannot_be_changed(void **state) {
  (void)state;
  struct rig rig;
  struct rig_pair pair;
  rig_open(&rig);
  struct zps_tls *listener = rig_identity(&rig, "c", ZPS_TLS_COORDINATOR),
                 *client = rig_identity(&rig, "w", ZPS_TLS_WORKER);
  rig_pair_open(&pair, listener, client);
  rig_pair_run(&pair, 100000);
  say(&pair.client, "hello\n");
  char *bytes = NULL;
  size_t len;
  assert_int_equal(zps_tls_send(pair.client.session, &bytes, &len), ZPS_OK);
  bytes[len - 1] ^= 1;
  assert_int_equal(zps_tls_take(pair.listener.session, bytes, len, &pair.listener.error), ZPS_OK);
  free(bytes);
  pair.listener.err =
      zps_tls_read(pair.listener.session, pair.listener.said, sizeof pair.listener.said, &len, &pair.listener.error);
  says(&pair.listener, ZPS_ERR_PROTOCOL, "bad record mac");
  assert_int_equal(len, 0);
  rig_pair_close(&pair);
  zps_tls_unref(client);
  zps_tls_unref(listener);
  rig_close(&rig);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(two_ends_speak),        cmocka_unit_test(authorities_are_told_apart),
      cmocka_unit_test(dates_count),           cmocka_unit_test(roles_count),
      cmocka_unit_test(plain_peers_are_named), cmocka_unit_test(bytes_cannot_be_changed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
