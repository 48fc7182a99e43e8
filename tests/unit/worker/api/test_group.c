/* Groups of ranks, as far as a rank can tell without the others: lists, names, and the groups that tensors may be of.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "worker/api/job.h"
#include "worker/api/tensor_impl.h"

/* Rank 2 of 4, without connections. */
static int scene_setup(void **state) {
  struct zenps_job *job = calloc(1, sizeof *job);
  if (!job) return -1;
  *state = job;
  job->pid = getpid();
  job->options.world = 4;
  job->options.rank = 2;
  job->options.threads = 1;
  job->options.job = strdup("run");
  pthread_mutex_init(&job->lock, NULL);
  return job->options.job ? 0 : -1;
}

static int scene_teardown(void **state) {
  struct zenps_job *job = *state;
  zps_groups_destroy(job->groups);
  pthread_mutex_destroy(&job->lock);
  free(job->options.job);
  free(job);
  return 0;
}

static void refused(struct zenps_job *job, const char *name, const int *ranks, uint32_t n, const char *says) {
  zenps_group_t *group = NULL;
  assert_int_equal(zenps_group_open(job, name, ranks, n, &group), ZENPS_ERR_INVALID);
  assert_null(group);
  if (!strstr(zenps_last_error()->text, says)) fail_msg("\"%s\" does not say \"%s\"", zenps_last_error()->text, says);
}

static void test_lists_and_names(void **state) {
  struct zenps_job *job = *state;
  char long_name[ZPS_GROUP_NAME_MAX + 2];
  memset(long_name, 'g', sizeof long_name);
  long_name[sizeof long_name - 1] = '\0';
  refused(job, "g", (const int[]){2, 4}, 2, "group g: ranks[1] is 4, in a world of 4");
  refused(job, "g", (const int[]){-1, 2}, 2, "group g: ranks[0] is -1");
  refused(job, "g", (const int[]){2, 0, 2}, 3, "group g: rank 2 is in its list twice");
  refused(job, "g", (const int[]){0, 1}, 2, "group g: rank 2 opens it, but is none of its ranks");
  refused(job, "g", (const int[]){2}, 0, "group g: 0 ranks; 1 to 4 can be");
  refused(job, "g", (const int[]){0, 1, 2, 3, 0}, 5, "5 ranks; 1 to 4");
  refused(job, "", (const int[]){2}, 1, "it must have 1 to 120");
  refused(job, "@links", (const int[]){2}, 1, "starts with '@'");
  refused(job, long_name, (const int[]){2}, 1, "it must have 1 to 120");
  refused(NULL, "g", (const int[]){2}, 1, "is NULL");
  refused(job, "g", NULL, 1, "is NULL");
  assert_int_equal(zenps_group_barrier(NULL), ZENPS_ERR_INVALID);
  assert_int_equal(zenps_group_broadcast(NULL, long_name, 1, 0), ZENPS_ERR_INVALID);
  assert_int_equal(zenps_group_close(NULL), ZENPS_OK);
}

static struct zenps_group *add_group(struct zenps_job *job, const char *name) {
  struct zenps_group *group = calloc(1, sizeof *group + 2 * sizeof group->ranks[0]);
  assert_non_null(group);
  *group = (struct zenps_group){.job = job, .next = job->groups, .is_open = true, .n_ranks = 2};
  strcpy(group->name, name);
  group->ranks[0] = 2;
  group->ranks[1] = 3;
  pthread_mutex_init(&group->collective.lock, NULL);
  job->groups = group;
  return group;
}

static zps_err_t ask(struct zenps_job *job, struct zenps_group *group, struct zps_tensor_ask *asked,
                     struct zps_error *error) {
  zenps_tensor_options_t options;
  ZENPS_TENSOR_OPTIONS_INIT(&options);
  options.scheme = "balanced";
  options.group = group;
  return zps_tensor_ask_make(job, "w", 10, 1, ZPS_DTYPE_F32, &options, asked, error);
}

/* A pointer that is none of the job's groups is never followed. */
static void test_groups_that_tensors_may_be_of(void **state) {
  struct zenps_job *job = *state;
  struct zps_tensor_ask asked;
  struct zps_error error;
  struct zenps_group *row = add_group(job, "row"), *column = add_group(job, "column");
  assert_int_equal(ask(job, row, &asked, &error), ZPS_OK);
  assert_string_equal(asked.spec.group, "row");
  assert_ptr_equal(asked.group, row);
  assert_int_equal(ask(job, NULL, &asked, &error), ZPS_OK);
  assert_string_equal(asked.spec.group, "");
  column->is_open = false;
  assert_int_equal(ask(job, column, &asked, &error), ZPS_ERR_INVALID);
  assert_string_equal(error.text, "tensor w: the group is none that this job has open");
  assert_int_equal(ask(job, (struct zenps_group *)(uintptr_t)8, &asked, &error), ZPS_ERR_INVALID);
  assert_int_equal(zenps_group_close(column), ZENPS_ERR_INVALID);
  assert_non_null(strstr(zenps_last_error()->text, "column is closed already"));
}

/* Names of tensors are their group's. */
static void test_names_within_groups(void **state) {
  struct zenps_job *job = *state;
  struct zenps_group *row = add_group(job, "row"), *column = add_group(job, "column");
  struct zenps_tensor tensors[2] = {{.core.name = "w", .group = row}, {.core.name = "w"}};
  tensors[0].next = &tensors[1];
  job->tensors = tensors;
  assert_ptr_equal(zps_worker_tensor_find(job, row, "w"), &tensors[0]);
  assert_ptr_equal(zps_worker_tensor_find(job, NULL, "w"), &tensors[1]);
  assert_null(zps_worker_tensor_find(job, column, "w"));
  job->tensors = NULL;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_lists_and_names, scene_setup, scene_teardown),
      cmocka_unit_test_setup_teardown(test_groups_that_tensors_may_be_of, scene_setup, scene_teardown),
      cmocka_unit_test_setup_teardown(test_names_within_groups, scene_setup, scene_teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
