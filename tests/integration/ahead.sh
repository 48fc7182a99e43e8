#!/usr/bin/env bash
# Rounds over long links: payloads and sums come ahead, without a question. Two ranks and one server, provider tls, a delay of
# 100 ms one way. zenps-perf checks all sums bit for bit, also when connections end and when packets are lost.
. "$(dirname "$0")/../support/tap.sh"
wan=$top/tests/cluster/wan
export WAN_NAME=a$(($$ % 1000000)) ZPS_TOP_BUILDDIR=$build
trap '"$wan" down; tap_end' EXIT
if ! why=$("$wan" allowed); then
  skip "rounds over long links" "$why"
  done_testing
  exit
fi
unset ZENPS_CONTROL_DEAD ZENPS_COORDINATOR_RESTART_GRACE ZENPS_JOIN_TIMEOUT ZENPS_ROUND_TIMEOUT ZENPS_INTERFACE
server=$("$wan" up 3 && "$wan" host s)
ok "a server" [ -n "$server" ]
for host in r0 r1; do ok "host $host is far away" "$wan" host $host delay=100; done
ok "certificates" zenpsctl certs init "$scratch/certs" --coordinators=s --workers=team
export ZENPS_TLS_CA=$scratch/certs/ca.pem ZENPS_COORDINATOR=$server:7077 ZENPS_PROFILE=internet ZENPS_WORLD_SIZE=2
as() { export ZENPS_TLS_CERT=$scratch/certs/$1.pem ZENPS_TLS_KEY=$scratch/certs/$1.key; }
as coordinator-s
"$wan" exec s zenpsd --control-listen="$server:7077" 2>"$scratch/zenpsd" &
disown
until_true grep -q 'listening at' "$scratch/zenpsd"
as worker-team
rounds() { # STEPS OPTION...: of both ranks; rank 0's figures are in $scratch/0
  local steps=$1 other
  shift
  ZENPS_RANK=1 "$wan" exec r1 zenps-perf --verify --warmup 2 --steps "$steps" "$@" >"$scratch/1" 2>&1 &
  other=$!
  ZENPS_RANK=0 "$wan" exec r0 zenps-perf --verify --json --warmup 2 --steps "$steps" "$@" >"$scratch/0" 2>"$scratch/0.log" &&
    wait $other && grep -q '"verified": *true' "$scratch/0" || { cat "$scratch/0" "$scratch/0.log" "$scratch/1"; return 1; }
}
median() { sed -nE 's/.*"median_ms": ?([0-9]+).*/\1/p' "$scratch/0"; }

# Where payloads and sums are asked for, a round takes 6 times the delay at least.
ok "rounds of 40 KB a partition are right" rounds 6 --rows 1048576 --density 0.01
ok "and take less time than questions would ($(median) ms)" [ "$(median)" -lt 600 ]
ok "rounds of 1 MB a partition are right" rounds 4 --rows 1048576 --density 1
ok "so are those of pushes and pulls apart" rounds 4 --rows 1048576 --density 0.05 --collective push-pull
ok "packets get lost" "$wan" set r0 loss=1
ok "and rounds are right" rounds 6 --rows 1048576 --density 0.05 --values qsgd8
ok "none is lost any more" "$wan" set r0 loss=0
cut() { # the rank's kernel ends its connections with the server, but for that with the coordinator
  "$wan" exec r0 timeout 60 ss -K dst "$server" dport != 7077 >>"$scratch/cut" 2>&1
}
if cut; then
  while sleep 3; do cut; done &
  cutter=$!
  disown
  ok "rounds are right while connections end" rounds 16 --rows 1048576 --density 0.05
  kill $cutter
  ok "which they did" grep -q ESTAB "$scratch/cut"
else
  skip "rounds while connections end" "ss -K is not allowed here"
fi
done_testing
