/* Runs the library's tests, or those whose name contains the argument. See api.sh and api_faults.sh. */
#include "tests/integration/api_test.h"

int main(int argc, char **argv) {
  const struct {
    const struct CMUnitTest *tests;
    const size_t *n;
  } groups[] = {
      {api_round_tests, &n_api_round_tests},
      {api_request_tests, &n_api_request_tests},
      {api_failure_tests, &n_api_failure_tests},
      {api_death_tests, &n_api_death_tests},
      {api_stuck_tests, &n_api_stuck_tests},
      {api_loss_tests, &n_api_loss_tests},
      {api_unseen_tests, &n_api_unseen_tests},
      {api_elastic_tests, &n_api_elastic_tests},
      {api_drain_tests, &n_api_drain_tests},
      {api_recovery_tests, &n_api_recovery_tests},
      {api_automatic_tests, &n_api_automatic_tests},
      {api_residual_tests, &n_api_residual_tests},
      {api_operation_tests, &n_api_operation_tests},
      {api_tensor_tests, &n_api_tensor_tests},
      {api_result_tests, &n_api_result_tests},
      {api_part_tests, &n_api_part_tests},
      {api_group_tests, &n_api_group_tests},
      {api_operation_trouble_tests, &n_api_operation_trouble_tests},
      {api_gather_tests, &n_api_gather_tests},
      {api_newest_tests, &n_api_newest_tests},
      {api_cut_tests, &n_api_cut_tests},
      {api_silent_tests, &n_api_silent_tests},
  };
  const size_t n_groups = sizeof groups / sizeof groups[0];
  size_t n = 0, at = 0;
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  for (size_t g = 0; g < n_groups; g++) n += *groups[g].n;
  struct CMUnitTest *const tests = malloc(n * sizeof *tests);
  if (!tests) return 1;
  for (size_t g = 0; g < n_groups; g++)
    for (size_t i = 0; i < *groups[g].n; i++) tests[at++] = groups[g].tests[i];
  const int failed = _cmocka_run_group_tests("api", tests, n, NULL, NULL);
  cluster_shared_stop();
  free(tests);
  return failed;
}
