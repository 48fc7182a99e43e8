#!/usr/bin/env bash
# tests/fuzz/run says why there is no build: what configure, which refuses a tree that was configured in place, has to say. TAP.
set -u
top=$(cd "${ZPS_TOP_SRCDIR:-$(dirname "$0")/..}" && pwd)
scratch=$(mktemp -d "${TMPDIR:-/tmp}/zps-check-fuzz.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
n=0 bad=0
ok() { # NAME COMMAND...
  n=$((n + 1))
  if "${@:2}"; then
    echo "ok $n - $1"
  else
    bad=$((bad + 1))
    echo "not ok $n - $1"
    sed 's/^/# /' "$scratch/out"
  fi
}
refusal="configure: error: source directory already configured; run \"make distclean\" there first"
mkdir -p "$scratch/tree/tests/fuzz"
cp "$top/tests/fuzz/run" "$scratch/tree/tests/fuzz/"
printf '#!/bin/sh\necho checking build system type\necho '"'%s'"' >&2\nexit 1\n' "$refusal" >"$scratch/tree/configure"
chmod +x "$scratch/tree/configure"
for way in "" --fast; do
  # shellcheck disable=SC2086
  "$scratch/tree/tests/fuzz/run" $way --runs 1 wire >"$scratch/out" 2>&1
  status=$?
  ok "tests/fuzz/run ${way:+$way }fails where configure refuses" test $status -eq 1
  ok "and says what configure said" grep -qxF "$refusal" "$scratch/out"
  ok "and where all of it is" grep -q "run: configure failed: $scratch/tree/build/fuzz.*/configure.log" "$scratch/out"
done
echo "1..$n"
[ $bad -eq 0 ]
