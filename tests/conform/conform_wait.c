/* Waiting: an endpoint sleeps, and it wakes. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>

#include "tests/conform/conform.h"
#include "tests/support/sanitized.h"

enum { N_WAKES = 200 };

struct waker {
  struct zps_net *net;
  _Atomic unsigned asked, served;
};

static void *waker_run(void *arg) {
  struct waker *waker = arg;
  for (unsigned i = 1; i <= N_WAKES; i++) {
    while (atomic_load(&waker->asked) < i) sched_yield();
    atomic_store(&waker->served, i);
    zps_net_wake(waker->net);
  }
  return NULL;
}

void conform_wake_thread(void **state) {
  (void)state;
  const struct zps_net_config config = conform_config();
  struct conform_node node;
  pthread_t thread;
  conform_node_open(&node, &config);
  zps_net_progress(node.net);
  struct waker waker = {.net = node.net};
  assert_int_equal(pthread_create(&thread, NULL, waker_run, &waker), 0);
  const uint64_t start = zps_clock_ns();
  for (unsigned i = 1; i <= N_WAKES; i++) {
    atomic_store(&waker.asked, i);
    while (atomic_load(&waker.served) < i) {
      zps_net_wait(node.net, CONFORM_NEVER_NS);
      zps_net_progress(node.net);
    }
  }
  assert_true(zps_clock_ns() - start < CONFORM_SOON_NS);
  pthread_join(thread, NULL);
  conform_node_close(&node);
}

void conform_wake_early(void **state) {
  (void)state;
  const struct zps_net_config config = conform_config();
  struct conform_node node;
  conform_node_open(&node, &config);
  zps_net_progress(node.net);
  for (int i = 0; i < 50; i++) {
    zps_net_wake(node.net);
    zps_net_wake(node.net);
    for (int turn = 0; turn < i % 3; turn++) zps_net_progress(node.net); /* takes no wake away */
    const uint64_t start = zps_clock_ns();
    zps_net_wait(node.net, CONFORM_NEVER_NS);
    assert_true(zps_clock_ns() - start < CONFORM_SOON_NS);
  }
  conform_node_close(&node);
}

/* A wait without events ends, no earlier than by a rounding. */
void conform_wait_timeout(void **state) {
  (void)state;
  const struct zps_net_config config = conform_config();
  struct conform_node node;
  conform_node_open(&node, &config);
  while (zps_net_progress(node.net) > 0) continue;
  zps_net_wait(node.net, 0);
  const uint64_t start = zps_clock_ns();
  while (zps_clock_ns() - start < 30 * ZPS_NS_PER_MS) {
    zps_net_wait(node.net, 10 * ZPS_NS_PER_MS);
    assert_int_equal(zps_net_progress(node.net), 0);
  }
  assert_true(zps_clock_ns() - start < CONFORM_SOON_NS);
  conform_node_close(&node);
}

/* A thread that spins first sleeps no longer for that. */
void conform_wait_spins(void **state) {
  (void)state;
  struct zps_net_config config = conform_config();
  struct conform_node node;
  config.spin_us = 2000;
  conform_node_open(&node, &config);
  while (zps_net_progress(node.net) > 0) continue;
  for (uint64_t timeout_us = 1; timeout_us <= 4000; timeout_us = timeout_us * 3 / 2 + 1) {
    const uint64_t start = zps_clock_ns();
    zps_net_wait(node.net, timeout_us * 1000);
    assert_true(zps_clock_ns() - start < CONFORM_SOON_NS);
    zps_net_progress(node.net);
  }
  conform_node_close(&node);
}

static uint64_t cpu_ns(void) {
  struct rusage usage;
  getrusage(RUSAGE_THREAD, &usage); /* the suite has no say in a provider's own threads */
  return (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * ZPS_NS_PER_S +
         (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000;
}

/* The share of a core that waiting for nothing takes. */
static double idle_share(struct conform_node *node) {
  const uint64_t span_ns = 300 * ZPS_NS_PER_MS;
  const uint64_t start = zps_clock_ns(), cpu = cpu_ns();
  while (zps_clock_ns() - start < span_ns) {
    zps_net_wait(node->net, span_ns);
    zps_net_progress(node->net);
  }
  return (double)(cpu_ns() - cpu) / (double)(zps_clock_ns() - start);
}

/* The least of several spans: the time that a hypervisor takes from a running thread is counted as the thread's. An
 * endpoint that does not sleep is busy in all of them. */
void conform_assert_idle(struct conform_node *node) {
#if defined SANITIZED_THREAD || defined SANITIZED_ADDRESS
  const double slow = 4; /* Sanitized calls take several times as long. */
#else
  const double slow = 1;
#endif
  const double limit = slow * (conform_target->wakes_each_ms ? 0.05 : 0.005); /* spinning is 1 */
  double least = 1;
  for (int i = 0; i < 10 && least > limit; i++) {
    const double share = idle_share(node);
    if (share < least) least = share;
  }
  if (least > limit) fail_msg("%.2f%% of a core while idle, more than %.2f%%", least * 100, limit * 100);
}

/* A connected endpoint that has seen messages and reads uses no processor while nothing happens. */
void conform_idle_cpu(void **state) {
  (void)state;
  const struct zps_net_config config = conform_config();
  struct conform_pair pair;
  static uint8_t memory[2][4096];
  struct conform_read read;
  conform_pair_open(&pair, &config);
  struct zps_net_mem mine = conform_register(&pair.a, memory[0], sizeof memory[0]);
  struct zps_net_mem theirs = conform_register(&pair.b, memory[1], sizeof memory[1]);
  conform_send(pair.a_to_b, "there", 5, CONFORM_NODES(&pair.a, &pair.b));
  conform_send(pair.b_to_a, "back", 4, CONFORM_NODES(&pair.a, &pair.b));
  conform_read_start(&read, pair.a_to_b, memory[0], &mine, sizeof memory[0], theirs.addr, theirs.key);
  conform_until(read.n_done && pair.a.n_messages && pair.b.n_messages, &pair.a, &pair.b);
  for (int i = 0; i < 10; i++) conform_step(CONFORM_NODES(&pair.a, &pair.b)); /* the leftovers of the messages */
  conform_assert_idle(&pair.a);
  conform_pair_close(&pair);
}
