#!/usr/bin/env bash
# Every server is restarted, one after another, while an elastic job trains: no step fails, and it ends on all of them.
. "$(dirname "$0")/../support/tap.sh"

start() { # NAME ARGUMENTS...: a daemon; its pid in pid_NAME
  zenpsd --log-level=warn "${@:2}" >>"$scratch/$1.log" 2>&1 &
  eval "pid_$1=$!"
}
ctl() { zenpsctl -e "$address" --timeout=300s "$@"; }
server() { start "$1" --roles=server --control-coordinator="$address" --server-name="$1"; }
in_all() { [ "$(ctl members | grep -cE '^ *[0-9]+ +s[0-2] +in ')" -eq 3 ]; }
gone() { ! kill -0 "$1" 2>/dev/null; }
# The job runs as this generation, on three servers, all of which live.
is_generation() {
  ctl jobs --output=json | tr -d '\n' | grep -qE '"job": *"roll".*"servers": *3,.*"servers_lost": *0.*"generation": *'"$1\b"
}
epochs() { grep -c '^epoch' "$scratch/out"; }
more_than() { [ "$("${@:2}")" -gt "$1" ]; }
trains_on() { until_true more_than $(($(epochs) + 20)) epochs; }

start c --roles=coordinator --control-listen=127.0.0.1:0 --control-address-file="$scratch/address" --coordinator-min-servers=3
until_true test -s "$scratch/address"
address=$(cat "$scratch/address")
for s in s0 s1 s2; do server $s; done
ok "three servers are in" until_true in_all
for i in 1 2 3 4; do echo "1 $i:1"; echo "-1 $((i + 4)):1"; done >"$scratch/rows.libsvm"
# shellcheck disable=SC2016
zenpsrun -n 2 --coordinator "$address" --job=roll --elastic 2:2 --prefix=no -- \
  zenps-linear --batch 1 --epochs 100000 "$scratch/rows.libsvm" >"$scratch/out" 2>&1 &
run=$!
ok "an elastic job trains on them" trains_on
generation=1
for s in s0 s1 s2; do
  eval "old=\$pid_$s"
  kill -TERM "$old"
  wait "$old"
  is "$s ends by itself when it is told to: status 0" $? 0
  ok "the job goes on without it" trains_on
  server $s
  generation=$((generation + 1))
  ok "$s is started again, and the job takes it up" until_true is_generation $generation
  ok "and trains" trains_on
done
is "no step has failed" "$(grep -ciE 'fail|lost' "$scratch/out")" 0
is "and nobody was lost" "$(cat "$scratch"/[cs]*.log | grep -ciE 'is lost|was lost')" 0
kill -TERM "$run"
wait "$run" 2>/dev/null
kill -TERM "$pid_c" "$pid_s0" "$pid_s1" "$pid_s2"
wait "$pid_c"
done_testing
