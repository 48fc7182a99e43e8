/* Runs the library's tests, or those whose name contains the argument. See api.sh and api_faults.sh. */
#include "tests/integration/api_test.h"

int main(int argc, char **argv) {
  struct CMUnitTest tests[96];
  size_t n = 0;
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  for (size_t i = 0; i < n_api_round_tests; i++) tests[n++] = api_round_tests[i];
  for (size_t i = 0; i < n_api_request_tests; i++) tests[n++] = api_request_tests[i];
  for (size_t i = 0; i < n_api_failure_tests; i++) tests[n++] = api_failure_tests[i];
  for (size_t i = 0; i < n_api_death_tests; i++) tests[n++] = api_death_tests[i];
  for (size_t i = 0; i < n_api_recovery_tests; i++) tests[n++] = api_recovery_tests[i];
  for (size_t i = 0; i < n_api_automatic_tests; i++) tests[n++] = api_automatic_tests[i];
  for (size_t i = 0; i < n_api_residual_tests; i++) tests[n++] = api_residual_tests[i];
  for (size_t i = 0; i < n_api_operation_tests; i++) tests[n++] = api_operation_tests[i];
  for (size_t i = 0; i < n_api_tensor_tests; i++) tests[n++] = api_tensor_tests[i];
  for (size_t i = 0; i < n_api_result_tests; i++) tests[n++] = api_result_tests[i];
  for (size_t i = 0; i < n_api_part_tests; i++) tests[n++] = api_part_tests[i];
  for (size_t i = 0; i < n_api_group_tests; i++) tests[n++] = api_group_tests[i];
  for (size_t i = 0; i < n_api_operation_trouble_tests; i++) tests[n++] = api_operation_trouble_tests[i];
  for (size_t i = 0; i < n_api_gather_tests; i++) tests[n++] = api_gather_tests[i];
  for (size_t i = 0; i < n_api_newest_tests; i++) tests[n++] = api_newest_tests[i];
  const int failed = _cmocka_run_group_tests("api", tests, n, NULL, NULL);
  cluster_shared_stop();
  return failed;
}
