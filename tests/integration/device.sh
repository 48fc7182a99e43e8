#!/usr/bin/env bash
# Gradients in device memory against real daemons: the memory of an emulated GPU, since none is needed for it. Arguments
# are passed on: the name of a test, "test_device_*".
. "$(dirname "$0")/../support/tap.sh"
. "$(dirname "$0")/../support/cmocka-cluster.sh"

if [ -e "$build/.libs/libzenps_emu.so" ]; then
  export ZENPS_DEVICE_LIBRARY="$build/.libs/libzenps_emu.so"
else
  echo "# no C++17 compiler: only what a host without a device does is tested"
fi
cmocka_cluster device_test "gradients in device memory" "$@"
