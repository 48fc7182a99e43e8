#!/usr/bin/env bash
# The library's API against real daemons. Arguments are passed on: the name of a test, "test_killed_*".
. "$(dirname "$0")/../support/tap.sh"

if [ ! -x "$build/tests/integration/api_test" ]; then
  skip "the library against real daemons" "this build has no cmocka"
  done_testing
  exit
fi
export ZENPSD="$build/zenpsd" ZENPS_TEST_DIR="$scratch" CMOCKA_MESSAGE_OUTPUT=TAP
export LSAN_OPTIONS="${LSAN_OPTIONS:-print_suppressions=0}"
"$build/tests/integration/api_test" "$@"
