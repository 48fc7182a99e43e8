#!/usr/bin/env bash
# zenpsctl stats counts the rounds of every scheme, whether they go through a server or past it.
. "$(dirname "$0")/../support/tap.sh"

schemes="balanced sparse-ps dense-ps omnireduce recursive-doubling split-allgather dsar agsparse ring rabenseifner two-level
  blueconnect hierarchical hierarchical:ring dense-split bitmap-split oktopk gtopk topka topkdsa gaussiank auto"
ranks=4

zenpsd --fabric-interface=lo --control-listen=127.0.0.1:0 --control-address-file="$scratch/address" --control-heartbeat=0.1s --fabric-checksums=yes \
  --log-level=warn 2>"$scratch/zenpsd.log" &
until_true test -s "$scratch/address"
address=$(cat "$scratch/address")
# look ARRAY WHERE MEMBER...: these members, a line a row, of the rows of `zenpsctl stats` in which NAME=VALUE of WHERE holds.
look() {
  zenpsctl --timeout=300s --endpoint "$address" -o json --internal stats | python3 -c '
import json, sys
array, where, *members = sys.argv[1:]
name, value = where.split("=", 1)
for row in json.load(sys.stdin)[array]:
    if str(row.get(name)) == value: print(*(row.get(member) for member in members))' "$@"
}
# Ranks in the background, two on each host, which end when they are told to.
run() { # JOB zenps-perf arguments...
  local job=$1
  shift
  zenpsrun -n $ranks --coordinator "$address" --job "$job" --interface lo --prefix=no -- \
    bash -c 'ZENPS_HOST=host$((RANK / 2)) ZENPS_PROVIDER=${flipped:+fault+}$ZENPS_PROVIDER exec "$@"' - zenps-perf --json "$@" >"$scratch/$job.json" 2>"$scratch/$job.err" &
  pid=$!
}
end() {
  kill "$pid"
  wait "$pid" 2>/dev/null
}

# A case for each scheme with a number of steps of its own; the last one goes on for as long as it is looked at.
steps=3
for scheme in $schemes; do
  case $scheme in oktopk | gtopk | topka | topkdsa | gaussiank) keep=":density=0.05" ;; *) keep= ;; esac
  echo "--rows 5000 --density 0.02 --scheme $scheme$keep --warmup 2 --steps $((steps++))"
done >"$scratch/cases"
echo "--rows 5000 --density 0.02 --warmup 0 --steps 1000000" >>"$scratch/cases"
wanted=$(awk -v n=$ranks '/--warmup 2/ { print "perf." NR - 1, $NF + 2, n * ($NF + 2), 0 }' "$scratch/cases" | sort)
all_told() { [ "$(look tensors job=all name rounds rank_rounds failed | grep -F -x "$wanted" | sort)" = "$wanted" ]; }
export ZENPS_TELEMETRY=0.1s
run all --cases "$scratch/cases"
ok "all ranks tell of all steps" until_true all_told
look tensors job=all name rounds rank_rounds failed scheme bytes_out total_ns >"$scratch/tensors"
look shards job=all name rounds >"$scratch/shards"
look ranks job=all rank rounds >"$scratch/ranks"
i=0 steps=3
for scheme in $schemes; do
  read -r _ rounds rank_rounds failed ran bytes ns <<<"$(grep "^perf\.$i " "$scratch/tensors")"
  is "$scheme: rounds are the steps that ran, on every rank, and none has failed" "$rounds $rank_rounds $failed" \
    "$((2 + steps)) $((ranks * (2 + steps))) 0"
  [ "$bytes" -gt 0 ] && [ "$ns" -gt 0 ]
  tap_result $? "$scheme: bytes and times are counted"
  case $scheme in
    auto) [ "$ran" != "" ] && [ "$ran" != auto ] && tap_result $? "auto: under a scheme that it chose" ;;
    *) is "$scheme: under its name" "$ran" "${scheme%:*}" ;;
  esac
  case $scheme in
    ring) is "ring: no server tells of it" "$(grep "^perf\.$i " "$scratch/shards")" "" ;;
    balanced) is "balanced: the server counts the same" "$(grep "^perf\.$i " "$scratch/shards")" "perf.$i $((2 + steps))"
      look shards job=all name imbalance_step | awk -v t="perf.$i" '$1 == t { n++; if ($2 < 0.9 || $2 > 3) bad = 1 } END { exit !(n == 1 && !bad) }'
      tap_result $? "balanced: what a step sends the server is about its even share"
      look tensors job=all name imbalance_push imbalance_pull | awk -v t="perf.$i" '$1 == t { n++; if ($2 < 0.99 || $2 > 3 || $3 < 0.99 || $3 > 3) bad = 1 } END { exit !(n == 1 && !bad) }'
      tap_result $? "balanced: one number tells how even pushes are over all servers, and one sums" ;;
  esac
  i=$((i + 1)) steps=$((steps + 1))
done
is "each rank has told of rounds of its own" "$(awk '$2 > 0 { print $1 }' "$scratch/ranks" | sort -n | tr '\n' ' ')" "0 1 2 3 "
end

# How much of their pushes ranks keep, in case a server is lost: what is sent inline takes none.
kept() { look ranks "job=$1" kept_bytes rounds | awk '$2 > 3 { n++; if ($1 > 0) k++; if ($1 > 4194304) much++ } END { print n + 0, k + 0, much + 0 }'; }
keep() { [ "$(kept "$1")" = "$2" ]; }
ZENPS_REPLAY_MEMORY=4M run kept --rows 200000 --density 0.2 --steps 1000000
ok "each rank tells how much it keeps, within its limit" until_true keep kept "$ranks $ranks 0"
end
ZENPS_REPLAY_MEMORY=0 run forgotten --rows 200000 --density 0.2 --steps 1000000
ok "or that it keeps nothing" until_true keep forgotten "$ranks 0 0"
end

# What ranks read, and is not what was announced: here a byte of it changes on the way, now and then.
corrupt() { look ranks "job=$1" corrupt rounds | awk '$2 > 3 { n++; sum += $1 } END { print n + 0, (sum > 0) }'; }
corrupt_is() { [ "$(corrupt "$1")" = "$2" ]; }
flipped=1 ZENPS_FABRIC_FAULT=flip=0.002 run flipped --rows 200000 --density 0.2 --steps 1000000
ok "ranks tell of reads that did not bring what was announced" until_true corrupt_is flipped "$ranks 1"
end
run whole --rows 200000 --density 0.2 --steps 1000000
ok "and of none where all did" until_true corrupt_is whole "$ranks 0"
end

# Ranks report, when they leave the job, the counts that they did not report while it ran. zenps-perf has some rounds
# beside its steps.
export ZENPS_TELEMETRY=1h
ended() { # JOB: its rounds
  zenpsctl --timeout=300s --endpoint "$address" -o json jobs --all | python3 -c '
import json, sys
print(*(row["rounds"] for row in json.load(sys.stdin)["ended"] if row["job"] == sys.argv[1]))' "$1"
}
for steps in 10 30; do
  zenpsrun -n $ranks --coordinator "$address" --job "brief$steps" --interface lo --prefix=no -- \
    zenps-perf --rows 5000 --density 0.02 --scheme ring --warmup 1 --steps $steps >"$scratch/out" 2>&1
  is "a job of $steps steps runs" $? 0
  until_true eval '[ -n "$(ended brief'$steps')" ]'
done
is "ranks that leave tell of the rounds that nobody has heard of" "$(($(ended brief30) - $(ended brief10)))" 20
ok "of all of them" [ "$(ended brief10)" -ge 11 ]

# Reports can be left out.
export ZENPS_TELEMETRY=0
run silent --rows 5000 --density 0.02 --scheme ring --steps 1000000
takes_steps() { look shards job=silent name rounds | grep '^@collective [1-9]'; }
ok "a job without reports takes steps, as servers see by its barrier" until_true takes_steps
is "and nobody is told of them" "$(look tensors job=silent name rounds | grep '^perf')" "perf.0 0"
end

done_testing
