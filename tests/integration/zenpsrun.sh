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
  sh -c '[ -z "${SHOW:-}" ] || exec printenv "$SHOW"; echo "$RANK of $WORLD_SIZE, ${LOCAL_RANK-none} of ${LOCAL_WORLD_SIZE-none}, ${MASTER_ADDR-none}:${MASTER_PORT-none}"'; }
is "in front of a rank, the same" "$(in_front OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2)" "1 of 2, 1 of 2, 127.0.0.1:20124"
is "in front of a rank that does not know where rank 0 is" "$(in_front OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1)" "1 of 2, 0 of 1, none:none"
# At a running coordinator each run is a job of its own. What the user has set stays.
job_of() { env -u ZENPS_JOB "$@" zenpsrun -n 1 --prefix=no --coordinator 127.0.0.1:1 -- printenv ZENPS_JOB; }
job_of >"$scratch/out"
said "a run at a running coordinator has a name of its own" "^zenpsrun-$(hostname)-[0-9]+\$"
is "and another run another one" "$({ job_of; cat "$scratch/out"; } | sort -u | wc -l)" 2
is "but ZENPS_JOB's, if it is set" "$(job_of ZENPS_JOB=mine)" mine
is "in front of a rank, the launcher's name" "$(in_front MASTER_ADDR=head MASTER_PORT=29500 SHOW=ZENPS_JOB)" "head:29500"
is "ZENPS_PROVIDER is the default of --provider" "$(ZENPS_PROVIDER=tcp zenpsrun -n 1 --prefix=no --coordinator 127.0.0.1:1 -- printenv ZENPS_PROVIDER)" tcp
is "no prefix on request" "$(zenpsrun -n 1 --prefix=no -- echo plain)" plain

start=$SECONDS
zenpsrun -n 3 -- sh -c '[ "$RANK" = 1 ] && exit 7; sleep 600' >"$scratch/out" 2>&1
is "the failing rank's code" $? 7
said "the failing rank is named" 'rank 1 \(pid [0-9]+\) exited with code 7'
ok "the others are stopped at once" [ $((SECONDS - start)) -lt 300 ]
zenpsrun -n 2 -- sh -c '[ "$RANK" = 0 ] && kill -SEGV $$; sleep 60' >"$scratch/out" 2>&1
is "a signal's code" $? 139
said "a signal is named" 'was killed by signal 11'

# The ranks that are left may print their own error.
cat >"$scratch/killed.sh" <<'END'
[ "$RANK" = 2 ] && { (until cat /proc/$$/task/*/comm | grep -q zenps-net; do sleep 0.1; done; sleep 0.5; kill -KILL $$) & }
exec zenps-perf --rows 10000 --density 0.1 --steps 1000000
END
start=$SECONDS
zenpsrun -n 3 --linger=600s -- sh "$scratch/killed.sh" >"$scratch/out" 2>&1
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
zenpsrun -n 2 --linger=600s -- sh "$scratch/heard.sh" "$scratch/heard" >"$scratch/out" 2>&1
is "a death that others hear of ahead of its end: its code" $? 137
said "and its name" 'rank 0 \(pid [0-9]+\) was killed by signal 9'
zenpsrun -n 2 --linger=0 -- sh -c '[ "$RANK" = 1 ] && exit 7; sleep 60' >"$scratch/out" 2>&1
is "a rank that zenpsrun stopped is no cause" $? 7
zenpsrun -n 2 --linger=600s -- sh -c '[ "$RANK" = 1 ] && exit 7; sleep 4; kill -SEGV $$' >"$scratch/out" 2>&1
is "nor is a death long after" $? 7
zenpsrun -n 2 --linger=600s -- sh -c '[ "$RANK" = 1 ] && exit 7; sleep 1; echo spoke' >"$scratch/out" 2>&1
is "the first failure's code, whoever ends later" $? 7
said "with time to linger" '^\[0\] spoke'
ok "which ends with the last rank" [ $((SECONDS - start)) -lt 500 ]
zenpsrun -n 2 --linger=0 -- sh -c '[ "$RANK" = 1 ] && exit 7; sleep 60; echo spoke' >"$scratch/out" 2>&1
is "without it they are stopped at once" "$? $(grep -c spoke "$scratch/out")" "7 0"
rm -f "$scratch/failed"
zenpsrun -n 2 --linger=600s -- sh -c '[ "$RANK" = 1 ] && { echo $$ >"$1"; exit 7; }; sleep 600' sh "$scratch/failed" >"$scratch/out" 2>&1 &
run=$!
start=$SECONDS
has_failed() { [ -s "$scratch/failed" ] && [ ! -e "/proc/$(cat "$scratch/failed")" ]; }
until_true has_failed # and was seen
kill -TERM "$run"
wait "$run"
is "who stops the run need not wait for it" "$? $((SECONDS - start < 400))" "7 1"

zenpsrun -n 2 -- sleep 60 >"$scratch/out" 2>&1 &
run=$!
until_true pgrep -P "$run" sleep
kill -TERM "$run"
wait "$run"
is "stopped by SIGTERM" $? 143
ok "nothing is left behind" eval '! pgrep -P "$run"'

# What a run that was killed leaves is removed by the next one, and nothing else is.
runs=$scratch/runs
mkdir "$runs" "$runs/zenpsrun.nolock"
TMPDIR=$runs zenpsrun -n 1 -- sleep 600 >"$scratch/lives" 2>&1 &
lives=$!
until_true pgrep -P "$lives" sleep
left=$(ls "$runs" | grep -v nolock)
TMPDIR=$runs zenpsrun -n 1 -- sleep 600 >"$scratch/out" 2>&1 &
run=$!
until_true pgrep -P "$run" sleep
kill -KILL "$run"
wait "$run" 2>/dev/null
is "a run that is killed leaves its key and token" "$(ls "$runs"/*/key "$runs"/*/token | wc -l)" 4
TMPDIR=$runs zenpsrun -n 1 -- true >"$scratch/out" 2>&1
is "the next one removes them, and no folder of a run that lives, or without a lock" "$(ls "$runs" | tr '\n' ' ')" "$(printf '%s\n' "$left" zenpsrun.nolock | sort | tr '\n' ' ')"
kill -TERM "$lives"
wait "$lives"
is "which ends as any other" "$? $(ls "$runs")" "143 zenpsrun.nolock"

env -u RANK -u WORLD_SIZE zenpsrun -- true >"$scratch/out" 2>&1
is "no number of ranks: a usage error" $? 2
said "which says what to give" 'give -n N'
zenpsrun -n 1 -- "$scratch/no-such-program" >"$scratch/out" 2>&1
is "a program that is not there" $? 127
zenpsrun -n 1 --zenpsd /nonexistent -- true >"$scratch/out" 2>&1
is "a daemon that is not there" $? 1
said "is named" 'nonexistent'

# A server that is killed: the job goes on with the others, and another one is started in its place.
cat >"$scratch/kill.sh" <<'END'
option=--server-name=$2 # RUN SERVER, or: RUN coordinator
[ "$2" != coordinator ] || option=--roles=coordinator
kill -KILL "$(pgrep -P "$1" -f -- "$option( |\$)")"
END
cat >"$scratch/sums.sh" <<'END'
folder=$1 server=$2 run=$PPID
shift 2
export ZENPS_TELEMETRY=0.1s
[ "$RANK" = 0 ] && { # in the middle of the run
  until zenpsctl --timeout=300s -e "$ZENPS_COORDINATOR" -o json jobs | grep -qE '"rounds": ?[1-9]'; do kill -0 "$run" 2>/dev/null || exit; sleep 0.05; done
  sh "$folder/kill.sh" "$run" "$server"
} &
steps=1000000
[ -z "${TURN:-}" ] || steps=$((400 * TURN)) # in_time's
# Slow rounds, so that few of them take long enough.
export ZENPS_PROVIDER="fault+$ZENPS_PROVIDER" ZENPS_FABRIC_FAULT=delay=1:3ms
exec zenps-perf --rows 2000 --density 0.1 --verify --steps $steps "$@"
END
killed() { echo "server $1 \(pid [0-9]+\) was killed by signal 9 \(Killed\)"; }
goes_on() { echo "^zenpsrun: $(killed "$1"): job 'zenpsrun' goes on with $2; started server $1-2 \(pid [0-9]+\) in its place\$"; }
in_time "$(goes_on 1 "2 servers")" zenpsrun -n 4 --servers 3 -- sh "$scratch/sums.sh" "$scratch" server1
is "a server is killed: status 0" $? 0
said "with the server, the job and the new server in a line" "$(goes_on 1 "2 servers")"
is "one alone" "$(grep -c '^zenpsrun: ' "$scratch/out")" 1
said "and all sums are right" 'verified: every step equals'

for scheme in sparse-ps dense-ps omnireduce hierarchical ring; do
  in_time "$(goes_on 0 "1 server")" zenpsrun -n 3 --servers 2 -- sh "$scratch/sums.sh" "$scratch" server0 --scheme "$scheme"
  is "under $scheme: status 0" $? 0
  said "the loss in a line" "$(goes_on 0 "1 server")"
  said "and all sums are right" 'verified: every step equals'
done

perl -e 'srand 3; for (1 .. 3000) { my %s; $s{1 + int(3000 * rand() ** 2.5)} = 1 for 1 .. 40;
  print join(" ", rand() < 0.5 ? 1 : -1, map { "$_:0.2" } sort { $a <=> $b } keys %s), "\n" }' >"$scratch/docs.libsvm"
cat >"$scratch/train.sh" <<'END'
folder=$1 run=$PPID n=0
shift
zenps-linear --epochs 40 --batch 64 --json "$folder/docs.libsvm" | while read -r line; do
  n=$((n + 1))
  echo "$line" | sed -n 's/.*"loss": \([^,]*\),.*/loss \1/p'
  [ -n "${1:-}" ] && { [ $n = 2 ] || [ $n = 4 ]; } || continue
  sh "$folder/kill.sh" "$run" "$1"
  until pgrep -P "$run" -f -- "--server-name=$1-2( |\$)" >/dev/null; do sleep 0.02; done # zenpsrun has seen it
  shift
done
exec zenps-perf --rows 2000 --density 0.1 --steps 3 --verify
END
losses() { grep '^\[0\] loss' "$scratch/$1"; }
zenpsrun -n 4 --servers 3 -- sh "$scratch/train.sh" "$scratch" >"$scratch/calm" 2>&1
in_time "$(goes_on 0 "[12] servers?")" zenpsrun -n 4 --servers 3 -- sh "$scratch/train.sh" "$scratch" server2 server0
is "a training that loses two servers, and a job after it: status 0" $? 0
said "the first loss" "$(goes_on 2 "2 servers")"
said "the second" "$(goes_on 0 "[12] servers?")" # two, where another has taken the first one's place
is "all epochs" "$(losses out | wc -l)" 40
is "whose losses are those of a run in peace" "$(losses out)" "$(losses calm)"
said "the job after it has three servers again" 'ranks 4, servers 3,'
said "and right sums" 'verified: every step equals'

# A coordinator that is killed: rounds go on, and another one knows the job.
in_time ': rounds go on; started coordinator-2 ' zenpsrun -n 4 --servers 3 -- sh "$scratch/sums.sh" "$scratch" coordinator
is "the coordinator is killed: status 0" $? 0
said "with the new one in a line" '^zenpsrun: coordinator \(pid [0-9]+\) was killed by signal 9 \(Killed\): rounds go on; started coordinator-2 \(pid [0-9]+\) in its place$'
is "one alone" "$(grep -c '^zenpsrun: ' "$scratch/out")" 1
said "and all sums are right" 'verified: every step equals'
zenpsrun -n 4 --servers 3 --on-server-loss=fail -- sh "$scratch/sums.sh" "$scratch" coordinator >"$scratch/out" 2>&1
is "with --on-server-loss=fail the run fails" $? 1
said "and names it" '^zenpsrun: ERR_SERVER_LOST: the coordinator \(pid [0-9]+\) was killed by signal 9 \(Killed\)$'

# Ranks take their time to say what they miss: both times are for those that hang.
zenpsrun -n 4 --servers 3 --grace=600s --linger=600s --on-server-loss=fail -- sh "$scratch/sums.sh" "$scratch" server1 >"$scratch/out" 2>&1
is "with --on-server-loss=fail the run fails" $? 1
said "and names the server" "^zenpsrun: ERR_SERVER_LOST: the $(killed 1)\$"
said "as ranks do" "^\[[0-3]\] zenps-perf: .*server [0-9] 'server1' .* was lost"
zenpsrun -n 2 --servers 1 --grace=600s --linger=600s -- sh "$scratch/sums.sh" "$scratch" server0 >"$scratch/out" 2>&1
is "without another server the run fails" $? 1
said "and names the last one" "^zenpsrun: ERR_SERVER_LOST: the $(killed 0); the job has failed: .*server 0 'server0' .* was lost"
said "as ranks do" "^\[[01]\] zenps-perf: .*server 0 'server0' .* was lost"

# Servers that cannot start, or that end again and again.
cat >"$scratch/zenpsd" <<'END'
#!/bin/sh
case "$WHO $*" in
  ill*--server-name=server0-2*) exit 3 ;;
  weak*--server-name=server1* | none*--server-name*) kill -KILL $$ ;;
esac
exec zenpsd "$@"
END
chmod +x "$scratch/zenpsd"
WHO=ill in_time "$(goes_on 0 "1 server")" zenpsrun -n 2 --servers 2 --zenpsd "$scratch/zenpsd" -- sh "$scratch/sums.sh" "$scratch" server0
is "where no other server can start, the job goes on: status 0" $? 0
said "with right sums" 'verified: every step equals'
said "the server that was killed" "$(goes_on 0 "1 server")"
said "the one that did not start" "^zenpsrun: server 0-2 \(pid [0-9]+\) exited with code 3: .*; no other is started in its place, since it could not start\$"
WHO=weak zenpsrun -n 1 --servers 2 --zenpsd "$scratch/zenpsd" -- sleep 600 >"$scratch/out" 2>&1 &
run=$!
until_true grep -q 'has had' "$scratch/out"
kill -TERM "$run"
wait "$run"
is "servers that end again and again do not end the run" $? 143
said "but are not started for ever" "^zenpsrun: server 1-10 .*: no job is running; no other is started in its place, which has had 10 servers\$"
is "each is told of" "$(grep -c '^zenpsrun: server 1' "$scratch/out")" 10
WHO=none zenpsrun -n 1 --servers 1 --grace=0.1s --zenpsd "$scratch/zenpsd" -- sleep 600 >"$scratch/out" 2>&1
is "where no server is left, the run ends: status 1" $? 1
said "with the last one" "^zenpsrun: ERR_SERVER_LOST: the server 0-10 .*, the last one; no other is started in its place, which has had 10 servers\$"
zenpsrun -n 1 --servers 2 --grace=0.1s -p nonsense -- sleep 600 >"$scratch/out" 2>&1
is "servers that cannot start at all do: status 1" $? 1
said "with the first of them" '^zenpsrun: ERR_SERVER_LOST: the server [01] \(pid [0-9]+\) exited with code 1$'

# Elastic runs: shell programs that see in "$scratch/out" what zenpsrun has said.
heard() { echo "until grep -qE '$1' $scratch/out; do sleep 0.05; done"; }
ended() { echo "until [ -s $scratch/$1 ] && ! kill -0 \"\$(cat $scratch/$1)\" 2>/dev/null; do sleep 0.05; done"; }
is "an elastic run's environment" "$(ZENPS_JOIN_WAIT=1s zenpsrun -n 1 --prefix=no --elastic 1:4 -- sh -c 'echo "$ZENPS_MIN_WORLD_SIZE $ZENPS_MAX_WORLD_SIZE $ZENPS_JOIN_WAIT"')" "1 4 1s"
is "with a time to join" "$(zenpsrun -n 1 --prefix=no --elastic 1:1 --join-wait 1.5s -- sh -c 'echo "$ZENPS_JOIN_WAIT"')" 1500ms
is "that of any other" "$(zenpsrun -n 1 --prefix=no -- sh -c 'echo "${ZENPS_MIN_WORLD_SIZE-none} ${ZENPS_MAX_WORLD_SIZE-none} ${ZENPS_JOIN_WAIT-none}"')" "none none none"
zenpsrun -n 3 --elastic 2:4 -- sh -c "[ \$RANK = 1 ] && kill -KILL \$\$; $(heard 'goes on')" >"$scratch/out" 2>&1
is "a rank that is lost and survived: status 0" $? 0
said "with the rank and those that are left in a line" '^zenpsrun: rank 1 \(pid [0-9]+\) was killed by signal 9 \(Killed\); the job goes on with 2 ranks$'
is "one alone" "$(grep -c '^zenpsrun: ' "$scratch/out")" 1
zenpsrun -n 3 --elastic 2:3 --linger=600s -- sh -c "[ \$RANK = 0 ] && echo \$\$ >$scratch/pid; case \$RANK in 0) $(heard 'goes on'); exit 5 ;; 1) exit 3 ;; 2) $(ended pid); echo spoke ;; esac" >"$scratch/out" 2>&1
is "fewer than --elastic asks for: the last one's code" $? 5
said "the first is survived" '^zenpsrun: rank 1 \(pid [0-9]+\) exited with code 3; the job goes on with 2 ranks$'
said "the second is not" '^zenpsrun: rank 0 \(pid [0-9]+\) exited with code 5; 1 rank is left, and --elastic asks for 2$'
said "those that are left may say why" '^\[2\] spoke$'
zenpsrun -n 2 --elastic 1:2 --on-rank-loss=fail --linger=0 -- sh -c '[ "$RANK" = 1 ] && exit 7; sleep 600' >"$scratch/out" 2>&1
is "with --on-rank-loss=fail the first is the end" $? 7
said "as of any other run" '^zenpsrun: rank 1 \(pid [0-9]+\) exited with code 7$'

zenpsrun -n 3 --elastic 3:3 --on-rank-loss=restart -- sh -c "[ \$RANK = 1 ] && mkdir $scratch/first && kill -KILL \$\$; $(heard 'started rank'); echo I am \$ZENPS_RANK" >"$scratch/out" 2>&1
is "a rank that is started again: status 0" $? 0
said "with both in a line" '^zenpsrun: rank 1 \(pid [0-9]+\) was killed by signal 9 \(Killed\); started rank 1-2 \(pid [0-9]+\) in its place; the job goes on with 3 ranks$'
said "its output has its name" '^\[1-2\] I am 1$'
zenpsrun -n 3 --elastic 2:3 --on-rank-loss=restart -- sh -c "[ \$RANK = 1 ] && exit 3; $(heard 'in a row')" >"$scratch/out" 2>&1
is "one that ends again and again is not started for ever: status 0" $? 0
said "which is said" '^zenpsrun: rank 1-5 \(pid [0-9]+\) exited with code 3; no other is started in its place, since 5 in a row have ended within 10 s of their start; the job goes on with 2 ranks$'
is "each is told of" "$(grep -c '^zenpsrun: rank 1' "$scratch/out")" 5
zenpsrun -n 2 --elastic 2:2 --on-rank-loss=restart --linger=0 -- sh -c '[ "$RANK" = 1 ] && exit 3; sleep 600' >"$scratch/out" 2>&1
is "where the others are too few, its code" $? 3
said "and that they are" '^zenpsrun: rank 1-5 \(pid [0-9]+\) exited with code 3; 1 rank is left, and --elastic asks for 2$'
rm -f "$scratch/pid0" "$scratch/pid1"
zenpsrun -n 3 --elastic 1:3 --on-rank-loss=restart --linger=0 -- sh -c "echo \$\$ >$scratch/new\$RANK; mv $scratch/new\$RANK $scratch/pid\$RANK
  case \$RANK in 1) $(ended pid0); exit 4 ;; 2) $(ended pid1); sleep 0.5; echo spoke ;; esac" >"$scratch/out" 2>&1
is "a rank that fails when others have ended: the run fails" $? 4
said "with its code and why" '^zenpsrun: rank 1 \(pid [0-9]+\) exited with code 4, when others had ended$'
is "nothing is started in its place" "$(grep -c '^zenpsrun: ' "$scratch/out")" 1
said "and the others end by themselves" '^\[2\] spoke$'

refused() { # NAME PATTERN OPTION...
  local name=$1 pattern=$2
  shift 2
  env -u RANK -u WORLD_SIZE zenpsrun "$@" -- true >"$scratch/out" 2>&1
  is "$name: a usage error" $? 2
  said "which says what would be right" "$pattern"
}
for range in 2 2: :4 0:4 2:4: 2:x -1:4 ' 1:4' 1:99999; do
  refused "--elastic '$range'" "'$range' is not MIN:MAX, two numbers of ranks from 1 to 4096, such as 2:4" -n 2 --elastic "$range"
done
refused "more at least than at most" '4 ranks at least are more than 2 at most' -n 3 --elastic 4:2
refused "fewer ranks than at least" 'give -n from 2 to 4' -n 1 --elastic 2:4
refused "more ranks than at most" 'give -n from 2 to 4' -n 5 --elastic 2:4
refused "an elastic run without ranks" 'give -n N .*ZENPS_MIN_WORLD_SIZE=2 and ZENPS_MAX_WORLD_SIZE=4' --elastic 2:4
for loss in continue restart; do
  refused "--on-rank-loss=$loss of a job that is not elastic" "$loss needs an elastic job.*give --elastic MIN:MAX" -n 2 --on-rank-loss="$loss"
done
refused "a time to join of a job that is not elastic" 'give --elastic MIN:MAX' -n 2 --join-wait 3s
zenpsrun -n 2 --on-rank-loss=fail --linger=0 -- sh -c '[ "$RANK" = 1 ] && exit 7; sleep 600' >"$scratch/out" 2>&1
is "--on-rank-loss=fail needs none" $? 7

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
