/* Two ends with a link each, over the in-process fabric, driven step by step. */
#ifndef ZPS_TESTS_SESSION_LINKED_H
#define ZPS_TESTS_SESSION_LINKED_H

#include "common/base/clock.h"
#include "tests/support/link_take.h"
#include "tests/support/net_pair.h"

enum { JOB = 9, EPOCH = 4 };

/* A link per end, and the frames that the other end sent over it. */
struct linked {
  struct end ends[2];
  struct zps_link *links[2];
  unsigned n_done[2], n_credit[2], n_push;
  zps_err_t code[2];
  struct zps_error error[2];
  uint64_t now_ns; /* of the links */
  bool is_late;    /* a copy may come so late that its short header names another number */
  struct zps_link_counts counts[2];
};

static inline void on_frame(struct linked *linked, int i, const void *data, size_t len) {
  struct zps_frame frame;
  struct zps_error error;
  assert_int_equal(zps_wire_decode(data, len, &frame, &error), ZPS_OK);
  if (frame.header.is_short)
    assert_int_equal(frame.header.tag, 500 + i);
  else
    assert_int_equal(frame.header.src, 1 - i);
  const zps_err_t code = zps_link_received(linked->links[i], &frame.header, &linked->error[i]);
  if (code != ZPS_OK) {
    linked->code[i] = code;
    return;
  }
  if (frame.header.type == ZPS_FRAME_CREDIT) {
    linked->n_credit[i]++;
  } else if (frame.header.type == ZPS_FRAME_PUSH) {
    linked->n_push++;
  } else {
    assert_int_equal(frame.u.done.step, linked->n_done[i]++);
  }
}

struct due {
  struct linked *linked;
  int i;
};

static inline void on_due(void *ctx, const void *data, size_t len) {
  const struct due *due = ctx;
  struct zps_wire_frames frames;
  const void *frame;
  size_t frame_len;
  zps_wire_frames_begin(&frames, data, len);
  while (zps_wire_frames_next(&frames, &frame, &frame_len, NULL) == ZPS_OK && frame)
    on_frame(due->linked, due->i, frame, frame_len);
}

static inline void on_message(struct end *end, const void *data, size_t len) {
  struct linked *linked = end->ctx;
  struct due due = {linked, end == &linked->ends[1]};
  if (link_take(linked->links[due.i], data, len, on_due, &due) == ZPS_LINK_FORGED) assert_true(linked->is_late);
}

static inline void on_cut(struct end *end) {
  struct linked *linked = end->ctx;
  zps_link_cut(linked->links[end == &linked->ends[1]]);
}

static inline struct zps_link_ends linked_ends(int i) {
  static const struct zps_secret secret = {"a job's secret.."};
  return (struct zps_link_ends){.job = JOB,
                                .epoch = EPOCH,
                                .self = (uint32_t)i,
                                .other = (uint32_t)(1 - i),
                                .tag = (uint32_t)(500 + i),
                                .secret = &secret,
                                .server = "a server's address",
                                .server_len = sizeof "a server's address"};
}

static inline void linked_open(struct linked *linked, const char *provider, const char *fault) {
  memset(linked, 0, sizeof *linked);
  linked->now_ns = ZPS_NS_PER_S;
  pair_open(linked->ends, provider, fault, 0);
  for (int i = 0; i < 2; i++) {
    linked->ends[i].on_message = on_message;
    linked->ends[i].on_error = on_cut;
    linked->ends[i].ctx = linked;
    struct zps_link_ends ends = linked_ends(i);
    ends.counts = &linked->counts[i];
    assert_int_equal(zps_link_create(linked->ends[i].net, linked->ends[i].peer, &ends, &linked->links[i]), ZPS_OK);
  }
}

static inline void linked_close(struct linked *linked) {
  for (int i = 0; i < 2; i++) {
    assert_int_equal(zps_net_counters(linked->ends[i].net)->unmatched, 0);
    assert_int_equal(linked->code[i], ZPS_OK);
    zps_link_destroy(linked->links[i]);
  }
  pair_close(linked->ends);
}

static inline zps_err_t send_done(struct linked *linked, int from, unsigned step) {
  struct zps_frame frame = {.header.type = ZPS_FRAME_DONE, .u.done = {.tensor = 1, .step = step}};
  return zps_link_send(linked->links[from], &frame);
}

/* The bytes that it took. */
static inline uint64_t send_now(struct linked *linked, int from, unsigned step) {
  const struct zps_net_counters *const counters = zps_net_counters(linked->ends[from].net);
  const uint64_t before = counters->msg_bytes_sent;
  assert_int_equal(send_done(linked, from, step), ZPS_OK);
  zps_link_progress(linked->links[from]);
  return counters->msg_bytes_sent - before;
}

static inline unsigned turn(struct linked *linked) {
  unsigned events = 0;
  for (int i = 0; i < 2; i++) {
    events += zps_net_progress(linked->ends[i].net);
    zps_link_tick(linked->links[i], linked->now_ns, false);
    events += zps_link_progress(linked->links[i]);
  }
  return events;
}

static inline void linked_settle(struct linked *linked) {
  for (unsigned quiet = 0; quiet<3; quiet = turn(linked)> 0 ? 0 : quiet + 1) continue;
}

/* All of a time in which nothing comes, in steps shorter than any that a link waits. */
static inline void linked_pass(struct linked *linked, uint64_t ns) {
  for (uint64_t passed = 0; passed < ns; passed += 10 * ZPS_NS_PER_MS) {
    linked->now_ns += 10 * ZPS_NS_PER_MS;
    linked_settle(linked);
  }
}

#endif
