/* The progress engine: two of them talking through the in-process fabric, each with its own thread. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/rng.h"
#include "common/session/engine.h"
#include "common/session/link.h"
#include "tests/support/fabrics/loop.h"
#include "tests/support/oom.h"

enum { JOB = 77, FRAMES = 4000, PAYLOAD = 3000 };

/* One process's side: an engine, its link to the other side, and how far the exchange has come. All but the atomics
 * belongs to the engine's thread. */
struct side {
  struct zps_engine *engine;
  struct zps_net_peer *peer;
  struct zps_bulk_peer *bulk_peer;
  struct zps_link *link;
  struct side *other;
  uint32_t index;
  struct zps_rng rng;
  unsigned to_send, sent, received, done_frames;
  struct zps_buf buf, remote_buf;
  struct zps_bulk_read read;
  unsigned n_read_done, n_read_released;
  zps_err_t read_code;
  zps_err_t link_error;
  uint64_t unmatched;
  atomic_uint ticks;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool finished;
};

struct side_command {
  struct zps_command command;
  struct side *side;
};

static void side_finish(struct side *side) {
  pthread_mutex_lock(&side->lock);
  side->finished = true;
  pthread_cond_signal(&side->changed);
  pthread_mutex_unlock(&side->lock);
}

static void side_wait(struct side *side) {
  pthread_mutex_lock(&side->lock);
  while (!side->finished) pthread_cond_wait(&side->changed, &side->lock);
  pthread_mutex_unlock(&side->lock);
}

static struct zps_link *find_link(void *ctx, const struct zps_frame_header *header) {
  (void)header;
  return ((struct side *)ctx)->link;
}

static void on_frame(void *ctx, const struct zps_frame *frame) {
  struct side *side = ctx;
  struct zps_error error;
  if (!side->link) return;
  const zps_err_t code = zps_link_received(side->link, &frame->header, &error);
  if (code != ZPS_OK) side->link_error = code;
  if (frame->header.type != ZPS_FRAME_DONE) return;
  if (frame->u.done.step != side->done_frames) side->link_error = ZPS_ERR_INTERNAL;
  side->done_frames++;
}

static void on_peer_error(void *ctx, struct zps_net_peer *peer, zps_err_t code, const char *text) {
  (void)peer;
  (void)text;
  struct side *side = ctx;
  side->link_error = code;
}

/* Sends bursts of random length, so that the link runs in and out of credit. */
static uint64_t on_tick(void *ctx, uint64_t now_ns) {
  (void)now_ns;
  struct side *side = ctx;
  atomic_fetch_add(&side->ticks, 1);
  if (!side->link) return ZPS_NEVER;
  for (uint64_t burst = zps_rng_below(&side->rng, 100); burst > 0 && side->sent < side->to_send; burst--) {
    struct zps_frame frame = {.header.type = ZPS_FRAME_DONE, .u.done = {.tensor = 1, .step = side->sent}};
    const zps_err_t code = zps_link_send(side->link, &frame);
    if (code == ZPS_ERR_AGAIN) break;
    if (code != ZPS_OK) side->link_error = code;
    side->sent++;
  }
  zps_link_progress(side->link);
  if (side->sent == FRAMES && side->done_frames == FRAMES) side_finish(side);
  return side->sent < side->to_send ? now_ns : ZPS_NEVER;
}

static zps_err_t side_open(struct side *side, uint32_t index, const char *provider, const char *fault) {
  *side = (struct side){.index = index,
                        .rng = {.state = index + 1},
                        .lock = PTHREAD_MUTEX_INITIALIZER,
                        .changed = PTHREAD_COND_INITIALIZER};
  const struct zps_engine_config config = {
      .name = "test",
      .net = {.provider = provider, .max_msg = ZPS_WIRE_MESSAGE_MAX, .n_recv = 4, .fault = fault},
      .bulk = {.piece_bytes = 1024},
      .memory_limit_bytes = 64 << 20,
      .memory_cache_bytes = 1 << 20};
  const struct zps_engine_handler handler = {
      .ctx = side, .find_link = find_link, .on_frame = on_frame, .on_peer_error = on_peer_error, .on_tick = on_tick};
  struct zps_error error;
  return zps_engine_create(&config, &handler, &side->engine, &error);
}

static void call(struct side *side, void (*run)(struct zps_command *, void *)) {
  struct side_command command = {.command.run = run, .side = side};
  assert_int_equal(zps_engine_call(side->engine, &command.command), ZPS_OK);
}

static void run_connect(struct zps_command *command, void *handler_ctx) {
  struct side *side = ((struct side_command *)command)->side;
  assert_ptr_equal(handler_ctx, side);
  struct zps_net *net = zps_engine_net(side->engine);
  const struct zps_net_info *info = zps_net_info(zps_engine_net(side->other->engine));
  struct zps_error error;
  assert_int_equal(zps_net_peer_add(net, info->addr, info->addr_len, side, &side->peer, &error), ZPS_OK);
  assert_int_equal(zps_bulk_peer_add(zps_engine_bulk(side->engine), side->peer, &side->bulk_peer), ZPS_OK);
  static const struct zps_secret secret = {"a job's secret.."};
  const struct zps_link_ends ends = {
      .job = JOB, .epoch = 1, .self = side->index, .other = side->other->index, .tag = side->index, .secret = &secret};
  assert_int_equal(zps_link_create(net, side->peer, &ends, &side->link), ZPS_OK);
  assert_int_equal(zps_slab_get(zps_engine_slab(side->engine), PAYLOAD, &side->buf), ZPS_OK);
  memset(side->buf.data, (int)side->index + 1, PAYLOAD);
}

static void run_start(struct zps_command *command, void *handler_ctx) {
  (void)handler_ctx;
  ((struct side_command *)command)->side->to_send = FRAMES;
}

static void run_disconnect(struct zps_command *command, void *handler_ctx) {
  (void)handler_ctx;
  struct side *side = ((struct side_command *)command)->side;
  side->unmatched = zps_net_counters(zps_engine_net(side->engine))->unmatched;
  zps_link_destroy(side->link);
  side->link = NULL;
  zps_slab_put(zps_engine_slab(side->engine), &side->buf);
}

static void sides_open(struct side sides[2], const char *provider, const char *fault) {
  for (uint32_t i = 0; i < 2; i++) assert_int_equal(side_open(&sides[i], i, provider, fault), ZPS_OK);
  for (uint32_t i = 0; i < 2; i++) sides[i].other = &sides[1 - i];
  for (uint32_t i = 0; i < 2; i++) call(&sides[i], run_connect);
}

static void check_exchange(const char *provider, const char *fault) {
  struct side sides[2];
  sides_open(sides, provider, fault);
  for (int i = 0; i < 2; i++) call(&sides[i], run_start);
  for (int i = 0; i < 2; i++) side_wait(&sides[i]);
  for (int i = 0; i < 2; i++) call(&sides[i], run_disconnect);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(sides[i].link_error, ZPS_OK);
    assert_int_equal(sides[i].done_frames, FRAMES);
    assert_int_equal(zps_engine_mishaps(sides[i].engine).malformed, 0);
    assert_int_equal(sides[i].unmatched, 0);
  }
  for (int i = 0; i < 2; i++) zps_engine_destroy(sides[i].engine);
}

static void test_engines_exchange_frames(void **state) {
  (void)state;
  check_exchange("loop", NULL);
}

static void test_engines_exchange_frames_under_faults(void **state) {
  (void)state;
  check_exchange("fault+loop", "seed=3,again=0.05,delay=0.01:200us");
}

static void test_an_idle_engine_sleeps(void **state) {
  (void)state;
  struct side side;
  struct side_command nothing = {.side = &side};
  assert_int_equal(side_open(&side, 0, "loop", NULL), ZPS_OK);
  side.other = &side;
  nothing.command.run = run_start;
  assert_int_equal(atomic_load(&side.ticks), 0);
  const unsigned calls = 50;
  for (unsigned i = 0; i < calls; i++) assert_int_equal(zps_engine_call(side.engine, &nothing.command), ZPS_OK);
  assert_true(atomic_load(&side.ticks) <= calls); /* one per batch of commands, and the last may still be to come */
  zps_engine_destroy(side.engine);
  assert_true(atomic_load(&side.ticks) >= 1);
}

static void run_send_garbage(struct zps_command *command, void *handler_ctx) {
  (void)handler_ctx;
  struct side *side = ((struct side_command *)command)->side;
  assert_int_equal(zps_net_send(side->peer, "garbage", 7), ZPS_OK);
}

static void log_count(void *ctx, const struct zps_log_line *line) {
  if (strstr(line->text, "dropped a message of 7 bytes")) atomic_fetch_add((atomic_uint *)ctx, 1);
}

static void test_malformed_frames_are_counted(void **state) {
  (void)state;
  struct side sides[2];
  atomic_uint logged = 0;
  zps_log_set_sink(log_count, &logged);
  zps_log_strangers.last_ms = 0; /* whatever was said before */
  sides_open(sides, "loop", NULL);
  for (int i = 0; i < 5; i++) call(&sides[0], run_send_garbage);
  while (zps_engine_mishaps(sides[1].engine).malformed < 5) sched_yield();
  for (int i = 0; i < 2; i++) call(&sides[i], run_disconnect);
  for (int i = 0; i < 2; i++) zps_engine_destroy(sides[i].engine);
  zps_log_set_sink(NULL, NULL);
  assert_in_range(atomic_load(&logged), 1, 5);
}

static void read_done(struct zps_bulk_read *read, zps_err_t code) {
  struct side *side = read->ctx;
  side->n_read_done++;
  side->read_code = code;
  if (code != ZPS_ERR_PEER_LOST) zps_slab_put(zps_engine_slab(side->engine), &side->remote_buf);
  side_finish(side);
}

static void read_release(struct zps_bulk_read *read) {
  struct side *side = read->ctx;
  side->n_read_released++;
  zps_slab_put(zps_engine_slab(side->engine), &side->remote_buf);
}

static void run_read(struct zps_command *command, void *handler_ctx) {
  (void)handler_ctx;
  struct side *side = ((struct side_command *)command)->side;
  assert_int_equal(zps_slab_get(zps_engine_slab(side->engine), PAYLOAD, &side->remote_buf), ZPS_OK);
  side->read = (struct zps_bulk_read){.local = side->remote_buf.data,
                                      .mem = side->remote_buf.mem,
                                      .len = PAYLOAD,
                                      .addr = side->other->buf.addr,
                                      .key = side->other->buf.key,
                                      .done = read_done,
                                      .release = read_release,
                                      .ctx = side};
  zps_bulk_start(side->bulk_peer, &side->read);
}

static void run_evict(struct zps_command *command, void *handler_ctx) {
  (void)handler_ctx;
  struct side *side = ((struct side_command *)command)->side;
  zps_net_peer_evict(side->peer);
  zps_bulk_peer_remove(side->bulk_peer);
}

static void test_bulk_reads_run_by_themselves(void **state) {
  (void)state;
  struct side sides[2];
  sides_open(sides, "loop", NULL);
  call(&sides[0], run_read);
  side_wait(&sides[0]);
  assert_int_equal(sides[0].read_code, ZPS_OK);
  for (int i = 0; i < 2; i++) call(&sides[i], run_disconnect);
  for (int i = 0; i < 2; i++) zps_engine_destroy(sides[i].engine);
}

static void check_shutdown(bool evict, zps_err_t expected) {
  struct side sides[2];
  sides_open(sides, "fault+loop", "kill=1,hold=1s"); /* reads that never come back */
  call(&sides[0], run_read);
  for (int i = 0; i < 2; i++) call(&sides[i], run_disconnect);
  if (evict) call(&sides[0], run_evict);
  for (int i = 0; i < 2; i++) zps_engine_destroy(sides[i].engine);
  assert_int_equal(sides[0].n_read_done, 1);
  assert_int_equal(sides[0].read_code, expected);
  assert_int_equal(sides[0].n_read_released, evict ? 1 : 0);
}

static void test_destroy_ends_reads_in_flight(void **state) {
  (void)state;
  check_shutdown(false, ZPS_ERR_CLOSED);
  check_shutdown(true, ZPS_ERR_PEER_LOST);
}

static void test_create_fails_as_the_fabric_does(void **state) {
  (void)state;
  struct side side;
  assert_int_equal(side_open(&side, 0, "fault+loop", "nonsense"), ZPS_ERR_INVALID);
  assert_null(side.engine);
  zps_engine_destroy(NULL);
}

static zps_err_t sweep_create(void *ctx) {
  return side_open(ctx, 0, "loop", NULL);
}

static void sweep_destroy(void *ctx) {
  zps_engine_destroy(((struct side *)ctx)->engine);
}

static void test_out_of_memory(void **state) {
  (void)state;
  struct side side;
  oom_sweep(sweep_create, sweep_destroy, &side, 6);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_engines_exchange_frames),
      cmocka_unit_test(test_engines_exchange_frames_under_faults),
      cmocka_unit_test(test_an_idle_engine_sleeps),
      cmocka_unit_test(test_malformed_frames_are_counted),
      cmocka_unit_test(test_bulk_reads_run_by_themselves),
      cmocka_unit_test(test_destroy_ends_reads_in_flight),
      cmocka_unit_test(test_create_fails_as_the_fabric_does),
      cmocka_unit_test(test_out_of_memory),
  };
  return cmocka_run_group_tests_name("engine", tests, NULL, NULL);
}
