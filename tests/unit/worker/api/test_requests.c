/* Requests as the trainer sees them, of rounds that are over when the test says so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define ZPS_LOG_COMPONENT "test"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "worker/api/job.h"
#include "worker/api/request.h"
#include "worker/served/served.h"

enum { REQUESTS = 4 };

/* A job without connections, its tensor, and requests in flight. */
struct scene {
  struct zenps_job *job; /* NULL: closed, with its tensor */
  struct zenps_tensor *tensor;
  struct zps_workpool *pool;
  uint32_t owners[8];
  zenps_request_t *requests[REQUESTS];
  zenps_grad_t out; /* a list, in the library's arrays */
};

static void start(struct scene *scene, unsigned i) {
  struct zps_round *round;
  assert_int_equal(zps_worker_request_create(scene->tensor, &scene->requests[i]), ZPS_OK);
  assert_int_equal(zps_worker_tensor_round_get(scene->tensor, i, false, false, &round), ZPS_OK);
  zps_result_init(&scene->requests[i]->result, &scene->out, 2 * sizeof(float));
  scene->requests[i]->round = round;
  round->request = scene->requests[i];
}

/* The engine's part, and that of a pool: a result of `n` rows. */
static void finish_with(struct scene *scene, unsigned i, zenps_status_t status, uint64_t n) {
  struct zps_round *round = scene->requests[i]->round;
  zenps_error_t error = {.status = status, .step = i, .tensor = "t"};
  round->stats.scheme = "balanced";
  round->stats.nnz_out = n;
  snprintf(error.text, sizeof error.text, "step %u", i);
  if (status == ZENPS_ERR_TRUNCATED) error.needed = n;
  if (status == ZENPS_OK || status == ZENPS_ERR_TRUNCATED) {
    assert_int_equal(zps_row_arrays_take(scene->tensor->core.arrays, n, 2 * sizeof(float), &round->row_arrays), ZPS_OK);
    for (uint64_t k = 0; k < n; k++) {
      ((int64_t *)round->row_arrays.rows.data)[k] = (int64_t)(3 * k);
      ((float *)round->row_arrays.values.data)[2 * k] = (float)(i + k);
    }
  }
  assert_true(round->owner->over(round, &error, false));
  round->owner->wake(round->tensor);
  round->owner->released(round);
}

static void finish(struct scene *scene, unsigned i, zenps_status_t status) {
  finish_with(scene, i, status, 10);
}

static void check_rows(const zenps_grad_t *rows, unsigned i, uint64_t n) {
  assert_int_equal(rows->layout, ZENPS_ROWS);
  assert_int_equal(rows->memory, ZENPS_HOST);
  assert_int_equal(rows->nnz, n);
  for (uint64_t k = 0; k < n; k++) {
    assert_int_equal(rows->row_ids[k], 3 * k);
    assert_true(((const float *)rows->values)[2 * k] == (float)(i + k));
  }
}

static int scene_setup(void **state) {
  struct scene *scene = calloc(1, sizeof *scene);
  pthread_condattr_t attr;
  if (!scene) return -1;
  *state = scene;
  ZENPS_GRAD_INIT(&scene->out);
  scene->out.layout = ZENPS_ROWS;
  scene->job = calloc(1, sizeof *scene->job);
  scene->tensor = calloc(1, sizeof *scene->tensor);
  if (!scene->job || !scene->tensor || zps_workpool_create(1, "test", &scene->pool) != ZPS_OK) return -1;
  scene->job->refs = 1;
  scene->job->pid = getpid();
  scene->job->plane.n_servers = 1;
  scene->job->plane.pool = scene->pool;
  zps_rounds_init(&scene->job->rounds, &scene->job->plane);
  pthread_mutex_init(&scene->job->lock, NULL);
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(&scene->job->done, &attr);
  pthread_condattr_destroy(&attr);
  *scene->tensor = (struct zenps_tensor){.job = scene->job,
                                         .core = {.job = "run",
                                                  .name = "t",
                                                  .rounds = &scene->job->rounds,
                                                  .ops = &zps_served_ops,
                                                  .width = 2,
                                                  .dtype = ZPS_DTYPE_F32,
                                                  .owners = scene->owners,
                                                  .shape = {.rows = 1000, .width = 2, .dtype = ZPS_DTYPE_F32}}};
  scene->job->tensors = scene->tensor;
  if (zps_partition_init(&scene->tensor->core.part, 1000, 8, 0, 1, NULL) != ZPS_OK ||
      zps_row_arrays_pool_create(&scene->tensor->core.arrays) != ZPS_OK)
    return -1;
  for (unsigned i = 0; i < REQUESTS; i++) start(scene, i);
  return 0;
}

/* What zenps_close() does when its threads are gone. */
static void close_job(struct scene *scene) {
  pthread_mutex_lock(&scene->job->lock);
  zps_worker_tensor_rounds_end(scene->tensor);
  pthread_mutex_unlock(&scene->job->lock);
  pthread_cond_broadcast(&scene->job->done);
  zps_worker_tensor_rounds_destroy(scene->tensor);
  zps_row_arrays_pool_close(scene->tensor->core.arrays);
  free(scene->tensor);
  zps_workpool_destroy(scene->pool);
  zps_worker_job_unref(scene->job);
  scene->job = NULL;
}

static int scene_teardown(void **state) {
  struct scene *scene = *state;
  for (unsigned i = 0; i < REQUESTS; i++) zenps_request_free(scene->requests[i]);
  if (scene->job) close_job(scene);
  free(scene);
  return 0;
}

/* ------------------------------------------------------------ what the trainer has seen */

/* As it asks, not as the round begins, which is later here than on another rank: that one's trainer has not seen the
 * end of 0, and may lack it. So it is for a round within one that was asked for, too. */
static void test_what_is_seen_later_counts_later(void **state) {
  struct scene *scene = *state;
  struct zenps_job *const job = scene->job;
  struct zps_round_start first = {0}, second = {0}, third = {0}, inner = {0};
  job->unseen_last_p = &job->unseen;
  zps_worker_request_made(scene->requests[0]);
  zps_worker_request_begun(scene->requests[0], &first);
  assert_int_equal(first.seen_to, first.number);
  zps_worker_request_made(scene->requests[1]);
  finish(scene, 0, ZENPS_OK);
  assert_int_equal(zenps_wait(scene->requests[0], 0), ZENPS_OK);
  zps_worker_request_begun(scene->requests[1], &second);
  assert_int_equal(second.seen_to, first.number);
  scene->requests[2]->seen_to = second.seen_to;
  zps_worker_request_begun(scene->requests[2], &inner);
  assert_int_equal(inner.seen_to, first.number);
  zps_worker_request_made(scene->requests[3]);
  zps_worker_request_begun(scene->requests[3], &third);
  assert_int_equal(third.seen_to, second.number);
  for (unsigned i = 1; i < REQUESTS; i++) finish(scene, i, ZENPS_OK);
}

/* ------------------------------------------------------------ all at once */

static void test_all_are_waited_for(void **state) {
  struct scene *scene = *state;
  assert_int_equal(zenps_wait_all(scene->requests, REQUESTS, 0), ZENPS_IN_PROGRESS);
  for (unsigned i = 0; i < REQUESTS; i++) {
    assert_int_equal(zenps_wait_all(scene->requests, REQUESTS, i % 2), ZENPS_IN_PROGRESS);
    finish(scene, REQUESTS - 1 - i, ZENPS_OK);
    assert_int_equal(zenps_wait_all(&scene->requests[REQUESTS - 1 - i], i + 1, 0), ZENPS_OK);
  }
  assert_int_equal(zenps_wait_all(scene->requests, REQUESTS, -1), ZENPS_OK);
  assert_int_equal(zenps_wait_all(NULL, 0, -1), ZENPS_OK);
}

static void test_the_first_error_in_the_array(void **state) {
  struct scene *scene = *state;
  finish(scene, 3, ZENPS_ERR_MISSING); /* the first to fail, but not the first in the array */
  finish(scene, 1, ZENPS_ERR_TIMEOUT);
  finish(scene, 0, ZENPS_OK);
  assert_int_equal(zenps_wait_all(scene->requests, REQUESTS, 0), ZENPS_IN_PROGRESS);
  finish(scene, 2, ZENPS_OK);
  assert_int_equal(zenps_wait_all(scene->requests, REQUESTS, -1), ZENPS_ERR_TIMEOUT);
  assert_string_equal(zenps_last_error()->text, "step 1");
  assert_int_equal(zenps_wait_all(scene->requests + 2, 2, -1), ZENPS_ERR_MISSING);
  assert_string_equal(zenps_last_error()->text, "step 3");
  assert_int_equal(zenps_wait_all(scene->requests, 1, -1), ZENPS_OK);
}

static void *wait_for_all(void *ctx) {
  struct scene *scene = ctx;
  return (void *)(intptr_t)zenps_wait_all(scene->requests, REQUESTS, -1);
}

static void test_another_thread_ends_them(void **state) {
  struct scene *scene = *state;
  pthread_t thread;
  void *status;
  assert_int_equal(pthread_create(&thread, NULL, wait_for_all, scene), 0);
  for (unsigned i = 0; i < REQUESTS; i++) finish(scene, i, i == 2 ? ZENPS_ERR_PEER_LOST : ZENPS_OK);
  pthread_join(thread, &status);
  assert_int_equal((intptr_t)status, ZENPS_ERR_PEER_LOST);
}

static void test_bad_arguments(void **state) {
  struct scene *scene = *state;
  zenps_request_t *const some[] = {scene->requests[0], NULL};
  assert_int_equal(zenps_wait_all(NULL, 1, -1), ZENPS_ERR_INVALID);
  assert_int_equal(zenps_wait_all(some, 2, -1), ZENPS_ERR_INVALID);
  assert_non_null(strstr(zenps_last_error()->text, "requests[1]"));
  assert_int_equal(zenps_wait_all(scene->requests, REQUESTS, -2), ZENPS_ERR_INVALID);
  assert_non_null(strstr(zenps_last_error()->text, "zenps_wait_all: a timeout of -2 ms"));
  for (unsigned i = 0; i < REQUESTS; i++) finish(scene, i, ZENPS_OK);
}

/* ------------------------------------------------------------ after the job */

static void test_a_trainers_own_error_is_the_first(void **state) {
  struct scene *scene = *state;
  assert_int_equal(zenps_job_fail(NULL, "x"), ZENPS_ERR_INVALID);
  assert_int_equal(zenps_job_fail(scene->job, NULL), ZENPS_ERR_INVALID);
  assert_int_equal(zenps_job_fail(scene->job, ""), ZENPS_ERR_INVALID);
  assert_int_equal(scene->job->first.error.code, ZPS_OK);
  assert_int_equal(zenps_job_fail(scene->job, "batch 7 is empty"), ZENPS_OK);
  assert_int_equal(zenps_job_fail(scene->job, "later"), ZENPS_OK);
  assert_int_equal(scene->job->first.error.code, ZPS_ERR_TRAINER);
  assert_string_equal(scene->job->first.error.text, "batch 7 is empty");
  for (unsigned i = 0; i < REQUESTS; i++) finish(scene, i, ZENPS_OK);
}

static void test_what_was_done_outlives_the_job(void **state) {
  struct scene *scene = *state;
  uint32_t sent[8], in_union[8];
  zenps_request_stats_t stats = {.struct_size = sizeof stats};
  zenps_grad_t rows;
  ZENPS_GRAD_INIT(&rows);
  for (unsigned i = 0; i < REQUESTS; i++) finish_with(scene, i, i == 1 ? ZENPS_ERR_MISSING : ZENPS_OK, 100 * i);
  close_job(scene);
  zenps_request_t *const well = scene->requests[2], *const failed = scene->requests[1];
  assert_int_equal(zenps_test(well), ZENPS_OK);
  assert_int_equal(zenps_wait(well, -1), ZENPS_OK);
  assert_int_equal(zenps_cancel(well), ZENPS_OK);
  assert_null(zenps_request_error(well));
  assert_int_equal(zenps_request_stats(well, &stats), ZENPS_OK);
  assert_int_equal(stats.nnz_out, 200);
  assert_int_equal(zenps_request_partition_nnz(well, sent, in_union), ZENPS_OK);
  assert_int_equal(zenps_request_contributed(well, &rows), ZENPS_ERR_UNSUPPORTED);
  assert_non_null(strstr(zenps_last_error()->text, "tensor t "));
  assert_int_equal(zenps_test(failed), ZENPS_ERR_MISSING);
  assert_string_equal(zenps_request_error(failed)->text, "step 1");
  assert_int_equal(zenps_wait_all(scene->requests, REQUESTS, -1), ZENPS_ERR_MISSING);
  assert_int_equal(zenps_request_take(well, &rows), ZENPS_OK);
  check_rows(&rows, 2, 200);
  zenps_rows_free(&rows);
}

static void test_what_was_not_is_closed(void **state) {
  struct scene *scene = *state;
  zenps_grad_t rows;
  ZENPS_GRAD_INIT(&rows);
  finish(scene, 0, ZENPS_OK);
  close_job(scene);
  for (unsigned i = 1; i < REQUESTS; i++) {
    char step[32];
    snprintf(step, sizeof step, "job run, tensor t, step %u: ", i);
    assert_int_equal(zenps_wait(scene->requests[i], -1), ZENPS_ERR_CLOSED);
    assert_int_equal(zenps_cancel(scene->requests[i]), ZENPS_OK);
    const zenps_error_t *error = zenps_request_error(scene->requests[i]);
    assert_non_null(strstr(error->text, step));
    assert_string_equal(error->tensor, "t");
    assert_int_equal(error->step, i);
    assert_int_equal(zenps_request_take(scene->requests[i], &rows), ZENPS_ERR_CLOSED);
  }
  assert_int_equal(zenps_test(scene->requests[0]), ZENPS_OK);
}

static void test_a_thread_that_waits_is_told(void **state) {
  struct scene *scene = *state;
  pthread_t thread;
  void *status;
  assert_int_equal(pthread_create(&thread, NULL, wait_for_all, scene), 0);
  finish(scene, 0, ZENPS_OK);
  close_job(scene);
  pthread_join(thread, &status);
  assert_int_equal((intptr_t)status, ZENPS_ERR_CLOSED);
}

/* ------------------------------------------------------------ kept */

enum { FEW = 10 };

/* An operation whose `out` has arrays of the caller's that are too small. */
static void truncate_result(struct scene *scene, unsigned i) {
  zenps_grad_t theirs = scene->out;
  int64_t id;
  theirs.row_ids = &id;
  zps_result_init(&scene->requests[i]->result, &theirs, 2 * sizeof(float));
  finish_with(scene, i, ZENPS_ERR_TRUNCATED, FEW);
}

static void test_a_kept_result_is_fetched(void **state) {
  struct scene *scene = *state;
  int64_t ids[FEW];
  float values[2 * FEW];
  zenps_grad_t out = scene->out, rows;
  ZENPS_GRAD_INIT(&rows);
  assert_int_equal(zenps_request_fetch(scene->requests[0], &out), ZENPS_ERR_BUSY);
  truncate_result(scene, 0);
  truncate_result(scene, 1);
  finish(scene, 2, ZENPS_ERR_TIMEOUT);
  finish(scene, 3, ZENPS_OK);
  zenps_request_t *const request = scene->requests[0];
  assert_int_equal(zenps_wait(request, -1), ZENPS_ERR_TRUNCATED);
  assert_int_equal(zenps_request_error(request)->needed, FEW);
  assert_int_equal(zenps_request_take(request, &rows), ZENPS_ERR_TRUNCATED);
  out.row_ids = ids;
  out.values = values;
  out.capacity = FEW - 1;
  assert_int_equal(zenps_request_fetch(request, &out), ZENPS_ERR_TRUNCATED);
  assert_int_equal(zenps_last_error()->needed, FEW);
  assert_non_null(strstr(zenps_last_error()->text, "hold 9"));
  assert_int_equal(zenps_test(request), ZENPS_ERR_TRUNCATED);
  out.capacity = FEW;
  close_job(scene); /* it is kept all the same */
  assert_int_equal(zenps_request_fetch(request, &out), ZENPS_OK);
  check_rows(&out, 0, FEW);
  assert_int_equal(zenps_test(request), ZENPS_OK);
  assert_null(zenps_request_error(request));
  assert_int_equal(zenps_request_fetch(request, &out), ZENPS_ERR_INVALID); /* once */
  assert_int_equal(zenps_request_take(request, &rows), ZENPS_ERR_INVALID);

  out = scene->out; /* the library's arrays, which can be taken, too */
  assert_int_equal(zenps_request_fetch(scene->requests[1], &out), ZENPS_OK);
  check_rows(&out, 1, FEW);
  assert_int_equal(zenps_request_take(scene->requests[1], &rows), ZENPS_OK);
  assert_ptr_equal(rows.values, out.values);
  zenps_rows_free(&rows);
  assert_int_equal(zenps_request_fetch(scene->requests[2], &out), ZENPS_ERR_TIMEOUT);
  assert_int_equal(zenps_request_fetch(scene->requests[3], &out), ZENPS_ERR_INVALID);
}

static void test_nowhere_to_fetch_it_to(void **state) {
  struct scene *scene = *state;
  int64_t id;
  zenps_grad_t out = scene->out, bad = {0};
  for (unsigned i = 0; i < REQUESTS; i++) truncate_result(scene, i);
  zenps_request_t *const request = scene->requests[0];
  assert_int_equal(zenps_request_fetch(NULL, &out), ZENPS_ERR_INVALID);
  assert_int_equal(zenps_request_fetch(request, NULL), ZENPS_ERR_INVALID);
  assert_int_equal(zenps_request_fetch(request, &bad), ZENPS_ERR_INVALID);
  out.layout = ZENPS_DENSE;
  assert_int_equal(zenps_request_fetch(request, &out), ZENPS_ERR_INVALID);
  out = scene->out;
  out.row_ids = &id;
  assert_int_equal(zenps_request_fetch(request, &out), ZENPS_ERR_INVALID);
  out = scene->out;
  out.memory = ZENPS_DEVICE;
  assert_int_equal(zenps_request_fetch(request, &out), ZENPS_ERR_UNSUPPORTED);
  assert_non_null(strstr(zenps_last_error()->text, "tensor t, step 0"));
  assert_int_equal(zenps_test(request), ZENPS_ERR_TRUNCATED);
}

/* ------------------------------------------------------------ taken */

static void test_taken_rows_outlive_request_and_job(void **state) {
  struct scene *scene = *state;
  zenps_grad_t rows[REQUESTS];
  for (unsigned i = 0; i < REQUESTS; i++) {
    ZENPS_GRAD_INIT(&rows[i]);
    assert_int_equal(zenps_request_take(scene->requests[i], &rows[i]), ZENPS_ERR_BUSY);
    finish_with(scene, i, ZENPS_OK, 50000 * i); /* none in the first one */
    assert_int_equal(zenps_request_take(scene->requests[i], &rows[i]), ZENPS_OK);
    assert_int_equal(rows[i].capacity, rows[i].nnz);
    assert_int_equal(zenps_test(scene->requests[i]), ZENPS_OK);
  }
  assert_int_equal(zenps_request_take(scene->requests[1], &rows[1]), ZENPS_ERR_INVALID);
  zenps_rows_free(&rows[1]); /* before the request */
  for (unsigned i = 0; i < REQUESTS; i++) {
    zenps_request_free(scene->requests[i]);
    scene->requests[i] = NULL;
  }
  zenps_rows_free(&rows[2]); /* before the job */
  close_job(scene);
  check_rows(&rows[3], 3, 150000);
  check_rows(&rows[0], 0, 0);
  for (unsigned i = 0; i < REQUESTS; i++) { /* after it, and once */
    zenps_rows_free(&rows[i]);
    assert_null(rows[i].row_ids);
    assert_int_equal(rows[i].nnz, 0);
    zenps_rows_free(&rows[i]);
  }
  zenps_rows_free(NULL);
}

static void test_arrays_come_back_to_their_tensor(void **state) {
  struct scene *scene = *state;
  zenps_grad_t rows;
  ZENPS_GRAD_INIT(&rows);
  for (unsigned i = 0; i < REQUESTS; i++) finish(scene, i, ZENPS_OK);
  assert_int_equal(zenps_request_take(scene->requests[0], &rows), ZENPS_OK);
  const void *const values = rows.values;
  zenps_rows_free(&rows);
  assert_ptr_equal(scene->tensor->core.arrays->spare[0].values.data, values);
}

static void test_nothing_to_take(void **state) {
  struct scene *scene = *state;
  zenps_grad_t rows, theirs, bad = {0};
  int64_t id;
  ZENPS_GRAD_INIT(&rows);
  theirs = scene->out;
  theirs.row_ids = &id;
  zps_result_init(&scene->requests[1]->result, &theirs, 8);
  theirs.layout = ZENPS_DENSE;
  zps_result_init(&scene->requests[2]->result, &theirs, 8);
  for (unsigned i = 0; i < REQUESTS; i++) finish(scene, i, i == 3 ? ZENPS_ERR_TIMEOUT : ZENPS_OK);
  assert_int_equal(zenps_request_take(NULL, &rows), ZENPS_ERR_INVALID);
  assert_int_equal(zenps_request_take(scene->requests[0], NULL), ZENPS_ERR_INVALID);
  assert_int_equal(zenps_request_take(scene->requests[0], &bad), ZENPS_ERR_INVALID);
  assert_int_equal(zenps_request_take(scene->requests[1], &rows), ZENPS_ERR_INVALID);
  assert_int_equal(zenps_request_take(scene->requests[2], &rows), ZENPS_ERR_INVALID);
  assert_int_equal(zenps_request_take(scene->requests[3], &rows), ZENPS_ERR_TIMEOUT);
  assert_null(rows.taken);
}

/* ------------------------------------------------------------ the log */

static void count_line(void *ctx, int level, const char *component, const char *text) {
  (void)level, (void)component, (void)text;
  ++*(unsigned *)ctx;
}

static void test_the_log_is_given_and_taken_back(void **state) {
  struct scene *scene = *state;
  unsigned n = 0, others = 0;
  zps_log_set_level(ZPS_LOG_INFO);
  assert_int_equal(zenps_set_log(NULL, count_line, &n), ZENPS_ERR_INVALID);
  assert_int_equal(zenps_set_log(scene->job, count_line, &n), ZENPS_OK);
  zps_log_warn("a line");
  assert_int_equal(zenps_set_log(scene->job, count_line, &others), ZENPS_OK);
  assert_int_equal(n, 1);
  zps_log_warn("a line");
  assert_int_equal(zenps_set_log(scene->job, NULL, NULL), ZENPS_OK);
  zps_log_info("a line on stderr");
  assert_int_equal(n, 1);
  assert_int_equal(others, 1);
  for (unsigned i = 0; i < REQUESTS; i++) finish(scene, i, ZENPS_OK);
}

static struct zps_rank_report news; /* of the last report */
static unsigned n_told;

zps_err_t __wrap_zps_membership_stats(struct zps_membership *membership, const struct zps_rank_report *told,
                                      zps_json *tensors);
zps_err_t __wrap_zps_membership_stats(struct zps_membership *membership, const struct zps_rank_report *told,
                                      zps_json *tensors) {
  (void)membership;
  news = *told;
  n_told++;
  zps_json_unref(tensors);
  return ZPS_OK;
}

struct zps_mishaps __wrap_zps_engine_mishaps(const struct zps_engine *engine);
struct zps_mishaps __wrap_zps_engine_mishaps(const struct zps_engine *engine) {
  (void)engine;
  return (struct zps_mishaps){0};
}

struct zps_load __wrap_zps_load_measure(struct zps_load_probe *probe, uint64_t now_ns);
struct zps_load __wrap_zps_load_measure(struct zps_load_probe *probe, uint64_t now_ns) {
  (void)probe, (void)now_ns;
  return (struct zps_load){.busy = 70, .starved = 20};
}

/* The word of a first error goes out at once, and takes the place of the report before it. */
static void test_a_first_error_tells_the_load_too(void **state) {
  struct scene *scene = *state;
  struct zenps_job *const job = scene->job;
  zps_telemetry_init(&job->telemetry);
  atomic_store(&job->telemetry.on, true);
  job->first.error.code = ZPS_ERR_MISSING;
  zps_telemetry_beat(job);
  pthread_mutex_lock(&job->lock);
  job->first.error.code = ZPS_ERR_CANCELED;
  zps_telemetry_failed(job);
  job->first.error.code = job->first.told = ZPS_OK;
  pthread_mutex_unlock(&job->lock);
  assert_int_equal(news.first.code, ZPS_ERR_CANCELED);
  assert_int_equal(news.load.busy, 70);
  assert_int_equal(news.load.starved, 20);
  zps_telemetry_fini(&job->telemetry);
  for (unsigned i = 0; i < REQUESTS; i++) finish(scene, i, ZENPS_OK);
}

/* There is no engine: its thread is this one. */
void __wrap_zps_engine_post(struct zps_engine *engine, struct zps_command *command);
void __wrap_zps_engine_post(struct zps_engine *engine, struct zps_command *command) {
  (void)engine;
  command->run(command, NULL);
}

/* Rank 3 is awaited by all rounds. */
static uint32_t awaited(const struct zps_round *round, uint32_t *ranks, uint32_t max) {
  (void)round;
  assert_true(max > 0);
  ranks[0] = 3;
  return 1;
}

/* Rounds between ranks are reported while they are old, the oldest ones; then that there are none, once. */
static void test_old_rounds_are_reported(void **state) {
  enum { ROUNDS = ZPS_RANK_ROUNDS_MAX + 2 };
  static const struct zps_round_ops between = {.awaited = awaited}, served = {.awaited = NULL};
  struct scene *scene = *state;
  struct zenps_job *const job = scene->job;
  struct zps_round_machine machine = {.state = ZPS_MACHINE_EXCHANGING}, over = {.state = ZPS_MACHINE_DONE};
  struct zps_round rounds[ROUNDS] = {{.ops = NULL}};
  const uint64_t now_ns = zps_clock_ns();
  for (unsigned i = 0; i < ROUNDS; i++) {
    rounds[i].ops = &between;
    rounds[i].machine = &machine;
    rounds[i].tensor = &job->tensors->core;
    rounds[i].step = i;
    rounds[i].start_ns = now_ns - (2 + (i * 5) % ROUNDS) * ZPS_NS_PER_S; /* in no order */
    rounds[i].deadline_ns = now_ns + 60 * ZPS_NS_PER_S;
    rounds[i].all_next = i + 1 < ROUNDS ? &rounds[i + 1] : NULL;
  }
  rounds[1].machine = &over;
  rounds[2].ops = &served;
  zps_telemetry_init(&job->telemetry);
  atomic_store(&job->telemetry.on, true);
  job->options.telemetry_ms = 3600000;
  job->telemetry.told_ns = now_ns;
  job->rounds.all = rounds;
  job->tensors->n_active++;
  n_told = 0;
  zps_telemetry_beat(job);
  assert_int_equal(n_told, 1);
  assert_int_equal(news.n_rounds, ROUNDS - 2);
  for (unsigned i = 0; i + 1 < news.n_rounds; i++) assert_true(news.rounds[i].age_ms > news.rounds[i + 1].age_ms);
  assert_true(news.rounds[0].n_ranks == 1 && news.rounds[0].ranks[0] == 3 && news.rounds[0].age_ms >= 2000);
  assert_in_range(news.rounds[0].left_ms, 1, 60000);
  rounds[1].machine = &machine;
  rounds[2].ops = &between;
  zps_telemetry_beat(job);
  assert_int_equal(news.n_rounds, ZPS_RANK_ROUNDS_MAX);
  assert_int_equal(news.rounds[0].age_ms / 1000, ROUNDS + 1);
  for (unsigned i = 0; i < ROUNDS; i++) rounds[i].start_ns = zps_clock_ns();
  zps_telemetry_beat(job);
  assert_int_equal(n_told, 3);
  assert_int_equal(news.n_rounds, 0);
  zps_telemetry_beat(job);
  assert_int_equal(n_told, 3);
  job->rounds.all = NULL;
  job->tensors->n_active--;
  zps_telemetry_fini(&job->telemetry);
  for (unsigned i = 0; i < REQUESTS; i++) finish(scene, i, ZENPS_OK);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_what_is_seen_later_counts_later, scene_setup, scene_teardown),
      cmocka_unit_test_setup_teardown(test_all_are_waited_for, scene_setup, scene_teardown),
      cmocka_unit_test_setup_teardown(test_the_first_error_in_the_array, scene_setup, scene_teardown),
      cmocka_unit_test_setup_teardown(test_another_thread_ends_them, scene_setup, scene_teardown),
      cmocka_unit_test_setup_teardown(test_bad_arguments, scene_setup, scene_teardown),
      cmocka_unit_test_setup_teardown(test_a_trainers_own_error_is_the_first, scene_setup, scene_teardown),
      cmocka_unit_test_setup_teardown(test_what_was_done_outlives_the_job, scene_setup, scene_teardown),
      cmocka_unit_test_setup_teardown(test_what_was_not_is_closed, scene_setup, scene_teardown),
      cmocka_unit_test_setup_teardown(test_a_thread_that_waits_is_told, scene_setup, scene_teardown),
      cmocka_unit_test_setup_teardown(test_a_kept_result_is_fetched, scene_setup, scene_teardown),
      cmocka_unit_test_setup_teardown(test_nowhere_to_fetch_it_to, scene_setup, scene_teardown),
      cmocka_unit_test_setup_teardown(test_taken_rows_outlive_request_and_job, scene_setup, scene_teardown),
      cmocka_unit_test_setup_teardown(test_arrays_come_back_to_their_tensor, scene_setup, scene_teardown),
      cmocka_unit_test_setup_teardown(test_nothing_to_take, scene_setup, scene_teardown),
      cmocka_unit_test_setup_teardown(test_old_rounds_are_reported, scene_setup, scene_teardown),
      cmocka_unit_test_setup_teardown(test_a_first_error_tells_the_load_too, scene_setup, scene_teardown),
      cmocka_unit_test_setup_teardown(test_the_log_is_given_and_taken_back, scene_setup, scene_teardown),
  };
  return cmocka_run_group_tests_name("requests", tests, NULL, NULL);
}
