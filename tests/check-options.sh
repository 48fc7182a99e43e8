#!/usr/bin/env bash
# zenps(7) has every environment variable that the library reads, and no other. TAP.
set -u
top=${ZPS_TOP_SRCDIR:-$(dirname "$0")/..}
read_by_library=$(sed -n 's/^ *{\.name = "\([a-z.-]*\)",$/zenps_\1/p' "$top/worker/options.c" | tr 'a-z.-' 'A-Z__' | sort -u)
documented=$(grep -oE 'ZENPS_[A-Z_]+' "$top/deploy/man/zenps.7" | sort -u)
echo 1..1
if [ -n "$documented" ] && [ "$read_by_library" = "$documented" ]; then
  echo "ok 1 - zenps(7) and the library agree on the environment"
else
  echo "not ok 1 - zenps(7) and the library agree on the environment"
  diff <(echo "$read_by_library") <(echo "$documented") | sed 's/^</# not in zenps.7:/; s/^>/# not read:/'
  exit 1
fi
