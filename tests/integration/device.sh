#!/usr/bin/env bash
# Gradients in device memory against real daemons: the memory of an emulated GPU, since none is needed for it. Arguments
# are passed on: the name of a test, "test_device_*".
. "$(dirname "$0")/../support/tap.sh"

if [ ! -x "$build/tests/integration/device_test" ]; then
  skip "gradients in device memory" "this build has no cmocka"
  done_testing
  exit
fi
export ZENPSD="$build/zenpsd" ZENPS_TEST_DIR="$scratch" CMOCKA_MESSAGE_OUTPUT=TAP
export LSAN_OPTIONS="${LSAN_OPTIONS:-print_suppressions=0}"
if [ -e "$build/.libs/libzenps_emu.so" ]; then
  export ZENPS_DEVICE_LIBRARY="$build/.libs/libzenps_emu.so"
else
  echo "# no C++17 compiler: only what a host without a device does is tested"
fi
export ZENPSCTL="$build/zenpsctl"
"$build/tests/integration/device_test" "$@"
