#!/usr/bin/env bash
# The library exports its API and nothing else, under the version it promises. TAP.
set -u
build=${ZPS_TOP_BUILDDIR:-$PWD}
headers=${ZPS_TOP_SRCDIR:-$(dirname "$0")/..}/worker/include/zenps
lib=$build/.libs/libzenps.so
echo 1..3
if [ ! -e "$lib" ]; then
  for i in 1 2 3; do echo "ok $i - exports # SKIP $lib is not built"; done
  exit 0
fi
exported=$(nm -D --defined-only "$lib" | awk '$2 != "A" { print $3 }' | sed 's/@.*//' | sort -u)
declared=$(cat "$headers"/*.h | grep -oE '^ZENPS_API .*' | grep -oE '\bzenps_[a-z_]+ *\(' | tr -d '( ' | sort -u)
status=0
check() { # NUMBER NAME GOT WANTED
  if [ "$3" = "$4" ]; then
    echo "ok $1 - $2"
  else
    echo "not ok $1 - $2"
    diff <(echo "$3") <(echo "$4") | sed 's/^/# /'
    status=1
  fi
}
check 1 "exports are exactly the functions of the installed headers" "$(grep '^zenps_' <<<"$exported")" "$declared"
check 2 "nothing else is exported" "$(grep -v '^zenps_' <<<"$exported" | grep -vE '^(__asan|__ubsan|__tsan)')" ""
check 3 "the soname carries the ABI version" "$(objdump -p "$lib" | awk '$1 == "SONAME" { print $2 }')" "libzenps.so.0"
exit $status
