/* Payloads that the encrypted fabric sends ahead: a rank that dials, and a server that answers. TLS is empty here, and
 * every link is long. */
#include <linux/tcp.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "common/net/bulk.h"
#include "tests/support/logs.h"
#include "tests/support/tls_ends.h"

enum { LEN = 200 << 10, FEW = 16 << 10 };

static struct read_record record;

static struct tlsnet_conn *conn_of(unsigned i) {
  return tlsnet_peer_of(ends[i].peer)->conn;
}

static void say(unsigned i) {
  assert_int_equal(zps_net_send(ends[i].peer, "read!", 5), ZPS_OK);
}

/* The sockets of the first connection take few bytes at a time. */
static void narrow(void) {
  const int few = FEW;
  for (unsigned i = 0; i < 2; i++)
    assert_int_equal(setsockopt(conn_of(i)->fd, SOL_SOCKET, SO_SNDBUF, &few, sizeof few), 0);
}

/* TCP has bytes on the way: it takes fewer then. */
static bool is_busy(unsigned i) {
  struct tcp_info info = {0};
  socklen_t len = sizeof info;
  assert_int_equal(getsockopt(conn_of(i)->fd, IPPROTO_TCP, TCP_INFO, &info, &len), 0);
  return info.tcpi_unacked > 0 || info.tcpi_notsent_bytes > 0;
}

static void connect_ends(void) {
  for (unsigned i = 0; i < 2; i++) ends[i].n_messages = 0;
  for (unsigned i = 0; i < 2; i++) {
    say(i);
    TURN_UNTIL(ends, ends[1 - i].n_messages == 1 && !is_busy(i));
  }
  narrow();
}

static int setup(void **state) {
  (void)state;
  open_end(RANK, 3, false);
  tlsnet_of(ends[RANK].net)->long_trip_us = 0;
  open_end(SERVER, 1, false);
  tlsnet_of(ends[SERVER].net)->long_trip_us = 0;
  for (unsigned i = 0; i < 2; i++) end_connect(&ends[i], &ends[1 - i]);
  connect_ends();
  TURN_UNTIL(ends, zps_net_peer_connections(ends[RANK].peer) == 3 && zps_net_peer_connections(ends[SERVER].peer) == 3);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  pair_close(ends);
  return 0;
}

/* Offers some memory of one end, and tells the other. */
static void announce(unsigned from, uint64_t at, uint64_t len) {
  zps_net_offer(ends[from].peer, at, lent_mem[from].key, len);
  say(from);
}

static void start_read(unsigned reader, uint64_t at, size_t len) {
  record_init(&record, &landed_mem[reader], &lent_mem[1 - reader], len);
  record.read.addr += at;
  record.read.local = landed[reader] + at;
  assert_int_equal(zps_net_read(ends[reader].peer, &record.read), ZPS_OK);
}

static void finish_read(unsigned reader, uint64_t at, size_t len) {
  TURN_UNTIL(ends, record.n_done == 1);
  assert_int_equal(record.code, ZPS_OK);
  assert_memory_equal(landed[reader] + at, lent[1 - reader] + at, len);
}

static uint64_t n_asked(unsigned reader) {
  uint64_t n = tlsnet_peer_of(ends[reader].peer)->reads.first ? 1 : 0;
  for (const struct tlsnet_conn *conn = conn_of(reader); conn; conn = zps_tlsnet_conn_next(conn)) n += conn->asked.n;
  return n;
}

static const struct tlsnet_incoming *oldest(unsigned reader) {
  return TAILQ_FIRST(&conn_of(reader)->ahead->offers);
}

static bool holds_nothing(unsigned i) {
  const struct tlsnet_ahead *const ahead = conn_of(i)->ahead;
  return TAILQ_EMPTY(&ahead->offers) && ahead->held.bytes == 0;
}

/* Reads in the message's callback, before a byte of its offer has come. */
static void read_at_once(struct end *end, const void *data, size_t len) {
  (void)data;
  const unsigned reader = end == &ends[SERVER] ? SERVER : RANK;
  if (len != 5 || record.read.done) return;
  assert_int_equal(oldest(reader)->got, 0);
  start_read(reader, 64, LEN);
}

static void bytes_go_straight_to_their_read(unsigned reader) {
  const struct zps_net_counters *const counters = zps_net_counters(ends[reader].net);
  record.read.done = NULL;
  ends[reader].on_message = read_at_once;
  announce(1 - reader, 64, LEN);
  assert_int_equal(zps_net_counters(ends[1 - reader].net)->msgs_sent, 2);
  while (!record.read.done) zps_net_progress(ends[reader].net), zps_net_progress(ends[1 - reader].net);
  assert_true(record.read.is_offered);
  assert_int_equal(n_asked(reader), 0);
  finish_read(reader, 64, LEN);
  assert_int_equal(counters->reads, 1);
  assert_int_equal(counters->read_bytes, LEN);
  assert_true(holds_nothing(reader));
}

static void a_server_reads_at_once(void **state) {
  (void)state;
  bytes_go_straight_to_their_read(SERVER);
}
static void a_rank_reads_at_once(void **state) {
  (void)state;
  bytes_go_straight_to_their_read(RANK);
}

static void some_bytes_are_there(void **state) {
  (void)state;
  announce(RANK, 0, LEN);
  TURN_UNTIL(ends, conn_of(SERVER)->ahead && oldest(SERVER) && oldest(SERVER)->got > 0);
  assert_true(oldest(SERVER)->got < LEN);
  assert_int_equal(zps_net_offered(ends[SERVER].peer, 0, lent_mem[RANK].key), LEN);
  assert_int_equal(zps_net_offered(ends[SERVER].peer, 1, lent_mem[RANK].key), 0);
  assert_int_equal(zps_net_offered(ends[SERVER].peer, 0, lent_mem[RANK].key + 1), 0);
  start_read(SERVER, 0, LEN);
  assert_int_equal(n_asked(SERVER), 0);
  finish_read(SERVER, 0, LEN);
  assert_true(holds_nothing(SERVER));
}

/* The callback comes from a turn, not from zps_net_read(). */
static void all_bytes_are_there(void **state) {
  (void)state;
  announce(RANK, 0, LEN);
  TURN_UNTIL(ends, conn_of(SERVER)->ahead && oldest(SERVER) && oldest(SERVER)->got == LEN);
  for (unsigned k = 0; k < 4; k++) {
    start_read(SERVER, k * (LEN / 4), LEN / 4);
    assert_int_equal(record.n_done, 0);
    zps_net_progress(ends[SERVER].net);
    finish_read(SERVER, k * (LEN / 4), LEN / 4);
  }
  assert_true(holds_nothing(SERVER));
  assert_int_equal(zps_net_counters(ends[SERVER].net)->read_bytes, LEN);
}

/* A part that does not follow the last one, or goes beyond the offer, is asked for. */
static void other_parts_are_asked_for(void **state) {
  (void)state;
  announce(RANK, 0, LEN);
  TURN_UNTIL(ends, ends[SERVER].n_messages == 2);
  start_read(SERVER, 4096, 4096);
  assert_int_equal(n_asked(SERVER), 1);
  finish_read(SERVER, 4096, 4096);
  start_read(SERVER, 0, LEN + 1);
  assert_int_equal(n_asked(SERVER), 1);
  finish_read(SERVER, 0, LEN + 1);
  start_read(SERVER, 0, LEN);
  assert_int_equal(n_asked(SERVER), 0);
  finish_read(SERVER, 0, LEN);
}

struct transfer {
  struct zps_bulk_read read;
  bool is_done;
  zps_err_t code;
};

static void transfer_done(struct zps_bulk_read *read, zps_err_t code) {
  struct transfer *const transfer = read->ctx;
  transfer->is_done = true;
  transfer->code = code;
}

static struct zps_bulk *bulk;
static struct zps_bulk_peer *from;
static struct transfer transfer;

static void bulk_open(void) {
  assert_int_equal(zps_bulk_create(ends[SERVER].net, &(struct zps_bulk_config){0}, &bulk), ZPS_OK);
  assert_int_equal(zps_bulk_peer_add(bulk, ends[SERVER].peer, &from), ZPS_OK);
}

static void bulk_close(void) {
  zps_net_peer_evict(ends[SERVER].peer);
  zps_bulk_peer_remove(from);
  zps_net_progress(ends[SERVER].net);
  zps_bulk_destroy(bulk);
  end_connect(&ends[SERVER], &ends[RANK]);
}

static void start_transfer(uint64_t len) {
  transfer = (struct transfer){.read = {.local = landed[SERVER],
                                        .mem = &landed_mem[SERVER],
                                        .len = len,
                                        .addr = lent_mem[RANK].addr,
                                        .key = lent_mem[RANK].key,
                                        .done = transfer_done,
                                        .ctx = &transfer}};
  zps_bulk_start(from, &transfer.read);
  zps_bulk_progress(bulk);
}

static void finish_transfer(void) {
  struct patience patience = {0};
  while (!transfer.is_done) {
    if (patience_is_over(&patience)) fail_msg("the transfer does not end");
    if (zps_net_progress(ends[0].net) + zps_net_progress(ends[1].net) + zps_bulk_progress(bulk) == 0)
      zps_net_wait(ends[0].net, ZPS_NS_PER_MS / 10);
  }
  assert_int_equal(transfer.code, ZPS_OK);
  assert_memory_equal(landed[SERVER], lent[RANK], transfer.read.len);
  assert_int_equal(zps_bulk_in_flight(bulk), 0);
}

/* The rest of a large payload is asked for while its beginning comes, in windows of their own. */
static void the_rest_is_asked_for(void **state) {
  (void)state;
  bulk_open();
  announce(RANK, 0, BYTES);
  TURN_UNTIL(ends, ends[SERVER].n_messages == 2);
  const uint64_t ahead = zps_net_offered(ends[SERVER].peer, 0, lent_mem[RANK].key);
  assert_true(ahead > 0 && ahead <= TLSNET_AHEAD_MAX);
  start_transfer(BYTES);
  assert_int_equal(zps_net_offered(ends[SERVER].peer, ahead, lent_mem[RANK].key), 0);
  assert_int_equal(oldest(SERVER)->claimed, ahead);
  assert_true(n_asked(SERVER) > 0);
  assert_true(zps_bulk_in_flight(bulk) > 0 && zps_bulk_in_flight(bulk) < ahead);
  finish_transfer();
  assert_int_equal(zps_net_counters(ends[SERVER].net)->read_bytes, BYTES);
  bulk_close();
}

/* Bytes that come while they are waited for tell the rate of the link, though no question is asked. Others do not. */
static void offered_bytes_tell_the_rate(void **state) {
  (void)state;
  bulk_open();
  for (unsigned k = 0; k < 100 && zps_bulk_measure(bulk).bytes_per_s == 0; k++) {
    const bool is_here = k < 3;
    TURN_UNTIL(ends, !is_busy(RANK));
    announce(RANK, 0, LEN);
    TURN_UNTIL(ends, zps_net_offered(ends[SERVER].peer, 0, lent_mem[RANK].key) == LEN &&
                         (!is_here || zps_tlsnet_ahead_missing(conn_of(SERVER)) == 0));
    start_transfer(LEN);
    finish_transfer();
    if (is_here) assert_true(zps_bulk_measure(bulk).bytes_per_s == 0);
  }
  assert_true(zps_bulk_measure(bulk).bytes_per_s > 0);
  assert_true(zps_bulk_measure(bulk).latency_s == 0);
  bulk_close();
}

/* Offers are of no more bytes than TCP takes at once. The rest would wait here, and is better asked for. */
static void tcp_bounds_what_is_sent_ahead(void **state) {
  (void)state;
  struct tcp_info info = {0};
  socklen_t len = sizeof info;
  uint64_t sum = 0;
  assert_int_equal(getsockopt(conn_of(RANK)->fd, IPPROTO_TCP, TCP_INFO, &info, &len), 0);
  for (unsigned k = 0; k < 4; k++) announce(RANK, k << 20, 1 << 20);
  const struct tlsnet_ahead *const ahead = conn_of(RANK)->ahead;
  for (unsigned k = 0; k < ahead->n_out; k++) sum += ahead->out[k].len;
  assert_true(sum > 0 && sum <= (uint64_t)info.tcpi_snd_cwnd * info.tcpi_snd_mss);
  for (unsigned k = 0; k < 4; k++) {
    start_read(SERVER, k << 20, 1 << 20);
    finish_read(SERVER, k << 20, 1 << 20);
  }
}

/* Of 2 MiB without a read, no more than 1 MiB is kept: the oldest go. All can still be read. */
static void the_oldest_give_way(void **state) {
  (void)state;
  enum { N = 16, PART = 128 << 10 };
  for (unsigned k = 0; k < N; k++) {
    announce(RANK, k * PART, PART);
    TURN_UNTIL(ends, ends[SERVER].n_messages == 2 + k && conn_of(RANK)->ahead->n_out == 0 &&
                         zps_tlsnet_ahead_missing(conn_of(SERVER)) == 0 && !is_busy(RANK));
    assert_true(conn_of(SERVER)->ahead->held.bytes <= TLSNET_AHEAD_MAX);
  }
  assert_int_equal(conn_of(SERVER)->ahead->held.bytes, TLSNET_AHEAD_MAX);
  assert_int_equal(zps_net_offered(ends[SERVER].peer, 0, lent_mem[RANK].key), 0);
  assert_int_equal(zps_net_offered(ends[SERVER].peer, (N - 1) * PART, lent_mem[RANK].key), PART);
  for (unsigned k = 0; k < N; k++) {
    start_read(SERVER, k * PART, PART);
    assert_int_equal(n_asked(SERVER), k < N / 2);
    finish_read(SERVER, k * PART, PART);
  }
  assert_true(holds_nothing(SERVER));
}

/* The bytes of a process, and those of a job, have limits, too. What gives way is asked for. */
static void keep_within(struct zps_net_keep *keep) {
  enum { N = 4, PART = 64 << 10 };
  for (unsigned k = 0; k < N; k++) {
    announce(RANK, k * PART, PART);
    TURN_UNTIL(ends, ends[SERVER].n_messages == 2 + k && conn_of(RANK)->ahead->n_out == 0 &&
                         zps_tlsnet_ahead_missing(conn_of(SERVER)) == 0 && !is_busy(RANK));
    assert_int_equal(keep->bytes, (k < 2 ? k + 1 : 2) * PART);
  }
  for (unsigned k = 0; k < N; k++) {
    start_read(SERVER, k * PART, PART);
    assert_int_equal(n_asked(SERVER), k < 2);
    finish_read(SERVER, k * PART, PART);
  }
  assert_int_equal(keep->bytes, 0);
  keep->most_bytes = PART - 1;
  announce(RANK, 0, PART);
  TURN_UNTIL(ends, conn_of(SERVER)->ahead && ends[SERVER].n_messages == 2 + N);
  TURN_UNTIL(ends, zps_tlsnet_ahead_missing(conn_of(SERVER)) == 0);
  assert_int_equal(keep->bytes, 0);
  start_read(SERVER, 0, PART);
  assert_int_equal(n_asked(SERVER), 1);
  finish_read(SERVER, 0, PART);
  assert_true(holds_nothing(SERVER));
}

static void the_oldest_of_a_process_give_way(void **state) {
  (void)state;
  tlsnet_of(ends[SERVER].net)->keep.most_bytes = 150 << 10;
  keep_within(&tlsnet_of(ends[SERVER].net)->keep);
}

static void the_oldest_of_a_job_give_way(void **state) {
  (void)state;
  struct zps_net_keep keep = {.most_bytes = 150 << 10};
  zps_net_peer_keep(ends[SERVER].peer, &keep);
  keep_within(&keep);
  announce(RANK, 0, 16);
  TURN_UNTIL(ends, keep.bytes == 16);
  zps_net_peer_keep(ends[SERVER].peer, NULL);
  zps_net_peer_evict(ends[SERVER].peer);
  assert_int_equal(keep.bytes, 0);
  end_connect(&ends[SERVER], &ends[RANK]);
}

static void the_link_is_short(unsigned i, bool is_short) {
  tlsnet_of(ends[i].net)->long_trip_us = is_short ? UINT32_MAX : 0;
  conn_of(i)->path_ns = 0;
}

/* The same memory is announced again: its earlier bytes are not taken, whether new ones come ahead or not. */
static void read_again(bool is_short) {
  announce(RANK, 0, LEN);
  TURN_UNTIL(ends, conn_of(SERVER)->ahead && oldest(SERVER) && oldest(SERVER)->got == LEN);
  TURN_UNTIL(ends, !is_busy(RANK));
  contents_set(RANK, 1);
  the_link_is_short(RANK, is_short);
  announce(RANK, LEN / 2, LEN);
  TURN_UNTIL(ends, ends[SERVER].n_messages == 3);
  assert_int_equal(zps_net_offered(ends[SERVER].peer, 0, lent_mem[RANK].key), 0);
  start_read(SERVER, LEN / 2, LEN);
  assert_int_equal(record.read.is_offered, !is_short);
  finish_read(SERVER, LEN / 2, LEN);
  start_read(SERVER, 0, LEN / 2);
  finish_read(SERVER, 0, LEN / 2);
  assert_true(holds_nothing(SERVER));
}

static void new_bytes_replace_old_ones(void **state) {
  (void)state;
  read_again(false);
}
static void old_bytes_go_though_the_link_is_short_now(void **state) {
  (void)state;
  read_again(true);
}

/* A read waits for bytes of the first offer when the second one comes: it is asked for. */
static void a_waiting_read_of_a_replaced_offer_is_asked_for(void **state) {
  (void)state;
  announce(RANK, 0, LEN);
  TURN_UNTIL(ends, conn_of(SERVER)->ahead && oldest(SERVER) && oldest(SERVER)->got > 0);
  start_read(SERVER, 0, LEN);
  assert_true(conn_of(RANK)->ahead->n_out == 1);
  contents_set(RANK, 1);
  announce(RANK, LEN - 64, 64);
  finish_read(SERVER, 0, LEN);
  assert_int_equal(zps_net_counters(ends[SERVER].net)->reads, 1);
  start_read(SERVER, LEN - 64, 64);
  assert_true(record.read.is_offered);
  finish_read(SERVER, LEN - 64, 64);
  assert_true(holds_nothing(SERVER));
}

/* Memory that is gone is not sent, also in the middle. */
static void released_memory_is_withdrawn(void **state) {
  (void)state;
  announce(RANK, 0, LEN);
  TURN_UNTIL(ends, conn_of(SERVER)->ahead && oldest(SERVER) && oldest(SERVER)->got > 0);
  start_read(SERVER, 0, LEN);
  zps_net_mem_release(ends[RANK].net, &lent_mem[RANK]);
  TURN_UNTIL(ends, record.n_done == 1);
  assert_int_equal(record.code, ZPS_ERR_FABRIC);
  assert_int_equal(zps_net_counters(ends[SERVER].net)->reads, 0);
  assert_true(holds_nothing(SERVER));
  assert_int_equal(conn_of(RANK)->ahead->n_out, 0);
  zps_net_offer(ends[RANK].peer, 0, record.read.key, LEN);
  assert_int_equal(conn_of(RANK)->ahead->n_out, 0);
}

/* What was offered over a connection goes with it. */
static void an_end_takes_offers_along(void **state) {
  (void)state;
  announce(RANK, 0, LEN);
  announce(RANK, LEN, LEN);
  TURN_UNTIL(ends, conn_of(SERVER)->ahead && oldest(SERVER) && oldest(SERVER)->got > 0);
  start_read(SERVER, 0, LEN);
  zps_net_peer_cut(ends[RANK].peer);
  TURN_UNTIL(ends, ends[RANK].n_errors == 1 && ends[SERVER].n_errors == 1 && record.n_released == 1);
  assert_int_equal(record.code, ZPS_ERR_PEER_LOST);
  contents_set(RANK, 1);
  for (unsigned i = 0; i < 2; i++) zps_net_peer_renew(ends[i].peer);
  connect_ends();
  assert_int_equal(zps_net_offered(ends[SERVER].peer, LEN, lent_mem[RANK].key), 0);
  start_read(SERVER, 0, LEN);
  assert_false(record.read.is_offered);
  finish_read(SERVER, 0, LEN);
  announce(RANK, 0, LEN);
  TURN_UNTIL(ends, conn_of(SERVER)->ahead && oldest(SERVER));
  start_read(SERVER, 0, LEN);
  finish_read(SERVER, 0, LEN);
}

/* Reads of offers end with their peer, whether their bytes are here or not. The rest of the bytes is dropped. */
static void an_evicted_peer_loses_its_reads(void **state) {
  (void)state;
  static struct read_record early;
  announce(RANK, 0, LEN);
  TURN_UNTIL(ends, conn_of(SERVER)->ahead && oldest(SERVER) && oldest(SERVER)->got > 64);
  start_read(SERVER, 0, 64);
  early = record;
  struct tlsnet *const net = tlsnet_of(ends[SERVER].net);
  (void)zps_net_read_pop(&net->over); /* the copy takes its place */
  early.read.ctx = &early;
  zps_tlsnet_read_came(net, &early.read);
  start_read(SERVER, 64, LEN / 2);
  const uint32_t got = oldest(SERVER)->got;
  assert_true(got < LEN / 2);
  zps_net_peer_evict(ends[SERVER].peer);
  zps_net_progress(ends[SERVER].net);
  assert_int_equal(early.code, ZPS_ERR_PEER_LOST);
  assert_int_equal(record.code, ZPS_ERR_PEER_LOST);
  assert_true(early.n_released == 1 && record.n_released == 1);
  end_connect(&ends[SERVER], &ends[RANK]);
  memset(landed[SERVER], 0, BYTES);
  TURN_UNTIL(ends, zps_tlsnet_ahead_missing(conn_of(SERVER)) == 0);
  for (unsigned k = got; k < 64 + LEN / 2; k++) assert_int_equal(landed[SERVER][k], 0);
  start_read(SERVER, 64 + LEN / 2, LEN / 2 - 64);
  finish_read(SERVER, 64 + LEN / 2, LEN / 2 - 64);
  assert_true(holds_nothing(SERVER));
}

/* The owner gives the reader up, and uses its memory for something else: none of that comes. */
static void an_evicted_reader_gets_no_new_bytes(void **state) {
  (void)state;
  announce(SERVER, 0, LEN);
  TURN_UNTIL(ends, conn_of(RANK)->ahead && oldest(RANK) && oldest(RANK)->got > 0);
  start_read(RANK, 0, LEN);
  assert_true(conn_of(SERVER)->ahead->n_out > 0);
  zps_net_peer_evict(ends[SERVER].peer);
  contents_set(SERVER, 1);
  TURN_UNTIL(ends, record.n_done == 1);
  assert_int_equal(record.code, ZPS_ERR_PEER_LOST);
  contents_set(SERVER, 0);
  for (unsigned k = 0; k < LEN; k++) assert_true(landed[RANK][k] == lent[SERVER][k] || landed[RANK][k] == 0);
  end_connect(&ends[SERVER], &ends[RANK]);
}

/* Where this end has no peer, nobody reads, and no bytes are kept. */
static void a_stranger_offers_in_vain(void **state) {
  (void)state;
  struct tlsnet_conn *const conn = conn_of(SERVER);
  announce(RANK, 0, LEN);
  TURN_UNTIL(ends, conn->ahead && oldest(SERVER) && oldest(SERVER)->got == LEN);
  assert_int_equal(conn->ahead->held.bytes, LEN);
  zps_net_peer_evict(ends[SERVER].peer);
  assert_true(TAILQ_EMPTY(&conn->ahead->offers) && conn->ahead->held.bytes == 0);
  announce(RANK, LEN, LEN);
  TURN_UNTIL(ends, ends[SERVER].n_messages == 3);
  end_connect(&ends[SERVER], &ends[RANK]);
  assert_ptr_equal(conn_of(SERVER), conn);
  TURN_UNTIL(ends, zps_tlsnet_ahead_missing(conn) == 0);
  assert_true(holds_nothing(SERVER));
}

/* A second handle of one connection may announce what the first one has offered. */
static void another_peer_of_the_connection_replaces_all(void **state) {
  (void)state;
  announce(SERVER, 0, LEN);
  TURN_UNTIL(ends, conn_of(RANK)->ahead && oldest(RANK) && oldest(RANK)->got == LEN);
  struct zps_net_peer *const peer = ends[SERVER].peer;
  end_connect(&ends[SERVER], &ends[RANK]);
  assert_ptr_equal(tlsnet_peer_of(peer)->conn, conn_of(SERVER));
  contents_set(SERVER, 1);
  say(SERVER);
  TURN_UNTIL(ends, ends[RANK].n_messages == 3);
  assert_true(holds_nothing(RANK));
  start_read(RANK, 0, LEN);
  finish_read(RANK, 0, LEN);
  zps_net_peer_evict(peer);
}

static struct tlsnet_offer wrong;

static void put_offer(struct tlsnet_conn *conn) {
  zps_tlsnet_offer_write(&wrong, zps_tlsnet_frame_add(conn, TLSNET_OFFER, TLSNET_OFFER_BYTES));
}
/* With two first connections messages and offers of one end are in no order: nothing is taken from offers. */
static void two_connections_have_no_offers(void **state) {
  (void)state;
  announce(RANK, 0, LEN);
  TURN_UNTIL(ends, conn_of(SERVER)->ahead && oldest(SERVER) && oldest(SERVER)->got == LEN);
  struct zps_net_peer *const peer = ends[RANK].peer;
  end_connect(&ends[RANK], &ends[SERVER]);
  TURN_UNTIL(ends, conn_of(SERVER)->is_doubled);
  assert_true(holds_nothing(SERVER));
  assert_true(conn_of(RANK)->is_doubled && tlsnet_peer_of(peer)->conn->is_doubled);
  zps_net_offer(peer, 0, lent_mem[RANK].key, LEN);
  struct tlsnet_conn *const first = tlsnet_peer_of(peer)->conn;
  assert_int_equal(first->ahead->n_out, 0);
  wrong = (struct tlsnet_offer){
      .key = lent_mem[RANK].key, .len = LEN, .ahead = 64}; /* made before the other one was there */
  put_offer(first);
  const unsigned n_messages = ends[SERVER].n_messages;
  assert_int_equal(zps_net_send(peer, "read!", 5), ZPS_OK);
  TURN_UNTIL(ends, ends[SERVER].n_messages == n_messages + 1);
  assert_int_equal(zps_tlsnet_ahead_missing(conn_of(SERVER)), 64);
  assert_int_equal(zps_net_offered(ends[SERVER].peer, 0, lent_mem[RANK].key), 0);
  start_read(SERVER, 0, LEN);
  assert_false(record.read.is_offered);
  finish_read(SERVER, 0, LEN);
  zps_net_peer_evict(peer);
}

/* One end alone may see two first connections. It tells the other one, which sends nothing in vain any more. */
static void the_other_end_is_told_of_two_connections(void **state) {
  (void)state;
  announce(RANK, 0, LEN);
  TURN_UNTIL(ends, conn_of(SERVER)->ahead && oldest(SERVER) && oldest(SERVER)->got > 0);
  for (unsigned k = 0; k < 2; k++) zps_tlsnet_ahead_double(conn_of(SERVER));
  TURN_UNTIL(ends, conn_of(RANK)->is_doubled);
  assert_false(conn_of(RANK)->must_decline);
  TURN_UNTIL(ends, holds_nothing(SERVER));
  announce(RANK, LEN, LEN);
  assert_int_equal(conn_of(RANK)->ahead->n_out, 0);
  TURN_UNTIL(ends, ends[SERVER].n_messages == 3);
  start_read(SERVER, LEN, LEN);
  assert_false(record.read.is_offered);
  finish_read(SERVER, LEN, LEN);
}

/* An offer waits in front of its message. */
static void an_offer_waits_for_room(void **state) {
  (void)state;
  zps_tlsnet_conn_full(conn_of(RANK), true);
  announce(RANK, 0, LEN);
  announce(RANK, LEN, LEN);
  assert_int_equal(zps_net_unsent(ends[RANK].peer), 2);
  record.read.done = NULL;
  ends[SERVER].on_message = read_at_once;
  zps_tlsnet_conn_full(conn_of(RANK), false);
  while (ends[SERVER].n_messages < 2) zps_net_progress(ends[RANK].net), zps_net_progress(ends[SERVER].net);
  assert_int_equal(zps_net_offered(ends[SERVER].peer, 0, lent_mem[RANK].key), LEN);
  TURN_UNTIL(ends, record.n_done == 1);
}

/* The message of an offer waits, as for credit. No byte leaves before it, since no read could take it. */
static void bytes_leave_behind_their_message(void **state) {
  (void)state;
  zps_net_offer(ends[RANK].peer, 0, lent_mem[RANK].key, LEN);
  TURN_UNTIL(ends, conn_of(SERVER)->ahead && oldest(SERVER));
  for (unsigned k = 0; k < 100; k++) zps_net_progress(ends[RANK].net), zps_net_progress(ends[SERVER].net);
  assert_int_equal(oldest(SERVER)->got, 0);
  assert_int_equal(conn_of(RANK)->ahead->n_out, 1);
  say(RANK);
  zps_net_offer(ends[RANK].peer, LEN, lent_mem[RANK].key, 64);
  TURN_UNTIL(ends, oldest(SERVER)->got == LEN);
  for (unsigned k = 0; k < 100; k++) zps_net_progress(ends[RANK].net), zps_net_progress(ends[SERVER].net);
  assert_int_equal(zps_tlsnet_ahead_missing(conn_of(SERVER)), 64);
  start_read(SERVER, 0, LEN);
  finish_read(SERVER, 0, LEN);
}

/* The server takes few bytes at a time, so that messages wait in the rank's socket. Bytes that come ahead wait there,
 * too, when the rank ends the connection. The messages come through. */
static void an_end_with_unread_bytes_loses_no_message(void **state) {
  (void)state;
  static const uint8_t message[8 << 10];
  const int few = 4096;
  struct tlsnet *const server = tlsnet_of(ends[SERVER].net);
  assert_int_equal(setsockopt(server->listen_fd, SOL_SOCKET, SO_RCVBUF, &few, sizeof few), 0);
  zps_net_peer_cut(ends[RANK].peer);
  TURN_UNTIL(ends, ends[RANK].n_errors == 1 && ends[SERVER].n_errors == 1);
  for (unsigned i = 0; i < 2; i++) zps_net_peer_renew(ends[i].peer);
  connect_ends();
  for (unsigned k = 0; k < 4; k++) announce(SERVER, k * LEN, LEN);
  while (!conn_of(SERVER)->is_full) zps_net_progress(ends[SERVER].net);
  for (unsigned k = 0; k < 2; k++) assert_int_equal(zps_net_send(ends[RANK].peer, message, sizeof message), ZPS_OK);
  zps_net_wait(ends[RANK].net, 0);
  assert_int_equal(conn_of(RANK)->out_len, 0);
  ends[SERVER].n_messages = 0;
  zps_net_peer_evict(ends[RANK].peer);
  TURN_UNTIL(ends, ends[SERVER].n_errors == 2);
  assert_int_equal(ends[SERVER].n_messages, 2);
  TURN_UNTIL(ends, LIST_EMPTY(&tlsnet_of(ends[RANK].net)->ended));
  end_connect(&ends[RANK], &ends[SERVER]);
}

static void a_short_link_carries_no_offer(void **state) {
  (void)state;
  for (unsigned i = 0; i < 2; i++) {
    the_link_is_short(i, true);
    zps_net_offer(ends[i].peer, 0, lent_mem[i].key, LEN);
    assert_int_equal(conn_of(i)->out_len, 0);
    assert_null(conn_of(i)->ahead);
  }
  tlsnet_of(ends[RANK].net)->long_trip_us = TLSNET_LONG_TRIP_US;
  conn_of(RANK)->path_ns = 0;
  zps_net_offer(ends[RANK].peer, 0, lent_mem[RANK].key, LEN);
  assert_false(conn_of(RANK)->has_offered); /* the loopback's trip is measured */
  const uint64_t look_ns = conn_of(RANK)->path_ns;
  assert_true(look_ns > 0);
  zps_net_offer(ends[RANK].peer, 0, lent_mem[RANK].key, LEN);
  assert_int_equal(conn_of(RANK)->path_ns, look_ns);
}

/* ---- frames that break the protocol ---- */

static void put_ahead(struct tlsnet_conn *conn, size_t len) {
  memset(zps_tlsnet_frame_add(conn, TLSNET_AHEAD, len), 0, len);
}

static void expect_end(struct tlsnet_conn *conn, const char *text) {
  zps_tlsnet_conn_dirty(conn);
  TURN_UNTIL(ends, ends[SERVER].n_errors == 1);
  assert_int_equal(ends[SERVER].error, ZPS_ERR_PROTOCOL);
  const char *const said = tlsnet_peer_of(ends[SERVER].peer)->error_text;
  if (!strstr(said, text)) fail_msg("\"%s\" is not in \"%s\"", text, said);
}

static void more_ahead_than_payload(void **state) {
  (void)state;
  wrong = (struct tlsnet_offer){.key = 1, .len = 100, .ahead = 101};
  put_offer(conn_of(RANK));
  expect_end(conn_of(RANK), "offers 101 bytes ahead of a payload of 100: it may be 100 at most");
}
static void more_ahead_than_the_limit(void **state) {
  (void)state;
  wrong = (struct tlsnet_offer){.key = 1, .len = UINT32_MAX, .ahead = TLSNET_AHEAD_MAX + 1};
  put_offer(conn_of(RANK));
  expect_end(conn_of(RANK), "it may be 1048576 at most");
}
static void an_offer_beyond_all_memory(void **state) {
  (void)state;
  wrong = (struct tlsnet_offer){.key = 1, .at = 2, .len = UINT64_MAX - 1};
  put_offer(conn_of(RANK));
  expect_end(conn_of(RANK), "no memory is so large");
}
static void bytes_without_an_offer(void **state) {
  (void)state;
  put_ahead(conn_of(RANK), 8);
  expect_end(conn_of(RANK), "sends bytes of an offer that it has not made");
}
static void more_bytes_than_offered(void **state) {
  (void)state;
  wrong = (struct tlsnet_offer){.key = 1, .len = 100, .ahead = 7};
  put_offer(conn_of(RANK));
  put_ahead(conn_of(RANK), 8);
  expect_end(conn_of(RANK), "sends 8 bytes of an offer that lacks 7");
}
static void too_many_offers(void **state) {
  (void)state;
  wrong = (struct tlsnet_offer){.key = 1, .len = 1, .ahead = 1};
  for (unsigned k = 0; k <= TLSNET_OFFERS_MAX; k++, wrong.at++) put_offer(conn_of(RANK));
  expect_end(conn_of(RANK), "has more than 64 offers at a time");
}
static void an_offer_over_a_further_connection(void **state) {
  (void)state;
  struct tlsnet_conn *const further = LIST_FIRST(&conn_of(RANK)->further);
  wrong = (struct tlsnet_offer){.key = 1, .len = 1, .ahead = 1};
  put_offer(further);
  zps_tlsnet_conn_dirty(further);
  TURN_UNTIL(ends, zps_net_peer_connections(ends[SERVER].peer) == 2);
  assert_null(conn_of(SERVER)->ahead);
  assert_int_equal(ends[SERVER].n_errors, 0);
}

/* As many complete offers as there can be make room for the next one. */
static void complete_offers_make_room(void **state) {
  (void)state;
  wrong = (struct tlsnet_offer){.key = 1, .len = 1, .ahead = 1};
  for (unsigned k = 0; k <= TLSNET_OFFERS_MAX; k++, wrong.at++) {
    put_offer(conn_of(RANK));
    put_ahead(conn_of(RANK), 1);
  }
  zps_tlsnet_conn_dirty(conn_of(RANK));
  say(RANK);
  TURN_UNTIL(ends, ends[SERVER].n_messages == 2 && zps_tlsnet_ahead_missing(conn_of(SERVER)) == 0);
  TURN_UNTIL(ends, zps_net_offered(ends[SERVER].peer, TLSNET_OFFERS_MAX, 1) == 1);
  assert_int_equal(zps_net_offered(ends[SERVER].peer, 0, 1), 0);
  assert_int_equal(zps_net_offered(ends[SERVER].peer, 1, 1), 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(a_server_reads_at_once),
      TEST(a_rank_reads_at_once),
      TEST(some_bytes_are_there),
      TEST(all_bytes_are_there),
      TEST(other_parts_are_asked_for),
      TEST(the_rest_is_asked_for),
      TEST(offered_bytes_tell_the_rate),
      TEST(tcp_bounds_what_is_sent_ahead),
      TEST(the_oldest_give_way),
      TEST(the_oldest_of_a_process_give_way),
      TEST(the_oldest_of_a_job_give_way),
      TEST(new_bytes_replace_old_ones),
      TEST(old_bytes_go_though_the_link_is_short_now),
      TEST(a_waiting_read_of_a_replaced_offer_is_asked_for),
      TEST(released_memory_is_withdrawn),
      TEST(an_end_takes_offers_along),
      TEST(an_evicted_peer_loses_its_reads),
      TEST(an_evicted_reader_gets_no_new_bytes),
      TEST(a_stranger_offers_in_vain),
      TEST(another_peer_of_the_connection_replaces_all),
      TEST(two_connections_have_no_offers),
      TEST(the_other_end_is_told_of_two_connections),
      TEST(an_offer_waits_for_room),
      TEST(bytes_leave_behind_their_message),
      TEST(an_end_with_unread_bytes_loses_no_message),
      TEST(a_short_link_carries_no_offer),
      TEST(more_ahead_than_payload),
      TEST(more_ahead_than_the_limit),
      TEST(an_offer_beyond_all_memory),
      TEST(bytes_without_an_offer),
      TEST(more_bytes_than_offered),
      TEST(too_many_offers),
      TEST(an_offer_over_a_further_connection),
      TEST(complete_offers_make_room),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
