#include "common/base/workpool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

struct zps_workpool {
  pthread_mutex_t lock;
  pthread_cond_t more;
  struct zps_work *head, **tail;
  bool stopping;
  unsigned n_threads, n_waiting;
  char name[11];
  pthread_t threads[];
};

static void *worker(void *arg) {
  struct zps_workpool *pool = arg;
  pthread_mutex_lock(&pool->lock);
  for (;;) {
    pool->n_waiting++;
    while (!pool->head && !pool->stopping) pthread_cond_wait(&pool->more, &pool->lock);
    pool->n_waiting--;
    struct zps_work *work = pool->head;
    if (!work) break;
    pool->head = work->next;
    if (!pool->head) pool->tail = &pool->head;
    pthread_mutex_unlock(&pool->lock);
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
  pthread_cond_init(&pool->more, NULL);
  pool->tail = &pool->head;
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
  free(pool);
}

void zps_workpool_submit(struct zps_workpool *pool, struct zps_work *work) {
  work->next = NULL;
  pthread_mutex_lock(&pool->lock);
  *pool->tail = work;
  pool->tail = &work->next;
  pthread_mutex_unlock(&pool->lock);
  pthread_cond_signal(&pool->more); /* who wakes up finds the lock free */
}

unsigned zps_workpool_threads(const struct zps_workpool *pool) {
  return pool->n_threads;
}

unsigned zps_workpool_idle(struct zps_workpool *pool) {
  if (!pool) return 0;
  pthread_mutex_lock(&pool->lock);
  unsigned n = pool->n_waiting;
  for (const struct zps_work *work = pool->head; work && n > 0; work = work->next) n--; /* are on their way to these */
  pthread_mutex_unlock(&pool->lock);
  return n;
}

/* One parallel loop: helpers on the pool and the caller take indices from a shared counter. */
struct loop {
  void (*fn)(void *ctx, unsigned i);
  void *ctx;
  unsigned n;
  atomic_uint next;
  pthread_mutex_t lock;
  pthread_cond_t idle;
  unsigned running;
};

struct helper {
  struct zps_work work;
  struct loop *loop;
};

static void loop_drain(struct loop *loop) {
  for (unsigned i; (i = atomic_fetch_add(&loop->next, 1)) < loop->n;) loop->fn(loop->ctx, i);
}

static void helper_run(struct zps_work *work) {
  struct loop *loop = ((struct helper *)work)->loop;
  loop_drain(loop);
  pthread_mutex_lock(&loop->lock);
  if (--loop->running == 0) pthread_cond_signal(&loop->idle);
  pthread_mutex_unlock(&loop->lock);
}

/* Takes back the helpers that no thread has begun, and returns how many these are. */
static unsigned withdraw(struct zps_workpool *pool, const struct loop *loop) {
  unsigned n = 0;
  pthread_mutex_lock(&pool->lock);
  struct zps_work **at = &pool->head;
  while (*at) {
    if ((*at)->run == helper_run && ((const struct helper *)*at)->loop == loop) {
      *at = (*at)->next;
      n++;
    } else {
      at = &(*at)->next;
    }
  }
  pool->tail = at;
  pthread_mutex_unlock(&pool->lock);
  return n;
}

void zps_workpool_for(struct zps_workpool *pool, unsigned n, void (*fn)(void *ctx, unsigned i), void *ctx) {
  enum { HELPERS_MAX = 64 };
  struct helper helpers[HELPERS_MAX];
  struct loop loop = {
      .fn = fn, .ctx = ctx, .n = n, .lock = PTHREAD_MUTEX_INITIALIZER, .idle = PTHREAD_COND_INITIALIZER};
  unsigned n_helpers = pool && n > 1 ? pool->n_threads : 0;
  if (n_helpers > HELPERS_MAX) n_helpers = HELPERS_MAX;
  if (n_helpers > n - 1) n_helpers = n ? n - 1 : 0;
  loop.running = n_helpers;
  for (unsigned i = 0; i < n_helpers; i++) {
    helpers[i] = (struct helper){.work.run = helper_run, .loop = &loop};
    zps_workpool_submit(pool, &helpers[i].work);
  }
  loop_drain(&loop);
  if (n_helpers == 0) return;
  const unsigned n_idle = withdraw(pool, &loop);
  pthread_mutex_lock(&loop.lock);
  loop.running -= n_idle;
  while (loop.running > 0) pthread_cond_wait(&loop.idle, &loop.lock);
  pthread_mutex_unlock(&loop.lock);
}
