#!/usr/bin/env bash
# Rounds with a quorum go on while a rank is stopped. It then gets the sums that it has missed, and nothing is lost.
. "$(dirname "$0")/../support/tap.sh"
. "$(dirname "$0")/../support/verified.sh"

start() { # NAME ARGUMENTS...: a daemon, whose log is $scratch/NAME.log
  local name=$1
  shift
  zenpsd --fabric-interface=lo --log-level=info --control-heartbeat=0.2s --control-dead=300s "$@" >>"$scratch/$name.log" 2>&1 &
}
ctl() { zenpsctl -e "$address" --timeout=300s "$@"; }
both() { [ "$(ctl members | grep -cE '^ *[0-9]+ +s[01] +in ')" -eq 2 ]; }
folder=$scratch/run
mkdir "$folder"
most() { echo "$1" >"$folder/most.part" && mv "$folder/most.part" "$folder/most"; }
count() { sed -E "s/.*\b$2 ([0-9]+).*/\1/" "$folder/rank-$1"; } # RANK WHAT
at_least() { [ "$(count "$1" "$2")" -ge "$3" ]; }               # RANK WHAT N
said_by() { sed -nE "s/^(\[$1\] )?rank $1: .*\b$2 ([0-9]+).*/\2/p" "$scratch/trainers"; } # RANK WHAT

start c --roles=coordinator --control-listen=127.0.0.1:0 --control-address-file="$scratch/address" --coordinator-min-servers=2
until_true test -s "$scratch/address"
address=$(cat "$scratch/address")
for i in 0 1; do start "s$i" --roles=server --control-coordinator="$address" --server-name="s$i"; done
ok "two servers are in" until_true both

export ZENPS_LIBRARY=$build/.libs/libzenps.so.0 PYTHONDONTWRITEBYTECODE=1 ZENPS_ROUND_TIMEOUT=300s
most 6
zenpsrun -n 3 --coordinator "$address" --job=j -- python3 "$top/tests/integration/quorum.py" "$folder" 100 >"$scratch/trainers" 2>&1 &
job=$!
for rank in 0 1 2; do ok "rank $rank does its first steps" until_true at_least $rank steps 6; done
late_before=$(count 2 late)

# The others wait for its grace alone.
kill -STOP "$(cat "$folder/pid-2")"
most 14
for rank in 0 1; do ok "rank $rank goes on without the stopped one" until_true at_least $rank steps 14; done
ok "that one does not" [ "$(count 2 steps)" -le 7 ]
without() { ctl -o json stats | python3 -c '
import json, sys
assert any(row.get("closed_without", 0) >= 7 and row["rank"] == 2 for row in json.load(sys.stdin)["lags"])'; }
ok "stats says how many rounds closed without it" until_true without
kill -CONT "$(cat "$folder/pid-2")"
ok "it gets the sums that it has missed" until_true at_least 2 steps 14
ok "and is late in those" [ "$(count 2 late)" -ge $((late_before + 7)) ]
is "it has skipped none" "$(count 2 skipped)" 0

# Too late: servers keep the newest 16 sums.
kill -STOP "$(cat "$folder/pid-2")"
most 50
for rank in 0 1; do ok "rank $rank goes on without it for longer" until_true at_least $rank steps 50; done
kill -CONT "$(cat "$folder/pid-2")"
ok "it comes to its end" until_true at_least 2 steps 50
ok "and is told of the sums that it cannot have" at_least 2 skipped 15
ok "but not of more" [ "$(count 2 skipped)" -le 36 ]
most 0
ok "the job ends well" wait "$job"
ok "each rank says what it has" [ "$(grep -c " brought " "$scratch/trainers")" -eq 3 ]
is "ranks 0 and 1 have the same sums" "$(said_by 0 brought)" "$(said_by 1 brought)"
kept=$(($(said_by 0 kept) + $(said_by 1 kept) + $(said_by 2 kept)))
is "all that was given is in a sum, or kept" $(($(said_by 0 brought) + kept)) \
  $(($(said_by 0 given) + $(said_by 1 given) + $(said_by 2 given)))

# zenps-perf checks the sums of the ranks in time.
ok "zenps-perf with a quorum" verified 3 2 --rows 30000 --density 0.05 --quorum 2 --grace 20
ok "without a grace, mean, lists" verified 4 2 --rows 30000 --density 0.05 --quorum 2 --op mean --layout rows --out rows
ok "several stripes" verified 3 2 --rows 2200000 --density 0.05 --quorum 2 --grace 50 --steps 3
refused() {
  local says=$1
  shift
  ! timeout 1800 zenpsrun -n 2 --servers 1 --prefix=no -- zenps-perf --rows 1000 --steps 1 "$@" >"$scratch/refused" 2>&1 || return 1
  grep -q -- "$says" "$scratch/refused" || { cat "$scratch/refused"; return 1; }
}
ok "a quorum beyond the world" refused "a quorum of 3 ranks, and 2 push it; want 1 to 2" --quorum 3
ok "a negative quorum" refused "quorum" --quorum=-1
ok "a grace without a quorum" refused "needs --quorum" --grace 5
ok "a quorum between ranks" refused "a quorum is for scheme balanced, not for ring" --quorum 1 --scheme ring
ok "a quorum under auto" refused "a quorum is for scheme balanced, not for auto" --quorum 1 --scheme auto
ok "a quorum of pushes apart" refused "is for --collective allreduce" --quorum 1 --collective push-pull
done_testing
