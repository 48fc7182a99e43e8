#include "tests/support/one_thread.h"

#include <stdlib.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/container.h"
#include "common/base/workpool.h"
#include "common/session/receive.h"

/* ---- the clock ---- */

uint64_t one_thread_now_ns = ZPS_NS_PER_S;

int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);

int __wrap_clock_gettime(clockid_t clock, struct timespec *now) {
  if (clock != CLOCK_MONOTONIC) return __real_clock_gettime(clock, now);
  *now = zps_clock_timespec(one_thread_now_ns);
  return 0;
}

/* ---- the engine ---- */

struct zps_engine {
  struct zps_engine_handler handler;
  struct zps_receiver receiver;
  struct zps_net *net;
  struct zps_slab *slab;
  struct zps_bulk *bulk;
  struct zps_command *posted, **posted_tail;
  uint64_t tick_ns, turns;
  unsigned carried; /* work of the bulk engine since the last tick */
  uint64_t corrupt;
};

static void on_message(void *ctx, const void *data, size_t len) {
  zps_receive(&((struct zps_engine *)ctx)->receiver, data, len);
}

static void on_peer_error(void *ctx, struct zps_net_peer *peer, zps_err_t code, const char *text) {
  struct zps_engine *engine = ctx;
  engine->handler.on_peer_error(engine->handler.ctx, peer, code, text);
}

zps_err_t zps_engine_create(const struct zps_engine_config *config, const struct zps_engine_handler *handler,
                            struct zps_engine **engine_p, struct zps_error *error) {
  struct zps_engine *engine = calloc(1, sizeof *engine);
  const struct zps_net_handler net_handler = {.ctx = engine, .on_message = on_message, .on_peer_error = on_peer_error};
  if (!engine || zps_net_open(&config->net, &net_handler, &engine->net, error) != ZPS_OK ||
      zps_slab_create(engine->net, config->memory_limit_bytes, config->memory_cache_bytes, &engine->slab) != ZPS_OK ||
      zps_bulk_create(engine->net, &config->bulk, &engine->bulk) != ZPS_OK)
    abort();
  engine->handler = *handler;
  engine->receiver.handler = &engine->handler;
  engine->posted_tail = &engine->posted;
  engine->tick_ns = ZPS_NEVER;
  *engine_p = engine;
  return ZPS_OK;
}

static unsigned run_commands(struct zps_engine *engine) {
  unsigned n = 0;
  for (struct zps_command *command; (command = engine->posted) != NULL; n++) {
    engine->posted = command->next;
    if (!engine->posted) engine->posted_tail = &engine->posted;
    command->run(command, engine->handler.ctx);
  }
  return n;
}

bool one_thread_turn(struct zps_engine *engine) {
  const unsigned events = run_commands(engine) + zps_net_progress(engine->net) + engine->carried;
  const bool is_due = events > 0 || one_thread_now_ns >= engine->tick_ns;
  engine->turns++;
  if (is_due) engine->tick_ns = engine->handler.on_tick(engine->handler.ctx, one_thread_now_ns);
  engine->carried = zps_bulk_progress(engine->bulk);
  zps_slab_age(engine->slab, one_thread_now_ns);
  return is_due || engine->carried > 0;
}

void zps_engine_destroy(struct zps_engine *engine) {
  if (!engine) return;
  while (run_commands(engine) > 0) {
  }
  zps_net_close(engine->net);
  zps_slab_net_closed(engine->slab);
  zps_bulk_destroy(engine->bulk);
  zps_slab_destroy(engine->slab);
  free(engine);
}

void zps_engine_post(struct zps_engine *engine, struct zps_command *command) {
  command->next = NULL;
  *engine->posted_tail = command;
  engine->posted_tail = &command->next;
}

zps_err_t zps_engine_call(struct zps_engine *engine, struct zps_command *command) {
  run_commands(engine); /* those posted before it */
  command->run(command, engine->handler.ctx);
  engine->carried++;
  return ZPS_OK;
}

zps_err_t zps_engine_call_within(struct zps_engine *engine, struct zps_command *command, uint64_t patience_ns) {
  (void)patience_ns;
  return zps_engine_call(engine, command);
}

struct zps_engine_pulse zps_engine_pulse(struct zps_engine *engine, uint64_t now_ns) {
  return (struct zps_engine_pulse){.turns = engine->turns, .due = engine->posted || now_ns >= engine->tick_ns};
}

struct zps_net *zps_engine_net(struct zps_engine *engine) {
  return engine->net;
}
struct zps_slab *zps_engine_slab(struct zps_engine *engine) {
  return engine->slab;
}
struct zps_bulk *zps_engine_bulk(struct zps_engine *engine) {
  return engine->bulk;
}
struct zps_mishaps zps_engine_mishaps(const struct zps_engine *engine) {
  return (struct zps_mishaps){
      .malformed = engine->receiver.malformed, .forged = engine->receiver.forged, .corrupt = engine->corrupt};
}
struct zps_link_counts *zps_engine_link_counts(struct zps_engine *engine) {
  (void)engine;
  return NULL;
}

void zps_engine_note_corrupt(struct zps_engine *engine) {
  engine->corrupt++;
}

/* ---- the pool ---- */

struct zps_workpool {
  unsigned n_threads;
};

static struct zps_fair works; /* of all pools */

zps_err_t zps_workpool_create(unsigned n_threads, const char *name, struct zps_workpool **pool_p) {
  (void)name;
  *pool_p = malloc(sizeof **pool_p);
  if (!*pool_p) abort();
  (*pool_p)->n_threads = n_threads;
  return ZPS_OK;
}

bool one_thread_work(void) {
  struct zps_fair_item *const item = zps_fair_take(&works);
  if (!item) return false;
  struct zps_work *const work = zps_container_of(item, struct zps_work, item);
  work->run(work);
  return true;
}

void zps_workpool_destroy(struct zps_workpool *pool) {
  while (one_thread_work()) {
  }
  free(pool);
}

void zps_workpool_submit_for(struct zps_workpool *pool, struct zps_fair_flow *flow, struct zps_work *work,
                             uint64_t cost) {
  (void)pool;
  zps_fair_add(&works, flow, &work->item, cost);
}

void zps_workpool_submit(struct zps_workpool *pool, struct zps_work *work) {
  zps_workpool_submit_for(pool, NULL, work, 0);
}

struct zps_fair_served zps_workpool_served(struct zps_workpool *pool, const struct zps_fair_flow *flow) {
  (void)pool;
  return flow->served;
}

unsigned zps_workpool_threads(const struct zps_workpool *pool) {
  return pool->n_threads;
}

unsigned zps_workpool_idle(struct zps_workpool *pool) {
  (void)pool;
  return 0;
}

void zps_workpool_for(struct zps_workpool *pool, unsigned n, void (*fn)(void *ctx, unsigned i), void *ctx) {
  (void)pool;
  for (unsigned i = 0; i < n; i++) fn(ctx, i);
}
