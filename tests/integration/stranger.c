/*
 * A stranger at the data plane: it reaches the fabric address of a server or rank, as `zenpsctl members` shows it, and
 * knows what anybody may ask for, but no secret and no key. Run by strangers.sh.
 *
 *   stranger ADDRESS junk N [JOB_ID]   N messages: random bytes, headers of links that may exist, parts, repetitions
 *   stranger ADDRESS keys N            N reads by guessed keys
 *   stranger ADDRESS connect N         N connections that say nothing, until all of them are there
 *   stranger ADDRESS bytes N           N connections that say random bytes
 *   stranger ADDRESS scan N            N connections that end at once
 *   stranger ADDRESS claim N PORT...   says that it is each of these members in turn, until N such claims were answered
 *   stranger ADDRESS drip N            N connections that say what could be a request, a byte now and then (slow loris)
 *
 * Claims are made by claim.sh. The last line tells how many were tried, done, and lost with their connection. Status 1:
 * memory was read. 2: no attempt was possible.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/integration/stranger.h"

static int tcp_connect(const struct stranger *stranger) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && connect(fd, (const struct sockaddr *)&stranger->to, sizeof stranger->to) == 0) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

enum { SAID_MAX = 512, DRIPS = 64 };
enum way { CONNECT, BYTES, SCAN, DRIP };
static const char *const ways[] = {[CONNECT] = "connect", [BYTES] = "bytes", [SCAN] = "scan", [DRIP] = "drip"};

static bool is_said(struct stranger *stranger, int fd, size_t len) {
  uint8_t bytes[SAID_MAX];
  for (size_t k = 0; k < sizeof bytes; k += 8) stranger_put(bytes + k, zps_rng_u64(&stranger->rng), 8);
  return send(fd, bytes, len, MSG_NOSIGNAL) == (ssize_t)len;
}

/* The beginning of a request for a connection, as libfabric has it: version, type, how many bytes follow its header. It
 * ends eight bytes too early. */
static void drip(struct stranger *stranger, const int *fds, unsigned long n) {
  static const uint8_t request[DRIPS] = {3, 0, 0, 40};
  for (unsigned i = 0; i < DRIPS; i++)
    for (unsigned long k = 0; k < n; k++)
      if (send(fds[k], &request[i], 1, MSG_NOSIGNAL) != 1 && i == DRIPS - 1) stranger->n_lost++;
}

/* All are open at the end, as far as the other end has not closed them, but those of a scan. */
static int connections(struct stranger *stranger, unsigned long n, enum way way) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) perror("stranger: RLIMIT_NOFILE");
  }
  int *const fds = calloc(n, sizeof *fds);
  if (!fds) return stranger_give_up("no memory for so many connections", strerror(errno));
  for (; stranger->n_tried < n; stranger->n_tried++) {
    const int fd = tcp_connect(stranger);
    if (fd < 0) {
      if (errno == EMFILE) return stranger_give_up("too many connections for this process", strerror(errno));
      stranger->n_lost++;
      continue;
    }
    fds[stranger->n_done++] = fd; /* the end of the process closes it */
    if (way == BYTES && !is_said(stranger, fd, 1 + zps_rng_below(&stranger->rng, SAID_MAX))) stranger->n_lost++;
    if (way == SCAN || (way == BYTES && stranger->n_tried % 8 != 0)) close(fd); /* of the others some wait */
  }
  if (way == DRIP) drip(stranger, fds, stranger->n_done);
  free(fds);
  return 0;
}

static int way_of(const char *name) {
  for (unsigned way = 0; way < sizeof ways / sizeof ways[0]; way++)
    if (strcmp(name, ways[way]) == 0) return (int)way;
  return -1;
}

int main(int argc, char **argv) {
  struct stranger stranger = {.rng = {argc > 3 ? strtoul(argv[3], NULL, 10) : 0}};
  if (argc < 4 || !stranger_address(argv[1], &stranger.to))
    return stranger_give_up(
        "usage", "stranger fi_sockaddr_in://HOST:PORT junk|keys|connect|bytes|scan|drip|claim N [JOB_ID | PORT...]");
  const unsigned long n = strtoul(argv[3], NULL, 10);
  const bool is_junk = strcmp(argv[2], "junk") == 0;
  if (is_junk && argc > 4) stranger.job = strtoull(argv[4], NULL, 16);
  int status;
  if (is_junk || strcmp(argv[2], "keys") == 0) {
    if (is_junk && !stranger_open(&stranger)) return 2;
    status = is_junk ? stranger_junk(&stranger, n) : stranger_keys(&stranger, n);
    if (is_junk) zps_net_close(stranger.net);
  } else if (strcmp(argv[2], "claim") == 0) {
    status = stranger_claims(&stranger, n, argv + 4, argc - 4);
  } else if (way_of(argv[2]) >= 0) {
    status = connections(&stranger, n, (enum way)way_of(argv[2]));
  } else {
    return stranger_give_up(argv[2], "is no way of a stranger's");
  }
  printf("tried=%lu done=%lu lost=%lu\n", stranger.n_tried, stranger.n_done, stranger.n_lost);
  return status;
}
