/* Several connections of a link of the encrypted fabric: a rank that dials, and a server that answers. TLS is empty
 * here. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/net/bulk.h"
#include "tests/support/logs.h"
#include "tests/support/tls_ends.h"

enum { CONNECTIONS = 4, PIECE = 64 << 10 };

static bool asks_for_bbr;

/* The number of the end that dials counts: the other one has its own, which says nothing. */
static int setup(void **state) {
  (void)state;
  open_end(RANK, CONNECTIONS, asks_for_bbr);
  open_end(SERVER, 2, asks_for_bbr);
  for (unsigned i = 0; i < 2; i++) end_connect(&ends[i], &ends[1 - i]);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  pair_close(ends);
  return 0;
}

static unsigned n_connections(unsigned i) {
  return zps_net_peer_connections(ends[i].peer);
}

static void say(unsigned i) {
  assert_int_equal(zps_net_send(ends[i].peer, "well?", 5), ZPS_OK);
}

static void connect_all(void) {
  say(RANK);
  TURN_UNTIL(ends, ends[SERVER].n_messages == 1);
  assert_int_equal(n_connections(RANK), 1); /* the rank has not heard of the server */
  say(SERVER);
  TURN_UNTIL(ends, n_connections(RANK) == CONNECTIONS && n_connections(SERVER) == CONNECTIONS);
}

static struct tlsnet_conn *conn_of(unsigned i, unsigned number) {
  struct tlsnet_conn *conn;
  LIST_FOREACH(conn, &tlsnet_of(ends[i].net)->conns, all_link) {
    if (conn->hello.number == number) return conn;
  }
  return NULL;
}

static void further_are_dialled_when_the_other_end_is_heard(void **state) {
  (void)state;
  connect_all();
  for (unsigned i = 0; i < 2; i++)
    for (unsigned k = 1; k < CONNECTIONS; k++) assert_ptr_equal(conn_of(i, k)->first, conn_of(i, 0));
  assert_int_equal(tlsnet_of(ends[SERVER].net)->n_strangers, 0);
}

/* Each read is over one connection, and each connection has its share. */
static void reads_are_spread(void **state) {
  (void)state;
  static struct read_record records[2][16];
  connect_all();
  for (unsigned i = 0; i < 2; i++) {
    for (unsigned k = 0; k < 16; k++) {
      record_init(&records[i][k], &landed_mem[i], &lent_mem[1 - i], PIECE);
      records[i][k].read.local = landed[i] + k * PIECE;
      records[i][k].read.addr += k * PIECE;
      assert_int_equal(zps_net_read(ends[i].peer, &records[i][k].read), ZPS_OK);
    }
    zps_net_wait(ends[i].net, 0); /* questions leave */
    for (unsigned k = 0; k < CONNECTIONS; k++) assert_int_equal(conn_of(i, k)->asked.n, 16 / CONNECTIONS);
  }
  for (unsigned i = 0; i < 2; i++)
    for (unsigned k = 0; k < 16; k++) TURN_UNTIL(ends, records[i][k].n_done == 1);
  for (unsigned i = 0; i < 2; i++) {
    assert_memory_equal(landed[i], lent[1 - i], 16 * PIECE);
    for (unsigned k = 0; k < CONNECTIONS; k++) assert_int_equal(conn_of(i, k)->asked.bytes, 0);
  }
}

/* Three reads have less than 48 KiB to come when the next one is asked. */
static void small_reads_use_few_connections(void **state) {
  (void)state;
  enum { SMALL = 16 << 10 };
  static struct read_record records[4];
  connect_all();
  for (unsigned k = 0; k < 4; k++) {
    record_init(&records[k], &landed_mem[SERVER], &lent_mem[RANK], SMALL);
    assert_int_equal(zps_net_read(ends[SERVER].peer, &records[k].read), ZPS_OK);
  }
  zps_net_wait(ends[SERVER].net, 0);
  assert_int_equal(conn_of(SERVER, 0)->asked.n, 3);
  assert_int_equal(LIST_FIRST(&conn_of(SERVER, 0)->further)->asked.n, 1);
  for (unsigned k = 0; k < 4; k++) TURN_UNTIL(ends, records[k].n_done == 1);
}

/* A connection that carries nothing gets no more reads than the bytes that it owes allow. */
static void a_slow_connection_gets_fewer_reads(void **state) {
  (void)state;
  static struct read_record records[64];
  connect_all();
  struct tlsnet_conn *const slow = conn_of(SERVER, 2), *const of_rank = conn_of(RANK, 2);
  slow->asked.bytes = 8 * PIECE;
  for (unsigned k = 0; k < 28; k++) {
    record_init(&records[k], &landed_mem[SERVER], &lent_mem[RANK], PIECE);
    assert_int_equal(zps_net_read(ends[SERVER].peer, &records[k].read), ZPS_OK);
  }
  zps_net_wait(ends[SERVER].net, 0);
  assert_int_equal(slow->asked.n, 1);
  assert_int_equal(conn_of(SERVER, 1)->asked.n, 9);
  slow->asked.bytes -= 8 * PIECE;
  for (unsigned k = 0; k < 28; k++) TURN_UNTIL(ends, records[k].n_done == 1);
  assert_int_equal(of_rank->served.n, 0);
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

/* Cuts a further connection in the middle of the bytes of a read, at either end, in both directions. */
static void cut_in_the_middle(unsigned reader, unsigned cutter) {
  struct zps_bulk *bulk;
  struct zps_bulk_peer *from;
  struct transfer transfer = {.read = {.local = landed[reader],
                                       .mem = &landed_mem[reader],
                                       .len = BYTES,
                                       .addr = lent_mem[1 - reader].addr,
                                       .key = lent_mem[1 - reader].key,
                                       .done = transfer_done,
                                       .ctx = &transfer}};
  connect_all();
  memset(landed[reader], 0, BYTES);
  assert_int_equal(zps_bulk_create(ends[reader].net, &(struct zps_bulk_config){.piece_bytes = PIECE}, &bulk), ZPS_OK);
  assert_int_equal(zps_bulk_peer_add(bulk, ends[reader].peer, &from), ZPS_OK);
  zps_bulk_start(from, &transfer.read);
  bool is_cut = false;
  struct patience patience = {0};
  while (!transfer.is_done) {
    struct tlsnet_conn *const conn = conn_of(reader, 3);
    if (!is_cut && conn && conn->asked.n > 0 && conn->asked.ring[conn->asked.first].got > 0) {
      zps_tlsnet_conn_end(conn_of(cutter, 3), ZPS_ERR_PEER_LOST, "the cable is out");
      is_cut = true;
    }
    if (patience_is_over(&patience)) fail_msg("the transfer does not end");
    if (zps_net_progress(ends[0].net) + zps_net_progress(ends[1].net) + zps_bulk_progress(bulk) == 0)
      zps_net_wait(ends[0].net, ZPS_NS_PER_MS / 10);
  }
  assert_true(is_cut);
  assert_int_equal(transfer.code, ZPS_OK);
  assert_memory_equal(landed[reader], lent[1 - reader], BYTES);
  assert_int_equal(ends[0].n_errors + ends[1].n_errors, 0);
  TURN_UNTIL(ends, n_connections(RANK) == CONNECTIONS - 1 && n_connections(SERVER) == CONNECTIONS - 1);
  const unsigned n_messages = ends[SERVER].n_messages;
  say(RANK);
  TURN_UNTIL(ends, ends[SERVER].n_messages == n_messages + 1);
  /* It is dialled again after its pause. */
  struct tlsnet_conn *const first = conn_of(RANK, 0);
  assert_true(first->further_ns != ZPS_NEVER && first->pause_ns >= ZPS_NS_PER_S);
  zps_tlsnet_deadline_set(tlsnet_of(ends[RANK].net), &first->further_ns, zps_clock_ns());
  TURN_UNTIL(ends, n_connections(RANK) == CONNECTIONS && n_connections(SERVER) == CONNECTIONS);
  zps_net_peer_evict(ends[reader].peer);
  zps_bulk_peer_remove(from);
  zps_net_progress(ends[reader].net);
  zps_bulk_destroy(bulk);
  end_connect(&ends[reader], &ends[1 - reader]);
}

static void a_server_goes_on_without_a_further_one(void **state) {
  (void)state;
  cut_in_the_middle(SERVER, RANK);
}
static void a_rank_goes_on_without_a_further_one(void **state) {
  (void)state;
  cut_in_the_middle(RANK, SERVER);
}

static struct read_record record;

/* A read of the rank over its connection 1. */
static void read_over_1(void) {
  for (unsigned k = 0; k < CONNECTIONS; k++) conn_of(RANK, k)->asked.bytes += k == 1 ? 0 : BYTES;
  record_init(&record, &landed_mem[RANK], &lent_mem[SERVER], PIECE);
  assert_int_equal(zps_net_read(ends[RANK].peer, &record.read), ZPS_OK);
  zps_net_wait(ends[RANK].net, 0);
  for (unsigned k = 0; k < CONNECTIONS; k++) conn_of(RANK, k)->asked.bytes -= k == 1 ? 0 : BYTES;
  assert_int_equal(conn_of(RANK, 1)->asked.n, 1);
}

/* Where nothing of a read comes over a further connection, that one ends, and the read may be tried again. */
static void a_silent_further_one_ends(void **state) {
  (void)state;
  connect_all();
  struct tlsnet_conn *const conn = conn_of(RANK, 1);
  assert_true(conn->answer_ns == ZPS_NEVER);
  read_over_1();
  TURN_UNTIL(ends, record.n_done == 1);
  assert_int_equal(record.code, ZPS_OK);
  assert_true(conn->answer_ns == ZPS_NEVER);
  read_over_1();
  assert_true(conn->answer_ns != ZPS_NEVER);
  zps_tlsnet_deadline_set(tlsnet_of(ends[RANK].net), &conn->answer_ns, zps_clock_ns());
  while (record.n_done == 0) zps_net_progress(ends[RANK].net);
  assert_int_equal(record.code, ZPS_ERR_PEER_LOST);
  assert_int_equal(ends[RANK].n_errors, 0);
  TURN_UNTIL(ends, n_connections(SERVER) == CONNECTIONS - 1);
}

/* A connection that was dialled again has its deadline, too, though it began while deadlines were looked at. */
static void a_late_handshake_is_seen(void **state) {
  (void)state;
  connect_all();
  struct tlsnet *const net = tlsnet_of(ends[RANK].net);
  zps_tlsnet_conn_end(conn_of(RANK, 1), ZPS_ERR_PEER_LOST, "a test");
  zps_tlsnet_deadline_set(net, &conn_of(RANK, 0)->further_ns, zps_clock_ns());
  zps_tlsnet_deadlines(net, zps_clock_ns());
  assert_true(conn_of(RANK, 1)->deadline_ns != ZPS_NEVER);
  assert_true(net->next_deadline_ns <= conn_of(RANK, 1)->deadline_ns);
  TURN_UNTIL(ends, n_connections(RANK) == CONNECTIONS);
}

/* The next descriptors, `n` of them, are the last ones of this process. */
static struct rlimit leave_descriptors(rlim_t n) {
  struct rlimit before, few;
  const int next = dup(STDERR_FILENO);
  close(next);
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
  few = before;
  few.rlim_cur = (rlim_t)next + n;
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
  return before;
}

/* Further connections leave half of the descriptors to others, at both ends. */
static void few_descriptors_are_left_alone(void **state) {
  (void)state;
  connect_all();
  struct tlsnet *const net = tlsnet_of(ends[RANK].net);
  struct tlsnet_conn *const first = conn_of(RANK, 0);
  zps_tlsnet_conn_end(conn_of(RANK, 1), ZPS_ERR_PEER_LOST, "a test");
  zps_tlsnet_deadline_set(net, &first->further_ns, zps_clock_ns());
  struct rlimit before = leave_descriptors(1);
  logs_start();
  logs_expect(ZPS_LOG_WARN, "no further connection: half of this process's descriptors are in use");
  zps_tlsnet_deadlines(net, zps_clock_ns());
  logs_finish();
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
  assert_null(conn_of(RANK, 1));
  assert_true(first->further_ns > zps_clock_ns());
  zps_tlsnet_deadline_set(net, &first->further_ns, zps_clock_ns());
  zps_tlsnet_deadlines(net, zps_clock_ns());
  assert_non_null(conn_of(RANK, 1));
  before = leave_descriptors(1);
  logs_start();
  logs_expect(ZPS_LOG_WARN, "half of this process's descriptors are in use");
  TURN_UNTIL(ends, !conn_of(RANK, 1));
  logs_finish();
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
  assert_int_equal(n_connections(SERVER), CONNECTIONS - 1);
  assert_int_equal(ends[0].n_errors + ends[1].n_errors, 0);
}

/* The pause before the next attempt doubles, up to 64 s, while nothing comes. Losses of one moment are one. */
static void pauses_grow(void **state) {
  (void)state;
  connect_all();
  struct tlsnet_conn *const first = conn_of(RANK, 0);
  for (unsigned i = 0; i < 10; i++) {
    zps_tlsnet_conn_end(conn_of(RANK, 1), ZPS_ERR_PEER_LOST, "a test");
    const uint64_t wanted_ns = (i < 6 ? 1ull << i : 64) * ZPS_NS_PER_S;
    assert_int_equal(first->pause_ns, wanted_ns);
    zps_tlsnet_deadline_set(tlsnet_of(ends[RANK].net), &first->further_ns, zps_clock_ns());
    TURN_UNTIL(ends, n_connections(RANK) == CONNECTIONS);
  }
  read_over_1();
  TURN_UNTIL(ends, record.n_done == 1);
  zps_tlsnet_conn_end(conn_of(RANK, 1), ZPS_ERR_PEER_LOST, "a test");
  const uint64_t further_ns = first->further_ns;
  while (!LIST_EMPTY(&first->further)) zps_tlsnet_conn_end(LIST_FIRST(&first->further), ZPS_ERR_PEER_LOST, "a test");
  assert_int_equal(first->pause_ns, ZPS_NS_PER_S);
  assert_int_equal(first->further_ns, further_ns);
}

/* With its first connection a link loses them all, and gets them all again. */
static void the_first_one_takes_the_others_along(void **state) {
  (void)state;
  connect_all();
  zps_net_peer_cut(ends[RANK].peer);
  TURN_UNTIL(ends, ends[RANK].n_errors == 1 && ends[SERVER].n_errors == 1);
  for (unsigned i = 0; i < 2; i++) assert_true(LIST_EMPTY(&tlsnet_of(ends[i].net)->conns));
  for (unsigned i = 0; i < 2; i++) zps_net_peer_renew(ends[i].peer);
  ends[SERVER].n_messages = 0;
  connect_all();
}

/* An evicted peer leaves no connection at the end that dialled, and so none at the other. */
static void eviction_ends_them_all(void **state) {
  (void)state;
  connect_all();
  zps_net_peer_evict(ends[RANK].peer);
  assert_true(LIST_EMPTY(&tlsnet_of(ends[RANK].net)->conns));
  TURN_UNTIL(ends, LIST_EMPTY(&tlsnet_of(ends[SERVER].net)->conns));
  zps_net_peer_evict(ends[SERVER].peer);
  for (unsigned i = 0; i < 2; i++) end_connect(&ends[i], &ends[1 - i]);
  ends[SERVER].n_messages = 0;
  connect_all();
}

/* What the rank asks for comes after the server evicted it: it gets no byte, over no connection. */
static void reads_after_eviction_are_lost(unsigned over, bool is_asked_before) {
  connect_all();
  if (!is_asked_before) zps_net_peer_evict(ends[SERVER].peer);
  for (unsigned k = 0; k < CONNECTIONS; k++) conn_of(RANK, k)->asked.bytes += k == over ? 0 : BYTES;
  record_init(&record, &landed_mem[RANK], &lent_mem[SERVER], PIECE);
  assert_int_equal(zps_net_read(ends[RANK].peer, &record.read), ZPS_OK);
  zps_net_wait(ends[RANK].net, 0);
  if (is_asked_before) {
    struct patience patience = {0};
    while (conn_of(SERVER, over)->served.n == 0) {
      zps_tlsnet_receive(conn_of(SERVER, over));
      if (patience_is_over(&patience)) fail_msg("the READ does not come");
    }
    zps_net_peer_evict(ends[SERVER].peer);
  }
  TURN_UNTIL(ends, record.n_done == 1);
  assert_int_equal(record.code, ZPS_ERR_PEER_LOST);
  assert_int_equal(landed[RANK][0] | landed[RANK][PIECE - 1], 0);
  zps_net_peer_evict(ends[RANK].peer);
  TURN_UNTIL(ends, LIST_EMPTY(&tlsnet_of(ends[SERVER].net)->conns));
  for (unsigned i = 0; i < 2; i++) end_connect(&ends[i], &ends[1 - i]);
}

static void an_evicted_peer_reads_nothing(void **state) {
  (void)state;
  for (unsigned i = 0; i < 4; i++) {
    ends[SERVER].n_messages = ends[RANK].n_errors = 0;
    reads_after_eviction_are_lost(i % 2 ? CONNECTIONS - 1 : 0, i < 2);
  }
}

/* All connections take bbr, or a warning at the start says why not. */
static void bbr_is_taken_where_it_is(void **state) {
  (void)state;
  logs_start();
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool is_there = zps_tlsnet_take_bbr(fd);
  close(fd);
  if (!is_there) logs_expect(ZPS_LOG_WARN, "cannot take TCP's congestion control bbr");
  asks_for_bbr = true;
  setup(NULL);
  asks_for_bbr = false;
  connect_all();
  for (unsigned i = 0; i < 2 * CONNECTIONS; i++) {
    char name[16] = "";
    socklen_t len = sizeof name;
    assert_int_equal(getsockopt(conn_of(i % 2, i / 2)->fd, IPPROTO_TCP, TCP_CONGESTION, name, &len), 0);
    if (is_there) assert_string_equal(name, "bbr");
  }
  teardown(NULL);
  logs_finish();
}

static void a_wrong_number_is_refused(void **state) {
  (void)state;
  const struct zps_net_config config = {
      .provider = "tls", .interface = "lo", .max_msg = 512, .connections = 33, .tls = (void *)&identity};
  const struct zps_net_handler handler = {.on_message = end_on_message, .on_peer_error = end_on_peer_error};
  struct zps_net *net;
  struct zps_error error;
  assert_int_equal(zps_net_tls_open(&config, &handler, &net, &error), ZPS_ERR_INVALID);
  assert_non_null(strstr(error.text, "fabric.connections is 33: a peer has 1 to 32 connections"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(further_are_dialled_when_the_other_end_is_heard, setup, teardown),
      cmocka_unit_test_setup_teardown(reads_are_spread, setup, teardown),
      cmocka_unit_test_setup_teardown(small_reads_use_few_connections, setup, teardown),
      cmocka_unit_test_setup_teardown(a_slow_connection_gets_fewer_reads, setup, teardown),
      cmocka_unit_test_setup_teardown(a_server_goes_on_without_a_further_one, setup, teardown),
      cmocka_unit_test_setup_teardown(a_rank_goes_on_without_a_further_one, setup, teardown),
      cmocka_unit_test_setup_teardown(a_silent_further_one_ends, setup, teardown),
      cmocka_unit_test_setup_teardown(a_late_handshake_is_seen, setup, teardown),
      cmocka_unit_test_setup_teardown(few_descriptors_are_left_alone, setup, teardown),
      cmocka_unit_test_setup_teardown(pauses_grow, setup, teardown),
      cmocka_unit_test_setup_teardown(the_first_one_takes_the_others_along, setup, teardown),
      cmocka_unit_test_setup_teardown(eviction_ends_them_all, setup, teardown),
      cmocka_unit_test_setup_teardown(an_evicted_peer_reads_nothing, setup, teardown),
      cmocka_unit_test(bbr_is_taken_where_it_is),
      cmocka_unit_test(a_wrong_number_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
