#!/usr/bin/env bash
# A coordinator and its servers under more requests than they can carry out at once: requests wait, no server is taken
# for dead, and jobs go on.
. "$(dirname "$0")/../support/tap.sh"

start() { # NAME ARGUMENTS...
  local name=$1
  shift
  zenpsd --fabric-provider=net --fabric-interface=lo "$@" 2>"$scratch/$name.log" &
}
start c --roles=coordinator --control-listen=127.0.0.1:0 --control-address-file="$scratch/address" --coordinator-min-servers=2
until_true [ -s "$scratch/address" ]
address=$(cat "$scratch/address")
start s1 --roles=server --control-coordinator="$address" --server-name=s1
start s2 --roles=server --control-coordinator="$address" --server-name=s2
servers_are() { [ "$(zenpsctl --timeout=300s -e "$address" -o json members | grep -c '"silent_ms"')" -eq "$1" ]; }
ok "two servers are in" until_true servers_are 2

perl "$top/tests/integration/flood.pl" "$address" stats 4 >"$scratch/stats" 2>"$scratch/stats.err" &
perl "$top/tests/integration/flood.pl" "$address" jobs >"$scratch/jobs" 2>"$scratch/jobs.err" &
ok "the flood is under way" until_true eval '[ -s "$scratch/stats" ] && [ -s "$scratch/jobs" ]'
# perf STEPS: a job through the flood, its results checked bit by bit.
perf() {
  timeout 1800 zenpsrun -n 4 --coordinator="$address" --prefix=no -- \
    zenps-perf --rows 65536 --density 0.01 --steps "$1" --warmup 1 --verify --json && grep -q '"verified": *true' "$scratch/out"
}
ok "a job runs through it" perf 40
jobs_before=$(tail -n 1 "$scratch/jobs") stats_before=$(tail -n 1 "$scratch/stats")
more() { [ "$(tail -n 1 "$scratch/$1")" -gt "$2" ]; }
ok "stats are answered still" until_true more stats "$stats_before"
ok "jobs come and go still" until_true more jobs "$jobs_before"
ok "another job runs through it" perf 10
is "nobody was turned away" "$(cat "$scratch/stats.err" "$scratch/jobs.err")" ""
kill %4 %5
ok "both servers are still in" servers_are 2
grep -E "server .* is lost|closing its connection" "$scratch/c.log" >"$scratch/out"
is "and none was ever taken for lost" "$(cat "$scratch/out")" ""
ok "the dropped jobs are closed" until_true eval '! zenpsctl --timeout=300s -e "$address" jobs | grep -q dropped-'
zenpsctl --timeout=300s -e "$address" -o json stats >"$scratch/out"
is "stats has both servers' answers" "$(grep -c '"answer": "ok"' "$scratch/out")" 2
done_testing
