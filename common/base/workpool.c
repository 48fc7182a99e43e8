#include "common/base/workpool.h"

#include <pthread.h>
#include <sched.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/container.h"

struct zps_workpool {
  pthread_mutex_t lock, placing; /* placing: held by the thread that changes where threads are allowed */
  pthread_cond_t more;
  struct zps_fair queue;
  atomic_uint n_queued; /* changes with the lock */
  bool stopping;
  unsigned n_threads, n_begun, n_waiting;
  char name[11];
  pthread_t threads[];
};

/* The pool that the calling thread belongs to, and which of its threads it is. */
static _Thread_local struct {
  const struct zps_workpool *pool;
  unsigned i;
} own;

/* Which thread this is of those that may share a loop: 0 is one that is not the pool's. */
static unsigned place_in(const struct zps_workpool *pool) {
  return own.pool == pool ? 1 + own.i : 0;
}

/* Waking a thread takes longer than most pauses within one call: a thread that waits looks around for as long, where no
 * other needs the processor. */
static void watch(bool (*is_over)(void *ctx), void *ctx) {
  enum { WATCH_NS = 30000 };
  const uint64_t start_ns = zps_clock_ns();
  while (!is_over(ctx) && zps_clock_ns() < start_ns + WATCH_NS) sched_yield();
}

static bool has_work(void *ctx) {
  return atomic_load_explicit(&((struct zps_workpool *)ctx)->n_queued, memory_order_relaxed) > 0;
}

static struct zps_work *work_of(const struct zps_fair_item *item) {
  return zps_container_of(item, struct zps_work, item);
}

static void *worker(void *arg) {
  struct zps_workpool *pool = arg;
  pthread_mutex_lock(&pool->lock);
  own.pool = pool;
  own.i = pool->n_begun++;
  for (;;) {
    pool->n_waiting++;
    if (!pool->queue.first && !pool->stopping) {
      pthread_mutex_unlock(&pool->lock);
      watch(has_work, pool);
      pthread_mutex_lock(&pool->lock);
    }
    while (!pool->queue.first && !pool->stopping) pthread_cond_wait(&pool->more, &pool->lock);
    pool->n_waiting--;
    struct zps_fair_item *const item = zps_fair_take(&pool->queue);
    if (!item) break;
    pool->n_queued--;
    pthread_mutex_unlock(&pool->lock);
    struct zps_work *const work = work_of(item);
    work->run(work);
    pthread_mutex_lock(&pool->lock);
  }
  pthread_mutex_unlock(&pool->lock);
  return NULL;
}

zps_err_t zps_workpool_create(unsigned n_threads, const char *name, struct zps_workpool **pool_p) {
  struct zps_workpool *pool = calloc(1, sizeof *pool + n_threads * sizeof pool->threads[0]);
  if (!pool) return ZPS_ERR_NOMEM;
  pthread_mutex_init(&pool->lock, NULL);
  pthread_mutex_init(&pool->placing, NULL);
  pthread_cond_init(&pool->more, NULL);
  snprintf(pool->name, sizeof pool->name, "%s", name);
  for (; pool->n_threads < n_threads; pool->n_threads++) {
    if (pthread_create(&pool->threads[pool->n_threads], NULL, worker, pool) != 0) {
      zps_workpool_destroy(pool);
      return ZPS_ERR_NOMEM;
    }
    char thread_name[16];
    snprintf(thread_name, sizeof thread_name, "%s/%u", pool->name, pool->n_threads % 1000);
    pthread_setname_np(pool->threads[pool->n_threads], thread_name);
  }
  *pool_p = pool;
  return ZPS_OK;
}

void zps_workpool_destroy(struct zps_workpool *pool) {
  if (!pool) return;
  pthread_mutex_lock(&pool->lock);
  pool->stopping = true;
  pthread_cond_broadcast(&pool->more);
  pthread_mutex_unlock(&pool->lock);
  for (unsigned i = 0; i < pool->n_threads; i++) pthread_join(pool->threads[i], NULL);
  pthread_cond_destroy(&pool->more);
  pthread_mutex_destroy(&pool->lock);
  pthread_mutex_destroy(&pool->placing);
  free(pool);
}

void zps_workpool_submit_for(struct zps_workpool *pool, struct zps_fair_flow *flow, struct zps_work *work,
                             uint64_t cost) {
  pthread_mutex_lock(&pool->lock);
  zps_fair_add(&pool->queue, flow, &work->item, cost);
  pool->n_queued++;
  pthread_mutex_unlock(&pool->lock);
  pthread_cond_signal(&pool->more); /* the thread that wakes up finds the lock free */
}

void zps_workpool_submit(struct zps_workpool *pool, struct zps_work *work) {
  zps_workpool_submit_for(pool, NULL, work, 0);
}

struct zps_fair_served zps_workpool_served(struct zps_workpool *pool, const struct zps_fair_flow *flow) {
  pthread_mutex_lock(&pool->lock);
  const struct zps_fair_served served = flow->served;
  pthread_mutex_unlock(&pool->lock);
  return served;
}

unsigned zps_workpool_threads(const struct zps_workpool *pool) {
  return pool->n_threads;
}

unsigned zps_workpool_idle(struct zps_workpool *pool) {
  if (!pool) return 0;
  pthread_mutex_lock(&pool->lock);
  const unsigned n_coming = pool->queue.n; /* on their way to threads */
  const unsigned n = pool->n_waiting > n_coming ? pool->n_waiting - n_coming : 0;
  pthread_mutex_unlock(&pool->lock);
  return n;
}

enum { LINE_BYTES = 64, HELPERS_MAX = 63 };

/* Of a parallel loop's indices, those that one thread takes first: from round to round the same memory stays in the
 * same thread's cache. A thread that has done its own goes on with others'. */
struct share {
  alignas(LINE_BYTES) atomic_uint next;
  unsigned end;
};

/* One parallel loop: helpers on the pool and the caller. */
struct loop {
  struct zps_workpool *pool;
  void (*fn)(void *ctx, unsigned i);
  void *ctx;
  unsigned n_shares;
  pthread_mutex_t lock;
  pthread_cond_t idle;
  atomic_uint running; /* helpers; changes with the lock */
  atomic_uint n_begun; /* helpers */
  uint64_t start_ns;
  struct share shares[1 + HELPERS_MAX];
};

struct helper {
  struct zps_work work;
  struct loop *loop;
};

static bool none_begun(const struct loop *loop) {
  return atomic_load_explicit(&loop->n_begun, memory_order_relaxed) == 0;
}

/* A thread that was woken and has not begun may stand behind the caller in its processor's queue while another one is
 * idle: the kernel looks for that one when it wakes a thread, not later, and where processors are few and busy not even
 * then. Taking this processor out of its mask for a moment puts such a thread elsewhere. */
static void send_elsewhere(const struct loop *loop) {
  struct zps_workpool *const pool = loop->pool;
  pthread_mutex_lock(&pool->lock);
  const bool any_waits = pool->n_waiting > 0;
  pthread_mutex_unlock(&pool->lock);
  const int here = sched_getcpu();
  if (!any_waits || here < 0 || here >= CPU_SETSIZE || pthread_mutex_trylock(&pool->placing) != 0) return;
  for (unsigned i = 0; i < pool->n_threads && none_begun(loop); i++) {
    cpu_set_t allowed, elsewhere;
    if (pthread_equal(pool->threads[i], pthread_self())) continue;
    if (pthread_getaffinity_np(pool->threads[i], sizeof allowed, &allowed) != 0) continue;
    elsewhere = allowed;
    CPU_CLR(here, &elsewhere);
    if (CPU_COUNT(&elsewhere) == 0 || CPU_EQUAL(&elsewhere, &allowed)) continue;
    if (pthread_setaffinity_np(pool->threads[i], sizeof elsewhere, &elsewhere) == 0)
      (void)pthread_setaffinity_np(pool->threads[i], sizeof allowed, &allowed);
  }
  pthread_mutex_unlock(&pool->placing);
}

static void loop_drain(struct loop *loop, bool is_caller) {
  enum { LATE_NS = 60000 }; /* threads that find a processor have woken up by then */
  const unsigned place = place_in(loop->pool);
  bool looks = is_caller;
  for (unsigned i = 0; i < loop->n_shares; i++) {
    struct share *const share = &loop->shares[(place + i) % loop->n_shares];
    for (unsigned at; (at = atomic_fetch_add(&share->next, 1)) < share->end;) {
      loop->fn(loop->ctx, at);
      if (!looks || zps_clock_ns() < loop->start_ns + LATE_NS) continue;
      if (none_begun(loop)) send_elsewhere(loop);
      looks = false;
    }
  }
}

static void helper_run(struct zps_work *work) {
  struct loop *loop = ((struct helper *)work)->loop;
  atomic_fetch_add_explicit(&loop->n_begun, 1, memory_order_relaxed);
  loop_drain(loop, false);
  pthread_mutex_lock(&loop->lock);
  if (atomic_fetch_sub(&loop->running, 1) == 1) pthread_cond_signal(&loop->idle);
  pthread_mutex_unlock(&loop->lock);
}

static bool helps(void *ctx, const struct zps_fair_item *item) {
  const struct zps_work *const work = work_of(item);
  return work->run == helper_run && ((const struct helper *)work)->loop == ctx;
}

/* Takes back the helpers that no thread has begun, and returns how many these are. */
static unsigned withdraw(struct zps_workpool *pool, struct loop *loop) {
  pthread_mutex_lock(&pool->lock);
  const unsigned n = zps_fair_remove(&pool->queue, helps, loop);
  pool->n_queued -= n;
  pthread_mutex_unlock(&pool->lock);
  return n;
}

static bool is_over(void *ctx) {
  return atomic_load(&((struct loop *)ctx)->running) == 0;
}

static void loop_share(struct loop *loop, unsigned n) {
  for (unsigned i = 0; i < loop->n_shares; i++) {
    atomic_init(&loop->shares[i].next, (unsigned)((uint64_t)n * i / loop->n_shares));
    loop->shares[i].end = (unsigned)((uint64_t)n * (i + 1) / loop->n_shares);
  }
}

void zps_workpool_for(struct zps_workpool *pool, unsigned n, void (*fn)(void *ctx, unsigned i), void *ctx) {
  unsigned n_helpers = pool && n > 1 ? pool->n_threads - (place_in(pool) > 0) : 0;
  if (n_helpers > HELPERS_MAX) n_helpers = HELPERS_MAX;
  if (n_helpers > n - 1) n_helpers = n - 1;
  if (n_helpers == 0) {
    for (unsigned i = 0; i < n; i++) fn(ctx, i);
    return;
  }
  struct helper helpers[HELPERS_MAX];
  struct loop loop;
  loop.pool = pool;
  loop.fn = fn;
  loop.ctx = ctx;
  loop.n_shares = n_helpers + 1;
  pthread_mutex_init(&loop.lock, NULL);
  pthread_cond_init(&loop.idle, NULL);
  loop.start_ns = zps_clock_ns();
  atomic_init(&loop.running, n_helpers);
  atomic_init(&loop.n_begun, 0);
  loop_share(&loop, n);
  for (unsigned i = 0; i < n_helpers; i++) {
    helpers[i] = (struct helper){.work.run = helper_run, .loop = &loop};
    zps_workpool_submit(pool, &helpers[i].work);
  }
  loop_drain(&loop, true);
  atomic_fetch_sub(&loop.running, withdraw(pool, &loop));
  watch(is_over, &loop);
  pthread_mutex_lock(&loop.lock); /* the last thread lets it go */
  while (loop.running > 0) pthread_cond_wait(&loop.idle, &loop.lock);
  pthread_mutex_unlock(&loop.lock);
  pthread_cond_destroy(&loop.idle);
  pthread_mutex_destroy(&loop.lock);
}
