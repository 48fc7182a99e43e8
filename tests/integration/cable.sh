#!/usr/bin/env bash
# A verified job over a network that fails, in a lab of namespaces (tests/cluster/lab): every data connection is cut again
# and again; a server's cable is out for 3 s, then for 15 s. The job goes on with right sums. Cuts cost it no server. A
# server whose cable was out is in the job again, and stays.
# ZPS_CABLE_PARTS: "cuts", "3", "15" (seconds), or several. ZPS_CABLE_CUTS: how often all connections are cut.
. "$(dirname "$0")/../support/tap.sh"
lab=$top/tests/cluster/lab
command -v python3 >/dev/null || { skip "cables" "no python3"; done_testing; exit; }
if ! why=$("$lab" allowed); then
  skip "cables" "$why"
  done_testing
  exit
fi
export LAB_NAME=c$(($$ % 1000000)) LAB_OWNER=$$
trap '"$lab" down; tap_end' EXIT
n_cuts=${ZPS_CABLE_CUTS:-10} coordinator=10.77.0.1:7077
export ZENPS_CONTROL_DEAD=5s # a cable is out for longer
on() { "$lab" exec "$@"; } # HOST COMMAND...
pids_on() { ip netns pids "$LAB_NAME-$1" | while read -r pid; do ! grep -qzE "$2" "/proc/$pid/cmdline" 2>/dev/null || echo "$pid"; done; }
ctl() { nsenter --net="/run/netns/$LAB_NAME-0" zenpsctl --timeout=300s -e "$coordinator" "$@"; }
servers_are() { [ "$(ctl -o json members | grep -c '"silent_ms"')" -eq "$1" ]; }
job_has() { # SERVERS
  [ "$(ctl -o json jobs | python3 -c 'import json, sys; print(json.load(sys.stdin)["jobs"][0]["servers_in"])')" -eq "$1" ]
}
steps() { grep -c '^step' "$scratch/steps.0" || true; }
steps_are_above() { [ "$(steps)" -gt "$1" ]; }
given_up() { grep -hE "was lost|is lost|cannot reach" "$scratch"/*.log | grep -v "made anew" | sed -n "$((noted + 1)),\$p"; }
note() { noted=0 noted=$(given_up | wc -l); }

ok "five hosts" "$lab" up 5 none
on 0 zenpsd --roles=coordinator --control-listen="$coordinator" --control-insecure --coordinator-min-servers=3 \
  --control-address-file="$scratch/address" 2>"$scratch/c.log" &
until_true [ -s "$scratch/address" ]
for host in 1 2 3; do
  on $host zenpsd --roles=server --control-coordinator="$coordinator" --server-name="s$host" --fabric-provider=net --fabric-interface=eth0 2>"$scratch/s$host.log" &
done
ok "three servers are in" until_true servers_are 3
ranks=()
for rank in 0 1; do # rank 1 is on the coordinator's host
  on $((rank == 0 ? 4 : 0)) env ZENPS_LOG=warn CHAOS_PAUSE_MS=20 ZENPS_PROVIDER=net ZENPS_INTERFACE=eth0 "$build/tests/chaos/chaos-rank" "$coordinator" job $rank 2 1 2 300000 \
    "$scratch/over" >"$scratch/steps.$rank" 2>"$scratch/rank.$rank.log" &
  ranks+=($!)
done
ok "a job runs" until_true steps_are_above 5

cuts() {
  local pids before
  pids=$(for host in 0 1 2 3 4; do pids_on $host 'chaos-rank|roles=server'; done | paste -sd,)
  before=$(steps)
  ok "all data connections are cut $n_cuts times" python3 "$top/tests/support/cut.py" "$pids" 7077 "$n_cuts" 1
  sed 's/^/# /' "$scratch/out"
  said "there are such connections" '^cuts=[1-9][0-9]+$'
  ok "cuts: the job goes on" until_true steps_are_above $((before + 10))
  ok "cuts: with all servers" job_has 3
  given_up >"$scratch/out"
  is "cuts: nobody was given up" "$(head -n 3 "$scratch/out")" ""
}
# In the job again, for 20 steps on end. On a machine that is busy for seconds this may take more than one attempt.
is_in_for_good() {
  job_has 3 || { in_since="" && return 1; }
  in_since=${in_since:-$(steps)}
  steps_are_above $((in_since + 20))
}
put_out() { grep -cE "job 'job': server .* (is|was) lost" "$scratch/c.log"; }
cable() { # SECONDS
  local before lost in_since=""
  before=$(steps) lost=$(put_out)
  ok "a server's cable is out" ip -n "$LAB_NAME-sw" link set p2 down
  sleep "$1" # the fault, not a wait for something
  ok "it is back after $1 s" ip -n "$LAB_NAME-sw" link set p2 up
  ok "$1 s: the job goes on" until_true steps_are_above $((before + 5))
  ok "$1 s: with all servers, the one that was out again among them" until_true is_in_for_good
  echo "# $1 s: put out $(($(put_out) - lost)) times"
}

noted=0
for part in ${ZPS_CABLE_PARTS:-cuts 3 15}; do
  note
  case $part in cuts) cuts ;; *) cable "$part" ;; esac
done

touch "$scratch/over"
for rank in 0 1; do
  wait "${ranks[rank]}"
  is "rank $rank ends well" $? 0
  cut -d' ' -f1 "$scratch/steps.$rank" | sort -u | tr '\n' ' ' >"$scratch/out"
  said "and all of its sums were right" '^in left step $'
done
echo "# $(steps) steps"
done_testing
