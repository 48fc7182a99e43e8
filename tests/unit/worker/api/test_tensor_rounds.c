/* A tensor's spare rounds: taken again, and given up when no request takes them for a while. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "worker/api/job.h"
#include "worker/api/operation.h"
#include "worker/api/request.h"
#include "worker/api/tensor.h"
#include "worker/round/round.h"
#include "worker/served/kinds.h"
#include "worker/served/served.h"

/* A job without connections, with two tensors. */
struct scene {
  struct zenps_job job;
  struct zenps_tensor tensors[2];
  uint32_t owners[8];
};

static int scene_setup(void **state) {
  struct scene *scene = calloc(1, sizeof *scene);
  if (!scene) return -1;
  *state = scene;
  scene->job.refs = 1;
  scene->job.pid = getpid();
  scene->job.plane.n_servers = 1;
  zps_rounds_init(&scene->job.rounds, &scene->job.plane);
  pthread_mutex_init(&scene->job.lock, NULL);
  pthread_cond_init(&scene->job.done, NULL);
  for (unsigned i = 0; i < 2; i++) {
    struct zenps_tensor *tensor = &scene->tensors[i];
    *tensor = (struct zenps_tensor){.job = &scene->job,
                                    .core = {.id = i,
                                             .rounds = &scene->job.rounds,
                                             .ops = &zps_served_ops,
                                             .served = zps_served_kind_find("balanced"),
                                             .width = 2,
                                             .dtype = ZPS_DTYPE_F32,
                                             .owners = scene->owners,
                                             .shape.width = 2}};
    assert_int_equal(zps_row_arrays_pool_create(&tensor->core.arrays), ZPS_OK);
    if (zps_partition_init(&tensor->core.part, 1000, 8, 0, 1, NULL) != ZPS_OK) return -1;
    tensor->next = scene->job.tensors;
    scene->job.tensors = tensor;
  }
  return zps_workpool_create(1, "test", &scene->job.plane.pool) == ZPS_OK ? 0 : -1;
}

static int scene_teardown(void **state) {
  struct scene *scene = *state;
  for (unsigned i = 0; i < 2; i++) {
    zps_worker_tensor_rounds_destroy(&scene->tensors[i]);
    zps_row_arrays_pool_close(scene->tensors[i].core.arrays);
  }
  zps_workpool_destroy(scene->job.plane.pool);
  pthread_mutex_destroy(&scene->job.lock);
  pthread_cond_destroy(&scene->job.done);
  free(scene);
  return 0;
}

static struct zps_round *take(struct zenps_tensor *tensor, uint64_t step) {
  struct zps_round *round = NULL;
  assert_int_equal(zps_worker_tensor_round_get(tensor, step, false, false, &round), ZPS_OK);
  return round;
}

static void put(struct zps_round *round) {
  round->owner->released(round);
}

static unsigned spares(const struct zenps_tensor *tensor) {
  unsigned n = 0;
  for (const struct zps_round *round = tensor->spare; round; round = round->tensor_next) n++;
  return n;
}

static void give_arrays(struct zenps_tensor *tensor) {
  struct zps_row_arrays arrays;
  assert_int_equal(zps_row_arrays_take(tensor->core.arrays, 10, 8, &arrays), ZPS_OK);
  zps_row_arrays_give(&arrays);
  assert_non_null(tensor->core.arrays->spare[0].rows.data);
}

static void test_a_spare_round_is_taken_again(void **state) {
  struct scene *scene = *state;
  struct zenps_tensor *tensor = &scene->tensors[0];
  struct zps_round *round = take(tensor, 1), *busy = NULL;
  assert_int_equal(zps_worker_tensor_round_get(tensor, 1, false, false, &busy), ZPS_ERR_BUSY);
  put(round);
  assert_ptr_equal(take(tensor, 2), round);
  assert_ptr_not_equal(take(tensor, 3), round);
  assert_int_equal(spares(tensor), 0);
}

static void test_what_nobody_wants_is_given_up(void **state) {
  struct scene *scene = *state;
  struct zenps_job *job = &scene->job;
  struct zenps_tensor *left = &scene->tensors[0], *used = &scene->tensors[1];
  struct zps_round *first = take(left, 1), *second = take(left, 2), *third = take(used, 1);
  give_arrays(left);
  give_arrays(used);
  assert_int_equal(job->rounds.idle_at_ns, ZPS_NEVER); /* nothing is spare */
  const uint64_t start_ns = zps_clock_ns();
  put(first);
  put(second);
  put(third);
  const uint64_t end_ns = zps_clock_ns(), idle_ns = job->rounds.idle_at_ns - first->spare_since_ns;
  assert_true(job->rounds.idle_at_ns >= start_ns + idle_ns && job->rounds.idle_at_ns <= end_ns + idle_ns);
  assert_true(idle_ns >= 10 * ZPS_NS_PER_S); /* longer than steps are apart */

  /* No spare round goes before its time; then they go one after the other, but not rounds in use. */
  assert_int_equal(zps_worker_tensors_age(job, first->spare_since_ns + idle_ns - 1), first->spare_since_ns + idle_ns);
  assert_int_equal(spares(left), 2);
  assert_ptr_equal(take(used, 2), third);
  const uint64_t late_ns = end_ns + idle_ns;
  assert_int_equal(zps_worker_tensors_age(job, late_ns), late_ns);
  assert_int_equal(spares(left), 1);
  assert_non_null(left->core.arrays->spare[0].rows.data);
  assert_int_equal(zps_worker_tensors_age(job, late_ns), late_ns);
  assert_int_equal(spares(left), 0);
  assert_null(left->core.arrays->spare[0].rows.data); /* arrays of its results are freed, too */
  assert_int_equal(zps_worker_tensors_age(job, late_ns), ZPS_NEVER);
  assert_non_null(used->core.arrays->spare[0].rows.data);

  /* Its time begins when it is given back, and the tensor that was left has a new one. */
  job->rounds.idle_at_ns = ZPS_NEVER;
  put(third);
  assert_true(job->rounds.idle_at_ns >= end_ns + idle_ns);
  assert_int_equal(zps_worker_tensors_age(job, job->rounds.idle_at_ns - 1), job->rounds.idle_at_ns);
  assert_int_equal(spares(used), 1);
  put(take(left, 3));
  assert_int_equal(spares(left), 1);
}

static void test_trimmed_they_go_sooner(void **state) {
  struct scene *scene = *state;
  struct zenps_job *job = &scene->job;
  struct zenps_tensor *tensor = &scene->tensors[0];
  const uint64_t soon_ns = ZPS_NS_PER_S;
  struct zps_round *first = take(tensor, 1), *second = take(tensor, 2);
  put(first);
  const uint64_t now_ns = first->spare_since_ns;
  zps_worker_tensors_trim(job, soon_ns, now_ns);
  assert_int_equal(job->rounds.idle_at_ns, now_ns);
  assert_int_equal(zps_worker_tensors_age(job, now_ns), now_ns + soon_ns);
  assert_int_equal(zps_worker_tensors_age(job, now_ns + soon_ns - 1), now_ns + soon_ns);
  assert_int_equal(spares(tensor), 1);
  assert_int_equal(zps_worker_tensors_age(job, now_ns + soon_ns), now_ns + soon_ns);
  assert_int_equal(spares(tensor), 0);
  job->rounds.idle_at_ns = ZPS_NEVER;
  put(second);
  assert_int_equal(job->rounds.idle_at_ns, second->spare_since_ns + soon_ns);
  /* Half a minute later they are kept as before. */
  second->spare_since_ns = job->spares.trim_until_ns;
  assert_true(zps_worker_tensors_age(job, job->spares.trim_until_ns + soon_ns) >=
              job->spares.trim_until_ns + 10 * soon_ns);
  assert_int_equal(spares(tensor), 1);
}

static void test_memory_of_devices_stays(void **state) {
  struct scene *scene = *state;
  struct zenps_tensor *tensor = &scene->tensors[0];
  struct zps_round *round = take(tensor, 1);
  put(round);
  round->device = (struct zps_worker_device *)&scene->job; /* only compared */
  assert_int_equal(zps_worker_tensors_age(&scene->job, zps_clock_ns() + 3600 * ZPS_NS_PER_S), ZPS_NEVER);
  assert_int_equal(spares(tensor), 1);
  round->device = NULL;
}

/* How long the round of an operation with such a deadline has. */
static uint64_t time_left(struct zenps_tensor *tensor, uint64_t step, uint64_t deadline_ns) {
  struct zps_operation operation = {.deadline_ns = deadline_ns};
  struct zenps_job *const job = tensor->job;
  struct zenps_request *request;
  struct zps_round *round;
  job->unseen = NULL;
  job->unseen_last_p = &job->unseen;
  assert_int_equal(zps_worker_request_create(tensor, &request), ZPS_OK);
  assert_int_equal(zps_worker_operation_begin(tensor, step, request, &operation, &round), ZENPS_OK);
  assert_non_null(round); /* it would be launched only now */
  const uint64_t left_ns = round->deadline_ns - round->start_ns;
  put(round);
  zps_worker_request_destroy(request);
  return left_ns;
}

/* What waited for its scheme has what that has left it, and no timeout of its own. */
static void test_an_operation_that_waited_has_less_time(void **state) {
  struct scene *scene = *state;
  struct zenps_tensor *tensor = &scene->tensors[0];
  scene->job.options.round_timeout_ms = 60000;
  assert_int_equal(time_left(tensor, 1, 0), 60 * ZPS_NS_PER_S);
  const uint64_t before_ns = zps_clock_ns();
  const uint64_t left_ns = time_left(tensor, 2, before_ns + 40 * ZPS_NS_PER_S);
  assert_true(left_ns <= 40 * ZPS_NS_PER_S);
  assert_true(left_ns + ZPS_NS_PER_MS + (zps_clock_ns() - before_ns) >= 40 * ZPS_NS_PER_S);
  assert_int_equal(time_left(tensor, 3, 1), ZPS_NS_PER_MS); /* it is over at once, as one that is late */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_a_spare_round_is_taken_again, scene_setup, scene_teardown),
      cmocka_unit_test_setup_teardown(test_what_nobody_wants_is_given_up, scene_setup, scene_teardown),
      cmocka_unit_test_setup_teardown(test_trimmed_they_go_sooner, scene_setup, scene_teardown),
      cmocka_unit_test_setup_teardown(test_memory_of_devices_stays, scene_setup, scene_teardown),
      cmocka_unit_test_setup_teardown(test_an_operation_that_waited_has_less_time, scene_setup, scene_teardown),
  };
  return cmocka_run_group_tests_name("tensor_rounds", tests, NULL, NULL);
}
