#!/usr/bin/env bash
# A cluster in one thread, under seeds: those that failed once, new ones of each kind of world, and bugs that are switched
# on, which have to be found. Each commit has seeds of its own, so that all runs of one commit try the same.
#
# env: SIM_SEEDS (how many new ones, 20000), SIM_FROM (the first, by the number of commits), SIM_JOBS (number of cores)
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../support/tap.sh"
sim=$build/tests/sim/sim
count=${SIM_SEEDS:-20000} jobs=${SIM_JOBS:-$(nproc)}
commits=$(git -C "$here" rev-list --count HEAD 2>/dev/null) # in a tarball: none
from=${SIM_FROM:-$((1 + ${commits:-0} * 20000))}

ok "seeds that have failed once" timeout 3600 "$sim" --file "$here/seeds" --jobs "$jobs"
seeds() { # KIND COUNT
  ok "$1: $2 seeds from $from on" timeout 3600 "$sim" --seeds "$from:$2" --kind "$1" --jobs "$jobs"
  sed 's/^/# /' "$scratch/out"
}
kinds='apart again memory peers elastic beside state hosts places many links quorum late'
for kind in $kinds; do seeds "$kind" "$((count / 16))"; done
seeds served "$((count - $(wc -w <<<"$kinds") * (count / 16)))"
# A seed says all: what is logged changes nothing, nor does the run before it, nor the environment; also where memory that
# is short throws dice.
for kind in served state; do
  "$sim" --seeds 40:30 --kind "$kind" --digest | grep '^seed' >"$scratch/once"
  env "PATH=/nowhere:$PATH" "$sim" --seeds 50:20 --kind "$kind" --verbose | grep '^seed.*switches' >"$scratch/again"
  ok "$kind: a seed runs alike again, alone or after others, with the log or without" test -s "$scratch/again" -a "$(tail -n 20 "$scratch/once")" = "$(cat "$scratch/again")"
done
for bug in order missing replay frame map leak sync checks pick:apart deaf:again missed:memory early:peers part:peers seat:elastic step:elastic mixed:beside quota:beside debt:beside note:state shared:hosts free:places resend:links twice:links ahead:links decide:quorum few:late; do
  kind=${bug#*:} name=${bug%:*}
  test "$kind" != "$bug" || kind=served
  ok "the bug '$name' is found" test "$(timeout 3600 "$sim" --seeds 1:20000 --kind "$kind" --first --jobs "$jobs" --break "$name" | grep -c ^FAILED)" -ge 1
done
ok "an unknown bug is refused" test "$("$sim" --seed 1 --break none >/dev/null 2>&1; echo $?)" = 2
done_testing
