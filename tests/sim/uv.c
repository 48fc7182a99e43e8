#include "tests/sim/uv.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/container.h"

enum { LATENCY_MIN_NS = 20000, LATENCY_NS = 400000, LATE_NS = 20 * 1000000 };
enum { ACTIVE = 1, CLOSING = 2 }; /* flags of a handle */

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

/* A callback that the loop owes. */
struct owed {
  struct owed *next;
  uint64_t due_ns;
  enum { OWED_POST, OWED_CONNECT, OWED_WRITE, OWED_SHUTDOWN } kind;
  void *of; /* the request */
  uv_handle_t *handle;
  int status;
  void (*run)(void *ctx);
};

struct loop {
  const struct sim_process *process;
  struct owed *owed, **owed_tail;
  uv_timer_t *timers; /* active, by heap_node[0] */
  uv_handle_t *prepares, *checks;
  uv_handle_t *closing; /* by next_closing */
  uv_async_t *asyncs;   /* by queue[0] */
  uv_idle_t *idles;
  unsigned n_handles; /* that keep the loop running */
  uint64_t n_timers;  /* ever started: equal times go by this */
};

static struct sock *socks;
static uint16_t last_port = 40000;

static struct loop *loop_of(const uv_loop_t *uv) {
  return uv->internal_fields;
}

/* ------------------------------------------------------------ loops and handles */

int uv_loop_init(uv_loop_t *uv) {
  memset(uv, 0, sizeof *uv);
  struct loop *loop = calloc(1, sizeof *loop);
  loop->owed_tail = &loop->owed;
  loop->process = sim_process_here();
  uv->internal_fields = loop;
  return 0;
}

int uv_loop_close(uv_loop_t *uv) {
  free(uv->internal_fields);
  uv->internal_fields = NULL;
  return 0;
}

void uv_update_time(uv_loop_t *uv) {
  (void)uv;
}

static void handle_init(uv_loop_t *uv, uv_handle_t *handle, uv_handle_type type) {
  handle->loop = uv;
  handle->type = type;
  handle->flags = 0;
  handle->close_cb = NULL;
  handle->u.reserved[0] = NULL;
  loop_of(uv)->n_handles++;
}

int uv_is_closing(const uv_handle_t *handle) {
  return (handle->flags & CLOSING) != 0;
}

static struct owed *owe(uv_loop_t *uv, int kind, void *of, uv_handle_t *handle, int status, uint64_t due_ns) {
  struct loop *loop = loop_of(uv);
  struct owed *owed = calloc(1, sizeof *owed);
  owed->kind = kind;
  owed->of = of;
  owed->handle = handle;
  owed->status = status;
  owed->due_ns = due_ns;
  *loop->owed_tail = owed;
  loop->owed_tail = &owed->next;
  sim_wake_all(loop);
  return owed;
}

void sim_uv_post(uv_loop_t *uv, void (*run)(void *ctx), void *ctx) {
  owe(uv, OWED_POST, ctx, NULL, 0, sim_now_ns())->run = run;
}

/* ------------------------------------------------------------ timers and turns */

int uv_timer_init(uv_loop_t *uv, uv_timer_t *timer) {
  handle_init(uv, (uv_handle_t *)timer, UV_TIMER);
  return 0;
}

int uv_timer_stop(uv_timer_t *timer) {
  struct loop *loop = loop_of(timer->loop);
  if (!(timer->flags & ACTIVE)) return 0;
  timer->flags &= ~(unsigned)ACTIVE;
  uv_timer_t **at = &loop->timers;
  while (*at != timer) at = (uv_timer_t **)&(*at)->heap_node[0];
  *at = timer->heap_node[0];
  return 0;
}

int uv_timer_start(uv_timer_t *timer, uv_timer_cb cb, uint64_t timeout_ms, uint64_t repeat_ms) {
  struct loop *loop = loop_of(timer->loop);
  if (timer->flags & CLOSING) return UV_EINVAL;
  uv_timer_stop(timer);
  timer->timer_cb = cb;
  timer->timeout = timeout_ms > UINT64_MAX / ZPS_NS_PER_MS / 2 ? ZPS_NEVER : sim_now_ns() + timeout_ms * ZPS_NS_PER_MS;
  timer->repeat = repeat_ms;
  timer->start_id = loop->n_timers++;
  timer->flags |= ACTIVE;
  timer->heap_node[0] = loop->timers;
  loop->timers = timer;
  sim_wake_all(loop);
  return 0;
}

static uv_timer_t *first_timer(const struct loop *loop) {
  uv_timer_t *first = NULL;
  for (uv_timer_t *timer = loop->timers; timer; timer = timer->heap_node[0]) {
    if (!first || timer->timeout < first->timeout ||
        (timer->timeout == first->timeout && timer->start_id < first->start_id))
      first = timer;
  }
  return first;
}

static void run_timers(struct loop *loop) {
  const uint64_t now_ns = sim_now_ns(), newer = loop->n_timers;
  uv_timer_t *timer;
  while ((timer = first_timer(loop)) != NULL && timer->timeout <= now_ns && timer->start_id < newer) {
    uv_timer_stop(timer);
    if (timer->repeat) uv_timer_start(timer, timer->timer_cb, timer->repeat, timer->repeat);
    timer->timer_cb(timer);
  }
}

int uv_prepare_init(uv_loop_t *uv, uv_prepare_t *prepare) {
  handle_init(uv, (uv_handle_t *)prepare, UV_PREPARE);
  return 0;
}
int uv_check_init(uv_loop_t *uv, uv_check_t *check) {
  handle_init(uv, (uv_handle_t *)check, UV_CHECK);
  return 0;
}
/* One of each is enough. */
int uv_prepare_start(uv_prepare_t *prepare, uv_prepare_cb cb) {
  prepare->prepare_cb = cb;
  loop_of(prepare->loop)->prepares = (uv_handle_t *)prepare;
  return 0;
}
int uv_check_start(uv_check_t *check, uv_check_cb cb) {
  check->check_cb = cb;
  loop_of(check->loop)->checks = (uv_handle_t *)check;
  return 0;
}

int uv_idle_init(uv_loop_t *uv, uv_idle_t *idle) {
  handle_init(uv, (uv_handle_t *)idle, UV_IDLE);
  return 0;
}
int uv_idle_start(uv_idle_t *idle, uv_idle_cb cb) {
  struct loop *loop = loop_of(idle->loop);
  if (idle->flags & ACTIVE) return 0;
  idle->flags |= ACTIVE;
  idle->idle_cb = cb;
  idle->queue[0] = loop->idles;
  loop->idles = idle;
  return 0;
}
int uv_idle_stop(uv_idle_t *idle) {
  uv_idle_t **at = &loop_of(idle->loop)->idles;
  if (!(idle->flags & ACTIVE)) return 0;
  idle->flags &= ~(unsigned)ACTIVE;
  while (*at != idle) at = (uv_idle_t **)&(*at)->queue[0];
  *at = idle->queue[0];
  return 0;
}
/* Each may stop itself, and no other. */
static void run_idles(struct loop *loop) {
  for (uv_idle_t *idle = loop->idles, *next; idle; idle = next) {
    next = idle->queue[0];
    idle->idle_cb(idle);
  }
}

int uv_async_init(uv_loop_t *uv, uv_async_t *async, uv_async_cb cb) {
  struct loop *loop = loop_of(uv);
  handle_init(uv, (uv_handle_t *)async, UV_ASYNC);
  async->async_cb = cb;
  async->pending = 0;
  async->queue[0] = loop->asyncs;
  loop->asyncs = async;
  return 0;
}
int uv_async_send(uv_async_t *async) {
  async->pending = 1;
  sim_wake_all(loop_of(async->loop));
  return 0;
}

/* ------------------------------------------------------------ sockets */

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
  if (sock->stream) sim_wake_all(loop_of(sock->stream->loop));
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
  handle_init(uv, (uv_handle_t *)tcp, UV_TCP);
  tcp->write_queue_size = 0;
  sock_make(loop_of(uv)->process, (uv_stream_t *)tcp);
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
  owe(tcp->loop, OWED_CONNECT, request, (uv_handle_t *)tcp, listener ? 0 : UV_ECONNREFUSED, due_ns);
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
  owe(stream->loop, OWED_WRITE, request, (uv_handle_t *)stream, sock->peer || sock->is_cut ? 0 : UV_EPIPE,
      sim_now_ns());
  return 0;
}

int uv_shutdown(uv_shutdown_t *request, uv_stream_t *stream, uv_shutdown_cb cb) {
  struct sock *sock = sock_of(stream);
  request->cb = cb;
  request->handle = stream;
  if (sock->peer) put(sock->peer, NULL, 0, UV_EOF);
  sock->has_ended = true;
  owe(stream->loop, OWED_SHUTDOWN, request, (uv_handle_t *)stream, sock->peer ? 0 : UV_ENOTCONN, sim_now_ns());
  return 0;
}

/* ------------------------------------------------------------ the end of a handle */

void uv_close(uv_handle_t *handle, uv_close_cb cb) {
  struct loop *loop = loop_of(handle->loop);
  handle->flags |= CLOSING;
  handle->close_cb = cb;
  if (handle->type == UV_TIMER) uv_timer_stop((uv_timer_t *)handle);
  if (handle->type == UV_IDLE) uv_idle_stop((uv_idle_t *)handle);
  if (loop->prepares == handle) loop->prepares = NULL;
  if (loop->checks == handle) loop->checks = NULL;
  if (handle->type == UV_ASYNC) {
    uv_async_t **at = &loop->asyncs;
    while (*at != (uv_async_t *)handle) at = (uv_async_t **)&(*at)->queue[0];
    *at = ((uv_async_t *)handle)->queue[0];
  }
  if (handle->type == UV_TCP && sock_of(handle)) sock_end(sock_of(handle), UV_EOF);
  for (struct owed *owed = loop->owed; owed; owed = owed->next) {
    if (owed->handle != handle) continue;
    owed->status = UV_ECANCELED;
    owed->due_ns = 0;
  }
  uv_handle_t **at = &loop->closing;
  while (*at) at = &(*at)->next_closing;
  *at = handle;
  handle->next_closing = NULL;
  sim_wake_all(loop);
}

/* ------------------------------------------------------------ a turn */

static void pay(const struct owed *owed) {
  uv_connect_t *connect = owed->of;
  uv_write_t *write = owed->of;
  uv_shutdown_t *shutdown = owed->of;
  switch (owed->kind) {
    case OWED_POST:
      owed->run(owed->of);
      break;
    case OWED_CONNECT:
      connect->cb(connect, owed->status);
      break;
    case OWED_WRITE:
      if (write->cb) write->cb(write, owed->status);
      break;
    case OWED_SHUTDOWN:
      shutdown->cb(shutdown, owed->status);
      break;
  }
}

/* The request that this owes, out of the list before that is told. */
static void pay_at(struct loop *loop, struct owed **at) {
  struct owed *const owed = *at;
  *at = owed->next;
  if (!*at) loop->owed_tail = at;
  pay(owed);
  free(owed);
}

/* Requests of a handle end before it does. */
static void run_closing(struct loop *loop) {
  uv_handle_t *handle = loop->closing;
  loop->closing = NULL;
  while (handle) {
    uv_handle_t *const next = handle->next_closing;
    for (struct owed **at = &loop->owed; *at;) {
      if ((*at)->handle != handle) {
        at = &(*at)->next;
        continue;
      }
      pay_at(loop, at);
      at = &loop->owed; /* it may have changed */
    }
    loop->n_handles--;
    if (handle->close_cb) handle->close_cb(handle);
    handle = next;
  }
}

/* Those that are due, in order. */
static unsigned run_owed(struct loop *loop) {
  const uint64_t now_ns = sim_now_ns();
  unsigned n = 0;
  for (struct owed **at = &loop->owed; *at;) {
    struct owed *const owed = *at;
    if (owed->due_ns > now_ns) {
      at = &owed->next;
      continue;
    }
    pay_at(loop, at);
    n++;
    at = &loop->owed; /* it may have changed */
  }
  return n;
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

/* Any one that is ready. */
static bool run_socket(struct loop *loop) {
  struct sock *chosen = NULL;
  unsigned n = 0;
  for (struct sock *sock = socks; sock; sock = sock->next)
    if (sock->stream && loop_of(sock->stream->loop) == loop && is_ready(sock, sim_now_ns()) && sim_chance(++n))
      chosen = sock;
  if (!chosen) return false;
  if (chosen->listens)
    chosen->stream->connection_cb(chosen->stream, 0);
  else
    read_some(chosen);
  return true;
}

static unsigned run_asyncs(struct loop *loop) {
  for (uv_async_t *async = loop->asyncs; async; async = async->queue[0]) {
    if (!async->pending) continue;
    async->pending = 0;
    async->async_cb(async);
    return 1; /* the list may have changed */
  }
  return 0;
}

static uint64_t due_ns(const struct loop *loop) {
  const uv_timer_t *const timer = first_timer(loop);
  uint64_t at_ns = timer ? timer->timeout : ZPS_NEVER;
  if (loop->closing || loop->idles) return 0;
  for (const uv_async_t *async = loop->asyncs; async; async = async->queue[0])
    if (async->pending) return 0;
  for (const struct owed *owed = loop->owed; owed; owed = owed->next)
    if (owed->due_ns < at_ns) at_ns = owed->due_ns;
  for (const struct sock *sock = socks; sock; sock = sock->next) {
    if (!sock->stream || loop_of(sock->stream->loop) != loop) continue;
    if (sock->listens && sock->backlog && sock->backlog->backlog_due_ns < at_ns) at_ns = sock->backlog->backlog_due_ns;
    if (!sock->listens && sock->reads && sock->inbox && sock->inbox->due_ns < at_ns) at_ns = sock->inbox->due_ns;
  }
  return at_ns;
}

int uv_run(uv_loop_t *uv, uv_run_mode mode) {
  struct loop *const loop = loop_of(uv);
  (void)mode;
  while (loop->n_handles > 0) {
    run_timers(loop);
    run_idles(loop);
    if (loop->prepares) ((uv_prepare_t *)loop->prepares)->prepare_cb((uv_prepare_t *)loop->prepares);
    const uint64_t until_ns = due_ns(loop);
    if (until_ns > sim_now_ns()) sim_wait(loop, until_ns);
    run_owed(loop);
    run_asyncs(loop);
    for (unsigned n = 1 + (unsigned)sim_random(4); n > 0 && run_socket(loop); n--) continue;
    if (loop->checks) ((uv_check_t *)loop->checks)->check_cb((uv_check_t *)loop->checks);
    run_closing(loop);
    if (sim_chance(4)) sim_yield();
  }
  return 0;
}
