/* Sockets: byte streams between processes, whose parts take some time each, in order. */
#include "tests/sim/uv.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/uv_impl.h"

enum { LATENCY_MIN_NS = 20000, LATENCY_NS = 400000, LATE_NS = 20 * 1000000 };

/* Bytes under way, or the end of them. */
struct chunk {
  struct chunk *next;
  uint64_t due_ns;
  int end; /* 0: bytes; else the status that reading ends with */
  size_t len, at;
  char bytes[];
};

/* One end of a connection, or what listens. */
struct sock {
  struct sock *next; /* all there are */
  const struct sim_process *process;
  uv_stream_t *stream; /* NULL: not accepted yet, or closed */
  struct sock *peer;   /* NULL: gone */
  struct chunk *inbox, **inbox_tail;
  uint64_t last_due_ns;           /* of what comes here */
  uint16_t port;                  /* listens there; 0: it does not */
  bool listens, reads, has_ended; /* has_ended: it sends no more */
  bool is_cut;                    /* by the network: what it sends is lost on the way */
  struct sock *backlog;           /* accepted ends of those that connect, by backlog_next */
  struct sock *backlog_next;
  uint64_t backlog_due_ns;
};

static struct sock *socks;
static uint16_t last_port = 40000;

static struct sock *sock_of(const void *handle) {
  return ((const uv_handle_t *)handle)->u.reserved[0];
}

static struct sock *sock_make(const struct sim_process *process, uv_stream_t *stream) {
  struct sock *sock = calloc(1, sizeof *sock);
  sock->process = process;
  sock->stream = stream;
  sock->inbox_tail = &sock->inbox;
  sock->next = socks;
  socks = sock;
  if (stream) stream->u.reserved[0] = sock;
  return sock;
}

static uint64_t arrival_ns(uint64_t *last_ns) {
  const uint64_t latency_ns = LATENCY_MIN_NS + sim_random(sim_chance(32) ? LATE_NS : LATENCY_NS);
  const uint64_t at_ns = sim_now_ns() + latency_ns;
  *last_ns = at_ns > *last_ns ? at_ns : *last_ns + 1;
  return *last_ns;
}

static void wake_reader(const struct sock *sock) {
  if (sock->stream) sim_wake_all(sim_uv_loop(sock->stream->loop));
}

static void put(struct sock *to, const uv_buf_t *bufs, unsigned n, int end) {
  size_t len = 0;
  for (unsigned i = 0; i < n; i++) len += bufs[i].len;
  struct chunk *chunk = malloc(sizeof *chunk + len);
  *chunk = (struct chunk){.due_ns = arrival_ns(&to->last_due_ns), .end = end};
  for (unsigned i = 0; i < n; i++) {
    memcpy(chunk->bytes + chunk->len, bufs[i].base, bufs[i].len);
    chunk->len += bufs[i].len;
  }
  *to->inbox_tail = chunk;
  to->inbox_tail = &chunk->next;
  wake_reader(to);
}

static void chunk_drop(struct sock *sock) {
  struct chunk *chunk = sock->inbox;
  sock->inbox = chunk->next;
  if (!sock->inbox) sock->inbox_tail = &sock->inbox;
  free(chunk);
}

/* It is not there any more: the other end hears of it. */
static void sock_end(struct sock *sock, int status) {
  struct sock *const peer = sock->peer;
  if (peer) {
    if (!sock->has_ended || status != UV_EOF) put(peer, NULL, 0, status);
    peer->peer = NULL;
  }
  for (struct sock *waits = sock->backlog, *next; waits; waits = next) {
    next = waits->backlog_next;
    sock_end(waits, UV_ECONNRESET);
  }
  if (sock->stream) sock->stream->u.reserved[0] = NULL;
  while (sock->inbox) chunk_drop(sock);
  struct sock **at = &socks;
  while (*at != sock) at = &(*at)->next;
  *at = sock->next;
  free(sock);
}

static struct sock *find_of(const struct sim_process *process, bool listens) {
  struct sock *sock = socks;
  while (sock && (sock->process != process || sock->listens != listens)) sock = sock->next;
  return sock;
}

/* With those that listen go those that wait to be accepted. */
void sim_uv_killed(const struct sim_process *process) {
  struct sock *sock;
  while ((sock = find_of(process, true)) != NULL) sock_end(sock, UV_EOF);
  while ((sock = find_of(process, false)) != NULL) sock_end(sock, sim_chance(2) ? UV_EOF : UV_ECONNRESET);
}

void sim_uv_cut(const struct sim_process *process) {
  for (struct sock *sock = socks; sock; sock = sock->next) {
    if (sock->process != process || !sock->peer) continue;
    put(sock->peer, NULL, 0, UV_ETIMEDOUT);
    put(sock, NULL, 0, UV_ETIMEDOUT);
    sock->is_cut = sock->peer->is_cut = true;
    sock->peer->peer = NULL;
    sock->peer = NULL;
  }
}

int uv_tcp_init(uv_loop_t *uv, uv_tcp_t *tcp) {
  sim_uv_handle(uv, (uv_handle_t *)tcp, UV_TCP);
  tcp->write_queue_size = 0;
  sock_make(sim_uv_loop(uv)->process, (uv_stream_t *)tcp);
  return 0;
}

static uint16_t port_of(const struct sockaddr *addr) {
  struct sockaddr_in in;
  memcpy(&in, addr, sizeof in);
  return ntohs(in.sin_port);
}

static int name(uint16_t port, struct sockaddr *addr, int *len) {
  const struct sockaddr_in in = {
      .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  memcpy(addr, &in, sizeof in);
  *len = sizeof in;
  return 0;
}

int uv_tcp_bind(uv_tcp_t *tcp, const struct sockaddr *addr, unsigned flags) {
  (void)flags;
  sock_of(tcp)->port = port_of(addr);
  return 0;
}

int uv_tcp_getsockname(const uv_tcp_t *tcp, struct sockaddr *addr, int *len) {
  return name(sock_of(tcp)->port, addr, len);
}
int uv_tcp_getpeername(const uv_tcp_t *tcp, struct sockaddr *addr, int *len) {
  return name(sock_of(tcp)->port, addr, len);
}
int uv_tcp_nodelay(uv_tcp_t *tcp, int enable) {
  (void)tcp, (void)enable;
  return 0;
}
int uv_tcp_keepalive(uv_tcp_t *tcp, int enable, unsigned delay) {
  (void)tcp, (void)enable, (void)delay;
  return 0;
}
int uv_fileno(const uv_handle_t *handle, uv_os_fd_t *fd) {
  (void)handle, (void)fd;
  return UV_EBADF;
}

static struct sock *find_listener(uint16_t port) {
  struct sock *sock = socks;
  while (sock && !(sock->listens && sock->port == port)) sock = sock->next;
  return sock;
}

int uv_listen(uv_stream_t *stream, int backlog, uv_connection_cb cb) {
  struct sock *sock = sock_of(stream);
  (void)backlog;
  if (find_listener(sock->port)) return UV_EADDRINUSE;
  sock->listens = true;
  stream->connection_cb = cb;
  return 0;
}

int uv_tcp_connect(uv_connect_t *request, uv_tcp_t *tcp, const struct sockaddr *addr, uv_connect_cb cb) {
  struct sock *sock = sock_of(tcp), *listener = find_listener(port_of(addr));
  uint64_t due_ns = 0;
  arrival_ns(&due_ns);
  request->cb = cb;
  request->handle = (uv_stream_t *)tcp;
  sock->port = last_port++;
  sim_uv_owe(tcp->loop, OWED_CONNECT, request, (uv_handle_t *)tcp, listener ? 0 : UV_ECONNREFUSED, due_ns);
  if (!listener) return 0;
  struct sock *other = sock_make(listener->process, NULL);
  other->port = sock->port;
  other->peer = sock;
  sock->peer = other;
  other->backlog_due_ns = due_ns;
  struct sock **at = &listener->backlog;
  while (*at) at = &(*at)->backlog_next;
  *at = other;
  wake_reader(listener);
  return 0;
}

int uv_accept(uv_stream_t *server, uv_stream_t *client) {
  struct sock *listener = sock_of(server), *sock = listener->backlog, *unused = sock_of(client);
  if (!sock) return UV_EAGAIN;
  listener->backlog = sock->backlog_next;
  sock->backlog_next = NULL;
  sock_end(unused, UV_EOF);
  sock->stream = client;
  client->u.reserved[0] = sock;
  return 0;
}

int uv_read_start(uv_stream_t *stream, uv_alloc_cb alloc_cb, uv_read_cb read_cb) {
  stream->alloc_cb = alloc_cb;
  stream->read_cb = read_cb;
  sock_of(stream)->reads = true;
  return 0;
}

int uv_read_stop(uv_stream_t *stream) {
  sock_of(stream)->reads = false;
  return 0;
}

int uv_write(uv_write_t *request, uv_stream_t *stream, const uv_buf_t *bufs, unsigned n, uv_write_cb cb) {
  struct sock *sock = sock_of(stream);
  request->cb = cb;
  request->handle = stream;
  if (sock->peer) put(sock->peer, bufs, n, 0);
  sim_uv_owe(stream->loop, OWED_WRITE, request, (uv_handle_t *)stream, sock->peer || sock->is_cut ? 0 : UV_EPIPE,
             sim_now_ns());
  return 0;
}

int uv_shutdown(uv_shutdown_t *request, uv_stream_t *stream, uv_shutdown_cb cb) {
  struct sock *sock = sock_of(stream);
  request->cb = cb;
  request->handle = stream;
  if (sock->peer) put(sock->peer, NULL, 0, UV_EOF);
  sock->has_ended = true;
  sim_uv_owe(stream->loop, OWED_SHUTDOWN, request, (uv_handle_t *)stream, sock->peer ? 0 : UV_ENOTCONN, sim_now_ns());
  return 0;
}

void sim_uv_tcp_closed(uv_tcp_t *tcp) {
  if (sock_of(tcp)) sock_end(sock_of(tcp), UV_EOF);
}

static void read_some(struct sock *sock) {
  uv_stream_t *const stream = sock->stream;
  struct chunk *const chunk = sock->inbox;
  uv_buf_t buf = {0};
  stream->alloc_cb((uv_handle_t *)stream, 65536, &buf);
  if (buf.len == 0) {
    stream->read_cb(stream, UV_ENOBUFS, &buf);
    return;
  }
  if (chunk->end) {
    const int end = chunk->end;
    chunk_drop(sock);
    sock->reads = false;
    stream->read_cb(stream, end, &buf);
    return;
  }
  size_t len = chunk->len - chunk->at;
  if (len > buf.len) len = buf.len;
  memcpy(buf.base, chunk->bytes + chunk->at, len);
  chunk->at += len;
  if (chunk->at == chunk->len) chunk_drop(sock);
  stream->read_cb(stream, (ssize_t)len, &buf);
}

static bool is_ready(const struct sock *sock, uint64_t now_ns) {
  if (sock->listens) return sock->backlog && sock->backlog->backlog_due_ns <= now_ns;
  return sock->reads && sock->inbox && sock->inbox->due_ns <= now_ns;
}

bool sim_uv_run_socket(struct loop *loop) {
  struct sock *chosen = NULL;
  unsigned n = 0;
  for (struct sock *sock = socks; sock; sock = sock->next)
    if (sock->stream && sim_uv_loop(sock->stream->loop) == loop && is_ready(sock, sim_now_ns()) && sim_chance(++n))
      chosen = sock;
  if (!chosen) return false;
  if (chosen->listens)
    chosen->stream->connection_cb(chosen->stream, 0);
  else
    read_some(chosen);
  return true;
}

uint64_t sim_uv_sockets_due_ns(const struct loop *loop) {
  uint64_t at_ns = ZPS_NEVER;
  for (const struct sock *sock = socks; sock; sock = sock->next) {
    if (!sock->stream || sim_uv_loop(sock->stream->loop) != loop) continue;
    if (sock->listens && sock->backlog && sock->backlog->backlog_due_ns < at_ns) at_ns = sock->backlog->backlog_due_ns;
    if (!sock->listens && sock->reads && sock->inbox && sock->inbox->due_ns < at_ns) at_ns = sock->inbox->due_ns;
  }
  return at_ns;
}
