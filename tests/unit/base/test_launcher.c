/* The rank of a process, by the variables that launchers leave in its environment. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/launcher.h"

static const char *const variables[] = {"RANK",
                                        "WORLD_SIZE",
                                        "LOCAL_RANK",
                                        "LOCAL_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_LOCAL_RANK",
                                        "OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "PMI_RANK",
                                        "PMI_SIZE",
                                        "MPI_LOCALRANKID",
                                        "MPI_LOCALNRANKS",
                                        "PMIX_RANK",
                                        "PMIX_NAMESPACE",
                                        "SLURM_PROCID",
                                        "SLURM_NODEID",
                                        "SLURM_LOCALID",
                                        "SLURM_NTASKS",
                                        "SLURM_JOB_ID",
                                        "SLURM_STEP_ID",
                                        "SLURM_STEP_NUM_TASKS",
                                        "SLURM_STEP_TASKS_PER_NODE",
                                        "TORCHELASTIC_RUN_ID",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "JOBSET_NAME",
                                        "ZENPS_HOST"};

/* "NAME=VALUE ..." is all that the environment has of these. */
static void environment(const char *text) {
  char copy[600], *rest = NULL;
  for (unsigned i = 0; i < sizeof variables / sizeof variables[0]; i++) unsetenv(variables[i]);
  strcpy(copy, text);
  for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
    char *const value = strchr(word, '=');
    *value = '\0';
    setenv(word, value + 1, 1);
  }
}

static void is(const char *text, const char *name, uint64_t rank, uint64_t world, uint64_t local_world) {
  struct zps_launcher launcher;
  struct zps_error error = {.text = ""};
  environment(text);
  const zps_err_t err = zps_launcher_find(&launcher, &error);
  assert_string_equal(error.text, "");
  assert_int_equal(err, ZPS_OK);
  if (name) {
    assert_non_null(launcher.name);
    assert_string_equal(launcher.name, name);
  } else {
    assert_null(launcher.name);
  }
  assert_int_equal(launcher.rank, rank);
  assert_int_equal(launcher.world, world);
  assert_int_equal(launcher.local_world, local_world);
}

static void refused(const char *text, const char *part) {
  struct zps_launcher launcher;
  struct zps_error error = {.text = ""};
  environment(text);
  assert_int_equal(zps_launcher_find(&launcher, &error), ZPS_ERR_INVALID);
  if (!strstr(error.text, part)) fail_msg("'%s' says nothing of '%s'", error.text, part);
  assert_non_null(strstr(error.text, "ZENPS_RANK"));
}

static void test_each_launcher(void **state) {
  (void)state;
  is("", NULL, 0, 1, 0);
  is("RANK=3 WORLD_SIZE=8 LOCAL_WORLD_SIZE=4", "torchrun", 3, 8, 4);
  is("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=1 PMIX_RANK=1", "mpirun", 1, 2, 1);
  is("PMI_RANK=5 PMI_SIZE=6 MPI_LOCALNRANKS=3", "mpirun", 5, 6, 3);
  is("SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=5 SLURM_STEP_ID=0 SLURM_NTASKS=5 SLURM_NODEID=1 "
     "SLURM_STEP_TASKS_PER_NODE=2(x2),1",
     "srun", 2, 5, 2);
}

static void test_the_innermost_counts(void **state) {
  (void)state;
#define STEP "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_ID=0 SLURM_NTASKS=2 "
  is(STEP "OMPI_COMM_WORLD_RANK=7 OMPI_COMM_WORLD_SIZE=16", "mpirun", 7, 16, 0); /* the step is of its daemons */
  is(STEP "RANK=9 WORLD_SIZE=16", "torchrun", 9, 16, 0);
  is(STEP "RANK= WORLD_SIZE=", "srun", 1, 2, 0); /* empty is unset */
}

static void test_tasks_of_nodes(void **state) {
  (void)state;
#define ON(node, list) \
  "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=9 SLURM_STEP_ID=0 SLURM_NODEID=" #node " SLURM_STEP_TASKS_PER_NODE=" list
  is(ON(0, "9"), "srun", 0, 9, 9);
  is(ON(1, "4,3,2"), "srun", 0, 9, 3);
  is(ON(2, "4(x2),1"), "srun", 0, 9, 1);
  is(ON(3, "4(x2),1"), "srun", 0, 9, 0); /* no such node: unknown */
  is(ON(0, "4(x"), "srun", 0, 9, 0);
  is(ON(0, "10"), "srun", 0, 9, 0); /* more than there are */
}

static void local(const char *text, int64_t local_rank) {
  struct zps_launcher launcher;
  struct zps_error error;
  environment(text);
  assert_int_equal(zps_launcher_find(&launcher, &error), ZPS_OK);
  assert_int_equal(launcher.local_rank, local_rank);
}

static void test_place_on_the_host(void **state) {
  (void)state;
  local("", -1);
  local("RANK=3 WORLD_SIZE=8", -1);
  local("RANK=3 WORLD_SIZE=8 LOCAL_RANK=1", 1);
  local("RANK=3 WORLD_SIZE=8 LOCAL_RANK=8", -1); /* no such place: unknown */
  local("RANK=3 WORLD_SIZE=8 LOCAL_RANK=x", -1);
  local("OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=2", 2);
  local("PMI_RANK=5 PMI_SIZE=8 MPI_LOCALRANKID=3", 3);
  local(STEP "SLURM_LOCALID=1", 1);
}

static void test_nobody_is_rank_0_by_mistake(void **state) {
  (void)state;
  refused("RANK=0", "no WORLD_SIZE");
  refused("WORLD_SIZE=4", "no RANK");
  is("WORLD_SIZE=1", NULL, 0, 1, 0);
  refused("OMPI_COMM_WORLD_SIZE=4", "no OMPI_COMM_WORLD_RANK");
  refused("SLURM_NTASKS=4 SLURM_JOB_ID=7 SLURM_PROCID=0", "no step of srun's"); /* a batch script */
  is("SLURM_NTASKS=1 SLURM_JOB_ID=7 SLURM_PROCID=0", NULL, 0, 1, 0);
  refused("PMIX_RANK=3", "PMIX_RANK");
}

static void test_what_makes_no_sense(void **state) {
  (void)state;
  struct zps_launcher launcher;
  struct zps_error error;
  static const char *const wrong[] = {"RANK=x WORLD_SIZE=2",
                                      "RANK=-1 WORLD_SIZE=2",
                                      "RANK=2 WORLD_SIZE=2",
                                      "RANK=0 WORLD_SIZE=0",
                                      "RANK=0 WORLD_SIZE=4097",
                                      "RANK=1e0 WORLD_SIZE=2",
                                      "RANK=99999999999999999999 WORLD_SIZE=2"};
  for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    environment(wrong[i]);
    assert_int_equal(zps_launcher_find(&launcher, &error), ZPS_ERR_INVALID);
    assert_non_null(strstr(error.text, "RANK="));
    assert_non_null(strstr(error.text, "whole numbers"));
  }
}

static void named(const char *text, const char *name) {
  char got[ZPS_LAUNCHER_JOB_SIZE];
  environment(text);
  assert_int_equal(zps_launcher_job(got), name != NULL);
  if (name) assert_string_equal(got, name);
}

static void test_names_of_runs(void **state) {
  (void)state;
  named("", NULL);
  named("TORCHELASTIC_RUN_ID=run-17 MASTER_ADDR=a MASTER_PORT=1", "run-17");
  named("TORCHELASTIC_RUN_ID=none MASTER_ADDR=head MASTER_PORT=29500",
        "head:29500"); /* of every torchrun without an id */
  named("ZENPS_HOST=h1 TORCHELASTIC_RUN_ID=none MASTER_ADDR=127.0.0.1 MASTER_PORT=29500", "h1:29500");
  named("ZENPS_HOST=h2 MASTER_ADDR=localhost MASTER_PORT=29500", "h2:29500");
  named("TORCHELASTIC_RUN_ID=none", NULL);
  named("MASTER_ADDR=head", NULL);
  named("PMIX_NAMESPACE=prterun-1@1 SLURM_JOB_ID=7 SLURM_STEP_ID=0", "prterun-1@1");
  named("SLURM_JOB_ID=7 SLURM_STEP_ID=3", "slurm-7.3");
  named("SLURM_JOB_ID=7", NULL); /* several programs of a batch script are no run */
  named("JOBSET_NAME=nmt", "nmt");
  char text[400], got[ZPS_LAUNCHER_JOB_SIZE], other[ZPS_LAUNCHER_JOB_SIZE];
  snprintf(text, sizeof text, "TORCHELASTIC_RUN_ID=%0*d", 127, 1);
  environment(text);
  assert_true(zps_launcher_job(got) && strcmp(got, strchr(text, '=') + 1) == 0);
  snprintf(text, sizeof text, "TORCHELASTIC_RUN_ID=%0*d", 128, 1);
  environment(text);
  assert_true(zps_launcher_job(got) && strlen(got) == ZPS_LAUNCHER_JOB_MAX);
  snprintf(text, sizeof text, "TORCHELASTIC_RUN_ID=%0*d", 128, 2);
  environment(text);
  assert_true(zps_launcher_job(other) && strlen(other) == ZPS_LAUNCHER_JOB_MAX && strcmp(got, other) != 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_each_launcher),       cmocka_unit_test(test_the_innermost_counts),
      cmocka_unit_test(test_tasks_of_nodes),      cmocka_unit_test(test_place_on_the_host),
      cmocka_unit_test(test_what_makes_no_sense), cmocka_unit_test(test_nobody_is_rank_0_by_mistake),
      cmocka_unit_test(test_names_of_runs),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
