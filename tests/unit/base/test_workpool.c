/* The pool of threads, and their scratch objects. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/workpool.h"
#include "tests/support/oom.h"

struct job {
  struct zps_work work; /* first: run() casts */
  atomic_uint *next;
  unsigned order;
};

static void take_number(struct zps_work *work) {
  struct job *job = (struct job *)work;
  job->order = atomic_fetch_add(job->next, 1);
}

static void jobs_start_in_order_and_all_run_before_destroy_returns(void **state) {
  (void)state;
  enum { N = 500 };
  static struct job jobs[N];
  for (unsigned n_threads = 1; n_threads <= 4; n_threads += 3) {
    struct zps_workpool *pool;
    atomic_uint next = 0;
    assert_int_equal(zps_workpool_create(n_threads, "a-long-pool-name", &pool), ZPS_OK);
    assert_int_equal(zps_workpool_threads(pool), n_threads);
    for (int i = 0; i < N; i++) {
      jobs[i] = (struct job){.work.run = take_number, .next = &next};
      zps_workpool_submit(pool, &jobs[i].work);
    }
    zps_workpool_destroy(pool);
    assert_int_equal(next, N);
    for (unsigned i = 0; n_threads == 1 && i < N; i++) assert_int_equal(jobs[i].order, i);
  }
  zps_workpool_destroy(NULL);
}

struct gate {
  struct zps_work work; /* first: run() casts */
  atomic_bool is_begun, is_open;
};

static void wait_at(struct zps_work *work) {
  struct gate *const gate = (struct gate *)work;
  atomic_store(&gate->is_begun, true);
  while (!atomic_load(&gate->is_open)) sched_yield();
}

/* One thread, which is kept until all are there: then two of the heavy flow's begin for each of the other's. */
static void jobs_of_flows_start_in_their_turns(void **state) {
  (void)state;
  enum { N = 30 };
  static struct job jobs[2][N];
  struct gate gate = {.work.run = wait_at};
  struct zps_workpool *pool;
  atomic_uint order = 0;
  struct zps_fair_flow *const flows[] = {zps_fair_flow_create(1), zps_fair_flow_create(2)};
  assert_true(flows[0] && flows[1]);
  assert_int_equal(zps_workpool_create(1, "flows", &pool), ZPS_OK);
  zps_workpool_submit(pool, &gate.work);
  while (!atomic_load(&gate.is_begun)) sched_yield();
  for (unsigned flow = 0; flow < 2; flow++) {
    for (unsigned i = 0; i < N; i++) {
      jobs[flow][i] = (struct job){.work.run = take_number, .next = &order};
      zps_workpool_submit_for(pool, flows[flow], &jobs[flow][i].work, 64);
    }
  }
  assert_int_equal(zps_workpool_idle(pool), 0);
  assert_int_equal(zps_workpool_served(pool, flows[0]).all, 0);
  atomic_store(&gate.is_open, true);
  while (zps_workpool_idle(pool) == 0) sched_yield();
  for (unsigned i = 0; i < N; i++) {
    assert_true(i == 0 || jobs[0][i - 1].order < jobs[0][i].order);
    if (i < N / 2) assert_true(jobs[1][2 * i].order <= 3 * i + 2 && jobs[1][2 * i + 1].order <= 3 * i + 3);
  }
  for (unsigned flow = 0; flow < 2; flow++) {
    assert_int_equal(zps_workpool_served(pool, flows[flow]).all, N * 64);
    zps_fair_flow_unref(flows[flow]);
  }
  zps_workpool_destroy(pool);
}

static void mark(void *ctx, unsigned i) {
  atomic_fetch_add((atomic_uint *)ctx + i, 1);
}

static void a_loop_runs_each_index_once(void **state) {
  (void)state;
  static const unsigned sizes[] = {0, 1, 2, 3, 200};
  static atomic_uint marks[201];
  struct zps_workpool *pool;
  assert_int_equal(zps_workpool_create(3, "loop", &pool), ZPS_OK);
  for (int turn = 0; turn < 200; turn++) {
    for (unsigned s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
      for (unsigned i = 0; i <= 200; i++) marks[i] = 0;
      zps_workpool_for(turn % 2 ? pool : NULL, sizes[s], mark, marks); /* without a pool: on this thread */
      for (unsigned i = 0; i <= 200; i++) assert_int_equal(marks[i], i < sizes[s]);
    }
  }
  zps_workpool_destroy(pool);
}

/* Two indices that wait for each other. */
struct meeting {
  atomic_uint arrived;
  pthread_t threads[2];
};

static void meet(void *ctx, unsigned i) {
  struct meeting *const meeting = ctx;
  meeting->threads[i] = pthread_self();
  atomic_fetch_add(&meeting->arrived, 1);
  while (atomic_load(&meeting->arrived) < 2) sched_yield();
}

static void a_loop_deals_the_same_indices_to_the_same_threads(void **state) {
  (void)state;
  struct zps_workpool *pool;
  struct meeting meeting;
  assert_int_equal(zps_workpool_create(1, "deal", &pool), ZPS_OK);
  for (int turn = 0; turn < 200; turn++) {
    atomic_init(&meeting.arrived, 0);
    zps_workpool_for(pool, 2, meet, &meeting);
    assert_true(pthread_equal(meeting.threads[0], pthread_self()));
    assert_false(pthread_equal(meeting.threads[1], pthread_self()));
  }
  zps_workpool_destroy(pool);
}

static void *loop_thread(void *arg) {
  atomic_uint marks[50] = {0};
  for (int turn = 0; turn < 100; turn++) zps_workpool_for(arg, 50, mark, marks);
  for (int i = 0; i < 50; i++)
    if (marks[i] != 100) return arg;
  return NULL;
}

static void loops_of_several_threads_share_a_pool(void **state) {
  (void)state;
  struct zps_workpool *pool;
  pthread_t threads[3];
  assert_int_equal(zps_workpool_create(2, "shared", &pool), ZPS_OK);
  for (int i = 0; i < 3; i++) assert_int_equal(pthread_create(&threads[i], NULL, loop_thread, pool), 0);
  for (int i = 0; i < 3; i++) {
    void *failed;
    pthread_join(threads[i], &failed);
    assert_null(failed);
  }
  zps_workpool_destroy(pool);
}

struct nested {
  struct zps_workpool *pool;
  atomic_uint marks[20];
};

static void run_inner_loop(void *ctx, unsigned i) {
  struct nested *const nested = ctx;
  (void)i;
  zps_workpool_for(nested->pool, 20, mark, nested->marks);
}

static void loops_may_be_within_loops(void **state) {
  (void)state;
  struct nested nested = {0};
  assert_int_equal(zps_workpool_create(2, "nested", &nested.pool), ZPS_OK);
  for (int turn = 0; turn < 100; turn++) zps_workpool_for(nested.pool, 30, run_inner_loop, &nested);
  zps_workpool_destroy(nested.pool);
  for (int i = 0; i < 20; i++) assert_int_equal(nested.marks[i], 3000);
}

/* The pool's only thread is held until the loop is over: the caller must run the work that was meant for the thread. */
struct held {
  struct zps_work work;
  atomic_bool is_over;
};

static void hold(struct zps_work *work) {
  while (!atomic_load(&((struct held *)work)->is_over)) sched_yield();
}

static void a_loop_waits_for_no_busy_thread(void **state) {
  (void)state;
  struct zps_workpool *pool;
  struct held held = {.work.run = hold};
  static struct job after;
  atomic_uint marks[10] = {0}, next = 0;
  assert_int_equal(zps_workpool_create(1, "busy", &pool), ZPS_OK);
  zps_workpool_submit(pool, &held.work);
  zps_workpool_for(pool, 10, mark, marks);
  for (int i = 0; i < 10; i++) assert_int_equal(marks[i], 1);
  after = (struct job){.work.run = take_number, .next = &next};
  zps_workpool_submit(pool, &after.work);
  atomic_store(&held.is_over, true);
  zps_workpool_destroy(pool);
  assert_int_equal(next, 1);
}

static void spin(void *ctx, unsigned i) {
  (void)i;
  const uint64_t end_ns = zps_clock_ns() + 30000;
  while (zps_clock_ns() < end_ns) atomic_fetch_add((atomic_uint *)ctx, 1);
}

struct seen {
  struct zps_work work;
  cpu_set_t allowed;
  atomic_bool is_there;
};

static void see(struct zps_work *work) {
  struct seen *seen = (struct seen *)work;
  assert_int_equal(sched_getaffinity(0, sizeof seen->allowed, &seen->allowed), 0);
  atomic_store(&seen->is_there, true);
}

/* One thread, so that it is the one that sees. With `pinned`, it stands behind the caller: nothing else is allowed. */
static void check_allowed(bool pinned) {
  cpu_set_t before, here;
  struct zps_workpool *pool;
  atomic_uint n = 0;
  assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&here);
  CPU_SET(sched_getcpu(), &here);
  if (pinned) assert_int_equal(sched_setaffinity(0, sizeof here, &here), 0);
  assert_int_equal(zps_workpool_create(1, "placed", &pool), ZPS_OK);
  if (!pinned) assert_int_equal(sched_setaffinity(0, sizeof here, &here), 0);
  for (int turn = 0; turn < 100; turn++) zps_workpool_for(pool, 8, spin, &n);
  struct seen seen = {.work.run = see};
  zps_workpool_submit(pool, &seen.work);
  while (!atomic_load(&seen.is_there)) sched_yield();
  assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
  zps_workpool_destroy(pool);
  assert_true(CPU_EQUAL(&seen.allowed, pinned ? &here : &before));
}

static void threads_stay_where_they_are_allowed(void **state) {
  (void)state;
  check_allowed(false);
  check_allowed(true);
}

static zps_err_t create_scratch(void **scratch_p) {
  return (*scratch_p = calloc(1, sizeof(unsigned))) ? ZPS_OK : ZPS_ERR_NOMEM;
}

enum { SCRATCH_THREADS = 3, SCRATCH_TURNS = 2000 };

/* No other thread writes to a scratch object meanwhile. */
static void *use_scratch(void *pool) {
  bool is_mine = true;
  for (unsigned i = 0; i < SCRATCH_TURNS; i++) {
    unsigned *scratch = zps_scratch_get(pool);
    const unsigned before = *scratch;
    sched_yield();
    is_mine &= *scratch == before;
    *scratch = before + 1;
    zps_scratch_put(pool, scratch);
  }
  return is_mine ? pool : NULL;
}

static void each_thread_has_a_scratch_of_its_own(void **state) {
  (void)state;
  struct zps_scratch_pool *pool;
  pthread_t threads[SCRATCH_THREADS];
  unsigned *all[SCRATCH_THREADS], turns = 0;
  assert_int_equal(zps_scratch_pool_create(SCRATCH_THREADS, create_scratch, free, &pool), ZPS_OK);
  for (unsigned i = 0; i < SCRATCH_THREADS; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, use_scratch, pool), 0);
  for (unsigned i = 0; i < SCRATCH_THREADS; i++) {
    void *is_mine;
    pthread_join(threads[i], &is_mine);
    assert_non_null(is_mine);
  }
  for (unsigned i = 0; i < SCRATCH_THREADS; i++) turns += *(all[i] = zps_scratch_get(pool));
  assert_int_equal(turns, SCRATCH_THREADS * SCRATCH_TURNS);
  for (unsigned i = 0; i < SCRATCH_THREADS; i++) zps_scratch_put(pool, all[i]);
  zps_scratch_pool_destroy(pool);
  zps_scratch_pool_destroy(NULL);
}

static zps_err_t create_scratches(void *ctx) {
  return zps_scratch_pool_create(3, create_scratch, free, ctx);
}
static void destroy_scratches(void *ctx) {
  zps_scratch_pool_destroy(*(struct zps_scratch_pool **)ctx);
}
static zps_err_t create_pool(void *ctx) {
  return zps_workpool_create(2, "oom", ctx);
}
static void destroy_pool(void *ctx) {
  zps_workpool_destroy(*(struct zps_workpool **)ctx);
}

static void creation_survives_lack_of_memory(void **state) {
  (void)state;
  struct zps_workpool *pool = NULL;
  struct zps_scratch_pool *scratches = NULL;
  oom_sweep(create_pool, destroy_pool, &pool, 1);
  oom_sweep(create_scratches, destroy_scratches, &scratches, 4);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(jobs_start_in_order_and_all_run_before_destroy_returns),
      cmocka_unit_test(jobs_of_flows_start_in_their_turns),
      cmocka_unit_test(a_loop_runs_each_index_once),
      cmocka_unit_test(a_loop_deals_the_same_indices_to_the_same_threads),
      cmocka_unit_test(loops_of_several_threads_share_a_pool),
      cmocka_unit_test(loops_may_be_within_loops),
      cmocka_unit_test(a_loop_waits_for_no_busy_thread),
      cmocka_unit_test(threads_stay_where_they_are_allowed),
      cmocka_unit_test(each_thread_has_a_scratch_of_its_own),
      cmocka_unit_test(creation_survives_lack_of_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
