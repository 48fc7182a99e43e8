#!/usr/bin/env bash
# Trainers and daemons use no more of the machine than they are given: by the affinity, and by control groups.
. "$(dirname "$0")/../support/tap.sh"

cpu=$(taskset -pc $$ | sed 's/.*: //; s/[^0-9].*//') # the first of those that this shell may use
threads() { cat "/proc/$1"/task/*/comm 2>/dev/null | grep -c "^$2"; } # PID NAME
# Runs one rank by way of a command, and counts the threads that encode once its data plane is up.
encoders() { # COMMAND...
  local pid
  rm -f "$scratch/rank"
  zenpsrun -n 1 -- "$@" sh -c 'echo $$ >"'"$scratch/rank"'"; exec zenps-perf --rows 1000 --density 0.1 --steps 1000000' >"$scratch/out" 2>&1 &
  local run=$!
  is_up() { pid=$(cat "$scratch/rank" 2>/dev/null) && [ -n "$pid" ] && [ "$(threads "$pid" zenps-net)" -gt 0 ]; }
  until_true is_up
  threads "${pid:-none}" zenps-work
  kill -TERM "$run"
  wait "$run"
}
is "a rank on one core has one thread that encodes" "$(encoders taskset -c "$cpu")" 1

# A group of our own that gives half a processor's time; where there is none to be made, containers prove it.
group=/sys/fs/cgroup/cpu/zenps-test.$$ quota=cpu.cfs_quota_us
[ -e /sys/fs/cgroup/cgroup.controllers ] && group=/sys/fs/cgroup/zenps-test.$$ quota=cpu.max
if mkdir "$group" 2>/dev/null && echo 50000 >"$group/$quota" 2>/dev/null; then
  is "a rank with half a processor's time has one" "$(encoders sh -c 'echo $$ >'"$group"'/cgroup.procs; exec "$@"' sh)" 1
else
  skip "a rank with half a processor's time has one" "no control group can be made here"
fi
rmdir "$group" 2>/dev/null

zenpsd --control-listen=127.0.0.1:0 --control-address-file="$scratch/address" >"$scratch/out" 2>&1 &
daemon=$!
until_true test -s "$scratch/address"
wide=$(threads "$daemon" reduce)
kill -TERM "$daemon"
wait "$daemon"
taskset -c "$cpu" zenpsd --control-listen=127.0.0.1:0 --control-address-file="$scratch/address2" >"$scratch/out" 2>&1 &
daemon=$!
until_true test -s "$scratch/address2"
is "a daemon on one core has one thread that sums (elsewhere $wide)" "$(threads "$daemon" reduce)" 1
kill -TERM "$daemon"
wait "$daemon"
done_testing
