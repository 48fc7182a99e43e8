/*
 * A member of one job at the data plane of another: it has a certificate and a token of its own, joins its job, and
 * sums, so that servers tell it keys of their memory, and the coordinator its job's secret. Run by insiders.sh.
 *
 *   insider ADDRESS JOB VICTIM N EXPELLED RANK...
 *
 * VICTIM: the id of the other job; RANK...: the fabric addresses of its ranks. Then, N of each: reads by its own
 * keys, guessed from them, and beyond the memory that they are of; messages to the victim's servers and ranks, signed
 * with its own secret. When the file EXPELLED is there it has been expelled: messages over its former links, rightly
 * signed, and reads by its former keys. EXPELLED "-": no reads, and the messages at once, while it is a member. Lines
 * of standard output:
 *
 *   in JOB_ID SECRET             what the answer to its join told
 *   own KEYS READ                reads by its own keys, which others have no other right to than that they know them
 *   guessed TRIED READ
 *   forged SENT
 *   former SENT READ             how many reads are answered for good
 *
 * Status 1: memory was read that is not its own. 2: no attempt was possible.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <zenps/zenps.h>

#include "common/session/mac.h"
#include "proto/wire.h"
#include "tests/integration/stranger_read.h"

enum { PLACES = 16, PEERS = 8, LINKS = 8, ROWS = 1 << 20, RANKS = 2 };

#define AHEAD 1000000000u /* of all messages of a link so far: what lies behind is passed over in any case */

/* ---- what a member learns: the linker has the library call these (--wrap) ---- */

struct peer {
  const struct zps_net_peer *peer;
  uint8_t addr[ZPS_NET_ADDR_MAX];
  size_t addr_len;
};
struct place { /* of memory that it was told to read */
  struct peer at;
  uint64_t address, key;
  struct stranger_reader reader;
};
struct own_link {
  struct zps_mac_link ends; /* .server points to `server` */
  uint8_t server[ZPS_NET_ADDR_MAX];
};

static struct {
  pthread_mutex_t mutex;
  struct peer peers[PEERS];
  struct place places[PLACES];
  struct own_link links[LINKS];
  struct zps_secret secret;
  unsigned n_peers, n_places, n_links;
  bool is_enough; /* what comes now is of its own attempts */
} learnt = {.mutex = PTHREAD_MUTEX_INITIALIZER};

zps_err_t __real_zps_net_peer_add(struct zps_net *net, const void *addr, size_t len, void *ctx,
                                  struct zps_net_peer **peer_p, struct zps_error *error);
zps_err_t __wrap_zps_net_peer_add(struct zps_net *net, const void *addr, size_t len, void *ctx,
                                  struct zps_net_peer **peer_p, struct zps_error *error);
zps_err_t __real_zps_net_read(struct zps_net_peer *peer, struct zps_net_read *read);
zps_err_t __wrap_zps_net_read(struct zps_net_peer *peer, struct zps_net_read *read);
zps_err_t __real_zps_mac_key_derive(const struct zps_secret *secret, const struct zps_mac_link *link,
                                    struct zps_mac_key *key_p);
zps_err_t __wrap_zps_mac_key_derive(const struct zps_secret *secret, const struct zps_mac_link *link,
                                    struct zps_mac_key *key_p);

zps_err_t __wrap_zps_net_peer_add(struct zps_net *net, const void *addr, size_t len, void *ctx,
                                  struct zps_net_peer **peer_p, struct zps_error *error) {
  const zps_err_t code = __real_zps_net_peer_add(net, addr, len, ctx, peer_p, error);
  pthread_mutex_lock(&learnt.mutex);
  if (code == ZPS_OK && !learnt.is_enough && learnt.n_peers < PEERS) {
    struct peer *const peer = &learnt.peers[learnt.n_peers++];
    peer->peer = *peer_p;
    memcpy(peer->addr, addr, len);
    peer->addr_len = len;
  }
  pthread_mutex_unlock(&learnt.mutex);
  return code;
}

zps_err_t __wrap_zps_net_read(struct zps_net_peer *peer, struct zps_net_read *read) {
  pthread_mutex_lock(&learnt.mutex);
  unsigned p = 0, known = 0;
  while (p < learnt.n_peers && learnt.peers[p].peer != peer) p++;
  while (known < learnt.n_places && learnt.places[known].key != read->key) known++;
  if (!learnt.is_enough && p < learnt.n_peers && known == learnt.n_places && known < PLACES)
    learnt.places[learnt.n_places++] = (struct place){.at = learnt.peers[p], .address = read->addr, .key = read->key};
  pthread_mutex_unlock(&learnt.mutex);
  return __real_zps_net_read(peer, read);
}

zps_err_t __wrap_zps_mac_key_derive(const struct zps_secret *secret, const struct zps_mac_link *link,
                                    struct zps_mac_key *key_p) {
  pthread_mutex_lock(&learnt.mutex);
  learnt.secret = *secret;
  if (!learnt.is_enough && link->server_len > 0 && link->server_len <= ZPS_NET_ADDR_MAX &&
      !(link->from & ZPS_WIRE_SRC_SERVER) && learnt.n_links < LINKS) {
    struct own_link *const own = &learnt.links[learnt.n_links++];
    own->ends = *link;
    memcpy(own->server, link->server, link->server_len);
    own->ends.server = own->server;
  }
  pthread_mutex_unlock(&learnt.mutex);
  return __real_zps_mac_key_derive(secret, link, key_p);
}

/* ---- reads ---- */

static bool reads(struct place *place, uint64_t address, uint64_t key) {
  return stranger_read_now(&place->reader, place->at.addr, place->at.addr_len, address, key, NULL) == ZPS_OK;
}

static unsigned long read_own(void) {
  unsigned long n = 0;
  for (unsigned p = 0; p < learnt.n_places; p++)
    n += reads(&learnt.places[p], learnt.places[p].address, learnt.places[p].key);
  return n;
}

/* Neighbours of its keys, keys with a bit more or less, and, by its own, what lies beyond: a registration has at most
 * as many bytes as the job may have. */
static unsigned long read_guessed(unsigned long n) {
  unsigned long n_read = 0;
  for (unsigned long i = 0; i < n; i++) {
    struct place *const place = &learnt.places[i % learnt.n_places];
    const uint64_t k = i / 4, step = 1 + k / 2;
    const uint64_t beyond[] = {UINT64_C(1) << (32 + k % 32), 0 - (1 + k) * STRANGER_READ_BYTES};
    const bool is_beyond = i % 4 == 3;
    const uint64_t key = i % 4 == 0   ? place->key + step
                         : i % 4 == 1 ? place->key - step
                         : i % 4 == 2 ? place->key ^ UINT64_C(1) << k % 64
                                      : place->key;
    if (!reads(place, is_beyond ? beyond[k % 2] : k % 2 ? place->address : 0, key)) continue;
    printf("read: key 0x%016" PRIx64 ", address 0x%" PRIx64 "\n", key, place->reader.read.addr);
    n_read++;
  }
  return n_read;
}

/* ---- messages ---- */

/* One that a link would take, but for the key: its first frame's header names the link. */
static size_t make_signed(const struct zps_mac_key *key, const struct zps_mac_link *link, uint32_t seq, uint8_t *at) {
  struct zps_frame frame = {
      .header = {.type = ZPS_FRAME_CREDIT, .job = link->job, .src = link->from}}; /* of no epoch */
  size_t len = 0;
  if (zps_wire_encode(&frame, at, ZPS_WIRE_FRAME_MAX, &len) != ZPS_OK) return 0;
  zps_wire_stamp(at, seq, 0);
  zps_mac_make(key, at, len, seq, at + len);
  return len + ZPS_WIRE_MAC_BYTES;
}

static bool send_signed(struct stranger *stranger, const void *to, size_t to_len, const struct zps_mac_link *link,
                        uint32_t seq) {
  uint8_t message[ZPS_WIRE_MESSAGE_MAX];
  struct zps_mac_key key;
  if (__real_zps_mac_key_derive(&learnt.secret, link, &key) != ZPS_OK) return false;
  const size_t len = make_signed(&key, link, seq, message);
  zps_mac_key_fini(&key);
  const uint64_t until_ns = zps_clock_ns() + STRANGER_PATIENCE_NS;
  zps_err_t code;
  do {
    if (!stranger_connect(stranger, to, to_len)) return false;
    code = zps_net_send(stranger->peer, message, len);
    stranger_turn(stranger);
  } while (code != ZPS_OK && zps_clock_ns() < until_ns);
  while (stranger->peer && !stranger->is_lost && zps_net_unsent(stranger->peer) > 0 && zps_clock_ns() < until_ns)
    stranger_turn(stranger);
  return code == ZPS_OK;
}

/* As each of the victim's ranks to each server, and as each server and the other rank to each rank. */
static unsigned long forge(uint64_t victim, char **ranks, unsigned long n) {
  unsigned long n_sent = 0;
  for (uint32_t to = 0; to < RANKS + learnt.n_links; to++) {
    struct stranger stranger = {0};
    const bool to_rank = to < RANKS;
    const struct own_link *const own = &learnt.links[to_rank ? 0 : to - RANKS];
    if (!stranger_open(&stranger)) exit(2);
    if (to_rank && !stranger_address(ranks[to], &stranger.to)) exit(2);
    for (uint32_t i = 0; i < n; i++) {
      struct zps_mac_link link = {.job = victim, .from = i % RANKS, .to = learnt.links[i / 2 % learnt.n_links].ends.to};
      if (to_rank) {
        link.to = to;
        link.from = i % 2 ? learnt.links[i / 2 % learnt.n_links].ends.to : 1 - to;
      }
      if ((link.from | link.to) & ZPS_WIRE_SRC_SERVER) {
        const struct own_link *const server = to_rank ? &learnt.links[i / 2 % learnt.n_links] : own;
        link.server = server->server;
        link.server_len = server->ends.server_len;
      }
      n_sent += to_rank ? send_signed(&stranger, &stranger.to, sizeof stranger.to, &link, AHEAD + i)
                        : send_signed(&stranger, own->server, own->ends.server_len, &link, AHEAD + i);
    }
    if (stranger.peer) zps_net_peer_evict(stranger.peer);
    zps_net_close(stranger.net);
  }
  return n_sent;
}

static unsigned long send_over_own(unsigned long n) {
  unsigned long n_sent = 0;
  for (unsigned l = 0; l < learnt.n_links; l++) {
    const struct own_link *const own = &learnt.links[l];
    struct stranger stranger = {0};
    if (!stranger_open(&stranger)) exit(2);
    for (uint32_t i = 0; i < n; i++)
      n_sent += send_signed(&stranger, own->server, own->ends.server_len, &own->ends, AHEAD + i);
    if (stranger.peer) zps_net_peer_evict(stranger.peer);
    zps_net_close(stranger.net);
  }
  return n_sent;
}

/* ---- a job ---- */

/* Until no more is answered. */
static unsigned long read_former(void) {
  const uint64_t until_ns = zps_clock_ns() + STRANGER_PATIENCE_NS;
  while (read_own() > 0 && zps_clock_ns() < until_ns) {
  }
  return read_own();
}

static void must(zenps_status_t status) {
  if (status == ZENPS_OK) return;
  fprintf(stderr, "insider: %s\n", zenps_last_error()->text);
  exit(2);
}

/* Sums are so long that they are read. */
static zenps_job_t *join(const char *address, const char *name) {
  static float values[ROWS], sums[ROWS];
  zenps_options_t options;
  zenps_job_t *job;
  zenps_tensor_t *tensor;
  zenps_request_t *request;
  zenps_grad_t in, out;
  ZENPS_OPTIONS_INIT(&options);
  options.coordinator = address;
  options.job = name;
  options.world = 1;
  options.threads = 1;
  must(zenps_open(&options, &job));
  must(zenps_tensor_open(job, "t", ROWS, 1, ZENPS_F32, NULL, &tensor));
  ZENPS_GRAD_INIT(&in);
  ZENPS_GRAD_INIT(&out);
  for (unsigned i = 0; i < ROWS; i++) values[i] = (float)(i + 1);
  in.layout = out.layout = ZENPS_DENSE;
  in.values = values;
  out.values = sums;
  must(zenps_allreduce(tensor, 1, &in, &out, &request));
  must(zenps_wait(request, 60000));
  zenps_request_free(request);
  if (memcmp(values, sums, sizeof sums) == 0) return job;
  fputs("insider: its own sums are wrong\n", stderr);
  exit(2);
}

static void be_told(void) {
  pthread_mutex_lock(&learnt.mutex);
  learnt.is_enough = true;
  pthread_mutex_unlock(&learnt.mutex);
  printf("in %016" PRIx64 " ", learnt.links[0].ends.job);
  for (unsigned i = 0; i < sizeof learnt.secret.bytes; i++) printf("%02x", learnt.secret.bytes[i]);
  putchar('\n');
}

int main(int argc, char **argv) {
  if (argc != 6 + RANKS) return stranger_give_up("usage", "insider ADDRESS JOB VICTIM N EXPELLED RANK RANK");
  const unsigned long n = strtoul(argv[4], NULL, 10);
  setvbuf(stdout, NULL, _IOLBF, 0);
  zenps_job_t *const job = join(argv[1], argv[2]);
  if (learnt.n_places == 0 || learnt.n_links == 0) return stranger_give_up("its job", "told it nothing");
  be_told();
  for (unsigned p = 0; p < learnt.n_places; p++)
    if (!stranger_reader_open(&learnt.places[p].reader)) return 2;
  printf("own %u %lu\n", learnt.n_places, read_own());
  const unsigned long n_read = read_guessed(n);
  printf("guessed %lu %lu\n", n, n_read);
  printf("forged %lu\n", forge(strtoull(argv[3], NULL, 16), argv + 6, n));
  const bool is_expelled = strcmp(argv[5], "-") != 0;
  while (is_expelled && access(argv[5], F_OK) != 0) nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
  const unsigned long n_sent = send_over_own(n), n_former = is_expelled ? read_former() : 0;
  printf("former %lu %lu\n", n_sent, n_former);
  for (unsigned p = 0; p < learnt.n_places; p++) stranger_reader_close(&learnt.places[p].reader);
  zenps_close(job);
  return n_read + n_former > 0 ? 1 : 0;
}
