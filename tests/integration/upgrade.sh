#!/usr/bin/env bash
# Releases whose control planes differ, and running jobs: who refuses whom, with which words, and the way back. zenpsd_next
# is this release's daemon with another version of the control plane.
. "$(dirname "$0")/../support/tap.sh"
ours=$(sed -n 's/^#define ZPS_PROTOCOL_VERSION \([0-9]*\)u$/\1/p' "$top/common/base/version.h")
next=$build/tests/integration/zenpsd_next

start() { # NAME PROGRAM ARGUMENTS...: a daemon; its pid in pid_NAME
  "$2" "${@:3}" >>"$scratch/$1.log" 2>&1 &
  eval "pid_$1=$!"
}
coordinator() { # PROGRAM
  start c "$1" --roles=coordinator --control-listen="$address" --control-address-file="$scratch/address" --coordinator-state-dir="$scratch/state"
  until_true test -s "$scratch/address"
  address=$(cat "$scratch/address")
}
ctl() { zenpsctl -e "$address" --timeout=60s "$@"; }
epochs() { grep -c '^epoch' "$scratch/run.out"; }
more_than() { [ "$("${@:2}")" -gt "$1" ]; }
trains_on() { until_true more_than $(($(epochs) + 20)) epochs; }
in_log() { grep -qE -- "$2" "$scratch/$1.log"; }
servers_in() { [ "$(ctl members | grep -cE '^ *[0-9]+ +s[0-9] +in ')" -eq "$1" ]; }
stopped() { # NAME
  eval "local pid=\$pid_$1"
  kill -TERM "$pid"
  wait "$pid"
}
running() { ctl jobs | grep -qE '^roll +0x[0-9a-f]+ +running '; }

address=127.0.0.1:0
coordinator zenpsd
start s0 zenpsd --roles=server --control-coordinator="$address" --server-name=s0
ok "a server registers" until_true servers_in 1
ctl version >"$scratch/out"
said "version has both programs' numbers" "^coordinator +[0-9.]+, protocol $ours\$"
for i in $(seq 16); do echo "1 $i:1"; echo "-1 $((i + 16)):1"; done >"$scratch/rows.libsvm"
zenpsrun -n 2 --coordinator "$address" --job=roll --prefix=no -- \
  zenps-linear --batch 1 --epochs 100000 "$scratch/rows.libsvm" >"$scratch/run.out" 2>&1 &
run=$!
ok "a job trains on it" trains_on

# ---- a server of the next release comes first ----
start s1 "$next" --roles=server --control-coordinator="$address" --server-name=s1
ok "the next release's server is refused, with both numbers and the way out" until_true in_log s1 \
  "retrying: .*speaks protocol version $ours, but the server at .* speaks version 99: run the same release on both"
ok "the coordinator's log has it, too" until_true in_log c "refused: the coordinator .* speaks protocol version $ours, but the server at .* speaks version 99"
ok "the server waits: it does not end" kill -0 "$pid_s1"
ok "and the job trains" trains_on

# ---- the coordinator is of the next release: those of this one are away ----
ok "the coordinator ends, with its state" stopped c
coordinator "$next"
ok "the waiting server is taken in" until_true in_log s1 "registered with the coordinator"
ctl version >"$scratch/out" 2>&1
is "zenpsctl version: status 4" $? 4
said "with both numbers and the way out" "protocol version 99, but the ctl at .* speaks version $ours: run the same release on both"
ok "the old server's log has both numbers" until_true in_log s0 "retrying: .*version 99, but the server at .* speaks version $ours"
ok "so has the output of running ranks" until_true grep -qE "version 99, but the worker at .* speaks version $ours" "$scratch/run.out"
timeout 60 zenpsrun -n 1 --coordinator "$address" --job=new --prefix=no -- zenps-perf --steps 1 >"$scratch/out" 2>&1
is "a new trainer ends at once: status 4" $? 4
said "with both numbers and the way out" "version 99, but the worker at .* speaks version $ours: run the same release on both"
ok "the running job trains on without a coordinator" trains_on

# ---- back ----
ok "the next release's coordinator ends" stopped c
coordinator zenpsd
ok "under the old one the job is there" until_true running
ok "with its server" until_true servers_in 1
ok "and trains" trains_on
is "no step has failed" "$(grep -ciE 'ERR_(PEER|SERVER|JOB)|is lost|was lost' "$scratch/run.out")" 0
kill -TERM "$run" && wait "$run" 2>/dev/null
kill -TERM "$pid_c" "$pid_s0" "$pid_s1"
done_testing
