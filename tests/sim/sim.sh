#!/usr/bin/env bash
# A cluster in one thread, under seeds: those that failed once, as many others of each kind of world as a hundred seconds
# hold, and bugs that are switched on, which have to be found.
#
# env: SIM_FROM (the first seed, 1), SIM_SECONDS (100), SIM_JOBS (number of cores)
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../support/tap.sh"
sim=$build/tests/sim/sim
from=${SIM_FROM:-1} seconds=${SIM_SECONDS:-100} jobs=${SIM_JOBS:-$(nproc)}

ok "seeds that have failed once" timeout 600 "$sim" --file "$here/seeds" --jobs "$jobs"
seeds() { # KIND SECONDS
  ok "$1: seeds from $from on, for $2 s" timeout "$(($2 + 120))" "$sim" --seeds "$from:1000000000" --kind "$1" --seconds "$2" --jobs "$jobs"
  sed 's/^/# /' "$scratch/out"
}
kinds='apart again memory peers elastic beside'
for kind in $kinds; do seeds "$kind" "$((seconds / 8))"; done
seeds served "$((seconds - $(wc -w <<<"$kinds") * (seconds / 8)))"
# A seed says all: what is logged changes nothing, nor does the run before it, nor the environment.
"$sim" --seeds 40:30 --digest | grep '^seed' >"$scratch/once"
env "PATH=/nowhere:$PATH" "$sim" --seeds 50:20 --verbose | grep '^seed.*switches' >"$scratch/again"
ok "a seed runs alike again, alone or after others, with the log or without" test -s "$scratch/again" -a "$(tail -n 20 "$scratch/once")" = "$(cat "$scratch/again")"
for bug in order missing replay frame map leak sync checks pick:apart deaf:again missed:memory early:peers part:peers seat:elastic step:elastic mixed:beside; do
  kind=${bug#*:} name=${bug%:*}
  test "$kind" != "$bug" || kind=served
  ok "the bug '$name' is found" test "$(timeout 300 "$sim" --seeds 1:20000 --kind "$kind" --first --jobs "$jobs" --break "$name" | grep -c ^FAILED)" -ge 1
done
ok "an unknown bug is refused" test "$("$sim" --seed 1 --break none >/dev/null 2>&1; echo $?)" = 2
done_testing
