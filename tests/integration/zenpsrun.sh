#!/usr/bin/env bash
# zenpsrun: prefixes, environment, failures, signals, torchrun's environment.
. "$(dirname "$0")/../support/tap.sh"

zenpsrun -n 3 -- sh -c 'echo "hello from $ZENPS_RANK of $ZENPS_WORLD_SIZE, $RANK $WORLD_SIZE $LOCAL_RANK"' 2>&1 | sort >"$scratch/out"
is "every line carries its rank" "$(cat "$scratch/out")" "[0] hello from 0 of 3, 0 3 0
[1] hello from 1 of 3, 1 3 1
[2] hello from 2 of 3, 2 3 2"
meet='echo "$MASTER_ADDR:$MASTER_PORT, $LOCAL_WORLD_SIZE"'
env -u MASTER_ADDR -u MASTER_PORT zenpsrun -n 2 --prefix=no -- sh -c "$meet" >"$scratch/out" 2>&1
is "all ranks are told the same place to meet" "$(sort -u "$scratch/out" | wc -l)" 1
said "a port of this host" '^127\.0\.0\.1:[0-9]+, 2$'
is "what is set already stays" "$(MASTER_ADDR=head MASTER_PORT=29500 zenpsrun -n 1 --prefix=no -- sh -c "$meet")" "head:29500, 1"
in_front() { env -u MASTER_ADDR -u MASTER_PORT -u RANK -u WORLD_SIZE OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 "$@" zenpsrun --prefix=no --coordinator 127.0.0.1:1 --port 20123 -- \
  sh -c 'echo "$RANK of $WORLD_SIZE, ${LOCAL_RANK-none} of ${LOCAL_WORLD_SIZE-none}, ${MASTER_ADDR-none}:${MASTER_PORT-none}"'; }
is "in front of a rank, the same" "$(in_front OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2)" "1 of 2, 1 of 2, 127.0.0.1:20124"
is "in front of a rank that does not know where rank 0 is" "$(in_front OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1)" "1 of 2, 0 of 1, none:none"
is "no prefix on request" "$(zenpsrun -n 1 --prefix=no -- echo plain)" plain

start=$SECONDS
zenpsrun -n 3 -- sh -c '[ "$RANK" = 1 ] && exit 7; sleep 60' >"$scratch/out" 2>&1
is "the failing rank's code" $? 7
said "the failing rank is named" 'rank 1 \(pid [0-9]+\) exited with code 7'
ok "the others are stopped at once" [ $((SECONDS - start)) -lt 20 ]
zenpsrun -n 2 -- sh -c '[ "$RANK" = 0 ] && kill -SEGV $$; sleep 60' >"$scratch/out" 2>&1
is "a signal's code" $? 139
said "a signal is named" 'was killed by signal 11'

# The ranks that are left may print their own error.
cat >"$scratch/killed.sh" <<'END'
[ "$RANK" = 2 ] && { (until cat /proc/$$/task/*/comm | grep -q zenps-net; do sleep 0.1; done; sleep 0.5; kill -KILL $$) & }
exec zenps-perf --rows 10000 --density 0.1 --steps 1000000
END
start=$SECONDS
zenpsrun -n 3 --linger=60s -- sh "$scratch/killed.sh" >"$scratch/out" 2>&1
is "a rank that is killed: its code" $? 137
said "rank 0 says whom it misses" '^\[0\] zenps-perf: .*rank 2 .*(gone|lost)'
said "rank 1 says whom it misses" '^\[1\] zenps-perf: .*rank 2 .*(gone|lost)'
said "the one that was killed is named" 'rank 2 \(pid [0-9]+\) was killed by signal 9'
cat >"$scratch/heard.sh" <<'END'
if [ "$RANK" = 1 ]; then
  echo $$ >"$1.new" && mv "$1.new" "$1"
  exit 7
fi
until [ -f "$1" ] && ! kill -0 "$(cat "$1")" 2>/dev/null; do sleep 0.01; done # its end was seen
kill -KILL $$
END
zenpsrun -n 2 --linger=60s -- sh "$scratch/heard.sh" "$scratch/heard" >"$scratch/out" 2>&1
is "a death that others hear of ahead of its end: its code" $? 137
said "and its name" 'rank 0 \(pid [0-9]+\) was killed by signal 9'
zenpsrun -n 2 --linger=0 -- sh -c '[ "$RANK" = 1 ] && exit 7; sleep 60' >"$scratch/out" 2>&1
is "a rank that zenpsrun stopped is no cause" $? 7
zenpsrun -n 2 --linger=60s -- sh -c '[ "$RANK" = 1 ] && exit 7; sleep 4; kill -SEGV $$' >"$scratch/out" 2>&1
is "nor is a death long after" $? 7
zenpsrun -n 2 --linger=60s -- sh -c '[ "$RANK" = 1 ] && exit 7; sleep 1; echo spoke' >"$scratch/out" 2>&1
is "the first failure's code, whoever ends later" $? 7
said "with time to linger" '^\[0\] spoke'
ok "which ends with the last rank" [ $((SECONDS - start)) -lt 50 ]
zenpsrun -n 2 --linger=0 -- sh -c '[ "$RANK" = 1 ] && exit 7; sleep 3; echo spoke' >"$scratch/out" 2>&1
is "without it they are stopped at once" "$? $(grep -c spoke "$scratch/out")" "7 0"
rm -f "$scratch/failed"
zenpsrun -n 2 --linger=60s -- sh -c '[ "$RANK" = 1 ] && { echo $$ >"$1"; exit 7; }; sleep 60' sh "$scratch/failed" >"$scratch/out" 2>&1 &
run=$!
start=$SECONDS
for _ in $(seq 100); do [ -s "$scratch/failed" ] && [ ! -e "/proc/$(cat "$scratch/failed")" ] && break; sleep 0.1; done # seen
kill -TERM "$run"
wait "$run"
is "who stops the run need not wait for it" "$? $((SECONDS - start < 40))" "7 1"

zenpsrun -n 2 -- sleep 60 >"$scratch/out" 2>&1 &
run=$!
until_true pgrep -P "$run" sleep
kill -TERM "$run"
wait "$run"
is "stopped by SIGTERM" $? 143
ok "nothing is left behind" eval '! pgrep -P "$run"'

env -u RANK -u WORLD_SIZE zenpsrun -- true >"$scratch/out" 2>&1
is "no number of ranks: a usage error" $? 2
said "which says what to give" 'give -n N'
zenpsrun -n 1 -- "$scratch/no-such-program" >"$scratch/out" 2>&1
is "a program that is not there" $? 127
zenpsrun -n 1 --zenpsd /nonexistent -- true >"$scratch/out" 2>&1
is "a daemon that is not there" $? 1
said "is named" 'nonexistent'

# Two processes as torchrun would start them; rank 0 brings up the daemons, on a port that is free here.
port=$((20000 + RANDOM % 12000)) # below those that the system gives to others
torchrun_rank() { RANK=$1 WORLD_SIZE=2 LOCAL_RANK=$1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 zenpsrun --port "$port" --servers 1 -- \
  zenps-perf --rows 10000 --density 0.1 --steps 2 --verify; }
torchrun_rank 1 >"$scratch/rank1" 2>&1 &
other=$!
torchrun_rank 0 >"$scratch/out" 2>&1
is "under torchrun: rank 0" $? 0
wait "$other"
is "under torchrun: rank 1" $? 0
said "under torchrun: verified" 'bit for bit'

done_testing
