/* Commands to the progress engine: calls and posts, from other threads and its own, while it is held, and at its end.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "common/base/clock.h"
#include "common/session/engine.h"
#include "tests/support/fabrics/loop.h"
#include "tests/support/oom.h"

/* An engine without links, and how often it has ticked. */
struct ticking {
  struct zps_engine *it;
  atomic_uint n;
};

static struct zps_link *find_link(void *ctx, const struct zps_frame_header *header) {
  (void)ctx, (void)header;
  return NULL;
}

static void on_frame(void *ctx, const struct zps_frame *frame) {
  (void)ctx, (void)frame;
  fail_msg("a frame, from nobody");
}

static void on_peer_error(void *ctx, struct zps_net_peer *peer, zps_err_t code, const char *text) {
  (void)ctx, (void)peer, (void)code;
  fail_msg("%s", text);
}

static uint64_t on_tick(void *ctx, uint64_t now_ns) {
  (void)now_ns;
  atomic_fetch_add(&((struct ticking *)ctx)->n, 1);
  return ZPS_NEVER;
}

static void begin(struct ticking *engine) {
  *engine = (struct ticking){0};
  const struct zps_engine_config config = {.name = "test",
                                           .net = {.provider = "loop", .max_msg = ZPS_WIRE_MESSAGE_MAX, .n_recv = 4},
                                           .bulk = {.piece_bytes = 1024},
                                           .memory_limit_bytes = 64 << 20,
                                           .memory_cache_bytes = 1 << 20};
  const struct zps_engine_handler handler = {
      .ctx = engine, .find_link = find_link, .on_frame = on_frame, .on_peer_error = on_peer_error, .on_tick = on_tick};
  struct zps_error error;
  assert_int_equal(zps_engine_create(&config, &handler, &engine->it, &error), ZPS_OK);
}

static void run_nothing(struct zps_command *command, void *handler_ctx) {
  (void)command, (void)handler_ctx;
}

struct counted {
  struct zps_command command;
  unsigned *n_run;
};

static void run_count(struct zps_command *command, void *handler_ctx) {
  (void)handler_ctx;
  ++*((struct counted *)command)->n_run;
}

static void test_commands_posted_before_destroy_run(void **state) {
  (void)state;
  struct ticking engine;
  unsigned n_run = 0;
  struct counted counted[1000];
  begin(&engine);
  for (unsigned i = 0; i < 1000; i++) {
    counted[i] = (struct counted){.command.run = run_count, .n_run = &n_run};
    zps_engine_post(engine.it, &counted[i].command);
  }
  zps_engine_destroy(engine.it);
  assert_int_equal(n_run, 1000);
}

struct calls_itself {
  struct zps_command command;
  struct zps_engine *engine;
  zps_err_t code;
};

static void run_call_itself(struct zps_command *command, void *handler_ctx) {
  (void)handler_ctx;
  struct calls_itself *outer = (struct calls_itself *)command;
  struct zps_command inner = {.run = run_nothing};
  outer->code = zps_engine_call(outer->engine, &inner);
}

static void test_a_call_from_the_engine_is_refused(void **state) {
  (void)state;
  struct ticking engine;
  begin(&engine);
  struct calls_itself outer = {.command.run = run_call_itself, .engine = engine.it, .code = ZPS_OK};
  assert_int_equal(zps_engine_call(engine.it, &outer.command), ZPS_OK);
  assert_int_equal(outer.code, ZPS_ERR_INVALID);
  zps_engine_destroy(engine.it);
}

struct gate {
  struct zps_command command;
  pthread_mutex_t lock;
  sem_t entered;
};

static void run_gate(struct zps_command *command, void *handler_ctx) {
  (void)handler_ctx;
  struct gate *gate = (struct gate *)command;
  sem_post(&gate->entered);
  pthread_mutex_lock(&gate->lock);
  pthread_mutex_unlock(&gate->lock);
}

/* An engine that sleeps is not due, and one that is held by a command, or has one waiting, is and makes no turn. */
static void test_a_held_engine_is_due(void **state) {
  (void)state;
  struct ticking engine;
  unsigned n_run = 0;
  struct gate gate = {.command.run = run_gate, .lock = PTHREAD_MUTEX_INITIALIZER};
  sem_init(&gate.entered, 0, 0);
  struct counted counted = {.command.run = run_count, .n_run = &n_run};
  struct zps_command nothing = {.run = run_nothing};
  begin(&engine);
  assert_int_equal(zps_engine_call(engine.it, &nothing), ZPS_OK);
  while (zps_engine_pulse(engine.it, zps_clock_ns()).due) sched_yield();
  pthread_mutex_lock(&gate.lock);
  zps_engine_post(engine.it, &gate.command);
  sem_wait(&gate.entered);
  const struct zps_engine_pulse held = zps_engine_pulse(engine.it, zps_clock_ns());
  assert_true(held.due);
  zps_engine_post(engine.it, &counted.command);
  const struct zps_engine_pulse later = zps_engine_pulse(engine.it, zps_clock_ns());
  assert_true(later.due);
  assert_int_equal(later.turns, held.turns);
  pthread_mutex_unlock(&gate.lock);
  assert_int_equal(zps_engine_call(engine.it, &nothing), ZPS_OK);
  while (zps_engine_pulse(engine.it, zps_clock_ns()).turns <= held.turns) sched_yield(); /* all may run in one turn */
  while (zps_engine_pulse(engine.it, zps_clock_ns()).due) sched_yield();
  zps_engine_destroy(engine.it);
}

/* A call that a held engine does not begin with in time never runs; one that it has begun with is waited for. */
static void test_a_call_is_given_up(void **state) {
  (void)state;
  struct ticking engine;
  unsigned n_run = 0;
  struct gate gate = {.command.run = run_gate, .lock = PTHREAD_MUTEX_INITIALIZER};
  struct counted counted = {.command.run = run_count, .n_run = &n_run};
  sem_init(&gate.entered, 0, 0);
  begin(&engine);
  assert_int_equal(zps_engine_call_within(engine.it, &counted.command, 60 * ZPS_NS_PER_S), ZPS_OK);
  assert_int_equal(n_run, 1);
  pthread_mutex_lock(&gate.lock);
  zps_engine_post(engine.it, &gate.command);
  sem_wait(&gate.entered);
  assert_int_equal(zps_engine_call_within(engine.it, &counted.command, 20 * ZPS_NS_PER_MS), ZPS_ERR_TIMEOUT);
  pthread_mutex_unlock(&gate.lock);
  assert_int_equal(zps_engine_call_within(engine.it, &counted.command, 60 * ZPS_NS_PER_S), ZPS_OK);
  assert_int_equal(n_run, 2);
  zps_engine_destroy(engine.it);
}

/* With no memory a call is made all the same, one at a time: here the thread has the first one still. */
static void test_a_call_without_memory(void **state) {
  (void)state;
  struct ticking engine;
  unsigned n_run = 0;
  struct gate gate = {.command.run = run_gate, .lock = PTHREAD_MUTEX_INITIALIZER};
  struct counted counted = {.command.run = run_count, .n_run = &n_run};
  sem_init(&gate.entered, 0, 0);
  begin(&engine);
  for (unsigned i = 0; i < 3; i++) {
    atomic_store(&oom_granted, 0);
    const zps_err_t err = zps_engine_call_within(engine.it, &counted.command, 60 * ZPS_NS_PER_S);
    atomic_store(&oom_granted, OOM_UNLIMITED);
    assert_int_equal(err, ZPS_OK);
  }
  assert_int_equal(n_run, 3);
  pthread_mutex_lock(&gate.lock);
  zps_engine_post(engine.it, &gate.command);
  sem_wait(&gate.entered);
  atomic_store(&oom_granted, 0);
  const zps_err_t first = zps_engine_call_within(engine.it, &counted.command, 20 * ZPS_NS_PER_MS);
  const zps_err_t second = zps_engine_call_within(engine.it, &counted.command, 20 * ZPS_NS_PER_MS);
  atomic_store(&oom_granted, OOM_UNLIMITED);
  pthread_mutex_unlock(&gate.lock);
  assert_int_equal(first, ZPS_ERR_TIMEOUT);
  assert_int_equal(second, ZPS_ERR_NOMEM);
  assert_int_equal(zps_engine_call_within(engine.it, &counted.command, 60 * ZPS_NS_PER_S), ZPS_OK);
  assert_int_equal(n_run, 4);
  atomic_store(&oom_granted, 0);
  const zps_err_t again = zps_engine_call_within(engine.it, &counted.command, 60 * ZPS_NS_PER_S);
  atomic_store(&oom_granted, OOM_UNLIMITED);
  assert_int_equal(again, ZPS_OK);
  zps_engine_destroy(engine.it);
}

struct held_call {
  struct zps_engine *engine;
  struct gate *gate;
  zps_err_t code;
};

static void *call_gate(void *arg) {
  struct held_call *held = arg;
  held->code = zps_engine_call_within(held->engine, &held->gate->command, 60 * ZPS_NS_PER_S);
  return NULL;
}

static void test_a_call_that_runs_is_waited_for(void **state) {
  (void)state;
  struct ticking engine;
  pthread_t thread;
  struct gate gate = {.command.run = run_gate, .lock = PTHREAD_MUTEX_INITIALIZER};
  sem_init(&gate.entered, 0, 0);
  begin(&engine);
  struct held_call held = {.engine = engine.it, .gate = &gate, .code = ZPS_ERR_INTERNAL};
  pthread_mutex_lock(&gate.lock);
  assert_int_equal(pthread_create(&thread, NULL, call_gate, &held), 0);
  sem_wait(&gate.entered);
  pthread_mutex_unlock(&gate.lock);
  pthread_join(thread, NULL);
  assert_int_equal(held.code, ZPS_OK);
  zps_engine_destroy(engine.it);
}

/* While the gate is held, a burst of any length waits, and all of it has run before a command that is posted behind it.
 * */
static void test_a_queue_has_no_limit(void **state) {
  (void)state;
  struct ticking engine;
  unsigned n_run = 0;
  static struct counted counted[4096];
  struct gate gate = {.command.run = run_gate, .lock = PTHREAD_MUTEX_INITIALIZER};
  sem_init(&gate.entered, 0, 0);
  struct zps_command nothing = {.run = run_nothing};
  begin(&engine);
  pthread_mutex_lock(&gate.lock);
  zps_engine_post(engine.it, &gate.command);
  for (unsigned i = 0; i < 4096; i++) {
    counted[i] = (struct counted){.command.run = run_count, .n_run = &n_run};
    zps_engine_post(engine.it, &counted[i].command);
  }
  pthread_mutex_unlock(&gate.lock);
  assert_int_equal(zps_engine_call(engine.it, &nothing), ZPS_OK);
  assert_int_equal(n_run, 4096);
  zps_engine_destroy(engine.it);
}

enum { POSTERS = 3, POSTS = 3000 };

struct poster {
  struct ticking *ticking;
  struct numbered {
    struct zps_command command;
    struct poster *poster;
    unsigned number;
  } commands[POSTS];
  unsigned n_run; /* the engine thread's */
  bool out_of_order;
};

static void run_numbered(struct zps_command *command, void *handler_ctx) {
  (void)handler_ctx;
  const struct numbered *numbered = (struct numbered *)command;
  numbered->poster->out_of_order |= numbered->number != numbered->poster->n_run++;
}

static void *post_all(void *arg) {
  struct poster *poster = arg;
  for (unsigned i = 0; i < POSTS; i++) {
    poster->commands[i] = (struct numbered){.command.run = run_numbered, .poster = poster, .number = i};
    zps_engine_post(poster->ticking->it, &poster->commands[i].command);
  }
  return NULL;
}

/* Nothing else wakes the engine: a wake-up that got lost would end in a hang. */
static void test_each_threads_commands_run_in_order(void **state) {
  (void)state;
  static struct poster posters[POSTERS];
  pthread_t threads[POSTERS];
  struct ticking engine;
  struct zps_command nothing = {.run = run_nothing};
  begin(&engine);
  for (unsigned i = 0; i < POSTERS; i++) {
    posters[i] = (struct poster){.ticking = &engine};
    assert_int_equal(pthread_create(&threads[i], NULL, post_all, &posters[i]), 0);
  }
  for (unsigned i = 0; i < POSTERS; i++) pthread_join(threads[i], NULL);
  assert_int_equal(zps_engine_call(engine.it, &nothing), ZPS_OK);
  for (unsigned i = 0; i < POSTERS; i++) {
    assert_int_equal(posters[i].n_run, POSTS);
    assert_false(posters[i].out_of_order);
  }
  zps_engine_destroy(engine.it);
}

/* Posts itself again and again; then, as `last`, something that frees itself. */
struct again {
  struct zps_command command;
  struct ticking *ticking;
  unsigned left, ticks_first, ticks_last;
  struct counted *last;
};

static void run_last(struct zps_command *command, void *handler_ctx) {
  run_count(command, handler_ctx);
  free(command);
}

static void run_again(struct zps_command *command, void *handler_ctx) {
  (void)handler_ctx;
  struct again *again = (struct again *)command;
  again->ticks_last = atomic_load(&again->ticking->n);
  if (again->left-- > 0)
    zps_engine_post(again->ticking->it, command);
  else
    zps_engine_post(again->ticking->it, &again->last->command);
}

static void run_first(struct zps_command *command, void *handler_ctx) {
  struct again *again = (struct again *)command;
  again->ticks_first = atomic_load(&again->ticking->n);
  command->run = run_again;
  run_again(command, handler_ctx);
}

/* Also while the engine is being destroyed; and the fabric and the tick get their turns in between. */
static void test_a_command_may_post_itself_until_the_end(void **state) {
  (void)state;
  struct ticking engine;
  unsigned n_run = 0;
  struct counted *last = malloc(sizeof *last);
  struct gate gate = {.command.run = run_gate, .lock = PTHREAD_MUTEX_INITIALIZER};
  struct again again = {.command.run = run_first, .ticking = &engine, .left = 10000, .last = last};
  assert_non_null(last);
  *last = (struct counted){.command.run = run_last, .n_run = &n_run};
  begin(&engine);
  pthread_mutex_lock(&gate.lock);
  zps_engine_post(engine.it, &gate.command);
  zps_engine_post(engine.it, &again.command);
  pthread_mutex_unlock(&gate.lock);
  zps_engine_destroy(engine.it);
  assert_int_equal(n_run, 1);
  assert_true(again.ticks_last - again.ticks_first >= 10000 / 1000);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_commands_posted_before_destroy_run),
      cmocka_unit_test(test_a_call_from_the_engine_is_refused),
      cmocka_unit_test(test_a_held_engine_is_due),
      cmocka_unit_test(test_a_call_is_given_up),
      cmocka_unit_test(test_a_call_without_memory),
      cmocka_unit_test(test_a_call_that_runs_is_waited_for),
      cmocka_unit_test(test_a_queue_has_no_limit),
      cmocka_unit_test(test_each_threads_commands_run_in_order),
      cmocka_unit_test(test_a_command_may_post_itself_until_the_end),
  };
  return cmocka_run_group_tests_name("engine_commands", tests, NULL, NULL);
}
