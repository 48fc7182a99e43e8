/* Runs the tests of gradients in device memory, or those whose name contains the argument. See device.sh. */
#include "tests/integration/device_rig.h"

int main(int argc, char **argv) {
  struct CMUnitTest tests[64];
  size_t n = 0;
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  if (getenv("ZENPS_DEVICE_LIBRARY")) {
    for (size_t i = 0; i < n_device_round_tests; i++) tests[n++] = device_round_tests[i];
    for (size_t i = 0; i < n_device_scheme_tests; i++) tests[n++] = device_scheme_tests[i];
    for (size_t i = 0; i < n_device_refusal_tests; i++) tests[n++] = device_refusal_tests[i];
    for (size_t i = 0; i < n_device_failure_tests; i++) tests[n++] = device_failure_tests[i];
    for (size_t i = 0; i < n_device_check_tests; i++) tests[n++] = device_check_tests[i];
    for (size_t i = 0; i < n_device_result_tests; i++) tests[n++] = device_result_tests[i];
    for (size_t i = 0; i < n_device_stream_tests; i++) tests[n++] = device_stream_tests[i];
    for (size_t i = 0; i < n_device_loss_tests; i++) tests[n++] = device_loss_tests[i];
    for (size_t i = 0; i < n_device_merge_tests; i++) tests[n++] = device_merge_tests[i];
  }
  tests[n++] = device_no_library_test;
  const int failed = _cmocka_run_group_tests("device", tests, n, NULL, NULL);
  cluster_shared_stop();
  return failed;
}
