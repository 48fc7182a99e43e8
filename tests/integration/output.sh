#!/usr/bin/env bash
# Readers of logs and output that stop or go away: daemons and ranks go on, zenpsrun keeps its duties, and no output of a
# rank is lost.
. "$(dirname "$0")/../support/tap.sh"

# Descriptor 7 has both ends of a pipe that is full and that nobody reads. No other process has it.
stopped() {
  rm -f "$scratch/pipe"
  mkfifo "$scratch/pipe"
  exec 7<>"$scratch/pipe"
  head -c 65536 /dev/zero >&7
}
# Everything in it and to come, without what it was filled with, to a file.
read_on() {
  tr -d '\0' <"$scratch/pipe" >"$1" 7>&- &
  reader=$!
  exec 7>&-
}

stopped
zenpsd --control-listen=127.0.0.1:0 --control-address-file="$scratch/address" --log-level=info 2>"$scratch/pipe" 7>&- &
daemon=$!
ok "a daemon starts though nobody reads its log" until_true test -s "$scratch/address"
address=$(cat "$scratch/address")
jobs_run() {
  for _ in 1 2 3; do
    zenpsrun -n 2 --coordinator "$address" -- zenps-perf --rows 1000 --density 0.1 --steps 10 --verify || return 1
  done
}
ok "it serves jobs" jobs_run
ok "a rank whose own log nobody reads ends well" env ZENPS_LOG_LEVEL=trace ZENPS_COORDINATOR="$address" ZENPS_RANK=0 \
  ZENPS_WORLD_SIZE=1 bash -c 'exec zenps-perf --rows 1000 --density 0.1 --steps 100 --verify 2>"$0"' "$scratch/pipe"
read_on "$scratch/out"
ok "and a job whose log is read again" jobs_run
jobs_run >/dev/null 2>&1 # whose lines are in $scratch/out
kill -TERM "$daemon"
wait "$daemon"
is "SIGTERM ends it with status 0" $? 0
wait "$reader"
said "the log says how many lines nobody read" ' warn  log: [0-9]+ lines of the log were dropped: the reader of stderr did not keep up$'
said "and goes on" 'drained, exiting$'

stopped
zenpsd --control-listen=127.0.0.1:0 --control-address-file="$scratch/address2" --log-level=info 2>"$scratch/pipe" 7>&- &
daemon=$!
until_true test -s "$scratch/address2"
kill -TERM "$daemon"
wait "$daemon"
is "SIGTERM ends one whose log nobody reads, with status 0" $? 0
exec 7>&-

zenpsd --control-listen=127.0.0.1:0 --control-address-file="$scratch/address3" --log-level=info 2> >(exec true) &
daemon=$!
until_true test -s "$scratch/address3"
address=$(cat "$scratch/address3")
ok "a daemon whose log's reader has ended serves jobs" jobs_run
kill -TERM "$daemon"
wait "$daemon"
is "and ends with status 0" $? 0

# zenpsrun: ranks wait for the reader, and nothing else does.
run_stopped() { # COMMAND: a run whose stdout is such a pipe
  stopped
  zenpsrun -n 2 --prefix=no --linger=0 --log-level=info "${flags[@]}" -- sh -c "$1" sh "$scratch" >"$scratch/pipe" 2>"$scratch/err" 7>&- &
  run=$!
}
told() { grep -qE -- "$1" "$scratch/err"; }
flags=(--servers=1)
run_stopped 'if [ "$RANK" = 1 ]; then until [ -e "$1/go" ]; do sleep 0.05; done; exit 7; fi; seq 1000000; sleep 100'
coordinator() { pgrep -P "$run" -f -- --roles=coordinator; }
until_true coordinator
until_true told 'server registered|registered'
kill -KILL "$(coordinator)"
ok "stdout that nobody reads: a coordinator is replaced" until_true told 'coordinator.* was killed by signal 9.*started coordinator-2'
touch "$scratch/go"
read_on "$scratch/out"
wait "$run"
is "and the rank that failed has its code" $? 7
wait "$reader"
flags=()
run_stopped '[ "$RANK" = 1 ] || seq 200000'
until_true pgrep -P "$run" -f 'seq|sh -c'
read_on "$scratch/out"
wait "$run"
is "a reader that reads on: the run ends well" $? 0
wait "$reader"
is "with every line" "$(cksum <"$scratch/out")" "$(seq 200000 | cksum)"
run_stopped 'seq 200000; echo done >>"$1/never"'
until_true pgrep -P "$run" -f 'seq|sh -c'
kill -TERM "$run"
wait "$run"
is "SIGTERM ends a run whose output nobody reads" $? 143
ok "which says what was lost" told '^zenpsrun: [0-9]+ bytes for stdout were dropped: its reader did not keep up$'
exec 7>&-
zenpsrun -n 2 -- sh -c 'seq 10000; seq 10000; [ "$RANK" = 0 ] || exit 5' 2>"$scratch/err" > >(exec true)
is "stdout whose reader has ended: ranks end by themselves" $? 5
ok "and what was lost is said" told '^zenpsrun: [0-9]+ bytes for stdout were dropped: Broken pipe$'

# Descriptors 0 to 2 are closed: no socket becomes stdin, stdout or stderr.
zenpsd --control-listen=127.0.0.1:0 --control-address-file="$scratch/address4" --log-level=trace <&- >&- 2>&- &
daemon=$!
until_true test -s "$scratch/address4"
address=$(cat "$scratch/address4")
ok "a daemon without them serves jobs" jobs_run
is "and has others in their place" "$(readlink "/proc/$daemon/fd/"[012] | sort -u)" /dev/null
zenpsctl --timeout=300s -e "$address" status <&- >&- 2>&-
is "zenpsctl without them" $? 0
ZENPS_LOG_LEVEL=trace zenpsrun -n 2 --log-level=trace -- zenps-perf --rows 1000 --density 0.1 --steps 10 --verify <&- >&- 2>&-
is "zenpsrun without them" $? 0
ZENPS_LOG_LEVEL=trace ZENPS_COORDINATOR="$address" ZENPS_RANK=0 ZENPS_WORLD_SIZE=1 zenps-perf --rows 1000 --density 0.1 --steps 10 --verify <&- >&- 2>&-
is "a rank without them" $? 0
kill -TERM "$daemon"
wait "$daemon"
is "SIGTERM ends the daemon with status 0" $? 0

# Parts of lines.
bar='printf "\r 10%%"; until [ -e "$1/seen" ]; do sleep 0.05; done; printf "\r 20%%"; until [ -e "$1/seen2" ]; do sleep 0.05; done; printf "\r100%%\n"'
for prefix in no yes; do
  rm -f "$scratch/seen" "$scratch/seen2"
  zenpsrun -n 1 --prefix=$prefix -- sh -c "$bar" sh "$scratch" >"$scratch/out" 2>&1 &
  run=$!
  ok "a bar is seen as it grows, --prefix=$prefix" until_true grep -q '10%' "$scratch/out"
  touch "$scratch/seen"
  until_true grep -q '20%' "$scratch/out"
  touch "$scratch/seen2"
  wait "$run"
  at=; [ $prefix = no ] || at='[0] '
  is "its bytes, --prefix=$prefix" "$(od -c "$scratch/out")" "$(printf "\r$at 10%%\r$at 20%%\r${at}100%%\n" | od -c)"
done
long=$(head -c 30000 /dev/zero | tr '\0' x)
is "a long line stays one" "$(zenpsrun -n 1 -- sh -c 'head -c 30000 /dev/zero | tr "\0" x; echo')" "[0] $long"
is "lines that end in both are whole" "$(zenpsrun -n 1 -- printf 'a\r\nb\r\n' | od -c)" "$(printf '[0] a\r\n[0] b\r\n' | od -c)"
rm -f "$scratch/seen"
zenpsrun -n 2 -- sh -c 'if [ "$RANK" = 0 ]; then printf half; until [ -e "$1/seen" ]; do sleep 0.05; done; echo " and half"; else
  until grep -q half "$1/out"; do sleep 0.05; done; echo whole; until grep -q whole "$1/out"; do sleep 0.05; done; touch "$1/seen"; fi' sh "$scratch" >"$scratch/out" 2>&1
is "no line is of two ranks" "$(cat "$scratch/out")" "[0] half
[1] whole
[0]  and half"
# A program whose output is buffered flushes full blocks, in the middle of lines. The others' output breaks none of these.
block='head -c 4096 /dev/zero | tr "\0" b; touch "$1/block"; until [ -e "$1/others" ]; do sleep 0.05; done; sleep 0.5; echo end'
others='until [ -e "$1/block" ]; do sleep 0.05; done; sleep 0.5; [ "$RANK" = 2 ] || echo other; touch "$1/others"'
zenpsrun -n 3 --prefix=no -- sh -c "if [ \"\$RANK\" = 0 ]; then $block; else $others; fi" sh "$scratch" >"$scratch/out" 2>"$scratch/err"
is "a block that ends within a line waits for its rest" "$(awk '{ print length($0) }' "$scratch/out" | sort -n | tr '\n' ' ')" "5 4099 "

done_testing
