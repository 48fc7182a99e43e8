# Sourced by scripts that run a cmocka program against real daemons, behind tap.sh: cmocka_cluster PROGRAM WHAT ARGUMENT...
# runs tests/integration/PROGRAM of the build tree with the arguments (the name of a test, "test_killed_*"); WHAT names
# it where the build has none.
cmocka_cluster() {
  local program=$build/tests/integration/$1 what=$2
  shift 2
  if [ ! -x "$program" ]; then
    skip "$what" "this build has no cmocka"
    done_testing
    return
  fi
  export ZENPSD="$build/zenpsd" ZENPSCTL="$build/zenpsctl --timeout=300s" ZENPS_TEST_DIR="$scratch" CMOCKA_MESSAGE_OUTPUT=TAP
  export LSAN_OPTIONS="${LSAN_OPTIONS:-print_suppressions=0}"
  "$program" "$@" | sed -u 's/^not ok \(.*# SKIP\)/ok \1/' # as cmocka 1.1 says it
  return "${PIPESTATUS[0]}"
}
