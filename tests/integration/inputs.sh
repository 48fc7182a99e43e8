#!/usr/bin/env bash
# Arguments in the place of a file that are no file, or do not end: programs say so, in bounded time and memory.
. "$(dirname "$0")/../support/tap.sh"
pipe=$scratch/pipe
mkfifo "$pipe"

# The status that it ends with (zenps(7); ranks have joined their job by then), how a program takes the file that is put for
# @, and a line that it would read for ever. (Cases run as they come.)
given=("2|zenpsctl plan --trace @|1 2 3"
  "1|zenpsrun -n 1 -- zenps-perf --steps 1 --trace @|1 2 3"
  "1|zenpsrun -n 1 -- zenps-perf --cases @|"
  "1|zenpsrun -n 1 -- zenps-linear @|1 3:0.5"
  "1|zenpsrun -n 1 -- zenps-embed @|alpha beta gamma")
# run COMMAND FILE: its output in $scratch/out; its status is none of a signal, of time or of lack of memory.
run() { (ulimit -v 8000000; timeout 1800 ${1//@/$2}) >"$scratch/out" 2>&1; }
# The thread and address sanitizers map terabytes.
nm -D "$build/.libs/libzenps.so" 2>/dev/null | grep -qE '__(asan|tsan)_' && run() { timeout 1800 ${1//@/$2} >"$scratch/out" 2>&1; }

for one in "${given[@]}"; do
  IFS='|' read -r status command line <<<"$one"
  name=${command#*-- }
  for file in /dev/zero /dev/urandom /dev/null; do
    run "$command" "$file"
    is "$name: a device fails" $? "$status"
    said "$name: and $file is said to be one" "$file is a device: must be a file or a pipe"
  done
  run "$command" "$scratch"
  is "$name: a folder fails" $? "$status"
  said "$name: and is said to be one" "$scratch is a folder: must be a file or a pipe"
  yes -- "$line" >"$pipe" 2>/dev/null &
  run "$command" "$pipe"
  is "$name: a pipe that does not end fails" $? "$status"
  said "$name: and the bound is said" "$pipe goes on after [0-9]+ bytes: must be at most that"
  wait
  head -c 100000000 /dev/zero >"$scratch/zeros"
  run "$command" "$scratch/zeros"
  is "$name: a file without lines fails" $? "$status"
  said "$name: and where is said" "$scratch/zeros, line 1: goes on after [0-9]+ bytes: must be text in lines"
done

for file in /dev/zero /dev/null "$scratch" "$scratch/zeros"; do
  (ulimit -v 8000000; timeout 1800 zenpsd --check --config="$file") >"$scratch/out" 2>&1
  is "zenpsd --config: ${file##*/} fails" $? 2
  said "zenpsd --config: and is named" "$file"
done
yes '# and so on' >"$pipe" 2>/dev/null &
timeout 1800 zenpsd --check --config="$pipe" >"$scratch/out" 2>&1
is "zenpsd --config: a pipe that does not end fails" $? 2
said "zenpsd --config: and the bound is said" 'the file goes on: must have at most 1048576 bytes'
wait
printf 'log.level = warn' >"$pipe" &
ok "zenpsd --config: a pipe whose last line has no end is taken" timeout 1800 zenpsd --check --config="$pipe"
wait

# A fabric that is hidden: what hides it is named.
hidden() { # NAME PATTERN COMMAND...
  "${@:3}" >"$scratch/out" 2>&1
  is "$1: status" $? 1
  said "$1: why" "$2"
}
hidden "FI_PROVIDER" 'FI_PROVIDER=efa is set, which hides all other providers of libfabric: unset it, or set it to net or tcp$' \
  env FI_PROVIDER=efa zenpsd --control-listen=127.0.0.1:0
hidden "FI_PROVIDER, where a provider is asked for" 'FI_PROVIDER=efa is set, .* or set it to sockets; libfabric is also told by the environment: FI_TCP_IFACE=eth7$' \
  env FI_PROVIDER=efa FI_TCP_IFACE=eth7 FI_LOG_LEVEL=warn zenpsd --control-listen=127.0.0.1:0 --fabric-provider=sockets
if unshare -m mount -t tmpfs -o size=1m none /dev/shm 2>/dev/null; then
  hidden "a small /dev/shm" '/dev/shm has [01] MiB free and shm needs about [0-9]+ \(16 for each of [0-9]+ processors\): make it larger' \
    unshare -m sh -c 'mount -t tmpfs -o size=1m none /dev/shm && exec zenpsd --control-listen=127.0.0.1:0 --fabric-provider=shm'
else
  skip "a small /dev/shm" "no mount namespaces"
fi
done_testing
