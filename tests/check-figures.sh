#!/usr/bin/env bash
# Every committed figure equals the output of its script, byte for byte. TAP.
set -u
figures=$(cd "${ZPS_TOP_SRCDIR:-$(dirname "$0")/..}/deploy/figures" && pwd) || exit 1
if ! command -v python3 >/dev/null; then
  echo "1..0 # SKIP no python3"
  exit 0
fi
written=$(mktemp -d) || exit 1
trap 'rm -rf "$written"' EXIT
n=0 bad=0
for script in "$figures"/*.py; do
  name=$(basename "$script" .py) n=$((n + 1))
  if out=$(python3 -B "$script" "$written/$name.svg" 2>&1 && diff "$figures/$name.svg" "$written/$name.svg" 2>&1); then
    echo "ok $n - deploy/figures/$name.svg is what its script writes"
  else
    bad=$((bad + 1))
    echo "not ok $n - deploy/figures/$name.svg is what its script writes"
    printf '%s\n' "$out" | head -n 10 | cut -c 1-200 | sed 's/^/# /'
  fi
done
echo "1..$n"
[ "$bad" -eq 0 ]
