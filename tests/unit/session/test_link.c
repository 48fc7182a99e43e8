/* Credits, sequence and queueing of links, over the in-process fabric, driven step by step. */
#include "tests/unit/session/linked.h"

#include "common/base/rng.h"
#include "common/session/mac.h"
#include "tests/support/oom.h"
#include "tests/support/patience.h"

static void test_one_way_stream_lives_on_credit_frames(void **state) {
  (void)state;
  struct linked linked;
  linked_open(&linked, "loop", NULL);
  for (unsigned i = 0; i < 5000; i++) {
    assert_int_equal(send_done(&linked, 0, i), ZPS_OK);
    turn(&linked);
  }
  while (turn(&linked) > 0) continue;
  assert_int_equal(linked.n_done[1], 5000);
  assert_in_range(linked.n_credit[0], 5000 / ZPS_LINK_CREDITS, 2 * 5000 / ZPS_LINK_CREDITS + 1);
  assert_int_equal(linked.n_credit[1], 0); /* credits spent on CREDIT frames go back with frames that are sent anyway */
  linked_close(&linked);
}

static void test_frames_wait_for_credit(void **state) {
  (void)state;
  struct linked linked;
  linked_open(&linked, "loop", NULL);
  for (unsigned i = 0; i < ZPS_LINK_CREDITS + ZPS_LINK_QUEUE_MAX; i++)
    assert_int_equal(send_done(&linked, 0, i), ZPS_OK);
  assert_int_equal(send_done(&linked, 0, 0), ZPS_ERR_AGAIN);
  zps_link_progress(linked.links[0]);
  while (zps_net_progress(linked.ends[1].net) > 0) continue;
  assert_int_equal(linked.n_done[1], ZPS_LINK_CREDITS);
  while (turn(&linked) > 0) continue;
  assert_int_equal(linked.n_done[1], ZPS_LINK_CREDITS + ZPS_LINK_QUEUE_MAX);
  linked_close(&linked);
}

/* Frames sent in one turn leave as one message, or as few messages as hold them. */
static void test_frames_of_a_turn_leave_together(void **state) {
  (void)state;
  struct linked linked;
  uint8_t payload[2000] = {0};
  linked_open(&linked, "loop", NULL);
  const struct zps_net_counters *const counters = zps_net_counters(linked.ends[0].net);
  for (unsigned i = 0; i < 20; i++) assert_int_equal(send_done(&linked, 0, i), ZPS_OK);
  assert_int_equal(counters->msgs_sent, 0);
  while (turn(&linked) > 0) continue;
  assert_int_equal(counters->msgs_sent, 1);
  assert_int_equal(counters->msg_bytes_sent, 1 + 20 * (1 + ZPS_WIRE_LONG_BYTES + 2) + ZPS_WIRE_MAC_BYTES);
  assert_int_equal(linked.n_done[1], 20);
  struct zps_frame frame = {.header.type = ZPS_FRAME_PUSH, .u.round = {.n_slices = 1}};
  frame.u.round.slices[0] = (struct zps_slice){.is_inline = true, .len_bytes = sizeof payload, .data = payload};
  for (unsigned i = 0; i < 10; i++) {
    assert_int_equal(zps_link_send(linked.links[0], &frame), ZPS_OK);
    assert_int_equal(counters->msgs_sent, i < 8 ? 1 : 2);
  }
  zps_link_progress(linked.links[0]);
  assert_int_equal(counters->msgs_sent, 3);
  while (turn(&linked) > 0) continue;
  assert_int_equal(linked.n_push, 10);
  linked_close(&linked);
}

static struct {
  unsigned n;
  uint64_t addr, key, len, n_left; /* n_left: messages that had left by then */
} offers;

/* The linker puts it in the place of zps_net_offer(). */
void __wrap_zps_net_offer(struct zps_net_peer *peer, uint64_t addr, uint64_t key, uint64_t len);
void __wrap_zps_net_offer(struct zps_net_peer *peer, uint64_t addr, uint64_t key, uint64_t len) {
  const struct end *const end = zps_net_peer_ctx(peer);
  offers.n++;
  offers.addr = addr;
  offers.key = key;
  offers.len = len;
  offers.n_left = zps_net_counters(end->net)->msgs_sent;
}

/* Each payload that the peer is to read is offered before its announcement leaves, and once where the link is full. */
static void test_remote_payloads_are_offered(void **state) {
  (void)state;
  static const uint8_t types[] = {ZPS_FRAME_PUSH, ZPS_FRAME_RESULT, ZPS_FRAME_PEER, ZPS_FRAME_GIVE, ZPS_FRAME_FOUND};
  struct linked linked;
  const uint8_t payload[8] = {0};
  linked_open(&linked, "loop", NULL);
  memset(&offers, 0, sizeof offers);
  for (unsigned i = 0; i < sizeof types; i++) {
    struct zps_frame frame = {.header.type = types[i], .u.round = {.n_slices = 2}};
    frame.u.round.slices[0] = (struct zps_slice){.is_inline = true, .len_bytes = sizeof payload, .data = payload};
    frame.u.round.slices[1] = (struct zps_slice){.partition = 1, .len_bytes = 100000 + i, .addr = 64 + i, .key = 7 + i};
    assert_int_equal(zps_link_send(linked.links[0], &frame), ZPS_OK);
    assert_int_equal(offers.n, i + 1);
    assert_int_equal(offers.addr, 64 + i);
    assert_int_equal(offers.key, 7 + i);
    assert_int_equal(offers.len, 100000 + i);
    assert_int_equal(offers.n_left, 0);
  }
  for (unsigned i = 0; send_done(&linked, 0, i) == ZPS_OK; i++) continue;
  struct zps_frame frame = {.header.type = ZPS_FRAME_PUSH, .u.round = {.n_slices = 1}};
  frame.u.round.slices[0] = (struct zps_slice){.len_bytes = 100000};
  assert_int_equal(zps_link_send(linked.links[0], &frame), ZPS_ERR_AGAIN);
  assert_int_equal(offers.n, sizeof types);
  linked_close(&linked);
}

/* Bytes of an offer may leave at once, so a frame that waits for credit has none yet. */
static void test_a_frame_without_credit_is_offered_when_it_leaves(void **state) {
  (void)state;
  struct linked linked;
  linked_open(&linked, "loop", NULL);
  memset(&offers, 0, sizeof offers);
  for (unsigned i = 0; i < ZPS_LINK_CREDITS; i++) assert_int_equal(send_done(&linked, 0, i), ZPS_OK);
  struct zps_frame frame = {.header.type = ZPS_FRAME_PUSH, .u.round = {.n_slices = 1}};
  frame.u.round.slices[0] = (struct zps_slice){.len_bytes = 100000, .addr = 64, .key = 7};
  assert_int_equal(zps_link_send(linked.links[0], &frame), ZPS_OK);
  zps_link_progress(linked.links[0]);
  assert_int_equal(offers.n, 0);
  while (turn(&linked) > 0) continue;
  assert_int_equal(linked.n_push, 1);
  assert_int_equal(offers.n, 1);
  assert_true(offers.addr == 64 && offers.key == 7 && offers.len == 100000);
  assert_int_equal(offers.n_left, 1);
  linked_close(&linked);
}

static void test_full_ends_do_not_lock_up(void **state) {
  (void)state;
  struct linked linked;
  linked_open(&linked, "loop", NULL);
  /* Both ends spend all their credit before either looks at its received frames. */
  for (unsigned i = 0; i < 500; i++)
    for (int from = 0; from < 2; from++) assert_int_equal(send_done(&linked, from, i), ZPS_OK);
  while (turn(&linked) > 0) continue;
  for (int i = 0; i < 2; i++) assert_int_equal(linked.n_done[i], 500);
  linked_close(&linked);
}

static void exchange_at_random(const char *provider, const char *fault, uint64_t seed) {
  struct linked linked;
  struct zps_rng rng = {.state = seed};
  unsigned sent[2] = {0, 0};
  const unsigned total[2] = {1000 + (unsigned)zps_rng_below(&rng, 1000), (unsigned)zps_rng_below(&rng, 2000)};
  struct patience patience = {0};
  linked_open(&linked, provider, fault);
  while (linked.n_done[1] < total[0] || linked.n_done[0] < total[1]) {
    if (patience_is_over_at(&patience, linked.n_done[0] + linked.n_done[1]))
      fail_msg("seed %llu: stuck", (unsigned long long)seed);
    const int i = (int)zps_rng_below(&rng, 2);
    switch (zps_rng_below(&rng, 4)) {
      case 0:
        for (uint64_t n = zps_rng_below(&rng, 60); n > 0 && sent[i] < total[i]; n--)
          assert_int_equal(send_done(&linked, i, sent[i]++), ZPS_OK);
        break;
      case 1:
        zps_link_progress(linked.links[i]);
        break;
      default:
        zps_net_progress(linked.ends[i].net);
    }
  }
  linked_close(&linked);
}

static void test_random_traffic(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 30; seed++) exchange_at_random("loop", NULL, seed);
}

static void test_random_traffic_under_push_back_and_delay(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 3; seed++) exchange_at_random("fault+loop", "again=0.2,delay=0.002:100us", seed);
}

static void test_broken_streams_are_refused(void **state) {
  (void)state;
  struct linked linked;
  struct zps_error error;
  linked_open(&linked, "loop", NULL);
  struct zps_link *link = linked.links[0];
  struct zps_frame_header header = {.type = ZPS_FRAME_DONE, .job = JOB, .epoch = EPOCH, .src = 1};
  header.seq = 1;
  assert_int_equal(zps_link_received(link, &header, &error), ZPS_ERR_PROTOCOL);
  assert_non_null(strstr(error.text, "sequence number 1: 0 was expected"));
  header.seq = 0;
  header.job = JOB + 1;
  assert_int_equal(zps_link_received(link, &header, &error), ZPS_ERR_PROTOCOL);
  header.job = JOB;
  header.credits = 1; /* nothing was sent that could be returned */
  assert_int_equal(zps_link_received(link, &header, &error), ZPS_ERR_PROTOCOL);
  assert_non_null(strstr(error.text, "returns 1 credits"));
  header.credits = 0;
  header.epoch = EPOCH + 1; /* another life of the peer: its sequence says nothing */
  header.seq = 17;
  assert_int_equal(zps_link_received(link, &header, &error), ZPS_ERR_STALE);
  header.seq = 0;
  assert_int_equal(zps_link_received(link, &header, &error), ZPS_ERR_STALE);
  zps_link_set_epoch(link, EPOCH + 1);
  for (header.seq = 1; header.seq <= ZPS_LINK_CREDITS; header.seq++)
    assert_int_equal(zps_link_received(link, &header, &error), ZPS_OK);
  assert_int_equal(zps_link_received(link, &header, &error), ZPS_ERR_PROTOCOL);
  assert_non_null(strstr(error.text, "without credit"));
  linked_close(&linked);
}

/* The last message that came to an end, and what its link says of it and of what can be made of it. */
static uint8_t heard[ZPS_WIRE_MESSAGE_MAX];
static size_t heard_len;

static void on_heard(struct end *end, const void *data, size_t len) {
  memcpy(heard, data, len);
  heard_len = len;
  on_message(end, data, len);
}

static bool vouches(struct zps_link *link, size_t len) {
  struct zps_frame_header header;
  if (zps_wire_header(heard, len, &header, NULL) != ZPS_OK) return false;
  return zps_link_take(link, &header, heard, len) == ZPS_LINK_READY;
}

/* A link like that of end 1, but for what `ends` says. */
static bool other_vouches(struct linked *linked, const struct zps_link_ends *ends) {
  struct zps_link *link;
  assert_int_equal(zps_link_create(linked->ends[1].net, linked->ends[1].peer, ends, &link), ZPS_OK);
  const bool does = vouches(link, heard_len);
  zps_link_destroy(link);
  return does;
}

static void test_only_the_other_end_is_believed(void **state) {
  (void)state;
  struct linked linked;
  linked_open(&linked, "loop", NULL);
  linked.ends[1].on_message = on_heard;
  for (unsigned i = 0; i < 300; i++) { /* the first with a long header, and 256 apart the same bytes but for the MAC */
    assert_int_equal(send_done(&linked, 0, i), ZPS_OK);
    if (i == 0) assert_int_equal(send_done(&linked, 1, 0), ZPS_OK);
    zps_link_progress(linked.links[0]);
    zps_net_progress(linked.ends[1].net);
    assert_int_equal(linked.n_done[1], i + 1);
    assert_false(vouches(linked.links[1], heard_len)); /* again */
    while (turn(&linked) > 0) continue;
  }
  linked_close(&linked);
}

static void test_each_byte_counts(void **state) {
  (void)state;
  struct linked linked;
  linked_open(&linked, "loop", NULL);
  linked.ends[1].on_message = on_heard;
  assert_int_equal(send_done(&linked, 0, 0), ZPS_OK);
  zps_link_progress(linked.links[0]);
  zps_net_progress(linked.ends[1].net);
  struct zps_link_ends ends = linked_ends(1);
  assert_true(other_vouches(&linked, &ends)); /* one that has not had it yet */
  for (size_t at = 0; at < heard_len; at++) {
    heard[at] ^= 1;
    assert_false(other_vouches(&linked, &ends));
    heard[at] ^= 1;
  }
  struct zps_link *fresh;
  assert_int_equal(zps_link_create(linked.ends[1].net, linked.ends[1].peer, &ends, &fresh), ZPS_OK);
  for (size_t len = 0; len < heard_len; len++) assert_false(vouches(fresh, len));
  assert_true(vouches(fresh, heard_len));
  zps_link_destroy(fresh);
  static const struct zps_secret wrong = {"another secret.."};
  ends.secret = &wrong;
  assert_false(other_vouches(&linked, &ends));
  ends = linked_ends(1);
  ends.job++;
  assert_false(other_vouches(&linked, &ends));
  ends = linked_ends(1);
  ends.other = 2;
  assert_false(other_vouches(&linked, &ends));
  ends = linked_ends(1);
  ends.server = "another's address.";
  assert_false(other_vouches(&linked, &ends)); /* it has the other's place, and has heard nothing yet */
  ends = linked_ends(1);
  ends.since = 1;
  assert_false(other_vouches(&linked, &ends)); /* the address alone does not vouch for this one */
  ends.server_len = 0;
  assert_false(other_vouches(&linked, &ends));
  ends = linked_ends(0); /* sent back */
  assert_false(other_vouches(&linked, &ends));
  linked_close(&linked);
}

/* An end whose OpenSSL has no Poly1305 makes the same MACs. */
static void test_both_libraries_make_the_same_mac(void **state) {
  (void)state;
  static uint8_t message[3000];
  const struct zps_secret secret = {.bytes = {1, 2, 3}};
  struct zps_mac_key key;
  assert_int_equal(zps_mac_key_derive(&secret, &(struct zps_mac_link){.job = 5, .from = 1, .to = 2}, &key), ZPS_OK);
  struct zps_mac_key without = key;
  without.hash = NULL;
  assert_non_null(key.hash);
  for (size_t i = 0; i < sizeof message; i++) message[i] = (uint8_t)(i * 7 + i / 256);
  for (size_t len = 0; len <= sizeof message; len += 1 + len / 40) {
    uint8_t mac[2][ZPS_WIRE_MAC_BYTES];
    zps_mac_make(&key, message, len, 77, mac[0]);
    zps_mac_make(&without, message, len, 77, mac[1]);
    assert_memory_equal(mac[0], mac[1], ZPS_WIRE_MAC_BYTES);
    assert_false(zps_mac_is_right(&key, message, len, 78, mac[0]));
  }
  zps_mac_key_fini(&key);
}

static void test_short_headers_follow_long_ones(void **state) {
  (void)state;
  struct linked linked;
  struct zps_error error;
  linked_open(&linked, "loop", NULL);
  struct zps_link *link = linked.links[0];
  struct zps_frame_header early = {.type = ZPS_FRAME_DONE, .is_short = true, .tag = 500};
  assert_int_equal(zps_link_received(link, &early, &error), ZPS_ERR_PROTOCOL);
  assert_non_null(strstr(error.text, "a long one must come before it"));
  /* Long until the other end has said its tag; then short, until the epoch changes. */
  for (unsigned i = 0; i < 2; i++)
    assert_int_equal(send_now(&linked, 0, i), ZPS_WIRE_LONG_BYTES + 2 + ZPS_WIRE_MAC_BYTES);
  assert_int_equal(send_done(&linked, 1, 0), ZPS_OK);
  while (turn(&linked) > 0) continue;
  for (unsigned i = 2; i < 600; i++) { /* the sequence's low byte goes round */
    assert_int_equal(send_now(&linked, 0, i),
                     ZPS_WIRE_SHORT_BYTES + 1 + (i < 128 ? 2 : 3) + ZPS_WIRE_MAC_BYTES); /* tags here take two bytes */
    while (turn(&linked) > 0) continue;
  }
  assert_int_equal(linked.n_done[1], 600);
  for (int i = 0; i < 2; i++) zps_link_set_epoch(linked.links[i], EPOCH + 1);
  assert_int_equal(send_now(&linked, 0, 600), ZPS_WIRE_LONG_BYTES + 3 + ZPS_WIRE_MAC_BYTES);
  while (turn(&linked) > 0) continue;
  assert_int_equal(linked.n_done[1], 601);
  zps_link_set_epoch(linked.links[1], EPOCH + 2); /* short ones live in the epoch of the long one before */
  assert_int_equal(send_done(&linked, 0, 601), ZPS_OK);
  while (turn(&linked) > 0) continue;
  assert_int_equal(linked.code[1], ZPS_ERR_STALE);
  linked.code[1] = ZPS_OK;
  linked_close(&linked);
}

/* Either end switches first, with frames on their way and in queues: what was sent in the old epoch is dropped by an
 * end that has switched, all that follows arrives in order, and no credit is lost. */
static void test_epochs_change_with_frames_under_way(void **state) {
  (void)state;
  enum { BEFORE = 60, AFTER = 10 };
  struct linked linked;
  uint32_t epoch = EPOCH;
  linked_open(&linked, "loop", NULL);
  for (unsigned round = 0; round < 60; round++) {
    const int first = (int)(round % 2);
    linked.n_done[0] = linked.n_done[1] = 0;
    for (unsigned i = 0; i < BEFORE; i++)
      for (int end = 0; end < 2; end++) assert_int_equal(send_done(&linked, end, i), ZPS_OK);
    for (unsigned i = 0; i < round % 3; i++) turn(&linked);
    zps_link_set_epoch(linked.links[first], ++epoch);
    for (unsigned i = 0; i < round % 5; i++) turn(&linked);
    assert_true(linked.n_done[1 - first] <= BEFORE);
    zps_link_set_epoch(linked.links[1 - first], epoch);
    linked.n_done[0] = linked.n_done[1] = 0;
    for (unsigned i = 0; i < AFTER; i++)
      for (int end = 0; end < 2; end++) assert_int_equal(send_done(&linked, end, i), ZPS_OK);
    while (turn(&linked) > 0) continue;
    for (int end = 0; end < 2; end++) {
      assert_int_equal(linked.n_done[end], AFTER);
      assert_true(linked.code[end] == ZPS_OK || linked.code[end] == ZPS_ERR_STALE);
      linked.code[end] = ZPS_OK;
    }
  }
  linked_close(&linked);
}

/* The peer says something at once, once for each question, also where frames came before; where there is no credit for
 * a question the peer owes some, and what it is told then is no longer than else. */
static void test_a_peer_is_asked_for_a_sign(void **state) {
  (void)state;
  struct linked linked;
  linked_open(&linked, "loop", NULL);
  for (unsigned i = 1; i <= 100; i++) {
    zps_link_ask(linked.links[0]);
    zps_link_ask(linked.links[0]);
    zps_link_progress(linked.links[0]);
    while (turn(&linked) > 0) continue;
    assert_int_equal(linked.n_credit[0], i);
    assert_int_equal(linked.n_credit[1], i);
    if (i % 10 == 0) assert_int_equal(send_done(&linked, 0, i / 10 - 1), ZPS_OK);
    if (i % 25 == 0) assert_int_equal(send_done(&linked, 1, i / 25 - 1), ZPS_OK);
  }
  while (turn(&linked) > 0) continue;
  assert_int_equal(linked.n_done[1], 10);
  assert_int_equal(linked.n_done[0], 4);
  for (unsigned i = 0; i < 2 * ZPS_LINK_CREDITS; i++) assert_int_equal(send_done(&linked, 0, 10 + i), ZPS_OK);
  zps_link_ask(linked.links[0]);
  while (turn(&linked) > 0) continue;
  assert_int_equal(linked.n_done[1], 10 + 2 * ZPS_LINK_CREDITS);
  linked_close(&linked);
}

/* What was sent up to a mark the peer has taken when it says so, and it does when it is asked; frames that wait for
 * credit have no mark. */
static void test_marks(void **state) {
  (void)state;
  struct linked linked;
  uint32_t mark;
  linked_open(&linked, "loop", NULL);
  const struct zps_link *const link = linked.links[0];
  for (unsigned i = 0; i < 100; i++) {
    const unsigned n = i % 10 == 9 ? 2 * ZPS_LINK_CREDITS : 1 + i % 5;
    for (unsigned k = 0; k < n; k++) assert_int_equal(send_done(&linked, 0, linked.n_done[1] + k), ZPS_OK);
    assert_int_equal(zps_link_mark(link, &mark), n <= ZPS_LINK_CREDITS);
    if (n > ZPS_LINK_CREDITS) {
      while (turn(&linked) > 0) continue;
      assert_true(zps_link_mark(link, &mark));
    } else {
      zps_link_progress(linked.links[0]);
      assert_false(zps_link_has_taken(link, mark));
    }
    zps_link_ask(linked.links[0]);
    while (turn(&linked) > 0) continue;
    assert_true(zps_link_has_taken(link, mark));
    assert_false(zps_link_has_taken(link, mark + 2)); /* the question is one more */
  }
  linked_close(&linked);
}

static void test_what_is_no_frame_is_refused(void **state) {
  (void)state;
  struct linked linked;
  linked_open(&linked, "loop", NULL);
  struct zps_frame frame = {.header.type = ZPS_FRAME_PUSH, .u.round.n_slices = ZPS_WIRE_SLICES_MAX + 1};
  assert_int_equal(zps_link_send(linked.links[0], &frame), ZPS_ERR_INVALID);
  assert_int_equal(send_done(&linked, 0, 0), ZPS_OK);
  while (turn(&linked) > 0) continue;
  assert_int_equal(linked.n_done[1], 1);
  linked_close(&linked);
}

static zps_err_t sweep_create(void *ctx) {
  struct linked *linked = ctx;
  const struct zps_link_ends ends = linked_ends(0);
  return zps_link_create(linked->ends[0].net, linked->ends[0].peer, &ends, &linked->links[0]);
}

static void sweep_destroy(void *ctx) {
  struct linked *linked = ctx;
  zps_link_destroy(linked->links[0]);
}

static void end_nothing(void *ctx) {
  (void)ctx;
}

static zps_err_t sweep_queue(void *ctx) {
  return send_done(ctx, 0, ZPS_LINK_CREDITS);
}

static void test_out_of_memory(void **state) {
  (void)state;
  struct linked linked = {0};
  pair_open(linked.ends, "loop", NULL, 0);
  oom_sweep(sweep_create, sweep_destroy, &linked, 1);
  pair_close(linked.ends);
  linked_open(&linked, "loop", NULL);
  for (unsigned i = 0; i < ZPS_LINK_CREDITS; i++) assert_int_equal(send_done(&linked, 0, i), ZPS_OK);
  oom_sweep(sweep_queue, end_nothing, &linked, 1);
  while (turn(&linked) > 0) continue;
  assert_int_equal(linked.n_done[1], ZPS_LINK_CREDITS + 1); /* only the frames that were taken were sent */
  linked_close(&linked);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_one_way_stream_lives_on_credit_frames),
      cmocka_unit_test(test_frames_wait_for_credit),
      cmocka_unit_test(test_frames_of_a_turn_leave_together),
      cmocka_unit_test(test_remote_payloads_are_offered),
      cmocka_unit_test(test_a_frame_without_credit_is_offered_when_it_leaves),
      cmocka_unit_test(test_full_ends_do_not_lock_up),
      cmocka_unit_test(test_random_traffic),
      cmocka_unit_test(test_random_traffic_under_push_back_and_delay),
      cmocka_unit_test(test_broken_streams_are_refused),
      cmocka_unit_test(test_only_the_other_end_is_believed),
      cmocka_unit_test(test_each_byte_counts),
      cmocka_unit_test(test_both_libraries_make_the_same_mac),
      cmocka_unit_test(test_short_headers_follow_long_ones),
      cmocka_unit_test(test_epochs_change_with_frames_under_way),
      cmocka_unit_test(test_a_peer_is_asked_for_a_sign),
      cmocka_unit_test(test_marks),
      cmocka_unit_test(test_what_is_no_frame_is_refused),
      cmocka_unit_test(test_out_of_memory),
  };
  return cmocka_run_group_tests_name("link", tests, NULL, NULL);
}
