/*
 * A stranger at the data plane: it reaches the fabric address of a server or rank, as `zenpsctl members` shows it, and
 * knows what anybody may ask for, but no secret and no key. Run by strangers.sh.
 *
 *   stranger ADDRESS junk N [JOB_ID]   N messages: random bytes, headers of links that may exist, parts, repetitions
 *   stranger ADDRESS keys N            N reads by guessed keys
 *   stranger ADDRESS connect N         N connections that say nothing, until all of them are there
 *   stranger ADDRESS bytes N           N connections that say random bytes
 *
 * The last line tells how many were tried, done, and lost with their connection. Status 1: memory was read. 2: no
 * attempt was possible.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/rng.h"
#include "common/net/net.h"

#define PATIENCE_NS (20 * ZPS_NS_PER_S) /* without any progress */

enum {
  FRAME_MAX = 8192, /* members send no longer ones */
  READ_BYTES = 64,
  TAGS = 4,
  WAYS = 8,
};

struct stranger {
  struct sockaddr_in to;
  struct zps_rng rng;
  uint64_t job;
  struct zps_net *net;
  struct zps_net_peer *peer; /* NULL: not there yet, or lost */
  bool is_lost;
  unsigned long n_tried, n_done, n_lost;
};

static int give_up(const char *what, const char *why) {
  fprintf(stderr, "stranger: %s: %s\n", what, why);
  return 2;
}

/* ---- the fabric ---- */

static void on_message(void *ctx, const void *data, size_t len) {
  (void)ctx, (void)data, (void)len;
}

static void on_peer_error(void *ctx, struct zps_net_peer *peer, zps_err_t code, const char *text) {
  struct stranger *stranger = ctx;
  (void)peer, (void)code, (void)text;
  stranger->is_lost = true;
}

static struct zps_net *fabric_open(struct stranger *stranger, struct zps_error *error) {
  const struct zps_net_config config = {
      .provider = "net", .interface = "lo", .max_msg = ZPS_NET_MSG_MAX, .n_recv = 8, .connect_timeout_ms = 10000};
  const struct zps_net_handler handler = {.ctx = stranger, .on_message = on_message, .on_peer_error = on_peer_error};
  struct zps_net *net;
  return zps_net_open(&config, &handler, &net, error) == ZPS_OK ? net : NULL;
}

static bool connect_peer(struct stranger *stranger, const void *addr, size_t len) {
  struct zps_error error;
  if (stranger->is_lost) {
    zps_net_peer_evict(stranger->peer);
    stranger->peer = NULL;
    stranger->is_lost = false;
    stranger->n_lost++;
  }
  if (stranger->peer) return true;
  if (zps_net_peer_add(stranger->net, addr, len, stranger, &stranger->peer, &error) == ZPS_OK) return true;
  give_up("cannot reach it", error.text);
  return false;
}

static void turn(struct zps_net *net) {
  if (zps_net_progress(net) == 0) zps_net_wait(net, ZPS_NS_PER_MS);
}

/* ---- messages ---- */

static void put(uint8_t *at, uint64_t value, unsigned n_bytes) {
  for (unsigned i = 0; i < n_bytes; i++) at[i] = (uint8_t)(value >> (8 * i));
}

static void put_long_header(struct stranger *stranger, uint64_t i, uint8_t *at) {
  const uint32_t src = (uint32_t)(i / WAYS % TAGS) | (i / WAYS / TAGS % 2 ? 0x80000000u : 0);
  memcpy(at, "ZPS1", 4);
  put(at + 4, 1, 2);
  at[6] = (uint8_t)(1 + i % 12);
  at[7] = 0;
  put(at + 8, stranger->job, 8);
  put(at + 16, i % 16, 4);
  put(at + 20, src, 4);
  put(at + 24, i / WAYS % 5000, 4);
}

/* All is random but for what makes it look like a message of a member; its length. */
static size_t make_junk(struct stranger *stranger, uint64_t i, uint8_t *at) {
  const size_t len = 1 + zps_rng_below(&stranger->rng, FRAME_MAX);
  const uint8_t seq = (uint8_t)(i / WAYS), tag = (uint8_t)(i / WAYS / 256 % TAGS);
  for (size_t k = 0; k < ZPS_NET_MSG_MAX; k += 8) put(at + k, zps_rng_u64(&stranger->rng), 8);
  switch (i % WAYS) {
    case 0: /* a CREDIT frame without a MAC */
    case 1: /* and with one */
      put(at, 0x95u | (uint32_t)seq << 8 | (uint32_t)tag << 24, 4);
      return i % WAYS == 0 ? 4 : 12;
    case 2: /* frames of all types, with short headers */
      put(at, 0x90u | (uint32_t)(1 + i / WAYS % 12) | (uint32_t)seq << 8 | (uint32_t)tag << 24, 4);
      return len;
    case 3:
      put_long_header(stranger, i, at);
      return 34 + len % 256;
    case 4: /* part of one */
      put_long_header(stranger, i, at);
      return len % 34;
    case 5: /* several frames */
      put(at, 0x90u | (uint32_t)(len % 128) << 8 | 0x95u << 16, 3);
      return len;
    case 6: /* longer than a receive */
      return ZPS_NET_MSG_MAX - len % 1024;
    default:
      return len;
  }
}

static bool is_through(struct stranger *stranger) {
  return stranger->is_lost || !stranger->peer || zps_net_unsent(stranger->peer) == 0;
}

static int junk(struct stranger *stranger, unsigned long n) {
  static uint8_t message[ZPS_NET_MSG_MAX];
  size_t len = 0;
  uint64_t patient_until_ns = zps_clock_ns() + PATIENCE_NS;
  while (stranger->n_tried < n) {
    if (!connect_peer(stranger, &stranger->to, sizeof stranger->to)) return 2;
    if (len == 0) len = make_junk(stranger, stranger->n_tried, message);
    const zps_err_t code = zps_net_send(stranger->peer, message, len);
    if (code == ZPS_OK) {
      if (stranger->n_tried % 16 != 1) len = 0; /* else it comes again */
      stranger->n_tried++;
      patient_until_ns = zps_clock_ns() + PATIENCE_NS;
    } else if (zps_clock_ns() > patient_until_ns) {
      return give_up("it takes no messages", zps_err_str(code));
    }
    if (code != ZPS_OK || stranger->n_tried % 8 == 0) turn(stranger->net);
  }
  while (!is_through(stranger) && zps_clock_ns() < patient_until_ns) turn(stranger->net);
  stranger->n_done = (unsigned long)zps_net_counters(stranger->net)->msgs_sent;
  return 0;
}

/* ---- reads ---- */

struct guess {
  struct zps_net_read read;
  bool is_done;
  zps_err_t code;
};

static void on_read(struct zps_net_read *read, zps_err_t code) {
  struct guess *guess = read->ctx;
  guess->code = code;
  guess->is_done = true;
}

/* `other`, if any, is the end that is read, and driven here as well. */
static zps_err_t read_by(struct stranger *stranger, const struct zps_net_mem *mem, uint64_t addr, uint64_t key,
                         struct zps_net *other) {
  struct guess guess = {
      .read = {.local = mem->base, .mem = mem, .len = READ_BYTES, .addr = addr, .key = key, .done = on_read}};
  guess.read.ctx = &guess;
  const uint64_t until_ns = zps_clock_ns() + PATIENCE_NS;
  if (zps_net_read(stranger->peer, &guess.read) != ZPS_OK) return ZPS_ERR_INVALID;
  while (!guess.is_done && zps_clock_ns() < until_ns) {
    if (other) zps_net_progress(other);
    turn(stranger->net);
  }
  if (guess.is_done) return guess.code;
  give_up("a read", "does not end");
  _exit(2); /* the fabric has its memory */
}

/* Reads do work here, by the right key and by no other: else that none succeeds would say nothing. */
static bool reads_work(struct stranger *stranger, const struct zps_net_mem *mem) {
  static uint8_t memory[READ_BYTES] = "what only the owner of the key reads";
  struct zps_error error = {.text = ""};
  struct zps_net_mem theirs;
  struct zps_net *const other = fabric_open(stranger, &error);
  if (!other) return false;
  const struct zps_net_info *info = zps_net_info(other);
  bool work = zps_net_mem_register(other, memory, sizeof memory, &theirs, &error) == ZPS_OK;
  if (work) {
    work = connect_peer(stranger, info->addr, info->addr_len) &&
           read_by(stranger, mem, theirs.addr, theirs.key, other) == ZPS_OK &&
           memcmp(mem->base, memory, sizeof memory) == 0 &&
           read_by(stranger, mem, theirs.addr, theirs.key + 1, other) != ZPS_OK;
    zps_net_mem_release(other, &theirs);
  }
  if (stranger->peer) zps_net_peer_evict(stranger->peer);
  stranger->peer = NULL;
  stranger->is_lost = false;
  zps_net_close(other);
  return work;
}

static int keys(struct stranger *stranger, unsigned long n) {
  static uint8_t buffer[READ_BYTES];
  struct zps_error error = {.text = ""};
  struct zps_net_mem mem;
  if (zps_net_mem_register(stranger->net, buffer, sizeof buffer, &mem, &error) != ZPS_OK)
    return give_up("no memory to read to", error.text);
  if (!reads_work(stranger, &mem)) return give_up("reads do not work between two ends of its own", error.text);
  for (; stranger->n_tried < n; stranger->n_tried++) {
    const uint64_t i = stranger->n_tried, random = zps_rng_u64(&stranger->rng);
    const uint64_t key[] = {i / 4, mem.key + i / 4 - n / 8, random, random & UINT32_MAX};
    const uint64_t addr[] = {0, i / 4 * READ_BYTES, mem.addr, (uintptr_t)buffer & ~(uintptr_t)4095};
    if (!connect_peer(stranger, &stranger->to, sizeof stranger->to)) return 2;
    if (read_by(stranger, &mem, addr[i / 16 % 4], key[i % 4], NULL) != ZPS_OK) continue;
    stranger->n_done++;
    printf("read: key 0x%016llx, address 0x%llx\n", (unsigned long long)key[i % 4],
           (unsigned long long)addr[i / 16 % 4]);
  }
  zps_net_mem_release(stranger->net, &mem);
  return stranger->n_done > 0 ? 1 : 0;
}

/* ---- connections ---- */

static int tcp_connect(const struct stranger *stranger) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && connect(fd, (const struct sockaddr *)&stranger->to, sizeof stranger->to) == 0) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

/* All are open at the end, as far as the other end has not closed them. */
static int connections(struct stranger *stranger, unsigned long n, bool says_bytes) {
  struct rlimit limit;
  uint8_t bytes[512];
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) perror("stranger: RLIMIT_NOFILE");
  }
  for (; stranger->n_tried < n; stranger->n_tried++) {
    const int fd = tcp_connect(stranger);
    if (fd < 0) {
      if (errno == EMFILE) return give_up("too many connections for this process", strerror(errno));
      stranger->n_lost++;
      continue;
    }
    stranger->n_done++;
    if (!says_bytes) continue; /* the end of the process closes it */
    for (size_t k = 0; k < sizeof bytes; k += 8) put(bytes + k, zps_rng_u64(&stranger->rng), 8);
    const size_t len = 1 + zps_rng_below(&stranger->rng, sizeof bytes);
    if (send(fd, bytes, len, MSG_NOSIGNAL) != (ssize_t)len) stranger->n_lost++;
    if (stranger->n_tried % 8 != 0) close(fd); /* some wait */
  }
  return 0;
}

static bool address_read(const char *text, struct sockaddr_in *to) {
  const char *const scheme = "fi_sockaddr_in://";
  char host[64];
  unsigned port;
  if (strncmp(text, scheme, strlen(scheme)) != 0) return false;
  *to = (struct sockaddr_in){.sin_family = AF_INET};
  if (sscanf(text + strlen(scheme), "%63[0-9.]:%u", host, &port) != 2 || port > UINT16_MAX) return false;
  to->sin_port = htons((uint16_t)port);
  return inet_pton(AF_INET, host, &to->sin_addr) == 1;
}

int main(int argc, char **argv) {
  struct stranger stranger = {.rng = {argc > 3 ? strtoul(argv[3], NULL, 10) : 0}};
  struct zps_error error = {.text = ""};
  if (argc < 4 || !address_read(argv[1], &stranger.to))
    return give_up("usage", "stranger fi_sockaddr_in://HOST:PORT junk|keys|connect|bytes N [JOB_ID]");
  const unsigned long n = strtoul(argv[3], NULL, 10);
  const bool is_junk = strcmp(argv[2], "junk") == 0;
  if (argc > 4) stranger.job = strtoull(argv[4], NULL, 16);
  int status;
  if (is_junk || strcmp(argv[2], "keys") == 0) {
    stranger.net = fabric_open(&stranger, &error);
    if (!stranger.net) return give_up("no fabric", error.text);
    status = is_junk ? junk(&stranger, n) : keys(&stranger, n);
    zps_net_close(stranger.net);
  } else {
    status = connections(&stranger, n, strcmp(argv[2], "bytes") == 0);
  }
  printf("tried=%lu done=%lu lost=%lu\n", stranger.n_tried, stranger.n_done, stranger.n_lost);
  return status;
}
