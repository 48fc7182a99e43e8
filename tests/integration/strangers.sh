#!/usr/bin/env bash
# Strangers at the data plane: messages, guessed keys, and connections (stranger.c) to a server and to a rank of a job that
# is running. Its rounds go on and its sums are right, nobody reads anything, memory does not grow, logs stay short.
# ZPS_ATTACKS: which, and how many of each ("junk:1000000 keys:1000000" by hand); ZPS_ATTACK_S: seconds that one may take.
# ZPS_ATTACK_TLS: the control plane speaks TLS, and jobs take tokens (strangers_tls.sh).
. "$(dirname "$0")/../support/tap.sh"
command -v python3 >/dev/null || { skip "strangers" "no python3"; done_testing; exit; }
tls=${ZPS_ATTACK_TLS:-}
. "$top/tests/support/attacked.sh"
wanted=${ZPS_ATTACKS:-junk:2000 keys:100 connect:200 bytes:200 drip:200 scan:500}
cluster_starts

# look VERB EXPRESSION: what the expression makes of the answer d.
look() {
  ctl -o json "$1" | python3 -c 'import json, sys; d = json.load(sys.stdin); print(eval(sys.argv[1]))' "$2"
}
at_server=$(look members '[s["address"] for s in d["servers"] if s["name"] == "s1"][0]')
server_count() { look stats "[s.get('$1', 0) for s in d['servers'] if s['server'] == 's1'][0]"; }
rounds() { look stats "sum(s['rounds'] for s in d['shards'] if s['job'] == '$1')"; }
rounds_are_above() { local n; n=$(rounds "$1") && [ "$n" -gt "$2" ]; }
failed_rounds() { look stats "sum(s['aborted'] for s in d['shards']) + sum(t['failed'] for t in d['tensors'])"; }
resident_kib() { awk '/^VmRSS/ { print $2 }' "/proc/$1/status"; }
seconds_of() { awk -v hz="$(getconf CLK_TCK)" '{ printf "%.1f", ($14 + $15) / hz }' "/proc/$1/stat"; } # of processors
count_of() { sed -nE "s/.*\\b$1=([0-9]+).*/\\1/p" "$scratch/attack"; }

# A job that goes on until it is told to end, and whose sums are all checked; gradients and sums are so long that they are
# read, from ranks and servers.
ranks=()
job_starts() { # NAME
  local rank
  ranks=()
  rm -f "$scratch/over"
  token_for "$1"
  files_of worker-worker "$1"
  for rank in 0 1; do
    env "${files[@]}" ZENPS_LOG=warn ZENPS_PROVIDER=net ZENPS_INTERFACE=lo "$build/tests/chaos/chaos-rank" "$address" "$1" $rank 2 1 2 60000 "$scratch/over" \
      >"$scratch/$1.$rank.steps" 2>"$scratch/$1.$rank.log" &
    ranks+=($!)
  done
  ok "$1: a job runs" until_true rounds_are_above "$1" 5
}
job_ends() { # NAME
  local rank
  touch "$scratch/over"
  for rank in 0 1; do
    wait "${ranks[rank]}"
    is "$1: rank $rank ends well" $? 0
    cut -d' ' -f1 "$scratch/$1.$rank.steps" | sort -u | tr '\n' ' ' >"$scratch/out"
    said "$1: and all of its sums were right" '^in left step $'
  done
  echo "# $1: $(grep -c ^step "$scratch/$1.0.steps") steps"
}
attack() { # ADDRESS WAY N JOB_ID
  timeout "${ZPS_ATTACK_S:-120}" "$build/tests/integration/stranger" "$@" >"$scratch/attack" 2>&1
}

attacks() { # NAME ADDRESS LOG PROCESS: each of them, while the job goes on
  local name=$1 at=$2 log=$3 process=$4 job_id one way n before before_kib lines began busy lost
  job_id=$(look members "[r['job_id'] for r in d['ranks'] if r['job'] == '$name'][0]")
  attack "$at" junk 200 "$job_id" # what warms up: pools, caches, the heap's top
  attack "$at" keys 40
  for one in $wanted; do
    way=${one%:*} n=${one#*:}
    before=$(rounds "$name") before_kib=$(resident_kib "$process") lines=$(wc -l <"$log") began=$SECONDS busy=$(seconds_of "$process")
    attack "$at" "$way" "$n" "$job_id"
    is "$name, $way: all of it was tried, nothing was read" "$? $(count_of tried)" "0 $n"
    echo "# $name, $way: $(tail -n 1 "$scratch/attack"), memory grew by $(($(resident_kib "$process") - before_kib)) KiB," \
      "$(($(wc -l <"$log") - lines)) lines in $((SECONDS - began + 1)) s, processor from second $busy to $(seconds_of "$process")," \
      "$(($(rounds "$name") - before)) rounds"
    [ "$way" != keys ] || is "$name, keys: each attempt was one" "$(count_of done)" 0
    # libfabric 1.17 loses 0.6 KiB, 0.8 with what malloc adds, of each connection that it accepted (common/net/README.md).
    lost=0
    ! grep -q 'libfabric 1\.17,' "$scratch/s1.log" || lost=$(count_of lost)
    ok "$name, $way: memory grows by less than 1 MiB" [ $(($(resident_kib "$process") - before_kib)) -lt $((1024 + lost)) ]
    ok "$name, $way: a line a second at most" [ $(($(wc -l <"$log") - lines)) -le $((SECONDS - began + 1)) ]
    ok "$name, $way: rounds go on" until_true rounds_are_above "$name" "$before"
  done
  is "$name: no round has failed" "$(failed_rounds)" 0
}

job_starts server
before=$(server_count forged)
attacks server "$at_server" "$scratch/s1.log" "$server"
ok "server: what was forged is counted" [ "$(server_count forged)" -gt "$before" ]
job_ends server

job_starts rank
at_rank=$(look members '[r["address"] for r in d["ranks"] if r["job"] == "rank" and r["rank"] == 0][0]')
rank_count() { look stats "[r.get('$1', 0) for r in d['ranks'] if r['job'] == 'rank' and r['rank'] == $2][0]"; }
is "rank: it has counted none before" "$(rank_count forged 0)" 0
attacks rank "$at_rank" "$scratch/rank.0.log" "${ranks[0]}"
forged_is_told() { [ "$(rank_count forged 0)" -gt 0 ]; }
ok "rank: what was forged is counted, and told" until_true forged_is_told
is "rank: the other one has counted none" "$(rank_count forged 1)" 0
job_ends rank

ok "both servers are still in" servers_are 2
grep -E "server .* is lost|rank .* is lost|closing its connection" "$scratch"/*.log >"$scratch/out"
is "and nobody was ever taken for lost" "$(cat "$scratch/out")" ""
done_testing
