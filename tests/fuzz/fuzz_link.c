/* Takes arbitrary bytes for what happens to a link: what its two ends say, when they take and send, their epochs, and
 * what a stranger sends to them (any bytes, what has come before, changed or not). Each end must hear all that the
 * other has said, once and in order, and take for stale what was said in another epoch than its own. With 'h' in front
 * the other end is made by hand (peer.c) and says, sealed as it should be, what no end would: then the link may end,
 * with words, and nothing worse. */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/session/link.h"
#include "common/session/receive.h"
#include "tests/fuzz/must.h"
#include "tests/fuzz/peer.h"
#include "tests/support/one_thread.h"

enum { JOB = 9, SAID_MAX = 512, KEPT = 8, EVENTS_MAX = 400, TURNS_MAX = 2000 };

struct end {
  struct zps_net *net;
  struct zps_net_peer *peer;
  struct zps_bulk *bulk;
  struct zps_bulk_peer *bulk_peer;
  struct zps_link *link; /* NULL: it has ended, or this end is made by hand */
  struct zps_engine_handler handler;
  struct zps_receiver receiver;
  uint32_t epoch;
  uint32_t said[SAID_MAX], n_said, n_heard; /* epochs of the frames that it has said; how many the other has heard */
  struct {
    size_t len;
    uint8_t bytes[ZPS_WIRE_MESSAGE_MAX];
  } kept[KEPT]; /* messages that came */
  unsigned n_kept;
};

static struct end ends[2];
static struct peer by_hand;
static bool is_by_hand, must_end;

/* ---- what ends hear ---- */

static unsigned number_of(const struct end *end) {
  return end == &ends[1];
}

static struct zps_link *find_link(void *ctx, const struct zps_frame_header *header) {
  const struct end *const end = ctx;
  if (header->is_short) return header->tag == 500 + number_of(end) ? end->link : NULL;
  return header->job == JOB && header->src == 1 - number_of(end) ? end->link : NULL;
}

/* Frames that ends say are DONE, and their steps count. */
static void on_frame(void *ctx, const struct zps_frame *frame) {
  struct end *const end = ctx;
  struct end *const other = &ends[1 - number_of(end)];
  struct zps_error error = {.text = ""};
  const zps_err_t err = zps_link_received(end->link, &frame->header, &error);
  must(err == ZPS_OK || (error.code == err && error.text[0]));
  if (err == ZPS_ERR_PROTOCOL) {
    must(is_by_hand && by_hand.broken);
    zps_link_destroy(end->link);
    end->link = NULL;
    return;
  }
  must(err == ZPS_OK || err == ZPS_ERR_STALE);
  if (by_hand.broken || frame->header.type != ZPS_FRAME_DONE) return;
  must(other->n_heard < other->n_said && frame->u.done.step == other->n_heard);
  must((err == ZPS_OK) == (other->said[other->n_heard] == end->epoch));
  other->n_heard++;
}

static void on_message(void *ctx, const void *data, size_t len) {
  struct end *const end = ctx;
  const unsigned slot = end->n_kept++ % KEPT;
  end->kept[slot].len = len;
  memcpy(end->kept[slot].bytes, data, len);
  zps_receive(&end->receiver, data, len);
}

static void on_peer_error(void *ctx, struct zps_net_peer *peer, zps_err_t code, const char *text) {
  (void)ctx, (void)peer, (void)code, (void)text;
  must(false); /* no endpoint is closed before the end */
}

/* The handmade end hears the link; what it is told is counted as between links. */
static void by_hand_on_frame(struct peer *peer, const struct zps_frame *frame) {
  if (frame->header.type != ZPS_FRAME_DONE) return;
  must(frame->u.done.step < ends[0].n_said && frame->u.done.step >= ends[0].n_heard);
  must(ends[0].said[frame->u.done.step] == peer->epoch);
  ends[0].n_heard = (uint32_t)frame->u.done.step + 1;
}

/* ---- what ends say ---- */

static bool can_say(const struct end *end) {
  return end->n_said < SAID_MAX;
}

static void say(struct end *end) {
  struct zps_frame frame = {.header.type = ZPS_FRAME_DONE, .u.done = {.tensor = 1, .step = end->n_said}};
  if (!can_say(end)) return;
  if (end == &ends[1] && is_by_hand) {
    if (peer_send(&by_hand, &frame)) end->said[end->n_said++] = by_hand.epoch;
  } else if (end->link) {
    must(zps_link_send(end->link, &frame) == ZPS_OK);
    end->said[end->n_said++] = end->epoch;
  }
}

/* Any header, sealed: the four bytes say how far it is from what it should be. */
static void say_header(const uint8_t bytes[4]) {
  uint8_t message[ZPS_WIRE_MESSAGE_MAX];
  size_t len;
  struct zps_frame frame = {.u.done = {.tensor = 1, .step = bytes[3]}};
  frame.header = (struct zps_frame_header){.type = bytes[0] & 128 ? ZPS_FRAME_CREDIT : ZPS_FRAME_DONE,
                                           .is_short = bytes[0] & 1,
                                           .job = JOB + (bytes[0] >> 1 & 1),
                                           .epoch = by_hand.epoch + (bytes[0] >> 2 & 3),
                                           .src = by_hand.self + (bytes[0] >> 4 & 1),
                                           .tag = bytes[0] & 1 ? 500 : bytes[3]};
  /* Nothing is wrong with it but that it returns more credits than there are. */
  must_end |=
      !by_hand.broken && by_hand.to && !(bytes[0] & 0x1e) && !(bytes[1] & 15) && bytes[2] > ZPS_LINK_CREDITS + 1;
  by_hand.broken = true;
  must(zps_wire_encode(&frame, message, ZPS_WIRE_FRAME_MAX, &len) == ZPS_OK);
  zps_wire_stamp(message, by_hand.tx_seq + (bytes[1] & 15), bytes[2]);
  peer_send_sealed(&by_hand, message, len, by_hand.tx_seq + (bytes[1] & 15));
  by_hand.tx_seq += bytes[1] >> 4;
}

/* A RESUME frame with any numbers; the first is counted from what its sender expects. */
static void say_resume(const uint8_t bytes[6]) {
  struct zps_frame_resume resume = {.expects = by_hand.rx_seq + (uint32_t)(int8_t)bytes[0], .answers = bytes[1]};
  memcpy(&resume.early, bytes + 2, sizeof resume.early);
  /* No end sends so much ahead of what has come. */
  must_end |= !by_hand.broken && by_hand.to && (int8_t)bytes[0] > 2 * (int)ZPS_LINK_CREDITS;
  by_hand.broken = true;
  peer_resume(&by_hand, &resume);
}

/* ---- a stranger ---- */

static struct zps_net *stranger;
static struct zps_net_peer *stranger_to[2];

static void stranger_on_message(void *ctx, const void *data, size_t len) {
  (void)ctx, (void)data, (void)len;
}

static void stranger_send(unsigned to, const uint8_t *bytes, size_t len) {
  if (to == 1 && is_by_hand) return; /* it takes what comes for the link's */
  const zps_err_t code = zps_net_send(stranger_to[to], bytes, len);
  must(code == ZPS_OK || code == ZPS_ERR_AGAIN);
}

/* A message that came to the end, as it was or with a bit changed. */
static void stranger_repeat(struct end *end, unsigned which, unsigned bit) {
  uint8_t bytes[ZPS_WIRE_MESSAGE_MAX];
  if (end->n_kept == 0) return;
  const unsigned slot = which % (end->n_kept < KEPT ? end->n_kept : KEPT);
  const size_t len = end->kept[slot].len;
  memcpy(bytes, end->kept[slot].bytes, len);
  if (bit > 0 && len > 0) bytes[bit % len] ^= (uint8_t)(1u << bit % 8);
  stranger_send(which >> 3 & 1, bytes, len);
}

/* ---- time ---- */

/* A link ends where the other end breaks the protocol. */
static void check(struct end *end) {
  struct zps_error error = {.text = ""};
  if (!end->link || zps_link_check(end->link, one_thread_now_ns, 0, &error) == ZPS_OK) return;
  must(is_by_hand && by_hand.broken && error.code == ZPS_ERR_PROTOCOL && error.text[0]);
  zps_link_destroy(end->link);
  end->link = NULL;
}

static bool turn(struct end *end) {
  bool any = false;
  if (end == &ends[1] && is_by_hand) return peer_turn(&by_hand) > 0;
  any |= zps_net_progress(end->net) > 0;
  if (end->link) zps_link_tick(end->link, one_thread_now_ns, false);
  check(end);
  if (end->link) any |= zps_link_progress(end->link) > 0;
  any |= zps_bulk_progress(end->bulk) > 0;
  return any;
}

/* A message that leaves is an event where it arrives alone. */
static void settle(void) {
  for (unsigned n = 0, quiet = 0; quiet < 2; n++) {
    must(n < TURNS_MAX);
    bool any = turn(&ends[0]);
    any |= turn(&ends[1]);
    quiet = any ? 0 : quiet + 1;
  }
}

static void set_epoch(struct end *end, uint32_t epoch) {
  if (end == &ends[1] && is_by_hand)
    peer_set_epoch(&by_hand, epoch);
  else if (end->link)
    zps_link_set_epoch(end->link, epoch);
  end->epoch = epoch;
}

/* ---- life ---- */

static const struct zps_secret secret = {{1}};

static void open_net(struct end *end) {
  const struct zps_net_config config = {.provider = "loop", .max_msg = ZPS_WIRE_MESSAGE_MAX, .n_recv = 4};
  const struct zps_net_handler handler = {.ctx = end, .on_message = on_message, .on_peer_error = on_peer_error};
  must(zps_net_open(&config, &handler, &end->net, NULL) == ZPS_OK);
}

static void connect_link(struct end *end, const struct zps_net_info *to, const struct zps_net_info *server,
                         bool measures) {
  const unsigned self = number_of(end);
  struct zps_link_ends link = {.job = JOB,
                               .epoch = end->epoch,
                               .self = self,
                               .other = 1 - self,
                               .tag = 500 + self,
                               .secret = &secret,
                               .server = server->addr,
                               .server_len = server->addr_len};
  must(zps_net_peer_add(end->net, to->addr, to->addr_len, end, &end->peer, NULL) == ZPS_OK);
  must(zps_bulk_create(end->net, &(struct zps_bulk_config){.piece_bytes = 0}, &end->bulk) == ZPS_OK);
  must(zps_bulk_peer_add(end->bulk, end->peer, &end->bulk_peer) == ZPS_OK);
  link.bulk = end->bulk_peer;
  must(zps_link_create(end->net, end->peer, &link, &end->link) == ZPS_OK);
  if (measures) zps_link_measure(end->link, self == 0);
}

static void begin(bool hand, unsigned bits) {
  const struct zps_net_config config = {.provider = "loop", .max_msg = ZPS_WIRE_MESSAGE_MAX, .n_recv = 4};
  const struct zps_net_handler handler = {.on_message = stranger_on_message, .on_peer_error = on_peer_error};
  const struct zps_net_info *infos[2];
  is_by_hand = hand;
  must_end = false;
  one_thread_now_ns = ZPS_NS_PER_S;
  by_hand = (struct peer){.net = NULL};
  for (unsigned i = 0; i < 2; i++) {
    struct end *const end = &ends[i];
    end->link = NULL;
    end->net = NULL;
    end->bulk = NULL;
    end->epoch = 1;
    end->n_said = end->n_heard = end->n_kept = 0;
    end->handler = (struct zps_engine_handler){.ctx = end, .find_link = find_link, .on_frame = on_frame};
    end->receiver.handler = &end->handler;
    if (i == 0 || !hand) open_net(end);
  }
  if (hand) peer_open(&by_hand);
  for (unsigned i = 0; i < 2; i++) infos[i] = zps_net_info(i == 1 && hand ? by_hand.net : ends[i].net);
  connect_link(&ends[0], infos[1], infos[0], bits & 1);
  if (hand) {
    const struct peer_ends its = {.job = JOB, .epoch = 1, .self = 1, .other = 0, .tag = 501, .secret = &secret};
    peer_connect(&by_hand, &its, infos[0], infos[0]);
    by_hand.on_frame = by_hand_on_frame;
  } else {
    connect_link(&ends[1], infos[0], infos[0], bits & 2);
  }
  must(zps_net_open(&config, &handler, &stranger, NULL) == ZPS_OK);
  for (unsigned i = 0; i < 2; i++)
    must(zps_net_peer_add(stranger, infos[i]->addr, infos[i]->addr_len, NULL, &stranger_to[i], NULL) == ZPS_OK);
}

static void finish(void) {
  settle();
  if (!is_by_hand) {
    for (unsigned i = 0; i < 2; i++) must(ends[i].n_heard == ends[i].n_said && zps_link_is_through(ends[i].link));
  }
  must(!must_end || !ends[0].link);
  if (is_by_hand) peer_close(&by_hand);
  for (unsigned i = 0; i < 2; i++) {
    zps_link_destroy(ends[i].link);
    if (ends[i].net) zps_net_close(ends[i].net);
    zps_bulk_destroy(ends[i].bulk);
  }
  zps_net_close(stranger);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const uint8_t *at = data + 2, *const bytes_end = data + size;
  struct zps_frame frame;
  if (size < 2) return 0;
  zps_log_set_level(ZPS_LOG_ERROR);
  begin(data[0] == 'h', data[1]);
  for (unsigned n = 0; n < EVENTS_MAX && bytes_end - at >= 2; n++) {
    const unsigned what = *at++, arg = *at++;
    struct end *const end = &ends[what >> 4 & 1];
    size_t len = arg;
    if (len > (size_t)(bytes_end - at)) len = (size_t)(bytes_end - at);
    switch (what & 15) {
      case 0:
        for (unsigned i = 0; i <= arg % 64; i++) say(end);
        break;
      case 1:
        turn(end);
        break;
      case 2:
        settle();
        break;
      case 3:
        set_epoch(end, 1 + arg % 4);
        break;
      case 4:
        set_epoch(&ends[0], 1 + arg % 4);
        set_epoch(&ends[1], 1 + arg % 4);
        break;
      case 5:
        if (end->link) zps_link_ask(end->link);
        break;
      case 6:
        stranger_send(what >> 4 & 1, at, len);
        at += len;
        break;
      case 7:
        stranger_repeat(end, what >> 4, arg);
        break;
      case 8:
        if (!is_by_hand || len < 4) break;
        say_header(at);
        at += 4;
        break;
      case 9:
        if (!is_by_hand) break;
        by_hand.broken = true;
        peer_send_body(&by_hand, what >> 4, at, len, &frame);
        at += len;
        break;
      case 10:
        if (!is_by_hand) break;
        by_hand.broken = true;
        peer_send_sealed(&by_hand, at, len, by_hand.tx_seq + (what >> 4));
        at += len;
        break;
      case 11:
        one_thread_now_ns += arg * ZPS_NS_PER_MS;
        break;
      case 12:
        if (!is_by_hand || bytes_end - at < 6) break;
        say_resume(at);
        at += 6;
        break;
      default:
        say(end);
        turn(end);
    }
  }
  finish();
  return 0;
}
