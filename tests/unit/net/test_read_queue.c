/* Turns of peers: by their flows' weights, and round the peers of each. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/net/read_queue.h"

enum { PEERS = 12, PIECE = 1000 };

/* Peers that read for ever, but for those that may not. */
struct peers {
  struct zps_read_queue turns;
  struct zps_read_flow flows[3];
  struct zps_read_turn peers[PEERS];
  bool may_not[PEERS];
  unsigned n_read[PEERS], n_of_flow[3];
};

static void peers_init(struct peers *peers, const uint32_t *weights) {
  *peers = (struct peers){.turns.now = 0};
  for (unsigned i = 0; i < 3; i++) peers->flows[i].weight = weights[i];
}

static void add(struct peers *peers, unsigned flow, unsigned from, unsigned to) {
  for (unsigned i = from; i < to; i++) {
    peers->peers[i].flow = &peers->flows[flow];
    zps_read_queue_add(&peers->turns, &peers->peers[i]);
  }
}

static bool may(void *ctx, const struct zps_read_turn *turn) {
  const struct peers *const peers = ctx;
  return !peers->may_not[turn - peers->peers];
}

static void read_pieces(struct peers *peers, unsigned n) {
  for (; n > 0; n--) {
    struct zps_read_turn *const turn = zps_read_queue_next(&peers->turns, may, peers);
    assert_non_null(turn);
    assert_ptr_equal(zps_read_queue_next(&peers->turns, may, peers), turn); /* until it was taken */
    zps_read_queue_take(&peers->turns, turn, PIECE);
    peers->n_read[turn - peers->peers]++;
    peers->n_of_flow[turn->flow - peers->flows]++;
  }
}

static void flows_have_turns_by_weight_and_peers_go_round(void **state) {
  (void)state;
  struct peers peers;
  peers_init(&peers, (uint32_t[]){1, 1, 2});
  add(&peers, 0, 0, 8); /* of many peers, which give it no more */
  add(&peers, 1, 8, 9);
  add(&peers, 2, 9, 12);
  read_pieces(&peers, 4 * 24);
  assert_int_equal(peers.n_of_flow[0], 24);
  assert_int_equal(peers.n_of_flow[1], 24);
  assert_int_equal(peers.n_of_flow[2], 48);
  for (unsigned i = 0; i < 8; i++) assert_int_equal(peers.n_read[i], 3);
  for (unsigned i = 9; i < 12; i++) assert_int_equal(peers.n_read[i], 16);
}

static void who_was_idle_has_saved_nothing_up(void **state) {
  (void)state;
  struct peers peers;
  peers_init(&peers, (uint32_t[]){1, 1, 1});
  add(&peers, 0, 0, 2);
  add(&peers, 1, 2, 3);
  read_pieces(&peers, 10);
  zps_read_queue_remove(&peers.turns, &peers.peers[2]);
  zps_read_queue_remove(&peers.turns, &peers.peers[2]); /* again: nothing to do */
  read_pieces(&peers, 50);
  add(&peers, 1, 2, 3);
  peers.n_of_flow[0] = peers.n_of_flow[1] = 0;
  read_pieces(&peers, 10);
  assert_in_range(peers.n_of_flow[1], 5, 6);
}

/* Flows and peers that cannot go on at the moment are passed over, and catch nothing up. */
static void who_may_not_is_passed_over(void **state) {
  (void)state;
  struct peers peers;
  peers_init(&peers, (uint32_t[]){1, 1, 1});
  add(&peers, 0, 0, 3);
  add(&peers, 1, 3, 4);
  peers.may_not[0] = peers.may_not[2] = peers.may_not[3] = true;
  read_pieces(&peers, 20);
  assert_int_equal(peers.n_read[1], 20);
  peers.may_not[1] = true;
  assert_null(zps_read_queue_next(&peers.turns, may, &peers));
  peers.may_not[1] = peers.may_not[2] = peers.may_not[3] = false;
  read_pieces(&peers, 20);
  assert_in_range(peers.n_read[3], 10, 11);
  assert_in_range(peers.n_read[2], 4, 5);
  for (unsigned i = 0; i < 4; i++) zps_read_queue_remove(&peers.turns, &peers.peers[i]);
  assert_null(zps_read_queue_next(&peers.turns, may, &peers));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(flows_have_turns_by_weight_and_peers_go_round),
      cmocka_unit_test(who_was_idle_has_saved_nothing_up),
      cmocka_unit_test(who_may_not_is_passed_over),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
