/* Sockets at which processes of one host meet and hand each other descriptors: sequenced packets, without a place in
 * the file system. Linked by --wrap, in place of the system's; the descriptors that are handed over are real ones. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/sim/cluster.h"
#include "worker/plane/shared/neighbours.h"

enum {
  FIRST_FD = 1 << 20, /* no real one */
  SOCKETS_MAX = 1024,
  LATENCY_NS = 60000,
  LATE_NS = 30 * 1000000,
};

struct packet {
  struct packet *next;
  uint64_t due_ns;
  int fd; /* passed with the packet; -1: none is */
  size_t len;
  char bytes[];
};

struct sock {
  const struct sim_process *process; /* NULL: it is closed */
  struct sock *peer;                 /* NULL: none, or gone */
  struct sock *backlog;              /* of those that connect, by `next` */
  struct sock *next;
  bool listens, was_connected;
  struct packet *inbox, **inbox_tail;
  uint64_t last_due_ns;
  char name[sizeof(struct sockaddr_un)];
};

static struct sock *socks[SOCKETS_MAX];
static int n_socks;
static char news; /* those who poll wait on its address */

int __real_close(int fd);

static struct sock *sock_of(int fd) {
  return fd >= FIRST_FD && fd < FIRST_FD + n_socks ? socks[fd - FIRST_FD] : NULL;
}

static int fails(int why) {
  errno = why;
  return -1;
}

static struct sock *sock_make(const struct sim_process *process, int *fd_p) {
  if (n_socks == SOCKETS_MAX) return NULL;
  struct sock *const sock = calloc(1, sizeof *sock);
  sock->process = process;
  sock->inbox_tail = &sock->inbox;
  *fd_p = FIRST_FD + n_socks;
  return socks[n_socks++] = sock;
}

static int fd_of(const struct sock *sock) {
  int i = 0;
  while (socks[i] != sock) i++;
  return FIRST_FD + i;
}

static void packet_drop(struct sock *sock) {
  struct packet *const packet = sock->inbox;
  sock->inbox = packet->next;
  if (!sock->inbox) sock->inbox_tail = &sock->inbox;
  if (packet->fd >= 0) __real_close(packet->fd);
  free(packet);
}

/* What was sent by it arrives all the same. */
static void sock_end(struct sock *sock) {
  if (sock->peer) sock->peer->peer = NULL;
  for (struct sock *waits = sock->backlog; waits; waits = waits->next) sock_end(waits);
  while (sock->inbox) packet_drop(sock);
  sock->process = NULL;
  sock->peer = sock->backlog = NULL;
  sock->listens = false;
  sim_wake_all(&news);
}

void sim_unix_killed(const struct sim_process *process) {
  for (int i = 0; i < n_socks; i++)
    if (socks[i]->process == process) sock_end(socks[i]);
}

/* ------------------------------------------------------------ connections */

int __real_socket(int domain, int type, int protocol);
int __wrap_socket(int domain, int type, int protocol);
int __wrap_socket(int domain, int type, int protocol) {
  int fd;
  if (domain != AF_UNIX || !sim_process_here()) return __real_socket(domain, type, protocol);
  return sock_make(sim_process_here(), &fd) ? fd : fails(EMFILE);
}

static void name_of(const struct sockaddr *at, socklen_t len, char *name) {
  memset(name, 0, sizeof(struct sockaddr_un));
  memcpy(name, at, len);
}

static struct sock *listener_of(const char *name) {
  int i = 0;
  while (i < n_socks && (!socks[i]->listens || memcmp(socks[i]->name, name, sizeof socks[i]->name) != 0)) i++;
  return i < n_socks ? socks[i] : NULL;
}

int __real_bind(int fd, const struct sockaddr *at, socklen_t len);
int __wrap_bind(int fd, const struct sockaddr *at, socklen_t len);
int __wrap_bind(int fd, const struct sockaddr *at, socklen_t len) {
  struct sock *const sock = sock_of(fd);
  if (!sock) return __real_bind(fd, at, len);
  name_of(at, len, sock->name);
  return listener_of(sock->name) ? fails(EADDRINUSE) : 0;
}

int __real_listen(int fd, int backlog);
int __wrap_listen(int fd, int backlog);
int __wrap_listen(int fd, int backlog) {
  struct sock *const sock = sock_of(fd);
  if (!sock) return __real_listen(fd, backlog);
  sock->listens = true;
  return 0;
}

int __real_connect(int fd, const struct sockaddr *at, socklen_t len);
int __wrap_connect(int fd, const struct sockaddr *at, socklen_t len);
int __wrap_connect(int fd, const struct sockaddr *at, socklen_t len) {
  struct sock *const sock = sock_of(fd);
  char name[sizeof sock->name];
  int other_fd;
  if (!sock) return __real_connect(fd, at, len);
  name_of(at, len, name);
  struct sock *const listener = listener_of(name);
  if (!listener || listener->process->host != sock->process->host) return fails(ECONNREFUSED);
  struct sock *const other = sock_make(listener->process, &other_fd), **end = &listener->backlog;
  if (!other) return fails(EAGAIN);
  sock->peer = other;
  other->peer = sock;
  sock->was_connected = other->was_connected = true;
  while (*end) end = &(*end)->next;
  *end = other;
  sim_wake_all(&news);
  return 0;
}

int __real_accept4(int fd, struct sockaddr *at, socklen_t *len_p, int flags);
int __wrap_accept4(int fd, struct sockaddr *at, socklen_t *len_p, int flags);
int __wrap_accept4(int fd, struct sockaddr *at, socklen_t *len_p, int flags) {
  struct sock *const sock = sock_of(fd);
  if (!sock) return __real_accept4(fd, at, len_p, flags);
  struct sock *const first = sock->backlog;
  if (!first) return fails(EAGAIN);
  sock->backlog = first->next;
  first->next = NULL;
  return fd_of(first);
}

/* All processes are one user's. */
int __real_getsockopt(int fd, int level, int name, void *value, socklen_t *len_p);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *len_p);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *len_p) {
  if (!sock_of(fd)) return __real_getsockopt(fd, level, name, value, len_p);
  *(struct ucred *)value = (struct ucred){.uid = geteuid()};
  return 0;
}

int __wrap_close(int fd);
int __wrap_close(int fd) {
  struct sock *const sock = sock_of(fd);
  if (!sock) return __real_close(fd);
  sock_end(sock);
  return 0;
}

/* ------------------------------------------------------------ packets */

static int sent_fd(const struct msghdr *header) {
  int fd = -1;
  const struct cmsghdr *const rights = header->msg_controllen > 0 ? CMSG_FIRSTHDR(header) : NULL;
  if (rights) memcpy(&fd, CMSG_DATA(rights), sizeof fd);
  return fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

/* One part each. */
ssize_t __real_sendmsg(int fd, const struct msghdr *header, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *header, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *header, int flags) {
  struct sock *const sock = sock_of(fd);
  if (!sock) return __real_sendmsg(fd, header, flags);
  struct sock *const to = sock->peer;
  if (!to) return fails(EPIPE);
  const size_t len = header->msg_iov->iov_len;
  struct packet *const packet = malloc(sizeof *packet + len);
  const uint64_t at_ns = sim_now_ns() + sim_random(sim_chance(32) ? LATE_NS : LATENCY_NS);
  to->last_due_ns = at_ns > to->last_due_ns ? at_ns : to->last_due_ns;
  *packet = (struct packet){.due_ns = to->last_due_ns, .fd = sent_fd(header), .len = len};
  memcpy(packet->bytes, header->msg_iov->iov_base, len);
  *to->inbox_tail = packet;
  to->inbox_tail = &packet->next;
  sim_wake_all(&news);
  return (ssize_t)len;
}

ssize_t __real_recvmsg(int fd, struct msghdr *header, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *header, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *header, int flags) {
  struct sock *const sock = sock_of(fd);
  if (!sock) return __real_recvmsg(fd, header, flags);
  struct packet *const packet = sock->inbox;
  const bool has_come = packet && packet->due_ns <= sim_now_ns();
  if (!has_come && (packet || sock->peer)) return fails(EAGAIN);
  const size_t len = !has_come ? 0 : packet->len < header->msg_iov->iov_len ? packet->len : header->msg_iov->iov_len;
  if (has_come) memcpy(header->msg_iov->iov_base, packet->bytes, len);
  const int came = has_come ? packet->fd : -1;
  header->msg_controllen = came >= 0 ? CMSG_SPACE(sizeof came) : 0;
  if (came >= 0) {
    struct cmsghdr *const rights = header->msg_control;
    *rights = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof came)};
    memcpy(CMSG_DATA(rights), &came, sizeof came);
    packet->fd = -1;
  }
  if (has_come) packet_drop(sock);
  return (ssize_t)len;
}

/* Whether there is something to read; *next_ns: when there will be, at the latest then. */
static bool is_ready(const struct sock *sock, uint64_t *next_ns) {
  const uint64_t due_ns = sock->inbox ? sock->inbox->due_ns : ZPS_NEVER;
  if (sock->listens) return sock->backlog;
  if (due_ns < *next_ns) *next_ns = due_ns;
  return due_ns <= sim_now_ns() || (!sock->inbox && sock->was_connected && !sock->peer);
}

int __real_poll(struct pollfd *polled, nfds_t n, int timeout_ms);
int __wrap_poll(struct pollfd *polled, nfds_t n, int timeout_ms);
int __wrap_poll(struct pollfd *polled, nfds_t n, int timeout_ms) {
  bool any = false;
  for (nfds_t i = 0; i < n; i++) any |= sock_of(polled[i].fd) != NULL;
  if (!any) return __real_poll(polled, n, timeout_ms);
  const uint64_t until_ns = timeout_ms < 0 ? ZPS_NEVER : sim_now_ns() + (uint64_t)timeout_ms * ZPS_NS_PER_MS;
  int n_ready = 0;
  for (;;) {
    uint64_t next_ns = until_ns;
    for (nfds_t i = 0; i < n; i++) {
      const struct sock *const sock = sock_of(polled[i].fd);
      polled[i].revents = sock && is_ready(sock, &next_ns) ? POLLIN : 0;
      n_ready += polled[i].revents != 0;
    }
    if (n_ready > 0 || sim_now_ns() >= until_ns) return n_ready;
    sim_wait(&news, next_ns);
  }
}

/* ------------------------------------------------------------ what comes of it */

/* Where nothing befalls ranks, nor the coordinator that tells them of each other at the same time. */
static bool must_meet(const struct sim_plan *plan) {
  bool must = plan->lacks_shared == 0;
  for (uint32_t i = 0; i < plan->n_faults; i++)
    must &= sim_fault_takes_server(plan->faults[i].kind) || plan->faults[i].kind == SIM_ADD_SERVER;
  return must;
}

void __real_zps_neighbours_meet(const struct zps_neighbours_config *config, int fd, const struct zps_segment *segment,
                                uint64_t proof, uint64_t timeout_ms, struct zps_neighbour *neighbours);
void __wrap_zps_neighbours_meet(const struct zps_neighbours_config *config, int fd, const struct zps_segment *segment,
                                uint64_t proof, uint64_t timeout_ms, struct zps_neighbour *neighbours);
void __wrap_zps_neighbours_meet(const struct zps_neighbours_config *config, int fd, const struct zps_segment *segment,
                                uint64_t proof, uint64_t timeout_ms, struct zps_neighbour *neighbours) {
  __real_zps_neighbours_meet(config, fd, segment, proof, timeout_ms, neighbours);
  for (uint32_t r = 0; r < config->world; r++)
    if (config->near[r] && must_meet(sim_cluster.plan) && (!neighbours[r].maps_ours || !neighbours[r].view.base))
      sim_wrong("ranks %u and %u are on one host, and share no memory", config->rank, r);
}

/* ------------------------------------------------------------ memory that the system does not have */

int __real_fallocate(int fd, int mode, off_t offset, off_t len);
int __wrap_fallocate(int fd, int mode, off_t offset, off_t len);
int __wrap_fallocate(int fd, int mode, off_t offset, off_t len) {
  const struct sim_plan *const plan = sim_cluster.plan;
  if (mode == 0 && plan->lacks_shared > 0 && sim_chance(plan->lacks_shared)) return fails(ENOSPC);
  return __real_fallocate(fd, mode, offset, len);
}
