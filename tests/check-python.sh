#!/usr/bin/env bash
# The Python package's copy of the C interface is what worker/python/make-abi makes of the headers, with the compiler's
# numbers, sizes and offsets; zenps.torch names dtypes and devices; and the package's types are right. TAP.
set -u
: "${ZPS_TOP_SRCDIR:=$(cd "$(dirname "$0")/.." && pwd)}"
. "$ZPS_TOP_SRCDIR/tests/support/tap.sh"
package=$top/worker/python/zenps
if ! command -v python3 >/dev/null || ! python3 -c 'import ctypes, sys; sys.exit(sys.version_info < (3, 9))'; then
  skip "the Python package's interface is that of the headers" "no python3 of version 3.9 or later with ctypes"
  done_testing
  exit
fi
cc=${CC:-$(sed -n 's/^CC = //p' "$build/Makefile" 2>/dev/null)}
CC=${cc:-cc} PYTHONDONTWRITEBYTECODE=1 python3 "$top/tests/python/abi.py" "$package" "$top/worker/include/zenps" "$scratch" >"$scratch/abi.tap"
status=$?
grep -v '^1\.\.' "$scratch/abi.tap"
tap_n=$(grep -cE '^(not )?ok ' "$scratch/abi.tap")
[ "$status" -eq 0 ] || tap_failed=1
[ "$tap_n" -gt 0 ] || tap_result 1 "the Python package's interface is compared with the headers"
ok "zenps.torch makes tensors of a dtype and on a device that it names" python3 "$top/tests/python/constructors.py" "$package"
if command -v mypy >/dev/null; then
  cd "$scratch" || exit 1
  ok "mypy --strict passes on the Python package" mypy --config-file "$top/worker/python/pyproject.toml" --cache-dir "$scratch/mypy" "$package"
else
  skip "mypy --strict passes on the Python package" "mypy is not installed"
fi
done_testing
