#!/usr/bin/env bash
# Headers compile alone: the installed ones as C11 and C++17 without extensions, the internal ones as the build does. TAP.
set -u
cd "${ZPS_TOP_SRCDIR:-$(dirname "$0")/..}" || exit 1
build=${ZPS_TOP_BUILDDIR:-$PWD}
cc=${CC:-cc} cxx=${CXX:-c++}
n=0 bad=0
compiles() { # NAME COMPILER... < source
  local name=$1 out
  shift
  n=$((n + 1))
  if out=$("$@" -fsyntax-only - 2>&1); then
    echo "ok $n - $name"
  else
    bad=$((bad + 1))
    echo "not ok $n - $name"
    printf '%s\n' "$out" | head -n 10 | sed 's/^/# /'
  fi
}
strict="-Wall -Wextra -Wpedantic -Werror -Iworker/include"
for header in worker/include/zenps/*.h; do
  name=zenps/$(basename "$header")
  compiles "$name as C11" $cc -xc -std=c11 $strict <<<"#include <$name>"
  if command -v ${cxx%% *} >/dev/null; then
    compiles "$name as C++17" $cxx -xc++ -std=c++17 $strict <<<"#include <$name>"
  else
    n=$((n + 1))
    echo "ok $n - $name as C++17 # SKIP no C++ compiler"
  fi
done
# The trainer at the beginning of zenps.h, with the functions that it leaves to the reader.
trainer() {
  echo '#include <zenps/zenps.h>'
  echo 'int fail(const char *text); uint64_t backward(int64_t **row_ids, void **values);'
  echo 'void update(uint64_t n, const int64_t *row_ids, const void *values);'
  echo 'int train(uint64_t rows, uint32_t width, uint64_t steps); int train(uint64_t rows, uint32_t width, uint64_t steps) {'
  sed -n '/^ \*\//q; s/^ \*     //p' worker/include/zenps/zenps.h
  echo 'return 0; }'
}
is_whole() { trainer | grep -q zenps_allreduce; }
compiles "the trainer of zenps.h" $cc -xc -std=c11 $strict < <(is_whole && trainer || echo no)
for header in $(find common proto gpu server worker -name '*.h' ! -name '*.pb-c.h' ! -path 'worker/include/*' | sort); do
  compiles "$header alone" $cc -xc -std=gnu11 -D_GNU_SOURCE -Wall -Werror -I. -I"$build" -Iworker/include ${LIBFABRIC_CFLAGS-} ${LIBUV_CFLAGS-} <<<"#include \"$header\""
done
echo "1..$n"
[ "$bad" -eq 0 ]
