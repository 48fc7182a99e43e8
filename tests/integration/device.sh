#!/usr/bin/env bash
# Gradients in device memory against real daemons: the memory of an emulated GPU, or of a real one where
# ZENPS_DEVICE_LIBRARY names its library. Arguments are passed on: the name of a test, "test_device_*".
. "$(dirname "$0")/../support/tap.sh"
. "$(dirname "$0")/../support/cmocka-cluster.sh"
. "$(dirname "$0")/../support/device-library.sh"

cmocka_cluster device_test "gradients in device memory" "$@"
