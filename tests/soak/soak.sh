#!/usr/bin/env bash
# Short jobs for twenty seconds over daemons that keep running; and that the judge finds what grows. So few leave pools
# half filled, and limits have to be generous: what is left of a job shows, and what leaks much.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../support/tap.sh"
jobs=${SOAK_JOBS:-60}

ok "the judge finds what grows" python3 "$here/selftest.py"
ok "a soak without ranks is refused" test "$("$here/run" --ranks 1 >/dev/null 2>&1; echo $?)" = 2
ok "$jobs short jobs leave nothing behind" \
  timeout 800 "$here/run" --build "$build" --jobs "$jobs" --samples 12 --limit 524288 --descriptors-limit 0.2
sed 's/^/# /' "$scratch/out"
said "the table has every daemon" '^\| s1 \| registered \|'
ok "what grows faster than the limit fails" test "$(timeout 800 "$here/run" --build "$build" --jobs 4 --limit=-1 --json >"$scratch/grown" 2>/dev/null; echo $?)" = 1
cp "$scratch/grown" "$scratch/out"
said "and is named" '"wrong": \[.*resident grows by .* a job: at most -1'
done_testing
