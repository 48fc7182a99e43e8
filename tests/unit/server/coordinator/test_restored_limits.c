/* Limits at a new start: those of the configuration bind what comes, and no record is larger than is read again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/server/coordinator/restored.h"

#define JOB_OF(servers)                                                                                             \
  "{\"what\":\"job\",\"job_id\":\"0x1\",\"name\":\"j\",\"seed\":\"0x2\",\"epoch\":7,\"next_tensor\":0,\"servers\":" \
  "[" servers "],\"ranks\":[" RANK("0") "," RANK("1") "]}"
#define TENSOR(number)                                                                                                 \
  "{\"what\":\"tensor\",\"job_id\":\"0x1\",\"tensor\":" number ",\"name\":\"w" number                                  \
  "\",\"rows\":4,\"width\":1,"                                                                                         \
  "\"dtype\":\"f32\",\"op\":\"sum\",\"partitions\":2,\"block_bits\":0,\"scheme\":{\"name\":\"balanced\"},\"owners\":[" \
  "0,"                                                                                                                 \
  "0],\"first_rank\":0,\"state\":\"open\"}"
#define GROUP(name) \
  "{\"what\":\"group\",\"job_id\":\"0x1\",\"group\":\"" name "\",\"first_rank\":0,\"ranks\":[0,1],\"left\":[]}"

/* The limit was lowered meanwhile: it is for tensors and groups that come. */
static void test_a_limit_that_was_lowered(void **state) {
  (void)state;
  static const char *const lines[] = {SERVER("0", "a"), JOB_OF("0"), TENSOR("0"), TENSOR("1"), GROUP("g"), GROUP("h")};
  struct zps_member_client clients[2] = {{.server = NULL}};
  struct zps_error error;
  restored_max_tensors = 1;
  struct zps_members *const members = restored_make_again(false, lines, 6);
  const struct zps_member_job *const job = restored_job(members);
  assert_true(job->n_tensors == 2 && job->n_groups == 2);
  restored_server_back(members, &clients[0], "a", 0x100);
  restored_rank_back(members, &clients[1], 0);
  struct zps_tensor_spec spec = *(const struct zps_tensor_spec *)&job->tensors[0]->spec;
  strcpy(spec.name, "third");
  assert_int_equal(zps_members_tensor_register(members, &clients[1], &spec, &clients[1], &error), ZPS_ERR_QUOTA);
  assert_string_equal(error.text, "job 'j' has 2 tensors, and a job may have 1 (job.max_tensors)");
  const uint32_t ranks[] = {0, 1};
  const struct zps_group_spec group = {.job_id = JOB, .name = "i", .ranks = ranks, .n_ranks = 2, .timeout_ms = 1000};
  assert_int_equal(zps_members_group_open(members, &clients[1], &group, &clients[1], 5, &error), ZPS_ERR_QUOTA);
  assert_string_equal(error.text, "job 'j' has 2 groups, and a job may have 1 (job.max_tensors)");
  restored_leave(members, clients, 2);
}

int main(void) {
  restored_log();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(test_a_limit_that_was_lowered, restored_teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
