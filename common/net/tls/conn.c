/* Connections: from the first byte to the last. */
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/net/tls/impl.h"

#define ZPS_LOG_COMPONENT "net"
#include "common/base/log.h"

enum {
  ACCEPTS_PER_TURN = 16,
  NO_DESCRIPTORS_MS = 100,
  KEEPALIVE_PROBES = 3,
  SHAKE_BYTES_PER_TURN = 64 << 10,
  LINGER_READS = 256
};
/* Before a further connection is dialled in the place of a lost one. The pause doubles until a frame comes over one. */
#define PAUSE_LEAST_NS ZPS_NS_PER_S
#define PAUSE_MOST_NS (64 * ZPS_NS_PER_S)
#define LINGER_NS ZPS_NS_PER_S /* a trip, and some bytes sent again */

void zps_tlsnet_conn_ready(struct tlsnet_conn *conn) {
  if (conn->is_ready || conn->state == TLSNET_ENDED) return;
  conn->is_ready = true;
  TAILQ_INSERT_TAIL(&conn->net->ready, conn, ready_link);
}

void zps_tlsnet_conn_dirty(struct tlsnet_conn *conn) {
  if (conn->is_dirty || conn->state != TLSNET_OPEN || conn->is_full) return;
  conn->is_dirty = true;
  TAILQ_INSERT_TAIL(&conn->net->dirty, conn, dirty_link);
}

/* An idle connection carries an empty packet now and then, and ends when the other host does not answer. */
static void set_options(const struct tlsnet *net, int fd) {
  const int one = 1, probes = KEEPALIVE_PROBES, idle_s = (int)net->keepalive_s;
  const unsigned silent_ms = (unsigned)(net->connect_timeout_ns / ZPS_NS_PER_MS);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silent_ms, sizeof silent_ms);
  if (idle_s == 0) return;
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle_s, sizeof idle_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

/* Once it is connected: by then a route can no longer set another one. */
static void take_bbr(const struct tlsnet_conn *conn) {
  if (conn->net->has_bbr && !zps_tlsnet_take_bbr(conn->fd))
    zps_log_debug("%s: no congestion control bbr: %s", conn->text, strerror(errno));
}

static bool watch(struct tlsnet_conn *conn, int how, bool for_room) {
  struct epoll_event event = {.events = EPOLLIN | (for_room ? EPOLLOUT : 0), .data.ptr = conn};
  return epoll_ctl(conn->net->epoll_fd, how, conn->fd, &event) == 0;
}

void zps_tlsnet_conn_full(struct tlsnet_conn *conn, bool is_full) {
  conn->is_full = is_full;
  watch(conn, EPOLL_CTL_MOD, is_full);
  if (is_full)
    zps_tlsnet_deadline_set(conn->net, &conn->room_ns, zps_clock_ns() + conn->net->connect_timeout_ns);
  else
    zps_tlsnet_conn_dirty(conn);
}

/* Takes the socket over, in any case. NULL: no memory. */
static struct tlsnet_conn *conn_new(struct tlsnet *net, int fd, bool is_dialled, const struct sockaddr_in6 *at) {
  struct tlsnet_conn *const conn = calloc(1, sizeof *conn);
  struct tlsnet_in *const in = malloc(sizeof *in + net->base.info.max_msg + TLSNET_HELLO_BYTES);
  if (conn && in) {
    in->got = 0;
    in->has_head = false;
    *conn = (struct tlsnet_conn){.net = net, .fd = fd, .is_dialled = is_dialled, .in = in};
    conn->deadline_ns = conn->room_ns = conn->answer_ns = conn->further_ns = ZPS_NEVER;
    conn->state = is_dialled ? TLSNET_CONNECTING : TLSNET_SHAKING;
    LIST_INIT(&conn->peers);
    LIST_INIT(&conn->further);
    zps_tlsnet_address_text(at, conn->text, sizeof conn->text);
    set_options(net, fd);
    if (watch(conn, EPOLL_CTL_ADD, is_dialled)) {
      zps_forked_close_socket(&conn->forked, fd);
      LIST_INSERT_HEAD(&net->conns, conn, all_link);
      zps_tlsnet_deadline_set(net, &conn->deadline_ns, zps_clock_ns() + net->connect_timeout_ns);
      return conn;
    }
  }
  close(fd);
  free(in);
  free(conn);
  return NULL;
}

/* ---- its end ---- */

static void close_socket(struct tlsnet_conn *conn) {
  epoll_ctl(conn->net->epoll_fd, EPOLL_CTL_DEL, conn->fd, NULL);
  zps_forked_forget(&conn->forked);
  close(conn->fd);
  conn->fd = -1;
}

/* Drops what has come, for a while. Returns whether the other end may send more. */
static bool drop_rest(const struct tlsnet_conn *conn) {
  char rest[4096];
  for (int i = 0; i < LINGER_READS; i++) {
    const ssize_t n = recv(conn->fd, rest, sizeof rest, MSG_DONTWAIT);
    if (n <= 0) return n < 0 && errno == EAGAIN;
  }
  return true;
}

/* Bytes that nobody has read have the kernel throw away what is on its way to the other end. So a socket without a
 * fault stays until the other end has closed its own, or for LINGER_NS. */
static void linger(struct tlsnet_conn *conn, bool is_clean) {
  shutdown(conn->fd, SHUT_WR);
  if (!drop_rest(conn) || !is_clean) {
    close_socket(conn);
    return;
  }
  watch(conn, EPOLL_CTL_MOD, false);
  zps_tlsnet_deadline_set(conn->net, &conn->deadline_ns, zps_clock_ns() + LINGER_NS);
}

void zps_tlsnet_conn_rest(struct tlsnet_conn *conn) {
  if (conn->fd >= 0 && !drop_rest(conn)) close_socket(conn);
}

/* The other host has all, and keeps it for its process whatever comes later. */
static bool is_acknowledged(const struct tlsnet_conn *conn) {
  int n = 0;
  return ioctl(conn->fd, SIOCOUTQ, &n) != 0 || n == 0;
}

void zps_tlsnet_conns_close(struct tlsnet *net) {
  const uint64_t until_ns = zps_clock_ns() + LINGER_NS;
  struct tlsnet_conn *conn;
  for (bool are_closed = false; !are_closed;) {
    are_closed = true;
    LIST_FOREACH(conn, &net->ended, all_link) {
      zps_tlsnet_conn_rest(conn);
      if (conn->fd >= 0 && (is_acknowledged(conn) || zps_clock_ns() >= until_ns)) close_socket(conn);
      are_closed &= conn->fd < 0;
    }
    if (!are_closed) poll(NULL, 0, 1);
  }
  zps_tlsnet_conns_free(net);
}

/* Its first connection goes on, and dials another one after a pause. Those that end during a pause are one loss. */
static void further_end(struct tlsnet_conn *conn) {
  struct tlsnet_conn *const first = conn->first;
  zps_tlsnet_asked_lose(conn, NULL);
  LIST_REMOVE(conn, further_link);
  if (!first->is_dialled || first->state != TLSNET_OPEN || first->further_ns != ZPS_NEVER) return;
  first->pause_ns = first->pause_ns == 0 || conn->is_heard ? PAUSE_LEAST_NS : 2 * first->pause_ns;
  if (first->pause_ns > PAUSE_MOST_NS) first->pause_ns = PAUSE_MOST_NS;
  zps_tlsnet_deadline_set(conn->net, &first->further_ns, zps_clock_ns() + first->pause_ns);
}

void zps_tlsnet_conn_end(struct tlsnet_conn *conn, zps_err_t code, const char *fmt, ...) {
  struct tlsnet *const net = conn->net;
  char text[400];
  va_list args;
  if (conn->state == TLSNET_ENDED) return;
  const bool is_clean =
      code == ZPS_ERR_CLOSED && conn->state == TLSNET_OPEN && !conn->first && !zps_tlsnet_is_stranger(conn);
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  if (zps_tlsnet_is_stranger(conn)) net->n_strangers--;
  if (zps_tlsnet_is_stranger(conn) && (code == ZPS_ERR_REFUSED || code == ZPS_ERR_PROTOCOL || code == ZPS_ERR_VERSION))
    zps_log_warn_of_strangers("%s: %.300s", conn->text, text);
  else
    zps_log_debug("the connection with %s ends: %.300s", conn->text, text);
  conn->state = TLSNET_ENDED;
  if (conn->is_ready) TAILQ_REMOVE(&net->ready, conn, ready_link);
  if (conn->is_dirty) TAILQ_REMOVE(&net->dirty, conn, dirty_link);
  LIST_REMOVE(conn, all_link);
  LIST_INSERT_HEAD(&net->ended, conn, all_link);
  while (!LIST_EMPTY(&conn->peers)) zps_tlsnet_peer_fail(LIST_FIRST(&conn->peers), code, text);
  while (!LIST_EMPTY(&conn->further))
    zps_tlsnet_conn_end(LIST_FIRST(&conn->further), ZPS_ERR_CLOSED, "the first connection of its link has ended");
  if (conn->first) further_end(conn);
  linger(conn, is_clean);
}

void zps_tlsnet_conns_free(struct tlsnet *net) {
  struct tlsnet_conn *conn, *next;
  for (conn = LIST_FIRST(&net->ended); conn; conn = next) {
    next = LIST_NEXT(conn, all_link);
    if (conn->fd >= 0) continue;
    LIST_REMOVE(conn, all_link);
    zps_tls_session_destroy(conn->session);
    zps_tlsnet_ahead_free(conn);
    free(conn->in);
    free(conn);
  }
}

/* ---- its beginning ---- */

void zps_tlsnet_conn_attach(struct tlsnet_conn *conn, struct tlsnet_peer *peer) {
  peer->conn = conn;
  peer->deadline_ns = ZPS_NEVER;
  LIST_INSERT_HEAD(&conn->peers, peer, conn_link);
  zps_tlsnet_offers_replace(peer);
  zps_tlsnet_conn_dirty(conn);
}

/* A socket for a connection to the peer, and what will say HELLO over it. NULL: `*err_p` and `*why_p` say why. */
static struct tlsnet_conn *dialled_new(const struct tlsnet_peer *peer, unsigned number, zps_err_t *err_p,
                                       const char **why_p) {
  struct tlsnet *const net = tlsnet_of(peer->base.net);
  const int fd = socket(peer->address.at.sin6_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  struct tlsnet_conn *conn = NULL;
  if (fd < 0) {
    *err_p = ZPS_ERR_CONNECT;
    *why_p = strerror(errno);
  } else if ((conn = conn_new(net, fd, true, &peer->address.at)) == NULL) {
    *err_p = ZPS_ERR_NOMEM;
    *why_p = "no memory for a connection";
  } else {
    conn->hello = (struct tlsnet_hello){.slot = peer->slot, .number = number};
    memcpy(conn->hello.name, net->address.name, sizeof conn->hello.name);
    memcpy(conn->hello.to, peer->address.name, sizeof conn->hello.to);
  }
  return conn;
}

static void dialled_connect(struct tlsnet_conn *conn, const struct tlsnet_address *to) {
  if (connect(conn->fd, (const struct sockaddr *)&to->at, zps_tlsnet_address_len(to)) != 0 && errno != EINPROGRESS)
    zps_tlsnet_conn_end(conn, ZPS_ERR_CONNECT, "cannot connect: %s", strerror(errno));
}

static bool are_alike(const struct tlsnet_conn *a, const struct tlsnet_conn *b) {
  return a->is_named && b->is_named && memcmp(a->hello.name, b->hello.name, sizeof a->hello.name) == 0 &&
         memcmp(a->owner, b->owner, sizeof a->owner) == 0;
}

/* A new first connection, and others between the same two ends. */
static void doubles_mark(struct tlsnet_conn *conn) {
  struct tlsnet_conn *other;
  LIST_FOREACH(other, &conn->net->conns, all_link) {
    if (other == conn || other->first || other->is_dialled != conn->is_dialled || other->state != TLSNET_OPEN) continue;
    if (conn->is_dialled ? memcmp(other->hello.to, conn->hello.to, sizeof conn->hello.to) != 0
                         : !are_alike(other, conn))
      continue;
    zps_tlsnet_ahead_double(other);
    zps_tlsnet_ahead_double(conn);
  }
}

void zps_tlsnet_dial(struct tlsnet_peer *peer) {
  zps_err_t err;
  const char *why;
  struct tlsnet_conn *const conn = dialled_new(peer, 0, &err, &why);
  if (!conn) {
    zps_tlsnet_peer_fail(peer, err, why);
    return;
  }
  zps_tlsnet_conn_attach(conn, peer);
  dialled_connect(conn, &peer->address);
}

/* ---- further connections: the end that dialled the first one dials them, one after the other ---- */

/* The peer of a connection that this end has dialled. */
static const struct tlsnet_peer *dialled_peer(const struct tlsnet_conn *conn) {
  return LIST_FIRST(&(conn->first ? conn->first : conn)->peers);
}

static struct tlsnet_conn *further_of(const struct tlsnet_conn *first, uint32_t number) {
  struct tlsnet_conn *conn;
  LIST_FOREACH(conn, &first->further, further_link) {
    if (conn->hello.number == number) return conn;
  }
  return NULL;
}

/* Behind the others, whose TCP windows are larger by now. */
static void further_join(struct tlsnet_conn *conn, struct tlsnet_conn *first) {
  struct tlsnet_conn *last = LIST_FIRST(&first->further);
  conn->first = first;
  while (last && LIST_NEXT(last, further_link)) last = LIST_NEXT(last, further_link);
  if (last)
    LIST_INSERT_AFTER(last, conn, further_link);
  else
    LIST_INSERT_HEAD(&first->further, conn, further_link);
}

/* Half of a process's descriptors are for its files, and for first connections. */
static bool takes_too_much(const struct tlsnet_conn *further) {
  struct rlimit limit;
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 && (rlim_t)further->fd >= limit.rlim_cur / 2;
}

static const char too_much[] = "half of this process's descriptors are in use: raise their limit (ulimit -n)";

/* Dials the first one that is missing. After a loss all wait for its pause. */
static void further_dial(struct tlsnet_conn *first) {
  const struct tlsnet_peer *const peer = LIST_FIRST(&first->peers);
  zps_err_t err;
  const char *why = too_much;
  uint32_t number = 1;
  while (number < first->net->n_connections && further_of(first, number)) number++;
  first->further_ns = ZPS_NEVER;
  if (!peer || number >= first->net->n_connections) return;
  struct tlsnet_conn *conn = dialled_new(peer, number, &err, &why);
  if (conn && takes_too_much(conn)) {
    zps_tlsnet_conn_end(conn, ZPS_ERR_CONNECT, "%s", too_much);
    conn = NULL;
  }
  if (conn) {
    further_join(conn, first);
    dialled_connect(conn, &peer->address);
  } else {
    zps_log_warn_limited("%s: no further connection: %s", first->text, why);
    zps_tlsnet_deadline_set(first->net, &first->further_ns, zps_clock_ns() + PAUSE_MOST_NS);
  }
}

/* By its first frame the other end has a peer of this end's name: it takes no further connection for a stranger's. */
void zps_tlsnet_conn_hear(struct tlsnet_conn *conn) {
  conn->is_heard = true;
  if (conn->is_dialled && !conn->first) further_dial(conn);
}

/* Of the strangers, the one that has been there longest goes. */
static void make_room(struct tlsnet *net) {
  struct tlsnet_conn *conn, *oldest = NULL;
  if (net->n_strangers < TLSNET_STRANGERS_MAX) return;
  LIST_FOREACH(conn, &net->conns, all_link) {
    if (zps_tlsnet_is_stranger(conn)) oldest = conn;
  }
  if (oldest) zps_tlsnet_conn_end(oldest, ZPS_ERR_CLOSED, "others have come that are strangers here, too");
}

void zps_tlsnet_accept(struct tlsnet *net) {
  for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
    struct sockaddr_in6 at = {0};
    socklen_t len = sizeof at;
    const int fd = accept4(net->listen_fd, (struct sockaddr *)&at, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
    /* Of the first alone: the kernel takes a descriptor before it looks whether anybody waits. */
    if (fd < 0 && i == 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
      zps_log_warn_limited("cannot accept a connection at %s: %s", net->base.info.address, strerror(errno));
      struct epoll_event none = {.data.ptr = &net->listen_fd};
      epoll_ctl(net->epoll_fd, EPOLL_CTL_MOD, net->listen_fd, &none);
      zps_tlsnet_deadline_set(net, &net->accept_at_ns, zps_clock_ns() + NO_DESCRIPTORS_MS * ZPS_NS_PER_MS);
    }
    if (fd < 0) return;
    make_room(net);
    struct tlsnet_conn *const conn = conn_new(net, fd, false, &at);
    if (!conn) return;
    net->n_strangers++;
    take_bbr(conn);
    struct zps_error error;
    if (zps_tls_socket_create(net->tls, fd, true, ZPS_TLS_WORKER, &conn->session, &error) != ZPS_OK)
      zps_tlsnet_conn_end(conn, error.code, "%s", error.text);
  }
}

/* The TCP connection is there, or cannot be had. */
static void connected(struct tlsnet_conn *conn) {
  int err_number = 0;
  socklen_t len = sizeof err_number;
  struct zps_error error;
  getsockopt(conn->fd, SOL_SOCKET, SO_ERROR, &err_number, &len);
  if (err_number != 0) {
    zps_tlsnet_conn_end(conn, ZPS_ERR_CONNECT, "cannot connect: %s", strerror(err_number));
    return;
  }
  const struct tlsnet_peer *const peer = dialled_peer(conn);
  take_bbr(conn);
  conn->state = TLSNET_SHAKING;
  if (zps_tls_socket_create(conn->net->tls, conn->fd, false, peer->is_rank ? ZPS_TLS_WORKER : ZPS_TLS_SERVER,
                            &conn->session, &error) != ZPS_OK)
    zps_tlsnet_conn_end(conn, error.code, "%s", error.text);
}

/* A connection of others stays one of a stranger until this end has a peer of its name, and has to hurry until then. */
static void opened(struct tlsnet_conn *conn) {
  const struct tlsnet_peer *const peer = conn->is_dialled ? dialled_peer(conn) : NULL;
  struct zps_error error;
  if (zps_tls_peer_owner(conn->session, conn->owner, &error) != ZPS_OK) {
    zps_tlsnet_conn_end(conn, error.code, "%s", error.text);
    return;
  }
  if (conn->is_dialled && memcmp(conn->owner, peer->address.owner, sizeof conn->owner) != 0) {
    zps_tlsnet_conn_end(
        conn, ZPS_ERR_REFUSED,
        "its certificate, of %s, is not that of the process that the coordinator has told this address of",
        zps_tls_peer_name(conn->session));
    return;
  }
  conn->state = TLSNET_OPEN;
  watch(conn, EPOLL_CTL_MOD, false);
  zps_tlsnet_conn_ready(conn);
  if (!conn->is_dialled) return;
  if (!conn->first) doubles_mark(conn);
  zps_tlsnet_head_write(TLSNET_HELLO, TLSNET_HELLO_BYTES, conn->out);
  zps_tlsnet_hello_write(&conn->hello, conn->out + TLSNET_HEAD_BYTES);
  conn->out_len = TLSNET_HEAD_BYTES + TLSNET_HELLO_BYTES;
  conn->deadline_ns = ZPS_NEVER;
  zps_tlsnet_conn_dirty(conn);
  if (conn->first && conn->first->further_ns == ZPS_NEVER) further_dial(conn->first);
}

void zps_tlsnet_conn_step(struct tlsnet_conn *conn) {
  struct zps_error error;
  bool is_set = false;
  if (conn->state == TLSNET_CONNECTING) connected(conn);
  if (conn->state != TLSNET_SHAKING) return;
  zps_tls_socket_allow(conn->session, SHAKE_BYTES_PER_TURN);
  if (zps_tls_socket_shake(conn->session, &is_set, &error) != ZPS_OK)
    zps_tlsnet_conn_end(conn, error.code, "%s", error.text);
  else if (is_set)
    opened(conn);
  else
    watch(conn, EPOLL_CTL_MOD, zps_tls_socket_is_full(conn->session));
}

/* The end that dialled is the one at this address: the name alone could be claimed by others. */
static bool is_of(const struct tlsnet_conn *conn, const struct tlsnet_address *address) {
  return conn->is_named && memcmp(conn->hello.name, address->name, sizeof address->name) == 0 &&
         memcmp(conn->owner, address->owner, sizeof address->owner) == 0;
}

/* One that the same end has made before in the same place is no longer in use there, even if this end has not seen its
 * end. Returns how many others of its kind, first or further, the same end has. */
static unsigned end_replaced(const struct tlsnet_conn *by) {
  unsigned n = 0;
  struct tlsnet_conn *conn, *next;
  for (conn = LIST_FIRST(&by->net->conns); conn; conn = next) {
    next = LIST_NEXT(conn, all_link);
    if (conn == by || !are_alike(conn, by)) continue;
    if (conn->hello.slot == by->hello.slot && conn->hello.number == by->hello.number) {
      zps_tlsnet_conn_end(conn, ZPS_ERR_PEER_LOST, "the peer has connected anew");
      next = LIST_FIRST(&by->net->conns); /* further ones may have ended with it */
      n = 0;
    } else if ((conn->hello.number == 0) == (by->hello.number == 0)) {
      n++;
    }
  }
  return n;
}

static struct tlsnet_conn *first_of(const struct tlsnet_conn *further) {
  struct tlsnet_conn *conn;
  LIST_FOREACH(conn, &further->net->conns, all_link) {
    if (conn->hello.number == 0 && conn->hello.slot == further->hello.slot && are_alike(conn, further)) return conn;
  }
  return NULL;
}

/* One that was known stays, without a deadline, until many strangers have come: its end may have another use for it. */
static void set_known(struct tlsnet_conn *conn, bool is_known) {
  if (is_known) conn->deadline_ns = ZPS_NEVER;
  if (is_known && !conn->is_known) conn->net->n_strangers--;
  if (!is_known && conn->is_known) conn->net->n_strangers++;
  conn->is_known = is_known;
  if (conn->must_decline) zps_tlsnet_conn_dirty(conn); /* strangers get no answer */
}

static bool has_peer(const struct tlsnet_conn *conn) {
  const struct tlsnet_peer *peer;
  LIST_FOREACH(peer, &conn->net->peers, all_link) {
    if (is_of(conn, &peer->address)) return true;
  }
  return false;
}

struct tlsnet_conn *zps_tlsnet_conns_know(struct tlsnet *net, const struct tlsnet_address *address) {
  struct tlsnet_conn *conn, *newest = NULL;
  LIST_FOREACH(conn, &net->conns, all_link) {
    if (!is_of(conn, address)) continue;
    set_known(conn, has_peer(conn));
    if (!newest && !conn->first) newest = conn;
  }
  return newest;
}

void zps_tlsnet_conns_serve_none(struct tlsnet *net) {
  struct tlsnet_conn *conn, *next;
  for (conn = LIST_FIRST(&net->conns); conn; conn = next) {
    next = LIST_NEXT(conn, all_link);
    if (!zps_tlsnet_is_stranger(conn) || conn->served.n == 0) continue;
    zps_tlsnet_conn_end(conn, ZPS_ERR_CLOSED, "asks for bytes, and this end has given it up");
    next = LIST_FIRST(&net->conns); /* further ones may have ended with it */
  }
}

void zps_tlsnet_conn_name(struct tlsnet_conn *conn, const struct tlsnet_hello *hello) {
  struct tlsnet *const net = conn->net;
  struct tlsnet_peer *peer;
  if (memcmp(hello->to, net->address.name, TLSNET_NAME_BYTES) != 0) {
    zps_tlsnet_conn_end(conn, ZPS_ERR_CLOSED, "it is for an endpoint that was here before");
    return;
  }
  conn->is_named = true;
  conn->hello = *hello;
  const unsigned most = hello->number == 0 ? TLSNET_SLOTS_MAX : TLSNET_FURTHER_MAX;
  if (end_replaced(conn) >= most) {
    zps_tlsnet_conn_end(conn, ZPS_ERR_REFUSED, "has %u %sconnections already", most,
                        hello->number == 0 ? "" : "further ");
    return;
  }
  if (hello->number > 0) {
    struct tlsnet_conn *const first = takes_too_much(conn) ? NULL : first_of(conn);
    if (first)
      further_join(conn, first);
    else if (takes_too_much(conn))
      zps_tlsnet_conn_end(conn, ZPS_ERR_REFUSED, "%s", too_much);
    else
      zps_tlsnet_conn_end(conn, ZPS_ERR_CLOSED, "the first connection of its link is not here");
    if (!first) return;
  }
  set_known(conn, has_peer(conn));
  if (conn->first) return;
  doubles_mark(conn);
  LIST_FOREACH(peer, &net->peers, all_link) {
    if (!peer->dials && !peer->conn && peer->state == TLSNET_PEER_LIVE && is_of(conn, &peer->address))
      zps_tlsnet_conn_attach(conn, peer);
  }
}

/* ---- what is late ---- */

void zps_tlsnet_deadline_set(struct tlsnet *net, uint64_t *deadline_p, uint64_t deadline_ns) {
  *deadline_p = deadline_ns;
  if (deadline_ns < net->next_deadline_ns) net->next_deadline_ns = deadline_ns;
}

/* The first connection of a link has its own looks (common/session/resume.c), which know nothing of further ones. */
void zps_tlsnet_await_answer(struct tlsnet_conn *conn) {
  conn->answer_ns = ZPS_NEVER;
  if (conn->first && conn->asked.n > 0)
    zps_tlsnet_deadline_set(conn->net, &conn->answer_ns, zps_clock_ns() + conn->net->connect_timeout_ns);
}

static void end_late(struct tlsnet_conn *conn, bool is_silent) {
  const unsigned long long ms = conn->net->connect_timeout_ns / ZPS_NS_PER_MS;
  if (is_silent)
    zps_tlsnet_conn_end(conn, ZPS_ERR_PEER_LOST, "brings nothing of a read for %llu ms", ms);
  else if (conn->state == TLSNET_OPEN && !zps_tlsnet_is_stranger(conn))
    zps_tlsnet_conn_end(conn, ZPS_ERR_CONNECT, "does not take messages for %llu ms", ms);
  else if (conn->state == TLSNET_CONNECTING)
    zps_tlsnet_conn_end(conn, ZPS_ERR_CONNECT, "does not answer for %llu ms", ms);
  else if (conn->is_named)
    zps_tlsnet_conn_end(conn, ZPS_ERR_CLOSED, "this end has had no peer of its name for %llu ms", ms);
  else
    zps_tlsnet_conn_end(conn, ZPS_ERR_CONNECT, "has not said who it is for %llu ms", ms);
}

void zps_tlsnet_deadlines(struct tlsnet *net, uint64_t now_ns) {
  struct tlsnet_conn *conn, *next;
  struct tlsnet_peer *peer;
  char text[120];
  uint64_t next_ns = ZPS_NEVER;
  if (now_ns < net->next_deadline_ns) return;
  net->next_deadline_ns = ZPS_NEVER; /* what begins below may set it */
  for (conn = LIST_FIRST(&net->conns); conn; conn = next) {
    next = LIST_NEXT(conn, all_link);
    uint64_t first_ns = conn->deadline_ns < conn->room_ns ? conn->deadline_ns : conn->room_ns;
    if (conn->answer_ns < first_ns) first_ns = conn->answer_ns;
    if (now_ns >= first_ns) {
      end_late(conn, now_ns >= conn->answer_ns);
      next = LIST_FIRST(&net->conns); /* further ones may have ended with it */
      next_ns = ZPS_NEVER;
    } else if (first_ns < next_ns) {
      next_ns = first_ns;
    }
  }
  LIST_FOREACH(conn, &net->ended, all_link) {
    if (conn->fd >= 0 && now_ns >= conn->deadline_ns)
      close_socket(conn);
    else if (conn->fd >= 0 && conn->deadline_ns < next_ns)
      next_ns = conn->deadline_ns;
  }
  LIST_FOREACH(conn, &net->conns, all_link) {
    if (now_ns >= conn->further_ns) further_dial(conn);
    if (conn->further_ns < next_ns) next_ns = conn->further_ns;
  }
  snprintf(text, sizeof text, "has not connected to this end for %llu ms: ranks connect, and not servers",
           (unsigned long long)(net->connect_timeout_ns / ZPS_NS_PER_MS));
  LIST_FOREACH(peer, &net->peers, all_link) {
    if (now_ns >= peer->deadline_ns)
      zps_tlsnet_peer_fail(peer, ZPS_ERR_CONNECT, text);
    else if (peer->deadline_ns < next_ns)
      next_ns = peer->deadline_ns;
  }
  if (now_ns >= net->accept_at_ns && net->listen_fd >= 0) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &net->listen_fd};
    epoll_ctl(net->epoll_fd, EPOLL_CTL_MOD, net->listen_fd, &event);
    net->accept_at_ns = ZPS_NEVER;
  } else if (net->accept_at_ns < next_ns) {
    next_ns = net->accept_at_ns;
  }
  if (next_ns < net->next_deadline_ns) net->next_deadline_ns = next_ns;
}
