#include "common/session/engine.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "common/base/thread.h"
#include "common/base/waits.h"
#include "common/session/link.h"
#include "common/session/receive.h"

enum {
  COMMANDS_PER_TURN = 256, /* so that a command that posts itself again cannot starve the fabric */
  CALL_SLICE_NS = 100 * 1000000,
};

/* A call that may be given up, while the thread still has the command: the last of the two that needs it frees it. */
struct limited_call {
  struct zps_command command;
  struct zps_command *wrapped;
  struct zps_engine *engine;
  pthread_mutex_t lock;
  pthread_cond_t has_run;
  enum { CALL_WAITS, CALL_RUNS, CALL_HAS_RUN, CALL_GIVEN_UP } state;
};

struct zps_engine {
  struct zps_engine_handler handler;
  struct zps_net *net;
  struct zps_slab *slab;
  struct zps_bulk *bulk;
  pthread_mutex_t commands_lock; /* held for a few instructions */
  struct zps_command *posted, **posted_tail;
  struct zps_command *taken; /* the engine thread's: older than those posted */
  pthread_t thread;
  pthread_mutex_t
      stop_lock; /* held while the thread is told to stop, so that it cannot close the fabric under the wake */
  atomic_bool stopping;
  struct limited_call reserve; /* for when there is no memory for one: what is to be closed must be closed */
  atomic_bool reserve_taken;
  struct zps_receiver receiver;
  _Atomic uint64_t corrupt;
  struct zps_link_counts link_counts;
  _Atomic uint64_t turns, sleeps_until_ns; /* the latter is 0 during a turn */
};

static _Thread_local const struct zps_engine *engine_here; /* the engine that this thread belongs to */

static void on_message(void *ctx, const void *data, size_t len) {
  struct zps_engine *engine = ctx;
  zps_receive(&engine->receiver, data, len);
}

static void on_peer_error(void *ctx, struct zps_net_peer *peer, zps_err_t code, const char *text) {
  struct zps_engine *engine = ctx;
  engine->handler.on_peer_error(engine->handler.ctx, peer, code, text);
}

static void commands_init(struct zps_engine *engine) {
  pthread_mutex_init(&engine->commands_lock, NULL);
  engine->posted_tail = &engine->posted;
}

static struct zps_command *next_command(struct zps_engine *engine) {
  if (!engine->taken) {
    pthread_mutex_lock(&engine->commands_lock);
    engine->taken = engine->posted;
    engine->posted = NULL;
    engine->posted_tail = &engine->posted;
    pthread_mutex_unlock(&engine->commands_lock);
  }
  struct zps_command *command = engine->taken;
  if (command) engine->taken = command->next; /* read now: it may be gone or posted again when it has run */
  return command;
}

static unsigned run_commands(struct zps_engine *engine) {
  unsigned n = 0;
  struct zps_command *command;
  for (; n < COMMANDS_PER_TURN && (command = next_command(engine)) != NULL; n++)
    command->run(command, engine->handler.ctx);
  return n;
}

static void run_until_stopped(struct zps_engine *engine, struct zps_waits *waits) {
  uint64_t deadline_ns = ZPS_NEVER; /* the handler may still be waiting for the result of zps_engine_create() */
  unsigned carried = 0; /* work of the bulk engine after the last tick may have given the handler something to send */
  for (;;) {
    atomic_fetch_add_explicit(&engine->turns, 1, memory_order_relaxed);
    const bool stopping =
        atomic_load(&engine->stopping); /* read first: commands posted before it was set are run below */
    const unsigned commands = run_commands(engine);
    const unsigned events = commands + zps_net_progress(engine->net);
    uint64_t now_ns = zps_clock_ns();
    if (events + carried > 0 || now_ns >= deadline_ns) {
      deadline_ns = engine->handler.on_tick(engine->handler.ctx, now_ns);
      now_ns = zps_clock_ns();
    }
    if (zps_bulk_in_flight(engine->bulk) > 0) zps_bulk_waited(engine->bulk, zps_waits_look(waits, now_ns));
    carried = zps_bulk_progress(engine->bulk);
    if (stopping && commands == 0) return;
    const uint64_t age_ns = zps_slab_age(engine->slab, now_ns), until_ns = age_ns < deadline_ns ? age_ns : deadline_ns;
    if (events + carried > 0 || now_ns >= until_ns) continue;
    atomic_store_explicit(&engine->sleeps_until_ns, until_ns, memory_order_relaxed);
    if (engine->handler.is_read) zps_net_attend(engine->net, engine->handler.is_read(engine->handler.ctx));
    zps_net_wait(engine->net, until_ns == ZPS_NEVER ? ZPS_NEVER : until_ns - now_ns);
    atomic_store_explicit(&engine->sleeps_until_ns, 0, memory_order_relaxed);
  }
}

/* Closing the fabric first calls back all reads, while the handler's buffers and transfers still stand. */
static void close_all(struct zps_engine *engine) {
  zps_net_close(engine->net);
  zps_slab_net_closed(engine->slab);
  zps_bulk_destroy(engine->bulk);
  zps_slab_destroy(engine->slab);
}

static void *thread_main(void *arg) {
  struct zps_engine *engine = arg;
  struct zps_waits waits;
  engine_here = engine;
  zps_waits_init(&waits);
  run_until_stopped(engine, &waits);
  zps_waits_fini(&waits);
  pthread_mutex_lock(&engine->stop_lock);
  pthread_mutex_unlock(&engine->stop_lock);
  close_all(engine);
  return NULL;
}

static int thread_start(struct zps_engine *engine, const char *name) {
  char short_name[16];
  const int failed = zps_thread_start(&engine->thread, thread_main, engine);
  if (failed) return failed;
  snprintf(short_name, sizeof short_name, "%s", name);
  pthread_setname_np(engine->thread, short_name);
  return 0;
}

zps_err_t zps_engine_create(const struct zps_engine_config *config, const struct zps_engine_handler *handler,
                            struct zps_engine **engine_p, struct zps_error *error) {
  struct zps_engine *engine = calloc(1, sizeof *engine);
  if (!engine) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for the progress engine");
  engine->handler = *handler;
  engine->receiver.handler = &engine->handler;
  pthread_mutex_init(&engine->stop_lock, NULL);
  commands_init(engine);
  const struct zps_net_handler net_handler = {.ctx = engine, .on_message = on_message, .on_peer_error = on_peer_error};
  struct zps_net_config net = config->net;
  net.memory_limit_bytes = config->memory_limit_bytes;
  zps_err_t code = zps_net_open(&net, &net_handler, &engine->net, error);
  if (code != ZPS_OK) goto err_free;
  code = zps_slab_create(engine->net, config->memory_limit_bytes, config->memory_cache_bytes, &engine->slab);
  if (code == ZPS_OK) code = zps_bulk_create(engine->net, &config->bulk, &engine->bulk);
  if (code != ZPS_OK) {
    zps_fail(error, code, "no memory for the progress engine");
    goto err_close;
  }
  const int failed = thread_start(engine, config->name);
  if (failed) {
    code = zps_fail_errno(error, ZPS_ERR_NOMEM, failed, "cannot start the progress thread '%s'", config->name);
    goto err_close;
  }
  *engine_p = engine;
  return ZPS_OK;

err_close:
  zps_bulk_destroy(engine->bulk);
  zps_slab_destroy(engine->slab);
  zps_net_close(engine->net);
err_free:
  pthread_mutex_destroy(&engine->commands_lock);
  pthread_mutex_destroy(&engine->stop_lock);
  free(engine);
  return code;
}

void zps_engine_destroy(struct zps_engine *engine) {
  if (!engine) return;
  pthread_mutex_lock(&engine->stop_lock);
  atomic_store(&engine->stopping, true);
  zps_net_wake(engine->net);
  pthread_mutex_unlock(&engine->stop_lock);
  pthread_join(engine->thread, NULL);
  pthread_mutex_destroy(&engine->commands_lock);
  pthread_mutex_destroy(&engine->stop_lock);
  free(engine);
}

/* One wake-up for all that is posted before the thread takes it; without the lock, which the thread wants next. */
void zps_engine_post(struct zps_engine *engine, struct zps_command *command) {
  command->next = NULL;
  pthread_mutex_lock(&engine->commands_lock);
  const bool is_first = !engine->posted;
  *engine->posted_tail = command;
  engine->posted_tail = &command->next;
  pthread_mutex_unlock(&engine->commands_lock);
  if (is_first) zps_net_wake(engine->net);
}

struct call {
  struct zps_command command;
  struct zps_command *wrapped;
  pthread_mutex_t lock;
  pthread_cond_t has_run;
  bool done;
};

static void call_run(struct zps_command *command, void *handler_ctx) {
  struct call *call = (struct call *)command;
  call->wrapped->run(call->wrapped, handler_ctx);
  pthread_mutex_lock(&call->lock);
  call->done = true;
  pthread_cond_signal(&call->has_run);
  pthread_mutex_unlock(&call->lock);
}

zps_err_t zps_engine_call(struct zps_engine *engine, struct zps_command *command) {
  if (engine_here == engine) return ZPS_ERR_INVALID; /* it would wait for itself */
  struct call call = {.command.run = call_run,
                      .wrapped = command,
                      .lock = PTHREAD_MUTEX_INITIALIZER,
                      .has_run = PTHREAD_COND_INITIALIZER};
  zps_engine_post(engine, &call.command);
  pthread_mutex_lock(&call.lock);
  while (!call.done) pthread_cond_wait(&call.has_run, &call.lock);
  pthread_mutex_unlock(&call.lock);
  pthread_cond_destroy(&call.has_run);
  pthread_mutex_destroy(&call.lock);
  return ZPS_OK;
}

static void limited_free(struct limited_call *call) {
  pthread_cond_destroy(&call->has_run);
  pthread_mutex_destroy(&call->lock);
  if (call == &call->engine->reserve)
    atomic_store(&call->engine->reserve_taken, false);
  else
    free(call);
}

static void limited_run(struct zps_command *command, void *handler_ctx) {
  struct limited_call *call = (struct limited_call *)command;
  pthread_mutex_lock(&call->lock);
  const bool given_up = call->state == CALL_GIVEN_UP;
  if (!given_up) call->state = CALL_RUNS;
  pthread_mutex_unlock(&call->lock);
  if (given_up) {
    limited_free(call);
    return;
  }
  call->wrapped->run(call->wrapped, handler_ctx);
  pthread_mutex_lock(&call->lock);
  call->state = CALL_HAS_RUN;
  pthread_cond_signal(&call->has_run);
  pthread_mutex_unlock(&call->lock);
}

/* However long the process was stopped meanwhile, a slice of the patience counts as long as it should have been. */
static void limited_wait(struct limited_call *call, uint64_t patience_ns) {
  for (uint64_t left_ns = patience_ns; call->state == CALL_WAITS && left_ns > 0;) {
    const uint64_t slice_ns = left_ns < CALL_SLICE_NS ? left_ns : CALL_SLICE_NS;
    if (!zps_thread_wait(&call->has_run, &call->lock, zps_clock_ns() + slice_ns)) left_ns -= slice_ns;
  }
  if (call->state == CALL_WAITS) call->state = CALL_GIVEN_UP;
  while (call->state == CALL_RUNS) pthread_cond_wait(&call->has_run, &call->lock);
}

zps_err_t zps_engine_call_within(struct zps_engine *engine, struct zps_command *command, uint64_t patience_ns) {
  if (engine_here == engine) return ZPS_ERR_INVALID;
  struct limited_call *call = malloc(sizeof *call);
  if (!call && !atomic_exchange(&engine->reserve_taken, true)) call = &engine->reserve;
  if (!call) return ZPS_ERR_NOMEM;
  *call = (struct limited_call){.command.run = limited_run, .wrapped = command, .engine = engine};
  pthread_mutex_init(&call->lock, NULL);
  zps_thread_cond_init(&call->has_run);
  zps_engine_post(engine, &call->command);
  pthread_mutex_lock(&call->lock);
  limited_wait(call, patience_ns);
  const bool has_run = call->state == CALL_HAS_RUN;
  pthread_mutex_unlock(&call->lock);
  if (has_run) limited_free(call);
  return has_run ? ZPS_OK : ZPS_ERR_TIMEOUT;
}

struct zps_engine_pulse zps_engine_pulse(struct zps_engine *engine, uint64_t now_ns) {
  pthread_mutex_lock(&engine->commands_lock);
  const bool has_command = engine->posted;
  pthread_mutex_unlock(&engine->commands_lock);
  return (struct zps_engine_pulse){
      .turns = atomic_load_explicit(&engine->turns, memory_order_relaxed),
      .due = has_command || now_ns >= atomic_load_explicit(&engine->sleeps_until_ns, memory_order_relaxed)};
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
  return (struct zps_mishaps){.malformed = engine->receiver.malformed,
                              .forged = engine->receiver.forged,
                              .corrupt = engine->corrupt,
                              .reconnects = engine->link_counts.reconnects,
                              .resent = engine->link_counts.resent,
                              .repeated = engine->link_counts.repeated,
                              .reordered = engine->link_counts.reordered};
}

struct zps_link_counts *zps_engine_link_counts(struct zps_engine *engine) {
  return &engine->link_counts;
}

void zps_engine_note_corrupt(struct zps_engine *engine) {
  atomic_fetch_add(&engine->corrupt, 1);
}
