/* Loops, and handles but for sockets. */
#include "tests/sim/uv.h"

#include <stdlib.h>
#include <string.h>

#include "tests/sim/uv_impl.h"

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

void sim_uv_handle(uv_loop_t *uv, uv_handle_t *handle, uv_handle_type type) {
  handle->loop = uv;
  handle->type = type;
  handle->flags = 0;
  handle->close_cb = NULL;
  handle->u.reserved[0] = NULL;
  sim_uv_loop(uv)->n_handles++;
}

int uv_is_closing(const uv_handle_t *handle) {
  return (handle->flags & UV_IS_CLOSING) != 0;
}

struct owed *sim_uv_owe(uv_loop_t *uv, int kind, void *of, uv_handle_t *handle, int status, uint64_t due_ns) {
  struct loop *loop = sim_uv_loop(uv);
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
  sim_uv_owe(uv, OWED_POST, ctx, NULL, 0, sim_now_ns())->run = run;
}

/* ------------------------------------------------------------ timers and turns */

int uv_timer_init(uv_loop_t *uv, uv_timer_t *timer) {
  sim_uv_handle(uv, (uv_handle_t *)timer, UV_TIMER);
  return 0;
}

int uv_timer_stop(uv_timer_t *timer) {
  struct loop *loop = sim_uv_loop(timer->loop);
  if (!(timer->flags & UV_IS_ACTIVE)) return 0;
  timer->flags &= ~(unsigned)UV_IS_ACTIVE;
  uv_timer_t **at = &loop->timers;
  while (*at != timer) at = (uv_timer_t **)&(*at)->heap_node[0];
  *at = timer->heap_node[0];
  return 0;
}

int uv_timer_start(uv_timer_t *timer, uv_timer_cb cb, uint64_t timeout_ms, uint64_t repeat_ms) {
  struct loop *loop = sim_uv_loop(timer->loop);
  if (timer->flags & UV_IS_CLOSING) return UV_EINVAL;
  uv_timer_stop(timer);
  timer->timer_cb = cb;
  timer->timeout = timeout_ms > UINT64_MAX / ZPS_NS_PER_MS / 2 ? ZPS_NEVER : sim_now_ns() + timeout_ms * ZPS_NS_PER_MS;
  timer->repeat = repeat_ms;
  timer->start_id = loop->n_timers++;
  timer->flags |= UV_IS_ACTIVE;
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
  sim_uv_handle(uv, (uv_handle_t *)prepare, UV_PREPARE);
  return 0;
}
int uv_check_init(uv_loop_t *uv, uv_check_t *check) {
  sim_uv_handle(uv, (uv_handle_t *)check, UV_CHECK);
  return 0;
}
/* One of each is enough. */
int uv_prepare_start(uv_prepare_t *prepare, uv_prepare_cb cb) {
  prepare->prepare_cb = cb;
  sim_uv_loop(prepare->loop)->prepares = (uv_handle_t *)prepare;
  return 0;
}
int uv_check_start(uv_check_t *check, uv_check_cb cb) {
  check->check_cb = cb;
  sim_uv_loop(check->loop)->checks = (uv_handle_t *)check;
  return 0;
}

int uv_idle_init(uv_loop_t *uv, uv_idle_t *idle) {
  sim_uv_handle(uv, (uv_handle_t *)idle, UV_IDLE);
  return 0;
}
int uv_idle_start(uv_idle_t *idle, uv_idle_cb cb) {
  struct loop *loop = sim_uv_loop(idle->loop);
  if (idle->flags & UV_IS_ACTIVE) return 0;
  idle->flags |= UV_IS_ACTIVE;
  idle->idle_cb = cb;
  idle->queue[0] = loop->idles;
  loop->idles = idle;
  return 0;
}
int uv_idle_stop(uv_idle_t *idle) {
  uv_idle_t **at = &sim_uv_loop(idle->loop)->idles;
  if (!(idle->flags & UV_IS_ACTIVE)) return 0;
  idle->flags &= ~(unsigned)UV_IS_ACTIVE;
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
  struct loop *loop = sim_uv_loop(uv);
  sim_uv_handle(uv, (uv_handle_t *)async, UV_ASYNC);
  async->async_cb = cb;
  async->pending = 0;
  async->queue[0] = loop->asyncs;
  loop->asyncs = async;
  return 0;
}
int uv_async_send(uv_async_t *async) {
  async->pending = 1;
  sim_wake_all(sim_uv_loop(async->loop));
  return 0;
}

/* ------------------------------------------------------------ the end of a handle */

void uv_close(uv_handle_t *handle, uv_close_cb cb) {
  struct loop *loop = sim_uv_loop(handle->loop);
  handle->flags |= UV_IS_CLOSING;
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
  if (handle->type == UV_TCP) sim_uv_tcp_closed((uv_tcp_t *)handle);
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
  const uint64_t sockets_ns = sim_uv_sockets_due_ns(loop);
  return sockets_ns < at_ns ? sockets_ns : at_ns;
}

int uv_run(uv_loop_t *uv, uv_run_mode mode) {
  struct loop *const loop = sim_uv_loop(uv);
  (void)mode;
  while (loop->n_handles > 0) {
    run_timers(loop);
    run_idles(loop);
    if (loop->prepares) ((uv_prepare_t *)loop->prepares)->prepare_cb((uv_prepare_t *)loop->prepares);
    const uint64_t until_ns = due_ns(loop);
    if (until_ns > sim_now_ns()) sim_wait(loop, until_ns);
    run_owed(loop);
    run_asyncs(loop);
    for (unsigned n = 1 + (unsigned)sim_random(4); n > 0 && sim_uv_run_socket(loop); n--) continue;
    if (loop->checks) ((uv_check_t *)loop->checks)->check_cb((uv_check_t *)loop->checks);
    run_closing(loop);
    if (sim_chance(4)) sim_yield();
  }
  return 0;
}
