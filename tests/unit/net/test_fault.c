/* The fault injector: its rules, its faults, and its checks of calls that break the rules of net.h. */
#include "tests/support/net_pair.h"
#include "tests/support/oom.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/net/fault.h"

static void test_rules_are_parsed(void **state) {
  (void)state;
  struct zps_fault_rules rules;
  struct zps_error error;
  assert_int_equal(
      zps_fault_parse(
          "seed=7,again=0.25,delay=0.5:3ms,drop=1,kill=200,stall=3,hold=50us,reorder=0.5,cut=2s,cut=0.125,claim=0.25",
          &rules, &error),
      ZPS_OK);
  assert_int_equal(rules.seed, 7);
  assert_true(rules.again == 0.25 && rules.delay == 0.5 && rules.drop == 1);
  assert_true(rules.reorder == 0.5 && rules.cut == 0.125 && rules.claim == 0.25);
  assert_int_equal(rules.cut_ns, 2 * ZPS_NS_PER_S);
  assert_int_equal(rules.delay_ns, 3 * ZPS_NS_PER_MS);
  assert_int_equal(rules.kill, 200);
  assert_int_equal(rules.stall, 3);
  assert_int_equal(rules.hold_ns, 50000);
  assert_int_equal(zps_fault_parse(NULL, &rules, &error), ZPS_OK);
  assert_true(rules.seed == 1 && rules.again == 0 && rules.kill == 0);
}

static void test_wrong_rules_are_named(void **state) {
  (void)state;
  const char *const wrong[] = {"again",       "again=",  "again=1.5",   "again=-0.1",
                               "drop=x",      "kill=-1", "kill=1x",     "delay=0.5",
                               "delay=0.5:3", "hold=3",  "delay=2:1ms", "hold=-1ms",
                               "cut=2",       "seed=",   "drop=nan",    "kill=99999999999999999999999",
                               "cut=0s",      "cut=-1s", "reorder=5",   "cut=1x"};
  for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    struct zps_fault_rules rules = {.seed = 99};
    struct zps_error error;
    char text[80];
    snprintf(text, sizeof text, "seed=1,%s", wrong[i]);
    assert_int_equal(zps_fault_parse(text, &rules, &error), ZPS_ERR_INVALID);
    assert_non_null(strstr(error.text, wrong[i]));
    assert_int_equal(rules.seed, 99);
  }
}

static void test_sends_are_pushed_back(void **state) {
  (void)state;
  struct end ends[2];
  unsigned sent = 0, again = 0;
  pair_open(ends, "fault+loop", "seed=2,again=0.5", 400);
  for (unsigned i = 0; i < 400; i++) {
    const zps_err_t code = zps_net_send(ends[0].peer, &i, sizeof i);
    if (code == ZPS_OK) sent++;
    if (code == ZPS_ERR_AGAIN) again++;
  }
  assert_int_equal(sent + again, 400);
  assert_in_range(again, 150, 250);
  assert_int_equal(zps_net_counters(ends[0].net)->again, again);
  zps_net_wait(ends[0].net, ZPS_NEVER); /* short after a push-back */
  assert_int_equal(zps_net_progress(ends[0].net), 1);
  TURN_UNTIL(ends, ends[1].n_messages == sent);
  pair_close(ends);
}

static void test_messages_are_dropped(void **state) {
  (void)state;
  struct end ends[2];
  pair_open(ends, "fault+loop", "drop=1", 400);
  for (unsigned i = 0; i < 10; i++) assert_int_equal(zps_net_send(ends[0].peer, &i, sizeof i), ZPS_OK);
  zps_net_progress(ends[0].net);
  assert_int_equal(zps_net_progress(ends[1].net), 0);
  assert_int_equal(zps_net_counters(ends[0].net)->msgs_sent, 0);
  pair_close(ends);
}

static void expect_next(struct end *end, const void *data, size_t len) {
  assert_int_equal(len, sizeof(unsigned));
  const unsigned expected = end->n_messages - 1;
  assert_memory_equal(data, &expected, sizeof expected);
}

static void test_delayed_messages_keep_their_order(void **state) {
  (void)state;
  struct end ends[2];
  pair_open(ends, "fault+loop", "delay=0.1:100us", 1000);
  ends[1].on_message = expect_next;
  for (unsigned i = 0; i < 1000; i++) assert_int_equal(zps_net_send(ends[0].peer, &i, sizeof i), ZPS_OK);
  TURN_UNTIL(ends, ends[1].n_messages == 1000);
  for (unsigned i = 0; i < 10; i++) assert_int_equal(zps_net_send(ends[0].peer, &i, sizeof i), ZPS_OK);
  zps_net_peer_evict(ends[0].peer); /* queued messages go with the peer */
  pair_close(ends);
}

/* A pair with one registration each, and a read from the second end's into the first's. */
struct reading {
  struct end ends[2];
  uint8_t theirs[64], mine[64];
  struct zps_net_mem remote, local;
  struct read_record record;
};

static void reading_open(struct reading *r, const char *fault) {
  pair_open(r->ends, "fault+loop", fault, 4);
  memset(r->theirs, 42, sizeof r->theirs);
  memset(r->mine, 0, sizeof r->mine);
  r->remote = end_register(&r->ends[1], r->theirs, sizeof r->theirs);
  r->local = end_register(&r->ends[0], r->mine, sizeof r->mine);
  record_init(&r->record, &r->local, &r->remote, sizeof r->mine);
  assert_int_equal(zps_net_read(r->ends[0].peer, &r->record.read), ZPS_OK);
}

static void test_completions_are_delayed(void **state) {
  (void)state;
  struct reading r;
  const uint64_t start = zps_clock_ns();
  reading_open(&r, "delay=1:2ms");
  TURN_UNTIL(r.ends, r.record.n_done == 1);
  assert_true(zps_clock_ns() - start >= 2 * ZPS_NS_PER_MS);
  assert_int_equal(r.record.code, ZPS_OK);
  assert_int_equal(r.mine[63], 42);
  assert_int_equal(r.record.n_released, 0);
  pair_close(r.ends);
}

static void test_quarantine_is_held_and_scribbled_on(void **state) {
  (void)state;
  struct reading r;
  reading_open(&r, "hold=2ms");
  const uint64_t start = zps_clock_ns();
  zps_net_peer_evict(r.ends[0].peer);
  assert_int_equal(r.record.n_done, 0);
  TURN_UNTIL(r.ends, r.record.n_done == 1);
  assert_int_equal(r.record.code, ZPS_ERR_PEER_LOST);
  if (r.record.n_released == 0) assert_int_equal(zps_net_counters(r.ends[0].net)->quarantined, 1);
  TURN_UNTIL(r.ends, r.record.n_released == 1);
  assert_true(zps_clock_ns() - start >= 2 * ZPS_NS_PER_MS);
  assert_int_equal(zps_net_counters(r.ends[0].net)->quarantined, 0);
  assert_int_equal(r.mine[0], 0xdb);
  zps_net_mem_release(r.ends[0].net, &r.local);
  pair_close(r.ends);
}

static void test_close_ends_the_quarantine(void **state) {
  (void)state;
  struct reading r;
  reading_open(&r, "hold=3600s");
  zps_net_peer_evict(r.ends[0].peer);
  zps_net_progress(r.ends[0].net);
  assert_int_equal(r.record.n_done, 1);
  pair_close(r.ends);
  assert_int_equal(r.record.n_released, 1);
}

static void test_a_stalled_peer_holds_reads_until_it_is_evicted(void **state) {
  (void)state;
  struct reading r;
  reading_open(&r, "stall=1");
  assert_int_equal(zps_net_send(r.ends[1].peer, "a", 1), ZPS_OK);
  TURN_UNTIL(r.ends, r.ends[0].n_messages == 1); /* messages go on */
  for (int i = 0; i < 10; i++) zps_net_progress(r.ends[0].net);
  assert_int_equal(r.record.n_done, 0);
  assert_int_equal(r.mine[0], 0);
  zps_net_peer_evict(r.ends[0].peer);
  TURN_UNTIL(r.ends, r.record.n_released == 1);
  assert_int_equal(r.record.code, ZPS_ERR_PEER_LOST);
  pair_close(r.ends);
}

static void test_a_killed_endpoint_is_silent(void **state) {
  (void)state;
  struct reading r;
  reading_open(&r, "kill=2"); /* the read was the first operation */
  TURN_UNTIL(r.ends, r.record.n_done == 1);
  struct read_record second;
  record_init(&second, &r.local, &r.remote, 8);
  assert_int_equal(zps_net_send(r.ends[0].peer, "a", 1), ZPS_OK);
  TURN_UNTIL(r.ends, r.ends[1].n_messages == 1);
  assert_int_equal(zps_net_send(r.ends[0].peer, "b", 1), ZPS_OK);
  assert_int_equal(zps_net_read(r.ends[0].peer, &second.read), ZPS_OK);
  assert_int_equal(zps_net_send(r.ends[1].peer, "c", 1), ZPS_OK);
  for (int i = 0; i < 10; i++) {
    zps_net_progress(r.ends[0].net);
    zps_net_progress(r.ends[1].net);
  }
  assert_int_equal(r.ends[1].n_messages, 1);
  assert_int_equal(r.ends[0].n_messages, 0);
  assert_int_equal(second.n_done, 0);
  zps_net_peer_evict(r.ends[0].peer);
  zps_net_progress(r.ends[0].net);
  assert_int_equal(second.code, ZPS_ERR_PEER_LOST);
  pair_close(r.ends);
}

/* A call that breaks the rules must end the process: each such call runs in a child of its own. */

static void started_twice(struct reading *r) {
  if (zps_net_read(r->ends[0].peer, &r->record.read) != ZPS_OK) _exit(1);
}

static void modified_in_flight(struct reading *r) {
  r->record.read.len--;
  while (r->record.n_done == 0) zps_net_progress(r->ends[0].net);
}

static void private_fields_used(struct reading *r) {
  r->record.read.next = NULL;
  while (r->record.n_done == 0) zps_net_progress(r->ends[0].net);
}

static void memory_released_under_a_read(struct reading *r) {
  zps_net_mem_release(r->ends[0].net, &r->local);
}

static void memory_released_in_quarantine(struct reading *r) {
  zps_net_peer_evict(r->ends[0].peer);
  zps_net_progress(r->ends[0].net);
  if (r->record.n_done != 1) _exit(1);
  zps_net_mem_release(r->ends[0].net, &r->local);
}

static void into_unregistered_memory(struct reading *r) {
  static uint8_t elsewhere[64];
  struct zps_net_mem forged = r->local;
  struct read_record record;
  forged.base = elsewhere;
  record_init(&record, &forged, &r->remote, sizeof elsewhere);
  if (zps_net_read(r->ends[0].peer, &record.read) != ZPS_OK) _exit(1);
}

static void *send_elsewhere(void *peer) {
  return zps_net_send(peer, "x", 1) == ZPS_OK ? NULL : peer;
}

static void from_a_second_thread(struct reading *r) {
  pthread_t thread;
  zps_net_progress(r->ends[0].net);
  pthread_create(&thread, NULL, send_elsewhere, r->ends[0].peer);
  pthread_join(thread, NULL);
}

static void progress_again(struct end *end, const void *data, size_t len) {
  (void)data;
  (void)len;
  zps_net_progress(end->net);
}

static void progress_in_a_callback(struct reading *r) {
  r->ends[0].on_message = progress_again;
  if (zps_net_send(r->ends[1].peer, "x", 1) != ZPS_OK) _exit(1);
  while (r->ends[0].n_messages == 0) zps_net_progress(r->ends[0].net);
}

static void no_violation(struct reading *r) {
  while (r->record.n_done == 0) zps_net_progress(r->ends[0].net);
  pair_close(r->ends);
}

static void test_rules_need_the_injector(void **state) {
  (void)state;
  const struct zps_net_config config = {.provider = "loop", .max_msg = 64, .fault = "again=0.5"};
  const struct zps_net_handler handler = {.on_message = end_on_message, .on_peer_error = end_on_peer_error};
  struct zps_net *net;
  struct zps_error error;
  assert_int_equal(zps_net_open(&config, &handler, &net, &error), ZPS_ERR_INVALID);
  assert_non_null(strstr(error.text, "for provider \"fault+loop\""));
}

/* The signal that ended a child which ran `act`; 0 for a child that came through. */
static int signal_of(void (*act)(struct reading *)) {
  fflush(NULL);
  const pid_t child = fork();
  if (child == 0) {
    static struct reading r;
    static unsigned logged;
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    signal(SIGABRT, SIG_DFL);
    zps_log_set_sink(log_count, &logged);
    reading_open(&r, "hold=1s");
    act(&r);
    _exit(0);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  if (WIFEXITED(status)) assert_int_equal(WEXITSTATUS(status), 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void test_broken_rules_are_fatal(void **state) {
  (void)state;
  assert_int_equal(signal_of(no_violation), 0);
  assert_int_equal(signal_of(started_twice), SIGABRT);
  assert_int_equal(signal_of(modified_in_flight), SIGABRT);
  assert_int_equal(signal_of(private_fields_used), SIGABRT);
  assert_int_equal(signal_of(memory_released_under_a_read), SIGABRT);
  assert_int_equal(signal_of(memory_released_in_quarantine), SIGABRT);
  assert_int_equal(signal_of(into_unregistered_memory), SIGABRT);
  assert_int_equal(signal_of(from_a_second_thread), SIGABRT);
  assert_int_equal(signal_of(progress_in_a_callback), SIGABRT);
}

/* An endpoint with a peer (itself) and a registration. */
static void test_out_of_memory(void **state) {
  (void)state;
  struct net_sweep sweep = {.config = {.provider = "fault+loop", .max_msg = 64, .fault = "again=0.5"}};
  oom_sweep(net_sweep_create, net_sweep_destroy, &sweep, 7);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_rules_are_parsed),
      cmocka_unit_test(test_wrong_rules_are_named),
      cmocka_unit_test(test_rules_need_the_injector),
      cmocka_unit_test(test_sends_are_pushed_back),
      cmocka_unit_test(test_messages_are_dropped),
      cmocka_unit_test(test_delayed_messages_keep_their_order),
      cmocka_unit_test(test_completions_are_delayed),
      cmocka_unit_test(test_quarantine_is_held_and_scribbled_on),
      cmocka_unit_test(test_close_ends_the_quarantine),
      cmocka_unit_test(test_a_stalled_peer_holds_reads_until_it_is_evicted),
      cmocka_unit_test(test_a_killed_endpoint_is_silent),
      cmocka_unit_test(test_broken_rules_are_fatal),
      cmocka_unit_test(test_out_of_memory),
  };
  return cmocka_run_group_tests_name("fault", tests, NULL, NULL);
}
