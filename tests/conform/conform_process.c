/* Peers in other processes, which hang and die. */
#include <signal.h>
#include <stdlib.h>

#include "tests/conform/conform_child.h"

enum { N_READS = 4, READ_LEN = 8 << 20 };

struct process_fixture {
  struct conform_node node;
  struct child child;
  uint8_t *target;
  struct zps_net_mem target_mem;
  struct conform_read reads[N_READS];
};

static void echo_once(struct process_fixture *fixture) {
  const unsigned before = fixture->node.n_messages;
  conform_send(fixture->child.peer, "hello", 5, CONFORM_NODES(&fixture->node));
  conform_until(fixture->node.n_messages == before + 1, &fixture->node);
}

static void fixture_open(struct process_fixture *fixture) {
  struct zps_net_config config = conform_config();
  *fixture = (struct process_fixture){0};
  config.connect_timeout_ms = 10000;
  conform_node_open(&fixture->node, &config);
  fixture->target = calloc(N_READS, READ_LEN);
  assert_non_null(fixture->target);
  fixture->target_mem = conform_register(&fixture->node, fixture->target, (size_t)N_READS * READ_LEN);
  conform_child_start(&fixture->child, &fixture->node);
  echo_once(fixture);
}

static void fixture_close(struct process_fixture *fixture) {
  conform_node_close(&fixture->node);
  free(fixture->target);
}

static void reads_start(struct process_fixture *fixture) {
  for (size_t i = 0; i < N_READS; i++)
    conform_read_start(&fixture->reads[i], fixture->child.peer, fixture->target + i * READ_LEN, &fixture->target_mem,
                       READ_LEN, fixture->child.hello.mem_addr + i * READ_LEN, fixture->child.hello.mem_key);
}

static void reads_await(struct process_fixture *fixture) {
  for (size_t i = 0; i < N_READS; i++) conform_until(fixture->reads[i].n_done, &fixture->node);
}

void conform_process_echo(void **state) {
  (void)state;
  struct process_fixture fixture;
  fixture_open(&fixture);
  for (unsigned i = 0; i < conform_scale(500); i++) echo_once(&fixture);
  reads_start(&fixture);
  reads_await(&fixture);
  for (size_t i = 0; i < N_READS; i++) {
    assert_int_equal(fixture.reads[i].code, ZPS_OK);
    assert_true(conform_check(fixture.target + i * READ_LEN, CHILD_SEED, i * READ_LEN, READ_LEN));
  }
  conform_child_end(&fixture.child);
  fixture_close(&fixture);
}

/* Where a card serves reads, their ends do not tell of the death. Messages do. */
static void send_until_lost(struct process_fixture *fixture) {
  struct patience patience = {0};
  while (fixture->node.n_errors == 0 && !patience_is_over(&patience)) {
    const zps_err_t code = zps_net_send(fixture->child.peer, "there?", 6);
    assert_true(code == ZPS_OK || code == ZPS_ERR_AGAIN || code == ZPS_ERR_PEER_LOST);
    conform_step(CONFORM_NODES(&fixture->node));
  }
}

/* The child is stopped, so that the reads cannot be through when it dies, unless a card serves them. */
void conform_process_killed_reading(void **state) {
  (void)state;
  struct process_fixture fixture;
  fixture_open(&fixture);
  conform_child_signal(&fixture.child, SIGSTOP);
  reads_start(&fixture);
  conform_step(CONFORM_NODES(&fixture.node));
  conform_child_signal(&fixture.child, SIGKILL);
  if (conform_target->silent_death) {
    zps_net_peer_evict(fixture.child.peer);
    reads_await(&fixture);
  } else {
    reads_await(&fixture);
    for (size_t i = 0; i < N_READS && !conform_target->reads_need_no_peer; i++)
      assert_int_not_equal(fixture.reads[i].code, ZPS_OK);
    if (conform_target->reads_need_no_peer) send_until_lost(&fixture);
    conform_until(fixture.node.n_errors == 1, &fixture.node);
    assert_ptr_equal(fixture.node.failed, fixture.child.peer);
    zps_net_peer_evict(fixture.child.peer);
    for (size_t i = 0; i < N_READS; i++)
      if (fixture.reads[i].code == ZPS_ERR_PEER_LOST) conform_until(fixture.reads[i].n_released, &fixture.node);
  }
  for (size_t i = 0; i < N_READS; i++) assert_int_equal(fixture.reads[i].n_done, 1);
  if (conform_target->leaks_when_stuck) conform_allow_warnings(1);
  fixture_close(&fixture);
}

void conform_process_killed_sending(void **state) {
  (void)state;
  struct process_fixture fixture;
  static const uint8_t data[CONFORM_MAX_MSG];
  fixture_open(&fixture);
  conform_child_signal(&fixture.child, SIGSTOP);
  zps_err_t code = ZPS_OK;
  for (unsigned n_again = 0; code != ZPS_ERR_PEER_LOST && n_again < 20;) { /* in a row: sockets have large buffers */
    code = zps_net_send(fixture.child.peer, data, sizeof data);
    n_again = code == ZPS_ERR_AGAIN ? n_again + 1 : 0;
    if (n_again > 0) conform_step(CONFORM_NODES(&fixture.node));
  }
  conform_child_signal(&fixture.child, SIGKILL);
  conform_until(fixture.node.n_errors == 1, &fixture.node);
  conform_expect_lost(fixture.child.peer);
  zps_net_peer_evict(fixture.child.peer);
  fixture_close(&fixture);
}

/* A peer that hangs says nothing; giving up on it and closing must not hang as well. */
void conform_process_hung_close(void **state) {
  (void)state;
  struct process_fixture fixture;
  fixture_open(&fixture);
  conform_child_signal(&fixture.child, SIGSTOP);
  reads_start(&fixture);
  conform_step(CONFORM_NODES(&fixture.node));
  zps_net_peer_evict(fixture.child.peer);
  zps_net_progress(fixture.node.net);
  for (size_t i = 0; i < N_READS; i++) assert_int_equal(fixture.reads[i].n_done, 1);
  if (conform_target->leaks_when_stuck) conform_allow_warnings(1);
  const uint64_t start = zps_clock_ns();
  conform_node_close(&fixture.node);
  assert_true(zps_clock_ns() - start < CONFORM_SOON_NS);
  for (size_t i = 0; i < N_READS; i++)
    assert_int_equal(fixture.reads[i].n_released, fixture.reads[i].code == ZPS_ERR_PEER_LOST);
  conform_child_signal(&fixture.child, SIGKILL);
  free(fixture.target);
}

/* The leftovers of a dead peer at a provider must not keep the endpoint busy. */
void conform_process_dead_idle_cpu(void **state) {
  (void)state;
  struct process_fixture fixture;
  fixture_open(&fixture);
  conform_child_signal(&fixture.child, SIGKILL);
  for (int i = 0; i < 20; i++) conform_step(CONFORM_NODES(&fixture.node));
  conform_assert_idle(&fixture.node);
  zps_net_peer_evict(fixture.child.peer);
  conform_assert_idle(&fixture.node);
  fixture_close(&fixture);
}

void conform_process_rejoin(void **state) {
  (void)state;
  struct process_fixture fixture;
  fixture_open(&fixture);
  for (unsigned i = 0; i < 2; i++) {
    conform_child_signal(&fixture.child, SIGKILL);
    zps_net_peer_evict(fixture.child.peer);
    conform_child_start(&fixture.child, &fixture.node);
    echo_once(&fixture);
    reads_start(&fixture);
    reads_await(&fixture);
    for (size_t k = 0; k < N_READS; k++) assert_int_equal(fixture.reads[k].code, ZPS_OK);
  }
  conform_child_end(&fixture.child);
  fixture_close(&fixture);
}
