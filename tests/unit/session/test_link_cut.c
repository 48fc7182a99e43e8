/* Links whose connections end, are taken over, or bring messages late, twice or in another order. */
#include "tests/support/patience.h"
#include "tests/unit/session/network.h"

static void test_what_a_connection_lost_comes_over_the_next(void **state) {
  (void)state;
  for (int cut = 1; cut < 4; cut++) { /* seen by one end, the other, both */
    struct linked *const linked = network_open(1);
    for (unsigned i = 0; i < 5; i++) send_now(linked, 0, i);
    linked_settle(linked);
    network.is_down = true;
    for (unsigned i = 5; i < 20; i++) send_now(linked, 0, i);
    for (unsigned i = 0; i < 7; i++) send_now(linked, 1, i);
    linked_settle(linked);
    assert_int_equal(linked->n_done[1], 5);
    network.is_down = false;
    for (int i = 0; i < 2; i++)
      if (cut & (1 << i)) assert_true(zps_link_cut(linked->links[i]));
    linked_settle(linked);
    assert_int_equal(linked->n_done[1], 20);
    assert_int_equal(linked->n_done[0], 7);
    for (unsigned i = 20; i < 200; i++) send_now(linked, 0, i), linked_settle(linked);
    assert_int_equal(linked->n_done[1], 200);
    assert_int_equal(linked->counts[0].reconnects + linked->counts[1].reconnects, cut == 3 ? 2 : 1);
    network_close();
  }
}

/* A stranger took the connection over: neither end is told. */
static void test_what_vanished_in_silence_is_asked_for(void **state) {
  (void)state;
  struct linked *const linked = network_open_begun();
  network_lose(linked, 1, 3);
  linked_pass(linked, 90 * ZPS_NS_PER_MS);
  assert_int_equal(linked->n_done[1], 1);
  linked_pass(linked, 20 * ZPS_NS_PER_MS);
  assert_int_equal(linked->n_done[1], 4);
  assert_int_equal(linked->counts[0].resent, 3);
  assert_int_equal(linked->counts[0].reconnects, 0);
  linked_pass(linked, 2 * ZPS_NS_PER_S); /* all is confirmed now: there is nothing to ask for */
  const uint64_t sent = zps_net_counters(linked->ends[0].net)->msgs_sent;
  linked_pass(linked, 10 * ZPS_NS_PER_S);
  assert_int_equal(zps_net_counters(linked->ends[0].net)->msgs_sent, sent);
  network_close();
}

/* One message vanishes, and the other end goes on talking: that it lives does not say that it has all. */
static void test_what_vanished_is_asked_for_among_others(void **state) {
  (void)state;
  struct linked *const linked = network_open_begun();
  network_lose(linked, 1, 1);
  for (unsigned i = 0; i < 30 && linked->n_done[1] < 2; i++) {
    send_now(linked, 1, i);
    linked_pass(linked, 10 * ZPS_NS_PER_MS);
  }
  assert_int_equal(linked->n_done[1], 2);
  network_close();
}

/* Frames that came early do not come again. */
static void test_only_missing_messages_leave_again(void **state) {
  (void)state;
  struct linked *const linked = network_open_begun();
  for (unsigned i = 1; i < 20; i++) {
    network.is_down = i == 1 || i == 2 || i == 9;
    send_now(linked, 0, i);
    linked_settle(linked);
  }
  network.is_down = false;
  assert_int_equal(linked->n_done[1], 1);
  linked_pass(linked, 200 * ZPS_NS_PER_MS);
  assert_int_equal(linked->n_done[1], 20);
  assert_int_equal(linked->counts[0].resent, 3);
  assert_int_equal(linked->counts[1].repeated, 0);
  network_close();
}

/* A message that is lost again and again is asked for at a steady pace: answers that say so slow no question down. */
static void test_what_is_lost_again_is_asked_for_again(void **state) {
  (void)state;
  struct linked *const linked = network_open_begun();
  network.loses_frames = true;
  send_now(linked, 0, 1);
  linked_pass(linked, 2 * ZPS_NS_PER_S);
  assert_in_range(linked->counts[0].resent, 9, 21);
  assert_int_equal(linked->counts[0].reconnects, 0);
  network.loses_frames = false;
  linked_pass(linked, 210 * ZPS_NS_PER_MS);
  assert_int_equal(linked->n_done[1], 2);
  network_close();
}

/* Early messages and answers say that the peer lives, copies do not. */
static void test_signs_of_life(void **state) {
  (void)state;
  struct linked *const linked = network_open_begun();
  network_lose(linked, 1, 1);
  uint64_t before = zps_link_signs(linked->links[1]);
  network.twice = 1;
  send_now(linked, 0, 2);
  linked_settle(linked);
  network.twice = 0;
  assert_int_equal(linked->n_done[1], 1);
  assert_int_equal(zps_link_signs(linked->links[1]) - before, 1);
  before = zps_link_signs(linked->links[0]);
  linked_pass(linked, 200 * ZPS_NS_PER_MS);
  assert_int_equal(linked->n_done[1], 3);
  assert_true(zps_link_signs(linked->links[0]) > before);
  network_close();
}

/* An end that goes waits until the peer has confirmed all, whether or not it knows of a loss. */
static void test_a_lossy_link_settles(void **state) {
  (void)state;
  struct linked *const linked = network_open(1);
  network.is_down = true;
  send_now(linked, 0, 0); /* vanishes in silence, before anything else was lost */
  linked_settle(linked);
  network.is_down = false;
  assert_true(zps_link_is_through(linked->links[0]));
  assert_false(zps_link_settles(linked->links[0]));
  linked_settle(linked);
  assert_int_equal(linked->n_done[1], 1);
  if (!zps_link_settles(linked->links[0])) linked_settle(linked);
  assert_true(zps_link_settles(linked->links[0]));
  network_lose(linked, 1, 1);
  zps_link_cut(linked->links[0]);
  zps_link_tick(linked->links[0], linked->now_ns, false);
  assert_false(zps_link_settles(linked->links[0]));
  linked_settle(linked);
  assert_int_equal(linked->n_done[1], 2);
  network.is_down = true;
  send_now(linked, 0, 2); /* vanishes in silence */
  linked_settle(linked);
  network.is_down = false;
  assert_true(zps_link_is_through(linked->links[0]));
  assert_false(zps_link_settles(linked->links[0]));
  linked_settle(linked);
  assert_int_equal(linked->n_done[1], 3);
  if (!zps_link_settles(linked->links[0])) linked_settle(linked);
  assert_true(zps_link_settles(linked->links[0]));
  network_close();
}

/* A peer that hears nothing asks on and on. Its questions do not save a connection that carries no answer. */
static void test_questions_are_no_answers(void **state) {
  (void)state;
  struct linked *const linked = network_open_begun();
  network.is_down_to = 1 << 1;
  send_now(linked, 0, 1);
  send_now(linked, 1, 0);
  linked_settle(linked);
  const uint64_t before = zps_link_signs(linked->links[0]);
  linked_pass(linked, 1600 * ZPS_NS_PER_MS);
  assert_true(linked->counts[0].reconnects > 0);
  assert_int_equal(zps_link_signs(linked->links[0]), before);
  network.is_down_to = 0;
  linked_pass(linked, 2 * ZPS_NS_PER_S);
  assert_int_equal(linked->n_done[1], 2);
  network_close();
}

/* Frames 0 to 3 were sent, the last two in one message. A RESUME confirms `n_confirmed` of them, then `resume` comes.
 */
static zps_err_t code_of_resume(unsigned n_confirmed, struct zps_frame_resume resume, struct zps_error *error) {
  struct linked *const linked = network_open(1);
  struct zps_link *const link = linked->links[0];
  struct zps_frame frame = {.header = {.type = ZPS_FRAME_RESUME, .seq = 1}, .u.resume = {.expects = n_confirmed}};
  network.is_down = true;
  send_now(linked, 0, 0);
  send_now(linked, 0, 1);
  assert_int_equal(send_done(linked, 0, 2), ZPS_OK);
  send_now(linked, 0, 3);
  assert_int_equal(send_done(linked, 0, 4), ZPS_OK); /* waits for the end of the turn */
  zps_link_resume(link, &frame);
  frame.u.resume = resume;
  zps_link_resume(link, &frame);
  const zps_err_t code = zps_link_check(link, linked->now_ns, 0, error);
  network.is_down = false;
  network_close();
  return code;
}

static void test_a_resume_names_what_was_sent(void **state) {
  (void)state;
  static const struct {
    unsigned n_confirmed;
    struct zps_frame_resume resume;
    bool is_right;
  } cases[] = {
      {0, {.expects = 0}, true},
      {0, {.expects = 0, .early = 1 << 0 | 1 << 1}, true},
      {0, {.expects = 1, .early = 1 << 0}, true},
      {0, {.expects = 4}, true},
      {2, {.expects = 0, .early = 1 << 0}, true},    /* It is late. */
      {4, {.expects = 1, .early = 1 << 0}, true},    /* It is late. */
      {0, {.expects = 5}, false},                    /* That frame has not left. */
      {0, {.expects = 6}, false},                    /* There is no such frame. */
      {0, {.expects = UINT32_MAX}, false},           /* There was no such frame. */
      {0, {.expects = 3}, false},                    /* It is in a message. */
      {0, {.expects = 0, .early = 1 << 2}, false},   /* It is in a message. */
      {0, {.expects = 0, .early = 1 << 3}, false},   /* That frame has not left. */
      {0, {.expects = 0, .early = 1u << 31}, false}, /* There is no such frame. */
      {0, {.expects = 4, .early = 1 << 0}, false},   /* There is no such frame. */
      {2, {.expects = 0, .early = 1 << 2}, false},   /* It is in a message. */
      {0, {.expects = 0, .answers = 1}, false},      /* Nothing was asked. */
  };
  for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct zps_error error = {.text = ""};
    const zps_err_t code = code_of_resume(cases[i].n_confirmed, cases[i].resume, &error);
    if (code != (cases[i].is_right ? ZPS_OK : ZPS_ERR_PROTOCOL))
      fail_msg("case %u: %s: %s", i, zps_err_str(code), error.text);
    if (!cases[i].is_right) assert_non_null(strstr(error.text, "RESUME frame expects frame"));
  }
}

static void test_early_messages_wait(void **state) {
  (void)state;
  struct linked *const linked = network_open(1);
  send_now(linked, 0, 0);
  send_now(linked, 1, 0);
  linked_settle(linked);
  network.late = 1;
  for (unsigned i = 1; i < ZPS_LINK_CREDITS; i++) send_now(linked, 0, i);
  linked_settle(linked);
  assert_int_equal(network.n_held[1], ZPS_LINK_CREDITS - 1);
  while (network.n_held[1] > 0) let_go(1);
  assert_int_equal(linked->n_done[1], ZPS_LINK_CREDITS);
  assert_true(linked->counts[1].reordered > 10);
  network.late = 0;
  network_close();
}

static void exchange(uint64_t seed) {
  struct linked *const linked = network_open(seed);
  struct patience patience = {0};
  unsigned sent[2] = {0, 0};
  const unsigned total[2] = {300 + (unsigned)zps_rng_below(&network.rng, 300),
                             (unsigned)zps_rng_below(&network.rng, 600)};
  network.loss = zps_rng_below(&network.rng, 2) ? 0.05 : 0;
  network.late = zps_rng_below(&network.rng, 2) ? 0.3 : 0;
  linked->is_late = network.late > 0;
  network.twice = zps_rng_below(&network.rng, 2) ? 0.1 : 0;
  while (linked->n_done[1] < total[0] || linked->n_done[0] < total[1]) {
    if (patience_is_over_at(&patience, linked->n_done[0] + linked->n_done[1]))
      fail_msg("seed %llu: stuck", (unsigned long long)seed);
    const int i = (int)zps_rng_below(&network.rng, 2);
    switch (zps_rng_below(&network.rng, 16)) {
      case 0:
      case 1:
      case 2:
        for (uint64_t n = zps_rng_below(&network.rng, 40); n > 0 && sent[i] < total[i]; n--)
          assert_int_equal(send_done(linked, i, sent[i]++), ZPS_OK);
        break;
      case 3:
        network.is_down = zps_rng_below(&network.rng, 4) == 0;
        zps_link_cut(linked->links[i]);
        break;
      case 4:
        linked->now_ns += zps_rng_below(&network.rng, 200 * ZPS_NS_PER_MS);
        break;
      case 5:
        if (network.n_held[i] > 0) let_go(i);
        break;
      default:
        turn(linked);
    }
  }
  network_close();
}

static void test_everything_comes_once_and_in_order(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 300; seed++) exchange(seed);
}

/* A connection of a silent peer is ended, in ever longer intervals, and the peer is asked over the next. */
static void test_a_silent_connection_is_ended(void **state) {
  (void)state;
  struct linked *const linked = network_open_begun();
  network.is_down = true;
  send_now(linked, 0, 1);
  linked_pass(linked, 900 * ZPS_NS_PER_MS);
  assert_int_equal(linked->counts[0].reconnects, 0);
  linked_pass(linked, 700 * ZPS_NS_PER_MS);
  assert_int_equal(linked->counts[0].reconnects, 1);
  linked_pass(linked, 6 * ZPS_NS_PER_S);
  assert_int_equal(linked->counts[0].reconnects, 3);
  network.is_down = false;
  linked_pass(linked, 2 * ZPS_NS_PER_S);
  assert_int_equal(linked->n_done[1], 2);
  network_close();
}

/* Its own words, sent back or again, tell a link nothing; those of another do not either. */
static uint8_t word[256];
static size_t word_len;

static void on_word(struct end *end, const void *data, size_t len) {
  assert_true(len <= sizeof word);
  memcpy(word, data, len);
  word_len = len;
  on_message(end, data, len);
}

static enum zps_link_verdict verdict(struct zps_link *link) {
  struct zps_frame_header header;
  assert_int_equal(zps_wire_header(word, word_len - ZPS_WIRE_MAC_BYTES, &header, NULL), ZPS_OK);
  assert_int_equal(header.type, ZPS_FRAME_RESUME);
  return zps_link_take(link, &header, word, word_len);
}

static void test_a_word_counts_once(void **state) {
  (void)state;
  struct linked *const linked = network_open_begun();
  linked->ends[1].on_message = on_word;
  linked_pass(linked, 200 * ZPS_NS_PER_MS); /* it asks what became of it */
  assert_int_equal(verdict(linked->links[1]), ZPS_LINK_REPEATED);
  assert_int_equal(verdict(linked->links[0]), ZPS_LINK_FORGED);
  for (size_t at = ZPS_WIRE_LONG_BYTES; at < word_len; at++) {
    word[at] ^= 1;
    assert_int_equal(verdict(linked->links[1]), ZPS_LINK_FORGED);
    word[at] ^= 1;
  }
  network_close();
}

/* The fabric cannot connect: tried at once, then ever more rarely, and at least ten times a second. */
static void test_attempts_to_connect_become_rare(void **state) {
  (void)state;
  struct linked *const linked = network_open_begun();
  const uint64_t *const sent = &zps_net_counters(linked->ends[0].net)->msgs_sent, before = *sent;
  for (unsigned ms = 0; ms < 10000; ms++) {
    linked->now_ns += ZPS_NS_PER_MS;
    zps_link_cut(linked->links[0]);
    assert_true(zps_link_tick(linked->links[0], linked->now_ns, false) <= linked->now_ns + ZPS_NS_PER_S);
    zps_link_progress(linked->links[0]);
    zps_net_progress(linked->ends[1].net); /* the other end says nothing */
  }
  assert_in_range(*sent - before, 80, 110);
  assert_int_equal(linked->counts[0].reconnects, 1);
  send_now(linked, 0, 1);
  linked_pass(linked, 2 * ZPS_NS_PER_S);
  assert_int_equal(linked->n_done[1], 2);
  network_close();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_what_a_connection_lost_comes_over_the_next),
      cmocka_unit_test(test_what_vanished_in_silence_is_asked_for),
      cmocka_unit_test(test_what_vanished_is_asked_for_among_others),
      cmocka_unit_test(test_only_missing_messages_leave_again),
      cmocka_unit_test(test_what_is_lost_again_is_asked_for_again),
      cmocka_unit_test(test_signs_of_life),
      cmocka_unit_test(test_a_lossy_link_settles),
      cmocka_unit_test(test_questions_are_no_answers),
      cmocka_unit_test(test_a_resume_names_what_was_sent),
      cmocka_unit_test(test_early_messages_wait),
      cmocka_unit_test(test_everything_comes_once_and_in_order),
      cmocka_unit_test(test_a_silent_connection_is_ended),
      cmocka_unit_test(test_a_word_counts_once),
      cmocka_unit_test(test_attempts_to_connect_become_rare),
  };
  return cmocka_run_group_tests_name("link cut", tests, NULL, NULL);
}
