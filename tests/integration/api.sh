#!/usr/bin/env bash
# The library's API against real daemons. Arguments are passed on: the name of a test, "test_killed_*".
. "$(dirname "$0")/../support/tap.sh"
. "$(dirname "$0")/../support/cmocka-cluster.sh"

cmocka_cluster api_test "the library against real daemons" "$@"
