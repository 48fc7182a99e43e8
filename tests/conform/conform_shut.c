/* An endpoint that is shut while it is read, and while it reads. */
#include <string.h>
#include <sys/mman.h>

#include "tests/conform/conform.h"

enum {
  LENT_LEN = 32 << 20,
  LENT = 0x11,
  TAKEN_BACK = 0xee,
  N_READS = 4,
  READ_LEN = 1 << 20,
  PIECE_LEAST = 8 << 20,
  SILENT_STEPS = 2000,
  NOBODY_MS = 30000
};

static uint8_t *map(size_t len) {
  uint8_t *const at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(at != MAP_FAILED);
  return at;
}

static void send_text(struct conform_pair *pair, struct zps_net_peer *peer, const struct conform_node *to) {
  const unsigned before = to->n_messages;
  conform_send(peer, "hello", 5, CONFORM_NODES(&pair->a, &pair->b));
  conform_until(to->n_messages == before + 1, &pair->a, &pair->b);
}

/* In pieces that the fabric takes. Returns their number. */
static size_t read_all(struct conform_pair *pair, struct conform_read *reads, uint8_t *to,
                       const struct zps_net_mem *mem, const struct zps_net_mem *from) {
  const size_t most = zps_net_info(pair->b.net)->max_read;
  size_t n = 0;
  for (size_t at = 0; at < LENT_LEN; n++) {
    const size_t len = LENT_LEN - at < most ? LENT_LEN - at : most;
    assert_in_range(n, 0, LENT_LEN / PIECE_LEAST - 1);
    conform_read_start(&reads[n], pair->b_to_a, to + at, mem, len, from->addr + at, from->key);
    at += len;
  }
  return n;
}

/* b has asked for the memory, and takes nothing of it until the owner has it back. Of what the owner then writes there
 * no byte reaches b. Where the owner answers reads, the last one fails: it cannot be through. A fabric that took none
 * of them before finds nobody there: they fail when the time to connect is over. */
void conform_shut_while_read(void **state) {
  (void)state;
  struct zps_net_config config = conform_config();
  struct conform_pair pair;
  struct conform_read reads[LENT_LEN / PIECE_LEAST];
  uint8_t *const lent = map(LENT_LEN), *const got = map(LENT_LEN);
  size_t n_lent = 0;
  unsigned n_steps = 0; /* enough where reads may stay without a completion */
  memset(lent, LENT, LENT_LEN);
  config.connect_timeout_ms = NOBODY_MS;
  conform_pair_open(&pair, &config);
  struct zps_net_mem lent_mem = conform_register(&pair.a, lent, LENT_LEN);
  struct zps_net_mem got_mem = conform_register(&pair.b, got, LENT_LEN);
  send_text(&pair, pair.b_to_a, &pair.a);
  send_text(&pair, pair.a_to_b, &pair.b);
  const size_t n_reads = read_all(&pair, reads, got, &got_mem, &lent_mem);
  zps_net_wait(pair.b.net, 0); /* some fabrics ask at the end of a turn */
  for (int i = 0; i < 200; i++) zps_net_progress(pair.a.net);
  zps_net_mem_release(pair.a.net, &lent_mem);
  zps_net_shut(pair.a.net);
  memset(lent, TAKEN_BACK, LENT_LEN);
  for (size_t i = 0; i < n_reads; i++)
    conform_until(reads[i].n_done || (conform_target->silent_death && n_steps++ > SILENT_STEPS), &pair.b, &pair.a);
  for (size_t i = 0; i < LENT_LEN; i++) {
    if (got[i] == TAKEN_BACK) fail_msg("byte %zu is of the memory that its owner had back", i);
    n_lent += got[i] == LENT;
  }
  if (conform_target->answers_reads) assert_true(n_lent > 0); /* without answers nothing was under way */
  munmap(lent, LENT_LEN);
  zps_net_peer_evict(pair.b_to_a);
  for (size_t i = 0; i < n_reads; i++) {
    conform_until(reads[i].n_done, &pair.b, &pair.a);
    if (reads[i].code == ZPS_ERR_PEER_LOST && !conform_target->silent_death)
      conform_until(reads[i].n_released == 1, &pair.b, &pair.a);
  }
  if (!conform_target->reads_need_no_peer) assert_int_not_equal(reads[n_reads - 1].code, ZPS_OK);
  conform_pair_close(&pair);
  munmap(got, LENT_LEN);
}

/* A read that was given up, reads that were not, and messages: all end, and what comes next is refused. */
void conform_shut_outstanding(void **state) {
  (void)state;
  const struct zps_net_config config = conform_config();
  struct conform_pair pair;
  struct conform_read reads[N_READS], given_up, late;
  uint8_t *const source = map(N_READS * READ_LEN), *const target = map((N_READS + 1) * READ_LEN);
  uint8_t data[CONFORM_MAX_MSG] = {0};
  struct zps_error error;
  struct zps_net_peer *peer = NULL;
  struct zps_net_mem mem;
  conform_pair_open(&pair, &config);
  struct zps_net *const net = pair.a.net;
  const struct zps_net_mem source_mem = conform_register(&pair.b, source, N_READS * READ_LEN);
  struct zps_net_mem target_mem = conform_register(&pair.a, target, (N_READS + 1) * READ_LEN);
  struct zps_net_peer *const twin = conform_peer_add(&pair.a, &pair.b);
  send_text(&pair, pair.a_to_b, &pair.b);
  if (conform_target->leaks_when_stuck) conform_allow_warnings(1);
  conform_read_start(&given_up, twin, target + N_READS * READ_LEN, &target_mem, READ_LEN, source_mem.addr,
                     source_mem.key);
  for (size_t i = 0; i < N_READS; i++)
    conform_read_start(&reads[i], pair.a_to_b, target + i * READ_LEN, &target_mem, READ_LEN,
                       source_mem.addr + i * READ_LEN, source_mem.key);
  for (int i = 0; i < 100; i++) {
    const zps_err_t code = zps_net_send(pair.a_to_b, data, sizeof data);
    assert_true(code == ZPS_OK || code == ZPS_ERR_AGAIN);
  }
  zps_net_peer_evict(twin);
  zps_net_shut(net);
  zps_net_shut(net);
  for (size_t i = 0; i < N_READS; i++) assert_int_equal(reads[i].n_done, 0); /* callbacks come from progress alone */
  assert_int_equal(given_up.n_done, 0);
  for (size_t i = 0; i < N_READS; i++) {
    conform_until(reads[i].n_released == 1, &pair.a);
    assert_int_equal(reads[i].code, ZPS_ERR_PEER_LOST);
  }
  conform_until(given_up.n_released == 1, &pair.a);
  assert_int_equal(zps_net_counters(net)->quarantined, 0);
  conform_until(pair.a.n_errors == 1, &pair.a);
  assert_ptr_equal(pair.a.failed, pair.a_to_b);
  conform_expect_lost(pair.a_to_b);
  conform_read_start(&late, pair.a_to_b, target, &target_mem, READ_LEN, source_mem.addr, source_mem.key);
  conform_until(late.n_released == 1, &pair.a);
  assert_int_equal(
      zps_net_peer_add(net, zps_net_info(pair.b.net)->addr, zps_net_info(pair.b.net)->addr_len, NULL, &peer, &error),
      ZPS_ERR_CLOSED);
  assert_int_equal(zps_net_mem_register(net, source, READ_LEN, &mem, &error), ZPS_ERR_CLOSED);
  assert_int_equal(zps_net_reserve(net, 10), ZPS_OK);
  assert_int_equal(zps_net_reserve(net, -10), ZPS_OK);
  zps_net_wake(net);
  const uint64_t start = zps_clock_ns();
  zps_net_wait(net, CONFORM_NEVER_NS);
  zps_net_peer_evict(pair.a_to_b);
  zps_net_mem_release(net, &target_mem);
  conform_node_close(&pair.a);
  assert_true(zps_clock_ns() - start < CONFORM_SOON_NS);
  conform_node_close(&pair.b);
  munmap(source, N_READS * READ_LEN);
  munmap(target, (N_READS + 1) * READ_LEN);
}
