#!/usr/bin/env bash
# Servers that are told to end, one of which comes back, and one that is killed, under zenps-perf with gradients in device
# memory: the job leaves the former, takes in what comes, goes on without the latter, no step fails, and every sum is right.
. "$(dirname "$0")/../support/tap.sh"
. "$(dirname "$0")/../support/device-library.sh"

if [ "$has_device" = no ]; then
  skip "gradients in device memory" "this build has no emulated device"
  done_testing
  exit
fi

start() { # NAME ARGUMENTS...: a daemon; its pid in pid_NAME
  zenpsd --log-level=warn "${@:2}" >>"$scratch/$1.log" 2>&1 &
  eval "pid_$1=$!"
}
server() { start "$1" --roles=server --control-coordinator="$address" --server-name="$1"; }
ctl() { zenpsctl -e "$address" --timeout=300s "$@"; }
# Of the tensor that has had most.
steps() { ctl stats --output=json | grep -o '"rounds": *[0-9]*' | grep -o '[0-9]*$' | sort -n | tail -1; }
more_than() { [ "$(steps)" -gt "$1" ]; }
# At the word of rebalance, or before it.
taken_in() { zenpsctl -e "$address" rebalance --wait=300s --output=json | grep -qE '"outcome": *"moves"|servers and has them all'; }
goes_on() { until_true more_than $(($(steps) + 10)); }

start c --roles=coordinator --control-listen=127.0.0.1:0 --control-address-file="$scratch/address" --coordinator-min-servers=4
until_true test -s "$scratch/address"
address=$(cat "$scratch/address")
for s in s0 s1 s2 s3; do server $s; done
ZENPS_TELEMETRY=0.1s timeout 800 zenpsrun -n 2 --coordinator "$address" --job=roll --prefix=no -- \
  zenps-perf --memory device --verify --steps 1000 --rows 6007 --density 0.05 --json >"$scratch/json" 2>"$scratch/err" &
run=$!
ok "the job runs" goes_on
kill -TERM "$pid_s0"
wait "$pid_s0"
is "a server ends by itself when it is told to: status 0" $? 0
ok "the job goes on without it" goes_on
server s0
ok "it is started again, and the job takes it in" until_true taken_in
ok "and goes on with it" goes_on
kill -KILL "$pid_s1"
ok "and without one that is killed" goes_on
kill -TERM "$pid_s2"
wait "$pid_s2"
is "another one ends by itself: status 0" $? 0
ok "all of that in one run" kill -0 "$run"
wait "$run"
is "no step has failed: status 0" $? 0
like() { grep -q "$1" "$scratch/json"; }
ok "every sum is right" like '"verified": *true'
ok "and all was in device memory" like '"memory": *"device"'
kill -TERM "$pid_c" "$pid_s0" "$pid_s3"
wait "$pid_c"
done_testing
