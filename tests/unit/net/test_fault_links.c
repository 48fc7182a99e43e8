/* The fault injector's connections: messages out of order, and cuts. */
#include "tests/support/net_pair.h"

/* Which of the messages 0, 1, 2 and so on have arrived, and how far out of order. */
struct arrivals {
  unsigned n_early, most_ahead, lowest;
  bool has_come[1000];
};

static void note_arrival(struct end *end, const void *data, size_t len) {
  struct arrivals *const arrivals = end->ctx;
  unsigned number;
  assert_int_equal(len, sizeof number);
  memcpy(&number, data, sizeof number);
  assert_true(number < 1000 && !arrivals->has_come[number]);
  arrivals->has_come[number] = true;
  if (number > arrivals->lowest) {
    unsigned missing = 0;
    for (unsigned i = arrivals->lowest; i < number; i++) missing += !arrivals->has_come[i];
    arrivals->n_early++;
    const unsigned ahead = number - arrivals->lowest;
    if (ahead > arrivals->most_ahead) arrivals->most_ahead = ahead;
    assert_true(missing > 0);
  }
  while (arrivals->lowest < 1000 && arrivals->has_come[arrivals->lowest]) arrivals->lowest++;
}

static void test_messages_overtake_each_other(void **state) {
  (void)state;
  struct end ends[2];
  struct arrivals arrivals = {0};
  pair_open(ends, "fault+loop", "seed=4,reorder=0.1", 1000);
  ends[1].on_message = note_arrival;
  ends[1].ctx = &arrivals;
  for (unsigned i = 0; i < 999; i++) {
    assert_int_equal(zps_net_send(ends[0].peer, &i, sizeof i), ZPS_OK);
    if (i % 10 == 0) zps_net_progress(ends[1].net); /* So that some come in an earlier turn than those before them. */
  }
  TURN_UNTIL(ends, ends[1].n_messages == 999);
  assert_int_equal(arrivals.lowest, 999);
  assert_true(arrivals.n_early > 100);
  assert_in_range(arrivals.most_ahead, 16, 32 + 32); /* Those that overtake one may be held ahead of it themselves. */
  assert_int_equal(zps_net_unsent(ends[0].peer), 0);
  for (unsigned i = 0; i < 10; i++) assert_int_equal(zps_net_send(ends[0].peer, &i, sizeof i), ZPS_OK);
  zps_net_peer_evict(ends[0].peer);
  pair_close(ends);
}

static void test_a_message_that_nothing_follows_comes(void **state) {
  (void)state;
  struct end ends[2];
  pair_open(ends, "fault+loop", "reorder=1", 4);
  assert_int_equal(zps_net_send(ends[0].peer, "a", 1), ZPS_OK);
  assert_int_equal(zps_net_unsent(ends[0].peer), 1);
  TURN_UNTIL(ends, ends[1].n_messages == 1);
  pair_close(ends);
}

/* Two ends, of which the first cuts after each operation, with a registration each. */
struct cutting {
  struct end ends[2];
  uint8_t bytes[2][64];
  struct zps_net_mem mems[2];
};

static void end_reconnect(struct end *end, const struct end *to) {
  zps_net_peer_evict(end->peer);
  end_connect(end, to);
}

/* A read and a message each way are under way when the connection is cut. Returns the ends that were told, as bits. */
static unsigned cut_once(struct cutting *c) {
  const unsigned errors[2] = {c->ends[0].n_errors, c->ends[1].n_errors};
  const unsigned messages[2] = {c->ends[0].n_messages, c->ends[1].n_messages};
  struct read_record records[2];
  for (int i = 1; i >= 0; i--) { /* The operations of end 0 cut, so they are the last. */
    record_init(&records[i], &c->mems[i], &c->mems[1 - i], sizeof c->bytes[i]);
    assert_int_equal(zps_net_read(c->ends[i].peer, &records[i].read), ZPS_OK);
    assert_int_equal(zps_net_send(c->ends[i].peer, "a", 1), ZPS_OK);
  }
  TURN_UNTIL(c->ends, records[0].n_released == 1 && records[1].n_released == 1);
  while (zps_net_progress(c->ends[0].net) + zps_net_progress(c->ends[1].net) > 0) continue;
  unsigned told = 0;
  for (unsigned i = 0; i < 2; i++) {
    assert_int_equal(records[i].code, ZPS_ERR_PEER_LOST);
    assert_int_equal(c->ends[i].n_messages, messages[i]);
    if (c->ends[i].n_errors > errors[i]) told |= 1u << i;
  }
  return told;
}

/* An end that was told connects again at once. The handle of one that was not goes on. */
static void test_a_cut_loses_what_is_under_way_both_ways(void **state) {
  (void)state;
  struct cutting c;
  bool seen[4] = {false};
  for (unsigned i = 0; i < 2; i++) end_open(&c.ends[i], "fault+loop", i == 0 ? "seed=3,cut=1" : NULL, 4);
  for (unsigned i = 0; i < 2; i++) {
    end_connect(&c.ends[i], &c.ends[1 - i]);
    c.mems[i] = end_register(&c.ends[i], c.bytes[i], sizeof c.bytes[i]);
  }
  for (unsigned n = 0; n < 64; n++) {
    const unsigned told = cut_once(&c);
    seen[told] = true;
    if (told & 1) end_reconnect(&c.ends[0], &c.ends[1]);
    if (told & 2) {
      assert_int_equal(zps_net_send(c.ends[1].peer, "b", 1), ZPS_ERR_PEER_LOST);
      end_reconnect(&c.ends[1], &c.ends[0]);
    }
    assert_int_equal(zps_net_send(c.ends[1].peer, "b", 1), ZPS_OK);
    const unsigned before = c.ends[0].n_messages;
    TURN_UNTIL(c.ends, c.ends[0].n_messages == before + 1);
  }
  assert_true(seen[0] && seen[1] && seen[2] && seen[3]);
  pair_close(c.ends);
}

static void test_connections_are_cut_again_and_again(void **state) {
  (void)state;
  struct end ends[2];
  pair_open(ends, "fault+loop", "seed=5,cut=1ms", 64);
  struct patience patience = {0};
  while (ends[0].n_errors < 20 || ends[1].n_errors < 20) {
    if (patience_is_over(&patience)) fail_msg("%u and %u cuts", ends[0].n_errors, ends[1].n_errors);
    for (unsigned i = 0; i < 2; i++) {
      if (zps_net_send(ends[i].peer, "a", 1) == ZPS_ERR_PEER_LOST) end_reconnect(&ends[i], &ends[1 - i]);
      if (zps_net_progress(ends[i].net) == 0) zps_net_wait(ends[i].net, ZPS_NS_PER_S); /* A cut wakes it. */
    }
  }
  assert_true(ends[0].n_messages > 0 && ends[1].n_messages > 0);
  pair_close(ends);
}

/* Counts the gaps in what comes. */
struct gaps {
  unsigned next, n_gaps;
};

static void note_gap(struct end *end, const void *data, size_t len) {
  struct gaps *const gaps = end->ctx;
  unsigned number;
  assert_int_equal(len, sizeof number);
  memcpy(&number, data, sizeof number);
  gaps->n_gaps += number > gaps->next;
  gaps->next = number + 1;
}

/* What the end sends goes to the stranger, until that one leaves. */
static void test_a_claim_takes_what_is_sent(void **state) {
  (void)state;
  struct end ends[2];
  pair_open(ends, "fault+loop", "seed=1,claim=0.02", 1000);
  unsigned sent = 0, told = 0;
  struct patience patience = {0};
  while (told < 3) {
    if (patience_is_over(&patience)) fail_msg("%u claims", told);
    assert_int_equal(zps_net_send(ends[0].peer, "a", 1), ZPS_OK); /* it is never told */
    sent++;
    if (zps_net_progress(ends[0].net) + zps_net_progress(ends[1].net) == 0) zps_net_wait(ends[0].net, ZPS_NS_PER_MS);
    if (ends[1].n_errors == told) continue;
    told = ends[1].n_errors;
    end_reconnect(&ends[1], &ends[0]);
  }
  assert_int_equal(ends[0].n_errors, 0);
  assert_in_range(ends[1].n_messages, 1, sent - 3);
  pair_close(ends);
}

/* Over sockets: each cut may lose messages, and the ends connect again. The cuts follow sends, not the time: on a busy
 * machine it may take longer to connect than from one cut to the next. */
static void test_sockets_are_cut(void **state) {
  (void)state;
  struct end ends[2];
  struct patience patience = {0};
  struct gaps gaps[2] = {{0}};
  unsigned sent[2] = {0};
  pair_open(ends, "fault+net", "seed=6,cut=0.01", 64);
  for (unsigned i = 0; i < 2; i++) {
    ends[i].on_message = note_gap;
    ends[i].ctx = &gaps[i];
  }
  while (gaps[0].n_gaps + gaps[1].n_gaps < 3) {
    if (patience_is_over(&patience)) fail_msg("%u messages, %u gaps", sent[0], gaps[0].n_gaps + gaps[1].n_gaps);
    for (unsigned i = 0; i < 2; i++) {
      const zps_err_t code = zps_net_send(ends[i].peer, &sent[i], sizeof sent[i]);
      if (code == ZPS_OK) sent[i]++;
      if (code == ZPS_ERR_PEER_LOST) end_reconnect(&ends[i], &ends[1 - i]);
      zps_net_progress(ends[i].net);
    }
  }
  pair_close(ends);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_messages_overtake_each_other),
      cmocka_unit_test(test_a_message_that_nothing_follows_comes),
      cmocka_unit_test(test_a_cut_loses_what_is_under_way_both_ways),
      cmocka_unit_test(test_connections_are_cut_again_and_again),
      cmocka_unit_test(test_a_claim_takes_what_is_sent),
      cmocka_unit_test(test_sockets_are_cut),
  };
  return cmocka_run_group_tests_name("fault_links", tests, NULL, NULL);
}
