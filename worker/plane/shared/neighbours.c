#define ZPS_LOG_COMPONENT "neighbours"
#include "worker/plane/shared/neighbours.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"

#define MAGIC 0x7a70736fu

/* The higher rank connects, sends a HELLO and gets one back; then it says what it has mapped. */
struct message {
  uint32_t magic, rank;
  uint64_t len_bytes; /* of the segment that comes with it; 0: none does */
  uint64_t proof;     /* read from the receiver's; 0: it is not mapped (yet) */
  uint64_t has_device;
};

enum state { AWAITS_HELLO, AWAITS_PROOF, OVER };

struct meeting {
  int fd;
  enum state state;
  bool came_to_us;
  uint32_t rank; /* of the other; UINT32_MAX: not known yet */
};

struct round {
  const struct zps_neighbours_config *config;
  const struct zps_segment *segment;
  uint64_t proof;
  struct zps_neighbour *neighbours;
  struct meeting *meetings; /* at most one per rank, and as many that turn out to be none */
  struct pollfd *polled;
  uint32_t n, n_left; /* n_left: ranks that are not done with */
};

static socklen_t address(const struct zps_neighbours_config *config, uint32_t rank, struct sockaddr_un *to) {
  *to = (struct sockaddr_un){.sun_family = AF_UNIX};
  const int len = snprintf(to->sun_path + 1, sizeof to->sun_path - 1, "zenps/%016" PRIx64 "/%016" PRIx64 "/%" PRIu32,
                           config->job_id, config->seed, rank);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len);
}

static int make_socket(void) {
  return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

zps_err_t zps_neighbours_listen(const struct zps_neighbours_config *config, int *fd_p, struct zps_error *error) {
  struct sockaddr_un at;
  const socklen_t len = address(config, config->rank, &at);
  const int fd = make_socket();
  if (fd < 0) return zps_fail(error, ZPS_ERR_UNSUPPORTED, "socket: %s", strerror(errno));
  if (bind(fd, (const struct sockaddr *)&at, len) != 0 || listen(fd, SOMAXCONN) != 0) {
    zps_fail(error, ZPS_ERR_UNSUPPORTED, "@%s: %s", at.sun_path + 1, strerror(errno));
    close(fd);
    return ZPS_ERR_UNSUPPORTED;
  }
  *fd_p = fd;
  return ZPS_OK;
}

/* ------------------------------------------------------------ messages */

static bool send_message(const struct round *round, const struct meeting *meeting, bool with_segment, uint64_t proof) {
  struct message message = {
      .magic = MAGIC, .rank = round->config->rank, .proof = proof, .has_device = round->config->has_device};
  struct iovec part = {.iov_base = &message, .iov_len = sizeof message};
  union {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
  } control = {0};
  struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
  if (with_segment && round->segment) {
    const int fd = zps_segment_fd(round->segment);
    message.len_bytes = zps_segment_len(round->segment);
    header.msg_control = control.bytes;
    header.msg_controllen = sizeof control.bytes;
    struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(rights), &fd, sizeof fd);
  }
  return sendmsg(meeting->fd, &header, MSG_NOSIGNAL) == (ssize_t)sizeof message;
}

/* *fd_p: the descriptor that came with it, or -1. False: no whole message came. */
static bool receive_message(const struct meeting *meeting, struct message *message, int *fd_p) {
  struct iovec part = {.iov_base = message, .iov_len = sizeof *message};
  union {
    char bytes[CMSG_SPACE(4 * sizeof(int))];
    struct cmsghdr align;
  } control;
  struct msghdr header = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
  const ssize_t len = recvmsg(meeting->fd, &header, MSG_CMSG_CLOEXEC);
  *fd_p = -1;
  if (len < 0) return false;
  errno = EPROTO; /* unless it is one */
  for (struct cmsghdr *at = CMSG_FIRSTHDR(&header); at; at = CMSG_NXTHDR(&header, at)) {
    if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS) continue;
    const size_t n = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < n; i++) { /* whatever comes: all but one are closed */
      if (*fd_p >= 0) close(*fd_p);
      memcpy(fd_p, CMSG_DATA(at) + i * sizeof(int), sizeof *fd_p);
    }
  }
  return len == (ssize_t)sizeof *message && message->magic == MAGIC;
}

/* ------------------------------------------------------------ one meeting */

static void end(struct round *round, struct meeting *meeting, const char *why) {
  if (meeting->state == OVER) return;
  meeting->state = OVER;
  close(meeting->fd);
  meeting->fd = -1;
  if (meeting->rank == UINT32_MAX) return;
  round->n_left--;
  if (why)
    zps_log_warn("rank %" PRIu32 " is on this host, but shares no memory with us (%s): its data goes over the fabric",
                 meeting->rank, why);
}

/* Only processes of the same user have a part in the job. */
static bool same_user(int fd) {
  struct ucred peer;
  socklen_t len = sizeof peer;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 && peer.uid == geteuid();
}

/* Maps the other rank's segment. Returns the proof to send back; 0: it is not mapped. */
static uint64_t map(struct round *round, struct meeting *meeting, const struct message *hello, int fd,
                    struct zps_error *why) {
  struct zps_neighbour *neighbour = &round->neighbours[meeting->rank];
  uint64_t proof = 0;
  if (fd < 0) {
    zps_fail(why, ZPS_ERR_UNSUPPORTED, "it has none to share");
  } else if (zps_segment_map(fd, hello->len_bytes, &neighbour->view, &proof, why) != ZPS_OK) {
    proof = 0;
  }
  return proof;
}

static bool is_awaited(const struct round *round, const struct meeting *meeting, uint32_t rank) {
  if (!meeting->came_to_us) return rank == meeting->rank;
  if (rank <= round->config->rank || rank >= round->config->world || !round->config->near[rank]) return false;
  for (uint32_t i = 0; i < round->n; i++) {
    if (round->meetings[i].rank == rank) return false;
  }
  return true;
}

static void hello(struct round *round, struct meeting *meeting, const struct message *message, int fd) {
  struct zps_error why = {.text = ""};
  if (!is_awaited(round, meeting, message->rank)) {
    end(round, meeting, "another rank answers for it");
    return;
  }
  meeting->rank = message->rank;
  round->neighbours[message->rank].has_device = message->has_device != 0;
  const uint64_t proof = map(round, meeting, message, fd, &why);
  if (!send_message(round, meeting, meeting->came_to_us, proof)) {
    end(round, meeting, "it went away");
  } else if (meeting->came_to_us) {
    meeting->state = AWAITS_PROOF;
    if (proof == 0) zps_log_warn("rank %" PRIu32 "'s memory cannot be read here: %s", meeting->rank, why.text);
  } else {
    round->neighbours[meeting->rank].maps_ours = round->segment && message->proof == round->proof;
    const char *reason = proof == 0 ? why.text : "it could not map ours";
    end(round, meeting, proof != 0 && round->neighbours[meeting->rank].maps_ours ? NULL : reason);
  }
}

static void on_message(struct round *round, struct meeting *meeting) {
  struct message message = {0};
  int fd;
  if (!receive_message(meeting, &message, &fd)) {
    if (errno != EAGAIN || fd >= 0) end(round, meeting, "it went away");
  } else if (meeting->state == AWAITS_HELLO) {
    hello(round, meeting, &message, fd);
  } else {
    const bool maps = message.rank == meeting->rank && round->segment && message.proof == round->proof;
    round->neighbours[meeting->rank].maps_ours = maps;
    end(round, meeting, maps ? NULL : "it could not map ours");
  }
  if (fd >= 0) close(fd);
}

/* ------------------------------------------------------------ all of them */

static void visit(struct round *round, uint32_t rank) {
  struct sockaddr_un at;
  const socklen_t len = address(round->config, rank, &at);
  struct meeting *meeting = &round->meetings[round->n++];
  *meeting = (struct meeting){.fd = make_socket(), .rank = rank};
  const bool there = meeting->fd >= 0 && connect(meeting->fd, (const struct sockaddr *)&at, len) == 0;
  if (!there || !same_user(meeting->fd) || !send_message(round, meeting, true, 0))
    end(round, meeting, there ? "it runs as another user" : "it cannot be met here");
}

static void take_visitor(struct round *round, int listener) {
  const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) return;
  if (round->n == 2 * round->config->world || !same_user(fd)) {
    close(fd);
    return;
  }
  round->meetings[round->n++] = (struct meeting){.fd = fd, .came_to_us = true, .rank = UINT32_MAX};
}

static void wait_for_news(struct round *round, int listener, uint64_t deadline_ns) {
  const uint64_t now_ns = zps_clock_ns();
  const int left_ms = now_ns < deadline_ns ? (int)((deadline_ns - now_ns) / ZPS_NS_PER_MS) + 1 : 0;
  const uint32_t n = round->n;
  for (uint32_t i = 0; i < n; i++) round->polled[i] = (struct pollfd){.fd = round->meetings[i].fd, .events = POLLIN};
  round->polled[n] = (struct pollfd){.fd = listener, .events = POLLIN};
  if (poll(round->polled, n + 1, left_ms) <= 0) return;
  for (uint32_t i = 0; i < n; i++) {
    if (round->polled[i].fd >= 0 && round->polled[i].revents) on_message(round, &round->meetings[i]);
  }
  if (round->polled[n].revents) take_visitor(round, listener);
}

static void end_all(struct round *round) {
  uint32_t n_silent = round->n_left;
  for (uint32_t i = 0; i < round->n; i++) {
    n_silent -= round->meetings[i].state != OVER && round->meetings[i].rank != UINT32_MAX;
    end(round, &round->meetings[i], "it did not answer in time");
  }
  if (n_silent > 0)
    zps_log_warn("%" PRIu32
                 " other ranks of this host did not connect to share memory: their data goes over the fabric",
                 n_silent);
}

void zps_neighbours_meet(const struct zps_neighbours_config *config, int fd, const struct zps_segment *segment,
                         uint64_t proof, uint64_t timeout_ms, struct zps_neighbour *neighbours) {
  const uint64_t deadline_ns = zps_clock_ns() + timeout_ms * ZPS_NS_PER_MS;
  struct round round = {.config = config, .segment = segment, .proof = proof, .neighbours = neighbours};
  round.meetings = calloc(config->world, 2 * sizeof *round.meetings);
  round.polled = calloc(2 * (size_t)config->world + 1, sizeof *round.polled);
  if (round.meetings && round.polled) {
    for (uint32_t r = 0; r < config->world; r++) round.n_left += r != config->rank && config->near[r];
    for (uint32_t r = 0; r < config->rank; r++)
      if (config->near[r]) visit(&round, r);
    while (round.n_left > 0 && zps_clock_ns() < deadline_ns) wait_for_news(&round, fd, deadline_ns);
    end_all(&round);
  } else {
    zps_log_warn("no memory to meet the ranks of this host: their data goes over the fabric");
  }
  close(fd);
  free(round.meetings);
  free(round.polled);
}
