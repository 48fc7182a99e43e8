/* How the blocking client connects, and closes: against sockets that refuse, are silent or speak otherwise. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/control/client.h"
#include "tests/support/raw_listen.h"

static uint64_t ms_since(uint64_t start_ns) {
  return (zps_clock_ns() - start_ns) / ZPS_NS_PER_MS;
}

#define ANSWER(protocol)                                             \
  "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"protocol\":" protocol \
  ",\"version\":\"8\",\"role\":\"coordinator\",\"features\":[]}}\n"

struct script {
  int listener, n_refused;
  const char *answer;
  int fd;
};

/* Closes the first connections, answers the hello of the next one, then neither reads nor writes. */
static void *play(void *arg) {
  struct script *script = arg;
  char line[4096];
  for (int i = 0; i < script->n_refused; i++) close(accept(script->listener, NULL, NULL));
  script->fd = accept(script->listener, NULL, NULL);
  if (recv(script->fd, line, sizeof line, 0) > 0 && script->answer)
    (void)!send(script->fd, script->answer, strlen(script->answer), MSG_NOSIGNAL);
  return NULL;
}

static zps_err_t open_against(const char *answer, int n_refused, uint64_t timeout_ms, bool silent_close,
                              struct zps_error *error) {
  char address[64];
  struct script script = {.listener = raw_listen(address, sizeof address), .n_refused = n_refused, .answer = answer};
  pthread_t thread;
  struct zps_client *client = NULL;
  assert_int_equal(pthread_create(&thread, NULL, play, &script), 0);
  const zps_err_t code = zps_client_open(address, "worker", timeout_ms, NULL, &client, error);
  pthread_join(thread, NULL);
  if (!silent_close) close(script.fd);
  const uint64_t start_ns = zps_clock_ns();
  zps_client_close(client);
  assert_true(ms_since(start_ns) < 5000);
  if (silent_close) close(script.fd);
  close(script.listener);
  return code;
}

static void test_retries_until_the_server_is_up(void **state) {
  (void)state;
  struct zps_error error;
  assert_int_equal(open_against(ANSWER("4"), 2, 10000, false, &error), ZPS_OK);
}

static void test_another_version_is_not_retried(void **state) {
  (void)state;
  struct zps_error error;
  const uint64_t start_ns = zps_clock_ns();
  assert_int_equal(open_against(ANSWER("5"), 0, 60000, false, &error), ZPS_ERR_VERSION);
  assert_non_null(strstr(error.text, "speaks protocol version 4"));
  assert_non_null(strstr(error.text, "speaks version 5"));
  assert_true(ms_since(start_ns) < 10000);
}

static void test_open_times_out(void **state) {
  (void)state;
  struct zps_error error;
  assert_int_equal(open_against(NULL, 0, 50, false, &error), ZPS_ERR_TIMEOUT);
  assert_non_null(strstr(error.text, "no hello in time"));
}

static void test_close_does_not_wait_for_a_hung_server(void **state) {
  (void)state;
  struct zps_error error;
  assert_int_equal(open_against(ANSWER("4"), 0, 5000, true, &error), ZPS_OK);
}

static void test_nobody_listens(void **state) {
  (void)state;
  char address[64];
  struct zps_error error;
  struct zps_client *client = NULL;
  close(raw_listen(address, sizeof address));
  const uint64_t start_ns = zps_clock_ns();
  assert_int_equal(zps_client_open(address, "worker", 1500, NULL, &client, &error), ZPS_ERR_CONNECT);
  assert_true(ms_since(start_ns) >= 100); /* it tried more than once */
  assert_non_null(strstr(error.text, "connection refused"));
  assert_int_equal(zps_client_open("nowhere", "worker", 250, NULL, &client, &error), ZPS_ERR_INVALID);
  assert_null(client);
  zps_client_close(NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_retries_until_the_server_is_up),
      cmocka_unit_test(test_another_version_is_not_retried),
      cmocka_unit_test(test_open_times_out),
      cmocka_unit_test(test_close_does_not_wait_for_a_hung_server),
      cmocka_unit_test(test_nobody_listens),
  };
  return cmocka_run_group_tests_name("client open", tests, NULL, NULL);
}
