/* How the blocking client connects, and closes: against sockets that refuse, are silent or speak otherwise. */
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/control/client.h"
#include "tests/support/raw_listen.h"
#include "tests/support/patience.h"

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

static zps_err_t open_as(const struct zps_client_handler *handler, const char *answer, int n_refused,
                         uint64_t timeout_ms, bool silent_close, struct zps_error *error) {
  char address[64];
  struct script script = {.listener = raw_listen(address, sizeof address), .n_refused = n_refused, .answer = answer};
  pthread_t thread;
  struct zps_client *client = NULL;
  assert_int_equal(pthread_create(&thread, NULL, play, &script), 0);
  const zps_err_t code = zps_client_open(address, "worker", timeout_ms, handler, &client, error);
  shutdown(script.listener, SHUT_RDWR); /* a client that gave up too early makes no more connections */
  pthread_join(thread, NULL);
  if (!silent_close) close(script.fd);
  const uint64_t start_ns = zps_clock_ns();
  zps_client_close(client);
  assert_true(ms_since(start_ns) < 60000);
  if (silent_close) close(script.fd);
  close(script.listener);
  return code;
}

static zps_err_t open_against(const char *answer, int n_refused, uint64_t timeout_ms, bool silent_close,
                              struct zps_error *error) {
  return open_as(NULL, answer, n_refused, timeout_ms, silent_close, error);
}

static void test_retries_until_the_server_is_up(void **state) {
  (void)state;
  struct zps_error error;
  assert_int_equal(open_against(ANSWER("12"), 2, PATIENCE_NEVER_MS, false, &error), ZPS_OK);
}

/* ---- A hello that the network ends ---- */

#define HALF_AN_ANSWER "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"protocol\":4,\"vers"

/* One end of a connection during its hello. */
struct cut {
  const char *name;
  bool reads;         /* the hello, before it ends */
  const char *answer; /* sent before it ends; NULL: nothing */
  bool resets;        /* by RST, not by FIN */
};

static const struct cut CUTS[] = {
    {"closed at once", false, NULL, false},
    {"reset at once", false, NULL, true},
    {"closed after the hello", true, NULL, false},
    {"reset after the hello", true, NULL, true},
    {"closed within the answer", true, HALF_AN_ANSWER, false},
    {"reset within the answer", true, HALF_AN_ANSWER, true},
};
enum { N_CUTS = sizeof CUTS / sizeof CUTS[0] };

/* Ends connections as `cut` says, the first `n_cut` of them (all, at 0), and answers the others. */
struct cutter {
  int listener;
  const struct cut *cut;
  unsigned n_cut, n; /* n: connections */
  char address[64];
  pthread_t thread;
};

static void cut_off(int fd, const struct cut *cut) {
  char line[4096];
  const struct linger at_once = {.l_onoff = 1};
  if (cut->reads && recv(fd, line, sizeof line, 0) <= 0) return;
  if (cut->answer) (void)!send(fd, cut->answer, strlen(cut->answer), MSG_NOSIGNAL);
  if (cut->resets) (void)!setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

static void *cut_first(void *arg) {
  struct cutter *cutter = arg;
  char line[4096];
  int fd;
  while ((fd = accept(cutter->listener, NULL, NULL)) >= 0) {
    if (cutter->n++ < cutter->n_cut || cutter->n_cut == 0)
      cut_off(fd, cutter->cut);
    else if (recv(fd, line, sizeof line, 0) > 0 && send(fd, ANSWER("12"), strlen(ANSWER("12")), MSG_NOSIGNAL) > 0)
      while (recv(fd, line, sizeof line, 0) > 0) continue;
    close(fd);
  }
  return NULL;
}

static zps_err_t open_against_cuts(const struct cut *cut, unsigned n_cut, uint64_t timeout_ms, unsigned *n_p,
                                   struct zps_error *error) {
  struct cutter cutter = {.cut = cut, .n_cut = n_cut};
  struct zps_client *client = NULL;
  cutter.listener = raw_listen(cutter.address, sizeof cutter.address);
  assert_int_equal(pthread_create(&cutter.thread, NULL, cut_first, &cutter), 0);
  const zps_err_t code = zps_client_open(cutter.address, "worker", timeout_ms, NULL, &client, error);
  zps_client_close(client);
  shutdown(cutter.listener, SHUT_RDWR);
  pthread_join(cutter.thread, NULL);
  close(cutter.listener);
  *n_p = cutter.n;
  return code;
}

static void test_a_hello_that_is_cut_off_is_said_again(void **state) {
  (void)state;
  for (unsigned i = 0; i < N_CUTS; i++) {
    struct zps_error error;
    unsigned n;
    if (open_against_cuts(&CUTS[i], 2, PATIENCE_NEVER_MS, &n, &error)) fail_msg("%s: %s", CUTS[i].name, error.text);
    assert_int_equal(n, 3);
  }
}

/* Always: tried on until the caller's time is up; the error is of a coordinator that cannot be reached, and says why.
 */
static void test_hellos_that_are_all_cut_off(void **state) {
  (void)state;
  for (unsigned i = 0; i < N_CUTS; i++) {
    struct zps_error error;
    unsigned n;
    zps_err_t code = ZPS_ERR_TIMEOUT; /* of the last try, which may have had no time left on a busy machine */
    struct patience patience = {0};
    while (code == ZPS_ERR_TIMEOUT && !patience_is_over(&patience))
      code = open_against_cuts(&CUTS[i], 0, 350, &n, &error);
    if (code != ZPS_ERR_CONNECT) fail_msg("%s: %s (%s)", CUTS[i].name, zps_err_str(code), error.text);
    /* A reset may come before the connection is seen to be there. */
    if (!strstr(error.text, "ended during its hello: 127.0.0.1:") &&
        !strstr(error.text, "cannot connect to 127.0.0.1:"))
      fail_msg("%s: %s", CUTS[i].name, error.text);
    assert_true(n > 1);
  }
}

/* ---- A connection that is there, and gone, before the caller has seen it ---- */

static struct {
  bool on;
  pthread_t thread;
  sem_t away;
} sleeper;

int __real_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *until);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *until);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *until) {
  const int status = __real_pthread_cond_timedwait(cond, lock, until);
  if (!sleeper.on || !pthread_equal(pthread_self(), sleeper.thread)) return status;
  sleeper.on = false;
  pthread_mutex_unlock(lock);
  sem_wait(&sleeper.away);
  pthread_mutex_lock(lock);
  return status;
}

static void on_away(void *ctx, const char *reason) {
  (void)ctx, (void)reason;
  sem_post(&sleeper.away);
}

static zps_err_t on_resumed(void *ctx, const zps_json *result, const struct zps_error *error) {
  (void)ctx, (void)result, (void)error;
  return ZPS_OK;
}

/* A caller that is slow may find the connection there without having waited for it: then once more. */
static void open_while_it_goes(void) {
  static const struct cut then_closed = {"closed after the answer", true, ANSWER("12"), false};
  static const struct zps_client_handler outlives = {.on_away = on_away, .on_resumed = on_resumed};
  struct cutter cutter = {.cut = &then_closed, .n_cut = 1};
  struct zps_client *client = NULL;
  struct zps_error error;
  cutter.listener = raw_listen(cutter.address, sizeof cutter.address);
  assert_int_equal(pthread_create(&cutter.thread, NULL, cut_first, &cutter), 0);
  if (zps_client_open(cutter.address, "worker", PATIENCE_NEVER_MS, &outlives, &client, &error))
    fail_msg("%s", error.text);
  zps_client_close(client);
  shutdown(cutter.listener, SHUT_RDWR);
  pthread_join(cutter.thread, NULL);
  close(cutter.listener);
}

static void test_gone_before_the_caller_has_seen_it(void **state) {
  (void)state;
  sleeper.thread = pthread_self();
  sleeper.on = true;
  for (unsigned k = 0; sleeper.on && k < 100; k++) {
    assert_int_equal(sem_init(&sleeper.away, 0, 0), 0);
    open_while_it_goes();
    sem_destroy(&sleeper.away);
  }
  assert_false(sleeper.on);
}

/* ---- Several addresses ---- */

#define MOVED(leader)                                                                                               \
  "{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-7,\"message\":\"not me\",\"data\":{\"name\":\"ERR_CONNECT\"," \
  "\"leader\":\"" leader "\"}}}\n"

/* A listener that answers hellos with `answer` until it is shut down. */
struct peer {
  int listener;
  unsigned n; /* hellos answered */
  char address[64], answer[300];
  pthread_t thread;
};

static void *answer_all(void *arg) {
  struct peer *peer = arg;
  char line[4096];
  int fd;
  while ((fd = accept(peer->listener, NULL, NULL)) >= 0) {
    if (recv(fd, line, sizeof line, 0) > 0 && send(fd, peer->answer, strlen(peer->answer), MSG_NOSIGNAL) > 0) peer->n++;
    while (recv(fd, line, sizeof line, 0) > 0) continue;
    close(fd);
  }
  return NULL;
}

static void peer_init(struct peer *peer) {
  memset(peer, 0, sizeof *peer);
  peer->listener = raw_listen(peer->address, sizeof peer->address);
}

static void peer_start(struct peer *peer) {
  assert_int_equal(pthread_create(&peer->thread, NULL, answer_all, peer), 0);
}

static void peer_stop(struct peer *peer) {
  shutdown(peer->listener, SHUT_RDWR);
  pthread_join(peer->thread, NULL);
  close(peer->listener);
}

/* One that is not there, one that does not lead, and names the last of the four. Returns the hellos that they got:
 * 100 for one of the follower, 10 for the third, 1 for the leader. */
static unsigned hellos_on_the_way(void) {
  static struct peer follower, third, leader;
  char nobody[64], list[300];
  struct zps_client *client = NULL;
  struct zps_error error;
  const int bound = raw_bind(nobody, sizeof nobody);
  peer_init(&follower);
  peer_init(&third);
  peer_init(&leader);
  snprintf(follower.answer, sizeof follower.answer, MOVED("%s"), leader.address);
  snprintf(third.answer, sizeof third.answer, MOVED(""));
  snprintf(leader.answer, sizeof leader.answer, ANSWER("12"));
  peer_start(&follower);
  peer_start(&third);
  peer_start(&leader);
  snprintf(list, sizeof list, "%s,%s,%s,%s", nobody, follower.address, third.address, leader.address);
  if (zps_client_open(list, "worker", PATIENCE_NEVER_MS, NULL, &client, &error)) fail_msg("%s", error.text);
  zps_client_close(client);
  peer_stop(&follower);
  peer_stop(&third);
  peer_stop(&leader);
  close(bound);
  return 100 * follower.n + 10 * third.n + leader.n;
}

/* The third one is left out. A machine that stands still for seconds lets a try end early: then all of it once more. */
static void test_goes_to_the_leader(void **state) {
  (void)state;
  unsigned hellos = 0;
  for (int i = 0; i < 5 && hellos != 101; i++) hellos = hellos_on_the_way();
  assert_int_equal(hellos, 101);
}

/* Nobody leads: tried on until the time is up, and the error says of whom, and why. */
static void test_nobody_leads(void **state) {
  (void)state;
  static struct peer follower;
  char nobody[64], list[300], wanted[600];
  struct zps_client *client = NULL;
  struct zps_error error;
  const int bound = raw_bind(nobody, sizeof nobody);
  peer_init(&follower);
  snprintf(follower.answer, sizeof follower.answer, MOVED("elsewhere:1"));
  peer_start(&follower);
  snprintf(list, sizeof list, "%s,%s", nobody, follower.address);
  zps_err_t code = ZPS_ERR_TIMEOUT; /* of the last try, which may have had no time left on a busy machine */
  struct patience patience = {0};
  while (code == ZPS_ERR_TIMEOUT && !patience_is_over(&patience))
    code = zps_client_open(list, "worker", 700, NULL, &client, &error);
  assert_int_equal(code, ZPS_ERR_CONNECT);
  peer_stop(&follower);
  assert_true(follower.n > 1);
  snprintf(wanted, sizeof wanted, "no coordinator of %s can be reached, or leads: %s: not me", list, follower.address);
  assert_string_equal(error.text, wanted);
  close(bound);
}

/* One that is silent leaves time for the next one. */
static void test_silent_one(void **state) {
  (void)state;
  static struct peer leader;
  char silent[64], list[300];
  struct zps_client *client = NULL;
  struct zps_error error;
  const int listener = raw_listen(silent, sizeof silent);
  peer_init(&leader);
  snprintf(leader.answer, sizeof leader.answer, ANSWER("12"));
  peer_start(&leader);
  snprintf(list, sizeof list, "%s,%s", silent, leader.address);
  zps_err_t code = ZPS_ERR_TIMEOUT; /* of a try without time for the second one, on a busy machine */
  struct patience patience = {0};
  while (code == ZPS_ERR_TIMEOUT && !patience_is_over(&patience))
    code = zps_client_open(list, "worker", 1000, NULL, &client, &error);
  if (code != ZPS_OK) fail_msg("%s", error.text);
  zps_client_close(client);
  peer_stop(&leader);
  close(listener);
  assert_int_equal(zps_client_open("a:1,b", "worker", 250, NULL, &client, &error), ZPS_ERR_INVALID);
  assert_string_equal(error.text,
                      "address 2 of the list: address 'b': no port, want HOST:PORT, [V6]:PORT or unix:/path");
}

static void test_another_version_is_not_retried(void **state) {
  (void)state;
  struct zps_error error;
  const uint64_t start_ns = zps_clock_ns();
  assert_int_equal(open_against(ANSWER("13"), 0, PATIENCE_NEVER_MS, false, &error), ZPS_ERR_VERSION);
  assert_non_null(strstr(error.text, "speaks protocol version 12"));
  assert_non_null(strstr(error.text, "speaks version 13"));
  assert_true(ms_since(start_ns) < 60000);
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
  assert_int_equal(open_against(ANSWER("12"), 0, PATIENCE_NEVER_MS, true, &error), ZPS_OK);
}

static void test_nobody_listens(void **state) {
  (void)state;
  char address[64];
  struct zps_error error;
  struct zps_client *client = NULL;
  const int bound = raw_bind(address, sizeof address);
  const uint64_t start_ns = zps_clock_ns();
  zps_err_t code = ZPS_ERR_TIMEOUT; /* of the last try, which may have had no time left on a busy machine */
  struct patience patience = {0};
  while (code == ZPS_ERR_TIMEOUT && !patience_is_over(&patience))
    code = zps_client_open(address, "worker", 1500, NULL, &client, &error);
  assert_int_equal(code, ZPS_ERR_CONNECT);
  assert_true(ms_since(start_ns) >= 100); /* it tried more than once */
  assert_non_null(strstr(error.text, "connection refused"));
  assert_int_equal(zps_client_open("nowhere", "worker", 250, NULL, &client, &error), ZPS_ERR_INVALID);
  assert_null(client);
  zps_client_close(NULL);
  close(bound);
}

static void note_waiting(void *ctx, const char *reason) {
  char *text = ctx;
  assert_string_equal(text, ""); /* once */
  snprintf(text, 200, "%s", reason);
}

/* Long before the deadline the user hears of it, and then the client gives up. */
static void test_nobody_will_listen_on_this_host(void **state) {
  (void)state;
  char address[64], two[140], reason[200] = "";
  struct zps_error error;
  struct zps_client *client = NULL;
  struct zps_client_handler handler = {.ctx = reason, .on_waiting = note_waiting, .refused_ms = 3000};
  const int bound = raw_bind(address, sizeof address);
  const uint64_t start_ns = zps_clock_ns();
  assert_int_equal(zps_client_open(address, "worker", 600000, &handler, &client, &error), ZPS_ERR_CONNECT);
  assert_true(ms_since(start_ns) < 300000);
  assert_non_null(strstr(error.text, "connection refused"));
  assert_string_equal(reason, error.text);
  /* Another host may have one later. */
  handler = (struct zps_client_handler){.refused_ms = 1};
  snprintf(two, sizeof two, "192.0.2.1:7077,%s", address);
  assert_int_not_equal(zps_client_open(two, "worker", 400, &handler, &client, &error), ZPS_OK);
  /* A coordinator that closes the connection is there. */
  assert_int_equal(open_as(&handler, ANSWER("12"), 3, PATIENCE_NEVER_MS, false, &error), ZPS_OK);
  close(bound);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_retries_until_the_server_is_up),
      cmocka_unit_test(test_a_hello_that_is_cut_off_is_said_again),
      cmocka_unit_test(test_hellos_that_are_all_cut_off),
      cmocka_unit_test(test_gone_before_the_caller_has_seen_it),
      cmocka_unit_test(test_goes_to_the_leader),
      cmocka_unit_test(test_nobody_leads),
      cmocka_unit_test(test_silent_one),
      cmocka_unit_test(test_another_version_is_not_retried),
      cmocka_unit_test(test_open_times_out),
      cmocka_unit_test(test_close_does_not_wait_for_a_hung_server),
      cmocka_unit_test(test_nobody_listens),
      cmocka_unit_test(test_nobody_will_listen_on_this_host),
  };
  return cmocka_run_group_tests_name("client open", tests, NULL, NULL);
}
